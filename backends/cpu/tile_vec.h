/* SPDX-License-Identifier: MIT
 *
 * One vector type for every instruction set: the compilers' vector extensions at the width the file is
 * compiled for, with intrinsics only where there is no other way (f16 conversion, scalef). Included by
 * tile.c alone. */
#ifndef STW_CPU_TILE_VEC_H
#define STW_CPU_TILE_VEC_H

#include "common/dtype.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define LANES      16
#define VEC_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES    8
#define VEC_AVX2 1
#else
#define LANES 4
#endif
#if defined(VEC_AVX512) || defined(VEC_AVX2)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint64_t vq __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef double vd __attribute__((vector_size(8 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

INLINE vf vf_splat(float x) { return x - (vf){0}; }
INLINE vu vu_splat(uint32_t x) { return x + (vu){0}; }
INLINE vf vf_load(const float *p) { return *(const vf_any *)p; }
INLINE void vf_store(float *p, vf x) { *(vf_any *)p = x; }
INLINE vf vf_select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE vf vf_only(vi mask, vf x) { return (vf)(mask & (vi)x); }
INLINE vf vf_abs(vf x) { return (vf)((vi)x & 0x7FFFFFFF); }

INLINE vi vi_lanes(void) {
#if LANES == 16
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}

/* Lanes of a and b in turn: of their lower and of their upper halves. */
#if LANES == 16
#define vf_zip_low(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define vf_zip_high(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define vf_zip_low(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define vf_zip_high(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define vf_zip_low(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define vf_zip_high(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

INLINE float vf_sum(vf x) {
    float lane[LANES];
    vf_store(lane, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

INLINE float vf_max(vf x) { /* without NaN: a NaN may or may not come out */
    float lane[LANES], most;
    vf_store(lane, x);
    most = lane[0];
    for (int i = 1; i < LANES; ++i) most = lane[i] > most ? lane[i] : most;
    return most;
}

INLINE vf vf_from_bf16(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }

INLINE vh vf_to_bf16(vf x) {
    vu u = (vu)x, rounded = u + 0x7FFFu + ((u >> 16) & 1u), quiet = u | 0x400000u;
    vi nan = x != x;
    return __builtin_convertvector((((vu)nan & quiet) | (~(vu)nan & rounded)) >> 16, vh);
}

INLINE vf vf_from_f16(vh h) {
#if defined(VEC_AVX512)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(VEC_AVX2)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf x;
    for (int i = 0; i < LANES; ++i) x[i] = stw_f32_from_f16(h[i]);
    return x;
#endif
}

INLINE vh vf_to_f16(vf x) {
#if defined(VEC_AVX512)
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(VEC_AVX2)
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vh h;
    for (int i = 0; i < LANES; ++i) h[i] = stw_f16_from_f32(x[i]);
    return h;
#endif
}

/* x as a matrix operand of the type holds it. */
INLINE vf vf_round_to(vf x, uint32_t dtype) {
    if (dtype == STW_F32) return x;
    return dtype == STW_BF16 ? vf_from_bf16(vf_to_bf16(x)) : vf_from_f16(vf_to_f16(x));
}

/* LANES elements from index `at`; the 16-bit types are widened. */
INLINE vf vf_load_as(const void *data, int64_t at, uint32_t dtype) {
    if (dtype == STW_F32) return vf_load((const float *)data + at);
    vh h = *(const vh_any *)((const uint16_t *)data + at);
    return dtype == STW_BF16 ? vf_from_bf16(h) : vf_from_f16(h);
}

/* The first `count` < LANES elements, zeros behind them. */
INLINE vf vf_load_some(const void *data, int64_t at, uint32_t count, uint32_t dtype) {
    if (dtype == STW_F32) {
        vf x = {0};
        memcpy(&x, (const float *)data + at, 4 * (size_t)count);
        return x;
    }
    vh h = {0};
    memcpy(&h, (const uint16_t *)data + at, 2 * (size_t)count);
    return dtype == STW_BF16 ? vf_from_bf16(h) : vf_from_f16(h);
}

INLINE vf vf_load_upto(const void *data, int64_t at, uint32_t count, uint32_t dtype) {
    return count >= LANES ? vf_load_as(data, at, dtype) : vf_load_some(data, at, count, dtype);
}

/* Lanes whose byte is 0, of the first `count` from index `at` on; others may be either. */
INLINE vi vi_zero_bytes(const void *data, int64_t at, uint32_t count) {
    vb bytes = {0};
    if (count >= LANES) memcpy(&bytes, (const uint8_t *)data + at, LANES);
    else memcpy(&bytes, (const uint8_t *)data + at, count);
    return __builtin_convertvector(bytes, vi) == 0;
}

#endif
