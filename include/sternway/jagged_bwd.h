/* SPDX-License-Identifier: MIT
 *
 * Sternway: backward of nested (jagged) tensor operations. One descriptor with an op (the shape class of a
 * problem), one argument block (the pointers of one call), plan and run as for attention.
 *
 * A NESTED TENSOR is a values buffer, offsets[components + 1] and optionally used[components]. Component b is
 * [outer, ragged, inner], row-major: outer and inner are constants (1 when absent; products of the dimensions
 * before and behind the ragged one), ragged is L_b = offsets[b+1] - offsets[b]. Of its L_b positions the
 * first U_b = used[b] take part (without used lengths: all). Values are contiguous, in one of two storage
 * orders: STW_STORAGE_COMPONENTS  components one behind the other: element (b, o, r, i) at
 *                             offsets[b]*outer*inner + (o*L_b + r)*inner + i       (PyTorch's strided layout)
 *     STW_STORAGE_JAGGED      values [outer, total, inner]: (o*total + offsets[b] + r)*inner + i
 *                                                           (PyTorch's jagged layout, ragged_idx > 1)
 * Both are the same when outer is 1. All nested tensors of a call have the offsets of the call.
 *
 * OPS, G the gradient of the op's result, sums in f32 (f64 and integers: in the type itself), rounded once:
 *     MATMUL      C_b[m,n] = A_b[m,k] B_b[k,n], `outer` of them a component: dA = G B^T, dB = A^T G
 *     LINEAR      Y = X W^T + bias, X [outer, ragged, K], W [N,K], G [outer, ragged, N]:
 *                 dX = G W, dW = G^T X, dbias = column sums of G; over all rows that take part
 *     SOFTMAX     dX = Y*(G - sum(G*Y)), the sum along `dim`
 *     SUM         dX = G, each element spread over its segment of `dim`
 *     SELECT      dX = 0 but for slice `index` of `dim`, which is G
 *     GELU        dX = G*(Phi(x) + x*phi(x)), Phi and phi of the normal distribution
 *     GELU_TANH   y = x/2*(1 + tanh(u)), u = sqrt(2/pi)*(x + 0.044715 x^3):
 *                 dX = G*((1 + tanh u)/2 + x/2*(1 - tanh^2 u)*u')
 *     SILU        dX = G*s*(1 + x*(1 - s)), s = 1/(1 + exp(-x))
 *     THRESHOLD   dX = x <= threshold ? 0 : G (relu: threshold 0); NaN x gives G. f16, bf16 and f32 compare with
 *                 the threshold rounded to f32, f64 and integers with the number itself
 *     LAYER_NORM  over the last `dim_size` elements of inner (M of them), h = (x - mean)*rstd, g = G*gamma:
 *                 dX = rstd*(g - avg(g) - h*avg(g*h)), dGamma = sum G*h, dBeta = sum G over all lines;
 *                 no lines at all give dGamma = dBeta = 0
 *     RESHAPE     G of component shape grad_shape to dX of component shape `shape`: element k of the one (in
 *                 row-major order of what is used) is element k of the other
 *     TO_PADDED   backward of nested -> padded: G dense [components, outer, padded, inner], dX nested;
 *                 positions from `padded` on had no place in the result and get 0
 *     FROM_PADDED backward of padded -> nested: G nested, dX dense [components, outer, padded, inner],
 *                 zeros in the padding; positions from `padded` on are not read
 *     ATTENTION   of nested q, k, v: attn_bwd.h's packed problem with these offsets
 * All are deterministic: the same bits run after run, for any number of threads.
 *
 * NEVER LEFT OPEN. Positions from U_b to L_b: their gradients are zeros and no input of theirs is read (NaN
 * there goes nowhere). Positions in no component: neither read nor written. Empty components, no components,
 * and more than 2^31 elements are fine. Real infinities and NaN propagate.
 *
 * WRONG DEVICE DATA. Offsets are device data that the library never reads back. GPU backends take the
 * running maximum of the values clamped to 0..total for them, cut used to 0..min(L_b, axis.size), and report in
 * *status_out: nothing outside the buffers is touched. The CPU backend refuses the call and names the entry,
 * and so does every backend for host mirrors (offsets_host, used_host). */
#ifndef STERNWAY_JAGGED_BWD_H
#define STERNWAY_JAGGED_BWD_H

#include "attn_bwd.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

typedef enum stw_jagged_op { /* 0 is invalid */
    STW_JAGGED_MATMUL = 1,
    STW_JAGGED_LINEAR = 2,
    STW_JAGGED_SOFTMAX = 3,
    STW_JAGGED_SUM = 4,
    STW_JAGGED_SELECT = 5,
    STW_JAGGED_GELU = 6,
    STW_JAGGED_GELU_TANH = 7,
    STW_JAGGED_SILU = 8,
    STW_JAGGED_THRESHOLD = 9,
    STW_JAGGED_LAYER_NORM = 10,
    STW_JAGGED_RESHAPE = 11,
    STW_JAGGED_TO_PADDED = 12,
    STW_JAGGED_FROM_PADDED = 13,
    STW_JAGGED_ATTENTION = 14
} stw_jagged_op;

/* The dimension of a component that softmax, sum and select work along; required there. */
typedef enum stw_jagged_dim {
    STW_DIM_NONE = 0,
    STW_DIM_OUTER = 1,    /* `dim_size` of outer, see stw_jagged_desc.dim_size */
    STW_DIM_RAGGED = 2,
    STW_DIM_INNER = 3,    /* `dim_size` of inner                               */
    STW_DIM_COMPONENT = 4 /* select only: component `index` as a whole         */
} stw_jagged_dim;

typedef enum stw_jagged_storage {
    STW_STORAGE_COMPONENTS = 0,
    STW_STORAGE_JAGGED = 1
} stw_jagged_storage;

/* Axes that can be ragged: indices of desc.axis and args.axis. All ops but these two have one, axis 0. */
#define STW_AXIS_M  0 /* matmul */
#define STW_AXIS_K  1
#define STW_AXIS_N  2
#define STW_AXIS_Q  0 /* attention */
#define STW_AXIS_KV 1

typedef struct stw_jagged_axis {
    int64_t size;  /* ragged: no component is longer (max_length); else the extent, 0 included */
    int64_t total; /* ragged: positions in the buffers, offsets[components] <= total; else 0   */
} stw_jagged_axis;

/* Bits of stw_jagged_desc.outputs and .accumulate. */
#define STW_JAGGED_DX      0x01u /* dX, dA                       */
#define STW_JAGGED_DOTHER  0x02u /* dB of matmul                 */
#define STW_JAGGED_DWEIGHT 0x04u /* dW, dGamma                   */
#define STW_JAGGED_DBIAS   0x08u /* linear's dbias, dBeta        */

/* Bits of stw_jagged_desc.flags. */
#define STW_JAGGED_HAS_USED         0x0001u /* args.axis[].used is given for an axis at least, else for none */
#define STW_JAGGED_FULL             0x0002u /* promise: offsets are 0..total and nothing is unused; selects
                                             * faster products for LINEAR. Excludes HAS_USED. Broken: on GPUs
                                             * reported; the first offset is taken for 0, the last for total, and
                                             * LINEAR takes every row, of components that are too long as well */
#define STW_JAGGED_HAS_GAMMA        0x0004u /* layer_norm: args.weight is given, else gamma is 1         */
#define STW_JAGGED_X_TRANSPOSED     0x0010u /* matmul: matrices of x are stored [k,m], dA alike          */
#define STW_JAGGED_OTHER_TRANSPOSED 0x0020u /* of other: [n,k], dB alike                                 */
#define STW_JAGGED_GRAD_TRANSPOSED  0x0040u /* of grad: [n,m]                                            */
#define STW_JAGGED_X_BASES          0x0100u /* matmul: args.x_bases says where x's components start      */
#define STW_JAGGED_OTHER_BASES      0x0200u
#define STW_JAGGED_GRAD_BASES       0x0400u

#define STW_JAGGED_RANK_MAX 8

/* The shape class of a problem. Fields that the op does not use must be 0. components < 2^31; sizes and totals
 * < 2^48; no tensor has 2^60 elements or more. */
typedef struct stw_jagged_desc {
    size_t struct_size;
    stw_jagged_op op;
    /* Of x, y, grad, other: f16, bf16, f32; SUM, SELECT, THRESHOLD, RESHAPE and the padded ops also f64 and
     * integers, on the CPU backend alone. ATTENTION: 0, the attn descriptor's counts. */
    stw_dtype dtype;
    stw_dtype index_dtype; /* of offsets and used: STW_I32 or STW_I64; required */
    /* Gradient types: NONE = that of the tensor, or STW_F32 (from f16, bf16, f32). */
    stw_dtype dx_dtype, dother_dtype, dweight_dtype, dbias_dtype;
    stw_dtype weight_dtype; /* LINEAR: NONE or `dtype`; LAYER_NORM: gamma's, NONE = `dtype`, or STW_F32;
                             * NONE in dweight_dtype and dbias_dtype means this one                     */
    uint32_t outputs;       /* STW_JAGGED_D*; 0 = all of the op (LAYER_NORM without HAS_GAMMA: dX alone) */
    uint32_t accumulate;    /* subset of outputs that is added to what is there (f32 only); nothing is
                             * zeroed. The additions are the call's last: one rounding an element       */
    uint32_t flags;         /* STW_JAGGED_* */
    stw_jagged_storage storage; /* of the nested tensors (x, y, grad, dx; mean, rstd with inner / dim_size);
                                 * MATMUL: of x and dA; RESHAPE: of dx                                  */
    stw_jagged_storage grad_storage, other_storage; /* MATMUL: of grad; of other and dB. RESHAPE: of grad */

    int64_t components;
    /* Axis 0 is the ragged one. MATMUL: m, k, n, of which `ragged_axes` has the bits (1u << STW_AXIS_M ...);
     * a matrix with two ragged extents needs *_bases; without any ragged extent it is a dense stack
     * [components, outer, rows, columns]. STORAGE_JAGGED: the matrix's rows or columns are ragged, values
     * [outer, rows, columns] with `total` for that extent. TRANSPOSED exchanges rows and columns of the
     * storage. ATTENTION: unused, see attn. */
    stw_jagged_axis axis[3];
    uint32_t ragged_axes;   /* MATMUL only */
    stw_jagged_dim dim;     /* SOFTMAX, SUM, SELECT; LAYER_NORM: NONE or INNER (nothing ragged is normalised) */
    int64_t outer, inner;   /* 0 = 1. LINEAR: inner = K. RESHAPE: unused. MATMUL: outer only              */
    /* A dimension inside inner or outer: inner = any * dim_size * dim_after. 0: dim_size = what is left,
     * dim_after = 1. LAYER_NORM: dim_size = M, dim_after 1. With dim OUTER the same of outer. */
    int64_t dim_size, dim_after;
    int64_t index;          /* SELECT: from -size to size - 1; along RAGGED the size is each component's U_b */
    int64_t out_features;   /* LINEAR: N, 1 or more                                                        */
    int64_t padded;         /* TO_PADDED, FROM_PADDED: positions of the padded tensor, 0 or more           */
    double threshold;       /* THRESHOLD: finite                                                           */
    /* RESHAPE: component shapes of x and of grad, exactly one extent of each -1 (the ragged one), 1..8
     * extents; the products of the others must be equal. */
    int32_t shape_rank, grad_rank;
    int64_t shape[STW_JAGGED_RANK_MAX], grad_shape[STW_JAGGED_RANK_MAX];
    /* MATMUL with *_BASES: elements of that buffer (all of it). */
    int64_t x_elements, other_elements, grad_elements;
    /* ATTENTION: a packed problem (total_q and total_kv > 0, batch = components), read by the plan call only.
     * STW_ATTN_HAS_USED_LENGTHS in it, not HAS_USED here. Its outputs, types, strides and flags count. */
    const stw_attn_desc *attn;
} stw_jagged_desc;

/* One ragged axis of a call; both arrays are of desc.index_dtype, where the context's memory kind says. Without
 * components none of them is read. */
typedef struct stw_jagged_offsets {
    const void *offsets;      /* [components + 1], non-decreasing, from 0 to axis.total at most           */
    const void *used;         /* [components], 0..L_b, with HAS_USED; null = full                         */
    const void *offsets_host; /* optional: the same values in host memory, checked before anything runs   */
    const void *used_host;    /* optional, with `used`                                                    */
} stw_jagged_offsets;

/* The pointers of one call. Inputs are read only, outputs written only (accumulated ones read too); an output may
 * not overlap another tensor (equal starts are refused). Element alignment always works, 16 bytes are
 * faster. A tensor without elements may be null. Everything is the caller's; nothing is kept. */
typedef struct stw_jagged_args {
    size_t struct_size;
    stw_jagged_offsets axis[3]; /* by STW_AXIS_*; axes that are not ragged: all null                      */
    /* Gradient of the result: nested [outer, ragged, inner] (LINEAR: N for inner); MATMUL [m,n]; RESHAPE
     * grad_shape; TO_PADDED dense. SUM and SELECT: nested without `dim` (inner or outer / dim_size), along
     * RAGGED dense [components, outer, inner], along COMPONENT dense [outer, U_index, inner] (never null:
     * only the device knows U_index). */
    const void *grad;
    const void *x;      /* LINEAR with DWEIGHT; GELU*, SILU, THRESHOLD; LAYER_NORM with DX or DWEIGHT; MATMUL
                         * with DOTHER: A                                                                 */
    const void *y;      /* SOFTMAX: the op's result                                                       */
    const void *other;  /* MATMUL with DX: B                                                              */
    const void *weight; /* LINEAR with DX: W [N,K]; LAYER_NORM with HAS_GAMMA and DX: gamma [M]           */
    const float *mean, *rstd; /* LAYER_NORM: one a line, nested [outer, ragged, inner / M] in x's storage  */
    /* MATMUL with *_BASES: [components], device, int64 always: first element of the component's matrices,
     * which then lie one behind the other. dA and dB use x's and other's. Components of a tensor whose
     * gradient is asked for must follow each other without overlap. */
    const int64_t *x_bases, *other_bases, *grad_bases;
    void *dx;      /* as x (FROM_PADDED: dense)  */
    void *dother;  /* as other                   */
    void *dweight; /* as weight, all of it is written: zeros where there are no rows */
    void *dbias;   /* [N] or [M], likewise       */
    int32_t *status_out; /* optional: 0, or the STW_JAGGED_DATA_* bits of what was wrong in device data     */
    /* ATTENTION: its pointers; cu_seqlens_* and used_* null (they come from axis[STW_AXIS_Q], [STW_AXIS_KV]),
     * status_out is attn's, with STW_DATA_* bits. All fields above but `axis` null. */
    const stw_attn_args *attn;
} stw_jagged_args;

/* Bits of *status_out; << the number of the axis for the first two. */
#define STW_JAGGED_DATA_OFFSETS 0x001 /* decreasing, negative, above total; FULL: not 0..total             */
#define STW_JAGGED_DATA_USED    0x010 /* negative, above L_b; a component longer than axis.size            */
#define STW_JAGGED_DATA_INDEX   0x100 /* SELECT along RAGGED: a component without that index; it gets zeros */
#define STW_JAGGED_DATA_BASES   0x200 /* a component that lies outside its buffer or over another; skipped  */

/* Checks the descriptor and chooses kernels; planning is the support query. stw_plan_workspace_size,
 * stw_plan_describe and stw_plan_destroy serve these plans too. Errors: STW_E_INVALID names the field;
 * STW_E_UNSUPPORTED (a type that the backend lacks); STW_E_NO_MEMORY. */
STW_API stw_status stw_jagged_bwd_plan(stw_context *context, const stw_jagged_desc *desc, stw_plan **plan_out);

/* Runs it; workspace, stream and errors as for stw_attn_bwd. A plan of attention is STW_E_INVALID here, and
 * this plan there. */
STW_API stw_status stw_jagged_bwd(const stw_plan *plan, const stw_jagged_args *args, void *workspace,
                                  size_t workspace_size, stw_stream stream);

/* As stw_explain_attn: for every backend, chosen or why not. */
STW_API stw_status stw_explain_jagged(const stw_context_opts *opts, const stw_jagged_desc *desc, char *text,
                                      size_t capacity, size_t *needed_out);

#ifdef __cplusplus
}
#endif
#endif
