"""How much of an answer has left, where text is held back."""

from batcher.service.delivery import Delivery


def test_a_piece_counts_once_any_of_it_has_left() -> None:
    delivery = Delivery(counts_bytes=False)
    delivery.add("abc", 2)
    delivery.add("de", 3)
    assert delivery.num_tokens == 0
    delivery.leave("")
    assert delivery.num_tokens == 0
    delivery.leave("a")
    assert delivery.num_tokens == 2
    delivery.leave("bc")
    assert delivery.num_tokens == 2
    delivery.leave("d")
    assert delivery.num_tokens == 5
    delivery.add("f", 7)
    delivery.leave("e")
    assert delivery.num_tokens == 5
    delivery.leave("f")
    assert delivery.num_tokens == 12


def test_several_pieces_leave_together() -> None:
    delivery = Delivery(counts_bytes=False)
    for text, num_tokens in (("ab", 1), ("", 9), ("c", 1), ("def", 4)):
        delivery.add(text, num_tokens)
    delivery.leave("abc")
    assert delivery.num_tokens == 2


def test_bytes_count_as_they_leave() -> None:
    delivery = Delivery(counts_bytes=True)
    delivery.add("häß", 100)
    delivery.leave("hä")
    assert delivery.num_tokens == 3
