/* SPDX-License-Identifier: MIT
 *
 * One golden problem placed in memory for one call of stw_jagged_bwd, in one of the variants of storage that
 * the header allows: guarded, unaligned, with unused positions full of NaN. Then the answer is judged,
 * element by element, and every byte that is not part of it. */
#ifndef STW_TESTS_JAGGED_PROBLEM_H
#define STW_TESTS_JAGGED_PROBLEM_H

#include "arena.h"
#include "golden.h"

/* How a problem is stored and asked for. All zero: components one behind the other, int64 offsets, everything
 * used, aligned, the gradients in the inputs' type. */
typedef struct variant {
    const char *name;
    int jagged;       /* STW_STORAGE_JAGGED                                                        */
    int gaps;         /* used lengths, a gap in front, between and behind                          */
    int spaced;       /* without used lengths: a gap in front and behind */
    int narrow;       /* int32 offsets                                                             */
    int skew;         /* elements that every tensor lies off a 256-byte boundary                   */
    int f32;          /* gradients in f32                                                          */
    int accumulate;   /* added to what the gradients hold (f32)                                    */
    int mirrors;      /* offsets_host and used_host                                                */
    int full;         /* STW_JAGGED_FULL                                                           */
    int transposed;   /* matmul: 1 x, 2 other, 4 grad are stored the other way round               */
    int bases;        /* matmul: 1 x, 2 other, 4 grad have base offsets even if they need none     */
    uint32_t outputs; /* 0: all that the case has references for                                 */
} variant;

/* The lengths of one ragged axis. Component b holds positions start[b] .. start[b] + size[b] - 1, of which
 * the first used[b] take part. */
typedef struct lengths {
    int count;
    int64_t used[COMPONENTS_MAX], start[COMPONENTS_MAX], size[COMPONENTS_MAX];
    int64_t total, longest;
} lengths;

/* A nested tensor's place: components of [outer, ragged, inner]. */
typedef struct nested {
    const lengths *l;
    int64_t outer, inner;
    int jagged;
} nested;

/* What an accumulated gradient holds before the call. */
float result_start(int64_t element);

int64_t nested_at(const nested *n, int b, int64_t o, int64_t r, int64_t i);

/* A gradient to be judged. `index` says where element n of the golden tensor lies; elements that it does not
 * name are `cleared` (must be 0) or else must not have been written. */
typedef struct result {
    const char *name; /* "dx": references dx_ref, dx_size, dx_terms */
    void *data;
    stw_dtype dtype;
    int64_t elements; /* of the buffer         */
    int64_t *index;   /* one a golden element  */
    unsigned char *cleared;
    int accumulate;
} result;

typedef struct problem {
    const golden_case *c;
    const variant *v;
    arena memory;
    lengths l[3];
    stw_jagged_desc desc;
    stw_jagged_args args;
    stw_attn_desc attn; /* attention alone */
    stw_attn_args attn_args;
    result results[4];
    int result_count;
} problem;

/* Fills `p`; 0 when the variant does not apply to the case (transposed storage of a sum, f32 gradients of
 * integers): the caller counts those that do. */
int problem_build(problem *p, const golden_case *c, const variant *v);
void problem_free(problem *p);

/* What the builders share (problem.c). */
void lengths_place(lengths *l, const int64_t *used, int count, int gaps, int spaced);
void problem_offsets(problem *p, int axis);
void *problem_input(problem *p, const char *name, const char *key, const int64_t *index, double elements);
void *problem_nested_input(problem *p, const char *key, const nested *n);
void *problem_result(problem *p, const char *name, stw_dtype dtype, double elements, int64_t *index,
                     unsigned char *cleared);
void *problem_nested_result(problem *p, const char *name, const nested *n);
void *problem_dense_result(problem *p, const char *name, stw_dtype dtype);
int64_t *index_of_nested(const nested *n, int64_t *count_out);
int problem_rows(problem *p);      /* problem_rows.c: elementwise, reductions, shapes */
int problem_products(problem *p);  /* problem_products.c: the norms and linear        */
int problem_matmul(problem *p);    /* problem_matmul.c                                */
int problem_attention(problem *p); /* problem_attention.c                             */

/* Plans and runs on poisoned memory; fails the test with the case's and the variant's name. */
void problem_run(problem *p, stw_context *context);
/* Judges all gradients; the number of elements compared. */
int64_t problem_judge(const problem *p);
stw_context *problem_context(int threads);

#endif
