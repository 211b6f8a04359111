/* SPDX-License-Identifier: MIT
 *
 * One conformance case: a PROBLEM made real. arena.c lays all tensors of the problem out in one
 * guarded, NaN-filled arena of host memory and fills what the problem uses (data.c); the float64
 * reference gives out, lse and the expectation; check.c runs the public API on a context and compares.
 * Used by conform and bench. */
#ifndef STW_TOOLS_VERIFY_VERIFY_H
#define STW_TOOLS_VERIFY_VERIFY_H

#include "tools/reference/accuracy.h"
#include "tools/problem/problem.h"

/* STW_VERIFY_TENSOR(ID, field of stw_attn_args): everything a call points to, in the order of the arena. Kept by hand:
 * data depend on the order; arena.c compares the number with common/attn_tensors.def. */
/* clang-format off */
#define STW_VERIFY_TENSORS(X) \
    X(Q, q) X(K, k) X(V, v) X(OUT, out) X(DOUT, dout) X(LSE, lse) X(DLSE, dlse) X(DELTA, delta) \
    X(BIAS, bias) X(ALIBI, alibi_slopes) X(SINK, sink) X(CU_Q, cu_seqlens_q) X(CU_KV, cu_seqlens_kv) \
    X(USED_Q, used_q) X(USED_KV, used_kv) X(Q_OFFSETS, q_offsets) X(K_OFFSETS, k_offsets) \
    X(SEED, dropout_seed_ptr) X(OFFSET, dropout_offset_ptr) X(DQ, dq) X(DK, dk) X(DV, dv) \
    X(DBIAS, dbias) X(DSINK, dsink) X(STATUS, status_out) X(INTERVALS, intervals) X(BLOCK_MASK, block_mask)
/* clang-format on */

typedef enum stw_verify_tensor {
#define STW_VERIFY_ID(id, field) STW_VERIFY_##id,
    STW_VERIFY_TENSORS(STW_VERIFY_ID)
#undef STW_VERIFY_ID
        STW_VERIFY_TENSOR_COUNT
} stw_verify_tensor;

extern const char *const stw_verify_tensor_names[STW_VERIFY_TENSOR_COUNT];

/* What the call may do to a byte of the arena. */
#define STW_VERIFY_KEEP  0 /* nothing: inputs, guards, gaps, unused space */
#define STW_VERIFY_WRITE 1

typedef struct stw_verify_span { /* one side of one sequence, as the data was made */
    int64_t first, rows, used, offset;
} stw_verify_span;

typedef struct stw_verify_case {
    stw_problem problem;
    unsigned char *host, *rule; /* the arena as uploaded; STW_VERIFY_* of every byte */
    size_t bytes;
    size_t offset[STW_VERIFY_TENSOR_COUNT], size[STW_VERIFY_TENSOR_COUNT];
    unsigned char present[STW_VERIFY_TENSOR_COUNT];
    stw_verify_span *q, *kv; /* [batch] */
    stw_attn_args values;    /* scalars of the call; pointers null */
    stw_ref_result forward;
    stw_expectation expectation; /* extreme cases: the reference alone */

} stw_verify_case;

/* Builds data, forward and expectation. Errors: STW_E_INVALID (the options of the call contradict the
 * descriptor), STW_E_NO_MEMORY. On failure nothing is left to free. */
stw_status stw_verify_build(const stw_problem *problem, stw_verify_case *case_out);
void stw_verify_free(stw_verify_case *c);

/* The same without reference: out, lse and a given delta stay NaN. For problems too large for it. */
stw_status stw_verify_build_inputs(const stw_problem *problem, stw_verify_case *case_out);

/* The call's arguments with the arena at `base`. */
stw_attn_args stw_verify_args(const stw_verify_case *c, const void *base);

/* Visible keys [*low, *end) of local row i of sequence b; empty when there is none. */
void stw_verify_visible(const stw_verify_case *c, int64_t b, int64_t i, int64_t *low, int64_t *end);

/* data_dead_rows: a row with an infinite LSE, of which nothing but that may matter. */
int stw_verify_is_dead(const stw_verify_case *c, int64_t row);

/* First element of a row; LSE-like tensors have one element a row. `row` counts in the sequence. */
int64_t stw_verify_row_index(const stw_verify_case *c, stw_verify_tensor tensor, int64_t b, int64_t h, int64_t row);

/* From one element of a row to the next. */
int64_t stw_verify_step(const stw_verify_case *c, stw_verify_tensor tensor);

/* Beyond the accuracy rule: only finite results and exact zeros are required. */
int stw_verify_is_extreme(const stw_problem *problem);

/* data.c: spans of the query (0) or key (1) side. Errors: STW_E_INVALID. */
stw_status stw_verify_make_side(stw_verify_case *c, int side);

/* ---- data.c -------------------------------------------------------------------------------- */

void stw_verify_fill(stw_verify_case *c);       /* inputs of a call; what nobody may read stays NaN           */
void stw_verify_fill_masks(stw_verify_case *c); /* masks.c: intervals and block mask                        */
void stw_verify_fill_delta(stw_verify_case *c); /* a given delta, once out and dout are there                 */
uint64_t stw_verify_random(uint64_t seed, uint64_t stream, uint64_t index); /* uniform 64 bits */
double stw_verify_normal(uint64_t seed, uint64_t stream, uint64_t index);   /* N(0,1)          */

/* Tiles of 128 rows and keys, all heads, that all masks of the problem hide, cut and leave whole; masks in memory as
 * they are drawn. Errors: those of stw_verify_build_inputs. */
stw_status stw_verify_mask_share(const stw_problem *problem, int64_t counts[3]);

/* Pairs of a query and a key that see each other, of all query heads. */
double stw_verify_pairs(const stw_verify_case *c);

/* ---- results -------------------------------------------------------------------------------------- */

typedef enum stw_verify_outcome { STW_VERIFY_OK, STW_VERIFY_FAIL, STW_VERIFY_SKIP } stw_verify_outcome;

/* Plain data: travels through memory shared between processes. */
typedef struct stw_verify_result {
    stw_verify_outcome outcome;
    char variant[48], text[480];
    double max_ratio[STW_GRAD_COUNT], rms_ratio[STW_GRAD_COUNT]; /* error / allowed; -1: not judged */
    double out_ratio, lse_ratio;                                 /* of the forward; -1: not judged  */
    stw_accuracy_pool pool[STW_GRAD_COUNT];
    stw_accuracy accuracy[STW_GRAD_COUNT];
    int near;       /* failed by less than a factor 2 of the accuracy rule, and by nothing else */
    int invalid;    /* no valid problem: STW_E_INVALID before anything ran */
    int data_sets;  /* that the verdict stands on; 0 = one */
    int on_device;  /* conform/run.c: 1 + the device's ordinal where several share the cases; else 0 */
    double seconds; /* conform/run.c: of the whole check */
} stw_verify_result;

/* OK, nothing judged. */
void stw_verify_result_clear(stw_verify_result *result_out);

typedef struct stw_verify_options {
    int repeats;        /* further runs that must be bitwise equal to the first                       */
    int forward;        /* also check forward and dropout mask                                        */
    int bitwise;        /* repeats must be equal even if the problem does not ask for determinism     */
    stw_context *other; /* NULL, or a context whose result must be bitwise the same */
} stw_verify_options;

/* Runs the case on the context through the public API and judges all of it. */
void stw_verify_check(const stw_verify_case *c, stw_context *context, const stw_verify_options *options,
                      stw_verify_result *result_out);

/* verdict.c: the verdict of a gradient goes into the result, as failed, as near, or as passed. */
void stw_verify_note_accuracy(stw_verify_result *result, int which, const char *name, const stw_accuracy *accuracy);

#define STW_VERIFY_DATA_SETS 8
#define STW_VERIFY_SEEDS     64 /* tried for them: data without a visible pair says nothing */
/* Checks the same problem with data of another seed; the result is clear. */
typedef void (*stw_verify_again_fn)(void *user, int64_t seed, stw_context *context, stw_verify_result *result_out);
/* Judges a near miss on STW_VERIFY_DATA_SETS data sets, by the same rule with the same constants, as if they
 * were one tensor (dispatch/DESIGN.md has the reasons). `names`: of the STW_GRAD_COUNT gradients. */
void stw_verify_enlarge(stw_verify_again_fn again, void *user, int64_t seed, stw_context *context,
                        const char *const *names, stw_verify_result *result);

/* "variant" of the plan's description. */
void stw_verify_note_variant(const stw_plan *plan, stw_verify_result *result);

/* Everything that `after`, the arena behind a call, must hold. */
void stw_verify_check_outputs(const stw_verify_case *c, const unsigned char *after, stw_verify_result *result);

/* Bytes from the first to behind the last element of a tensor; SIZE_MAX beyond 2^38. */
size_t stw_verify_reach(const stw_attn_desc *desc, stw_verify_tensor tensor);

/* forward.c: out, lse and the dropout mask of the same problem. */
void stw_verify_check_forward(const stw_verify_case *c, stw_context *context, stw_verify_result *result);

/* Marks the result as failed with a text, unless it failed before. Returns 0. */
int stw_verify_fail(stw_verify_result *result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for memory of the device that could not be had; too little of it is a skip, not a failure. */
void stw_verify_fail_buffers(stw_verify_result *result, stw_status status);

/* ---- device.c: buffers of a context -------------------------------------------------------------- */

typedef struct stw_verify_device {
    stw_context *context;
    stw_stream stream;
    unsigned char *arena, *workspace; /* of the context; workspace is behind a guard */
    size_t arena_bytes, workspace_bytes;
    void *workspace_block;
} stw_verify_device;

stw_status stw_verify_device_open(stw_context *context, size_t arena_bytes, size_t workspace_bytes,
                                  stw_verify_device *device_out);
void stw_verify_device_close(stw_verify_device *device);
/* Uploads the arena and fills workspace and guards with the poison byte. */
stw_status stw_verify_device_load(stw_verify_device *device, const unsigned char *host, int poison);
/* Downloads the arena; *guards_out = 1 when the workspace's guards still hold the poison. */
stw_status stw_verify_device_store(stw_verify_device *device, unsigned char *host, int poison, int *guards_out);

/* sample.c: problems too large for the reference as a whole. Runs the library's forward on the context
 * and puts out, lse and a given delta into the host's arena; the device's arena is then loaded. */
stw_status stw_verify_sample_forward(stw_verify_case *c, stw_context *context, stw_verify_device *device);

/* Judges dQ of `rows` query rows and dK, dV of `rows` keys of the last key/value head of sequence b, from
 * the downloaded arena, as problems of their own (same rule). Dropout maps that count local positions are
 * not sampled: nothing is judged and *judged_out is 0. */
void stw_verify_sample_judge(const stw_verify_case *c, const unsigned char *after, int64_t b, int64_t rows,
                             stw_verify_result *result, int *judged_out);

/* The same of a forward: out and LSE of `rows` query rows, by the rule of forward.c. */
void stw_verify_sample_judge_forward(const stw_verify_case *c, const unsigned char *after, int64_t b, int64_t rows,
                                     stw_verify_result *result, int *judged_out);

/* forward.c: permitted errors of out and LSE. */
void stw_verify_forward_bounds(const stw_verify_case *c, double *out_out, double *lse_out);

#endif
