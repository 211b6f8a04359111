/* SPDX-License-Identifier: MIT
 *
 * A plan: everything decided about one problem class, immutable from its creation on. */
#ifndef STW_DISPATCH_PLAN_H
#define STW_DISPATCH_PLAN_H

#include "attn_problem.h"
#include "context.h"

struct stw_plan {
    stw_context *context;
    stw_attn_work work;
    stw_attn_desc desc; /* checked, defaults resolved: for the log and describe */
    char why[512];      /* the rule that chose the variant                      */
};

/* Checks, selects and prepares on an opened context, without logging. `why_all` (optional)
 * gets a line for every rule that was passed over. Shared by the plan calls and explain. */
stw_status stw_plan_build(stw_context *context, const stw_attn_desc *desc, stw_plan_kind kind,
                          stw_text *why_all, stw_plan **plan_out);

/* The text of stw_plan_describe. */
void stw_plan_text(const stw_plan *plan, stw_text *text);

#endif
