"""`POST /v1/run` as a raw ASGI endpoint: for servers without the fast path, and for what the fast path leaves (a query string).

No framework's request object: it would read the body whole before anybody could object to its length.
"""

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from batcher.errors import RequestTimeout, ServiceError
from batcher.service.auth import Caller
from batcher.service.run import RunEndpoint
from batcher.service.wire import Reply, find_request_id


class _Disconnected(Exception):
    pass


class RunAsgi:
    """The ASGI application of the one route."""

    def __init__(self, endpoint: RunEndpoint, *, body_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope, receive)
        except _Disconnected:
            return
        except ServiceError as error:
            reply = self._endpoint.refuse(error, find_request_id(dict(scope["headers"])))
        for message in messages(reply):
            await send(message)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        headers = dict(scope["headers"])
        caller = self._endpoint.authenticate(headers)
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body = await self._read(receive)
        except TimeoutError:
            raise RequestTimeout(f"the request did not arrive within {self._body_timeout_s:g} s") from None
        return await self._wait(caller, body, receive, own_id=find_request_id(headers))

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        more_body = True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            body += message.get("body", b"")
            self._endpoint.check_length(len(body))
            more_body = message.get("more_body", False)
        return bytes(body)

    async def _wait(self, caller: Caller, body: bytes, receive: Receive, *, own_id: str | None) -> Reply:
        """The reply, or _Disconnected if the client leaves before it; then its place is given back."""
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request_id = self._endpoint.submit(caller, body, answered.set_result, own_id=own_id)
        gone = asyncio.ensure_future(_wait_disconnect(receive))
        try:
            waited: set[asyncio.Future[Any]] = {answered, gone}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                raise _Disconnected
            return answered.result()
        finally:
            gone.cancel()
            if not answered.done():
                self._endpoint.cancel(request_id)


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def messages(reply: Reply) -> tuple[Message, Message]:
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
