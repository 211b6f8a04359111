/* SPDX-License-Identifier: MIT
 *
 * dQ sums where every term may be subnormal. Additions to global memory (dev_add) take subnormal numbers for
 * zero: each loses up to 2^-126. Where the largest |dO| or |D| of a query block is at least 2^-40 and the largest
 * |V| and |K| of a key block at least 2^-20, the rounding of dP - D alone puts 2^-24 * 2^-80 into dQ, far more.
 * Elsewhere the sums are added by compare-and-swap. The first kernel marks such query blocks in the statistics, the
 * main loop its keys: one test a tile, and nothing else in the usual path.
 *
 * gfx90a's matrix unit also takes subnormal bf16 operands for zero, and subnormal sums (LEAF_FLUSHES). There the
 * same marks choose products of f32 for a tile, which lose nothing, and are set more often: where Q, K, V or dO hold an
 * element that is not 0 but below 2^-100, and where the largest of a block's Q is below 2^-20 or of its dO (whatever D
 * is) below 2^-40. Elsewhere no operand read from memory is lost; dS below 2^-126 is less than the rounding of dP - D
 * by the argument above, and what sums lose, some 2^-126 a product, is 2^-26 of an element of dO, Q or K times P or dS
 * of 1. P below 2^-126 is 0 on every GPU: dev_exp2_fast. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_SUBNORMAL_H
#define STW_COMMON_KERNELS_ATTN_BWD_SUBNORMAL_H

#include "common/device/mma.h"
#include "common/kernels/attn_bwd_scheduler.h"

#define ATTN_SUBNORMAL_ROWS 0x1p-40f
#define ATTN_SUBNORMAL_KEYS 0x1p-20f
#define ATTN_FLUSHED        0x0d80u /* 2^-100, as bf16 */

/* f16 where products take subnormal operands for zero (LEAF_FLUSHES): the shared loop multiplies it as f32, CDNA's own
 * loop by powers of two that keep every operand normal (backends/hip/attn_bwd_cdna_lift.h). The marks of a query block
 * are what that needs: the largest norm of its rows of dO from above, infinite where Q or dO holds an element of
 * 2^ATTN_LIFT_END or more, and the largest |D|. */
template <class T> struct attn_lifts {
    enum { yes = LEAF_FLUSHES && dev_is_f16<T>::yes };
};
#define ATTN_LIFT_END 0x5400u /* 2^6, as f16 */

/* One of a word's two bf16 is not 0 but below 2^-100. */
DEV_FN bool attn_word_flushed(uint32_t x) {
    return (x & 0x7fffu) - 1u < ATTN_FLUSHED - 1u || (x >> 16 & 0x7fffu) - 1u < ATTN_FLUSHED - 1u;
}

/* This thread's part of a tile of bf16 holds such a number. */
template <class Tile, int THREADS> DEV_FN bool attn_tile_flushed(const typename Tile::type *tile) {
    enum { VECTORS = Tile::COLS / Tile::VECTOR, TOTAL = Tile::ROWS * VECTORS };
    bool flushed = false;
    DEV_ROLLED_FOR (int at = (int)dev_thread(); at < TOTAL; at += THREADS) {
        dev_vector v = dev_load_vector(tile + Tile::at(at / VECTORS, at % VECTORS * Tile::VECTOR));
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) flushed |= attn_word_flushed(v.word[i]);
    }
    return flushed;
}

/* This thread's part of a tile holds an element of at least ATTN_SUBNORMAL_KEYS, or a NaN. Ordinary data: the first
 * vector does. Of numbers in parts the first decides (infinite ones do not count: tiles of those and
 * subnormal ones). */
template <class Tile, int THREADS> DEV_FN bool attn_tile_counts(const typename Tile::type *tile) {
    typedef typename dev_first_term<typename Tile::type, Tile::TERMS>::type T;
    enum { VECTORS = Tile::COLS / Tile::VECTOR, TOTAL = Tile::ROWS * VECTORS };
    DEV_ROLLED_FOR (int at = (int)dev_thread(); at < TOTAL; at += THREADS) {
        dev_vector v =
            dev_load_vector((const T *)(const void *)tile + Tile::at(at / VECTORS, at % VECTORS * Tile::VECTOR));
        const T *x = (const T *)(const void *)&v;
        bool counts = false;
        DEV_UNROLL_FOR (int i = 0; i < Tile::VECTOR; ++i) counts |= !(fabsf(dev_float(x[i])) < ATTN_SUBNORMAL_KEYS);
        if (counts) return true;
    }
    return false;
}

/* All threads, when K and V have arrived; the answer stands in `u` after the next barrier: bit 0, and bit 1 where
 * products may lose something. f16 has no such numbers: its smallest is 2^-24. */
template <class Tile, int THREADS>
DEV_FN void attn_mark_keys(attn_work_tile &u, const typename Tile::type *k, const typename Tile::type *v) {
    if (dev_is_f16<typename Tile::type>::yes) return;
    if constexpr (dev_flushes<typename Tile::type>::yes) {
        int of_k = (attn_tile_counts<Tile, THREADS>(k) ? 1 : 0) | (attn_tile_flushed<Tile, THREADS>(k) ? 2 : 0);
        int of_v = (attn_tile_counts<Tile, THREADS>(v) ? 1 : 0) | (attn_tile_flushed<Tile, THREADS>(v) ? 2 : 0);
        if (of_k) dev_or(&u.k_counts, of_k);
        if (of_v) dev_or(&u.v_counts, of_v);
        return;
    }
    if (attn_tile_counts<Tile, THREADS>(k)) u.k_counts = 1;
    if (attn_tile_counts<Tile, THREADS>(v)) u.v_counts = 1;
}

/* Whether a tile's dQ must be added exactly, and its products lose nothing; `stats`: those of its rows. */
template <class C> DEV_FN bool attn_is_subnormal(const attn_work_tile &u, const float *stats) {
    if (dev_is_f16<typename C::T>::yes) return false;
    if (dev_flushes<typename C::T>::yes) return stats[2 * C::BM + 1] != 0.0f || u.k_counts != 1 || u.v_counts != 1;
    return stats[2 * C::BM + 1] != 0.0f || !u.k_counts || !u.v_counts;
}

#endif
