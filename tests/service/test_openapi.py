"""The OpenAPI document is whole, and speaks of the routes, statuses and bodies that there are."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route

from batcher import errors
from batcher.config import Mode
from batcher.errors import MethodNotAllowed, PermissionDenied, ServiceError
from batcher.service.app import create_app
from batcher.service.openapi import openapi_document
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.service.wire.dialect import AnswerHead, Dialect
from batcher.service.wire.native import NATIVE
from batcher.service.wire.openai import OPENAI
from batcher.service.wire.run import decode_run, encode_run
from batcher.settings import Settings
from batcher.types import FinishReason, Usage
from tests.service.serving import quick, simulated

MODES = pytest.mark.parametrize("settings", [quick(), simulated()], ids=["batch", "continuous"])
HEAD = AnswerHead(id="req_1", model="simulated", created_at=1, num_input_tokens=3)


def document_of(mode: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(openapi_document(mode, ["simulated"]))
    return document


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def is_valid(document: dict[str, Any], schema: str, value: object) -> bool:
    root = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    return jsonschema_rs.validator_for(root).is_valid(value)


@MODES
def test_it_has_every_route_of_the_app_and_no_other(settings: Settings) -> None:
    described = {
        (path.removesuffix("}"), method.upper())
        for path, operations in document_of(settings.mode)["paths"].items()
        for method in operations
    }
    served = {
        (route.path.removesuffix(":path}").removesuffix("}"), method)
        for route in create_app(settings).routes
        if isinstance(route, Route) and route.methods is not None
        for method in route.methods - {"HEAD"}
    }
    # There is a route in continuous mode only to say that batches are run in the other one.
    assert described == served - ({("/v1/run", "POST")} if settings.mode is Mode.CONTINUOUS else set())


@pytest.mark.parametrize("mode", list(Mode))
def test_every_reference_leads_somewhere(mode: Mode) -> None:
    document = document_of(mode)
    for reference in references(document):
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert isinstance(found, dict)


def test_every_error_that_there_is_may_come_back_from_the_routes_that_answer() -> None:
    tree = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, ServiceError)]
    statuses = {str(error.status) for error in tree if error not in (ServiceError, MethodNotAllowed, PermissionDenied)}
    paths = document_of("batch")["paths"]
    for path in ("/v1/messages", "/v1/chat/completions"):
        assert set(paths[path]["post"]["responses"]) == {"200", *statuses}
    assert set(paths["/v1/run"]["post"]["responses"]) == {"200", *statuses} - {"404"}


def test_its_examples_are_what_its_schemas_ask_for_and_are_understood() -> None:
    document = document_of("batch")
    schemas = document["components"]["schemas"]
    examples = {name: schema["examples"][0] for name, schema in schemas.items() if "examples" in schema}
    for name, example in examples.items():
        assert is_valid(document, name, example), name
    for name, dialect in (("MessageRequest", NATIVE), ("AnthropicRequest", ANTHROPIC), ("ChatCompletionRequest", OPENAI)):
        assert dialect.decode(json.dumps(examples.pop(name)).encode()).messages
    ANTHROPIC.decode_count(json.dumps(examples.pop("AnthropicCountRequest")).encode())
    decode_run(json.dumps(examples.pop("RunRequest")).encode())
    assert not [name for name in examples if name.endswith("Request")]


@pytest.mark.parametrize(
    ("schema", "dialect"), [("MessageAnswer", NATIVE), ("AnthropicMessage", ANTHROPIC), ("ChatCompletion", OPENAI)]
)
def test_answers_and_errors_are_as_it_says(schema: str, dialect: Dialect) -> None:
    document = document_of("batch")
    answer = json.loads(dialect.encode_answer(HEAD, "text", FinishReason.END_TURN, None, Usage(3, 4)))
    assert is_valid(document, schema, answer)
    assert not is_valid(document, schema, {key: value for key, value in answer.items() if key != "id"})
    error_schema = {NATIVE: "Error", ANTHROPIC: "AnthropicError", OPENAI: "OpenAIError"}[dialect]
    for retry_after_s in (None, 7):
        error = dialect.error_reply(errors.Overloaded("full", retry_after_s=retry_after_s), "req_1")
        assert is_valid(document, error_schema, json.loads(error.body))
    assert is_valid(document, "RunAnswer", json.loads(encode_run("req_1", "in", "out")))


def test_events_are_named_as_it_says() -> None:
    document = document_of("batch")
    responses = document["paths"]["/v1/messages"]["post"]["responses"]
    described = set(responses["200"]["content"]["text/event-stream"]["schema"]["properties"]["event"]["enum"])
    body = b'{"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "stream": true}'
    named = set()
    for dialect in (NATIVE, ANTHROPIC):
        writer = dialect.open_stream(HEAD, dialect.decode(body))
        stream = writer.start() + writer.delta("text") + writer.ping()
        stream += writer.stop(FinishReason.END_TURN, None, Usage(3, 4)) + writer.error(errors.ServerFault("broken"))
        named |= {line.removeprefix(b"event: ").decode() for line in stream.splitlines() if line.startswith(b"event: ")}
    assert named == described


def test_bodies_are_bounded_as_they_are_decoded() -> None:
    document = document_of("batch")
    body = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    assert is_valid(document, "MessageRequest", body)
    wrongs: list[dict[str, Any]] = [{"max_tokens": 0}, {"temperature": 2.5}, {"messages": []}, {"model": "other"}, {"more": 1}]
    for wrong in wrongs:
        assert not is_valid(document, "MessageRequest", body | wrong), wrong
    assert not is_valid(document, "MessageRequest", body | {"messages": [{"role": "user", "content": ""}]})
