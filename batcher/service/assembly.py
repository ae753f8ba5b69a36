"""The front door put together from the settings: the one place where all of its stages are named."""

from collections.abc import Callable, Iterable

from batcher.config import IdempotencyConfig, LimitsConfig, Switch
from batcher.core.admission.gate import GateStatistics
from batcher.errors import ServiceError
from batcher.service.auth import Caller
from batcher.service.claims import ClaimStore
from batcher.service.closing import close_in_order
from batcher.service.door import Door
from batcher.service.exposition import Collect
from batcher.service.front import Front
from batcher.service.front_meters import FrontMeters
from batcher.service.idempotency import Idempotency
from batcher.service.keys_file import KeySource
from batcher.service.limiter import Limiter
from batcher.service.limits import LimitStore
from batcher.service.request_log import RequestLog
from batcher.service.safety.stage import SafetyStage
from batcher.service.stage_metrics import stage_metrics
from batcher.service.stores.memory_claims import MemoryClaims
from batcher.service.stores.memory_limits import MemoryLimits
from batcher.service.stores.usage_log import UsageLog
from batcher.service.tracing import create_tracer
from batcher.settings import Settings

_CLOSE_S = 15.0
"""What the last words may take together: the 10 s of the usage log and the 2 s of each of the other two, and a little more."""


class Entrance:
    """The front door of one service, and the life of what stands behind its stages. From `start` to `close` it belongs to the
    running event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        models: Iterable[str],
        refuse_early: Callable[[Caller], ServiceError | None],
        limit_factor: Callable[[str], float],
    ) -> None:
        """Raises ConfigError. `refuse_early` and `limit_factor` are the admission's."""
        tiers = settings.tiers_in_force
        models = tuple(models)
        self.keys = KeySource(configured=settings.keys, file=settings.keys_file, tiers=tiers)
        self._limit_store = _limit_store(settings.limits())
        self._claims = _claim_store(settings.idempotency())
        limiter = Limiter(settings.limits(), tiers, self._limit_store, limit_factor=limit_factor)
        safety, usage = settings.safety(), settings.usage()
        tier_names = tuple(tier.name for tier in tiers)
        door = Door(keys=self.keys.keys, http=settings.http())
        self.request_log = RequestLog() if settings.request_log is Switch.ON else None
        self.front = Front(
            door=door,
            limiter=limiter,
            safety=SafetyStage(safety, models=models, tiers=tier_names, turns=door.turns) if safety.is_on else None,
            idempotency=Idempotency(settings.idempotency(), self._claims),
            usage=UsageLog(usage) if usage.directory is not None else None,
            meters=FrontMeters(tier_names, models),
            request_log=self.request_log,
            tracer=create_tracer(settings.tracing, models=models),
        )
        door.refuse_early = lambda caller: limiter.peek(caller) or self._refuse_unrecorded() or refuse_early(caller)

    def _refuse_unrecorded(self) -> ServiceError | None:
        usage = self.front.usage
        return None if usage is None else usage.refusal

    def metrics(self, admission: Callable[[], Iterable[GateStatistics]]) -> Collect:
        """`admission` tells how each tier's admission stands."""
        return stage_metrics(
            self.front,
            keys=self.keys,
            limit_store=self._limit_store,
            claims=self._claims,
            request_log=self.request_log,
            admission=admission,
        )

    async def start(self) -> None:
        self.keys.start()
        if self.request_log is not None:
            self.request_log.start()
        await self._limit_store.start()
        await self._claims.start()

    async def close(self) -> None:
        """After whatever answers has ended, so that its last words are written."""
        front = self.front
        self.keys.close()
        await self._limit_store.close()
        await self._claims.close()
        if front.safety is not None:
            front.safety.close()
        # First what is billed; last the log, which has the last lines of all.
        writers = [front.usage, front.tracer, self.request_log]
        await close_in_order([writer.close for writer in writers if writer is not None], within_s=_CLOSE_S)


def _limit_store(config: LimitsConfig) -> LimitStore:
    if config.redis_url is None:
        return MemoryLimits(max_keys=config.max_keys)
    from batcher.service.stores.redis_limits import RedisLimits

    return RedisLimits(config)


def _claim_store(config: IdempotencyConfig) -> ClaimStore:
    if config.redis_url is None:
        return MemoryClaims(config)
    from batcher.service.stores.redis_claims import RedisClaims

    return RedisClaims(config)
