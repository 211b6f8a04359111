/* SPDX-License-Identifier: MIT
 *
 * Life of an opened HIP device: making it current and undoing that, its code object as a module. */
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
    return stw_fail(STW_E_INVALID,
                    "%s: stream %p is destroyed or no stream, accepted: a stream of device %d; %s", who,
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
    stw_status status = stw_hip_check(state, module_error_is_image(error) ? STW_E_NO_IMAGE : STW_E_DRIVER,
                                      "hipModuleLoadData", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; image %s %s, runtime version %d%s", reason, image->arch,
                    stw_image_kind_name(image->kind), state->version,
                    status == STW_E_NO_IMAGE ? ", a newer ROCm is needed" : "");
}

/* All 64 KB of LDS are there without being asked for. */
static stw_status hip_kernel_load(stw_gpu *gpu, stw_gpu_kernel *kernel) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int error = state->hip->hipModuleGetFunction(&kernel->function, stw_gpu_module_of(gpu, kernel->image),
                                                 kernel->name);
    if (!error) return STW_OK;
    stw_status status = stw_hip_check(state, STW_E_INTERNAL, "hipModuleGetFunction", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; kernel %s", reason, kernel->name);
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

stw_status stw_hip_state_create(const stw_hip_functions *hip, int ordinal, int version,
                                const stw_image *image, const stw_image *jagged, stw_hip_state **state_out) {
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

/* Nothing is reported from here: a runtime that is shutting down refuses, and the memory goes all the same.
 */
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
