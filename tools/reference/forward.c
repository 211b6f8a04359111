/* SPDX-License-Identifier: MIT
 *
 * The forward in float64 (of f64 problems in long double): out and LSE by the formula, one query row at a
 * time. Also the function whose finite differences the tests hold the backward against, so it shares no
 * arithmetic with core.inl. */
#include "backward.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REAL           double
#define NAME(x)        x##_f64
#define MATH(function) function
#include "forward_row.inl"
#undef REAL
#undef NAME
#undef MATH

#define REAL           long double
#define NAME(x)        x##_wide
#define MATH(function) function##l
#include "forward_row.inl"

/* One query head into the result. */
static void ref_forward_head(const stw_ref_problem *p, const stw_ref_head *head, int64_t b, int64_t h, long double *s,
                             stw_ref_result *result) {
    const stw_attn_desc *d = p->desc;
    int64_t first = stw_ref_result_row(p->packed_q, d->max_seq_q, &head->side_q, b, 0);
    for (int64_t i = 0; i < head->side_q.rows; ++i) {
        double *out = result->out + ((first + i) * d->heads_q + h) * d->head_dim_v;
        double lse = i >= head->queries       ? -INFINITY
                     : head->dtype == STW_F64 ? ref_forward_row_wide(head, i, s, out)
                                              : ref_forward_row_f64(head, i, (double *)(void *)s, out);
        result->lse[h * p->rows_q + first + i] = lse;
    }
}

stw_status stw_ref_attn_fwd(const stw_attn_desc *desc, const stw_attn_args *args, stw_ref_result *result) {
    stw_ref_problem problem;
    stw_ref_head head = {0};
    memset(result, 0, sizeof *result);
    stw_status status = stw_ref_problem_init(&problem, desc, args, 0);
    if (status != STW_OK) return status;
    long double *s = malloc((size_t)(desc->max_seq_kv + desc->head_dim_v + 1) * sizeof *s);
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
