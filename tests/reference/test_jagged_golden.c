/* SPDX-License-Identifier: MIT
 *
 * The float64 reference against every golden vector of the nested operations (PyTorch's, in float64), in each
 * variant of storage: to 1e-12 of the formula on absolute values, exactly where nothing is rounded. */
#include "tools/reference/jagged.h"
#include "tests/jagged/problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const variant variants[] = {
    {.name = "plain"},
    {.name = "gaps, int32", .gaps = 1, .narrow = 1},
    {.name = "jagged order", .jagged = 1},
    {.name = "jagged order, gaps", .jagged = 1, .gaps = 1},
    {.name = "all transposed, gaps", .transposed = 7, .gaps = 1},
    {.name = "all by bases, jagged order", .bases = 7, .jagged = 1},
};

static const char *const outputs[STW_JREF_OUTPUTS] = {"dx", "dother", "dweight", "dbias"};

static int64_t compare(const problem *p, const result *r, const stw_jref_result *got, int which) {
    char key[32];
    snprintf(key, sizeof key, "%s_ref", r->name);
    const stw_st_tensor *reference = golden_tensor(p->c, key, 1);
    snprintf(key, sizeof key, "%s_size", r->name);
    const stw_st_tensor *size = golden_tensor(p->c, key, 0);
    assert_int_equal(got->elements[which], r->elements);
    for (int64_t n = 0; n < (int64_t)reference->elements; ++n) {
        const double x = got->values[which][r->index[n]], expected = golden_real(reference, n);
        const double stored = reference->type == STW_ST_F32 ? 0x1p-24 * fabs(expected) + 0x1p-149 : 0;
        const double limit = (size ? 1e-12 * (golden_real(size, n) + 0x1p-126) : 0) + stored;
        if (!(fabs(x - expected) <= limit))
            fail_msg("%s, %s: %s[%lld] is %.17g, golden %.17g", p->c->name, p->v->name, r->name, (long long)n, x,
                     expected);
    }
    for (int64_t e = 0; r->cleared && e < r->elements; ++e)
        if (r->cleared[e]) assert_true(got->values[which][e] == 0);
    return (int64_t)reference->elements;
}

static void test_file(void **state) {
    static golden file;
    int64_t compared = 0;
    golden_open(&file, *state);
    for (int n = 0; n < file.count; ++n) {
        const golden_case c = golden_at(&file, n);
        if (c.dtype > STW_F64) continue; /* int64 beyond 2^53 is no double */
        for (size_t v = 0; v < sizeof variants / sizeof *variants; ++v) {
            problem p;
            stw_jref_result r;
            if (problem_build(&p, &c, &variants[v])) {
                assert_int_equal(stw_jref_evaluate(&p.desc, &p.args, 0, &r), STW_OK);
                for (int i = 0; i < p.result_count; ++i) {
                    const char *name = p.results[i].name;
                    int which = !strcmp(name, "db") ? 1 : 0; /* matmul's da and db */
                    for (int o = 0; o < STW_JREF_OUTPUTS; ++o)
                        if (!strcmp(name, outputs[o])) which = o;
                    compared += compare(&p, &p.results[i], &r, which);
                }
                stw_jref_free(&r);
            }
            problem_free(&p);
        }
    }
    golden_close(&file);
    print_message("%s: %lld elements compared\n", (const char *)*state, (long long)compared);
    assert_true(compared > 10000);
}

int main(void) {
    static char names[][16] = {"pointwise", "reductions", "products", "shapes"};
    struct CMUnitTest tests[4];
    for (int n = 0; n < 4; ++n)
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = test_file, .initial_state = names[n]};
    return cmocka_run_group_tests_name("golden vectors of nested operations", tests, NULL, NULL);
}
