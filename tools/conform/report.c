/* SPDX-License-Identifier: MIT
 *
 * What a run of the suite prints (report.h): a line a case, progress, the table of features with
 * their worst errors, devices, totals; and what decides its exit status. Called by conform.c. */
#include "report.h"

#include "tools/base/stop.h"
#include "tools/verify/jagged.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENLARGED_FREE  4 /* results that may need 8 data sets in any run, and one in so many further */
#define ENLARGED_SHARE 500
#define DRAW_SECONDS   0.2 /* between progress lines on a terminal */
#define TELL_SECONDS   10  /* elsewhere, with --progress */

const char *const conform_outcomes[3] = {"ok", "FAIL", "skip"};

/* ---- tallies ------------------------------------------------------------------------------------------ */

conform_tally *conform_tally_of(conform_tallies *t, const char *name) {
    for (size_t i = t->count; i > 0; --i) /* mostly the last */
        if (!strncmp(t->rows[i - 1].name, name, CONFORM_NAME_MAX - 1)) return &t->rows[i - 1];
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 64;
        conform_tally *grown = realloc(t->rows, capacity * sizeof *grown);
        if (!grown) return NULL;
        t->rows = grown;
        t->capacity = capacity;
    }
    conform_tally *row = &t->rows[t->count++];
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", name);
    row->max_ratio = row->rms_ratio = -1;
    return row;
}

void conform_tally_add(conform_tally *tally, stw_verify_outcome outcome) {
    if (!tally) return;
    tally->passed += outcome == STW_VERIFY_OK;
    tally->failed += outcome == STW_VERIFY_FAIL;
    tally->skipped += outcome == STW_VERIFY_SKIP;
}

void conform_tally_ratio(conform_tally *tally, int rms, double ratio, const char *of, const char *problem) {
    if (isnan(ratio)) ratio = INFINITY;
    if (!tally || ratio < 0 || ratio <= (rms ? tally->rms_ratio : tally->max_ratio)) return;
    *(rms ? &tally->rms_ratio : &tally->max_ratio) = ratio;
    snprintf(rms ? tally->rms_of : tally->max_of, sizeof tally->max_of, "%s", of);
    snprintf(rms ? tally->rms_problem : tally->max_problem, sizeof tally->max_problem, "%s", problem);
}

/* In six columns, unless it is absurd. */
static int add_ratio(char *text, size_t capacity, double ratio) {
    if (ratio < 0) return snprintf(text, capacity, "%6s", "-");
    return snprintf(text, capacity, ratio < 100 ? "%6.3f" : "%6.4g", ratio);
}

#define NAME_COLUMNS 20

void conform_tallies_print(const char *title, const conform_tallies *t) {
    if (!t->count) return;
    printf("%-*s %7s %7s %7s  %-15s  %s\n", NAME_COLUMNS, title, "passed", "failed", "skipped", "worst max error",
           "RMS");
    for (size_t i = 0; i < t->count; ++i) {
        const conform_tally *row = &t->rows[i];
        char max[24], rms[24];
        add_ratio(max, sizeof max, row->max_ratio);
        add_ratio(rms, sizeof rms, row->rms_ratio);
        if (strlen(row->name) > NAME_COLUMNS) printf("%s\n%*s", row->name, NAME_COLUMNS, "");
        else printf("%-*s", NAME_COLUMNS, row->name);
        printf(" %7zu %7zu %7zu  %s %-8s  %s%s%s\n", row->passed, row->failed, row->skipped, max,
               row->max_ratio >= 0 ? row->max_of : "", rms, row->rms_ratio >= 0 ? " " : "",
               row->rms_ratio >= 0 ? row->rms_of : "");
    }
}

/* ---- cases -------------------------------------------------------------------------------------------- */

static const char *device_name(char text[CONFORM_NAME_MAX], const stw_verify_result *r) {
    snprintf(text, CONFORM_NAME_MAX, "device %d", r->on_device - 1);
    return text;
}

static void tally(conform_report *report, const conform_case *c, const stw_verify_result *r) {
    char name[CONFORM_NAME_MAX];
    const char *const *grads = jagged_names_of(c->line);
    conform_tally *feature = conform_tally_of(&report->features, conform_row_name(c->row));
    conform_tally *device = r->on_device ? conform_tally_of(&report->devices, device_name(name, r)) : NULL;
    report->passed += r->outcome == STW_VERIFY_OK;
    report->failed += r->outcome == STW_VERIFY_FAIL;
    report->skipped += r->outcome == STW_VERIFY_SKIP;
    report->enlarged += r->data_sets > 1;
    conform_tally_add(feature, r->outcome);
    conform_tally_add(device, r->outcome);
    for (int g = 0; g < STW_GRAD_COUNT; ++g)
        for (int rms = 0; rms < 2; ++rms) {
            double ratio = rms ? r->rms_ratio[g] : r->max_ratio[g];
            conform_tally_ratio(feature, rms, ratio, grads[g], c->line);
            conform_tally_ratio(device, rms, ratio, grads[g], c->line);
        }
}

/* "max=0.43:dk rms=0.81:dq": the tensor closest to its bound. */
static void add_worst(stw_text *text, const char *name, const double *ratio, const char *const *grads) {
    int worst = 0;
    for (int g = 1; g < STW_GRAD_COUNT; ++g)
        if (ratio[g] > ratio[worst]) worst = g;
    if (ratio[worst] >= 0) stw_text_add(text, " %s=%.3f:%s", name, ratio[worst], grads[worst]);
    else stw_text_add(text, " %s=-", name);
}

static double worst_of(const double *ratio) {
    double worst = -1;
    for (int g = 0; g < STW_GRAD_COUNT; ++g)
        if (!(ratio[g] <= worst)) worst = ratio[g];
    return worst;
}

/* "ok  0.432  0.811 PROBLEM": what an eye runs over. */
static void print_short(conform_report *report, const conform_case *c, const stw_verify_result *r) {
    char line[CONFORM_LINE_MAX + 300], max[24], rms[24];
    if (!report->begun) puts("      max    rms  (1: all that is allowed)");
    report->begun = 1;
    add_ratio(max, sizeof max, worst_of(r->max_ratio));
    add_ratio(rms, sizeof rms, worst_of(r->rms_ratio));
    int several = report->target->variant_count > 1 && r->variant[0];
    snprintf(line, sizeof line, "ok %s %s %s%s%s", max, rms, c->line, several ? " " : "", several ? r->variant : "");
    stw_tool_print_line(line, 17);
}

static void print_case(conform_report *report, const conform_case *c, const stw_verify_result *r) {
    char figures[200], line[CONFORM_LINE_MAX + sizeof r->text + 500];
    if (r->outcome == STW_VERIFY_OK && !report->verbose) {
        print_short(report, c, r);
        return;
    }
    stw_text text = stw_text_in(figures, sizeof figures);
    add_worst(&text, "max", r->max_ratio, jagged_names_of(c->line));
    add_worst(&text, "rms", r->rms_ratio, jagged_names_of(c->line));
    if (r->out_ratio >= 0) stw_text_add(&text, " out=%.3f", r->out_ratio);
    if (r->lse_ratio >= 0) stw_text_add(&text, " lse=%.3f", r->lse_ratio);
    if (strncmp(c->line, "pool:", 5)) stw_text_add(&text, " seed=%lld", (long long)conform_seed_of(c->line));
    if (r->on_device) stw_text_add(&text, " device=%d", r->on_device - 1);
    snprintf(line, sizeof line, "%s %s %s %s%s%s%s", conform_outcomes[r->outcome], conform_row_name(c->row), c->line,
             r->variant[0] ? r->variant : "-", figures, r->text[0] ? " : " : "", r->text);
    stw_tool_print_line(line, 5);
}

/* The progress line stays where results go to a file or a pipe; on their own terminal it makes room. */
static void take(conform_report *report, const conform_case *c, int variant, const stw_verify_result *r) {
    tally(report, c, r);
    if (report->cases) conform_document_case(report->cases, c, report->target->variants[variant], r);
    if (!report->lines) return;
    if (isatty(STDOUT_FILENO)) {
        stw_tool_progress_end();
        report->drawn = 0; /* and comes back below the result */
    }
    print_case(report, c, r);
    fflush(stdout); /* a reader who has gone is noticed, and a result that is told is not lost */
}

/* A line that the next one overwrites on a terminal; with --progress elsewhere one of its own now and then.
 */
static void progress(conform_report *report) {
    double now = stw_tool_seconds();
    size_t all = report->list->count * (size_t)report->target->variant_count;
    int terminal = isatty(STDERR_FILENO), last = report->seen == all;
    if (!terminal && !report->progress) return;
    if (!last && now - report->drawn < (terminal ? DRAW_SECONDS : TELL_SECONDS)) return;
    report->drawn = now;
    double spent = now - report->began, left = spent / (double)report->seen * (double)(all - report->seen);
    if (terminal && !last)
        stw_tool_progress("conform %s: %zu of %zu results, %zu failed, %.0f s, about %.0f s left", report->target->arch,
                          report->seen, all, report->failed, spent, left);
    else if (!terminal)
        fprintf(stderr, "conform %s: %zu of %zu results, %zu failed, %.0f s\n", report->target->arch, report->seen, all,
                report->failed, spent);
}

void conform_report_case(void *user, const conform_case *c, int variant, const stw_verify_result *r) {
    conform_report *report = user;
    report->cases_seen += variant == 0;
    if (r->invalid && report->given) { /* the command line is wrong, not the library */
        if (!variant) conform_report_error(report, "%s: %s", c->line, r->text);
        report->invalid++;
        return;
    }
    if (r->outcome == STW_VERIFY_SKIP && !report->why[0]) snprintf(report->why, sizeof report->why, "%s", r->text);
    report->seen++;
    conform_pools_add(report->pools, c->row, variant, r);
    take(report, c, variant, r);
    progress(report);
}

/* A pool counts as a result of its own, and not as a case that was seen. */
void conform_report_pool(void *user, const conform_case *c, int variant, const stw_verify_result *r) {
    take(user, c, variant, r);
}

void conform_report_skip(conform_report *report, const char *what) {
    report->skipped++;
    if (!report->why[0]) snprintf(report->why, sizeof report->why, "%.*s", (int)sizeof report->why - 1, what);
    if (report->lines) {
        char line[1300];
        snprintf(line, sizeof line, "skip %.1290s", what);
        stw_tool_print_line(line, 5);
    }
    if (!report->cases) return;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "outcome", "skip");
    cJSON_AddStringToObject(item, "text", what);
    cJSON_AddItemToArray(report->cases, item);
}

int conform_report_stop(conform_report *report, int exit) {
    const char *signal = stw_tool_stopped();
    size_t all = report->list->count;
    if (!signal) return exit;
    if (report->cases_seen < all)
        snprintf(report->partial, sizeof report->partial, "stopped by %s: %zu of %zu problems did not run", signal,
                 all - report->cases_seen, all);
    else snprintf(report->partial, sizeof report->partial, "stopped by %s before its pools were judged", signal);
    conform_report_error(report, "%s", report->partial);
    return stw_tool_stop_status(exit);
}

void conform_report_error(conform_report *report, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    stw_tool_error("conform", NULL, "%s", text);
    if (report->errors) cJSON_AddItemToArray(report->errors, cJSON_CreateString(text));
}

/* ---- the end ------------------------------------------------------------------------------------------ */

static void print_totals(const conform_report *report, size_t ran) {
    int only_given = report->features.count == 1 && !strcmp(report->features.rows[0].name, "given");
    if (!only_given) conform_tallies_print("feature", &report->features);
    conform_tallies_print("device", &report->devices);
    if (ran)
        printf("%zu distinct problem%s on %d variant%s of %s\n", report->cases_seen, STW_TOOL_S(report->cases_seen),
               report->target->variant_count, STW_TOOL_S(report->target->variant_count), report->target->arch);
    if (report->enlarged)
        printf("%zu result%s judged on 8 data sets instead of one\n", report->enlarged, STW_TOOL_S(report->enlarged));
    printf("%zu passed, %zu failed, %zu skipped%s%s\n", report->passed, report->failed, report->skipped,
           report->partial[0] ? ", partial: " : "", report->partial);
}

int conform_report_finish(conform_report *report, int exit) {
    size_t ran = report->passed + report->failed;
    int missing = report->require && (strcmp(report->require, report->target->arch) || report->seen == 0);
    stw_tool_progress_end();
    /* A larger sample is for the odd small problem; a backend that lives on it is not accurate. */
    if (report->enlarged > ENLARGED_FREE + report->seen / ENLARGED_SHARE) {
        conform_report_error(report, "%zu of %zu results needed 8 data sets: more than 1 in %d", report->enlarged,
                             report->seen, ENLARGED_SHARE);
        report->failed++;
    }
    if (!exit && report->invalid) exit = STW_EXIT_USAGE;
    if (!exit && !ran) {
        conform_report_error(report, "nothing ran: %s", report->why[0] ? report->why : "every case was left out");
        exit = STW_EXIT_FAILED;
    }
    if (missing) conform_report_error(report, "--require %s: that arch ran no case", report->require);
    if (report->lines) print_totals(report, ran);
    return exit ? exit : report->failed || missing ? STW_EXIT_FAILED : STW_EXIT_OK;
}

void conform_report_free(conform_report *report) {
    free(report->pools);
    free(report->features.rows);
    free(report->devices.rows);
    cJSON_Delete(report->cases);
    cJSON_Delete(report->errors);
}
