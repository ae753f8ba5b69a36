"""A little server of `POST /v1/messages` with a will of its own, that cuts its bytes wherever a test likes.

Run as a script it is a server in a process of its own, which says where it listens as `batcher serve` does.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec


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


class Talker:
    def __init__(self, will: Talking) -> None:
        self.url = ""
        self.heard: list[Heard] = []
        self.num_at_once = self.most_at_once = 0
        self._will = will
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass
        writer.close()
        self._tasks.discard(task)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        if first.startswith("GET "):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return True
        headers = dict(line.split(": ", 1) for line in lines)
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
    """A server of this will on a port of its own, in a thread of its own, until the block is left."""
    server, started, stopping = Talker(will), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=512)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        started.set()
        await stopping.wait()
        listener.close()
        await server.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()), daemon=True)
    thread.start()
    assert started.wait(10.0)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10.0)
        loop.close()


async def _serve_alone(will: Talking) -> None:
    server = Talker(will)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    print(msgspec.json.encode({"event": "listening", "url": url}).decode(), file=sys.stderr, flush=True)
    await listener.serve_forever()


def refuse(heard: Heard) -> Said:
    return Said([b""], status=529)


if __name__ == "__main__":
    asyncio.run(_serve_alone({"chat": chat, "refuse": refuse}[sys.argv[1]]))
