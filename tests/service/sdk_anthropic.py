"""The official `anthropic` client as the tests use it: each call in either way, synchronous or not."""

from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent

from tests.service.sdk import KEY, MODEL, in_thread


def asked(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": content}], **fields}


def settings(port: int, **options: Any) -> dict[str, Any]:
    return {"base_url": f"http://127.0.0.1:{port}", "api_key": KEY, "max_retries": 0, **options}


async def create(way: str, port: int, options: dict[str, Any] | None = None, **fields: Any) -> Message:
    def ask() -> Message:
        with Anthropic(**settings(port, **(options or {}))) as client:
            message: Message = client.messages.create(**asked(**fields))
            return message

    if way == "sync":
        return await in_thread(ask)
    async with AsyncAnthropic(**settings(port, **(options or {}))) as client:
        message: Message = await client.messages.create(**asked(**fields))
        return message


async def events_of(way: str, port: int, told: list[RawMessageStreamEvent], **fields: Any) -> None:
    """Appends the events of a stream to `told`; raises what it raises."""

    def ask() -> None:
        with Anthropic(**settings(port)) as client, client.messages.create(**asked(**fields), stream=True) as events:
            told.extend(events)

    if way == "sync":
        await in_thread(ask)
        return
    async with (
        AsyncAnthropic(**settings(port)) as client,
        await client.messages.create(**asked(**fields), stream=True) as events,
    ):
        async for event in events:
            told.append(event)  # noqa: PERF401 - what came before an error is kept


async def accumulated(way: str, port: int, **fields: Any) -> tuple[str, Message]:
    """What the client's own helper makes of a stream: the text as it came, and the whole message."""

    def ask() -> tuple[str, Message]:
        with Anthropic(**settings(port)) as client, client.messages.stream(**asked(**fields)) as helper:
            return "".join(helper.text_stream), helper.get_final_message()

    if way == "sync":
        return await in_thread(ask)
    async with AsyncAnthropic(**settings(port)) as client, client.messages.stream(**asked(**fields)) as helper:
        return "".join([text async for text in helper.text_stream]), await helper.get_final_message()


def text_of(message: Message) -> str:
    assert message.type == "message"
    assert message.role == "assistant"
    assert message.model == MODEL
    return "".join(block.text for block in message.content if block.type == "text")
