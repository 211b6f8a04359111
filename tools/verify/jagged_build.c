/* SPDX-License-Identifier: MIT
 *
 * Building a jagged case (jagged.h): where its tensors lie in the arena, what the call may write, and
 * the arguments of the call; lengths after a pattern, bases with gaps, and data in every element that the
 * operation may read. All else stays NaN. */
#include "jagged.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_LENGTHS 100
#define STREAM_BASES   200
#define PERIOD         4194301 /* of the data of larger tensors, which takes seconds to draw; a prime */

static uint64_t draw(const jagged_verify_case *c, uint64_t stream, uint64_t index) {
    return stw_verify_random((uint64_t)c->problem.seed, stream, index);
}

static int64_t below(const jagged_verify_case *c, uint64_t stream, int64_t index, int64_t bound) {
    return bound > 0 ? (int64_t)(draw(c, stream, (uint64_t)index) % (uint64_t)bound) : 0;
}

/* ---- lengths ---- */

static void store_index(jagged_verify_case *c, int tensor, int64_t b, int64_t value) {
    unsigned char *at = c->host + c->offset[tensor];
    if (c->problem.desc.index_dtype == STW_I64) ((int64_t *)(void *)at)[b] = value;
    else ((int32_t *)(void *)at)[b] = (int32_t)value;
}

/* Length of component b of an axis, before the total bounds it. */
static int64_t pattern_length(const jagged_verify_case *c, int axis, int64_t b, int64_t huge) {
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

static stw_status fill_axis(jagged_verify_case *c, int axis) {
    const stw_jagged_desc *d = &c->problem.desc;
    int64_t total = d->axis[axis].total, most = d->axis[axis].size, n = d->components, end = 0;
    int64_t huge = n / 2;
    int64_t start = c->problem.lens == STW_LENS_FULL ? 0 : below(c, STREAM_LENGTHS + 9, axis, total / 8 + 1);
    for (int64_t b = 0; b <= n; ++b) {
        store_index(c, JVERIFY_OFFSETS + axis, b, start);
        if (b == n) break;
        int64_t length = pattern_length(c, axis, b, huge), room = total - start;
        if (length > most) length = most;
        length = length > room ? room : length;
        if (c->size[JVERIFY_USED + axis]) {
            int64_t used = b % 7 == 2 ? length : below(c, STREAM_LENGTHS + 20 + (uint64_t)axis, b, length + 1);
            if (used < least_used(d)) used = length < least_used(d) ? length : least_used(d);
            store_index(c, JVERIFY_USED + axis, b, used);
        }
        start += length;
        end = start;
    }
    if (d->flags & STW_JAGGED_FULL && n && end != total) return stw_fail(STW_E_INVALID, "full needs lens_full");
    return STW_OK;
}

/* Components one behind the other with gaps of 0 to 3 elements. */
static stw_status fill_bases(jagged_verify_case *c, int operand) {
    static const int axes[3][2] = {{STW_AXIS_M, STW_AXIS_K}, {STW_AXIS_K, STW_AXIS_N}, {STW_AXIS_M, STW_AXIS_N}};
    const stw_jagged_desc *d = &c->problem.desc;
    const int64_t elements[3] = {d->x_elements, d->other_elements, d->grad_elements};
    int64_t *bases = (int64_t *)(void *)(c->host + c->offset[JVERIFY_BASES + operand]), at = 0;
    for (int64_t b = 0; b < d->components; ++b) {
        int64_t area = d->outer ? d->outer : 1;
        for (int i = 0; i < 2; ++i) {
            int axis = axes[operand][i];
            const unsigned char *offsets = c->host + c->offset[JVERIFY_OFFSETS + axis];
            if (!(d->ragged_axes >> axis & 1u)) area *= d->axis[axis].size;
            else if (d->index_dtype == STW_I64)
                area *= ((const int64_t *)(const void *)offsets)[b + 1] - ((const int64_t *)(const void *)offsets)[b];
            else area *= ((const int32_t *)(const void *)offsets)[b + 1] - ((const int32_t *)(const void *)offsets)[b];
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

static stw_status jagged_verify_fill_lengths(jagged_verify_case *c) {
    for (int i = 0; i < 3; ++i) {
        stw_status status = c->size[JVERIFY_OFFSETS + i] ? fill_axis(c, i) : STW_OK;
        if (status) return status;
    }
    for (int i = 0; i < 3; ++i) {
        stw_status status = c->size[JVERIFY_BASES + i] ? fill_bases(c, i) : STW_OK;
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
    double x = stw_verify_normal(seed, stream, (uint64_t)n);
    if (input == STW_JREF_X && p->desc.op == STW_JAGGED_THRESHOLD && n % 5 == 2)
        return p->desc.threshold; /* as the type has it: on either side of what it is compared with */
    switch (input) {
    case STW_JREF_GRAD: return x * scale_of(p);
    case STW_JREF_X: return p->data == STW_JDATA_SD3 ? 3 * x : x;
    case STW_JREF_Y: /* a softmax's results are positive */
        return p->desc.op == STW_JAGGED_LOG_SOFTMAX ? x - 3 : exp(x) * 0.05;
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

void jagged_verify_store(const stw_jagged_problem *p, int input, int64_t n, void *data, stw_dtype dtype) {
    uint64_t bits = stw_verify_random((uint64_t)p->seed, 50 + (uint64_t)input, (uint64_t)n);
    store(data, n, dtype, value_of(p, input, n % PERIOD), bits);
}

/* A period of an input's values, or NULL where it has no more elements than that or memory ran out. */
static double *draw_period(const jagged_verify_case *c, int input, int64_t elements) {
    double *values = elements > PERIOD ? malloc(PERIOD * sizeof *values) : NULL;
    for (int64_t n = 0; values && n < PERIOD; ++n) values[n] = value_of(&c->problem, input, n);
    return values;
}

static stw_status fill_input(jagged_verify_case *c, int input, int64_t elements, const stw_jagged_args *args) {
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
        if (values) store(data, n, dtype, values[n % PERIOD], draw(c, 50 + (uint64_t)input, (uint64_t)n));
        else jagged_verify_store(&c->problem, input, n, data, dtype);
        ++c->readable[input];
    }
    free(values);
    free(marks);
    return STW_OK;
}

static stw_status jagged_verify_fill_data(jagged_verify_case *c) {
    stw_jagged_args args = jagged_verify_args(c, c->host);
    for (int input = 0; input < STW_JREF_INPUTS; ++input) {
        int64_t elements = stw_jref_elements(&c->problem.desc, &args, (stw_jref_input)input);
        if (!c->size[input] || !elements) continue;
        stw_status status = fill_input(c, input, elements, &args);
        if (status) return status;
    }
    return STW_OK;
}

/* ---- build ---- */

#define GUARD     ((size_t)512)
#define ALIGNMENT ((size_t)256)

static void place(jagged_verify_case *c, int tensor, int64_t elements, size_t element) {
    if (elements <= 0) return;
    c->bytes = (c->bytes + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + (size_t)c->problem.skew * element;
    c->offset[tensor] = c->bytes;
    c->size[tensor] = (size_t)elements * element;
    c->bytes += c->size[tensor];
}

static void place_lengths(jagged_verify_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    size_t element = d->index_dtype == STW_I64 ? 8 : 4;
    uint32_t ragged = d->op == STW_JAGGED_MATMUL ? d->ragged_axes : 1u;
    const uint32_t bases[3] = {STW_JAGGED_X_BASES, STW_JAGGED_OTHER_BASES, STW_JAGGED_GRAD_BASES};
    for (int i = 0; i < 3; ++i) {
        if (!(ragged >> i & 1u)) continue;
        place(c, JVERIFY_OFFSETS + i, d->components + 1, element);
        if (d->flags & STW_JAGGED_HAS_USED) place(c, JVERIFY_USED + i, d->components, element);
    }
    for (int i = 0; i < 3; ++i)
        if (d->flags & bases[i]) place(c, JVERIFY_BASES + i, d->components, 8);
    place(c, JVERIFY_STATUS, 1, 4);
}

static int make_arena(jagged_verify_case *c) {
    unsigned char *host = realloc(c->host, c->bytes + GUARD);
    if (!host) return 0;
    c->host = host;
    return 1;
}

/* Lengths first: how large the other tensors are may depend on them (SELECT of a component). */
static stw_status build_lengths(jagged_verify_case *c) {
    place_lengths(c);
    if (!make_arena(c)) return stw_fail(STW_E_NO_MEMORY, "case: no memory");
    memset(c->host, 0xFF, c->bytes);
    return jagged_verify_fill_lengths(c);
}

static stw_status build_tensors(jagged_verify_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    stw_jagged_args args = jagged_verify_args(c, c->host);
    uint32_t outputs = stw_jref_outputs(d);
    stw_jref_result shape;
    size_t before = c->bytes;
    for (int i = 0; i < STW_JREF_INPUTS; ++i) {
        stw_dtype dtype = i >= STW_JREF_MEAN                        ? STW_F32
                          : i == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype
                                                                    : d->dtype;
        int64_t elements = stw_jref_elements(d, &args, (stw_jref_input)i);
        if (!elements && i == STW_JREF_GRAD && d->dim == STW_DIM_COMPONENT) elements = 1; /* never null */
        place(c, i, elements, stw_dtype_size(dtype));
    }
    stw_jref_output_elements(d, shape.elements);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i)
        if (outputs >> i & 1u) place(c, JVERIFY_DX + i, shape.elements[i], stw_dtype_size(stw_jref_dtype(d, i)));
    if (!make_arena(c)) return stw_fail(STW_E_NO_MEMORY, "case: no memory for %zu bytes", c->bytes);
    c->bytes += GUARD;
    memset(c->host + before, 0xFF, c->bytes - before);
    stw_status status = jagged_verify_fill_data(c);
    for (int i = 0; i < STW_JREF_OUTPUTS && !status; ++i) /* numbers to add to */
        for (size_t n = 0; d->accumulate >> i & 1u && n < c->size[JVERIFY_DX + i] / 4; ++n)
            ((float *)(void *)(c->host + c->offset[JVERIFY_DX + i]))[n] =
                (float)stw_verify_normal((uint64_t)c->problem.seed, 70 + (uint64_t)i, n);
    return status;
}

static void make_rules(jagged_verify_case *c) {
    memset(c->rule, STW_VERIFY_KEEP, c->bytes);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        const unsigned char *kinds = c->expectation.reference.kinds[i];
        size_t element = stw_dtype_size(stw_jref_dtype(&c->problem.desc, i));
        for (size_t n = 0; kinds && n < c->size[JVERIFY_DX + i] / element; ++n)
            if (kinds[n] != STW_REF_ROW_UNTOUCHED)
                memset(c->rule + c->offset[JVERIFY_DX + i] + n * element, STW_VERIFY_WRITE, element);
    }
    memset(c->rule + c->offset[JVERIFY_STATUS], STW_VERIFY_WRITE, c->size[JVERIFY_STATUS]);
}

stw_status jagged_verify_build_inputs(const stw_jagged_problem *problem, jagged_verify_case *c) {
    memset(c, 0, sizeof *c);
    c->problem = *problem;
    stw_status status = build_lengths(c);
    if (!status) status = build_tensors(c);
    if (status) jagged_verify_free(c);
    return status;
}

stw_status jagged_verify_expect(jagged_verify_case *c) {
    stw_jagged_args args = jagged_verify_args(c, c->host);
    stw_status status = stw_jref_expect(&c->problem.desc, &args, &c->expectation);
    c->rule = malloc(c->bytes);
    if (!status && !c->rule) status = STW_E_NO_MEMORY;
    if (status) return stw_fail(status, "case: no memory");
    make_rules(c);
    return STW_OK;
}

stw_status jagged_verify_build(const stw_jagged_problem *problem, jagged_verify_case *c) {
    stw_status status = jagged_verify_build_inputs(problem, c);
    if (status) return status;
    status = jagged_verify_expect(c);
    if (status) jagged_verify_free(c);
    return status;
}

void jagged_verify_free(jagged_verify_case *c) {
    free(c->host);
    free(c->rule);
    stw_jref_expectation_free(&c->expectation);
    memset(c, 0, sizeof *c);
}

static void *at(const jagged_verify_case *c, const void *base, int tensor) {
    return c->size[tensor] ? (unsigned char *)(uintptr_t)base + c->offset[tensor] : NULL;
}

stw_jagged_args jagged_verify_args(const jagged_verify_case *c, const void *base) {
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    a.grad = at(c, base, STW_JREF_GRAD);
    a.x = at(c, base, STW_JREF_X);
    a.y = at(c, base, STW_JREF_Y);
    a.other = at(c, base, STW_JREF_OTHER);
    a.weight = at(c, base, STW_JREF_WEIGHT);
    a.mean = at(c, base, STW_JREF_MEAN);
    a.rstd = at(c, base, STW_JREF_RSTD);
    a.dx = at(c, base, JVERIFY_DX);
    a.dother = at(c, base, JVERIFY_DOTHER);
    a.dweight = at(c, base, JVERIFY_DWEIGHT);
    a.dbias = at(c, base, JVERIFY_DBIAS);
    a.status_out = at(c, base, JVERIFY_STATUS);
    a.x_bases = at(c, base, JVERIFY_BASES);
    a.other_bases = at(c, base, JVERIFY_BASES + 1);
    a.grad_bases = at(c, base, JVERIFY_BASES + 2);
    for (int i = 0; i < 3; ++i) {
        a.axis[i].offsets = at(c, base, JVERIFY_OFFSETS + i);
        a.axis[i].used = at(c, base, JVERIFY_USED + i);
    }
    return a;
}
