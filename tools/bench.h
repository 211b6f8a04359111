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
    int verified, runs;
    const char *not_verified; /* why, when it is not */
    stw_status status;        /* of the plan or the data, when they failed */
    double median, spread;    /* seconds of one call; distance of the quartiles */
    double tflops;
    double max_ratio, rms_ratio; /* largest of the sampled tensors */
} bench_result;

/* 0: failed, result_out->check.text tells why. */
int bench_run(stw_context *context, const stw_problem *problem, const bench_options *options,
              bench_result *result_out);

#endif
