/* SPDX-License-Identifier: MIT
 *
 * Private to conform_filled.c and conform_part.c: a problem of more than 2^31 elements whose tensors lie on
 * the device only, and the verification of parts of it. */
#ifndef STW_TOOLS_CONFORM_FILLED_H
#define STW_TOOLS_CONFORM_FILLED_H

#include "conform.h"

#define FILLED_BLOCK INT64_C(4194301) /* elements of the random block that an input repeats; a prime */

typedef struct filled {
    stw_case c; /* problem and spans; no arena */
    stw_context *context;
    stw_case_result *result;
    unsigned char *device[STW_CASE_TENSOR_COUNT];
    size_t bytes[STW_CASE_TENSOR_COUNT];
    unsigned char *block[STW_CASE_TENSOR_COUNT]; /* what it was filled with, on the host */
    void *workspace;
} filled;

int filled_is_input(int tensor); /* one that repeats a random block */
uint32_t filled_outputs_of(const stw_attn_desc *desc);
stw_dtype filled_dtype_of(const stw_attn_desc *desc, int tensor);

/* The buffer's first `bytes` become copies of the block. */
stw_status filled_repeat(stw_context *context, unsigned char *to, const void *block, size_t block_bytes,
                         size_t bytes);

/* No memory on the host: says so in the result. */
stw_status filled_no_memory(const filled *f, size_t bytes);

/* conform_part.c: judges rows and keys of the first and the last head group. Errors: those of the copies. */
stw_status filled_verify(const filled *f);

#endif
