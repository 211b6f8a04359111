/* SPDX-License-Identifier: MIT
 *
 * CDNA's own main loop of the backward pass: rows that are whole vectors, deterministic mode, ALiBi, a softcap,
 * dropout, a bias and masks in memory in any company (backends/hip/attn_cdna.c). Every other problem takes the shared
 * loop (common/kernels/attn_bwd.h). dQ, dK and dV are all made; the scheduler drops a dK or dV that nobody wants, and
 * sums of an unwanted dQ stay in the workspace. Sums of dQ lie in the order of the shared loop; statistics are negated
 * (STW_STATS_NEGATED). Below is the step of 16 bits.
 *
 * A workgroup (CUDA: CTA) of four waves has a work tile, 192 keys of one kv head. It goes over the queries of every
 * head of the group, 32 rows a step. S and dP of a step are made in two halves:
 *
 *              keys ->  0        48       96       144      192
 *    queries  0..15    | wave 0 | wave 1 | wave 2 | wave 3 |     a wave's part is three 16 x 16 tiles
 *            16..31    |        |        |        |        |
 *
 * No operand needs a shuffle. Lane l is (n, g) = (l % 16, l / 16); mma_gfx9.h has the layouts.
 *   S  = Q K^T    Both operands may order the columns at will: a lane reads 16 bytes of a row (columns 8 g .. of 32)
 *                 and feeds two products. K and V stay in registers. dP = dO V^T likewise; its sums start at -delta.
 *   dV += P^T dO  The sums of S are (key n, queries 4 g .. 4 g + 3). Rounded, they are the operand P^T. The other
 *   dK += dS^T Q  operand is four queries of a column: transposed copies of dO and Q, two columns a lane.
 *   dQ += dS K    Over all 192 keys: dS goes through LDS, and each wave makes HD / 4 columns with K^T in registers; of
 *                 head dims 32 and 96, which have no four parts of whole tiles, HD / 2 columns of 16 queries.
 *                 A lane needs several keys of a query but owns several queries of a key. So tiles 0 and 1 are zipped
 *                 into words (key n, key 16 + n), tile 2 is stored by halves, and K^T is gathered once in that order.
 *
 * Head dims 32 and 96 lie in LDS as 64 and 128 do, with zeros in the last 32 columns (WIDTH).
 *
 * Above 128 a key takes more registers for K, V and its sums, so a work tile has fewer keys: 128 of head dim 192, two
 * tiles a wave, and 64 of 256, one tile. Head dim 192 comes in three strips of 64 columns. With head_dim_v up to 128
 * ("tall") V, dO and dV have four pieces, not six; dO lies in LDS as Q does. Of head dim 256 LDS holds 16 queries at a
 * time: a step has two parts, each with both barriers. In deterministic mode both add in one turn.
 *
 * LDS has 32 banks of 4 bytes. AMD documents which lanes of a 16-byte read go in one cycle: 0-3 with 20-23, 4-7 with
 * 16-19, 8-11 with 28-31, 12-15 with 24-27, the same + 32. Of a 16-byte write eight lanes go in order; 16 lanes of 8
 * bytes and 32 of 4 are taken to do the same. No access has a conflict then (tests/cdna_emu/check_banks.py):
 *   Q, dO rows    HELD x (2 WIDTH + 32) bytes   read 16 bytes: rows start 8 banks apart, rows n and n + 4 are read at
 *                 each                          g and g + 1, in the banks between; written 8 along a row
 *   Q^T, dO^T     HELD x 2 WIDTH each           [half][pair of columns][g][n][2 columns][4 queries]: lanes contiguous
 *   dS            HELD / 4 x (4 SCORE_ROW + 64) a query: 4 waves x 64 bytes of zipped keys, 4 x 32 of a last tile;
 *                                               read as Q; written by words, g and g + 1 in different banks
 *   LSE, delta    2 x 32 x 4                    the four queries of a lane are read at once
 *
 * The order of instructions is written out: a piece of softmax after each product of dP, a piece of dS after each of
 * dV, reads of LDS in pairs, two ahead (of dS four, with two waves a SIMD); with dropout rounds of Philox. From head
 * dim 96 on, and in modes from CDNA_DROPOUT on: one wave a SIMD, up to 512 registers. Else two waves; with 256
 * registers and no asm operand in AGPRs clang leaves the sums in ordinary registers and moves none.
 *
 * attn_bwd_cdna_loads.h: K, V, Q, dO and statistics. attn_bwd_cdna_features.h: deterministic mode, ALiBi, softcap,
 * dropout, a bias. attn_bwd_cdna_hidden.h: masks in memory. attn_bwd_cdna_draws.h: dropout's calls beside products.
 * attn_bwd_cdna_scores.h: P and dS. attn_bwd_cdna_lift.h: f16 of gfx90a. attn_bwd_cdna_scheduler.h: what calls a step,
 * dK and dV to memory, the kernels. attn_bwd_cdna_rows.h: the preprocess and postprocess kernels. attn_bwd_cdna_f32.h:
 * f32, whose step is another. */
#ifndef STW_HIP_ATTN_BWD_CDNA_H
#define STW_HIP_ATTN_BWD_CDNA_H

#include "attn_bwd_cdna_scores.h"

/* Shapes. BM queries of a step, BN keys of a workgroup; AT_*, ROW, SCORE_* and TRANSPOSED are bytes of LDS. */
template <class T_, int HD_, int HD_V_ = HD_, int MODE_ = CDNA_PLAIN> struct attn_cdna {
    typedef T_ T;
    enum {
        HD = HD_,
        MODE = MODE_,
        BM = 32,
        BIAS_ROWS = BM, /* of a bias that are loaded together */
        BN = (int)STW_CDNA_BN(HD_),
        HELD = (int)STW_CDNA_HELD(HD_),                     /* queries in LDS at a time                 */
        PARTS = BM / HELD,                                  /* of a step, which follow one another      */
        KEYS = BN / 4,                                      /* of a wave                                */
        TILES = KEYS / 16,                                  /* of 16 keys, a wave's                     */
        ZIPPED = TILES / 2 * 4,                             /* fragments of dS whose keys are zipped    */
        PIECES = HD / 32,                                   /* of 16 bytes a lane in 16 rows of Q       */
        PIECES_V = HD_V_ / 32,                              /* of dO                                    */
        WIDTH = (HD + 63) / 64 * 64,                        /* columns of Q and dO in LDS               */
        HALVES = HD % 64 ? 1 : 2,                           /* of 16 queries, a wave's part of dQ       */
        COLUMNS = HD / 32 / HALVES,                         /* 16-column tiles of it                    */
        TENSORS = WIDTH % 128 ? 1 : 2,                      /* of Q and dO, that a thread brings        */
        STRIPS = WIDTH == 192 ? 3 : 1,                      /* of columns, of each of which it has four */
        UNITS = TENSORS * STRIPS,                           /* of four rows x four columns              */
        FOURS = WIDTH / STRIPS / 4,                         /* columns of a strip                       */
        MORE = MODE >= CDNA_DROPOUT,                        /* to keep in registers                     */
        SKIPS = MODE == CDNA_PLAIN && !attn_lifts<T_>::yes, /* products of a wave that sees no pair */
        IN_AGPRS = WIDTH >= 128 || MORE,                    /* one wave a SIMD                          */
        FLUSHES = dev_flushes<T_>::yes,                     /* gfx90a, bf16: 0 for subnormal operands   */
        TURNS = cdna_turns(MODE, IN_AGPRS, FLUSHES),        /* of deterministic mode                    */
#if LEAF_K32
        SCORES_HERE = 0, /* products of 32 have their sums where the compiler puts them */
#else
        /* S and dP in ordinary registers; their start must come from LDS alone */
        SCORES_HERE = ((HD == 128 && MODE == CDNA_PLAIN) || (HD <= 64 && MODE == CDNA_DROPOUT)) && !attn_lifts<T_>::yes,
#endif
        P_SCALED = MODE == CDNA_DROPOUT && !dev_is_f16<T_>::yes, /* P has the factor of dropout */
        /* other maps have steps of their own, AHEAD with calls beside products; else three kinds of steps spill */
        OTHERS = MODE == CDNA_DROPOUT && (WIDTH < 128 || HD == 128) && !attn_lifts<T_>::yes,
        AHEAD = OTHERS && WIDTH < 128,
        /* features of a head are entered anew in each step; else registers spill */
        ENTERS =
            HD == 128 && (dev_is_f16<T_>::yes ? LEAF_K32 && MODE == CDNA_EVERYTHING : MODE == CDNA_EVERYTHING_ORDERED),
        /* Few registers: two places in LDS share one, and the offset of statistics takes the lane from that of dQ's
         * sums; else one to four spill. */
        TIGHT = HD == 64 && !IN_AGPRS &&
                (cdna_hides(MODE) || (LEAF_K32 && MODE == CDNA_PLAIN) ||
                 (FLUSHES && MODE == CDNA_ORDERED && !attn_lifts<T_>::yes)),
        ROW = WIDTH * 2 + 32,            /* of Q or dO             */
        SCORE_ROW = BN * 2 + 32,         /* of dS                  */
        SCORE_FOUR = 4 * SCORE_ROW + 64, /* four rows of dS        */
        TRANSPOSED = 16 * WIDTH * 2,     /* Q^T or dO^T of a half  */
        AT_Q = 0,
        AT_DOUT = AT_Q + HELD * ROW,
        AT_QT = AT_DOUT + HELD * ROW,
        AT_DOUTT = AT_QT + HELD / 16 * TRANSPOSED,
        AT_DS = AT_DOUTT + HELD / 16 * TRANSPOSED,
        AT_STATS = AT_DS + HELD / 4 * SCORE_FOUR,
        AT_WORK_TILE = AT_STATS + 2 * BM * 4,
        STATS = 2 * BM + (int)STW_STATS_PAD /* floats of a query block */
    };
    static_assert(AT_WORK_TILE + STW_CDNA_WORK_TILE_BYTES == STW_CDNA_SMEM(HD_), "host and device agree on LDS");
    static_assert(sizeof(attn_work_tile) <= STW_CDNA_WORK_TILE_BYTES, "a work tile has room");
    static_assert(AT_QT % 1024 == 0, "places of statistics follow from those of Q^T");
    static_assert(IN_AGPRS || 2 * STW_CDNA_SMEM(HD_) <= 65536, "two workgroups share a compute unit");
};

/* Sums of dQ, in the order of the registers of the wave that adds. */
template <class C> struct attn_cdna_dq {
    /* With dropout clang 19 would keep, and spill, an address of each offset below 0. */
    enum { UPWARDS = C::MODE == CDNA_DROPOUT && C::HALVES * C::COLUMNS <= 2 };
    char *sums, *sums_above; /* offsets within an instruction reach 4096 bytes both ways; UPWARDS: tiles 0 and 1 */
    uint32_t at;

    DEV_METHOD void enter_head(float *first_sum, int first, int thread) {
        char *base = (char *)first_sum;
        sums = cdna_opaque_scalar(base + (UPWARDS ? 0 : 4096));
        sums_above = UPWARDS                      ? cdna_opaque_scalar(base + 4096)
                     : C::HALVES * C::COLUMNS > 2 ? cdna_opaque_scalar(base + 12288)
                                                  : nullptr;
        at = (uint32_t)(first * (C::BM * C::HD * 4) + thread * 4);
    }
    /* Of query r of the lane, in tile c of one half. */
    DEV_METHOD float *place(int half, int c, int r) const {
        const int tile = half * C::COLUMNS + c;
        const char *base = tile % 4 < (UPWARDS ? 1 : 2) ? sums : sums_above;
        const int first = UPWARDS ? 0 : (tile & 1) * 4096 - 4096;
        return (float *)(base + (uint64_t)(at + tile / 4 * 16384) + (first + r * 1024));
    }
    /* Of one half; exact: subnormal sums count. */
    DEV_METHOD void add(const leaf_f4 (&dq)[C::COLUMNS], int half, bool exact) const {
        DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                if (exact) dev_add_exact(place(half, c, r), dq[c][r]);
                else dev_add(place(half, c, r), dq[c][r]);
    }
    /* The same, exact, where nobody else adds: it is this key block's turn. */
    DEV_METHOD void add_in_turn(const leaf_f4 (&dq)[C::COLUMNS], int half) const {
        DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
            leaf_f4 sum;
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                sum[r] = __hip_atomic_load((DEV_GLOBAL float *)place(half, c, r), __ATOMIC_RELAXED,
                                           __HIP_MEMORY_SCOPE_AGENT);
            sum += dq[c];
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                __hip_atomic_store((DEV_GLOBAL float *)place(half, c, r), sum[r], __ATOMIC_RELAXED,
                                   __HIP_MEMORY_SCOPE_AGENT);
        }
    }
    DEV_METHOD void next() { at += C::BM * C::HD * 4; }
};

/* A wave's registers. */
template <class C> struct attn_cdna_loop {
    attn_cdna_kv<C> keys;
    leaf_f4 dk[C::TILES][2 * C::PIECES], dv[C::TILES][2 * C::PIECES_V];
    attn_cdna_lds<C> lds;
    attn_cdna_queries<C> queries;
    attn_cdna_stats<C> stats;
    attn_cdna_dq<C> dq;
    attn_cdna_turn<C> turn;
    attn_cdna_ahead<C> ahead;
    attn_cdna_scoring scoring;
    attn_cdna_feature<C> feature;
    attn_cdna_calls<C> calls;
    uint64_t subnormal_steps; /* of those that attn_cdna_steps_of counts, a bit each */
    bool subnormal_keys;      /* K or V                                             */
    int wave;                 /* of modes other than CDNA_PLAIN                     */

    /* The thread's number; kernels that have no register to keep it in make it anew. */
    DEV_METHOD int thread() const {
        if constexpr (C::MODE == CDNA_PLAIN) return cdna_opaque((int)dev_thread());
        return 64 * wave + cdna_lane_anew();
    }

    /* With a bias, clang 19 would load four floats from there, and keep its buffer in memory. */
    DEV_METHOD float to_sums() const {
        if constexpr (cdna_biased(C::MODE)) return cdna_opaque(scoring.to_sums);
        return scoring.to_sums;
    }
    DEV_METHOD void clear() {
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
            DEV_UNROLL_FOR (int j = 0; j < 2 * C::PIECES; ++j) dk[i][j] = leaf_f4{0, 0, 0, 0};
            DEV_UNROLL_FOR (int j = 0; j < 2 * C::PIECES_V; ++j) dv[i][j] = leaf_f4{0, 0, 0, 0};
        }
    }
};

/* Operands of a step in LDS. Q, dO, dO^T and Q^T of both halves are one stream. Its last fragments of head dims from
 * 128 on, of Q^T, are used after the barrier but read before it, since the next rows overwrite them. dS is another. */
template <class C> struct attn_cdna_rows_source {
    enum { P = C::PIECES, LATE = P >= 4 ? P : 0, COUNT = C::HELD / 8 * (P + C::PIECES_V) - LATE, AHEAD = 2 };
    DEV_FN leaf_u4 read(const attn_cdna_lds<C> &lds, int k) { return lds.read(k); }
};
template <class C> struct attn_cdna_ds_source {
    enum { COUNT = C::BN / 32 * (C::HALVES / C::PARTS), LATE = 0, AHEAD = C::IN_AGPRS ? 2 : COUNT % 4 ? COUNT / 2 : 4 };
    DEV_FN leaf_u4 read(const attn_cdna_lds<C> &lds, int k) { return lds.read_ds(k); }
};

/* The end of a part. Between the two barriers run dK of its last 16 rows, dQ, and the stores of the next rows, which
 * were loaded a part ahead, from registers to LDS. `dk_beside` makes dK and calls these stores after its products;
 * `draw` runs after those of dQ. */
template <int KIND, class C, class Product, class Draw>
DEV_FN void attn_cdna_end_part(attn_cdna_loop<C> &w, int block, int part, bool subnormal, Product dk_beside,
                               Draw draw) {
    typedef cdna_stream<attn_cdna_ds_source<C>> ds_stream;
    typedef cdna_streamed<ds_stream, attn_cdna_lds<C>> ds_operand;
    enum { HALVES = C::HALVES / C::PARTS, FRAGMENTS = C::BN / 32, P = C::PIECES };
    constexpr bool EXACT = cdna_is_exact(KIND), ANY = KIND >= CDNA_ANY;
    constexpr bool LIFTED = attn_lifts<typename C::T>::yes && !EXACT;
    /* Where turns are asked for, their branches are before the loads and the products of dQ: clang 19 would await a
     * bias there, and copy dQ out of the AGPRs. */
    constexpr bool EARLY = (int)C::TURNS == CDNA_TURNS_ASKED;
    if (part == 0) w.turn.acknowledge();
    cdna_barrier(); /* all waves have written dS and read Q and dO */
    if (part == 0) {
        w.turn.pass_on();
        w.turn.look();
    }
    ds_stream ds(w.lds);
    leaf_f4 dq[HALVES][C::COLUMNS];
    auto add = [&](int half) {
        if (!EARLY && part == 0 && half == 0) w.turn.wait(block);
        if constexpr (LIFTED)
            DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) dq[half][c] *= (leaf_f4)w.to_sums();
        if (EXACT) cdna_settle();
#if LEAF_K32
        if (ANY) cdna_settle_sums();
#endif
        if (ANY && subnormal) {
            if constexpr (C::MODE == CDNA_EVERYTHING_ORDERED) w.dq.add_in_turn(dq[half], part + half);
            else w.dq.add(dq[half], part + half, true);
        } else w.dq.add(dq[half], part + half, false);
    };
    auto put_next_rows = cdna_behind_fragment([&](int j) {
        if (j == 0) w.ahead.arrived(part == 0);
        if (LIFTED && j == 0) w.queries.lift(w.ahead);
        DEV_UNROLL_FOR (int i = 0; i < 2 * C::UNITS; ++i)
            if (i * P / (2 * C::UNITS) == j) w.queries.put(w.ahead, i);
        if (j == P - 1 && part == C::PARTS - 1) w.stats.put(w.ahead, w.lds, w.dq.at);
    });
    auto add_first_half = cdna_behind_fragment([&](int k) {
        if (HALVES == 1 || k != FRAGMENTS * 3 / 2 - 1) return;
        add(0);
        CDNA_FENCE();
    });
    dk_beside(put_next_rows);
    CDNA_FENCE();
    if (EARLY && part == 0) w.turn.wait(block);
    /* loads come before the additions, so that no step waits for its own */
    w.queries.fetch(w.ahead);
    if constexpr (cdna_biased(C::MODE))
        if (part == C::PARTS - 1) w.feature.template fetch<ANY>();
    if (part == C::PARTS - 1) w.stats.fetch(w.ahead, w.dq.at);
    CDNA_FENCE();
    mma_AB<EXACT, C>(dq, ds_operand{ds, w.lds, 0}, w.keys.kt, add_first_half, draw);
    add(HALVES - 1);
    if (part == C::PARTS - 1) {
        w.dq.next();
        w.turn.next();
    }
    cdna_barrier(); /* all waves have written the next rows and read dS */
}

/* One part of a query block: the rows that are in LDS. */
template <int KIND, class C> DEV_FN void attn_cdna_part(attn_cdna_loop<C> &w, int block, int part, bool subnormal) {
    typedef cdna_stream<attn_cdna_rows_source<C>> rows_stream;
    typedef cdna_streamed<rows_stream, attn_cdna_lds<C>> rows_operand;
    constexpr int P = C::PIECES, V = C::PIECES_V, LAST = C::HELD / 16 - 1;
    constexpr bool EXACT = cdna_is_exact(KIND), ANY = KIND >= CDNA_ANY;
    constexpr bool LIFTED = attn_lifts<typename C::T>::yes && !EXACT;
    const int first = part * C::HELD / 16;
    constexpr int MAP = cdna_draws_by(C::MODE, KIND);
    constexpr bool DRAWS = MAP >= 0, HERE = attn_cdna_scores<KIND, C>::HERE;
    constexpr bool HELD = MAP == STW_DROPOUT_MEM_EFF;
    typedef attn_cdna_drawing<MAP, C> drawing;
    if constexpr (MAP != CDNA_DRAWS_NOTHING)
        if (part == 0) drawing::enter_step(w.calls, w.feature, block);
    if constexpr ((C::MODE == CDNA_DROPOUT || cdna_hides(C::MODE)) && ANY)
        if (part == 0) w.feature.enter_step(block, w.thread());
    if constexpr (cdna_knows_bias(C::MODE) && ANY)
        if (part == 0) w.feature.prepare();
    constexpr bool EVERY = attn_cdna_scores<KIND, C>::EVERY;
    if constexpr (EVERY)
        if (part == 0) w.feature.enter_step(block, w.thread());
    leaf_f4 lse = w.lds.read_stats(first, 0), delta = w.lds.read_stats(first, 1);
    attn_cdna_scores<KIND, C> t;
    auto prepare_stats = [&] {
        if constexpr (LIFTED && !cdna_biased(C::MODE)) lse += (leaf_f4)10.0f;
        if constexpr (C::P_SCALED) lse += (leaf_f4)cdna_alone<C>(w.feature.log_scale);
        if constexpr (C::MODE == CDNA_DROPOUT) t.start = delta *= (leaf_f4)cdna_alone<C>(w.feature.start);
        else if constexpr (EVERY) t.start = delta *= (leaf_f4)cdna_alone<C>(w.feature.more.start);
        else if constexpr (LIFTED) delta *= (leaf_f4)0x1p20f;
    };
    rows_stream rows(w.lds);
    auto do_half = [&](auto number) __attribute__((always_inline)) {
        const int half = number;
        const int at = half * 2 * (P + V);
        const rows_operand q = {rows, w.lds, at}, dout = {rows, w.lds, at + P};
        const rows_operand dout_t = {rows, w.lds, at + P + V}, q_t = {rows, w.lds, at + P + 2 * V};
        auto draw = cdna_behind_product<false, HELD>([&](int piece) {
            drawing::template beside<2>(w.calls, w.feature, block, first + half, CDNA_BESIDE_S, piece, 8 * C::TILES);
            if (piece == 8 * C::TILES - 1) t.draws.decide(w.calls, w.feature);
        });
        auto draw_next = cdna_behind_product<false, HELD>([&](int piece) {
            drawing::template beside<1>(w.calls, w.feature, block, first + half, CDNA_BESIDE_DK, piece, 8 * C::TILES);
        });
        /* sums of S take a while; after masks other instructions would wait in turn */
        enum { ONE_LATER = KIND == CDNA_INNER && !C::IN_AGPRS };
        auto softmax = cdna_behind_product<ONE_LATER>([&](int piece) {
            t.template softmax<C::MODE == CDNA_SOFTCAP || cdna_is_capped(KIND)>(w.scoring, w.feature, lse, piece);
        });
        auto gradient = cdna_behind_product<false, HELD>([&](int piece) { t.gradient(w.lds, piece); });
        t.enter(w.scoring, w.feature, block, first + half);
        prepare_stats();
        /* S = Q K^T; dP - delta = dO V^T - delta, and P beside it; dV += P^T dO, and dS beside it; dK += dS^T Q */
        if constexpr (DRAWS) mma_ABt<EXACT, C, HERE>(t.s, q, w.keys.k, draw);
        else mma_ABt<EXACT, C, HERE>(t.s, q, w.keys.k, cdna_nothing());
        if constexpr (C::MODE == CDNA_DROPOUT && ANY) {
            auto capped =
                cdna_behind_product([&](int piece) { t.template softmax<true>(w.scoring, w.feature, lse, piece); });
            if (w.feature.caps) mma_ABt<EXACT, C, HERE>(t.dp, dout, w.keys.v, capped, delta);
            else mma_ABt<EXACT, C, HERE>(t.dp, dout, w.keys.v, softmax, delta);
        } else if constexpr (attn_cdna_scores<KIND, C>::FUSED) {
            mma_ABt<EXACT, C, HERE>(t.dp, dout, w.keys.v, softmax);
        } else mma_ABt<EXACT, C, HERE>(t.dp, dout, w.keys.v, softmax, delta);
        if (half < LAST) {
            lse = w.lds.read_stats(first + half + 1, 0);
            delta = w.lds.read_stats(first + half + 1, 1);
        }
        mma_AtB<EXACT, C>(w.dv, t.p16, dout_t, gradient);
        if constexpr (cdna_knows_bias(C::MODE) && ANY)
            w.feature.template store_gradient<LIFTED>(t, w.to_sums(), block, first + half, w.thread());
        if (half < LAST) {
            if constexpr (DRAWS) mma_AtB<EXACT, C>(w.dk, t.ds16, q_t, draw_next);
            else mma_AtB<EXACT, C>(w.dk, t.ds16, q_t, cdna_nothing());
        }
    };
    if constexpr (DRAWS) { /* clang 19 would find too much to unroll in a loop */
        do_half(cdna_number<0>());
        if constexpr (LAST == 1) do_half(cdna_number<1>());
    } else
        DEV_UNROLL_FOR (int half = 0; half <= LAST; ++half) do_half(half);
    auto dk_beside = [&](auto put_next_rows) {
        const cdna_arrived_operand q_t = {P >= 4 ? rows.late : rows.ring + (4 - P)};
        if constexpr (DRAWS) { /* 6, 24, and 24 below: no map has more parts beside these products */
            auto both = cdna_behind_fragment([&](int j) {
                put_next_rows.step(j);
                drawing::template beside<((C::WIDTH < 128 ? 6 : 24) + P - 1) / P>(w.calls, w.feature, block,
                                                                                  first + LAST, CDNA_BESIDE_DK, j, P);
            });
            mma_AtB<EXACT, C>(w.dk, t.ds16, q_t, both);
        } else mma_AtB<EXACT, C>(w.dk, t.ds16, q_t, put_next_rows);
    };
    if constexpr (DRAWS && C::WIDTH < 128) {
        constexpr int PRODUCTS = C::HALVES / C::PARTS * (C::BN / 16) * C::COLUMNS;
        auto beside_dq = cdna_behind_product([&](int i) {
            drawing::template beside<(23 + PRODUCTS) / PRODUCTS>(w.calls, w.feature, block, first + LAST,
                                                                 CDNA_BESIDE_DQ, i, PRODUCTS);
        });
        attn_cdna_end_part<KIND>(w, block, part, subnormal, dk_beside, beside_dq);
    } else attn_cdna_end_part<KIND>(w, block, part, subnormal, dk_beside, cdna_nothing());
}

/* The same of a wave that sees none of the pairs. Its dS in LDS holds zeros (attn_cdna_lds, clear_ds). */
template <class C> DEV_FN void attn_cdna_unseen_part(attn_cdna_loop<C> &w, int block, int part) {
    auto put = [&](auto put_next_rows) {
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j) put_next_rows.step(j);
    };
    attn_cdna_end_part<CDNA_UNSEEN>(w, block, part, false, put, cdna_nothing());
}

/* One query block of 32 rows; `step`: its bit of subnormal_steps. */
template <int KIND, class C> DEV_FN void attn_cdna_step(attn_cdna_loop<C> &w, int block, int step) {
    constexpr bool FLUSHES = dev_flushes<typename C::T>::yes;
    const bool subnormal = (cdna_is_exact(KIND) && FLUSHES) ||
                           (KIND >= CDNA_ANY && !cdna_is_exact(KIND) && !FLUSHES && (w.subnormal_steps >> step & 1));
    if constexpr (!C::IN_AGPRS) w.lds.columns = cdna_opaque(w.lds.columns); /* else places of statistics are kept */
    DEV_UNROLL_FOR (int part = 0; part < C::PARTS; ++part)
        if constexpr (KIND == CDNA_UNSEEN) attn_cdna_unseen_part(w, block, part);
        else attn_cdna_part<KIND>(w, block, part, subnormal);
}

#endif
