"""Rotary frequencies by each way of stretching a context that the supported families are published with.

Each is computed operation by operation in float32 as transformers does it: a frequency that is off by one rounding turns the
angle at position 100,000 by a hundredth, and greedy texts part. Ways that change with the length of the text (dynamic,
longrope) are refused: keys in the cache are rotated once.
"""

import math

import msgspec
import torch
from torch import Tensor

from backends.llm.ops import Rope


class LinearScaling(msgspec.Struct, frozen=True, tag="linear"):
    """Positions divided by `factor`."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True, tag="llama3"):
    """Long wavelengths divided by `factor`, short ones kept, those between interpolated (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


class YarnScaling(msgspec.Struct, frozen=True, tag="yarn"):
    """YaRN (arXiv 2309.00071): a ramp over the dimensions between kept and divided frequencies, and a factor on the tables."""

    factor: float
    original_context_len: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    """Whether the ramp begins and ends on whole dimensions."""


class DivisorScaling(msgspec.Struct, frozen=True, tag="divisors"):
    """Each frequency divided by a number of its own: how a GGUF file stores llama3 scaling."""

    divisors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | DivisorScaling


def yarn_attention_factor(factor: float) -> float:
    """What the paper recommends."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def make_tables(inverse_frequencies: Tensor, attention_factor: float, num_positions: int) -> Rope:
    angles = torch.arange(num_positions).float()[:, None] * inverse_frequencies  # [positions, head_dim / 2]
    return Rope(angles.cos() * attention_factor, angles.sin() * attention_factor)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[head_dim / 2] float32, in radians per position."""
    wavelengths = theta ** (torch.arange(0, head_dim, 2).float() / head_dim)  # Over 2 pi.
    inverse = 1.0 / wavelengths
    match scaling:
        case None:
            return inverse
        case LinearScaling(factor=factor):
            return inverse / factor
        case DivisorScaling(divisors=divisors):
            return inverse / torch.tensor(divisors)
        case Llama3Scaling():
            return _llama3(inverse, scaling)
        case YarnScaling():
            return _yarn(wavelengths, head_dim, theta, scaling)


def _llama3(inverse: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high, context_len = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context_len
    wavelengths = 2 * math.pi / inverse
    stretched = torch.where(wavelengths > context_len / low, inverse / scaling.factor, inverse)
    smooth = (context_len / wavelengths - low) / (high - low)
    between = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    is_between = (wavelengths >= context_len / high) & (wavelengths <= context_len / low)
    return torch.where(is_between, between, stretched)


def _yarn(wavelengths: Tensor, head_dim: int, theta: float, scaling: YarnScaling) -> Tensor:
    def dimension(num_rotations: float) -> float:
        """Where a dimension turns so many times over the original context."""
        ratio = scaling.original_context_len / (num_rotations * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # A step instead of a ramp.
    kept = 1 - ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
