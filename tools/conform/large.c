/* SPDX-License-Identifier: MIT
 *
 * `conform --large`: indices beyond 32 bits. Two kinds of problems:
 * - far apart: small problems whose strides reach over more than 2^31 elements. Their rows are copied to and
 *   from a compact twin that the reference judges; on the CPU the space between is never touched;
 * - filled: tensors of more than 2^31 elements, verified on rows and keys (filled.c).
 * What does not fit into memory is skipped by name. Called by run.c. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/dtype.h"
#include "common/params/attn_hidden.h"
#include "tools/problem/jagged.h"

#define FAR (INT64_C(1) << 31)

/* ---- the list --------------------------------------------------------------------------------------------
 */

/* The far dimension is batch (0), head (1) or sequence (2); the others lie within the gap that it leaves. */
static void spread(stw_attn_strides *s, int which) {
    if (which == 0) s->batch = FAR + 11;
    else if (which == 1) *s = (stw_attn_strides){.batch = 65536, .head = FAR + 12, .seq = 256};
    else *s = (stw_attn_strides){.batch = 4096, .head = 256, .seq = FAR / 32 + 9};
}

/* Likewise what masks in memory have: `which` 2 is a key's bounds, and blocks of keys of a block mask. */
static void spread_masks(stw_attn_desc *d, int which) {
    if (d->interval_form) {
        const stw_interval_strides far[] = {{FAR + 11, 1024, 8, 1}, {2048, FAR + 12, 8, 1}, {64, 8, FAR / 32 + 9, 2}};
        d->intervals = far[which];
    }
    if (d->flags & STW_ATTN_BLOCK_MASK) {
        const stw_block_mask_strides far[] = {{FAR + 11, 64, 8, 1}, {128, FAR + 12, 8, 1}, {64, 8, 1, FAR + 13}};
        d->block_mask = far[which];
    }
}

static int add_far(conform_list *list, const char *line, int which, int bias) {
    stw_problem p;
    char text[CONFORM_LINE_MAX];
    if (stw_problem_parse(line, &p)) return 0;
    stw_attn_strides *rows[] = {&p.desc.q,  &p.desc.k,  &p.desc.v,   &p.desc.out,  &p.desc.dout, &p.desc.dq,
                                &p.desc.dk, &p.desc.dv, &p.desc.lse, &p.desc.dlse, &p.desc.delta};
    /* two blocks of keys have so many that they would not fit, far apart as well */
    const int near = which == 2 && p.desc.flags & STW_ATTN_BLOCK_MASK;
    for (size_t i = 0; !near && i < sizeof rows / sizeof *rows; ++i) spread(rows[i], which);
    spread_masks(&p.desc, which);
    if (bias) {
        p.desc.bias.query = p.desc.dbias.query = FAR / 32 + 9;
        p.desc.bias.head = p.desc.dbias.head = p.desc.bias.head ? 256 : 0;
        p.desc.bias.batch = p.desc.dbias.batch = p.desc.bias.batch ? 4096 : 0;
    }
    stw_problem_print(&p, text, sizeof text);
    return conform_list_add(list, CONFORM_ROW_LARGE, text);
}

int conform_list_large(conform_list *list) {
    static const char *const filled[] = {"attn_bwd:bf16:b1h1s16777300x48d128:grads_q",
                                         "attn_bwd:bf16:b1h1s48x16777300d128:grads_kv",
                                         "attn_bwd:bf16:b1h1s16777300d128:wl20:wr9",
                                         "attn_bwd:f16:b1h4200k1050s4096x64d128:causal_tl",
                                         "attn_bwd:bf16:b65600h2s128x16d128:causal_br",
                                         "attn_bwd:bf16:b2h1s16777300x40d64:thd:tq33554700:seqs_full:grads_q",
                                         "attn_bwd:bf16:b2h1s16777300d64:thd:tq33554700:tk33554700:seqs_full:wl9:wr0",
                                         "attn_bwd:bf16:b2h64s4096x4200d8:bias_bhqk",
                                         "attn_bwd:f32:b1h1s16777300x16d128:dropout0.1:det:grads_q"};
    static const char *const far[] = {"attn_bwd:bf16:b2h2s33x40d64:causal_br",
                                      "attn_bwd:f32:b2h2k1s35x33d40:dlse:delta_out",
                                      "attn_bwd:f16:b2h2s33x35d128:dropout0.2:sink:grads_qkvs",
                                      "attn_bwd:bf16:b2h2s33x40d64:intervals_two:mask_heads",
                                      "attn_bwd:f16:b2h2s150x135d64:causal_tl:blockmask:mask_heads"};
    for (int which = 0; which < 3; ++which)
        for (size_t i = 0; i < sizeof far / sizeof *far; ++i)
            if (!add_far(list, far[i], which, 0)) return 0;
    if (!add_far(list, "attn_bwd:bf16:b2h2s33x40d64:bias_bhqk:grads_qkvb", 0, 1) ||
        !add_far(list, "attn_bwd:f32:b2h2s33x40d64:bias_1hqk:grads_b", 1, 1))
        return 0;
    for (size_t i = 0; i < sizeof filled / sizeof *filled; ++i)
        if (!conform_list_add(list, CONFORM_ROW_LARGE, filled[i])) return 0;
    return conform_list_large_jagged(list);
}

/* ---- far apart -------------------------------------------------------------------------------------------
 */

typedef struct far_case {
    stw_verify_case c;  /* the compact twin      */
    stw_attn_desc desc; /* as the call sees it   */
    stw_context *context;
    unsigned char *device[STW_VERIFY_TENSOR_COUNT];
} far_case;

static stw_dtype dtype_of(const stw_attn_desc *d, stw_verify_tensor t) {
    if (t == STW_VERIFY_DQ) return d->dq_dtype ? d->dq_dtype : d->dtype;
    if (t == STW_VERIFY_DK) return d->dk_dtype ? d->dk_dtype : d->dtype;
    if (t == STW_VERIFY_DV) return d->dv_dtype ? d->dv_dtype : d->dtype;
    if (t == STW_VERIFY_BIAS) return d->bias_dtype;
    if (t == STW_VERIFY_DBIAS) return d->dbias_dtype ? d->dbias_dtype : d->bias_dtype;
    return t <= STW_VERIFY_DOUT ? d->dtype : stw_dtype_of_rows(d->dtype);
}

/* Copies one tensor's rows between the twin's arena and the far buffer. */
static stw_status copy_rows(const far_case *f, stw_verify_tensor t, unsigned char *arena, int to_device) {
    const stw_attn_desc *d = &f->desc;
    stw_verify_case far = f->c; /* the same spans under the far strides */
    far.problem.desc = f->desc;
    int key_side = t == STW_VERIFY_K || t == STW_VERIFY_V || t == STW_VERIFY_DK || t == STW_VERIFY_DV;
    int one = t == STW_VERIFY_LSE || t == STW_VERIFY_DLSE || t == STW_VERIFY_DELTA;
    int64_t heads = key_side ? d->heads_kv : d->heads_q, rows = key_side ? d->max_seq_kv : d->max_seq_q;
    int64_t width = one ? 1
                    : t == STW_VERIFY_V || t == STW_VERIFY_DV || t == STW_VERIFY_OUT || t == STW_VERIFY_DOUT
                        ? d->head_dim_v
                        : d->head_dim_qk;
    size_t element = stw_dtype_size(dtype_of(d, t));
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t r = 0; r < rows; ++r) {
                unsigned char *near =
                    arena + f->c.offset[t] + (size_t)stw_verify_row_index(&f->c, t, b, h, r) * element;
                unsigned char *away = f->device[t] + (size_t)stw_verify_row_index(&far, t, b, h, r) * element;
                stw_status status = stw_copy(f->context, to_device ? away : near, to_device ? near : away,
                                             (size_t)width * element, NULL);
                if (status) return status;
            }
    return STW_OK;
}

static stw_status copy_bias(const far_case *f, stw_verify_tensor t, unsigned char *arena, int to_device) {
    const stw_attn_desc *d = &f->desc, *n = &f->c.problem.desc;
    const stw_bias_strides *away = t == STW_VERIFY_BIAS ? &d->bias : &d->dbias,
                           *near = t == STW_VERIFY_BIAS ? &n->bias : &n->dbias;
    size_t element = stw_dtype_size(dtype_of(d, t));
    for (int64_t b = 0; b < (away->batch ? d->batch : 1); ++b)
        for (int64_t h = 0; h < (away->head ? d->heads_q : 1); ++h)
            for (int64_t i = 0; i < d->max_seq_q; ++i) {
                unsigned char *x =
                    arena + f->c.offset[t] + (size_t)(b * near->batch + h * near->head + i * near->query) * element;
                unsigned char *y =
                    f->device[t] + (size_t)(b * away->batch + h * away->head + i * away->query) * element;
                stw_status status =
                    stw_copy(f->context, to_device ? y : x, to_device ? x : y, (size_t)d->max_seq_kv * element, NULL);
                if (status) return status;
            }
    return STW_OK;
}

/* Bounds, and bytes of a block mask: of them the third dimension counts bounds, the fourth keys. */
static stw_status copy_masks(const far_case *f, stw_verify_tensor t, unsigned char *arena, int to_device) {
    const stw_attn_desc *d = &f->desc, *n = &f->c.problem.desc;
    const int blocks = t == STW_VERIFY_BLOCK_MASK;
    const stw_interval_strides of_blocks = {d->block_mask.batch, d->block_mask.head, d->block_mask.key,
                                            d->block_mask.query},
                               near_blocks = {n->block_mask.batch, n->block_mask.head, n->block_mask.key,
                                              n->block_mask.query},
                               away = blocks ? of_blocks : d->intervals, near = blocks ? near_blocks : n->intervals;
    const int64_t heads = blocks ? d->heads_q : d->heads_kv,
                  keys = blocks ? stw_blocks_of(d->max_seq_kv, STW_MASK_BLOCK) : d->max_seq_kv,
                  bounds = blocks ? stw_blocks_of(d->max_seq_q, STW_MASK_BLOCK) : stw_interval_bounds(d->interval_form);
    const size_t element = blocks ? 1 : sizeof(int32_t);
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t at = 0; at < heads * keys * bounds; ++at) {
            const int64_t h = at / (keys * bounds), j = at / bounds % keys, x = at % bounds;
            unsigned char *here = arena + f->c.offset[t] +
                                  (size_t)(b * near.batch + h * near.head + j * near.key + x * near.bound) * element;
            unsigned char *there =
                f->device[t] + (size_t)(b * away.batch + h * away.head + j * away.key + x * away.bound) * element;
            stw_status status = stw_copy(f->context, to_device ? there : here, to_device ? here : there, element, NULL);
            if (status) return status;
        }
    return STW_OK;
}

static stw_status copy_tensor(const far_case *f, stw_verify_tensor t, unsigned char *arena, int to_device) {
    if (t == STW_VERIFY_INTERVALS || t == STW_VERIFY_BLOCK_MASK) return copy_masks(f, t, arena, to_device);
    if (t == STW_VERIFY_BIAS || t == STW_VERIFY_DBIAS) return copy_bias(f, t, arena, to_device);
    if (t <= STW_VERIFY_DELTA || (t >= STW_VERIFY_DQ && t <= STW_VERIFY_DV)) return copy_rows(f, t, arena, to_device);
    unsigned char *near = arena + f->c.offset[t];
    return stw_copy(f->context, to_device ? f->device[t] : near, to_device ? near : f->device[t], f->c.size[t], NULL);
}

static stw_status place_far(far_case *f) {
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t) {
        void *buffer = NULL;
        if (!f->c.present[t]) continue;
        stw_status status = stw_buffer_alloc(f->context, stw_verify_reach(&f->desc, (stw_verify_tensor)t), &buffer);
        f->device[t] = buffer;
        if (!status) status = copy_tensor(f, (stw_verify_tensor)t, f->c.host, 1);
        if (status) return status;
    }
    return STW_OK;
}

static stw_attn_args far_args(const far_case *f) {
    stw_attn_args args = f->c.values;
#define FAR_POINTER(id, field) args.field = (void *)f->device[STW_VERIFY_##id];
    STW_VERIFY_TENSORS(FAR_POINTER)
#undef FAR_POINTER
    return args;
}

static stw_status run_far(far_case *f, stw_verify_result *result) {
    stw_plan *plan = NULL;
    void *workspace = NULL;
    unsigned char *after = malloc(f->c.bytes);
    stw_status status = after ? place_far(f) : STW_E_NO_MEMORY;
    if (!status) status = stw_attn_bwd_plan(f->context, &f->desc, &plan);
    if (!status) status = stw_buffer_alloc(f->context, stw_plan_workspace_size(plan), &workspace);
    stw_attn_args args = far_args(f);
    if (!status) status = stw_attn_bwd(plan, &args, workspace, stw_plan_workspace_size(plan), NULL);
    if (!status) status = stw_stream_synchronize(f->context, NULL);
    if (!status) memcpy(after, f->c.host, f->c.bytes);
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT && !status; ++t)
        if (f->c.present[t]) status = copy_tensor(f, (stw_verify_tensor)t, after, 0);
    if (!status) stw_stream_synchronize(f->context, NULL);
    if (plan) stw_verify_note_variant(plan, result);
    if (!status) stw_verify_check_outputs(&f->c, after, result);
    for (int t = 0; t < STW_VERIFY_TENSOR_COUNT; ++t)
        if (f->device[t]) stw_buffer_free(f->context, f->device[t]);
    if (workspace) stw_buffer_free(f->context, workspace);
    stw_plan_destroy(plan);
    free(after);
    return status;
}

static stw_status check_far(const stw_problem *problem, stw_context *context, stw_verify_result *result) {
    far_case f = {.desc = problem->desc, .context = context};
    stw_problem compact = *problem;
    stw_problem_layout layout = {.mask_heads = f.desc.intervals.head || f.desc.block_mask.head};
    const int64_t bias[4] = {f.desc.bias.batch, f.desc.bias.head, f.desc.bias.query, f.desc.bias.key};
    for (int i = 0; i < 4; ++i) layout.broadcast |= bias[i] ? 0 : 1u << i;
    stw_status status = stw_problem_set_strides(&compact.desc, &layout);
    if (!status) status = stw_verify_build(&compact, &f.c);
    if (status) return status;
    status = run_far(&f, result);
    stw_verify_free(&f.c);
    return status;
}

/* ---- filled ----------------------------------------------------------------------------------------------
 */

static stw_status check_attention(const char *line, stw_context *context, stw_verify_result *result) {
    stw_problem problem;
    stw_status status = stw_problem_parse(line, &problem);
    if (status) return status;
    problem.seed = conform_seed_of(line);
    return strstr(line, ":st_") ? check_far(&problem, context, result)
                                : conform_filled_check(&problem, context, result);
}

void conform_large_check(const char *line, stw_context *context, stw_verify_result *result) {
    stw_verify_result_clear(result);
    stw_status status = stw_problem_is_jagged(line) ? conform_large_jagged_check(line, context, result)
                                                    : check_attention(line, context, result);
    if (!status) return;
    stw_verify_fail(result, "%s: %s", stw_status_name(status), stw_last_error());
    if (status == STW_E_NO_MEMORY || status == STW_E_UNSUPPORTED) result->outcome = STW_VERIFY_SKIP;
}
