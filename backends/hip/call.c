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

/* What hipExtMallocWithFlags was told, which the runtime gives back; 0 of hipMalloc and memory pools. */
enum { FINE_GRAINED = 1, UNCACHED = 3, CONTIGUOUS = 4 /* uncached, too */ };

static const char *kind_of(unsigned flags) {
    switch (flags) {
    case FINE_GRAINED: return "fine-grained memory";
    case UNCACHED:
    case CONTIGUOUS: return "uncached memory";
    default: return "memory of unknown flags";
    }
}

/* Floats can be added to memory that the device caches. Past its cache gfx90a has no such addition: in
 * fine-grained, uncached and managed memory it does nothing and says nothing. Our kernels add to workspaces,
 * and hipBLASLt's may add parts of a sum to an output: neither may be such memory, inputs may. gfx942 does
 * add there. It refuses all the same: slowly, never tried, and what one of the two takes the other should
 * take. The runtime answers "invalid value" about memory that it does not know. */
stw_status stw_hip_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer,
                                 int written) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    stw_hip_pointer about = {.device = -1};
    int error = state->hip->hipPointerGetAttributes(&about, pointer);
    if (error == STW_HIP_INVALID_VALUE && state->hip->hipGetLastError) state->hip->hipGetLastError();
    if (error && error != STW_HIP_INVALID_VALUE)
        return stw_hip_check(state, STW_E_DRIVER, "hipPointerGetAttributes", error);
    int memory = error ? MEMORY_UNKNOWN : memory_of(state, &about);
    if (memory == MEMORY_DEVICE && about.device != gpu->ordinal)
        return stw_fail(STW_E_INVALID, "%s: %s %p is memory of device %d, accepted: memory of device %d", who,
                        name, pointer, about.device, gpu->ordinal);
    if (memory == MEMORY_DEVICE && written && about.flags)
        return stw_fail(STW_E_INVALID,
                        "%s: %s %p is %s of device %d (flags 0x%x of hipExtMallocWithFlags), accepted: "
                        "memory of device %d from hipMalloc",
                        who, name, pointer, kind_of(about.flags), about.device, about.flags, gpu->ordinal);
    if (memory == MEMORY_DEVICE || (memory == MEMORY_MANAGED && !written)) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: %s %p is %s, accepted: memory of device %d", who, name, pointer,
                    memory == MEMORY_MANAGED ? "managed memory"
                    : memory == MEMORY_HOST  ? "page-locked host memory"
                                             : "no memory that HIP knows",
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
