/* SPDX-License-Identifier: MIT
 *
 * `sternway tune`: times every variant of an arch's tuning table on problems, and writes the rules that
 * follow. The command line and the table (tune.h lists the other parts). */
#include "tune.h"

#include "replace_file.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEY_CSV = 600, KEY_JSON, KEY_SECONDS, KEY_GAIN };

typedef struct settings {
    stw_tool_device device;
    double seconds, min_gain;
    const char *output, *filter;
    int csv, json;
    char **given;
    int given_count;
} settings;

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"output", 'o', "FILE", 0, "write the rules to FILE, whole or not at all (else they end standard output)",
     0},
    {"seconds", KEY_SECONDS, "S", 0, "time a variant gets on a problem (default 0.2)", 0},
    {"min-gain", KEY_GAIN, "PERCENT", 0,
     "what a variant must gain over the present rule's for a rule (default 2)", 0},
    {"filter", 'f', "PATTERN", 0,
     "of the usual problems those that hold this text; *, ?, [] as in file names", 0},
    {"csv", KEY_CSV, NULL, 0, "the table as comma-separated values; rules only with -o", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document", 0},
    {0}};

static double number(const char *text, double low, struct argp_state *state) {
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || !(value >= low) || value > 1e6)
        argp_error(state, "'%.40s' is not a number from %g to 1e6", text, low);
    return value;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case STW_KEY_BACKEND: s->device.backend = text; break;
    case STW_KEY_ARCH: s->device.arch = text; break;
    case KEY_SECONDS: s->seconds = number(text, 1e-6, state); break;
    case KEY_GAIN: s->min_gain = number(text, 0, state) / 100; break;
    case KEY_CSV: s->csv = 1; break;
    case KEY_JSON: s->json = 1; break;
    case 'o': s->output = text; break;
    case 'f': s->filter = text; break;
    case ARGP_KEY_ARGS:
        s->given = state->argv + state->next;
        s->given_count = state->argc - state->next;
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

/* How much faster than the variant of the rules in force; 0: not known. */
static double gain_of(const tune_point *point, const tune_timing *t) {
    return t->runs && point->timings[0].runs ? point->timings[0].median / t->median : 0;
}

static void print_point(const settings *s, const char *arch, const tune_point *point) {
    size_t best = tune_best(point);
    if (!s->csv) printf("%s\n", point->line);
    for (size_t i = 0; i < point->count; ++i) {
        const tune_timing *t = &point->timings[i];
        double tflops = t->runs && t->median > 0 ? point->flop / t->median * 1e-12 : 0;
        if (s->csv)
            printf("%s,%s,%s,%s,%d,%.6f,%.6f,%.4f,%.4f,\"%s\"\n", point->line, arch, t->variant->id,
                   i ? "no" : "yes", t->runs, t->median * 1e3, t->spread * 1e3, tflops, gain_of(point, t),
                   t->text);
        else if (t->runs)
            printf("%10.4f %9.4f %8.2f %7.3f  %s%s%s\n", t->median * 1e3, t->spread * 1e3, tflops,
                   gain_of(point, t), t->variant->id, i ? "" : " (now)", i == best ? " *" : "");
        else
            printf("%10s %9s %8s %7s  %s%s: %s\n", "-", "-", "-", "-", t->variant->id, i ? "" : " (now)",
                   t->text);
    }
    fflush(stdout);
}

static void add_json(cJSON *points, const tune_point *point) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "problem", point->line);
    cJSON *rows = cJSON_AddArrayToObject(item, "variants");
    for (size_t i = 0; i < point->count; ++i) {
        const tune_timing *t = &point->timings[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "variant", t->variant->id);
        cJSON_AddBoolToObject(row, "chosen_now", i == 0);
        cJSON_AddNumberToObject(row, "runs", t->runs);
        if (t->runs) {
            cJSON_AddNumberToObject(row, "median_ms", t->median * 1e3);
            cJSON_AddNumberToObject(row, "iqr_ms", t->spread * 1e3);
            cJSON_AddNumberToObject(row, "tflops", t->median > 0 ? point->flop / t->median * 1e-12 : 0);
        } else {
            cJSON_AddStringToObject(row, "not_timed", t->text);
        }
        cJSON_AddItemToArray(rows, row);
    }
    cJSON_AddItemToArray(points, item);
}

/* ---- the command -----------------------------------------------------------------------------------------
 */

/* The problems to measure: given, or the usual ones that the filter keeps. NULL when memory ran out. */
static char **make_list(const settings *s, const char *arch, size_t *count_out) {
    char line[128], pattern[300];
    size_t usual = 0, count = 0;
    snprintf(pattern, sizeof pattern, "*%.280s*", s->filter ? s->filter : "");
    while (tune_usual(arch, usual, line, sizeof line)) ++usual;
    char **list = calloc(usual + (size_t)s->given_count + 1, sizeof *list);
    for (int i = 0; list && i < s->given_count; ++i) list[count++] = strdup(s->given[i]);
    for (size_t i = 0; list && !s->given_count && i < usual; ++i) {
        tune_usual(arch, i, line, sizeof line);
        if (!fnmatch(pattern, line, 0)) list[count++] = strdup(line);
    }
    *count_out = count;
    return list;
}

static int write_output(const settings *s, const tune_report *report, cJSON *document) {
    char error[STW_REPLACE_ERROR_MAX], *text = NULL;
    size_t size = 0;
    if (s->output && stw_replace_file(s->output, tune_write_rules, report, error)) {
        stw_tool_error("tune", s->output, "%s", error);
        return STW_EXIT_FAILED;
    }
    FILE *memory = open_memstream(&text, &size);
    int failed = !memory || tune_write_rules(memory, report);
    if (memory) failed |= fclose(memory);
    if (failed)
        stw_tool_error("tune", NULL, "out of memory");
    else if (document)
        cJSON_AddItemToObject(document, "rules", stw_tool_json_lines(text));
    else if (!s->output && !s->csv)
        printf("\n%s", text);
    free(text);
    return failed ? STW_EXIT_FAILED : STW_EXIT_OK;
}

static int measure_all(const settings *s, const tune_target *target, char **list, size_t count) {
    tune_point *points = calloc(count + 1, sizeof *points);
    cJSON *document = s->json ? cJSON_CreateObject() : NULL;
    cJSON *rows = document ? cJSON_AddArrayToObject(document, "problems") : NULL;
    int exit = points ? STW_EXIT_OK : STW_EXIT_FAILED;
    size_t measured = 0;
    char date[16] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%d", &utc);
    if (s->csv) printf("problem,arch,variant,chosen_now,runs,median_ms,iqr_ms,tflops,gain,text\n");
    if (!s->csv && !s->json) printf("%10s %9s %8s %7s  variant\n", "median ms", "IQR ms", "TFLOP/s", "gain");
    for (size_t i = 0; points && i < count; ++i) {
        tune_point *point = &points[measured];
        stw_tool_progress("%zu of %zu: %s", i + 1, count, list[i]);
        int one = tune_measure(target, list[i], s->seconds, point);
        stw_tool_progress_end();
        if (one > exit) exit = one;
        if (one) continue;
        ++measured;
        int untimed = !point->timings[tune_best(point)].runs;
        if ((point->wrong || untimed) && !exit) exit = STW_EXIT_FAILED;
        if (rows)
            add_json(rows, point);
        else
            print_point(s, target->table->arch, point);
    }
    const tune_report report = {target, points, measured, s->min_gain, date};
    if (measured && write_output(s, &report, document)) exit = STW_EXIT_FAILED;
    if (document) stw_tool_print_json(document);
    for (size_t i = 0; i < measured; ++i) tune_point_free(&points[i]);
    free(points);
    return exit;
}

static int check_output(const char *path) {
    char error[STW_REPLACE_ERROR_MAX];
    char *target = path ? stw_replace_target(path, error) : NULL;
    if (path && !target) stw_tool_error("tune", path, "%s", error);
    free(target);
    return path && !target ? STW_EXIT_USAGE : STW_EXIT_OK;
}

static const char help[] =
    "Times every variant of the arch's tuning table on problems and prints STW_RULE rows for what is faster "
    "than the "
    "rules in force.\v"
    "Without PROBLEMs a list for the arch is measured. Every variant is verified on samples against float64 "
    "before it "
    "is timed; (now) marks the one that the rules in force choose, * the fastest. The rows go into a file "
    "that "
    "STERNWAY_TUNING names, or in front of the rows of common/tuning/attn_bwd.ARCH.def. STERNWAY_VARIANT is "
    "ignored.\n"
    "Exit status: 1 when a variant's results were wrong (it gets no rule), a problem could not be timed or "
    "the machine "
    "failed, 2 when a PROBLEM or an option is wrong; what could be measured is reported in all cases.";

static const struct argp parser = {options, parse, "[PROBLEM...]", help, NULL, NULL, NULL};

int stw_tool_tune(int argc, char **argv) {
    settings s = {.seconds = 0.2, .min_gain = 0.02};
    tune_target target;
    size_t count = 0;
    int exit = stw_tool_parse(&parser, argc, argv, &s);
    if (!exit) exit = stw_tool_device_opts("tune", &s.device);
    if (!exit) exit = check_output(s.output);
    if (!exit) {
        s.device.opts.memory = STW_MEMORY_BUFFERS;
        stw_status status = tune_open(&s.device.opts, &target);
        if (status) stw_tool_error("tune", NULL, "%s", stw_last_error());
        exit = stw_tool_exit_of(status);
    }
    if (exit) {
        if (s.json) stw_tool_print_json_error(exit);
        return exit;
    }
    char **list = make_list(&s, target.table->arch, &count);
    if (list && count) {
        exit = measure_all(&s, &target, list, count);
    } else {
        stw_tool_error("tune", NULL, "--filter %.80s keeps no problem", s.filter);
        exit = STW_EXIT_USAGE;
        if (s.json) stw_tool_print_json_error(exit);
    }
    for (size_t i = 0; i < count; ++i) free(list[i]);
    free(list);
    tune_close(&target);
    return exit;
}
