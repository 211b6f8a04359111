/* SPDX-License-Identifier: MIT
 *
 * One problem of `sternway bench`: data and the library's forward, one run verified on samples, then timed
 * calls. On a GPU a timing covers as many calls as make a millisecond, ended by one synchronisation. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_ROWS 16
#define RUNS_MAX    400
#define RUNS_MIN    5

typedef struct bench {
    stw_case c;
    stw_case_device device;
    stw_plan *plan;
    stw_attn_args args;
} bench;

static int fail_with(bench_result *result, const char *what, stw_status status, const char *text) {
    return stw_case_fail(&result->check, "%s: %s: %s", what, stw_status_name(status), text);
}

static stw_status run(const bench *b, int calls) {
    stw_status status = STW_OK;
    for (int i = 0; i < calls && !status; ++i)
        status =
            stw_attn_bwd(b->plan, &b->args, b->device.workspace, b->device.workspace_bytes, b->device.stream);
    return status ? status : stw_stream_synchronize(b->device.context, b->device.stream);
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

static int time_calls(const bench *b, double seconds, bench_result *result) {
    double times[RUNS_MAX], begin = stw_tool_seconds();
    stw_status status = run(b, 1);
    double once = stw_tool_seconds() - begin;
    int calls = once < 1e-3 ? (int)ceil(1e-3 / fmax(once, 1e-6)) : 1, count = 0;
    double end = stw_tool_seconds() + seconds;
    while (!status && count < RUNS_MAX && (count < RUNS_MIN || stw_tool_seconds() < end)) {
        begin = stw_tool_seconds();
        status = run(b, calls);
        times[count++] = (stw_tool_seconds() - begin) / calls;
    }
    if (status) return fail_with(result, "stw_attn_bwd", status, stw_last_error());
    qsort(times, (size_t)count, sizeof *times, by_value);
    result->runs = count * calls;
    result->median = quantile(times, count, 0.5);
    result->spread = quantile(times, count, 0.75) - quantile(times, count, 0.25);
    return 1;
}

static double flop_of(const stw_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    double pairs = 0;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t i = 0; i < c->q[b].used; ++i) {
            int64_t low, end;
            stw_case_visible(c, b, i, &low, &end);
            pairs += (double)(end - low);
        }
    return pairs * (double)d->heads_q * 2 * (double)(3 * d->head_dim_qk + 2 * d->head_dim_v);
}

static void largest_ratios(bench_result *result) {
    for (int g = 0; g < 3; ++g) {
        double rms = 0;
        stw_pool_pass(&result->check.pool[g], &rms);
        if (result->check.pool[g].elements) result->rms_ratio = fmax(result->rms_ratio, rms);
        result->max_ratio = fmax(result->max_ratio, result->check.max_ratio[g]);
        result->rms_ratio = fmax(result->rms_ratio, result->check.rms_ratio[g]);
    }
}

/* The last sequence with rows on both sides; -1: there is none. */
static int64_t last_sequence(const stw_case *c) {
    int64_t b = c->problem.desc.batch - 1;
    while (b >= 0 && !(c->q[b].used > 0 && c->kv[b].used > 0)) --b;
    return b;
}

static int verify(bench *b, bench_result *result) {
    int guards;
    int64_t sequence = last_sequence(&b->c);
    unsigned char *after = malloc(b->c.bytes);
    stw_status status = after ? run(b, 1) : STW_E_NO_MEMORY;
    if (!status) status = stw_case_device_store(&b->device, after, 0xFF, &guards);
    if (status)
        fail_with(result, "first run", status, stw_last_error());
    else if (sequence >= 0)
        stw_case_sample_judge(&b->c, after, sequence, SAMPLE_ROWS, &result->check, &result->verified);
    result->not_verified = sequence < 0 ? "it is empty" : "its dropout map is not sampled";
    free(after);
    largest_ratios(result);
    return result->check.outcome == STW_CASE_OK;
}

static int open_bench(bench *b, stw_context *context, const stw_problem *problem, bench_result *result) {
    stw_status status = stw_attn_bwd_plan(context, &problem->desc, &b->plan);
    result->status = status;
    if (status) return fail_with(result, "plan", status, stw_last_error());
    stw_case_note_variant(b->plan, &result->check);
    status = stw_case_build_inputs(problem, &b->c);
    result->status = status;
    if (status) return fail_with(result, "data", status, stw_tool_last_error());
    status = stw_case_device_open(context, b->c.bytes, stw_plan_workspace_size(b->plan), &b->device);
    if (!status) status = stw_case_sample_forward(&b->c, context, &b->device);
    if (status) return fail_with(result, "forward", status, stw_last_error());
    b->args = stw_case_args(&b->c, b->device.arena);
    return 1;
}

int bench_run(stw_context *context, const stw_problem *problem, const bench_options *options,
              bench_result *result_out) {
    bench b = {0};
    memset(result_out, 0, sizeof *result_out);
    stw_case_result_clear(&result_out->check);
    result_out->status = problem->op == STW_PROBLEM_ATTN_BWD ? STW_OK : STW_E_INVALID;
    if (result_out->status) return stw_case_fail(&result_out->check, "bench times attn_bwd only");
    stw_problem seeded = *problem;
    if (!seeded.seed) seeded.seed = 1;
    int good = open_bench(&b, context, &seeded, result_out) && verify(&b, result_out) &&
               time_calls(&b, options->seconds, result_out);
    if (good && result_out->median > 0) result_out->tflops = flop_of(&b.c) / result_out->median * 1e-12;
    if (b.device.context) stw_case_device_close(&b.device);
    stw_case_free(&b.c);
    stw_plan_destroy(b.plan);
    return good;
}
