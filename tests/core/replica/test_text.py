"""Text comes out in whole characters, and a stop string never leaks its head nor loses what follows a false start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.core.replica.text import TextStream


def stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    text = TextStream(stops)
    shown = []
    for piece in pieces:
        shown.append(text.feed(piece))
        if text.stopped:
            break
    return [*shown, text.flush()], text


def one_by_one(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


@pytest.mark.parametrize("text", ["é", "漢字", "🙂", "👨‍👩‍👧‍👦", "a🙂b", "\x00", "\ufffd"])
def test_characters_come_out_whole_however_their_bytes_are_split(text: str) -> None:
    shown, _ = stream(one_by_one(text.encode()))
    assert [piece for piece in shown if piece] == list(text)


def test_a_character_cut_by_the_end_is_replaced_once() -> None:
    shown, _ = stream(one_by_one("ab🙂".encode()[:-1]))
    assert shown == ["a", "b", "", "", "", "\ufffd"]


def test_a_lone_continuation_byte_is_replaced_at_once() -> None:
    shown, _ = stream([b"a", b"\x80", b"b"])
    assert shown == ["a", "\ufffd", "b", ""]


def test_a_stop_string_split_over_tokens_never_shows_its_head() -> None:
    shown, text = stream([b"The end", b" #", b"#", b"# more"], ("###",))
    assert shown == ["The end", " ", "", "", ""]
    assert text.stopped_by == "###"


def test_a_false_start_is_shown_as_soon_as_it_cannot_be_the_stop_string() -> None:
    shown, text = stream([b"a#", b"#", b"b", b"#"], ("###",))
    assert shown == ["a", "", "##b", "", "#"]
    assert not text.stopped


def test_the_overlap_of_a_false_start_with_a_true_one_is_kept() -> None:
    shown, text = stream(one_by_one(b"xaabaaab!"), ("aab!",))
    assert "".join(shown) == "xaaba"
    assert text.stopped_by == "aab!"


def test_of_stop_strings_that_end_together_the_longest_counts() -> None:
    shown, text = stream([b"say END now"], ("D", "END"))
    assert "".join(shown) == "say "
    assert text.stopped_by == "END"


def test_the_stop_string_that_ends_first_counts() -> None:
    shown, text = stream([b"abcdef"], ("bcde", "c"))
    assert "".join(shown) == "ab"
    assert text.stopped_by == "c"


def test_a_stop_string_of_characters_of_many_bytes() -> None:
    shown, text = stream(one_by_one("oui 🙂🙂 non".encode()), ("🙂🙂",))
    assert "".join(shown) == "oui "
    assert text.stopped_by == "🙂🙂"


texts = st.text(alphabet="ab🙂é", max_size=40)


@given(text=texts, stops=st.lists(st.text(alphabet="ab🙂é", min_size=1, max_size=5), max_size=4), data=st.data())
def test_any_split_shows_what_a_search_of_the_whole_text_shows(text: str, stops: list[str], data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=10)))
    pieces = [encoded[low:high] for low, high in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    shown, after = stream(pieces, tuple(stops))

    ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        assert "".join(shown) == text
        assert not after.stopped
        return
    end, negative_length = min(ends)
    assert "".join(shown) == text[: end + negative_length]
    assert after.stopped_by == text[end + negative_length : end]
