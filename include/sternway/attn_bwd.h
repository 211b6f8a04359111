/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: attention. One descriptor (attn_desc.h; the shape class: chooses kernel and workspace at plan
 * time), one argument block (the pointers of one call), backward, forward with LSE, dropout mask.
 *
 * NOTATION. Q[B,Hq,Sq,D], K[B,Hk,Sk,D], V[B,Hk,Sk,Dv], O and dO[B,Hq,Sq,Dv], LSE[B,Hq,Sq]; query head
 * h reads key/value head h / (Hq/Hk). For query row i and key j of one (batch, head):
 *
 *     S    = softcap(scale * Q K^T) + bias + alibi    softcap(x) = c*tanh(x/c), off when c = 0;
 *                                                     the bias is NOT multiplied by scale; one of bytes
 *                                                     (STW_U8) adds nothing: 0 makes S = -inf
 *     P    = exp(S - LSE)                             LSE: f32, natural log, of the final S and the sink,
 *                                                     before dropout
 *     D_i  = rowsum(dO_i * O_i) - dLSE_i              "delta", D below (in shapes D is a head dim); dLSE optional
 *     dV   = (P.Z)^T dO                               Z: dropout factor, 0 or 1/(1-p)
 *     dP   = (dO V^T).Z
 *     dS   = P.(dP - D)
 *     dBias= dS                                       summed over every broadcast dimension of the bias
 *     dQ   = scale * dS' K,  dK = scale * dS'^T Q     dS' = dS*(1 - tanh^2) under softcap, else dS
 *     dSink_h = - sum_{b,i} exp(sink_h - LSE_i) * D_i
 *
 * (FlashAttention-2, arXiv 2307.08691, algorithm 2; dLSE, sink and softcap by the chain rule.) All sums
 * are f32; P and dS are rounded to the input type only as matrix operands; GQA sums dK and dV over the
 * group in f32 and rounds once. In a problem of dtype STW_F64 everything called f32 here is f64.
 *
 * POSITIONS. i and j below are positions in the whole problem: the local row in its sequence plus the
 * caller's q/k offset. Lq, Lk are the used lengths of the sequence. shift = diagonal_shift with
 * STW_ATTN_HAS_SHIFT; otherwise 0 under STW_MASK_CAUSAL_TOP_LEFT and Lk - Lq in all other cases.
 *
 * NEVER LEFT OPEN. A masked pair, S = -inf, and a row whose LSE is -inf or +inf select P = dS = 0: such a
 * row adds nothing to dQ, dK, dV, dBias. A row that no key can see has D_i = -dLSE_i, and its dSink term
 * stays. Keys that no query sees, empty sequences and empty batches give gradients of zero. Rows past the
 * used length up to the sequence's end are written as zeros in the gradients and in delta; the forward writes
 * zeros to their O and -inf to their LSE (rows that see no key: O zero, LSE the sink or -inf). Other gaps of
 * a packed layout are not touched. What lies in rows outside the problem (NaN included) never reaches a
 * result: rows past the used lengths, keys that masks and lengths hide from every query, O and dO of rows
 * that they leave without a key. A bias of -inf or of bytes, intervals and a block mask hide no row in this
 * sense: an infinity or NaN in a row that somebody could see may reach other rows of the same tile (0 * inf). */
#ifndef STERNWAY_ATTN_BWD_H
#define STERNWAY_ATTN_BWD_H

#include "attn_desc.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/** The pointers of one call. Inputs are read only, outputs written only (accumulated ones read too), and
 * no output may overlap another tensor of the call (equal starts are refused, other overlaps are not seen).
 * All tensors live where the context's memory kind says; nothing is kept after the call's work is done.
 *
 * NULL. A tensor that holds no element in this call may be null. A packed side whose tensors (those with a head
 * dimension) are all null has no rows in this call, whatever total_* of its class; one null among given ones is
 * refused. cu_seqlens_* are read all the same, and values above 0 are out of range. */
typedef struct stw_attn_args {
    size_t struct_size; /**< sizeof(stw_attn_args) */
    const void *q;     /**< [B,Hq,Sq,D] ([T,Hq,D] packed) of desc.dtype, strides desc.q                */
    const void *k;     /**< [B,Hk,Sk,D], else as q                                                     */
    const void *v;     /**< [B,Hk,Sk,Dv], else as q                                                    */
    void *out;         /**< [B,Hq,Sq,Dv]. Backward: input (null allowed with GIVEN_DELTA); forward: output */
    const void *dout;  /**< [B,Hq,Sq,Dv], backward only                                                */
    float *lse;        /**< [B,Hq,Sq], natural logarithm. Backward: input; forward: output, or null. f64
                        * problems: double */
    const float *dlse; /**< as lse, with DLSE: the gradient that flows into LSE. f64 problems: double  */
    float *delta;      /**< as lse, with GIVEN_DELTA (input) or WRITE_DELTA (output). f64 problems: double */
    const void *bias;  /**< with bias_dtype: [B,Hq,Sq,Sk], strides desc.bias                           */
    const float *alibi_slopes; /**< with ALIBI: [Hq] or [B,Hq]. f64 problems: double                   */
    const float *sink; /**< with SINK: [Hq]; -inf switches a head's sink off. f64 problems: double     */
    /** Packed sides: B+1 non-decreasing starts in rows, the last <= total_*; sequence b is rows
     * [cu[b], cu[b+1]). Values out of range are never followed outside the buffers: see status_out. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_kv; /**< as cu_seqlens_q                                                 */
    const int32_t *used_q;        /**< with HAS_USED_LENGTHS: [B], null = full. Out of range: status_out */
    const int32_t *used_kv;       /**< as used_q                                                       */
    /** Offsets of the local rows in the whole problem: one value a call (q_offset), or [B] by pointer (then
     * the value is ignored). |.| <= 2^40. */
    const int64_t *q_offsets;
    const int64_t *k_offsets; /**< as q_offsets                   */
    int64_t q_offset;         /**< where q_offsets is null        */
    int64_t k_offset;         /**< where k_offsets is null        */
    /** Dropout seed and offset: by value, or read from memory by the kernels (then graph replays see new
     * values); a non-null pointer wins. */
    const uint64_t *dropout_seed_ptr;
    const uint64_t *dropout_offset_ptr; /**< as dropout_seed_ptr                              */
    uint64_t dropout_seed;              /**< where dropout_seed_ptr is null                   */
    uint64_t dropout_offset;            /**< where dropout_offset_ptr is null                 */
    void *dq;            /**< as q, of desc.dq_dtype, strides desc.dq. Gradients that desc.outputs does not
                          * ask for may be null */
    void *dk;            /**< as k; see dq                                            */
    void *dv;            /**< as v; see dq                                            */
    void *dbias;         /**< the bias's own shape, strides desc.dbias; see dq        */
    float *dsink;        /**< [Hq], f32. f64 problems: double                         */
    int32_t *status_out; /**< optional, written: 0, or the STW_DATA_* bits of what was wrong in this call's arrays */
    /** CPU backend: at most so many threads work on this call, the caller's included; 1 runs it on the caller's
     * alone. 0: as many as the context has, and never more than those. 0..1024. The results do not depend
     * on it. GPU backends check and ignore it. */
    int32_t cpu_threads;
    const int32_t *intervals;  /**< with interval_form: [B, 1 or Hk, Sk, bounds], strides desc.intervals. A bound
                                * lies in 0..the sequence's rows, with a q offset at 0 or above: see status_out */
    const uint8_t *block_mask; /**< with BLOCK_MASK: [B, 1 or Hq, blocks of rows, blocks of keys] */
} stw_attn_args;

/** @name Bits of *status_out
 * GPU backends clamp such values and go on (nothing is read back); the CPU backend refuses the call with
 * STW_E_INVALID and a text that names the entry.
 * @{ */
#define STW_DATA_CU_SEQLENS_Q  0x01 /**< negative, decreasing, above total_q, or a length above max_seq_q   */
#define STW_DATA_CU_SEQLENS_KV 0x02 /**< the same of the keys                                               */
#define STW_DATA_USED_Q        0x04 /**< negative or above the sequence's length                            */
#define STW_DATA_USED_KV       0x08 /**< the same of the keys                                               */
#define STW_DATA_OFFSETS       0x10 /**< beyond +-2^40                                                      */
#define STW_DATA_INTERVALS     0x20 /**< a bound below 0 or, without a q offset, above the sequence's rows  */
/** @} */

/** Checks the descriptor and chooses kernels. Planning is the support query: what a plan accepts, the run
 * calls do. A plan runs from many threads at once, each call with its own workspace.
 * @param context   where it will run
 * @param desc      the problem class; read, not kept
 * @param plan_out  the new plan, for stw_plan_destroy()
 * @return STW_OK; STW_E_INVALID names the field; STW_E_UNSUPPORTED the limit; STW_E_NO_MEMORY; on GPUs, where the
 * first plan loads the image, STW_E_NO_IMAGE: the driver does not take it. */
STW_API stw_status stw_attn_bwd_plan(stw_context *context, const stw_attn_desc *desc, stw_plan **plan_out);
/** The same for the forward. The forward plan ignores what only the backward uses.
 * @param context,desc,plan_out as for stw_attn_bwd_plan()
 * @return as stw_attn_bwd_plan() */
STW_API stw_status stw_attn_fwd_plan(stw_context *context, const stw_attn_desc *desc, stw_plan **plan_out);
/** Gives a plan back.
 * @param plan  NULL is fine; never while a call with it is being issued */
STW_API void stw_plan_destroy(stw_plan *plan);

/** What to allocate.
 * @param plan  a plan of any operation, or NULL
 * @return bytes of workspace that a call needs at any address; 0 = none, and of NULL. Device memory on GPU
 * backends, the caller's. */
STW_API size_t stw_plan_workspace_size(const stw_plan *plan);

/** Variant, tile, arch, workspace and why, as lines of text. `costs more` names what keeps this problem from
 * the fastest kernels of its arch, or which pointers would keep a call from them; else it is "nothing".
 * @param plan        a plan of any operation
 * @param text        gets the lines; one that does not fit is cut. May be null with capacity 0
 * @param capacity    bytes of `text`
 * @param needed_out  optional: gets the size with the final zero
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_plan_describe(const stw_plan *plan, char *text, size_t capacity, size_t *needed_out);

/** Runs the backward. GPU: asynchronous in `stream`, no allocation, no synchronisation, capturable in a
 * graph. CPU: complete on return, threads shared with the context's other calls.
 * @param plan            of stw_attn_bwd_plan()
 * @param args            the call's pointers; read, not kept
 * @param workspace       at any address, any content; the caller's, free again when the stream has passed the
 *                        call
 * @param workspace_size  at least the plan's size; from a multiple of 256 on, 255 bytes less suffice
 * @param stream          a CUstream or hipStream_t, NULL: the default one; ignored on the CPU
 * @return STW_OK, STW_E_INVALID (a pointer is missing or misaligned, a plan of the other kind),
 * STW_E_WORKSPACE, STW_E_DRIVER, STW_E_DEVICE_LOST, STW_E_FORKED. */
STW_API stw_status stw_attn_bwd(const stw_plan *plan, const stw_attn_args *args, void *workspace,
                                size_t workspace_size, stw_stream stream);
/** Runs the forward.
 * @param plan            of stw_attn_fwd_plan()
 * @param args,workspace,workspace_size,stream as for stw_attn_bwd()
 * @return as stw_attn_bwd() */
STW_API stw_status stw_attn_fwd(const stw_plan *plan, const stw_attn_args *args, void *workspace,
                                size_t workspace_size, stw_stream stream);

/** Writes the dropout mask that the plan's calls use with these args. Attention masks do not enter. No
 * workspace.
 * @param plan    either kind
 * @param args    lengths, offsets and seed are read
 * @param mask    contiguous uint8 [B, Hq, max_seq_q, max_seq_kv] where the context's tensors are, 1 = kept, 0 =
 *                dropped or outside the used lengths; all of it is written
 * @param stream  as for stw_attn_bwd()
 * @return as stw_attn_bwd() */
STW_API stw_status stw_dropout_mask(const stw_plan *plan, const stw_attn_args *args, uint8_t *mask,
                                    stw_stream stream);

/** For every backend: chosen, or why not, and for the chosen one the plan's description.
 * @param opts        as for stw_context_create()
 * @param desc        the problem class
 * @param text,capacity,needed_out as for stw_plan_describe()
 * @return STW_OK whenever the text could be written; a refusal of the problem is part of the text. */
STW_API stw_status stw_explain_attn(const stw_context_opts *opts, const stw_attn_desc *desc, char *text,
                                    size_t capacity, size_t *needed_out);
/** As stw_explain_attn(), of the forward: what stw_attn_fwd_plan() would say and choose.
 * @param opts,desc,text,capacity,needed_out as for stw_explain_attn(); the text is the caller's
 * @return as stw_explain_attn() */
STW_API stw_status stw_explain_attn_fwd(const stw_context_opts *opts, const stw_attn_desc *desc, char *text,
                                        size_t capacity, size_t *needed_out);

#ifdef __cplusplus
}
#endif
#endif
