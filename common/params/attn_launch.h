/* SPDX-License-Identifier: MIT
 *
 * What an attention kernel on a GPU receives: the parameter block of the problem and the places of the
 * call's workspace. Also how much shared memory a tile needs, on which host and kernels must agree. Filled by
 * backends/gpu/attn_tiled.c, read by common/kernels. */
#ifndef STW_COMMON_PARAMS_ATTN_LAUNCH_H
#define STW_COMMON_PARAMS_ATTN_LAUNCH_H

#include "attn_hidden.h"

/* Bits of stw_attn_launch.vectors: rows of the tensor start on 16-byte boundaries and are whole vectors. */
#define STW_VECTOR_Q    0x01u
#define STW_VECTOR_K    0x02u
#define STW_VECTOR_V    0x04u
#define STW_VECTOR_OUT  0x08u
#define STW_VECTOR_DOUT 0x10u
#define STW_VECTOR_DQ   0x20u
#define STW_VECTOR_DK   0x40u
#define STW_VECTOR_DV   0x80u
#define STW_PAIRS_DQ    0x400u /* rows of dQ start on multiples of two elements and are whole pairs */
/* In the same word: the statistics are -LSE*log2(e) (infinite: -inf) and -D, as the main loops of CDNA and sm90 take
 * them. attn_bwd_preprocess.h has -inf and 0 for rows that take part in nothing: sm90's loop multiplies them. */
#define STW_STATS_NEGATED 0x100u
/* Also in `vectors`: in deterministic mode key blocks are numbered, and add, from the last to the first (the main loops
 * of sm90 and CDNA, the shared loop's kernels `ordered`). */
#define STW_KEYS_DESCEND 0x200u
/* 0x800 and 0x1000 are sm90's own (backends/cuda/tensor_map.h). */

/* Also there, from this bit on: XCDs of a GPU that get whole heads of CDNA's own main loop; 0: work tiles go to any
 * (attn_bwd_cdna_scheduler.h). */
#define STW_XCDS_SHIFT 16u

/* CTAs a row of the grid on HIP, whose grids are at most 2^32 threads wide. */
#define STW_GRID_X_HIP (INT64_C(1) << 22)
/* CTAs a row of the grid on CUDA, at most 2^31 - 1; kernels read gridDim. */
#define STW_GRID_X_CUDA (INT64_C(1) << 30)

/* Bytes of one of stw_attn_launch.key_blocks. */
#define STW_KEY_BLOCK_BYTES 160u

/* Floats behind the two statistics of a query block. The first is not 0 if a row's LSE is infinite, the second if sums
 * of these rows may be subnormal (attn_bwd_subnormal.h); the others fill a vector of 16 bytes. */
#define STW_STATS_PAD 4u

/* Kernels that work on rows: threads of a CTA, its shared memory; the largest bm of any variant. */
#define STW_ROW_THREADS 256u
#define STW_ROW_SMEM    1024u
#define STW_BM_MAX      128u

typedef struct stw_attn_launch {
    stw_attn_params p;
    float *stats;           /* a (head, query block): LSE of bm rows, D of bm rows, STW_STATS_PAD              */
    float *dq;              /* a (head, query block): bm x width sums, in the order of the kernel's registers  */
    double *sink;           /* a (head, query block): its part of dSink                                        */
    uint32_t *dq_semaphore; /* deterministic: a (head, query block): how many key blocks have added; with
                               STW_KEYS_DESCEND the last that has; under masks in memory, in the shared loop the last
                               counted from 1, in sm90's own the next to add                                   */
    void *key_blocks;       /* a (sequence, key block): what it meets (attn_key_block of attn_bwd_list.h)      */
    uint64_t *listed;       /* packed keys: how many work tiles there are, then each: key block << 32 | kv head */
    uint64_t *tile_counter; /* work tiles of the main loop handed out so far; gfx90a's CDNA loop of 16 bits:
                               [1] work tiles left to the exact kernel, [2..] which                            */
    uint32_t *unordered;    /* deterministic: 1 where wrong lengths leave no order                             */
    int64_t q_blocks;       /* query blocks of a head, all sequences                                           */
    int64_t k_blocks;       /* dense keys: key blocks of a sequence                                            */
    int64_t work_tiles;     /* of this step: a grid may be larger, that of the main loop smaller               */
    int64_t blocks;         /* CTAs of this step                                                               */
    int64_t lists;          /* CTAs of the preprocess kernel that list key blocks: its first ones              */
    int64_t heads_in_l2;    /* kv heads whose key blocks are numbered together                                 */
    int64_t l2_rows;        /* packed keys: so many query rows, of all such heads of a sequence, fit L2        */
    int64_t listed_most;    /* packed keys: entries of key_blocks                                              */
    int64_t bias_batch, bias_heads, bias_rows, bias_keys; /* tasks of a summed dBias, a dimension              */
    uint32_t bm, bn, width, warps;
    uint32_t dq_rows;     /* waves over the rows of a query block in the dQ product                            */
    uint32_t vectors;     /* STW_VECTOR_* and the bits behind them, above; from STW_XCDS_SHIFT on the XCDs      */
    uint32_t never;       /* 0, which the compiler does not know (dev_part)                                    */
    uint32_t bias_direct; /* dBias is not broadcast: the main loop writes it                                   */
    /* A work tile in parts (stw_attn_split_of). p.heads_kv, p.group: of parts by query heads, which are like kv heads
     * of their own but for K, V, dK and dV; k_blocks, listed_most: key blocks times parts by query blocks. */
    uint32_t head_parts, row_parts;
    float *part_sums;     /* a (part by heads, key block and part by blocks): dK, dV, bn x part_cols sums each, in the
                             order of the main loop's registers; of parts that add, a (kv head, key block)     */
    int64_t part_entries; /* entries of key_blocks; of parts that add, key blocks                              */
    uint32_t part_cols, key_rows; /* columns of such sums, waves over their rows                               */
    /* Interval and block masks. Tiles: of bn keys, as stw_hidden_tile numbers them. Heads: of the mask, 0 without it, 1
     * where all share it. */
    stw_hidden_block *hidden_blocks; /* a (head of intervals, tile); null: intervals are only checked        */
    stw_hidden_rows *hidden_keys;    /* a (head of intervals, tile): bn keys                                  */
    uint32_t *hidden_bits; /* a (head of the block mask, tile): which STW_MASK_BLOCK rows see keys of the mask's block
                                with the tile's first key, then with its last one: hidden_words each          */
    int64_t hidden_tiles, hidden_words; /* words of 32 bits                                                   */
    uint32_t interval_heads, block_heads;
    /* Masks in sm90's own main loops (attn_bwd_sm90_visible.h); of others 0. */
    void *visible_blocks;   /* a (key block, kv head with a mask of its own): which query rows see its keys     */
    void *visible_words;    /* likewise visible_rows rows of visible_length words: which query blocks meet it   */
    uint16_t *visible_next; /* deterministic: likewise, of each query block the next key block that adds to it;
                               else null or, dense keys, the key blocks of a head, those with most steps first  */
    uint32_t visible_heads, visible_rows, visible_length, unused;
} stw_attn_launch;

#if defined(__cplusplus)
#define STW_CONSTANT_FN constexpr
#else
#define STW_CONSTANT_FN
#endif

/* Waves over a rows x cols result: how many along the rows, so that the fewest operands are read. A wave
 * takes multiples of 16 rows and `step` columns. 0: these waves cannot share it. (A matrix unit whose tiles have
 * other sizes has a `step` of its own.) */
STW_SHARED_FN STW_CONSTANT_FN int stw_split_rows(int rows, int cols, int waves, int step) {
    int best = 0, least = 1 << 20;
    for (int r = 1; r <= waves; r *= 2) {
        int c = waves / r;
        if (waves % r || rows % (r * 16) || cols % (c * step)) continue;
        if (rows / r + cols / c < least) {
            least = rows / r + cols / c;
            best = r;
        }
    }
    return best;
}

/* Sums of parts: tiles of registers that a thread of the last kernel adds, and how many such shares a thread of the
 * main loop has (waves of 32 threads, four values a tile). */
#define STW_PART_TILES 4u
STW_SHARED_FN int64_t stw_attn_part_chunks(uint32_t bn, uint32_t cols, uint32_t warps) {
    return bn * cols / (warps * 32u * 4u * STW_PART_TILES);
}

/* kv heads whose key blocks are worked on beside each other, where `fit` query rows of a head fit L2 (0: one head after
 * the other) and sequences have `rows`: four at least; whole sequences' heads, or a part that divides them where that
 * is not less than half of those that fit (7 of 16 heads were 8% slower than 8). */
STW_SHARED_FN int64_t stw_heads_in_l2(int64_t heads, int64_t fit, int64_t rows) {
    if (!fit) return 1;
    int64_t most = stw_larger(4, fit / stw_larger(rows, 1));
    if (most >= heads) return most / heads * heads;
    int64_t parts = stw_blocks_of(heads, most);
    for (int tries = 0; tries < 64 && parts * most <= 2 * heads; ++parts, ++tries)
        if (heads % parts == 0) return heads / parts;
    return most;
}

/* Bytes of a tile in shared memory: rows of 128-byte multiples of 16-bit elements are stored in a permuted order,
 * others have 16 bytes of padding. `element`: bytes; 6 is f32 in three 16-bit parts, a plane each, but whole (4)
 * where rows are short. */
#define STW_TILE_TERMS(element, cols)    ((element) == 6u && (cols) >= 32 ? 3u : 1u)
#define STW_TILE_SWIZZLED(element, cols) ((element) == 2u && (cols) * (element) % 128u == 0u)
#define STW_TILE_PLANE(element, rows, cols)                                                                            \
    ((rows) * ((cols) * (element) + (STW_TILE_SWIZZLED(element, cols) ? 0u : 16u)))
#define STW_TILE_BYTES(element, rows, cols)                                                                            \
    (STW_TILE_TERMS(element, cols) == 3u ? 3u * STW_TILE_PLANE(2u, rows, cols)                                         \
                                         : STW_TILE_PLANE((element) == 6u ? 4u : (element), rows, cols))
/* Backward: K, V; Q, dO and the statistics of each stage; P, dS; this work tile and the next. Stages 0:
 * one stage, and V only passes through Q's place on its way to registers. Forward: K, V, Q, P. */
#define STW_WORK_TILE_BYTES     368u
#define STW_STAGE_COUNT(stages) ((stages) ? (stages) : 1u)
#define STW_BWD_SMEM(element, hd, bm, bn, stages)                                                                      \
    (((stages) ? 2u : 1u) * STW_TILE_BYTES(element, bn, hd) +                                                          \
     2u * STW_STAGE_COUNT(stages) * STW_TILE_BYTES(element, bm, hd) + 2u * STW_TILE_BYTES(element, bm, bn) +           \
     STW_STAGE_COUNT(stages) * (2u * (bm) + STW_STATS_PAD) * 4u + STW_WORK_TILE_BYTES)
/* CDNA's own main loop: keys of a work tile, whatever its row says of the kernels with all features; query rows in LDS
 * at a time; Q and dO of these, padded and transposed, dS, padded by row and by four rows, the statistics of 32 rows,
 * and one work tile. */
#define STW_CDNA_BN(hd)          ((hd) > 192u ? 64u : (hd) > 128u ? 128u : 192u)
#define STW_CDNA_HELD(hd)        ((hd) > 192u ? 16u : 32u)
#define STW_CDNA_TALL_V          128u /* head_dim_v to which head dim 192 has kernels of its own */
#define STW_CDNA_ROWS            256u /* query rows of a workgroup of its preprocess and postprocess kernels */
#define STW_CDNA_WORK_TILE_BYTES 176u
#define STW_CDNA_SMEM(hd)                                                                                              \
    (2u * STW_CDNA_HELD(hd) * (4u * (((hd) + 63u) / 64u * 64u) + 32u) +                                                \
     STW_CDNA_HELD(hd) / 4u * (4u * (2u * STW_CDNA_BN(hd) + 32u) + 64u) + 2u * 32u * 4u + STW_CDNA_WORK_TILE_BYTES)
/* Its loop for f32: 16 rows of Q, dO and dS. */
#define STW_CDNA_F32_BN(hd) ((hd) > 128u ? 64u : (hd) > 64u ? 128u : 192u)
#define STW_CDNA_F32_SMEM(hd)                                                                                          \
    (2u * 16u * (4u * (hd) + 32u) + 4u * (4u * (4u * STW_CDNA_F32_BN(hd) + 32u) + 64u) + 2u * 32u * 4u +               \
     STW_CDNA_WORK_TILE_BYTES)
/* sm90's own main loop: rows of a query block; K of this work tile and the next, V, three stages of Q, dO and
 * statistics, two of dS, which queries see which key, barriers and work tiles. */
#define STW_SM90_BM(hd) ((hd) > 64u ? 64u : 128u)
#define STW_SM90_SMEM(hd)                                                                                              \
    (((hd) + 63u) / 64u * 128u * (3u * 128u + 6u * STW_SM90_BM(hd)) + 2u * 256u * STW_SM90_BM(hd) +                    \
     3u * (2u * STW_SM90_BM(hd) + STW_STATS_PAD) * 4u + 128u * 8u + 96u + STW_WORK_TILE_BYTES)
/* Its kernels of masks: bytes of what is kept of a key block and its 128 keys, and of a word, which stands for 32 query
 * blocks; limits, one a line. */
#define STW_SM90_VISIBLE_BLOCK_BYTES (STW_KEY_BLOCK_BYTES + 128u * 24u)
#define STW_SM90_VISIBLE_WORD_BYTES  16u
#define STW_SM90_VISIBLE_NONE        0xFFFFu    /* in visible_next: no key block follows */
#define STW_SM90_VISIBLE_SORTED      2048       /* key blocks of a head that are sorted, at most */
#define STW_SM90_VISIBLE_FRONT       4u         /* where they begin in visible_next, behind two words of 32 bits */
#define STW_SM90_VISIBLE_LENGTH      (1u << 15) /* words of a row of query blocks, at most */
#define STW_SM90_VISIBLE_GROUP       (1u << 10) /* query heads of a kv head, at most */
/* Its loop for head_dim_qk to 192 and head_dim_v to 128: K and V of 128 keys, two stages of Q and statistics of 64
 * queries, one of dO, P and dS, dQ in f32, which queries see which key, the same things behind them. */
#define STW_SM90_TALL_SMEM                                                                                             \
    (128u * 2u * (192u + 128u) + 64u * 2u * (2u * 192u + 128u) + 2u * 64u * 128u * 2u + 64u * 192u * 4u +              \
     2u * (2u * 64u + STW_STATS_PAD) * 4u + 128u * 8u + 240u + STW_WORK_TILE_BYTES)
/* Its loop for wide heads: K and V of 96 keys or 80, two stages of Q and statistics of 64 queries, one of
 * dO, P and dS, dQ in f32 or eight values of each of 256 threads, barriers,
 * work tiles and how they are masked. */
#define STW_SM90_WIDE_KEYS(hd) ((hd) > 192u ? 80u : 96u)
#define STW_SM90_WIDE_SMEM(hd)                                                                                         \
    (2u * (hd) * (2u * STW_SM90_WIDE_KEYS(hd) + 3u * 64u) + 2u * STW_SM90_WIDE_KEYS(hd) * 128u +                       \
     ((hd) > 192u ? 256u * 32u : 64u * (hd) * 4u) + 2u * (2u * 64u + STW_STATS_PAD) * 4u + 240u + STW_WORK_TILE_BYTES)
/* Its kernel of short sequences, bn keys and blocks of bm query rows, of 64 columns a panel: K, V, stages of Q and dO,
 * dS, the statistics, which queries see which key, barriers and the work tile. */
#define STW_SM90_SHORT_STAGES(bm, bn) ((bm) < (bn) ? 2u : 1u)
#define STW_SM90_SHORT_SMEM(hd, bm, bn)                                                                                \
    (((hd) + 63u) / 64u * 256u * (STW_SM90_SHORT_STAGES(bm, bn) * (bm) + (bn)) + 2u * (bm) * (bn) +                    \
     8u * ((bm) + (bn)) + 32u + STW_WORK_TILE_BYTES)
#define STW_FWD_SMEM(element, hd, bm, bn)                                                                              \
    (2u * STW_TILE_BYTES(element, bn, hd) + STW_TILE_BYTES(element, bm, hd) + STW_TILE_BYTES(element, bm, bn))

/* Tiles of the kernels that sum dBias: (name, element bytes, largest head dim, bm, bn, warps). bm divides
 * that of every variant for the same element and head dim. Made by recomputation, so that no sum needs a
 * temporary. */
#define STW_DBIAS_TILES(X)                                                                                             \
    X(32x64_hd64, 2, 64, 32, 64, 4)                                                                                    \
    X(32x64_hd128, 2, 128, 32, 64, 4)                                                                                  \
    X(32x32_hd256, 2, 256, 32, 32, 4)                                                                                  \
    X(16x32_hd128, 4, 128, 16, 32, 4)                                                                                  \
    X(16x16_hd256, 4, 256, 16, 16, 2)
/* Of these sums, 16-bit ones with nothing besides the bias (attn_dbias_reduce_plain.h), NVIDIA's: (name, largest head
 * dim, bm, bn, stages, warps, CTAs a multiprocessor). */
#define STW_DBIAS_PLAIN_TILES(X)                                                                                       \
    X(plain_64x64_hd64, 64, 64, 64, 2, 4, 3)                                                                           \
    X(plain_64x64_hd128, 128, 64, 64, 1, 4, 3)
#define STW_DBIAS_PLAIN_WORK_TILES 6
#define STW_DBIAS_PLAIN_SMEM(hd, bm, bn, stages)                                                                       \
    ((stages) *                                                                                                        \
         (2u * STW_TILE_BYTES(2u, bn, hd) + 2u * STW_TILE_BYTES(2u, bm, hd) + (2u * (bm) + STW_STATS_PAD) * 4u) +      \
     STW_TILE_BYTES(2u, bm, bn) + STW_DBIAS_PLAIN_WORK_TILES * (STW_KEY_BLOCK_BYTES + 16u))
/* STW_DBIAS_TILES for waves of 64 threads and 64 KB of shared memory, with the stages of a row. */
#define STW_BIAS_STAGES_64(element, hd) ((element) == 4u && (hd) > 224u ? 0u : 1u)
#define STW_DBIAS_TILES_64(X)                                                                                          \
    X(32x64_hd64, 2, 64, 32, 64, 4)                                                                                    \
    X(32x64_hd128, 2, 128, 32, 64, 4)                                                                                  \
    X(16x32_hd256, 2, 256, 16, 32, 2)                                                                                  \
    X(16x32_hd128, 4, 128, 16, 32, 2)                                                                                  \
    X(16x16_hd256, 4, 256, 16, 16, 1)

STW_PARAMS_ASSERT(sizeof(stw_attn_launch) == 864 + 15 * 8 + 15 * 8 + 18 * 4, "host and device agree on the launch");
STW_PARAMS_ASSERT(sizeof(stw_attn_launch) <= 4096, "fits the parameters of a kernel");

#endif
