/* SPDX-License-Identifier: MIT
 *
 * Guarded memory for every tensor that a jagged descriptor implies, in the sizes that jagged_bwd.h gives
 * them; fuzz_jagged.c runs the calls on it. */
#ifndef STW_TESTS_FUZZ_JAGGED_TENSORS_H
#define STW_TESTS_FUZZ_JAGGED_TENSORS_H

#include "fuzz.h"

#include "sternway/sternway.h"
#include "tests/jagged/arena.h"

enum { JAGGED_CAP = 1 << 20 }; /* elements of all tensors of a call */

/* Points the arguments at fresh memory; 0 when that would take too much. Offsets, lengths and bases are
 * legal, but for *data_bad: a component lacks the index of SELECT, or no lengths keep the promise of FULL.
 * `content` fills the inputs. */
int jagged_bind(arena *memory, const stw_jagged_desc *desc, reader content, stw_jagged_args *args,
                stw_attn_args *attn_args, int *data_bad);

#endif
