/* SPDX-License-Identifier: MIT
 *
 * Problems that are worth sharing out: every op gives the same bits with 1, 2, 5 and 8 threads and run after
 * run, writes nothing outside its tensors, and changes no input. Whether the bits are right is asked
 * elsewhere; that they are numbers at all is asked here. */
#include "tests/fuzz/jagged_tensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CONTEXTS = 4, BYTES = 8190 };
static const int threads[CONTEXTS] = {1, 2, 5, 8};
static stw_context *contexts[CONTEXTS];

/* Bytes that are finite numbers of moderate size in every type of 16 and 32 bits. */
static uint8_t content[BYTES + 1];

static void fill_content(void) {
    static const uint8_t high[] = {0x3e, 0x3f, 0xbe, 0xbf};
    uint32_t x = 12345;
    for (int n = 0; n <= BYTES; ++n) {
        x = x * 1664525u + 1013904223u;
        content[n] = n % 2 ? high[x >> 24 & 3] : (uint8_t)(x >> 16);
    }
}

typedef struct large {
    const char *name;
    stw_jagged_op op;
    stw_dtype dtype;
    stw_jagged_dim dim;
    int64_t components, size, total, outer, inner, extra; /* extra: features, padded, size of the dimension */
    int jagged;
    uint32_t flags;
} large;

#define USED STW_JAGGED_HAS_USED
static const large rows[] = {
    {"gelu", STW_JAGGED_GELU, STW_F32, 0, 7, 3000, 8000, 1, 33, 0, 0, USED},
    {"silu", STW_JAGGED_SILU, STW_BF16, 0, 3, 6000, 8000, 2, 16, 0, 1, 0},
    {"threshold", STW_JAGGED_THRESHOLD, STW_I16, 0, 5, 4000, 9000, 1, 29, 0, 0, USED},
    {"softmax inner", STW_JAGGED_SOFTMAX, STW_F32, STW_DIM_INNER, 5, 4000, 8000, 1, 35, 5, 0, USED},
    {"softmax outer", STW_JAGGED_SOFTMAX, STW_BF16, STW_DIM_OUTER, 5, 4000, 8000, 6, 5, 3, 1, USED},
    {"softmax ragged", STW_JAGGED_SOFTMAX, STW_F32, STW_DIM_RAGGED, 4, 60000, 70000, 1, 4, 0, 0, 0},
    {"softmax ragged, one column", STW_JAGGED_SOFTMAX, STW_F16, STW_DIM_RAGGED, 4, 150000, 200000, 1, 1, 0, 0, USED},
    {"log_softmax inner", STW_JAGGED_LOG_SOFTMAX, STW_BF16, STW_DIM_INNER, 5, 4000, 8000, 1, 35, 5, 0, USED},
    {"log_softmax outer", STW_JAGGED_LOG_SOFTMAX, STW_F32, STW_DIM_OUTER, 5, 4000, 8000, 6, 5, 3, 1, USED},
    {"log_softmax ragged", STW_JAGGED_LOG_SOFTMAX, STW_F16, STW_DIM_RAGGED, 4, 60000, 70000, 1, 4, 0, 0, 0},
    {"log_softmax ragged, one column", STW_JAGGED_LOG_SOFTMAX, STW_F32, STW_DIM_RAGGED, 4, 150000, 200000, 1, 1, 0, 0,
     USED},
    {"sum ragged", STW_JAGGED_SUM, STW_F32, STW_DIM_RAGGED, 8, 4000, 20000, 2, 9, 0, 1, USED},
    {"sum inner", STW_JAGGED_SUM, STW_U8, STW_DIM_INNER, 8, 4000, 20000, 1, 21, 7, 0, USED},
    {"select outer", STW_JAGGED_SELECT, STW_F32, STW_DIM_OUTER, 8, 4000, 20000, 4, 5, 2, 0, USED},
    {"layer_norm", STW_JAGGED_LAYER_NORM, STW_F32, 0, 6, 4000, 9000, 1, 24, 8, 0, USED | STW_JAGGED_HAS_GAMMA},
    {"layer_norm bf16", STW_JAGGED_LAYER_NORM, STW_BF16, 0, 6, 4000, 9000, 2, 17, 0, 1, STW_JAGGED_HAS_GAMMA},
    {"layer_norm ragged", STW_JAGGED_LAYER_NORM, STW_F32, STW_DIM_RAGGED, 4, 20000, 30000, 2, 3, 0, 1, USED},
    {"rms_norm ragged", STW_JAGGED_RMS_NORM, STW_BF16, STW_DIM_RAGGED, 4, 20000, 30000, 2, 5, 0, 0, 0},
    {"rms_norm", STW_JAGGED_RMS_NORM, STW_F32, 0, 6, 4000, 9000, 1, 24, 8, 0, USED | STW_JAGGED_HAS_GAMMA},
    {"rms_norm bf16", STW_JAGGED_RMS_NORM, STW_BF16, 0, 6, 4000, 9000, 2, 17, 0, 1, STW_JAGGED_HAS_GAMMA},
    {"linear", STW_JAGGED_LINEAR, STW_F32, 0, 6, 4000, 9000, 1, 37, 19, 0, USED},
    {"linear bf16", STW_JAGGED_LINEAR, STW_BF16, 0, 1, 7000, 7000, 1, 40, 33, 0, STW_JAGGED_FULL},
    {"reshape", STW_JAGGED_RESHAPE, STW_F16, 0, 6, 4000, 9000, 0, 0, 0, 0, USED},
    {"to_padded", STW_JAGGED_TO_PADDED, STW_F32, 0, 4, 2500, 7000, 1, 19, 2600, 0, USED},
    {"from_padded", STW_JAGGED_FROM_PADDED, STW_I64, 0, 4, 2500, 7000, 2, 9, 2400, 0, USED},
    {"matmul m", STW_JAGGED_MATMUL, STW_F32, 0, 5, 900, 2000, 1, 0, 1, 0, USED},
    {"matmul k", STW_JAGGED_MATMUL, STW_BF16, 0, 5, 900, 2000, 2, 0, 2, 0, 0},
    {"matmul n", STW_JAGGED_MATMUL, STW_F16, 0, 5, 900, 2000, 1, 0, 4, 1, 0},
};

static stw_jagged_desc describe(const large *row) {
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    d.op = row->op;
    d.dtype = row->dtype;
    d.index_dtype = STW_I64;
    d.components = row->components;
    d.axis[0].size = row->size;
    d.axis[0].total = row->total;
    d.outer = row->outer;
    d.inner = row->inner;
    d.dim = row->dim;
    d.flags = row->flags;
    d.storage = row->jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    if (row->op == STW_JAGGED_LINEAR) d.out_features = row->extra;
    if (row->op == STW_JAGGED_TO_PADDED || row->op == STW_JAGGED_FROM_PADDED) d.padded = row->extra;
    if (row->dim == STW_DIM_INNER || row->dim == STW_DIM_OUTER || row->op == STW_JAGGED_LAYER_NORM ||
        row->op == STW_JAGGED_RMS_NORM)
        d.dim_size = row->extra;
    if (row->op == STW_JAGGED_RESHAPE) {
        d.shape_rank = 3;
        d.grad_rank = 2;
        memcpy(d.shape, (int64_t[]){4, -1, 7}, 24);
        memcpy(d.grad_shape, (int64_t[]){-1, 28}, 16);
    }
    if (row->op != STW_JAGGED_MATMUL) return d;
    static const int64_t sizes[3] = {60, 40, 50};
    d.ragged_axes = (uint32_t)row->extra;
    for (int axis = 0; axis < 3; ++axis) {
        const int ragged = (int)row->extra >> axis & 1;
        d.axis[axis].size = ragged ? row->size : sizes[axis];
        d.axis[axis].total = ragged ? row->total : 0;
    }
    d.storage = row->jagged && row->extra != 4 ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    return d;
}

static size_t run(const large *row, stw_context *context, int32_t cpu_threads, arena *memory) {
    const stw_jagged_desc d = describe(row);
    const reader bytes = {content, content + BYTES};
    stw_jagged_args args;
    stw_plan *plan = NULL;
    int data_bad = 0;
    memory->skew = 1;
    if (stw_jagged_bwd_plan(context, &d, &plan)) fail_msg("%s: %s", row->name, stw_last_error());
    if (!jagged_bind(memory, &d, bytes, &args, NULL, &data_bad) || data_bad)
        fail_msg("%s: the problem is too large", row->name);
    args.cpu_threads = cpu_threads;
    const size_t need = stw_plan_workspace_size(plan);
    void *workspace = arena_add(memory, "workspace", (double)need, 1, ARENA_WORKSPACE);
    arena_keep(memory);
    if (stw_jagged_bwd(plan, &args, need ? workspace : NULL, need, NULL))
        fail_msg("%s: %s", row->name, stw_last_error());
    const char *wrong = arena_wrong(memory, 0);
    if (wrong) fail_msg("%s: %s", row->name, wrong);
    stw_plan_destroy(plan);
    return need;
}

/* Shares of elements whose bytes the call changed, and of NaN among them. */
static void check_written(const large *row, const arena *memory) {
    for (int n = 0; n < memory->count; ++n) {
        const arena_block *b = &memory->list[n];
        if (b->kind != ARENA_OUTPUT) continue;
        size_t kept = 0, nan = 0;
        for (size_t i = 0; i < b->bytes; ++i) kept += b->data[i] == ARENA_POISON;
        for (size_t i = 0; row->dtype == STW_F32 && i + 4 <= b->bytes; i += 4) {
            float x;
            uint32_t bits;
            memcpy(&x, b->data + i, 4);
            memcpy(&bits, b->data + i, 4);
            nan += isnan(x) && bits != 0xFFFFFFFFu;
        }
        if (nan) fail_msg("%s: %zu NaN in %s", row->name, nan, b->name);
        if (kept > b->bytes / 2) fail_msg("%s: %s was not written", row->name, b->name);
    }
}

static void test_threads(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; ++n) {
        arena first = {.count = 0};
        run(&rows[n], contexts[0], 0, &first);
        check_written(&rows[n], &first);
        for (int c = 0; c < 2 * CONTEXTS; ++c) {
            arena again = {.count = 0};
            const int32_t cpu_threads = c < CONTEXTS ? 0 : 1 + c % CONTEXTS; /* of the call */
            run(&rows[n], contexts[c % CONTEXTS], cpu_threads, &again);
            for (int i = 0; i < first.count; ++i)
                if (first.list[i].kind == ARENA_OUTPUT &&
                    memcmp(first.list[i].data, again.list[i].data, first.list[i].bytes))
                    fail_msg("%s: other bits of %s with %d threads, cpu_threads %d", rows[n].name, first.list[i].name,
                             threads[c % CONTEXTS], cpu_threads);
            arena_free(&again);
        }
        arena_free(&first);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    fill_content();
    for (int n = 0; n < CONTEXTS; ++n) {
        stw_context_opts opts = STW_INIT(stw_context_opts);
        opts.backend = STW_BACKEND_CPU;
        opts.memory = STW_MEMORY_HOST;
        opts.cpu_threads = threads[n];
        if (stw_context_create(&opts, &contexts[n])) return 1;
    }
    const int failed = cmocka_run_group_tests_name("threads of nested operations", tests, NULL, NULL);
    for (int n = 0; n < CONTEXTS; ++n) stw_context_destroy(contexts[n]);
    return failed;
}
