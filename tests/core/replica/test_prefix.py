"""The hash chain: equal names where every token up to the block's end is the same, and nowhere else."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.core.replica.prefix import block_hashes, chain_root
from batcher.types import BLOCK_SIZE, PENDING

ROOT = chain_root(model_version="m-1", salt=b"ann")
FIRST = list(range(BLOCK_SIZE))
SECOND = list(range(100, 100 + BLOCK_SIZE))


def name_after(parent: bytes, block: list[int]) -> bytes:
    (name,) = block_hashes(parent, block)
    return name


def test_only_full_blocks_have_a_name() -> None:
    assert block_hashes(ROOT, []) == []
    assert block_hashes(ROOT, FIRST[:-1]) == []
    assert block_hashes(ROOT, FIRST) == [name_after(ROOT, FIRST)]
    assert block_hashes(ROOT, [*FIRST, *SECOND[:-1]]) == [name_after(ROOT, FIRST)]


def test_a_chain_can_be_extended_block_by_block() -> None:
    """A decode fills one block at a time, and must find the names that a long prompt finds at once."""
    first = name_after(ROOT, FIRST)
    second = name_after(first, SECOND)

    assert block_hashes(ROOT, FIRST + SECOND) == [first, second]
    assert block_hashes(first, SECOND) == [second]


def test_the_names_do_not_depend_on_what_the_tokens_are_kept_in() -> None:
    assert block_hashes(ROOT, array("i", FIRST)) == block_hashes(ROOT, tuple(FIRST)) == block_hashes(ROOT, FIRST)


def test_a_block_is_known_by_all_that_is_before_it() -> None:
    """The same sixteen tokens after another beginning have other keys and values."""
    assert block_hashes(ROOT, FIRST + SECOND)[1] != block_hashes(ROOT, SECOND + SECOND)[1]
    assert block_hashes(ROOT, FIRST + FIRST)[1] != block_hashes(ROOT, FIRST)[0]


def test_the_order_of_tokens_matters() -> None:
    assert name_after(ROOT, FIRST) != name_after(ROOT, FIRST[::-1])


def test_tenants_and_model_versions_share_nothing() -> None:
    """CASES B63: the other tenant's hit would tell by its speed what the first one sent."""
    roots = [
        chain_root(model_version="m-1", salt=b"ann"),
        chain_root(model_version="m-1", salt=b"bob"),
        chain_root(model_version="m-1", salt=b""),
        chain_root(model_version="m-2", salt=b"ann"),
        chain_root(model_version="", salt=b"ann"),
    ]

    names = {name for root in roots for name in block_hashes(root, FIRST + SECOND)}

    assert len(names) == 2 * len(roots)


def test_a_letter_cannot_move_from_one_part_of_the_root_to_the_next() -> None:
    assert chain_root(model_version="m-1a", salt=b"nn") != chain_root(model_version="m-1", salt=b"ann")
    assert chain_root(model_version="m-1ann", salt=b"") != chain_root(model_version="m-1", salt=b"ann")
    assert chain_root(model_version="", salt=b"m-1ann") != chain_root(model_version="m-1", salt=b"ann")


def test_the_largest_token_ids_have_names_of_their_own() -> None:
    """Wrapped to two bytes, these would all be one."""
    blocks = [[token] * BLOCK_SIZE for token in (0, 1, 255, 256, 2**16, 2**31 - 2, 2**31 - 1)]

    assert len({name_after(ROOT, block) for block in blocks}) == len(blocks)


def test_a_token_that_is_not_known_yet_has_no_name() -> None:
    with pytest.raises(OverflowError):
        block_hashes(ROOT, [*FIRST[:-1], PENDING])
    with pytest.raises(OverflowError):
        name_after(ROOT, [2**32] * BLOCK_SIZE)


def test_what_cannot_be_a_link_of_the_chain_is_refused() -> None:
    with pytest.raises(AssertionError, match="goes on from a digest"):
        block_hashes(b"", FIRST)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data(), num_tokens=st.integers(1, 5 * BLOCK_SIZE))
def test_one_changed_token_renames_its_block_and_all_after_it(data: st.DataObject, num_tokens: int) -> None:
    tokens = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=num_tokens, max_size=num_tokens))
    position = data.draw(st.integers(0, num_tokens - 1))
    changed = tokens.copy()
    changed[position] = data.draw(st.integers(0, 2**31 - 1).filter(lambda token: token != tokens[position]))

    before, after = block_hashes(ROOT, tokens), block_hashes(ROOT, changed)

    assert len(before) == len(after) == num_tokens // BLOCK_SIZE
    is_same = [old == new for old, new in zip(before, after, strict=True)]
    assert is_same == [block < position // BLOCK_SIZE for block in range(len(before))]
