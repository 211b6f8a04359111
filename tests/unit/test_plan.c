/* SPDX-License-Identifier: MIT
 *
 * From descriptor to parameter block: layouts, masks as windows, dropout constants, determinism. The texts of
 * refusals are in tests/misuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/extend.h"
#include "dispatch/attn_problem.h"

#include <math.h>
#include <string.h>

static stw_attn_desc desc_of(void) {
    stw_attn_desc d = STW_INIT(stw_attn_desc);
    d.dtype = STW_BF16;
    d.batch = 2;
    d.heads_q = 6;
    d.heads_kv = 3;
    d.head_dim_qk = 40;
    d.head_dim_v = 24;
    d.max_seq_q = 17;
    d.max_seq_kv = 33;
    return d;
}

#define CHECK_STRIDES(strides, b, h, s)                                                                      \
    do {                                                                                                     \
        assert_int_equal((strides).batch, b);                                                                \
        assert_int_equal((strides).head, h);                                                                 \
        assert_int_equal((strides).seq, s);                                                                  \
    } while (0)

static void layouts(void **state) {
    (void)state;
    stw_attn_desc d = desc_of();
    assert_int_equal(stw_layout_bshd(&d), STW_OK);
    CHECK_STRIDES(d.q, 17 * 6 * 40, 40, 6 * 40);
    CHECK_STRIDES(d.dv, 33 * 3 * 24, 24, 3 * 24);
    CHECK_STRIDES(d.lse, 6 * 17, 17, 1);
    assert_int_equal(d.bias.batch, 6 * 17 * 33);
    assert_int_equal(d.bias.key, 1);
    assert_int_equal(stw_layout_bhsd(&d), STW_OK);
    CHECK_STRIDES(d.k, 3 * 33 * 40, 33 * 40, 40);
    CHECK_STRIDES(d.out, 6 * 17 * 24, 17 * 24, 24);
    d.total_q = 30;
    assert_int_equal(stw_layout_thd(&d), STW_OK);
    CHECK_STRIDES(d.q, 0, 40, 6 * 40);
    CHECK_STRIDES(d.lse, 0, 30, 1);              /* [H,T] */
    CHECK_STRIDES(d.k, 33 * 3 * 40, 40, 3 * 40); /* the dense side */
    d = desc_of();                               /* the keys alone are packed */
    d.total_kv = 50;
    assert_int_equal(stw_layout_thd(&d), STW_OK);
    CHECK_STRIDES(d.q, 17 * 6 * 40, 40, 6 * 40);
    CHECK_STRIDES(d.v, 0, 24, 3 * 24);
    CHECK_STRIDES(d.lse, 6 * 17, 17, 1);
    stw_attn_strides keys = d.v;
    assert_int_equal(stw_layout_bhsd(&d),
                     STW_OK); /* rows of a pack have their heads inside in every layout */
    assert_memory_equal(&d.v, &keys, sizeof keys);
    CHECK_STRIDES(d.q, 6 * 17 * 40, 17 * 40, 40);
    stw_attn_desc before = desc_of();
    d = before;
    assert_int_equal(stw_layout_thd(&d), STW_E_INVALID); /* nothing is packed */
    assert_memory_equal(&d, &before, sizeof d);
    d.max_seq_q = INT64_MAX / 2;
    assert_int_equal(stw_layout_bshd(&d), STW_E_UNSUPPORTED);
    assert_int_equal(stw_layout_bshd(NULL), STW_E_INVALID);
}

static stw_attn_params params_of(stw_attn_desc d, int deterministic) {
    stw_attn_params p;
    assert_int_equal(stw_layout_bshd(&d), STW_OK);
    assert_int_equal(stw_attn_check(&d, STW_PLAN_ATTN_BWD), STW_OK);
    stw_attn_params_fill(&d, STW_PLAN_ATTN_BWD, deterministic, &p);
    return p;
}

/* The band of local positions that a mask leaves, for Lq = 10, Lk = 16. */
static stw_band band_of(stw_attn_desc d, int64_t q_offset, int64_t k_offset) {
    stw_attn_params p = params_of(d, 0);
    stw_seq_span q = {0, 17, 10, q_offset}, kv = {0, 33, 16, k_offset};
    return stw_band_of(&p, q, kv);
}

static void masks_are_bands(void **state) {
    (void)state;
    stw_attn_desc d = desc_of();
    stw_band band = band_of(d, 0, 0);
    assert_true(band.low == -STW_BAND_OPEN && band.high == STW_BAND_OPEN);
    d.mask = STW_MASK_CAUSAL_TOP_LEFT;
    band = band_of(d, 0, 0);
    assert_int_equal(band.high, 0);
    assert_true(band.low == -STW_BAND_OPEN);
    d.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    assert_int_equal(band_of(d, 0, 0).high, 6);
    assert_int_equal(band_of(d, 100, 30).high, 76); /* global diagonal in local numbers */
    d.flags = STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT;
    d.window_left = 3;
    d.window_right = 5; /* the causal mask is the tighter bound */
    band = band_of(d, 0, 0);
    assert_int_equal(band.low, 3);
    assert_int_equal(band.high, 6);
    d.mask = STW_MASK_NONE;
    d.flags |= STW_ATTN_HAS_SHIFT;
    d.diagonal_shift = -2;
    band = band_of(d, 0, 0);
    assert_int_equal(band.low, -5);
    assert_int_equal(band.high, 3);
    assert_int_equal(band.shift, -2);
}

static void defaults_are_resolved(void **state) {
    (void)state;
    stw_attn_desc d = desc_of();
    d.bias_dtype = STW_F32;
    stw_attn_params p = params_of(d, 1);
    assert_int_equal(p.outputs, STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV);
    assert_int_equal(p.dq_dtype, STW_BF16);
    assert_int_equal(p.dbias_dtype, STW_F32);
    assert_int_equal(p.heads_total, 6);
    assert_int_equal(p.group, 2);
    assert_true(p.scale == (float)(1.0 / sqrt(40.0)));
    assert_int_equal(p.splits, 1);
    assert_true(p.features & STW_FEAT_DETERMINISTIC);
    d.splits = 5;
    assert_int_equal(params_of(d, 1).splits, 1); /* deterministic */
    assert_int_equal(params_of(d, 0).splits, 5);
    d.flags = STW_ATTN_HAS_SCALE; /* a scale of zero is meant */
    assert_true(params_of(d, 0).scale == 0.0f);
}

static void dropout_constants(void **state) {
    (void)state;
    stw_attn_desc d = desc_of();
    d.dropout_p = 0.25;
    stw_attn_params p = params_of(d, 0);
    assert_true(p.features & STW_FEAT_DROPOUT);
    assert_int_equal(p.dropout_threshold, 0x40000000u);
    assert_int_equal(p.dropout_byte, 191);
    assert_true(p.dropout_scale == (float)(4.0 / 3.0));
    d.dropout_p = nextafter(1.0, 0.0);
    assert_int_equal(params_of(d, 0).dropout_threshold, 0xFFFFFFFFu);
    d.dropout_p = 0.0;
    assert_false(params_of(d, 0).features & STW_FEAT_DROPOUT);
}

static void sequences_are_clamped_into_the_buffers(void **state) {
    (void)state;
    const int32_t cu[] = {3, 10, 5, -7, INT32_MAX}, used[] = {9, -1, 100, 5};
    const int64_t offsets[] = {INT64_MIN, INT64_MAX, 0, 1};
    for (int64_t b = 0; b < 4; ++b) {
        stw_seq_span s = stw_seq_resolve(b, cu, used, offsets, 0, 6, 50);
        assert_true(s.first >= 0 && s.rows >= 0 && s.rows <= 6 && s.first + s.rows <= 50);
        assert_true(s.used >= 0 && s.used <= s.rows);
        assert_true(s.offset >= -STW_POSITION_MAX && s.offset <= STW_POSITION_MAX);
    }
}

static void given_delta_needs_no_out(void **state) {
    (void)state;
    stw_attn_desc d = desc_of();
    assert_int_equal(stw_layout_bshd(&d), STW_OK);
    d.flags = STW_ATTN_GIVEN_DELTA;
    d.out = (stw_attn_strides){0}; /* not looked at */
    assert_int_equal(stw_attn_check(&d, STW_PLAN_ATTN_BWD), STW_OK);
    d.flags &= ~STW_ATTN_GIVEN_DELTA;
    d.out.seq = -1; /* looked at */
    assert_int_equal(stw_attn_check(&d, STW_PLAN_ATTN_BWD), STW_E_UNSUPPORTED);
}

static void absurd_products_are_refused(void **state) {
    (void)state;
    stw_attn_desc d = desc_of();
    d.batch = 1 << 18;
    d.heads_q = d.heads_kv = 1 << 20;
    d.total_q = d.total_kv = 1;
    d.max_seq_q = INT32_MAX;
    assert_int_equal(stw_layout_thd(&d), STW_OK);
    assert_int_equal(stw_attn_check(&d, STW_PLAN_ATTN_FWD), STW_E_UNSUPPORTED);
    assert_non_null(strstr(stw_last_error(), "2^56"));
}

/* dBias in the bias's own shape: with no batch, queries or keys it holds elements only where that dimension
 * is broadcast, and then its pointer is needed. */
static void dbias_of_empty_problems(void **state) {
    (void)state;
    static const struct {
        int64_t batch, query, key; /* 0: broadcast */
        int64_t batches, seq_q, seq_kv;
        int exists;
    } rows[] = {
        {9, 3, 1, 2, 3, 3, 1}, {9, 3, 1, 0, 3, 3, 0}, {0, 3, 1, 0, 3, 3, 1}, {9, 3, 1, 2, 0, 3, 0},
        {3, 0, 1, 2, 0, 3, 1}, {9, 3, 1, 2, 3, 0, 0}, {3, 1, 0, 2, 3, 0, 1}, {0, 0, 0, 0, 0, 0, 1},
    };
    static float memory[16][64];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        stw_attn_params shape = {.batch = rows[i].batches,
                                 .heads_q = 1,
                                 .heads_kv = 1,
                                 .max_seq_q = rows[i].seq_q,
                                 .max_seq_kv = rows[i].seq_kv,
                                 .dtype = STW_F32,
                                 .bias_dtype = STW_F32,
                                 .dbias_dtype = STW_F32,
                                 .outputs = STW_OUT_DBIAS,
                                 .features = STW_FEAT_BIAS};
        shape.bias.batch = shape.dbias.batch = rows[i].batch;
        shape.bias.query = shape.dbias.query = rows[i].query;
        shape.bias.key = shape.dbias.key = rows[i].key;
        stw_attn_params bound;
        stw_attn_args args = STW_INIT(stw_attn_args);
        args.q = memory[0], args.k = memory[1], args.v = memory[2], args.out = memory[3];
        args.dout = memory[4], args.lse = memory[5], args.bias = memory[6];
        stw_status status = stw_attn_params_bind(&shape, STW_PLAN_ATTN_BWD, &args, &bound);
        assert_int_equal(status, rows[i].exists ? STW_E_INVALID : STW_OK);
        if (rows[i].exists) assert_non_null(strstr(stw_last_error(), "attn_bwd: args.dbias is null"));
        args.dbias = memory[7];
        assert_int_equal(stw_attn_params_bind(&shape, STW_PLAN_ATTN_BWD, &args, &bound), STW_OK);
        assert_ptr_equal(bound.dbias.data, memory[7]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts),
        cmocka_unit_test(masks_are_bands),
        cmocka_unit_test(defaults_are_resolved),
        cmocka_unit_test(dropout_constants),
        cmocka_unit_test(sequences_are_clamped_into_the_buffers),
        cmocka_unit_test(given_delta_needs_no_out),
        cmocka_unit_test(absurd_products_are_refused),
        cmocka_unit_test(dbias_of_empty_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
