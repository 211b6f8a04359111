/* SPDX-License-Identifier: MIT
 *
 * Loading and starting libcuda.so.1, and its errors as text. */
#include "backends/cuda/driver.h"

#include "backends/gpu/driver.h"

#include <stdio.h>
#include <string.h>

static stw_cuda_functions cuda;

enum { OPTIONAL = 0, REQUIRED = 1 };
static const stw_dso_row cuda_rows[] = {
#define STW_CUDA(name, need, parameters) {#name, need, offsetof(stw_cuda_functions, name)},
#include "backends/cuda/driver.def"
#undef STW_CUDA
};
static const char *const cuda_sonames[] = {"libcuda.so.1"};
enum { CUDA_ROWS = sizeof cuda_rows / sizeof cuda_rows[0] };

/* cuDriverGetVersion works before cuInit. */
static void cuda_describe(stw_text *text) {
    int version = 0;
    if (cuda.cuDriverGetVersion && cuda.cuDriverGetVersion(&version) == 0)
        stw_text_add(text, " (CUDA %d.%d)", version / 1000, version % 1000 / 10);
}

/* The driver's own table, for the ABI of CUDA 12.0, which is the one driver.def declares: layers that stand
 * between programs and the driver hand out their functions here. A function it does not give stays dlsym's,
 * and so do the newer ones, which have no CUDA 12.0 form. */
static void cuda_resolve(void) {
    enum { ABI = 12000, FOUND = 0 };
    if (!cuda.cuGetProcAddress_v2) return;
    for (size_t i = 0; i < CUDA_ROWS; ++i) {
        char name[64];
        snprintf(name, sizeof name, "%s", cuda_rows[i].name);
        char *suffix = strstr(name, "_v");
        if (suffix) *suffix = 0;
        void *function = NULL;
        int found = FOUND;
        if (!cuda_rows[i].required) continue;
        if (cuda.cuGetProcAddress_v2(name, &function, ABI, 0, &found) || found != FOUND || !function) continue;
        memcpy((char *)&cuda + cuda_rows[i].slot, &function, sizeof function);
    }
}

static stw_status cuda_init(void) {
    int error = cuda.cuInit(0);
    if (error) return stw_cuda_fail(STW_E_NO_DRIVER, "cuInit", error);
    cuda_resolve();
    return STW_OK;
}

static stw_driver cuda_driver = {
    .who = "cuda",
    .sonames = cuda_sonames,
    .soname_count = sizeof cuda_sonames / sizeof cuda_sonames[0],
    .rows = cuda_rows,
    .row_count = CUDA_ROWS,
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

int stw_cuda_forked(void) { return stw_driver_forked(&cuda_driver); }

/* The device never works again in this process. */
static int error_is_sticky(int error) {
    switch (error) {
    case 4:   /* deinitialized: the process is ending */
    case 214: /* uncorrectable ECC error */
    case 220: /* uncorrectable NVLink error */
    case 226: /* contained */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 709: /* context is destroyed: someone reset the device */
    case 710: /* assert */
    case 714: /* hardware stack error */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid pc */
    case 719: /* launch failed */
    case 721: /* tensor memory leak */
    case 806: /* MPS: the call to the server failed */
    case 810: /* MPS: the client was terminated */ return 1;
    default: return 0;
    }
}

stw_status stw_cuda_fail(stw_status otherwise, const char *call, int error) {
    const char *name = NULL, *words = NULL;
    if (cuda.cuGetErrorName && cuda.cuGetErrorName(error, &name)) name = NULL;
    if (cuda.cuGetErrorString && cuda.cuGetErrorString(error, &words)) words = NULL;
    stw_status status = error == STW_CUDA_NO_DEVICE       ? STW_E_NO_DEVICE
                        : error == STW_CUDA_OUT_OF_MEMORY ? STW_E_NO_MEMORY
                        : error_is_sticky(error)          ? STW_E_DEVICE_LOST
                                                          : otherwise;
    return stw_fail(status, "cuda: %s failed: %s (%d)%s%s", call, name ? name : "error", error, words ? ": " : "",
                    words ? words : "");
}
