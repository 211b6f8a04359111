/* SPDX-License-Identifier: MIT
 *
 * The accuracy rule (SPEC section 5), one for all architectures and the only copy of its constants:
 *   max|x - ref| <= 2 e_max + 2 ulp(output type at max|ref|); where ref = 0 throughout: 4*2^-24 times
 *   the formula on absolute values;
 *   RMS(x - ref) <= 1.25 e_rms for tensors of >= 1024 elements, pooled over a feature row's cases else,
 * e_max and e_rms being the largest of eight f32 evaluations (four orders of summation, two forms of exp). */
#ifndef STW_ACCURACY_H
#define STW_ACCURACY_H

#include "reference.h"

typedef enum stw_grad { STW_GRAD_DQ, STW_GRAD_DK, STW_GRAD_DV, STW_GRAD_DBIAS, STW_GRAD_DSINK, STW_GRAD_COUNT } stw_grad;

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

/* How one output tensor compares. */
typedef struct stw_accuracy {
    int64_t elements;
    double max_error, max_allowed; /* max|x - ref| and its bound                                   */
    double rms_error, rms_allowed; /* rms_allowed = 1.25 e_rms                                     */
    double square_sum, baseline_square_sum; /* for pooling: sum (x-ref)^2, elements*e_rms^2        */
    int small;                     /* < 1024 elements: RMS is judged by the pool, not here         */
    int pass;                      /* max and, unless small, RMS                                   */
    int64_t worst;                 /* index of the largest error in the reference's order          */
    double worst_value, worst_ref;
} stw_accuracy;

/* Judges the gradient `which` that the library left in args (added amounts: `before`, the tensor's
 * content before the call, is subtracted when the descriptor accumulates; else NULL). Also requires that
 * NaN and infinity appear exactly where the reference has them. */
stw_status stw_judge(const stw_attn_desc *desc, const stw_attn_args *args, const stw_expectation *expectation,
                     stw_grad which, const void *before, stw_accuracy *accuracy_out);

/* RMS pooled over small tensors of one feature row. */
typedef struct stw_accuracy_pool {
    double square_sum, baseline_square_sum;
    int64_t elements;
} stw_accuracy_pool;
void stw_pool_add(stw_accuracy_pool *pool, const stw_accuracy *accuracy);
int stw_pool_pass(const stw_accuracy_pool *pool, double *ratio_out); /* ratio = RMS / allowed RMS */

/* One ulp of the type at magnitude x (subnormal spacing below the normal range). */
double stw_ulp(double x, stw_dtype dtype);

#endif
