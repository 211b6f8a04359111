/* SPDX-License-Identifier: MIT
 *
 * Life of an opened device: the primary context, entering and leaving it; what a run call asks the driver, and the
 * launch of one kernel. */
#include "backends/cuda/device.h"

#include "backends/gpu/blas.h"

#include <stdlib.h>

stw_status stw_cuda_check(stw_cuda_state *state, stw_status otherwise, const char *call, int error) {
    return error ? stw_gpu_note(&state->gpu, stw_cuda_fail(otherwise, call, error)) : STW_OK;
}

static stw_status cuda_make_current(stw_gpu *gpu, int *before_out) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    *before_out = 0; /* the driver keeps a stack */
    return stw_cuda_check(state, STW_E_DRIVER, "cuCtxPushCurrent_v2", state->cuda->cuCtxPushCurrent_v2(state->context));
}

static stw_status cuda_restore(stw_gpu *gpu, int before) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    void *context = NULL;
    (void)before;
    return stw_cuda_check(state, STW_E_DRIVER, "cuCtxPopCurrent_v2", state->cuda->cuCtxPopCurrent_v2(&context));
}

/* ---- a run call: its pointers, its stream, one launch ---- */

stw_status stw_cuda_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    (void)written;
    int attributes[] = {STW_CUDA_POINTER_MEMORY_TYPE, STW_CUDA_POINTER_IS_MANAGED, STW_CUDA_POINTER_ORDINAL};
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    void *values[] = {&type, &managed, &ordinal};
    int error = state->cuda->cuPointerGetAttributes(3, attributes, values, (uintptr_t)pointer);
    if (error) return stw_cuda_check(state, STW_E_DRIVER, "cuPointerGetAttributes", error);
    if ((managed & 0xffu) || (type == STW_CUDA_MEMORY_DEVICE && ordinal == gpu->ordinal)) return STW_OK;
    if (type == STW_CUDA_MEMORY_DEVICE)
        return stw_fail(STW_E_INVALID, "%s: %s %p is memory of device %d, accepted: memory of device %d", who, name,
                        pointer, ordinal, gpu->ordinal);
    return stw_fail(STW_E_INVALID, "%s: %s %p is %s, accepted: memory of device %d", who, name, pointer,
                    type == STW_CUDA_MEMORY_HOST ? "page-locked host memory" : "no memory that CUDA knows",
                    gpu->ordinal);
}

/* NULL and the two special handles are the default streams of the context that is current: ours. */
stw_status stw_cuda_check_stream(stw_gpu *gpu, const char *who, stw_stream stream) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    void *context = NULL;
    if ((uintptr_t)stream <= 2) return STW_OK;
    int error = state->cuda->cuStreamGetCtx(stream, &context);
    if (error == STW_CUDA_NOT_SUPPORTED) return STW_OK; /* a green context's stream: the launch decides */
    if (error) return stw_cuda_check(state, STW_E_INVALID, "cuStreamGetCtx", error);
    if (context == state->context) return STW_OK;
    return stw_fail(STW_E_INVALID,
                    "%s: stream %p belongs to another device or context, accepted: a stream of the primary context "
                    "of device %d",
                    who, stream, gpu->ordinal);
}

_Static_assert(sizeof(stw_cuda_launch_attribute) == 72 && sizeof(stw_cuda_launch_config) == 56, "the driver's layout");

stw_status stw_cuda_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                           stw_stream stream, void **arguments) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    if (kernel->early) {
        stw_cuda_launch_attribute early = {.id = STW_CUDA_LAUNCH_EARLY, .value.allowed = 1};
        stw_cuda_launch_config config = {grid_x, grid_y, 1, kernel->threads, 1, 1, kernel->smem, stream, &early, 1};
        return stw_cuda_check(state, STW_E_DRIVER, "cuLaunchKernelEx",
                              state->cuda->cuLaunchKernelEx(&config, kernel->function, arguments, NULL));
    }
    int error = state->cuda->cuLaunchKernel(kernel->function, grid_x, grid_y, 1, kernel->threads, 1, 1, kernel->smem,
                                            stream, arguments, NULL);
    return stw_cuda_check(state, STW_E_DRIVER, "cuLaunchKernel", error);
}

static const stw_gpu_ops cuda_ops = {
    .who = "cuda",
    .wave = 32,
    .forked = stw_cuda_forked,
    .make_current = cuda_make_current,
    .restore = cuda_restore,
    .module_load = stw_cuda_module_load,
    .kernel_load = stw_cuda_kernel_load,
    .check_stream = stw_cuda_check_stream,
    .check_pointer = stw_cuda_check_pointer,
    .launch = stw_cuda_launch,
    .blas = &stw_cuda_blas,
    .encode_product = stw_cuda_encode_product,
    .side_open = stw_cuda_side_open,
    .side_close = stw_cuda_side_close,
    .order = stw_cuda_order,
};

stw_status stw_cuda_state_create(const stw_cuda_functions *cuda, int ordinal, int device, int version,
                                 const stw_image *image, const stw_image *shared, const stw_image *jagged,
                                 stw_cuda_state **state_out) {
    stw_cuda_state *state = calloc(1, sizeof *state);
    if (!state) return stw_fail(STW_E_NO_MEMORY, "cuda: no memory for the state of device %d", ordinal);
    int error = cuda->cuDevicePrimaryCtxRetain(&state->context, device);
    if (error) {
        free(state);
        return stw_cuda_fail(STW_E_DRIVER, "cuDevicePrimaryCtxRetain", error);
    }
    stw_gpu_init(&state->gpu, &cuda_ops, ordinal, image);
    state->gpu.shared_image = shared;
    state->gpu.jagged_image = jagged;
    state->cuda = cuda;
    state->device = device;
    state->version = version;
    *state_out = state;
    return STW_OK;
}

/* Nothing is reported from here: a driver that is shutting down refuses, and the memory goes all the same. */
void stw_cuda_state_destroy(stw_cuda_state *state) {
    const stw_cuda_functions *cuda = state->cuda;
    if (!stw_cuda_forked()) {
        void *modules[] = {state->gpu.jagged_own_module, state->gpu.jagged_module, state->gpu.shared_module,
                           state->gpu.module, state->gpu.cp_module},
             *context;
        if ((modules[1] || modules[2] || modules[3] || modules[4]) && !cuda->cuCtxPushCurrent_v2(state->context)) {
            stw_blas_end(&state->gpu, 1);
            for (int i = 0; i < 5; ++i)
                if (modules[i]) cuda->cuModuleUnload(modules[i]);
            cuda->cuCtxPopCurrent_v2(&context);
        }
        cuda->cuDevicePrimaryCtxRelease_v2(state->device);
    }
    stw_blas_end(&state->gpu, 0);
    stw_gpu_end(&state->gpu);
    free(state);
}
