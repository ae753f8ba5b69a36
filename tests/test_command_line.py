"""The command line: what people type, what reaches the settings, and what a mistake looks like."""

import hashlib
import inspect
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import batcher.__main__ as command_line
from batcher.config import Device, Dtype, Isolation, KvMode, Mode, OnFailure, PolicyName, Switch, TokenEstimate
from batcher.settings import Settings
from batcher.settings.telling import Panel
from tests.service.process import serve_process

ROOT = Path(__file__).parents[1]


def run(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False, env=env)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which `serve` would have served."""
    settings: list[Settings] = []
    monkeypatch.setattr("batcher.service.server.serve", settings.append)
    # It ends the process at once if any thread hangs: here that would be the test run, silently and with status 0.
    monkeypatch.setattr("batcher.service.server.leave", lambda: None)
    for name in [name for name in os.environ if name.startswith("BATCHER_")]:
        monkeypatch.delenv(name)
    return settings


def type_in(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Calls the entry point as the shell would. Returns the exit status."""
    monkeypatch.setattr(sys, "argv", ["batcher", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return int(ended.value.code or 0)


def test_it_says_which_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"batcher {version('batcher')}\n"


# What reaches the settings


def test_without_a_word_the_defaults_are_served(monkeypatch: pytest.MonkeyPatch, served: list[Settings]) -> None:
    assert type_in(monkeypatch, "serve") == 0
    assert served == [Settings()]


def test_every_flag_is_a_key_of_the_file() -> None:
    flags = set(inspect.signature(command_line.serve).parameters) - {"config"}
    assert flags <= set(Settings.__struct_fields__)


FLAGS: dict[str, tuple[str, str, Any]] = {
    "--mode": ("continuous", "mode", Mode.CONTINUOUS),
    "--backend": ("m:a", "backend", "m:a"),
    "--workers": ("3", "workers", 3),
    "--isolation": ("process", "isolation", Isolation.PROCESS),
    "--policy": ("size-or-timeout", "policy", PolicyName.SIZE_OR_TIMEOUT),
    "--max-batch-size": ("7", "max_batch_size", 7),
    "--batch-timeout": ("0", "batch_timeout", 0.0),
    "--service-time": ("0.5", "service_time", 0.5),
    "--host": ("localhost", "host", "localhost"),
    "--port": ("0", "port", 0),
    "--request-timeout": ("1.5", "request_timeout", 1.5),
    "--drain-deadline": ("0", "drain_deadline", 0.0),
    "--max-body-bytes": ("100", "max_body_bytes", 100),
    "--simulated-poison": ("BOOM", "simulated_poison", "BOOM"),
    "--wait-budget": ("0.4", "wait_budget", 0.4),
    "--keys-file": ("keys.toml", "keys_file", Path("keys.toml")),
    "--open-metrics": ("on", "open_metrics", Switch.ON),
    "--token-estimate": ("exact", "token_estimate", TokenEstimate.EXACT),
    "--redis": ("redis://cache:6379/1", "redis", "redis://cache:6379/1"),
    "--redis-failure": ("open", "redis_failure", OnFailure.OPEN),
    "--safety-rules": ("rules.toml", "safety_rules", Path("rules.toml")),
    "--safety-checker": ("m:a", "safety_checker", "m:a"),
    "--safety-failure": ("open", "safety_failure", OnFailure.OPEN),
    "--usage-dir": ("usage", "usage_dir", Path("usage")),
    "--usage-failure": ("closed", "usage_failure", OnFailure.CLOSED),
    "--request-log": ("off", "request_log", Switch.OFF),
    "--log-level": ("error", "log_level", "error"),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_reaches_its_setting(monkeypatch: pytest.MonkeyPatch, served: list[Settings], flag: str) -> None:
    text, name, value = FLAGS[flag]
    assert type_in(monkeypatch, "serve", flag, text) == 0
    assert served == [Settings(**{name: value})]


def test_the_flags_of_continuous_mode_reach_their_settings(monkeypatch: pytest.MonkeyPatch, served: list[Settings]) -> None:
    flags = (
        "--mode continuous --model simulated --dtype float32 --device cpu --replicas 1 --policy static --kv contiguous "
        "--prefill-chunk 64 --prefill-stretch 3 --prefix-cache off --max-num-seqs 8 --kv-blocks 100 --max-model-len 500 "
        "--max-waiting 9 --simulated-time-scale 0.5 --simulated-answer repeat"
    )
    assert type_in(monkeypatch, "serve", *flags.split()) == 0
    (settings,) = served
    assert settings == Settings(
        mode=Mode.CONTINUOUS, model="simulated", dtype=Dtype.FLOAT32, device=Device.CPU, policy="static", kv=KvMode.CONTIGUOUS,
        prefill_chunk=64, prefill_stretch=3.0, prefix_cache=Switch.OFF, max_num_seqs=8, kv_blocks=100, max_model_len=500,
        max_waiting=9, simulated_time_scale=0.5, simulated_answer="repeat",
    )  # fmt: skip


def test_file_environment_and_flags_meet(monkeypatch: pytest.MonkeyPatch, served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "batcher.toml"
    file.write_text("workers = 1\nport = 1\nmax-batch-size = 1\n")
    monkeypatch.setenv("BATCHER_PORT", "2")
    monkeypatch.setenv("BATCHER_MAX_BATCH_SIZE", "2")
    assert type_in(monkeypatch, "serve", "--config", str(file), "--max-batch-size", "3") == 0
    monkeypatch.setenv("BATCHER_CONFIG", str(file))
    assert type_in(monkeypatch, "serve", "--max-batch-size", "3") == 0
    assert served == [Settings(workers=1, port=2, max_batch_size=3)] * 2


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0"], "workers is 0"),
        (["--max-batch-size", "51"], "max_batch_size is 51"),
        (["--host", "0.0.0.0"], "no keys are configured"),
        (["--mode", "continuous", "--workers", "3"], "workers is for batch mode only"),
        (["--mode", "continuous", "--policy", "paced"], "policy is 'paced'"),
        (["--mode", "continuous", "--model", "no-such-model"], "'no-such-model'"),
        (["--kv-blocks", "10"], "kv_blocks is for continuous mode only"),
        (["--policy", "fast"], "policy is 'fast'"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--host", "0.0.0.0", "--keys-file", "missing.toml"], "`batcher keys create --file missing.toml "),
        (["--backend", "simulatd"], "'simulatd'"),
        (["--backend", "no_such_module:run_batch"], "no_such_module"),
        (["--backend", "json:no_such_attribute"], "no_such_attribute"),
        (["--backend", "json:"], "'json:'"),
        (["--simulated-jitter", "2"], "jitter"),
        (["--usage-dir", ""], "--usage-dir is ''; it must be a path"),
        (["--keys-file", ""], "--keys-file is ''; it must be a path"),
        (["--safety-rules", ""], "--safety-rules is ''; it must be a path"),
        (["--redis", "redis://cache/prod"], "redis is 'redis://cache/prod'"),
        (["--redis", "redis://cache:1/0?bogus=1"], "redis is 'redis://cache:1/0' with bogus"),
        (["--simulated-raise-rate", "0.7", "--simulated-die-rate", "0.7"], "raise_rate"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert type_in(monkeypatch, "serve", "--log-level", "error", *arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("batcher: ")
    assert words in line


def test_an_unknown_variable_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], served: list[Settings]
) -> None:
    monkeypatch.setenv("BATCHER_WORKER", "3")
    assert type_in(monkeypatch, "serve") == 2
    assert served == []
    (line,) = capfd.readouterr().err.splitlines()
    assert "worker" in line


@pytest.mark.parametrize(
    ("name", "value"), [("BATCHER_WORKERS", b"\xff"), ("OTEL_BSP_MAX_QUEUE_SIZE", b"-4"), ("OTEL_SPAN_LINK_COUNT_LIMIT", b"-1")]
)
def test_a_variable_that_cannot_work_is_one_line_and_status_2(name: str, value: bytes) -> None:
    """In a process of its own: the SDK looks at some when it is loaded."""
    ended = run("-m", "batcher", "serve", "--tracing", "on", env={**os.environ, name: os.fsdecode(value)})
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert line.startswith("batcher: ")
    assert name in line


@pytest.mark.parametrize(
    "arguments",
    [["serve", "--worker", "3"], ["serve", "--workers", "many"], ["serve", "--kv", "virtual"], ["serve", "now"], ["sreve"]],
)
def test_a_word_that_is_none_is_told_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], served: list[Settings], arguments: list[str]
) -> None:
    assert type_in(monkeypatch, *arguments) == 2
    out, err = capfd.readouterr()
    assert (out, served) == ("", [])
    assert arguments[-1] in err or arguments[1] in err
    assert "Traceback" not in err


# What is loaded


@pytest.mark.parametrize(
    ("module", "never"),
    [
        (
            "batcher",
            ["starlette", "anyio", "asyncio", "uvicorn", "prometheus_client", "torch", "backends"],
        ),
        ("batcher.settings", ["starlette", "anyio", "uvicorn", "torch", "backends"]),
        ("batcher.__main__", ["starlette", "uvicorn", "prometheus_client", "torch", "backends", "numpy"]),
        ("batcher.service.server", ["torch", "numpy", "loadtest", "batcher.sim", "hypothesis", "backends.process"]),
    ],
)
def test_a_module_loads_no_more_than_it_needs(module: str, never: list[str]) -> None:
    code = f"import sys, json, {module}; print(json.dumps([name for name in {never!r} if name in sys.modules]))"
    ended = run("-W", "error", "-c", code)
    assert (ended.stderr, json.loads(ended.stdout)) == ("", [])


def test_help_tells_of_every_command() -> None:
    ended = run("-m", "batcher", "--help")
    assert ended.returncode == 0
    assert "serve" in ended.stdout
    listed = run("-m", "batcher", "keys", "--help").stdout
    assert all(command in listed for command in ("create", "list", "rotate", "revoke"))
    assert run("-m", "batcher", "serve", "--help").stdout.count("--") >= len(FLAGS)


def test_the_help_of_serve_groups_its_flags_and_tells_their_defaults() -> None:
    told = run("-m", "batcher", "serve", "--help", env={**os.environ, "COLUMNS": "200"}).stdout
    at = [told.index(f" {panel.value} ") for panel in Panel]
    names = ("port", "usage_dir", "workers", "kv", "simulated_seed", "simulated_answer")
    flags_at = [told.index(f"--{name.replace('_', '-')} ") for name in names]
    panel_then_flag = [place for pair in zip(at, flags_at, strict=True) for place in pair]
    assert panel_then_flag == sorted(panel_then_flag)
    assert told.count("[default: ") == len(inspect.signature(command_line.serve).parameters) - 1
    assert "Number of GPUs.  [default: 16; for the backend generate 1]" in told


# The real thing


def test_the_log_shows_the_settings_in_force_and_no_secret(tmp_path: Path) -> None:
    """B17: whatever the way they came."""
    digest = hashlib.sha256(b"sk-live").hexdigest()
    file = tmp_path / "batcher.toml"
    file.write_text(f'request-timeout = 3\n[[keys]]\ntenant = "ada"\ntier = "paid"\nsha256 = "{digest}"\n')
    flags = ("--config", str(file), "--workers", "1")
    with serve_process(*flags, num_ready=1, env={"BATCHER_MAX_BATCH_SIZE": "7"}) as server:
        shown: dict[str, Any] = next(line for line in server.lines if line["event"] == "settings")
        listening = next(line for line in server.lines if line["event"] == "listening")
    assert (shown["request_timeout"], shown["max_batch_size"], shown["workers"], shown["port"]) == (3.0, 7, 1, 0)
    assert set(Settings().in_force()) <= set(shown)
    assert (shown["policy"], "model" in shown, "keys" in shown) == ("paced", False, False)
    assert digest not in json.dumps(server.lines)
    assert listening["url"].startswith("http://127.0.0.1:")
    assert server.other_lines == []
