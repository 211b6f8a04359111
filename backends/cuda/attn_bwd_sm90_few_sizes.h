/* SPDX-License-Identifier: MIT
 *
 * Sizes of sm90's loop for few query rows, on which its host side and its kernels agree. */
#ifndef STW_CUDA_ATTN_BWD_SM90_FEW_SIZES_H
#define STW_CUDA_ATTN_BWD_SM90_FEW_SIZES_H

#include "common/params/attn_launch.h"

/* Keys of a step, 16 a warp. Two CTAs a multiprocessor or more, whose loads under way fill the memory's latency. */
#define STW_SM90_FEW_KEYS         64u
#define STW_SM90_FEW_WARPS        4u
#define STW_SM90_FEW_STAGES(rows) ((rows) > 16u ? 2u : 3u)
/* K and V of each stage; Q and dO; dS; what a row sees; the work tile. */
#define STW_SM90_FEW_SMEM(hd, rows)                                                                                    \
    (2u * STW_SM90_FEW_STAGES(rows) * STW_TILE_BYTES(2u, STW_SM90_FEW_KEYS, hd) + 2u * STW_TILE_BYTES(2u, rows, hd) +  \
     STW_TILE_BYTES(2u, STW_SM90_FEW_KEYS, rows) + 16u * (rows) + 16u + STW_WORK_TILE_BYTES)

#endif
