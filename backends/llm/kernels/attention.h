// How a step's attention is cut into tiles, and how their results are put together again.
//
// A tile is some tokens of one sequence and some query heads that share a key-value head, together at most kTileRows rows: they
// read each block once for all. Positions are attended to in partitions of kPartition; each has softmax sums of its own, which
// are then merged in order. So partitions can be computed one after the other, or, when few sequences are long, by different
// threads:
//
//     tiles >= threads:    item = tile, all partitions        |0    512|512  1024|1024 1300|  merged by the item itself
//     tiles <  threads:    item = tile, one partition         |0    512|  |512  1024|  ...    merged when all are there
//
// Both give the same bits, and so does every cut into chunks: a row's sums depend on its sequence alone.
#pragma once

#include <vector>

#include "step.h"

namespace {

constexpr int64_t kPartition = 512;
constexpr int64_t kTileRows = 48;      // what fits the first-level cache: scores, weights and sums of a tile are 30 KiB
constexpr int64_t kTileHeads = 16;     // a larger group of query heads is cut
constexpr int64_t kItemsPerThread = 4;  // fewer whole tiles than this, and they are cut by partitions

struct Item {
    int64_t sequence, first_token, num_tokens;
    int64_t kv_begin, kv_end;  // positions; the tile's last token sees up to kv_end - 1
    int64_t num_partials;      // of the tile, if this is its first partition and others follow as items of their own
};

struct Plan {
    std::vector<Item> items;
    std::vector<float> scratch;  // Sums of [item][unit], when tiles are cut by partitions
    int64_t num_parts, heads_per_part, num_units;  // a unit is a key-value head and a part of its query heads
    bool is_cut;
};

// The softmax of a tile's rows over some positions: sum(exp2(score - peak) * value), not yet divided by total.
struct Sums {
    float *peak, *total;  // [kTileRows]
    float* out;           // [kTileRows, D]

    static int64_t size(int64_t dim) { return kTileRows * (dim + 2); }
    Sums(float* at) : peak(at), total(at + kTileRows), out(at + 2 * kTileRows) {}

    // Never inlined: both ways of merging must round alike.
    __attribute__((noinline)) void merge(const Sums& other, int64_t rows, int64_t dim) {
        for (int64_t r = 0; r < rows; r++) {
            float joint = peak[r] > other.peak[r] ? peak[r] : other.peak[r];
            float mine = exp2(splat(peak[r] - joint))[0], theirs = exp2(splat(other.peak[r] - joint))[0];
            peak[r] = joint;
            total[r] = total[r] * mine + other.total[r] * theirs;
            for (int64_t i = r * dim; i < (r + 1) * dim; i += kLanes)
                store(out + i, load(out + i) * mine + load(other.out + i) * theirs);
        }
    }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline void make_plan(const Step& step, Plan& plan) {
    int64_t group = step.shape.num_heads / step.shape.num_kv_heads;
    plan.num_parts = ceil_div(group, kTileHeads);
    plan.heads_per_part = ceil_div(group, plan.num_parts);
    plan.num_units = step.shape.num_kv_heads * plan.num_parts;
    int64_t tile_tokens = kTileRows / plan.heads_per_part;
    plan.items.clear();
    bool is_long = false;
    for (int64_t s = 0; s < step.num_sequences; s++) {
        int64_t begin = step.query_starts[s], end = step.query_starts[s + 1];
        for (int64_t token = begin; token < end; token += tile_tokens) {
            int64_t last = smaller(token + tile_tokens, end);
            plan.items.push_back({s, token, last - token, 0, step.kv_lens[s] - (end - last), 0});
            is_long |= plan.items.back().kv_end > kPartition;
        }
    }
    plan.is_cut = is_long && int64_t(plan.items.size()) * plan.num_units < kItemsPerThread * step.num_threads;
    if (!plan.is_cut) return;
    std::vector<Item> tiles;
    tiles.swap(plan.items);
    for (Item item : tiles) {
        int64_t end = item.kv_end;
        for (int64_t begin = 0; begin < end; begin += kPartition) {
            item.kv_begin = begin;
            item.kv_end = smaller(begin + kPartition, end);
            item.num_partials = begin == 0 ? ceil_div(end, kPartition) : 0;
            plan.items.push_back(item);
        }
    }
    size_t floats = plan.items.size() * plan.num_units * Sums::size(step.shape.head_dim);
    if (plan.scratch.size() < floats) plan.scratch.resize(floats);
}

}  // namespace
