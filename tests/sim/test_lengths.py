"""Token counts: their laws for any seed, their statistics for one, and which spellings there are."""

import itertools
import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.errors import ConfigError
from batcher.sim.lengths import MAX_LENGTH, Fixed, LengthMix, Lengths, LogNormal, Uniform, parse_lengths
from batcher.sim.trace import CONTEXT_TOKENS, GENERATED_TOKENS, read_instants, read_lengths

LENGTH = st.integers(1, MAX_LENGTH)
LENGTHS: st.SearchStrategy[Lengths] = st.one_of(
    st.builds(Fixed, LENGTH),
    st.tuples(LENGTH, LENGTH).map(lambda pair: Uniform(min(pair), max(pair))),
    st.builds(LogNormal, LENGTH, st.floats(0.0, 10.0), LENGTH),
    st.builds(LengthMix, st.lists(st.tuples(LENGTH, st.floats(0.001, 1000.0)), min_size=1, max_size=4).map(tuple)),
)
TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:51.2224670,879,0\n"
)


def draw(spelling: str, num: int, *, seed: int = 1) -> list[int]:
    return list(itertools.islice(parse_lengths(spelling, column=CONTEXT_TOKENS).draws(random.Random(seed)), num))


@given(LENGTHS, st.integers())
def test_every_draw_is_a_length_and_a_seed_draws_the_same(lengths: Lengths, seed: int) -> None:
    first, second = (list(itertools.islice(lengths.draws(random.Random(seed)), 30)) for _ in range(2))
    assert first == second
    assert all(1 <= num <= MAX_LENGTH for num in first)


def test_a_fixed_length() -> None:
    assert draw("128", 3) == [128, 128, 128]


def test_uniform_lengths_reach_both_ends() -> None:
    drawn = Counter(draw("uniform:2-4", 3000))
    assert set(drawn) == {2, 3, 4}
    assert all(900 < num < 1100 for num in drawn.values())


def test_lognormal_lengths_have_their_median_their_spread_and_their_end() -> None:
    drawn = sorted(draw("lognormal:1000,0.5", 4001))
    assert 960 < drawn[2000] < 1040
    assert 0.47 < math.log(drawn[round(4001 * 0.841)] / drawn[2000]) < 0.53
    assert max(draw("lognormal:1000,3,5000", 1000)) == 5000


def test_a_mix_of_lengths_keeps_its_weights() -> None:
    drawn = Counter(draw("8@0.75,256@0.25", 4000))
    assert set(drawn) == {8, 256}
    assert 2900 < drawn[8] < 3100


def test_a_trace_gives_both_lengths_of_a_row_in_the_order_of_its_instants(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert [round(at, 2) for at in read_instants(path)] == [0.0, 4.31, 4.54]
    assert list(read_lengths(path, CONTEXT_TOKENS)) == [374, 396, 879]
    assert list(read_lengths(path, GENERATED_TOKENS)) == [44, 109, 1]  # No request can ask for nothing.
    assert draw(f"trace:{path}", 5) == [374, 396, 879, 374, 396]


@pytest.mark.parametrize(
    "spelling",
    [
        "", "0", "-1", "many", "1.5", "uniform:5", "uniform:5-4", "uniform:0-4", "lognormal:5", "lognormal:5,x",
        "lognormal:0,1", "lognormal:5,-1", "lognormal:5,1,2,3", "8@", "8@0", "8@1,", "8@nan", "normal:5,1",
        "trace:no-such-file", "99999999999",
    ],
)  # fmt: skip
def test_lengths_that_cannot_work_are_refused(spelling: str) -> None:
    with pytest.raises(ConfigError):
        parse_lengths(spelling, column=CONTEXT_TOKENS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TIMESTAMP\n0\n", "no column ContextTokens"),
        ("TIMESTAMP,ContextTokens\n0,5\n1,x\n", "line 3"),
        ("TIMESTAMP,ContextTokens\n0,-5\n", "line 2: -5 is no number of tokens"),
        ("TIMESTAMP,ContextTokens\n0\n", "line 2"),
    ],
)
def test_a_trace_without_lengths_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_lengths(tmp_path / "trace.csv", CONTEXT_TOKENS)
