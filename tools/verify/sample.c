/* SPDX-License-Identifier: MIT
 *
 * Verifying a problem that is too large for the reference: some query rows and some keys of a head group are
 * problems of their own. dQ of rows i0.. needs their LSE and out and all keys; dK and dV of keys j0.. need
 * all rows' LSE and out, which are inputs. Positions and the mask's diagonal are carried by offsets and a
 * fixed shift. Used by bench and by conform --large. */
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn_packed.h"
#include "common/dtype.h"

stw_status stw_verify_sample_forward(stw_verify_case *c, stw_context *context, stw_verify_device *device) {
    stw_plan *plan = NULL;
    void *workspace = NULL;
    int guards;
    stw_status status = stw_attn_fwd_plan(context, &c->problem.desc, &plan);
    size_t bytes = stw_plan_workspace_size(plan);
    if (!status) status = stw_verify_device_load(device, c->host, 0xFF);
    if (!status) status = stw_buffer_alloc(context, bytes, &workspace);
    stw_attn_args args = stw_verify_args(c, device->arena);
    if (!status) status = stw_attn_fwd(plan, &args, workspace, bytes, device->stream);
    if (!status) status = stw_verify_device_store(device, c->host, 0xFF, &guards);
    if (!status && c->problem.desc.flags & STW_ATTN_GIVEN_DELTA) stw_verify_fill_delta(c);
    if (!status) status = stw_verify_device_load(device, c->host, 0xFF);
    if (workspace) stw_buffer_free(context, workspace);
    stw_plan_destroy(plan);
    return status;
}

typedef struct sample {    /* a head group of a sequence */
    int64_t b, kv_head, h; /* h: first query head of the group */
    int64_t shift;
} sample;

static sample sample_of(const stw_verify_case *c, int64_t b) {
    const stw_attn_desc *d = &c->problem.desc;
    sample s = {.b = b, .kv_head = d->heads_kv - 1};
    s.h = s.kv_head * (d->heads_q / d->heads_kv);
    s.shift = c->kv[b].used - c->q[b].used;
    if (d->flags & STW_ATTN_HAS_SHIFT) s.shift = d->diagonal_shift;
    else if (d->mask == STW_MASK_CAUSAL_TOP_LEFT) s.shift = 0;
    return s;
}

static stw_attn_desc part_desc(const stw_verify_case *c, const sample *s, int64_t rows, int64_t keys,
                               uint32_t outputs) {
    stw_attn_desc d = c->problem.desc;
    d.heads_total = d.heads_total ? d.heads_total : d.heads_q;
    d.batch_offset += s->b;
    d.head_offset += s->h;
    d.batch = 1;
    d.heads_q /= d.heads_kv;
    d.heads_kv = 1;
    d.max_seq_q = rows, d.max_seq_kv = keys;
    d.total_q = d.total_kv = 0;
    d.flags &=
        ~(STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV | STW_ATTN_WRITE_DELTA | STW_ATTN_SINK);
    d.flags |= STW_ATTN_HAS_SHIFT;
    d.diagonal_shift = s->shift;
    d.outputs = outputs;
    d.accumulate &= outputs;
    return d;
}

static const void *row_of(const stw_verify_case *c, const unsigned char *base, stw_verify_tensor tensor,
                          const sample *s, int64_t row, stw_dtype dtype) {
    int key_side =
        tensor == STW_VERIFY_K || tensor == STW_VERIFY_V || tensor == STW_VERIFY_DK || tensor == STW_VERIFY_DV;
    int64_t index = stw_verify_row_index(c, tensor, s->b, key_side ? s->kv_head : s->h, row);
    return base + c->offset[tensor] + (size_t)index * stw_dtype_size(dtype);
}

/* Arguments of the part that begins at row i0 and key j0; outputs in `after`. */
static stw_attn_args part_args(const stw_verify_case *c, const unsigned char *after, const sample *s, int64_t i0,
                               int64_t j0) {
    const stw_attn_desc *d = &c->problem.desc;
    stw_dtype number = stw_dtype_of_rows(d->dtype), t = d->dtype, dq = d->dq_dtype ? d->dq_dtype : t;
    stw_dtype dk = d->dk_dtype ? d->dk_dtype : t, dv = d->dv_dtype ? d->dv_dtype : t;
    stw_attn_args a = STW_INIT(stw_attn_args);
    a.q = row_of(c, c->host, STW_VERIFY_Q, s, i0, t);
    a.k = row_of(c, c->host, STW_VERIFY_K, s, j0, t);
    a.v = row_of(c, c->host, STW_VERIFY_V, s, j0, t);
    a.out = (void *)(uintptr_t)row_of(c, c->host, STW_VERIFY_OUT, s, i0, t);
    a.dout = row_of(c, c->host, STW_VERIFY_DOUT, s, i0, t);
    a.lse = (float *)(uintptr_t)row_of(c, c->host, STW_VERIFY_LSE, s, i0, number);
    if (c->present[STW_VERIFY_DLSE]) a.dlse = row_of(c, c->host, STW_VERIFY_DLSE, s, i0, number);
    if (d->flags & STW_ATTN_GIVEN_DELTA)
        a.delta = (float *)(uintptr_t)row_of(c, c->host, STW_VERIFY_DELTA, s, i0, number);
    if (c->present[STW_VERIFY_BIAS])
        a.bias = c->host + c->offset[STW_VERIFY_BIAS] +
                 (size_t)(s->b * d->bias.batch + s->h * d->bias.head + i0 * d->bias.query + j0 * d->bias.key) *
                     stw_dtype_size(d->bias_dtype);
    if (c->present[STW_VERIFY_ALIBI])
        a.alibi_slopes =
            (const float *)(const void *)(c->host + c->offset[STW_VERIFY_ALIBI] +
                                          (size_t)(s->b * d->alibi_stride_batch + s->h) * stw_dtype_size(number));
    if (c->present[STW_VERIFY_INTERVALS]) {
        int64_t key = stw_attn_intervals_through_pack(d) ? (c->kv[s->b].first + j0) * d->intervals.key
                                                         : s->b * d->intervals.batch + j0 * d->intervals.key;
        a.intervals = (const int32_t *)(const void *)(c->host + c->offset[STW_VERIFY_INTERVALS]) + key +
                      s->kv_head * d->intervals.head;
    }
    if (c->present[STW_VERIFY_BLOCK_MASK])
        a.block_mask = c->host + c->offset[STW_VERIFY_BLOCK_MASK] + s->b * d->block_mask.batch +
                       s->h * d->block_mask.head + i0 / STW_MASK_BLOCK * d->block_mask.query +
                       j0 / STW_MASK_BLOCK * d->block_mask.key;
    a.dropout_seed = (uint64_t)c->problem.dropout_seed;
    a.dropout_offset = (uint64_t)c->problem.dropout_offset;
    a.q_offset = c->q[s->b].offset + i0;
    a.k_offset = c->kv[s->b].offset + j0;
    a.dq = (void *)(uintptr_t)row_of(c, after, STW_VERIFY_DQ, s, i0, dq);
    a.dk = (void *)(uintptr_t)row_of(c, after, STW_VERIFY_DK, s, j0, dk);
    a.dv = (void *)(uintptr_t)row_of(c, after, STW_VERIFY_DV, s, j0, dv);
    return a;
}

static void judge_part(const stw_verify_case *c, const stw_attn_desc *d, const stw_attn_args *args,
                       const unsigned char *after, stw_verify_result *result) {
    stw_expectation expectation;
    const void *outputs[] = {args->dq, args->dk, args->dv};
    if (stw_expect_attn_bwd(d, args, &expectation)) {
        stw_verify_fail(result, "sample: the reference refuses the part");
        return;
    }
    for (int g = 0; g < 3; ++g) {
        stw_accuracy a;
        if (!(d->outputs & (1u << g))) continue;
        const void *before = c->host + ((const unsigned char *)outputs[g] - after);
        if (stw_judge(d, args, &expectation, (stw_grad)g, before, &a)) {
            stw_verify_fail(result, "sample: %s cannot be judged", stw_grad_names[g]);
            continue;
        }
        stw_pool_add(&result->pool[g], &a);
        result->max_ratio[g] = fmax(result->max_ratio[g], a.max_error > 0 ? a.max_error / a.max_allowed : 0);
        if (!a.small)
            result->rms_ratio[g] = fmax(result->rms_ratio[g], a.rms_error > 0 ? a.rms_error / a.rms_allowed : 0);
        if (!a.pass)
            stw_verify_fail(result, "sample: %s: max error %.3g (allowed %.3g), rms %.3g (allowed %.3g): %.9g not %.9g",
                            stw_grad_names[g], a.max_error, a.max_allowed, a.rms_error, a.rms_allowed, a.worst_value,
                            a.worst_ref);
    }
    stw_expectation_free(&expectation);
}

/* A part begins where a block of a block mask does. */
static int64_t start_of_part(const stw_attn_desc *d, int64_t first) {
    return d->flags & STW_ATTN_BLOCK_MASK ? first - first % STW_MASK_BLOCK : first;
}

void stw_verify_sample_judge(const stw_verify_case *c, const unsigned char *after, int64_t b, int64_t rows,
                             stw_verify_result *result, int *judged_out) {
    const stw_attn_desc *d = &c->problem.desc;
    sample s = sample_of(c, b);
    int64_t lq = c->q[b].used, lk = c->kv[b].used;
    uint32_t outputs = d->outputs ? d->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    *judged_out = !(d->dropout_p > 0 && d->dropout_map != STW_DROPOUT_PHILOX) && lq > 0 && lk > 0;
    if (!*judged_out) return;
    if (outputs & STW_OUT_DQ) { /* the last rows: those see most and lie farthest */
        int64_t i0 = start_of_part(d, rows < lq ? lq - rows : 0);
        stw_attn_desc part = part_desc(c, &s, lq - i0, lk, STW_OUT_DQ);
        stw_attn_args args = part_args(c, after, &s, i0, 0);
        judge_part(c, &part, &args, after, result);
    }
    if (outputs & (STW_OUT_DK | STW_OUT_DV)) { /* keys from the middle */
        int64_t n = rows < lk ? rows : lk, j0 = start_of_part(d, (lk - n) / 2);
        stw_attn_desc part = part_desc(c, &s, lq, n, outputs & (STW_OUT_DK | STW_OUT_DV));
        stw_attn_args args = part_args(c, after, &s, 0, j0);
        judge_part(c, &part, &args, after, result);
    }
}

/* ---- forward ---- */

/* |x - wanted| as a part of what is allowed, into *worst. 0: beyond it. */
static int compare(double x, double wanted, double allowed, double *worst) {
    double error = x == wanted ? 0 : fabs(x - wanted);
    if (!(error / allowed <= *worst)) *worst = error / allowed;
    return error <= allowed;
}

void stw_verify_sample_judge_forward(const stw_verify_case *c, const unsigned char *after, int64_t b, int64_t rows,
                                     stw_verify_result *result, int *judged_out) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_dtype number = stw_dtype_of_rows(d->dtype);
    sample s = sample_of(c, b);
    int64_t lq = c->q[b].used, lk = c->kv[b].used, first = start_of_part(d, rows < lq ? lq - rows : 0), n = lq - first;
    *judged_out = !(d->dropout_p > 0 && d->dropout_map != STW_DROPOUT_PHILOX) && lq > 0 && lk > 0 &&
                  !stw_verify_is_extreme(&c->problem);
    if (!*judged_out) return;
    stw_attn_desc part = part_desc(c, &s, n, lk, 0);
    stw_attn_args args = part_args(c, after, &s, first, 0);
    stw_ref_result reference;
    double allowed_out, allowed_lse;
    if (c->present[STW_VERIFY_SINK]) { /* which the LSE holds */
        part.flags |= STW_ATTN_SINK;
        args.sink =
            (const float *)(const void *)(c->host + c->offset[STW_VERIFY_SINK] + (size_t)s.h * stw_dtype_size(number));
    }
    if (stw_ref_attn_fwd(&part, &args, &reference)) {
        stw_verify_fail(result, "sample: the reference refuses the part");
        return;
    }
    stw_verify_forward_bounds(c, &allowed_out, &allowed_lse);
    for (int64_t h = 0; h < part.heads_q; ++h)
        for (int64_t i = 0; i < n; ++i) {
            int64_t out = stw_verify_row_index(c, STW_VERIFY_OUT, b, s.h + h, first + i);
            int64_t lse = stw_verify_row_index(c, STW_VERIFY_LSE, b, s.h + h, first + i);
            double x = stw_load_f64(after + c->offset[STW_VERIFY_LSE], lse, number);
            if (!compare(x, reference.lse[h * n + i], allowed_lse, &result->lse_ratio))
                stw_verify_fail(result, "sample: lse of row %lld: %.9g not %.9g (allowed %.3g)", (long long)(first + i),
                                x, reference.lse[h * n + i], allowed_lse);
            for (int64_t e = 0; e < d->head_dim_v; ++e) {
                double wanted = reference.out[(i * part.heads_q + h) * d->head_dim_v + e];
                x = stw_load_f64(after + c->offset[STW_VERIFY_OUT], out + e, d->dtype);
                if (!compare(x, wanted, allowed_out, &result->out_ratio))
                    stw_verify_fail(result, "sample: out of row %lld, element %lld: %.9g not %.9g (allowed %.3g)",
                                    (long long)(first + i), (long long)e, x, wanted, allowed_out);
            }
        }
    stw_ref_free(&reference);
}
