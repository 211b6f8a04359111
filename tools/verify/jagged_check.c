/* SPDX-License-Identifier: MIT
 *
 * Running a jagged case (jagged.h) through the public API and judging everything that came back: every
 * gradient by the accuracy rule (bit for bit where nothing is computed), every byte that the call may not
 * write, the guards of the workspace, status_out, further runs and another number of threads. */
#include "jagged.h"

#include "common/dtype.h"
#include "tools/base/tool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention on nested q, k, v: the case of its packed problem (verify.h), run through stw_jagged_bwd with the
 * offsets in int32 or int64, and judged as every attention case is. */

/* Offsets and used lengths as the call takes them, in a buffer of the context; int32 ones are the arena's. */
typedef struct lengths {
    void *buffer;
    const void *offsets[2], *used[2];
} lengths;

static stw_status upload(stw_context *context, stw_stream stream, const stw_verify_case *c, lengths *l) {
    static const stw_verify_tensor tensors[4] = {STW_VERIFY_CU_Q, STW_VERIFY_CU_KV, STW_VERIFY_USED_Q,
                                                 STW_VERIFY_USED_KV};
    size_t each = (size_t)c->problem.desc.batch + 1;
    int64_t *wide = calloc(4 * each, 8);
    if (!wide) return stw_fail(STW_E_NO_MEMORY, "case: no memory");
    stw_status status = stw_buffer_alloc(context, 4 * each * 8, &l->buffer);
    for (size_t t = 0; t < 4 && !status; ++t) {
        const int32_t *from = (const int32_t *)(const void *)(c->host + c->offset[tensors[t]]);
        for (size_t b = 0; c->present[tensors[t]] && b < each - (t >= 2); ++b) wide[t * each + b] = from[b];
        const void *at = (int64_t *)l->buffer + t * each;
        if (c->present[tensors[t]]) (t < 2 ? l->offsets : l->used)[t % 2] = at;
    }
    if (!status) status = stw_copy(context, l->buffer, wide, 4 * each * 8, stream);
    if (!status) status = stw_stream_synchronize(context, stream);
    free(wide);
    return status;
}

stw_status jagged_attention_args(const stw_verify_case *c, stw_dtype index_dtype, const stw_verify_device *device,
                                 stw_attn_args *attn, stw_jagged_args *args_out, void **buffer_out) {
    lengths l = {NULL, {attn->cu_seqlens_q, attn->cu_seqlens_kv}, {attn->used_q, attn->used_kv}};
    stw_status status = index_dtype == STW_I64 ? upload(device->context, device->stream, c, &l) : STW_OK;
    attn->cu_seqlens_q = attn->cu_seqlens_kv = attn->used_q = attn->used_kv = NULL;
    *args_out = STW_INIT(stw_jagged_args);
    args_out->attn = attn;
    for (int i = 0; i < 2; ++i) {
        args_out->axis[i].offsets = l.offsets[i];
        args_out->axis[i].used = l.used[i];
    }
    *buffer_out = l.buffer;
    return status;
}

static stw_status run_attention(const stw_verify_case *c, const stw_plan *plan, stw_dtype index_dtype,
                                stw_verify_device *device, unsigned char *after, int *guards) {
    stw_attn_args attn = stw_verify_args(c, device->arena);
    stw_jagged_args args;
    void *buffer = NULL;
    stw_status status = stw_verify_device_load(device, c->host, 0xFF);
    if (!status) status = jagged_attention_args(c, index_dtype, device, &attn, &args, &buffer);
    if (!status) status = stw_jagged_bwd(plan, &args, device->workspace, device->workspace_bytes, device->stream);
    if (!status) status = stw_verify_device_store(device, after, 0xFF, guards);
    if (buffer) stw_buffer_free(device->context, buffer);
    return status;
}

static void check_attention(const stw_verify_case *c, const stw_jagged_problem *problem, stw_context *context,
                            stw_verify_result *result) {
    stw_jagged_desc desc = problem->desc;
    stw_plan *plan = NULL;
    stw_verify_device device;
    int guards = 0;
    desc.attn = &c->problem.desc;
    stw_status status = stw_jagged_bwd_plan(context, &desc, &plan);
    if (status) {
        stw_verify_fail(result, "stw_jagged_bwd_plan: %s: %s", stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) result->outcome = STW_VERIFY_SKIP;
        return;
    }
    stw_verify_note_variant(plan, result);
    unsigned char *after = malloc(c->bytes);
    status = stw_verify_device_open(context, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status || !after) {
        stw_verify_fail_buffers(result, status);
    } else {
        status = run_attention(c, plan, desc.index_dtype, &device, after, &guards);
        if (status) stw_verify_fail(result, "stw_jagged_bwd: %s: %s", stw_status_name(status), stw_last_error());
        else if (!guards) stw_verify_fail(result, "memory around the workspace was written");
        else stw_verify_check_outputs(c, after, result);
        stw_verify_device_close(&device);
    }
    stw_plan_destroy(plan);
    free(after);
}

static void jagged_attention_check(const stw_jagged_problem *problem, stw_context *context,
                                   const stw_verify_options *options, stw_verify_result *result) {
    stw_problem packed = problem->attn;
    stw_verify_case c;
    (void)options; /* the packed problem's own rows repeat it */
    packed.seed = problem->seed;
    stw_status status = stw_verify_build(&packed, &c);
    if (status) {
        stw_verify_fail(result, "%s", stw_tool_last_error());
        result->invalid = status == STW_E_INVALID;
        return;
    }
    check_attention(&c, problem, context, result);
    stw_verify_free(&c);
}

static const char *const jagged_grad_names[STW_GRAD_COUNT] = {"dx", "dother", "dweight", "dbias", "-"};
static const char *const tensor_names[JVERIFY_COUNT] = {
    "grad",       "x",       "y",       "other",   "weight", "mean", "rstd", "dx",    "dother", "dweight", "dbias",
    "status_out", "offsets", "offsets", "offsets", "used",   "used", "used", "bases", "bases",  "bases"};

const char *jagged_verify_tensor_name(int tensor) { return tensor_names[tensor]; }

/* ---- judging ---- */

static const char *owner_of(const jagged_verify_case *c, size_t byte) {
    int best = JVERIFY_STATUS;
    for (int id = 0; id < JVERIFY_COUNT; ++id)
        if (c->size[id] && c->offset[id] <= byte && c->offset[id] >= c->offset[best]) best = id;
    return tensor_names[best];
}

static void check_untouched(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    for (size_t byte = 0; byte < c->bytes; ++byte)
        if (after[byte] != c->host[byte] && c->rule[byte] == STW_VERIFY_KEEP) {
            stw_verify_fail(result, "byte %zu of the arena (in or behind %s) was written", byte, owner_of(c, byte));
            return;
        }
}

/* Operations without arithmetic, and types that the accuracy rule does not know: every element exactly. */
static void check_exact(const jagged_verify_case *c, const unsigned char *after, int which, stw_verify_result *result) {
    const stw_jref_result *r = &c->expectation.reference;
    stw_dtype dtype = stw_jref_dtype(&c->problem.desc, which);
    int adds = (int)(c->problem.desc.accumulate >> which & 1u);
    result->max_ratio[which] = 0;
    for (int64_t n = 0; n < r->elements[which]; ++n) {
        double x = stw_jref_load(after + c->offset[JVERIFY_DX + which], n, dtype), want = r->values[which][n];
        if (r->kinds[which][n] == STW_REF_ROW_UNTOUCHED) continue;
        if (adds) want = (double)(float)(want + stw_jref_load(c->host + c->offset[JVERIFY_DX + which], n, dtype));
        if (x == want || (isnan(x) && isnan(want))) continue;
        stw_verify_fail(result, "%s: element %lld is %.9g, not %.9g", jagged_grad_names[which], (long long)n, x, want);
        return;
    }
}

static int64_t terms_of(const stw_jagged_desc *d) {
    int64_t terms = 4;
    for (int i = 0; i < 3; ++i) terms += d->axis[i].size > d->axis[i].total ? d->axis[i].size : d->axis[i].total;
    return terms + d->out_features + d->inner;
}

static void judge(const jagged_verify_case *c, const unsigned char *after, int which, stw_verify_result *result) {
    const stw_jref_expectation *e = &c->expectation;
    stw_accuracy a;
    stw_flat_tensor tensor = {.data = after + c->offset[JVERIFY_DX + which],
                              .before = c->host + c->offset[JVERIFY_DX + which],
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
    stw_verify_note_accuracy(result, which, jagged_grad_names[which], &a);
}

void jagged_verify_judge(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        if (!c->size[JVERIFY_DX + i]) continue;
        if (c->expectation.exact) check_exact(c, after, i, result);
        else judge(c, after, i, result);
    }
}

void jagged_verify_check_outputs(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    int32_t seen;
    check_untouched(c, after, result);
    jagged_verify_judge(c, after, result);
    memcpy(&seen, after + c->offset[JVERIFY_STATUS], sizeof seen);
    if (seen) stw_verify_fail(result, "status_out is 0x%x for values that are all in range", (unsigned)seen);
}

/* ---- running ---- */

static stw_status run_once(const jagged_verify_case *c, const stw_plan *plan, stw_verify_device *device, int poison,
                           unsigned char *after, stw_verify_result *result) {
    int guards = 0;
    stw_jagged_args args = jagged_verify_args(c, device->arena);
    stw_status status = stw_verify_device_load(device, c->host, poison);
    if (!status) status = stw_jagged_bwd(plan, &args, device->workspace, device->workspace_bytes, device->stream);
    if (!status) status = stw_verify_device_store(device, after, poison, &guards);
    if (status) stw_verify_fail(result, "stw_jagged_bwd: %s: %s", stw_status_name(status), stw_last_error());
    else if (!guards)
        stw_verify_fail(result, "memory around the workspace of %zu bytes was written", device->workspace_bytes);
    return status;
}

static void check_same(const jagged_verify_case *c, const unsigned char *first, const unsigned char *again,
                       const char *what, stw_verify_result *result) {
    for (size_t byte = 0; byte < c->bytes; ++byte)
        if (first[byte] != again[byte]) {
            stw_verify_fail(result, "%s differs from the first in byte %zu (%s)", what, byte, owner_of(c, byte));
            return;
        }
}

/* Runs the case on a context as often as asked; `first`: what an earlier context's run left, or null. The
 * first run's arena is put into `after`. 0: nothing ran. */
static int run_on(const jagged_verify_case *c, stw_context *context, int runs, const unsigned char *first,
                  unsigned char *after, stw_verify_result *result) {
    static const int poisons[] = {0xFF, 0x7F, 0x00};
    const char *what = first ? "another number of threads" : "a repeat";
    stw_plan *plan = NULL;
    stw_verify_device device;
    stw_status status = stw_jagged_bwd_plan(context, &c->problem.desc, &plan);
    if (status) {
        stw_verify_fail(result, "stw_jagged_bwd_plan: %s: %s", stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) result->outcome = STW_VERIFY_SKIP;
        return 0;
    }
    if (!first) stw_verify_note_variant(plan, result);
    unsigned char *again = malloc(c->bytes);
    status = stw_verify_device_open(context, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status) stw_verify_fail_buffers(result, status);
    for (int n = 0; again && n < runs && !status; ++n) {
        status = run_once(c, plan, &device, poisons[n % 3], n ? again : after, result);
        if (!status && (n || first)) check_same(c, first ? first : after, n ? again : after, what, result);
        if (n + 1 == runs || status) stw_verify_device_close(&device);
    }
    stw_plan_destroy(plan);
    free(again);
    return !status;
}

static void check(const jagged_verify_case *c, stw_context *context, const stw_verify_options *options,
                  stw_verify_result *result) {
    unsigned char *after = malloc(c->bytes), *other = malloc(c->bytes);
    if (!after || !other) stw_verify_fail(result, "no memory");
    else if (run_on(c, context, 1 + options->repeats, NULL, after, result)) {
        jagged_verify_check_outputs(c, after, result);
        if (options->other) run_on(c, options->other, 1, after, other, result);
    }
    free(after);
    free(other);
}

const char *const *jagged_names_of(const char *line) {
    int pool = !strncmp(line, "pool:d", 6) && line[6] && strchr("xow", line[6]);
    int jagged = pool || (stw_problem_is_jagged(line) && strncmp(line, "jagged_attention", 16) != 0);
    return jagged ? jagged_grad_names : stw_grad_names;
}

stw_status jagged_any_parse(const char *line) {
    stw_problem problem;
    stw_jagged_problem jagged;
    return stw_problem_is_jagged(line) ? stw_problem_jagged_parse(line, &jagged) : stw_problem_parse(line, &problem);
}

/* What plan refuses as invalid is no problem to make data for. */
static int is_planned(const stw_jagged_problem *problem, stw_context *context, stw_verify_result *result) {
    stw_plan *plan = NULL;
    stw_status status = stw_jagged_bwd_plan(context, &problem->desc, &plan);
    stw_plan_destroy(plan);
    if (status != STW_E_INVALID) return 1;
    result->invalid = 1;
    return stw_verify_fail(result, "%s", stw_last_error());
}

static void check_again(void *user, int64_t seed, stw_context *context, stw_verify_result *result) {
    stw_jagged_problem other = *(const stw_jagged_problem *)user;
    stw_verify_options once = {0};
    jagged_verify_case c;
    other.seed = seed;
    if (jagged_verify_build(&other, &c)) {
        stw_verify_fail(result, "%s", stw_tool_last_error());
        return;
    }
    check(&c, context, &once, result);
    jagged_verify_free(&c);
}

void jagged_verify_check_line(const char *line, int64_t seed, stw_context *context, const stw_verify_options *options,
                              stw_verify_result *result) {
    stw_jagged_problem problem;
    jagged_verify_case c;
    stw_verify_result_clear(result);
    if (stw_problem_jagged_parse(line, &problem)) {
        stw_verify_fail(result, "%s", stw_tool_last_error());
        result->invalid = 1;
        return;
    }
    if (!problem.seed) problem.seed = seed;
    if (problem.desc.op == STW_JAGGED_ATTENTION) {
        jagged_attention_check(&problem, context, options, result);
        return;
    }
    if (!is_planned(&problem, context, result)) return;
    stw_status status = jagged_verify_build(&problem, &c);
    if (status) {
        stw_verify_fail(result, "%s", stw_tool_last_error());
        result->invalid = status == STW_E_INVALID;
        return;
    }
    check(&c, context, options, result);
    jagged_verify_free(&c);
    if (result->near) stw_verify_enlarge(check_again, &problem, problem.seed, context, jagged_grad_names, result);
}
