/* SPDX-License-Identifier: MIT
 *
 * Copies inputs into the workspace: rows become contiguous, start at multiples of 16 bytes, and end in zeros up to the
 * next one. A CTA for STW_STAGE_ROWS rows of one head of one input. */
#ifndef STW_COMMON_KERNELS_ATTN_STAGE_H
#define STW_COMMON_KERNELS_ATTN_STAGE_H

#include "common/device/device.h"
#include "common/params/attn_stage.h"

enum { ATTN_STAGE_THREADS = 256 };

/* Sixteen bytes that start at any element, by the widest loads that their address allows. */
template <class T> DEV_FN dev_vector attn_stage_load(const T *from) {
    const int off = (int)((uintptr_t)from % 16);
    dev_vector v;
    if (off == 0) return dev_load_vector(from);
    if (off % 8 == 0) {
        const uint64_t *at = (const uint64_t *)(const void *)from;
        const uint64_t low = at[0], high = at[1];
        return dev_vector{{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
    }
    if (sizeof(T) == 4 || off % 4 == 0) {
        const uint32_t *at = (const uint32_t *)(const void *)from;
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) v.word[i] = at[i];
        return v;
    }
    const uint16_t *at = (const uint16_t *)(const void *)from;
    const uint32_t *words = (const uint32_t *)(const void *)(at + 1);
    uint32_t w[5] = {(uint32_t)at[0] << 16, words[0], words[1], words[2], at[7]};
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) v.word[i] = w[i] >> 16 | w[i + 1] << 16;
    return v;
}

/* The last elements of a row, and zeros. */
template <class T> DEV_FN dev_vector attn_stage_load_part(const T *from, int count) {
    dev_vector v = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int i = 0; i < 16 / (int)sizeof(T); ++i)
        if (i < count) v.word[i * (int)sizeof(T) / 4] |= (uint32_t)from[i] << (i * (int)sizeof(T) % 4 * 8);
    return v;
}

/* Rows whose elements are neighbours. */
template <class T> DEV_FN void attn_stage_rows(const stw_attn_stage &s, const T *from, T *to, int rows) {
    enum { VECTOR = 16 / (int)sizeof(T) };
    const int cols = (int)s.cols, vectors = (cols + VECTOR - 1) / VECTOR, count = rows * vectors;
    for (int e = (int)dev_thread(); e < count; e += (int)dev_threads()) {
        const int row = e / vectors, col = (e - row * vectors) * VECTOR;
        const T *at = from + row * s.from_strides.seq + col;
        dev_store_vector(to + row * s.to_strides.seq + col,
                         cols - col >= VECTOR ? attn_stage_load(at) : attn_stage_load_part(at, cols - col));
    }
}

/* Any; threads run along the rows where those are nearer in memory. */
template <class T> DEV_FN void attn_stage_elements(const stw_attn_stage &s, const T *from, T *to, int rows) {
    const int64_t seq = s.from_strides.seq;
    const int cols = (int)stw_stage_row(&s), count = rows * cols;
    const bool along_rows = seq > 0 && (s.from_col == 0 || seq < s.from_col);
    const int inner = along_rows ? rows : cols;
    for (int e = (int)dev_thread(); e < count; e += (int)dev_threads()) {
        const int row = along_rows ? e % inner : e / inner, col = along_rows ? e / inner : e % inner;
        to[row * s.to_strides.seq + col] = col < s.cols ? from[row * seq + col * s.from_col] : T(0);
    }
}

template <class T> DEV_FN void attn_stage(const stw_attn_stages &all) {
    const int64_t cta = dev_cta();
    uint32_t n = 0;
    while (n < all.count && cta >= all.end[n]) ++n;
    if (n == all.count) return;
    const stw_attn_stage &s = all.stage[n];
    const stw_tensor_param &f = s.from_strides, &t = s.to_strides;
    const int64_t work_tile = cta - (n ? all.end[n - 1] : 0), strips = stw_stage_strips(&s), outer = work_tile / strips;
    /* neighbours in memory, rows or heads, go to neighbouring CTAs */
    const bool heads_first = f.head < f.seq;
    const int64_t b = heads_first ? work_tile / (s.heads * strips) : outer / s.heads;
    const int64_t h = heads_first ? work_tile % s.heads : outer % s.heads;
    const int64_t strip = heads_first ? work_tile / s.heads % strips : work_tile % strips;
    const int64_t first = strip * STW_STAGE_ROWS, rows = stw_smaller(stw_stage_rows(&s) - first, STW_STAGE_ROWS);
    if (rows <= 0) return;
    const T *from = (const T *)s.from + b * f.batch + h * f.head + first * f.seq;
    T *to = (T *)s.to + b * t.batch + h * t.head + first * t.seq;
    if (s.from_col == 1) attn_stage_rows(s, from, to, (int)rows);
    else attn_stage_elements(s, from, to, (int)rows);
}

#endif
