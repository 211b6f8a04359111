/* SPDX-License-Identifier: MIT
 *
 * The forward in float64: out and LSE by the formula, one query row at a time. Also the function whose
 * finite differences the tests hold the backward against, so it shares no arithmetic with core.inl. */
#include "backends/cpu/reference/backward.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double ref_forward_score(const stw_ref_head *head, int64_t i, int64_t j) {
    const float *q = head->q + i * head->dim, *k = head->k + j * head->dim;
    double s = 0;
    for (int64_t d = 0; d < head->dim; ++d) s += (double)q[d] * (double)k[d];
    s *= head->scale;
    if (head->softcap > 0) s = head->softcap * tanh(s / head->softcap);
    if (head->bias) {
        int64_t index = head->bias_first + i * head->bias_query + j * head->bias_key;
        s += (double)stw_load_f32(head->bias, index, head->bias_dtype);
    }
    return s + stw_ref_head_alibi(head, i, j);
}

/* out[dim_v] and LSE of local row i; `s` holds the row's scores. A row without finite support has out 0 and
 * LSE = sink (-inf without one). */
static double ref_forward_row(const stw_ref_head *head, int64_t i, double *s, double *out) {
    const unsigned char *pair = head->pair + i * head->keys;
    double top = head->sink, sum = 0;
    for (int64_t j = 0; j < head->keys; ++j) {
        s[j] = (pair[j] & STW_REF_PAIR_VISIBLE) ? ref_forward_score(head, i, j) : -INFINITY;
        if (s[j] > top || isnan(s[j])) top = s[j];
    }
    if (top == -INFINITY) return top;
    for (int64_t j = 0; j < head->keys; ++j) sum += exp(s[j] - top);
    double lse = top + log(sum + exp(head->sink - top));
    for (int64_t j = 0; j < head->keys; ++j) {
        if (s[j] == -INFINITY || !(pair[j] & STW_REF_PAIR_KEPT)) continue;
        double p = exp(s[j] - lse) * head->keep_scale;
        for (int64_t d = 0; d < head->dim_v; ++d) out[d] += p * (double)head->v[j * head->dim_v + d];
    }
    return lse;
}

/* One query head into the result. */
static void ref_forward_head(const stw_ref_problem *p, const stw_ref_head *head, int64_t b, int64_t h,
                             double *s, stw_ref_result *result) {
    const stw_attn_desc *d = p->desc;
    int64_t first = stw_ref_result_row(p->packed_q, d->max_seq_q, &head->side_q, b, 0);
    for (int64_t i = 0; i < head->side_q.rows; ++i) {
        double *out = result->out + ((first + i) * d->heads_q + h) * d->head_dim_v;
        double lse = i < head->queries ? ref_forward_row(head, i, s, out) : -INFINITY;
        result->lse[h * p->rows_q + first + i] = lse;
    }
}

stw_status stw_ref_attn_fwd(const stw_attn_desc *desc, const stw_attn_args *args, stw_ref_result *result) {
    stw_ref_problem problem;
    stw_ref_head head = {0};
    memset(result, 0, sizeof *result);
    stw_status status = stw_ref_problem_init(&problem, desc, args, 0);
    if (status != STW_OK) return status;
    double *s = malloc((size_t)(desc->max_seq_kv + 1) * sizeof(double));
    status = stw_ref_head_open(&problem, &head);
    if (status == STW_OK) status = stw_ref_result_shape(&problem, result);
    if (status == STW_OK) {
        result->out = stw_ref_result_rows(result->row_q, problem.rows_q, desc->heads_q * desc->head_dim_v);
        result->lse = calloc((size_t)(desc->heads_q * problem.rows_q) + 1, sizeof(double));
    }
    if (!s || !result->out || !result->lse) status = STW_E_NO_MEMORY;
    for (int64_t n = 0; status == STW_OK && n < desc->heads_q * problem.rows_q; ++n) result->lse[n] = NAN;
    for (int64_t b = 0; status == STW_OK && b < desc->batch; ++b) {
        stw_ref_head_load_sequence(&problem, &head, b);
        for (int64_t h = 0; h < desc->heads_q; ++h) {
            if (h % problem.group == 0) stw_ref_head_load_kv(&problem, &head, b, h / problem.group);
            stw_ref_head_load_q(&problem, &head, b, h, 0);
            ref_forward_head(&problem, &head, b, h, s, result);
        }
    }
    stw_ref_head_close(&head);
    free(s);
    if (status != STW_OK) stw_ref_free(result);
    return status;
}
