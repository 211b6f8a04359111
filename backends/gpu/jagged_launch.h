/* SPDX-License-Identifier: MIT
 *
 * Launch plans of the jagged kernels, the same for CUDA and HIP: which kernels a call consists of, in which
 * order, with which grid, and what lies where in the workspace. Pure functions of a parameter block; called
 * by backends/gpu/jagged.c. */
#ifndef STW_GPU_JAGGED_LAUNCH_H
#define STW_GPU_JAGGED_LAUNCH_H

#include "common/params/jagged_launch.h"
#include "common/arch.h"

#define STW_JAGGED_STEPS     6
#define STW_JAGGED_ENTRY_MAX 80

/* What a step is: which fields of its launch are filled, and how. */
typedef enum stw_jagged_kind {
    STW_JSTEP_PREPARE,
    STW_JSTEP_POINTWISE,
    STW_JSTEP_MAP,
    STW_JSTEP_MAP_ROWS, /* maps that copy whole rows              */
    STW_JSTEP_LINES,
    STW_JSTEP_NORM_SUMS,   /* a norm's dX, parts of dGamma, dBeta     */
    STW_JSTEP_COLUMNS,     /* parts of column sums                    */
    STW_JSTEP_COLUMNS_END, /* adds these parts up                     */
    STW_JSTEP_SEGMENTS,    /* parts along the ragged dimension, or dX */
    STW_JSTEP_SEGMENT_SUM,
    STW_JSTEP_NORM_SEGMENTS, /* norms along it: parts of sums, or dX      */
    STW_JSTEP_STRIDED,
    STW_JSTEP_PRODUCT,    /* one of STW_JPRODUCT_* */
    STW_JSTEP_PRODUCT_END /* adds its parts up     */
} stw_jagged_kind;

/* One kernel of a call. Its only argument is a stw_jagged_launch. */
typedef struct stw_jagged_step {
    char entry[STW_JAGGED_ENTRY_MAX]; /* name in the image           */
    stw_jagged_kind kind;
    int64_t work_tiles;
    uint32_t grid_x, grid_y, block; /* grid z is 1                 */
    uint32_t product;               /* STW_JPRODUCT_*              */
    uint32_t smem;                  /* dynamic shared memory, bytes */
} stw_jagged_step;

typedef struct stw_jagged_steps {
    uint32_t count;
    stw_jagged_step step[STW_JAGGED_STEPS];
    size_t workspace; /* bytes */
} stw_jagged_steps;

/* ---- tables (jagged_tables.c): the rows of common/tuning/jagged.<arch>.def ---- */

typedef struct stw_jagged_line {
    const char *name;
    uint32_t lanes, vectors, sums;
} stw_jagged_line;

typedef struct stw_jagged_tile {
    uint32_t element, bm, bn, bk, stages, warps;
} stw_jagged_tile;

typedef struct stw_jagged_table {
    const stw_arch *arch;
    stw_backend backend;
    uint32_t wave; /* threads of a warp */
    const stw_jagged_line *lines;
    size_t line_count;
    const stw_jagged_tile *tiles;
    size_t tile_count;
    int64_t work_tiles; /* products with fewer are cut into parts           */
    int64_t most_k;     /* linear: longer sums are cut into parts, or 0     */
} stw_jagged_table;

/* The table of an arch of a GPU; one without a table of its own (sm90) runs the kernels of its backend's
 * first. */
const stw_jagged_table *stw_jagged_table_of(const stw_arch *arch);

/* Has the tile of the products of STW_KERNEL_JAGGED_OWN alone. */
extern const stw_jagged_table stw_jagged_own_table;

/* ---- launches ---- */

/* NULL, or why GPUs do not have the operation. */
const char *stw_jagged_refusal(const stw_jagged_params *params);

/* The kernels of a call, in order. `processors`: multiprocessors of the device. */
void stw_jagged_steps_of(const stw_jagged_params *params, const stw_jagged_table *table, uint32_t processors,
                         stw_jagged_steps *steps_out);

/* What all steps' arguments have in common: params with the call's pointers, clean lengths in the workspace. */
void stw_jagged_launch_of(const stw_jagged_params *params, const stw_jagged_table *table, void *workspace,
                          stw_jagged_launch *launch_out);

/* What a step's argument has besides. */
void stw_jagged_launch_step(stw_jagged_kind kind, int64_t work_tiles, int64_t blocks, uint32_t product,
                            const stw_jagged_table *table, stw_jagged_launch *launch);

/* ---- maps (jagged_map.c) ---- */

typedef struct stw_jagged_map {
    int rows;     /* whether the kernel by rows has the problem                            */
    int64_t run;  /* elements of an output row whose sources follow each other, or are one */
    int64_t span; /* by rows: elements of a work tile                                      */
} stw_jagged_map;

stw_jagged_map stw_jagged_map_of(const stw_jagged_params *params);

/* ---- products (jagged_product.c) ---- */

/* How a product is cut. */
typedef struct stw_jagged_cut {
    int wanted;
    int a_by_k, b_by_k;    /* which operands have the summed index as their rows */
    int64_t part_k, parts; /* summed in one part; linear: how many, matmul: 2 where there may be several */
    int64_t work_tiles;    /* linear's; matmul's are counted on the device (then 1) */
    int64_t slots;         /* tiles of sums in the workspace */
} stw_jagged_cut;

stw_jagged_tile stw_jagged_tile_of(const stw_jagged_params *params, const stw_jagged_table *table);
stw_jagged_cut stw_jagged_cut_of(const stw_jagged_params *params, uint32_t product, const stw_jagged_table *table);

#endif
