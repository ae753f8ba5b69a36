"""The floor under a step: no program can be faster than its machine moves bytes and multiplies numbers (SPEC S2, S10).

A step reads every weight once and the keys and values of each sequence, and it multiplies; the two may overlap, so the floor is
the slower of them. Arithmetic alone: what the machine can do is measured in `benchmarks.floor`.
"""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from backends.llm.config import ModelConfig
from backends.llm.weights import expected_shapes
from benchmarks.recorder import Part

_FLOPS_PER_WEIGHT = 2
"""A multiplication and an addition for each token."""
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


class Machine(NamedTuple):
    """What was measured of a device."""

    bytes_per_s: float
    flops_per_s: float


class ModelCost(NamedTuple):
    """What a step of a model must move and multiply."""

    num_layer_weights: int
    """Of all layers, and the norms: read by every step, multiplied for every token."""
    num_head_weights: int
    """Of the output matrix: for the sampled rows."""
    bytes_per_weight: int
    kv_bytes_per_token: int
    attention_flops: int
    """For each pair of a query and a position that it attends to, in all layers and heads."""

    def num_bytes(self, parts: Iterable[Part]) -> int:
        """Weights once, the positions before each sequence's tokens read, and its own written."""
        parts = list(parts)
        has_head = any(part.is_sampled for part in parts)
        weights = self.num_layer_weights + (self.num_head_weights if has_head else 0)
        return weights * self.bytes_per_weight + self.kv_bytes_per_token * sum(part.start + part.num_tokens for part in parts)

    def num_flops(self, parts: Iterable[Part]) -> int:
        flops = 0
        for part in parts:
            num_pairs = part.num_tokens * part.start + part.num_tokens * (part.num_tokens + 1) // 2
            flops += _FLOPS_PER_WEIGHT * self.num_layer_weights * part.num_tokens + self.attention_flops * num_pairs
            flops += _FLOPS_PER_WEIGHT * self.num_head_weights if part.is_sampled else 0
        return flops

    def floor_s(self, parts: Iterable[Part], machine: Machine) -> float:
        """What the step takes at least, in seconds."""
        parts = list(parts)
        return max(self.num_bytes(parts) / machine.bytes_per_s, self.num_flops(parts) / machine.flops_per_s)


def cost_of(config: ModelConfig, *, bytes_per_weight: int) -> ModelCost:
    """Keys and values are of the weights' type. Embedding rows are looked up, one for each token: nothing beside the rest."""
    shapes = expected_shapes(config)
    num_layer_weights = sum(prod(shape) for name, shape in shapes.items() if name not in (_EMBEDDING, _HEAD))
    return ModelCost(
        num_layer_weights=num_layer_weights,
        num_head_weights=prod(shapes[_EMBEDDING]),
        bytes_per_weight=bytes_per_weight,
        kv_bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * bytes_per_weight,
        # Scores and weighted values: two products, two FLOP each.
        attention_flops=4 * config.num_layers * config.num_heads * config.head_dim,
    )


def matmul_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """[out, in] of one layer's products, queries with keys and values and gate with up together, and of the head."""
    heads = config.num_heads + 2 * config.num_kv_heads
    return [
        (heads * config.head_dim, config.hidden_size),
        (config.hidden_size, config.num_heads * config.head_dim),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
        (config.vocab_size, config.hidden_size),
    ]
