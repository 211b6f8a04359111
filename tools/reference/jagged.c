/* SPDX-License-Identifier: MIT
 *
 * The oracle of jagged operations: what the descriptor says about places, the operations that only move
 * elements, and the entry points of jagged.h. */
#include "jagged_shape.h"

#include "common/dtype.h"
#include "tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double stw_jref_load(const void *data, int64_t index, stw_dtype dtype) {
    switch (dtype) {
    case STW_F64: return ((const double *)data)[index];
    case STW_I8: return ((const int8_t *)data)[index];
    case STW_U8: return ((const uint8_t *)data)[index];
    case STW_I16: return ((const int16_t *)data)[index];
    case STW_I32: return ((const int32_t *)data)[index];
    case STW_I64: return (double)((const int64_t *)data)[index];
    default: return (double)stw_load_f32(data, index, dtype);
    }
}

/* ---- places ---- */

static int64_t index_at(const jref *j, const void *values, int64_t b) {
    return j->d->index_dtype == STW_I64 ? ((const int64_t *)values)[b] : ((const int32_t *)values)[b];
}

jref_span jref_span_of(const jref *j, int axis, int64_t b) {
    const stw_jagged_offsets *given = &j->a->axis[axis];
    int matmul = j->d->op == STW_JAGGED_MATMUL;
    if (matmul && !(j->d->ragged_axes & 1u << axis))
        return (jref_span){-1, j->d->axis[axis].size, j->d->axis[axis].size, 0};
    jref_span s = {.first = index_at(j, given->offsets, b), .total = j->d->axis[axis].total};
    s.length = index_at(j, given->offsets, b + 1) - s.first;
    s.used = given->used ? index_at(j, given->used, b) : s.length;
    return s;
}

int64_t jref_index(jref_span s, int64_t outer, int64_t inner, stw_jagged_storage storage, int64_t o, int64_t r,
                   int64_t i) {
    if (storage == STW_STORAGE_JAGGED) return (o * s.total + s.first + r) * inner + i;
    return s.first * outer * inner + (o * s.length + r) * inner + i;
}

int64_t jref_matrix_index(const jref *j, int operand, int64_t b, int64_t o, int64_t row, int64_t col) {
    static const int axes[3][2] = {{STW_AXIS_M, STW_AXIS_K}, {STW_AXIS_K, STW_AXIS_N}, {STW_AXIS_M, STW_AXIS_N}};
    static const uint32_t transposed[3] = {STW_JAGGED_X_TRANSPOSED, STW_JAGGED_OTHER_TRANSPOSED,
                                           STW_JAGGED_GRAD_TRANSPOSED};
    const int64_t *bases[3] = {j->a->x_bases, j->a->other_bases, j->a->grad_bases};
    const stw_jagged_storage storages[3] = {j->d->storage, j->d->other_storage, j->d->grad_storage};
    jref_span rows = jref_span_of(j, axes[operand][0], b), cols = jref_span_of(j, axes[operand][1], b);
    if (j->d->flags & transposed[operand]) { /* as it is stored */
        jref_span span = rows;
        int64_t at = row;
        rows = cols, cols = span;
        row = col, col = at;
    }
    if (bases[operand]) return bases[operand][b] + (o * rows.length + row) * cols.length + col;
    if (rows.first < 0 && cols.first < 0) return ((b * j->outer + o) * rows.length + row) * cols.length + col;
    if (storages[operand] == STW_STORAGE_JAGGED)
        return rows.first >= 0 ? (o * rows.total + rows.first + row) * cols.length + col
                               : (o * rows.length + row) * cols.total + cols.first + col;
    int64_t before = rows.first >= 0 ? rows.first * cols.length : cols.first * rows.length;
    return before * j->outer + (o * rows.length + row) * cols.length + col;
}

int64_t jref_order(const jref *j, int64_t k, int64_t n) {
    static const int64_t steps[] = {1, 1, 1, 7919, 104729, 611953, 746773, 882377, 999983};
    if (j->evaluation <= 1) return k;
    if (j->evaluation == 2) return n - 1 - k;
    int64_t step = steps[j->evaluation];
    if (n % step == 0) return n - 1 - k; /* the step must not divide n */
    return (k * step + j->evaluation) % n;
}

void jref_set(jref *j, int which, int64_t index, double value) {
    if (!j->out->values[which]) return;
    j->out->values[which][index] = value;
    j->out->kinds[which][index] = STW_REF_ROW_LIVE;
}

/* ---- operations without arithmetic ---- */

static double take(const jref *j, int64_t from) {
    if (!j->marks) return j->grad[from];
    j->marks[from] = 1;
    return 0;
}

/* Slice of the worked dimension that SELECT takes, or -1: not there. */
static int64_t slice_of(const jref *j, int64_t size) {
    int64_t index = j->d->index < 0 ? j->d->index + size : j->d->index;
    return index >= 0 && index < size ? index : -1;
}

static void spread_element(jref *j, jref_span s, int64_t b, int64_t o, int64_t r, int64_t i) {
    const stw_jagged_desc *d = j->d;
    int64_t to = jref_index(s, j->outer, j->inner, d->storage, o, r, i), from = 0, at = 0, size = 0;
    switch (d->dim) {
    case STW_DIM_OUTER:
        at = o / j->after % j->size, size = j->size;
        from =
            jref_index(s, j->outer / size, j->inner, d->storage, o / j->after / size * j->after + o % j->after, r, i);
        break;
    case STW_DIM_RAGGED:
        at = r, size = s.used;
        from = (b * j->outer + o) * j->inner + i;
        break;
    case STW_DIM_COMPONENT:
        at = b, size = d->components;
        from = (o * s.used + r) * j->inner + i;
        break;
    default:
        at = i / j->after % j->size, size = j->size;
        from =
            jref_index(s, j->outer, j->inner / size, d->storage, o, r, i / j->after / size * j->after + i % j->after);
        break;
    }
    int taken = d->op == STW_JAGGED_SUM || at == slice_of(j, size);
    jref_set(j, 0, to, taken ? take(j, from) : 0);
}

static void reshape_element(jref *j, jref_span s, int64_t o, int64_t r, int64_t i) {
    int64_t k = (o * s.used + r) * j->inner + i, row = k / j->grad_inner;
    int64_t from =
        jref_index(s, j->grad_outer, j->grad_inner, j->d->grad_storage, row / s.used, row % s.used, k % j->grad_inner);
    jref_set(j, 0, jref_index(s, j->outer, j->inner, j->d->storage, o, r, i), take(j, from));
}

static void padded_element(jref *j, jref_span s, int64_t b, int64_t o, int64_t r, int64_t i) {
    int64_t nested = jref_index(s, j->outer, j->inner, j->d->storage, o, r, i);
    int64_t dense = ((b * j->outer + o) * j->d->padded + r) * j->inner + i;
    if (j->d->op == STW_JAGGED_TO_PADDED) jref_set(j, 0, nested, r < j->d->padded ? take(j, dense) : 0);
    else if (r < j->d->padded) jref_set(j, 0, dense, take(j, nested));
}

void jref_move(jref *j) {
    for (int64_t b = 0; b < j->d->components; ++b) {
        jref_span s = jref_span_of(j, 0, b);
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < s.used; ++r)
                for (int64_t i = 0; i < j->inner; ++i)
                    if (j->d->op == STW_JAGGED_RESHAPE) reshape_element(j, s, o, r, i);
                    else if (j->d->op >= STW_JAGGED_TO_PADDED) padded_element(j, s, b, o, r, i);
                    else spread_element(j, s, b, o, r, i);
    }
}

/* ---- kinds of elements before anything is set ---- */

static void mark_rows(jref *j) {
    stw_jref_result *out = j->out;
    if (!out->values[0]) return;
    if (j->d->op == STW_JAGGED_FROM_PADDED) {
        memset(out->kinds[0], STW_REF_ROW_ZERO, (size_t)out->elements[0]);
        return;
    }
    for (int64_t b = 0; b < j->d->components; ++b) {
        jref_span s = jref_span_of(j, 0, b);
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < s.length; ++r)
                for (int64_t i = 0; i < j->inner; ++i)
                    out->kinds[0][jref_index(s, j->outer, j->inner, j->d->storage, o, r, i)] = STW_REF_ROW_ZERO;
    }
}

static void mark_matrices(jref *j, int which, int axis_rows, int axis_cols) {
    for (int64_t b = 0; j->out->values[which] && b < j->d->components; ++b)
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < jref_span_of(j, axis_rows, b).length; ++r)
                for (int64_t c = 0; c < jref_span_of(j, axis_cols, b).length; ++c)
                    j->out->kinds[which][jref_matrix_index(j, which, b, o, r, c)] = STW_REF_ROW_ZERO;
}

/* ---- shapes and sizes ---- */

uint32_t stw_jref_outputs(const stw_jagged_desc *d) {
    if (d->outputs) return d->outputs;
    if (d->op == STW_JAGGED_MATMUL) return STW_JAGGED_DX | STW_JAGGED_DOTHER;
    if (d->op == STW_JAGGED_RMS_NORM && d->flags & STW_JAGGED_HAS_GAMMA) return STW_JAGGED_DX | STW_JAGGED_DWEIGHT;
    if (d->op == STW_JAGGED_LINEAR || (d->op == STW_JAGGED_LAYER_NORM && d->flags & STW_JAGGED_HAS_GAMMA))
        return STW_JAGGED_DX | STW_JAGGED_DWEIGHT | STW_JAGGED_DBIAS;
    return STW_JAGGED_DX;
}

stw_dtype stw_jref_dtype(const stw_jagged_desc *d, int which) {
    const stw_dtype chosen[] = {d->dx_dtype, d->dother_dtype, d->dweight_dtype, d->dbias_dtype};
    if (chosen[which]) return chosen[which];
    return which >= 2 && d->weight_dtype ? d->weight_dtype : d->dtype;
}

static int64_t one_or(int64_t value) { return value ? value : 1; }

static void split(int32_t rank, const int64_t *shape, int64_t *outer, int64_t *inner) {
    int64_t *product = outer;
    *outer = *inner = 1;
    for (int32_t i = 0; i < rank; ++i) {
        if (shape[i] < 0) product = inner;
        else *product *= shape[i];
    }
}

void jref_resolve(jref *j) {
    const stw_jagged_desc *d = j->d;
    j->outer = one_or(d->outer);
    j->inner = one_or(d->inner);
    j->grad_inner = d->op == STW_JAGGED_LINEAR ? d->out_features : j->inner;
    j->grad_outer = j->outer;
    if (d->op == STW_JAGGED_RESHAPE) {
        split(d->shape_rank, d->shape, &j->outer, &j->inner);
        split(d->grad_rank, d->grad_shape, &j->grad_outer, &j->grad_inner);
    }
    int64_t whole = d->dim == STW_DIM_OUTER ? j->outer : j->inner;
    j->after = one_or(d->dim_after);
    j->size = d->dim_size ? d->dim_size : whole / j->after;
    j->before = whole / j->after / j->size;
}

static int64_t matrix_elements(const jref *j, int axis_rows, int axis_cols, int64_t with_bases) {
    const stw_jagged_desc *d = j->d;
    int rows = d->ragged_axes >> axis_rows & 1u, cols = d->ragged_axes >> axis_cols & 1u;
    int64_t area = (rows ? d->axis[axis_rows].total : d->axis[axis_rows].size) *
                   (cols ? d->axis[axis_cols].total : d->axis[axis_cols].size);
    if (with_bases) return with_bases;
    return area * j->outer * (rows || cols ? 1 : d->components);
}

static int64_t grad_elements(const jref *j) {
    const stw_jagged_desc *d = j->d;
    int64_t block = j->outer * j->inner;
    if (d->op == STW_JAGGED_MATMUL) return matrix_elements(j, STW_AXIS_M, STW_AXIS_N, d->grad_elements);
    if (d->op == STW_JAGGED_TO_PADDED) return d->components * d->padded * block;
    if (d->op == STW_JAGGED_SUM || d->op == STW_JAGGED_SELECT) {
        if (d->dim == STW_DIM_RAGGED) return d->components * block;
        if (d->dim == STW_DIM_COMPONENT) return jref_span_of(j, 0, slice_of(j, d->components)).used * block;
        return d->axis[0].total * block / j->size;
    }
    return d->axis[0].total * j->grad_outer * j->grad_inner;
}

int64_t jref_input_elements(const jref *j, stw_jref_input input) {
    const stw_jagged_desc *d = j->d;
    uint32_t outputs = stw_jref_outputs(d);
    int64_t nested = d->axis[0].total * j->outer * j->inner;
    int linear = d->op == STW_JAGGED_LINEAR, norm = stw_jagged_is_norm(d->op), dx = outputs & STW_JAGGED_DX;
    int weighs = (outputs & STW_JAGGED_DWEIGHT) != 0;
    switch (input) {
    case STW_JREF_GRAD: return grad_elements(j);
    case STW_JREF_X:
        if (d->op == STW_JAGGED_MATMUL)
            return outputs & STW_JAGGED_DOTHER ? matrix_elements(j, STW_AXIS_M, STW_AXIS_K, d->x_elements) : 0;
        if (linear) return weighs ? nested : 0;
        return (norm && (dx || weighs)) || stw_jagged_is_pointwise(d->op) ? nested : 0;
    case STW_JREF_Y: return stw_jagged_is_softmax(d->op) ? nested : 0;
    case STW_JREF_OTHER:
        return d->op == STW_JAGGED_MATMUL && dx ? matrix_elements(j, STW_AXIS_K, STW_AXIS_N, d->other_elements) : 0;
    case STW_JREF_WEIGHT:
        if (linear) return dx ? d->out_features * j->inner : 0;
        return norm && dx && d->flags & STW_JAGGED_HAS_GAMMA ? j->size : 0;
    case STW_JREF_MEAN:
        if (d->op == STW_JAGGED_RMS_NORM) return 0; /* fallthrough */
    default:
        if (norm && d->dim == STW_DIM_RAGGED) return d->components * j->outer;
        return norm && (dx || weighs) ? nested / j->size : 0;
    }
}

/* Widens an input; 0: no memory. A null input stays null. */
static int widen(const void *data, int64_t elements, stw_dtype dtype, double **out) {
    *out = NULL;
    if (!data) return 1;
    *out = malloc(sizeof(double) * (size_t)(elements ? elements : 1));
    for (int64_t n = 0; *out && n < elements; ++n) (*out)[n] = stw_jref_load(data, n, dtype);
    return *out != NULL;
}

static int read_inputs(jref *j) {
    const stw_jagged_desc *d = j->d;
    const stw_jagged_args *a = j->a;
    stw_dtype statistic = d->dtype == STW_F64 ? STW_F64 : STW_F32; /* f64: for finite differences */
    const void *given[STW_JREF_INPUTS] = {a->grad, a->x, a->y, a->other, a->weight, a->mean, a->rstd};
    double **widened[STW_JREF_INPUTS] = {&j->grad, &j->x, &j->y, &j->other, &j->weight, &j->mean, &j->rstd};
    for (int i = 0; i < STW_JREF_INPUTS; ++i) {
        int64_t elements = jref_input_elements(j, (stw_jref_input)i);
        stw_dtype dtype = i >= STW_JREF_MEAN                        ? statistic
                          : i == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype
                                                                    : d->dtype;
        if (!widen(elements ? given[i] : NULL, elements, dtype, widened[i])) return 0;
    }
    return 1;
}

static void count_outputs(const jref *j, int64_t elements[STW_JREF_OUTPUTS]) {
    const stw_jagged_desc *d = j->d;
    int64_t block = j->outer * j->inner;
    int linear = d->op == STW_JAGGED_LINEAR, matmul = d->op == STW_JAGGED_MATMUL;
    elements[0] = matmul                            ? matrix_elements(j, STW_AXIS_M, STW_AXIS_K, d->x_elements)
                  : d->op == STW_JAGGED_FROM_PADDED ? d->components * d->padded * block
                                                    : d->axis[0].total * block;
    elements[1] = matmul ? matrix_elements(j, STW_AXIS_K, STW_AXIS_N, d->other_elements) : 0;
    elements[2] = linear ? d->out_features * j->inner : j->size;
    elements[3] = linear ? d->out_features : j->size;
}

void stw_jref_output_elements(const stw_jagged_desc *desc, int64_t elements_out[STW_JREF_OUTPUTS]) {
    jref j = {.d = desc};
    jref_resolve(&j);
    count_outputs(&j, elements_out);
}

static int make_outputs(jref *j) {
    stw_jref_result *out = j->out;
    uint32_t wanted = stw_jref_outputs(j->d);
    count_outputs(j, out->elements);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        if (!(wanted >> i & 1u)) continue;
        size_t n = (size_t)(out->elements[i] ? out->elements[i] : 1);
        out->values[i] = calloc(n, sizeof(double));
        out->kinds[i] = malloc(n);
        if (!out->values[i] || !out->kinds[i]) return 0;
        memset(out->kinds[i], i < 2 ? STW_REF_ROW_UNTOUCHED : STW_REF_ROW_LIVE, n);
    }
    return 1;
}

stw_status stw_jref_evaluate(const stw_jagged_desc *desc, const stw_jagged_args *args, int evaluation,
                             stw_jref_result *result_out) {
    jref j = {.d = desc, .a = args, .evaluation = evaluation, .out = result_out};
    memset(result_out, 0, sizeof *result_out);
    jref_resolve(&j);
    int good = read_inputs(&j) && make_outputs(&j);
    if (good) {
        if (desc->op == STW_JAGGED_MATMUL) {
            mark_matrices(&j, 0, STW_AXIS_M, STW_AXIS_K);
            mark_matrices(&j, 1, STW_AXIS_K, STW_AXIS_N);
        } else {
            mark_rows(&j);
        }
        if (evaluation) jref_run_f32(&j);
        else jref_run_f64(&j);
    }
    double *inputs[] = {j.grad, j.x, j.y, j.other, j.weight, j.mean, j.rstd};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; ++i) free(inputs[i]);
    if (!good) stw_jref_free(result_out);
    return good ? STW_OK : STW_E_NO_MEMORY;
}

void stw_jref_free(stw_jref_result *result) {
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i) {
        free(result->values[i]);
        free(result->kinds[i]);
    }
    memset(result, 0, sizeof *result);
}
