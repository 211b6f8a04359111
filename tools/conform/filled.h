/* SPDX-License-Identifier: MIT
 *
 * What the two kinds of problems of `conform --large` that no host holds share: inputs that repeat a block. */
#ifndef STW_TOOLS_CONFORM_FILLED_H
#define STW_TOOLS_CONFORM_FILLED_H

#include "conform.h"

#define FILLED_BLOCK INT64_C(4194301) /* elements of the random block that an input repeats; a prime */

/* The buffer's first `bytes` become copies of the block. */
stw_status filled_repeat(stw_context *context, unsigned char *to, const void *block, size_t block_bytes, size_t bytes);

#endif
