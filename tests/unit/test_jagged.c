/* SPDX-License-Identifier: MIT
 *
 * Inside jagged operations: clean lengths made from any values (common/jagged_data.c), places of rows and
 * matrices against their definition (common/params/jagged.h), which kernels and parts GPUs get
 * (backends/gpu/jagged_launch.h), and what plans say of themselves. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/dtype.h"
#include "common/jagged_data.h"
#include "backends/gpu/jagged_launch.h"
#include "tools/problem/jagged.h"
#include "dispatch/jagged_problem.h"

#define MOST 16

typedef struct lengths {
    int64_t starts[MOST + 1], used_clean[MOST];
    int32_t offsets[MOST + 1], used[MOST];
    stw_jagged_axis_param axis;
    int64_t components;
} lengths;

static void make(lengths *l, int64_t components, const int32_t *offsets, const int32_t *used, int64_t size,
                 int64_t total) {
    memset(l, 0, sizeof *l);
    l->components = components;
    memcpy(l->offsets, offsets, sizeof *offsets * (size_t)(components + 1));
    if (used) memcpy(l->used, used, sizeof *used * (size_t)components);
    l->axis = (stw_jagged_axis_param){.offsets = l->offsets,
                                      .used = used ? l->used : NULL,
                                      .starts = l->starts,
                                      .used_clean = l->used_clean,
                                      .size = size,
                                      .total = total,
                                      .ragged = 1};
    stw_jagged_make_clean(&l->axis, components, 0);
}

/* Wrong values: every component stays inside the buffer, none overlaps another. */
static void clean_lengths_of_wrong_values(void **state) {
    (void)state;
    lengths l;
    make(&l, 4, (const int32_t[]){-3, 10, 5, 90, 20}, (const int32_t[]){4, 7, -1, 99}, 6, 50);
    const int64_t starts[] = {0, 10, 10, 50, 50}, used[] = {4, 0, 0, 0};
    assert_memory_equal(l.starts, starts, sizeof starts);
    assert_memory_equal(l.used_clean, used, sizeof used);
    make(&l, 2, (const int32_t[]){0, 30, 40}, NULL, 6, 50); /* too long: cut */
    assert_true(l.used_clean[0] == 6 && l.used_clean[1] == 6);
    make(&l, 3, (const int32_t[]){INT32_MAX, INT32_MIN, 0, 7}, NULL, 50, 50);
    for (int b = 0; b < 4; ++b) assert_int_equal(l.starts[b], 50);
    memset(&l, 0xFF, sizeof l); /* no components: no array is read */
    l.axis = (stw_jagged_axis_param){.starts = l.starts, .used_clean = l.used_clean, .total = 9, .ragged = 1};
    stw_jagged_make_clean(&l.axis, 0, 0);
    assert_int_equal(l.starts[0], 0);
}

/* Rows of a buffer against a walk over components, for both storages. */
static void rows_are_where_the_header_says(void **state) {
    (void)state;
    for (int jagged = 0; jagged < 2; ++jagged)
        for (int64_t outer = 1; outer < 4; ++outer) {
            lengths l;
            make(&l, 5, (const int32_t[]){2, 2, 7, 8, 8, 13}, (const int32_t[]){0, 3, 1, 0, 4}, 9, 15);
            stw_jagged_params p = {.components = 5, .outer = outer, .inner = 3};
            p.axis[0] = l.axis;
            p.slabs = jagged ? outer : 1;
            p.rows_outer = jagged ? 1 : outer;
            int64_t rows = outer * 15, seen = 0;
            for (int64_t row = 0; row < rows; ++row) seen += stw_jagged_row_of(&p, row).component < 0;
            assert_int_equal(seen, outer * (15 - 11));
            for (int64_t b = 0; b < 5; ++b)
                for (int64_t o = 0; o < outer; ++o)
                    for (int64_t r = 0; r < l.starts[b + 1] - l.starts[b]; ++r) {
                        int64_t length = l.starts[b + 1] - l.starts[b];
                        int64_t row = jagged ? o * 15 + l.starts[b] + r : l.starts[b] * outer + o * length + r;
                        stw_jagged_row found = stw_jagged_row_of(&p, row);
                        assert_true(found.component == b && found.o == o && found.r == r);
                        assert_int_equal(found.valid != 0, r < l.used[b]);
                        assert_int_equal(stw_jagged_row_number(15, p.rows_outer, l.starts[b], length, o, r), row);
                    }
        }
}

static void positions_are_found(void **state) {
    (void)state;
    const int64_t starts[] = {3, 3, 5, 5, 5, 9};
    const int64_t owner[] = {-1, -1, -1, 1, 1, 4, 4, 4, 4, -1, -1};
    for (int64_t at = 0; at < 11; ++at) assert_int_equal(stw_jagged_find(starts, 5, at), owner[at]);
    assert_int_equal(stw_jagged_find(starts, 0, 3), -1);
    assert_int_equal(stw_jagged_find(starts, 5, -1), -1);
}

/* Matrices with every storage: no two elements of an operand share a place, all are inside the buffer. */
static void matrices_do_not_overlap(void **state) {
    (void)state;
    static const struct {
        uint32_t ragged, transposed, spread, bases;
    } rows[] = {{0, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {1, 1, 0, 0}, {2, 1, 0, 0}, {1, 0, 1, 0},
                {2, 0, 1, 0}, {1, 1, 1, 0}, {2, 1, 1, 0}, {3, 0, 0, 1}, {3, 1, 0, 1}, {1, 0, 0, 1}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; ++n) {
        lengths m, k;
        const int64_t bases[] = {1, 40, 40, 100};
        unsigned char seen[512] = {0};
        make(&m, 4, (const int32_t[]){1, 4, 4, 6, 11}, NULL, 5, 12);
        make(&k, 4, (const int32_t[]){0, 2, 5, 5, 9}, NULL, 4, 9);
        stw_jagged_params p = {.components = 4, .outer = 2};
        p.axis[0] = rows[n].ragged & 1 ? m.axis : (stw_jagged_axis_param){.size = 3};
        p.axis[1] = rows[n].ragged & 2 ? k.axis : (stw_jagged_axis_param){.size = 4};
        stw_jagged_matrix_param matrix = {.rows = 0,
                                          .cols = 1,
                                          .transposed = rows[n].transposed,
                                          .spread = rows[n].spread,
                                          .has_bases = rows[n].bases,
                                          .bases = rows[n].bases ? bases : NULL,
                                          .elements = 200,
                                          .ordered = 1};
        int64_t size = rows[n].bases ? 200 : !rows[n].ragged ? 4 * 2 * 12 : 2 * (rows[n].ragged == 1 ? 12 * 4 : 3 * 9);
        for (int64_t b = 0; b < 4; ++b) {
            stw_jagged_place place = stw_jagged_place_of(&p, &matrix, b);
            assert_true(place.present && (place.row == 1 || place.col == 1));
            for (int64_t o = 0; o < 2; ++o)
                for (int64_t i = 0; i < stw_jagged_span_of(&p.axis[0], b).rows; ++i)
                    for (int64_t j = 0; j < stw_jagged_span_of(&p.axis[1], b).rows; ++j) {
                        int64_t at = place.first + o * place.stride + i * place.row + j * place.col;
                        assert_in_range(at, 0, size - 1);
                        assert_int_equal(seen[at]++, 0);
                    }
        }
    }
}

static void bases_outside_are_seen(void **state) {
    (void)state;
    const int64_t bases[] = {0, 20, 100};
    int32_t bits = 0;
    stw_jagged_params p = {.components = 3, .outer = 1};
    p.axis[0] = (stw_jagged_axis_param){.size = 4};
    p.axis[1] = (stw_jagged_axis_param){.size = 5};
    stw_jagged_matrix_param m = {.rows = 0, .cols = 1, .has_bases = 1, .bases = bases, .elements = 120, .ordered = 1};
    assert_int_equal(stw_jagged_check_bases(&p, &m, "x_bases", &bits), STW_OK);
    m.elements = 119;
    assert_int_equal(stw_jagged_check_bases(&p, &m, "x_bases", &bits), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "x_bases[2] is 100"));
    assert_int_equal(bits, STW_JAGGED_DATA_BASES);
    m.elements = 120;
    m.bases = (const int64_t[]){0, 19, 100};
    assert_int_equal(stw_jagged_check_bases(&p, &m, "x_bases", &bits), STW_E_INVALID);
    m.ordered = 0; /* an operand whose gradient nobody wants */
    assert_int_equal(stw_jagged_check_bases(&p, &m, "x_bases", &bits), STW_OK);
    m.bases = (const int64_t[]){-1, 19, 100};
    assert_int_equal(stw_jagged_check_bases(&p, &m, "x_bases", &bits), STW_E_INVALID);
    m.bases = (const int64_t[]){0, 19, INT64_MAX};
    assert_int_equal(stw_jagged_check_bases(&p, &m, "x_bases", &bits), STW_E_INVALID);
}

/* ---- launch plans ---- */

static stw_jagged_params params_of(const char *line) {
    stw_jagged_problem problem;
    stw_jagged_params params;
    if (stw_problem_jagged_parse(line, &problem) || stw_jagged_check(&problem.desc))
        fail_msg("%s: %s", line, stw_last_error());
    stw_jagged_params_fill(&problem.desc, &params);
    return params;
}

static const stw_jagged_table *table_of(stw_backend backend, const char *name) {
    stw_arch made_up = {.name = name, .backend = backend};
    const stw_arch *arch = stw_arch_find(backend, name);
    return stw_jagged_table_of(arch ? arch : &made_up);
}

static void tables_of_archs(void **state) {
    (void)state;
    assert_string_equal(table_of(STW_BACKEND_HIP, "gfx942")->arch->name, "gfx942");
    assert_string_equal(table_of(STW_BACKEND_CUDA, "sm80")->arch->name, "sm80");
    assert_string_equal(table_of(STW_BACKEND_CUDA, "sm90")->arch->name, "sm80"); /* has none of its own */
    assert_string_equal(table_of(STW_BACKEND_HIP, "gfx1")->arch->name, "gfx90a");
    assert_null(table_of(STW_BACKEND_CPU, "cpu"));
    stw_jagged_params p = params_of("jagged_linear:f32:c2l30t50i64f96");
    const stw_jagged_table *table = table_of(STW_BACKEND_CUDA, "sm80");
    assert_int_equal(stw_jagged_tile_of(&p, table).element, 4);
    p.dtype = 77; /* of no size: any tile, no product runs with it */
    assert_int_equal(stw_jagged_tile_of(&p, table).element, table->tiles[0].element);
}

/* By rows: a row of the output has one source, starts at a multiple of 16 bytes, is counted in 32 bits. */
static void maps_go_by_rows_where_they_can(void **state) {
    static const struct {
        const char *line;
        int rows;
        int64_t run;
    } cases[] = {
        {"jagged_reshape:f16:c3l50t100:shape4,-1,8:gshape4,-1,8", 1, 8},
        {"jagged_reshape:f16:c3l50t100:shape4,-1,8:gshape2,-1,16", 0, 8},
        {"jagged_reshape:f16:c3l50t100:shape4,-1,12:gshape6,-1,8", 0, 4},
        {"jagged_reshape:f16:c3l50t100:shape-1,6:gshape-1,6", 0, 6}, /* no multiple of 16 bytes */
        {"jagged_sum:f16:c3l50t100i64:inner", 1, 64},
        {"jagged_sum:f16:c3l50t100i64:inner:ds16:da4", 0, 4},
        {"jagged_sum:f16:c3l50t100i64:inner:ds16", 0, 16},
        {"jagged_sum:f16:c3o6l50t100i64:outer", 0, 64},
        {"jagged_select:f16:c3l50t100i64:inner:ds16:da4:index2", 0, 4},
        {"jagged_sum:f16:c3l50t100i64:ragged", 1, 64},
        {"jagged_sum:f32:c3l50t100i64:ragged:acc_x", 0, 64},
        {"jagged_sum:f16:c3l50t100i64:ragged:dx_f32", 0, 64},
        {"jagged_sum:f16:c3l50t100i60:ragged", 0, 60},
        {"jagged_sum:f16:c3l50t100i0:ragged", 0, 1}, /* no extent: one of 1 */
        {"jagged_to_padded:bf16:c3l50t100i64p50", 1, 64},
        {"jagged_from_padded:f32:c3l50t100i64p50", 1, 64},
        {"jagged_sum:f16:c3l50t2147483647o1i8:ragged", 1, 8},
        {"jagged_sum:f16:c3l50t2147483648o1i8:ragged", 0, 8},
        {"jagged_sum:f16:c3l50t1073741824o2i8:ragged", 0, 8},
        {"jagged_to_padded:f16:c65536l50t100i8p32768", 0, 8},
        {"jagged_sum:f16:c3l1t1i2147483648:ragged", 0, 2147483648},
        {"jagged_sum:f16:c3l1t1i2147483640:ragged", 1, 2147483640},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        stw_jagged_params p = params_of(cases[i].line);
        stw_jagged_map map = stw_jagged_map_of(&p);
        if (!!map.rows != cases[i].rows || map.run != cases[i].run)
            fail_msg("%s: rows %d, run %lld", cases[i].line, map.rows, (long long)map.run);
        int64_t chunk = STW_JAGGED_CHUNK((int64_t)stw_dtype_size((stw_dtype)p.dtype));
        int64_t positions = p.op == STW_JAGGED_FROM_PADDED ? p.components * p.padded : p.axis[0].total;
        int64_t elements = positions * p.outer * p.inner;
        assert_int_equal(map.span, elements >= chunk * STW_JAGGED_ROW_MANY ? chunk * STW_JAGGED_ROW_CHUNKS : chunk);
    }
}

/* Parts cover what is summed, each with a work tile and a slot a tile, and no more of them than it takes. */
static void long_sums_are_cut(void **state) {
    static const struct {
        const char *line;
        uint32_t product;
        int cut; /* into several parts */
    } cases[] = {
        {"jagged_linear:f16:c8l1000t8000i64f96", STW_JPRODUCT_DX, 0},
        {"jagged_linear:f16:c8l1000t8000i64f96", STW_JPRODUCT_DW, 1},
        {"jagged_linear:f32:c8l1000t8000i640f96", STW_JPRODUCT_DW, 1},
        {"jagged_linear:f16:c8l100t2048i64f96", STW_JPRODUCT_DW, 0},
        {"jagged_linear:f16:c8l100t2049i64f96", STW_JPRODUCT_DW, 1},
        {"jagged_linear:f16:c8l100t100000i4096f4096", STW_JPRODUCT_DW, 0},             /* tiles enough for a device */
        {"jagged_linear:f16:c8l9t1073741824i536870912f536870912", STW_JPRODUCT_DW, 0}, /* beyond 63 bits */
        {"jagged_linear:f16:c0l1000t8000i64f96", STW_JPRODUCT_DW, 0},
    };
    const stw_jagged_table *table = table_of(STW_BACKEND_CUDA, "sm80");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        stw_jagged_params p = params_of(cases[i].line);
        stw_jagged_tile t = stw_jagged_tile_of(&p, table);
        stw_jagged_cut cut = stw_jagged_cut_of(&p, cases[i].product, table);
        int dx = cases[i].product == STW_JPRODUCT_DX;
        int64_t rows = p.components ? p.axis[0].total : 0, sum = dx ? p.out_features : rows;
        int64_t tiles = stw_blocks_of(dx ? rows : p.out_features, t.bm) * stw_blocks_of(p.inner, t.bn);
        assert_true(cut.wanted && cut.part_k >= 1 && cut.parts >= 1);
        if ((cut.parts > 1) != cases[i].cut) fail_msg("%s: %lld parts", cases[i].line, (long long)cut.parts);
        assert_int_equal(cut.work_tiles, tiles * cut.parts);
        assert_int_equal(cut.slots, cases[i].cut ? cut.work_tiles : 0);
        assert_true(cut.part_k >= sum || cut.part_k * cut.parts >= sum);
        if (!cases[i].cut) continue;
        assert_true(cut.part_k * (cut.parts - 1) < sum);
        assert_true(cut.part_k >= STW_JAGGED_PART_LEAST && cut.part_k % t.bk == 0);
    }
    /* matmul: the device counts the parts; a product beyond 63 bits is not cut */
    stw_jagged_params p = params_of("jagged_matmul:f16:c6m40000k24n30:tm120000");
    stw_jagged_cut cut = stw_jagged_cut_of(&p, STW_JPRODUCT_DB, table);
    assert_true(cut.parts == 2 && cut.part_k >= STW_JAGGED_PART_LEAST && cut.slots > 2 * 120000 / cut.part_k);
    /* a result that is stored transposed is cut as the other product with its sides exchanged */
    p = params_of("jagged_matmul:f16:c6m40000k24n300:tm120000");
    p.other_matrix.transposed = 1;
    stw_jagged_cut other = stw_jagged_cut_of(&p, STW_JPRODUCT_DB, table);
    p = params_of("jagged_matmul:f16:c6m40000k300n24:tm120000");
    cut = stw_jagged_cut_of(&p, STW_JPRODUCT_DB, table);
    assert_true(other.parts == 2 && other.part_k == cut.part_k && other.slots == cut.slots);
    p = params_of("jagged_matmul:f16:c1m1073741824k536870912n536870912:tm1073741824");
    cut = stw_jagged_cut_of(&p, STW_JPRODUCT_DB, table);
    assert_true(cut.parts == 1 && cut.slots == 0 && cut.part_k >= p.axis[0].size);
}

/* Names, grids and shared memory of all steps. */
static void steps_fit_a_gpu(void **state) {
    (void)state;
    static const struct {
        const char *line, *main;
    } rows[] = {
        {"jagged_gelu:bf16:c5l30t90i60", "gelu_bf16"},
        {"jagged_gelu_tanh:f16:c5l30t90i60", "gelu_tanh_f16"},
        {"jagged_threshold:bf16:c5l30t90i60", "threshold_bf16"},
        {"jagged_softmax:bf16:c5l30t90i60:inner", "softmax_"},
        {"jagged_softmax:bf16:c5l30t90i60:inner:ds5:da4", "softmax_strided"},
        {"jagged_softmax:bf16:c5l30t90o3i60:outer", "softmax_strided"},
        {"jagged_softmax:f16:c5l30t90i60:ragged", "segment_"},
        {"jagged_softmax:f32:c0l30t0i60:inner", NULL}, /* clean lengths alone */
        {"jagged_log_softmax:bf16:c5l30t90i60:inner", "log_softmax_"},
        {"jagged_log_softmax:bf16:c5l30t90i60:inner:ds5:da4", "log_softmax_strided"},
        {"jagged_log_softmax:f16:c5l30t90i60:ragged", "log_segment_"},
        {"jagged_layer_norm:bf16:c5l30t90i60", "norm_"},
        {"jagged_layer_norm:f32:c5l60t200i64:gamma", "norm_"},
        {"jagged_layer_norm:bf16:c5l60t200i20000:gamma", "norm_columns"},
        {"jagged_layer_norm:bf16:c5l30t90o2i60:ragged", "norm_ragged_"},
        {"jagged_rms_norm:f32:c5l30t90i60:ragged:jagged:used", "norm_ragged_"},
        {"jagged_rms_norm:f16:c5l30t90i60", "rms_norm_"},
        {"jagged_rms_norm:f32:c5l60t200i512:gamma", "rms_norm_sums_"},
        {"jagged_rms_norm:bf16:c5l60t200i20000:gamma", "rms_norm_columns"},
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
                 {STW_BACKEND_HIP, "gfx942", 64 << 10},
                 {STW_BACKEND_HIP, "gfx950", 160 << 10}};
    for (size_t a = 0; a < 4; ++a)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
            const stw_jagged_table *table = table_of(archs[a].backend, archs[a].arch);
            stw_jagged_params p = params_of(rows[i].line);
            stw_jagged_steps steps;
            int found = 0;
            assert_null(stw_jagged_refusal(&p));
            stw_jagged_steps_of(&p, table, 108, &steps);
            for (uint32_t n = 0; n < steps.count; ++n) {
                const stw_jagged_step *s = &steps.step[n];
                assert_true(s->work_tiles > 0 && s->grid_x > 0 && s->grid_y > 0 && s->grid_y <= 65535);
                assert_true(s->block > 0 && s->block % table->wave == 0 && s->block <= 1024);
                assert_true(s->smem <= archs[a].smem);
                found |= rows[i].main && strstr(s->entry, rows[i].main);
            }
            if (!rows[i].main) assert_true(steps.count <= 1);
            if (found != (rows[i].main != NULL))
                fail_msg("%s on %s: %u steps, no %s; the last is %s", rows[i].line, archs[a].arch, steps.count,
                         rows[i].main, steps.count ? steps.step[steps.count - 1].entry : "");
        }
}

/* Outer entries without a position take no CTA and no workspace. */
static void empty_problems_take_no_cta(void **state) {
    static const char *const lines[] = {
        "jagged_softmax:bf16:c5l30t90i60:ragged",  "jagged_log_softmax:f16:c5l30t90i6:ragged",
        "jagged_softmax:bf16:c5l30t90i60:outer",   "jagged_layer_norm:bf16:c5l30t90i60:ragged",
        "jagged_rms_norm:f32:c5l60t200i512:gamma", "jagged_gelu:f32:c5l30t90i60",
        "jagged_sum:bf16:c5l30t90i60:inner",       "jagged_to_padded:f32:c5l30t90i60p30"};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i)
        for (int without = 0; without < 2; ++without) {
            stw_jagged_params p = params_of(lines[i]);
            stw_jagged_steps steps;
            int64_t *many = p.slabs > 1 ? &p.slabs : &p.rows_outer;
            p.outer = *many = INT64_C(1) << 34;
            if (without) p.components = 0;
            else p.axis[0].total = 0;
            stw_jagged_steps_of(&p, table_of(STW_BACKEND_CUDA, "sm80"), 108, &steps);
            assert_in_range(steps.workspace, 0, 1 << 16);
            for (uint32_t n = 0; n < steps.count; ++n) assert_in_range(steps.step[n].work_tiles, 0, 64);
        }
}

/* The line that a plan prints of itself makes the same plan. */
static void plans_tell_their_problem(void **state) {
    static const char *const lines[] = {"jagged_softmax:bf16:c5l30t90i60:inner:ds5:da4",
                                        "jagged_linear:f16:c7l60t200i64f96:used",
                                        "jagged_layer_norm:f32:c5l60t200i64:ds16",
                                        "jagged_layer_norm:bf16:c5l60t200i64:gamma:weight_f32",
                                        "jagged_matmul:f16:c6o2m40k24n30:tm120:tn90:gb9000:ot",
                                        "jagged_reshape:i8:c7l60t200:shape4,-1,3:gshape-1,12",
                                        "jagged_select:f64:c6l30t180o3i40:outer:index-1:i64",
                                        "jagged_threshold:f16:c7l60t200:thr0.1",
                                        "jagged_attention:i64:attn_bwd:bf16:b4h2s50d64:thd"};
    (void)state;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    stw_context *context;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
        char text[2][4096], line[1024];
        snprintf(line, sizeof line, "%s", lines[i]);
        for (int round = 0; round < 2; ++round) {
            stw_jagged_problem problem;
            stw_plan *plan;
            if (stw_problem_jagged_parse(line, &problem)) fail_msg("%s: %s", line, stw_last_error());
            if (problem.desc.op == STW_JAGGED_ATTENTION) problem.desc.attn = &problem.attn.desc;
            if (stw_jagged_bwd_plan(context, &problem.desc, &plan)) fail_msg("%s: %s", line, stw_last_error());
            assert_int_equal(stw_plan_describe(plan, text[round], sizeof text[round], NULL), STW_OK);
            stw_plan_destroy(plan);
            assert_int_equal(strncmp(text[round], "problem: ", 9), 0);
            snprintf(line, sizeof line, "%.*s", (int)strcspn(text[round] + 9, "\n"), text[round] + 9);
        }
        assert_string_equal(text[0], text[1]);
        assert_non_null(strstr(text[0], "\nvariant: "));
    }
    stw_context_destroy(context);
}

static void explain_says_why(void **state) {
    (void)state;
    stw_jagged_problem problem;
    char text[8192], cut[16];
    size_t needed = 0;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    assert_int_equal(stw_problem_jagged_parse("jagged_sum:i64:c5l30t90i60:inner", &problem), STW_OK);
    assert_int_equal(stw_explain_jagged(&opts, &problem.desc, text, sizeof text, &needed), STW_OK);
    assert_int_equal(needed, strlen(text) + 1);
    assert_non_null(strstr(text, "cpu: chosen\nproblem: jagged_sum:i64:c5l30t90i60:inner"));
    assert_int_equal(stw_explain_jagged(&opts, &problem.desc, cut, sizeof cut, NULL), STW_OK);
    problem.desc.dim_size = 7;
    assert_int_equal(stw_explain_jagged(&opts, &problem.desc, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "refuses the problem: jagged_bwd: dim_size 7"));
    assert_null(strstr(text, ": chosen"));
    assert_int_equal(stw_explain_jagged(NULL, &problem.desc, text, sizeof text, NULL), STW_E_INVALID);
    assert_int_equal(stw_explain_jagged(&opts, NULL, text, sizeof text, NULL), STW_E_INVALID);
    assert_int_equal(stw_explain_jagged(&opts, &problem.desc, NULL, 5, NULL), STW_E_INVALID);
}

/* By the formats' definitions: 1 + 5 + 10 bits, and the upper half of an f32. */
static void sixteen_bits_are_read_exactly(void **state) {
    (void)state;
    static const uint16_t f16[] = {0x3C00, 0xC000, 0x7BFF, 0x0400, 0x0001, 0x83FF, 0x8000};
    static const float of_f16[] = {1.0f, -2.0f, 65504.0f, 0x1p-14f, 0x1p-24f, -1023 * 0x1p-24f, -0.0f};
    static const uint16_t bf16[] = {0x3F80, 0xC040, 0x7F7F, 0x0001};
    static const float of_bf16[] = {1.0f, -3.0f, 0x1.FEp127f, 0x1p-133f};
    const uint16_t infinite[] = {0x7C00, 0xFC00}, none = 0x7E01, wide = 0x7F80;
    const float plain[] = {0.0f, 0.3f};
    for (int i = 0; i < 7; ++i) {
        float got = stw_load_f32(f16, i, STW_F16);
        if (memcmp(&got, &of_f16[i], sizeof got))
            fail_msg("f16 %04x: %a, not %a", f16[i], (double)got, (double)of_f16[i]);
    }
    for (int i = 0; i < 4; ++i) assert_true(stw_load_f32(bf16, i, STW_BF16) == of_bf16[i]);
    assert_true(stw_load_f32(infinite, 0, STW_F16) == INFINITY && stw_load_f32(infinite, 1, STW_F16) == -INFINITY);
    assert_true(isnan(stw_load_f32(&none, 0, STW_F16)) && isinf(stw_load_f32(&wide, 0, STW_BF16)));
    assert_true(stw_load_f32(plain, 1, STW_F32) == 0.3f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_lengths_of_wrong_values),
        cmocka_unit_test(rows_are_where_the_header_says),
        cmocka_unit_test(positions_are_found),
        cmocka_unit_test(matrices_do_not_overlap),
        cmocka_unit_test(bases_outside_are_seen),
        cmocka_unit_test(tables_of_archs),
        cmocka_unit_test(maps_go_by_rows_where_they_can),
        cmocka_unit_test(long_sums_are_cut),
        cmocka_unit_test(steps_fit_a_gpu),
        cmocka_unit_test(empty_problems_take_no_cta),
        cmocka_unit_test(plans_tell_their_problem),
        cmocka_unit_test(explain_says_why),
        cmocka_unit_test(sixteen_bits_are_read_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
