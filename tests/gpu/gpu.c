/* SPDX-License-Identifier: MIT
 *
 * The driver table, the skip when there is no GPU, and cases in device memory; see gpu.h. */
#include "gpu.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

gpu_driver gpu;
int gpu_devices, gpu_device;
stw_context *gpu_context;
const char *gpu_arch = "sm80";
int gpu_runs = 1000;

/* ---- the machine ----------------------------------------------------------------------------------------
 */

static int is_hip(void) { return !strncmp(gpu_arch, "gfx", 3); }

static int load_cuda(char *why, size_t capacity) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(why, capacity, "no libcuda.so.1");
        return 0;
    }
#define LOAD(name, parameters)                                                                                         \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
        if (!symbol) {                                                                                                 \
            snprintf(why, capacity, "libcuda.so.1 lacks " #name);                                                      \
            return 0;                                                                                                  \
        }                                                                                                              \
        memcpy(&gpu.name, &symbol, sizeof symbol);                                                                     \
    }
    GPU_CALLS(LOAD)
#undef LOAD
    return 1;
}

static int load_driver(char *why, size_t capacity) {
    if (!(is_hip() ? gpu_load_hip(why, capacity) : load_cuda(why, capacity))) return 0;
    int error = gpu.cuInit(0);
    if (!error) error = gpu.cuDeviceGetCount(&gpu_devices);
    if (error || gpu_devices < 1) snprintf(why, capacity, "no GPU (driver error %d)", error);
    return !error && gpu_devices > 0;
}

static stw_status open_on(int device, stw_context **context_out) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = is_hip() ? STW_BACKEND_HIP : STW_BACKEND_CUDA;
    opts.memory = STW_MEMORY_DEVICE;
    opts.flags = STW_CONTEXT_HAS_DEVICE;
    opts.device = device;
    opts.arch = gpu_arch;
    return stw_context_create(&opts, context_out);
}

stw_context *gpu_context_on(int device) {
    stw_context *context = NULL;
    GPU_OK(open_on(device, &context));
    return context;
}

static int skip_all(const struct CMUnitTest *tests, size_t count, const char *why) {
    for (size_t i = 0; i < count; ++i) printf("skip %s: %s\n", tests[i].name, why);
    printf("0 run, %zu skipped\n", count);
    return 77;
}

static void ended(int number) {
    static const char text[] = "the test is not done in its time: a kernel hangs?\n";
    (void)number;
    if (write(2, text, sizeof text - 1)) _exit(99);
    _exit(99);
}

int gpu_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests, size_t count, unsigned seconds) {
    char why[512];
    void *primary = NULL;
    if (argc > 1) gpu_arch = argv[1];
    if (argc > 2) gpu_runs = atoi(argv[2]);
    if (argc > 3) cmocka_set_skip_filter(argv[3]);
    if (!load_driver(why, sizeof why)) return skip_all(tests, count, why);
    stw_status status = open_on(0, &gpu_context);
    if (status == STW_E_NO_IMAGE || status == STW_E_NO_DRIVER || status == STW_E_NO_DEVICE)
        return skip_all(tests, count, stw_last_error());
    if (status) {
        fprintf(stderr, "%s: %s\n", stw_status_name(status), stw_last_error());
        return 1;
    }
    if (gpu.cuDeviceGet(&gpu_device, 0) || gpu.cuDevicePrimaryCtxRetain(&primary, gpu_device) ||
        gpu.cuCtxPushCurrent_v2(primary))
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("device 0 of %d, %s kernels\n", gpu_devices, stw_context_arch(gpu_context));
    signal(SIGALRM, ended);
    alarm(argc > 2 ? 10 * seconds : seconds); /* an emulator is asked for few runs, and is slow */
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    stw_context_destroy(gpu_context);
    gpu.cuCtxPopCurrent_v2(&primary);
    gpu.cuDevicePrimaryCtxRelease_v2(gpu_device);
    return failed;
}

/* ---- cases ----------------------------------------------------------------------------------------------
 */

static void build(stw_verify_case *c, const char *line) {
    stw_problem problem;
    if (stw_problem_parse(line, &problem)) fail_msg("%s: no PROBLEM", line);
    if (!problem.seed) problem.seed = 21;
    stw_status status = stw_verify_build(&problem, c);
    if (status) fail_msg("%s: no data: %s", line, stw_status_name(status));
}

void gpu_case_open(gpu_case *g, stw_context *context, const char *line) {
    memset(g, 0, sizeof *g);
    snprintf(g->line, sizeof g->line, "%s", line);
    g->context = context;
    build(&g->c, line);
    stw_status status = g->c.problem.op == STW_PROBLEM_ATTN_FWD
                            ? stw_attn_fwd_plan(context, &g->c.problem.desc, &g->plan)
                            : stw_attn_bwd_plan(context, &g->c.problem.desc, &g->plan);
    if (status) fail_msg("%s: plan: %s: %s", line, stw_status_name(status), stw_last_error());
    GPU_OK(stw_verify_device_open(context, g->c.bytes, stw_plan_workspace_size(g->plan), &g->device));
    g->after = malloc(g->c.bytes);
    assert_non_null(g->after);
}

void gpu_case_close(gpu_case *g) {
    stw_verify_device_close(&g->device);
    stw_plan_destroy(g->plan);
    stw_verify_free(&g->c);
    free(g->after);
}

void gpu_case_load(gpu_case *g, const stw_verify_case *data, int poison) {
    assert_true(data->bytes == g->c.bytes);
    g->poison = poison;
    GPU_OK(stw_verify_device_load(&g->device, data->host, poison));
}

stw_status gpu_case_run(const gpu_case *g, stw_stream stream) {
    stw_attn_args args = stw_verify_args(&g->c, g->device.arena);
    if (g->c.problem.op == STW_PROBLEM_ATTN_FWD)
        return stw_attn_fwd(g->plan, &args, g->device.workspace, g->device.workspace_bytes, stream);
    return stw_attn_bwd(g->plan, &args, g->device.workspace, g->device.workspace_bytes, stream);
}

void gpu_case_store(gpu_case *g, stw_stream stream) {
    int guards = 0;
    GPU_OK(stw_stream_synchronize(g->context, stream));
    GPU_OK(stw_verify_device_store(&g->device, g->after, g->poison, &guards));
    if (!guards) fail_msg("%s: memory around the workspace was written", g->line);
}

void gpu_case_judge(const gpu_case *g, const stw_verify_case *data, const char *what) {
    stw_verify_result result;
    stw_verify_result_clear(&result);
    stw_verify_check_outputs(data, g->after, &result);
    if (result.outcome != STW_VERIFY_OK || result.near) fail_msg("%s: %s: %s", what, g->line, result.text);
}

void gpu_case_round(gpu_case *g, const char *what) {
    gpu_case_load(g, &g->c, 0xFF);
    GPU_OK(gpu_case_run(g, g->device.stream));
    gpu_case_store(g, g->device.stream);
    gpu_case_judge(g, &g->c, what);
}

void gpu_case_untouched(gpu_case *g, const char *what) {
    gpu_case_store(g, g->device.stream);
    for (size_t at = 0; at < g->c.bytes; ++at)
        if (g->after[at] != g->c.host[at]) fail_msg("%s: byte %zu of the arena was written", what, at);
}

void gpu_case_write(const gpu_case *g, size_t at, const void *from, size_t bytes) {
    GPU_TRY(cuMemcpyHtoD_v2, (uintptr_t)g->device.arena + at, from, bytes);
    GPU_TRY(cuStreamSynchronize, NULL); /* pageable memory: the copy returns before it has arrived */
}

void gpu_data_open(stw_verify_case *data, const stw_verify_case *like, const char *line) {
    build(data, line);
    if (data->bytes != like->bytes || memcmp(data->offset, like->offset, sizeof like->offset) ||
        memcmp(data->present, like->present, sizeof like->present))
        fail_msg("%s is laid out in another way than the case that it replaces", line);
}

size_t gpu_outputs_at(const stw_verify_case *c) {
    size_t first = c->bytes;
    for (int t = STW_VERIFY_DQ; t < STW_VERIFY_TENSOR_COUNT; ++t)
        if (c->present[t] && c->offset[t] < first) first = c->offset[t];
    return first;
}
