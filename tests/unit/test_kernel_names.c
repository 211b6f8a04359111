/* SPDX-License-Identifier: MIT
 *
 * generated/kernels.txt, where people look for a kernel that a plan names: it has every kernel of every step that
 * the launch plans make for all variants over problems of every feature, each under the image that is asked for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/gpu/attn_tiled.h"
#include "backends/gpu/jagged_launch.h"
#include "tools/problem/problem.h"
#include "tools/problem/jagged.h"
#include "dispatch/attn_problem.h"
#include "dispatch/jagged_problem.h"
#include "dispatch/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const archs[] = {"sm80", "sm90", "gfx90a", "gfx942", "gfx950"};
static char text[1 << 18];
static int asked;

static int read_names(void **state) {
    (void)state;
    FILE *file = fopen(STW_KERNELS, "r");
    if (!file) return 1;
    size_t size = fread(text, 1, sizeof text - 1, file);
    return fclose(file) || !size || size == sizeof text - 1;
}

/* A line "name source arch". */
static void demand(const char *name, const char *arch) {
    size_t length = strlen(name);
    ++asked;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        if (strncmp(line, name, length) || line[length] != ' ') continue;
        const char *end = strchr(line, '\n'), *word = end - strlen(arch);
        if (word[-1] == ' ' && !strncmp(word, arch, strlen(arch))) return;
    }
    fail_msg("%s has no line of %s for %s", STW_KERNELS, name, arch);
}

static void attention(const char *line, stw_plan_kind kind) {
    stw_problem problem;
    stw_attn_params p;
    if (stw_problem_parse(line, &problem) || stw_attn_check(&problem.desc, kind))
        fail_msg("%s: %s", line, stw_last_error());
    stw_attn_params_fill(&problem.desc, kind, problem.desc.deterministic == STW_DETERMINISTIC_ON, &p);
    p.units = 132; /* few work tiles are split */
    stw_attn_call call = kind == STW_PLAN_ATTN_FWD ? STW_CALL_FWD : STW_CALL_BWD;
    for (size_t a = 0; a < sizeof archs / sizeof archs[0]; ++a) {
        const stw_attn_table *table = stw_attn_table_find(archs[a]);
        const char *shared = archs[a][0] == 's' ? "sm80" : archs[a];
        for (size_t i = 0; i < table->variant_count; ++i) {
            const stw_variant *v = &table->variants[i];
            stw_attn_steps steps;
            if (v->head_dim < p.head_dim_qk || v->head_dim < p.head_dim_v || stw_attn_tile_refusal(call, v, &p))
                continue;
            stw_attn_steps_of(call, v, &p, archs[a][0] == 's' ? 32 : 64, &steps);
            for (uint32_t n = 0; n < steps.count; ++n)
                demand(steps.step[n].entry, steps.step[n].image == STW_KERNEL_OWN ? archs[a] : shared);
        }
    }
}

static void kernels_of_attention(void **state) {
    (void)state;
    static const char *const types[] = {"f16", "bf16", "f32"};
    static const char *const options[] = {"",
                                          ":causal_br",
                                          ":det",
                                          ":dropout0.2",
                                          ":bias_1hqk",
                                          ":bias_1hqk:grads_qkvb",
                                          ":bias_bhqk:grads_qkvb",
                                          ":alibi",
                                          ":softcap20",
                                          ":grads_qkvs:sink",
                                          ":delta_in",
                                          ":thd",
                                          ":dq_f32",
                                          ":dk_f32",
                                          ":dv_f32:det",
                                          ":grads_kv"};
    for (size_t t = 0; t < 3; ++t)
        for (size_t o = 0; o < sizeof options / sizeof options[0]; ++o)
            for (int d = 32; d <= 256; d += 32) {
                char line[128];
                snprintf(line, sizeof line, "attn_bwd:%s:b2h2s100d%d%s", types[t], d, options[o]);
                attention(line, STW_PLAN_ATTN_BWD);
                if (!o) snprintf(line, sizeof line, "attn_fwd:%s:b2h2s100d%d", types[t], d);
                if (!o) attention(line, STW_PLAN_ATTN_FWD);
            }
    attention("attn_bwd:f16:b2h2s100d192x128", STW_PLAN_ATTN_BWD);
    attention("attn_bwd:bf16:b2h2s100d192x128:det", STW_PLAN_ATTN_BWD);
    for (size_t a = 0; a < sizeof archs / sizeof archs[0]; ++a) {
        if (!strcmp(archs[a], "sm90")) continue;
        demand("stw_attn_dropout_mask", archs[a]);
        demand("stw_attn_stage_2", archs[a]);
        demand("stw_attn_stage_4", archs[a]);
    }
    assert_true(asked > 1000);
}

static void kernels_of_jagged_operations(void **state) {
    (void)state;
    static const char *const lines[] = {"jagged_linear:f16:c8l1000t8000i64f64", "jagged_linear:f32:c8l1000t8000i64f64"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; ++i)
        for (size_t a = 0; a < sizeof archs / sizeof archs[0]; ++a) {
            stw_jagged_problem problem;
            stw_jagged_params p;
            stw_jagged_steps steps;
            const char *shared = archs[a][0] == 's' ? "sm80" : archs[a];
            if (stw_problem_jagged_parse(lines[i], &problem) || stw_jagged_check(&problem.desc))
                fail_msg("%s: %s", lines[i], stw_last_error());
            stw_jagged_params_fill(&problem.desc, &p);
            stw_jagged_steps_of(&p, stw_jagged_table_of(stw_arch_find(STW_BACKEND_AUTO, archs[a])), 100, &steps);
            assert_true(steps.count > 1);
            for (uint32_t n = 0; n < steps.count; ++n) demand(steps.step[n].entry, shared);
        }
    static const char *const own[] = {"wgmma_01_f16", "wgmma_11_f16", "wgmma_01_bf16", "wgmma_11_bf16"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; ++i) { /* named by backends/gpu/jagged.c */
        char name[64];
        snprintf(name, sizeof name, "stw_jagged_%s", own[i]);
        demand(name, "sm90");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_of_attention),
        cmocka_unit_test(kernels_of_jagged_operations),
    };
    return cmocka_run_group_tests(tests, read_names, NULL);
}
