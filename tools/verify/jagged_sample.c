/* SPDX-License-Identifier: MIT
 *
 * Verifying a jagged problem that is too large for the reference as a whole (jagged.h). dx and dother of
 * a component depend on that component alone: it is a problem of its own, whose tensors lie inside the large
 * one's; where rows are independent, its first rows are. dweight and dbias sum over all rows: some columns of
 * them, copied out, are a problem of their own. Used by bench. */
#include "jagged.h"

#include "common/dtype.h"

#include <stdlib.h>
#include <string.h>

#define WORK_MAX 0x1p25 /* products, or elements, that the reference evaluates nine times */
#define WHOLE    0x1p20 /* elements: up to here all is judged, as conform does            */
#define COLUMNS  4

typedef struct span {
    int64_t first, length, used;
} span;

static int64_t load_index(const jagged_verify_case *c, int tensor, int64_t b) {
    const unsigned char *at = c->host + c->offset[tensor];
    return c->problem.desc.index_dtype == STW_I64 ? ((const int64_t *)(const void *)at)[b]
                                                  : ((const int32_t *)(const void *)at)[b];
}

static span span_of(const jagged_verify_case *c, int axis, int64_t b) {
    span s = {0, c->problem.desc.axis[axis].size, c->problem.desc.axis[axis].size};
    if (!c->size[JVERIFY_OFFSETS + axis]) return s;
    s.first = load_index(c, JVERIFY_OFFSETS + axis, b);
    s.used = s.length = load_index(c, JVERIFY_OFFSETS + axis, b + 1) - s.first;
    if (c->size[JVERIFY_USED + axis]) s.used = load_index(c, JVERIFY_USED + axis, b);
    return s;
}

static int64_t elements_of(const jagged_verify_case *c, const stw_jagged_desc *d, int tensor) {
    stw_jagged_args none = jagged_verify_args(c, c->host);
    stw_jref_result shape;
    if (tensor < STW_JREF_INPUTS) return stw_jref_elements(d, &none, (stw_jref_input)tensor);
    stw_jref_output_elements(d, shape.elements);
    return shape.elements[tensor - JVERIFY_DX];
}

static stw_dtype dtype_of(const stw_jagged_desc *d, int tensor) {
    if (tensor >= JVERIFY_DX) return stw_jref_dtype(d, tensor - JVERIFY_DX);
    if (tensor >= STW_JREF_MEAN) return STW_F32;
    return tensor == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype : d->dtype;
}

/* Where a tensor's component begins: a tensor grows by so many elements a position of a ragged axis, or a
 * component, or is shared by all. */
static int64_t start_of(const jagged_verify_case *c, int tensor, int64_t b) {
    const stw_jagged_desc *d = &c->problem.desc;
    int64_t whole = elements_of(c, d, tensor);
    for (int axis = 0; axis < 3; ++axis) {
        stw_jagged_desc longer = *d;
        if (!c->size[JVERIFY_OFFSETS + axis]) continue;
        ++longer.axis[axis].total;
        int64_t more = elements_of(c, &longer, tensor) - whole;
        if (more) return more * span_of(c, axis, b).first;
    }
    return d->components > 0 && whole % d->components == 0 && tensor != STW_JREF_WEIGHT && tensor != JVERIFY_DWEIGHT &&
                   tensor != JVERIFY_DBIAS
               ? whole / d->components * b
               : 0;
}

/* ---- dx and dother of a component ---------------------------------------------------------------------- */

static int rows_are_independent(const stw_jagged_desc *d) {
    if (d->outer > 1) return 0;
    if (stw_jagged_is_softmax(d->op) || d->op == STW_JAGGED_SUM || d->op == STW_JAGGED_SELECT)
        return d->dim != STW_DIM_RAGGED;
    return d->op == STW_JAGGED_LINEAR || (stw_jagged_is_norm(d->op) && d->dim != STW_DIM_RAGGED) ||
           stw_jagged_is_pointwise(d->op);
}

/* A component cannot be cut out where its elements are not side by side. */
static const char *component_refusal(const stw_jagged_desc *d) {
    int jagged = d->storage == STW_STORAGE_JAGGED || d->grad_storage == STW_STORAGE_JAGGED ||
                 d->other_storage == STW_STORAGE_JAGGED;
    if (jagged && (d->outer > 1 || d->op == STW_JAGGED_MATMUL || d->op == STW_JAGGED_RESHAPE))
        return "its components are interleaved";
    if (d->flags & (STW_JAGGED_X_BASES | STW_JAGGED_OTHER_BASES | STW_JAGGED_GRAD_BASES))
        return "its components have bases";
    return d->dim == STW_DIM_COMPONENT ? "it selects a component" : NULL;
}

/* Products (or elements, where there are none) for positions [0, n) of a component of n. */
static double work_of(const jagged_verify_case *c, int64_t b, int64_t n) {
    const stw_jagged_desc *d = &c->problem.desc;
    double outer = d->outer > 1 ? (double)d->outer : 1;
    if (d->op == STW_JAGGED_MATMUL) {
        double work = outer;
        for (int axis = 0; axis < 3; ++axis) work *= (double)span_of(c, axis, b).length;
        return work;
    }
    double position = d->inner > 1 ? (double)d->inner : 1;
    if (d->op == STW_JAGGED_RESHAPE)
        for (int i = 0; i < d->shape_rank; ++i) position *= d->shape[i] > 1 ? (double)d->shape[i] : 1;
    if (d->op == STW_JAGGED_TO_PADDED || d->op == STW_JAGGED_FROM_PADDED) n = n > d->padded ? n : d->padded;
    return (double)n * outer * position * (d->op == STW_JAGGED_LINEAR ? (double)d->out_features : 1);
}

/* The largest component that the reference can take, with fewer rows of it where they stand alone; -1: none.
 */
static int64_t pick_component(const jagged_verify_case *c, int64_t *rows_out) {
    const stw_jagged_desc *d = &c->problem.desc;
    int64_t best = -1;
    double most = 0;
    for (int64_t b = 0; b < d->components; ++b) {
        int64_t rows = span_of(c, 0, b).length;
        double work = work_of(c, b, rows);
        if (work > WORK_MAX && rows_are_independent(d)) {
            int64_t fits = (int64_t)(WORK_MAX / work_of(c, b, 1));
            rows = fits > 0 ? fits : 1;
            work = work_of(c, b, rows);
        } else if (work > WORK_MAX) {
            continue;
        }
        if (work <= most) continue;
        most = work, best = b;
        *rows_out = rows;
    }
    return best;
}

static stw_status judge_part(jagged_verify_case *part, const stw_jagged_args *inputs, const unsigned char *after,
                             stw_verify_result *result) {
    stw_status status = stw_jref_expect(&part->problem.desc, inputs, &part->expectation);
    if (!status) jagged_verify_judge(part, after, result);
    stw_jref_expectation_free(&part->expectation);
    return status;
}

/* Tensors of component b alone, inside the arena of c; the lengths are its own. */
static stw_status judge_component(const jagged_verify_case *c, const unsigned char *after, int64_t b, int64_t rows,
                                  uint32_t outputs, stw_verify_result *result) {
    jagged_verify_case part = {.problem = c->problem, .host = c->host};
    stw_jagged_desc *d = &part.problem.desc;
    int64_t offsets[3][2] = {{0}}, used[3] = {0};
    d->components = 1;
    d->outputs = outputs;
    d->accumulate &= outputs;
    d->flags &= ~STW_JAGGED_FULL;
    d->index_dtype = STW_I64;
    for (int axis = 0; axis < 3; ++axis) {
        if (!c->size[JVERIFY_OFFSETS + axis]) continue;
        span s = span_of(c, axis, b);
        offsets[axis][1] = axis == 0 && rows < s.length ? rows : s.length;
        used[axis] = s.used < offsets[axis][1] ? s.used : offsets[axis][1];
        d->axis[axis].total = offsets[axis][1];
    }
    for (int tensor = 0; tensor <= JVERIFY_DBIAS; ++tensor) {
        size_t element = stw_dtype_size(dtype_of(d, tensor));
        if (!c->size[tensor] || (tensor >= JVERIFY_DX && !(outputs >> (tensor - JVERIFY_DX) & 1u))) continue;
        part.offset[tensor] = c->offset[tensor] + (size_t)start_of(c, tensor, b) * element;
        part.size[tensor] = (size_t)elements_of(c, d, tensor) * element;
    }
    stw_jagged_args inputs = jagged_verify_args(&part, part.host);
    for (int axis = 0; axis < 3; ++axis) {
        if (!c->size[JVERIFY_OFFSETS + axis]) continue;
        inputs.axis[axis].offsets = offsets[axis];
        inputs.axis[axis].used = c->size[JVERIFY_USED + axis] ? &used[axis] : NULL;
    }
    return judge_part(&part, &inputs, after, result);
}

/* ---- dweight and dbias of some columns ----------------------------------------------------------------- */

/* Elements of a line of `tensor` that the sums run over, and how many of them a sum has columns. */
static int64_t line_of(const stw_jagged_desc *d, int tensor) {
    int64_t inner = d->inner ? d->inner : 1; /* 0 means 1 */
    if (stw_jagged_is_norm(d->op)) return d->dim_size ? d->dim_size : inner;
    return tensor == STW_JREF_X ? inner : d->out_features;
}

static void copy_columns(unsigned char *to, const unsigned char *from, int64_t lines, int64_t line, int64_t columns,
                         size_t element) {
    int64_t first = (line - columns) / 2;
    for (int64_t n = 0; n < lines; ++n)
        memcpy(to + (size_t)(n * columns) * element, from + (size_t)(n * line + first) * element,
               (size_t)columns * element);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void shrink_line(stw_jagged_desc *d) {
    if (stw_jagged_is_norm(d->op)) {
        int64_t line = line_of(d, STW_JREF_X), columns = least(line, COLUMNS);
        d->inner = (d->inner ? d->inner : 1) / line * columns;
        d->dim_size = columns;
    } else {
        d->inner = least(line_of(d, STW_JREF_X), COLUMNS);
        d->out_features = least(d->out_features, COLUMNS);
    }
}

/* Puts a tensor's middle columns behind what the part's arenas hold; a weight's rows are chosen alike. */
static void gather(const jagged_verify_case *c, const unsigned char *after, int tensor, jagged_verify_case *part,
                   unsigned char *part_after) {
    const stw_jagged_desc *d = &c->problem.desc;
    size_t element = stw_dtype_size(dtype_of(d, tensor));
    int64_t whole = elements_of(c, d, tensor), line = line_of(d, tensor);
    const unsigned char *from[2] = {c->host + c->offset[tensor], after + c->offset[tensor]};
    unsigned char *to[2] = {part->host, part_after};
    part->offset[tensor] = (part->bytes + 255) / 256 * 256;
    for (int side = tensor < JVERIFY_DX ? 0 : 1; side >= 0; --side) {
        unsigned char *at = to[side] + part->offset[tensor];
        int64_t rows = whole / line, columns = least(line, COLUMNS);
        const unsigned char *first = from[side];
        if (tensor == JVERIFY_DWEIGHT && d->op == STW_JAGGED_LINEAR) { /* [N, K] */
            line = line_of(d, STW_JREF_X);
            rows = least(d->out_features, COLUMNS), columns = least(line, COLUMNS);
            first += (size_t)((d->out_features - rows) / 2 * line) * element;
        }
        copy_columns(at, first, rows, line, columns, element);
        part->size[tensor] = (size_t)(rows * columns) * element;
    }
    part->bytes = part->offset[tensor] + part->size[tensor];
}

static stw_status judge_columns(const jagged_verify_case *c, const unsigned char *after, uint32_t outputs,
                                stw_verify_result *result) {
    jagged_verify_case part = {.problem = c->problem};
    stw_jagged_desc *d = &part.problem.desc;
    size_t capacity = 4096;
    d->outputs = outputs;
    d->accumulate &= outputs;
    shrink_line(d);
    for (int tensor = 0; tensor <= JVERIFY_DBIAS; ++tensor) capacity += (size_t)elements_of(c, d, tensor) * 8 + 256;
    for (int tensor = STW_JREF_MEAN; tensor <= STW_JREF_RSTD; ++tensor) capacity += c->size[tensor] + 256;
    part.host = malloc(capacity);
    unsigned char *part_after = malloc(capacity);
    stw_status status = part.host && part_after ? STW_OK : STW_E_NO_MEMORY;
    for (int tensor = 0; tensor <= JVERIFY_DBIAS && !status; ++tensor) {
        if (!c->size[tensor] || tensor == STW_JREF_WEIGHT || tensor == JVERIFY_DX) continue;
        if (tensor >= JVERIFY_DX && !(outputs >> (tensor - JVERIFY_DX) & 1u)) continue;
        if (tensor == STW_JREF_MEAN || tensor == STW_JREF_RSTD) {
            part.offset[tensor] = (part.bytes + 255) / 256 * 256;
            part.size[tensor] = c->size[tensor];
            memcpy(part.host + part.offset[tensor], c->host + c->offset[tensor], c->size[tensor]);
            part.bytes = part.offset[tensor] + part.size[tensor];
        } else {
            gather(c, after, tensor, &part, part_after);
        }
    }
    if (!status) {
        stw_jagged_args inputs = jagged_verify_args(&part, part.host);
        inputs.axis[0] = jagged_verify_args(c, c->host).axis[0];
        status = judge_part(&part, &inputs, part_after, result);
    }
    free(part.host);
    free(part_after);
    return status;
}

/* ---- both ---------------------------------------------------------------------------------------------- */

static double elements_in_all(const jagged_verify_case *c) {
    double sum = 0;
    for (int tensor = 0; tensor <= JVERIFY_DBIAS; ++tensor) sum += (double)c->size[tensor];
    return sum / 2;
}

static double work_in_all(const jagged_verify_case *c) {
    double work = elements_in_all(c);
    for (int64_t b = 0; b < c->problem.desc.components; ++b) work += work_of(c, b, span_of(c, 0, b).length);
    return work;
}

const char *jagged_sample_judge(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result) {
    const stw_jagged_desc *d = &c->problem.desc;
    const uint32_t sums = STW_JAGGED_DWEIGHT | STW_JAGGED_DBIAS;
    uint32_t outputs = stw_jref_outputs(d);
    stw_status status = STW_OK;
    const char *refusal = NULL;
    int64_t rows = 0, judged = 0;
    if (elements_in_all(c) <= WHOLE && work_in_all(c) <= WORK_MAX) {
        jagged_verify_case whole = *c; /* its expectation alone is its own */
        stw_jagged_args inputs = jagged_verify_args(c, c->host);
        status = judge_part(&whole, &inputs, after, result);
        judged = 1;
    } else {
        refusal = component_refusal(d);
        int64_t b = refusal ? -1 : pick_component(c, &rows);
        if (b >= 0 && outputs & ~sums) status = judge_component(c, after, b, rows, outputs & ~sums, result), ++judged;
        if (!status && outputs & sums) status = judge_columns(c, after, outputs & sums, result), ++judged;
    }
    if (status) stw_verify_fail(result, "sample: %s", stw_status_name(status));
    if (result->near) return "it is within twice the allowed error, which conform judges on more data";
    return judged ? NULL : refusal ? refusal : "no component of it is small enough";
}
