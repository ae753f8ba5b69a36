"""The nouns of rate limits: who is limited, what was reserved, and how a verdict reads.

They stand apart from the counting (`limits.py`), since stores in other processes count in the same words.
"""

import msgspec

from batcher.config import RateLimit

WINDOW_S = 60
"""Limits are of any sliding minute."""


class Subject(msgspec.Struct, frozen=True, gc=False):
    """Whoever has a limit."""

    name: str
    """`key:ID` or `tier:NAME`: from our own closed words, never a caller's."""
    limit: RateLimit


class Standing(msgspec.Struct, frozen=True, gc=False):
    """How a subject stands after a verdict, for headers. None where there is no such limit."""

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset_s: float = 0.0
    """Until all of the limit is free again, if nobody asks meanwhile; WINDOW_S at most."""
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset_s: float = 0.0


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """One request and so many tokens, charged to each subject in one atomic step, at the second `at`.

    Exactly one of settle and give_back ends it.
    """

    subjects: tuple[Subject, ...]
    tokens: int
    at: int
    """The bucket, in whole seconds of the store's clock."""
    epoch: str = ""
    """Of the store's memory: what a store has forgotten is not given back to it."""
    standing: Standing = Standing()
    """Of the first subject."""


class LimitRefusal(msgspec.Struct, frozen=True, gc=False):
    """Why nothing was reserved."""

    subject: Subject
    """The one whose limit has no room; with several, the one that has none for the longest."""
    is_tokens: bool
    """Whether it is its limit of tokens; else of requests."""
    retry_after_s: float
    """When there is room, exactly, if nobody is charged before: WINDOW_S at most, or infinity where the limit never has any."""
    standing: Standing = Standing()
    """Of the first subject."""


class StoreAway(msgspec.Struct, frozen=True, gc=False):
    """The store could not be asked, and the policy is to refuse then."""

    retry_after_s: float = 1.0
