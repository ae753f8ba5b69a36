"""What is counted of every request, as its caller saw it: each line once, under labels that nobody chooses (B91, B95, B97)."""

from random import Random

import pytest
from prometheus_client import generate_latest

from batcher.core.admission.gate import GateStatistics
from batcher.core.admission.promises import LATE_BOUNDS_S, PromiseCounts
from batcher.service.admission_metrics import admission_metrics
from batcher.service.exposition import create_registry
from batcher.service.front_meters import FrontMeters
from batcher.service.front_metrics import front_metrics
from batcher.service.records import Refused, RequestLine, Route, what_refused
from batcher.types import Outcome
from tests.service.scraping import Metrics


def line(**changed: object) -> RequestLine:
    fields: dict[str, object] = {
        "at": 1_700_000_000.0,
        "request_id": "req_1",
        "route": Route.MESSAGES,
        "status": 200,
        "outcome": Outcome.OK,
        "e2e_s": 2.0,
        "tier": "paid",
        "model": "simulated",
        "input_tokens": 3,
        "output_tokens": 4,
        "ttft_s": 0.5,
    }
    return RequestLine(**{**fields, **changed})  # type: ignore[arg-type]


def refusal(status: int, outcome: str, **changed: object) -> RequestLine:
    fields: dict[str, object] = {"refused": what_refused(status, outcome), **changed}
    return line(status=status, outcome=outcome, e2e_s=0.0001, input_tokens=0, output_tokens=0, ttft_s=None, **fields)


@pytest.fixture
def meters() -> FrontMeters:
    return FrontMeters(("paid", "free"), ("simulated",))


def page(meters: FrontMeters) -> str:
    return generate_latest(create_registry(lambda: front_metrics(meters))).decode()


def scraped(meters: FrontMeters) -> Metrics:
    return Metrics(page(meters))


def test_a_whole_answer_is_counted_with_its_times_and_tokens(meters: FrontMeters) -> None:
    meters.observe(line())
    metrics = scraped(meters)
    assert metrics.nonzero("batcher_http_requests_total") == {("simulated", "ok", "/v1/messages", "paid"): 1}
    assert metrics.nonzero("batcher_http_replies_total") == {("/v1/messages", "2xx"): 1}
    assert metrics.nonzero("batcher_http_ttft_seconds_sum") == {("simulated", "paid"): 0.5}
    assert metrics.nonzero("batcher_http_e2e_seconds_sum") == {("simulated", "paid"): 2.0}
    assert metrics.nonzero("batcher_http_input_tokens_total") == {("simulated", "paid"): 3}
    assert metrics.nonzero("batcher_http_output_tokens_total") == {("simulated", "paid"): 4}
    assert metrics.nonzero("batcher_refusals_total") == {}


def test_what_was_refused_or_broke_off_is_no_latency(meters: FrontMeters) -> None:
    """B95: a third of quick refusals, and some that fail in mid-stream; the answers' times are as if they had not been."""
    for number in range(100):
        meters.observe(line(ttft_s=1.0, e2e_s=4.0))
        if number % 3 == 0:
            meters.observe(refusal(529, Outcome.REJECTED_CAPACITY))
        if number % 20 == 0:
            meters.observe(line(outcome=Outcome.FAILED, ttft_s=0.1, e2e_s=0.2, output_tokens=2))
            meters.observe(line(status=499, outcome=Outcome.CANCELLED, ttft_s=0.1, e2e_s=60.0, output_tokens=1))
    metrics = scraped(meters)
    for name, seconds in (("ttft", 100.0), ("e2e", 400.0)):
        assert metrics.value(f"batcher_http_{name}_seconds_sum", "simulated", "paid") == seconds
        assert metrics.value(f"batcher_http_{name}_seconds_count", "simulated", "paid") == 100
    # What was delivered of them is billed all the same.
    assert metrics.value("batcher_http_output_tokens_total", "simulated", "paid") == 100 * 4 + 5 * 2 + 5 * 1
    assert metrics.nonzero("batcher_refusals_total") == {("capacity", "paid"): 34}


def test_an_answer_without_a_text_has_no_time_to_it(meters: FrontMeters) -> None:
    """B97: no sample, and not one of 0."""
    meters.observe(line(ttft_s=None))
    metrics = scraped(meters)
    assert metrics.value("batcher_http_ttft_seconds_count", "simulated", "paid") == 0
    assert metrics.value("batcher_http_e2e_seconds_count", "simulated", "paid") == 1


def test_an_answer_that_is_given_again_is_a_reply_and_no_work(meters: FrontMeters) -> None:
    meters.observe(line(is_replayed=True))
    metrics = scraped(meters)
    assert metrics.nonzero("batcher_http_replies_total") == {("/v1/messages", "2xx"): 1}
    for name in ("ttft_seconds_count", "e2e_seconds_count", "input_tokens_total", "output_tokens_total"):
        assert metrics.nonzero(f"batcher_http_{name}") == {}


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (refusal(429, Outcome.REJECTED_RATE, refused="rate_tokens"), "rate_tokens"),
        (refusal(429, Outcome.REJECTED_RATE, refused="rate_requests"), "rate_requests"),
        (refusal(529, Outcome.REJECTED_CAPACITY, refused="limits_away"), "limits_away"),
        (refusal(529, Outcome.REJECTED_CAPACITY, refused="claims_away"), "claims_away"),
        (refusal(529, Outcome.REJECTED_CAPACITY, refused="usage_away"), "usage_away"),
        (refusal(529, Outcome.REJECTED_CAPACITY, refused="shed"), "shed"),
        (refusal(529, Outcome.REJECTED_CAPACITY), "capacity"),
        (refusal(529, Outcome.REJECTED_SHUTDOWN), "shutdown"),
        (refusal(400, "invalid", refused="safety"), "safety"),
        (refusal(400, "invalid"), "invalid"),
        (refusal(404, "invalid"), "invalid"),
        (refusal(405, "invalid"), "invalid"),
        (refusal(403, "invalid"), "forbidden"),
        (refusal(408, "invalid"), "too_slow"),
        (refusal(409, "invalid"), "idempotency"),
        (refusal(413, "invalid"), "too_large"),
        (refusal(422, "invalid"), "idempotency"),
    ],
)
def test_a_refusal_is_counted_by_what_stood_in_its_way(meters: FrontMeters, refused: RequestLine, kind: str) -> None:
    meters.observe(refused)
    assert scraped(meters).nonzero("batcher_refusals_total") == {(kind, "paid"): 1}


def test_replies_are_counted_by_class_of_status(meters: FrontMeters) -> None:
    for status, outcome in (
        (200, Outcome.OK),
        (429, Outcome.REJECTED_RATE),
        (499, Outcome.CANCELLED),
        (529, "rejected_capacity"),
    ):
        meters.observe(line(status=status, outcome=outcome))
    replies = scraped(meters).nonzero("batcher_http_replies_total")
    assert replies == {("/v1/messages", "2xx"): 1, ("/v1/messages", "4xx"): 2, ("/v1/messages", "5xx"): 1}


def test_who_has_no_key_has_no_tier(meters: FrontMeters) -> None:
    meters.observe(refusal(401, "invalid", tier="", model=""))
    metrics = scraped(meters)
    assert metrics.nonzero("batcher_refusals_total") == {("unauthenticated", "none"): 1}
    assert metrics.nonzero("batcher_http_requests_total") == {("other", "invalid", "/v1/messages", "none"): 1}


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED])
def test_what_was_let_in_is_no_refusal(meters: FrontMeters, outcome: Outcome) -> None:
    assert what_refused(529, outcome) == ""
    meters.observe(line(status=504 if outcome is Outcome.EXPIRED else 200, outcome=outcome))
    assert scraped(meters).nonzero("batcher_refusals_total") == {}


def test_nobody_adds_to_the_page(meters: FrontMeters) -> None:
    """B91: 20,000 requests with random routes, tiers, models and ids, and all labels are there from the start."""
    random = Random(91)

    def word() -> str:
        return "".join(random.choices('abcdefghijklmnopqrstuvwxyz0123456789\n"\\é', k=12))

    before = page(meters)
    for number in range(20_000):
        tier = random.choice(["paid", "free", "", word()])
        route = random.choice([Route.CHAT, "other", word()])
        status = random.choice([200, 400, 404, 429, 499, 529])
        outcome = random.choice([*Outcome, "invalid"])
        meters.observe(line(request_id=word(), route=route, tier=tier, model=word(), status=status, outcome=outcome))
        if number % 2:
            meters.observe(line(own_id=word(), tenant=word(), key=word(), error=word()))
    metrics = scraped(meters)
    assert [text.rpartition(" ")[0] for text in page(meters).splitlines()] == [
        text.rpartition(" ")[0] for text in before.splitlines()
    ]
    assert sum(metrics.values("batcher_http_requests_total").values()) == 30_000
    assert sum(metrics.values("batcher_http_replies_total").values()) == 30_000
    # Of the random ones nothing is an answer of the model's.
    assert metrics.value("batcher_http_e2e_seconds_count", "simulated", "paid") == 10_000


def test_labels_are_closed_sets_made_at_birth(meters: FrontMeters) -> None:
    metrics = scraped(meters)
    kinds = set(metrics.values("batcher_refusals_total"))
    assert kinds == {(kind, tier) for kind in map(str, Refused) for tier in ("paid", "free", "none")}
    requests = set(metrics.values("batcher_http_requests_total"))
    outcomes = [*map(str, Outcome), "invalid"]
    named = [("simulated", "paid"), ("other", "paid"), ("simulated", "free"), ("other", "free"), ("other", "none")]
    routes = [*map(str, Route), "other"]
    assert requests == {(model, outcome, route, tier) for model, tier in named for outcome in outcomes for route in routes}


def test_streams_are_counted_while_they_are_open(meters: FrontMeters) -> None:
    meters.num_open_streams += 2
    assert scraped(meters).value("batcher_open_streams") == 2


def test_admission_tells_of_each_tier() -> None:
    late = [2, *[0] * (len(LATE_BOUNDS_S) - 1)]
    promises = PromiseCounts(
        num_made=9, num_kept=3, num_broken=2, num_expired=1, num_unpromised=4, late_counts=late, late_sum_s=5.5
    )
    paid = GateStatistics("paid", 0.5, 1.0, 1.0, 0, PromiseCounts())
    free = GateStatistics("free", float("inf"), 0.25, 0.5, 3, promises)
    metrics = Metrics(generate_latest(create_registry(lambda: admission_metrics([paid, free]))).decode())
    assert metrics.values("batcher_admission_pressure") == {("paid",): 0.5, ("free",): float("inf")}
    assert metrics.values("batcher_admitted_share") == {("paid",): 1.0, ("free",): 0.25}
    assert metrics.values("batcher_limit_factor") == {("paid",): 1.0, ("free",): 0.5}
    assert metrics.nonzero("batcher_promises_ended_total") == {
        ("kept", "free"): 3,
        ("broken", "free"): 2,
        ("expired", "free"): 1,
    }
    assert metrics.value("batcher_promises_total", "free") == 9
    assert metrics.value("batcher_unpromised_refusals_total", "free") == 4
    # Two came within the first bound, and one later than all of them.
    assert metrics.value("batcher_promise_late_seconds_bucket", str(LATE_BOUNDS_S[0]), "free") == 2
    assert metrics.value("batcher_promise_late_seconds_count", "free") == 3
    assert metrics.value("batcher_promise_late_seconds_sum", "free") == 5.5
