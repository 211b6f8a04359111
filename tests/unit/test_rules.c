/* SPDX-License-Identifier: MIT
 *
 * Tuning rules: the grammar of conditions, tuning files, and that the built-in tables are whole: every row
 * reads, every problem finds a rule, every variant can be reached. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/dtype.h"
#include "dispatch/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void conditions_are_read(void **state) {
    (void)state;
    stw_rule rule;
    assert_int_equal(stw_rule_parse("dtype=f16|f32 head_dim<=64  seq_q>=1024 causal=1 op=fwd", &rule), STW_OK);
    assert_int_equal(rule.choices[STW_FACT_dtype], 1u << STW_F16 | 1u << STW_F32);
    assert_int_equal(rule.choices[STW_FACT_op], 1u << STW_PLAN_ATTN_FWD);
    assert_int_equal(rule.high[STW_FACT_head_dim], 64);
    assert_int_equal(rule.low[STW_FACT_seq_q], 1024);
    assert_true(rule.high[STW_FACT_seq_q] == INT64_MAX);
    assert_int_equal(rule.low[STW_FACT_causal], 1);
    assert_int_equal(rule.high[STW_FACT_causal], 1);
    assert_int_equal(stw_rule_parse("", &rule), STW_OK);
    assert_int_equal(rule.choices[0], ~0u);
    /* of two bounds the tighter one holds, whichever comes first */
    assert_int_equal(stw_rule_parse("seq_q<=64 seq_q<=128 seq_kv>=9 seq_kv>=4", &rule), STW_OK);
    assert_int_equal(rule.high[STW_FACT_seq_q], 64);
    assert_int_equal(rule.low[STW_FACT_seq_kv], 9);
    assert_int_equal(stw_rule_parse("seq_q<=128 seq_q<=64 seq_kv>=4 seq_kv>=9", &rule), STW_OK);
    assert_int_equal(rule.high[STW_FACT_seq_q], 64);
    assert_int_equal(rule.low[STW_FACT_seq_kv], 9);
}

static void bad_conditions_name_the_word(void **state) {
    (void)state;
    static const char *const bad[] = {"head_dim",
                                      "head_dim<64",
                                      "head_dim<=",
                                      "head_dim<=-1",
                                      "head_dim<=6x",
                                      "colour=1",
                                      "dtype<=f16",
                                      "dtype=f64",
                                      "dtype=",
                                      "dtype=f16|",
                                      "op=both",
                                      "=5",
                                      "seq_q>=99999999999999999999"};
    stw_rule rule;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        char text[100];
        snprintf(text, sizeof text, "seq_kv>=1 %s", bad[i]);
        assert_int_equal(stw_rule_parse(text, &rule), STW_E_INVALID);
        assert_non_null(strstr(stw_last_error(), bad[i]));
    }
}

/* A problem and a device for a table: the facts a rule may ask about. */
static stw_facts facts_of(int64_t dtype, int64_t op, int64_t head_dim, int64_t seq, int64_t smem_kb) {
    stw_facts facts = {.work = NULL};
    facts.value[STW_FACT_dtype] = dtype;
    facts.value[STW_FACT_op] = op;
    facts.value[STW_FACT_head_dim] = facts.value[STW_FACT_head_dim_v] = head_dim;
    facts.value[STW_FACT_seq_q] = facts.value[STW_FACT_seq_kv] = seq;
    facts.value[STW_FACT_batch_heads] = facts.value[STW_FACT_group] = 1;
    facts.value[STW_FACT_smem_kb] = smem_kb;
    return facts;
}

static const char *refused_loop; /* variants of this loop are refused by the fake device */

static const char *refuse_loop(const stw_device *device, const stw_attn_work *work, const stw_variant *variant) {
    (void)device, (void)work;
    return refused_loop && !strcmp(variant->loop->name, refused_loop) ? "refused by the test" : NULL;
}

static void every_problem_finds_a_rule(void **state) {
    (void)state;
    const stw_backend_ops ops = {.variant_refusal = refuse_loop};
    static const int64_t dims[] = {1, 32, 33, 64, 96, 128, 192, 256}, seqs[] = {0, 1, 64, 1000, 1 << 20, INT32_MAX};
    refused_loop = NULL;
    assert_true(stw_attn_table_count() > 0);
    for (size_t t = 0; t < stw_attn_table_count(); ++t) {
        const stw_attn_table *table = stw_attn_table_at(t);
        const stw_arch *arch = stw_arch_find(STW_BACKEND_AUTO, table->arch);
        stw_rules rules;
        assert_non_null(arch);
        assert_int_equal(stw_rules_load(table->arch, NULL, &rules), STW_OK);
        assert_int_equal(rules.count, table->rule_count);
        stw_device device = {.arch = arch, .smem_max = arch->smem_kb * 1024};
        for (int64_t dtype = STW_F16; dtype <= STW_F32; ++dtype)
            for (int64_t op = STW_PLAN_ATTN_BWD; op <= STW_PLAN_ATTN_FWD; ++op)
                for (size_t d = 0; d < 8; ++d)
                    for (size_t s = 0; s < 6; ++s) {
                        stw_facts facts = facts_of(dtype, op, dims[d], seqs[s], arch->smem_kb);
                        char why[300];
                        stw_text text = stw_text_in(why, sizeof why);
                        const stw_variant *variant;
                        assert_int_equal(stw_select(&rules, &facts, &ops, &device, NULL, 0, &text, &variant), STW_OK);
                        assert_true(variant->head_dim >= dims[d]);
                        assert_true(text.length > 0);
                    }
        stw_rules_free(&rules);
    }
}

/* Tables may share rows (sm90's has all of sm80's, whose kernels its devices run): then an id means the same
 * everywhere. */
static int is_same_row(const stw_variant *a, const stw_variant *b) {
    return a->head_dim == b->head_dim && a->bm == b->bm && a->bn == b->bn && a->stages == b->stages &&
           a->warps == b->warps && a->smem_kb == b->smem_kb && !strcmp(a->loop->name, b->loop->name);
}

static void every_variant_has_a_rule_and_an_id_of_its_own(void **state) {
    (void)state;
    for (size_t t = 0; t < stw_attn_table_count(); ++t) {
        const stw_attn_table *table = stw_attn_table_at(t);
        for (size_t v = 0; v < table->variant_count; ++v) {
            const stw_variant *variant = &table->variants[v];
            int rules = 0, same = 0;
            for (size_t r = 0; r < table->rule_count; ++r) rules += !strcmp(table->rules[r].variant, variant->id);
            for (size_t row = 0; row < table->variant_count; ++row)
                same += !strcmp(table->variants[row].id, variant->id);
            assert_true(rules > 0);
            assert_int_equal(same, 1);
            for (size_t other = 0; other < stw_attn_table_count(); ++other) {
                const stw_variant *found = stw_attn_variant_find(stw_attn_table_at(other), variant->id);
                assert_true(!found || is_same_row(found, variant));
            }
        }
    }
}

static void a_refused_variant_is_passed_over_with_its_reason(void **state) {
    (void)state;
    const stw_backend_ops ops = {.variant_refusal = refuse_loop};
    stw_device device = {.arch = stw_arch_find(STW_BACKEND_CPU, "cpu")};
    stw_rules rules;
    assert_int_equal(stw_rules_load("cpu", NULL, &rules), STW_OK);
    stw_facts facts = facts_of(STW_F32, STW_PLAN_ATTN_BWD, 64, 100, 0);
    char why[2000];
    const stw_variant *first, *second;
    refused_loop = NULL;
    stw_text text = stw_text_in(why, sizeof why);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, NULL, 1, &text, &first), STW_OK);
    refused_loop = first->loop->name;
    text = stw_text_in(why, sizeof why);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, NULL, 1, &text, &second), STW_OK);
    assert_ptr_not_equal(first->loop, second->loop);
    assert_non_null(strstr(why, "refused by the test"));
    text = stw_text_in(why, sizeof why);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, first->id, 0, &text, &second), STW_E_UNSUPPORTED);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, "nonsense", 0, &text, &second), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), first->id)); /* tells which there are */
    refused_loop = NULL;
    stw_rules_free(&rules);
}

/* What would run without the rule that was chosen, without the next, ...: variants that refuse are not named.
 */
static void next_variants_are_those_that_would_run(void **state) {
    (void)state;
    const stw_backend_ops ops = {.variant_refusal = refuse_loop};
    stw_device device = {.arch = stw_arch_find(STW_BACKEND_CPU, "cpu")};
    stw_rules rules;
    assert_int_equal(stw_rules_load("cpu", NULL, &rules), STW_OK);
    stw_facts facts = facts_of(STW_F32, STW_PLAN_ATTN_BWD, 64, 1000, 0);
    char why[2000];
    const stw_variant *variant = NULL;
    refused_loop = "avx2";
    stw_text text = stw_text_in(why, sizeof why);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, NULL, 1, &text, &variant), STW_OK);
    assert_string_equal(variant->id, "cpu_avx512_64x128");
    assert_non_null(strstr(why, "\nnext: cpu_avx512_64x64, cpu_portable_32x32\n"));
    refused_loop = "avx512";
    text = stw_text_in(why, sizeof why);
    rules.count -= 1; /* without the last rule, which is the portable one's, nothing is left */
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, NULL, 1, &text, &variant), STW_OK);
    assert_string_equal(variant->loop->name, "avx2");
    assert_null(strstr(why, "next: "));
    refused_loop = "avx2";
    facts.value[STW_FACT_seq_q] = 1; /* the first rule alone is for longer ones */
    rules.count = 1;
    variant = NULL;
    text = stw_text_in(why, sizeof why);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, NULL, 1, &text, &variant), STW_E_UNSUPPORTED);
    assert_string_equal(stw_last_error(), "no rule of the tuning table of cpu fits a f32 problem of head dim 64");
    assert_non_null(strstr(why, "seq_q is 1\n"));
    assert_null(variant);
    refused_loop = NULL;
    stw_rules_free(&rules);
}

/* A variant by name is refused where it is too small for the problem, or too large for the device. */
static void forced_variants_must_fit(void **state) {
    (void)state;
    const stw_backend_ops ops = {.variant_refusal = refuse_loop};
    const stw_arch *arch = stw_arch_find(STW_BACKEND_CUDA, "sm80");
    stw_device device = {.arch = arch, .smem_max = arch->smem_kb * 1024};
    stw_rules rules;
    char why[300];
    const stw_variant *variant = NULL;
    refused_loop = NULL;
    assert_int_equal(stw_rules_load("sm80", NULL, &rules), STW_OK);
    stw_text text = stw_text_in(why, sizeof why);
    stw_facts facts = facts_of(STW_F16, STW_PLAN_ATTN_BWD, 96, 100, arch->smem_kb);
    const char *const forced = "sm80_64x64_hd128"; /* 128, 81 KB */
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, forced, 0, &text, &variant), STW_OK);
    assert_string_equal(variant->id, forced);
    assert_string_equal(why, "forced by STERNWAY_VARIANT\n");
    variant = NULL;
    facts = facts_of(STW_F16, STW_PLAN_ATTN_BWD, 129, 100, arch->smem_kb);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, forced, 0, &text, &variant), STW_E_UNSUPPORTED);
    assert_non_null(strstr(stw_last_error(), "STERNWAY_VARIANT=sm80_64x64_hd128: the head dim is above"));
    facts = facts_of(STW_F16, STW_PLAN_ATTN_BWD, 96, 100, 80);
    assert_int_equal(stw_select(&rules, &facts, &ops, &device, forced, 0, &text, &variant), STW_E_UNSUPPORTED);
    assert_non_null(strstr(stw_last_error(), "needs more shared memory"));
    assert_null(variant);
    stw_rules_free(&rules);
}

/* Writes a tuning file and loads it for the CPU. */
static stw_status load_bytes(const char *content, size_t length, stw_rules *rules) {
    char path[] = "/tmp/stw_rules_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, content, length), length);
    close(file);
    stw_status status = stw_rules_load("cpu", path, rules);
    unlink(path);
    return status;
}

static stw_status load_file(const char *content, stw_rules *rules) {
    return load_bytes(content, strlen(content), rules);
}

static void tuning_file_goes_first(void **state) {
    (void)state;
    const stw_attn_table *table = stw_attn_table_find("cpu");
    const char *id = table->variants[table->variant_count - 1].id;
    char content[300];
    stw_rules rules;
    snprintf(content, sizeof content, "# by hand\n\n/* 2026 */\n  STW_RULE(\"head_dim<=64\", %s)\nSTW_RULE(\"\",%s)\n",
             id, id);
    assert_int_equal(load_file(content, &rules), STW_OK);
    assert_int_equal(rules.count, table->rule_count + 2);
    assert_string_equal(rules.rules[0].variant->id, id);
    assert_int_equal(rules.rules[0].high[STW_FACT_head_dim], 64);
    stw_rules_free(&rules);
}

/* One file serves several archs: rules for variants of others are passed over. */
static void rules_of_other_archs_are_skipped(void **state) {
    (void)state;
    const stw_attn_table *table = stw_attn_table_find("cpu");
    stw_rules rules;
    assert_int_equal(load_file("STW_RULE(\"\", sm80_64x64_hd128)\nSTW_RULE(\"seq_q<=9\", "
                               "cpu_portable_32x32)\nSTW_RULE(\"\", sm80_64x64_hd128)\n",
                               &rules),
                     STW_OK);
    assert_int_equal(rules.count, table->rule_count + 1);
    assert_string_equal(rules.rules[0].variant->id, "cpu_portable_32x32");
    assert_string_equal(rules.rules[1].variant->id, table->rules[0].variant);
    stw_rules_free(&rules);
}

/* 1024 rules and 256 KiB are the most; comments and empty lines are no rules. */
static void tuning_files_have_a_size(void **state) {
    (void)state;
    enum { BYTES = 256 * 1024, RULES = 1024 };
    static char content[BYTES + 1];
    const stw_attn_table *table = stw_attn_table_find("cpu");
    stw_rules rules;
    size_t length = 0;
    for (int i = 0; i < RULES; ++i)
        length += (size_t)snprintf(content + length, sizeof content - length,
                                   "STW_RULE(\"seq_q<=%d\", cpu_portable_32x32)\n", i);
    const size_t full = length;
    length +=
        (size_t)snprintf(content + length, sizeof content - length, "\n# the end\nSTW_RULE(\"\", sm80_64x64_hd128)\n");
    assert_int_equal(load_bytes(content, length, &rules), STW_OK);
    assert_int_equal(rules.count, table->rule_count + RULES);
    assert_int_equal(rules.rules[RULES - 1].high[STW_FACT_seq_q], RULES - 1);
    stw_rules_free(&rules);
    length = full;
    length += (size_t)snprintf(content + length, sizeof content - length, "STW_RULE(\"\", cpu_portable_32x32)\n");
    assert_int_equal(load_bytes(content, length, &rules), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "more than 1024 rules"));

    memset(content, '\n', sizeof content);
    assert_int_equal(load_bytes(content, BYTES, &rules), STW_OK);
    assert_int_equal(rules.count, table->rule_count);
    stw_rules_free(&rules);
    assert_int_equal(load_bytes(content, BYTES + 1, &rules), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "longer than 262144 bytes"));
    content[7] = 0;
    assert_int_equal(load_bytes(content, 100, &rules), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "not a text file"));
    assert_int_equal(stw_rules_load("sm99", NULL, &rules), STW_E_INTERNAL);
    assert_string_equal(stw_last_error(), "arch sm99 has no tuning table");
}

static void bad_tuning_files_name_the_line(void **state) {
    (void)state;
    static const char *const bad[] = {"\nrubbish\n",
                                      "\nSTW_RULE(\"\", no_such_variant)\n",
                                      "\nSTW_RULE(\"x=1\", cpu)\n",
                                      "\nSTW_RULE(\"\", \n",
                                      "\nSTW_RULE(\"\", cpu_portable_32x32\n",
                                      "\nSTW_RULE(\"seq_q<=9\", cpu_portable_32x32\n",
                                      "\nSTW_RULE(head_dim<=64, cpu_portable)\n",
                                      "\n/* a */ STW_RULE(\"\", cpu_portable_32x32)\n",
                                      "\n/* begins here\n and ends here */\n",
                                      "\nSTW_RULE(\"\", cpu_portable_32x32) /* a */ b\n",
                                      "\nSTW_RULE(\"head_dim>=65 head_dim<=64\", cpu_portable_32x32)\n",
                                      "\nSTW_RULE(\"dtype=f16 dtype=f32\", cpu_portable_32x32)\n"};
    stw_rules rules;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        assert_int_equal(load_file(bad[i], &rules), STW_E_INVALID);
        assert_non_null(strstr(stw_last_error(), "line 2"));
    }
    assert_int_equal(stw_rules_load("cpu", "/nonexistent/rules", &rules), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "/nonexistent/rules"));
}

/* Nothing but a regular file is opened: a FIFO would wait for its writer. */
static void tuning_files_that_are_none(void **state) {
    (void)state;
    char folder[] = "/tmp/stw_rules_XXXXXX", fifo[64], text[256];
    assert_non_null(mkdtemp(folder));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *const files[][2] = {{folder, "directory"}, {fifo, "FIFO"}, {"/dev/zero", "device"}};
    stw_rules rules;
    alarm(20);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) {
        assert_int_equal(stw_rules_load("cpu", files[i][0], &rules), STW_E_INVALID);
        snprintf(text, sizeof text, "STERNWAY_TUNING %s: it is a %s; accepted: a regular file", files[i][0],
                 files[i][1]);
        assert_string_equal(stw_last_error(), text);
    }
    alarm(0);
    unlink(fifo);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conditions_are_read),
        cmocka_unit_test(bad_conditions_name_the_word),
        cmocka_unit_test(every_problem_finds_a_rule),
        cmocka_unit_test(every_variant_has_a_rule_and_an_id_of_its_own),
        cmocka_unit_test(a_refused_variant_is_passed_over_with_its_reason),
        cmocka_unit_test(next_variants_are_those_that_would_run),
        cmocka_unit_test(forced_variants_must_fit),
        cmocka_unit_test(tuning_file_goes_first),
        cmocka_unit_test(rules_of_other_archs_are_skipped),
        cmocka_unit_test(tuning_files_have_a_size),
        cmocka_unit_test(bad_tuning_files_name_the_line),
        cmocka_unit_test(tuning_files_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
