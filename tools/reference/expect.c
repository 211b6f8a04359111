/* SPDX-License-Identifier: MIT
 *
 * The first half of the accuracy rule: the reference, eight baselines, and how far these are from it.
 * Judging is in accuracy.c. */
#include "backward.h"
#include "tensors.h"
#include "common/dtype.h"

#include <math.h>
#include <string.h>

enum { REF_BASELINES = 8 };

const char *const stw_grad_names[STW_GRAD_COUNT] = {"dq", "dk", "dv", "dbias", "dsink"};

uint32_t stw_ref_grad_bit(stw_grad which) { return STW_OUT_DQ << which; }

stw_ref_tensor stw_ref_tensor_of(const stw_ref_problem *p, const stw_ref_result *r, stw_grad which) {
    const stw_attn_desc *d = p->desc;
    const int64_t *e = p->bias_extent;
    int64_t queries = p->group * d->max_seq_q;
    int64_t bias = e[0] * e[1] * e[2] * e[3];
    stw_ref_tensor t = {.rows = 1};
    switch (which) {
    case STW_GRAD_DQ:
        t = (stw_ref_tensor){r->dq,         r->abs_dq,  r->row_q, p->rows_q, d->heads_q * d->head_dim_qk,
                             d->max_seq_kv, d->dq_dtype};
        break;
    case STW_GRAD_DK:
        t = (stw_ref_tensor){r->dk,   r->abs_dk,  r->row_kv, p->rows_kv, d->heads_kv * d->head_dim_qk,
                             queries, d->dk_dtype};
        break;
    case STW_GRAD_DV:
        t = (stw_ref_tensor){r->dv,   r->abs_dv,  r->row_kv, p->rows_kv, d->heads_kv * d->head_dim_v,
                             queries, d->dv_dtype};
        break;
    case STW_GRAD_DBIAS:
        t = (stw_ref_tensor){r->dbias, r->abs_dbias, NULL, 1, bias, 1, d->dbias_dtype ? d->dbias_dtype : d->bias_dtype};
        if (bias > 0) t.terms = d->batch * d->heads_q * d->max_seq_q * d->max_seq_kv / bias;
        break;
    case STW_GRAD_DSINK:
    case STW_GRAD_COUNT:
        t = (stw_ref_tensor){
            r->dsink, r->abs_dsink, NULL, 1, d->heads_q, d->batch * d->max_seq_q, stw_dtype_of_rows(d->dtype)};
        break;
    }
    if (t.dtype == STW_DTYPE_NONE) t.dtype = d->dtype;
    return t;
}

/* Distance of one baseline from the reference; elements where either is not finite have none. */
static void ref_measure(const stw_ref_tensor *ref, const stw_ref_tensor *baseline, double *max_out, double *rms_out) {
    double worst = 0, squares = 0;
    int64_t elements = 0;
    for (int64_t r = 0; r < ref->rows; ++r) {
        if (ref->kinds && ref->kinds[r] == STW_REF_ROW_UNTOUCHED) continue;
        elements += ref->row_size;
        for (int64_t n = r * ref->row_size; n < (r + 1) * ref->row_size; ++n) {
            double error = fabs(baseline->values[n] - ref->values[n]);
            if (!isfinite(error)) continue;
            squares += error * error;
            if (error > worst) worst = error;
        }
    }
    *max_out = worst;
    *rms_out = elements ? sqrt(squares / (double)elements) : 0;
}

/* max|ref| over finite elements; *elements_out counts all; *finite_out: none was infinite or NaN. */
static double ref_extent(const double *values, const stw_ref_tensor *t, int64_t *elements_out, int *finite_out) {
    double top = 0;
    *elements_out = 0;
    *finite_out = 1;
    for (int64_t r = 0; r < t->rows; ++r) {
        if (t->kinds && t->kinds[r] == STW_REF_ROW_UNTOUCHED) continue;
        *elements_out += t->row_size;
        for (int64_t n = r * t->row_size; n < (r + 1) * t->row_size; ++n) {
            if (!isfinite(values[n])) *finite_out = 0;
            else if (fabs(values[n]) > top) top = fabs(values[n]);
        }
    }
    return top;
}

/* The formula on absolute values is wanted for tensors that are 0 throughout: rare, so a pass of its own. */
static stw_status ref_expect_absolute(const stw_ref_problem *p, stw_expectation *out) {
    const stw_ref_eval eval = {.absolute = 1};
    stw_ref_result *result = &out->reference;
    stw_status status = stw_ref_backward_many(p, &eval, 1, &result);
    for (int g = 0; status == STW_OK && g < STW_GRAD_COUNT; ++g) {
        stw_ref_tensor t = stw_ref_tensor_of(p, result, (stw_grad)g);
        int64_t elements;
        int finite;
        if (out->grad[g].wanted) out->grad[g].max_abs = ref_extent(t.absolute, &t, &elements, &finite);
    }
    return status;
}

stw_status stw_expect_attn_bwd(const stw_attn_desc *desc, const stw_attn_args *args, stw_expectation *out) {
    stw_ref_problem p;
    stw_ref_result baseline[REF_BASELINES], *results[REF_BASELINES + 1] = {&out->reference};
    stw_ref_eval evals[REF_BASELINES + 1] = {{.absolute = 0}};
    memset(out, 0, sizeof *out);
    memset(baseline, 0, sizeof baseline);
    stw_status status = stw_ref_problem_init(&p, desc, args, 1);
    if (status != STW_OK) return status;
    for (int n = 0; n < REF_BASELINES; ++n) {
        evals[n + 1].mode = (stw_ref_mode){.f32 = 1, .seed = (uint32_t)n / 2, .exp2_form = n % 2};
        results[n + 1] = &baseline[n];
    }
    status = stw_ref_backward_many(&p, evals, REF_BASELINES + 1, results);
    int zero_somewhere = 0;
    for (int g = 0; status == STW_OK && g < STW_GRAD_COUNT; ++g) {
        if (!(p.outputs & stw_ref_grad_bit((stw_grad)g))) continue;
        stw_ref_tensor ref = stw_ref_tensor_of(&p, &out->reference, (stw_grad)g);
        int finite;
        out->grad[g].wanted = 1;
        out->grad[g].dtype = ref.dtype;
        out->grad[g].max_ref = ref_extent(ref.values, &ref, &out->grad[g].elements, &finite);
        zero_somewhere |= finite && out->grad[g].max_ref == 0 && out->grad[g].elements > 0;
        for (int n = 0; n < REF_BASELINES; ++n) {
            stw_ref_tensor other = stw_ref_tensor_of(&p, &baseline[n], (stw_grad)g);
            double max_error, rms;
            ref_measure(&ref, &other, &max_error, &rms);
            out->grad[g].e_max = fmax(out->grad[g].e_max, max_error);
            out->grad[g].e_rms = fmax(out->grad[g].e_rms, rms);
        }
    }
    for (int n = 0; n < REF_BASELINES; ++n) stw_ref_free(&baseline[n]);
    if (status == STW_OK && zero_somewhere) status = ref_expect_absolute(&p, out);
    if (status != STW_OK) stw_expectation_free(out);
    return status;
}

void stw_expectation_free(stw_expectation *expectation) {
    stw_ref_free(&expectation->reference);
    memset(expectation, 0, sizeof *expectation);
}
