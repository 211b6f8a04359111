/* SPDX-License-Identifier: MIT
 *
 * cuBLASLt for dense products: loading it, finding an algorithm at plan time, running it. Results are in
 * column order there, so C[m,n] = A B is computed as C^T = B^T A^T. See blas.h. */
#include "backends/cuda/blas.h"

#include "common/dso.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

typedef struct blas_functions {
#define STW_CUBLAS(name, parameters) int(*name) parameters;
#include "backends/cuda/blas.def"
#undef STW_CUBLAS
} blas_functions;

static const stw_dso_row blas_rows[] = {
#define STW_CUBLAS(name, parameters) {#name, 1, offsetof(blas_functions, name)},
#include "backends/cuda/blas.def"
#undef STW_CUBLAS
};
static const char *const blas_sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};

/* cublasComputeType_t, cudaDataType, cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t */
enum { COMPUTE_32F = 68, TYPE_32F = 0, TYPE_16F = 2, TYPE_16BF = 14, DESC_TRANSB = 4, TRANSPOSED = 1 };
enum { PREFER_WORKSPACE = 1, PREFER_REDUCTION = 3, PREFER_ALIGNMENT_A = 5, ALIGNMENTS = 4 };
enum { REDUCTION_IN_ORDER = 2 }; /* parts in the workspace, added up by a second kernel */

/* cublasLtMatmulHeuristicResult_t */
typedef struct blas_result {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_result;
_Static_assert(sizeof(blas_result) == 96, "the library's layout");

typedef struct blas_product {
    stw_gpu_product base;
    struct blas_product *next;
    void *handle, *desc, *a, *b, *c; /* the library's a is our B */
    uint64_t algorithm[8];
} blas_product;

static blas_functions blas;
static stw_dso blas_library;
static int blas_state; /* 0: not tried, 1: there, -1: not there */
static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;

static int blas_start(void) {
    pthread_mutex_lock(&blas_lock);
    if (!blas_state) {
        char words[512], missing[256], absent[64];
        stw_text reason = stw_text_in(words, sizeof words), without = stw_text_in(missing, sizeof missing),
                 unused = stw_text_in(absent, sizeof absent);
        blas_state = stw_dso_open(&blas_library, blas_sonames, sizeof blas_sonames / sizeof blas_sonames[0],
                                  &reason) &&
                             stw_dso_bind(&blas_library, blas_rows, sizeof blas_rows / sizeof blas_rows[0],
                                          &blas, &without, &unused)
                         ? 1
                         : -1;
        if (blas_state > 0)
            stw_log(STW_LOG_INFO, "cuda: %s for dense products", blas_library.soname);
        else
            stw_log(STW_LOG_INFO, "cuda: no cuBLASLt for dense products (%s%s)", words, missing);
    }
    int there = blas_state > 0;
    pthread_mutex_unlock(&blas_lock);
    return there;
}

static int type_of(stw_dtype dtype) {
    return dtype == STW_F32 ? TYPE_32F : dtype == STW_BF16 ? TYPE_16BF : TYPE_16F;
}

static void product_free(blas_product *p) {
    if (p->c) blas.cublasLtMatrixLayoutDestroy(p->c);
    if (p->b) blas.cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) blas.cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) blas.cublasLtMatmulDescDestroy(p->desc);
    if (p->handle) blas.cublasLtDestroy(p->handle);
    free(p);
}

/* Operands and result as the library sees them. 0, or its error. */
static int describe(blas_product *p, const stw_gpu_shape *s) {
    int type = type_of(s->dtype), transposed = TRANSPOSED;
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    int error = blas.cublasLtCreate(&p->handle);
    if (!error) error = blas.cublasLtMatmulDescCreate(&p->desc, COMPUTE_32F, TYPE_32F);
    if (!error && s->a_by_k)
        error = blas.cublasLtMatmulDescSetAttribute(p->desc, DESC_TRANSB, &transposed, sizeof transposed);
    if (!error) error = blas.cublasLtMatrixLayoutCreate(&p->a, type, n, k, s->n);
    if (!error)
        error = blas.cublasLtMatrixLayoutCreate(&p->b, type, s->a_by_k ? m : k, s->a_by_k ? k : m,
                                                s->a_by_k ? s->m : s->k);
    if (!error) error = blas.cublasLtMatrixLayoutCreate(&p->c, type_of(s->out_dtype), n, m, s->n);
    return error;
}

/* The library's own choice among algorithms that add in a fixed order. */
static int choose(blas_product *p) {
    void *preference = NULL;
    blas_result result = {0};
    uint64_t workspace = STW_GPU_PRODUCT_WORKSPACE;
    uint32_t reduction = REDUCTION_IN_ORDER, alignment = 16;
    int found = 0, error = blas.cublasLtMatmulPreferenceCreate(&preference);
    if (!error)
        error = blas.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_WORKSPACE, &workspace,
                                                          sizeof workspace);
    if (!error)
        error = blas.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_REDUCTION, &reduction,
                                                          sizeof reduction);
    for (int i = 0; i < ALIGNMENTS && !error; ++i)
        error = blas.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_ALIGNMENT_A + i, &alignment,
                                                          sizeof alignment);
    if (!error)
        error = blas.cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->a, p->b, p->c, p->c, preference, 1,
                                                    &result, &found);
    if (preference) blas.cublasLtMatmulPreferenceDestroy(preference);
    if (error || !found || result.state || result.workspace > workspace) return error ? error : -1;
    memcpy(p->algorithm, result.algorithm, sizeof p->algorithm);
    p->base.workspace = result.workspace;
    return 0;
}

static blas_product *product_make(const stw_gpu_shape *shape) {
    blas_product *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->base.shape = *shape;
    p->base.library = blas_library.soname;
    int error = describe(p, shape);
    if (!error) error = choose(p);
    if (!error) return p;
    stw_log(STW_LOG_INFO, "cuda: %s has no product of %lld x %lld over %lld (error %d)", blas_library.soname,
            (long long)shape->m, (long long)shape->n, (long long)shape->k, error);
    product_free(p);
    return NULL;
}

stw_status stw_cuda_product_find(stw_gpu *gpu, const stw_gpu_shape *shape,
                                 const stw_gpu_product **product_out) {
    *product_out = NULL;
    if (!blas_start()) return STW_OK;
    pthread_mutex_lock(&gpu->lock);
    blas_product *p = gpu->products;
    while (p && memcmp(&p->base.shape, shape, sizeof *shape)) p = p->next;
    if (!p && (p = product_make(shape))) {
        p->next = gpu->products;
        gpu->products = p;
    }
    pthread_mutex_unlock(&gpu->lock);
    if (p) *product_out = &p->base;
    return STW_OK;
}

stw_status stw_cuda_product_run(stw_gpu *gpu, const stw_gpu_product *product, const stw_gpu_operands *o,
                                stw_stream stream) {
    const blas_product *p = (const blas_product *)product;
    float one = 1.0f, before = o->accumulate ? 1.0f : 0.0f;
    int error = blas.cublasLtMatmul(p->handle, p->desc, &one, o->b, p->a, o->a, p->b, &before, o->c, p->c,
                                    o->c, p->c, p->algorithm, o->workspace, p->base.workspace, stream);
    (void)gpu;
    return error ? stw_fail(STW_E_DRIVER, "jagged_bwd: cublasLtMatmul failed: status %d", error) : STW_OK;
}

void stw_cuda_products_end(stw_gpu *gpu) {
    for (blas_product *p = gpu->products, *next; p; p = next) {
        next = p->next;
        product_free(p);
    }
    gpu->products = NULL;
}
