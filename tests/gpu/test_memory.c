/* SPDX-License-Identifier: MIT
 *
 * What an AMD device is given by mistake: memory in which gfx90a drops additions of floats, memory of the host, a
 * stream that is no more. Each is refused by name, and the next call is right. */
#include "gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { FINE_GRAINED = 1, UNCACHED = 3, PAGEABLE_ACCESS = 65, ROCM_7 = 70000000 };

static int (*malloc_with_flags)(void **pointer_out, size_t bytes, unsigned flags);
static int (*free_memory)(void *pointer);
static int (*attribute)(int *value, int which, int device);
static int (*version_of)(int *version);

static int find_functions(void **state) {
    (void)state;
    *(void **)&malloc_with_flags = dlsym(RTLD_DEFAULT, "hipExtMallocWithFlags");
    *(void **)&free_memory = dlsym(RTLD_DEFAULT, "hipFree");
    *(void **)&attribute = dlsym(RTLD_DEFAULT, "hipDeviceGetAttribute");
    *(void **)&version_of = dlsym(RTLD_DEFAULT, "hipRuntimeGetVersion");
    return !malloc_with_flags || !free_memory || !attribute || !version_of;
}

static const char line[] = "attn_bwd:bf16:b1h2s70d64:softcap9";

static void refused(gpu_case *g, stw_stream stream, const char *words) {
    assert_int_equal(gpu_case_run(g, stream), STW_E_INVALID);
    if (!strstr(stw_last_error(), words)) fail_msg("\"%s\" lacks \"%s\"", stw_last_error(), words);
}

static void memory_past_the_cache(void **state) {
    (void)state;
    static const struct {
        unsigned flags;
        const char *words;
    } kinds[] = {{FINE_GRAINED, " is fine-grained memory of device 0 (flags 0x1 "},
                 {UNCACHED, " is uncached memory of device 0 (flags 0x3 "}};
    gpu_case g;
    gpu_case_open(&g, gpu_context, line);
    unsigned char *workspace = g.device.workspace;
    for (int i = 0; i < 2; ++i) {
        void *memory = NULL;
        if (malloc_with_flags(&memory, g.device.workspace_bytes, kinds[i].flags)) continue; /* not in every ROCm */
        g.device.workspace = memory;
        refused(&g, g.device.stream, kinds[i].words);
        g.device.workspace = workspace;
        assert_int_equal(free_memory(memory), 0);
        gpu_case_round(&g, "after the refusal");
    }
    gpu_case_close(&g);
}

static void memory_of_the_host(void **state) {
    (void)state;
    int pageable = 1;
    gpu_case g;
    if (attribute(&pageable, PAGEABLE_ACCESS, 0)) pageable = 0;
    gpu_case_open(&g, gpu_context, line);
    unsigned char *workspace = g.device.workspace;
    g.device.workspace = malloc(g.device.workspace_bytes);
    refused(&g, g.device.stream, pageable ? " is pageable host memory" : " is no memory that HIP knows");
    free(g.device.workspace);
    g.device.workspace = workspace;
    gpu_case_round(&g, "after the refusal");
    gpu_case_close(&g);
}

/* ROCm 7 reads the freed handle: nothing can refuse it there. */
static void a_stream_that_is_no_more(void **state) {
    (void)state;
    int version = 0;
    void *stream = NULL;
    gpu_case g;
    if (version_of(&version) || version >= ROCM_7) skip();
    gpu_case_open(&g, gpu_context, line);
    GPU_TRY(cuStreamCreate, &stream, GPU_STREAM_NON_BLOCKING);
    GPU_TRY(cuStreamDestroy_v2, stream);
    refused(&g, stream, " is destroyed or no stream, accepted: a stream of device 0");
    gpu_case_round(&g, "after the refusal");
    gpu_case_close(&g);
}

static void a_context_that_trusts(void **state) {
    (void)state;
    void *memory = NULL;
    gpu_case g;
    setenv("STERNWAY_POINTERS", "trust", 1);
    stw_context *context = gpu_context_on(0);
    unsetenv("STERNWAY_POINTERS");
    gpu_case_open(&g, context, line);
    unsigned char *workspace = g.device.workspace;
    if (malloc_with_flags(&memory, g.device.workspace_bytes, FINE_GRAINED)) skip();
    g.device.workspace = memory;
    GPU_OK(gpu_case_run(&g, g.device.stream)); /* what dQ is then is the caller's */
    g.device.workspace = workspace;
    gpu_case_round(&g, "by ordinary memory");
    assert_int_equal(free_memory(memory), 0);
    gpu_case_close(&g);
    stw_context_destroy(context);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(memory_past_the_cache, find_functions),
        cmocka_unit_test_setup(memory_of_the_host, find_functions),
        cmocka_unit_test_setup(a_stream_that_is_no_more, find_functions),
        cmocka_unit_test_setup(a_context_that_trusts, find_functions),
    };
    return gpu_main(argc, argv, "memory", tests, sizeof tests / sizeof tests[0], 180);
}
