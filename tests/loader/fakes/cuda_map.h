/* SPDX-License-Identifier: MIT
 *
 * What the fake driver's tensor maps hold: the words that cuTensorMapEncodeTiled was given. Read by the emulator's
 * tensor loads too. */
#ifndef STW_TESTS_LOADER_FAKES_CUDA_MAP_H
#define STW_TESTS_LOADER_FAKES_CUDA_MAP_H

#include <stdint.h>

enum { FAKE_MAP_RANK_MAX = 5 };
#define FAKE_MAP_MARK 0x70616d54u

typedef struct fake_map {
    uint32_t mark, type, rank, modes; /* modes: a byte each */
    uint64_t start, stride[FAKE_MAP_RANK_MAX - 1];
    uint32_t dim[FAKE_MAP_RANK_MAX]; /* the real one counts to 2^32 */
    uint16_t box[FAKE_MAP_RANK_MAX], step[FAKE_MAP_RANK_MAX];
} fake_map;

#endif
