"""The kinds of abuse, each a list of variants that its clients share out: a manner, and the bytes that it says.

What counts as abuse is what other servers fell to. A key of `abuser` is one that the server knows; it is good, as those that
get furthest have good keys.
"""

import json
from collections.abc import Callable
from random import Random
from typing import TypeAlias

import msgspec

from loadtest.scenarios.abuse_lines import Make, Manner, ask, ask_many, deaf, drip, hold, leave, pour

RUN, MESSAGES, CHAT, COUNT = "/v1/run", "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"
MODEL = "simulated"
NUM_KEYS = 10
"""Of each kind."""
LIMITED_KEY = "abuser-limited"
"""It may ask once a minute."""
_HUGE = 100_000_000


class Variant(msgspec.Struct, frozen=True):
    manner: Manner
    make: Make


class Kind(msgspec.Struct, frozen=True):
    """`period_s` is the least time between two visits of one client: it bounds what an abuse may cost its own process."""

    name: str
    period_s: float
    variants: tuple[Variant, ...]


def abuser_keys() -> list[str]:
    """All keys that abusers have, but the limited one."""
    return [f"abuser-{kind}-{number}" for kind in KINDS for number in range(NUM_KEYS)]


def head(path: str, key: str, *lines: str | bytes, method: str = "POST") -> bytes:
    """Of a request, with these header lines behind the usual ones."""
    first = [f"{method} {path} HTTP/1.1", "host: abuse", f"x-api-key: {key}"]
    return b"\r\n".join([*(line.encode() if isinstance(line, str) else line for line in (*first, *lines)), b"", b""])


def post(path: str, key: str, body: bytes, *lines: str | bytes) -> bytes:
    return head(path, key, *lines, f"content-length: {len(body)}") + body


def run_body(text: str) -> bytes:
    return json.dumps({"input": text}).encode()


def message_body(text: str, **fields: object) -> bytes:
    document = {"model": MODEL, "max_tokens": 200_000, "messages": [{"role": "user", "content": text}], **fields}
    return json.dumps(document).encode()


Key: TypeAlias = Callable[[Random], str]
"""Draws one of a kind's keys."""


def _kind(name: str, period_s: float, make: Callable[[Key], list[tuple[Manner, Make]]]) -> Kind:
    variants = make(lambda random: f"abuser-{name}-{random.randrange(NUM_KEYS)}")
    return Kind(name, period_s, tuple(Variant(manner, bytes_of) for manner, bytes_of in variants))


def _crowd(key: Key) -> list[tuple[Manner, Make]]:
    """No abuse: as many clients, as many bytes, all good."""
    return [
        (ask, lambda random: post(RUN, key(random), run_body("good " * 200))),
        (ask, lambda random: post(MESSAGES, key(random), message_body("good " * 20_000))),
        (ask, lambda random: post(MESSAGES, key(random), message_body("good " * 20_000, stream=True))),
    ]


def _deaf(key: Key) -> list[tuple[Manner, Make]]:
    """Streams and answers larger than all that lies between, and many small ones ahead."""
    text = "never read " * 9_000
    stream = message_body(text, stream=True)
    return [
        (deaf, lambda random: post(MESSAGES, key(random), stream)),
        (deaf, lambda random: post(MESSAGES, key(random), stream, "anthropic-version: 2023-06-01")),
        (deaf, lambda random: post(CHAT, key(random), stream)),
        (deaf, lambda random: post(MESSAGES, key(random), message_body(text))),
        (deaf, lambda random: post(RUN, key(random), run_body("never read" * 400)) * 10),
    ]


def _slow(key: Key) -> list[tuple[Manner, Make]]:
    body = run_body("slow")
    return [
        (drip, lambda random: post(RUN, key(random), body)),
        (drip, lambda random: b"GET /"),
        (hold, lambda random: post(RUN, key(random), body)[:-1]),
        (hold, lambda random: post(MESSAGES, key(random), message_body("slow"))[:-1]),
        (hold, lambda random: head(CHAT, key(random), "transfer-encoding: chunked") + b"1\r\n{\r\n"),
        (hold, lambda random: head(RUN, key(random), "transfer-encoding: chunked") + b"1\r\n{\r\n"),
        (hold, lambda random: post(RUN, "no such key", body)[:-1]),
        (hold, lambda random: b"POST /v1/run HTTP/1.1\r\nhost: a\r\nx-a"),
        (hold, lambda random: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)),
        (hold, lambda random: b""),
    ]


def _huge(key: Key) -> list[tuple[Manner, Make]]:
    heads: list[Callable[[Random], bytes]] = []
    for path in (RUN, MESSAGES, CHAT, COUNT, "/health", "/nowhere"):
        heads += [
            lambda random, path=path: head(path, key(random), f"content-length: {_HUGE}"),  # type: ignore[misc]
            lambda random, path=path: head(path, key(random), "transfer-encoding: chunked"),  # type: ignore[misc]
            lambda random, path=path: head(path, "no such key", f"content-length: {_HUGE}"),  # type: ignore[misc]
            lambda random, path=path: head(path, "no such key", "transfer-encoding: chunked"),  # type: ignore[misc]
            lambda random, path=path: head(  # type: ignore[misc]
                path, key(random), "content-encoding: gzip", "transfer-encoding: chunked"
            ),
        ]
    return [(pour, make) for make in heads]


BAD_TEXTS = (
    b'{"input": "\xff\xfe"}',
    b'{"input": "\xc0\xaf"}',
    b'{"input": "\xed\xa0\xbd"}',
    b'{"input": "\\ud83d"}',
    b'{"input": "\\u0000"}',
    b'\xef\xbb\xbf{"input": "BOM"}',
    '{"input": "UTF-16"}'.encode("utf-16"),
    b"[" * 100_000,
    b'{"input":' * 50_000,
    b'{"input": ' + b"9" * 100_000 + b"}",
    b'{"model": "simulated", "max_tokens": 1e999, "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "simulated", "max_tokens": 10, "stream": true, "messages": [{"role": "user", "content": "\\udc00"}]}',
    b'{"model": "simulated", "max_tokens": 10, "metadata": ' + b'{"a":' * 50_000,
    b"\x00" * 1000,
)


def _bad_text(key: Key) -> list[tuple[Manner, Make]]:
    return [
        (ask, lambda random, path=path, text=text: post(path, key(random), text))  # type: ignore[misc]
        for path in (RUN, MESSAGES, CHAT, COUNT)
        for text in BAD_TEXTS
    ]


HEADER_TRICKS: tuple[tuple[str | bytes, ...], ...] = (
    ("x-request-id: " + "i" * 60_000,),
    ("x-request-id: a%0d%0aset-cookie: b",),
    (b"x-request-id: a\rset-cookie: b",),
    (b"x-request-id: \xe9\xff",),
    ("x-request-id: \U0001f600",),
    ("idempotency-key: " + "k" * 60_000,),
    (b"idempotency-key: \xe9\xff",),
    ("idempotency-key: \U0001f600",),
    (b"authorization: Bearer \xff\xfe",),
    tuple(f"x-{number}: {number}" for number in range(3000)),
    ("content-length: 18", "content-length: 3"),
    ("content-length: 3", "transfer-encoding: chunked"),
    ("transfer-encoding: gzip, chunked",),
    ("transfer-encoding: chunked, identity",),
    ("content-length: +18",),
    ("content-length: " + "9" * 40,),
    ("connection: upgrade", "upgrade: websocket", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", "sec-websocket-version: 13"),
    ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"),
    ("expect: 100-continue", "content-length: 1000000000"),
    ("traceparent: 00-" + "f" * 5000 + "-01",),
    ("anthropic-version: \U0001f600" + "9" * 1000,),
    (" folded: header",),
    (b"nul: a\x00b",),
    ("host: " + "h" * 50_000,),
)


def _headers(key: Key) -> list[tuple[Manner, Make]]:
    body = run_body("tricks")
    return [
        (ask, lambda random, path=path, lines=lines: head(path, key(random), *lines) + body)  # type: ignore[misc]
        for lines in HEADER_TRICKS
        for path in (RUN, MESSAGES, "/v1/models", "/metrics")
    ]


def _random_names(key: Key) -> list[tuple[Manner, Make]]:
    """Five in advance on each visit: twenty thousand names in eight seconds."""

    def name(random: Random) -> str:
        return f"n{random.getrandbits(64):x}"

    return [
        (ask_many, lambda random: post(MESSAGES, key(random), message_body("x", model=name(random)))),
        (ask_many, lambda random: post(CHAT, key(random), message_body("x", model=name(random)))),
        (ask_many, lambda random: head(f"/v1/{name(random)}", key(random), method="GET")),
        (ask_many, lambda random: head(f"/v1/models/{name(random)}", key(random), method="GET")),
        (ask_many, lambda random: post(RUN, name(random), run_body("x"), f"x-request-id: {name(random)}")),
        (ask_many, lambda random: head(f"/{name(random)}", name(random), method="DELETE")),
    ]


def _idempotent(key: Key) -> list[tuple[Manner, Make]]:
    """Names that were never seen, and one that all have, with one body and with many."""
    body = run_body("again")
    return [
        (ask, lambda random: post(RUN, key(random), body, f"idempotency-key: {random.getrandbits(64):x}")),
        (ask, lambda random: post(RUN, key(random), body, "idempotency-key: same")),
        (ask, lambda random: post(RUN, key(random), run_body(f"{random.random()}"), "idempotency-key: another")),
        (ask, lambda random: post(MESSAGES, key(random), message_body("again"), "idempotency-key: message")),
        (leave, lambda random: post(RUN, key(random), body, f"idempotency-key: {random.randrange(50)}")),
    ]


def _leavers(key: Key) -> list[tuple[Manner, Make]]:
    body = run_body("gone " * 20)
    return [
        (leave, lambda random: post(RUN, key(random), body)),
        (leave, lambda random: post(RUN + "?by=asgi", key(random), body)),
        (leave, lambda random: post(RUN, key(random), body)[: random.randrange(1, 200)]),
        (leave, lambda random: post(MESSAGES, key(random), message_body("gone"))),
        (leave, lambda random: post(MESSAGES, key(random), message_body("gone", stream=True))),
        (leave, lambda random: post(CHAT, key(random), message_body("gone", stream=True))),
    ]


def _limited(key: Key) -> list[tuple[Manner, Make]]:
    body = run_body("x" * 5_000)
    return [
        (ask, lambda random: post(RUN, LIMITED_KEY, body)),
        (ask, lambda random: head(RUN, LIMITED_KEY, "content-length: 500000")),
        (ask, lambda random: post(MESSAGES, LIMITED_KEY, message_body("x", stream=True))),
        (ask, lambda random: post(CHAT, LIMITED_KEY, message_body("x"))),
    ]


def _long(manner: Manner, *streams: bool, max_tokens: int = 5000) -> Callable[[Key], list[tuple[Manner, Make]]]:
    """In continuous mode: long answers, whole and streamed, whose clients do with them what `manner` says."""

    def make(key: Key, stream: bool) -> Make:
        body = message_body("for ever ", max_tokens=max_tokens, stream=stream)
        return lambda random: post(MESSAGES, key(random), body)

    return lambda key: [(manner, make(key, stream)) for stream in streams]


KINDS = {
    kind.name: kind
    for kind in (
        _kind("crowd", 2.0, _crowd),
        _kind("slow-readers", 5.0, _deaf),
        _kind("slow-writers", 2.0, _slow),
        _kind("huge-bodies", 4.0, _huge),
        _kind("bad-text", 2.0, _bad_text),
        _kind("header-tricks", 2.0, _headers),
        _kind("random-names", 2.0, _random_names),
        _kind("idempotency-keys", 2.0, _idempotent),
        _kind("leavers", 10.0, _leavers),
        _kind("over-limits", 2.0, _limited),
        _kind("listeners", 2.0, _long(ask, True, False, max_tokens=200)),
        _kind("unread-streams", 5.0, _long(deaf, True)),
        _kind("long-answers", 30.0, _long(hold, True, False)),
    )
}
"""The first is no abuse; the last three are continuous mode's, of which the first is none either."""
