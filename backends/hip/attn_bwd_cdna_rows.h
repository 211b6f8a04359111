/* SPDX-License-Identifier: MIT
 *
 * The kernels before and after CDNA's own main loop, for the usual case. Preprocess (attn_cdna_preprocess) makes
 * delta = rowsum(dO O) and -LSE log2(e) and clears the sums of dQ, as attn_bwd_preprocess does without its options.
 * Postprocess (attn_cdna_postprocess) writes dQ in its own type. backends/hip/attn_cdna.c chooses them
 * (cdna_preprocess, cdna_postprocess). A workgroup takes STW_CDNA_ROWS rows of one head, eight query blocks: to find
 * its rows takes such small kernels much of their time. */
#ifndef STW_HIP_ATTN_BWD_CDNA_ROWS_H
#define STW_HIP_ATTN_BWD_CDNA_ROWS_H

#include "cdna.h"

template <class T_, int HD_> struct attn_cdna_rows {
    typedef T_ T;
    enum { HD = HD_, BM = 32, BLOCKS = (int)STW_CDNA_ROWS / BM, STATS = 2 * BM + (int)STW_STATS_PAD };
};

/* Which rows: (b, h), the first of them, the number of their first query block. False: none. */
struct attn_cdna_rows_tile {
    stw_attn_seq seq;
    int64_t b, h, row0, block;
    DEV_METHOD bool set(const stw_attn_launch &l, int64_t work_tile, char *smem) {
        const attn_tile tile = attn_tile_of(l.p, STW_CDNA_ROWS, work_tile,
                                            (int32_t *)(void *)(smem + STW_ROW_SMEM - 16)); /* behind the marks */
        if (!tile.live) return false;
        b = (uint32_t)tile.b; /* of 32 bits: half the multiplications */
        h = (uint32_t)tile.h;
        row0 = tile.block * STW_CDNA_ROWS;
        seq = stw_attn_seq_of(&l.p, 32, b);
        block = h * l.q_blocks + seq.q_block + row0 / 32;
        return row0 < seq.q.rows;
    }
};

/* Of rows of dO or Q, as far as this wave sees: an element of at least `least` (the upper half of a float's bits), else
 * any but 0. Nearly always the first words say so. */
enum { CDNA_ROWS_COUNT = 0x100, CDNA_ROWS_ANY = 0x10000, CDNA_ROWS_FLUSHED = 0x1000000 };
template <int WORDS> DEV_FN uint32_t attn_cdna_rows_look(const leaf_u4 (&x)[WORDS], uint32_t least) {
    if (__builtin_amdgcn_ballot_w64((x[0].x & 0x7fff0000u) >= least)) return CDNA_ROWS_COUNT;
    bool counts = false;
    uint32_t any = 0;
    DEV_UNROLL_FOR (int i = 0; i < WORDS; ++i)
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
            counts |= (x[i][e] & 0x7fff0000u) >= least || (x[i][e] << 16 & 0x7fff0000u) >= least;
            any |= x[i][e] & 0x7fff7fffu;
        }
    return __builtin_amdgcn_ballot_w64(counts)     ? CDNA_ROWS_COUNT
           : __builtin_amdgcn_ballot_w64(any != 0) ? CDNA_ROWS_ANY
                                                   : 0;
}

/* What attn_cdna_preprocess does of a wave's 64 rows where the matrix unit flushes nothing: a product of 16 rows of dO
 * and the same of O has their deltas on its diagonal. Lane (n, g) loads columns 8 g .. of 32 of row n, of both tensors.
 * Returns marks. */
template <class C>
DEV_FN uint32_t attn_cdna_rows_multiply(const stw_attn_launch &l, cdna_buffer dout, cdna_buffer out, cdna_buffer lse,
                                        cdna_buffer sums, cdna_buffer stats, int low, int used, int cols, int blocks,
                                        float log2e) {
    typedef typename C::T T;
    enum { PIECES = C::HD / 32, GROUPS = 4 };
    const int lane = (int)dev_lane(), wave = dev_uniform((int)dev_wave()), n = lane & 15, g = lane >> 4;
    const int first = 16 * GROUPS * wave, mine = first + lane;
    if (first >= 32 * blocks) return 0;
    const uint32_t dout_step = 32 * (uint32_t)l.p.dout.seq, out_step = 32 * (uint32_t)l.p.out.seq; /* of 16 rows */
    uint32_t from_dout = (uint32_t)((first + n) * (int)l.p.dout.seq + 8 * g) * 2;
    uint32_t from_out = (uint32_t)((first + n) * (int)l.p.out.seq + 8 * g) * 2;
    leaf_u4 x[2][PIECES], y[2][PIECES];
    auto fetch = [&](int c) {
        DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j) {
            x[c & 1][j] = __builtin_amdgcn_raw_buffer_load_b128(dout, from_dout + 64 * j, 0, 0);
            y[c & 1][j] = __builtin_amdgcn_raw_buffer_load_b128(out, from_out + 64 * j, 0, 0);
        }
        from_dout += dout_step;
        from_out += out_step;
    };
    /* LSE: a lane has a row */
    const float of_row = __builtin_bit_cast(
        float, __builtin_amdgcn_raw_buffer_load_b32(lse, (uint32_t)(mine * (int)l.p.lse.seq) * 4, 0, 0));
    fetch(0);
    const bool infinite = mine >= used || __builtin_fabsf(of_row) == dev_infinity();
    const float negated = of_row != of_row ? __builtin_nanf("") : of_row * log2e;
    auto place = [](int row) { return (uint32_t)((row >> 5) * (C::STATS * 4) + (row & 31) * 4); };
    __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(uint32_t, infinite ? -dev_infinity() : negated), stats,
                                          place(mine), 0, 0);
    const uint64_t any = __builtin_amdgcn_ballot_w64(infinite);
    uint32_t marks = ((uint32_t)any ? 1u : 0u) | (any >> 32 ? 2u : 0u);
    const uint32_t to_delta = n >> 2 == g ? place(first + n) + 128 : CDNA_NOWHERE, to_sums = (uint32_t)mine * 16;
    const bool odd = n & 1, high = n & 2, outside = cols < C::HD || first < low;
    const leaf_u4 zeros = cdna_opaque(leaf_u4{0, 0, 0, 0}); /* else they are made anew for every group */
    DEV_UNROLL_FOR (int c = 0; c < GROUPS; ++c) {
        if (c + 1 < GROUPS) fetch(c + 1);
        DEV_UNROLL_FOR (int j = 0; j < C::HD / 16; ++j)
            __builtin_amdgcn_raw_buffer_store_b128(
                zeros, sums, to_sums + wave * (64 * C::HD * 4 - 1024) + (c * (C::HD / 16) + j) * 1024, 0, 0);
        leaf_u4(&a)[PIECES] = x[c & 1], (&b)[PIECES] = y[c & 1];
        if (outside)
            DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j)
                if (32 * j + 8 * g >= cols || first + 16 * c + n < low) a[j] = b[j] = leaf_u4{0, 0, 0, 0};
        leaf_f4 products = {0, 0, 0, 0};
        DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j) {
#if LEAF_K32
            products = leaf_mma_32(T(), a[j], b[j], products);
#else
            products = leaf_mma_16(T(), a[j].xy, b[j].xy, products);
            products = leaf_mma_16(T(), a[j].zw, b[j].zw, products);
#endif
        }
        if (!dev_is_f16<T>::yes) marks |= attn_cdna_rows_look(a, 0x2b800000u /* ATTN_SUBNORMAL_ROWS */) << (c / 2);
        const float of_low = odd ? products.y : products.x, of_high = odd ? products.w : products.z;
        __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(uint32_t, -(high ? of_high : of_low)), stats,
                                              to_delta + (c / 2 * (C::STATS * 4) + c % 2 * 64), 0, 0);
    }
    return marks << (2 * wave);
}

/* ORDERED: of deterministic mode. A kernel of its own: in one for both the other modes took half more instructions. */
template <class C, bool ORDERED> DEV_FN void attn_cdna_preprocess(const stw_attn_launch &l, char *smem) {
    typedef typename C::T T;
    enum { PIECES = (C::HD + 63) / 64 }; /* of 16 bytes a thread; eight threads a row */
    constexpr bool LOOKS = !dev_is_f16<T>::yes, FLUSHES = dev_flushes<T>::yes; /* attn_bwd_subnormal.h */
    constexpr bool LIFTS = attn_lifts<T>::yes, READS_Q = FLUSHES || LIFTS;
    const stw_attn_params &p = l.p;
    if (dev_cta() == l.work_tiles - 1) {
        if (dev_thread() == 0) attn_reset_tile_counters<T>(l);
        attn_check(p, smem, ORDERED ? l.unordered : nullptr);
    }
    if (dev_cta() >= l.work_tiles - 1) return;
    if (dev_cta() < l.lists) {
        attn_list_key_blocks(l, smem);
        return;
    }
    attn_cdna_rows_tile u;
    const bool any_rows = u.set(l, dev_cta() - l.lists, smem);
    if (l.bias_direct && !(p.accumulate & STW_OUT_DBIAS)) /* every sequence has max_seq_q rows */
        DEV_ROLLED_FOR (int c = 0; c < C::BLOCKS; ++c) attn_zero_bias(l, u.seq, u.b, u.h, u.row0 / C::BM + c);
    if (!any_rows) return;
    int t = (int)dev_thread(), row = t >> 3, sub = t & 7, wave = (int)dev_wave();
    int end = (int)(u.seq.q_end - u.row0), low = (int)stw_clamp_i64(u.seq.q_low - u.row0, 0, STW_CDNA_ROWS);
    int used = (int)stw_clamp_i64(u.seq.q.used - u.row0, 0, STW_CDNA_ROWS), cols = (int)p.head_dim_v;
    int64_t at = u.seq.q.first + u.row0, lse_at = (p.features & STW_FEAT_PACKED_LSE ? u.seq.q.first : 0) + u.row0;
    end = end < (int)STW_CDNA_ROWS ? end : (int)STW_CDNA_ROWS;
    cdna_buffer dout = cdna_buffer_of((const uint16_t *)p.dout.data + dev_row(p.dout, u.b, u.h, at),
                                      cdna_extent(end, p.dout.seq, (uint32_t)cols));
    const int q_cols = cdna_cols<T>(p.head_dim_qk);
    const uint16_t *q_rows = (const uint16_t *)p.q.data + dev_row(p.q, u.b, u.h, at);
    cdna_buffer q = cdna_buffer_of(q_rows, READS_Q ? cdna_extent(end, p.q.seq, (uint32_t)q_cols) : 0);
    cdna_buffer out = cdna_buffer_of((const uint16_t *)p.out.data + dev_row(p.out, u.b, u.h, at),
                                     cdna_extent(end, p.out.seq, (uint32_t)cols));
    cdna_buffer lse = cdna_buffer_of((const float *)p.lse.data + dev_row(p.lse, u.b, u.h, lse_at),
                                     2 * cdna_extent(used, p.lse.seq, 1));
    int blocks = (int)stw_smaller(C::BLOCKS, stw_blocks_of(u.seq.q.rows - u.row0, 32));
    cdna_buffer sums = cdna_buffer_of(l.dq + u.block * (32 * C::HD), blocks * (32 * C::HD * 4));
    float *stats = l.stats + u.block * C::STATS;
    uint32_t from_dout = (uint32_t)(row * (int)p.dout.seq + sub * 8) * 2,
             from_out = (uint32_t)(row * (int)p.out.seq + sub * 8) * 2;
    uint32_t from_q = (uint32_t)(row * (int)p.q.seq + sub * 8) * 2;
    uint32_t from_lse = (uint32_t)(row * (int)p.lse.seq) * 4;
    int lane = (int)dev_lane();
    const int beside[3] = {(lane ^ 1) * 4, (lane ^ 2) * 4, (lane ^ 4) * 4};
    uint32_t marks = 0,
             of_q = 0; /* a bit a block: of this wave's rows one has an infinite LSE; times CDNA_ROWS_*: dO, and Q */
    cdna_least least = {(leaf_us2)0xffff};
    cdna_most most = {(leaf_us2)0};
    float square = 0.0f, delta = 0.0f; /* the largest: of a lane's part of a row of dO; |D| */
    struct rows {
        float lse;
        leaf_u4 dout[PIECES], out[PIECES], q[READS_Q ? PIECES : 1];
    } next;
    auto fetch = [&](int first) {
        next.lse = __builtin_bit_cast(float, __builtin_amdgcn_raw_buffer_load_b32(lse, from_lse, 0, 0));
        DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j) {
            bool live = row + first >= low && sub * 8 + j * 64 < cols;
            next.dout[j] = __builtin_amdgcn_raw_buffer_load_b128(dout, live ? from_dout + j * 128 : CDNA_NOWHERE, 0, 0);
            next.out[j] = __builtin_amdgcn_raw_buffer_load_b128(out, live ? from_out + j * 128 : CDNA_NOWHERE, 0, 0);
            if constexpr (READS_Q) {
                live = row + first >= low && sub * 8 + j * 64 < q_cols;
                next.q[j] = __builtin_amdgcn_raw_buffer_load_b128(q, live ? from_q + j * 128 : CDNA_NOWHERE, 0, 0);
            }
        }
        from_q += 32 * 2 * (uint32_t)p.q.seq;
        from_lse += 32 * 4 * (uint32_t)p.lse.seq;
        from_dout += 32 * 2 * (uint32_t)p.dout.seq;
        from_out += 32 * 2 * (uint32_t)p.out.seq;
    };
    const float log2e = -LEAF_STATS_LOG2E(p);
    if constexpr (!FLUSHES && !LIFTS)
        marks = attn_cdna_rows_multiply<C>(l, dout, out, lse, sums, cdna_buffer_of(stats, blocks * (C::STATS * 4)), low,
                                           used, cols, blocks, log2e);
    else {
        uint32_t to_sums = (uint32_t)t * 16;
        DEV_GLOBAL float *to = (DEV_GLOBAL float *)(stats + row);
        fetch(0);
        DEV_ROLLED_FOR (int c = 0; c < blocks; ++c) {
            rows now = next;
            fetch(32 * (c + 1));
            DEV_UNROLL_FOR (int j = 0; j < C::HD / 32; ++j)
                __builtin_amdgcn_raw_buffer_store_b128(leaf_u4{0, 0, 0, 0}, sums, to_sums + j * 4096, 0, 0);
            to_sums += 32 * C::HD * 4;
            leaf_f2 sum = {0.0f, 0.0f};
            DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j)
                DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
                    sum = __builtin_elementwise_fma(cdna_pair(T(), now.dout[j][e]), cdna_pair(T(), now.out[j][e]), sum);
            float d = sum.x + sum.y;
            DEV_UNROLL_FOR (int s = 0; s < 3; ++s)
                d += __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(beside[s], __builtin_bit_cast(int, d)));
            if constexpr (LIFTS) {
                leaf_f2 squares = {0.0f, 0.0f};
                DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j)
                    DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                        const leaf_f2 pair = cdna_pair(T(), now.dout[j][e]);
                        squares = __builtin_elementwise_fma(pair, pair, squares);
                        most.add(now.dout[j][e]);
                        most.add(now.q[j][e]);
                    }
                square = fmaxf(square, squares.x + squares.y);
                delta = fmaxf(delta, fabsf(d));
            }
            bool infinite = row + 32 * c >= used || __builtin_fabsf(now.lse) == dev_infinity();
            float negated = now.lse != now.lse ? __builtin_nanf("") : now.lse * log2e;
            if (sub == 0) {
                to[0] = infinite ? -dev_infinity() : negated;
                to[32] = -d;
            }
            to += C::STATS;
            if (__builtin_amdgcn_ballot_w64(infinite)) marks |= 1u << c;
            if (LOOKS) marks |= attn_cdna_rows_look(now.dout, 0x2b800000u /* ATTN_SUBNORMAL_ROWS */) << c;
            if constexpr (FLUSHES) {
                of_q |= attn_cdna_rows_look(now.q, 0x35800000u /* ATTN_SUBNORMAL_KEYS */) << c;
                DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j)
                    DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                        least.add(now.dout[j][e]);
                        least.add(now.q[j][e]);
                    }
            }
        }
    }
    if (FLUSHES && least.flushed()) marks |= CDNA_ROWS_FLUSHED;
    uint32_t(*all)[2] = (uint32_t(*)[2])(void *)smem;
    float(*bounds)[2] = (float(*)[2])(void *)(smem + 4 * sizeof *all);
    if constexpr (LIFTS) {
        square = most.large() ? dev_infinity() : dev_wave_max(square);
        delta = dev_wave_max(delta);
        if (lane == 0) bounds[wave][0] = square, bounds[wave][1] = delta;
    }
    if (lane == 0) all[wave][0] = marks, all[wave][1] = of_q;
    dev_barrier();
    if (t >= blocks) return;
    marks = (all[0][0] | all[1][0] | all[2][0] | all[3][0]) >> t;
    of_q = (all[0][1] | all[1][1] | all[2][1] | all[3][1]) >> t;
    auto subnormal = [](uint32_t x) { return (x & (CDNA_ROWS_ANY | CDNA_ROWS_COUNT)) == CDNA_ROWS_ANY; };
    bool flushed = (all[0][0] | all[1][0] | all[2][0] | all[3][0]) &
                   CDNA_ROWS_FLUSHED; /* marks all blocks: the main loop asks for any */
    /* nobody has added yet, and the last key block begins */
    if constexpr (ORDERED)
        l.dq_semaphore[u.block + t] = (uint32_t)stw_key_blocks(&u.seq, C::BM, l.bn, u.row0 / C::BM + t).end;
    stats[t * C::STATS + 64] = marks & 1 ? 1.0f : 0.0f;
    if constexpr (LIFTS) { /* of all blocks together; eight lanes have a row of dO */
        DEV_UNROLL_FOR (int w = 0; w < 4; ++w) {
            square = fmaxf(square, bounds[w][0]);
            delta = fmaxf(delta, bounds[w][1]);
        }
        stats[t * C::STATS + 65] = __builtin_amdgcn_sqrtf(8.0f * square);
        stats[t * C::STATS + 66] = delta;
        return;
    }
    stats[t * C::STATS + 65] = LOOKS && (subnormal(marks) || subnormal(of_q) || flushed) ? 1.0f : 0.0f;
}

/* Sums, in the order of the main loop's registers, times scale: a thread makes eight neighbouring columns at a time. */
template <class C> DEV_FN void attn_cdna_postprocess(const stw_attn_launch &l, char *smem) {
    typedef typename C::T T;
    enum {
        LANES = C::HD == 96    ? 16
                : C::HD == 192 ? 32
                               : C::HD / 8, /* of a row, some idle */
        STEP = 256 / LANES,
        PASSES = (int)STW_CDNA_ROWS / STEP,
        LOADED = PASSES < 16 ? PASSES : 16, /* at a time */
        WAVES = C::HD % 64 ? 2 : 4,         /* over the columns; else two for each half of 16 rows */
        WAVE = C::HD / WAVES
    };
    const stw_attn_params &p = l.p;
    attn_cdna_rows_tile u;
    if (!u.set(l, dev_cta(), smem)) return;
    int t = (int)dev_thread(), row = t / LANES, col = t % LANES * 8, cols = (int)p.head_dim_qk;
    int end = (int)stw_clamp_i64(u.seq.q.rows - u.row0, 0, STW_CDNA_ROWS),
        used = (int)stw_clamp_i64(u.seq.q.used - u.row0, 0, STW_CDNA_ROWS);
    int blocks = (int)stw_smaller(C::BLOCKS, stw_blocks_of(u.seq.q.rows - u.row0, 32));
    cdna_buffer sums = cdna_buffer_of(l.dq + u.block * (32 * C::HD), blocks * (32 * C::HD * 4));
    cdna_buffer dq = cdna_buffer_of((uint16_t *)p.dq.data + dev_row(p.dq, u.b, u.h, u.seq.q.first + u.row0),
                                    cdna_extent(end, p.dq.seq, (uint32_t)cols));
    /* (row, col) is value row % 4 of the lane (row / 4, col) of a wave, in its tile (row / 16, col / 16) */
    int half = row >> 4, tile = col % WAVE >> 4, wave = col / WAVE;
    if (WAVES == 4) tile += half * (WAVE / 16);
    else wave += (half & 1) * 2, tile += (half >> 1) * (C::HD / 32);
    int at = ((tile * 4 + (row & 3)) * 256 + wave * 64 + (row >> 2 & 3) * 16 + (col & 15)) * 4;
    uint32_t to = col < cols ? (uint32_t)(row * (int)p.dq.seq + col) * 2 : CDNA_NOWHERE;
    const leaf_f2 scale = (leaf_f2)p.scale;
    auto pass_at = [](int i) {
        if (STEP == 8) return i / 2 * (16 * C::HD * 4) + i % 2 * 128;
        return WAVES == 2 && STEP == 16 ? i / 2 * (32 * C::HD * 4) + i % 2 * 512 : i * (STEP * C::HD * 4);
    };
    DEV_UNROLL_FOR (int first = 0; first < PASSES; first += LOADED) {
        leaf_f4 x[LOADED][2];
        DEV_UNROLL_FOR (int i = 0; i < LOADED; ++i)
            DEV_UNROLL_FOR (int e = 0; e < 2; ++e)
                x[i][e] = __builtin_bit_cast(
                    leaf_f4, __builtin_amdgcn_raw_buffer_load_b128(sums, at + pass_at(first + i) + e * 16, 0, 0));
        if (used < end) /* rows between hold zeros, whatever P = 0 was multiplied with */
            DEV_UNROLL_FOR (int i = 0; i < LOADED; ++i)
                if (row + (first + i) * STEP >= used) x[i][0] = x[i][1] = leaf_f4{0, 0, 0, 0};
        DEV_UNROLL_FOR (int i = 0; i < LOADED; ++i) {
            asm volatile("" : "+v"(x[i][0]), "+v"(x[i][1])); /* one wait for both */
            leaf_u4 y;
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
                y[e] = cdna_operand(T(), (e & 1 ? x[i][e / 2].zw : x[i][e / 2].xy) * scale);
            __builtin_amdgcn_raw_buffer_store_b128(y, dq, to + (uint32_t)((first + i) * STEP * (int)p.dq.seq * 2), 0,
                                                   0);
        }
    }
}

#endif
