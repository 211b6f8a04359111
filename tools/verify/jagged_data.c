/* SPDX-License-Identifier: MIT
 *
 * What the arena of a jagged case holds (jagged_case.h): lengths after a pattern, bases with gaps, and data
 * in every element that the operation may read. All else stays NaN. */
#include "jagged.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_LENGTHS 100
#define STREAM_BASES   200
#define PERIOD         4194301 /* of the data of larger tensors, which takes seconds to draw; a prime */

static uint64_t draw(const jagged_case *c, uint64_t stream, uint64_t index) {
    return stw_case_random((uint64_t)c->problem.seed, stream, index);
}

static int64_t below(const jagged_case *c, uint64_t stream, int64_t index, int64_t bound) {
    return bound > 0 ? (int64_t)(draw(c, stream, (uint64_t)index) % (uint64_t)bound) : 0;
}

/* ---- lengths ---- */

static void store_index(jagged_case *c, int tensor, int64_t b, int64_t value) {
    unsigned char *at = c->host + c->offset[tensor];
    if (c->problem.desc.index_dtype == STW_I64)
        ((int64_t *)(void *)at)[b] = value;
    else
        ((int32_t *)(void *)at)[b] = (int32_t)value;
}

/* Length of component b of an axis, before the total bounds it. */
static int64_t pattern_length(const jagged_case *c, int axis, int64_t b, int64_t huge) {
    const stw_jagged_desc *d = &c->problem.desc;
    uint64_t stream = STREAM_LENGTHS + (uint64_t)axis;
    int64_t most = d->axis[axis].size, total = d->axis[axis].total, n = d->components;
    switch (c->problem.lens) {
    case STW_LENS_FULL: return total / n + (b < total % n);
    case STW_LENS_ZEROS: return b % 4 == 1 ? below(c, stream, b, most + 1) : 0;
    case STW_LENS_HUGE: return b == huge ? most : below(c, stream, b, 3);
    default: return b % 5 == 3 ? most : below(c, stream, b, most + 1);
    }
}

/* Positions that every component must have in use: SELECT along the ragged dimension has its index there. */
static int64_t least_used(const stw_jagged_desc *d) {
    if (d->op != STW_JAGGED_SELECT || d->dim != STW_DIM_RAGGED) return 0;
    return d->index < 0 ? -d->index : d->index + 1;
}

static stw_status fill_axis(jagged_case *c, int axis) {
    const stw_jagged_desc *d = &c->problem.desc;
    int64_t total = d->axis[axis].total, most = d->axis[axis].size, n = d->components, end = 0;
    int64_t huge = n / 2;
    int64_t start = c->problem.lens == STW_LENS_FULL ? 0 : below(c, STREAM_LENGTHS + 9, axis, total / 8 + 1);
    for (int64_t b = 0; b <= n; ++b) {
        store_index(c, JCASE_OFFSETS + axis, b, start);
        if (b == n) break;
        int64_t length = pattern_length(c, axis, b, huge), room = total - start;
        if (length > most) length = most;
        length = length > room ? room : length;
        if (c->size[JCASE_USED + axis]) {
            int64_t used =
                b % 7 == 2 ? length : below(c, STREAM_LENGTHS + 20 + (uint64_t)axis, b, length + 1);
            if (used < least_used(d)) used = length < least_used(d) ? length : least_used(d);
            store_index(c, JCASE_USED + axis, b, used);
        }
        start += length;
        end = start;
    }
    if (d->flags & STW_JAGGED_FULL && n && end != total)
        return stw_fail(STW_E_INVALID, "full needs lens_full");
    return STW_OK;
}

/* Components one behind the other with gaps of 0 to 3 elements. */
static stw_status fill_bases(jagged_case *c, int operand) {
    static const int axes[3][2] = {
        {STW_AXIS_M, STW_AXIS_K}, {STW_AXIS_K, STW_AXIS_N}, {STW_AXIS_M, STW_AXIS_N}};
    const stw_jagged_desc *d = &c->problem.desc;
    const int64_t elements[3] = {d->x_elements, d->other_elements, d->grad_elements};
    int64_t *bases = (int64_t *)(void *)(c->host + c->offset[JCASE_BASES + operand]), at = 0;
    for (int64_t b = 0; b < d->components; ++b) {
        int64_t area = d->outer ? d->outer : 1;
        for (int i = 0; i < 2; ++i) {
            int axis = axes[operand][i];
            const unsigned char *offsets = c->host + c->offset[JCASE_OFFSETS + axis];
            if (!(d->ragged_axes >> axis & 1u))
                area *= d->axis[axis].size;
            else if (d->index_dtype == STW_I64)
                area *= ((const int64_t *)(const void *)offsets)[b + 1] -
                        ((const int64_t *)(const void *)offsets)[b];
            else
                area *= ((const int32_t *)(const void *)offsets)[b + 1] -
                        ((const int32_t *)(const void *)offsets)[b];
        }
        at += below(c, STREAM_BASES + (uint64_t)operand, b, 4);
        bases[b] = at;
        at += area;
    }
    if (at > elements[operand])
        return stw_fail(STW_E_INVALID, "a buffer with bases needs %lld elements, it has %lld", (long long)at,
                        (long long)elements[operand]);
    return STW_OK;
}

stw_status jagged_case_fill_lengths(jagged_case *c) {
    for (int i = 0; i < 3; ++i) {
        stw_status status = c->size[JCASE_OFFSETS + i] ? fill_axis(c, i) : STW_OK;
        if (status) return status;
    }
    for (int i = 0; i < 3; ++i) {
        stw_status status = c->size[JCASE_BASES + i] ? fill_bases(c, i) : STW_OK;
        if (status) return status;
    }
    return STW_OK;
}

/* ---- data ---- */

static double scale_of(const stw_jagged_problem *p) {
    if (p->data == STW_JDATA_SD3) return 3;
    if (p->data != STW_JDATA_TINY) return 1;
    return p->desc.dtype == STW_F16 ? 0x1p-16 : 0x1p-128;
}

static double value_of(const stw_jagged_problem *p, int input, int64_t n) {
    uint64_t seed = (uint64_t)p->seed, stream = (uint64_t)input + 1;
    double x = stw_case_normal(seed, stream, (uint64_t)n);
    if (input == STW_JREF_X && p->desc.op == STW_JAGGED_THRESHOLD && n % 5 == 2)
        return p->desc.threshold; /* as the type has it: on either side of what it is compared with */
    switch (input) {
    case STW_JREF_GRAD: return x * scale_of(p);
    case STW_JREF_X: return p->data == STW_JDATA_SD3 ? 3 * x : x;
    case STW_JREF_Y: return exp(x) * 0.05; /* a softmax's results are positive */
    case STW_JREF_MEAN: return 0.1 * x;
    case STW_JREF_RSTD: return exp(0.2 * x);
    default: return x;
    }
}

static void store(void *data, int64_t n, stw_dtype dtype, double x, uint64_t bits) {
    switch (dtype) {
    case STW_F64: ((double *)data)[n] = x; break;
    case STW_I8: ((int8_t *)data)[n] = (int8_t)bits; break;
    case STW_U8: ((uint8_t *)data)[n] = (uint8_t)bits; break;
    case STW_I16: ((int16_t *)data)[n] = (int16_t)bits; break;
    case STW_I32: ((int32_t *)data)[n] = (int32_t)bits; break;
    case STW_I64: ((int64_t *)data)[n] = (int64_t)(bits >> 12); break; /* exact in a double */
    default: stw_store_f32(data, n, dtype, (float)x); break;
    }
}

void jagged_case_store(const stw_jagged_problem *p, int input, int64_t n, void *data, stw_dtype dtype) {
    uint64_t bits = stw_case_random((uint64_t)p->seed, 50 + (uint64_t)input, (uint64_t)n);
    store(data, n, dtype, value_of(p, input, n % PERIOD), bits);
}

/* A period of an input's values, or NULL where it has no more elements than that or memory ran out. */
static double *draw_period(const jagged_case *c, int input, int64_t elements) {
    double *values = elements > PERIOD ? malloc(PERIOD * sizeof *values) : NULL;
    for (int64_t n = 0; values && n < PERIOD; ++n) values[n] = value_of(&c->problem, input, n);
    return values;
}

static stw_status fill_input(jagged_case *c, int input, int64_t elements, const stw_jagged_args *args) {
    const stw_jagged_desc *d = &c->problem.desc;
    unsigned char *marks = calloc((size_t)elements, 1);
    double *values = draw_period(c, input, elements);
    if (!marks || (elements > PERIOD && !values)) {
        free(marks);
        free(values);
        return stw_fail(STW_E_NO_MEMORY, "case: no memory");
    }
    stw_jref_mark_readable(d, args, (stw_jref_input)input, marks);
    stw_dtype dtype = input >= STW_JREF_MEAN                        ? STW_F32
                      : input == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype
                                                                    : d->dtype;
    void *data = c->host + c->offset[input];
    for (int64_t n = 0; n < elements; ++n) {
        if (!marks[n]) continue;
        if (values)
            store(data, n, dtype, values[n % PERIOD], draw(c, 50 + (uint64_t)input, (uint64_t)n));
        else
            jagged_case_store(&c->problem, input, n, data, dtype);
        ++c->readable[input];
    }
    free(values);
    free(marks);
    return STW_OK;
}

stw_status jagged_case_fill_data(jagged_case *c) {
    stw_jagged_args args = jagged_case_args(c, c->host);
    for (int input = 0; input < STW_JREF_INPUTS; ++input) {
        int64_t elements = stw_jref_elements(&c->problem.desc, &args, (stw_jref_input)input);
        if (!c->size[input] || !elements) continue;
        stw_status status = fill_input(c, input, elements, &args);
        if (status) return status;
    }
    return STW_OK;
}
