/* SPDX-License-Identifier: MIT
 *
 * One problem of `sternway bench`: one run verified on samples, then timed calls (measure.h). */
#include "bench.h"

#include "measure.h"

#include <math.h>
#include <string.h>

#define RUNS_MAX 400
#define RUNS_MIN 5

static stw_status time_calls(const stw_measure *m, const stw_plan *plan, double seconds,
                             bench_result *result) {
    double times[RUNS_MAX];
    int calls, count = 0;
    int waits = !strcmp(stw_context_arch(m->device.context), "cpu"); /* a call is complete when it returns */
    stw_status status = waits ? STW_OK : stw_measure_issue(m, plan, &result->host);
    if (!status) status = stw_measure_batch(m, plan, &calls);
    double end = stw_tool_seconds() + seconds;
    while (!status && count < RUNS_MAX && (count < RUNS_MIN || stw_tool_seconds() < end)) {
        double begin = stw_tool_seconds();
        status = stw_measure_run(m, plan, calls);
        times[count++] = (stw_tool_seconds() - begin) / calls;
    }
    if (status) {
        stw_case_fail(&result->check, "stw_attn_bwd: %s: %s", stw_status_name(status), stw_last_error());
        return status;
    }
    result->runs = count * calls;
    stw_measure_summary(times, count, &result->median, &result->spread);
    if (result->median > 0) result->tflops = stw_measure_flop(&m->c) / result->median * 1e-12;
    return STW_OK;
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

int bench_run(stw_context *context, stw_context *forward, const stw_problem *problem,
              const bench_options *options, bench_result *result_out) {
    stw_measure m = {0};
    stw_plan *plan = NULL;
    memset(result_out, 0, sizeof *result_out);
    stw_case_result_clear(&result_out->check);
    result_out->status = problem->op == STW_PROBLEM_ATTN_BWD ? STW_OK : STW_E_INVALID;
    if (result_out->status) return stw_case_fail(&result_out->check, "bench times attn_bwd only");
    result_out->status = stw_attn_bwd_plan(context, &problem->desc, &plan);
    if (result_out->status)
        return stw_case_fail(&result_out->check, "plan: %s: %s", stw_status_name(result_out->status),
                             stw_last_error());
    stw_case_note_variant(plan, &result_out->check);
    result_out->workspace = stw_plan_workspace_size(plan);
    result_out->status = stw_measure_open(problem, forward, result_out->workspace, &m, &result_out->check);
    if (!result_out->status) {
        result_out->not_verified = stw_measure_verify(&m, plan, &result_out->check);
        largest_ratios(result_out);
        if (result_out->check.outcome == STW_CASE_OK) time_calls(&m, plan, options->seconds, result_out);
        stw_measure_close(&m);
    }
    stw_plan_destroy(plan);
    return result_out->check.outcome == STW_CASE_OK;
}
