"""The nouns are frozen and comparable, and the closed sets that label metrics are what the outside was promised."""

import pytest

from batcher.types import MAX_BATCH_SIZE, BatchReason, Outcome, Request, WorkerFault


def a_request(**changes: object) -> Request:
    fields: dict[str, object] = {
        "id": 1,
        "tenant": "ann",
        "tier": "paid",
        "input": "hello",
        "num_bytes": 5,
        "arrived_at": 1.0,
        "deadline_at": 2.0,
    }
    return Request(**(fields | changes))  # type: ignore[arg-type]


def test_a_batch_holds_fifty() -> None:
    """SPEC S1.1."""
    assert MAX_BATCH_SIZE == 50


def test_a_request_cannot_be_changed() -> None:
    request = a_request()

    with pytest.raises(AttributeError):
        request.tier = "free"  # type: ignore[misc]

    assert request.tier == "paid"


def test_requests_are_equal_by_value_and_may_be_keys() -> None:
    assert a_request() == a_request()
    assert a_request() != a_request(id=2)
    assert {a_request(): "x"}[a_request()] == "x"


def test_outcomes_are_the_closed_set_that_labels_metrics() -> None:
    """DESIGN D7."""
    assert [outcome.value for outcome in Outcome] == [
        "ok",
        "rejected_rate",
        "rejected_capacity",
        "rejected_shutdown",
        "expired",
        "cancelled",
        "failed",
    ]


def test_reasons_and_faults_are_closed_sets_too() -> None:
    assert [str(reason) for reason in BatchReason] == ["full", "pace", "timeout", "drain", "retry", "split"]
    assert [str(fault) for fault in WorkerFault] == ["died", "hung", "bad_output", "raising", "not_started"]
