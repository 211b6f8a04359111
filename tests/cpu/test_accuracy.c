/* SPDX-License-Identifier: MIT
 *
 * The values of specification section 5 on every variant: standard deviation 3, one-hot V, -65504 and -inf on some
 * keys, whole rows of -inf, subnormal numbers, large inputs, given LSE of +-inf and NaN. */
#include "tests/cpu/harness.h"
#include "tests/reference/setups.h"

#include "common/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const stw_dtype dtypes[] = {STW_F32, STW_BF16, STW_F16};

typedef struct tensor {
    fixture_tensor which;
    const void *data;
    int64_t heads, rows, dim;
} tensor;

static void each_element(const fixture *f, tensor t, float (*change)(float x, int64_t row, int64_t d)) {
    for (int64_t b = 0; b < f->desc.batch; ++b)
        for (int64_t h = 0; h < t.heads; ++h)
            for (int64_t i = 0; i < t.rows; ++i)
                for (int64_t d = 0; d < t.dim; ++d) {
                    int64_t at = fixture_index(f, t.which, b, h, i, d);
                    float x = stw_load_f32(t.data, at, f->desc.dtype);
                    stw_store_f32((void *)(uintptr_t)t.data, at, f->desc.dtype, change(x, i, d));
                }
}

static tensor tensor_of(const fixture *f, fixture_tensor which) {
    const stw_attn_desc *d = &f->desc;
    const stw_attn_args *a = &f->args;
    int kv = which == FIXTURE_K || which == FIXTURE_V;
    tensor t = {which, a->q, kv ? d->heads_kv : d->heads_q, kv ? d->max_seq_kv : d->max_seq_q, d->head_dim_qk};
    if (which == FIXTURE_K) t.data = a->k;
    if (which == FIXTURE_V) t.data = a->v;
    if (which == FIXTURE_DOUT) t.data = a->dout;
    if (which == FIXTURE_V || which == FIXTURE_DOUT) t.dim = d->head_dim_v;
    return t;
}

static float times3(float x, int64_t row, int64_t d) { return (void)row, (void)d, 3 * x; }
static float one_hot(float x, int64_t row, int64_t d) { return (void)x, row % 19 == d ? 1.0f : 0.0f; }
static float denormal(float x, int64_t row, int64_t d) { return (void)row, (void)d, x * 0x1p-16f * 0x1p-8f; }
static float deep_denormal(float x, int64_t row, int64_t d) { return (void)row, (void)d, x * 0x1p-130f; }
static float thousand(float x, int64_t row, int64_t d) { return (void)x, (void)row, (void)d, 1000.0f; }

static void set_bias(fixture *f, float (*value)(int64_t i, int64_t j)) {
    for (int64_t b = 0; b < f->desc.batch; ++b)
        for (int64_t h = 0; h < f->desc.heads_q; ++h)
            for (int64_t i = 0; i < f->desc.max_seq_q; ++i)
                for (int64_t j = 0; j < f->desc.max_seq_kv; ++j)
                    stw_store_f32((void *)(uintptr_t)f->args.bias, fixture_bias_index(f, b, h, i, j),
                                  f->desc.bias_dtype, value(i, j));
}

static float some_keys_lowest(int64_t i, int64_t j) { return (i + j) % 3 ? 0.25f : -65504.0f; }
static float some_keys_inf(int64_t i, int64_t j) { return (i * j) % 5 ? -0.5f : -INFINITY; }
static float whole_rows_inf(int64_t i, int64_t j) { return i % 4 == 1 ? -INFINITY : j % 7 ? 0.125f : -INFINITY; }
static float whole_rows_lowest(int64_t i, int64_t j) { return (void)j, i % 4 == 1 ? -65504.0f : 0.0f; }
static float whole_rows_billion(int64_t i, int64_t j) { return (void)j, i % 4 == 1 ? -1e9f : 0.0f; }

static fixture start(stw_dtype dtype, int with_bias) {
    fixture f = fixture_start();
    f.desc.dtype = dtype;
    f.desc.max_seq_q = 83;
    f.desc.max_seq_kv = 101;
    f.desc.head_dim_qk = 24;
    f.desc.head_dim_v = 19;
    if (with_bias) f.desc.bias_dtype = STW_F32;
    f.desc.outputs = harness_all_outputs(&f);
    fixture_build(&f);
    return f;
}

static void judge_everywhere(fixture *f, const char *name) {
    stw_expectation expectation;
    assert_int_equal(stw_expect_attn_bwd(&f->desc, &f->args, &expectation), STW_OK);
    for (int v = 0; v < harness_variant_count; ++v) {
        if (!harness_contexts[v]) continue;
        stw_accuracy_pool pool = {0};
        char label[128];
        snprintf(label, sizeof label, "%s, %s, %s", harness_variants[v], name, stw_dtype_name(f->desc.dtype));
        harness_poison_outputs(f);
        harness_run(harness_contexts[v], f);
        harness_judge(f, &expectation, &pool, label);
    }
    stw_expectation_free(&expectation);
    fixture_free(f);
}

static void spread_inputs(void **state) {
    (void)state;
    for (int t = 0; t < 3; ++t) {
        fixture f = start(dtypes[t], 0);
        each_element(&f, tensor_of(&f, FIXTURE_Q), times3);
        each_element(&f, tensor_of(&f, FIXTURE_K), times3);
        each_element(&f, tensor_of(&f, FIXTURE_V), times3);
        fixture_run_forward(&f);
        judge_everywhere(&f, "standard deviation 3");
        f = start(dtypes[t], 0);
        each_element(&f, tensor_of(&f, FIXTURE_V), one_hot);
        fixture_run_forward(&f);
        judge_everywhere(&f, "one-hot V");
    }
}

static void masked_by_bias(void **state) {
    (void)state;
    float (*const values[])(int64_t, int64_t) = {some_keys_lowest, some_keys_inf, whole_rows_inf};
    static const char *const names[] = {"-65504 on some keys", "-inf on some keys", "rows of -inf"};
    for (int t = 0; t < 3; ++t)
        for (int n = 0; n < 3; ++n) {
            fixture f = start(dtypes[t], 1);
            set_bias(&f, values[n]);
            fixture_run_forward(&f);
            judge_everywhere(&f, names[n]);
        }
}

/* Denormal values in V and dO (the rule's own bounds hold), and everywhere. */
static void denormals(void **state) {
    (void)state;
    for (int t = 0; t < 3; ++t)
        for (int all = 0; all < 2; ++all) {
            float (*const shrink)(float, int64_t, int64_t) = dtypes[t] == STW_F16 ? denormal : deep_denormal;
            fixture f = start(dtypes[t], 0);
            each_element(&f, tensor_of(&f, FIXTURE_V), shrink);
            if (all) {
                each_element(&f, tensor_of(&f, FIXTURE_Q), shrink);
                each_element(&f, tensor_of(&f, FIXTURE_K), shrink);
            }
            fixture_run_forward(&f);
            judge_everywhere(&f, all ? "denormal Q, K, V" : "denormal V");
        }
}

static void expect_finite(const fixture *f, int rows_1_mod_4_zero, const char *name) {
    for (int64_t b = 0; b < f->desc.batch; ++b)
        for (int64_t h = 0; h < f->desc.heads_q; ++h)
            for (int64_t i = 0; i < f->desc.max_seq_q; ++i)
                for (int64_t d = 0; d < f->desc.head_dim_qk; ++d) {
                    float x = stw_load_f32(f->args.dq, fixture_index(f, FIXTURE_DQ, b, h, i, d), f->desc.dtype);
                    if (!isfinite(x) || (rows_1_mod_4_zero && i % 4 == 1 && x != 0))
                        fail_msg("%s: dq[%d,%d,%d,%d] = %g", name, (int)b, (int)h, (int)i, (int)d, x);
                }
    for (int64_t b = 0; b < f->desc.batch; ++b)
        for (int64_t h = 0; h < f->desc.heads_kv; ++h)
            for (int64_t j = 0; j < f->desc.max_seq_kv; ++j)
                for (int64_t d = 0; d < f->desc.head_dim_v; ++d) {
                    float x = stw_load_f32(f->args.dv, fixture_index(f, FIXTURE_DV, b, h, j, d), f->desc.dtype);
                    if (!isfinite(x)) fail_msg("%s: dv %g", name, x);
                }
}

/* Beyond the accuracy rule: finite results. Rows given LSE = -inf or +inf add nothing: exact zeros. */
static void extremes(void **state) {
    (void)state;
    for (int v = 0; v < harness_variant_count; ++v)
        for (int t = 0; harness_contexts[v] && t < 3; ++t)
            for (int which = 0; which < 5; ++which) {
                fixture f = start(dtypes[t], 1);
                if (which == 0) {
                    each_element(&f, tensor_of(&f, FIXTURE_Q), dtypes[t] == STW_F16 ? times3 : thousand);
                    each_element(&f, tensor_of(&f, FIXTURE_K), dtypes[t] == STW_F16 ? times3 : thousand);
                }
                if (which == 1) set_bias(&f, whole_rows_lowest);
                if (which == 2) set_bias(&f, whole_rows_billion);
                fixture_run_forward(&f);
                for (int64_t b = 0; which >= 3 && b < 2; ++b)
                    for (int64_t h = 0; h < 4; ++h)
                        for (int64_t i = 1; i < f.desc.max_seq_q; i += 4)
                            f.args.lse[fixture_row_index(&f, &f.desc.lse, b, h, i)] = which == 3 ? -INFINITY : INFINITY;
                harness_run(harness_contexts[v], &f);
                expect_finite(&f, which >= 3, harness_variants[v]);
                fixture_free(&f);
            }
}

static float key_3_inf(int64_t i, int64_t j) { return (void)i, j == 3 ? -INFINITY : 0.5f; }
static float key_3_infinite(float x, int64_t row, int64_t d) { return (void)d, row == 3 ? INFINITY : x; }

/* S = -inf selects dS = 0 also where dP is infinite. */
static void infinite_value_behind_minus_inf(void **state) {
    (void)state;
    for (int t = 0; t < 3; ++t) {
        fixture f = start(dtypes[t], 1);
        set_bias(&f, key_3_inf);
        each_element(&f, tensor_of(&f, FIXTURE_V), key_3_infinite);
        fixture_run_forward(&f);
        for (int v = 0; v < harness_variant_count; ++v) {
            if (!harness_contexts[v]) continue;
            harness_run(harness_contexts[v], &f);
            expect_finite(&f, 0, harness_variants[v]);
        }
        judge_everywhere(&f, "infinite V behind S = -inf");
    }
}

/* NaN in one row's LSE reaches that row's dQ and every dK it sees, and no other row's dQ. */
static void nan_lse_propagates(void **state) {
    (void)state;
    for (int v = 0; v < harness_variant_count; ++v) {
        if (!harness_contexts[v]) continue;
        fixture f = start(STW_F32, 0);
        f.args.lse[fixture_row_index(&f, &f.desc.lse, 0, 1, 7)] = NAN;
        harness_run(harness_contexts[v], &f);
        for (int64_t b = 0; b < 2; ++b)
            for (int64_t h = 0; h < 4; ++h)
                for (int64_t i = 0; i < f.desc.max_seq_q; ++i) {
                    float x = ((const float *)f.args.dq)[fixture_index(&f, FIXTURE_DQ, b, h, i, 0)];
                    assert_int_equal(isnan(x) != 0, b == 0 && h == 1 && i == 7);
                }
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t j = 0; j < f.desc.max_seq_kv; ++j) {
                float x = ((const float *)f.args.dk)[fixture_index(&f, FIXTURE_DK, 0, h, j, 0)];
                assert_int_equal(isnan(x) != 0, h == 0);
            }
        fixture_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread_inputs),      cmocka_unit_test(masked_by_bias),
        cmocka_unit_test(denormals),          cmocka_unit_test(extremes),
        cmocka_unit_test(nan_lse_propagates), cmocka_unit_test(infinite_value_behind_minus_inf),
    };
    return cmocka_run_group_tests(tests, harness_open, harness_close);
}
