/* SPDX-License-Identifier: MIT
 *
 * What CDNA's own main loop (attn_bwd_cdna.h) loads, and where it lies: K and V in registers, Q and dO by way of
 * registers in LDS, LSE and delta in registers. C: attn_cdna, the shapes. Lane l is (n, g) = (l % 16, l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_LOADS_H
#define STW_HIP_ATTN_BWD_CDNA_LOADS_H

#include "cdna.h"

/* The kv head of K, V, dK and dV. Parts by query heads are numbered as kv heads are. */
DEV_FN int attn_cdna_key_head(const attn_work_tile &u) {
    return (int)((uint32_t)dev_uniform(u.kv_head) / cdna_launch_again()->head_parts);
}

/* A tensor of 16-bit elements from row `row` of (b, h) on. */
DEV_FN cdna_buffer attn_cdna_buffer(cdna_tensor &t, int64_t b, int h, int64_t row, int64_t rows, int stride, int cols) {
    return cdna_buffer_of((const char *)t.data + cdna_row(t, (uint32_t)b, (uint32_t)h, row) * 2,
                          cdna_extent(rows, stride, (uint32_t)cols));
}

/* K, V and K^T of a wave, loaded into registers (the struct has no part in the epilogue). K and V are operands of S and
 * dP: the lane has key 16 i + n of the wave's, and of every 32 columns 8 g .. 8 g + 7. K^T is the operand of dQ: the
 * wave's HD / 4 columns of all keys, in the order of dS. */
template <class C> struct attn_cdna_kv {
    typedef typename C::T T;
    enum { FRAGMENTS = C::BN / 32 }; /* of dS: 32 keys of 16 queries */
    leaf_u2 k[C::TILES][C::PIECES][2], v[C::TILES][C::PIECES_V][2], kt[FRAGMENTS][2][C::COLUMNS];

    /* The wave's columns of dQ: waves 0 and 1 share those of the first half with only that, 2 and 3 of the second. */
    DEV_FN int first_column(int wave) { return 16 * C::COLUMNS * (C::HALVES == 2 ? wave : wave & 1); }
    /* The key of element e of fragment p of dS. Two tiles of a wave, zipped, are a fragment; the last of an odd number
     * of tiles is half of one, which two waves share. */
    DEV_FN int key(int p, int e, int g) {
        return p < C::ZIPPED ? C::KEYS * p + 16 * (e & 1) + 4 * g + (e >> 1)
                             : C::KEYS * (2 * (p - C::ZIPPED) + (g >> 1)) + C::KEYS - 16 + 8 * (g & 1) + e;
    }

    DEV_METHOD void load_rows(cdna_buffer from_k, cdna_buffer from_v, int k_stride, int v_stride, int wave, int n,
                              int g) {
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
            int row = C::KEYS * wave + 16 * i + n;
            int k_at = (row * k_stride + 8 * g) * 2, v_at = (row * v_stride + 8 * g) * 2;
            DEV_UNROLL_FOR (int j = 0; j < C::PIECES; ++j) {
                leaf_u4 x = __builtin_amdgcn_raw_buffer_load_b128(from_k, k_at + 64 * j, 0, 0);
                k[i][j][0] = x.xy, k[i][j][1] = x.zw;
            }
            DEV_UNROLL_FOR (int j = 0; j < C::PIECES_V; ++j) {
                leaf_u4 x = __builtin_amdgcn_raw_buffer_load_b128(from_v, v_at + 64 * j, 0, 0);
                v[i][j][0] = x.xy, v[i][j][1] = x.zw;
            }
        }
    }
    DEV_METHOD void load_transposed(cdna_buffer from, int stride, int wave, int n, int g) {
        const int column = first_column(wave) + n, key_bytes = 2 * stride;
        const int at[2] = {(key(0, 0, g) * stride + column) * 2, (key(C::ZIPPED, 0, g) * stride + column) * 2};
        uint32_t x[FRAGMENTS][2][4][C::COLUMNS];
        DEV_UNROLL_FOR (int p = 0; p < FRAGMENTS; ++p)
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
                    int behind = key(p, 4 * half + i, 0) - key(p < C::ZIPPED ? 0 : C::ZIPPED, 0, 0);
                    int key_at = at[p >= C::ZIPPED] + behind * key_bytes;
                    DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c)
                        x[p][half][i][c] = __builtin_amdgcn_raw_buffer_load_b16(from, key_at + 32 * c, 0, 0);
                }
        CDNA_FENCE();
        cdna_wait_memory(); /* once */
        CDNA_FENCE();
        DEV_UNROLL_FOR (int p = 0; p < FRAGMENTS; ++p)
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
                    auto &y = x[p][half];
                    kt[p][half][c] = leaf_u2{cdna_lows(y[0][c], y[1][c]), cdna_lows(y[2][c], y[3][c])};
                }
    }
    /* What was read of keys before `low` and of columns past the last becomes zero. */
    DEV_METHOD void clear_outside(int low, int k_cols, int v_cols, int wave, int lane) {
        int n = lane % 16, g = lane / 16;
        auto clear = [&](auto &rows, int cols) {
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
                DEV_UNROLL_FOR (int j = 0; j < (int)(sizeof rows[i] / sizeof rows[i][0]); ++j) {
                    bool live = C::KEYS * wave + 16 * i + n >= low && 32 * j + 8 * g < cols;
                    DEV_UNROLL_FOR (int e = 0; e < 2; ++e) rows[i][j][e] = live ? rows[i][j][e] : leaf_u2{0, 0};
                }
        };
        clear(k, k_cols);
        clear(v, v_cols);
        DEV_UNROLL_FOR (int p = 0; p < FRAGMENTS; ++p)
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
                    uint32_t kept[2] = {0, 0};
                    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
                        bool live = key(p, 4 * half + i, g) >= low;
                        if (live && first_column(wave) + 16 * c + n < k_cols)
                            kept[i / 2] |= i & 1 ? 0xffff0000u : 0xffffu;
                    }
                    kt[p][half][c] &= leaf_u2{kept[0], kept[1]};
                }
    }
    DEV_METHOD void load(const attn_work_tile &u, int wave, int lane) {
        cdna_launch l = cdna_launch_again();
        int64_t b = dev_uniform(u.b), j0 = dev_uniform(u.j0), row = dev_uniform(u.seq.kv.first) + j0;
        int h = attn_cdna_key_head(u), n = lane % 16, g = lane / 16;
        stw_range seen = stw_visible_keys(&u.seq);
        int64_t left = dev_uniform(seen.end) - j0;
        int low = (int)stw_clamp_i64(dev_uniform(seen.first) - j0, 0, C::BN);
        int k_cols = cdna_cols<T>(l->p.head_dim_qk), v_cols = cdna_cols<T>(l->p.head_dim_v);
        int k_stride = (int)l->p.k.seq, v_stride = (int)l->p.v.seq;
        left = left < C::BN ? left : C::BN;
        cdna_buffer from_k = attn_cdna_buffer(l->p.k, b, h, row, left, k_stride, k_cols);
        cdna_buffer from_v = attn_cdna_buffer(l->p.v, b, h, row, left, v_stride, v_cols);
        load_rows(from_k, from_v, k_stride, v_stride, wave, n, g);
        load_transposed(from_k, k_stride, wave, n, g);
        if (low > 0 || k_cols < C::HD || v_cols < C::HD) clear_outside(low, k_cols, v_cols, wave, lane);
    }
};

/* Addresses in LDS. */
template <class C> struct attn_cdna_lds {
    cdna_lds *rows, *columns;                      /* fragments of Q, those of Q^T; dO and dO^T lie behind */
    cdna_lds *ds;                                  /* fragments of dS                                      */
    cdna_lds *stats;                               /* LSE of the lane's queries                            */
    cdna_lds *to_zipped, *to_zipped_2, *to_single; /* where dS goes: tiles 0 and 1, their queries 2 and 3; tile 2 */
    uint32_t to_tiles;                             /* TIGHT: where it goes, tiles 0 and 1, and 65536 times tile 2 */

    DEV_METHOD void set(cdna_lds *lds, int wave, int lane) {
        int n = lane % 16, g = lane / 16;
        rows = cdna_opaque(lds + (n * C::ROW + g * 16));
        columns = lds + (C::AT_QT + lane * 16);
        int half = C::HALVES == 2 ? 0 : wave >> 1; /* HELD 32 */
        ds = cdna_opaque(lds + (C::AT_DS + (half * 4 + n / 4) * C::SCORE_FOUR + n % 4 * C::SCORE_ROW + g * 16));
        stats = cdna_opaque(lds + (C::AT_STATS + g * 16));
        to_zipped = lds + (C::AT_DS + g * C::SCORE_FOUR + wave * 64 + n * 4);
        to_zipped_2 = cdna_opaque(to_zipped + 2 * C::SCORE_ROW);
        to_single = lds + (C::AT_DS + g * C::SCORE_FOUR + C::ZIPPED * 64 + wave * 32 + n * 2);
        if (C::TIGHT) to_tiles = cdna_opaque((uint32_t)(uintptr_t)to_zipped | (uint32_t)(uintptr_t)to_single << 16);
    }
    /* Fragment `at` of the rows that are held: of each half the pieces of Q, dO, dO^T and Q^T. */
    DEV_METHOD leaf_u4 read(int at) const {
        const int of_half = 2 * (C::PIECES + C::PIECES_V), half = at / of_half, j = at % of_half;
        const int dout = C::PIECES, columns_dout = dout + C::PIECES_V, columns_q = columns_dout + C::PIECES_V;
        if (j < dout) return cdna_get(rows + (C::AT_Q + half * 16 * C::ROW + j * 64));
        if (j < columns_dout) return cdna_get(rows + (C::AT_DOUT + half * 16 * C::ROW + (j - dout) * 64));
        if (j < columns_q)
            return cdna_get(columns + (C::AT_DOUTT - C::AT_QT + half * C::TRANSPOSED + (j - columns_dout) * 1024));
        return cdna_get(columns + (half * C::TRANSPOSED + (j - columns_q) * 1024));
    }
    /* Statistics. A lane's to write, from four times the thread and a multiple of 256, which needs no register of its
     * own; LSE or delta of the lane's queries of a half. */
    DEV_FN cdna_lds *stat(uint32_t at) { return (cdna_lds *)(at & 0xfc) + C::AT_STATS; }
    DEV_METHOD leaf_f4 read_stats(int half, int delta) const {
        return __builtin_bit_cast(leaf_f4, cdna_get(stats + (128 * delta + 64 * half)));
    }
    /* Fragment `at` of dS: BN / 32 a half. */
    DEV_METHOD leaf_u4 read_ds(int at) const {
        return cdna_get(ds + at / (C::BN / 32) * 4 * C::SCORE_FOUR + at % (C::BN / 32) * 64);
    }
    /* dS of queries 2 k and 2 k + 1, two in a word of each tile: keys n and 16 + n of one query make a word. */
    DEV_METHOD void put_zipped(int half, int k, uint32_t tile_0, uint32_t tile_1) const {
        cdna_lds *to = k ? to_zipped_2 : to_zipped;
        if (C::TIGHT) to = (cdna_lds *)(cdna_opaque(to_tiles) & 0xffff) + 2 * k * C::SCORE_ROW;
        to += half * 4 * C::SCORE_FOUR;
        cdna_put(to, cdna_lows(tile_0, tile_1));
        cdna_put(to + C::SCORE_ROW, cdna_highs(tile_0, tile_1));
    }
    DEV_METHOD void put_single(int half, int k, uint32_t tile_2) const {
        cdna_lds *to = C::TIGHT ? (cdna_lds *)(cdna_opaque(to_tiles) >> 16) : to_single;
        to += half * 4 * C::SCORE_FOUR + 2 * k * C::SCORE_ROW;
        cdna_put(to, (uint16_t)tile_2);
        cdna_put(to + C::SCORE_ROW, (uint16_t)(tile_2 >> 16));
    }
    /* The wave's dS of all rows that are held. */
    DEV_METHOD void clear_ds() const {
        DEV_UNROLL_FOR (int half = 0; half < C::HELD / 16; ++half)
            DEV_UNROLL_FOR (int k = 0; k < 2; ++k) {
                if (C::ZIPPED) put_zipped(half, k, 0, 0);
                if (C::TILES % 2) put_single(half, k, 0);
            }
    }
};

/* What is on its way in registers, of the next query block: a thread's rows of Q and dO, and a lane's of the 64
 * statistics. */
template <class C> struct attn_cdna_ahead {
    leaf_u2 rows[C::UNITS][4];
    float stat;
    /* One wait for all: the last come last, and after them statistics, if these come with the rows. */
    DEV_METHOD void arrived(bool with_stat) {
        if (with_stat) asm volatile("" : "+v"(stat));
        DEV_UNROLL_FOR (int s = C::UNITS - 1; s >= 0; --s)
            asm volatile("" : "+v"(rows[s][3]), "+v"(rows[s][2]), "+v"(rows[s][1]), "+v"(rows[s][0]));
    }
};

/* Q and dO of the query blocks of a head. A thread brings units of four rows x four columns: head dims 128 and 256: one
 * of Q and one of dO; 64: waves 0 and 1 of Q, waves 2 and 3 of dO; 192: the same of three strips of 64 columns. */
template <class C> struct attn_cdna_queries {
    enum { TENSORS = C::TENSORS, STRIPS = C::STRIPS, UNITS = C::UNITS, FOURS = C::FOURS };
    cdna_lds *to_rows, *to_columns[2];
    cdna_buffer from[TENSORS][4]; /* one a row of four, so that four loads share an offset */
    uint32_t at[UNITS], step_bytes[TENSORS];

    DEV_METHOD void set_places(cdna_lds *lds, int thread, int wave) {
        int t = TENSORS == 2 ? thread : thread & 127, four = t & (FOURS - 1), group = t / FOURS;
        int second = TENSORS == 2 ? 0 : wave >> 1;
        to_rows = lds + (second * (C::AT_DOUT - C::AT_Q) + 4 * group * C::ROW + four * 8);
        /* The first two columns; the others lie a piece further, or, of the last 32 columns, eight lanes. */
        bool last = C::HD % 64 && 4 * four >= C::HD / 64 * 64;
        int piece = last ? four >> 3 : 2 * (four >> 4), place = last ? four & 7 : four & 15;
        to_columns[0] = lds + (C::AT_QT + second * (C::AT_DOUTT - C::AT_QT) + (group >> 2) * C::TRANSPOSED +
                               ((piece * 4 + (group & 3)) * 16 + place) * 16);
        to_columns[1] = to_columns[0] + (last ? 128 : 1024);
    }
    /* Head h, from block `first` on. */
    DEV_METHOD void enter_head(cdna_launch l, const attn_work_tile &u, int64_t b, int64_t row, int h, int first,
                               int thread) {
        int64_t rows = dev_uniform(u.seq.q_end);
        int t = TENSORS == 2 ? thread : thread & 127;
        int group = t / FOURS, four = t & (FOURS - 1);
        int second = TENSORS == 2 ? 0 : dev_uniform(thread >> 7), row0 = first * C::BM + 4 * group;
        DEV_UNROLL_FOR (int s = 0; s < TENSORS; ++s) {
            bool is_dout = TENSORS == 2 ? s : second;
            cdna_tensor &tensor = is_dout ? l->p.dout : l->p.q;
            const char *base = (const char *)tensor.data + cdna_row(tensor, (uint32_t)b, (uint32_t)h, row) * 2;
            int stride = (int)tensor.seq * 2;
            int cols = cdna_cols<typename C::T>(is_dout ? l->p.head_dim_v : l->p.head_dim_qk);
            int bytes = ((int)rows - 1) * stride + cols * 2;
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r) /* opaque flags: else it is made anew at every step */
                from[s][r] = cdna_buffer_of(base + r * stride, bytes - r * stride, cdna_opaque_scalar(0x20000));
            DEV_UNROLL_FOR (int j = 0; j < STRIPS; ++j)
                at[s + j] =
                    4 * (four + FOURS * j) < cols ? (uint32_t)(row0 * stride + 8 * (four + FOURS * j)) : CDNA_NOWHERE;
            step_bytes[s] = (uint32_t)(C::HELD * stride);
        }
    }
    /* The next rows: to registers. */
    DEV_METHOD void fetch(attn_cdna_ahead<C> &ahead) {
        DEV_UNROLL_FOR (int s = 0; s < UNITS; ++s) {
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                ahead.rows[s][r] = __builtin_amdgcn_raw_buffer_load_b64(from[s / STRIPS][r], at[s], 0, 0);
            at[s] += step_bytes[s / STRIPS];
        }
    }
    DEV_FN void lift(attn_cdna_ahead<C> &ahead) {
        DEV_UNROLL_FOR (int s = 0; s < UNITS; ++s)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r) ahead.rows[s][r] = cdna_lift(ahead.rows[s][r]);
    }
    /* Rows before the first that sees a key, `low` of those loaded, may hold anything: they become zero. */
    DEV_FN void clear_before(attn_cdna_ahead<C> &ahead, int low, int thread) {
        low -= 4 * ((TENSORS == 2 ? thread : thread & 127) / FOURS);
        DEV_UNROLL_FOR (int s = 0; s < UNITS; ++s)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                if (r < low) ahead.rows[s][r] = leaf_u2{0, 0};
    }
    /* Part `part` of 2 UNITS, from registers to LDS: two rows as they are, two columns of four rows transposed. */
    DEV_METHOD void put(const attn_cdna_ahead<C> &ahead, int part) const {
        const int s = part >> 1, e = part & 1, tensor = s / STRIPS, strip = s % STRIPS;
        DEV_UNROLL_FOR (int r = 2 * e; r < 2 * e + 2; ++r)
            cdna_put(to_rows + (tensor * (C::AT_DOUT - C::AT_Q) + r * C::ROW + strip * FOURS * 8), ahead.rows[s][r]);
        const uint32_t x = ahead.rows[s][0][e], y = ahead.rows[s][1][e];
        const uint32_t z = ahead.rows[s][2][e], t = ahead.rows[s][3][e];
        cdna_put(to_columns[e] + (tensor * (C::AT_DOUTT - C::AT_QT) + strip * FOURS * 128),
                 leaf_u4{cdna_lows(x, y), cdna_lows(z, t), cdna_highs(x, y), cdna_highs(z, t)});
    }
};

/* -LSE log2(e) and -delta of the query blocks of a head, as the preprocess kernel wrote them (STW_STATS_NEGATED). They
 * come a step ahead and go through LDS, as the rows do, so that no step waits for memory before its products. */
template <class C> struct attn_cdna_stats {
    cdna_buffer from;
    uint32_t at; /* TIGHT: of the block, else of the lane */

    DEV_METHOD void enter_head(int first, int lane) {
        at = (uint32_t)(first * C::STATS * 4 + (C::TIGHT ? 0 : lane * 4));
    }
    /* Those of the next query block: to registers. `sums_at`: attn_cdna_dq's, which has the lane in it. */
    DEV_METHOD void fetch(attn_cdna_ahead<C> &ahead, uint32_t sums_at) {
        const uint32_t place = C::TIGHT ? (cdna_opaque(sums_at) & 0xfc) + at : at;
        ahead.stat = __builtin_bit_cast(float, __builtin_amdgcn_raw_buffer_load_b32(from, place, 0, 0));
        at += C::STATS * 4;
    }
    /* From registers to LDS: all waves write the same. `at`: attn_cdna_dq's. */
    DEV_FN void put(const attn_cdna_ahead<C> &ahead, const attn_cdna_lds<C> &lds, uint32_t at) {
        cdna_put(lds.stat(at), ahead.stat);
    }
};

#endif
