"""The lists of models, byte by byte."""

from batcher.service.wire.models import (
    ModelEntry,
    encode_anthropic_model,
    encode_anthropic_models,
    encode_openai_model,
    encode_openai_models,
)

MODEL = ModelEntry(id="m", created_at=1_700_000_000, context_len=8192)

ANTHROPIC = (
    b'{"type":"model","id":"m","display_name":"m","created_at":"2023-11-14T22:13:20Z","max_input_tokens":8192,'
    b'"max_tokens":8191,"lifecycle":"active"}'
)
OPENAI = b'{"object":"model","id":"m","created":1700000000,"owned_by":"batcher"}'


def test_anthropics_grammar() -> None:
    assert encode_anthropic_model(MODEL) == ANTHROPIC
    assert encode_anthropic_models([MODEL]) == (b'{"data":[' + ANTHROPIC + b'],"first_id":"m","last_id":"m","has_more":false}')
    assert encode_anthropic_models([]) == b'{"data":[],"first_id":null,"last_id":null,"has_more":false}'


def test_openais_grammar() -> None:
    assert encode_openai_model(MODEL) == OPENAI
    assert encode_openai_models([MODEL]) == b'{"object":"list","data":[' + OPENAI + b"]}"
