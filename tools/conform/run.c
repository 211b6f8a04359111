/* SPDX-License-Identifier: MIT
 *
 * Running the list of cases in child processes: they claim cases from a counter in shared memory, write
 * results there and announce them through a pipe; the parent reports in the order of the list. A child that
 * crashes or hangs fails its case and is replaced; between cases or behind the last, the run fails. The parent
 * never opens a context, so that drivers start in the children only. */
#include "conform.h"
#include "tools/base/stop.h"
#include "tools/verify/jagged.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANG_SECONDS  600
#define END_SECONDS   60 /* to claim a case or, with none left, to destroy contexts */
#define JOBS_MAX      64
#define OTHER_THREADS 3
#define CASE_COPIES   12

typedef struct worker {
    pid_t pid;
    double since; /* when its case was last seen to change */
    size_t seen;
} worker;

typedef struct run {
    const conform_list *list;
    const conform_target *target;
    const conform_options *options;
    atomic_size_t *next;        /* shared, by device: how many of its cases are claimed */
    atomic_size_t *current;     /* shared, by worker: its case + 1; 0 = none yet */
    atomic_uchar *done;         /* shared, by case                               */
    stw_verify_result *results; /* shared, [case][variant]                       */
    int variants;               /* runs a case                                   */
    conform_report_fn report;
    void *user;
    size_t *reported; /* cases of the list that were told, the first ones */
    int broken;       /* a process did not end well outside its cases */
    int pipe[2];
    worker workers[JOBS_MAX];
} run;

static void *shared(size_t bytes) {
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

stw_status conform_open(const conform_target *target, const char *variant, int threads, stw_context **context_out) {
    stw_context_opts opts = target->opts;
    opts.cpu_threads = threads;
    opts.struct_size = sizeof opts;
    opts.memory = STW_MEMORY_BUFFERS;
    opts.arch = target->arch[0] ? target->arch : NULL;
    if (variant[0]) setenv("STERNWAY_VARIANT", variant, 1);
    else unsetenv("STERNWAY_VARIANT");
    return stw_context_create(&opts, context_out);
}

/* Cases go round the devices: who runs a case does not depend on how fast the others are. */
static size_t device_slots(const conform_target *target) {
    return target->device_count ? (size_t)target->device_count : 1;
}

static int conform_device_of(const conform_target *target, size_t index) {
    return target->devices[index % device_slots(target)];
}

static size_t slot_of_worker(const run *r, int id) { return (size_t)id % device_slots(r->target); }

/* The next case for a device; the list's count when there is none. */
static size_t claim(const run *r, size_t slot) {
    size_t slots = device_slots(r->target), claimed = atomic_fetch_add(&r->next[slot], 1);
    return claimed < (r->list->count + slots - 1 - slot) / slots ? claimed * slots + slot : r->list->count;
}

static int is_claimed_out(const run *r, size_t slot) {
    return atomic_load(&r->next[slot]) * device_slots(r->target) + slot >= r->list->count;
}

/* ---- telling results, in the order of the list --------------------------------------------------------- */

static void report_case(const run *r, size_t index) {
    for (int v = 0; v < r->variants; ++v)
        r->report(r->user, &r->list->cases[index], v, &r->results[index * (size_t)r->variants + (size_t)v]);
}

static void report_ready(const run *r) {
    while (*r->reported < r->list->count && atomic_load(&r->done[*r->reported])) report_case(r, (*r->reported)++);
}

/* Of a run that was stopped also what is done behind a case that is not. */
static void report_rest(const run *r) {
    for (size_t index = *r->reported; index < r->list->count; ++index)
        if (atomic_load(&r->done[index])) report_case(r, index);
}

/* ---- in the child ------------------------------------------------------------------------------------ */

/* A problem that no data can be made for: invalid, or too large. */
static void refuse_all(const run *r, size_t index, stw_status status, const char *text) {
    for (int v = 0; v < r->variants; ++v) {
        stw_verify_result *result = &r->results[index * (size_t)r->variants + (size_t)v];
        stw_verify_result_clear(result);
        if (status == STW_E_NO_MEMORY) {
            stw_verify_fail(result, "needs more memory than there is: %s", text);
            result->outcome = STW_VERIFY_SKIP;
        } else {
            stw_verify_fail(result, "%s", text);
        }
        result->invalid = status == STW_E_INVALID;
    }
}

static void fail_all(const run *r, size_t index, const char *text) {
    for (int v = 0; v < r->variants; ++v) {
        stw_verify_result *result = &r->results[index * (size_t)r->variants + (size_t)v];
        stw_verify_result_clear(result);
        stw_verify_fail(result, "%s", text);
    }
}

static void check_again(void *user, int64_t seed, stw_context *context, stw_verify_result *result) {
    stw_problem other = *(const stw_problem *)user;
    stw_verify_options once = {0};
    stw_verify_case c;
    other.seed = seed;
    if (stw_verify_build(&other, &c)) {
        stw_verify_fail(result, "%s", stw_tool_last_error());
        return;
    }
    stw_verify_check(&c, context, &once, result);
    stw_verify_free(&c);
}

/* The arena, its copies and the float64 reference with its evaluations: about CASE_COPIES times the tensors.
 * Asked before anything is allocated, for the system ends a process that touches more than there is. */
static int is_too_large(const stw_problem *problem) {
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double bytes = CASE_COPIES * (double)conform_tensor_bytes(&problem->desc);
    if (bytes < memory) return 0;
    stw_fail(STW_E_NO_MEMORY, "about %.0f GiB, of %.0f GiB", bytes * 0x1p-30, memory * 0x1p-30);
    return 1;
}

/* What plan finds invalid is no problem to make data for. */
static int is_planned(const run *r, size_t index, const stw_problem *problem, stw_context *context,
                      stw_status *status_out) {
    stw_plan *plan = NULL;
    stw_status status = problem->op == STW_PROBLEM_ATTN_FWD ? stw_attn_fwd_plan(context, &problem->desc, &plan)
                                                            : stw_attn_bwd_plan(context, &problem->desc, &plan);
    stw_plan_destroy(plan);
    *status_out = status;
    if (status == STW_E_INVALID) refuse_all(r, index, status, stw_last_error());
    return status != STW_E_INVALID;
}

/* The contexts of a process: one a variant, and on the CPU a second with another number of threads. */
typedef struct opened {
    stw_context *context[CONFORM_VARIANT_MAX], *other[CONFORM_VARIANT_MAX];
} opened;

static int open_variant(const run *r, int v, opened *o, stw_verify_result *result) {
    stw_status status = STW_OK;
    if (!o->context[v]) status = conform_open(r->target, r->target->variants[v], 0, &o->context[v]);
    if (!status && !o->other[v] && !strcmp(r->target->arch, "cpu"))
        status = conform_open(r->target, r->target->variants[v], OTHER_THREADS, &o->other[v]);
    return !status || stw_verify_fail(result, "context: %s", stw_last_error());
}

static void check_jagged(const run *r, size_t index, opened *o) {
    const char *line = r->list->cases[index].line;
    for (int v = 0; v < r->variants; ++v) {
        stw_verify_result *result = &r->results[index * (size_t)r->variants + (size_t)v];
        if (!open_variant(r, v, o, result)) continue;
        stw_verify_options options = r->options->check;
        options.other = o->other[v];
        if (r->list->cases[index].row == CONFORM_ROW_LARGE) conform_large_check(line, o->context[v], result);
        else jagged_verify_check_line(line, conform_seed_of(line), o->context[v], &options, result);
    }
}

static void check_case(const run *r, size_t index, opened *o) {
    const char *line = r->list->cases[index].line;
    stw_problem problem;
    stw_verify_case c;
    int built = 0;
    stw_status planned = STW_OK;
    if (stw_problem_is_jagged(line)) {
        check_jagged(r, index, o);
        return;
    }
    if (stw_problem_parse(line, &problem)) {
        fail_all(r, index, stw_tool_last_error());
        return;
    }
    problem.seed = conform_seed_of(line);
    for (int v = 0; v < r->variants; ++v) {
        stw_verify_result *result = &r->results[index * (size_t)r->variants + (size_t)v];
        if (!open_variant(r, v, o, result)) continue;
        if (!built && !is_planned(r, index, &problem, o->context[v], &planned)) return;
        if (r->list->cases[index].row == CONFORM_ROW_LARGE) {
            conform_large_check(line, o->context[v], result);
            continue;
        }
        if (!built) {
            stw_status status = is_too_large(&problem) ? STW_E_NO_MEMORY : stw_verify_build(&problem, &c);
            if (status) { /* a limit that the reference shares is told in the plan's words */
                int limit = planned == STW_E_UNSUPPORTED && status == STW_E_INVALID;
                refuse_all(r, index, status, limit ? stw_last_error() : stw_tool_last_error());
                return;
            }
        }
        built = 1;
        stw_verify_options options = r->options->check;
        options.other = o->other[v];
        stw_verify_check(&c, o->context[v], &options, result);
        if (result->near)
            stw_verify_enlarge(check_again, &problem, problem.seed, o->context[v], stw_grad_names, result);
    }
    if (built) stw_verify_free(&c);
}

/* What the results of a case have besides its verdict. */
static void sign(const run *r, size_t index, double seconds) {
    for (int v = 0; v < r->variants; ++v) {
        stw_verify_result *result = &r->results[index * (size_t)r->variants + (size_t)v];
        result->seconds = seconds / r->variants;
        if (r->target->device_count > 1) result->on_device = 1 + conform_device_of(r->target, index);
    }
}

static void work(const run *all, int id) {
    opened o = {0};
    conform_target target = *all->target; /* on this worker's device */
    run own = *all;
    const run *r = &own;
    size_t slot = slot_of_worker(all, id);
    if (target.device_count) {
        target.opts.flags |= STW_CONTEXT_HAS_DEVICE;
        target.opts.device = target.devices[slot];
    }
    own.target = &target;
    while (!stw_tool_stopped()) {
        size_t index = claim(r, slot);
        if (index >= r->list->count) break;
        double began = stw_tool_seconds();
        atomic_store(&r->current[id], index + 1);
        check_case(r, index, &o);
        sign(r, index, stw_tool_seconds() - began);
        atomic_store(&r->done[index], 1);
        atomic_store(&r->current[id], 0);
        char byte = 1;
        if (!r->options->jobs) report_ready(r);
        else if (write(r->pipe[1], &byte, 1) != 1) break;
    }
    for (int v = 0; v < r->variants; ++v) {
        stw_context_destroy(o.context[v]);
        stw_context_destroy(o.other[v]);
    }
}

/* ---- in the parent ------------------------------------------------------------------------------------ */

static int start_worker(run *r, int id) {
    fflush(stdout);
    fflush(stderr);
    pid_t pid = fork();
    if (pid < 0) {
        stw_tool_error("conform", NULL, "fork: %s", strerror(errno));
        return 0;
    }
    if (pid == 0) {
        stw_tool_stop_child();
        close(r->pipe[0]);
        work(r, id);
        _exit(0);
    }
    r->workers[id] = (worker){pid, stw_tool_seconds(), 0};
    return 1;
}

/* A child has ended: when it was in the middle of a case, that case failed, else the run. Returns 1 to replace it. */
static int bury(run *r, int id, int status) {
    r->workers[id].pid = 0;
    size_t current = atomic_exchange(&r->current[id], 0);
    char text[96];
    if (WIFSIGNALED(status)) snprintf(text, sizeof text, "the process died of signal %d", WTERMSIG(status));
    else snprintf(text, sizeof text, "the process ended with status %d", WEXITSTATUS(status));
    if (!current) {
        if (!status) return 0;
        stw_tool_error("conform", NULL, "outside its cases, %s", text);
        r->broken = 1;
        return !is_claimed_out(r, slot_of_worker(r, id));
    }
    fail_all(r, current - 1, text);
    sign(r, current - 1, stw_tool_seconds() - r->workers[id].since);
    atomic_store(&r->done[current - 1], 1);
    return 1;
}

static int watch_workers(run *r) {
    int limit = r->options->hang_seconds ? r->options->hang_seconds : HANG_SECONDS;
    for (int id = 0; id < r->options->jobs; ++id) {
        worker *w = &r->workers[id];
        int status;
        if (!w->pid) continue;
        size_t current = atomic_load(&r->current[id]);
        if (current != w->seen) w->seen = current, w->since = stw_tool_seconds();
        if (stw_tool_seconds() - w->since > (current ? limit : END_SECONDS)) kill(w->pid, SIGKILL);
        if (waitpid(w->pid, &status, WNOHANG) == w->pid && bury(r, id, status) && !start_worker(r, id)) return 0;
    }
    return 1;
}

static int any_alive(const run *r) {
    for (int id = 0; id < r->options->jobs; ++id)
        if (r->workers[id].pid) return 1;
    return 0;
}

static int supervise(run *r) {
    char bytes[256];
    if (!r->options->jobs) work(r, 0);
    for (int id = 0; id < r->options->jobs; ++id)
        if (!start_worker(r, id)) return 0;
    while (any_alive(r) && !stw_tool_stopped()) {
        struct pollfd ready = {.fd = r->pipe[0], .events = POLLIN};
        if (poll(&ready, 1, 50) > 0 && read(r->pipe[0], bytes, sizeof bytes) < 0 && errno != EINTR) break;
        report_ready(r);
        if (!watch_workers(r)) return 0;
    }
    report_ready(r);
    if (stw_tool_stopped()) report_rest(r);
    else if (*r->reported < r->list->count)
        stw_tool_error("conform", NULL, "%zu of %zu cases did not run", r->list->count - *r->reported, r->list->count);
    return *r->reported == r->list->count && !r->broken;
}

int conform_run(const conform_list *list, const conform_target *target, const conform_options *options,
                conform_report_fn report, void *user) {
    size_t results = list->count * (size_t)target->variant_count, reported = 0;
    run r = {.list = list,
             .target = target,
             .options = options,
             .variants = target->variant_count,
             .report = report,
             .user = user,
             .reported = &reported};
    r.next = shared(CONFORM_DEVICES_MAX * sizeof *r.next);
    r.current = shared(JOBS_MAX * sizeof *r.current);
    r.done = shared(list->count * sizeof *r.done);
    r.results = shared(results * sizeof *r.results);
    if (!r.next || !r.current || !r.done || !r.results || options->jobs > JOBS_MAX || pipe(r.pipe)) {
        stw_tool_error("conform", NULL, "no memory or no pipe for %zu cases", list->count);
        return 0;
    }
    int good = supervise(&r);
    for (int id = 0; id < options->jobs; ++id)
        if (r.workers[id].pid) kill(r.workers[id].pid, SIGKILL), waitpid(r.workers[id].pid, NULL, 0);
    close(r.pipe[0]);
    close(r.pipe[1]);
    munmap(r.results, results * sizeof *r.results);
    munmap(r.done, list->count ? list->count * sizeof *r.done : 1);
    munmap(r.current, JOBS_MAX * sizeof *r.current);
    munmap(r.next, CONFORM_DEVICES_MAX * sizeof *r.next);
    return good;
}
