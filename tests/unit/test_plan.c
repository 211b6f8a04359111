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
#include "common/params/attn_seq.h"
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

#define CHECK_STRIDES(strides, b, h, s)                                                                                \
    do {                                                                                                               \
        assert_int_equal((strides).batch, b);                                                                          \
        assert_int_equal((strides).head, h);                                                                           \
        assert_int_equal((strides).seq, s);                                                                            \
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
    assert_int_equal(stw_layout_bhsd(&d), STW_OK); /* rows of a pack have their heads inside in every layout */
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

/* What a query of a sequence may see by FlashAttention 2's own source. `entry`: the order in which an entry
 * point of csrc/flash_attn/flash_api.cpp treats its arguments; 0 mha_fwd, 1 mha_varlen_fwd, 2 mha_bwd and
 * mha_varlen_bwd. set_params_fprop and src/mask.h follow. */
typedef struct flash_call {
    int entry, causal, left, right, max_q, max_k;
} flash_call;

static int flash_sees(flash_call c, int row, int col, int actual_seqlen_q, int actual_seqlen_k) {
    if (c.entry == 0 && c.left >= c.max_k) c.left = -1;
    if (c.entry == 0 && c.right >= c.max_k) c.right = -1;
    if (c.entry != 2 && c.max_q == 1) c.causal = 0;
    if (c.causal) c.right = 0;
    if (c.entry != 0 && c.left >= c.max_k) c.left = -1;
    if (c.entry != 0 && c.right >= c.max_k) c.right = -1;
    int is_causal = c.left < 0 && c.right == 0;
    if (c.left < 0 && c.right >= 0) c.left = c.max_k;
    if (c.left >= 0 && c.right < 0) c.right = c.max_k;
    int is_local = (c.left >= 0 || c.right >= 0) && !is_causal;
    int shift = actual_seqlen_k - actual_seqlen_q;
    int limit_left = row + shift - c.left > 0 ? row + shift - c.left : 0;
    int limit_right = row + 1 + shift + c.right < actual_seqlen_k ? row + 1 + shift + c.right : actual_seqlen_k;
    if (is_causal) return col < limit_right;
    if (is_local) return col < limit_right && col >= limit_left;
    return col < actual_seqlen_k;
}

/* Every pair of every sequence that a plan of these sizes may get. */
static void check_flash_call(flash_call c) {
    stw_attn_desc d = desc_of();
    d.max_seq_q = c.max_q;
    d.max_seq_kv = c.max_k;
    d.flags = STW_ATTN_HAS_SHIFT | STW_ATTN_HAS_WINDOW_RIGHT | STW_ATTN_HAS_SCALE; /* what was there goes */
    d.diagonal_shift = 3;
    d.window_right = 5;
    assert_int_equal(stw_attn_mask_from_flash(&d, c.causal, c.left, c.right), STW_OK);
    assert_true(d.flags & STW_ATTN_HAS_SCALE);
    stw_attn_params p = params_of(d, 0);
    for (int length_q = 0; length_q <= c.max_q; ++length_q)
        for (int length_k = 0; length_k <= c.max_k; ++length_k) {
            stw_seq_span q = {0, c.max_q, length_q, 0}, kv = {0, c.max_k, length_k, 0};
            stw_band band = stw_band_of(&p, q, kv);
            for (int i = 0; i < length_q; ++i)
                for (int j = 0; j < length_k; ++j)
                    if ((j >= i + band.low && j <= i + band.high) != flash_sees(c, i, j, length_q, length_k))
                        fail_msg("entry %d causal %d (%d, %d) of %d x %d: query %d, key %d of %d x %d", c.entry,
                                 c.causal, c.left, c.right, c.max_q, c.max_k, i, j, length_q, length_k);
        }
}

static void flash_windows_are_flash_s(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 1}, {1, 6}, {2, 1}, {3, 3}, {4, 7}, {5, 3}, {6, 5}, {7, 5}, {12, 4}};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; ++n)
        for (int left = -2; left <= sizes[n][1] + 2; ++left)
            for (int right = -2; right <= sizes[n][1] + 2; ++right)
                for (int causal = 0; causal <= 1; ++causal)
                    for (int entry = 0; entry <= 2; ++entry)
                        check_flash_call((flash_call){entry, causal, left, right, sizes[n][0], sizes[n][1]});
}

/* Where the bound that takes the place of an absent one hides nothing, a plan has none. */
static void flash_windows_keep_the_plain_forms(void **state) {
    (void)state;
    const uint32_t left = STW_ATTN_HAS_WINDOW_LEFT, right = STW_ATTN_HAS_WINDOW_RIGHT;
    const uint32_t alibi = STW_ATTN_ALIBI, column = STW_ATTN_ALIBI | STW_ATTN_ALIBI_COLUMN;
    const stw_attn_mask none = STW_MASK_NONE, bottom_right = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    const struct {
        int causal;
        int64_t left, right, max_q;
        uint32_t before;
        stw_attn_mask mask;
        uint32_t flags;
        int64_t window_left, window_right;
    } rows[] = {
        {0, -1, -1, 90, 0, none, 0, 0, 0},
        {1, -1, -1, 90, 0, bottom_right, 0, 0, 0},
        {0, -1, 0, 90, 0, bottom_right, 0, 0, 0},
        {1, -1, 7, 90, 0, bottom_right, 0, 0, 0},
        {1, 4, -1, 90, 0, bottom_right, left, 4, 0},
        {0, 4, 0, 90, 0, bottom_right, left, 4, 0},
        {0, 0, -1, 34, 0, none, left, 0, 0},
        {0, 4, -1, 35, 0, none, left | right, 4, 33},
        {0, 4, INT64_MAX, 35, 0, none, left | right, 4, 33},
        {0, 4, 32, 90, 0, none, left | right, 4, 32},
        {0, 33, 2, 90, 0, none, right, 0, 2},
        {0, INT64_MIN, 2, 90, 0, none, right, 0, 2},
        {0, INT64_MAX, 33, 90, 0, none, 0, 0, 0},
        {1, -1, -1, 90, alibi, bottom_right, column, 0, 0},
        {0, 33, 0, 90, alibi, bottom_right, column, 0, 0},
        {1, 4, -1, 90, column, bottom_right, left | alibi, 4, 0},
        {0, -1, -1, 90, column, none, alibi, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        stw_attn_desc d = desc_of(); /* 33 keys */
        d.max_seq_q = rows[i].max_q;
        d.flags = rows[i].before;
        assert_int_equal(stw_attn_mask_from_flash(&d, rows[i].causal, rows[i].left, rows[i].right), STW_OK);
        stw_attn_desc expected = desc_of();
        expected.max_seq_q = rows[i].max_q;
        expected.mask = rows[i].mask;
        expected.flags = rows[i].flags;
        expected.window_left = rows[i].window_left;
        expected.window_right = rows[i].window_right;
        assert_memory_equal(&d, &expected, sizeof d);
    }
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
    assert_true(p.features & STW_FEAT_DETERMINISTIC);
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

/* mem_eff keeps word w where f32(w) / 2^32 + 2^-33, rounded to f32, exceeds p. Below 2^23 nothing is rounded;
 * at 2^31 f32(w) is a multiple of 256, and the middle between two goes to the even one. */
static void first_word_kept_by_mem_eff(void **state) {
    (void)state;
    static const struct {
        double p;
        uint32_t first;
    } rows[] = {{0x1.fffffep-34, 0},        {0x1p-33, 1},
                {0x1.9242cep-10, 0x6490b4}, {0x1.9242dp-10, 0x6490b4},
                {0x1.9242d2p-10, 0x6490b5}, {0x1.fffffep-2, 0x7fffffc0},
                {0.5, 0x80000081},          {0x1.000002p-1, 0x80000180}};
    stw_attn_desc d = desc_of();
    d.dropout_map = STW_DROPOUT_MEM_EFF;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; ++n) {
        d.dropout_p = rows[n].p;
        assert_int_equal(params_of(d, 0).dropout_threshold, rows[n].first);
    }
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
        cmocka_unit_test(flash_windows_are_flash_s),
        cmocka_unit_test(flash_windows_keep_the_plain_forms),
        cmocka_unit_test(defaults_are_resolved),
        cmocka_unit_test(dropout_constants),
        cmocka_unit_test(first_word_kept_by_mem_eff),
        cmocka_unit_test(sequences_are_clamped_into_the_buffers),
        cmocka_unit_test(given_delta_needs_no_out),
        cmocka_unit_test(absurd_products_are_refused),
        cmocka_unit_test(dbias_of_empty_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
