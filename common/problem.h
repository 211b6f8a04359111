/* SPDX-License-Identifier: MIT
 *
 * PROBLEM strings: one line that names a problem, printed by the log and read by the command, so that a
 * user's log line can be replayed:
 *     attn_bwd:bf16:b4h32k8s4096d128:causal_br:dropout0.1
 * op, dtype, sizes b<B>h<Hq>[k<Hk>]s<Sq>[x<Sk>]d<D>[x<Dv>], then options in any order, each once
 * (tests/problem/README.md lists them). Formatting (problem.c) is part of the library, for the log;
 * parsing (problem_parse.c) and the options that only a call has serve the command and the tests. */
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
    int64_t gap; /* unused elements behind every row of head_dim, every sequence row, every bias row */
    stw_problem_lse lse;
    unsigned broadcast; /* STW_BROADCAST_*: dimensions of extent 1 of the bias */
} stw_problem_layout;

/* Fills every stride of a descriptor whose sizes are set. Errors: STW_E_INVALID (overflow). */
stw_status stw_problem_set_strides(stw_attn_desc *desc, const stw_problem_layout *layout);

/* ---- options of a call ------------------------------------------------------------------------- */

/* STW_PROBLEM_DATA(ID, token): what the tensors hold. */
#define STW_PROBLEM_DATA_LIST(X)                                                                             \
    X(NORMAL, "normal")         /* N(0,1)                                                              */    \
    X(SD3, "sd3")               /* standard deviation 3                                                */    \
    X(ONEHOT, "onehot")         /* V rows are unit vectors                                             */    \
    X(POSITIVE, "positive")     /* dO of one sign: sums that grow                                      */    \
    X(LOW_KEYS, "low_keys")     /* bias of -65504 on some keys of a row                                */    \
    X(INF_KEYS, "inf_keys")     /* bias of -inf on some keys, and on whole rows                        */    \
    X(DENORMAL, "denormal")     /* V and part of K subnormal                                           */    \
    X(HUGE, "huge")             /* every element 1000: beyond the accuracy rule                        */    \
    X(ROW_65504, "row_65504")   /* bias of -65504 on whole rows: beyond the accuracy rule              */    \
    X(ROW_1E9, "row_1e9")       /* f32 bias of -1e9 on whole rows: beyond the accuracy rule            */    \
    X(ZERO_LSE, "zero_lse")     /* rows whose LSE is exactly 0 (one key, q = 0)                        */    \
    X(INF_LSE, "inf_lse")       /* LSE of +inf and -inf given for rows that see keys                   */    \
    X(DENORMAL_Q, "denormal_q") /* Q subnormal in a sequence's first 64 rows                    */           \
    X(DENORMAL_DOUT, "denormal_dout") /* dO subnormal                                                */      \
    X(SMALL, "small") /* dO so small that dS is subnormal (f32: just not), and no element of a tensor */      \
    X(DEAD_ROWS, "dead_rows") /* as inf_lse; Q of these rows overflows S, their O, dLSE and delta are NaN */ \
    X(NAN_LSE, "nan_lse")     /* LSE of NaN given for row 9 of every 64                                   */

typedef enum stw_problem_data {
#define STW_DATA_ID(id, token) STW_DATA_##id,
    STW_PROBLEM_DATA_LIST(STW_DATA_ID)
#undef STW_DATA_ID
} stw_problem_data;

typedef enum stw_problem_seqs { /* lengths of packed sequences */
                                STW_SEQS_RAGGED =
                                    0, /* any length from 0 to the maximum, space before and behind        */
                                STW_SEQS_FULL = 1, /* every sequence has the maximal length */
                                STW_SEQS_ZEROS = 2 /* most are empty */
} stw_problem_seqs;

typedef enum stw_problem_used {                      /* used lengths, with HAS_USED_LENGTHS */
                                STW_USED_RANDOM = 0, /* any, 0 and full included      */
                                STW_USED_ZERO = 1,   /* all 0                         */
                                STW_USED_Q_ONLY = 2, /* args.used_kv is null          */
                                STW_USED_KV_ONLY = 3 /* args.used_q is null           */
} stw_problem_used;

#define STW_PROBLEM_LIST_MAX 65

typedef struct stw_problem_list {
    int32_t count; /* 0: not given */
    int64_t value[STW_PROBLEM_LIST_MAX];
} stw_problem_list;

typedef struct stw_problem {
    stw_attn_desc desc;
    stw_problem_op op;
    stw_problem_data data;
    stw_problem_seqs seqs;
    stw_problem_used used;
    int32_t by_pointer; /* dropout seed and offset, q and k offsets go through memory */
    int64_t seed;       /* of the data                                                */
    int64_t skew;       /* elements by which every tensor is off its 256-byte boundary */
    int64_t q_offset, k_offset;
    int64_t dropout_seed, dropout_offset;
    stw_problem_list cu_q, cu_kv, used_q, used_kv, q_offsets, k_offsets; /* explicit values */
} stw_problem;

/* Parses a line. Errors: STW_E_INVALID with the position (from 1), the token seen and what is accepted.
 * Says nothing about whether a plan accepts the problem. */
stw_status stw_problem_parse(const char *text, stw_problem *problem_out);

/* The line of a parsed problem, options of the call included; returns as stw_problem_format. */
size_t stw_problem_print(const stw_problem *problem, char *text, size_t capacity);

#endif
