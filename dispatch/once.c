/* SPDX-License-Identifier: MIT
 *
 * Calls without a plan of the caller's: the context keeps one a class (plan_cache.h). The descriptor is
 * checked at every call, the kernels are chosen at the first of a class. Sizes of packed sides differ from
 * step to step, so a class holds all sizes that rules and kernels treat alike (common/size_class.h); a call
 * runs with its own. No lock or allocation where the class has been met. */
#include "plan.h"

#include "common/extend.h"
#include "common/size_class.h"

#include <string.h>

/* One call that looks for its plan. */
typedef struct once {
    stw_plan_kind kind;
    const char *call, *desc_name;
    stw_context *context;
    stw_attn_desc desc;  /* checked, defaults resolved         */
    stw_attn_work shape; /* of this call's own sizes           */
    stw_plan_slot *slot; /* NULL: the plan is this call's own  */
    stw_plan *plan;
} once;

/* The largest size of the class of `size`, `times` of which are what the rules ask for. */
static int64_t class_size(const stw_rules *rules, int fact, int64_t size, int64_t times) {
    int64_t largest = stw_size_class(size);
    return largest == size ? size : stw_rules_reach(rules, fact, size * times, largest * times) / times;
}

/* A layout of heads one after the other, each of all rows, stays one. Rows off 16 bytes may lie on them in
 * another size, which kernels are chosen by. */
static void class_head(stw_tensor_param *tensor, int64_t total, int64_t largest) {
    if (tensor->head == total * tensor->seq && tensor->seq % 8 == 0) tensor->head = largest * tensor->seq;
}

/* Nothing but addresses comes of these strides, except that a batch stride says how rows are numbered. */
static void class_rows(stw_tensor_param *tensor) {
    tensor->head = 0;
    tensor->batch = tensor->batch != 0;
}

/* Kernels are chosen by which of a bias's strides are 0, and by that of its keys. */
static void class_bias(stw_bias_param *bias) {
    bias->batch = bias->batch != 0;
    bias->head = bias->head != 0;
    bias->query = bias->query != 0;
}

/* Kernels and workspace depend only on which strides are 0: a GPU makes a list a head of the mask. */
static void class_masks(stw_attn_params *p) {
    p->intervals.batch = p->intervals.batch != 0;
    p->intervals.head = p->intervals.head != 0;
    p->intervals.key = p->intervals.bound = 0;
    p->block_mask.batch = p->block_mask.batch != 0;
    p->block_mask.head = p->block_mask.head != 0;
    p->block_mask.query = p->block_mask.key = 0;
}

static void class_queries(const stw_rules *rules, stw_attn_params *p) {
    int64_t total = p->total_q;
    p->total_q = stw_size_class(total);
    p->max_seq_q = class_size(rules, STW_FACT_seq_q, p->max_seq_q, 1);
    stw_tensor_param *const tensors[] = {&p->q, &p->out, &p->dout, &p->dq};
    for (int i = 0; i < 4; ++i) class_head(tensors[i], total, p->total_q);
    class_rows(&p->lse);
    class_rows(&p->dlse);
    class_rows(&p->delta);
}

static void class_keys(const stw_rules *rules, stw_attn_params *p) {
    int64_t total = p->total_kv;
    p->total_kv = stw_size_class(total);
    p->max_seq_kv = class_size(rules, STW_FACT_seq_kv, p->max_seq_kv, 1);
    stw_tensor_param *const tensors[] = {&p->k, &p->v, &p->dk, &p->dv};
    for (int i = 0; i < 4; ++i) class_head(tensors[i], total, p->total_kv);
}

static void class_of(const once *c, stw_plan_class *class) {
    const stw_rules *rules = &c->context->rules;
    stw_attn_params *p = &class->params;
    class->shape = &c->shape;
    *p = c->shape.params;
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0, packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    if (c->shape.stage_count) packed_q = packed_kv = 0; /* copies are made for exact sizes */
    if (packed_q) class_queries(rules, p);
    if (packed_kv) class_keys(rules, p);
    if (packed_q || packed_kv) {
        class_bias(&p->bias);
        class_bias(&p->dbias);
        class_masks(p);
    }
    if (packed_q && packed_kv) p->batch = class_size(rules, STW_FACT_batch_heads, p->batch, p->heads_q);
    stw_plan_class_seal(class);
}

/* A plan for the class, kept where there is a slot for it. */
static stw_status make_plan(once *c, const stw_plan_class *class) {
    stw_plan_cache *plans = &c->context->plans;
    stw_status status = stw_plan_make(c->context, &c->desc, &c->shape, &class->params, NULL, &c->plan);
    if (status) return status;
    stw_plan_log(c->plan);
    c->slot = stw_plan_cache_take(plans, class); /* another thread may have been faster */
    if (c->slot) {
        stw_plan_free(c->plan);
        c->plan = c->slot->plan;
    } else {
        c->slot = stw_plan_cache_keep(plans, class, c->plan);
    }
    return STW_OK;
}

static stw_status begin(once *c, stw_context *context, const stw_attn_desc *desc) {
    stw_plan_class class;
    if (!context) return stw_fail(STW_E_INVALID, "%s: context is null", c->call);
    c->context = context;
    stw_status status = stw_extend(c->desc_name, desc, &c->desc, sizeof c->desc, STW_SIZE_ATTN_DESC_0_1);
    if (!status) status = stw_attn_check(&c->desc, c->kind);
    if (status) return status;
    stw_plan_shape(context, &c->desc, c->kind, &c->shape);
    class_of(c, &class);
    c->slot = stw_plan_cache_take(&context->plans, &class);
    if (!c->slot) return make_plan(c, &class);
    c->plan = c->slot->plan;
    return STW_OK;
}

static void end(once *c) {
    if (c->slot) stw_plan_cache_give(c->slot);
    else stw_plan_free(c->plan);
}

static stw_status run(once *c, const char *args_name, stw_context *context, const stw_attn_desc *desc,
                      const stw_attn_args *args, void *workspace, size_t workspace_size, stw_stream stream) {
    const stw_call_names names = {c->call, args_name};
    stw_status status = begin(c, context, desc);
    if (status) return status;
    status = stw_plan_call(&names, c->plan, &c->shape.params, args, workspace, workspace_size, stream);
    end(c);
    return status;
}

static stw_status ask_workspace(once *c, stw_context *context, const stw_attn_desc *desc, size_t *size_out) {
    if (!size_out) return stw_fail(STW_E_INVALID, "%s: size_out is null", c->call);
    stw_status status = begin(c, context, desc);
    if (status) return status;
    *size_out = stw_plan_workspace_size(c->plan);
    end(c);
    return STW_OK;
}

#define ONCE(op, kind_of_op, name) {.kind = kind_of_op, .call = #op name, .desc_name = #op name ": desc"}

stw_status stw_attn_bwd_once(stw_context *context, const stw_attn_desc *desc, const stw_attn_args *args,
                             void *workspace, size_t workspace_size, stw_stream stream) {
    once c = ONCE(attn_bwd, STW_PLAN_ATTN_BWD, "_once");
    return run(&c, "attn_bwd_once: args", context, desc, args, workspace, workspace_size, stream);
}

stw_status stw_attn_bwd_once_workspace(stw_context *context, const stw_attn_desc *desc, size_t *size_out) {
    once c = ONCE(attn_bwd, STW_PLAN_ATTN_BWD, "_once_workspace");
    return ask_workspace(&c, context, desc, size_out);
}

stw_status stw_attn_fwd_once(stw_context *context, const stw_attn_desc *desc, const stw_attn_args *args,
                             void *workspace, size_t workspace_size, stw_stream stream) {
    once c = ONCE(attn_fwd, STW_PLAN_ATTN_FWD, "_once");
    return run(&c, "attn_fwd_once: args", context, desc, args, workspace, workspace_size, stream);
}

stw_status stw_attn_fwd_once_workspace(stw_context *context, const stw_attn_desc *desc, size_t *size_out) {
    once c = ONCE(attn_fwd, STW_PLAN_ATTN_FWD, "_once_workspace");
    return ask_workspace(&c, context, desc, size_out);
}
