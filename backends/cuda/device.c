/* SPDX-License-Identifier: MIT
 *
 * Life of an opened device: the primary context, entering and leaving it, and its loss. */
#include "backends/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEVICE_WORKS, DEVICE_FAILING, DEVICE_LOST };

stw_status stw_cuda_state_create(const stw_cuda_functions *cuda, int ordinal, int device, int version,
                                 const stw_image *image, stw_cuda_state **state_out) {
    stw_cuda_state *state = calloc(1, sizeof *state);
    if (!state) return stw_fail(STW_E_NO_MEMORY, "cuda: no memory for the state of device %d", ordinal);
    int error = cuda->cuDevicePrimaryCtxRetain(&state->context, device);
    if (error) {
        free(state);
        return stw_cuda_fail(STW_E_DRIVER, "cuDevicePrimaryCtxRetain", error);
    }
    state->cuda = cuda;
    state->device = device;
    state->ordinal = ordinal;
    state->version = version;
    state->image = image;
    atomic_init(&state->lost, DEVICE_WORKS);
    pthread_mutex_init(&state->lock, NULL);
    *state_out = state;
    return STW_OK;
}

/* Nothing is reported from here: a driver that is shutting down refuses, and the memory goes all the same. */
void stw_cuda_state_destroy(stw_cuda_state *state) {
    const stw_cuda_functions *cuda = state->cuda;
    if (!stw_cuda_forked()) {
        if (state->module && !cuda->cuCtxPushCurrent_v2(state->context)) {
            void *context;
            cuda->cuModuleUnload(state->module);
            cuda->cuCtxPopCurrent_v2(&context);
        }
        cuda->cuDevicePrimaryCtxRelease_v2(state->device);
    }
    for (stw_cuda_kernel *kernel = state->kernels, *next; kernel; kernel = next) {
        next = kernel->next;
        free(kernel);
    }
    pthread_mutex_destroy(&state->lock);
    free(state);
}

/* The text is complete before the state says so; of several threads that fail at once the first one's words
 * stay. */
static void device_lose(stw_cuda_state *state) {
    int works = DEVICE_WORKS;
    if (!atomic_compare_exchange_strong(&state->lost, &works, DEVICE_FAILING)) return;
    snprintf(state->lost_text, sizeof state->lost_text, "%s", stw_last_error());
    atomic_store_explicit(&state->lost, DEVICE_LOST, memory_order_release);
}

stw_status stw_cuda_check(stw_cuda_state *state, stw_status otherwise, const char *call, int error) {
    if (!error) return STW_OK;
    stw_status status = stw_cuda_fail(otherwise, call, error);
    if (status == STW_E_DEVICE_LOST) device_lose(state);
    return status;
}

stw_status stw_cuda_enter(stw_cuda_state *state, const char *who) {
    if (stw_cuda_forked())
        return stw_fail(
            STW_E_FORKED,
            "%s: this context was made before the process forked; a GPU is usable in a child only "
            "when its parent has not used it before (process %d)",
            who, (int)getpid());
    int lost = atomic_load_explicit(&state->lost, memory_order_acquire);
    if (lost != DEVICE_WORKS)
        return stw_fail(STW_E_DEVICE_LOST, "%s: the device was lost: %s; the process must be started again",
                        who, lost == DEVICE_LOST ? state->lost_text : "another thread's call failed");
    return stw_cuda_check(state, STW_E_DRIVER, "cuCtxPushCurrent_v2",
                          state->cuda->cuCtxPushCurrent_v2(state->context));
}

stw_status stw_cuda_leave(stw_cuda_state *state, stw_status status) {
    void *context = NULL;
    int error = state->cuda->cuCtxPopCurrent_v2(&context);
    return status != STW_OK || !error ? status
                                      : stw_cuda_check(state, STW_E_DRIVER, "cuCtxPopCurrent_v2", error);
}
