"""The ASGI app of either mode: settings in, routes around a service out."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Scope

from batcher.config import Mode, Switch
from batcher.errors import ServiceError
from batcher.service import records
from batcher.service.front import PASSAGE
from batcher.service.guard import Guard
from batcher.service.messages import ConversationsAsgi
from batcher.service.models_asgi import CountTokensAsgi, ModelRoutes
from batcher.service.pages import Pages, dialect_of
from batcher.service.run_asgi import RunAsgi
from batcher.service.service import Service
from batcher.service.small_bodies import SmallBodies
from batcher.service.wire.models import ModelEntry
from batcher.service.wire.replies import Reply
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
    pages = Pages(service)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    def refuse(scope: Scope, headers: Mapping[bytes, bytes], error: ServiceError) -> Reply:
        return pages.refuse(scope["path"], headers, error, scope.get(PASSAGE))

    app = Starlette(
        routes=[*_answering_routes(service), *pages.routes],
        middleware=[
            Middleware(SmallBodies, body_timeout_s=service.http.body_timeout_s),
            Middleware(Guard, door=service.front.door, refuse=refuse, has_open_metrics=settings.open_metrics is Switch.ON),
        ],
        exception_handlers={
            HTTPException: pages.on_http_exception,
            ServiceError: pages.on_service_error,
            Exception: pages.on_exception,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # A redirect would be made of the caller's Host header.
    app.state.service = service
    return app


def _answering_routes(service: Service) -> list[Route]:
    front, answerer, http = service.front, service.answerer, service.http
    model = ModelEntry(answerer.model_id, created_at=int(front.wall_clock()), context_len=answerer.context_len)
    models = ModelRoutes(model, door=front.door)

    def conversations(route: records.Route) -> ConversationsAsgi:
        return ConversationsAsgi(
            front=front, answerer=answerer, http=http, route=route, choose=lambda headers: dialect_of(route, headers)
        )

    return [
        Route("/v1/run", RunAsgi(service.run, body_timeout_s=http.body_timeout_s), methods=["POST"]),
        Route("/v1/messages", conversations(records.Route.MESSAGES), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokensAsgi(door=front.door, answerer=answerer, http=http), methods=["POST"]),
        Route("/v1/chat/completions", conversations(records.Route.CHAT), methods=["POST"]),
        Route("/v1/models", models.list),
        Route("/v1/models/{model_id:path}", models.get),
    ]
