"""The official `openai` client against this server, in every mode: answers, streams, models."""

from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.service.modes import MODES, OVERHEAD, served
from tests.service.sdk import MODEL, WAYS, in_thread
from tests.service.sdk_openai import asked, chunks_of, create, settings, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("way", WAYS)]

each_mode = pytest.mark.parametrize("mode", MODES)

# Answers


@each_mode
async def test_an_answer_is_a_completion(way: str, mode: str) -> None:
    async with served(mode) as server:
        completion = await create(way, server.port, content="hé\U0001f600\n")
    num_bytes = len("hé\U0001f600\n".encode())
    assert text_of(completion) == "hé\U0001f600\n"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == num_bytes + OVERHEAD[mode]
    assert completion.usage.completion_tokens == num_bytes + (mode != "text")
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion._request_id
    assert completion.id == f"chatcmpl-{completion._request_id}"
    assert completion.created > 1_700_000_000


@each_mode
@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({}, "hello", "stop"),
        ({"max_tokens": 2}, "he", "length"),
        ({"max_completion_tokens": 2}, "he", "length"),
        ({"stop": "lo"}, "hel", "stop"),
        ({"stop": ["zz", "he"]}, "", "stop"),
    ],
    ids=str,
)
async def test_a_stream_says_the_same(way: str, mode: str, fields: dict[str, Any], text: str, reason: str) -> None:
    told: list[ChatCompletionChunk] = []
    async with served(mode) as server:
        completion = await create(way, server.port, **fields)
        await chunks_of(way, server.port, told, **fields, stream_options={"include_usage": True})
    assert (text_of(completion), completion.choices[0].finish_reason) == (text, reason)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in told}) == 1
    first, *middle, last, usage = told
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == text
    assert [chunk.choices[0].finish_reason for chunk in (first, *middle, last)] == [None] * (len(told) - 2) + [reason]
    assert (usage.choices, usage.usage) == ([], completion.usage)
    assert all(chunk.usage is None for chunk in told[:-1])


async def test_a_stream_tells_no_usage_unasked(way: str) -> None:
    told: list[ChatCompletionChunk] = []
    async with served("continuous") as server:
        await chunks_of(way, server.port, told)
    assert told[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in told)


@each_mode
async def test_an_answer_can_be_given_back_as_a_turn_beside_every_setting(way: str, mode: str) -> None:
    async with served(mode) as server:
        first = await create(way, server.port)
        fields = asked(
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": "hello"},
                first.choices[0].message,
                {"role": "user", "content": [{"type": "text", "text": "ag"}, {"type": "text", "text": "ain"}], "name": "ada"},
            ],
            temperature=0,
            top_p=0.5,
            seed=7,
            n=1,
            user="u",
            metadata={"a": "b"},
            frequency_penalty=0,
            response_format={"type": "text"},
        )
        assert text_of(await create(way, server.port, **fields)) == "again"


@each_mode
async def test_what_the_clients_helpers_made_of_an_answer_can_be_given_back(way: str, mode: str) -> None:
    """Also an answer without text: the first character ends it."""
    async with served(mode) as server:

        def talk() -> list[str | None]:
            with OpenAI(**settings(server.port)) as client:
                turns: list[Any] = [{"role": "user", "content": "hello"}]
                turns += [client.chat.completions.parse(model=MODEL, messages=turns).choices[0].message, *turns]
                with client.chat.completions.stream(model=MODEL, messages=turns, stop="h") as stream:
                    turns += [stream.get_final_completion().choices[0].message, {"role": "user", "content": "again"}]
                said = client.chat.completions.create(model=MODEL, messages=turns).choices[0].message.content
                return [*(turn.content for turn in turns[1::2]), said]

        if way == "sync":
            told = await in_thread(talk)
        else:
            async with AsyncOpenAI(**settings(server.port)) as client:
                turns: list[Any] = [{"role": "user", "content": "hello"}]
                parsed = await client.chat.completions.parse(model=MODEL, messages=turns)
                turns += [parsed.choices[0].message, *turns]
                async with client.chat.completions.stream(model=MODEL, messages=turns, stop="h") as stream:
                    final = await stream.get_final_completion()
                turns += [final.choices[0].message, {"role": "user", "content": "again"}]
                completion = await client.chat.completions.create(model=MODEL, messages=turns)
                told = [*(turn.content for turn in turns[1::2]), completion.choices[0].message.content]
        assert [text or "" for text in told] == ["hello", "", "again"]


@each_mode
async def test_a_load_tool_gets_as_many_tokens_as_it_asks_for(way: str, mode: str) -> None:
    """Where there are tokens that end an answer; a backend that knows only text has none to go past."""
    async with served(mode) as server:
        completion = await create(way, server.port, max_tokens=9, extra_body={"ignore_eos": True, "top_k": -1})
    assert completion.usage is not None
    expected = ("stop", 5) if mode == "text" else ("length", 9)
    assert (completion.choices[0].finish_reason, completion.usage.completion_tokens) == expected


@each_mode
async def test_the_model_is_listed(way: str, mode: str) -> None:
    async with served(mode) as server:

        def ask() -> tuple[list[str], str]:
            with OpenAI(**settings(server.port)) as client:
                return [model.id for model in client.models.list()], client.models.retrieve(MODEL).id

        if way == "sync":
            listed = await in_thread(ask)
        else:
            async with AsyncOpenAI(**settings(server.port)) as client:
                ids = [model.id async for model in client.models.list()]
                model = await client.models.retrieve(MODEL)
                listed = (ids, model.id)
                assert (model.object, model.owned_by) == ("model", "batcher")
                assert model._request_id
                with pytest.raises(NotFoundError) as unknown:
                    await client.models.retrieve("no-such-model")
                assert unknown.value.code == "model_not_found"
        assert listed == ([MODEL], MODEL)
