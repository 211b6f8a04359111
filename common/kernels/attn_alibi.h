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
        const int64_t far = INT64_C(1) << 23; /* nearer distances are numbers of f32, and so are their sums here */
        bool column = (p.features & STW_FEAT_ALIBI_COLUMN) != 0;
        int64_t corner = column ? j0 + u.seq.kv.offset : j0 - i0 - u.seq.band.shift;
        bool below = corner + (C::BN - 1) <= 0 || u.seq.band.high <= u.seq.band.shift,
             above = corner - (C::BM - 1) >= 0 || u.seq.band.low >= u.seq.band.shift;
        bool linear = (column || below || above) && corner > -far && corner < far;
        attn_alibi_side e = {s, p.scale * DEV_LOG2E, column || below ? slope : -slope, {}};
        if (!linear) {
            e.factor = DEV_LOG2E;
            e.key = 0.0f;
        }
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
                float at = (float)((int)corner + S::col0(wave) + leaf_acc_col(lane, 0) - (column ? 0 : row));
                e.base[m][slot] = linear ? fmaf(at, e.key, -stats[row]) * DEV_LOG2E : 0.0f;
            }
        e.key *= DEV_LOG2E;
        if (!linear) e.add_distances(corner, column, slope, p.scale, stats, wave, lane);
        return e;
    }
    /* Products -> S - LSE. */
    DEV_METHOD void add_distances(int64_t corner, bool column, float slope, float scale, const float *stats, int wave,
                                  int lane) {
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                    int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                    int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                    float away = (float)(corner + (column ? col : col - row)), &x = s.v[m][n][i];
                    x = fmaf(column ? away : -fabsf(away), slope, x * scale) - stats[row];
                }
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
