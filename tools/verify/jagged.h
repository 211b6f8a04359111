/* SPDX-License-Identifier: MIT
 *
 * One conformance case of a jagged operation: tensors in one guarded, NaN-filled arena of host memory
 * (jagged_build.c) with lengths and data, the reference's expectation, and the check of a run
 * through the public API (jagged_check.c; jagged_sample.c for what is too large). Used by conform and bench.
 */
#ifndef STW_TOOLS_VERIFY_JAGGED_H
#define STW_TOOLS_VERIFY_JAGGED_H

#include "tools/reference/jagged.h"
#include "case.h"
#include "tools/problem/jagged.h"

/* Tensors of the arena: inputs as stw_jref_input, then: */
enum {
    JCASE_DX = STW_JREF_INPUTS,
    JCASE_DOTHER,
    JCASE_DWEIGHT,
    JCASE_DBIAS,
    JCASE_STATUS,
    JCASE_OFFSETS, /* one an axis */
    JCASE_USED = JCASE_OFFSETS + 3,
    JCASE_BASES = JCASE_USED + 3, /* x, other, grad */
    JCASE_COUNT = JCASE_BASES + 3
};

typedef struct jagged_case {
    stw_jagged_problem problem;
    unsigned char *host, *rule; /* the arena as uploaded; STW_CASE_* of every byte */
    size_t bytes;
    size_t offset[JCASE_COUNT], size[JCASE_COUNT]; /* bytes; size 0: absent */
    int64_t readable[STW_JREF_INPUTS];             /* elements of each input that the call reads */
    stw_jref_expectation expectation;
} jagged_case;

/* Errors: STW_E_INVALID (the options of the call contradict the descriptor), STW_E_NO_MEMORY. */
stw_status jagged_case_build(const stw_jagged_problem *problem, jagged_case *case_out);
void jagged_case_free(jagged_case *c);

/* The same in two steps: other inputs than the usual data may be put into the arena between them. After a
 * failed second step the case is the caller's to free. The first alone does for jagged_sample_judge. */
stw_status jagged_case_build_inputs(const stw_jagged_problem *problem, jagged_case *case_out);
stw_status jagged_case_expect(jagged_case *c);

/* Everything that `after`, the arena behind a call, must hold. */
void jagged_case_check_outputs(const jagged_case *c, const unsigned char *after, stw_case_result *result);
const char *jagged_case_tensor_name(int tensor);

/* The call's arguments with the arena at `base`. */
stw_jagged_args jagged_case_args(const jagged_case *c, const void *base);

/* Element n of an input's usual data, into element n of `data`. */
void jagged_case_store(const stw_jagged_problem *problem, int input, int64_t n, void *data, stw_dtype dtype);

/* Judges the gradients that `after`, the arena behind a call, holds. */
void jagged_case_judge(const jagged_case *c, const unsigned char *after, stw_case_result *result);

/* jagged_sample.c: judges what `after` holds of a case without expectation: dx and dother of some positions
 * of a component, dweight and dbias of some columns; all of it where the problem is small. Returns NULL, or
 * why nothing was judged. */
const char *jagged_sample_judge(const jagged_case *c, const unsigned char *after, stw_case_result *result);

/* Builds the problem of a line and checks it on a context; the result's gradients are dx, dother, dweight,
 * dbias in the places of dq, dk, dv, dbias. */
void jagged_case_check_line(const char *line, int64_t seed, stw_context *context, const stw_case_options *options,
                            stw_case_result *result_out);

/* The call's arguments over those of the packed problem, whose lengths move into *args_out; int64 ones into a
 * new buffer of the context, else *buffer_out is NULL. */
stw_status jagged_attention_args(const stw_case *c, stw_dtype index_dtype, const stw_case_device *device,
                                 stw_attn_args *attn, stw_jagged_args *args_out, void **buffer_out);

/* Names of a line's gradients: dx, dother, dweight, dbias, or attention's. */
const char *const *jagged_names_of(const char *line);

/* Whether a line of either kind can be read. Errors: STW_E_INVALID. */
stw_status jagged_any_parse(const char *line);

#endif
