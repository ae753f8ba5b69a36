"""What the little servers of these tests have in common: they answer on a port of their own, in a thread of their own."""

import asyncio
import contextlib
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self


class LittleServer(ABC):
    """Answers request after request on each connection, until one of them ends it."""

    def __init__(self) -> None:
        self.url = ""
        self.num_connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self.answer(reader, writer):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
            await writer.wait_closed()
        self._tasks.discard(task)

    async def listen(self, *, context: ssl.SSLContext | None = None) -> asyncio.Server:
        """Listens on a port that the system chooses; `url` tells which."""
        listener = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=context, backlog=512)
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        return listener

    @contextlib.contextmanager
    def living(self, *, context: ssl.SSLContext | None = None) -> Iterator[Self]:
        """Serves in a thread until the block is left."""
        started, stopping, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

        async def live() -> None:
            listener = await self.listen(context=context)
            started.set()
            await stopping.wait()
            listener.close()
            await self._stop()

        thread = threading.Thread(target=lambda: loop.run_until_complete(live()), daemon=True)
        thread.start()
        assert started.wait(10.0)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stopping.set)
            thread.join(10.0)
            loop.close()

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """The first line of a request and its headers, as they were sent."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines)
