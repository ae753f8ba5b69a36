// Sixteen lanes at a time, in one spelling for every CPU.
//
// The kernels are written once, with the vector extensions that GCC and Clang share: the compiler makes one AVX-512 register of
// the sixteen lanes, two of AVX2 or four of NEON. Intrinsics stand only here, and only where an instruction exists that no
// compiler finds by itself (the dot product of bf16 pairs). Writing each kernel once for each instruction set was refused: the
// variants that the author's machine never runs are the ones that are wrong.
//
// A *word* is 32 bits: one float, or two neighbours of bf16. Everything that is multiplied is laid out in words, so a kernel
// has one shape for both element types: `dot` adds, in each lane, the products of two words.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

struct Bf16 {
    uint16_t bits;
};

// How many elements a word holds.
template <class T>
constexpr int kPerWord = 4 / sizeof(T);

template <class V>
inline V load_vector(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
inline void store_vector(void* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

inline Floats splat(float x) { return x - Floats{}; }

inline Floats select(Ints mask, Floats a, Floats b) { return mask ? a : b; }
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

// Sums and maxima over the lanes go in halves: the same order on every CPU, hence the same bits.
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define SHUFFLE(v, ...) __builtin_shuffle(v, Ints{__VA_ARGS__})
#endif

inline float sum_lanes(Floats v) {
    v += SHUFFLE(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return v[0];
}

inline float max_lanes(Floats v) {
    v = max(v, SHUFFLE(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = max(v, SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = max(v, SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    v = max(v, SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return v[0];
}

// Round to nearest, ties to even; a NaN stays one.
inline Halves to_bf16(Floats v) {
#if defined(__AVX512BF16__)
    __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    Halves halves;
    std::memcpy(&halves, &rounded, sizeof halves);
    return halves;
#else
    Words bits = (Words)v;
    Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    Words quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, Halves);
#endif
}

// Sixteen elements as floats, and back.
inline Floats load(const float* from) { return load_vector<Floats>(from); }
inline void store(float* to, Floats v) { store_vector(to, v); }
inline Floats load(const Bf16* from) {
#if defined(__AVX512BF16__)
    Words wide = (Words)_mm512_cvtepu16_epi32((__m256i)load_vector<Halves>(from));
#else
    Words wide = __builtin_convertvector(load_vector<Halves>(from), Words);
#endif
    return (Floats)(wide << 16);
}
inline void store(Bf16* to, Floats v) { store_vector(to, to_bf16(v)); }

// One element as a float, and back: for the tails of rows.
inline float load_one(const float* from) { return *from; }
inline void store_one(float* to, float x) { *to = x; }
inline float load_one(const Bf16* from) {
    uint32_t bits = uint32_t(from->bits) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline void store_one(Bf16* to, float x) { to->bits = to_bf16(splat(x))[0]; }

// Sixteen words of T, as `dot` takes them. (Typed as the instruction's own operand: GCC loads anew for each cast.)
template <class T>
struct Operand;

template <>
struct Operand<float> {
    typedef Floats type;
};

template <>
struct Operand<Bf16> {
#if defined(__AVX512BF16__)
    typedef __m512bh type;
#else
    typedef Words type;
#endif
};

template <class T>
using Packed = typename Operand<T>::type;

template <class T>
inline Packed<T> load_words(const void* from) {
    return load_vector<Packed<T>>(from);
}

// Keeps a vector in its register. GCC would read it from memory again at each use, and the loads would be what limits.
#if defined(__AVX512F__)
template <class V>
inline void pin(V& v) {
    asm("" : "+v"(v));
}
#else
template <class V>
inline void pin(V&) {}
#endif

// One word in all lanes.
template <class T>
inline Packed<T> splat_word(const void* from) {
    uint32_t word;
    std::memcpy(&word, from, sizeof word);
    return (Packed<T>)(word - Words{});
}

// sum + a . b in each lane, a lane being one word of T.
inline Floats dot(Floats sum, Floats a, Floats b) { return sum + a * b; }

#if defined(__AVX512BF16__)
inline Floats dot(Floats sum, __m512bh a, __m512bh b) { return (Floats)_mm512_dpbf16_ps((__m512)sum, a, b); }
#else
inline Floats dot(Floats sum, Words a, Words b) {
    sum += (Floats)(a << 16) * (Floats)(b << 16);
    return sum + (Floats)(a & 0xffff0000u) * (Floats)(b & 0xffff0000u);
}
#endif

// 2 ** x to about two units in the last place; 0 below 2 ** -126, and x at most 127.
//
// 2 ** x = 2 ** n * 2 ** f with n the nearest whole number: adding 1.5 * 2 ** 23 leaves n in the low bits of the sum, from
// where a shift puts it into the exponent. 2 ** f is its Taylor series to the sixth power, whose rest is 1.2e-7 at |f| = 0.5.
inline Floats exp2(Floats x) {
    Ints is_normal = x >= splat(-126.f);
    Floats clamped = select(is_normal, x, splat(-126.f));
    Floats shifted = clamped + 12582912.f;
    Floats f = clamped - (shifted - 12582912.f);
    Floats p = splat(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.f;
    return (Floats)((((Ints)shifted << 23) + (Ints)p) & is_normal);
}

constexpr float kLog2E = 1.44269504f;

}  // namespace
