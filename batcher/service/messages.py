"""The routes that answer conversations, in either mode and in each grammar, as one raw ASGI endpoint.

Nothing is sent until the first text exists, so a refusal has its real status, streamed or not (B68). From then on a stream is
never silent for longer than the ping interval, and what goes wrong is an event. Whoever answers is told at once when the client
leaves, and when it does not take what is sent to it.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from batcher.config import HttpConfig
from batcher.errors import ServerFault, ServiceError
from batcher.service.answering import Answering, Piece
from batcher.service.asgi import Disconnected, read_body, send_reply, while_connected
from batcher.service.conversation import Answerer, Conversation, require_model
from batcher.service.front import PASSAGE, Front, Passage
from batcher.service.generation import Failed
from batcher.service.guard import CALLER
from batcher.service.records import Route
from batcher.service.replying import addressed, answer_head, error_reply, reply_headers
from batcher.service.wire.dialect import AnswerHead, Dialect, EventWriter
from batcher.service.wire.replies import Reply, find_request_id
from batcher.types import Outcome

Choose: TypeAlias = Callable[[Mapping[bytes, bytes]], Dialect]
"""The grammar of a request, by its headers."""


class ConversationsAsgi:
    """The ASGI application of one route."""

    def __init__(self, *, front: Front, answerer: Answerer, http: HttpConfig, route: Route, choose: Choose) -> None:
        self._front = front
        self._answerer = answerer
        self._http = http
        self._route = route
        self._choose = choose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        passage = scope.get(PASSAGE) or self._front.open(self._route, headers, find_request_id(headers))
        scope[PASSAGE] = passage
        dialect = self._choose(headers)
        call = _Call(self._front, self._answerer, self._http, dialect, passage)
        try:
            passage.caller = scope.get(CALLER) or self._front.door.authenticate(headers)
            if (refusal := self._front.door.judge_early(passage.caller, headers)) is not None:
                raise refusal
            with self._front.door.bodies.open(passage.caller.tenant) as pending:
                body = await read_body(receive, door=self._front.door, pending=pending, timeout_s=self._http.body_timeout_s)
                conversation = dialect.decode(body)
                require_model(self._answerer, conversation.model)
                passage.model, passage.is_streamed = self._answerer.model_id, conversation.is_streamed
                key = None if conversation.is_streamed else headers.get(b"idempotency-key")
                with self._front.answering():
                    await while_connected(receive, call.answer(conversation, key, body, send))
        except Disconnected:
            passage.leave()
        except ServiceError as error:
            if not passage.is_over:
                passage.refuse(error)
            await send_reply(send, error_reply(passage, dialect, error))
        except BaseException as error:
            if not passage.is_over:
                passage.refuse(ServerFault("internal error")) if isinstance(error, Exception) else passage.leave()
            raise


class _Call:
    """One call of the route."""

    def __init__(self, front: Front, answerer: Answerer, http: HttpConfig, dialect: Dialect, passage: Passage) -> None:
        self._front = front
        self._answerer = answerer
        self._http = http
        self._dialect = dialect
        self._passage = passage

    async def answer(self, conversation: Conversation, key: bytes | None, body: bytes, send: Send) -> None:
        """Cancelled, or out of a client's patience, it gives back what it holds. Raises ServiceError before anything was sent,
        Disconnected if the client takes nothing."""
        if conversation.is_streamed:
            answering = Answering(self._front, self._answerer, self._passage)
            self._front.meters.num_open_streams += 1
            try:
                await answering.begin(conversation)
                await self._stream(answering, conversation, send)
            finally:
                self._front.meters.num_open_streams -= 1
                answering.close()
            return
        if key is None:
            reply = await self._whole(conversation, None)
        else:
            tenant = self._passage.caller.tenant
            name = f"{self._passage.route} {self._dialect.name}"
            reply = await self._front.idempotency.answer(
                tenant, key, body, name, lambda question: self._whole(conversation, question)
            )
            reply = addressed(reply, self._passage, self._dialect)
        self._passage.end_with(reply)
        await send_reply(send, reply)

    async def _whole(self, conversation: Conversation, idempotency: str | None) -> Reply:
        """A whole answer, recorded. Raises ServiceError."""
        answering = Answering(self._front, self._answerer, self._passage, idempotency=idempotency)
        parts: list[str] = []
        try:
            await answering.begin(conversation)
            while True:
                for piece in await answering.take():
                    parts.append(piece.text)
                    if isinstance(piece.end, Failed):
                        answering.close(piece.end.outcome)
                        raise piece.end.error
                    if piece.end is not None:
                        end = piece.end
                        answering.finish(end)
                        head = self._head(answering)
                        body = self._dialect.encode_answer(head, "".join(parts), end.finish, end.stop_sequence, end.usage)
                        return Reply(200, body, self._passage.shown_id, reply_headers(self._passage, self._dialect))
        finally:
            answering.close()

    async def _stream(self, answering: Answering, conversation: Conversation, send: Send) -> None:
        pieces = await answering.take()
        while not any(piece.text or piece.end is not None for piece in pieces):
            pieces = await answering.take()
        if isinstance(pieces[-1].end, Failed) and not any(piece.text for piece in pieces):
            answering.close(pieces[-1].end.outcome)
            raise pieces[-1].end.error
        writer = self._dialect.open_stream(self._head(answering), conversation)
        await send({"type": "http.response.start", "status": 200, "headers": self._stream_headers()})
        frames = [writer.start()]
        while True:
            for piece in pieces:
                frames += self._frames(piece, writer, answering)
            is_over = bool(pieces) and pieces[-1].end is not None
            if is_over and not self._passage.is_over:
                self._passage.end(200, Outcome.OK)
            await self._send_within_patience(send, b"".join(frames), more_body=not is_over)
            answering.note_delivered()
            if is_over:
                return
            frames = []
            pieces = await self._take_or_ping(answering, writer, frames)

    def _frames(self, piece: Piece, writer: EventWriter, answering: Answering) -> list[bytes]:
        """What a piece looks like; its end is recorded before it can be sent."""
        frames = [writer.delta(piece.text)] if piece.text else []
        end, error = piece.end, None
        if end is None:
            return frames
        if not isinstance(end, Failed):
            try:
                answering.finish(end)
            except ServiceError as refusal:
                error, outcome = refusal, Outcome.FAILED
            else:
                return [*frames, writer.stop(end.finish, end.stop_sequence, end.usage)]
        else:
            error, outcome = end.error, end.outcome
            answering.note_delivered()  # It goes out together with the error.
        answering.close(outcome)
        self._passage.end(200, outcome, error.type)
        return [*frames, writer.error(error)]

    async def _take_or_ping(self, answering: Answering, writer: EventWriter, frames: list[bytes]) -> list[Piece]:
        """What has come; nothing, and a ping in `frames`, if that takes too long."""
        try:
            async with asyncio.timeout(self._http.ping_interval_s):
                await answering.wait()
        except TimeoutError:
            frames.append(writer.ping())
            return []
        return await answering.take()

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

    def _head(self, answering: Answering) -> AnswerHead:
        return answer_head(self._passage, self._answerer, answering.num_input_tokens)

    def _stream_headers(self) -> list[tuple[bytes, bytes]]:
        """No cache may keep it, and no proxy may collect it into lumps (B72)."""
        return [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", self._passage.shown_id.encode("ascii")),
            *reply_headers(self._passage, self._dialect),
        ]
