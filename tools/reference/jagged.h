/* SPDX-License-Identifier: MIT
 *
 * The oracle of jagged operations: plain loops over the formulas of jagged_bwd.h, component by component, in
 * float64 (the reference) and f32 (the baselines of the accuracy rule: eight orders of summation). Reads the
 * public descriptor and host arguments only; every op takes every element type here, f64 included, so that
 * finite differences can check it. ATTENTION is reference.h's. */
#ifndef STW_TOOLS_REFERENCE_JAGGED_H
#define STW_TOOLS_REFERENCE_JAGGED_H

#include "accuracy.h"
#include "common/jagged_ops.h" /* which operations are pointwise */

#define STW_JREF_OUTPUTS   4 /* dx, dother, dweight, dbias: the bits of STW_JAGGED_D* in order */
#define STW_JREF_BASELINES 8

/* Whole buffers as the caller has them. `kinds`: STW_REF_ROW_* of every element. Null: not wanted. */
typedef struct stw_jref_result {
    int64_t elements[STW_JREF_OUTPUTS];
    double *values[STW_JREF_OUTPUTS];
    unsigned char *kinds[STW_JREF_OUTPUTS];
} stw_jref_result;

/* evaluation: 0 float64, 1..8 f32 in that order of summation. Wrong lengths are the caller's defect: they are
 * not checked. Errors: STW_E_NO_MEMORY. */
stw_status stw_jref_evaluate(const stw_jagged_desc *desc, const stw_jagged_args *args, int evaluation,
                             stw_jref_result *result_out);
void stw_jref_free(stw_jref_result *result);

typedef enum stw_jref_input {
    STW_JREF_GRAD,
    STW_JREF_X,
    STW_JREF_Y,
    STW_JREF_OTHER,
    STW_JREF_WEIGHT,
    STW_JREF_MEAN,
    STW_JREF_RSTD,
    STW_JREF_INPUTS
} stw_jref_input;

/* Elements of each output's buffer. */
void stw_jref_output_elements(const stw_jagged_desc *desc, int64_t elements_out[STW_JREF_OUTPUTS]);

/* Elements of an input's buffer; 0: the op does not use it. */
int64_t stw_jref_elements(const stw_jagged_desc *desc, const stw_jagged_args *args, stw_jref_input input);
/* Sets marks[n] to 1 for every element that the op may read; leaves the others. Only the lengths and bases of
 * `args` are read. */
void stw_jref_mark_readable(const stw_jagged_desc *desc, const stw_jagged_args *args, stw_jref_input input,
                            unsigned char *marks);

typedef struct stw_jref_expectation {
    stw_jref_result reference;
    double e_max[STW_JREF_OUTPUTS], e_rms[STW_JREF_OUTPUTS], max_ref[STW_JREF_OUTPUTS];
    int exact; /* the op moves elements: results are the reference, bit for bit */
} stw_jref_expectation;

stw_status stw_jref_expect(const stw_jagged_desc *desc, const stw_jagged_args *args,
                           stw_jref_expectation *expectation_out);
void stw_jref_expectation_free(stw_jref_expectation *expectation);

/* Type of output `which`, defaults resolved. */
stw_dtype stw_jref_dtype(const stw_jagged_desc *desc, int which);
/* STW_JAGGED_D* asked for, default resolved. */
uint32_t stw_jref_outputs(const stw_jagged_desc *desc);

/* An element of any type. (Integers beyond 2^53 are not told apart.) */
double stw_jref_load(const void *data, int64_t index, stw_dtype dtype);

#endif
