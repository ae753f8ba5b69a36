"""`POST /v1/messages` in either mode (SPEC S4), as a raw ASGI endpoint.

Nothing is sent until the first token exists, so a refusal has its real status, streamed or not (B68). From then on a stream is
never silent for longer than the ping interval, and what goes wrong is an event. Whoever answers is told at once when the client
leaves, and when it does not take what is sent to it.
"""

import asyncio
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from batcher.config import HttpConfig
from batcher.errors import NotFound, ServiceError
from batcher.service.asgi import Disconnected, asgi_messages, read_body, while_connected
from batcher.service.auth import Caller
from batcher.service.conversation import Answerer, Conversation
from batcher.service.door import Door
from batcher.service.generation import Cancelled, Delta, Event, Failed, Finished
from batcher.service.wire import native
from batcher.service.wire.replies import Reply, error_reply, find_request_id


class _Inbox:
    """The events of one answer, from whoever makes them to the task that sends them: together, if they came together.

    It holds no more than max_tokens of text, and that only while the client takes nothing.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._has_some = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._has_some.set()

    async def take(self) -> list[Event]:
        """All that has come; waits for the first."""
        await self._has_some.wait()
        self._has_some.clear()
        events, self._events = self._events, []
        return events


class MessagesAsgi:
    """The ASGI application of the one route."""

    def __init__(self, *, door: Door, answerer: Answerer, http: HttpConfig) -> None:
        self._door = door
        self._answerer = answerer
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        own_id = find_request_id(headers)
        try:
            caller = self._door.authenticate(headers)
            body = await read_body(receive, door=self._door, timeout_s=self._http.body_timeout_s)
            conversation = native.decode(body)
            self._check_model(conversation.model)
            await while_connected(receive, self._answer(caller, conversation, own_id, send))
        except Disconnected:
            return
        except ServiceError as error:
            await _send_reply(send, self._door.refuse(error, own_id))

    def _check_model(self, model: str) -> None:
        if model != self._answerer.model_id:
            raise NotFound(f"there is no model {model[:100]!r} here: this server has {self._answerer.model_id!r}")

    async def _answer(self, caller: Caller, conversation: Conversation, own_id: str | None, send: Send) -> None:
        """Cancelled, or out of a client's patience, it gives the request's place back. Raises ServiceError before anything was
        submitted, Disconnected if the client takes nothing."""
        inbox = _Inbox()
        number = await self._answerer.ask(caller, conversation, inbox.put)
        answer_id = self._door.name(number, own_id)
        try:
            if conversation.is_streamed:
                await self._stream(inbox, answer_id, send)
            else:
                await _send_reply(send, await _whole(inbox, answer_id))
        finally:
            self._answerer.cancel(number)

    async def _stream(self, inbox: _Inbox, answer_id: str, send: Send) -> None:
        events = await inbox.take()
        if isinstance(events[0], Failed):
            await _send_reply(send, error_reply(events[0].error, answer_id))
            return
        await send({"type": "http.response.start", "status": 200, "headers": _stream_headers(answer_id)})
        frames = [native.start_event(answer_id, self._answerer.model_id)]
        is_over = False
        while not is_over:
            frames += [_frame(event, answer_id) for event in events]
            is_over = bool(events) and not isinstance(events[-1], Delta)
            await self._send_within_patience(send, b"".join(frames), more_body=not is_over)
            frames = []
            if not is_over:
                events = await self._take_or_ping(inbox, frames)

    async def _take_or_ping(self, inbox: _Inbox, frames: list[bytes]) -> list[Event]:
        """What has come; nothing, and a ping in `frames`, if that takes too long."""
        try:
            async with asyncio.timeout(self._http.ping_interval_s):
                return await inbox.take()
        except TimeoutError:
            frames.append(native.PING_EVENT)
            return []

    async def _send_within_patience(self, send: Send, body: bytes, *, more_body: bool) -> None:
        """A server's `send` returns when the client has taken what was sent before, or nearly so. Our own server cuts the
        connection off after the same time. Raises Disconnected."""
        is_taken = False
        # Not raised where the TimeoutError is handled: it would go along, and it knows the task that is to know it.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._http.body_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more_body})
                is_taken = True
        if not is_taken:
            raise Disconnected


async def _whole(inbox: _Inbox, answer_id: str) -> Reply:
    parts: list[str] = []
    while True:
        for event in await inbox.take():
            if isinstance(event, Failed):
                return error_reply(event.error, answer_id)
            assert not isinstance(event, Cancelled)
            parts.append(event.text)
            if isinstance(event, Finished):
                body = native.encode_answer(answer_id, "".join(parts), event.finish, event.usage)
                return Reply(200, body, answer_id, [])


def _frame(event: Event, answer_id: str) -> bytes:
    if isinstance(event, Delta):
        return native.delta_event(event.text)
    if isinstance(event, Failed):
        return native.error_event(event.error, answer_id)
    assert isinstance(event, Finished)
    last = native.delta_event(event.text) if event.text else b""
    return last + native.stop_event(event.finish, event.usage)


def _stream_headers(answer_id: str) -> list[tuple[bytes, bytes]]:
    """No cache may keep it, and no proxy may collect it into lumps (B72)."""
    return [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", answer_id.encode("ascii")),
    ]


async def _send_reply(send: Send, reply: Reply) -> None:
    for message in asgi_messages(reply):
        await send(message)
