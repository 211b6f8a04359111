/* SPDX-License-Identifier: MIT
 *
 * The static model of `sternway tune` (tools/tune/model.c) on made-up tables: what it rules out, with the
 * numbers worked out by hand, and what it must leave. */
#include "tools/tune/tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct model_made {
    tune_target target;
    tune_point point;
    tune_timing timings[8];
} made;

/* The first variant is the chosen one. */
static void make(made *m, const stw_tool_table *table, uint32_t units, const char *line) {
    stw_problem problem;
    memset(m, 0, sizeof *m);
    assert_int_equal(stw_problem_parse(line, &problem), STW_OK);
    m->target.table = table;
    m->target.units = units;
    for (size_t i = 0; i < table->variant_count; ++i) m->timings[i].variant = &table->variants[i];
    m->point = (tune_point){.desc = problem.desc, .timings = m->timings, .count = table->variant_count};
    tune_model_prune(&m->target, &m->point);
}

static void assert_pruned(const made *m, const char *expected) {
    char pruned[9] = "";
    for (size_t i = 0; i < m->point.count; ++i) pruned[i] = m->timings[i].pruned ? 'x' : '.';
    assert_string_equal(pruned, expected);
}

static void a_block_fills_what_registers_and_memory_let_it(void **state) {
    (void)state;
    static const stw_tool_variant wave = {"gfx942_a", 256, 16, 16, 1, 1, 52, "split"};
    static const stw_tool_variant two = {"gfx942_b", 256, 16, 16, 1, 2, 20, "split"};
    static const stw_tool_variant four = {"gfx942_c", 256, 16, 16, 1, 4, 64, "split"};
    static const stw_tool_variant nvidia = {"sm80_a", 256, 16, 16, 1, 2, 99, "split"};
    assert_true(tune_model_fill(&wave, 64, 0) == 0.25); /* one workgroup of one wave fits in 64 KB */
    assert_true(tune_model_fill(&two, 64, 0) == 1);     /* two workgroups of two waves: registers end it there */
    assert_true(tune_model_fill(&four, 64, 0) == 1);
    assert_true(tune_model_fill(&nvidia, 99, 0) == 0.5);
    assert_true(tune_model_fill(&nvidia, 227, 0) == 1); /* two CTAs of two warps */
    assert_true(tune_model_fill(&nvidia, 99, 1) == 1);  /* the CPU has no CTAs */
}

static void wider_head_dims_than_the_two_smallest_go(void **state) {
    (void)state;
    static const stw_tool_variant variants[] = {{"c256", 256, 64, 64, 1, 4, 10, "split"},
                                                {"a64", 64, 64, 64, 1, 4, 10, "split"},
                                                {"b96", 96, 64, 64, 1, 4, 10, "split"},
                                                {"c128", 128, 64, 64, 1, 4, 10, "split"}};
    const stw_tool_table table = {"sm80", variants, 4};
    made m;
    make(&m, &table, 0, "attn_bwd:bf16:b1h1s512d64");
    assert_pruned(&m, "...x"); /* the first is the chosen one */
    assert_non_null(strstr(m.timings[3].text, "two variants of up to 96"));
}

static void more_than_twice_the_work_goes(void **state) {
    (void)state;
    static const stw_tool_variant variants[] = {{"a", 128, 64, 64, 1, 4, 10, "split"},
                                                {"wide", 128, 64, 512, 1, 4, 10, "split"},
                                                {"other", 128, 512, 512, 1, 4, 10, "sm90"}};
    const stw_tool_table table = {"sm80", variants, 3};
    made m;
    make(&m, &table, 0, "attn_bwd:bf16:b1h1s192d128"); /* 512 keys for 192: 2.67 times */
    assert_pruned(&m, ".x.");                          /* another main loop is not compared */
    assert_non_null(strstr(m.timings[1].text, "2.7 times the work of a "));
    make(&m, &table, 0, "attn_bwd:bf16:b1h1s257d128"); /* 512 for 320: 1.6 times */
    assert_pruned(&m, "...");
}

static void blocks_in_turn_count(void **state) {
    (void)state;
    static const stw_tool_variant variants[] = {{"a", 128, 64, 64, 1, 4, 10, "split"},
                                                {"b", 128, 64, 192, 1, 4, 10, "split"}};
    const stw_tool_table table = {"sm80", variants, 2};
    made m;
    /* 30 CTAs of 64 keys on 30 multiprocessors; 10 of 192: as much arithmetic, on a third of them. */
    make(&m, &table, 30, "attn_bwd:bf16:b1h10s192d128");
    assert_pruned(&m, ".x");
    assert_non_null(strstr(m.timings[1].text, "3.0 times"));
    make(&m, &table, 10, "attn_bwd:bf16:b1h10s192d128"); /* 3 in turn, or one three times as long */
    assert_pruned(&m, "..");
    make(&m, &table, 0, "attn_bwd:bf16:b1h10s192d128"); /* not known */
    assert_pruned(&m, "..");
}

static void cpu_lanes_count_and_an_empty_problem_prunes_nothing(void **state) {
    (void)state;
    static const stw_tool_variant variants[] = {{"a16", 256, 64, 64, 1, 16, 0, "avx512"},
                                                {"a8", 256, 64, 64, 1, 8, 0, "avx2"},
                                                {"a4", 256, 64, 64, 1, 4, 0, "portable"}};
    const stw_tool_table table = {"cpu", variants, 3};
    made m;
    make(&m, &table, 2, "attn_bwd:f32:b1h1s512d64");
    assert_pruned(&m, "..x"); /* twice is not more than twice */
    make(&m, &table, 2, "attn_bwd:f32:b0h1s512d64");
    assert_pruned(&m, "..x");
    make(&m, &table, 2, "attn_bwd:f32:b1h1s0x512d64");
    assert_pruned(&m, "...");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_fills_what_registers_and_memory_let_it),
        cmocka_unit_test(wider_head_dims_than_the_two_smallest_go),
        cmocka_unit_test(more_than_twice_the_work_goes),
        cmocka_unit_test(blocks_in_turn_count),
        cmocka_unit_test(cpu_lanes_count_and_an_empty_problem_prunes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
