"""Kernels for CUDA: attention over paged KV, and the small operations around it, each one launch.

Written in Triton rather than taken from a library, since the paged cache and the step's mixture of decodes and prefill chunks
are this project's own, and since they also run in Triton's interpreter on a machine without a GPU, where the tests hold
them against the reference. Shapes as in `ops.py`; BLOCK is the number of tokens of a KV block.

Keys and values of one layer are [blocks, G, BLOCK, D] each: what one program reads of a block lies together.

A program of the attention kernels serves one KV head of one sequence, with all the query heads that share it: its keys and
values are read once for them. Rows of its tile are (query, head of the group), padded to a power of two and to the 16 rows that
tensor cores want. Softmax is online (Milakov and Gimelshein, 2018). Decodes are split along the context as well, and the
parts are joined by a second kernel (flash-decoding), since a few sequences with long contexts would leave most of a GPU idle.
"""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm_kernel(x, residual, weight, out, eps, size: tl.constexpr, size_padded: tl.constexpr, adds: tl.constexpr):
    """One row a program: `residual += x` where it `adds`, then the norm of the sum (else of x)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, size_padded)
    mask = column < size
    value = tl.load(x + row * size + column, mask=mask, other=0.0)
    if adds:
        # The sum is rounded to the model's dtype before the norm sees it, as the reference does.
        value = (value.to(tl.float32) + tl.load(residual + row * size + column, mask=mask, other=0.0).to(tl.float32)).to(
            value.dtype
        )
        tl.store(residual + row * size + column, value, mask=mask)
    exact = value.to(tl.float32)
    normed = exact * tl.rsqrt(tl.sum(exact * exact, axis=0) / size + eps)
    scaled = normed * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, scaled.to(value.dtype), mask=mask)


@triton.jit
def silu_mul_kernel(gate_up, out, inner, tile: tl.constexpr):
    """silu(gate) * up, a tile of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    mask = column < inner
    gate = tl.load(gate_up + row * 2 * inner + column, mask=mask, other=0.0)
    up = tl.load(gate_up + row * 2 * inner + inner + column, mask=mask, other=0.0)
    exact = gate.to(tl.float32)
    tl.store(out + row * inner + column, (exact * tl.sigmoid(exact) * up.to(tl.float32)).to(gate.dtype), mask=mask)


@triton.jit
def rotate_and_store_kernel(
    qkv, q_out, k_cache, v_cache, positions, cache_slots, cos, sin, q_norm, k_norm, eps,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, has_norm: tl.constexpr,
):  # fmt: skip
    """One head of one token a program: queries go to `q_out`, keys and values into the cache. HALF is D / 2, a power of two."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, HALF)
    source = qkv + (token * (H + 2 * G) + head) * D
    low = tl.load(source + half)
    high = tl.load(source + HALF + half)
    slot = tl.load(cache_slots + token)
    if head >= H + G:
        target = v_cache + ((slot // BLOCK * G + (head - H - G)) * BLOCK + slot % BLOCK) * D
        tl.store(target + half, low)
        tl.store(target + HALF + half, high)
    else:
        exact_low = low.to(tl.float32)
        exact_high = high.to(tl.float32)
        if has_norm:
            scale = tl.rsqrt((tl.sum(exact_low * exact_low, axis=0) + tl.sum(exact_high * exact_high, axis=0)) / D + eps)
            norm = q_norm if head < H else k_norm
            # Rounded between norm and rotation, as the reference does.
            exact_low = (exact_low * scale * tl.load(norm + half).to(tl.float32)).to(low.dtype).to(tl.float32)
            exact_high = (exact_high * scale * tl.load(norm + HALF + half).to(tl.float32)).to(low.dtype).to(tl.float32)
        position = tl.load(positions + token)
        c = tl.load(cos + position * HALF + half)
        s = tl.load(sin + position * HALF + half)
        rotated_low = (exact_low * c - exact_high * s).to(low.dtype)
        rotated_high = (exact_high * c + exact_low * s).to(low.dtype)
        if head < H:
            target = q_out + (token * H + head) * D
        else:
            target = k_cache + ((slot // BLOCK * G + (head - H)) * BLOCK + slot % BLOCK) * D
        tl.store(target + half, rotated_low)
        tl.store(target + HALF + half, rotated_high)


@triton.jit
def _attend(
    q, position, k_cache, v_cache, table, begin, end, g, scale,
    G: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, KV_TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Online softmax of the rows `q` [ROWS, D] over the positions from `begin` to `end`, each row up to its `position`.

    Returns (maximum [ROWS], sum [ROWS], weighted values [ROWS, D]), all float32; a row that saw nothing has a sum of 0.
    """
    d = tl.arange(0, D)
    maximum = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, D), tl.float32)
    for start in range(begin, end, KV_TILE):
        kv = start + tl.arange(0, KV_TILE)
        is_there = kv < end
        block = tl.load(table + kv // BLOCK, mask=is_there, other=0).to(tl.int64)
        at = ((block * G + g) * BLOCK + kv % BLOCK)[:, None] * D + d[None, :]
        k = tl.load(k_cache + at, mask=is_there[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(is_there[None, :] & (kv[None, :] <= position[:, None]), scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that may see nothing of this tile keeps its zeros: -inf minus -inf must not happen.
        safe = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(maximum - safe)
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(v_cache + at, mask=is_there[:, None], other=0.0)
        values = values * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        maximum = new_maximum
    return maximum, total, values


@triton.jit
def prefill_attention_kernel(
    q, out, k_cache, v_cache, block_tables, query_starts, kv_lens, first_sequence, table_width, scale,
    H: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, QUERY_TILE: tl.constexpr, KV_TILE: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one sequence, for one KV head. Programs: (sequences from `first_sequence` on, tiles, G)."""
    sequence = first_sequence + tl.program_id(0)
    tile = tl.program_id(1)
    g = tl.program_id(2)
    begin = tl.load(query_starts + sequence).to(tl.int64)
    num_queries = (tl.load(query_starts + sequence + 1) - begin).to(tl.int32)
    if tile * QUERY_TILE < num_queries:
        kv_len = tl.load(kv_lens + sequence)
        row = tl.arange(0, QUERY_TILE * GROUP_PADDED)
        query = tile * QUERY_TILE + row // GROUP_PADDED
        head = row % GROUP_PADDED
        is_there = (query < num_queries) & (head < GROUP)
        d = tl.arange(0, D)
        at = ((begin + query) * H + g * GROUP + head)[:, None] * D + d[None, :]
        rows = tl.load(q + at, mask=is_there[:, None], other=0.0)
        position = kv_len - num_queries + query
        end = tl.minimum(kv_len, kv_len - num_queries + (tile + 1) * QUERY_TILE)
        _, total, values = _attend(
            rows, position, k_cache, v_cache, block_tables + sequence.to(tl.int64) * table_width, 0, end, g, scale,
            G, D, BLOCK, KV_TILE, QUERY_TILE * GROUP_PADDED,
        )  # fmt: skip
        tl.store(out + at, (values / total[:, None]).to(rows.dtype), mask=is_there[:, None])


@triton.jit
def decode_attention_kernel(
    q, maxima, totals, partials, k_cache, v_cache, block_tables, kv_lens, table_width, scale,
    H: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, KV_TILE: tl.constexpr, NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    """One split of one sequence's context, for one KV head. Programs: (S, G, NUM_SPLITS).

    Writes maxima and totals [S, H, NUM_SPLITS] and partials [S, H, NUM_SPLITS, D], float32.
    """
    sequence = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1)
    split = tl.program_id(2)
    kv_len = tl.load(kv_lens + sequence)
    share = tl.cdiv(tl.cdiv(kv_len, NUM_SPLITS), KV_TILE) * KV_TILE
    begin = tl.minimum(split * share, kv_len)
    end = tl.minimum(begin + share, kv_len)
    row = tl.arange(0, ROWS)
    is_there = row < GROUP
    d = tl.arange(0, D)
    head = sequence * H + g * GROUP + row
    rows = tl.load(q + head[:, None] * D + d[None, :], mask=is_there[:, None], other=0.0)
    position = tl.zeros((ROWS,), tl.int32) + (kv_len - 1)
    maximum, total, values = _attend(
        rows, position, k_cache, v_cache, block_tables + sequence * table_width, begin, end, g, scale,
        G, D, BLOCK, KV_TILE, ROWS,
    )  # fmt: skip
    at = head * NUM_SPLITS + split
    tl.store(maxima + at, maximum, mask=is_there)
    tl.store(totals + at, total, mask=is_there)
    tl.store(partials + at[:, None] * D + d[None, :], values, mask=is_there[:, None])


@triton.jit
def join_splits_kernel(maxima, totals, partials, out, D: tl.constexpr, NUM_SPLITS: tl.constexpr):
    """One head of one sequence a program: the parts of its context, weighed against each other (a power of two)."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, NUM_SPLITS)
    d = tl.arange(0, D)
    maximum = tl.load(maxima + head * NUM_SPLITS + split)
    weight = tl.exp(maximum - tl.max(maximum, axis=0))
    total = tl.sum(weight * tl.load(totals + head * NUM_SPLITS + split), axis=0)
    parts = tl.load(partials + (head * NUM_SPLITS + split)[:, None] * D + d[None, :])
    joined = tl.sum(parts * weight[:, None], axis=0) / total
    tl.store(out + head * D + d, joined.to(out.dtype.element_ty))
