/* SPDX-License-Identifier: MIT
 *
 * PROBLEM lines of jagged operations (common/problem_jagged.h) as the command and the tests read them. */
#ifndef STW_TOOLS_PROBLEM_JAGGED_H
#define STW_TOOLS_PROBLEM_JAGGED_H

#include "common/problem_jagged.h"
#include "problem.h"

typedef enum stw_jagged_lens {                      /* how long components are */
                               STW_LENS_RAGGED = 0, /* any length from 0 to the maximum, space before and behind */
                               STW_LENS_FULL = 1,   /* total shared evenly, none before or behind  */
                               STW_LENS_ZEROS = 2,  /* most are empty */
                               STW_LENS_HUGE = 3    /* one as long as possible, the others 0, 1 or 2   */
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

/* As stw_problem_parse. The descriptor's struct_size is set. */
stw_status stw_problem_jagged_parse(const char *text, stw_jagged_problem *problem_out);

#endif
