/* SPDX-License-Identifier: MIT
 *
 * From a parsed problem to an arena of tensors (verify.h): the place of every tensor, what a
 * call may write, and the reference's forward and expectation. */
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn_packed.h"
#include "common/dtype.h"

#define CASE_ALIGNMENT 256
#define CASE_GUARD     1024
#define CASE_BYTES_MAX ((size_t)1 << 38)

const char *const stw_verify_tensor_names[STW_VERIFY_TENSOR_COUNT] = {
#define CASE_NAME(id, field) #field,
    STW_VERIFY_TENSORS(CASE_NAME)
#undef CASE_NAME
};

int stw_verify_is_extreme(const stw_problem *problem) {
    return problem->data == STW_DATA_HUGE || problem->data == STW_DATA_ROW_65504 || problem->data == STW_DATA_ROW_1E9;
}

static uint32_t outputs_of(const stw_attn_desc *d) {
    return d->outputs ? d->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
}

/* ---- places of the tensors ---------------------------------------------------------------------- */

typedef struct place { /* what a tensor needs of the arena */
    int64_t extent[4], stride[4];
    int64_t row; /* contiguous elements at the end */
    size_t element;
} place;

static int reach(const place *t, size_t *bytes_out) {
    int64_t last = 0, step;
    for (int i = 0; i < 4; ++i) {
        if (t->extent[i] == 0) {
            *bytes_out = 0;
            return 1;
        }
        if (__builtin_mul_overflow(t->extent[i] - 1, t->stride[i], &step) || __builtin_add_overflow(last, step, &last))
            return 0;
    }
    if (last < 0 || last > (int64_t)CASE_BYTES_MAX) return 0;
    *bytes_out = (size_t)(last + t->row) * t->element;
    return 1;
}

static place rows_place(const stw_attn_desc *d, const stw_attn_strides *s, int key_side, int64_t row, stw_dtype dtype,
                        int lse_like) {
    int64_t total = key_side ? d->total_kv : d->total_q;
    int64_t max_seq = key_side ? d->max_seq_kv : d->max_seq_q, heads = key_side ? d->heads_kv : d->heads_q;
    int packed = stw_attn_is_packed(d, key_side) && !(lse_like && s->batch != 0);
    place t = {{packed ? 1 : d->batch, heads, packed ? total : max_seq, 1},
               {packed ? 0 : s->batch, s->head, s->seq, 0},
               row,
               stw_dtype_size(dtype)};
    return t;
}

/* An input, whose head dim may be strided. */
static place input_place(const stw_verify_case *c, const stw_attn_strides *s, stw_verify_tensor id, int64_t row) {
    const stw_attn_desc *d = &c->problem.desc;
    place t = rows_place(d, s, id == STW_VERIFY_K || id == STW_VERIFY_V, 1, d->dtype, 0);
    t.extent[3] = row;
    t.stride[3] = stw_verify_step(c, id);
    return t;
}

static place array_place(int64_t count, size_t element) {
    place t = {{1, 1, 1, 1}, {0, 0, 0, 0}, count, element};
    return t;
}

static place bias_place(const stw_attn_desc *d, const stw_bias_strides *s, stw_dtype dtype) {
    place t = {{d->batch, d->heads_q, d->max_seq_q, d->max_seq_kv},
               {s->batch, s->head, s->query, s->key},
               1,
               stw_dtype_size(dtype)};
    return t;
}

static place intervals_place(const stw_attn_desc *d) {
    int through_pack = stw_attn_intervals_through_pack(d);
    const stw_interval_strides *s = &d->intervals;
    static const int64_t bounds[] = {1, 1, 2, 2, 3, 4}; /* by form; 1: there is no such mask */
    place t = {{through_pack ? 1 : d->batch, d->heads_kv, through_pack ? d->total_kv : d->max_seq_kv,
                bounds[d->interval_form <= STW_INTERVALS_TWO_RANGES ? d->interval_form : 0]},
               {through_pack ? 0 : s->batch, s->head, s->key, s->bound},
               1,
               4};
    return t;
}

static int64_t mask_blocks(int64_t rows) { return (rows + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK; }

static place block_mask_place(const stw_attn_desc *d) {
    const stw_block_mask_strides *s = &d->block_mask;
    place t = {{d->batch, d->heads_q, mask_blocks(d->max_seq_q), mask_blocks(d->max_seq_kv)},
               {s->batch, s->head, s->query, s->key},
               1,
               1};
    return t;
}

static stw_dtype or_else(stw_dtype dtype, stw_dtype fallback) { return dtype ? dtype : fallback; }

static place place_of(const stw_verify_case *c, stw_verify_tensor id) {
    const stw_attn_desc *d = &c->problem.desc;
    int64_t dk = d->head_dim_qk, dv = d->head_dim_v, batch = d->batch, heads = d->heads_q;
    stw_dtype number = stw_dtype_of_rows(d->dtype);
    switch (id) {
    case STW_VERIFY_Q: return input_place(c, &d->q, id, dk);
    case STW_VERIFY_K: return input_place(c, &d->k, id, dk);
    case STW_VERIFY_V: return input_place(c, &d->v, id, dv);
    case STW_VERIFY_OUT: return input_place(c, &d->out, id, dv);
    case STW_VERIFY_DOUT: return input_place(c, &d->dout, id, dv);
    case STW_VERIFY_DQ: return rows_place(d, &d->dq, 0, dk, or_else(d->dq_dtype, d->dtype), 0);
    case STW_VERIFY_DK: return rows_place(d, &d->dk, 1, dk, or_else(d->dk_dtype, d->dtype), 0);
    case STW_VERIFY_DV: return rows_place(d, &d->dv, 1, dv, or_else(d->dv_dtype, d->dtype), 0);
    case STW_VERIFY_LSE: return rows_place(d, &d->lse, 0, 1, number, 1);
    case STW_VERIFY_DLSE: return rows_place(d, &d->dlse, 0, 1, number, 1);
    case STW_VERIFY_DELTA: return rows_place(d, &d->delta, 0, 1, number, 1);
    case STW_VERIFY_BIAS: return bias_place(d, &d->bias, d->bias_dtype);
    case STW_VERIFY_DBIAS: return bias_place(d, &d->dbias, or_else(d->dbias_dtype, d->bias_dtype));
    case STW_VERIFY_INTERVALS: return intervals_place(d);
    case STW_VERIFY_BLOCK_MASK: return block_mask_place(d);
    case STW_VERIFY_ALIBI:
        return array_place(d->alibi_stride_batch ? d->alibi_stride_batch * (batch - 1) + heads : heads,
                           stw_dtype_size(number));
    case STW_VERIFY_SINK:
    case STW_VERIFY_DSINK: return array_place(heads, stw_dtype_size(number));
    case STW_VERIFY_CU_Q:
    case STW_VERIFY_CU_KV: return array_place(batch + 1, 4);
    case STW_VERIFY_USED_Q:
    case STW_VERIFY_USED_KV: return array_place(batch, 4);
    case STW_VERIFY_Q_OFFSETS:
    case STW_VERIFY_K_OFFSETS: return array_place(batch, 8);
    case STW_VERIFY_SEED:
    case STW_VERIFY_OFFSET: return array_place(1, 8);
    default: return array_place(1, 4);
    }
}

static int is_present(const stw_problem *p, stw_verify_tensor id) {
    const stw_attn_desc *d = &p->desc;
    uint32_t outputs = outputs_of(d), flags = d->flags;
    int used = (flags & STW_ATTN_HAS_USED_LENGTHS) != 0, odd = (p->seed & 1) != 0;
    switch (id) {
    case STW_VERIFY_DLSE: return (flags & STW_ATTN_DLSE) != 0;
    case STW_VERIFY_DELTA: return (flags & (STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA)) != 0;
    case STW_VERIFY_BIAS: return d->bias_dtype != STW_DTYPE_NONE;
    case STW_VERIFY_ALIBI: return (flags & STW_ATTN_ALIBI) != 0;
    case STW_VERIFY_SINK: return (flags & STW_ATTN_SINK) != 0;
    case STW_VERIFY_CU_Q: return stw_attn_is_packed(d, 0);
    case STW_VERIFY_CU_KV: return stw_attn_is_packed(d, 1);
    case STW_VERIFY_USED_Q: return used && p->used != STW_USED_KV_ONLY;
    case STW_VERIFY_USED_KV: return used && p->used != STW_USED_Q_ONLY;
    case STW_VERIFY_Q_OFFSETS: return p->by_pointer || p->q_offsets.count;
    case STW_VERIFY_K_OFFSETS: return p->by_pointer || p->k_offsets.count;
    case STW_VERIFY_SEED:
    case STW_VERIFY_OFFSET: return p->by_pointer;
    case STW_VERIFY_DQ: return (outputs & STW_OUT_DQ) != 0;
    case STW_VERIFY_DK: return (outputs & STW_OUT_DK) != 0;
    case STW_VERIFY_DV: return (outputs & STW_OUT_DV) != 0;
    case STW_VERIFY_DBIAS: return (outputs & STW_OUT_DBIAS) != 0;
    case STW_VERIFY_DSINK: return (outputs & STW_OUT_DSINK) != 0;
    case STW_VERIFY_STATUS: return odd;
    case STW_VERIFY_INTERVALS: return d->interval_form != STW_INTERVALS_NONE;
    case STW_VERIFY_BLOCK_MASK: return (flags & STW_ATTN_BLOCK_MASK) != 0;
    default: return 1; /* q, k, v, out, dout, lse; out stays null with a given delta: stw_verify_args */
    }
}

/* q, k, v (or their gradients) as disjoint elements of one buffer. */
static int is_interleaved(const stw_attn_desc *d, const stw_attn_strides *q, const stw_attn_strides *k,
                          const stw_attn_strides *v) {
    return q->seq == k->seq && k->seq == v->seq &&
           q->seq == d->heads_q * q->head + d->heads_kv * k->head + d->heads_kv * v->head && q->batch == k->batch &&
           k->batch == v->batch;
}

static int is_trio_interleaved(const stw_attn_desc *d, stw_verify_tensor first) {
    if (first == STW_VERIFY_Q) return is_interleaved(d, &d->q, &d->k, &d->v);
    stw_dtype dq = or_else(d->dq_dtype, d->dtype);
    return dq == or_else(d->dk_dtype, d->dtype) && dq == or_else(d->dv_dtype, d->dtype) &&
           is_interleaved(d, &d->dq, &d->dk, &d->dv);
}

static size_t round_up(size_t value) { return (value + CASE_ALIGNMENT - 1) / CASE_ALIGNMENT * CASE_ALIGNMENT; }

/* Offsets of k and v (dk and dv) within the buffer of q (dq), and its size. */
static size_t place_trio(stw_verify_case *c, stw_verify_tensor first, size_t at) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_attn_strides *q = first == STW_VERIFY_Q ? &d->q : &d->dq, *k = first == STW_VERIFY_Q ? &d->k : &d->dk;
    size_t element = stw_dtype_size(first == STW_VERIFY_Q ? d->dtype : or_else(d->dq_dtype, d->dtype)), end = 0;
    c->offset[first] = at;
    c->offset[first + 1] = at + (size_t)(d->heads_q * q->head) * element;
    c->offset[first + 2] = c->offset[first + 1] + (size_t)(d->heads_kv * k->head) * element;
    for (int i = 0; i < 3; ++i) {
        size_t stop = c->offset[first + i] + c->size[first + i];
        end = stop > end ? stop : end;
    }
    return end;
}

static stw_status make_arena(stw_verify_case *c, int with_rule) {
    const stw_problem *p = &c->problem;
    int interleaved[2] = {is_trio_interleaved(&p->desc, STW_VERIFY_Q), is_trio_interleaved(&p->desc, STW_VERIFY_DQ)};
    size_t at = CASE_GUARD;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id) {
        place t = place_of(c, (stw_verify_tensor)id);
        if (!t.element) t.element = 4;
        if (!reach(&t, &c->size[id]) || c->size[id] > CASE_BYTES_MAX - at)
            return stw_fail(STW_E_NO_MEMORY, "case: %s needs more than %zu bytes", stw_verify_tensor_names[id],
                            CASE_BYTES_MAX);
    }
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id) {
        int trio = id >= STW_VERIFY_DQ;
        c->present[id] = (unsigned char)is_present(p, (stw_verify_tensor)id);
        if (interleaved[0] && (id == STW_VERIFY_K || id == STW_VERIFY_V)) continue;
        if (interleaved[1] && (id == STW_VERIFY_DK || id == STW_VERIFY_DV)) continue;
        c->offset[id] = at + (size_t)p->skew * place_of(c, (stw_verify_tensor)id).element;
        if (id == (trio ? STW_VERIFY_DQ : STW_VERIFY_Q) && interleaved[trio])
            at = place_trio(c, (stw_verify_tensor)id, c->offset[id]);
        else if (c->present[id]) at = c->offset[id] + c->size[id];
        at = round_up(at) + CASE_GUARD;
        if (at > CASE_BYTES_MAX) return stw_fail(STW_E_NO_MEMORY, "case: more than %zu bytes", CASE_BYTES_MAX);
    }
    c->bytes = at;
    c->host = malloc(at);
    c->rule = with_rule ? malloc(at) : NULL;
    if (!c->host || (with_rule && !c->rule)) return stw_fail(STW_E_NO_MEMORY, "case: no memory for %zu bytes", at);
    memset(c->host, 0xFF, at); /* NaN in every type */
    if (with_rule) memset(c->rule, STW_VERIFY_KEEP, at);
    return STW_OK;
}

/* A tensor that holds no element is null in the call. */
static int holds(const stw_verify_case *c, stw_verify_tensor id) { return c->present[id] && c->size[id]; }

enum {
    ROWS_OF_DEF = 0
#define STW_ATTN_TENSOR(...)   +1
#define STW_ATTN_EXTRA(...)    +1
#define STW_ATTN_POSITION(...) +1
#include "common/attn_tensors.def"
};
_Static_assert(STW_VERIFY_TENSOR_COUNT == ROWS_OF_DEF, "a case has everything of common/attn_tensors.def");

stw_attn_args stw_verify_args(const stw_verify_case *c, const void *base) {
    stw_attn_args args = c->values;
    unsigned char *at = (unsigned char *)(uintptr_t)base;
#define CASE_POINTER(id, field)                                                                                        \
    args.field = holds(c, STW_VERIFY_##id) ? (void *)(at + c->offset[STW_VERIFY_##id]) : NULL;
    STW_VERIFY_TENSORS(CASE_POINTER)
#undef CASE_POINTER
    return args;
}

/* ---- reference ------------------------------------------------------------------------------------ */

/* The LSE handed to the backward: data_inf_lse replaces some, as callers do that mark empty rows by +inf;
 * data_nan_lse a few, as a forward leaves them that met a NaN. */
static double given_lse(const stw_verify_case *c, int64_t i, double lse) {
    if (c->problem.data == STW_DATA_NAN_LSE) return i % 64 == 9 ? NAN : lse;
    if ((c->problem.data != STW_DATA_INF_LSE && c->problem.data != STW_DATA_DEAD_ROWS) || i % 2 == 0) return lse;
    return i % 4 == 1 ? INFINITY : -INFINITY;
}

/* out and lse of the reference, rounded to their types, where the problem has them. */
static void store_forward(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t i = 0; i < c->q[b].used; ++i) {
                int64_t row = (stw_attn_is_packed(d, 0) ? c->q[b].first : b * d->max_seq_q) + i, low, end;
                stw_verify_visible(c, b, i, &low, &end);
                stw_store_f64(c->host + c->offset[STW_VERIFY_LSE], stw_verify_row_index(c, STW_VERIFY_LSE, b, h, i),
                              stw_dtype_of_rows(d->dtype),
                              given_lse(c, i, c->forward.lse[h * c->forward.rows_q + row]));
                if (low == end) continue; /* out of a row that sees no key stays NaN: nobody may read it */
                const double *from = c->forward.out + (row * d->heads_q + h) * d->head_dim_v;
                int64_t to = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
                for (int64_t n = 0; n < d->head_dim_v; ++n)
                    stw_store_f64(c->host + c->offset[STW_VERIFY_OUT], to + n * stw_verify_step(c, STW_VERIFY_OUT),
                                  d->dtype, stw_verify_is_dead(c, i) ? (double)NAN : from[n]);
            }
}

static stw_status make_expectation(stw_verify_case *c) {
    stw_attn_args args = stw_verify_args(c, c->host);
    stw_status status = stw_ref_attn_fwd(&c->problem.desc, &args, &c->forward);
    if (status) return stw_fail(status, "case: the reference's forward returned %s", stw_status_name(status));
    store_forward(c);
    if (c->problem.desc.flags & STW_ATTN_GIVEN_DELTA) {
        stw_verify_fill_delta(c);
        c->present[STW_VERIFY_OUT] = 0;
    }
    if (c->problem.op == STW_PROBLEM_ATTN_FWD) return STW_OK;
    args = stw_verify_args(c, c->host);
    if (stw_verify_is_extreme(&c->problem)) /* values and sums of absolute terms; no baselines */
        status = stw_ref_attn_bwd(&c->problem.desc, &args, NULL, &c->expectation.reference);
    else status = stw_expect_attn_bwd(&c->problem.desc, &args, &c->expectation);
    return status ? stw_fail(status, "case: the reference's backward returned %s", stw_status_name(status)) : STW_OK;
}

static stw_status build(const stw_problem *problem, int with_rule, stw_verify_case *case_out) {
    memset(case_out, 0, sizeof *case_out);
    stw_verify_case *c = case_out;
    const stw_attn_desc *d = &problem->desc;
    c->problem = *problem;
    c->values = STW_INIT(stw_attn_args);
    if (d->batch < 0 || d->batch > 1 << 24 || d->heads_kv < 1 || d->heads_q < 1 || d->heads_q % d->heads_kv)
        return stw_fail(STW_E_INVALID, "case: batch %lld, heads %lld and %lld: no problem to make data for",
                        (long long)d->batch, (long long)d->heads_q, (long long)d->heads_kv);
    c->q = calloc((size_t)d->batch + 1, sizeof *c->q);
    c->kv = calloc((size_t)d->batch + 1, sizeof *c->kv);
    stw_status status = c->q && c->kv ? STW_OK : stw_fail(STW_E_NO_MEMORY, "case: no memory");
    if (!status) status = stw_verify_make_side(c, 0);
    if (!status) status = stw_verify_make_side(c, 1);
    if (!status) status = make_arena(c, with_rule);
    if (!status) {
        c->values.q_offset = problem->q_offset, c->values.k_offset = problem->k_offset;
        c->values.dropout_seed = (uint64_t)problem->dropout_seed;
        c->values.dropout_offset = (uint64_t)problem->dropout_offset;
        if (problem->by_pointer) /* the pointers win: these must not matter */
            c->values.dropout_seed = c->values.dropout_offset = 77, c->values.q_offset = c->values.k_offset = 1234;
        stw_verify_fill(c);
    } else stw_verify_free(c);
    return status;
}

stw_status stw_verify_build_inputs(const stw_problem *problem, stw_verify_case *case_out) {
    return build(problem, 0, case_out);
}

stw_status stw_verify_build(const stw_problem *problem, stw_verify_case *case_out) {
    stw_status status = build(problem, 1, case_out);
    if (!status) status = make_expectation(case_out);
    if (status) stw_verify_free(case_out);
    return status;
}

void stw_verify_free(stw_verify_case *c) {
    stw_ref_free(&c->forward);
    stw_expectation_free(&c->expectation);
    free(c->host);
    free(c->rule);
    free(c->q);
    free(c->kv);
    memset(c, 0, sizeof *c);
}

size_t stw_verify_reach(const stw_attn_desc *desc, stw_verify_tensor tensor) {
    stw_verify_case c = {.problem = {.desc = *desc}};
    place t = place_of(&c, tensor);
    size_t bytes;
    return reach(&t, &bytes) ? bytes : SIZE_MAX;
}
