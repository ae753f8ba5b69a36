"""`GET /openapi.json`: what can be asked, how, and every status that may come back (OpenAPI 3.1).

The tests and `python -m benchmarks.conformance` ask whatever the document allows and forbids, and compare what comes back with
it: a status that is not written here is a fault of the document or of the service.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from batcher import __version__
from batcher.service.openapi_examples import examples_of
from batcher.service.openapi_schemas import build_schemas, reference

_Object = dict[str, Any]

_STATUSES = {
    400: "The request is not what it must be, or a safety rule does not allow its text; the message says which.",
    401: "No valid key.",
    403: "This key may not do this.",
    404: "There is no such model.",
    408: "The request did not arrive in time.",
    409: "The same Idempotency-Key is still being answered.",
    413: "The request is too large.",
    422: "The Idempotency-Key was used with another body.",
    429: "The key's or its tier's limit is used up. Retry-After says when there is room.",
    500: "An error of the service's.",
    504: "The deadline passed before there was an answer.",
    529: "The service has no room within the wait budget, or is shutting down. Retry-After says when to come back.",
}

_ANY_ROUTE = (400, 401, 408, 413, 500, 529)
"""Also what a connection itself may be refused with."""
_ANSWERS = (*_ANY_ROUTE, 409, 422, 429, 504)

_WITH_RETRY_AFTER = (429, 529)
_WITH_SHOULD_RETRY = (408, 409, 422, 429, 500, 504, 529)


def openapi_document(mode: str, model_ids: Sequence[str]) -> bytes:
    """The document, as JSON, of a service in this mode (`batch` or `continuous`) that answers by these names of models."""
    run = _run_paths() if mode == "batch" else {}
    paths = {**run, **_conversation_paths(), **_model_paths(model_ids[0]), **_service_paths()}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "batcher",
            "version": __version__,
            "description": "Answers of a language model, or of any function over batches of texts. "
            "Three grammars: this service's own, Anthropic's messages and OpenAI's chat completions.",
        },
        "security": [{"apiKey": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {**build_schemas(model_ids), **_SERVICE_SCHEMAS},
            "headers": _HEADERS,
            "parameters": _PARAMETERS,
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }
    for name, example in examples_of(model_ids).items():
        document["components"]["schemas"][name]["examples"] = [example]  # type: ignore[index]
    return msgspec.json.encode(document)


_EVENTS = (
    "message_start",
    "content_delta",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
)

_SERVICE_SCHEMAS: _Object = {
    "Health": {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]},
    "Ready": {"type": "object", "properties": {"ready": {"type": "boolean"}}, "required": ["ready"]},
    "Load": {"type": "object", "description": "What a router wants to know; its fields depend on the mode."},
}

_HEADERS: _Object = {
    "retry-after": {
        "description": "Whole seconds until it is worth asking again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1, "maximum": 60},
    },
    "x-should-retry": {
        "description": "Whether the same request may succeed later.",
        "required": True,
        "schema": {"enum": ["true", "false"]},
    },
    "x-request-id": {
        "description": "The caller's own, or one of the service's; logs know the request by it.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "limits": {
        "description": "`x-ratelimit-limit-requests`, `-remaining-` and `-reset-`, and the same of tokens, tell the key's "
        "limits where it has some; Anthropic's grammar spells them `anthropic-ratelimit-requests-limit`.",
        "schema": {"type": "integer", "minimum": 0},
    },
}

_PARAMETERS: _Object = {
    "request-id": {
        "name": "x-request-id",
        "in": "header",
        "description": "Names the request, if it is 1 to 128 of A-Za-z0-9._-; anything else is ignored.",
        "schema": {"type": "string"},
    },
    "idempotency-key": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "1 to 255 printable ASCII characters. The same request with the same key is answered once and billed "
        "once, for a day. With `stream` it is not looked at.",
        "schema": {"type": "string"},
    },
    "anthropic-version": {
        "name": "anthropic-version",
        "in": "header",
        "description": "Asks for Anthropic's grammar, in whatever version.",
        "example": "2023-06-01",
        "schema": {"type": "string"},
    },
}


def _parameters(*names: str) -> list[_Object]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def _json(*schemas: str) -> _Object:
    """The content of a body that is one of these."""
    each = [reference(schema) for schema in schemas]
    return {"application/json": {"schema": each[0] if len(each) == 1 else {"anyOf": each}}}


def _ok(description: str, *schemas: str, events: _Object | None = None) -> _Object:
    content = _json(*schemas)
    if events is not None:
        content["text/event-stream"] = {"schema": events}
    return {"description": description, "headers": _header_references("x-request-id"), "content": content}


def _events(description: str, *names: str) -> _Object:
    """Each event of a stream."""
    properties = {"event": {"enum": names}, "data": {"type": "string", "description": "JSON."}}
    return {"type": "object", "description": description, "properties": properties, "required": ["event", "data"]}


def _errors(statuses: Iterable[int], *schemas: str) -> _Object:
    return {str(status): _error(status, schemas) for status in sorted(statuses)}


def _error(status: int, schemas: tuple[str, ...]) -> _Object:
    names = ["x-request-id"]
    if status in _WITH_RETRY_AFTER:
        names.append("retry-after")
    if status in _WITH_SHOULD_RETRY:
        names.append("x-should-retry")
    headers = _header_references(*names)
    if status == 429:
        headers["x-ratelimit-limit-requests"] = {"$ref": "#/components/headers/limits"}
    return {"description": _STATUSES[status], "headers": headers, "content": _json(*schemas)}


def _header_references(*names: str) -> _Object:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _run_paths() -> _Object:
    return {
        "/v1/run": {
            "post": {
                "operationId": "run",
                "summary": "One input of run_batch, one output.",
                "parameters": _parameters("request-id", "idempotency-key"),
                "requestBody": {"required": True, "content": _json("RunRequest")},
                "responses": {"200": _ok("The output.", "RunAnswer"), **_errors(_ANSWERS, "Error")},
            }
        }
    }


def _conversation_paths() -> _Object:
    anthropic_or_native = ("Error", "AnthropicError")
    messages = {
        "operationId": "createMessage",
        "summary": "One answer to a conversation, in this service's grammar, or in Anthropic's.",
        "description": "With an `anthropic-version` header the body is an AnthropicRequest and all that comes back is in "
        "Anthropic's grammar; without, the body is a MessageRequest. The 200 of a stream is held back until there is text, so "
        "that a refusal has its own status; what goes wrong later is an `error` event.",
        "parameters": _parameters("request-id", "idempotency-key", "anthropic-version"),
        "requestBody": {"required": True, "content": _json("MessageRequest", "AnthropicRequest")},
        "responses": {
            "200": _ok(
                "The answer.",
                "MessageAnswer",
                "AnthropicMessage",
                events=_events(
                    "message_start {id, model}, content_delta {text} (each), message_stop {stop_reason, usage}; ping and error "
                    "at any time. In Anthropic's grammar: message_start, content_block_start, content_block_delta (each), "
                    "content_block_stop, message_delta {stop_reason, usage}, message_stop.",
                    *_EVENTS,
                ),
            ),
            **_errors((*_ANSWERS, 404), *anthropic_or_native),
        },
    }
    count = {
        "operationId": "countTokens",
        "summary": "How many tokens a prompt has.",
        "parameters": _parameters("request-id"),
        "requestBody": {"required": True, "content": _json("AnthropicCountRequest")},
        "responses": {
            "200": _ok("The count.", "AnthropicTokenCount"),
            **_errors((*_ANY_ROUTE, 404, 429), *anthropic_or_native),
        },
    }
    chat = {
        "operationId": "createChatCompletion",
        "summary": "One answer to a conversation, in OpenAI's grammar.",
        "parameters": _parameters("request-id", "idempotency-key"),
        "requestBody": {"required": True, "content": _json("ChatCompletionRequest")},
        "responses": {
            "200": _ok(
                "The answer.",
                "ChatCompletion",
                events=_events(
                    "A ChatCompletionChunk each, then [DONE]; an OpenAIError if something goes wrong. They have no names of "
                    "their own.",
                    "message",
                ),
            ),
            **_errors((*_ANSWERS, 404), "OpenAIError", "Error"),
        },
    }
    return {
        "/v1/messages": {"post": messages},
        "/v1/messages/count_tokens": {"post": count},
        "/v1/chat/completions": {"post": chat},
    }


def _model_paths(example: str) -> _Object:
    errors = ("OpenAIError", "AnthropicError", "Error")
    schema = {"type": "string", "minLength": 1}
    model_id = {"name": "model_id", "in": "path", "required": True, "schema": schema, "example": example}
    every = {
        "operationId": "listModels",
        "summary": "The models that can be asked.",
        "parameters": _parameters("anthropic-version"),
        "responses": {"200": _ok("All of them.", "OpenAIModels", "AnthropicModels"), **_errors(_ANY_ROUTE, *errors)},
    }
    one = {
        "operationId": "getModel",
        "summary": "One model.",
        "parameters": [model_id, *_parameters("anthropic-version")],
        "responses": {"200": _ok("It.", "OpenAIModel", "AnthropicModel"), **_errors((*_ANY_ROUTE, 404), *errors)},
    }
    return {"/v1/models": {"get": every}, "/v1/models/{model_id}": {"get": one}}


def _service_paths() -> _Object:
    refused_at_the_door = (400, 408, 413, 500, 529)

    def page(name: str, summary: str, content: _Object, *, is_open: bool) -> _Object:
        statuses = refused_at_the_door if is_open else (*_ANY_ROUTE, 403)
        described = {
            "operationId": name,
            "summary": summary,
            "responses": {"200": {"description": summary, "content": content}, **_errors(statuses, "Error")},
        }
        return {"get": {**described, "security": []} if is_open else described}

    ready = page("ready", "Whether it can serve now.", _json("Ready"), is_open=True)
    ready["get"]["responses"]["503"] = {"description": "Not now.", "content": _json("Ready")}
    text = {"text/plain": {"schema": {"type": "string"}}}
    document = {"application/json": {"schema": {"type": "object"}}}
    return {
        "/health": page("health", "Whether the process lives.", _json("Health"), is_open=True),
        "/ready": ready,
        "/openapi.json": page("openapi", "This document.", document, is_open=True),
        "/metrics": page("metrics", "Prometheus' text; the operator's.", text, is_open=False),
        "/load": page("load", "For routers; the operator's.", _json("Load"), is_open=False),
    }
