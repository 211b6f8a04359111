/* SPDX-License-Identifier: MIT
 *
 * Plans and run calls on a GPU. backends/gpu/attn_tiled.c says which kernels a call consists of; here the
 * plan finds them in the image by name, and a run call checks its pointers and launches them in the caller's
 * stream: no lock, no allocation, no synchronisation, so a graph capture records it. The main loops behind the
 * names: attn_bwd_main (common/kernels/attn_bwd.h), attn_bwd_sm90 (backends/cuda/attn_bwd_sm90.h) and
 * attn_cdna_main (backends/hip/attn_bwd_cdna_scheduler.h). */
#include "backends/gpu/attn_tiled.h"
#include "backends/gpu/gpu.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct launch_step {
    const stw_gpu_kernel *kernel;
    int64_t work_tiles;
    uint32_t grid_x, grid_y, without_dq, bn;
} launch_step;

/* The kernels of a call and their argument, but for its pointers. */
typedef struct planned_call {
    stw_attn_call call;
    const stw_variant *tile; /* NULL: the dropout mask's */
    uint32_t count;
    launch_step step[STW_ATTN_STEPS];
    stw_attn_launch launch; /* of work's params; places are offsets */
} planned_call;

/* stw_attn_work.own: calls of `variant`, of `unaligned_variant` where there is one, of the dropout mask. */
typedef struct launch_plan {
    planned_call usual, unaligned, mask;
    const stw_gpu_kernel *stage; /* of work's stages */
} launch_plan;

/* CTAs that run at a time, as far as shared memory says: rather too many than too few, since one that finds no work
 * tile ends at once. A multiprocessor has 1 KB more shared memory than the largest CTA may ask for. */
static int64_t blocks_at_a_time(const stw_device *device, uint32_t smem) {
    uint32_t each = (device->smem_max + 1024) / (smem + 1024);
    return (int64_t)device->compute_units * (each ? each : 1);
}

const char *stw_gpu_variant_refusal(const stw_device *device, const stw_attn_work *work, const stw_variant *variant) {
    (void)device;
    if (work->unaligned && variant->loop->gpu->unaligned) return variant->loop->gpu->unaligned;
    return stw_attn_tile_refusal(work->kind == STW_PLAN_ATTN_FWD ? STW_CALL_FWD : STW_CALL_BWD, variant, &work->params);
}

/* The grid of a step whose kernel is known. */
static void size_step(const stw_device *device, const stw_attn_step *step, launch_step *sized) {
    int64_t enough = blocks_at_a_time(device, step->smem),
            least = step->queued == STW_QUEUED_MANY ? enough * STW_WORK_TILES_MANY : enough + 1;
    int shared = step->queued != STW_QUEUED_NEVER && step->work_tiles >= least; /* CTAs take several work tiles */
    sized->work_tiles = step->work_tiles;
    sized->without_dq = step->without_dq;
    sized->bn = step->bn;
    sized->grid_x = shared ? (uint32_t)enough : step->grid_x;
    sized->grid_y = shared ? 1 : step->grid_y;
}

/* Finds the kernels of a call and fills their argument. Between enter and leave. */
static stw_status plan_call(const stw_device *device, const stw_attn_params *params, const stw_attn_steps *steps,
                            planned_call *planned) {
    stw_gpu *gpu = device->state;
    for (uint32_t i = 0; i < steps->count; ++i) {
        const stw_attn_step *step = &steps->step[i];
        const stw_gpu_entry entry = {step->entry, step->image, step->block, step->smem, step->early};
        size_step(device, step, &planned->step[i]);
        stw_status status = stw_gpu_kernel_find(gpu, &entry, &planned->step[i].kernel);
        if (status) return status;
    }
    planned->count = steps->count;
    stw_attn_launch_fill(planned->call, planned->tile, params, gpu->ops->wave, &planned->launch);
    return STW_OK;
}

static void write_note(stw_attn_work *work, const stw_gpu *gpu, const stw_attn_steps *steps) {
    stw_text note = stw_text_in(work->note, sizeof work->note);
    stw_text_add(&note, "%s, %u kernel%s", stw_image_kind_name(gpu->image->kind), steps->count,
                 steps->count == 1 ? "" : "s");
    for (uint32_t i = 0; i < steps->count; ++i) stw_text_add(&note, "%s%s", i ? " " : ": ", steps->step[i].entry);
    if (steps->split.heads * steps->split.rows > 1)
        stw_text_add(&note, "; a work tile in %u parts by query heads, %u by query blocks", steps->split.heads,
                     steps->split.rows);
}

static stw_status fill_plan(const stw_device *device, const stw_attn_work *work, const stw_attn_steps *usual,
                            const stw_attn_steps *unaligned, launch_plan *plan) {
    stw_gpu *gpu = device->state;
    stw_attn_steps mask;
    int before;
    stw_attn_steps_of(STW_CALL_DROPOUT_MASK, NULL, &work->params, gpu->ops->wave, &mask);
    stw_status status = stw_gpu_enter(gpu, "attn_plan", &before);
    if (status) return status;
    status = plan_call(device, &work->params, usual, &plan->usual);
    if (!status) status = plan_call(device, &work->params, &mask, &plan->mask);
    if (!status && work->unaligned_variant) status = plan_call(device, &work->params, unaligned, &plan->unaligned);
    if (!status && work->stage_count) {
        const stw_gpu_entry entry = {.name = stw_attn_stage_entry(&work->stage[0]), .threads = STW_ROW_THREADS};
        status = stw_gpu_kernel_find(gpu, &entry, &plan->stage);
    }
    return stw_gpu_leave(gpu, before, status);
}

stw_status stw_gpu_attn_prepare(const stw_device *device, stw_attn_work *work) {
    stw_gpu *gpu = device->state;
    const stw_variant *tile = work->variant;
    stw_attn_steps steps, unaligned = {0};
    stw_attn_call call = work->kind == STW_PLAN_ATTN_FWD ? STW_CALL_FWD : STW_CALL_BWD;
    const char *refusal = stw_attn_tile_refusal(call, tile, &work->params);
    if (refusal) return stw_fail(STW_E_UNSUPPORTED, "attn_plan: variant %s: %s", tile->id, refusal);
    launch_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return stw_fail(STW_E_NO_MEMORY, "attn_plan: no memory");
    plan->usual.call = plan->unaligned.call = call;
    plan->mask.call = STW_CALL_DROPOUT_MASK;
    plan->usual.tile = tile;
    plan->unaligned.tile = work->unaligned_variant;
    stw_attn_steps_of(call, tile, &work->params, gpu->ops->wave, &steps);
    if (work->unaligned_variant)
        stw_attn_steps_of(call, work->unaligned_variant, &work->params, gpu->ops->wave, &unaligned);
    stw_status status = fill_plan(device, work, &steps, &unaligned, plan);
    if (status) {
        free(plan);
        return status;
    }
    free(work->own);
    work->own = plan;
    work->slower = stw_attn_slower(call, tile, &work->params);
    work->bm = plan->usual.launch.bm;
    work->bn = plan->usual.launch.bn;
    if (call == STW_CALL_BWD && !tile->loop->gpu->whole) {
        const stw_attn_launch *l = &plan->usual.launch;
        const uint32_t order[4] = {l->bm, l->width, l->warps, l->dq_rows};
        memcpy(work->dq_order, order, sizeof order);
        work->stats_order[0] = 2 * l->bm + STW_STATS_PAD;
        /* a bias changes the factor of negated statistics (LEAF_STATS_LOG2E) */
        work->stats_order[1] = l->vectors & STW_STATS_NEGATED ? 1 + (l->p.features & STW_FEAT_BIAS) : 0;
        work->dq_place = (size_t)(uintptr_t)l->dq;
    }
    work->workspace_size = steps.workspace > unaligned.workspace ? steps.workspace : unaligned.workspace;
    write_note(work, gpu, &steps);
    return STW_OK;
}

/* ---- what a run call asks the driver before it launches: is each array memory of this device, is the stream one of
 * this device? A wrong pointer would fail inside the kernel and take the whole process's device with it, so every array
 * is asked for. ---- */

/* One pointer of the parameter block. rows: which side's emptiness makes it irrelevant; written: bits of the
 * calls that write it. */
typedef struct pointer_row {
    const char *name;
    size_t at;
    enum { ROWS_Q, ROWS_KV, ROWS_BOTH, ROWS_NONE } rows;
    unsigned written;
} pointer_row;

enum { BWD = 1 << STW_CALL_BWD, FWD = 1 << STW_CALL_FWD, MASK = 1 << STW_CALL_DROPOUT_MASK };
static const pointer_row pointer_rows[] = {
#define STW_ATTN_TENSOR(name, side, cols, broadcast, dtype, forward, backward, written)                                \
    {#name, offsetof(stw_attn_params, name.data), ROWS_##side, written},
#define STW_ATTN_EXTRA(name, member, side, element, present, use, written)                                             \
    {#name, offsetof(stw_attn_params, member), ROWS_##side, written},
#include "common/attn_tensors.def"
    {"mask", offsetof(stw_attn_params, mask_out), ROWS_BOTH, MASK}, /* of the dropout mask call alone */
#define STW_ATTN_POSITION(name, bound, element, use, written)                                                          \
    {#name, offsetof(stw_attn_params, name), ROWS_NONE, written},
#include "common/attn_tensors.def"
};
enum { POINTERS = sizeof pointer_rows / sizeof pointer_rows[0] };

stw_status stw_gpu_check_call(stw_gpu *gpu, const char *who, stw_attn_call call, const stw_attn_params *params,
                              const void *workspace, stw_stream stream) {
    stw_status status = gpu->ops->check_stream(gpu, who, stream);
    int holds_q = stw_rows_of_side(params, 0) > 0, holds_kv = stw_rows_of_side(params, 1) > 0;
    const int holds[] = {[ROWS_Q] = holds_q, [ROWS_KV] = holds_kv, [ROWS_BOTH] = holds_q && holds_kv, [ROWS_NONE] = 1};
    for (size_t i = 0; i < POINTERS && !status; ++i) {
        const pointer_row *row = &pointer_rows[i];
        const void *pointer = *(const void *const *)((const char *)params + row->at);
        if (pointer && holds[row->rows])
            status = stw_gpu_check_pointer(gpu, who, row->name, pointer, (row->written >> call & 1) != 0);
    }
    if (!status && workspace) status = stw_gpu_check_pointer(gpu, who, "workspace", workspace, 1);
    return status;
}

/* ---- run calls ---- */

static stw_status launch_steps(stw_gpu *gpu, const launch_step *step, uint32_t count, stw_attn_launch *launch,
                               void *maps, stw_stream stream) {
    void *arguments[] = {launch, maps}; /* the second: for kernels that have one */
    const uint32_t outputs = launch->p.outputs;
    const int64_t bn = launch->bn;
    for (uint32_t i = 0; i < count; ++i) {
        const stw_gpu_kernel *kernel = step[i].kernel;
        launch->work_tiles = step[i].work_tiles;
        launch->blocks = (int64_t)step[i].grid_x * step[i].grid_y;
        launch->p.outputs = step[i].without_dq ? outputs & ~(uint32_t)STW_OUT_DQ : outputs;
        launch->bn = step[i].bn ? step[i].bn : bn;
        stw_status status = gpu->ops->launch(gpu, kernel, step[i].grid_x, step[i].grid_y, stream, arguments);
        if (status) return status;
    }
    return STW_OK;
}

static int same_sizes(const stw_attn_params *a, const stw_attn_params *b) {
    return a->batch == b->batch && a->max_seq_q == b->max_seq_q && a->max_seq_kv == b->max_seq_kv &&
           a->total_q == b->total_q && a->total_kv == b->total_kv;
}

/* The steps and the argument of a call of other sizes of the plan's classes (stw_attn_bwd_once). */
static void resize(const stw_device *device, const planned_call *planned, const stw_attn_params *params,
                   launch_step *steps, stw_attn_launch *launch) {
    const stw_gpu *gpu = device->state;
    stw_attn_steps own;
    stw_attn_unnamed_steps_of(planned->call, planned->tile, params, gpu->ops->wave, &own);
    for (uint32_t i = 0; i < own.count; ++i) size_step(device, &own.step[i], &steps[i]);
    stw_attn_launch_fill(planned->call, planned->tile, params, gpu->ops->wave, launch);
}

static stw_status run_call(const char *who, const planned_call *planned, const stw_device *device,
                           const stw_attn_work *work, const stw_attn_params *params, void *workspace,
                           stw_stream stream) {
    stw_gpu *gpu = device->state;
    const stw_gpu_loop *loop = planned->tile ? planned->tile->loop->gpu : NULL;
    const void *asked = loop && work->workspace_size ? workspace : NULL;
    stw_attn_launch launch;
    launch_step own[STW_ATTN_STEPS];
    const launch_step *steps = planned->step;
    _Alignas(64) unsigned char maps[STW_GPU_MAPS_BYTES];
    int before;
    stw_status status = stw_gpu_enter(gpu, who, &before);
    if (status) return status;
    status = stw_gpu_check_call(gpu, who, planned->call, params, asked, stream);
    if (same_sizes(&work->params, params)) {
        launch = planned->launch;
    } else {
        memcpy(own, planned->step, sizeof own);
        resize(device, planned, params, own, &launch);
        steps = own;
    }
    stw_attn_launch_place(planned->call, params, workspace, &launch);
    if (!status && loop && loop->encode_maps) status = loop->encode_maps(gpu, &launch, maps);
    if (!status) status = launch_steps(gpu, steps, planned->count, &launch, maps, stream);
    return stw_gpu_leave(gpu, before, status);
}

stw_status stw_gpu_stage(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                         const stw_attn_stage *stages, uint32_t count, void *workspace, stw_stream stream,
                         uint32_t cpu_threads) {
    (void)cpu_threads;
    stw_gpu *gpu = device->state;
    const launch_plan *plan = work->own;
    stw_attn_call call = work->kind == STW_PLAN_ATTN_FWD ? STW_CALL_FWD : STW_CALL_BWD;
    const char *who = call == STW_CALL_FWD ? "attn_fwd" : "attn_bwd";
    int before;
    stw_status status = stw_gpu_enter(gpu, who, &before);
    if (status) return status;
    status = stw_gpu_check_call(gpu, who, call, params, workspace, stream);
    if (count && !status) {
        stw_attn_stages all;
        void *arguments[] = {&all};
        uint32_t grid_x, grid_y;
        stw_attn_stages_of(stages, count, gpu->ops->wave, &all, &grid_x, &grid_y);
        status = gpu->ops->launch(gpu, plan->stage, grid_x, grid_y, stream, arguments);
    }
    return stw_gpu_leave(gpu, before, status);
}

stw_status stw_gpu_attn_bwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    const launch_plan *plan = work->own;
    int unaligned = work->unaligned_variant && !stw_attn_is_aligned(params);
    return run_call("attn_bwd", unaligned ? &plan->unaligned : &plan->usual, device, work, params, workspace, stream);
}

stw_status stw_gpu_attn_fwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    const launch_plan *plan = work->own;
    return run_call("attn_fwd", &plan->usual, device, work, params, workspace, stream);
}

stw_status stw_gpu_dropout_mask(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                                stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    const launch_plan *plan = work->own;
    return run_call("dropout_mask", &plan->mask, device, work, params, NULL, stream);
}
