"""How a plan becomes a step: which tokens at which positions, decodes first.

This is the path that every token of every sequence takes, so what is done here for one is as little as can be.
"""

from batcher.core.replica.flights import Flight
from batcher.core.replica.running import Running
from batcher.core.replica.sequence import Sequence
from batcher.types import PENDING, ScheduledSequence, Step

_PENDING_TOKENS = (PENDING,)


def build_step(
    step_id: int, running: Running, chunks: list[tuple[Sequence, int]], *, num_padding: int, now: float
) -> Flight | None:
    """The step that computes one token of each decoding sequence and these chunks, which count as sent; None if empty."""
    entries: list[ScheduledSequence] = []
    sequences: list[Sequence] = []
    _add_decodes(running, entries, sequences)
    num_decodes = num_tokens = num_sampled = len(entries)
    for sequence, num in chunks:
        part = _chunk(running, sequence, num)
        entries.append(part)
        sequences.append(sequence)
        num_tokens += num
        num_sampled += part.is_sampled
    if not entries:
        return None
    step = Step(step_id, tuple(entries), num_tokens, num_padding if num_decodes else 0)
    return Flight(step, sequences, num_sampled, num_decodes, now)


def _add_decodes(running: Running, entries: list[ScheduledSequence], sequences: list[Sequence]) -> None:
    """One token for each sequence that decodes, but for those whose last tokens are all in flight."""
    for sequence in running.decoding.values():
        if sequence.num_sampled == sequence.max_tokens:
            continue
        start = sequence.num_computed
        known = sequence.tokens
        tokens = (known[start],) if start < len(known) else _PENDING_TOKENS
        entries.append(
            ScheduledSequence(sequence.id, sequence.slot, tokens, start, sequence.block_table, True, sequence.sampling)
        )
        sequences.append(sequence)
        sequence.num_computed = start + 1
        sequence.num_sampled += 1


def _chunk(running: Running, sequence: Sequence, num: int) -> ScheduledSequence:
    """The next `num` of its known tokens; with the last of them it begins to decode."""
    start = sequence.num_computed
    end = start + num
    sequence.num_computed = end
    is_last = end == len(sequence.tokens)
    if is_last:
        sequence.num_sampled += 1
        running.begin_decoding(sequence)
    tokens = tuple(sequence.tokens[start:end])
    return ScheduledSequence(sequence.id, sequence.slot, tokens, start, sequence.block_table, is_last, sequence.sampling)
