/* SPDX-License-Identifier: MIT
 *
 * The accuracy rule (docs/specification.md section 5), one for all architectures and the only copy of its constants:
 *   max|x - ref| <= 2 e_max + 2 ulp(output type at max|ref|); where ref = 0 throughout: 4*2^-24 times
 *   the formula on absolute values;
 *   RMS(x - ref) <= 1.25 e_rms for tensors of >= 1024 elements, pooled over a feature row's cases else,
 * e_max and e_rms being the largest of eight f32 evaluations (four orders of summation, two forms of exp).
 * Of f64 problems: the reference in long double, eight f64 evaluations, 4*2^-53. */
#ifndef STW_TOOLS_REFERENCE_ACCURACY_H
#define STW_TOOLS_REFERENCE_ACCURACY_H

#include "reference.h"

typedef enum stw_grad {
    STW_GRAD_DQ,
    STW_GRAD_DK,
    STW_GRAD_DV,
    STW_GRAD_DBIAS,
    STW_GRAD_DSINK,
    STW_GRAD_COUNT
} stw_grad;

extern const char *const stw_grad_names[STW_GRAD_COUNT]; /* "dq", ... */

/* Expected values and permitted errors of one problem: reference and eight baselines, evaluated once. */
typedef struct stw_expectation {
    stw_ref_result reference;
    struct {
        int wanted;
        stw_dtype dtype;     /* of the output                                     */
        int64_t elements;    /* that are defined (not gap rows)                   */
        double e_max, e_rms; /* of the baselines                                  */
        double max_ref;      /* max|ref|                                          */
        double max_abs;      /* max of the formula on absolute values             */
    } grad[STW_GRAD_COUNT];
} stw_expectation;

stw_status stw_expect_attn_bwd(const stw_attn_desc *desc, const stw_attn_args *args, stw_expectation *out);
void stw_expectation_free(stw_expectation *expectation);

/* From so many elements on that are not 0 a tensor's RMS is judged alone. Of one with less, one visible pair with the
 * rest hidden among them, all errors may be one rounding. */
#define STW_SAMPLE_ELEMENTS 1024

/* How one output tensor compares. */
typedef struct stw_accuracy {
    int64_t elements;
    int64_t live; /* of them those whose reference is not 0: hidden pairs and rows have no error to count */
    double max_error, max_allowed;          /* max|x - ref| and its bound                                   */
    double rms_error, rms_allowed;          /* rms_allowed = 1.25 e_rms                                     */
    double square_sum, baseline_square_sum; /* for pooling: sum (x-ref)^2, elements*e_rms^2        */
    int small;     /* < STW_SAMPLE_ELEMENTS live: RMS is judged by the pool, not here                      */
    int pass;      /* max and, unless small, RMS                                   */
    int64_t worst; /* index, in the reference's order, of the first breach of the rules of kind, else of the
                      largest error; -1: no elements */
    double worst_value, worst_ref;
} stw_accuracy;

/* Judges the gradient `which` that the library left in args. `before` is a copy of the tensor from before the
 * call: required when the descriptor accumulates it (then subtracted, and the one rounding of the addition is
 * allowed for); else optional. With it, rows outside every sequence must be bitwise what they were.
 * Also required: NaN and infinity exactly where the reference has them (infinity also where the value or its
 * bound passes the output type's range), and exact zeros in padding rows and rows of no visible pair.
 * Where the reference is 0 throughout there is no e_rms to compare with: only the maximum is judged.
 * f32 inputs are granted 2^-126 a term of a sum, what flushing subnormals may cost.
 * STW_E_INVALID: not a wanted output, or no `before` where it is required. */
stw_status stw_judge(const stw_attn_desc *desc, const stw_attn_args *args, const stw_expectation *expectation,
                     stw_grad which, const void *before, stw_accuracy *accuracy_out);

/* The same rule for a buffer of elements with given permitted errors (jagged operations). */
typedef struct stw_flat_tensor {
    const void *data, *before; /* after and before the call                          */
    stw_dtype dtype;           /* f16, bf16 or f32                                   */
    int adds;                  /* `before` was added to                              */
    int64_t elements;
    const double *values;                      /* of the reference                                        */
    const unsigned char *kinds;                /* STW_REF_ROW_* of each element                     */
    double e_max, e_rms, max_ref, floor_error; /* floor_error: granted in any case   */
} stw_flat_tensor;
void stw_judge_flat(const stw_flat_tensor *tensor, stw_accuracy *accuracy_out);

/* RMS pooled over small tensors of one feature row. */
typedef struct stw_accuracy_pool {
    double square_sum, baseline_square_sum;
    int64_t elements;
} stw_accuracy_pool;
/* Adds a small tensor; others are left out. */
void stw_pool_add(stw_accuracy_pool *pool, const stw_accuracy *accuracy);
int stw_pool_pass(const stw_accuracy_pool *pool, double *ratio_out); /* ratio = RMS / allowed RMS */

/* One ulp of the type at magnitude x: subnormal spacing below the normal range, that of the largest number
 * beyond it, NaN for NaN. */
double stw_ulp(double x, stw_dtype dtype);

#endif
