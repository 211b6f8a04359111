/* SPDX-License-Identifier: MIT
 *
 * `conform --large`, filled problems: every element of tensors of more than 2^31 elements has data. The host
 * holds none of them: inputs repeat a random block (of a prime number of elements, so that an index that lost
 * its high bits finds other data), copied from buffer to buffer, and only rows that are verified come back.
 * Called by large.c. */
#include "filled.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/attn_packed.h"
#include "common/dtype.h"

typedef struct filled {
    stw_verify_case c; /* problem and spans; no arena */
    stw_context *context;
    stw_verify_result *result;
    unsigned char *device[STW_VERIFY_TENSOR_COUNT];
    size_t bytes[STW_VERIFY_TENSOR_COUNT];
    unsigned char *block[STW_VERIFY_TENSOR_COUNT]; /* what it was filled with, on the host */
    void *workspace;
} filled;

#define GUARD_BYTES ((size_t)4096)
#define GUARD_VALUE 0xA5

/* One that repeats a random block. */
static int filled_is_input(int t) {
    return t == STW_VERIFY_Q || t == STW_VERIFY_K || t == STW_VERIFY_V || t == STW_VERIFY_DOUT || t == STW_VERIFY_BIAS;
}

static uint32_t filled_outputs_of(const stw_attn_desc *d) {
    return d->outputs ? d->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
}

static stw_dtype filled_dtype_of(const stw_attn_desc *d, int t) {
    if (t == STW_VERIFY_DQ) return d->dq_dtype ? d->dq_dtype : d->dtype;
    if (t == STW_VERIFY_DK) return d->dk_dtype ? d->dk_dtype : d->dtype;
    if (t == STW_VERIFY_DV) return d->dv_dtype ? d->dv_dtype : d->dtype;
    if (t == STW_VERIFY_BIAS) return d->bias_dtype;
    return t <= STW_VERIFY_DOUT ? d->dtype : stw_dtype_of_rows(d->dtype);
}

/* No memory on the host: says so in the result. */
static stw_status filled_no_memory(const filled *f, size_t bytes) {
    stw_verify_fail(f->result, "no memory for %zu bytes on the host", bytes);
    return STW_E_NO_MEMORY;
}

double conform_memory(void) {
    char line[128];
    double kib = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && kib < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lf kB", &kib) != 1) kib = -1;
    if (file) fclose(file);
    return kib >= 0 ? kib * 1024 : (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

size_t conform_tensor_bytes(const stw_attn_desc *desc) {
    size_t bytes = 0;
    for (int t = 0; t <= STW_VERIFY_DV; ++t) {
        int counts = t < STW_VERIFY_BIAS || t >= STW_VERIFY_DQ || (t == STW_VERIFY_BIAS && desc->bias_dtype);
        size_t more = counts ? stw_verify_reach(desc, (stw_verify_tensor)t) : 0;
        bytes = more > SIZE_MAX - bytes ? SIZE_MAX : bytes + more;
    }
    return bytes;
}

static int is_present(const stw_attn_desc *d, int t) {
    switch (t) {
    case STW_VERIFY_DQ: return (filled_outputs_of(d) & STW_OUT_DQ) != 0;
    case STW_VERIFY_DK: return (filled_outputs_of(d) & STW_OUT_DK) != 0;
    case STW_VERIFY_DV: return (filled_outputs_of(d) & STW_OUT_DV) != 0;
    case STW_VERIFY_BIAS: return d->bias_dtype != STW_DTYPE_NONE;
    case STW_VERIFY_CU_Q: return stw_attn_is_packed(d, 0);
    case STW_VERIFY_CU_KV: return stw_attn_is_packed(d, 1);
    default: return t <= STW_VERIFY_LSE;
    }
}

/* Features whose arrays or judgement the sampling does not have. */
static int is_sampled(const stw_problem *p) {
    uint32_t flags = STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA | STW_ATTN_ALIBI |
                     STW_ATTN_SINK | STW_ATTN_DLSE | STW_ATTN_BLOCK_MASK;
    return p->op == STW_PROBLEM_ATTN_BWD && !(p->desc.flags & flags) && !p->desc.accumulate &&
           !(filled_outputs_of(&p->desc) & (STW_OUT_DBIAS | STW_OUT_DSINK)) && !p->by_pointer && !p->q_offsets.count &&
           !p->k_offsets.count && p->desc.bias_dtype != STW_U8 && p->desc.interval_form == STW_INTERVALS_NONE &&
           !(p->desc.dropout_p > 0 && p->desc.dropout_map != STW_DROPOUT_PHILOX);
}

/* ---- verified parts: the first and the last rows of dQ of a head group, with the forward's out and lse, and keys of
 * dK and dV from the middle and from the end, each a dense problem of its own under the accuracy rule. The inputs that
 * come back must still hold what was put there. */

#define SAMPLE_ROWS 64
#define PAIRS_MAX   (INT64_C(1) << 33) /* pairs times head dim of one verified part */

/* ---- a part: some rows and some keys of a head group, as a dense problem of its own
 * ------------------------ */

typedef struct part {
    int64_t b, kv_head, i0, rows, j0, keys;
    stw_attn_desc desc;
    stw_attn_args args;
    void *host[STW_VERIFY_TENSOR_COUNT];
} part;

static int on_key_side(int t) {
    return t == STW_VERIFY_K || t == STW_VERIFY_V || t == STW_VERIFY_DK || t == STW_VERIFY_DV;
}

static int64_t width_of(const stw_attn_desc *d, int t) {
    if (t == STW_VERIFY_LSE) return 1;
    return t == STW_VERIFY_V || t == STW_VERIFY_DV || t == STW_VERIFY_OUT || t == STW_VERIFY_DOUT ? d->head_dim_v
                                                                                                  : d->head_dim_qk;
}

/* Elements [at, at + count) of tensor t into `to`; an input must still be the block's repetition. */
static stw_status fetch(const filled *f, int t, int64_t at, int64_t count, void *to) {
    size_t element = stw_dtype_size(filled_dtype_of(&f->c.problem.desc, t));
    stw_status status = stw_copy(f->context, to, f->device[t] + (size_t)at * element, (size_t)count * element, NULL);
    if (!status) status = stw_stream_synchronize(f->context, NULL);
    for (int64_t i = 0; !status && filled_is_input(t) && i < count;) {
        int64_t from = (at + i) % FILLED_BLOCK, n = FILLED_BLOCK - from < count - i ? FILLED_BLOCK - from : count - i;
        if (memcmp((char *)to + (size_t)i * element, f->block[t] + (size_t)from * element, (size_t)n * element))
            stw_verify_fail(f->result, "%s was written near element %lld", stw_verify_tensor_names[t],
                            (long long)(at + i));
        i += n;
    }
    return status;
}

static stw_status fetch_tensor(const filled *f, part *p, int t) {
    const stw_attn_desc *d = &f->c.problem.desc;
    int keys = on_key_side(t), group = (int)(d->heads_q / d->heads_kv);
    int64_t heads = keys ? 1 : group, rows = keys ? p->keys : p->rows, first = keys ? p->j0 : p->i0;
    int64_t width = width_of(d, t), head0 = keys ? p->kv_head : p->kv_head * group;
    size_t element = stw_dtype_size(filled_dtype_of(d, t));
    unsigned char *to = malloc((size_t)(heads * rows * width) * element + 16);
    if (!to) return filled_no_memory(f, 0);
    p->host[t] = to;
    for (int64_t h = 0; h < heads; ++h) { /* [H,S,D]: the layout of the part */
        int64_t at = stw_verify_row_index(&f->c, (stw_verify_tensor)t, p->b, head0 + h, first);
        int64_t step = stw_verify_row_index(&f->c, (stw_verify_tensor)t, p->b, head0 + h, first + 1) - at;
        int64_t once = step == width ? rows : 1; /* rows that lie one behind the other */
        for (int64_t r = 0; r < rows; r += once) {
            unsigned char *row = to + (size_t)((h * rows + r) * width) * element;
            stw_status status = fetch(f, t, at + r * step, once * width, row);
            if (status) return status;
        }
    }
    return STW_OK;
}

static stw_status fetch_bias(const filled *f, part *p) {
    const stw_attn_desc *d = &f->c.problem.desc;
    int64_t group = d->heads_q / d->heads_kv;
    size_t element = stw_dtype_size(d->bias_dtype);
    unsigned char *to = malloc((size_t)(group * p->rows * p->keys) * element + 16);
    if (!to) return filled_no_memory(f, 0);
    p->host[STW_VERIFY_BIAS] = to;
    for (int64_t h = 0; h < group; ++h)
        for (int64_t r = 0; r < p->rows; ++r) {
            int64_t at = p->b * d->bias.batch + (p->kv_head * group + h) * d->bias.head + (p->i0 + r) * d->bias.query +
                         p->j0 * d->bias.key;
            unsigned char *row = to + (size_t)((h * p->rows + r) * p->keys) * element;
            for (int64_t j = 0; j < p->keys; j += d->bias.key ? p->keys : 1) {
                stw_status status = fetch(f, STW_VERIFY_BIAS, at, d->bias.key ? p->keys : 1, row + (size_t)j * element);
                if (status) return status;
            }
        }
    return STW_OK;
}

static stw_status describe_part(const filled *f, part *p, uint32_t outputs) {
    const stw_verify_case *c = &f->c;
    stw_attn_desc d = c->problem.desc;
    int64_t group = d.heads_q / d.heads_kv, shift = c->kv[p->b].used - c->q[p->b].used;
    if (d.flags & STW_ATTN_HAS_SHIFT) shift = d.diagonal_shift;
    else if (d.mask == STW_MASK_CAUSAL_TOP_LEFT) shift = 0;
    d.heads_total = d.heads_total ? d.heads_total : d.heads_q;
    d.batch_offset += p->b;
    d.head_offset += p->kv_head * group;
    d.batch = d.heads_kv = 1;
    d.heads_q = group;
    d.max_seq_q = p->rows, d.max_seq_kv = p->keys;
    d.total_q = d.total_kv = 0;
    d.flags &= ~(STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV);
    d.flags |= STW_ATTN_HAS_SHIFT;
    d.diagonal_shift = shift;
    d.outputs = outputs;
    p->desc = d;
    p->args = STW_INIT(stw_attn_args);
    p->args.dropout_seed = (uint64_t)c->problem.dropout_seed;
    p->args.dropout_offset = (uint64_t)c->problem.dropout_offset;
    p->args.q_offset = c->q[p->b].offset + p->i0;
    p->args.k_offset = c->kv[p->b].offset + p->j0;
    return stw_layout_bhsd(&p->desc);
}

/* The forward made these out and lse: they are inputs of the backward, but must be right as well. */
static void judge_forward(const filled *f, const part *p) {
    stw_ref_result ref;
    const stw_attn_desc *d = &p->desc;
    if (stw_ref_attn_fwd(d, &p->args, &ref)) {
        stw_verify_fail(f->result, "sample: the reference refuses the forward");
        return;
    }
    double most = 0;
    for (int64_t i = 0; i < d->max_seq_q * d->heads_q * d->head_dim_v; ++i) most = fmax(most, fabs(ref.out[i]));
    double allowed = 4 * stw_ulp(most, d->dtype) + 1e-4 * most;
    for (int64_t h = 0; h < d->heads_q; ++h)
        for (int64_t i = 0; i < d->max_seq_q; ++i) {
            double lse = ref.lse[h * d->max_seq_q + i], seen = (double)p->args.lse[h * d->max_seq_q + i];
            if (isinf(lse) ? seen != lse : !(fabs(seen - lse) <= 1e-4 * (1 + fabs(lse))))
                stw_verify_fail(f->result, "sample: lse of row %lld: %.9g not %.9g", (long long)(p->i0 + i), seen, lse);
            for (int64_t n = 0; n < d->head_dim_v; ++n) {
                double x = ref.out[(i * d->heads_q + h) * d->head_dim_v + n];
                double y = (double)stw_load_f32(p->args.out, (h * d->max_seq_q + i) * d->head_dim_v + n, d->dtype);
                if (!(fabs(x - y) <= allowed))
                    stw_verify_fail(f->result, "sample: out of row %lld: %.9g not %.9g", (long long)(p->i0 + i), y, x);
            }
        }
    stw_ref_free(&ref);
}

static void judge_gradients(const filled *f, const part *p) {
    stw_expectation expectation;
    if (stw_expect_attn_bwd(&p->desc, &p->args, &expectation)) {
        stw_verify_fail(f->result, "sample: the reference refuses the part");
        return;
    }
    for (int g = STW_GRAD_DQ; g <= STW_GRAD_DV; ++g) {
        stw_accuracy a;
        if (!(p->desc.outputs & (1u << g))) continue;
        if (stw_judge(&p->desc, &p->args, &expectation, (stw_grad)g, NULL, &a)) {
            stw_verify_fail(f->result, "sample: %s cannot be judged", stw_grad_names[g]);
            continue;
        }
        stw_pool_add(&f->result->pool[g], &a);
        f->result->max_ratio[g] = fmax(f->result->max_ratio[g], a.max_error > 0 ? a.max_error / a.max_allowed : 0);
        if (!a.small)
            f->result->rms_ratio[g] = fmax(f->result->rms_ratio[g], a.rms_error > 0 ? a.rms_error / a.rms_allowed : 0);
        if (!a.pass)
            stw_verify_fail(f->result,
                            "sequence %lld, kv head %lld, rows %lld.., keys %lld..: %s: max error %.3g "
                            "(allowed %.3g), rms %.3g (allowed %.3g): %.9g not %.9g",
                            (long long)p->b, (long long)p->kv_head, (long long)p->i0, (long long)p->j0,
                            stw_grad_names[g], a.max_error, a.max_allowed, a.rms_error, a.rms_allowed, a.worst_value,
                            a.worst_ref);
    }
    stw_expectation_free(&expectation);
}

static stw_status check_part(const filled *f, part *p, uint32_t outputs) {
    const stw_attn_desc *d = &f->c.problem.desc;
    if (p->rows * p->keys > PAIRS_MAX / (d->head_dim_qk + d->head_dim_v) / (d->heads_q / d->heads_kv)) {
        stw_verify_fail(f->result, "sample: %lld rows meet the keys: use a window, or leave dk and dv out",
                        (long long)p->rows);
        return STW_OK;
    }
    stw_status status = describe_part(f, p, outputs);
    for (int t = 0; !status && t <= STW_VERIFY_DV; ++t) {
        int output = t >= STW_VERIFY_DQ;
        if (t == STW_VERIFY_BIAS && f->device[t]) status = fetch_bias(f, p);
        else if (t <= STW_VERIFY_LSE || (output && outputs >> (t - STW_VERIFY_DQ) & 1)) status = fetch_tensor(f, p, t);
    }
    p->args.q = p->host[STW_VERIFY_Q], p->args.k = p->host[STW_VERIFY_K], p->args.v = p->host[STW_VERIFY_V];
    p->args.out = p->host[STW_VERIFY_OUT], p->args.dout = p->host[STW_VERIFY_DOUT];
    p->args.lse = p->host[STW_VERIFY_LSE], p->args.bias = p->host[STW_VERIFY_BIAS];
    p->args.dq = p->host[STW_VERIFY_DQ], p->args.dk = p->host[STW_VERIFY_DK], p->args.dv = p->host[STW_VERIFY_DV];
    if (!status && outputs & STW_OUT_DQ) judge_forward(f, p); /* its rows have all their keys */
    if (!status) judge_gradients(f, p);
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) free(p->host[t]);
    return status;
}

/* dQ of rows i0..: all keys that they see. */
static stw_status check_rows(const filled *f, int64_t b, int64_t kv_head, int64_t i0) {
    int64_t left = f->c.q[b].used - i0, first = f->c.kv[b].used, last = 0;
    part p = {.b = b, .kv_head = kv_head, .i0 = i0, .rows = left < SAMPLE_ROWS ? left : SAMPLE_ROWS};
    for (int64_t i = i0; i < i0 + p.rows; ++i) {
        int64_t low, end;
        stw_verify_visible(&f->c, b, i, &low, &end);
        if (low < end && low < first) first = low;
        if (low < end && end > last) last = end;
    }
    p.j0 = first < last ? first : 0;
    p.keys = first < last ? last - first : 0;
    return check_part(f, &p, STW_OUT_DQ);
}

/* dK and dV of keys j0..: all rows that see one of them. */
static stw_status check_keys(const filled *f, int64_t b, int64_t kv_head, int64_t j0, uint32_t outputs) {
    int64_t left = f->c.kv[b].used - j0, first = f->c.q[b].used, last = 0;
    part p = {.b = b, .kv_head = kv_head, .j0 = j0, .keys = left < SAMPLE_ROWS ? left : SAMPLE_ROWS};
    for (int64_t i = 0; i < f->c.q[b].used; ++i) {
        int64_t low, end;
        stw_verify_visible(&f->c, b, i, &low, &end);
        if (low >= j0 + p.keys || end <= j0) continue;
        first = i < first ? i : first;
        last = i + 1;
    }
    p.i0 = first < last ? first : 0;
    p.rows = first < last ? last - first : 0;
    return check_part(f, &p, outputs);
}

/* Judges rows and keys of the first and the last head group. Errors: those of the copies. */
static stw_status filled_verify(const filled *f) {
    const stw_attn_desc *d = &f->c.problem.desc;
    uint32_t outputs = filled_outputs_of(d), on_keys = outputs & (STW_OUT_DK | STW_OUT_DV);
    stw_status status = STW_OK;
    int parts = d->batch > 1 || d->heads_kv > 1 ? 2 : 1;
    for (int n = 0; !status && n < parts; ++n) {
        int64_t b = n ? d->batch - 1 : 0, head = n ? d->heads_kv - 1 : 0;
        int64_t lq = f->c.q[b].used, lk = f->c.kv[b].used;
        if (lq < 1 || lk < 1) continue;
        if (outputs & STW_OUT_DQ) {
            status = check_rows(f, b, head, lq > SAMPLE_ROWS ? lq - SAMPLE_ROWS : 0);
            if (!status && lq > SAMPLE_ROWS) status = check_rows(f, b, head, 0);
        }
        if (!status && on_keys) {
            status = check_keys(f, b, head, lk > SAMPLE_ROWS ? lk - SAMPLE_ROWS : 0, on_keys);
            if (!status && lk > 3 * SAMPLE_ROWS) status = check_keys(f, b, head, lk / 2, on_keys);
        }
    }
    return status;
}

/* ---- buffers --------------------------------------------------------------------------------------------
 */

stw_status filled_repeat(stw_context *context, unsigned char *to, const void *block, size_t block_bytes, size_t bytes) {
    size_t have = block_bytes < bytes ? block_bytes : bytes;
    stw_status status = stw_copy(context, to, block, have, NULL);
    while (!status && have < bytes) { /* by doubling what is there */
        size_t more = have < bytes - have ? have : bytes - have;
        status = stw_copy(context, to + have, to, more, NULL);
        have += more;
    }
    return status ? status : stw_stream_synchronize(context, NULL);
}

static void *make_block(const filled *f, int t, stw_dtype dtype) {
    unsigned char *block = malloc((size_t)FILLED_BLOCK * stw_dtype_size(dtype));
    if (!block) return NULL;
    if (!filled_is_input(t)) return memset(block, 0xFF, (size_t)FILLED_BLOCK * stw_dtype_size(dtype));
    for (int64_t i = 0; i < FILLED_BLOCK; ++i)
        stw_store_f64(block, i, dtype, stw_verify_normal((uint64_t)f->c.problem.seed, (uint64_t)t, (uint64_t)i));
    return block;
}

static stw_status place_starts(filled *f, int t) {
    const stw_verify_span *spans = t == STW_VERIFY_CU_Q ? f->c.q : f->c.kv;
    int64_t batch = f->c.problem.desc.batch;
    int32_t *starts = malloc(((size_t)batch + 1) * sizeof *starts);
    if (!starts) return filled_no_memory(f, 0);
    for (int64_t b = 0; b < batch; ++b) starts[b] = (int32_t)spans[b].first;
    starts[batch] = (int32_t)(batch ? spans[batch - 1].first + spans[batch - 1].rows : 0);
    stw_status status = stw_copy(f->context, f->device[t], starts, f->bytes[t], NULL);
    if (!status) status = stw_stream_synchronize(f->context, NULL);
    free(starts);
    return status;
}

static stw_status place(filled *f, int t) {
    static unsigned char guard[GUARD_BYTES];
    const stw_attn_desc *d = &f->c.problem.desc;
    stw_dtype dtype = filled_dtype_of(d, t);
    void *buffer = NULL;
    f->bytes[t] = stw_verify_reach(d, (stw_verify_tensor)t);
    if (f->bytes[t] > SIZE_MAX / 2) return filled_no_memory(f, f->bytes[t]);
    stw_status status = stw_buffer_alloc(f->context, f->bytes[t] + GUARD_BYTES, &buffer);
    if (status) return status;
    f->device[t] = buffer;
    memset(guard, GUARD_VALUE, sizeof guard);
    status = stw_copy(f->context, f->device[t] + f->bytes[t], guard, GUARD_BYTES, NULL);
    if (status) return status;
    if (t == STW_VERIFY_CU_Q || t == STW_VERIFY_CU_KV) return place_starts(f, t);
    unsigned char *block = make_block(f, t, dtype);
    if (!block) return filled_no_memory(f, 0);
    f->block[t] = block;
    return filled_repeat(f->context, f->device[t], block, (size_t)FILLED_BLOCK * stw_dtype_size(dtype), f->bytes[t]);
}

static stw_status check_guards(const filled *f) {
    unsigned char guard[GUARD_BYTES];
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) {
        if (!f->device[t]) continue;
        stw_status status = stw_copy(f->context, guard, f->device[t] + f->bytes[t], sizeof guard, NULL);
        if (!status) status = stw_stream_synchronize(f->context, NULL);
        if (status) return status;
        for (size_t i = 0; i < sizeof guard; ++i)
            if (guard[i] != GUARD_VALUE)
                stw_verify_fail(f->result, "byte %zu behind %s was written", i, stw_verify_tensor_names[t]);
    }
    return STW_OK;
}

/* ---- running --------------------------------------------------------------------------------------------
 */

static stw_status run(filled *f) {
    stw_plan *forward = NULL, *backward = NULL;
    stw_attn_args args = STW_INIT(stw_attn_args);
    stw_status status = stw_attn_fwd_plan(f->context, &f->c.problem.desc, &forward);
    if (!status) status = stw_attn_bwd_plan(f->context, &f->c.problem.desc, &backward);
    size_t bytes = 0;
    if (!status) {
        size_t more = stw_plan_workspace_size(forward);
        bytes = stw_plan_workspace_size(backward);
        bytes = more > bytes ? more : bytes;
        stw_verify_note_variant(backward, f->result);
        status = stw_buffer_alloc(f->context, bytes, &f->workspace);
    }
    for (int t = 0; !status && t < STW_VERIFY_TENSOR_COUNT; ++t)
        if (is_present(&f->c.problem.desc, t)) status = place(f, t);
#define FILLED_POINTER(id, field) args.field = (void *)f->device[STW_VERIFY_##id];
    STW_VERIFY_TENSORS(FILLED_POINTER)
#undef FILLED_POINTER
    args.q_offset = f->c.problem.q_offset, args.k_offset = f->c.problem.k_offset;
    args.dropout_seed = (uint64_t)f->c.problem.dropout_seed;
    args.dropout_offset = (uint64_t)f->c.problem.dropout_offset;
    if (!status) status = stw_attn_fwd(forward, &args, f->workspace, bytes, NULL);
    if (!status) status = stw_attn_bwd(backward, &args, f->workspace, bytes, NULL);
    if (!status) status = stw_stream_synchronize(f->context, NULL);
    stw_plan_destroy(forward);
    stw_plan_destroy(backward);
    if (!status) status = check_guards(f);
    return status ? status : filled_verify(f);
}

/* The system ends a process that touches more memory than there is; a GPU's allocation just fails. */
static int fits_host(const filled *f) {
    return strcmp(stw_context_arch(f->context), "cpu") ||
           1.6 * (double)conform_tensor_bytes(&f->c.problem.desc) < conform_memory();
}

stw_status conform_filled_check(const stw_problem *problem, stw_context *context, stw_verify_result *result) {
    filled f = {.c = {.problem = *problem}, .context = context, .result = result};
    size_t batch = (size_t)problem->desc.batch;
    if (!is_sampled(problem)) {
        stw_verify_fail(result, "--large samples dq, dk, dv of plain, masked, biased and philox problems only");
        result->outcome = STW_VERIFY_SKIP;
        return STW_OK;
    }
    if (!fits_host(&f))
        return stw_verify_fail(result, "needs more memory than there is: %.1f GiB and the workspace",
                               (double)conform_tensor_bytes(&problem->desc) * 0x1p-30),
               STW_E_NO_MEMORY;
    f.c.q = calloc(batch + 1, sizeof *f.c.q);
    f.c.kv = calloc(batch + 1, sizeof *f.c.kv);
    stw_status status = f.c.q && f.c.kv ? STW_OK : filled_no_memory(&f, batch);
    if (!status) status = stw_verify_make_side(&f.c, 0);
    if (!status) status = stw_verify_make_side(&f.c, 1);
    if (!status) status = run(&f);
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) {
        if (f.device[t]) stw_buffer_free(context, f.device[t]);
        free(f.block[t]);
    }
    if (f.workspace) stw_buffer_free(context, f.workspace);
    free(f.c.q);
    free(f.c.kv);
    return status;
}
