/* SPDX-License-Identifier: MIT
 *
 * `sternway cp-conform`: the rows over ranks that are threads of this process. Under mpirun it becomes
 * the program of tests/cp that is linked with an MPI, where one lies beside it. */
#include "cp.h"
#include "document.h"
#include "tools/base/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_LIST = 700, KEY_JSON, KEY_BACKEND, KEY_ARCH, KEY_WIRE, KEY_DEVICES, RANKS_MAX = 64, FILTERS_MAX = 32 };

typedef enum wire_kind { WIRE_AUTO, WIRE_THREADS, WIRE_NCCL } wire_kind;

typedef struct settings {
    int32_t ranks, devices; /* devices: GPUs of ranks over memory; 0 behind choose_wire: over NCCL */
    const char *filters[FILTERS_MAX];
    int filter_count;
    int64_t seed;
    int list, json;
    double timeout_s;
    stw_backend backend;
    const char *arch;
    wire_kind wire;
} settings;

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "ranks, 1 to 64: threads of this process (default: 4)", 0},
    {"filter", 'f', "TEXT", 0, "only rows whose `ORDER SCHEDULE PROBLEM` holds this text, or that of another -f", 0},
    {"backend", KEY_BACKEND, "NAME", 0, "cpu, cuda or hip (default: cpu); rank r computes on device r", 0},
    {"arch", KEY_ARCH, "ARCH", 0, "with its kernels, as for stw_context_opts.arch", 0},
    {"transport", KEY_WIRE, "NAME", 0,
     "threads, or on GPUs nccl (with hip: RCCL), a device a rank (default: nccl where there are as many)", 0},
    {"devices", KEY_DEVICES, "N", 0, "GPUs that ranks over threads take in turn (default: all)", 0},
    {"seed", 's', "N", 0, "other data for every row", 0},
    {"timeout", 't', "S", 0, "seconds that a rank waits for another (default: 120)", 0},
    {"list", KEY_LIST, NULL, 0, "print the rows and run none", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document instead of lines", 0},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case 'n': s->ranks = (int32_t)stw_tool_number(text, state, 1, RANKS_MAX); break;
    case 'f':
        if (s->filter_count == FILTERS_MAX) argp_error(state, "more than %d filters", FILTERS_MAX);
        s->filters[s->filter_count++] = text;
        break;
    case KEY_BACKEND:
        s->backend = !strcmp(text, "cuda")  ? STW_BACKEND_CUDA
                     : !strcmp(text, "hip") ? STW_BACKEND_HIP
                     : !strcmp(text, "cpu") ? STW_BACKEND_CPU
                                            : STW_BACKEND_AUTO;
        if (s->backend == STW_BACKEND_AUTO) argp_error(state, "--backend '%.40s' is none of cpu, cuda, hip", text);
        break;
    case KEY_ARCH: s->arch = text; break;
    case KEY_WIRE:
        s->wire = !strcmp(text, "nccl") ? WIRE_NCCL : WIRE_THREADS;
        if (strcmp(text, "nccl") && strcmp(text, "threads"))
            argp_error(state, "--transport '%.40s' is none of threads, nccl", text);
        break;
    case KEY_DEVICES: s->devices = (int32_t)stw_tool_number(text, state, 1, RANKS_MAX); break;
    case 's': s->seed = stw_tool_number(text, state, 0, INT64_MAX / 4); break;
    case 't': s->timeout_s = (double)stw_tool_number(text, state, 1, 86400); break;
    case KEY_LIST: s->list = 1; break;
    case KEY_JSON: s->json = 1; break;
    case ARGP_KEY_ARG: argp_error(state, "'%.40s' is no option", text); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static stw_context_opts context_opts(const settings *s) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = s->backend;
    opts.memory = s->backend == STW_BACKEND_CPU ? STW_MEMORY_HOST : STW_MEMORY_DEVICE;
    opts.arch = s->arch;
    return opts;
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
    stw_context_opts opts = context_opts(s);
    if (s->backend == STW_BACKEND_CPU) opts.cpu_threads = 1;
    cp_row_name(row, result.name, sizeof result.name);
    if (c) {
        char text[320];
        *c = (checked){.row = row, .whole = whole};
        int ran = cp_run_ranks(s->ranks, &opts, s->devices, s->timeout_s, check, c, text);
        if (ran) result = c->results[0];
        else snprintf(result.text, sizeof result.text, "%s", text);
        for (int32_t r = 1; r < s->ranks && ran && result.outcome != STW_VERIFY_FAIL; ++r)
            if (c->results[r].outcome == STW_VERIFY_FAIL) result = c->results[r];
    }
    free(c);
    return result;
}

static int is_wanted(const settings *s, const char *name) {
    int wanted = !s->filter_count;
    for (int i = 0; i < s->filter_count; ++i) wanted |= strstr(name, s->filters[i]) != NULL;
    return wanted;
}

static const char *wire_name(const settings *s) {
    if (s->backend == STW_BACKEND_CPU || s->devices) return "threads";
    return s->backend == STW_BACKEND_HIP ? "RCCL" : "NCCL";
}

static int run_all(const settings *s) {
    cp_counts counts = {0, 0, 0};
    cJSON *rows = s->json ? cp_document_rows() : NULL;
    stw_context *context = NULL;
    const stw_context_opts opts = context_opts(s);
    stw_status status = stw_context_create(&opts, &context);
    if (status) {
        stw_tool_error("cp-conform", NULL, "%s (%s)", stw_last_error(), stw_status_name(status));
        return stw_tool_exit_of(status);
    }
    for (int i = 0; i < cp_row_count; ++i) {
        cp_whole whole;
        cp_result result = {.outcome = STW_VERIFY_FAIL};
        cp_row_name(&cp_rows[i], result.name, sizeof result.name);
        if (!is_wanted(s, result.name)) continue;
        status = cp_whole_build(cp_rows[i].problem, s->seed, 1, context, &whole);
        if (status) {
            snprintf(result.text, sizeof result.text, "%s: %s", stw_status_name(status),
                     whole.single.text[0] ? whole.single.text : stw_tool_last_error());
            if (status == STW_E_UNSUPPORTED) result.outcome = STW_VERIFY_SKIP;
        } else {
            result = run_row(s, &cp_rows[i], &whole);
            cp_whole_free(&whole);
        }
        if (s->json) cp_document_add(rows, &result, &counts);
        else cp_report(&result, &counts);
    }
    stw_context_destroy(context);
    const int failed =
        s->json ? cp_document_end(rows, &counts, s->ranks) : cp_report_end(&counts, s->ranks, wire_name(s));
    return failed ? STW_EXIT_FAILED : STW_EXIT_OK;
}

/* How many GPUs there are, and over what ranks on them go. */
static int choose_wire(settings *s) {
    stw_device_info infos[RANKS_MAX];
    size_t count = 0;
    int32_t found = 0;
    if (s->backend == STW_BACKEND_CPU) {
        if (s->wire == WIRE_NCCL) stw_tool_error("cp-conform", NULL, "--transport nccl is for --backend cuda and hip");
        return s->wire != WIRE_NCCL;
    }
    for (size_t i = 0; i < RANKS_MAX; ++i) infos[i] = STW_INIT(stw_device_info);
    if (!stw_devices(infos, RANKS_MAX, &count))
        for (size_t i = 0; i < count && i < RANKS_MAX; ++i) found += infos[i].backend == s->backend;
    if (!s->devices) s->devices = found > 0 ? found : 1;
    if (s->wire == WIRE_NCCL || (s->wire == WIRE_AUTO && s->ranks > 1 && s->devices >= s->ranks)) s->devices = 0;
    return 1;
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
        "\vRanks are threads of this process, over a transport in memory, or over NCCL with a GPU a rank. Under mpirun "
        "each process is a rank on the CPU backend, where sternway-cp-conform-mpi lies beside this program: the build "
        "makes it where it finds an MPI.";
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    settings s = {.ranks = 4, .timeout_s = 120, .backend = STW_BACKEND_CPU};
    int status = stw_tool_parse(&argp, argc, argv, &s);
    if (status) return status;
    for (int i = 0; i < cp_row_count && s.list; ++i) {
        char name[200];
        cp_row_name(&cp_rows[i], name, sizeof name);
        puts(name);
    }
    if (s.list) return STW_EXIT_OK;
    if (cp_become_mpi_program("cp-conform", argv)) return STW_EXIT_FAILED;
    return choose_wire(&s) ? run_all(&s) : STW_EXIT_FAILED;
}
