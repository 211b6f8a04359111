/* SPDX-License-Identifier: MIT
 *
 * The nested operations' forward over plain components, in double: sum(G * op(x)), of which
 * test_jagged_differences.c takes differences. Written from jagged_bwd.h, not from the reference. */
#ifndef STW_TESTS_REFERENCE_JAGGED_FORWARD_H
#define STW_TESTS_REFERENCE_JAGGED_FORWARD_H

#include "tests/jagged/problem.h"

enum { ELEMENTS = 2048, COMPONENTS = 4 };

typedef struct setup {
    stw_jagged_op op;
    stw_jagged_dim dim;
    int64_t outer, inner, size, after, index; /* size, after: as in the descriptor, never 0 where dim counts */
} setup;

/* A problem in logical order: component by component, [outer, used, inner] each. */
typedef struct fd {
    const setup *s;
    lengths l;
    int64_t first[COMPONENTS + 1]; /* of the component's elements in x */
    double grad[ELEMENTS], x[ELEMENTS], weight[64], bias[16];
    int64_t padded, features;
} fd;

/* One line of elements along the dimension. */
typedef struct line {
    int64_t first, step, count;
} line;

int64_t lines_of(const fd *f, int b);
/* The n-th line of component b, in the order of the reduced tensor. */
line line_at(const fd *f, int b, int64_t n);
double loss_of(const fd *f);

#endif
