"""The official `openai` client as the tests use it: each call in either way, synchronous or not."""

from typing import Any

from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.service.sdk import KEY, MODEL, in_thread


def asked(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def settings(port: int, **options: Any) -> dict[str, Any]:
    return {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": KEY, "max_retries": 0, **options}


async def create(way: str, port: int, options: dict[str, Any] | None = None, **fields: Any) -> ChatCompletion:
    def ask() -> ChatCompletion:
        with OpenAI(**settings(port, **(options or {}))) as client:
            completion: ChatCompletion = client.chat.completions.create(**asked(**fields))
            return completion

    if way == "sync":
        return await in_thread(ask)
    async with AsyncOpenAI(**settings(port, **(options or {}))) as client:
        completion: ChatCompletion = await client.chat.completions.create(**asked(**fields))
        return completion


async def chunks_of(way: str, port: int, told: list[ChatCompletionChunk], **fields: Any) -> None:
    """Appends the chunks of a stream to `told`; raises what it raises."""

    def ask() -> None:
        with OpenAI(**settings(port)) as client, client.chat.completions.create(**asked(**fields), stream=True) as chunks:
            told.extend(chunks)

    if way == "sync":
        await in_thread(ask)
        return
    async with (
        AsyncOpenAI(**settings(port)) as client,
        await client.chat.completions.create(**asked(**fields), stream=True) as chunks,
    ):
        async for chunk in chunks:
            told.append(chunk)  # noqa: PERF401 - what came before an error is kept


def text_of(completion: ChatCompletion) -> str | None:
    assert completion.object == "chat.completion"
    assert completion.model == MODEL
    (choice,) = completion.choices
    assert (choice.index, choice.message.role) == (0, "assistant")
    return choice.message.content
