"""A little server of `POST /v1/messages` with a will of its own, that cuts its bytes wherever a test likes.

Run as a module it is a server in a process of its own, which says where it listens as `batcher serve` does.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tests.loadtest.listening import LittleServer, read_head


class Said(msgspec.Struct, frozen=True):
    """What goes back: pieces of the body, each in a write of its own. `is_cut` drops the connection after the last."""

    pieces: Sequence[bytes]
    status: int = 200
    kind: str = "text/event-stream"
    is_cut: bool = False


class Heard(msgspec.Struct, frozen=True):
    number: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def last_text(self) -> str:
        return str(self.body["messages"][-1]["content"])


Talking = Callable[[Heard], Said]


def event(name: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))


def stream_of(
    texts: Sequence[str], *, answer_id: str = "msg_0", input_tokens: int = 7, output_tokens: int | None = None,
    stop_reason: str = "end_turn",
) -> list[bytes]:  # fmt: skip
    """A whole answer, event by event."""
    usage = {"input_tokens": input_tokens, "output_tokens": len(texts) if output_tokens is None else output_tokens}
    return [
        event("message_start", id=answer_id, model="m"),
        event("ping"),
        *(event("content_delta", text=text) for text in texts),
        event("message_stop", stop_reason=stop_reason, usage=usage),
    ]


def whole(text: str, *, answer_id: str, output_tokens: int = 1) -> bytes:
    usage = {"input_tokens": 7, "output_tokens": output_tokens}
    return msgspec.json.encode({"id": answer_id, "content": text, "stop_reason": "max_tokens", "usage": usage})


def chat(heard: Heard) -> Said:
    """As many tokens as were asked for, each naming its request."""
    texts = [f" {heard.number}"] * heard.body["max_tokens"]
    if heard.body["stream"]:
        return Said([b"".join(stream_of(texts, answer_id=f"msg_{heard.number}", stop_reason="max_tokens"))])
    text = whole("".join(texts), answer_id=f"msg_{heard.number}", output_tokens=len(texts))
    return Said([text], kind="application/json")


class Talker(LittleServer):
    def __init__(self, will: Talking) -> None:
        super().__init__()
        self.heard: list[Heard] = []
        self.num_at_once = self.most_at_once = 0
        self._will = will

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, headers = await read_head(reader)
        if first.startswith("GET "):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return True
        body = msgspec.json.decode(await reader.readexactly(int(headers["content-length"])))
        heard = Heard(len(self.heard), headers, body)
        self.heard.append(heard)
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        said = self._will(heard)
        head = f"HTTP/1.1 {said.status} Whatever\r\ncontent-type: {said.kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for piece in said.pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        self.num_at_once -= 1
        if not said.is_cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return not said.is_cut


@contextlib.contextmanager
def talking(will: Talking = chat) -> Iterator[Talker]:
    """A server of this will until the block is left."""
    with Talker(will).living() as server:
        yield server


async def _serve_alone(will: Talking) -> None:
    server = Talker(will)
    listener = await server.listen()
    print(msgspec.json.encode({"event": "listening", "url": server.url}).decode(), file=sys.stderr, flush=True)
    await listener.serve_forever()


def refuse(heard: Heard) -> Said:
    return Said([b""], status=529)


if __name__ == "__main__":
    asyncio.run(_serve_alone({"chat": chat, "refuse": refuse}[sys.argv[1]]))
