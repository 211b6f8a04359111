/* SPDX-License-Identifier: MIT
 *
 * Attention on nested q, k, v: the case of its packed problem (case.h), run through stw_jagged_bwd with the
 * offsets in int32 or int64, and judged as every attention case is. */
#include "jagged.h"

#include "tools/base/tool.h"

#include <stdlib.h>
#include <string.h>

/* Offsets and used lengths as the call takes them, in a buffer of the context; int32 ones are the arena's. */
typedef struct lengths {
    void *buffer;
    const void *offsets[2], *used[2];
} lengths;

static stw_status upload(stw_context *context, stw_stream stream, const stw_case *c, lengths *l) {
    static const stw_case_tensor tensors[4] = {STW_CASE_CU_Q, STW_CASE_CU_KV, STW_CASE_USED_Q,
                                               STW_CASE_USED_KV};
    size_t each = (size_t)c->problem.desc.batch + 1;
    int64_t *wide = calloc(4 * each, 8);
    if (!wide) return stw_fail(STW_E_NO_MEMORY, "case: no memory");
    stw_status status = stw_buffer_alloc(context, 4 * each * 8, &l->buffer);
    for (size_t t = 0; t < 4 && !status; ++t) {
        const int32_t *from = (const int32_t *)(const void *)(c->host + c->offset[tensors[t]]);
        for (size_t b = 0; c->present[tensors[t]] && b < each - (t >= 2); ++b) wide[t * each + b] = from[b];
        const void *at = (int64_t *)l->buffer + t * each;
        if (c->present[tensors[t]]) (t < 2 ? l->offsets : l->used)[t % 2] = at;
    }
    if (!status) status = stw_copy(context, l->buffer, wide, 4 * each * 8, stream);
    if (!status) status = stw_stream_synchronize(context, stream);
    free(wide);
    return status;
}

stw_status jagged_attention_args(const stw_case *c, stw_dtype index_dtype, const stw_case_device *device,
                                 stw_attn_args *attn, stw_jagged_args *args_out, void **buffer_out) {
    lengths l = {NULL, {attn->cu_seqlens_q, attn->cu_seqlens_kv}, {attn->used_q, attn->used_kv}};
    stw_status status = index_dtype == STW_I64 ? upload(device->context, device->stream, c, &l) : STW_OK;
    attn->cu_seqlens_q = attn->cu_seqlens_kv = attn->used_q = attn->used_kv = NULL;
    *args_out = STW_INIT(stw_jagged_args);
    args_out->attn = attn;
    for (int i = 0; i < 2; ++i) {
        args_out->axis[i].offsets = l.offsets[i];
        args_out->axis[i].used = l.used[i];
    }
    *buffer_out = l.buffer;
    return status;
}

static stw_status run(const stw_case *c, const stw_plan *plan, stw_dtype index_dtype, stw_case_device *device,
                      unsigned char *after, int *guards) {
    stw_attn_args attn = stw_case_args(c, device->arena);
    stw_jagged_args args;
    void *buffer = NULL;
    stw_status status = stw_case_device_load(device, c->host, 0xFF);
    if (!status) status = jagged_attention_args(c, index_dtype, device, &attn, &args, &buffer);
    if (!status)
        status = stw_jagged_bwd(plan, &args, device->workspace, device->workspace_bytes, device->stream);
    if (!status) status = stw_case_device_store(device, after, 0xFF, guards);
    if (buffer) stw_buffer_free(device->context, buffer);
    return status;
}

static void check(const stw_case *c, const stw_jagged_problem *problem, stw_context *context,
                  stw_case_result *result) {
    stw_jagged_desc desc = problem->desc;
    stw_plan *plan = NULL;
    stw_case_device device;
    int guards = 0;
    desc.attn = &c->problem.desc;
    stw_status status = stw_jagged_bwd_plan(context, &desc, &plan);
    if (status) {
        stw_case_fail(result, "stw_jagged_bwd_plan: %s: %s", stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) result->outcome = STW_CASE_SKIP;
        return;
    }
    stw_case_note_variant(plan, result);
    unsigned char *after = malloc(c->bytes);
    status = stw_case_device_open(context, c->bytes, stw_plan_workspace_size(plan), &device);
    if (status || !after) {
        stw_case_fail_buffers(result, status);
    } else {
        status = run(c, plan, desc.index_dtype, &device, after, &guards);
        if (status)
            stw_case_fail(result, "stw_jagged_bwd: %s: %s", stw_status_name(status), stw_last_error());
        else if (!guards)
            stw_case_fail(result, "memory around the workspace was written");
        else
            stw_case_check_outputs(c, after, result);
        stw_case_device_close(&device);
    }
    stw_plan_destroy(plan);
    free(after);
}

void jagged_attention_check(const stw_jagged_problem *problem, stw_context *context,
                            const stw_case_options *options, stw_case_result *result) {
    stw_problem packed = problem->attn;
    stw_case c;
    (void)options; /* the packed problem's own rows repeat it */
    packed.seed = problem->seed;
    stw_status status = stw_case_build(&packed, &c);
    if (status) {
        stw_case_fail(result, "%s", stw_tool_last_error());
        result->invalid = status == STW_E_INVALID;
        return;
    }
    check(&c, problem, context, result);
    stw_case_free(&c);
}
