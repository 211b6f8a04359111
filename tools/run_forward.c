/* SPDX-License-Identifier: MIT
 *
 * Where `sternway run` computed out and lse itself, the file's references were made from others: how far the
 * gradients may move for that. Called by run_check.c. */
#include "run.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>

static const double *values_of(const stw_ref_result *r, int g) {
    const double *values[STW_GRAD_COUNT] = {r->dq, r->dk, r->dv, r->dbias, r->dsink};
    return values[g];
}

static void measure_share(const run_problem *p, const stw_ref_result *a, const stw_ref_result *b,
                          run_share *share) {
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        if (!p->references[g] || !values_of(a, g)) continue;
        double worst = 0, squares = 0;
        uint64_t n = p->references[g]->elements;
        for (uint64_t i = 0; i < n; ++i) {
            double error = fabs(values_of(a, g)[i] - values_of(b, g)[i]);
            if (!isfinite(error)) continue; /* gap rows, real infinities */
            if (error > worst) worst = error;
            squares += error * error;
        }
        share->max[g] = worst;
        share->rms[g] = n ? sqrt(squares / (double)n) : 0;
    }
}

/* out and lse of the float64 forward as a call stores them; delta from the unrounded out. */
static void store_forward(const run_problem *p, const stw_ref_result *forward, stw_attn_args *args,
                          float *delta, float *lse_up) {
    const stw_attn_desc *d = &p->desc;
    const run_array *out = &p->arrays[RUN_OUT];
    int packed = d->total_q > 0;
    int64_t rows = forward->rows_q, dim = d->head_dim_v;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t h = 0; h < d->heads_q; ++h) {
            const double *values = forward->out + (row * d->heads_q + h) * dim;
            int64_t first = (row * d->heads_q + h) * dim;
            double dot = 0;
            for (int64_t c = 0; c < dim; ++c) {
                stw_store_f32(args->out, first + c, d->dtype, (float)values[c]);
                dot += values[c] * run_load_float(args->dout, out->type, (uint64_t)(first + c));
            }
            int64_t at = packed ? h * rows + row
                                : ((row / d->max_seq_q) * d->heads_q + h) * d->max_seq_q + row % d->max_seq_q;
            double lse = forward->lse[h * rows + row];
            args->lse[at] = (float)lse;
            lse_up[at] = nextafterf((float)lse, INFINITY);
            if (!isfinite(lse)) lse_up[at] = (float)lse;
            delta[at] = (float)(dot - (args->dlse ? args->dlse[at] : 0.0f));
        }
}

/* How far the gradients move when O is rounded to its type and LSE by one ulp: two float64 backwards of the
 * reference's own forward. Neither the library's results nor the file's references enter. */
int run_forward_share(run_problem *p, run_share *share) {
    stw_attn_args args = run_host_args(p);
    stw_attn_desc given = p->desc;
    stw_ref_result forward = {0}, rounded = {0}, exact = {0};
    const stw_ref_mode mode = {0};
    size_t out_bytes = p->arrays[RUN_OUT].capacity, lse_bytes = p->arrays[RUN_LSE].capacity;
    void *out = calloc(1, out_bytes), *lse = calloc(1, lse_bytes);
    float *delta = calloc(1, lse_bytes), *lse_up = calloc(1, lse_bytes);
    stw_status status = out && lse && delta && lse_up ? STW_OK : STW_E_NO_MEMORY;
    if (!status) status = stw_ref_attn_fwd(&p->desc, &args, &forward);
    if (!status) {
        args.out = out;
        args.lse = lse;
        store_forward(p, &forward, &args, delta, lse_up);
        status = stw_ref_attn_bwd(&p->desc, &args, &mode, &rounded);
    }
    if (!status) {
        args.lse = lse_up;
        args.delta = delta;
        args.dlse = NULL;
        given.flags = (given.flags & ~STW_ATTN_DLSE) | STW_ATTN_GIVEN_DELTA;
        given.delta = given.lse;
        status = stw_ref_attn_bwd(&given, &args, &mode, &exact);
    }
    if (!status) measure_share(p, &rounded, &exact, share);
    stw_ref_free(&forward);
    stw_ref_free(&rounded);
    stw_ref_free(&exact);
    free(out);
    free(lse);
    free(delta);
    free(lse_up);
    return status ? run_refuse(p, STW_EXIT_FAILED, "the reference failed: %s", stw_status_name(status)) : 0;
}
