/* SPDX-License-Identifier: MIT
 *
 * Calls of nested operations beyond the golden vectors: a NaN stays in its own component or line, attention
 * is the packed call's bits, many callers share a plan, 100,000 components, more than 2^31 elements (only
 * with the argument "large": it takes 2 GB). */
#include "problem.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static stw_context *context;

static float value(int64_t n) { return (float)((n * 2654435761u >> 8) % 2001) / 1000.0f - 1.0f; }

static float *floats(int64_t count) {
    float *x = malloc(4 * (size_t)(count + 1));
    assert_non_null(x);
    for (int64_t n = 0; n < count; ++n) x[n] = value(n);
    return x;
}

/* Plans and runs on a poisoned workspace. */
static void run(const stw_jagged_desc *desc, const stw_jagged_args *args) {
    stw_plan *plan = NULL;
    if (stw_jagged_bwd_plan(context, desc, &plan)) fail_msg("%s", stw_last_error());
    const size_t size = stw_plan_workspace_size(plan);
    void *workspace = aligned_alloc(256, (size + 256) / 256 * 256);
    memset(workspace, 0xFF, size);
    if (stw_jagged_bwd(plan, args, size ? workspace : NULL, size, NULL)) fail_msg("%s", stw_last_error());
    free(workspace);
    stw_plan_destroy(plan);
}

static stw_jagged_desc desc_of(stw_jagged_op op, int64_t components, int64_t total, int64_t longest, int64_t inner) {
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    d.op = op;
    d.dtype = STW_F32;
    d.index_dtype = STW_I64;
    d.components = components;
    d.axis[0].size = longest;
    d.axis[0].total = total;
    d.inner = inner;
    return d;
}

/* ---- NaN ---- */

enum { ROWS = 90, INNER = 7 };
static const int64_t offsets[] = {0, 33, 33, 34, 90};

/* The elements of x from `first` on, `count` of them, may be NaN, and one at least is; no other. */
static void nan_exactly(const char *what, const float *x, int64_t elements, int64_t first, int64_t count) {
    int found = 0;
    for (int64_t n = 0; n < elements; ++n) {
        const int inside = n >= first && n < first + count;
        if (isnan(x[n]) && !inside) fail_msg("%s: NaN at %lld", what, (long long)n);
        found |= isnan(x[n]) && inside;
    }
    if (!found) fail_msg("%s: the NaN went nowhere", what);
}

static void test_nan_rows(void **state) {
    (void)state;
    static const stw_jagged_op ops[] = {STW_JAGGED_GELU,       STW_JAGGED_SILU,    STW_JAGGED_GELU_TANH,
                                        STW_JAGGED_SOFTMAX,    STW_JAGGED_SOFTMAX, STW_JAGGED_LOG_SOFTMAX,
                                        STW_JAGGED_LOG_SOFTMAX};
    for (int n = 0; n < 7; ++n) {
        stw_jagged_desc d = desc_of(ops[n], 4, ROWS, 56, INNER);
        stw_jagged_args a = STW_INIT(stw_jagged_args);
        float *x = floats(ROWS * INNER), *g = floats(ROWS * INNER), *dx = floats(ROWS * INNER);
        a.axis[0].offsets = offsets;
        a.grad = g;
        a.dx = dx;
        g[40 * INNER + 3] = NAN;
        if (n >= 3) {
            d.dim = n % 2 ? STW_DIM_INNER : STW_DIM_RAGGED;
            a.y = x;
        } else {
            a.x = x;
        }
        run(&d, &a);
        if (n < 3) nan_exactly("elementwise", dx, ROWS * INNER, 40 * INNER + 3, 1);
        if (n == 3 || n == 5) nan_exactly("softmax along inner", dx, ROWS * INNER, 40 * INNER, INNER);
        if (n == 4 || n == 6) {
            nan_exactly("softmax along ragged", dx, ROWS * INNER, 34 * INNER, 56 * INNER);
            for (int64_t e = 34 * INNER; e < ROWS * INNER; ++e) assert_int_equal(isnan(dx[e]) != 0, e % INNER == 3);
        }
        free(x);
        free(g);
        free(dx);
    }
}

/* A norm over the ragged dimension: dX of that component alone, all of it. */
static void test_nan_ragged_norms(void **state) {
    (void)state;
    for (int rms = 0; rms < 2; ++rms) {
        stw_jagged_desc d = desc_of(rms ? STW_JAGGED_RMS_NORM : STW_JAGGED_LAYER_NORM, 4, ROWS, 56, INNER);
        stw_jagged_args a = STW_INIT(stw_jagged_args);
        float *x = floats(ROWS * INNER), *g = floats(ROWS * INNER), *dx = floats(ROWS * INNER), *mean = floats(4);
        d.dim = STW_DIM_RAGGED;
        a.axis[0].offsets = offsets;
        a.x = x;
        a.grad = g;
        a.mean = rms ? NULL : mean;
        a.rstd = mean;
        a.dx = dx;
        g[40 * INNER + 3] = NAN;
        run(&d, &a);
        nan_exactly("norm over the ragged dimension", dx, ROWS * INNER, 34 * INNER, 56 * INNER);
        for (int64_t e = 34 * INNER; e < ROWS * INNER; ++e) assert_true(isnan(dx[e]));
        free(x), free(g), free(dx), free(mean);
    }
}

/* The norms and linear: dX in the row alone; sums over rows take it up. */
static void test_nan_weights(void **state) {
    (void)state;
    static const stw_jagged_op ops[] = {STW_JAGGED_LAYER_NORM, STW_JAGGED_LINEAR, STW_JAGGED_RMS_NORM};
    for (int n = 0; n < 3; ++n) {
        const int linear = n == 1, rms = n == 2;
        const int64_t N = linear ? 5 : INNER;
        stw_jagged_desc d = desc_of(ops[n], 4, ROWS, 56, INNER);
        stw_jagged_args a = STW_INIT(stw_jagged_args);
        float *x = floats(ROWS * INNER), *g = floats(ROWS * N), *dx = floats(ROWS * INNER);
        float *w = floats(N * INNER), *dw = floats(N * INNER), *db = floats(N), *mean = floats(ROWS);
        if (linear) d.out_features = N;
        else d.flags = STW_JAGGED_HAS_GAMMA;
        a.axis[0].offsets = offsets;
        a.x = x;
        a.grad = g;
        a.weight = w;
        a.mean = n == 0 ? mean : NULL;
        a.rstd = linear ? NULL : mean;
        a.dx = dx;
        a.dweight = dw;
        a.dbias = rms ? NULL : db;
        g[40 * N + 2] = NAN;
        run(&d, &a);
        nan_exactly("dx", dx, ROWS * INNER, 40 * INNER, INNER);
        if (!rms) nan_exactly("dbias", db, N, 2, 1);
        nan_exactly("dweight", dw, linear ? N * INNER : N, linear ? 2 * INNER : 2, linear ? INNER : 1);
        free(x), free(g), free(dx), free(w), free(dw), free(db), free(mean);
    }
}

/* matmul: a NaN in one component's A reaches that component's dB only, and none of dA. */
static void test_nan_components(void **state) {
    (void)state;
    const int64_t K = INNER, N = 5;
    stw_jagged_desc d = desc_of(STW_JAGGED_MATMUL, 4, ROWS, 56, 0);
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    float *x = floats(ROWS * K), *g = floats(ROWS * N), *other = floats(4 * K * N), *dx = floats(ROWS * K),
          *dother = floats(4 * K * N);
    d.ragged_axes = 1u << STW_AXIS_M;
    d.axis[STW_AXIS_K].size = K;
    d.axis[STW_AXIS_N].size = N;
    a.axis[0].offsets = offsets;
    a.x = x;
    a.grad = g;
    a.other = other;
    a.dx = dx;
    a.dother = dother;
    x[32 * K + 4] = NAN; /* the last row of component 0 */
    run(&d, &a);
    nan_exactly("dB", dother, 4 * K * N, 4 * N, N);
    for (int64_t n = 0; n < ROWS * K; ++n) assert_false(isnan(dx[n]));
    for (int64_t n = 0; n < K * N; ++n) assert_true(dother[K * N + n] == 0); /* the empty component's */
    x[32 * K + 4] = 0;
    other[2 * K * N] = NAN; /* B of component 2, which has one row: k 0, n 0 */
    run(&d, &a);
    nan_exactly("dA", dx, ROWS * K, 33 * K, 1);
    free(x), free(g), free(other), free(dx), free(dother);
}

/* ---- attention ---- */

static void test_attention_is_the_packed_call(void **state) {
    (void)state;
    static const variant variants[] = {
        {.name = "plain"}, {.name = "gaps, int32", .gaps = 1, .narrow = 1}, {.name = "gaps", .gaps = 1}};
    static golden file;
    golden_open(&file, "attention");
    for (int n = 0; n < file.count * 3; ++n) {
        golden_case c = golden_at(&file, n / 3);
        problem p;
        int32_t starts[2][COMPONENTS_MAX + 1], used[2][COMPONENTS_MAX];
        assert_true(problem_build(&p, &c, &variants[n % 3]));
        problem_run(&p, context);
        stw_attn_args args = p.attn_args;
        void *grads[3] = {args.dq, args.dk, args.dv};
        for (int axis = 0; axis < 2; ++axis) {
            const lengths *l = &p.l[axis];
            for (int b = 0; b < l->count; ++b) starts[axis][b] = (int32_t)l->start[b];
            for (int b = 0; b < l->count; ++b) used[axis][b] = (int32_t)l->used[b];
            starts[axis][l->count] = (int32_t)(l->start[l->count - 1] + l->size[l->count - 1]);
        }
        args.cu_seqlens_q = starts[0];
        args.cu_seqlens_kv = starts[1];
        args.used_q = p.v->gaps ? used[0] : NULL;
        args.used_kv = p.v->gaps ? used[1] : NULL;
        args.status_out = NULL;
        size_t bytes[3] = {0};
        for (int i = 0; i < 3; ++i)
            for (int b = 0; b < p.memory.count; ++b)
                if (p.memory.list[b].data == grads[i]) bytes[i] = p.memory.list[b].bytes;
        args.dq = malloc(bytes[0] + 1), args.dk = malloc(bytes[1] + 1), args.dv = malloc(bytes[2] + 1);
        void *direct[3] = {args.dq, args.dk, args.dv};
        for (int i = 0; i < 3; ++i) memset(direct[i], ARENA_POISON, bytes[i]);
        stw_plan *plan = NULL;
        assert_int_equal(stw_attn_bwd_plan(context, &p.attn, &plan), STW_OK);
        const size_t size = stw_plan_workspace_size(plan);
        void *workspace = aligned_alloc(256, (size + 256) / 256 * 256);
        if (stw_attn_bwd(plan, &args, workspace, size, NULL)) fail_msg("%s", stw_last_error());
        for (int i = 0; i < 3; ++i) {
            assert_true(bytes[i] > 0);
            assert_memory_equal(direct[i], grads[i], bytes[i]);
            free(direct[i]);
        }
        free(workspace);
        stw_plan_destroy(plan);
        problem_free(&p);
    }
    golden_close(&file);
}

/* ---- many callers, many components, many elements ---- */

typedef struct caller {
    const stw_plan *plan;
    stw_jagged_args args;
    pthread_t thread;
    stw_status status;
} caller;

static void *call_often(void *of) {
    caller *c = of;
    const size_t size = stw_plan_workspace_size(c->plan);
    void *workspace = aligned_alloc(256, (size + 256) / 256 * 256);
    for (int n = 0; n < 50 && !c->status; ++n) {
        memset(c->args.dx, 0xFF, 4 * ROWS * INNER);
        c->status = stw_jagged_bwd(c->plan, &c->args, workspace, size, NULL);
    }
    free(workspace);
    return NULL;
}

static void test_callers_share_a_plan(void **state) {
    (void)state;
    stw_jagged_desc d = desc_of(STW_JAGGED_SOFTMAX, 4, ROWS, 56, INNER);
    stw_plan *plan = NULL;
    caller callers[6];
    float *y = floats(ROWS * INNER), *g = floats(ROWS * INNER);
    d.dim = STW_DIM_RAGGED;
    assert_int_equal(stw_jagged_bwd_plan(context, &d, &plan), STW_OK);
    for (int n = 0; n < 6; ++n) {
        callers[n] = (caller){.plan = plan, .args = STW_INIT(stw_jagged_args)};
        callers[n].args.axis[0].offsets = offsets;
        callers[n].args.y = y;
        callers[n].args.grad = g;
        callers[n].args.dx = floats(ROWS * INNER);
        assert_int_equal(pthread_create(&callers[n].thread, NULL, call_often, &callers[n]), 0);
    }
    for (int n = 0; n < 6; ++n) {
        pthread_join(callers[n].thread, NULL);
        assert_int_equal(callers[n].status, STW_OK);
        assert_memory_equal(callers[n].args.dx, callers[0].args.dx, 4 * ROWS * INNER);
        assert_false(isnan(((float *)callers[n].args.dx)[0]));
    }
    for (int n = 0; n < 6; ++n) free(callers[n].args.dx);
    free(y);
    free(g);
    stw_plan_destroy(plan);
}

/* 100,000 components of 0 to 2 positions and one of 20,000: sum along the ragged dimension tells for every
 * position whose it is. */
static void test_many_components(void **state) {
    (void)state;
    enum { MANY = 100000 };
    int64_t *starts = malloc(8 * (MANY + 1)), total = 0;
    for (int64_t b = 0; b < MANY; ++b) {
        starts[b] = total;
        total += b == 70001 ? 20000 : (b * 7 + b / 3) % 3;
    }
    starts[MANY] = total;
    stw_jagged_desc d = desc_of(STW_JAGGED_SUM, MANY, total, 20000, 2);
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    float *g = malloc(8 * MANY), *dx = floats(2 * total);
    for (int64_t n = 0; n < 2 * MANY; ++n) g[n] = (float)n;
    d.dim = STW_DIM_RAGGED;
    a.axis[0].offsets = starts;
    a.grad = g;
    a.dx = dx;
    run(&d, &a);
    for (int64_t b = 0; b < MANY; ++b)
        for (int64_t r = starts[b]; r < starts[b + 1]; ++r)
            if (dx[2 * r] != (float)(2 * b) || dx[2 * r + 1] != (float)(2 * b + 1))
                fail_msg("position %lld is not component %lld's", (long long)r, (long long)b);
    free(g);
    free(dx);
    free(starts);
}

/* 2^31 + 600 elements of a byte, one component; its last element is beyond what 32 bits count. */
static void test_many_elements(void **state) {
    const int64_t rows = (INT64_C(1) << 31) / 100 + 6, total = rows + 3, bounds[] = {0, 2, 2 + rows};
    if (!*state) skip();
    stw_jagged_desc d = desc_of(STW_JAGGED_SUM, 2, total, rows, 100);
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    int8_t *g = malloc((size_t)total), *dx = malloc((size_t)total * 100);
    assert_true(g && dx);
    for (int64_t n = 0; n < total; ++n) g[n] = (int8_t)(n % 251);
    memset(dx, 0x55, (size_t)total * 100);
    d.dtype = STW_I8;
    d.dim = STW_DIM_INNER;
    a.axis[0].offsets = bounds;
    a.grad = g;
    a.dx = dx;
    run(&d, &a);
    for (int64_t n = 0; n < 2 + rows; ++n)
        for (int64_t i = 0; i < 100; i += 99)
            if (dx[n * 100 + i] != g[n]) fail_msg("row %lld", (long long)n);
    for (int64_t i = (2 + rows) * 100; i < total * 100; ++i) assert_int_equal(dx[i], 0x55);
    free(g);
    free(dx);
}

int main(int argc, char **argv) {
    int large = argc > 1 && !strcmp(argv[1], "large");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nan_rows),
        cmocka_unit_test(test_nan_ragged_norms),
        cmocka_unit_test(test_nan_weights),
        cmocka_unit_test(test_nan_components),
        cmocka_unit_test(test_attention_is_the_packed_call),
        cmocka_unit_test(test_callers_share_a_plan),
        cmocka_unit_test(test_many_components),
    };
    const struct CMUnitTest large_tests[] = {
        cmocka_unit_test_prestate(test_many_elements, &large),
    };
    context = problem_context(3);
    const int failed = large ? cmocka_run_group_tests(large_tests, NULL, NULL)
                             : cmocka_run_group_tests_name("calls of nested operations", tests, NULL, NULL);
    stw_context_destroy(context);
    return failed;
}
