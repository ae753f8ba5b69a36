"""Rules and checkers for the tests, well-behaved and not."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batcher.config import OnFailure, SafetyConfig
from batcher.service.safety.contract import CheckContext, Checked, Finding, Verdict
from batcher.service.safety.rulebook import RuleBook
from batcher.service.safety.rules import Rule, load_rules
from batcher.service.safety.stage import SafetyStage
from batcher.service.turns import Turns

CONTEXT = CheckContext("tenant", "paid", "smollm2")
MODELS = ("smollm2", "simulated")
TIERS = ("paid", "free")
FOUND = Finding(Verdict.STOP, "bad-word", "not this word")


RULES = """
[[rules]]
name = "birds"
phrases = ["heron"]
verdict = "stop"
message = "no birds here"
"""


def book(*rules: dict[str, Any]) -> RuleBook:
    return RuleBook(tuple(Rule(**{"name": f"rule-{number}", **rule}) for number, rule in enumerate(rules)))


def load(tmp_path: Path, text: str) -> tuple[Rule, ...]:
    return load_rules(written(tmp_path, text), models=MODELS, tiers=TIERS)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(text, encoding="utf-8")
    return file


def stage_of(
    checker: str | None = None,
    *,
    rules: Path | None = None,
    on_failure: OnFailure = OnFailure.CLOSED,
    timeout_s: float = 30.0,
) -> SafetyStage:
    name = f"{__name__}:{checker}" if checker is not None else None
    config = SafetyConfig(rules=rules, checker=name, on_failure=on_failure, timeout_s=timeout_s)
    return SafetyStage(config, models=MODELS, tiers=TIERS, turns=Turns())


async def answer(stage: SafetyStage, *pieces: str) -> Checked:
    """All that left of an answer, and how it ended."""
    guard = stage.open_output(CONTEXT)
    text = ""
    for piece in pieces:
        checked = await guard.feed(piece)
        text += checked.text
        if checked.finding is not None:
            return Checked(text, checked.finding)
    checked = await guard.flush()
    return Checked(text + checked.text, checked.finding)


class _Answer:
    """Holds back what could become BAD, until the last piece."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> Checked:
        self._held += text
        if "BAD" in self._held:
            return Checked(self._held[: self._held.index("BAD")], FOUND)
        keep = next(size for size in (2, 1, 0) if self._held.endswith("BAD"[:size]))
        free, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return Checked(free)

    def flush(self) -> Checked:
        return Checked(self._held)


class Plain:
    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        return FOUND if any("BAD" in text for text in texts) else None

    def check_output(self, context: CheckContext) -> Any:
        return _Answer()


class _AsyncAnswer:
    def __init__(self) -> None:
        self._answer = _Answer()

    async def feed(self, text: str) -> Checked:
        await asyncio.sleep(0)
        return self._answer.feed(text)

    async def flush(self) -> Checked:
        return self._answer.flush()


class Async:
    async def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        await asyncio.sleep(0)
        return Plain().check_input(context, texts)

    def check_output(self, context: CheckContext) -> Any:
        return _AsyncAnswer()


class Raising:
    """Raises whatever `error` is, in each method."""

    error: BaseException = ValueError("broken")

    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        raise self.error

    def check_output(self, context: CheckContext) -> Any:
        return self

    def feed(self, text: str) -> Checked:
        raise self.error

    def flush(self) -> Checked:
        raise self.error


class RaisingAtOnce(Raising):
    def check_output(self, context: CheckContext) -> Any:
        raise self.error


class AsyncRaising(Raising):
    async def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:  # type: ignore[override]
        raise self.error

    async def feed(self, text: str) -> Checked:  # type: ignore[override]
        raise self.error


class Exiting(Raising):
    error = SystemExit(3)


class CancellingItself(AsyncRaising):
    error = asyncio.CancelledError()


class Hanging:
    """Until `release` is set."""

    release = threading.Event()

    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        self.release.wait()
        return None

    def check_output(self, context: CheckContext) -> Any:
        return self

    def feed(self, text: str) -> Checked:
        self.release.wait()
        return Checked(text)

    def flush(self) -> Checked:
        return Checked("")


class AsyncHanging:
    num_cancelled = 0

    async def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        await self._hang()
        return None

    def check_output(self, context: CheckContext) -> Any:
        return self

    async def feed(self, text: str) -> Checked:
        await self._hang()
        return Checked(text)

    async def flush(self) -> Checked:
        return Checked("")

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            AsyncHanging.num_cancelled += 1
            raise


class Rewriting(Plain):
    """Gives back other text than it was fed."""

    def check_output(self, context: CheckContext) -> Any:
        return self

    def feed(self, text: str) -> Checked:
        return Checked(text.upper())

    def flush(self) -> Checked:
        return Checked("")


class EndRaising(Plain):
    """Lets everything pass, and then breaks."""

    def check_output(self, context: CheckContext) -> Any:
        return self

    def feed(self, text: str) -> Checked:
        return Checked(text)

    def flush(self) -> Checked:
        raise ValueError("broken")


class Swallowing(Rewriting):
    def feed(self, text: str) -> Checked:
        return Checked("")


class Talking(Rewriting):
    """Gives back no Checked, and no Finding."""

    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Any:
        return "BAD"

    def feed(self, text: str) -> Any:
        return text


class Ranting(Plain):
    """A finding whose words are not fit to be told."""

    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        return Finding(Verdict.STOP, "a rule\n" * 100, "\ud83d" + "long" * 1000)


class Incomplete:
    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        return None


class WrongCall(Incomplete):
    def check_output(self) -> Any:
        return None


class AsyncOpening(Incomplete):
    async def check_output(self, context: CheckContext) -> Any:
        return None


class NotBorn(Plain):
    def __init__(self) -> None:
        raise OSError("no model here")
