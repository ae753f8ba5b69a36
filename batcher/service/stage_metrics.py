"""What the stages of the front door have counted, for `GET /metrics`: the same in both modes."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from batcher.core.admission.gate import GateStatistics
from batcher.service import log
from batcher.service.admission_metrics import admission_metrics
from batcher.service.claims import ClaimStore
from batcher.service.exposition import Collect
from batcher.service.front import Front
from batcher.service.front_metrics import body_metrics, front_metrics, keys_metrics, lines_metrics
from batcher.service.idempotency_metrics import claims_metrics, idempotency_metrics
from batcher.service.keys_file import KeySource
from batcher.service.limits import LimitStore
from batcher.service.limits_metrics import limit_store_metrics, limiter_metrics
from batcher.service.line_writer import NO_LINES
from batcher.service.request_log import RequestLog
from batcher.service.safety_metrics import safety_metrics
from batcher.service.usage_metrics import usage_metrics


def stage_metrics(
    front: Front,
    *,
    keys: KeySource,
    limit_store: LimitStore,
    claims: ClaimStore,
    request_log: RequestLog | None,
    admission: Callable[[], Iterable[GateStatistics]],
) -> Collect:
    """`admission` tells how each tier's admission stands."""

    def collect() -> Iterator[Metric]:
        yield from front_metrics(front.meters)
        yield from body_metrics(front.door.bodies, front.door.turns)
        yield from keys_metrics(keys.statistics())
        yield from admission_metrics(admission())
        yield from limiter_metrics(front.limiter.statistics())
        yield from limit_store_metrics(limit_store.statistics())
        yield from idempotency_metrics(front.idempotency.statistics())
        yield from claims_metrics(claims.statistics())
        if front.safety is not None:
            yield from safety_metrics(front.safety.statistics())
        if front.usage is not None:
            yield from usage_metrics(front.usage.statistics())
        yield from lines_metrics("request_log", NO_LINES if request_log is None else request_log.statistics())
        yield from lines_metrics("log", log.statistics())

    return collect
