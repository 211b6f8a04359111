/* SPDX-License-Identifier: MIT
 *
 * Results larger than the caches are written by other instructions than small ones
 * (backends/cpu/tile_jagged.inl): a large call and small calls over parts of the same buffers must agree bit
 * for bit, for any alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sternway/sternway.h"

#define ELEMENTS (INT64_C(17) << 20) /* above 2^26 bytes in f32 */
#define GUARD    64

typedef struct call {
    stw_context *context;
    stw_jagged_op op;
    stw_dtype dtype;
    int64_t inner;
    const unsigned char *x, *grad;
    const float *mean, *rstd;
} call;

/* Positions first .. first + rows as a problem of its own. */
static void run(const call *c, int64_t first, int64_t rows, unsigned char *out) {
    size_t element = c->dtype == STW_F32 ? 4 : 2, at = (size_t)(first * c->inner) * element;
    const int64_t offsets[] = {0, rows};
    stw_jagged_desc desc = STW_INIT(stw_jagged_desc);
    stw_jagged_args args = STW_INIT(stw_jagged_args);
    stw_plan *plan = NULL;
    desc.op = c->op;
    desc.dtype = c->dtype;
    desc.index_dtype = STW_I64;
    desc.components = 1;
    desc.axis[0] = (stw_jagged_axis){rows, rows};
    desc.inner = c->inner;
    const int softmax = c->op == STW_JAGGED_SOFTMAX || c->op == STW_JAGGED_LOG_SOFTMAX;
    if (softmax || c->op == STW_JAGGED_SUM) desc.dim = STW_DIM_INNER;
    if (stw_jagged_bwd_plan(c->context, &desc, &plan)) fail_msg("%s", stw_last_error());
    args.axis[0].offsets = offsets;
    args.grad = c->grad + (c->op == STW_JAGGED_SUM ? (size_t)first * element : at);
    if (softmax) args.y = c->x + at;
    else args.x = c->x + at;
    args.mean = c->mean + first;
    args.rstd = c->rstd + first;
    args.dx = out + at;
    size_t size = stw_plan_workspace_size(plan);
    void *workspace = aligned_alloc(256, (size / 256 + 1) * 256);
    assert_non_null(workspace);
    if (stw_jagged_bwd(plan, &args, workspace, size, NULL)) fail_msg("%s", stw_last_error());
    free(workspace);
    stw_plan_destroy(plan);
}

static void fill(unsigned char *data, stw_dtype dtype, uint32_t seed) {
    for (int64_t n = 0; n < ELEMENTS; ++n) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t bits = (seed & 0x807FFFFFu) | (125u + (seed >> 24) % 4u) << 23; /* 1/4 to 4 */
        if (dtype == STW_F32) memcpy(data + 4 * n, &bits, 4);
        else if (dtype == STW_BF16) memcpy(data + 2 * n, (const unsigned char *)&bits + 2, 2);
        else {
            uint16_t half = (uint16_t)((seed & 0x83FFu) | (13u + (seed >> 24) % 4u) << 10);
            memcpy(data + 2 * n, &half, 2);
        }
    }
}

static void check(stw_context *context, stw_jagged_op op, stw_dtype dtype, int64_t inner, size_t skew) {
    size_t element = dtype == STW_F32 ? 4 : 2, bytes = (size_t)ELEMENTS * element;
    int64_t rows = ELEMENTS / inner, step = rows / 37 + 1;
    unsigned char *x = malloc(bytes), *grad = malloc(bytes), *block[2];
    float *mean = malloc(4 * (size_t)rows), *rstd = malloc(4 * (size_t)rows);
    assert_true(x && grad && mean && rstd);
    fill(x, dtype, 1);
    fill(grad, dtype, 2);
    for (int64_t r = 0; r < rows; ++r) mean[r] = (float)(r % 7) * 0.1f, rstd[r] = 0.5f + (float)(r % 5) * 0.25f;
    call c = {context, op, dtype, inner, x, grad, mean, rstd};
    for (int i = 0; i < 2; ++i) {
        size_t size = bytes + 2 * GUARD + 256;
        block[i] = aligned_alloc(64, (size / 64 + 1) * 64);
        assert_non_null(block[i]);
        memset(block[i], 0xA5, size);
        unsigned char *out = block[i] + GUARD + skew * element;
        for (int64_t first = 0; first < rows; first += i ? step : rows)
            run(&c, first, i ? (rows - first < step ? rows - first : step) : rows, out);
    }
    size_t used = (size_t)(rows * inner) * element, from = GUARD + skew * element;
    assert_memory_equal(block[0], block[1], bytes + GUARD);
    for (size_t n = 0; n < from; ++n) assert_int_equal(block[0][n], 0xA5);
    for (size_t n = 0; n < GUARD; ++n) assert_int_equal(block[0][from + used + n], 0xA5);
    free(x), free(grad), free(mean), free(rstd), free(block[0]), free(block[1]);
}

static void large_and_small_agree(void **state) {
    static const stw_jagged_op ops[] = {STW_JAGGED_SILU,      STW_JAGGED_GELU,        STW_JAGGED_GELU_TANH,
                                        STW_JAGGED_THRESHOLD, STW_JAGGED_SOFTMAX,     STW_JAGGED_LAYER_NORM,
                                        STW_JAGGED_SUM,       STW_JAGGED_LOG_SOFTMAX, STW_JAGGED_RMS_NORM};
    static const int64_t inners[] = {256, 241, 1000};
    (void)state;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    stw_context *context;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    for (size_t n = 0; n < 18; ++n)
        check(context, ops[n % 9],
              n % 3 == 0   ? STW_F32
              : n % 3 == 1 ? STW_BF16
                           : STW_F16,
              inners[(n + n / 9) % 3], n < 9 ? 0 : n % 5);
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_and_small_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
