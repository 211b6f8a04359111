/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: attention without a plan of the caller's. For packed batches, whose totals and longest sequences
 * differ from step to step: the context keeps plans, and a call finds its own.
 *
 * CLASSES. Calls that differ in nothing but pointers, args and the sizes below share a plan. Of a packed side
 * total_*, max_seq_*, where both sides are packed the batch, and the strides that follow from them ([H,T] and
 * [B,H,max_seq_q] of lse, dlse and delta, heads of T rows each in the others) may differ as long as their
 * four leading bits, rounded up, are the same: 8 classes between a power of two and the next. A class with a
 * rule of the tuning tables inside it is cut there. All other strides count as they are. The kernels get the
 * call's own sizes, so the bits of the results, what is checked and what is clamped are those of a plan for
 * this very descriptor; only the workspace is that of the class, at most a fifth larger where total and batch
 * are at their worst.
 *
 * THE KEPT PLANS. A context keeps 64, forward and backward together, and replaces the one used longest ago.
 * They are freed with the context. Any number of threads call at once. A call whose class has been met takes
 * no lock and allocates nothing; one that meets a new class plans it first, which may load kernels: do that
 * before a graph capture, by stw_attn_bwd_once_workspace() for one. A captured graph does not
 * need the plan. */
#ifndef STERNWAY_ATTN_ONCE_H
#define STERNWAY_ATTN_ONCE_H

#include "attn_bwd.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of workspace that stw_attn_bwd_once() needs for the class of this descriptor; plans it where it is
 * new.
 * @param context   where it will run
 * @param desc      the problem; read, not kept
 * @param size_out  gets the bytes; 0 = none. Device memory on GPU backends
 * @return as stw_attn_bwd_plan() */
STW_API stw_status stw_attn_bwd_once_workspace(stw_context *context, const stw_attn_desc *desc,
                                               size_t *size_out);

/** Runs the backward of this descriptor: stw_attn_bwd_plan() and stw_attn_bwd() in one.
 * @param context         where to run
 * @param desc            the problem; read, not kept
 * @param args,workspace,stream as for stw_attn_bwd()
 * @param workspace_size  at least stw_attn_bwd_once_workspace()'s
 * @return as stw_attn_bwd_plan() and stw_attn_bwd() */
STW_API stw_status stw_attn_bwd_once(stw_context *context, const stw_attn_desc *desc,
                                     const stw_attn_args *args, void *workspace, size_t workspace_size,
                                     stw_stream stream);

/** The same for the forward.
 * @param context,desc,size_out as for stw_attn_bwd_once_workspace()
 * @return as stw_attn_fwd_plan() */
STW_API stw_status stw_attn_fwd_once_workspace(stw_context *context, const stw_attn_desc *desc,
                                               size_t *size_out);

/** Runs the forward of this descriptor: stw_attn_fwd_plan() and stw_attn_fwd() in one.
 * @param context,desc,args,workspace,workspace_size,stream as for stw_attn_bwd_once()
 * @return as stw_attn_fwd_plan() and stw_attn_fwd() */
STW_API stw_status stw_attn_fwd_once(stw_context *context, const stw_attn_desc *desc,
                                     const stw_attn_args *args, void *workspace, size_t workspace_size,
                                     stw_stream stream);

#ifdef __cplusplus
}
#endif
#endif
