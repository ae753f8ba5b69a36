"""The plug: what a GPU must offer, in words and as a Protocol.

A backend computes and nothing else. It knows no request, tier, retry or deadline; whoever calls it does. So a backend can be
a plain function, and any backend can be moved into a process of its own without knowing it.

Two shapes, because two people read this page. `BatchBackend` is what an author writes: as little as one function.
`WorkerBackend` is what `backends.create` hands to the shell: the same thing, hosted, with every method asynchronous, so that
a caller has one shape to drive and asks nothing about what is behind it. One loose protocol with optional methods was
refused: each caller would have to probe for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Protocol, runtime_checkable

import msgspec

from batcher.errors import ConfigError
from batcher.types import MAX_BATCH_SIZE, Message, Step

CLOSE_GRACE_S = 1.0
"""How long `close` waits for the backend's own `close`; in this process, for a batch in progress too."""
REAP_TIMEOUT_S = 2.0
"""How long `close` waits after that for what it cancelled or killed to be gone; then it is let go."""


class WorkerLost(Exception):
    """The worker itself is gone (its process died, its connection broke): no verdict on the inputs it held."""


class ContractBreach(RuntimeError):
    """The caller broke the contract: 0 or too many inputs, two calls at once, a call before `load`. A bug, not a fault."""


@runtime_checkable
class BatchBackend(Protocol):
    """A GPU that serves one batch at a time (SPEC S1.1, DESIGN D4).

    `run_batch` takes 1 to 50 inputs and returns a list of one `str` per input, in the order of the inputs. It may be a plain
    or a coroutine function; a plain one is called off the event loop, always on the same thread. It is never called again
    before it has returned.

    Raising an `Exception` other than `WorkerLost` means that these inputs failed. Raising `WorkerLost` or anything that is no
    `Exception` (SystemExit, KeyboardInterrupt), or passing the caller's deadline, means that the worker failed.

    A backend may also have, and needs neither:

    - `load()`: plain or coroutine; called once before the first batch. Raising means that the worker could not start.
    - `close()`: plain or coroutine; called once after the last, and not while `run_batch` runs. It gets about a second, and
      is left out when the worker is ended in the middle of a batch: what must not outlive the worker should not depend on it.
    """

    def run_batch(self, inputs: list[str]) -> list[str] | Awaitable[list[str]]: ...


class WorkerBackend(Protocol):
    """A hosted backend: what a worker drives. One event loop owns it; its methods are called on that loop only.

    The life of one: `load()` once, `run_batch` one call at a time, `close()` at the end, never `load()` again. A worker that
    restarts takes a fresh instance.
    """

    last_run_s: float | None
    """How long the last `run_batch` that answered or raised took where it computes, in seconds: without queues, threads or
    pipes. None before the first."""

    async def load(self) -> None:
        """Starts it. Raises ConfigError where no later try can do better (a name that does not exist, a module that cannot be
        imported), WorkerLost when it ended or did not become ready in time, and whatever else the backend's own `load` raised.
        Leaves nothing behind then."""

    async def run_batch(self, inputs: list[str]) -> object:
        """What the backend returned, unjudged.

        It should be a list of `len(inputs)` strings. Whether it is, the caller decides: a wrong count, other types or no list
        at all come through as they are, as far as MessagePack carries them from a process (there a tuple or a set arrives as a
        list; what cannot be carried raises RemoteError). Raises as in `BatchBackend`; ContractBreach for a bad call.
        Cancelling it leaves the batch running: until it is over, another call is a breach.
        """

    async def close(self) -> None:
        """Ends it, whatever it does, within CLOSE_GRACE_S and REAP_TIMEOUT_S (3 s): nearly always in an instant. A pending
        `run_batch` raises WorkerLost at once. Idempotent, and allowed at any time, also before and during `load`."""

    async def wait_lost(self) -> WorkerLost:
        """Returns why, as soon as the worker is lost, also between batches; after `close` too. Never raises by itself."""


class KvLayout(msgspec.Struct, frozen=True):
    """What a StepBackend must have room for."""

    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int
    """Most tokens of one step."""


class StepBackend(Protocol):
    """A GPU that runs one model step by step (DESIGN D4): `Step -> tokens`. It knows no request, tier or clock.

    One thread owns it. A step is launched and later collected, so that the next one can be decided while this one runs.
    Blocks may be handed to another sequence as soon as the step that frees them was launched: steps take effect in the order of
    their launches.
    """

    max_inflight_steps: int
    """Steps that may be launched before the oldest is collected: 1 where `launch` computes (a CPU), 2 where it only queues
    work on a device; with 2 a step may hold PENDING for tokens that were not collected yet."""

    def load(self, layout: KvLayout) -> None:
        """Loads weights, allocates the KV blocks, warms up. Called once. Raises ConfigError where no later try can do better,
        WorkerLost or an exception of its own (memory) otherwise."""

    def launch(self, step: Step) -> None:
        """Starts it. Everything of `step` that is needed later is read before this returns."""

    def collect(self) -> list[int]:
        """Waits for the oldest launched step: one token for each of its sequences with `is_sampled`, in their order.

        Raises what the step raised; then the KV that the step wrote must not be trusted, and the backend can go on."""

    def close(self) -> None:
        """Gives memory and threads back. Idempotent."""


class Tokenizer(Protocol):
    """Between text and a model's own token ids. Thread-safe: encoding long prompts happens off the event loop."""

    vocab_size: int
    stop_ids: frozenset[int]
    """Ids that end the model's turn."""

    def encode(self, text: str) -> list[int]:
        """Text as ids, nothing added: what looks like a special token in it stays ordinary text."""

    def render(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as the prompt's ids, by the model's chat template, up to where the answer begins. Special tokens
        come from the template alone: nothing that a caller writes becomes one. Raises InvalidRequest for roles or an order
        that the template cannot express."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none for special tokens."""


class ModelInfo(msgspec.Struct, frozen=True):
    """What can be said of a model before its weights are loaded."""

    id: str
    """The name that callers give."""
    version: str
    """Changes whenever the same tokens could give other keys and values: the prefix cache is keyed with it."""
    context_len: int
    vocab_size: int
    kv_bytes_per_token: int
    """With the dtype it will run in."""
    kv_bytes: int
    """What its device has to spare for keys and values, unless the operator says otherwise."""


class Model(Protocol):
    """A model as the service sees it: its facts, its tokenizer, and StepBackends to run it.

    `info` and `tokenizer` are ready at once (they read no weights); `make_backend` is called at each start of a replica, also
    after a loss."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def make_backend(self) -> StepBackend: ...


class BackendSpec(msgspec.Struct, frozen=True):
    """Which backend, in words that can be sent to another process."""

    name: str
    settings: dict[str, object] = {}


BackendFactory = Callable[[int], WorkerBackend]
"""Worker index -> a fresh instance. Called again, with the same index, for each restart of that worker."""


class LostLatch:
    """Says once why a worker is lost, and wakes whoever waits for it. The first reason stays."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: WorkerLost | None = None

    def set(self, message: str) -> WorkerLost:
        if self.reason is None:
            self.reason = WorkerLost(message)
            self._event.set()
        return self.reason

    def check(self) -> None:
        """Raises WorkerLost if it is set: a new one each time, since a raised exception collects tracebacks."""
        if self.reason is not None:
            raise WorkerLost(*self.reason.args)

    async def wait(self) -> WorkerLost:
        await self._event.wait()
        assert self.reason is not None
        return self.reason

    def __repr__(self) -> str:
        return f"<LostLatch {self.reason or 'not lost'}>"


def cannot_import(name: str, error: ImportError) -> ConfigError:
    """Of a backend whose code, or what it needs, is not installed: no restart will mend that."""
    told = str(error).partition("\n")[0][:500]
    return ConfigError(f"backend {name!r}: {told[:1].lower()}{told[1:]} (is its extra installed?)")


def check_call(inputs: Sized, *, is_busy: bool) -> None:
    """Raises ContractBreach if this call of `run_batch` must not be made; names no input."""
    if is_busy:
        raise ContractBreach("run_batch was called while another call runs: a GPU runs one call at a time")
    if not 1 <= len(inputs) <= MAX_BATCH_SIZE:
        raise ContractBreach(f"run_batch takes 1 to {MAX_BATCH_SIZE} inputs, not {len(inputs)}")
