/* SPDX-License-Identifier: MIT
 *
 * Hopper's own main loop of the backward pass, for 16-bit types without features of single pairs: dK and dV of units of
 * 128 keys, dQ into the f32 sums that common/kernels clears before and converts after it. Blocks of 256 threads (two
 * warpgroups), one a multiprocessor, take units until none is left. Everything is held transposed, keys as rows; warpgroup c has
 * keys 64c.. of the unit:
 *
 *              queries i0 .. i0+M
 *     keys  +--------------------+      S^T  = K Q^T      both from shared memory
 *     c = 0 | 64 x M             |      dP^T = V dO^T     both from shared memory
 *           +--------------------+      dV  += P^T dO     P^T from registers: the accumulators' layout is the operand's
 *     c = 1 | 64 x M             |      dK  += dS^T Q     dS^T from registers
 *           +--------------------+      dQ   = dS K       dS through shared memory; warpgroup c makes columns 64c.. (M 64), or
 *                                                         rows 64c.. (M 128)
 *
 * Step j. On entry P(j) is in registers and no product is under way.
 *   1  issue dP(j); P to 16 bits; issue dV(j)
 *   2  await dP; dS = P (dP - D) to 16 bits, into registers and dS[j % 2]; barrier of the block     (dV runs)
 *   3  one lane asks for the rows of step j + 2, into the place of step j - 1
 *   4  await dV; issue S(j+1), dQ(j), dK(j)
 *   5  await S; P(j+1) = 2^(S c - LSE c); await dQ and add it to the sums; await dK                    (dQ, dK run)
 * S(j+1) of a unit's last step multiplies whatever lies there; nobody looks at it (a condition would upset ptxas).
 *
 * Why places need no "empty" barriers: the block's barrier of step j proves that both warpgroups have ended all products of
 * step j - 1, so the rows and statistics of step j - 1 may be overwritten. dS has two places, since a warpgroup may write
 * dS(j+1) while the other multiplies dS(j). V is read no longer after the barrier of a unit's last step (dP awaited), K
 * after the barrier at the unit's end: there the next unit's are asked for. Loads run two steps ahead, over the end of the
 * unit too, so a unit has two steps at least: the missing ones repeat a block with nothing visible.
 *
 * Rows that take part in nothing must not be multiplied, not even by 0: what TMA brings of them (a neighbour's in packed
 * tensors, rows past a used length) is overwritten with zeros, in the few blocks at edges.
 *
 * Placement by ptxas decides over 10%: no exponential may sink behind the last wait of a step, where no product runs.
 * A wait for a barrier ends a basic block and holds them (AWAIT_EARLY); `elect.sync` in a branch that all lanes of a wave
 * take keeps loops away from TMA; values that all threads share stay in uniform registers (dev_uniform). */

#include "mma_sm90.h"
#include "tensor_map.h"

/* One kernel's shapes. PANELS: of 64 columns. */
template <class T_, int HD_> struct hop_config {
    typedef T_ T;
    enum { HD = HD_, BM = STW_SM90_BM(HD_), BN = 128, STAGES = 3, WARPS = 8, THREADS = 256, PANELS = (HD + 63) / 64, WIDTH = PANELS * 64 };
    enum { ROWS_BYTES = PANELS * BM * 128, KEYS_BYTES = PANELS * BN * 128, DS_BYTES = BM * BN * 2, STATS = 2 * BM + (int)STW_STATS_PAD };
    enum { AWAIT_EARLY = 1 };
    enum {
        AT_K = 0,
        AT_V = AT_K + KEYS_BYTES,
        AT_Q = AT_V + KEYS_BYTES,
        AT_DOUT = AT_Q + STAGES * ROWS_BYTES,
        AT_DS = AT_DOUT + STAGES * ROWS_BYTES,
        AT_STATS = AT_DS + 2 * DS_BYTES,
        AT_SEEN = AT_STATS + STAGES * STATS * 4, /* of this unit's keys and the next's: first and last query that sees them */
        AT_BARRIERS = AT_SEEN + 2 * BN * 8,
        AT_UNIT = AT_BARRIERS + 80,
        BYTES = AT_UNIT + 2 * (int)sizeof(attn_unit)
    };
    static_assert(BYTES <= (int)STW_SM90_SMEM(HD_), "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_UNIT % 16 == 0, "places that bulk copies write");
    /* For attn_store_keys: a wave has 16 keys, all columns. */
    struct key_split {
        enum { MT = 1, NT = HD / LEAF_MMA_N };
        DEV_FN int row0(int wave) { return 16 * wave; }
        DEV_FN int col0(int) { return 0; }
    };
    typedef dev_tile<T, BN, HD> keys;
};

/* Barriers, from AT_BARRIERS on. */
enum { HOP_Q = 0, HOP_DOUT = 24, HOP_K = 48, HOP_V = 56, HOP_UNIT = 64 };

/* The way through a unit's query blocks, head by head; the same for all threads. */
struct hop_walk {
    int first, end, block, head, left, idle; /* left: steps, this one included; the last `idle` repeat a block, masked */
    uint32_t at, q_block;                    /* number of the block in the workspace; that of the sequence's first   */

    DEV_FN uint32_t number(const hop_walk &w, const stw_attn_launch &l) {
        int64_t at = stw_smaller((int64_t)w.q_block + w.block, l.q_blocks - 1);
        return (uint32_t)(w.head * l.q_blocks + at);
    }
    DEV_FN hop_walk begin(const attn_unit &u, const stw_attn_launch &l) {
        hop_walk w;
        w.first = w.block = dev_uniform(u.first);
        w.end = dev_uniform(u.end);
        w.head = dev_uniform(u.kv_head) * (int)l.p.group;
        int real = (w.end - w.first) * (int)l.p.group;
        w.left = real > 2 ? real : 2;
        w.idle = w.left - real;
        w.q_block = (uint32_t)dev_uniform((int)u.seq.q_block);
        w.at = number(w, l);
        return w;
    }
    DEV_FN void next(hop_walk &w, const stw_attn_launch &l) {
        if (--w.left <= w.idle) return;
        ++w.at;
        if (++w.block < w.end) return;
        w.block = w.first;
        ++w.head;
        w.at = number(w, l);
    }
    DEV_FN bool is_idle(const hop_walk &w) { return w.left <= w.idle; }
};

/* What the first wave does for all: asks for tiles, takes units. */
template <class C> struct hop_loader {
    hop_walk walk;      /* of the rows that are asked for next */
    int row0, batch;    /* the sequence's first row in the tensor */
    int64_t number;     /* the unit taken */

    DEV_FN void enter(hop_loader &a, const attn_unit &u, const stw_attn_launch &l) {
        a.walk = hop_walk::begin(u, l);
        a.row0 = (int)dev_uniform(u.seq.q.first);
        a.batch = l.p.features & STW_FEAT_PACKED_Q ? 0 : (int)dev_uniform(u.b);
    }
    DEV_FN void panels(uint32_t to, const stw_mapped_tensor &t, int row, int head, int batch, int rows, uint32_t barrier) {
        if (C::HD % 64 == 0 && t.panels == C::PANELS) {
            hop_load_panels(to, &t.map, t.shift, row, head, batch, barrier);
        } else {
            DEV_UNROLL for (int panel = 0; panel < C::PANELS; ++panel)
                hop_load_panel(to + panel * rows * 128, &t.map, t.shift + panel * 64, row, head, batch, barrier);
        }
    }
    /* One lane: rows and statistics of the walk's block. */
    DEV_FN void rows(const hop_loader &a, const stw_attn_launch &l, const stw_hopper_maps &maps, uint32_t smem, int stage) {
        int row = a.row0 + a.walk.block * C::BM;
        uint32_t q = smem + C::AT_BARRIERS + HOP_Q + 8 * stage, dout = smem + C::AT_BARRIERS + HOP_DOUT + 8 * stage;
        hop_barrier_expect(q, C::ROWS_BYTES + C::STATS * 4);
        panels(smem + C::AT_Q + stage * C::ROWS_BYTES, maps.q, row, a.walk.head, a.batch, C::BM, q);
        hop_load_bytes(smem + C::AT_STATS + stage * C::STATS * 4, l.stats + (int64_t)a.walk.at * C::STATS, C::STATS * 4, q);
        hop_barrier_expect(dout, C::ROWS_BYTES);
        panels(smem + C::AT_DOUT + stage * C::ROWS_BYTES, maps.dout, row, a.walk.head, a.batch, C::BM, dout);
    }
    /* One lane: K or V of a unit. */
    DEV_FN void keys(const attn_unit &u, const stw_attn_launch &l, const stw_mapped_tensor &t, uint32_t to, uint32_t barrier) {
        int batch = l.p.features & STW_FEAT_PACKED_KV ? 0 : (int)u.b;
        hop_barrier_expect(barrier, C::KEYS_BYTES);
        panels(to, t, (int)(u.seq.kv.first + u.j0), u.kv_head, batch, C::BN, barrier);
    }
    /* One lane: the first unit with rows to write from `number` on, into u; its key block comes asynchronously. */
    DEV_FN void fetch(const stw_attn_launch &l, int64_t number, attn_unit &u, uint32_t barrier) {
        attn_place at = {0, 0, 0, false};
        while (number < l.units) {
            at = attn_place_of(l, number);
            if (at.live) break;
            number = l.blocks + (int64_t)dev_fetch_add(l.ticket, 1);
        }
        u.kv_head = at.kv_head;
        u.live = at.live;
        u.k_counts = u.v_counts = 0;
        hop_barrier_expect(barrier, at.live ? (uint32_t)sizeof(attn_key_block) : 0u);
        if (at.live)
            hop_load_bytes(hop_address(&u), (const char *)l.key_blocks + (at.b * l.k_blocks + at.block) * (int64_t)sizeof(attn_key_block),
                           (uint32_t)sizeof(attn_key_block), barrier);
    }
};

/* A thread a key: which queries see it. */
DEV_FN void hop_list_seen(const attn_unit &u, int *seen, int key) {
    int64_t j = u.j0 + key, far = INT64_C(1) << 30;
    int64_t first = stw_larger(j - u.seq.band.high, u.seq.q_low), last = stw_smaller(j - u.seq.band.low, u.seq.q_end - 1);
    if (j >= u.seq.kv.used) first = far;
    seen[2 * key] = (int)stw_clamp_i64(first, -far, far);
    seen[2 * key + 1] = (int)stw_clamp_i64(last, -far, far);
}

/* Zeros in the tile's rows outside [low, end). */
template <int PANELS, int ROWS> DEV_FN void hop_clear_rows(char *tile, int64_t low, int64_t end, int thread) {
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_ROLLED for (int at = thread; at < PANELS * ROWS * 8; at += 256) {
        int row = at / 8 % ROWS;
        if (row < low || row >= end) dev_store_vector(tile + at * 16, zero);
    }
}

/* All threads, when K and V have arrived; they are there for products after the next barrier of the block. */
template <class C> DEV_FN void hop_clear_keys(const attn_unit &u, char *smem, int thread) {
    stw_range seen = stw_visible_keys(&u.seq);
    hop_clear_rows<C::PANELS, C::BN>(smem + C::AT_K, seen.first - u.j0, seen.end - u.j0, thread);
    hop_clear_rows<C::PANELS, C::BN>(smem + C::AT_V, seen.first - u.j0, seen.end - u.j0, thread);
    hop_fence_shared();
}
/* The same of the rows of a stage. */
template <class C> DEV_FN void hop_clear_queries(const attn_unit &u, char *smem, int stage, int block, int thread) {
    int64_t i0 = (int64_t)block * C::BM;
    hop_clear_rows<C::PANELS, C::BM>(smem + C::AT_Q + stage * C::ROWS_BYTES, u.seq.q_low - i0, u.seq.q_end - i0, thread);
    hop_clear_rows<C::PANELS, C::BM>(smem + C::AT_DOUT + stage * C::ROWS_BYTES, u.seq.q_low - i0, u.seq.q_end - i0, thread);
    hop_fence_shared();
}

/* This thread's part of K or V holds an element that is not tiny: see attn_bwd_tiny.inl. */
template <class C> DEV_FN bool hop_keys_count(const char *tile, int thread) {
    DEV_ROLLED for (int at = thread * 16; at < C::KEYS_BYTES; at += C::THREADS * 16) {
        dev_vector v = dev_load_vector(tile + at);
        const typename C::T *x = (const typename C::T *)(const void *)&v;
        bool counts = false;
        DEV_UNROLL for (int i = 0; i < 8; ++i) counts |= !(fabsf(dev_float(x[i])) < ATTN_TINY_KEYS);
        if (counts) return true;
    }
    return false;
}

/* Where 16 columns from `k` on start, for an operand along: units behind the tile's start. */
DEV_FN constexpr uint32_t hop_along(int k, int rows) { return (uint32_t)(k / 64 * (rows * 8) + k % 64 / 16 * 2); }

template <class C> DEV_FN void attn_bwd_hopper(const stw_attn_launch &l, const stw_hopper_maps &maps, char *smem) {
    typedef typename C::T T;
    typedef hop_mma<T> mma;
    typedef hop_loader<C> loader;
    enum { BM = C::BM, HD = C::HD, VALUES = BM / 2, PIECES = BM / 8 };
    const stw_attn_params &p = l.p;
    const int wave = (int)dev_wave(), thread = (int)dev_thread(), lane = (int)dev_lane();
    const uint32_t base = hop_address(smem), barriers = base + C::AT_BARRIERS;
    attn_unit *units = (attn_unit *)(void *)(smem + C::AT_UNIT);
    int *const seen0 = (int *)(void *)(smem + C::AT_SEEN);
    loader ahead;
    ahead.number = 0;
    if (wave == 0) {
        if (hop_elect()) {
            DEV_UNROLL for (int i = 0; i < 9; ++i) hop_barrier_init(barriers + 8 * i, 1);
            hop_barriers_ready();
            loader::fetch(l, dev_unit(), units[0], barriers + HOP_UNIT);
        }
    }
    dev_barrier();
    hop_barrier_wait(barriers + HOP_UNIT, 0);
    if (!units[0].live) return;
    if (thread < C::BN) hop_list_seen(units[0], seen0, thread);
    if (wave == 0) {
        loader::enter(ahead, units[0], l);
        if (hop_elect()) {
            loader::keys(units[0], l, maps.k, base + C::AT_K, barriers + HOP_K);
            loader::keys(units[0], l, maps.v, base + C::AT_V, barriers + HOP_V);
            loader::rows(ahead, l, maps, base, 0);
        }
        hop_walk::next(ahead.walk, l);
        if (hop_elect()) loader::rows(ahead, l, maps, base, 1);
        hop_walk::next(ahead.walk, l);
    }
    dev_barrier();

    const int half = wave / 4, warp = wave % 4; /* the warpgroup and the wave in it */
    float dk[HD / 2], dv[HD / 2], s[VALUES], dp[VALUES], dq[32];
    uint32_t p16[BM / 4], ds16[BM / 4];
    /* operands, in units */
    const uint32_t at0 = base >> 4, k_rows = at0 + C::AT_K / 16 + half * 512, v_rows = at0 + C::AT_V / 16 + half * 512;
    const uint32_t q0 = at0 + C::AT_Q / 16, dout0 = at0 + C::AT_DOUT / 16;
    const uint32_t ds_rows = at0 + C::AT_DS / 16 + (BM == 128 ? half * 512 : 0);
    const uint32_t k_across = at0 + C::AT_K / 16 + (BM == 64 ? half * 1024 : 0);
    /* dS: row (lane / 16) * 8 + lane % 8 of 16 queries, keys of this wave in the panel of its warpgroup */
    const uint32_t ds_to = base + C::AT_DS + half * BM * 128 + ((lane / 16) * 8 + lane % 8) * 128 + (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16);
    const float factor = p.scale * DEV_LOG2E;
    /* this thread's sums of dQ: the finish kernel has BM / 16 waves over the rows, the columns change fastest */
    float *const sums = l.dq + ((BM == 64 ? warp * 2 + half : wave) * DEV_WAVE + lane) * 4;

    auto scores = [&](uint32_t q) {
        hop_products_begin();
        DEV_UNROLL for (int k = 0; k < HD; k += 16)
            mma::template both<0>(s, hop_operand(k_rows + hop_along(k, C::BN), 1), hop_operand(q + hop_along(k, BM), 1), k > 0);
        hop_products_commit();
    };
    /* S -> P in place; `masked`: some pair is invisible, or something odd. */
    auto exponentials = [&](int stage, bool masked, const int *seen, int block) {
        const float *stats = (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + lane % 4 * 2;
        DEV_UNROLL for (int i = 0; i < PIECES; ++i) {
            float2 lse = *(const float2 *)(const void *)(stats + 8 * i);
            s[4 * i] = dev_exp2_fast(fmaf(s[4 * i], factor, lse.x));
            s[4 * i + 1] = dev_exp2_fast(fmaf(s[4 * i + 1], factor, lse.y));
            s[4 * i + 2] = dev_exp2_fast(fmaf(s[4 * i + 2], factor, lse.x));
            s[4 * i + 3] = dev_exp2_fast(fmaf(s[4 * i + 3], factor, lse.y));
        }
        if (!masked) return;
        int i0 = block * BM + lane % 4 * 2, row = 16 * wave + lane / 4;
        int2 a = *(const int2 *)(const void *)(seen + 2 * row), b = *(const int2 *)(const void *)(seen + 2 * row + 16);
        a.x -= i0, a.y -= i0, b.x -= i0, b.y -= i0;
        DEV_UNROLL for (int i = 0; i < PIECES; ++i) {
            if (8 * i < a.x || 8 * i > a.y) s[4 * i] = 0.0f;
            if (8 * i + 1 < a.x || 8 * i + 1 > a.y) s[4 * i + 1] = 0.0f;
            if (8 * i < b.x || 8 * i > b.y) s[4 * i + 2] = 0.0f;
            if (8 * i + 1 < b.x || 8 * i + 1 > b.y) s[4 * i + 3] = 0.0f;
        }
    };
    /* Marks of a stage's rows: infinite LSE among them, or all of dO and D tiny. The same for all lanes. */
    auto marks = [&](int stage) {
        float2 m = *(const float2 *)(const void *)(smem + C::AT_STATS + (stage * C::STATS + 2 * BM) * 4);
        return (m.x != 0.0f ? 1u : 0u) | (m.y != 0.0f ? 2u : 0u);
    };

    int stage = 0, phase = 0; /* of the current step's place */
    for (int turn = 0;; ++turn) {
        const int now = turn & 1;
        attn_unit &u = units[now], &next = units[now ^ 1];
        const int *seen = seen0 + now * 2 * C::BN;
        hop_walk walk = hop_walk::begin(u, l);
        const int inner_first = dev_uniform(u.inner_first), inner_end = dev_uniform(u.inner_end), steps = walk.left;
        const int whole_first = dev_uniform(u.whole_first);
        int whole_end = dev_uniform(u.whole_end);
        {   /* rows past a dense tensor's end are zeros already */
            bool outside = !(p.features & STW_FEAT_PACKED_Q) && u.seq.q_low == 0 && u.seq.q_end == p.max_seq_q;
            if (dev_uniform((int)outside)) whole_end = 1 << 30;
        }
        auto clears = [&](int block, bool idle) { return block < whole_first || block >= whole_end || idle; };
        bool live_next = true;
        DEV_UNROLL for (int i = 0; i < HD / 2; ++i) dk[i] = dv[i] = 0.0f;
        hop_barrier_wait(barriers + HOP_K, turn & 1);
        {
            stw_range keys = stw_visible_keys(&u.seq);
            bool outside = keys.first <= u.j0 && (keys.end >= u.j0 + C::BN || (!(p.features & STW_FEAT_PACKED_KV) && keys.end == p.max_seq_kv));
            if (!dev_uniform((int)outside)) {
                hop_barrier_wait(barriers + HOP_V, turn & 1);
                hop_clear_keys<C>(u, smem, thread);
                hop_block_sync();
            }
        }
        hop_barrier_wait(barriers + HOP_Q + 8 * stage, phase);
        if (clears(walk.block, hop_walk::is_idle(walk))) {
            hop_barrier_wait(barriers + HOP_DOUT + 8 * stage, phase);
            hop_clear_queries<C>(u, smem, stage, walk.block, thread);
            hop_block_sync();
        }
        scores(q0 + stage * (C::ROWS_BYTES / 16));
        uint32_t odd = __reduce_or_sync(0xFFFFFFFFu, marks(stage)), odd_keys = 0;
        if (!dev_is_f16<T>::yes && hop_keys_count<C>(smem + C::AT_K, thread)) u.k_counts = 1;
        bool masked = walk.block < inner_first || walk.block >= inner_end || hop_walk::is_idle(walk) || (odd & 1u);
        hop_products_wait<0>();
        hop_pin(s);
        exponentials(stage, masked, seen, hop_walk::is_idle(walk) ? 1 << 24 : walk.block);
        hop_barrier_wait(barriers + HOP_V, turn & 1);
        if (!dev_is_f16<T>::yes && hop_keys_count<C>(smem + C::AT_V, thread)) u.v_counts = 1;
        if (C::AWAIT_EARLY) hop_barrier_wait(barriers + HOP_DOUT + 8 * stage, phase);
        DEV_ROLLED for (int j = 0; j < steps; ++j) {
            const int stage_next = stage == C::STAGES - 1 ? 0 : stage + 1, phase_next = stage == C::STAGES - 1 ? phase ^ 1 : phase;
            const uint32_t q = q0 + stage * (C::ROWS_BYTES / 16), dout = dout0 + stage * (C::ROWS_BYTES / 16);
            const bool last = j == steps - 1;
            float *const to = sums + (int64_t)walk.at * (BM * C::WIDTH);
            hop_walk::next(walk, l);
            if (wave == 0 && j == (steps > 4 ? steps - 4 : 0) && hop_elect()) ahead.number = l.blocks + (int64_t)dev_fetch_add(l.ticket, 1);
            /* 1 */
            if (!C::AWAIT_EARLY) hop_barrier_wait(barriers + HOP_DOUT + 8 * stage, phase);
            hop_products_begin();
            DEV_UNROLL for (int k = 0; k < HD; k += 16)
                mma::template both<0>(dp, hop_operand(v_rows + hop_along(k, C::BN), 1), hop_operand(dout + hop_along(k, BM), 1), k > 0);
            hop_products_commit();
            DEV_UNROLL for (int i = 0; i < BM / 4; ++i) p16[i] = dev_pack(T(), s[2 * i], s[2 * i + 1]);
            hop_products_begin();
            DEV_UNROLL for (int k = 0; k < BM / 16; ++k) mma::held(dv, p16 + 4 * k, hop_operand(dout + k * 128, BM * 8));
            hop_products_commit();
            /* 2 */
            hop_products_wait<1>();
            hop_pin(dp);
            if (masked) {
                DEV_UNROLL for (int i = 0; i < VALUES; ++i) dp[i] = s[i] != 0.0f ? dp[i] : 0.0f;
            }
            const float *delta = (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + BM + lane % 4 * 2;
            DEV_UNROLL for (int i = 0; i < PIECES; ++i) {
                float2 d = *(const float2 *)(const void *)(delta + 8 * i);
                ds16[2 * i] = dev_pack(T(), s[4 * i] * (dp[4 * i] + d.x), s[4 * i + 1] * (dp[4 * i + 1] + d.y));
                ds16[2 * i + 1] = dev_pack(T(), s[4 * i + 2] * (dp[4 * i + 2] + d.x), s[4 * i + 3] * (dp[4 * i + 3] + d.y));
            }
            DEV_UNROLL for (int i = 0; i < BM / 16; ++i) hop_store_transposed(ds_to + (j & 1) * C::DS_BYTES + i * 2048, ds16 + 4 * i);
            hop_fence_shared();
            hop_block_sync();
            /* 3 */
            if (wave == 0) {
                if (j == (steps > 3 ? steps - 3 : 0) && hop_elect()) loader::fetch(l, ahead.number, next, barriers + HOP_UNIT);
                if (j == steps - 2) {
                    hop_barrier_wait(barriers + HOP_UNIT, (turn + 1) & 1);
                    __syncwarp();
                    live_next = dev_uniform(next.live) != 0;
                    if (live_next) loader::enter(ahead, next, l);
                }
                if (live_next) {
                    if (hop_elect()) {
                        loader::rows(ahead, l, maps, base, stage == 0 ? C::STAGES - 1 : stage - 1);
                        if (last) loader::keys(next, l, maps.v, base + C::AT_V, barriers + HOP_V);
                    }
                    hop_walk::next(ahead.walk, l);
                }
            }
            /* 4 */
            if (!last) {
                hop_barrier_wait(barriers + HOP_Q + 8 * stage_next, phase_next);
                if (clears(walk.block, hop_walk::is_idle(walk))) {
                    hop_barrier_wait(barriers + HOP_DOUT + 8 * stage_next, phase_next);
                    hop_products_wait<0>();
                    hop_clear_queries<C>(u, smem, stage_next, walk.block, thread);
                    hop_block_sync();
                }
            }
            hop_products_wait<0>();
            scores(q0 + stage_next * (C::ROWS_BYTES / 16));
            hop_products_begin();
            DEV_UNROLL for (int k = 0; k < C::BN / 16; ++k)
                mma::template both<1>(dq, hop_operand(ds_rows + (j & 1) * (C::DS_BYTES / 16) + hop_along(16 * k, BM), 1), hop_operand(k_across + k * 128, 1), k > 0);
            hop_products_commit();
            DEV_UNROLL for (int k = 0; k < BM / 16; ++k) mma::held(dk, ds16 + 4 * k, hop_operand(q + k * 128, BM * 8));
            hop_products_commit();
            /* 5 */
            if (j == 0 && !dev_is_f16<T>::yes) odd_keys = dev_uniform(u.k_counts) && dev_uniform(u.v_counts) ? 0u : 2u;
            const bool tiny = !dev_is_f16<T>::yes && ((odd | odd_keys) & 2u);
            odd = __reduce_or_sync(0xFFFFFFFFu, marks(stage_next));
            masked = walk.block < inner_first || walk.block >= inner_end || hop_walk::is_idle(walk) || (odd & 1u);
            hop_products_wait<2>();
            hop_pin(s);
            exponentials(stage_next, masked, seen, hop_walk::is_idle(walk) ? 1 << 24 : walk.block);
            hop_products_wait<1>();
            hop_pin(dq);
            if (tiny) {
                DEV_UNROLL for (int i = 0; i < 32; ++i) dev_add_exact(to + i / 4 * (C::THREADS * 4) + i % 4, dq[i]);
            } else {
                DEV_UNROLL for (int i = 0; i < 8; ++i)
                    if (HD != 96 || i < 4 || half == 0) hop_add_four(to + i * (C::THREADS * 4), dq + 4 * i);
            }
            if (C::AWAIT_EARLY && !last) hop_barrier_wait(barriers + HOP_DOUT + 8 * stage_next, phase_next);
            hop_products_wait<0>();
            stage = stage_next;
            phase = phase_next;
        }
        /* the end of the unit: the next one's K under the stores of dK and dV */
        hop_pin(dk);
        hop_pin(dv);
        hop_barrier_wait(barriers + HOP_UNIT, (turn + 1) & 1);
        const bool live = dev_uniform(next.live) != 0;
        if (live && thread < C::BN) hop_list_seen(next, seen0 + (now ^ 1) * 2 * C::BN, thread);
        hop_block_sync();
        if (live && wave == 0 && hop_elect()) loader::keys(next, l, maps.k, base + C::AT_K, barriers + HOP_K);
        {
            typedef dev_acc<typename C::key_split> acc;
            attn_store_keys<C>(u, (const acc &)dv, p.dv, p.dtype, p.dv_dtype, false, (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v, 1.0f,
                               smem, wave, lane);
            attn_store_keys<C>(u, (const acc &)dk, p.dk, p.dtype, p.dk_dtype, false, (l.vectors & STW_VECTOR_DK) != 0, (int)p.head_dim_qk, p.scale,
                               smem, wave, lane);
        }
        if (!live) return;
    }
}
