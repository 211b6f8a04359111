/* SPDX-License-Identifier: MIT
 *
 * An opened CUDA device: the vendor's part of a stw_gpu, with its primary context. */
#ifndef STW_CUDA_DEVICE_H
#define STW_CUDA_DEVICE_H

#include "backends/cuda/driver.h"
#include "backends/gpu/gpu.h"

typedef struct stw_cuda_state {
    stw_gpu gpu; /* first: common code sees only this */
    const stw_cuda_functions *cuda;
    int device;  /* CUdevice */
    int version; /* of the driver: 12040 = CUDA 12.4 */
    void *context;
} stw_cuda_state;

/* Retains the primary context. `shared`: image of the kernels that `image` lacks, or NULL; `jagged`: that of
 * the jagged operations, or NULL. Errors: STW_E_NO_MEMORY, STW_E_DRIVER. */
stw_status stw_cuda_state_create(const stw_cuda_functions *cuda, int ordinal, int device, int version,
                                 const stw_image *image, const stw_image *shared, const stw_image *jagged,
                                 stw_cuda_state **state_out);
void stw_cuda_state_destroy(stw_cuda_state *state);

/* STW_OK for 0, else as stw_cuda_fail; a sticky error loses the device. */
stw_status stw_cuda_check(stw_cuda_state *state, stw_status otherwise, const char *call, int error);

/* stw_gpu_ops */
stw_status stw_cuda_module_load(stw_gpu *gpu, int other);
stw_status stw_cuda_side_open(stw_gpu *gpu, stw_cp_side *side);
void stw_cuda_side_close(stw_gpu *gpu, stw_cp_side *side);
stw_status stw_cuda_order(stw_gpu *gpu, void *event, stw_stream before, stw_stream after);

/* jagged_sm90.c: stw_gpu_ops.encode_product */
stw_status stw_cuda_encode_product(stw_gpu *gpu, const struct stw_jagged_params *params, int dx, void *maps_out);
stw_status stw_cuda_kernel_load(stw_gpu *gpu, stw_gpu_kernel *kernel);
stw_status stw_cuda_check_stream(stw_gpu *gpu, const char *who, stw_stream stream);
stw_status stw_cuda_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written);
stw_status stw_cuda_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                           stw_stream stream, void **arguments);

extern struct stw_blas_vendor stw_cuda_blas; /* blas.c */

/* stw_backend_ops; the others are backends/gpu/gpu.h's */
stw_status stw_cuda_buffer_alloc(const stw_device *device, size_t bytes, void **pointer_out);
stw_status stw_cuda_buffer_free(const stw_device *device, void *pointer);
stw_status stw_cuda_copy(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream stream);
stw_status stw_cuda_stream_create(const stw_device *device, stw_stream *stream_out);
stw_status stw_cuda_stream_synchronize(const stw_device *device, stw_stream stream);
stw_status stw_cuda_stream_destroy(const stw_device *device, stw_stream stream);

#endif
