/* SPDX-License-Identifier: MIT
 *
 * The formulas of jagged_bwd.h with arithmetic in REAL, written as they stand there. Included by jagged_f64.c
 * and jagged_f32.c, which define REAL, its functions EXP, EXP2, ERF, TANH, and RUN. */

/* As attention's baselines: e^x in one half of the evaluations, 2^(x log2 e) in the other. */
static REAL exponential(const jref *j, REAL x) {
    return j->evaluation % 2 ? EXP(x) : j->evaluation ? EXP2(x * (REAL)1.44269504088896340736) : EXP(x);
}

static REAL slope(const jref *j, REAL x) {
    const REAL half = (REAL)0.5, one = 1;
    switch (j->d->op) {
    case STW_JAGGED_GELU: {
        REAL cumulative = half * (one + ERF(x * (REAL)0.70710678118654752440));
        REAL density = (REAL)0.39894228040143267794 * exponential(j, -half * x * x);
        return cumulative + x * density;
    }
    case STW_JAGGED_GELU_TANH: {
        const REAL root = (REAL)0.79788456080286535588, cubic = (REAL)0.044715;
        REAL t = TANH(root * (x + cubic * x * x * x));
        return half * (one + t) + half * x * (one - t * t) * root * (one + 3 * cubic * x * x);
    }
    case STW_JAGGED_SILU: {
        REAL s = one / (one + exponential(j, -x));
        return s * (one + x * (one - s));
    }
    default: /* the test is in f32 for f16, bf16 and f32 */
        return x <= (REAL)(stw_dtype_valid(j->d->dtype) ? (float)j->d->threshold : j->d->threshold) ? 0 : one;
    }
}

static void pointwise(jref *j) {
    const stw_jagged_desc *d = j->d;
    for (int64_t b = 0; b < d->components; ++b) {
        jref_span s = jref_span_of(j, 0, b);
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < s.used; ++r)
                for (int64_t i = 0; i < j->inner; ++i) {
                    int64_t at = jref_index(s, j->outer, j->inner, d->storage, o, r, i);
                    REAL f = slope(j, (REAL)j->x[at]);
                    int zero = d->op == STW_JAGGED_THRESHOLD && f == 0;
                    jref_set(j, 0, at, zero ? 0 : (double)((REAL)j->grad[at] * f));
                }
    }
}

/* Position of term k of a line: lines run along outer, the ragged dimension or inner. */
static int64_t line_index(const jref *j, jref_span s, int64_t o, int64_t r, int64_t i, int64_t k) {
    switch (j->d->dim) {
    case STW_DIM_OUTER: o = (o / j->after * j->size + k) * j->after + o % j->after; break;
    case STW_DIM_RAGGED: r = k; break;
    default: i = (i / j->after * j->size + k) * j->after + i % j->after; break;
    }
    return jref_index(s, j->outer, j->inner, j->d->storage, o, r, i);
}

/* The term of a line's sum, and dX. */
static REAL softmax_term(const jref *j, int64_t at) {
    REAL g = (REAL)j->grad[at];
    return j->d->op == STW_JAGGED_LOG_SOFTMAX ? g : g * (REAL)j->y[at];
}

static REAL softmax_slope(const jref *j, int64_t at, REAL sum) {
    REAL g = (REAL)j->grad[at], y = (REAL)j->y[at];
    return j->d->op == STW_JAGGED_LOG_SOFTMAX ? g - exponential(j, y) * sum : y * (g - sum);
}

static void softmax_line(jref *j, jref_span s, int64_t o, int64_t r, int64_t i, int64_t length) {
    REAL sum = 0;
    for (int64_t k = 0; k < length; ++k) {
        int64_t at = line_index(j, s, o, r, i, jref_order(j, k, length));
        sum += softmax_term(j, at);
    }
    for (int64_t k = 0; k < length; ++k) {
        int64_t at = line_index(j, s, o, r, i, k);
        jref_set(j, 0, at, (double)softmax_slope(j, at, sum));
    }
}

static void softmax(jref *j) {
    stw_jagged_dim dim = j->d->dim;
    for (int64_t b = 0; b < j->d->components; ++b) {
        jref_span s = jref_span_of(j, 0, b);
        int64_t outer = dim == STW_DIM_OUTER ? j->outer / j->size : j->outer;
        int64_t rows = dim == STW_DIM_RAGGED ? 1 : s.used;
        int64_t inner = dim == STW_DIM_INNER ? j->inner / j->size : j->inner;
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t i = 0; i < inner; ++i)
                    softmax_line(j, s, o, r, i, dim == STW_DIM_RAGGED ? s.used : j->size);
    }
}

/* ---- layer norm, RMS norm ---- */

static void norm_line(jref *j, jref_span s, int64_t o, int64_t r, int64_t part) {
    int64_t m = j->size, first = jref_index(s, j->outer, j->inner, j->d->storage, o, r, part * m);
    int64_t line = jref_index(s, j->outer, j->inner / m, j->d->storage, o, r, part);
    int rms = j->d->op == STW_JAGGED_RMS_NORM;
    REAL mean = rms ? 0 : (REAL)j->mean[line], rstd = (REAL)j->rstd[line], sum_g = 0, sum_gh = 0;
    for (int64_t k = 0; k < m; ++k) {
        int64_t i = jref_order(j, k, m);
        REAL g = (REAL)j->grad[first + i] * (j->weight ? (REAL)j->weight[i] : 1);
        sum_g += g;
        sum_gh += g * (((REAL)j->x[first + i] - mean) * rstd);
    }
    for (int64_t i = 0; i < m; ++i) {
        REAL g = (REAL)j->grad[first + i] * (j->weight ? (REAL)j->weight[i] : 1);
        REAL h = ((REAL)j->x[first + i] - mean) * rstd;
        REAL average = rms ? 0 : sum_g / (REAL)m;
        jref_set(j, 0, first + i, (double)(rstd * (g - average - h * (sum_gh / (REAL)m))));
    }
}

/* Rows of the problem in order: (component, o, r) of row n. */
typedef struct place {
    int64_t b, o, r;
} place;

static int64_t count_rows(const jref *j) {
    int64_t rows = 0;
    for (int64_t b = 0; b < j->d->components; ++b) rows += j->outer * jref_span_of(j, 0, b).used;
    return rows;
}

static place *list_rows(const jref *j, int64_t rows) {
    place *list = malloc(sizeof *list * (size_t)(rows ? rows : 1));
    int64_t n = 0;
    for (int64_t b = 0; list && b < j->d->components; ++b)
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < jref_span_of(j, 0, b).used; ++r) list[n++] = (place){b, o, r};
    return list;
}

static void norm_columns(jref *j) {
    int64_t rows = count_rows(j), m = j->size, parts = j->inner / m;
    place *list = list_rows(j, rows);
    for (int64_t i = 0; list && i < m; ++i) {
        REAL weight = 0, bias = 0;
        for (int64_t k = 0; k < rows * parts; ++k) {
            int64_t line = jref_order(j, k, rows * parts), part = line % parts;
            place p = list[line / parts];
            jref_span s = jref_span_of(j, 0, p.b);
            int64_t at = jref_index(s, j->outer, j->inner, j->d->storage, p.o, p.r, part * m + i);
            REAL g = (REAL)j->grad[at];
            bias += g;
            if (!j->x) continue;
            int64_t statistic = jref_index(s, j->outer, parts, j->d->storage, p.o, p.r, part);
            REAL mean = j->d->op == STW_JAGGED_RMS_NORM ? 0 : (REAL)j->mean[statistic];
            weight += g * (((REAL)j->x[at] - mean) * (REAL)j->rstd[statistic]);
        }
        jref_set(j, 2, i, (double)weight);
        jref_set(j, 3, i, (double)bias);
    }
    free(list);
}

/* Along the ragged dimension: all that is used of [ragged, inner] is a line; element k of it. */
static int64_t ragged_norm_index(const jref *j, jref_span s, int64_t o, int64_t k) {
    return jref_index(s, j->outer, j->inner, j->d->storage, o, k / j->inner, k % j->inner);
}

static void ragged_norm_line(jref *j, jref_span s, int64_t b, int64_t o) {
    int64_t m = s.used * j->inner, line = b * j->outer + o;
    int rms = j->d->op == STW_JAGGED_RMS_NORM;
    if (!m) return;
    REAL mean = rms ? 0 : (REAL)j->mean[line], rstd = (REAL)j->rstd[line], sum_g = 0, sum_gh = 0;
    for (int64_t k = 0; k < m; ++k) {
        int64_t at = ragged_norm_index(j, s, o, jref_order(j, k, m));
        sum_g += (REAL)j->grad[at];
        sum_gh += (REAL)j->grad[at] * (((REAL)j->x[at] - mean) * rstd);
    }
    for (int64_t k = 0; k < m; ++k) {
        int64_t at = ragged_norm_index(j, s, o, k);
        REAL h = ((REAL)j->x[at] - mean) * rstd, average = rms ? 0 : sum_g / (REAL)m;
        jref_set(j, 0, at, (double)(rstd * ((REAL)j->grad[at] - average - h * (sum_gh / (REAL)m))));
    }
}

static void ragged_norm(jref *j) {
    for (int64_t b = 0; b < j->d->components; ++b)
        for (int64_t o = 0; o < j->outer; ++o) ragged_norm_line(j, jref_span_of(j, 0, b), b, o);
}

static void norm(jref *j) {
    if (j->d->dim == STW_DIM_RAGGED) {
        ragged_norm(j);
        return;
    }

    for (int64_t b = 0; j->out->values[0] && b < j->d->components; ++b) {
        jref_span s = jref_span_of(j, 0, b);
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < s.used; ++r)
                for (int64_t part = 0; part < j->inner / j->size; ++part) norm_line(j, s, o, r, part);
    }
    if (j->out->values[2] || j->out->values[3]) norm_columns(j);
}

/* ---- products ---- */

/* dX of a row; `sums`: one a column of X, which grow side by side. */
static void linear_row(jref *j, place p, REAL *sums) {
    int64_t k = j->inner, n = j->d->out_features;
    jref_span s = jref_span_of(j, 0, p.b);
    const double *grad = j->grad + jref_index(s, j->outer, n, j->d->storage, p.o, p.r, 0);
    for (int64_t i = 0; i < k; ++i) sums[i] = 0;
    for (int64_t c = 0; c < n; ++c) {
        int64_t col = jref_order(j, c, n);
        REAL g = (REAL)grad[col];
        for (int64_t i = 0; i < k; ++i) sums[i] += g * (REAL)j->weight[col * k + i];
    }
    int64_t to = jref_index(s, j->outer, k, j->d->storage, p.o, p.r, 0);
    for (int64_t i = 0; i < k; ++i) jref_set(j, 0, to + i, (double)sums[i]);
}

/* Row `col` of dW, and dbias[col]. */
static void linear_sums(jref *j, const place *list, int64_t rows, int64_t col, REAL *sums) {
    int64_t k = j->out->values[2] ? j->inner : 0;
    REAL bias = 0;
    for (int64_t i = 0; i < k; ++i) sums[i] = 0;
    for (int64_t t = 0; t < rows; ++t) {
        place p = list[jref_order(j, t, rows)];
        jref_span s = jref_span_of(j, 0, p.b);
        REAL g = (REAL)j->grad[jref_index(s, j->outer, j->d->out_features, j->d->storage, p.o, p.r, col)];
        int64_t from = jref_index(s, j->outer, j->inner, j->d->storage, p.o, p.r, 0);
        bias += g;
        for (int64_t i = 0; i < k; ++i) sums[i] += g * (REAL)j->x[from + i];
    }
    for (int64_t i = 0; i < k; ++i) jref_set(j, 2, col * k + i, (double)sums[i]);
    jref_set(j, 3, col, (double)bias);
}

static void linear(jref *j) {
    int64_t rows = count_rows(j);
    place *list = list_rows(j, rows);
    REAL *sums = malloc(sizeof *sums * (size_t)(j->inner ? j->inner : 1));
    int given = list && sums;
    for (int64_t n = 0; given && j->out->values[0] && n < rows; ++n) linear_row(j, list[n], sums);
    for (int64_t c = 0; given && c < j->d->out_features; ++c) linear_sums(j, list, rows, c, sums);
    free(sums);
    free(list);
}

/* Where element (row, col) of a matrix lies: first + row * down + col * across. */
typedef struct matrix {
    int64_t first, down, across;
} matrix;

static matrix matrix_of(const jref *j, int operand, int64_t b, int64_t o) {
    int64_t first = jref_matrix_index(j, operand, b, o, 0, 0);
    return (matrix){first, jref_matrix_index(j, operand, b, o, 1, 0) - first,
                    jref_matrix_index(j, operand, b, o, 0, 1) - first};
}

static int64_t at(matrix m, int64_t row, int64_t col) { return m.first + row * m.down + col * m.across; }

static void matmul_component(jref *j, int64_t b, int64_t o) {
    int64_t m = jref_span_of(j, STW_AXIS_M, b).used, k = jref_span_of(j, STW_AXIS_K, b).used;
    int64_t n = jref_span_of(j, STW_AXIS_N, b).used;
    matrix x = matrix_of(j, 0, b, o), other = matrix_of(j, 1, b, o), grad = matrix_of(j, 2, b, o);
    for (int64_t r = 0; j->out->values[0] && r < m; ++r)
        for (int64_t c = 0; c < k; ++c) { /* dA = G B^T */
            REAL sum = 0;
            for (int64_t t = 0; t < n; ++t) {
                int64_t i = jref_order(j, t, n);
                sum += (REAL)j->grad[at(grad, r, i)] * (REAL)j->other[at(other, c, i)];
            }
            jref_set(j, 0, at(x, r, c), (double)sum);
        }
    for (int64_t r = 0; j->out->values[1] && r < k; ++r)
        for (int64_t c = 0; c < n; ++c) { /* dB = A^T G */
            REAL sum = 0;
            for (int64_t t = 0; t < m; ++t) {
                int64_t i = jref_order(j, t, m);
                sum += (REAL)j->x[at(x, i, r)] * (REAL)j->grad[at(grad, i, c)];
            }
            jref_set(j, 1, at(other, r, c), (double)sum);
        }
}

void RUN(jref *j) {
    switch (j->d->op) {
    case STW_JAGGED_MATMUL:
        for (int64_t b = 0; b < j->d->components; ++b)
            for (int64_t o = 0; o < j->outer; ++o) matmul_component(j, b, o);
        break;
    case STW_JAGGED_LINEAR: linear(j); break;
    case STW_JAGGED_SOFTMAX:
    case STW_JAGGED_LOG_SOFTMAX: softmax(j); break;
    case STW_JAGGED_LAYER_NORM:
    case STW_JAGGED_RMS_NORM: norm(j); break;
    default:
        if (stw_jagged_is_pointwise(j->d->op)) pointwise(j);
        else jref_move(j);
    }
}
