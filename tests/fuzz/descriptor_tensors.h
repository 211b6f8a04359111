/* SPDX-License-Identifier: MIT
 *
 * Guarded memory for every tensor that a descriptor implies; fuzz_descriptor.c runs the calls on it. */
#ifndef STW_TESTS_FUZZ_DESCRIPTOR_TENSORS_H
#define STW_TESTS_FUZZ_DESCRIPTOR_TENSORS_H

#include "fuzz.h"

#include "sternway/sternway.h"

enum { REGION_MAX = 32, MEMORY_CAP = 16 << 20 };

/* One tensor: `bytes` usable ones between two guard bands, poisoned under the address sanitizer. */
typedef struct region {
    uint8_t *block, *data, *kept; /* kept: its content before the call */
    size_t bytes, block_bytes;
    int output;
} region;

typedef struct regions {
    region list[REGION_MAX];
    int count;
    size_t total; /* bytes; above MEMORY_CAP: too large to run */
} regions;

/* Points the arguments of a call at fresh memory; 0 when that would take more than MEMORY_CAP. Lengths and
 * offsets are legal values. `content` fills the inputs, `skew` elements move every tensor off 64 bytes. */
int regions_bind(regions *all, const stw_attn_desc *desc, int forward, reader content, unsigned skew,
                 stw_attn_args *args_out);
void *regions_add(regions *all, double bytes, unsigned skew_bytes, int output);
void regions_keep(regions *all);               /* remembers the content */
void regions_check(regions *all, int refused); /* guard bands; inputs; after a refusal outputs too */
void regions_free(regions *all);

#endif
