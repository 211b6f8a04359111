/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: attention without a plan of the caller's, for bindings and for packed batches, whose totals and
 * longest sequences differ from step to step: the context keeps plans, and a call finds its own.
 *
 * CLASSES. Calls that differ in nothing but args and the sizes below share a plan. Of a packed side total_*
 * and max_seq_* may differ, where both sides are packed the batch too, as long as they are the same number
 * when rounded up to four leading bits: up to 16 each size is alone, beyond there are 8 classes between a
 * power of two and the next. The strides that follow from these sizes may differ with them: heads of
 * total_* rows each, all strides of lse, dlse and delta but `seq`, all of a bias but which are 0. Rules of
 * the tuning tables that ask for a size cut classes. Every other stride counts as it is, and where an input is
 * copied first (stw_attn_dim_strides) every size.
 *
 * The kernels get the call's own sizes: a call checks, clamps and computes what it would with a plan for its
 * very descriptor, bit by bit in deterministic mode. The workspace is that of the class, each of whose sizes
 * is less than an eighth above the call's, and so stays the same from step to step.
 *
 * THE KEPT PLANS. A context keeps 64, of backward and forward together, and gives up the one used longest
 * ago for a new one; they end with the context. Any number of threads call at once. A call whose class has
 * been met takes no lock and allocates nothing. One that meets a new class plans it first, which may load
 * kernels: ask for the workspace before a graph capture. A captured graph needs the context, but no plan. */
#ifndef STERNWAY_ATTN_ONCE_H
#define STERNWAY_ATTN_ONCE_H

#include "attn_bwd.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
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
