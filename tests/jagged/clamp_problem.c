/* SPDX-License-Identifier: MIT
 *
 * The problems of clamp.h, an op each: descriptor, tensors, and what becomes of every element when the
 * lengths are the clean ones. Written from include/sternway/jagged_bwd.h. Linked into the programs of
 * test_clamp*.c. */
#include "clamp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OUTER = 2, FEATURES = 7, PADDED = 6, CAPACITY = 16 << 20 };

const clamp_lengths clamp_other = {{1, 4, 4, 9, 12}, {3, 0, 5, 3}, 13};

/* Whether position r of component b takes part in an output's values; others are zeros. */
typedef int live_at(const clamp_problem *p, int b, int64_t r);

static int live_used(const clamp_problem *p, int b, int64_t r) { return r < p->l[p->axis].used[b]; }

static int live_first(const clamp_problem *p, int b, int64_t r) { return live_used(p, b, r) && r == 0; }

static int live_last(const clamp_problem *p, int b, int64_t r) { return r == p->l[p->axis].used[b] - 1; }

static int live_component(const clamp_problem *p, int b, int64_t r) { return live_used(p, b, r) && b == p->desc.index; }

static int live_padded(const clamp_problem *p, int b, int64_t r) { return live_used(p, b, r) && r < PADDED; }

static unsigned char *states(clamp_problem *p, int block) {
    clamp_block *b = &p->block[block];
    b->state = calloc((size_t)b->elements + 1, 1);
    assert_non_null(b->state);
    return b->state;
}

/* [outer, ragged, inner] of an axis. */
static void *nested(clamp_problem *p, const char *name, clamp_kind kind, stw_jagged_storage storage, int axis,
                    int64_t outer, int64_t inner, live_at *live) {
    const clamp_lengths *l = &p->l[axis];
    const size_t size = name[0] == 'm' || name[0] == 'r' ? 4 : clamp_element(p); /* mean, rstd: f32 */
    const int block = clamp_add(p, name, kind, outer * l->total * inner, size);
    unsigned char *state = states(p, block);
    for (int b = 0; b < CLAMP_COMPONENTS; ++b) {
        const int64_t length = l->start[b + 1] - l->start[b];
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t r = 0; r < length && b != p->skipped; ++r) {
                const int takes_part = live ? live(p, b, r) : r < l->used[b];
                const int64_t at = storage == STW_STORAGE_JAGGED ? o * l->total + l->start[b] + r
                                                                 : l->start[b] * outer + o * length + r;
                memset(state + at * inner, takes_part ? CLAMP_VALUE : CLAMP_ZERO, (size_t)inner);
            }
    }
    return clamp_at(p, block);
}

static void *dense(clamp_problem *p, const char *name, clamp_kind kind, int64_t elements) {
    return clamp_at(p, clamp_add(p, name, kind, elements, clamp_element(p)));
}

static void bind_axis(clamp_problem *p, int axis) {
    const size_t size = p->v->index_dtype == STW_I32 ? 4 : 8;
    p->offsets[axis] = clamp_add(p, "offsets", CLAMP_INPUT, CLAMP_COMPONENTS + 1, size);
    p->used[axis] = clamp_add(p, "used", CLAMP_INPUT, CLAMP_COMPONENTS, size);
    p->args.axis[axis].offsets = clamp_at(p, p->offsets[axis]);
    p->desc.axis[axis].size = CLAMP_SIZE;
    p->desc.axis[axis].total = p->l[axis].total;
}

/* ---- ops with one ragged axis ---- */

static void dense_by_component(clamp_problem *p) {
    const int64_t inner = p->desc.inner;
    const int component = (int)p->desc.index;
    const int block = clamp_add(p, "grad", CLAMP_INPUT, OUTER * CLAMP_SIZE * inner, clamp_element(p));
    memset(states(p, block), CLAMP_VALUE, (size_t)(OUTER * p->l[0].used[component] * inner));
    p->args.grad = clamp_at(p, block);
}

static void padded(clamp_problem *p, const char *name, clamp_kind kind) {
    const int64_t row = p->desc.inner;
    const int block = clamp_add(p, name, kind, CLAMP_COMPONENTS * OUTER * PADDED * row, clamp_element(p));
    unsigned char *state = states(p, block);
    for (int b = 0; b < CLAMP_COMPONENTS; ++b)
        for (int64_t o = 0; o < OUTER; ++o)
            for (int64_t r = 0; r < PADDED; ++r)
                memset(state + ((b * OUTER + o) * PADDED + r) * row, r < p->l[0].used[b] ? CLAMP_VALUE : CLAMP_ZERO,
                       (size_t)row);
    if (kind == CLAMP_INPUT) p->args.grad = clamp_at(p, block);
    else p->args.dx = clamp_at(p, block);
}

static void reduction_desc(clamp_problem *p) {
    stw_jagged_desc *d = &p->desc;
    switch (p->op) {
    case CLAMP_SOFTMAX_RAGGED: d->op = STW_JAGGED_SOFTMAX, d->dim = STW_DIM_RAGGED; break;
    case CLAMP_SOFTMAX_INNER: d->op = STW_JAGGED_SOFTMAX, d->dim = STW_DIM_INNER; break;
    case CLAMP_LOG_SOFTMAX: d->op = STW_JAGGED_LOG_SOFTMAX, d->dim = STW_DIM_RAGGED; break;
    case CLAMP_SUM_RAGGED: d->op = STW_JAGGED_SUM, d->dim = STW_DIM_RAGGED; break;
    case CLAMP_SUM_INNER: d->op = STW_JAGGED_SUM, d->dim = STW_DIM_INNER; break;
    case CLAMP_SELECT_COMPONENT: d->op = STW_JAGGED_SELECT, d->dim = STW_DIM_COMPONENT, d->index = 3; break;
    default: d->op = STW_JAGGED_SELECT, d->dim = STW_DIM_RAGGED, d->index = p->op == CLAMP_SELECT_LAST ? -1 : 0;
    }
}

static int ragged_norm(const clamp_problem *p) {
    return p->op == CLAMP_LAYER_NORM_RAGGED || p->op == CLAMP_RMS_NORM_RAGGED;
}

static void rows_desc(clamp_problem *p) {
    static const stw_jagged_op ops[CLAMP_OPS] = {[CLAMP_SILU] = STW_JAGGED_SILU,
                                                 [CLAMP_THRESHOLD] = STW_JAGGED_THRESHOLD,
                                                 [CLAMP_LAYER_NORM] = STW_JAGGED_LAYER_NORM,
                                                 [CLAMP_RMS_NORM] = STW_JAGGED_RMS_NORM,
                                                 [CLAMP_LAYER_NORM_RAGGED] = STW_JAGGED_LAYER_NORM,
                                                 [CLAMP_RMS_NORM_RAGGED] = STW_JAGGED_RMS_NORM,
                                                 [CLAMP_LINEAR] = STW_JAGGED_LINEAR,
                                                 [CLAMP_RESHAPE] = STW_JAGGED_RESHAPE,
                                                 [CLAMP_TO_PADDED] = STW_JAGGED_TO_PADDED,
                                                 [CLAMP_FROM_PADDED] = STW_JAGGED_FROM_PADDED};
    stw_jagged_desc *d = &p->desc;
    d->outer = OUTER;
    d->inner = p->v->inner;
    d->storage = p->v->storage;
    if (!ops[p->op]) reduction_desc(p);
    if (ops[p->op]) d->op = ops[p->op];
    if (p->op == CLAMP_THRESHOLD) d->threshold = 0.25;
    if (p->op == CLAMP_TO_PADDED || p->op == CLAMP_FROM_PADDED) d->padded = PADDED;
    if (p->op == CLAMP_LINEAR) d->out_features = FEATURES;
    if (ragged_norm(p)) d->dim = STW_DIM_RAGGED;
    if (p->op == CLAMP_LAYER_NORM || p->op == CLAMP_RMS_NORM) {
        d->dim_size = p->v->inner;
        d->inner = 2 * p->v->inner;
        d->flags = STW_JAGGED_HAS_GAMMA;
    }
    if (p->op == CLAMP_RESHAPE) { /* grad: [ragged, 2 * inner] */
        d->outer = d->inner = 0;
        d->shape_rank = 3;
        d->grad_rank = 2;
        memcpy(d->shape, (int64_t[]){OUTER, -1, p->v->inner}, 3 * sizeof(int64_t));
        memcpy(d->grad_shape, (int64_t[]){-1, OUTER * p->v->inner}, 2 * sizeof(int64_t));
        d->grad_storage = p->v->storage;
    }
}

static void bind_weights(clamp_problem *p) {
    stw_jagged_args *a = &p->args;
    const int linear = p->op == CLAMP_LINEAR;
    const int64_t weights = linear ? FEATURES * p->v->inner : p->v->inner;
    a->weight = dense(p, "weight", CLAMP_INPUT, weights);
    a->dweight = dense(p, "dweight", CLAMP_OUTPUT, weights);
    if (p->op != CLAMP_RMS_NORM) a->dbias = dense(p, "dbias", CLAMP_OUTPUT, linear ? FEATURES : weights);
    if (linear) return;
    if (p->op == CLAMP_LAYER_NORM) a->mean = nested(p, "mean", CLAMP_INPUT, p->v->storage, 0, OUTER, 2, NULL);
    a->rstd = nested(p, "rstd", CLAMP_INPUT, p->v->storage, 0, OUTER, 2, NULL);
}

/* Of a norm over the ragged dimension: one a component and index of outer. */
static float *statistics(clamp_problem *p, const char *name) {
    return clamp_at(p, clamp_add(p, name, CLAMP_INPUT, CLAMP_COMPONENTS * OUTER, sizeof(float)));
}

static void bind_grad(clamp_problem *p) {
    const int64_t inner = p->op == CLAMP_LINEAR ? FEATURES : p->op == CLAMP_SUM_INNER ? 1 : p->desc.inner;
    live_at *live = p->op == CLAMP_FROM_PADDED ? live_padded : NULL;
    const int ragged = p->op == CLAMP_SUM_RAGGED || p->op == CLAMP_SELECT_FIRST || p->op == CLAMP_SELECT_LAST;
    if (p->op == CLAMP_TO_PADDED) padded(p, "grad", CLAMP_INPUT);
    else if (p->op == CLAMP_SELECT_COMPONENT) dense_by_component(p);
    else if (ragged) p->args.grad = dense(p, "grad", CLAMP_INPUT, CLAMP_COMPONENTS * OUTER * inner);
    else if (p->op == CLAMP_RESHAPE)
        p->args.grad = nested(p, "grad", CLAMP_INPUT, p->v->storage, 0, 1, OUTER * p->v->inner, NULL);
    else p->args.grad = nested(p, "grad", CLAMP_INPUT, p->v->storage, 0, OUTER, inner, live);
}

static void bind_rows(clamp_problem *p) {
    static live_at *const lives[CLAMP_OPS] = {[CLAMP_SELECT_FIRST] = live_first,
                                              [CLAMP_SELECT_LAST] = live_last,
                                              [CLAMP_SELECT_COMPONENT] = live_component,
                                              [CLAMP_TO_PADDED] = live_padded};
    const stw_jagged_op op = p->desc.op;
    const int64_t inner = p->op == CLAMP_RESHAPE ? p->v->inner : p->desc.inner;
    bind_grad(p);
    if (op == STW_JAGGED_SOFTMAX || op == STW_JAGGED_LOG_SOFTMAX)
        p->args.y = nested(p, "y", CLAMP_INPUT, p->v->storage, 0, OUTER, inner, NULL);
    const int norm = op == STW_JAGGED_LAYER_NORM || op == STW_JAGGED_RMS_NORM;
    if (op == STW_JAGGED_SILU || op == STW_JAGGED_THRESHOLD || op == STW_JAGGED_LINEAR || norm)
        p->args.x = nested(p, "x", CLAMP_INPUT, p->v->storage, 0, OUTER, inner, NULL);
    if (ragged_norm(p)) {
        if (op == STW_JAGGED_LAYER_NORM) p->args.mean = statistics(p, "mean");
        p->args.rstd = statistics(p, "rstd");
    } else if (op == STW_JAGGED_LINEAR || norm) bind_weights(p);
    if (p->op == CLAMP_FROM_PADDED) padded(p, "dx", CLAMP_OUTPUT);
    else p->args.dx = nested(p, "dx", CLAMP_OUTPUT, p->v->storage, 0, OUTER, inner, lives[p->op]);
}

/* ---- matmul ---- */

static int ragged(const clamp_problem *p, int axis) { return (p->desc.ragged_axes >> axis & 1u) != 0; }

/* The two axes of x, other and grad. */
static const int matrix_axes[3][2] = {{STW_AXIS_M, STW_AXIS_K}, {STW_AXIS_K, STW_AXIS_N}, {STW_AXIS_M, STW_AXIS_N}};

static int by_bases(const clamp_problem *p, int matrix) {
    return ragged(p, matrix_axes[matrix][0]) && ragged(p, matrix_axes[matrix][1]);
}

int64_t clamp_base_size(const clamp_problem *p, int b) {
    const clamp_lengths *m = &p->l[0], *other = &p->l[p->op == CLAMP_MATMUL_MN ? STW_AXIS_N : STW_AXIS_K];
    return OUTER * (m->start[b + 1] - m->start[b]) * (other->start[b + 1] - other->start[b]);
}

int64_t clamp_bases_elements(const clamp_problem *p) {
    return OUTER * CLAMP_TOTAL * p->l[p->op == CLAMP_MATMUL_MN ? STW_AXIS_N : STW_AXIS_K].total;
}

static void *matrix_by_bases(clamp_problem *p, const char *name, clamp_kind kind, int matrix) {
    const clamp_lengths *rows = &p->l[matrix_axes[matrix][0]], *cols = &p->l[matrix_axes[matrix][1]];
    const int block = clamp_add(p, name, kind, clamp_bases_elements(p), clamp_element(p));
    unsigned char *state = states(p, block);
    int64_t at = 3;
    for (int b = 0; b < CLAMP_COMPONENTS; ++b) {
        const int64_t height = rows->start[b + 1] - rows->start[b], width = cols->start[b + 1] - cols->start[b];
        p->bases[b] = at;
        for (int64_t n = 0; n < OUTER * height * width && b != p->skipped; ++n)
            state[at + n] = n / width % height < rows->used[b] && n % width < cols->used[b] ? CLAMP_VALUE : CLAMP_ZERO;
        at += clamp_base_size(p, b);
    }
    assert_true(at <= clamp_bases_elements(p));
    return clamp_at(p, block);
}

static void *matrix(clamp_problem *p, const char *name, clamp_kind kind, int which) {
    const int rows = matrix_axes[which][0], cols = matrix_axes[which][1];
    const stw_jagged_axis *axis = p->desc.axis;
    if (by_bases(p, which)) return matrix_by_bases(p, name, kind, which);
    if (ragged(p, rows)) return nested(p, name, kind, p->v->storage, rows, OUTER, axis[cols].size, NULL);
    if (ragged(p, cols)) return nested(p, name, kind, p->v->storage, cols, OUTER * axis[rows].size, 1, NULL);
    return dense(p, name, kind, CLAMP_COMPONENTS * OUTER * axis[rows].size * axis[cols].size);
}

static void bind_matmul(clamp_problem *p) {
    stw_jagged_storage *storage[] = {&p->desc.storage, &p->desc.other_storage, &p->desc.grad_storage};
    for (int n = 0; n < 3; ++n) {
        const int rows = ragged(p, matrix_axes[n][0]), cols = ragged(p, matrix_axes[n][1]);
        if (rows != cols) *storage[n] = p->v->storage;
    }
    p->args.x = matrix(p, "x", CLAMP_INPUT, 0);
    p->args.other = matrix(p, "other", CLAMP_INPUT, 1);
    p->args.grad = matrix(p, "grad", CLAMP_INPUT, 2);
    p->args.dx = matrix(p, "dx", CLAMP_OUTPUT, 0);
    p->args.dother = matrix(p, "dother", CLAMP_OUTPUT, 1);
    if (p->op < CLAMP_MATMUL_MN) return;
    p->base_block = clamp_add(p, "bases", CLAMP_INPUT, CLAMP_COMPONENTS, 8);
    if (p->op == CLAMP_MATMUL_MN) {
        p->desc.flags = STW_JAGGED_GRAD_BASES;
        p->desc.grad_elements = clamp_bases_elements(p);
        p->args.grad_bases = clamp_at(p, p->base_block);
    } else {
        p->desc.flags = STW_JAGGED_X_BASES;
        p->desc.x_elements = clamp_bases_elements(p);
        p->args.x_bases = clamp_at(p, p->base_block);
    }
}

static void open_matmul(clamp_problem *p, const clamp_lengths *clean) {
    static const uint32_t axes[] = {1, 2, 4, 5, 3};
    const int64_t constant[] = {p->v->inner, p->v->inner, FEATURES};
    p->desc.op = STW_JAGGED_MATMUL;
    p->desc.outer = OUTER;
    p->desc.ragged_axes = axes[p->op - CLAMP_MATMUL_M];
    p->axis = p->op <= CLAMP_MATMUL_N ? (int)p->op - (int)CLAMP_MATMUL_M : 0;
    for (int n = 0; n < 3; ++n) {
        p->desc.axis[n].size = constant[n];
        if (!ragged(p, n)) continue;
        p->l[n] = n == p->axis ? *clean : clamp_other;
        bind_axis(p, n);
    }
    bind_matmul(p);
}

void clamp_open(clamp_problem *p, stw_context *context, clamp_op op, const clamp_variant *v, const clamp_lengths *clean,
                int skipped) {
    *p = (clamp_problem){
        .context = context, .op = op, .v = v, .skipped = skipped, .base_block = -1, .capacity = CAPACITY};
    if (stw_buffer_alloc(context, p->capacity, (void **)&p->buffer)) fail_msg("%s", stw_last_error());
    p->desc = STW_INIT(stw_jagged_desc);
    p->args = STW_INIT(stw_jagged_args);
    p->desc.dtype = v->dtype;
    p->desc.index_dtype = v->index_dtype;
    p->desc.components = CLAMP_COMPONENTS;
    p->status_block = clamp_add(p, "status_out", CLAMP_SCRATCH, 1, 4);
    p->args.status_out = clamp_at(p, p->status_block);
    if (op >= CLAMP_MATMUL_M) {
        open_matmul(p, clean);
    } else {
        p->l[0] = *clean;
        rows_desc(p);
        bind_axis(p, 0);
        bind_rows(p);
    }
    clamp_place(p);
}

void clamp_close(clamp_problem *p) {
    for (int n = 0; n < p->blocks; ++n) free(p->block[n].state);
    free(p->before);
    free(p->after);
    stw_buffer_free(p->context, p->buffer);
}
