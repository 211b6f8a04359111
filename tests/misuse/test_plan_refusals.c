/* SPDX-License-Identifier: MIT
 *
 * Refusals at plan time, one row each: what is set in a correct descriptor, the status, and the words the
 * text must hold. Rows of what only the backward uses must be accepted by the forward plan. */
#include "misuse.h"

#include "common/extend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BOTH = 0, BWD = 1 };

typedef struct refusal {
    base from;
    int plans; /* BOTH, or BWD: the forward plan ignores it */
    stw_status status;
    const char *words[5]; /* field, value seen, accepted */
    set sets[4];
} refusal;

#define TWO_40 (INT64_C(1) << 40)

static const refusal rows[] = {
    /* enums and flags out of range */
    {DENSE, BOTH, STW_E_INVALID, {"dtype", "0"}, {SET(dtype, 0)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"dtype", "5", "f64 4"}, {SET(dtype, 5)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"dtype", "9"}, {SET(dtype, STW_I64)}},
    {DENSE, BOTH, STW_E_INVALID, {"dtype", "10"}, {SET(dtype, 10)}},
    {DENSE, BOTH, STW_E_INVALID, {"dtype"}, {SET(dtype, -1)}},
    {DENSE, BOTH, STW_E_INVALID, {"bias_dtype", "10"}, {SET(bias_dtype, 10)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dq_dtype", "4"}, {SET(dq_dtype, 4)}},
    {DENSE, BWD, STW_E_INVALID, {"dk_dtype", "77"}, {SET(dk_dtype, 77)}},
    {DENSE, BWD, STW_E_INVALID, {"dv_dtype"}, {SET(dv_dtype, -1)}},
    {FULL, BWD, STW_E_UNSUPPORTED, {"dbias_dtype", "4"}, {SET(dbias_dtype, 4)}},
    {DENSE, BWD, STW_E_INVALID, {"dbias_dtype", "3", "bias_dtype"}, {SET(dbias_dtype, STW_F32)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dq_dtype"}, {SET(dq_dtype, STW_F16)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dk_dtype"}, {SET(dk_dtype, STW_BF16)}},
    {HALF, BWD, STW_E_UNSUPPORTED, {"dv_dtype"}, {SET(dv_dtype, STW_BF16)}},
    {FULL, BWD, STW_E_UNSUPPORTED, {"dbias_dtype"}, {SET(dbias_dtype, STW_F16)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"bias_dtype", "4", "u8 6"}, {SET(bias_dtype, 4)}},
    {HALF, BOTH, STW_E_UNSUPPORTED, {"bias_dtype"}, {SET(bias_dtype, STW_BF16)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"bias_dtype"}, {SET(bias_dtype, STW_F16)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dq_dtype", "f32 3", "f64 4"}, {SET(dtype, 4), SET(dq_dtype, 3)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dk_dtype", "f32 3", "f64 4"}, {SET(dtype, 4), SET(dk_dtype, 3)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dv_dtype", "f32 3", "f64 4"}, {SET(dtype, 4), SET(dv_dtype, 3)}},
    {DENSE, BWD, STW_E_UNSUPPORTED, {"dv_dtype", "1", "f64"}, {SET(dtype, 4), SET(dv_dtype, STW_F16)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"bias_dtype", "f32 3", "f64 4"}, {SET(dtype, 4)}},
    {FULL,
     BWD,
     STW_E_UNSUPPORTED,
     {"dbias_dtype", "f32 3", "f64 4"},
     {SET(dtype, 4), SET(bias_dtype, 4), SET(dbias_dtype, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"scale_f64", "0.5", "f32"}, {SET_REAL(scale_f64, 0.5)}},
    {DENSE, BOTH, STW_E_INVALID, {"softcap_f64", "3", "f32"}, {SET_REAL(softcap_f64, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"scale_f64", "nan"}, {SET(dtype, 4), SET_REAL(scale_f64, NAN)}},
    {DENSE, BOTH, STW_E_INVALID, {"softcap_f64", "inf"}, {SET(dtype, 4), SET_REAL(softcap_f64, INFINITY)}},
    {DENSE, BOTH, STW_E_INVALID, {"softcap_f64", "-1"}, {SET(dtype, 4), SET_REAL(softcap_f64, -1)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"bias_dtype", "5"}, {SET(bias_dtype, STW_I8)}},
    {FULL,
     BWD,
     STW_E_INVALID,
     {"dbias_dtype", "3", "bias_dtype is 6"},
     {SET(bias_dtype, STW_U8), SET(dbias_dtype, STW_F32)}},
    {FULL,
     BWD,
     STW_E_INVALID,
     {"dbias_dtype", "6", "bias_dtype is 6"},
     {SET(bias_dtype, STW_U8), SET(dbias_dtype, STW_U8)}},
    {FULL,
     BWD,
     STW_E_INVALID,
     {"outputs", "dbias", "u8", "bias_dtype is 6"},
     {SET(bias_dtype, STW_U8), SET(outputs, STW_OUT_DQ | STW_OUT_DBIAS)}},
    {FULL,
     BWD,
     STW_E_INVALID,
     {"accumulate", "dbias"},
     {SET(bias_dtype, STW_U8), SET(outputs, STW_OUT_DBIAS), SET(accumulate, STW_OUT_DBIAS)}},
    {DENSE, BOTH, STW_E_INVALID, {"mask", "3"}, {SET(mask, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"mask"}, {SET(mask, -1)}},
    {FULL, BOTH, STW_E_INVALID, {"dropout_map", "3"}, {SET(dropout_map, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"dropout_map", "3"}, {SET(dropout_map, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"deterministic", "3"}, {SET(deterministic, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"flags", "0x10000"}, {SET(flags, 0x10000)}},
    {DENSE, BOTH, STW_E_INVALID, {"interval_form", "6", "two ranges 5"}, {SET(interval_form, 6)}},
    {DENSE, BOTH, STW_E_INVALID, {"interval_form"}, {SET(interval_form, -1)}},
    {DENSE, BOTH, STW_E_INVALID, {"flags", "0x80000000"}, {SET(flags, 0x80000000u)}},
    {DENSE, BWD, STW_E_INVALID, {"outputs", "0x20"}, {SET(outputs, 0x20)}},
    {DENSE, BWD, STW_E_INVALID, {"outputs"}, {SET(outputs, 0x80000007u)}},

    /* sizes */
    {DENSE, BOTH, STW_E_INVALID, {"batch", "-1"}, {SET(batch, -1)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"batch", "2147483648"}, {SET(batch, INT64_C(1) << 31)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_q", "0", "1"}, {SET(heads_q, 0)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_q", "-4"}, {SET(heads_q, -4)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"heads_q", "1048578", "1048576"}, {SET(heads_q, 1048578)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_kv", "0"}, {SET(heads_kv, 0)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_kv", "-2"}, {SET(heads_kv, -2)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_q", "4", "heads_kv", "3"}, {SET(heads_kv, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_q", "4", "heads_kv", "8"}, {SET(heads_kv, 8)}},
    {DENSE, BOTH, STW_E_INVALID, {"head_dim_qk", "0", "1", "256"}, {SET(head_dim_qk, 0)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"head_dim_qk", "257", "1", "256"}, {SET(head_dim_qk, 257)}},
    {DENSE, BOTH, STW_E_INVALID, {"head_dim_v", "0", "1", "256"}, {SET(head_dim_v, 0)}},
    {DENSE, BOTH, STW_E_INVALID, {"head_dim_v", "-8", "256"}, {SET(head_dim_v, -8)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"head_dim_v", "257", "256"}, {SET(head_dim_v, 257)}},
    {DENSE, BOTH, STW_E_INVALID, {"max_seq_q", "-5"}, {SET(max_seq_q, -5)}},
    {DENSE, BOTH, STW_E_INVALID, {"max_seq_kv", "-7"}, {SET(max_seq_kv, -7)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"max_seq_q", "2147483648"}, {SET(max_seq_q, INT64_C(1) << 31)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"max_seq_kv", "2147483648"}, {SET(max_seq_kv, INT64_C(1) << 31)}},
    {PACKED, BOTH, STW_E_INVALID, {"total_q", "-1"}, {SET(total_q, -1)}},
    {PACKED, BOTH, STW_E_INVALID, {"total_kv", "-1"}, {SET(total_kv, -1)}},
    {PACKED, BOTH, STW_E_UNSUPPORTED, {"total_q", "2147483648"}, {SET(total_q, INT64_C(1) << 31)}},
    {PACKED, BOTH, STW_E_UNSUPPORTED, {"total_kv", "2147483648"}, {SET(total_kv, INT64_C(1) << 31)}},
    {DENSE, BOTH, STW_E_UNSUPPORTED, {"max_seq_q"}, {SET(max_seq_q, INT64_MAX)}},
    {DENSE, BOTH, STW_E_INVALID, {"batch"}, {SET(batch, INT64_MIN)}},

    /* numbers: p, scale, softcap */
    {FULL, BOTH, STW_E_INVALID, {"dropout_p", "1"}, {SET_REAL(dropout_p, 1.0)}},
    {FULL, BOTH, STW_E_INVALID, {"dropout_p", "-0.25"}, {SET_REAL(dropout_p, -0.25)}},
    {FULL, BOTH, STW_E_INVALID, {"dropout_p", "1.5"}, {SET_REAL(dropout_p, 1.5)}},
    {FULL, BOTH, STW_E_INVALID, {"dropout_p"}, {SET_REAL(dropout_p, NAN)}},
    {FULL, BOTH, STW_E_INVALID, {"dropout_p"}, {SET_REAL(dropout_p, INFINITY)}},
    {FULL, BOTH, STW_E_INVALID, {"scale"}, {SET_REAL(scale, NAN)}},
    {FULL, BOTH, STW_E_INVALID, {"scale", "inf"}, {SET_REAL(scale, INFINITY)}},
    {FULL, BOTH, STW_E_INVALID, {"scale", "-inf"}, {SET_REAL(scale, -INFINITY)}},
    {FULL, BOTH, STW_E_INVALID, {"softcap"}, {SET_REAL(softcap, NAN)}},
    {FULL, BOTH, STW_E_INVALID, {"softcap", "inf"}, {SET_REAL(softcap, INFINITY)}},
    {FULL, BOTH, STW_E_INVALID, {"softcap", "-2"}, {SET_REAL(softcap, -2)}},

    /* masks and windows */
    {FULL, BOTH, STW_E_INVALID, {"window_left", "-1"}, {SET(window_left, -1)}},
    {FULL, BOTH, STW_E_INVALID, {"window_right", "-3"}, {SET(window_right, -3)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"window_left", "1099511627777"}, {SET(window_left, TWO_40 + 1)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"window_right", "1099511627777"}, {SET(window_right, TWO_40 + 1)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"diagonal_shift", "1099511627777"}, {SET(diagonal_shift, TWO_40 + 1)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"diagonal_shift", "-1099511627777"}, {SET(diagonal_shift, -TWO_40 - 1)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"diagonal_shift"}, {SET(diagonal_shift, INT64_MIN)}},

    /* values without the flag that gives them a meaning */
    {DENSE, BOTH, STW_E_INVALID, {"scale", "0.5", "STW_ATTN_HAS_SCALE"}, {SET_REAL(scale, 0.5)}},
    {DENSE, BOTH, STW_E_INVALID, {"window_left", "3", "STW_ATTN_HAS_WINDOW_LEFT"}, {SET(window_left, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"window_right", "2", "STW_ATTN_HAS_WINDOW_RIGHT"}, {SET(window_right, 2)}},
    {DENSE, BOTH, STW_E_INVALID, {"diagonal_shift", "1", "STW_ATTN_HAS_SHIFT"}, {SET(diagonal_shift, 1)}},

    /* flags and outputs that contradict each other */
    {DENSE,
     BWD,
     STW_E_INVALID,
     {"STW_ATTN_GIVEN_DELTA", "STW_ATTN_DLSE"},
     {SET_FLAG(STW_ATTN_GIVEN_DELTA | STW_ATTN_DLSE)}},
    {DENSE,
     BWD,
     STW_E_INVALID,
     {"STW_ATTN_GIVEN_DELTA", "STW_ATTN_WRITE_DELTA"},
     {SET_FLAG(STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA)}},
    {DENSE, BOTH, STW_E_INVALID, {"STW_ATTN_ALIBI_COLUMN"}, {SET_FLAG(STW_ATTN_ALIBI_COLUMN)}},
    {DENSE, BWD, STW_E_INVALID, {"outputs", "bias_dtype"}, {SET(outputs, STW_OUT_DBIAS)}},
    {DENSE, BWD, STW_E_INVALID, {"outputs"}, {SET(outputs, STW_OUT_DQ | STW_OUT_DSINK)}},
    {DENSE, BWD, STW_E_INVALID, {"accumulate", "outputs"}, {SET(outputs, STW_OUT_DQ), SET(accumulate, STW_OUT_DK)}},
    {DENSE, BWD, STW_E_INVALID, {"accumulate"}, {SET(accumulate, STW_OUT_DBIAS)}},
    {DENSE, BWD, STW_E_INVALID, {"accumulate"}, {SET(accumulate, 0x40)}},
    {HALF, BWD, STW_E_UNSUPPORTED, {"accumulate", "dq_dtype"}, {SET(accumulate, STW_OUT_DQ)}},
    {HALF, BWD, STW_E_UNSUPPORTED, {"accumulate", "dk_dtype"}, {SET(accumulate, STW_OUT_DK)}},
    {HALF, BWD, STW_E_UNSUPPORTED, {"accumulate", "dv_dtype"}, {SET(accumulate, STW_OUT_DV)}},
    {HALF,
     BWD,
     STW_E_UNSUPPORTED,
     {"accumulate", "dbias_dtype"},
     {SET(bias_dtype, STW_F16), SET(outputs, STW_OUT_DBIAS), SET(accumulate, STW_OUT_DBIAS)}},

    /* ALiBi, shards */
    {FULL, BOTH, STW_E_INVALID, {"alibi_stride_batch", "3", "4"}, {SET(alibi_stride_batch, 3)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"alibi_stride_batch", "-4"}, {SET(alibi_stride_batch, -4)}},
    {FULL, BOTH, STW_E_INVALID, {"alibi_stride_batch"}, {SET(alibi_stride_batch, INT64_MAX)}},
    {DENSE, BOTH, STW_E_INVALID, {"batch_offset", "-1"}, {SET(batch_offset, -1)}},
    {DENSE, BOTH, STW_E_INVALID, {"head_offset", "-1"}, {SET(head_offset, -1), SET(heads_total, 8)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_total", "-8"}, {SET(heads_total, -8)}},
    {DENSE, BOTH, STW_E_INVALID, {"heads_total", "3"}, {SET(heads_total, 3)}},
    {DENSE, BOTH, STW_E_INVALID, {"head_offset", "5", "8"}, {SET(head_offset, 5), SET(heads_total, 8)}},
    {DENSE, BOTH, STW_E_INVALID, {"head_offset", "1", "4"}, {SET(head_offset, 1)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"heads_total"}, {SET(heads_total, INT64_MAX)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"batch_offset"}, {SET(batch_offset, INT64_MAX)}},
    {FULL, BOTH, STW_E_UNSUPPORTED, {"head_offset"}, {SET(head_offset, INT64_MAX), SET(heads_total, 8)}},
    /* the philox map numbers 2^32 heads: 2^31 - 1 + 2 batches of 2^20 are more */
    {DENSE,
     BOTH,
     STW_E_UNSUPPORTED,
     {"batch_offset", "heads_total", "2251799814733824", "2^32"},
     {SET_REAL(dropout_p, 0.5), SET(batch_offset, INT32_MAX), SET(heads_total, 1 << 20)}},

    /* sizes that are legal alone, with a product that is not */
    {DENSE,
     BOTH,
     STW_E_UNSUPPORTED,
     {"batch", "2^56"},
     {SET(batch, INT32_MAX), SET(heads_q, 1 << 20), SET(max_seq_q, INT32_MAX)}},
    {DENSE,
     BOTH,
     STW_E_UNSUPPORTED,
     {"batch", "2^56"},
     {SET(batch, INT32_MAX), SET(heads_q, 1 << 20), SET(max_seq_q, 1)}},
    {PACKED,
     BOTH,
     STW_E_UNSUPPORTED,
     {"batch", "2^56"},
     {SET(batch, 1 << 18), SET(heads_q, 1 << 20), SET(max_seq_q, 1 << 20)}},
    {PACKED,
     BOTH,
     STW_E_UNSUPPORTED,
     {"batch", "2^56"},
     {SET(batch, 1 << 18), SET(heads_q, 1 << 20), SET(max_seq_q, INT32_MAX)}},
};

typedef stw_status (*plan_fn)(stw_context *, const stw_attn_desc *, stw_plan **);

/* A refusal: its status, its text, and nothing changed: neither plan_out nor the descriptor. */
static void expect_refusal(plan_fn plan, const char *function, stw_context *context, const stw_attn_desc *desc,
                           stw_status status, const char *const *words) {
    const stw_attn_desc kept = *desc;
    stw_plan *const untouched = (stw_plan *)(uintptr_t)0xA5A5;
    stw_plan *out = untouched;
    char what[200];
    snprintf(what, sizeof what, "%s %s %s", words[0], words[1] ? words[1] : "", words[1] && words[2] ? words[2] : "");
    text_forget();
    const stw_status got = plan(context, desc, &out);
    refused(what, got, status, function, words);
    if (got) assert_ptr_equal(out, untouched);
    else stw_plan_destroy(out);
    assert_memory_equal(&kept, desc, sizeof kept);
}

/* The same words without a plan. */
static void expect_refusal_once(int forward, stw_context *context, const stw_attn_desc *desc, stw_status status) {
    char words[512];
    size_t size = 77;
    snprintf(words, sizeof words, "%s", stw_last_error());
    text_forget();
    const stw_status once = (forward ? stw_attn_fwd_once_workspace : stw_attn_bwd_once_workspace)(context, desc, &size);
    if (once != status || strcmp(words, stw_last_error()) || size != 77)
        complain("without a plan: %s: %s, with one: %s", stw_status_name(once), stw_last_error(), words);
}

static void expect_accepted(plan_fn plan, stw_context *context, const stw_attn_desc *desc, const char *what) {
    stw_plan *out = NULL;
    if (plan(context, desc, &out)) complain("%s is refused: %s", what, stw_last_error());
    stw_plan_destroy(out);
}

static void every_row(void **state) {
    (void)state;
    fixture f[BASE_COUNT];
    for (int b = 0; b < BASE_COUNT; ++b) fixture_open(&f[b], (base)b);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r) {
        const refusal *row = &rows[r];
        stw_context *context = f[row->from].context;
        stw_attn_desc desc = f[row->from].desc;
        apply(&desc, row->sets, 4);
        expect_refusal(stw_attn_bwd_plan, "attn_bwd", context, &desc, row->status, row->words);
        expect_refusal_once(0, context, &desc, row->status);
        if (row->plans == BOTH) {
            expect_refusal(stw_attn_fwd_plan, "attn_fwd", context, &desc, row->status, row->words);
            expect_refusal_once(1, context, &desc, row->status);
        } else expect_accepted(stw_attn_fwd_plan, context, &desc, row->words[0]);
    }
    for (int b = 0; b < BASE_COUNT; ++b) {
        fixture_unchanged(&f[b], 0);
        fixture_still_works(&f[b]);
        fixture_close(&f[b]);
    }
    no_complaints();
}

/* The example that the specification gives, to the letter. */
static void the_documented_text(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_attn_desc desc = f.desc;
    desc.heads_q = 12;
    desc.heads_kv = 5;
    stw_plan *out = NULL;
    assert_int_equal(stw_attn_bwd_plan(f.context, &desc, &out), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_bwd: heads_q 12 is not a multiple of heads_kv 5");
    fixture_close(&f);
}

static void null_pointers(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_plan *out = (stw_plan *)(uintptr_t)0xA5A5;
    static const plan_fn plans[2] = {stw_attn_bwd_plan, stw_attn_fwd_plan};
    static const char *const names[2] = {"attn_bwd", "attn_fwd"};
    for (int n = 0; n < 2; ++n) {
        text_forget();
        assert_int_equal(plans[n](NULL, &f.desc, &out), STW_E_INVALID);
        text_names("null context", names[n], WORDS("context", "null"));
        text_forget();
        assert_int_equal(plans[n](f.context, NULL, &out), STW_E_INVALID);
        text_names("null desc", names[n], WORDS("desc", "null"));
        assert_ptr_equal(out, (void *)(uintptr_t)0xA5A5);
        text_forget();
        assert_int_equal(plans[n](f.context, &f.desc, NULL), STW_E_INVALID);
        text_names("null plan_out", names[n], WORDS("plan_out", "null"));
    }
    fixture_close(&f);
    no_complaints();
}

/* The struct_size rule: shorter than 0.1's, or longer with something in the tail. */
static void struct_sizes(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    static const size_t wrong[] = {0, 1, 7, 8, STW_SIZE_ATTN_DESC_0_1 - 8, STW_SIZE_ATTN_DESC_0_1 - 1, SIZE_MAX};
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; ++n) {
        stw_attn_desc desc = f.desc;
        desc.struct_size = wrong[n];
        expect_refusal(stw_attn_bwd_plan, "attn_bwd", f.context, &desc, STW_E_INVALID, WORDS("struct_size"));
        expect_refusal(stw_attn_fwd_plan, "attn_fwd", f.context, &desc, STW_E_INVALID, WORDS("struct_size"));
    }
    stw_attn_desc older = f.desc; /* what is behind its size is not read */
    older.struct_size = STW_SIZE_ATTN_DESC_0_1;
    memset((char *)&older + older.struct_size, 0xA5, sizeof older - older.struct_size);
    expect_accepted(stw_attn_bwd_plan, f.context, &older, "a struct of 0.1");
    struct newer {
        stw_attn_desc desc;
        unsigned char tail[24];
    } newer = {f.desc, {0}};
    newer.desc.struct_size = sizeof newer;
    expect_accepted(stw_attn_bwd_plan, f.context, &newer.desc, "a longer struct with a zero tail");
    for (size_t n = 0; n < sizeof newer.tail; ++n) {
        newer.tail[n] = 1;
        expect_refusal(stw_attn_bwd_plan, "attn_bwd", f.context, &newer.desc, STW_E_UNSUPPORTED, WORDS("struct_size"));
        newer.tail[n] = 0;
    }
    fixture_close(&f);
    no_complaints();
}

/* Dense f32, f16, bf16 and f64 with every combination of gradient types: refused or accepted by the header's
 * rule.
 */
static void gradient_types(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    for (uint32_t in = 0; in <= 5; ++in) {
        for (uint32_t grad = 0; grad <= 5; ++grad) {
            stw_attn_desc desc = f.desc;
            apply(&desc, (set[]){SET(dtype, in), SET(dq_dtype, grad)}, 2);
            stw_plan *out = NULL;
            const int known = in >= STW_F16 && in <= STW_F64;
            stw_status expected = known && (grad == 0 || grad == STW_F32) ? STW_OK : STW_E_UNSUPPORTED;
            if (!in) expected = STW_E_INVALID;
            if (in == STW_F64 && grad == STW_F32) expected = STW_E_UNSUPPORTED;
            if (grad == in && in) continue; /* the input's own type by name: not promised either way */
            assert_int_equal(stw_attn_bwd_plan(f.context, &desc, &out), expected);
            stw_plan_destroy(out);
        }
    }
    fixture_close(&f);
}

static void layouts(void **state) {
    (void)state;
    typedef stw_status (*layout_fn)(stw_attn_desc *);
    static const layout_fn fns[] = {stw_layout_bshd, stw_layout_bhsd, stw_layout_thd};
    static const char *const names[] = {"layout_bshd", "layout_bhsd", "layout_thd"};
    static const struct {
        const char *words[3];
        set sets[3];
        stw_status status;
    } bad[] = {
        {{"batch", "-1"}, {SET(batch, -1)}, STW_E_INVALID},
        {{"heads_q", "0"}, {SET(heads_q, 0)}, STW_E_INVALID},
        {{"heads_kv", "-2"}, {SET(heads_kv, -2)}, STW_E_INVALID},
        {{"head_dim_qk", "0"}, {SET(head_dim_qk, 0)}, STW_E_INVALID},
        {{"head_dim_v", "-1"}, {SET(head_dim_v, -1)}, STW_E_INVALID},
        {{"max_seq_q"}, {SET(max_seq_q, INT64_MAX)}, STW_E_UNSUPPORTED},
        {{"max_seq_kv"}, {SET(max_seq_kv, -1)}, STW_E_INVALID},
    };
    for (int n = 0; n < 3; ++n) {
        text_forget();
        assert_int_equal(fns[n](NULL), STW_E_INVALID);
        text_names("null desc", names[n], WORDS("desc"));
        for (size_t r = 0; r < sizeof bad / sizeof bad[0]; ++r) {
            stw_attn_desc desc = base_desc(n == 2 ? PACKED : DENSE);
            apply(&desc, bad[r].sets, 3);
            const stw_attn_desc kept = desc;
            text_forget();
            refused("sizes", fns[n](&desc), bad[r].status, names[n], bad[r].words);
            assert_memory_equal(&desc, &kept, sizeof desc);
        }
        /* strides that fit no int64: 2^31-1 of everything that may be that large */
        stw_attn_desc huge = base_desc(DENSE);
        apply(&huge,
              (set[]){SET(heads_q, 1 << 20), SET(max_seq_q, INT32_MAX), SET(batch, INT32_MAX),
                      SET(max_seq_kv, INT32_MAX)},
              4);
        huge.bias_dtype = STW_F32;
        const stw_attn_desc kept = huge;
        assert_int_equal(fns[n](&huge), STW_E_INVALID);
        assert_memory_equal(&huge, &kept, sizeof huge);
        stw_attn_desc shorter = base_desc(DENSE);
        shorter.struct_size = 8;
        assert_int_equal(fns[n](&shorter), STW_E_INVALID);
        text_names("struct_size", names[n], WORDS("struct_size"));
    }
    no_complaints();
}

static void flash_windows(void **state) {
    (void)state;
    static const struct {
        const char *words[4];
        set sets[1];
    } bad[] = {
        {{"max_seq_q", "-1", "0..2147483647"}, {SET(max_seq_q, -1)}},
        {{"max_seq_kv", "-1", "0..2147483647"}, {SET(max_seq_kv, -1)}},
        {{"heads_q", "0"}, {SET(heads_q, 0)}},
    };
    text_forget();
    refused("null desc", stw_attn_mask_from_flash(NULL, 0, -1, -1), STW_E_INVALID, "attn_mask_from_flash",
            WORDS("desc", "null"));
    for (size_t r = 0; r < sizeof bad / sizeof bad[0]; ++r) {
        stw_attn_desc desc = base_desc(DENSE);
        apply(&desc, bad[r].sets, 1);
        const stw_attn_desc kept = desc;
        text_forget();
        refused("sizes", stw_attn_mask_from_flash(&desc, 1, 3, 4), STW_E_INVALID, "attn_mask_from_flash", bad[r].words);
        assert_memory_equal(&desc, &kept, sizeof desc);
    }
    stw_attn_desc shorter = base_desc(DENSE);
    shorter.struct_size = 8;
    text_forget();
    refused("struct_size", stw_attn_mask_from_flash(&shorter, 1, 3, 4), STW_E_INVALID, "attn_mask_from_flash",
            WORDS("struct_size", "8"));
    no_complaints();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),     cmocka_unit_test(the_documented_text), cmocka_unit_test(null_pointers),
        cmocka_unit_test(struct_sizes),  cmocka_unit_test(gradient_types),      cmocka_unit_test(layouts),
        cmocka_unit_test(flash_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
