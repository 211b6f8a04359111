/* SPDX-License-Identifier: MIT
 *
 * Every golden vector of the nested operations through the public interface on the CPU backend, in every
 * variant of storage that the header allows. The program's argument names the file. */
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const variant variants[] = {
    {.name = "plain"},
    {.name = "int32 offsets, off alignment", .narrow = 1, .skew = 1},
    {.name = "gaps", .gaps = 1},
    {.name = "gaps in front and behind", .spaced = 1},
    {.name = "gaps in front and behind, jagged order", .spaced = 1, .jagged = 1},
    {.name = "gaps, int32, host mirrors, off alignment", .gaps = 1, .narrow = 1, .mirrors = 1, .skew = 3},
    {.name = "jagged order", .jagged = 1},
    {.name = "jagged order, gaps, int32", .jagged = 1, .gaps = 1, .narrow = 1},
    {.name = "f32 gradients", .f32 = 1, .skew = 1},
    {.name = "f32 gradients, jagged order, gaps", .f32 = 1, .jagged = 1, .gaps = 1},
    {.name = "accumulated", .f32 = 1, .accumulate = 1},
    {.name = "accumulated, gaps", .f32 = 1, .accumulate = 1, .gaps = 1, .skew = 1},
    {.name = "host mirrors", .mirrors = 1},
    {.name = "full", .full = 1},
    {.name = "x transposed", .transposed = 1},
    {.name = "other transposed, gaps", .transposed = 2, .gaps = 1},
    {.name = "grad transposed, jagged order", .transposed = 4, .jagged = 1},
    {.name = "all transposed, jagged order, gaps", .transposed = 7, .jagged = 1, .gaps = 1},
    {.name = "all by bases", .bases = 7},
    {.name = "x and grad by bases, transposed, gaps", .bases = 5, .transposed = 3, .gaps = 1, .narrow = 1},
};

static const char *file_name;

static void test_file(void **state) {
    static golden file;
    (void)state;
    stw_context *one = problem_context(1), *three = problem_context(3);
    golden_open(&file, file_name);
    int64_t compared = 0;
    for (int n = 0; n < file.count; ++n) {
        golden_case c = golden_at(&file, n);
        int ran = 0;
        for (size_t v = 0; v < sizeof variants / sizeof *variants; ++v) {
            problem p;
            if (problem_build(&p, &c, &variants[v])) {
                problem_run(&p, v % 2 ? three : one);
                compared += problem_judge(&p);
                ran += 1;
            }
            problem_free(&p);
        }
        if (ran < 5) fail_msg("%s: only %d variants apply", c.name, ran);
    }
    print_message("%s: %d problems, %lld elements compared\n", file_name, file.count, (long long)compared);
    assert_true(compared > 1000);
    golden_close(&file);
    stw_context_destroy(one);
    stw_context_destroy(three);
}

/* The same bits for any number of threads, and run after run. */
static void test_same_bits(void **state) {
    static golden file;
    static const variant plain = {.name = "plain"}, gaps = {.name = "gaps", .gaps = 1, .skew = 1};
    (void)state;
    stw_context *contexts[3] = {problem_context(1), problem_context(2), problem_context(5)};
    golden_open(&file, file_name);
    for (int n = 0; n < 2 * file.count; ++n) {
        golden_case c = golden_at(&file, n / 2);
        problem first, again;
        if (!problem_build(&first, &c, n % 2 ? &gaps : &plain)) fail_msg("%s", c.name);
        problem_run(&first, contexts[0]);
        for (int other = 0; other < 3; ++other) {
            assert_true(problem_build(&again, &c, n % 2 ? &gaps : &plain));
            problem_run(&again, contexts[other]);
            for (int i = 0; i < first.memory.count; ++i)
                if (first.memory.list[i].kind == ARENA_OUTPUT)
                    assert_memory_equal(first.memory.list[i].data, again.memory.list[i].data,
                                        first.memory.list[i].bytes);
            problem_free(&again);
        }
        problem_free(&first);
    }
    golden_close(&file);
    for (int n = 0; n < 3; ++n) stw_context_destroy(contexts[n]);
}

/* Whether this processor has the instructions that STERNWAY_VARIANT asks for; if not, it is said. */
static int runs_here(void) {
    stw_context *context = problem_context(1);
    stw_jagged_desc desc = STW_INIT(stw_jagged_desc);
    stw_plan *plan = NULL;
    desc.op = STW_JAGGED_GELU, desc.dtype = STW_F32, desc.components = 1, desc.inner = 1;
    desc.index_dtype = STW_I64, desc.axis[0] = (stw_jagged_axis){1, 1};
    stw_status status = stw_jagged_bwd_plan(context, &desc, &plan);
    if (status == STW_E_UNSUPPORTED) printf("skip %s: %s\n", file_name, stw_last_error());
    else if (status != STW_OK) fprintf(stderr, "%s: %s\n", file_name, stw_last_error());
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    return status != STW_E_UNSUPPORTED;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file), cmocka_unit_test(test_same_bits)};
    if (argc != 2) return 2;
    file_name = argv[1];
    if (!runs_here()) return 77;
    return cmocka_run_group_tests_name(argv[1], tests, NULL, NULL);
}
