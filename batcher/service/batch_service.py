"""Batch mode, assembled: callers -> gate -> dispatcher -> workers."""

import os
import time
from math import isfinite

import backends
from backends.generate_wire import context_len
from backends.models import create_model
from batcher.core.admission.gate import Gate
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.errors import ConfigError
from batcher.service.assembly import Entrance
from batcher.service.batch_answers import GenerateAnswerer, TextAnswerer
from batcher.service.batch_metrics import batch_metrics
from batcher.service.conversation import Answerer
from batcher.service.driver import Driver
from batcher.service.exposition import create_registry
from batcher.service.meters import Meters
from batcher.service.prompts import Prompter
from batcher.service.run import RunEndpoint
from batcher.service.whole import WholeAnswers
from batcher.settings import Settings


class BatchService:
    """A Service."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError for a backend that cannot be."""
        dispatch, self.http = settings.dispatch(), settings.http()
        factory = backends.create(
            settings.backend,
            isolation=settings.isolation,
            settings=settings.backend_settings(),
            start_timeout_s=dispatch.start_timeout_s,
        )
        self.settings = settings
        self.meters = Meters(dispatch.tiers)
        self.gate = Gate(settings.tiers_in_force, secret=os.urandom(16))
        self.dispatcher = Dispatcher(dispatch, now=time.monotonic())
        self.driver = Driver(
            dispatcher=self.dispatcher,
            gate=self.gate,
            factory=factory,
            meters=self.meters,
            request_timeout_s=self.http.request_timeout_s,
        )
        self._prompter: Prompter | None = None
        self.answerer = self._answerer()
        self._entrance = Entrance(
            settings,
            models=[self.answerer.model_id],
            refuse_early=self.driver.refuse_early,
            limit_factor=self.driver.limit_factor,
        )
        self.front = self._entrance.front
        self.run = RunEndpoint(driver=self.driver, front=self.front, model_id=self.answerer.model_id)
        self.whole = WholeAnswers(self.front, self.answerer) if isinstance(self.answerer, TextAnswerer) else None
        self.registry = create_registry(
            lambda: batch_metrics(self.meters, self.dispatcher, self.answerer.model_id),
            self._entrance.metrics(lambda: self.gate.statistics(now=time.monotonic())),
        )

    def _answerer(self) -> Answerer:
        settings = self.settings
        if settings.backend != backends.GENERATE:
            return TextAnswerer(self.driver, model_id=settings.backend)
        model = create_model(settings.model, dtype=settings.dtype, device=settings.device, settings=settings.model_settings())
        self._prompter = Prompter(model.tokenizer, context_len=context_len(model.info))
        return GenerateAnswerer(self.driver, model_id=model.info.id, prompter=self._prompter)

    async def start(self) -> None:
        await self._entrance.start()
        self.driver.start()

    @property
    def is_ready(self) -> bool:
        return self.driver.is_ready

    @property
    def config_error(self) -> ConfigError | None:
        return self.driver.config_error

    @property
    def num_live(self) -> int:
        return self.driver.num_live

    def drain(self) -> None:
        self.driver.drain()

    async def wait_idle(self) -> None:
        await self.driver.wait_idle()

    def abandon(self) -> None:
        self.driver.abandon()

    async def close(self) -> None:
        if self._prompter is not None:
            self._prompter.close()
        await self.driver.close()
        await self._entrance.close()

    def load(self) -> dict[str, object]:
        """Work that waits, capacity, and the wait to expect by tier."""
        dispatcher = self.dispatcher
        statistics = dispatcher.statistics()
        return {
            "ready": self.driver.is_ready,
            "live": statistics.num_live,
            "running": statistics.num_running,
            "waiting": {tier.name: tier.num_waiting for tier in statistics.tiers},
            "workers": statistics.workers,
            "service_time_s": statistics.service_time_s,
            "capacity_rate": dispatcher.capacity_rate,
            "wait_s": {tier.name: self._wait_s(tier.name) for tier in statistics.tiers},
        }

    def describe(self) -> dict[str, object]:
        settings = self.settings
        return {
            "mode": settings.mode,
            "backend": settings.backend,
            "workers": settings.workers,
            "policy": settings.dispatch().policy,
        }

    def _wait_s(self, tier: str) -> float | None:
        """What a tenant that has nothing waiting would wait for a batch; None while no worker is ready."""
        wait_s = self.gate.estimate_wait_s(
            tier,
            work_ahead=self.dispatcher.num_ahead_of(tier, ""),
            capacity_rate=self.dispatcher.capacity_rate,
            now=time.monotonic(),
            batch_size=self.dispatcher.max_batch_size,
        )
        return wait_s if isfinite(wait_s) else None
