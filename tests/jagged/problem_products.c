/* SPDX-License-Identifier: MIT
 *
 * Golden problems of layer_norm, rms_norm and linear: a nested tensor and weights that all components share. */
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Over the ragged dimension and inner: one line for each component and index of outer, dX alone. */
static int ragged_norm(problem *p, const nested *x) {
    stw_jagged_desc *d = &p->desc;
    const int rms = !strcmp(p->c->op, "rms_norm");
    d->op = rms ? STW_JAGGED_RMS_NORM : STW_JAGGED_LAYER_NORM;
    d->dim = STW_DIM_RAGGED;
    p->args.x = problem_nested_input(p, "x", x);
    p->args.grad = problem_nested_input(p, "grad", x);
    const double lines = (double)(d->components * x->outer);
    if (!rms) p->args.mean = problem_input(p, "mean", "mean", NULL, lines);
    p->args.rstd = problem_input(p, "rstd", "rstd", NULL, lines);
    p->args.dx = problem_nested_result(p, "dx", x);
    return 1;
}

static int norm(problem *p, const nested *x) {
    stw_jagged_desc *d = &p->desc;
    int64_t normalized[RANK_MAX], M = 1;
    const int rank = golden_list(p->c, "normalized", normalized);
    if (normalized[0] == -1) return ragged_norm(p, x);
    for (int n = 0; n < rank; ++n) M *= normalized[n];
    const nested lines = {.l = x->l, .outer = x->outer, .inner = x->inner / M, .jagged = x->jagged};
    const stw_st_tensor *gamma = golden_tensor(p->c, "weight", 0);
    const int rms = !strcmp(p->c->op, "rms_norm");
    d->op = rms ? STW_JAGGED_RMS_NORM : STW_JAGGED_LAYER_NORM;
    d->dim = p->v->jagged ? STW_DIM_INNER : STW_DIM_NONE; /* the same */
    if (lines.inner != 1) d->dim_size = M;
    p->args.x = problem_nested_input(p, "x", x);
    p->args.grad = problem_nested_input(p, "grad", x);
    if (!rms) p->args.mean = problem_nested_input(p, "mean", &lines);
    p->args.rstd = problem_nested_input(p, "rstd", &lines);
    p->args.dx = problem_nested_result(p, "dx", x);
    if (!gamma) return 1;
    d->flags |= STW_JAGGED_HAS_GAMMA;
    p->args.weight = problem_input(p, "weight", "weight", NULL, (double)gamma->elements);
    const stw_dtype type = gamma->type == STW_ST_F32 ? STW_F32 : p->c->dtype;
    if (type != p->c->dtype) d->weight_dtype = type;
    p->args.dweight = problem_dense_result(p, "dweight", type);
    if (!rms) p->args.dbias = problem_dense_result(p, "dbias", type);
    return 1;
}

static int linear(problem *p, const nested *x) {
    stw_jagged_desc *d = &p->desc;
    d->op = STW_JAGGED_LINEAR;
    d->out_features = golden_number(p->c, "out_features", 0);
    /* inner is K alone: constants between the ragged dimension and K make rows of their own, which only a
     * multiple of the offsets describes */
    const nested grad = {.l = x->l, .outer = x->outer, .inner = d->out_features, .jagged = x->jagged};
    p->args.x = problem_nested_input(p, "x", x);
    p->args.grad = problem_nested_input(p, "grad", &grad);
    const stw_st_tensor *weight = golden_tensor(p->c, "weight", 1);
    p->args.weight = problem_input(p, "weight", "weight", NULL, (double)weight->elements);
    p->args.dx = problem_nested_result(p, "dx", x);
    p->args.dweight = problem_dense_result(p, "dweight", p->c->dtype);
    p->args.dbias = problem_dense_result(p, "dbias", p->c->dtype);
    return 1;
}

int problem_products(problem *p) {
    int64_t used[COMPONENTS_MAX], shape[RANK_MAX] = {0};
    nested x = {.l = &p->l[0], .outer = 1, .inner = 1, .jagged = p->v->jagged};
    const int rank = golden_list(p->c, "shape", shape), count = golden_integers(p->c, "lengths", used);
    const int is_linear = !strcmp(p->c->op, "linear");
    int ragged = 0;
    while (shape[ragged] != -1) x.outer *= shape[ragged++];
    for (int n = ragged + 1; n < rank; ++n) {
        if (is_linear && n + 1 < rank) /* each position holds that many rows */
            for (int b = 0; b < count; ++b) used[b] *= shape[n];
        else x.inner *= shape[n];
    }
    lengths_place(&p->l[0], used, count, p->v->gaps, p->v->spaced);
    p->desc.components = count;
    p->desc.axis[0].size = p->l[0].longest;
    p->desc.axis[0].total = p->l[0].total;
    p->desc.outer = x.outer;
    p->desc.inner = x.inner;
    problem_offsets(p, 0);
    return is_linear ? linear(p, &x) : norm(p, &x);
}
