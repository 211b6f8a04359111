/* SPDX-License-Identifier: MIT
 *
 * Strides at plan time: each tensor by name with a negative, zero, overflowing stride in each dimension;
 * gradients that overlap themselves; the bias and its gradient; the lse family. */
#include "misuse.h"

#include <stdio.h>

typedef struct tensor {
    const char *name;
    size_t offset;         /* of its stw_attn_strides                        */
    int broadcast;         /* may be                                         */
    int backward_output;   /* written by the backward: must not overlap itself */
    int backward, forward; /* used by these calls                            */
} tensor;

#define TENSOR(name, ...) {#name, offsetof(stw_attn_desc, name), __VA_ARGS__}

static const tensor tensors[] = {
    TENSOR(q, 0, 0, 1, 1),    TENSOR(k, 0, 0, 1, 1),    TENSOR(v, 0, 0, 1, 1),     TENSOR(out, 0, 0, 1, 1),
    TENSOR(dout, 0, 0, 1, 0), TENSOR(dq, 0, 1, 1, 0),   TENSOR(dk, 0, 1, 1, 0),    TENSOR(dv, 0, 1, 1, 0),
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

/* Both plans: refused by those that use the tensor (INVALID, or UNSUPPORTED where 2 is given), by its name and
 * dimension; accepted by the other. */
static void judge(fixture *f, const stw_attn_desc *desc, const tensor *t, const char *dim, const char *value,
                  int backward, int forward) {
    static const stw_status expected[] = {STW_OK, STW_E_INVALID, STW_E_UNSUPPORTED};
    char what[80], field[40];
    snprintf(what, sizeof what, "%s.%s %s", t->name, dim, value ? value : "");
    snprintf(field, sizeof field, "%s.%s", t->name, dim);
    stw_plan *out = NULL;
    text_forget();
    stw_status status = stw_attn_bwd_plan(f->context, desc, &out);
    if (backward)
        refused(what, status, expected[backward], "attn_bwd", WORDS(field, value));
    else if (status)
        complain("%s: attn_bwd refuses: %s", what, stw_last_error());
    stw_plan_destroy(out);
    out = NULL;
    text_forget();
    status = stw_attn_fwd_plan(f->context, desc, &out);
    if (forward)
        refused(what, status, expected[forward], "attn_fwd", WORDS(field, value));
    else if (status)
        complain("%s: attn_fwd refuses: %s", what, stw_last_error());
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
            judge(&f, &desc, t, dims[dim], "0", t->broadcast ? 0 : t->backward_output ? 1 : 2 * t->backward,
                  forward_output(t) ? 1 : 2 * t->forward);
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

/* The incoming gradient of a sum() is one number seen everywhere: refused by name. */
static void expanded_dout(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_attn_desc desc = f.desc;
    desc.dout = (stw_attn_strides){0, 0, 0};
    stw_plan *out = NULL;
    text_forget();
    refused("expanded dO", stw_attn_bwd_plan(f.context, &desc, &out), STW_E_UNSUPPORTED, "attn_bwd",
            WORDS("dout", "0", "broadcast"));
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
            if (t->backward_output)
                refused(t->name, status, STW_E_INVALID, "attn_bwd", WORDS(t->name, "overlap"));
            else if (status)
                complain("%s: attn_bwd refuses: %s", t->name, stw_last_error());
            stw_plan_destroy(out);
            out = NULL;
            status = stw_attn_fwd_plan(f.context, &desc, &out);
            if (forward_output(t))
                refused(t->name, status, STW_E_INVALID, "attn_fwd", WORDS(t->name, "overlap"));
            else if (status)
                complain("%s: attn_fwd refuses: %s", t->name, stw_last_error());
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
        cmocka_unit_test(expanded_dout),
        cmocka_unit_test(outputs_that_overlap_themselves),
        cmocka_unit_test(bias_strides),
        cmocka_unit_test(packed_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
