"""Callers that ask until they have their answer, each question under one Idempotency-Key, and write down what they got."""

import asyncio
import json
import random
from collections import Counter, deque
from dataclasses import dataclass, field

_KEY = "dev-paid"
_TRY_S = 30.0
"""Longer than a gateway lets a caller wait for an answer that is made elsewhere: a try that takes so long has hung."""
_LONGEST_PAUSE_S = 1.0
"""Whoever is told to come back later comes back then: the run is short."""
_RETRIED = (408, 409, 429, 500, 504, 529)
_AGAIN_SHARE = 0.2
"""So often a question of before is asked again, as by a caller who lost the answer: some of these are replayed, and some are
answered anew after a crash."""
_NUM_REMEMBERED = 100
"""Questions of each caller that may be asked again: those of the last seconds, of two or three lives of the server."""
_STREAM_LIMIT = 2**20


@dataclass
class Books:
    """What all callers got. `answers` are those received to their last byte: request id, input and output tokens."""

    num_questions: int = 0
    num_tries: int = 0
    num_broken: int = 0
    """Tries that got no answer, or half of one."""
    num_replayed: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    answers: list[tuple[str, int, int]] = field(default_factory=list)
    billable: list[tuple[int, int]] = field(default_factory=list)
    """Input and output tokens of each question, once."""


class Caller:
    """One connection at a time, one question after the other."""

    def __init__(self, number: int, *, port: int, model: str, books: Books, seed: int) -> None:
        self._name = f"{seed}-{number}"
        self._port = port
        self._model = model
        self._books = books
        self._rng = random.Random(f"{seed}/{number}")
        self._asked: deque[tuple[bytes, tuple[int, int]]] = deque(maxlen=_NUM_REMEMBERED)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, is_over: asyncio.Event) -> None:
        """Asks until it is over; what was asked by then is asked until it is answered."""
        number = 0
        while not is_over.is_set():
            number += 1
            self._books.num_questions += 1
            request = self._question(f"{self._name}-{number}")
            tokens = await self._ask(request)
            self._books.billable.append(tokens)
            self._asked.append((request, tokens))
            if self._rng.random() < _AGAIN_SHARE:
                request, tokens = self._rng.choice(self._asked)
                assert await self._ask(request) == tokens, "the same question had another price"
        self._hang_up()

    def _question(self, key: str) -> bytes:
        text = "x" * self._rng.randrange(1, 200)
        if self._rng.random() < 0.5:
            path, body = "/v1/run", json.dumps({"input": text})
        else:
            messages = [{"role": "user", "content": text}]
            path, body = "/v1/messages", json.dumps({"model": self._model, "messages": messages, "max_tokens": 1000})
        head = f"POST {path} HTTP/1.1\r\nhost: test\r\nx-api-key: {_KEY}\r\nidempotency-key: {key}\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()

    async def _ask(self, request: bytes) -> tuple[int, int]:
        """The price of the answer, when there is one."""
        while True:
            self._books.num_tries += 1
            try:
                async with asyncio.timeout(_TRY_S):
                    status, headers, body = await self._try(request)
            except (OSError, EOFError):
                # EOFError: the connection ended within an answer.
                self._hang_up()
                self._books.num_broken += 1
                await asyncio.sleep(self._rng.uniform(0.01, 0.1))
                continue
            self._books.statuses[status] += 1
            if status == 200:
                answer = json.loads(body)
                usage = answer["usage"]
                # Texts are ASCII, so the characters of /v1/run are the bytes that it is billed for.
                unit = "tokens" if "input_tokens" in usage else "characters"
                tokens = usage[f"input_{unit}"], usage[f"output_{unit}"]
                self._books.answers.append((answer["id"], *tokens))
                self._books.num_replayed += "idempotent-replayed" in headers
                return tokens
            if status not in _RETRIED:
                raise RuntimeError(f"{status}: {body!r}")
            await asyncio.sleep(min(float(headers.get("retry-after", "0.1")), _LONGEST_PAUSE_S))

    async def _try(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port, limit=_STREAM_LIMIT)
        reader, writer = self._connection
        writer.write(request)
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self._hang_up()
        return int(status_line.split(" ")[1]), headers, body

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None
