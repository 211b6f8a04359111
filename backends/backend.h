/* SPDX-License-Identifier: MIT
 *
 * What a backend is to the dispatcher, and all a backend sees of it: a table of functions over one opened
 * device. dispatch/backends.c lists the tables. Backends never include each other or a header of
 * dispatch. A failing function has called stw_fail and changed nothing. */
#ifndef STW_BACKEND_H
#define STW_BACKEND_H

#include "common/arch.h"
#include "common/env.h"
#include "common/params/attn_bwd.h"
#include "common/params/attn_stage.h"
#include "common/params/cp.h"
#include "common/params/jagged.h"
#include "common/status.h"
#include "sternway/sternway.h"

#define STW_CPU_THREADS_MAX 1024 /* of a context and of a call */

/* A main loop: what a variant's kernels are built on. Its row is in one file of its backend; here it has a name. */
typedef struct stw_attn_loop {
    const char *name;               /* as tuning tables spell it                            */
    const struct stw_gpu_loop *gpu; /* its host side (backends/gpu/attn_tiled.h), or NULL   */
    const struct stw_cpu_loop *cpu; /* its instruction set (backends/cpu/cpu.h), or NULL    */
} stw_attn_loop;

/* One kernel variant: a VARIANT row of a tuning table. Columns: common/tuning/README.md. */
typedef struct stw_variant {
    const char *id;
    uint32_t head_dim; /* largest max(head_dim_qk, head_dim_v) it takes */
    uint32_t bm, bn;   /* tile: query rows, keys                        */
    uint32_t stages, warps, smem_kb;
    const stw_attn_loop *loop; /* main loop (CPU: instruction set)      */
    int own; /* of the arch itself, whose name its id begins with, not taken over from another's table */
} stw_variant;

/* What to open. */
typedef struct stw_open_request {
    const stw_env *env;
    int32_t device;          /* ordinal                                         */
    const char *forced_arch; /* NULL: the device's own                          */
    int32_t cpu_threads;     /* 0 = default                                     */
} stw_open_request;

/* An opened device; `state` is the backend's own. Filled by open. */
typedef struct stw_device {
    const stw_arch *arch; /* whose kernels and tables are used                */
    char name[96];
    uint32_t compute_units; /* SMs, CUs, CPU threads                            */
    uint32_t smem_max;      /* bytes of shared memory a CTA can have; 0 on the CPU */
    uint64_t memory_bytes;
    void *state;
} stw_device;

/* A part of a problem over ranks on the CPU: its intervals have been checked (cp_intervals), and their bounds may lie
 * past the part's own rows. All bits of params.features are taken: this is one that only parts on GPUs have. */
#define STW_FEAT_CHECKED_INTERVALS STW_FEAT_KEPT_STATS

typedef enum stw_plan_kind { STW_PLAN_ATTN_BWD = 1, STW_PLAN_ATTN_FWD = 2, STW_PLAN_JAGGED_BWD = 3 } stw_plan_kind;

/* Where a backend's workspace starts, in bytes. */
#define STW_WORKSPACE_ALIGNMENT 256

/* Bits of stw_backend_ops.copies. */
#define STW_COPY_SPREADS 1u /* rows that are one in memory become as many ones         */
#define STW_COPY_ALIGNS  2u /* rows that are no whole vectors of 16 bytes, where it pays */

/* What dispatch has decided about a problem and a backend adds to: the backend part of a plan. */
typedef struct stw_attn_work {
    stw_plan_kind kind;
    stw_attn_params params;     /* shape part filled, pointers null             */
    double scale, softcap;      /* of an f64 problem, which params' floats cannot hold */
    const stw_variant *variant; /* of the arch's table, usable on this device   */
    size_t workspace_size;      /* set by attn_prepare, for a workspace at a multiple of 256 */
    char note[384];             /* set by attn_prepare: a line for stw_plan_describe, or "" */
    const char *slower;         /* set by attn_prepare: what the fastest kernels do not take */
    uint32_t bm, bn;            /* set by attn_prepare: the main loop's tile, which may not be the variant's */
    /* Set by attn_prepare, where the backward sums dQ in its workspace, else 0: rows of a block of these sums, columns,
     * and two numbers of their order. Calls for which all four are the same can share sums (STW_FEAT_KEPT_DQ). */
    uint32_t dq_order[4];
    /* Set with it: numbers of a block of statistics, and their form. Calls that share sums and have the same of these
     * two can share statistics as well (STW_FEAT_KEPT_STATS). dq_place: where sums lie in the workspace, in bytes;
     * statistics lie at its start. */
    uint32_t stats_order[2];
    size_t dq_place;
    void *own; /* set by attn_prepare: the backend's, NULL or one block of malloc that the plan frees */
    /* Where `variant` takes only tensors that start at multiples of 16 bytes, which a plan cannot know: what
     * a call with others runs; else NULL. `unaligned` is 1 while that one is looked for. */
    const stw_variant *unaligned_variant;
    int unaligned;
    /* Inputs that are copied to contiguous rows before attn_bwd or attn_fwd, whose params then have the
     * copies' strides; `from` null, `to` counted from the copies' start, sizes of their own workspace. */
    stw_attn_stage stage[STW_STAGES_MAX];
    uint32_t stage_count;
    size_t stage_size; /* bytes, a multiple of 256; not in workspace_size */
} stw_attn_work;

/* Of a call: the tensors that `unaligned_variant` is about start at multiples of 16 bytes. */
static inline int stw_attn_is_aligned(const stw_attn_params *p) {
    uintptr_t all = (uintptr_t)p->q.data | (uintptr_t)p->k.data | (uintptr_t)p->v.data | (uintptr_t)p->dout.data;
    return all % 16 == 0;
}

/* The same for a jagged operation. Checked: sizes, element types that any backend could take. */
typedef struct stw_jagged_work {
    stw_jagged_params params;   /* shape part filled, pointers null                            */
    const char *forced_variant; /* STERNWAY_VARIANT, or NULL or ""; read by jagged_prepare, as is: */
    int deterministic;          /* STERNWAY_DETERMINISTIC is 1 or warn                         */
    size_t workspace_size;      /* set by jagged_prepare, as are: */
    char variant[96];           /* which kernels, in a word or two: "pointwise 256x4"          */
    char note[320];             /* a line for stw_plan_describe, or ""                         */
    const char *unordered;      /* a library that promises no order of additions, or NULL      */
    const stw_attn_loop *loop;  /* the CPU's instruction set                                   */
    void *own;                  /* the backend's, NULL or one block of malloc that the plan frees */
} stw_jagged_work;

/* What a plan over ranks has of a device beside its plans of attention. */
typedef struct stw_cp_side {
    stw_stream stream;     /* for what is sent; null on the CPU: the caller's        */
    void *event[2];        /* of cp_order                                            */
    const void *kernel[2]; /* of cp_cast and cp_merge                                */
} stw_cp_side;

typedef struct stw_backend_ops {
    stw_backend backend;
    int attn_f64;    /* attention takes f64: dispatch refuses it elsewhere             */
    unsigned copies; /* STW_COPY_*: which inputs are copied first, beside those whose head dim is strided */

    stw_status (*open)(const stw_open_request *request, stw_device *device_out);
    void (*close)(stw_device *device);

    /* NULL when `variant` can run this problem (kind and params of `work`) on this device, else the reason
     * (static storage). */
    const char *(*variant_refusal)(const stw_device *device, const stw_attn_work *work, const stw_variant *variant);

    /* Fills workspace_size, note and own. Errors: STW_E_UNSUPPORTED with the reason. */
    stw_status (*attn_prepare)(const stw_device *device, stw_attn_work *work);
    /* `params` = work->params with the call's pointers. workspace holds workspace_size bytes from a multiple
     * of 256 on. On the CPU at most cpu_threads threads work on a call, 0: all of the device's; nothing else
     * depends on it. */
    stw_status (*attn_bwd)(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                           void *workspace, stw_stream stream, uint32_t cpu_threads);
    stw_status (*attn_fwd)(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                           void *workspace, stw_stream stream, uint32_t cpu_threads);
    /* Refuses what attn_bwd would of `params`, which has the caller's tensors; then copies (stages may be
     * none). Called before attn_bwd or attn_fwd where work has stages. `workspace`: where the copies are. */
    stw_status (*stage)(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                        const stw_attn_stage *stages, uint32_t count, void *workspace, stw_stream stream,
                        uint32_t cpu_threads);
    stw_status (*dropout_mask)(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                               stw_stream stream, uint32_t cpu_threads);

    /* Jagged operations; null: this backend has none. prepare chooses kernels, fills variant, workspace_size,
     * note and own; errors: STW_E_UNSUPPORTED with the reason (an element type that only the CPU has).
     * `params` of the run = work->params with the call's pointers; the backend puts the clean lengths of
     * every ragged axis (common/params/jagged.h) into the workspace first. STW_JAGGED_ATTENTION: the run only
     * converts offsets and used lengths of axes 0 and 1 to int32, as they are but saturated, into
     * params->offsets32 and used32 (those that are not null); dispatch then calls attn_bwd. */
    stw_status (*jagged_prepare)(const stw_device *device, stw_jagged_work *work);
    stw_status (*jagged_bwd)(const stw_device *device, const stw_jagged_work *work, const stw_jagged_params *params,
                             void *workspace, stw_stream stream, uint32_t cpu_threads);

    /* Attention over ranks (dispatch/cp.h). cp_open at plan time; cp_close takes what it left, also after a failure.
     * cp_check refuses what attn_bwd or attn_fwd would of a call's tensors, cp_intervals what they would of the bounds
     * of a dense batch whose sequences are numbered from `sequence` on; null: bounds cannot be read. cp_order: what
     * `after` gets from now on comes after what `before` has got; `joins`: from the side's stream back to the
     * caller's. Nothing but cp_open and cp_close allocates or waits. */
    stw_status (*cp_open)(const stw_device *device, stw_cp_side *side_out);
    void (*cp_close)(const stw_device *device, stw_cp_side *side);
    stw_status (*cp_check)(const stw_device *device, const char *who, stw_plan_kind kind, const stw_attn_params *params,
                           const void *workspace, stw_stream stream);
    stw_status (*cp_intervals)(const char *who, const stw_attn_params *params, int64_t sequence);
    stw_status (*cp_cast)(const stw_device *device, const stw_cp_side *side, const stw_cp_cast *cast,
                          stw_stream stream);
    stw_status (*cp_merge)(const stw_device *device, const stw_cp_side *side, const stw_cp_merge *merge,
                           stw_stream stream);
    stw_status (*cp_order)(const stw_device *device, const stw_cp_side *side, int joins, stw_stream before,
                           stw_stream after);

    stw_status (*buffer_alloc)(const stw_device *device, size_t bytes, void **pointer_out);
    stw_status (*buffer_free)(const stw_device *device, void *pointer);
    stw_status (*copy)(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream stream);
    stw_status (*stream_create)(const stw_device *device, stw_stream *stream_out);
    stw_status (*stream_synchronize)(const stw_device *device, stw_stream stream);
    stw_status (*stream_destroy)(const stw_device *device, stw_stream stream);
} stw_backend_ops;

extern const stw_backend_ops stw_cpu_backend;
extern const stw_backend_ops stw_cuda_backend;
extern const stw_backend_ops stw_hip_backend;

#endif
