/* SPDX-License-Identifier: MIT
 *
 * Which elements of the inputs a jagged operation may read: conform fills the others with NaN. */
#include "jagged_shape.h"

#include <string.h>

int64_t stw_jref_elements(const stw_jagged_desc *desc, const stw_jagged_args *args, stw_jref_input input) {
    jref j = {.d = desc, .a = args};
    jref_resolve(&j);
    return jref_input_elements(&j, input);
}

static void mark_nested(const jref *j, int64_t inner, unsigned char *marks) {
    for (int64_t b = 0; b < j->d->components; ++b) {
        jref_span s = jref_span_of(j, 0, b);
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < s.used; ++r)
                for (int64_t i = 0; i < inner; ++i) marks[jref_index(s, j->outer, inner, j->d->storage, o, r, i)] = 1;
    }
}

static void mark_matrix(const jref *j, int operand, int rows, int cols, unsigned char *marks) {
    for (int64_t b = 0; b < j->d->components; ++b)
        for (int64_t o = 0; o < j->outer; ++o)
            for (int64_t r = 0; r < jref_span_of(j, rows, b).used; ++r)
                for (int64_t c = 0; c < jref_span_of(j, cols, b).used; ++c)
                    marks[jref_matrix_index(j, operand, b, o, r, c)] = 1;
}

void stw_jref_mark_readable(const stw_jagged_desc *desc, const stw_jagged_args *args, stw_jref_input input,
                            unsigned char *marks) {
    stw_jref_result nothing = {0};
    jref j = {.d = desc, .a = args, .out = &nothing, .marks = marks};
    jref_resolve(&j);
    int64_t elements = jref_input_elements(&j, input);
    int matmul = desc->op == STW_JAGGED_MATMUL;
    int moves = desc->op == STW_JAGGED_SUM || desc->op == STW_JAGGED_SELECT ||
                (desc->op >= STW_JAGGED_RESHAPE && desc->op <= STW_JAGGED_ATTENTION);
    if (!elements) return;
    if (input == STW_JREF_WEIGHT || (input >= STW_JREF_MEAN && desc->dim == STW_DIM_RAGGED))
        memset(marks, 1, (size_t)elements);
    else if (matmul && input == STW_JREF_GRAD) mark_matrix(&j, 2, STW_AXIS_M, STW_AXIS_N, marks);
    else if (matmul && input == STW_JREF_X) mark_matrix(&j, 0, STW_AXIS_M, STW_AXIS_K, marks);
    else if (matmul) mark_matrix(&j, 1, STW_AXIS_K, STW_AXIS_N, marks);
    else if (input == STW_JREF_GRAD && moves) jref_move(&j);
    else if (input == STW_JREF_GRAD) mark_nested(&j, j.grad_inner, marks);
    else if (input >= STW_JREF_MEAN) mark_nested(&j, j.inner / j.size, marks);
    else mark_nested(&j, j.inner, marks);
}
