"""What all modules of metrics have in common: how a plain histogram, or a table of counts, becomes a family of Prometheus."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from batcher.service.meters import Histogram

Collect: TypeAlias = Callable[[], Iterable[Metric]]
"""What one piece of the service has counted, whenever somebody asks."""
Row: TypeAlias = tuple[str, str, float]
"""A name without its `batcher_`, what it means, and its value."""


def add_histogram(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum)


def counters(*rows: Row) -> Iterator[Metric]:
    for name, text, value in rows:
        yield CounterMetricFamily(f"batcher_{name}", text, value)


def gauges(*rows: Row) -> Iterator[Metric]:
    for name, text, value in rows:
        yield GaugeMetricFamily(f"batcher_{name}", text, value)


def counts(name: str, text: str, labels: list[str], rows: Iterable[tuple[Iterable[str], float]]) -> Metric:
    """A counter by labels; `rows` are their values and the count."""
    family = CounterMetricFamily(f"batcher_{name}", text, labels=labels)
    for values, num in rows:
        family.add_metric([*values], num)
    return family


def levels(name: str, text: str, labels: list[str], rows: Iterable[tuple[Iterable[str], float]]) -> Metric:
    """The same for a gauge."""
    family = GaugeMetricFamily(f"batcher_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric([*values], value)
    return family


def histograms(name: str, text: str, labels: list[str], rows: Iterable[tuple[Iterable[str], Histogram]]) -> Metric:
    family = HistogramMetricFamily(f"batcher_{name}", text, labels=labels)
    for values, histogram in rows:
        add_histogram(family, [*values], histogram)
    return family


class _Collector(Collector):
    def __init__(self, collects: Iterable[Collect]) -> None:
        self._collects = tuple(collects)

    def collect(self) -> Iterator[Metric]:
        for collect in self._collects:
            yield from collect()


def create_registry(*collects: Collect) -> CollectorRegistry:
    """All of them on one page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(collects))
    return registry
