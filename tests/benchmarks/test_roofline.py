"""The floor of known models on a known machine."""

import pytest

from batcher.config import Device, Dtype
from benchmarks.floor import decode_row, decode_steps, prefill_row
from benchmarks.models import RandomLlama, open_subject
from benchmarks.recorder import Part, StepRecord
from benchmarks.roofline import Machine, ModelCost, cost_of, matmul_shapes

MACHINE = Machine(bytes_per_s=25e9, flops_per_s=4e12)


def cost_of_shape(shape: RandomLlama) -> ModelCost:
    config = open_subject("", dtype=Dtype.BFLOAT16, device=Device.CPU, random_llama=shape).config
    assert config is not None
    return cost_of(config, bytes_per_weight=2)


@pytest.mark.parametrize(("batch", "floor_ms"), [(1, 10.9), (8, 11.9), (32, 15.5), (64, 20.2)])
def test_decode_steps_of_smollm2_are_bound_by_memory(batch: int, floor_ms: float) -> None:
    """At 25 GB/s and a mean context of 160 tokens: 269 MB of weights and 23,040 bytes a token."""
    parts = [Part(index, 159, 1, True) for index in range(batch)]
    cost = cost_of_shape(RandomLlama.SMALL)
    assert cost.kv_bytes_per_token == 23_040
    assert 1000.0 * cost.floor_s(parts, MACHINE) == pytest.approx(floor_ms, abs=0.1)


def test_a_prefill_of_smollm2_is_bound_by_products() -> None:
    floor_s = cost_of_shape(RandomLlama.SMALL).floor_s([Part(1, 0, 1024, True)], MACHINE)
    assert 1000.0 * floor_s == pytest.approx(63, abs=1.0)


def test_a_chunk_in_the_middle_of_a_prompt_needs_no_head_and_reads_what_was_before() -> None:
    cost = ModelCost(num_layer_weights=100, num_head_weights=1000, bytes_per_weight=2, kv_bytes_per_token=8, attention_flops=3)
    middle = [Part(1, 10, 4, False)]
    assert cost.num_bytes(middle) == 200 + 8 * 14
    # Each of the 4 attends to the 10 before, and to 1, 2, 3 and 4 of its own chunk.
    assert cost.num_flops(middle) == 2 * 100 * 4 + 3 * (40 + 10)
    last = [Part(1, 10, 4, True)]
    assert cost.num_bytes(last) - cost.num_bytes(middle) == 2000
    assert cost.num_flops(last) - cost.num_flops(middle) == 2000


@pytest.mark.parametrize(("shape", "billions"), [(RandomLlama.LARGE, 1.24), (RandomLlama.HUGE, 7.50)])
def test_the_published_shapes_have_their_size(shape: RandomLlama, billions: float) -> None:
    """Without the embedding of the untied one, of which a step reads a row for each token."""
    cost = cost_of_shape(shape)
    assert (cost.num_layer_weights + cost.num_head_weights) / 1e9 == pytest.approx(billions, abs=0.01)


def test_the_products_of_a_layer_and_the_head_hold_all_that_is_multiplied() -> None:
    config = open_subject("", dtype=Dtype.BFLOAT16, device=Device.CPU, random_llama=RandomLlama.SMALL).config
    assert config is not None
    *layer, head = matmul_shapes(config)
    num_norms = (2 * config.num_layers + 1) * config.hidden_size
    in_layers = sum(out * depth for out, depth in layer) * config.num_layers
    assert in_layers == cost_of(config, bytes_per_weight=2).num_layer_weights - num_norms
    assert head == (49152, 576)


def decode(ended_at: float, *, batch: int = 2, num_tokens: int = 1) -> StepRecord:
    parts = tuple(Part(index, 20, num_tokens, True) for index in range(batch))
    return StepRecord(parts, ended_at - 0.1, ended_at)


def test_decode_steps_are_timed_from_the_end_of_the_one_before() -> None:
    steps = [decode(1.0, num_tokens=16), decode(2.0), decode(3.0), decode(5.0), decode(6.0, batch=1)]
    kept = decode_steps(steps, 2)
    assert [(step.launched_at, step.ended_at) for step in kept] == [(2.0, 3.0), (3.0, 5.0)]


def test_rows_say_how_many_floors_a_step_takes() -> None:
    cost = ModelCost(num_layer_weights=500, num_head_weights=0, bytes_per_weight=2, kv_bytes_per_token=0, attention_flops=0)
    machine = Machine(bytes_per_s=1000.0, flops_per_s=1e9)  # A floor of one second.
    row = decode_row(2, decode_steps([decode(1.0), decode(4.5)], 2), cost, machine)
    assert row == ("2", "20", "3,500.0 (3,500.0-3,500.0)", "1000.0", "bytes", "3.50", "3: MISSED")
    assert decode_row(64, decode_steps([decode(1.0, batch=64), decode(4.5, batch=64)], 64), cost, machine)[-1] == "4: met"
    assert decode_row(2, [], cost, machine)[1:] == ("-",) * 6
    prompt = [StepRecord((Part(1, 0, 8, False),), 0.0, 2.0), StepRecord((Part(1, 8, 2, True),), 2.0, 5.0)]
    assert prefill_row(10, [prompt], cost, machine) == ("10", "2 (2-2)", "5", "2.50")
