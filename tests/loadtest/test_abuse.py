"""Who abuses: it says what its kind says, sees what is said to it, and is gone when it is told to be."""

import asyncio
import tomllib
from pathlib import Path
from random import Random

import msgspec
import pytest
import uvloop

from batcher.settings.sources import load_settings
from loadtest.scenarios import f7
from loadtest.scenarios.abuse import abusing
from loadtest.scenarios.abuse_kinds import HEADER_TRICKS, KINDS, LIMITED_KEY, abuser_keys
from loadtest.scenarios.abuse_lines import Line, Manner, Tally, connected, deaf, drip, hold, leave, pour
from loadtest.scenarios.prometheus import series
from loadtest.scenarios.server import serving
from loadtest.target import split_url

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def _hear(*pieces: bytes, num_answers: int) -> dict[str, int]:
    reader = asyncio.StreamReader()
    tally = Tally()
    line = Line(reader, None, tally)  # type: ignore[arg-type]
    hearing = asyncio.ensure_future(line.hear(num_answers))
    for piece in pieces:
        reader.feed_data(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    reader.feed_eof()
    await hearing
    return tally.answers


@pytest.mark.parametrize("size", [1, 2, 5, 13, 1000])
def test_answers_are_counted_however_they_come(size: int) -> None:
    said = b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER + b"HTTP/1.1 404 Not Found\r\n\r\n" + ANSWER
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    assert asyncio.run(_hear(*pieces, num_answers=3)) == {"200": 2, "404": 1}


def test_a_connection_that_ends_without_an_answer_was_cut() -> None:
    assert asyncio.run(_hear(ANSWER, b"HTTP/1.", num_answers=2)) == {"200": 1, "cut": 1}


async def _visit(manner: Manner, data: bytes, *, says: bytes, after: int) -> tuple[bytes, Tally]:
    """What a server saw of one visit that says something after so many bytes, and ends the connection."""
    seen = bytearray()
    tally = Tally()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(seen) < after and (piece := await reader.read(65_536)):
            seen.extend(piece)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(5.0), connected(split_url(url), tally) as line:
            await manner(line, Random(1), lambda random: data)
    return bytes(seen), tally


@pytest.mark.parametrize(
    ("manner", "data", "after"),
    [(drip, b"POST / HTTP/1.1\r\n", 3), (hold, b"POST", 4), (leave, b"POST /", 6), (deaf, b"GET /", 5)],
)
def test_each_manner_ends_with_its_connection(manner: Manner, data: bytes, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.scenarios.abuse_lines.DRIP_EVERY_S", 0.001)
    monkeypatch.setattr("loadtest.scenarios.abuse_lines.DEAF_S", 0.01)
    seen, tally = uvloop.run(_visit(manner, data, says=ANSWER, after=after))
    assert seen == data[:after]
    assert tally.answers == ({"200": 1} if manner in (drip, hold) else {})


@pytest.mark.parametrize("coding", ["content-length: 100000000", "transfer-encoding: chunked"])
def test_a_body_without_end_ends_when_the_server_ends_it(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.scenarios.abuse_lines.POUR_EVERY_S", 0.001)
    head = f"POST / HTTP/1.1\r\n{coding}\r\n\r\n".encode()
    try:
        seen, _ = uvloop.run(_visit(pour, head, says=ANSWER, after=100_000))
    except ConnectionError:
        return  # The server had ended it under its hands.
    assert seen.startswith(head)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_keys_that_the_server_knows(kind: str) -> None:
    known = {*abuser_keys(), LIMITED_KEY}
    for variant in KINDS[kind].variants:
        for line in variant.make(Random(7)).split(b"\r\n"):
            key = line.removeprefix(b"x-api-key: ").decode("latin-1")
            if line.startswith(b"x-api-key: abuser"):
                assert key in known


def test_tricks_are_whole_lines() -> None:
    assert all(isinstance(line, str | bytes) for lines in HEADER_TRICKS for line in lines)


def test_the_settings_are_settings(tmp_path: Path) -> None:
    (tmp_path / "batcher.toml").write_text(f7.settings(tmp_path))
    settings = load_settings(file=tmp_path / "batcher.toml")
    assert settings.body_timeout == f7.BODY_TIMEOUT_S
    assert len(settings.keys) == len(f7.GOOD) + len(abuser_keys()) + 2
    assert tomllib.loads(f7.settings(tmp_path))["idempotency_bytes"] == 1_000_000


def test_an_abuse_begins_and_ends_and_tells_its_toll() -> None:
    with serving(["--port", "0"], module="loadtest.scenarios.bare") as server:
        with abusing(server.url, "over-limits", num_clients=8, seed=1) as abuse:
            pass
        toll = msgspec.structs.asdict(abuse.toll.tally)
    assert toll["visits"] >= 8
    assert toll["unconnected"] == 0
    assert set(toll["answers"]) <= {"200", "404", "401"}


def test_what_is_held_is_read_by_whole_names() -> None:
    page = (
        "# HELP x y\n"
        'batcher_waiting_requests{tier="paid"} 2.0\n'
        'batcher_kv_blocks{state="held"} 3.0\n'
        'batcher_kv_blocks{state="free"} 100.0\n'
        'batcher_limit_reservations_ended_total{end="settled"} 50.0\n'
        "batcher_limit_reservations 1.0\n"
    )
    assert len(series(page)) == 5
    assert f7._held(page) == 6.0
