"""Draws one token for each row of logits, so that a draw depends on its own row, seed and position alone.

A hash of (seed, position) gives one uniform number, and the inverse of the distribution's cumulative sum makes a token of it.
A generator's stream was refused: what a sequence draws would depend on what else is in the batch, and one that was preempted
and computed again would go on differently. So was noise on every logit (Gumbel): that takes as many hashes as the vocabulary.

Likelier tokens stand first and equal ones in the order of their ids: 16-bit logits have many equals, and the cut of top-k and
top-p may not depend on how a sort happens to break ties.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.llm.transfer import to_device
from batcher.types import Sampling

NUCLEUS_CANDIDATES = 1024
"""Likeliest tokens that are searched for a nucleus before the whole row is sorted: 0.3 ms, not 2.3 ms, at 49,152 tokens."""


class _Kind(Enum):
    """What a row needs before its draw, by cost."""

    GREEDY = 0
    WHOLE = 1
    """The whole distribution, in the order of the ids: nothing is sorted."""
    TOP_K = 2
    """With or without top-p."""
    NUCLEUS = 3
    """Top-p alone: where it ends is known only after some sorting."""


def sample(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> Tensor:
    """One token id [S] int64 for each row of the float32 `logits` [S, vocab]; `positions` are those that the tokens will take.

    Top-k is applied to the distribution after temperature, and top-p to what top-k left, made to sum to 1 again. At least one
    token always remains. On a CUDA device nothing waits for the device."""
    rows: dict[_Kind, list[int]] = {}
    for row, sampling in enumerate(samplings):
        rows.setdefault(_kind(sampling, logits.shape[1]), []).append(row)
    if len(rows) == 1:
        (kind,) = rows
        return _sample_rows(kind, logits, samplings, positions)
    tokens = torch.empty(len(samplings), dtype=torch.int64, device=logits.device)
    for kind, mine in rows.items():
        at = to_device(np.array(mine), logits.device)
        tokens[at] = _sample_rows(kind, logits[at], [samplings[row] for row in mine], [positions[row] for row in mine])
    return tokens


def uniforms(seeds: "NDArray[np.uint64]", positions: "NDArray[np.uint64]") -> "NDArray[np.float64]":
    """One number in [0, 1) for each pair, as if drawn at random: SplitMix64 (Steele, Lea and Flood, 2014), keyed by the seed
    and entered at the position.

    52 bits, so that the number times any sum stays below the sum after rounding."""
    mixed = _mix(_mix(seeds) + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(x: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """SplitMix64's finaliser: each bit of the result depends on each bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _kind(sampling: Sampling, vocab_size: int) -> _Kind:
    if sampling.temperature == 0.0:
        return _Kind.GREEDY
    if 0 < sampling.top_k < vocab_size:
        return _Kind.TOP_K
    return _Kind.NUCLEUS if sampling.top_p < 1.0 else _Kind.WHOLE


def _sample_rows(kind: _Kind, logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> Tensor:
    """Rows that are all of one kind."""
    if kind is _Kind.GREEDY:
        return logits.argmax(dim=-1)  # torch promises the first of equals.
    seeds = np.array([sampling.seed for sampling in samplings], np.uint64)
    settings = np.empty((3, len(samplings), 1))
    settings[0, :, 0] = uniforms(seeds, np.array(positions, np.uint64))
    settings[1, :, 0] = [sampling.top_p for sampling in samplings]
    # A temperature too small for float32 would divide 0 by 0.
    settings[2, :, 0] = np.maximum([sampling.temperature for sampling in samplings], np.finfo(np.float32).tiny)
    uniform, top_p, temperature = to_device(settings, logits.device)  # [S, 1] each
    temperature = temperature.float()
    if kind is _Kind.WHOLE:
        sums = _weights(logits, logits.amax(dim=-1, keepdim=True), temperature).cumsum(dim=-1, dtype=torch.float64)
        return _pick(sums, uniform * sums[:, -1:]).squeeze(1)
    if kind is _Kind.NUCLEUS:
        return _sample_nucleus(logits, uniform, top_p, temperature)
    top_k = [sampling.top_k for sampling in samplings]
    values, ids = _likeliest(logits, max(top_k))
    weights = _weights(values, values[:, :1], temperature)
    is_kept = torch.arange(max(top_k), device=logits.device) < to_device(np.array(top_k)[:, None], logits.device)
    sums = (weights * is_kept).cumsum(dim=-1, dtype=torch.float64)
    return _pick_of_nucleus(sums, ids, uniform, top_p * sums[:, -1:])


def _sample_nucleus(logits: Tensor, uniform: Tensor, top_p: Tensor, temperature: Tensor) -> Tensor:
    """Looks for each nucleus among a few candidates, and sorts the whole row where it is wider. A CUDA device sorts at once: to
    ask it how wide they are would be to wait for it."""
    vocab_size = logits.shape[1]
    is_cpu = logits.device.type == "cpu"
    values, ids = _likeliest(logits, min(NUCLEUS_CANDIDATES, vocab_size) if is_cpu else vocab_size)
    best = values[:, :1]
    total = _weights(logits, best, temperature).sum(dim=-1, keepdim=True, dtype=torch.float64)
    sums = _weights(values, best, temperature).cumsum(dim=-1, dtype=torch.float64)
    tokens = _pick_of_nucleus(sums, ids, uniform, top_p * total)
    if is_cpu and vocab_size > NUCLEUS_CANDIDATES:
        for row in (sums[:, -1:] < top_p * total).squeeze(1).nonzero().flatten().tolist():
            one = slice(row, row + 1)
            values, ids = _likeliest(logits[one], vocab_size)
            sums_of_all = _weights(values, best[one], temperature[one]).cumsum(dim=-1, dtype=torch.float64)
            tokens[one] = _pick_of_nucleus(sums_of_all, ids, uniform[one], top_p[one] * total[one])
    return tokens


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest `count` logits of each row and their ids [S, count], highest first, equals by id.

    Sorts integers that hold both: the logit's bits above, in an order that integers share, and the id below, the last one
    first."""
    bits = (logits + 0.0).view(torch.int32)  # Adding 0 makes -0.0, which equals 0.0, have its bits.
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    vocab_size = logits.shape[1]
    keys = (order << 32) | torch.arange(vocab_size - 1, -1, -1, device=logits.device)
    best = keys.topk(count).values if count < vocab_size else keys.sort(dim=-1, descending=True).values
    ids = vocab_size - 1 - (best & 0xFFFFFFFF)
    return logits.gather(1, ids), ids


def _weights(logits: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities times a constant: 1 for the likeliest token, so that nothing overflows at any temperature."""
    return ((logits - best) / temperature).exp_()


def _pick_of_nucleus(sums: Tensor, ids: Tensor, uniform: Tensor, mass: Tensor) -> Tensor:
    """Draws among the first candidates that together hold `mass` [S, 1], or among all where they hold less."""
    last = torch.searchsorted(sums, mass).clamp_(max=sums.shape[1] - 1)
    return ids.gather(1, _pick(sums, uniform * sums.gather(1, last))).squeeze(1)


def _pick(sums: Tensor, point: Tensor) -> Tensor:
    """The first column [S, 1] whose sum is above `point`: never one of probability 0, since the sum does not grow there."""
    return torch.searchsorted(sums, point, right=True).clamp_(max=sums.shape[1] - 1)
