/* SPDX-License-Identifier: MIT
 *
 * PROBLEM lines (common/problem.h) as the command and the tests read them: a descriptor, and the options that
 * only a call has. */
#ifndef STW_TOOLS_PROBLEM_H
#define STW_TOOLS_PROBLEM_H

#include "common/problem.h"

/* Fills every stride of a descriptor whose sizes are set. Errors: STW_E_INVALID (overflow). */
stw_status stw_problem_set_strides(stw_attn_desc *desc, const stw_problem_layout *layout);

/* ---- options of a call ------------------------------------------------------------------------- */

/* STW_PROBLEM_DATA(ID, token): what the tensors hold. */
#define STW_PROBLEM_DATA_LIST(X)                                                                                       \
    X(NORMAL, "normal")               /* N(0,1)                                                              */        \
    X(SD3, "sd3")                     /* standard deviation 3                                                */        \
    X(ONEHOT, "onehot")               /* V rows are unit vectors                                             */        \
    X(POSITIVE, "positive")           /* dO of one sign: sums that grow                                      */        \
    X(LOW_KEYS, "low_keys")           /* bias of -65504 on some keys of a row                                */        \
    X(INF_KEYS, "inf_keys")           /* bias of -inf on some keys, and on whole rows                        */        \
    X(DENORMAL, "denormal")           /* V and part of K subnormal                                           */        \
    X(HUGE, "huge")                   /* every element 1000: beyond the accuracy rule                        */        \
    X(ROW_65504, "row_65504")         /* bias of -65504 on whole rows: beyond the accuracy rule              */        \
    X(ROW_1E9, "row_1e9")             /* f32 bias of -1e9 on whole rows: beyond the accuracy rule            */        \
    X(ZERO_LSE, "zero_lse")           /* rows whose LSE is exactly 0 (one key, q = 0)                        */        \
    X(INF_LSE, "inf_lse")             /* LSE of +inf and -inf given for rows that see keys                   */        \
    X(DENORMAL_Q, "denormal_q")       /* Q subnormal in a sequence's first 64 rows                    */               \
    X(DENORMAL_DOUT, "denormal_dout") /* dO subnormal                                                */                \
    X(SMALL, "small")         /* dO so small that dS is subnormal (f32: just not), and no element of a tensor */       \
    X(DEAD_ROWS, "dead_rows") /* as inf_lse; Q of these rows overflows S, their O, dLSE and delta are NaN */           \
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

/* STW_PROBLEM_DRAW(ID, token): which masks intervals and block mask hold (tools/verify/masks.c). Those that a form
 * cannot say are cut to what it can. */
#define STW_PROBLEM_DRAW_LIST(X)                                                                                       \
    X(RANDOM, "random")       /* any interval, empty ones, all rows and none included                 */               \
    X(DOCUMENTS, "documents") /* keys of a document are seen by its rows                               */              \
    X(PREFIX, "prefix")       /* a prefix is seen by all rows, the keys behind it by rows from their own on */         \
    X(CHUNK, "chunk")         /* documents of one length                                               */              \
    X(TREE, "tree")           /* a node is seen by its subtree: a prefix with branches                 */              \
    X(SLIDING, "sliding")     /* the first keys are seen by all rows, the others by the rows of a window */            \
    X(PADDING, "padding")     /* keys at either end are seen by nobody                                 */              \
    X(CAUSAL, "causal")       /* keys are seen by rows from their own on                                */             \
    X(DEAD, "dead")           /* a third of the rows see nothing                                       */              \
    X(OPEN, "open")           /* nothing is hidden                                                     */              \
    X(HIDDEN, "hidden")       /* everything is                                                         */

typedef enum stw_problem_draw {
#define STW_DRAW_ID(id, token) STW_DRAW_##id,
    STW_PROBLEM_DRAW_LIST(STW_DRAW_ID)
#undef STW_DRAW_ID
} stw_problem_draw;

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
    stw_problem_draw draw;
    int32_t by_pointer;  /* dropout seed and offset, q and k offsets go through memory */
    int64_t seed;        /* of the data                                                */
    int64_t draw_length; /* of documents, chunks, prefix, window; 0: by the sequence's    */
    int64_t skew;        /* elements by which every tensor is off its 256-byte boundary */
    int64_t q_offset, k_offset;
    int64_t dropout_seed, dropout_offset;
    stw_problem_list cu_q, cu_kv, used_q, used_kv, q_offsets, k_offsets; /* explicit values */
} stw_problem;

/* Parses a line. Errors: STW_E_INVALID with the position (from 1), the token seen and what is accepted.
 * Says nothing about whether a plan accepts the problem. */
stw_status stw_problem_parse(const char *text, stw_problem *problem_out);

/* " bshd bhsd ...": every option. */
void stw_problem_options(stw_text *text);

/* The line of a parsed problem, options of the call included; returns as stw_problem_format. */
size_t stw_problem_print(const stw_problem *problem, char *text, size_t capacity);

#endif
