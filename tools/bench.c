/* SPDX-License-Identifier: MIT
 *
 * `sternway bench`: times problems, each verified first on sampled rows and keys against float64 under the
 * accuracy rule. The command line and the table; the work is in bench_run.c. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_CSV = 600, KEY_JSON, KEY_SECONDS, KEY_PEAK, KEY_SUITE };

typedef struct settings {
    stw_tool_device device;
    bench_options run;
    double peak;
    const char *suite;
    int csv, json;
    char **given;
    int given_count;
} settings;

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"seconds", KEY_SECONDS, "S", 0, "time a problem gets (default 1)", 0},
    {"peak", KEY_PEAK, "TFLOPS", 0, "measured peak of the device, for the share of it", 0},
    {"suite", KEY_SUITE, "NAME", 0,
     "the problems where none is given: usual (the default) or fa (bf16, 16384 tokens, head dims 64 and 128, "
     "lengths 512 to 16384)",
     0},
    {"csv", KEY_CSV, NULL, 0, "comma-separated values", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document", 0},
    {0}};

static double positive(const char *text, struct argp_state *state) {
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || !(value > 0) || value > 1e6)
        argp_error(state, "'%.40s' is not a positive number", text);
    return value;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case STW_KEY_BACKEND: s->device.backend = text; break;
    case STW_KEY_ARCH: s->device.arch = text; break;
    case KEY_SECONDS: s->run.seconds = positive(text, state); break;
    case KEY_PEAK: s->peak = positive(text, state); break;
    case KEY_SUITE: s->suite = text; break;
    case KEY_CSV: s->csv = 1; break;
    case KEY_JSON: s->json = 1; break;
    case ARGP_KEY_ARGS:
        s->given = state->argv + state->next;
        s->given_count = state->argc - state->next;
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- output -------------------------------------------------------------------------------------------- */

static void print_head(const settings *s) {
    if (s->csv)
        printf("problem,arch,variant,runs,median_ms,iqr_ms,tflops,peak_share,max_ratio,rms_ratio,verified,"
               "workspace_bytes,host_us\n");
    else if (!s->json)
        printf("%10s %9s %8s %6s %8s %8s  %-24s problem\n", "median ms", "IQR ms", "TFLOP/s", "peak",
               "host us", "work MiB", "variant");
}

static void add_json(const settings *s, cJSON *rows, const char *line, const char *arch,
                     const bench_result *r) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "problem", line);
    cJSON_AddStringToObject(item, "arch", arch);
    cJSON_AddStringToObject(item, "variant", r->check.variant);
    cJSON_AddNumberToObject(item, "runs", r->runs);
    cJSON_AddNumberToObject(item, "median_ms", r->median * 1e3);
    cJSON_AddNumberToObject(item, "iqr_ms", r->spread * 1e3);
    cJSON_AddNumberToObject(item, "tflops", r->tflops);
    if (s->peak > 0) cJSON_AddNumberToObject(item, "peak_share", r->tflops / s->peak);
    cJSON_AddNumberToObject(item, "max_ratio", r->max_ratio);
    cJSON_AddNumberToObject(item, "rms_ratio", r->rms_ratio);
    cJSON_AddNumberToObject(item, "workspace_bytes", (double)r->workspace);
    if (r->host > 0) cJSON_AddNumberToObject(item, "host_us", r->host * 1e6);
    cJSON_AddBoolToObject(item, "verified", !r->not_verified);
    if (r->not_verified) cJSON_AddStringToObject(item, "not_verified", r->not_verified);
    cJSON_AddItemToArray(rows, item);
}

static void print_row(const settings *s, cJSON *rows, const char *line, const char *arch,
                      const bench_result *r) {
    char share[16] = "-", host[16] = "-";
    if (s->peak > 0)
        snprintf(share, sizeof share, s->csv ? "%.4f" : "%.0f%%", r->tflops / s->peak * (s->csv ? 1 : 100));
    if (r->host > 0) snprintf(host, sizeof host, "%.1f", r->host * 1e6);
    if (s->json)
        add_json(s, rows, line, arch, r);
    else if (s->csv)
        printf("%s,%s,%s,%d,%.6f,%.6f,%.4f,%s,%.3f,%.3f,%s,%zu,%s\n", line, arch, r->check.variant, r->runs,
               r->median * 1e3, r->spread * 1e3, r->tflops, s->peak > 0 ? share : "", r->max_ratio,
               r->rms_ratio, r->not_verified ? "no" : "yes", r->workspace, r->host > 0 ? host : "");
    else
        printf("%10.3f %9.3f %8.3f %6s %8s %8.1f  %-24s %s%s%s%s\n", r->median * 1e3, r->spread * 1e3,
               r->tflops, share, host, (double)r->workspace / 0x1p20, r->check.variant, line,
               r->not_verified ? " (not verified: " : "", r->not_verified ? r->not_verified : "",
               r->not_verified ? ")" : "");
    fflush(stdout);
}

/* ---- the command -----------------------------------------------------------------------------------------
 */

static int bench_one(const settings *s, stw_context *const context[2], const char *line, cJSON *rows) {
    stw_problem problem;
    bench_result result;
    if (stw_problem_parse(line, &problem)) {
        stw_tool_error("bench", line, "%s", stw_tool_last_error());
        return STW_EXIT_USAGE;
    }
    stw_tool_progress("%s", line);
    int good = bench_run(context[0], context[1], &problem, &s->run, &result);
    stw_tool_progress_end();
    if (!good) {
        stw_tool_error("bench", line, "%s", result.check.text);
        return s->given_count && result.status ? stw_tool_exit_of(result.status) : STW_EXIT_FAILED;
    }
    print_row(s, rows, line, stw_context_arch(context[0]), &result);
    return STW_EXIT_OK;
}

static int bench_all(const settings *s, stw_context *const context[2]) {
    int usual_count, exit = STW_EXIT_OK;
    const char *const *usual = bench_suite(s->suite, stw_context_arch(context[0]), &usual_count);
    int count = s->given_count ? s->given_count : usual_count;
    cJSON *rows = s->json ? cJSON_CreateArray() : NULL;
    print_head(s);
    for (int i = 0; i < count; ++i) {
        int one = bench_one(s, context, s->given_count ? s->given[i] : usual[i], rows);
        if (one > exit) exit = one;
    }
    if (s->json) stw_tool_print_json(rows);
    return exit;
}

/* The second is for the forward: a variant forced by the environment is the backward's. */
static int open_contexts(settings *s, stw_context *context[2]) {
    s->device.opts.memory = STW_MEMORY_BUFFERS;
    stw_status status = stw_context_create(&s->device.opts, &context[0]);
    if (!status) {
        unsetenv("STERNWAY_VARIANT");
        status = stw_context_create(&s->device.opts, &context[1]);
    }
    if (!status) return STW_EXIT_OK;
    stw_tool_error("bench", NULL, "%s", stw_last_error());
    stw_context_destroy(context[0]);
    return stw_tool_exit_of(status);
}

int stw_tool_bench(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM...]",
        "Times the backward pass of problems (default: a list for the device).\v"
        "Each is verified first: dQ of some query rows, dK and dV of some keys, against float64. Data and "
        "positions are those of `conform`. FLOP are counted as 2 * (3 D + 2 Dv) for every visible pair of "
        "query "
        "and key. A timing covers as many calls as make 4 ms, ended by one synchronisation; `host us` is "
        "what the "
        "host needs to issue one call.",
        NULL,
        NULL,
        NULL};
    settings s = {.run = {.seconds = 1}, .suite = "usual"};
    stw_context *context[2] = {NULL, NULL};
    int exit = stw_tool_parse(&argp, argc, argv, &s), count;
    if (!exit) exit = stw_tool_device_opts("bench", &s.device);
    if (!exit && !bench_suite(s.suite, "", &count)) {
        stw_tool_error("bench", NULL, "--suite %.40s: usual or fa is accepted", s.suite);
        exit = STW_EXIT_USAGE;
    }
    if (!exit) exit = open_contexts(&s, context);
    if (exit) {
        if (s.json) stw_tool_print_json_error(exit);
        return exit;
    }
    exit = bench_all(&s, context);
    stw_context_destroy(context[1]);
    stw_context_destroy(context[0]);
    return exit;
}
