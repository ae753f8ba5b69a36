// What a step looks like to the kernels, and how a layer's keys and values lie in memory.
//
// A block holds BLOCK_SIZE = 16 positions, as many as a vector has lanes. Of each block and key-value head, a layer's cache
// keeps keys and values side by side, so that one stretch of memory (4 KiB for bf16 and 64 channels) holds all that a query
// head needs:
//
//     cache[block][kv head] = | keys:   [D / w][16 positions][w] | values: [16 / w][D][w] |        w = elements in a word
//
// A vector load from the keys takes one word of channels of all 16 positions: multiplied with the query's word, it adds to 16
// scores at once, and no sum across lanes is needed. A vector load from the values takes 16 channels of w neighbouring
// positions.
#pragma once

#include "vector.h"

namespace {

constexpr int64_t kBlock = 16;
static_assert(kBlock == kLanes, "a vector of scores is one block");

// Rows of one head lie on the stack; cpu_ops.py leaves larger heads to the reference.
constexpr int64_t kMaxHeadDim = 256;

}  // namespace

extern "C" {

struct Shape {  // mirrored in cpu_ops.py
    int64_t num_heads, num_kv_heads, head_dim;
};

struct Step {  // mirrored in cpu_ops.py; the names are those of StepTensors
    const int64_t* positions;
    const int64_t* cache_slots;
    const int32_t* block_tables;
    int64_t table_width;
    const int32_t* query_starts;
    const int32_t* kv_lens;
    int64_t num_tokens, num_sequences;
    Shape shape;
    const float *cos, *sin;  // [positions, D / 2]
    int num_threads;
};
}
