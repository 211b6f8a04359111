/* SPDX-License-Identifier: MIT
 *
 * The run calls: bind the call's pointers to the plan's parameter block and hand it to the backend. The first
 * of three layers: here -> the backend's attn_bwd -> its kernel. No lock, allocation, environment read or
 * synchronisation here. */
#include "plan.h"

#include "common/extend.h"

stw_status stw_plan_place_workspace(const char *who, const stw_plan *plan, void **workspace, size_t size) {
    size_t needed = stw_plan_bytes(plan), skipped = -(uintptr_t)*workspace % STW_WORKSPACE_ALIGNMENT;
    if (!needed) return STW_OK;
    if (!*workspace)
        return stw_fail(STW_E_WORKSPACE, "%s: workspace is null, but the plan needs %zu bytes", who,
                        stw_plan_workspace_size(plan));
    if (size < skipped || size - skipped < needed)
        return stw_fail(STW_E_WORKSPACE,
                        "%s: workspace_size %zu at %p is below the %zu bytes needed there: the %zu bytes of "
                        "stw_plan_workspace_size suffice anywhere",
                        who, size, *workspace, needed + skipped, stw_plan_workspace_size(plan));
    *workspace = (char *)*workspace + skipped;
    return STW_OK;
}

stw_status stw_plan_run(const stw_plan *plan, const stw_attn_params *params, void *workspace, stw_stream stream,
                        uint32_t cpu_threads) {
    const stw_backend_ops *ops = plan->context->ops;
    const stw_device *device = &plan->context->device;
    stw_attn_params bound = *params;
    char *rest = workspace;
    if (plan->work.stage_count) {
        stw_attn_stage stages[STW_STAGES_MAX];
        uint32_t count = stw_attn_stages_bind(&plan->work, params, workspace, stages);
        stw_status status = ops->stage(device, &plan->work, params, stages, count, workspace, stream, cpu_threads);
        if (status) return status;
        for (uint32_t i = 0; i < count; ++i)
            stw_tensor_param_of(&bound, &stw_tensor_rows[stages[i].tensor])->data = stages[i].to;
        rest += plan->work.stage_size;
    }
    if (!plan->work.workspace_size) rest = NULL;
    if (plan->work.kind == STW_PLAN_ATTN_FWD)
        return ops->attn_fwd(device, &plan->work, &bound, rest, stream, cpu_threads);
    stw_status status = ops->attn_bwd(device, &plan->work, &bound, rest, stream, cpu_threads);
    if (!status) stw_plan_note_call(plan, &bound);
    return status;
}

stw_status stw_plan_call(const stw_call_names *names, const stw_plan *plan, const stw_attn_params *shape,
                         const stw_attn_args *args, void *workspace, size_t workspace_size, stw_stream stream) {
    stw_attn_args full;
    stw_attn_params params;
    stw_status status = stw_extend(names->args, args, &full, sizeof full, STW_SIZE_ATTN_ARGS_0_1);
    if (!status) status = stw_attn_params_bind(shape, plan->work.kind, &full, &params);
    if (!status) status = stw_plan_place_workspace(names->call, plan, &workspace, workspace_size);
    if (!status)
        status = stw_attn_check_workspace(names->call, &params, plan->work.kind, workspace, stw_plan_bytes(plan));
    if (status) return status;
    return stw_plan_run(plan, &params, workspace, stream, (uint32_t)full.cpu_threads);
}

static stw_status run_plan(const stw_call_names *names, stw_plan_kind kind, const stw_plan *plan,
                           const stw_attn_args *args, void *workspace, size_t workspace_size, stw_stream stream) {
    if (!plan) return stw_fail(STW_E_INVALID, "%s: plan is null", names->call);
    if (plan->work.kind != kind)
        return stw_fail(STW_E_INVALID, "%s: the plan was made by stw_%s_plan", names->call,
                        stw_plan_kind_name(plan->work.kind));
    return stw_plan_call(names, plan, &plan->work.params, args, workspace, workspace_size, stream);
}

stw_status stw_attn_bwd(const stw_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                        stw_stream stream) {
    static const stw_call_names names = {"attn_bwd", "attn_bwd: args"};
    return run_plan(&names, STW_PLAN_ATTN_BWD, plan, args, workspace, workspace_size, stream);
}

stw_status stw_attn_fwd(const stw_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                        stw_stream stream) {
    static const stw_call_names names = {"attn_fwd", "attn_fwd: args"};
    return run_plan(&names, STW_PLAN_ATTN_FWD, plan, args, workspace, workspace_size, stream);
}

stw_status stw_dropout_mask(const stw_plan *plan, const stw_attn_args *args, uint8_t *mask, stw_stream stream) {
    stw_attn_args full;
    if (!plan) return stw_fail(STW_E_INVALID, "dropout_mask: plan is null");
    if (plan->jagged) return stw_fail(STW_E_INVALID, "dropout_mask: the plan was made by stw_jagged_bwd_plan");
    stw_status status = stw_extend("dropout_mask: args", args, &full, sizeof full, STW_SIZE_ATTN_ARGS_0_1);
    if (status) return status;
    stw_attn_params params = plan->work.params;
    int64_t heads = params.batch * params.heads_q, elements;
    if (__builtin_mul_overflow(params.max_seq_q * params.max_seq_kv, heads, &elements))
        return stw_fail(STW_E_INVALID,
                        "dropout_mask: a mask of batch %lld, heads %lld, %lld x %lld has more than 2^63 "
                        "elements",
                        (long long)params.batch, (long long)params.heads_q, (long long)params.max_seq_q,
                        (long long)params.max_seq_kv);
    if (elements && !mask) return stw_fail(STW_E_INVALID, "dropout_mask: mask is null");
    status = stw_attn_params_bind_positions(&plan->work.params, &full, &params);
    if (status) return status;
    params.mask_out = mask;
    return plan->context->ops->dropout_mask(&plan->context->device, &plan->work, &params, stream,
                                            (uint32_t)full.cpu_threads);
}
