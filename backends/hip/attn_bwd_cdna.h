/* SPDX-License-Identifier: MIT
 *
 * CDNA's own main loop of the backward pass: 16-bit, head dims up to 64 and 128, no features that touch single
 * pairs, dQ, dK and dV all wanted, rows that are whole vectors (backends/hip/attn_cdna.c: cdna_refusal); every other
 * problem takes attn_bwd.h. Sums of dQ lie as that loop's, statistics are negated (STW_STATS_NEGATED).
 *
 * A block of four waves owns 192 keys of one kv head and walks over the queries of every head of its group, 32 rows a
 * step, of which S and dP are made in two halves:
 *
 *              keys ->  0        48       96       144      192
 *    queries  0..15    | wave 0 | wave 1 | wave 2 | wave 3 |     a wave's part is three 16 x 16 tiles
 *            16..31    |        |        |        |        |
 *
 * Why no operand needs a shuffle (lane l: n = l % 16, g = l / 16; layouts in mma_gfx9.h):
 *   S  = Q K^T    Both operands may order the columns at will: a lane reads 16 bytes of a row (columns 8g.. of 32) and
 *                 feeds two products. K and V stay in registers. dP = dO V^T likewise, its sums start at -D.
 *   dV += P^T dO  The sums of S are (key n, queries 4g..4g+3): rounded, this is the operand P^T. The other one wants
 *   dK += dS^T Q  four queries of a column: transposed copies of dO and Q, 16 bytes of a lane are two columns.
 *   dQ = dS K     Over all 192 keys: dS goes through LDS; each wave makes HD/4 columns with K^T in registers. A lane
 *                 needs several keys of a query but owns several queries of a key: tiles 0 and 1 are zipped into words
 *                 (key n, key 16 + n), tile 2 is stored by halves, and K^T is gathered once in the resulting order.
 *
 * LDS has 32 banks of 4 bytes. AMD documents which lanes of a 16-byte read go in one cycle: 0-3 with 20-23, 4-7 with
 * 16-19, 8-11 with 28-31, 12-15 with 24-27, the same + 32; of a 16-byte write eight in order. Taken to go in order,
 * too: 16 lanes of 8 bytes, 32 of 4. No access has a conflict then (tests/cdna_emu/check_banks.py):
 *   Q, dO rows    32 x (2 HD + 32) bytes each   read 16 bytes: rows start 8 banks apart, rows n and n + 4 are read at g
 *   and
 *                                               g + 1, in the banks between; written 8 along a row
 *   Q^T, dO^T     32 x 2 HD each                [half][pair of columns][g][n][2 columns][4 queries]: lanes contiguous
 *   dS            8 x (4 x 416 + 64)            a query: 4 waves x 64 bytes of zipped keys, 4 x 32 of tile 2, padding;
 *   read
 *                                               as Q; written by words, g and g + 1 in different halves of the banks
 *
 * A step has two barriers. Between them: dK of the second half (its Q^T was read before the first), dQ, and the next 32
 * rows from registers, loaded one step ahead, to LDS. The order of instructions is written out: a piece of softmax
 * behind each product of dP, a piece of dS behind each of dV, reads of LDS in pairs, two ahead.
 * Head dim 128: one wave a SIMD, up to 512 registers. 64: two; with 256 registers and no asm operand in AGPRs clang
 * leaves the sums in ordinary registers and moves none. */
#ifndef STW_HIP_ATTN_BWD_CDNA_H
#define STW_HIP_ATTN_BWD_CDNA_H
#include "cdna.h"

/* Shapes, and the registers of a wave. */
template <class T_, int HD_> struct attn_cdna {
    typedef T_ T;
    enum {
        HD = HD_,
        BM = 32,
        BN = (int)STW_CDNA_BN,
        TILES = 3,                   /* of 16 keys, a wave's                              */
        PIECES = HD / 32,            /* of 16 bytes a lane in 16 rows                     */
        COLUMNS = HD / 64,           /* 16-column tiles of dQ a wave                      */
        TENSORS = HD == 128 ? 2 : 1, /* of Q and dO, that a thread brings               */
        PER = 4 / PIECES,            /* pieces of softmax or dS behind a product          */
        IN_AGPRS = HD == 128,
        ROW = HD * 2 + 32,
        SCORE_ROW = BN * 2 + 32,
        SCORE_FOUR = 4 * SCORE_ROW + 64, /* four rows                               */
        TRANSPOSED = 16 * HD * 2,        /* bytes of a half                                   */
        AT_Q = 0,
        AT_DOUT = AT_Q + BM * ROW,
        AT_QT = AT_DOUT + BM * ROW,
        AT_DOUTT = AT_QT + 2 * TRANSPOSED,
        AT_DS = AT_DOUTT + 2 * TRANSPOSED,
        AT_WORK_TILE = AT_DS + BM / 4 * SCORE_FOUR,
        STATS = 2 * BM + (int)STW_STATS_PAD
    };
    static_assert(AT_WORK_TILE + STW_WORK_TILE_BYTES == STW_CDNA_SMEM(HD_), "host and device agree on LDS");
    static_assert(HD == 128 || 2 * STW_CDNA_SMEM(HD_) <= 65536, "two blocks share a compute unit");

    leaf_u2 k[TILES][PIECES][2], v[TILES][PIECES][2], kt[6][2][COLUMNS];
    leaf_f4 dk[TILES][2 * PIECES], dv[TILES][2 * PIECES];
    /* in LDS: fragments of rows, of transposed tiles and of dS; where dS goes, zipped and single; where rows go */
    cdna_lds *rows, *columns, *scores, *pairs, *pairs2, *singles, *put_rows, *put_columns;
    float scale_log2;
    /* a head */
    cdna_buffer from[TENSORS][4]; /* one a row of four, so that four loads share an offset */
    cdna_buffer stats;
    char *sums, *sums_above;
    uint32_t at[TENSORS], step_bytes[TENSORS], at_stats, at_sums;
    leaf_u2 next[TENSORS][4]; /* rows on their way */
    leaf_f4 lse, delta;       /* of the next half: -LSE log2(e), -D */
    /* pairs in sight: row - key - first_seen in [0, span], and keys in use */
    int seen_from, span;
    int keys_left;
    uint64_t subnormal; /* steps of a run, a bit each */
    bool exact;         /* K or V is subnormal                 */
    bool bounded;       /* the mask has a left bound      */
};

/* What was read of keys before `low` and of columns past the last becomes zero. */
template <class C> DEV_FN void attn_cdna_clear_keys(C &w, int low, int k_cols, int v_cols, int wave, int lane) {
    int n = lane % 16, g = lane / 16;
    const leaf_u2 zero = {0, 0};
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j) {
            bool live = 48 * wave + 16 * i + n >= low, k_live = live && 32 * j + 8 * g < k_cols,
                 v_live = live && 32 * j + 8 * g < v_cols;
            DEV_UNROLL_FOR (int e = 0; e < 2; ++e) {
                w.k[i][j][e] = k_live ? w.k[i][j][e] : zero;
                w.v[i][j][e] = v_live ? w.v[i][j][e] : zero;
            }
        }
    DEV_UNROLL_FOR (int p = 0; p < 6; ++p)
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
            DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
                uint32_t keep[2] = {0, 0};
                DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
                    int e = 4 * half + i, key = p < 4 ? 48 * p + 16 * (e & 1) + 4 * g + (e >> 1)
                                                      : 48 * (2 * (p - 4) + (g >> 1)) + 32 + 8 * (g & 1) + e;
                    if (key >= low && 16 * (C::COLUMNS * wave + c) + n < k_cols)
                        keep[i / 2] |= i & 1 ? 0xffff0000u : 0xffffu;
                }
                w.kt[p][half][c] &= leaf_u2{keep[0], keep[1]};
            }
}

/* K and V, operands of S and dP: lane n has key 16i + n of the wave's 48, lane group g 8 of 32 columns. K^T, operand
 * of dQ: the wave's columns, keys in the order in which dS lies in LDS. */
template <class C> DEV_FN void attn_cdna_epilogue(C &w, const attn_work_tile &u, int wave, int lane) {
    cdna_launch l = cdna_launch_again();
    int64_t b = dev_uniform(u.b), j0 = dev_uniform(u.j0), row = dev_uniform(u.seq.kv.first) + j0;
    int h = dev_uniform(u.kv_head), n = lane % 16, g = lane / 16;
    stw_range seen = stw_visible_keys(&u.seq);
    int64_t left = dev_uniform(seen.end) - j0;
    int low = (int)stw_clamp_i64(dev_uniform(seen.first) - j0, 0, C::BN);
    int k_cols = (int)l->p.head_dim_qk, v_cols = (int)l->p.head_dim_v, k_stride = (int)l->p.k.seq,
        v_stride = (int)l->p.v.seq;
    left = left < C::BN ? left : C::BN;
    cdna_buffer kb = cdna_buffer_of((const char *)l->p.k.data + cdna_row(l->p.k, b, h, row) * 2,
                                    cdna_extent(left, k_stride, (uint32_t)k_cols));
    cdna_buffer vb = cdna_buffer_of((const char *)l->p.v.data + cdna_row(l->p.v, b, h, row) * 2,
                                    cdna_extent(left, v_stride, (uint32_t)v_cols));
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
        int key = 48 * wave + 16 * i + n;
        int k_at = (key * k_stride + 8 * g) * 2, v_at = (key * v_stride + 8 * g) * 2;
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j) {
            leaf_u4 x = __builtin_amdgcn_raw_buffer_load_b128(kb, k_at + 64 * j, 0, 0);
            leaf_u4 y = __builtin_amdgcn_raw_buffer_load_b128(vb, v_at + 64 * j, 0, 0);
            w.k[i][j][0] = x.xy, w.k[i][j][1] = x.zw, w.v[i][j][0] = y.xy, w.v[i][j][1] = y.zw;
        }
    }
    const int single = 16 * C::COLUMNS * wave + n, k_step = 2 * k_stride;
    const int at[2] = {(4 * g * k_stride + single) * 2, ((48 * (g >> 1) + 32 + 8 * (g & 1)) * k_stride + single) * 2};
    DEV_UNROLL_FOR (int p = 0; p < 6; ++p)
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
            uint32_t x[4][C::COLUMNS];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
                int e = 4 * half + i,
                    key = p < 4 ? 48 * p + 16 * (e & 1) + (e >> 1) : 96 * (p - 4) + e; /* and the lane's */
                int from = at[p >= 4] + key * k_step;
                DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c)
                    x[i][c] = __builtin_amdgcn_raw_buffer_load_b16(kb, from + 32 * c, 0, 0);
            }
            DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c)
                w.kt[p][half][c] = leaf_u2{cdna_lows(x[0][c], x[1][c]), cdna_lows(x[2][c], x[3][c])};
        }
    if (low > 0 || k_cols < C::HD || v_cols < C::HD) attn_cdna_clear_keys(w, low, k_cols, v_cols, wave, lane);
}

/* K or V holds an element that counts (attn_bwd_subnormal.h): ordinary data has one in the first word of some lane. */
template <class C> DEV_FN bool attn_cdna_counts(const leaf_u2 (&x)[C::TILES][C::PIECES][2]) {
    const uint32_t least = 0x35800000u; /* 2^-20 */
    if (__builtin_amdgcn_ballot_w64((x[0][0][0].x & 0x7fff0000u) >= least)) return true;
    bool counts = false;
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                uint32_t word = x[i][j][e / 2][e % 2];
                counts |= (word & 0x7fff0000u) >= least || (word << 16 & 0x7fff0000u) >= least;
            }
        if (__builtin_amdgcn_ballot_w64(counts)) return true;
    }
    return false;
}

/* Where products may lose what is subnormal: K or V holds such elements. */
template <class C> DEV_FN bool attn_cdna_flushed(const leaf_u2 (&x)[C::TILES][C::PIECES][2]) {
    cdna_least least = {(leaf_us2)0xffff};
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
        DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) cdna_least::add(least, x[i][j][e / 2][e % 2]);
    return cdna_least::flushed(least);
}

/* Addresses in LDS, from the thread's number. */
template <class C> DEV_FN void attn_cdna_places(C &w, cdna_lds *lds, int thread, int wave, int lane) {
    int n = lane % 16, g = lane / 16;
    w.rows = lds + (n * C::ROW + g * 16);
    w.columns = lds + (C::AT_QT + lane * 16);
    w.scores = lds + (C::AT_DS + n / 4 * C::SCORE_FOUR + n % 4 * C::SCORE_ROW + g * 16);
    w.pairs = lds + (C::AT_DS + g * C::SCORE_FOUR + wave * 64 + n * 4);
    w.pairs2 = cdna_opaque(w.pairs + 2 * C::SCORE_ROW);
    w.singles = lds + (C::AT_DS + g * C::SCORE_FOUR + 256 + wave * 32 + n * 2);
    /* a thread brings four rows x four columns; head dim 128: of Q and of dO; 64: waves 0, 1 of Q, waves 2, 3 of dO */
    int t = C::TENSORS == 2 ? thread : thread & 127, four = t & (C::HD / 4 - 1), group = t / (C::HD / 4);
    int second = C::TENSORS == 2 ? 0 : wave >> 1;
    w.put_rows = lds + (second * (C::AT_DOUT - C::AT_Q) + 4 * group * C::ROW + four * 8);
    w.put_columns = lds + (C::AT_QT + second * (C::AT_DOUTT - C::AT_QT) + (group >> 2) * C::TRANSPOSED +
                           ((2 * (four >> 4) * 4 + (group & 3)) * 16 + (four & 15)) * 16);
}

/* The next query block: rows to registers. */
template <class C> DEV_FN void attn_cdna_fetch(C &w) {
    DEV_UNROLL_FOR (int s = 0; s < C::TENSORS; ++s) {
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
            w.next[s][r] = __builtin_amdgcn_raw_buffer_load_b64(w.from[s][r], w.at[s], 0, 0);
        w.at[s] += w.step_bytes[s];
    }
}
/* Statistics of the next 16 rows; half: of its query block. */
template <class C> DEV_FN void attn_cdna_fetch_stats(C &w, int half) {
    w.lse = __builtin_bit_cast(leaf_f4, __builtin_amdgcn_raw_buffer_load_b128(w.stats, w.at_stats + half * 64, 0, 0));
    w.delta = __builtin_bit_cast(
        leaf_f4, __builtin_amdgcn_raw_buffer_load_b128(w.stats, w.at_stats + C::BM * 4 + half * 64, 0, 0));
    if (half) w.at_stats += C::STATS * 4;
}
/* A quarter (head dim 64: half) of the rows, from registers to LDS. */
template <class C> DEV_FN void attn_cdna_put(const C &w, int part) {
    int s = part >> 1, e = part & 1;
    DEV_UNROLL_FOR (int r = 2 * e; r < 2 * e + 2; ++r)
        cdna_put(w.put_rows + s * (C::AT_DOUT - C::AT_Q) + r * C::ROW, w.next[s][r]);
    const uint32_t x = w.next[s][0][e], y = w.next[s][1][e], z = w.next[s][2][e], t = w.next[s][3][e];
    cdna_put(w.put_columns + s * (C::AT_DOUTT - C::AT_QT) + e * 1024,
             leaf_u4{cdna_lows(x, y), cdna_lows(z, t), cdna_highs(x, y), cdna_highs(z, t)});
}

/* Query head h, from block `first` on: its first rows are in LDS and the next ones on their way. */
template <class C> DEV_FN void attn_cdna_enter(C &w, const attn_work_tile &u, int h, int first, int end) {
    cdna_launch l = cdna_launch_again();
    int thread = cdna_opaque((int)dev_thread()), lane = thread & 63;
    int64_t b = dev_uniform(u.b), row = dev_uniform(u.seq.q.first), at = h * l->q_blocks + dev_uniform(u.seq.q_block);
    int64_t rows = dev_uniform(u.seq.q_end);
    const char *q = (const char *)l->p.q.data + cdna_row(l->p.q, b, h, row) * 2;
    const char *dout = (const char *)l->p.dout.data + cdna_row(l->p.dout, b, h, row) * 2;
    int t = C::TENSORS == 2 ? thread : thread & 127, group = t / (C::HD / 4), four = t & (C::HD / 4 - 1);
    int second = C::TENSORS == 2 ? 0 : dev_uniform(thread >> 7), row0 = first * C::BM + 4 * group;
    DEV_UNROLL_FOR (int s = 0; s < C::TENSORS; ++s) {
        bool is_dout = C::TENSORS == 2 ? s : second;
        const char *base = is_dout ? dout : q;
        int stride = (int)(is_dout ? l->p.dout.seq : l->p.q.seq) * 2,
            cols = (int)(is_dout ? l->p.head_dim_v : l->p.head_dim_qk);
        int bytes = ((int)rows - 1) * stride + cols * 2;
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
            w.from[s][r] = cdna_buffer_of(base + r * stride, bytes - r * stride,
                                          cdna_opaque_scalar(0x20000)); /* else it is made anew at every step */
        w.at[s] = 4 * four < cols ? (uint32_t)(row0 * stride + 8 * four) : CDNA_NOWHERE;
        w.step_bytes[s] = (uint32_t)(C::BM * stride);
    }
    w.stats = cdna_buffer_of(l->stats + at * C::STATS, end * C::STATS * 4);
    w.at_stats = (uint32_t)(first * C::STATS * 4 + (lane >> 4) * 16);
    char *sums = (char *)(l->dq + at * (C::BM * C::HD)); /* offsets within an instruction reach 4096 bytes both ways */
    w.sums = cdna_opaque_scalar(sums + 4096);
    w.sums_above = C::COLUMNS == 2 ? cdna_opaque_scalar(sums + 12288) : nullptr;
    w.at_sums = (uint32_t)(first * (C::BM * C::HD * 4) + thread * 4);
    attn_cdna_fetch(w);
    attn_cdna_fetch_stats(w, 0);
    int low = (int)dev_uniform(u.seq.q_low) - row0; /* rows that see no key may hold anything */
    if (dev_uniform(u.seq.q_low) > first * C::BM)
        DEV_UNROLL_FOR (int s = 0; s < C::TENSORS; ++s)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                if (r < low) w.next[s][r] = leaf_u2{0, 0};
    DEV_UNROLL_FOR (int i = 0; i < 2 * C::TENSORS; ++i) attn_cdna_put(w, i);
    attn_cdna_fetch(w);
    cdna_barrier();
}

/* Steps from a block on: `any` up to its end, then `edge`, then `inner` ones. */
struct attn_cdna_run {
    int any, edge, inner;
};
enum { CDNA_INNER, CDNA_EDGE, CDNA_ANY, CDNA_EXACT };
DEV_FN int cdna_ones(uint64_t x) { return ~x ? __builtin_ctzll(~x) : 64; }
DEV_FN uint64_t cdna_drop(uint64_t x, int bits) { return bits < 64 ? x >> bits : 0; }

/* Any: rows whose LSE is infinite, subnormal blocks, and edges of a mask with a left bound. */
template <class C> DEV_FN attn_cdna_run attn_cdna_run_of(C &w, const attn_work_tile &u, int block, int end) {
    int inner_first = dev_uniform(u.inner_first), inner_end = dev_uniform(u.inner_end),
        thread = cdna_opaque((int)dev_thread());
    int mine = block + (thread & 63);
    leaf_u2 marks =
        __builtin_amdgcn_raw_buffer_load_b64(w.stats, (uint32_t)(mine * (C::STATS * 4) + 2 * C::BM * 4), 0, 0);
    enum { SUMS = !dev_is_f16<typename C::T>::yes && !dev_flushes<typename C::T>::yes }; /* else there are none */
    w.subnormal = SUMS ? __builtin_amdgcn_ballot_w64(marks.y != 0 || w.exact) : 0;
    uint64_t edge = __builtin_amdgcn_ballot_w64(mine < inner_first || mine >= inner_end);
    uint64_t any = __builtin_amdgcn_ballot_w64(marks.x != 0) | w.subnormal | (w.bounded ? edge : 0);
    int most = end - block < 64 ? end - block : 64, n = cdna_ones(any), m = n + cdna_ones(cdna_drop(edge & ~any, n));
    int k = m + cdna_ones(cdna_drop(~(edge | any), m));
    return {block + (n < most ? n : most), block + (m < most ? m : most), block + (k < most ? k : most)};
}

/* dQ of one half to the sums of its rows. */
template <class C> DEV_FN void attn_cdna_add(const C &w, const leaf_f4 (&dq)[C::COLUMNS], int half, bool exact) {
    DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
        int tile = half * C::COLUMNS + c;
        const char *base = tile < 2 ? w.sums : w.sums_above;
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
            float *to = (float *)(base + (uint64_t)w.at_sums + ((tile & 1) * 4096 - 4096 + r * 1024));
            if (exact) dev_add_exact(to, dq[c][r]);
            else dev_add(to, dq[c][r]);
        }
    }
}

/* One query block; KIND: CDNA_INNER: all its pairs are in sight; CDNA_EDGE: not those right of a bound; CDNA_ANY: not
 * those left of one either, rows may have an infinite LSE, and sums may be subnormal: bit `mark` of w.subnormal.
 * CDNA_EXACT: any, sums may be subnormal, and products lose nothing. */
template <int KIND, class C> DEV_FN void attn_cdna_step(C &w, int block, int mark) {
    typedef typename C::T T;
    constexpr int P = C::PIECES, TILES = C::TILES, PER = C::PER;
    constexpr int READS = 4 * P,
                  LAST = P == 4 ? 2 * READS - P : 2 * READS; /* the others go to `tail`, before the barrier */
    constexpr bool MASKED = KIND != CDNA_INNER, ANY = KIND == CDNA_ANY || KIND == CDNA_EXACT;
    const bool exact = KIND == CDNA_EXACT || (KIND == CDNA_ANY && !dev_flushes<T>::yes && (w.subnormal >> mark & 1));
    leaf_u4 f[4], tail[4];
    auto read = [&](int k) { /* Q, dO, dO^T, Q^T of a half */
                             int half = k / READS, m = k % READS / P, j = k % P;
                             return m < 2 ? cdna_get(w.rows + (m ? C::AT_DOUT : C::AT_Q) + half * 16 * C::ROW + j * 64)
                                          : cdna_get(w.columns + (m == 2 ? C::AT_DOUTT - C::AT_QT : 0) +
                                                     half * C::TRANSPOSED + j * 1024);
    };
    auto next = [&](int k) {
        if (k % 2) return;
        if (k + 2 < LAST) {
            f[(k + 2) % 4] = read(k + 2);
            f[(k + 3) % 4] = read(k + 3);
        }
        CDNA_FENCE();
        cdna_arrived(f[k % 4], f[(k + 1) % 4]);
    };
    auto operand = [&](int k, int h) -> leaf_u2 { return h ? f[k % 4].zw : f[k % 4].xy; };
    f[0] = read(0);
    f[1] = read(1);
    CDNA_FENCE();
    leaf_u2 p16[TILES], ds16[TILES];
    DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
        leaf_f4 s[TILES], dp[TILES];
        int seen[TILES]; /* pair (row 16 half + r, key) is in sight: seen + 16 half + r in [0, span] */
        if constexpr (MASKED) {
            int first = cdna_opaque_scalar(block * C::BM);
            DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                seen[i] = 16 * i < w.keys_left ? w.seen_from + (first - 16 * i) : -(1 << 30);
                if (!ANY) seen[i] = -seen[i];
            }
        }
        bool sees[2 * TILES][2];
        leaf_f2 x[2 * TILES], ds[2 * TILES];
        DEV_UNROLL_FOR (int j = 0; j < P; ++j) {
            int k = half * READS + j;
            next(k);
            CDNA_FENCE();
            DEV_UNROLL_FOR (int h = 0; h < 2; ++h)
                DEV_UNROLL_FOR (int i = 0; i < TILES; ++i)
                    s[i] = cdna_product < KIND ==
                           CDNA_EXACT > (T(), operand(k, h), w.k[i][j][h], j + h ? s[i] : leaf_f4{0, 0, 0, 0});
            CDNA_FENCE();
        }
        /* Behind the products of dP and dV, 24 pieces: turn 0..3 of work tile 3k + i, which is rows 2k, 2k + 1 of tile
         * i. Where PER is 2, two work tiles take turns. */
        auto work_tile = [](int q) { return PER == 1 ? q / 4 : q / 8 * 2 + q % 2; };
        auto turn = [](int q) { return PER == 1 ? q % 4 : q / 2 % 4; };
        auto softmax = [&](int piece) {
            const int e = work_tile(piece), v = turn(piece), k = e / 3, i = e % 3;
            if (v == 0) {
                if (k == 0) cdna_keep<C::IN_AGPRS>(s[i]);
                leaf_f2 pair = k ? s[i].zw : s[i].xy;
                x[e] = __builtin_elementwise_fma(pair, (leaf_f2)w.scale_log2, k ? w.lse.zw : w.lse.xy);
                if constexpr (MASKED)
                    DEV_UNROLL_FOR (int r = 0; r < 2; ++r) {
                        const int c = half * 16 + 2 * k + r;
                        sees[e][r] =
                            ANY ? (uint32_t)(seen[i] + c) <= (uint32_t)w.span && w.lse[2 * k + r] != -dev_infinity()
                                : seen[i] <= c;
                    }
            } else if (v < 3) {
                const int r = v - 1;
                if constexpr (MASKED) x[e][r] = sees[e][r] ? x[e][r] : -dev_infinity();
                x[e][r] = dev_exp2_fast(x[e][r]);
            } else p16[i][k] = cdna_operand(T(), x[e]);
        };
        auto gradient = [&](int piece) {
            const int e = work_tile(piece), v = turn(piece), k = e / 3, i = e % 3;
            if (v == 0) {
                if (k == 0) cdna_keep<C::IN_AGPRS>(dp[i]);
                leaf_f2 flow = k ? dp[i].zw : dp[i].xy;
                if constexpr (MASKED) ds[e] = leaf_f2{cdna_times(x[e].x, flow.x), cdna_times(x[e].y, flow.y)};
                else ds[e] = x[e] * flow;
            } else if (v == 1) ds16[i][k] = cdna_operand(T(), ds[e]);
            else if (v == 2 && i == 1) { /* keys n and 16 + n of one query make a word */
                cdna_lds *to = (k ? w.pairs2 : w.pairs) + half * 4 * C::SCORE_FOUR;
                cdna_put(to, cdna_lows(ds16[0][k], ds16[1][k]));
                cdna_put(to + C::SCORE_ROW, cdna_highs(ds16[0][k], ds16[1][k]));
            } else if (v == 2 && i == 2) {
                cdna_lds *to = w.singles + (half * 4 * C::SCORE_FOUR + 2 * k * C::SCORE_ROW);
                cdna_put(to, (uint16_t)ds16[2][k]);
                cdna_put(to + C::SCORE_ROW, (uint16_t)(ds16[2][k] >> 16));
            }
        };
        DEV_UNROLL_FOR (int j = 0; j < P; ++j) {
            int k = half * READS + P + j;
            next(k);
            CDNA_FENCE();
            DEV_UNROLL_FOR (int h = 0; h < 2; ++h)
                DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                    dp[i] =
                        cdna_product < KIND == CDNA_EXACT > (T(), operand(k, h), w.v[i][j][h], j + h ? dp[i] : w.delta);
                    CDNA_FENCE();
                    DEV_UNROLL_FOR (int e = 0; e < PER; ++e) softmax((6 * j + 3 * h + i) * PER + e);
                    CDNA_FENCE();
                }
        }
        attn_cdna_fetch_stats(w, half ^ 1);
        DEV_UNROLL_FOR (int j = 0; j < P; ++j) {
            int k = half * READS + 2 * P + j;
            next(k);
            if (P == 4 && half && j == 2)
                DEV_UNROLL_FOR (int i = 0; i < 4; ++i) tail[i] = read(LAST + i);
            CDNA_FENCE();
            DEV_UNROLL_FOR (int h = 0; h < 2; ++h)
                DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                    w.dv[i][2 * j + h] =
                        cdna_product < KIND == CDNA_EXACT > (T(), p16[i], operand(k, h), w.dv[i][2 * j + h]);
                    CDNA_FENCE();
                    DEV_UNROLL_FOR (int e = 0; e < PER; ++e) gradient((6 * j + 3 * h + i) * PER + e);
                    CDNA_FENCE();
                }
        }
        if (half == 0)
            DEV_UNROLL_FOR (int j = 0; j < P; ++j) {
                int k = half * READS + 3 * P + j;
                next(k);
                CDNA_FENCE();
                DEV_UNROLL_FOR (int h = 0; h < 2; ++h)
                    DEV_UNROLL_FOR (int i = 0; i < TILES; ++i)
                        w.dk[i][2 * j + h] =
                            cdna_product < KIND == CDNA_EXACT > (T(), ds16[i], operand(k, h), w.dk[i][2 * j + h]);
                CDNA_FENCE();
            }
    }
    cdna_barrier();
    auto score = [&](int k) { return cdna_get(w.scores + k / 6 * 4 * C::SCORE_FOUR + k % 6 * 64); };
    f[0] = score(0);
    f[1] = score(1);
    CDNA_FENCE();
    DEV_UNROLL_FOR (int j = 0; j < P; ++j)
        DEV_UNROLL_FOR (int h = 0; h < 2; ++h)
            DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                const leaf_u4 &y = P == 4 ? tail[j] : f[2 + j];
                w.dk[i][2 * j + h] =
                    cdna_product < KIND == CDNA_EXACT > (T(), ds16[i], h ? y.zw : y.xy, w.dk[i][2 * j + h]);
                if (3 * h + i == 5) {
                    attn_cdna_put(w, j);
                    CDNA_FENCE();
                }
            }
    CDNA_FENCE();
    leaf_f4 dq[2][C::COLUMNS];
    auto add = [&](int half) {
        if (ANY && exact) attn_cdna_add(w, dq[half], half, true);
        else attn_cdna_add(w, dq[half], half, false);
    };
    DEV_UNROLL_FOR (int k = 0; k < 12; ++k) {
        const int half = k / 6, p = k % 6;
        if (k % 2 == 0 && k + 2 < 12) {
            f[(k + 2) % 4] = score(k + 2);
            f[(k + 3) % 4] = score(k + 3);
        }
        CDNA_FENCE();
        if (k % 2 == 0) cdna_arrived(f[k % 4], f[(k + 1) % 4]);
        DEV_UNROLL_FOR (int h = 0; h < 2; ++h)
            DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c)
                dq[half][c] = cdna_product < KIND == CDNA_EXACT > (T(), operand(k, h), w.kt[p][h][c],
                                                                   p + h ? dq[half][c] : leaf_f4{0, 0, 0, 0});
        CDNA_FENCE();
        if (k == 8) {
            add(0);
            CDNA_FENCE();
        }
    }
    attn_cdna_fetch(w);
    CDNA_FENCE();
    add(1);
    w.at_sums += C::BM * C::HD * 4;
    cdna_barrier();
}

#endif
