/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: backward of nested (jagged) tensor operations. One descriptor with an op (jagged_desc.h; the
 * shape class of a problem), one argument block (the pointers of one call), plan and run as for attention.
 *
 * A NESTED TENSOR is a values buffer, offsets[components + 1] and optionally used[components]. Component b is
 * [outer, ragged, inner], row-major: outer and inner are constants (1 when absent; products of the dimensions
 * before and after the ragged one), ragged is L_b = offsets[b+1] - offsets[b]. Of its L_b positions the
 * first U_b = used[b] take part (without used lengths: all). Values are contiguous, in one of two storage
 * orders, which say where element (b, o, r, i) is:
 *     STW_STORAGE_COMPONENTS  components one after the other (PyTorch's strided layout): at
 *                             offsets[b]*outer*inner + (o*L_b + r)*inner + i
 *     STW_STORAGE_JAGGED      values [outer, total, inner] (PyTorch's jagged layout, ragged_idx > 1): at
 *                             (o*total + offsets[b] + r)*inner + i
 * Both are the same when outer is 1. All nested tensors of a call have the offsets of the call.
 *
 * OPS, G the gradient of the op's result, sums in f32 (f64 and integers: in the type itself), rounded once:
 *     MATMUL      C_b[m,n] = A_b[m,k] B_b[k,n], `outer` of them a component: dA = G B^T, dB = A^T G
 *     LINEAR      Y = X W^T + bias, X [outer, ragged, K], W [N,K], G [outer, ragged, N]:
 *                 dX = G W, dW = G^T X, dbias = column sums of G; over all rows that take part
 *     SOFTMAX     dX = Y*(G - sum(G*Y)), the sum along `dim`
 *     LOG_SOFTMAX dX = G - exp(Y)*sum(G), the sum along `dim`; Y is the logarithm of a softmax
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
 *                 no lines at all give dGamma = dBeta = 0. Along RAGGED a line is [U_b, inner] of an outer index
 *     RMS_NORM    as LAYER_NORM without a mean and without beta, h = x*rstd, rstd = (avg(x^2) + eps)^-1/2:
 *                 dX = rstd*(g - h*avg(g*h)), dGamma = sum G*h
 *     RESHAPE     G of component shape grad_shape to dX of component shape `shape`: element k of the one (in
 *                 row-major order of what is used) is element k of the other
 *     TO_PADDED   backward of nested -> padded: G dense [components, outer, padded, inner], dX nested;
 *                 positions from `padded` on had no place in the result and get 0
 *     FROM_PADDED backward of padded -> nested: G nested, dX dense [components, outer, padded, inner],
 *                 zeros in the padding; positions from `padded` on are not read
 *     ATTENTION   of nested q, k, v: attn_bwd.h's packed problem with these offsets
 * All are deterministic: the same bits run after run, for any number of threads. One exception: dX and dW of
 * LINEAR by AMD's hipBLASLt (STW_JAGGED_FULL), unless STERNWAY_DETERMINISTIC is 1 or warn; the plan's text says so.
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
#include "jagged_desc.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/** One ragged axis of a call; both arrays are of desc.index_dtype, where the context's memory kind says.
 * Without components none of them is read. */
typedef struct stw_jagged_offsets {
    const void *offsets;      /**< [components + 1], non-decreasing, from 0 to axis.total at most         */
    const void *used;         /**< [components], 0..L_b, with HAS_USED; null = full                       */
    const void *offsets_host; /**< optional: the same values in host memory, checked before anything runs */
    const void *used_host;    /**< optional, with `used`                                                  */
} stw_jagged_offsets;

/** The pointers of one call. Inputs are read only, outputs written only (accumulated ones read too); an
 * output may not overlap another tensor (equal starts are refused). Element alignment always works, 16 bytes
 * are faster. Everything is the caller's; nothing is kept.
 *
 * NULL. A tensor that holds no element may be null; sizes and axis.total of the plan say which do, but for
 * ATTENTION, which has the rule of stw_attn_args. */
typedef struct stw_jagged_args {
    size_t struct_size;         /**< sizeof(stw_jagged_args)                           */
    stw_jagged_offsets axis[3]; /**< by STW_AXIS_*; axes that are not ragged: all null */
    /** Gradient of the result: nested [outer, ragged, inner] (LINEAR: N for inner); MATMUL [m,n]; RESHAPE
     * grad_shape; TO_PADDED dense. SUM and SELECT: nested without `dim` (inner or outer / dim_size), along
     * RAGGED dense [components, outer, inner], along COMPONENT dense [outer, U_index, inner] (never null:
     * only the device knows U_index). */
    const void *grad;
    /** LINEAR with DWEIGHT; GELU*, SILU, THRESHOLD; LAYER_NORM and RMS_NORM with DX or DWEIGHT; MATMUL with
     * DOTHER: A. */
    const void *x;
    const void *y;      /**< SOFTMAX, LOG_SOFTMAX: the op's result                                        */
    const void *other;  /**< MATMUL with DX: B                                                            */
    const void *weight; /**< LINEAR with DX: W [N,K]; both norms with HAS_GAMMA and DX: gamma [M]         */
    /** LAYER_NORM: one a line, nested [outer, ragged, inner / M] in x's storage; along RAGGED dense
     * [components, outer]. */
    const float *mean;
    const float *rstd;  /**< LAYER_NORM, RMS_NORM: as mean                                                */
    /** MATMUL with *_BASES: [components], device, int64 always: first element of the component's matrices,
     * which then lie one after the other. dA and dB use x's and other's. Components of a tensor whose
     * gradient is asked for must follow each other without overlap. */
    const int64_t *x_bases;
    const int64_t *other_bases; /**< as x_bases */
    const int64_t *grad_bases;  /**< as x_bases */
    void *dx;      /**< as x (FROM_PADDED: dense)                                        */
    void *dother;  /**< as other                                                         */
    void *dweight; /**< as weight, all of it is written: zeros where there are no rows   */
    void *dbias;   /**< [N] or [M], likewise                                             */
    int32_t *status_out; /**< optional: 0, or the STW_JAGGED_DATA_* bits of what was wrong in device data   */
    /** ATTENTION: its pointers; cu_seqlens_* and used_* null (they come from axis[STW_AXIS_Q] and
     * axis[STW_AXIS_KV]), status_out is attn's, with STW_DATA_* bits. All fields above but `axis` null. */
    const stw_attn_args *attn;
    /** As stw_attn_args.cpu_threads; ATTENTION: this one counts, and that of `attn` is 0. */
    int32_t cpu_threads;
} stw_jagged_args;

/** @name Bits of stw_jagged_args.status_out
 * << the number of the axis for the first two.
 * @{ */
#define STW_JAGGED_DATA_OFFSETS 0x001 /**< decreasing, negative, above total; FULL: not 0..total */
#define STW_JAGGED_DATA_USED    0x010 /**< negative, above L_b; a component longer than axis.size */
#define STW_JAGGED_DATA_INDEX   0x100 /**< SELECT along RAGGED: a component without index; it gets zeros */
#define STW_JAGGED_DATA_BASES   0x200 /**< a component outside its buffer or over another; skipped */
/** @} */

/** Checks the descriptor and chooses kernels; planning is the support query. stw_plan_workspace_size(),
 * stw_plan_describe() and stw_plan_destroy() serve these plans too.
 * @param context   where it will run
 * @param desc      the problem class; read, not kept
 * @param plan_out  the new plan
 * @return STW_OK; STW_E_INVALID names the field; STW_E_UNSUPPORTED the limit (a size, a type that the op or
 * the backend lacks); STW_E_NO_MEMORY; STW_E_NO_IMAGE as for stw_attn_bwd_plan(). */
STW_API stw_status stw_jagged_bwd_plan(stw_context *context, const stw_jagged_desc *desc,
                                       stw_plan **plan_out);

/** Runs it. A plan of attention is STW_E_INVALID here, and this plan there.
 * @param plan  of stw_jagged_bwd_plan()
 * @param args  the call's pointers; read, not kept
 * @param workspace,workspace_size,stream as for stw_attn_bwd()
 * @return as stw_attn_bwd() */
STW_API stw_status stw_jagged_bwd(const stw_plan *plan, const stw_jagged_args *args, void *workspace,
                                  size_t workspace_size, stw_stream stream);

/** As stw_explain_attn(): for every backend, chosen or why not.
 * @param opts,text,capacity,needed_out as for stw_explain_attn()
 * @param desc  the problem class
 * @return STW_OK whenever the text could be written. */
STW_API stw_status stw_explain_jagged(const stw_context_opts *opts, const stw_jagged_desc *desc, char *text,
                                      size_t capacity, size_t *needed_out);

#ifdef __cplusplus
}
#endif
#endif
