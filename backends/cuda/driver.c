/* SPDX-License-Identifier: MIT
 *
 * Loading and starting libcuda.so.1, and its errors as text. */
#include "backends/cuda/driver.h"

#include "common/driver.h"

static stw_cuda_functions cuda;

enum { OPTIONAL = 0, REQUIRED = 1 };
static const stw_dso_row cuda_rows[] = {
#define STW_CUDA(name, need, parameters) {#name, need, offsetof(stw_cuda_functions, name)},
#include "backends/cuda/driver.def"
#undef STW_CUDA
};
static const char *const cuda_sonames[] = {"libcuda.so.1"};

/* cuDriverGetVersion works before cuInit. */
static void cuda_describe(stw_text *text) {
    int version = 0;
    if (cuda.cuDriverGetVersion && cuda.cuDriverGetVersion(&version) == 0)
        stw_text_add(text, " (CUDA %d.%d)", version / 1000, version % 1000 / 10);
}

static stw_status cuda_init(void) {
    int error = cuda.cuInit(0);
    return error ? stw_cuda_fail(STW_E_NO_DRIVER, "cuInit", error) : STW_OK;
}

static stw_driver cuda_driver = {
    .who = "cuda",
    .sonames = cuda_sonames,
    .soname_count = sizeof cuda_sonames / sizeof cuda_sonames[0],
    .rows = cuda_rows,
    .row_count = sizeof cuda_rows / sizeof cuda_rows[0],
    .table = &cuda,
    .describe = cuda_describe,
    .start = cuda_init,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

stw_status stw_cuda_start(const stw_cuda_functions **functions_out) {
    stw_status status = stw_driver_start(&cuda_driver);
    if (status == STW_OK) *functions_out = &cuda;
    return status;
}

stw_status stw_cuda_fail(stw_status otherwise, const char *call, int error) {
    const char *name = NULL, *words = NULL;
    if (cuda.cuGetErrorName && cuda.cuGetErrorName(error, &name)) name = NULL;
    if (cuda.cuGetErrorString && cuda.cuGetErrorString(error, &words)) words = NULL;
    stw_status status = error == STW_CUDA_NO_DEVICE       ? STW_E_NO_DEVICE
                        : error == STW_CUDA_OUT_OF_MEMORY ? STW_E_NO_MEMORY
                                                          : otherwise;
    return stw_fail(status, "cuda: %s failed: %s (%d)%s%s", call, name ? name : "error", error,
                    words ? ": " : "", words ? words : "");
}
