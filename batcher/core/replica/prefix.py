"""What a block is known by: a hash chain over the tokens before it and in it.

A block of keys and values may be used again exactly where every token up to its end is the same, since each position attends
to all before it (SPEC S6.4). So a block's name is the digest of its parent's name and its own tokens, and one lookup answers
for the whole prefix:

    root = H(model version, salt)  ->  H(root, tokens 0 to 15)  ->  H(that, tokens 16 to 31)  ->  ...

H is SHA-256. Python's own `hash` was refused: it is quick to collide on purpose, and a collision hands one customer's context
to another. The salt is the tenant's, so that nobody learns from a quick first token what another tenant has sent (CASES B63).
Comparing token ids on every hit was refused, too: it keeps each prompt in memory for as long as its blocks are remembered.

A digest is compared inside one process and never stored: numbers are packed in the machine's own byte order.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256

from batcher.types import BLOCK_SIZE

_ROOT_TAG = b"batcher.root\x00"
_BLOCK_TAG = b"batcher.block\x00"
"""Roots and blocks are tagged apart, and what could vary in length follows its length: no two meanings share their bytes."""

_TOKEN_TYPE = "I"
"""Four bytes without a sign: PENDING, which stands for a token that is not known yet, has no encoding."""

_BLOCK_BYTES = BLOCK_SIZE * array(_TOKEN_TYPE).itemsize

_DIGEST_BYTES = sha256().digest_size


def chain_root(*, model_version: str, salt: bytes) -> bytes:
    """The digest that all chains of one tenant and one model version begin with: 32 bytes."""
    return sha256(_ROOT_TAG + _prefixed(model_version.encode()) + _prefixed(salt)).digest()


def block_hashes(root: bytes, tokens: Sequence[int]) -> list[bytes]:
    """The names of all full blocks of `tokens`, in order: the chain from `root`, or on from a block's name. 32 bytes each, and
    about a microsecond.

    Raises OverflowError if a token is negative, as PENDING is, or has more than 32 bits.
    """
    assert len(root) == _DIGEST_BYTES, f"a chain goes on from a digest, not from {len(root)} bytes"
    packed = array(_TOKEN_TYPE, tokens).tobytes()
    hashes = []
    parent = root
    for end in range(_BLOCK_BYTES, len(packed) + 1, _BLOCK_BYTES):
        parent = sha256(_BLOCK_TAG + parent + _prefixed(packed[end - _BLOCK_BYTES : end])).digest()
        hashes.append(parent)
    return hashes


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part
