/* SPDX-License-Identifier: MIT
 *
 * What a run call asks the runtime about one pointer and its stream, and the launch of one kernel. */
#include "backends/hip/device.h"

enum { MEMORY_UNKNOWN, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED };

static int memory_of(const stw_hip_state *state, const stw_hip_pointer *pointer) {
    static const int since_6[] = {MEMORY_UNKNOWN, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED};
    static const int in_5[] = {MEMORY_HOST, MEMORY_DEVICE, MEMORY_UNKNOWN, MEMORY_UNKNOWN, MEMORY_MANAGED};
    if (pointer->managed) return MEMORY_MANAGED;
    if (state->version >= 60000000)
        return pointer->type >= 0 && pointer->type < 4 ? since_6[pointer->type] : 0;
    return pointer->type >= 0 && pointer->type < 5 ? in_5[pointer->type] : 0;
}

/* The runtime answers "invalid value" about memory that it does not know. */
stw_status stw_hip_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer,
                                 int workspace) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    stw_hip_pointer about = {.device = -1};
    int error = state->hip->hipPointerGetAttributes(&about, pointer);
    if (error == STW_HIP_INVALID_VALUE && state->hip->hipGetLastError) state->hip->hipGetLastError();
    if (error && error != STW_HIP_INVALID_VALUE)
        return stw_hip_check(state, STW_E_DRIVER, "hipPointerGetAttributes", error);
    int memory = error ? MEMORY_UNKNOWN : memory_of(state, &about);
    if (memory == MEMORY_DEVICE && about.device == gpu->ordinal) return STW_OK;
    if (memory == MEMORY_MANAGED && !workspace) return STW_OK;
    if (memory == MEMORY_DEVICE)
        return stw_fail(STW_E_INVALID, "%s: %s %p is memory of device %d, accepted: memory of device %d", who,
                        name, pointer, about.device, gpu->ordinal);
    if (memory == MEMORY_MANAGED) /* fine-grained: additions of floats would be lost there */
        return stw_fail(STW_E_INVALID, "%s: %s %p is managed memory, accepted: memory of device %d", who,
                        name, pointer, gpu->ordinal);
    return stw_fail(STW_E_INVALID, "%s: %s %p is %s, accepted: memory of device %d", who, name, pointer,
                    memory == MEMORY_HOST ? "page-locked host memory" : "no memory that HIP knows",
                    gpu->ordinal);
}

/* NULL and the two special handles are the default streams of the current device: this one. A runtime that
 * cannot say is left to the launch. */
stw_status stw_hip_check_stream(stw_gpu *gpu, const char *who, stw_stream stream) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int device = gpu->ordinal;
    if ((uintptr_t)stream <= 2 || !state->hip->hipStreamGetDevice) return STW_OK;
    int error = state->hip->hipStreamGetDevice(stream, &device);
    if (error) return stw_hip_check_in(state, who, stream, STW_E_INVALID, "hipStreamGetDevice", error);
    if (device == gpu->ordinal) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: stream %p belongs to device %d, accepted: a stream of device %d", who,
                    stream, device, gpu->ordinal);
}

stw_status stw_hip_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                          stw_stream stream, void **arguments) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int error = state->hip->hipModuleLaunchKernel(kernel->function, grid_x, grid_y, 1, kernel->threads, 1, 1,
                                                  kernel->smem, stream, arguments, NULL);
    return stw_hip_check_in(state, gpu->ops->who, stream, STW_E_DRIVER, "hipModuleLaunchKernel", error);
}
