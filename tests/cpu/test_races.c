/* SPDX-License-Identifier: MIT
 *
 * The threads of one call, watched by the thread sanitizer, which the backend's attention is compiled with
 * here. x86 keeps stores in order, so that no result tells whether the turns that order dQ are handed over
 * with release and acquire; the sanitizer goes by the language's rules. It ends the process with 66 after a
 * race. */
#include "tests/cpu/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS = 3, RUNS = 5 };

/* One head: the threads share its query blocks, and every key block adds to each of them. bf16 sums dQ apart.
 */
static void turns_hand_over_dq(void **state) {
    (void)state;
    static const stw_dtype dtypes[] = {STW_F32, STW_BF16};
    stw_context *one = harness_context("cpu_portable_32x32", 1), *many = harness_context("cpu_portable_32x32", THREADS);
    for (int t = 0; t < 2; ++t) {
        fixture f = fixture_start();
        f.desc.dtype = dtypes[t];
        f.desc.batch = f.desc.heads_q = f.desc.heads_kv = 1;
        f.desc.max_seq_q = 65;
        f.desc.max_seq_kv = 700;
        f.desc.head_dim_qk = f.desc.head_dim_v = 32;
        f.desc.outputs = harness_all_outputs(&f);
        fixture_build(&f);
        size_t bytes;
        harness_run(one, &f);
        unsigned char *expected = harness_snapshot(&f, &bytes);
        for (int run = 0; run < RUNS; ++run) {
            harness_poison_outputs(&f);
            harness_run(many, &f);
            unsigned char *got = harness_snapshot(&f, &bytes);
            assert_memory_equal(got, expected, bytes);
            free(got);
        }
        free(expected);
        fixture_free(&f);
    }
    stw_context_destroy(many);
    stw_context_destroy(one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_hand_over_dq),
    };
    return cmocka_run_group_tests_name("cpu_races", tests, NULL, NULL);
}
