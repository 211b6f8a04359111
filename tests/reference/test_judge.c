/* SPDX-License-Identifier: MIT
 *
 * The judge of the accuracy rule fails each kind of wrong output, and names it: swapped tensors, one element
 * off, NaN and infinity, padding, gaps, overflow, accumulation. Honest outputs are in test_accuracy.c. */
#include "tools/reference/accuracy.h"
#include "common/dtype.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static stw_accuracy judge(const fixture *f, const stw_expectation *e, stw_grad which, const void *before) {
    stw_accuracy accuracy;
    assert_int_equal(stw_judge(&f->desc, &f->args, e, which, before, &accuracy), STW_OK);
    return accuracy;
}

typedef struct wrong_case {
    fixture f;
    stw_expectation e;
} wrong_case;

static wrong_case wrong_start(stw_dtype dtype) {
    wrong_case w = {.f = fixture_start()};
    int32_t *used = calloc(2, sizeof *used);
    assert_non_null(used);
    setup_packed(&w.f); /* gaps at q rows 0, 10, 11 */
    w.f.buffers[w.f.count] = used;
    w.f.bytes[w.f.count++] = 2 * sizeof *used;
    used[0] = 3; /* of 5: local rows 3 and 4 are padding */
    used[1] = 4;
    w.f.desc.flags = STW_ATTN_HAS_USED_LENGTHS;
    w.f.args.used_q = used;
    w.f.desc.dtype = dtype;
    w.f.desc.head_dim_v = w.f.desc.head_dim_qk;
    fixture_build(&w.f);
    assert_int_equal(stw_expect_attn_bwd(&w.f.desc, &w.f.args, &w.e), STW_OK);
    fixture_store(&w.f, &w.e.reference);
    return w;
}

static void wrong_end(wrong_case *w) {
    stw_expectation_free(&w->e);
    fixture_free(&w->f);
}

static void test_swapped_outputs_fail(void **state) {
    (void)state;
    wrong_case w = wrong_start(STW_BF16);
    assert_true(judge(&w.f, &w.e, STW_GRAD_DK, NULL).pass && judge(&w.f, &w.e, STW_GRAD_DV, NULL).pass);
    void *dk = w.f.args.dk;
    w.f.args.dk = w.f.args.dv;
    w.f.args.dv = dk;
    assert_false(judge(&w.f, &w.e, STW_GRAD_DK, NULL).pass);
    assert_false(judge(&w.f, &w.e, STW_GRAD_DV, NULL).pass);
    wrong_end(&w);
}

/* Any one element moved past the bound by 3 ulp fails and is named; inside the bound it passes. */
static void test_one_element_off(void **state) {
    (void)state;
    for (int dtype = STW_F16; dtype <= STW_F32; ++dtype) {
        wrong_case w = wrong_start((stw_dtype)dtype);
        double bound = judge(&w.f, &w.e, STW_GRAD_DQ, NULL).max_allowed;
        double ulp = stw_ulp(w.e.grad[STW_GRAD_DQ].max_ref, (stw_dtype)dtype);
        assert_true(bound == 2 * w.e.grad[STW_GRAD_DQ].e_max + 2 * ulp);
        double off = bound + 3 * stw_ulp(w.e.grad[STW_GRAD_DQ].max_ref, (stw_dtype)dtype);
        for (int64_t row = 1; row < 10; ++row) {
            int64_t element = row * 12 + row, b = row >= 6, i = row - (b ? 6 : 1);
            if (!b && i >= 3) continue;
            int64_t index = fixture_index(&w.f, FIXTURE_DQ, b, row / 3, i, row % 3);
            float right = stw_load_f32(w.f.args.dq, index, (stw_dtype)dtype);
            stw_store_f32(w.f.args.dq, index, (stw_dtype)dtype, (float)((double)right + off));
            stw_accuracy a = judge(&w.f, &w.e, STW_GRAD_DQ, NULL);
            assert_true(!a.pass && a.worst == element && a.max_error > a.max_allowed);
            stw_store_f32(w.f.args.dq, index, (stw_dtype)dtype, right);
            assert_true(judge(&w.f, &w.e, STW_GRAD_DQ, NULL).pass);
        }
        wrong_end(&w);
    }
}

static void test_breaches_fail(void **state) {
    (void)state;
    wrong_case w = wrong_start(STW_F32);
    float *dq = w.f.args.dq;
    void *before = fixture_copy(&w.f, dq);
    int64_t live = fixture_index(&w.f, FIXTURE_DQ, 1, 2, 1, 0), padding = fixture_index(&w.f, FIXTURE_DQ, 0, 3, 4, 2);
    int64_t gap = fixture_index(&w.f, FIXTURE_DQ, 0, 1, -1, 1); /* pack row 0, before the first sequence */
    float right = dq[live];
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 3; ++n) {
        dq[live] = wrong[n];
        stw_accuracy a = judge(&w.f, &w.e, STW_GRAD_DQ, NULL);
        assert_true(!a.pass && a.worst == (7 * 4 + 2) * 3 && isinf(a.max_error));
    }
    dq[live] = right;
    assert_true(dq[padding] == 0);
    dq[padding] = 1e-30f; /* far inside every bound, and not zero */
    assert_false(judge(&w.f, &w.e, STW_GRAD_DQ, NULL).pass);
    dq[padding] = NAN; /* left as poisoned */
    assert_false(judge(&w.f, &w.e, STW_GRAD_DQ, NULL).pass);
    dq[padding] = 0;
    assert_true(judge(&w.f, &w.e, STW_GRAD_DQ, before).pass);
    dq[gap] = 0; /* a gap overwritten, even with zeros */
    stw_accuracy a = judge(&w.f, &w.e, STW_GRAD_DQ, before);
    assert_true(!a.pass && a.worst == 1 * 3 + 1);
    assert_true(judge(&w.f, &w.e, STW_GRAD_DQ, NULL).pass); /* nothing to compare the gap with */
    wrong_end(&w);
}

/* NaN in the inputs: the output must have it too, exactly there. */
static void test_expected_nan(void **state) {
    (void)state;
    wrong_case w = wrong_start(STW_F32);
    float *lse = w.f.args.lse, *dq = w.f.args.dq;
    stw_expectation_free(&w.e);
    lse[fixture_row_index(&w.f, &w.f.desc.lse, 1, 0, 2)] = NAN;
    assert_int_equal(stw_expect_attn_bwd(&w.f.desc, &w.f.args, &w.e), STW_OK);
    fixture_store(&w.f, &w.e.reference);
    assert_true(judge(&w.f, &w.e, STW_GRAD_DQ, NULL).pass && judge(&w.f, &w.e, STW_GRAD_DV, NULL).pass);
    assert_true(isfinite(w.e.grad[STW_GRAD_DQ].e_max) && w.e.grad[STW_GRAD_DQ].e_max > 0);
    int64_t index = fixture_index(&w.f, FIXTURE_DQ, 1, 0, 2, 1);
    assert_true(isnan(dq[index]));
    dq[index] = 0;
    assert_false(judge(&w.f, &w.e, STW_GRAD_DQ, NULL).pass);
    wrong_end(&w);
}

/* One key and O = V: dS = P * (dO.V - dO.O) is 0, so dQ is 0 throughout and its bound is the absolute sum's.
 */
static void test_zero_throughout(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.max_seq_kv = 1;
    fixture_build(&f);
    stw_expectation e;
    assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
    assert_true(e.grad[STW_GRAD_DQ].max_ref == 0 && e.grad[STW_GRAD_DQ].max_abs > 0.1);
    assert_true(e.grad[STW_GRAD_DV].max_ref > 0);
    fixture_store(&f, &e.reference);
    float *dq = f.args.dq;
    int64_t index = fixture_index(&f, FIXTURE_DQ, 1, 1, 1, 1);
    double bound = 4 * 0x1p-24 * e.grad[STW_GRAD_DQ].max_abs;
    dq[index] = (float)(bound * 0.99);
    stw_accuracy a = judge(&f, &e, STW_GRAD_DQ, NULL);
    assert_true(a.pass && a.max_allowed == bound && a.small);
    dq[index] = (float)(bound * 1.01);
    assert_false(judge(&f, &e, STW_GRAD_DQ, NULL).pass);
    stw_expectation_free(&e);
    fixture_free(&f);
}

static void test_accumulate(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.dtype = STW_F16;
    f.desc.dq_dtype = STW_F32;
    f.desc.accumulate = STW_OUT_DQ;
    fixture_build(&f);
    stw_expectation e;
    stw_accuracy a;
    assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
    float *dq = f.args.dq;
    for (int64_t n = 0; n < 2 * 5 * 12; ++n)
        dq[fixture_index(&f, FIXTURE_DQ, n / 60, n / 3 % 4, n / 12 % 5, n % 3)] = 1000;
    float *before = fixture_copy(&f, dq);
    for (int64_t n = 0; n < 2 * 5 * 12; ++n) {
        int64_t index = fixture_index(&f, FIXTURE_DQ, n / 60, n / 3 % 4, n / 12 % 5, n % 3);
        dq[index] = 1000 + (float)e.reference.dq[n];
    }
    assert_int_equal(stw_judge(&f.desc, &f.args, &e, STW_GRAD_DQ, NULL, &a), STW_E_INVALID);
    assert_true(judge(&f, &e, STW_GRAD_DQ, before).pass);
    dq[fixture_index(&f, FIXTURE_DQ, 1, 3, 2, 1)] += 0.01f;
    assert_false(judge(&f, &e, STW_GRAD_DQ, before).pass);
    for (int64_t n = 0; n < 2 * 5 * 12; ++n) { /* replaced in place of added to */
        int64_t index = fixture_index(&f, FIXTURE_DQ, n / 60, n / 3 % 4, n / 12 % 5, n % 3);
        dq[index] = (float)e.reference.dq[n];
    }
    assert_false(judge(&f, &e, STW_GRAD_DQ, before).pass);
    stw_expectation_free(&e);
    fixture_free(&f);
}

/* A gradient past 65504 is infinite in f16 and must be; short of it, it must not. */
static void test_f16_overflow(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.dtype = STW_F16;
    f.desc.max_seq_kv = 1;
    fixture_build(&f);
    uint16_t *dout = (uint16_t *)(uintptr_t)f.args.dout, *dv = f.args.dv;
    for (int64_t n = 0; n < 2 * 5 * 16; ++n) /* dV = sum over 2 heads of 5 rows: 300000 in component 0 */
        dout[fixture_index(&f, FIXTURE_DOUT, n / 80, n / 4 % 4, n / 16 % 5, n % 4)] =
            stw_f16_from_f32(n % 4 == 0 ? 30000.0f : 1.0f);
    stw_expectation e;
    assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
    assert_true(fabs(e.reference.dv[0] - 3e5) < 1 && isfinite(e.grad[STW_GRAD_DV].e_max));
    fixture_store(&f, &e.reference);
    assert_true(isinf(stw_f32_from_f16(dv[fixture_index(&f, FIXTURE_DV, 0, 0, 0, 0)])));
    assert_true(judge(&f, &e, STW_GRAD_DV, NULL).pass);
    dv[fixture_index(&f, FIXTURE_DV, 0, 0, 0, 0)] = 0xFC00; /* -inf */
    assert_false(judge(&f, &e, STW_GRAD_DV, NULL).pass);
    dv[fixture_index(&f, FIXTURE_DV, 0, 0, 0, 0)] = 0x7C00;
    dv[fixture_index(&f, FIXTURE_DV, 1, 1, 0, 2)] = 0x7C00;
    assert_false(judge(&f, &e, STW_GRAD_DV, NULL).pass);
    stw_expectation_free(&e);
    fixture_free(&f);
}

static void test_judge_refuses(void **state) {
    (void)state;
    wrong_case w = wrong_start(STW_F32);
    stw_accuracy a;
    assert_int_equal(stw_judge(&w.f.desc, &w.f.args, &w.e, STW_GRAD_DBIAS, NULL, &a), STW_E_INVALID);
    w.f.args.dv = NULL;
    assert_int_equal(stw_judge(&w.f.desc, &w.f.args, &w.e, STW_GRAD_DV, NULL, &a), STW_E_INVALID);
    wrong_end(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swapped_outputs_fail), cmocka_unit_test(test_one_element_off),
        cmocka_unit_test(test_breaches_fail),        cmocka_unit_test(test_expected_nan),
        cmocka_unit_test(test_zero_throughout),      cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_f16_overflow),         cmocka_unit_test(test_judge_refuses),
    };
    return cmocka_run_group_tests_name("judge", tests, NULL, NULL);
}
