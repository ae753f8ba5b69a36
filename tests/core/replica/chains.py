"""Short chains for the tests of the block pool: four names of blocks, and a pool that remembers some."""

from batcher.core.replica.blocks import BlockPool

A, B, C, D = (bytes([letter]) * 32 for letter in b"abcd")


def a_pool_with_a_cached_chain(num_blocks: int, hashes: list[bytes]) -> tuple[BlockPool, list[int]]:
    """The pool after one sequence, whose blocks had these hashes, has come and gone; and its blocks."""
    pool = BlockPool(num_blocks)
    table = pool.take([], len(hashes))
    for block, block_hash in zip(table, hashes, strict=True):
        pool.publish(block, block_hash)
    pool.release(table)
    return pool, table
