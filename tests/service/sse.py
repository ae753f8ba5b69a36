"""A client of `POST /v1/messages` that reads what is on the wire as it comes, streamed or not."""

import asyncio
import json
from typing import Any, NamedTuple

from tests.service.wire_client import KEY, PATIENCE_S, Client, Response, request

MESSAGES = "/v1/messages"


def body(content: str = "hello", **fields: Any) -> bytes:
    """A good body; a field of the value None is left out."""
    document = {
        "model": "simulated",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 100,
        **fields,
    }
    return json.dumps({name: value for name, value in document.items() if value is not None}).encode()


def ask(content: str = "hello", *, headers: dict[str, str] = KEY, **fields: Any) -> bytes:
    return request(path=MESSAGES, body=body(content, **fields), headers=headers)


class Event(NamedTuple):
    name: str
    data: dict[str, Any]


class Stream:
    """A response with events, or with a document if the status says so."""

    def __init__(self, client: Client, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._client = client
        self._buffer = b""
        self._is_over = False

    async def next(self) -> Event | None:
        """The next event; None at the end of the response."""
        async with asyncio.timeout(PATIENCE_S):
            while b"\n\n" not in self._buffer:
                if self._is_over:
                    assert self._buffer == b""
                    return None
                await self._read_chunk()
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        first, second = block.decode().split("\n")
        name, data = first.removeprefix("event: "), json.loads(second.removeprefix("data: "))
        assert data["type"] == name
        return Event(name, data)

    async def rest(self) -> list[Event]:
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events

    async def _read_chunk(self) -> None:
        size = int(await self._client.reader.readuntil(b"\r\n"), 16)
        self._buffer += (await self._client.reader.readexactly(size + 2))[:-2]
        self._is_over = size == 0


async def opened(client: Client, data: bytes) -> Stream:
    """Sends the request and reads the head of a streamed response."""
    client.write(data)
    async with asyncio.timeout(PATIENCE_S):
        head = (await client.reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
    status_line, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers.get("transfer-encoding") == "chunked", head
    return Stream(client, int(status_line.split(" ")[1]), headers)


def text_of(events: list[Event]) -> str:
    return "".join(event.data["text"] for event in events if event.name == "content_delta")


def assert_stream(events: list[Event], answer_id: str) -> tuple[str, str, dict[str, int]]:
    """Asserts the order of SPEC S4. Returns text, stop_reason and usage."""
    assert events[0] == Event("message_start", {"type": "message_start", "id": answer_id, "model": "simulated"})
    assert {event.name for event in events[1:-1]} <= {"content_delta", "ping"}
    assert all(event.data["text"] for event in events[1:-1] if event.name == "content_delta")
    last = events[-1]
    assert last.name == "message_stop"
    assert set(last.data) == {"type", "stop_reason", "usage"}
    assert set(last.data["usage"]) == {"input_tokens", "output_tokens"}
    return text_of(events), last.data["stop_reason"], last.data["usage"]


def assert_answer(response: Response) -> tuple[str, str, dict[str, int]]:
    """Asserts the shape of an answer that is not streamed. Returns text, stop_reason and usage."""
    assert response.status == 200, response
    assert response.headers["content-type"] == "application/json"
    document = response.json
    assert set(document) == {"id", "content", "stop_reason", "usage"}
    assert document["id"] == response.headers["x-request-id"]
    assert set(document["usage"]) == {"input_tokens", "output_tokens"}
    return document["content"], document["stop_reason"], document["usage"]
