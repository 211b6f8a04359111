/* SPDX-License-Identifier: MIT
 *
 * The portable memory and stream calls on a CUDA device; the stream and events of attention over ranks. */
#include "backends/cuda/device.h"

/* One driver call in the device's context. */
#define CUDA_CALL(device, who, otherwise, call, ...)                                                                   \
    stw_cuda_state *state = (device)->state;                                                                           \
    int before;                                                                                                        \
    stw_status status = stw_gpu_enter(&state->gpu, who, &before);                                                      \
    if (status) return status;                                                                                         \
    status = stw_cuda_check(state, otherwise, #call, state->cuda->call(__VA_ARGS__));                                  \
    status = stw_gpu_leave(&state->gpu, before, status)

/* The call worked, but the caller's context could not be restored: what was made is not kept. */
static stw_status give_back(stw_cuda_state *state, stw_status status, uint64_t pointer, void *stream) {
    void *context;
    if (state->cuda->cuCtxPushCurrent_v2(state->context)) return status;
    if (pointer) state->cuda->cuMemFree_v2(pointer);
    if (stream) state->cuda->cuStreamDestroy_v2(stream);
    state->cuda->cuCtxPopCurrent_v2(&context);
    return status;
}

/* cuMemAlloc takes no 0. Its pointers are 256-byte aligned. */
stw_status stw_cuda_buffer_alloc(const stw_device *device, size_t bytes, void **pointer_out) {
    uint64_t pointer = 0;
    CUDA_CALL(device, "buffer_alloc", STW_E_DRIVER, cuMemAlloc_v2, &pointer, bytes ? bytes : 1);
    if (status == STW_E_NO_MEMORY)
        return stw_fail(STW_E_NO_MEMORY, "buffer_alloc: no memory for %zu bytes on \"%s\"", bytes, device->name);
    if (status && pointer) return give_back(state, status, pointer, NULL);
    if (!status) *pointer_out = (void *)(uintptr_t)pointer;
    return status;
}

stw_status stw_cuda_buffer_free(const stw_device *device, void *pointer) {
    CUDA_CALL(device, "buffer_free", STW_E_INVALID, cuMemFree_v2, (uintptr_t)pointer);
    return status;
}

/* Addresses are unique over host and devices: the driver finds the direction itself. */
stw_status stw_cuda_copy(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream stream) {
    CUDA_CALL(device, "copy", STW_E_DRIVER, cuMemcpyAsync, (uintptr_t)to, (uintptr_t)from, bytes, stream);
    return status;
}

/* Ordered with the default stream, as a portable program expects that gives one call NULL. */
stw_status stw_cuda_stream_create(const stw_device *device, stw_stream *stream_out) {
    void *stream = NULL;
    CUDA_CALL(device, "stream_create", STW_E_DRIVER, cuStreamCreate, &stream, 0);
    if (status && stream) return give_back(state, status, 0, stream);
    if (!status) *stream_out = stream;
    return status;
}

stw_status stw_cuda_stream_synchronize(const stw_device *device, stw_stream stream) {
    CUDA_CALL(device, "stream_synchronize", STW_E_DRIVER, cuStreamSynchronize, stream);
    return status;
}

stw_status stw_cuda_stream_destroy(const stw_device *device, stw_stream stream) {
    CUDA_CALL(device, "stream_destroy", STW_E_DRIVER, cuStreamDestroy_v2, stream);
    return status;
}

/* ---- stw_gpu_ops: between enter and leave ---- */

stw_status stw_cuda_side_open(stw_gpu *gpu, stw_cp_side *side) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    stw_status status = stw_cuda_check(
        state, STW_E_DRIVER, "cuStreamCreateWithPriority",
        state->cuda->cuStreamCreateWithPriority(&side->stream, STW_CUDA_STREAM_NON_BLOCKING, STW_GPU_FIRST));
    for (int i = 0; i < 2 && !status; ++i)
        status = stw_cuda_check(state, STW_E_DRIVER, "cuEventCreate",
                                state->cuda->cuEventCreate(&side->event[i], STW_CUDA_EVENT_WITHOUT_TIME));
    return status;
}

/* The driver keeps what a stream still has to do. */
void stw_cuda_side_close(stw_gpu *gpu, stw_cp_side *side) {
    const stw_cuda_functions *cuda = ((stw_cuda_state *)gpu)->cuda;
    for (int i = 0; i < 2; ++i)
        if (side->event[i]) cuda->cuEventDestroy_v2(side->event[i]);
    if (side->stream) cuda->cuStreamDestroy_v2(side->stream);
}

stw_status stw_cuda_order(stw_gpu *gpu, void *event, stw_stream before, stw_stream after) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    stw_status status = stw_cuda_check(state, STW_E_DRIVER, "cuEventRecord", state->cuda->cuEventRecord(event, before));
    if (status) return status;
    return stw_cuda_check(state, STW_E_DRIVER, "cuStreamWaitEvent", state->cuda->cuStreamWaitEvent(after, event, 0));
}
