/* SPDX-License-Identifier: MIT
 *
 * Timing calls, mostly backward ones, on a problem too large for the reference as a whole: what bench and tune
 * share. The problem with its data, the library's own forward and buffers of a context; runs of a plan on it,
 * verified on samples or timed. */
#ifndef STW_TOOLS_BENCH_MEASURE_H
#define STW_TOOLS_BENCH_MEASURE_H

#include "tools/base/tool.h"
#include "tools/verify/verify.h"
#include "tools/verify/jagged.h"

/* What a report says of the machine it was made on. */
typedef struct stw_tool_named {
    char backend[16], arch[32], device[128];
    char driver[48]; /* of the kernel module; "" where it is not known, or there is none */
    char date[24];   /* UTC, now: 2026-11-21T09:30:00Z */
} stw_tool_named;
void stw_tool_name_device(stw_context *context, stw_tool_named *named_out);

typedef enum stw_measure_kind {
    STW_MEASURE_ATTN,
    STW_MEASURE_JAGGED,
    STW_MEASURE_JAGGED_ATTN /* the case is that of the packed problem */
} stw_measure_kind;

typedef struct stw_measure {
    stw_measure_kind kind;
    stw_verify_case c;    /* of attention */
    jagged_verify_case j; /* else         */
    stw_verify_device device;
    stw_attn_args args;
    stw_jagged_args jagged_args;
    void *lengths;        /* NULL, or the offsets of nested attention in int64 */
    unsigned char *after; /* the arena as downloaded */
} stw_measure;

/* Data, and out and lse by the context's forward. `workspace_bytes`: the largest of the plans to come. The
 * failure is in result_out, its status returned; then nothing is left to close. A problem without a data seed
 * gets 1. */
stw_status stw_measure_open(const stw_problem *problem, stw_context *context, size_t workspace_bytes,
                            stw_measure *measure_out, stw_verify_result *result_out);
void stw_measure_close(stw_measure *m);

/* The same of a nested operation; the context's forward is used by attention alone. */
stw_status stw_measure_open_jagged(const stw_jagged_problem *problem, stw_context *context, size_t workspace_bytes,
                                   stw_measure *measure_out, stw_verify_result *result_out);

/* One run of the plan into poisoned gradients and workspace, judged on samples. Returns NULL, or why nothing
 * could be judged; a failure is in *result. */
const char *stw_measure_verify(stw_measure *m, const stw_plan *plan, stw_verify_result *result);

/* `calls` calls, then one synchronisation. */
stw_status stw_measure_run(const stw_measure *m, const stw_plan *plan, int calls);

/* Calls in a batch that is long beside its synchronisation; runs some, which warms up. */
stw_status stw_measure_batch(const stw_measure *m, const stw_plan *plan, int *calls_out);

/* GPU: the host's seconds to issue one call, without waiting for it. */
stw_status stw_measure_issue(const stw_measure *m, const stw_plan *plan, double *seconds_out);

/* Sorts the values. A quarter of them lies below the first, the second is the median. */
void stw_measure_quartiles(double *values, int count, double quartiles_out[3]);

/* Attention: 2 * (3 D + 2 Dv), of a forward 2 * (D + Dv), for every visible pair of query and key. Nested: 2 for every
 * product of matmul and linear; 0 for the others. */
double stw_measure_flop(const stw_measure *m);

/* Every input read once, every output written once, and read where it is added to. */
double stw_measure_bytes(const stw_measure *m);

#endif
