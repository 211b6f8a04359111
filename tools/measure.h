/* SPDX-License-Identifier: MIT
 *
 * Timing backward calls on a problem too large for the reference as a whole: what bench and tune share. The
 * problem with its data, the library's own forward and buffers of a context; runs of a plan on it, verified
 * on samples or timed. */
#ifndef STW_TOOLS_MEASURE_H
#define STW_TOOLS_MEASURE_H

#include "case.h"

typedef struct stw_measure {
    stw_case c;
    stw_case_device device;
    stw_attn_args args;
    unsigned char *after; /* the arena as downloaded */
} stw_measure;

/* Data, and out and lse by the context's forward. `workspace_bytes`: the largest of the plans to come. The
 * failure is in result_out, its status returned; then nothing is left to close. A problem without a data seed
 * gets 1. */
stw_status stw_measure_open(const stw_problem *problem, stw_context *context, size_t workspace_bytes,
                            stw_measure *measure_out, stw_case_result *result_out);
void stw_measure_close(stw_measure *m);

/* One run of the plan into poisoned gradients and workspace, judged on samples. Returns NULL, or why nothing
 * could be judged; a failure is in *result. */
const char *stw_measure_verify(stw_measure *m, const stw_plan *plan, stw_case_result *result);

/* `calls` calls, then one synchronisation. */
stw_status stw_measure_run(const stw_measure *m, const stw_plan *plan, int calls);

/* Calls in a batch that is long beside its synchronisation; runs some, which warms up. */
stw_status stw_measure_batch(const stw_measure *m, const stw_plan *plan, int *calls_out);

/* GPU: the host's seconds to issue one call, without waiting for it. */
stw_status stw_measure_issue(const stw_measure *m, const stw_plan *plan, double *seconds_out);

/* Sorts. Median, and the distance of the quartiles. */
void stw_measure_summary(double *values, int count, double *median_out, double *spread_out);

/* 2 * (3 D + 2 Dv) for every visible pair of query and key. */
double stw_measure_flop(const stw_case *c);

#endif
