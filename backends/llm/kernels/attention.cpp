// Attention over the paged cache: online softmax, four blocks at a time.
//
// For each group of four blocks (64 positions) and up to six rows at a time, 24 score vectors are summed in registers over the
// words of the keys, turned into weights, and the weights' words multiplied with the values into 24 sums of output channels.
// Four blocks are read side by side: one after the other, each would have to wake the hardware's prefetcher again. (Software
// prefetches were measured and left out: they compete for the same few misses in flight.)
#include <cmath>

#include "attention.h"

namespace {

constexpr int kBlocks = 4;
constexpr int64_t kGroup = kBlocks * kBlock;
#if defined(__AVX512F__)
constexpr int kRows = 6;  // 24 sums, 4 vectors of keys or values and a word: 29 of 32 registers
#else
constexpr int kRows = 1;  // with shorter registers, each of these vectors takes two or four
#endif
constexpr float kMasked = -1e30f;  // finite: a row that sees nothing of a partition has garbage sums, but merges with weight 0

static_assert(kPartition % kGroup == 0 && kTileRows % kLanes == 0, "");

struct Group {
    const uint32_t *keys[kBlocks], *values[kBlocks];
};

// scores[r][64] = scale * query[r] . key of each position
template <class T, int R>
void score(const T* const* queries, const Group& group, int64_t dim, float scale, float* scores) {
    Floats sums[R][kBlocks] = {};
    for (int64_t i = 0; i < dim / kPerWord<T>; i++) {
        Packed<T> keys[kBlocks];
        for (int b = 0; b < kBlocks; b++) {
            keys[b] = load_words<T>(group.keys[b] + i * kBlock);
            pin(keys[b]);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            Packed<T> word = splat_word<T>(queries[r] + i * kPerWord<T>);
            for (int b = 0; b < kBlocks; b++) sums[r][b] = dot(sums[r][b], word, keys[b]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int b = 0; b < kBlocks; b++) store(scores + r * kGroup + b * kBlock, sums[r][b] * scale);
}

// out[r][column...] = out * fade[r] + weights[r] . values, for V vectors of channels
template <class T, int R, int V>
void weigh(const T* weights, const float* fade, const Group& group, int64_t dim, int64_t column, float* out) {
    Floats sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = load(out + r * dim + column + v * kLanes) * fade[r];
    for (int b = 0; b < kBlocks; b++)
        for (int64_t i = 0; i < kBlock / kPerWord<T>; i++) {
            Packed<T> values[V];
            for (int v = 0; v < V; v++) {
                values[v] = load_words<T>(group.values[b] + i * dim + column + v * kLanes);
                pin(values[v]);
            }
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                Packed<T> word = splat_word<T>(weights + r * kGroup + b * kBlock + i * kPerWord<T>);
                for (int v = 0; v < V; v++) sums[r][v] = dot(sums[r][v], word, values[v]);
            }
        }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(out + r * dim + column + v * kLanes, sums[r][v]);
}

template <class T, int R>
void weigh_all(const T* weights, const float* fade, const Group& group, int64_t dim, float* out) {
    int64_t column = 0;
    for (; column + 4 * kLanes <= dim; column += 4 * kLanes) weigh<T, R, 4>(weights, fade, group, dim, column, out);
    for (; column < dim; column += kLanes) weigh<T, R, 1>(weights, fade, group, dim, column, out);
}

template <class T>
constexpr decltype(&score<T, 1>) kScore[7] = {nullptr,     score<T, 1>, score<T, 2>, score<T, 3>,
                                                      score<T, 4>, score<T, 5>, score<T, 6>};
template <class T>
constexpr decltype(&weigh_all<T, 1>) kWeigh[7] = {nullptr,         weigh_all<T, 1>, weigh_all<T, 2>, weigh_all<T, 3>,
                                                          weigh_all<T, 4>, weigh_all<T, 5>, weigh_all<T, 6>};

// Takes what a row does not see out of its scores of a group, and returns the highest that is left.
inline float hide(float* scores, int64_t num_visible) {
    if (num_visible < kGroup) {
        const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int b = 0; b < kBlocks; b++) {
            Ints is_visible = lanes < int32_t(num_visible - b * kBlock);
            store(scores + b * kBlock, select(is_visible, load(scores + b * kBlock), splat(kMasked)));
        }
    }
    Floats left = max(load(scores), load(scores + kBlock)), right = max(load(scores + 2 * kBlock), load(scores + 3 * kBlock));
    return max_lanes(max(left, right));
}

// One row's scores of a group become weights exp2(score - peak); returns their sums.
template <class T>
Floats soften(const float* scores, float peak, T* weights) {
    Floats sums[kBlocks];
    for (int b = 0; b < kBlocks; b++) {
        sums[b] = exp2(load(scores + b * kBlock) - peak);
        store(weights + b * kBlock, sums[b]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Where one tile's queries lie, and in which blocks its keys and values.
template <class T>
struct Tile {
    const T* queries[kTileRows];
    int64_t num_visible[kTileRows];  // positions that a row sees
    int64_t num_rows, dim, block_stride, last_block;
    const int32_t* table;
    const T* cache;  // of the key-value head in block 0

    Group group_at(int64_t position) const {
        Group group;
        for (int64_t b = 0; b < kBlocks; b++) {
            int64_t block = smaller(position / kBlock + b, last_block);  // beyond the last: seen by no row, but readable
            const T* keys = cache + table[block] * block_stride;
            group.keys[b] = reinterpret_cast<const uint32_t*>(keys);
            group.values[b] = reinterpret_cast<const uint32_t*>(keys + kBlock * dim);
        }
        return group;
    }
};

// The softmax sums of a tile over positions [begin, end), at most a partition.
template <class T>
void attend(const Tile<T>& tile, int64_t begin, int64_t end, Sums sums) {
    alignas(64) float scores[kTileRows * kGroup];
    alignas(64) T weights[kTileRows * kGroup];
    Floats totals[kTileRows];
    float highest[kTileRows] = {}, fades[kTileRows];
    float scale = kLog2E / std::sqrt(float(tile.dim));
    for (int64_t r = 0; r < kTileRows; r++) sums.peak[r] = kMasked, totals[r] = Floats{};
    std::memset(sums.out, 0, sizeof(float) * tile.num_rows * tile.dim);
    for (int64_t position = begin; position < end; position += kGroup) {
        Group group = tile.group_at(position);
        for (int64_t row = 0; row < tile.num_rows; row += kRows) {
            int64_t rows = smaller(kRows, tile.num_rows - row);
            kScore<T>[rows](tile.queries + row, group, tile.dim, scale, scores + row * kGroup);
        }
        for (int64_t r = 0; r < tile.num_rows; r++) highest[r] = hide(scores + r * kGroup, tile.num_visible[r] - position);
        for (int64_t r = 0; r < tile.num_rows; r += kLanes) {  // The rows beyond the last are there, and count for nothing.
            Floats peak = load(sums.peak + r), raised = max(peak, load(highest + r));
            store(fades + r, exp2(peak - raised));
            store(sums.peak + r, raised);
        }
        for (int64_t r = 0; r < tile.num_rows; r++)
            totals[r] = totals[r] * fades[r] + soften(scores + r * kGroup, sums.peak[r], weights + r * kGroup);
        for (int64_t row = 0; row < tile.num_rows; row += kRows) {
            int64_t rows = smaller(kRows, tile.num_rows - row);
            kWeigh<T>[rows](weights + row * kGroup, fades + row, group, tile.dim, sums.out + row * tile.dim);
        }
    }
    for (int64_t r = 0; r < tile.num_rows; r++) sums.total[r] = sum_lanes(totals[r]);
}

template <class T>
struct Attention {
    const Step& step;
    Plan& plan;
    const T* queries;  // [T, H, D]
    const T* cache;
    T* out;  // [T, H * D]

    int64_t first_head(int64_t unit) const {
        int64_t group = step.shape.num_heads / step.shape.num_kv_heads;
        return unit / plan.num_parts * group + unit % plan.num_parts * plan.heads_per_part;
    }

    int64_t num_heads(int64_t unit) const {
        int64_t group = step.shape.num_heads / step.shape.num_kv_heads;
        return smaller(plan.heads_per_part, group - unit % plan.num_parts * plan.heads_per_part);
    }

    Sums scratch(int64_t item, int64_t unit) const {
        return Sums(plan.scratch.data() + (item * plan.num_units + unit) * Sums::size(step.shape.head_dim));
    }

    Tile<T> tile_of(const Item& item, int64_t unit) const {
        Tile<T> tile;
        int64_t dim = step.shape.head_dim, heads = num_heads(unit);
        int64_t queries_end = step.query_starts[item.sequence + 1], kv_len = step.kv_lens[item.sequence];
        for (int64_t t = 0; t < item.num_tokens; t++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t token = item.first_token + t;
                tile.queries[t * heads + h] = queries + (token * step.shape.num_heads + first_head(unit) + h) * dim;
                tile.num_visible[t * heads + h] = kv_len - (queries_end - 1 - token);
            }
        tile.num_rows = item.num_tokens * heads;
        tile.dim = dim;
        tile.block_stride = step.shape.num_kv_heads * 2 * kBlock * dim;
        tile.last_block = (item.kv_end - 1) / kBlock;
        tile.table = step.block_tables + item.sequence * step.table_width;
        tile.cache = cache + unit / plan.num_parts * 2 * kBlock * dim;
        return tile;
    }

    void write(const Item& item, int64_t unit, const Sums& sums) const {
        int64_t dim = step.shape.head_dim, heads = num_heads(unit);
        for (int64_t r = 0; r < item.num_tokens * heads; r++) {
            T* row = out + ((item.first_token + r / heads) * step.shape.num_heads + first_head(unit) + r % heads) * dim;
            for (int64_t i = 0; i < dim; i += kLanes) store(row + i, load(sums.out + r * dim + i) / sums.total[r]);
        }
    }

    void run_whole(const Item& item, int64_t unit) const {
        alignas(64) float first[kTileRows * (kMaxHeadDim + 2)], other[kTileRows * (kMaxHeadDim + 2)];
        Tile<T> tile = tile_of(item, unit);
        for (int64_t begin = 0; begin < item.kv_end; begin += kPartition) {
            Sums sums(begin == 0 ? first : other);
            attend(tile, begin, smaller(begin + kPartition, item.kv_end), sums);
            if (begin > 0) Sums(first).merge(sums, tile.num_rows, tile.dim);
        }
        write(item, unit, Sums(first));
    }

    void merge_partials(int64_t index, int64_t unit) const {
        const Item& item = plan.items[index];
        Sums sums = scratch(index, unit);
        for (int64_t i = 1; i < item.num_partials; i++)
            sums.merge(scratch(index + i, unit), item.num_tokens * num_heads(unit), step.shape.head_dim);
        if (item.num_partials > 0) write(item, unit, sums);
    }

    void run() const {
        int64_t num_tasks = int64_t(plan.items.size()) * plan.num_units;
        // From the end: the last tiles of a prompt see the most positions, and short work at the end levels the threads.
#pragma omp parallel num_threads(step.num_threads)
        {
#pragma omp for schedule(dynamic, 1)
            for (int64_t task = num_tasks - 1; task >= 0; task--) {
                int64_t index = task / plan.num_units, unit = task % plan.num_units;
                const Item& item = plan.items[index];
                if (plan.is_cut)
                    attend(tile_of(item, unit), item.kv_begin, item.kv_end, scratch(index, unit));
                else
                    run_whole(item, unit);
            }
            if (plan.is_cut) {
#pragma omp for schedule(dynamic, 1)
                for (int64_t task = 0; task < num_tasks; task++) merge_partials(task / plan.num_units, task % plan.num_units);
            }
        }
    }
};

}  // namespace

extern "C" {

Plan* new_plan() { return new Plan; }
void delete_plan(Plan* plan) { delete plan; }

// Once for each step; all of its layers share the plan.
void plan_attention(const Step* step, Plan* plan) { make_plan(*step, *plan); }

void attention_bf16(const Step* step, Plan* plan, const Bf16* queries, const Bf16* cache, Bf16* out) {
    Attention<Bf16>{*step, *plan, queries, cache, out}.run();
}

void attention_f32(const Step* step, Plan* plan, const float* queries, const float* cache, float* out) {
    Attention<float>{*step, *plan, queries, cache, out}.run();
}
}
