// x @ weight.T + bias, for few rows as for many.
//
// A decode step reads every weight once for a handful of rows: it is bound by memory, and the library's kernels reach that
// bound at one row but are a third short of it at 32. So the weight is packed once into panels that are read straight through:
//
//     packed[panel][word of K][32 columns]            a word: 2 neighbouring bf16 of K, or 1 float
//
// and each panel is multiplied with tiles of up to 14 rows, whose 28 sums stay in registers: 14 rows x 2 vectors of columns.
// While a panel is worked on, the next one is fetched. Where K is long, a stretch of the panel that the second-level cache
// holds is multiplied with all of a chunk's tiles before the next stretch is read. Every sum runs over K in the same order
// whatever the number of rows, so a row's result does not depend on what else is in the batch.
#include "vector.h"

namespace {

constexpr int kPanel = 2 * kLanes;
constexpr int kMaxRows = 14;
constexpr int64_t kChunkRows = 8 * kMaxRows;  // their sums are 14 KiB; also a task's rows when threads outnumber panels
constexpr int64_t kDepth = 4096;              // of a stretch of a panel: 256 KiB of bf16

struct Linear {  // mirrored in cpu_ops.py
    const uint32_t* packed;
    const float* bias;  // [columns], or null
    int64_t columns, depth;
};

// sums[0:R, 0:32] += x[0:R, 0:depth] . panel; `prefetch` moves on by `step` bytes for each word of depth.
template <class T, int R>
void multiply_tile(const T* x, int64_t stride, int64_t depth, const uint32_t* panel, const char* prefetch, int64_t step,
                   Floats (*out)[2]) {
    Floats sums[R][2];
    for (int r = 0; r < R; r++) sums[r][0] = out[r][0], sums[r][1] = out[r][1];
    for (int64_t k = 0; k < depth; k += kPerWord<T>) {
        __builtin_prefetch(prefetch, 0, 2);
        __builtin_prefetch(prefetch + 64, 0, 2);
        prefetch += step;
        Packed<T> left = load_words<T>(panel), right = load_words<T>(panel + kLanes);
        pin(left), pin(right);
        panel += kPanel;
#pragma GCC unroll 14
        for (int r = 0; r < R; r++) {
            Packed<T> word = splat_word<T>(x + r * stride + k);
            sums[r][0] = dot(sums[r][0], word, left);
            sums[r][1] = dot(sums[r][1], word, right);
        }
    }
    for (int r = 0; r < R; r++) out[r][0] = sums[r][0], out[r][1] = sums[r][1];
}

template <class T>
constexpr decltype(&multiply_tile<T, 1>) kTiles[kMaxRows + 1] = {
    nullptr,              multiply_tile<T, 1>,  multiply_tile<T, 2>,  multiply_tile<T, 3>,  multiply_tile<T, 4>,
    multiply_tile<T, 5>,  multiply_tile<T, 6>,  multiply_tile<T, 7>,  multiply_tile<T, 8>,  multiply_tile<T, 9>,
    multiply_tile<T, 10>, multiply_tile<T, 11>, multiply_tile<T, 12>, multiply_tile<T, 13>, multiply_tile<T, 14>};

template <class T>
void store_row(T* to, const Floats* sums, const float* bias, int64_t num_columns) {
    if (num_columns == kPanel) {
        for (int half = 0; half < 2; half++)
            store(to + half * kLanes, bias ? sums[half] + load(bias + half * kLanes) : sums[half]);
        return;
    }
    for (int64_t i = 0; i < num_columns; i++) store_one(to + i, sums[i / kLanes][i % kLanes] + (bias ? bias[i] : 0.f));
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `rows` rows of one panel's columns.
template <class T>
void multiply_panel(const Linear& linear, const T* x, T* y, int64_t panel, int64_t rows) {
    int64_t panel_words = linear.depth / kPerWord<T> * kPanel;
    const uint32_t* words = linear.packed + panel * panel_words;
    int64_t column = panel * kPanel;
    int64_t num_columns = linear.columns - column < kPanel ? linear.columns - column : kPanel;
    // All tiles together fetch the next panel. Beyond the last one that is harmless: a prefetch never faults.
    int64_t step = kPanel * 4 / ceil_div(rows, kMaxRows);
    const char* prefetch = reinterpret_cast<const char*>(words + panel_words);
    int64_t num_chunks = ceil_div(rows, kChunkRows);
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
        int64_t first = rows * chunk / num_chunks, num_rows = rows * (chunk + 1) / num_chunks - first;
        int64_t num_tiles = ceil_div(num_rows, kMaxRows);
        Floats sums[kChunkRows][2];
        for (int64_t r = 0; r < num_rows; r++) sums[r][0] = sums[r][1] = Floats{};
        for (int64_t k = 0; k < linear.depth; k += kDepth) {
            int64_t depth = linear.depth - k < kDepth ? linear.depth - k : kDepth;
            for (int64_t tile = 0; tile < num_tiles; tile++) {
                int64_t row = num_rows * tile / num_tiles, end = num_rows * (tile + 1) / num_tiles;
                const T* from = x + (first + row) * linear.depth + k;
                kTiles<T>[end - row](from, linear.depth, depth, words + k / kPerWord<T> * kPanel, prefetch, step, sums + row);
                prefetch += step * (depth / kPerWord<T>);
            }
        }
        const float* bias = linear.bias ? linear.bias + column : nullptr;
        for (int64_t r = 0; r < num_rows; r++) store_row(y + (first + r) * linear.columns + column, sums[r], bias, num_columns);
    }
}

template <class T>
void multiply(const Linear& linear, const T* x, T* y, int64_t rows, int num_threads) {
    int64_t num_panels = ceil_div(linear.columns, kPanel);
    bool is_wide = num_panels >= 4 * num_threads || rows <= kChunkRows;
    int64_t num_parts = is_wide ? 1 : ceil_div(rows, kChunkRows);
    // A few panels in a row for a thread, so that the next one fetched is its own; eight turns each, for another's load on a
    // core.
    int64_t turns = num_panels * num_parts / (8 * num_threads), chunk = turns > 1 ? turns : 1;
#pragma omp parallel for schedule(dynamic, chunk) num_threads(num_threads)
    for (int64_t task = 0; task < num_panels * num_parts; task++) {
        int64_t part = task / num_panels, first = rows * part / num_parts, last = rows * (part + 1) / num_parts;
        multiply_panel(linear, x + first * linear.depth, y + first * linear.columns, task % num_panels, last - first);
    }
}

// weight [columns, depth] -> packed, zeros where the last panel has no column.
template <class T>
void pack(const T* weight, uint32_t* packed, int64_t columns, int64_t depth, int num_threads) {
    int64_t words = depth / kPerWord<T>, num_panels = ceil_div(columns, kPanel);
#pragma omp parallel for num_threads(num_threads)
    for (int64_t panel = 0; panel < num_panels; panel++)
        for (int64_t k = 0; k < words; k++)
            for (int64_t i = 0; i < kPanel; i++) {
                uint32_t word = 0;
                if (panel * kPanel + i < columns)
                    std::memcpy(&word, weight + (panel * kPanel + i) * depth + k * kPerWord<T>, sizeof word);
                packed[(panel * words + k) * kPanel + i] = word;
            }
}

}  // namespace

extern "C" {

int64_t packed_words(int64_t columns, int64_t depth, int64_t element_size) {
    return ceil_div(columns, kPanel) * kPanel * (depth * element_size / 4);
}

void pack_bf16(const Bf16* weight, uint32_t* packed, int64_t columns, int64_t depth, int num_threads) {
    pack(weight, packed, columns, depth, num_threads);
}

void pack_f32(const float* weight, uint32_t* packed, int64_t columns, int64_t depth, int num_threads) {
    pack(weight, packed, columns, depth, num_threads);
}

// x [rows, depth], y [rows, columns]
void linear_bf16(const Linear* linear, const Bf16* x, Bf16* y, int64_t rows, int num_threads) {
    if (rows > 0) multiply(*linear, x, y, rows, num_threads);
}

void linear_f32(const Linear* linear, const float* x, float* y, int64_t rows, int num_threads) {
    if (rows > 0) multiply(*linear, x, y, rows, num_threads);
}
}
