"""The command line, from its spelling to its exit code."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from loadtest import __main__ as command
from loadtest import report as report_module
from tests.loadtest.standin import Answer, Asked, echo, standing_in
from tests.loadtest.talker import talking


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["loadtest", *arguments])
    with pytest.raises(SystemExit) as caught:
        command.main()
    return int(caught.value.code or 0)


def test_it_says_which_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"loadtest {version('batcher')}\n"


def test_a_run_is_reported_and_can_be_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing_in() as server:
        status = call(monkeypatch, "run", server.url, "--rate", "100", "--duration", "0.3", "--out", str(tmp_path))
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert status == (0 if report["verdict"] == "VALID" else 3)
    assert report["outcomes"] == {"ok": report["planned"]}
    assert report["verdict"] in capsys.readouterr().out
    for name in ("report.html", "latency.png", "percentiles.png"):
        (tmp_path / name).unlink()
    assert call(monkeypatch, "report", str(tmp_path)) == 0
    assert all((tmp_path / name).exists() for name in ("report.html", "latency.png", "percentiles.png"))


def test_keys_bring_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("--key", "dev-paid-a:paid:90", "--key", "dev-free-b:free:10")
    with standing_in() as server:
        call(monkeypatch, "run", server.url, "--arrivals", "constant", "--duration", "0.5", *keys)
    assert len(server.asked) == 50
    assert {asked.headers["x-api-key"] for asked in server.asked} == {"dev-paid-a", "dev-free-b"}


def test_a_key_of_one_s_own_is_no_mix_of_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table told paid and free apart though every call had the one key."""
    with standing_in() as server:
        traffic = ("--rate", "50", "--arrivals", "constant", "--duration", "0.2", "--out", str(tmp_path))
        call(monkeypatch, "run", server.url, "--header", "X-Api-Key: sk-mine", *traffic)
    assert {asked.headers["x-api-key"] for asked in server.asked} == {"sk-mine"}
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert (list(report["tiers"]), list(report["keys"])) == (["all"], ["all"])
    printed = capsys.readouterr().out
    assert "paid" not in printed
    assert "free" not in printed


def test_a_template_from_a_file_and_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "body.json").write_text('{"input": "{input}", "model": "m"}')
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n1,1,1\n2,1,1\n99,1,1\n")
    with standing_in() as server:
        call(
            monkeypatch, "run", server.url, "--body", f"@{tmp_path / 'body.json'}", "--path", "/v2/generate",
            "--header", "X-Api-Key: {key}", "--arrivals", f"trace:{tmp_path / 'trace.csv'}", "--speed-up", "10",
            "--duration", "0.5",
        )  # fmt: skip
    assert [asked.path for asked in server.asked] == ["/v2/generate"] * 3
    assert b'"model": "m"' in server.asked[0].body
    assert server.asked[0].headers["x-api-key"].startswith("dev-")


def test_a_sweep_finds_where_refusals_begin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse_most(asked: Asked) -> Answer:
        return echo(asked) if len(server.asked) <= 30 else Answer(status=529)

    monkeypatch.setattr(report_module, "MAX_SEND_LAG_P99_S", 60.0)  # A busy machine is not what is tested.
    with standing_in(refuse_most) as server:
        status = call(
            monkeypatch, "sweep", server.url, "--start-rate", "100", "--max-rate", "200", "--duration", "0.2",
            "--settle", "0", "--precision", "1", "--arrivals", "constant", "--slo", "5",
        )  # fmt: skip
    printed = capsys.readouterr().out
    assert status == 0
    assert "Knee: 100/s" in printed


def test_generated_text_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,12,3\n0.1,900,2\n0.2,14,5\n")
    with talking() as server:
        call(
            monkeypatch, "run", server.url, "--endpoint", "messages", "--arrivals", f"trace:{tmp_path / 'trace.csv'}",
            "--prompt-tokens", f"trace:{tmp_path / 'trace.csv'}", "--output-tokens", f"trace:{tmp_path / 'trace.csv'}",
            "--max-prompt-tokens", "500", "--model", "m", "--temperature", "0.5", "--stop", "a", "--stop", "b",
            "--duration", "1", "--out", str(tmp_path / "out"),
        )  # fmt: skip
    report = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes())
    assert report["outcomes"] == {"ok": 3}
    assert (report["slo_s"], report["slo_ttft_s"], report["slo_tpot_s"]) == (None, 1.0, 0.05)
    asked = sorted((heard.body["max_tokens"], len(heard.last_text.split())) for heard in server.heard)
    assert asked == [(2, 500), (3, 12), (5, 14)]  # Both lengths of a row go together.
    assert {tuple(heard.body["stop_sequences"]) for heard in server.heard} == {("a", "b")}
    assert (tmp_path / "out" / "tokens.png").exists()


def test_a_closed_loop_of_whole_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with talking() as server:
        call(
            monkeypatch, "run", server.url, "--endpoint", "messages", "--concurrency", "4", "--requests", "12", "--no-stream",
            "--output-tokens", "8@0.75,16@0.25", "--shared-prefix-tokens", "32", "--turns", "2", "--token-unit", "byte",
        )  # fmt: skip
    assert len(server.heard) == 12
    assert {heard.body["max_tokens"] for heard in server.heard} == {8, 16}
    assert "closed loop: 4 at a time" in capsys.readouterr().out


def test_two_servers_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report_module, "MAX_SEND_LAG_P99_S", 60.0)  # A busy machine is not what is tested,
    monkeypatch.setattr(report_module, "MAX_CPU_SHARE", 60.0)  # nor is a server that answers at once.
    with talking() as server:
        status = call(
            monkeypatch, "compare", "--server", f"one={server.url}", "--server", f"[2]={server.url}", "--endpoint", "messages",
            "--rounds", "2", "--warmup", "3", "--concurrency", "2", "--requests", "5", "--out", str(tmp_path),
        )  # fmt: skip
    assert status == 0
    assert len(server.heard) == 2 * 2 * (3 + 5)
    printed = capsys.readouterr().out
    assert "[2], round 2: 5 ok" in printed
    for name in ("compare.json", "compare.html", "compare.png", "one-1/report.json", "-2--2/report.html"):
        assert (tmp_path / name).exists()


def test_a_comparison_has_the_options_of_a_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = {}
    for name in ("run", "sweep", "compare"):
        assert call(monkeypatch, name, "--help") == 0
        options[name] = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert options["run"] <= options["compare"]
    assert options["run"] - options["sweep"] == {
        "--rate", "--key", "--speed-up", "--concurrency", "--requests", "--poison-share", "--poison-prefix", "--out",
    }  # fmt: skip


def test_a_sweep_tells_one_default_of_its_duration(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call(monkeypatch, "sweep", "--help") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--duration" in line]
    assert "Seconds of traffic. [default: 5.0]" in line
    assert call(monkeypatch, "run", "--help") == 0
    assert "Seconds of traffic. [30;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "http://127.0.0.1:1", "--endpoint", "chat"), "unknown endpoint 'chat'"),
        (("run", "http://127.0.0.1:1", "--endpoint", "messages"), "cannot connect to http://127.0.0.1:1/v1/messages"),
        (("run", "http://h", "--endpoint", "messages", "--body", "x"), "--body has no meaning with --endpoint messages"),
        (("run", "http://h", "--endpoint", "messages", "--poison-share", "0.1"), "poison is for an endpoint"),
        (("run", "http://h", "--stop", "x"), "--stop has no meaning with --endpoint run"),
        (("run", "http://h", "--think-time", "1"), "--think-time has no meaning with --endpoint run"),
        (("run", "http://h", "--endpoint", "messages", "--prompt-tokens", "many"), "a length is written 128"),
        (("run", "http://h", "--endpoint", "messages", "--turns", "0"), "turns: from 1 to 1,000, not 0"),
        (("run", "http://h", "--concurrency", "4", "--rate", "5"), "leave out --rate"),
        (("run", "http://h", "--concurrency", "0"), "concurrency: from 1 to 10,000, not 0"),
        (("run", "http://h", "--requests", "5"), "a number of requests is for a closed loop"),
        (("run", "http://127.0.0.1:1", "--duration", "0.1"), "cannot connect to http://127.0.0.1:1/v1/run"),
        (("run", "127.0.0.1:1"), "the URL must start with http://HOST"),
        (("run", "http://h", "--key", "a:b:1", "--rate", "5"), "--key brings its own rate"),
        (("run", "http://h", "--header", "x"), "a header is written"),
        (("run", "http://h", "--body", "@no-such-file"), "cannot read the body from no-such-file"),
        (("run", "http://h", "--body", "{}"), "no {input}"),
        (("run", "http://h", "--arrivals", "wave"), "unknown arrivals 'wave'"),
        (("compare", "--server", "http://h"), "a server is written NAME=COMMAND or NAME=URL"),
        (("compare", "--server", "a=http://h", "--endpoint", "chat"), "unknown endpoint 'chat'"),
        (("compare", "--server", "a=http://127.0.0.1:1"), "cannot connect to http://127.0.0.1:1/v1/run"),
        (("report", "no-such-folder"), "no-such-folder holds no saved run"),
        (("scenario", "b99"), "unknown scenario 'b99'; there are b1, b2, b3, b4, b5, f3, f7"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_scenarios_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "scenario", "--list") == 0
    printed = capsys.readouterr().out
    assert [line[:2] for line in printed.splitlines()] == ["b1", "b2", "b3", "b4", "b5", "f3", "f7"]
