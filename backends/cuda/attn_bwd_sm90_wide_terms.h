/* SPDX-License-Identifier: MIT
 *
 * All features of single pairs at once in sm90's main loop for wide heads (C::ALL). While S is multiplied, a thread
 * makes of each of its scores what is added to the exponent: bias, LSE, ALiBi, dropout's 1 / (1 - p), -infinity where
 * the pair is hidden. What the problem has is asked by branches that are the same for all threads. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_TERMS_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_TERMS_H

#include "attn_bwd_sm90_wide_bias.h"
#include "attn_bwd_sm90_wide_features.h"

/* The query block of a step, as sm90_wide_iterator has it. */
struct sm90_wide_step {
    int block, head;
    DEV_FN sm90_wide_step of(const stw_attn_launch &l, const attn_work_tile &tile, sm90_visible_step step) {
        return {step.block(), tile.kv_head * (int)l.p.group + step.head()};
    }
};

template <class C> struct sm90_wide_terms {
    typedef typename C::T T;
    enum { SCORES = C::GROUP_KEYS / 2 };
    float x[SCORES]; /* times log2(e) */

    /* The bias, 0 without one; of bytes 0 or -infinity. */
    DEV_METHOD void fetch(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_wide_step &it) {
        typedef typename sm90_wide_bias<C>::place place;
        if (!(l.p.features & STW_FEAT_BIAS)) {
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) x[i] = 0.0f;
            return;
        }
        const bool f32 = l.p.bias_dtype == STW_F32, bytes = l.p.bias_dtype == STW_U8;
        const place from = place::of(l.p.bias, f32 ? 4 : bytes ? 1 : 2, tile, it);
        if (!from.pairs) {
            from.template each<0, SCORES>(
                [&](int i, const char *at) {
                    if (f32) x[i] = *(const float *)(const void *)at;
                    else if (bytes) x[i] = *(const uint8_t *)(const void *)at ? 0.0f : -dev_infinity();
                    else x[i] = dev_half_of(T(), *(const uint16_t *)(const void *)at, false);
                },
                [&](int i) { x[i] = 0.0f; });
        } else if (f32) {
            from.template each_pair<4, 0, SCORES>([&](int i, const char *at) {
                const float2 both = *(const float2 *)(const void *)at;
                x[i] = both.x, x[i + 1] = both.y;
            });
        } else if (bytes) {
            from.template each_pair<1, 0, SCORES>([&](int i, const char *at) {
                const uint32_t both = *(const uint16_t *)(const void *)at;
                x[i] = both & 0xFFu ? 0.0f : -dev_infinity(), x[i + 1] = both >> 8 ? 0.0f : -dev_infinity();
            });
        } else {
            from.template each_pair<2, 0, SCORES>([&](int i, const char *at) {
                const uint32_t both = *(const uint32_t *)(const void *)at;
                x[i] = dev_half_of(T(), both, false), x[i + 1] = dev_half_of(T(), both, true);
            });
        }
    }
    /* The rest. The difference of bias and LSE comes first (sm90_wide_bias::add). `hidden`: of sm90_wide_hidden; `row`:
     * this thread's first of the query block. */
    DEV_METHOD void add(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_wide_step &it, float2 lse,
                        float log_kept, uint32_t hidden, int row) {
        const uint32_t f = l.p.features;
        DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) x[i] = fmaf(x[i] - (i & 2 ? lse.y : lse.x), DEV_LOG2E, -log_kept);
        if (f & STW_FEAT_ALIBI) {
            const int key = sm90_thread_anew() / 128 * C::GROUP_KEYS + sm90_lane_anew() % 4 * 2;
            const sm90_wide_alibi<C> alibi = sm90_wide_alibi<C>::of(l, tile, it.head, it.block, key, row);
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) x[i] += alibi.term(i / 2 % 2, i / 4 * 8 + i % 2);
        }
        if (hidden) {
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) x[i] = hidden >> (32 - SCORES + i) & 1 ? -dev_infinity() : x[i];
        }
        if (dev_is_infinite(lse.x) || dev_is_infinite(lse.y)) {
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                x[i] = dev_is_infinite(i & 2 ? lse.y : lse.x) ? -dev_infinity() : x[i];
        }
    }
    /* S has come: P to 16 bits, and in place P times what softcap's derivative is. C::APART: P itself stays here. */
    DEV_METHOD void probabilities(float (&s)[SCORES], uint32_t (&p)[SCORES / 2], const stw_sm90_maps &maps,
                                  bool capped) {
        DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
            s[i] = x[i] == -dev_infinity() ? 0.0f : s[i]; /* which may be no number */
        if (capped) sm90_tanh(s, maps.factor);
        const float by = capped ? maps.cap : maps.factor;
        DEV_UNROLL_FOR (int i = 0; i < SCORES; i += 2) {
            float y[2];
            DEV_UNROLL_FOR (int k = 0; k < 2; ++k) {
                float &t = s[i + k];
                y[k] = dev_exp2_fast(fmaf(t, by, x[i + k]));
                t = capped ? y[k] * fmaf(-t, t, 1.0f) : y[k];
            }
            p[i / 2] = dev_pack(T(), y[0], y[1]);
            if constexpr (C::APART) x[i] = y[0], x[i + 1] = y[1];
        }
    }

    /* C::APART: P and dP -> dS without the softcap's derivative, for dBias. */
    DEV_METHOD void gradients(const float (&dp)[SCORES], float2 delta) {
        DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
            x[i] = x[i] != 0.0f ? x[i] * (dp[i] - (i & 2 ? delta.y : delta.x)) : 0.0f;
    }
};

#endif
