/* SPDX-License-Identifier: MIT
 *
 * Hopper's own main loop of the backward pass, for 16-bit types without features of single pairs: dK and dV of work
 * tiles of 128 keys, dQ into the f32 sums that common/kernels clears before and converts after it. Blocks of 256
 * threads (two warpgroups), one a multiprocessor, take work tiles until none is left. Everything is held transposed,
 * keys as rows; warpgroup c has keys 64c.. of the unit:
 *
 *              queries i0 .. i0+M
 *     keys  +--------------------+      S^T  = K Q^T      both from shared memory
 *     c = 0 | 64 x M             |      dP^T = V dO^T     both from shared memory
 *           +--------------------+      dV  += P^T dO     P^T from registers: the accumulators' layout is the operand's
 *     c = 1 | 64 x M             |      dK  += dS^T Q     dS^T from registers
 *           +--------------------+      dQ   = dS K       dS through shared memory; warpgroup c makes columns 64c.. (M
 *           64), or
 *                                                         rows 64c.. (M 128)
 *
 * Step j. On entry P(j) is in registers, no product is under way, and `special` says what is not as usual in this step.
 *   1  issue dP(j); P to 16 bits; issue dV(j)
 *   2  await dP; dS = P (dP - D) to 16 bits, into registers and dS[j % 2]; barrier of the block     (dV runs)
 *   3  one lane asks for the rows of step j + 2, into the place of step j - 1
 *   4  await dV; issue S(j+1), dQ(j), dK(j)
 *   5  await S; P(j+1) = 2^(S c - LSE c); await dQ and add it to the sums; await dK                    (dQ, dK run)
 * S(j+1) of a work tile's last step is the next work tile's first; where there is no next work tile it multiplies
 * whatever lies there, and nobody looks at it (a condition would upset ptxas).
 *
 * Why places need no "empty" barriers: the block's barrier of step j proves that both warpgroups have ended all
 * products of step j - 1, so the rows and statistics of step j - 1 may be overwritten. dS has two places, since a
 * warpgroup may write dS(j+1) while the other multiplies dS(j). V is read no longer after the barrier of a work tile's
 * last step (dP awaited): there the next work tile's is asked for. K has two places; the next work tile's is asked for
 * a step earlier. Loads run two steps ahead, over the end of the work tile too, so a work tile has two steps at least:
 * the missing ones multiply rows of zeros.
 *
 * Rows that take part in nothing must not be multiplied, not even by 0: what TMA brings of them (a neighbour's in
 * packed tensors, rows past a used length) is overwritten with zeros, in the few blocks at edges.
 *
 * Deterministic mode (ORDERED, a kernel of its own): key blocks add to a block of queries from the last to the first;
 * l.turns holds the one that added last. Work tiles are numbered so, and all drawn from the tile counter: each waits
 * for work tiles with smaller numbers alone, and passes its last turn on before it waits as another work tile, so there
 * is always one that goes on. (Under a causal mask the first block of queries that a key block meets is met by none
 * before it.) One wave keeps the turns: it waits for that of step j in phase 1; in phase 4 it passes on that of step j
 * - 1, whose additions came before the barrier, and looks whether that of step j + 1 has come; one fence serves both.
 *
 * What ptxas makes of this decides over 10%:
 *   - no exponential may sink behind the last wait of a step, where no product runs: the branch to `select` ahead of it
 *     holds them;
 *   - all that decides about loops and branches comes from dev_uniform and from arithmetic without branches
 *     (sm90_scheduler::next), or the whole loop leaves the uniform registers, descriptors first; a dev_uniform in a
 *     conditional part of the loop has the same effect;
 *   - what a load brings must be wanted only after all products of a phase are issued, and loads come no earlier than
 *     they are written: marks in the middle of the products cost 4%;
 *   - registers of an address are held until additions have read them (sm90_hold): ptxas had them used again at once,
 *     9%;
 *   - `elect.sync` in a branch that all lanes of a wave take keeps loops away from TMA. */
#ifndef STW_CUDA_ATTN_BWD_SM90_H
#define STW_CUDA_ATTN_BWD_SM90_H

#include "mma_sm90.h"
#include "tensor_map.h"

/* One kernel's shapes. PANELS: of 64 columns. */
template <class T_, int HD_> struct sm90_config {
    typedef T_ T;
    enum {
        HD = HD_,
        BM = STW_SM90_BM(HD_),
        BN = 128,
        STAGES = 3,
        WARPS = 8,
        THREADS = 256,
        PANELS = (HD + 63) / 64,
        WIDTH = PANELS * 64
    };
    enum {
        ROWS_BYTES = PANELS * BM * 128,
        KEYS_BYTES = PANELS * BN * 128,
        DS_BYTES = BM * BN * 2,
        STATS = 2 * BM + (int)STW_STATS_PAD
    };
    /* Of twenty choices measured on an H200 the best; the worst was 6% slower at head dim 64, 3 to 5% at 128.
     * VALUES_EARLY: dV is stored under the last products of a work tile. LSE_AHEAD, DELTA_AHEAD: pairs of statistics
     * that find registers before the wait for the product that they meet; the others come behind it. MARKS_LATE: a
     * block's marks are read behind the exponentials, not ahead of them. */
    enum {
        VALUES_EARLY = BM == 64,
        LSE_AHEAD = BM == 64 ? 0 : 4,
        DELTA_AHEAD = BM == 64 ? 0 : 4,
        MARKS_LATE = BM == 64
    };
    enum {
        AT_K = 0,
        AT_V = AT_K + 2 * KEYS_BYTES,
        AT_Q = AT_V + KEYS_BYTES,
        AT_DOUT = AT_Q + STAGES * ROWS_BYTES,
        AT_DS = AT_DOUT + STAGES * ROWS_BYTES,
        AT_STATS = AT_DS + 2 * DS_BYTES,
        AT_SEEN = AT_STATS + STAGES * STATS * 4, /* a key: the first and last query that see it */
        AT_BARRIERS = AT_SEEN + BN * 8,
        AT_FACTS = AT_BARRIERS + 80,
        AT_WORK_TILE = AT_FACTS + 16,
        BYTES = AT_WORK_TILE + 2 * (int)sizeof(attn_work_tile)
    };
    static_assert(BYTES <= (int)STW_SM90_SMEM(HD_), "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_WORK_TILE % 16 == 0, "places that bulk copies write");
    /* For attn_epilogue_store: a wave has 16 keys, all columns. */
    struct key_split {
        enum { MT = 1, NT = HD / LEAF_MMA_N };
        DEV_FN int row0(int wave) { return 16 * wave; }
        DEV_FN int col0(int) { return 0; }
    };
    typedef dev_tile<T, BN, HD> keys;
};

#include "attn_bwd_sm90_scheduler.h"
#include "attn_bwd_sm90_epilogue.h"

/* Where 16 columns from `k` on start, for an operand along: work tiles behind the tile's start. */
DEV_FN constexpr uint32_t sm90_along(int k, int rows) { return (uint32_t)(k / 64 * (rows * 8) + k % 64 / 16 * 2); }

#define SM90_NOTHING_DUE 0xFFFFFFFFu

template <bool YES> struct sm90_flag {
    enum { yes = YES };
};

/* Deterministic mode, one lane: waits until the key block before this one has added to block `at` of queries. With
 * wrong cu_seqlens there may be no order: status_out tells. */
DEV_FN void sm90_await_dq_semaphore(const stw_attn_launch &l, uint32_t at, int block) {
    while (dev_load_acquire(l.dq_semaphore + at) != (uint32_t)block + 1 && !*l.unordered) {
    }
}

template <class C, bool ORDERED>
DEV_FN void attn_bwd_sm90(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem) {
    typedef typename C::T T;
    typedef sm90_mma<T> mma;
    typedef sm90_loader<C, ORDERED> loader;
    enum { BM = C::BM, HD = C::HD, VALUES = BM / 2, PIECES = BM / 8, SUBNORMAL = !dev_is_f16<T>::yes };
    const stw_attn_params &p = l.p;
    const int wave = (int)dev_wave(), thread = (int)dev_thread(), lane = (int)dev_lane();
    const uint32_t base = sm90_address(smem), barriers = base + C::AT_BARRIERS;
    attn_work_tile *const work_tiles = (attn_work_tile *)(void *)(smem + C::AT_WORK_TILE);
    uint32_t *const drawn = (uint32_t *)(void *)(smem + C::AT_BARRIERS + 72); /* the first wave's */
    sm90_facts *const facts = (sm90_facts *)(void *)(smem + C::AT_FACTS);
    dev_await_previous();
    if (wave == 0 && sm90_elect()) {
        DEV_UNROLL_FOR (int i = 0; i < 9; ++i) sm90_barrier_init(barriers + 8 * i, 1);
        sm90_barriers_ready();
        *drawn = SM90_UNDRAWN;
        loader::fetch(l, loader::begin_with(l), work_tiles[0], barriers + SM90_WORK_TILE);
    }
    dev_barrier();
    sm90_barrier_wait(barriers + SM90_WORK_TILE, 0);
    if (!dev_uniform(work_tiles[0].live)) return;
    if (wave == 1 && sm90_elect()) sm90_facts::find(*facts, work_tiles[0], p);
    if (wave == 0) {
        if (sm90_elect()) {
            loader::keys(work_tiles[0], l, maps.k, base + C::AT_K, barriers + SM90_K);
            loader::keys(work_tiles[0], l, maps.v, base + C::AT_V, barriers + SM90_V);
        }
        loader::first_rows(work_tiles[0], 0, l, maps, base, 0);
        loader::first_rows(work_tiles[0], 1, l, maps, base, 1);
    }
    dev_barrier();

    const int half = wave / 4, warp = wave % 4; /* the warpgroup and the wave in it */
    float dk[HD / 2], dv[HD / 2], s[VALUES], dp[VALUES], dq[32];
    uint32_t p16[BM / 4], ds16[BM / 4];
    /* dS: row (lane / 16) * 8 + lane % 8 of 16 queries, keys of this wave in the panel of its warpgroup */
    const uint32_t ds_to = base + C::AT_DS + half * BM * 128 + ((lane / 16) * 8 + lane % 8) * 128 +
                           (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16);

    auto scores = [&](uint32_t at0, int work_tile, int stage) {
        const uint32_t k_rows = at0 + C::AT_K / 16 + half * 512 + work_tile * (C::KEYS_BYTES / 16),
                       q = at0 + C::AT_Q / 16 + stage * (C::ROWS_BYTES / 16);
        sm90_products_begin();
        DEV_UNROLL_FOR (int k = 0; k < HD; k += 16)
            mma::template both<0>(s, sm90_operand(k_rows + sm90_along(k, C::BN), 1),
                                  sm90_operand(q + sm90_along(k, BM), 1), k > 0);
        sm90_products_commit();
    };
    /* This thread's statistics of a stage: of the queries 8 i + 2 (lane % 4) and the next. `which`: 0 LSE, 1 D. Asked
     * for ahead of the wait for the product that they meet, into registers that are free then. */
    auto statistics = [&](float2(&x)[PIECES], int stage, int which, int first, int end) {
        const float *from =
            (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + which * BM + lane % 4 * 2;
        DEV_UNROLL_FOR (int i = first; i < end; ++i) x[i] = *(const float2 *)(const void *)(from + 8 * i);
    };
    /* S -> P in place. */
    auto exponentials = [&](const float2(&lse)[PIECES]) {
        DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
            s[4 * i] = dev_exp2_fast(fmaf(s[4 * i], maps.factor, lse[i].x));
            s[4 * i + 1] = dev_exp2_fast(fmaf(s[4 * i + 1], maps.factor, lse[i].y));
            s[4 * i + 2] = dev_exp2_fast(fmaf(s[4 * i + 2], maps.factor, lse[i].x));
            s[4 * i + 3] = dev_exp2_fast(fmaf(s[4 * i + 3], maps.factor, lse[i].y));
        }
    };
    /* What is special about the next step, in one word that is the same for all threads. */
    enum {
        DEAD = 1,
        EXACT_SUMS = 2,
        HIDES = 4
    }; /* rows with an infinite LSE; all of dO and D, or of K or V, subnormal; pairs to hide */
    auto marks = [&](int stage, bool plain, uint32_t of_work_tile) {
        uint2 m = sm90_peek(base + C::AT_STATS + (stage * C::STATS + 2 * BM) * 4);
        return (uint32_t)dev_uniform((int)((m.x ? (uint32_t)DEAD : 0u) |
                                           (SUBNORMAL && m.y ? (uint32_t)EXACT_SUMS : 0u) |
                                           (plain ? 0u : (uint32_t)HIDES) | of_work_tile));
    };
    /* All of K or all of V is subnormal. Ordinary data: the first look shows that they are not. */
    auto keys_are_subnormal = [&](int which) {
        const char *const keys = smem + C::AT_K + which * C::KEYS_BYTES, *const values = smem + C::AT_V;
        if (sm90_first_count<C>(keys, sm90_lane()) && sm90_first_count<C>(values, sm90_lane()))
            return false; /* the same answer for every wave */
        bool k = sm90_keys_count<C>(keys, sm90_thread()), v = sm90_keys_count<C>(values, sm90_thread());
        k = dev_uniform(__syncthreads_or(k)) != 0;
        v = dev_uniform(__syncthreads_or(v)) != 0;
        return !k || !v;
    };
    /* Rows of a stage, when they have arrived, and no product is under way. */
    auto clear_rows = [&](const attn_work_tile &u, const sm90_scheduler &scheduler, int stage, int phase) {
        sm90_barrier_wait(barriers + SM90_DOUT + 8 * stage, phase);
        sm90_products_wait<0>();
        sm90_clear_queries<C>(u, smem, stage, scheduler.block, sm90_thread());
        sm90_block_sync();
    };

    /* dQ where every term may be subnormal (attn_bwd_subnormal.h), by way of dS's place, which saves registers
     * elsewhere. */
    auto add_exact = [&](float *to, int place) {
        float *mine = (float *)(void *)(smem + place) + sm90_thread() * 16;
        sm90_block_sync(); /* nobody multiplies that dS any more */
        DEV_UNROLL_FOR (int part = 0; part < 2; ++part) {
            DEV_UNROLL_FOR (int i = 0; i < 16; ++i) mine[i] = dq[16 * part + i];
            DEV_ROLLED_FOR (int i = 0; i < 16; ++i)
                sm90_add_exact(to + (4 * part + i / 4) * (C::THREADS * 4) + i % 4, mine[i]);
        }
    };

    /* This wave's rows of dV or dK, by way of the place of dS that nobody multiplies: the warpgroup's panel of it. */
    auto store = [&](const attn_work_tile &u, const float(&x)[HD / 2], const stw_tensor_param &to, uint32_t vectors,
                     uint32_t cols, float scale, uint32_t place) {
        sm90_epilogue_store<C>(u, x, to, p.dtype, (l.vectors & vectors) != 0, (int)cols, scale,
                               smem + C::AT_DS + place * C::DS_BYTES + half * BM * 128 + warp * 2048, wave,
                               sm90_lane());
    };

    int turn = 0, stage = 0, phase = 0; /* the unit; the current step's place of rows */
    uint32_t special;
    /* P = 0 for pairs that a mask hides and for rows with an infinite LSE, whatever came out for them. Rare: what is
     * derived from the lane is not kept over the loop. */
    auto select = [&](const sm90_scheduler &scheduler, int stage) {
        const int here = sm90_lane(), row = 16 * wave + here / 4, i0 = scheduler.block * BM + here % 4 * 2;
        if (special & HIDES) {
            const int *seen = (const int *)(const void *)(smem + C::AT_SEEN) + 2 * row;
            int2 a = *(const int2 *)(const void *)seen, b = *(const int2 *)(const void *)(seen + 16);
            a.x -= i0, a.y -= i0, b.x -= i0, b.y -= i0;
            if (sm90_scheduler::is_idle(scheduler, work_tiles[turn & 1], l)) a.y = b.y = -1;
            DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
                if (8 * i < a.x || 8 * i > a.y) s[4 * i] = 0.0f;
                if (8 * i + 1 < a.x || 8 * i + 1 > a.y) s[4 * i + 1] = 0.0f;
                if (8 * i < b.x || 8 * i > b.y) s[4 * i + 2] = 0.0f;
                if (8 * i + 1 < b.x || 8 * i + 1 > b.y) s[4 * i + 3] = 0.0f;
            }
        }
        if (special & DEAD) {
            const float *lse = (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + here % 4 * 2;
            DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
                if (lse[8 * i] == -dev_infinity()) s[4 * i] = s[4 * i + 2] = 0.0f;
                if (lse[8 * i + 1] == -dev_infinity()) s[4 * i + 1] = s[4 * i + 3] = 0.0f;
            }
        }
    };
    uint32_t flip = 0;
    sm90_scheduler scheduler = sm90_scheduler::begin(work_tiles[0], l);
    int plain_first, plain_end;
    /* ORDERED: the block of queries to which the step before has added, and nobody knows; who added last to the next
     * step's, when KEEPER looked. */
    uint32_t due = SM90_NOTHING_DUE, last_there = 0;
    enum { KEEPER = 5 }; /* not of the first warpgroup, whose first waves have the loads and the units */
    /* All additions to `due` came before the barrier of the block that this wave has been through. */
    auto pass_turn = [&](const attn_work_tile &u) {
        if (!sm90_elect()) return;
        sm90_fence_memory();
        if (due != SM90_NOTHING_DUE) sm90_store_relaxed(l.dq_semaphore + due, (uint32_t)u.block);
    };
    /* What every thread takes from the facts. */
    auto enter = [&](const attn_work_tile &u) {
        plain_first = dev_uniform(facts->first);
        plain_end = dev_uniform(facts->end);
        if (!dev_uniform(facts->plain)) sm90_list_seen(u, (int *)(void *)(smem + C::AT_SEEN), wave, sm90_lane());
    };
    auto clears_keys = [&]() { return dev_uniform(facts->clears_keys) != 0; };
    auto is_plain = [&]() { return scheduler.block >= plain_first && scheduler.block < plain_end; };
    enter(work_tiles[0]);
    sm90_barrier_wait(barriers + SM90_K, 0);
    sm90_barrier_wait(barriers + SM90_V, 0);
    if (clears_keys()) {
        sm90_clear_keys<C>(work_tiles[0], smem + C::AT_K, thread);
        sm90_clear_keys<C>(work_tiles[0], smem + C::AT_V, thread);
        sm90_block_sync();
    }
    uint32_t of_work_tile = SUBNORMAL && keys_are_subnormal(0) ? (uint32_t)EXACT_SUMS : 0u;
    sm90_barrier_wait(barriers + SM90_Q, 0);
    sm90_barrier_wait(barriers + SM90_DOUT, 0);
    if (!is_plain() && sm90_facts::clears(work_tiles[0], p, scheduler)) clear_rows(work_tiles[0], scheduler, 0, 0);
    scores(base >> 4, 0, 0);
    special = marks(0, is_plain(), of_work_tile);
    sm90_products_wait<0>();
    sm90_pin(s);
    float2 lse[PIECES];
    statistics(lse, 0, 0, 0, PIECES);
    exponentials(lse);
    if (special & (HIDES | DEAD)) select(scheduler, 0);

    /* One step. LAST of its work tile: S(j+1) is the next work tile's, if there is one. EXACT: terms of dQ may all be
     * subnormal. Says whether there is a next step. */
    auto step = [&](auto is_last, auto is_exact) {
        enum { LAST = decltype(is_last)::yes, EXACT = decltype(is_exact)::yes };
        const int stage_next = stage == C::STAGES - 1 ? 0 : stage + 1,
                  phase_next = stage == C::STAGES - 1 ? phase ^ 1 : phase;
        /* operands, in units: computed anew in each step, or they would take registers that are not there */
        const uint32_t at0 = (uint32_t)dev_keep((int)(base >> 4)), v_rows = at0 + C::AT_V / 16 + half * 512;
        const uint32_t q = at0 + C::AT_Q / 16 + stage * (C::ROWS_BYTES / 16),
                       dout = at0 + C::AT_DOUT / 16 + stage * (C::ROWS_BYTES / 16);
        const uint32_t ds_rows = at0 + C::AT_DS / 16 + (BM == 128 ? half * 512 : 0) + flip * (C::DS_BYTES / 16);
        const uint32_t k_across = at0 + C::AT_K / 16 + (BM == 64 ? half * 1024 : 0) + (turn & 1) * (C::KEYS_BYTES / 16);
        const uint32_t at = scheduler.at;
        const attn_work_tile &u = work_tiles[turn & 1];
        attn_work_tile &next = work_tiles[(turn & 1) ^ 1];
        /* 1 */
        sm90_products_begin();
        DEV_UNROLL_FOR (int k = 0; k < HD; k += 16)
            mma::template both<0>(dp, sm90_operand(v_rows + sm90_along(k, C::BN), 1),
                                  sm90_operand(dout + sm90_along(k, BM), 1), k > 0);
        sm90_products_commit();
        DEV_UNROLL_FOR (int i = 0; i < BM / 4; ++i) p16[i] = dev_pack(T(), s[2 * i], s[2 * i + 1]);
        sm90_products_begin();
        DEV_UNROLL_FOR (int k = 0; k < BM / 16; ++k) mma::held(dv, p16 + 4 * k, sm90_operand(dout + k * 128, BM * 8));
        sm90_products_commit();
        if (LAST && wave == 1 && sm90_elect()) { /* while the products run */
            sm90_barrier_wait(barriers + SM90_WORK_TILE, (turn + 1) & 1);
            if (next.live) sm90_facts::find(*facts, next, p);
        }
        const bool adds = !ORDERED || scheduler.left > scheduler.idle;
        if (ORDERED && wave == KEEPER && adds && sm90_elect() && last_there != (uint32_t)u.block + 1)
            sm90_await_dq_semaphore(l, at, u.block);
        float2 delta[PIECES];
        statistics(delta, stage, 1, 0, C::DELTA_AHEAD);
        /* 2 */
        sm90_products_wait<1>();
        sm90_pin(dp);
        statistics(delta, stage, 1, C::DELTA_AHEAD, PIECES);
        if (special & (HIDES | DEAD)) {
            DEV_UNROLL_FOR (int i = 0; i < VALUES; ++i) dp[i] = s[i] != 0.0f ? dp[i] : 0.0f;
        }
        DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
            const float2 d = delta[i];
            ds16[2 * i] = dev_pack(T(), s[4 * i] * (dp[4 * i] + d.x), s[4 * i + 1] * (dp[4 * i + 1] + d.y));
            ds16[2 * i + 1] = dev_pack(T(), s[4 * i + 2] * (dp[4 * i + 2] + d.x), s[4 * i + 3] * (dp[4 * i + 3] + d.y));
        }
        DEV_UNROLL_FOR (int i = 0; i < BM / 16; ++i)
            sm90_store_transposed(ds_to + flip * C::DS_BYTES + i * 2048, ds16 + 4 * i);
        sm90_fence_shared();
        sm90_block_sync();
        /* 3 */
        const int stage_before = stage == 0 ? C::STAGES - 1 : stage - 1;
        bool follows = true;
        if (LAST) {
            sm90_barrier_wait(barriers + SM90_WORK_TILE, (turn + 1) & 1);
            follows = dev_uniform(next.live) != 0;
            if (wave == 0 && follows) {
                loader::first_rows(next, 1, l, maps, base, stage_before);
                if (sm90_elect()) loader::keys(next, l, maps.v, base + C::AT_V, barriers + SM90_V);
            }
        } else if (wave == 0) {
            if (scheduler.left > 2) {
                sm90_scheduler two = scheduler;
                sm90_scheduler::next(two);
                sm90_scheduler::next(two);
                if (sm90_elect()) loader::rows(u, two, l, maps, base, stage_before, false);
                if (scheduler.left <= 4 && sm90_elect()) {
                    if (scheduler.left == 4) *drawn = loader::draw(l);
                    else loader::fetch_drawn(l, drawn, next, barriers + SM90_WORK_TILE);
                }
            } else {
                if (sm90_elect()) {
                    loader::fetch_drawn(l, drawn, next, barriers + SM90_WORK_TILE);
                    *drawn = SM90_UNDRAWN;
                }
                sm90_barrier_wait(barriers + SM90_WORK_TILE, (turn + 1) & 1);
                __syncwarp();
                if (dev_uniform(next.live)) {
                    if (sm90_elect())
                        loader::keys(next, l, maps.k, base + C::AT_K + ((turn & 1) ^ 1) * C::KEYS_BYTES,
                                     barriers + SM90_K);
                    loader::first_rows(next, 0, l, maps, base, stage_before);
                }
            }
        }
        /* 4 */
        sm90_scheduler::next(scheduler);
        if (LAST) {
            ++turn;
            if (follows) {
                scheduler = sm90_scheduler::begin(next, l);
                enter(next);
                sm90_barrier_wait(barriers + SM90_K, turn & 1);
                if (clears_keys()) {
                    sm90_products_wait<0>();
                    sm90_clear_keys<C>(next, smem + C::AT_K + (turn & 1) * C::KEYS_BYTES, sm90_thread());
                    sm90_block_sync();
                }
            }
        }
        if (follows) {
            sm90_barrier_wait(barriers + SM90_Q + 8 * stage_next, phase_next);
            if (!is_plain() && sm90_facts::clears(work_tiles[turn & 1], p, scheduler))
                clear_rows(work_tiles[turn & 1], scheduler, stage_next, phase_next);
        }
        sm90_products_wait<0>();
        scores(at0, turn & 1, stage_next);
        sm90_products_begin();
        DEV_UNROLL_FOR (int k = 0; k < C::BN / 16; ++k)
            mma::template both<1>(dq, sm90_operand(ds_rows + sm90_along(16 * k, BM), 1),
                                  sm90_operand(k_across + k * 128, 1), k > 0);
        sm90_products_commit();
        DEV_UNROLL_FOR (int k = 0; k < BM / 16; ++k) mma::held(dk, ds16 + 4 * k, sm90_operand(q + k * 128, BM * 8));
        sm90_products_commit();
        if (ORDERED) {
            if (wave == KEEPER) {
                if (follows) last_there = sm90_load_relaxed(l.dq_semaphore + scheduler.at);
                pass_turn(u);
            }
            due = adds ? at : SM90_NOTHING_DUE;
        }
        if (LAST && C::VALUES_EARLY) {
            sm90_pin(dv); /* complete since the wait before S; stored while the products run */
            store(u, dv, p.dv, STW_VECTOR_DV, p.head_dim_v, 1.0f, flip ^ 1);
        }
        /* 5 */
        /* this thread's sums of dQ: the postprocess kernel has BM / 16 waves over the rows, the columns change fastest
         * */
        float *const to =
            l.dq + (int64_t)at * (BM * C::WIDTH) + ((BM == 64 ? warp * 2 + half : wave) * DEV_WAVE + lane) * 4;
        float2 lse[PIECES];
        const uint32_t of_step =
            LAST && ORDERED ? 0u : of_work_tile; /* the next work tile's keys are looked at later */
        statistics(lse, stage_next, 0, 0, C::LSE_AHEAD);
        sm90_products_wait<2>();
        sm90_pin(s);
        if (!C::MARKS_LATE) special = marks(stage_next, is_plain(), of_step);
        statistics(lse, stage_next, 0, C::LSE_AHEAD, PIECES);
        exponentials(lse);
        if (C::MARKS_LATE) special = marks(stage_next, is_plain(), of_step);
        sm90_products_wait<1>();
        sm90_pin(dq);
        if (!EXACT) {
            DEV_UNROLL_FOR (int i = 0; i < 8; ++i)
                if (HD != 96 || i < 4 || half == 0) {
                    if (ORDERED) sm90_add_four_if(adds, to + i * (C::THREADS * 4), dq + 4 * i);
                    else sm90_add_four(to + i * (C::THREADS * 4), dq + 4 * i);
                }
        }
        if (special & (HIDES | DEAD))
            select(scheduler, stage_next); /* and ptxas may not let the exponentials sink behind this use of them */
        if (follows) sm90_barrier_wait(barriers + SM90_DOUT + 8 * stage_next, phase_next);
        sm90_products_wait<0>();
        sm90_hold(to);
        if (EXACT && adds) add_exact(to, C::AT_DS + flip * C::DS_BYTES);
        stage = stage_next;
        phase = phase_next;
        flip ^= 1;
        return follows;
    };
    for (;;) {
        DEV_UNROLL_FOR (int i = 0; i < HD / 2; ++i) dk[i] = dv[i] = 0.0f;
        bool follows;
        auto exact = [&]() { return SUBNORMAL && (special & EXACT_SUMS); };
        while (scheduler.left > 1) {
            DEV_ROLLED while (scheduler.left > 1 && !exact()) step(sm90_flag<false>(), sm90_flag<false>());
            DEV_ROLLED while (scheduler.left > 1 && exact()) step(sm90_flag<false>(), sm90_flag<SUBNORMAL>());
        }
        if (exact()) follows = step(sm90_flag<true>(), sm90_flag<SUBNORMAL>());
        else follows = step(sm90_flag<true>(), sm90_flag<false>());
        sm90_pin(dk);
        const attn_work_tile &u = work_tiles[(turn & 1) ^ 1];
        /* nothing is due when another work tile's turn is awaited, or work tiles would wait for one another */
        if (ORDERED) {
            sm90_block_sync();
            if (wave == KEEPER) pass_turn(u);
            due = SM90_NOTHING_DUE;
        }
        if (!C::VALUES_EARLY) {
            sm90_pin(dv);
            store(u, dv, p.dv, STW_VECTOR_DV, p.head_dim_v, 1.0f, flip);
        }
        store(u, dk, p.dk, STW_VECTOR_DK, p.head_dim_qk, p.scale, flip);
        sm90_group_sync(half); /* the warpgroup's next dS goes where its waves had their rows */
        if (!follows) {
            dev_let_next_begin();
            return;
        }
        attn_work_tile &next = work_tiles[turn & 1];
        sm90_barrier_wait(barriers + SM90_V, turn & 1);
        if (clears_keys()) {
            sm90_clear_keys<C>(next, smem + C::AT_V, sm90_thread());
            sm90_block_sync();
        }
        if (SUBNORMAL) {
            of_work_tile = keys_are_subnormal(turn & 1) ? (uint32_t)EXACT_SUMS : 0u;
            special |= of_work_tile; /* what the former work tile left there is as right, and slower for a step */
        }
    }
}

#endif
