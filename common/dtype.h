/* SPDX-License-Identifier: MIT
 *
 * Element types on the host: sizes, names, exact conversions between f32 and f16/bf16 (round to nearest
 * even, subnormals kept, NaN stays NaN). Read by dispatch, the CPU backend, the reference and the tools. */
#ifndef STW_COMMON_DTYPE_H
#define STW_COMMON_DTYPE_H

#include "sternway/base.h"
#include <string.h>

static inline size_t stw_dtype_size(stw_dtype dtype) {
    static const unsigned char sizes[] = {0, 2, 2, 4, 8, 1, 1, 2, 4, 8};
    return (unsigned)dtype < sizeof sizes ? sizes[dtype] : 0;
}

static inline const char *stw_dtype_name(stw_dtype dtype) {
    static const char *const names[] = {"none", "f16", "bf16", "f32", "f64", "i8", "u8", "i16", "i32", "i64"};
    return (unsigned)dtype < sizeof names / sizeof names[0] ? names[dtype] : "none";
}

/* A type of attention on every backend, and of every jagged operation. */
static inline int stw_dtype_valid(stw_dtype dtype) { return dtype == STW_F16 || dtype == STW_BF16 || dtype == STW_F32; }

/* A type of attention: f64 is the CPU backend's alone. */
static inline int stw_dtype_of_attn(stw_dtype dtype) { return stw_dtype_valid(dtype) || dtype == STW_F64; }

/* Of lse, dlse, delta, slopes, sink and dsink in an attention problem of this type, and the type of the
 * gradients that accumulate. */
static inline stw_dtype stw_dtype_of_rows(stw_dtype dtype) { return dtype == STW_F64 ? STW_F64 : STW_F32; }

static inline uint32_t stw_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float stw_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float stw_f32_from_bf16(uint16_t h) { return stw_f32_of_bits((uint32_t)h << 16); }

static inline uint16_t stw_bf16_from_f32(float x) {
    uint32_t u = stw_f32_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x0040u); /* quiet NaN */
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

static inline float stw_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7FFFu;
    if (magnitude >= 0x7C00u) return stw_f32_of_bits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    if (magnitude >= 0x0400u) return stw_f32_of_bits(sign | ((magnitude << 13) + 0x38000000u));
    float subnormal = (float)magnitude * 5.9604644775390625e-8f; /* 2^-24 */
    return stw_f32_of_bits(sign | stw_f32_bits(subnormal));
}

static inline uint16_t stw_f16_from_f32(float x) {
    uint32_t u = stw_f32_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);  /* NaN */
    if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* rounds to 65536 or more */
    if (magnitude < 0x38800000u) { /* below 2^-14: the sum's own rounding is that of the result */
        float shifted = stw_f32_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (stw_f32_bits(shifted) - 0x3F000000u));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13));
}

static inline float stw_load_f32(const void *data, int64_t index, stw_dtype dtype) {
    if (dtype == STW_F32) return ((const float *)data)[index];
    uint16_t h = ((const uint16_t *)data)[index];
    return dtype == STW_BF16 ? stw_f32_from_bf16(h) : stw_f32_from_f16(h);
}

static inline void stw_store_f32(void *data, int64_t index, stw_dtype dtype, float x) {
    if (dtype == STW_F32) ((float *)data)[index] = x;
    else ((uint16_t *)data)[index] = dtype == STW_BF16 ? stw_bf16_from_f32(x) : stw_f16_from_f32(x);
}

/* The same of every floating type, in double. */
static inline double stw_load_f64(const void *data, int64_t index, stw_dtype dtype) {
    return dtype == STW_F64 ? ((const double *)data)[index] : (double)stw_load_f32(data, index, dtype);
}

static inline void stw_store_f64(void *data, int64_t index, stw_dtype dtype, double x) {
    if (dtype == STW_F64) ((double *)data)[index] = x;
    else stw_store_f32(data, index, dtype, (float)x);
}

/* x rounded to the type and back: what a matrix operand of that type holds. */
static inline float stw_round_to(float x, stw_dtype dtype) {
    if (dtype == STW_F32) return x;
    return dtype == STW_BF16 ? stw_f32_from_bf16(stw_bf16_from_f32(x)) : stw_f32_from_f16(stw_f16_from_f32(x));
}

#endif
