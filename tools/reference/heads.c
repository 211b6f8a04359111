/* SPDX-License-Identifier: MIT
 *
 * Gathers one head of a problem into dense arrays: see heads.h. */
#include "heads.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *ref_array(int64_t count, size_t size) { return calloc(count > 0 ? (size_t)count : 1, size); }

stw_status stw_ref_head_open(const stw_ref_problem *p, stw_ref_head *head) {
    const stw_attn_desc *d = p->desc;
    int64_t queries = 0, keys = 0, pairs = 0;
    for (int64_t b = 0; b < d->batch; ++b) {
        stw_ref_side q = stw_ref_side_q(p, b), kv = stw_ref_side_kv(p, b);
        if (q.used > queries) queries = q.used;
        if (kv.used > keys) keys = kv.used;
        if (q.used * kv.used > pairs) pairs = q.used * kv.used;
    }
    memset(head, 0, sizeof *head);
    head->dim = d->head_dim_qk;
    head->dim_v = d->head_dim_v;
    head->q = ref_array(queries * head->dim, sizeof(double));
    head->k = ref_array(keys * head->dim, sizeof(double));
    head->v = ref_array(keys * head->dim_v, sizeof(double));
    head->out = ref_array(queries * head->dim_v, sizeof(double));
    head->dout = ref_array(queries * head->dim_v, sizeof(double));
    head->lse = ref_array(queries, sizeof(double));
    head->dlse = ref_array(queries, sizeof(double));
    head->delta = ref_array(queries, sizeof(double));
    head->visible = ref_array(pairs, 1);
    head->pair = ref_array(pairs, 1);
    head->sees = ref_array(queries, 1);
    head->seen = ref_array(keys, 1);
    int complete = head->q && head->k && head->v && head->out && head->dout && head->lse && head->dlse && head->delta &&
                   head->visible && head->pair && head->sees && head->seen;
    return complete ? STW_OK : STW_E_NO_MEMORY;
}

void stw_ref_head_close(stw_ref_head *head) {
    void *arrays[] = {head->q,    head->k,     head->v,       head->out,  head->dout, head->lse,
                      head->dlse, head->delta, head->visible, head->pair, head->sees, head->seen};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; ++n) free(arrays[n]);
    memset(head, 0, sizeof *head);
}

void stw_ref_head_load_sequence(const stw_ref_problem *p, stw_ref_head *head, int64_t b) {
    const stw_attn_desc *d = p->desc;
    stw_ref_side q = stw_ref_side_q(p, b), kv = stw_ref_side_kv(p, b);
    head->side_q = q;
    head->side_kv = kv;
    head->queries = q.used;
    head->keys = kv.used;
    head->diagonal = stw_ref_shift(p, &q, &kv) + q.offset - kv.offset;
    head->key_offset = kv.offset;
    head->scale = p->scale;
    head->softcap = p->softcap;
    head->keep_scale = 1 / (1 - d->dropout_p);
    head->given_delta = (d->flags & STW_ATTN_GIVEN_DELTA) != 0;
    head->dtype = d->dtype;
    memset(head->sees, 0, (size_t)q.used);
    memset(head->seen, 0, (size_t)kv.used);
    for (int64_t i = 0; i < q.used; ++i) {
        for (int64_t j = 0; j < kv.used; ++j) {
            int visible = stw_ref_visible(p, &q, &kv, i, j);
            head->visible[i * kv.used + j] = visible ? STW_REF_PAIR_VISIBLE | STW_REF_PAIR_KEPT : 0;
            if (visible) head->sees[i] = head->seen[j] = 1;
        }
    }
}

/* `stride`: along head_dim, of `dim` in the descriptor. */
static void ref_load_row(double *to, const stw_attn_desc *d, const void *data, int64_t first, int64_t count,
                         int64_t stride) {
    int64_t step = d->flags & STW_ATTN_HAS_DIM_STRIDES ? stride : 1;
    for (int64_t n = 0; n < count; ++n) to[n] = stw_load_f64(data, first + n * step, d->dtype);
}

void stw_ref_head_load_kv(const stw_ref_problem *p, stw_ref_head *head, int64_t b, int64_t h_kv) {
    const stw_attn_desc *d = p->desc;
    for (int64_t j = 0; j < head->keys; ++j) {
        int64_t k = stw_ref_row_index(&d->k, p->packed_kv, &head->side_kv, b, h_kv, j);
        int64_t v = stw_ref_row_index(&d->v, p->packed_kv, &head->side_kv, b, h_kv, j);
        ref_load_row(head->k + j * head->dim, d, p->args->k, k, head->dim, d->dim.k);
        ref_load_row(head->v + j * head->dim_v, d, p->args->v, v, head->dim_v, d->dim.v);
    }
}

/* Everything of row i that only the backward reads. */
static void ref_load_backward_row(const stw_ref_problem *p, stw_ref_head *head, int64_t b, int64_t h, int64_t i) {
    const stw_attn_desc *d = p->desc;
    const stw_attn_args *a = p->args;
    const stw_ref_side *q = &head->side_q;
    stw_dtype dtype = stw_dtype_of_rows(d->dtype);
    head->lse[i] = stw_load_f64(a->lse, stw_ref_lse_index(p, &d->lse, q, b, h, i), dtype);
    if (d->flags & STW_ATTN_DLSE)
        head->dlse[i] = stw_load_f64(a->dlse, stw_ref_lse_index(p, &d->dlse, q, b, h, i), dtype);
    if (head->given_delta) head->delta[i] = stw_load_f64(a->delta, stw_ref_lse_index(p, &d->delta, q, b, h, i), dtype);
    if (!head->sees[i]) return;
    int64_t row = stw_ref_row_index(&d->dout, p->packed_q, q, b, h, i);
    ref_load_row(head->dout + i * head->dim_v, d, a->dout, row, head->dim_v, d->dim.dout);
    if (head->given_delta) return;
    row = stw_ref_row_index(&d->out, p->packed_q, q, b, h, i);
    ref_load_row(head->out + i * head->dim_v, d, a->out, row, head->dim_v, d->dim.out);
}

static void ref_load_bias(const stw_ref_problem *p, stw_ref_head *head, int64_t b, int64_t h) {
    const stw_attn_desc *d = p->desc;
    const int64_t *extent = p->bias_extent;
    head->bias_dtype = d->bias_dtype;
    head->bias = d->bias_dtype == STW_DTYPE_NONE || d->bias_dtype == STW_U8 ? NULL : p->args->bias;
    head->bias_first = b * d->bias.batch + h * d->bias.head;
    head->bias_query = d->bias.query;
    head->bias_key = d->bias.key;
    int64_t b_own = d->bias.batch ? b : 0, h_own = d->bias.head ? h : 0;
    head->dbias_first = (b_own * extent[1] + h_own) * extent[2] * extent[3];
    head->dbias_query = d->bias.query ? extent[3] : 0;
    head->dbias_key = d->bias.key ? 1 : 0;
}

/* Pairs that a bias of bytes hides are as those that a mask does. */
static void ref_hide_pairs(const stw_ref_problem *p, stw_ref_head *head) {
    const unsigned char *bytes = (const unsigned char *)p->args->bias + head->bias_first;
    for (int64_t i = 0; i < head->queries; ++i)
        for (int64_t j = 0; j < head->keys; ++j)
            if (!bytes[i * head->bias_query + j * head->bias_key]) head->pair[i * head->keys + j] = 0;
}

/* The same of intervals and block mask. */
static void ref_hide_masked(const stw_ref_problem *p, stw_ref_head *head, int64_t b, int64_t h) {
    for (int64_t i = 0; i < head->queries; ++i)
        for (int64_t j = 0; j < head->keys; ++j)
            if (!stw_ref_unhidden(p, &head->side_q, &head->side_kv, b, h, i, j)) head->pair[i * head->keys + j] = 0;
}

void stw_ref_head_load_q(const stw_ref_problem *p, stw_ref_head *head, int64_t b, int64_t h, int backward) {
    const stw_attn_desc *d = p->desc;
    for (int64_t i = 0; i < head->queries; ++i) {
        int64_t row = stw_ref_row_index(&d->q, p->packed_q, &head->side_q, b, h, i);
        ref_load_row(head->q + i * head->dim, d, p->args->q, row, head->dim, d->dim.q);
        if (backward) ref_load_backward_row(p, head, b, h, i);
    }
    ref_load_bias(p, head, b, h);
    head->alibi = (d->flags & STW_ATTN_ALIBI) != 0;
    head->alibi_column = (d->flags & STW_ATTN_ALIBI_COLUMN) != 0;
    stw_dtype dtype = stw_dtype_of_rows(d->dtype);
    head->slope = head->alibi ? stw_load_f64(p->args->alibi_slopes, b * d->alibi_stride_batch + h, dtype) : 0;
    head->sink = (d->flags & STW_ATTN_SINK) ? stw_load_f64(p->args->sink, h, dtype) : -INFINITY;
    memcpy(head->pair, head->visible, (size_t)(head->queries * head->keys));
    if (d->bias_dtype == STW_U8) ref_hide_pairs(p, head);
    if (stw_ref_hides(p)) ref_hide_masked(p, head, b, h);
    if (!(d->dropout_p > 0)) return;
    for (int64_t i = 0; i < head->queries; ++i) {
        for (int64_t j = 0; j < head->keys; ++j) {
            unsigned char *pair = &head->pair[i * head->keys + j];
            if (*pair && !stw_ref_keeps(p, &head->side_q, &head->side_kv, b, h, i, j)) *pair = STW_REF_PAIR_VISIBLE;
        }
    }
}

long double stw_ref_head_alibi(const stw_ref_head *head, int64_t i, int64_t j) {
    if (!head->alibi) return 0;
    if (head->alibi_column) return head->slope * (long double)(j + head->key_offset);
    int64_t distance = i + head->diagonal - j;
    return -head->slope * (long double)(distance < 0 ? -distance : distance);
}
