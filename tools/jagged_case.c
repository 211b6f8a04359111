/* SPDX-License-Identifier: MIT
 *
 * Building a jagged case (jagged_case.h), running it through the public API and judging everything that came
 * back: every gradient by the accuracy rule (bit for bit where nothing is computed), every byte that the call
 * may not write, the guards of the workspace, status_out, further runs and another number of threads. */
#include "jagged_case.h"

#include "common/dtype.h"
#include "tool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD     ((size_t)512)
#define ALIGNMENT ((size_t)256)

static const char *const jagged_grad_names[STW_GRAD_COUNT] = {"dx", "dother", "dweight", "dbias", "-"};
static const char *const tensor_names[JCASE_COUNT] = {
    "grad",    "x",      "y",       "other", "weight",     "mean",    "rstd",
    "dx",      "dother", "dweight", "dbias", "status_out", "offsets", "offsets",
    "offsets", "used",   "used",    "used",  "bases",      "bases",   "bases"};

/* ---- building ---- */

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

stw_status jagged_case_build(const stw_jagged_problem *problem, jagged_case *c) {
    memset(c, 0, sizeof *c);
    c->problem = *problem;
    stw_status status = build_lengths(c);
    if (!status) status = build_tensors(c);
    if (!status) {
        stw_jagged_args args = jagged_case_args(c, c->host);
        status = stw_jref_expect(&c->problem.desc, &args, &c->expectation);
        c->rule = malloc(c->bytes);
        if (!status && !c->rule) status = STW_E_NO_MEMORY;
        if (!status)
            make_rules(c);
        else
            stw_fail(status, "case: no memory");
    }
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

/* ---- judging ---- */

static const char *owner_of(const jagged_case *c, size_t byte) {
    int best = JCASE_STATUS;
    for (int id = 0; id < JCASE_COUNT; ++id)
        if (c->size[id] && c->offset[id] <= byte && c->offset[id] >= c->offset[best]) best = id;
    return tensor_names[best];
}

static void check_untouched(const jagged_case *c, const unsigned char *after, stw_case_result *result) {
    for (size_t byte = 0; byte < c->bytes; ++byte)
        if (after[byte] != c->host[byte] && c->rule[byte] == STW_CASE_KEEP) {
            stw_case_fail(result, "byte %zu of the arena (in or behind %s) was written", byte,
                          owner_of(c, byte));
            return;
        }
}

/* Operations without arithmetic, and types that the accuracy rule does not know: every element exactly. */
static void check_exact(const jagged_case *c, const unsigned char *after, int which,
                        stw_case_result *result) {
    const stw_jref_result *r = &c->expectation.reference;
    stw_dtype dtype = stw_jref_dtype(&c->problem.desc, which);
    int adds = (int)(c->problem.desc.accumulate >> which & 1u);
    result->max_ratio[which] = 0;
    for (int64_t n = 0; n < r->elements[which]; ++n) {
        double x = stw_jref_load(after + c->offset[JCASE_DX + which], n, dtype), want = r->values[which][n];
        if (r->kinds[which][n] == STW_REF_ROW_UNTOUCHED) continue;
        if (adds)
            want = (double)(float)(want + stw_jref_load(c->host + c->offset[JCASE_DX + which], n, dtype));
        if (x == want || (isnan(x) && isnan(want))) continue;
        stw_case_fail(result, "%s: element %lld is %.9g, not %.9g", jagged_grad_names[which], (long long)n, x,
                      want);
        return;
    }
}

static int64_t terms_of(const stw_jagged_desc *d) {
    int64_t terms = 4;
    for (int i = 0; i < 3; ++i)
        terms += d->axis[i].size > d->axis[i].total ? d->axis[i].size : d->axis[i].total;
    return terms + d->out_features + d->inner;
}

static void judge(const jagged_case *c, const unsigned char *after, int which, stw_case_result *result) {
    const stw_jref_expectation *e = &c->expectation;
    stw_accuracy a;
    stw_flat_tensor tensor = {.data = after + c->offset[JCASE_DX + which],
                              .before = c->host + c->offset[JCASE_DX + which],
                              .dtype = stw_jref_dtype(&c->problem.desc, which),
                              .adds = (int)(c->problem.desc.accumulate >> which & 1u),
                              .elements = e->reference.elements[which],
                              .values = e->reference.values[which],
                              .kinds = e->reference.kinds[which],
                              .e_max = e->e_max[which],
                              .e_rms = e->e_rms[which],
                              .max_ref = e->max_ref[which]};
    if (c->problem.desc.dtype == STW_F32) tensor.floor_error = 0x1p-126 * (double)terms_of(&c->problem.desc);
    stw_judge_flat(&tensor, &a);
    stw_case_note_accuracy(result, which, jagged_grad_names[which], &a);
}

static void check_outputs(const jagged_case *c, const unsigned char *after, stw_case_result *result) {
    int32_t seen;
    check_untouched(c, after, result);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        if (!c->size[JCASE_DX + i]) continue;
        if (c->expectation.exact)
            check_exact(c, after, i, result);
        else
            judge(c, after, i, result);
    }
    memcpy(&seen, after + c->offset[JCASE_STATUS], sizeof seen);
    if (seen) stw_case_fail(result, "status_out is 0x%x for values that are all in range", (unsigned)seen);
}

/* ---- running ---- */

static stw_status run_once(const jagged_case *c, const stw_plan *plan, stw_case_device *device, int poison,
                           unsigned char *after, stw_case_result *result) {
    int guards = 0;
    stw_jagged_args args = jagged_case_args(c, device->arena);
    stw_status status = stw_case_device_load(device, c->host, poison);
    if (!status)
        status = stw_jagged_bwd(plan, &args, device->workspace, device->workspace_bytes, device->stream);
    if (!status) status = stw_case_device_store(device, after, poison, &guards);
    if (status)
        stw_case_fail(result, "stw_jagged_bwd: %s: %s", stw_status_name(status), stw_last_error());
    else if (!guards)
        stw_case_fail(result, "memory around the workspace of %zu bytes was written",
                      device->workspace_bytes);
    return status;
}

static void check_same(const jagged_case *c, const unsigned char *first, const unsigned char *again,
                       const char *what, stw_case_result *result) {
    for (size_t byte = 0; byte < c->bytes; ++byte)
        if (first[byte] != again[byte]) {
            stw_case_fail(result, "%s differs from the first in byte %zu (%s)", what, byte,
                          owner_of(c, byte));
            return;
        }
}

/* Runs the case on a context as often as asked; `first`: what an earlier context's run left, or null. The
 * first run's arena is put into `after`. 0: nothing ran. */
static int run_on(const jagged_case *c, stw_context *context, int runs, const unsigned char *first,
                  unsigned char *after, stw_case_result *result) {
    static const int poisons[] = {0xFF, 0x7F, 0x00};
    const char *what = first ? "another number of threads" : "a repeat";
    stw_plan *plan = NULL;
    stw_case_device device;
    stw_status status = stw_jagged_bwd_plan(context, &c->problem.desc, &plan);
    if (status) {
        stw_case_fail(result, "stw_jagged_bwd_plan: %s: %s", stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) result->outcome = STW_CASE_SKIP;
        return 0;
    }
    if (!first) stw_case_note_variant(plan, result);
    unsigned char *again = malloc(c->bytes);
    status = stw_case_device_open(context, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status) stw_case_fail_buffers(result, status);
    for (int n = 0; again && n < runs && !status; ++n) {
        status = run_once(c, plan, &device, poisons[n % 3], n ? again : after, result);
        if (!status && (n || first)) check_same(c, first ? first : after, n ? again : after, what, result);
        if (n + 1 == runs || status) stw_case_device_close(&device);
    }
    stw_plan_destroy(plan);
    free(again);
    return !status;
}

static void check(const jagged_case *c, stw_context *context, const stw_case_options *options,
                  stw_case_result *result) {
    unsigned char *after = malloc(c->bytes), *other = malloc(c->bytes);
    if (!after || !other)
        stw_case_fail(result, "no memory");
    else if (run_on(c, context, 1 + options->repeats, NULL, after, result)) {
        check_outputs(c, after, result);
        if (options->other) run_on(c, options->other, 1, after, other, result);
    }
    free(after);
    free(other);
}

const char *const *jagged_names_of(const char *line) {
    int jagged = stw_problem_is_jagged(line) && strncmp(line, "jagged_attention", 16) != 0;
    return jagged ? jagged_grad_names : stw_grad_names;
}

stw_status jagged_any_parse(const char *line) {
    stw_problem problem;
    stw_jagged_problem jagged;
    return stw_problem_is_jagged(line) ? stw_problem_jagged_parse(line, &jagged)
                                       : stw_problem_parse(line, &problem);
}

/* What plan refuses as invalid is no problem to make data for. */
static int is_planned(const stw_jagged_problem *problem, stw_context *context, stw_case_result *result) {
    stw_plan *plan = NULL;
    stw_status status = stw_jagged_bwd_plan(context, &problem->desc, &plan);
    stw_plan_destroy(plan);
    if (status != STW_E_INVALID) return 1;
    result->invalid = 1;
    return stw_case_fail(result, "%s", stw_last_error());
}

static void check_again(void *user, int64_t seed, stw_context *context, stw_case_result *result) {
    stw_jagged_problem other = *(const stw_jagged_problem *)user;
    stw_case_options once = {0};
    jagged_case c;
    other.seed = seed;
    if (jagged_case_build(&other, &c)) {
        stw_case_fail(result, "%s", stw_tool_last_error());
        return;
    }
    check(&c, context, &once, result);
    jagged_case_free(&c);
}

void jagged_case_check_line(const char *line, int64_t seed, stw_context *context,
                            const stw_case_options *options, stw_case_result *result) {
    stw_jagged_problem problem;
    jagged_case c;
    stw_case_result_clear(result);
    if (stw_problem_jagged_parse(line, &problem)) {
        stw_case_fail(result, "%s", stw_tool_last_error());
        result->invalid = 1;
        return;
    }
    if (!problem.seed) problem.seed = seed;
    if (problem.desc.op == STW_JAGGED_ATTENTION) {
        jagged_attention_check(&problem, context, options, result);
        return;
    }
    if (!is_planned(&problem, context, result)) return;
    stw_status status = jagged_case_build(&problem, &c);
    if (status) {
        stw_case_fail(result, "%s", stw_tool_last_error());
        result->invalid = status == STW_E_INVALID;
        return;
    }
    check(&c, context, options, result);
    jagged_case_free(&c);
    if (result->near)
        stw_case_enlarge(check_again, &problem, problem.seed, context, jagged_grad_names, result);
}
