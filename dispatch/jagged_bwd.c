/* SPDX-License-Identifier: MIT
 *
 * Plans and run calls of jagged operations. A run: bind the call's pointers to the plan's parameter block and
 * hand it to the backend; attention converts its offsets and goes on as the packed problem that it is. No
 * lock, allocation, environment read or synchronisation on the run path. */
#include "plan.h"

#include "common/extend.h"
#include "common/log.h"
#include "common/problem_jagged.h"

#include <stdlib.h>

static size_t aligned(size_t bytes) {
    return (bytes + STW_WORKSPACE_ALIGNMENT - 1) / STW_WORKSPACE_ALIGNMENT * STW_WORKSPACE_ALIGNMENT;
}

/* ---- plan ---- */

static stw_status prepare(stw_context *context, stw_jagged_work *work) {
    if (!context->ops->jagged_prepare)
        return stw_fail(STW_E_UNSUPPORTED, "jagged_bwd_plan: backend %s has no jagged operations",
                        stw_backend_name(context->ops->backend));
    work->forced_variant = context->env.variant;
    work->deterministic = context->env.deterministic != STW_ENV_DET_OFF;
    return context->ops->jagged_prepare(&context->device, work);
}

/* The packed problem behind nested q, k, v. */
static stw_status plan_attention(stw_context *context, const stw_jagged_desc *desc, stw_jagged_plan *plan) {
    stw_attn_desc attn;
    stw_status status =
        stw_extend("jagged_bwd_plan: desc.attn", desc->attn, &attn, sizeof attn, STW_SIZE_ATTN_DESC_0_1);
    if (status) return status;
    if (attn.batch != desc->components)
        return stw_fail(STW_E_INVALID, "jagged_bwd: attn.batch %lld is not components %lld", (long long)attn.batch,
                        (long long)desc->components);
    attn.flags |= STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV; /* as nested q, k and v are */
    stw_jagged_desc with = *desc;
    with.attn = &attn;
    stw_jagged_params_fill(&with, &plan->work.params);
    if (attn.flags & STW_ATTN_HAS_USED_LENGTHS) plan->work.params.features |= STW_JFEAT_USED;
    if (desc->index_dtype == STW_I64 || !desc->components) { /* without components there may be no array */
        size_t offsets = aligned(4 * ((size_t)desc->components + 1)), used = aligned(4 * (size_t)desc->components);
        plan->lengths_size = 2 * (offsets + used);
    }
    return stw_plan_build(context, &attn, STW_PLAN_ATTN_BWD, 0, NULL, &plan->attn);
}

static stw_status plan_parts(stw_context *context, stw_jagged_plan *plan) {
    if (plan->desc.op != STW_JAGGED_ATTENTION) {
        stw_jagged_params_fill(&plan->desc, &plan->work.params);
    } else {
        stw_status status = plan_attention(context, &plan->desc, plan);
        if (status) return status;
    }
    plan->desc.attn = NULL; /* the caller's */
    return prepare(context, &plan->work);
}

stw_status stw_jagged_plan_build(stw_context *context, const stw_jagged_desc *desc, stw_plan **plan_out) {
    stw_jagged_desc checked = *desc;
    stw_status status = stw_jagged_check(&checked);
    if (status) return status;
    stw_plan *plan = calloc(1, sizeof *plan);
    stw_jagged_plan *jagged = calloc(1, sizeof *jagged);
    if (!plan || !jagged) {
        free(plan);
        free(jagged);
        return stw_fail(STW_E_NO_MEMORY, "jagged_bwd_plan: no memory");
    }
    plan->jagged = jagged;
    jagged->desc = checked;
    status = plan_parts(context, jagged);
    if (status) {
        stw_plan_destroy(jagged->attn);
        free(jagged);
        free(plan);
        return status;
    }
    plan->context = context;
    plan->work.kind = STW_PLAN_JAGGED_BWD;
    plan->work.workspace_size = jagged->work.workspace_size;
    if (jagged->attn) {
        size_t own = aligned(jagged->work.workspace_size), attn = stw_plan_bytes(jagged->attn);
        plan->work.workspace_size = jagged->lengths_size + (own > attn ? own : attn);
    }
    stw_context_retain(context);
    *plan_out = plan;
    return STW_OK;
}

static void log_plan(const stw_plan *plan) {
    if (!stw_log_enabled(STW_LOG_TRACE)) return;
    char problem[512];
    stw_problem_jagged_format(&plan->jagged->desc, plan->jagged->attn ? &plan->jagged->attn->desc : NULL, problem,
                              sizeof problem);
    stw_log(STW_LOG_TRACE, "plan: %s: %s %s, workspace %zu bytes", problem, plan->context->device.arch->name,
            plan->jagged->work.variant, stw_plan_workspace_size(plan));
}

stw_status stw_jagged_bwd_plan(stw_context *context, const stw_jagged_desc *desc, stw_plan **plan_out) {
    stw_jagged_desc full;
    if (!context) return stw_fail(STW_E_INVALID, "jagged_bwd_plan: context is null");
    if (!plan_out) return stw_fail(STW_E_INVALID, "jagged_bwd_plan: plan_out is null");
    stw_status status = stw_extend("jagged_bwd_plan: desc", desc, &full, sizeof full, STW_SIZE_JAGGED_DESC_0_1);
    if (!status) status = stw_jagged_plan_build(context, &full, plan_out);
    if (!status) log_plan(*plan_out);
    return status;
}

void stw_jagged_plan_text(const stw_plan *plan, stw_text *text) {
    const stw_jagged_work *work = &plan->jagged->work;
    char problem[512];
    stw_problem_jagged_format(&plan->jagged->desc, plan->jagged->attn ? &plan->jagged->attn->desc : NULL, problem,
                              sizeof problem);
    stw_text_add(text, "problem: %s\n", problem);
    stw_text_add(text, "backend: %s\narch: %s\ndevice: %s\n", stw_backend_name(plan->context->ops->backend),
                 plan->context->device.arch->name, plan->context->device.name);
    stw_text_add(text, "variant: %s\n", work->variant);
    stw_text_add(text, "workspace: %zu bytes\n", stw_plan_workspace_size(plan));
    if (work->unordered)
        stw_text_add(text, "deterministic: not promised by %s; STERNWAY_DETERMINISTIC=1 does without it\n",
                     work->unordered);
    else stw_text_add(text, "deterministic: yes\n");
    if (work->note[0]) stw_text_add(text, "note: %s\n", work->note);
    if (!plan->jagged->attn) return;
    stw_text_add(text, "packed problem:\n");
    stw_plan_text(plan->jagged->attn, text);
}

/* ---- run ---- */

static stw_status check_attention_args(const stw_jagged_args *args, const stw_attn_args *attn) {
    if (attn->cu_seqlens_q || attn->cu_seqlens_kv || attn->used_q || attn->used_kv)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.attn has cu_seqlens_* or used_*: they come from "
                                       "args.axis, accepted: null");
    if (attn->cpu_threads)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.attn has cpu_threads %d: args.cpu_threads counts, accepted: 0",
                        attn->cpu_threads);
    const struct {
        const char *name;
        const void *pointer;
    } rows[] = {{"grad", args->grad},       {"x", args->x},           {"y", args->y},
                {"other", args->other},     {"weight", args->weight}, {"mean", args->mean},
                {"rstd", args->rstd},       {"dx", args->dx},         {"dother", args->dother},
                {"dweight", args->dweight}, {"dbias", args->dbias},   {"status_out", args->status_out}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        if (rows[i].pointer)
            return stw_fail(STW_E_INVALID,
                            "jagged_bwd: args.%s is given: attention has its pointers in args.attn, accepted: "
                            "null",
                            rows[i].name);
    return STW_OK;
}

/* int32 offsets are the packed problem's own. */
static void pass_lengths(const stw_jagged_params *p, stw_attn_args *attn) {
    attn->cu_seqlens_q = p->axis[STW_AXIS_Q].offsets;
    attn->cu_seqlens_kv = p->axis[STW_AXIS_KV].offsets;
    attn->used_q = p->axis[STW_AXIS_Q].used;
    attn->used_kv = p->axis[STW_AXIS_KV].used;
}

/* Where int64 ones become int32, and where none need be given: in front of the packed problem's workspace. */
static void place_lengths(stw_jagged_params *p, char *workspace, stw_attn_args *attn) {
    size_t offsets = aligned(4 * ((size_t)p->components + 1)), used = aligned(4 * (size_t)p->components);
    for (int i = 0; i < 2; ++i) {
        p->offsets32[i] = (int32_t *)(void *)(workspace + (size_t)i * (offsets + used));
        int has_used = p->components ? p->axis[i].used != NULL : (p->features & STW_JFEAT_USED) != 0;
        p->used32[i] = has_used ? (int32_t *)(void *)((char *)p->offsets32[i] + offsets) : NULL;
    }
    attn->cu_seqlens_q = p->offsets32[STW_AXIS_Q];
    attn->cu_seqlens_kv = p->offsets32[STW_AXIS_KV];
    attn->used_q = p->used32[STW_AXIS_Q];
    attn->used_kv = p->used32[STW_AXIS_KV];
}

static stw_status run_attention(const stw_plan *plan, const stw_jagged_args *args, stw_jagged_params *params,
                                char *workspace, stw_stream stream) {
    const uint32_t cpu_threads = (uint32_t)args->cpu_threads;
    const stw_jagged_plan *jagged = plan->jagged;
    const stw_backend_ops *ops = plan->context->ops;
    stw_attn_args attn;
    stw_attn_params bound;
    stw_status status = stw_extend("jagged_bwd: args.attn", args->attn, &attn, sizeof attn, STW_SIZE_ATTN_ARGS_0_1);
    if (!status) status = check_attention_args(args, &attn);
    if (status) return status;
    if (!jagged->lengths_size) pass_lengths(params, &attn);
    else place_lengths(params, workspace, &attn);
    status = stw_attn_params_bind(&jagged->attn->work.params, STW_PLAN_ATTN_BWD, &attn, &bound);
    if (!status)
        status = stw_attn_check_workspace("jagged_bwd: args.attn", &bound, STW_PLAN_ATTN_BWD, workspace,
                                          stw_plan_bytes(plan));
    char *rest = workspace ? workspace + jagged->lengths_size : NULL;
    if (!status && jagged->lengths_size)
        status = ops->jagged_bwd(&plan->context->device, &jagged->work, params, rest, stream, cpu_threads);
    if (status) return status;
    return stw_plan_run(jagged->attn, &bound, rest, stream, cpu_threads);
}

stw_status stw_jagged_bwd(const stw_plan *plan, const stw_jagged_args *args, void *workspace, size_t workspace_size,
                          stw_stream stream) {
    stw_jagged_args full;
    stw_jagged_params params;
    if (!plan) return stw_fail(STW_E_INVALID, "jagged_bwd: plan is null");
    if (!plan->jagged)
        return stw_fail(STW_E_INVALID, "jagged_bwd: the plan was made by stw_%s_plan",
                        stw_plan_kind_name(plan->work.kind));
    stw_status status = stw_extend("jagged_bwd: args", args, &full, sizeof full, STW_SIZE_JAGGED_ARGS_0_1);
    if (!status) status = stw_check_cpu_threads("jagged_bwd", full.cpu_threads);
    if (!status) status = stw_jagged_params_bind(&plan->jagged->work.params, &full, &params);
    if (!status) status = stw_plan_place_workspace("jagged_bwd", plan, &workspace, workspace_size);
    if (status) return status;
    if (plan->jagged->attn) return run_attention(plan, &full, &params, workspace, stream);
    status = stw_jagged_check_workspace(&full, &params, workspace, stw_plan_bytes(plan));
    if (status) return status;
    return plan->context->ops->jagged_bwd(&plan->context->device, &plan->jagged->work, &params, workspace, stream,
                                          (uint32_t)full.cpu_threads);
}
