/* SPDX-License-Identifier: MIT
 *
 * Every gradient of every feature against central finite differences through the float64 forward, for the
 * loss sum(dO*O) + sum(dLSE*LSE).
 *
 * Steps. Inputs are f32 multiples of 2^-9 below 4, h = 2^-8: x +- h and x +- 2h are exact. The derivative is
 * (8(f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, wrong by h^4/30 f''''' = 8e-12 f''''' and by rounding of
 * about 1.5 * 2^-53 |f| / h = 4e-14 |f|.
 * Tolerance. The backward takes O and LSE rounded to f32: P is off by half an ulp of LSE (|LSE| < 16: 2^-21,
 * relative) and O.dO by 2^-24 of its terms, so every gradient by at most 2^-20 of the formula on absolute
 * values. FLOOR covers the differences: derivatives of fifth order stay below 1000 at these sizes. */
#include "tools/reference/reference.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define STEP     0x1p-8f
#define RELATIVE 0x1p-20
#define FLOOR    1e-8

static double loss_of(fixture *f) {
    const stw_attn_desc *d = &f->desc;
    const float *dout = f->args.dout;
    stw_ref_result r;
    double loss = 0;
    assert_int_equal(stw_ref_attn_fwd(d, &f->args, &r), STW_OK);
    for (int64_t b = 0; b < d->batch; ++b) {
        for (int64_t n = 0; n < fixture_used_q(f, b) * d->heads_q; ++n) {
            int64_t i = n / d->heads_q, h = n % d->heads_q, row = fixture_result_row_q(f, b, i);
            for (int64_t e = 0; e < d->head_dim_v; ++e) {
                double o = r.out[(row * d->heads_q + h) * d->head_dim_v + e];
                loss += (double)dout[fixture_index(f, FIXTURE_DOUT, b, h, i, e)] * o;
            }
            double lse = r.lse[h * r.rows_q + row];
            if ((d->flags & STW_ATTN_DLSE) && isfinite(lse)) /* no key: a constant */
                loss += (double)f->args.dlse[fixture_row_index(f, &f->desc.dlse, b, h, i)] * lse;
        }
    }
    stw_ref_free(&r);
    return loss;
}

static double loss_at(fixture *f, float *x, float step) {
    float kept = *x;
    *x = kept + step;
    assert_true(isnan(kept) || (double)*x == (double)kept + (double)step);
    double loss = loss_of(f);
    *x = kept;
    return loss;
}

static double slope_of(fixture *f, const float *input) {
    float *x = (float *)(uintptr_t)input;
    double near = loss_at(f, x, STEP) - loss_at(f, x, -STEP);
    double far = loss_at(f, x, 2 * STEP) - loss_at(f, x, -2 * STEP);
    return (8 * near - far) / (12 * (double)STEP);
}

static double biggest; /* |gradient| seen in a setup: a test of zeros would show nothing */

static void compare(const char *tensor, int64_t element, double expected, double actual, double absolute) {
    biggest = fmax(biggest, fabs(actual));
    if (fabs(expected - actual) <= RELATIVE * absolute + FLOOR) return;
    fail_msg("%s element %lld: %.12g by differences, %.12g by the backward (absolute sum %.3g)", tensor,
             (long long)element, expected, actual, absolute);
}

static void compare_rows(fixture *f, fixture_tensor tensor, const float *input, const double *grad, const double *abs) {
    const stw_attn_desc *d = &f->desc;
    const char *names[] = {"dq", "dk", "dv"};
    int kv = tensor != FIXTURE_Q;
    int64_t heads = kv ? d->heads_kv : d->heads_q, dim = tensor == FIXTURE_V ? d->head_dim_v : d->head_dim_qk;
    for (int64_t b = 0; b < d->batch; ++b) {
        for (int64_t i = 0; i < (kv ? fixture_used_kv(f, b) : fixture_used_q(f, b)); ++i) {
            int64_t row = kv ? fixture_result_row_kv(f, b, i) : fixture_result_row_q(f, b, i);
            for (int64_t n = 0; n < heads * dim; ++n) {
                int64_t element = row * heads * dim + n;
                double expected = slope_of(f, input + fixture_index(f, tensor, b, n / dim, i, n % dim));
                compare(names[tensor], element, expected, grad[element], abs[element]);
            }
        }
    }
}

static void compare_bias(fixture *f, const stw_ref_result *r) {
    const int64_t *e = r->bias_extent;
    for (int64_t n = 0; n < e[0] * e[1] * e[2] * e[3]; ++n) {
        int64_t j = n % e[3], i = n / e[3] % e[2], h = n / e[3] / e[2] % e[1], b = n / e[3] / e[2] / e[1];
        const float *x = (const float *)f->args.bias + fixture_bias_index(f, b, h, i, j);
        compare("dbias", n, slope_of(f, x), r->dbias[n], r->abs_dbias[n]);
    }
}

static void test_setup(void **state) {
    const setup *s = *state;
    fixture f = fixture_start();
    stw_ref_result r;
    f.desc.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    s->apply(&f);
    if (f.desc.bias_dtype && f.desc.bias_dtype != STW_U8) f.desc.outputs |= STW_OUT_DBIAS;
    if (f.desc.flags & STW_ATTN_SINK) f.desc.outputs |= STW_OUT_DSINK;
    fixture_build(&f);
    assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, NULL, &r), STW_OK);
    biggest = 0;
    compare_rows(&f, FIXTURE_Q, f.args.q, r.dq, r.abs_dq);
    compare_rows(&f, FIXTURE_K, f.args.k, r.dk, r.abs_dk);
    compare_rows(&f, FIXTURE_V, f.args.v, r.dv, r.abs_dv);
    if (r.dbias) compare_bias(&f, &r);
    for (int64_t h = 0; r.dsink && h < f.desc.heads_q; ++h)
        compare("dsink", h, slope_of(&f, &f.args.sink[h]), r.dsink[h], r.abs_dsink[h]);
    assert_true(biggest > 0.01);
    stw_ref_free(&r);
    fixture_free(&f);
}

int main(void) {
    struct CMUnitTest *tests = calloc((size_t)setups_count, sizeof *tests);
    if (!tests) return 1;
    for (int n = 0; n < setups_count; ++n) {
        tests[n].name = setups[n].name;
        tests[n].test_func = test_setup;
        tests[n].initial_state = (void *)(uintptr_t)&setups[n];
    }
    int failed = _cmocka_run_group_tests("finite differences", tests, (size_t)setups_count, NULL, NULL);
    free(tests);
    return failed;
}
