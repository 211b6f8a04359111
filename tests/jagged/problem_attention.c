/* SPDX-License-Identifier: MIT
 *
 * Golden problems of attention on nested q, k, v: attn_bwd.h's packed problem, whose starts are the offsets
 * of two axes. */
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void bind_axis(problem *p, int axis, const char *key) {
    int64_t starts[COMPONENTS_MAX], used[COMPONENTS_MAX];
    const int count = golden_integers(p->c, key, starts) - 1;
    for (int b = 0; b < count; ++b) used[b] = starts[b + 1] - starts[b];
    lengths_place(&p->l[axis], used, count, p->v->gaps, p->v->spaced);
    problem_offsets(p, axis);
}

/* [T,H,D] of an axis: one component's rows are `inner` elements. */
static void *rows(problem *p, int axis, const char *key, int64_t inner, int output) {
    const nested n = {.l = &p->l[axis], .outer = 1, .inner = inner};
    return output ? problem_nested_result(p, key, &n) : problem_nested_input(p, key, &n);
}

/* lse, [H,T] in the file and in memory. */
static float *statistics(problem *p, int64_t heads) {
    const stw_st_tensor *t = golden_tensor(p->c, "lse", 1);
    const lengths *l = &p->l[STW_AXIS_Q];
    float *data = arena_add(&p->memory, "lse", (double)(heads * l->total), 4, ARENA_INPUT);
    int64_t at = 0;
    for (int64_t h = 0; h < heads; ++h)
        for (int b = 0; b < l->count; ++b)
            for (int64_t r = 0; r < l->used[b]; ++r) data[h * l->total + l->start[b] + r] = (float)golden_real(t, at++);
    assert_int_equal(at, t->elements);
    return data;
}

int problem_attention(problem *p) {
    stw_attn_desc *d = &p->attn;
    stw_attn_args *a = &p->attn_args;
    const char *mask = golden_text(p->c, "mask");
    if (p->v->jagged || p->v->full || p->v->transposed || p->v->bases) return 0;
    *d = STW_INIT(stw_attn_desc);
    *a = STW_INIT(stw_attn_args);
    bind_axis(p, STW_AXIS_Q, "cu_seqlens_q");
    bind_axis(p, STW_AXIS_KV, "cu_seqlens_k");
    const stw_st_tensor *q = golden_tensor(p->c, "q", 1), *k = golden_tensor(p->c, "k", 1);
    d->dtype = p->c->dtype;
    d->batch = p->l[STW_AXIS_Q].count;
    d->heads_q = q->shape[1];
    d->heads_kv = k->shape[1];
    d->head_dim_qk = d->head_dim_v = q->shape[2];
    d->max_seq_q = p->l[STW_AXIS_Q].longest;
    d->max_seq_kv = p->l[STW_AXIS_KV].longest;
    d->total_q = p->l[STW_AXIS_Q].total;
    d->total_kv = p->l[STW_AXIS_KV].total;
    if (mask && !strcmp(mask, "causal_tl")) d->mask = STW_MASK_CAUSAL_TOP_LEFT;
    if (p->v->gaps) d->flags |= STW_ATTN_HAS_USED_LENGTHS;
    if (p->v->f32) d->dq_dtype = d->dk_dtype = d->dv_dtype = STW_F32;
    if (p->v->accumulate) d->accumulate = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    assert_int_equal(stw_layout_thd(d), STW_OK);
    const int64_t wide_q = d->heads_q * d->head_dim_qk, wide_k = d->heads_kv * d->head_dim_qk;
    a->q = rows(p, STW_AXIS_Q, "q", wide_q, 0);
    a->k = rows(p, STW_AXIS_KV, "k", wide_k, 0);
    a->v = rows(p, STW_AXIS_KV, "v", wide_k, 0);
    a->out = rows(p, STW_AXIS_Q, "out", wide_q, 0);
    a->dout = rows(p, STW_AXIS_Q, "dout", wide_q, 0);
    a->lse = statistics(p, d->heads_q);
    a->dq = rows(p, STW_AXIS_Q, "dq", wide_q, 1);
    a->dk = rows(p, STW_AXIS_KV, "dk", wide_k, 1);
    a->dv = rows(p, STW_AXIS_KV, "dv", wide_k, 1);
    a->status_out = p->args.status_out;
    p->args.status_out = NULL;
    p->desc.op = STW_JAGGED_ATTENTION;
    p->desc.dtype = STW_DTYPE_NONE;
    p->desc.flags = 0;
    p->desc.components = d->batch;
    p->desc.attn = d;
    p->args.attn = a;
    return 1;
}
