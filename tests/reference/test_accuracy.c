/* SPDX-License-Identifier: MIT
 *
 * The accuracy rule: ulps, baselines against the float64 reference, and a judge that passes honest outputs
 * and fails each kind of wrong one. */
#include "tools/reference/accuracy.h"
#include "tools/reference/backward.h"
#include "tools/reference/order.h"
#include "common/dtype.h"
#include "tests/reference/setups.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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
    assert_true(stw_ulp(65504, STW_F16) == 32 && stw_ulp(1e9, STW_F16) == 32 && stw_ulp(INFINITY, STW_F16) == 32);
    assert_true(stw_ulp(DBL_MAX, STW_F32) == 0x1p104 && isnan(stw_ulp(NAN, STW_F32)));
    float x = 3.14159f; /* the spacing is the distance to the neighbour */
    assert_true(stw_ulp((double)x, STW_F32) == (double)nextafterf(x, 4) - (double)x);
}

static void test_pool(void **state) {
    (void)state;
    stw_accuracy_pool pool = {0};
    stw_accuracy small = {
        .small = 1, .elements = 10, .live = 10, .square_sum = 10 * 1.5 * 1.5, .baseline_square_sum = 10};
    stw_accuracy large = {.small = 0, .elements = 2000, .square_sum = 1e9, .baseline_square_sum = 1};
    double ratio = -1;
    assert_true(stw_pool_pass(&pool, &ratio) && ratio == 0);
    stw_pool_add(&pool, &large); /* judged on its own */
    assert_true(stw_pool_pass(&pool, &ratio) && pool.elements == 0);
    stw_pool_add(&pool, &small);
    assert_false(stw_pool_pass(&pool, &ratio));
    assert_true(fabs(ratio - 1.2) < 1e-12);
    stw_accuracy good = {.small = 1, .elements = 10, .live = 10, .square_sum = 10, .baseline_square_sum = 10};
    stw_pool_add(&pool, &good); /* sqrt(32.5 / 20) = 1.27 */
    assert_false(stw_pool_pass(&pool, &ratio));
    stw_pool_add(&pool, &good);
    assert_true(stw_pool_pass(&pool, &ratio)); /* sqrt(42.5 / 30) = 1.19 */
    stw_accuracy_pool exact = {.square_sum = 1e-30, .baseline_square_sum = 0, .elements = 3};
    assert_false(stw_pool_pass(&exact, NULL));
}

static uint32_t all_outputs(const fixture *f) {
    uint32_t outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (f->desc.bias_dtype && f->desc.bias_dtype != STW_U8) outputs |= STW_OUT_DBIAS;
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
            double bound = (64 * 0x1p-24 + operand) * exact->abs_dq[e] + output * fabs(exact->dq[e]) + 0x1p-22;
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

static void check_order(const int32_t *order, int count, int natural) {
    int seen[64] = {0}, moved = 0;
    for (int n = 0; n < count; ++n) {
        assert_true(order[n] >= 0 && order[n] < count && !seen[order[n]]);
        seen[order[n]] = 1;
        moved += order[n] != n;
    }
    assert_true(natural ? moved == 0 : moved > count / 2);
}

/* Every sum of an f32 baseline runs in an order of its own, by seed; float64 in the natural one. */
static void test_orders(void **state) {
    (void)state;
    stw_ref_head head = {.queries = 40, .keys = 40, .dim = 40, .dim_v = 40};
    int32_t kept[5 * 5][40];
    for (int seed = 0; seed < 5; ++seed) {
        stw_ref_order order;
        stw_ref_mode mode = {.f32 = seed < 4, .seed = (uint32_t)seed};
        assert_int_equal(stw_ref_order_open(&order, 40, 40, 40, 40), STW_OK);
        stw_ref_order_set(&order, &head, &mode);
        int32_t *orders[] = {order.query, order.key, order.dim, order.dim_v, order.delta};
        for (int n = 0; n < 5; ++n) {
            check_order(orders[n], 40, !mode.f32);
            memcpy(kept[seed * 5 + n], orders[n], sizeof kept[0]);
            for (int other = 0; mode.f32 && other < seed * 5 + n; ++other)
                assert_memory_not_equal(kept[other], orders[n], sizeof kept[0]);
        }
        stw_ref_order_close(&order);
    }
}

/* P and dS are rounded to the input type as operands: with dO = 1, one query, Q = 1 and scale 1, dV holds P
 * and dK holds dS, as f32 numbers of f16's and bf16's precision. */
static void test_operands_are_rounded(void **state) {
    (void)state;
    for (int dtype = STW_F16; dtype <= STW_F32; ++dtype) {
        fixture f = fixture_start();
        f.desc.dtype = (stw_dtype)dtype;
        f.desc.dk_dtype = f.desc.dv_dtype = STW_F32;
        f.desc.heads_kv = 4;
        f.desc.max_seq_q = 1;
        f.desc.flags = STW_ATTN_HAS_SCALE;
        f.desc.scale = 1;
        fixture_build(&f);
        for (int64_t n = 0; n < 2 * 4 * 4; ++n) {
            int64_t b = n / 16, h = n / 4 % 4, d = n % 4;
            void *dout = (void *)(uintptr_t)f.args.dout, *q = (void *)(uintptr_t)f.args.q;
            stw_store_f32(dout, fixture_index(&f, FIXTURE_DOUT, b, h, 0, d), f.desc.dtype, 1);
            if (d < 3) stw_store_f32(q, fixture_index(&f, FIXTURE_Q, b, h, 0, d), f.desc.dtype, 1);
        }
        fixture_run_forward(&f);
        stw_ref_mode mode = {.f32 = 1, .seed = 1};
        stw_ref_result r;
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &mode, &r), STW_OK);
        stw_dtype narrow = dtype == STW_F32 ? STW_BF16 : (stw_dtype)dtype;
        int same_p = 1, same_ds = 1;
        for (int64_t n = 0; n < 2 * 7 * 16; ++n) same_p &= r.dv[n] == (double)stw_round_to((float)r.dv[n], narrow);
        for (int64_t n = 0; n < 2 * 7 * 12; ++n) same_ds &= r.dk[n] == (double)stw_round_to((float)r.dk[n], narrow);
        assert_int_equal(same_p, dtype != STW_F32);
        assert_int_equal(same_ds, dtype != STW_F32);
        assert_true(r.dv[0] > 0 && r.dk[0] != 0);
        stw_ref_free(&r);
        fixture_free(&f);
    }
}

/* Outputs are rounded once to their own type: the input's, or f32 where asked for. */
static void test_outputs_are_rounded(void **state) {
    (void)state;
    fixture f = large_problem(STW_F16);
    const stw_ref_mode mode = {.f32 = 1};
    f.desc.dq_dtype = f.desc.dk_dtype = f.desc.dv_dtype = STW_F32;
    for (int which = 0; which < 3; ++which) {
        stw_dtype *dtypes[] = {&f.desc.dq_dtype, &f.desc.dk_dtype, &f.desc.dv_dtype};
        for (int narrow = 0; narrow < 2; ++narrow) {
            stw_ref_result r;
            *dtypes[which] = narrow ? STW_DTYPE_NONE : STW_F32;
            assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &mode, &r), STW_OK);
            const double *values[] = {r.dq, r.dk, r.dv};
            int same = 1;
            for (int n = 0; n < 2 * 61 * 40; ++n)
                same &= values[which][n] == (double)stw_round_to((float)values[which][n], STW_F16);
            assert_int_equal(same, narrow);
            stw_ref_free(&r);
        }
    }
    fixture_free(&f);
}

/* e_max and e_rms are the largest of the eight: four seeds, both forms. */
static void test_expectation_is_the_largest(void **state) {
    (void)state;
    fixture f = large_problem(STW_F32);
    stw_expectation e;
    double e_max = 0, e_rms = 0;
    const int64_t count = 2 * 61 * 80;
    assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
    for (int n = 0; n < 8; ++n) {
        stw_ref_mode mode = {.f32 = 1, .seed = (uint32_t)n % 4, .exp2_form = n / 4};
        stw_ref_result r;
        double squares = 0;
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &mode, &r), STW_OK);
        for (int64_t i = 0; i < count; ++i) {
            double error = fabs(r.dq[i] - e.reference.dq[i]);
            e_max = fmax(e_max, error);
            squares += error * error;
        }
        e_rms = fmax(e_rms, sqrt(squares / (double)count));
        stw_ref_free(&r);
    }
    assert_true(e.grad[STW_GRAD_DQ].e_max == e_max && e.grad[STW_GRAD_DQ].e_rms == e_rms);
    assert_true(e.grad[STW_GRAD_DQ].elements == count && e.grad[STW_GRAD_DQ].dtype == STW_F32);
    stw_expectation_free(&e);
    fixture_free(&f);
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
                fail_msg("%s, %s: error %g, allowed %g", setups[n / 3].name, stw_grad_names[grad], a.max_error,
                         a.max_allowed);
            assert_true(a.elements == e.grad[grad].elements && a.elements > 0);
            if (which % 2) stw_pool_add(&pool, &a);
        }
        stw_ref_free(&ninth);
        stw_expectation_free(&e);
        fixture_free(&f);
    }
    assert_true(pool.elements > 10000 && stw_pool_pass(&pool, NULL));
}

/* Three visible pairs: dV has thousands of elements and two rows that are not 0, with the roundings of two P. */
static void test_few_live_pairs(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.batch = f.desc.heads_q = f.desc.heads_kv = 1;
    f.desc.max_seq_q = 2;
    f.desc.max_seq_kv = f.desc.head_dim_qk = f.desc.head_dim_v = 64;
    f.desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
    fixture_build(&f);
    stw_expectation e;
    stw_accuracy_pool pool = {0};
    assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &e), STW_OK);
    assert_true(e.grad[STW_GRAD_DV].elements == 64 * 64 && e.grad[STW_GRAD_DV].e_rms > 0);
    double shift = 1.5 * sqrt(32.0) * e.grad[STW_GRAD_DV].e_rms; /* 1.5 e_rms over all 64 rows */
    for (int64_t n = 0; n < 128; ++n) e.reference.dv[n] += shift;
    fixture_store(&f, &e.reference);
    for (int64_t n = 0; n < 128; ++n) e.reference.dv[n] -= shift;
    stw_accuracy a = judge(&f, &e, STW_GRAD_DV, NULL);
    assert_true(a.live == 128 && a.small && a.rms_error > a.rms_allowed && a.max_error <= a.max_allowed);
    assert_true(a.pass); /* by itself; its pool tells */
    stw_pool_add(&pool, &a);
    assert_int_equal(pool.elements, 128);
    assert_false(stw_pool_pass(&pool, NULL));
    stw_expectation_free(&e);
    fixture_free(&f);
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
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_operands_are_rounded),
        cmocka_unit_test(test_outputs_are_rounded),
        cmocka_unit_test(test_expectation_is_the_largest),
        cmocka_unit_test(test_baselines_differ),
        cmocka_unit_test(test_honest_outputs_pass),
        cmocka_unit_test(test_few_live_pairs),
        cmocka_unit_test(test_rms),
    };
    return cmocka_run_group_tests_name("accuracy", tests, NULL, NULL);
}
