"""What the raw ASGI endpoints share: a body that is read with a bound on size and time, and the client's leaving noticed.

No framework's request object: it would read the body whole before anybody could object to its length.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive, Send

from batcher.errors import RequestTimeout
from batcher.service.door import Door
from batcher.service.pending_bodies import PendingBody
from batcher.service.small_bodies import SMALL_BODY_BYTES
from batcher.service.wire.replies import Reply

T = TypeVar("T")


class Disconnected(Exception):
    """The client has left; nothing can be sent to it any more."""


async def read_body(receive: Receive, *, door: Door, pending: PendingBody, timeout_s: float) -> bytes:
    """Raises RequestTooLarge as soon as it is, Overloaded if all bodies together are, RequestTimeout, and Disconnected.

    `pending` is to be closed when nobody refers to the body any more. A large one has its turn when this returns.
    """
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read(receive, door, pending)
    except TimeoutError:
        raise RequestTimeout(f"the request did not arrive within {timeout_s:g} s") from None
    if len(body) > SMALL_BODY_BYTES:
        await door.turns.take(pending.tenant)
    return body


async def _read(receive: Receive, door: Door, pending: PendingBody) -> bytes:
    body = bytearray()
    more_body = True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        door.check_length(len(body))
        pending.grow(len(body))
        more_body = message.get("more_body", False)
    return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; Disconnected if the client leaves before that, and then `work` is cancelled and over."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_disconnect(receive))
    waited: set[asyncio.Future[Any]] = {working, gone}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        # What `work` raised holds this frame by its traceback: a task that the frame still named would keep the whole request,
        # prompt and all, until the collector comes round.
        del working, gone, waited


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def asgi_messages(reply: Reply) -> tuple[Message, Message]:
    """The two ASGI messages of a reply."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(reply.body)),
        (b"x-request-id", reply.request_id.encode("ascii")),
        *reply.headers,
    ]
    if reply.closes:
        headers.append((b"connection", b"close"))
    return (
        {"type": "http.response.start", "status": reply.status, "headers": headers},
        {"type": "http.response.body", "body": reply.body},
    )


async def send_reply(send: Send, reply: Reply) -> None:
    for message in asgi_messages(reply):
        await send(message)
