/* SPDX-License-Identifier: MIT
 *
 * The fixture of jagged.h. */
#include "jagged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ragged(stw_jagged_desc *d, int axis) {
    d->axis[axis].size = 5;
    d->axis[axis].total = 10;
}

static stw_jagged_desc matmul_desc(jbase which) {
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    d.op = STW_JAGGED_MATMUL;
    d.dtype = STW_F32;
    d.index_dtype = STW_I64;
    d.components = 3;
    d.ragged_axes = 1u << STW_AXIS_M;
    ragged(&d, STW_AXIS_M);
    d.axis[STW_AXIS_K].size = 4;
    d.axis[STW_AXIS_N].size = 5;
    if (which == J_MATMUL) return d;
    d.ragged_axes |= 1u << STW_AXIS_N;
    ragged(&d, STW_AXIS_N);
    d.flags = STW_JAGGED_GRAD_BASES;
    d.grad_elements = 40;
    return d;
}

static stw_jagged_desc attention_desc(stw_attn_desc *attn) {
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    *attn = STW_INIT(stw_attn_desc);
    attn->dtype = STW_F32;
    attn->batch = d.components = 3;
    attn->heads_q = 2;
    attn->heads_kv = 1;
    attn->head_dim_qk = attn->head_dim_v = 4;
    attn->max_seq_q = attn->max_seq_kv = 5;
    attn->total_q = attn->total_kv = 10;
    assert_int_equal(stw_layout_thd(attn), STW_OK);
    d.op = STW_JAGGED_ATTENTION;
    d.index_dtype = STW_I64;
    d.attn = attn;
    return d;
}

stw_jagged_desc jbase_desc(jbase which, stw_attn_desc *attn) {
    static const stw_jagged_op ops[J_COUNT] = {[J_LINEAR] = STW_JAGGED_LINEAR,
                                               [J_SOFTMAX] = STW_JAGGED_SOFTMAX,
                                               [J_SUM] = STW_JAGGED_SUM,
                                               [J_SELECT] = STW_JAGGED_SELECT,
                                               [J_SELECT_RAG] = STW_JAGGED_SELECT,
                                               [J_GELU] = STW_JAGGED_GELU,
                                               [J_THRESHOLD] = STW_JAGGED_THRESHOLD,
                                               [J_LAYER_NORM] = STW_JAGGED_LAYER_NORM,
                                               [J_RESHAPE] = STW_JAGGED_RESHAPE,
                                               [J_TO_PADDED] = STW_JAGGED_TO_PADDED,
                                               [J_FROM_PADDED] = STW_JAGGED_FROM_PADDED,
                                               [J_LOG_SOFTMAX] = STW_JAGGED_LOG_SOFTMAX,
                                               [J_RMS_NORM] = STW_JAGGED_RMS_NORM};
    if (which == J_MATMUL || which == J_MATMUL_MN) return matmul_desc(which);
    if (which == J_ATTENTION) return attention_desc(attn);
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    d.op = ops[which];
    d.dtype = which == J_LINEAR ? STW_BF16 : which == J_GELU ? STW_F16 : STW_F32;
    d.index_dtype = which == J_THRESHOLD ? STW_I32 : STW_I64;
    d.components = 3;
    d.flags = STW_JAGGED_HAS_USED;
    ragged(&d, 0);
    d.outer = which == J_LINEAR ? 1 : 2;
    d.inner = 6;
    if (which == J_SOFTMAX || which == J_LOG_SOFTMAX || which == J_SELECT) {
        d.dim = STW_DIM_INNER;
        d.dim_size = 3;
        d.dim_after = 2;
    }
    if (which == J_SUM) d.dim = STW_DIM_OUTER;
    if (which == J_SELECT) d.index = 1;
    if (which == J_SELECT_RAG) d.dim = STW_DIM_RAGGED;
    if (which == J_LINEAR) d.out_features = 7;
    if (which == J_THRESHOLD) d.threshold = 0.25;
    if (which == J_LAYER_NORM || which == J_RMS_NORM) d.flags |= STW_JAGGED_HAS_GAMMA;
    if (which == J_TO_PADDED || which == J_FROM_PADDED) d.padded = 4;
    if (which == J_RESHAPE) {
        d.outer = d.inner = 0;
        d.shape_rank = d.grad_rank = 3;
        memcpy(d.shape, (int64_t[]){2, -1, 6}, 3 * sizeof(int64_t));
        memcpy(d.grad_shape, (int64_t[]){-1, 3, 4}, 3 * sizeof(int64_t));
    }
    return d;
}

/* Positive numbers between 1/16 and 1 in the problem's type. */
static void *input(jfixture *f, const char *name) {
    const stw_dtype dtype = f->which == J_ATTENTION ? STW_F32 : f->desc.dtype;
    const size_t size = dtype == STW_F32 || name[0] == 'm' || name[0] == 'r' ? 4 : 2; /* mean, rstd: f32 */
    void *data = arena_add(&f->memory, name, J_BLOCK / size, size, ARENA_INPUT);
    for (size_t n = 0; n < J_BLOCK / size; ++n) {
        const float x = (float)(n * 7 % 15 + 1) / 16;
        const uint16_t half = (uint16_t)(dtype == STW_BF16 ? 0x3E80 + n % 5 : 0x3400 + n % 50);
        memcpy((char *)data + n * size, size == 4 ? (const void *)&x : (const void *)&half, size);
    }
    return data;
}

static void *output(jfixture *f, const char *name, size_t size) {
    return arena_add(&f->memory, name, J_BLOCK / size, size, ARENA_OUTPUT);
}

static const void *integers(jfixture *f, const char *name, const int64_t *values, int count, int always64) {
    const size_t size = f->desc.index_dtype == STW_I32 && !always64 ? 4 : 8;
    char *data = arena_add(&f->memory, name, count, size, ARENA_INPUT);
    for (int n = 0; n < count; ++n) {
        const int32_t narrow = (int32_t)values[n];
        memcpy(data + (size_t)n * size, size == 4 ? (const void *)&narrow : &values[n], size);
    }
    return data;
}

static void bind_axis(jfixture *f, int axis) {
    static const int64_t offsets[] = {1, 4, 4, 9}, lengthy[] = {0, 3, 5, 9}, used[] = {2, 0, 5},
                         used_lengthy[] = {3, 2, 3};
    const int rag = f->which == J_SELECT_RAG;
    f->args.axis[axis].offsets = integers(f, "offsets", rag ? lengthy : offsets, 4, 0);
    if (f->desc.flags & STW_JAGGED_HAS_USED)
        f->args.axis[axis].used = integers(f, "used", rag ? used_lengthy : used, 3, 0);
}

static void bind_matmul(jfixture *f) {
    static const int64_t bases[] = {2, 11, 12}; /* 9, 0 and 25 elements of 40 */
    f->args.x = input(f, "x");
    f->args.other = input(f, "other");
    f->args.dother = output(f, "dother", 4);
    if (f->which == J_MATMUL) return;
    bind_axis(f, STW_AXIS_N);
    f->args.grad_bases = integers(f, "grad_bases", bases, 3, 1);
}

static void bind_attention(jfixture *f) {
    stw_attn_args *a = &f->attn_args;
    *a = STW_INIT(stw_attn_args);
    bind_axis(f, STW_AXIS_KV);
    a->q = input(f, "q");
    a->k = input(f, "k");
    a->v = input(f, "v");
    a->out = input(f, "out");
    a->dout = input(f, "dout");
    a->lse = input(f, "lse");
    a->dq = output(f, "dq", 4);
    a->dk = output(f, "dk", 4);
    a->dv = output(f, "dv", 4);
    a->status_out = f->args.status_out;
    f->args.status_out = NULL;
    f->args.attn = a;
}

static void bind(jfixture *f) {
    const jbase which = f->which;
    const size_t size = f->desc.dtype == STW_F32 ? 4 : 2;
    f->args = STW_INIT(stw_jagged_args);
    f->args.status_out = arena_add(&f->memory, "status_out", 1, 4, ARENA_OUTPUT);
    bind_axis(f, 0);
    if (which == J_ATTENTION) {
        bind_attention(f);
        return;
    }
    f->args.grad = input(f, "grad");
    f->args.dx = output(f, "dx", size);
    if (which == J_MATMUL || which == J_MATMUL_MN) bind_matmul(f);
    if (which == J_SOFTMAX || which == J_LOG_SOFTMAX) f->args.y = input(f, "y");
    if (which == J_LINEAR || which == J_GELU || which == J_THRESHOLD || which == J_LAYER_NORM || which == J_RMS_NORM)
        f->args.x = input(f, "x");
    if (which != J_LINEAR && which != J_LAYER_NORM && which != J_RMS_NORM) return;
    f->args.weight = input(f, "weight");
    f->args.dweight = output(f, "dweight", size);
    if (which != J_RMS_NORM) f->args.dbias = output(f, "dbias", size);
    if (which == J_LINEAR) return;
    if (which == J_LAYER_NORM) f->args.mean = input(f, "mean");
    f->args.rstd = input(f, "rstd");
}

int32_t *jfixture_status(jfixture *f) { return f->which == J_ATTENTION ? f->attn_args.status_out : f->args.status_out; }

static void reset_outputs(jfixture *f) {
    for (int n = 0; n < f->memory.count; ++n)
        if (f->memory.list[n].kind != ARENA_INPUT)
            memset(f->memory.list[n].data, ARENA_POISON, f->memory.list[n].bytes);
    arena_keep(&f->memory);
}

/* The outputs of the correct call, in f->good the first time, compared with it from then on. */
static void run_good(jfixture *f) {
    reset_outputs(f);
    if (jfixture_run(f, &f->args)) fail_msg("the correct problem %d: %s", (int)f->which, stw_last_error());
    const char *wrong = arena_wrong(&f->memory, 0);
    if (wrong) fail_msg("the correct problem %d: %s", (int)f->which, wrong);
    const int first = !f->good;
    if (first) f->good = calloc((size_t)f->memory.count, J_BLOCK);
    assert_non_null(f->good);
    size_t differ = 0;
    for (int n = 0; n < f->memory.count; ++n) {
        const arena_block *b = &f->memory.list[n];
        if (b->kind != ARENA_OUTPUT) continue;
        differ += memcmp(b->data, b->kept, b->bytes) != 0;
        if (first) memcpy(f->good + (size_t)n * J_BLOCK, b->data, b->bytes);
        assert_memory_equal(f->good + (size_t)n * J_BLOCK, b->data, b->bytes);
    }
    assert_true(differ > 0);
    reset_outputs(f);
}

void jfixture_open(jfixture *f, jbase which) {
    memset(f, 0, sizeof *f);
    f->which = which;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 2;
    assert_int_equal(stw_context_create(&opts, &f->context), STW_OK);
    f->desc = jbase_desc(which, &f->attn);
    if (stw_jagged_bwd_plan(f->context, &f->desc, &f->plan))
        fail_msg("the correct problem %d is refused: %s", (int)which, stw_last_error());
    bind(f);
    f->need = stw_plan_workspace_size(f->plan);
    f->workspace = arena_add(&f->memory, "workspace", (double)f->need, 1, ARENA_WORKSPACE);
    run_good(f);
}

void jfixture_close(jfixture *f) {
    stw_plan_destroy(f->plan);
    stw_context_destroy(f->context);
    arena_free(&f->memory);
    free(f->good);
    memset(f, 0, sizeof *f);
}

stw_status jfixture_run(jfixture *f, const stw_jagged_args *args) {
    return stw_jagged_bwd(f->plan, args, f->workspace, f->need, NULL);
}

void jfixture_unchanged(jfixture *f, const char *what, int but_status_out) {
    for (int n = 0; n < f->memory.count; ++n) {
        arena_block *b = &f->memory.list[n];
        if (b->data == (void *)jfixture_status(f)) b->kind = but_status_out ? ARENA_STATUS : ARENA_OUTPUT;
    }
    const char *wrong = arena_wrong(&f->memory, 1);
    if (wrong) complain("%s: %s", what, wrong);
}

void jfixture_still_works(jfixture *f) {
    for (int n = 0; n < f->memory.count; ++n)
        if (f->memory.list[n].kind == ARENA_STATUS) f->memory.list[n].kind = ARENA_OUTPUT;
    run_good(f);
}
