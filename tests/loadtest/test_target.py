"""What a question looks like on the wire, and which answers belong to it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.errors import ConfigError
from loadtest.samples import Ending
from loadtest.target import MIN_INPUT_SIZE, Check, Questions, Target, Wire, run_target
from tests.loadtest.examples import MIX


def make_wire(target: Target, *, input_size: int = 40) -> Wire:
    return Wire(target, MIX.senders, input_size)


@given(st.integers(MIN_INPUT_SIZE + 4, 300), st.integers(), st.sets(st.integers(0, 4_999_999), max_size=50))
def test_inputs_are_unique_and_of_one_size(size: int, seed: int, indices: set[int]) -> None:
    questions = Questions(size=size, seed=seed, poison_prefix="BOOM")
    texts = [questions.text(index, is_poison=index % 2 == 0) for index in indices]
    assert len(set(texts)) == len(indices)
    assert all(len(text) == size and text.isascii() and '"' not in text and "\\" not in text for text in texts)
    assert all(text.startswith("BOOM") == (index % 2 == 0) for text, index in zip(texts, indices, strict=True))


def test_inputs_of_two_seeds_differ() -> None:
    first, second = (Questions(size=40, seed=seed, poison_prefix="").text(0, is_poison=False) for seed in (1, 2))
    assert first != second


def test_the_run_preset_on_the_wire() -> None:
    wire = make_wire(run_target("http://127.0.0.1:8000/"))
    head, body = wire.request(1, "x" * 40).split(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first == "POST /v1/run HTTP/1.1"
    assert "host: 127.0.0.1:8000" in headers
    assert "x-api-key: dev-free" in headers
    assert f"content-length: {len(body)}" in headers
    assert msgspec.json.decode(body) == {"input": "x" * 40}


def test_a_body_template_may_use_the_input_twice_and_any_letters() -> None:
    target = Target(
        url="http://127.0.0.1/a/b?c=d",
        body='{"größe": 3, "text": "{input}", "again": ["{input}"]}',
        headers=(("Authorization", "Bearer {key}"), ("Content-Type", "text/plain")),
    )
    head, body = make_wire(target).request(0, "y" * 40).split(b"\r\n\r\n")
    assert head.startswith(b"POST /a/b?c=d HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    assert b"authorization: Bearer dev-paid" in head
    assert head.count(b"content-type") == 1
    assert f"content-length: {len(body)}".encode() in head
    assert msgspec.json.decode(body) == {"größe": 3, "text": "y" * 40, "again": ["y" * 40]}


@pytest.mark.parametrize(
    ("status", "is_poison", "ending"),
    [
        (429, False, Ending.REJECTED_RATE),
        (529, False, Ending.REJECTED_CAPACITY),
        (503, False, Ending.REJECTED_CAPACITY),
        (504, False, Ending.EXPIRED),
        (500, False, Ending.FAILED),
        (502, False, Ending.FAILED),
        (401, False, Ending.CLIENT_ERROR),
        (302, False, Ending.CLIENT_ERROR),
        (500, True, Ending.POISON_FAILED),
        (502, True, Ending.FAILED),
        (529, True, Ending.REJECTED_CAPACITY),
    ],
)
def test_statuses_are_judged(status: int, is_poison: bool, ending: Ending) -> None:
    assert make_wire(run_target("http://h")).judge(status, b"{}", "q", is_poison) == (ending, None)


@pytest.mark.parametrize(
    ("check", "body", "ending"),
    [
        (Check.ECHO, b'{"id":"a","output":"q"}', Ending.OK),
        (Check.ECHO, b'{"id":"a","output":"qq"}', Ending.MISMATCHED),
        (Check.CONTAINS, b'{"id":"a","output":"<q>"}', Ending.OK),
        (Check.CONTAINS, b'{"id":"a","output":"p"}', Ending.MISMATCHED),
        (Check.CONTAINS, b'{"id":"a","output":7}', Ending.MISMATCHED),
        (Check.ECHO, b'{"id":"a"}', Ending.MISMATCHED),
        (Check.ECHO, b"[]", Ending.MISMATCHED),
        (Check.ECHO, b"", Ending.MISMATCHED),
        (Check.ECHO, b"\xff", Ending.MISMATCHED),
        (Check.NONE, b"whatever", Ending.OK),
    ],
)
def test_answers_are_checked_against_their_question(check: Check, body: bytes, ending: Ending) -> None:
    assert make_wire(run_target("http://h", check=check)).judge(200, body, "q", False)[0] is ending


def test_a_poison_that_is_answered_is_seen() -> None:
    answer = b'{"id":"a","output":"q"}'
    assert make_wire(run_target("http://h")).judge(200, answer, "q", True) == (Ending.POISON_ANSWERED, "a")


def test_an_output_deep_in_the_answer() -> None:
    target = Target(url="http://h", output_field="choices.0.message.content", id_field="meta.id")
    body = b'{"meta":{"id":7},"choices":[{"message":{"content":"q"}}]}'
    assert make_wire(target).judge(200, body, "q", False) == (Ending.OK, 7)
    assert make_wire(target).judge(200, b'{"choices":[]}', "q", False) == (Ending.MISMATCHED, None)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h", "http://", "http://h:99999", "http://me:secret@h/"])
def test_urls_that_cannot_work_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Target(url=url)


def test_targets_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no \{input\}"):
        Target(url="http://h", body="{}")
    assert Target(url="http://h", body="{}", check=Check.NONE).body == "{}"
    with pytest.raises(ConfigError, match="no usable header"):
        Target(url="http://h", headers=(("a", "b\r\nc: d"),))
    with pytest.raises(ConfigError, match="Latin-1"):
        make_wire(Target(url="http://h", headers=(("a", "€"),)))
