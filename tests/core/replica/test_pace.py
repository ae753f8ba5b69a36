"""Prompt tokens beside decodes: as many as keep a step within its stretch, on whatever machine."""

import pytest

from batcher.config import ReplicaConfig
from batcher.core.replica.pace import PrefillPace
from batcher.core.replica.scheduler import Scheduler
from batcher.errors import ConfigError
from tests.core.replica.fake_device import a_sequence

CPU_TOKEN_S = 0.0004
GPU_TOKEN_S = 0.00001


def pace(*, chunk: int = 512, stretch: float = 2.0) -> PrefillPace:
    return PrefillPace(ReplicaConfig(prefill_chunk=chunk, prefill_stretch=stretch))


def decode(paced: PrefillPace, num: int, duration_s: float, times: int = 1) -> None:
    for _ in range(times):
        paced.observe(num_decodes=num, num_prefill_tokens=0, duration_s=duration_s)


def mix(paced: PrefillPace, num_decodes: int, *, alone_s: float, token_s: float, steps: int = 1) -> list[float]:
    """Steps that take what they take: the chunks asked for, and how long each step was in times of its decodes alone."""
    stretches = []
    for _ in range(steps):
        chunk = paced.budget(num_decodes)
        duration_s = alone_s + chunk * token_s
        paced.observe(num_decodes=num_decodes, num_prefill_tokens=chunk, duration_s=duration_s)
        stretches.append(duration_s / alone_s)
    return stretches


def test_where_nothing_decodes_a_chunk_is_as_large_as_it_may_be() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    assert paced.budget(0) == 512


def test_before_anybody_has_decoded_alone_there_is_no_stall_to_speak_of() -> None:
    assert pace().budget(16) == 512


def test_on_a_slow_machine_steps_stay_within_their_stretch_from_the_second_on() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    first, *later = mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=6)
    assert first == pytest.approx(1 + 32 * CPU_TOKEN_S / 0.013)
    assert all(1.9 < stretch <= 2.0 for stretch in later)


def test_on_a_fast_one_the_largest_chunk_is_reached_in_a_few_steps() -> None:
    paced = pace()
    decode(paced, 16, 0.006)
    mix(paced, 16, alone_s=0.006, token_s=GPU_TOKEN_S, steps=1)
    assert paced.budget(16) == 512


def test_tokens_that_cost_more_as_the_context_grows_are_followed() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=2)
    chunks = []
    for step in range(50):
        chunks.append(paced.budget(16))
        [stretch] = mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S * (1 + step / 60))
        assert stretch < 2.1  # Never more than a step behind the growing cost.
    assert chunks[0] == 32
    assert chunks[-1] == 18


def test_one_pause_of_the_machine_changes_the_chunk_by_a_factor_of_two_at_most() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=3)
    before = paced.budget(16)
    paced.observe(num_decodes=16, num_prefill_tokens=before, duration_s=5.0)
    assert paced.budget(16) == before // 2
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=2)
    assert paced.budget(16) == before


def test_the_more_could_start_and_the_fewer_run_the_longer_a_step_may_take() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=3)
    alone = paced.budget(16)
    assert [paced.budget(16, num) // alone for num in (1, 4, 8, 16)] == [1, 1, 2, 4]
    assert paced.budget(16, 1000) == 512


def test_a_pause_among_decodes_does_not_count() -> None:
    paced = pace()
    decode(paced, 16, 0.013, times=5)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=3)
    before = paced.budget(16)
    decode(paced, 16, 5.0)
    assert paced.budget(16) == before


def test_more_decodes_than_ever_ran_alone_are_judged_by_what_a_token_costs() -> None:
    paced = pace()
    decode(paced, 1, 0.008)
    mix(paced, 1, alone_s=0.008, token_s=CPU_TOKEN_S, steps=3)
    assert paced.budget(1) == 20
    assert paced.budget(32) == 20 + 30  # Each decode beyond the second is taken for a token.


def test_the_rest_of_a_prompt_tells_nothing_of_what_a_token_costs() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=3)
    before = paced.budget(16)
    paced.observe(num_decodes=16, num_prefill_tokens=2, duration_s=0.02)
    assert paced.budget(16) == before


def test_a_chunk_that_costs_the_same_whatever_its_size_is_not_cut_ever_smaller() -> None:
    """Decodes alone are replayed in 2 ms, and any other step takes 5 ms to launch: no chunk is within the stretch. Each chunk
    once told only that tokens are dear, so the next was smaller, down to 16 tokens in 7 ms instead of 500 in 12."""
    paced = pace()
    decode(paced, 16, 0.002)
    chunks = []
    for _ in range(20):
        chunks.append(paced.budget(16))
        paced.observe(num_decodes=16, num_prefill_tokens=chunks[-1], duration_s=0.007 + chunks[-1] * GPU_TOKEN_S)
    assert chunks[:2] == [32, 16]
    assert 400 < chunks[-1] <= 500, "its tokens take as long as what it costs anyway"


def test_pauses_of_a_busy_machine_in_small_chunks_are_no_fixed_cost() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=3)
    for duration_s in (0.3, 0.3, 0.3):
        paced.observe(num_decodes=16, num_prefill_tokens=8, duration_s=duration_s)
    assert paced.budget(16) == 16, "for a moment tokens seem dear"
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=8)
    assert paced.budget(16) == 32


def test_a_fixed_cost_within_the_stretch_leaves_the_rest_of_it_to_the_tokens() -> None:
    paced = pace()
    decode(paced, 16, 0.013)
    for num in [32, 8] * 20:
        paced.observe(num_decodes=16, num_prefill_tokens=num, duration_s=0.013 + 0.003 + num * CPU_TOKEN_S)
    assert paced.budget(16) == pytest.approx(0.010 / CPU_TOKEN_S, abs=1)


def test_short_prompts_tell_that_tokens_are_dearer_than_was_believed() -> None:
    """Learned from a step that was as quick as its decodes alone: any chunk is allowed. Prompts of 100 tokens, which were never
    half of that chunk, told nothing, and each of their steps took four times as long as the decodes."""
    paced = pace()
    decode(paced, 16, 0.013)
    paced.observe(num_decodes=16, num_prefill_tokens=32, duration_s=0.013)
    assert paced.budget(16) == 512
    stretches = []
    for _ in range(12):
        num = min(100, paced.budget(16))
        duration_s = 0.013 + num * CPU_TOKEN_S
        paced.observe(num_decodes=16, num_prefill_tokens=num, duration_s=duration_s)
        stretches.append(duration_s / 0.013)
    assert stretches[0] > 4
    assert stretches[-1] == pytest.approx(2.0, abs=0.05)


def test_a_prompt_always_gets_on() -> None:
    paced = pace()
    decode(paced, 16, 0.001)
    mix(paced, 16, alone_s=0.001, token_s=1.0, steps=20)
    assert paced.budget(16) == 16


@pytest.mark.parametrize("paced", [pace(stretch=0.0), pace(chunk=0)], ids=["no stretch", "whole prompts"])
def test_what_is_not_paced_is_not(paced: PrefillPace) -> None:
    decode(paced, 16, 0.013)
    mix(paced, 16, alone_s=0.013, token_s=CPU_TOKEN_S, steps=3)
    assert paced.budget(16) == (512 if paced._stretch == 0.0 and paced._max_chunk == 512 else ReplicaConfig().max_model_len)


@pytest.mark.parametrize("stretch", [-1.0, 0.5, 1.0, 2000.0, float("nan")])
def test_a_stretch_that_cannot_be(stretch: float) -> None:
    with pytest.raises(ConfigError, match="prefill_stretch"):
        ReplicaConfig(prefill_stretch=stretch)


def test_the_scheduler_holds_a_long_prompt_to_the_stretch() -> None:
    """Decodes take 10 ms together and a prompt token 1 ms: beside them a step may compute ten."""
    config = ReplicaConfig(num_blocks=200, max_num_seqs=8, max_model_len=1024, prefill_stretch=3.0)
    scheduler = Scheduler(config)
    now = 0.0

    def run() -> int:
        """One step; returns its prompt tokens."""
        nonlocal now
        step = scheduler.schedule(now=now)
        assert step is not None
        num_prefill = sum(len(part.tokens) for part in step.sequences if len(part.tokens) > 1)
        now += 0.010 + 0.001 * num_prefill
        scheduler.update(step, [5] * step.num_sampled, now=now)
        return num_prefill

    scheduler.submit(a_sequence(1, prompt=list(range(20)), max_tokens=500), now=now)
    assert [run() for _ in range(4)] == [20, 0, 0, 0]
    scheduler.submit(a_sequence(2, prompt=list(range(600)), max_tokens=5), now=now)
    assert [run() for _ in range(3)] == [32, 80, 80]  # One who waits is worth four who stream.
