/* SPDX-License-Identifier: MIT
 *
 * The parameter block of the jagged operations: the contract between host and kernels, and the arithmetic
 * both must agree on: what a component's place is, which row of a buffer belongs to which component.
 * dispatch/jagged_params.c fills the shape part at plan time and the pointers of a call; the first step of a
 * call on any backend makes the clean lengths (stw_jagged_axis_param.starts and .used_clean) in its
 * workspace, and everything after that reads only these. Plain fixed-width fields; sizes in elements unless
 * they say so. */
#ifndef STW_COMMON_PARAMS_JAGGED_H
#define STW_COMMON_PARAMS_JAGGED_H

#include "attn_bwd.h" /* STW_SHARED_FN, stw_clamp_i64, STW_PARAMS_ASSERT */

/* Bits of stw_jagged_params.features. */
#define STW_JFEAT_USED     0x01u /* the call may have used lengths                     */
#define STW_JFEAT_FULL     0x02u /* promised: offsets are 0..total, no used lengths    */
#define STW_JFEAT_GAMMA    0x04u
#define STW_JFEAT_INDEX64  0x08u /* offsets and used are int64, else int32             */
#define STW_JFEAT_ANY_GAPS 0x10u /* set by a backend that has looked at the data: some U_b < L_b */

/* One extent of a component: a constant, or ragged. */
typedef struct stw_jagged_axis_param {
    const void *offsets;          /* the caller's [components + 1]; null: constant                          */
    const void *used;             /* the caller's [components], or null: full                               */
    int64_t *starts;              /* [components + 1] in the workspace: non-decreasing, 0..total            */
    int64_t *used_clean;          /* [components] in the workspace: 0..min(starts[b+1] - starts[b], size)   */
    int64_t size;                 /* constant: the extent; ragged: no component is longer                   */
    int64_t total;                /* ragged: positions in the buffers                                       */
    uint32_t ragged, axis_number; /* the latter shifts the axis's bits of status_out                */
} stw_jagged_axis_param;

/* A matrix operand of matmul; dx and dother share those of x and other. */
typedef struct stw_jagged_matrix_param {
    const int64_t *bases; /* the caller's [components], or null                                    */
    int64_t elements;     /* with bases: of the buffer                                             */
    uint32_t rows, cols;  /* axes of its (mathematical) rows and columns                           */
    uint32_t transposed;  /* stored [cols, rows]                                                   */
    uint32_t spread;      /* STW_STORAGE_JAGGED: the ragged extent is `total` long in the storage  */
    uint32_t has_bases;   /* of the shape class; `bases` is the call's                             */
    uint32_t ordered;     /* its gradient is wanted: components must follow each other             */
} stw_jagged_matrix_param;

typedef struct stw_jagged_params {
    stw_jagged_axis_param axis[3];
    stw_jagged_matrix_param x_matrix, other_matrix, grad_matrix;
    const void *grad, *x, *y, *other, *weight;
    const float *mean, *rstd;
    void *dx, *dother, *dweight, *dbias;
    int32_t *status_out;               /* may be null */
    int32_t *offsets32[2], *used32[2]; /* attention with int64 offsets: where q's and kv's become int32 */

    int64_t components;
    /* Storage of nested tensors whose component is [outer, ragged, x]: `slabs` copies of [total*rows_outer]
     * rows of x elements; slabs = outer under STORAGE_JAGGED, rows_outer = outer otherwise, the other is 1. */
    int64_t outer, inner, slabs, rows_outer;
    int64_t grad_outer, grad_inner, grad_slabs, grad_rows_outer; /* reshape: of grad; else as above */
    /* The dimension worked along: its extent, what is before and after it within inner (dim INNER) or outer
     * (dim OUTER). dim RAGGED: size 0, before = after = 1. */
    int64_t dim_before, dim_size, dim_after;
    int64_t index;        /* select */
    int64_t out_features; /* linear: N */
    int64_t padded;
    double threshold;
    uint32_t op, dim; /* stw_jagged_op, stw_jagged_dim */
    uint32_t dtype, weight_dtype, dx_dtype, dother_dtype, dweight_dtype, dbias_dtype; /* stw_dtype  */
    uint32_t outputs, accumulate;                                                     /* STW_JAGGED_D* */
    uint32_t features;                                                                /* STW_JFEAT_* */
    uint32_t reserved;
} stw_jagged_params;

/* ---- making the clean lengths ----------------------------------------------------------------------------
 * starts[b] = the largest of stw_jagged_offset(axis, 0..b) clamped to 0..total; used_clean as in
 * stw_jagged_used_of. Whoever makes them also reports the status bits below. */
STW_SHARED_FN int64_t stw_jagged_index(const void *values, int64_t b, uint32_t features) {
    return (features & STW_JFEAT_INDEX64) ? ((const int64_t *)values)[b] : ((const int32_t *)values)[b];
}

/* Length that takes part, from the clean starts and the caller's value (or none). */
STW_SHARED_FN int64_t stw_jagged_used_of(const stw_jagged_axis_param *a, int64_t b, uint32_t features) {
    int64_t rows = a->starts[b + 1] - a->starts[b];
    if (rows > a->size) rows = a->size;
    return a->used ? stw_clamp_i64(stw_jagged_index(a->used, b, features), 0, rows) : rows;
}

/* ---- reading them ---- */
typedef struct stw_jagged_span {
    int64_t first, rows, used; /* first position, L_b, U_b; constant axes: 0, extent, extent */
} stw_jagged_span;

STW_SHARED_FN stw_jagged_span stw_jagged_span_of(const stw_jagged_axis_param *a, int64_t b) {
    stw_jagged_span span = {0, a->size, a->size};
    if (a->ragged) {
        span.first = a->starts[b];
        span.rows = a->starts[b + 1] - span.first;
        span.used = a->used_clean[b];
    }
    return span;
}

/* The component that holds a position, or -1: before the first or past the last. O(log components). */
STW_SHARED_FN int64_t stw_jagged_find(const int64_t *starts, int64_t components, int64_t position) {
    if (components <= 0 || position < starts[0] || position >= starts[components]) return -1;
    int64_t low = 0, high = components; /* starts[low] <= position < starts[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= position) low = middle;
        else high = middle;
    }
    return low;
}

/* A row (of x elements) of a nested buffer: rows are numbered 0 .. slabs*total*rows_outer. */
typedef struct stw_jagged_row {
    int64_t component; /* -1: in none, leave it alone */
    int64_t o, r;      /* outer index and position in the component */
    int64_t valid;     /* r < U_b; 0: a gap, its gradient is zero and nothing of it is read */
} stw_jagged_row;

STW_SHARED_FN stw_jagged_row stw_jagged_row_of(const stw_jagged_params *p, int64_t row) {
    const stw_jagged_axis_param *a = &p->axis[0];
    stw_jagged_row found;
    int64_t slab_rows = a->total * p->rows_outer, slab = p->slabs > 1 ? row / slab_rows : 0;
    int64_t within = row - slab * slab_rows;
    int64_t b = stw_jagged_find(a->starts, p->components, p->rows_outer > 1 ? within / p->rows_outer : within);
    found.component = b;
    found.o = slab;
    found.r = found.valid = 0;
    if (b < 0) return found;
    int64_t length = a->starts[b + 1] - a->starts[b];
    within -= a->starts[b] * p->rows_outer;
    found.r = within;
    if (p->rows_outer > 1) {
        found.o = within / length;
        found.r = within - found.o * length;
    }
    found.valid = found.r < a->used_clean[b];
    return found;
}

/* Number of row (o, r) of component b in such a buffer; `length` is L_b. */
STW_SHARED_FN int64_t stw_jagged_row_number(int64_t total, int64_t rows_outer, int64_t first, int64_t length, int64_t o,
                                            int64_t r) {
    return rows_outer > 1 ? first * rows_outer + o * length + r : o * total + first + r;
}

/* ---- matmul ---- */
/* Matrices of one component: element (i, j) of matrix o at first + o*stride + i*row + j*col; 1 of row and col
 * is 1. `present` 0: its base is out of bounds, the component is skipped. */
typedef struct stw_jagged_place {
    int64_t first, stride, row, col;
    int64_t present;
} stw_jagged_place;

STW_SHARED_FN stw_jagged_place stw_jagged_place_of(const stw_jagged_params *p, const stw_jagged_matrix_param *m,
                                                   int64_t b) {
    const stw_jagged_axis_param *rows = &p->axis[m->rows], *cols = &p->axis[m->cols];
    stw_jagged_span r = stw_jagged_span_of(rows, b), c = stw_jagged_span_of(cols, b);
    stw_jagged_place place;
    int64_t stored_rows = m->spread && rows->ragged ? rows->total : r.rows;
    int64_t stored_cols = m->spread && cols->ragged ? cols->total : c.rows;
    int64_t position = rows->ragged ? r.first : c.first, other = rows->ragged ? cols->size : rows->size;
    place.row = m->transposed ? 1 : stored_cols;
    place.col = m->transposed ? stored_rows : 1;
    place.stride = stored_rows * stored_cols;
    place.present = 1;
    if (m->has_bases) {
        int64_t size = place.stride * p->outer;
        place.first = m->bases[b];
        place.present = place.first >= 0 && size <= m->elements && place.first <= m->elements - size;
    } else if (!rows->ragged && !cols->ragged) {
        place.first = b * place.stride * p->outer;
    } else if (m->spread) {
        place.first = position * (rows->ragged ? place.row : place.col);
    } else {
        place.first = position * other * p->outer;
    }
    return place;
}

STW_PARAMS_ASSERT(sizeof(stw_jagged_axis_param) == 56, "axes");
STW_PARAMS_ASSERT(sizeof(stw_jagged_matrix_param) == 40, "matrices");
STW_PARAMS_ASSERT(sizeof(stw_jagged_params) == 3 * 56 + 3 * 40 + 16 * 8 + 15 * 8 + 8 + 12 * 4,
                  "host and device agree on the parameter block");

#endif
