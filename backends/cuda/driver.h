/* SPDX-License-Identifier: MIT
 *
 * libcuda.so.1 as a table of functions, loaded and started on first use. Used by this backend only. */
#ifndef STW_CUDA_DRIVER_H
#define STW_CUDA_DRIVER_H

#include "common/status.h"

#include <stdint.h>

/* CUlaunchAttribute, CUlaunchConfig */
typedef struct stw_cuda_launch_attribute {
    int id;
    union {
        int allowed;      /* of STW_CUDA_LAUNCH_EARLY */
        uint64_t room[8]; /* 64 bytes, at a multiple of 8 */
    } value;
} stw_cuda_launch_attribute;
typedef struct stw_cuda_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem;
    void *stream;
    stw_cuda_launch_attribute *attributes;
    unsigned attribute_count;
} stw_cuda_launch_config;
/* CUlaunchAttributeID: programmatic stream serialization, the kernel awaits the one before it itself */
enum { STW_CUDA_LAUNCH_EARLY = 6 };

typedef struct stw_cuda_functions {
#define STW_CUDA(name, need, parameters) int(*name) parameters;
#include "backends/cuda/driver.def"
#undef STW_CUDA
} stw_cuda_functions;

/* Values of CUresult that are used; these and those below are pinned by the driver's ABI. */
enum {
    STW_CUDA_INVALID_VALUE = 1,
    STW_CUDA_OUT_OF_MEMORY = 2,
    STW_CUDA_NO_DEVICE = 100,
    STW_CUDA_INVALID_IMAGE = 200,
    STW_CUDA_NO_BINARY_FOR_GPU = 209,
    STW_CUDA_INVALID_PTX = 218,
    STW_CUDA_JIT_COMPILER_NOT_FOUND = 221,
    STW_CUDA_UNSUPPORTED_PTX_VERSION = 222,
    STW_CUDA_JIT_COMPILATION_DISABLED = 223,
    STW_CUDA_NOT_SUPPORTED = 801
};
/* CUdevice_attribute */
enum {
    STW_CUDA_SM_COUNT = 16,
    STW_CUDA_CC_MAJOR = 75,
    STW_CUDA_CC_MINOR = 76,
    STW_CUDA_SMEM_OPTIN = 97 /* most shared memory a CTA can ask for */
};
/* CUfunction_attribute, CUjit_option, CUpointer_attribute, CUmemorytype */
enum { STW_CUDA_FUNC_SMEM = 8 }; /* most dynamic shared memory of a launch */
enum { STW_CUDA_JIT_ERROR_LOG = 5, STW_CUDA_JIT_ERROR_LOG_BYTES = 6 };
enum { STW_CUDA_POINTER_MEMORY_TYPE = 2, STW_CUDA_POINTER_IS_MANAGED = 8, STW_CUDA_POINTER_ORDINAL = 9 };
enum { STW_CUDA_MEMORY_HOST = 1, STW_CUDA_MEMORY_DEVICE = 2 };
/* CUstream_flags, CUevent_flags */
enum { STW_CUDA_STREAM_NON_BLOCKING = 1, STW_CUDA_EVENT_WITHOUT_TIME = 2 };

/* CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion */
enum { STW_CUDA_MAP_F16 = 6, STW_CUDA_MAP_BF16 = 9, STW_CUDA_SWIZZLE_128 = 3, STW_CUDA_L2_256 = 3 };

/* Loads the library and calls cuInit, each once. Errors: STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_FORKED. */
stw_status stw_cuda_start(const stw_cuda_functions **functions_out);

/* 1 in a child of the process that touched the driver: it must not be called there. */
int stw_cuda_forked(void);

/* Fails with "cuda: CALL failed: NAME (NUMBER): the driver's words": STW_E_NO_DEVICE and STW_E_NO_MEMORY
 * for the errors that mean these, STW_E_DEVICE_LOST for sticky ones, else `otherwise`. */
stw_status stw_cuda_fail(stw_status otherwise, const char *call, int error);

#endif
