"""The official `anthropic` client against this server, in every mode: answers, streams, models."""

from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, NotFoundError
from anthropic.types import RawMessageStreamEvent

from tests.service.modes import MODES, OVERHEAD, served
from tests.service.sdk import MODEL, WAYS, in_thread
from tests.service.sdk_anthropic import accumulated, asked, create, events_of, settings, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("way", WAYS)]

each_mode = pytest.mark.parametrize("mode", MODES)

# Answers


@each_mode
async def test_an_answer_is_a_message(way: str, mode: str) -> None:
    async with served(mode) as server:
        message = await create(way, server.port, content="hé\U0001f600\n")
    num_bytes = len("hé\U0001f600\n".encode())
    assert text_of(message) == "hé\U0001f600\n"
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens == num_bytes + OVERHEAD[mode]
    assert message.usage.output_tokens == num_bytes + (mode != "text")
    assert message._request_id
    assert message.id == f"msg_{message._request_id}"


@each_mode
async def test_a_stream_has_the_published_events_in_order(way: str, mode: str) -> None:
    told: list[RawMessageStreamEvent] = []
    async with served(mode) as server:
        await events_of(way, server.port, told)
    kinds = [event.type for event in told]
    num_deltas = kinds.count("content_block_delta")
    assert num_deltas == (5 if mode == "continuous" else 1)
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * num_deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, end = told[0], told[-2]
    assert start.type == "message_start"
    assert (start.message.stop_reason, start.message.content, start.message.usage.output_tokens) == (None, [], 0)
    assert start.message.usage.input_tokens == 5 + OVERHEAD[mode]
    assert end.type == "message_delta"
    assert (end.delta.stop_reason, end.usage.output_tokens) == ("end_turn", 5 + (mode != "text"))


@each_mode
@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({}, "hello", "end_turn", None),
        ({"max_tokens": 2}, "he", "max_tokens", None),
        ({"stop_sequences": ["zz", "lo"]}, "hel", "stop_sequence", "lo"),
        ({"stop_sequences": ["he"]}, "", "stop_sequence", "he"),
    ],
    ids=["end", "length", "stop", "at once"],
)
async def test_the_clients_helper_makes_the_same_message_of_a_stream(
    way: str, mode: str, fields: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    async with served(mode) as server:
        message = await create(way, server.port, **fields)
        streamed, final = await accumulated(way, server.port, **fields)
    for told in (message, final):
        assert (text_of(told), told.stop_reason, told.stop_sequence) == (text, reason, sequence)
    assert streamed == text
    assert final.usage == message.usage
    assert len(final.content) == len(message.content) == bool(text)


@each_mode
async def test_an_answer_can_be_given_back_as_a_turn_beside_every_setting(way: str, mode: str) -> None:
    async with served(mode) as server:
        first = await create(way, server.port)
        fields = asked(
            messages=[
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [{"type": "text", "text": "again", "cache_control": {"type": "ephemeral"}}]},
            ],
            system="be brief",
            # The client's newest release has dropped these from its signature, and its older ones send them.
            extra_body={"temperature": 0.0, "top_p": 0.5, "top_k": 3},
            metadata={"user_id": "u"},
            service_tier="auto",
            stop_sequences=["zz"],
        )
        assert text_of(await create(way, server.port, **fields)) == "again"


# Beside answers


@each_mode
async def test_tokens_are_counted_as_they_are_billed(way: str, mode: str) -> None:
    async with served(mode) as server:
        fields = {"model": MODEL, "system": "s", "messages": [{"role": "user", "content": "hello"}]}

        def count() -> int:
            with Anthropic(**settings(server.port)) as client:
                return client.messages.count_tokens(**fields).input_tokens  # type: ignore[arg-type]

        if way == "sync":
            counted = await in_thread(count)
        else:
            async with AsyncAnthropic(**settings(server.port)) as client:
                counted = (await client.messages.count_tokens(**fields)).input_tokens  # type: ignore[arg-type]
        assert counted == (await create(way, server.port, system="s")).usage.input_tokens


@each_mode
async def test_the_model_is_listed(way: str, mode: str) -> None:
    async with served(mode) as server:

        def ask() -> tuple[list[str], str]:
            with Anthropic(**settings(server.port)) as client:
                return [model.id for model in client.models.list()], client.models.retrieve(MODEL).id

        if way == "sync":
            listed = await in_thread(ask)
        else:
            async with AsyncAnthropic(**settings(server.port)) as client:
                ids = [model.id async for model in client.models.list()]
                model = await client.models.retrieve(MODEL)
                listed = (ids, model.id)
                assert (model.type, model.display_name) == ("model", MODEL)
                assert model.created_at.year >= 2024
                assert model._request_id
                with pytest.raises(NotFoundError):
                    await client.models.retrieve("no-such-model")
                with pytest.raises(NotFoundError) as unknown:
                    await client.messages.count_tokens(model="no-such-model", messages=[{"role": "user", "content": "a"}])
                assert unknown.value.request_id
        assert listed == ([MODEL], MODEL)
