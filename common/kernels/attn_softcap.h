/* SPDX-License-Identifier: MIT
 *
 * A softcap in the kernels that know no other feature (ATTN_CAPPED): P = exp(cap tanh(x) - LSE) with x = scale S / cap,
 * and the derivative 1 - tanh(x)^2 that dS is multiplied by. Both are made under the product dO V^T. There are no
 * registers for the derivatives, so they wait in shared memory where dS will be written, as f16: each lane reads what
 * it wrote. They are stored times 2^15, so that they keep their precision down to 2^-29, and dP - D is scaled by 2^-15.
 *
 * Where every |x| of a wave's part is below SMALL the tangent is a polynomial, which multiplications make; elsewhere an
 * exponential and a quotient, in front of the product. */
#ifndef STW_COMMON_KERNELS_ATTN_SOFTCAP_H
#define STW_COMMON_KERNELS_ATTN_SOFTCAP_H

#include "common/kernels/attn_scores.h"

template <class C> struct attn_softcap_side {
    typedef typename C::score_split S;
    typedef dev_tile<dev_f16, C::BM, C::BN> tile;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    static_assert(sizeof(typename C::T) == 2 && LEAF_ACC == 4 && S::NT % 2 == 0, "dS of 16 bits, in pairs");
    static constexpr float SMALL = 0.875f, SLOPE_UNIT = 32768.0f, ROOT_UNIT = 181.01933598375618f;
    dev_acc<S> &s;
    dev_f16 *slopes;
    const float *stats;
    float cap; /* times log2(e) */
    int wave, lane;
    /* Products -> 2 x / SMALL. `small_out`: all of the wave's part are below 2, which one bit of them tells. */
    DEV_FN attn_softcap_side of(dev_acc<S> &s, const stw_attn_params &p, const float *stats, char *smem,
                                bool *small_out, int wave, int lane) {
        attn_softcap_side e = {s, (dev_f16 *)(void *)(smem + C::AT_DS), stats, p.softcap * DEV_LOG2E, wave, lane};
        float factor = p.scale / p.softcap * (2.0f / SMALL);
        int bits = 0;
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                    s.v[m][n][i] *= factor;
                    bits |= (int)dev_bits(s.v[m][n][i]);
                }
        *small_out = (dev_uniform(bits) & 0x40000000) == 0;
        return e;
    }
    /* -LSE of the row of fragment f's element i. It is read where it is needed: registers are taken. */
    DEV_METHOD float base(int f, int i) const {
        return -DEV_LOG2E * stats[S::row0(wave) + f / S::NT * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i))];
    }
    DEV_METHOD void put(int f, const float slope[LEAF_ACC]) {
        leaf_store_acc<tile>(slopes, S::row0(wave) + f / S::NT * LEAF_MMA_M, S::col0(wave) + f % S::NT * LEAF_MMA_N,
                             slope, lane);
    }
    /* Small ones. The polynomial, in 2 x / SMALL, is sqrt(SLOPE_UNIT) tanh(x) within 2.3e-6 of itself. */
    DEV_METHOD void step(int k, int steps) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f) {
            if (f < COUNT * k / steps || f >= COUNT * (k + 1) / steps) continue;
            float slope[LEAF_ACC];
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                float &y = s.v[f / S::NT][f % S::NT][i];
                float z = y * y, t = z * 1.158285267e-3f - 2.648753277e-2f;
                t = t * z + 3.822425364e-1f;
                t = t * z - 5.050645194f;
                t = (t * z + 79.19578452f) * y;
                slope[i] = fmaf(-t, t, SLOPE_UNIT);
                y = dev_exp2_fast(fmaf(t, cap * (1.0f / ROOT_UNIT), base(f, i)));
            }
            put(f, slope);
        }
    }
    /* Any, at once. */
    DEV_METHOD void every() {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f) {
            float slope[LEAF_ACC];
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                float &y = s.v[f / S::NT][f % S::NT][i];
                float e = dev_exp2_fast(fabsf(y) * (-DEV_LOG2E * SMALL)), part = 1.0f / (1.0f + e);
                slope[i] = e * part * part * (4.0f * SLOPE_UNIT);
                y = dev_exp2_fast(fmaf(copysignf((1.0f - e) * part, y), cap, base(f, i)));
            }
            put(f, slope);
        }
    }
};

/* P and dP -> P and dS' = P (dP - D) (1 - tanh^2), as attn_scores_to_ds. */
template <class C, bool MASKED, class S = typename C::score_split>
DEV_FN void attn_softcap_to_ds(dev_acc<S> &p, dev_acc<S> &dp, const float *stats, const dev_mask &mask,
                               const char *smem, int wave, int lane) {
    typedef typename attn_softcap_side<C>::tile tile;
    typedef leaf_mma<dev_f16> mma;
    const float unit = 1.0f / attn_softcap_side<C>::SLOPE_UNIT;
    dev_wave_sync();
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
        float delta[LEAF_ACC_ROWS];
        int low[LEAF_ACC_ROWS], high[LEAF_ACC_ROWS]; /* visible columns of the row */
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            delta[slot] = stats[C::BM + row] * unit;
            if (!MASKED) continue;
            mask.columns(row, &low[slot], &high[slot]);
            if (dev_is_infinite(stats[row])) high[slot] = low[slot] - 1;
        }
        DEV_UNROLL_FOR (int n = 0; n < S::NT; n += 2) {
            typename mma::a_frag slopes; /* an operand's fragment is two accumulators side by side */
            mma::template load_a<false, tile>(slopes, (const dev_f16 *)(const void *)(smem + C::AT_DS),
                                              S::row0(wave) + m * LEAF_MMA_M, S::col0(wave) + n * LEAF_MMA_N, lane);
            DEV_UNROLL_FOR (int i = 0; i < 2 * LEAF_ACC; ++i) {
                int half = i / LEAF_ACC, slot = leaf_acc_slot(i % LEAF_ACC);
                int col = S::col0(wave) + (n + half) * LEAF_MMA_N + leaf_acc_col(lane, i % LEAF_ACC);
                float &x = p.v[m][n + half][i % LEAF_ACC], &flow = dp.v[m][n + half][i % LEAF_ACC];
                bool seen = !MASKED || (x != 0.0f && col >= low[slot] && col <= high[slot]);
                float ds = x * (dev_half_of(dev_f16(), slopes.r[i / 2], i % 2) * fmaf(flow, unit, -delta[slot]));
                if (MASKED) x = seen ? x : 0.0f;
                flow = seen ? ds : 0.0f;
            }
        }
    }
    dev_wave_sync(); /* dS goes where the slopes were */
}

#endif
