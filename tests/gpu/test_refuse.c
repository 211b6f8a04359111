/* SPDX-License-Identifier: MIT
 *
 * Wrong pointers, workspaces and streams on a real device: the status and the text that the interface
 * promises, nothing launched (a capture of the refused call holds no node), nothing written, and the next
 * call works. */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that a call can point to: the masks in memory in a problem of their own. */
#define RICH                                                                                                           \
    "attn_bwd:bf16:b2h4k2s65x97d64:thd:used:bias_bhqk:alibi:sink:dlse:delta_out:dropout0.1:pointer:"                   \
    "grads_qkvbs:seed5"
#define MASKED "attn_bwd:bf16:b2h4k2s300x280d64:intervals_two:blockmask:mask_heads:seed5"

typedef struct pointer {
    const char *name;
    size_t at;
    stw_verify_tensor tensor;
} pointer;
#define POINTER(id, field) {#field, offsetof(stw_attn_args, field), STW_VERIFY_##id},
static const pointer pointers[] = {STW_VERIFY_TENSORS(POINTER)};
enum { POINTERS = sizeof pointers / sizeof pointers[0] };

/* One refused call: with these arguments, in a capture. */
static void refused(gpu_case *g, const stw_attn_args *args, void *workspace, size_t bytes, stw_status wanted,
                    const char *first_word, const char *second_word) {
    void *stream = NULL, *graph = NULL;
    size_t nodes = 99;
    GPU_TRY(cuStreamCreate, &stream, GPU_STREAM_NON_BLOCKING);
    GPU_TRY(cuStreamBeginCapture_v2, stream, GPU_CAPTURE_RELAXED);
    stw_status status = stw_attn_bwd(g->plan, args, workspace, bytes, stream);
    const char *text = stw_last_error();
    if (status != wanted || strncmp(text, "attn_bwd: ", 10) || !strstr(text, first_word) || !strstr(text, second_word))
        fail_msg("%s, %s: %s instead of %s: %s", first_word, second_word, stw_status_name(status),
                 stw_status_name(wanted), text);
    GPU_TRY(cuStreamEndCapture, stream, &graph);
    GPU_TRY(cuGraphGetNodes, graph, NULL, &nodes);
    if (nodes) fail_msg("%s, %s: refused, but %zu nodes were launched", first_word, second_word, nodes);
    GPU_TRY(cuGraphDestroy, graph);
    GPU_TRY(cuStreamDestroy_v2, stream);
}

static void each_pointer_as(gpu_case *g, void *bad, const char *kind) {
    for (int n = 0; n < POINTERS; ++n) {
        char name[64];
        stw_attn_args args = stw_verify_args(&g->c, g->device.arena);
        if (!g->c.present[pointers[n].tensor]) continue;
        memcpy((char *)&args + pointers[n].at, &bad, sizeof bad);
        snprintf(name, sizeof name, "attn_bwd: %s ", pointers[n].name);
        refused(g, &args, g->device.workspace, g->device.workspace_bytes, STW_E_INVALID, name, kind);
    }
    stw_attn_args args = stw_verify_args(&g->c, g->device.arena);
    refused(g, &args, bad, g->device.workspace_bytes, STW_E_INVALID, "workspace", kind);
}

static void host_pointers_of(const char *problem, int *present) {
    gpu_case g;
    void *pinned = NULL, *plain = NULL;
    size_t bytes;
    gpu_case_open(&g, gpu_context, problem);
    gpu_case_load(&g, &g.c, 0xFF);
    for (int n = 0; n < POINTERS; ++n) present[n] |= g.c.present[pointers[n].tensor];
    bytes = g.device.workspace_bytes > 1 << 20 ? g.device.workspace_bytes : 1 << 20;
    assert_int_equal(posix_memalign(&plain, 4096, bytes), 0);
    GPU_TRY(cuMemHostAlloc, &pinned, bytes, 0);
    memset(pinned, 0x5A, bytes);
    memset(plain, 0x5A, bytes);
    each_pointer_as(&g, plain, "is no memory that CUDA knows, accepted: memory of device 0");
    each_pointer_as(&g, pinned, "is page-locked host memory, accepted: memory of device 0");
    gpu_case_untouched(&g, "host pointers");
    for (size_t i = 0; i < bytes; ++i)
        if (((unsigned char *)pinned)[i] != 0x5A || ((unsigned char *)plain)[i] != 0x5A)
            fail_msg("byte %zu of host memory was written", i);
    gpu_case_round(&g, "after refusals");
    GPU_TRY(cuMemFreeHost, pinned);
    free(plain);
    gpu_case_close(&g);
}

static void host_pointers(void **state) {
    (void)state;
    int present[POINTERS] = {0};
    host_pointers_of(RICH, present);
    host_pointers_of(MASKED, present);
    for (int n = 0; n < POINTERS; ++n)
        if (!present[n]) fail_msg("neither problem has %s", pointers[n].name);
}

static void missing_pointers_of(const char *problem) {
    gpu_case g;
    gpu_case_open(&g, gpu_context, problem);
    gpu_case_load(&g, &g.c, 0xFF);
    for (int n = 0; n < POINTERS; ++n) {
        char name[64];
        void *null = NULL;
        stw_verify_tensor t = pointers[n].tensor;
        if (!g.c.present[t] || t == STW_VERIFY_USED_Q || t == STW_VERIFY_USED_KV ||
            (t >= STW_VERIFY_Q_OFFSETS && t <= STW_VERIFY_OFFSET) || t == STW_VERIFY_STATUS)
            continue; /* not of the problem, or optional */
        stw_attn_args args = stw_verify_args(&g.c, g.device.arena);
        memcpy((char *)&args + pointers[n].at, &null, sizeof null);
        snprintf(name, sizeof name, "%s", pointers[n].name);
        refused(&g, &args, g.device.workspace, g.device.workspace_bytes, STW_E_INVALID, name, "null");
        /* and off its element's boundary, where it has one of more than a byte */
        if (t == STW_VERIFY_BLOCK_MASK) continue;
        args = stw_verify_args(&g.c, g.device.arena);
        char *off = (char *)g.device.arena + g.c.offset[t] + 1;
        memcpy((char *)&args + pointers[n].at, &off, sizeof off);
        refused(&g, &args, g.device.workspace, g.device.workspace_bytes, STW_E_INVALID, name, "aligned");
    }
    gpu_case_untouched(&g, "missing pointers");
    gpu_case_round(&g, "after refusals");
    gpu_case_close(&g);
}

static void missing_pointers(void **state) {
    (void)state;
    missing_pointers_of(RICH);
    missing_pointers_of(MASKED);
}

static void workspaces(void **state) {
    (void)state;
    gpu_case g;
    gpu_case_open(&g, gpu_context, RICH);
    gpu_case_load(&g, &g.c, 0xFF);
    stw_attn_args args = stw_verify_args(&g.c, g.device.arena);
    size_t bytes = g.device.workspace_bytes;
    char *at = (char *)g.device.workspace, needs[64];
    assert_true(bytes > 256);
    snprintf(needs, sizeof needs, "%zu", bytes);
    refused(&g, &args, NULL, bytes, STW_E_WORKSPACE, "workspace is null", needs);
    refused(&g, &args, NULL, 0, STW_E_WORKSPACE, "workspace is null", needs);
    refused(&g, &args, at, bytes - 1, STW_E_WORKSPACE, "workspace_size", needs);
    refused(&g, &args, at, 0, STW_E_WORKSPACE, "workspace_size 0", needs);
    refused(&g, &args, at + 128, bytes - 129, STW_E_WORKSPACE, "workspace_size", needs); /* at is odd */
    refused(&g, &args, at + 255, bytes - 256, STW_E_WORKSPACE, "workspace_size", needs);
    gpu_case_untouched(&g, "workspaces");
    gpu_case_round(&g, "after refusals");
    gpu_case_close(&g);
}

/* A stream of another context of the same device: the kernels do not exist there. */
static void stream_of_another_context(void **state) {
    (void)state;
    gpu_case g;
    void *context = NULL, *stream = NULL, *popped = NULL;
    gpu_case_open(&g, gpu_context, RICH);
    gpu_case_load(&g, &g.c, 0xFF);
    GPU_TRY(cuCtxCreate_v2, &context, 0, gpu_device);
    GPU_TRY(cuStreamCreate, &stream, 0);
    stw_status status = gpu_case_run(&g, stream);
    assert_int_equal(status, STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "attn_bwd: stream "));
    assert_non_null(strstr(stw_last_error(), "accepted: a stream of the primary context of device 0"));
    /* a foreign context that is current disturbs nothing and stays current */
    void *current = NULL;
    GPU_OK(gpu_case_run(&g, g.device.stream));
    GPU_TRY(cuCtxGetCurrent, &current);
    assert_ptr_equal(current, context);
    GPU_TRY(cuStreamDestroy_v2, stream);
    GPU_TRY(cuCtxPopCurrent_v2, &popped);
    gpu_case_store(&g, g.device.stream);
    gpu_case_judge(&g, &g.c, "under a foreign context");
    GPU_TRY(cuCtxDestroy_v2, context);
    gpu_case_close(&g);
}

static void second_device(void **state) {
    (void)state;
    if (gpu_devices < 2) {
        printf("skip second_device: one GPU only\n");
        skip();
    }
    gpu_case g;
    gpu_case_open(&g, gpu_context, RICH);
    gpu_case_load(&g, &g.c, 0xFF);
    stw_context *other = gpu_context_on(1);
    void *there = NULL;
    stw_stream stream = NULL;
    GPU_OK(stw_buffer_alloc(other, g.device.workspace_bytes + (1 << 20), &there));
    GPU_OK(stw_stream_create(other, &stream));
    each_pointer_as(&g, there, "is memory of device 1, accepted: memory of device 0");
    assert_int_equal(gpu_case_run(&g, stream), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "attn_bwd: stream "));
    gpu_case_untouched(&g, "second device");
    GPU_OK(stw_buffer_free(other, there));
    GPU_OK(stw_stream_destroy(other, stream));
    gpu_case_round(&g, "after refusals");
    /* and the second device works by itself while the first one's context is current */
    gpu_case h;
    gpu_case_open(&h, other, RICH);
    gpu_case_round(&h, "on device 1");
    gpu_case_close(&h);
    gpu_case_close(&g);
    stw_context_destroy(other);
}

/* dQ in memory of another kind than cuMemAlloc's. */
static void dq_elsewhere(gpu_case *g, uint64_t pointer, const char *what) {
    size_t at = g->c.offset[STW_VERIFY_DQ];
    stw_attn_args args = stw_verify_args(&g->c, g->device.arena);
    gpu_case_load(g, &g->c, 0xFF);
    args.dq = (void *)(uintptr_t)pointer;
    GPU_OK(stw_attn_bwd(g->plan, &args, g->device.workspace, g->device.workspace_bytes, g->device.stream));
    gpu_case_store(g, g->device.stream);
    GPU_TRY(cuMemcpyDtoH_v2, g->after + at, pointer, g->c.size[STW_VERIFY_DQ]);
    gpu_case_judge(g, &g->c, what);
}

/* What is accepted beside plain device memory: a pool's, as PyTorch's, and managed memory where there is any.
 */
static void pools_and_managed_memory(void **state) {
    (void)state;
    gpu_case g;
    uint64_t pointer = 0;
    gpu_case_open(&g, gpu_context, "attn_bwd:bf16:b1h2s65x97d64:causal_br:seed4");
    GPU_TRY(cuMemAllocAsync, &pointer, g.c.size[STW_VERIFY_DQ], g.device.stream);
    GPU_TRY(cuStreamSynchronize, g.device.stream);
    dq_elsewhere(&g, pointer, "dq in a memory pool");
    GPU_TRY(cuMemFreeAsync, pointer, g.device.stream);
    int error = gpu.cuMemAllocManaged(&pointer, g.c.size[STW_VERIFY_DQ], 1);
    if (error == 801) { /* not supported */
        printf("no managed memory on this device\n");
    } else {
        assert_int_equal(error, 0);
        dq_elsewhere(&g, pointer, "dq in managed memory");
        GPU_TRY(cuMemFree_v2, pointer);
    }
    gpu_case_close(&g);
}

/* No kernel of the forward and of the mask runs on wrong pointers either. */
static void forward_and_mask(void **state) {
    (void)state;
    gpu_case g;
    char here[256] = "";
    gpu_case_open(&g, gpu_context, "attn_fwd:f16:b2h2s65x97d64:dropout0.2:seed4");
    gpu_case_load(&g, &g.c, 0xFF);
    stw_attn_args args = stw_verify_args(&g.c, g.device.arena);
    args.out = here;
    assert_int_equal(stw_attn_fwd(g.plan, &args, NULL, 0, g.device.stream), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "attn_fwd: out "));
    args = stw_verify_args(&g.c, g.device.arena);
    assert_int_equal(stw_dropout_mask(g.plan, &args, (uint8_t *)here, g.device.stream), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "dropout_mask: mask "));
    gpu_case_untouched(&g, "forward and mask");
    for (size_t i = 0; i < sizeof here; ++i) assert_int_equal(here[i], 0);
    gpu_case_close(&g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_pointers),    cmocka_unit_test(missing_pointers),
        cmocka_unit_test(workspaces),       cmocka_unit_test(stream_of_another_context),
        cmocka_unit_test(second_device),    cmocka_unit_test(pools_and_managed_memory),
        cmocka_unit_test(forward_and_mask),
    };
    return gpu_main(argc, argv, "gpu_refuse", tests, sizeof tests / sizeof *tests, 60);
}
