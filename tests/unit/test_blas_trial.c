/* SPDX-License-Identifier: MIT
 *
 * A library of products newer than those whose headers were read: it is used where its trial products are exact
 * (backends/gpu/blas.c). The library is the fake hipBLASLt of tests/blas, the device's memory the host's. */
#include "backends/gpu/blas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

int hipMalloc(void **pointer_out, size_t bytes);
int hipFree(void *pointer);
int hipStreamSynchronize(void *stream);
int hipLaunchHostFunc(void *stream, void (*work)(void *), void *data);

int hipMalloc(void **pointer_out, size_t bytes) { return !(*pointer_out = malloc(bytes)); }
int hipFree(void *pointer) { return free(pointer), 0; }
int hipStreamSynchronize(void *stream) { return stream != NULL; }
int hipLaunchHostFunc(void *stream, void (*work)(void *), void *data) {
    work(data);
    free(data); /* the fake keeps it for graphs, which are not here */
    return stream != NULL;
}

#define STW_BLAS(name, parameters) int hipblasLt##name parameters;
#include "backends/gpu/blas.def"
#undef STW_BLAS
int hipblasLtGetVersion(void *handle, int *version_out);

static int live; /* memory of trials */
static void *trial_memory(stw_gpu *gpu, size_t bytes) { return (void)gpu, ++live, aligned_alloc(256, bytes); }
static void trial_free(stw_gpu *gpu, void *memory) { (void)gpu, --live, free(memory); }
static int trial_copy(stw_gpu *gpu, void *to, const void *from, size_t bytes) {
    return (void)gpu, memcpy(to, from, bytes), 1;
}
static const stw_blas_trial trial = {trial_memory, trial_free, trial_copy};

static const stw_blas_release *release_of(const stw_gpu *gpu) {
    static const char *const sonames[] = {"libc.so.6"}; /* one that is there; no symbol of it is looked up */
    static const stw_blas_release release = {sonames, 1, 100000, 100600, 200000, "1.0 to 1.5"};
    return (void)gpu, &release;
}

/* The product's library, or why it has none. */
static const char *found_with(const char *version, const char *fault) {
    static char reason[256];
    static const stw_blas_setting preferences[] = {{1, 8, 0}};
    static const stw_image image = {STW_BACKEND_HIP, "gfx942", STW_IMAGE_CODE_OBJECT, NULL, NULL, 0};
    stw_blas_vendor vendor = {.name = "hipBLASLt",
                              .prefix = "hipblasLt",
                              .release = release_of,
                              .trial = &trial,
                              .compute_f32 = 2,
                              .type_f32 = 0,
                              .type_f16 = 2,
                              .type_bf16 = 14,
                              .transpose_b = 1,
                              .transposed = 112,
                              .preferences = preferences,
                              .preference_count = 1,
                              .algorithm_size = 24,
                              .workspace_at = 24,
                              .state_at = 32};
    const stw_gpu_ops ops = {.who = "hip", .blas = &vendor};
    const stw_gpu_shape shape = {64, 32, 16, STW_BF16, STW_F32, 0};
    stw_text why = stw_text_in(reason, sizeof reason);
    stw_gpu gpu;
#define STW_BLAS(name, parameters) vendor.functions.name = hipblasLt##name;
#include "backends/gpu/blas.def"
#undef STW_BLAS
    vendor.functions.GetVersion = hipblasLtGetVersion;
    pthread_mutex_init(&vendor.lock, NULL);
    setenv("FAKE_LT_VERSION", version, 1);
    setenv("FAKE_LT_FAIL", fault, 1);
    stw_gpu_init(&gpu, &ops, 0, &image);
    const char *library = stw_blas_find(&gpu, &shape, &why) ? "found" : reason;
    stw_blas_end(&gpu, 1);
    stw_gpu_end(&gpu);
    assert_int_equal(live, 0);
    return library;
}

#define WRONG ", whose trial product is wrong, accepted: 1.0 to 1.5"

static void newer_versions_are_tried(void **state) {
    (void)state;
    assert_string_equal(found_with("100500", ""), "found");
    assert_string_equal(found_with("100500", "wrong"), "found"); /* known: not tried */
    assert_string_equal(found_with("100600", ""), "found");
    assert_string_equal(found_with("199999", ""), "found");
    assert_string_equal(found_with("100600", "wrong"), "libc.so.6 is version 1.6.0" WRONG);
    assert_string_equal(found_with("100600", "matmul"), "libc.so.6 is version 1.6.0" WRONG);
    assert_string_equal(found_with("100600", "none"), "libc.so.6 is version 1.6.0" WRONG);
    assert_string_equal(found_with("200000", ""), "libc.so.6 is version 2.0.0, accepted: 1.0 to 1.5");
    assert_string_equal(found_with("1200", ""), "libc.so.6 is version 0.12.0, accepted: 1.0 to 1.5");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(newer_versions_are_tried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
