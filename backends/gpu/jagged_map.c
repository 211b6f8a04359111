/* SPDX-License-Identifier: MIT
 *
 * Launch plans of sum, select, reshape and padded tensors: how much of an output row has one source, and
 * whether common/kernels/jagged_rows.h has the problem or jagged_map.h. Called by backends/gpu/jagged_launch.c. */
#include "backends/gpu/jagged_launch.h"

#include "common/dtype.h"

static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int sums_inner(const stw_jagged_params *p) {
    return (p->op == STW_JAGGED_SUM || p->op == STW_JAGGED_SELECT) && p->dim == STW_DIM_INNER;
}

static int64_t run_of(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_RESHAPE) return greatest_divisor(p->inner, p->grad_inner);
    if (sums_inner(p)) return p->dim_after == 1 ? p->dim_size : p->dim_after;
    return p->inner;
}

/* Whether rows, which are never empty, have one source each that jag_rows::look knows. */
static int has_row_sources(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_RESHAPE) return p->grad_inner == p->inner; /* then the outer extents agree too */
    if (p->op == STW_JAGGED_TO_PADDED || p->op == STW_JAGGED_FROM_PADDED) return 1;
    if (sums_inner(p)) return p->dim_after == 1 && p->dim_before == 1;
    return p->dim != STW_DIM_OUTER;
}

/* The kernel by rows counts rows, and elements of a row, in 32 bits. */
static int is_countable(const stw_jagged_params *p) {
    const double most = 2147483648.0;
    double padded_rows = (double)p->components * (double)p->outer * (double)stw_larger(p->padded, 1);
    return (double)p->axis[0].total * (double)p->outer < most && padded_rows < most && (double)p->inner < most;
}

stw_jagged_map stw_jagged_map_of(const stw_jagged_params *p) {
    uint32_t element = (uint32_t)stw_dtype_size((stw_dtype)p->dtype);
    int64_t chunk = STW_JAGGED_CHUNK(element), vector = STW_JAGGED_VECTOR(element);
    stw_jagged_map map = {.run = stw_larger(1, run_of(p))};
    map.rows = p->dx_dtype == p->dtype && !(p->accumulate & STW_JAGGED_DX) && p->inner % vector == 0 &&
               has_row_sources(p) && is_countable(p);
    int64_t positions = p->op == STW_JAGGED_FROM_PADDED ? p->components * p->padded : p->axis[0].total;
    double chunks = (double)positions * (double)p->outer * (double)p->inner / (double)chunk;
    map.span = chunks < STW_JAGGED_ROW_MANY ? chunk : chunk * STW_JAGGED_ROW_CHUNKS;
    return map;
}
