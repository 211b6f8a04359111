/* SPDX-License-Identifier: MIT
 *
 * An opened HIP device: the vendor's part of a stw_gpu. The runtime has a current device for each thread; a
 * call sets it to this one and back. */
#ifndef STW_HIP_DEVICE_H
#define STW_HIP_DEVICE_H

#include "backends/hip/driver.h"
#include "backends/gpu/gpu.h"

/* An image where the runtime may read it; bytes 0: none. */
typedef struct stw_hip_image_copy {
    void *at;
    size_t bytes;
} stw_hip_image_copy;

typedef struct stw_hip_state {
    stw_gpu gpu; /* first: common code sees only this */
    const stw_hip_functions *hip;
    int version;  /* of the runtime: 60342131 = ROCm 6.3 */
    int flushes;  /* its matrix unit takes subnormal f16 for zero */
    int pageable; /* kernels may read memory of malloc: an MI300A, or XNACK on */
    stw_hip_image_copy copy, jagged_copy, cp_copy;
} stw_hip_state;

/* `jagged`: image of the jagged operations, or NULL. Errors: STW_E_NO_MEMORY. */
stw_status stw_hip_state_create(const stw_hip_functions *hip, int ordinal, int version, const stw_image *image,
                                const stw_image *jagged, stw_hip_state **state_out);
void stw_hip_state_destroy(stw_hip_state *state);

/* Whether a runtime newer than ROCm 7 numbers as it did what this library reads. Errors: STW_E_NO_DRIVER with what
 * it says otherwise, or what a call gives. */
stw_status stw_hip_state_prove(stw_hip_state *state, int cu_count, int smem);

/* STW_OK for 0, else as stw_hip_fail; a sticky error loses the device. */
stw_status stw_hip_check(stw_hip_state *state, stw_status otherwise, const char *call, int error);

/* The same of a call that takes a stream: STW_E_INVALID, in the name of `who`, where the runtime does not
 * know that stream. ROCm 5 and 6 look for it; 7 does not and would crash. */
stw_status stw_hip_check_in(stw_hip_state *state, const char *who, stw_stream stream, stw_status otherwise,
                            const char *call, int error);

/* stw_gpu_ops */
stw_status stw_hip_check_stream(stw_gpu *gpu, const char *who, stw_stream stream);
stw_status stw_hip_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written);
stw_status stw_hip_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                          stw_stream stream, void **arguments);

stw_status stw_hip_side_open(stw_gpu *gpu, stw_cp_side *side);
void stw_hip_side_close(stw_gpu *gpu, stw_cp_side *side);
stw_status stw_hip_order(stw_gpu *gpu, void *event, stw_stream before, stw_stream after);

extern struct stw_blas_vendor stw_hip_blas; /* blas.c */

/* stw_backend_ops; the others are backends/gpu/gpu.h's */
stw_status stw_hip_buffer_alloc(const stw_device *device, size_t bytes, void **pointer_out);
stw_status stw_hip_buffer_free(const stw_device *device, void *pointer);
stw_status stw_hip_copy(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream stream);
stw_status stw_hip_stream_create(const stw_device *device, stw_stream *stream_out);
stw_status stw_hip_stream_synchronize(const stw_device *device, stw_stream stream);
stw_status stw_hip_stream_destroy(const stw_device *device, stw_stream stream);

#endif
