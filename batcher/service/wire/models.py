"""The documents of `GET /v1/models` and `GET /v1/models/{id}`, in the grammars of both vendors whose clients ask for them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec


class ModelEntry(msgspec.Struct, frozen=True):
    """A model that callers may name."""

    id: str
    created_at: int
    """Seconds since 1970: since when it is served here."""
    context_len: int | None = None
    """Most tokens of prompt and answer together; None where the model has no such bound."""


class _AnthropicModel(msgspec.Struct, tag="model"):
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: Literal["active"] = "active"


class _AnthropicModels(msgspec.Struct):
    data: list[_AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class _OpenAIModel(msgspec.Struct, tag_field="object", tag="model"):
    id: str
    created: int
    owned_by: str = "batcher"


class _OpenAIModels(msgspec.Struct, tag_field="object", tag="list"):
    data: list[_OpenAIModel]


_encoder = msgspec.json.Encoder()


def encode_anthropic_model(model: ModelEntry) -> bytes:
    return _encoder.encode(_anthropic(model))


def encode_anthropic_models(models: Sequence[ModelEntry]) -> bytes:
    """All of them on one page."""
    ids = [model.id for model in models]
    return _encoder.encode(
        _AnthropicModels([_anthropic(model) for model in models], ids[0] if ids else None, ids[-1] if ids else None)
    )


def encode_openai_model(model: ModelEntry) -> bytes:
    return _encoder.encode(_openai(model))


def encode_openai_models(models: Sequence[ModelEntry]) -> bytes:
    return _encoder.encode(_OpenAIModels([_openai(model) for model in models]))


def _anthropic(model: ModelEntry) -> _AnthropicModel:
    created_at = datetime.fromtimestamp(model.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # An answer has a prompt, which takes a token at least.
    max_tokens = None if model.context_len is None else model.context_len - 1
    return _AnthropicModel(model.id, model.id, created_at, model.context_len, max_tokens)


def _openai(model: ModelEntry) -> _OpenAIModel:
    return _OpenAIModel(model.id, model.created_at)


DOCUMENTED: dict[str, type] = {
    "AnthropicModel": _AnthropicModel,
    "AnthropicModels": _AnthropicModels,
    "OpenAIModel": _OpenAIModel,
    "OpenAIModels": _OpenAIModels,
}
"""For the OpenAPI document, by the names that they have there."""
