/* SPDX-License-Identifier: MIT
 *
 * Strides at plan time: each tensor by name with a negative, zero, overflowing stride in each dimension;
 * gradients that overlap themselves; the bias and its gradient; the lse family. */
#include "misuse.h"

#include <stdio.h>
#include <string.h>

typedef struct tensor {
    const char *name;
    size_t offset;         /* of its stw_attn_strides                        */
    int broadcast;         /* may be, as an input                            */
    int backward_output;   /* written by the backward: must not overlap itself */
    int backward, forward; /* used by these calls                            */
} tensor;

#define TENSOR(name, ...) {#name, offsetof(stw_attn_desc, name), __VA_ARGS__}

static const tensor tensors[] = {
    TENSOR(q, 1, 0, 1, 1),    TENSOR(k, 1, 0, 1, 1),    TENSOR(v, 1, 0, 1, 1),     TENSOR(out, 1, 0, 1, 1),
    TENSOR(dout, 1, 0, 1, 0), TENSOR(dq, 0, 1, 1, 0),   TENSOR(dk, 0, 1, 1, 0),    TENSOR(dv, 0, 1, 1, 0),
    TENSOR(lse, 0, 0, 1, 1),  TENSOR(dlse, 1, 0, 1, 0), TENSOR(delta, 0, 1, 1, 0),
};
static const char *const dims[3] = {"batch", "head", "seq"};
static const char *const bias_dims[4] = {"batch", "head", "query", "key"};

static int forward_output(const tensor *t) {
    return t->offset == offsetof(stw_attn_desc, out) || t->offset == offsetof(stw_attn_desc, lse);
}

static void set_stride(stw_attn_desc *desc, size_t offset, int dim, int64_t value) {
    ((int64_t *)(void *)((char *)desc + offset))[dim] = value;
}

static int64_t get_stride(const stw_attn_desc *desc, size_t offset, int dim) {
    return ((const int64_t *)(const void *)((const char *)desc + offset))[dim];
}

/* Both plans: refused by those that use the tensor (INVALID, or UNSUPPORTED where 2 is given), by its name
 * and dimension; accepted by the other. */
static void judge(fixture *f, const stw_attn_desc *desc, const tensor *t, const char *dim, const char *value,
                  int backward, int forward) {
    static const stw_status expected[] = {STW_OK, STW_E_INVALID, STW_E_UNSUPPORTED};
    char what[80], field[40];
    snprintf(what, sizeof what, "%s.%s %s", t->name, dim, value ? value : "");
    snprintf(field, sizeof field, "%s.%s", t->name, dim);
    stw_plan *out = NULL;
    text_forget();
    stw_status status = stw_attn_bwd_plan(f->context, desc, &out);
    if (backward) refused(what, status, expected[backward], "attn_bwd", WORDS(field, value));
    else if (status) complain("%s: attn_bwd refuses: %s", what, stw_last_error());
    stw_plan_destroy(out);
    out = NULL;
    text_forget();
    status = stw_attn_fwd_plan(f->context, desc, &out);
    if (forward) refused(what, status, expected[forward], "attn_fwd", WORDS(field, value));
    else if (status) complain("%s: attn_fwd refuses: %s", what, stw_last_error());
    stw_plan_destroy(out);
}

static void each_dimension_of_each_tensor(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; ++n) {
        const tensor *t = &tensors[n];
        for (int dim = 0; dim < 3; ++dim) {
            stw_attn_desc desc = f.desc;
            set_stride(&desc, t->offset, dim, -1);
            judge(&f, &desc, t, dims[dim], "-1", 2 * t->backward, 2 * t->forward);
            set_stride(&desc, t->offset, dim, INT64_MIN);
            judge(&f, &desc, t, dims[dim], "-9223372036854775808", 2 * t->backward, 2 * t->forward);
            set_stride(&desc, t->offset, dim, 0);
            judge(&f, &desc, t, dims[dim], "0",
                  t->broadcast         ? 0
                  : t->backward_output ? 1
                                       : 2 * t->backward,
                  forward_output(t) ? 1
                  : t->broadcast    ? 0
                                    : 2 * t->forward);
            set_stride(&desc, t->offset, dim, INT64_MAX);
            judge(&f, &desc, t, dims[dim], "9223372036854775807", t->backward, t->forward);
            set_stride(&desc, t->offset, dim, INT64_MAX / 4); /* elements fit, bytes do not */
            judge(&f, &desc, t, dims[dim], NULL, t->backward, t->forward);
        }
    }
    no_complaints();
    fixture_unchanged(&f, 0);
    fixture_still_works(&f);
    fixture_close(&f);
}

/* The incoming gradient of a sum() is one number seen everywhere: the same gradients as when it is written
 * out. And every input whose head dim is strided. */
static void expanded_inputs(void **state) {
    (void)state;
    enum { DIM_Q = 8, DIM_V = 4, ROWS = 2 * 5 * 4 };
    fixture f;
    fixture_open(&f, DENSE);
    float *whole = fixture_at(&f, SLOT_dbias), *one = fixture_at(&f, SLOT_sink), good[3][ROWS * DIM_Q];
    for (int i = 0; i < ROWS * DIM_V; ++i) whole[i] = 0.75f;
    *one = 0.75f;
    for (int part = 0; part < 2; ++part) {
        stw_attn_desc desc = f.desc;
        stw_attn_args args = f.args;
        stw_plan *plan = NULL;
        args.dout = part ? one : whole;
        if (part) {
            desc.dout = (stw_attn_strides){0, 0, 0};
            desc.flags |= STW_ATTN_HAS_DIM_STRIDES;
            desc.dim = (stw_attn_dim_strides){1, 1, 1, 1, 0};
        }
        if (stw_attn_bwd_plan(f.context, &desc, &plan)) fail_msg("%s", stw_last_error());
        const size_t need = stw_plan_workspace_size(plan);
        assert_true(need <= WORKSPACE_BYTES);
        assert_int_equal(stw_attn_bwd(plan, &args, fixture_at(&f, SLOT_workspace), need, NULL), STW_OK);
        stw_plan_destroy(plan);
        const size_t bytes[3] = {ROWS * DIM_Q * 4, 2 * 7 * 2 * DIM_Q * 4, 2 * 7 * 2 * DIM_V * 4};
        const void *const now[3] = {args.dq, args.dk, args.dv};
        for (int g = 0; g < 3; ++g)
            if (part) assert_memory_equal(good[g], now[g], bytes[g]);
            else memcpy(good[g], now[g], bytes[g]);
    }
    fixture_close(&f);
}

/* Strides along head_dim: of inputs any but negative ones; an output's is 1; none without its flag. */
static void head_dim_strides(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t offset;
        int forward; /* whether the forward uses it */
    } inputs[] = {{"q", offsetof(stw_attn_desc, dim.q), 1},
                  {"k", offsetof(stw_attn_desc, dim.k), 1},
                  {"v", offsetof(stw_attn_desc, dim.v), 1},
                  {"out", offsetof(stw_attn_desc, dim.out), 1},
                  {"dout", offsetof(stw_attn_desc, dim.dout), 0}};
    fixture f;
    fixture_open(&f, FULL);
    for (int n = 0; n < 5; ++n) {
        const tensor t = {inputs[n].name, 0, 1, 0, 1, inputs[n].forward};
        stw_attn_desc desc = f.desc;
        int64_t *stride = (int64_t *)(void *)((char *)&desc + inputs[n].offset);
        char words[2][32];
        *stride = 1;
        stw_plan *out = NULL;
        text_forget();
        snprintf(words[0], sizeof words[0], "dim.%s", t.name);
        refused(words[0], stw_attn_bwd_plan(f.context, &desc, &out), STW_E_INVALID, "attn_bwd",
                WORDS(words[0], "1", "STW_ATTN_HAS_DIM_STRIDES"));
        desc.flags |= STW_ATTN_HAS_DIM_STRIDES;
        desc.dim = (stw_attn_dim_strides){1, 1, 1, 1, 1};
        judge(&f, &desc, &t, "head_dim", NULL, 0, 0);
        const int output = n == 3; /* of the forward */
        *stride = 3;
        judge(&f, &desc, &t, "head_dim", "3", 0, output ? 2 : 0);
        *stride = 0;
        judge(&f, &desc, &t, "head_dim", "0", 0, output ? 2 : 0);
        *stride = -1;
        judge(&f, &desc, &t, "head_dim", "-1", 2, 2 * t.forward);
        *stride = INT64_MAX / 2;
        judge(&f, &desc, &t, "head_dim", NULL, 1, output ? 2 : t.forward);
    }
    no_complaints();
    fixture_close(&f);
}

/* Each written tensor with two dimensions on the same elements. Read tensors may overlap themselves. */
static void outputs_that_overlap_themselves(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; ++n) {
        const tensor *t = &tensors[n];
        for (int dim = 0; dim < 3; ++dim) {
            stw_attn_desc desc = f.desc;
            /* one element short of the next row, head or batch */
            set_stride(&desc, t->offset, dim, get_stride(&desc, t->offset, dim) - 1);
            if (get_stride(&desc, t->offset, dim) == 0) continue;
            stw_plan *out = NULL;
            stw_status status = stw_attn_bwd_plan(f.context, &desc, &out);
            if (t->backward_output) refused(t->name, status, STW_E_INVALID, "attn_bwd", WORDS(t->name, "overlap"));
            else if (status) complain("%s: attn_bwd refuses: %s", t->name, stw_last_error());
            stw_plan_destroy(out);
            out = NULL;
            status = stw_attn_fwd_plan(f.context, &desc, &out);
            if (forward_output(t)) refused(t->name, status, STW_E_INVALID, "attn_fwd", WORDS(t->name, "overlap"));
            else if (status) complain("%s: attn_fwd refuses: %s", t->name, stw_last_error());
            stw_plan_destroy(out);
        }
    }
    no_complaints();
    fixture_close(&f);
}

/* The bias broadcasts over any dimension, and its gradient exactly so. */
static void bias_strides(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    const size_t bias = offsetof(stw_attn_desc, bias), dbias = offsetof(stw_attn_desc, dbias);
    const tensor b = {"bias", bias, 1, 0, 1, 1}, db = {"dbias", dbias, 0, 1, 1, 0};
    for (int dim = 0; dim < 4; ++dim) {
        stw_attn_desc desc = f.desc;
        set_stride(&desc, bias, dim, -2);
        judge(&f, &desc, &b, bias_dims[dim], "-2", 2, 2);
        set_stride(&desc, bias, dim, INT64_MAX);
        judge(&f, &desc, &b, bias_dims[dim], "9223372036854775807", dim == 3 ? 2 : 1, dim == 3 ? 2 : 1);
        desc = f.desc;
        set_stride(&desc, bias, dim, 0); /* a broadcast bias, a full gradient */
        judge(&f, &desc, &db, bias_dims[dim], NULL, 1, 0);
        set_stride(&desc, dbias, dim, 0); /* both broadcast: fine */
        judge(&f, &desc, &db, bias_dims[dim], NULL, 0, 0);
        set_stride(&desc, bias, dim, get_stride(&f.desc, bias, dim)); /* a full bias, a broadcast gradient */
        judge(&f, &desc, &db, bias_dims[dim], NULL, 1, 0);
        desc = f.desc;
        set_stride(&desc, dbias, dim, -1);
        judge(&f, &desc, &db, bias_dims[dim], "-1", 2, 0);
    }
    stw_attn_desc desc = f.desc;
    desc.bias.key = 2; /* only 1 or 0 */
    judge(&f, &desc, &b, "key", "2", 2, 2);
    desc = f.desc;
    desc.dbias.key = 2;
    judge(&f, &desc, &db, "key", "2", 2, 0);
    desc = f.desc;
    desc.dbias.query = 6; /* 7 keys: rows of the gradient overlap */
    judge(&f, &desc, &db, "query", "6", 1, 0);
    no_complaints();
    fixture_close(&f);
}

/* Masks in memory broadcast over any dimension; the texts name which. */
static void mask_strides(void **state) {
    (void)state;
    static const char *const interval_dims[4] = {"batch", "head", "key", "bound"};
    fixture f;
    fixture_open(&f, FULL);
    const size_t at[2] = {offsetof(stw_attn_desc, intervals), offsetof(stw_attn_desc, block_mask)};
    const tensor masks[2] = {{"intervals", at[0], 1, 0, 1, 1}, {"block_mask", at[1], 1, 0, 1, 1}};
    for (int which = 0; which < 2; ++which)
        for (int dim = 0; dim < 4; ++dim) {
            const char *name = (which ? bias_dims : interval_dims)[dim];
            stw_attn_desc desc = f.desc;
            desc.max_seq_q = desc.max_seq_kv = 300; /* several blocks */
            assert_int_equal(stw_layout_bshd(&desc), STW_OK);
            set_stride(&desc, at[which], dim, -2);
            judge(&f, &desc, &masks[which], name, "-2", 2, 2);
            set_stride(&desc, at[which], dim, INT64_MAX);
            judge(&f, &desc, &masks[which], name, "9223372036854775807", 1, 1);
            set_stride(&desc, at[which], dim, 0);
            judge(&f, &desc, &masks[which], name, NULL, 0, 0);
            set_stride(&desc, at[which], dim, -2);
            if (which) desc.flags &= ~STW_ATTN_BLOCK_MASK;
            else desc.interval_form = STW_INTERVALS_NONE;
            judge(&f, &desc, &masks[which], name, NULL, 0, 0); /* nobody looks at them */
        }
    no_complaints();
    fixture_close(&f);
}

/* A packed side ignores batch strides, but not those of the lse family: 0, or local rows. */
static void packed_strides(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, PACKED);
    stw_attn_desc desc = f.desc;
    desc.q.batch = desc.k.batch = desc.v.batch = desc.out.batch = -7;
    desc.dout.batch = desc.dq.batch = desc.dk.batch = desc.dv.batch = INT64_MIN;
    const tensor any = {"q", 0, 0, 0, 1, 1}, lse = {"lse", 0, 0, 0, 1, 1};
    judge(&f, &desc, &any, "batch", NULL, 0, 0);
    desc.lse.batch = -1;
    judge(&f, &desc, &lse, "batch", "-1", 2, 2);
    desc = f.desc;
    desc.lse = (stw_attn_strides){4 * 5, 5, 1}; /* local rows */
    judge(&f, &desc, &lse, "batch", NULL, 0, 0);
    desc.lse = (stw_attn_strides){0, 1, 4}; /* [T,H] */
    judge(&f, &desc, &lse, "batch", NULL, 0, 0);
    desc.lse = (stw_attn_strides){0, 9, 0};
    judge(&f, &desc, &lse, "seq", "0", 2, 1);
    no_complaints();
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_dimension_of_each_tensor),
        cmocka_unit_test(expanded_inputs),
        cmocka_unit_test(head_dim_strides),
        cmocka_unit_test(outputs_that_overlap_themselves),
        cmocka_unit_test(bias_strides),
        cmocka_unit_test(mask_strides),
        cmocka_unit_test(packed_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
