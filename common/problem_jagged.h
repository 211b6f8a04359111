/* SPDX-License-Identifier: MIT
 *
 * PROBLEM lines of jagged operations (problem.h has those of attention):
 *     jagged_softmax:bf16:c8l400t1000i64:inner:used:i64
 *     jagged_matmul:f16:c8m64k128n96:tk1000
 *     jagged_attention:i64:attn_bwd:bf16:b4h8s512d64:thd
 * op, dtype, sizes, then options in any order; tests/problem/README.md lists them. The library
 * formats, for the log; tools/problem parses them, with the options of a call. */
#ifndef STW_COMMON_PROBLEM_JAGGED_H
#define STW_COMMON_PROBLEM_JAGGED_H

#include "common/jagged_ops.h"
#include "problem.h"

/* The line of a descriptor, and for ATTENTION of its packed problem (else NULL); as stw_problem_format. */
size_t stw_problem_jagged_format(const stw_jagged_desc *desc, const stw_attn_desc *attn, char *text, size_t capacity);

/* ---- the tables, which the parser reads as well ---- */
typedef struct stw_jagged_word { /* an option that is one word: *(type at offset) |= or = value */
    const char *name;
    size_t offset; /* in stw_jagged_desc */
    uint32_t value;
    int kind; /* 0: an enum (int); 1: bits of a uint32_t */
} stw_jagged_word;

typedef struct stw_jagged_number {
    const char *name;
    size_t offset;
    uint32_t flag, ragged; /* bits of flags and ragged_axes that come with it */
} stw_jagged_number;

extern const char *const stw_jagged_op_names[STW_JAGGED_OPS];
extern const stw_jagged_word stw_jagged_words[];
extern const size_t stw_jagged_word_count;
extern const stw_jagged_number stw_jagged_sizes[]; /* names of one letter */
extern const size_t stw_jagged_size_count;
extern const stw_jagged_number stw_jagged_numbers[];
extern const size_t stw_jagged_number_count;

/* 1 when a size of that letter belongs to the op: m, k, n are matmul's, l, t, i, f, p not. */
int stw_jagged_size_fits(char letter, stw_jagged_op op);

#endif
