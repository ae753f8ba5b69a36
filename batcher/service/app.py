"""The one place where the parts meet: settings in, a service and its ASGI app out."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import isfinite

import msgspec
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import backends
from batcher.core.admission.gate import Gate
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.errors import MethodNotAllowed, NotFound, ServerFault, ServiceError
from batcher.service import log
from batcher.service.asgi import asgi_messages
from batcher.service.auth import DevelopmentKeys, Keyring
from batcher.service.door import Door
from batcher.service.driver import Driver
from batcher.service.meters import Meters
from batcher.service.metrics import create_registry
from batcher.service.run import RunEndpoint
from batcher.service.run_asgi import RunAsgi
from batcher.settings import Settings


class Service:
    """Batch mode, assembled and not yet started. Must be created on the event loop's thread; starts with the app's lifespan."""

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
        jitter = random.Random()  # It spreads retries: nothing that must be repeated or kept secret hangs on it.
        self.gate = Gate(settings.tiers, jitter=jitter)
        self.dispatcher = Dispatcher(dispatch, now=time.monotonic())
        self.driver = Driver(
            dispatcher=self.dispatcher,
            gate=self.gate,
            factory=factory,
            meters=self.meters,
            request_timeout_s=self.http.request_timeout_s,
        )
        keys = Keyring(settings.keys) if settings.keys else DevelopmentKeys(dispatch.tiers)
        self.door = Door(keys=keys, meters=self.meters, http=self.http)
        self.run = RunEndpoint(driver=self.driver, door=self.door)
        self.registry = create_registry(self.meters, self.dispatcher)

    def load(self) -> dict[str, object]:
        """What a router wants to know (DESIGN D6): work that waits, capacity, and the wait to expect by tier."""
        dispatcher = self.dispatcher
        statistics = dispatcher.statistics()
        capacity_rate = dispatcher.capacity_rate
        return {
            "ready": self.driver.is_ready,
            "live": statistics.num_live,
            "running": statistics.num_running,
            "waiting": {tier.name: tier.num_waiting for tier in statistics.tiers},
            "workers": statistics.workers,
            "service_time_s": statistics.service_time_s,
            "capacity_rate": capacity_rate,
            "wait_s": {tier.name: self._wait_s(tier.name) for tier in statistics.tiers},
        }

    def _wait_s(self, tier: str) -> float | None:
        """What a tenant that has nothing waiting would wait for a batch; None while no worker is ready."""
        wait_s = self.gate.estimate_wait_s(
            tier,
            num_ahead=self.dispatcher.num_ahead_of(tier, ""),
            capacity_rate=self.dispatcher.capacity_rate,
            now=time.monotonic(),
            batch_size=self.dispatcher.max_batch_size,
        )
        return wait_s if isfinite(wait_s) else None


def create_app(settings: Settings) -> Starlette:
    """The ASGI app; its `state.service` is the Service. Raises ConfigError."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.driver.start()
        try:
            yield
        finally:
            await service.driver.close()

    async def health(request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(request: Request) -> Response:
        is_ready = service.driver.is_ready
        return _json({"ready": is_ready}, status=200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(service.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def load(request: Request) -> Response:
        return _json(service.load())

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        path = request.url.path
        error: ServiceError = NotFound(f"there is no {path:.200}")
        if exc.status_code == 405:
            error = MethodNotAllowed(f"{request.method:.20} is not allowed on {path:.200}")
        return _refusal(service, error, dict(exc.headers or {}))

    async def on_exception(request: Request, exc: Exception) -> Response:
        log.error("handler_failed", exc_info=exc, path=f"{request.url.path:.200}")
        return _refusal(service, ServerFault("internal error"), {})

    app = Starlette(
        routes=[
            Route("/v1/run", RunAsgi(service.run, body_timeout_s=service.http.body_timeout_s), methods=["POST"]),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
            Route("/load", load),
        ],
        exception_handlers={HTTPException: on_http_exception, Exception: on_exception},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # A redirect would be made of the caller's Host header.
    app.state.service = service
    return app


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _refusal(service: Service, error: ServiceError, headers: dict[str, str]) -> Response:
    start, body = asgi_messages(service.door.refuse(error))
    response = Response(body["body"], status_code=start["status"], headers=headers)
    response.raw_headers.extend(header for header in start["headers"] if header[0] != b"content-length")
    return response
