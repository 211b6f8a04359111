/* SPDX-License-Identifier: MIT
 *
 * What features of single pairs do in sm90's main loops for wide heads: ALiBi of both forms, or a softcap, which one
 * kernel tells apart by a branch that is the same for all threads. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_FEATURES_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_FEATURES_H

#include "attn_bwd_sm90_features.h"
#include "attn_bwd_sm90_wide_config.h"

/* f32 sums of this call go to memory every maps.drain_rows rows. */
template <class C> DEV_FN bool sm90_wide_drains(const stw_attn_params &p) {
    return C::OUTPUTS && (p.dk_dtype == STW_F32 || p.dv_dtype == STW_F32) && !(p.features & STW_FEAT_ROUNDED_SUMS);
}

/* What ALiBi adds to the exponents, times log2(e): base - |origin[n] + i step|. A thread has scores of two rows of the
 * accumulators, n, and in each those of columns i. By distance base is 0. By key the slope's multiple of key j is that
 * of a key J at the end of the work tile, base, and of j - J, whose sign is that of the slope. */
template <class C> struct sm90_wide_alibi {
    float origin[2], step, base;

    /* Query block `block` of head `head`; `key`, `query`: the first of this thread. */
    DEV_FN sm90_wide_alibi of(const stw_attn_launch &l, const attn_work_tile &tile, int head, int block, int key,
                              int query) {
        const stw_attn_params &p = l.p;
        const float slope = __ldg(p.alibi_slopes + (tile.b * p.alibi_stride_batch + head)) * DEV_LOG2E;
        const bool by_key = (p.features & STW_FEAT_ALIBI_COLUMN) != 0;
        const int end = slope < 0.0f ? 0 : C::BN, next = C::TALL ? 8 : by_key ? 0 : -8;
        const int64_t corner =
            by_key ? key - end : tile.j0 + key - tile.seq.band.shift - (int64_t)block * C::BM - query;
        const float of_query = by_key ? 0.0f : -slope;
        return {{(float)corner * slope, (float)(corner + next) * slope},
                C::TALL ? of_query : slope,
                by_key ? (float)(tile.j0 + tile.seq.kv.offset + end) * slope : 0.0f};
    }
    DEV_METHOD float term(int n, int i) const { return base - fabsf(fmaf((float)i, step, origin[n])); }
    /* Of a score of row n and column i, before it is a power of two. */
    DEV_METHOD float exponent(float score, float factor, float lse, int n, int i) const {
        return fmaf(score, factor, lse + base) - fabsf(fmaf((float)i, step, origin[n]));
    }
};

/* tanh of two scores -> P, in 16 bits, and in their places P times softcap's derivative. `cap` times log2(e). */
template <class T> DEV_FN uint32_t sm90_capped_pair(float &t, float &u, const float &cap, float lse_t, float lse_u) {
    const float x = t == SM90_CAP_HIDDEN ? 0.0f : dev_exp2_fast(fmaf(t, cap, lse_t)),
                y = u == SM90_CAP_HIDDEN ? 0.0f : dev_exp2_fast(fmaf(u, cap, lse_u));
    t = x * fmaf(-t, t, 1.0f);
    u = y * fmaf(-u, u, 1.0f);
    return dev_pack(T(), x, y);
}

#endif
