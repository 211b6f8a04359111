/* SPDX-License-Identifier: MIT
 *
 * Runs and comparisons that several tests of the oracle share: see compare.h. */
#include "tests/reference/compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

const stw_ref_mode baseline_mode = {.f32 = 1, .seed = 2, .exp2_form = 1};

stw_ref_result backward(const fixture *f, const stw_ref_mode *mode) {
    stw_ref_result r;
    assert_int_equal(stw_ref_attn_bwd(&f->desc, &f->args, mode, &r), STW_OK);
    return r;
}

void assert_same(const double *a, const double *b, int64_t count) {
    for (int64_t n = 0; n < count; ++n)
        if (a[n] != b[n] && !(isnan(a[n]) && isnan(b[n]))) fail_msg("element %lld: %g, %g", (long long)n, a[n], b[n]);
}

void assert_same_result(const fixture *f, const stw_ref_result *a, const stw_ref_result *b) {
    const stw_attn_desc *d = &f->desc;
    assert_same(a->dq, b->dq, a->rows_q * d->heads_q * d->head_dim_qk);
    assert_same(a->dk, b->dk, a->rows_kv * d->heads_kv * d->head_dim_qk);
    assert_same(a->dv, b->dv, a->rows_kv * d->heads_kv * d->head_dim_v);
    const int64_t *e = a->bias_extent;
    if (a->dbias) assert_same(a->dbias, b->dbias, e[0] * e[1] * e[2] * e[3]);
    if (a->dsink) assert_same(a->dsink, b->dsink, d->heads_q);
}

void assert_all(const double *values, int64_t count, double expected) {
    for (int64_t n = 0; n < count; ++n)
        if (values[n] != expected) fail_msg("element %lld: %g is not %g", (long long)n, values[n], expected);
}

fixture blind_rows(void) {
    fixture f = fixture_start();
    f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f.desc.max_seq_q = 6;
    f.desc.max_seq_kv = 3;
    f.desc.flags = STW_ATTN_DLSE | STW_ATTN_SINK;
    f.desc.outputs = ALL_ROWS | STW_OUT_DSINK;
    fixture_build(&f);
    return f;
}
