/* SPDX-License-Identifier: MIT
 *
 * The judge of problem.h. A gradient that nothing rounds must have the reference's bits. Any other element
 * may be off by half an ulp of its type for the one rounding at the end, and by (8 + 2 sqrt(n)) 2^-24 of the
 * formula on absolute values for a sum of n terms in f32: each term carries a few roundings (8 covers the
 * elementary functions), and the sum's own walk at random, whatever the order of the terms. */
#include "problem.h"

#include "common/dtype.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static double load(const void *data, int64_t n, stw_dtype dtype) {
    if (dtype == STW_F64) return ((const double *)data)[n];
    return (double)stw_load_f32(data, n, dtype);
}

/* The spacing of the type's numbers at x. */
static double spacing(double x, stw_dtype dtype) {
    const int digits = dtype == STW_F32 ? 24 : dtype == STW_F16 ? 11 : 8;
    const int lowest = dtype == STW_F16 ? -13 : -125;
    int exponent;
    frexp(fabs(x), &exponent);
    return ldexp(1.0, (exponent < lowest ? lowest : exponent) - digits);
}

static void judge_real(const problem *p, const result *r, int64_t n, double reference, double size, double terms) {
    const int64_t at = r->index[n];
    const double start = r->accumulate ? (double)result_start(at) : 0;
    const double got = load(r->data, at, r->dtype), expected = start + reference;
    const double sum =
        (8 + 2 * sqrt(terms)) * 0x1p-24 * size + (terms + 1) * DBL_MIN + (size > 0 ? (terms + 1) * 0x1p-126 : 0);
    const double bound = sum + (r->dtype == STW_F64 ? 0 : 0.5 * spacing(fabs(expected) + sum, r->dtype));
    if (isnan(expected) ? isnan(got) : fabs(got - expected) <= bound) return;
    fail_msg("%s, %s: %s[%lld] is %.9g, reference %.9g, off by %.3g of %.3g", p->c->name, p->v->name, r->name,
             (long long)n, got, expected, fabs(got - expected), bound);
}

/* What nothing rounds: the reference's value in the gradient's type, bit for bit (-0 is not 0). */
static void judge_exact(const problem *p, const result *r, const stw_st_tensor *reference, int64_t n) {
    const size_t size = stw_dtype_size(r->dtype);
    const unsigned char *got = (const unsigned char *)r->data + (size_t)r->index[n] * size;
    unsigned char expected[8] = {0};
    if (p->c->dtype > STW_F32) memcpy(expected, (const char *)reference->data + (size_t)n * size, size);
    else stw_store_f32(expected, 0, r->dtype, (float)golden_real(reference, n));
    if (memcmp(got, expected, size))
        fail_msg("%s, %s: %s[%lld] is not the reference's bits", p->c->name, p->v->name, r->name, (long long)n);
}

/* All bytes of the buffer that no golden element names. */
static void judge_rest(const problem *p, const result *r, unsigned char *named) {
    const size_t size = stw_dtype_size(r->dtype);
    static const unsigned char zero[8] = {0};
    unsigned char poison[8];
    memset(poison, ARENA_POISON, sizeof poison);
    for (int64_t n = 0; n < r->elements; ++n) {
        const unsigned char *got = (const unsigned char *)r->data + (size_t)n * size;
        const float start = result_start(n);
        if (named[n]) continue;
        const int clear = r->cleared && r->cleared[n] && !r->accumulate;
        const void *expected = clear ? zero : r->accumulate ? (const void *)&start : poison;
        if (memcmp(got, expected, size))
            fail_msg("%s, %s: element %lld of %s's buffer %s", p->c->name, p->v->name, (long long)n, r->name,
                     clear ? "is past a used length and not zero" : "is no part of the problem and was written");
    }
}

/* Attention has the accuracy rule's own tests; this finds a wrong row or head. P and dS are rounded to the
 * input type as operands: a relative half ulp in each term. */
static int64_t judge_attention(const problem *p, const result *r, const stw_st_tensor *reference) {
    const double unit = p->c->dtype == STW_F32 ? 0x1p-20 : p->c->dtype == STW_F16 ? 0x1p-11 : 0x1p-8;
    double top = 0;
    unsigned char *named = test_calloc((size_t)r->elements + 1, 1);
    for (int64_t n = 0; n < (int64_t)reference->elements; ++n) top = fmax(top, fabs(golden_real(reference, n)));
    for (int64_t n = 0; n < (int64_t)reference->elements; ++n) {
        const int64_t at = r->index[n];
        const double expected = golden_real(reference, n) + (r->accumulate ? (double)result_start(at) : 0);
        const double got = load(r->data, at, r->dtype);
        named[at] = 1;
        if (!(fabs(got - expected) <= 4 * unit * top + 0.5 * spacing(expected, r->dtype)))
            fail_msg("%s, %s: %s[%lld] is %.9g, reference %.9g", p->c->name, p->v->name, r->name, (long long)n, got,
                     expected);
    }
    judge_rest(p, r, named);
    test_free(named);
    return (int64_t)reference->elements;
}

static int64_t judge_result(const problem *p, const result *r) {
    char key[32];
    snprintf(key, sizeof key, "%s_ref", r->name);
    const stw_st_tensor *reference = golden_tensor(p->c, key, 1);
    if (p->desc.attn) return judge_attention(p, r, reference);
    snprintf(key, sizeof key, "%s_size", r->name);
    const stw_st_tensor *size = golden_tensor(p->c, key, 0);
    snprintf(key, sizeof key, "%s_terms", r->name);
    const double terms = (double)golden_number(p->c, key, 0);
    unsigned char *named = test_calloc((size_t)r->elements + 1, 1);
    for (int64_t n = 0; n < (int64_t)reference->elements; ++n) {
        assert_true(r->index[n] >= 0 && r->index[n] < r->elements && !named[r->index[n]]);
        named[r->index[n]] = 1;
        if (size || r->accumulate)
            judge_real(p, r, n, golden_real(reference, n), size ? golden_real(size, n) : 0, terms);
        else judge_exact(p, r, reference, n);
    }
    judge_rest(p, r, named);
    test_free(named);
    return (int64_t)reference->elements;
}

int64_t problem_judge(const problem *p) {
    int64_t compared = 0;
    for (int n = 0; n < p->result_count; ++n) compared += judge_result(p, &p->results[n]);
    return compared;
}
