"""The backend reads a step as the contract says, keeps each slot's last token, and outlives a step that raises."""

from array import array
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from backends.base import KvLayout
from backends.llm.config import ModelConfig
from backends.llm.ops import HeadShape, LayerCache, StepTensors
from backends.llm.runner import TorchBackend
from backends.llm.step_inputs import build_inputs
from backends.llm.torch_ops import TorchOps
from batcher.types import GREEDY, PENDING, Sampling, ScheduledSequence, Step

CPU = torch.device("cpu")
LAYOUT = KvLayout(num_blocks=16, max_num_seqs=4, max_model_len=128, max_step_tokens=64)
CONFIG = ModelConfig(
    family="llama",
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=64,
    context_len=128,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    is_tied=True,
)


def make_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (64, 32)}
    for layer in ("model.layers.0", "model.layers.1"):
        attention = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}
        shapes |= {f"{layer}.self_attn.{name}_proj": shape for name, shape in attention.items()}
        shapes |= {
            f"{layer}.mlp.{name}_proj": shape for name, shape in {"gate": (48, 32), "up": (48, 32), "down": (32, 48)}.items()
        }
    weights = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    norms = [f"model.layers.{index}.{name}_layernorm" for index in (0, 1) for name in ("input", "post_attention")]
    return weights | {f"{name}.weight": torch.ones(32) for name in [*norms, "model.norm"]}


class FaultyOps(TorchOps):
    """Raises at the attention of a step, when told to."""

    is_broken = False

    def attention(self, q: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> Tensor:
        if self.is_broken:
            raise MemoryError("no room for the scores")
        return super().attention(q, step, cache, shape)


def make_backend(ops: TorchOps | None = None) -> TorchBackend:
    backend = TorchBackend(CONFIG, make_weights, ops=ops or TorchOps())
    backend.load(LAYOUT)
    return backend


def part(
    tokens: Sequence[int], start: int, blocks: list[int], *, slot: int = 0, is_sampled: bool = True, sampling: Sampling = GREEDY
) -> ScheduledSequence:
    return ScheduledSequence(slot, slot, tokens, start, array("i", blocks), is_sampled, sampling)


def run(backend: TorchBackend, *parts: ScheduledSequence) -> list[int]:
    backend.launch(Step(1, parts, sum(len(part.tokens) for part in parts)))
    return backend.collect()


def continue_alone(prompt: list[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
    """The answer of a fresh backend that computes everything again for every token."""
    backend = make_backend()
    answer: list[int] = []
    for _ in range(count):
        answer += run(backend, part(prompt + answer, 0, [5, 6, 7], sampling=sampling))
    return answer


PROMPT, OTHER = [9, 33, 21, 7, 50], list(range(40, 2, -2))


def test_a_steps_tensors_are_what_the_contract_says() -> None:
    step = Step(
        1,
        (
            part([11], 16, [4, 9, 2], slot=3),  # Its table is longer than what it covers.
            part([12], 0, [7], slot=1),
            part(array("i", range(20, 23)), 30, [1, 3, 5], slot=0, is_sampled=False),
            part((41,), 5, [8], slot=2),  # A last chunk of one token is no decode when it stands behind a longer one.
        ),
        6,
    )
    inputs = build_inputs(step, CPU)
    tensors = inputs.tensors
    assert tensors.tokens.tolist() == [11, 12, 20, 21, 22, 41]
    assert tensors.positions.tolist() == [16, 0, 30, 31, 32, 5]
    assert tensors.cache_slots.tolist() == [9 * 16, 7 * 16, 3 * 16 + 14, 3 * 16 + 15, 5 * 16, 8 * 16 + 5]
    assert tensors.block_tables.tolist() == [[4, 9, 0], [7, 0, 0], [1, 3, 5], [8, 0, 0]]
    assert tensors.query_starts.tolist() == [0, 1, 2, 5, 6]
    assert tensors.kv_lens.tolist() == [17, 1, 33, 6]
    assert tensors.sampled_rows.tolist() == [0, 1, 5]
    assert (tensors.num_decodes, tensors.max_query_len) == (2, 3)
    assert [tensor.dtype for tensor in tensors[:7]] == [torch.int64] * 3 + [torch.int32] * 3 + [torch.int64]
    assert inputs.decode_slots.tolist() == [3, 1]
    assert inputs.sampled_slots.tolist() == [3, 1, 2]
    assert inputs.sampled_positions == [17, 1, 6]
    assert not inputs.has_pending


def test_every_tensor_starts_at_16_bytes() -> None:
    for count in (1, 2, 3):
        inputs = build_inputs(Step(1, tuple(part([1], 0, [0]) for _ in range(count)), count), CPU)
        every = [*inputs.tensors[:7], inputs.decode_slots, inputs.sampled_slots]
        assert {(tensor.data_ptr() - every[0].data_ptr()) % 16 for tensor in every} == {0}


def test_the_scheduler_may_write_to_its_tables_once_a_step_is_launched() -> None:
    table = array("i", [3])
    inputs = build_inputs(Step(1, (ScheduledSequence(0, 0, [5], 0, table, True, GREEDY),), 1), CPU)
    table[0] = 9
    table.append(1)  # Raises if anybody still looks at its memory.
    assert inputs.tensors.block_tables.tolist() == [[3]]


def test_decoding_from_the_cache_is_computing_everything_again() -> None:
    backend = make_backend()
    answer = run(backend, part(PROMPT, 0, [2]))
    for _ in range(20):
        answer += run(backend, part(answer[-1:], len(PROMPT) + len(answer) - 1, [2, 9]))
    assert answer == continue_alone(PROMPT, 21)


def test_only_sampled_sequences_have_tokens_in_their_order() -> None:
    backend = make_backend()
    assert run(backend, part(OTHER[:12], 0, [3, 4], slot=1, is_sampled=False)) == []
    tokens = run(backend, part(PROMPT, 0, [2]), part(OTHER[12:], 12, [3, 4], slot=1), part(PROMPT, 0, [6], slot=2))
    expected = [continue_alone(PROMPT, 1)[0], continue_alone(OTHER, 1)[0]]
    assert tokens == [expected[0], expected[1], expected[0]]


def test_padding_changes_no_token_and_nothing_that_is_kept() -> None:
    prompt = [3, 1, 4, 1, 5]
    expected = continue_alone(prompt, 4)
    backend = make_backend()
    tokens = run(backend, part(prompt, 0, [2], slot=1))
    for position in range(len(prompt), len(prompt) + 3):
        backend.launch(Step(1, (part([PENDING], position, [2], slot=1),), 1, num_padding=3))
        tokens += backend.collect()
    assert tokens == expected


def test_pending_is_what_the_slot_sampled_last() -> None:
    backend = make_backend()
    answers = {0: run(backend, part(PROMPT, 0, [2], slot=3)), 1: run(backend, part(OTHER, 0, [3, 4], slot=1))}
    for count in range(1, 8):
        # Every other token of the second is told, as after a step that was collected in time.
        known = answers[1][-1] if count % 2 else PENDING
        tokens = run(
            backend,
            part([known], len(OTHER) + count - 1, [3, 4], slot=1),
            part([PENDING], len(PROMPT) + count - 1, [2], slot=3),
        )
        answers[1].append(tokens[0])
        answers[0].append(tokens[1])
    assert answers == {0: continue_alone(PROMPT, 8), 1: continue_alone(OTHER, 8)}


def test_a_seeded_answer_is_the_same_after_a_preemption_and_in_company() -> None:
    sampling = Sampling(temperature=1.5, top_p=0.95, seed=77)
    expected = continue_alone(PROMPT, 12, sampling)
    assert len(set(expected)) > 4
    backend = make_backend()
    answer: list[int] = []
    for count in range(12):
        own = part(PROMPT + answer, 0, [5], slot=2, sampling=sampling)
        if count % 3:
            own = part(answer[-1:], len(PROMPT) + count - 1, [5], slot=2, sampling=sampling)
        company = part([count], count, [1], slot=0, sampling=Sampling(seed=count))
        answer.append(run(backend, *((company, own) if count % 2 else (own,)))[-1])
    assert answer == expected


def test_a_step_that_raises_is_told_at_collect_and_the_backend_goes_on() -> None:
    ops = FaultyOps()
    backend = make_backend(ops)
    ops.is_broken = True
    backend.launch(Step(1, (part(PROMPT, 0, [2]),), len(PROMPT)))
    with pytest.raises(MemoryError, match="no room"):
        backend.collect()
    ops.is_broken = False
    assert run(backend, part(PROMPT, 0, [2])) == continue_alone(PROMPT, 1)


def test_a_step_that_was_not_collected_stands_in_the_way_of_the_next() -> None:
    backend = make_backend()
    step = Step(1, (part(PROMPT, 0, [2]),), len(PROMPT))
    backend.launch(step)
    with pytest.raises(AssertionError, match="collect the oldest step first"):
        backend.launch(step)


def test_close_gives_everything_back_and_may_be_called_again() -> None:
    backend = make_backend()
    assert repr(backend) == "<TorchBackend cpu loaded, 0 steps inflight>"
    backend.close()
    backend.close()
    assert repr(backend) == "<TorchBackend cpu not loaded, 0 steps inflight>"
    with pytest.raises(AssertionError, match="after close"):
        backend.launch(Step(1, (part(PROMPT, 0, [2]),), len(PROMPT)))


def test_the_narrowest_layout_can_be_loaded() -> None:
    backend = TorchBackend(CONFIG, make_weights, ops=TorchOps())
    backend.load(KvLayout(num_blocks=2, max_num_seqs=1, max_model_len=2, max_step_tokens=1))
    assert len(run(backend, part([1], 0, [0]))) == 1
