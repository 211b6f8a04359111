/* SPDX-License-Identifier: MIT
 *
 * Runs and comparisons that several tests of the oracle share. */
#ifndef STW_TESTS_REFERENCE_COMPARE_H
#define STW_TESTS_REFERENCE_COMPARE_H

#include "tests/reference/fixture.h"

#define ALL_ROWS (STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV)

extern const stw_ref_mode baseline_mode; /* an f32 one */

/* The backward, which must succeed; mode NULL: float64. */
stw_ref_result backward(const fixture *f, const stw_ref_mode *mode);

/* Bit for bit but for the sign of zero; NaN equals NaN. */
void assert_same(const double *a, const double *b, int64_t count);
void assert_same_result(const fixture *f, const stw_ref_result *a, const stw_ref_result *b);
void assert_all(const double *values, int64_t count, double expected);

/* 6 queries, 3 keys, bottom-right: rows 0..2 see no key. With dLSE and sink. */
fixture blind_rows(void);

#endif
