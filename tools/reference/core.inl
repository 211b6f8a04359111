/* SPDX-License-Identifier: MIT
 *
 * Attention backward of one head as include/sternway/attn_bwd.h writes it, for REAL = float, double or long
 * double. Included by core_*.c with REAL, NAME(x), MATH(function), REAL_IS_F32 and VECTOR_BYTES defined. Every sum is
 * sequential in the order it is given; vectors run across independent sums only. Keys, queries and head dim are
 * gathered in the order of summation first, so that the loops are contiguous. */

#if VECTOR_BYTES
typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES), may_alias));
#else
typedef REAL NAME(vec);
#endif
enum { NAME(LANES) = (int)(sizeof(NAME(vec)) / sizeof(REAL)) };

/* c[row m][n] += sum over k of a[m, k] * b[k][n], k in order, pairs without live[m, k] left out. m and k are
 * `a_m` and `a_k` elements apart in a and live. Row m of c is row rows[m] when rows is given. */
typedef struct NAME(operand) {
    const REAL *a;
    const unsigned char *live;
    int64_t a_m, a_k;
    const REAL *b;
    int64_t count_m, count_k;
} NAME(operand);

static void NAME(multiply)(const NAME(operand) * x, int64_t width, REAL *c, const int32_t *rows) {
    for (int64_t m = 0; m < x->count_m; ++m) {
        REAL *row = c + (rows ? rows[m] : m) * width;
        const REAL *a = x->a + m * x->a_m;
        const unsigned char *live = x->live ? x->live + m * x->a_m : NULL;
        for (int64_t n = 0; n < width; n += 4 * NAME(LANES)) {
            NAME(vec) *to = (NAME(vec) *)(row + n);
            NAME(vec) sum0 = to[0], sum1 = to[1], sum2 = to[2], sum3 = to[3];
            for (int64_t k = 0; k < x->count_k; ++k) {
                if (live && !live[k * x->a_k]) continue;
                const NAME(vec) *from = (const NAME(vec) *)(x->b + k * width + n);
                REAL factor = a[k * x->a_k];
                sum0 += factor * from[0];
                sum1 += factor * from[1];
                sum2 += factor * from[2];
                sum3 += factor * from[3];
            }
            to[0] = sum0;
            to[1] = sum1;
            to[2] = sum2;
            to[3] = sum3;
        }
    }
}

static REAL NAME(sign)(REAL x, int absolute) { return absolute ? MATH(fabs)(x) : x; }

/* K and V in the order of summation: turned for S and dP, as rows for dQ. */
static void NAME(load_keys)(const stw_ref_head *head, const stw_ref_order *order, int absolute,
                            const stw_ref_work *work) {
    int64_t width = stw_ref_padded(head->keys), row = stw_ref_padded(head->dim);
    REAL *k_turned = work->k_turned, *v_turned = work->v_turned, *k_rows = work->k_rows;
    memset(k_turned, 0, (size_t)(head->dim * width) * sizeof(REAL));
    memset(v_turned, 0, (size_t)(head->dim_v * width) * sizeof(REAL));
    memset(k_rows, 0, (size_t)(head->keys * row) * sizeof(REAL));
    for (int64_t n = 0; n < head->keys; ++n) {
        const double *k = head->k + order->key[n] * head->dim, *v = head->v + order->key[n] * head->dim_v;
        for (int64_t d = 0; d < head->dim; ++d) k_turned[d * width + n] = (REAL)k[order->dim[d]];
        for (int64_t d = 0; d < head->dim_v; ++d)
            v_turned[d * width + n] = NAME(sign)((REAL)v[order->dim_v[d]], absolute);
        for (int64_t d = 0; d < head->dim; ++d) k_rows[n * row + d] = NAME(sign)((REAL)k[d], absolute);
    }
}

/* Query rows first .. first+count of the order. dO of a row that sees no key is zero in `head`. */
static void NAME(load_queries)(const stw_ref_head *head, const stw_ref_order *order, int absolute,
                               const stw_ref_work *work, int64_t first, int64_t count) {
    int64_t row = stw_ref_padded(head->dim), row_v = stw_ref_padded(head->dim_v);
    REAL *q_mixed = work->q_mixed, *do_mixed = work->do_mixed, *q_rows = work->q_rows, *do_rows = work->do_rows;
    memset(q_rows, 0, (size_t)(count * row) * sizeof(REAL));
    memset(do_rows, 0, (size_t)(count * row_v) * sizeof(REAL));
    for (int64_t r = 0; r < count; ++r) {
        int64_t i = order->query[first + r];
        const double *q = head->q + i * head->dim, *dout = head->dout + i * head->dim_v;
        for (int64_t d = 0; d < head->dim; ++d) {
            q_mixed[r * row + d] = (REAL)q[order->dim[d]];
            q_rows[r * row + d] = NAME(sign)((REAL)q[d], absolute);
        }
        for (int64_t d = 0; d < head->dim_v; ++d) {
            do_mixed[r * row_v + d] = NAME(sign)((REAL)dout[order->dim_v[d]], absolute);
            do_rows[r * row_v + d] = NAME(sign)((REAL)dout[d], absolute);
        }
    }
}

/* D_i; a row that sees no key has O = 0. On absolute values: -D_i with every term positive. */
static REAL NAME(delta)(const stw_ref_head *head, const stw_ref_order *order, int absolute, int64_t i) {
    if (head->given_delta) return absolute ? -MATH(fabs)((REAL)head->delta[i]) : (REAL)head->delta[i];
    REAL sum = 0;
    const double *out = head->out + i * head->dim_v, *dout = head->dout + i * head->dim_v;
    for (int64_t n = 0; head->sees[i] && n < head->dim_v; ++n) {
        int64_t d = order->delta[n];
        sum += NAME(sign)((REAL)out[d] * (REAL)dout[d], absolute);
    }
    REAL dlse = (REAL)head->dlse[i];
    return absolute ? -(sum + MATH(fabs)(dlse)) : sum - dlse;
}

static REAL NAME(exponential)(REAL s, REAL lse, const stw_ref_eval *eval) {
    const REAL log2e = (REAL)1.44269504088896340736L;
    if (eval->mode.exp2_form) return MATH(exp2)(MATH(fma)(s, log2e, -(lse * log2e)));
    return MATH(exp)(s - lse);
}

/* Final S of local (i, j) from the dot product; *slope_out = 1 - tanh^2. */
static REAL NAME(score)(const stw_ref_head *head, REAL dot, int64_t i, int64_t j, REAL *slope_out) {
    REAL s = dot * (REAL)head->scale;
    if (head->softcap > 0) {
        REAL t = MATH(tanh)(s / (REAL)head->softcap);
        s = (REAL)head->softcap * t;
        *slope_out = 1 - t * t;
    }
    if (head->bias) {
        int64_t index = head->bias_first + i * head->bias_query + j * head->bias_key;
        s += (REAL)stw_load_f64(head->bias, index, head->bias_dtype);
    }
    if (head->alibi) s += (REAL)stw_ref_head_alibi(head, i, j);
    return s;
}

static REAL NAME(operand_of)(REAL x, stw_dtype dtype) {
#if REAL_IS_F32
    return stw_round_to(x, dtype);
#else
    (void)dtype;
    return x;
#endif
}

/* One row: from dot products in p and ds to the operands P.Z and dS' there; dBias on the way. */
static void NAME(pairs)(const stw_ref_head *head, const stw_ref_order *order, const stw_ref_eval *eval, int64_t i,
                        REAL delta, REAL *p_row, REAL *ds_row, unsigned char *live, REAL *dbias) {
    const REAL lse = (REAL)head->lse[i];
    const int dead = isinf(head->lse[i]) != 0;
    for (int64_t n = 0; n < head->keys; ++n) {
        int64_t j = order->key[n];
        unsigned pair = head->pair[i * head->keys + j];
        REAL cap_slope = 1, p = 0, ds = 0;
        live[n] = 0;
        if ((pair & STW_REF_PAIR_VISIBLE) && !dead) {
            REAL s = NAME(score)(head, p_row[n], i, j, &cap_slope);
            if (s != -(REAL)INFINITY) {
                REAL z = (pair & STW_REF_PAIR_KEPT) ? (REAL)head->keep_scale : 0;
                REAL dp = z != 0 ? ds_row[n] * z : 0;
                p = NAME(exponential)(s, lse, eval);
                ds = p * (dp - delta);
                p = z != 0 ? p * z : 0;
                live[n] = 1;
                if (dbias) dbias[head->dbias_first + i * head->dbias_query + j * head->dbias_key] += ds;
            }
        }
        p_row[n] = NAME(operand_of)(p, head->dtype);
        ds_row[n] = NAME(operand_of)(ds * cap_slope, head->dtype);
    }
}

/* Query rows first .. first+count: everything they add to every gradient. */
static void NAME(block)(const stw_ref_head *head, const stw_ref_order *order, const stw_ref_eval *eval,
                        const stw_ref_work *work, const stw_ref_sums *sums, int64_t first, int64_t count) {
    const int64_t width = stw_ref_padded(head->keys), row = stw_ref_padded(head->dim);
    const int64_t row_v = stw_ref_padded(head->dim_v);
    REAL *p = work->p, *ds = work->ds, *dq = work->dq;
    NAME(load_queries)(head, order, eval->absolute, work, first, count);
    memset(p, 0, (size_t)(count * width) * sizeof(REAL));
    memset(ds, 0, (size_t)(count * width) * sizeof(REAL));
    memset(dq, 0, (size_t)(count * row) * sizeof(REAL));
    const NAME(operand) s_of = {work->q_mixed, NULL, row, 1, work->k_turned, count, head->dim};
    const NAME(operand) dp_of = {work->do_mixed, NULL, row_v, 1, work->v_turned, count, head->dim_v};
    NAME(multiply)(&s_of, width, p, NULL);
    NAME(multiply)(&dp_of, width, ds, NULL);
    for (int64_t r = 0; r < count; ++r) {
        int64_t i = order->query[first + r];
        REAL delta = NAME(delta)(head, order, eval->absolute, i);
        NAME(pairs)(head, order, eval, i, delta, p + r * width, ds + r * width, work->live + r * width, sums->dbias);
        if (sums->delta) sums->delta[i] = (double)delta;
        /* the row's sink term is defined where both logits are: sink = -inf or LSE = +-inf gives none */
        if (sums->dsink && !isinf(head->lse[i]) && head->sink != -INFINITY)
            *(REAL *)sums->dsink -= MATH(exp)((REAL)head->sink - (REAL)head->lse[i]) * delta;
    }
    const NAME(operand) dq_of = {ds, work->live, width, 1, work->k_rows, count, head->keys};
    const NAME(operand) dk_of = {ds, work->live, 1, width, work->q_rows, head->keys, count};
    const NAME(operand) dv_of = {p, work->live, 1, width, work->do_rows, head->keys, count};
    if (sums->dq) NAME(multiply)(&dq_of, row, dq, NULL);
    if (sums->dk) NAME(multiply)(&dk_of, row, sums->dk, order->key);
    if (sums->dv) NAME(multiply)(&dv_of, row_v, sums->dv, order->key);
    REAL scale = NAME(sign)((REAL)head->scale, eval->absolute);
    for (int64_t r = 0; sums->dq && r < count; ++r) {
        double *to = sums->dq + order->query[first + r] * sums->dq_stride;
        for (int64_t d = 0; d < head->dim; ++d) to[d] = (double)(scale * dq[r * row + d]);
    }
}

static void NAME(backward)(const stw_ref_head *head, const stw_ref_order *order, const stw_ref_eval *eval,
                           const stw_ref_work *work, const stw_ref_sums *sums) {
    NAME(load_keys)(head, order, eval->absolute, work);
    for (int64_t first = 0; first < head->queries; first += STW_REF_ROWS) {
        int64_t left = head->queries - first;
        NAME(block)(head, order, eval, work, sums, first, left < STW_REF_ROWS ? left : STW_REF_ROWS);
    }
}

static void NAME(store)(const void *sum, int64_t rows, int64_t dim, double scale, double *to, int64_t stride) {
    const REAL *from = sum;
    int64_t row = stw_ref_padded(dim);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t d = 0; d < dim; ++d) to[r * stride + d] = (double)((REAL)scale * from[r * row + d]);
    }
}
