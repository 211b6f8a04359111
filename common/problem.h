/* SPDX-License-Identifier: MIT
 *
 * PROBLEM strings: one line that names a problem, printed by the log and read by the command, so that a
 * user's log line can be replayed:
 *     attn_bwd:bf16:b4h32k8s4096d128:causal_br:dropout0.1
 * op, dtype, sizes b<B>h<Hq>[k<Hk>]s<Sq>[x<Sk>]d<D>[x<Dv>], then options in any order, each once
 * (tests/problem/README.md lists them). The library formats, for the log; tools/problem parses
 * them, with the options that only a call has. */
#ifndef STW_COMMON_PROBLEM_H
#define STW_COMMON_PROBLEM_H

#include "common/status.h"
#include "sternway/sternway.h"

typedef enum stw_problem_op { STW_PROBLEM_ATTN_BWD = 1, STW_PROBLEM_ATTN_FWD = 2 } stw_problem_op;

/* Writes the line of a descriptor; returns its length without the final zero (a longer text is cut).
 * Strides that no layout token describes are written out: st_q<batch>,<head>,<seq>[,<head_dim>]. Only
 * strides that the call uses, over extents above 1, are told; values that say what their absence says are
 * left out (outputs dQ|dK|dV, gradients of the input's type, scale 1/sqrt(D)); all else round trips. */
size_t stw_problem_format(const stw_attn_desc *desc, stw_problem_op op, char *text, size_t capacity);

/* What a few tokens say about all strides of a descriptor. */
typedef enum stw_problem_order {
    STW_ORDER_BSHD = 0, /* [B,S,H,D], packed [T,H,D]                        */
    STW_ORDER_BHSD = 1, /* [B,H,S,D], packed [H,T,D]                        */
    STW_ORDER_QKV = 2   /* q, k, v (and dq, dk, dv) interleaved in one buffer: [B,S,Hq+2Hk,D] */
} stw_problem_order;

typedef enum stw_problem_lse {
    STW_LSE_ROWS = 0,  /* [B,H,S], packed [H,T]                 */
    STW_LSE_HEADS = 1, /* heads innermost: [B,S,H], packed [T,H] */
    STW_LSE_LOCAL = 2  /* [B,H,max_seq_q] although q is packed   */
} stw_problem_lse;

#define STW_BROADCAST_B 1u
#define STW_BROADCAST_H 2u
#define STW_BROADCAST_Q 4u
#define STW_BROADCAST_K 8u

typedef struct stw_problem_layout {
    stw_problem_order order;
    int64_t gap; /* unused elements after every row of head_dim, every sequence row, every bias row */
    stw_problem_lse lse;
    unsigned broadcast; /* STW_BROADCAST_*: dimensions of extent 1 of the bias */
    int mask_heads;     /* intervals and block mask: one for each head, not one for all */
} stw_problem_layout;

#endif
