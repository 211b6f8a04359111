/* SPDX-License-Identifier: MIT
 *
 * libcublasLt.so.13 and libhipblaslt.so.1 for the emulators: the calls of backends/gpu/blas.def on host memory,
 * strict about what they are given. Products are summed in f64. Column order, as the real ones.
 * FAKE_LT_VENDOR names the header with what differs. Environment:
 *   FAKE_LT_FAIL     what fails: create, version, layout, heuristic, none (nothing is found), state (of what is
 *                    found), workspace (more is wanted than may be had), matmul, wrong (A is not as it should be)
 *   FAKE_LT_VERSION  what hipblasLtGetVersion says; 1.2.0 without it */
#include FAKE_LT_VENDOR

#include "common/dtype.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define CALL(name, ...)                                                                                                \
    int LT(name)(__VA_ARGS__);                                                                                         \
    EXPORT int LT(name)(__VA_ARGS__)

typedef struct handle {
    uintptr_t stream;
    int used;
} handle;

typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
} layout;

typedef struct description {
    int b;           /* operation on B */
    atomic_int busy; /* a matmul writes to it */
    int loaded;
} description;

typedef struct preference {
    uint64_t workspace;
} preference;

/* Products done, or recorded: tests read it. */
EXPORT atomic_int fake_lt_products;

static int fails(const char *what) {
    const char *set = getenv("FAKE_LT_FAIL");
    return set && !strcmp(set, what);
}

static int made(void **out, size_t size) {
    *out = calloc(1, size);
    return *out ? SUCCESS : ALLOC_FAILED;
}

static int gone(void *object) {
    free(object);
    return object ? SUCCESS : INVALID_VALUE;
}

CALL(Create, void **out) {
    if (fails("create")) return ALLOC_FAILED;
    int error = lt_start();
    return error ? error : made(out, sizeof(handle));
}
CALL(Destroy, void *h) { return gone(h); }
CALL(MatmulDescCreate, void **out, int compute, int scale_type) {
    if (compute != COMPUTE_32F || scale_type != 0) return INVALID_VALUE;
    int error = made(out, sizeof(description));
    if (!error) ((description *)*out)->b = NO_TRANSPOSE;
    return error;
}
CALL(MatmulDescDestroy, void *desc) { return gone(desc); }
CALL(MatmulDescSetAttribute, void *desc, int attribute, const void *value, size_t size) {
    int32_t operation;
    if (attribute != TRANSB || size != sizeof operation) return INVALID_VALUE;
    memcpy(&operation, value, sizeof operation);
    if (operation != NO_TRANSPOSE && operation != TRANSPOSE) return INVALID_VALUE;
    ((description *)desc)->b = operation;
    return SUCCESS;
}
CALL(MatrixLayoutCreate, void **out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    if (fails("layout") || (type != 0 && type != 2 && type != 14) || stride < (int64_t)rows) return INVALID_VALUE;
    int error = made(out, sizeof(layout));
    if (!error) *(layout *)*out = (layout){type, rows, columns, stride};
    return error;
}
CALL(MatrixLayoutDestroy, void *l) { return gone(l); }
CALL(MatmulPreferenceCreate, void **out) { return made(out, sizeof(preference)); }
CALL(MatmulPreferenceDestroy, void *p) { return gone(p); }
CALL(MatmulPreferenceSetAttribute, void *p, int attribute, const void *value, size_t size) {
    uint64_t wide = 0;
    if (!p || !value || (size != 4 && size != 8)) return INVALID_VALUE;
    memcpy(&wide, value, size);
    if (!lt_preference_fits(attribute, wide, size)) return INVALID_VALUE;
    if (attribute == 1) ((preference *)p)->workspace = wide;
    return SUCCESS;
}

/* 1 when the extents fit each other. */
static int fits(const description *how, const layout *a, const layout *b, const layout *c) {
    int turned = how->b == TRANSPOSE;
    uint64_t inner = turned ? b->columns : b->rows, columns = turned ? b->rows : b->columns;
    return a->rows == c->rows && a->columns == inner && columns == c->columns && a->type == b->type;
}

CALL(MatmulAlgoGetHeuristic, void *h, void *desc, void *a, void *b, void *c, void *d, void *p, int count, void *results,
     int *found) {
    if (fails("heuristic")) return NOT_SUPPORTED;
    if (!h || !p || count != 1 || c != d || !fits(desc, a, b, c)) return INVALID_VALUE;
    if (((preference *)p)->workspace != WORKSPACE_MOST) return INVALID_VALUE;
    lt_result result = {.workspace = fails("workspace") ? WORKSPACE_MOST + 1 : WORKSPACE,
                        .state = fails("state") ? NOT_SUPPORTED : SUCCESS};
    memset(&result.algorithm, 42, sizeof result.algorithm);
    memcpy(results, &result, sizeof result);
    *found = !fails("none");
    return SUCCESS;
}

/* ---- the product ---- */

typedef struct product {
    float scale, before;
    const void *a, *b, *c;
    void *d;
    layout la, lb, lc;
    int turned;
} product;

static stw_dtype dtype_of(const layout *l) { return l->type == 0 ? STW_F32 : l->type == 2 ? STW_F16 : STW_BF16; }

static void multiply(void *data) {
    const product *p = data;
    const layout *la = &p->la, *lb = &p->lb, *lc = &p->lc;
    for (uint64_t j = 0; j < lc->columns; ++j)
        for (uint64_t i = 0; i < lc->rows; ++i) {
            double sum = 0;
            for (uint64_t k = 0; k < la->columns; ++k) {
                int64_t at_b = p->turned ? (int64_t)k * lb->stride + (int64_t)j : (int64_t)j * lb->stride + (int64_t)k;
                sum += (double)stw_load_f32(p->a, (int64_t)k * la->stride + (int64_t)i, dtype_of(la)) *
                       (double)stw_load_f32(p->b, at_b, dtype_of(lb));
            }
            int64_t at = (int64_t)j * lc->stride + (int64_t)i;
            float old = p->before != 0.0f ? p->before * stw_load_f32(p->c, at, dtype_of(lc)) : 0.0f;
            stw_store_f32(p->d, at, dtype_of(lc), p->scale * (float)sum + old);
        }
}

/* The handle is one stream's where it must be. */
static int stream_fits(handle *h, void *stream) {
    uintptr_t name = (uintptr_t)stream == 1 ? 0 : (uintptr_t)stream; /* the default stream has two */
    int first = !h->used;
    h->used = 1;
    if (first) h->stream = name;
    return !ONE_STREAM || h->stream == name;
}

CALL(Matmul, void *h, void *desc, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout,
     const void *beta, const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm, void *workspace,
     size_t workspace_size, void *stream) {
    description *how = desc;
    lt_algorithm expected;
    memset(&expected, 42, sizeof expected);
    if (fails("matmul")) return INTERNAL_ERROR;
    if (!h || c != d || c_layout != d_layout || !fits(how, a_layout, b_layout, c_layout) ||
        memcmp(algorithm, &expected, sizeof expected) || workspace_size != WORKSPACE || (uintptr_t)workspace % 256 ||
        ((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % 16)
        return INVALID_VALUE;
    if (ONE_STREAM && atomic_exchange(&how->busy, 1)) return INTERNAL_ERROR;
    int error = stream_fits(h, stream) ? SUCCESS : INTERNAL_ERROR;
    if (!error && !how->loaded) error = lt_load();
    product *p = error ? NULL : malloc(sizeof *p); /* a graph may do it again: kept */
    if (p) {
        if (fails("wrong")) a = b;
        *p = (product){*(const float *)alpha,
                       *(const float *)beta,
                       a,
                       b,
                       c,
                       d,
                       *(const layout *)a_layout,
                       *(const layout *)b_layout,
                       *(const layout *)c_layout,
                       how->b == TRANSPOSE};
        how->loaded = 1;
        error = lt_do(stream, multiply, p);
        if (!error) atomic_fetch_add(&fake_lt_products, 1);
    }
    atomic_store(&how->busy, 0);
    return error;
}

#ifdef LT_VERSIONED
CALL(GetVersion, void *h, int *version_out) {
    const char *set = getenv("FAKE_LT_VERSION");
    if (!h || fails("version")) return INVALID_VALUE;
    *version_out = set ? atoi(set) : 100200;
    return SUCCESS;
}
#endif
