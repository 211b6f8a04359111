/* SPDX-License-Identifier: MIT
 *
 * The first half of a step: S = Q K^T, P = exp(S - LSE), dP = dO V^T and dS = P (dP - D) of one tile, bm queries by bn
 * keys, in registers, with whatever the problem's features do on the way. The main loop multiplies P and dS further;
 * the kernels that sum dBias over tiles add dS up. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_SCORES_H
#define STW_COMMON_KERNELS_ATTN_BWD_SCORES_H

#include "common/kernels/attn_alibi.h"
#include "common/kernels/attn_bias_load.h"
#include "common/kernels/attn_bwd_subnormal.h"
#include "common/kernels/attn_bwd_scheduler.h"
#include "common/kernels/attn_scores.h"
#include "common/kernels/attn_softcap.h"

/* acc += A B^T, rows of Q with K or rows of dO with V. `nearest`: sums are rounded to nearest, not truncated.
 * `subnormal`: subnormal operands and sums count. */
template <class C, class S = typename C::score_split>
DEV_FN void attn_mma_ABt(dev_acc<S> &acc, dev_smem_tile<typename C::rows> a, dev_smem_tile<typename C::keys> b,
                         bool nearest, bool subnormal, int wave, int lane) {
    dev_rounded rounded;
    if constexpr (dev_flushes<typename C::T>::yes) {
        dev_unflushed unflushed;
        if (subnormal) {
            mma_ABt(acc, a, b, unflushed, wave, lane);
            dev_part(false); /* else clang joins the ends of both ways, with their accumulators in scratch memory */
            return;
        }
    }
    if (nearest) mma_ABt(acc, a, b, rounded, wave, lane);
    else mma_ABt(acc, a, b, wave, lane);
}

/* A wave's part of P or dS into shared memory. f32 as three bf16: one test for nonfinite numbers. */
template <class C, class S = typename C::score_split>
DEV_FN void attn_store_scores(dev_smem_tile<typename C::scores> tile, const dev_acc<S> &acc, int wave, int lane) {
    if constexpr (C::scores::TERMS != 1) {
        leaf_mma<typename C::T>::template store_all<typename C::scores>(tile.data, S::row0(wave), S::col0(wave), acc.v,
                                                                        lane);
    } else {
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                leaf_store_acc<typename C::scores>(tile.data, S::row0(wave) + m * LEAF_MMA_M,
                                                   S::col0(wave) + n * LEAF_MMA_N, acc.v[m][n], lane);
    }
}

/* P and dS of query block `block` of head h with the keys of u. `inner`: every query sees every key. `load_next` runs
 * after S = Q K^T: it starts the loads of the next step. `dbias` gives the taker of dS element by element. P and dS go
 * to shared memory unless the taker is all that wants them.
 *
 * One function, not one a product: cut into methods of a structure, ptxas makes other code of most kernels. */
template <class C, int MODE, class Bias, class Taker, class LoadNext>
DEV_FN void attn_bwd_scores(const attn_work_tile &u, const stw_attn_launch &l, char *smem, const attn_values<C> &values,
                            int stage, int h, int block, bool inner,
                            const attn_dropout_next<typename C::score_split> &next, const Taker &dbias,
                            const LoadNext &load_next, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::score_split S;
    enum { PLAIN = MODE == ATTN_PLAIN || MODE == ATTN_ORDERED, BIASED = MODE == ATTN_BIASED, ALL = MODE == ATTN_ALL };
    enum { DROPS = MODE == ATTN_DROPS ? 2 : ALL, CAPPED = MODE == ATTN_CAPPED, SLOPED = MODE == ATTN_SLOPED };
    const stw_attn_params &p = l.p;
    const dev_smem_tile<typename C::rows> q = C::q(smem, stage), dout = C::dout(smem, stage);
    const dev_smem_tile<typename C::keys> k = C::k(smem), v = C::v(smem);
    const float *stats = (const float *)(smem + C::AT_STATS) + stage * C::STATS;
    int64_t i0 = (int64_t)block * C::BM;
    dev_acc<S> s, dp;
    s.clear();
    dp.clear();
    dev_mask mask = dev_mask::whole(C::BM, C::BN);
    if (!inner) mask = dev_mask::of(u.seq, i0, u.j0, C::BM, C::BN);
    bool drops = MODE == ATTN_DROPS || (ALL && (p.features & STW_FEAT_DROPOUT));
    bool nearest = ALL && (Bias::unrounded(l) || u.seq.kv.used == 1 || (sizeof(T) == 2 && stw_attn_sees_one_key(&p)));
    bool subnormal = dev_flushes<T>::yes && attn_is_subnormal<C>(u, stats);
    bool small = false; /* CAPPED */
    float scale = p.scale;
    bool hides = false; /* masks in memory may hide pairs of the tile */
    if constexpr (attn_hides<MODE>::yes) {
        if (attn_has_masks(l)) hides = attn_hidden_touches<C>(l, u, u.kv_head, h, block);
    }
    attn_dropout<S> keep;
    dev_logit logit;

    /* S = Q K^T, and what features add to it: a bias of its own kernels; dropout's decisions, made under the product
     * where their map allows it; all features. */
    if constexpr (BIASED) {
        attn_mma_ABt<C>(s, q, k, false, subnormal, wave, lane);
        dev_copy_wait(); /* of the bias */
        dev_wave_sync();
        load_next();
        attn_bias_part<C>::add(s, l, stats, smem, wave, lane);
    } else if constexpr (MODE == ATTN_DROPS) {
        typedef attn_dropout_next<S> ahead;
        stw_dropout_stream stream = stw_dropout_stream_of(&p, u.b, h, u.seq.q, u.seq.kv);
        if (attn_dropout_philox<S>::fits(p, stream, i0)) {
            attn_dropout_philox<S> calls = attn_dropout_philox<S>::of(p, stream, i0, u.j0, wave, lane);
            if (next.made == ahead::PHILOX) {
                DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) calls.nibble[w] = next.word[w];
            } else {
                calls.some(0, ahead::HALF);
            }
            attn_dropout_philox_half<S, 1> rest = {calls};
            mma_ABt(s, q, k, rest, wave, lane);
            calls.give(keep, lane);
        } else {
            if (attn_dropout_flash2_side<S>::fits(p, i0, u.j0)) {
                attn_dropout_flash2_side<S> calls = attn_dropout_flash2_side<S>::of(p, stream, i0, u.j0, wave, lane);
                if (next.made == ahead::FLASH2) {
                    DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) calls.pairs[w] = next.word[w];
                } else {
                    calls.step(0, 1);
                }
                calls.give(keep);
            } else {
                attn_dropout_fill<S>(keep, p, stream, mask, i0, u.j0, wave, lane);
            }
            attn_mma_ABt<C>(s, q, k, false, subnormal, wave, lane);
        }
        load_next();
    } else if constexpr (ALL) {
        stw_dropout_stream stream = {};
        bool overlaps = false; /* Philox and the product */
        logit = dev_logit::of(p, u.seq, u.b, h, i0, u.j0);
        keep.all();
        if (drops) {
            stream = stw_dropout_stream_of(&p, u.b, h, u.seq.q, u.seq.kv);
            overlaps = !nearest && !subnormal && attn_dropout_philox<S>::fits(p, stream, i0);
            if (!overlaps) attn_dropout_fill<S>(keep, p, stream, mask, i0, u.j0, wave, lane);
        }
        dev_bias_words<S> words;
        bool plain = dev_bias_words<S>::plain(logit, mask, C::BM, C::BN);
        words.load(logit, mask, plain, wave, lane);
        words.fetch(logit, plain, wave, lane);
        if (overlaps) {
            attn_dropout_philox<S> calls = attn_dropout_philox<S>::of(p, stream, i0, u.j0, wave, lane);
            mma_ABt(s, q, k, calls, wave, lane);
            calls.give(keep, lane);
        } else {
            attn_mma_ABt<C>(s, q, k, nearest, subnormal, wave, lane);
        }
        load_next();
        scale = attn_scores_logits<S>(s, logit, words, mask, wave, lane);
    } else {
        attn_mma_ABt<C>(s, q, k, false, subnormal, wave, lane);
        load_next();
    }

    /* dP = dO V^T, and P = exp(S - LSE) under it. */
    if constexpr (BIASED) {
        attn_exp2_side<S> exponentials = {s};
        mma_ABt(dp, dout, v, exponentials, wave, lane);
    } else if constexpr (CAPPED) {
        small = attn_softcap_side<S>::scale(s, p);
        if (small) {
            attn_softcap_side<S> tangents = {s};
            mma_ABt(dp, dout, v, tangents, wave, lane);
        } else {
            attn_mma_ABt<C>(dp, dout, v, false, subnormal, wave, lane);
        }
    } else if constexpr (SLOPED) {
        attn_alibi_side<C> slope = attn_alibi_side<C>::of(
            s, u, p, p.alibi_slopes[dev_uniform(u.b) * p.alibi_stride_batch + h], stats, i0, u.j0, wave, lane);
        mma_ABt(dp, dout, v, slope, wave, lane);
    } else {
        attn_exp_side<C, ALL> exponentials = attn_exp_side<C, ALL>::of(s, stats, scale, wave, lane);
        if (nearest || subnormal || C::VALUES_HELD) {
            exponentials.every();
            if (C::VALUES_HELD) values.mma_dout(dp, dout.data, subnormal, wave, lane);
            else attn_mma_ABt<C>(dp, dout, v, true, subnormal, wave, lane);
        } else {
            mma_ABt(dp, dout, v, exponentials, wave, lane);
        }
    }

    if constexpr (attn_hides<MODE>::yes) {
        if (hides) attn_hidden_apply<C>(s, l, u, u.kv_head, h, block, wave, lane);
    }
    /* dS = P (dP - D), in dp; P.Z, in s. Both are 0 where a mask hides the pair or the row's LSE is infinite. */
    bool masked = !inner || stats[2 * C::BM] != 0.0f || (ALL && p.bias_dtype == STW_U8) || hides;
    if constexpr (CAPPED) {
        if (small && !masked) attn_softcap_to_ds<C, false, true>(s, dp, p.softcap, stats, mask, wave, lane);
        else if (small) attn_softcap_to_ds<C, true, true>(s, dp, p.softcap, stats, mask, wave, lane);
        else attn_softcap_to_ds<C, true, false>(s, dp, p.softcap, stats, mask, wave, lane);
    } else if (masked && drops)
        attn_scores_to_ds<C, true, DROPS>(s, dp, stats, mask, keep, p.dropout_scale, wave, lane);
    else if (masked) attn_scores_to_ds<C, true, false>(s, dp, stats, mask, keep, 1.0f, wave, lane);
    else if (drops) attn_scores_to_ds<C, false, DROPS>(s, dp, stats, mask, keep, p.dropout_scale, wave, lane);
    else attn_scores_to_ds<C, false, false>(s, dp, stats, mask, keep, 1.0f, wave, lane);
    if (ALL && Bias::wanted(l)) attn_scores_take<Bias>(dp, dbias(), wave, lane);
    if (!Bias::OPERANDS) return;
    attn_store_scores<C>(C::p(smem), s, wave, lane);
    if (ALL && (p.features & STW_FEAT_SOFTCAP)) { /* its derivative, from S made once more: s is free now */
        s.clear();
        attn_mma_ABt<C>(s, q, k, true, subnormal, wave, lane);
        attn_scores_slopes<S>(dp, s, logit);
    }
    attn_store_scores<C>(C::ds(smem), dp, wave, lane);
}

#endif
