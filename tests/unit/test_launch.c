/* SPDX-License-Identifier: MIT
 *
 * Launch plans of the attention kernels (backends/gpu/attn_tiled.c) as numbers: the places of a call's workspace
 * hold what kernels write there, whatever the sequences' lengths, and apart from each other; what Hopper's
 * own main loop counts in 32 bits fits. Extents are those that the kernels' comments promise
 * (common/params/attn_launch.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/cuda/tensor_map.h"
#include "backends/gpu/attn_tiled.h"
#include "tools/problem/problem.h"
#include "dispatch/attn_problem.h"
#include "dispatch/tables.h"

#include <stdio.h>
#include <string.h>

#define BASE ((uintptr_t)1 << 44) /* of a workspace that nobody touches */

static uint64_t random_state = 20261121;

static int64_t random_below(int64_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)bound);
}

static stw_attn_params params_of(const char *text) {
    stw_problem problem;
    stw_attn_params params;
    assert_int_equal(stw_problem_parse(text, &problem), STW_OK);
    assert_int_equal(stw_attn_check(&problem.desc, STW_PLAN_ATTN_BWD), STW_OK);
    stw_attn_params_fill(&problem.desc, STW_PLAN_ATTN_BWD, problem.desc.deterministic == STW_DETERMINISTIC_ON, &params);
    return params;
}

static stw_variant tile_of(const stw_variant *v) { return *v; }

typedef struct place {
    uint64_t at, bytes;
} place;

static void check_places(const place *places, int count, uint64_t workspace) {
    for (int i = 0; i < count; ++i) {
        if (!places[i].bytes) continue;
        assert_int_equal(places[i].at % 256, 0);
        assert_true(places[i].at >= BASE && places[i].at + places[i].bytes <= BASE + workspace);
        for (int n = 0; n < i; ++n)
            assert_true(places[n].at + places[n].bytes <= places[i].at ||
                        places[i].at + places[i].bytes <= places[n].at || !places[n].bytes);
    }
}

/* Query blocks of all sequences have numbers of their own below q_blocks, for any lengths. */
static void check_query_blocks(const stw_attn_params *params, const stw_attn_launch *l) {
    stw_attn_params p = *params;
    int32_t cu[65];
    assert_true(p.batch <= 64);
    if (p.features & STW_FEAT_PACKED_Q) {
        for (int64_t b = 0, left = p.total_q; b <= p.batch; ++b) {
            cu[b] = (int32_t)(p.total_q - left);
            int64_t most = stw_smaller(left, p.max_seq_q);
            left -= random_below(4) ? random_below(most + 1) : most;
        }
        p.cu_seqlens_q = cu;
    }
    int64_t next = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
        stw_attn_seq seq = stw_attn_seq_of(&p, l->bm, b);
        assert_true(seq.q_block >= next);
        next = seq.q_block + stw_blocks_of(seq.q.rows, l->bm);
    }
    assert_true(next <= l->q_blocks);
}

/* Masks: a head for each that the caller's has, bits for all rows of a block mask, a wave for each tile; tiles of
 * neighbouring sequences are apart, and all are there. */
static void check_hidden(const stw_attn_params *p, const stw_attn_launch *l, const stw_attn_steps *steps,
                         uint32_t wave) {
    int found = 0, packed = (p->features & STW_FEAT_PACKED_KV) != 0;
    assert_int_equal(l->interval_heads, !(p->features & STW_FEAT_INTERVALS) ? 0 : p->intervals.head ? p->heads_kv : 1);
    assert_int_equal(l->block_heads, !(p->features & STW_FEAT_BLOCK_MASK) ? 0 : p->block_mask.head ? p->heads_q : 1);
    assert_true(l->hidden_words * 32 * STW_MASK_BLOCK >= p->max_seq_q);
    for (uint32_t i = 0; i < steps->count; ++i) {
        if (strcmp(steps->step[i].entry, "stw_attn_hidden_blocks")) continue;
        found = 1;
        assert_true(i == 1 &&
                    steps->step[i].block == STW_ROW_THREADS); /* behind the first kernel, whose status it adds to */
        assert_true(steps->step[i].work_tiles * (STW_ROW_THREADS / wave) >=
                    l->hidden_tiles * (int64_t)(l->interval_heads + l->block_heads));
    }
    assert_int_equal(found, l->interval_heads + l->block_heads > 0 && l->hidden_tiles > 0);
    if (packed && p->batch > 64) return;
    int32_t cu[66] = {0};
    stw_attn_params q = *p;
    int64_t next = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        if (packed) cu[b + 1] = cu[b] + (int32_t)random_below(stw_smaller(p->max_seq_kv, p->total_kv - cu[b]) + 1);
        q.cu_seqlens_kv = packed ? cu : NULL;
        stw_seq_span kv = stw_seq_kv(&q, b);
        int64_t first = stw_hidden_tile(&q, &kv, l->bn, b);
        assert_true(first >= next);
        next = first + stw_blocks_of(kv.rows, l->bn);
        assert_true(next <= l->hidden_tiles);
    }
}

static void check(const stw_variant *tile, const stw_attn_params *p, uint32_t wave) {
    stw_attn_steps steps;
    stw_attn_launch l;
    stw_attn_steps_of(STW_CALL_BWD, tile, p, wave, &steps);
    stw_attn_launch_of(STW_CALL_BWD, tile, p, wave, (void *)BASE, &l);
    if (tile->loop->gpu->whole) { /* nothing is kept outside of its one kernel */
        assert_int_equal(steps.workspace, 0);
        assert_int_equal(steps.count, 1);
        return;
    }
    uint64_t blocks = (uint64_t)(p->heads_q * l.q_blocks), row = 2 * l.bm + STW_STATS_PAD;
    int ordered = (p->features & STW_FEAT_DETERMINISTIC) != 0, packed = (p->features & STW_FEAT_PACKED_KV) != 0;
    int64_t list = stw_key_blocks_most(p, l.bn) * l.row_parts, heads_kv = p->heads_kv * l.head_parts;
    const int64_t sum_places = l.vectors & STW_SM90_PARTS_ADD ? p->heads_kv * list / l.row_parts : heads_kv * list;
    uint64_t sums = l.part_sums ? (uint64_t)sum_places * 2 * l.bn * l.part_cols * sizeof(float) : 0;
    /* sm90's own main loop lists what masks leave, and has no use for the lists of what they hide */
    uint64_t visible = (uint64_t)list * l.visible_heads;
    uint64_t orders = ordered ? visible * l.visible_rows * l.visible_length * 32 : STW_SM90_VISIBLE_FRONT + visible;
    uint64_t tiles = visible ? 0 : (uint64_t)l.hidden_tiles, intervals = tiles * l.interval_heads;
    place places[] = {
        {(uintptr_t)l.stats, blocks * row * sizeof(float)},
        {(uintptr_t)l.dq, p->outputs & STW_OUT_DQ ? blocks * l.bm * l.width * sizeof(float) : 0},
        {(uintptr_t)l.sink, p->outputs & STW_OUT_DSINK ? blocks * sizeof(double) : 0},
        {(uintptr_t)l.key_blocks, (uint64_t)list * STW_KEY_BLOCK_BYTES},
        {(uintptr_t)l.listed, packed ? (uint64_t)(1 + heads_kv * list) * sizeof(uint64_t) : 0},
        {(uintptr_t)l.dq_semaphore, ordered ? blocks * sizeof(uint32_t) : 0},
        {(uintptr_t)l.tile_counter, sizeof(uint64_t)},
        {(uintptr_t)l.unordered, ordered ? sizeof(uint32_t) : 0},
        {(uintptr_t)l.part_sums, sums},
        {(uintptr_t)l.hidden_blocks, intervals * sizeof(stw_hidden_block)},
        {(uintptr_t)l.hidden_keys, intervals * l.bn * sizeof(stw_hidden_rows)},
        {(uintptr_t)l.hidden_bits, tiles * l.block_heads * (uint64_t)l.hidden_words * 2 * sizeof(uint32_t)},
        {(uintptr_t)l.visible_blocks, visible * STW_SM90_VISIBLE_BLOCK_BYTES},
        {(uintptr_t)l.visible_words, visible * l.visible_rows * l.visible_length * STW_SM90_VISIBLE_WORD_BYTES},
        {(uintptr_t)l.visible_next, l.visible_next ? orders * sizeof(uint16_t) : 0},
    };
    check_places(places, sizeof places / sizeof *places, steps.workspace);
    assert_true(l.width >= p->head_dim_qk && l.k_blocks * l.bn >= p->max_seq_kv);
    check_query_blocks(p, &l);
    if (!l.visible_heads) check_hidden(p, &l, &steps, wave);
    assert_true(l.p.heads_kv == heads_kv && l.p.group * heads_kv == p->heads_q);
    assert_int_equal(!l.part_sums, l.head_parts * l.row_parts == 1);
    if (!tile->loop->gpu->encode_maps) return;
    /* bulk copies take multiples of 16 bytes; work tiles, and those of the heads numbered together, are counted in
     * 32 bits */
    assert_int_equal(row * sizeof(float) % 16, 0);
    assert_true(heads_kv * list < INT64_C(1) << 31);
    if (!packed) assert_true(l.heads_in_l2 >= 1 && l.heads_in_l2 * l.k_blocks < INT64_C(1) << 31);
}

static void check_with_every_tile(const char *text) {
    static const char *const archs[] = {"sm80", "sm90", "gfx90a", "gfx942", "gfx950"};
    stw_attn_params p = params_of(text);
    p.units = 132;
    for (int a = 0; a < 5; ++a) {
        const stw_attn_table *table = stw_attn_table_find(archs[a]);
        for (size_t v = 0; v < table->variant_count; ++v) {
            stw_variant tile = tile_of(&table->variants[v]);
            uint32_t widest = p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v;
            if (tile.head_dim >= widest && !stw_attn_tile_refusal(STW_CALL_BWD, &tile, &p))
                check(&tile, &p, a < 2 ? 32 : 64);
        }
    }
}

static void places_hold_what_is_written(void **state) {
    (void)state;
    static const char *const problems[] = {
        "attn_bwd:bf16:b1h1s1d1",
        "attn_bwd:f16:b3h6k2s129x127d64:causal_br",
        "attn_bwd:bf16:b5h4k4s64x128d96:grads_qkvs:sink",
        "attn_bwd:bf16:b7h4k2s200x300d128:thd:tq801:tk1203",
        "attn_bwd:f16:b64h2s130x1d40:thd:tq1000:tk64:det",
        "attn_bwd:f32:b2h2s100x10d128:det",
        "attn_bwd:bf16:b2h3s1x5000d192:grads_kv",
        "attn_bwd:bf16:b3h6k2s129x127d64:intervals_two:mask_heads:det",
        "attn_bwd:f16:b7h4k2s9000x300d128:thd:tq9001:tk1203:intervals_from",
        "attn_bwd:f32:b2h4k2s300x500d192:intervals_range:blockmask:mask_heads",
        "attn_bwd:bf16:b9h4k1s5000x300d128:thd:tq9001:tk1203:blockmask",
    };
    for (int round = 0; round < 20; ++round)
        for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) check_with_every_tile(problems[i]);
    for (int round = 0; round < 300; ++round) {
        char text[200];
        int batch = 1 + (int)random_below(20), heads = 1 + (int)random_below(5), q = 1 + (int)random_below(700),
            kv = 1 + (int)random_below(700);
        int length = snprintf(text, sizeof text, "attn_bwd:bf16:b%dh%ds%dx%dd%d", batch, heads, q, kv,
                              8 * (1 + (int)random_below(16)));
        if (random_below(2))
            snprintf(text + length, sizeof text - (size_t)length, ":thd:tq%d:tk%d",
                     1 + (int)random_below((int64_t)batch * q), 1 + (int)random_below((int64_t)batch * kv));
        check_with_every_tile(text);
    }
}

/* Few queries and many keys under a causal mask: heads whose key blocks are numbered together are many then.
 */
static void work_tiles_of_many_keys(void **state) {
    (void)state;
    check_with_every_tile("attn_bwd:bf16:b1h1s1x8405120d64:causal_br");
    check_with_every_tile("attn_bwd:bf16:b1h3k1s1x16777216d128:wr5");
    check_with_every_tile("attn_bwd:f16:b9h8k8s3x4000000d96:causal_tl");
    check_with_every_tile("attn_bwd:bf16:b64h262143s128x128d64:causal_br");
    check_with_every_tile("attn_bwd:bf16:b64h262143s128x128d64:det");
    check_with_every_tile("attn_bwd:bf16:b1h3k1s1x16777216d128:det");
}

/* The pack decides how many work tiles and tiles of rows there are, and how much workspace, not the longest sequence
 * that the plan allows: a plan for 131072 rows costs a call what one for 8192 does. */
static void generous_maxima_cost_nothing(void **state) {
    (void)state;
    static const char *const archs[] = {"sm80", "sm90", "gfx90a", "gfx942", "gfx950"};
    stw_attn_params near = params_of("attn_bwd:bf16:b38h16s8192d128:thd:tq32768:tk32768:causal_br"),
                    far = params_of("attn_bwd:bf16:b38h16s131072d128:thd:tq32768:tk32768:causal_br");
    for (int a = 0; a < 5; ++a) {
        const stw_attn_table *table = stw_attn_table_find(archs[a]);
        for (size_t v = 0; v < table->variant_count; ++v) {
            stw_variant tile = tile_of(&table->variants[v]);
            uint32_t wave = a < 2 ? 32 : 64;
            for (stw_attn_call call = STW_CALL_BWD; call <= STW_CALL_FWD; ++call) {
                stw_attn_steps x, y;
                if (stw_attn_tile_refusal(call, &tile, &near)) continue;
                stw_attn_steps_of(call, &tile, &near, wave, &x);
                stw_attn_steps_of(call, &tile, &far, wave, &y);
                assert_int_equal(x.count, y.count);
                assert_int_equal(x.workspace, y.workspace);
                for (uint32_t s = 0; s < x.count; ++s) assert_int_equal(x.step[s].work_tiles, y.step[s].work_tiles);
                /* and these are as many as 38 sequences may cut 32768 rows into, not 38 times 64 blocks */
                if (call == STW_CALL_BWD)
                    assert_true(x.step[1].work_tiles <= 16 * (32768 / (int64_t)tile.bn + 38) ||
                                x.step[1].work_tiles <= 16 * (32768 / STW_CDNA_BN(64) + 38));
            }
        }
    }
}

/* As many sequences as there may be, without rows: a few CTAs, no workspace of each, kernels that loop over none. */
static void empty_sequences_take_no_cta(void **state) {
    (void)state;
    static const char *const archs[] = {"sm80", "sm90", "gfx90a", "gfx942", "gfx950"};
    static const char *const problems[] = {
        "attn_bwd:bf16:b2h4k2s5d64",
        "attn_bwd:bf16:b2h4k2s5d64:det:sink",
        "attn_bwd:f32:b2h4k2s5d64:biasf32_bhqk:grads_qkv",
        "attn_bwd:f32:b2h4k2s5d64:biasf32_11qk:grads_qkvb",
        "attn_bwd:f16:b2h4k2s5d128:dropout0.5",
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i)
        for (int a = 0; a < 5; ++a) {
            const stw_attn_table *table = stw_attn_table_find(archs[a]);
            stw_attn_params p = params_of(problems[i]);
            p.batch = INT32_MAX;
            p.max_seq_q = p.max_seq_kv = 0;
            for (size_t v = 0; v < table->variant_count; ++v) {
                stw_variant tile = tile_of(&table->variants[v]);
                for (stw_attn_call call = STW_CALL_BWD; call <= STW_CALL_DROPOUT_MASK; ++call) {
                    stw_attn_steps steps;
                    stw_attn_launch l;
                    if (call != STW_CALL_DROPOUT_MASK && stw_attn_tile_refusal(call, &tile, &p)) continue;
                    stw_attn_steps_of(call, &tile, &p, a < 2 ? 32 : 64, &steps);
                    stw_attn_launch_of(call, &tile, &p, a < 2 ? 32 : 64, (void *)BASE, &l);
                    assert_in_range(steps.workspace, 0, 1 << 16);
                    assert_int_equal(l.p.batch, 0);
                    for (uint32_t s = 0; s < steps.count; ++s) assert_in_range(steps.step[s].work_tiles, 0, 64);
                }
            }
        }
}

/* Beside each other: as many heads as fit, a part that divides them unless that is too small a part. */
static void heads_beside_each_other(void **state) {
    (void)state;
    assert_int_equal(stw_heads_in_l2(16, 0, 100), 1);   /* one after the other */
    assert_int_equal(stw_heads_in_l2(16, 700, 100), 4); /* 7 fit, 4 divide 16  */
    assert_int_equal(stw_heads_in_l2(16, 800, 100), 8);
    assert_int_equal(stw_heads_in_l2(16, 5000, 100), 48); /* 50 fit: three sequences' */
    assert_int_equal(stw_heads_in_l2(16, 100, 1000), 4);  /* four at least       */
    assert_int_equal(stw_heads_in_l2(13, 600, 100), 6);   /* nothing divides 13  */
    assert_int_equal(stw_heads_in_l2(5, 100, 0), 100);
    assert_int_equal(stw_heads_in_l2(1048573, 600, 100), 6); /* a prime: few tries */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_sequences_take_no_cta), cmocka_unit_test(generous_maxima_cost_nothing),
        cmocka_unit_test(heads_beside_each_other),     cmocka_unit_test(places_hold_what_is_written),
        cmocka_unit_test(work_tiles_of_many_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
