/* SPDX-License-Identifier: MIT
 *
 * A plan: everything decided about one problem class, immutable from its creation on. */
#ifndef STW_DISPATCH_PLAN_H
#define STW_DISPATCH_PLAN_H

#include "attn_problem.h"
#include "context.h"
#include "jagged_problem.h"

#include <stdatomic.h>

/* The jagged part of a plan. */
typedef struct stw_jagged_plan {
    stw_jagged_work work;
    stw_jagged_desc desc; /* checked, defaults resolved; attn null                             */
    stw_plan *attn;       /* ATTENTION: the plan of the packed problem                         */
    size_t lengths_size;  /* ATTENTION: bytes of int32 offsets in front of attn's workspace    */
} stw_jagged_plan;

struct stw_plan {
    stw_context *context;
    stw_attn_work work;      /* jagged: its kind and workspace_size alone            */
    stw_attn_desc desc;      /* checked, defaults resolved: for the log and describe */
    char why[512];           /* the rule that chose the variant                      */
    char passed[256];        /* why none of the arch's own variants runs it, or ""   */
    atomic_int told;         /* a call of unaligned_variant has been logged          */
    stw_jagged_plan *jagged; /* null: a plan of attention                       */
};

/* What the descriptor decides of a plan's work, and no other member: kind, params (deterministic: the
 * descriptor, else the environment), scale, softcap, stages. `checked`: by stw_attn_check. */
void stw_plan_shape(const stw_context *context, const stw_attn_desc *checked, stw_plan_kind kind,
                    stw_attn_work *shape_out);

/* Selects and prepares, without logging. `params`: shape->params, or the largest of their class. The plan
 * holds no reference to the context; freed with stw_plan_free. `why_all`: as below. */
stw_status stw_plan_make(stw_context *context, const stw_attn_desc *checked, const stw_attn_work *shape,
                         const stw_attn_params *params, stw_text *why_all, stw_plan **plan_out);
void stw_plan_free(stw_plan *plan); /* NULL is fine */
void stw_plan_log(const stw_plan *plan);

/* Checks, selects and prepares on an opened context, without logging. `features`: STW_FEAT_* that no descriptor has.
 * `why_all` (optional) gets a line for every rule that was passed over. Shared by the plan calls and explain. */
stw_status stw_plan_build(stw_context *context, const stw_attn_desc *desc, stw_plan_kind kind, uint32_t features,
                          stw_text *why_all, stw_plan **plan_out);

/* The same for a jagged operation (jagged_bwd.c). */
stw_status stw_jagged_plan_build(stw_context *context, const stw_jagged_desc *desc, stw_plan **plan_out);
void stw_jagged_plan_text(const stw_plan *plan, stw_text *text);

/* Moves *workspace up to its first multiple of STW_WORKSPACE_ALIGNMENT. Refuses one that is missing, or too
 * small from there on: STW_E_WORKSPACE. */
stw_status stw_plan_place_workspace(const char *who, const stw_plan *plan, void **workspace, size_t size);

/* Bytes of workspace that a call divides: copies of inputs, then the backend's own. */
static inline size_t stw_plan_bytes(const stw_plan *plan) { return plan->work.stage_size + plan->work.workspace_size; }

/* Runs a bound call of a plan of attention on a workspace that has been placed. (attn_run.c) */
stw_status stw_plan_run(const stw_plan *plan, const stw_attn_params *params, void *workspace, stw_stream stream,
                        uint32_t cpu_threads);

/* The names in a run call's texts. */
typedef struct stw_call_names {
    const char *call, *args; /* "attn_bwd", "attn_bwd: args" */
} stw_call_names;

/* Runs a plan of attention with the arguments of one call. `shape`: plan->work.params, or those of a call of
 * the plan's class. */
stw_status stw_plan_call(const stw_call_names *names, const stw_plan *plan, const stw_attn_params *shape,
                         const stw_attn_args *args, void *workspace, size_t workspace_size, stw_stream stream);

/* After a call: the plan's first one that its pointers sent to unaligned_variant is a line of the log. */
void stw_plan_note_call(const stw_plan *plan, const stw_attn_params *params);

/* 1: calls give the same bits run after run. */
int stw_plan_gives_same_bits(const stw_plan *plan);

/* The text of stw_plan_describe. */
void stw_plan_text(const stw_plan *plan, stw_text *text);

#endif
