"""`POST /v1/run` as a raw ASGI endpoint: for servers without the fast path, and for what that leaves (a query string, an
Idempotency-Key)."""

import asyncio

from starlette.types import Receive, Scope, Send

from batcher.errors import ServiceError
from batcher.service.asgi import Disconnected, read_body, send_reply, while_connected
from batcher.service.front import PASSAGE, Passage
from batcher.service.records import Route
from batcher.service.replying import addressed, refuse
from batcher.service.run import RunsEndpoint
from batcher.service.wire.native import NATIVE
from batcher.service.wire.replies import Reply, find_request_id


class RunAsgi:
    """The ASGI application of the one route."""

    def __init__(self, endpoint: RunsEndpoint, *, body_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._front = endpoint.front
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        passage = self._front.open(Route.RUN, headers, find_request_id(headers))
        scope[PASSAGE] = passage  # Where a bug of ours is answered, it is ended.
        try:
            passage.model = self._endpoint.model_id
            if (refusal := passage.enter(headers)) is not None:
                raise refusal
            door, key = self._front.door, headers.get(b"idempotency-key")
            with door.bodies.open(passage.caller.tenant) as pending:
                body = await read_body(receive, door=door, pending=pending, timeout_s=self._body_timeout_s)
                with self._front.answering():
                    reply = await while_connected(receive, self._answer(passage, body, key))
        except Disconnected:
            passage.leave()
            return
        except asyncio.CancelledError:
            passage.leave()
            raise
        except ServiceError as error:
            reply = refuse(passage, NATIVE, error)
        else:
            passage.end_with(reply)
        await send_reply(send, reply)

    async def _answer(self, passage: Passage, body: bytes, key: bytes | None) -> Reply:
        """Raises ServiceError. Cancelled before the reply is there, it gives the request's place back."""
        if key is None:
            return await self._run(passage, body, None)
        tenant = passage.caller.tenant
        idempotency = self._front.idempotency
        reply = await idempotency.answer(tenant, key, body, Route.RUN, lambda question: self._run(passage, body, question))
        return addressed(reply, passage, NATIVE)

    async def _run(self, passage: Passage, body: bytes, idempotency: str | None) -> Reply:
        ended: asyncio.Future[Reply | ServiceError] = asyncio.get_running_loop().create_future()

        def on_result(result: Reply | ServiceError) -> None:
            if not ended.done():  # It may come after the cancellation and before whoever waits has heard of it.
                ended.set_result(result)

        call = self._endpoint.submit(passage, body, on_result, idempotency=idempotency)
        try:
            result = await ended
        finally:
            if not ended.done() or ended.cancelled():
                call.cancel()
        if isinstance(result, ServiceError):
            raise result
        return result
