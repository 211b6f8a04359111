/* SPDX-License-Identifier: MIT
 *
 * Several evaluations of one backward problem in one walk over its heads, which are gathered (and their
 * dropout bits drawn) once. Used by reference.c and by the accuracy rule. */
#ifndef STW_TOOLS_REFERENCE_BACKWARD_H
#define STW_TOOLS_REFERENCE_BACKWARD_H

#include "core.h"

/* Evaluation n goes to results[n] (zeroed by the caller; freed by the caller also after a failure).
 * An absolute evaluation fills the abs_ arrays of results[n] and no others, so that it may share the
 * result of a float64 evaluation. */
stw_status stw_ref_backward_many(const stw_ref_problem *problem, const stw_ref_eval *evals, int count,
                                 stw_ref_result *const *results);

/* Sizes of a result and its row kinds; arrays themselves are made by the evaluations. */
stw_status stw_ref_result_shape(const stw_ref_problem *problem, stw_ref_result *result);

/* A result array [rows][row_size]: NaN in rows not to be touched, 0 elsewhere. NULL: no memory. */
double *stw_ref_result_rows(const unsigned char *kinds, int64_t rows, int64_t row_size);

/* For tests: 0 keeps to the base instruction set. */
extern int stw_ref_allow_avx2;

#endif
