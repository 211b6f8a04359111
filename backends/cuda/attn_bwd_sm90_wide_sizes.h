/* SPDX-License-Identifier: MIT
 *
 * What sm90's loop for wide heads has behind its work tiles, on which its host side and its kernels agree. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_SIZES_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_SIZES_H

#include "common/params/attn_launch.h"

/* Dropout: four mbarriers, Philox's key, and for this step and the next a bit for each of 64 queries and every key. */
#define STW_SM90_WIDE_DROPPED_BYTES(hd) (64u + 2u * 8u * STW_SM90_WIDE_KEYS(hd))
/* Masks in memory: of each key the first and the last row that see it, and two intervals of rows that do not. */
#define STW_SM90_WIDE_SEEN_BYTES(hd) (24u * STW_SM90_WIDE_KEYS(hd))

/* Sums of parts: warps of the last kernel over the keys, and columns of all its warps, with unused ones. */
#define STW_SM90_WIDE_PART_ROWS(hd) ((hd) > 192 ? 1u : 2u)
#define STW_SM90_WIDE_PART_COLS     256u

#endif
