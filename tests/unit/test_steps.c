/* SPDX-License-Identifier: MIT
 *
 * Which kernels a call consists of (backends/gpu/attn_tiled.c): what CDNA's own kernels take, when the gradient of
 * a bias is summed and by which kernel, what Hopper's own main loop refuses. Expectations are the comments'
 * of attn_tiled.c, attn_cdna.c and attn_sm90.c, one property changed at a time. And what problems of one size class
 * have in common (common/size_class.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/gpu/attn_tiled.h"
#include "backends/hip/device.h"
#include "tools/problem/problem.h"
#include "common/size_class.h"
#include "dispatch/attn_problem.h"
#include "dispatch/tables.h"

#include "sternway/attn_bwd.h"

#include <stdio.h>
#include <string.h>

extern const stw_attn_loop stw_attn_loop_sm90, stw_attn_loop_sm90_wide, stw_attn_loop_sm90_tall;
extern const stw_attn_loop stw_attn_loop_few16, stw_attn_loop_few64, stw_attn_loop_split_ordered;

static stw_attn_params params_of(const char *text) {
    stw_problem problem;
    stw_attn_params params;
    assert_int_equal(stw_problem_parse(text, &problem), STW_OK);
    if (stw_attn_check(&problem.desc, STW_PLAN_ATTN_BWD)) fail_msg("%s: %s", text, stw_last_error());
    stw_attn_params_fill(&problem.desc, STW_PLAN_ATTN_BWD, problem.desc.deterministic == STW_DETERMINISTIC_ON, &params);
    return params;
}

static stw_variant tile_called(const char *arch, const char *id) {
    const stw_attn_table *table = stw_attn_table_find(arch);
    const stw_variant *v = stw_attn_variant_find(table, id);
    if (!v) fail_msg("%s has no variant %s", arch, id);
    return *v;
}

/* ---- CDNA's own kernels ---- */

enum { NONE = 0, MAIN = 1, PREPROCESS = 2, POSTPROCESS = 4, EXACT = 8, ALL = MAIN | PREPROCESS | POSTPROCESS };

/* Which of the steps are CDNA's own. The main loop keeps its name; its shared memory is its own. */
static int own_steps(const stw_variant *tile, const stw_attn_params *p) {
    stw_attn_steps steps;
    int found = 0;
    stw_attn_steps_of(STW_CALL_BWD, tile, p, 64, &steps);
    for (uint32_t i = 0; i < steps.count; ++i) {
        const stw_attn_step *s = &steps.step[i];
        assert_true(s->work_tiles > 0 && s->block % 64 == 0 && s->block > 0 && s->smem <= 65536);
        if (strstr(s->entry, "preprocess_cdna")) found |= PREPROCESS;
        if (strstr(s->entry, "postprocess_cdna")) found |= POSTPROCESS;
        if (strstr(s->entry, "_exact")) found |= EXACT;
        if (strstr(s->entry, tile->id) && s->smem == STW_CDNA_SMEM(tile->head_dim)) found |= MAIN;
    }
    return found;
}

static void own_kernels_of_problems(void **state) {
    (void)state;
    static const struct {
        const char *options;
        int own;
    } rows[] = {
        {"", ALL},
        {":causal_br", ALL},
        {":wl9:wr3", ALL},
        {":thd:seqs_full", ALL},
        {":bhsd", ALL},
        {":delta_in", MAIN | POSTPROCESS},
        {":delta_out", MAIN | POSTPROCESS},
        {":dlse", MAIN | POSTPROCESS},
        {":grads_qkvs:sink", MAIN},
        {":dq_f32", MAIN | PREPROCESS},
        {":dq_f32:acc_q", MAIN | PREPROCESS},
        {":grads_kv", MAIN | PREPROCESS},
        {":grads_q", ALL},
        {":grads_s:sink", NONE},
        {":dk_f32", ALL},
        {":dv_f32", ALL},
        {":dk_f32:dv_f32:acc_kv", ALL},
        {":det", ALL},
        {":det:causal_br", ALL},
        {":det:dlse", MAIN | POSTPROCESS},
        {":det:dk_f32", ALL},
        {":alibi", ALL},
        {":alibi:wl9:wr3:dlse", MAIN | POSTPROCESS},
        {":alibi:alibi_col", ALL},
        {":alibi:det", ALL},
        {":alibi:softcap9", ALL},
        {":softcap9", ALL},
        {":softcap9:thd:seqs_full", ALL},
        {":softcap0.01", NONE},
        {":softcap600", NONE},
        {":softcap9:det", ALL},
        {":dropout0.5", ALL},
        {":dropout0.5:thd:map_flash2", ALL},
        {":dropout0.5:map_mem_eff:dlse", MAIN | POSTPROCESS},
        {":dropout0.99999999:map_mem_eff", NONE},
        {":dropout0.99999999", ALL},
        {":dropout0.5:det", ALL},
        {":dropout0.5:alibi", ALL},
        {":dropout0.5:softcap9", ALL},
        {":dropout0.5:alibi:det", ALL},
        {":dropout0.5:softcap9:det:causal_br", ALL},
        {":alibi:softcap9:det", ALL},
        {":intervals_from:softcap9:det", ALL},
        {":dropout0.5:bias_bhqk", ALL},
        {":bias_bhqk", ALL},
        {":bias_1hqk:thd:causal_br", ALL},
        {":biasu8_b11k", ALL},
        {":biasf32_bhqk", ALL},
        {":bias_bhqk:alibi", ALL},
        {":bias_bhqk:det", ALL},
        {":biasu8_b11k:det", ALL},
        {":bias_bhqk:dlse", MAIN | POSTPROCESS},
        {":bias_bhqk:grads_qkvs:sink", MAIN},
        {":bias_bhqk:grads_qkvb", ALL},
        {":bias_bhqk:grads_qkvb:det:thd", ALL},
        {":bias_bhqk:grads_qkvb:dlse", MAIN | POSTPROCESS},
        {":bias_bhqk:grads_qkvb:dbias_f32", ALL},
        {":bias_bhqk:grads_qkvb:dbias_f32:acc_b", ALL},
        {":bias_bhqk:softcap9:grads_qkvb", ALL},
        {":bias_bhqk:softcap9:grads_qkvb:dbias_f32", NONE},
        {":bias_1hqk:grads_qkvb", ALL},
        {":bias_bhqk:grads_b", NONE},
    };
    stw_variant tile = tile_called("gfx942", "gfx942_32x128_hd64");
    stw_variant narrow = tile_called("gfx942", "gfx942_32x128_hd32");
    stw_variant between = tile_called("gfx942", "gfx942_32x64_hd96");
    stw_variant tall = tile_called("gfx942", "gfx942_32x32_hd192");
    stw_variant wide = tile_called("gfx942", "gfx942_32x32_hd256");
    stw_variant exact = tile_called("gfx90a", "gfx90a_32x128_hd64");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s130x150d64%s", rows[i].options);
        stw_attn_params p = params_of(text);
        if (own_steps(&tile, &p) != rows[i].own) fail_msg("%s: %d", text, own_steps(&tile, &p));
        /* gfx90a takes subnormal operands for zero: a kernel for what the main loop left alone, which is nothing where
         * its kernel knows deterministic mode, or as f16's `every` does such work tiles at once */
        const uint32_t asked = STW_FEAT_DETERMINISTIC | STW_FEAT_DROPOUT | STW_FEAT_BIAS | STW_FEAT_ALIBI_COLUMN;
        const uint32_t others = STW_FEAT_ALIBI | STW_FEAT_BIAS | STW_FEAT_INTERVALS;
        const int every = ((p.features & STW_FEAT_SOFTCAP) && (p.features & others)) || (p.accumulate & STW_OUT_DBIAS);
        const int turns = rows[i].own && !(p.features & asked) ? EXACT : 0; /* of kernels that never take them */
        const int leaves = rows[i].own && every && !(p.features & STW_FEAT_DETERMINISTIC) ? EXACT : turns;
        const int expected = rows[i].own | leaves;
        if (own_steps(&exact, &p) != expected) fail_msg("exact, %s", text);
        snprintf(text, sizeof text, "attn_bwd:f16:b2h4k2s130x150d64%s", rows[i].options);
        p = params_of(text);
        if (own_steps(&exact, &p) != (every ? rows[i].own : expected)) fail_msg("exact, %s", text);
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s130x150d32%s", rows[i].options);
        p = params_of(text);
        if (own_steps(&narrow, &p) != rows[i].own) fail_msg("%s: %d", text, own_steps(&narrow, &p));
        if (own_steps(&between, &p) != rows[i].own) fail_msg("head dim 96, %s", text);
        if (own_steps(&tall, &p) != rows[i].own) fail_msg("head dim 192, %s", text);
        if (own_steps(&wide, &p) != rows[i].own) fail_msg("head dim 256, %s", text);
    }
}

/* A single row may have any stride, over which own kernels would write rows past the last. */
static void a_row_alone_has_any_stride(void **state) {
    (void)state;
    stw_variant tile = tile_called("gfx942", "gfx942_32x128_hd64");
    stw_attn_params p = params_of("attn_bwd:bf16:b2h4k2s1x150d64");
    assert_int_equal(own_steps(&tile, &p), ALL);
    p.dq.seq = 0;
    assert_int_equal(own_steps(&tile, &p), MAIN | PREPROCESS);
}

/* The main loop's kernel of an AMD arch's tile for a problem of dims and words. */
static const char *main_kernel(stw_attn_steps *steps, const char *tile_name, const char *dims, const char *words) {
    char text[120];
    stw_variant tile = tile_called(!strncmp(tile_name, "gfx90a", 6) ? "gfx90a" : "gfx942", tile_name);
    snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s130x150d%s%s", dims, words);
    stw_attn_params p = params_of(text);
    stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 64, steps);
    return steps->step[1].entry;
}

/* The tile of head dim 192 has kernels for head_dim_v up to 128. */
static void own_kernels_of_unequal_head_dims(void **state) {
    (void)state;
    static const struct {
        const char *dims, *tile, *entry;
    } rows[] = {
        {"192x128", "gfx942_32x32_hd192", "stw_attn_bwd_gfx942_32x32_hd192_bf16_tall"},
        {"136x64", "gfx942_32x32_hd192", "stw_attn_bwd_gfx942_32x32_hd192_bf16_tall"},
        {"192x136", "gfx942_32x32_hd192", "stw_attn_bwd_gfx942_32x32_hd192_bf16_plain"},
        {"128x192", "gfx942_32x32_hd192", "stw_attn_bwd_gfx942_32x32_hd192_bf16_plain"},
        {"256x128", "gfx942_32x32_hd256", "stw_attn_bwd_gfx942_32x32_hd256_bf16_plain"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_attn_steps steps;
        assert_string_equal(main_kernel(&steps, rows[i].tile, rows[i].dims, ""), rows[i].entry);
        const char *ordered = strstr(rows[i].entry, "_tall") ? "_bf16_tall_ordered" : "_bf16_ordered";
        assert_non_null(strstr(main_kernel(&steps, rows[i].tile, rows[i].dims, ":det"), ordered));
        assert_non_null(strstr(main_kernel(&steps, rows[i].tile, rows[i].dims, ":alibi"), "_bf16_dropout"));
    }
}

/* What is asked at run time: one kernel for both. */
static void own_kernels_of_features(void **state) {
    (void)state;
    static const struct {
        const char *problem, *tile, *entry;
    } rows[] = {
        {"64:alibi", "gfx942_32x128_hd64", "_bf16_alibi"},
        {"64:alibi:det", "gfx942_32x128_hd64", "_bf16_dropout"},
        {"64:softcap9:det", "gfx942_32x128_hd64", "_bf16_dropout"},
        {"64:biasu8_bhqk:det", "gfx942_32x128_hd64", "_bf16_bytes"},
        {"128:alibi:det", "gfx942_32x64_hd128", "_bf16_alibi"},
        {"128:softcap9:det", "gfx942_32x64_hd128", "_bf16_softcap"},
        {"96:biasu8_bhqk:det", "gfx942_32x64_hd96", "_bf16_bias"},
        {"192:softcap9", "gfx942_32x32_hd192", "_bf16_dropout"},
        {"256:alibi:det", "gfx942_32x32_hd256", "_bf16_dropout"},
        {"256:bias_bhqk:grads_qkvb", "gfx942_32x32_hd256", "_bf16_bias"},
        {"64:softcap9:alibi", "gfx942_32x128_hd64", "_bf16_every"},
        {"128:softcap9:biasu8_bhqk", "gfx942_32x64_hd128", "_bf16_every"},
        {"128:softcap9:bias_bhqk:det", "gfx942_32x64_hd128", "_bf16_every"},
        {"192:softcap9:alibi:dropout0.5", "gfx942_32x32_hd192", "_bf16_every"},
        {"64:bias_bhqk:grads_qkvb:dbias_f32:acc_b", "gfx942_32x128_hd64", "_bf16_every"},
        {"64:softcap9:alibi", "gfx90a_32x128_hd64", "_bf16_every"},
        {"64:softcap9:alibi:det", "gfx90a_32x128_hd64", "_bf16_every_ordered"},
        {"128:softcap9:biasu8_bhqk", "gfx90a_32x64_hd128", "_bf16_every"},
        {"256:bias_bhqk:grads_qkvb:dbias_f32:acc_b", "gfx90a_32x32_hd256", "_bf16_every"},
        {"256:bias_bhqk:grads_qkvb:dbias_f32:acc_b:det", "gfx90a_32x32_hd256", "_bf16_every_ordered"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_attn_steps steps;
        const char *entry = main_kernel(&steps, rows[i].tile, rows[i].problem, "");
        const char *mode = strstr(entry, rows[i].entry);
        if (!mode || strlen(mode) != strlen(rows[i].entry)) fail_msg("%s: %s", rows[i].problem, entry);
    }
}

static void own_kernels_want_even_tensors(void **state) {
    (void)state;
    const stw_attn_params good = params_of("attn_bwd:bf16:b2h4k2s130x150d64");
    stw_variant tile = tile_called("gfx942", "gfx942_32x128_hd64");
    static const struct {
        size_t tensor;
        int own, far; /* where rows are no vectors, where they are beyond 32-bit offsets or backwards */
    } tensors[] = {
        {offsetof(stw_attn_params, q), NONE, NONE},
        {offsetof(stw_attn_params, dout), NONE, NONE},
        {offsetof(stw_attn_params, k), NONE, NONE},
        {offsetof(stw_attn_params, v), NONE, NONE},
        {offsetof(stw_attn_params, dk), ALL, NONE},
        {offsetof(stw_attn_params, dv), ALL, NONE},
        {offsetof(stw_attn_params, out), MAIN | POSTPROCESS, MAIN | POSTPROCESS},
        {offsetof(stw_attn_params, dq), MAIN | PREPROCESS, MAIN | PREPROCESS},
    };
    static const int64_t odd[] = {4, 12, -8, INT64_C(1) << 26, INT64_C(1) << 23};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) {
        for (size_t n = 0; n < sizeof odd / sizeof *odd; ++n) {
            stw_attn_params p = good;
            ((stw_tensor_param *)(void *)((char *)&p + tensors[i].tensor))->seq = odd[n];
            if (own_steps(&tile, &p) != (n < 2 ? tensors[i].own : tensors[i].far))
                fail_msg("tensor %zu, stride %lld", i, (long long)odd[n]);
        }
        stw_attn_params p = good;
        ((stw_tensor_param *)(void *)((char *)&p + tensors[i].tensor))->head = 12;
        assert_int_equal(own_steps(&tile, &p), tensors[i].own);
        p = good;
        ((stw_tensor_param *)(void *)((char *)&p + tensors[i].tensor))->batch = 4;
        assert_int_equal(own_steps(&tile, &p), tensors[i].own);
    }
    stw_attn_params p = good;
    p.head_dim_qk = 60;
    assert_int_equal(own_steps(&tile, &p), NONE);
    p = good;
    p.head_dim_v = 60;
    assert_int_equal(own_steps(&tile, &p), NONE);
    p = good;
    p.lse.seq = -1; /* statistics are read forwards, by 32-bit offsets */
    assert_int_equal(own_steps(&tile, &p), MAIN | POSTPROCESS);
    p.lse.seq = INT64_C(1) << 21;
    assert_int_equal(own_steps(&tile, &p), MAIN | POSTPROCESS);
}

/* ---- the gradient of a bias ---- */

static const stw_attn_step *bias_step(const stw_variant *tile, const stw_attn_params *p, uint32_t wave,
                                      stw_attn_steps *steps) {
    stw_attn_steps_of(STW_CALL_BWD, tile, p, wave, steps);
    for (uint32_t i = 0; i < steps->count; ++i)
        if (strstr(steps->step[i].entry, "stw_attn_dbias_reduce_")) return &steps->step[i];
    return NULL;
}

/* dBias of each shape: summed where it is broadcast over more than one element; by the kernel for a bias and
 * nothing else where the bias is the same wherever its gradient is summed. */
static void bias_is_summed_where_broadcast(void **state) {
    (void)state;
    stw_variant tile = tile_called("sm80", "sm80_64x128_hd64"), wide = tile_called("gfx942", "gfx942_32x128_hd64");
    for (int bias = 0; bias < 16; ++bias)
        for (int sums = 0; sums < 16; ++sums)
            for (int ones = 0; ones < 16; ++ones) {
                stw_attn_params p = params_of("attn_bwd:bf16:b2h4s66x130d64:biasbf16_bhqk:grads_qkvb");
                stw_attn_steps steps;
                int64_t *given[] = {&p.bias.batch, &p.bias.head, &p.bias.query, &p.bias.key};
                int64_t *made[] = {&p.dbias.batch, &p.dbias.head, &p.dbias.query, &p.dbias.key};
                int64_t *extent[] = {&p.batch, &p.heads_q, &p.max_seq_q, &p.max_seq_kv};
                int summed = 0, constant = 1;
                p.group = 1;
                for (int i = 0; i < 4; ++i) {
                    if (ones >> i & 1) *extent[i] = 1;
                    if (bias >> i & 1) *given[i] = 0;
                    if (sums >> i & 1) *made[i] = 0;
                    summed |= (sums >> i & 1) && *extent[i] > 1;
                    constant &= !((sums >> i & 1) && !(bias >> i & 1) && *extent[i] > 1);
                }
                p.heads_kv = p.heads_q;
                const stw_attn_step *step = bias_step(&tile, &p, 32, &steps);
                assert_int_equal(step != NULL, summed);
                /* rows that see one key are f32's way of adding: no kernel for a bias alone, whatever it is */
                int plain = constant && p.max_seq_kv > 1;
                if (step) assert_int_equal(strstr(step->entry, "reduce_plain_") != NULL, plain);
                if (step) assert_int_equal(step->smem <= 99 * 1024, 1);
                step = bias_step(&wide, &p, 64, &steps);
                assert_int_equal(step != NULL, summed);
                if (step) assert_null(strstr(step->entry, "reduce_plain_"));
            }
}

/* One kernel of the dBias sums for every head dim and type; for 16 bits with nothing besides that for a bias alone. */
static void bias_kernels_of_types(void **state) {
    (void)state;
    static const struct {
        const char *arch, *variant, *problem, *entry;
    } rows[] = {
        {"sm80", "sm80_64x128_hd64", "bf16:b2h4s66x130d64:biasbf16_11qk:grads_qkvb", "plain_64x64_hd64_bf16"},
        {"sm80", "sm80_64x128_hd128", "f16:b2h4s66x130d128:biasf16_11qk:grads_qkvb", "plain_64x64_hd128_f16"},
        {"sm80", "sm80_64x128_hd64", "bf16:b2h4s66x130d64:biasf32_11qk:dbias_f32:grads_qkvb", "32x64_hd64_bf16"},
        {"sm80", "sm80_64x128_hd64", "bf16:b2h4s66x130d64:biasbf16_11qk:dbias_f32:grads_qkvb", "32x64_hd64_bf16"},
        {"sm80", "sm80_64x128_hd64", "bf16:b2h4s66x130d64:biasbf16_11qk:alibi:grads_qkvb", "32x64_hd64_bf16"},
        {"sm80", "sm80_64x128_hd128", "bf16:b2h4s66x130d128:biasbf16_11qk:dropout0.1:grads_qkvb", "32x64_hd128_bf16"},
        {"sm80", "sm80_64x64_hd256", "bf16:b2h4s66x130d200:biasbf16_11qk:grads_qkvb", "32x32_hd256_bf16"},
        {"sm80", "sm80_32x64_hd64_f32", "f32:b2h4s66x130d64:bias_11qk:grads_qkvb", "16x32_hd128_f32"},
        {"sm80", "sm80_32x32_hd256_f32", "f32:b2h4s66x130d150:bias_11qk:grads_qkvb", "16x16_hd256_f32"},
        {"gfx942", "gfx942_32x128_hd64", "bf16:b2h4s66x130d64:biasbf16_11qk:grads_qkvb", "32x64_hd64_bf16"},
        {"gfx942", "gfx942_16x16_hd256_f32", "f32:b2h4s66x130d150:bias_11qk:grads_qkvb", "16x16_hd256_f32"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160], entry[STW_ATTN_ENTRY_MAX];
        stw_attn_steps steps;
        stw_variant tile = tile_called(rows[i].arch, rows[i].variant);
        snprintf(text, sizeof text, "attn_bwd:%s", rows[i].problem);
        snprintf(entry, sizeof entry, "stw_attn_dbias_reduce_%s", rows[i].entry);
        stw_attn_params p = params_of(text);
        const stw_attn_step *step = bias_step(&tile, &p, rows[i].arch[0] == 's' ? 32 : 64, &steps);
        assert_non_null(step);
        assert_string_equal(step->entry, entry);
    }
}

/* Which kernel of the shared loop takes a problem. */
static void single_features_have_kernels(void **state) {
    (void)state;
    static const struct {
        const char *variant, *options, *mode;
        uint32_t descends;
        stw_attn_queued queued;
    } rows[] = {
        {"sm80_128x128_hd64", "", "plain", 0, STW_QUEUED},
        {"sm80_128x128_hd64", ":det", "plain", 0, STW_QUEUED_NEVER},
        {"sm80_128x128_hd64", ":det:causal_br", "plain", 0, STW_QUEUED_NEVER},
        {"sm80_64x96_hd192", ":det", "plain", 0, STW_QUEUED_NEVER},
        {"sm80_64x128_hd64", ":det", "plain", 0, STW_QUEUED_NEVER},
        {"sm80_128x128_hd64", ":det:grads_qk", "plain", 0, STW_QUEUED_NEVER},
        {"sm80_128x128_hd64", ":det:softcap9", "softcap", 0, STW_QUEUED_NEVER},
        {"sm80_128x128_hd64", ":softcap9", "softcap", 0, STW_QUEUED},
        {"sm80_128x128_hd64", ":alibi:alibi_col", "alibi", 0, STW_QUEUED},
        {"sm80_128x128_hd64", ":dropout0.5", "drop", 0, STW_QUEUED},
        {"sm80_128x128_hd64", ":softcap9:alibi", "full", 0, STW_QUEUED},
        {"sm80_128x128_hd64", ":softcap9:dk_f32", "full", 0, STW_QUEUED},
        {"sm80_64x128_hd64", ":softcap9", "full", 0, STW_QUEUED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s130x150d64%s", rows[i].options);
        stw_attn_params p = params_of(text);
        stw_variant tile = tile_called("sm80", rows[i].variant);
        stw_attn_choice choice;
        tile.loop->gpu->plan(&tile, &p, 32, &choice);
        if (strcmp(choice.mode, rows[i].mode) != 0) fail_msg("%s, %s: %s", text, rows[i].variant, choice.mode);
        assert_int_equal((choice.vectors & STW_KEYS_DESCEND) != 0, rows[i].descends);
        assert_int_equal(choice.queued, rows[i].queued);
    }
}

/* ---- what the fastest kernels of a tile do not take ---- */

static void tiles_say_what_costs_more(void **state) {
    (void)state;
    static const char one_key[] = "rows that see one key", wide[] = "f32 dK or dV of 16-bit inputs";
    static const struct {
        const char *options, *own, *four, *split; /* CDNA's; sm80's with kernels for single features, without */
    } rows[] = {
        {"", NULL, NULL, NULL},
        {":thd:causal_br:dlse:delta_out", NULL, NULL, NULL},
        {":bias_bhqk", NULL, NULL, "a bias"},
        {":bias_bhq1", NULL, "a bias", "a bias"},
        {":biasu8_bhqk", NULL, "a bias", "a bias"},
        {":biasf32_bhqk", NULL, "a bias", "a bias"},
        {":bias_bhqk:alibi", NULL, "a bias", "a bias"},
        {":bias_bhqk:softcap9", NULL, "a bias", "a bias"},
        {":bias_bhqk:grads_qkvb", NULL, NULL, "a bias"},
        {":bias_1hqk:grads_qkvb", NULL, NULL, "a bias"},
        {":bias_bhqk:grads_qkvb:dbias_f32", NULL, "a bias", "a bias"},
        {":bias_bhqk:grads_qkvb:dbias_f32:acc_b", NULL, "a bias", "a bias"},
        {":bias_bhqk:grads_qkvb:dbias_f32:acc_b:det", NULL, "a bias", "a bias"},
        {":bias_bhqk:grads_qkvb:dbias_f32:softcap9", "f32 dBias of every pair under a softcap", "a bias", "a bias"},
        {":bias_bhqk:softcap0.01", "a softcap that is not from 1/64 to 512", "a bias", "a bias"},
        {":bias_bhqk:dlse", NULL, NULL, "a bias"},
        {":alibi", NULL, NULL, "ALiBi"},
        {":alibi:alibi_col", NULL, NULL, "ALiBi"},
        {":alibi:det", NULL, NULL, "ALiBi"},
        {":softcap9", NULL, NULL, "softcap"},
        {":softcap0.01", "a softcap that is not from 1/64 to 512", NULL, "softcap"},
        {":softcap9:alibi", NULL, "ALiBi", "ALiBi"},
        {":softcap9:alibi:det", NULL, "ALiBi", "ALiBi"},
        {":dropout0.5", NULL, NULL, "dropout"},
        {":dropout0.5:alibi", NULL, "ALiBi", "ALiBi"},
        {":dropout0.5:det", NULL, NULL, "dropout"},
        {":intervals_two", NULL, NULL, "an interval mask"},
        {":blockmask:causal_br", NULL, NULL, "a block mask"},
        {":intervals_from:blockmask:thd", NULL, NULL, "an interval mask"},
        {":intervals_two:det", NULL, NULL, "an interval mask"},
        {":blockmask:dropout0.5", NULL, "a block mask", "a block mask"},
        {":blockmask:softcap9", NULL, "a block mask", "a block mask"},
        {":bias_bhqk:intervals_two", NULL, "an interval mask", "an interval mask"},
        {":dropout0.99999999:map_mem_eff", "a dropout_p that is 1 in f32, by the map mem_eff", NULL, "dropout"},
        {":wl0:wr0", one_key, one_key, one_key},
        {":dv_f32", NULL, wide, wide},
        {":det", NULL, NULL, NULL},
        {":grads_qk", NULL, NULL, NULL},
        {":grads_kv", NULL, NULL, NULL},
        {":grads_s:sink", "no dQ, dK or dV is wanted", NULL, NULL},
        {":gap1", "rows of q that are not whole vectors of 16 bytes", NULL, NULL},
        {":st_dout33280,64,257", "rows of dout that are not whole vectors of 16 bytes", NULL, NULL},
        {":st_v38400,64,260", "rows of v that are not whole vectors of 16 bytes", NULL, NULL},
        {":st_dk17179869184,64,67108864", "rows of dk beyond 32-bit offsets", NULL, NULL},
        {":st_dk17179869184,64,67108864:grads_qv", NULL, NULL, NULL},
        {":st_dk681574400,64,2097152", NULL, NULL, NULL},
        {":st_dk681574400,64,2097152:dk_f32", "rows of dk beyond 32-bit offsets", wide, wide},
    };
    stw_variant own = tile_called("gfx942", "gfx942_32x128_hd64"), four = tile_called("sm80", "sm80_128x128_hd64"),
                split = tile_called("sm80", "sm80_64x128_hd64"), sm90 = tile_called("sm90", "sm90_128x128_hd64"),
                exact = tile_called("gfx90a", "gfx90a_32x128_hd64"), f32 = tile_called("sm80", "sm80_16x32_hd128_f32");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s130x150d64%s", rows[i].options);
        stw_attn_params p = params_of(text);
        const struct {
            const stw_variant *tile;
            const char *expected;
        } of[] = {{&own, rows[i].own},     {&exact, rows[i].own}, {&four, rows[i].four},
                  {&split, rows[i].split}, {&sm90, NULL},         {&f32, NULL}}; /* the last two have no others */
        for (size_t n = 0; n < sizeof of / sizeof *of; ++n) {
            const char *words = stw_attn_slower(STW_CALL_BWD, of[n].tile, &p);
            if (!words != !of[n].expected || (words && strcmp(words, of[n].expected)))
                fail_msg("%s, %s: %s", text, of[n].tile->id, words ? words : "nothing");
        }
        assert_null(stw_attn_slower(STW_CALL_FWD, &own, &p));
    }
    stw_attn_params p = params_of("attn_bwd:bf16:b2h4k2s1024x150d64:dk_f32"); /* sums of 2048 rows */
    assert_null(stw_attn_slower(STW_CALL_BWD, &own, &p));
    p = params_of("attn_bwd:bf16:b2h4k2s1025x150d64:dk_f32"); /* two parts of a work tile */
    assert_null(stw_attn_slower(STW_CALL_BWD, &own, &p));
    p = params_of("attn_bwd:bf16:b2h4k2s1025x150d64:dk_f32:dv_f32:intervals_two"); /* drained */
    assert_null(stw_attn_slower(STW_CALL_BWD, &own, &p));
    p = params_of("attn_bwd:bf16:b2h4k2s1025x150d64:dk_f32:intervals_two");
    assert_string_equal(stw_attn_slower(STW_CALL_BWD, &own, &p), wide);
    p = params_of("attn_bwd:bf16:b2h4k2s1025x150d64:dk_f32:grads_qk:intervals_two");
    assert_null(stw_attn_slower(STW_CALL_BWD, &own, &p));
    p = params_of("attn_bwd:bf16:b2h4k2s8193x150d64:dk_f32"); /* more than eight */
    assert_string_equal(stw_attn_slower(STW_CALL_BWD, &own, &p), wide);
    p.features |= STW_FEAT_ROUNDED_SUMS; /* of attention over ranks with 16-bit gradients */
    assert_null(stw_attn_slower(STW_CALL_BWD, &own, &p));
    p = params_of("attn_bwd:bf16:b1h1s70x50d64:bias_bhqk");
    p.bias.query = INT64_C(1) << 22;
    assert_string_equal(stw_attn_slower(STW_CALL_BWD, &own, &p), "rows of the bias beyond 32-bit offsets");
    p.bias.query = -50;
    assert_string_equal(stw_attn_slower(STW_CALL_BWD, &own, &p), "rows of the bias beyond 32-bit offsets");
    p = params_of("attn_bwd:bf16:b1h1s8388608x150d64");
    assert_string_equal(stw_attn_slower(STW_CALL_BWD, &own, &p), "too many queries for 32-bit offsets");
}

/* Masks in memory: shared kernels with all features or, on a tile that has them, for masks alone, which CDNA's own loop
 * has in both modes, and for masks with another feature; behind the kernel that finds what is hidden. */
static void masks_are_found_before(void **state) {
    static const struct {
        const char *arch, *tile;
        uint32_t wave, own; /* kernels before the main loop and behind it */
    } tiles[] = {{"sm80", "sm80_128x128_hd64", 32, 0},    {"sm80", "sm80_64x128_hd128", 32, 0},
                 {"gfx942", "gfx942_32x128_hd64", 64, 1}, {"gfx90a", "gfx90a_32x128_hd64", 64, 1},
                 {"gfx90a", "gfx90a_32x64_hd128", 64, 1}, {"gfx90a", "gfx90a_32x32_hd192", 64, 1}};
    static const char *const masks[] = {"intervals_from:causal_br", "intervals_two:det", "blockmask",
                                        "blockmask:dropout0.5", "intervals_range:softcap20"};
    (void)state;
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; ++t)
        for (size_t m = 0; m < sizeof masks / sizeof *masks; ++m) {
            char text[120];
            stw_attn_steps steps;
            stw_variant tile = tile_called(tiles[t].arch, tiles[t].tile);
            snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s300x270d64:%s", masks[m]);
            stw_attn_params p = params_of(text);
            stw_attn_steps_of(STW_CALL_BWD, &tile, &p, tiles[t].wave, &steps);
            const int own = tiles[t].own, ordered = (p.features & STW_FEAT_DETERMINISTIC) != 0;
            const int apart = tile.head_dim <= 64 && m < 3; /* else one kernel does it all */
            const int exact = own && apart && !ordered && !strcmp(tile.loop->name, "cdna_exact");
            const int every_exact = m == 4 && !strcmp(tiles[t].arch, "gfx90a");
            assert_int_equal(steps.count, 4 + (exact || every_exact));
            const char *first = steps.step[0].entry + strlen("stw_attn_bwd_preprocess_");
            const char *before = !own ? "bf16" : ordered ? "cdna_ordered_hd" : "cdna_hd";
            assert_int_equal(strncmp(first, before, strlen(before)), 0);
            assert_string_equal(steps.step[1].entry, "stw_attn_hidden_blocks");
            const int alone = m < 3 && (own || !strcmp(tile.loop->name, "split_four"));
            const char *mode = alone ? "_bf16_hidden" : !own ? "_bf16_full" : m < 4 ? "_bf16_bias" : "_bf16_every";
            assert_non_null(strstr(steps.step[2].entry, mode));
            if (own) assert_int_equal(strstr(steps.step[2].entry, "_hidden_ordered") != NULL, apart && ordered);
            if (exact) assert_non_null(strstr(steps.step[3].entry, "_bf16_hidden_exact"));
            if (every_exact) assert_non_null(strstr(steps.step[3].entry, "_bf16_every_exact"));
            assert_int_equal(steps.split.heads * steps.split.rows, 1);
        }
    /* a summed dBias: not by the kernels that know a bias alone; the forward checks behind its kernel */
    stw_variant tile = tile_called("sm80", "sm80_64x128_hd128"), fwd = tile_called("sm80", "sm80_fwd_64x64_hd128");
    stw_attn_params p = params_of("attn_bwd:bf16:b2h4k2s300x270d128:bias_1hqk:grads_qkvb:intervals_from");
    stw_attn_steps steps;
    stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 32, &steps);
    assert_int_equal(steps.count, 5);
    assert_string_equal(steps.step[2].entry, "stw_attn_dbias_reduce_32x64_hd128_bf16");
    stw_attn_steps_of(STW_CALL_FWD, &fwd, &p, 32, &steps);
    assert_int_equal(steps.count, 2);
    assert_string_equal(steps.step[1].entry, "stw_attn_hidden_blocks");
    p = params_of("attn_bwd:bf16:b2h4k2s300x270d128:blockmask");
    stw_attn_steps_of(STW_CALL_FWD, &fwd, &p, 32, &steps);
    assert_int_equal(steps.count, 1); /* bytes are not checked */
}

/* Four waves, whatever the table says of the shared kernel of the same tile; the launch says the same. */
static void f32_of_amd_has_kernels_of_its_own(void **state) {
    (void)state;
    static const struct {
        const char *tile, *problem, *entry;
        uint32_t block, smem;
    } rows[] = {
        {"gfx942_32x32_hd64_f32", "attn_bwd:f32:b2h4k2s130d64", "_f32_plain", 256, STW_CDNA_F32_SMEM(64)},
        {"gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d68:dlse", "_f32_plain", 256, STW_CDNA_F32_SMEM(128)},
        {"gfx942_16x16_hd256_f32", "attn_bwd:f32:b2h4k2s130d132:dq_f32:acc_q", "_f32_plain", 256,
         STW_CDNA_F32_SMEM(256)},
        {"gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:det", "_f32_ordered", 256, STW_CDNA_F32_SMEM(128)},
        {"gfx942_16x16_hd256_f32", "attn_bwd:f32:b2h4k2s130d192x128:det:wl9", "_f32_ordered", 256,
         STW_CDNA_F32_SMEM(256)},
        {"gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:softcap9", "_f32_every", 256, STW_CDNA_F32_SMEM(128)},
        {"gfx942_32x32_hd64_f32", "attn_bwd:f32:b2h4k2s130d64:alibi:det", "_f32_every_ordered", 256,
         STW_CDNA_F32_SMEM(64)},
        {"gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d126", "_f32_full", 128, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_variant tile = tile_called("gfx942", rows[i].tile);
        stw_attn_params p = params_of(rows[i].problem);
        stw_attn_steps steps;
        stw_attn_launch launch;
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 64, &steps);
        stw_attn_launch_fill(STW_CALL_BWD, &tile, &p, 64, &launch);
        const int own = rows[i].smem != 0;
        assert_int_equal(steps.count, 3); /* f32 leaves no work tile to a kernel behind the main loop */
        assert_int_equal((launch.vectors & STW_KEYS_DESCEND) != 0, (p.features & STW_FEAT_DETERMINISTIC) != 0);
        assert_non_null(strstr(steps.step[1].entry, rows[i].entry));
        assert_int_equal(steps.step[1].block, rows[i].block);
        assert_int_equal(launch.warps * 64, rows[i].block);
        if (own) assert_int_equal(steps.step[1].smem, rows[i].smem);
        assert_true(steps.step[1].smem <= 65536);
    }
}

static void amd_names_what_no_own_loop_takes(void **state) {
    (void)state;
    static const struct {
        const char *arch, *tile, *problem, *slower;
    } rows[] = {
        {"gfx942", "gfx942_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d128", NULL},
        {"gfx942", "gfx942_32x32_hd192", "attn_bwd:bf16:b2h4k2s130d192x128", NULL},
        {"gfx942", "gfx942_32x32_hd192", "attn_bwd:bf16:b2h4k2s130d192:alibi", NULL},
        {"gfx942", "gfx942_32x32_hd192", "attn_bwd:bf16:b2h4k2s130d192:alibi:alibi_col", NULL},
        {"gfx942", "gfx942_32x32_hd256", "attn_bwd:bf16:b2h4k2s130d256:det", NULL},
        {"gfx90a", "gfx90a_32x32_hd192", "attn_bwd:bf16:b2h4k2s130d192x128:det", NULL},
        {"gfx90a", "gfx90a_32x32_hd192", "attn_bwd:f16:b2h4k2s130d192:det", NULL},
        {"gfx90a", "gfx90a_32x32_hd256", "attn_bwd:f16:b2h4k2s130d256", NULL},
        {"gfx942", "gfx942_32x32_hd64_f32", "attn_bwd:f32:b2h4k2s130d64", NULL},
        {"gfx90a", "gfx90a_16x16_hd256_f32", "attn_bwd:f32:b2h4k2s130d252:causal_br:wl9", NULL},
        {"gfx942", "gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:alibi", NULL},
        {"gfx942", "gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:det", NULL},
        {"gfx942", "gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:det:thd", NULL},
        {"gfx90a", "gfx90a_16x16_hd256_f32", "attn_bwd:f32:b2h4k2s130d192x128:causal_br:det", NULL},
        {"gfx942", "gfx942_32x32_hd64_f32", "attn_bwd:f32:b2h4k2s130d64:softcap9:det", NULL},
        {"gfx950", "gfx950_16x16_hd256_f32", "attn_bwd:f32:b2h4k2s130d192:bias_bhqk:grads_qkvb:acc_b:softcap9", NULL},
        {"gfx942", "gfx942_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d128:bias_bhqk:grads_qkvb:dbias_f32:softcap9",
         "f32 dBias of every pair under a softcap"},
        {"gfx90a", "gfx90a_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d128:softcap9:alibi:det", NULL},
        {"gfx90a", "gfx90a_32x32_hd256", "attn_bwd:f16:b2h4k2s130d256:softcap9:intervals_two:det", NULL},
        {"gfx942", "gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:softcap1000", NULL},
        {"gfx942", "gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:softcap1e-30",
         "a softcap that is not from 2^-60 to 2^60"},
        {"gfx942", "gfx942_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d128:softcap1000",
         "a softcap that is not from 1/64 to 512"},
        {"gfx90a", "gfx90a_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:scale128", NULL},
        {"gfx90a", "gfx90a_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d128:scale-129:det",
         "a scale of f32 above the keys of a work tile"},
        {"gfx942", "gfx942_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d128:scale129", NULL},
        {"gfx942", "gfx942_16x32_hd128_f32", "attn_bwd:f32:b2h4k2s130d126",
         "rows of q that are not whole vectors of 16 bytes"},
        {"gfx942", "gfx942_32x32_hd256", "attn_bwd:bf16:b2h4k2s130d64", NULL},
        {"gfx90a", "gfx90a_32x64_hd128", "attn_bwd:f16:b2h4k2s130d128", NULL},
        {"gfx90a", "gfx90a_32x64_hd128", "attn_bwd:f16:b2h4k2s130d128:dropout0.1", NULL},
        {"gfx942", "gfx942_32x32_hd192", "attn_bwd:bf16:b2h4k2s130d192:dropout0.1", NULL},
        {"gfx90a", "gfx90a_32x32_hd192", "attn_bwd:f16:b2h4k2s130d192:dropout0.1", NULL},
        {"gfx950", "gfx950_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d128:det", NULL},
        {"gfx950", "gfx950_32x128_hd64", "attn_bwd:f16:b2h4k2s130d64:dropout0.1:alibi", NULL},
        {"gfx950", "gfx950_32x32_hd256", "attn_bwd:f16:b2h4k2s130d192x128:blockmask", NULL},
        {"gfx950", "gfx950_32x64_hd128", "attn_bwd:bf16:b2h4k2s130d96:softcap9", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_variant tile = tile_called(rows[i].arch, rows[i].tile);
        stw_attn_params p = params_of(rows[i].problem);
        const char *slower = stw_attn_slower(STW_CALL_BWD, &tile, &p);
        assert_string_equal(slower ? slower : "-", rows[i].slower ? rows[i].slower : "-");
    }
}

/* ---- Hopper ---- */

static void sm90_says_what_it_does_not_take(void **state) {
    (void)state;
    static const struct {
        const char *options, *text;
    } rows[] = {
        {"", NULL},
        {":causal_br:det", NULL},
        {":thd:seqs_full:wl9:wr3", NULL},
        {":grads_qkvs:sink", NULL},
        {":delta_in:dq_f32:acc_q", NULL},
        {":bias_bhqk", NULL},
        {":bias_1hqk:det:grads_qkvb", NULL},
        {":biasu8_b1qk", NULL},
        {":biasf32_1hqk", NULL},
        {":bias_bhqk:grads_qkvb", NULL},
        {":bias_bhqk:grads_qkvb:dbias_f32", "it makes dBias of 16 bits: "},
        {":biasf32_bhqk:grads_qkvb", "it makes dBias of 16 bits: "},
        {":biasf32_1hqk:grads_qkvb", NULL},
        {":bias_1hqk:grads_qkvb:dbias_f32", NULL},
        {":bias_bhqk:grads_qkvb:dropout0.5", NULL},
        {":bias_bhqk:grads_qkvb:softcap9", NULL},
        {":bias_1hqk:grads_qkvb:softcap9", NULL},
        {":biasf32_1hqk:dropout0.5", NULL},
        {":bias_bhqk:dk_f32", NULL},
        {":biasf32_bhqk:dk_f32", NULL},
        {":bias_bhqk:softcap9", NULL},
        {":alibi", NULL},
        {":alibi:alibi_col", NULL},
        {":softcap9:det", NULL},
        {":softcap0.015625", NULL},
        {":softcap512", NULL},
        {":softcap0.0156", "it takes a softcap from "},
        {":softcap513", "it takes a softcap from "},
        {":dropout0.5", NULL},
        {":dropout0.5:map_flash2", NULL},
        {":dropout0.5:map_mem_eff", NULL},
        {":dropout0.999999999999:map_mem_eff", "it takes no memory-efficient dropout of 1"},
        {":dropout0.5:alibi", NULL},
        {":dropout0.5:bias_bhqk", NULL},
        {":dropout0.5:alibi:bias_bhqk", NULL},
        {":softcap9:alibi", NULL},
        {":softcap9:dropout0.5", NULL},
        {":grads_q", NULL},
        {":grads_qk", NULL},
        {":dk_f32", NULL},
        {":dv_f32:acc_v", NULL},
        {":intervals_two:mask_heads:thd:seqs_full", NULL},
        {":intervals_from:causal_br:det", NULL},
        {":blockmask:dlse", NULL},
        {":blockmask:softcap9", NULL},
        {":intervals_from:alibi", NULL},
        {":intervals_from:bias_bhqk:grads_qkvb", NULL},
        {":blockmask:bias_1hqk:grads_qkvb:det", NULL},
        {":intervals_from:dk_f32:acc_k", NULL},
        {":blockmask:dv_f32:grads_kv", NULL},
        {":grads_s:sink", "it makes dQ, dK and dV"},
        {":alibi:grads_q", NULL},
        {":dropout0.5:bias_bhqk:grads_q", NULL},
        {":softcap9:dk_f32", NULL},
        {":alibi:dk_f32:dv_f32:det", NULL},
        {":dropout0.5:dv_f32", NULL},
        {":dropout0.5:dv_f32:grads_kv", NULL},
        {":dropout0.5:alibi:dv_f32", NULL},
        {":wl0:wr0", "rows see one key, "},
        {":scale0", "it hides pairs by infinite scores, "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s130x150d64%s", rows[i].options);
        stw_attn_params p = params_of(text);
        const char *refusal = stw_attn_loop_sm90.gpu->refusal(&p);
        if (!rows[i].text != !refusal || (refusal && strncmp(refusal, rows[i].text, strlen(rows[i].text))))
            fail_msg("%s: %s", text, refusal ? refusal : "taken");
    }
}

/* Under masks: a kernel lists what they leave, another in which order it is done, where there is one to find. */
static void sm90_lists_what_masks_leave(void **state) {
    (void)state;
    static const struct {
        const char *options, *mode;
        uint32_t heads, rows;
        int order;
    } rows[] = {{":intervals_two", "masks", 1, 1, 1},
                {":intervals_from:mask_heads:causal_br:det", "masks_ordered", 2, 1, 1},
                {":blockmask", "masks", 1, 1, 1},
                {":blockmask:mask_heads:det", "masks_ordered", 2, 2, 1},
                {":intervals_two:dk_f32:dv_f32", "masks_outputs", 1, 1, 1},
                {":blockmask:mask_heads:det:dv_f32:acc_v", "masks_outputs", 2, 2, 1},
                {":alibi:softcap9", "all", 1, 1, 1}, /* lists of what a band leaves */
                {":dropout0.5:bias_bhqk:dk_f32:det:causal_br", "all", 1, 1, 1},
                {":blockmask:mask_heads:alibi", "all", 2, 2, 1},
                {":bias_bhqk:grads_qkvb:softcap9", "all", 1, 1, 1},
                {":intervals_range:thd:seqs_full", "masks", 1, 1, 0}, /* packed keys: as they are listed */
                {":intervals_range:thd:seqs_full:det", "masks_ordered", 1, 1, 1}};
    stw_variant tile = tile_called("sm90", "sm90_64x128_hd128");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160], entry[STW_ATTN_ENTRY_MAX];
        stw_attn_steps steps;
        stw_attn_launch launch;
        snprintf(text, sizeof text, "attn_bwd:f16:b2h4k2s2100x300d128%s", rows[i].options);
        stw_attn_params p = params_of(text);
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 32, &steps);
        assert_int_equal(steps.count, 4 + rows[i].order);
        assert_string_equal(steps.step[1].entry, "stw_attn_bwd_visible_sm90");
        if (rows[i].order) assert_string_equal(steps.step[2].entry, "stw_attn_bwd_order_sm90");
        snprintf(entry, sizeof entry, "stw_attn_bwd_sm90_64x128_hd128_f16_%s", rows[i].mode);
        const stw_attn_step *loop = &steps.step[2 + rows[i].order];
        assert_string_equal(loop->entry, entry);
        for (const stw_attn_step *s = &steps.step[1]; s <= loop; ++s)
            assert_true(s->early && s->image == STW_KERNEL_OWN);
        stw_attn_launch_fill(STW_CALL_BWD, &tile, &p, 32, &launch);
        assert_int_equal(launch.visible_heads, rows[i].heads);
        assert_int_equal(launch.visible_rows, rows[i].rows);
        assert_int_equal(launch.visible_length, 2); /* 33 blocks of 64 rows */
        assert_true(!launch.visible_next == !rows[i].order);
    }
}

/* Sums of dBias go by what masks hide of 128 keys, where work tiles have 80, which no tile of dBias divides. */
static void sm90_lists_what_masks_hide_of_dbias(void **state) {
    (void)state;
    stw_variant tile = tile_called("sm90", "sm90_64x80_hd256");
    stw_attn_params p = params_of("attn_bwd:bf16:b2h4k2s130x300d200:blockmask:bias_11qk:grads_qkvb");
    stw_attn_steps steps;
    stw_attn_launch launch;
    stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 32, &steps);
    assert_int_equal(steps.count, 7);
    assert_string_equal(steps.step[3].entry, "stw_attn_hidden_blocks");
    assert_int_equal(steps.step[3].bn, 128);
    assert_string_equal(steps.step[4].entry, "stw_attn_dbias_reduce_32x32_hd256_bf16");
    assert_int_equal(steps.step[4].bn, 128);
    assert_string_equal(steps.step[5].entry, "stw_attn_bwd_sm90_64x80_hd256_bf16_all");
    assert_int_equal(steps.step[5].bn, 0);
    stw_attn_launch_fill(STW_CALL_BWD, &tile, &p, 32, &launch);
    assert_int_equal(launch.bn, 80);
    assert_int_equal(launch.hidden_tiles, 6); /* 300 keys of two sequences */
}

/* The kernels before and behind the main loop: sm90's own for the usual options and rows of whole vectors. */
static void sm90_has_kernels_of_rows(void **state) {
    (void)state;
    static const struct {
        const char *options;
        int own;
    } rows[] = {
        {"", PREPROCESS | POSTPROCESS},
        {":causal_br:det", PREPROCESS | POSTPROCESS},
        {":thd:seqs_full", PREPROCESS | POSTPROCESS},
        {":bhsd", PREPROCESS | POSTPROCESS},
        {":softcap9", PREPROCESS | POSTPROCESS},
        {":dk_f32", PREPROCESS | POSTPROCESS},
        {":delta_in", POSTPROCESS},
        {":delta_out", POSTPROCESS},
        {":dlse", POSTPROCESS},
        {":grads_qkvs:sink", NONE},
        {":grads_kv", NONE},
        {":dq_f32", PREPROCESS},
        {":dq_f32:acc_q", PREPROCESS},
        {":bias_bhqk:grads_qkvb", POSTPROCESS}, /* zeros of dBias come ahead of the main loop */
        {":bias_1hqk:grads_qkvb", PREPROCESS | POSTPROCESS},
        {":st_out1318400,64,1280", PREPROCESS | POSTPROCESS},
        {":st_out1322520,64,1284", POSTPROCESS},
        {":st_dq1322520,64,1284", PREPROCESS},
    };
    stw_variant tile = tile_called("sm90", "sm90_128x128_hd64");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h20k20s1030x1050d64%s", rows[i].options);
        stw_attn_params p = params_of(text);
        stw_attn_steps steps;
        int found = NONE;
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 32, &steps);
        for (uint32_t k = 0; k < steps.count; ++k) {
            const stw_attn_step *s = &steps.step[k];
            int is = strstr(s->entry, "_preprocess_sm90_hd64_bf16")    ? PREPROCESS
                     : strstr(s->entry, "_postprocess_sm90_hd64_bf16") ? POSTPROCESS
                                                                       : NONE;
            if (is) assert_int_equal(s->image, STW_KERNEL_OWN);
            if (k + 1 == steps.count) assert_true(s->early); /* the last kernel awaits the one before it */
            found |= is;
        }
        if (found != rows[i].own) fail_msg("%s: %d", text, found);
    }
}

/* Wide heads: as narrow ones, and a loop for head_dim_v to 128. */
static void sm90_wide_says_what_it_does_not_take(void **state) {
    (void)state;
    stw_attn_params equal = params_of("attn_bwd:bf16:b2h4k2s130x150d192"),
                    v128 = params_of("attn_bwd:bf16:b2h4k2s130x150d192x128"),
                    dropout = params_of("attn_bwd:bf16:b2h4k2s130x150d192x128:dropout0.5"),
                    biased = params_of("attn_bwd:bf16:b2h4k2s130x150d192:bias_bhqk");
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&equal));
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&v128));
    assert_null(stw_attn_loop_sm90_tall.gpu->refusal(&v128));
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&dropout));
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&biased));
    assert_string_equal(stw_attn_loop_sm90_tall.gpu->refusal(&biased),
                        "a thread has no two keys side by side, which a bias comes in");
    stw_attn_params masked = params_of("attn_bwd:bf16:b2h4k2s130x150d192:intervals_from");
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&masked));
    assert_string_equal(stw_attn_loop_sm90_tall.gpu->refusal(&masked), "it takes no interval and block masks");
    stw_attn_params masked_alibi = params_of("attn_bwd:bf16:b2h4k2s130x150d192:blockmask:alibi"),
                    masked_dbias = params_of("attn_bwd:bf16:b2h4k2s130x150d192:blockmask:bias_11qk:grads_qkvb"),
                    wider_dbias = params_of("attn_bwd:bf16:b2h4k2s130x150d200:blockmask:bias_11qk:grads_qkvb"),
                    capped_dbias = params_of("attn_bwd:bf16:b2h4k2s130x150d192:softcap9:bias_bhqk:grads_qkvb"),
                    f32_dbias = params_of("attn_bwd:bf16:b2h4k2s130x150d192:biasf32_bhqk:grads_qkvb"),
                    f32_alibi = params_of("attn_bwd:bf16:b2h4k2s130x150d192x128:alibi:dk_f32");
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&masked_alibi));
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&masked_dbias));
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&wider_dbias));
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&capped_dbias));
    assert_string_equal(stw_attn_loop_sm90_wide.gpu->refusal(&f32_dbias),
                        "it makes dBias of 16 bits: sums as good as f32 made it slower than this");
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&f32_alibi));
    assert_string_equal(stw_attn_loop_sm90_tall.gpu->refusal(&f32_alibi),
                        "it takes ALiBi or a softcap, with all gradients of the inputs' type");
    stw_attn_params both = params_of("attn_bwd:bf16:b2h4k2s130x150d192:dropout0.5:alibi"),
                    f32_keys = params_of("attn_bwd:bf16:b2h4k2s130x150d64:dk_f32"),
                    wider = params_of("attn_bwd:bf16:b2h4k2s130x150d64x72:dk_f32");
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&both));
    assert_string_equal(
        stw_attn_loop_sm90_wide.gpu->refusal(&f32_keys),
        "it would pad 64 columns to 192, for f32 dK and dV, a subset of the gradients, dropout or a bias");
    assert_null(stw_attn_loop_sm90_wide.gpu->refusal(&wider));
    assert_string_equal(stw_attn_loop_sm90_tall.gpu->refusal(&dropout), "it has no room for what is dropped");
    assert_string_equal(stw_attn_loop_sm90_tall.gpu->refusal(&equal), "it takes head_dim_v to 128");
}

/* Few rows: all query heads of a kv head together. */
static void sm90_few_says_what_it_does_not_take(void **state) {
    (void)state;
    static const struct {
        const char *problem, *of_16, *of_64;
    } rows[] = {
        {"b2h4k2s8x1100d64", NULL, NULL},
        {"b2h4k2s9x1100d64", "all query heads of a kv head have more than 16 rows", NULL},
        {"b1h64k1s1x1100d128:causal_br:det", "all query heads of a kv head have more than 16 rows", NULL},
        {"b1h2s65x1100d128", "all query heads of a kv head have more than 16 rows",
         "all query heads of a kv head have more than 64 rows"},
        {"b1h2s1x1100d40:used:wl9:dq_f32:acc_q:grads_q", NULL, NULL},
        {"b1h2s8x1100d64:thd:tq9:tk1200", "it takes dense tensors", "it takes dense tensors"},
        {"b1h2s8x1100d64:alibi", "it takes no bias, ALiBi, softcap and dropout",
         "it takes no bias, ALiBi, softcap and dropout"},
        {"b1h2s8x1100d64:dk_f32", "it makes dK and dV in the inputs' type", "it makes dK and dV in the inputs' type"},
        {"b1h2s8x1100d64:sink:grads_s", "it makes dQ, dK and dV", "it makes dQ, dK and dV"},
        {"b1h2s8x1100d64:wl0:wr0", "rows see one key, and its sums of dP are truncated, not rounded",
         "rows see one key, and its sums of dP are truncated, not rounded"},
        {"b1h2s8x1100d44",
         "it loads 16 bytes at a time: strides and head dims of q, k, v and dout are multiples of 8 elements",
         "it loads 16 bytes at a time: strides and head dims of q, k, v and dout are multiples of 8 elements"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:%s", rows[i].problem);
        stw_attn_params p = params_of(text);
        const char *of_16 = stw_attn_loop_few16.gpu->refusal(&p), *of_64 = stw_attn_loop_few64.gpu->refusal(&p);
        if (!of_16 != !rows[i].of_16 || (of_16 && strcmp(of_16, rows[i].of_16)))
            fail_msg("%s: %s", text, of_16 ? of_16 : "taken");
        if (!of_64 != !rows[i].of_64 || (of_64 && strcmp(of_64, rows[i].of_64)))
            fail_msg("%s: %s", text, of_64 ? of_64 : "taken");
    }
}

static void sm90_few_counts_work_tiles(void **state) {
    (void)state;
    stw_attn_params p = params_of("attn_bwd:bf16:b2h2s8x1100d64");
    p.batch = INT64_C(1) << 29;
    assert_string_equal(stw_attn_loop_few16.gpu->refusal(&p), "it counts work tiles in 31 bits");
}

/* A loop that no variant has (common/tuning/README.md): a kernel for deterministic mode, all gradients, no window. */
static void split_ordered_has_a_kernel_for_turns(void **state) {
    (void)state;
    static const struct {
        const char *options;
        int ordered;
    } rows[] = {{"", 0},         {":det", 1},         {":det:causal_br", 0},
                {":det:wl9", 0}, {":det:grads_q", 0}, {":det:softcap9", 0}};
    stw_variant tile = tile_called("sm80", "sm80_64x128_hd128");
    tile.loop = &stw_attn_loop_split_ordered;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        stw_attn_steps steps;
        stw_attn_launch launch;
        int found = 0;
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2s1030x1050d128%s", rows[i].options);
        stw_attn_params p = params_of(text);
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 32, &steps);
        for (uint32_t k = 0; k < steps.count; ++k) found |= strstr(steps.step[k].entry, "_ordered") != NULL;
        stw_attn_launch_fill(STW_CALL_BWD, &tile, &p, 32, &launch);
        if (found != rows[i].ordered) fail_msg("%s: %s", text, steps.step[1].entry);
    }
}

/* Slices of a head's keys: as many as keep the device busy, alike, and of no more than 8192 keys. */
static void sm90_few_slices_the_keys(void **state) {
    (void)state;
    const stw_variant tile = tile_called("sm90", "sm90_few64_hd128");
    static const struct {
        const char *problem;
        uint32_t units, keys;
    } rows[] = {
        {"attn_bwd:bf16:b8h16s64x16384d128", 132, 8192},  /* 256 slices, 264 CTAs */
        {"attn_bwd:bf16:b1h16s64x16384d128", 132, 1024},  /* the same */
        {"attn_bwd:bf16:b64h16s64x65536d128", 132, 7296}, /* no more than 8192 in a sum */
        {"attn_bwd:bf16:b1h1s64x1000d128", 132, 64},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_attn_params p = params_of(rows[i].problem);
        stw_attn_choice choice;
        p.units = rows[i].units;
        tile.loop->gpu->plan(&tile, &p, 32, &choice);
        if (choice.bn != rows[i].keys) fail_msg("%s: %u", rows[i].problem, choice.bn);
    }
}

#define FIELD(name) offsetof(stw_attn_params, name)

static void sm90_wants_what_tensor_loads_take(void **state) {
    (void)state;
    static const char empty[] = "it takes no empty tensors",
                      strides[] = "tensor loads need strides of q, k, v and dout ",
                      key_blocks[] = "with masks it numbers key blocks in 16 bits in deterministic mode",
                      numbers[] = "it numbers query blocks of masks in 20 bits, and words of them in 32";
    static const struct {
        const char *problem, *text;
        size_t field;
        int64_t value;
    } rows[] = {
        {"s130x150d64", empty, FIELD(max_seq_q), 0},
        {"s130x150d64", empty, FIELD(max_seq_kv), 0},
        {"s130x150d64", empty, FIELD(batch), 0},
        {"s130x150d64", empty, FIELD(heads_kv), 0},
        {"s130x150d64:thd:seqs_full", empty, FIELD(total_q), 0},
        {"s130x150d64:thd:seqs_full", empty, FIELD(total_kv), 0},
        {"s130x150d64:thd:seqs_full", empty, FIELD(max_seq_q), 0},
        {"s130x150d64:thd:seqs_full", empty, FIELD(max_seq_kv), 0},
        {"s130x150d64", "it counts work tiles in 31 bits", FIELD(heads_kv), INT64_C(1) << 30},
        {"s130x150d64", strides, FIELD(max_seq_q), INT64_C(1) << 30},
        {"s130x150d64", strides, FIELD(heads_q), INT64_C(1) << 30},
        {"s130x100d64", strides, FIELD(batch), INT64_C(1) << 29}, /* of dout, behind its stride of batches */
        {"s130x150d64", strides, FIELD(q.seq), 12},
        {"s130x150d64", strides, FIELD(q.seq), -64},
        {"s130x150d64", NULL, FIELD(q.seq), 0}, /* every row is the same one */
        {"s130x150d64", strides, FIELD(q.seq), INT64_C(1) << 39},
        {"s130x150d64", strides, FIELD(q.head), 4},
        {"s130x150d64", strides, FIELD(q.batch), 4},
        {"s130x150d64", strides, FIELD(dout.seq), 12},
        {"s130x150d64", strides, FIELD(k.seq), 12},
        {"s130x150d64", strides, FIELD(v.seq), 12},
        {"s130x150d64:thd:seqs_full", NULL, FIELD(q.batch), 4}, /* packed: there is one batch */
        {"s1x150d64", NULL, FIELD(q.seq), 12},                  /* one row: no step */
        {"s130x150d64:intervals_from", empty, FIELD(max_seq_q), 0},
        {"s130x150d64:blockmask", empty, FIELD(max_seq_kv), 0},
        {"s130x150d64:intervals_from:det", NULL, FIELD(max_seq_kv), 0xFFFE * 128},
        {"s130x150d64:intervals_from:det", key_blocks, FIELD(max_seq_kv), 0xFFFE * 128 + 1},
        {"s130x150d64:blockmask", NULL, FIELD(max_seq_q), INT64_C(1) << 26}, /* of 64 rows, 32 blocks a word */
        {"s130x150d64:blockmask", numbers, FIELD(max_seq_q), (INT64_C(1) << 26) + 1},
        {"s130x150d64:intervals_from:mask_heads", numbers, FIELD(batch), INT64_C(1) << 28},
        {"s67108864x150d64:blockmask:mask_heads", numbers, FIELD(batch),
         1 << 14}, /* 2^16 words, 2^17 heads of blocks */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:b2h4k2%s", rows[i].problem);
        stw_attn_params p = params_of(text);
        assert_null(stw_attn_loop_sm90.gpu->refusal(&p));
        if (rows[i].field == FIELD(batch) && rows[i].value) p.q.batch = 12; /* a stride that does not matter now */
        memcpy((char *)&p + rows[i].field, &rows[i].value, sizeof rows[i].value);
        const char *refusal = stw_attn_loop_sm90.gpu->refusal(&p);
        if (!rows[i].text != !refusal || (refusal && strncmp(refusal, rows[i].text, strlen(rows[i].text))))
            fail_msg("row %zu, %s: %s", i, text, refusal ? refusal : "taken");
    }
}

/* ---- parts of work tiles ---- */

static stw_attn_steps split_steps(const char *variant, const char *text, uint32_t units, stw_attn_params *p) {
    stw_attn_steps steps;
    stw_variant tile = tile_called("sm90", variant);
    *p = params_of(text);
    p->units = units;
    stw_attn_steps_of(STW_CALL_BWD, &tile, p, 32, &steps);
    return steps;
}

/* Few work tiles are split until the device is busy, many are not, and a device whose size is not known never. Parts of
 * sm90's own loop add in one place where its own kernels make zeros of it and 16-bit dK and dV of what is there. */
static void few_work_tiles_are_split(void **state) {
    (void)state;
    enum { WHOLE, PLACES, ADDED }; /* sums of each part have a place of their own; are added in one */
    static const struct {
        const char *variant, *problem;
        int parts;
        const char *mode; /* of the main loop's kernel where it is in parts, NULL: its usual one */
    } rows[] = {
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:causal_br", ADDED, "_general"},
        {"sm90_64x128_hd96", "bf16:b1h8k1s8192d96", ADDED, "_general"},
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:det", PLACES, "_general_ordered"},
        {"sm90_128x128_hd64", "bf16:b1h1s8192d64", ADDED, "_general"},
        {"sm90_128x128_hd64", "bf16:b1h1s8192d64:acc_v:dv_f32", PLACES, "_general"},
        {"sm90_128x128_hd64", "bf16:b1h1s8192d64:dq_f32", PLACES, "_general"},
        {"sm90_128x128_hd64", "bf16:b1h1s8192d64:grads_qk", ADDED, "_general"},
        {"sm90_128x128_hd64", "bf16:b1h1s8192d64:sink:grads_qkvs", PLACES, "_general"},
        {"sm90_128x128_hd64", "bf16:b8h32k4s2048d64:thd:tq4096:tk4096", ADDED, "_general"},
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:softcap9", ADDED, "_softcap_outputs"},
        {"sm90_128x128_hd64", "f16:b1h8k1s8192d64:dropout0.1:grads_kv", PLACES, "_dropout_outputs"},
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:biasu8_b1qk", ADDED, "_bias_outputs"},
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:bias_b1qk", PLACES, "_bias_outputs"},
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:alibi", PLACES, "_alibi_outputs"}, /* far sums are tiny */
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:softcap9:dk_f32", WHOLE, NULL},    /* drained */
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:bias_1hqk:grads_qkvb", WHOLE, NULL},
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:softcap9:alibi", WHOLE, NULL}, /* goes by lists of visible blocks */
        {"sm90_64x128_hd128", "bf16:b1h8k1s8192d128:intervals_from", WHOLE, NULL},
        {"sm90_64x80_hd256", "bf16:b1h8k1s8192d256:causal_br", PLACES, "_outputs"},
        {"sm90_64x80_hd256", "bf16:b1h8k1s8192d256:softcap9:det", PLACES, "_features"},
        {"sm90_64x96_hd192", "f16:b1h8k1s8192d192:dropout0.1", PLACES, "_dropout_outputs"},
        {"sm90_64x96_hd192", "f16:b1h8k1s8192d192:dk_f32:acc_k", PLACES, "_outputs"},
        {"sm90_64x96_hd192", "f16:b1h8k1s8192d192:bias_1hqk", PLACES, "_bias"},
        {"sm90_64x96_hd192", "f16:b1h8k1s8192d192:bias_1hqk:grads_qkvb", WHOLE, NULL},
        {"sm90_64x128_hd192v128", "bf16:b1h8k1s8192d192x128:alibi", PLACES, "_features"},
        {"sm80_64x128_hd128", "bf16:b1h8k1s8192d128:causal_br", PLACES, "_plain"},
        {"sm80_64x128_hd96", "bf16:b1h8k1s8192d96:causal_br", WHOLE, NULL}, /* its sums are no whole shares */
        {"sm80_64x128_hd128", "bf16:b1h8k1s8192d128:alibi", PLACES, "_alibi"},
        {"sm80_128x128_hd64", "f16:b1h8k1s8192d64:dropout0.1:det", PLACES, "_drop"},
        {"sm80_64x128_hd128", "bf16:b1h8k1s8192d128:alibi:softcap9", WHOLE, NULL}, /* one of all features */
        {"sm90_64x128_hd128", "bf16:b8h16s4096d128:causal_br", WHOLE, NULL},
        {"sm90_64x80_hd256", "bf16:b1h8s1024d256:causal_br", WHOLE, NULL},
        {"sm90_128x128_hd64", "bf16:b1h1s128d64", WHOLE, NULL},
        {"sm90_64x128_hd128", "bf16:b1h1s8192d128:det", WHOLE, NULL}, /* the workspace would be above 4 times dQ */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        stw_attn_params p;
        snprintf(text, sizeof text, "attn_bwd:%s", rows[i].problem);
        stw_attn_steps steps = split_steps(rows[i].variant, text, 132, &p);
        const uint32_t parts = steps.split.heads * steps.split.rows;
        const int splits = parts > 1;
        const stw_attn_step *main = &steps.step[1], *last = &steps.step[steps.count - 1];
        if (splits != (rows[i].parts != WHOLE)) fail_msg("%s: %ux%u", text, steps.split.heads, steps.split.rows);
        assert_int_equal(p.group % steps.split.heads, 0);
        assert_int_equal(strstr(last->entry, "postprocess_parts") != NULL, rows[i].parts == PLACES);
        if (rows[i].parts == ADDED) assert_non_null(strstr(last->entry, "postprocess_sm90_hd"));
        if (splits) assert_string_equal(main->entry + strlen(main->entry) - strlen(rows[i].mode), rows[i].mode);
        size_t whole = split_steps(rows[i].variant, text, 0, &p).workspace;
        assert_int_equal(split_steps(rows[i].variant, text, 0, &p).split.heads, 1);
        if (!splits) assert_int_equal(steps.workspace, whole);
        else assert_true(steps.workspace > whole);
    }
}

/* Where all CTAs of Hopper's own first kernel run at once, four a multiprocessor, the main loop begins behind it. */
static void main_loops_begin_behind_few_ctas(void **state) {
    (void)state;
    static const struct {
        const char *problem;
        uint32_t early;
    } rows[] = {
        {"b1h8s4096d128", 0},          {"b1h8s4160d128", 0}, /* 520 query blocks, a list and a check; 4 x 132 are 528 */
        {"b1h8s4224d128", 1},          {"b1h16s4096d128", 1},
        {"b8h12s512d64:causal_br", 0}, {"b4h8s2048d64:thd:tq4096:tk4096", 1},
        {"b1h8s1024d64:dlse", 1}, /* the shared first kernel */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        stw_attn_params p;
        snprintf(text, sizeof text, "attn_bwd:bf16:%s", rows[i].problem);
        const char *variant = strstr(text, "d128") ? "sm90_64x128_hd128" : "sm90_128x128_hd64";
        stw_attn_steps steps = split_steps(variant, text, 132, &p);
        if (steps.step[1].early != rows[i].early) fail_msg("%s: %u", text, steps.step[1].early);
    }
}

/* Of AMD those of CDNA's own loop, in every mode; the shared loop's are whole. The last kernel adds them, whichever
 * makes dQ. */
static void few_work_tiles_of_amd_are_split(void **state) {
    (void)state;
    static const struct {
        const char *tile, *problem, *last; /* kernel; NULL: whole */
        uint32_t units;
    } rows[] = {
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128", "postprocess_cdna_hd128_bf16", 304},
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128:causal_br:det", "postprocess_cdna_hd128_bf16", 304},
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128:dq_f32", "postprocess_parts", 304},
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128:alibi", "postprocess_cdna_hd128_bf16", 304},
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128:dropout0.1:sink:grads_qkvs", "postprocess_parts", 304},
        {"gfx942_32x32_hd192", "bf16:b1h16k2s4096d192x128", "postprocess_cdna_hd192_bf16", 304},
        {"gfx942_32x32_hd256", "bf16:b1h8k1s4096d256", "postprocess_cdna_hd256_bf16", 304},
        {"gfx942_32x128_hd64", "f16:b8h32k4s2048d64:thd:tq4096:tk4096", "postprocess_cdna_hd64_f16", 304},
        {"gfx942_16x32_hd128_f32", "f32:b1h8k1s2048d128", "postprocess_parts", 304},
        {"gfx90a_32x64_hd128", "bf16:b1h8k1s2048d128", "postprocess_cdna_hd128_bf16", 104},
        {"gfx90a_32x64_hd128", "f16:b1h8k1s2048d128:softcap30", "postprocess_cdna_hd128_f16", 104},
        {"gfx942_32x64_hd128", "bf16:b8h32k8s8192d128:causal_br", NULL, 304}, /* there are enough */
        {"gfx942_32x64_hd128", "bf16:b1h8s128d128", NULL, 304},               /* sums would cost more than steps */
        {"gfx942_32x64_hd128", "bf16:b1h1s2048d128:det", NULL, 304},          /* workspace above 4 times dQ */
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128:alibi:softcap30", "postprocess_cdna_hd128_bf16", 304},
        {"gfx942_32x64_hd128", "bf16:b1h32k8s2048d128:alibi:softcap600", NULL, 304}, /* the shared loop */
        {"gfx90a_32x32_hd256", "f16:b1h8k1s4096d256", "postprocess_cdna_hd256_f16", 104},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:%s", rows[i].problem);
        stw_attn_params p = params_of(text), unknown = p;
        stw_variant tile = tile_called(strncmp(rows[i].tile, "gfx90a", 6) ? "gfx942" : "gfx90a", rows[i].tile);
        stw_attn_steps steps, whole;
        p.units = rows[i].units;
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 64, &steps);
        stw_attn_steps_of(STW_CALL_BWD, &tile, &unknown, 64, &whole);
        const stw_attn_step *last = &steps.step[steps.count - 1], *main = &steps.step[1];
        const uint32_t parts = steps.split.heads * steps.split.rows;
        if ((parts > 1) != (rows[i].last != NULL)) fail_msg("%s: %ux%u", text, steps.split.heads, steps.split.rows);
        assert_int_equal(whole.split.heads * whole.split.rows, 1);
        assert_int_equal(p.group % steps.split.heads, 0);
        assert_int_equal(main->work_tiles, whole.step[1].work_tiles * parts);
        if (parts == 1) continue;
        assert_string_equal(last->entry + strlen("stw_attn_bwd_"), rows[i].last);
        const double dq = (double)(stw_query_blocks_most(&p, 32) * p.heads_q) * 32 * tile.head_dim * sizeof(float);
        assert_true(steps.workspace > whole.workspace);
        if (p.features & STW_FEAT_DETERMINISTIC && (double)steps.workspace > 4 * dq)
            fail_msg("%s: %zu bytes, dQ %.0f", text, steps.workspace, dq);
    }
}

/* However many work tiles there are: no sum of f32 dK or dV has more than 2048 query rows. */
static void f32_sums_of_amd_are_short(void **state) {
    (void)state;
    static const struct {
        const char *problem;
        uint32_t heads, rows; /* parts; 0: the shared loop */
    } rows[] = {
        {"b16h64s2048d128:dk_f32", 1, 1},
        {"b16h64s4096d128:dv_f32", 1, 2},
        {"b16h64s16384d128:dk_f32:dv_f32:acc_kv", 1, 8},
        {"b16h64k32s8192d64:dv_f32:causal_br", 2, 4},
        {"b16h64k16s2048d256:dk_f32", 4, 1},
        {"b16h64k16s2048d128:dk_f32:dropout0.1", 4, 1},
        {"b16h64k32s8192d128", 1, 1},
        {"b16h64s16385d128:dk_f32", 0, 0},
        {"b16h64s4096d128:dk_f32:intervals_two", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:bf16:%s", rows[i].problem);
        stw_attn_params p = params_of(text);
        const char *names[] = {"gfx942_32x128_hd64", "gfx942_32x64_hd128", "gfx942_32x32_hd256"};
        stw_variant tile = tile_called("gfx942", names[p.head_dim_qk / 128]);
        stw_attn_steps steps;
        p.units = 304;
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 64, &steps);
        const int own = stw_attn_slower(STW_CALL_BWD, &tile, &p) == NULL;
        if (own != (rows[i].heads > 0) || steps.split.heads != stw_larger(1, rows[i].heads) ||
            steps.split.rows != stw_larger(1, rows[i].rows))
            fail_msg("%s: own loop %d, %ux%u parts", text, own, steps.split.heads, steps.split.rows);
    }
}

/* XCDs get whole heads where they share them evenly; then as many heads as go through their key blocks together divide
 * an XCD's. */
typedef struct xcds_row {
    const char *problem;
    uint32_t units, xcds;
} xcds_row;

static void check_xcds(const char *arch, const char *id, const char *type, const xcds_row *rows, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        char text[160];
        snprintf(text, sizeof text, "attn_bwd:%s:%s", type, rows[i].problem);
        stw_attn_params p = params_of(text);
        stw_variant tile = tile_called(arch, id);
        stw_attn_launch l;
        p.units = rows[i].units;
        stw_attn_launch_of(STW_CALL_BWD, &tile, &p, 64, (void *)0x10000, &l);
        const uint32_t xcds = l.vectors >> STW_XCDS_SHIFT;
        if (xcds != rows[i].xcds) fail_msg("%s of %u units: %u XCDs", text, rows[i].units, xcds);
        if (xcds) assert_int_equal(l.p.batch * l.p.heads_kv % (xcds * l.heads_in_l2), 0);
    }
}

static void xcds_get_whole_heads(void **state) {
    (void)state;
    static const xcds_row gfx942[] = {
        {"b1h32k8s8192d128", 304, 8},         {"b1h32k8s8192d128:causal_br", 304, 8},
        {"b3h16s8192d128:causal_br", 304, 8}, {"b1h32k8s8192d128", 228, 0},
        {"b1h12s8192d128", 228, 6},           {"b1h32k8s8192d128", 76, 2},
        {"b1h32k8s8192d128", 38, 0},          {"b1h32k8s8192d128:det", 304, 0},
        {"b1h32k8s8192d128", 104, 0},         {"b2h8s300d128:thd:tq600:tk600", 304, 0},
        {"b1h8k1s2048d128", 304, 8}, /* of parts by query heads */
    };
    static const xcds_row gfx950[] = {
        {"b1h32k8s8192d128", 256, 8},
        {"b1h32k8s8192d128", 64, 2},
        {"b1h32k8s8192d128", 32, 0},
        {"b1h32k8s8192d128:det", 256, 0},
    };
    check_xcds("gfx942", "gfx942_32x64_hd128", "bf16", gfx942, sizeof gfx942 / sizeof *gfx942);
    check_xcds("gfx950", "gfx950_32x64_hd128", "bf16", gfx950, sizeof gfx950 / sizeof *gfx950);
    check_xcds("gfx950", "gfx950_16x32_hd128_f32", "f32", gfx950, sizeof gfx950 / sizeof *gfx950);
}

/* f32 dK and dV have kernels of their own, which drain long sums. Those of few outputs and of narrow heads' parts do
 * not: there no sum has more query rows than terms of one sign allow (sum_rows), or the loop refuses. */
static void f32_sums_are_drained_or_short(void **state) {
    (void)state;
    static const struct {
        const char *problem, *kernel;
        uint32_t parts; /* 0: refused */
    } rows[] = {{"f16:b16h64k64s2048d128:dk_f32", "f16_outputs", 1},
                {"bf16:b16h64k64s100000d128:dv_f32", "bf16_outputs", 1},
                {"f16:b16h64k16s16384d128:dk_f32:dv_f32:acc_kv", "f16_outputs", 1},
                {"f16:b16h64k64s16384d128:dk_f32:det", "f16_outputs_ordered", 1},
                {"f16:b1h64k2s1024x4096d128:dk_f32", "f16_outputs", 1},
                {"f16:b16h64k64s4096d128:dk_f32:grads_qv", "f16_general", 1},
                {"f16:b16h64k64s4096d128:dk_f32:grads_qk", "f16_general", 4}, /* of 1024 rows */
                {"bf16:b16h64k64s4096d128:dk_f32:grads_qk", "bf16_general", 1},
                {"bf16:b16h60k10s2048d128:dk_f32:grads_k", "bf16_general", 3},
                {"f16:b16h64k64s16385d128:dv_f32:grads_v", "", 0},
                {"f16:b16h64k64s4096d128:dk_f32:grads_k:det", "", 0},
                {"f16:b16h64k64s100000d64:dv_f32:grads_v:wl1000:wr500", "f16_general", 1},
                {"f16:b16h64k16s16384d128", "f16_plain", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[160], entry[160];
        stw_attn_params p;
        snprintf(text, sizeof text, "attn_bwd:%s", rows[i].problem);
        stw_attn_steps steps = split_steps("sm90_64x128_hd128", text, 132, &p);
        const char *refusal = stw_attn_loop_sm90.gpu->refusal(&p);
        if (!refusal != !!rows[i].parts || (refusal && !strstr(refusal, "too many rows")))
            fail_msg("%s: %s", text, refusal ? refusal : "taken");
        snprintf(entry, sizeof entry, "stw_attn_bwd_sm90_64x128_hd128_%s", rows[i].kernel);
        if (rows[i].parts &&
            (steps.split.heads * steps.split.rows != rows[i].parts || strcmp(steps.step[1].entry, entry)))
            fail_msg("%s: %u x %u parts, %s", text, steps.split.heads, steps.split.rows, steps.step[1].entry);
    }
}

/* Deterministic mode promises a workspace of at most 4 times dQ in f32. */
static void ordered_parts_keep_the_workspace(void **state) {
    (void)state;
    int wide_parts = 0;
    static const char *const problems[][2] = {{"sm90_64x128_hd128", "b1h8k1s8192d128"},
                                              {"sm90_64x128_hd128", "b1h1s1000d128"},
                                              {"sm90_64x128_hd128", "b1h6k2s4096x2048d128:causal_br"},
                                              {"sm90_64x128_hd128", "b1h8k1s1024x8192d128"},
                                              {"sm90_64x128_hd128", "b2h16s16384d128:dk_f32"},
                                              {"sm90_64x128_hd128", "b1h2k1s1024d128:softcap9"},
                                              {"sm90_64x96_hd192", "b1h2k1s2000d192"},
                                              {"sm90_64x96_hd192", "b1h5k1s768x960d192"},
                                              {"sm90_64x96_hd192", "b1h8k1s1024x768d136"},
                                              {"sm90_64x80_hd256", "b1h5k1s832x1040d200"},
                                              {"sm90_64x80_hd256", "b1h8k1s1024x800d256"},
                                              {"sm90_64x96_hd192", "b1h8k1s1024x8192d192:dk_f32"},
                                              {"sm90_64x80_hd256", "b1h2k1s2000d256:dropout0.1"},
                                              {"sm90_64x80_hd256", "b1h8k1s8192d256:softcap9"},
                                              {"sm90_64x128_hd192v128", "b1h2k1s2000d192x128"}};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) {
        char text[160];
        stw_attn_params p;
        snprintf(text, sizeof text, "attn_bwd:bf16:%s:det", problems[i][1]);
        stw_attn_steps steps = split_steps(problems[i][0], text, 132, &p);
        double dq = (double)(p.batch * p.heads_q * p.max_seq_q * p.head_dim_qk) * sizeof(float);
        if ((double)steps.workspace > 4 * dq) fail_msg("%s: %zu bytes, dQ %.0f", text, steps.workspace, dq);
        wide_parts += (strstr(problems[i][0], "_hd192") || strstr(problems[i][0], "hd256")) && steps.split.heads > 1;
    }
    assert_true(wide_parts >= 2); /* the rows are no proof where work tiles stay whole */
}

static void tiles_are_for_their_calls(void **state) {
    (void)state;
    stw_attn_params p = params_of("attn_bwd:bf16:b2h4k2s130x150d64"), f32 = params_of("attn_bwd:f32:b2h4k2s130x150d64");
    stw_variant backward = tile_called("sm80", "sm80_64x128_hd64"),
                forward = tile_called("sm80", "sm80_fwd_64x64_hd64");
    stw_variant exact = tile_called("sm80", "sm80_32x64_hd64_f32");
    assert_null(stw_attn_tile_refusal(STW_CALL_BWD, &backward, &p));
    assert_null(stw_attn_tile_refusal(STW_CALL_FWD, &forward, &p));
    assert_null(stw_attn_tile_refusal(STW_CALL_BWD, &exact, &f32));
    assert_string_equal(stw_attn_tile_refusal(STW_CALL_FWD, &backward, &p), "it is a backward's tile");
    assert_string_equal(stw_attn_tile_refusal(STW_CALL_BWD, &forward, &p), "it is a forward's tile");
    assert_string_equal(stw_attn_tile_refusal(STW_CALL_BWD, &exact, &p), "its kernels are f32's");
    assert_string_equal(stw_attn_tile_refusal(STW_CALL_BWD, &backward, &f32), "its kernels are f16's and bf16's");
}

/* ---- classes of sizes ---- */

static uint64_t random_state = 20261122;

static int64_t random_below(int64_t bound) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)(random_state >> 33) % bound;
}

static void classes_of_sizes(void **state) {
    (void)state;
    for (int64_t size = 0; size <= 16; ++size) assert_int_equal(stw_size_class(size), size);
    assert_int_equal(stw_size_class(17), 18);
    assert_int_equal(stw_size_class(255), 256);
    assert_int_equal(stw_size_class(257), 288);
    assert_int_equal(stw_size_class(INT32_MAX), INT64_C(1) << 31);
    for (int n = 0; n < 100000; ++n) {
        int64_t size = random_below(INT64_C(1) << (1 + n % 31)), largest = stw_size_class(size);
        assert_true(largest >= size && (largest - size) * 8 <= size);
        assert_int_equal(stw_size_class(largest), largest);
        assert_true(stw_size_class(size + 1) >= largest);
    }
}

/* Sizes of all orders, often where an even row of CDNA's kernels is just within reach or just not. */
static int64_t any_size(const stw_attn_params *p) {
    int64_t reach = (INT64_C(1) << 30) / (p->q.seq + 256) - 256;
    return random_below(3) ? 1 + random_below(INT64_C(1) << (1 + random_below(22)))
                           : stw_larger(1, reach - reach / 9 + random_below(reach / 4 + 1));
}

static stw_attn_params any_params(int n) {
    static const char *const problems[] = {
        "attn_bwd:bf16:b2h4k2s130x150d64:thd:tq300:tk300",
        "attn_bwd:bf16:b2h4k2s130x150d64:thd:tq300:tk300:det:causal_br",
        "attn_bwd:f16:b2h4k2s130x150d128:thd:tq300:tk300:dropout0.1:wl9",
        "attn_bwd:bf16:b2h4s130x150d128:thd:tq300:tk300:biasbf16_11qk:grads_qkvb",
        "attn_bwd:f32:b2h4k2s130x150d96:thd:tq300:tk300:bias_bhqk:grads_qkvb:sink",
        "attn_bwd:bf16:b2h4k2s130x150d256:thd:tq300:tk300:lse_local:grads_qkvs:sink"};
    stw_attn_params p = params_of(problems[n % 6]);
    p.units = n % 3 ? 132 : 0;
    p.q.seq = p.k.seq = p.v.seq = p.out.seq = p.dout.seq = p.dq.seq = p.dk.seq = p.dv.seq = 8 << random_below(14);
    p.batch = 1 + random_below(INT64_C(1) << (1 + random_below(8)));
    p.max_seq_q = any_size(&p);
    p.max_seq_kv = any_size(&p);
    p.total_q = stw_larger(p.max_seq_q, any_size(&p));
    p.total_kv = stw_larger(p.max_seq_kv, any_size(&p));
    return p;
}

static void same_kernels(const stw_variant *tile, uint32_t wave, const stw_attn_params *p,
                         const stw_attn_params *class) {
    int forward = !strncmp(tile->loop->name, "fwd", 3);
    stw_attn_call call = forward ? STW_CALL_FWD : STW_CALL_BWD;
    const char *refusal = stw_attn_tile_refusal(call, tile, p);
    assert_ptr_equal(refusal, stw_attn_tile_refusal(call, tile, class));
    if (refusal) return;
    stw_attn_steps own, largest, unnamed;
    stw_attn_steps_of(call, tile, p, wave, &own);
    stw_attn_steps_of(call, tile, class, wave, &largest);
    stw_attn_unnamed_steps_of(call, tile, p, wave, &unnamed);
    assert_int_equal(own.count, largest.count);
    assert_int_equal(own.count, unnamed.count);
    assert_true(own.workspace <= largest.workspace);
    assert_int_equal(unnamed.workspace, 0); /* not asked for */
    for (uint32_t i = 0; i < own.count; ++i) {
        const stw_attn_step *a = &own.step[i], *b = &largest.step[i], *c = &unnamed.step[i];
        assert_string_equal(a->entry, b->entry);
        assert_string_equal(c->entry, "");
        assert_true(a->block == b->block && a->smem == b->smem && a->work_tiles <= b->work_tiles);
        assert_true(a->block == c->block && a->smem == c->smem && a->work_tiles == c->work_tiles &&
                    a->queued == c->queued && a->grid_x == c->grid_x && a->grid_y == c->grid_y);
    }
}

/* A call runs the kernels that were found for the largest sizes of its classes. */
static void classes_share_kernels(void **state) {
    (void)state;
    static const char *const archs[] = {"sm80", "sm90", "gfx90a", "gfx942", "gfx950"};
    for (int n = 0; n < 6000; ++n) {
        const stw_attn_params p = any_params(n);
        stw_attn_params class = p;
        class.batch = stw_size_class(p.batch);
        class.max_seq_q = stw_size_class(p.max_seq_q);
        class.max_seq_kv = stw_size_class(p.max_seq_kv);
        class.total_q = stw_size_class(p.total_q);
        class.total_kv = stw_size_class(p.total_kv);
        const stw_attn_table *table = stw_attn_table_find(archs[n / 6 % 5]);
        for (size_t i = 0; i < table->variant_count; ++i) {
            stw_variant tile = tile_called(table->arch, table->variants[i].id);
            if (tile.head_dim < p.head_dim_qk) continue;
            same_kernels(&tile, table->arch[0] == 's' ? 32 : 64, &p, &class);
        }
    }
}

/* Attention over ranks: a call that makes statistics and zeroes sums, one that adds to these, one that makes dQ. The
 * first is a call's first kernel, the last its last, and the one between lists key blocks and has its main loop, which
 * a message's kernel may come ahead of. */
static void calls_over_ranks_share_the_rows_kernels(void **state) {
    static const uint32_t features[] = {STW_FEAT_STARTED_DQ, STW_FEAT_KEPT_DQ | STW_FEAT_KEPT_STATS,
                                        STW_FEAT_FINISHED_DQ};
    static const char *const entries[][2] = {
        {"stw_attn_bwd_preprocess_sm90_hd128_bf16", NULL},
        {"stw_attn_bwd_preprocess_bf16", "stw_attn_bwd_sm90_64x128_hd128_bf16_plain"},
        {"stw_attn_bwd_postprocess_sm90_hd128_bf16", NULL}};
    enum { ROWS = 512, HEADS = 4, DIM = 128, BM = 64, STATS = 2 * BM + (int)STW_STATS_PAD };
    const size_t stats = (size_t)HEADS * ROWS / BM * STATS * sizeof(float),
                 sums = (size_t)HEADS * ROWS * DIM * sizeof(float);
    static char workspace[1 << 15], first_stats[16], first_sum[16];
    stw_variant tile = tile_called("sm90", "sm90_64x128_hd128");
    (void)state;
    for (int i = 0; i < 3; ++i) {
        stw_attn_params p = params_of("attn_bwd:bf16:b1h4k2s512x256d128");
        stw_attn_steps steps;
        stw_attn_launch l;
        p.features |= features[i];
        p.dq.head = ROWS * DIM;
        p.dq.data = first_sum;
        p.delta.data = first_stats;
        stw_attn_steps_of(STW_CALL_BWD, &tile, &p, 32, &steps);
        assert_int_equal(steps.count, entries[i][1] ? 2 : 1);
        for (uint32_t k = 0; k < steps.count; ++k) assert_string_equal(steps.step[k].entry, entries[i][k]);
        stw_attn_launch_of(STW_CALL_BWD, &tile, &p, 32, workspace, &l);
        if (i == 0) {
            assert_true(steps.workspace >= stats + sums);
            assert_ptr_equal(l.stats, workspace);
            assert_ptr_equal(l.dq, workspace + (stats + 255) / 256 * 256);
        } else if (i == 1) {
            assert_int_equal(steps.step[0].work_tiles, 2); /* key blocks, and the check of lengths */
            assert_false(steps.step[1].early);
            assert_true(steps.workspace < sums);
            assert_ptr_equal(l.stats, first_stats);
            assert_ptr_equal(l.dq, first_sum);
            assert_int_equal(l.q_blocks, ROWS / BM);
        } else {
            assert_int_equal(steps.workspace, sums);
            assert_ptr_equal(l.dq, workspace);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_over_ranks_share_the_rows_kernels),
        cmocka_unit_test(own_kernels_of_problems),
        cmocka_unit_test(a_row_alone_has_any_stride),
        cmocka_unit_test(own_kernels_of_unequal_head_dims),
        cmocka_unit_test(own_kernels_of_features),
        cmocka_unit_test(own_kernels_want_even_tensors),
        cmocka_unit_test(bias_is_summed_where_broadcast),
        cmocka_unit_test(bias_kernels_of_types),
        cmocka_unit_test(single_features_have_kernels),
        cmocka_unit_test(tiles_say_what_costs_more),
        cmocka_unit_test(f32_of_amd_has_kernels_of_its_own),
        cmocka_unit_test(amd_names_what_no_own_loop_takes),
        cmocka_unit_test(masks_are_found_before),
        cmocka_unit_test(sm90_says_what_it_does_not_take),
        cmocka_unit_test(sm90_wants_what_tensor_loads_take),
        cmocka_unit_test(few_work_tiles_are_split),
        cmocka_unit_test(main_loops_begin_behind_few_ctas),
        cmocka_unit_test(few_work_tiles_of_amd_are_split),
        cmocka_unit_test(f32_sums_of_amd_are_short),
        cmocka_unit_test(xcds_get_whole_heads),
        cmocka_unit_test(f32_sums_are_drained_or_short),
        cmocka_unit_test(ordered_parts_keep_the_workspace),
        cmocka_unit_test(tiles_are_for_their_calls),
        cmocka_unit_test(classes_of_sizes),
        cmocka_unit_test(sm90_wide_says_what_it_does_not_take),
        cmocka_unit_test(sm90_lists_what_masks_leave),
        cmocka_unit_test(sm90_lists_what_masks_hide_of_dbias),
        cmocka_unit_test(sm90_has_kernels_of_rows),
        cmocka_unit_test(sm90_few_says_what_it_does_not_take),
        cmocka_unit_test(sm90_few_slices_the_keys),
        cmocka_unit_test(sm90_few_counts_work_tiles),
        cmocka_unit_test(split_ordered_has_a_kernel_for_turns),
        cmocka_unit_test(classes_share_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
