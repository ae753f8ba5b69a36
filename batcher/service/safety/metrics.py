"""What safety checks have found, for `GET /metrics`: labels are names of the rules' file and closed sets."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from batcher.service.safety.stage import SafetyStatistics


def safety_metrics(statistics: SafetyStatistics) -> Iterator[Metric]:
    findings = CounterMetricFamily(
        "batcher_safety_findings", "Texts that a safety rule did not let pass.", labels=["side", "verdict", "rule"]
    )
    for (side, verdict, rule), num in statistics.findings.items():
        findings.add_metric([side, verdict, rule], num)
    failures = CounterMetricFamily("batcher_safety_failures", "Safety checks that failed.", labels=["side", "failure"])
    for (side, failure), num in statistics.failures.items():
        failures.add_metric([side, failure], num)
    yield from (findings, failures)
