"""What the CPU's benchmark holds its figures against."""

import pytest
import torch

from backends.llm.torch_ops import TorchOps
from benchmarks.cpu_ops import STEPS, TimedOps, floor_s, make_step


@pytest.mark.parametrize(("batch", "floor_ms"), [(1, 10.9), (8, 12.2), (32, 16.4), (64, 22.1)])
def test_the_floor_of_a_decode_is_its_memory(batch: int, floor_ms: float) -> None:
    """At 25 GB/s: 269 MB of weights, and 192 positions of 23,040 bytes for each sequence."""
    assert 1e3 * floor_s(make_step([(191, 1)] * batch), bandwidth=25e9, rate=4e12) == pytest.approx(floor_ms, abs=0.05)


def test_the_floor_of_a_prefill_is_its_products() -> None:
    """Twice 106 million weights for each token, and the head's 28 million for one."""
    expected = 2 * (106_168_320 * 1024 + 28_311_552) / 4e12
    assert floor_s(make_step([(0, 1024)]), bandwidth=25e9, rate=4e12) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("parts", [pytest.param(parts, id=name) for name, parts in STEPS])
def test_steps_write_to_different_slots(parts: list[tuple[int, int]]) -> None:
    step = make_step(parts)
    assert len(set(step.cache_slots.tolist())) == len(step.tokens) == sum(length for _, length in parts)
    assert step.num_decodes == sum(length == 1 for _, length in parts)


def test_operations_are_timed_by_name() -> None:
    ops = TimedOps(TorchOps())
    linear = ops.linear(torch.ones(2, 3), None)
    assert torch.equal(linear(torch.ones(1, 3)), torch.full((1, 2), 3.0))
    ops.silu_mul(torch.ones(1, 4))
    assert {name for name, seconds in ops.seconds.items() if seconds > 0} == {"linear 3 to 2", "silu_mul"}
