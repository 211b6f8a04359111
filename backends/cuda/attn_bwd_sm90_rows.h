/* SPDX-License-Identifier: MIT
 *
 * The kernels before and after sm90's own main loop (attn_bwd_sm90.h) for the usual options, made for the bandwidth
 * of memory; attn_sm90.c chooses them, and attn_bwd_preprocess.h and attn_bwd_postprocess.h take all other options. A
 * CTA has a query block, and CTAs go from the last block to the first: the main loop begins with the first heads, whose
 * zeros and dO are in L2 then, and ends with the last heads, whose sums are. Where work tiles are parts that add their
 * sums of dK and dV (STW_SM90_PARTS_ADD), the first kernel zeroes these, and CTAs of the last one make dK and dV. */
#ifndef STW_CUDA_ATTN_BWD_SM90_ROWS_H
#define STW_CUDA_ATTN_BWD_SM90_ROWS_H

#include "common/kernels/attn_bwd_preprocess.h"

/* HD: head_dim of the main loop. A row of dO is LANES lanes wide, 16 bytes each. */
template <class T_, int HD_> struct sm90_rows {
    typedef T_ T;
    enum {
        HD = HD_,
        BM = STW_SM90_BM(HD_),
        WIDTH = (HD + 63) / 64 * 64,
        LANES = WIDTH / 8,
        WARPS = ATTN_ROW_THREADS / DEV_WAVE,
        AT_ONCE = DEV_WAVE / LANES,      /* rows of a warp          */
        PASSES = BM / (WARPS * AT_ONCE), /* of a warp over its rows */
        BN = 128,                        /* keys of a work tile */
        STATS = 2 * BM + (int)STW_STATS_PAD,
        SUMS = BM * WIDTH,                    /* of dQ                           */
        TILES = SUMS / (ATTN_ROW_THREADS * 4) /* of dQ's registers, a thread's */
    };
    static_assert(PASSES == 4, "four lanes of a row write the statistics of four rows");
    static_assert(TILES == 8, "a warp has 16 rows and 64 columns of dQ");
    static_assert(BN == WARPS * 16, "a warp has 16 rows of dK or dV, too");
};

/* Which query block: `number` counts those of all heads. */
struct sm90_rows_tile {
    stw_attn_seq seq;
    int64_t b, h, row0, at;
    /* False: there is none. */
    DEV_METHOD bool set(const stw_attn_launch &l, int bm, int64_t number, char *smem) {
        const attn_tile tile = attn_tile_of(l.p, bm, number, (int32_t *)(void *)smem);
        if (!tile.live) return false;
        b = tile.b;
        h = tile.h;
        row0 = tile.block * bm;
        seq = stw_attn_seq_of(&l.p, bm, b);
        at = h * l.q_blocks + seq.q_block + tile.block;
        return row0 < seq.q.rows;
    }
    /* A bound of the rows, counted from the block's first. */
    DEV_METHOD int local(int64_t row, int bm) const { return (int)stw_clamp_i64(row - row0, 0, bm); }
};

/* Eight columns of a row, of which `cols` exist. */
template <class T> DEV_FN dev_vector sm90_rows_load(const T *from, bool vectors, int cols) {
    if (vectors) return dev_load_vector(from);
    dev_vector x = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int i = 0; i < 8; ++i)
        if (i < cols) x.word[i / 2] |= (uint32_t)from[i].bits << (i % 2 * 16);
    return x;
}

/* D = rowsum(dO*O), the statistics and marks of a query block, and zeros in its dQ sums: what attn_bwd_preprocess does
 * without dLSE, a given D, D for the caller and dSink. */
template <class C> DEV_FN void sm90_preprocess_rows(const stw_attn_launch &l, const sm90_rows_tile &u, char *smem) {
    typedef typename C::T T;
    const stw_attn_params &p = l.p;
    const uint32_t both = STW_VECTOR_OUT | STW_VECTOR_DOUT;
    const bool vectors = (l.vectors & both) == both, negated = (l.vectors & STW_STATS_NEGATED) != 0;
    const int t = (int)dev_thread(), lane = (int)dev_lane(), warp = t / DEV_WAVE, sub = lane % C::LANES;
    const int row0 = warp * (C::PASSES * C::AT_ONCE) + lane / C::LANES, cols = (int)p.head_dim_v - sub * 8;
    const int low = u.local(u.seq.q_low, C::BM), end = u.local(u.seq.q_end, C::BM), used = u.local(u.seq.q.used, C::BM);
    const int mine =
        row0 + sub * C::AT_ONCE; /* whose statistics this lane writes, if it is one of a row's first four */
    const bool writes = sub < C::PASSES;
    float lse = dev_infinity();
    if (writes && mine < used)
        lse = *attn_float_at(p.lse, (p.features & STW_FEAT_PACKED_LSE) != 0, u.seq, u.b, u.h, u.row0 + mine);
    const int64_t row = u.seq.q.first + u.row0 + row0;
    const T *dout = (const T *)p.dout.data + dev_row(p.dout, u.b, u.h, row) + sub * 8;
    const T *out = (const T *)p.out.data + dev_row(p.out, u.b, u.h, row) + sub * 8;
    dev_vector x[C::PASSES], y[C::PASSES];
    DEV_UNROLL_FOR (int k = 0; k < C::PASSES; ++k) { /* all loads first */
        const int i = row0 + k * C::AT_ONCE;
        x[k] = y[k] = dev_vector{{0, 0, 0, 0}};
        if (i < low || i >= end || cols <= 0) continue;
        x[k] = sm90_rows_load(dout + k * C::AT_ONCE * p.dout.seq, vectors, cols);
        y[k] = sm90_rows_load(out + k * C::AT_ONCE * p.out.seq, vectors, cols);
    }
    float *sums = l.dq + u.at * (int64_t)C::SUMS + t * 4;
    DEV_UNROLL_FOR (int f = 0; f < C::TILES; ++f)
        dev_store_vector(sums + f * (ATTN_ROW_THREADS * 4), dev_vector{{0, 0, 0, 0}});
    float delta = 0.0f, most = 0.0f, sum[C::PASSES];
    DEV_UNROLL_FOR (int k = 0; k < C::PASSES; ++k) {
        attn_dot d = {0.0f, most};
        DEV_UNROLL_FOR (int e = 0; e < 8; ++e)
            d.add(dev_half_of(T(), x[k].word[e / 2], e & 1), dev_half_of(T(), y[k].word[e / 2], e & 1));
        sum[k] = d.sum;
        most = d.most;
    }
    DEV_UNROLL_FOR (int k = 0; k < C::PASSES; ++k) {
        DEV_UNROLL_FOR (int mask = C::LANES / 2; mask > 0; mask /= 2) sum[k] += dev_shuffle_xor(sum[k], mask);
        if (sub == k) delta = sum[k];
    }
    const bool infinite = writes && dev_is_infinite(lse), sees = mine >= low && mine < end;
    if (writes) {
        const float negative = lse != lse ? __builtin_nanf("") : lse * -DEV_LOG2E;
        float *stats = l.stats + u.at * C::STATS + mine;
        stats[0] = !negated ? lse : !sees || infinite ? -dev_infinity() : negative;
        stats[C::BM] = !negated ? delta : sees && !infinite ? -delta : 0.0f;
        most = fmaxf(most, fabsf(delta));
    }
    most = dev_wave_max(most);
    const float special = dev_wave_max(infinite ? 1.0f : 0.0f);
    float(*marks)[2] = (float(*)[2])(void *)(smem + STW_ROW_SMEM / 2);
    if (lane == 0) marks[warp][0] = special, marks[warp][1] = most;
    dev_barrier();
    if (t) return;
    float of_block[2] = {marks[0][0], marks[0][1]};
    DEV_UNROLL_FOR (int w = 1; w < C::WARPS; ++w)
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) of_block[i] = fmaxf(of_block[i], marks[w][i]);
    float *to = l.stats + u.at * C::STATS + 2 * C::BM;
    to[0] = of_block[0];
    to[1] = of_block[1] > 0.0f && of_block[1] < ATTN_SUBNORMAL_ROWS ? 1.0f : 0.0f;
}

/* Tells whether key blocks add to query head h of sequence b from the first to the last, as sm90_scheduler numbers
 * them. */
DEV_FN bool sm90_head_ascends(const stw_attn_launch &l, int64_t b, int64_t h) {
    if (!(l.vectors & STW_SM90_LAST_ASCEND)) return false;
    const uint32_t heads_kv = (uint32_t)l.p.heads_kv, all = (uint32_t)l.p.batch * heads_kv,
                   together = (uint32_t)l.heads_in_l2, head = (uint32_t)b * heads_kv + (uint32_t)h / l.p.group;
    return head / together * together + together >= all;
}

/* Key blocks of all kv heads, whose sums of dK and dV parts add to. */
DEV_FN int64_t sm90_added_blocks(const stw_attn_launch &l) {
    return l.vectors & STW_SM90_PARTS_ADD ? stw_quotient(l.p.heads_kv, l.head_parts) * l.part_entries : 0;
}
/* Zeros where parts will add: the share of CTA `number` of `ctas`. */
template <class C> DEV_FN void sm90_zero_parts(const stw_attn_launch &l, int64_t number, int64_t ctas) {
    const int64_t vectors = sm90_added_blocks(l) * (2 * C::BN * C::HD / 4);
    DEV_ROLLED_FOR (int64_t i = number * ATTN_ROW_THREADS + dev_thread(); i < vectors; i += ctas * ATTN_ROW_THREADS)
        dev_store_vector(l.part_sums + 4 * i, dev_vector{{0, 0, 0, 0}});
}

/* The kernel. CTAs before and past those of query blocks: see attn_bwd_preprocess. */
template <class C> DEV_FN void sm90_preprocess(const stw_attn_launch &l, char *smem) {
    dev_let_next_begin();
    const int64_t last = l.work_tiles - 1;
    if (dev_cta() == last) {
        if (dev_thread() == 0) attn_reset_tile_counters<typename C::T>(l);
        attn_check(l.p, smem, l.unordered);
    }
    if (dev_cta() >= last) return;
    if (dev_cta() < l.lists) {
        attn_list_key_blocks<attn_list_sizes<C::BM, C::BN>>(l, smem);
        return;
    }
    sm90_zero_parts<C>(l, last - 1 - dev_cta(), last - l.lists);
    sm90_rows_tile u;
    if (!u.set(l, C::BM, last - 1 - dev_cta(), smem)) return;
    if (l.dq_semaphore && dev_thread() == 0) {
        const stw_range keys = stw_key_blocks(&u.seq, C::BM, l.bn, u.row0 / C::BM);
        l.dq_semaphore[u.at] = sm90_head_ascends(l, u.b, u.h) ? (uint32_t)keys.first - 1
                               : l.vectors & STW_KEYS_DESCEND ? (uint32_t)keys.end
                                                              : 0;
    }
    sm90_preprocess_rows<C>(l, u, smem);
}

/* A gradient's rows, in the inputs' type. `first`: where row 0 of the block starts; `used`, `end`: its rows that are
 * used, that exist. */
template <class T> struct sm90_gradient_rows {
    T *first;
    int64_t stride;
    int used, end, cols;
    float scale;
    bool vectors;

    /* A warp's 16 rows from row0 on and 64 columns from col0 on, in the order of the accumulators: of a thread's tiles
     * of registers four side by side are gathered to vectors. */
    template <int TILES> DEV_METHOD void store(const dev_vector (&x)[TILES], int row0, int col0) const {
        enum { GATHERED = 4 };
        const int lane = (int)dev_lane();
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            const int row = row0 + leaf_slot_row(lane, slot);
            T *const to = first + row * stride;
            DEV_UNROLL_FOR (int f = 0; f < TILES; f += GATHERED) {
                uint32_t w[GATHERED];
                DEV_UNROLL_FOR (int g = 0; g < GATHERED; ++g) {
                    const float low = dev_of_bits(x[f + g].word[2 * slot]),
                                high = dev_of_bits(x[f + g].word[2 * slot + 1]);
                    w[g] = row < used ? dev_pack(T(), low * scale, high * scale) : 0u;
                }
                leaf_gather<GATHERED>(w, lane);
                const int col = col0 + leaf_gathered_col<GATHERED>(lane) + f * LEAF_MMA_N;
                if (row >= end || col >= cols) continue;
                if (vectors) dev_store_words<GATHERED>(to + col, w);
                else
                    DEV_UNROLL_FOR (int i = 0; i < 2 * GATHERED; ++i)
                        to[col + i].bits = (uint16_t)(w[i / 2] >> (i % 2 * 16));
            }
        }
    }
};

/* dQ of a query block. */
template <class C> DEV_FN void sm90_postprocess_rows(const stw_attn_launch &l, int64_t number, char *smem) {
    typedef typename C::T T;
    enum { ACROSS = C::WIDTH / 64 };
    const stw_attn_params &p = l.p;
    sm90_rows_tile u;
    if (!u.set(l, C::BM, number, smem)) return;
    const int t = (int)dev_thread(), warp = t / DEV_WAVE;
    const float *sums = l.dq + u.at * (int64_t)C::SUMS + t * 4;
    dev_vector x[C::TILES];
    DEV_UNROLL_FOR (int f = 0; f < C::TILES; ++f) x[f] = dev_load_vector(sums + f * (ATTN_ROW_THREADS * 4));
    const sm90_gradient_rows<T> dq = {(T *)p.dq.data + dev_row(p.dq, u.b, u.h, u.seq.q.first + u.row0),
                                      p.dq.seq,
                                      u.local(u.seq.q.used, C::BM),
                                      u.local(u.seq.q.rows, C::BM),
                                      (int)p.head_dim_qk,
                                      p.scale,
                                      (l.vectors & STW_VECTOR_DQ) != 0};
    dq.store(x, warp / ACROSS * LEAF_MMA_M, warp % ACROSS * 64);
}

/* dK or dV of a key block and kv head, of which all parts have added their sums, 64 columns. */
template <class C> DEV_FN void sm90_postprocess_keys(const stw_attn_launch &l, int64_t number) {
    typedef typename C::T T;
    enum { PANELS = C::WIDTH / 64, TILES = 8, ACROSS = C::HD / LEAF_MMA_N };
    const stw_attn_params &p = l.p;
    const int panel = (int)(number % PANELS), of_dv = (int)(number / PANELS & 1);
    const int64_t key = number / (2 * PANELS), head = stw_quotient(key, l.part_entries);
    const int64_t block = key - head * l.part_entries, entry = block * (int)l.row_parts;
    if (!(p.outputs & (of_dv ? STW_OUT_DV : STW_OUT_DK))) return;
    if ((p.features & STW_FEAT_PACKED_KV) && entry >= stw_quotient((int64_t)l.listed[0], p.heads_kv)) return;
    const attn_key_block &k = ((const attn_key_block *)l.key_blocks)[entry];
    const int t = (int)dev_thread();
    const float *sums = l.part_sums + (key * 2 + of_dv) * (C::BN * C::HD) + t * 4;
    dev_vector x[TILES];
    DEV_UNROLL_FOR (int f = 0; f < TILES; ++f) {
        x[f] = dev_vector{{0, 0, 0, 0}};
        if (ACROSS % TILES == 0 || panel * TILES + f < ACROSS)
            x[f] = dev_load_vector(sums + (panel * TILES + f) * (ATTN_ROW_THREADS * 4));
    }
    const stw_tensor_param &to = of_dv ? p.dv : p.dk;
    const sm90_gradient_rows<T> rows = {(T *)to.data + dev_row(to, k.b, head, k.seq.kv.first + k.j0),
                                        to.seq,
                                        (int)stw_clamp_i64(k.seq.kv.used - k.j0, 0, C::BN),
                                        (int)stw_clamp_i64(k.seq.kv.rows - k.j0, 0, C::BN),
                                        (int)(of_dv ? p.head_dim_v : p.head_dim_qk),
                                        of_dv ? 1.0f : p.scale,
                                        (l.vectors & (of_dv ? STW_VECTOR_DV : STW_VECTOR_DK)) != 0};
    rows.store(x, t / DEV_WAVE * LEAF_MMA_M, panel * 64);
}

/* The kernel. Where parts add: dK and dV, and past these CTAs those of dQ. */
template <class C> DEV_FN void sm90_postprocess(const stw_attn_launch &l, char *smem) {
    dev_await_previous();
    if (dev_cta() >= l.work_tiles) return;
    const int64_t keys = sm90_added_blocks(l) * (2 * C::WIDTH / 64);
    if (dev_cta() < keys) sm90_postprocess_keys<C>(l, dev_cta());
    else sm90_postprocess_rows<C>(l, l.work_tiles - 1 - dev_cta(), smem);
}

#endif
