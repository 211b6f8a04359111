/* SPDX-License-Identifier: MIT
 *
 * An opened CUDA device: its primary context, its image as a module, its kernels. Each call into the driver
 * stands between stw_cuda_enter and stw_cuda_leave, so that the caller's current context is what it was. */
#ifndef STW_CUDA_DEVICE_H
#define STW_CUDA_DEVICE_H

#include "backends/cuda/driver.h"
#include "common/image.h"
#include "dispatch/backend.h"

#include <pthread.h>
#include <stdatomic.h>

/* A kernel with its shape of launch. Entries live as long as the device: plans point at them. */
typedef struct stw_cuda_kernel {
    struct stw_cuda_kernel *next;
    void *function;
    uint32_t threads, smem;
    char name[80];
} stw_cuda_kernel;

typedef struct stw_cuda_state {
    const stw_cuda_functions *cuda;
    int device;  /* CUdevice */
    int ordinal; /* as the driver numbers devices, also those of pointers */
    int version; /* of the driver: 12040 = CUDA 12.4 */
    void *context;
    const stw_image *image;
    atomic_int lost;      /* enum in device.c; read without a lock */
    char lost_text[320];  /* the failure that lost the device */
    pthread_mutex_t lock; /* of the two below: plan time only */
    void *module;
    stw_cuda_kernel *kernels;
} stw_cuda_state;

/* Retains the primary context. Errors: STW_E_NO_MEMORY, STW_E_DRIVER. */
stw_status stw_cuda_state_create(const stw_cuda_functions *cuda, int ordinal, int device, int version,
                                 const stw_image *image, stw_cuda_state **state_out);
void stw_cuda_state_destroy(stw_cuda_state *state);

/* Makes the device's context current. Errors, without a driver call: STW_E_FORKED, STW_E_DEVICE_LOST. */
stw_status stw_cuda_enter(stw_cuda_state *state, const char *who);

/* Takes it away again. Gives `status`, or the failure to do so when status was STW_OK. */
stw_status stw_cuda_leave(stw_cuda_state *state, stw_status status);

/* STW_OK for 0, else as stw_cuda_fail; a sticky error loses the device. */
stw_status stw_cuda_check(stw_cuda_state *state, stw_status otherwise, const char *call, int error);

/* The kernel of that name and launch shape, loading the module first when this is the first of all. Between
 * enter and leave. Errors: STW_E_NO_IMAGE when the driver does not take the image, STW_E_INTERNAL when it
 * holds no such kernel, STW_E_UNSUPPORTED when the device has less shared memory. */
stw_status stw_cuda_kernel_find(stw_cuda_state *state, const char *name, uint32_t threads, uint32_t smem,
                                const stw_cuda_kernel **kernel_out);

/* stw_backend_ops */
stw_status stw_cuda_attn_prepare(const stw_device *device, stw_attn_work *work);
stw_status stw_cuda_attn_bwd(const stw_device *device, const stw_attn_work *work,
                             const stw_attn_params *params, void *workspace, stw_stream stream);
stw_status stw_cuda_attn_fwd(const stw_device *device, const stw_attn_work *work,
                             const stw_attn_params *params, void *workspace, stw_stream stream);
stw_status stw_cuda_dropout_mask(const stw_device *device, const stw_attn_work *work,
                                 const stw_attn_params *params, stw_stream stream);
stw_status stw_cuda_buffer_alloc(const stw_device *device, size_t bytes, void **pointer_out);
stw_status stw_cuda_buffer_free(const stw_device *device, void *pointer);
stw_status stw_cuda_copy(const stw_device *device, void *to, const void *from, size_t bytes,
                         stw_stream stream);
stw_status stw_cuda_stream_create(const stw_device *device, stw_stream *stream_out);
stw_status stw_cuda_stream_synchronize(const stw_device *device, stw_stream stream);
stw_status stw_cuda_stream_destroy(const stw_device *device, stw_stream stream);

/* Refuses tensors and workspace that are not memory of this device and streams of another one, by name:
 * STW_E_INVALID. Between enter and leave. */
stw_status stw_cuda_check_call(stw_cuda_state *state, const char *who, const stw_attn_params *params,
                               const void *workspace, stw_stream stream);

#endif
