/* SPDX-License-Identifier: MIT
 *
 * What the GPU tests share: the driver functions that only tests need (graphs, foreign memory and contexts),
 * a context of the arch under test, and a conformance case (tools/verify/verify.h) in device memory: data, float64
 * expectation, every byte that the call may not write. Needs no CUDA header. Written with CUDA's names; with
 * a gfx arch they stand for HIP's functions (gpu_hip.c). */
#ifndef STW_TESTS_GPU_H
#define STW_TESTS_GPU_H

#include "tools/verify/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* GPU_CALL(name, parameters): functions of libcuda.so.1, in the ABI of CUDA 12.0. */
/* clang-format off */
#define GPU_CALLS(X) \
    X(cuInit, (unsigned flags)) \
    X(cuDeviceGetCount, (int *count)) \
    X(cuDeviceGet, (int *device_out, int ordinal)) \
    X(cuDevicePrimaryCtxRetain, (void **context_out, int device)) \
    X(cuDevicePrimaryCtxRelease_v2, (int device)) \
    X(cuCtxCreate_v2, (void **context_out, unsigned flags, int device)) \
    X(cuCtxDestroy_v2, (void *context)) \
    X(cuCtxPushCurrent_v2, (void *context)) \
    X(cuCtxPopCurrent_v2, (void **context_out)) \
    X(cuCtxGetCurrent, (void **context_out)) \
    X(cuMemAlloc_v2, (uint64_t *pointer_out, size_t bytes)) \
    X(cuMemAllocManaged, (uint64_t *pointer_out, size_t bytes, unsigned flags)) \
    X(cuMemAllocAsync, (uint64_t *pointer_out, size_t bytes, void *stream)) \
    X(cuMemFreeAsync, (uint64_t pointer, void *stream)) \
    X(cuMemFree_v2, (uint64_t pointer)) \
    X(cuMemHostAlloc, (void **pointer_out, size_t bytes, unsigned flags)) \
    X(cuMemFreeHost, (void *pointer)) \
    X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes)) \
    X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes)) \
    X(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void *stream)) \
    X(cuStreamCreate, (void **stream_out, unsigned flags)) \
    X(cuStreamSynchronize, (void *stream)) \
    X(cuStreamDestroy_v2, (void *stream)) \
    X(cuStreamBeginCapture_v2, (void *stream, int mode)) \
    X(cuStreamEndCapture, (void *stream, void **graph_out)) \
    X(cuGraphGetNodes, (void *graph, void **nodes, size_t *count)) \
    X(cuGraphInstantiateWithFlags, (void **exec_out, void *graph, unsigned long long flags)) \
    X(cuGraphLaunch, (void *exec, void *stream)) \
    X(cuGraphExecDestroy, (void *exec)) \
    X(cuGraphDestroy, (void *graph))
/* clang-format on */

enum { GPU_CAPTURE_GLOBAL = 0, GPU_CAPTURE_THREAD = 1, GPU_CAPTURE_RELAXED = 2 };
enum { GPU_STREAM_NON_BLOCKING = 1 };

typedef struct gpu_driver {
#define GPU_FIELD(name, parameters) int(*name) parameters;
    GPU_CALLS(GPU_FIELD)
#undef GPU_FIELD
} gpu_driver;

extern gpu_driver gpu;
extern int gpu_devices;          /* that the driver shows                                     */
extern int gpu_device;           /* the driver's handle of device 0                           */
extern stw_context *gpu_context; /* device 0, STW_MEMORY_DEVICE, the arch under test          */
extern const char *gpu_arch;     /* the first argument of the program; "sm80" without one     */
extern int gpu_runs;             /* the second: how often what is repeated is; 1000 without   */

/* A driver call that must succeed. */
#define GPU_TRY(call, ...)                                                                                             \
    do {                                                                                                               \
        int gpu_error = gpu.call(__VA_ARGS__);                                                                         \
        if (gpu_error) fail_msg(#call " returned %d", gpu_error);                                                      \
    } while (0)
/* A library call that must succeed. */
#define GPU_OK(call)                                                                                                   \
    do {                                                                                                               \
        stw_status gpu_status = (call);                                                                                \
        if (gpu_status) fail_msg(#call ": %s: %s", stw_status_name(gpu_status), stw_last_error());                     \
    } while (0)

/* Runs the tests, with the primary context of device 0 current as in a program of CUDA's run-time API.
 * Without a usable GPU every test is skipped by name and the program ends with 77. A program that is not done
 * after `seconds` is ended: a kernel that hangs must not hold the machine. Arguments of the program: arch,
 * runs, and a pattern of tests to leave out. */
int gpu_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests, size_t count, unsigned seconds);

/* Fills `gpu` from libamdhip64; 0 and why not. */
int gpu_load_hip(char *why, size_t capacity);

/* A context of device `device`; fails the test when it cannot be had. */
stw_context *gpu_context_on(int device);

/* ---- a case in device memory ------------------------------------------------------------------------- */

typedef struct gpu_case {
    stw_verify_case c;
    stw_context *context;
    stw_plan *plan;
    stw_verify_device device; /* arena, workspace, stream */
    unsigned char *after;     /* the arena as it came back */
    int poison;               /* of the workspace          */
    char line[256];
} gpu_case;

void gpu_case_open(gpu_case *g, stw_context *context, const char *line);
void gpu_case_close(gpu_case *g);

/* Uploads the arena of `data` (a case of the same layout, or g->c itself); fills the workspace with `poison`.
 */
void gpu_case_load(gpu_case *g, const stw_verify_case *data, int poison);
stw_status gpu_case_run(const gpu_case *g, stw_stream stream);
/* Waits for `stream`, downloads the arena into g->after, checks the guards of the workspace. */
void gpu_case_store(gpu_case *g, stw_stream stream);
/* Judges g->after by the expectation and the rules of `data`. `what` opens failure texts. */
void gpu_case_judge(const gpu_case *g, const stw_verify_case *data, const char *what);
/* load, run in the case's own stream, store, judge. */
void gpu_case_round(gpu_case *g, const char *what);

/* Nothing in the arena differs from what was uploaded. */
void gpu_case_untouched(gpu_case *g, const char *what);

/* Writes into the device's arena; complete on return, whatever the streams do. */
void gpu_case_write(const gpu_case *g, size_t at, const void *from, size_t bytes);

/* A case whose arena is laid out as that of `like`, with other data. */
void gpu_data_open(stw_verify_case *data, const stw_verify_case *like, const char *line);

/* Where the gradients (and status_out) begin: all of the arena's rest belongs to them. */
size_t gpu_outputs_at(const stw_verify_case *c);

#endif
