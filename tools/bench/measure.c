/* SPDX-License-Identifier: MIT
 *
 * Runs of a plan on a large problem, verified and timed, and what they have to do at least (measure.h). */
#include "measure.h"

#include "tools/base/tool.h"
#include "common/dtype.h"
#include "common/arch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- work: what a measured call has to do at least ---- */

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

static int is_forward(const stw_verify_case *c) { return c->problem.op == STW_PROBLEM_ATTN_FWD; }

static double attention_flop(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    const int qk = is_forward(c) ? 1 : 3, v = is_forward(c) ? 1 : 2; /* products with D and with Dv terms */
    return stw_verify_pairs(c) * 2 * (double)(qk * d->head_dim_qk + v * d->head_dim_v);
}

static int64_t index_of(const jagged_verify_case *c, int tensor, int64_t b) {
    const unsigned char *at = c->host + c->offset[tensor];
    return c->problem.desc.index_dtype == STW_I64 ? ((const int64_t *)(const void *)at)[b]
                                                  : ((const int32_t *)(const void *)at)[b];
}

/* Positions of component b along an axis: with data (used), or that exist. */
static double extent(const jagged_verify_case *c, int axis, int64_t b, int used) {
    if (!c->size[JVERIFY_OFFSETS + axis]) return (double)c->problem.desc.axis[axis].size;
    if (used && c->size[JVERIFY_USED + axis]) return (double)index_of(c, JVERIFY_USED + axis, b);
    return (double)(index_of(c, JVERIFY_OFFSETS + axis, b + 1) - index_of(c, JVERIFY_OFFSETS + axis, b));
}

static double at_least_one(int64_t n) { return n > 0 ? (double)n : 1; }

static double jagged_flop(const jagged_verify_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    uint32_t outputs = stw_jref_outputs(d);
    double products = 0;
    if (d->op != STW_JAGGED_LINEAR && d->op != STW_JAGGED_MATMUL) return 0;
    for (int64_t b = 0; b < d->components; ++b)
        products += d->op == STW_JAGGED_LINEAR ? extent(c, 0, b, 1) * at_least_one(d->inner) * (double)d->out_features
                                               : extent(c, 0, b, 1) * extent(c, 1, b, 1) * extent(c, 2, b, 1);
    int both = !!(outputs & STW_JAGGED_DX) + !!(outputs & (STW_JAGGED_DOTHER | STW_JAGGED_DWEIGHT));
    return 2 * products * at_least_one(d->outer) * both;
}

double stw_measure_flop(const stw_measure *m) {
    return m->kind == STW_MEASURE_JAGGED ? jagged_flop(&m->j) : attention_flop(&m->c);
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static double attention_bytes(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    double rows = 0, keys = 0, element = (double)stw_dtype_size(d->dtype), bytes = 0;
    for (int64_t b = 0; b < d->batch; ++b) {
        rows += (double)(c->q[b].used * d->heads_q);
        keys += (double)(c->kv[b].used * d->heads_kv);
    }
    const double qk = (double)d->head_dim_qk, v = (double)d->head_dim_v;
    const struct {
        stw_verify_tensor tensor;
        double elements;
        stw_dtype dtype; /* STW_DTYPE_NONE: that of q */
        uint32_t output;
        int backward;
    } rules[] = {
        {STW_VERIFY_Q, rows * qk, STW_DTYPE_NONE, 0, 0},
        {STW_VERIFY_K, keys * qk, STW_DTYPE_NONE, 0, 0},
        {STW_VERIFY_V, keys * v, STW_DTYPE_NONE, 0, 0},
        {STW_VERIFY_OUT, rows * v, STW_DTYPE_NONE, 0, 0},
        {STW_VERIFY_LSE, rows, stw_dtype_of_rows(d->dtype), 0, 0},
        {STW_VERIFY_DOUT, rows * v, STW_DTYPE_NONE, 0, 1},
        {STW_VERIFY_DLSE, rows, stw_dtype_of_rows(d->dtype), 0, 1},
        {STW_VERIFY_DELTA, rows, stw_dtype_of_rows(d->dtype), 0, 1},
        {STW_VERIFY_DQ, rows * qk, d->dq_dtype, STW_OUT_DQ, 1},
        {STW_VERIFY_DK, keys * qk, d->dk_dtype, STW_OUT_DK, 1},
        {STW_VERIFY_DV, keys * v, d->dv_dtype, STW_OUT_DV, 1},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; ++i) {
        if (!c->present[rules[i].tensor] || (is_forward(c) && rules[i].backward)) continue;
        double size = rules[i].dtype ? (double)stw_dtype_size(rules[i].dtype) : element;
        bytes += rules[i].elements * size * (d->accumulate & rules[i].output ? 2 : 1);
    }
    if (c->present[STW_VERIFY_BIAS]) bytes += (double)c->size[STW_VERIFY_BIAS];
    if (c->present[STW_VERIFY_DBIAS] && !is_forward(c))
        bytes += (double)c->size[STW_VERIFY_DBIAS] * (d->accumulate & STW_OUT_DBIAS ? 2 : 1);
    return bytes;
}

/* Elements that output `which` gets: what lies in no component is left alone. */
static double written(const jagged_verify_case *c, int which) {
    static const int matrix[2][2] = {{STW_AXIS_M, STW_AXIS_K}, {STW_AXIS_K, STW_AXIS_N}};
    const stw_jagged_desc *d = &c->problem.desc;
    double whole = (double)c->size[JVERIFY_DX + which] / (double)stw_dtype_size(stw_jref_dtype(d, which)), sum = 0;
    if (which >= 2 || d->op == STW_JAGGED_FROM_PADDED) return whole;
    for (int64_t b = 0; b < d->components; ++b)
        sum += d->op == STW_JAGGED_MATMUL
                   ? at_least_one(d->outer) * extent(c, matrix[which][0], b, 0) * extent(c, matrix[which][1], b, 0)
                   : extent(c, 0, b, 0);
    return d->op == STW_JAGGED_MATMUL ? sum : d->axis[0].total > 0 ? sum * (whole / (double)d->axis[0].total) : 0;
}

static double jagged_bytes(const jagged_verify_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    double bytes = 0;
    for (int i = 0; i < STW_JREF_INPUTS; ++i) {
        stw_dtype dtype = i >= STW_JREF_MEAN                        ? STW_F32
                          : i == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype
                                                                    : d->dtype;
        bytes += (double)c->readable[i] * (double)stw_dtype_size(dtype);
    }
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i)
        if (c->size[JVERIFY_DX + i])
            bytes += written(c, i) * (double)stw_dtype_size(stw_jref_dtype(d, i)) * (d->accumulate >> i & 1u ? 2 : 1);
    return bytes;
}

double stw_measure_bytes(const stw_measure *m) {
    return m->kind == STW_MEASURE_JAGGED ? jagged_bytes(&m->j) : attention_bytes(&m->c);
}

/* ---- opening a jagged operation: attention as the packed problem that it is, all others as a case without
 * expectation. */

static stw_status fail(stw_measure *m, stw_verify_result *result, const char *what, stw_status status,
                       const char *text) {
    stw_verify_fail(result, "%s: %s: %s", what, stw_status_name(status), text);
    stw_measure_close(m);
    return status;
}

static stw_status open_attention(const stw_jagged_problem *problem, stw_context *context, size_t workspace_bytes,
                                 stw_measure *m, stw_verify_result *result) {
    stw_problem packed = problem->attn;
    packed.seed = problem->seed;
    stw_status status = stw_measure_open(&packed, context, workspace_bytes, m, result);
    if (status) return status;
    m->kind = STW_MEASURE_JAGGED_ATTN;
    status =
        jagged_attention_args(&m->c, problem->desc.index_dtype, &m->device, &m->args, &m->jagged_args, &m->lengths);
    return status ? fail(m, result, "lengths", status, stw_last_error()) : STW_OK;
}

stw_status stw_measure_open_jagged(const stw_jagged_problem *problem, stw_context *context, size_t workspace_bytes,
                                   stw_measure *m, stw_verify_result *result) {
    stw_jagged_problem seeded = *problem;
    if (problem->desc.op == STW_JAGGED_ATTENTION) return open_attention(problem, context, workspace_bytes, m, result);
    memset(m, 0, sizeof *m);
    m->kind = STW_MEASURE_JAGGED;
    if (!seeded.seed) seeded.seed = 1;
    stw_status status = jagged_verify_build_inputs(&seeded, &m->j);
    if (status) return fail(m, result, "data", status, stw_tool_last_error());
    m->after = malloc(m->j.bytes);
    if (!m->after) return fail(m, result, "data", STW_E_NO_MEMORY, "no memory for the results");
    status = stw_verify_device_open(context, m->j.bytes, workspace_bytes, &m->device);
    if (!status) status = stw_verify_device_load(&m->device, m->j.host, 0xFF);
    if (status) return fail(m, result, "buffers", status, stw_last_error());
    m->jagged_args = jagged_verify_args(&m->j, m->device.arena);
    return STW_OK;
}

/* ---- opening ---- */

#define SAMPLE_ROWS   16
#define BATCH_SECONDS 4e-3
#define ISSUE_CALLS   16

static stw_status note(stw_verify_result *result, const char *what, stw_status status, const char *text) {
    if (status) stw_verify_fail(result, "%s: %s: %s", what, stw_status_name(status), text);
    return status;
}

stw_status stw_measure_open(const stw_problem *problem, stw_context *context, size_t workspace_bytes,
                            stw_measure *measure_out, stw_verify_result *result_out) {
    stw_measure *m = measure_out;
    stw_problem seeded = *problem;
    memset(m, 0, sizeof *m);
    if (!seeded.seed) seeded.seed = 1;
    stw_status status = stw_verify_build_inputs(&seeded, &m->c);
    if (status) return note(result_out, "data", status, stw_tool_last_error());
    status = stw_verify_device_open(context, m->c.bytes, workspace_bytes, &m->device);
    if (!status && is_forward(&m->c)) status = stw_verify_device_load(&m->device, m->c.host, 0xFF);
    else if (!status) status = stw_verify_sample_forward(&m->c, context, &m->device);
    note(result_out, "forward", status, stw_last_error());
    m->after = status ? NULL : malloc(m->c.bytes);
    if (!status && !m->after) status = note(result_out, "data", STW_E_NO_MEMORY, "no memory for the results");
    if (status) {
        stw_measure_close(m);
        return status;
    }
    m->args = stw_verify_args(&m->c, m->device.arena);
    return STW_OK;
}

void stw_measure_close(stw_measure *m) {
    if (m->lengths) stw_buffer_free(m->device.context, m->lengths);
    if (m->device.context) stw_verify_device_close(&m->device);
    free(m->after);
    stw_verify_free(&m->c);
    jagged_verify_free(&m->j);
    memset(m, 0, sizeof *m);
}

/* ---- verification -------------------------------------------------------------------------------------- */

static const stw_verify_tensor results[] = {STW_VERIFY_DQ, STW_VERIFY_DK, STW_VERIFY_DV, STW_VERIFY_DBIAS,
                                            STW_VERIFY_DSINK};
enum { RESULTS = sizeof results / sizeof *results };

/* Where result i lies in the arena; 0: it is absent. JVERIFY_DX.. are DX, DOTHER, DWEIGHT, DBIAS and the
 * status. */
static size_t result_at(const stw_measure *m, int i, size_t *offset_out) {
    if (m->kind == STW_MEASURE_JAGGED) {
        *offset_out = m->j.offset[JVERIFY_DX + i];
        return m->j.size[JVERIFY_DX + i];
    }
    stw_verify_tensor tensor = is_forward(&m->c) ? (i ? STW_VERIFY_LSE : STW_VERIFY_OUT) : results[i];
    *offset_out = m->c.offset[tensor];
    return m->c.present[tensor] && !(is_forward(&m->c) && i > 1) ? m->c.size[tensor] : 0;
}

/* Copies the gradients between the device's arena and one of the host: nothing else of it changes. */
static stw_status copy_results(const stw_measure *m, unsigned char *host, int to_device) {
    stw_status status = STW_OK;
    for (int i = 0; i < RESULTS && !status; ++i) {
        size_t at, bytes = result_at(m, i, &at);
        if (!bytes) continue;
        void *there = m->device.arena + at, *here = host + at;
        status =
            stw_copy(m->device.context, to_device ? there : here, to_device ? here : there, bytes, m->device.stream);
    }
    return status;
}

static stw_status poison_workspace(const stw_measure *m) {
    size_t bytes = m->device.workspace_bytes;
    unsigned char *filler = malloc(bytes + 1);
    if (!filler) return STW_E_NO_MEMORY;
    memset(filler, 0xFF, bytes);
    stw_status status =
        bytes ? stw_copy(m->device.context, m->device.workspace, filler, bytes, m->device.stream) : STW_OK;
    if (!status) status = stw_stream_synchronize(m->device.context, m->device.stream);
    free(filler);
    return status;
}

/* The last sequence with rows on both sides; -1: there is none. */
static int64_t last_sequence(const stw_verify_case *c) {
    int64_t b = c->problem.desc.batch - 1;
    while (b >= 0 && !(c->q[b].used > 0 && c->kv[b].used > 0)) --b;
    return b;
}

static const char *judge_jagged(const stw_measure *m, stw_verify_result *result) {
    int32_t seen;
    memcpy(&seen, m->after + m->j.offset[JVERIFY_STATUS], sizeof seen);
    if (seen) stw_verify_fail(result, "status_out is 0x%x for values that are all in range", (unsigned)seen);
    return jagged_sample_judge(&m->j, m->after, result);
}

const char *stw_measure_verify(stw_measure *m, const stw_plan *plan, stw_verify_result *result) {
    int judged = 0, jagged = m->kind == STW_MEASURE_JAGGED;
    int64_t sequence = jagged ? 0 : last_sequence(&m->c);
    stw_status status = poison_workspace(m);
    if (!status) status = copy_results(m, jagged ? m->j.host : m->c.host, 1);
    if (!status) status = stw_measure_run(m, plan, 1);
    if (!status) status = copy_results(m, m->after, 0);
    if (!status) status = stw_stream_synchronize(m->device.context, m->device.stream);
    note(result, "first run", status, stw_last_error());
    if (status) return "its first run failed";
    if (jagged) return judge_jagged(m, result);
    if (sequence >= 0)
        (is_forward(&m->c) ? stw_verify_sample_judge_forward : stw_verify_sample_judge)(&m->c, m->after, sequence,
                                                                                        SAMPLE_ROWS, result, &judged);
    return judged ? NULL : sequence < 0 ? "it is empty" : "its dropout map is not sampled";
}

/* ---- time ---------------------------------------------------------------------------------------------- */

static stw_status issue(const stw_measure *m, const stw_plan *plan, int calls) {
    stw_status status = STW_OK;
    const stw_verify_device *d = &m->device;
    for (int i = 0; i < calls && !status; ++i)
        status = m->kind == STW_MEASURE_ATTN
                     ? (is_forward(&m->c) ? stw_attn_fwd : stw_attn_bwd)(plan, &m->args, d->workspace,
                                                                         d->workspace_bytes, d->stream)
                     : stw_jagged_bwd(plan, &m->jagged_args, d->workspace, d->workspace_bytes, d->stream);
    return status;
}

stw_status stw_measure_run(const stw_measure *m, const stw_plan *plan, int calls) {
    stw_status status = issue(m, plan, calls);
    return status ? status : stw_stream_synchronize(m->device.context, m->device.stream);
}

stw_status stw_measure_batch(const stw_measure *m, const stw_plan *plan, int *calls_out) {
    stw_status status = stw_measure_run(m, plan, 1);
    double once = 0;
    int calls = 1;
    /* Doubled until the batch is long enough: a single call says little where waiting takes longer. */
    for (int turn = 0; turn < 12 && !status; ++turn) {
        double begin = stw_tool_seconds();
        status = stw_measure_run(m, plan, calls);
        once = (stw_tool_seconds() - begin) / calls;
        if (once * calls >= BATCH_SECONDS / 4) break;
        calls *= 2;
    }
    *calls_out = once < BATCH_SECONDS ? (int)ceil(BATCH_SECONDS / fmax(once, 1e-6)) : 1;
    return status;
}

stw_status stw_measure_issue(const stw_measure *m, const stw_plan *plan, double *seconds_out) {
    double times[ISSUE_CALLS], quartiles[3];
    stw_status status = STW_OK;
    for (int i = 0; i < ISSUE_CALLS && !status; ++i) {
        double begin = stw_tool_seconds();
        status = issue(m, plan, 1);
        times[i] = stw_tool_seconds() - begin;
        if (!status) status = stw_stream_synchronize(m->device.context, m->device.stream);
    }
    if (status) return status;
    stw_measure_quartiles(times, ISSUE_CALLS, quartiles);
    *seconds_out = quartiles[1];
    return STW_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int count, double q) {
    double at = q * (count - 1);
    int low = (int)at;
    return low + 1 < count ? sorted[low] + (at - low) * (sorted[low + 1] - sorted[low]) : sorted[low];
}

void stw_measure_quartiles(double *values, int count, double quartiles_out[3]) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    for (int i = 0; i < 3; ++i) quartiles_out[i] = quantile(values, count, 0.25 * (i + 1));
}

/* ---- the machine --------------------------------------------------------------------------------------- */

void stw_tool_name_device(stw_context *context, stw_tool_named *named) {
    stw_problem problem;
    stw_jagged_problem nested;
    stw_plan *plan = NULL;
    time_t now = time(NULL);
    struct tm utc;
    memset(named, 0, sizeof *named);
    if (gmtime_r(&now, &utc)) strftime(named->date, sizeof named->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(named->arch, sizeof named->arch, "%s", stw_context_arch(context));
    const stw_arch *arch = stw_arch_find(STW_BACKEND_AUTO, named->arch);
    if (arch) snprintf(named->backend, sizeof named->backend, "%s", stw_backend_name(arch->backend));
    stw_tool_driver_of(named->backend, named->driver, sizeof named->driver);
    /* A plan names the device; STERNWAY_VARIANT may leave it only one of the two families. */
    if (stw_problem_parse("attn_bwd:f32:b1h1s1d8", &problem) ||
        stw_problem_jagged_parse("jagged_sum:f32:c1l1t1:ragged", &nested))
        return;
    if (stw_attn_bwd_plan(context, &problem.desc, &plan) && stw_jagged_bwd_plan(context, &nested.desc, &plan)) return;
    char *text = stw_tool_plan_text(plan);
    if (text) stw_tool_plan_field(text, "device", named->device, sizeof named->device);
    free(text);
    stw_plan_destroy(plan);
}
