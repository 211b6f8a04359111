/* SPDX-License-Identifier: MIT
 *
 * The tests' driver functions (gpu.h) on libamdhip64, ROCm's or the emulator's: names and arguments are
 * CUDA's, what is done is HIP's. HIP has no contexts: one stands for a current device, and none is current
 * where the test has popped it. */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
#define HIP_CALLS(X) \
    X(hipInit, (unsigned flags)) \
    X(hipGetDeviceCount, (int *count)) \
    X(hipGetDevice, (int *device)) \
    X(hipSetDevice, (int device)) \
    X(hipMalloc, (void **pointer_out, size_t bytes)) \
    X(hipFree, (void *pointer)) \
    X(hipMemcpy, (void *to, const void *from, size_t bytes, int kind)) \
    X(hipMemsetAsync, (void *to, int value, size_t bytes, void *stream)) \
    X(hipStreamCreateWithFlags, (void **stream_out, unsigned flags)) \
    X(hipStreamSynchronize, (void *stream)) \
    X(hipStreamDestroy, (void *stream)) \
    X(hipStreamBeginCapture, (void *stream, int mode)) \
    X(hipStreamEndCapture, (void *stream, void **graph_out)) \
    X(hipGraphGetNodes, (void *graph, void **nodes, size_t *count)) \
    X(hipGraphInstantiate, (void **exec_out, void *graph, void **node, char *log, size_t capacity)) \
    X(hipGraphLaunch, (void *exec, void *stream)) \
    X(hipGraphExecDestroy, (void *exec)) \
    X(hipGraphDestroy, (void *graph))
/* clang-format on */

static struct {
#define FIELD(name, parameters) int(*name) parameters;
    HIP_CALLS(FIELD)
#undef FIELD
} hip;

enum { HIP_DEFAULT = 4, PUSHED_MAX = 8 };
static _Thread_local int before[PUSHED_MAX], pushed;

static int device_of(int *device_out, int ordinal) {
    *device_out = ordinal;
    return 0;
}
static int retain(void **context_out, int device) {
    *context_out = (void *)((uintptr_t)device + 1);
    return 0;
}
static int release(int device) {
    (void)device;
    return 0;
}
static int push(void *context) {
    int error = pushed < PUSHED_MAX ? hip.hipGetDevice(&before[pushed]) : 1;
    if (!error) error = hip.hipSetDevice((int)(uintptr_t)context - 1);
    pushed += !error;
    return error;
}
static int current(void **context_out) {
    int device, error = hip.hipGetDevice(&device);
    *context_out = !error && pushed ? (void *)((uintptr_t)device + 1) : NULL;
    return error;
}
static int pop(void **context_out) {
    int error = current(context_out);
    if (error || !pushed) return 1;
    return hip.hipSetDevice(before[--pushed]);
}
static int allocate(uint64_t *pointer_out, size_t bytes) {
    void *pointer = NULL;
    int error = hip.hipMalloc(&pointer, bytes);
    *pointer_out = (uintptr_t)pointer;
    return error;
}
static int release_memory(uint64_t pointer) { return hip.hipFree((void *)(uintptr_t)pointer); }
static int upload(uint64_t to, const void *from, size_t bytes) {
    return hip.hipMemcpy((void *)(uintptr_t)to, from, bytes, HIP_DEFAULT);
}
static int download(void *to, uint64_t from, size_t bytes) {
    return hip.hipMemcpy(to, (const void *)(uintptr_t)from, bytes, HIP_DEFAULT);
}
static int fill(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    return hip.hipMemsetAsync((void *)(uintptr_t)to, value, bytes, stream);
}
static int instantiate(void **exec_out, void *graph, unsigned long long flags) {
    return flags ? 1 : hip.hipGraphInstantiate(exec_out, graph, NULL, NULL, 0);
}

int gpu_load_hip(char *why, size_t capacity) {
    static const char *const names[] = {"libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    void *library = NULL;
    for (int i = 0; i < 4 && !library; ++i) library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(why, capacity, "no libamdhip64.so");
        return 0;
    }
#define LOAD(name, parameters)                                                                                         \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
        if (!symbol) {                                                                                                 \
            snprintf(why, capacity, "libamdhip64.so lacks " #name);                                                    \
            return 0;                                                                                                  \
        }                                                                                                              \
        memcpy(&hip.name, &symbol, sizeof symbol);                                                                     \
    }
    HIP_CALLS(LOAD)
#undef LOAD
    gpu = (gpu_driver){.cuInit = hip.hipInit,
                       .cuDeviceGetCount = hip.hipGetDeviceCount,
                       .cuDeviceGet = device_of,
                       .cuDevicePrimaryCtxRetain = retain,
                       .cuDevicePrimaryCtxRelease_v2 = release,
                       .cuCtxPushCurrent_v2 = push,
                       .cuCtxPopCurrent_v2 = pop,
                       .cuCtxGetCurrent = current,
                       .cuMemAlloc_v2 = allocate,
                       .cuMemFree_v2 = release_memory,
                       .cuMemcpyHtoD_v2 = upload,
                       .cuMemcpyDtoH_v2 = download,
                       .cuMemsetD8Async = fill,
                       .cuStreamCreate = hip.hipStreamCreateWithFlags,
                       .cuStreamSynchronize = hip.hipStreamSynchronize,
                       .cuStreamDestroy_v2 = hip.hipStreamDestroy,
                       .cuStreamBeginCapture_v2 = hip.hipStreamBeginCapture,
                       .cuStreamEndCapture = hip.hipStreamEndCapture,
                       .cuGraphGetNodes = hip.hipGraphGetNodes,
                       .cuGraphInstantiateWithFlags = instantiate,
                       .cuGraphLaunch = hip.hipGraphLaunch,
                       .cuGraphExecDestroy = hip.hipGraphExecDestroy,
                       .cuGraphDestroy = hip.hipGraphDestroy};
    return 1;
}
