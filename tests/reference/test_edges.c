/* SPDX-License-Identifier: MIT
 *
 * The edges of a problem, on the oracle: padding and gaps, empty problems, a given delta, input types, and
 * descriptions it refuses. */
#include "common/dtype.h"
#include "tests/reference/compare.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

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
        f.args.delta[fixture_row_index(&f, &f.desc.delta, b, h, i)] = (float)computed.delta[h * 12 + b * 6 + i];
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
        void *to[] = {(void *)(uintptr_t)g.args.q, (void *)(uintptr_t)g.args.k, (void *)(uintptr_t)g.args.v, g.args.out,
                      (void *)(uintptr_t)g.args.dout};
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
        cmocka_unit_test(test_padding_and_gaps), cmocka_unit_test(test_empty_problems),
        cmocka_unit_test(test_given_delta),      cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
