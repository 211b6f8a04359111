/* SPDX-License-Identifier: MIT
 *
 * Building a jagged case (jagged_case.h): where its tensors lie in the arena, what the call may write, and
 * the arguments of the call. Lengths and data are jagged_data.c's. */
#include "jagged.h"

#include "common/dtype.h"

#include <stdlib.h>
#include <string.h>

#define GUARD     ((size_t)512)
#define ALIGNMENT ((size_t)256)

static void place(jagged_case *c, int tensor, int64_t elements, size_t element) {
    if (elements <= 0) return;
    c->bytes = (c->bytes + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + (size_t)c->problem.skew * element;
    c->offset[tensor] = c->bytes;
    c->size[tensor] = (size_t)elements * element;
    c->bytes += c->size[tensor];
}

static void place_lengths(jagged_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    size_t element = d->index_dtype == STW_I64 ? 8 : 4;
    uint32_t ragged = d->op == STW_JAGGED_MATMUL ? d->ragged_axes : 1u;
    const uint32_t bases[3] = {STW_JAGGED_X_BASES, STW_JAGGED_OTHER_BASES, STW_JAGGED_GRAD_BASES};
    for (int i = 0; i < 3; ++i) {
        if (!(ragged >> i & 1u)) continue;
        place(c, JCASE_OFFSETS + i, d->components + 1, element);
        if (d->flags & STW_JAGGED_HAS_USED) place(c, JCASE_USED + i, d->components, element);
    }
    for (int i = 0; i < 3; ++i)
        if (d->flags & bases[i]) place(c, JCASE_BASES + i, d->components, 8);
    place(c, JCASE_STATUS, 1, 4);
}

static int make_arena(jagged_case *c) {
    unsigned char *host = realloc(c->host, c->bytes + GUARD);
    if (!host) return 0;
    c->host = host;
    return 1;
}

/* Lengths first: how large the other tensors are may depend on them (SELECT of a component). */
static stw_status build_lengths(jagged_case *c) {
    place_lengths(c);
    if (!make_arena(c)) return stw_fail(STW_E_NO_MEMORY, "case: no memory");
    memset(c->host, 0xFF, c->bytes);
    return jagged_case_fill_lengths(c);
}

static stw_status build_tensors(jagged_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    stw_jagged_args args = jagged_case_args(c, c->host);
    uint32_t outputs = stw_jref_outputs(d);
    stw_jref_result shape;
    size_t before = c->bytes;
    for (int i = 0; i < STW_JREF_INPUTS; ++i) {
        stw_dtype dtype = i >= STW_JREF_MEAN                        ? STW_F32
                          : i == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype
                                                                    : d->dtype;
        int64_t elements = stw_jref_elements(d, &args, (stw_jref_input)i);
        if (!elements && i == STW_JREF_GRAD && d->dim == STW_DIM_COMPONENT) elements = 1; /* never null */
        place(c, i, elements, stw_dtype_size(dtype));
    }
    stw_jref_output_elements(d, shape.elements);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i)
        if (outputs >> i & 1u)
            place(c, JCASE_DX + i, shape.elements[i], stw_dtype_size(stw_jref_dtype(d, i)));
    if (!make_arena(c)) return stw_fail(STW_E_NO_MEMORY, "case: no memory for %zu bytes", c->bytes);
    c->bytes += GUARD;
    memset(c->host + before, 0xFF, c->bytes - before);
    stw_status status = jagged_case_fill_data(c);
    for (int i = 0; i < STW_JREF_OUTPUTS && !status; ++i) /* numbers to add to */
        for (size_t n = 0; d->accumulate >> i & 1u && n < c->size[JCASE_DX + i] / 4; ++n)
            ((float *)(void *)(c->host + c->offset[JCASE_DX + i]))[n] =
                (float)stw_case_normal((uint64_t)c->problem.seed, 70 + (uint64_t)i, n);
    return status;
}

static void make_rules(jagged_case *c) {
    memset(c->rule, STW_CASE_KEEP, c->bytes);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        const unsigned char *kinds = c->expectation.reference.kinds[i];
        size_t element = stw_dtype_size(stw_jref_dtype(&c->problem.desc, i));
        for (size_t n = 0; kinds && n < c->size[JCASE_DX + i] / element; ++n)
            if (kinds[n] != STW_REF_ROW_UNTOUCHED)
                memset(c->rule + c->offset[JCASE_DX + i] + n * element, STW_CASE_WRITE, element);
    }
    memset(c->rule + c->offset[JCASE_STATUS], STW_CASE_WRITE, c->size[JCASE_STATUS]);
}

stw_status jagged_case_build_inputs(const stw_jagged_problem *problem, jagged_case *c) {
    memset(c, 0, sizeof *c);
    c->problem = *problem;
    stw_status status = build_lengths(c);
    if (!status) status = build_tensors(c);
    if (status) jagged_case_free(c);
    return status;
}

stw_status jagged_case_expect(jagged_case *c) {
    stw_jagged_args args = jagged_case_args(c, c->host);
    stw_status status = stw_jref_expect(&c->problem.desc, &args, &c->expectation);
    c->rule = malloc(c->bytes);
    if (!status && !c->rule) status = STW_E_NO_MEMORY;
    if (status) return stw_fail(status, "case: no memory");
    make_rules(c);
    return STW_OK;
}

stw_status jagged_case_build(const stw_jagged_problem *problem, jagged_case *c) {
    stw_status status = jagged_case_build_inputs(problem, c);
    if (status) return status;
    status = jagged_case_expect(c);
    if (status) jagged_case_free(c);
    return status;
}

void jagged_case_free(jagged_case *c) {
    free(c->host);
    free(c->rule);
    stw_jref_expectation_free(&c->expectation);
    memset(c, 0, sizeof *c);
}

static void *at(const jagged_case *c, const void *base, int tensor) {
    return c->size[tensor] ? (unsigned char *)(uintptr_t)base + c->offset[tensor] : NULL;
}

stw_jagged_args jagged_case_args(const jagged_case *c, const void *base) {
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    a.grad = at(c, base, STW_JREF_GRAD);
    a.x = at(c, base, STW_JREF_X);
    a.y = at(c, base, STW_JREF_Y);
    a.other = at(c, base, STW_JREF_OTHER);
    a.weight = at(c, base, STW_JREF_WEIGHT);
    a.mean = at(c, base, STW_JREF_MEAN);
    a.rstd = at(c, base, STW_JREF_RSTD);
    a.dx = at(c, base, JCASE_DX);
    a.dother = at(c, base, JCASE_DOTHER);
    a.dweight = at(c, base, JCASE_DWEIGHT);
    a.dbias = at(c, base, JCASE_DBIAS);
    a.status_out = at(c, base, JCASE_STATUS);
    a.x_bases = at(c, base, JCASE_BASES);
    a.other_bases = at(c, base, JCASE_BASES + 1);
    a.grad_bases = at(c, base, JCASE_BASES + 2);
    for (int i = 0; i < 3; ++i) {
        a.axis[i].offsets = at(c, base, JCASE_OFFSETS + i);
        a.axis[i].used = at(c, base, JCASE_USED + i);
    }
    return a;
}
