/* SPDX-License-Identifier: MIT
 *
 * Private to tune*.c: what was measured of a problem, and how rules follow from it. tune.c is the command
 * line and the table, tune_run.c measures, tune_rules.c writes the rules, tune_list.c holds the usual
 * problems. */
#ifndef STW_TOOLS_TUNE_H
#define STW_TOOLS_TUNE_H

#include "case.h"
#include "dispatch/tables.h"
#include "tool.h"

#define TUNE_VARIANTS_MAX 128

/* One device, and a context for each variant of its table, which the environment forces. */
typedef struct tune_target {
    stw_context *rules;                     /* chooses by the rules in force */
    stw_context *forced[TUNE_VARIANTS_MAX]; /* NULL: not opened              */
    const stw_attn_table *table;
    stw_tool_named named; /* for the provenance */
} tune_target;

typedef struct tune_timing {
    const stw_variant *variant;
    stw_plan *plan; /* while measuring */
    int runs;       /* 0: not timed; then `text` says why */
    double median, spread;
    char text[480];
} tune_timing;

/* A problem and the variants that could run it; [0] is the one that the rules in force choose. */
typedef struct tune_point {
    char line[512];
    stw_attn_desc desc;
    int deterministic;
    double flop;
    tune_timing *timings;
    size_t count;
    int wrong; /* variants whose results were wrong */
} tune_point;

/* ---- tune_run.c ---------------------------------------------------------------------------------------- */

/* Errors: as stw_context_create. */
stw_status tune_open(const stw_context_opts *opts, tune_target *target_out);
void tune_close(tune_target *target);

/* Plans every variant, verifies and times those of the problem's head-dim class. Nonzero exit status: the
 * problem could not be measured, said so on standard error; point_out is empty. */
int tune_measure(const tune_target *target, const char *line, double seconds, tune_point *point_out);
void tune_point_free(tune_point *point);

/* ---- tune_rules.c -------------------------------------------------------------------------------------- */

/* Index of the fastest timed variant, 0 when none is timed. */
size_t tune_best(const tune_point *point);

typedef struct tune_report {
    const tune_target *target;
    const tune_point *points;
    size_t count;
    double min_gain; /* 0.01: a rule must gain 1% */
    const char *date;
} tune_report;

/* Writes the rules, with what was measured as comments, in the form that the tables and STERNWAY_TUNING files
 * share (user: a tune_report). Returns 0, or -1 when writing failed or memory ran out. */
int tune_write_rules(FILE *to, const void *user);

/* ---- tune_list.c --------------------------------------------------------------------------------------- */

/* The usual problems of an arch, one at a time; 0 behind the last. */
int tune_usual(const char *arch, size_t index, char *line, size_t capacity);

#endif
