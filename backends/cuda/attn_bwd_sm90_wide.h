/* SPDX-License-Identifier: MIT
 *
 * sm90's main loop of the backward pass for wide heads (head_dim 129 to 256). dQ is added to f32 sums in L2, which take
 * no more than about 12 bytes a cycle and multiprocessor: a work tile has as many keys as fit, 96 (head_dim to 192) or
 * 80, a step 64 queries. Three or two warpgroups multiply; of another one, one lane has the loads and one warp has
 * dQ's additions or their order (attn_bwd_sm90_wide_loads.h).
 *
 *                 keys j0 .. j0+96
 *     queries  +-----+-----+-----+     S    = Q K^T      warpgroup c makes the columns of its keys
 *              | c=0 | c=1 | c=2 |     dP   = dO V^T     likewise
 *              | 64 x 32   |     |     dV^T += dO^T P    warpgroup c makes the rows of its panels of 64 columns, one
 *              +-----+-----+-----+     dK^T += Q^T dS    of three or two of four; P, dS by way of shared memory,
 *                                      dQ   = dS K       rows are keys; likewise its columns, a panel at a time
 *
 * Step j to step j + 1. On entry dS(j) is in shared memory and dV(j) runs.
 *   1  begin dQ(j), half of dK(j); wait for dQ, which leaves                                              (dK runs)
 *   2  begin S(j+1), the rest of dK(j); wait for S; begin dP(j+1); P(j+1) = 2^(S c - LSE c), in 16 bits to shared
 *      memory; barrier                                                                                (dK, dP run)
 *   3  begin dV(j+1); wait for dP; dS(j+1) = P (dP - delta), in 16 bits to shared memory; barrier          (dV runs)
 * The barriers are those of the warpgroups that multiply. P is written when all have made dV of the step before.
 *
 * dQ leaves by way of a place in shared memory, from which one instruction adds it (sm90_bulk_add) while products run.
 * With four panels there is no room for that place: dQ is added from registers, in two halves, each while a half of dK
 * runs.
 *
 * Eight more kernels, each for deterministic mode and the other (SM90_ORDER_ASKED). C::FEATURES: ALiBi, in exponents
 * of 2, or a softcap, by which 2 ends with tanh; 3 makes P of it, and leaves P (1 - tanh^2) in its registers.
 * C::OUTPUTS: gradients that nobody wants go nowhere, and f32 dK and dV leave every maps.drain_rows query rows, since
 * the matrix unit truncates its sums: between two steps, added to what this work tile has in memory already. C::DROPS
 * (attn_bwd_sm90_wide_dropout.h): two more warps decide what is dropped, which 3 reads; P is P / (1 - p), delta is
 * multiplied by 1 - p. C::DROPS and C::OUTPUTS also in one. C::BIASED (attn_bwd_sm90_wide_bias.h): the bias of S(j+1)
 * is asked for in 2; LSE and delta are not negated; dS(j+1) leaves after 3 where every pair has a gradient. C::MASKS
 * (attn_bwd_sm90_wide_masks.h): steps are the query blocks that hold a visible pair. C::ALL
 * (attn_bwd_sm90_wide_terms.h): all of this, which the call's features tell apart; what is added to the scores is made
 * while S is, 2 ends with P in 16 bits and P (1 - tanh^2); statistics are those of C::BIASED. C::APART: the same
 * with dBias of every pair under softcap, which is dS without the derivative. C::PARTS: work tiles may be parts, whose
 * sums go to the workspace where those of others go to dK and dV. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_H

#include "attn_bwd_sm90.h"
#include "attn_bwd_sm90_wide_bias.h"
#include "attn_bwd_sm90_wide_dropout.h"
#include "attn_bwd_sm90_wide_epilogue.h"
#include "attn_bwd_sm90_wide_features.h"
#include "attn_bwd_sm90_wide_loads.h"
#include "attn_bwd_sm90_wide_terms.h"

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

/* The first and the last key that a query sees, counted from key j0. */
DEV_FN int2 sm90_wide_seen(const attn_work_tile &tile, int64_t query, int64_t j0) {
    const int64_t far = INT64_C(1) << 20;
    const int64_t first = query + tile.seq.band.low;
    int64_t last = stw_smaller(query + tile.seq.band.high, tile.seq.kv.used - 1);
    if (query < tile.seq.q_low || query >= tile.seq.q_end) last = first - 1;
    return int2{(int)stw_clamp_i64(first - j0, -far, far), (int)stw_clamp_i64(last - j0, -far, far)};
}

/* The descriptor of an operand whose next 64 columns are `panel` units away. */
DEV_FN uint64_t sm90_wide_descriptor(uint32_t at, uint32_t panel) {
    return (uint64_t)(at | panel << 16) | (uint64_t)0x40000040u << 32;
}

template <int COUNT> struct sm90_panels {
    enum { count = COUNT };
};

/* The warpgroups that multiply. */
template <class C, int ORDERED>
DEV_FN void sm90_wide_multiply(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem, attn_work_tile *tiles,
                               const typename sm90_wide_way<C>::masking *masking) {
    typedef typename C::T T;
    typedef sm90_mma<T> mma;
    enum { SUBNORMAL = !dev_is_f16<T>::yes, PANEL = C::PANEL_BYTES / 16, KEY_PANEL = C::KEY_PANEL_BYTES / 16 };
    enum { SCORES = C::GROUP_KEYS / 2, EACH = C::EACH, DQ_PIECES = 8 };
    const stw_attn_params &p = l.p;
    const bool ordered = SM90_ORDERS_DQ(l);
    const bool capped = (C::FEATURES || C::ALL) && (p.features & STW_FEAT_SOFTCAP), adds = SM90_ADDS_DQ(l);
    const int wave = (int)dev_wave(), group = wave / 4;
    const uint32_t base = sm90_shared_address(smem);
    const sm90_wide_barriers<C> barriers = {base + C::AT_BARRIERS};
    float dk[EACH][C::BN / 2], dv[EACH][C::BN / 2], s[SCORES], dp[SCORES], dq[4 * DQ_PIECES];

    sm90_ring<C::STAGES> at = {0, 0};
    sm90_ring<C::DOUT_STAGES> at_dout = {0, 0};
    sm90_ring<2> of = {0, 0};                 /* work tiles */
    int keys = 0, filled = 0, multiplied = 0; /* parities of K's and V's mbarriers, of dQ's place or turn, of P's */
    uint32_t special = 0, of_tile = 0;
    [[maybe_unused]] sm90_wide_bias<C> bias;     /* of the scores that are multiplied */
    [[maybe_unused]] uint32_t hidden_bits = 0;   /* MASKS: of the step's pairs */
    [[maybe_unused]] sm90_wide_terms<C> terms;   /* ALL: of the scores that are multiplied */
    [[maybe_unused]] uint32_t pairs[SCORES / 2]; /* ALL: P in 16 bits */
    const bool drops = C::DROPS && (!C::ALL || (p.features & STW_FEAT_DROPOUT));
    typedef typename sm90_wide_way<C>::steps block_iterator;
    block_iterator it = {};
    /* MASKS: what the step is whose rows are in `stage`. */
    [[maybe_unused]] auto step_of = [&](int stage) {
        return sm90_visible_step{sm90_load_shared_word(base + sm90_wide_step_at<C>(stage))};
    };
    auto block_at_of = [&](int stage) {
        if constexpr (!C::MASKS) return it.at;
        else if constexpr (C::DIRECT) return sm90_wide_block_at(l, tiles[of.place], step_of(stage));
        else return 0u; /* take_dq hands the step on */
    };

    auto begin_scores = [&](uint32_t at0, int stage) {
        const uint32_t q = at0 + C::AT_Q / 16 + stage * (C::Q_BYTES / 16),
                       k = at0 + C::AT_K / 16 + group * (C::GROUP_KEYS * 8);
        sm90_mma_fence();
        DEV_UNROLL_FOR (int i = 0; i < C::HD; i += 16)
            mma::template ss<0>(s, sm90_wide_descriptor(q + i / 64 * PANEL + i % 64 / 8, 1),
                                sm90_wide_descriptor(k + i / 64 * KEY_PANEL + i % 64 / 8, 1), i > 0);
        sm90_mma_commit();
    };
    auto begin_dp = [&](uint32_t at0, int stage) {
        const uint32_t dout = at0 + C::AT_DOUT / 16 + stage * (C::DOUT_BYTES / 16),
                       v = at0 + C::AT_V / 16 + group * (C::GROUP_KEYS * 8);
        sm90_mma_fence();
        DEV_UNROLL_FOR (int i = 0; i < C::HDV; i += 16)
            mma::template ss<0>(dp, sm90_wide_descriptor(dout + i / 64 * PANEL + i % 64 / 8, 1),
                                sm90_wide_descriptor(v + i / 64 * KEY_PANEL + i % 64 / 8, 1), i > 0);
        sm90_mma_commit();
    };
    auto begin_dv = [&](uint32_t at0, int stage) {
        const uint32_t dout = at0 + C::AT_DOUT / 16 + stage * (C::DOUT_BYTES / 16) + group * (EACH * PANEL),
                       ps = at0 + C::AT_P / 16;
        sm90_mma_fence();
        DEV_UNROLL_FOR (int i = 0; i < C::BM; i += 16)
            DEV_UNROLL_FOR (int panel = 0; panel < EACH; ++panel)
                mma::template ss<0, 1>(dv[panel], sm90_wide_descriptor(dout + panel * PANEL + i * 8, 1),
                                       sm90_wide_descriptor(ps + i / 8, 1), true);
        sm90_mma_commit();
    };
    /* Of queries `first` to `end`. */
    auto begin_dk = [&](uint32_t at0, int stage, int first, int end) {
        const uint32_t q = at0 + C::AT_Q / 16 + stage * (C::Q_BYTES / 16) + group * (EACH * PANEL),
                       ds = at0 + C::AT_DS / 16;
        sm90_mma_fence();
        DEV_UNROLL_FOR (int i = first; i < end; i += 16)
            DEV_UNROLL_FOR (int panel = 0; panel < EACH; ++panel)
                mma::template ss<0, 1>(dk[panel], sm90_wide_descriptor(q + panel * PANEL + i * 8, 1),
                                       sm90_wide_descriptor(ds + i / 8, 1), true);
        sm90_mma_commit();
    };
    auto begin_dq = [&](float(&x)[4 * DQ_PIECES], uint32_t at0, int part) {
        const uint32_t ds = at0 + C::AT_DS / 16, k = at0 + C::AT_K / 16 + (group * EACH + part) * KEY_PANEL;
        sm90_mma_fence();
        DEV_UNROLL_FOR (int i = 0; i < C::BN; i += 16)
            mma::template ss<1, 1>(x, sm90_wide_descriptor(ds + i * 8, 1), sm90_wide_descriptor(k + i * 8, 1), i > 0);
        sm90_mma_commit();
    };
    /* This thread's scores, of two queries and pairs of keys, to P or dS: a row is a key, 16-byte pieces are exchanged
     * as in any panel. Matrices of 8 queries x 8 keys, transposed. Addresses are made anew: ptxas would spill them.
     * `pair`: values i and i + 1, of the same query. */
    auto put_scores = [&](int place, auto pair) {
        const int thread = sm90_thread_anew(), row = thread % 8;
        const uint32_t to = base + place + (thread / 128 * C::GROUP_KEYS + thread / 16 % 2 * 8 + row) * 128 +
                            ((thread / 32 % 4 * 2 + thread / 8 % 2) ^ row) * 16;
        DEV_UNROLL_FOR (int i = 0; i < SCORES; i += 8) {
            uint32_t w[4] = {};
            DEV_UNROLL_FOR (int k = 0; k < 4 && i + 2 * k < SCORES; ++k) w[k] = pair(i + 2 * k);
            if (i + 8 <= SCORES) sm90_stmatrix_trans(to + i * 256, w);
            else sm90_stmatrix_trans_two(to + i * 256, w);
        }
    };
    auto arrive = [&](sm90_mbarrier barrier) {
        __syncwarp();
        if (sm90_elect()) barrier.arrive();
    };
    /* This thread's row of the query block; it has another one 8 further. */
    auto row_of = [&]() {
        const int thread = sm90_thread_anew();
        return thread / 32 % 4 * 16 + thread % 32 / 4;
    };
    /* Its statistics of both: LSE (0) or delta (BM). */
    auto statistics = [&](int stage, int which) {
        const float *const from =
            (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + which + row_of();
        return float2{from[0], from[8]};
    };
    auto special_of_tile = [&]() {
        if constexpr (C::MASKS && SUBNORMAL) return sm90_load_shared_word(base + C::AT_SPECIAL);
        else return of_tile;
    };
    /* S has come: P, under softcap its tanh, and what is special about the step. */
    auto probabilities = [&](bool plain, int stage) {
        float2 lse = statistics(stage, 0);
        if constexpr (C::DROPS && !C::ALL) lse.x -= maps.log_kept, lse.y -= maps.log_kept; /* P / (1 - p) */
        if constexpr (C::ALL) terms.probabilities(s, pairs, maps, capped);
        else if (capped) sm90_tanh(s, maps.factor);
        else if constexpr (C::BIASED) {
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) s[i] = dev_exp2_fast(s[i]);
        } else if constexpr (C::FEATURES) {
            const sm90_wide_alibi<C> alibi = sm90_wide_alibi<C>::of(
                l, tiles[of.place], it.head, it.block, group * C::GROUP_KEYS + sm90_lane_anew() % 4 * 2, row_of());
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                s[i] = dev_exp2_fast(
                    alibi.exponent(s[i], maps.factor, i & 2 ? lse.y : lse.x, i / 2 % 2, i / 4 * 8 + i % 2));
        } else {
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                s[i] = dev_exp2_fast(fmaf(s[i], maps.factor, i & 2 ? lse.y : lse.x));
        }
        const float hidden = capped ? SM90_CAP_HIDDEN : 0.0f;
        const uint2 m = sm90_load_shared_words(base + C::AT_STATS + (stage * C::STATS + 2 * C::BM) * 4);
        special = (uint32_t)dev_uniform((int)((m.x ? (uint32_t)SM90_DEAD_ROWS : 0u) |
                                              (SUBNORMAL && m.y ? (uint32_t)SM90_EXACT_DQ : 0u) |
                                              (plain ? 0u : (uint32_t)SM90_MASKED) | special_of_tile()));
        if constexpr (C::ALL) return;
        if constexpr (C::MASKS) {
            if (special & SM90_MASKED) {
                DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) s[i] = hidden_bits >> (32 - SCORES + i) & 1 ? 0.0f : s[i];
            }
        } else if (special & SM90_MASKED) {
            const attn_work_tile &tile = tiles[of.place];
            const int64_t query = (int64_t)it.block * C::BM + row_of(),
                          key = tile.j0 + group * C::GROUP_KEYS + sm90_lane_anew() % 4 * 2;
            const int2 a = sm90_wide_seen(tile, query, key), b = sm90_wide_seen(tile, query + 8, key);
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) {
                const int at_key = i / 4 * 8 + i % 2;
                if (i & 2 ? at_key < b.x || at_key > b.y : at_key < a.x || at_key > a.y) s[i] = hidden;
            }
        }
        if (special & SM90_DEAD_ROWS) {
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                if (C::BIASED ? dev_is_infinite(i & 2 ? lse.y : lse.x) : (i & 2 ? lse.y : lse.x) == -dev_infinity())
                    s[i] = hidden;
        }
    };
    /* 3 and 4 of a step; P is to be published. */
    auto gradients = [&](uint32_t at0) {
        auto as_they_are = [&](int i) { return dev_pack(T(), s[i], s[i + 1]); };
        if constexpr (C::ALL) {
            if (drops) {
                sm90_wide_dropped<C>{base}.full(at.place).wait(at.parity);
                const auto dropped = sm90_wide_dropped_scores<C>::of(smem, at.place);
                DEV_UNROLL_FOR (int i = 0; i < SCORES; i += 2) pairs[i / 2] &= ~dropped.pair(i);
            }
            put_scores(C::AT_P, [&](int i) { return pairs[i / 2]; });
        } else if constexpr (C::DROPS) {
            sm90_wide_dropped<C>{base}.full(at.place).wait(at.parity);
            const auto dropped = sm90_wide_dropped_scores<C>::of(smem, at.place);
            put_scores(C::AT_P, [&](int i) { return dev_pack(T(), s[i], s[i + 1]) & ~dropped.pair(i); });
        } else if (!capped) put_scores(C::AT_P, as_they_are);
        else if constexpr (C::FEATURES) { /* P, and P times the derivative in the place of tanh */
            const float2 lse = statistics(at.place, 0);
            put_scores(C::AT_P, [&](int i) {
                return sm90_capped_pair<T>(s[i], s[i + 1], maps.cap, i & 2 ? lse.y : lse.x, i & 2 ? lse.y : lse.x);
            });
        }
        sm90_fence_async_shared();
        sm90_cta_sync<C::THREADS>();
        begin_dv(at0, at_dout.place);
        sm90_mma_wait<1>(dp);
        float2 delta = statistics(at.place, C::BM);
        if (drops) {
            delta.x *= maps.kept, delta.y *= maps.kept;
            const auto dropped = sm90_wide_dropped_scores<C>::of(smem, at.place);
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                dp[i] = dropped.piece(i / 4) & 1u << (7 + i % 2 * 16 + (i & 2) * 4) ? 0.0f : dp[i];
        }
        if constexpr (C::APART) terms.gradients(dp, delta);
        if constexpr (C::BIASED || C::ALL) { /* which hides pairs, too; delta is not negated */
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                s[i] = s[i] != 0.0f ? s[i] * (dp[i] - (i & 2 ? delta.y : delta.x)) : 0.0f;
        } else {
            if (special & (SM90_MASKED | SM90_DEAD_ROWS)) {
                DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) dp[i] = s[i] != 0.0f ? dp[i] : 0.0f;
            }
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i) s[i] *= dp[i] + (i & 2 ? delta.y : delta.x);
        }
        put_scores(C::AT_DS, as_they_are);
        if (drops) arrive(sm90_wide_dropped<C>{base}.empty(at.place));
        sm90_fence_async_shared();
        sm90_cta_sync<C::THREADS>();
        if constexpr (C::BIASED) bias.store_gradient(l, tiles[of.place], it, s);
        if constexpr (C::ALL)
            sm90_wide_bias<C>::store_gradient(
                l, tiles[of.place], sm90_wide_step::of(l, tiles[of.place], step_of(at.place)), C::APART ? terms.x : s);
    };
    /* A part of dQ has come: to its place or to the sums, in the order of the next kernel, where a warp has 16 rows
     * and half the columns, columns fastest. */
    auto take_dq = [&](const float(&x)[4 * DQ_PIECES], uint32_t block_at, bool exact, int part) {
        enum { STEP = C::SUM_THREADS * 4 };
        const int thread = sm90_thread_anew(), second = thread / 128;
        if (C::DIRECT) {
            const int here = (thread / 32 % 4 * 2 + second) * DEV_WAVE + thread % 32;
            float *const to = l.dq + (int64_t)block_at * (C::BM * C::WIDTH) + here * 4 + part * (DQ_PIECES * STEP);
            if (!adds) return;
            if (ordered && part == 0) {
                barriers.dq_empty().wait(filled);
                filled ^= 1;
            }
            if (exact) {
                float *const mine = (float *)(void *)(smem + C::AT_DQ) + thread * 8;
                DEV_UNROLL_FOR (int n = 0; n < DQ_PIECES; n += 2) {
                    DEV_UNROLL_FOR (int i = 0; i < 8; ++i) mine[i] = x[4 * n + i];
                    DEV_ROLLED_FOR (int i = 0; i < 8; ++i) sm90_add_exact(to + (n + i / 4) * STEP + i % 4, mine[i]);
                }
            } else {
                DEV_UNROLL_FOR (int i = 0; i < DQ_PIECES; ++i) sm90_add_four(to + i * STEP, x + 4 * i);
            }
            if (ordered && part == C::DQ_PARTS - 1) arrive(barriers.dq_full());
            return;
        }
        /* Of 24 pieces of 8 columns this warpgroup has 8, the first half of a row of the sums has 12. */
        const uint32_t to = base + C::AT_DQ + (thread / 32 % 4 * 2 * DEV_WAVE + thread % 32) * 16,
                       low = to + (second == 2) * (DEV_WAVE * 16) + second * 8 % 12 * (STEP * 4),
                       high = to + (second >= 1) * (DEV_WAVE * 16) + (second * 8 + 4) % 12 * (STEP * 4);
        barriers.dq_empty().wait(filled ^ 1);
        filled ^= 1;
        DEV_UNROLL_FOR (int i = 0; i < DQ_PIECES; ++i)
            sm90_store_shared_four((i < 4 ? low : high) + i % 4 * (STEP * 4), x + 4 * i);
        sm90_fence_async_shared();
        __syncwarp();
        if (sm90_elect()) {
            *(uint32_t *)(void *)(smem + C::AT_EXACT) = exact;
            if constexpr (C::MASKS) *(uint32_t *)(void *)(smem + C::AT_STEP) = step_of(at.place).word;
            barriers.dq_full().arrive();
        }
    };
    /* Where shared memory begins, in units of 16 bytes, made anew: ptxas would spill what it makes of it. */
    auto units = [&]() { return (uint32_t)dev_keep((int)(base >> 4)); };
    auto exact = [&]() { return SUBNORMAL && (special & SM90_EXACT_DQ) != 0; };
    auto pin_sums = [&]() {
        DEV_UNROLL_FOR (int panel = 0; panel < EACH; ++panel) {
            sm90_pin(dk[panel]);
            sm90_pin(dv[panel]);
        }
    };

    /* This work tile is a part, whose sums go to a place of their own. */
    auto in_parts = [&]() { return C::PARTS && l.part_sums; };
    auto part_place = [&](const attn_work_tile &tile, bool of_dv) {
        return sm90_part_place(l, tile, C::BN * (int)STW_SM90_WIDE_PART_COLS, of_dv, false);
    };
    /* f32 sums of dV or dK to memory, which begin again from 0. */
    auto drain_one = [&](const attn_work_tile &tile, float(&x)[EACH][C::BN / 2], uint32_t output, bool drained) {
        const bool of_dv = output == STW_OUT_DV;
        if ((of_dv ? p.dv_dtype : p.dk_dtype) != STW_F32) return;
        DEV_UNROLL_FOR (int panel = 0; panel < EACH; ++panel) {
            const int col0 = (group * EACH + panel) * 64 + wave % 4 * 16;
            if (!(p.outputs & output)) {
            } else if (in_parts()) {
                sm90_wide_store_part<C>(part_place(tile, of_dv), x[panel], drained, col0);
            } else {
                sm90_wide_store_f32<C>(tile, x[panel], of_dv ? p.dv : p.dk, drained || (p.accumulate & output),
                                       (int)(of_dv ? p.head_dim_v : p.head_dim_qk), of_dv ? 1.0f : p.scale, col0);
            }
            DEV_UNROLL_FOR (int i = 0; i < C::BN / 2; ++i) x[panel][i] = 0.0f;
        }
    };
    auto drain_steps = [&]() { return maps.drain_rows / (int)C::BM; };
    auto drain = [&](const attn_work_tile &tile, int left) {
        const bool drained = /* before this time */
            sm90_wide_drains<C>(p) &&
            dev_uniform(C::MASKS ? sm90_visible_iterator::steps_of(tile, l) : sm90_block_iterator::steps_of(tile, l)) -
                    left >
                drain_steps();
        drain_one(tile, dv, STW_OUT_DV, drained);
        drain_one(tile, dk, STW_OUT_DK, drained);
    };
    DEV_ROLLED for (;; of.next()) {
        attn_work_tile &tile = tiles[of.place];
        const typename sm90_wide_way<C>::masking &mask = masking[of.place];
        barriers.ready(of.place).wait(of.parity);
        if (!dev_uniform(tile.live)) return;
        it = block_iterator::begin_uniform(tile, l);
        const bool some_rows = dev_uniform((int)!sm90_tile_masking::ends_with_tensor(tile, p)) != 0;
        auto is_plain = [&]() {
            if constexpr (C::MASKS) {
                return (step_of(at.place).word & sm90_visible_step::TESTS) == 0;
            } else {
                const uint2 plain = sm90_load_shared_words(base + C::AT_MASKING + of.place * (int)sizeof mask);
                return it.block >= (int)plain.x && it.block < (int)plain.y;
            }
        };
        /* Zeros in rows of Q and of dO that take part in nothing, when they have arrived. */
        auto zero_rows = [&](int place) {
            const int thread = sm90_thread_anew();
            if constexpr (C::MASKS) {
                const uint32_t rows = masking[at.place].rows;
                if (thread < 256) sm90_zero_rows<C::PANELS, C::BM>(smem + place, rows & 0xFFFFu, rows >> 16, thread);
            } else {
                const int64_t i0 = (int64_t)it.block * C::BM;
                if (thread < 256)
                    sm90_zero_rows<C::PANELS, C::BM>(smem + place, tile.seq.q_low - i0, tile.seq.q_end - i0, thread);
            }
            sm90_fence_async_shared();
            sm90_cta_sync<C::THREADS>();
        };
        auto has_some_rows = [&]() {
            if constexpr (C::MASKS) {
                return dev_uniform((int)masking[at.place].rows) != C::BM << 16;
            } else
                return some_rows && dev_uniform((int)(it.block < tile.whole_first || it.block >= tile.whole_end)) != 0;
        };
        auto await_q = [&]() {
            barriers.q_full(at.place).wait(at.parity);
            if (has_some_rows()) {
                sm90_mma_wait<0>();
                zero_rows(C::AT_Q + at.place * C::Q_BYTES);
            }
        };
        auto await_dout = [&]() {
            barriers.dout_full(at_dout.place).wait(at_dout.parity);
            if (has_some_rows()) zero_rows(C::AT_DOUT + at_dout.place * C::DOUT_BYTES);
        };
        /* While S is made. */
        auto find_hidden = [&]() {
            if constexpr (C::ALL) hidden_bits = 0;
            if constexpr (C::MASKS)
                if (!is_plain())
                    hidden_bits = sm90_wide_hidden<C>(base, at.place, (p.features & STW_FEAT_BLOCK_MASK) != 0);
            if constexpr (C::ALL) {
                const sm90_wide_step step = sm90_wide_step::of(l, tiles[of.place], step_of(at.place));
                terms.fetch(l, tiles[of.place], step);
                terms.add(l, tiles[of.place], step, statistics(at.place, 0), maps.log_kept, hidden_bits, row_of());
            }
        };
        DEV_UNROLL_FOR (int panel = 0; panel < EACH; ++panel)
            DEV_UNROLL_FOR (int i = 0; i < C::BN / 2; ++i) dk[panel][i] = dv[panel][i] = 0.0f;
        if (it.left) {
            pin_sums();
            barriers.k_full().wait(keys);
            barriers.v_full().wait(keys);
            keys ^= 1;
            if (dev_uniform(mask.zeroes_keys)) sm90_wide_zero_keys<C>(tile, smem);
            of_tile = SUBNORMAL && (!sm90_wide_counts<C, C::K_BYTES>(smem + C::AT_K) ||
                                    !sm90_wide_counts<C, C::V_BYTES>(smem + C::AT_V))
                          ? (uint32_t)SM90_EXACT_DQ
                          : 0u;
            if constexpr (C::MASKS && SUBNORMAL) {
                if (sm90_elect()) sm90_store_shared_word(base + C::AT_SPECIAL, of_tile); /* the same of all warps */
                __syncwarp();
            }
            /* the first step */
            await_q();
            begin_scores(units(), at.place);
            if constexpr (C::BIASED) bias.fetch(l, tiles[of.place], it);
            find_hidden();
            sm90_mma_wait<0>(s);
            if constexpr (C::BIASED) bias.add(s, l, tiles[of.place], it, maps.factor, statistics(at.place, 0));
            await_dout();
            begin_dp(units(), at_dout.place);
            probabilities(is_plain(), at.place);
            gradients(units());
            int until = sm90_wide_drains<C>(p) ? it.left - (drain_steps() - 1) : 1; /* dV is a step ahead */
            for (;;) {
                DEV_ROLLED while (it.left > max(until, 1)) {
                    const uint32_t at0 = units(), block_at = block_at_of(at.place);
                    const int stage = at.place;
                    const bool is_exact = exact();
                    begin_dq(dq, at0, 0);
                    begin_dk(at0, stage, 0, 32);
                    sm90_mma_wait<2>();
                    arrive(barriers.dout_empty(at_dout.place));
                    arrive(barriers.scores_empty());
                    sm90_mma_wait<1>(dq);
                    take_dq(dq, block_at, is_exact, 0);
                    if (C::DQ_PARTS == 2) {
                        begin_dq(dq, at0, 1);
                        begin_dk(at0, stage, 32, C::BM);
                        sm90_mma_wait<1>(dq);
                        take_dq(dq, block_at, is_exact, 1);
                    }
                    at.next();
                    at_dout.next();
                    it.next();
                    await_q();
                    begin_scores(at0, at.place);
                    if constexpr (C::BIASED) bias.fetch(l, tiles[of.place], it);
                    /* 2 */
                    if (C::DQ_PARTS == 1) { /* the rest of dK runs beside the exponentials, too */
                        begin_dk(at0, stage, 32, C::BM);
                        find_hidden();
                        sm90_mma_wait<1>(s);
                        if constexpr (C::BIASED)
                            bias.add(s, l, tiles[of.place], it, maps.factor, statistics(at.place, 0));
                    } else {
                        find_hidden();
                    }
                    await_dout();
                    begin_dp(at0, at_dout.place);
                    if (C::DQ_PARTS == 2) {
                        sm90_mma_wait<1>(s);
                        if constexpr (C::BIASED)
                            bias.add(s, l, tiles[of.place], it, maps.factor, statistics(at.place, 0));
                    }
                    probabilities(is_plain(), at.place);
                    sm90_mma_wait<1>();
                    arrive(barriers.q_empty(stage));
                    barriers.scores_empty().wait(multiplied);
                    multiplied ^= 1;
                    /* 3, 4 */
                    gradients(C::MASKS ? units() : at0);
                }
                if (!C::OUTPUTS || it.left <= 1) break;
                sm90_mma_wait<0>();
                pin_sums();
                drain(tile, it.left);
                pin_sums();
                until -= drain_steps();
            }
            const uint32_t at0 = units(), block_at = block_at_of(at.place);
            arrive(barriers.v_empty());
            begin_dq(dq, at0, 0);
            begin_dk(at0, at.place, 0, C::BM);
            sm90_mma_wait<1>(dq);
            arrive(barriers.dout_empty(at_dout.place));
            take_dq(dq, block_at, exact(), 0);
            DEV_UNROLL_FOR (int part = 1; part < C::DQ_PARTS; ++part) {
                begin_dq(dq, at0, part);
                sm90_mma_wait<0>(dq);
                take_dq(dq, block_at, exact(), part);
            }
            arrive(barriers.k_empty());
            sm90_mma_wait<0>();
            arrive(barriers.q_empty(at.place));
            at_dout.next();
            at.next();
            pin_sums();
            sm90_cta_sync<C::THREADS>(); /* nobody multiplies P or dS any more */
        }
        if constexpr (C::OUTPUTS) drain(tile, 0);
        const attn_work_tile &stored = C::MASKS ? tiles[dev_uniform(of.place)] : tile; /* found anew: registers lack */
        char *const mine = smem + C::AT_P + wave * 1024;
        const bool stores_dv = !C::OUTPUTS || ((p.outputs & STW_OUT_DV) && p.dv_dtype != STW_F32),
                   stores_dk = !C::OUTPUTS || ((p.outputs & STW_OUT_DK) && p.dk_dtype != STW_F32);
        DEV_UNROLL_FOR (int panel = 0; panel < EACH; ++panel) {
            const int col0 = (group * EACH + panel) * 64 + wave % 4 * 16;
            if (in_parts()) {
                if (stores_dv) sm90_wide_store_part<C>(part_place(stored, true), dv[panel], false, col0);
                if (stores_dk) sm90_wide_store_part<C>(part_place(stored, false), dk[panel], false, col0);
                continue;
            }
            if (stores_dv)
                sm90_wide_store<C>(stored, dv[panel], p.dv, p.dtype, (l.vectors & STW_VECTOR_DV) != 0,
                                   (int)p.head_dim_v, 1.0f, mine, col0);
            if (stores_dk)
                sm90_wide_store<C>(stored, dk[panel], p.dk, p.dtype, (l.vectors & STW_VECTOR_DK) != 0,
                                   (int)p.head_dim_qk, p.scale, mine, col0);
        }
        arrive(barriers.tile_empty(of.place));
        sm90_cta_sync<C::THREADS>(); /* P goes where warps had their rows */
    }
}

#endif
