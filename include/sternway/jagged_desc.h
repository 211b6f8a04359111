/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: the descriptor of a nested (jagged) operation: ops, storage orders, axes, flags, sizes and types.
 * What a nested tensor is, what each op computes and the calls are in jagged_bwd.h, which includes this
 * file. */
#ifndef STERNWAY_JAGGED_DESC_H
#define STERNWAY_JAGGED_DESC_H

#include "attn_desc.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/** The operation; formulas in jagged_bwd.h. 0 is invalid. */
typedef enum stw_jagged_op {
    STW_JAGGED_MATMUL = 1,      /**< product of matrices per component   */
    STW_JAGGED_LINEAR = 2,      /**< X W^T + bias                        */
    STW_JAGGED_SOFTMAX = 3,     /**< along `dim`                         */
    STW_JAGGED_SUM = 4,         /**< along `dim`                         */
    STW_JAGGED_SELECT = 5,      /**< slice `index` of `dim`              */
    STW_JAGGED_GELU = 6,        /**< with the normal distribution        */
    STW_JAGGED_GELU_TANH = 7,   /**< with its approximation by tanh      */
    STW_JAGGED_SILU = 8,        /**< x / (1 + exp(-x))                   */
    STW_JAGGED_THRESHOLD = 9,   /**< relu: threshold 0                   */
    STW_JAGGED_LAYER_NORM = 10, /**< over the last elements of inner, or all of a component */
    STW_JAGGED_RESHAPE = 11,    /**< other component shape               */
    STW_JAGGED_TO_PADDED = 12,  /**< nested -> padded                    */
    STW_JAGGED_FROM_PADDED = 13, /**< padded -> nested                   */
    STW_JAGGED_ATTENTION = 14,  /**< of nested q, k, v                   */
    STW_JAGGED_LOG_SOFTMAX = 15, /**< along `dim`                        */
    STW_JAGGED_RMS_NORM = 16    /**< as LAYER_NORM                       */
} stw_jagged_op;

/** The dimension of a component that softmax, log_softmax, sum and select work along; required there. */
typedef enum stw_jagged_dim {
    STW_DIM_NONE = 0,     /**< the op has none                                         */
    STW_DIM_OUTER = 1,    /**< `dim_size` of outer, see stw_jagged_desc.dim_size       */
    STW_DIM_RAGGED = 2,   /**< the ragged one                                          */
    STW_DIM_INNER = 3,    /**< `dim_size` of inner                                     */
    STW_DIM_COMPONENT = 4 /**< select only: component `index` as a whole               */
} stw_jagged_dim;

/** Order of a nested tensor's values; formulas in jagged_bwd.h. */
typedef enum stw_jagged_storage {
    STW_STORAGE_COMPONENTS = 0, /**< components one after the other */
    STW_STORAGE_JAGGED = 1      /**< [outer, total, inner]          */
} stw_jagged_storage;

/** @name Axes that can be ragged
 * Indices of desc.axis and args.axis. All ops but these two have one, axis 0.
 * @{ */
#define STW_AXIS_M  0 /**< matmul    */
#define STW_AXIS_K  1 /**< matmul    */
#define STW_AXIS_N  2 /**< matmul    */
#define STW_AXIS_Q  0 /**< attention */
#define STW_AXIS_KV 1 /**< attention */
/** @} */

/** Sizes of one axis. */
typedef struct stw_jagged_axis {
    int64_t size;  /**< ragged: no component is longer (max_length); else the extent, 0 included */
    int64_t total; /**< ragged: positions in the buffers, offsets[components] <= total; else 0   */
} stw_jagged_axis;

/** @name Bits of stw_jagged_desc.outputs and .accumulate
 * @{ */
#define STW_JAGGED_DX      0x01u /**< dX, dA                       */
#define STW_JAGGED_DOTHER  0x02u /**< dB of matmul                 */
#define STW_JAGGED_DWEIGHT 0x04u /**< dW, dGamma                   */
#define STW_JAGGED_DBIAS   0x08u /**< linear's dbias, dBeta        */
/** @} */

/** @name Bits of stw_jagged_desc.flags
 * @{ */
/** args.axis[].used is given for an axis at least, else for none. */
#define STW_JAGGED_HAS_USED         0x0001u
/** Promise: offsets are 0..total and nothing is unused; selects faster products for LINEAR. Excludes
 * HAS_USED. Broken: on GPUs reported; the first offset is taken for 0, the last for total, and LINEAR takes every
 * row, of components that are too long as well. */
#define STW_JAGGED_FULL             0x0002u
#define STW_JAGGED_HAS_GAMMA        0x0004u /**< both norms: args.weight is given, else gamma is 1    */
#define STW_JAGGED_X_TRANSPOSED     0x0010u /**< matmul: matrices of x are stored [k,m], dA alike     */
#define STW_JAGGED_OTHER_TRANSPOSED 0x0020u /**< of other: [n,k], dB alike                            */
#define STW_JAGGED_GRAD_TRANSPOSED  0x0040u /**< of grad: [n,m]                                       */
#define STW_JAGGED_X_BASES          0x0100u /**< matmul: args.x_bases says where x's components start */
#define STW_JAGGED_OTHER_BASES      0x0200u /**< the same of other                                    */
#define STW_JAGGED_GRAD_BASES       0x0400u /**< the same of grad                                     */
/** @} */

/** Extents of a component's shape at most. */
#define STW_JAGGED_RANK_MAX 8

/** The shape class of a problem. Fields that the op does not use must be 0. components < 2^31; sizes and
 * totals < 2^48; no tensor has 2^60 elements or more. */
typedef struct stw_jagged_desc {
    size_t struct_size; /**< sizeof(stw_jagged_desc) */
    stw_jagged_op op;   /**< required                */
    /** Of x, y, grad, other: f16, bf16, f32; SUM, SELECT, THRESHOLD, RESHAPE and the padded ops also f64 and
     * integers, on the CPU backend alone. ATTENTION: 0, the attn descriptor's counts. */
    stw_dtype dtype;
    stw_dtype index_dtype;   /**< of offsets and used: STW_I32 or STW_I64; required */
    stw_dtype dx_dtype;      /**< gradient types: NONE = the tensor's, or STW_F32 (from f16, bf16, f32) */
    stw_dtype dother_dtype;  /**< as dx_dtype */
    stw_dtype dweight_dtype; /**< as dx_dtype */
    stw_dtype dbias_dtype;   /**< as dx_dtype */
    /** LINEAR: NONE or `dtype`; LAYER_NORM, RMS_NORM: gamma's, NONE = `dtype`, or STW_F32; NONE in
     * dweight_dtype and dbias_dtype means this one. */
    stw_dtype weight_dtype;
    uint32_t outputs; /**< STW_JAGGED_D*; 0 = all of the op (both norms without HAS_GAMMA: dX alone) */
    /** Subset of outputs that is added to what is there (f32 only); nothing is zeroed. The additions are the
     * call's last: one rounding an element. */
    uint32_t accumulate;
    uint32_t flags; /**< STW_JAGGED_* */
    /** Of the nested tensors (x, y, grad, dx; mean, rstd with inner / dim_size, but along RAGGED); MATMUL: of x and dA;
     * RESHAPE: of dx. */
    stw_jagged_storage storage;
    stw_jagged_storage grad_storage;  /**< MATMUL, RESHAPE: of grad */
    stw_jagged_storage other_storage; /**< MATMUL: of other and dB  */

    int64_t components; /**< how many, 0 included */
    /** Axis 0 is the ragged one. MATMUL: m, k, n, of which `ragged_axes` has the bits (1u << STW_AXIS_M ...);
     * a matrix with two ragged extents needs *_bases; without any ragged extent it is a dense stack
     * [components, outer, rows, columns]. STORAGE_JAGGED: the matrix's rows or columns are ragged, values
     * [outer, rows, columns] with `total` for that extent. TRANSPOSED exchanges rows and columns of the
     * storage. ATTENTION: unused, see attn. */
    stw_jagged_axis axis[3];
    uint32_t ragged_axes; /**< MATMUL only */
    /** SOFTMAX, LOG_SOFTMAX, SUM, SELECT; LAYER_NORM, RMS_NORM: NONE or INNER, lines within inner; RAGGED: the
     * ragged dimension and inner are normalised together, without gamma (it would be ragged), dX alone. */
    stw_jagged_dim dim;
    int64_t outer;        /**< 0 = 1. RESHAPE: unused */
    int64_t inner;        /**< 0 = 1. LINEAR: K. RESHAPE, MATMUL: unused */
    /** A dimension inside inner or outer: inner = any * dim_size * dim_after. 0: dim_size = what is left,
     * dim_after = 1. LAYER_NORM, RMS_NORM: dim_size = M, dim_after 1. With dim OUTER the same of outer. */
    int64_t dim_size;
    int64_t dim_after;    /**< see dim_size */
    /** SELECT: from -size to size - 1; along RAGGED the size is each component's U_b. */
    int64_t index;
    int64_t out_features; /**< LINEAR: N, 1 or more                                             */
    int64_t padded;       /**< TO_PADDED, FROM_PADDED: positions of the padded tensor, 0 or more */
    double threshold;     /**< THRESHOLD: finite                                                */
    int32_t shape_rank;   /**< RESHAPE: extents in `shape`, 1..8                                */
    int32_t grad_rank;    /**< RESHAPE: extents in `grad_shape`, 1..8                           */
    /** RESHAPE: component shapes of x and of grad, exactly one extent of each -1 (the ragged one); the
     * products of the others must be equal. */
    int64_t shape[STW_JAGGED_RANK_MAX];
    int64_t grad_shape[STW_JAGGED_RANK_MAX]; /**< see shape */
    int64_t x_elements;     /**< MATMUL with X_BASES: elements of that buffer (all of it) */
    int64_t other_elements; /**< the same of other, with OTHER_BASES                      */
    int64_t grad_elements;  /**< the same of grad, with GRAD_BASES                        */
    /** ATTENTION: a packed problem (total_q and total_kv > 0, batch = components), read by the plan call
     * only. STW_ATTN_HAS_USED_LENGTHS in it, not HAS_USED here. Its outputs, types, strides and flags
     * count. */
    const stw_attn_desc *attn;
} stw_jagged_desc;

#ifdef __cplusplus
}
#endif
#endif
