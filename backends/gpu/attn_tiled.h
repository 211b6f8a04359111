/* SPDX-License-Identifier: MIT
 *
 * Launch plans of the tiled attention kernels, the same for CUDA and HIP: which kernels a call consists of,
 * in which order, with which grid, threads and shared memory, how much workspace it needs and what goes
 * where. Pure functions of a tile and a parameter block; called by the GPU backends. */
#ifndef STW_GPU_ATTN_TILED_H
#define STW_GPU_ATTN_TILED_H

#include "common/params/attn_launch.h"
#include "common/params/attn_stage.h"

#include <stddef.h>

/* A VARIANT row of a tuning table, as the backends hand it over. */
typedef struct stw_attn_tile {
    const char *id;
    uint32_t head_dim, bm, bn, stages, warps;
    const char *loop;
} stw_attn_tile;

typedef enum stw_attn_call { STW_CALL_BWD = 1, STW_CALL_FWD = 2, STW_CALL_DROPOUT_MASK = 3 } stw_attn_call;

#define STW_ATTN_STEPS     4
#define STW_ATTN_ENTRY_MAX 80

/* Whether blocks of threads take units until none is left, as many blocks as run at a time, or one each.
 * MANY: if that makes at least STW_UNITS_MANY units a block. */
typedef enum stw_attn_queued { STW_QUEUED_NEVER, STW_QUEUED, STW_QUEUED_MANY } stw_attn_queued;
#define STW_UNITS_MANY 24

/* One kernel of a call. Its only argument (but for Hopper's) is a stw_attn_launch whose `units` is this
 * step's. */
typedef struct stw_attn_step {
    char entry[STW_ATTN_ENTRY_MAX]; /* name in the image                            */
    int64_t units;
    stw_attn_queued queued;
    uint32_t grid_x, grid_y, block; /* grid z is 1                                  */
    uint32_t smem;                  /* dynamic shared memory, bytes                 */
} stw_attn_step;

typedef struct stw_attn_steps {
    uint32_t count; /* 0: there is nothing to do */
    stw_attn_step step[STW_ATTN_STEPS];
    size_t workspace; /* bytes */
    int unnamed;      /* entries are left empty */
} stw_attn_steps;

/* NULL, or why kernels of this tile do not exist for the call: dispatch passes such a variant over, and
 * refuses it where STERNWAY_VARIANT asks for it. */
const char *stw_attn_tile_refusal(stw_attn_call call, const stw_attn_tile *tile,
                                  const stw_attn_params *params);

/* NULL, or what of the problem the fastest kernels of this tile do not take, so that its others run. */
const char *stw_attn_slower(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params);

/* 1 for tiles of Hopper's own main loop (loop "wgmma"), whose kernel also takes the backend's maps. */
int stw_attn_is_hopper(const stw_attn_tile *tile);

/* NULL, or why that loop does not take the backward problem. */
const char *stw_attn_hopper_refusal(const stw_attn_params *params);

/* The kernels of a call, in order. `tile` is not read for the dropout mask and may be NULL. */
void stw_attn_steps_of(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                       uint32_t wave, stw_attn_steps *steps_out);

/* The same kernels without their names, which take most of the time: for a call whose plan knows them. The
 * steps of a problem and of one that shares its size classes (common/size_class.h) differ in units alone. */
void stw_attn_unnamed_steps_of(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                               uint32_t wave, stw_attn_steps *steps_out);

/* The argument of the kernels: params with the call's pointers, the workspace divided. Set `units` to a
 * step's before each launch. */
void stw_attn_launch_of(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                        uint32_t wave, void *workspace, stw_attn_launch *launch_out);

/* The kernel that copies such a tensor, and its grid; its argument is the stw_attn_stage. */
const char *stw_attn_stage_entry(const stw_attn_stage *stage);
void stw_attn_stage_grid(const stw_attn_stage *stage, uint32_t wave, uint32_t *grid_x_out,
                         uint32_t *grid_y_out);

#endif
