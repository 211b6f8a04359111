/* SPDX-License-Identifier: MIT
 *
 * Where `sternway run` computed out and lse itself, the file's references were made from others: how far the
 * gradients may move for that. Called by run_check.c. The float64 reference's own forward is stored in four
 * ways that a good forward may end up with, and the float64 backward of each is compared with that of the
 * forward not rounded at all. Neither the library's results nor the file's references enter. */
#include "run.h"

#include "common/attn_packed.h"
#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>

enum { RUN_DRAWS = 4 };

/* -1..1, the same on every machine. */
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
static void store_draw(const run_problem *p, const stw_ref_result *forward, int draw,
                       const stw_attn_args *args) {
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
static void measure(const run_problem *p, const stw_ref_result *drawn, const stw_ref_result *exact,
                    run_share *share) {
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
static stw_status exact_backward(const run_problem *p, const stw_attn_args *args,
                                 stw_ref_result *result_out) {
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

int run_forward_share(run_problem *p, run_share *share_out) {
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
