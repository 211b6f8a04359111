/* SPDX-License-Identifier: MIT
 *
 * What all ops of problem.h share: lengths, places of elements, tensors, the call. */
#include "problem.h"

#include "common/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void lengths_place(lengths *l, const int64_t *used, int count, int gaps, int spaced) {
    int64_t at = gaps || spaced ? 2 : 0;
    memset(l, 0, sizeof *l);
    l->count = count;
    for (int b = 0; b < count; ++b) {
        l->used[b] = used[b];
        l->start[b] = at;
        l->size[b] = used[b] + (gaps ? (b * 5 + 3) % 4 : 0); /* 3 0 1 2 3 ..: some components have no gap */
        at += l->size[b];
        if (l->size[b] > l->longest) l->longest = l->size[b];
    }
    l->total = at + (gaps || spaced ? 3 : 0);
}

int64_t nested_at(const nested *n, int b, int64_t o, int64_t r, int64_t i) {
    const lengths *l = n->l;
    if (n->jagged) return (o * l->total + l->start[b] + r) * n->inner + i;
    return l->start[b] * n->outer * n->inner + (o * l->size[b] + r) * n->inner + i;
}

static int64_t nested_elements(const nested *n) { return n->outer * n->l->total * n->inner; }

int64_t *index_of_nested(const nested *n, int64_t *count_out) {
    int64_t count = 0, at = 0;
    for (int b = 0; b < n->l->count; ++b) count += n->outer * n->l->used[b] * n->inner;
    int64_t *index = malloc(sizeof *index * (size_t)(count + 1));
    assert_non_null(index);
    for (int b = 0; b < n->l->count; ++b)
        for (int64_t o = 0; o < n->outer; ++o)
            for (int64_t r = 0; r < n->l->used[b]; ++r)
                for (int64_t i = 0; i < n->inner; ++i) index[at++] = nested_at(n, b, o, r, i);
    *count_out = count;
    return index;
}

static void *offsets_block(problem *p, const char *name, const int64_t *values, int count) {
    const size_t size = p->v->narrow ? 4 : 8;
    void *data = arena_add(&p->memory, name, count, size, ARENA_INPUT);
    for (int n = 0; n < count; ++n) {
        const int32_t narrow = (int32_t)values[n];
        memcpy((char *)data + (size_t)n * size, p->v->narrow ? (const void *)&narrow : &values[n], size);
    }
    return data;
}

void problem_offsets(problem *p, int axis) {
    const lengths *l = &p->l[axis];
    int64_t offsets[COMPONENTS_MAX + 1];
    stw_jagged_offsets *to = &p->args.axis[axis];
    for (int b = 0; b < l->count; ++b) offsets[b] = l->start[b];
    offsets[l->count] = l->count ? l->start[l->count - 1] + l->size[l->count - 1] : 0;
    to->offsets = offsets_block(p, "offsets", offsets, l->count + 1);
    if (p->v->gaps) to->used = offsets_block(p, "used", l->used, l->count);
    if (p->v->mirrors) to->offsets_host = offsets_block(p, "offsets_host", offsets, l->count + 1);
    if (p->v->mirrors && p->v->gaps) to->used_host = offsets_block(p, "used_host", l->used, l->count);
}

/* A golden tensor's elements at the places of `index` (null: as they are) in a buffer of NaN. */
void *problem_input(problem *p, const char *name, const char *key, const int64_t *index, double elements) {
    const stw_st_tensor *t = golden_tensor(p->c, key, 1);
    const size_t size = stw_st_type_bits(t->type) / 8;
    char *data = arena_add(&p->memory, name, elements, size, ARENA_INPUT);
    for (uint64_t n = 0; n < t->elements; ++n) {
        const uint64_t at = index ? (uint64_t)index[n] : n;
        assert_true((double)at < elements);
        memcpy(data + at * size, (const char *)t->data + n * size, size);
    }
    return data;
}

void *problem_nested_input(problem *p, const char *key, const nested *n) {
    int64_t count;
    int64_t *index = index_of_nested(n, &count);
    assert_int_equal(golden_tensor(p->c, key, 1)->elements, count);
    void *data = problem_input(p, key, key, index, (double)nested_elements(n));
    free(index);
    return data;
}

float result_start(int64_t element) { return (float)(element % 7 - 3) * 0.25f; }

void *problem_result(problem *p, const char *name, stw_dtype dtype, double elements, int64_t *index,
                     unsigned char *cleared) {
    result *r = &p->results[p->result_count++];
    r->name = name;
    r->dtype = p->v->f32 ? STW_F32 : dtype;
    r->elements = (int64_t)elements;
    r->index = index;
    r->cleared = cleared;
    r->accumulate = p->v->accumulate;
    r->data = arena_add(&p->memory, name, elements, stw_dtype_size(r->dtype), ARENA_OUTPUT);
    for (int64_t n = 0; r->accumulate && n < r->elements; ++n) ((float *)r->data)[n] = result_start(n);
    return r->data;
}

/* Used positions are compared, the rest of each component must be cleared, all else stay as it is. */
void *problem_nested_result(problem *p, const char *name, const nested *n) {
    int64_t count;
    int64_t *index = index_of_nested(n, &count);
    unsigned char *cleared = calloc((size_t)nested_elements(n) + 1, 1);
    assert_non_null(cleared);
    for (int b = 0; b < n->l->count; ++b)
        for (int64_t o = 0; o < n->outer; ++o)
            for (int64_t r = n->l->used[b]; r < n->l->size[b]; ++r)
                for (int64_t i = 0; i < n->inner; ++i) cleared[nested_at(n, b, o, r, i)] = 1;
    return problem_result(p, name, p->c->dtype, (double)nested_elements(n), index, cleared);
}

void *problem_dense_result(problem *p, const char *name, stw_dtype dtype) {
    char key[32] = {0};
    strncat(strncat(key, name, 20), "_ref", 5);
    const int64_t count = (int64_t)golden_tensor(p->c, key, 1)->elements;
    int64_t *index = malloc(sizeof *index * (size_t)(count + 1));
    assert_non_null(index);
    for (int64_t n = 0; n < count; ++n) index[n] = n;
    return problem_result(p, name, dtype, (double)count, index, NULL);
}

int problem_build(problem *p, const golden_case *c, const variant *v) {
    memset(p, 0, sizeof *p);
    p->c = c;
    p->v = v;
    p->memory.skew = v->skew;
    p->desc = STW_INIT(stw_jagged_desc);
    p->args = STW_INIT(stw_jagged_args);
    p->desc.dtype = c->dtype;
    p->desc.index_dtype = v->narrow ? STW_I32 : STW_I64;
    p->desc.flags = (v->gaps ? STW_JAGGED_HAS_USED : 0u) | (v->full ? STW_JAGGED_FULL : 0u);
    p->desc.storage = v->jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    if (v->f32 && c->dtype > STW_F32) return 0;
    if (v->full && (v->gaps || v->spaced || c->dtype > STW_F32)) return 0;
    p->args.status_out = arena_add(&p->memory, "status_out", 1, 4, ARENA_STATUS);
    int applies;
    if (!strcmp(c->op, "attention")) applies = problem_attention(p);
    else if (!strcmp(c->op, "matmul")) applies = problem_matmul(p);
    else if (v->transposed || v->bases) applies = 0;
    else if (strstr(c->op, "_norm") || !strcmp(c->op, "linear")) applies = problem_products(p);
    else applies = problem_rows(p);
    if (v->f32) p->desc.dx_dtype = p->args.dx ? STW_F32 : STW_DTYPE_NONE;
    if (v->f32) p->desc.dother_dtype = p->args.dother ? STW_F32 : STW_DTYPE_NONE;
    if (v->f32) p->desc.dweight_dtype = p->args.dweight ? STW_F32 : STW_DTYPE_NONE;
    if (v->f32) p->desc.dbias_dtype = p->args.dbias ? STW_F32 : STW_DTYPE_NONE;
    if (v->outputs) p->desc.outputs = v->outputs;
    if (v->accumulate && !p->desc.attn)
        p->desc.accumulate = (p->args.dx ? STW_JAGGED_DX : 0u) | (p->args.dother ? STW_JAGGED_DOTHER : 0u) |
                             (p->args.dweight ? STW_JAGGED_DWEIGHT : 0u) | (p->args.dbias ? STW_JAGGED_DBIAS : 0u);
    return applies;
}

void problem_free(problem *p) {
    for (int n = 0; n < p->result_count; ++n) {
        free(p->results[n].index);
        free(p->results[n].cleared);
    }
    arena_free(&p->memory);
    memset(p, 0, sizeof *p);
}

stw_context *problem_context(int threads) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = threads;
    if (stw_context_create(&opts, &context)) fail_msg("%s", stw_last_error());
    return context;
}

void problem_run(problem *p, stw_context *context) {
    stw_plan *plan = NULL;
    if (stw_jagged_bwd_plan(context, &p->desc, &plan))
        fail_msg("%s, %s: plan: %s", p->c->name, p->v->name, stw_last_error());
    const size_t size = stw_plan_workspace_size(plan);
    void *workspace = arena_add(&p->memory, "workspace", (double)size, 1, ARENA_WORKSPACE);
    arena_keep(&p->memory);
    const stw_status status = stw_jagged_bwd(plan, &p->args, size ? workspace : NULL, size, NULL);
    if (status) fail_msg("%s, %s: run: %s", p->c->name, p->v->name, stw_last_error());
    const char *wrong = arena_wrong(&p->memory, 0);
    if (wrong) fail_msg("%s, %s: %s", p->c->name, p->v->name, wrong);
    int32_t reported;
    const void *status_out = p->desc.attn ? p->attn_args.status_out : p->args.status_out;
    memcpy(&reported, status_out, 4);
    if (reported != 0) fail_msg("%s, %s: status_out is %d", p->c->name, p->v->name, reported);
    stw_plan_destroy(plan);
}
