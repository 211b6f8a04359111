/* SPDX-License-Identifier: MIT
 *
 * Jagged descriptors that the plan call refuses, one row each: what is set in a correct one, and the words
 * that the text must hold. And those that it must not refuse. */
#include "jagged.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct refusal {
    jbase from;
    const char *words[5]; /* field, value seen, accepted */
    set sets[4];
} refusal;

#define TWO_48 (INT64_C(1) << 48)

static const refusal rows[] = {
    /* enums and types */
    {J_GELU, {"op", "0"}, {JSET(op, 0)}},
    {J_GELU, {"op", "99"}, {JSET(op, 99)}},
    {J_GELU, {"op"}, {JSET(op, -1)}},
    {J_GELU, {"dtype", "0"}, {JSET(dtype, 0)}},
    {J_GELU, {"dtype", "10"}, {JSET(dtype, 10)}},
    {J_THRESHOLD, {"dtype", "10"}, {JSET(dtype, 10)}},
    {J_GELU, {"index_dtype", "0"}, {JSET(index_dtype, 0)}},
    {J_GELU, {"index_dtype", "3"}, {JSET(index_dtype, STW_F32)}},
    {J_GELU, {"index_dtype", "7"}, {JSET(index_dtype, STW_I16)}},
    {J_ATTENTION, {"index_dtype", "0"}, {JSET(index_dtype, 0)}},
    {J_LINEAR, {"dbias_dtype", "99"}, {JSET(dbias_dtype, 99)}},
    {J_GELU, {"weight_dtype", "3"}, {JSET(weight_dtype, STW_F32)}},
    {J_GELU, {"dother_dtype", "3"}, {JSET(dother_dtype, STW_F32)}},
    {J_SOFTMAX, {"dbias_dtype", "3"}, {JSET(dbias_dtype, STW_F32)}},

    /* outputs and flags */
    {J_GELU, {"outputs", "0x10"}, {JSET(outputs, 0x10)}},
    {J_GELU, {"outputs", "0x5"}, {JSET(outputs, STW_JAGGED_DX | STW_JAGGED_DWEIGHT)}},
    {J_LINEAR, {"outputs", "0x2"}, {JSET(outputs, STW_JAGGED_DOTHER)}},
    {J_MATMUL, {"outputs", "0x8"}, {JSET(outputs, STW_JAGGED_DBIAS)}},
    {J_LINEAR, {"accumulate"}, {JSET(outputs, STW_JAGGED_DX), JSET(accumulate, STW_JAGGED_DWEIGHT)}},
    {J_SOFTMAX, {"accumulate"}, {JSET(accumulate, 0x80000000u)}},
    {J_GELU, {"flags", "0x80000001"}, {JSET_FLAG(0x80000000u)}},
    {J_GELU, {"flags", "0x9"}, {JSET_FLAG(0x8)}},
    {J_GELU, {"flags", "0x5"}, {JSET_FLAG(STW_JAGGED_HAS_GAMMA)}},
    {J_LINEAR, {"flags"}, {JSET_FLAG(STW_JAGGED_X_TRANSPOSED)}},
    {J_SOFTMAX, {"flags"}, {JSET_FLAG(STW_JAGGED_GRAD_BASES)}},
    {J_LINEAR, {"STW_JAGGED_FULL", "STW_JAGGED_HAS_USED"}, {JSET_FLAG(STW_JAGGED_FULL)}},
    {J_GELU, {"storage", "2"}, {JSET(storage, 2)}},
    {J_GELU, {"storage"}, {JSET(storage, -1)}},
    {J_GELU, {"grad_storage", "1"}, {JSET(grad_storage, 1)}},
    {J_RESHAPE, {"grad_storage", "2"}, {JSET(grad_storage, 2)}},
    {J_RESHAPE, {"other_storage", "1"}, {JSET(other_storage, 1)}},
    {J_MATMUL, {"grad_storage", "-1"}, {JSET(grad_storage, -1)}},
    {J_MATMUL, {"other_storage", "2"}, {JSET(other_storage, 2)}},

    /* sizes */
    {J_GELU, {"components", "-1"}, {JSET(components, -1)}},
    {J_GELU, {"axis[0].size", "-1"}, {JSET(axis[0].size, -1)}},
    {J_GELU, {"axis[0].total", "-2"}, {JSET(axis[0].total, -2)}},
    {J_GELU, {"axis[1].size", "3"}, {JSET(axis[1].size, 3)}},
    {J_GELU, {"axis[2].total", "3"}, {JSET(axis[2].total, 3)}},
    {J_MATMUL, {"axis[1].total", "3"}, {JSET(axis[1].total, 3)}}, /* k is a constant */
    {J_MATMUL, {"axis[2].size", "-5"}, {JSET(axis[2].size, -5)}},
    {J_GELU, {"outer", "-1"}, {JSET(outer, -1)}},
    {J_GELU, {"inner", "-6"}, {JSET(inner, -6)}},
    {J_MATMUL, {"inner", "2"}, {JSET(inner, 2)}},
    {J_RESHAPE, {"outer", "2"}, {JSET(outer, 2)}},
    {J_RESHAPE, {"inner", "6"}, {JSET(inner, 6)}},
    {J_GELU, {"ragged_axes", "1"}, {JSET(ragged_axes, 1)}},
    {J_MATMUL, {"ragged_axes", "0x9"}, {JSET(ragged_axes, 9)}},
    {J_LINEAR, {"out_features", "0"}, {JSET(out_features, 0)}},
    {J_LINEAR, {"out_features", "-7"}, {JSET(out_features, -7)}},
    {J_SOFTMAX, {"out_features", "1"}, {JSET(out_features, 1)}},
    {J_TO_PADDED, {"padded", "-1"}, {JSET(padded, -1)}},
    {J_GELU, {"padded", "4"}, {JSET(padded, 4)}},
    {J_THRESHOLD, {"threshold", "nan"}, {JSET_REAL(threshold, (double)NAN)}},
    {J_THRESHOLD, {"threshold", "inf"}, {JSET_REAL(threshold, (double)INFINITY)}},
    {J_GELU, {"threshold", "0.5"}, {JSET_REAL(threshold, 0.5)}},

    /* overflow: each extent alone is legal */

    /* dimensions */
    {J_SOFTMAX, {"dim", "0"}, {JSET(dim, 0)}},
    {J_LOG_SOFTMAX, {"dim", "0"}, {JSET(dim, 0)}},
    {J_SOFTMAX, {"dim", "5"}, {JSET(dim, 5)}},
    {J_GELU, {"dim", "3"}, {JSET(dim, STW_DIM_INNER)}},
    {J_GELU, {"dim_size", "3"}, {JSET(dim_size, 3)}},
    {J_SOFTMAX, {"dim_size", "4"}, {JSET(dim_size, 4), JSET(dim_after, 1)}},
    {J_SOFTMAX, {"dim_size", "-3"}, {JSET(dim_size, -3)}},
    {J_SOFTMAX, {"dim_after", "4"}, {JSET(dim_after, 4)}},
    {J_SOFTMAX, {"dim_after", "12", "6"}, {JSET(dim_after, 12)}}, /* more than inner has */
    {J_SOFTMAX, {"dim_after", "-2"}, {JSET(dim_after, -2)}},
    {J_SOFTMAX, {"dim_after"}, {JSET(dim_after, INT64_MIN)}},
    {J_LOG_SOFTMAX, {"dim_size", "-3"}, {JSET(dim_size, -3)}},
    {J_SOFTMAX, {"dim_size", "6"}, {JSET(dim_size, 6)}}, /* 6 * 2 is not inside 6 */
    {J_SOFTMAX, {"dim_size", "3"}, {JSET(dim, STW_DIM_OUTER)}},
    {J_SOFTMAX, {"dim_size", "3"}, {JSET(dim, STW_DIM_RAGGED)}},
    {J_SOFTMAX, {"dim_after", "2"}, {JSET(dim, STW_DIM_RAGGED), JSET(dim_size, 0)}},
    {J_LAYER_NORM, {"dim", "5"}, {JSET(dim, 5)}},
    {J_SELECT, {"dim", "0", "component"}, {JSET(dim, 0), JSET(dim_size, 0), JSET(dim_after, 0)}},
    {J_LAYER_NORM, {"dim_size", "4"}, {JSET(dim_size, 4)}},
    {J_RMS_NORM, {"dim_size", "4"}, {JSET(dim_size, 4)}},
    {J_RMS_NORM, {"dim_after", "2"}, {JSET(dim_size, 3), JSET(dim_after, 2)}},
    {J_RMS_NORM, {"dbias_dtype", "3"}, {JSET(dbias_dtype, STW_F32)}},
    {J_RMS_NORM, {"outputs", "0x8"}, {JSET(outputs, STW_JAGGED_DBIAS)}},
    {J_LAYER_NORM, {"dim_after", "2"}, {JSET(dim_size, 3), JSET(dim_after, 2)}},
    {J_SELECT, {"index", "3"}, {JSET(index, 3)}},
    {J_SELECT, {"index", "-4"}, {JSET(index, -4)}},
    {J_SELECT, {"index"}, {JSET(index, INT64_MIN)}},
    {J_SELECT, {"index", "3"}, {JSET(dim, STW_DIM_COMPONENT), JSET(dim_size, 0), JSET(dim_after, 0), JSET(index, 3)}},
    {J_SELECT, {"index", "-4"}, {JSET(dim, STW_DIM_COMPONENT), JSET(dim_size, 0), JSET(dim_after, 0), JSET(index, -4)}},
    {J_SOFTMAX, {"index", "1"}, {JSET(index, 1)}},

    /* reshape */
    {J_RESHAPE, {"shape_rank", "0"}, {JSET(shape_rank, 0)}},
    {J_RESHAPE, {"grad_rank", "-1"}, {JSET(grad_rank, -1)}},
    {J_RESHAPE, {"shape", "-1"}, {JSET(shape[1], 4)}},     /* no ragged extent  */
    {J_RESHAPE, {"shape[2]", "-1"}, {JSET(shape[2], -1)}}, /* two               */
    {J_RESHAPE, {"grad_shape[1]"}, {JSET(grad_shape[1], -1)}},
    {J_RESHAPE, {"shape[0]", "-2"}, {JSET(shape[0], -2)}},
    {J_RESHAPE, {"shape", "grad_shape", "12"}, {JSET(shape[0], 3)}},
    {J_RESHAPE, /* each product fits, that of both does not */
     {"shape", "grad_shape", "140737488355328"},
     {JSET(shape[0], TWO_48 / 2), JSET(shape[2], TWO_48 / 2)}},
    {J_RESHAPE,
     {"shape", "grad_shape", "140737488355328"},
     {JSET(grad_shape[0], TWO_48 / 2), JSET(grad_shape[1], -1), JSET(grad_shape[2], TWO_48 / 2)}},
    {J_GELU, {"shape_rank", "3"}, {JSET(shape_rank, 3)}},

    /* matmul */
    {J_MATMUL_MN, {"grad", "STW_JAGGED_GRAD_BASES"}, {JSET(flags, 0)}},
    {J_MATMUL_MN, {"grad_elements", "-1"}, {JSET(grad_elements, -1)}},
    {J_MATMUL_MN, {"grad", "jagged"}, {JSET(grad_storage, 1)}},
    {J_MATMUL, {"x_elements", "8", "STW_JAGGED_X_BASES"}, {JSET(x_elements, 8)}},
    {J_MATMUL, {"other", "jagged"}, {JSET(other_storage, 1)}}, /* nothing of it is ragged */
    {J_MATMUL, {"x", "jagged", "bases"}, {JSET(storage, 1), JSET_FLAG(STW_JAGGED_X_BASES)}},
    {J_GELU, {"x_elements", "8"}, {JSET(x_elements, 8)}},
    {J_MATMUL,
     {"STW_JAGGED_HAS_USED", "ragged_axes", "0"},
     {JSET(ragged_axes, 0), JSET(axis[0].total, 0), JSET_FLAG(STW_JAGGED_HAS_USED)}},

    /* attention */
    {J_ATTENTION, {"attn", "null"}, {JSET_PTR(attn)}},
    {J_ATTENTION, {"dtype"}, {JSET(dtype, STW_F32)}},
    {J_ATTENTION, {"flags"}, {JSET_FLAG(STW_JAGGED_HAS_USED)}},
    {J_ATTENTION, {"dx_dtype"}, {JSET(dx_dtype, STW_F32)}},
    {J_ATTENTION, {"outputs"}, {JSET(outputs, STW_JAGGED_DX)}},
    {J_ATTENTION, {"accumulate"}, {JSET(accumulate, STW_JAGGED_DX)}},
    {J_ATTENTION, {"storage"}, {JSET(storage, 1)}},
    {J_ATTENTION, {"axis[0]"}, {JSET(axis[0].size, 5)}},
    {J_ATTENTION, {"axis[0]"}, {JSET(axis[0].total, 10)}},
    {J_ATTENTION, {"components", "2", "3"}, {JSET(components, 2)}},
    {J_ATTENTION, {"outer", "2"}, {JSET(outer, 2)}},
};

/* Limits: a correct call of another library could ask for these. */
static const refusal limits[] = {
    {J_GELU, {"dtype", "4"}, {JSET(dtype, STW_F64)}},
    {J_SOFTMAX, {"dtype", "4"}, {JSET(dtype, STW_F64)}},
    {J_LOG_SOFTMAX, {"dtype", "4"}, {JSET(dtype, STW_F64)}},
    {J_MATMUL, {"dtype", "8"}, {JSET(dtype, STW_I32)}},
    {J_LINEAR, {"dtype", "9"}, {JSET(dtype, STW_I64)}},
    {J_LAYER_NORM, {"dtype", "4"}, {JSET(dtype, STW_F64)}},
    {J_SOFTMAX, {"dx_dtype", "1"}, {JSET(dx_dtype, STW_F16)}},
    {J_GELU, {"dx_dtype", "2"}, {JSET(dx_dtype, STW_BF16)}},
    {J_THRESHOLD, {"dx_dtype", "3"}, {JSET(dtype, STW_F64), JSET(dx_dtype, STW_F32)}},
    {J_THRESHOLD, {"dx_dtype", "3"}, {JSET(dtype, STW_I32), JSET(dx_dtype, STW_F32)}},
    {J_MATMUL, {"dother_dtype", "2"}, {JSET(dother_dtype, STW_BF16)}},
    {J_LINEAR, {"dweight_dtype", "1"}, {JSET(dweight_dtype, STW_F16)}},
    {J_LINEAR, {"weight_dtype", "3"}, {JSET(weight_dtype, STW_F32)}},
    {J_LAYER_NORM, {"weight_dtype", "2"}, {JSET(weight_dtype, STW_BF16)}},
    {J_RMS_NORM, {"weight_dtype", "2"}, {JSET(weight_dtype, STW_BF16)}},
    {J_RMS_NORM, {"dtype", "4"}, {JSET(dtype, STW_F64)}},
    {J_GELU, {"accumulate"}, {JSET(accumulate, STW_JAGGED_DX)}}, /* into f16 */
    {J_GELU, {"components", "2147483648"}, {JSET(components, INT64_C(1) << 31)}},
    {J_GELU, {"axis[0].size", "281474976710656"}, {JSET(axis[0].size, TWO_48)}},
    {J_GELU, {"axis[0].total", "281474976710656"}, {JSET(axis[0].total, TWO_48)}},
    {J_GELU, {"outer", "281474976710656"}, {JSET(outer, TWO_48)}},
    {J_GELU, {"inner"}, {JSET(inner, INT64_MAX)}},
    {J_FROM_PADDED, {"padded", "281474976710656"}, {JSET(padded, TWO_48)}},
    {J_GELU, {"2^60"}, {JSET(outer, 1 << 20), JSET(inner, 1 << 20), JSET(axis[0].total, 1 << 20)}},
    {J_GELU, {"2^60"}, {JSET(outer, TWO_48 - 1), JSET(inner, TWO_48 - 1)}},
    {J_LINEAR, {"weight", "2^60"}, {JSET(inner, 1 << 30), JSET(out_features, 1 << 30)}},
    {J_MATMUL, {"2^60"}, {JSET(axis[1].size, INT64_C(1) << 40), JSET(axis[2].size, INT64_C(1) << 40)}},
    {J_TO_PADDED, {"2^60"}, {JSET(padded, TWO_48 - 1), JSET(components, INT32_MAX)}},
    {J_SOFTMAX, {"dim", "4"}, {JSET(dim, STW_DIM_COMPONENT), JSET(dim_size, 0), JSET(dim_after, 0)}},
    {J_LOG_SOFTMAX, {"dim", "4"}, {JSET(dim, STW_DIM_COMPONENT), JSET(dim_size, 0), JSET(dim_after, 0)}},
    {J_SUM, {"dim", "4"}, {JSET(dim, STW_DIM_COMPONENT)}},
    {J_LAYER_NORM, {"flags", "ragged"}, {JSET(dim, STW_DIM_RAGGED)}}, /* with gamma */
    {J_RMS_NORM, {"flags", "ragged"}, {JSET(dim, STW_DIM_RAGGED)}},
    {J_LAYER_NORM, {"outputs", "0xd", "ragged"}, {JSET(dim, STW_DIM_RAGGED), JSET(flags, 0), JSET(outputs, 13)}},
    {J_RMS_NORM, {"dim", "1"}, {JSET(dim, STW_DIM_OUTER)}},
    {J_LAYER_NORM, {"dim", "1"}, {JSET(dim, STW_DIM_OUTER)}},
    {J_RESHAPE, {"shape_rank", "9"}, {JSET(shape_rank, 9)}},
    {J_RESHAPE, {"shape"}, {JSET(shape[0], INT64_MAX), JSET(shape[2], INT64_MAX)}},
    {J_RESHAPE, /* two extents of one product beyond int64 */
     {"shape[1]", "1099511627776", "2^48"},
     {JSET(shape[0], INT64_C(1) << 40), JSET(shape[1], INT64_C(1) << 40), JSET(shape[2], -1)}},
};

static stw_context *context;

static void expect_refusal(const char *what, const stw_jagged_desc *desc, stw_status expected,
                           const char *const *words) {
    stw_plan *const untouched = (stw_plan *)(uintptr_t)0xA5A5;
    stw_plan *plan = untouched;
    const stw_jagged_desc kept = *desc;
    text_forget();
    refused(what, stw_jagged_bwd_plan(context, desc, &plan), expected, "jagged_bwd", words);
    if (plan != untouched) complain("%s: plan_out was written", what);
    if (memcmp(&kept, desc, sizeof kept)) complain("%s: the descriptor was written", what);
}

static void each_of(const refusal *refusals, size_t count, stw_status expected) {
    for (size_t n = 0; n < count; ++n) {
        const refusal *row = &refusals[n];
        stw_attn_desc attn;
        stw_jagged_desc desc = jbase_desc(row->from, &attn);
        char what[80];
        snprintf(what, sizeof what, "row %zu (problem %d, %s)", n, (int)row->from, row->words[0]);
        apply(&desc, row->sets, 4);
        expect_refusal(what, &desc, expected, row->words);
    }
    no_complaints();
}

static void every_row(void **state) {
    (void)state;
    each_of(rows, sizeof rows / sizeof rows[0], STW_E_INVALID);
}

static void every_limit(void **state) {
    (void)state;
    each_of(limits, sizeof limits / sizeof limits[0], STW_E_UNSUPPORTED);
}

static void attention_descriptors(void **state) {
    (void)state;
    static const struct {
        const char *words[3];
        set sets[3];
    } bad[] = {
        {{"head_dim_qk", "0"}, {SET(head_dim_qk, 0)}}, {{"total_q", "-1"}, {SET(total_q, -1)}},
        {{"total_kv", "-2"}, {SET(total_kv, -2)}},     {{"batch", "2", "3"}, {SET(batch, 2)}},
        {{"flags", "0x11800"}, {SET(flags, 0x10000)}}, {{"struct_size"}, {SET(struct_size, 8)}},
    };
    for (size_t n = 0; n < sizeof bad / sizeof bad[0]; ++n) {
        stw_attn_desc attn;
        const stw_jagged_desc desc = jbase_desc(J_ATTENTION, &attn);
        apply(&attn, bad[n].sets, 3);
        stw_plan *plan = NULL;
        text_forget();
        const stw_status status = stw_jagged_bwd_plan(context, &desc, &plan);
        if (status != STW_E_INVALID)
            complain("attn's %s: %s \"%s\"", bad[n].words[0], stw_status_name(status), stw_last_error());
        else
            for (int w = 0; w < 3 && bad[n].words[w]; ++w)
                if (!strstr(stw_last_error(), bad[n].words[w]))
                    complain("attn's %s: \"%s\"", bad[n].words[w], stw_last_error());
        if (!status) stw_plan_destroy(plan);
    }
    no_complaints();
}

static void null_pointers(void **state) {
    (void)state;
    const stw_jagged_desc desc = jbase_desc(J_GELU, NULL);
    stw_plan *plan = (stw_plan *)(uintptr_t)0xA5A5;
    text_forget();
    refused("null context", stw_jagged_bwd_plan(NULL, &desc, &plan), STW_E_INVALID, "jagged_bwd",
            WORDS("context", "null"));
    refused("null desc", stw_jagged_bwd_plan(context, NULL, &plan), STW_E_INVALID, "jagged_bwd", WORDS("desc", "null"));
    refused("null plan_out", stw_jagged_bwd_plan(context, &desc, NULL), STW_E_INVALID, "jagged_bwd",
            WORDS("plan_out", "null"));
    assert_ptr_equal(plan, (void *)(uintptr_t)0xA5A5);
    no_complaints();
}

static void struct_sizes(void **state) {
    (void)state;
    static const size_t wrong[] = {0, 1, 7, 8, sizeof(stw_jagged_desc) - 8, sizeof(stw_jagged_desc) - 1, SIZE_MAX};
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; ++n) {
        stw_jagged_desc desc = jbase_desc(J_GELU, NULL);
        desc.struct_size = wrong[n];
        expect_refusal("struct_size", &desc, STW_E_INVALID, WORDS("struct_size"));
    }
    struct newer {
        stw_jagged_desc desc;
        unsigned char tail[24];
    } newer = {jbase_desc(J_GELU, NULL), {0}};
    newer.desc.struct_size = sizeof newer;
    stw_plan *plan = NULL;
    if (stw_jagged_bwd_plan(context, &newer.desc, &plan)) complain("a zero tail: %s", stw_last_error());
    stw_plan_destroy(plan);
    for (size_t n = 0; n < sizeof newer.tail; ++n) {
        newer.tail[n] = 1;
        expect_refusal("a tail", &newer.desc, STW_E_UNSUPPORTED, WORDS("struct_size"));
        newer.tail[n] = 0;
    }
    no_complaints();
}

/* Every type of every op, against the header's sentence. */
static void every_type(void **state) {
    (void)state;
    for (int which = 0; which < J_ATTENTION; ++which) {
        const int any = which == J_SUM || which == J_SELECT || which == J_SELECT_RAG || which == J_THRESHOLD ||
                        which == J_RESHAPE || which == J_TO_PADDED || which == J_FROM_PADDED;
        for (int type = -1; type <= 11; ++type) {
            for (int grad = 0; grad <= 4; ++grad) {
                stw_jagged_desc desc = jbase_desc((jbase)which, NULL);
                desc.dtype = (stw_dtype)type;
                desc.dx_dtype = (stw_dtype)grad;
                stw_plan *plan = NULL;
                const int real = type >= STW_F16 && type <= STW_F32;
                const int legal =
                    (real || (any && type >= STW_F64 && type <= STW_I64)) && (grad == 0 || (grad == STW_F32 && real));
                if (grad == type) continue; /* the tensor's own type by name: not promised either way */
                const stw_status status = stw_jagged_bwd_plan(context, &desc, &plan);
                const int exists = type >= STW_F16 && type <= STW_I64;
                if (status != (legal ? STW_OK : exists ? STW_E_UNSUPPORTED : STW_E_INVALID))
                    complain("problem %d, dtype %d, dx_dtype %d: %s \"%s\"", which, type, grad, stw_status_name(status),
                             status ? stw_last_error() : "");
                stw_plan_destroy(plan);
            }
        }
    }
    no_complaints();
}

/* Edges of ranges that must be accepted. */
static void accepted(void **state) {
    (void)state;
    static const struct {
        jbase from;
        set sets[4];
    } good[] = {
        {J_GELU, {JSET(components, 0)}},
        {J_GELU, {JSET(components, 0), JSET(axis[0].total, 0), JSET(axis[0].size, 0)}},
        {J_GELU, {JSET(outer, 0), JSET(inner, 0)}},
        {J_GELU, {JSET(components, INT32_MAX)}},
        {J_GELU, {JSET(axis[0].total, TWO_48 - 1), JSET(axis[0].size, TWO_48 - 1)}},
        {J_GELU, {JSET(axis[0].size, 100)}}, /* longer than total: no component can be */
        {J_SELECT, {JSET(index, 2)}},
        {J_SELECT, {JSET(index, -3)}},
        {J_SELECT, {JSET(dim_size, 0), JSET(dim_after, 0), JSET(index, 5)}},
        {J_SELECT_RAG, {JSET(index, INT64_MAX)}}, /* lengths are device data */
        {J_SELECT_RAG, {JSET(index, -INT64_MAX)}},
        {J_SOFTMAX, {JSET(dim_size, 6), JSET(dim_after, 0)}},
        {J_SOFTMAX, {JSET(dim_size, 1), JSET(dim_after, 6)}},
        {J_LOG_SOFTMAX, {JSET(dim_size, 1), JSET(dim_after, 6)}},
        {J_LAYER_NORM, {JSET(dim_size, 3)}},
        {J_RMS_NORM, {JSET(dim, STW_DIM_RAGGED), JSET(flags, 0)}},
        {J_LAYER_NORM, {JSET(dim, STW_DIM_RAGGED), JSET(flags, 0), JSET(outputs, 1)}},
        {J_RMS_NORM, {JSET(dim_size, 3)}},
        {J_RMS_NORM, {JSET(dtype, STW_BF16), JSET(weight_dtype, STW_F32), JSET(accumulate, 4)}},
        {J_LAYER_NORM, {JSET(dim, STW_DIM_INNER), JSET(dim_size, 6), JSET(dim_after, 1)}},
        {J_LAYER_NORM, {JSET(dtype, STW_BF16), JSET(weight_dtype, STW_F32), JSET(accumulate, 12)}},
        {J_LINEAR, {JSET(dweight_dtype, STW_F32), JSET(accumulate, STW_JAGGED_DWEIGHT)}},
        {J_LINEAR, {JSET(outputs, STW_JAGGED_DBIAS)}},
        {J_LINEAR, {JSET(flags, STW_JAGGED_FULL)}},
        {J_TO_PADDED, {JSET(padded, 0)}},
        {J_FROM_PADDED, {JSET(padded, 0)}},
        {J_THRESHOLD, {JSET_REAL(threshold, -0.0)}},
        {J_THRESHOLD, {JSET_REAL(threshold, 1e300)}},
        {J_THRESHOLD, {JSET(dtype, STW_U8), JSET_REAL(threshold, 0.5)}},
        {J_MATMUL, {JSET(axis[1].size, 0)}},
        {J_MATMUL, {JSET(storage, 1), JSET(grad_storage, 1)}},
        {J_MATMUL, {JSET(ragged_axes, 0), JSET(axis[0].total, 0)}}, /* a dense stack */
        {J_MATMUL, {JSET_FLAG(STW_JAGGED_HAS_USED)}},
        {J_GELU, {JSET(storage, 1)}},
        {J_RESHAPE, {JSET(grad_storage, 1)}},
    };
    for (size_t n = 0; n < sizeof good / sizeof good[0]; ++n) {
        stw_jagged_desc desc = jbase_desc(good[n].from, NULL);
        stw_plan *plan = NULL;
        apply(&desc, good[n].sets, 4);
        if (stw_jagged_bwd_plan(context, &desc, &plan))
            complain("accepted row %zu (problem %d): \"%s\"", n, (int)good[n].from, stw_last_error());
        char text[2048];
        if (plan && stw_plan_describe(plan, text, sizeof text, NULL)) complain("%s", stw_last_error());
        stw_plan_destroy(plan);
    }
    no_complaints();
}

static int open_context(void **state) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    (void)state;
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    return stw_context_create(&opts, &context) != STW_OK;
}

static int close_context(void **state) {
    (void)state;
    stw_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),     cmocka_unit_test(every_limit),  cmocka_unit_test(attention_descriptors),
        cmocka_unit_test(null_pointers), cmocka_unit_test(struct_sizes), cmocka_unit_test(every_type),
        cmocka_unit_test(accepted),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
