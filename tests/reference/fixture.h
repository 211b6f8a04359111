/* SPDX-License-Identifier: MIT
 *
 * Small attention problems for the tests of the oracle: a test sets sizes, flags, lengths and offsets, the
 * fixture lays the tensors out with odd strides, poisons all memory with NaN and fills only what is part of
 * the problem. Addresses are worked out here from the public header, not by the oracle's own functions. */
#ifndef STW_TESTS_REFERENCE_FIXTURE_H
#define STW_TESTS_REFERENCE_FIXTURE_H

#include "tools/reference/accuracy.h"

enum { FIXTURE_BUFFERS = 32 };

typedef enum fixture_layout { FIXTURE_BSHD, FIXTURE_BHSD } fixture_layout;

typedef struct fixture {
    stw_attn_desc desc;
    stw_attn_args args;
    fixture_layout layout;
    int lse_by_head_last;    /* LSE as [T,H] or [B,S,H] instead of [H,T] or [B,H,S]     */
    int lse_local;           /* packed q: LSE as [B,H,max_seq_q]                        */
    unsigned bias_broadcast; /* bit n: dimension n of [B,H,Sq,Sk] is broadcast          */
    uint64_t state;          /* of the generator                                        */
    void *buffers[FIXTURE_BUFFERS];
    size_t bytes[FIXTURE_BUFFERS];
    int count;
} fixture;

/* Which tensor an address is asked for. */
typedef enum fixture_tensor {
    FIXTURE_Q,
    FIXTURE_K,
    FIXTURE_V,
    FIXTURE_OUT,
    FIXTURE_DOUT,
    FIXTURE_DQ,
    FIXTURE_DK,
    FIXTURE_DV
} fixture_tensor;

/* B2 Hq4 Hk2 Sq5 Sk7 D3 Dv4, f32, seed 1; nothing allocated yet. */
fixture fixture_start(void);

/* Strides, buffers, inputs, then out and lse by the oracle's forward. Outputs are poisoned. */
void fixture_build(fixture *f);
void fixture_free(fixture *f);

/* Writes out and lse again, after a test changed an input. */
void fixture_run_forward(fixture *f);

int64_t fixture_used_q(const fixture *f, int64_t b);
int64_t fixture_used_kv(const fixture *f, int64_t b);
int64_t fixture_rows_q(const fixture *f, int64_t b);
int64_t fixture_rows_kv(const fixture *f, int64_t b);

/* Index of element d of local row i in the tensor; of local row i in lse, dlse or delta by
 * its strides; of a bias element.
 */
int64_t fixture_index(const fixture *f, fixture_tensor tensor, int64_t b, int64_t h, int64_t i, int64_t d);
int64_t fixture_row_index(const fixture *f, const stw_attn_strides *strides, int64_t b, int64_t h, int64_t i);
int64_t fixture_bias_index(const fixture *f, int64_t b, int64_t h, int64_t i, int64_t j);

/* Row of a result (reference.h) that local row i is. */
int64_t fixture_result_row_q(const fixture *f, int64_t b, int64_t i);
int64_t fixture_result_row_kv(const fixture *f, int64_t b, int64_t j);

float fixture_random(fixture *f); /* roughly normal, a multiple of 2^-9, |x| < 4 */

/* A copy of an output buffer, registered with the fixture. */
void *fixture_copy(fixture *f, const void *buffer);

/* Writes a result's gradients, rounded once, into the output tensors; rows not to be touched stay. */
void fixture_store(fixture *f, const stw_ref_result *result);

#endif
