"""Who may ask for which route: nobody without a key, but for a short list.

One layer around the whole router, and no check in each endpoint: a route that is added is closed by itself, and so is a path
that looks like another ("//v1/messages", "/V1/messages") and one that is not there at all (B78). The open list is compared
exactly, so that what is not quite on it is closed; the operator's routes are known by their beginning, so that what is nearly
one is the operator's too ("/metrics" with a line feed behind it is a path that the router would still take for "/metrics").
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

from batcher.errors import ServiceError
from batcher.service.asgi import send_reply
from batcher.service.door import Door
from batcher.service.wire.replies import Reply

OPEN_PATHS = frozenset(("/health", "/ready", "/openapi.json"))
"""Whoever balances load asks the first two without a key; the third says how to ask for the rest."""

METRICS_PATHS = frozenset(("/metrics", "/load"))
"""The operator's, unless they are opened: they tell how much everybody asks for."""

OPERATOR_PREFIXES = ("/metrics", "/load", "/admin")

CALLER = "batcher.caller"
"""Where in an ASGI scope an endpoint finds the Caller."""


Refuse: TypeAlias = Callable[[Scope, Mapping[bytes, bytes], ServiceError], Reply]
"""What is replied to a request (its scope, its headers) that may not come in."""


class Guard:
    """The ASGI middleware."""

    def __init__(self, app: ASGIApp, *, door: Door, refuse: Refuse, has_open_metrics: bool) -> None:
        self._app = app
        self._door = door
        self._refuse = refuse
        self._open = OPEN_PATHS | METRICS_PATHS if has_open_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})  # Before it was accepted: the client sees a 403.
            return
        headers = dict(scope["headers"])
        try:
            caller = self._door.authenticate(headers)
            if scope["path"].startswith(OPERATOR_PREFIXES):
                self._door.require_operator(caller)
        except ServiceError as error:
            await send_reply(send, self._refuse(scope, headers, error))
            return
        scope[CALLER] = caller
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in self._open
