/* SPDX-License-Identifier: MIT
 *
 * f32 in CDNA's own main loop (attn_bwd_cdna.h): without features besides masks of positions, or with all of them
 * (CDNA_EVERYTHING). The scheduler is the same, a step is another, of 16 query rows at a time, since no operand has to
 * be rounded, zipped or transposed:
 *
 *   an instruction takes one k of every lane, 4 in all; four of them, for the four floats of 16 bytes, make a product
 *   S  = Q K^T    Lane (n, g) reads columns 16 j + 4 g .. of row n of Q, and holds those of its keys. dP likewise.
 *   dV += P^T dO  The sums of S are (key n, queries 4 g .. 4 g + 3), the operand P^T as they are. A lane reads columns
 *   dK += dS^T Q  64 c + 4 n .. of row 4 g + e, its four k of four tiles of columns: the rows serve as they lie.
 *   dQ += dS K    dS goes through LDS by floats; K^T lies in registers, keys 16 p + 4 g + e of the wave's columns.
 *
 * The matrix unit sums 16 k at a time (mma_gfx9.h); ordinary additions do the rest. A product of so many k is a chain
 * of four instructions, several chains side by side. Their sums are added after the instructions of the chains that
 * follow, also of the next product, so that no addition waits for the matrix unit.
 *
 * Additions to dQ may take subnormal sums for zero, 2^-126 a term, which the accuracy rule grants f32; loops of
 * compare-and-swap had 400 to 980 bytes of scratch a lane.
 *
 * With features a step makes P after all of S, and dS after all of dP: beside products clang 19 would unroll both
 * with them. A bias is loaded for 16 queries, ahead of their products; what a step needs of features is made anew in
 * each, and some places in LDS where they are used, since K, V, K^T and sums leave few registers. The tanh of a softcap
 * is the shared kernels' (dev_tanh), whose error is one of f32.
 *
 * Of head dim 64 a work tile has 192 keys, of 128 it has 128, of 256 it has 64: in each K, V, K^T and the sums of dK
 * and dV take 240 or 320 registers of a lane. Rows in LDS are 8 banks apart as those of 16 bits are, so that no access
 * has a conflict. */
#ifndef STW_HIP_ATTN_BWD_CDNA_F32_H
#define STW_HIP_ATTN_BWD_CDNA_F32_H

#include "attn_bwd_cdna.h"

/* Shapes, as in attn_cdna. */
template <int HD_, int MODE_ = CDNA_PLAIN> struct attn_cdna_f32 {
    typedef float T;
    enum {
        HD = HD_,
        MODE = MODE_, /* plain, ordered, everything or everything ordered */
        P_SCALED = false,
        AHEAD = false,
        OTHERS = false, /* dropout is decided before a step */
        ENTERS = true,  /* features of a head anew in each step; else registers spill */
        TURNS = cdna_turns(MODE_, true, true),
        BM = HD_ > 64 ? 16 : 32, /* as in the tuning tables */
        BN = (int)STW_CDNA_F32_BN(HD_),
        HELD = 16,
        BIAS_ROWS = HELD,
        PARTS = BM / HELD,
        KEYS = BN / 4,
        TILES = KEYS / 16,
        SKIPS = 0,
        SCORES_HERE = 0,
        TIGHT = 0,
        WIDTH = HD,
        PIECES = HD / 32, /* two of 16 bytes a lane */
        PIECES_V = PIECES,
        FRAGMENTS = HD / 16, /* of 16 bytes a lane in 16 rows */
        HALVES = PARTS,
        COLUMNS = HD / 64,
        UNITS = HD / 64, /* vectors of Q that a thread brings, and of dO */
        IN_AGPRS = 1,
        ROW = HD * 4 + 32,
        SCORE_ROW = BN * 4 + 32,
        SCORE_FOUR = 4 * SCORE_ROW + 64,
        AT_Q = 0,
        AT_DOUT = AT_Q + HELD * ROW,
        AT_DS = AT_DOUT + HELD * ROW,
        AT_STATS = AT_DS + HELD / 4 * SCORE_FOUR,
        AT_WORK_TILE = AT_STATS + 2 * 32 * 4,
        STATS = 2 * BM + (int)STW_STATS_PAD
    };
    static_assert(AT_WORK_TILE + STW_CDNA_WORK_TILE_BYTES == STW_CDNA_F32_SMEM(HD_), "host and device agree on LDS");
};

/* a b + c of one instruction's shape, 16 x 16 x 4. */
DEV_FN leaf_f4 cdna_mma_4(float a, float b, leaf_f4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}
DEV_FN leaf_f4 cdna_floats(leaf_u4 x) { return __builtin_bit_cast(leaf_f4, x); }

/* K, V and K^T of a wave. */
template <int HD, int MODE> struct attn_cdna_kv<attn_cdna_f32<HD, MODE>> {
    typedef attn_cdna_f32<HD, MODE> C;
    leaf_f4 k[C::TILES][C::FRAGMENTS], v[C::TILES][C::FRAGMENTS];
    float kt[C::BN / 16][4][C::COLUMNS];

    /* Columns past the last and keys before `low` become zero. */
    DEV_FN void load_rows(leaf_f4 (&rows)[C::TILES][C::FRAGMENTS], cdna_buffer from, int stride, int cols, int low,
                          int key, int g) {
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
            DEV_UNROLL_FOR (int j = 0; j < C::FRAGMENTS; ++j) {
                const bool live = key + 16 * i >= low && 16 * j + 4 * g < cols;
                const uint32_t at = (uint32_t)((key + 16 * i) * stride + 16 * j + 4 * g) * 4;
                rows[i][j] = cdna_floats(__builtin_amdgcn_raw_buffer_load_b128(from, live ? at : CDNA_NOWHERE, 0, 0));
            }
    }
    DEV_METHOD void load(const attn_work_tile &u, int wave, int lane) {
        cdna_launch l = cdna_launch_again();
        const int64_t b = dev_uniform(u.b), j0 = dev_uniform(u.j0), row = dev_uniform(u.seq.kv.first) + j0;
        const int h = attn_cdna_key_head(u), n = lane % 16, g = lane / 16;
        const stw_range seen = stw_visible_keys(&u.seq);
        const int64_t left = stw_smaller(dev_uniform(seen.end) - j0, C::BN);
        const int low = (int)stw_clamp_i64(dev_uniform(seen.first) - j0, 0, C::BN);
        const int k_cols = cdna_cols<float>(l->p.head_dim_qk), v_cols = cdna_cols<float>(l->p.head_dim_v);
        const int k_stride = (int)l->p.k.seq, v_stride = (int)l->p.v.seq;
        const cdna_buffer from_k = cdna_buffer_of((const float *)l->p.k.data + cdna_row(l->p.k, b, h, row),
                                                  2 * cdna_extent(left, k_stride, (uint32_t)k_cols));
        const cdna_buffer from_v = cdna_buffer_of((const float *)l->p.v.data + cdna_row(l->p.v, b, h, row),
                                                  2 * cdna_extent(left, v_stride, (uint32_t)v_cols));
        load_rows(k, from_k, k_stride, k_cols, low, C::KEYS * wave + n, g);
        load_rows(v, from_v, v_stride, v_cols, low, C::KEYS * wave + n, g);
        DEV_UNROLL_FOR (int p = 0; p < C::BN / 16; ++p)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
                DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
                    const int key = 16 * p + 4 * g + e, column = 16 * (C::COLUMNS * wave + c) + n;
                    const uint32_t at = (uint32_t)(key * k_stride + column) * 4;
                    const bool live = key >= low && column < k_cols;
                    kt[p][e][c] = __builtin_bit_cast(
                        float, __builtin_amdgcn_raw_buffer_load_b32(from_k, live ? at : CDNA_NOWHERE, 0, 0));
                }
    }
};

/* Addresses in LDS. */
template <int HD, int MODE> struct attn_cdna_lds<attn_cdna_f32<HD, MODE>> {
    typedef attn_cdna_f32<HD, MODE> C;
    cdna_lds *row, *four; /* the lane's of row n, of row 4 g                      */
    cdna_lds *ds, *to_ds; /* of dS: fragments of query n; query 4 g of key n     */
    cdna_lds *stats, *to_stats;
    enum { MAKES = cdna_is_everything(MODE) }; /* places anew: to_stats is where statistics begin */

    DEV_METHOD void set(cdna_lds *lds, int wave, int lane) {
        const int n = lane % 16, g = lane / 16;
        row = lds + (n * C::ROW + g * 16);
        four = lds + (4 * g * C::ROW + n * 16);
        ds = lds + (C::AT_DS + n / 4 * C::SCORE_FOUR + n % 4 * C::SCORE_ROW + g * 16);
        to_ds = lds + (C::AT_DS + g * C::SCORE_FOUR + (C::KEYS * wave + n) * 4);
        stats = lds + (C::AT_STATS + g * 16);
        to_stats = lds + (C::AT_STATS + (MAKES ? 0 : lane * 4));
    }
    /* Fragment `at`: those of Q and dO by rows, those of dO and Q by fours of rows. */
    DEV_METHOD leaf_u4 read(int at) const {
        const int tensor = at / C::FRAGMENTS, j = at % C::FRAGMENTS;
        const int first = tensor == 1 || tensor == 2 ? C::AT_DOUT : C::AT_Q;
        if (tensor < 2) return cdna_get(row + (first + 64 * j));
        return cdna_get(four + (first + j % 4 * C::ROW + j / 4 * 256));
    }
    DEV_METHOD leaf_u4 read_ds(int p) const { return cdna_get(ds + 64 * p); }
    /* Of a part, the place for put_ds. */
    DEV_METHOD cdna_lds *place(int wave) const {
        if constexpr (!MAKES) return to_ds;
        const int lane = cdna_lane_anew();
        return to_stats + (C::AT_DS - C::AT_STATS + lane / 16 * C::SCORE_FOUR + (C::KEYS * wave + lane % 16) * 4);
    }
    DEV_FN void put_ds(cdna_lds *to, int i, int r, float x) { cdna_put(to + (r * C::SCORE_ROW + 64 * i), x); }
    DEV_METHOD cdna_lds *stat(uint32_t) const {
        if constexpr (MAKES) return to_stats + cdna_lane_anew() * 4;
        return to_stats;
    }
    DEV_METHOD leaf_f4 read_stats(int part, int delta) const {
        cdna_lds *const from = MAKES ? to_stats + cdna_lane_anew() / 16 * 16 : stats;
        return cdna_floats(cdna_get(from + (4 * C::BM * delta + 64 * part)));
    }
};

/* The next rows on their way: vectors of Q, of dO. */
template <int HD, int MODE> struct attn_cdna_ahead<attn_cdna_f32<HD, MODE>> {
    leaf_u4 rows[2][attn_cdna_f32<HD, MODE>::UNITS];
    float stat;
};

/* Q and dO of the query blocks of a head: a thread brings the vectors of its columns in rows STEP apart. */
template <int HD, int MODE> struct attn_cdna_queries<attn_cdna_f32<HD, MODE>> {
    typedef attn_cdna_f32<HD, MODE> C;
    typedef attn_cdna_ahead<C> ahead_rows;
    enum { LANES = HD / 4, STEP = 256 / LANES };
    cdna_lds *to;
    cdna_buffer from[2];
    uint32_t at[2], stride[2]; /* bytes */

    DEV_METHOD void set_places(cdna_lds *lds, int thread, int) {
        to = lds + (thread / LANES * C::ROW + thread % LANES * 16);
    }
    DEV_METHOD void enter_head(cdna_launch l, const attn_work_tile &u, int64_t b, int64_t row, int h, int first,
                               int thread) {
        const int64_t rows = dev_uniform(u.seq.q_end);
        auto enter = [&](int s, cdna_tensor &t, uint32_t cols) {
            from[s] =
                cdna_buffer_of((const float *)t.data + cdna_row(t, b, h, row), 2 * cdna_extent(rows, (int)t.seq, cols));
            stride[s] = (uint32_t)t.seq * 4;
            const uint32_t column = (uint32_t)(thread % LANES * 4);
            at[s] = column < cols ? (uint32_t)(first * C::BM + thread / LANES) * stride[s] + column * 4 : CDNA_NOWHERE;
        };
        enter(0, l->p.q, (uint32_t)cdna_cols<float>(l->p.head_dim_qk));
        enter(1, l->p.dout, (uint32_t)cdna_cols<float>(l->p.head_dim_v));
    }
    DEV_METHOD void fetch(ahead_rows &ahead) {
        DEV_UNROLL_FOR (int s = 0; s < 2; ++s)
            DEV_UNROLL_FOR (int i = 0; i < C::UNITS; ++i) {
                ahead.rows[s][i] = __builtin_amdgcn_raw_buffer_load_b128(from[s], at[s], 0, 0);
                at[s] += STEP * stride[s];
            }
    }
    DEV_FN void clear_before(ahead_rows &ahead, int low, int thread) {
        DEV_UNROLL_FOR (int s = 0; s < 2; ++s)
            DEV_UNROLL_FOR (int i = 0; i < C::UNITS; ++i)
                if (thread / LANES + STEP * i < low) ahead.rows[s][i] = leaf_u4{0, 0, 0, 0};
    }
    /* Part `part` of 2 UNITS, from registers to LDS. */
    DEV_METHOD void put(const ahead_rows &ahead, int part) const {
        const int s = part % 2, i = part / 2;
        cdna_put(to + (s * (C::AT_DOUT - C::AT_Q) + i * STEP * C::ROW), ahead.rows[s][i]);
    }
};

/* Operands of a part in LDS: a stream of rows, one of dS. */
template <class C> struct attn_cdna_f32_rows_source {
    enum { COUNT = 4 * C::FRAGMENTS, LATE = 0, AHEAD = 2 };
    DEV_FN leaf_u4 read(const attn_cdna_lds<C> &lds, int k) { return lds.read(k); }
};
template <class C> struct attn_cdna_f32_ds_source {
    enum { COUNT = C::BN / 16, LATE = 0, AHEAD = 2 };
    DEV_FN leaf_u4 read(const attn_cdna_lds<C> &lds, int k) { return lds.read_ds(k); }
};

/* Sums of chains that have not been added to what they belong to. */
template <int CHAINS> struct cdna_chains {
    enum { COUNT = CHAINS };
    leaf_f4 sum[CHAINS];
    DEV_METHOD leaf_f4 take(int x) {
        cdna_keep<true>(sum[x]);
        return sum[x];
    }
};

/* What runs after instruction m of INSTRUCTIONS of a product: first FIRST pieces, one each, then WORK pieces. */
template <int FIRST, int WORK, int INSTRUCTIONS, class First, class Work>
DEV_FN void cdna_behind(First &first, Work &work, int m) {
    if (m < FIRST) first(m);
    else {
        auto overlap = cdna_behind_product([&](int piece) { work(piece); });
        cdna_share<WORK, INSTRUCTIONS - FIRST>(overlap, m - FIRST);
    }
    CDNA_FENCE();
}

/* One product of an instruction of a chain: k = 4 e .. of its four; after the first, what the chain held before. */
template <int CHAINS, class Add>
DEV_FN void cdna_chain(cdna_chains<CHAINS> &of, int x, int e, bool holds, float a, float b, Add &&add) {
    if (e) {
        of.sum[x] = cdna_mma_4(a, b, of.sum[x]);
        CDNA_FENCE();
        return;
    }
    const leaf_f4 next = cdna_mma_4(a, b, leaf_f4{0, 0, 0, 0});
    CDNA_FENCE();
    if (holds) add(x);
    of.sum[x] = next;
    CDNA_FENCE();
}

/* acc[i] += A B[i]^T. A: 16 queries x HD; B: registers. */
template <int FIRST, int WORK, class C, class Stream, class First, class Work>
DEV_FN void attn_cdna_f32_ABt(leaf_f4 (&acc)[C::TILES], cdna_chains<2 * C::TILES> &chains, Stream &a, int at,
                              const attn_cdna_lds<C> &lds, const leaf_f4 (&b)[C::TILES][C::FRAGMENTS], First first,
                              Work work) {
    enum { CHAINS = 2 * C::TILES };
    auto add = [&](int x) { acc[x % C::TILES] += chains.take(x); };
    DEV_UNROLL_FOR (int j = 0; j < C::FRAGMENTS; j += 2) {
        a.want(lds, at + j);
        CDNA_FENCE();
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
            DEV_UNROLL_FOR (int x = 0; x < CHAINS; ++x) {
                const int i = x % C::TILES, fragment = j + x / C::TILES;
                cdna_chain(chains, x, e, j > 0, cdna_floats(a.ring[(at + fragment) % 4])[e], b[i][fragment][e], add);
                cdna_behind<FIRST, WORK, 2 * CHAINS * C::FRAGMENTS>(first, work, (2 * j + e) * CHAINS + x);
            }
    }
}

/* acc[i] += A[i]^T B. A: pairs of queries, registers; B: 16 queries x HD. */
template <int FIRST, int WORK, class C, class Stream, class First, class Work>
DEV_FN void attn_cdna_f32_AtB(leaf_f4 (&acc)[C::TILES][2 * C::PIECES], cdna_chains<4 * C::TILES> &chains,
                              const leaf_f2 (&a)[2 * C::TILES], Stream &b, int at, const attn_cdna_lds<C> &lds,
                              First first, Work work) {
    enum { CHAINS = 4 * C::TILES };
    DEV_UNROLL_FOR (int j = 0; j < C::FRAGMENTS; ++j) {
        const int c = j / 4, e = j % 4;
        auto add = [&](int x) { acc[x % C::TILES][4 * (c - 1) + x / C::TILES] += chains.take(x); };
        b.want(lds, at + j);
        CDNA_FENCE();
        DEV_UNROLL_FOR (int x = 0; x < CHAINS; ++x) {
            const int i = x % C::TILES;
            cdna_chain(chains, x, e, c > 0, a[e / 2 * C::TILES + i][e % 2],
                       cdna_floats(b.ring[(at + j) % 4])[x / C::TILES], add);
            cdna_behind<FIRST, WORK, CHAINS * C::FRAGMENTS>(first, work, j * CHAINS + x);
        }
    }
}

/* acc[c] += A B[c]. A: dS of 16 queries and all keys; B: registers. */
template <int FIRST, int WORK, class C, class Stream, class First, class Work>
DEV_FN void attn_cdna_f32_AB(leaf_f4 (&acc)[C::COLUMNS], cdna_chains<2 * C::COLUMNS> &chains, Stream &a,
                             const attn_cdna_lds<C> &lds, const float (&b)[C::BN / 16][4][C::COLUMNS], First first,
                             Work work) {
    enum { CHAINS = 2 * C::COLUMNS, COUNT = C::BN / 16 };
    auto add = [&](int x) { acc[x % C::COLUMNS] += chains.take(x); };
    DEV_UNROLL_FOR (int p = 0; p < COUNT; p += 2) {
        a.want(lds, p);
        CDNA_FENCE();
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
            DEV_UNROLL_FOR (int x = 0; x < CHAINS; ++x) {
                const int c = x % C::COLUMNS, fragment = p + x / C::COLUMNS;
                cdna_chain(chains, x, e, p > 0, cdna_floats(a.ring[fragment % 4])[e], b[fragment][e][c], add);
                cdna_behind<FIRST, WORK, 2 * CHAINS * COUNT>(first, work, (2 * p + e) * CHAINS + x);
            }
    }
}

/* One part of a query block, 16 rows. Between the two barriers run dQ and the stores of the next rows. */
template <int KIND, int HD, int MODE>
DEV_FN void attn_cdna_part(attn_cdna_loop<attn_cdna_f32<HD, MODE>> &w, int block, int part, bool) {
    typedef attn_cdna_f32<HD, MODE> C;
    enum { T = C::TILES, MASKED = KIND != CDNA_INNER, FRAGMENTS = C::FRAGMENTS, COLUMNS = C::COLUMNS };
    enum { EVERY = attn_cdna_scores<KIND, C>::EVERY, CAPPED = attn_cdna_scores<KIND, C>::CAPPED };
    if constexpr (EVERY) {
        w.feature.template fetch<true>();
        w.feature.prepare(part);
        if (part == 0) w.feature.enter_step(block, w.thread());
    }
    const leaf_f4 lse = w.lds.read_stats(part, 0);
    leaf_f4 delta = w.lds.read_stats(part, 1);
    attn_cdna_scores<KIND, C> t;
    cdna_chains<2 * T> of_s, of_dp;
    cdna_chains<4 * T> of_dv, of_dk;
    cdna_chains<2 * COLUMNS> of_dq;
    leaf_f4 dq[COLUMNS];
    cdna_stream<attn_cdna_f32_rows_source<C>> rows(w.lds);
    t.enter(w.scoring, w.feature, block, part);
    if constexpr (EVERY) t.start = delta *= (leaf_f4)w.feature.more.start;
    DEV_UNROLL_FOR (int i = 0; i < T; ++i) t.s[i] = leaf_f4{0, 0, 0, 0}, t.dp[i] = delta;
    DEV_UNROLL_FOR (int c = 0; c < COLUMNS; ++c) dq[c] = leaf_f4{0, 0, 0, 0};
    auto nothing = [](int) {};
    /* P = exp(scale S - LSE) of pair e of scores (attn_cdna_scores): the exponent, one power, the other */
    auto softmax = [&](int piece) {
        const int e = piece / 3, stage = piece % 3, k = e / T, i = e % T;
        if (stage == 0) {
            leaf_f2 x = k ? t.s[i].zw : t.s[i].xy;
            leaf_f2 factor = (leaf_f2)w.scoring.scale_log2, more = k ? lse.zw : lse.xy;
            if constexpr (EVERY) factor = (leaf_f2)t.scale_log2, more = t.added(w.feature, more, e);
            if constexpr (CAPPED) {
                DEV_UNROLL_FOR (int r = 0; r < 2; ++r) {
                    float slope;
                    x[r] = dev_tanh(x[r] * w.feature.more.doubled, &slope);
                    t.slopes[e][r] = slope;
                }
                factor = (leaf_f2)w.feature.more.cap;
            }
            t.p[e] = __builtin_elementwise_fma(x, factor, more);
            t.look(w.scoring, w.feature, lse, e);
            return;
        }
        const int r = stage - 1;
        if constexpr (MASKED) t.p[e][r] = t.sees[e][r] ? t.p[e][r] : -dev_infinity();
        t.p[e][r] = dev_exp2_fast(t.p[e][r]);
    };
    auto sloped = [&](int e) {
        if constexpr (!CAPPED) return t.ds[e];
        else return leaf_f2{cdna_times(t.ds[e].x, t.slopes[e].x), cdna_times(t.ds[e].y, t.slopes[e].y)};
    };
    /* dS = P (dP - delta): the product, to LDS. Under a softcap the derivative comes there, since dBias is without. */
    cdna_lds *to_ds = w.lds.place(w.wave);
    auto gradient = [&](int piece) {
        const int e = piece / 2, k = e / T, i = e % T;
        if (piece % 2) {
            const leaf_f2 ds = sloped(e);
            w.lds.put_ds(to_ds, i, 2 * k, ds.x);
            w.lds.put_ds(to_ds, i, 2 * k + 1, ds.y);
            return;
        }
        if constexpr (EVERY) {
            t.ds[e] = t.flow_into(t.p[e], e);
        } else {
            const leaf_f2 flow = k ? t.dp[i].zw : t.dp[i].xy;
            if constexpr (MASKED) t.ds[e] = leaf_f2{cdna_times(t.p[e].x, flow.x), cdna_times(t.p[e].y, flow.y)};
            else t.ds[e] = t.p[e] * flow;
        }
    };
    auto add_s = [&](int x) { t.s[x % T] += of_s.take(x); };
    auto add_dp = [&](int x) { t.dp[x % T] += of_dp.take(x); };
    auto add_dv = [&](int x) { w.dv[x % T][4 * (COLUMNS - 1) + x / T] += of_dv.take(x); };
    auto add_dk = [&](int x) { w.dk[x % T][4 * (COLUMNS - 1) + x / T] += of_dk.take(x); };
    auto put_next_rows = [&](int piece) {
        if (piece < 2 * C::UNITS) w.queries.put(w.ahead, piece);
        else if (part == C::PARTS - 1) w.stats.put(w.ahead, w.lds, w.dq.at);
    };
    attn_cdna_f32_ABt<0, 0, C>(t.s, of_s, rows, 0, w.lds, w.keys.k, nothing, nothing);
    if constexpr (EVERY) { /* one after the other: what is beside a product is unrolled with all of it */
        DEV_UNROLL_FOR (int x = 0; x < 2 * T; ++x) add_s(x);
        DEV_UNROLL_FOR (int piece = 0; piece < 6 * T; ++piece) softmax(piece);
        attn_cdna_f32_ABt<0, 0, C>(t.dp, of_dp, rows, FRAGMENTS, w.lds, w.keys.v, nothing, nothing);
        DEV_UNROLL_FOR (int x = 0; x < 2 * T; ++x) add_dp(x);
        to_ds = w.lds.place(w.wave);
        DEV_UNROLL_FOR (int piece = 0; piece < 4 * T; ++piece) gradient(piece);
        w.feature.template store_gradient<false>(t, 1.0f, block, part, w.thread());
        DEV_UNROLL_FOR (int e = 0; e < 2 * T; ++e) {
            t.ds[e] = sloped(e);
            t.p[e] = t.kept(t.p[e], leaf_f2{0.0f, 0.0f}, e % T, e / T);
        }
        attn_cdna_f32_AtB<0, 0, C>(w.dv, of_dv, t.p, rows, 2 * FRAGMENTS, w.lds, nothing, nothing);
        DEV_UNROLL_FOR (int x = 0; x < 4 * T; ++x) add_dv(x);
        attn_cdna_f32_AtB<0, 0, C>(w.dk, of_dk, t.ds, rows, 3 * FRAGMENTS, w.lds, nothing, nothing);
        DEV_UNROLL_FOR (int x = 0; x < 4 * T; ++x) add_dk(x);
    } else {
        attn_cdna_f32_ABt<2 * T, 6 * T, C>(t.dp, of_dp, rows, FRAGMENTS, w.lds, w.keys.v, add_s, softmax);
        attn_cdna_f32_AtB<2 * T, 4 * T, C>(w.dv, of_dv, t.p, rows, 2 * FRAGMENTS, w.lds, add_dp, gradient);
        attn_cdna_f32_AtB<4 * T, 0, C>(w.dk, of_dk, t.ds, rows, 3 * FRAGMENTS, w.lds, add_dv, nothing);
    }
    if (part == 0) w.turn.acknowledge();
    cdna_barrier(); /* all waves have written dS and read Q and dO */
    if (part == 0) {
        w.turn.pass_on();
        w.turn.look();
    }
    cdna_stream<attn_cdna_f32_ds_source<C>> ds(w.lds);
    if constexpr (EVERY)
        attn_cdna_f32_AB<0, 2 * C::UNITS + 1, C>(dq, of_dq, ds, w.lds, w.keys.kt, nothing, put_next_rows);
    else attn_cdna_f32_AB<4 * T, 2 * C::UNITS + 1, C>(dq, of_dq, ds, w.lds, w.keys.kt, add_dk, put_next_rows);
    /* loads come before the additions, so that no step waits for its own */
    w.queries.fetch(w.ahead);
    if (part == C::PARTS - 1) w.stats.fetch(w.ahead, w.dq.at);
    CDNA_FENCE();
    DEV_UNROLL_FOR (int x = 0; x < 2 * COLUMNS; ++x) dq[x % COLUMNS] += of_dq.take(x);
    if (part == 0) w.turn.wait(block);
    w.dq.add(dq, part, false);
    if (part == C::PARTS - 1) {
        w.dq.next();
        w.turn.next();
    }
    cdna_barrier(); /* all waves have written the next rows and read dS */
}

#endif
