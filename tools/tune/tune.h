/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: what was measured of a problem, and how rules follow from it. tune.c is the command
 * line, report.c the table, run.c measures (where there is only an emulator, it counts), model.c says what need not
 * be timed, rules.c writes the rules, list.c holds the usual problems. */
#ifndef STW_TOOLS_TUNE_H
#define STW_TOOLS_TUNE_H

#include "tools/bench/measure.h"
#include "tools/base/variants.h"

#define TUNE_VARIANTS_MAX 128

/* One device, and a context for each variant of its table, which the environment forces. */
typedef struct tune_target {
    stw_context *rules;                     /* chooses by the rules in force */
    stw_context *forced[TUNE_VARIANTS_MAX]; /* NULL: not opened              */
    const stw_tool_table *table;
    stw_tool_named named; /* for the provenance */
    uint32_t units;       /* multiprocessors of the device; 0: not known */
    int all;              /* nothing is pruned */
    /* NULL, or the device is an emulator: its counters (run.c), and no time is taken. */
    void (*counts)(uint64_t *);
} tune_target;

typedef struct tune_timing {
    const stw_tool_variant *variant;
    stw_plan *plan;        /* while measuring */
    int runs;              /* 0: not timed; then `text` says why */
    int pruned;            /* the model's doing */
    double median, spread; /* seconds; on an emulator SIMD cycles, an estimate */
    double matrix, issue;  /* on an emulator: cycles of the matrix units, of issuing all else */
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
    int wrong;   /* variants whose results were wrong */
    int stopped; /* the command was, before all were timed */
} tune_point;

/* ---- run.c ---------------------------------------------------------------------------------------- */

/* Errors: as stw_context_create. */
stw_status tune_open(const stw_context_opts *opts, tune_target *target_out);
void tune_close(tune_target *target);

/* Plans every variant, verifies and times those that the model does not rule out. Nonzero exit status: the
 * problem could not be measured, said so on standard error; point_out is empty. It is empty but for `stopped` as well
 * where the command was stopped meanwhile. */
int tune_measure(const tune_target *target, const char *line, double seconds, tune_point *point_out);
void tune_point_free(tune_point *point);

/* ---- model.c -------------------------------------------------------------------------------------- */

/* The part of a multiprocessor that CTAs of the variant can fill, by shared memory, registers and warps; 1: all.
 * smem_kb: what a CTA of the device can have at least. */
double tune_model_fill(const stw_tool_variant *variant, uint32_t smem_kb, int is_cpu);

/* Marks as pruned what cannot win: see model.c. The chosen one, [0], stays. */
void tune_model_prune(const tune_target *target, tune_point *point);

/* ---- report.c ------------------------------------------------------------------------------------- */

typedef enum tune_format { TUNE_TABLE, TUNE_CSV, TUNE_JSON } tune_format;

void tune_print_head(const tune_target *target, tune_format format);
void tune_print_point(const tune_target *target, tune_format format, const tune_point *point);
cJSON *tune_json_head(const tune_target *target);
void tune_add_json(const tune_target *target, cJSON *points, const tune_point *point);

/* ---- rules.c -------------------------------------------------------------------------------------- */

/* Index of the fastest timed variant, 0 when none is timed. */
size_t tune_best(const tune_point *point);

typedef struct tune_report {
    const tune_target *target;
    const tune_point *points;
    size_t count;
    double min_gain;     /* 0.01: a rule must gain 1% */
    const char *partial; /* why not all was measured, or NULL */
} tune_report;

/* Writes the rules, with what was measured as comments, in the form that the tables and STERNWAY_TUNING files
 * share (user: a tune_report). Returns 0, or -1 when writing failed or memory ran out. */
int tune_write_rules(FILE *to, const void *user);

/* ---- list.c --------------------------------------------------------------------------------------- */

/* The usual problems of an arch, one at a time, small ones for an emulator; 0 behind the last. */
int tune_usual(const char *arch, int emulated, size_t index, char *line, size_t capacity);

#endif
