/* SPDX-License-Identifier: MIT
 *
 * The backward formula for one head, in f32, float64 or wider: the interface of core.inl, which is compiled
 * for all three element types, and on x86-64 once more with AVX2 (bit for bit the same results: FP
 * contraction is off and no sum is reordered). backward.c drives it. */
#ifndef STW_TOOLS_REFERENCE_CORE_H
#define STW_TOOLS_REFERENCE_CORE_H

#include "heads.h"
#include "reference.h"

#define STW_REF_PAD  32 /* rows of the dense buffers are padded to this many elements  */
#define STW_REF_ROWS 32 /* query rows worked on together                               */

#define STW_REF_WIDEST sizeof(long double)

static inline int64_t stw_ref_padded(int64_t count) { return (count + STW_REF_PAD - 1) / STW_REF_PAD * STW_REF_PAD; }

/* In what order sums run: position n of a sum takes element order[n]. `delta` is the order of the sum over
 * head dim in D, which real kernels take in another pass than dO V^T. */
typedef struct stw_ref_order {
    int32_t *query, *key, *dim, *dim_v, *delta;
} stw_ref_order;

typedef struct stw_ref_eval {
    stw_ref_mode mode;
    int absolute; /* the formula on absolute values (P as it is) */
} stw_ref_eval;

/* Buffers of core.inl, sized for the longest sequences; 64-byte aligned, in elements of STW_REF_WIDEST bytes
 * at most. */
typedef struct stw_ref_work {
    void *k_turned, *v_turned; /* [dim][keys]                                    */
    void *k_rows;              /* [keys][dim]                                    */
    void *q_mixed, *do_mixed;  /* [rows][dim], head dim in the order of summation */
    void *q_rows, *do_rows;    /* [rows][dim]                                    */
    void *p, *ds;              /* [rows][keys]: S, then P.Z; dP, then dS'        */
    void *dq;                  /* [rows][dim]                                    */
    unsigned char *live;       /* [rows][keys]: the pair is not selected to 0    */
} stw_ref_work;

/* Where a head's gradients go: sums in the element type, finished rows in double. */
typedef struct stw_ref_sums {
    void *dk, *dv;       /* [keys][padded dim]: running sums over the group            */
    void *dbias, *dsink; /* running sums; dbias indexed by the head's dbias strides   */
    double *dq;          /* row 0 of this head in the result                           */
    int64_t dq_stride;
    double *delta; /* [queries]                                                  */
} stw_ref_sums;

typedef struct stw_ref_core {
    size_t size; /* of the element type */
    void (*backward)(const stw_ref_head *head, const stw_ref_order *order, const stw_ref_eval *eval,
                     const stw_ref_work *work, const stw_ref_sums *sums);
    /* to[row*stride + n] = scale * sum[row*padded(dim) + n] */
    void (*store)(const void *sum, int64_t rows, int64_t dim, double scale, double *to, int64_t stride);
} stw_ref_core;

extern const stw_ref_core stw_ref_core_f32, stw_ref_core_f64;
extern const stw_ref_core stw_ref_core_wide; /* long double: f64 problems' reference */
#ifdef STW_REF_HAVE_AVX2
extern const stw_ref_core stw_ref_core_f32_avx2, stw_ref_core_f64_avx2;
#endif

#endif
