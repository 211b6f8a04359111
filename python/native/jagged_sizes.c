/* SPDX-License-Identifier: MIT */
/* How many elements the tensors of a nested operation have, by its descriptor; the rules are those of jagged_bwd.h.
 * The C interface believes them, since it gets pointers alone: an array with fewer would be read behind its end. */
#include "native.h"

/* Sizes whose product a plan has found to be below 2^60; a shape's -1 is left out. */
static int64_t product_of_shape(const int64_t *shape, int rank) {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= shape[i] < 0 ? 1 : shape[i];
    return product;
}

/* A matrix of matmul's whose rows and columns are these axes. */
static int64_t matrix(const stw_jagged_desc *desc, int64_t outer, int rows, int columns, uint32_t bases,
                      int64_t elements) {
    if (desc->flags & bases) return elements;
    const bool ragged_rows = desc->ragged_axes >> rows & 1, ragged_columns = desc->ragged_axes >> columns & 1;
    const int64_t area = (ragged_rows ? desc->axis[rows].total : desc->axis[rows].size) *
                         (ragged_columns ? desc->axis[columns].total : desc->axis[columns].size);
    return area * outer * (ragged_rows || ragged_columns ? 1 : desc->components);
}

static stw_py_jagged_sizes of_matmul(const stw_jagged_desc *desc, int64_t outer) {
    stw_py_jagged_sizes sizes = {0};
    sizes.x = matrix(desc, outer, STW_AXIS_M, STW_AXIS_K, STW_JAGGED_X_BASES, desc->x_elements);
    sizes.other = matrix(desc, outer, STW_AXIS_K, STW_AXIS_N, STW_JAGGED_OTHER_BASES, desc->other_elements);
    sizes.grad = matrix(desc, outer, STW_AXIS_M, STW_AXIS_N, STW_JAGGED_GRAD_BASES, desc->grad_elements);
    sizes.dx = sizes.x;
    return sizes;
}

/* The extent that sum, select and the norms work along. */
static int64_t extent_along(const stw_jagged_desc *desc, int64_t outer, int64_t inner) {
    const int64_t whole = desc->dim == STW_DIM_OUTER ? outer : inner;
    return desc->dim_size ? desc->dim_size : whole / (desc->dim_after ? desc->dim_after : 1);
}

stw_py_jagged_sizes stw_py_jagged_sizes_of(const stw_jagged_desc *desc) {
    const int64_t outer = desc->outer ? desc->outer : 1, inner = desc->inner ? desc->inner : 1;
    if (desc->op == STW_JAGGED_MATMUL) return of_matmul(desc, outer);
    const int64_t rows = outer * desc->axis[0].total, nested = rows * inner,
                  dense = desc->components * outer * desc->padded * inner;
    stw_py_jagged_sizes sizes = {.grad = nested, .x = nested, .dx = nested};
    switch (desc->op) {
    case STW_JAGGED_LINEAR:
        sizes.grad = rows * desc->out_features;
        sizes.weight = desc->out_features * inner;
        sizes.columns = desc->out_features;
        break;
    case STW_JAGGED_SUM:
    case STW_JAGGED_SELECT:
        if (desc->dim == STW_DIM_RAGGED) sizes.grad = desc->components * outer * inner;
        else if (desc->dim == STW_DIM_COMPONENT) sizes.grad = -1; /* outer * inner * the component's used length */
        else sizes.grad = nested / extent_along(desc, outer, inner);
        break;
    case STW_JAGGED_LAYER_NORM:
    case STW_JAGGED_RMS_NORM:
        sizes.weight = sizes.columns = extent_along(desc, outer, inner);
        sizes.lines = nested / sizes.columns;
        if (desc->dim == STW_DIM_RAGGED) sizes.lines = desc->components * outer;
        break;
    case STW_JAGGED_RESHAPE:
        sizes.grad = desc->axis[0].total * product_of_shape(desc->grad_shape, desc->grad_rank);
        sizes.dx = desc->axis[0].total * product_of_shape(desc->shape, desc->shape_rank);
        break;
    case STW_JAGGED_TO_PADDED: sizes.grad = dense; break;
    case STW_JAGGED_FROM_PADDED: sizes.dx = dense; break;
    default: break;
    }
    return sizes;
}
