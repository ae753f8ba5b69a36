"""Reads series and histograms out of a Prometheus text page. The client library parses too, but only its own process's."""

import math
import re

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)", re.MULTILINE)
_EDGE = re.compile(r'(?:^|,)\s*le="([^"]+)"')

Histogram = dict[float, float]
"""Upper edge of each bucket, in ascending order, to the number of observations at or below it."""


def series(page: str) -> dict[str, float]:
    """The value of each series, by its name with its labels as they stand there."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def read_histogram(page: str, name: str) -> Histogram:
    """The histogram of this name, summed over its labels; empty when the page has none."""
    buckets: Histogram = {}
    for sample in _SAMPLE.finditer(page):
        if sample["name"] == f"{name}_bucket" and (edge := _EDGE.search(sample["labels"])):
            buckets[float(edge[1])] = buckets.get(float(edge[1]), 0.0) + float(sample["value"])
    return dict(sorted(buckets.items()))


def histogram_quantile(buckets: Histogram, part: float) -> float | None:
    """The upper edge of the bucket that holds the quantile: the true one is not above it. None without observations."""
    total = max(buckets.values(), default=0.0)
    if total == 0.0:
        return None
    edge = next(edge for edge, count in buckets.items() if count >= part * total)
    return edge if math.isfinite(edge) else None


def part_within(buckets: Histogram, limit: float) -> float | None:
    """The part of the observations in buckets up to `limit`: exact where a bucket ends there. None without observations."""
    total = max(buckets.values(), default=0.0)
    return max((count for edge, count in buckets.items() if edge <= limit), default=0.0) / total if total else None
