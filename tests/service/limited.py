"""What the limiter's tests ask again and again, and of whom."""

from batcher.config import LimitsConfig, RateLimit, TierConfig, TokenEstimate
from batcher.core.admission.limits import LimitsStatistics
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.auth import Caller
from batcher.service.limiter import Admitted, Judgement, Limiter, LimitKind, LimitReached
from batcher.service.limits import OnVerdict
from batcher.service.stores.memory_limits import MemoryLimits

TIERS = (TierConfig("paid"), TierConfig("free", total_requests_per_minute=4, total_tokens_per_minute=400))
ANN = Caller("ann", "paid", "key_ann", RateLimit(2, 100))
BOB = Caller("bob", "free", "key_bob", RateLimit(3, 1000))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_limiter(clock: Clock, *, factors: dict[str, float] | None = None, estimate: str = "max_tokens") -> Limiter:
    known = {} if factors is None else factors
    config = LimitsConfig(token_estimate=TokenEstimate(estimate))
    store = MemoryLimits(max_keys=100, clock=clock)
    return Limiter(config, TIERS, store, limit_factor=lambda tier: known.get(tier, 1.0), clock=clock)


def ask(limiter: Limiter, caller: Caller, num_input: int = 10, max_output: int = 20, *, model: str = "m") -> Judgement:
    judgements: list[Judgement] = []
    limiter.reserve(caller, model, num_input, max_output, judgements.append)
    (judgement,) = judgements
    return judgement


def admitted(judgement: Judgement) -> Admitted:
    assert isinstance(judgement, Admitted)
    return judgement


def refused(judgement: Judgement | None) -> LimitReached:
    assert isinstance(judgement, LimitReached)
    return judgement


def num_refused(limiter: Limiter) -> dict[tuple[str, LimitKind], int]:
    return {pair: num for pair, num in limiter.statistics().num_refused.items() if num}


class SilentStore:
    """Never answers by itself; `asked` has what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[Subject, ...], int, OnVerdict]] = []

    def reserve(self, subjects: tuple[Subject, ...], tokens: int, on_verdict: OnVerdict) -> None:
        self.asked.append((subjects, tokens, on_verdict))

    def settle(self, reservation: Reservation, tokens: int) -> None:
        raise AssertionError("nothing was reserved")

    def give_back(self, reservation: Reservation) -> None:
        raise AssertionError("nothing was reserved")

    def peek(self, subjects: tuple[Subject, ...]) -> LimitRefusal | None:
        return None

    def statistics(self) -> LimitsStatistics:
        return LimitsStatistics(0, 0, 0)

    async def start(self) -> None: ...

    async def close(self) -> None: ...
