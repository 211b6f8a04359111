/* SPDX-License-Identifier: MIT
 *
 * `sternway bench`: times problems, each verified first on sampled rows and keys against float64 under the
 * accuracy rule. The command line and the table; the work is in run.c. */
#include "bench.h"

#include "tools/base/stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_CSV = 600,
    KEY_JSON,
    KEY_SECONDS,
    KEY_PEAK,
    KEY_BANDWIDTH,
    KEY_SUITE,
    KEY_COMPARE,
    KEY_CP,
    KEY_ORDER,
    KEY_SCHEDULE,
    KEY_HEAD_GROUPS
};

typedef struct settings {
    stw_tool_device device;
    bench_report report;
    bench_cp cp;
    double seconds;
    const char *suite, *compare;
    char **given;
    int given_count;
} settings;

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"seconds", KEY_SECONDS, "S", 0, "time a problem gets (default 1)", 0},
    {"peak", KEY_PEAK, "TFLOPS", 0,
     "peak of the device, for the share of it (default: the vendor's figure for known devices, 16-bit types "
     "only)",
     0},
    {"peak-bandwidth", KEY_BANDWIDTH, "GB/S", 0, "the same of its memory, for operations without products", 0},
    {"suite", KEY_SUITE, "NAME", 0,
     "the problems where none is given: usual (the default), fa (bf16, 16384 tokens, head dims 64 and 128, "
     "lengths 512 to 16384), classes (one or two of every class, for GPUs), jagged (the nested operations) or "
     "masks (in memory, beside the problem without one)",
     0},
    {"compare", KEY_COMPARE, "FILE", 0, "an older document of --json: tells faster, slower and the same apart", 0},
    {"cp", KEY_CP, NULL, 0, "over ranks: time, messages, what hides them, efficiency against one device", 0},
    {"ranks", 'n', "N", 0, "of --cp: ranks, 1 to 64, threads of this process (default 2)", 0},
    {"order", KEY_ORDER, "NAME", 0, "of --cp: zigzag (the default) or contiguous", 0},
    {"schedule", KEY_SCHEDULE, "NAME", 0, "of --cp: auto (the default), ring, all-gather, ulysses or 2-D", 0},
    {"head-groups", KEY_HEAD_GROUPS, "N", 0,
     "of --cp: groups in which Ulysses' heads go, or the next fewer that divide them (default 0: by rule)", 0},
    {"csv", KEY_CSV, NULL, 0, "comma-separated values; a comparison's summary on standard error", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document (docs/schema/bench.json)", 0},
    {0}};

static double positive(const char *text, struct argp_state *state) {
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || !(value > 0) || value > 1e6) argp_error(state, "'%.40s' is not a positive number", text);
    return value;
}

/* Which of the names a text is. */
static int named(const char *text, const char *const *names, int count, struct argp_state *state) {
    for (int i = 0; i < count; ++i)
        if (!strcmp(text, names[i])) return i;
    argp_error(state, "'%.40s' is none of the names that --help lists", text);
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    static const char *const orders[] = {"contiguous", "zigzag"};
    static const char *const schedules[] = {"auto", "ring", "all-gather", "ulysses", "2-D"};
    settings *s = state->input;
    switch (key) {
    case KEY_CP: s->cp.wanted = 1; break;
    case 'n': s->cp.ranks = (int32_t)stw_tool_number(text, state, 1, BENCH_RANKS_MAX); break;
    case KEY_ORDER: s->cp.order = (stw_cp_order)(STW_CP_CONTIGUOUS + named(text, orders, 2, state)); break;
    case KEY_SCHEDULE: s->cp.schedule = (stw_cp_schedule)named(text, schedules, 5, state); break;
    case KEY_HEAD_GROUPS: s->cp.head_groups = (int32_t)stw_tool_number(text, state, 0, BENCH_GROUPS_MAX); break;
    case STW_KEY_BACKEND: s->device.backend = text; break;
    case STW_KEY_ARCH: s->device.arch = text; break;
    case KEY_SECONDS: s->seconds = positive(text, state); break;
    case KEY_PEAK:
        s->report.peak.tflops = positive(text, state);
        s->report.peak.given = 1;
        break;
    case KEY_BANDWIDTH: s->report.peak.gbs = positive(text, state); break;
    case KEY_SUITE: s->suite = text; break;
    case KEY_COMPARE: s->compare = text; break;
    case KEY_CSV: s->report.format = BENCH_CSV; break;
    case KEY_JSON: s->report.format = BENCH_JSON; break;
    case ARGP_KEY_ARGS:
        s->given = state->argv + state->next;
        s->given_count = state->argc - state->next;
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* *stopped_out: the command was stopped before the problem had its times. */
static int bench_one(settings *s, stw_context *const context[2], const char *line, int *stopped_out) {
    bench_result result;
    stw_tool_progress("%s", line);
    int good = bench_run(context[0], context[1], line, s->seconds, &result);
    stw_tool_progress_end();
    *stopped_out = result.stopped;
    if (!good) {
        stw_tool_error("bench", line, "%s", result.check.text);
        if (result.malformed) return STW_EXIT_USAGE;
        return s->given_count && result.status ? stw_tool_exit_of(result.status) : STW_EXIT_FAILED;
    }
    if (!result.stopped) bench_report_row(&s->report, &result);
    return STW_EXIT_OK;
}

static int bench_all(settings *s, stw_context *const context[2]) {
    int usual_count, exit = STW_EXIT_OK;
    const char *const *usual = bench_suite(s->suite, stw_context_arch(context[0]), &usual_count);
    int count = s->given_count ? s->given_count : usual_count;
    stw_tool_name_device(context[0], &s->report.named);
    if (!strncmp(s->report.named.device, "emulated", 8))
        stw_tool_error("bench", NULL, "%s: an emulator's times say nothing about a GPU's", s->report.named.device);
    bench_peak_by_name(s->report.named.device, &s->report.peak);
    bench_report_begin(&s->report);
    int done = 0, stopped = 0;
    char partial[100];
    while (done < count && !stopped && !stw_tool_stopped()) {
        int one = bench_one(s, context, s->given_count ? s->given[done] : usual[done], &stopped);
        if (one > exit) exit = one;
        done += !stopped;
    }
    snprintf(partial, sizeof partial, "stopped by %s: %d of %d problems were not timed",
             done < count ? stw_tool_stopped() : "", count - done, count);
    int slower = bench_report_end(&s->report, done < count ? partial : NULL);
    if (done < count) return stw_tool_stop_status(exit);
    return slower && !exit ? STW_EXIT_FAILED : exit;
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
    stw_tool_library_error("bench", &s->device, status);
    stw_context_destroy(context[0]);
    return stw_tool_exit_of(status);
}

static const char help[] =
    "Times the backward pass of problems (default: a list for the device).\v"
    "PROBLEMs are attn_bwd, attn_fwd and jagged_* lines. Each is verified first, against float64: of attention dQ of "
    "some "
    "query rows, dK and dV of some keys, or out and LSE of a forward; of a nested operation all of it, or where it is "
    "large a component "
    "and "
    "some columns of sums. Data and positions are those of `conform`. FLOP are counted as 2 * (3 D + 2 Dv), "
    "of a forward 2 * (D + Dv), for "
    "every visible pair of query and key and 2 a product of matmul and linear; bytes as every input read "
    "once "
    "and every output written once. A timing covers as many calls as make 4 ms, ended by one "
    "synchronisation; "
    "`host us` is what the host needs to issue one call. `peak`: of the products, else of the memory.\n"
    "--compare: a problem is slower when even its first quartile lies behind the old third one, faster when "
    "its "
    "third lies before the old first, else the same; the total is the geometric mean of all.\n"
    "--cp: a call over ranks, verified as a whole; `compute` is the same call while no message moves, `messages` are "
    "those "
    "of a call without the kernels between them, `hidden` is the share of them that the call takes no time for, `one "
    "dev` "
    "the same problem on one device alone, on GPUs that of each rank at once (on the CPU a rank and a device are one "
    "thread). "
    "They take turns; the slowest rank counts. Under mpirun each process "
    "is a "
    "rank, as with cp-conform.\n"
    "Exit status: 1 when a result was wrong, the machine failed or --compare says slower (of a problem or in "
    "total), 2 when a PROBLEM, an option or the older document is wrong, 128 + its number when SIGINT, SIGTERM, SIGHUP "
    "or SIGPIPE ended the command early: what was timed is reported as partial.";

static const struct argp parser = {options, parse, "[PROBLEM...]", help, NULL, NULL, NULL};

int stw_tool_bench(int argc, char **argv) {
    settings s = {.seconds = 1, .suite = "usual", .cp = {.ranks = 2, .order = STW_CP_ZIGZAG}};
    stw_tool_stop_begin();
    stw_context *context[2] = {NULL, NULL};
    int exit = stw_tool_parse(&parser, argc, argv, &s), count;
    if (!exit) exit = stw_tool_device_opts("bench", &s.device);
    if (!exit && !bench_suite(s.suite, "", &count)) {
        stw_tool_error("bench", NULL, "--suite %.40s: usual, fa, classes, jagged or masks is accepted", s.suite);
        exit = STW_EXIT_USAGE;
    }
    if (!exit && s.cp.wanted && (s.compare || s.report.format == BENCH_CSV)) {
        stw_tool_error("bench", NULL, "--cp goes with neither --compare nor --csv");
        exit = STW_EXIT_USAGE;
    }
    if (!exit && s.cp.wanted && cp_become_mpi_program("bench", argv)) exit = STW_EXIT_FAILED;
    if (!exit && s.cp.wanted) return bench_cp_run(&s.cp, &s.device, s.given, s.given_count, s.seconds, &s.report);
    if (!exit && s.compare) exit = bench_compare_open(s.compare, &s.report.old);
    if (!exit) exit = open_contexts(&s, context);
    if (exit) {
        bench_compare_close(&s.report.old);
        if (s.report.format == BENCH_JSON) stw_tool_print_json_error(exit);
        return exit;
    }
    exit = bench_all(&s, context);
    stw_context_destroy(context[1]);
    stw_context_destroy(context[0]);
    return exit;
}
