/* SPDX-License-Identifier: MIT
 *
 * Guarded memory for the tensors of one jagged call: every block lies between two bands of a pattern
 * (unreachable under the address sanitizer), inputs must stay as they are. Used by the tests of this folder
 * and by tests/fuzz/fuzz_jagged.c. */
#ifndef STW_TESTS_JAGGED_ARENA_H
#define STW_TESTS_JAGGED_ARENA_H

#include <stddef.h>

typedef enum arena_kind {
    ARENA_INPUT,    /* must not change                             */
    ARENA_OUTPUT,   /* may change, but not by a refused call       */
    ARENA_STATUS,   /* status_out: may change even then            */
    ARENA_WORKSPACE /* at an odd address; may change at any time   */
} arena_kind;

enum { ARENA_MAX = 40, ARENA_POISON = 0xFF };

typedef struct arena_block {
    unsigned char *base, *data, *kept;
    size_t bytes, base_bytes;
    arena_kind kind;
    const char *name;
} arena_block;

typedef struct arena {
    arena_block list[ARENA_MAX];
    int count;
    int skew; /* blocks start so many elements off a 256-byte boundary */
} arena;

/* Memory of ARENA_POISON bytes (NaN in every floating-point type); aborts when there is none. */
void *arena_add(arena *a, const char *name, double elements, size_t element_size, arena_kind kind);

/* Remembers what the blocks hold. */
void arena_keep(arena *a);

/* Null, or what was written that must not be, as a text in static memory. */
const char *arena_wrong(arena *a, int refused);

void arena_free(arena *a);

#endif
