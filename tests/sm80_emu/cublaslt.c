/* SPDX-License-Identifier: MIT
 *
 * libcublasLt.so.13 for the emulator: the calls of backends/cuda/blas.def on host memory, strict about what
 * they are given. Products are summed in f64. Column order, as the real one. */
#include "common/dtype.h"

#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
#define EXPORT __attribute__((visibility("default")))

typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
} layout;

typedef struct description {
    int transposed_b;
} description;

typedef struct result {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} result;

static int made(void **out, size_t size) {
    *out = calloc(1, size);
    return *out ? SUCCESS : INVALID_VALUE;
}

static int gone(void *handle) {
    free(handle);
    return handle ? SUCCESS : INVALID_VALUE;
}

EXPORT int cublasLtCreate(void **handle) {
    return made(handle, 1);
}
EXPORT int cublasLtDestroy(void *handle) {
    return gone(handle);
}
EXPORT int cublasLtMatmulDescCreate(void **desc, int compute, int scale_type) {
    return compute == 68 && scale_type == 0 ? made(desc, sizeof(description)) : INVALID_VALUE;
}
EXPORT int cublasLtMatmulDescDestroy(void *desc) {
    return gone(desc);
}
EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t size) {
    if (attribute != 4 || size != 4) return INVALID_VALUE;
    ((description *)desc)->transposed_b = *(const int *)value;
    return SUCCESS;
}
EXPORT int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    if ((type != 0 && type != 2 && type != 14) || stride < (int64_t)rows) return INVALID_VALUE;
    int error = made(out, sizeof(layout));
    if (!error) *(layout *)*out = (layout){type, rows, columns, stride};
    return error;
}
EXPORT int cublasLtMatrixLayoutDestroy(void *handle) {
    return gone(handle);
}
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) {
    return made(preference, 1);
}
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) {
    return gone(preference);
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                                size_t size) {
    if (!preference || !value) return INVALID_VALUE;
    if (attribute == 1) return size == 8 ? SUCCESS : INVALID_VALUE;
    return (attribute == 3 || (attribute >= 5 && attribute <= 8)) && size == 4 ? SUCCESS : INVALID_VALUE;
}

/* 1 when the extents fit each other. */
static int fits(const description *d, const layout *a, const layout *b, const layout *c) {
    uint64_t inner = d->transposed_b ? b->columns : b->rows, columns = d->transposed_b ? b->rows : b->columns;
    return a->rows == c->rows && a->columns == inner && columns == c->columns && a->type == b->type;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                          void *preference, int count, void *results, int *found) {
    if (!handle || !preference || count != 1 || c != d || !fits(desc, a, b, c)) return INVALID_VALUE;
    *(result *)results = (result){.algorithm = {42}, .workspace = 512};
    *found = 1;
    return SUCCESS;
}

static stw_dtype dtype_of(const layout *l) {
    return l->type == 0 ? STW_F32 : l->type == 2 ? STW_F16 : STW_BF16;
}

EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                          const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                          void *d, void *d_layout, const void *algorithm, void *workspace,
                          size_t workspace_size, void *stream) {
    const layout *la = a_layout, *lb = b_layout, *lc = c_layout;
    const description *how = desc;
    (void)stream;
    if (!handle || c != d || c_layout != d_layout || !fits(how, la, lb, lc) ||
        *(const uint64_t *)algorithm != 42 || workspace_size != 512 || (uintptr_t)workspace % 256 ||
        ((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % 16)
        return INVALID_VALUE;
    float scale = *(const float *)alpha, before = *(const float *)beta;
    for (uint64_t j = 0; j < lc->columns; ++j)
        for (uint64_t i = 0; i < lc->rows; ++i) {
            double sum = 0;
            for (uint64_t k = 0; k < la->columns; ++k) {
                int64_t at_b = how->transposed_b ? (int64_t)k * lb->stride + (int64_t)j
                                                 : (int64_t)j * lb->stride + (int64_t)k;
                sum += (double)stw_load_f32(a, (int64_t)k * la->stride + (int64_t)i, dtype_of(la)) *
                       (double)stw_load_f32(b, at_b, dtype_of(lb));
            }
            int64_t at = (int64_t)j * lc->stride + (int64_t)i;
            float old = before != 0.0f ? before * stw_load_f32(c, at, dtype_of(lc)) : 0.0f;
            stw_store_f32(d, at, dtype_of(lc), scale * (float)sum + old);
        }
    return SUCCESS;
}
