"""Turns that are withheld, and requests that are large enough to take them."""

import asyncio
from typing import Any

from batcher.service.safety.stage import MAX_INLINE_CHARS
from batcher.service.small_bodies import SMALL_BODY_BYTES
from batcher.service.turns import Turns, Work
from tests.service.serving import Serving
from tests.service.sse import body
from tests.service.wire_client import request, run

LARGE = "never read " * (SMALL_BODY_BYTES // 8)
assert len(LARGE) > MAX_INLINE_CHARS > SMALL_BODY_BYTES

ROUTES = ("/v1/run", "/v1/run?by=asgi", "/v1/messages", "/v1/messages?by=asgi")


async def next_round() -> None:
    await asyncio.sleep(0)


class NoTurns(Turns):
    """They come when `give` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.withheld: list[Work] = []

    def call(self, tenant: str, work: Work, *, goes_on: bool = False) -> None:
        self.withheld.append(work)

    def give(self) -> None:
        while self.withheld:
            self.withheld.pop(0)()


def asked(path: str, text: str, **fields: Any) -> bytes:
    if "run" in path:
        return run(text, path=path)
    return request(path=path, body=body(text, max_tokens=10**6, **fields))


def withhold(server: Serving) -> NoTurns:
    turns = server.service.front.door.turns = NoTurns()
    return turns
