/* SPDX-License-Identifier: MIT
 *
 * A softcap in the kernels that know no other feature (ATTN_CAPPED): P = exp(cap tanh(x) - LSE) with x = scale S / cap,
 * and dS' = P (dP - D) (1 - tanh(x)^2). There are no registers for the derivatives, so the tangents, not P, are made
 * under the product dO V^T, and P and the derivative after it.
 *
 * Where every |x| of a wave's part is below SMALL the tangent is a polynomial. Elsewhere x itself waits for the end of
 * the product: the tangent and the derivative, which has lost its digits in 1 - tanh^2 there, come from e^-2|x|. */
#ifndef STW_COMMON_KERNELS_ATTN_SOFTCAP_H
#define STW_COMMON_KERNELS_ATTN_SOFTCAP_H

#include "common/kernels/attn_scores.h"

#define ATTN_SOFTCAP_SMALL 0.875f

template <class S> struct attn_softcap_side {
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    dev_acc<S> &s;
    /* Products -> 2 x / SMALL. Says whether all of the wave's part are below 2, which one bit of them tells. */
    DEV_FN bool scale(dev_acc<S> &s, const stw_attn_params &p) {
        float factor = p.scale / p.softcap * (2.0f / ATTN_SOFTCAP_SMALL);
        uint32_t bits = 0;
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                    s.v[m][n][i] *= factor;
                    bits |= dev_bits(s.v[m][n][i]);
                }
        return !dev_any_lane_has(bits, 0x40000000);
    }
    /* 2 x / SMALL -> tanh(x), within 2.3e-6 of itself. */
    DEV_METHOD void step(int k, int steps) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                if (f >= COUNT * k / steps && f < COUNT * (k + 1) / steps) {
                    float &y = s.v[f / S::NT][f % S::NT][i];
                    float z = y * y, t = fmaf(z, 6.398682555e-6f, -1.463243284e-4f);
                    t = fmaf(t, z, 2.111611637e-3f);
                    t = fmaf(t, z, -2.790113645e-2f);
                    y *= fmaf(t, z, 4.374990334e-1f);
                }
    }
};

/* What the side has left in p, and dP, -> P and dS', as attn_scores_to_ds. SMALL: tangents. */
template <class C, bool MASKED, bool SMALL, class S = typename C::score_split>
DEV_FN void attn_softcap_to_ds(dev_acc<S> &p, dev_acc<S> &dp, float softcap, const float *stats, const dev_mask &mask,
                               int wave, int lane) {
    static_assert(sizeof(typename C::T) == 2, "the fast power of two will do");
    float cap = softcap * DEV_LOG2E;
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
        float base[LEAF_ACC_ROWS], delta[LEAF_ACC_ROWS];
        int low[LEAF_ACC_ROWS], high[LEAF_ACC_ROWS]; /* visible columns of the row */
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            base[slot] = -DEV_LOG2E * stats[row];
            delta[slot] = stats[C::BM + row];
            if (!MASKED) continue;
            mask.columns(row, &low[slot], &high[slot]);
            if (dev_is_infinite(stats[row])) high[slot] = low[slot] - 1;
        }
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                int slot = leaf_acc_slot(i), col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                float t = p.v[m][n][i], flow = dp.v[m][n][i], derivative;
                if (SMALL) {
                    derivative = fmaf(-t, t, 1.0f);
                } else {
                    float e = dev_exp2_fast(fabsf(t) * (-DEV_LOG2E * ATTN_SOFTCAP_SMALL)), part = 1.0f / (1.0f + e);
                    derivative = e * part * part * 4.0f;
                    t = copysignf((1.0f - e) * part, t);
                }
                float x = dev_exp2_fast(fmaf(t, cap, base[slot]));
                bool seen = !MASKED || (x != 0.0f && col >= low[slot] && col <= high[slot]);
                float ds = x * (flow - delta[slot]) * derivative;
                p.v[m][n][i] = seen ? x : 0.0f;
                dp.v[m][n][i] = seen ? ds : 0.0f;
            }
    }
}

#endif
