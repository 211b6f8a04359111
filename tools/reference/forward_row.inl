/* SPDX-License-Identifier: MIT
 *
 * One row of the forward, for REAL = double or long double. Included by forward.c with REAL, NAME(x) and
 * MATH(function) defined. */

static REAL NAME(ref_forward_score)(const stw_ref_head *head, int64_t i, int64_t j) {
    const double *q = head->q + i * head->dim, *k = head->k + j * head->dim;
    REAL s = 0;
    for (int64_t d = 0; d < head->dim; ++d) s += (REAL)q[d] * (REAL)k[d];
    s *= (REAL)head->scale;
    if (head->softcap > 0) s = (REAL)head->softcap * MATH(tanh)(s / (REAL)head->softcap);
    if (head->bias) {
        int64_t index = head->bias_first + i * head->bias_query + j * head->bias_key;
        s += (REAL)stw_load_f64(head->bias, index, head->bias_dtype);
    }
    return s + (REAL)stw_ref_head_alibi(head, i, j);
}

/* out[dim_v] and LSE of local row i; `s` has room for the row's scores and out. A row without finite support
 * has out 0 and LSE = sink (-inf without one). */
static double NAME(ref_forward_row)(const stw_ref_head *head, int64_t i, REAL *s, double *out) {
    const unsigned char *pair = head->pair + i * head->keys;
    REAL top = (REAL)head->sink, sum = 0, *row = s + head->keys;
    for (int64_t j = 0; j < head->keys; ++j) {
        s[j] = (pair[j] & STW_REF_PAIR_VISIBLE) ? NAME(ref_forward_score)(head, i, j) : -(REAL)INFINITY;
        if (s[j] > top || isnan(s[j])) top = s[j];
    }
    if (top == -(REAL)INFINITY) return -INFINITY;
    for (int64_t j = 0; j < head->keys; ++j) sum += MATH(exp)(s[j] - top);
    REAL lse = top + MATH(log)(sum + MATH(exp)((REAL)head->sink - top));
    for (int64_t d = 0; d < head->dim_v; ++d) row[d] = 0;
    for (int64_t j = 0; j < head->keys; ++j) {
        if (s[j] == -(REAL)INFINITY || !(pair[j] & STW_REF_PAIR_KEPT)) continue;
        REAL p = MATH(exp)(s[j] - lse) * (REAL)head->keep_scale;
        for (int64_t d = 0; d < head->dim_v; ++d) row[d] += p * (REAL)head->v[j * head->dim_v + d];
    }
    for (int64_t d = 0; d < head->dim_v; ++d) out[d] = (double)row[d];
    return (double)lse;
}
