/* SPDX-License-Identifier: MIT
 *
 * `sternway cp-conform`: the rows over ranks that are threads of this process. Under mpirun it becomes
 * the program of tests/cp that is linked with an MPI, where one lies beside it. */
#include "cp.h"
#include "tools/base/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_LIST = 700, KEY_JSON, RANKS_MAX = 64 };

typedef struct settings {
    int32_t ranks;
    const char *filter;
    int64_t seed;
    int list, json;
    double timeout_s;
} settings;

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "ranks, 1 to 64: threads of this process (default: 4)", 0},
    {"filter", 'f', "TEXT", 0, "only rows whose `ORDER SCHEDULE PROBLEM` holds this text", 0},
    {"seed", 's', "N", 0, "other data for every row", 0},
    {"timeout", 't', "S", 0, "seconds that a rank waits for another (default: 120)", 0},
    {"list", KEY_LIST, NULL, 0, "print the rows and run none", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document instead of lines", 0},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case 'n': s->ranks = (int32_t)stw_tool_number(text, state, 1, RANKS_MAX); break;
    case 'f': s->filter = text; break;
    case 's': s->seed = stw_tool_number(text, state, 0, INT64_MAX / 4); break;
    case 't': s->timeout_s = (double)stw_tool_number(text, state, 1, 86400); break;
    case KEY_LIST: s->list = 1; break;
    case KEY_JSON: s->json = 1; break;
    case ARGP_KEY_ARG: argp_error(state, "'%.40s' is no option", text); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

typedef struct checked {
    const cp_row *row;
    const cp_whole *whole;
    cp_result results[RANKS_MAX];
} checked;

static void check(cp_rank *rank, void *user) {
    checked *c = user;
    cp_check(rank, c->row, c->whole, &c->results[rank->rank]);
}

/* All ranks on one row; the verdict of rank 0, or the first other rank's that failed. */
static cp_result run_row(const settings *s, const cp_row *row, const cp_whole *whole) {
    cp_result result = {.outcome = STW_VERIFY_FAIL, .text = "no memory"};
    checked *c = calloc(1, sizeof *c);
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    cp_row_name(row, result.name, sizeof result.name);
    if (c) {
        char text[320];
        *c = (checked){.row = row, .whole = whole};
        int ran = cp_run_ranks(s->ranks, &opts, s->timeout_s, check, c, text);
        if (ran) result = c->results[0];
        else snprintf(result.text, sizeof result.text, "%s", text);
        for (int32_t r = 1; r < s->ranks && ran && result.outcome != STW_VERIFY_FAIL; ++r)
            if (c->results[r].outcome == STW_VERIFY_FAIL) result = c->results[r];
    }
    free(c);
    return result;
}

static void add_json(cJSON *rows, const cp_result *r) {
    static const char *const outcomes[] = {
        [STW_VERIFY_OK] = "ok", [STW_VERIFY_FAIL] = "fail", [STW_VERIFY_SKIP] = "skip"};
    cJSON *object = cJSON_CreateObject(), *ratios = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "row", r->name);
    cJSON_AddStringToObject(object, "outcome", outcomes[r->outcome]);
    cJSON_AddStringToObject(object, "schedule", r->schedule);
    cJSON_AddStringToObject(object, "text", r->text);
    for (int g = 0; g < STW_GRAD_COUNT; ++g)
        if (r->ratio[g] >= 0) cJSON_AddNumberToObject(ratios, stw_grad_names[g], r->ratio[g]);
    if (r->outcome == STW_VERIFY_OK) cJSON_AddNumberToObject(ratios, "out", r->out_ratio);
    cJSON_AddItemToObject(object, "error_over_single_device", ratios);
    cJSON_AddNumberToObject(object, "imbalance_percent", r->imbalance);
    cJSON_AddItemToArray(rows, object);
}

static int run_all(const settings *s) {
    cp_counts counts = {0, 0, 0};
    cJSON *rows = s->json ? cJSON_CreateArray() : NULL;
    stw_context *context = NULL;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    stw_status status = stw_context_create(&opts, &context);
    if (status) {
        stw_tool_error("cp-conform", NULL, "%s (%s)", stw_last_error(), stw_status_name(status));
        return stw_tool_exit_of(status);
    }
    for (int i = 0; i < cp_row_count; ++i) {
        cp_whole whole;
        cp_result result = {.outcome = STW_VERIFY_FAIL};
        cp_row_name(&cp_rows[i], result.name, sizeof result.name);
        if (s->filter && !strstr(result.name, s->filter)) continue;
        status = cp_whole_build(cp_rows[i].problem, s->seed, 1, context, &whole);
        if (status) snprintf(result.text, sizeof result.text, "%s", stw_tool_last_error());
        else {
            result = run_row(s, &cp_rows[i], &whole);
            cp_whole_free(&whole);
        }
        if (s->json) {
            counts.ran += result.outcome == STW_VERIFY_OK;
            counts.failed += result.outcome == STW_VERIFY_FAIL;
            counts.skipped += result.outcome == STW_VERIFY_SKIP;
            add_json(rows, &result);
        } else {
            cp_report(&result, &counts);
        }
    }
    stw_context_destroy(context);
    if (!s->json) return cp_report_end(&counts, s->ranks, "threads") ? STW_EXIT_FAILED : STW_EXIT_OK;
    cJSON *document = cJSON_CreateObject();
    cJSON_AddNumberToObject(document, "ranks", s->ranks);
    cJSON_AddNumberToObject(document, "ran", counts.ran);
    cJSON_AddNumberToObject(document, "skipped", counts.skipped);
    cJSON_AddNumberToObject(document, "failed", counts.failed);
    cJSON_AddItemToObject(document, "rows", rows);
    stw_tool_print_json(document);
    return counts.failed || !counts.ran ? STW_EXIT_FAILED : STW_EXIT_OK;
}

int cp_become_mpi_program(const char *command, char **argv) {
    static const char *const launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
    char path[4096];
    int launched = 0;
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; ++i) launched |= getenv(launchers[i]) != NULL;
    if (!launched) return 0;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0) return 0;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    memcpy(slash + 1, "sternway-cp-conform-mpi", sizeof "sternway-cp-conform-mpi");
    execv(path, argv);
    stw_tool_error(command, path,
                   "a launcher of MPI has started this, but that program is not there: build the tests with an MPI "
                   "(libopenmpi-dev), or leave the launcher out");
    return 1;
}

int stw_tool_cp_conform(int argc, char **argv) {
    static const char doc[] =
        "Attention over ranks: forward and backward of every row against the float64 reference of the whole problem, "
        "with "
        "errors at most 1.25 times those of the same problem on one device."
        "\vRanks are threads of this process on the CPU backend, over a transport in memory. Under mpirun each process "
        "is "
        "a rank, where sternway-cp-conform-mpi lies beside this program: the build makes it where it finds an MPI.";
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    settings s = {.ranks = 4, .timeout_s = 120};
    int status = stw_tool_parse(&argp, argc, argv, &s);
    if (status) return status;
    for (int i = 0; i < cp_row_count && s.list; ++i) {
        char name[200];
        cp_row_name(&cp_rows[i], name, sizeof name);
        puts(name);
    }
    if (s.list) return STW_EXIT_OK;
    if (cp_become_mpi_program("cp-conform", argv)) return STW_EXIT_FAILED;
    return run_all(&s);
}
