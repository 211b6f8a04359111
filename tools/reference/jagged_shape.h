/* SPDX-License-Identifier: MIT
 *
 * Private to jagged*.c of the reference: a problem with its inputs widened to double, places of elements, and
 * the two instances of the formulas. */
#ifndef STW_TOOLS_REFERENCE_JAGGED_SHAPE_H
#define STW_TOOLS_REFERENCE_JAGGED_SHAPE_H

#include "jagged.h"

typedef struct jref {
    const stw_jagged_desc *d;
    const stw_jagged_args *a;
    int evaluation;
    int64_t outer, inner, grad_inner, size, after, before; /* of dim; `before` within inner or outer */
    int64_t grad_outer;                                    /* reshape */
    double *grad, *x, *y, *other, *weight, *mean, *rstd;   /* null: not used */
    stw_jref_result *out;
    unsigned char *marks; /* not null: moves mark what they would read of grad */
} jref;

/* A component's extent along an axis. */
typedef struct jref_span {
    int64_t first, length, used, total; /* constant axes: first -1 */
} jref_span;

jref_span jref_span_of(const jref *j, int axis, int64_t b);

/* Index of element (o, r, i) of a nested buffer. */
int64_t jref_index(jref_span s, int64_t outer, int64_t inner, stw_jagged_storage storage, int64_t o, int64_t r,
                   int64_t i);

/* Index of element (row, col) of matrix o of a matmul operand: 0 x, 1 other, 2 grad. */
int64_t jref_matrix_index(const jref *j, int operand, int64_t b, int64_t o, int64_t row, int64_t col);

/* The k-th of n terms in this evaluation's order. */
int64_t jref_order(const jref *j, int64_t k, int64_t n);

void jref_set(jref *j, int which, int64_t index, double value);

int64_t jref_input_elements(const jref *j, stw_jref_input input);
void jref_resolve(jref *j); /* outer .. grad_outer from the descriptor */

void jref_run_f64(jref *j);
void jref_run_f32(jref *j);
void jref_move(jref *j); /* ops without arithmetic */

#endif
