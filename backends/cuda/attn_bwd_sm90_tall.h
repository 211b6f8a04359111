/* SPDX-License-Identifier: MIT
 *
 * sm90's main loop of the backward pass for head_dim_qk to 192 and head_dim_v to 128. As attn_bwd_sm90_wide.h, but a
 * work tile is 128 keys, and each of the two warpgroups that multiply has 64 of them, all columns of their dK and dV.
 *
 *              queries i0 .. i0+64
 *     keys  +--------------------+      S^T  = K Q^T      all operands from shared memory; warpgroup c makes the rows
 *     c = 0 | 64 x 64            |      dP^T = V dO^T     of keys 64c..
 *           +--------------------+      dV  += P^T dO     P by way of shared memory, of which a warpgroup reads its own
 *     c = 1 | 64 x 64            |      dK  += dS^T Q     dS likewise
 *           +--------------------+      dQ   = dS K       dS of both, read by columns; warpgroup c makes columns 96c..
 *
 * Step j to step j + 1. On entry dS(j) is in shared memory and the second half of dV(j) runs.
 *   1  begin dQ(j), half of dK(j); wait for dQ, which leaves                                        (dK runs)
 *   2  begin S(j+1), the rest of dK(j); wait for S; P(j+1) = 2^(S c - LSE c), in 16 bits to shared memory   (dK runs)
 *   3  begin dP(j+1) of 32 queries, half of dV(j+1); wait for dP; dS(j+1) = P (dP - delta), in 16 bits to shared
 *      memory, when both warpgroups have made dQ(j)                                                 (dV runs)
 *   4  the same with the other halves; barrier
 * Registers: dK and dV take 160 of a thread. dQ takes 48 more, or P 32 and half of dP 16. */
#ifndef STW_CUDA_ATTN_BWD_SM90_TALL_H
#define STW_CUDA_ATTN_BWD_SM90_TALL_H

#include "attn_bwd_sm90_wide.h"

/* The warpgroups that multiply. */
template <class C, int ORDERED>
DEV_FN void sm90_tall_multiply(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem,
                               const attn_work_tile *tiles, const sm90_tile_masking *masking) {
    typedef typename C::T T;
    typedef sm90_mma<T> mma;
    enum { SUBNORMAL = !dev_is_f16<T>::yes, PANEL = C::PANEL_BYTES / 16, KEY_PANEL = C::KEY_PANEL_BYTES / 16 };
    const stw_attn_params &p = l.p;
    const bool capped = C::FEATURES && (p.features & STW_FEAT_SOFTCAP);
    const int wave = (int)dev_wave(), group = wave / 4;
    const uint32_t base = sm90_shared_address(smem);
    const sm90_wide_barriers<C> barriers = {base + C::AT_BARRIERS};
    float dk[C::HD / 2], dv[C::HDV / 2], s[32], dp[16], dq[48];
    /* This thread's first statistic of a stage. What a step needs once is made anew: ptxas would spill it. */
    auto stats_at = [&](int stage) { return smem + C::AT_STATS + stage * (C::STATS * 4) + sm90_lane_anew() % 4 * 8; };

    sm90_ring<C::STAGES> at = {0, 0};
    sm90_ring<C::DOUT_STAGES> at_dout = {0, 0};
    sm90_ring<2> of = {0, 0}; /* work tiles */
    int keys = 0, filled = 0; /* parities of K's and V's mbarriers, of dQ's place (dS's has the same) */
    uint32_t special = 0, of_tile = 0;
    sm90_wide_iterator it = {};

    auto begin_scores =
        [&](uint32_t at0,
            int stage) { /* S^T = K Q^T */
                         const uint32_t k = at0 + C::AT_K / 16 + group * PANEL,
                                        q = at0 + C::AT_Q / 16 + stage * (C::Q_BYTES / 16);
                         sm90_mma_fence();
                         DEV_UNROLL_FOR (int i = 0; i < C::HD; i += 16)
                             mma::template ss<0>(
                                 s,
                                 sm90_wide_descriptor(
                                     k + C::template panel_at<C::HD, C::BN>(i / 64) * KEY_PANEL + i % 64 / 8, 1),
                                 sm90_wide_descriptor(q + i / 64 * PANEL + i % 64 / 8, 1), i > 0);
                         sm90_mma_commit();
        };
    /* dP^T = V dO^T and dV += P^T dO, of half of the queries. */
    auto begin_dp_and_dv = [&](uint32_t at0, int stage, int part) {
        const uint32_t v = at0 + C::AT_V / 16 + group * PANEL, ps = at0 + C::AT_P / 16 + group * PANEL,
                       dout = at0 + C::AT_DOUT / 16 + stage * (C::DOUT_BYTES / 16);
        sm90_mma_fence();
        DEV_UNROLL_FOR (int i = 0; i < C::HDV; i += 16)
            mma::template ss<0>(dp, sm90_wide_descriptor(v + i / 64 * KEY_PANEL + i % 64 / 8, 1),
                                sm90_wide_descriptor(dout + part * 256 + i / 64 * PANEL + i % 64 / 8, 1), i > 0);
        sm90_mma_commit();
        DEV_UNROLL_FOR (int i = 32 * part; i < 32 * part + 32; i += 16)
            mma::template ss<1>(dv, sm90_wide_descriptor(ps + i / 8, 1), sm90_wide_descriptor(dout + i * 8, PANEL),
                                true);
        sm90_mma_commit();
    };
    auto begin_dk = [&](uint32_t at0, int stage,
                        int part) { /* dK += dS^T Q, of half of the queries */
                                    const uint32_t ds = at0 + C::AT_DS / 16 + group * PANEL,
                                                   q = at0 + C::AT_Q / 16 + stage * (C::Q_BYTES / 16);
                                    sm90_mma_fence();
                                    DEV_UNROLL_FOR (int i = 32 * part; i < 32 * part + 32; i += 16)
                                        mma::template ss<1>(dk, sm90_wide_descriptor(ds + i / 8, 1),
                                                            sm90_wide_descriptor(q + i * 8, PANEL), true);
                                    sm90_mma_commit();
    };
    auto begin_dq = [&](uint32_t at0) { /* dQ = dS K */
                                        const uint32_t ds = at0 + C::AT_DS / 16,
                                                       k = at0 + C::AT_K / 16 + group * KEY_PANEL,
                                                       next = group ? KEY_PANEL + 4 : 2 * KEY_PANEL;
                                        sm90_mma_fence();
                                        DEV_UNROLL_FOR (int i = 0; i < C::BN; i += 16)
                                            mma::template ss<1, 1>(dq, sm90_wide_descriptor(ds + i * 8, 1),
                                                                   sm90_wide_descriptor(k + i * 8, next), i > 0);
                                        sm90_mma_commit();
    };
    /* Sixteen of this thread's scores, pieces 4 PART.. of 8 queries, to P or dS: a row is a key, 16-byte pieces are
     * exchanged as in any panel. Matrices of 8 keys x 8 queries. Addresses are made anew: ptxas would spill them.
     * `pair`: values i and i + 1, of the same key. */
    auto put_scores = [&](int place, int part, auto pair) {
        const int thread = sm90_thread_anew();
        const uint32_t to =
            base + place + (thread / 32 * 16 + thread % 16) * 128 + ((thread / 16 % 2) ^ (thread % 8)) * 16;
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int k = 0; k < 4; ++k) w[k] = pair(16 * part + 8 * i + 2 * k);
            sm90_stmatrix(to ^ (64 * part + 32 * i), w);
        }
    };
    auto as_they_are = [&](int i) { return dev_pack(T(), s[i], s[i + 1]); };
    auto arrive = [&](sm90_mbarrier barrier) {
        __syncwarp();
        if (sm90_elect()) barrier.arrive();
    };
    /* S has come: P, also in its place, under softcap P times its derivative, and what is special about the step. */
    auto probabilities = [&](bool plain, int stage) {
        const char *const from = stats_at(stage);
        float2 lse[8];
        DEV_UNROLL_FOR (int i = 0; i < 8; ++i) lse[i] = *(const float2 *)(const void *)(from + 32 * i);
        if (capped) sm90_tanh(s, maps.factor);
        else if constexpr (C::FEATURES) {
            const int thread = sm90_thread_anew();
            const sm90_wide_alibi<C> alibi = sm90_wide_alibi<C>::of(l, tiles[of.place], it.head, it.block,
                                                                    thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
            DEV_UNROLL_FOR (int i = 0; i < 32; ++i)
                s[i] = dev_exp2_fast(alibi.exponent(s[i], maps.factor, i % 2 ? lse[i / 4].y : lse[i / 4].x, i / 2 % 2,
                                                    i / 4 * 8 + i % 2));
        } else sm90_exponentials(s, lse, maps.factor);
        const float hidden = capped ? SM90_CAP_HIDDEN : 0.0f;
        const uint2 m = sm90_load_shared_words(base + C::AT_STATS + (stage * C::STATS + 2 * C::BM) * 4);
        special = (uint32_t)dev_uniform((int)((m.x ? (uint32_t)SM90_DEAD_ROWS : 0u) |
                                              (SUBNORMAL && m.y ? (uint32_t)SM90_EXACT_DQ : 0u) |
                                              (plain ? 0u : (uint32_t)SM90_MASKED) | of_tile));
        if (special & (SM90_MASKED | SM90_DEAD_ROWS)) {
            const int here = sm90_lane_anew(), first = here % 4 * 2, i0 = it.block * C::BM + first;
            if (special & SM90_MASKED) {
                const int *seen = (const int *)(const void *)(smem + C::AT_SEEN) + 2 * (16 * wave + here / 4);
                int2 a = *(const int2 *)(const void *)seen, b = *(const int2 *)(const void *)(seen + 16);
                a.x -= i0, a.y -= i0, b.x -= i0, b.y -= i0;
                sm90_mask_hidden(s, a, b, hidden);
            }
            if (special & SM90_DEAD_ROWS)
                sm90_mask_dead_rows(s, (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + first,
                                    hidden);
        }
        if (!capped) {
            put_scores(C::AT_P, 0, as_they_are);
            put_scores(C::AT_P, 1, as_they_are);
        } else if constexpr (C::FEATURES) {
            auto capped_pair = [&](int i) {
                const float2 both = *(const float2 *)(const void *)(from + 32 * (i / 4));
                return sm90_capped_pair<T>(s[i], s[i + 1], maps.cap, both.x, both.y);
            };
            put_scores(C::AT_P, 0, capped_pair);
            put_scores(C::AT_P, 1, capped_pair);
        }
        sm90_fence_async_shared();
        sm90_warpgroup_sync(sm90_thread_anew() / 128);
    };
    /* Half of dP has come. */
    auto score_gradients = [&](int stage, int part) {
        float *const x = s + 16 * part;
        const char *const from = stats_at(stage) + C::BM * 4 + 128 * part;
        if (special & (SM90_MASKED | SM90_DEAD_ROWS)) {
            DEV_UNROLL_FOR (int i = 0; i < 16; ++i) dp[i] = x[i] != 0.0f ? dp[i] : 0.0f;
        }
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
            const float2 d = *(const float2 *)(const void *)(from + 32 * i);
            x[4 * i] *= dp[4 * i] + d.x;
            x[4 * i + 1] *= dp[4 * i + 1] + d.y;
            x[4 * i + 2] *= dp[4 * i + 2] + d.x;
            x[4 * i + 3] *= dp[4 * i + 3] + d.y;
        }
    };
    /* 3 and 4 of a step. */
    auto gradients = [&](uint32_t at0) {
        begin_dp_and_dv(at0, at_dout.place, 0);
        sm90_mma_wait<1>(dp);
        score_gradients(at.place, 0);
        begin_dp_and_dv(at0, at_dout.place, 1);
        barriers.scores_empty().wait(filled ^ 1);
        put_scores(C::AT_DS, 0, as_they_are);
        sm90_mma_wait<1>(dp);
        score_gradients(at.place, 1);
        put_scores(C::AT_DS, 1, as_they_are);
        sm90_fence_async_shared();
        sm90_cta_sync();
    };
    /* dQ has come: to its place, in the order of the next kernel, where a warp has 16 rows, columns fastest. */
    auto put_dq = [&](bool exact) {
        enum { STEP = C::THREADS * 16 };
        const int thread = sm90_thread_anew(), second = thread / 128;
        const uint32_t to = base + C::AT_DQ + ((thread / 32 % 4 * 2 + second) * DEV_WAVE + thread % 32) * 16,
                       low = to + second * (4 * STEP), high = to - second * (8 * STEP);
        barriers.dq_empty().wait(filled ^ 1);
        filled ^= 1;
        DEV_UNROLL_FOR (int i = 0; i < 12; ++i) sm90_store_shared_four((i < 8 ? low : high) + i * STEP, dq + 4 * i);
        sm90_fence_async_shared();
        __syncwarp();
        if (sm90_elect()) {
            *(uint32_t *)(void *)(smem + C::AT_EXACT) = exact;
            barriers.dq_full().arrive();
        }
    };
    auto exact = [&]() { return SUBNORMAL && (special & SM90_EXACT_DQ) != 0; };
    /* This work tile is a part, whose sums go to a place of their own, as they are in registers. */
    auto in_parts = [&]() { return C::PARTS && l.part_sums; };
    auto store_part = [&](const attn_work_tile &tile, auto &x, bool of_dv, bool adds) {
        float *const to = sm90_part_place(l, tile, C::BN * C::HD, of_dv, false) + sm90_thread_anew() * 4;
        DEV_UNROLL_FOR (int i = 0; i < (int)(sizeof x / sizeof *x); i += 4) {
            float sums[4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
            if (adds) {
                const float4 there = *(const float4 *)(const void *)(to + i * C::THREADS);
                sums[0] += there.x, sums[1] += there.y, sums[2] += there.z, sums[3] += there.w;
            }
            sm90_store_four(to + i * C::THREADS, sums);
        }
    };
    /* f32 sums of dV or dK to memory, by way of the place of P, which begin again from 0. */
    auto drain_one = [&](auto cols, const attn_work_tile &tile, auto &x, uint32_t output, bool drained) {
        typedef typename C::template rows<decltype(cols)::count * 64> rows;
        if ((output == STW_OUT_DV ? p.dv_dtype : p.dk_dtype) != STW_F32) return;
        if (!(p.outputs & output)) {
        } else if (in_parts()) {
            store_part(tile, x, output == STW_OUT_DV, drained);
        } else {
            sm90_store_sums<rows>(tile, x, l, output, drained, smem + C::AT_P + wave * 2048, wave, sm90_lane_anew());
        }
        DEV_UNROLL_FOR (int i = 0; i < rows::HD / 2; ++i) x[i] = 0.0f;
    };
    auto drain_steps = [&]() { return maps.drain_rows / (int)C::BM; };
    auto drain = [&](const attn_work_tile &tile, int left) {
        const bool drained = /* before this time */
            sm90_wide_drains<C>(p) && dev_uniform(sm90_block_iterator::steps_of(tile, l)) - left > drain_steps();
        drain_one(sm90_panels<C::PANELS_V>(), tile, dv, STW_OUT_DV, drained);
        drain_one(sm90_panels<C::PANELS>(), tile, dk, STW_OUT_DK, drained);
    };

    DEV_ROLLED for (;; of.next()) {
        const attn_work_tile &tile = tiles[of.place];
        const sm90_tile_masking &mask = masking[of.place];
        barriers.ready(of.place).wait(of.parity);
        if (!dev_uniform(tile.live)) return;
        it = sm90_wide_iterator::begin_uniform(tile, l);
        if (!dev_uniform(mask.plain)) sm90_list_seen(tile, (int *)(void *)(smem + C::AT_SEEN), wave, sm90_lane_anew());
        const bool some_rows = dev_uniform((int)!sm90_tile_masking::ends_with_tensor(tile, p)) != 0;
        auto is_plain = [&]() {
            const uint2 plain = sm90_load_shared_words(base + C::AT_MASKING + of.place * (int)sizeof mask);
            return it.block >= (int)plain.x && it.block < (int)plain.y;
        };
        /* Zeros in rows of Q and of dO that take part in nothing, when they have arrived. */
        auto zero_rows = [&](auto panels, int place) {
            const int64_t i0 = (int64_t)it.block * C::BM;
            sm90_zero_rows<decltype(panels)::count, C::BM>(smem + place, tile.seq.q_low - i0, tile.seq.q_end - i0,
                                                           sm90_thread_anew());
            sm90_fence_async_shared();
            sm90_cta_sync();
        };
        auto has_some_rows = [&]() {
            return some_rows && dev_uniform((int)(it.block < tile.whole_first || it.block >= tile.whole_end)) != 0;
        };
        auto await_q = [&]() {
            barriers.q_full(at.place).wait(at.parity);
            if (has_some_rows()) {
                sm90_mma_wait<0>();
                zero_rows(sm90_panels<C::PANELS>(), C::AT_Q + at.place * C::Q_BYTES);
            }
        };
        auto await_dout = [&]() {
            barriers.dout_full(at_dout.place).wait(at_dout.parity);
            if (has_some_rows()) zero_rows(sm90_panels<C::PANELS_V>(), C::AT_DOUT + at_dout.place * C::DOUT_BYTES);
        };
        DEV_UNROLL_FOR (int i = 0; i < C::HD / 2; ++i) dk[i] = 0.0f;
        DEV_UNROLL_FOR (int i = 0; i < C::HDV / 2; ++i) dv[i] = 0.0f;
        if (it.left) {
            sm90_pin(dk);
            sm90_pin(dv);
            barriers.k_full().wait(keys);
            barriers.v_full().wait(keys);
            keys ^= 1;
            if (dev_uniform(mask.zeroes_keys)) sm90_wide_zero_keys<C>(tile, smem);
            of_tile = SUBNORMAL && (!sm90_wide_counts<C, C::K_BYTES>(smem + C::AT_K) ||
                                    !sm90_wide_counts<C, C::V_BYTES>(smem + C::AT_V))
                          ? (uint32_t)SM90_EXACT_DQ
                          : 0u;
            /* the first step */
            await_q();
            begin_scores(base >> 4, at.place);
            sm90_mma_wait<0>(s);
            probabilities(is_plain(), at.place);
            await_dout();
            gradients(base >> 4);
            int until = sm90_wide_drains<C>(p) ? it.left - (drain_steps() - 1) : 1; /* dV is a step ahead */
            for (;;) {
                DEV_ROLLED while (it.left > max(until, 1)) {
                    const uint32_t at0 = (uint32_t)dev_keep((int)(base >> 4));
                    const int stage = at.place;
                    /* 1 */
                    begin_dq(at0);
                    begin_dk(at0, stage, 0);
                    sm90_mma_wait<1>(dq);
                    arrive(barriers.dout_empty(at_dout.place));
                    arrive(barriers.scores_empty());
                    put_dq(exact());
                    at.next();
                    at_dout.next();
                    it.next();
                    /* 2 */
                    await_q();
                    begin_scores(at0, at.place);
                    begin_dk(at0, stage, 1);
                    sm90_mma_wait<1>(s);
                    probabilities(is_plain(), at.place);
                    sm90_mma_wait<0>();
                    arrive(barriers.q_empty(stage));
                    /* 3, 4 */
                    await_dout();
                    gradients(at0);
                }
                if (!C::OUTPUTS || it.left <= 1) break;
                sm90_mma_wait<0>();
                sm90_pin(dk);
                sm90_pin(dv);
                sm90_warpgroup_sync(sm90_thread_anew() / 128); /* none of its warps multiplies P any more */
                drain(tile, it.left);
                sm90_pin(dk);
                sm90_pin(dv);
                until -= drain_steps();
            }
            arrive(barriers.v_empty());
            begin_dq(base >> 4);
            begin_dk(base >> 4, at.place, 0);
            begin_dk(base >> 4, at.place, 1);
            sm90_mma_wait<2>(dq);
            arrive(barriers.dout_empty(at_dout.place));
            arrive(barriers.scores_empty());
            arrive(barriers.k_empty());
            put_dq(exact());
            sm90_mma_wait<0>();
            arrive(barriers.q_empty(at.place));
            at_dout.next();
            at.next();
            sm90_pin(dk);
            sm90_pin(dv);
            sm90_cta_sync(); /* nobody multiplies P or dS any more */
        }
        if constexpr (C::OUTPUTS) drain(tile, 0);
        char *const mine = smem + C::AT_P + wave * 2048;
        const bool stores_dv = !C::OUTPUTS || ((p.outputs & STW_OUT_DV) && p.dv_dtype != STW_F32),
                   stores_dk = !C::OUTPUTS || ((p.outputs & STW_OUT_DK) && p.dk_dtype != STW_F32);
        if (in_parts() && stores_dv) store_part(tile, dv, true, false);
        if (in_parts() && stores_dk) store_part(tile, dk, false, false);
        if (!in_parts() && stores_dv)
            sm90_store_keys<typename C::template rows<C::HDV>>(tile, dv, p.dv, p.dtype,
                                                               (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v,
                                                               1.0f, mine, wave, sm90_lane_anew());
        if (!in_parts() && stores_dk)
            sm90_store_keys<typename C::template rows<C::HD>>(tile, dk, p.dk, p.dtype, (l.vectors & STW_VECTOR_DK) != 0,
                                                              (int)p.head_dim_qk, p.scale, mine, wave,
                                                              sm90_lane_anew());
        arrive(barriers.tile_empty(of.place));
        sm90_cta_sync(); /* P goes where warps had their rows */
    }
}

#endif
