"""Tokenizing: long prompts are nobody else's wait, and no more of them pile up than can be answered."""

import asyncio
import threading
from collections.abc import Sequence
from math import inf

import msgspec
import pytest

from backends.bytes_model import BytesTokenizer
from batcher.errors import InvalidRequest, PromptTooLong
from batcher.service.conversation import Conversation
from batcher.service.prompts import Prompter
from batcher.types import Message, Sampling
from tests.service.errors import assert_error
from tests.service.serving import generating, simulated, until
from tests.service.sse import ask, assert_answer
from tests.service.wire_client import connected, request

pytestmark = pytest.mark.anyio


class HeldTokenizer(BytesTokenizer):
    """Renders nothing on another thread before it is let go. `num_held` threads are at it; `num_rendered` prompts are done."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.num_held = 0
        self.num_rendered = 0

    def render(self, messages: Sequence[Message]) -> list[int]:
        if threading.current_thread() is not threading.main_thread():
            self.num_held += 1
            assert self.may_go.wait(10.0)
        self.num_rendered += 1
        return super().render(messages)


def conversation(content: str, max_tokens: int = 10) -> Conversation:
    return Conversation(model="m", messages=(Message("user", content),), max_tokens=max_tokens, sampling=Sampling())


async def test_the_prompt_is_what_the_tokenizer_makes_of_it() -> None:
    prompter = Prompter(BytesTokenizer(), context_len=100_000)
    for content in ("hello", "x" * 50_000):
        assert (await prompter.prepare(conversation(content), room=inf))[0] == BytesTokenizer().render(
            (Message("user", content),)
        )
    prompter.close()


@pytest.mark.parametrize(
    ("num_bytes", "max_tokens", "fits"),
    [(87, 10, True), (88, 10, False), (87, 11, False), (1, 97, False), (1, 100_000, False), (1_000, 1, False)],
)
async def test_the_length_is_exact(num_bytes: int, max_tokens: int, fits: bool) -> None:
    prompter = Prompter(BytesTokenizer(), context_len=100)
    if fits:
        assert len((await prompter.prepare(conversation("x" * num_bytes, max_tokens), room=inf))[0]) == num_bytes + 3
    else:
        words = f"^input length and `max_tokens` exceed context limit: {num_bytes + 3} \\+ {max_tokens} > 100$"
        if num_bytes >= 97:
            words = f"^prompt is too long: {num_bytes + 3} tokens leave no room .* 100 tokens$"
        with pytest.raises(PromptTooLong, match=words):
            await prompter.prepare(conversation("x" * num_bytes, max_tokens), room=inf)
    prompter.close()


@pytest.mark.parametrize(("room", "max_tokens"), [(inf, 90), (400.0, 90), (100.0, 25), (12.0, 2), (3.0, 1)])
async def test_who_does_not_say_how_long_may_have_what_there_is_room_for(room: float, max_tokens: int) -> None:
    prompter = Prompter(BytesTokenizer(), context_len=100)
    asked = msgspec.structs.replace(conversation("x" * 7), max_tokens=None)
    assert (await prompter.prepare(asked, room=room))[1] == max_tokens
    prompter.close()


@pytest.mark.parametrize(("num_bytes", "about"), [(97, ""), (5_000, "at least ")])
async def test_nobody_is_told_of_a_max_tokens_that_was_not_asked_for(num_bytes: int, about: str) -> None:
    prompter = Prompter(BytesTokenizer(), context_len=100)
    num_tokens = num_bytes if about else num_bytes + 3
    words = f"^prompt is too long: {about}{num_tokens} tokens leave no room for an answer in the model's context of 100 tokens$"
    with pytest.raises(PromptTooLong, match=words):
        await prompter.prepare(msgspec.structs.replace(conversation("x" * num_bytes), max_tokens=None), room=inf)
    prompter.close()


async def test_the_service_goes_on_while_a_long_prompt_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldTokenizer()
    async with generating(simulated()) as server, connected(server.port) as client:
        monkeypatch.setattr(server.service.prompter, "_tokenizer", held)
        client.write(ask("x" * 50_000, max_tokens=1))
        await until(lambda: held.num_held == 1)
        assert (await server.ask(request("GET", "/health"))).status == 200
        assert_answer(await server.ask(ask("short")))
        held.may_go.set()
        assert_answer(await client.read())


async def test_many_short_turns_are_a_long_prompt() -> None:
    """A template costs time for each turn: 2,000 turns of one letter took 15 ms on the event loop, each time."""
    held = HeldTokenizer()
    prompter = Prompter(held, context_len=100_000)
    turns = tuple(Message("user", "x") for _ in range(500))
    asked = Conversation(model="m", messages=turns, max_tokens=1, sampling=Sampling())
    encoding = asyncio.ensure_future(prompter.prepare(asked, room=inf))
    await until(lambda: held.num_held == 1)
    assert prompter.num_pending_bytes == 500 * 17
    held.may_go.set()
    assert (await encoding)[0] == BytesTokenizer().render(turns)
    prompter.close()


async def test_more_long_prompts_than_can_be_tokenized_soon_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batcher.service.prompts._MAX_PENDING_BYTES", 20_100)
    held = HeldTokenizer()
    async with generating(simulated()) as server:
        monkeypatch.setattr(server.service.prompter, "_tokenizer", held)
        asking = [asyncio.ensure_future(server.ask(ask("x" * 5_000, max_tokens=1))) for _ in range(6)]
        await until(lambda: sum(call.done() for call in asking) == 2)
        held.may_go.set()
        answers = await asyncio.gather(*asking)
    refused = [answer for answer in answers if answer.status != 200]
    assert len(refused) == 2
    for answer in refused:
        assert "long prompts" in assert_error(answer, 529, "overloaded_error")


async def test_who_leaves_while_its_prompt_waits_takes_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is free at once, and no thread works for it."""
    held = HeldTokenizer()
    async with generating(simulated()) as server:
        monkeypatch.setattr(server.service.prompter, "_tokenizer", held)
        clients = [connected(server.port) for _ in range(6)]
        for number, client in enumerate(clients):
            (await client.__aenter__()).write(ask("x" * 5_000))
            await until(lambda number=number: server.service.prompter.num_pending_bytes == 5_016 * (number + 1))  # type: ignore[misc]
        await until(lambda: held.num_held == 2)
        for client in clients:
            await client.__aexit__(None, None, None)
        await until(lambda: server.service.prompter.num_pending_bytes == 0)
        held.may_go.set()
        assert_answer(await server.ask(ask("y" * 5_000, max_tokens=1)))
        assert held.num_rendered == 3  # Two that threads had begun, and the last.


async def test_a_place_is_given_back_whatever_happens() -> None:
    class Broken(BytesTokenizer):
        def render(self, messages: Sequence[Message]) -> list[int]:
            raise InvalidRequest("no such order of roles")

    prompter = Prompter(Broken(), context_len=100_000)
    for content in ("short", "x" * 5_000):
        with pytest.raises(InvalidRequest, match="order of roles"):
            await prompter.prepare(conversation(content), room=inf)
    assert prompter.num_pending_bytes == 0
    prompter.close()
