/* SPDX-License-Identifier: MIT
 *
 * One conformance case of a jagged operation: tensors in one guarded, NaN-filled arena of host memory
 * (jagged_build.c) with lengths and data, the reference's expectation, and the check of a run
 * through the public API (jagged_check.c; jagged_sample.c for what is too large). Used by conform and bench.
 */
#ifndef STW_TOOLS_VERIFY_JAGGED_H
#define STW_TOOLS_VERIFY_JAGGED_H

#include "tools/reference/jagged.h"
#include "verify.h"
#include "tools/problem/jagged.h"

/* Tensors of the arena: inputs as stw_jref_input, then: */
enum {
    JVERIFY_DX = STW_JREF_INPUTS,
    JVERIFY_DOTHER,
    JVERIFY_DWEIGHT,
    JVERIFY_DBIAS,
    JVERIFY_STATUS,
    JVERIFY_OFFSETS, /* one an axis */
    JVERIFY_USED = JVERIFY_OFFSETS + 3,
    JVERIFY_BASES = JVERIFY_USED + 3, /* x, other, grad */
    JVERIFY_COUNT = JVERIFY_BASES + 3
};

typedef struct jagged_verify_case {
    stw_jagged_problem problem;
    unsigned char *host, *rule; /* the arena as uploaded; STW_VERIFY_* of every byte */
    size_t bytes;
    size_t offset[JVERIFY_COUNT], size[JVERIFY_COUNT]; /* bytes; size 0: absent */
    int64_t readable[STW_JREF_INPUTS];                 /* elements of each input that the call reads */
    stw_jref_expectation expectation;
} jagged_verify_case;

/* Errors: STW_E_INVALID (the options of the call contradict the descriptor), STW_E_NO_MEMORY. */
stw_status jagged_verify_build(const stw_jagged_problem *problem, jagged_verify_case *case_out);
void jagged_verify_free(jagged_verify_case *c);

/* The same in two steps: other inputs than the usual data may be put into the arena between them. After a
 * failed second step the case is the caller's to free. The first alone does for jagged_sample_judge. */
stw_status jagged_verify_build_inputs(const stw_jagged_problem *problem, jagged_verify_case *case_out);
stw_status jagged_verify_expect(jagged_verify_case *c);

/* Everything that `after`, the arena behind a call, must hold. */
void jagged_verify_check_outputs(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result);
const char *jagged_verify_tensor_name(int tensor);

/* The call's arguments with the arena at `base`. */
stw_jagged_args jagged_verify_args(const jagged_verify_case *c, const void *base);

/* Element n of an input's usual data, into element n of `data`. */
void jagged_verify_store(const stw_jagged_problem *problem, int input, int64_t n, void *data, stw_dtype dtype);

/* Judges the gradients that `after`, the arena behind a call, holds. */
void jagged_verify_judge(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result);

/* jagged_sample.c: judges what `after` holds of a case without expectation: dx and dother of some positions
 * of a component, dweight and dbias of some columns; all of it where the problem is small. Returns NULL, or
 * why nothing was judged. */
const char *jagged_sample_judge(const jagged_verify_case *c, const unsigned char *after, stw_verify_result *result);

/* Builds the problem of a line and checks it on a context; the result's gradients are dx, dother, dweight,
 * dbias in the places of dq, dk, dv, dbias. */
void jagged_verify_check_line(const char *line, int64_t seed, stw_context *context, const stw_verify_options *options,
                              stw_verify_result *result_out);

/* The call's arguments over those of the packed problem, whose lengths move into *args_out; int64 ones into a
 * new buffer of the context, else *buffer_out is NULL. */
stw_status jagged_attention_args(const stw_verify_case *c, stw_dtype index_dtype, const stw_verify_device *device,
                                 stw_attn_args *attn, stw_jagged_args *args_out, void **buffer_out);

/* Names of a line's gradients: dx, dother, dweight, dbias, or attention's. */
const char *const *jagged_names_of(const char *line);

/* Whether a line of either kind can be read. Errors: STW_E_INVALID. */
stw_status jagged_any_parse(const char *line);

#endif
