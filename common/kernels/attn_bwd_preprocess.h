/* SPDX-License-Identifier: MIT
 *
 * First kernel of the backward pass, a CTA for bm query rows of one head: D = rowsum(dO*O) - dLSE and LSE as the main
 * loop wants them, marks of rows that need care, the rows' part of dSink, zeros in the dQ sums and wherever in dBias no
 * tile will write. CTAs before these list what key blocks meet, one after them checks the caller's lengths and offsets.
 * Any shape; attn_bwd_sm80.cu and attn_bwd_cdna.hip compile it once a data type. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_PREPROCESS_H
#define STW_COMMON_KERNELS_ATTN_BWD_PREPROCESS_H

#include "common/device/reduce.h"
#include "common/kernels/attn_bwd_list.h"
#include "common/kernels/attn_bwd_subnormal.h"
#include "common/kernels/attn_tiles.h"

enum { ATTN_ROW_THREADS = STW_ROW_THREADS };

/* What the values behind the pointers violate, as STW_DATA_* bits. */
DEV_FN int32_t attn_check_side(int64_t b, const int32_t *cu, const int32_t *used, const int64_t *offsets,
                               int64_t max_seq, int64_t total, int32_t bad_cu, int32_t bad_used) {
    int32_t bits = 0;
    int64_t rows = max_seq;
    if (cu) {
        rows = (int64_t)cu[b + 1] - cu[b];
        if (cu[b] < 0 || rows < 0 || cu[b + 1] > total || rows > max_seq) bits |= bad_cu;
    }
    if (used && (used[b] < 0 || used[b] > rows)) bits |= bad_used;
    if (offsets && (offsets[b] < -STW_POSITION_MAX || offsets[b] > STW_POSITION_MAX)) bits |= STW_DATA_OFFSETS;
    return bits;
}

/* `unordered`: becomes 1 where sequences may share rows, and no order of their key blocks exists. */
DEV_FN void attn_check(const stw_attn_params &p, char *smem, uint32_t *unordered) {
    if (!p.status_out && !unordered) return;
    int32_t *found = (int32_t *)(void *)smem;
    if (dev_thread() == 0) *found = 0;
    dev_barrier();
    int32_t bits = 0;
    for (int64_t b = dev_thread(); b < p.batch; b += dev_threads())
        bits |= attn_check_side(b, p.cu_seqlens_q, p.used_q, p.q_offsets, p.max_seq_q, p.total_q, STW_DATA_CU_SEQLENS_Q,
                                STW_DATA_USED_Q) |
                attn_check_side(b, p.cu_seqlens_kv, p.used_kv, p.k_offsets, p.max_seq_kv, p.total_kv,
                                STW_DATA_CU_SEQLENS_KV, STW_DATA_USED_KV);
    if (bits) dev_or(found, bits);
    dev_barrier();
    if (dev_thread() == 0 && p.status_out) *p.status_out = *found;
    if (dev_thread() == 0 && unordered) *unordered = (*found & (STW_DATA_CU_SEQLENS_Q | STW_DATA_CU_SEQLENS_KV)) != 0;
}

DEV_FN float *attn_float_at(const stw_tensor_param &t, bool packed, const stw_attn_seq &seq, int64_t b, int64_t h,
                            int64_t i) {
    return (float *)t.data + dev_row(t, b, h, (packed ? seq.q.first : 0) + i);
}

/* A lane's part of rowsum(dO*O), and the largest |dO| it met. */
struct attn_dot {
    float sum, most;
    DEV_METHOD void add(float dout, float out) {
        sum = fmaf(dout, out, sum);
        most = fmaxf(most, fabsf(dout));
    }
    template <class T> DEV_METHOD void add(const dev_vector &dout, const dev_vector &out) {
        const T *x = (const T *)(const void *)&dout, *y = (const T *)(const void *)&out;
        DEV_UNROLL_FOR (int i = 0; i < 16 / (int)sizeof(T); ++i) add(dev_float(x[i]), dev_float(y[i]));
    }
};

/* What a CTA works on: one thread finds out. */
struct attn_preprocess_tile {
    stw_attn_seq seq;
    int64_t b, h, block, at;
    double sink[8]; /* of a wave */
    float most[8];
    int special;
    int32_t found;           /* attn_tile_of's */
    int flushes;             /* ATTN_ROWS_* of Q and, 8 times that, of dO */
    float delta[STW_BM_MAX]; /* rowsum(dO*O) of a row */
};
static_assert(sizeof(attn_preprocess_tile) <= STW_ROW_SMEM, "room for the work tile");

DEV_FN void attn_preprocess_enter(attn_preprocess_tile &u, const stw_attn_launch &l, const attn_tile &tile) {
    if (dev_thread() == 0) {
        u.block = tile.block;
        u.b = tile.b;
        u.h = tile.h;
        u.seq = stw_attn_seq_of(&l.p, l.bm, u.b);
        u.at = u.h * l.q_blocks + u.seq.q_block + u.block;
        u.special = u.flushes = 0;
    }
    dev_barrier();
}

/* Four rows of a group of LANES lanes at a time, all loads first: the kernel is as fast as memory only with many
 * bytes under way. Rows that see no key are not read, and dO alone where D is given. */
template <class T, int LANES>
DEV_FN float attn_preprocess_vectors(const stw_attn_launch &l, attn_preprocess_tile &u, bool given) {
    enum { VECTOR = 16 / (int)sizeof(T), GROUPS = ATTN_ROW_THREADS / LANES, ROWS = 4 };
    const stw_attn_params &p = l.p;
    int group = (int)dev_thread() / LANES, sub = (int)dev_thread() % LANES, cols = (int)p.head_dim_v;
    int64_t i0 = u.block * l.bm;
    int low = (int)stw_clamp_i64(u.seq.q_low - i0, 0, l.bm), end = (int)stw_clamp_i64(u.seq.q_end - i0, 0, l.bm);
    const T *dout = (const T *)p.dout.data + dev_row(p.dout, u.b, u.h, u.seq.q.first + i0 + group) + sub * VECTOR;
    const T *out = (const T *)p.out.data + dev_row(p.out, u.b, u.h, u.seq.q.first + i0 + group) + sub * VECTOR;
    float most = 0.0f;
    const dev_vector zero = {{0, 0, 0, 0}};
    for (int r = group; r < (int)l.bm;
         r += ROWS * GROUPS, dout += ROWS * GROUPS * p.dout.seq, out += ROWS * GROUPS * p.out.seq) {
        attn_dot d[ROWS];
        DEV_UNROLL_FOR (int k = 0; k < ROWS; ++k) d[k] = {0.0f, most};
        for (int c = 0; c < cols; c += LANES * VECTOR) {
            dev_vector x[ROWS], y[ROWS];
            DEV_UNROLL_FOR (int k = 0; k < ROWS; ++k) {
                bool live = r + k * GROUPS >= low && r + k * GROUPS < end && c + sub * VECTOR < cols;
                x[k] = y[k] = zero;
                if (live) x[k] = dev_load_vector(dout + k * GROUPS * p.dout.seq + c);
                if (live && !given) y[k] = dev_load_vector(out + k * GROUPS * p.out.seq + c);
            }
            DEV_UNROLL_FOR (int k = 0; k < ROWS; ++k) d[k].template add<T>(x[k], y[k]);
        }
        DEV_UNROLL_FOR (int k = 0; k < ROWS; ++k) {
            DEV_UNROLL_FOR (int mask = LANES / 2; mask > 0; mask /= 2) d[k].sum += dev_shuffle_xor(d[k].sum, mask);
            if (sub == 0 && r + k * GROUPS < (int)l.bm) u.delta[r + k * GROUPS] = d[k].sum;
            most = fmaxf(most, d[k].most);
        }
    }
    return most;
}

/* Rows that are not whole vectors; dO alone where D is given. A wave a row. */
template <class T>
DEV_FN float attn_preprocess_elements(const stw_attn_launch &l, attn_preprocess_tile &u, bool given) {
    const stw_attn_params &p = l.p;
    attn_dot d = {0.0f, 0.0f};
    for (int r = (int)(dev_thread() / DEV_WAVE); r < (int)l.bm; r += ATTN_ROW_THREADS / DEV_WAVE) {
        int64_t i = u.block * l.bm + r;
        d.sum = 0.0f;
        if (i >= u.seq.q_low && i < u.seq.q_end) {
            const T *dout = (const T *)p.dout.data + dev_row(p.dout, u.b, u.h, u.seq.q.first + i);
            const T *out = given ? dout : (const T *)p.out.data + dev_row(p.out, u.b, u.h, u.seq.q.first + i);
            for (int c = (int)dev_lane(); c < (int)p.head_dim_v; c += DEV_WAVE)
                d.add(dev_float(dout[c]), dev_float(out[c]));
        }
        float sum = dev_wave_sum(d.sum);
        if (dev_lane() == 0) u.delta[r] = sum;
    }
    return d.most;
}

template <class T> DEV_FN float attn_preprocess_dots(const stw_attn_launch &l, attn_preprocess_tile &u) {
    const bool given = (l.p.features & STW_FEAT_GIVEN_DELTA) != 0;
    const uint32_t read = STW_VECTOR_DOUT | (given ? 0u : (uint32_t)STW_VECTOR_OUT);
    int width = (int)l.p.head_dim_v * (int)sizeof(T) / 16;
    if ((l.vectors & read) != read) return attn_preprocess_elements<T>(l, u, given);
    if (width <= 8) return attn_preprocess_vectors<T, 8>(l, u, given);
    if (width <= 16) return attn_preprocess_vectors<T, 16>(l, u, given);
    return attn_preprocess_vectors<T, 32>(l, u, given);
}

/* Zeros to numbers of 2 or 4 bytes: a wave, in whole vectors where they are. */
DEV_FN void attn_zero_span(char *from, char *to, int element) {
    const dev_vector zero = {{0, 0, 0, 0}};
    uintptr_t low = ((uintptr_t)from + 15) & ~(uintptr_t)15, high = (uintptr_t)to & ~(uintptr_t)15;
    char *first = low < high ? (char *)low : to, *end = low < high ? (char *)high : to;
    int lane = (int)dev_lane();
    for (char *at = from + lane * element; at < first; at += DEV_WAVE * element)
        dev_store_any(at, 0, element == 4 ? 3u : 1u, 0.0f);
    for (char *at = first + lane * 16; at < end; at += DEV_WAVE * 16) dev_store_vector(at, zero);
    for (char *at = end + lane * element; at < to; at += DEV_WAVE * element)
        dev_store_any(at, 0, element == 4 ? 3u : 1u, 0.0f);
}

/* Bits: the rows hold an element that is not 0 but below 2^-100; any element but 0; one of at least `least`. */
enum { ATTN_ROWS_FLUSHED = 1, ATTN_ROWS_ANY = 2, ATTN_ROWS_COUNT = 4 };
/* ATTN_ROWS_* of this thread's part of a query block's Q or dO, where products may lose what is subnormal. Sixteen
 * threads read a row. */
template <class T>
DEV_FN int attn_preprocess_flushes(const stw_attn_launch &l, const attn_preprocess_tile &u, const stw_tensor_param &t,
                                   int cols, bool vectors, float least) {
    enum { LANES = 16 };
    int64_t i0 = u.block * l.bm;
    int low = (int)stw_clamp_i64(u.seq.q_low - i0, 0, l.bm), end = (int)stw_clamp_i64(u.seq.q_end - i0, 0, l.bm),
        bits = 0;
    const T *rows = (const T *)t.data + dev_row(t, u.b, u.h, u.seq.q.first + i0);
    auto look =
        [&](uint32_t x) { /* one or two elements */
                          bits |=
                              (x & 0x7fff7fffu ? ATTN_ROWS_ANY : 0) | (attn_word_flushed(x) ? ATTN_ROWS_FLUSHED : 0);
                          if (!(fabsf(dev_of_bits(x << 16)) < least && fabsf(dev_of_bits(x & 0xffff0000u)) < least))
                              bits |= ATTN_ROWS_COUNT;
        };
    for (int r = low + (int)dev_thread() / LANES; r < end; r += ATTN_ROW_THREADS / LANES) {
        const T *row = rows + r * t.seq;
        for (int c = (int)dev_thread() % LANES * (vectors ? 8 : 1); c < cols; c += LANES * (vectors ? 8 : 1)) {
            if (!vectors) {
                look(row[c].bits);
                continue;
            }
            dev_vector x = dev_load_vector(row + c);
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) look(x.word[i]);
        }
    }
    return bits;
}

/* This thread's part of a query block's Q or dO, of f16, holds an element of 2^6 or more, or no number. */
template <class T>
DEV_FN bool attn_preprocess_large(const stw_attn_launch &l, const attn_preprocess_tile &u, const stw_tensor_param &t,
                                  int cols) {
    int64_t i0 = u.block * l.bm;
    int low = (int)stw_clamp_i64(u.seq.q_low - i0, 0, l.bm), end = (int)stw_clamp_i64(u.seq.q_end - i0, 0, l.bm);
    const T *rows = (const T *)t.data + dev_row(t, u.b, u.h, u.seq.q.first + i0);
    bool large = false;
    for (int r = low + (int)dev_thread() / DEV_WAVE; r < end; r += ATTN_ROW_THREADS / DEV_WAVE)
        for (int c = (int)dev_lane(); c < cols; c += DEV_WAVE)
            large |= (rows[r * t.seq + c].bits & 0x7fffu) >= ATTN_LIFT_END;
    return large;
}

/* Zeros of dBias in rows [i0, i0 + bm) outside the tiles of the main loop; with masks in memory, which tiles these are
 * is not known yet, so everywhere. */
DEV_FN void attn_zero_bias(const stw_attn_launch &l, const stw_attn_seq &seq, int64_t b, int64_t h, int64_t block) {
    const stw_attn_params &p = l.p;
    stw_range range = stw_key_blocks(&seq, l.bm, l.bn, block);
    int64_t first = range.first * l.bn, end = stw_smaller(range.end * l.bn, seq.kv.used);
    for (int64_t r = dev_thread() / DEV_WAVE; r < l.bm; r += dev_threads() / DEV_WAVE) { /* a wave a row */
        int64_t i = block * l.bm + r;
        if (i >= p.max_seq_q) return;
        bool visited = i < seq.q.used && first < end && !(p.features & (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK));
        int element = p.dbias_dtype == STW_F32 ? 4 : 2;
        char *row = (char *)p.dbias.data + (b * p.dbias.batch + h * p.dbias.head + i * p.dbias.query) * element;
        attn_zero_span(row, row + (visited ? first : p.max_seq_kv) * element, element);
        if (visited) attn_zero_span(row + end * element, row + p.max_seq_kv * element, element);
    }
}

/* A thread a row, when its dot product is known: the statistics, D for the caller, the row's part of dSink.
 * `most`: the largest |dO| or |D|. */
DEV_FN double attn_preprocess_row(const stw_attn_launch &l, attn_preprocess_tile &u, float *stats, int r, float lse,
                                  float delta, float *most) {
    const stw_attn_params &p = l.p;
    int64_t i = u.block * l.bm + r;
    if (!(p.features & STW_FEAT_GIVEN_DELTA)) delta = u.delta[r] - delta;
    if (l.vectors & STW_STATS_NEGATED) {
        bool sees = i >= u.seq.q_low && i < u.seq.q_end; /* other rows' values may be anything */
        stats[r] = !sees || dev_is_infinite(lse) ? -dev_infinity()
                   : lse != lse                  ? __builtin_nanf("")
                                                 : lse * -LEAF_STATS_LOG2E(p);
        /* else P is 0, and 0 times D must be 0 */
        stats[l.bm + r] = sees && !dev_is_infinite(lse) ? -dev_usual_nan(delta) : 0.0f;
    } else {
        stats[r] = lse;
        stats[l.bm + r] = delta;
    }
    *most = fmaxf(*most, fabsf(delta));
    if (dev_is_infinite(lse)) u.special = 1;
    if ((p.features & STW_FEAT_WRITE_DELTA) && i < u.seq.q.rows)
        *attn_float_at(p.delta, (p.features & STW_FEAT_PACKED_DELTA) != 0, u.seq, u.b, u.h, i) = delta;
    if (!(p.outputs & STW_OUT_DSINK) || i >= u.seq.q.used || dev_is_infinite(lse)) return 0.0;
    float sink = p.features & STW_FEAT_SINK ? p.sink[u.h] : -dev_infinity();
    return sink == -dev_infinity() ? 0.0 : -(dev_exp((double)sink - (double)lse) * (double)delta);
}

/* No work tile has been taken; where matrix products of T may lose something, none is left to the exact kernel. */
template <class T> DEV_FN void attn_reset_tile_counters(const stw_attn_launch &l) {
    l.tile_counter[0] = 0;
    enum { EXACT = dev_flushes<T>::yes || attn_lifts<T>::yes };
    if (EXACT && (l.vectors & STW_STATS_NEGATED) && !l.dq_semaphore) l.tile_counter[1] = 0;
}

/* Deterministic mode: no key block has added to the query block. */
DEV_FN uint32_t attn_dq_semaphore_start(const stw_attn_launch &l, const attn_preprocess_tile &u) {
    return l.vectors & STW_KEYS_DESCEND ? (uint32_t)stw_key_blocks(&u.seq, l.bm, l.bn, u.block).end : 0;
}

/* The kernel. The last CTA checks, the first l.lists CTAs list key blocks, each other one has bm query rows of a
 * head. */
template <class T> DEV_FN void attn_bwd_preprocess(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    dev_let_next_begin();
    if (dev_cta() == l.work_tiles - 1) {
        if (dev_thread() == 0) attn_reset_tile_counters<T>(l);
        attn_check(p, smem, l.unordered);
    }
    if (dev_cta() >= l.work_tiles - 1) return;
    if (dev_cta() < l.lists) {
        attn_list_key_blocks(l, smem);
        return;
    }
    attn_preprocess_tile &u = *(attn_preprocess_tile *)(void *)smem;
    const attn_tile tile = attn_tile_of(p, l.bm, dev_cta() - l.lists, &u.found);
    if (!tile.live) return;
    attn_preprocess_enter(u, l, tile);
    if (l.bias_direct && !(p.accumulate & STW_OUT_DBIAS)) attn_zero_bias(l, u.seq, u.b, u.h, u.block);
    if (u.block * l.bm >= u.seq.q.rows) return;
    int t = (int)dev_thread();
    int64_t i = u.block * l.bm + t;
    float lse = dev_infinity(), delta = 0.0f; /* of row t: D if given, else dLSE */
    if (t < (int)l.bm && i < u.seq.q.used) {
        lse = *attn_float_at(p.lse, (p.features & STW_FEAT_PACKED_LSE) != 0, u.seq, u.b, u.h, i);
        if (p.features & STW_FEAT_GIVEN_DELTA)
            delta = *attn_float_at(p.delta, (p.features & STW_FEAT_PACKED_DELTA) != 0, u.seq, u.b, u.h, i);
        else if (p.features & STW_FEAT_DLSE)
            delta = *attn_float_at(p.dlse, (p.features & STW_FEAT_PACKED_DLSE) != 0, u.seq, u.b, u.h, i);
    }
    if (p.outputs & STW_OUT_DQ) {
        float *dq = l.dq + u.at * (int64_t)(l.bm * l.width);
        const dev_vector zero = {{0, 0, 0, 0}};
        for (int e = t * 4; e < (int)(l.bm * l.width); e += ATTN_ROW_THREADS * 4) dev_store_vector(dq + e, zero);
    }
    float *stats = l.stats + u.at * (2 * l.bm + STW_STATS_PAD), most = attn_preprocess_dots<T>(l, u);
    if constexpr (dev_flushes<T>::yes) {
        int bits = attn_preprocess_flushes<T>(l, u, p.q, (int)p.head_dim_qk, (l.vectors & STW_VECTOR_Q) != 0,
                                              ATTN_SUBNORMAL_KEYS) |
                   attn_preprocess_flushes<T>(l, u, p.dout, (int)p.head_dim_v, (l.vectors & STW_VECTOR_DOUT) != 0,
                                              ATTN_SUBNORMAL_ROWS)
                       << 3;
        if (bits) dev_or(&u.flushes, bits);
    }
    if constexpr (attn_lifts<T>::yes) {
        if (attn_preprocess_large<T>(l, u, p.q, (int)p.head_dim_qk) ||
            attn_preprocess_large<T>(l, u, p.dout, (int)p.head_dim_v))
            dev_or(&u.flushes, 1);
    }
    dev_barrier();
    double sink = t < (int)l.bm ? attn_preprocess_row(l, u, stats, t, lse, delta, &most) : 0.0;
    most = dev_wave_max(most);
    if (p.outputs & STW_OUT_DSINK) sink = dev_wave_sum(sink);
    if (dev_lane() == 0) {
        u.most[t / DEV_WAVE] = most;
        u.sink[t / DEV_WAVE] = sink;
    }
    dev_barrier();
    if (t) return;
    if (l.dq_semaphore) l.dq_semaphore[u.at] = attn_dq_semaphore_start(l, u);
    for (int w = 1; w < ATTN_ROW_THREADS / DEV_WAVE; ++w) {
        most = fmaxf(most, u.most[w]);
        sink += u.sink[w];
    }
    stats[2 * l.bm] = u.special ? 1.0f : 0.0f;
    bool subnormal = most > 0.0f && most < ATTN_SUBNORMAL_ROWS;
    if (dev_flushes<T>::yes) {
        int of_q = u.flushes & 7, of_dout = u.flushes >> 3;
        subnormal = subnormal || ((of_q | of_dout) & ATTN_ROWS_FLUSHED) ||
                    (of_q & ~ATTN_ROWS_FLUSHED) == ATTN_ROWS_ANY || (of_dout & ~ATTN_ROWS_FLUSHED) == ATTN_ROWS_ANY;
    }
    stats[2 * l.bm + 1] = subnormal ? 1.0f : 0.0f;
    if (attn_lifts<T>::yes) { /* 256 columns make a norm at most 16 times as large */
        stats[2 * l.bm + 1] = u.flushes ? dev_infinity() : most * 16.0f;
        stats[2 * l.bm + 2] = most;
    }
    if (p.outputs & STW_OUT_DSINK) l.sink[u.at] = sink;
}

#endif
