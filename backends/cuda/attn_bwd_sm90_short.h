/* SPDX-License-Identifier: MIT
 *
 * The backward pass of short sequences on Hopper, whole in one kernel: a work tile has all keys of a sequence, so that
 * dQ is complete in registers and needs no sums in memory, no kernel before it and none after. A CTA has one KV head
 * of one sequence, GROUPS warpgroups of 64 keys each, and goes over blocks of BM queries of the heads of the group.
 * All is held transposed, keys as rows, as in attn_bwd_sm90.h:
 *
 *     of SUB queries:   S^T = K Q^T, dP^T = V dO^T   from shared memory
 *                      dV += P^T dO, dK += dS^T Q   P^T, dS^T from registers
 *     of all BM:       dQ = dS K                    dS through shared memory; a warpgroup makes 64 rows, where
 *                                                   there are more than BM / 64 of them a part of the columns
 *
 * Loads run a step ahead where there are two stages of Q and dO; besides, those of one CTA take turns with the products
 * of the others on its multiprocessor. delta is made here too, by eight threads a row. Rows that take part in nothing
 * must not be multiplied, not even by 0: they become zeros when they have arrived. Where a block has more than two
 * SUBs, a warpgroup makes no S, dP, dV or dK of one whose queries see none of its keys, and writes zeros to their dS.
 * No result depends on an order: the same kernel serves deterministic mode. */
#ifndef STW_CUDA_ATTN_BWD_SM90_SHORT_H
#define STW_CUDA_ATTN_BWD_SM90_SHORT_H

#include "attn_bwd_sm90_masking.h"
#include "attn_bwd_sm90_scores.h"
#include "common/kernels/attn_bwd_preprocess.h"

/* CTAs whose registers a multiprocessor shall have room for: loads of one run beside products of the others. */
#define SM90_SHORT_CTAS(hd, bm, bn)                                                                                    \
    ((bn) > 128 || (bm) >= 128 ? 1 : (hd) > 64 ? ((bn) > 64 ? 1 : 2) : (bn) > 64 ? 2 : (hd) > 32 ? 3 : 4)

template <class T_, int HD_, int GROUPS_, int BM_> struct sm90_short_config {
    typedef T_ T;
    enum {
        HD = HD_,
        GROUPS = GROUPS_,
        BN = 64 * GROUPS,
        BM = BM_,
        THREADS = 128 * GROUPS,
        PANELS = (HD + 63) / 64,
        /* queries whose scores are in registers at a time */
        SUB = HD > 32 && (BN > 64) != (HD > 64) && (BN != 128 || BM < 128) ? 16 : 32,
        SUBS = BM / SUB,
        STAGES = STW_SM90_SHORT_STAGES(BM, BN), /* of Q and dO */
        DQ_COLS = HD * (BM / 64) / GROUPS       /* of dQ that a warpgroup makes */
    };
    enum { KEYS_BYTES = PANELS * BN * 128, ROWS_BYTES = PANELS * BM * 128, DS_BYTES = BM * BN * 2 };
    enum {
        AT_K = 0,
        AT_V = AT_K + KEYS_BYTES,
        AT_Q = AT_V + KEYS_BYTES,
        AT_DOUT = AT_Q + STAGES * ROWS_BYTES,
        AT_DS = AT_DOUT + STAGES * ROWS_BYTES,
        AT_STATS = AT_DS + DS_BYTES, /* LSE, delta */
        AT_SEEN = AT_STATS + 2 * BM * 4,
        AT_BARRIERS = AT_SEEN + BN * 8,
        AT_TILE = AT_BARRIERS + 32,
        BYTES = AT_TILE + (int)sizeof(attn_work_tile)
    };
    static_assert(BYTES <= (int)STW_SM90_SHORT_SMEM(HD_, BM, BN), "host and device agree on shared memory");
    static_assert(AT_TILE % 16 == 0, "a work tile's alignment");
};

/* Zeros in the rows of a tile of ROWS outside [low, end). */
template <class C, int ROWS> DEV_FN void sm90_short_zero_rows(char *smem, int64_t low, int64_t end) {
    const int first = (int)stw_clamp_i64(low, 0, ROWS), last = (int)stw_clamp_i64(end, 0, ROWS);
    const int thread = sm90_thread_anew();
    DEV_ROLLED_FOR (int row = thread / 8; row < C::PANELS * ROWS; row += C::THREADS / 8) {
        const int r = row % ROWS;
        sm90_zero_vector_if(r < first || r >= last, sm90_shared_address(smem) + row * 128 + thread % 8 * 16);
    }
    sm90_fence_async_shared();
}

/* A warp's 16 rows, from accumulators by way of 2 KB of shared memory of its own to rows `to` of a tensor: `used` of
 * them, zeros up to `end`. */
template <class C, int N>
DEV_FN void sm90_short_store(const float (&x)[N], typename C::T *to, int64_t stride, int64_t used_rows,
                             int64_t end_rows, int cols, bool vectors, float scale, char *mine) {
    typedef typename C::T T;
    enum { ROWS = 16, PANEL = 64, VECTOR = 8, COLS = 2 * N };
    const int lane = sm90_lane_anew();
    const int used = (int)stw_clamp_i64(used_rows, 0, ROWS), end = (int)stw_clamp_i64(end_rows, 0, ROWS);
    const uint32_t put = sm90_shared_address(mine) + lane % 16 * 128;
    const int row = lane / 8, piece = lane % 8;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int panel = 0; panel < COLS; panel += PANEL) {
        __syncwarp();
        DEV_UNROLL_FOR (int c = panel; c < panel + PANEL && c < COLS; c += 16) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                w[i] = dev_pack(T(), x[c / 2 + 2 * i] * scale, x[c / 2 + 2 * i + 1] * scale);
            sm90_stmatrix(put + (((c - panel) / 8 + lane / 16) ^ lane % 8) * 16, w);
        }
        __syncwarp();
        if (vectors) {
            T *at = to + row * stride + panel + piece * VECTOR;
            DEV_UNROLL_FOR (int i = 0; i < ROWS; i += 4) {
                dev_vector v = dev_load_vector(mine + (row + i) * 128 + (piece ^ (row + i) % 8) * 16);
                if (row + i < end && panel + piece * VECTOR < COLS && panel + piece * VECTOR < cols)
                    sm90_store_result(at + i * stride, row + i < used ? v : zero);
            }
        } else {
            DEV_ROLLED_FOR (int r = 0; r < end; ++r)
                DEV_ROLLED_FOR (int c = lane; c < PANEL && panel + c < COLS && panel + c < cols; c += DEV_WAVE) {
                    const char *from = mine + r * 128 + (c / VECTOR ^ r % 8) * 16 + c % VECTOR * 2;
                    T v = *(const T *)(const void *)from;
                    if (r >= used) v.bits = 0;
                    to[r * stride + panel + c] = v;
                }
        }
    }
}

/* One lane: the mbarriers, the first loads, the work tile. */
template <class C> struct sm90_short_loads {
    const stw_attn_launch &l;
    const stw_sm90_maps &maps;
    uint32_t smem;

    DEV_METHOD sm90_mbarrier keys() const { return sm90_mbarrier{smem + C::AT_BARRIERS}; }
    DEV_METHOD sm90_mbarrier rows(int stage) const { return sm90_mbarrier{smem + C::AT_BARRIERS + 8 + 8 * stage}; }
    template <int ROWS>
    DEV_FN void panels(uint32_t to, const stw_mapped_tensor &t, int row, int head, int batch, sm90_mbarrier barrier) {
        if (C::HD % 64 == 0 && t.panels == C::PANELS) {
            sm90_tma_load_panels(to, &t.map, row, head, batch, barrier);
        } else {
            DEV_UNROLL_FOR (int panel = 0; panel < C::PANELS; ++panel)
                sm90_tma_load_panel(to + panel * ROWS * 128, &t.map, panel * 64, row, head, batch, barrier);
        }
    }
    /* K and V. */
    DEV_METHOD void load_keys(const stw_seq_span &kv, int kv_head, int64_t b) const {
        const int batch = l.p.features & STW_FEAT_PACKED_KV ? 0 : (int)b;
        keys().expect(kv.rows > 0 ? 2 * C::KEYS_BYTES : 0); /* a pack may have no rows at all */
        if (kv.rows <= 0) return;
        panels<C::BN>(smem + C::AT_K, maps.k, (int)kv.first, kv_head, batch, keys());
        panels<C::BN>(smem + C::AT_V, maps.v, (int)kv.first, kv_head, batch, keys());
    }
    /* Q and dO of a step. */
    DEV_METHOD void load_rows(const stw_seq_span &q, int kv_head, int64_t b, int blocks, int step) const {
        const int turn = step / blocks, block = step - turn * blocks, head = kv_head * (int)l.p.group + turn;
        const int stage = step % C::STAGES;
        const int batch = l.p.features & STW_FEAT_PACKED_Q ? 0 : (int)b, row = (int)q.first + block * C::BM;
        rows(stage).expect(2 * C::ROWS_BYTES);
        panels<C::BM>(smem + C::AT_Q + stage * C::ROWS_BYTES, maps.q, row, head, batch, rows(stage));
        panels<C::BM>(smem + C::AT_DOUT + stage * C::ROWS_BYTES, maps.dout, row, head, batch, rows(stage));
    }
    DEV_METHOD void enter(attn_work_tile &tile) const {
        const int64_t number = dev_cta(), b = stw_quotient(number, l.p.heads_kv);
        const int kv_head = (int)(number - b * l.p.heads_kv);
        keys().init(1);
        DEV_UNROLL_FOR (int stage = 0; stage < C::STAGES; ++stage) rows(stage).init(1);
        sm90_fence_mbarrier_init();
        const stw_seq_span kv = stw_seq_kv(&l.p, b), q = stw_seq_q(&l.p, b);
        load_keys(kv, kv_head, b);
        const int blocks = (int)stw_blocks_of(q.rows, C::BM);
        DEV_UNROLL_FOR (int step = 0; step < C::STAGES; ++step)
            if (step < blocks * (int)l.p.group) load_rows(q, kv_head, b, blocks, step);
        tile.b = b;
        tile.j0 = 0;
        tile.kv_head = kv_head;
        tile.seq = stw_attn_seq_of(&l.p, C::BM, b);
    }
};

/* The statistics of a query block: dot products by eight threads a row, the rest by a thread a row. */
template <class C> struct sm90_short_statistics {
    typedef typename C::T T;
    enum { STEP = C::THREADS / 8, ROWS = C::BM / STEP, VECTORS = C::PANELS, VECTOR = 8 };
    dev_vector out[ROWS][VECTORS];
    int low, end; /* rows of the block that see a key: no other row of O is read */

    /* O on its way. */
    DEV_METHOD void fetch(const stw_attn_launch &l, const attn_work_tile &tile, int64_t h, int64_t i0) {
        const stw_attn_params &p = l.p;
        const int group = (int)dev_thread() / 8, sub = (int)dev_thread() % 8, cols = (int)p.head_dim_v;
        low = (int)stw_clamp_i64(tile.seq.q_low - i0, 0, C::BM);
        end = (int)stw_clamp_i64(tile.seq.q_end - i0, 0, C::BM);
        if ((p.features & STW_FEAT_GIVEN_DELTA) || !(l.vectors & STW_VECTOR_OUT)) return;
        const T *from = (const T *)p.out.data + dev_row(p.out, tile.b, h, tile.seq.q.first + i0 + group) + sub * VECTOR;
        const dev_vector zero = {{0, 0, 0, 0}};
        DEV_UNROLL_FOR (int k = 0; k < ROWS; ++k, from += STEP * p.out.seq) {
            const int r = group + k * STEP;
            DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
                out[k][v] = zero;
                if (r >= low && r < end && v * 64 + sub * VECTOR < cols) out[k][v] = dev_load_vector(from + v * 64);
            }
        }
    }
    /* The dot products, when dO has arrived, to the place of delta. */
    DEV_METHOD void dots(const stw_attn_launch &l, const attn_work_tile &tile, int64_t h, int64_t i0, char *smem,
                         int stage) {
        const stw_attn_params &p = l.p;
        const int group = (int)dev_thread() / 8, sub = (int)dev_thread() % 8, cols = (int)p.head_dim_v;
        float *const delta = (float *)(void *)(smem + C::AT_STATS) + C::BM;
        if (p.features & STW_FEAT_GIVEN_DELTA) return;
        const bool vectors = (l.vectors & STW_VECTOR_OUT) != 0;
        const char *dout = smem + C::AT_DOUT + stage * C::ROWS_BYTES + group * 128;
        if (vectors) {
            dout += (sub ^ group % 8) * 16;
            DEV_UNROLL_FOR (int k = 0; k < ROWS; ++k) {
                float sum = 0.0f;
                DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
                    const dev_vector x = dev_load_vector(dout + v * C::BM * 128 + k * STEP * 128);
                    const T *a = (const T *)(const void *)&x, *b = (const T *)(const void *)&out[k][v];
                    DEV_UNROLL_FOR (int e = 0; e < VECTOR; ++e) sum = fmaf(dev_float(a[e]), dev_float(b[e]), sum);
                }
                DEV_UNROLL_FOR (int mask = 4; mask > 0; mask /= 2) sum += dev_shuffle_xor(sum, mask);
                if (sub == 0) delta[group + k * STEP] = sum;
            }
            return;
        }
        DEV_ROLLED_FOR (int r = group; r < C::BM; r += STEP, dout += STEP * 128) {
            float sum = 0.0f;
            if (r >= low && r < end) {
                const T *from = (const T *)p.out.data + dev_row(p.out, tile.b, h, tile.seq.q.first + i0 + r);
                DEV_ROLLED_FOR (int c = sub; c < cols; c += 8) {
                    const char *at = dout + c / 64 * (C::BM * 128) + (c % 64 / VECTOR ^ r % 8) * 16 + c % VECTOR * 2;
                    sum = fmaf(dev_float(*(const T *)(const void *)at), dev_float(from[c]), sum);
                }
            }
            __syncwarp();
            DEV_UNROLL_FOR (int mask = 4; mask > 0; mask /= 2) sum += dev_shuffle_xor(sum, mask);
            if (sub == 0) delta[r] = sum;
        }
    }
    /* LSE, and D if given, else dLSE, of this thread's row. */
    DEV_METHOD float2 row_of(const stw_attn_params &p, const attn_work_tile &tile, int64_t h, int64_t i0) const {
        const int64_t i = i0 + dev_thread();
        float2 x = make_float2(dev_infinity(), 0.0f);
        if ((int)dev_thread() >= C::BM || i >= tile.seq.q.used) return x;
        x.x = *attn_float_at(p.lse, (p.features & STW_FEAT_PACKED_LSE) != 0, tile.seq, tile.b, h, i);
        if (p.features & STW_FEAT_GIVEN_DELTA)
            x.y = *attn_float_at(p.delta, (p.features & STW_FEAT_PACKED_DELTA) != 0, tile.seq, tile.b, h, i);
        else if (p.features & STW_FEAT_DLSE)
            x.y = *attn_float_at(p.dlse, (p.features & STW_FEAT_PACKED_DLSE) != 0, tile.seq, tile.b, h, i);
        return x;
    }
    /* The statistics as the loop wants them. Says whether this thread's row sees keys and has an infinite LSE. */
    DEV_METHOD bool finish(const stw_attn_launch &l, const attn_work_tile &tile, int64_t h, int64_t i0, float2 row,
                           char *smem) const {
        const stw_attn_params &p = l.p;
        const int r = (int)dev_thread();
        if (r >= C::BM) return false;
        float *stats = (float *)(void *)(smem + C::AT_STATS);
        const bool sees = r >= low && r < end, counts = sees && !dev_is_infinite(row.x);
        float delta = row.y;
        if (!(p.features & STW_FEAT_GIVEN_DELTA)) delta = (sees ? stats[C::BM + r] : 0.0f) - row.y;
        stats[r] = !counts ? -dev_infinity() : row.x != row.x ? __builtin_nanf("") : row.x * -DEV_LOG2E;
        stats[C::BM + r] = counts ? -delta : 0.0f; /* P is 0 there, and 0 times D must be 0 */
        if ((p.features & STW_FEAT_WRITE_DELTA) && i0 + r < tile.seq.q.rows)
            *attn_float_at(p.delta, (p.features & STW_FEAT_PACKED_DELTA) != 0, tile.seq, tile.b, h, i0 + r) = delta;
        return sees && !counts;
    }
};

template <class C> DEV_FN void attn_bwd_sm90_short(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem) {
    typedef typename C::T T;
    enum {
        BM = C::BM,
        BN = C::BN,
        HD = C::HD,
        SUB = C::SUB,
        PIECES = SUB / 8,
        VALUES = 4 * PIECES,
        ACC = HD / 2,
        COLS = C::DQ_COLS
    };
    const stw_attn_params &p = l.p;
    const int wave = (int)dev_wave(), lane = (int)dev_lane(), group = wave / 4, warp = wave % 4;
    const uint32_t base = sm90_shared_address(smem), at0 = base >> 4;
    const sm90_short_loads<C> load = {l, maps, base};
    attn_work_tile &tile = *(attn_work_tile *)(void *)(smem + C::AT_TILE);
    int *const seen = (int *)(void *)(smem + C::AT_SEEN);
    if (dev_cta() >= l.work_tiles) return; /* a grid folded over two dimensions */
    if (dev_cta() == 0) {                  /* uses shared memory that holds nothing yet */
        attn_check(p, smem, NULL);
        dev_barrier();
    }
    if (wave == 0 && sm90_elect()) load.enter(tile);
    dev_barrier();
    sm90_list_seen(tile, seen, wave, lane);

    float dk[ACC], dv[ACC];
    DEV_UNROLL_FOR (int i = 0; i < ACC; ++i) dk[i] = dv[i] = 0.0f;
    const uint32_t ds_to = base + C::AT_DS + group * BM * 128 + ((lane / 16) * 8 + lane % 8) * 128 +
                           (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16);
    const int blocks = dev_uniform((int)stw_blocks_of(tile.seq.q.rows, BM)), heads = (int)p.group;
    bool keys_arrived = false;
    DEV_ROLLED_FOR (int step = 0; step < heads * blocks; ++step) {
        const int turn = step / blocks, block = step - turn * blocks;
        const int head = dev_uniform(tile.kv_head) * heads + turn;
        const int i0 = block * BM;
        sm90_short_statistics<C> statistics;
        statistics.fetch(l, tile, head, i0);
        const float2 row_statistics = statistics.row_of(p, tile, head, i0);
        const int stage = step % C::STAGES;
        load.rows(stage).wait(step / C::STAGES & 1);
        statistics.dots(l, tile, head, i0, smem, stage);
        dev_barrier();
        const bool dead = statistics.finish(l, tile, head, i0, row_statistics, smem);
        if (!keys_arrived) {
            const stw_range keys = stw_visible_keys(&tile.seq);
            load.keys().wait(0);
            if (keys.first > 0 || keys.end < BN) {
                sm90_short_zero_rows<C, BN>(smem + C::AT_K, keys.first, keys.end);
                sm90_short_zero_rows<C, BN>(smem + C::AT_V, keys.first, keys.end);
            }
            keys_arrived = true;
        }
        const bool rows_whole = tile.seq.q_low <= i0 && tile.seq.q_end >= i0 + BM;
        if (!rows_whole) {
            sm90_short_zero_rows<C, BM>(smem + C::AT_Q + stage * C::ROWS_BYTES, tile.seq.q_low - i0,
                                        tile.seq.q_end - i0);
            sm90_short_zero_rows<C, BM>(smem + C::AT_DOUT + stage * C::ROWS_BYTES, tile.seq.q_low - i0,
                                        tile.seq.q_end - i0);
        }
        const bool any_dead = __syncthreads_or(dead) != 0;

        /* scores of SUB queries at a time */
        const sm90_operand<T, BN, HD> k_rows = {at0 + C::AT_K / 16 + group * 512};
        const sm90_operand<T, BN, HD> v_rows = {at0 + C::AT_V / 16 + group * 512};
        const sm90_operand<T, BM, HD, BM * 8> q = {at0 + C::AT_Q / 16 + stage * (C::ROWS_BYTES / 16)},
                                              dout = {at0 + C::AT_DOUT / 16 + stage * (C::ROWS_BYTES / 16)};
        float s[VALUES], dp[VALUES];
        auto scores = [&](int sub) {
            const sm90_operand<T, BM, HD> q_rows = {q.at + sub * (SUB * 8)}, dout_rows = {dout.at + sub * (SUB * 8)};
            mma_ABt(s, k_rows, q_rows);
            mma_ABt(dp, v_rows, dout_rows);
        };
        auto gradients = [&](int sub, bool masked) {
            const float *stats = (const float *)(const void *)(smem + C::AT_STATS) + sub * SUB + lane % 4 * 2;
            sm90_mma_wait<0>();
            sm90_pin(s);
            sm90_pin(dp);
            DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
                const float2 lse = *(const float2 *)(const void *)(stats + 8 * i);
                const float2 one[1] = {lse};
                sm90_exponentials((float(&)[4])s[4 * i], one, maps.factor);
            }
            if (masked) {
                const int row = 16 * wave + lane / 4, from = (int)i0 + sub * SUB + lane % 4 * 2;
                int2 a = *(const int2 *)(const void *)(seen + 2 * row),
                     b = *(const int2 *)(const void *)(seen + 2 * row + 16);
                a.x -= from, a.y -= from, b.x -= from, b.y -= from;
                sm90_mask_hidden(s, a, b, 0.0f);
            }
            if (any_dead) sm90_mask_dead_rows(s, stats, 0.0f);
            uint32_t p16[SUB / 4], ds16[SUB / 4];
            DEV_UNROLL_FOR (int i = 0; i < SUB / 4; ++i) p16[i] = dev_pack(T(), s[2 * i], s[2 * i + 1]);
            float2 delta[PIECES];
            DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) delta[i] = *(const float2 *)(const void *)(stats + BM + 8 * i);
            sm90_score_gradients<T>(ds16, dp, s, delta, masked || any_dead);
            DEV_UNROLL_FOR (int i = 0; i < SUB / 16; ++i)
                sm90_stmatrix_trans(ds_to + sub * (SUB * 128) + i * 2048, ds16 + 4 * i);
            sm90_mma_fence();
            DEV_UNROLL_FOR (int k = 0; k < SUB; k += 16) sm90_mma<T>::rs(dv, p16 + k / 4, dout.rows(sub * SUB + k));
            DEV_UNROLL_FOR (int k = 0; k < SUB; k += 16) sm90_mma<T>::rs(dk, ds16 + k / 4, q.rows(sub * SUB + k));
            sm90_mma_commit();
        };
        /* In SUBs of queries: outside [first, end) none sees a key of this warpgroup; in [plain_first, plain_end) all
         * see all 64. From `all` on no row sees any key: dS may stay what it was, since dQ's store writes zeros. */
        const int64_t key = 64 * group, used = tile.seq.kv.used;
        const stw_band band = tile.seq.band;
        int all = C::SUBS, first = 0, end = C::SUBS, plain_first = 0, plain_end = C::SUBS;
        if (!rows_whole || key + 64 > used || band.low > key - (i0 + BM - 1) || band.high < key + 63 - i0) {
            const int64_t low = tile.seq.q_low, rows_end = tile.seq.q_end;
            auto subs = [&](int64_t row, int begun) {
                return dev_uniform(((int)stw_clamp_i64(row - i0, 0, BM) + begun) / SUB);
            };
            enum { BEGUN = SUB - 1 };
            all = subs(rows_end, BEGUN);
            first = subs(stw_larger(low, key - band.high), 0);
            end = key < used ? subs(stw_smaller(rows_end, key + 64 - band.low), BEGUN) : 0;
            plain_first = subs(stw_larger(low, key + 63 - band.high), BEGUN);
            plain_end = key + 64 <= used ? subs(stw_smaller(rows_end, key + 1 - band.low), 0) : 0;
        }
        auto hides = [&](int sub) { return sub < plain_first || sub >= plain_end; };
        /* A loop of its own: a branch around products of the one below makes ptxas serialize all of them (C7511). */
        if (C::SUBS > 2 && end - first < C::SUBS) {
            auto zero = [&](int from, int to) {
                const uint32_t zeros[4] = {0, 0, 0, 0};
                DEV_ROLLED_FOR (int sub = from; sub < to; ++sub)
                    DEV_UNROLL_FOR (int i = 0; i < SUB / 16; ++i)
                        sm90_stmatrix_trans(ds_to + sub * (SUB * 128) + i * 2048, zeros);
            };
            zero(0, min(first, all));
            zero(max(end, first), all);
            DEV_ROLLED_FOR (int sub = first; sub < end; ++sub) {
                sm90_mma_fence();
                scores(sub);
                gradients(sub, hides(sub));
                sm90_mma_wait<0>();
                sm90_pin(dk);
                sm90_pin(dv);
            }
        } else {
            sm90_mma_fence();
            scores(0);
            DEV_UNROLL_FOR (int sub = 0; sub < C::SUBS; ++sub) {
                gradients(sub, hides(sub));
                if (sub + 1 < C::SUBS) scores(sub + 1);
            }
            sm90_mma_wait<0>();
            sm90_pin(dk);
            sm90_pin(dv);
        }
        sm90_fence_async_shared();
        dev_barrier();
        float dq[COLS / 2];
        const int wave_anew = sm90_thread_anew() / DEV_WAVE, part = wave_anew / 4;
        const int dq_rows = part % (BM / 64) * 64, dq_col = part / (BM / 64) * COLS;
        const sm90_operand<T, BM, BN> ds = {at0 + C::AT_DS / 16 + dq_rows * 8};
        const sm90_operand<T, BN, COLS, BN * 8> k_all = {at0 + C::AT_K / 16 + dq_col / 64 * (BN * 8) + dq_col % 64 / 8};
        sm90_mma_fence();
        mma_AB(dq, ds, k_all);
        sm90_mma_wait<0>(dq);
        const bool more = step + 1 < heads * blocks;
        if (more) { /* all have read Q and dO, and dS */
            dev_barrier();
            if (wave == 0 && step + C::STAGES < heads * blocks && sm90_elect())
                load.load_rows(tile.seq.q, tile.kv_head, tile.b, blocks, step + C::STAGES);
        } else if (COLS < HD) dev_barrier();
        else sm90_warpgroup_sync(group);
        const int64_t row = i0 + dq_rows + 16 * (wave_anew % 4);
        char *const mine =
            smem + C::AT_DS + wave_anew * 2048; /* COLS is HD: of the dQ rows that this warpgroup makes */
        T *to = (T *)p.dq.data + dev_row(p.dq, tile.b, head, tile.seq.q.first + row) + dq_col;
        /* Rows from q_end on become zeros: some of their dS was not written. */
        sm90_short_store<C>(dq, to, p.dq.seq, tile.seq.q_end - row, tile.seq.q.rows - row, (int)p.head_dim_qk - dq_col,
                            (l.vectors & STW_VECTOR_DQ) != 0, p.scale, mine);
        if (more) dev_barrier(); /* the next dS goes where rows of dQ have been */
    }
    if (!keys_arrived) load.keys().wait(0); /* nothing may arrive in shared memory of another CTA */
    /* V's rows of this warpgroup are multiplied by none but itself. */
    char *const stage = smem + C::AT_V + wave * 2048;
    sm90_warpgroup_sync(group);
    const int64_t row = 16 * wave, first = tile.seq.kv.first + row;
    sm90_short_store<C>(dv, (T *)p.dv.data + dev_row(p.dv, tile.b, tile.kv_head, first), p.dv.seq,
                        tile.seq.kv.used - row, tile.seq.kv.rows - row, (int)p.head_dim_v,
                        (l.vectors & STW_VECTOR_DV) != 0, 1.0f, stage);
    sm90_short_store<C>(dk, (T *)p.dk.data + dev_row(p.dk, tile.b, tile.kv_head, first), p.dk.seq,
                        tile.seq.kv.used - row, tile.seq.kv.rows - row, (int)p.head_dim_qk,
                        (l.vectors & STW_VECTOR_DK) != 0, p.scale, stage);
}

#endif
