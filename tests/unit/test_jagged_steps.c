/* SPDX-License-Identifier: MIT
 *
 * Which kernels a call of the nested operations is on a GPU (common/jagged_launch.c): for every table the
 * expected ones are there, and grids, blocks of threads and shared memory are such as the GPU takes. */
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
            if (!rows[i].main) assert_true(steps.count <= 1);
            if (found != (rows[i].main != NULL))
                fail_msg("%s on %s: %u steps, no %s; the last is %s", rows[i].line, archs[a].arch,
                         steps.count, rows[i].main, steps.count ? steps.step[steps.count - 1].entry : "");
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_fit_a_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
