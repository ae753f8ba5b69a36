"""Bodies that people may copy out of the OpenAPI document, by the names of their schemas. Tests send every one of them."""

from collections.abc import Sequence
from typing import Any


def examples_of(model_ids: Sequence[str]) -> dict[str, Any]:
    model = model_ids[0]
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    return {
        "RunRequest": {"input": "a text"},
        "RunAnswer": {
            "id": "req_0a1b2c3d4e_1",
            "output": "what run_batch made of it",
            "usage": {"input_characters": 6, "output_characters": 25},
        },
        "MessageRequest": {"model": model, "messages": question, "max_tokens": 100, "temperature": 0.7},
        "MessageAnswer": {
            "id": "req_0a1b2c3d4e_2",
            "content": "Because ...",
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 14, "output_tokens": 60},
        },
        "AnthropicRequest": {"model": model, "max_tokens": 100, "system": "Be brief.", "messages": question},
        "AnthropicCountRequest": {"model": model, "messages": question},
        "ChatCompletionRequest": {"model": model, "messages": question, "max_completion_tokens": 100},
        "Error": {
            "type": "error",
            "error": {"type": "rate_limit_error", "message": "...", "retry_after_s": 7},
            "request_id": "req_0a1b2c3d4e_3",
        },
    }
