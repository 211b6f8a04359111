/* SPDX-License-Identifier: MIT
 *
 * The second half of the accuracy rule: one output tensor against its expectation, and the RMS pool of
 * small tensors. The constants of docs/specification.md section 5 are here and nowhere else. */
#include "tensors.h"

#include "common/dtype.h"

#include <math.h>
#include <string.h>

#define REF_MAX_FACTOR  2.0
#define REF_MAX_ULPS    2.0
#define REF_RMS_FACTOR  1.25
#define REF_ZERO_FACTOR 4.0      /* of the unit roundoff of the sums */
#define REF_F32_FLUSHED 0x1p-126 /* a term of a sum of f32 inputs */

/* significand bits after the point, lowest exponent of a normal number, largest number */
static void ref_format(stw_dtype dtype, int *bits, int *lowest, double *largest) {
    *bits = dtype == STW_F16 ? 10 : dtype == STW_BF16 ? 7 : dtype == STW_F64 ? 52 : 23;
    *lowest = dtype == STW_F16 ? -14 : dtype == STW_F64 ? -1022 : -126;
    *largest = ldexp(2 - ldexp(1, -*bits), 1 - *lowest);
}

double stw_ulp(double x, stw_dtype dtype) {
    int bits, lowest, exponent;
    double largest;
    ref_format(dtype, &bits, &lowest, &largest);
    if (isnan(x)) return x;
    x = fmin(fabs(x), largest);
    exponent = x > 0 ? ilogb(x) : lowest;
    return ldexp(1, (exponent > lowest ? exponent : lowest) - bits);
}

/* The caller's tensor: data and index of each element of the reference. */
typedef struct ref_output {
    const void *data, *before;
    stw_dtype dtype;
    const stw_attn_strides *strides; /* null: dsink and dbias */
    int packed;
    int64_t max_seq, row_dim;
    const int64_t *bias_extent; /* null: not dbias */
    const stw_bias_strides *bias_strides;
} ref_output;

static ref_output ref_output_of(const stw_ref_problem *p, stw_grad which, const void *before, stw_dtype dtype) {
    const stw_attn_desc *d = p->desc;
    const stw_attn_args *a = p->args;
    ref_output o = {.before = before, .dtype = dtype};
    if (which == STW_GRAD_DQ) {
        o = (ref_output){a->dq, before, dtype, &d->dq, p->packed_q, d->max_seq_q, d->head_dim_qk, NULL, NULL};
    } else if (which == STW_GRAD_DK) {
        o = (ref_output){a->dk, before, dtype, &d->dk, p->packed_kv, d->max_seq_kv, d->head_dim_qk, NULL, NULL};
    } else if (which == STW_GRAD_DV) {
        o = (ref_output){a->dv, before, dtype, &d->dv, p->packed_kv, d->max_seq_kv, d->head_dim_v, NULL, NULL};
    } else if (which == STW_GRAD_DBIAS) {
        o.data = a->dbias;
        o.bias_extent = p->bias_extent;
        o.bias_strides = &d->dbias;
    } else {
        o.data = a->dsink;
    }
    return o;
}

/* Index in the caller's tensor of element n of row r. */
static int64_t ref_output_index(const ref_output *o, int64_t r, int64_t n) {
    if (o->strides) {
        int64_t h = n / o->row_dim, d = n % o->row_dim;
        int64_t row =
            o->packed ? r * o->strides->seq : r / o->max_seq * o->strides->batch + r % o->max_seq * o->strides->seq;
        return row + h * o->strides->head + d;
    }
    if (!o->bias_extent) return n;
    const int64_t *e = o->bias_extent;
    int64_t j = n % e[3], i = n / e[3] % e[2], h = n / e[3] / e[2] % e[1], b = n / e[3] / e[2] / e[1];
    const stw_bias_strides *s = o->bias_strides;
    return b * s->batch + h * s->head + i * s->query + j * s->key;
}

static int ref_output_unchanged(const ref_output *o, int64_t index) {
    size_t size = stw_dtype_size(o->dtype);
    size_t at = (size_t)index * size;
    return memcmp((const char *)o->data + at, (const char *)o->before + at, size) == 0;
}

/* Judging state: the bound is known only when all elements were seen (accumulation widens it). */
typedef struct ref_verdict {
    stw_accuracy *accuracy;
    int breach;          /* a rule of kind (NaN, infinity, exact zero, untouched) was broken */
    double magnitude;    /* of what the caller's tensor held before and after, when added to */
    double add_variance; /* of the addition's rounding, summed                               */
    double overflow;     /* least |ref| that an infinite output would be excused at          */
} ref_verdict;

static void ref_breach(ref_verdict *v, int64_t element, double value, double ref) {
    if (v->breach) return;
    v->breach = 1;
    v->accuracy->max_error = INFINITY;
    v->accuracy->worst = element;
    v->accuracy->worst_value = value;
    v->accuracy->worst_ref = ref;
}

/* Element by value x against ref; `kind` of its row. */
static void ref_compare(ref_verdict *v, int64_t element, double x, double ref, int kind) {
    stw_accuracy *a = v->accuracy;
    if (!isfinite(x) || !isfinite(ref)) {
        int same = isnan(ref) ? isnan(x) : x == ref;
        int overflowed = isinf(x) && isfinite(ref) && fabs(ref) >= v->overflow && (x > 0) == (ref > 0);
        if (!same && !overflowed) ref_breach(v, element, x, ref);
        return;
    }
    double error = fabs(x - ref);
    if (kind == STW_REF_ROW_ZERO && x != 0) ref_breach(v, element, x, ref);
    a->square_sum += error * error;
    if (v->breach || (error <= a->max_error && a->worst >= 0)) return;
    a->max_error = error;
    a->worst = element;
    a->worst_value = x;
    a->worst_ref = ref;
}

static void ref_compare_element(ref_verdict *v, const ref_output *o, int64_t index, int64_t element, double ref,
                                int kind, int adds) {
    double x = stw_load_f64(o->data, index, o->dtype);
    if (kind == STW_REF_ROW_UNTOUCHED) {
        if (o->before && !ref_output_unchanged(o, index)) ref_breach(v, element, x, NAN);
        return;
    }
    v->accuracy->elements++;
    v->accuracy->live += ref != 0;
    if (adds) {
        double was = stw_load_f64(o->before, index, o->dtype), step = stw_ulp(x, o->dtype);
        double larger = fmax(fabs(x), fabs(was));
        if (isfinite(larger)) v->magnitude = fmax(v->magnitude, larger);
        if (isfinite(step)) v->add_variance += step * step / 12;
        x -= was;
    }
    ref_compare(v, element, x, ref, kind);
}

static void ref_compare_row(ref_verdict *v, const ref_output *o, const stw_ref_tensor *t, int64_t r, int adds) {
    int kind = t->kinds ? t->kinds[r] : STW_REF_ROW_LIVE;
    for (int64_t n = 0; n < t->row_size; ++n) {
        int64_t element = r * t->row_size + n;
        ref_compare_element(v, o, ref_output_index(o, r, n), element, t->values[element], kind, adds);
    }
}

/* Bounds before any element is seen; what accumulation adds comes after. */
static void ref_bounds(const stw_expectation *e, stw_grad which, const stw_ref_tensor *t, double floor_error,
                       stw_accuracy *a) {
    int zero = e->grad[which].max_ref == 0;
    double rule = REF_MAX_FACTOR * e->grad[which].e_max + REF_MAX_ULPS * stw_ulp(e->grad[which].max_ref, t->dtype);
    if (zero) rule = REF_ZERO_FACTOR * (t->dtype == STW_F64 ? 0x1p-53 : 0x1p-24) * e->grad[which].max_abs;
    a->max_allowed = fmax(rule, floor_error);
    a->rms_allowed = zero ? a->max_allowed : fmax(REF_RMS_FACTOR * e->grad[which].e_rms, floor_error);
}

/* Root of a^2 + b^2, both >= 0, where the squares would overflow too. Not hypot(), whose symbol glibc renewed in 2.35:
 * the Python wheel's command asks for 2.34. */
static double ref_root_of_squares(double a, double b) {
    double large = a > b ? a : b, small = a > b ? b : a;
    if (large == 0 || isinf(large)) return large + small; /* small may be NaN */
    return large * sqrt(1 + small / large * (small / large));
}

/* All elements have been seen: what accumulation adds to the bounds, RMS, verdict. */
static void ref_conclude(ref_verdict *v, stw_dtype dtype, int adds, int zero) {
    stw_accuracy *a = v->accuracy;
    if (a->elements) {
        double added = v->add_variance / (double)a->elements;
        if (adds) a->max_allowed += REF_MAX_ULPS * stw_ulp(v->magnitude, dtype);
        if (adds) a->rms_allowed = ref_root_of_squares(a->rms_allowed, REF_RMS_FACTOR * sqrt(added));
        a->rms_error = sqrt(a->square_sum / (double)a->elements);
        double unit = a->rms_allowed / REF_RMS_FACTOR;
        a->baseline_square_sum = (double)a->elements * unit * unit;
    }
    a->small = a->live < STW_SAMPLE_ELEMENTS;
    if (zero) { /* nothing to weigh an RMS against, here or in a pool */
        a->small = 1;
        a->square_sum = a->baseline_square_sum = 0;
    }
    a->pass = !v->breach && a->max_error <= a->max_allowed && (a->small || a->rms_error <= a->rms_allowed);
}

stw_status stw_judge(const stw_attn_desc *desc, const stw_attn_args *args, const stw_expectation *expectation,
                     stw_grad which, const void *before, stw_accuracy *a) {
    stw_ref_problem p;
    memset(a, 0, sizeof *a);
    if (which < 0 || which >= STW_GRAD_COUNT || !expectation->grad[which].wanted) return STW_E_INVALID;
    stw_status status = stw_ref_problem_init(&p, desc, args, 1);
    if (status != STW_OK) return status;
    stw_ref_tensor t = stw_ref_tensor_of(&p, &expectation->reference, which);
    ref_output o = ref_output_of(&p, which, before, t.dtype);
    int adds = (desc->accumulate & stw_ref_grad_bit(which)) != 0;
    if ((expectation->grad[which].elements && !o.data) || (adds && !before)) return STW_E_INVALID;

    double floor_error = desc->dtype == STW_F32 ? REF_F32_FLUSHED * (double)t.terms : 0;
    int bits, lowest;
    double largest;
    ref_verdict v = {.accuracy = a};
    a->worst = -1;
    ref_bounds(expectation, which, &t, floor_error, a);
    ref_format(t.dtype, &bits, &lowest, &largest);
    v.overflow = largest + stw_ulp(largest, t.dtype) / 2 - a->max_allowed;
    if (o.data) {
        for (int64_t r = 0; r < t.rows; ++r) ref_compare_row(&v, &o, &t, r, adds);
    }
    ref_conclude(&v, t.dtype, adds, expectation->grad[which].max_ref == 0);
    return STW_OK;
}

void stw_judge_flat(const stw_flat_tensor *f, stw_accuracy *a) {
    int bits, lowest;
    double largest;
    memset(a, 0, sizeof *a);
    a->worst = -1;
    a->max_allowed = fmax(REF_MAX_FACTOR * f->e_max + REF_MAX_ULPS * stw_ulp(f->max_ref, f->dtype), f->floor_error);
    a->rms_allowed = fmax(REF_RMS_FACTOR * f->e_rms, f->floor_error);
    ref_format(f->dtype, &bits, &lowest, &largest);
    ref_verdict v = {.accuracy = a, .overflow = largest + stw_ulp(largest, f->dtype) / 2 - a->max_allowed};
    ref_output o = {.data = f->data, .before = f->before, .dtype = f->dtype};
    for (int64_t n = 0; n < f->elements; ++n) ref_compare_element(&v, &o, n, n, f->values[n], f->kinds[n], f->adds);
    ref_conclude(&v, f->dtype, f->adds, f->max_ref == 0);
}

void stw_pool_add(stw_accuracy_pool *pool, const stw_accuracy *accuracy) {
    if (!accuracy->small) return;
    pool->square_sum += accuracy->square_sum;
    pool->baseline_square_sum += accuracy->baseline_square_sum;
    pool->elements += accuracy->live;
}

int stw_pool_pass(const stw_accuracy_pool *pool, double *ratio_out) {
    double allowed = REF_RMS_FACTOR * REF_RMS_FACTOR * pool->baseline_square_sum, ratio = 0;
    if (pool->square_sum > 0) ratio = allowed > 0 ? sqrt(pool->square_sum / allowed) : INFINITY;
    if (ratio_out) *ratio_out = ratio;
    return ratio <= 1;
}
