/* SPDX-License-Identifier: MIT
 *
 * The case table of specification section 1 on the float64 reference and on an f32 baseline: what is selected to 0,
 * what is exactly 0, what propagates. Padding, gaps and emptiness are in test_edges.c. */
#include "tests/reference/compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void set_f32(const void *data, int64_t index, float value) { ((float *)(uintptr_t)data)[index] = value; }

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
            double dlse = (double)f.args.dlse[fixture_row_index(&f, &f.desc.dlse, b, h, i)],
                   delta = r.delta[h * 12 + b * 6 + i];
            double lse = (double)f.args.lse[fixture_row_index(&f, &f.desc.lse, b, h, i)];
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

/* The same local row sees keys in one sequence and none in the next. */
static void test_blind_after_seeing(void **state) {
    (void)state;
    const int32_t used_kv[] = {7, 2};
    fixture f = fixture_start();
    f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f.desc.flags = STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_DLSE;
    f.args.used_kv = used_kv;
    fixture_build(&f);
    for (int mode = 0; mode < 2; ++mode) {
        stw_ref_result r = backward(&f, mode ? &baseline_mode : NULL);
        for (int64_t n = 0; n < 12; ++n) {
            double dlse = (double)f.args.dlse[fixture_row_index(&f, &f.desc.dlse, 1, n / 3, n % 3)];
            assert_true(r.delta[n / 3 * 10 + 5 + n % 3] == -dlse);
            assert_true(r.delta[n / 3 * 10 + n % 3] != 0);
        }
        stw_ref_free(&r);
    }
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
    for (int64_t n = 0; n < 20; ++n) set_f32(f.args.bias, fixture_bias_index(&f, 1, n % 4, n / 4, 3), -INFINITY);
    fixture_run_forward(&f);
    for (int64_t h = 0; h < 2; ++h) /* selected, not multiplied: nothing of the key's V is left */
        set_f32(f.args.v, fixture_index(&f, FIXTURE_V, 1, h, 3, 2), NAN);
    assert_true(f.args.lse[fixture_row_index(&f, &f.desc.lse, 0, 1, 2)] == -INFINITY);
    for (int mode = 0; mode < 2; ++mode) {
        stw_ref_result r = backward(&f, mode ? &baseline_mode : NULL);
        assert_all(r.dq + (2 * 4 + 1) * 3, 3, 0);
        assert_all(r.dbias + ((0 * 4 + 1) * 5 + 2) * 7, 7, 0);
        for (int64_t n = 0; n < 20; ++n) assert_true(r.dbias[(1 * 20 + n) * 7 + 3] == 0);
        for (int64_t n = 0; n < 2 * 5 * 12; ++n) assert_true(isfinite(r.dq[n]));
        for (int64_t n = 0; n < 2 * 7 * 6; ++n) assert_true(isfinite(r.dk[n]) && isfinite(r.dv[n]));
        stw_ref_free(&r);
    }
    fixture_free(&f);
}

/* The same by bytes: what they hide is selected, whatever number the others are; nothing is added to S. */
static void test_hidden_by_bytes(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.outputs = ALL_ROWS;
    fixture_build(&f);
    fixture_run_forward(&f);
    const float open = f.args.lse[fixture_row_index(&f, &f.desc.lse, 1, 2, 4)];
    fixture_free(&f);

    f = fixture_start();
    f.desc.bias_dtype = STW_U8;
    f.desc.outputs = ALL_ROWS;
    fixture_build(&f);
    unsigned char *bytes = (unsigned char *)(uintptr_t)f.args.bias;
    for (int64_t n = 0; n < 2 * 4 * 5 * 7; ++n)
        bytes[fixture_bias_index(&f, n / 140, n / 35 % 4, n / 7 % 5, n % 7)] = (unsigned char)(1 + n % 255);
    fixture_run_forward(&f);
    assert_true(f.args.lse[fixture_row_index(&f, &f.desc.lse, 1, 2, 4)] == open);
    for (int64_t j = 0; j < 7; ++j) bytes[fixture_bias_index(&f, 0, 1, 2, j)] = 0;
    for (int64_t n = 0; n < 20; ++n) bytes[fixture_bias_index(&f, 1, n % 4, n / 4, 3)] = 0;
    fixture_run_forward(&f);
    for (int64_t h = 0; h < 2; ++h) set_f32(f.args.v, fixture_index(&f, FIXTURE_V, 1, h, 3, 2), NAN);
    assert_true(f.args.lse[fixture_row_index(&f, &f.desc.lse, 0, 1, 2)] == -INFINITY);
    assert_true(f.args.lse[fixture_row_index(&f, &f.desc.lse, 1, 2, 4)] < open);
    for (int mode = 0; mode < 2; ++mode) {
        stw_ref_result r = backward(&f, mode ? &baseline_mode : NULL);
        assert_all(r.dq + (2 * 4 + 1) * 3, 3, 0);
        for (int64_t h = 0; h < 2; ++h) assert_all(r.dk + ((1 * 7 + 3) * 2 + h) * 3, 3, 0);
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
        for (int64_t h = 0; h < 4; ++h)
            f.args.lse[fixture_row_index(&f, &f.desc.lse, 1, h, 4)] = n ? -INFINITY : INFINITY;
        r[n] = backward(&f, n ? &baseline_mode : NULL);
        assert_all(r[n].dq + 9 * 12, 12, 0);
    }
    /* the same rows cut off by used lengths: the sequence keeps its keys, without a mask nothing moves */
    int32_t used[] = {5, 4};
    f.desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    f.args.used_q = used;
    stw_ref_result cut = backward(&f, NULL);
    assert_same_result(&f, &r[0], &cut);
    for (int h = 0; h < 4; ++h) assert_true(fabs(r[1].dsink[h] - cut.dsink[h]) <= 1e-5 * cut.abs_dsink[h]);
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
    f.args.lse[fixture_row_index(&f, &f.desc.lse, 0, 3, 2)] = NAN;
    for (int mode = 0; mode < 2; ++mode) {
        stw_ref_result r = backward(&f, mode ? &baseline_mode : NULL);
        for (int64_t i = 0; i < 10; ++i)
            for (int64_t h = 0; h < 4; ++h) assert_int_equal(isnan(r.dq[(i * 4 + h) * 3]) != 0, i == 2 && h == 3);
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
    stw_ref_free(&with);
    set_f32(f.args.out, fixture_index(&f, FIXTURE_OUT, 1, 2, 3, 0), INFINITY); /* D of the row: +-inf */
    with = backward(&f, NULL);
    assert_true(isinf(with.delta[2 * 10 + 8]));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unseen_keys_and_bias), cmocka_unit_test(test_rows_that_see_no_key),
        cmocka_unit_test(test_blind_after_seeing),   cmocka_unit_test(test_minus_infinity),
        cmocka_unit_test(test_hidden_by_bytes),      cmocka_unit_test(test_infinite_lse),
        cmocka_unit_test(test_nan_lse_propagates),   cmocka_unit_test(test_zero_lse),
        cmocka_unit_test(test_sink_minus_infinity),  cmocka_unit_test(test_visible_nan_propagates),
    };
    return cmocka_run_group_tests_name("case table", tests, NULL, NULL);
}
