"""The limits against brute force, by rules: every way out, clocks that jump, limits that change, subjects that are dropped."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batcher.config import RateLimit
from tests.core.admission.modelled_limits import KEYS, LIMITS, STEPS_S, TIERS, ModelledLimits, soak

names = st.one_of(
    st.tuples(st.sampled_from(KEYS)),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(TIERS)),
    st.tuples(st.sampled_from(TIERS)),
)
tokens = st.one_of(st.sampled_from([0, 1, 10, 35, 58, 100, 101, 175]), st.integers(0, 120))
steps_s = st.one_of(st.sampled_from(STEPS_S), st.floats(-100.0, 100.0))


class LimitsMachine(RuleBasedStateMachine):
    """Reserves of several subjects at once, and everything that may become of them."""

    max_subjects = 100
    do_limits_change = True

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelledLimits(max_subjects=self.max_subjects)

    @initialize(limits=st.lists(st.sampled_from(LIMITS), min_size=9, max_size=9), start_at=st.floats(100.0, 1e6))
    def start(self, limits: list[RateLimit], start_at: float) -> None:
        self.model = ModelledLimits(max_subjects=self.max_subjects, start_at=start_at)
        self.model.rates = dict(zip(self.model.rates, limits, strict=True))

    @rule(names=names, tokens=tokens, num=st.integers(1, 5))
    def reserve(self, names: tuple[str, ...], tokens: int, num: int) -> None:
        """Several at the same instant, none of which is over before the others come."""
        for _ in range(num):
            self.model.reserve(names, tokens)

    @rule(seconds=steps_s)
    def step(self, seconds: float) -> None:
        self.model.step(seconds)

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    def settle(self, data: st.DataObject, share: float) -> None:
        charge = data.draw(st.sampled_from(self.model.open))
        self.model.settle(charge, int(charge.tokens * share))

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.model.give_back(data.draw(st.sampled_from(self.model.open)))

    @precondition(lambda self: self.model.ended)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        self.model.end_again(data.draw(st.sampled_from(self.model.ended)))

    @rule(names=names)
    def peek(self, names: tuple[str, ...]) -> None:
        self.model.peek(names)

    @precondition(lambda self: self.do_limits_change)
    @rule(name=st.sampled_from(KEYS + TIERS), limit=st.sampled_from(LIMITS))
    def change_limit(self, name: str, limit: RateLimit) -> None:
        self.model.rates[name] = limit

    @invariant()
    def laws(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        if not self.do_limits_change:
            self.model.check_every_minute()
        self.model.leave()


class SteadyMachine(LimitsMachine):
    """Limits that never change: the law is asked of every minute that ever was."""

    do_limits_change = False


class CrowdedMachine(LimitsMachine):
    """More subjects than there is room for."""

    max_subjects = 4


class ExceedingMachine(LimitsMachine):
    """Answers that cost more than was expected: the law may be exceeded by that, and by nothing else."""

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), more=st.sampled_from([1, 40, 1000]))
    def settle_more(self, data: st.DataObject, more: int) -> None:
        charge = data.draw(st.sampled_from(self.model.open))
        self.model.settle(charge, charge.tokens + more)


_SETTINGS = settings(derandomize=True, max_examples=40, stateful_step_count=40, deadline=None)

TestLimitsMachine = LimitsMachine.TestCase
TestLimitsMachine.settings = _SETTINGS
TestSteadyMachine = SteadyMachine.TestCase
TestSteadyMachine.settings = _SETTINGS
TestCrowdedMachine = CrowdedMachine.TestCase
TestCrowdedMachine.settings = _SETTINGS
TestExceedingMachine = ExceedingMachine.TestCase
TestExceedingMachine.settings = _SETTINGS


@pytest.mark.parametrize("max_subjects", [4, 100])
def test_a_long_run(max_subjects: int) -> None:
    soak(1, 1500, max_subjects=max_subjects)
