/* SPDX-License-Identifier: MIT
 *
 * The accuracy rule: ulps, baselines against the float64 reference, and a judge that passes honest outputs
 * and fails each kind of wrong one. */
#include "backends/cpu/reference/accuracy.h"
#include "backends/cpu/reference/backward.h"
#include "tests/reference/setups.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_ulp(void **state) {
    (void)state;
    assert_true(stw_ulp(1, STW_F32) == 0x1p-23 && stw_ulp(-1.999, STW_F32) == 0x1p-23);
    assert_true(stw_ulp(1, STW_F16) == 0x1p-10 && stw_ulp(1, STW_BF16) == 0x1p-7);
    assert_true(stw_ulp(0.9999, STW_F16) == 0x1p-11 && stw_ulp(2, STW_BF16) == 0x1p-6);
    assert_true(stw_ulp(0, STW_F32) == 0x1p-149 && stw_ulp(0, STW_F16) == 0x1p-24);
    assert_true(stw_ulp(0, STW_BF16) == 0x1p-133 && stw_ulp(1e-45, STW_F32) == 0x1p-149);
    assert_true(stw_ulp(0x1p-14, STW_F16) == 0x1p-24 && stw_ulp(0x1p-13, STW_F16) == 0x1p-23);
    assert_true(stw_ulp(0x1p-126, STW_F32) == 0x1p-149 && stw_ulp(0x1p-125, STW_BF16) == 0x1p-132);
    assert_true(stw_ulp(65504, STW_F16) == 32 && stw_ulp(1e9, STW_F16) == 32 &&
                stw_ulp(INFINITY, STW_F16) == 32);
    assert_true(stw_ulp(DBL_MAX, STW_F32) == 0x1p104 && isnan(stw_ulp(NAN, STW_F32)));
    float x = 3.14159f; /* the spacing is the distance to the neighbour */
    assert_true(stw_ulp((double)x, STW_F32) == (double)nextafterf(x, 4) - (double)x);
}

static void test_pool(void **state) {
    (void)state;
    stw_accuracy_pool pool = {0};
    stw_accuracy small = {
        .small = 1, .elements = 10, .square_sum = 10 * 1.5 * 1.5, .baseline_square_sum = 10};
    stw_accuracy large = {.small = 0, .elements = 2000, .square_sum = 1e9, .baseline_square_sum = 1};
    double ratio = -1;
    assert_true(stw_pool_pass(&pool, &ratio) && ratio == 0);
    stw_pool_add(&pool, &large); /* judged on its own */
    assert_true(stw_pool_pass(&pool, &ratio) && pool.elements == 0);
    stw_pool_add(&pool, &small);
    assert_false(stw_pool_pass(&pool, &ratio));
    assert_true(fabs(ratio - 1.2) < 1e-12);
    stw_accuracy good = {.small = 1, .elements = 10, .square_sum = 10, .baseline_square_sum = 10};
    stw_pool_add(&pool, &good); /* sqrt(32.5 / 20) = 1.27 */
    assert_false(stw_pool_pass(&pool, &ratio));
    stw_pool_add(&pool, &good);
    assert_true(stw_pool_pass(&pool, &ratio)); /* sqrt(42.5 / 30) = 1.19 */
    stw_accuracy_pool exact = {.square_sum = 1e-30, .baseline_square_sum = 0, .elements = 3};
    assert_false(stw_pool_pass(&exact, NULL));
}

static uint32_t all_outputs(const fixture *f) {
    uint32_t outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (f->desc.bias_dtype) outputs |= STW_OUT_DBIAS;
    return outputs | (f->desc.flags & STW_ATTN_SINK ? STW_OUT_DSINK : 0);
}

/* |baseline - reference| within what f32 sums and operand rounding can do; seeds and forms differ. */
static void check_baselines(const fixture *f, const stw_ref_result *exact) {
    const int64_t count = exact->rows_q * f->desc.heads_q * f->desc.head_dim_qk;
    double operand = f->desc.dtype == STW_F16 ? 0x1p-11 : f->desc.dtype == STW_BF16 ? 0x1p-8 : 0;
    double output = operand > 0 ? operand : 0x1p-24;
    for (uint32_t n = 0; n < 4; ++n) {
        stw_ref_mode mode = {.f32 = 1, .seed = n / 2, .exp2_form = (int)(n % 2)};
        stw_ref_result r, plain;
        assert_int_equal(stw_ref_attn_bwd(&f->desc, &f->args, &mode, &r), STW_OK);
        stw_ref_allow_avx2 = 0;
        assert_int_equal(stw_ref_attn_bwd(&f->desc, &f->args, &mode, &plain), STW_OK);
        stw_ref_allow_avx2 = 1;
        assert_memory_equal(r.dq, plain.dq, (size_t)count * sizeof(double));
        for (int64_t e = 0; e < count; ++e) {
            if (isnan(exact->dq[e])) {
                assert_true(isnan(r.dq[e]));
                continue;
            }
            /* 64: sums of up to 16 terms, S up to 32 in the exponent; f16 operands may be subnormal */
            double bound =
                (64 * 0x1p-24 + operand) * exact->abs_dq[e] + output * fabs(exact->dq[e]) + 0x1p-22;
            assert_true(fabs(r.dq[e] - exact->dq[e]) <= bound);
        }
        stw_ref_free(&r);
        stw_ref_free(&plain);
    }
}

static void test_baselines(void **state) {
    (void)state;
    for (int n = 0; n < setups_count * 3; ++n) {
        fixture f = fixture_start();
        f.desc.dtype = (stw_dtype)(1 + n % 3);
        setups[n / 3].apply(&f);
        f.desc.outputs = all_outputs(&f);
        fixture_build(&f);
        stw_ref_result exact;
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, NULL, &exact), STW_OK);
        check_baselines(&f, &exact);
        stw_ref_free(&exact);
        fixture_free(&f);
    }
}

static fixture large_problem(stw_dtype dtype) {
    fixture f = fixture_start();
    f.desc.dtype = dtype;
    f.desc.max_seq_q = 61;
    f.desc.max_seq_kv = 67;
    f.desc.head_dim_qk = f.desc.head_dim_v = 20;
    f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    fixture_build(&f);
    return f;
}

/* Seeds and both forms of exp sum in other orders: other bits, the same size of error. */
static void test_baselines_differ(void **state) {
    (void)state;
    fixture f = large_problem(STW_F32);
    stw_ref_result r[8];
    for (int n = 0; n < 8; ++n) {
        stw_ref_mode mode = {.f32 = 1, .seed = (uint32_t)n / 2, .exp2_form = n % 2};
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &mode, &r[n]), STW_OK);
        for (int other = 0; other < n; ++other) {
            assert_memory_not_equal(r[n].dq, r[other].dq, 2 * 61 * 80 * sizeof(double));
            assert_memory_not_equal(r[n].dk, r[other].dk, 2 * 67 * 40 * sizeof(double));
        }
    }
    for (int n = 0; n < 8; ++n) stw_ref_free(&r[n]);
    fixture_free(&f);
}

static stw_accuracy judge(const fixture *f, const stw_expectation *e, stw_grad which, const void *before) {
    stw_accuracy accuracy;
    assert_int_equal(stw_judge(&f->desc, &f->args, e, which, before, &accuracy), STW_OK);
    return accuracy;
}

/* Every feature and type: the rounded reference and a ninth honest evaluation pass. */
static void test_honest_outputs_pass(void **state) {
    (void)state;
    stw_accuracy_pool pool = {0};
    for (int n = 0; n < setups_count * 3; ++n) {
        fixture f = fixture_start();
        f.desc.dtype = (stw_dtype)(1 + n % 3);
        if (n % 2) f.desc.dq_dtype = f.desc.dk_dtype = f.desc.dbias_dtype = STW_F32;
        setups[n / 3].apply(&f);
        f.desc.outputs = all_outputs(&f);
        fixture_build(&f);
        stw_expectation e;
        stw_ref_result ninth;
        stw_ref_mode mode = {.f32 = 1, .seed = 99};
        assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &mode, &ninth), STW_OK);
        for (int which = 0; which < 10; ++which) {
            stw_grad grad = (stw_grad)(which / 2);
            if (!e.grad[grad].wanted) continue;
            fixture_store(&f, which % 2 ? &ninth : &e.reference);
            stw_accuracy a = judge(&f, &e, grad, NULL);
            if (!a.pass)
                fail_msg("%s, %s: error %g, allowed %g", setups[n / 3].name, stw_grad_names[grad],
                         a.max_error, a.max_allowed);
            assert_true(a.elements == e.grad[grad].elements && a.elements > 0);
            if (which % 2) stw_pool_add(&pool, &a);
        }
        stw_ref_free(&ninth);
        stw_expectation_free(&e);
        fixture_free(&f);
    }
    assert_true(pool.elements > 10000 && stw_pool_pass(&pool, NULL));
}

/* A ninth order of a tensor of 1024 elements and more passes the RMS rule too; so does nothing worse. */
static void test_rms(void **state) {
    (void)state;
    for (int dtype = STW_F16; dtype <= STW_F32; ++dtype) {
        fixture f = large_problem((stw_dtype)dtype);
        stw_expectation e;
        stw_ref_result ninth;
        stw_ref_mode mode = {.f32 = 1, .seed = 99, .exp2_form = 1};
        assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &mode, &ninth), STW_OK);
        fixture_store(&f, &ninth);
        for (int which = STW_GRAD_DQ; which <= STW_GRAD_DV; ++which) {
            stw_accuracy a = judge(&f, &e, (stw_grad)which, NULL);
            assert_true(a.pass && !a.small && a.rms_error > 0 && a.rms_error <= a.rms_allowed);
            assert_true(a.rms_allowed == 1.25 * e.grad[which].e_rms);
        }
        /* every element off by 1.5 e_rms: far below the maximum's bound, yet refused */
        double shift = 1.5 * e.grad[STW_GRAD_DQ].e_rms;
        for (int64_t n = 0; n < 2 * 61 * 80; ++n) ninth.dq[n] = e.reference.dq[n] + (n % 2 ? shift : -shift);
        if (dtype == STW_F32) {
            fixture_store(&f, &ninth);
            stw_accuracy a = judge(&f, &e, STW_GRAD_DQ, NULL);
            assert_true(a.max_error <= a.max_allowed && a.rms_error > a.rms_allowed && !a.pass);
        }
        stw_ref_free(&ninth);
        stw_expectation_free(&e);
        fixture_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ulp),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_baselines),
        cmocka_unit_test(test_baselines_differ),
        cmocka_unit_test(test_honest_outputs_pass),
        cmocka_unit_test(test_rms),
    };
    return cmocka_run_group_tests_name("accuracy", tests, NULL, NULL);
}
