/* SPDX-License-Identifier: MIT
 *
 * Expected values and permitted errors of a jagged problem: the reference and the baselines of the accuracy
 * rule. The judging is accuracy.c's. */
#include "jagged.h"

#include "common/dtype.h"
#include "tensors.h"

#include <math.h>
#include <string.h>

static int is_exact(const stw_jagged_desc *d) {
    return d->op == STW_JAGGED_SUM || d->op == STW_JAGGED_SELECT || d->op == STW_JAGGED_THRESHOLD ||
           (d->op >= STW_JAGGED_RESHAPE && d->op <= STW_JAGGED_ATTENTION);
}

/* Errors of one baseline, as its output type holds it. */
static void add_errors(stw_jref_expectation *e, const stw_jagged_desc *desc, const stw_jref_result *base) {
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        const stw_jref_result *ref = &e->reference;
        stw_dtype dtype = stw_jref_dtype(desc, i);
        double square = 0, most = 0;
        int64_t live = 0;
        for (int64_t n = 0; ref->values[i] && n < ref->elements[i]; ++n) {
            if (ref->kinds[i][n] != STW_REF_ROW_LIVE || !isfinite(ref->values[i][n])) continue;
            double error = fabs((double)stw_round_to((float)base->values[i][n], dtype) - ref->values[i][n]);
            if (!isfinite(error)) continue;
            square += error * error;
            most = fmax(most, error);
            ++live;
        }
        if (!live) continue;
        e->e_max[i] = fmax(e->e_max[i], most);
        e->e_rms[i] = fmax(e->e_rms[i], sqrt(square / (double)live));
    }
}

static void measure(stw_jref_expectation *e) {
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i)
        for (int64_t n = 0; e->reference.values[i] && n < e->reference.elements[i]; ++n)
            if (isfinite(e->reference.values[i][n]))
                e->max_ref[i] = fmax(e->max_ref[i], fabs(e->reference.values[i][n]));
}

stw_status stw_jref_expect(const stw_jagged_desc *desc, const stw_jagged_args *args, stw_jref_expectation *e) {
    memset(e, 0, sizeof *e);
    stw_status status = stw_jref_evaluate(desc, args, 0, &e->reference);
    if (status) return status;
    measure(e);
    e->exact = is_exact(desc);
    int pointwise = stw_jagged_is_pointwise(desc->op); /* nothing to permute: two forms of exp */
    int last = e->exact ? 0 : pointwise ? 2 : STW_JREF_BASELINES;
    for (int evaluation = 1; evaluation <= last && !status; ++evaluation) {
        stw_jref_result base;
        status = stw_jref_evaluate(desc, args, evaluation, &base);
        if (!status) add_errors(e, desc, &base);
        stw_jref_free(&base);
    }
    if (status) stw_jref_expectation_free(e);
    return status;
}

void stw_jref_expectation_free(stw_jref_expectation *e) { stw_jref_free(&e->reference); }
