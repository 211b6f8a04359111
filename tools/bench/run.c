/* SPDX-License-Identifier: MIT
 *
 * One problem of `sternway bench`: one run verified on samples, then timed calls (measure.h). */
#include "bench.h"

#include "tools/base/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RUNS_MAX 400
#define RUNS_MIN 5

typedef struct bench_problem { /* one of the two */
    int is_jagged;
    stw_problem attn;
    stw_jagged_problem jagged;
} bench_problem;

static stw_status time_calls(const stw_measure *m, const stw_plan *plan, double seconds, bench_result *result) {
    double times[RUNS_MAX];
    int calls, count = 0;
    int waits = !strcmp(stw_context_arch(m->device.context), "cpu"); /* a call is complete when it returns */
    stw_status status = waits ? STW_OK : stw_measure_issue(m, plan, &result->host);
    if (!status) status = stw_measure_batch(m, plan, &calls);
    double end = stw_tool_seconds() + seconds;
    while (!status && count < RUNS_MAX && (count < RUNS_MIN || stw_tool_seconds() < end)) {
        if (stw_tool_stopped()) {
            result->stopped = 1;
            return STW_OK;
        }
        double begin = stw_tool_seconds();
        status = stw_measure_run(m, plan, calls);
        times[count++] = (stw_tool_seconds() - begin) / calls;
    }
    if (status) {
        stw_verify_fail(&result->check, "run: %s: %s", stw_status_name(status), stw_last_error());
        return status;
    }
    result->runs = count * calls;
    stw_measure_quartiles(times, count, result->quartiles);
    return STW_OK;
}

void bench_largest_ratios(const stw_verify_result *check, double *max_out, double *rms_out) {
    *max_out = fmax(*max_out, fmax(check->out_ratio, check->lse_ratio)); /* forward */
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        double rms = 0;
        stw_pool_pass(&check->pool[g], &rms);
        if (check->pool[g].elements) *rms_out = fmax(*rms_out, rms);
        *max_out = fmax(*max_out, check->max_ratio[g]);
        *rms_out = fmax(*rms_out, check->rms_ratio[g]);
    }
}

static int read_problem(const char *line, bench_problem *p, bench_result *result) {
    p->is_jagged = stw_problem_is_jagged(line);
    stw_status status = p->is_jagged ? stw_problem_jagged_parse(line, &p->jagged) : stw_problem_parse(line, &p->attn);
    if (status) stw_verify_fail(&result->check, "%s", stw_tool_last_error());
    result->malformed = status != STW_OK;
    if (status) return 0;
    if (p->is_jagged && p->jagged.desc.op == STW_JAGGED_ATTENTION) p->jagged.desc.attn = &p->jagged.attn.desc;
    const stw_attn_desc *attn = p->is_jagged ? p->jagged.desc.attn : &p->attn.desc;
    stw_dtype dtype = attn ? attn->dtype : p->jagged.desc.dtype;
    result->is_16bit = dtype == STW_F16 || dtype == STW_BF16;
    return 1;
}

static void measure(const bench_problem *p, const stw_plan *plan, stw_context *forward, double seconds,
                    bench_result *result) {
    stw_measure m = {0};
    result->status = p->is_jagged ? stw_measure_open_jagged(&p->jagged, forward, result->workspace, &m, &result->check)
                                  : stw_measure_open(&p->attn, forward, result->workspace, &m, &result->check);
    if (result->status) return;
    result->not_verified = stw_measure_verify(&m, plan, &result->check);
    bench_largest_ratios(&result->check, &result->max_ratio, &result->rms_ratio);
    result->flop = stw_measure_flop(&m);
    result->bytes = stw_measure_bytes(&m);
    if (result->check.outcome == STW_VERIFY_OK) time_calls(&m, plan, seconds, result);
    stw_measure_close(&m);
}

int bench_run(stw_context *context, stw_context *forward, const char *line, double seconds, bench_result *result_out) {
    bench_problem *p = calloc(1, sizeof *p);
    stw_plan *plan = NULL;
    memset(result_out, 0, sizeof *result_out);
    snprintf(result_out->line, sizeof result_out->line, "%s", line);
    stw_verify_result_clear(&result_out->check);
    if (!p) stw_verify_fail(&result_out->check, "out of memory");
    if (p && read_problem(line, p, result_out)) {
        result_out->status = p->is_jagged                         ? stw_jagged_bwd_plan(context, &p->jagged.desc, &plan)
                             : p->attn.op == STW_PROBLEM_ATTN_FWD ? stw_attn_fwd_plan(context, &p->attn.desc, &plan)
                                                                  : stw_attn_bwd_plan(context, &p->attn.desc, &plan);
        if (result_out->status) {
            stw_verify_fail(&result_out->check, "plan: %s: %s", stw_status_name(result_out->status), stw_last_error());
        } else {
            stw_verify_note_variant(plan, &result_out->check);
            result_out->workspace = stw_plan_workspace_size(plan);
            measure(p, plan, forward, seconds, result_out);
        }
    }
    stw_plan_destroy(plan);
    free(p);
    return result_out->check.outcome == STW_VERIFY_OK;
}
