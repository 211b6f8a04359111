/* SPDX-License-Identifier: MIT
 *
 * Dense products of linear by the vendor's library (cuBLASLt, hipBLASLt), which is loaded by name when the
 * first plan could use it and is never needed: where it is not, our own tiles run. What differs between the
 * two is a stw_blas_vendor, in backends/cuda/blas.c and backends/hip/blas.c; whether a product is the
 * library's is decided in backends/gpu/jagged.c. */
#ifndef STW_GPU_BLAS_H
#define STW_GPU_BLAS_H

#include "common/dso.h"
#include "backends/gpu/gpu.h"

/* Room for an algorithm and for what the heuristic gives. */
enum { STW_BLAS_ALGORITHM_BYTES = 64, STW_BLAS_RESULT_BYTES = 128 };

typedef struct stw_blas_functions {
#define STW_BLAS(name, parameters) int(*name) parameters;
#include "backends/gpu/blas.def"
#undef STW_BLAS
    int (*GetVersion)(void *handle, int *version_out); /* hipBLASLt's; cuBLASLt's soname says enough */
} stw_blas_functions;

/* The libraries that go with a runtime. */
typedef struct stw_blas_release {
    const char *const *sonames;
    size_t soname_count;
    int least, end;      /* versions whose ABI is known: least <= version < end; both 0: not asked */
    int newest;          /* end <= version < newest: used when the vendor's trial products are right */
    const char *between; /* the same for readers */
} stw_blas_release;

typedef struct stw_blas_setting {
    int attribute;
    uint32_t size; /* of the value: 4 or 8 */
    uint64_t value;
} stw_blas_setting;

/* What a trial needs: memory of the device, and a copy on the default stream that is done on return, 1 or 0. */
typedef struct stw_blas_trial {
    void *(*memory)(stw_gpu *gpu, size_t bytes);
    void (*free)(stw_gpu *gpu, void *memory);
    int (*copy)(stw_gpu *gpu, void *to, const void *from, size_t bytes);
} stw_blas_trial;

typedef struct stw_blas_vendor {
    const char *name, *prefix; /* "cuBLASLt", "cublasLt" */
    const stw_dso_row *rows;
    size_t row_count;
    /* The same for every device of the process. Not NULL. */
    const stw_blas_release *(*release)(const stw_gpu *gpu);
    /* These are NULL where there is nothing to do. refusal: the reason (static storage) why this product is
     * not for the library, or NULL. room: 1 when a handle can be made. settle: after each use. */
    const char *(*refusal)(const stw_gpu *gpu, const stw_gpu_shape *shape);
    int (*room)(stw_gpu *gpu);
    void (*settle)(stw_gpu *gpu);
    /* NULL: any thread and stream may run any product at any time, captured or not. Else the library has one
     * stream and one thread at a time, and a product runs once before it is captured; this tells whether the
     * stream is. */
    int (*capturing)(stw_gpu *gpu, stw_stream stream);
    const stw_blas_trial *trial;

    int compute_f32, type_f32, type_f16, type_bf16;
    int transpose_b, transposed; /* attribute and value */
    const stw_blas_setting *preferences;
    size_t preference_count;
    size_t workspace; /* bytes at most, as the preferences say; 0: the library does not split sums */
    /* Of its heuristic's result, which begins with the algorithm: bytes and offsets. */
    size_t algorithm_size, workspace_at, state_at;
    int ordered;  /* the vendor promises the same bits run after run */
    int measured; /* that it is faster than our own tiles where it is chosen */

    /* state, zero at first, except the lock */
    pthread_mutex_t lock;
    int state; /* enum in blas.c */
    stw_dso dso;
    stw_blas_functions functions;
    char reason[160]; /* why it is not used */
} stw_blas_vendor;

/* The library's product of that shape, or NULL with the reason added to `why`. Plan time, between enter and
 * leave. */
const stw_gpu_product *stw_blas_find(stw_gpu *gpu, const stw_gpu_shape *shape, stw_text *why);

/* 1: the library takes this call, and stw_blas_run must follow. Takes no lock. */
int stw_blas_claim(stw_gpu *gpu, const stw_gpu_product *product, stw_stream stream);

/* Operands at multiples of 16 bytes. Errors: STW_E_DRIVER. */
stw_status stw_blas_run(stw_gpu *gpu, const stw_gpu_product *product, const stw_gpu_operands *operands,
                        stw_stream stream);

/* Frees what the device's products hold. `alive`: between enter and leave; else the library is not called. */
void stw_blas_end(stw_gpu *gpu, int alive);

#endif
