/* SPDX-License-Identifier: MIT
 *
 * Nested problems for calls whose device data is wrong: placed in one buffer of the context's device,
 * guarded, every element of every tensor with a state that include/sternway/jagged_bwd.h gives it. The same
 * problem can be called with wrong lengths and with those that the header says are taken for them. Used by
 * test_clamp*.c. */
#ifndef STW_TESTS_JAGGED_CLAMP_H
#define STW_TESTS_JAGGED_CLAMP_H

#include <sternway/sternway.h>

enum { CLAMP_COMPONENTS = 4, CLAMP_BLOCKS = 32, CLAMP_SIZE = 9, CLAMP_TOTAL = 23 };

typedef enum clamp_op {
    CLAMP_SILU,
    CLAMP_THRESHOLD,
    CLAMP_SOFTMAX_RAGGED,
    CLAMP_SOFTMAX_INNER,
    CLAMP_LOG_SOFTMAX,
    CLAMP_LAYER_NORM,
    CLAMP_RMS_NORM,
    CLAMP_LAYER_NORM_RAGGED,
    CLAMP_RMS_NORM_RAGGED,
    CLAMP_SUM_RAGGED,
    CLAMP_SUM_INNER,
    CLAMP_SELECT_FIRST, /* along the ragged dimension: index 0, index -1 */
    CLAMP_SELECT_LAST,
    CLAMP_SELECT_COMPONENT,
    CLAMP_LINEAR,
    CLAMP_RESHAPE,
    CLAMP_TO_PADDED,
    CLAMP_FROM_PADDED,
    CLAMP_MATMUL_M, /* the ragged axis that is wrong */
    CLAMP_MATMUL_K,
    CLAMP_MATMUL_N,
    CLAMP_MATMUL_MN, /* m is wrong, n is ragged too: grad by base offsets */
    CLAMP_MATMUL_MK, /* likewise k: x, and dA, by base offsets            */
    CLAMP_OPS
} clamp_op;

typedef struct clamp_variant {
    const char *name;
    stw_dtype dtype, index_dtype;
    stw_jagged_storage storage;
    int64_t inner;
    int skew; /* elements that every tensor lies off a multiple of 256 bytes */
} clamp_variant;

/* Component b has positions start[b] .. start[b+1] - 1, of which the first used[b] take part. */
typedef struct clamp_lengths {
    int64_t start[CLAMP_COMPONENTS + 1], used[CLAMP_COMPONENTS], total;
} clamp_lengths;

/* What is true of an element: neither read nor written, takes part, must become 0. */
enum { CLAMP_LEFT, CLAMP_VALUE, CLAMP_ZERO };
typedef enum clamp_kind { CLAMP_INPUT, CLAMP_OUTPUT, CLAMP_SCRATCH } clamp_kind;

typedef struct clamp_block {
    const char *name;
    clamp_kind kind;
    size_t at, bytes, size; /* in the image; of an element */
    int64_t elements;
    unsigned char *state; /* one an element; null: all of it takes part */
} clamp_block;

typedef struct clamp_problem {
    stw_context *context;
    clamp_op op;
    const clamp_variant *v;
    stw_jagged_desc desc;
    stw_jagged_args args; /* pointers into the buffer, but for what each call sets */
    clamp_lengths l[3];   /* by STW_AXIS_*: what is taken for the wrong ones       */
    int axis;             /* the wrong one                                         */
    int skipped;          /* component that has wrong bases, or -1                 */
    int64_t bases[CLAMP_COMPONENTS];
    clamp_block block[CLAMP_BLOCKS];
    int blocks, offsets[3], used[3], base_block, status_block;
    size_t bytes; /* of the image without workspace                        */
    unsigned char *before, *after;
    char *buffer;    /* on the device                                         */
    size_t capacity; /* of it                                                 */
} clamp_problem;

/* A problem with these clean lengths of its wrong axis, `skipped` -1; fails the test when it cannot be. */
void clamp_open(clamp_problem *p, stw_context *context, clamp_op op, const clamp_variant *v, const clamp_lengths *clean,
                int skipped);
void clamp_close(clamp_problem *p);

/* The other ragged axis of MATMUL_MN and MATMUL_MK. */
extern const clamp_lengths clamp_other;

/* Elements of x's (MATMUL_MK) or grad's buffer by bases, and of component b. */
int64_t clamp_bases_elements(const clamp_problem *p);
int64_t clamp_base_size(const clamp_problem *p, int b);

/* clamp_memory.c: tensors, the call and what it left. */
int clamp_add(clamp_problem *p, const char *name, clamp_kind kind, int64_t elements, size_t size);
void *clamp_at(const clamp_problem *p, int block);
size_t clamp_element(const clamp_problem *p);
void clamp_place(clamp_problem *p); /* once, when all blocks are there */

/* Values of one call; `used` null: not given. */
typedef struct clamp_call {
    const stw_jagged_desc *desc;
    const int64_t *offsets, *used, *bases; /* of the wrong axis; of the wrong bases */
    const char *what;
} clamp_call;

/* Runs it on poisoned outputs and workspace; fails the test when it is refused, or when anything but the
 * problem's values and zeros was written, a zero is none or a value is not finite. Returns *status_out. */
int32_t clamp_run(clamp_problem *p, const clamp_call *call);

unsigned char *clamp_image(const clamp_problem *p); /* a copy of what the last call left */

/* After the call with the right data: fails the test unless `other`, an image of the wrong one, has the same
 * outputs bit by bit. */
void clamp_same(const clamp_problem *p, const clamp_call *call, const unsigned char *other);

#endif
