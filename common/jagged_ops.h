/* SPDX-License-Identifier: MIT
 *
 * What is asked of common/jagged_ops.def and common/jagged_pointwise.def in many places. */
#ifndef STW_COMMON_JAGGED_OPS_H
#define STW_COMMON_JAGGED_OPS_H

#include "sternway/jagged_bwd.h"

/* One more than the largest stw_jagged_op: tables by operation have as many entries. The values are dense from 1. */
enum {
    STW_JAGGED_OPS = 1
#define STW_JAGGED_OP(ID, name, outputs, flags, fields, dims, any_dtype) +1
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype)                +1
#include "common/jagged_ops.def"
#undef STW_JAGGED_OP
#undef STW_JAGGED_POINTWISE
};

/* 1 for dX = G f'(X). */
static inline int stw_jagged_is_pointwise(uint32_t op) {
    switch (op) {
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype) case STW_JAGGED_##ID:
#include "common/jagged_pointwise.def"
#undef STW_JAGGED_POINTWISE
        return 1;
    default: return 0;
    }
}

/* 1 for those along `dim` that read Y. */
static inline int stw_jagged_is_softmax(uint32_t op) {
    return op == STW_JAGGED_SOFTMAX || op == STW_JAGGED_LOG_SOFTMAX;
}

/* 1 for those with lines that rstd is given for; mean is LAYER_NORM's alone. */
static inline int stw_jagged_is_norm(uint32_t op) { return op == STW_JAGGED_LAYER_NORM || op == STW_JAGGED_RMS_NORM; }

/* 1 for a norm over the ragged dimension and inner. */
static inline int stw_jagged_is_ragged_norm(uint32_t op, uint32_t dim) {
    return stw_jagged_is_norm(op) && dim == STW_DIM_RAGGED;
}

#endif
