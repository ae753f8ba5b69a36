"""What holds for every test of the load generator."""

import pytest


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine whole parts of a second may pass in which nothing is sent."""
    monkeypatch.setattr("loadtest.turner.MAX_LATE_S", 60.0)
