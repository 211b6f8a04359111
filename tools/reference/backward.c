/* SPDX-License-Identifier: MIT
 *
 * Walks the heads of a backward problem for one or more evaluations: see backward.h. Owns the running sums
 * that outlive a head (dK and dV of a group, dBias, dSink) and the rounding of outputs to their types. */
#include "backward.h"

#include "order.h"
#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REF_MAX_EVALS 10

int stw_ref_allow_avx2 = 1;

/* Running state of one evaluation. */
typedef struct ref_eval_state {
    const stw_ref_eval *eval;
    const stw_ref_core *core;
    stw_ref_result *result;
    stw_ref_order order;
    void *dk, *dv, *dbias, *dsink;
    double *to_dq, *to_dk, *to_dv, *to_dbias, *to_dsink, *to_delta; /* in the result; null: not wanted */
} ref_eval_state;

typedef struct ref_walk {
    const stw_ref_problem *problem;
    stw_ref_head head;
    stw_ref_work work;
    ref_eval_state *states;
    int count;
} ref_walk;

/* One type wider in f64 problems. */
static const stw_ref_core *ref_core(int f32, stw_dtype dtype) {
    if (dtype == STW_F64 && !f32) return &stw_ref_core_wide;
    f32 &= dtype != STW_F64;
#ifdef STW_REF_HAVE_AVX2
    if (stw_ref_allow_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return f32 ? &stw_ref_core_f32_avx2 : &stw_ref_core_f64_avx2;
#endif
    return f32 ? &stw_ref_core_f32 : &stw_ref_core_f64;
}

static int ref_some_head_sees(const stw_ref_problem *p, const stw_ref_side *q, const stw_ref_side *kv, int64_t b,
                              int64_t i, int64_t j) {
    if (!stw_ref_hides(p)) return 1;
    for (int64_t h = 0; h < p->desc->heads_q; ++h)
        if (stw_ref_unhidden(p, q, kv, b, h, i, j)) return 1;
    return 0;
}

/* Rows of a sequence are padding until a visible pair makes them live. */
static void ref_mark_rows(const stw_ref_problem *p, stw_ref_result *result, int64_t b) {
    stw_ref_side q = stw_ref_side_q(p, b), kv = stw_ref_side_kv(p, b);
    unsigned char *row_q = result->row_q + stw_ref_result_row(p->packed_q, p->desc->max_seq_q, &q, b, 0);
    unsigned char *row_kv = result->row_kv + stw_ref_result_row(p->packed_kv, p->desc->max_seq_kv, &kv, b, 0);
    for (int64_t i = 0; i < q.rows; ++i) row_q[i] = STW_REF_ROW_ZERO;
    for (int64_t j = 0; j < kv.rows; ++j) row_kv[j] = STW_REF_ROW_ZERO;
    for (int64_t i = 0; i < q.used; ++i) {
        for (int64_t j = 0; j < kv.used; ++j) {
            if (stw_ref_visible(p, &q, &kv, i, j) && ref_some_head_sees(p, &q, &kv, b, i, j))
                row_q[i] = row_kv[j] = STW_REF_ROW_LIVE;
        }
    }
}

stw_status stw_ref_result_shape(const stw_ref_problem *p, stw_ref_result *result) {
    if (result->row_q) return STW_OK;
    result->rows_q = p->rows_q;
    result->rows_kv = p->rows_kv;
    memcpy(result->bias_extent, p->bias_extent, sizeof result->bias_extent);
    result->row_q = calloc((size_t)p->rows_q + 1, 1);
    result->row_kv = calloc((size_t)p->rows_kv + 1, 1);
    if (!result->row_q || !result->row_kv) return STW_E_NO_MEMORY;
    for (int64_t b = 0; b < p->desc->batch; ++b) ref_mark_rows(p, result, b);
    return STW_OK;
}

double *stw_ref_result_rows(const unsigned char *kinds, int64_t rows, int64_t row_size) {
    double *data = calloc((size_t)(rows * row_size) + 1, sizeof(double));
    for (int64_t r = 0; data && r < rows; ++r) {
        if (kinds[r] != STW_REF_ROW_UNTOUCHED) continue;
        for (int64_t n = 0; n < row_size; ++n) data[r * row_size + n] = NAN;
    }
    return data;
}

static int64_t ref_bias_elements(const stw_ref_problem *p) {
    return p->bias_extent[0] * p->bias_extent[1] * p->bias_extent[2] * p->bias_extent[3];
}

/* Makes the result arrays that the evaluation fills. */
static int ref_state_results(const stw_ref_problem *p, ref_eval_state *s) {
    const stw_attn_desc *d = p->desc;
    stw_ref_result *r = s->result;
    int abs = s->eval->absolute, complete = 1;
    if (p->outputs & STW_OUT_DQ) {
        s->to_dq = stw_ref_result_rows(r->row_q, p->rows_q, d->heads_q * d->head_dim_qk);
        complete &= s->to_dq != NULL;
        *(abs ? &r->abs_dq : &r->dq) = s->to_dq;
    }
    if (p->outputs & STW_OUT_DK) {
        s->to_dk = stw_ref_result_rows(r->row_kv, p->rows_kv, d->heads_kv * d->head_dim_qk);
        complete &= s->to_dk != NULL;
        *(abs ? &r->abs_dk : &r->dk) = s->to_dk;
    }
    if (p->outputs & STW_OUT_DV) {
        s->to_dv = stw_ref_result_rows(r->row_kv, p->rows_kv, d->heads_kv * d->head_dim_v);
        complete &= s->to_dv != NULL;
        *(abs ? &r->abs_dv : &r->dv) = s->to_dv;
    }
    if (p->outputs & STW_OUT_DBIAS) {
        s->to_dbias = calloc((size_t)ref_bias_elements(p) + 1, sizeof(double));
        complete &= s->to_dbias != NULL;
        *(abs ? &r->abs_dbias : &r->dbias) = s->to_dbias;
    }
    if (p->outputs & STW_OUT_DSINK) {
        s->to_dsink = calloc((size_t)d->heads_q, sizeof(double));
        complete &= s->to_dsink != NULL;
        *(abs ? &r->abs_dsink : &r->dsink) = s->to_dsink;
    }
    if (!abs) {
        s->to_delta = r->delta = calloc((size_t)(d->heads_q * p->rows_q) + 1, sizeof(double));
        complete &= s->to_delta != NULL;
        for (int64_t n = 0; s->to_delta && n < d->heads_q * p->rows_q; ++n)
            if (r->row_q[n % p->rows_q] == STW_REF_ROW_UNTOUCHED) s->to_delta[n] = NAN;
    }
    return complete;
}

static void *ref_sums(int64_t rows, int64_t dim) {
    size_t bytes = (size_t)((rows + 1) * stw_ref_padded(dim)) * STW_REF_WIDEST;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static stw_status ref_state_open(ref_eval_state *s, const ref_walk *walk, int64_t queries, int64_t keys) {
    const stw_attn_desc *d = walk->problem->desc;
    stw_status status = stw_ref_result_shape(walk->problem, s->result);
    if (status == STW_OK) status = stw_ref_order_open(&s->order, queries, keys, d->head_dim_qk, d->head_dim_v);
    if (status != STW_OK) return status;
    s->core = ref_core(s->eval->mode.f32, d->dtype);
    s->dk = ref_sums(keys, d->head_dim_qk);
    s->dv = ref_sums(keys, d->head_dim_v);
    s->dsink = calloc((size_t)d->heads_q, STW_REF_WIDEST);
    int complete = ref_state_results(walk->problem, s) && s->dk && s->dv && s->dsink;
    if (s->to_dbias) {
        s->dbias = calloc((size_t)ref_bias_elements(walk->problem) + 1, STW_REF_WIDEST);
        complete &= s->dbias != NULL;
    }
    return complete ? STW_OK : STW_E_NO_MEMORY;
}

static void ref_state_close(ref_eval_state *s) {
    stw_ref_order_close(&s->order);
    free(s->dk);
    free(s->dv);
    free(s->dbias);
    free(s->dsink);
}

/* One query head of one evaluation. */
static void ref_eval_head(const ref_walk *walk, ref_eval_state *s, int64_t b, int64_t h) {
    const stw_ref_problem *p = walk->problem;
    const stw_attn_desc *d = p->desc;
    int64_t row = stw_ref_result_row(p->packed_q, d->max_seq_q, &walk->head.side_q, b, 0);
    stw_ref_sums sums = {.dk = s->to_dk ? s->dk : NULL, .dv = s->to_dv ? s->dv : NULL, .dbias = s->dbias};
    if (s->to_dsink) sums.dsink = (char *)s->dsink + (size_t)h * s->core->size;
    sums.dq_stride = d->heads_q * d->head_dim_qk;
    if (s->to_dq) sums.dq = s->to_dq + row * sums.dq_stride + h * d->head_dim_qk;
    if (s->to_delta) sums.delta = s->to_delta + h * p->rows_q + row;
    s->core->backward(&walk->head, &s->order, s->eval, &walk->work, &sums);
}

/* One group of query heads: dK and dV are summed over it, then stored. */
static void ref_walk_group(ref_walk *walk, int64_t b, int64_t h_kv) {
    const stw_ref_problem *p = walk->problem;
    const stw_attn_desc *d = p->desc;
    stw_ref_head *head = &walk->head;
    int64_t row = stw_ref_result_row(p->packed_kv, d->max_seq_kv, &head->side_kv, b, 0);
    int64_t stride_k = d->heads_kv * d->head_dim_qk, stride_v = d->heads_kv * d->head_dim_v;
    stw_ref_head_load_kv(p, head, b, h_kv);
    for (int n = 0; n < walk->count; ++n) {
        size_t size = (size_t)head->keys * walk->states[n].core->size;
        memset(walk->states[n].dk, 0, (size_t)stw_ref_padded(d->head_dim_qk) * size);
        memset(walk->states[n].dv, 0, (size_t)stw_ref_padded(d->head_dim_v) * size);
    }
    for (int64_t h = h_kv * p->group; h < (h_kv + 1) * p->group; ++h) {
        stw_ref_head_load_q(p, head, b, h, 1);
        for (int n = 0; n < walk->count; ++n) ref_eval_head(walk, &walk->states[n], b, h);
    }
    for (int n = 0; n < walk->count; ++n) {
        ref_eval_state *s = &walk->states[n];
        double scale = s->eval->absolute ? fabs(p->scale) : p->scale;
        if (s->to_dk) {
            double *to = s->to_dk + row * stride_k + h_kv * d->head_dim_qk;
            s->core->store(s->dk, head->keys, d->head_dim_qk, scale, to, stride_k);
        }
        if (s->to_dv) {
            double *to = s->to_dv + row * stride_v + h_kv * d->head_dim_v;
            s->core->store(s->dv, head->keys, d->head_dim_v, 1, to, stride_v);
        }
    }
}

static void ref_round_all(double *data, int64_t count, stw_dtype dtype) {
    for (int64_t n = 0; data && n < count; ++n) data[n] = (double)stw_round_to((float)data[n], dtype);
}

/* Sums that cover the whole problem, then every output rounded once to its type. */
static void ref_state_finish(const stw_ref_problem *p, ref_eval_state *s) {
    const stw_attn_desc *d = p->desc;
    int64_t bias = ref_bias_elements(p);
    if (s->to_dbias) s->core->store(s->dbias, 1, bias, 1, s->to_dbias, bias);
    if (s->to_dsink) s->core->store(s->dsink, 1, d->heads_q, 1, s->to_dsink, d->heads_q);
    if (!s->eval->mode.f32 || d->dtype == STW_F64) return;
    ref_round_all(s->to_dq, p->rows_q * d->heads_q * d->head_dim_qk, d->dq_dtype ? d->dq_dtype : d->dtype);
    ref_round_all(s->to_dk, p->rows_kv * d->heads_kv * d->head_dim_qk, d->dk_dtype ? d->dk_dtype : d->dtype);
    ref_round_all(s->to_dv, p->rows_kv * d->heads_kv * d->head_dim_v, d->dv_dtype ? d->dv_dtype : d->dtype);
    ref_round_all(s->to_dbias, bias, d->dbias_dtype ? d->dbias_dtype : d->bias_dtype);
}

static stw_status ref_walk_open(ref_walk *walk, const stw_ref_eval *evals, stw_ref_result *const *results) {
    const stw_attn_desc *d = walk->problem->desc;
    int64_t queries = 0, keys = 0;
    for (int64_t b = 0; b < d->batch; ++b) {
        stw_ref_side q = stw_ref_side_q(walk->problem, b), kv = stw_ref_side_kv(walk->problem, b);
        if (q.used > queries) queries = q.used;
        if (kv.used > keys) keys = kv.used;
    }
    stw_status status = stw_ref_head_open(walk->problem, &walk->head);
    if (status == STW_OK) status = stw_ref_work_open(&walk->work, keys, d->head_dim_qk, d->head_dim_v);
    for (int n = 0; status == STW_OK && n < walk->count; ++n) {
        walk->states[n].eval = &evals[n];
        walk->states[n].result = results[n];
        status = ref_state_open(&walk->states[n], walk, queries, keys);
    }
    return status;
}

stw_status stw_ref_backward_many(const stw_ref_problem *problem, const stw_ref_eval *evals, int count,
                                 stw_ref_result *const *results) {
    if (count < 1 || count > REF_MAX_EVALS) return STW_E_INVALID;
    const stw_attn_desc *d = problem->desc;
    ref_eval_state states[REF_MAX_EVALS];
    ref_walk walk = {.problem = problem, .states = states, .count = count};
    memset(states, 0, sizeof states);
    stw_status status = ref_walk_open(&walk, evals, results);
    for (int64_t b = 0; status == STW_OK && b < d->batch; ++b) {
        stw_ref_head_load_sequence(problem, &walk.head, b);
        for (int n = 0; n < count; ++n) stw_ref_order_set(&states[n].order, &walk.head, &evals[n].mode);
        for (int64_t h_kv = 0; h_kv < d->heads_kv; ++h_kv) ref_walk_group(&walk, b, h_kv);
    }
    for (int n = 0; n < count; ++n) {
        if (status == STW_OK) ref_state_finish(problem, &states[n]);
        ref_state_close(&states[n]);
    }
    stw_ref_work_close(&walk.work);
    stw_ref_head_close(&walk.head);
    return status;
}
