/* SPDX-License-Identifier: MIT
 *
 * sm90's main loop for head_dim to 64 without features, with warps that feed it: a third warpgroup has the loads, the
 * work tiles and the additions to dQ, so that the two that multiply do nothing else. Their step is that of
 * attn_bwd_sm90.h, 128 queries and 128 keys, all held transposed:
 *   1  begin dP(j); half of P to 16 bits; begin half of dV(j)
 *   2  wait for dP; half of dS = P (dP - delta) to 16 bits; begin the other half of dV(j); the other half of dS; dS to
 *      shared memory, an mbarrier tells the other warpgroup                                          (dV runs)
 *   3  wait for dV; begin S(j+1); wait for the other's dS; begin dQ(j), dK(j)
 *   4  wait for S; P(j+1) = 2^(S c - LSE c); wait for dQ, which goes to its place; wait for dK        (dQ, dK run)
 * Halves, since 224 registers of operands did not fit into 240.
 *
 * In no row of common/tuning/attn_bwd.sm90.def: faster than attn_bwd_sm90.h to 1024 rows, slower from 4096
 * (docs/performance/appendix/sm90.md).
 *
 * The third warpgroup: one lane of FEEDER draws work tiles and asks for K, V, Q and dO as places become empty, and
 * says beside each stage what is special about its step; a warp, SCOUT, finds out what is special about a work tile
 * before it is begun; a warp, ADDER, adds dQ from its place to the sums, one instruction a step, in deterministic mode
 * in the order of the semaphores. */
#ifndef STW_CUDA_ATTN_BWD_SM90_FED_H
#define STW_CUDA_ATTN_BWD_SM90_FED_H

#include "attn_bwd_sm90.h"
#include "attn_bwd_sm90_wide_loads.h"

template <class T_> struct sm90_fed_config {
    typedef T_ T;
    enum {
        HD = 64,
        BM = 128,
        BN = 128,
        STAGES = 3, /* of Q and statistics */
        DOUT_STAGES = 2,
        WARPS = 8, /* that multiply */
        THREADS = 256,
        REGISTERS = 240, /* a thread's of those that multiply */
        FEEDER = WARPS,
        ADDER,
        SCOUT,
        PANELS = 1,
        WIDTH = 64
    };
    enum {
        ROWS_BYTES = BM * 128,
        KEYS_BYTES = BN * 128,
        DS_BYTES = BM * BN * 2,
        DQ_BYTES = BM * HD * 4,
        SEEN_BYTES = BN * 8,
        STATS = 2 * BM + (int)STW_STATS_PAD
    };
    enum {
        AT_K = 0, /* two places, for this work tile and the next; as of V */
        AT_V = AT_K + 2 * KEYS_BYTES,
        AT_Q = AT_V + 2 * KEYS_BYTES,
        AT_DOUT = AT_Q + STAGES * ROWS_BYTES,
        AT_DS = AT_DOUT + DOUT_STAGES * ROWS_BYTES,
        AT_DQ = AT_DS + DS_BYTES,
        AT_STATS = AT_DQ + DQ_BYTES,
        AT_SEEN = AT_STATS + STAGES * STATS * 4, /* two places; a key: the first and last query that see it */
        AT_STEPS = AT_SEEN + 2 * SEEN_BYTES,     /* a stage: flags of the step, its query block */
        AT_ABOUT = AT_STEPS + STAGES * 16,       /* a work tile: SM90_EXACT_DQ or 0, whether rows may be zeroed */
        AT_MASKING = AT_ABOUT + 2 * 8,           /* of this work tile and the next, for the feeder */
        AT_EXACT = AT_MASKING + 2 * 16,          /* dQ in its place: added one by one */
        AT_BARRIERS = AT_EXACT + 16,
        AT_TILES = AT_BARRIERS + 208,
        BYTES = AT_TILES + 2 * (int)sizeof(attn_work_tile)
    };
    static_assert(sizeof(sm90_tile_masking) == 16, "its place");
    static_assert(BYTES <= (int)STW_SM90_FED_SMEM, "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_TILES % 16 == 0 && AT_STEPS % 16 == 0, "places that bulk copies write");
    struct key_split {
        enum { MT = 1, NT = HD / LEAF_MMA_N };
        DEV_FN int row0(int wave) { return 16 * wave; }
        DEV_FN int col0(int) { return 0; }
    };
    typedef dev_tile<T, BN, HD> keys;
};

/* Bits of a step's flags beside SM90_MASKED: it is the last of its work tile; some of its rows take part in nothing. */
enum { SM90_FED_LAST = 8, SM90_FED_ZEROES = 16 };

/* The mbarriers. A place is full when its bytes have come, empty when all warps that read it have arrived. `tile`: the
 * key block of a work tile has come; `ready`: all that is known of it stands in its place. */
template <class C> struct sm90_fed_barriers {
    uint32_t base;

    DEV_METHOD sm90_mbarrier q_full(int stage) const { return sm90_mbarrier{base + 8 * stage}; }
    DEV_METHOD sm90_mbarrier q_empty(int stage) const { return sm90_mbarrier{base + 24 + 8 * stage}; }
    DEV_METHOD sm90_mbarrier dout_full(int stage) const { return sm90_mbarrier{base + 48 + 8 * stage}; }
    DEV_METHOD sm90_mbarrier dout_empty(int stage) const { return sm90_mbarrier{base + 64 + 8 * stage}; }
    DEV_METHOD sm90_mbarrier keys_full(int place) const { return sm90_mbarrier{base + 80 + 8 * place}; }
    DEV_METHOD sm90_mbarrier keys_empty(int place) const { return sm90_mbarrier{base + 96 + 8 * place}; }
    DEV_METHOD sm90_mbarrier tile(int place) const { return sm90_mbarrier{base + 112 + 8 * place}; }
    DEV_METHOD sm90_mbarrier ready(int place) const { return sm90_mbarrier{base + 128 + 8 * place}; }
    DEV_METHOD sm90_mbarrier tile_empty(int place) const { return sm90_mbarrier{base + 144 + 8 * place}; }
    DEV_METHOD sm90_mbarrier dq_full() const { return sm90_mbarrier{base + 160}; }
    DEV_METHOD sm90_mbarrier dq_empty() const { return sm90_mbarrier{base + 168}; }
    DEV_METHOD sm90_mbarrier ds_empty() const { return sm90_mbarrier{base + 176}; }
    DEV_METHOD sm90_mbarrier ds_full() const { return sm90_mbarrier{base + 200}; }
    /* By one thread. */
    DEV_METHOD void init() const {
        DEV_UNROLL_FOR (int i = 0; i < C::STAGES; ++i) {
            q_full(i).init(1);
            q_empty(i).init(C::WARPS);
        }
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) {
            dout_full(i).init(1);
            dout_empty(i).init(C::WARPS);
            keys_full(i).init(1);
            keys_empty(i).init(C::WARPS);
            tile(i).init(1);
            ready(i).init(1);
            tile_empty(i).init(C::WARPS + 1);
        }
        dq_full().init(C::WARPS);
        dq_empty().init(1);
        ds_empty().init(C::WARPS);
        ds_full().init(C::WARPS);
        sm90_fence_mbarrier_init();
    }
};

/* One thread: all work tiles of this CTA, and their loads. A work tile that no query sees has a step of zeros. What is
 * known of a work tile is read anew in each step: this thread has 24 registers. */
template <class C, bool ORDERED>
DEV_FN void sm90_fed_load(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem, attn_work_tile *tiles) {
    const uint32_t base = sm90_shared_address(smem);
    const sm90_fed_barriers<C> barriers = {base + C::AT_BARRIERS};
    const stw_attn_params &p = l.p;
    int stage = 0, phase = 0, turn = 0;
    uint32_t steps = 0;
    auto fetch = [&](bool first) {
        const sm90_scheduler<ORDERED> scheduler = {l, NULL, barriers.tile(turn & 1)};
        barriers.tile_empty(turn & 1).wait((turn / 2 & 1) ^ 1);
        scheduler.fetch(first ? scheduler.first_number() : scheduler.draw(), tiles[turn & 1]);
    };
    fetch(true);
    DEV_ROLLED for (;;) {
        const attn_work_tile &tile = tiles[turn & 1];
        sm90_tile_masking &masking = *(sm90_tile_masking *)(void *)(smem + C::AT_MASKING + (turn & 1) * 16);
        barriers.tile(turn & 1).wait(turn / 2 & 1);
        if (!tile.live) return;
        masking.find(tile, p);
        barriers.keys_empty(turn & 1).wait((turn / 2 & 1) ^ 1);
        {
            const sm90_mbarrier keys = barriers.keys_full(turn & 1);
            const int batch = p.features & STW_FEAT_PACKED_KV ? 0 : (int)tile.b;
            const int key = (int)(tile.seq.kv.first + tile.j0);
            const uint32_t to = base + C::AT_K + (turn & 1) * C::KEYS_BYTES;
            keys.expect(2 * C::KEYS_BYTES);
            sm90_loads<C>::panels(to, maps.k, key, tile.kv_head, batch, C::BN, keys);
            sm90_loads<C>::panels(to + (C::AT_V - C::AT_K), maps.v, key, tile.kv_head, batch, C::BN, keys);
        }
        ++turn;
        sm90_wide_iterator it = sm90_wide_iterator::begin(tile, l);
        int block = it.block, head = it.head, left = max(it.left, 1);
        uint32_t at = it.at;
        bool fetched = false;
        DEV_ROLLED for (;;) {
            const bool idle = tile.end <= tile.first, packed = (p.features & STW_FEAT_PACKED_Q) != 0;
            /* behind the tensor's last row TMA finds zeros */
            const int row = idle ? (int)(packed ? p.total_q : p.max_seq_q) : (int)tile.seq.q.first + block * C::BM;
            const int batch = packed ? 0 : (int)tile.b;
            barriers.q_empty(stage).wait(phase ^ 1);
            {
                uint32_t *const step = (uint32_t *)(void *)(smem + C::AT_STEPS + stage * 16);
                const bool zeroes = !idle && (block < tile.whole_first || block >= tile.whole_end) &&
                                    !sm90_tile_masking::ends_with_tensor(tile, p);
                step[0] = (!idle && block >= masking.first && block < masking.end ? 0u : (uint32_t)SM90_MASKED) |
                          (left == 1 ? (uint32_t)SM90_FED_LAST : 0u) | (zeroes ? (uint32_t)SM90_FED_ZEROES : 0u);
                step[1] = (uint32_t)block;
                const sm90_mbarrier q = barriers.q_full(stage);
                const uint32_t stats = base + C::AT_STATS + stage * (C::STATS * 4);
                if (idle) {
                    DEV_ROLLED_FOR (int i = 0; i < C::STATS * 4; i += 16) sm90_zero_vector_if(true, stats + i);
                    q.expect(C::ROWS_BYTES);
                } else {
                    q.expect(C::ROWS_BYTES + C::STATS * 4);
                    sm90_bulk_load(stats, l.stats + (int64_t)at * C::STATS, C::STATS * 4, q);
                }
                sm90_loads<C>::panels(base + C::AT_Q + stage * C::ROWS_BYTES, maps.q, row, head, batch, C::BM, q);
            }
            barriers.dout_empty(steps & 1).wait((steps / 2 & 1) ^ 1);
            barriers.dout_full(steps & 1).expect(C::ROWS_BYTES);
            sm90_loads<C>::panels(base + C::AT_DOUT + (steps & 1) * C::ROWS_BYTES, maps.dout, row, head, batch, C::BM,
                                  barriers.dout_full(steps & 1));
            ++steps;
            phase ^= stage == C::STAGES - 1;
            stage = stage == C::STAGES - 1 ? 0 : stage + 1;
            /* behind the loads of a step: its place may be that of the work tile before, which needs them to end */
            if (left <= 2 && !fetched) {
                fetch(false);
                fetched = true;
            }
            if (--left == 0) break;
            const bool over = block + 1 == tile.end;
            at += over ? (uint32_t)((int)l.q_blocks + 1 - (tile.end - tile.first)) : 1u;
            block = over ? tile.first : block + 1;
            head += over;
        }
    }
}

/* A warp: what is special about a work tile, before the others begin it. */
template <class C> DEV_FN void sm90_fed_scout(const stw_attn_launch &l, char *smem, const attn_work_tile *tiles) {
    enum { SUBNORMAL = !dev_is_f16<typename C::T>::yes };
    const sm90_fed_barriers<C> barriers = {sm90_shared_address(smem) + C::AT_BARRIERS};
    const int lane = (int)dev_lane();
    DEV_ROLLED for (sm90_ring<2> at = {0, 0};; at.next()) {
        const attn_work_tile &tile = tiles[at.place];
        barriers.tile(at.place).wait(at.parity);
        const bool live = dev_uniform(tile.live) != 0;
        if (live) {
            char *const keys = smem + C::AT_K + at.place * C::KEYS_BYTES, *const values =
                                                                              smem + C::AT_V + at.place * C::KEYS_BYTES;
            int *const seen = (int *)(void *)(smem + C::AT_SEEN + at.place * C::SEEN_BYTES);
            const int64_t far = INT64_C(1) << 30;
            const bool idle = tile.end <= tile.first;
            DEV_ROLLED_FOR (int key = lane; key < C::BN; key += DEV_WAVE) {
                const int64_t j = tile.j0 + key;
                int64_t first = stw_larger(j - tile.seq.band.high, tile.seq.q_low);
                const int64_t last = stw_smaller(j - tile.seq.band.low, tile.seq.q_end - 1);
                if (j >= tile.seq.kv.used || idle) first = far;
                seen[2 * key] = (int)stw_clamp_i64(first, -far, far);
                seen[2 * key + 1] = (int)stw_clamp_i64(last, -far, far);
            }
            barriers.keys_full(at.place).wait(at.parity);
            sm90_tile_masking masking;
            masking.find(tile, l.p);
            if (dev_uniform(masking.zeroes_keys)) {
                const stw_range used = stw_visible_keys(&tile.seq);
                const int first = (int)stw_clamp_i64(used.first - tile.j0, 0, C::BN),
                          last = (int)stw_clamp_i64(used.end - tile.j0, 0, C::BN);
                DEV_ROLLED_FOR (int row = lane / 8; row < C::BN; row += 4) {
                    const bool zeroes = row < first || row >= last;
                    sm90_zero_vector_if(zeroes, sm90_shared_address(keys) + row * 128 + lane % 8 * 16);
                    sm90_zero_vector_if(zeroes, sm90_shared_address(values) + row * 128 + lane % 8 * 16);
                }
                sm90_fence_async_shared();
                __syncwarp();
            }
            bool small = false;
            if (SUBNORMAL)
                DEV_ROLLED_FOR (int of = 0; of < 2; ++of) {
                    bool counts = false;
                    DEV_ROLLED for (int i = lane * 16; !__any_sync(0xFFFFFFFFu, counts) && i < C::KEYS_BYTES;
                                    i += DEV_WAVE * 16) counts = sm90_vector_counts<C>((of ? values : keys) + i);
                    small |= !__any_sync(0xFFFFFFFFu, counts);
                }
            uint32_t *const about = (uint32_t *)(void *)(smem + C::AT_ABOUT + at.place * 8);
            if (lane == 0) {
                about[0] = small ? (uint32_t)SM90_EXACT_DQ : 0u;
                about[1] = sm90_tile_masking::ends_with_tensor(tile, l.p) ? 0u : (uint32_t)SM90_FED_ZEROES;
            }
        }
        __syncwarp();
        if (sm90_elect()) barriers.ready(at.place).arrive();
        if (!live) return;
    }
}

/* A warp: adds dQ of all work tiles of this CTA to the sums; deterministic mode as in sm90_wide_reduce. */
template <class C, bool ORDERED>
DEV_FN void sm90_fed_add(const stw_attn_launch &l, const char *smem, const attn_work_tile *tiles) {
    enum { SUMS = C::DQ_BYTES / 4 };
    const sm90_fed_barriers<C> barriers = {sm90_shared_address(smem) + C::AT_BARRIERS};
    const float *const from = (const float *)(const void *)(smem + C::AT_DQ);
    const uint32_t *const exact = (const uint32_t *)(const void *)(smem + C::AT_EXACT);
    int parity = 0;
    DEV_ROLLED for (sm90_ring<2> at = {0, 0};; at.next()) {
        const attn_work_tile &tile = tiles[at.place];
        barriers.ready(at.place).wait(at.parity);
        if (!tile.live) break;
        const uint32_t block = (uint32_t)tile.block;
        sm90_wide_iterator it = sm90_wide_iterator::begin(tile, l);
        const bool idle = !it.left;
        DEV_ROLLED for (int left = max(it.left, 1); left; --left, it.next(), parity ^= 1) {
            uint32_t *const semaphore = l.dq_semaphore + it.at;
            float *const to = l.dq + (int64_t)it.at * (C::BM * C::WIDTH);
            barriers.dq_full().wait(parity);
            if (ORDERED && !idle)
                while (dev_load_acquire(semaphore) != block + 1 && !*l.unordered) {
                }
            __syncwarp();
            if (!idle) {
                if (*exact) {
                    DEV_ROLLED_FOR (int i = (int)dev_lane(); i < SUMS; i += DEV_WAVE) sm90_add_exact(to + i, from[i]);
                    __syncwarp();
                } else if (sm90_elect()) {
                    sm90_bulk_add(to, sm90_shared_address(from), C::DQ_BYTES);
                    sm90_bulk_wait_read();
                }
            }
            __syncwarp();
            if (sm90_elect()) barriers.dq_empty().arrive();
            if (ORDERED && !idle && sm90_elect()) {
                sm90_bulk_wait();
                sm90_fence_gpu();
                sm90_store_relaxed(semaphore, block);
            }
        }
        __syncwarp();
        if (sm90_elect()) barriers.tile_empty(at.place).arrive();
    }
    if (sm90_elect()) sm90_bulk_wait();
}

/* The warpgroups that multiply. */
template <class C>
DEV_FN void sm90_fed_multiply(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem,
                              const attn_work_tile *tiles) {
    typedef typename C::T T;
    enum { BM = C::BM, HD = C::HD, SUBNORMAL = !dev_is_f16<T>::yes, PIECES = BM / 8, VALUES = 4 * PIECES };
    enum { LSE, DELTA };
    const stw_attn_params &p = l.p;
    const int group = dev_uniform((int)dev_wave() / 4);
    const uint32_t base = sm90_shared_address(smem);
    const sm90_fed_barriers<C> barriers = {base + C::AT_BARRIERS};
    float dk[HD / 2], dv[HD / 2], s[VALUES], dp[VALUES], dq[32]; /* all transposed but dQ; s: S, then P */
    uint32_t p16[BM / 4], ds16[BM / 4];
    int stage = 0, phase = 0; /* the step's stage, its mbarriers' parity */
    int done = 0, turn = 0;   /* steps and work tiles before this */
    uint32_t special, of_tile;

    /* What a step needs once is made anew. */
    auto statistics = [&](float2(&x)[PIECES], int stage, int which) {
        sm90_statistics<C>(x, smem, stage, which, sm90_lane_anew(), 0, PIECES);
    };

    auto arrive = [&](sm90_mbarrier barrier) {
        __syncwarp();
        if (sm90_elect()) barrier.arrive();
    };
    auto scores = [&](uint32_t at0, int place,
                      int stage) { /* S^T = K Q^T */
                                   const sm90_operand<T, C::BN, HD> k = {at0 + C::AT_K / 16 + group * 512 +
                                                                         place * (C::KEYS_BYTES / 16)};
                                   const sm90_operand<T, BM, HD> q = {at0 + C::AT_Q / 16 +
                                                                      stage * (C::ROWS_BYTES / 16)};
                                   sm90_mma_fence();
                                   mma_ABt(s, k, q);
    };
    /* What is special about the next step, in one word that is the same for all threads. */
    auto describe = [&](int stage) {
        const uint2 m = sm90_load_shared_words(base + C::AT_STATS + (stage * C::STATS + 2 * BM) * 4),
                    step = sm90_load_shared_words(base + C::AT_STEPS + stage * 16);
        return (uint32_t)dev_uniform((int)((m.x ? (uint32_t)SM90_DEAD_ROWS : 0u) |
                                           (SUBNORMAL && m.y ? (uint32_t)SM90_EXACT_DQ : 0u) | step.x)) |
               of_tile;
    };
    /* A work tile's keys have come, and what is known of it. */
    auto take_tile = [&]() {
        barriers.keys_full(turn & 1).wait(turn / 2 & 1);
        const uint2 about = sm90_load_shared_words(base + C::AT_ABOUT + (turn & 1) * 8);
        of_tile = (uint32_t)dev_uniform((int)((SUBNORMAL ? about.x : 0u) | about.y));
    };
    /* Zeros in rows of the next step that take part in nothing, when they have arrived, and no product is under way. */
    auto zero_rows = [&]() {
        const uint2 step = sm90_load_shared_words(base + C::AT_STEPS + stage * 16);
        if (!dev_uniform((int)(step.x & SM90_FED_ZEROES))) return;
        barriers.dout_full(done & 1).wait(done / 2 & 1);
        sm90_mma_wait<0>();
        const attn_work_tile &tile = tiles[turn & 1];
        const int64_t i0 = (int64_t)(int)step.y * BM, low = tile.seq.q_low - i0, end = tile.seq.q_end - i0;
        sm90_zero_rows<1, BM>(smem + C::AT_Q + stage * C::ROWS_BYTES, low, end, sm90_thread_anew());
        sm90_zero_rows<1, BM>(smem + C::AT_DOUT + (done & 1) * C::ROWS_BYTES, low, end, sm90_thread_anew());
        sm90_fence_async_shared();
        sm90_cta_sync();
    };
    /* P = 0 for pairs that a mask hides and for rows with an infinite LSE, whatever came out for them. */
    auto mask_scores = [&](int stage) {
        const int here = sm90_lane_anew();
        if (special & SM90_MASKED) {
            const int i0 = *(const int *)(const void *)(smem + C::AT_STEPS + stage * 16 + 4) * BM + here % 4 * 2;
            const int *seen = (const int *)(const void *)(smem + C::AT_SEEN + (turn & 1) * C::SEEN_BYTES) +
                              2 * (sm90_thread_anew() / 32 * 16 + here / 4);
            int2 a = *(const int2 *)(const void *)seen, b = *(const int2 *)(const void *)(seen + 16);
            a.x -= i0, a.y -= i0, b.x -= i0, b.y -= i0;
            sm90_mask_hidden(s, a, b, 0.0f);
        }
        if (special & SM90_DEAD_ROWS)
            sm90_mask_dead_rows(s, (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + here % 4 * 2,
                                0.0f);
    };
    /* dQ to its place, in the order of the kernel behind. */
    auto put_dq = [&](bool exact) {
        const uint32_t to = base + C::AT_DQ + sm90_thread_anew() * 16;
        barriers.dq_empty().wait(done & 1);
        DEV_UNROLL_FOR (int i = 0; i < 8; ++i) sm90_store_shared_four(to + i * (C::THREADS * 16), dq + 4 * i);
        sm90_fence_async_shared();
        __syncwarp();
        if (sm90_elect()) {
            if (SUBNORMAL) *(uint32_t *)(void *)(smem + C::AT_EXACT) = exact;
            barriers.dq_full().arrive();
        }
    };
    /* One step. LAST of its work tile: S(j+1) is the next one's, if there is one. Says whether there is a next step. */
    auto step = [&](auto is_last) {
        enum { LAST = decltype(is_last)::yes };
        const int stage_now = stage, dout_stage = done & 1, place = turn & 1;
        const bool exact = SUBNORMAL && (special & SM90_EXACT_DQ) != 0;
        const uint32_t at0 = (uint32_t)dev_keep((int)(base >> 4));
        const sm90_operand<T, C::BN, HD> v = {at0 + C::AT_V / 16 + group * 512 + place * (C::KEYS_BYTES / 16)};
        const sm90_operand<T, BM, HD> q = {at0 + C::AT_Q / 16 + stage_now * (C::ROWS_BYTES / 16)};
        const sm90_operand<T, BM, HD> dout = {at0 + C::AT_DOUT / 16 + dout_stage * (C::ROWS_BYTES / 16)};
        const sm90_operand<T, BM, C::BN> ds = {at0 + C::AT_DS / 16 + group * 512};
        const sm90_operand<T, C::BN, 64, 1> k = {at0 + C::AT_K / 16 + place * (C::KEYS_BYTES / 16)};

        /* 1 */
        sm90_mma_fence();
        mma_ABt(dp, v, dout); /* dP^T = V dO^T */
        auto pack = [&](int half) {
            DEV_UNROLL_FOR (int i = half * (BM / 8); i < (half + 1) * (BM / 8); ++i)
                p16[i] = dev_pack(T(), s[2 * i], s[2 * i + 1]);
            sm90_mma_fence();
        };
        const bool masked = (special & (SM90_MASKED | SM90_DEAD_ROWS)) != 0;
        auto gradients =
            [&](int half) { /* dS = P (dP - delta); as sm90_score_gradients */
                            const float *from = (const float *)(const void *)(smem + C::AT_STATS) +
                                                stage_now * C::STATS + BM + sm90_lane_anew() % 4 * 2;
                            if (masked) {
                                DEV_UNROLL_FOR (int i = half * (VALUES / 2); i < (half + 1) * (VALUES / 2); ++i)
                                    dp[i] = s[i] != 0.0f ? dp[i] : 0.0f;
                            }
                            DEV_UNROLL_FOR (int i = half * (PIECES / 2); i < (half + 1) * (PIECES / 2); ++i) {
                                const float2 d = *(const float2 *)(const void *)(from + 8 * i);
                                ds16[2 * i] =
                                    dev_pack(T(), s[4 * i] * (dp[4 * i] + d.x), s[4 * i + 1] * (dp[4 * i + 1] + d.y));
                                ds16[2 * i + 1] = dev_pack(T(), s[4 * i + 2] * (dp[4 * i + 2] + d.x),
                                                           s[4 * i + 3] * (dp[4 * i + 3] + d.y));
                            }
            };
        pack(0);
        mma_AB_rows<0, BM / 2>(dv, p16, dout); /* dV += P^T dO */

        /* 2 */
        sm90_mma_wait<1>(dp);
        gradients(0);
        pack(1);
        mma_AB_rows<BM / 2, BM>(dv, p16, dout);
        gradients(1);
        barriers.ds_empty().wait(dout_stage ^ 1);
        const int thread = sm90_thread_anew();
        /* row (lane / 16) * 8 + lane % 8 of 16 queries, keys of this warp in the panel of its warpgroup */
        const uint32_t ds_to = base + C::AT_DS + thread / 128 * BM * 128 + (thread % 32 / 16 * 8 + thread % 8) * 128 +
                               (((thread / 32 % 4 * 2 + thread / 8 % 2) ^ (thread % 8)) * 16);
        DEV_UNROLL_FOR (int i = 0; i < BM / 16; ++i) sm90_stmatrix_trans(ds_to + i * 2048, ds16 + 4 * i);
        sm90_fence_async_shared();
        arrive(barriers.ds_full());

        /* 3 */
        phase ^= stage == C::STAGES - 1;
        stage = stage == C::STAGES - 1 ? 0 : stage + 1;
        ++done;
        bool follows = true;
        if (LAST) {
            ++turn;
            barriers.ready(turn & 1).wait(turn / 2 & 1);
            follows = dev_uniform(tiles[turn & 1].live) != 0;
            if (follows) take_tile();
        }
        if (follows) {
            barriers.q_full(stage).wait(phase);
            if (of_tile & SM90_FED_ZEROES) zero_rows();
        }
        sm90_mma_wait<0>(); /* dV */
        scores(at0, turn & 1, stage);
        barriers.ds_full().wait(dout_stage);
        sm90_mma_fence();
        mma_AB(dq, ds, k);   /* dQ = dS K */
        mma_AB(dk, ds16, q); /* dK += dS^T Q */
        arrive(barriers.dout_empty(dout_stage));

        /* 4 */
        float2 lse[PIECES];
        sm90_mma_wait<2>(s);
        special = describe(stage);
        statistics(lse, stage, LSE);
        sm90_exponentials(s, lse, maps.factor);
        sm90_mma_wait<1>(dq);
        arrive(barriers.ds_empty());
        put_dq(exact);
        if (special & (SM90_MASKED | SM90_DEAD_ROWS))
            mask_scores(stage); /* and ptxas may not let the exponentials sink behind this use of them */
        if (follows) barriers.dout_full(done & 1).wait(done / 2 & 1);
        sm90_mma_wait<0>(); /* dK */
        arrive(barriers.q_empty(stage_now));
        if (LAST) arrive(barriers.keys_empty(place));
        return follows;
    };

    /* P of the first step */
    barriers.ready(0).wait(0);
    if (!dev_uniform(tiles[0].live)) return;
    take_tile();
    barriers.q_full(0).wait(0);
    if (of_tile & SM90_FED_ZEROES) zero_rows();
    scores(base >> 4, 0, 0);
    special = describe(0);
    sm90_mma_wait<0>(s);
    {
        float2 lse[PIECES];
        statistics(lse, 0, LSE);
        sm90_exponentials(s, lse, maps.factor);
    }
    if (special & (SM90_MASKED | SM90_DEAD_ROWS)) mask_scores(0);
    barriers.dout_full(0).wait(0);
    for (;;) {
        DEV_UNROLL_FOR (int i = 0; i < HD / 2; ++i) dk[i] = dv[i] = 0.0f;
        DEV_ROLLED while (!(special & SM90_FED_LAST)) step(sm90_flag<false>());
        const int place = turn & 1;
        const bool follows = step(sm90_flag<true>());
        sm90_pin(dk);
        sm90_pin(dv);
        const attn_work_tile &tile = tiles[place];
        const int wave = sm90_thread_anew() / 32;
        char *const mine = smem + C::AT_DS + wave / 4 * (BM * 128) + wave % 4 * 2048;
        barriers.ds_empty().wait(done & 1 ^ 1); /* nobody multiplies dS any more */
        sm90_store_keys<C>(tile, dv, p.dv, p.dtype, (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v, 1.0f, mine,
                           wave, sm90_lane_anew());
        sm90_store_keys<C>(tile, dk, p.dk, p.dtype, (l.vectors & STW_VECTOR_DK) != 0, (int)p.head_dim_qk, p.scale, mine,
                           wave, sm90_lane_anew());
        arrive(barriers.tile_empty(place));
        sm90_warpgroup_sync(group); /* its next dS goes where its warps had their rows */
        if (!follows) return;
    }
}

template <class C, bool ORDERED>
DEV_FN void attn_bwd_sm90_fed(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem) {
    const int wave = (int)dev_wave();
    const sm90_fed_barriers<C> barriers = {sm90_shared_address(smem) + C::AT_BARRIERS};
    attn_work_tile *const tiles =
        (attn_work_tile *)(void *)(smem + C::AT_TILES); /* this work tile and the next, alternately */
    if (wave == C::FEEDER && sm90_elect()) barriers.init();
    dev_await_previous();
    dev_barrier();
    if (wave >= C::WARPS) {
        sm90_give_registers<504 - 2 * C::REGISTERS>();
        if (wave == C::FEEDER && sm90_elect()) sm90_fed_load<C, ORDERED>(l, maps, smem, tiles);
        if (wave == C::ADDER) sm90_fed_add<C, ORDERED>(l, smem, tiles);
        if (wave == C::SCOUT) sm90_fed_scout<C>(l, smem, tiles);
    } else {
        sm90_take_registers<C::REGISTERS>();
        sm90_fed_multiply<C>(l, maps, smem, tiles);
        dev_let_next_begin();
    }
}

#endif
