/* SPDX-License-Identifier: MIT
 *
 * Calls of the CPU backend on nothing (no queries, no keys) and on data that the plan could not see and the
 * call must refuse. */
#include "tests/cpu/harness.h"
#include "tests/reference/setups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* No queries, no keys: gradients of what is there are zeros. */
static void empty_problems(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 2);
    for (int which = 0; which < 2; ++which) {
        fixture f = fixture_start();
        f.desc.flags = STW_ATTN_SINK;
        if (which) f.desc.max_seq_kv = 0;
        else f.desc.max_seq_q = 0;
        f.desc.outputs = harness_all_outputs(&f);
        fixture_build(&f);
        harness_run(context, &f);
        assert_true(harness_all_bytes(f.args.dsink, 4 * sizeof(float), 0));
        for (int64_t b = 0; b < 2; ++b)
            for (int64_t h = 0; h < (which ? 4 : 2); ++h)
                for (int64_t i = 0; i < (which ? 5 : 7); ++i) {
                    float *row = which ? (float *)f.args.dq : (float *)f.args.dk;
                    row += fixture_index(&f, which ? FIXTURE_DQ : FIXTURE_DK, b, h, i, 0);
                    assert_true(harness_all_bytes(row, 3 * sizeof(float), 0));
                }
        fixture_free(&f);
    }
    stw_context_destroy(context);
}

/* Data that the plan could not see: refused with the entry's name, the bit set, nothing written. */
static void refused_data(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 2);
    static const int32_t decreasing[] = {4, 1, 10}, too_far[] = {0, 5, 13}, too_long[] = {0, 6, 10},
                         negative[] = {-1, 3, 8};
    static const int32_t used_bad[] = {3, 9};
    static const int64_t offsets_bad[] = {0, (INT64_C(1) << 40) + 1};
    const struct {
        const int32_t *cu, *used;
        const int64_t *offsets;
        int32_t bit;
        const char *text;
    } rows[] = {
        {decreasing, NULL, NULL, STW_DATA_CU_SEQLENS_Q, "cu_seqlens_q[1] is 1"},
        {too_far, NULL, NULL, STW_DATA_CU_SEQLENS_Q, "cu_seqlens_q[2] is 13"},
        {too_long, NULL, NULL, STW_DATA_CU_SEQLENS_Q, "sequence of 6 rows"},
        {negative, NULL, NULL, STW_DATA_CU_SEQLENS_Q, "cu_seqlens_q[0] is -1"},
        {NULL, used_bad, NULL, STW_DATA_USED_Q, "used_q[1] is 9"},
        {NULL, NULL, offsets_bad, STW_DATA_OFFSETS, "q_offsets[1] is 1099511627777"},
    };
    fixture f = fixture_start();
    static const int32_t used_kv[] = {2, 7};
    setup_packed(&f);
    f.desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    f.args.used_kv = used_kv;
    fixture_build(&f);
    stw_plan *plan;
    assert_int_equal(stw_attn_bwd_plan(context, &f.desc, &plan), STW_OK);
    size_t size = stw_plan_workspace_size(plan);
    void *workspace = aligned_alloc(256, (size + 255) / 256 * 256);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; ++n) {
        stw_attn_args args = f.args;
        int32_t seen = 99;
        args.status_out = &seen;
        if (rows[n].cu) args.cu_seqlens_q = rows[n].cu;
        if (rows[n].used) args.used_q = rows[n].used;
        args.q_offsets = rows[n].offsets;
        assert_int_equal(stw_attn_bwd(plan, &args, workspace, size, NULL), STW_E_INVALID);
        if (seen != rows[n].bit) fail_msg("row %zu: %d, %s", n, seen, stw_last_error());
        assert_int_equal(seen, rows[n].bit);
        if (!strstr(stw_last_error(), rows[n].text)) fail_msg("%s: no \"%s\"", stw_last_error(), rows[n].text);
        for (int o = 0; o < f.count; ++o)
            if (f.buffers[o] == f.args.dq || f.buffers[o] == f.args.dk || f.buffers[o] == f.args.dv)
                assert_true(harness_all_bytes(f.buffers[o], f.bytes[o], 0xFF));
        args = f.args;
        args.status_out = &seen;
        harness_poison_outputs(&f);
        assert_int_equal(stw_attn_bwd(plan, &args, workspace, size, NULL), STW_OK);
        assert_int_equal(seen, 0);
        harness_poison_outputs(&f);
    }
    free(workspace);
    stw_plan_destroy(plan);
    fixture_free(&f);
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_problems),
        cmocka_unit_test(refused_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
