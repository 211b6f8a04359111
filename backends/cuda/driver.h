/* SPDX-License-Identifier: MIT
 *
 * libcuda.so.1 as a table of functions, loaded and started on first use. Used by backend.c only. */
#ifndef STW_CUDA_DRIVER_H
#define STW_CUDA_DRIVER_H

#include "common/status.h"

typedef struct stw_cuda_functions {
#define STW_CUDA(name, need, parameters) int(*name) parameters;
#include "backends/cuda/driver.def"
#undef STW_CUDA
} stw_cuda_functions;

/* Values of CUresult and CUdevice_attribute that are used; they are pinned by the driver's ABI. */
enum { STW_CUDA_OUT_OF_MEMORY = 2, STW_CUDA_NO_DEVICE = 100 };
enum {
    STW_CUDA_SM_COUNT = 16,
    STW_CUDA_CC_MAJOR = 75,
    STW_CUDA_CC_MINOR = 76,
    STW_CUDA_SMEM_OPTIN = 97 /* most shared memory a block can ask for */
};

/* Loads the library and calls cuInit, each once. Errors: STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_FORKED. */
stw_status stw_cuda_start(const stw_cuda_functions **functions_out);

/* Fails with "cuda: CALL failed: NAME (NUMBER): the driver's words": STW_E_NO_DEVICE and STW_E_NO_MEMORY
 * for the errors that mean these, else `otherwise`. */
stw_status stw_cuda_fail(stw_status otherwise, const char *call, int error);

#endif
