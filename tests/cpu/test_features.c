/* SPDX-License-Identifier: MIT
 *
 * Every variant of the CPU's tuning table, every element type, every feature of specification section 2, against the
 * float64 reference: once at the sizes of tests/reference/setups.c and once over several tiles, always at
 * odd sizes, with NaN in all memory that is not part of the problem. */
#include "tests/cpu/harness.h"
#include "tests/reference/setups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const stw_dtype dtypes[] = {STW_F32, STW_BF16, STW_F16};
static const char *const dtype_names[] = {"f32", "bf16", "f16"};
/* A second size for the setups that are not about lengths: more than one tile each way, all partial. */
static void enlarge(fixture *f) {
    f->desc.batch = 1;
    f->desc.heads_q = 2;
    f->desc.heads_kv = f->desc.heads_kv == 1 ? 1 : 2;
    f->desc.max_seq_q += 64;
    f->desc.max_seq_kv += 130;
    f->desc.head_dim_qk += 17;
    f->desc.head_dim_v += 30;
}

static void run_everywhere(fixture *f, stw_accuracy_pool *pool, const char *name, const char *dtype) {
    stw_expectation expectation;
    f->desc.outputs = harness_all_outputs(f);
    fixture_build(f);
    harness_poison_unseen(f);
    assert_int_equal(stw_expect_attn_bwd(&f->desc, &f->args, &expectation), STW_OK);
    for (int v = 0; v < harness_variant_count; ++v) {
        if (!harness_contexts[v]) continue;
        char label[160];
        snprintf(label, sizeof label, "%s, %s, %s", harness_variants[v], name, dtype);
        harness_poison_outputs(f);
        harness_run(harness_contexts[v], f);
        harness_judge(f, &expectation, &pool[v], label);
    }
    stw_expectation_free(&expectation);
    fixture_free(f);
}

static void all_setups(int large) {
    for (int s = 0; s < setups_count; ++s) {
        stw_accuracy_pool pools[16] = {{0}};
        for (int t = 0; t < 3; ++t) {
            fixture f = fixture_start();
            f.desc.dtype = dtypes[t];
            setups[s].apply(&f);
            if (large && (f.args.cu_seqlens_q || f.args.cu_seqlens_kv || f.args.used_q || f.args.q_offsets)) continue;
            if (large) enlarge(&f);
            run_everywhere(&f, pools, setups[s].name, dtype_names[t]);
        }
        for (int v = 0; v < harness_variant_count; ++v) {
            double ratio;
            if (harness_contexts[v] && pools[v].elements && !stw_pool_pass(&pools[v], &ratio))
                fail_msg("%s, %s: RMS of all small tensors is %.3g times what is allowed", harness_variants[v],
                         setups[s].name, ratio);
        }
    }
}

static void features_small(void **state) {
    (void)state;
    all_setups(0);
}

static void features_over_tiles(void **state) {
    (void)state;
    all_setups(1);
}

/* Packed sequences longer than a tile, of unequal lengths on both sides, with padding in and between. */
static void packed_over_tiles(void **state) {
    (void)state;
    static const int32_t starts_q[] = {3, 80, 80, 211}, starts_kv[] = {0, 33, 40, 190};
    static const int32_t used_q[] = {71, 0, 131}, used_kv[] = {33, 5, 149};
    for (int n = 0; n < 12; ++n) {
        stw_accuracy_pool pools[16] = {{0}};
        fixture f = fixture_start();
        f.desc.dtype = dtypes[n % 3];
        f.desc.batch = 3;
        f.desc.max_seq_q = 140;
        f.desc.max_seq_kv = 157;
        f.desc.head_dim_qk = 33;
        f.desc.head_dim_v = 16;
        f.desc.total_q = 215;
        f.desc.total_kv = 203;
        f.args.cu_seqlens_q = starts_q;
        f.args.cu_seqlens_kv = starts_kv;
        f.layout = n & 1 ? FIXTURE_BHSD : FIXTURE_BSHD;
        f.lse_by_head_last = n % 4 == 1;
        f.lse_local = n % 4 == 2;
        if (n >= 3) f.desc.mask = n % 2 ? STW_MASK_CAUSAL_BOTTOM_RIGHT : STW_MASK_CAUSAL_TOP_LEFT;
        if (n >= 6) {
            f.desc.flags |= STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_SINK;
            f.desc.window_left = 23;
            f.args.used_q = used_q;
            f.args.used_kv = used_kv;
        }
        if (n >= 9) {
            f.desc.bias_dtype = n == 9 ? f.desc.dtype : STW_F32;
            f.bias_broadcast = (unsigned)(n - 9) * 5;
            f.desc.flags |= STW_ATTN_DLSE;
        }
        char name[32];
        snprintf(name, sizeof name, "packed case %d", n);
        run_everywhere(&f, pools, name, dtype_names[n % 3]);
    }
}

/* Head dims around the vector widths and at both ends, unequal. */
static void head_dims(void **state) {
    (void)state;
    static const int dims[][2] = {{1, 1},   {2, 256}, {256, 3},   {15, 16},   {16, 17},   {31, 33},
                                  {64, 64}, {96, 80}, {128, 128}, {192, 128}, {255, 256}, {256, 256}};
    for (size_t n = 0; n < sizeof dims / sizeof *dims; ++n) {
        stw_accuracy_pool pools[16] = {{0}};
        fixture f = fixture_start();
        f.desc.dtype = dtypes[n % 3];
        f.desc.max_seq_q = 37;
        f.desc.max_seq_kv = 71;
        f.desc.head_dim_qk = dims[n][0];
        f.desc.head_dim_v = dims[n][1];
        f.desc.mask = n % 2 ? STW_MASK_CAUSAL_BOTTOM_RIGHT : STW_MASK_NONE;
        char name[48];
        snprintf(name, sizeof name, "head dims %d and %d", dims[n][0], dims[n][1]);
        run_everywhere(&f, pools, name, dtype_names[n % 3]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_small),
        cmocka_unit_test(features_over_tiles),
        cmocka_unit_test(packed_over_tiles),
        cmocka_unit_test(head_dims),
    };
    return cmocka_run_group_tests(tests, harness_open, harness_close);
}
