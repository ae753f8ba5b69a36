"""What safety checks have found, for `GET /metrics`: labels are names of the rules' file and closed sets."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.service.exposition import counts
from batcher.service.safety.stage import SafetyStatistics


def safety_metrics(statistics: SafetyStatistics) -> Iterator[Metric]:
    yield counts(
        "safety_findings",
        "Texts that a safety rule did not let pass.",
        ["side", "verdict", "rule"],
        statistics.findings.items(),
    )
    yield counts("safety_failures", "Safety checks that failed.", ["side", "failure"], statistics.failures.items())
