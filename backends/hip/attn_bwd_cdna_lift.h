/* SPDX-License-Identifier: MIT
 *
 * f16 in CDNA's own main loop where the matrix unit takes subnormal operands for zero (gfx90a). All operands are
 * multiplied by powers of two, so that no number of f16 that is not 0 is subnormal:
 *
 *   Q, K, V, dO   2^10: exact, as a work tile all of whose elements are below 2^6 in size is asked for
 *   P             2^10, in the exponent; what it takes for zero is below 2^-24, the least number of f16
 *   dS            2^e, the largest for which a bound of |dS| stays below 2^15: what is taken for zero is below 2^-29
 *                 of the bound, where a product as f32 rounds to 2^-24 of its own size
 *
 * The bound is that of dO V^T, the largest norms of rows of dO and V multiplied, and the largest |delta|, since P and
 * the slope of a softcap are at most 1. Sums lose the factors in f32: those of dQ before they are added, dK and dV at
 * the end. A work tile with larger elements, with infinite ones or NaN, or with a bound of 2^15 or more is left to the
 * exact kernel, which multiplies as f32 and rounds P and dS as other devices do. Marks of query blocks:
 * attn_bwd_subnormal.h. */
#ifndef STW_HIP_ATTN_BWD_CDNA_LIFT_H
#define STW_HIP_ATTN_BWD_CDNA_LIFT_H

#include "attn_bwd_cdna.h"

/* K, V and K^T, from what was loaded. */
template <class C> DEV_FN void attn_cdna_lift_keys(attn_cdna_kv<C> &keys) {
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
        DEV_UNROLL_FOR (int e = 0; e < 2; ++e) {
            DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j) keys.k[i][j][e] = cdna_lift(keys.k[i][j][e]);
            DEV_UNROLL_FOR (int j = 0; j < C::PIECES_V; ++j) keys.v[i][j][e] = cdna_lift(keys.v[i][j][e]);
        }
    DEV_UNROLL_FOR (int p = 0; p < attn_cdna_kv<C>::FRAGMENTS; ++p)
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
            DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) keys.kt[p][half][c] = cdna_lift(keys.kt[p][half][c]);
}

/* The largest norm of a row of V, from above, infinite where K or V holds what cannot be multiplied; the same for all
 * threads. Four lanes have a row: none has more than four times the largest part of a square. */
template <class C> DEV_FN float attn_cdna_values_norm(const attn_cdna_kv<C> &keys, attn_work_tile &u, int lane) {
    cdna_most most = {(leaf_us2)0};
    float square = 0.0f;
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
        leaf_f2 sum = {0.0f, 0.0f};
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) most.add(keys.k[i][j][e / 2][e % 2]);
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES_V; ++j)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                const uint32_t x = keys.v[i][j][e / 2][e % 2];
                const leaf_f2 pair = cdna_pair(dev_f16(), x);
                sum = __builtin_elementwise_fma(pair, pair, sum);
                most.add(x);
            }
        square = fmaxf(square, sum.x + sum.y);
    }
    const bool large = most.large();
    square = dev_wave_max(square);
    if (lane == 0) {
        dev_or(&u.k_counts, large ? 1 : 0);
        dev_shared_max(&u.v_counts, __builtin_bit_cast(int, large ? 0.0f : square));
    }
    dev_barrier();
    const float norm = __builtin_amdgcn_sqrtf(4.0f * __builtin_bit_cast(float, dev_uniform(u.v_counts)));
    return dev_uniform(u.k_counts) ? dev_infinity() : norm;
}

/* A bound of |dS| over all query blocks of the work tile. */
template <class C>
DEV_FN float attn_cdna_ds_bound(const attn_work_tile &u, float values_norm, int first, int end, int lane) {
    cdna_launch l = cdna_launch_again();
    int64_t head = dev_uniform(u.kv_head) * (int64_t)l->p.group, head_end = head + l->p.group;
    float dout = 0.0f, delta = 0.0f;
    for (; head < head_end; ++head) {
        const DEV_GLOBAL float *marks =
            (const DEV_GLOBAL float *)(l->stats + (head * l->q_blocks + dev_uniform(u.seq.q_block)) * C::STATS) +
            (2 * C::BM + 1);
        for (int block = first + lane; block < end; block += 64) {
            dout = fmaxf(dout, marks[block * C::STATS]);
            delta = fmaxf(delta, marks[block * C::STATS + 1]);
        }
    }
    if constexpr (C::MODE == CDNA_DROPOUT || cdna_knows_bias(C::MODE)) values_norm *= l->p.dropout_scale;
    const float bound = dev_wave_max(dout) * values_norm + dev_wave_max(delta);
    return dout == dev_infinity() || !(bound == bound) ? dev_infinity() : bound;
}

#endif
