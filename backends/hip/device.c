/* SPDX-License-Identifier: MIT
 *
 * Life of an opened HIP device: making it current and undoing that, its code object as a
 * module; what a run call asks the runtime, and the launch of one kernel. */
#include "backends/hip/device.h"

#include "backends/gpu/blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

stw_status stw_hip_check(stw_hip_state *state, stw_status otherwise, const char *call, int error) {
    return error ? stw_gpu_note(&state->gpu, stw_hip_fail(otherwise, call, error)) : STW_OK;
}

stw_status stw_hip_check_in(stw_hip_state *state, const char *who, stw_stream stream, stw_status otherwise,
                            const char *call, int error) {
    stw_status status = stw_hip_check(state, otherwise, call, error);
    if (error != STW_HIP_CONTEXT_IS_DESTROYED) return status;
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(STW_E_INVALID, "%s: stream %p is destroyed or no stream, accepted: a stream of device %d; %s", who,
                    stream, state->gpu.ordinal, reason);
}

static stw_status hip_make_current(stw_gpu *gpu, int *before_out) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int before = gpu->ordinal;
    stw_status status = stw_hip_check(state, STW_E_DRIVER, "hipGetDevice", state->hip->hipGetDevice(&before));
    *before_out = before;
    if (status || before == gpu->ordinal) return status;
    return stw_hip_check(state, STW_E_DRIVER, "hipSetDevice", state->hip->hipSetDevice(gpu->ordinal));
}

static stw_status hip_restore(stw_gpu *gpu, int before) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    if (before == gpu->ordinal) return STW_OK;
    return stw_hip_check(state, STW_E_DRIVER, "hipSetDevice", state->hip->hipSetDevice(before));
}

/* Errors that say "this runtime cannot run this image". */
static int module_error_is_image(int error) {
    return error == STW_HIP_INVALID_IMAGE || error == STW_HIP_NO_BINARY_FOR_GPU ||
           error == STW_HIP_INVALID_KERNEL_FILE || error == STW_HIP_INVALID_SOURCE ||
           error == STW_HIP_SHARED_OBJECT_INIT_FAILED;
}

static stw_status hip_module_load(stw_gpu *gpu, int jagged) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    const stw_image *image = jagged ? gpu->jagged_image : gpu->image;
    void *module = NULL;
    int error = state->hip->hipModuleLoadData(&module, image->begin);
    if (!error) {
        *(jagged ? &gpu->jagged_module : &gpu->module) = module;
        return STW_OK;
    }
    stw_status status =
        stw_hip_check(state, module_error_is_image(error) ? STW_E_NO_IMAGE : STW_E_DRIVER, "hipModuleLoadData", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; image %s %s, runtime version %d%s", reason, image->arch,
                    stw_image_kind_name(image->kind), state->version,
                    status == STW_E_NO_IMAGE ? ", a newer ROCm is needed" : "");
}

/* All 64 KB of LDS are there without being asked for. */
static stw_status hip_kernel_load(stw_gpu *gpu, stw_gpu_kernel *kernel) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int error =
        state->hip->hipModuleGetFunction(&kernel->function, stw_gpu_module_of(gpu, kernel->image), kernel->name);
    if (!error) return STW_OK;
    stw_status status = stw_hip_check(state, STW_E_INTERNAL, "hipModuleGetFunction", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; kernel %s", reason, kernel->name);
}

/* ---- a run call: its pointers, its stream, one launch ---- */

enum { MEMORY_UNKNOWN, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED };

static int memory_of(const stw_hip_state *state, const stw_hip_pointer *pointer) {
    static const int since_6[] = {MEMORY_UNKNOWN, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED};
    static const int in_5[] = {MEMORY_HOST, MEMORY_DEVICE, MEMORY_UNKNOWN, MEMORY_UNKNOWN, MEMORY_MANAGED};
    if (pointer->managed) return MEMORY_MANAGED;
    if (state->version >= 60000000) return pointer->type >= 0 && pointer->type < 4 ? since_6[pointer->type] : 0;
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
stw_status stw_hip_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    stw_hip_pointer about = {.device = -1};
    int error = state->hip->hipPointerGetAttributes(&about, pointer);
    if (error == STW_HIP_INVALID_VALUE && state->hip->hipGetLastError) state->hip->hipGetLastError();
    if (error && error != STW_HIP_INVALID_VALUE)
        return stw_hip_check(state, STW_E_DRIVER, "hipPointerGetAttributes", error);
    int memory = error ? MEMORY_UNKNOWN : memory_of(state, &about);
    if (memory == MEMORY_DEVICE && about.device != gpu->ordinal)
        return stw_fail(STW_E_INVALID, "%s: %s %p is memory of device %d, accepted: memory of device %d", who, name,
                        pointer, about.device, gpu->ordinal);
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
    return stw_fail(STW_E_INVALID, "%s: stream %p belongs to device %d, accepted: a stream of device %d", who, stream,
                    device, gpu->ordinal);
}

stw_status stw_hip_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                          stw_stream stream, void **arguments) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int error = state->hip->hipModuleLaunchKernel(kernel->function, grid_x, grid_y, 1, kernel->threads, 1, 1,
                                                  kernel->smem, stream, arguments, NULL);
    return stw_hip_check_in(state, gpu->ops->who, stream, STW_E_DRIVER, "hipModuleLaunchKernel", error);
}

static const stw_gpu_ops hip_ops = {
    .who = "hip",
    .wave = 64,
    .forked = stw_hip_forked,
    .make_current = hip_make_current,
    .restore = hip_restore,
    .module_load = hip_module_load,
    .kernel_load = hip_kernel_load,
    .check_stream = stw_hip_check_stream,
    .check_pointer = stw_hip_check_pointer,
    .launch = stw_hip_launch,
    .blas = &stw_hip_blas,
};

stw_status stw_hip_state_create(const stw_hip_functions *hip, int ordinal, int version, const stw_image *image,
                                const stw_image *jagged, stw_hip_state **state_out) {
    stw_hip_state *state = calloc(1, sizeof *state);
    if (!state) return stw_fail(STW_E_NO_MEMORY, "hip: no memory for the state of device %d", ordinal);
    stw_gpu_init(&state->gpu, &hip_ops, ordinal, image);
    state->gpu.jagged_image = jagged;
    state->hip = hip;
    state->version = version;
    state->flushes = !strcmp(image->arch, "gfx90a");
    *state_out = state;
    return STW_OK;
}

/* Nothing is reported from here: a runtime that is shutting down refuses, and the memory goes all the same. */
void stw_hip_state_destroy(stw_hip_state *state) {
    const stw_hip_functions *hip = state->hip;
    int mine = state->gpu.ordinal, before = mine;
    if ((state->gpu.module || state->gpu.jagged_module) && !stw_hip_forked()) {
        if (!hip->hipGetDevice(&before) && (before == mine || !hip->hipSetDevice(mine))) {
            /* hipblasLtDestroy ends the process when the device does not work */
            if (state->gpu.blas) stw_blas_end(&state->gpu, !hip->hipStreamSynchronize(NULL));
            if (state->gpu.jagged_module) hip->hipModuleUnload(state->gpu.jagged_module);
            if (state->gpu.module) hip->hipModuleUnload(state->gpu.module);
        }
        if (before != mine) hip->hipSetDevice(before);
        if (hip->hipGetLastError) hip->hipGetLastError();
    }
    stw_blas_end(&state->gpu, 0);
    stw_gpu_end(&state->gpu);
    free(state);
}
