/* SPDX-License-Identifier: MIT
 *
 * Plans of attention: check, parameter block, variant, workspace. It stands between the public plan calls and a
 * backend's attn_prepare. */
#include "plan.h"

#include "common/extend.h"
#include "common/log.h"
#include "common/problem.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)STW_PLAN_ATTN_BWD == (int)STW_PROBLEM_ATTN_BWD &&
                   (int)STW_PLAN_ATTN_FWD == (int)STW_PROBLEM_ATTN_FWD,
               "a plan's kind is its problem's op");

static int is_deterministic(const stw_attn_desc *desc, const stw_env *env) {
    if (desc->deterministic != STW_DETERMINISTIC_ENV) return desc->deterministic == STW_DETERMINISTIC_ON;
    return env->deterministic != STW_ENV_DET_OFF;
}

void stw_plan_shape(const stw_context *context, const stw_attn_desc *checked, stw_plan_kind kind,
                    stw_attn_work *shape_out) {
    shape_out->kind = kind;
    stw_attn_params_fill(checked, kind, is_deterministic(checked, &context->env), &shape_out->params);
    shape_out->params.units = context->device.compute_units;
    shape_out->scale = checked->scale_f64;
    shape_out->softcap = checked->softcap_f64;
    stw_attn_stages_plan(checked, context->ops->copies, shape_out);
}

/* The variant for calls whose tensors start anywhere, if the one chosen does not take them. Copies start as it asks. */
static void select_unaligned(stw_context *context, stw_attn_work *work) {
    char words[256];
    stw_text why = stw_text_in(words, sizeof words);
    const uint32_t asked =
        (1u << STW_TENSOR_AT_q | 1u << STW_TENSOR_AT_k | 1u << STW_TENSOR_AT_v | 1u << STW_TENSOR_AT_dout) *
        STW_FEAT_PADDED;
    if ((work->params.features & asked) == asked) return;
    work->unaligned = 1;
    if (context->ops->variant_refusal(&context->device, work, work->variant)) {
        stw_facts facts = stw_facts_of(work, &context->device);
        if (stw_select(&context->rules, &facts, context->ops, &context->device, NULL, 0, &why,
                       &work->unaligned_variant))
            work->unaligned_variant = NULL;
    }
    work->unaligned = 0;
}

stw_status stw_plan_make(stw_context *context, const stw_attn_desc *checked, const stw_attn_work *shape,
                         const stw_attn_params *params, stw_text *why_all, stw_plan **plan_out) {
    stw_plan_kind kind = shape->kind;
    if (checked->dtype == STW_F64 && !context->ops->attn_f64)
        return stw_fail(STW_E_UNSUPPORTED, "%s: dtype f64: backend %s takes f16, bf16, f32; the CPU backend takes f64",
                        stw_plan_kind_name(kind), stw_backend_name(context->ops->backend));
    stw_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return stw_fail(STW_E_NO_MEMORY, "%s_plan: no memory", stw_plan_kind_name(kind));
    plan->context = context;
    plan->desc = *checked;
    plan->work.kind = kind;
    plan->work.params = *params;
    plan->work.scale = shape->scale;
    plan->work.softcap = shape->softcap;
    plan->work.stage_count = shape->stage_count;
    plan->work.stage_size = shape->stage_size;
    memcpy(plan->work.stage, shape->stage, shape->stage_count * sizeof shape->stage[0]);
    stw_facts facts = stw_facts_of(&plan->work, &context->device);
    stw_text own = stw_text_in(plan->why, sizeof plan->why);
    stw_status status = stw_select(&context->rules, &facts, context->ops, &context->device, context->env.variant,
                                   why_all != NULL, why_all ? why_all : &own, &plan->work.variant);
    stw_text passed = stw_text_in(plan->passed, sizeof plan->passed);
    if (!status && !context->env.variant[0])
        stw_select_passed(&context->rules, &facts, context->ops, &context->device, plan->work.variant, &passed);
    if (!status) select_unaligned(context, &plan->work);
    if (!status) status = context->ops->attn_prepare(&context->device, &plan->work);
    if (status) {
        stw_plan_free(plan);
        return status;
    }
    *plan_out = plan;
    return STW_OK;
}

stw_status stw_plan_build(stw_context *context, const stw_attn_desc *desc, stw_plan_kind kind, uint32_t features,
                          stw_text *why_all, stw_plan **plan_out) {
    stw_attn_desc checked = *desc;
    stw_attn_work shape;
    stw_status status = stw_attn_check(&checked, kind);
    if (status) return status;
    stw_plan_shape(context, &checked, kind, &shape);
    shape.params.features |= features;
    status = stw_plan_make(context, &checked, &shape, &shape.params, why_all, plan_out);
    if (!status) stw_context_retain(context);
    return status;
}

/* One line for the log: the problem, replayable with `sternway bench` and `explain`, and the choice. */
void stw_plan_log(const stw_plan *plan) {
    if (!stw_log_enabled(STW_LOG_TRACE)) return;
    char problem[512];
    stw_problem_format(&plan->desc, (stw_problem_op)plan->work.kind, problem, sizeof problem);
    stw_log(STW_LOG_TRACE, "plan: %s: %s %s, workspace %zu bytes", problem, plan->context->device.arch->name,
            plan->work.variant->id, stw_plan_workspace_size(plan));
}

static stw_status plan_create(stw_context *context, const stw_attn_desc *desc, stw_plan_kind kind,
                              stw_plan **plan_out) {
    const char *who = kind == STW_PLAN_ATTN_FWD ? "attn_fwd_plan: desc" : "attn_bwd_plan: desc";
    stw_attn_desc full;
    if (!context) return stw_fail(STW_E_INVALID, "%s_plan: context is null", stw_plan_kind_name(kind));
    if (!plan_out) return stw_fail(STW_E_INVALID, "%s_plan: plan_out is null", stw_plan_kind_name(kind));
    stw_status status = stw_extend(who, desc, &full, sizeof full, STW_SIZE_ATTN_DESC_0_1);
    if (!status) status = stw_plan_build(context, &full, kind, 0, NULL, plan_out);
    if (!status) stw_plan_log(*plan_out);
    return status;
}

stw_status stw_attn_bwd_plan(stw_context *context, const stw_attn_desc *desc, stw_plan **plan_out) {
    return plan_create(context, desc, STW_PLAN_ATTN_BWD, plan_out);
}

stw_status stw_attn_fwd_plan(stw_context *context, const stw_attn_desc *desc, stw_plan **plan_out) {
    return plan_create(context, desc, STW_PLAN_ATTN_FWD, plan_out);
}

void stw_plan_free(stw_plan *plan) {
    if (!plan) return;
    if (plan->jagged) free(plan->jagged->work.own);
    free(plan->jagged);
    free(plan->work.own);
    free(plan);
}

void stw_plan_destroy(stw_plan *plan) {
    if (!plan) return;
    stw_context *context = plan->context;
    if (plan->jagged) stw_plan_destroy(plan->jagged->attn);
    stw_plan_free(plan);
    stw_context_release(context);
}

void stw_plan_note_call(const stw_plan *plan, const stw_attn_params *params) {
    const stw_attn_work *work = &plan->work;
    if (!work->unaligned_variant || !stw_log_enabled(STW_LOG_TRACE) || stw_attn_is_aligned(params)) return;
    atomic_int *told = &((stw_plan *)(uintptr_t)plan)->told;
    if (atomic_exchange(told, 1)) return;
    char problem[512];
    stw_problem_format(&plan->desc, (stw_problem_op)work->kind, problem, sizeof problem);
    if (!stw_log_try(STW_LOG_TRACE, "call: %s: %s, not %s: q %p, k %p, v %p or dout %p is no multiple of 16 bytes",
                     problem, work->unaligned_variant->id, work->variant->id, params->q.data, params->k.data,
                     params->v.data, params->dout.data))
        atomic_store(told, 0);
}

size_t stw_plan_workspace_size(const stw_plan *plan) {
    size_t bytes = plan ? stw_plan_bytes(plan) : 0;
    return bytes ? bytes + STW_WORKSPACE_ALIGNMENT - 1 : 0;
}

int stw_plan_gives_same_bits(const stw_plan *plan) {
    return plan->context->ops->backend == STW_BACKEND_CPU || plan->work.params.features & STW_FEAT_DETERMINISTIC;
}

void stw_plan_text(const stw_plan *plan, stw_text *text) {
    const stw_attn_work *work = &plan->work;
    const stw_variant *variant = work->variant;
    char problem[512];
    stw_problem_format(&plan->desc, (stw_problem_op)work->kind, problem, sizeof problem);
    stw_text_add(text, "problem: %s\n", problem);
    stw_text_add(text, "backend: %s\narch: %s\ndevice: %s\n", stw_backend_name(plan->context->ops->backend),
                 plan->context->device.arch->name, plan->context->device.name);
    stw_text_add(text, "variant: %s\ntile: %ux%u, loop %s\n", variant->id, work->bm, work->bn, variant->loop->name);
    stw_text_add(text, "why: %s", plan->why[0] ? plan->why : "the rules below, in order\n");
    stw_text_add(text, "workspace: %zu bytes\n", stw_plan_workspace_size(plan));
    stw_text_add(text, "deterministic: %s\n",
                 plan->context->ops->backend == STW_BACKEND_CPU   ? "yes, always"
                 : work->params.features & STW_FEAT_DETERMINISTIC ? "yes"
                                                                  : "not asked for");
    stw_text_add(text, "costs more: ");
    if (plan->passed[0]) stw_text_add(text, "%s\n", plan->passed);
    else if (work->slower) stw_text_add(text, "%s: not the fastest kernels of %s\n", work->slower, variant->id);
    else if (work->unaligned_variant)
        stw_text_add(text, "q, k, v or dout that start at no multiple of 16 bytes: %s\n", work->unaligned_variant->id);
    else stw_text_add(text, "nothing\n");
    for (uint32_t i = 0; i < work->stage_count; ++i)
        stw_text_add(text, "%s%s", i ? ", " : "copied: ", stw_tensor_rows[work->stage[i].tensor].name);
    if (work->stage_count)
        stw_text_add(text, " to contiguous rows of the workspace, at multiples of 16 bytes, first\n");
    if (work->note[0]) stw_text_add(text, "note: %s\n", work->note);
}
