/* SPDX-License-Identifier: MIT
 *
 * The CPU backend's forward (out and LSE of every feature, every variant) and its dropout mask call (every
 * map, bit for bit) against the reference. */
#include "tests/cpu/harness.h"
#include "tests/reference/setups.h"

#include "tools/reference/problem.h"
#include "common/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void forward_case(stw_context *context, fixture *f, const char *name) {
    stw_ref_result r;
    stw_plan *plan;
    assert_int_equal(stw_ref_attn_fwd(&f->desc, &f->args, &r), STW_OK);
    if (stw_attn_fwd_plan(context, &f->desc, &plan) != STW_OK) fail_msg("%s: %s", name, stw_last_error());
    size_t size = stw_plan_workspace_size(plan);
    void *workspace = aligned_alloc(256, (size + 511) / 256 * 256);
    memset(workspace, 0xFF, size);
    for (int n = 0; n < f->count; ++n)
        if (f->buffers[n] == f->args.out || f->buffers[n] == f->args.lse) memset(f->buffers[n], 0xFF, f->bytes[n]);
    if (stw_attn_fwd(plan, &f->args, workspace, size, NULL) != STW_OK) fail_msg("%s: %s", name, stw_last_error());
    double eps = f->desc.dtype == STW_F32 ? 4e-6 : f->desc.dtype == STW_F16 ? 2e-3 : 1.6e-2;
    for (int64_t b = 0; b < f->desc.batch; ++b)
        for (int64_t n = 0; n < fixture_rows_q(f, b) * f->desc.heads_q; ++n) {
            int64_t i = n / f->desc.heads_q, h = n % f->desc.heads_q, row = fixture_result_row_q(f, b, i);
            double lse = r.lse[h * r.rows_q + row], got = f->args.lse[fixture_row_index(f, &f->desc.lse, b, h, i)];
            if (!(lse == got || fabs(lse - got) <= 4e-6 * (1 + fabs(lse)))) fail_msg("%s: LSE %g, %g", name, got, lse);
            for (int64_t d = 0; d < f->desc.head_dim_v; ++d) {
                double o = r.out[(row * f->desc.heads_q + h) * f->desc.head_dim_v + d];
                double x = stw_load_f32(f->args.out, fixture_index(f, FIXTURE_OUT, b, h, i, d), f->desc.dtype);
                if (!(fabs(o - x) <= eps * (1 + fabs(o)))) fail_msg("%s: out %.9g, %.9g", name, x, o);
            }
        }
    free(workspace);
    stw_plan_destroy(plan);
    stw_ref_free(&r);
}

static void forward_of_every_feature(void **state) {
    (void)state;
    static const stw_dtype dtypes[] = {STW_F32, STW_BF16, STW_F16};
    for (int v = 0; v < harness_variant_count; ++v) {
        stw_context *context = harness_context(harness_variants[v], 2);
        for (int s = 0; context && s < setups_count; ++s)
            for (int large = 0; large < 2; ++large) {
                fixture f = fixture_start();
                f.desc.dtype = dtypes[(s + large) % 3];
                setups[s].apply(&f);
                if (large && !f.args.cu_seqlens_q && !f.args.cu_seqlens_kv && !f.args.used_q) {
                    f.desc.max_seq_q += 66;
                    f.desc.max_seq_kv += 131;
                }
                f.desc.outputs = harness_all_outputs(&f);
                fixture_build(&f);
                forward_case(context, &f, setups[s].name);
                fixture_free(&f);
            }
        stw_context_destroy(context);
    }
}

static void mask_of_every_map(void **state) {
    (void)state;
    for (int v = 0; v < harness_variant_count; ++v) {
        stw_context *context = harness_context(harness_variants[v], 2);
        for (int map = 0; context && map < 3; ++map) {
            fixture f = fixture_start();
            setup_packed(&f);
            f.desc.max_seq_q = 21;
            f.desc.max_seq_kv = 150;
            f.desc.total_q = 33;
            f.desc.total_kv = 190;
            static const int32_t starts_q[] = {1, 20, 33}, starts_kv[] = {2, 150, 171}, used_q[] = {17, 13},
                                 used_kv[] = {148, 20};
            f.args.cu_seqlens_q = starts_q, f.args.cu_seqlens_kv = starts_kv;
            f.args.used_q = used_q, f.args.used_kv = used_kv;
            f.desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
            f.desc.dropout_p = 0.4;
            f.desc.dropout_map = (stw_dropout_map)map;
            f.desc.heads_total = 9, f.desc.head_offset = 2, f.desc.batch_offset = 1;
            f.args.dropout_seed = UINT64_C(0xFEDCBA9876543210), f.args.dropout_offset = UINT64_C(0x1000000005);
            f.args.q_offset = 6, f.args.k_offset = -3;
            fixture_build(&f);
            stw_plan *plan;
            assert_int_equal(stw_attn_bwd_plan(context, &f.desc, &plan), STW_OK);
            unsigned char mask[2 * 4 * 21 * 150 + 64];
            memset(mask, 0xFF, sizeof mask);
            assert_int_equal(stw_dropout_mask(plan, &f.args, mask, NULL), STW_OK);
            stw_ref_problem problem;
            assert_int_equal(stw_ref_problem_init(&problem, &f.desc, &f.args, 1), STW_OK);
            for (int64_t n = 0; n < 2 * 4 * 21 * 150; ++n) {
                int64_t j = n % 150, i = n / 150 % 21, h = n / 150 / 21 % 4, b = n / 150 / 21 / 4;
                stw_ref_side q = stw_ref_side_q(&problem, b), kv = stw_ref_side_kv(&problem, b);
                int expected = i < q.used && j < kv.used && stw_ref_keeps(&problem, &q, &kv, b, h, i, j);
                if (mask[n] != expected) fail_msg("map %d: b %d h %d i %d j %d", map, (int)b, (int)h, (int)i, (int)j);
            }
            assert_true(harness_all_bytes(mask + 2 * 4 * 21 * 150, 64, 0xFF));
            stw_plan_destroy(plan);
            fixture_free(&f);
        }
        stw_context_destroy(context);
    }
}

/* NaN in the first keys: later tiles with finite keys must not bring LSE and O back. */
static void nan_of_early_keys_stays(void **state) {
    (void)state;
    enum { KEYS = 300, NANS = 130, DIM = 4 };
    float q[2 * DIM], k[KEYS * DIM], v[KEYS * DIM], out[2 * DIM], lse[2];
    for (int i = 0; i < 2 * DIM; ++i) q[i] = 0.25f;
    for (int i = 0; i < KEYS * DIM; ++i) k[i] = i < NANS * DIM ? NAN : 0.5f, v[i] = 1.0f;
    for (int variant = 0; variant < harness_variant_count; ++variant) {
        stw_context *context = harness_context(harness_variants[variant], 1);
        if (!context) continue;
        stw_attn_desc desc = STW_INIT(stw_attn_desc);
        stw_attn_args args = STW_INIT(stw_attn_args);
        stw_plan *plan;
        desc.dtype = STW_F32;
        desc.batch = desc.heads_q = desc.heads_kv = 1;
        desc.head_dim_qk = desc.head_dim_v = DIM;
        desc.max_seq_q = 2;
        desc.max_seq_kv = KEYS;
        assert_int_equal(stw_layout_bshd(&desc), STW_OK);
        assert_int_equal(stw_attn_fwd_plan(context, &desc, &plan), STW_OK);
        size_t size = stw_plan_workspace_size(plan);
        void *workspace = aligned_alloc(256, (size + 511) / 256 * 256);
        args.q = q, args.k = k, args.v = v, args.out = out, args.lse = lse;
        assert_int_equal(stw_attn_fwd(plan, &args, workspace, size, NULL), STW_OK);
        assert_true(isnan(lse[0]) && isnan(lse[1]) && isnan(out[0]) && isnan(out[2 * DIM - 1]));
        free(workspace);
        stw_plan_destroy(plan);
        stw_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_of_every_feature),
        cmocka_unit_test(mask_of_every_map),
        cmocka_unit_test(nan_of_early_keys_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
