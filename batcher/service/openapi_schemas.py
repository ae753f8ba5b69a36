"""The schemas of `GET /openapi.json`, made of the very types that decode and encode bodies: a document written by hand would
soon say something else than the service does.

What a type cannot say (that a text must not be empty, which models there are) is put in here.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from batcher.service.wire import anthropic, anthropic_body, models, native, openai, openai_body
from batcher.service.wire.run import RunAnswer, RunBody

_REF = "#/components/schemas/"

_DOCUMENTED: dict[str, type] = {
    "RunRequest": RunBody,
    "RunAnswer": RunAnswer,
    **native.DOCUMENTED,
    **anthropic.DOCUMENTED,
    **anthropic_body.DOCUMENTED,
    **openai.DOCUMENTED,
    **openai_body.DOCUMENTED,
    **models.DOCUMENTED,
}

_WORDS = {
    "max_tokens": "The most tokens that the answer may have. Capacity is reserved with it.",
    "max_completion_tokens": "The most tokens that the answer may have. Capacity is reserved with it.",
    "temperature": "0 takes the likeliest token each time.",
    "top_p": "Draw among the fewest likeliest tokens that hold this much probability.",
    "top_k": "Draw among this many likeliest tokens; 0 is all.",
    "stop_sequences": "The answer ends before the first of these that appears in it.",
    "stop": "The answer ends before the first of these that appears in it.",
    "seed": "With the same seed, the same request has the same answer.",
    "stream": "Server-sent events, as the tokens are made.",
    "retry_after_s": "Seconds, the same as the Retry-After header.",
}
"""Of fields, by their name, wherever they are."""


def reference(name: str) -> dict[str, str]:
    return {"$ref": _REF + name}


def build_schemas(model_ids: Sequence[str]) -> dict[str, Any]:
    """All components, by their names. References in them are by these names, too."""
    roots, components = msgspec.json.schema_components(_DOCUMENTED.values(), ref_template=_REF + "{name}")
    names = {root["$ref"].removeprefix(_REF): name for root, name in zip(roots, _DOCUMENTED, strict=True)}
    for name in components:
        if name not in names:
            names[name] = _plain(name, taken=names.values())
    schemas = {names[name]: schema for name, schema in components.items()}
    for name, schema in schemas.items():
        schema["title"] = name
        for part in _parts(schema):
            if isinstance(reference_ := part.get("$ref"), str):
                part["$ref"] = _REF + names[reference_.removeprefix(_REF)]
        for field, described in schema.get("properties", {}).items():
            _narrow(name, field, described, model_ids)
    for name in _within(schemas, [name for name in schemas if name.endswith("Request")]):
        _free_from_tag(schemas[name])
    return schemas


def _within(schemas: dict[str, Any], roots: list[str]) -> set[str]:
    """The names of these schemas, and of all that they refer to."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [part["$ref"].removeprefix(_REF) for part in _parts(schemas[name]) if "$ref" in part]
    return seen


def _free_from_tag(schema: dict[str, Any]) -> None:
    """A decoder that can only expect one type does not ask for its tag, `"type": "text"`; it refuses another one."""
    required = schema.get("required", [])
    if len(schema.get("properties", {}).get("type", {}).get("enum", [])) == 1 and "type" in required:
        required.remove("type")


def _plain(name: str, *, taken: Collection[str]) -> str:
    """`batcher.service.wire.native._Turn` -> `native.Turn`; with a number, where `_Turn` and `Turn` are two types."""
    plain = ".".join(part.lstrip("_") for part in name.split(".")[-2:])
    numbered = (f"{plain}{number}" for number in count(2))
    return plain if plain not in taken else next(free for free in numbered if free not in taken)


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """Every object in it, itself first."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _parts(value)


def _narrow(schema: str, field: str, described: dict[str, Any], model_ids: Sequence[str]) -> None:
    """What the code behind the decoder asks of a field."""
    if field in _WORDS:
        described["description"] = _WORDS[field]
    if field == "model" and schema.endswith("Request"):
        described["enum"] = list(model_ids)
    if field == "content" and schema.endswith(".Turn"):
        for kind in described["anyOf"]:
            kind["minLength" if kind["type"] == "string" else "minItems"] = 1
        described["description"] = "Text, or text blocks, which are joined with nothing between them; not empty."
