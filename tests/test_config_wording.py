"""Wrong values of nested settings are told with their place, what would do, and what was probably meant."""

from typing import Any

import msgspec
import pytest

from batcher.config import Mode
from batcher.config.wording import in_words, one_of, why_unread


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    mode: Mode | None = None
    seconds: float = 1.0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    items: tuple[Inner, ...] = ()
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"items": [{}, {"mode": "fast"}]}, "items[1].mode is 'fast'; it must be batch or continuous"),
        ({"items": [{"mode": "x" * 1000}]}, f"items[0].mode is '{'x' * 100}'; it must be batch or continuous"),
        ({"inner": {"mode": "fast"}}, "inner.mode is 'fast'; it must be batch or continuous"),
        ({"inner": {"second": 1}}, "inner has no setting 'second'; did you mean seconds?"),
        ({"item": []}, "has no setting 'item'; did you mean items?"),
        ({"zebra": []}, "has no setting 'zebra'"),
        ({"items": {"mode": "batch"}}, "items is one table; write [[items]], with two brackets, for each"),
        ({"items": 3}, "Expected `array`, got `int` - at `$.items`"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(values: Any, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(values, Outer)
    assert in_words(raised.value, Outer, values) == words


def test_choices_are_listed_as_they_are_spoken() -> None:
    assert [one_of(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


def test_a_file_s_path_is_not_repeated() -> None:
    assert why_unread(FileNotFoundError(2, "No such file or directory", "there.toml")) == "No such file or directory"
    assert why_unread(ValueError("line 3")) == "line 3"
