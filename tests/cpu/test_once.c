/* SPDX-License-Identifier: MIT
 *
 * stw_attn_bwd_once and stw_attn_fwd_once give the bits of a plan for the very descriptor, whatever other
 * call of the class the kept plan was made for, and touch nothing around the workspace that they ask for. */
#include "tests/cpu/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/size_class.h"

enum { SEQUENCES = 19, GUARD = 256 };

typedef struct row {
    const char *name;
    stw_dtype dtype;
    stw_dropout_map map;
    double dropout_p;
    stw_attn_mask mask;
    uint32_t flags;
    stw_dtype bias_dtype;
    unsigned bias_broadcast;
    int longest, lse_local, lse_by_head_last, masked;
} row;

static const row rows[] = {
    {"plain", .dtype = STW_F32, .longest = 45},
    {"bf16, causal", .dtype = STW_BF16, .mask = STW_MASK_CAUSAL_BOTTOM_RIGHT, .longest = 75},
    {"mem_eff", .dtype = STW_F32, .map = STW_DROPOUT_MEM_EFF, .dropout_p = 0.3, .longest = 45},
    {"philox", .dtype = STW_F16, .map = STW_DROPOUT_PHILOX, .dropout_p = 0.2, .longest = 39},
    {"flash2", .dtype = STW_BF16, .map = STW_DROPOUT_FLASH2, .dropout_p = 0.2, .longest = 39},
    {"bias", .dtype = STW_F32, .bias_dtype = STW_F32, .longest = 41},
    {"bias of all", .dtype = STW_BF16, .bias_dtype = STW_F32, .bias_broadcast = 3, .longest = 41},
    {"local lse", .dtype = STW_F32, .flags = STW_ATTN_SINK | STW_ATTN_DLSE, .longest = 37, .lse_local = 1},
    {"delta, [T,H]", .dtype = STW_F32, .flags = STW_ATTN_WRITE_DELTA, .longest = 33, .lse_by_head_last = 1},
    {"alibi", .dtype = STW_F32, .flags = STW_ATTN_ALIBI | STW_ATTN_ALIBI_COLUMN, .longest = 50},
    {"masks in memory", .dtype = STW_F32, .longest = 50, .masked = 1},
    {"below a rule", .dtype = STW_F32, .longest = 250}, /* 256 rows have another tile */
};

static int32_t starts[SEQUENCES + 1];

/* Intervals of the pack's keys, and a block of each head and sequence, of which a third is hidden. */
static void set_masks(fixture *f) {
    static int32_t bounds[SEQUENCES * 64];
    static uint8_t blocks[SEQUENCES * 8];
    for (int b = 0; b < SEQUENCES; ++b)
        for (int j = starts[b]; j < starts[b + 1]; ++j) bounds[j] = (j * 7) % (starts[b + 1] - starts[b] + 1);
    for (size_t n = 0; n < sizeof blocks; ++n) blocks[n] = n % 3 != 1;
    f->desc.interval_form = STW_INTERVALS_FROM;
    f->desc.intervals = (stw_interval_strides){.key = 1, .bound = 1};
    f->desc.flags |= STW_ATTN_BLOCK_MASK;
    f->desc.block_mask = (stw_block_mask_strides){8, 1, 0, 0};
    f->args.intervals = bounds, f->args.block_mask = blocks;
}

/* Sequences of all lengths up to the longest, one empty, space before and behind. */
static fixture fixture_of(const row *r) {
    fixture f = fixture_start();
    starts[0] = 3;
    for (int b = 0; b < SEQUENCES; ++b)
        starts[b + 1] = starts[b] + (b == 2 ? r->longest : b == 5 ? 0 : (b * 37 + 11) % (r->longest + 1));
    f.desc.dtype = r->dtype;
    f.desc.batch = SEQUENCES;
    f.desc.max_seq_q = f.desc.max_seq_kv = r->longest;
    f.desc.total_q = f.desc.total_kv = starts[SEQUENCES] + 2;
    f.args.cu_seqlens_q = f.args.cu_seqlens_kv = starts;
    f.desc.head_dim_qk = 24;
    f.desc.head_dim_v = 20;
    f.desc.mask = r->mask;
    f.desc.flags = r->flags;
    if (r->masked) set_masks(&f);
    f.desc.dropout_map = r->map;
    f.desc.dropout_p = r->dropout_p;
    f.args.dropout_seed = 77, f.args.dropout_offset = 5;
    f.desc.bias_dtype = r->bias_dtype;
    f.bias_broadcast = r->bias_broadcast;
    f.lse_local = r->lse_local;
    f.lse_by_head_last = r->lse_by_head_last;
    f.desc.outputs = harness_all_outputs(&f);
    fixture_build(&f);
    return f;
}

/* Plans the class for others than this problem: its largest sizes, as far as the strides allow them. */
static void plan_the_class(stw_context *context, const stw_attn_desc *of) {
    stw_attn_desc desc = *of;
    size_t size;
    desc.batch = stw_size_class(of->batch);
    desc.max_seq_q = desc.max_seq_kv = stw_size_class(of->max_seq_q);
    desc.total_q = desc.total_kv = stw_size_class(of->total_q);
    assert_true(desc.batch != of->batch && desc.max_seq_q != of->max_seq_q && desc.total_q != of->total_q);
    stw_attn_bwd_once_workspace(context, &desc, &size);
    stw_attn_fwd_once_workspace(context, &desc, &size);
}

typedef stw_status call(stw_context *context, const stw_attn_desc *desc, const stw_attn_args *args, void *workspace,
                        size_t workspace_size, stw_stream stream);
typedef stw_status ask(stw_context *context, const stw_attn_desc *desc, size_t *size_out);

static void run_once(stw_context *context, const fixture *f, const stw_attn_args *args, call *run, ask *workspace) {
    size_t size = 0;
    if (workspace(context, &f->desc, &size)) fail_msg("workspace: %s", stw_last_error());
    size_t total = (size + 2 * GUARD + 255) / 256 * 256;
    unsigned char *memory = aligned_alloc(256, total);
    assert_non_null(memory);
    memset(memory, 0xFF, total);
    if (run(context, &f->desc, args, memory + GUARD, size, NULL)) fail_msg("run: %s", stw_last_error());
    assert_true(harness_all_bytes(memory, GUARD, 0xFF));
    assert_true(harness_all_bytes(memory + GUARD + size, total - GUARD - size, 0xFF));
    free(memory);
}

static void backward_of_a_class(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        stw_context *context = harness_context(NULL, threads);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
            fixture f = fixture_of(&rows[i]);
            size_t bytes;
            harness_run(context, &f);
            unsigned char *expected = harness_snapshot(&f, &bytes);
            harness_poison_outputs(&f);
            plan_the_class(context, &f.desc);
            run_once(context, &f, &f.args, stw_attn_bwd_once, stw_attn_bwd_once_workspace);
            unsigned char *got = harness_snapshot(&f, &bytes);
            if (memcmp(got, expected, bytes)) fail_msg("%s: other bits", rows[i].name);
            free(got);
            free(expected);
            fixture_free(&f);
        }
        stw_context_destroy(context);
    }
}

static size_t bytes_of(const fixture *f, const void *buffer) {
    for (int n = 0; n < f->count; ++n)
        if (f->buffers[n] == buffer) return f->bytes[n];
    fail();
    return 0;
}

static void plan_and_run(stw_context *context, const fixture *f, const stw_attn_args *args) {
    stw_plan *plan = NULL;
    if (stw_attn_fwd_plan(context, &f->desc, &plan)) fail_msg("plan: %s", stw_last_error());
    const size_t size = stw_plan_workspace_size(plan);
    void *memory = aligned_alloc(256, (size + 511) / 256 * 256);
    assert_non_null(memory);
    if (stw_attn_fwd(plan, args, memory, size, NULL)) fail_msg("run: %s", stw_last_error());
    free(memory);
    stw_plan_destroy(plan);
}

static void forward_of_a_class(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        fixture f = fixture_of(&rows[i]);
        const size_t bytes[2] = {bytes_of(&f, f.args.out), bytes_of(&f, f.args.lse)};
        unsigned char *made[2][2];
        for (int once = 0; once < 2; ++once) {
            stw_attn_args args = f.args;
            for (int n = 0; n < 2; ++n) {
                made[once][n] = malloc(bytes[n]);
                assert_non_null(made[once][n]);
                memset(made[once][n], 0xFF, bytes[n]);
            }
            args.out = made[once][0];
            args.lse = (float *)(void *)made[once][1];
            if (!once) {
                plan_and_run(context, &f, &args);
                continue;
            }
            plan_the_class(context, &f.desc);
            run_once(context, &f, &args, stw_attn_fwd_once, stw_attn_fwd_once_workspace);
        }
        for (int n = 0; n < 2; ++n) {
            if (memcmp(made[0][n], made[1][n], bytes[n])) fail_msg("%s: other bits", rows[i].name);
            assert_false(harness_all_bytes(made[0][n], bytes[n], 0xFF));
            free(made[0][n]);
            free(made[1][n]);
        }
        fixture_free(&f);
    }
    stw_context_destroy(context);
}

/* What the data may hold is told by the call's own sizes, not by those of its class. */
static void wrong_lengths_are_refused_as_ever(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 1);
    fixture f = fixture_of(&rows[0]);
    static _Alignas(256) unsigned char workspace[1 << 20];
    int32_t status_out = 0;
    plan_the_class(context, &f.desc);
    f.args.status_out = &status_out;
    const int64_t total = f.desc.total_q;
    f.desc.max_seq_q = rows[0].longest - 1; /* of the class still */
    assert_int_equal(stw_attn_bwd_once(context, &f.desc, &f.args, workspace, sizeof workspace, NULL), STW_E_INVALID);
    assert_int_equal(status_out, STW_DATA_CU_SEQLENS_Q);
    assert_non_null(strstr(stw_last_error(), "accepted: up to 44 (max_seq_q)"));
    f.desc.max_seq_q = rows[0].longest;
    f.desc.total_kv = starts[SEQUENCES] - 1;
    assert_int_equal(stw_attn_bwd_once(context, &f.desc, &f.args, workspace, sizeof workspace, NULL), STW_E_INVALID);
    assert_int_equal(status_out, STW_DATA_CU_SEQLENS_KV);
    assert_true(f.desc.total_q == total);
    fixture_free(&f);
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_of_a_class),
        cmocka_unit_test(forward_of_a_class),
        cmocka_unit_test(wrong_lengths_are_refused_as_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
