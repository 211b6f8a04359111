/* SPDX-License-Identifier: MIT
 *
 * What a run call asks the driver about one pointer and its stream, and the launch of one kernel. */
#include "backends/cuda/device.h"

stw_status stw_cuda_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer,
                                  int written) {
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
        return stw_fail(STW_E_INVALID, "%s: %s %p is memory of device %d, accepted: memory of device %d", who,
                        name, pointer, ordinal, gpu->ordinal);
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
    return stw_fail(
        STW_E_INVALID,
        "%s: stream %p belongs to another device or context, accepted: a stream of the primary context "
        "of device %d",
        who, stream, gpu->ordinal);
}

_Static_assert(sizeof(stw_cuda_launch_attribute) == 72 && sizeof(stw_cuda_launch_config) == 56,
               "the driver's layout");

stw_status stw_cuda_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                           stw_stream stream, void **arguments) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    if (kernel->early) {
        stw_cuda_launch_attribute early = {.id = STW_CUDA_LAUNCH_EARLY, .value.allowed = 1};
        stw_cuda_launch_config config = {grid_x, grid_y,       1,      kernel->threads, 1,
                                         1,      kernel->smem, stream, &early,          1};
        return stw_cuda_check(state, STW_E_DRIVER, "cuLaunchKernelEx",
                              state->cuda->cuLaunchKernelEx(&config, kernel->function, arguments, NULL));
    }
    int error = state->cuda->cuLaunchKernel(kernel->function, grid_x, grid_y, 1, kernel->threads, 1, 1,
                                            kernel->smem, stream, arguments, NULL);
    return stw_cuda_check(state, STW_E_DRIVER, "cuLaunchKernel", error);
}
