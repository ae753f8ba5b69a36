"""`POST /v1/run` as a raw ASGI endpoint: for servers without the fast path, and for what that leaves (a query string)."""

import asyncio

from starlette.types import Receive, Scope, Send

from batcher.errors import ServiceError
from batcher.service.asgi import Disconnected, asgi_messages, read_body, while_connected
from batcher.service.auth import Caller
from batcher.service.run import Endpoint
from batcher.service.wire.replies import Reply, find_request_id


class RunAsgi:
    """The ASGI application of the one route."""

    def __init__(self, endpoint: Endpoint, *, body_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        own_id = find_request_id(headers)
        door = self._endpoint.door
        try:
            caller = door.authenticate(headers)
            body = await read_body(receive, door=door, timeout_s=self._body_timeout_s)
            reply = await while_connected(receive, self._answer(caller, body, own_id))
        except Disconnected:
            return
        except ServiceError as error:
            reply = door.refuse(error, own_id)
        for message in asgi_messages(reply):
            await send(message)

    async def _answer(self, caller: Caller, body: bytes, own_id: str | None) -> Reply:
        """The reply. Cancelled before it is there, it gives the request's place back."""
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request_id = self._endpoint.submit(caller, body, answered.set_result, own_id=own_id)
        try:
            return await answered
        finally:
            if not answered.done() or answered.cancelled():
                self._endpoint.cancel(request_id)
