"""What is asked of an engine, and what it says back: the nouns between an engine and whoever answers its callers.

They carry text and counts, never blocks or steps, so that an engine in this thread, another one or another process can be
asked in the same words.
"""

from math import inf
from typing import TypeAlias

import msgspec

from batcher.errors import ServiceError
from batcher.types import FinishReason, Outcome, Sampling, Usage


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer to generate. Whoever makes it has checked that prompt and max_tokens fit the model (SPEC S4: 400).

    Raises ValueError if there is no prompt, no token to make, or an empty stop sequence.
    """

    tenant: str
    tier: str
    """The name of a configured tier."""
    prompt: list[int]
    """At least one token. Given away: nobody changes it after this."""
    max_tokens: int
    """At least 1."""
    sampling: Sampling = Sampling()
    stop_sequences: tuple[str, ...] = ()
    """The answer ends before the first that appears in it."""
    deadline_at: float = inf
    """If it waits until this instant of the engine's clock without having started, it ends as expired (SPEC S5.1)."""
    ignores_stop: bool = False
    """Goes on past the model's own stop tokens, up to max_tokens: for measuring."""
    salt: bytes | None = None
    """Only requests of the same salt share computed prefixes; by default nobody but the tenant's own do."""

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1 or "" in self.stop_sequences:
            facts = f"{len(self.prompt)} prompt tokens, max_tokens {self.max_tokens}, stop_sequences {self.stop_sequences}"
            raise ValueError(f"nothing can be generated from {facts}")


class Timing(msgspec.Struct, frozen=True, gc=False):
    """When an answer's work began: instants of the clock by which its request arrived."""

    accepted_at: float
    """When it began to wait for its batch, or for its first step."""
    started_at: float
    """When that left, or was launched."""
    run_s: float | None = None
    """What its batch took where it was computed."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """More of the answer's text: whole characters, never empty, and no stop sequence begins in it."""

    text: str
    num_tokens: int
    """Tokens sampled since the last Delta."""
    timing: Timing | None = None
    """Of the answer, with its first Delta where it is known by then."""


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The answer is complete."""

    text: str
    """What follows the last Delta; often empty."""
    finish: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    """The one that ended it, if one did."""
    timing: Timing | None = None


class Failed(msgspec.Struct, frozen=True):
    """The answer ends here without being complete: refused, expired or broken. `outcome` is never ok; nor cancelled, unless the
    caller is still there and is told why."""

    outcome: Outcome
    error: ServiceError
    usage: Usage
    """What was sampled until then; nothing, and no input either, if nothing was."""


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """Its caller has left, and the engine has given back all that it held."""

    usage: Usage
    """As in Failed."""


End: TypeAlias = Finished | Failed | Cancelled
Event: TypeAlias = Delta | End
Events: TypeAlias = list[tuple[int, Event]]
"""(sequence id, event), in order. Each sequence that was submitted has exactly one End, its last event."""

NO_USAGE = Usage(0, 0)
