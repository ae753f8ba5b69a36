"""The small routes: is it up, can it serve, what does it do, what can be asked; and what is said where there is no route."""

from collections.abc import Mapping

import msgspec
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batcher.errors import MethodNotAllowed, NotFound, ServerFault, ServiceError
from batcher.service import log
from batcher.service.asgi import asgi_messages
from batcher.service.front import PASSAGE, Passage
from batcher.service.models_asgi import ANTHROPIC_VERSION
from batcher.service.openapi import openapi_document
from batcher.service.records import route_of
from batcher.service.replying import error_reply, refuse
from batcher.service.service import Service
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.service.wire.dialect import Dialect
from batcher.service.wire.native import NATIVE
from batcher.service.wire.openai import OPENAI
from batcher.service.wire.replies import Reply, find_request_id


class Pages:
    """Of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._document = openapi_document(service.settings.mode, [service.answerer.model_id])
        self.routes = [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/load", self._load),
            Route("/openapi.json", self._openapi),
        ]

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        is_ready = self._service.is_ready
        return _json({"ready": is_ready}, status=200 if is_ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._service.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _load(self, request: Request) -> Response:
        return _json(self._service.load())

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    # What is said where something is not as it should be.

    def refuse(self, path: str, headers: Mapping[bytes, bytes], error: ServiceError, passage: Passage | None = None) -> Reply:
        """The reply, in the grammar of the path, to a request that no endpoint has seen; it is counted and logged. `passage` is
        its own, if it has begun one; one that is over has been counted."""
        passage = passage or self._service.front.open(route_of(path), headers, find_request_id(headers))
        tell = error_reply if passage.is_over else refuse
        return tell(passage, dialect_of(path, headers), error)

    async def on_http_exception(self, request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        path = request.url.path
        error: ServiceError = NotFound(f"there is no {path:.200}{_hint(path)}")
        if exc.status_code == 405:
            error = MethodNotAllowed(f"{request.method:.20} is not allowed on {path:.200}")
        return self._refusal(request, error, dict(exc.headers or {}))

    async def on_service_error(self, request: Request, exc: Exception) -> Response:
        assert isinstance(exc, ServiceError)
        return self._refusal(request, exc, {})

    async def on_exception(self, request: Request, exc: Exception) -> Response:
        log.error("handler_failed", exc_info=exc, path=f"{request.url.path:.200}")
        return self._refusal(request, ServerFault("internal error"), {})

    def _refusal(self, request: Request, error: ServiceError, more_headers: dict[str, str]) -> Response:
        reply = self.refuse(request.url.path, dict(request.headers.raw), error, request.scope.get(PASSAGE))
        start, body = asgi_messages(reply)
        response = Response(body["body"], status_code=start["status"], headers=more_headers)
        response.raw_headers.extend(header for header in start["headers"] if header[0] != b"content-length")
        return response


def _hint(path: str) -> str:
    """What to mend, where a client library was given the other vendor's kind of base_url."""
    if path.startswith("/v1/v1/"):
        return ": the base_url of Anthropic's client has no /v1, that of OpenAI's ends in one /v1"
    if path in ("/chat/completions", "/models"):
        return ": the base_url of OpenAI's client ends in /v1"
    return ": this is /v1/messages here, and the base_url of Anthropic's client has no /v1" if path == "/messages" else ""


_OPENAI_PATHS = ("/v1/chat/", "/v1/models", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""Whatever else clients of that grammar ask is told in it that it is not here."""


def dialect_of(path: str, headers: Mapping[bytes, bytes]) -> Dialect:
    """The grammar in which a request is answered."""
    if ANTHROPIC_VERSION in headers and path.startswith("/v1/m"):
        return ANTHROPIC
    return OPENAI if path.startswith(_OPENAI_PATHS) else NATIVE


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
