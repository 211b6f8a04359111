/* SPDX-License-Identifier: MIT
 *
 * Every tensor in an allocation of its own, of exactly its size: what conform's guards cannot see, a read
 * behind a tensor whose value is not used, is an error of compute-sanitizer's memcheck here (sanitize.py).
 * The problems are the lines of a file, the second argument; gradients are judged as always. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *cases_file = STW_SOURCE_DIR "/tests/gpu/sanitize_cases.txt";

/* The tensor in whose buffer t lies: itself, or the first of an interleaved trio. */
static int owner_of(const stw_verify_case *c, int t) {
    static const int firsts[] = {STW_VERIFY_Q, STW_VERIFY_DQ};
    for (int n = 0; n < 2; ++n)
        if ((t == firsts[n] + 1 || t == firsts[n] + 2) && c->offset[t] < c->offset[firsts[n]] + c->size[firsts[n]])
            return firsts[n];
    return t;
}

typedef struct apart {
    uint64_t buffer[STW_VERIFY_TENSOR_COUNT];
    size_t from[STW_VERIFY_TENSOR_COUNT], bytes[STW_VERIFY_TENSOR_COUNT]; /* of the arena */
} apart;

/* Keeps each tensor's alignment: buffers begin on the 256-byte boundary in front of it. */
static void place(const stw_verify_case *c, apart *a) {
    size_t end[STW_VERIFY_TENSOR_COUNT] = {0};
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) {
        int owner = owner_of(c, t);
        size_t stop = c->offset[t] + c->size[t];
        if (c->present[t] && stop > end[owner]) end[owner] = stop;
    }
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) {
        if (!end[t]) continue;
        a->from[t] = c->offset[t] / 256 * 256;
        a->bytes[t] = end[t] - a->from[t];
        if (!a->bytes[t]) a->bytes[t] = 1; /* an empty tensor: a pointer nobody follows */
        GPU_TRY(cuMemAlloc_v2, &a->buffer[t], a->bytes[t]);
        GPU_TRY(cuMemcpyHtoD_v2, a->buffer[t], c->host + a->from[t], a->bytes[t]);
    }
    GPU_TRY(cuStreamSynchronize, NULL);
}

static stw_attn_args args_of(const stw_verify_case *c, const apart *a) {
    stw_attn_args args = stw_verify_args(c, NULL);
#define APART(id, name)                                                                                                \
    if (c->present[STW_VERIFY_##id]) {                                                                                 \
        int owner = owner_of(c, STW_VERIFY_##id);                                                                      \
        args.name = (void *)(uintptr_t)(a->buffer[owner] + c->offset[STW_VERIFY_##id] - a->from[owner]);               \
    } else {                                                                                                           \
        args.name = NULL;                                                                                              \
    }
    STW_VERIFY_TENSORS(APART)
#undef APART
    return args;
}

static void run_apart(const char *line) {
    gpu_case g;
    apart a = {{0}, {0}, {0}};
    uint64_t workspace = 0;
    gpu_case_open(&g, gpu_context, line);
    size_t bytes = stw_plan_workspace_size(g.plan);
    int forward = g.c.problem.op == STW_PROBLEM_ATTN_FWD;
    place(&g.c, &a);
    if (bytes) GPU_TRY(cuMemAlloc_v2, &workspace, bytes);
    stw_attn_args args = args_of(&g.c, &a);
    void *at = (void *)(uintptr_t)workspace;
    stw_status status = forward ? stw_attn_fwd(g.plan, &args, at, bytes, g.device.stream)
                                : stw_attn_bwd(g.plan, &args, at, bytes, g.device.stream);
    if (status) fail_msg("%s: %s: %s", line, stw_status_name(status), stw_last_error());
    GPU_TRY(cuStreamSynchronize, g.device.stream);
    memcpy(g.after, g.c.host, g.c.bytes);
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) {
        if (!a.buffer[t]) continue;
        GPU_TRY(cuMemcpyDtoH_v2, g.after + a.from[t], a.buffer[t], a.bytes[t]);
        GPU_TRY(cuMemFree_v2, a.buffer[t]);
    }
    if (workspace) GPU_TRY(cuMemFree_v2, workspace);
    stw_verify_result result;
    stw_verify_result_clear(&result);
    if (!forward) stw_verify_check_outputs(&g.c, g.after, &result); /* out and lse: conform judges them */
    if (result.outcome != STW_VERIFY_OK) fail_msg("%s: %s", line, result.text);
    gpu_case_close(&g);
}

static void each_tensor_apart(void **state) {
    (void)state;
    FILE *file = fopen(cases_file, "r");
    char line[256];
    int count = 0;
    if (!file) fail_msg("%s cannot be read", cases_file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!line[0] || line[0] == '#') continue;
        run_apart(line);
        ++count;
    }
    fclose(file);
    printf("%d cases, every tensor apart\n", count);
    assert_true(count > 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_tensor_apart)};
    if (argc > 2) cases_file = argv[2];
    return gpu_main(argc, argv, "gpu_apart", tests, sizeof tests / sizeof *tests, 600);
}
