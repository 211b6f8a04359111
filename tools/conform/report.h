/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: what a run of the suite tells. report.c prints lines,
 * progress, the table of features and the totals, document.c makes the JSON document of it,
 * junit.c writes that as JUnit's XML, merge.c puts the documents of several runs together. */
#ifndef STW_TOOLS_CONFORM_REPORT_H
#define STW_TOOLS_CONFORM_REPORT_H

#include "conform.h"

#define CONFORM_NODE_MAX    48
#define CONFORM_NAME_MAX    96
#define CONFORM_SCHEMA      1
#define CONFORM_REPORT_KIND "sternway conform"

/* Results of a feature, a device or a node; the error ratio closest to its bound, or beyond it. */
typedef struct conform_tally {
    char name[CONFORM_NAME_MAX];
    size_t passed, failed, skipped;
    double max_ratio, rms_ratio; /* -1: none judged */
    char max_of[16], rms_of[16]; /* of which gradient */
    char max_problem[CONFORM_LINE_MAX], rms_problem[CONFORM_LINE_MAX];
} conform_tally;

typedef struct conform_tallies {
    conform_tally *rows; /* in order of appearance */
    size_t count, capacity;
} conform_tallies;

/* The tally of that name, made when there is none; NULL: no memory. */
conform_tally *conform_tally_of(conform_tallies *tallies, const char *name);
void conform_tally_add(conform_tally *tally, stw_verify_outcome outcome);
void conform_tally_ratio(conform_tally *tally, int rms, double ratio, const char *of, const char *problem);
void conform_tallies_print(const char *title, const conform_tallies *tallies);

typedef struct conform_report {
    const conform_target *target;
    const conform_list *list;
    int lines, given, progress; /* a line a case; PROBLEMs of the command line; --progress */
    int verbose, begun;         /* long lines; the first result was printed */
    const char *require, *node;
    char **command;        /* arguments as they came */
    cJSON *cases, *errors; /* cases: NULL when no document is wanted */
    size_t passed, failed, skipped, seen, enlarged, invalid;
    size_t cases_seen; /* PROBLEMs; each has a result for every variant */
    char why[512];     /* the first skip's reason */
    char partial[128]; /* why the run ended early, or "" */
    conform_tallies features, devices;
    conform_pools *pools;
    double began, drawn; /* seconds; of the run, of the last progress line */
} conform_report;

/* report.c. The first two are conform_report_fn's. */
void conform_report_case(void *report, const conform_case *c, int variant, const stw_verify_result *result);
void conform_report_pool(void *report, const conform_case *c, int variant, const stw_verify_result *result);
void conform_report_skip(conform_report *report, const char *what);
/* Where the command was stopped: says so, and marks what there is as partial. The exit status, `exit` elsewhere. */
int conform_report_stop(conform_report *report, int exit);
/* Says it on standard error and notes it for the document. */
void conform_report_error(conform_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Tables and totals; the exit status of the run, `exit` where that says more. */
int conform_report_finish(conform_report *report, int exit);
void conform_report_free(conform_report *report);

/* ---- documents ----------------------------------------------------------------------------------------- */

/* document.c: docs/schema/conform.md describes it. NULL: no memory. Takes `cases` and `errors`. */
cJSON *conform_document(conform_report *report, int exit_status);
/* `forced`: the variant of the table that the context was told to use; "": its choice. */
void conform_document_case(cJSON *cases, const conform_case *c, const char *forced, const stw_verify_result *result);
cJSON *conform_document_tallies(const conform_tallies *tallies);
/* The name of this node: the given one or the host's; NULL: has other characters than letters, digits, ._- */
const char *conform_node_name(const char *given);

extern const char *const conform_outcomes[3]; /* by stw_verify_outcome */

typedef struct conform_outputs {
    int json;                   /* the document on standard output */
    const char *report, *junit; /* files, or NULL */
} conform_outputs;

/* Whether those files can be written, before anything runs. Exit statuses. */
int conform_outputs_check(const conform_outputs *outputs);
/* Writes all that is wanted and deletes the document. Exit status: `exit`, or failed. */
int conform_outputs_write(const conform_outputs *outputs, cJSON *document, int exit);

/* junit.c; for stw_replace_file. */
int conform_junit_write(FILE *to, const void *document);

/* merge.c: the whole of `conform --merge`; `require`: an arch that must have run, or NULL. Exit
 * status. */
int conform_merge(char **files, int count, const char *require, const conform_outputs *outputs);

#endif
