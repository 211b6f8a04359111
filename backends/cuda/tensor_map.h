/* SPDX-License-Identifier: MIT
 *
 * Descriptions of q, dout, k and v for the tensor loads of sm90's own main loops: made on the host for each call
 * (attn_sm90.c), the second argument of these kernels. A flag that these alone know is here, too. */
#ifndef STW_CUDA_TENSOR_MAP_H
#define STW_CUDA_TENSOR_MAP_H

#include <stdint.h>

#if defined(__cplusplus)
#define STW_MAP_ALIGNED alignas(64)
#else
#define STW_MAP_ALIGNED _Alignas(64)
#endif

/* CUtensorMap: opaque, 128 bytes, at a multiple of 64. */
typedef struct stw_tensor_map {
    STW_MAP_ALIGNED uint64_t word[16];
} stw_tensor_map;

/* A tensor seen by tensor loads. `panels`, not 0: five dimensions (column in a panel of 64, row, panel, head,
 * batch), one load brings all panels; 0: four (column, row, head, batch), a load a panel, so that columns
 * past the head dim become zeros. */
typedef struct stw_mapped_tensor {
    stw_tensor_map map;
    int32_t panels;
} stw_mapped_tensor;

/* In stw_attn_launch.vectors, beside STW_KEYS_DESCEND: the last heads whose key blocks are numbered together ascend
 * (attn_bwd_sm90_scheduler.h). */
#define STW_SM90_LAST_ASCEND 0x800u
/* Also there: parts of a work tile add their sums of dK and dV in one place, which the kernel before them zeroes. */
#define STW_SM90_PARTS_ADD 0x1000u

/* `factor`: scale times log2(e), which the exponentials take from here, where it needs no register. Under softcap that
 * times 2 / cap, and `cap` times log2(e). `kept`: 1 - p of dropout, and its log2. `drain_rows`: query rows, a power of
 * two and 256 at least, after which f32 sums go to memory. */
typedef struct stw_sm90_maps {
    stw_mapped_tensor q, dout, k, v;
    float factor, cap, kept, log_kept;
    int32_t drain_rows;
} stw_sm90_maps;

#endif
