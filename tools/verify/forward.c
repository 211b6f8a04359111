/* SPDX-License-Identifier: MIT
 *
 * The forward of a case and its dropout mask, as stw_attn_fwd and stw_dropout_mask give them, against the
 * reference. Rule of the forward: P is rounded to the input type as
 * a matrix operand, out once; S carries an f32 (f64) error in proportion to its size. */
#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/reference/problem.h"
#include "common/attn_packed.h"
#include "common/dtype.h"

/* ---- bounds ------------------------------------------------------------------------------------------ */

static double largest_in(const stw_verify_case *c, stw_verify_tensor tensor, stw_dtype dtype) {
    double most = 0;
    for (size_t n = 0; n < c->size[tensor] / stw_dtype_size(dtype); ++n) {
        double x = fabs(stw_load_f64(c->host + c->offset[tensor], (int64_t)n, dtype));
        if (isfinite(x) && x > most) most = x;
    }
    return most;
}

/* Length of the longest row of q or k. */
static double longest_row(const stw_verify_case *c, stw_verify_tensor tensor) {
    const stw_attn_desc *d = &c->problem.desc;
    int key_side = tensor == STW_VERIFY_K;
    double most = 0;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < (key_side ? d->heads_kv : d->heads_q); ++h)
            for (int64_t r = 0; r < (key_side ? c->kv : c->q)[b].used; ++r) {
                int64_t at = stw_verify_row_index(c, tensor, b, h, r);
                double sum = 0;
                for (int64_t n = 0; n < d->head_dim_qk; ++n) {
                    double x = stw_load_f64(c->host + c->offset[tensor], at + n, d->dtype);
                    sum += x * x;
                }
                if (isfinite(sum) && sum > most) most = sum;
            }
    return sqrt(most);
}

typedef struct forward_rule {
    double score;    /* bound of every term that enters S */
    double out, lse; /* permitted errors                  */
} forward_rule;

static forward_rule rule_of(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    double scale = d->flags & STW_ATTN_HAS_SCALE ? fabs((double)d->scale) : 1 / sqrt((double)d->head_dim_qk);
    const stw_dtype number = stw_dtype_of_rows(d->dtype);
    const double unit = number == STW_F64 ? 0x1p-53 : 0x1p-24;
    int64_t reach = d->max_seq_q + d->max_seq_kv + 64 + llabs(c->problem.q_offset) + llabs(c->problem.k_offset);
    forward_rule rule = {.score = scale * longest_row(c, STW_VERIFY_Q) * longest_row(c, STW_VERIFY_K)};
    if (c->present[STW_VERIFY_BIAS] && d->bias_dtype != STW_U8)
        rule.score += largest_in(c, STW_VERIFY_BIAS, d->bias_dtype);
    if (c->present[STW_VERIFY_ALIBI]) rule.score += largest_in(c, STW_VERIFY_ALIBI, number) * (double)reach;
    if (c->present[STW_VERIFY_SINK]) rule.score += largest_in(c, STW_VERIFY_SINK, number);
    double value = largest_in(c, STW_VERIFY_V, d->dtype) / (1 - d->dropout_p);
    double relative = 8 * unit * (rule.score + 8); /* of P: 8 roundings of S and of the row's sum */
    rule.out = 2 * stw_ulp(value, d->dtype) + relative * value;
    rule.lse = relative + 2 * unit * (rule.score + 16);
    return rule;
}

void stw_verify_forward_bounds(const stw_verify_case *c, double *out, double *lse) {
    forward_rule rule = rule_of(c);
    *out = rule.out;
    *lse = rule.lse;
}

/* ---- forward ----------------------------------------------------------------------------------------- */

static void compare_row(const stw_verify_case *c, const unsigned char *after, const int64_t at[3],
                        const forward_rule *rule, stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    int64_t b = at[0], h = at[1], i = at[2];
    int64_t row = (stw_attn_is_packed(d, 0) ? c->q[b].first : b * d->max_seq_q) + i;
    double wanted = c->forward.lse[h * c->forward.rows_q + row];
    if (c->present[STW_VERIFY_LSE]) {
        int64_t index = stw_verify_row_index(c, STW_VERIFY_LSE, b, h, i);
        double x = stw_load_f64(after + c->offset[STW_VERIFY_LSE], index, stw_dtype_of_rows(d->dtype));
        double error = x == wanted ? 0 : fabs(x - wanted);
        if (error / rule->lse > result->lse_ratio || isnan(error)) result->lse_ratio = error / rule->lse;
        if (!(error <= rule->lse))
            stw_verify_fail(result, "forward lse: sequence %lld head %lld row %lld: %.9g not %.9g (allowed %.3g)",
                            (long long)b, (long long)h, (long long)i, x, wanted, rule->lse);
    }
    int64_t index = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
    for (int64_t n = 0; n < d->head_dim_v; ++n) {
        double x = stw_load_f64(after + c->offset[STW_VERIFY_OUT], index + n, d->dtype);
        double ref = c->forward.out[(row * d->heads_q + h) * d->head_dim_v + n], error = fabs(x - ref);
        if (error / rule->out > result->out_ratio || isnan(error)) result->out_ratio = error / rule->out;
        if (!(error <= rule->out))
            stw_verify_fail(result,
                            "forward out: sequence %lld head %lld row %lld element %lld: %.9g not %.9g (allowed %.3g)",
                            (long long)b, (long long)h, (long long)i, (long long)n, x, ref, rule->out);
    }
}

/* The case with out and lse as outputs. */
static stw_verify_case forward_case(const stw_verify_case *c) {
    stw_verify_case f = *c;
    f.host = malloc(c->bytes);
    f.rule = malloc(c->bytes);
    if (!f.host || !f.rule) return f;
    const stw_attn_desc *d = &c->problem.desc;
    memcpy(f.host, c->host, c->bytes);
    memset(f.rule, STW_VERIFY_KEEP, c->bytes);
    f.present[STW_VERIFY_OUT] = 1;
    f.present[STW_VERIFY_LSE] = c->problem.op == STW_PROBLEM_ATTN_BWD || !(c->problem.seed & 2); /* null is allowed */
    memset(f.host + c->offset[STW_VERIFY_OUT], 0xFF, c->size[STW_VERIFY_OUT]);
    memset(f.host + c->offset[STW_VERIFY_LSE], 0xFF, c->size[STW_VERIFY_LSE]);
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t i = 0; i < c->q[b].rows; ++i) {
                size_t element = stw_dtype_size(d->dtype), number = stw_dtype_size(stw_dtype_of_rows(d->dtype));
                size_t out = (size_t)stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i) * element;
                size_t lse = (size_t)stw_verify_row_index(c, STW_VERIFY_LSE, b, h, i) * number;
                memset(f.rule + c->offset[STW_VERIFY_OUT] + out, STW_VERIFY_WRITE, (size_t)d->head_dim_v * element);
                if (f.present[STW_VERIFY_LSE])
                    memset(f.rule + c->offset[STW_VERIFY_LSE] + lse, STW_VERIFY_WRITE, number);
            }
    if (c->present[STW_VERIFY_STATUS]) memset(f.rule + c->offset[STW_VERIFY_STATUS], STW_VERIFY_WRITE, 4);
    return f;
}

static void compare_forward(const stw_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    forward_rule rule = rule_of(c);
    for (size_t at = 0; at < c->bytes; ++at)
        if (after[at] != c->host[at] && c->rule[at] == STW_VERIFY_KEEP) {
            stw_verify_fail(result, "forward: byte %zu of the arena was written", at);
            return;
        }
    if (stw_verify_is_extreme(&c->problem)) return;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t i = 0; i < c->q[b].used; ++i) {
                const int64_t at[3] = {b, h, i};
                compare_row(c, after, at, &rule, result);
            }
}

static stw_status run_forward(const stw_verify_case *c, const stw_plan *plan, stw_context *context,
                              stw_verify_result *result) {
    stw_verify_device device;
    int guards = 0;
    stw_status status = stw_verify_device_open(context, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status) return status;
    unsigned char *after = malloc(c->bytes);
    stw_attn_args args = stw_verify_args(c, device.arena);
    status = after ? stw_verify_device_load(&device, c->host, 0xFF) : STW_E_NO_MEMORY;
    if (!status) status = stw_attn_fwd(plan, &args, device.workspace, device.workspace_bytes, device.stream);
    if (!status) status = stw_verify_device_store(&device, after, 0xFF, &guards);
    if (!status && !guards) stw_verify_fail(result, "forward: memory around the workspace was written");
    if (!status) compare_forward(c, after, result);
    free(after);
    stw_verify_device_close(&device);
    return status;
}

/* ---- dropout mask -------------------------------------------------------------------------------------- */

/* Against the reference's own reading of the maps, which shares only the cipher with the library. */
static void compare_mask(const stw_verify_case *c, const uint8_t *mask, stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    stw_attn_args args = stw_verify_args(c, c->host);
    stw_ref_problem p;
    if (stw_ref_problem_init(&p, d, &args, 0)) {
        stw_verify_fail(result, "dropout mask: the reference refuses the problem");
        return;
    }
    for (int64_t n = 0; n < d->batch * d->heads_q * d->max_seq_q * d->max_seq_kv; ++n) {
        int64_t j = n % d->max_seq_kv, i = n / d->max_seq_kv % d->max_seq_q;
        int64_t h = n / d->max_seq_kv / d->max_seq_q % d->heads_q, b = n / d->max_seq_kv / d->max_seq_q / d->heads_q;
        stw_ref_side q = stw_ref_side_q(&p, b), kv = stw_ref_side_kv(&p, b);
        int wanted = i < q.used && j < kv.used && stw_ref_keeps(&p, &q, &kv, b, h, i, j);
        if (mask[n] == wanted) continue;
        stw_verify_fail(result, "dropout mask: [%lld,%lld,%lld,%lld] is %d not %d", (long long)b, (long long)h,
                        (long long)i, (long long)j, mask[n], wanted);
        return;
    }
}

static stw_status check_mask(const stw_verify_case *c, const stw_plan *plan, stw_context *context,
                             stw_verify_result *result) {
    const stw_attn_desc *d = &c->problem.desc;
    size_t elements = (size_t)(d->batch * d->heads_q * d->max_seq_q * d->max_seq_kv), guard = 256;
    stw_verify_device device;
    stw_status status = stw_verify_device_open(context, c->bytes, elements + guard, &device);
    if (status) return status;
    uint8_t *mask = malloc(elements + guard);
    stw_attn_args args = stw_verify_args(c, device.arena);
    status = mask ? stw_verify_device_load(&device, c->host, 0xA5) : STW_E_NO_MEMORY;
    if (!status) status = stw_dropout_mask(plan, &args, device.workspace, device.stream);
    if (!status) status = stw_stream_synchronize(context, device.stream);
    if (!status) status = stw_copy(context, mask, device.workspace, elements + guard, device.stream);
    if (!status) status = stw_stream_synchronize(context, device.stream);
    for (size_t n = 0; !status && n < guard; ++n)
        if (mask[elements + n] != 0xA5) stw_verify_fail(result, "dropout mask: memory behind it was written");
    if (!status) compare_mask(c, mask, result);
    free(mask);
    stw_verify_device_close(&device);
    return status;
}

/* An out that is broadcast or strided along head_dim is an input of the backward alone. */
static int out_is_input(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    int packed = stw_attn_is_packed(d, 0);
    return stw_verify_step(c, STW_VERIFY_OUT) != 1 || (d->heads_q > 1 && !d->out.head) ||
           (d->batch > 1 && !packed && !d->out.batch) || ((packed || d->max_seq_q > 1) && !d->out.seq);
}

void stw_verify_check_forward(const stw_verify_case *c, stw_context *context, stw_verify_result *result) {
    if (c->problem.data == STW_DATA_DEAD_ROWS) return; /* rows that overflow, in the forward for all to see */
    if (c->problem.op == STW_PROBLEM_ATTN_BWD && out_is_input(c)) return;
    stw_plan *plan = NULL;
    stw_verify_case f = forward_case(c);
    stw_status status = f.host && f.rule ? stw_attn_fwd_plan(context, &c->problem.desc, &plan) : STW_E_NO_MEMORY;
    if (status == STW_E_UNSUPPORTED && c->problem.op == STW_PROBLEM_ATTN_BWD)
        goto done; /* a forced variant may be the backward's alone: the forward has cases of its own */
    if (!status) status = run_forward(&f, plan, context, result);
    if (!status && c->problem.desc.dropout_p > 0) status = check_mask(&f, plan, context, result);
    if (status) {
        int skipped = status == STW_E_UNSUPPORTED || status == STW_E_NO_MEMORY, failed = result->outcome;
        stw_verify_fail(result, "forward: %s: %s", stw_status_name(status), stw_last_error());
        if (skipped && failed == STW_VERIFY_OK) result->outcome = STW_VERIFY_SKIP;
    }
    if (plan && !result->variant[0]) stw_verify_note_variant(plan, result); /* the backward has noted its own */
done:
    stw_plan_destroy(plan);
    free(f.host);
    free(f.rule);
}
