"""The forward pass of the Llama family (SmolLM2, Llama, Qwen2, Qwen3): in which order the operations run, and nothing else.

The operations come from outside (`Ops`), so that one forward pass serves every device. A `torch.nn.Module` was refused:
nothing here is trained, and weights live in whatever layout the device's operations made of them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from backends.llm.config import ModelConfig, rope_tables
from backends.llm.ops import HeadShape, LayerCache, Linear, Ops, StepTensors
from batcher.errors import ConfigError


class Layer(NamedTuple):
    """One layer's weights, as the operations keep them."""

    qkv: Linear  # [T, hidden] -> [T, (H + 2 G) * D]
    out: Linear  # [T, H * D] -> [T, hidden]
    gate_up: Linear  # [T, hidden] -> [T, 2 * inner]
    down: Linear  # [T, inner] -> [T, hidden]
    input_norm: Tensor  # [hidden]
    mlp_norm: Tensor  # [hidden]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]


class Transformer:
    """A decoder-only transformer over a paged KV cache."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], ops: Ops, max_positions: int) -> None:
        """Takes the weights (Hugging Face's names, one dtype and device) out of `weights`, so that each original is freed as
        soon as the operations have their copy. Raises ConfigError if one is missing, or if one has no place here."""
        self.config = config
        self.shape = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._ops = ops
        take = _Taker(weights, ops)
        self._embedding = take.tensor("model.embed_tokens.weight")  # [vocab, hidden]
        self.dtype, self.device = self._embedding.dtype, self._embedding.device
        self._layers = [_take_layer(take, f"model.layers.{index}", config) for index in range(config.num_layers)]
        self._final_norm = take.tensor("model.norm.weight")  # [hidden]
        self._head = ops.linear(self._embedding, None) if config.is_tied else take.linear("lm_head", has_bias=False)
        take.check_all_taken()
        rope = rope_tables(config, max_positions)
        self._rope = rope._replace(cos=rope.cos.to(self.device), sin=rope.sin.to(self.device))

    def allocate_caches(self, num_blocks: int) -> list[LayerCache]:
        return self._ops.allocate_cache(self.config.num_layers, num_blocks, self.shape, self.dtype)

    def forward(self, step: StepTensors, caches: list[LayerCache]) -> Tensor:
        """Writes the keys and values of the step's tokens; returns the float32 logits [sampled, vocab] of its sampled rows."""
        ops, eps = self._ops, self.config.rms_norm_eps
        residual = self._embedding[step.tokens]  # [T, hidden]
        x = ops.rms_norm(residual, self._layers[0].input_norm, eps)
        last = len(self._layers) - 1
        for index, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            q = ops.rotate_and_store(layer.qkv(x), step, cache, self.shape, self._rope, layer.q_norm, layer.k_norm, eps)
            if index == last and not len(step.sampled_rows):
                break  # The keys and values are all that this step was for.
            attended = ops.attention(q, step, cache, self.shape)  # [T, H * D]
            if index == last:
                # No other row is read from here on: a prefill chunk leaves one row, or none.
                attended, residual = attended[step.sampled_rows], residual[step.sampled_rows]
            x = ops.add_rms_norm(layer.out(attended), residual, layer.mlp_norm, eps)
            x = layer.down(ops.silu_mul(layer.gate_up(x)))
            next_norm = self._final_norm if index == last else self._layers[index + 1].input_norm
            x = ops.add_rms_norm(x, residual, next_norm, eps)
        else:
            return self._head(x).float()
        return torch.empty((0, self.config.vocab_size), device=self.device)


def _take_layer(take: "_Taker", prefix: str, config: ModelConfig) -> Layer:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")
    return Layer(
        qkv=take.linear(*qkv, has_bias=config.has_qkv_bias),
        out=take.linear(f"{attention}.o_proj", has_bias=config.has_o_bias),
        gate_up=take.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj", has_bias=config.has_mlp_bias),
        down=take.linear(f"{mlp}.down_proj", has_bias=config.has_mlp_bias),
        input_norm=take.tensor(f"{prefix}.input_layernorm.weight"),
        mlp_norm=take.tensor(f"{prefix}.post_attention_layernorm.weight"),
        q_norm=take.tensor(f"{attention}.q_norm.weight") if config.has_qk_norm else None,
        k_norm=take.tensor(f"{attention}.k_norm.weight") if config.has_qk_norm else None,
    )


class _Taker:
    """Takes weights out of a dict by their names."""

    def __init__(self, weights: dict[str, Tensor], ops: Ops) -> None:
        self._weights, self._ops = weights, ops

    def tensor(self, name: str) -> Tensor:
        try:
            return self._weights.pop(name)
        except KeyError:
            raise ConfigError(f"the model's files lack the weight {name}") from None

    def linear(self, *names: str, has_bias: bool) -> Linear:
        """One linear that gives what all of these give, side by side."""
        weight = self._joined([f"{name}.weight" for name in names])
        return self._ops.linear(weight, self._joined([f"{name}.bias" for name in names]) if has_bias else None)

    def _joined(self, names: list[str]) -> Tensor:
        parts = [self.tensor(name) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def check_all_taken(self) -> None:
        """Weights without a place would mean another architecture, and silently wrong answers."""
        if self._weights:
            raise ConfigError(
                f"the model's files hold weights that its architecture has no place for: {sorted(self._weights)[:5]}"
            )
