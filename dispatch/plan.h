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

/* Checks, selects and prepares on an opened context, without logging. `why_all` (optional)
 * gets a line for every rule that was passed over. Shared by the plan calls and explain. */
stw_status stw_plan_build(stw_context *context, const stw_attn_desc *desc, stw_plan_kind kind,
                          stw_text *why_all, stw_plan **plan_out);

/* The same for a jagged operation (jagged_bwd.c). */
stw_status stw_jagged_plan_build(stw_context *context, const stw_jagged_desc *desc, stw_plan **plan_out);
void stw_jagged_plan_text(const stw_plan *plan, stw_text *text);

/* Refuses a workspace that is missing, too small or misaligned: STW_E_WORKSPACE. */
stw_status stw_plan_check_workspace(const char *who, const stw_plan *plan, const void *workspace,
                                    size_t size);

/* After a call: the plan's first one that its pointers sent to unaligned_variant is a line of the log. */
void stw_plan_note_call(const stw_plan *plan, const stw_attn_params *params);

/* The text of stw_plan_describe. */
void stw_plan_text(const stw_plan *plan, stw_text *text);

#endif
