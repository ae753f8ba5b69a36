// Norms, rotation and activation: small, but between every two multiplications, so their calls must cost next to nothing.
//
// All of them compute in float32 and round once, when they store.
#include <cmath>

#include "step.h"

namespace {

// Work of fewer elements, some ten microseconds, is left to one thread. Waking another takes one; but on a core that others
// use, too, it may take a whole time slice until that one is there, and a step has a hundred of these.
constexpr int64_t kSerialElements = 49152;

template <class T>
float inverse_rms(const T* x, int64_t size, float eps) {
    Floats squares{};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        Floats v = load(x + i);
        squares += v * v;
    }
    float sum = sum_lanes(squares);
    for (; i < size; i++) sum += load_one(x + i) * load_one(x + i);
    return 1.f / std::sqrt(sum / float(size) + eps);
}

template <class T>
void normalize(const T* x, const T* weight, T* out, int64_t size, float eps) {
    float scale = inverse_rms(x, size, eps);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < size; i++) store_one(out + i, load_one(x + i) * scale * load_one(weight + i));
}

// The norm is taken of the sum as stored, so that a later layer sees what this one normalized.
template <class T>
void rms_norm(const T* x, T* residual, const T* weight, T* out, int64_t rows, int64_t size, float eps, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * size > kSerialElements)
    for (int64_t r = 0; r < rows; r++) {
        const T* row = x + r * size;
        if (residual) {
            T* sum = residual + r * size;
            int64_t i = 0;
            for (; i + kLanes <= size; i += kLanes) store(sum + i, load(sum + i) + load(row + i));
            for (; i < size; i++) store_one(sum + i, load_one(sum + i) + load_one(row + i));
            row = sum;
        }
        normalize(row, weight, out + r * size, size, eps);
    }
}

template <class T>
void silu_mul(const T* gate_up, T* out, int64_t rows, int64_t size, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * size > kSerialElements)
    for (int64_t r = 0; r < rows; r++) {
        const T *gate = gate_up + r * 2 * size, *up = gate + size;
        int64_t i = 0;
        for (; i + kLanes <= size; i += kLanes) {
            Floats x = load(gate + i), power = x * -kLog2E;
            // Where exp2 ends, the sigmoid is 0 in float32. A NaN takes the other way, and stays one.
            Floats silu = select(power >= splat(126.f), Floats{}, x / (1.f + exp2(power)));
            store(out + r * size + i, silu * load(up + i));
        }
        for (; i < size; i++) {
            float x = load_one(gate + i);
            store_one(out + r * size + i, x / (1.f + std::exp(-x)) * load_one(up + i));
        }
    }
}

// One head of one token: its norm, if the model has one, then the rotation of the pairs (i, i + D / 2).
template <class T>
void rotate_head(const T* x, const T* norm, float eps, const float* cos, const float* sin, T* out, int64_t dim) {
    T normed[kMaxHeadDim];
    if (norm) {
        normalize(x, norm, normed, dim, eps);
        x = normed;
    }
    int64_t half = dim / 2, i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        Floats a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(out + i, a * c - b * s);
        store(out + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = load_one(x + i), b = load_one(x + half + i);
        store_one(out + i, a * cos[i] - b * sin[i]);
        store_one(out + half + i, b * cos[i] + a * sin[i]);
    }
}

// Writes one head's key and value to where `step.h` draws them. Threads may write neighbours of one word: each stores its own
// half.
template <class T>
void store_key_value(const T* key, const T* value, T* block, int64_t offset, int64_t dim) {
    constexpr int64_t w = kPerWord<T>;
    uint32_t* keys = reinterpret_cast<uint32_t*>(block);
    for (int64_t i = 0; i < dim / w; i++) std::memcpy(keys + i * kBlock + offset, key + i * w, sizeof(uint32_t));
    T* values = block + kBlock * dim + offset / w * dim * w + offset % w;
    for (int64_t i = 0; i < dim; i++) values[i * w] = value[i];
}

template <class T>
void rotate_and_store(const Step& step, const T* qkv, T* queries, T* cache, const T* q_norm, const T* k_norm, float eps) {
    int64_t dim = step.shape.head_dim, heads = step.shape.num_heads, kv_heads = step.shape.num_kv_heads;
    int64_t row = (heads + 2 * kv_heads) * dim;
#pragma omp parallel for num_threads(step.num_threads) if (step.num_tokens * row > kSerialElements)
    for (int64_t token = 0; token < step.num_tokens; token++) {
        const T *query = qkv + token * row, *key = query + heads * dim, *value = key + kv_heads * dim;
        const float *cos = step.cos + step.positions[token] * (dim / 2), *sin = step.sin + step.positions[token] * (dim / 2);
        for (int64_t h = 0; h < heads; h++)
            rotate_head(query + h * dim, q_norm, eps, cos, sin, queries + (token * heads + h) * dim, dim);
        int64_t slot = step.cache_slots[token];
        for (int64_t g = 0; g < kv_heads; g++) {
            T rotated[kMaxHeadDim];
            rotate_head(key + g * dim, k_norm, eps, cos, sin, rotated, dim);
            T* block = cache + (slot / kBlock * kv_heads + g) * 2 * kBlock * dim;
            store_key_value(rotated, value + g * dim, block, slot % kBlock, dim);
        }
    }
}

}  // namespace

#define EXPORT(T, suffix)                                                                                                    \
    void rms_norm_##suffix(const T* x, T* residual, const T* weight, T* out, int64_t rows, int64_t size, float eps,          \
                           int num_threads) {                                                                                \
        rms_norm(x, residual, weight, out, rows, size, eps, num_threads);                                                    \
    }                                                                                                                        \
    void silu_mul_##suffix(const T* gate_up, T* out, int64_t rows, int64_t size, int num_threads) {                          \
        silu_mul(gate_up, out, rows, size, num_threads);                                                                     \
    }                                                                                                                        \
    void rotate_and_store_##suffix(const Step* step, const T* qkv, T* queries, T* cache, const T* q_norm, const T* k_norm,   \
                                   float eps) {                                                                              \
        rotate_and_store(*step, qkv, queries, cache, q_norm, k_norm, eps);                                                   \
    }

extern "C" {
EXPORT(Bf16, bf16)
EXPORT(float, f32)
}
