"""The native grammar, byte by byte (SPEC S4). What it refuses is tested on the wire, in every mode."""

from batcher.errors import Overloaded
from batcher.service.conversation import Conversation
from batcher.service.wire.native import NATIVE
from batcher.types import FinishReason, Message, Sampling, Usage
from tests.service.wire.grammars import HEAD, STANDING, body

USAGE = Usage(5, 2)


def test_a_body_is_a_conversation() -> None:
    decoded = NATIVE.decode(body(temperature=0, top_p=0.5, top_k=3, stop_sequences=["a", "b"], seed=9, stream=True))
    assert decoded == Conversation(
        model="m",
        messages=(Message("user", "hello"),),
        max_tokens=7,
        sampling=Sampling(temperature=0.0, top_p=0.5, top_k=3, seed=9),
        stop_sequences=("a", "b"),
        is_streamed=True,
    )


def test_who_gives_no_seed_gets_one_of_its_own() -> None:
    seeds = {NATIVE.decode(body()).sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_answer() -> None:
    assert NATIVE.encode_answer(HEAD, 'a"\n', FinishReason.STOP_SEQUENCE, "x", USAGE) == (
        rb'{"id":"req_1","content":"a\"\n","stop_reason":"stop_sequence","usage":{"input_tokens":5,"output_tokens":2}}'
    )


def test_a_stream() -> None:
    writer = NATIVE.open_stream(HEAD, NATIVE.decode(body(stream=True)))
    assert writer.start() == b'event: message_start\ndata: {"type":"message_start","id":"req_1","model":"m"}\n\n'
    assert writer.delta("a\n") == b'event: content_delta\ndata: {"type":"content_delta","text":"a\\n"}\n\n'
    assert writer.ping() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert writer.stop(FinishReason.MAX_TOKENS, None, USAGE) == (
        b'event: message_stop\ndata: {"type":"message_stop","stop_reason":"max_tokens",'
        b'"usage":{"input_tokens":5,"output_tokens":2}}\n\n'
    )
    assert writer.error(Overloaded("full", retry_after_s=3)) == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"full","retry_after_s":3},'
        b'"request_id":"req_1"}\n\n'
    )


def test_the_headers() -> None:
    assert NATIVE.limit_headers(STANDING, now=0.0) == [
        (b"x-ratelimit-limit-requests", b"10"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", b"2"),
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"999"),
        (b"x-ratelimit-reset-tokens", b"0"),
    ]
    assert NATIVE.request_id_names == ()
