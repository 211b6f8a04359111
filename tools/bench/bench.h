/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: bench.c is the command line, run.c one problem verified and timed,
 * report.c rows and documents, compare.c the comparison with an older document, suites.c
 * the problems and the vendors' figures, cp.c problems over ranks, cp_row.c their rows. */
#ifndef STW_TOOLS_BENCH_H
#define STW_TOOLS_BENCH_H

#include "measure.h"

#include "tools/cp/cp.h"

/* ---- run.c ------------------------------------------------------------------------------------ */

typedef struct bench_result {
    char line[512];
    int is_16bit;
    stw_verify_result check; /* variant; the text of a failure */
    int runs;
    const char *not_verified;    /* NULL, or why it is not */
    stw_status status;           /* of the plan, the data or the forward, when they failed */
    int malformed;               /* the line is no problem that bench takes */
    int stopped;                 /* the command was, before there were times */
    double quartiles[3];         /* seconds of one call; [1] is the median */
    double host;                 /* seconds that the host needs to issue a call; 0 on the CPU */
    size_t workspace;            /* bytes */
    double flop, bytes;          /* of a call; flop 0: the operation is not counted in products */
    double max_ratio, rms_ratio; /* largest of the sampled tensors */
} bench_result;

/* Plans on `context`; data, out and lse by `forward`, a context of the same device that may choose another
 * variant. 0: failed, result_out->check.text tells why. */
int bench_run(stw_context *context, stw_context *forward, const char *line, double seconds, bench_result *result_out);

/* The largest of the sampled tensors, as shares of what is allowed. */
void bench_largest_ratios(const stw_verify_result *check, double *max_out, double *rms_out);

/* ---- suites.c ---------------------------------------------------------------------------------- */

/* The problems of a suite, or NULL: "usual" (a few of everything, by the arch), "fa" (FlashAttention's own
 * benchmark: bf16, 16384 tokens, heads * head_dim 2048), "classes" (one or two of every class of attention problems),
 * "jagged" (the nested operations, by the arch). */
const char *const *bench_suite(const char *name, const char *arch, int *count_out);

/* What the device could do; 0: not known. */
typedef struct bench_peak {
    double tflops;     /* dense products of 16-bit elements, or of any when given */
    double gbs;        /* 1e9 bytes a second of memory */
    int given;         /* tflops is from the command line: for every element type */
    const char *title; /* the device in the vendor's data sheet; NULL: not used   */
} bench_peak;

/* The vendor's figures for a device of that name into what is still 0. */
void bench_peak_by_name(const char *device, bench_peak *peak);

/* ---- compare.c --------------------------------------------------------------------------------- */

typedef enum bench_verdict { BENCH_SAME, BENCH_FASTER, BENCH_SLOWER } bench_verdict;
extern const char *const bench_verdict_names[];

typedef struct bench_old {
    const char *path; /* NULL: nothing to compare with */
    cJSON *document;
    int compared, slower; /* problems so far */
    double log_ratio[3];  /* sums of log(old time / new time): at worst, of medians, at best */
    cJSON *rows, *added;  /* what bench_compare says of each problem; problems that the old one lacks */
} bench_old;

/* Reads a document of `bench --json`. Nonzero exit status: said so on standard error. */
int bench_compare_open(const char *path, bench_old *old_out);
void bench_compare_close(bench_old *old);

/* The older row of that problem or NULL; ratio and verdict go by the quartiles' overlap. */
const cJSON *bench_compare(bench_old *old, const bench_result *r, double *ratio_out, bench_verdict *verdict_out);

/* What there is to say when all are measured, as one object; 1 in *slower_out when a problem or the whole is.
 */
cJSON *bench_compare_end(bench_old *old, const stw_tool_named *now, int *slower_out);

/* ---- report.c ---------------------------------------------------------------------------------- */

typedef enum bench_format { BENCH_TABLE, BENCH_CSV, BENCH_JSON } bench_format;

typedef struct bench_report {
    bench_format format;
    bench_peak peak;
    stw_tool_named named;
    cJSON *document, *rows; /* BENCH_JSON */
    bench_old old;
} bench_report;

void bench_report_begin(bench_report *report);
void bench_report_row(bench_report *report, const bench_result *r);
/* A new object of a document: what every problem has, from its line to the quartiles in seconds. */
cJSON *bench_row_of(const char *line, const char *variant, int runs, const double quartiles[3]);
/* `partial`: why not all was measured, or NULL. Returns 1 when a comparison says slower. */
int bench_report_end(bench_report *report, const char *partial);

/* ---- cp.c, cp_row.c ----------------------------------------------------------------------------- */

enum { BENCH_RANKS_MAX = 64, BENCH_GROUPS_MAX = 1024 };
typedef struct bench_cp {
    int wanted; /* --cp */
    int32_t ranks;
    stw_cp_order order;
    stw_cp_schedule schedule;
    int32_t head_groups;
} bench_cp;
/* Adds a row to the document: what rank 0 measured. */
void bench_cp_row(bench_report *report, const cp_row *row, const cp_whole *whole, const cp_times *times, int32_t ranks);
/* The exit status. */
int bench_cp_run(const bench_cp *cp, const stw_tool_device *device, char **given, int given_count, double seconds,
                 bench_report *report);

#endif
