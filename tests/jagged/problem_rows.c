/* SPDX-License-Identifier: MIT
 *
 * Golden problems of one nested tensor along its dimensions: gelu, silu, threshold, softmax, log_softmax, sum,
 * select, reshape and the padded ops. */
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* outer and inner of a component's shape; the place of the ragged extent. */
static int fold(const int64_t *shape, int rank, int64_t *outer, int64_t *inner) {
    int ragged = -1;
    *outer = *inner = 1;
    for (int n = 0; n < rank; ++n) {
        if (shape[n] == -1) ragged = n;
        else if (ragged < 0) *outer *= shape[n];
        else *inner *= shape[n];
    }
    assert_true(ragged >= 0);
    return ragged;
}

/* dim, dim_size and dim_after of a dimension counted in the component. */
static void name_dim(stw_jagged_desc *d, const int64_t *shape, int rank, int ragged, int dim) {
    int64_t after = 1;
    assert_true(dim >= 0 && dim < rank);
    d->dim = dim == ragged ? STW_DIM_RAGGED : dim < ragged ? STW_DIM_OUTER : STW_DIM_INNER;
    if (dim == ragged) return;
    for (int n = dim + 1; n < (dim < ragged ? ragged : rank); ++n) after *= shape[n];
    const int64_t whole = dim < ragged ? d->outer : d->inner;
    if (shape[dim] * after == whole && after == 1) return; /* what 0 means */
    d->dim_size = shape[dim];
    d->dim_after = after;
}

static void name_axis(problem *p) {
    p->desc.components = p->l[0].count;
    p->desc.axis[0].size = p->l[0].longest;
    p->desc.axis[0].total = p->l[0].total;
    problem_offsets(p, 0);
}

static int64_t *dense_index(int64_t count) {
    int64_t *index = malloc(sizeof *index * (size_t)(count + 1));
    assert_non_null(index);
    for (int64_t n = 0; n < count; ++n) index[n] = n;
    return index;
}

/* The gradient of sum and select: without the dimension; dense where that is the ragged one. */
static void bind_reduced_grad(problem *p, const nested *x) {
    const stw_jagged_desc *d = &p->desc;
    const int64_t size = d->dim_size ? d->dim_size : d->dim == STW_DIM_OUTER ? x->outer : x->inner;
    nested without = *x;
    if (d->dim == STW_DIM_OUTER) without.outer /= size;
    if (d->dim == STW_DIM_INNER) without.inner /= size;
    const double elements = (double)golden_tensor(p->c, "grad", 1)->elements;
    p->args.grad = d->dim == STW_DIM_RAGGED || d->dim == STW_DIM_COMPONENT
                       ? problem_input(p, "grad", "grad", NULL, elements)
                       : problem_nested_input(p, "grad", &without);
}

static int reduction(problem *p, const nested *x, const int64_t *shape, int rank, int ragged) {
    stw_jagged_desc *d = &p->desc;
    const char *dim = golden_text(p->c, "dim");
    assert_non_null(dim);
    if (strcmp(dim, "component")) name_dim(d, shape, rank, ragged, (int)golden_number(p->c, "dim", -1));
    else d->dim = STW_DIM_COMPONENT;
    d->index = golden_number(p->c, "index", 0);
    if (strstr(p->c->op, "softmax")) {
        d->op = !strcmp(p->c->op, "softmax") ? STW_JAGGED_SOFTMAX : STW_JAGGED_LOG_SOFTMAX;
        p->args.y = problem_nested_input(p, "y", x);
        p->args.grad = problem_nested_input(p, "grad", x);
    } else {
        d->op = !strcmp(p->c->op, "sum") ? STW_JAGGED_SUM : STW_JAGGED_SELECT;
        bind_reduced_grad(p, x);
    }
    p->args.dx = problem_nested_result(p, "dx", x);
    return 1;
}

static int pointwise(problem *p, const nested *x) {
    static const char *const names[] = {"gelu", "gelu_tanh", "silu", "threshold"};
    for (int n = 0; n < 4; ++n)
        if (!strcmp(p->c->op, names[n])) p->desc.op = (stw_jagged_op)(STW_JAGGED_GELU + n);
    if (p->desc.op == STW_JAGGED_THRESHOLD) p->desc.threshold = strtod(golden_text(p->c, "threshold"), NULL);
    p->args.x = problem_nested_input(p, "x", x);
    p->args.grad = problem_nested_input(p, "grad", x);
    p->args.dx = problem_nested_result(p, "dx", x);
    return 1;
}

static int reshape(problem *p, const nested *x, const int64_t *shape, int rank) {
    stw_jagged_desc *d = &p->desc;
    nested grad = {.l = &p->l[0]};
    d->op = STW_JAGGED_RESHAPE;
    d->outer = d->inner = 0;
    d->shape_rank = rank;
    memcpy(d->shape, shape, sizeof d->shape);
    d->grad_rank = golden_list(p->c, "grad_shape", d->grad_shape);
    fold(d->grad_shape, d->grad_rank, &grad.outer, &grad.inner);
    /* the two sides in unlike storages where the variant is of the jagged one */
    grad.jagged = p->v->jagged && d->grad_rank % 2 == 0;
    d->grad_storage = grad.jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    p->args.grad = problem_nested_input(p, "grad", &grad);
    p->args.dx = problem_nested_result(p, "dx", x);
    return 1;
}

/* Elements of a dense [components, outer, padded, inner] that a component has: in the golden order of the
 * nested side. The others of an input are never read: NaN. */
static void *padded_input(problem *p, const nested *x, int64_t padded) {
    const lengths *l = x->l;
    const stw_st_tensor *t = golden_tensor(p->c, "grad", 1);
    const size_t size = stw_st_type_bits(t->type) / 8;
    assert_int_equal(t->elements, l->count * x->outer * padded * x->inner);
    char *data = arena_add(&p->memory, "grad", (double)t->elements, size, ARENA_INPUT);
    for (int64_t n = 0; n < (int64_t)t->elements; ++n) {
        const int64_t r = n / x->inner % padded, b = n / x->inner / padded / x->outer;
        if (r < l->used[b]) memcpy(data + (size_t)n * size, (const char *)t->data + (size_t)n * size, size);
    }
    return data;
}

static int padded(problem *p, const nested *x) {
    stw_jagged_desc *d = &p->desc;
    d->padded = golden_number(p->c, "padded", -1);
    if (!strcmp(p->c->op, "to_padded")) {
        d->op = STW_JAGGED_TO_PADDED;
        p->args.grad = padded_input(p, x, d->padded);
        p->args.dx = problem_nested_result(p, "dx", x);
        return 1;
    }
    d->op = STW_JAGGED_FROM_PADDED;
    p->args.grad = problem_nested_input(p, "grad", x);
    /* positions from `padded` on have no place and are not read */
    const size_t size = stw_st_type_bits(golden_tensor(p->c, "grad", 1)->type) / 8;
    for (int b = 0; b < x->l->count; ++b)
        for (int64_t o = 0; o < x->outer; ++o)
            for (int64_t r = d->padded; r < x->l->used[b]; ++r)
                memset((char *)(uintptr_t)p->args.grad + (size_t)nested_at(x, b, o, r, 0) * size, ARENA_POISON,
                       size * (size_t)x->inner);
    const int64_t count = (int64_t)golden_tensor(p->c, "dx_ref", 1)->elements;
    p->args.dx = problem_result(p, "dx", p->c->dtype, (double)count, dense_index(count), NULL);
    return 1;
}

int problem_rows(problem *p) {
    int64_t used[COMPONENTS_MAX], shape[RANK_MAX] = {0};
    nested x = {.l = &p->l[0], .jagged = p->v->jagged};
    if (p->v->full) return 0;
    const int rank = golden_list(p->c, "shape", shape);
    const int ragged = fold(shape, rank, &x.outer, &x.inner);
    lengths_place(&p->l[0], used, golden_integers(p->c, "lengths", used), p->v->gaps, p->v->spaced);
    p->desc.outer = x.outer;
    p->desc.inner = x.inner;
    name_axis(p);
    if (!strcmp(p->c->op, "reshape")) return reshape(p, &x, shape, rank);
    if (strstr(p->c->op, "padded")) return padded(p, &x);
    if (golden_text(p->c, "dim")) return reduction(p, &x, shape, rank, ragged);
    return pointwise(p, &x);
}
