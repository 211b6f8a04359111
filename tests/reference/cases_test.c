/* SPDX-License-Identifier: MIT
 *
 * The case table of SPEC section 1, row by row, on the float64 reference and on an f32 baseline: what is
 * selected to 0, what is exactly 0, what stays untouched, what propagates. */
#include "backends/cpu/reference/reference.h"
#include "common/dtype.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define ALL_ROWS (STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV)

static const stw_ref_mode baseline_mode = {.f32 = 1, .seed = 2, .exp2_form = 1};

static stw_ref_result backward(const fixture *f, const stw_ref_mode *mode) {
    stw_ref_result r;
    assert_int_equal(stw_ref_attn_bwd(&f->desc, &f->args, mode, &r), STW_OK);
    return r;
}

static void assert_same(const double *a, const double *b, int64_t count) {
    for (int64_t n = 0; n < count; ++n)
        if (a[n] != b[n] && !(isnan(a[n]) && isnan(b[n])))
            fail_msg("element %lld: %g, %g", (long long)n, a[n], b[n]);
}

static void assert_same_result(const fixture *f, const stw_ref_result *a, const stw_ref_result *b) {
    const stw_attn_desc *d = &f->desc;
    assert_same(a->dq, b->dq, a->rows_q * d->heads_q * d->head_dim_qk);
    assert_same(a->dk, b->dk, a->rows_kv * d->heads_kv * d->head_dim_qk);
    assert_same(a->dv, b->dv, a->rows_kv * d->heads_kv * d->head_dim_v);
    const int64_t *e = a->bias_extent;
    if (a->dbias) assert_same(a->dbias, b->dbias, e[0] * e[1] * e[2] * e[3]);
    if (a->dsink) assert_same(a->dsink, b->dsink, d->heads_q);
}

static void assert_all(const double *values, int64_t count, double expected) {
    for (int64_t n = 0; n < count; ++n)
        if (values[n] != expected) fail_msg("element %lld: %g is not %g", (long long)n, values[n], expected);
}

static void set_f32(const void *data, int64_t index, float value) {
    ((float *)(uintptr_t)data)[index] = value;
}

/* Runs both modes before and after `change`, which must not be seen. */
static void assert_unseen(fixture *f, void (*change)(fixture *f)) {
    stw_ref_result before = backward(f, NULL), before32 = backward(f, &baseline_mode);
    change(f);
    stw_ref_result after = backward(f, NULL), after32 = backward(f, &baseline_mode);
    assert_same_result(f, &before, &after);
    assert_same_result(f, &before32, &after32);
    stw_ref_free(&before);
    stw_ref_free(&before32);
    stw_ref_free(&after);
    stw_ref_free(&after32);
}

static void poison_unseen(fixture *f) {
    for (int64_t b = 0; b < f->desc.batch; ++b) {
        for (int64_t e = 0; e < 3; ++e) { /* top-left, 5 queries, 7 keys: nobody sees keys 5 and 6 */
            set_f32(f->args.k, fixture_index(f, FIXTURE_K, b, 1, 5, e), NAN);
            set_f32(f->args.v, fixture_index(f, FIXTURE_V, b, 0, 6, e), INFINITY);
        }
        set_f32(f->args.bias, fixture_bias_index(f, b, 2, 1, 3), NAN);
    }
}

static void test_unseen_keys_and_bias(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
    f.desc.bias_dtype = STW_F32;
    f.desc.outputs = ALL_ROWS | STW_OUT_DBIAS;
    fixture_build(&f);
    assert_unseen(&f, poison_unseen);
    stw_ref_result r = backward(&f, NULL);
    for (int64_t b = 0; b < 2; ++b) {
        assert_all(r.dk + (b * 7 + 5) * 6, 12, 0);
        assert_all(r.dv + (b * 7 + 5) * 8, 16, 0);
        assert_int_equal(r.row_kv[b * 7 + 4], STW_REF_ROW_LIVE);
        assert_int_equal(r.row_kv[b * 7 + 5], STW_REF_ROW_ZERO);
    }
    assert_true(r.dbias[3] == 0 && r.dbias[7] != 0);
    stw_ref_free(&r);
    fixture_free(&f);
}

static void poison_blind_rows(fixture *f) {
    for (int64_t e = 0; e < 3; ++e) { /* bottom-right, 6 queries, 3 keys: rows 0..2 see nothing */
        set_f32(f->args.q, fixture_index(f, FIXTURE_Q, 1, 2, 0, e), NAN);
        set_f32(f->args.out, fixture_index(f, FIXTURE_OUT, 0, 3, 1, e), NAN);
        set_f32(f->args.dout, fixture_index(f, FIXTURE_DOUT, 1, 0, 2, e), -INFINITY);
    }
}

static fixture blind_rows(void) {
    fixture f = fixture_start();
    f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f.desc.max_seq_q = 6;
    f.desc.max_seq_kv = 3;
    f.desc.flags = STW_ATTN_DLSE | STW_ATTN_SINK;
    f.desc.outputs = ALL_ROWS | STW_OUT_DSINK;
    fixture_build(&f);
    return f;
}

static void test_rows_that_see_no_key(void **state) {
    (void)state;
    fixture f = blind_rows();
    assert_unseen(&f, poison_blind_rows);
    stw_ref_result r = backward(&f, NULL);
    double all[4] = {0}, blind[4] = {0};
    for (int64_t b = 0; b < 2; ++b) {
        assert_all(r.dq + b * 6 * 12, 3 * 12, 0);
        for (int64_t n = 0; n < 4 * 6; ++n) {
            int64_t h = n / 6, i = n % 6;
            double dlse = (double)f.args.dlse[fixture_lse_index(&f, b, h, i)],
                   delta = r.delta[h * 12 + b * 6 + i];
            double lse = (double)f.args.lse[fixture_lse_index(&f, b, h, i)];
            if (i < 3) assert_true(delta == -dlse && lse == (double)f.args.sink[h]);
            if (i < 3) blind[h] += dlse;
            all[h] -= exp((double)f.args.sink[h] - lse) * delta;
        }
    }
    for (int h = 0; h < 4; ++h) {
        assert_true(fabs(r.dsink[h] - all[h]) < 1e-12);
        assert_true(fabs(blind[h]) > 1e-3); /* so the term is part of what was compared */
    }
    stw_ref_free(&r);
    fixture_free(&f);
}

/* A row of bias -inf, one pair of -inf, against the same problem without these keys' influence. */
static void test_minus_infinity(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.bias_dtype = STW_F32;
    f.desc.outputs = ALL_ROWS | STW_OUT_DBIAS;
    fixture_build(&f);
    for (int64_t j = 0; j < 7; ++j) set_f32(f.args.bias, fixture_bias_index(&f, 0, 1, 2, j), -INFINITY);
    for (int64_t i = 0; i < 5; ++i) set_f32(f.args.bias, fixture_bias_index(&f, 1, i % 4, i, 3), -INFINITY);
    fixture_run_forward(&f);
    assert_true(f.args.lse[fixture_lse_index(&f, 0, 1, 2)] == -INFINITY);
    for (int mode = 0; mode < 2; ++mode) {
        stw_ref_result r = backward(&f, mode ? &baseline_mode : NULL);
        assert_all(r.dq + (2 * 4 + 1) * 3, 3, 0);
        assert_all(r.dbias + ((0 * 4 + 1) * 5 + 2) * 7, 7, 0);
        for (int64_t i = 0; i < 5; ++i) assert_true(r.dbias[((1 * 4 + i % 4) * 5 + i) * 7 + 3] == 0);
        for (int64_t n = 0; n < 2 * 5 * 12; ++n) assert_true(isfinite(r.dq[n]));
        for (int64_t n = 0; n < 2 * 7 * 6; ++n) assert_true(isfinite(r.dk[n]) && isfinite(r.dv[n]));
        stw_ref_free(&r);
    }
    fixture_free(&f);
}

/* One row's LSE set to +inf: as if the row were not there, and no sink term. */
static void test_infinite_lse(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.flags = STW_ATTN_SINK | STW_ATTN_DLSE;
    f.desc.outputs = ALL_ROWS | STW_OUT_DSINK;
    fixture_build(&f);
    stw_ref_result r[2];
    for (int n = 0; n < 2; ++n) {
        for (int64_t h = 0; h < 4; ++h) f.args.lse[fixture_lse_index(&f, 1, h, 4)] = n ? -INFINITY : INFINITY;
        r[n] = backward(&f, n ? &baseline_mode : NULL);
        assert_all(r[n].dq + 9 * 12, 12, 0);
    }
    /* the same rows cut off by used lengths: the sequence keeps its keys, without a mask nothing moves */
    int32_t used[] = {5, 4};
    f.desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    f.args.used_q = used;
    stw_ref_result cut = backward(&f, NULL);
    assert_same_result(&f, &r[0], &cut);
    stw_ref_free(&r[0]);
    stw_ref_free(&r[1]);
    stw_ref_free(&cut);
    fixture_free(&f);
}

static void test_nan_lse_propagates(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
    f.desc.flags = STW_ATTN_SINK;
    f.desc.outputs = ALL_ROWS | STW_OUT_DSINK;
    fixture_build(&f);
    f.args.lse[fixture_lse_index(&f, 0, 3, 2)] = NAN;
    for (int mode = 0; mode < 2; ++mode) {
        stw_ref_result r = backward(&f, mode ? &baseline_mode : NULL);
        for (int64_t i = 0; i < 10; ++i)
            for (int64_t h = 0; h < 4; ++h)
                assert_int_equal(isnan(r.dq[(i * 4 + h) * 3]) != 0, i == 2 && h == 3);
        for (int64_t j = 0; j < 14; ++j) {
            for (int64_t h = 0; h < 2; ++h) {
                int reached = j < 3 && h == 1;
                assert_int_equal(isnan(r.dk[(j * 2 + h) * 3 + 1]) != 0, reached);
                assert_int_equal(isnan(r.dv[(j * 2 + h) * 4 + 1]) != 0, reached);
            }
        }
        for (int64_t h = 0; h < 4; ++h) assert_int_equal(isnan(r.dsink[h]) != 0, h == 3);
        stw_ref_free(&r);
    }
    fixture_free(&f);
}

/* LSE = 0 is a value like any other: P = exp(S). */
static void test_zero_lse(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.batch = f.desc.heads_q = f.desc.heads_kv = f.desc.max_seq_q = f.desc.max_seq_kv = 1;
    f.desc.head_dim_qk = f.desc.head_dim_v = 1;
    f.desc.flags = STW_ATTN_HAS_SCALE;
    f.desc.scale = 0.5f;
    fixture_build(&f);
    set_f32(f.args.q, 0, 3);
    set_f32(f.args.k, 0, -2);
    set_f32(f.args.v, 0, 5);
    set_f32(f.args.out, 0, 4);
    set_f32(f.args.dout, 0, 7);
    f.args.lse[0] = 0;
    stw_ref_result r = backward(&f, NULL);
    double p = exp(-3.0), ds = p * (35 - 28); /* S = 0.5 * 3 * -2, dP = 7*5, D = 7*4 */
    assert_true(fabs(r.dv[0] - 7 * p) < 1e-15 && fabs(r.dq[0] - 0.5 * ds * -2) < 1e-15);
    assert_true(fabs(r.dk[0] - 0.5 * ds * 3) < 1e-15 && r.delta[0] == 28);
    stw_ref_free(&r);
    fixture_free(&f);
}

static void test_sink_minus_infinity(void **state) {
    (void)state;
    fixture f = fixture_start();
    fixture_build(&f);
    stw_ref_result without = backward(&f, NULL);
    for (int h = 0; h < 4; ++h) set_f32(f.args.sink, h, -INFINITY);
    f.desc.flags = STW_ATTN_SINK;
    f.desc.outputs = ALL_ROWS | STW_OUT_DSINK;
    fixture_run_forward(&f);
    stw_ref_result with = backward(&f, NULL);
    assert_same(with.dq, without.dq, 2 * 5 * 12);
    assert_same(with.dk, without.dk, 2 * 7 * 6);
    assert_all(with.dsink, 4, 0);
    stw_ref_free(&without);
    stw_ref_free(&with);
    fixture_free(&f);
}

static void test_visible_nan_propagates(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
    fixture_build(&f);
    set_f32(f.args.v, fixture_index(&f, FIXTURE_V, 1, 0, 2, 1), NAN);
    stw_ref_result r = backward(&f, NULL);
    for (int64_t i = 0; i < 5; ++i) { /* dP of (i >= 2, 2) is NaN in the heads of group 0 */
        assert_int_equal(isnan(r.dq[((5 + i) * 4 + 1) * 3]) != 0, i >= 2);
        assert_false(isnan(r.dq[((5 + i) * 4 + 2) * 3]));
        assert_int_equal(isnan(r.dk[((7 + i) * 2 + 0) * 3]) != 0, i == 2);
    }
    stw_ref_free(&r);
    fixture_free(&f);
}

/* Padding is written with zeros, rows outside every sequence are not touched, in every result. */
static void test_padding_and_gaps(void **state) {
    (void)state;
    int32_t used_q[] = {3, 4}, used_kv[] = {2, 7};
    fixture f = fixture_start();
    setup_packed(&f); /* q starts 1, 6, 10 of 12 rows; kv starts 2, 5, 12 of 13 */
    f.desc.flags = STW_ATTN_HAS_USED_LENGTHS;
    f.args.used_q = used_q;
    f.args.used_kv = used_kv;
    fixture_build(&f);
    stw_ref_result r = backward(&f, NULL), r32 = backward(&f, &baseline_mode), forward;
    assert_int_equal(stw_ref_attn_fwd(&f.desc, &f.args, &forward), STW_OK);
    const unsigned char kind_q[] = {0, 1, 1, 1, 2, 2, 1, 1, 1, 1, 0, 0};
    const unsigned char kind_kv[] = {0, 0, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 0};
    assert_memory_equal(r.row_q, kind_q, 12);
    assert_memory_equal(r.row_kv, kind_kv, 13);
    for (int64_t n = 0; n < 12 * 12; ++n) {
        int kind = kind_q[n / 12];
        assert_int_equal(isnan(r.dq[n]) != 0, kind == 0);
        assert_int_equal(isnan(r32.dq[n]) != 0, kind == 0);
        assert_int_equal(r.dq[n] == 0, kind == 2);
    }
    for (int64_t n = 0; n < 13 * 6; ++n) {
        int kind = kind_kv[n / 6];
        assert_int_equal(isnan(r.dk[n]) != 0, kind == 0);
        assert_int_equal(r.dk[n] == 0, kind == 2);
        assert_int_equal(r32.dk[n] == 0, kind == 2);
    }
    for (int64_t n = 0; n < 4 * 12; ++n) {
        assert_int_equal(isnan(forward.lse[n]) != 0, kind_q[n % 12] == 0);
        assert_int_equal(forward.lse[n] == -INFINITY, kind_q[n % 12] == 2);
    }
    stw_ref_free(&r);
    stw_ref_free(&r32);
    stw_ref_free(&forward);
    fixture_free(&f);
}

static void test_empty_problems(void **state) {
    (void)state;
    for (int which = 0; which < 3; ++which) {
        fixture f = fixture_start();
        if (which == 0) f.desc.batch = 0;
        if (which == 1) f.desc.max_seq_q = 0;
        if (which == 2) f.desc.max_seq_kv = 0;
        f.desc.bias_dtype = STW_F32;
        f.desc.flags = STW_ATTN_SINK;
        f.desc.outputs = ALL_ROWS | STW_OUT_DBIAS | STW_OUT_DSINK;
        f.bias_broadcast = 12;
        fixture_build(&f);
        stw_ref_result r = backward(&f, NULL);
        assert_all(r.dq, r.rows_q * 12, 0);
        assert_all(r.dk, r.rows_kv * 6, 0);
        assert_all(r.dv, r.rows_kv * 8, 0);
        assert_all(r.dbias, r.bias_extent[0] * r.bias_extent[1], 0);
        assert_int_equal(r.rows_kv, which == 0 || which == 2 ? 0 : 14);
        stw_ref_free(&r);
        fixture_free(&f);
    }
}

/* delta given is delta computed, O and dLSE not read. */
static void test_given_delta(void **state) {
    (void)state;
    fixture f = blind_rows();
    stw_ref_result computed = backward(&f, NULL);
    for (int64_t n = 0; n < 2 * 4 * 6; ++n) {
        int64_t b = n / 24, h = n / 6 % 4, i = n % 6;
        f.args.delta[fixture_lse_index(&f, b, h, i)] = (float)computed.delta[h * 12 + b * 6 + i];
    }
    f.desc.flags = STW_ATTN_SINK | STW_ATTN_GIVEN_DELTA;
    f.args.out = NULL;
    f.args.dlse = NULL;
    stw_ref_result given = backward(&f, NULL);
    int64_t compared = 0;
    for (int64_t n = 0; n < 12 * 12; ++n) { /* delta was rounded to f32 */
        assert_true(fabs(given.dq[n] - computed.dq[n]) <= 0x1p-22 * computed.abs_dq[n]);
        compared += given.dq[n] != 0;
    }
    for (int h = 0; h < 4; ++h)
        assert_true(fabs(given.dsink[h] - computed.dsink[h]) <= 0x1p-22 * computed.abs_dsink[h]);
    assert_true(compared == 6 * 12);
    stw_ref_free(&computed);
    stw_ref_free(&given);
    fixture_free(&f);
}

/* f16 and bf16 inputs mean the numbers they hold. */
static void test_dtypes(void **state) {
    (void)state;
    for (int dtype = STW_F16; dtype <= STW_BF16; ++dtype) {
        fixture f = fixture_start(), g = fixture_start();
        f.desc.dtype = (stw_dtype)dtype;
        fixture_build(&f);
        fixture_build(&g);
        void *from[] = {(void *)(uintptr_t)f.args.q, (void *)(uintptr_t)f.args.k, (void *)(uintptr_t)f.args.v,
                        f.args.out, (void *)(uintptr_t)f.args.dout};
        void *to[] = {(void *)(uintptr_t)g.args.q, (void *)(uintptr_t)g.args.k, (void *)(uintptr_t)g.args.v,
                      g.args.out, (void *)(uintptr_t)g.args.dout};
        for (int n = 0; n < 5; ++n)
            for (size_t e = 0; e < f.bytes[n] / 2; ++e)
                ((float *)to[n])[e] = stw_load_f32(from[n], (int64_t)e, (stw_dtype)dtype);
        memcpy(g.args.lse, f.args.lse, f.bytes[8]);
        stw_ref_result a = backward(&f, NULL), b = backward(&g, NULL);
        assert_same_result(&f, &a, &b);
        stw_ref_free(&a);
        stw_ref_free(&b);
        fixture_free(&f);
        fixture_free(&g);
    }
}

static void test_refusals(void **state) {
    (void)state;
    int32_t decreasing[] = {0, 4, 3}, beyond[] = {0, 4, 14}, long_one[] = {0, 9, 10}, used[] = {6, 2};
    const int32_t *wrong[] = {decreasing, beyond, long_one, NULL};
    stw_ref_result r;
    fixture f = fixture_start();
    setup_packed(&f);
    fixture_build(&f);
    for (int n = 0; n < 4; ++n) {
        stw_attn_args args = f.args;
        args.cu_seqlens_kv = wrong[n];
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &args, NULL, &r), STW_E_INVALID);
    }
    stw_attn_args args = f.args;
    args.used_q = used;
    assert_int_equal(stw_ref_attn_bwd(&f.desc, &args, NULL, &r), STW_OK); /* without the flag: ignored */
    stw_ref_free(&r);
    f.desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    assert_int_equal(stw_ref_attn_bwd(&f.desc, &args, NULL, &r), STW_E_INVALID);
    f.desc.flags = 0;
    f.desc.heads_q = 3;
    assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, NULL, &r), STW_E_INVALID);
    assert_int_equal(stw_ref_attn_fwd(&f.desc, &f.args, &r), STW_E_INVALID);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unseen_keys_and_bias),
        cmocka_unit_test(test_rows_that_see_no_key),
        cmocka_unit_test(test_minus_infinity),
        cmocka_unit_test(test_infinite_lse),
        cmocka_unit_test(test_nan_lse_propagates),
        cmocka_unit_test(test_zero_lse),
        cmocka_unit_test(test_sink_minus_infinity),
        cmocka_unit_test(test_visible_nan_propagates),
        cmocka_unit_test(test_padding_and_gaps),
        cmocka_unit_test(test_empty_problems),
        cmocka_unit_test(test_given_delta),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("case table", tests, NULL, NULL);
}
