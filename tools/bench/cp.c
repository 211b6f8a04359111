/* SPDX-License-Identifier: MIT
 *
 * `sternway bench --cp`: problems over ranks that are threads of this process (tools/cp/bench.c measures one). On the
 * CPU each has one thread of the backend's, and so has the single device that they are compared with; on GPUs rank r
 * has device r. */
#include "bench.h"

#include "tools/base/stop.h"

#include <stdlib.h>
#include <string.h>

static const char *const usual[] = {"attn_bwd:bf16:b1h8s2048d64:causal_br", "attn_bwd:bf16:b1h8k2s2048d64:causal_br",
                                    "attn_fwd:bf16:b1h8s2048d64:causal_br"};

typedef struct measured {
    const cp_row *row;
    const cp_whole *whole;
    double seconds;
    cp_times *times; /* a rank */
} measured;

static void measure(cp_rank *rank, void *user) {
    const measured *m = user;
    cp_bench(rank, m->row, m->whole, m->seconds, &m->times[rank->rank]);
}

static int run_problem(const bench_cp *cp, const stw_context_opts *opts, stw_context *context, const char *line,
                       double seconds, bench_report *report) {
    const cp_row row = {line, cp->order, cp->schedule, cp->schedule == STW_CP_2D, cp->head_groups};
    cp_times *times = calloc((size_t)cp->ranks, sizeof *times);
    cp_whole whole;
    char text[320];
    stw_status status = times ? cp_whole_build_large(line, 1, context, &whole) : STW_E_NO_MEMORY;
    if (status) {
        const char *own = stw_tool_last_error();
        stw_tool_error("bench", line, "%s", times ? own[0] ? own : stw_last_error() : "no memory");
        free(times);
        return stw_tool_exit_of(status);
    }
    measured m = {&row, &whole, seconds, times};
    stw_tool_progress("%s", line);
    int ran = cp_run_ranks(cp->ranks, opts, 0, 600, measure, &m, text), failed = !ran;
    stw_tool_progress_end();
    for (int32_t r = 1; ran && r < cp->ranks && times[0].result.outcome == STW_VERIFY_OK; ++r)
        if (times[r].result.outcome != STW_VERIFY_OK) times[0].result = times[r].result;
    if (ran) failed = times[0].result.outcome != STW_VERIFY_OK;
    if (failed) stw_tool_error("bench", line, "%s", ran ? times[0].result.text : text);
    else if (report->format == BENCH_JSON) bench_cp_row(report, &row, &whole, &times[0], cp->ranks);
    else cp_bench_report(&times[0], cp->ranks);
    cp_whole_free(&whole);
    free(times);
    return failed ? STW_EXIT_FAILED : STW_EXIT_OK;
}

int bench_cp_run(const bench_cp *cp, const stw_tool_device *device, char **given, int given_count, double seconds,
                 bench_report *report) {
    stw_context_opts opts = device->opts;
    stw_context *context = NULL;
    int count = given_count ? given_count : (int)(sizeof usual / sizeof usual[0]), done = 0, exit = STW_EXIT_OK;
    char partial[100];
    if (opts.backend == STW_BACKEND_AUTO) opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_BUFFERS;
    if (opts.backend == STW_BACKEND_CPU) opts.cpu_threads = 1;
    stw_status status = stw_context_create(&opts, &context);
    if (status) {
        stw_tool_library_error("bench", device, status);
        return stw_tool_exit_of(status);
    }
    stw_tool_name_device(context, &report->named);
    if (report->format == BENCH_JSON) bench_report_begin(report);
    else cp_bench_header();
    for (; done < count && !stw_tool_stopped(); ++done) {
        int one = run_problem(cp, &opts, context, given_count ? given[done] : usual[done], seconds, report);
        if (one > exit) exit = one;
    }
    stw_context_destroy(context);
    snprintf(partial, sizeof partial, "stopped by %s: %d of %d problems were not timed",
             done < count ? stw_tool_stopped() : "", count - done, count);
    bench_report_end(report, done < count ? partial : NULL);
    return done < count ? stw_tool_stop_status(exit) : exit;
}
