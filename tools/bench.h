/* SPDX-License-Identifier: MIT
 *
 * Private to bench*.c: one problem verified and timed. */
#ifndef STW_TOOLS_BENCH_H
#define STW_TOOLS_BENCH_H

#include "case.h"
#include "tool.h"

typedef struct bench_options {
    double seconds; /* of timing a problem */
} bench_options;

typedef struct bench_result {
    stw_case_result check; /* variant; the text of a failure */
    int runs;
    const char *not_verified; /* NULL, or why it is not */
    stw_status status;        /* of the plan, the data or the forward, when they failed */
    double median, spread;    /* seconds of one call; distance of the quartiles */
    double host;              /* seconds that the host needs to issue a call; 0 on the CPU */
    size_t workspace;         /* bytes */
    double tflops;
    double max_ratio, rms_ratio; /* largest of the sampled tensors */
} bench_result;

/* Plans on `context`; data, out and lse by `forward`, a context of the same device that may choose another
 * variant. 0: failed, result_out->check.text tells why. */
int bench_run(stw_context *context, stw_context *forward, const stw_problem *problem,
              const bench_options *options, bench_result *result_out);

/* The problems of a suite, or NULL: "usual" (a few of everything, by the arch), "fa" (FlashAttention's own
 * benchmark: bf16, 16384 tokens, heads * head_dim 2048). */
const char *const *bench_suite(const char *name, const char *arch, int *count_out);

#endif
