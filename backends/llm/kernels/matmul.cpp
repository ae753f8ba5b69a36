// x @ weight.T + bias, for few rows as for many.
//
// A decode step reads every weight once for a handful of rows: it is bound by memory, and the library's kernels reach that bound
// at one row but are a third short of it at 32. So the weight is packed once into panels that are read straight through:
//
//     packed[panel][word of K][32 columns]            a word: 2 neighbouring bf16 of K, or 1 float
//
// and each panel is multiplied with tiles of up to 14 rows, whose 28 sums stay in registers: 14 rows x 2 vectors of columns.
// While a panel is worked on, the next one is fetched. Every sum runs over K in the same order whatever the number of rows, so a
// row's result does not depend on what else is in the batch.
#include "vector.h"

namespace {

constexpr int kPanel = 2 * kLanes;
constexpr int kMaxRows = 14;
constexpr int64_t kRowsPerTask = 8 * kMaxRows;  // when there are fewer panels than threads could use

struct Linear {  // mirrored in cpu_ops.py
    const uint32_t* packed;
    const float* bias;  // [columns], or null
    int64_t columns, depth;
};

// out[0:R, 0:32] = x[0:R] . panel; `prefetch` moves on by `stride` bytes for each word of depth.
template <class T, int R>
void multiply_tile(const T* x, int64_t depth, const uint32_t* panel, const char* prefetch, int64_t stride, Floats (*out)[2]) {
    Floats sums[R][2];
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = Floats{};
    for (int64_t k = 0; k < depth; k += kPerWord<T>) {
        __builtin_prefetch(prefetch, 0, 2);
        __builtin_prefetch(prefetch + 64, 0, 2);
        prefetch += stride;
        Packed<T> left = load_words<T>(panel), right = load_words<T>(panel + kLanes);
        pin(left), pin(right);
        panel += kPanel;
#pragma GCC unroll 14
        for (int r = 0; r < R; r++) {
            Packed<T> word = splat_word<T>(x + r * depth + k);
            sums[r][0] = dot(sums[r][0], word, left);
            sums[r][1] = dot(sums[r][1], word, right);
        }
    }
    for (int r = 0; r < R; r++) out[r][0] = sums[r][0], out[r][1] = sums[r][1];
}

template <class T>
using Tile = void (*)(const T*, int64_t, const uint32_t*, const char*, int64_t, Floats (*)[2]);

template <class T>
constexpr Tile<T> kTiles[kMaxRows + 1] = {
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

// Rows [first, last) of one panel's columns.
template <class T>
void multiply_panel(const Linear& linear, const T* x, T* y, int64_t panel, int64_t first, int64_t last) {
    int64_t panel_words = linear.depth / kPerWord<T> * kPanel;
    const uint32_t* words = linear.packed + panel * panel_words;
    int64_t num_tiles = (last - first + kMaxRows - 1) / kMaxRows;
    int64_t column = panel * kPanel;
    int64_t num_columns = linear.columns - column < kPanel ? linear.columns - column : kPanel;
    // The tiles share out the next panel among them. A prefetch beyond the last panel is harmless: it never faults.
    int64_t stride = kPanel * 4 / num_tiles;
    const char* prefetch = reinterpret_cast<const char*>(words + panel_words);
    for (int64_t tile = 0; tile < num_tiles; tile++) {
        int64_t row = first + (last - first) * tile / num_tiles, end = first + (last - first) * (tile + 1) / num_tiles;
        Floats sums[kMaxRows][2];
        kTiles<T>[end - row](x + row * linear.depth, linear.depth, words, prefetch, stride, sums);
        prefetch += stride * (linear.depth / kPerWord<T>);
        for (int64_t r = row; r < end; r++)
            store_row(y + r * linear.columns + column, sums[r - row], linear.bias ? linear.bias + column : nullptr, num_columns);
    }
}

template <class T>
void multiply(const Linear& linear, const T* x, T* y, int64_t rows, int num_threads) {
    int64_t num_panels = (linear.columns + kPanel - 1) / kPanel;
    bool is_wide = num_panels >= 4 * num_threads || rows <= kRowsPerTask;
    int64_t rows_per_task = is_wide ? rows : kRowsPerTask;
    int64_t num_parts = (rows + rows_per_task - 1) / rows_per_task;
    // A few panels in a row for a thread, so that the next one fetched is its own; eight turns each, for another's load on a core.
    int64_t chunk = num_panels * num_parts / (8 * num_threads) > 1 ? num_panels * num_parts / (8 * num_threads) : 1;
#pragma omp parallel for schedule(dynamic, chunk) num_threads(num_threads)
    for (int64_t task = 0; task < num_panels * num_parts; task++) {
        int64_t first = task / num_panels * rows_per_task;
        int64_t last = first + rows_per_task < rows ? first + rows_per_task : rows;
        multiply_panel(linear, x, y, task % num_panels, first, last);
    }
}

// weight [columns, depth] -> packed, zeros where the last panel has no column.
template <class T>
void pack(const T* weight, uint32_t* packed, int64_t columns, int64_t depth, int num_threads) {
    int64_t words = depth / kPerWord<T>, num_panels = (columns + kPanel - 1) / kPanel;
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
    return (columns + kPanel - 1) / kPanel * kPanel * (depth * element_size / 4);
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
