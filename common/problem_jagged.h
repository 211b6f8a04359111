/* SPDX-License-Identifier: MIT
 *
 * PROBLEM lines of jagged operations (problem.h has those of attention):
 *     jagged_softmax:bf16:c8l400t1000i64:inner:used:i64
 *     jagged_matmul:f16:c8m64k128n96:tk1000
 *     jagged_attention:i64:attn_bwd:bf16:b4h8s512d64:thd
 * op, dtype, sizes, then options in any order; tests/problem/README.md lists them. Formatting is part of the
 * library, for the log; parsing and the options of a call serve the command and the tests. */
#ifndef STW_COMMON_PROBLEM_JAGGED_H
#define STW_COMMON_PROBLEM_JAGGED_H

#include "common/jagged_ops.h"
#include "problem.h"

typedef enum stw_jagged_lens { /* how long components are */
                               STW_LENS_RAGGED =
                                   0, /* any length from 0 to the maximum, space before and behind */
                               STW_LENS_FULL = 1,  /* total shared evenly, none before or behind  */
                               STW_LENS_ZEROS = 2, /* most are empty */
                               STW_LENS_HUGE = 3   /* one as long as possible, the others 0, 1 or 2   */
} stw_jagged_lens;

typedef enum stw_jagged_data {
    STW_JDATA_NORMAL = 0,
    STW_JDATA_SD3 = 1,
    STW_JDATA_TINY = 2 /* of the size of the type's subnormal numbers */
} stw_jagged_data;

typedef struct stw_jagged_problem {
    stw_jagged_desc desc; /* attn null: the caller points it at attn.desc */
    stw_problem attn;     /* ATTENTION */
    int64_t lens, data;   /* stw_jagged_lens, stw_jagged_data */
    int64_t seed, skew;   /* of the data; elements by which tensors are off 256-byte boundaries */
} stw_jagged_problem;

/* 1 when the line begins as one of these does. */
int stw_problem_is_jagged(const char *text);

/* The line of a descriptor, and for ATTENTION of its packed problem (else NULL); as stw_problem_format. */
size_t stw_problem_jagged_format(const stw_jagged_desc *desc, const stw_attn_desc *attn, char *text,
                                 size_t capacity);

/* As stw_problem_parse. The descriptor's struct_size is set. */
stw_status stw_problem_jagged_parse(const char *text, stw_jagged_problem *problem_out);

/* ---- shared by the two ---- */
typedef struct stw_jagged_word { /* an option that is one word: *(type at offset) |= or = value */
    const char *name;
    size_t offset; /* in stw_jagged_problem */
    uint32_t value;
    int kind; /* 0: an enum (int); 1: bits of a uint32_t; 2: an int64_t that formatting leaves out */
} stw_jagged_word;

typedef struct stw_jagged_number {
    const char *name;
    size_t offset;
    uint32_t flag, ragged; /* bits of desc.flags and desc.ragged_axes that come with it */
    int call;              /* of the call: formatting leaves it out */
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
