/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of sequences, once for the CPU, the GPUs' host side and their kernels: which rows a sequence has,
 * which keys a row sees, how sequences are cut into blocks, and which blocks meet. */
#ifndef STW_COMMON_PARAMS_ATTN_SEQ_H
#define STW_COMMON_PARAMS_ATTN_SEQ_H

#include "attn_bwd.h"

/* One side (q or kv) of one sequence, resolved from the parameter block. */
typedef struct stw_seq_span {
    int64_t first;  /* row of the sequence's start in a packed tensor; 0 when dense */
    int64_t rows;   /* rows up to the sequence's end                                */
    int64_t used;   /* rows that take part, <= rows                                 */
    int64_t offset; /* position of row 0 in the whole problem                      */
} stw_seq_span;

/* Values read from the caller's arrays are clamped, so that no row outside the buffers is ever touched. */
STW_SHARED_FN stw_seq_span stw_seq_resolve(int64_t b, const int32_t *cu_seqlens, const int32_t *used,
                                           const int64_t *offsets, int64_t offset, int64_t max_seq, int64_t total) {
    stw_seq_span span = {0, max_seq, max_seq, offset};
    if (cu_seqlens) {
        span.first = stw_clamp_i64(cu_seqlens[b], 0, total);
        int64_t end = stw_clamp_i64(cu_seqlens[b + 1], span.first, total);
        span.rows = stw_clamp_i64(end - span.first, 0, max_seq);
        span.used = span.rows;
    }
    if (used) span.used = stw_clamp_i64(used[b], 0, span.rows);
    if (offsets) span.offset = stw_clamp_i64(offsets[b], -STW_POSITION_MAX, STW_POSITION_MAX);
    return span;
}

STW_SHARED_FN stw_seq_span stw_seq_q(const stw_attn_params *p, int64_t b) {
    return stw_seq_resolve(b, p->cu_seqlens_q, p->used_q, p->q_offsets, p->q_offset, p->max_seq_q, p->total_q);
}

STW_SHARED_FN stw_seq_span stw_seq_kv(const stw_attn_params *p, int64_t b) {
    return stw_seq_resolve(b, p->cu_seqlens_kv, p->used_kv, p->k_offsets, p->k_offset, p->max_seq_kv, p->total_kv);
}

/* Visible keys of a local query row i are the local keys j with low <= j - i <= high (and
 * 0 <= j < used): masks, shift and offsets in two numbers a sequence. */
typedef struct stw_band {
    int64_t low, high; /* bounds of j - i, local                                               */
    int64_t shift;     /* shift + q offset - k offset: i + shift is the local key of the diagonal */
} stw_band;

#define STW_BAND_OPEN (INT64_C(1) << 60) /* a side without bound */

STW_SHARED_FN stw_band stw_band_of(const stw_attn_params *p, stw_seq_span q, stw_seq_span kv) {
    stw_band band;
    int64_t shift = (p->features & STW_FEAT_FIXED_SHIFT) ? p->fixed_shift : kv.used - q.used;
    band.shift = shift + q.offset - kv.offset;
    band.low = (p->features & STW_FEAT_WINDOW_LEFT) ? band.shift - p->window_left : -STW_BAND_OPEN;
    band.high = (p->features & STW_FEAT_WINDOW_RIGHT) ? band.shift + p->window_right : STW_BAND_OPEN;
    return band;
}

/* No row of any sequence sees two keys. P is 1 or 0 then and dS = dP - D (softcap aside) is rounding alone,
 * so dP is to be summed as D was: rounded to nearest. */
STW_SHARED_FN int stw_attn_sees_one_key(const stw_attn_params *p) {
    const uint32_t both = STW_FEAT_WINDOW_LEFT | STW_FEAT_WINDOW_RIGHT;
    return p->max_seq_kv <= 1 || ((p->features & both) == both && p->window_left + p->window_right <= 0);
}

/* One sequence as blocks: see stw_attn_seq_of. */
typedef struct stw_attn_seq {
    stw_seq_span q, kv;
    stw_band band;
    int64_t q_block;      /* number of its first query block among those of a head                   */
    int64_t q_low, q_end; /* query rows that see a key                                               */
} stw_attn_seq;

typedef struct stw_range {
    int64_t first, end;
} stw_range;

/* GPUs divide by a long program: the 32-bit one is a quarter of the other. */
STW_SHARED_FN int64_t stw_quotient(int64_t a, int64_t b) {
    return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

STW_SHARED_FN int64_t stw_blocks_of(int64_t rows, int64_t step) { return stw_quotient(rows + step - 1, step); }

STW_SHARED_FN int64_t stw_larger(int64_t a, int64_t b) { return a > b ? a : b; }

STW_SHARED_FN int64_t stw_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Key blocks of all sequences, at most. Those of packed keys are as many as the pack has room for, whatever the longest
 * sequence may be. */
STW_SHARED_FN int64_t stw_key_blocks_most(const stw_attn_params *p, int64_t bn) {
    int64_t most = p->batch * stw_blocks_of(p->max_seq_kv, bn);
    return p->features & STW_FEAT_PACKED_KV ? stw_smaller(most, p->total_kv / bn + p->batch) : most;
}

/* Tiles of `rows` query rows that a pack may hold, since each sequence begins with a tile of its own. */
STW_SHARED_FN int64_t stw_tiles_of_pack(const stw_attn_params *p, int64_t rows) {
    return p->total_q / rows + p->batch + 1;
}

/* Kernels that work on query rows number packed tiles through the pack where sequences as long as they may be would
 * make more. Not with a dBias, which has max_seq_q rows to zero for every sequence. */
STW_SHARED_FN int stw_tiles_through_pack(const stw_attn_params *p, int64_t rows) {
    return (p->features & STW_FEAT_PACKED_Q) && !(p->outputs & STW_OUT_DBIAS) &&
           stw_tiles_of_pack(p, rows) < p->batch * stw_blocks_of(p->max_seq_q, rows);
}

/* Tiles of `rows` query rows of a head, all sequences. */
STW_SHARED_FN int64_t stw_tiles_of_head(const stw_attn_params *p, int64_t rows) {
    return stw_tiles_through_pack(p, rows) ? stw_tiles_of_pack(p, rows) : p->batch * stw_blocks_of(p->max_seq_q, rows);
}

/* Query blocks of `bm` rows of a head, all sequences, as stw_attn_seq.q_block numbers them: at most. */
STW_SHARED_FN int64_t stw_query_blocks_most(const stw_attn_params *p, int64_t bm) {
    return (p->features & STW_FEAT_PACKED_Q) ? stw_tiles_of_pack(p, bm) : p->batch * stw_blocks_of(p->max_seq_q, bm);
}

/* Rows of a side's tensors, of one batch where the side is dense; 0 without a sequence. */
STW_SHARED_FN int64_t stw_rows_of_side(const stw_attn_params *p, int kv) {
    if (!p->batch) return 0;
    if (p->features & (kv ? STW_FEAT_PACKED_KV : STW_FEAT_PACKED_Q)) return kv ? p->total_kv : p->total_q;
    return kv ? p->max_seq_kv : p->max_seq_q;
}

STW_SHARED_FN stw_attn_seq stw_attn_seq_of(const stw_attn_params *p, int64_t bm, int64_t b) {
    stw_attn_seq s;
    s.q = stw_seq_q(p, b);
    s.kv = stw_seq_kv(p, b);
    s.band = stw_band_of(p, s.q, s.kv);
    s.q_block =
        (p->features & STW_FEAT_PACKED_Q) ? stw_quotient(s.q.first, bm) + b : b * stw_blocks_of(p->max_seq_q, bm);
    s.q_low = s.q_end = 0;
    if (s.band.low > s.band.high || s.q.used <= 0 || s.kv.used <= 0) return s;
    int64_t q_low = stw_larger(0, -s.band.high), q_end = stw_smaller(s.q.used, s.kv.used - s.band.low);
    if (q_low >= q_end) return s;
    s.q_low = q_low;
    s.q_end = q_end;
    return s;
}

/* Keys that a query of the sequence sees. */
STW_SHARED_FN stw_range stw_visible_keys(const stw_attn_seq *s) {
    stw_range range = {0, 0};
    if (s->q_low >= s->q_end) return range;
    range.first = stw_larger(0, s->band.low);
    range.end = stw_smaller(s->kv.used, s->q.used + s->band.high);
    return range;
}

STW_SHARED_FN stw_range stw_range_of_blocks(int64_t first, int64_t end, int64_t step) {
    stw_range range = {0, 0};
    if (first < end) {
        range.first = stw_quotient(first, step);
        range.end = stw_blocks_of(end, step);
    }
    return range;
}

/* Key blocks that query block `block` meets. */
STW_SHARED_FN stw_range stw_key_blocks(const stw_attn_seq *s, int64_t bm, int64_t bn, int64_t block) {
    int64_t i0 = block * bm, i1 = stw_smaller(i0 + bm, s->q.used);
    if (i0 >= i1 || s->q_low >= s->q_end) return stw_range_of_blocks(0, 0, bn);
    return stw_range_of_blocks(stw_larger(0, i0 + s->band.low), stw_smaller(s->kv.used, i1 + s->band.high), bn);
}

/* Query blocks that key block `block` meets. */
STW_SHARED_FN stw_range stw_query_blocks(const stw_attn_seq *s, int64_t bm, int64_t bn, int64_t block) {
    int64_t j0 = block * bn, j1 = stw_smaller(j0 + bn, s->kv.used);
    if (j0 >= j1 || s->q_low >= s->q_end) return stw_range_of_blocks(0, 0, bm);
    return stw_range_of_blocks(stw_larger(0, j0 - s->band.high), stw_smaller(s->q.used, j1 - s->band.low), bm);
}

#endif
