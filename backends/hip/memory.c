/* SPDX-License-Identifier: MIT
 *
 * The portable memory and stream calls on a HIP device; the stream and events of attention over ranks. */
#include "backends/hip/device.h"

/* One runtime call with the device current; `check` makes a status of `error`. */
#define HIP_CALL_AS(device, who, check, call, ...)                                                                     \
    stw_hip_state *state = (device)->state;                                                                            \
    int before;                                                                                                        \
    stw_status status = stw_gpu_enter(&state->gpu, who, &before);                                                      \
    if (status) return status;                                                                                         \
    int error = state->hip->call(__VA_ARGS__);                                                                         \
    status = stw_gpu_leave(&state->gpu, before, check)
#define HIP_CALL(device, who, otherwise, call, ...)                                                                    \
    HIP_CALL_AS(device, who, stw_hip_check(state, otherwise, #call, error), call, __VA_ARGS__)
/* One that takes a stream, named `stream`. */
#define HIP_CALL_IN(device, who, call, ...)                                                                            \
    HIP_CALL_AS(device, who, stw_hip_check_in(state, who, stream, STW_E_DRIVER, #call, error), call, __VA_ARGS__)

/* hipMalloc gives no pointer for 0 bytes. Its pointers are 256-byte aligned. */
stw_status stw_hip_buffer_alloc(const stw_device *device, size_t bytes, void **pointer_out) {
    void *pointer = NULL;
    HIP_CALL(device, "buffer_alloc", STW_E_DRIVER, hipMalloc, &pointer, bytes ? bytes : 1);
    if (status == STW_E_NO_MEMORY)
        return stw_fail(STW_E_NO_MEMORY, "buffer_alloc: no memory for %zu bytes on \"%s\"", bytes, device->name);
    if (status && pointer) state->hip->hipFree(pointer); /* the caller's device could not be restored */
    if (!status) *pointer_out = pointer;
    return status;
}

stw_status stw_hip_buffer_free(const stw_device *device, void *pointer) {
    HIP_CALL(device, "buffer_free", STW_E_INVALID, hipFree, pointer);
    return status;
}

/* Addresses are unique over host and devices: the runtime finds the direction itself. */
stw_status stw_hip_copy(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream stream) {
    HIP_CALL_IN(device, "copy", hipMemcpyAsync, to, from, bytes, STW_HIP_COPY_DEFAULT, stream);
    return status;
}

/* Ordered with the default stream, as a portable program expects that gives one call NULL. */
stw_status stw_hip_stream_create(const stw_device *device, stw_stream *stream_out) {
    void *stream = NULL;
    HIP_CALL(device, "stream_create", STW_E_DRIVER, hipStreamCreateWithFlags, &stream, 0);
    if (status && stream) state->hip->hipStreamDestroy(stream); /* as above */
    if (!status) *stream_out = stream;
    return status;
}

stw_status stw_hip_stream_synchronize(const stw_device *device, stw_stream stream) {
    HIP_CALL_IN(device, "stream_synchronize", hipStreamSynchronize, stream);
    return status;
}

stw_status stw_hip_stream_destroy(const stw_device *device, stw_stream stream) {
    HIP_CALL_IN(device, "stream_destroy", hipStreamDestroy, stream);
    return status;
}

/* ---- stw_gpu_ops: between enter and leave ---- */

stw_status stw_hip_side_open(stw_gpu *gpu, stw_cp_side *side) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    stw_status status = stw_hip_check(
        state, STW_E_DRIVER, "hipStreamCreateWithPriority",
        state->hip->hipStreamCreateWithPriority(&side->stream, STW_HIP_STREAM_NON_BLOCKING, STW_GPU_FIRST));
    for (int i = 0; i < 2 && !status; ++i)
        status = stw_hip_check(state, STW_E_DRIVER, "hipEventCreateWithFlags",
                               state->hip->hipEventCreateWithFlags(&side->event[i], STW_HIP_EVENT_WITHOUT_TIME));
    return status;
}

/* The runtime keeps what a stream still has to do. */
void stw_hip_side_close(stw_gpu *gpu, stw_cp_side *side) {
    const stw_hip_functions *hip = ((stw_hip_state *)gpu)->hip;
    for (int i = 0; i < 2; ++i)
        if (side->event[i]) hip->hipEventDestroy(side->event[i]);
    if (side->stream) hip->hipStreamDestroy(side->stream);
}

stw_status stw_hip_order(stw_gpu *gpu, void *event, stw_stream before, stw_stream after) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    stw_status status = stw_hip_check(state, STW_E_DRIVER, "hipEventRecord", state->hip->hipEventRecord(event, before));
    if (status) return status;
    return stw_hip_check(state, STW_E_DRIVER, "hipStreamWaitEvent", state->hip->hipStreamWaitEvent(after, event, 0));
}
