/* SPDX-License-Identifier: MIT
 *
 * cuBLASLt 11 to 13 as a stw_blas_vendor: names, numbers and layouts. Used by backends/gpu/blas.c. */
#include "backends/gpu/blas.h"
#include "backends/cuda/device.h"

#include <stddef.h>

static const stw_dso_row rows[] = {
#define STW_BLAS(name, parameters) {"cublasLt" #name, 1, offsetof(stw_blas_functions, name)},
#include "backends/gpu/blas.def"
#undef STW_BLAS
};

static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};
static const stw_blas_release every = {.sonames = sonames, .soname_count = sizeof sonames / sizeof sonames[0]};

static const stw_blas_release *release(const stw_gpu *gpu) {
    (void)gpu;
    return &every;
}

/* cublasLtMatmulPreferenceAttributes_t. Results of several parts: parts in the workspace, added up in order
 * by a second kernel. */
enum { PREFER_WORKSPACE = 1, PREFER_REDUCTION = 3, PREFER_ALIGNMENT = 5, REDUCTION_IN_ORDER = 2 };
static const stw_blas_setting preferences[] = {
    {PREFER_WORKSPACE, 8, STW_GPU_PRODUCT_WORKSPACE},
    {PREFER_REDUCTION, 4, REDUCTION_IN_ORDER},
    {PREFER_ALIGNMENT, 4, 16},
    {PREFER_ALIGNMENT + 1, 4, 16},
    {PREFER_ALIGNMENT + 2, 4, 16},
    {PREFER_ALIGNMENT + 3, 4, 16}, /* A, B, C, D */
};

/* cublasLtMatmulHeuristicResult_t */
typedef struct blas_result {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_result;
_Static_assert(sizeof(blas_result) == 96 && 96 <= STW_BLAS_RESULT_BYTES, "the library's layout");

/* cublasComputeType_t, cudaDataType, cublasLtMatmulDescAttributes_t, cublasOperation_t */
stw_blas_vendor stw_cuda_blas = {
    .name = "cuBLASLt",
    .prefix = "cublasLt",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .release = release,
    .compute_f32 = 68,
    .type_f32 = 0,
    .type_f16 = 2,
    .type_bf16 = 14,
    .transpose_b = 4,
    .transposed = 1,
    .preferences = preferences,
    .preference_count = sizeof preferences / sizeof preferences[0],
    .workspace = STW_GPU_PRODUCT_WORKSPACE,
    .algorithm_size = sizeof((blas_result *)NULL)->algorithm,
    .workspace_at = offsetof(blas_result, workspace),
    .state_at = offsetof(blas_result, state),
    .ordered = 1,
    .measured = 1,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};
