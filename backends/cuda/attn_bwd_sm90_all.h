/* SPDX-License-Identifier: MIT
 *
 * Every feature of single pairs in one kernel of sm90's own main loop (SM90_ALL), which asks the call which of them it
 * has: softcap, a bias of any type, ALiBi, dropout, masks. It serves the combinations that have no kernel of their own,
 * 1.4 to 2.4 times slower than such a kernel would be, and saves registers:
 *   - it walks by lists of visible blocks, which the host has made for it where there are no masks in memory, too;
 *   - the third warpgroup leaves at once where nothing is dropped;
 *   - phase 5 ends with S, under softcap with its tanh, and marks hidden pairs by -infinity. Phases 1 and 2 make P for
 *     32 queries at a time, ahead of the product that takes it (make);
 *   - LSE and delta are not negated, since LSE is subtracted from the bias first;
 *   - phase 4 reads dropout's words, since the bias of the next step then takes their place.
 *
 * dBias of every pair leaves from dS's place, but for softcap, under which it is dS without the derivative: phase 1
 * then waits for dP and makes it from the tanh, ahead of P. */
#ifndef STW_CUDA_ATTN_BWD_SM90_ALL_H
#define STW_CUDA_ATTN_BWD_SM90_ALL_H

#include "attn_bwd_sm90_dropout.h"
#include "attn_bwd_sm90_features.h"

template <class C> struct sm90_all {
    typedef typename C::T T;
    typedef sm90_bias<C> bias;
    typedef sm90_bias_pairs<C> bias_pairs;
    enum { VALUES = C::BM / 2, TOGETHER = 8 };
    const stw_attn_launch &l;
    const stw_sm90_maps &maps;

    DEV_METHOD bool is_capped() const { return (l.p.features & STW_FEAT_SOFTCAP) != 0; }
    DEV_METHOD bool has_bias() const { return (l.p.features & STW_FEAT_BIAS) != 0; }
    DEV_METHOD bool has_f32_bias() const { return has_bias() && l.p.bias_dtype == STW_F32; }
    DEV_METHOD bool has_tiled_bias() const { return has_bias() && l.p.bias_dtype != STW_F32; }
    /* dBias of every pair that is not what goes to dS's place. */
    DEV_METHOD bool stores_gradient_apart() const { return l.bias_direct && is_capped(); }

    template <class Iterator>
    DEV_METHOD sm90_alibi alibi(attn_work_tile &tile, const Iterator &it, sm90_place at) const {
        if (!(l.p.features & STW_FEAT_ALIBI)) return {{0.0f, 0.0f}, 0.0f, 0.0f};
        return sm90_alibi::of(l, tile, it.query_head(tile, l), it.block, C::BM, at);
    }
    /* The bias of values 8 i to 8 i + 7. `from`: the address at which this lane's sm90_stmatrix_trans will write dS. */
    template <class Iterator>
    DEV_METHOD void bias_of(float (&x)[TOGETHER], int i, const attn_work_tile &tile, const Iterator &it, uint32_t from,
                            int wave) const {
        if (has_f32_bias()) {
            bias_pairs of = bias_pairs::of(l, tile, it, it.left > it.idle, wave, sm90_lane_anew());
            const int last = of.last_row(l.p.bias);
            of.load(x, i * TOGETHER, last);
            __syncwarp(); /* products follow, which take all lanes of a warp together */
        } else if (has_bias()) {
            uint32_t w[4];
            sm90_ldmatrix_trans(w, from + i * bias::NEXT);
            DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) x[e] = dev_half_of(T(), w[e / 2], e % 2);
        } else {
            DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) x[e] = 0.0f;
        }
    }
    /* S or tanh of values 8 i to 8 i + 7 to P / (1 - p), in 16 bits and with what is dropped, and in its place what dS'
     * wants of it: P / (1 - p), under softcap times its derivative. `added`: bias_of; `lse`: of this thread's first
     * query. */
    template <int WORDS>
    DEV_METHOD void make(uint32_t (&p16)[WORDS], float (&s)[VALUES], int i, const float (&added)[TOGETHER],
                         const float *lse, const sm90_alibi &of, const sm90_dropout<C::BM> &dropped) const {
        const bool capped = is_capped(), bytes = l.p.bias_dtype == STW_U8 && has_bias();
        const float factor = capped ? maps.cap : maps.factor, all = of.base - maps.log_kept;
        DEV_UNROLL_FOR (int k = 2 * i; k < 2 * i + 2; ++k) {
            const float2 both = *(const float2 *)(const void *)(lse + 8 * k);
            float y[4];
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                const float b = added[4 * (k - 2 * i) + e], t = s[4 * k + e],
                            distance = fmaf((float)(8 * k + e % 2), of.step, of.origin[e / 2]);
                const bool hidden = t == -dev_infinity() || (bytes && b == -dev_infinity());
                const float x = fmaf(t, factor, fmaf(b - (e % 2 ? both.y : both.x), DEV_LOG2E, all)) - fabsf(distance);
                y[e] = hidden ? 0.0f : dev_exp2_fast(x);
                s[4 * k + e] = y[e] * (capped && !hidden ? fmaf(-t, t, 1.0f) : 1.0f);
            }
            p16[2 * k] = dev_pack(T(), y[0], y[1]) & ~dropped.dropped(2 * k);
            p16[2 * k + 1] = dev_pack(T(), y[2], y[3]) & ~dropped.dropped(2 * k + 1);
        }
    }

    /* Where this thread's gradients of the bias go in a step. */
    struct gradients {
        char *first;        /* of its first query and key */
        int64_t query, key; /* bytes to the next query, and to its second key */
        int rows, keys;     /* in use from the first on */
        /* Of value e of four of a piece of eight queries; made anew, for registers lack. */
        DEV_METHOD char *at(int k, int e) const { return first + dev_keep(8 * k + e % 2) * query + e / 2 * key; }
        DEV_METHOD bool has(int k, int e) const { return 8 * k + e % 2 < rows && e / 2 * 8 < keys; }
    };
    template <class Iterator>
    DEV_METHOD gradients gradients_of(const attn_work_tile &tile, const Iterator &it, int wave, int lane) const {
        const stw_bias_param &t = l.p.dbias;
        const int size = 2;
        const int query = lane % 4 * 2, key = 16 * wave + lane / 4, head = it.query_head(tile, l);
        const int row = it.block * C::BM + query, col = (int)tile.j0 + key; /* 30 bits */
        return {(char *)t.data + ((int)tile.b * t.batch + head * t.head + row * t.query + col * t.key) * size,
                t.query * size, t.key * 8 * size, (int)tile.seq.q.used - row, (int)tile.seq.kv.used - col};
    }
    /* dS of values 8 i to 8 i + 7 to dBias. `s`: tanh; `lse`, `delta`: of this thread's first query. */
    DEV_METHOD void store_gradients(const gradients &to, const float (&s)[VALUES], const float (&dp)[VALUES], int i,
                                    const float (&added)[TOGETHER], const float *lse, const float *delta,
                                    const sm90_alibi &of, const sm90_dropout<C::BM> &dropped) const {
        DEV_UNROLL_FOR (int k = 2 * i; k < 2 * i + 2; ++k) {
            const float2 both = *(const float2 *)(const void *)(lse + 8 * k),
                         deltas = *(const float2 *)(const void *)(delta + 8 * k);
            float ds[4];
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                const float b = added[4 * (k - 2 * i) + e], t = s[4 * k + e],
                            distance = fmaf((float)(8 * k + e % 2), of.step, of.origin[e / 2]);
                const bool hidden = t == -dev_infinity(); /* bytes have no gradient */
                const float x =
                    fmaf(t, maps.cap, fmaf(b - (e % 2 ? both.y : both.x), DEV_LOG2E, of.base - maps.log_kept));
                const float p = hidden ? 0.0f : dev_exp2_fast(x - fabsf(distance));
                const float d = (e % 2 ? deltas.y : deltas.x) * maps.kept;
                ds[e] = p != 0.0f ? p * (dropped.kept(4 * k + e, dp[4 * k + e]) - d) : 0.0f;
            }
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
                if (to.has(k, e)) *(uint16_t *)(void *)to.at(k, e) = (uint16_t)dev_pack(T(), ds[e], ds[e]);
        }
        __syncwarp(); /* what follows takes all lanes of a warp together */
    }
};

#endif
