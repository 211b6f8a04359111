/* SPDX-License-Identifier: MIT
 *
 * The gradients of `sternway run` against the references of the file. The rule and the judge are those of the
 * conformance suite (accuracy.h), with the file's values in the place of the float64 reference. The permitted
 * error comes from the problem and never from the file, but for what storing the references may have cost:
 * half an ulp of their own type. Where out and lse were computed, the forward's rounding is added. */
#include "run.h"

#include "common/dtype.h"
#include "common/attn_packed.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what another forward may change: where `sternway run` computed out and lse itself, the file's references
 * were made from others, and the gradients may move for that. The float64 reference's own forward is stored in
 * four ways that a good forward may end up with, and the float64 backward of each is compared with that of the
 * forward not rounded at all. Neither the library's results nor the file's references enter. */

enum { RUN_DRAWS = 4 };

/* -1..1, the same on every machine. */
/* How far the gradients move when O is rounded to its type and LSE by one ulp. */
typedef struct run_share {
    double max[STW_GRAD_COUNT], rms[STW_GRAD_COUNT];
} run_share;

static double noise(uint64_t index, int draw) {
    uint64_t x = (index + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)draw << 56;
    x = (x ^ x >> 31) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 29) * UINT64_C(0x94D049BB133111EB);
    return (double)(int64_t)(x ^ x >> 32) * 0x1p-63;
}

/* Row and head of the query side to an index of lse, [B,H,S] or [H,T]. */
static int64_t lse_index(const stw_attn_desc *d, int64_t rows, int64_t row, int64_t head) {
    if (stw_attn_is_packed(d, 0)) return head * rows + row;
    return (row / d->max_seq_q * d->heads_q + head) * d->max_seq_q + row % d->max_seq_q;
}

/* Draw 0 rounds to nearest; the others are off by up to one ulp before that: a forward rounds its operands.
 */
static void store_draw(const run_problem *p, const stw_ref_result *forward, int draw, const stw_attn_args *args) {
    const stw_attn_desc *d = &p->desc;
    const stw_dtype number = stw_dtype_of_rows(d->dtype);
    int64_t rows = forward->rows_q, count = rows * d->heads_q;
    for (int64_t i = 0; i < count * d->head_dim_v; ++i) {
        double value = forward->out[i];
        if (draw && isfinite(value)) value += stw_ulp(value, d->dtype) * noise((uint64_t)i, draw);
        stw_store_f64(args->out, i, d->dtype, value);
    }
    for (int64_t i = 0; i < count; ++i) {
        double value = forward->lse[i];
        if (draw && isfinite(value)) value += stw_ulp(value, number) * noise((uint64_t)i, draw + RUN_DRAWS);
        stw_store_f64(args->lse, lse_index(d, rows, i % rows, i / rows), number, value);
    }
}

/* Delta of the forward as it is: what nothing was rounded for. */
static void store_delta(const run_problem *p, const stw_ref_result *forward, const stw_attn_args *args) {
    const stw_attn_desc *d = &p->desc;
    const stw_dtype number = stw_dtype_of_rows(d->dtype);
    int64_t rows = forward->rows_q, dim = d->head_dim_v;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t h = 0; h < d->heads_q; ++h) {
            int64_t first = (row * d->heads_q + h) * dim, at = lse_index(d, rows, row, h);
            double dot = 0;
            for (int64_t c = first; c < first + dim; ++c)
                dot += forward->out[c] * stw_load_f64(args->dout, c, d->dtype);
            if (args->dlse) dot -= stw_load_f64(args->dlse, at, number);
            stw_store_f64(args->delta, at, number, dot);
        }
}

static const double *values_of(const stw_ref_result *r, int g) {
    const double *values[STW_GRAD_COUNT] = {r->dq, r->dk, r->dv, r->dbias, r->dsink};
    return values[g];
}

/* Raises the share to what this draw moved. */
static void measure(const run_problem *p, const stw_ref_result *drawn, const stw_ref_result *exact, run_share *share) {
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        if (!p->references[g] || !values_of(drawn, g)) continue;
        double worst = 0, squares = 0;
        uint64_t n = p->references[g]->elements;
        for (uint64_t i = 0; i < n; ++i) {
            double error = fabs(values_of(drawn, g)[i] - values_of(exact, g)[i]);
            if (!isfinite(error)) continue; /* rows of nobody, real infinities */
            worst = fmax(worst, error);
            squares += error * error;
        }
        share->max[g] = fmax(share->max[g], worst);
        if (n) share->rms[g] = fmax(share->rms[g], sqrt(squares / (double)n));
    }
}

/* The backward with delta given. */
static stw_status exact_backward(const run_problem *p, const stw_attn_args *args, stw_ref_result *result_out) {
    const stw_ref_mode mode = {0};
    stw_attn_desc desc = p->desc;
    stw_attn_args given = *args;
    desc.flags = (desc.flags & ~STW_ATTN_DLSE) | STW_ATTN_GIVEN_DELTA;
    desc.delta = desc.lse;
    given.dlse = NULL;
    return stw_ref_attn_bwd(&desc, &given, &mode, result_out);
}

static stw_status measure_draws(run_problem *p, stw_attn_args *args, run_share *share) {
    const stw_ref_mode mode = {0};
    stw_ref_result forward = {0}, exact = {0};
    stw_status status = stw_ref_attn_fwd(&p->desc, args, &forward);
    if (!status) {
        store_draw(p, &forward, 0, args);
        store_delta(p, &forward, args);
        status = exact_backward(p, args, &exact);
    }
    for (int draw = 0; draw < RUN_DRAWS && !status; ++draw) {
        stw_ref_result drawn = {0};
        store_draw(p, &forward, draw, args);
        status = stw_ref_attn_bwd(&p->desc, args, &mode, &drawn);
        if (!status) measure(p, &drawn, &exact, share);
        stw_ref_free(&drawn);
    }
    stw_ref_free(&forward);
    stw_ref_free(&exact);
    return status;
}

static int run_forward_share(run_problem *p, run_share *share_out) {
    stw_attn_args args = run_host_args(p);
    args.out = calloc(1, p->arrays[RUN_OUT].capacity);
    args.lse = calloc(1, p->arrays[RUN_LSE].capacity);
    args.delta = calloc(1, p->arrays[RUN_LSE].capacity);
    stw_status status = STW_E_NO_MEMORY;
    if (args.out && args.lse && args.delta) status = measure_draws(p, &args, share_out);
    free(args.out);
    free(args.lse);
    free(args.delta);
    return status ? run_refuse(p, STW_EXIT_FAILED, "the reference failed: %s", stw_status_name(status)) : 0;
}

/* ---- comparison ---- */

double run_load_float(const void *data, stw_st_type type, uint64_t index) {
    const char *at = (const char *)data + index * (stw_st_type_bits(type) / 8);
    double wide;
    float single;
    uint16_t half;
    switch (type) {
    case STW_ST_F64: memcpy(&wide, at, sizeof wide); return wide;
    case STW_ST_F32: memcpy(&single, at, sizeof single); return single;
    case STW_ST_F16: memcpy(&half, at, sizeof half); return stw_f32_from_f16(half);
    case STW_ST_BF16: memcpy(&half, at, sizeof half); return stw_f32_from_bf16(half);
    default: return NAN;
    }
}

/* What storing a value in the reference's type may have cost: half an ulp. */
static double half_ulp(double x, stw_st_type type) {
    stw_dtype dtype = run_dtype_of(type);
    return dtype == STW_DTYPE_NONE ? 0.0 : 0.5 * stw_ulp(x, dtype);
}

/* The elements of gradient g that belong to a sequence: [first, end). */
static void owned(const run_problem *p, int g, uint64_t *first_out, uint64_t *end_out) {
    const run_array *x = &p->arrays[RUN_DQ + g];
    *first_out = 0;
    *end_out = p->references[g]->elements;
    if (g > STW_GRAD_DV || x->rank != 3 || x->shape[0] == 0) return;
    int side = g != STW_GRAD_DQ;
    uint64_t row = *end_out / (uint64_t)x->shape[0];
    *first_out = row * (uint64_t)p->first_row[side];
    *end_out = row * (uint64_t)p->end_row[side];
}

/* max|ref| over finite values, and the RMS of what storing them may have cost. */
static double largest(const run_problem *p, int g, double *rounding_out) {
    const stw_st_tensor *reference = p->references[g];
    uint64_t first, end;
    double top = 0, squares = 0;
    owned(p, g, &first, &end);
    for (uint64_t i = first; i < end; ++i) {
        double wanted = run_load_float(reference->data, reference->type, i);
        if (!isfinite(wanted)) continue;
        top = fmax(top, fabs(wanted));
        double rounding = half_ulp(wanted, reference->type);
        squares += rounding * rounding;
    }
    *rounding_out = end > first ? sqrt(squares / (double)(end - first)) : 0.0;
    return top;
}

/* ---- --tolerance ------------------------------------------------------------------------------- */

static void check_tolerance(run_problem *p, int g, double tolerance) {
    const run_array *x = &p->arrays[RUN_DQ + g];
    const stw_st_tensor *reference = p->references[g];
    stw_accuracy *a = &p->results[g].accuracy;
    uint64_t first, end;
    double rounding, top = largest(p, g, &rounding);
    owned(p, g, &first, &end);
    a->worst = -1;
    for (uint64_t i = first; i < end; ++i) {
        double value = run_load_float(x->host, x->type, i);
        double wanted = run_load_float(reference->data, reference->type, i);
        int same = value == wanted || (isnan(value) && isnan(wanted)); /* infinities included */
        double error = same ? 0.0 : isfinite(value) && isfinite(wanted) ? fabs(value - wanted) : INFINITY;
        a->square_sum += error * error;
        if (error <= a->max_error && a->worst >= 0) continue;
        a->max_error = error;
        a->worst = (int64_t)i;
        a->worst_value = value;
        a->worst_ref = wanted;
    }
    a->elements = (int64_t)(end - first);
    a->rms_error = a->elements ? sqrt(a->square_sum / (double)a->elements) : 0.0;
    a->max_allowed = top > 0 ? tolerance * top : tolerance;
    a->pass = a->max_error <= a->max_allowed;
}

/* ---- the accuracy rule ------------------------------------------------------------------------- */

/* Puts the file's values where the expectation has float64 ones; both are in the order of the tensor. */
static void replace_reference(const run_problem *p, int g, stw_expectation *expectation) {
    double *const values[STW_GRAD_COUNT] = {expectation->reference.dq, expectation->reference.dk,
                                            expectation->reference.dv, expectation->reference.dbias,
                                            expectation->reference.dsink};
    const stw_st_tensor *reference = p->references[g];
    uint64_t first, end;
    owned(p, g, &first, &end);
    for (uint64_t i = first; i < end; ++i) values[g][i] = run_load_float(reference->data, reference->type, i);
}

/* Small tensors: squares in units of the allowed ones, so that a tensor of large values does not outweigh
 * the others of the file. */
static void add_to_pool(const stw_accuracy *a, stw_accuracy_pool *pool) {
    if (!a->small || !(a->baseline_square_sum > 0) || !isfinite(a->max_error)) return;
    stw_accuracy unit = *a;
    unit.square_sum = a->square_sum / a->baseline_square_sum * (double)a->elements;
    unit.baseline_square_sum = (double)a->elements;
    stw_pool_add(pool, &unit);
}

static stw_status judge(run_problem *p, int g, stw_expectation *expectation, const run_share *share) {
    stw_accuracy *a = &p->results[g].accuracy;
    stw_attn_args args = run_host_args(p);
    double rounding, top = largest(p, g, &rounding);
    expectation->grad[g].e_max += share->max[g];
    expectation->grad[g].e_rms += share->rms[g];
    replace_reference(p, g, expectation);
    stw_status status = stw_judge(&p->desc, &args, expectation, (stw_grad)g, NULL, a);
    if (status) return status;
    int zero = expectation->grad[g].max_ref == 0; /* then e_max is not part of the bound */
    double wider = a->rms_allowed + rounding;
    a->max_allowed += half_ulp(top, p->references[g]->type) + (zero ? 2 * share->max[g] : 0.0);
    if (a->rms_allowed > 0) a->baseline_square_sum *= wider / a->rms_allowed * (wider / a->rms_allowed);
    a->rms_allowed = wider;
    a->pass = a->max_error <= a->max_allowed && (a->small || a->rms_error <= a->rms_allowed);
    return STW_OK;
}

static int check_rule(run_problem *p, stw_accuracy_pool *pool) {
    stw_attn_args args = run_host_args(p);
    run_share share = {0};
    stw_expectation expectation;
    /* plain loops: seconds to minutes for problems that take the library milliseconds */
    stw_tool_progress(
        "%s: the error that is allowed, 9 evaluations of %.3g query-key pairs (--tolerance X skips this)", p->name,
        (double)p->desc.batch * (double)p->desc.heads_q * (double)p->desc.max_seq_q * (double)p->desc.max_seq_kv);
    if (p->compute_forward && run_forward_share(p, &share)) return p->exit_status;
    stw_status status = stw_expect_attn_bwd(&p->desc, &args, &expectation);
    for (int g = 0; g < STW_GRAD_COUNT && !status; ++g) {
        if (!p->references[g]) continue;
        status = judge(p, g, &expectation, &share);
        if (!status) add_to_pool(&p->results[g].accuracy, pool);
        if (status) stw_expectation_free(&expectation);
    }
    if (status) return run_refuse(p, STW_EXIT_FAILED, "the reference failed: %s", stw_status_name(status));
    stw_expectation_free(&expectation);
    return 0;
}

int run_check(run_problem *problem, const run_options *options, stw_accuracy_pool *pool) {
    int given = 0;
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        if (!problem->references[g]) continue;
        given = problem->results[g].given = 1;
        if (options->tolerance >= 0) check_tolerance(problem, g, options->tolerance);
    }
    return given && options->tolerance < 0 ? check_rule(problem, pool) : 0;
}
