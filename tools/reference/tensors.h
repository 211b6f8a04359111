/* SPDX-License-Identifier: MIT
 *
 * A gradient as the accuracy rule sees it: rows of doubles in the reference's order, what each row is, and
 * where each element lies in the caller's tensor. Used by expect.c and accuracy.c. */
#ifndef STW_TOOLS_REFERENCE_TENSORS_H
#define STW_TOOLS_REFERENCE_TENSORS_H

#include "accuracy.h"
#include "problem.h"

typedef struct stw_ref_tensor {
    const double *values, *absolute; /* [rows][row_size]; absolute may be null          */
    const unsigned char *kinds;      /* [rows] of stw_ref_row; null: every row is live  */
    int64_t rows, row_size;
    int64_t terms; /* a sum's length at most */
    stw_dtype dtype;
} stw_ref_tensor;

uint32_t stw_ref_grad_bit(stw_grad which); /* STW_OUT_* */
stw_ref_tensor stw_ref_tensor_of(const stw_ref_problem *problem, const stw_ref_result *result, stw_grad which);

#endif
