"""The routes that tell of models and count tokens: quick answers that cost no GPU's time and are neither limited nor billed."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batcher.config import HttpConfig
from batcher.errors import ModelNotFound, ServiceError
from batcher.service.asgi import Disconnected, read_body, send_reply, while_connected
from batcher.service.conversation import Answerer, require_model
from batcher.service.door import Door
from batcher.service.guard import CALLER
from batcher.service.replying import request_id_headers
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.service.wire.models import (
    ModelEntry,
    encode_anthropic_model,
    encode_anthropic_models,
    encode_openai_model,
    encode_openai_models,
)
from batcher.service.wire.openai import OPENAI
from batcher.service.wire.replies import Reply, find_request_id

ANTHROPIC_VERSION = b"anthropic-version"
"""The header that asks for that vendor's grammar."""


class ModelRoutes:
    """`GET /v1/models` and `GET /v1/models/{model_id}`, in the grammar of whoever asks."""

    def __init__(self, model: ModelEntry, *, door: Door) -> None:
        self._model = model
        self._door = door

    async def list(self, request: Request) -> Response:
        encode = encode_anthropic_models if _is_anthropic(request) else encode_openai_models
        return self._respond(request, encode([self._model]))

    async def get(self, request: Request) -> Response:
        """Raises ModelNotFound."""
        if request.path_params["model_id"] != self._model.id:
            raise ModelNotFound(f"there is no such model here: this server has {self._model.id!r}")
        encode = encode_anthropic_model if _is_anthropic(request) else encode_openai_model
        return self._respond(request, encode(self._model))

    def _respond(self, request: Request, content: bytes) -> Response:
        request_id = find_request_id(dict(request.headers.raw)) or self._door.next_id()
        response = Response(content, headers={"x-request-id": request_id}, media_type="application/json")
        response.raw_headers += request_id_headers(request_id, ANTHROPIC if _is_anthropic(request) else OPENAI)
        return response


class CountTokensAsgi:
    """`POST /v1/messages/count_tokens`. Who may ask, the Guard around all routes has said."""

    def __init__(self, *, door: Door, answerer: Answerer, http: HttpConfig) -> None:
        self._door = door
        self._answerer = answerer
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        request_id = find_request_id(headers) or self._door.next_id()
        own_headers = request_id_headers(request_id, ANTHROPIC)
        try:
            with self._door.bodies.open(scope[CALLER].tenant) as pending:
                body = await read_body(receive, door=self._door, pending=pending, timeout_s=self._http.body_timeout_s)
                conversation = ANTHROPIC.decode_count(body)
                require_model(self._answerer, conversation.model)
                num_tokens = await while_connected(receive, self._answerer.count(conversation))
        except Disconnected:
            return
        except ServiceError as error:
            reply = ANTHROPIC.error_reply(error, request_id)
            reply.headers.extend(own_headers)
            await send_reply(send, reply)
            return
        await send_reply(send, Reply(200, ANTHROPIC.encode_count(num_tokens), request_id, own_headers))


def _is_anthropic(request: Request) -> bool:
    return ANTHROPIC_VERSION.decode() in request.headers
