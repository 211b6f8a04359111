/* SPDX-License-Identifier: MIT
 *
 * `sternway tune`: times every variant of an arch's tuning table on problems, and writes the rules that
 * follow. The command line (tune.h lists the other parts). */
#include "tune.h"

#include "tools/base/replace_file.h"
#include "tools/base/stop.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_CSV = 600, KEY_JSON, KEY_SECONDS, KEY_GAIN, KEY_ALL };

typedef struct settings {
    stw_tool_device device;
    double seconds, min_gain;
    const char *output, *filter;
    tune_format format;
    int all;
    char **given;
    int given_count;
} settings;

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"output", 'o', "FILE", 0, "write the rules to FILE, whole or not at all (else they end standard output)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "time a variant gets on a problem (default 0.2)", 0},
    {"min-gain", KEY_GAIN, "PERCENT", 0, "what a variant must gain over the present rule's for a rule (default 2)", 0},
    {"filter", 'f', "PATTERN", 0, "of the usual problems those that hold this text; *, ?, [] as in file names", 0},
    {"all", KEY_ALL, NULL, 0, "time what the static model rules out, too", 0},
    {"csv", KEY_CSV, NULL, 0, "the table as comma-separated values; rules only with -o", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document (docs/schema/tune.json)", 0},
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
    case KEY_ALL: s->all = 1; break;
    case KEY_CSV: s->format = TUNE_CSV; break;
    case KEY_JSON: s->format = TUNE_JSON; break;
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

/* ---- the command -----------------------------------------------------------------------------------------
 */

/* The problems to measure: given, or the usual ones that the filter keeps. NULL when memory ran out. */
static char **make_list(const settings *s, const tune_target *target, size_t *count_out) {
    const char *arch = target->table->arch;
    int emulated = target->counts != NULL;
    char line[128], pattern[300];
    size_t usual = 0, count = 0;
    snprintf(pattern, sizeof pattern, "*%.280s*", s->filter ? s->filter : "");
    while (tune_usual(arch, emulated, usual, line, sizeof line)) ++usual;
    char **list = calloc(usual + (size_t)s->given_count + 1, sizeof *list);
    for (int i = 0; list && i < s->given_count; ++i) list[count++] = strdup(s->given[i]);
    for (size_t i = 0; list && !s->given_count && i < usual; ++i) {
        tune_usual(arch, emulated, i, line, sizeof line);
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
    if (failed) stw_tool_error("tune", NULL, "out of memory");
    else if (document) cJSON_AddItemToObject(document, "rules", stw_tool_json_lines(text));
    else if (!s->output && s->format == TUNE_TABLE) printf("\n%s", text);
    free(text);
    return failed ? STW_EXIT_FAILED : STW_EXIT_OK;
}

static int measure_all(const settings *s, const tune_target *target, char **list, size_t count) {
    tune_point *points = calloc(count + 1, sizeof *points);
    cJSON *document = s->format == TUNE_JSON ? tune_json_head(target) : NULL;
    cJSON *rows = document ? cJSON_AddArrayToObject(document, "problems") : NULL;
    int exit = points ? STW_EXIT_OK : STW_EXIT_FAILED;
    size_t measured = 0, seen = 0;
    char partial[100];
    tune_print_head(target, s->format);
    for (size_t i = 0; points && i < count && !stw_tool_stopped(); ++i) {
        tune_point *point = &points[measured];
        stw_tool_progress("%zu of %zu: %s", i + 1, count, list[i]);
        int one = tune_measure(target, list[i], s->seconds, point);
        stw_tool_progress_end();
        if (one > exit) exit = one;
        if (point->stopped) break;
        ++seen;
        if (one) continue;
        ++measured;
        int untimed = !point->timings[tune_best(point)].runs;
        if ((point->wrong || untimed) && !exit) exit = STW_EXIT_FAILED;
        if (rows) tune_add_json(target, rows, point);
        else tune_print_point(target, s->format, point);
    }
    int stopped = points && seen < count;
    snprintf(partial, sizeof partial, "stopped by %s: %zu of %zu problems were not measured",
             stopped ? stw_tool_stopped() : "", count - seen, count);
    const tune_report report = {target, points, measured, s->min_gain, stopped ? partial : NULL};
    if (measured && write_output(s, &report, document)) exit = STW_EXIT_FAILED;
    if (stopped) {
        stw_tool_error("tune", NULL, "%s", partial);
        if (document) cJSON_AddStringToObject(document, "partial", partial);
        if (s->format == TUNE_TABLE) printf("partial: %s\n", partial);
        exit = stw_tool_stop_status(exit);
    }
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
    "Times the variants of the arch's tuning table on problems and prints STW_RULE rows for what is faster "
    "than the "
    "rules in force.\v"
    "Without PROBLEMs a list for the arch is measured. Every variant is verified on samples against float64 "
    "before "
    "it is timed; (now) marks the one that the rules in force choose, * the fastest. Not timed is what a "
    "static model "
    "of shared memory, registers, tiles and blocks in turn gives more than twice the least work, and a head "
    "dim "
    "above the two smallest that fit; the table says so, --all times them, too.\n"
    "The rows go into a file that STERNWAY_TUNING names, or in front of the rows of "
    "common/tuning/attn_bwd.ARCH.def. "
    "They cover the backward of attention; nested operations choose by jagged.ARCH.def, which has no rules "
    "to tune. "
    "STERNWAY_VARIANT is ignored.\n"
    "Without an AMD GPU the arch's kernels can be ranked on the emulator of a build: "
    "LD_LIBRARY_PATH=BUILD/tests/emu "
    "CDNA_EMU_ARCH=gfx942 sternway tune --arch gfx942 counts SIMD cycles, an estimate and never a time.\n"
    "Exit status: 1 when a variant's results were wrong (it gets no rule), a problem could not be timed or "
    "the machine failed, 2 when a PROBLEM or an option is wrong, 128 + its number when SIGINT, SIGTERM, SIGHUP or "
    "SIGPIPE ended the command early; what could be measured is reported in all cases, as partial in the last one.";

static const struct argp parser = {options, parse, "[PROBLEM...]", help, NULL, NULL, NULL};

int stw_tool_tune(int argc, char **argv) {
    settings s = {.seconds = 0.2, .min_gain = 0.02};
    tune_target target = {0};
    size_t count = 0;
    stw_tool_stop_begin();
    int exit = stw_tool_parse(&parser, argc, argv, &s);
    if (!exit) exit = stw_tool_device_opts("tune", &s.device);
    if (!exit) exit = check_output(s.output);
    if (!exit) {
        s.device.opts.memory = STW_MEMORY_BUFFERS;
        target.all = s.all;
        stw_status status = tune_open(&s.device.opts, &target);
        if (status) {
            char *own = stw_tool_own_words(&s.device, stw_last_error());
            stw_tool_error(
                "tune", NULL, "%s%s", own ? own : stw_last_error(),
                strncmp(s.device.arch_text, "gfx", 3) ? "" : " (--help says how to rank by an emulator's estimates)");
            free(own);
        }
        exit = stw_tool_exit_of(status);
    }
    if (exit) {
        if (s.format == TUNE_JSON) stw_tool_print_json_error(exit);
        return exit;
    }
    char **list = make_list(&s, &target, &count);
    if (list && count) {
        exit = measure_all(&s, &target, list, count);
    } else {
        stw_tool_error("tune", NULL, "--filter %.80s keeps no problem", s.filter);
        exit = STW_EXIT_USAGE;
        if (s.format == TUNE_JSON) stw_tool_print_json_error(exit);
    }
    for (size_t i = 0; i < count; ++i) free(list[i]);
    free(list);
    tune_close(&target);
    return exit;
}
