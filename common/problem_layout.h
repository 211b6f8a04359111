/* SPDX-License-Identifier: MIT
 *
 * Shared by problem.c (formatting) and tools/problem (parsing): the tensors of a descriptor as a table, the
 * strides that a layout gives them, and the names of tokens that both sides need. */
#ifndef STW_COMMON_PROBLEM_LAYOUT_H
#define STW_COMMON_PROBLEM_LAYOUT_H

#include "problem.h"

#define STW_PROBLEM_GAP_MAX INT64_C(65536)

typedef enum stw_tensor_kind {
    STW_TENSOR_Q,   /* rows of the query side, head_dim_qk */
    STW_TENSOR_K,   /* rows of the key side, head_dim_qk   */
    STW_TENSOR_V,   /* rows of the key side, head_dim_v    */
    STW_TENSOR_OUT, /* rows of the query side, head_dim_v  */
    STW_TENSOR_LSE, /* one float a query row and head      */
    STW_TENSOR_BIAS,
    STW_TENSOR_INTERVALS, /* int32 bounds of every key         */
    STW_TENSOR_BLOCKS     /* bytes of a block mask             */
} stw_tensor_kind;

/* Kinds of four strides. */
static inline int stw_problem_has_four_strides(stw_tensor_kind kind) { return kind >= STW_TENSOR_BIAS; }

typedef struct stw_problem_tensor {
    const char *name;
    stw_tensor_kind kind;
    size_t offset;   /* of its strides in stw_attn_desc              */
    uint32_t output; /* STW_OUT_* bit that makes a gradient wanted   */
    uint32_t flags;  /* any of these STW_ATTN_* bits makes it used   */
    int backward;    /* used by the backward only                    */
    size_t dim;      /* offset of its head_dim stride, or 0: always 1 */
} stw_problem_tensor;

extern const stw_problem_tensor stw_problem_tensors[];
extern const size_t stw_problem_tensor_count;
extern const size_t stw_problem_bias; /* index of the bias */

extern const char *const stw_problem_form_names[6]; /* of intervals, by stw_attn_intervals */

typedef struct stw_problem_flag {
    const char *name;
    uint32_t bit;
} stw_problem_flag;

extern const stw_problem_flag stw_problem_flags[]; /* flags that stand alone: sink, dlse, ... */
extern const size_t stw_problem_flag_count;

extern const char *const stw_problem_order_names[3];
extern const char *const stw_problem_lse_names[3];
extern const char *const stw_problem_grad_names[4]; /* dq, dk, dv, dbias */
extern const char stw_problem_output_letters[6];    /* "qkvbs" by bit    */

const char *stw_problem_op_name(stw_problem_op op);

/* batch, head, seq; bias and block mask: batch, head, query, key; intervals: batch, head, key, bound. */
const int64_t *stw_problem_strides_of(const stw_attn_desc *desc, const stw_problem_tensor *tensor);

/* Along head_dim. */
int64_t stw_problem_dim_stride(const stw_attn_desc *desc, const stw_problem_tensor *tensor);

/* 0 when a stride does not fit 63 bits. */
int stw_problem_strides_of_layout(stw_attn_desc *desc, const stw_problem_layout *layout);

/* 1 when the call does not use the tensor or both descriptors mean the same by its strides. */
int stw_problem_strides_match(const stw_attn_desc *desc, const stw_attn_desc *model, const stw_problem_tensor *tensor,
                              stw_problem_op op);

#endif
