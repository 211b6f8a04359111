/* SPDX-License-Identifier: MIT
 *
 * Launch plans of the nested operations on GPUs as numbers (common/jagged_launch.c, jagged_product.c,
 * jagged_map.c, jagged_tables.c): every table's steps fit a GPU, what is summed is cut into parts that cover
 * it, and which problems are copied by rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/jagged_launch.h"
#include "common/problem_jagged.h"
#include "dispatch/arch.h"
#include "dispatch/jagged_problem.h"

#include <stdio.h>
#include <string.h>

static stw_jagged_params params_of(const char *line) {
    stw_jagged_problem problem;
    stw_jagged_params params;
    if (stw_problem_jagged_parse(line, &problem)) fail_msg("%s: %s", line, stw_last_error());
    if (stw_jagged_check(&problem.desc)) fail_msg("%s: %s", line, stw_last_error());
    stw_jagged_params_fill(&problem.desc, &params);
    return params;
}

static const stw_jagged_table *table_called(stw_backend backend, const char *arch) {
    const stw_arch *row = stw_arch_find(backend, arch);
    assert_non_null(row);
    return stw_jagged_table_of(row);
}

static const stw_jagged_table *sm80(void) {
    return table_called(STW_BACKEND_CUDA, "sm80");
}

static void archs_have_tables(void **state) {
    (void)state;
    assert_string_equal(sm80()->arch, "sm80");
    assert_int_equal(sm80()->wave, 32);
    assert_ptr_equal(table_called(STW_BACKEND_CUDA, "sm90"), sm80()); /* its kernels are sm80's */
    assert_string_equal(table_called(STW_BACKEND_HIP, "gfx90a")->arch, "gfx90a");
    assert_string_equal(table_called(STW_BACKEND_HIP, "gfx942")->arch, "gfx942");
    assert_int_equal(table_called(STW_BACKEND_HIP, "gfx942")->wave, 64);
    assert_null(table_called(STW_BACKEND_CPU, "cpu"));
}

/* Names, grids and shared memory of all steps. */
static void steps_fit_a_gpu(void **state) {
    (void)state;
    static const struct {
        const char *line, *main;
    } rows[] = {
        {"jagged_gelu:bf16:c5l30t90i60", "gelu_bf16"},
        {"jagged_gelu_tanh:f16:c5l30t90i60", "gelu_tanh_f16"},
        {"jagged_silu:f32:c5l30t90i60", "silu_f32"},
        {"jagged_threshold:bf16:c5l30t90i60", "threshold_bf16"},
        {"jagged_softmax:bf16:c5l30t90i60:inner", "softmax_"},
        {"jagged_softmax:bf16:c5l30t90i60:inner:ds5:da4", "softmax_strided"},
        {"jagged_softmax:bf16:c5l30t90o3i60:outer", "softmax_strided"},
        {"jagged_softmax:f16:c5l30t90i60:ragged", "segment_"},
        {"jagged_softmax:f32:c5l30t90i0:inner", NULL},
        {"jagged_layer_norm:bf16:c5l30t90i60", "norm_"},
        {"jagged_layer_norm:f32:c5l60t200i64:gamma", "norm_"},
        {"jagged_layer_norm:bf16:c5l60t200i20000:gamma", "norm_columns"},
        {"jagged_sum:bf16:c5l30t90i60:inner", "map_"},
        {"jagged_select:f16:c6l30t180o3i40:outer:index-1", "map"},
        {"jagged_matmul:bf16:c6m40k24n30:tm120", "product_"},
        {"jagged_linear:f16:c7l60t200i64f96", "product_"},
        {"jagged_linear:f16:c7l60t200i64f96:out_b", "columns"},
    };
    static const struct {
        stw_backend backend;
        const char *arch;
        uint32_t smem;
    } archs[] = {{STW_BACKEND_CUDA, "sm80", 99 << 10},
                 {STW_BACKEND_HIP, "gfx90a", 64 << 10},
                 {STW_BACKEND_HIP, "gfx942", 64 << 10}};
    for (size_t a = 0; a < 3; ++a)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
            const stw_jagged_table *table = table_called(archs[a].backend, archs[a].arch);
            stw_jagged_params p = params_of(rows[i].line);
            stw_jagged_steps steps;
            int found = 0;
            assert_null(stw_jagged_refusal(&p));
            stw_jagged_steps_of(&p, table, 108, &steps);
            for (uint32_t n = 0; n < steps.count; ++n) {
                const stw_jagged_step *s = &steps.step[n];
                assert_true(s->units > 0 && s->grid_x > 0 && s->grid_y > 0 && s->grid_y <= 65535);
                assert_true(s->block > 0 && s->block % table->wave == 0 && s->block <= 1024);
                assert_true(s->smem <= archs[a].smem);
                found |= rows[i].main && strstr(s->entry, rows[i].main);
            }
            if (found != (rows[i].main != NULL))
                fail_msg("%s on %s: %u steps, no %s; the last is %s", rows[i].line, archs[a].arch,
                         steps.count, rows[i].main, steps.count ? steps.step[steps.count - 1].entry : "");
        }
}

/* Parts of dW cover all rows, and their sums have places; few rows, and counts beyond 64 bits, stay whole. */
static void parts_cover_what_is_summed(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int cut;
    } rows[] = {
        {"jagged_linear:bf16:c7l60t200i64f96", 0},
        {"jagged_linear:bf16:c8l400t2048i64f96", 0},
        {"jagged_linear:bf16:c8l400t2049i64f96", 1},
        {"jagged_linear:f32:c64l40000t1000001i64f96", 1},
        {"jagged_linear:bf16:c64l40000t999999o3i4096f4096", 0}, /* 1024 tiles are units enough */
        {"jagged_linear:bf16:c0l400t0i64f96", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_jagged_params p = params_of(rows[i].line);
        stw_jagged_tile tile = stw_jagged_tile_of(&p, sm80());
        int64_t total = p.components ? p.axis[0].total * p.outer : 0;
        stw_jagged_cut dw = stw_jagged_cut_of(&p, STW_JPRODUCT_DW, sm80()),
                       dx = stw_jagged_cut_of(&p, STW_JPRODUCT_DX, sm80());
        int64_t tiles = stw_blocks_of(p.out_features, tile.bm) * stw_blocks_of(p.inner, tile.bn);
        assert_true(dw.wanted && dw.a_by_k && dw.b_by_k && dx.wanted && !dx.a_by_k);
        assert_true(dw.parts >= 1 && dw.parts * dw.part_k >= total &&
                    (dw.parts - 1) * dw.part_k < stw_larger(total, 1));
        if ((dw.parts > 1) != rows[i].cut)
            fail_msg("%s: %lld parts of %lld", rows[i].line, (long long)dw.parts, (long long)dw.part_k);
        assert_int_equal(dw.units, tiles * dw.parts);
        assert_int_equal(dw.slots, dw.parts > 1 ? dw.units : 0);
        if (dw.parts > 1) assert_true(dw.part_k >= STW_JAGGED_PART_LEAST && dw.part_k % tile.bk == 0);
        assert_true(dx.parts == 1 && dx.part_k == p.out_features && !dx.slots);
        assert_false(stw_jagged_cut_of(&p, STW_JPRODUCT_DA, sm80()).wanted);
    }
    stw_jagged_params p = params_of("jagged_linear:bf16:c8l400t2049i64f96");
    p.axis[0].total = INT64_MAX / 64;
    p.out_features = INT64_C(1) << 20; /* 2^13 tiles: rows * tiles is no int64_t */
    assert_int_equal(stw_jagged_cut_of(&p, STW_JPRODUCT_DW, sm80()).parts, 1);
    p.outputs = STW_JAGGED_DX;
    assert_false(stw_jagged_cut_of(&p, STW_JPRODUCT_DW, sm80()).wanted);
}

static void parts_of_matmul(void **state) {
    (void)state;
    stw_jagged_params p = params_of("jagged_matmul:bf16:c6m40k24n30:tm120");
    stw_jagged_cut da = stw_jagged_cut_of(&p, STW_JPRODUCT_DA, sm80()),
                   db = stw_jagged_cut_of(&p, STW_JPRODUCT_DB, sm80());
    assert_true(da.wanted && da.parts == 1 && da.part_k == 30 &&
                !da.slots); /* sums over n, which is not ragged */
    assert_true(db.wanted && db.parts == 1 && db.part_k == 40 && !db.slots); /* over m: short */
    p = params_of("jagged_matmul:bf16:c3m9000k24n30:tm20000");
    db = stw_jagged_cut_of(&p, STW_JPRODUCT_DB, sm80());
    assert_true(db.parts == 2 && db.part_k == STW_JAGGED_PART_LEAST);
    /* a component of more than one part has fewer than 2 * length / part of them */
    assert_true(db.slots >= 2 * 20000 / STW_JAGGED_PART_LEAST &&
                db.slots <= 2 * 20000 / STW_JAGGED_PART_LEAST + 1);
    p.axis[STW_AXIS_M].total = INT64_MAX / 2;
    p.axis[STW_AXIS_K].size = 1000;
    assert_int_equal(stw_jagged_cut_of(&p, STW_JPRODUCT_DB, sm80()).parts, 1); /* not countable */
    assert_false(stw_jagged_cut_of(&p, STW_JPRODUCT_DX, sm80()).wanted);
}

static void maps_by_rows(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int rows;
        int64_t run;
    } rows[] = {
        {"jagged_sum:bf16:c5l30t90i64:inner", 1, 64},
        {"jagged_sum:bf16:c5l30t90i60:inner", 0, 60}, /* no whole vectors */
        {"jagged_sum:bf16:c5l30t90i64:inner:ds8:da1", 0, 8},
        {"jagged_sum:bf16:c5l30t90i64:inner:ds8:da8", 0, 8},
        {"jagged_sum:bf16:c5l30t90i64:inner:ds2:da32", 0, 32},
        {"jagged_sum:bf16:c5l30t90i64:ragged", 1, 64},
        {"jagged_sum:bf16:c5l30t90o4i64:outer", 0, 64},
        {"jagged_sum:bf16:c5l30t90i64:ragged:dx_f32", 0, 64},
        {"jagged_sum:bf16:c5l30t90i64:ragged:dx_f32:acc_x", 0, 64},
        {"jagged_select:f32:c5l30t90i64:ragged:index0", 1, 64},
        {"jagged_reshape:f32:c7l60t200:shape-1,12:gshape-1,12", 1, 12},
        {"jagged_reshape:f32:c7l60t200:shape4,-1,12:gshape-1,48", 0, 12},
        {"jagged_reshape:f32:c7l60t200:shape4,-1,12:gshape2,-1,24", 0, 12},
        {"jagged_to_padded:bf16:c40l84t3360i64p85", 1, 64},
        {"jagged_from_padded:f16:c40l84t3360i64p85", 1, 64},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_jagged_params p = params_of(rows[i].line);
        stw_jagged_map map = stw_jagged_map_of(&p);
        if (map.rows != rows[i].rows || map.run != rows[i].run)
            fail_msg("%s: rows %d, run %lld", rows[i].line, map.rows, (long long)map.run);
        assert_true(map.span > 0);
    }
    stw_jagged_params p = params_of("jagged_to_padded:bf16:c40l84t3360i64p85");
    int64_t few = stw_jagged_map_of(&p).span;
    p.axis[0].total = INT64_C(1) << 28;
    assert_true(stw_jagged_map_of(&p).span > few); /* many chunks: several a unit */
    p.axis[0].total = INT64_C(1) << 31;            /* rows are counted in 32 bits */
    assert_false(stw_jagged_map_of(&p).rows);
    p.axis[0].total = 3360, p.padded = INT64_C(1) << 31;
    assert_false(stw_jagged_map_of(&p).rows);
    p.padded = 85, p.inner = INT64_C(1) << 31;
    assert_false(stw_jagged_map_of(&p).rows);
    p.inner = 0;
    assert_false(stw_jagged_map_of(&p).rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(archs_have_tables),
        cmocka_unit_test(steps_fit_a_gpu),
        cmocka_unit_test(parts_cover_what_is_summed),
        cmocka_unit_test(parts_of_matmul),
        cmocka_unit_test(maps_by_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
