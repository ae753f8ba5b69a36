"""How the usage log fares (SPEC S5.3), for `GET /metrics`."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.service.exposition import counters, gauges
from batcher.service.stores.usage_log import UsageLogStatistics


def usage_metrics(usage: UsageLogStatistics) -> Iterator[Metric]:
    yield from gauges(
        ("usage_failing", "1 while the usage log cannot be written.", usage.is_failing),
        ("usage_waiting_records", "Usage records in memory, for a disk that does not take them.", usage.num_waiting),
    )
    yield from counters(
        ("usage_records", "Usage records that were written.", usage.num_recorded),
        ("usage_unrecorded", "Usage records that are in no file and will not be.", usage.num_unrecorded),
        ("usage_failures", "Writes, fsyncs and new segments of the usage log that failed.", usage.num_failures),
        ("usage_segments", "Segments of the usage log that were begun.", usage.num_segments),
        ("usage_torn_segments", "Segments found at start with their last line cut off.", usage.num_torn),
    )
