/* SPDX-License-Identifier: MIT
 *
 * What the CUDA and HIP backends have in common: an opened device with its image and kernels, its loss, plans
 * and run calls of attention. A backend's own device begins with a stw_gpu and gives a table of what differs.
 * Each call into a driver stands between stw_gpu_enter and stw_gpu_leave, so that the caller's current device
 * or context is what it was. */
#ifndef STW_GPU_GPU_H
#define STW_GPU_GPU_H

#include "backends/gpu/attn_tiled.h"
#include "backends/gpu/image.h"
#include "backends/backend.h"

#include <pthread.h>
#include <stdatomic.h>

/* A kernel with its shape of launch. Entries live as long as the device: plans point at them. */
typedef struct stw_gpu_kernel {
    struct stw_gpu_kernel *next;
    void *function;
    stw_kernel_image image;
    uint32_t threads, smem;
    uint32_t asks_early; /* as its entry has it */
    uint32_t early;      /* it awaits the kernel before it by itself: may be launched while that one runs. The vendor's
                       kernel_load clears it where the driver or the device's code does not have that. */
    char name[80];
} stw_gpu_kernel;

typedef struct stw_gpu stw_gpu;

/* Room for what a main loop's encode_maps writes, at a multiple of 64. */
#define STW_GPU_MAPS_BYTES 1024

/* A dense product of a vendor's library: C[m,n] = A B, row-major, B [k,n], A [m,k] or [k,m] (a_by_k). All
 * fields are set, so that shapes compare as bytes. */
typedef struct stw_gpu_shape {
    int64_t m, n, k;
    stw_dtype dtype, out_dtype;
    int64_t a_by_k;
} stw_gpu_shape;

/* Lives as long as the device. */
typedef struct stw_gpu_product {
    stw_gpu_shape shape;
    size_t workspace;    /* bytes, at most: */
    const char *library; /* for the plan's text */
} stw_gpu_product;
#define STW_GPU_PRODUCT_WORKSPACE (32u << 20)

typedef struct stw_gpu_operands {
    const void *a, *b;
    void *c, *workspace;
    int accumulate; /* added to what is in c */
} stw_gpu_operands;

/* The highest priority of a stream: drivers clamp what is given to their range. Messages need multiprocessors that the
 * work tiles of a main loop hold until its end. */
enum { STW_GPU_FIRST = -1000 };

/* The vendor's part. All but the first three are called between enter and leave. */
typedef struct stw_gpu_ops {
    const char *who;     /* "cuda": opens texts */
    uint32_t wave;       /* threads of a warp   */
    int (*forked)(void); /* 1 in a child of the process that touched the driver */
    /* Makes the device current; *before_out is what it needs to undo that. */
    stw_status (*make_current)(stw_gpu *gpu, int *before_out);
    stw_status (*restore)(stw_gpu *gpu, int before);

    /* Fills gpu->module, and shared_module where there is a second image; `other` 1: gpu->jagged_module alone, 2:
     * jagged_own_module, 3: cp_module. Errors: STW_E_NO_IMAGE when the driver does not take the image. */
    stw_status (*module_load)(stw_gpu *gpu, int other);
    /* Fills kernel->function and makes it ready to launch. Errors: STW_E_INTERNAL when the image holds no
     * such kernel, STW_E_UNSUPPORTED when the device has less shared memory. */
    stw_status (*kernel_load)(stw_gpu *gpu, stw_gpu_kernel *kernel);

    stw_status (*check_stream)(stw_gpu *gpu, const char *who, stw_stream stream);
    /* `written`: an output or the workspace, which kernels store or add to. */
    stw_status (*check_pointer)(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written);
    stw_status (*launch)(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                         stw_stream stream, void **arguments);
    struct stw_blas_vendor *blas; /* its library of dense products (backends/gpu/blas.h) */
    /* Or NULL: fills the second argument of a product of STW_KERNEL_JAGGED_OWN (linear's dX, or dW), STW_GPU_MAPS_BYTES
     * at a multiple of 64, for operands at multiples of 16 bytes. */
    stw_status (*encode_product)(stw_gpu *gpu, const struct stw_jagged_params *params, int dx, void *maps_out);

    /* A stream of priority STW_GPU_FIRST, not ordered with the default one, and events; what fails leaves null. */
    stw_status (*side_open)(stw_gpu *gpu, stw_cp_side *side);
    void (*side_close)(stw_gpu *gpu, stw_cp_side *side);
    stw_status (*order)(stw_gpu *gpu, void *event, stw_stream before, stw_stream after);
} stw_gpu_ops;

struct stw_gpu {
    const stw_gpu_ops *ops;
    int ordinal;        /* as the driver numbers devices, also those of pointers */
    int trust_pointers; /* STERNWAY_POINTERS=trust: check_pointer is not asked */
    const stw_image *image;
    const stw_image *shared_image;     /* or NULL: a second one, with all kernels but STW_KERNEL_OWN */
    const stw_image *jagged_image;     /* or NULL: that of the jagged operations, loaded when one is planned */
    const stw_image *jagged_own_image; /* or NULL: kernels of STW_KERNEL_JAGGED_OWN */
    const stw_image *cp_image;         /* or NULL: those of attention over ranks, loaded when one is planned */
    atomic_int lost;                   /* enum in gpu.c; read without a lock */
    char lost_text[320];               /* the failure that lost the device */
    pthread_mutex_t lock;              /* of what is below: plan time only */
    void *module, *shared_module, *jagged_module, *jagged_own_module, *cp_module;
    stw_gpu_kernel *kernels;
    void *blas; /* backends/gpu/blas.c's */
};

void stw_gpu_init(stw_gpu *gpu, const stw_gpu_ops *ops, int ordinal, const stw_image *image);
void stw_gpu_end(stw_gpu *gpu); /* the module is the vendor's to unload */

/* Makes the device current. Errors, without a driver call: STW_E_FORKED, STW_E_DEVICE_LOST. */
stw_status stw_gpu_enter(stw_gpu *gpu, const char *who, int *before_out);

/* Undoes it. Gives `status`, or the failure to do so when status was STW_OK. */
stw_status stw_gpu_leave(stw_gpu *gpu, int before, stw_status status);

/* Gives `status`, whose text stw_last_error has; STW_E_DEVICE_LOST loses the device. */
stw_status stw_gpu_note(stw_gpu *gpu, stw_status status);

/* What to find: a kernel's name, the image that holds it, its shape of launch. */
typedef struct stw_gpu_entry {
    const char *name;
    stw_kernel_image image;
    uint32_t threads, smem, early;
} stw_gpu_entry;

/* The kernel of that name and launch shape, loading the module first when this is the first of all. Between
 * enter and leave. */
stw_status stw_gpu_kernel_find(stw_gpu *gpu, const stw_gpu_entry *entry, const stw_gpu_kernel **kernel_out);

/* The vendor's check_pointer, unless the context trusts its caller. */
stw_status stw_gpu_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written);

/* The loaded module that holds such kernels. */
void *stw_gpu_module_of(const stw_gpu *gpu, stw_kernel_image image);

/* stw_backend_ops.variant_refusal of both GPU backends. (launch.c) */
const char *stw_gpu_variant_refusal(const stw_device *device, const stw_attn_work *work, const stw_variant *variant);

/* Refuses tensors and workspace that are not memory of this device and streams of another one, by name:
 * STW_E_INVALID. Between enter and leave. (launch.c) */
stw_status stw_gpu_check_call(stw_gpu *gpu, const char *who, stw_attn_call call, const stw_attn_params *params,
                              const void *workspace, stw_stream stream);

/* stw_backend_ops of a device whose state begins with a stw_gpu (launch.c) */
stw_status stw_gpu_attn_prepare(const stw_device *device, stw_attn_work *work);
stw_status stw_gpu_attn_bwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads);
stw_status stw_gpu_attn_fwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads);
stw_status stw_gpu_stage(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                         const stw_attn_stage *stages, uint32_t count, void *workspace, stw_stream stream,
                         uint32_t cpu_threads);
stw_status stw_gpu_dropout_mask(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                                stw_stream stream, uint32_t cpu_threads);

/* The same of the jagged operations (jagged.c) */
stw_status stw_gpu_jagged_prepare(const stw_device *device, stw_jagged_work *work);
stw_status stw_gpu_jagged_bwd(const stw_device *device, const stw_jagged_work *work, const stw_jagged_params *params,
                              void *workspace, stw_stream stream, uint32_t cpu_threads);

/* The same of attention over ranks (cp.c) */
stw_status stw_gpu_cp_open(const stw_device *device, stw_cp_side *side_out);
void stw_gpu_cp_close(const stw_device *device, stw_cp_side *side);
stw_status stw_gpu_cp_check(const stw_device *device, const char *who, stw_plan_kind kind,
                            const stw_attn_params *params, const void *workspace, stw_stream stream);
stw_status stw_gpu_cp_cast(const stw_device *device, const stw_cp_side *side, const stw_cp_cast *cast,
                           stw_stream stream);
stw_status stw_gpu_cp_merge(const stw_device *device, const stw_cp_side *side, const stw_cp_merge *merge,
                            stw_stream stream);
stw_status stw_gpu_cp_order(const stw_device *device, const stw_cp_side *side, int joins, stw_stream before,
                            stw_stream after);

#endif
