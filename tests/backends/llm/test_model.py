"""The forward pass gives transformers' logits, for every family, however a prompt is cut into steps."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.llm.config import read_config
from backends.llm.model import Transformer
from backends.llm.step_inputs import build_inputs
from backends.llm.torch_ops import TorchOps
from batcher.errors import ConfigError
from batcher.types import BLOCK_SIZE, GREEDY, ScheduledSequence, Step
from tests.backends.llm.tiny import CONTEXT_LEN, FAMILIES, VOCAB_SIZE, Tiny, make_tiny

NUM_BLOCKS = 40


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    with torch.inference_mode():
        yield make_tiny(request.param, tmp_path_factory.mktemp(request.param))


def weights_of(tiny: Tiny) -> dict[str, Tensor]:
    weights = {name: weight.clone() for name, weight in tiny.model.state_dict().items()}
    if read_config(tiny.path).is_tied:
        del weights["lm_head.weight"]
    return weights


def random_tokens(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def part(tokens: list[int], start: int, blocks: list[int], *, is_sampled: bool = True) -> ScheduledSequence:
    return ScheduledSequence(0, 0, tokens, start, array("i", blocks), is_sampled, GREEDY)


def logits_of(model: Transformer, caches: list[Tensor], *parts: ScheduledSequence) -> Tensor:
    step = Step(1, parts, sum(len(part.tokens) for part in parts))
    return model.forward(build_inputs(step, torch.device("cpu")).tensors, caches)


def test_logits_are_those_of_transformers_however_the_prompt_is_cut(tiny: Tiny) -> None:
    """Two texts, in whole, in chunks and token by token, side by side in the same steps."""
    model = Transformer(read_config(tiny.path), weights_of(tiny), TorchOps(), CONTEXT_LEN)
    caches = model.allocate_caches(NUM_BLOCKS)
    long, short = random_tokens(300, seed=1), random_tokens(23, seed=2)
    expected_long, expected_short = (tiny.model(torch.tensor([text])).logits[0] for text in (long, short))
    blocks_long, blocks_short = list(range(39, 20, -1)), [3, 7]

    def check(logits: Tensor, *expected: Tensor) -> None:
        torch.testing.assert_close(logits, torch.stack(expected), rtol=1e-4, atol=2e-4)

    whole = logits_of(model, caches, part(long, 0, blocks_long), part(short, 0, blocks_short))
    check(whole, expected_long[-1], expected_short[-1])
    for cache in caches:
        cache.zero_()
    first = logits_of(model, caches, part(short[:20], 0, blocks_short), part(long[:250], 0, blocks_long, is_sampled=False))
    check(first, expected_short[19])
    decode_and_chunk = logits_of(model, caches, part(short[20:21], 20, blocks_short), part(long[250:299], 250, blocks_long))
    check(decode_and_chunk, expected_short[20], expected_long[298])
    decodes = logits_of(model, caches, part(long[299:], 299, blocks_long), part(short[21:22], 21, blocks_short))
    check(decodes, expected_long[299], expected_short[21])


def test_a_step_without_sampled_rows_writes_the_cache_and_gives_no_logits(tiny: Tiny) -> None:
    model = Transformer(read_config(tiny.path), weights_of(tiny), TorchOps(), CONTEXT_LEN)
    silent, heard = model.allocate_caches(4), model.allocate_caches(4)
    text = random_tokens(BLOCK_SIZE, seed=3)
    assert logits_of(model, silent, part(text, 0, [2], is_sampled=False)).shape == (0, VOCAB_SIZE)
    logits_of(model, heard, part(text, 0, [2]))
    for one, other in zip(silent, heard, strict=True):
        assert torch.equal(one, other)


def test_the_weights_are_taken_out_as_they_are_used(tiny: Tiny) -> None:
    weights = weights_of(tiny)
    Transformer(read_config(tiny.path), weights, TorchOps(), CONTEXT_LEN)
    assert weights == {}


def test_missing_and_unknown_weights_are_refused(tmp_path: Path) -> None:
    tiny = make_tiny("llama", tmp_path)
    config = read_config(tiny.path)
    weights = weights_of(tiny)
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ConfigError, match="lack the weight model"):
        Transformer(config, weights, TorchOps(), CONTEXT_LEN)
    with pytest.raises(ConfigError, match="no place for"):
        Transformer(config, weights_of(tiny) | {"gate.bias": torch.zeros(1)}, TorchOps(), CONTEXT_LEN)
