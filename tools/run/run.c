/* SPDX-License-Identifier: MIT
 *
 * `sternway run IN.safetensors...`: the command line and the order of things; the parts are in run.h. */
#include "run.h"

#include "tools/base/stop.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_request {
    run_options options;
    char **files;
    int file_count;
} run_request;

/* All problems of all files, and what became of them. */
typedef struct run_session {
    const run_options *options;
    stw_context *context;
    run_problem *done; /* with -o: kept until the end */
    size_t done_count;
    int64_t met, missed, refused, pools_missed;
    size_t problems_left; /* of the file in hand, when the command was stopped */
    int files_left;
    char partial[120]; /* which they are, or "" */
    int exit_status;
} run_session;

enum { KEY_OUTPUT = 'o', KEY_JSON = 256, KEY_TOLERANCE, KEY_THREADS, KEY_REPEAT };

static const struct argp_option options[] = {
    {"output", KEY_OUTPUT, "OUT", 0, "write the gradients (out and lse too, where computed) to this file", 0},
    STW_TOOL_DEVICE_OPTIONS,
    {"tolerance", KEY_TOLERANCE, "X", 0,
     "in place of the accuracy rule: max|x - ref| <= X * max|ref| (X itself where ref is 0 throughout)", 0},
    {"threads", KEY_THREADS, "N", 0, "threads of the CPU backend (default: STERNWAY_CPU_THREADS, else all cores)", 0},
    {"repeat", KEY_REPEAT, "N", 0, "run N times and print the median time (default 1)", 0},
    {"verbose", 'v', NULL, 0, "long lines: norms, errors and what is allowed of every gradient", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document on standard output", 0},
    {0}};

static int parse_count(const char *text, int most, int *value_out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < 1 || value > most) return 0;
    *value_out = (int)value;
    return 1;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    run_request *request = state->input;
    run_options *o = &request->options;
    char *end;
    switch (key) {
    case KEY_OUTPUT: o->output = text; return 0;
    case STW_KEY_BACKEND: o->device.backend = text; return 0;
    case STW_KEY_ARCH: o->device.arch = text; return 0;
    case KEY_JSON: o->json = 1; return 0;
    case 'v': o->verbose = 1; return 0;
    case KEY_TOLERANCE:
        o->tolerance = strtod(text, &end);
        if (*end || end == text || !isfinite(o->tolerance) || o->tolerance < 0)
            argp_error(state, "--tolerance %s: a number of 0 or more is accepted", text);
        return 0;
    case KEY_THREADS:
        if (!parse_count(text, 1024, &o->threads)) argp_error(state, "--threads %s: 1..1024 is accepted", text);
        return 0;
    case KEY_REPEAT:
        if (!parse_count(text, 1000000, &o->repeat)) argp_error(state, "--repeat %s: 1..1000000 is accepted", text);
        return 0;
    case ARGP_KEY_ARGS:
        request->files = state->argv + state->next;
        request->file_count = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "a safetensors file is needed"); return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse_option,
    "IN.safetensors...",
    "Computes the gradients of the attention and nested problems in the files and, for every reference the files hold "
    "(dq_ref, dk_ref, dv_ref, dbias_ref, dsink_ref), compares.\v"
    "The tensors and metadata of a problem are listed in tools/README.md: q, k, v, dout, and out and lse or "
    "neither (then they are computed); several problems in one file behind a prefix and a dot. A nested operation has "
    "its "
    "PROBLEM line as metadata `problem` and the tensors of stw_jagged_args by name.\n\n"
    "A reference is met when max|x - ref| <= 2 e_max + 2 ulp(x), and the root mean square of x - ref is at "
    "most "
    "1.25 e_rms (tensors below 1024 elements: pooled over the file, judged when the pool has 1024). e_max "
    "and "
    "e_rms are the largest errors of eight f32 evaluations of the same problem against float64, never taken "
    "from the file. Half an ulp of the reference's own type is added, for how it was stored; where out and "
    "lse "
    "are computed, also what rounding them may change.\n\n"
    "Exit status: 0 every reference was met, 1 one was not or the machine failed, 2 bad input, 128 + its number when "
    "SIGINT, SIGTERM, SIGHUP or SIGPIPE ended the command early: what had finished is reported, and written by -o, as "
    "partial.",
    NULL,
    NULL,
    NULL};

/* ---- one problem, one file --------------------------------------------------------------------- */

static void raise_exit(run_session *session, int status) {
    if (status > session->exit_status) session->exit_status = status;
}

static void run_problem_once(run_session *session, const char *path, run_problem *p, stw_accuracy_pool *pool) {
    if (!p->error[0] && p->nested) {
        if (!run_nested_execute(p, session->context, session->options)) run_nested_check(p, session->options);
    } else if (!p->error[0] && !run_shape(p) && !run_execute(p, session->context, session->options)) {
        run_check(p, session->options, pool);
    }
    if (p->error[0]) {
        stw_tool_error("run", path, "%s%s%s", p->name, p->name[0] ? ": " : "", p->error);
        ++session->refused;
        raise_exit(session, p->exit_status);
        return;
    }
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        if (!p->results[g].given) continue;
        if (p->results[g].accuracy.pass) ++session->met;
        else ++session->missed;
    }
}

/* The RMS of the file's small tensors together. Returns 0 when it was judged and missed. */
static int judge_pool(const char *path, const stw_accuracy_pool *pool, int json, cJSON *row) {
    double ratio = 0;
    int judged = pool->elements >= 1024, pass = stw_pool_pass(pool, &ratio) || !judged;
    if (!pool->elements) return 1;
    if (json) {
        cJSON *out = cJSON_AddObjectToObject(row, "pool");
        cJSON_AddNumberToObject(out, "elements", (double)pool->elements);
        cJSON_AddNumberToObject(out, "rms_over_allowed", ratio);
        cJSON_AddBoolToObject(out, "judged", judged);
        cJSON_AddBoolToObject(out, "pass", pass);
    } else {
        char line[400];
        snprintf(line, sizeof line,
                 "  %.200s: tensors below 1024 elements, %lld pooled: rms %.3f of what is allowed  %s", path,
                 (long long)pool->elements, ratio,
                 !judged ? "(too few to judge)"
                 : pass  ? "pass"
                         : "FAIL");
        stw_tool_print_line(line, 4);
    }
    return pass;
}

static int keep(run_session *session, run_problem *problems, size_t count) {
    for (size_t i = 0; i < count; ++i)
        for (size_t n = 0; n < session->done_count; ++n)
            if (!strcmp(problems[i].name, session->done[n].name)) {
                stw_tool_error("run", session->options->output,
                               "two inputs hold a problem '%s'; their results would have the same names",
                               problems[i].name);
                return -1;
            }
    run_problem *more = realloc(session->done, (session->done_count + count) * sizeof *more);
    if (!more) return -1;
    memcpy(more + session->done_count, problems, count * sizeof *more);
    session->done = more;
    session->done_count += count;
    return 0;
}

static void run_file(run_session *session, const char *path, cJSON *document) {
    const run_options *o = session->options;
    char error[STW_ST_ERROR_MAX];
    stw_safetensors file;
    run_problem *problems = NULL;
    size_t count = 0;
    cJSON *row = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(row, "problems");
    cJSON_AddStringToObject(row, "file", path);
    if (document) cJSON_AddItemToArray(document, row);
    int status = stw_safetensors_open(path, &file, error);
    if (!status) status = run_load(&file, &problems, &count, error);
    if (status) {
        stw_tool_error("run", path, "%s", error);
        cJSON_AddStringToObject(row, "error", error);
        raise_exit(session, STW_EXIT_USAGE);
    } else if (!o->json) {
        printf("%s\n", path);
    }
    stw_accuracy_pool pool = {0};
    size_t done = 0;
    for (; done < count && !stw_tool_stopped(); ++done) {
        run_problem *p = &problems[done];
        stw_tool_progress("%s: %s (%zu of %zu)", path, p->name, done + 1, count);
        run_problem_once(session, path, p, &pool);
        stw_tool_progress_end();
        if (o->json) cJSON_AddItemToArray(list, run_json(p));
        else if (!p->error[0]) run_print(p, o);
        fflush(stdout);
        for (int slot = 0; slot < RUN_INPUTS; ++slot) { /* gigabytes, maybe; results stay for -o */
            int computed = p->compute_forward && (slot == RUN_OUT || slot == RUN_LSE);
            if (o->output && computed) continue;
            free(p->arrays[slot].host);
            p->arrays[slot].host = NULL;
        }
    }
    session->problems_left += count - done;
    if (done == count && !judge_pool(path, &pool, o->json, row)) {
        ++session->pools_missed;
        raise_exit(session, STW_EXIT_FAILED);
    }
    if (!document) cJSON_Delete(row);
    stw_safetensors_close(&file);
    if (!o->output || !done) {
        run_free(problems, count);
    } else if (keep(session, problems, done)) {
        raise_exit(session, STW_EXIT_USAGE);
        run_free(problems, count);
    } else { /* moved, but for those that did not run */
        memmove(problems, problems + done, (count - done) * sizeof *problems);
        run_free(problems, count - done);
    }
}

static int make_context(run_session *session, run_options *o) {
    if (stw_tool_device_opts("run", &o->device)) return STW_EXIT_USAGE;
    o->device.opts.memory = STW_MEMORY_BUFFERS;
    o->device.opts.cpu_threads = o->threads;
    stw_status status = stw_context_create(&o->device.opts, &session->context);
    if (!status) return STW_EXIT_OK;
    stw_tool_library_error("run", &o->device, status);
    return stw_tool_exit_of(status);
}

/* Where the command was stopped before the end: which problems did not run. */
static void note_stop(run_session *s, int files_left) {
    if (!files_left && !s->problems_left) return;
    snprintf(s->partial, sizeof s->partial,
             "stopped by %s: %zu problem%s of one file and %d further file%s did not run", stw_tool_stopped(),
             s->problems_left, STW_TOOL_S(s->problems_left), files_left, STW_TOOL_S(files_left));
    stw_tool_error("run", NULL, "%s", s->partial);
}

static void summarise(const run_session *session, cJSON *document) {
    const run_session *s = session;
    if (document) {
        if (s->partial[0]) cJSON_AddStringToObject(document, "partial", s->partial);
        cJSON_AddNumberToObject(document, "references_met", (double)s->met);
        cJSON_AddNumberToObject(document, "references_missed", (double)s->missed);
        cJSON_AddNumberToObject(document, "pools_missed", (double)s->pools_missed);
        cJSON_AddNumberToObject(document, "problems_refused", (double)s->refused);
        cJSON_AddNumberToObject(document, "exit_status", s->exit_status);
        return;
    }
    if (s->met + s->missed && !s->options->verbose)
        puts("max, rms: errors as parts of what is allowed; -v prints both");
    printf("%lld reference%s met, %lld missed, %lld pool%s missed, %lld problem%s refused%s%s\n", (long long)s->met,
           STW_TOOL_S(s->met), (long long)s->missed, (long long)s->pools_missed, STW_TOOL_S(s->pools_missed),
           (long long)s->refused, STW_TOOL_S(s->refused), s->partial[0] ? ", partial: " : "", s->partial);
}

int stw_tool_run(int argc, char **argv) {
    run_request request = {.options = {.tolerance = -1, .repeat = 1}};
    stw_tool_stop_begin();
    if (stw_tool_parse(&parser, argc, argv, &request)) return STW_EXIT_USAGE;
    run_options *o = &request.options;
    run_session session = {.options = o};
    int status = o->output ? run_check_output(o->output, request.files, request.file_count) : STW_EXIT_OK;
    if (!status) status = make_context(&session, o);
    if (status) {
        if (o->json) stw_tool_print_json_error(status);
        return status;
    }
    cJSON *document = o->json ? cJSON_CreateObject() : NULL;
    cJSON *files = document ? cJSON_AddArrayToObject(document, "files") : NULL;
    int done = 0;
    while (done < request.file_count && !stw_tool_stopped()) run_file(&session, request.files[done++], files);
    note_stop(&session, request.file_count - done);
    if (session.missed) raise_exit(&session, STW_EXIT_FAILED);
    if (o->output && session.exit_status < STW_EXIT_USAGE)
        raise_exit(&session,
                   run_write(o->output, session.done, session.done_count, session.partial[0] ? session.partial : NULL));
    if (session.partial[0]) session.exit_status = stw_tool_stop_status(session.exit_status);
    summarise(&session, document);
    if (document) stw_tool_print_json(document);
    run_free(session.done, session.done_count);
    stw_context_destroy(session.context);
    return session.exit_status;
}
