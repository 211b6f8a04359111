/* SPDX-License-Identifier: MIT
 *
 * hipBLASLt 0.7 to 1.5, and newer ones that pass a trial, as a stw_blas_vendor: names, numbers and layouts, and what it
 * must be kept from. Used by backends/gpu/blas.c. Written from the vendor's public headers; never run with a real
 * hipBLASLt. */
#include "backends/gpu/blas.h"
#include "backends/hip/device.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

static const stw_dso_row rows[] = {
#define STW_BLAS(name, parameters) {"hipblasLt" #name, 1, offsetof(stw_blas_functions, name)},
#include "backends/gpu/blas.def"
#undef STW_BLAS
    {"hipblasLtGetVersion", 1, offsetof(stw_blas_functions, GetVersion)}};

/* A process must not get a second runtime by way of this library, so it is that of the runtime in use; the
 * plain name is what Python packages call theirs. Versions count 100000 * major + 100 * minor + patch. 0.3
 * (ROCm 5) has other numbers for types, 0.6 (ROCm 6.0) does not report a failed launch. */
static const char *const sonames_6[] = {"libhipblaslt.so.0", "libhipblaslt.so"};
static const char *const sonames_7[] = {"libhipblaslt.so.1", "libhipblaslt.so"};
static const char *const sonames_8[] = {"libhipblaslt.so.2", "libhipblaslt.so.1", "libhipblaslt.so"};
static const stw_blas_release release_6 = {sonames_6, 2, 700, 1300, 100000, "0.7 to 0.12"},
                              release_7 = {sonames_7, 2, 100000, 100600, 200000, "1.0 to 1.5"},
                              release_8 = {sonames_8, 3, 100000, 100600, INT_MAX, "1.0 to 1.5"};

static const stw_blas_release *release(const stw_gpu *gpu) {
    int version = ((const stw_hip_state *)gpu)->version;
    return version < STW_HIP_ROCM_7 ? &release_6 : version < STW_HIP_ROCM_8 ? &release_7 : &release_8;
}

/* Subnormal f16 are ordinary gradients, subnormal bf16 are not. */
static const char *refusal(const stw_gpu *gpu, const stw_gpu_shape *shape) {
    const stw_hip_state *state = (const stw_hip_state *)gpu;
    if (state->version < STW_HIP_ROCM_6) return "no hipBLASLt is known for this ROCm";
    if (!state->hip->hipStreamIsCapturing) return "the runtime lacks hipStreamIsCapturing";
    if (shape->dtype == STW_F16 && state->flushes) return "gfx90a's matrix unit takes subnormal f16 for zero";
    return NULL;
}

/* hipblasLtCreate ends the process when it gets no memory or a stream is being captured. It asked for 2.6 MB
 * in 0.10 and asks for 34 MB in 1.5. */
enum { HANDLE_BYTES = 64 << 20 };

static int room(stw_gpu *gpu) {
    const stw_hip_functions *hip = ((stw_hip_state *)gpu)->hip;
    void *memory = NULL;
    if (hip->hipMalloc(&memory, HANDLE_BYTES)) return 0;
    int error = hip->hipStreamSynchronize(NULL);
    return !hip->hipFree(memory) && !error;
}

static void *trial_memory(stw_gpu *gpu, size_t bytes) {
    void *memory = NULL;
    return ((stw_hip_state *)gpu)->hip->hipMalloc(&memory, bytes) ? NULL : memory;
}

static void trial_free(stw_gpu *gpu, void *memory) { ((stw_hip_state *)gpu)->hip->hipFree(memory); }

static int trial_copy(stw_gpu *gpu, void *to, const void *from, size_t bytes) {
    const stw_hip_functions *hip = ((stw_hip_state *)gpu)->hip;
    return !hip->hipMemcpyAsync(to, from, bytes, STW_HIP_COPY_DEFAULT, NULL) && !hip->hipStreamSynchronize(NULL);
}

static const stw_blas_trial trial = {trial_memory, trial_free, trial_copy};

/* What it leaves behind for hipGetLastError is not the caller's. */
static void settle(stw_gpu *gpu) {
    const stw_hip_functions *hip = ((stw_hip_state *)gpu)->hip;
    if (hip->hipGetLastError) hip->hipGetLastError();
}

/* A handle is not for use by several streams at once (hipblaslt.h), a matmul writes to its descriptor, and
 * the first matmul of a kind loads code. */
static int capturing(stw_gpu *gpu, stw_stream stream) {
    int status = 1;
    return ((stw_hip_state *)gpu)->hip->hipStreamIsCapturing(stream, &status) || status;
}

/* hipblasLtMatmulPreferenceAttributes_t. Without workspace: kernels that split sums keep flags in the handle,
 * which products that overlap would share. */
enum { PREFER_WORKSPACE = 1 };
static const stw_blas_setting preferences[] = {{PREFER_WORKSPACE, 8, 0}};

/* hipblasLtMatmulHeuristicResult_t */
typedef struct blas_result {
    struct {
        uint8_t data[16];
        size_t workspace_most;
    } algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_result;
_Static_assert(sizeof(blas_result) == 56 && 56 <= STW_BLAS_RESULT_BYTES, "the library's layout");

/* hipblasComputeType_t, hipDataType, hipblasLtMatmulDescAttributes_t, hipblasOperation_t */
stw_blas_vendor stw_hip_blas = {
    .name = "hipBLASLt",
    .prefix = "hipblasLt",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .release = release,
    .refusal = refusal,
    .room = room,
    .settle = settle,
    .capturing = capturing,
    .trial = &trial,
    .compute_f32 = 2,
    .type_f32 = 0,
    .type_f16 = 2,
    .type_bf16 = 14,
    .transpose_b = 1,
    .transposed = 112,
    .preferences = preferences,
    .preference_count = sizeof preferences / sizeof preferences[0],
    .workspace = 0,
    .algorithm_size = sizeof((blas_result *)NULL)->algorithm,
    .workspace_at = offsetof(blas_result, workspace),
    .state_at = offsetof(blas_result, state),
    .ordered = 0,
    .measured = 0,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};
