"""Events are one line each, whatever line breaks a reader knows."""

import json

import pytest

from batcher.service.wire.events import named_event, unnamed_event

TEXTS = ["plain", "\x85", "\u2028\u2029", "é\x85日\u2028👩", "\xc2\u2027\u202a", "\x00\r\n\v\f\x1c"]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_the_data_of_an_event_is_one_line(text: str) -> None:
    data = json.dumps({"text": text}, ensure_ascii=False).encode()
    for event, num_lines in ((named_event(b"delta", data), 2), (unnamed_event(data), 1)):
        *lines, end = event.decode().removesuffix("\n").splitlines(keepends=True)
        assert len([*lines, end]) == num_lines
        assert json.loads(end.removeprefix("data: ")) == {"text": text}
