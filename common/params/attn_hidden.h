/* SPDX-License-Identifier: MIT
 *
 * Masks that lie in memory, once for the CPU, the GPUs' host side and their kernels: which query rows do not see a key
 * (stw_attn_intervals), what that says of a block of keys, and which blocks a block mask hides. */
#ifndef STW_COMMON_PARAMS_ATTN_HIDDEN_H
#define STW_COMMON_PARAMS_ATTN_HIDDEN_H

#include "attn_seq.h"

/* Local rows that do not see a key: [first, end) of each interval, within 0..rows that are used. Empty: 0, 0. */
typedef struct stw_hidden_rows {
    int32_t first[2], end[2];
} stw_hidden_rows;

/* One bound as a local row. The caller's memory is trusted with nothing: a bound is clamped. */
STW_SHARED_FN int32_t stw_bound_of_row(const stw_seq_span *q, int32_t bound) {
    return (int32_t)stw_clamp_i64((int64_t)bound - q->offset, 0, q->used);
}

STW_SHARED_FN int stw_interval_bounds(uint32_t form) {
    return form == STW_INTERVALS_NONE                                        ? 0
           : form == STW_INTERVALS_FROM                                      ? 1
           : form == STW_INTERVALS_RANGE || form == STW_INTERVALS_FROM_BELOW ? 2
           : form == STW_INTERVALS_RANGE_BELOW                               ? 3
                                                                             : 4;
}

/* The bounds of local key j of sequence b; `kv` is the sequence's side. */
STW_SHARED_FN const int32_t *stw_interval_at(const stw_attn_params *p, const stw_seq_span *kv, int64_t b,
                                             int64_t kv_head, int64_t j) {
    const stw_interval_param *t = &p->intervals;
    const int64_t row = p->features & STW_FEAT_PACKED_INTERVALS ? kv->first + j : j;
    const int64_t batch = p->features & STW_FEAT_PACKED_INTERVALS ? 0 : b * t->batch;
    return t->data + batch + kv_head * t->head + row * t->key;
}

/* What the bounds at `bounds` hide from their key. */
STW_SHARED_FN stw_hidden_rows stw_hidden_rows_of(const stw_attn_params *p, const stw_seq_span *q,
                                                 const int32_t *bounds) {
    const int64_t step = p->intervals.bound;
    const uint32_t form = p->interval_form;
    stw_hidden_rows h = {{0, 0}, {0, 0}};
    h.first[0] = stw_bound_of_row(q, bounds[0]);
    h.end[0] = form == STW_INTERVALS_FROM || form == STW_INTERVALS_FROM_BELOW ? (int32_t)q->used
                                                                              : stw_bound_of_row(q, bounds[step]);
    if (form == STW_INTERVALS_FROM_BELOW) h.end[1] = stw_bound_of_row(q, bounds[step]);
    if (form == STW_INTERVALS_RANGE_BELOW) h.end[1] = stw_bound_of_row(q, bounds[2 * step]);
    if (form == STW_INTERVALS_TWO_RANGES) {
        h.first[1] = stw_bound_of_row(q, bounds[2 * step]);
        h.end[1] = stw_bound_of_row(q, bounds[3 * step]);
    }
    for (int x = 0; x < 2; ++x)
        if (h.first[x] >= h.end[x]) h.first[x] = h.end[x] = 0;
    return h;
}

STW_SHARED_FN int stw_is_hidden(const stw_hidden_rows *h, int64_t i) {
    return (i >= h->first[0] && i < h->end[0]) || (i >= h->first[1] && i < h->end[1]);
}

/* Of a block of keys: rows that an interval hides from all of them, and rows that it hides from some. */
typedef struct stw_hidden_block {
    int32_t all_first[2], all_end[2];
    int32_t any_first[2], any_end[2];
} stw_hidden_block;

/* Of no key yet. */
STW_SHARED_FN stw_hidden_block stw_hidden_block_of_none(void) {
    stw_hidden_block k = {{0, 0}, {INT32_MAX, INT32_MAX}, {INT32_MAX, INT32_MAX}, {0, 0}};
    return k;
}

STW_SHARED_FN void stw_hidden_block_add(stw_hidden_block *k, const stw_hidden_rows *h) {
    for (int x = 0; x < 2; ++x) {
        if (h->first[x] > k->all_first[x]) k->all_first[x] = h->first[x];
        if (h->end[x] < k->all_end[x]) k->all_end[x] = h->end[x];
        if (h->first[x] >= h->end[x]) continue;
        if (h->first[x] < k->any_first[x]) k->any_first[x] = h->first[x];
        if (h->end[x] > k->any_end[x]) k->any_end[x] = h->end[x];
    }
}

/* What rows [i0, i1) meet: all pairs are hidden by one interval; or none is. Rows are those in use. */
STW_SHARED_FN int stw_hidden_block_hides_all(const stw_hidden_block *k, int64_t i0, int64_t i1) {
    return (k->all_first[0] <= i0 && k->all_end[0] >= i1) || (k->all_first[1] <= i0 && k->all_end[1] >= i1);
}
STW_SHARED_FN int stw_hidden_block_hides_none(const stw_hidden_block *k, int64_t i0, int64_t i1) {
    return (k->any_first[0] >= i1 || k->any_end[0] <= i0) && (k->any_first[1] >= i1 || k->any_end[1] <= i0);
}

/* STW_DATA_INTERVALS: a bound is below 0 or, without a q offset, above the rows of the sequence. */
STW_SHARED_FN int stw_bounds_are_wrong(const stw_attn_params *p, const stw_seq_span *q, const int32_t *bounds) {
    int wrong = 0;
    for (int x = 0; x < stw_interval_bounds(p->interval_form); ++x) {
        const int32_t bound = bounds[x * p->intervals.bound];
        if (bound < 0 || (!q->offset && bound > q->rows)) wrong = 1;
    }
    return wrong;
}

/* Tiles of bn keys of all sequences, numbered as query blocks are (stw_attn_seq.q_block): at most. */
STW_SHARED_FN int64_t stw_hidden_tiles_most(const stw_attn_params *p, int64_t bn) {
    return p->features & STW_FEAT_PACKED_KV ? p->total_kv / bn + p->batch + 1
                                            : p->batch * stw_blocks_of(p->max_seq_kv, bn);
}

/* The first one of sequence b. */
STW_SHARED_FN int64_t stw_hidden_tile(const stw_attn_params *p, const stw_seq_span *kv, int64_t bn, int64_t b) {
    return p->features & STW_FEAT_PACKED_KV ? stw_quotient(kv->first, bn) + b : b * stw_blocks_of(p->max_seq_kv, bn);
}

/* The byte of a block mask over local row i and key j of query head h: 0 hides the pair. */
STW_SHARED_FN uint8_t stw_block_mask_at(const stw_attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const stw_block_mask_param *t = &p->block_mask;
    return t->data[b * t->batch + h * t->head + i / STW_MASK_BLOCK * t->query + j / STW_MASK_BLOCK * t->key];
}

#endif
