"""What goes to a process and comes back: prints beside it, frames that cannot be, errors, and one instance a process."""

import json
from pathlib import Path

import pytest

import backends
from backends import process, wire
from backends.process import RemoteError
from tests.backends.hosting import FAULTY, START_TIMEOUT_S, in_process, loaded, odd

pytestmark = pytest.mark.anyio


async def test_prints_do_not_disturb_the_transport(capfd: pytest.CaptureFixture[str]) -> None:
    async with loaded(odd("Noisy")) as backend:
        assert await backend.run_batch(["x"]) == ["x"]
    captured = capfd.readouterr()
    assert captured.out == ""
    for line in ("at import", "in load", "in run_batch", "straight to standard output"):
        assert line in captured.err


async def test_wrong_outputs_come_through_for_the_caller_to_judge() -> None:
    async with loaded(in_process()) as backend:
        assert await backend.run_batch(["good", "WRONG"]) == ["<good>"]
        assert await backend.run_batch(["good", "TYPES"]) == ["<good>", 1]
        assert await backend.run_batch(["good", "NOTHING"]) is None
        assert await backend.run_batch(["good"]) == ["<good>"]


async def test_outputs_that_no_frame_carries_fail_the_batch() -> None:
    async with loaded(in_process()) as backend:
        for order, reason in (("OBJECT", "type object"), ("SURROGATE", "surrogate")):
            with pytest.raises(RemoteError, match=rf"cannot leave the process: .*{reason}"):
                await backend.run_batch([order])
        assert await backend.run_batch(["good"]) == ["<good>"]


async def test_inputs_that_no_frame_carries_fail_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded(in_process()) as backend:
        with pytest.raises(wire.CannotCarry, match="surrogate"):
            await backend.run_batch(["secret\ud800"])
        monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1_000)
        with pytest.raises(wire.CannotCarry, match="more than 1000"):
            await backend.run_batch(["x" * 1_000])
        assert await backend.run_batch(["good"]) == ["<good>"]


async def test_errors_are_bounded_and_always_legible() -> None:
    async with loaded(odd("RaisesLongMessage")) as backend:
        with pytest.raises(RemoteError, match=r"^KeyError: ") as raised:
            await backend.run_batch(["x"])
        assert len(str(raised.value)) == len("KeyError: ") + wire.MAX_ERROR_CHARS


async def test_a_stop_iteration_is_an_ordinary_error() -> None:
    async with loaded(odd("StopsIteration")) as backend:
        with pytest.raises(RemoteError, match="StopIteration: out of luck"):
            await backend.run_batch(["x"])


@pytest.mark.parametrize("name", [FAULTY, "tests.backends.faulty:AsyncFaultyBackend"])
async def test_each_worker_has_one_instance_and_each_hook_is_called_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAULTY_LOG", str(log))
    monkeypatch.setattr(process, "CLOSE_GRACE_S", 30.0)  # On a busy machine even the last words may take a second.
    make = backends.create(name, isolation="process", start_timeout_s=START_TIMEOUT_S)
    async with loaded(make(0)) as first, loaded(make(1)) as second:
        await first.run_batch(["a"])
        await second.run_batch(["b"])
        await first.run_batch(["c"])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["pid"] for line in lines}) == 2
    for index, batches in ((0, [["a"], ["c"]]), (1, [["b"]])):
        mine = [line for line in lines if line["index"] == index]
        assert [line["event"] for line in mine] == ["load", *("run" for _ in batches), "close"]
        assert [line["inputs"] for line in mine[1:-1]] == batches
