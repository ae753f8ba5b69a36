"""Draws one token for each row of logits, so that a draw depends on its own row, seed and position alone.

A hash of (seed, position) gives one uniform number, and the inverse of the distribution's cumulative sum makes a token of it.
A generator's stream was refused: what a sequence draws would depend on what else is in the batch, and one that was preempted
and computed again would go on differently. So was noise on every logit (Gumbel): that takes as many hashes as the vocabulary.

Likelier tokens stand first and equal ones in the order of their ids: 16-bit logits have many equals, and the cut of top-k and
top-p may not depend on how a sort happens to break ties.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.llm.transfer import to_device
from batcher.types import Sampling

NUCLEUS_CANDIDATES = 128
"""Likeliest tokens that are searched for a nucleus first: 0.1 ms at 49,152 tokens, where sorting them all takes 3 ms."""
_WIDENING = 16
"""How many times as many are searched next."""
SPARE_CANDIDATES = 64
"""Taken beyond top-k, so that tokens which equal the last of it are mostly all among the candidates."""
_LAST_ID = 0xFFFFFFFF


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


class _Settings(NamedTuple):
    """Those of rows of one kind, on their device."""

    uniform: Tensor  # [S, 1] float64
    top_p: Tensor  # [S, 1] float64
    temperature: Tensor  # [S, 1] float32
    top_k: Tensor  # [S, 1] float64: the size of the vocabulary where it is not set


def _sample_rows(kind: _Kind, logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> Tensor:
    """Rows that are all of one kind."""
    if kind is _Kind.GREEDY:
        return logits.argmax(dim=-1)  # torch promises the first of equals.
    vocab_size = logits.shape[1]
    settings = _settings(samplings, positions, vocab_size, logits.device)
    if kind is _Kind.WHOLE:
        sums = _weights(logits, logits.amax(dim=-1, keepdim=True), settings).cumsum(dim=-1, dtype=torch.float64)
        return _pick(sums, settings.uniform * sums[:, -1:]).squeeze(1)
    # A CUDA device takes no candidates to spare: to ask it whether they sufficed would be to wait for it.
    is_cpu = logits.device.type == "cpu"
    if kind is _Kind.TOP_K:
        count = max(sampling.top_k for sampling in samplings) + SPARE_CANDIDATES * is_cpu
    else:
        count = NUCLEUS_CANDIDATES if is_cpu else vocab_size
    draw = _draw_among_few if is_cpu else _draw
    return draw(kind, logits, count, settings)


def _settings(samplings: Sequence[Sampling], positions: Sequence[int], vocab_size: int, device: torch.device) -> _Settings:
    rows = np.empty((4, len(samplings), 1))
    seeds = np.array([sampling.seed for sampling in samplings], np.uint64)
    rows[0, :, 0] = uniforms(seeds, np.array(positions, np.uint64))
    rows[1, :, 0] = [sampling.top_p for sampling in samplings]
    # A temperature too small for float32 would divide 0 by 0.
    rows[2, :, 0] = np.maximum([sampling.temperature for sampling in samplings], np.finfo(np.float32).tiny)
    rows[3, :, 0] = [sampling.top_k or vocab_size for sampling in samplings]
    uniform, top_p, temperature, top_k = to_device(rows, device)
    return _Settings(uniform, top_p, temperature.float(), top_k)


def _draw(kind: _Kind, logits: Tensor, count: int, settings: _Settings) -> Tensor:
    """Draws among the likeliest `count`; exact whatever is equal, and not the quickest on a CPU."""
    keys = _keys(logits, torch.arange(logits.shape[1], device=logits.device))
    best = keys.topk(count).values if count < logits.shape[1] else keys.sort(dim=-1, descending=True).values
    ids = _LAST_ID - (best & _LAST_ID)
    return _draw_in_order(kind, logits, logits.gather(1, ids), ids, settings)[0]


def _draw_among_few(kind: _Kind, logits: Tensor, count: int, settings: _Settings) -> Tensor:
    """Draws among the likeliest `count`, and among more of them in the rows where those were too few to be sure.

    `topk` takes any of the tokens that equal the last which it takes: a draw is sure if its cut lies before all of those."""
    vocab_size = logits.shape[1]
    if count >= vocab_size:
        return _draw(kind, logits, vocab_size, settings)
    values, ids = logits.topk(count)
    order = _keys(values, ids).argsort(dim=-1, descending=True)
    values, ids = values.gather(1, order), ids.gather(1, order)
    tokens, last = _draw_in_order(kind, logits, values, ids, settings)
    unsure = (values.gather(1, last) == values[:, -1:]).flatten().nonzero().flatten()
    if len(unsure):
        own = _Settings(*(setting[unsure] for setting in settings))
        tokens[unsure] = _draw_among_few(kind, logits[unsure], count * _WIDENING, own)
    return tokens


def _draw_in_order(kind: _Kind, logits: Tensor, values: Tensor, ids: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
    """Draws among candidates [S, count], the likeliest first: tokens [S], and in which column each one's cut lies [S, 1]."""
    count = values.shape[1]
    weights = _weights(values, values[:, :1], settings)
    if kind is _Kind.TOP_K:
        weights *= torch.arange(count, device=weights.device) < settings.top_k
        total = weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    else:
        total = _weights(logits, values[:, :1], settings).sum(dim=-1, keepdim=True, dtype=torch.float64)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    last = torch.searchsorted(sums, settings.top_p * total).clamp_(max=count - 1)
    picked = _pick(sums, settings.uniform * sums.gather(1, last))
    return ids.gather(1, picked).squeeze(1), last


def _keys(logits: Tensor, ids: Tensor) -> Tensor:
    """Integers in the order of the logits, and of equal ones the lowest id highest: the logit's bits above, the id below."""
    bits = (logits + 0.0).view(torch.int32)  # Adding 0 makes -0.0, which equals 0.0, have its bits.
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (order << 32) | (_LAST_ID - ids)


def _weights(logits: Tensor, best: Tensor, settings: _Settings) -> Tensor:
    """Probabilities times a constant: 1 for the likeliest token, so that nothing overflows at any temperature."""
    return ((logits - best) / settings.temperature).exp_()


def _pick(sums: Tensor, point: Tensor) -> Tensor:
    """The first column [S, 1] whose sum is above `point`: never one of probability 0, since the sum does not grow there."""
    return torch.searchsorted(sums, point, right=True).clamp_(max=sums.shape[1] - 1)
