/* SPDX-License-Identifier: MIT
 *
 * No call takes time for what is empty: batches of 2^31 sequences without rows, packs whose sequences are nearly all
 * empty, nested problems with 2^34 outer entries and no position. Each call has 20 seconds of processor time; where
 * there is something, the bits are those of the same call without the empty sequences. */
#include "sternway/sternway.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

enum { SECONDS = 20 };

static stw_context *context;
static char workspace[128 << 20];

/* Of processor time: the machine may be busy with other tests. 0: none. */
static void time_limit(long seconds) {
    const struct itimerval limit = {.it_value.tv_sec = seconds};
    assert_int_equal(setitimer(ITIMER_PROF, &limit, NULL), 0);
}

static void run_attn(const stw_attn_desc *desc, const stw_attn_args *args, int forward) {
    stw_plan *plan = NULL;
    time_limit(SECONDS);
    if ((forward ? stw_attn_fwd_plan : stw_attn_bwd_plan)(context, desc, &plan)) fail_msg("%s", stw_last_error());
    const size_t size = stw_plan_workspace_size(plan);
    assert_in_range(size, 0, sizeof workspace);
    if ((forward ? stw_attn_fwd : stw_attn_bwd)(plan, args, workspace, size, NULL)) fail_msg("%s", stw_last_error());
    stw_plan_destroy(plan);
    time_limit(0);
}

/* ---- dense: as many sequences as there may be ---- */

static stw_attn_desc dense(stw_dtype dtype, int64_t seq_q, int64_t seq_kv) {
    stw_attn_desc d = STW_INIT(stw_attn_desc);
    d.dtype = dtype;
    d.batch = INT32_MAX;
    d.heads_q = 4;
    d.heads_kv = 2;
    d.head_dim_qk = d.head_dim_v = 8;
    d.max_seq_q = seq_q;
    d.max_seq_kv = seq_kv;
    assert_int_equal(stw_layout_bshd(&d), STW_OK);
    return d;
}

static void batches_of_empty_sequences(void **state) {
    (void)state;
    static const stw_dtype dtypes[] = {STW_F32, STW_BF16, STW_F64};
    for (int i = 0; i < 3; ++i) {
        stw_attn_desc d = dense(dtypes[i], 0, 0);
        stw_attn_args args = STW_INIT(stw_attn_args);
        run_attn(&d, &args, 0);
        run_attn(&d, &args, 1);
    }
    stw_attn_desc d = dense(STW_F32, 5, 0); /* rows, and no key */
    stw_attn_args args = STW_INIT(stw_attn_args);
    stw_plan *plan = NULL;
    d.heads_q = d.heads_kv = 1;
    d.dropout_p = 0.5;
    uint8_t mask;
    if (stw_attn_bwd_plan(context, &d, &plan)) fail_msg("%s", stw_last_error());
    time_limit(SECONDS);
    if (stw_dropout_mask(plan, &args, &mask, NULL)) fail_msg("%s", stw_last_error());
    time_limit(0);
    stw_plan_destroy(plan);
}

/* A bias and a sink have gradients without any row: zeros. */
static void gradients_of_empty_sequences(void **state) {
    (void)state;
    for (int f64 = 0; f64 < 2; ++f64) {
        double bias = 0, dbias = 7, sink[4] = {0, 0, 0, 0}, dsink[4] = {7, 7, 7, 7}, zeros[4] = {0, 0, 0, 0};
        stw_attn_desc d = dense(f64 ? STW_F64 : STW_F32, 0, 0);
        stw_attn_args args = STW_INIT(stw_attn_args);
        d.bias_dtype = d.dtype;
        d.bias = d.dbias = (stw_bias_strides){0, 0, 0, 0};
        d.flags |= STW_ATTN_SINK;
        d.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS | STW_OUT_DSINK;
        args.bias = &bias;
        args.dbias = &dbias;
        args.sink = (const float *)sink;
        args.dsink = (float *)dsink;
        run_attn(&d, &args, 0);
        const size_t element = f64 ? sizeof(double) : sizeof(float);
        assert_memory_equal(&dbias, zeros, element);
        assert_memory_equal(dsink, zeros, 4 * element);
    }
}

/* Strides of what has no element are not checked, and nothing is made of them: the sanitizers' build would tell. */
static void strides_of_an_empty_bias(void **state) {
    (void)state;
    for (int f64 = 0; f64 < 2; ++f64) {
        double zeros[5 * 8] = {0};
        stw_attn_desc d = dense(f64 ? STW_F64 : STW_F32, 5, 0);
        stw_attn_args args = STW_INIT(stw_attn_args);
        d.batch = d.heads_q = d.heads_kv = 1;
        d.bias_dtype = d.dtype;
        d.bias = d.dbias = (stw_bias_strides){INT64_C(1) << 62, INT64_C(1) << 62, INT64_C(1) << 62, 1};
        d.outputs = STW_OUT_DBIAS | STW_OUT_DK;
        args.out = zeros;
        args.q = args.dout = zeros;
        args.lse = (float *)zeros;
        run_attn(&d, &args, 0);
    }
}

/* ---- packed: two sequences among as many empty ones as there are entries ---- */

enum { LONG = 1 << 16, ROWS = LONG + 1, HEADS = 16, MANY = 1 << 19 };

typedef struct pack {
    float *q, *k, *v, *out, *dout, *lse, *dq, *dk, *dv;
    float bias, dbias, sink[HEADS], dsink[HEADS];
    int32_t *cu_q, *cu_kv;
} pack;

static float *numbers(int64_t count, uint32_t seed) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    return x;
}

/* One sequence has one query and LONG keys, the other the reverse; they are the first and the last of `batch`, or stand
 * between empty ones. */
static pack make_pack(int64_t batch, int64_t first, int64_t second) {
    pack p = {.bias = 0.5f};
    float **const all[] = {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv};
    for (uint32_t i = 0; i < 8; ++i) *all[i] = numbers((int64_t)HEADS * ROWS, i + 1);
    p.lse = numbers((int64_t)HEADS * ROWS, 11);
    for (int64_t i = 0; i < (int64_t)HEADS * ROWS; ++i) p.lse[i] += 8;
    p.cu_q = malloc((size_t)(batch + 1) * 4);
    p.cu_kv = malloc((size_t)(batch + 1) * 4);
    for (int64_t b = 0; b <= batch; ++b) {
        p.cu_q[b] = b <= first ? 0 : b <= second ? 1 : ROWS;
        p.cu_kv[b] = b <= first ? 0 : b <= second ? LONG : ROWS;
    }
    return p;
}

static void free_pack(pack *p) {
    void *const all[] = {p->q, p->k, p->v, p->out, p->dout, p->lse, p->dq, p->dk, p->dv, p->cu_q, p->cu_kv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) free(all[i]);
}

static void run_pack(pack *p, int64_t batch) {
    stw_attn_desc d = STW_INIT(stw_attn_desc);
    d.dtype = d.bias_dtype = STW_F32;
    d.batch = batch;
    d.heads_q = d.heads_kv = HEADS;
    d.head_dim_qk = d.head_dim_v = 1;
    d.max_seq_q = d.max_seq_kv = LONG;
    d.total_q = d.total_kv = ROWS;
    assert_int_equal(stw_layout_bshd(&d), STW_OK);
    d.bias = d.dbias = (stw_bias_strides){0, 0, 0, 0};
    d.flags |= STW_ATTN_SINK;
    stw_attn_args args = STW_INIT(stw_attn_args);
    args.q = p->q, args.k = p->k, args.v = p->v, args.out = p->out, args.dout = p->dout, args.lse = p->lse;
    args.bias = &p->bias, args.sink = p->sink, args.cu_seqlens_q = p->cu_q, args.cu_seqlens_kv = p->cu_kv;
    args.dq = p->dq, args.dk = p->dk, args.dv = p->dv, args.dbias = &p->dbias, args.dsink = p->dsink;
    run_attn(&d, &args, 1);
    d.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS | STW_OUT_DSINK;
    run_attn(&d, &args, 0);
}

static void packs_of_nearly_empty_sequences(void **state) {
    (void)state;
    static const int64_t places[][3] = {{2, 0, 1}, {MANY, MANY / 3, MANY / 3 + 5}, {MANY, 0, MANY - 1}};
    pack two = make_pack(2, 0, 1);
    run_pack(&two, 2);
    for (int i = 1; i < 3; ++i) {
        pack many = make_pack(places[i][0], places[i][1], places[i][2]);
        run_pack(&many, MANY);
        const size_t bytes = sizeof(float) * HEADS * ROWS;
        assert_memory_equal(many.out, two.out, bytes);
        assert_memory_equal(many.lse, two.lse, bytes);
        assert_memory_equal(many.dq, two.dq, bytes);
        assert_memory_equal(many.dk, two.dk, bytes);
        assert_memory_equal(many.dv, two.dv, bytes);
        assert_memory_equal(many.dsink, two.dsink, sizeof two.dsink);
        assert_memory_equal(&many.dbias, &two.dbias, sizeof two.dbias);
        free_pack(&many);
    }
    free_pack(&two);
}

/* ---- nested ---- */

static void run_jagged(const stw_jagged_desc *desc, const stw_jagged_args *args) {
    stw_plan *plan = NULL;
    time_limit(SECONDS);
    if (stw_jagged_bwd_plan(context, desc, &plan)) fail_msg("%s", stw_last_error());
    const size_t size = stw_plan_workspace_size(plan);
    assert_in_range(size, 0, sizeof workspace);
    if (stw_jagged_bwd(plan, args, workspace, size, NULL)) fail_msg("%s", stw_last_error());
    stw_plan_destroy(plan);
    time_limit(0);
}

static const struct {
    stw_jagged_op op;
    stw_jagged_dim dim;
} nested[] = {
    {STW_JAGGED_SOFTMAX, STW_DIM_RAGGED},    {STW_JAGGED_SOFTMAX, STW_DIM_OUTER},
    {STW_JAGGED_SOFTMAX, STW_DIM_INNER},     {STW_JAGGED_LOG_SOFTMAX, STW_DIM_RAGGED},
    {STW_JAGGED_LAYER_NORM, STW_DIM_RAGGED}, {STW_JAGGED_RMS_NORM, STW_DIM_RAGGED},
    {STW_JAGGED_LAYER_NORM, STW_DIM_NONE},   {STW_JAGGED_SUM, STW_DIM_INNER},
    {STW_JAGGED_SELECT, STW_DIM_INNER},      {STW_JAGGED_GELU, STW_DIM_NONE},
    {STW_JAGGED_TO_PADDED, STW_DIM_NONE},
};
enum { NESTED = sizeof nested / sizeof nested[0] };

static stw_jagged_desc nested_of(int i, int64_t components, int64_t total, int64_t longest, int64_t outer) {
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    d.op = nested[i].op;
    d.dim = nested[i].dim;
    d.dtype = STW_F32;
    d.index_dtype = STW_I64;
    d.components = components;
    d.axis[0].size = longest;
    d.axis[0].total = total;
    d.outer = outer;
    d.inner = 1;
    return d;
}

static void nested_without_positions(void **state) {
    (void)state;
    static const int64_t zeros[4] = {0, 0, 0, 0};
    float one = 1;
    for (int i = 0; i < NESTED; ++i)
        for (int components = 0; components <= 3; components += 3) {
            stw_jagged_desc d = nested_of(i, components, 0, 1 << 20, INT64_C(1) << 34);
            stw_jagged_args args = STW_INIT(stw_jagged_args);
            args.axis[0].offsets = zeros;
            args.x = args.y = args.grad = args.mean = args.rstd = args.dx = &one;
            run_jagged(&d, &args);
        }
}

/* No component has a position of the buffer, or there is no component: gaps are not touched. */
static void nested_of_gaps_alone(void **state) {
    (void)state;
    static const int64_t offsets[4] = {0, 0, 0, 0};
    float one = 1, dx = 1;
    for (int i = 0; i < NESTED; ++i)
        for (int components = 0; components <= 3; components += 3) {
            stw_jagged_desc d = nested_of(i, components, 1 << 10, 1 << 10, INT64_C(1) << 34);
            stw_jagged_args args = STW_INIT(stw_jagged_args);
            if (nested[i].op == STW_JAGGED_LAYER_NORM || nested[i].op == STW_JAGGED_RMS_NORM)
                continue; /* their sums' workspace */
            args.axis[0].offsets = offsets;
            args.x = args.y = args.grad = args.mean = args.rstd = &one;
            args.dx = &dx;
            run_jagged(&d, &args);
            assert_true(dx == 1);
        }
}

/* Three positions in a million components, 2^16 outer entries. */
static void nested_of_nearly_empty_components(void **state) {
    (void)state;
    enum { OUTER = 1 << 16, COMPONENTS = 1 << 20, TOTAL = 3 };
    int64_t *many = malloc((COMPONENTS + 1) * sizeof *many), few[] = {0, 2, 3};
    for (int64_t b = 0; b <= COMPONENTS; ++b) many[b] = b <= COMPONENTS / 2 ? 0 : b < COMPONENTS ? 2 : 3;
    float *y = numbers(OUTER * TOTAL, 1), *g = numbers(OUTER * TOTAL, 2);
    float *dx = numbers(OUTER * TOTAL, 3), *expected = numbers(OUTER * TOTAL, 4);
    for (int i = 0; i < 4; ++i) {
        stw_jagged_args args = STW_INIT(stw_jagged_args);
        args.x = args.y = y;
        args.grad = g;
        stw_jagged_desc d = nested_of(i, COMPONENTS, TOTAL, TOTAL, OUTER);
        d.storage = STW_STORAGE_JAGGED;
        args.axis[0].offsets = many;
        args.dx = dx;
        run_jagged(&d, &args);
        d.components = 2;
        args.axis[0].offsets = few;
        args.dx = expected;
        run_jagged(&d, &args);
        assert_memory_equal(dx, expected, OUTER * TOTAL * sizeof(float));
    }
    free(many), free(y), free(g), free(dx), free(expected);
}

static int open_context(void **state) {
    (void)state;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 2;
    return stw_context_create(&opts, &context) != STW_OK;
}

static int close_context(void **state) {
    (void)state;
    stw_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_of_empty_sequences),        cmocka_unit_test(gradients_of_empty_sequences),
        cmocka_unit_test(strides_of_an_empty_bias),          cmocka_unit_test(packs_of_nearly_empty_sequences),
        cmocka_unit_test(nested_without_positions),          cmocka_unit_test(nested_of_gaps_alone),
        cmocka_unit_test(nested_of_nearly_empty_components),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
