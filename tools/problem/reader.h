/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: a PROBLEM line being read token by token, and the
 * readers of single values. Every refusal tells position, token and what is accepted. */
#ifndef STW_TOOLS_PROBLEM_READER_H
#define STW_TOOLS_PROBLEM_READER_H

#include "common/problem_layout.h"
#include "problem.h"

#define STW_PROBLEM_SIZE_MAX INT64_C(2147483647)
#define STW_PROBLEM_WIDE_MAX INT64_C(4611686018427387904)

typedef struct stw_reader {
    const char *text;  /* the whole line                  */
    const char *token; /* the one being read              */
    size_t length;     /* of the token                    */
    stw_problem *out;
    stw_problem_layout layout;
    uint64_t seen;                          /* groups of options given        */
    uint32_t explicit_strides, dim_strides; /* bits of stw_problem_tensors: given; with head_dim's */
    int64_t strides[15][4];
} stw_reader;

/* STW_E_INVALID: "problem: at 27: 'dropuot0.1' " and what is wrong. */
stw_status stw_reader_refuse(const stw_reader *r, const char *what);

int stw_reader_is(const stw_reader *r, const char *name);
const char *stw_reader_end(const stw_reader *r); /* of the token */

/* What follows `prefix` in the token, or NULL; the second: only when that begins as an integer does. */
const char *stw_reader_after(const stw_reader *r, const char *prefix);
int stw_reader_is_number_after(const stw_reader *r, const char *prefix);

/* Marks the options of a group as given; refuses with `what` when they were. */
stw_status stw_reader_claim(stw_reader *r, unsigned group, const char *what);

/* Reads an integer from *at on; 0 when there is none or it is beyond +-2^62. */
int stw_reader_integer(const char **at, const char *end, int64_t *value_out);
/* A decimal number with a point, whatever the process's locale; 0 unless finite. */
int stw_reader_decimal(const char *at, const char *end, double *value_out, float *float_out);

/* The number behind `name`, within bounds; the integers of a list 0,5,17 from `at` on. */
stw_status stw_reader_bounded(stw_reader *r, const char *name, int64_t low, int64_t high, int64_t *value_out);
stw_status stw_reader_values(stw_reader *r, const char *at, int64_t *values, int most, int *count_out);

/* The second and third token, into out->desc. */
stw_status stw_reader_dtype(stw_reader *r);
stw_status stw_reader_sizes(stw_reader *r);

#endif
