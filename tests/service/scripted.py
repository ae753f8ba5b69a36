"""A model whose backend computes as the simulated one does, and does wrong what a test says: raise, hang, die, not start."""

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from backends.base import KvLayout
from backends.bytes_model import BytesTokenizer
from backends.models import SimulatedModel
from backends.simulated_steps import Answer, SimulatedStepBackend, SimulatedSteps
from batcher.config import ReplicaConfig
from batcher.service.generation import Delta, End, Event, Failed, Finished, GenerationRequest
from batcher.service.replica import STALL_S, Replica
from batcher.types import GREEDY, Message, Step
from tests.service.serving import until

CONFIG = ReplicaConfig(num_blocks=256, max_num_seqs=8, max_model_len=1024, prefill_chunk=64)
TOKENIZER = BytesTokenizer()
GATE_S = 20.0
"""No gate of a test that has failed stays shut for longer."""


def ask(
    text: str, *, max_tokens: int = 200, tier: str = "paid", stop: tuple[str, ...] = (), **more: object
) -> GenerationRequest:
    """A request that the simulated model answers with `text`."""
    return GenerationRequest(
        tenant="t",
        tier=tier,
        prompt=TOKENIZER.render([Message("user", text)]),
        max_tokens=max_tokens,
        sampling=GREEDY,
        stop_sequences=stop,
        **more,  # type: ignore[arg-type]
    )


class ScriptedModel(SimulatedModel):
    """`load_faults` and `step_faults` are raised by the next loads and collected steps, one each; None does nothing.

    `gate`, if it is an event, holds each `collect` until the event is set; `load_gate` holds each `load`.
    """

    def __init__(self, *, depth: int = 2, repeats: bool = False, pace_s: float = 0.0) -> None:
        self.settings = SimulatedSteps(answer=Answer.REPEAT if repeats else Answer.ECHO, time_scale=0.0)
        super().__init__(self.settings)
        self.depth = depth
        self.load_faults: list[BaseException | None] = []
        self.step_faults: list[BaseException | None] = []
        self.launch_faults: list[BaseException | None] = []
        self.gate: threading.Event | None = None
        self.num_held = 0
        """Calls of `collect` that the gate has held, or holds."""
        self.load_gate: threading.Event | None = None
        self.pace_s = pace_s
        """What each step takes longer: so that an answer is not over while this process stands still."""
        self.backends: list[ScriptedBackend] = []
        self.steps: list[Step] = []

    def make_backend(self) -> "ScriptedBackend":
        self.backends.append(ScriptedBackend(self))
        return self.backends[-1]


class ScriptedBackend(SimulatedStepBackend):
    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(model.settings)
        self.model = model
        self.max_inflight_steps = model.depth
        self.is_closed = False
        self.change_tokens: Callable[[list[int]], list[int]] = lambda tokens: tokens

    def load(self, layout: KvLayout) -> None:
        if self.model.load_gate is not None:
            self.model.load_gate.wait(GATE_S)
        _raise_next(self.model.load_faults)
        super().load(layout)

    def launch(self, step: Step) -> None:
        _raise_next(self.model.launch_faults)
        self.model.steps.append(step)
        super().launch(step)

    def collect(self) -> list[int]:
        tokens = super().collect()
        time.sleep(self.model.pace_s)
        if (gate := self.model.gate) is not None:
            self.model.num_held += 1
            gate.wait(GATE_S)
        _raise_next(self.model.step_faults)
        return self.change_tokens(tokens)

    def close(self) -> None:
        self.is_closed = True
        super().close()


def _raise_next(faults: list[BaseException | None]) -> None:
    if faults and (fault := faults.pop(0)) is not None:
        raise fault


class Transcript:
    """What one caller was told; an `on_event` that asserts that nothing comes after the end."""

    def __init__(self) -> None:
        self.text = ""
        self.num_tokens = 0
        self.end: End | None = None
        self.is_deaf = False
        """Set when the caller has left: from then on nothing may come."""

    def __call__(self, event: Event) -> None:
        assert self.end is None
        assert not self.is_deaf
        if isinstance(event, Delta):
            assert event.text
            assert event.num_tokens > 0
            self.text += event.text
            self.num_tokens += event.num_tokens
        else:
            if isinstance(event, Finished):
                self.text += event.text
            self.end = event

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end


@asynccontextmanager
async def running(
    model: ScriptedModel | None = None, config: ReplicaConfig = CONFIG, *, stall_s: float = STALL_S
) -> AsyncIterator[Replica]:
    """A ready replica. Afterwards nothing may be left of anybody: no record, message, block, slot or thread."""
    replica = Replica(model or ScriptedModel(), config, stall_s=stall_s, start_backoff_s=0.01)
    replica.start()
    try:
        await replica.wait_ready()
        yield replica
        await until(lambda: replica.num_live == 0)
    finally:
        await replica.close()
    assert replica.num_live == 0
    assert not replica._thread._inbox
    assert replica._engine.num_live == 0
    replica._engine.check(is_deep=True)
    assert replica.num_failed_checks == 0
    assert replica._thread.join(0.0)
