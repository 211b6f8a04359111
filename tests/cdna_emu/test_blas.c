/* SPDX-License-Identifier: MIT
 *
 * Linear by a library that one stream and one thread may use at a time (backends/gpu/blas.c), on the emulator with
 * the fake hipBLASLt, which fails where the real one would give wrong results, hang or end the process:
 * streams, threads, captures, failures. Data are small integers, so library, tiles and the test agree bit by
 * bit. */
#include <sternway/sternway.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int hipMalloc(void **pointer_out, size_t bytes);
int hipFree(void *pointer);
int hipMemcpy(void *to, const void *from, size_t bytes, int kind);
int hipGetLastError(void);
int hipStreamCreateWithFlags(void **stream_out, unsigned flags);
int hipStreamDestroy(void *stream);
int hipStreamSynchronize(void *stream);
int hipStreamBeginCapture(void *stream, int mode);
int hipStreamEndCapture(void *stream, void **graph_out);
int hipGraphInstantiate(void **exec_out, void *graph, void **node, char *log, size_t capacity);
int hipGraphLaunch(void *exec, void *stream);
int hipGraphExecDestroy(void *exec);
int hipGraphDestroy(void *graph);

enum { ROWS = 272, INNER = 624, FEATURES = 632 };
enum { GRAD, X, WEIGHT, DX, DWEIGHT, OFFSETS, TENSORS };
static const size_t bytes[] = {2 * ROWS * FEATURES, 2 * ROWS *INNER,     2 * FEATURES *INNER,
                               4 * ROWS *INNER,     4 * FEATURES *INNER, 8};
static void *host[TENSORS];
static float *expected[2];

/* -2 .. 2 */
static int value(int tensor, size_t i) { return (int)((i * 2654435761u + (size_t)tensor * 40503u) >> 7) % 5 - 2; }

static void make_expectation(void) {
    float *dx = calloc(ROWS * INNER, sizeof *dx), *dw = calloc(FEATURES * INNER, sizeof *dw);
    assert_true(dx && dw);
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t n = 0; n < FEATURES; ++n) {
            float g = (float)value(GRAD, r * FEATURES + n);
            for (size_t k = 0; k < INNER; ++k) {
                dx[r * INNER + k] += g * (float)value(WEIGHT, n * INNER + k);
                dw[n * INNER + k] += g * (float)value(X, r * INNER + k);
            }
        }
    expected[0] = dx;
    expected[1] = dw;
}

static int make_data(void **state) {
    (void)state;
    for (int t = 0; t < TENSORS; ++t) host[t] = malloc(bytes[t]);
    for (int t = GRAD; t <= WEIGHT; ++t)
        for (size_t i = 0; i < bytes[t] / 2; ++i) {
            float f = (float)value(t, i);
            memcpy((char *)host[t] + 2 * i, (char *)&f + 2, 2); /* bf16: the upper half */
        }
    memcpy(host[OFFSETS], (const int32_t[]){0, ROWS}, 8);
    make_expectation();
    return 0;
}

static int free_data(void **state) {
    (void)state;
    for (int t = 0; t < TENSORS; ++t) free(host[t]);
    free(expected[0]);
    free(expected[1]);
    return 0;
}

/* ---- a plan and what its calls need ---- */

static stw_context *context_make(void) {
    stw_context_opts opts = {.struct_size = sizeof opts, .backend = STW_BACKEND_HIP, .memory = STW_MEMORY_DEVICE};
    stw_context *context = NULL;
    if (stw_context_create(&opts, &context)) fail_msg("%s", stw_last_error());
    return context;
}

static stw_plan *plan_make_to(stw_context *context, stw_dtype dtype, uint32_t accumulate) {
    stw_jagged_desc desc = {.struct_size = sizeof desc,
                            .op = STW_JAGGED_LINEAR,
                            .dtype = dtype,
                            .index_dtype = STW_I32,
                            .dx_dtype = STW_F32,
                            .dweight_dtype = STW_F32,
                            .outputs = STW_JAGGED_DX | STW_JAGGED_DWEIGHT,
                            .accumulate = accumulate,
                            .flags = STW_JAGGED_FULL,
                            .components = 1,
                            .axis = {{ROWS, ROWS}},
                            .inner = INNER,
                            .out_features = FEATURES};
    stw_plan *plan = NULL;
    if (stw_jagged_bwd_plan(context, &desc, &plan)) fail_msg("%s", stw_last_error());
    return plan;
}

static stw_plan *plan_make(stw_context *context, stw_dtype dtype) { return plan_make_to(context, dtype, 0); }

static int plan_says(const stw_plan *plan, const char *words) {
    char text[4096];
    size_t needed;
    assert_int_equal(stw_plan_describe(plan, text, sizeof text, &needed), STW_OK);
    return strstr(text, words) != NULL;
}

typedef struct call {
    const stw_plan *plan;
    void *device[TENSORS], *workspace;
    size_t workspace_size;
} call;

static call call_make(const stw_plan *plan) {
    call c = {.plan = plan, .workspace_size = stw_plan_workspace_size(plan)};
    for (int t = 0; t < TENSORS; ++t) {
        assert_int_equal(hipMalloc(&c.device[t], bytes[t]), 0);
        if (t != DX && t != DWEIGHT) assert_int_equal(hipMemcpy(c.device[t], host[t], bytes[t], 4), 0);
    }
    assert_int_equal(hipMalloc(&c.workspace, c.workspace_size), 0);
    return c;
}

static void call_end(call *c) {
    for (int t = 0; t < TENSORS; ++t) assert_int_equal(hipFree(c->device[t]), 0);
    assert_int_equal(hipFree(c->workspace), 0);
}

static stw_status call_run(const call *c, void *stream) {
    stw_jagged_args args = {.struct_size = sizeof args,
                            .axis = {{.offsets = c->device[OFFSETS]}},
                            .grad = c->device[GRAD],
                            .x = c->device[X],
                            .weight = c->device[WEIGHT],
                            .dx = c->device[DX],
                            .dweight = c->device[DWEIGHT]};
    return stw_jagged_bwd(c->plan, &args, c->workspace, c->workspace_size, stream);
}

/* The results are right and are no longer there. 1, or 0. */
static int call_is_right(const call *c) {
    int right = 1;
    for (int t = DX; t <= DWEIGHT; ++t) {
        void *got = malloc(bytes[t]);
        right &= got && !hipMemcpy(got, c->device[t], bytes[t], 4) && !memcmp(got, expected[t - DX], bytes[t]);
        if (got) memset(got, 0xff, bytes[t]);
        right &= got && !hipMemcpy(c->device[t], got, bytes[t], 4);
        free(got);
    }
    return right;
}

/* Products that the library has done. */
static int by_library(void) {
    static atomic_int *products;
    if (!products) {
        void *library = dlopen("libhipblaslt.so.1", RTLD_NOW | RTLD_NOLOAD);
        assert_non_null(library);
        products = dlsym(library, "fake_lt_products");
        assert_non_null(products);
    }
    return atomic_exchange(products, 0);
}

static void *stream_make(void) {
    void *stream = NULL;
    assert_int_equal(hipStreamCreateWithFlags(&stream, 1), 0);
    return stream;
}

#define RUN(c, stream)                                                                                                 \
    do {                                                                                                               \
        if (call_run(c, stream)) fail_msg("%s", stw_last_error());                                                     \
        assert_int_equal(hipGetLastError(), 0);                                                                        \
    } while (0)

/* ---- tests ---- */

static void one_stream(void **state) {
    (void)state;
    stw_context *context = context_make();
    stw_plan *plan = plan_make(context, STW_BF16);
    call c = call_make(plan);
    void *first = stream_make(), *second = stream_make();
    assert_int_equal(hipGetLastError(), 0);
    assert_true(plan_says(
        plan, "a second stream or thread, a first call in a capture, chosen without a measurement, code object"));
    assert_true(plan_says(plan, "deterministic: not promised by libhipblaslt.so.1"));
    /* the default stream of each thread is never one stream */
    void *const streams[] = {(void *)2, first, second, NULL, first};
    const int counts[] = {0, 2, 0, 0, 2};
    for (int i = 0; i < 5; ++i) {
        RUN(&c, streams[i]);
        assert_int_equal(by_library(), counts[i]);
        assert_true(call_is_right(&c));
    }
    /* another plan of the context has the same handle, another context its own */
    stw_plan *other = plan_make(context, STW_BF16);
    stw_context *apart = context_make();
    stw_plan *free_plan = plan_make(apart, STW_BF16);
    const stw_plan *const plans[] = {other, free_plan};
    for (int i = 0; i < 2; ++i) {
        c.plan = plans[i];
        RUN(&c, i ? NULL : second);
        assert_int_equal(by_library(), 2 * i);
        assert_true(call_is_right(&c));
    }
    RUN(&c, (void *)1); /* the default stream's other name */
    assert_int_equal(by_library(), 2);
    assert_true(call_is_right(&c));
    call_end(&c);
    stw_plan_destroy(plan);
    stw_plan_destroy(other);
    stw_plan_destroy(free_plan);
    stw_context_destroy(apart);
    stw_context_destroy(context);
    hipStreamDestroy(first);
    hipStreamDestroy(second);
}

static void replay(const call *c, void *stream, int products) {
    void *graph = NULL, *exec = NULL;
    assert_int_equal(hipStreamBeginCapture(stream, 0), 0);
    RUN(c, stream);
    assert_int_equal(hipStreamEndCapture(stream, &graph), 0);
    assert_int_equal(by_library(), products);
    assert_int_equal(hipGraphInstantiate(&exec, graph, NULL, NULL, 0), 0);
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(hipGraphLaunch(exec, stream), 0);
        assert_true(call_is_right(c));
    }
    assert_int_equal(hipGraphExecDestroy(exec), 0);
    assert_int_equal(hipGraphDestroy(graph), 0);
}

/* A product that has not run loads code, which a capture does not survive: tiles until it has. */
static void captured(void **state) {
    (void)state;
    stw_context *context = context_make();
    stw_plan *plan = plan_make(context, STW_BF16);
    call c = call_make(plan);
    void *stream = stream_make();
    replay(&c, stream, 0);
    RUN(&c, stream);
    assert_int_equal(by_library(), 2);
    assert_true(call_is_right(&c));
    replay(&c, stream, 2);
    call_end(&c);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    hipStreamDestroy(stream);
}

/* Making a handle while a stream is captured would end the process: no library then, and one later. */
static void planned_in_capture(void **state) {
    (void)state;
    stw_context *context = context_make();
    stw_plan *loads = plan_make(context, STW_F32); /* the kernels' module */
    void *stream = stream_make(), *graph = NULL;
    assert_true(plan_says(loads, "dX by own tiles: f32, dW by own tiles: f32"));
    assert_int_equal(hipStreamBeginCapture(stream, 0), 0);
    stw_plan *plan = plan_make(context, STW_BF16);
    assert_int_equal(hipGetLastError(), 0);
    assert_true(plan_says(plan, "dX by own tiles: no handle of libhipblaslt.so.1 (no memory, or a stream is"));
    assert_int_not_equal(hipStreamEndCapture(stream, &graph), 0); /* planning is not for captures */
    hipGetLastError();
    stw_plan *later = plan_make(context, STW_BF16);
    assert_true(plan_says(later, "variant: libhipblaslt.so.1 libhipblaslt.so.1"));
    assert_true(plan_says(plan, "deterministic: yes"));
    stw_plan_destroy(later);
    stw_plan_destroy(plan);
    stw_plan_destroy(loads);
    stw_context_destroy(context);
    hipStreamDestroy(stream);
}

/* Added to what is there: three calls from 0 are three times the result; both paths add to each other's. */
static void accumulated(void **state) {
    (void)state;
    stw_context *context = context_make();
    stw_plan *plan = plan_make_to(context, STW_BF16, STW_JAGGED_DX | STW_JAGGED_DWEIGHT);
    call c = call_make(plan);
    void *zeros = calloc(1, bytes[DWEIGHT]), *second = stream_make();
    assert_true(zeros && bytes[DWEIGHT] >= bytes[DX]);
    for (int t = DX; t <= DWEIGHT; ++t) assert_int_equal(hipMemcpy(c.device[t], zeros, bytes[t], 4), 0);
    RUN(&c, (void *)2);
    RUN(&c, NULL);
    RUN(&c, second);
    assert_int_equal(by_library(), 2);
    for (int t = DX; t <= DWEIGHT; ++t) {
        float *got = malloc(bytes[t]);
        assert_non_null(got);
        assert_int_equal(hipMemcpy(got, c.device[t], bytes[t], 4), 0);
        for (size_t i = 0; i < bytes[t] / 4; ++i) assert_true(got[i] == 3 * expected[t - DX][i]);
        free(got);
    }
    free(zeros);
    call_end(&c);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    hipStreamDestroy(second);
}

static void failing(void **state) {
    (void)state;
    stw_context *context = context_make();
    stw_plan *plan = plan_make(context, STW_BF16);
    call c = call_make(plan);
    setenv("FAKE_LT_FAIL", "matmul", 1);
    assert_int_equal(call_run(&c, NULL), STW_E_DRIVER);
    assert_string_equal(stw_last_error(), "jagged_bwd: hipblasLtMatmul failed: status 6");
    unsetenv("FAKE_LT_FAIL");
    assert_int_equal(hipGetLastError(), 0);
    RUN(&c, NULL);
    assert_int_equal(by_library(), 2);
    assert_true(call_is_right(&c));
    call_end(&c);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
}

enum { THREADS = 4, RUNS = 3 };
typedef struct worker {
    pthread_t thread;
    call c;
    void *stream;
    int wrong;
} worker;

static void *work(void *argument) {
    worker *w = argument;
    for (int i = 0; i < RUNS; ++i) w->wrong += call_run(&w->c, w->stream) || !call_is_right(&w->c);
    return NULL;
}

/* Threads that meet in the library would write to one descriptor: the second takes the tiles. */
static void threads(void **state) {
    (void)state;
    stw_context *context = context_make();
    stw_plan *plan = plan_make(context, STW_BF16);
    void *stream = stream_make();
    worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        workers[i] = (worker){.c = call_make(plan), .stream = stream};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; ++i) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
        call_end(&workers[i].c);
    }
    int products = by_library();
    assert_in_range(products, 2, 2 * THREADS * RUNS);
    print_message("%d of %d products by the library\n", products, 2 * THREADS * RUNS);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    hipStreamDestroy(stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_stream),         cmocka_unit_test(captured),
                                       cmocka_unit_test(planned_in_capture), cmocka_unit_test(failing),
                                       cmocka_unit_test(accumulated),        cmocka_unit_test(threads)};
    return cmocka_run_group_tests_name("emu_blas", tests, make_data, free_data);
}
