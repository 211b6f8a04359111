/* SPDX-License-Identifier: MIT
 *
 * The float64 reference of every nested operation against central differences of the loss sum(G * op(x)),
 * whose forward is written a second time (jagged_forward.c), over plain components; both orders, gaps full
 * of NaN.
 *
 * Steps: inputs are doubles of size 1, h = 2^-9; (8(f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h is wrong by
 * h^4/30 f''''' (below 1e-9 for the functions here) and by rounding of 2^-53 |loss| / h = 1e-12. */
#include "tools/reference/jagged.h"
#include "tools/reference/reference.h"
#include "tests/reference/jagged_forward.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state;

static double random_real(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) * 0x1p-23 - 1;
}

static double slope_of(const fd *f, const double *input) {
    double *x = (double *)(uintptr_t)input, values[4];
    const double kept = *x, h = 0x1p-9, steps[4] = {h, -h, 2 * h, -2 * h};
    for (int n = 0; n < 4; ++n) {
        *x = kept + steps[n];
        values[n] = loss_of(f);
    }
    *x = kept;
    return (8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * h);
}

/* ---- the reference ---- */

/* Where logical element n of a nested [outer, inner] lies; the buffer's elements by *total_out. */
static int64_t *places(const fd *f, int64_t outer, int64_t inner, int jagged, int64_t *total_out) {
    const nested n = {.l = &f->l, .outer = outer, .inner = inner, .jagged = jagged};
    int64_t count;
    *total_out = outer * f->l.total * inner;
    return index_of_nested(&n, &count);
}

/* `count` logical values in a buffer of NaN. */
static double *placed(const double *values, const int64_t *index, int64_t count, int64_t elements) {
    double *data = malloc(sizeof *data * (size_t)(elements + 1));
    assert_non_null(data);
    for (int64_t n = 0; n < elements; ++n) data[n] = (double)NAN;
    for (int64_t n = 0; n < count; ++n) data[index ? index[n] : n] = values[n];
    return data;
}

typedef struct buffers {
    void *list[24];
    int count;
    int64_t *x_index; /* null: dense */
    int64_t x_elements, x_count;
} buffers;

static void *keep(buffers *b, void *data) {
    b->list[b->count++] = data;
    return data;
}

static const double *nested_values(const fd *f, buffers *b, const double *values, int64_t outer, int64_t inner,
                                   int jagged) {
    int64_t total, count = 0;
    for (int n = 0; n < COMPONENTS; ++n) count += outer * f->l.used[n] * inner;
    int64_t *index = keep(b, places(f, outer, inner, jagged, &total));
    return keep(b, placed(values, index, count, total));
}

static const double *dense_values(buffers *b, const double *values, int64_t count) {
    return keep(b, placed(values, NULL, count, count));
}

/* The statistics of the lines, in x's storage: with f64 inputs the reference takes them in f64. */
static void bind_norm(const fd *f, buffers *b, int jagged, stw_jagged_args *a) {
    const int64_t M = f->s->size, lines = f->first[COMPONENTS] / M;
    int64_t total;
    int64_t *index = keep(b, places(f, f->s->outer, f->s->inner / M, jagged, &total));
    const int rms = f->s->op == STW_JAGGED_RMS_NORM;
    double *mean = keep(b, malloc(8 * (size_t)(total + 1))), *rstd = keep(b, malloc(8 * (size_t)(total + 1)));
    memset(mean, 0xFF, 8 * (size_t)total);
    memset(rstd, 0xFF, 8 * (size_t)total);
    for (int64_t n = 0; n < lines; ++n) {
        double m = 0, v = 0;
        for (int64_t k = 0; k < M && !rms; ++k) m += f->x[n * M + k] / (double)M;
        for (int64_t k = 0; k < M; ++k) v += (f->x[n * M + k] - m) * (f->x[n * M + k] - m) / (double)M;
        mean[index[n]] = m;
        rstd[index[n]] = 1 / sqrt(v + 1e-5);
    }
    if (!rms) a->mean = (const float *)mean;
    a->rstd = (const float *)rstd;
    a->weight = dense_values(b, f->weight, M);
}

/* Along the ragged dimension: dense [components, outer]; those of empty components are not read. */
static void bind_ragged_norm(const fd *f, buffers *b, stw_jagged_args *a) {
    const int rms = f->s->op == STW_JAGGED_RMS_NORM;
    double *mean = keep(b, malloc(8 * 64)), *rstd = keep(b, malloc(8 * 64));
    for (int c = 0; c < COMPONENTS; ++c)
        for (int64_t o = 0; o < f->s->outer; ++o) {
            const int64_t M = f->l.used[c] * f->s->inner, line = c * f->s->outer + o;
            const double *x = f->x + f->first[c] + o * M;
            double m = 0, v = 0;
            for (int64_t k = 0; k < M && !rms; ++k) m += x[k] / (double)M;
            for (int64_t k = 0; k < M; ++k) v += (x[k] - m) * (x[k] - m) / (double)M;
            mean[line] = M ? m : (double)NAN;
            rstd[line] = M ? 1 / sqrt(v + 1e-5) : (double)NAN;
        }
    if (!rms) a->mean = (const float *)mean;
    a->rstd = (const float *)rstd;
}

static const double *bind_softmax(const fd *f, buffers *b, int jagged) {
    double y[ELEMENTS];
    for (int c = 0; c < COMPONENTS; ++c)
        for (int64_t n = 0; n < lines_of(f, c); ++n) {
            const line at = line_at(f, c, n);
            double sum = 0;
            for (int64_t k = 0; k < at.count; ++k) sum += exp(f->x[at.first + k * at.step]);
            for (int64_t k = 0; k < at.count; ++k) {
                const int64_t e = at.first + k * at.step;
                y[e] = f->s->op == STW_JAGGED_SOFTMAX ? exp(f->x[e]) / sum : f->x[e] - log(sum);
            }
        }
    return nested_values(f, b, y, f->s->outer, f->s->inner, jagged);
}

static const double *bind_grad(const fd *f, buffers *b, int jagged) {
    const setup *s = f->s;
    if (s->op == STW_JAGGED_TO_PADDED) return dense_values(b, f->grad, COMPONENTS * s->outer * f->padded * s->inner);
    if (s->op == STW_JAGGED_LINEAR) return nested_values(f, b, f->grad, s->outer, f->features, jagged);
    if (s->op == STW_JAGGED_RESHAPE) return nested_values(f, b, f->grad, 1, s->outer * s->inner, jagged);
    if (s->op == STW_JAGGED_SUM || s->op == STW_JAGGED_SELECT) {
        if (s->dim == STW_DIM_COMPONENT) return dense_values(b, f->grad, f->first[COMPONENTS]);
        if (s->dim == STW_DIM_RAGGED) return dense_values(b, f->grad, COMPONENTS * s->outer * s->inner);
        const int is_outer = s->dim == STW_DIM_OUTER;
        return nested_values(f, b, f->grad, is_outer ? s->outer / s->size : s->outer,
                             is_outer ? s->inner : s->inner / s->size, jagged);
    }
    return nested_values(f, b, f->grad, s->outer, s->inner, jagged);
}

static void describe(const fd *f, int jagged, stw_jagged_desc *d) {
    const setup *s = f->s;
    *d = STW_INIT(stw_jagged_desc);
    d->op = s->op;
    d->dtype = STW_F64;
    d->index_dtype = STW_I64;
    d->components = COMPONENTS;
    d->axis[0].size = f->l.longest;
    d->axis[0].total = f->l.total;
    d->flags =
        STW_JAGGED_HAS_USED | (stw_jagged_is_norm(s->op) && s->dim != STW_DIM_RAGGED ? STW_JAGGED_HAS_GAMMA : 0u);
    d->storage = jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    d->outer = s->outer;
    d->inner = s->inner;
    d->dim = s->dim;
    d->index = s->index;
    d->padded = f->padded;
    d->out_features = f->features;
    d->threshold = s->op == STW_JAGGED_THRESHOLD ? 0.25 : 0;
    if (s->dim == STW_DIM_OUTER || s->dim == STW_DIM_INNER) {
        d->dim_size = s->size;
        d->dim_after = s->after;
    }
    if (s->op != STW_JAGGED_RESHAPE) return;
    d->outer = d->inner = 0;
    d->grad_storage = d->storage;
    d->shape_rank = 3;
    d->grad_rank = 2;
    memcpy(d->shape, (int64_t[]){s->outer, -1, s->inner}, 24);
    memcpy(d->grad_shape, (int64_t[]){-1, s->outer * s->inner}, 16);
}

static void compare(const setup *s, const char *what, int64_t n, double expected, double got, double scale) {
    const double limit = 2e-9 * scale;
    if (fabs(expected - got) <= limit) return;
    fail_msg("op %d, dim %d: %s[%lld] is %.12g by differences, %.12g by the reference", (int)s->op, (int)s->dim, what,
             (long long)n, expected, got);
}

static double largest(const double *slopes, int64_t count) {
    double top = 1e-3;
    for (int64_t n = 0; n < count; ++n) top = fmax(top, fabs(slopes[n]));
    return top;
}

static void compare_all(const fd *f, const char *what, const double *input, int64_t count, const double *got,
                        const int64_t *index) {
    double slopes[ELEMENTS];
    for (int64_t n = 0; n < count; ++n) slopes[n] = slope_of(f, input + n);
    const double top = largest(slopes, count);
    assert_true(count == 0 || top > 0.01); /* of zeros nothing would be shown */
    for (int64_t n = 0; n < count; ++n) compare(f->s, what, n, slopes[n], got[index ? index[n] : n], top);
}

/* Used positions are live (or a zero of SELECT), the rest of a component is zeros, all else is nobody's. */
static void compare_kinds(const fd *f, const buffers *b, const stw_jref_result *r, int jagged) {
    const nested n = {.l = &f->l, .outer = f->s->outer, .inner = f->s->inner, .jagged = jagged};
    unsigned char *expected = test_calloc((size_t)b->x_elements + 1, 1);
    assert_int_equal(r->elements[0], b->x_elements);
    for (int c = 0; c < COMPONENTS; ++c)
        for (int64_t o = 0; o < n.outer; ++o)
            for (int64_t p = 0; p < f->l.size[c]; ++p)
                for (int64_t i = 0; i < n.inner; ++i)
                    expected[nested_at(&n, c, o, p, i)] = p < f->l.used[c] ? STW_REF_ROW_LIVE : STW_REF_ROW_ZERO;
    for (int64_t e = 0; e < r->elements[0]; ++e) {
        const unsigned char kind = r->kinds[0][e];
        if (kind == STW_REF_ROW_ZERO) assert_true(r->values[0][e] == 0);
        if (f->s->op == STW_JAGGED_SELECT && expected[e] == STW_REF_ROW_LIVE && kind == STW_REF_ROW_ZERO) continue;
        assert_int_equal(kind, expected[e]);
    }
    test_free(expected);
}

static void check(fd *f, int jagged) {
    const setup *s = f->s;
    const int dense_x = s->op == STW_JAGGED_FROM_PADDED;
    stw_jagged_desc desc;
    stw_jagged_args args = STW_INIT(stw_jagged_args);
    stw_jref_result r;
    buffers b = {.count = 0};
    int64_t offsets[COMPONENTS + 1];
    for (int n = 0; n < COMPONENTS; ++n) offsets[n] = f->l.start[n];
    offsets[COMPONENTS] = f->l.start[COMPONENTS - 1] + f->l.size[COMPONENTS - 1];
    describe(f, jagged, &desc);
    args.axis[0].offsets = offsets;
    args.axis[0].used = f->l.used;
    args.grad = bind_grad(f, &b, jagged);
    b.x_count = dense_x ? COMPONENTS * s->outer * f->padded * s->inner : f->first[COMPONENTS];
    if (!dense_x) b.x_index = keep(&b, places(f, s->outer, s->inner, jagged, &b.x_elements));
    if (stw_jagged_is_softmax(s->op)) args.y = bind_softmax(f, &b, jagged);
    else if (!dense_x) args.x = nested_values(f, &b, f->x, s->outer, s->inner, jagged);
    const int ragged_norm = stw_jagged_is_ragged_norm(s->op, s->dim);
    if (ragged_norm) bind_ragged_norm(f, &b, &args);
    else if (stw_jagged_is_norm(s->op)) bind_norm(f, &b, jagged, &args);
    if (s->op == STW_JAGGED_LINEAR) args.weight = dense_values(&b, f->weight, f->features * s->inner);
    double unused[4]; /* outputs have to be there; the reference has its own */
    args.dx = args.dweight = args.dbias = unused;
    assert_int_equal(stw_jref_evaluate(&desc, &args, 0, &r), STW_OK);
    compare_all(f, "dx", f->x, b.x_count, r.values[0], b.x_index);
    if (!dense_x) compare_kinds(f, &b, &r, jagged);
    if ((stw_jagged_is_norm(s->op) && !ragged_norm) || s->op == STW_JAGGED_LINEAR) {
        const int linear = s->op == STW_JAGGED_LINEAR;
        compare_all(f, "dweight", f->weight, linear ? f->features * s->inner : s->size, r.values[2], NULL);
        if (s->op != STW_JAGGED_RMS_NORM)
            compare_all(f, "dbias", f->bias, linear ? f->features : s->size, r.values[3], NULL);
    }
    stw_jref_free(&r);
    for (int n = 0; n < b.count; ++n) free(b.list[n]);
}

static const setup setups[] = {
    {STW_JAGGED_GELU, STW_DIM_NONE, 2, 3, 0, 0, 0},          {STW_JAGGED_GELU_TANH, STW_DIM_NONE, 1, 5, 0, 0, 0},
    {STW_JAGGED_SILU, STW_DIM_NONE, 3, 1, 0, 0, 0},          {STW_JAGGED_THRESHOLD, STW_DIM_NONE, 2, 3, 0, 0, 0},
    {STW_JAGGED_SOFTMAX, STW_DIM_RAGGED, 2, 3, 0, 0, 0},     {STW_JAGGED_SOFTMAX, STW_DIM_INNER, 2, 12, 3, 2, 0},
    {STW_JAGGED_SOFTMAX, STW_DIM_INNER, 1, 7, 7, 1, 0},      {STW_JAGGED_SOFTMAX, STW_DIM_OUTER, 12, 2, 3, 2, 0},
    {STW_JAGGED_SUM, STW_DIM_RAGGED, 2, 3, 0, 0, 0},         {STW_JAGGED_SUM, STW_DIM_INNER, 2, 12, 3, 2, 0},
    {STW_JAGGED_SUM, STW_DIM_OUTER, 12, 2, 3, 2, 0},         {STW_JAGGED_SELECT, STW_DIM_INNER, 2, 12, 3, 2, 1},
    {STW_JAGGED_SELECT, STW_DIM_INNER, 2, 12, 3, 2, -1},     {STW_JAGGED_SELECT, STW_DIM_OUTER, 12, 2, 3, 2, 2},
    {STW_JAGGED_SELECT, STW_DIM_COMPONENT, 2, 3, 0, 0, -1},  {STW_JAGGED_LAYER_NORM, STW_DIM_INNER, 2, 5, 5, 1, 0},
    {STW_JAGGED_LAYER_NORM, STW_DIM_INNER, 1, 12, 4, 1, 0},  {STW_JAGGED_LINEAR, STW_DIM_NONE, 2, 5, 0, 0, 0},
    {STW_JAGGED_RESHAPE, STW_DIM_NONE, 2, 6, 0, 0, 0},       {STW_JAGGED_TO_PADDED, STW_DIM_NONE, 2, 3, 0, 0, 0},
    {STW_JAGGED_FROM_PADDED, STW_DIM_NONE, 2, 3, 0, 0, 0},   {STW_JAGGED_LOG_SOFTMAX, STW_DIM_RAGGED, 2, 3, 0, 0, 0},
    {STW_JAGGED_LOG_SOFTMAX, STW_DIM_INNER, 2, 12, 3, 2, 0}, {STW_JAGGED_LOG_SOFTMAX, STW_DIM_INNER, 1, 7, 7, 1, 0},
    {STW_JAGGED_LOG_SOFTMAX, STW_DIM_OUTER, 12, 2, 3, 2, 0}, {STW_JAGGED_RMS_NORM, STW_DIM_INNER, 2, 5, 5, 1, 0},
    {STW_JAGGED_RMS_NORM, STW_DIM_INNER, 1, 12, 4, 1, 0},    {STW_JAGGED_RMS_NORM, STW_DIM_RAGGED, 2, 3, 0, 0, 0},
    {STW_JAGGED_LAYER_NORM, STW_DIM_RAGGED, 2, 3, 0, 0, 0},
};

/* x for differences: away from the threshold, where there is no derivative. */
static double smooth(double x) { return fabs(x - 0.25) < 0.02 ? x + 0.1 : x; }

static void start(fd *f, const setup *s, const int64_t *used) {
    memset(f, 0, sizeof *f);
    f->s = s;
    lengths_place(&f->l, used, COMPONENTS, 1, 0);
    for (int b = 0; b < COMPONENTS; ++b) f->first[b + 1] = f->first[b] + s->outer * f->l.used[b] * s->inner;
    f->padded = s->op == STW_JAGGED_TO_PADDED || s->op == STW_JAGGED_FROM_PADDED ? 4 : 0;
    f->features = s->op == STW_JAGGED_LINEAR ? 3 : 0;
    for (int n = 0; n < ELEMENTS; ++n) f->grad[n] = random_real();
    for (int n = 0; n < ELEMENTS; ++n) f->x[n] = smooth(1.5 * random_real());
    for (int n = 0; n < 64; ++n) f->weight[n] = 1 + 0.5 * random_real();
    for (int n = 0; n < 16; ++n) f->bias[n] = random_real();
}

static void test_differences(void **state) {
    static const int64_t used[COMPONENTS] = {3, 0, 6, 1};
    static fd f;
    (void)state;
    for (size_t n = 0; n < sizeof setups / sizeof *setups; ++n)
        for (int jagged = 0; jagged < 2; ++jagged) {
            random_state = (uint32_t)(n * 2 + (size_t)jagged);
            start(&f, &setups[n], used);
            check(&f, jagged);
        }
}

/* Along the ragged dimension select wants components that have the index. */
static void test_select_ragged(void **state) {
    static const int64_t used[COMPONENTS] = {3, 2, 6, 2};
    static fd f;
    (void)state;
    for (int index = -2; index < 2; ++index) {
        const setup s = {STW_JAGGED_SELECT, STW_DIM_RAGGED, 2, 3, 0, 0, index};
        start(&f, &s, used);
        check(&f, index & 1);
    }
}

/* ---- matmul: three ragged axes, components by bases ---- */

static const int64_t mm_rows[COMPONENTS] = {3, 0, 5, 1}, mm_mid[COMPONENTS] = {2, 4, 3, 0},
                     mm_cols[COMPONENTS] = {4, 1, 2, 3};

static double matmul_loss(const double *a, const double *b, const double *g) {
    double total = 0;
    for (int c = 0; c < COMPONENTS; ++c) {
        const int64_t M = mm_rows[c], K = mm_mid[c], N = mm_cols[c];
        for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n)
                for (int64_t k = 0; k < K; ++k) total += g[m * N + n] * a[m * K + k] * b[k * N + n];
        a += M * K;
        b += K * N;
        g += M * N;
    }
    return total;
}

static int64_t bases_of(const int64_t *rows, const int64_t *cols, int64_t bases[COMPONENTS]) {
    int64_t at = 0;
    for (int c = 0; c < COMPONENTS; ++c) {
        bases[c] = at;
        at += rows[c] * cols[c];
    }
    return at;
}

/* The loss is linear in each input: one difference of step 1 is exact but for rounding. */
static void compare_matmul(double *input, int64_t count, const double *a, const double *b, const double *g,
                           const double *got) {
    for (int64_t n = 0; n < count; ++n) {
        const double kept = input[n];
        input[n] = kept + 1;
        const double above = matmul_loss(a, b, g);
        input[n] = kept;
        const double slope = above - matmul_loss(a, b, g);
        if (!(fabs(slope - got[n]) <= 1e-13)) fail_msg("element %lld: %.12g, %.12g", (long long)n, slope, got[n]);
    }
}

static void test_matmul(void **state) {
    static double a[64], b[64], g[64];
    const int64_t *const extents[3] = {mm_rows, mm_mid, mm_cols};
    int64_t offsets[3][COMPONENTS + 1] = {{0}}, x_bases[COMPONENTS], other_bases[COMPONENTS], grad_bases[COMPONENTS];
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    stw_jagged_args args = STW_INIT(stw_jagged_args);
    stw_jref_result r;
    (void)state;
    random_state = 77;
    for (int n = 0; n < 64; ++n) {
        a[n] = random_real();
        b[n] = random_real();
        g[n] = random_real();
    }
    d.op = STW_JAGGED_MATMUL;
    d.dtype = STW_F64;
    d.index_dtype = STW_I64;
    d.components = COMPONENTS;
    d.ragged_axes = 7;
    d.flags = STW_JAGGED_X_BASES | STW_JAGGED_OTHER_BASES | STW_JAGGED_GRAD_BASES;
    d.x_elements = bases_of(mm_rows, mm_mid, x_bases);
    d.other_elements = bases_of(mm_mid, mm_cols, other_bases);
    d.grad_elements = bases_of(mm_rows, mm_cols, grad_bases);
    for (int axis = 0; axis < 3; ++axis) {
        for (int c = 0; c < COMPONENTS; ++c) offsets[axis][c + 1] = offsets[axis][c] + extents[axis][c];
        d.axis[axis].size = 5;
        d.axis[axis].total = offsets[axis][COMPONENTS];
        args.axis[axis].offsets = offsets[axis];
    }
    args.x_bases = x_bases;
    args.other_bases = other_bases;
    args.grad_bases = grad_bases;
    args.x = a;
    args.other = b;
    args.grad = g;
    args.dx = args.dother = offsets; /* the reference has its own */
    assert_int_equal(stw_jref_evaluate(&d, &args, 0, &r), STW_OK);
    assert_int_equal(r.elements[0], d.x_elements);
    compare_matmul(a, d.x_elements, a, b, g, r.values[0]);
    compare_matmul(b, d.other_elements, a, b, g, r.values[1]);
    stw_jref_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_select_ragged),
                                       cmocka_unit_test(test_matmul)};
    return cmocka_run_group_tests_name("differences of nested operations", tests, NULL, NULL);
}
