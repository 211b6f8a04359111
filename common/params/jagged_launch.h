/* SPDX-License-Identifier: MIT
 *
 * What a kernel of the jagged operations on a GPU receives: the parameter block of the problem, with the clean
 * lengths in the call's workspace, and this step's division into work tiles. Also the constants that launch plans and
 * kernels must agree on. Filled by backends/gpu/jagged_launch.c, read by common/kernels/jagged_*.h. */
#ifndef STW_COMMON_PARAMS_JAGGED_LAUNCH_H
#define STW_COMMON_PARAMS_JAGGED_LAUNCH_H

#include "attn_launch.h" /* stw_quotient, stw_blocks_of, tiles */
#include "jagged.h"
#include "sternway/jagged_bwd.h"

#define STW_JAGGED_THREADS         256u  /* of a CTA, but for: */
#define STW_JAGGED_PREPARE_THREADS 1024u /* the one CTA that makes the clean lengths */
#define STW_JAGGED_PREPARE_SMEM    (1024u * 8u + 32u * 8u + 16u)

/* Elements of T in 16 bytes. */
#define STW_JAGGED_VECTOR(element) (16u / (element))
/* Pointwise kernels and maps: vectors a lane has under way; elements of a work tile. */
#define STW_JAGGED_LANE_VECTORS   4u
#define STW_JAGGED_CHUNK(element) (STW_JAGGED_THREADS * STW_JAGGED_LANE_VECTORS * STW_JAGGED_VECTOR(element))

/* Maps by rows: chunks of a work tile, where there are enough for all multiprocessors. */
#define STW_JAGGED_ROW_CHUNKS 4
#define STW_JAGGED_ROW_MANY   8192

/* CTAs of a layer_norm that keeps column sums: what is added in which order depends on it, and
 * not on the device. */
#define STW_JAGGED_NORM_BLOCKS 264

/* Column sums: rows of a part, at most so many parts; threads of a CTA over columns. */
#define STW_JAGGED_SUM_ROWS  128
#define STW_JAGGED_SUM_PARTS 512
/* Sums along a ragged dimension: positions of a part. */
#define STW_JAGGED_SEGMENT_ROWS 128
#define STW_JAGGED_SUM_SMEM     (2u * STW_JAGGED_THREADS * 8u * 4u)

/* Products: matmul's dA and dB, linear's dX and dW. */
#define STW_JPRODUCT_DA 0u
#define STW_JPRODUCT_DB 1u
#define STW_JPRODUCT_DX 2u
#define STW_JPRODUCT_DW 3u
/* Shared memory: a tile of each operand a stage, and the work tile. The summed index runs along rows or is the row. */
#define STW_JAGGED_OPERAND(element, rows, bk, by_k)                                                                    \
    ((by_k) ? STW_TILE_BYTES(element, bk, rows) : STW_TILE_BYTES(element, rows, bk))
#define STW_JAGGED_PRODUCT_SMEM(element, bm, bn, bk, stages, a_by_k, b_by_k)                                           \
    ((stages) * (STW_JAGGED_OPERAND(element, bm, bk, a_by_k) + STW_JAGGED_OPERAND(element, bn, bk, b_by_k)) + 256u)
/* What is summed is cut into parts of at least this much, where there would be fewer work tiles than this. */
#define STW_JAGGED_PART_LEAST 2048
#define STW_JAGGED_WORK_TILES 1024

/* Products of linear by a device's own kernels (STW_KERNEL_JAGGED_OWN): the work tile of a CTA, what is summed at once,
 * stages of loads, threads, shared memory; fewer work tiles are cut into parts. */
#define STW_JAGGED_OWN_BM         128
#define STW_JAGGED_OWN_BN         256
#define STW_JAGGED_OWN_BK         64
#define STW_JAGGED_OWN_STAGES     4
#define STW_JAGGED_OWN_THREADS    384u
#define STW_JAGGED_OWN_SMEM       (4u * 49152u + 4u * 8192u + 256u)
#define STW_JAGGED_OWN_WORK_TILES 512
/* Hopper truncates what it adds to: over this many rows f16's rounding is still several times that. */
#define STW_JAGGED_OWN_MOST_K 65536

typedef struct stw_jagged_launch {
    stw_jagged_params p;
    int32_t *gaps;                         /* 1 where some U_b < L_b: written by the first step */
    float *sums, *sums_too, *product_sums; /* parts of sums, from one step to the next */
    int64_t *tiles[2];                     /* matmul's dA and dB: work tiles before component b (components + 1) */
    int64_t *slots[2];                     /* of them those of components with several parts                     */
    int64_t *bases[3];                     /* clean bases of x, other and grad                                   */
    int64_t part_of[2], part_k;            /* of matmul's dA and dB, and of this step: summed in one part        */
    int64_t work_tiles, blocks;            /* of this step: work tiles, CTAs                                     */
    int64_t slab;                          /* elements of a slab of the buffer that the step goes over           */
    int64_t span;                          /* maps by rows: elements of a work tile                              */
    int64_t chunks;                        /* work tiles of a slab                                               */
    int64_t run;                           /* maps: elements in a row whose sources follow each other            */
    uint64_t divide;                       /* 2^64 / run, rounded up                                             */
    int64_t lines;                         /* lines of a slab                                                    */
    int64_t columns, column_blocks, rows, parts; /* column sums: rows a part      */
    uint32_t column_lanes;                       /* threads side by side over vectors of columns */
    uint32_t product, tile_m, tile_n;            /* STW_JPRODUCT_*; of its tiles                 */
    float line_size;                             /* dim_size */
    uint32_t reserved;
} stw_jagged_launch;

/* The number of a position's part of STW_JAGGED_SEGMENT_ROWS: parts of a component follow each other, some numbers
 * between components are of none. */
STW_SHARED_FN int64_t stw_jagged_part_of(int64_t first, int64_t b) { return first / STW_JAGGED_SEGMENT_ROWS + b; }

STW_PARAMS_ASSERT(sizeof(stw_jagged_launch) <= 1024, "fits the parameters of a kernel, and tests/sm80_emu");

#endif
