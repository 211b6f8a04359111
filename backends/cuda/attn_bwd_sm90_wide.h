/* SPDX-License-Identifier: MIT
 *
 * sm90's main loop of the backward pass for wide heads (head_dim 129 to 256), for what attn_bwd_sm90.h takes
 * otherwise. A work tile is 64 keys of a KV head, a step 64 queries; dK and dV stay in registers, dQ is added to f32
 * sums. Three warpgroups: two multiply, of the third one lane has the loads and one warp has the additions
 * (attn_bwd_sm90_wide_loads.h). All is held transposed, keys as rows:
 *
 *              queries i0 .. i0+64
 *     keys  +---------+---------+      S^T  = K Q^T      warpgroup c makes the columns of queries 32c..
 *           | c = 0   | c = 1   |      dP^T = V dO^T     likewise
 *           | 64 x 32 | 64 x 32 |      dV  += P^T dO     warpgroup c makes half the columns; P, dS by way of
 *           +---------+---------+      dK  += dS^T Q     shared memory, rows are keys
 *                                      dQ   = dS K       likewise; dS is read by columns
 *
 * Step j to step j + 1. On entry dS(j) is in shared memory and dV(j) runs.
 *   1  begin S(j+1), dK(j), dQ(j)
 *   2  wait for S; P(j+1) = 2^(S c - LSE c), in 16 bits to shared memory; wait for dK; barrier      (dQ runs)
 *   3  begin dP(j+1), dV(j+1)
 *   4  wait for dQ, which leaves                                                                    (dP, dV run)
 *   5  wait for dP; dS(j+1) = P (dP - delta), in 16 bits to shared memory; barrier                  (dV runs)
 * The barriers are those of the two warpgroups that multiply. P and dS have two places each: one warpgroup may write
 * those of step j + 1 while the other multiplies those of step j.
 *
 * dQ leaves by way of a place in shared memory, from which one instruction adds it (sm90_bulk_add) while products run:
 * additions from registers had these warps wait. Head_dim to 256: two halves, one after the other, since registers have
 * no room for more. There dQ is added from registers all the same, and dO has two places; in deterministic mode dQ's
 * place holds a half, the second one leaves in phase 1 of the step behind, and dO has one place, which is empty as soon
 * as dV is made.
 *
 * Deterministic mode: as in attn_bwd_sm90.h, but the warp that has the additions has the semaphores. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_H

#include "attn_bwd_sm90.h"
#include "attn_bwd_sm90_wide_epilogue.h"
#include "attn_bwd_sm90_wide_loads.h"

/* This thread's statistics of its warpgroup's queries: see sm90_statistics. */
template <class C> DEV_FN void sm90_wide_statistics(float2 (&x)[4], const char *from) {
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) x[i] = *(const float2 *)(const void *)(from + 32 * i);
}

/* K or V of a work tile holds an element that is not so small that terms of dQ are subnormal. Each warp looks for
 * itself; ordinary data: the first look shows it. */
template <class C, int BYTES> DEV_FN bool sm90_wide_counts(const char *keys) {
    const int lane = sm90_lane_anew();
    bool counts = false;
    DEV_ROLLED for (int at = lane * 16; !__any_sync(0xFFFFFFFFu, counts) && at < BYTES; at += DEV_WAVE * 16) counts =
        sm90_vector_counts<C>(keys + at);
    return dev_uniform(__any_sync(0xFFFFFFFFu, counts)) != 0;
}

/* Zeros in rows of K and V that take part in nothing, when they have arrived. */
template <class C> DEV_FN void sm90_wide_zero_keys(const attn_work_tile &tile, char *smem) {
    const stw_range seen = stw_visible_keys(&tile.seq);
    const int64_t low = seen.first - tile.j0, end = seen.end - tile.j0;
    if (C::THREADS == 256 || sm90_thread_anew() < 256) {
        sm90_zero_rows<C::PANELS, C::BN>(smem + C::AT_K, low, end, sm90_thread_anew());
        sm90_zero_rows<C::PANELS_V, C::BN>(smem + C::AT_V, low, end, sm90_thread_anew());
    }
    sm90_fence_async_shared();
    sm90_cta_sync<C::THREADS>();
}

/* The first and the last query that see a key of the work tile, counted from query i0. */
DEV_FN int2 sm90_wide_seen(const attn_work_tile &tile, int key, int i0) {
    const int64_t j = tile.j0 + key, far = INT64_C(1) << 20;
    int64_t first = stw_larger(j - tile.seq.band.high, tile.seq.q_low);
    const int64_t last = stw_smaller(j - tile.seq.band.low, tile.seq.q_end - 1);
    if (j >= tile.seq.kv.used) first = last + 1;
    return int2{(int)stw_clamp_i64(first - i0, -far, far), (int)stw_clamp_i64(last - i0, -far, far)};
}

/* The descriptor of an operand whose next 64 columns are `panel` units away. */
DEV_FN uint64_t sm90_wide_descriptor(uint32_t at, uint32_t panel) {
    return (uint64_t)(at | panel << 16) | (uint64_t)0x40000040u << 32;
}

template <int COUNT> struct sm90_panels {
    enum { count = COUNT };
};

/* The warpgroups that multiply. */
template <class C, bool ORDERED>
DEV_FN void sm90_wide_multiply(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem,
                               const attn_work_tile *tiles, const sm90_tile_masking *masking) {
    typedef typename C::T T;
    typedef sm90_mma<T> mma;
    typedef sm90_wide_half<C::HD> half;
    typedef sm90_wide_half<C::HDV> half_v;
    enum { SUBNORMAL = !dev_is_f16<T>::yes, PANEL = C::PANEL_BYTES / 16 };
    enum { PARTS = C::DQ_PARTS, DQ_PIECES = half::PIECES / PARTS }; /* of dQ, one after the other */
    const stw_attn_params &p = l.p;
    const int wave = (int)dev_wave(), lane = (int)dev_lane(), group = wave / 4, warp = wave % 4;
    const uint32_t base = sm90_shared_address(smem);
    const sm90_wide_barriers<C> barriers = {base + C::AT_BARRIERS};
    float dk[4 * half::PIECES], dv[4 * half_v::PIECES], dq[4 * DQ_PIECES], s[16], dp[16];
    /* P and dS: a row is a key, 16-byte pieces are exchanged as in any panel. Matrices of 8 keys x 8 queries. */
    const uint32_t scores_to =
        base + C::AT_P + (warp * 16 + lane % 16) * 128 + (((group * 4 + lane / 16) ^ (lane % 8)) * 16);
    const char *const stats_at = smem + C::AT_STATS + (32 * group + lane % 4 * 2) * 4;

    sm90_ring<C::STAGES> at = {0, 0};
    sm90_ring<C::DOUT_STAGES> at_dout = {0, 0};
    sm90_ring<2> of = {0, 0}; /* work tiles */
    uint32_t flip = 0;        /* which place of P and dS */
    int keys = 0, filled = 0; /* parities of K's and V's mbarriers, of dQ's place */
    uint32_t special = 0, of_tile = 0;
    sm90_wide_iterator it = {};

    auto begin_scores =
        [&](uint32_t at0,
            int stage) { /* S^T = K Q^T */
                         const uint32_t k = at0 + C::AT_K / 16,
                                        q = at0 + C::AT_Q / 16 + stage * (C::Q_BYTES / 16) + group * 256;
                         sm90_mma_fence();
                         DEV_UNROLL_FOR (int i = 0; i < C::HD; i += 16)
                             mma::template ss<0>(s, sm90_wide_descriptor(k + i / 64 * PANEL + i % 64 / 8, 1),
                                                 sm90_wide_descriptor(q + i / 64 * PANEL + i % 64 / 8, 1), i > 0);
                         sm90_mma_commit();
        };
    auto begin_dp_and_dv =
        [&](uint32_t at0,
            int stage) { /* dP^T = V dO^T; dV += P^T dO */
                         const uint32_t v = at0 + C::AT_V / 16,
                                        dout = at0 + C::AT_DOUT / 16 + stage * (C::DOUT_BYTES / 16),
                                        mine = dout + half_v::first(group), ps = at0 + C::AT_P / 16 + flip * PANEL;
                         sm90_mma_fence();
                         DEV_UNROLL_FOR (int i = 0; i < C::HDV; i += 16)
                             mma::template ss<0>(
                                 dp, sm90_wide_descriptor(v + i / 64 * PANEL + i % 64 / 8, 1),
                                 sm90_wide_descriptor(dout + group * 256 + i / 64 * PANEL + i % 64 / 8, 1), i > 0);
                         sm90_mma_commit();
                         DEV_UNROLL_FOR (int i = 0; i < C::BM; i += 16)
                             mma::template ss<1>(dv, sm90_wide_descriptor(ps + i / 8, 1),
                                                 sm90_wide_descriptor(mine + i * 8, half_v::next_panel(group)), true);
                         sm90_mma_commit();
        };
    auto begin_dk =
        [&](uint32_t at0,
            int stage) { /* dK += dS^T Q */
                         const uint32_t q = at0 + C::AT_Q / 16 + stage * (C::Q_BYTES / 16) + half::first(group),
                                        ds = at0 + C::AT_DS / 16 + flip * PANEL;
                         sm90_mma_fence();
                         DEV_UNROLL_FOR (int i = 0; i < C::BM; i += 16)
                             mma::template ss<1>(dk, sm90_wide_descriptor(ds + i / 8, 1),
                                                 sm90_wide_descriptor(q + i * 8, half::next_panel(group)), true);
                         sm90_mma_commit();
        };
    auto begin_dq = [&](uint32_t at0, uint32_t place,
                        int part) { /* dQ = dS K */
                                    const uint32_t k = at0 + C::AT_K / 16 + half::first(group) + part * PANEL,
                                                   ds = at0 + C::AT_DS / 16 + place * PANEL;
                                    sm90_mma_fence();
                                    DEV_UNROLL_FOR (int i = 0; i < C::BN; i += 16)
                                        mma::template ss<1, 1>(dq, sm90_wide_descriptor(ds + i * 8, 1),
                                                               sm90_wide_descriptor(k + i * 8, half::next_panel(group)),
                                                               i > 0);
                                    sm90_mma_commit();
    };
    /* This thread's 16 scores to their place. */
    auto put_scores = [&](const uint32_t(&w)[8], uint32_t to) {
        sm90_stmatrix(to, w);
        sm90_stmatrix(to ^ 32, w + 4); /* two pieces further */
    };
    auto publish = [&]() {
        sm90_fence_async_shared();
        sm90_cta_sync();
    };
    auto arrive = [&](sm90_mbarrier barrier) {
        __syncwarp();
        if (sm90_elect()) barrier.arrive();
    };
    /* S has come: P, and what is special about the step. */
    auto probabilities = [&](bool plain, int stage) {
        float2 lse[4];
        sm90_wide_statistics<C>(lse, stats_at + stage * (C::STATS * 4));
        sm90_exponentials(s, lse, maps.factor);
        const uint2 m = sm90_load_shared_words(base + C::AT_STATS + (stage * C::STATS + 2 * C::BM) * 4);
        special = (uint32_t)dev_uniform((int)((m.x ? (uint32_t)SM90_DEAD_ROWS : 0u) |
                                              (SUBNORMAL && m.y ? (uint32_t)SM90_EXACT_DQ : 0u) |
                                              (plain ? 0u : (uint32_t)SM90_MASKED) | of_tile));
        if (special & (SM90_MASKED | SM90_DEAD_ROWS)) {
            const int here = sm90_lane_anew(), first = 32 * group + here % 4 * 2, i0 = it.block * C::BM + first;
            if (special & SM90_MASKED) {
                const int2 a = sm90_wide_seen(tiles[of.place], 16 * warp + here / 4, i0),
                           b = sm90_wide_seen(tiles[of.place], 16 * warp + here / 4 + 8, i0);
                sm90_mask_hidden(s, a, b, 0.0f);
            }
            if (special & SM90_DEAD_ROWS)
                sm90_mask_dead_rows(s, (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + first,
                                    0.0f);
        }
        uint32_t w[8];
        DEV_UNROLL_FOR (int i = 0; i < 8; ++i) w[i] = dev_pack(T(), s[2 * i], s[2 * i + 1]);
        put_scores(w, scores_to + flip * C::SCORES_BYTES);
    };
    /* dP has come. */
    auto score_gradients = [&](int stage) {
        float2 delta[4];
        uint32_t w[8];
        sm90_wide_statistics<C>(delta, stats_at + stage * (C::STATS * 4) + C::BM * 4);
        sm90_score_gradients<T>(w, dp, s, delta, (special & (SM90_MASKED | SM90_DEAD_ROWS)) != 0);
        put_scores(w, scores_to + (C::AT_DS - C::AT_P) + flip * C::SCORES_BYTES);
        publish();
    };
    /* Part `part` of dQ has come: to its place, in the order of the kernel behind, where a warp has 16 rows, columns
     * fastest. */
    auto put_dq = [&](bool exact, int part) {
        const uint32_t to = base + C::AT_DQ + ((warp * 2 + group) * DEV_WAVE + lane) * 16;
        enum { STEP = C::THREADS * 16 };
        const int first = half::column(group, part) / 8 - group * half::PIECES - part * DQ_PIECES,
                  second = half::column(group, 1) / 8 - group * half::PIECES - 8;
        const uint32_t low = to + first * STEP, high = to + second * STEP;
        barriers.dq_empty().wait(filled ^ 1);
        filled ^= 1;
        DEV_UNROLL_FOR (int i = 0; i < DQ_PIECES; ++i)
            sm90_store_shared_four((i < 8 ? low : high) + i * STEP, dq + 4 * i);
        sm90_fence_async_shared();
        __syncwarp();
        if (sm90_elect()) {
            *(uint32_t *)(void *)(smem + C::AT_EXACT) = exact;
            barriers.dq_full().arrive();
        }
    };
    /* The same without such a place: added to the sums. `free`: the place of dS that nobody multiplies. */
    auto add_dq = [&](uint32_t block_at, bool exact, int part, uint32_t free) {
        enum { STEP = C::THREADS * 4 };
        float *const to = l.dq + (int64_t)block_at * (C::BM * C::WIDTH) + ((warp * 2 + group) * DEV_WAVE + lane) * 4 +
                          part * (DQ_PIECES * STEP);
        if (exact) {
            float *const mine =
                (float *)(void *)(smem + C::AT_DS + free * C::SCORES_BYTES) + sm90_thread_anew() * 8;
            DEV_UNROLL_FOR (int n = 0; n < DQ_PIECES; n += 2) {
                DEV_UNROLL_FOR (int i = 0; i < 8; ++i) mine[i] = dq[4 * n + i];
                DEV_ROLLED_FOR (int i = 0; i < 8; ++i) sm90_add_exact(to + (n + i / 4) * STEP + i % 4, mine[i]);
            }
            sm90_cta_sync();
        } else {
            DEV_UNROLL_FOR (int i = 0; i < DQ_PIECES; ++i) sm90_add_four(to + i * STEP, dq + 4 * i);
        }
    };
    auto exact = [&]() { return SUBNORMAL && (special & SM90_EXACT_DQ) != 0; };

    DEV_ROLLED for (;; of.next()) {
        const attn_work_tile &tile = tiles[of.place];
        const sm90_tile_masking &mask = masking[of.place];
        barriers.ready(of.place).wait(of.parity);
        if (!dev_uniform(tile.live)) return;
        it = sm90_wide_iterator::begin_uniform(tile, l);
        const int plain_first = dev_uniform(mask.first), plain_end = dev_uniform(mask.end);
        const bool some_rows = !sm90_tile_masking::ends_with_tensor(tile, p);
        const int whole_first = dev_uniform(some_rows ? tile.whole_first : 0),
                  whole_end = dev_uniform(some_rows ? tile.whole_end : 1 << 30);
        auto is_plain = [&]() { return it.block >= plain_first && it.block < plain_end; };
        /* Zeros in rows of Q and of dO that take part in nothing, when they have arrived. */
        auto zero_rows = [&](auto panels, int place) {
            const int64_t i0 = (int64_t)it.block * C::BM;
            sm90_zero_rows<decltype(panels)::count, C::BM>(smem + place, tile.seq.q_low - i0, tile.seq.q_end - i0,
                                                           sm90_thread_anew());
            sm90_fence_async_shared();
            sm90_cta_sync();
        };
        auto await_q = [&]() {
            barriers.q_full(at.place).wait(at.parity);
            if (it.block < whole_first || it.block >= whole_end) {
                sm90_mma_wait<0>();
                zero_rows(sm90_panels<C::PANELS>(), C::AT_Q + at.place * C::Q_BYTES);
            }
        };
        auto await_dout = [&]() {
            barriers.dout_full(at_dout.place).wait(at_dout.parity);
            if (it.block < whole_first || it.block >= whole_end)
                zero_rows(sm90_panels<C::PANELS_V>(), C::AT_DOUT + at_dout.place * C::DOUT_BYTES);
        };
        DEV_UNROLL_FOR (int i = 0; i < 4 * half::PIECES; ++i) dk[i] = 0.0f;
        DEV_UNROLL_FOR (int i = 0; i < 4 * half_v::PIECES; ++i) dv[i] = 0.0f;
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
            publish();
            await_dout();
            begin_dp_and_dv(base >> 4, at_dout.place);
            sm90_mma_wait<1>(dp);
            score_gradients(at.place);
            bool left = false, left_exact = false; /* the second part of the step before has not left */
            DEV_ROLLED while (it.left > 1) {
                const uint32_t at0 = (uint32_t)dev_keep((int)(base >> 4)), block_at = it.at;
                const int stage = at.place, dout_stage = at_dout.place;
                const bool is_exact = exact();
                at.next();
                at_dout.next();
                it.next();
                /* 1 */
                await_q();
                begin_scores(at0, at.place);
                if (PARTS == 2) {
                    if (!C::DIRECT && left) put_dq(left_exact, 1);
                    left = true;
                    left_exact = is_exact;
                    begin_dq(at0, flip, 0);
                }
                begin_dk(at0, stage);
                if (PARTS == 1) begin_dq(at0, flip, 0);
                /* 2 */
                if (C::DOUT_STAGES == 1) {
                    sm90_mma_wait<3>();
                    arrive(barriers.dout_empty(dout_stage));
                }
                sm90_mma_wait<2>(s);
                if (C::DOUT_STAGES > 1) arrive(barriers.dout_empty(dout_stage));
                flip ^= 1;
                probabilities(is_plain(), at.place);
                if (PARTS == 2) {
                    sm90_mma_wait<1>(dq);
                    if (C::DIRECT) add_dq(block_at, is_exact, 0, flip);
                    else put_dq(is_exact, 0);
                    begin_dq(at0, flip ^ 1, 1);
                }
                sm90_mma_wait<1>();
                arrive(barriers.q_empty(stage));
                publish();
                /* 3 */
                await_dout();
                begin_dp_and_dv(at0, at_dout.place);
                /* 4 */
                sm90_mma_wait<2>(dq);
                if (PARTS == 1) put_dq(is_exact, 0);
                if (C::DIRECT) add_dq(block_at, is_exact, 1, flip);
                /* 5 */
                sm90_mma_wait<1>(dp);
                score_gradients(at.place);
            }
            arrive(barriers.v_empty());
            const uint32_t block_at = it.at;
            const bool is_exact = exact();
            if (PARTS == 2 && !C::DIRECT && left) put_dq(left_exact, 1);
            begin_dq(base >> 4, flip, 0);
            begin_dk(base >> 4, at.place);
            sm90_mma_wait<1>(dq);
            if (C::DIRECT) add_dq(block_at, is_exact, 0, flip ^ 1);
            else put_dq(is_exact, 0);
            if (PARTS == 2) begin_dq(base >> 4, flip, 1);
            sm90_mma_wait<0>(dq);
            arrive(barriers.dout_empty(at_dout.place));
            arrive(barriers.q_empty(at.place));
            arrive(barriers.k_empty());
            if (C::DIRECT) add_dq(block_at, is_exact, 1, flip ^ 1);
            else if (PARTS == 2) put_dq(is_exact, 1);
            flip ^= 1;
            at.next();
            at_dout.next();
            sm90_pin(dk);
            sm90_pin(dv);
            sm90_cta_sync(); /* nobody multiplies P or dS any more */
        }
        char *const mine = smem + C::AT_P + wave * 2048;
        sm90_wide_store<C, C::HDV>(tile, dv, p.dv, p.dtype, (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v, 1.0f,
                                   mine, group, warp);
        sm90_wide_store<C, C::HD>(tile, dk, p.dk, p.dtype, (l.vectors & STW_VECTOR_DK) != 0, (int)p.head_dim_qk,
                                  p.scale, mine, group, warp);
        arrive(barriers.tile_empty(of.place));
        sm90_cta_sync(); /* P goes where warps had their rows */
    }
}

#endif
