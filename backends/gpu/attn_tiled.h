/* SPDX-License-Identifier: MIT
 *
 * Launch plans of the tiled attention kernels, the same for CUDA and HIP: which kernels a call consists of,
 * in which order, with which grid, threads and shared memory, how much workspace it needs and what goes
 * where. Pure functions of a tile and a parameter block; called by the GPU backends.
 *
 * A step names its kernel: add_bwd and fill_steps of attn_tiled.c put the name together, as the images declare it
 * (backends/cuda/attn_bwd_sm80.cu, attn_bwd_sm90.cu, backends/hip/attn_bwd_cdna.hip). */
#ifndef STW_GPU_ATTN_TILED_H
#define STW_GPU_ATTN_TILED_H

#include "backends/backend.h"
#include "common/params/attn_launch.h"
#include "common/params/attn_stage.h"

#include <stddef.h>

typedef enum stw_attn_call { STW_CALL_BWD = 1, STW_CALL_FWD = 2, STW_CALL_DROPOUT_MASK = 3 } stw_attn_call;

#define STW_ATTN_STEPS     8 /* seven at most, and one that is not counted (add_step) */
#define STW_ATTN_ENTRY_MAX 80

/* Whether CTAs take work tiles until none is left (as many CTAs as run at a time), or one each (NEVER).
 * MANY: they take several if each has at least STW_WORK_TILES_MANY then. */
typedef enum stw_attn_queued { STW_QUEUED_NEVER, STW_QUEUED, STW_QUEUED_MANY } stw_attn_queued;
#define STW_WORK_TILES_MANY 24

/* The image that holds a kernel: attention's, the device's own beside it (the same where it has none), the
 * jagged operations', the device's own of those (where it has one), that of attention over ranks. */
typedef enum stw_kernel_image {
    STW_KERNEL_ATTN,
    STW_KERNEL_OWN,
    STW_KERNEL_JAGGED,
    STW_KERNEL_JAGGED_OWN,
    STW_KERNEL_CP
} stw_kernel_image;

/* One kernel of a call. Its only argument, but for the maps of a loop that has some, is a stw_attn_launch whose
 * `work_tiles` is this step's. */
typedef struct stw_attn_step {
    char entry[STW_ATTN_ENTRY_MAX]; /* name in the image                            */
    stw_kernel_image image;
    uint32_t early; /* it awaits the kernel before it by itself: may begin while that one runs */
    int64_t work_tiles;
    stw_attn_queued queued;
    uint32_t grid_x, grid_y, block; /* grid z is 1                                  */
    uint32_t smem;                  /* dynamic shared memory, bytes                 */
    uint32_t without_dq;            /* its kernel is told that nobody wants dQ      */
    uint32_t bn;                    /* keys of its tiles; 0: those of the main loop */
} stw_attn_step;

/* A work tile of the main loop, a key block of a kv head, in parts: by query heads of the group, by query blocks. Their
 * sums of dK and dV leave by the workspace: each part's for itself, which the last kernel adds, or added there
 * (stw_attn_choice.adds_parts). */
typedef struct stw_attn_split {
    uint32_t heads, rows; /* how many parts each way; 0 and 1: it is whole */
} stw_attn_split;

typedef struct stw_attn_steps {
    uint32_t count; /* 0: there is nothing to do */
    stw_attn_step step[STW_ATTN_STEPS];
    size_t workspace;     /* bytes */
    int unnamed;          /* entries are left empty, workspace 0 */
    stw_attn_split split; /* of the main loop's work tiles */
} stw_attn_steps;

/* What a main loop decides about a problem; steps, workspace and argument of the call are made of it. */
typedef struct stw_attn_choice {
    const char *mode; /* last word of the main loop's kernel */
    uint32_t early;   /* of that kernel, as in a step */
    uint32_t bn;      /* keys of a work tile of the main loop */
    uint32_t width;   /* columns of the dQ sums */
    uint32_t sums_dq; /* it makes these sums even where nobody wants dQ */
    uint32_t smem;
    uint32_t warps;            /* of a CTA that multiply; 0: those of the table */
    uint32_t loaders;          /* threads of a CTA beside these               */
    uint32_t dq_rows, vectors; /* of the launch; vectors: bits beyond those of the tensors */
    stw_attn_queued queued;
    const char *preprocess, *postprocess; /* whose kernels come before and after the main loop; NULL: shared */
    uint32_t small_rows;                  /* query rows of a CTA of such kernels */
    const char *exact; /* NULL, or the mode of a kernel after it, for the work tiles that it has left alone */
    stw_attn_split split;
    uint32_t apart; /* sums of dK and dV of whole work tiles leave by the workspace as well, as those of parts do */
    uint32_t adds_parts; /* parts of a work tile add their sums in one place there; its `postprocess` makes dK and dV */
    /* Masks in sm90's own main loops, as in the launch; 0: other loops, or no masks. */
    uint32_t visible_heads, visible_rows, visible_length;
    uint32_t key_rows;  /* waves over a work tile's sums of dK and dV, for `split` */
    uint32_t part_cols; /* columns that such sums have; 0: head_dim of the table */
    uint32_t xcds;      /* of the device, among which whole heads are shared where they can be evenly; 0: no matter */
} stw_attn_choice;

/* In steps of a main loop: the begin and the end of a work tile; the sums of a part on their way to memory and back.
 * `share`: what one more part of every work tile adds to all, since the sums of all parts share L2 with dQ. `tail`: at
 * the end multiprocessors stand for a quarter of a part of mean length (0) or of the longest (1). It is the longest
 * where heads follow one another, since L2 does not hold their rows together, and each begins with its longest part.
 * `padded`: deterministic mode has room for so many times fewer parts than where no column is padding; 0: as many. */
typedef struct stw_attn_costs {
    double tile, part, share, tail, padded;
} stw_attn_costs;

/* Of NVIDIA's main loops. */
stw_attn_costs stw_attn_costs_of_h200(uint32_t head_dim);

/* How the work tiles of a problem are split among the device's multiprocessors (params->units), each with `ctas` CTAs
 * of the main loop at a time: by a cost model of their number, their steps and the traffic of the sums. rows_most: as
 * for stw_attn_short_sums, which has not said 0, or 0. Decided for the largest problem of the size classes
 * (attn_split.c). */
stw_attn_split stw_attn_split_of(const stw_variant *tile, uint32_t bn, const stw_attn_params *params, uint32_t ctas,
                                 int64_t rows_most, const stw_attn_costs *costs);

/* Query rows of one head that a block of `bn` keys meets, at most, of the largest problem of the size classes. */
double stw_attn_rows_met(const stw_attn_params *params, uint32_t bn);

/* The fewest parts with which no sum of dK or dV has more than `rows_most` query rows, heads 0 where it takes more than
 * 8, or in deterministic mode a workspace of more than 4 times dQ in f32. */
stw_attn_split stw_attn_short_sums(const stw_attn_params *params, uint32_t bn, int64_t rows_most);

struct stw_gpu;

/* A main loop on the host. Shared ones are in attn_tiled.c, sm90's in backends/cuda/attn_sm90.c, CDNA's in
 * backends/hip/attn_cdna.c. Functions may be NULL but for `plan` of a backward's loop. */
typedef struct stw_gpu_loop {
    stw_attn_call call;    /* STW_CALL_BWD or STW_CALL_FWD                                             */
    int f32;               /* its kernels are f32's, else f16's and bf16's                             */
    int plain;             /* shared loop: it has kernels without features of single pairs             */
    int ordered;           /* and one without them for deterministic mode                              */
    int single;            /* and one each for dropout, a bias, a softcap, ALiBi and masks in memory alone */
    int whole;             /* its only kernel's work tiles have all keys of a sequence, bn at most     */
    const char *unaligned; /* NULL, or why it does not take tensors that start anywhere                */
    /* NULL, or why the loop does not take the problem. */
    const char *(*refusal)(const stw_attn_params *params);
    /* NULL, or what of the problem the fastest kernels of this tile do not take, so that its others run. */
    const char *(*slower)(const stw_variant *tile, const stw_attn_params *params);
    void (*plan)(const stw_variant *tile, const stw_attn_params *params, uint32_t wave, stw_attn_choice *out);
    /* Fills the second argument of its kernel, STW_GPU_MAPS_BYTES at a multiple of 64. */
    stw_status (*encode_maps)(struct stw_gpu *gpu, const stw_attn_launch *launch, void *maps_out);
} stw_gpu_loop;

/* The row of a main loop: stw_attn_loop_<word>, which VARIANT rows of that word point at. */
#define STW_ATTN_LOOP(word, ...)                                                                                       \
    static const stw_gpu_loop word##_row = {__VA_ARGS__};                                                              \
    extern const stw_attn_loop stw_attn_loop_##word;                                                                   \
    const stw_attn_loop stw_attn_loop_##word = {.name = #word, .gpu = &word##_row}

/* Of the shared loop, for those of other files that fall back on it. `plain`: as in the row. */
void stw_attn_tiled_plan(const stw_variant *tile, const stw_attn_params *params, uint32_t wave, int plain,
                         stw_attn_choice *out);
const char *stw_attn_tiled_slower(const stw_variant *tile, const stw_attn_params *params, int plain);

/* NULL, or what only the shared kernels with all features know. */
const char *stw_attn_needs_full(const stw_attn_params *params);

/* NULL, or the mask in memory that the problem has. */
const char *stw_attn_masks(const stw_attn_params *params);

/* dBias is asked for and broadcast: a kernel of its own sums it (attn_dbias_reduce.h). */
int stw_attn_bias_is_summed(const stw_attn_params *params);

/* NULL, or why kernels of this tile do not exist for the call: dispatch passes such a variant over, and
 * refuses it where STERNWAY_VARIANT asks for it. */
const char *stw_attn_tile_refusal(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params);

/* NULL, or what of the problem the fastest kernels of this tile do not take, so that its others run. */
const char *stw_attn_slower(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params);

/* The kernels of a call, in order. `tile` is not read for the dropout mask and may be NULL. */
void stw_attn_steps_of(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                       stw_attn_steps *steps_out);

/* The same kernels without their names, which take most of the time, and workspace: for a call whose plan knows them.
 * Two problems of the same size classes (common/size_class.h) have steps that differ in work_tiles and grids alone. */
void stw_attn_unnamed_steps_of(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params,
                               uint32_t wave, stw_attn_steps *steps_out);

/* The argument of the kernels, in two parts: what a plan knows, with offsets where the workspace's addresses will be;
 * and what a call of the same sizes brings, its pointers and its workspace. Set `work_tiles` to a step's before each
 * launch. */
void stw_attn_launch_fill(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                          stw_attn_launch *launch_out);
void stw_attn_launch_place(stw_attn_call call, const stw_attn_params *params, void *workspace, stw_attn_launch *launch);

/* Both. */
void stw_attn_launch_of(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                        void *workspace, stw_attn_launch *launch_out);

/* The kernel that copies tensors like this one; its argument for some of them, and its grid. */
const char *stw_attn_stage_entry(const stw_attn_stage *stage);
void stw_attn_stages_of(const stw_attn_stage *stages, uint32_t count, uint32_t wave, stw_attn_stages *all_out,
                        uint32_t *grid_x_out, uint32_t *grid_y_out);

#endif
