/* SPDX-License-Identifier: MIT
 *
 * Attention in f64: every feature on every variant under the accuracy rule, whose reference is in long double
 * then; and what torch.autograd.gradcheck does, without the oracle: the gradients of stw_attn_bwd against
 * central differences of the loss sum(dO*O) + sum(dLSE*LSE) through stw_attn_fwd.
 *
 * Steps. The derivative is (8(f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h with h = 2^-9, wrong by
 * h^4/30 = 5e-13 of the fifth derivative and by the forward's rounding of about 100 * 2^-53 / h = 6e-12;
 * derivatives of fifth order stay below 1000 at these sizes. f32 anywhere on the way would be wrong by 1e-7.
 */
#include "common/dtype.h"
#include "tests/cpu/harness.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEP      0x1p-9
#define TOLERANCE 2e-9

static fixture start(int s) {
    fixture f = fixture_start();
    f.desc.dtype = STW_F64;
    setups[s].apply(&f);
    if (f.desc.bias_dtype) f.desc.bias_dtype = STW_F64;
    f.desc.outputs = harness_all_outputs(&f);
    return f;
}

/* ---- against the reference ----------------------------------------------------------------------------*/

static void run_everywhere(fixture *f, const char *name) {
    stw_accuracy_pool pools[16] = {{0}};
    stw_expectation expectation;
    fixture_build(f);
    harness_poison_unseen(f);
    assert_int_equal(stw_expect_attn_bwd(&f->desc, &f->args, &expectation), STW_OK);
    for (int v = 0; v < harness_variant_count; ++v) {
        char label[160];
        double ratio;
        if (!harness_contexts[v]) continue;
        snprintf(label, sizeof label, "%s, %s, f64", harness_variants[v], name);
        harness_poison_outputs(f);
        harness_run(harness_contexts[v], f);
        harness_judge(f, &expectation, &pools[v], label);
        if (pools[v].elements && !stw_pool_pass(&pools[v], &ratio))
            fail_msg("%s: RMS of all small tensors is %.3g times what is allowed", label, ratio);
    }
    stw_expectation_free(&expectation);
    fixture_free(f);
}

static void features(void **state) {
    (void)state;
    for (int s = 0; s < setups_count; ++s) {
        fixture f = start(s);
        run_everywhere(&f, setups[s].name);
    }
}

/* More than one tile each way, all partial. */
static void features_over_tiles(void **state) {
    (void)state;
    for (int s = 0; s < setups_count; ++s) {
        fixture f = start(s);
        if (f.args.cu_seqlens_q || f.args.cu_seqlens_kv || f.args.used_q || f.args.q_offsets) continue;
        f.desc.batch = 1;
        f.desc.max_seq_q += 64;
        f.desc.max_seq_kv += 130;
        f.desc.head_dim_qk += 17;
        f.desc.head_dim_v += 30;
        run_everywhere(&f, setups[s].name);
    }
}

/* scale_f64 and softcap_f64 hold what no float does, and win over scale and softcap. */
static void scale_and_softcap_in_f64(void **state) {
    (void)state;
    for (int both = 0; both < 2; ++both) {
        fixture f = fixture_start();
        f.desc.dtype = STW_F64;
        f.desc.scale_f64 = 0.3;
        f.desc.softcap_f64 = 1.7;
        if (both) f.desc.flags |= STW_ATTN_HAS_SCALE, f.desc.scale = 5, f.desc.softcap = 9;
        run_everywhere(&f, "scale_f64, softcap_f64");
    }
}

/* ---- against differences of the forward ---------------------------------------------------------------*/

typedef struct differences {
    fixture f;
    stw_plan *plan;
    void *workspace;
    size_t size;
    double biggest; /* |gradient| seen: a test of zeros would show nothing */
} differences;

static double number(const void *data, int64_t index) { return stw_load_f64(data, index, STW_F64); }

static double loss_of(differences *t) {
    const fixture *f = &t->f;
    const stw_attn_desc *d = &f->desc;
    double loss = 0;
    assert_int_equal(stw_attn_fwd(t->plan, &f->args, t->workspace, t->size, NULL), STW_OK);
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t n = 0; n < fixture_used_q(f, b) * d->heads_q; ++n) {
            int64_t i = n / d->heads_q, h = n % d->heads_q;
            double lse = number(f->args.lse, fixture_row_index(f, &d->lse, b, h, i));
            for (int64_t e = 0; e < d->head_dim_v; ++e)
                loss += number(f->args.dout, fixture_index(f, FIXTURE_DOUT, b, h, i, e)) *
                        number(f->args.out, fixture_index(f, FIXTURE_OUT, b, h, i, e));
            if ((d->flags & STW_ATTN_DLSE) && isfinite(lse)) /* no key: a constant */
                loss += number(f->args.dlse, fixture_row_index(f, &d->dlse, b, h, i)) * lse;
        }
    return loss;
}

static double loss_at(differences *t, double *x, double step) {
    double kept = *x;
    *x = kept + step;
    double loss = loss_of(t);
    *x = kept;
    return loss;
}

static void compare(differences *t, const char *tensor, const void *input, int64_t index, double gradient) {
    double *x = (double *)(uintptr_t)input + index;
    double near = loss_at(t, x, STEP) - loss_at(t, x, -STEP);
    double far = loss_at(t, x, 2 * STEP) - loss_at(t, x, -2 * STEP);
    double expected = (8 * near - far) / (12 * STEP);
    t->biggest = fmax(t->biggest, fabs(gradient));
    if (!(fabs(expected - gradient) <= TOLERANCE * (1 + fabs(expected))))
        fail_msg("%s of element %lld: %.15g by differences, %.15g by the backward", tensor, (long long)index, expected,
                 gradient);
}

static void compare_rows(differences *t, fixture_tensor tensor, fixture_tensor gradient, const void *input,
                         const void *output) {
    const fixture *f = &t->f;
    const stw_attn_desc *d = &f->desc;
    static const char *const names[] = {"dq", "dk", "dv"};
    int kv = tensor != FIXTURE_Q;
    int64_t heads = kv ? d->heads_kv : d->heads_q, dim = tensor == FIXTURE_V ? d->head_dim_v : d->head_dim_qk;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t i = 0; i < (kv ? fixture_used_kv(f, b) : fixture_used_q(f, b)); ++i)
            for (int64_t n = 0; n < heads * dim; ++n)
                compare(t, names[tensor], input, fixture_index(f, tensor, b, n / dim, i, n % dim),
                        number(output, fixture_index(f, gradient, b, n / dim, i, n % dim)));
}

/* dBias has the bias's own shape: an element is compared once however many pairs share it. */
static void compare_bias(differences *t) {
    const fixture *f = &t->f;
    const stw_attn_desc *d = &f->desc;
    const int64_t *bias = &d->bias.batch, *dbias = &d->dbias.batch;
    const int64_t extent[4] = {bias[0] ? d->batch : 1, bias[1] ? d->heads_q : 1, bias[2] ? d->max_seq_q : 1,
                               bias[3] ? d->max_seq_kv : 1};
    for (int64_t n = 0; n < extent[0] * extent[1] * extent[2] * extent[3]; ++n) {
        int64_t rest = n, at = 0, to = 0;
        for (int k = 3; k >= 0; --k) {
            at += rest % extent[k] * bias[k];
            to += rest % extent[k] * dbias[k];
            rest /= extent[k];
        }
        compare(t, "dbias", f->args.bias, at, number(f->args.dbias, to));
    }
}

static void gradients_are_differences(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 1);
    for (int s = 0; s < setups_count; ++s) {
        differences t = {.f = start(s)};
        fixture *f = &t.f;
        fixture_build(f);
        assert_int_equal(stw_attn_fwd_plan(context, &f->desc, &t.plan), STW_OK);
        t.size = stw_plan_workspace_size(t.plan);
        t.workspace = aligned_alloc(256, (t.size + 511) / 256 * 256);
        loss_of(&t); /* the library's own out and LSE go into its backward */
        harness_run(context, f);
        compare_rows(&t, FIXTURE_Q, FIXTURE_DQ, f->args.q, f->args.dq);
        compare_rows(&t, FIXTURE_K, FIXTURE_DK, f->args.k, f->args.dk);
        compare_rows(&t, FIXTURE_V, FIXTURE_DV, f->args.v, f->args.dv);
        if (f->desc.outputs & STW_OUT_DBIAS) compare_bias(&t);
        for (int64_t h = 0; f->desc.outputs & STW_OUT_DSINK && h < f->desc.heads_q; ++h)
            compare(&t, "dsink", f->args.sink, h, number(f->args.dsink, h));
        if (!(t.biggest > 0.01)) fail_msg("%s: no gradient above 0.01", setups[s].name);
        free(t.workspace);
        stw_plan_destroy(t.plan);
        fixture_free(f);
    }
    stw_context_destroy(context);
}

/* NaN in the first keys: later tiles with finite keys must not bring LSE and O back. */
static void nan_of_early_keys_stays(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.dtype = STW_F64;
    f.desc.max_seq_kv = 200;
    fixture_build(&f);
    differences t = {.f = f};
    stw_context *context = harness_context(NULL, 1);
    for (int64_t j = 0; j < 70; ++j)
        for (int64_t h = 0; h < f.desc.heads_kv; ++h)
            ((double *)(uintptr_t)f.args.k)[fixture_index(&f, FIXTURE_K, 0, h, j, 0)] = NAN;
    assert_int_equal(stw_attn_fwd_plan(context, &f.desc, &t.plan), STW_OK);
    t.size = stw_plan_workspace_size(t.plan);
    t.workspace = aligned_alloc(256, (t.size + 511) / 256 * 256);
    loss_of(&t);
    assert_true(isnan(number(f.args.lse, fixture_row_index(&f, &f.desc.lse, 0, 1, 2))));
    assert_true(isnan(number(f.args.out, fixture_index(&f, FIXTURE_OUT, 0, 1, 2, 0))));
    assert_false(isnan(number(f.args.lse, fixture_row_index(&f, &f.desc.lse, 1, 1, 2))));
    free(t.workspace);
    stw_plan_destroy(t.plan);
    stw_context_destroy(context);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features),
        cmocka_unit_test(features_over_tiles),
        cmocka_unit_test(scale_and_softcap_in_f64),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(nan_of_early_keys_stays),
    };
    return cmocka_run_group_tests(tests, harness_open, harness_close);
}
