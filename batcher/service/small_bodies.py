"""A request that is refused by its headers alone, and the connection that it came on.

HTTP/1.1 has no way to skip a body: whoever replies before it has come must read it all the same, or end the connection. Client
libraries send a request's head and its body apart, so that a refusal often meets only the head; and those who are told nothing
of it send their next request into a connection that is ending, and get no reply at all. So a small body is taken in first. With
a large one the connection ends, and the reply says so: to read it would cost more than another connection.
"""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batcher.service.wire.replies import declared_length

SMALL_BODY_BYTES = 16_384
"""Up to this a body is small, and hardly more work than its head: a refused one is read to its end, so that its connection can
go on. A larger one counts in the budget of all of them (`pending_bodies.py`) and takes its turn (`turns.py`)."""


_CLOSE = (b"connection", b"close")


class SmallBodies:
    """The ASGI middleware. Around all others, for whoever refuses."""

    def __init__(self, app: ASGIApp, *, body_timeout_s: float) -> None:
        self._app = app
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        num_bytes = declared_length(headers)
        if num_bytes == 0:
            await self._app(scope, receive, send)
            return
        # Who expects a 100 sends no body before it, and to be refused is what it waits for.
        is_small = num_bytes <= SMALL_BODY_BYTES and b"expect" not in headers
        is_whole = False

        async def noting() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = is_whole or not message.get("more_body", False)  # Nothing more comes of who has left, either.
            return message

        async def sending(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start and is_small and not is_whole:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._body_timeout_s):
                        while not is_whole:
                            await noting()
            if is_start and not is_whole and _CLOSE not in message["headers"]:
                message = {**message, "headers": [*message["headers"], _CLOSE]}
            await send(message)

        await self._app(scope, noting, sending)
