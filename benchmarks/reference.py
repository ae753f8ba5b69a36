"""What transformers answers to the same prompts with the same weights, and how far apart two answers are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from backends.llm.config import ModelConfig
from batcher.errors import ConfigError
from benchmarks.offline import Case

TIE = 1e-4
"""Two logits of float32 nearer than this are a tie: sums in another order may turn it."""
_BATCH_SIZE = 8
_PADDING_ID = 0


class Difference(NamedTuple):
    """Where an answer leaves the reference for the first time."""

    case: int
    position: int
    """In the answer, from 0."""
    token: int | None
    """None where the answer ends too early."""
    expected: int | None
    """None where it should have ended."""
    gap: float
    """How much transformers prefers its own token, in logits; infinite where one of the two has none."""

    @property
    def is_tie(self) -> bool:
        return self.gap < TIE


def as_transformers(config: ModelConfig, weights: dict[str, Tensor]) -> LlamaForCausalLM:
    """A Llama without rope scaling around these very tensors, all of one dtype, on their device: nothing is copied.

    In eval mode, without gradients. transformers' own path from a GGUF file takes most of a minute and a package more.
    Raises ConfigError for another family, or where the weights are not a Llama's."""
    if config.family != "llama" or config.rope_scaling is not None:
        raise ConfigError(f"only a llama without rope scaling is put into transformers here, not {config.family}")
    some = next(iter(weights.values()))
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.context_len,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=config.is_tied,
                dtype=some.dtype,
            )
        )
    rotary = type(model.model.rotary_emb)(model.config)  # Its buffer is in no state dict.
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    if unexpected or missing != (["lm_head.weight"] if config.is_tied else []):
        raise ConfigError(f"weights do not fit a Llama: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.model.rotary_emb = rotary.to(some.device)
    model.train(False)
    model.requires_grad_(False)
    return model


def generate(model: PreTrainedModel, cases: Sequence[Case], *, stop_ids: Sequence[int] = ()) -> list[list[int]]:
    """Greedy answers of `model.generate`, a stop token included; prompts of like length in one batch, padded on the left."""
    answers: list[list[int]] = [[] for _ in cases]
    by_length = sorted(range(len(cases)), key=lambda index: len(cases[index].prompt))
    for first in range(0, len(cases), _BATCH_SIZE):
        indexes = by_length[first : first + _BATCH_SIZE]
        width = max(len(cases[index].prompt) for index in indexes)
        padding = [width - len(cases[index].prompt) for index in indexes]
        tokens = [[_PADDING_ID] * num + cases[index].prompt for index, num in zip(indexes, padding, strict=True)]
        masks = [[0] * num + [1] * (width - num) for num in padding]
        how = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max(cases[index].max_tokens for index in indexes),
            do_sample=False,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=_PADDING_ID,
        )
        with torch.inference_mode():
            generated = model.generate(torch.tensor(tokens), attention_mask=torch.tensor(masks), generation_config=how)  # type: ignore[operator]
        for index, row in zip(indexes, generated[:, width:].tolist(), strict=True):
            answer = row[: cases[index].max_tokens]
            ends = [position for position, token in enumerate(answer) if token in stop_ids]
            answers[index] = answer[: ends[0] + 1] if ends else answer
    return answers


def next_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """The float32 logits [vocab] of what follows `tokens`."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].float()
    return logits


def compare(
    model: PreTrainedModel, cases: Sequence[Case], answers: Sequence[list[int]], expected: Sequence[list[int]]
) -> list[Difference]:
    """The first difference of each answer that has one. What comes after it answers another text, so it is not compared."""
    differences = []
    for index, (answer, wanted) in enumerate(zip(answers, expected, strict=True)):
        if answer == wanted:
            continue
        shared = min(len(answer), len(wanted))
        position = next((at for at in range(shared) if answer[at] != wanted[at]), shared)
        if position == shared:
            token, other = next(iter(answer[shared:]), None), next(iter(wanted[shared:]), None)
            differences.append(Difference(index, position, token, other, float("inf")))
            continue
        logits = next_logits(model, cases[index].prompt + wanted[:position])
        gap = float(logits[wanted[position]] - logits[answer[position]])
        differences.append(Difference(index, position, answer[position], wanted[position], abs(gap)))
    return differences
