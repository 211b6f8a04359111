/* SPDX-License-Identifier: MIT
 *
 * Problems of nested operations in `sternway run`: metadata `problem` holds the line that the log traces, the
 * tensors have the names of stw_jagged_args. They run in an arena of verify/jagged.h, filled from the file; results
 * and judgements go where those of attention are, so that one report prints both. */
#include "run.h"

#include "tools/base/stop.h"
#include "tools/verify/jagged.h"
#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct run_nested {
    stw_jagged_problem problem;
    const stw_st_tensor *tensors[JVERIFY_COUNT]; /* of the file: inputs, lengths, in DX.. the references */
    jagged_verify_case c;
};

static const struct {
    const char *name;
    int id;
} names[] = {{"grad", STW_JREF_GRAD},
             {"x", STW_JREF_X},
             {"y", STW_JREF_Y},
             {"other", STW_JREF_OTHER},
             {"weight", STW_JREF_WEIGHT},
             {"mean", STW_JREF_MEAN},
             {"rstd", STW_JREF_RSTD},
             {"offsets", JVERIFY_OFFSETS},
             {"used", JVERIFY_USED},
             {"offsets_m", JVERIFY_OFFSETS + STW_AXIS_M},
             {"offsets_k", JVERIFY_OFFSETS + STW_AXIS_K},
             {"offsets_n", JVERIFY_OFFSETS + STW_AXIS_N},
             {"used_m", JVERIFY_USED + STW_AXIS_M},
             {"used_k", JVERIFY_USED + STW_AXIS_K},
             {"used_n", JVERIFY_USED + STW_AXIS_N},
             {"dx_ref", JVERIFY_DX},
             {"dother_ref", JVERIFY_DOTHER},
             {"dweight_ref", JVERIFY_DWEIGHT},
             {"dbias_ref", JVERIFY_DBIAS}};
#define NAME_COUNT (sizeof names / sizeof *names)

static const char *name_of(int id) {
    for (size_t i = 0; i < NAME_COUNT; ++i)
        if (names[i].id == id) return names[i].name;
    return "bases";
}

int run_nested_open(run_problem *p, const char *line) {
    p->nested = calloc(1, sizeof *p->nested);
    if (!p->nested) return run_refuse(p, STW_EXIT_FAILED, "out of memory");
    stw_jagged_problem *problem = &p->nested->problem;
    if (!stw_problem_is_jagged(line) || !strncmp(line, "jagged_attention", 16))
        return run_refuse(p, STW_EXIT_USAGE,
                          "metadata problem '%.60s': a nested operation is accepted, jagged_softmax:...; attention is "
                          "q, k, v, dout with cu_seqlens",
                          line);
    if (stw_problem_jagged_parse(line, problem)) return run_refuse(p, STW_EXIT_USAGE, "%s", stw_tool_last_error());
    const stw_jagged_desc *d = &problem->desc;
    if (d->dtype != STW_F32 && d->dtype != STW_F16 && d->dtype != STW_BF16)
        return run_refuse(p, STW_EXIT_USAGE, "metadata problem: dtype %s; f16, bf16, f32 are accepted",
                          stw_dtype_name(d->dtype));
    if (d->accumulate) return run_refuse(p, STW_EXIT_USAGE, "metadata problem: acc_ has nothing to add to here");
    problem->skew = 0;
    return 0;
}

int run_nested_take(run_problem *p, const stw_st_tensor *tensor, const char *leaf) {
    for (size_t i = 0; i < NAME_COUNT; ++i) {
        if (strcmp(leaf, names[i].name)) continue;
        if (p->nested->tensors[names[i].id]) return run_refuse(p, STW_EXIT_USAGE, "tensor %s is given twice", leaf);
        p->nested->tensors[names[i].id] = tensor;
        return 0;
    }
    return run_refuse(p, STW_EXIT_USAGE,
                      "tensor '%.80s' is not part of a nested problem (tools/README.md lists the names)", leaf);
}

/* ---- from the file into the arena ---- */

static stw_dtype dtype_of(const stw_jagged_desc *d, int id) {
    if (id >= JVERIFY_OFFSETS) return d->index_dtype;
    if (id == STW_JREF_MEAN || id == STW_JREF_RSTD) return STW_F32;
    return id == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype : d->dtype;
}

static stw_st_type file_type(stw_dtype dtype) {
    return dtype == STW_F16    ? STW_ST_F16
           : dtype == STW_BF16 ? STW_ST_BF16
           : dtype == STW_F64  ? STW_ST_F64
           : dtype == STW_I64  ? STW_ST_I64
           : dtype == STW_I32  ? STW_ST_I32
                               : STW_ST_F32;
}

/* One tensor that the call reads: its type and its number of elements; the shape is the caller's own. */
static int fill_tensor(run_problem *p, int id, int64_t elements) {
    jagged_verify_case *c = &p->nested->c;
    const stw_st_tensor *tensor = p->nested->tensors[id];
    const stw_st_type type = file_type(dtype_of(&c->problem.desc, id));
    if (id >= JVERIFY_BASES && c->size[id])
        return run_refuse(p, STW_EXIT_USAGE, "metadata problem: matmul with bases is not taken");
    if (!elements && tensor && tensor->elements)
        return run_refuse(p, STW_EXIT_USAGE, "%s: this operation does not read it", name_of(id));
    if (!elements) return 0;
    if (!tensor) return run_refuse(p, STW_EXIT_USAGE, "tensor %s is missing", name_of(id));
    if (tensor->type != type)
        return run_refuse(p, STW_EXIT_USAGE, "%s: dtype %s; %s is accepted", name_of(id),
                          stw_st_type_name(tensor->type), stw_st_type_name(type));
    if (tensor->elements != (uint64_t)elements || tensor->bytes > c->size[id])
        return run_refuse(p, STW_EXIT_USAGE, "%s: %llu elements, the problem has %lld", name_of(id),
                          (unsigned long long)tensor->elements, (long long)elements);
    memcpy(c->host + c->offset[id], tensor->data, tensor->bytes);
    return 0;
}

/* Offsets and used lengths as the header wants them: the reference does not check. */
static int check_axis(run_problem *p, int axis) {
    const jagged_verify_case *c = &p->nested->c;
    const stw_jagged_desc *d = &c->problem.desc;
    const int offsets = JVERIFY_OFFSETS + axis, used = JVERIFY_USED + axis;
    if (!c->size[offsets]) return 0;
    const void *starts = c->host + c->offset[offsets], *lengths = c->host + c->offset[used];
    for (int64_t b = 0; b <= d->components; ++b) {
        double start = stw_jref_load(starts, b, d->index_dtype);
        double before = b ? stw_jref_load(starts, b - 1, d->index_dtype) : 0, longest = (double)d->axis[axis].size;
        if (start < before || start > (double)d->axis[axis].total || (b && start - before > longest))
            return run_refuse(p, STW_EXIT_USAGE,
                              "%s[%lld] = %.0f: not decreasing, to %lld, and at most %lld more than the one before is "
                              "accepted",
                              name_of(offsets), (long long)b, start, (long long)d->axis[axis].total,
                              (long long)d->axis[axis].size);
        double length = b && c->size[used] ? stw_jref_load(lengths, b - 1, d->index_dtype) : 0;
        if (length < 0 || (b && length > start - before))
            return run_refuse(p, STW_EXIT_USAGE, "%s[%lld] = %.0f: 0..%.0f is accepted", name_of(used),
                              (long long)(b - 1), length, start - before);
    }
    return 0;
}

static int fill(run_problem *p) {
    jagged_verify_case *c = &p->nested->c;
    const stw_jagged_desc *d = &c->problem.desc;
    int status = 0;
    for (int id = JVERIFY_OFFSETS; id < JVERIFY_COUNT && !status; ++id)
        status = fill_tensor(p, id, (int64_t)(c->size[id] / stw_dtype_size(dtype_of(d, id))));
    for (int axis = 0; axis < 3 && !status; ++axis) status = check_axis(p, axis);
    stw_jagged_args args = jagged_verify_args(c, c->host);
    for (int id = 0; id < STW_JREF_INPUTS && !status; ++id)
        status = fill_tensor(p, id, stw_jref_elements(d, &args, (stw_jref_input)id));
    for (int id = JVERIFY_DX; id <= JVERIFY_DBIAS && !status; ++id) {
        memset(c->host + c->offset[id], 0, c->size[id]); /* what is in no component stays 0 */
        const stw_st_tensor *reference = p->nested->tensors[id];
        uint64_t elements = c->size[id] / stw_dtype_size(stw_jref_dtype(d, id - JVERIFY_DX));
        if (reference && reference->elements != elements)
            return run_refuse(p, STW_EXIT_USAGE, "%s: %llu elements, the gradient has %llu", name_of(id),
                              (unsigned long long)reference->elements, (unsigned long long)elements);
        if (reference && !strstr(run_accepts_float(), stw_st_type_name(reference->type)))
            return run_refuse(p, STW_EXIT_USAGE, "%s: dtype %s; %s is accepted", name_of(id),
                              stw_st_type_name(reference->type), run_accepts_float());
    }
    return status;
}

/* ---- run ---- */

static int refuse_call(run_problem *p, stw_status status) {
    return run_refuse(p, stw_tool_exit_of(status), "%s (%s)", stw_last_error(), stw_status_name(status));
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run_calls(run_problem *p, const stw_plan *plan, stw_verify_device *device, unsigned char *after,
                     const run_options *options) {
    const jagged_verify_case *c = &p->nested->c;
    stw_jagged_args args = jagged_verify_args(c, device->arena);
    double *seconds = calloc((size_t)options->repeat, sizeof *seconds);
    int guards = 0;
    int32_t bad = 0;
    stw_status status = seconds ? stw_verify_device_load(device, c->host, 0xFF) : STW_E_NO_MEMORY;
    while (p->runs < options->repeat && !status && !(p->runs && stw_tool_stopped())) {
        double begin = stw_tool_seconds();
        status = stw_jagged_bwd(plan, &args, device->workspace, device->workspace_bytes, device->stream);
        if (!status) status = stw_stream_synchronize(device->context, device->stream);
        seconds[p->runs++] = stw_tool_seconds() - begin;
    }
    if (!status) status = stw_verify_device_store(device, after, 0xFF, &guards);
    if (!status) {
        qsort(seconds, (size_t)p->runs, sizeof *seconds, by_value);
        p->seconds = 0.5 * (seconds[p->runs / 2] + seconds[(p->runs - 1) / 2]);
        memcpy(&bad, after + c->offset[JVERIFY_STATUS], sizeof bad);
    }
    free(seconds);
    if (status) return refuse_call(p, status);
    return bad ? run_refuse(p, STW_EXIT_USAGE, "values out of range: status_out is 0x%x", (unsigned)bad) : 0;
}

/* The gradient in the shape of the input that it is of, if that is in the file with four dimensions at most. */
static int keep_gradient(run_problem *p, int which, const unsigned char *after) {
    static const int of[STW_JREF_OUTPUTS][2] = {
        {STW_JREF_X, STW_JREF_GRAD}, {STW_JREF_OTHER, -1}, {STW_JREF_WEIGHT, -1}, {-1, -1}};
    const jagged_verify_case *c = &p->nested->c;
    run_array *array = &p->arrays[RUN_DQ + which];
    const size_t bytes = c->size[JVERIFY_DX + which];
    const stw_dtype dtype = stw_jref_dtype(&c->problem.desc, which);
    if (!(stw_jref_outputs(&c->problem.desc) >> which & 1u)) return 0;
    *array = (run_array){.used = 1, .type = file_type(dtype), .rank = 1, .bytes = bytes, .host = malloc(bytes + 1)};
    array->shape[0] = (int64_t)(bytes / stw_dtype_size(dtype));
    for (int i = 1; i >= 0; --i) {
        const stw_st_tensor *like = of[which][i] < 0 ? NULL : p->nested->tensors[of[which][i]];
        if (!like || like->rank > 4 || like->elements != bytes / stw_dtype_size(dtype)) continue;
        array->rank = like->rank;
        memcpy(array->shape, like->shape, (size_t)like->rank * sizeof like->shape[0]);
    }
    if (!array->host) return run_refuse(p, STW_EXIT_FAILED, "out of memory");
    memcpy(array->host, after + c->offset[JVERIFY_DX + which], bytes);
    return 0;
}

int run_nested_execute(run_problem *p, stw_context *context, const run_options *options) {
    stw_verify_device device = {0};
    stw_plan *plan = NULL;
    unsigned char *after = NULL;
    stw_status status = stw_jagged_bwd_plan(context, &p->nested->problem.desc, &plan);
    if (status) return refuse_call(p, status);
    p->plan_text = stw_tool_plan_text(plan);
    snprintf(p->arch, sizeof p->arch, "%s", stw_context_arch(context));
    int result = 0;
    if (!p->plan_text) result = refuse_call(p, STW_E_INTERNAL);
    if (!result && jagged_verify_build_inputs(&p->nested->problem, &p->nested->c))
        result = run_refuse(p, STW_EXIT_USAGE, "%s", stw_tool_last_error());
    if (!result) result = fill(p);
    if (!result && !(after = malloc(p->nested->c.bytes))) result = run_refuse(p, STW_EXIT_FAILED, "out of memory");
    if (!result) {
        status = stw_verify_device_open(context, p->nested->c.bytes, stw_plan_workspace_size(plan), &device);
        if (status) result = refuse_call(p, status);
        else result = run_calls(p, plan, &device, after, options);
        if (!status) stw_verify_device_close(&device);
    }
    for (int which = 0; which < STW_JREF_OUTPUTS && !result; ++which) result = keep_gradient(p, which, after);
    free(after);
    stw_plan_destroy(plan);
    return result;
}

/* ---- comparison ---- */

/* What storing the reference in its own type may have cost. */
static double half_ulp(double x, const stw_st_tensor *reference) {
    stw_dtype dtype = run_dtype_of(reference->type);
    return dtype ? 0.5 * stw_ulp(x, dtype) : 0;
}

/* The file's values in the place of the reference's; the permitted errors are the reference's. */
static void judge(run_problem *p, int which, double tolerance) {
    const stw_st_tensor *reference = p->nested->tensors[JVERIFY_DX + which];
    const run_array *x = &p->arrays[RUN_DQ + which];
    stw_jref_expectation *e = &p->nested->c.expectation;
    stw_accuracy *a = &p->results[which].accuracy;
    double top = 0;
    p->results[which].given = 1;
    for (int64_t n = 0; n < e->reference.elements[which]; ++n) {
        double wanted = run_load_float(reference->data, reference->type, (uint64_t)n);
        e->reference.values[which][n] = wanted;
        if (isfinite(wanted) && e->reference.kinds[which][n] != STW_REF_ROW_UNTOUCHED) top = fmax(top, fabs(wanted));
    }
    stw_flat_tensor tensor = {.data = x->host,
                              .before = x->host,
                              .dtype = stw_jref_dtype(&p->nested->problem.desc, which),
                              .elements = e->reference.elements[which],
                              .values = e->reference.values[which],
                              .kinds = e->reference.kinds[which],
                              .e_max = e->e_max[which],
                              .e_rms = e->e_rms[which],
                              .max_ref = e->max_ref[which]};
    stw_judge_flat(&tensor, a);
    if (tolerance >= 0) {
        a->max_allowed = top > 0 ? tolerance * top : tolerance;
        a->rms_allowed = 0;
    } else {
        a->max_allowed += half_ulp(top, reference);
        a->rms_allowed = a->small ? 0 : a->rms_allowed + half_ulp(top, reference);
    }
    a->pass = a->max_error <= a->max_allowed && (a->rms_allowed <= 0 || a->rms_error <= a->rms_allowed);
}

int run_nested_check(run_problem *p, const run_options *options) {
    int given = 0;
    for (int which = 0; which < STW_JREF_OUTPUTS; ++which) given |= p->nested->tensors[JVERIFY_DX + which] != NULL;
    if (given && jagged_verify_expect(&p->nested->c))
        return run_refuse(p, STW_EXIT_FAILED, "the reference failed: %s", stw_tool_last_error());
    for (int which = 0; which < STW_JREF_OUTPUTS; ++which)
        if (p->nested->tensors[JVERIFY_DX + which]) judge(p, which, options->tolerance);
    return 0;
}

const char *run_gradient_name(const run_problem *p, int which) {
    static const char *const nested[] = {"dx", "dother", "dweight", "dbias", "-"};
    return p->nested ? nested[which] : stw_grad_names[which];
}

void run_nested_free(run_problem *p) {
    if (!p->nested) return;
    jagged_verify_free(&p->nested->c);
    free(p->nested);
    p->nested = NULL;
}
