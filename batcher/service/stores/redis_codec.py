"""What `redis_limits.lua` is asked and what it answers, as values: pure functions on both sides of the wire."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from batcher.core.admission.reservation import WINDOW_S, LimitRefusal, Reservation, Standing, Subject
from batcher.service.limits import OnVerdict
from batcher.service.stores.redis_corrections import Difference, Key

_NO_LIMIT = -1
_NO_SLICE = (0, 0)
_US = 10**6
"""Microseconds in a second: the store's instants are whole microseconds of its clock."""

_encode = msgspec.msgpack.Encoder().encode


class Ask(msgspec.Struct, frozen=True):
    """A request that waits for its verdict."""

    subjects: tuple[Subject, ...]
    """Those that have a limit."""
    tokens: int
    on_verdict: OnVerdict
    asked_at: float
    """On this gateway's own clock, in seconds."""
    is_first_shown: bool
    """Whether the first of them is whom the caller may be told about."""
    slices: tuple[tuple[int, int], ...] = ()
    """To lease for each of the subjects, in requests and tokens; empty for none."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One call's."""

    epoch: str
    now_us: int
    verdicts: list[list[Any]]

    @property
    def second(self) -> int:
        """In which what was admitted is charged."""
        return self.now_us // _US


decode_answer = msgspec.msgpack.Decoder(Answer).decode


def encode_call(seed: str, corrections: Iterable[tuple[Key, Difference]], asks: Sequence[Ask]) -> bytes:
    """`seed` begins the epoch of a store that has none."""
    return _encode(
        (
            seed,
            [(*key, *difference) for key, difference in corrections],
            [(ask.tokens, _encode_subjects(ask)) for ask in asks],
        )
    )


def _encode_subjects(ask: Ask) -> list[tuple[str, int, int, int, int]]:
    encoded = []
    for i, subject in enumerate(ask.subjects):
        requests, tokens = subject.limit.requests_per_minute, subject.limit.tokens_per_minute
        slices = ask.slices[i] if ask.slices else _NO_SLICE
        encoded.append(
            (subject.name, _NO_LIMIT if requests is None else requests, _NO_LIMIT if tokens is None else tokens, *slices)
        )
    return encoded


def is_admitted(verdict: Sequence[Any]) -> bool:
    return bool(verdict[0] == 0)


def reservation(ask: Ask, verdict: Sequence[Any], answer: Answer) -> Reservation:
    requests, tokens, requests_granted, tokens_granted = verdict[2]
    standing = _standing(ask, requests - requests_granted, tokens - tokens_granted, verdict[1], answer.now_us)
    return Reservation(ask.subjects, ask.tokens, answer.second, answer.epoch, standing)


def refusal(ask: Ask, verdict: Sequence[Any], answer: Answer) -> LimitRefusal:
    which, is_tokens, free_at_us, charged_at_us, requests, tokens = verdict
    standing = _standing(ask, requests, tokens, charged_at_us, answer.now_us)
    return LimitRefusal(ask.subjects[which - 1], is_tokens == 1, (free_at_us - answer.now_us) / _US, standing)


def grants(verdict: Sequence[Any]) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
    """For each subject the slice that was granted, and what is counted with it, both in requests and tokens."""
    for requests, tokens, requests_granted, tokens_granted in verdict[2:]:
        yield (requests_granted, tokens_granted), (requests, tokens)


def _standing(ask: Ask, requests: int, tokens: int, charged_at_us: int, now_us: int) -> Standing:
    if not ask.is_first_shown:
        return Standing()
    limit = ask.subjects[0].limit
    reset_s = (charged_at_us + WINDOW_S * _US - now_us) / _US
    return Standing(
        limit.requests_per_minute,
        None if limit.requests_per_minute is None else max(0, limit.requests_per_minute - requests),
        reset_s if requests else 0.0,
        limit.tokens_per_minute,
        None if limit.tokens_per_minute is None else max(0, limit.tokens_per_minute - tokens),
        reset_s if tokens else 0.0,
    )
