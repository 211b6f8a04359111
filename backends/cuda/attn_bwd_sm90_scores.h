/* SPDX-License-Identifier: MIT
 *
 * From S to P and from dP to dS in sm90's own main loop, in the registers of a thread: value 4 i + 2 a + b of its
 * accumulators is key lane / 4 + 8 a of the warp's sixteen, query 8 i + 2 (lane % 4) + b of the block. */
#ifndef STW_CUDA_ATTN_BWD_SM90_SCORES_H
#define STW_CUDA_ATTN_BWD_SM90_SCORES_H

#include "attn_bwd_sm90_config.h"

/* This thread's statistics of a stage, LSE (which 0) or delta (1) of its two queries in each 8. Read ahead of the
 * wait for the product that they meet, into registers that are free then. */
template <class C>
DEV_FN void sm90_statistics(float2 (&x)[C::BM / 8], const char *smem, int stage, int which, int lane, int first,
                            int end) {
    const float *from =
        (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + which * C::BM + lane % 4 * 2;
    DEV_UNROLL_FOR (int i = first; i < end; ++i) x[i] = *(const float2 *)(const void *)(from + 8 * i);
}

/* P = 2^(S c - LSE c) in place; the statistics are negative. */
template <int VALUES, int PIECES>
DEV_FN void sm90_exponentials(float (&s)[VALUES], const float2 (&lse)[PIECES], const float &factor) {
    DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
        s[4 * i] = dev_exp2_fast(fmaf(s[4 * i], factor, lse[i].x));
        s[4 * i + 1] = dev_exp2_fast(fmaf(s[4 * i + 1], factor, lse[i].y));
        s[4 * i + 2] = dev_exp2_fast(fmaf(s[4 * i + 2], factor, lse[i].x));
        s[4 * i + 3] = dev_exp2_fast(fmaf(s[4 * i + 3], factor, lse[i].y));
    }
}

/* dS = P (dP - delta) to 16 bits. `masked`: dP may be infinite or no number where P is 0. */
template <class T, int VALUES, int PIECES>
DEV_FN void sm90_score_gradients(uint32_t (&ds)[2 * PIECES], float (&dp)[VALUES], const float (&p)[VALUES],
                                 const float2 (&delta)[PIECES], bool masked) {
    if (masked) {
        DEV_UNROLL_FOR (int i = 0; i < VALUES; ++i) dp[i] = p[i] != 0.0f ? dp[i] : 0.0f;
    }
    DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
        const float2 d = delta[i];
        ds[2 * i] = dev_pack(T(), p[4 * i] * (dp[4 * i] + d.x), p[4 * i + 1] * (dp[4 * i + 1] + d.y));
        ds[2 * i + 1] = dev_pack(T(), p[4 * i + 2] * (dp[4 * i + 2] + d.x), p[4 * i + 3] * (dp[4 * i + 3] + d.y));
    }
}

/* P = 0 (softcap: another mark, `hidden`) for pairs that a mask hides. a, b: the first and last query that see this
 * thread's first and second key, counted from its own first. */
template <int VALUES> DEV_FN void sm90_mask_hidden(float (&s)[VALUES], int2 a, int2 b, float hidden) {
    DEV_UNROLL_FOR (int i = 0; i < VALUES / 4; ++i) {
        if (8 * i < a.x || 8 * i > a.y) s[4 * i] = hidden;
        if (8 * i + 1 < a.x || 8 * i + 1 > a.y) s[4 * i + 1] = hidden;
        if (8 * i < b.x || 8 * i > b.y) s[4 * i + 2] = hidden;
        if (8 * i + 1 < b.x || 8 * i + 1 > b.y) s[4 * i + 3] = hidden;
    }
}
/* The same for rows with an infinite LSE; SIGNED: of either sign, not negated. */
template <bool SIGNED = false, int VALUES>
DEV_FN void sm90_mask_dead_rows(float (&s)[VALUES], const float *lse, float hidden) {
    DEV_UNROLL_FOR (int i = 0; i < VALUES / 4; ++i) {
        if (SIGNED ? dev_is_infinite(lse[8 * i]) : lse[8 * i] == -dev_infinity()) s[4 * i] = s[4 * i + 2] = hidden;
        if (SIGNED ? dev_is_infinite(lse[8 * i + 1]) : lse[8 * i + 1] == -dev_infinity())
            s[4 * i + 1] = s[4 * i + 3] = hidden;
    }
}

#endif
