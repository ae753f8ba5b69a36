"""The ASGI app of either mode: settings in, routes around a service out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batcher.config import Mode
from batcher.errors import MethodNotAllowed, NotFound, ServerFault, ServiceError
from batcher.service import log
from batcher.service.asgi import asgi_messages
from batcher.service.messages import MessagesAsgi
from batcher.service.run_asgi import RunAsgi
from batcher.service.service import Service
from batcher.settings import Settings


def create_service(settings: Settings) -> Service:
    """Each mode is imported when it is asked for. Raises ConfigError for what cannot be."""
    if settings.mode is Mode.CONTINUOUS:
        from batcher.service.continuous_service import ContinuousService

        return ContinuousService(settings)
    from batcher.service.batch_service import BatchService

    return BatchService(settings)


def create_app(settings: Settings) -> Starlette:
    """The ASGI app; its `state.service` is the Service, which starts with the app's lifespan. Raises ConfigError."""
    service = create_service(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.close()

    async def health(request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(request: Request) -> Response:
        is_ready = service.is_ready
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

    run = RunAsgi(service.run, body_timeout_s=service.http.body_timeout_s)
    messages = MessagesAsgi(door=service.door, answerer=service.answerer, http=service.http)
    app = Starlette(
        routes=[
            Route("/v1/run", run, methods=["POST"]),
            Route("/v1/messages", messages, methods=["POST"]),
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
