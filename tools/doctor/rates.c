/* SPDX-License-Identifier: MIT
 *
 * What `doctor --minutes` adds for the owner of a machine that nobody else has (doctor.h): the conformance suite for so
 * long, and a few problems timed, each with the clocks that were seen meanwhile: a streaming kernel for what memory
 * gives, a dense product for what the matrix units give, attention for what is made of both. */
#include "doctor.h"

#include "common/arch.h"
#include "tools/bench/bench.h"
#include "tools/conform/conform.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the conformance suite, in an order in which neighbours are far apart ---- */

enum { SLICE = 8, HANG_SECONDS = 120, STRIDE = 7919 /* prime, and more than there are cases to a row */ };

typedef struct tally {
    cJSON *failures;
    int passed, failed, skipped;
} tally;

static void note(void *user, const conform_case *c, int variant, const stw_verify_result *result) {
    tally *t = user;
    (void)variant;
    t->passed += result->outcome == STW_VERIFY_OK;
    t->skipped += result->outcome == STW_VERIFY_SKIP;
    if (result->outcome != STW_VERIFY_FAIL) return;
    ++t->failed;
    doctor_add_failure(t->failures, c->line, result);
}

static void run_slices(const conform_list *all, const conform_target *target, double end, tally *t) {
    const conform_options options = {.jobs = 1, .check = {.repeats = 1}, .hang_seconds = HANG_SECONDS};
    for (size_t at = 0; at < all->count && stw_tool_seconds() < end;) {
        conform_list slice = {0};
        for (int i = 0; i < SLICE && at < all->count; ++i, ++at)
            if (!conform_list_add(&slice, all->cases[at * STRIDE % all->count].row,
                                  all->cases[at * STRIDE % all->count].line))
                break;
        stw_tool_progress("doctor: %s: %d problems of the conformance suite", target->arch,
                          t->passed + t->failed + t->skipped);
        int complete = conform_run(&slice, target, &options, note, t);
        conform_list_free(&slice);
        if (!complete) break;
    }
    stw_tool_progress_end();
}

void doctor_add_conformance(cJSON *report, double minutes) {
    cJSON *row = cJSON_AddObjectToObject(report, "conformance");
    conform_target target = {.opts = STW_INIT(stw_context_opts)};
    conform_list all = {0};
    char why[1024] = "";
    double began = stw_tool_seconds();
    tally t = {.failures = cJSON_CreateArray()};
    for (size_t i = 0; i < conform_row_count; ++i) conform_list_row(&all, (int)i, 1);
    stw_status status = conform_probe(&target, NULL, why, sizeof why);
    if (!status) run_slices(&all, &target, began + minutes * 60, &t);
    cJSON_AddStringToObject(row, "arch", target.arch);
    cJSON_AddStringToObject(row, "error", status ? why : "");
    cJSON_AddNumberToObject(row, "cases", (double)all.count);
    cJSON_AddNumberToObject(row, "passed", t.passed);
    cJSON_AddNumberToObject(row, "failed", t.failed);
    cJSON_AddNumberToObject(row, "skipped", t.skipped);
    cJSON_AddNumberToObject(row, "seconds", stw_tool_seconds() - began);
    cJSON_AddItemToObject(row, "failures", t.failures);
    conform_list_free(&all);
}

/* ---- clocks: the fastest of all GPUs here, since the others are idle ---- */

typedef struct clocks {
    double core_mhz, memory_mhz; /* 0: not known */
} clocks;

static double read_mhz(const char *pattern) {
    glob_t found;
    double most = 0, hertz;
    if (glob(pattern, GLOB_NOSORT, NULL, &found)) return 0;
    for (size_t i = 0; i < found.gl_pathc; ++i) {
        FILE *file = fopen(found.gl_pathv[i], "re");
        if (file && fscanf(file, "%lf", &hertz) == 1 && hertz * 1e-6 > most) most = hertz * 1e-6;
        if (file) fclose(file);
    }
    globfree(&found);
    return most;
}

/* NVIDIA's management library, which starts no CUDA: nvmlClockType_t, MHz. */
typedef struct nvml {
    int (*device)(unsigned index, void **device);
    int (*clock)(void *device, int type, unsigned *mhz);
    unsigned count;
} nvml;
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };

static void nvml_open(nvml *n) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    int (*init)(void) = NULL, (*count)(unsigned *) = NULL;
    memset(n, 0, sizeof *n);
    if (!library) return;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&n->device = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&n->clock = dlsym(library, "nvmlDeviceGetClockInfo");
    if (!init || !count || !n->device || !n->clock || init() || count(&n->count)) n->count = 0;
}

static double nvml_mhz(const nvml *n, int type) {
    unsigned most = 0, mhz;
    void *device;
    for (unsigned i = 0; i < n->count; ++i)
        if (!n->device(i, &device) && !n->clock(device, type, &mhz) && mhz > most) most = mhz;
    return most;
}

static void sample(const nvml *n, clocks *seen) {
    const double core = n->count ? nvml_mhz(n, NVML_CLOCK_SM)
                                 : read_mhz("/sys/class/drm/card*/device/hwmon/hwmon*/freq1_input"),
                 memory = n->count ? nvml_mhz(n, NVML_CLOCK_MEM)
                                   : read_mhz("/sys/class/drm/card*/device/hwmon/hwmon*/freq2_input");
    if (core > seen->core_mhz) seen->core_mhz = core;
    if (memory > seen->memory_mhz) seen->memory_mhz = memory;
}

/* ---- problems with their times ---- */

typedef struct timed_problem {
    const char *what, *line;
} timed_problem;

static const timed_problem for_gpus[] = {
    {"memory", "jagged_gelu:bf16:c512l128t65536i4096:lens_full"},
    {"products", "jagged_linear:bf16:c512l128t65536i4096f4096:lens_full:full"},
    {"attention", "attn_bwd:bf16:b4h16s4096d128"},
    {"attention", "attn_bwd:bf16:b4h16s4096d128:causal_br"},
    {"attention", "attn_bwd:bf16:b4h32s4096d64:causal_br"},
    {"attention", "attn_bwd:f16:b4h16s4096d128:causal_br"},
    {"attention", "attn_bwd:bf16:b4h16s4096d128:causal_br:dropout0.1"},
    {"attention", "attn_bwd:bf16:b4h16s4096d128:causal_br:det"},
    {"attention", "attn_bwd:bf16:b4h8s4096d256"},
};
/* The same kinds, where no time says anything about a GPU or a GPU is not there. */
static const timed_problem small[] = {
    {"memory", "jagged_gelu:bf16:c4l16t64i64:lens_full"},
    {"products", "jagged_linear:bf16:c4l16t64i64f64:lens_full:full"},
    {"attention", "attn_bwd:bf16:b1h1s128d128:causal_br"},
};
enum { PROBLEMS = sizeof for_gpus / sizeof for_gpus[0], LIMIT_SECONDS = 900, SAMPLE_MICROSECONDS = 20000 };

typedef struct shared { /* written by the child, `seen` by the parent */
    volatile int current, count;
    stw_tool_named named;
    char error[400];
    bench_peak peak;
    const timed_problem *problems;
    bench_result results[PROBLEMS];
    clocks seen[PROBLEMS];
} shared;

static void time_all(shared *s) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context[2] = {NULL, NULL};
    opts.memory = STW_MEMORY_BUFFERS;
    if (stw_context_create(&opts, &context[0]) || stw_context_create(&opts, &context[1])) {
        snprintf(s->error, sizeof s->error, "%s", stw_last_error());
        return;
    }
    stw_tool_name_device(context[0], &s->named);
    bench_peak_by_name(s->named.device, &s->peak);
    int real = strcmp(s->named.arch, "cpu") && strncmp(s->named.device, "emulated", 8);
    s->problems = real ? for_gpus : small;
    int count = real ? PROBLEMS : (int)(sizeof small / sizeof small[0]);
    for (int i = 0; i < count; ++i) {
        s->current = i;
        bench_run(context[0], context[1], s->problems[i].line, real ? 1.0 : 0.01, &s->results[i]);
        s->count = i + 1;
    }
    for (int i = 0; i < 2; ++i) stw_context_destroy(context[i]);
}

static cJSON *row_of(const shared *s, int i) {
    const bench_result *r = &s->results[i];
    double median = r->quartiles[1];
    int good = r->check.outcome == STW_VERIFY_OK && median > 0;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "what", s->problems[i].what);
    cJSON_AddStringToObject(row, "problem", r->line);
    cJSON_AddStringToObject(row, "variant", r->check.variant);
    cJSON_AddStringToObject(row, "error", r->check.outcome == STW_VERIFY_OK ? "" : r->check.text);
    cJSON_AddNumberToObject(row, "median_ms", median * 1e3);
    cJSON_AddNumberToObject(row, "low_ms", r->quartiles[0] * 1e3);
    cJSON_AddNumberToObject(row, "high_ms", r->quartiles[2] * 1e3);
    cJSON_AddNumberToObject(row, "tflops", good ? r->flop / median * 1e-12 : 0);
    cJSON_AddNumberToObject(row, "gbs", good ? r->bytes / median * 1e-9 : 0);
    cJSON_AddNumberToObject(row, "core_mhz", s->seen[i].core_mhz);
    cJSON_AddNumberToObject(row, "memory_mhz", s->seen[i].memory_mhz);
    return row;
}

static void watch(pid_t pid, shared *s, int *ended) {
    nvml n;
    nvml_open(&n);
    while (waitpid(pid, ended, WNOHANG) == 0) {
        sample(&n, &s->seen[s->current]);
        stw_tool_progress("doctor: problem %d is timed", s->current + 1);
        usleep(SAMPLE_MICROSECONDS);
    }
    stw_tool_progress_end();
}

void doctor_add_rates(cJSON *report) {
    cJSON *rates = cJSON_AddObjectToObject(report, "rates"), *rows;
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ended = 0;
    if (s == MAP_FAILED) return;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_SECONDS);
        time_all(s);
        _exit(0);
    }
    if (pid < 0) snprintf(s->error, sizeof s->error, "no process could be started");
    else watch(pid, s, &ended);
    if (WIFSIGNALED(ended))
        snprintf(s->error, sizeof s->error, "the process that timed problem %d died of signal %d", s->current + 1,
                 WTERMSIG(ended));
    cJSON_AddStringToObject(rates, "arch", s->named.arch);
    cJSON_AddStringToObject(rates, "device", s->named.device);
    cJSON_AddStringToObject(rates, "driver", s->named.driver);
    cJSON_AddStringToObject(rates, "error", s->error);
    cJSON_AddBoolToObject(rates, "measured", s->problems == for_gpus);
    cJSON_AddNumberToObject(rates, "vendor_tflops", s->peak.tflops);
    cJSON_AddNumberToObject(rates, "vendor_gbs", s->peak.gbs);
    rows = cJSON_AddArrayToObject(rates, "problems");
    for (int i = 0; i < s->count; ++i) cJSON_AddItemToArray(rows, row_of(s, i));
    munmap(s, sizeof *s);
}
