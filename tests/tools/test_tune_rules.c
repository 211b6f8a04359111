/* SPDX-License-Identifier: MIT
 *
 * From measured times to rules (tools/tune/rules.c): which class a problem falls into, where the limits
 * between lengths lie, what gains too little, and that the library's own reader takes every text written. The
 * times are made up; the table is this test's. */
#include "dispatch/select.h"
#include "tools/tune/tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { A64, B64, A128, B128, C256, F64, F256, VARIANTS };
/* id, head_dim, bm, bn, stages, warps, smem_kb, loop */
static const stw_tool_variant variants[VARIANTS] = {
    {"a_hd64", 64, 64, 64, 1, 4, 10, "split"},   {"b_hd64", 64, 128, 64, 1, 4, 10, "split"},
    {"a_hd128", 128, 64, 64, 1, 4, 10, "split"}, {"b_hd128", 128, 128, 64, 1, 4, 10, "split"},
    {"c_hd256", 256, 64, 64, 1, 4, 10, "split"}, {"f_hd64", 64, 32, 64, 1, 4, 10, "f32"},
    {"f_hd256", 256, 32, 32, 1, 4, 10, "f32"},
};
static const stw_tool_table table = {"sm80", variants, VARIANTS};
/* The same as the library's reader of rules takes them; it asks for ids alone. */
static const stw_variant known_variants[VARIANTS] = {
    {.id = "a_hd64"},  {.id = "b_hd64"}, {.id = "a_hd128"}, {.id = "b_hd128"},
    {.id = "c_hd256"}, {.id = "f_hd64"}, {.id = "f_hd256"},
};
static const stw_rule_row no_rules[] = {{"", "c_hd256"}};
static const stw_attn_table known = {"sm80", known_variants, VARIANTS, no_rules, 1};

typedef struct bench_made {
    tune_point points[8];
    tune_timing timings[8][2];
    size_t count;
} made;

/* A problem with the times of two variants, the first of them chosen now; a time of 0: not timed. */
static tune_point *add(made *m, const char *line, int now, double now_ms, int other, double other_ms) {
    stw_problem problem;
    tune_point *p = &m->points[m->count];
    tune_timing *t = m->timings[m->count++];
    assert_int_equal(stw_problem_parse(line, &problem), STW_OK);
    t[0] = (tune_timing){.variant = &variants[now], .runs = now_ms > 0, .median = now_ms * 1e-3};
    t[1] = (tune_timing){.variant = &variants[other], .runs = other_ms > 0, .median = other_ms * 1e-3};
    *p = (tune_point){.desc = problem.desc, .timings = t, .count = 2};
    p->deterministic = problem.desc.deterministic == STW_DETERMINISTIC_ON;
    snprintf(p->line, sizeof p->line, "%s", line);
    return p;
}

/* The STW_RULE rows of the text, without what all have; the whole text must be readable. */
static const char *rows_of(const made *m) {
    static char rows[4000];
    static tune_target target;
    char *text = NULL;
    size_t size = 0, count = 0, used = 0;
    stw_rule rules[16];
    target = (tune_target){.table = &table,
                           .named = {.device = "a */ device", .driver = "1.2", .date = "2026-11-21T00:00:00Z"}};
    const tune_report report = {&target, m->points, m->count, 0.01, NULL};
    FILE *memory = open_memstream(&text, &size);
    assert_non_null(memory);
    assert_int_equal(tune_write_rules(memory, &report), 0);
    fclose(memory);
    if (stw_rules_parse("made", text, &known, rules, 16, &count)) fail_msg("%s in:\n%s", stw_last_error(), text);
    rows[0] = 0;
    size_t found = 0;
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "STW_RULE(\"op=bwd ", 17)) continue;
        used += (size_t)snprintf(rows + used, sizeof rows - used, "%s\n", line + 17);
        ++found;
    }
    assert_int_equal(found, count);
    free(text);
    return rows;
}

static void limits_lie_between_lengths(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s1536d128", A128, 2, B128, 1);
    add(&m, "attn_bwd:bf16:b1h1s6144d128", A128, 2, B128, 2.5);
    add(&m, "attn_bwd:bf16:b1h1s384d128", A128, 2, B128, 1.9);
    assert_string_equal(
        rows_of(&m), "dtype=f16|bf16 head_dim>=65 head_dim<=128 causal=0 bias=0 dropout=0 deterministic=0 seq_q>=3072 "
                     "seq_kv>=3072\", a_hd128)\n"
                     "dtype=f16|bf16 head_dim>=65 head_dim<=128 causal=0 bias=0 dropout=0 deterministic=0 seq_q>=192 "
                     "seq_kv>=192\", b_hd128)\n");
}

static void the_shorter_side_counts(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s100x6144d128", A128, 2, B128, 1);
    assert_non_null(strstr(rows_of(&m), "seq_q>=50 seq_kv>=50\", b_hd128)"));
    m.count = 0;
    add(&m, "attn_bwd:bf16:b1h1s1x6144d128", A128, 2, B128, 1);
    assert_null(strstr(rows_of(&m), "seq"));
}

static void head_dim_classes(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s64d40", A64, 2, B64, 1);
    assert_non_null(strstr(rows_of(&m), "dtype=f16|bf16 head_dim<=64 causal"));
    m.count = 0;
    add(&m, "attn_bwd:f16:b1h1s64d96", A128, 2, B128, 1);
    assert_non_null(strstr(rows_of(&m), "dtype=f16|bf16 head_dim>=65 head_dim<=128 causal"));
    m.count = 0;
    add(&m, "attn_bwd:bf16:b1h1s64d64x192", A128, 2, C256, 1); /* the larger of the two counts */
    assert_non_null(strstr(rows_of(&m), "dtype=f16|bf16 head_dim>=129 causal"));
    m.count = 0;
    add(&m, "attn_bwd:f32:b1h1s64d96", F256, 2, F64, 1);
    assert_non_null(strstr(rows_of(&m), "dtype=f32 head_dim>=65 causal"));
}

static void small_gains_make_no_rule(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s64d64", A64, 1, B64, 0.992);
    assert_string_equal(rows_of(&m), "");
    m.count = 0;
    add(&m, "attn_bwd:bf16:b1h1s64d64", A64, 1, B64, 0.989);
    assert_non_null(strstr(rows_of(&m), "b_hd64"));
}

static void problems_of_one_class_and_length_count_together(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s64d64", A64, 1, B64, 0.9);
    add(&m, "attn_bwd:f16:b7h9s64d50", A64, 10, B64, 12);
    assert_string_equal(rows_of(&m), ""); /* 0.9 * 1.2 > 1 */
    m.timings[1][1].median = 10.5e-3;
    assert_non_null(strstr(rows_of(&m), "b_hd64")); /* 0.9 * 1.05 < 0.99^2 */
    m.timings[1][1].runs = 0;
    assert_string_equal(rows_of(&m), ""); /* it could not be timed in one of them */
}

static void causal_and_full_join_when_they_agree(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s64d64:causal_br", A64, 2, B64, 1);
    tune_point *full = add(&m, "attn_bwd:bf16:b1h1s64d64", A64, 2, B64, 1);
    assert_string_equal(rows_of(&m), "dtype=f16|bf16 head_dim<=64 bias=0 dropout=0 deterministic=0 seq_q>=32 "
                                     "seq_kv>=32\", b_hd64)\n");
    full->timings[1].median = 3e-3;
    assert_string_equal(rows_of(&m), "dtype=f16|bf16 head_dim<=64 causal=1 bias=0 dropout=0 deterministic=0 "
                                     "seq_q>=32 seq_kv>=32\", b_hd64)\n");
}

static void features_have_rows_of_their_own_in_front(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s64d64", A64, 2, B64, 1);
    add(&m, "attn_bwd:bf16:b1h1s64d64:dropout0.1:wr3", A64, 2, B64, 1);
    add(&m, "attn_bwd:bf16:b1h1s64d64:det", A64, 2, B64, 1);
    add(&m, "attn_bwd:bf16:b1h1s64d64:bias_1hqk", A64, 2, B64, 1);
    add(&m, "attn_bwd:bf16:b2h1s64d64:thd", A64, 2, B64, 1);
    const char *const expected[] = {
        "causal=0 bias=0 dropout=0 deterministic=1", "causal=1 bias=0 dropout=1 deterministic=0",
        "causal=0 bias=1 dropout=0 deterministic=0", "packed=1 causal=0 bias=0 dropout=0 deterministic=0",
        "head_dim<=64 causal=0 bias=0 dropout=0 deterministic=0"};
    const char *at = rows_of(&m);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
        at = strstr(at, expected[i]);
        assert_non_null(at);
        at = strchr(at, '\n');
        assert_non_null(at);
    }
    assert_string_equal(at, "\n");
}

static void what_was_not_timed_gets_no_rule(void **state) {
    (void)state;
    made m = {.count = 0};
    add(&m, "attn_bwd:bf16:b1h1s64d64", A64, 0, B64, 0);
    assert_string_equal(rows_of(&m), "");
    m.timings[0][1] = (tune_timing){.variant = &variants[B64], .runs = 1, .median = 5};
    assert_non_null(strstr(rows_of(&m), "b_hd64")); /* the present one is wrong, this one is right */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_lie_between_lengths),
        cmocka_unit_test(the_shorter_side_counts),
        cmocka_unit_test(head_dim_classes),
        cmocka_unit_test(small_gains_make_no_rule),
        cmocka_unit_test(problems_of_one_class_and_length_count_together),
        cmocka_unit_test(causal_and_full_join_when_they_agree),
        cmocka_unit_test(features_have_rows_of_their_own_in_front),
        cmocka_unit_test(what_was_not_timed_gets_no_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
