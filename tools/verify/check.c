/* SPDX-License-Identifier: MIT
 *
 * Running a case through the public API and judging everything that came back: every gradient by the
 * accuracy rule, every byte of the arena that the call may not write, the guards of the workspace, delta,
 * status_out, and further runs with another poison in the workspace bit by bit. */
#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn_packed.h"
#include "common/dtype.h"

static const stw_verify_tensor gradients[STW_GRAD_COUNT] = {STW_VERIFY_DQ, STW_VERIFY_DK, STW_VERIFY_DV,
                                                            STW_VERIFY_DBIAS, STW_VERIFY_DSINK};

/* ---- what may not change --------------------------------------------------------------------------- */

/* The tensor a byte of the arena belongs to or lies behind. */
static const char *owner_of(const stw_verify_case *c, size_t at) {
    int best = 0;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id)
        if (c->present[id] && c->offset[id] <= at && c->offset[id] >= c->offset[best]) best = id;
    return stw_verify_tensor_names[best];
}

static void check_untouched(const stw_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    for (size_t at = 0; at < c->bytes; ++at)
        if (after[at] != c->host[at] && c->rule[at] == STW_VERIFY_KEEP) {
            stw_verify_fail(result, "byte %zu of the arena (in or behind %s) was written", at, owner_of(c, at));
            return;
        }
}

/* ---- gradients ------------------------------------------------------------------------------------- */

static void judge(const stw_verify_case *c, const unsigned char *after, stw_grad which, stw_verify_result *result) {
    stw_attn_args args = stw_verify_args(c, after);
    stw_accuracy accuracy;
    const void *before = c->host + c->offset[gradients[which]];
    stw_status status = stw_judge(&c->problem.desc, &args, &c->expectation, which, before, &accuracy);
    if (status) {
        stw_verify_fail(result, "%s: stw_judge returned %s", stw_grad_names[which], stw_status_name(status));
        return;
    }
    stw_verify_note_accuracy(result, which, stw_grad_names[which], &accuracy);
}

/* Finite, or an infinity where the type's range ends within the factor e that S may be off by. */
static int is_bounded(double x, double ref, stw_dtype dtype) {
    double largest = dtype == STW_F16 ? 65504 / 2.718281828 : dtype == STW_F64 ? 0x1p1022 : 0x1p127;
    return isfinite(x) || !isfinite(ref) || (isinf(x) && (x > 0) == (ref > 0) && fabs(ref) >= largest);
}

static stw_dtype grad_dtype(const stw_attn_desc *d, stw_grad which) {
    const stw_dtype chosen[] = {d->dq_dtype, d->dk_dtype, d->dv_dtype, d->dbias_dtype};
    return chosen[which] ? chosen[which] : which == STW_GRAD_DBIAS ? d->bias_dtype : d->dtype;
}

/* Beyond the accuracy rule: finite where the reference is, exactly zero where no term is. */
static void check_extreme_rows(const stw_verify_case *c, const unsigned char *after, stw_grad which,
                               stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_ref_result *r = &c->expectation.reference;
    const double *value[] = {r->dq, r->dk, r->dv}, *absolute[] = {r->abs_dq, r->abs_dk, r->abs_dv};
    int key_side = which != STW_GRAD_DQ;
    int64_t heads = key_side ? d->heads_kv : d->heads_q, width = which == STW_GRAD_DV ? d->head_dim_v : d->head_dim_qk;
    stw_dtype dtype = grad_dtype(d, which);
    stw_verify_tensor tensor = gradients[which];
    for (int64_t b = 0; b < d->batch; ++b) {
        const stw_verify_span *span = &(key_side ? c->kv : c->q)[b];
        int64_t first = stw_attn_is_packed(d, key_side) ? span->first : b * (key_side ? d->max_seq_kv : d->max_seq_q);
        for (int64_t row = 0; row < span->rows; ++row)
            for (int64_t h = 0; h < heads; ++h)
                for (int64_t n = 0; n < width; ++n) {
                    int64_t at = ((first + row) * heads + h) * width + n;
                    double x =
                        stw_load_f64(after + c->offset[tensor], stw_verify_row_index(c, tensor, b, h, row) + n, dtype);
                    if (row >= span->used || absolute[which][at] == 0 ? x != 0
                                                                      : !is_bounded(x, value[which][at], dtype)) {
                        stw_verify_fail(
                            result, "%s: sequence %lld head %lld row %lld: %.9g where the reference has %.9g",
                            stw_grad_names[which], (long long)b, (long long)h, (long long)row, x, value[which][at]);
                        return;
                    }
                }
    }
}

static void check_extreme_rest(const stw_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_ref_result *r = &c->expectation.reference;
    for (int64_t h = 0; c->present[STW_VERIFY_DSINK] && h < d->heads_q; ++h) {
        double x = stw_load_f64(after + c->offset[STW_VERIFY_DSINK], h, stw_dtype_of_rows(d->dtype));
        if (!isfinite(x) && isfinite(r->dsink[h]))
            stw_verify_fail(result, "dsink: head %lld: %g where the reference has %g", (long long)h, x, r->dsink[h]);
    }
    if (!c->present[STW_VERIFY_DBIAS]) return;
    const int64_t *e = r->bias_extent;
    stw_dtype dtype = grad_dtype(d, STW_GRAD_DBIAS);
    for (int64_t n = 0; n < e[0] * e[1] * e[2] * e[3]; ++n) {
        int64_t j = n % e[3], i = n / e[3] % e[2], h = n / e[3] / e[2] % e[1], b = n / e[3] / e[2] / e[1];
        int64_t at = b * d->dbias.batch + h * d->dbias.head + i * d->dbias.query + j * d->dbias.key;
        double x = stw_load_f64(after + c->offset[STW_VERIFY_DBIAS], at, dtype);
        if (r->abs_dbias[n] == 0 ? x != 0 : !is_bounded(x, r->dbias[n], dtype)) {
            stw_verify_fail(result, "dbias: element %lld: %.9g where the reference has %.9g", (long long)n, x,
                            r->dbias[n]);
            return;
        }
    }
}

/* delta on request: sums of head_dim_v products in f32, or f64. */
static void check_delta(const stw_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_dtype number = stw_dtype_of_rows(d->dtype);
    const double unit = number == STW_F64 ? 0x1p-53 : 0x1p-24;
    double flushed = (double)d->head_dim_v * (d->dtype == STW_F32   ? 0x1p-126
                                              : d->dtype == STW_F64 ? 0x1p-1074
                                                                    : 0x1p-149); /* of subnormal terms */
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t i = 0; i < c->q[b].used; ++i) {
                int64_t low, end, out = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
                int64_t dout = stw_verify_row_index(c, STW_VERIFY_DOUT, b, h, i);
                long double sum = 0, absolute = 0, from_lse = 0;
                stw_verify_visible(c, b, i, &low, &end);
                for (int64_t n = 0; low < end && n < d->head_dim_v; ++n) {
                    long double term = stw_load_f64(c->host + c->offset[STW_VERIFY_OUT],
                                                    out + n * stw_verify_step(c, STW_VERIFY_OUT), d->dtype);
                    term *= stw_load_f64(c->host + c->offset[STW_VERIFY_DOUT],
                                         dout + n * stw_verify_step(c, STW_VERIFY_DOUT), d->dtype);
                    sum += term;
                    absolute += fabsl(term);
                }
                if (c->present[STW_VERIFY_DLSE])
                    from_lse = stw_load_f64(c->host + c->offset[STW_VERIFY_DLSE],
                                            stw_verify_row_index(c, STW_VERIFY_DLSE, b, h, i), number);
                double x = stw_load_f64(after + c->offset[STW_VERIFY_DELTA],
                                        stw_verify_row_index(c, STW_VERIFY_DELTA, b, h, i), number);
                long double wanted = sum - from_lse;
                double allowed = (double)(d->head_dim_v + 2) * unit * (double)(absolute + fabsl(from_lse)) + flushed;
                if (!(fabsl(x - wanted) <= allowed)) {
                    stw_verify_fail(result, "delta: sequence %lld head %lld row %lld: %.9g not %.9g", (long long)b,
                                    (long long)h, (long long)i, x, (double)wanted);
                    return;
                }
            }
}

void stw_verify_check_outputs(const stw_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    int extreme = stw_verify_is_extreme(&c->problem);
    check_untouched(c, after, result);
    for (int which = 0; which < STW_GRAD_COUNT; ++which) {
        if (!c->present[gradients[which]]) continue;
        if (!extreme) judge(c, after, (stw_grad)which, result);
        else if (which <= STW_GRAD_DV) check_extreme_rows(c, after, (stw_grad)which, result);
    }
    if (extreme) check_extreme_rest(c, after, result);
    if (c->problem.desc.flags & STW_ATTN_WRITE_DELTA) check_delta(c, after, result);
    if (c->present[STW_VERIFY_STATUS]) {
        int32_t seen;
        memcpy(&seen, after + c->offset[STW_VERIFY_STATUS], sizeof seen);
        if (seen) stw_verify_fail(result, "status_out is 0x%x for values that are all in range", (unsigned)seen);
    }
}

/* ---- running ----------------------------------------------------------------------------------------- */

static stw_status run_once(const stw_verify_case *c, const stw_plan *plan, stw_verify_device *device, int poison,
                           unsigned char *after, stw_verify_result *result) {
    int guards = 0;
    stw_attn_args args = stw_verify_args(c, device->arena);
    stw_status status = stw_verify_device_load(device, c->host, poison);
    if (!status) status = stw_attn_bwd(plan, &args, device->workspace, device->workspace_bytes, device->stream);
    if (!status) status = stw_verify_device_store(device, after, poison, &guards);
    if (status) {
        stw_verify_fail(result, "stw_attn_bwd: %s: %s", stw_status_name(status), stw_last_error());
        return status;
    }
    if (!guards)
        stw_verify_fail(result, "memory around the workspace of %zu bytes was written", device->workspace_bytes);
    return STW_OK;
}

static void check_repeats(const stw_verify_case *c, const stw_plan *plan, stw_verify_device *device, int repeats,
                          const unsigned char *first, stw_verify_result *result) {
    static const int poisons[] = {0x7F, 0x00, 0xFF};
    unsigned char *again = malloc(c->bytes);
    if (!again) stw_verify_fail(result, "no memory");
    for (int n = 0; again && n < repeats && result->outcome == STW_VERIFY_OK; ++n) {
        if (run_once(c, plan, device, poisons[n % 3], again, result)) break;
        for (size_t at = 0; at < c->bytes; ++at)
            if (first[at] != again[at]) {
                stw_verify_fail(result, "run %d differs from the first in byte %zu (%s)", n + 2, at, owner_of(c, at));
                break;
            }
    }
    free(again);
}

/* The same call on another context, with another number of CPU threads. */
static void check_other(const stw_verify_case *c, stw_context *other, const unsigned char *first,
                        stw_verify_result *result) {
    stw_plan *plan = NULL;
    stw_verify_device device;
    stw_status status = stw_attn_bwd_plan(other, &c->problem.desc, &plan);
    if (!status) status = stw_verify_device_open(other, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status) stw_verify_fail_buffers(result, status);
    else {
        check_repeats(c, plan, &device, 1, first, result);
        stw_verify_device_close(&device);
    }
    stw_plan_destroy(plan);
}

static void check_backward(const stw_verify_case *c, stw_context *context, const stw_verify_options *options,
                           stw_verify_result *result) {
    stw_plan *plan = NULL;
    stw_verify_device device;
    stw_status status = stw_attn_bwd_plan(context, &c->problem.desc, &plan);
    if (status) {
        stw_verify_fail(result, "stw_attn_bwd_plan: %s: %s", stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) result->outcome = STW_VERIFY_SKIP;
        return;
    }
    stw_verify_note_variant(plan, result);
    status = stw_verify_device_open(context, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status) {
        stw_verify_fail_buffers(result, status);
        stw_plan_destroy(plan);
        return;
    }
    unsigned char *after = malloc(c->bytes);
    if (!after) stw_verify_fail(result, "no memory");
    else if (!run_once(c, plan, &device, 0xFF, after, result)) {
        stw_verify_check_outputs(c, after, result);
        int ordered = options->bitwise || c->problem.desc.deterministic == STW_DETERMINISTIC_ON;
        if (ordered) check_repeats(c, plan, &device, options->repeats, after, result);
        if (options->other) check_other(c, options->other, after, result);
    }
    free(after);
    stw_verify_device_close(&device);
    stw_plan_destroy(plan);
}

void stw_verify_check(const stw_verify_case *c, stw_context *context, const stw_verify_options *options,
                      stw_verify_result *result_out) {
    stw_verify_result_clear(result_out);
    if (c->problem.op == STW_PROBLEM_ATTN_BWD) check_backward(c, context, options, result_out);
    if (options->forward && result_out->outcome == STW_VERIFY_OK) stw_verify_check_forward(c, context, result_out);
}
