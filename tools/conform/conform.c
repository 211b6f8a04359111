/* SPDX-License-Identifier: MIT
 *
 * `sternway conform`: the command line of the conformance suite and the order of things. The rows are in
 * rows.c, the running in run.c, what it tells in report.c, one case in tools/verify. */
#include "report.h"
#include "tools/base/stop.h"
#include "tools/verify/jagged.h"

#include "common/cores.h"
#include "common/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILTERS_MAX 8

enum {
    KEY_REQUIRE = 500,
    KEY_VARIANT,
    KEY_QUICK,
    KEY_LONG,
    KEY_LIST,
    KEY_JSON,
    KEY_REPEAT,
    KEY_LARGE,
    KEY_SOAK,
    KEY_DEVICES,
    KEY_PROGRESS,
    KEY_PROBLEMS,
    KEY_REPORT,
    KEY_JUNIT,
    KEY_MERGE,
    KEY_NODE
};

typedef struct settings {
    stw_tool_device device;
    const char *require, *variant, *node, *filters[FILTERS_MAX];
    int verbose, filter_count, jobs, list, problems, large, repeat, progress, merge;
    int64_t soak, seed, cases;
    double scale;
    int all_devices, device_count, devices[CONFORM_DEVICES_MAX];
    conform_outputs outputs;
    char **given, **command;
    int given_count;
} settings;

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"require", KEY_REQUIRE, "ARCH", 0, "fail when this arch ran no case", 0},
    {"filter", 'f', "PATTERN", 0,
     "only cases whose `ROW PROBLEM` holds this text; *, ?, [] as in file names; !PATTERN: those without; "
     "given several times, all must hold",
     0},
    {"jobs", 'j', "N", 0, "processes (default: the cores); 0: all in this one, for debuggers", 0},
    {"seed", 's', "N", 0, "other data for every case", 0},
    {"variant", KEY_VARIANT, "ID", 0, "one variant of the tuning table, `all` (CPU: the default) or `auto`", 0},
    {"quick", KEY_QUICK, NULL, 0, "about a quarter of the cases", 0},
    {"long", KEY_LONG, NULL, 0, "more than 18000 cases; --list counts them", 0},
    {"cases", 'n', "N", 0, "only N of the cases, spread over the rows", 0},
    {"list", KEY_LIST, NULL, 0, "print the rows and their number of cases", 0},
    {"problems", KEY_PROBLEMS, NULL, 0, "print the cases, `ROW PROBLEM` a line, and run none", 0},
    {"repeat", KEY_REPEAT, "N", 0, "repeat every case N times, bit for bit (default 1)", 0},
    {"large", KEY_LARGE, NULL, 0, "problems of more than 2^31 elements, where memory allows", 0},
    {"soak", KEY_SOAK, "N", 0, "N random problems instead of the rows", 0},
    {"devices", KEY_DEVICES, "LIST", 0,
     "GPUs that share the cases, one arch: `all`, or ordinals as the driver numbers them: 0,1,2 (default: "
     "one)",
     0},
    {"progress", KEY_PROGRESS, NULL, 0, "tell how far it is on standard error, also where that is no terminal", 0},
    {"verbose", 'v', NULL, 0, "long lines: row, variant, tensors and seed of every result", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document instead of lines", 0},
    {"report", KEY_REPORT, "FILE", 0, "write that document to a file, beside the lines", 0},
    {"junit", KEY_JUNIT, "FILE", 0, "write the results as JUnit's XML", 0},
    {"node", KEY_NODE, "NAME", 0, "this node's name in reports (default: the host's)", 0},
    {"merge", KEY_MERGE, NULL, 0,
     "the arguments are reports of several runs or nodes: print what they say together; fails when a case "
     "failed, "
     "a report is damaged or two contradict each other",
     0},
    {0}};

/* "all", or ordinals between commas. */
static void parse_devices(settings *s, const char *text, struct argp_state *state) {
    s->device_count = 0;
    s->all_devices = !strcmp(text, "all");
    for (const char *at = text; at && !s->all_devices; at = strchr(at, ','), at = at ? at + 1 : at) {
        char one[16];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ","), at);
        int device = (int)stw_tool_number(one, state, 0, 1023);
        for (int i = 0; i < s->device_count; ++i)
            if (s->devices[i] == device) argp_error(state, "--devices names device %d twice", device);
        if (s->device_count == CONFORM_DEVICES_MAX) argp_error(state, "more than %d devices", CONFORM_DEVICES_MAX);
        s->devices[s->device_count++] = device;
    }
}

static error_t parse_output(int key, char *text, settings *s, struct argp_state *state) {
    switch (key) {
    case KEY_JSON: s->outputs.json = 1; break;
    case KEY_REPORT: s->outputs.report = text; break;
    case KEY_JUNIT: s->outputs.junit = text; break;
    case KEY_MERGE: s->merge = 1; break;
    case KEY_PROGRESS: s->progress = 1; break;
    case 'v': s->verbose = 1; break;
    case KEY_DEVICES: parse_devices(s, text, state); break;
    case KEY_NODE: s->node = text; break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case STW_KEY_BACKEND: s->device.backend = text; break;
    case STW_KEY_ARCH: s->device.arch = text; break;
    case KEY_REQUIRE: s->require = text; break;
    case 'f':
        if (s->filter_count == FILTERS_MAX) argp_error(state, "more than %d filters", FILTERS_MAX);
        s->filters[s->filter_count++] = text;
        break;
    case 'j': s->jobs = (int)stw_tool_number(text, state, 0, 64); break;
    case 's': s->seed = stw_tool_number(text, state, 0, INT64_MAX / 4); break;
    case KEY_VARIANT: s->variant = text; break;
    case KEY_QUICK:
    case KEY_LONG:
        if (s->scale != 1 && (s->scale < 1) != (key == KEY_QUICK))
            argp_error(state, "--quick and --long exclude each other");
        s->scale = key == KEY_QUICK ? 0.25 : 4.5;
        break;
    case 'n': s->cases = stw_tool_number(text, state, 1, 1000000); break;
    case KEY_LIST: s->list = 1; break;
    case KEY_REPEAT: s->repeat = (int)stw_tool_number(text, state, 1, 1000000); break;
    case KEY_LARGE: s->large = 1; break;
    case KEY_SOAK: s->soak = stw_tool_number(text, state, 1, 1000000000); break;
    case KEY_PROBLEMS: s->problems = 1; break;
    case ARGP_KEY_ARGS:
        s->given = state->argv + state->next;
        s->given_count = state->argc - state->next;
        break;
    default: return parse_output(key, text, s, state);
    }
    return 0;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

static int add_given(const settings *s, conform_list *list) {
    for (int i = 0; i < s->given_count; ++i) {
        if (jagged_any_parse(s->given[i]) || strlen(s->given[i]) >= CONFORM_LINE_MAX) {
            stw_tool_error("conform", s->given[i], "%s", stw_tool_last_error());
            return STW_EXIT_USAGE;
        }
        if (!conform_list_add(list, s->large ? CONFORM_ROW_LARGE : -1, s->given[i])) return STW_EXIT_FAILED;
    }
    return STW_EXIT_OK;
}

/* Random problems of both families: pairs of another seed, then every alternative of the jagged rows with
 * other data, and so other lengths. */
static int add_soak(const settings *s, conform_list *list) {
    char line[CONFORM_LINE_MAX - 32], seeded[CONFORM_LINE_MAX];
    for (uint64_t round = 0; list->count < (size_t)s->soak; ++round) {
        uint64_t seed = round + 1000 * (uint64_t)(s->seed + 1);
        if (!conform_list_pairs(list, (int)conform_row_count - 1, seed)) return 0;
        for (size_t row = 0; row < conform_row_count; ++row)
            for (const char *const *o = conform_rows[row].options; o && *o; ++o) {
                if (!stw_problem_is_jagged(*o)) break;
                conform_jagged_line(*o, (unsigned)(round % 12), line);
                snprintf(seeded, sizeof seeded, "%s:seed%llu", line, (unsigned long long)seed + 1);
                if (!conform_list_add(list, (int)row, seeded)) return 0;
            }
    }
    list->count = (size_t)s->soak;
    return 1;
}

/* Attention in f64 is the CPU backend's alone: a run that names another leaves it out. */
static int is_for_target(const settings *s, const conform_case *c) {
    const char *arch = s->device.arch_text;
    stw_backend backend = s->device.opts.backend;
    int elsewhere = backend == STW_BACKEND_CUDA || backend == STW_BACKEND_HIP || (arch[0] && strcmp(arch, "cpu"));
    return !elsewhere || stw_problem_is_jagged(c->line) || !strstr(c->line, ":f64:");
}

/* What all filters let through, then N cases spread evenly; other data with --seed. */
static void choose(const settings *s, conform_list *list) {
    size_t kept = 0;
    for (size_t i = 0; i < list->count; ++i)
        if (is_for_target(s, &list->cases[i]) && conform_is_wanted(&list->cases[i], s->filters, s->filter_count))
            list->cases[kept++] = list->cases[i];
    list->count = kept;
    if (s->cases && (size_t)s->cases < kept) {
        for (size_t i = 0; i < (size_t)s->cases; ++i) list->cases[i] = list->cases[i * kept / (size_t)s->cases];
        list->count = (size_t)s->cases;
    }
    for (size_t i = 0; s->seed && i < list->count; ++i) {
        size_t length = strlen(list->cases[i].line);
        if (strstr(list->cases[i].line, ":seed")) continue;
        snprintf(list->cases[i].line + length, CONFORM_LINE_MAX - length, ":seed%lld",
                 (long long)(s->seed + (int64_t)i));
    }
}

static int make_list(const settings *s, conform_list *list) {
    int exit = add_given(s, list);
    if (exit || list->count) return exit;
    int rows = !s->large && !s->soak;
    int good = s->large ? conform_list_large(list) : s->soak ? add_soak(s, list) : 1;
    for (size_t row = 0; rows && good && row < conform_row_count; ++row)
        good = conform_list_row(list, (int)row, s->scale);
    if (!good) return STW_EXIT_FAILED;
    choose(s, list);
    return STW_EXIT_OK;
}

/* ---- the command ------------------------------------------------------------------------------------ */

/* Opens the target; 0 when it is not there (counted as skipped) or was misnamed (*exit_out). */
static int find_target(const settings *s, conform_target *target, conform_report *report, int *exit_out) {
    char why[1024], what[1200];
    const char *wanted = s->variant && !strcmp(s->variant, "auto") ? NULL : s->variant;
    if (!s->variant && (!target->arch[0] || !strcmp(target->arch, "cpu"))) wanted = "all";
    stw_status status = conform_probe(target, wanted, why, sizeof why);
    if (status == STW_E_INVALID) { /* no such arch or variant; the text names those there are */
        char *own = stw_tool_own_words(&s->device, why);
        conform_report_error(report, "%s", own ? own : why);
        free(own);
        *exit_out = STW_EXIT_USAGE;
        return 0;
    }
    if (status) {
        char *own = stw_tool_own_words(&s->device, why);
        snprintf(what, sizeof what, "arch %s: %s", target->arch[0] ? target->arch : "auto", own ? own : why);
        free(own);
        conform_report_skip(report, what);
        return 0;
    }
    const stw_arch *arch = stw_arch_find(STW_BACKEND_AUTO, target->arch);
    if (arch) target->opts.backend = arch->backend;
    for (int i = 0; i < target->refused_count; ++i) conform_report_skip(report, target->refused[i]);
    if (!target->variant_count) conform_report_skip(report, "no variant of the table runs here");
    return target->variant_count > 0;
}

/* Every device has a process of its own at least; large problems have no more. */
static int jobs_of(const settings *s, const conform_target *target) {
    int jobs = s->large && s->jobs ? 1 : s->jobs;
    return jobs && jobs < target->device_count ? target->device_count : jobs;
}

static int run_list(const settings *s, const conform_list *list, conform_target *target, conform_report *report) {
    int exit = STW_EXIT_OK;
    if (!find_target(s, target, report, &exit)) return conform_report_stop(report, exit);
    conform_options run = {.jobs = jobs_of(s, target), .check = {.repeats = s->repeat, .forward = 1}};
    run.check.bitwise = !strcmp(target->arch, "cpu");
    if (!run.jobs && target->device_count > 1) {
        conform_report_error(report, "--jobs 0 is one process, which is for one device");
        return STW_EXIT_USAGE;
    }
    report->pools = conform_pools_new(target->variant_count);
    int whole = report->pools && conform_run(list, target, &run, conform_report_case, report);
    if (!whole && !stw_tool_stopped()) {
        conform_report_error(report, "the run is not complete");
        exit = STW_EXIT_FAILED;
    }
    if (report->pools) conform_pools_report(report->pools, list, target, &run, conform_report_pool, report);
    return conform_report_stop(report, exit);
}

static int run_target(const settings *s, const conform_list *list) {
    conform_target target = {
        .opts = s->device.opts, .here = s->jobs == 0, .all_devices = s->all_devices, .device_count = s->device_count};
    int document = s->outputs.json || s->outputs.report || s->outputs.junit;
    conform_report report = {.target = &target,
                             .list = list,
                             .lines = !s->outputs.json,
                             .given = s->given_count,
                             .progress = s->progress,
                             .verbose = s->verbose,
                             .require = s->require,
                             .node = conform_node_name(s->node),
                             .command = s->command,
                             .cases = document ? cJSON_CreateArray() : NULL,
                             .errors = document ? cJSON_CreateArray() : NULL,
                             .began = stw_tool_seconds()};
    memcpy(target.devices, s->devices, sizeof target.devices);
    snprintf(target.arch, sizeof target.arch, "%s", s->device.arch_text);
    int exit = run_list(s, list, &target, &report);
    exit = conform_report_finish(&report, exit);
    if (document) exit = conform_outputs_write(&s->outputs, conform_document(&report, exit), exit);
    conform_report_free(&report);
    return exit;
}

/* What argp cannot know. Exit status. */
static int check_settings(settings *s) {
    if (s->jobs < 0) s->jobs = (int)stw_cores_allowed();
    if (s->jobs > 64) s->jobs = 64;
    if (s->require && !stw_arch_find(STW_BACKEND_AUTO, s->require)) {
        stw_tool_error("conform", NULL, "--require %.40s is not the name of an arch", s->require);
        return STW_EXIT_USAGE;
    }
    if (!conform_node_name(s->node)) {
        stw_tool_error("conform", NULL, "--node %.40s: 1 to %d letters, digits, '.', '_' or '-'", s->node,
                       CONFORM_NODE_MAX - 1);
        return STW_EXIT_USAGE;
    }
    if (s->merge && (s->filter_count || s->list || s->problems || s->large || s->soak || s->cases || s->seed ||
                     s->scale != 1 || s->repeat != 1 || s->variant || s->device.backend || s->device.arch ||
                     s->device_count || s->all_devices || s->node || s->progress)) {
        stw_tool_error("conform", NULL, "--merge reads reports: only --json, --report, --junit, --require go with it");
        return STW_EXIT_USAGE;
    }
    return conform_outputs_check(&s->outputs);
}

static int run_conform(settings *s) {
    conform_list list = {0};
    int exit = make_list(s, &list);
    if (!exit && !list.count) {
        stw_tool_error("conform", NULL, "no case matches");
        exit = STW_EXIT_USAGE;
    }
    if (exit && s->outputs.json) stw_tool_print_json_error(exit);
    if (!exit && s->problems) conform_print_problems(&list);
    else if (!exit && s->list) conform_print_rows(&list);
    else if (!exit) exit = run_target(s, &list);
    conform_list_free(&list);
    return exit;
}

int stw_tool_conform(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM...]\n--merge REPORT...",
        "Runs every feature against the float64 reference under the accuracy "
        "rule, on every variant of the tuning "
        "table. A line a result: outcome, and for the worst tensors the largest error and "
        "the RMS as parts of what is allowed, the PROBLEM, and where each runs on several "
        "the variant; of a failure, and with -v of all, row, tensors, seed and text as "
        "well. A PROBLEM given here is replayed alone.\vLast line: N passed, N failed, N skipped; and `partial` where "
        "SIGINT, SIGTERM, SIGHUP or a reader of standard output that has gone ended the run early: what had finished "
        "is reported, and the exit status is 128 + the signal's number.",
        NULL,
        NULL,
        NULL};
    settings s = {.scale = 1, .repeat = 1, .jobs = -1, .command = argv + 1};
    stw_tool_stop_begin();
    int exit = stw_tool_parse(&argp, argc, argv, &s);
    if (!exit) exit = stw_tool_device_opts("conform", &s.device);
    if (!exit) exit = check_settings(&s);
    if (exit) {
        if (s.outputs.json) stw_tool_print_json_error(exit);
        return exit;
    }
    return s.merge ? conform_merge(s.given, s.given_count, s.require, &s.outputs) : run_conform(&s);
}
