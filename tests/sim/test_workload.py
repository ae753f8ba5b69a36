"""Seeded traffic: its laws for any seed, its statistics for one, and what a trace file may and may not hold."""

import gzip
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.errors import ConfigError
from batcher.sim.workload import (
    Arrivals,
    Burst,
    Constant,
    Mix,
    Poisson,
    Ramp,
    Sender,
    Steps,
    Trace,
    parse_arrivals,
    read_trace,
    stream,
)

RATE = st.floats(min_value=0.01, max_value=100_000)
SECONDS = st.floats(min_value=0.01, max_value=1000)
ARRIVALS: st.SearchStrategy[Arrivals] = st.one_of(
    st.builds(Poisson, RATE),
    st.builds(Constant, RATE),
    st.builds(Burst, RATE, st.floats(1.0, 50.0), period_s=st.floats(1.0, 60.0), burst_s=st.floats(0.01, 0.9)),
    st.builds(Ramp, st.one_of(st.just(0.0), RATE), RATE, SECONDS),
    st.builds(Steps, st.lists(st.tuples(RATE, SECONDS), min_size=1, max_size=4).map(tuple)),
)


def within(arrivals: Arrivals, until_s: float, seed: int = 1) -> list[float]:
    return list(itertools.takewhile(lambda at: at < until_s, arrivals.instants(random.Random(seed))))


def count(instants: list[float], from_s: float, to_s: float) -> int:
    return sum(from_s <= at < to_s for at in instants)


def is_near(measured: int, expected: float) -> bool:
    """Within five standard deviations of a Poisson count."""
    return abs(measured - expected) <= 5.0 * math.sqrt(expected)


@given(ARRIVALS, st.integers())
def test_instants_start_at_0_or_later_and_never_decrease(arrivals: Arrivals, seed: int) -> None:
    instants = list(itertools.islice(arrivals.instants(random.Random(seed)), 300))
    assert all(at >= 0.0 and math.isfinite(at) for at in instants)
    assert instants == sorted(instants)


@given(ARRIVALS, st.integers())
def test_one_seed_draws_the_same_instants(arrivals: Arrivals, seed: int) -> None:
    first, second = (list(itertools.islice(arrivals.instants(random.Random(seed)), 50)) for _ in range(2))
    assert first == second


def test_every_seed_and_everything_that_is_drawn_has_a_stream_of_its_own() -> None:
    """Senders were drawn from `seed + 1`: those of one seed from the numbers that were the arrivals of the next."""
    first = {stream(seed, what).random() for seed in range(-50, 50) for what in ("arrivals", "mix", "faults", "latency")}
    assert len(first) == 400
    assert stream(1, "mix").random() == stream(1, "mix").random()


def test_instants_are_drawn_one_at_a_time() -> None:
    instants = Poisson(1000.0).instants(random.Random(1))
    assert isinstance(instants, Iterator)
    assert next(instants) < next(instants)


def test_poisson_has_its_rate_and_exponential_gaps() -> None:
    instants = within(Poisson(1000.0), 20.0)
    assert is_near(len(instants), 20_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    longer_than_mean = sum(gap > 0.001 for gap in gaps) / len(gaps)
    assert longer_than_mean == pytest.approx(math.exp(-1.0), abs=0.02)


def test_constant_does_not_drift() -> None:
    instants = list(itertools.islice(Constant(3.0).instants(random.Random(1)), 300_001))
    assert instants[3] == 1.0
    assert instants[-1] == 100_000.0


def test_burst_keeps_its_mean_and_its_factor() -> None:
    instants = within(Burst(1000.0, factor=5.0, period_s=5.0, burst_s=0.5), 50.0)
    assert is_near(len(instants), 50_000)
    in_bursts = sum(at % 5.0 < 0.5 for at in instants)
    calm_rate = 1000.0 * 5.0 / 7.0
    assert is_near(in_bursts, 10 * 0.5 * 5.0 * calm_rate)


def test_ramp_grows_in_a_line_and_then_stays() -> None:
    instants = within(Ramp(0.0, 1000.0, 20.0), 30.0)
    assert is_near(count(instants, 0.0, 10.0), 2500)
    assert is_near(count(instants, 10.0, 20.0), 7500)
    assert is_near(count(instants, 20.0, 30.0), 10_000)


def test_ramp_falls_too() -> None:
    instants = within(Ramp(1000.0, 100.0, 10.0), 20.0)
    assert is_near(count(instants, 0.0, 10.0), 5500)
    assert is_near(count(instants, 10.0, 20.0), 1000)


def test_steps_have_each_its_rate_and_an_end() -> None:
    instants = list(Steps(((1000.0, 5.0), (0.0, 2.0), (3000.0, 5.0))).instants(random.Random(1)))
    assert is_near(count(instants, 0.0, 5.0), 5000)
    assert count(instants, 5.0, 7.0) == 0
    assert is_near(count(instants, 7.0, 12.0), 15_000)
    assert instants[-1] < 12.0


def test_mix_draws_by_weight_whether_share_or_rate() -> None:
    mix = Mix((Sender("flood", "paid", 3000.0), *(Sender(f"quiet-{i}", "paid", 5.0) for i in range(20))))
    draws = Counter(itertools.islice(mix.draws(random.Random(1)), 31_000))
    assert mix.total == 3100.0
    assert is_near(draws[0], 30_000)
    assert is_near(sum(draws[i] for i in range(1, 21)), 1000)


@given(st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=30), st.integers())
def test_mix_draws_only_what_is_in_it(weights: list[float], seed: int) -> None:
    mix = Mix(tuple(Sender(str(i), "paid", weight) for i, weight in enumerate(weights)))
    assert all(0 <= i < len(weights) for i in itertools.islice(mix.draws(random.Random(seed)), 200))


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("poisson", Poisson(50.0)),
        ("constant", Constant(50.0)),
        ("burst", Burst(50.0)),
        ("ramp", Ramp(0.0, 50.0, 8.0)),
    ],
)
def test_arrivals_are_parsed(spelling: str, expected: Arrivals) -> None:
    assert parse_arrivals(spelling, rate=50.0, duration_s=8.0) == expected


def test_steps_bring_their_own_rate() -> None:
    assert parse_arrivals("steps:10x2,0x1,30x4", rate=None, duration_s=8.0) == Steps(((10.0, 2.0), (0.0, 1.0), (30.0, 4.0)))


@pytest.mark.parametrize(
    ("spelling", "rate", "message"),
    [
        ("wave", 1.0, "unknown arrivals 'wave'"),
        ("poisson:3", 1.0, "unknown arrivals"),
        ("poisson", None, "need a rate"),
        ("poisson", 0.0, "rate must be more than 0"),
        ("poisson", math.inf, "rate must be more than 0"),
        ("steps:1x2", 5.0, "have their own rate"),
        ("steps:1", None, "RATExSECONDS, not '1'"),
        ("steps:1x0", None, "duration must be more than 0"),
        ("steps:-1x3", None, "0 or more, not -1"),
        ("trace:no-such-file.csv", None, "cannot read the trace no-such-file.csv"),
    ],
)
def test_arrivals_that_cannot_work_are_refused(spelling: str, rate: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_arrivals(spelling, rate=rate, duration_s=1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Burst(1.0, period_s=1.0, burst_s=1.0),
        lambda: Burst(1.0, factor=0.0),
        lambda: Ramp(-1.0, 1.0, 1.0),
        lambda: Sender("a", "b", 0.0),
        lambda: Mix(()),
    ],
)
def test_what_cannot_work_is_refused_at_birth(make: object) -> None:
    assert callable(make)
    with pytest.raises(ConfigError):
        make()


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_trace_starts_at_0(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.6805900,396,109\n\n")
    trace = read_trace(path)
    assert list(trace.instants(random.Random(1))) == [0.0, pytest.approx(4.0)]


def test_trace_is_sped_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "10,1,1\n14,2,2\n").encode()))
    trace = parse_arrivals(f"trace:{path}", rate=None, duration_s=1.0, speed_up=8.0)
    assert isinstance(trace, Trace)
    assert list(trace.instants(random.Random(1))) == [0.0, 0.5]


def test_trace_of_instants_alone(tmp_path: Path) -> None:
    """Nothing reads how long a prompt or an answer was, so a recording without it is as good."""
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP\n7\n7.5\n")
    assert list(read_trace(path).at) == [0.0, 0.5]


def test_trace_of_other_order_columns_and_zones(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "b,7,3,2024-05-10 00:00:02.5+00:00\na,5,1,2024-05-10 00:00:00+00:00\n"
    path.write_text("\ufeffname,GeneratedTokens, ContextTokens,TIMESTAMP\n" + rows, encoding="utf-8")
    trace = read_trace(path)
    assert list(trace.at) == [0.0, 2.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column TIMESTAMP"),
        ("at,ContextTokens\n1,2\n", "no column TIMESTAMP"),
        (HEADER, "has no rows"),
        (HEADER + "1,2,3\nsoon,2,3\n", "line 3: .*soon"),
        ("ContextTokens,TIMESTAMP\n2,1\n\n2\n", "line 4: "),
        (HEADER + "nan,2,3\n", "line 2: 'nan' is no instant"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_trace(path)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_text(HEADER)
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(path)
