/* SPDX-License-Identifier: MIT
 *
 * ALiBi in the kernels that know no other feature (ATTN_SLOPED). Where all visible pairs of a tile lie on one side of
 * the diagonal, or the distance is counted from the first key, what ALiBi adds is a multiple of the key's number and,
 * a row, a number: P = exp(S - LSE) takes one more multiplication an element, under the product dO V^T. Other tiles,
 * at the diagonal without a causal mask, get |key - row| in front of the product. */
#ifndef STW_COMMON_KERNELS_ATTN_ALIBI_H
#define STW_COMMON_KERNELS_ATTN_ALIBI_H

#include "common/kernels/attn_bwd_scheduler.h"
#include "common/kernels/attn_scores.h"

template <class C> struct attn_alibi_side {
    typedef typename C::score_split S;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    static_assert(sizeof(typename C::T) == 2, "the fast power of two will do");
    dev_acc<S> &s;
    float factor, key, base[S::MT][LEAF_ACC_ROWS]; /* log2 P = S factor + column key + base of the row */
    /* `i0`, `j0`: the tile's corner in its sequence. */
    DEV_FN attn_alibi_side of(dev_acc<S> &s, const attn_work_tile &u, const stw_attn_params &p, float slope,
                              const float *stats, int64_t i0, int64_t j0, int wave, int lane) {
        bool column = (p.features & STW_FEAT_ALIBI_COLUMN) != 0;
        int64_t diagonal = j0 - i0 - u.seq.band.shift; /* key - row of the corner */
        bool below = diagonal + (C::BN - 1) <= 0 || u.seq.band.high <= u.seq.band.shift,
             above = diagonal - (C::BM - 1) >= 0 || u.seq.band.low >= u.seq.band.shift;
        float corner =
            (float)(column ? j0 + u.seq.kv.offset : diagonal) + (float)(S::col0(wave) + leaf_acc_col(lane, 0));
        attn_alibi_side e = {s, p.scale * DEV_LOG2E, column || below ? slope : -slope, {}};
        if (!column && !below && !above) {
            DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
                DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                    DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                        int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                        float away = corner - (float)row + (float)(n * LEAF_MMA_N + leaf_acc_col(0, i));
                        s.v[m][n][i] = fmaf(fabsf(away), -slope, s.v[m][n][i] * p.scale);
                    }
            e.factor = DEV_LOG2E;
            e.key = 0.0f;
        }
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
                float at = column ? corner : corner - (float)row;
                e.base[m][slot] = fmaf(at, e.key, -stats[row]) * DEV_LOG2E;
            }
        e.key *= DEV_LOG2E;
        return e;
    }
    DEV_METHOD void step(int k, int steps) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                if (f >= COUNT * k / steps && f < COUNT * (k + 1) / steps) {
                    float &x = s.v[f / S::NT][f % S::NT][i];
                    float column = (float)(f % S::NT * LEAF_MMA_N + leaf_acc_col(0, i));
                    x = dev_exp2_fast(fmaf(x, factor, fmaf(column, key, base[f / S::NT][leaf_acc_slot(i)])));
                }
    }
};

#endif
