/* SPDX-License-Identifier: MIT
 *
 * What a call of the CPU backend may be asked besides features: any number of threads (same bits),
 * concurrent callers of one context, a child of fork, any subset of outputs, f32 and accumulated outputs,
 * given and written delta. */
#include "tests/cpu/harness.h"
#include "tests/reference/setups.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Everything at once over several tiles: bias broadcast as asked, sink, dLSE, dropout, softcap, GQA. */
static fixture rich_fixture(unsigned bias_broadcast, stw_dtype dtype) {
    fixture f = fixture_start();
    f.desc.dtype = dtype;
    f.desc.max_seq_q = 171;
    f.desc.max_seq_kv = 203;
    f.desc.head_dim_qk = 37;
    f.desc.head_dim_v = 19;
    f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f.desc.flags = STW_ATTN_SINK | STW_ATTN_DLSE | STW_ATTN_ALIBI;
    f.desc.softcap = 2.5f;
    f.desc.dropout_p = 0.2;
    f.args.dropout_seed = 77;
    f.desc.bias_dtype = dtype == STW_F64 ? STW_F64 : STW_F32;
    f.bias_broadcast = bias_broadcast;
    f.desc.outputs = harness_all_outputs(&f);
    fixture_build(&f);
    return f;
}

static void expect_same(const unsigned char *a, const fixture *f, const char *what) {
    size_t bytes;
    unsigned char *b = harness_snapshot(f, &bytes);
    if (memcmp(a, b, bytes)) fail_msg("%s: other bits", what);
    free(b);
}

static void same_bits_for_any_threads(void **state) {
    (void)state;
    static const int threads[] = {2, 3, 7};
    for (int v = 0; v < harness_variant_count; ++v) {
        stw_context *one = harness_context(harness_variants[v], 1);
        if (!one) continue;
        for (unsigned n = 0; n < 4; ++n) {
            size_t bytes;
            static const stw_dtype dtypes[] = {STW_F32, STW_BF16, STW_F64, STW_F16};
            fixture f = rich_fixture(n * 5, dtypes[n]);
            harness_run(one, &f);
            unsigned char *expected = harness_snapshot(&f, &bytes);
            for (size_t t = 0; t < sizeof threads / sizeof *threads; ++t) {
                stw_context *many = harness_context(harness_variants[v], threads[t]);
                for (int repeat = 0; repeat < 3; ++repeat) {
                    harness_poison_outputs(&f);
                    harness_run(many, &f);
                    expect_same(expected, &f, harness_variants[v]);
                }
                stw_context_destroy(many);
            }
            free(expected);
            fixture_free(&f);
        }
        stw_context_destroy(one);
    }
}

typedef struct caller {
    stw_context *context;
    fixture f;
    unsigned char *expected;
    int wrong;
} caller;

static void *call_often(void *argument) {
    caller *c = argument;
    for (int n = 0; n < 8; ++n) {
        size_t bytes;
        harness_poison_outputs(&c->f);
        harness_run(c->context, &c->f);
        unsigned char *got = harness_snapshot(&c->f, &bytes);
        c->wrong += memcmp(got, c->expected, bytes) != 0;
        free(got);
    }
    return NULL;
}

static void concurrent_callers(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 3);
    caller callers[4];
    pthread_t threads[4];
    for (unsigned n = 0; n < 4; ++n) {
        size_t bytes;
        callers[n] = (caller){.context = context, .f = rich_fixture(n * 5, STW_F32)};
        harness_run(context, &callers[n].f);
        callers[n].expected = harness_snapshot(&callers[n].f, &bytes);
    }
    for (int n = 0; n < 4; ++n) assert_int_equal(pthread_create(&threads[n], NULL, call_often, &callers[n]), 0);
    for (int n = 0; n < 4; ++n) {
        pthread_join(threads[n], NULL);
        assert_int_equal(callers[n].wrong, 0);
        free(callers[n].expected);
        fixture_free(&callers[n].f);
    }
    stw_context_destroy(context);
}

/* The linker sends the library's calls here, and a sanitizer's before it watches anything. */
#if defined(__clang__)
#define UNWATCHED __attribute__((disable_sanitizer_instrumentation))
#else
#define UNWATCHED
#endif
static int joined;
int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);

UNWATCHED int __wrap_pthread_join(pthread_t thread, void **result) {
    ++joined;
    return __real_pthread_join(thread, result);
}

static int joined_by_destroy(stw_context *context) {
    int before = joined;
    stw_context_destroy(context);
    return joined - before;
}

/* In the child: the parent's context works, and a new one too. Destroying waits for threads that exist here:
 * POSIX defines nothing for the others (glibc happens to return). */
static int run_in_child(stw_context *context, fixture *f, const unsigned char *expected) {
    size_t bytes;
    alarm(60); /* a hang fails */
    harness_poison_outputs(f);
    harness_run(context, f);
    unsigned char *inherited = harness_snapshot(f, &bytes);
    int of_parent = joined_by_destroy(context);
    stw_context *own = harness_context(NULL, 2);
    harness_poison_outputs(f);
    harness_run(own, f);
    unsigned char *fresh = harness_snapshot(f, &bytes);
    int of_child = joined_by_destroy(own);
    return memcmp(inherited, expected, bytes) || memcmp(fresh, expected, bytes) || of_parent != 0 || of_child != 1;
}

/* The child has none of the pool's threads, and finds the pool as busy as it was when another thread of
 * the parent was in the middle of a call. */
static void child_of_fork(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 3);
    fixture f = rich_fixture(0, STW_F32);
    caller busy = {.context = context, .f = rich_fixture(0, STW_F32)};
    size_t bytes;
    harness_run(context, &f);
    busy.expected = harness_snapshot(&f, &bytes);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_often, &busy), 0);
    for (int n = 0; n < 4; ++n) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) _exit(run_in_child(context, &f, busy.expected));
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    pthread_join(thread, NULL);
    assert_int_equal(busy.wrong, 0);
    harness_poison_outputs(&f);
    harness_run(context, &f);
    expect_same(busy.expected, &f, "the parent after fork");
    free(busy.expected);
    fixture_free(&busy.f);
    fixture_free(&f);
    stw_context_destroy(context);
}

/* Rounding mode of the calling thread does not enter, and is left as it was. */
static void callers_rounding_mode(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 1);
    fixture f = rich_fixture(5, STW_F32);
    size_t bytes;
    harness_run(context, &f);
    unsigned char *expected = harness_snapshot(&f, &bytes);
    harness_poison_outputs(&f);
    stw_plan *plan;
    assert_int_equal(stw_attn_bwd_plan(context, &f.desc, &plan), STW_OK);
    size_t size = stw_plan_workspace_size(plan);
    void *workspace = aligned_alloc(256, (size + 511) / 256 * 256);
    fesetround(FE_UPWARD);
    stw_status status = stw_attn_bwd(plan, &f.args, workspace, size, NULL);
    int mode = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(status, STW_OK);
    assert_int_equal(mode, FE_UPWARD);
    free(workspace);
    stw_plan_destroy(plan);
    expect_same(expected, &f, "rounding upward outside");
    free(expected);
    fixture_free(&f);
    stw_context_destroy(context);
}

/* Each subset of the outputs has the bits it has when all are asked for; the others stay untouched. */
static void output_subsets(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 2);
    for (unsigned broadcast = 0; broadcast < 2; ++broadcast) {
        fixture f = rich_fixture(broadcast, STW_BF16);
        void *outputs[] = {f.args.dq, f.args.dk, f.args.dv, f.args.dbias, f.args.dsink};
        void *expected[5];
        harness_run(context, &f);
        for (int o = 0; o < 5; ++o) expected[o] = fixture_copy(&f, outputs[o]);
        harness_poison_outputs(&f);
        void *untouched[5];
        for (int o = 0; o < 5; ++o) untouched[o] = fixture_copy(&f, outputs[o]);
        for (unsigned subset = 1; subset < 32; ++subset) {
            f.desc.outputs = subset;
            harness_poison_outputs(&f);
            harness_run(context, &f);
            for (int o = 0; o < 5; ++o) {
                const void *wanted = subset >> o & 1 ? expected[o] : untouched[o];
                for (int n = 0; n < f.count; ++n)
                    if (f.buffers[n] == outputs[o] && memcmp(outputs[o], wanted, f.bytes[n]))
                        fail_msg("outputs %#x, broadcast %u: output %d", subset, broadcast, o);
            }
        }
        fixture_free(&f);
    }
    stw_context_destroy(context);
}

/* bf16 inputs with f32 gradients, then the same added onto ones. */
static void f32_and_accumulated_outputs(void **state) {
    (void)state;
    for (int v = 0; v < harness_variant_count; ++v) {
        stw_context *context = harness_context(harness_variants[v], 2);
        if (!context) continue;
        for (unsigned broadcast = 0; broadcast < 2; ++broadcast) {
            stw_accuracy_pool pool = {0};
            stw_expectation expectation;
            fixture f = fixture_start();
            f.desc.dtype = STW_BF16;
            f.desc.dq_dtype = f.desc.dk_dtype = f.desc.dv_dtype = STW_F32;
            f.desc.max_seq_q = 69;
            f.desc.max_seq_kv = 87;
            f.desc.flags = STW_ATTN_SINK;
            f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
            f.desc.bias_dtype = STW_F32;
            f.bias_broadcast = broadcast;
            setup_used_lengths(&f);
            f.desc.outputs = harness_all_outputs(&f);
            fixture_build(&f);
            harness_poison_unseen(&f);
            assert_int_equal(stw_expect_attn_bwd(&f.desc, &f.args, &expectation), STW_OK);
            harness_run(context, &f);
            harness_judge(&f, &expectation, &pool, harness_variants[v]);
            f.desc.accumulate = f.desc.outputs;
            void *outputs[] = {f.args.dq, f.args.dk, f.args.dv, f.args.dbias, f.args.dsink};
            float *first[5];
            for (int o = 0; o < 5; ++o) first[o] = fixture_copy(&f, outputs[o]);
            for (int o = 0; o < 5; ++o) {
                float *once = first[o], *twice = outputs[o];
                harness_poison_outputs(&f);
                for (int n = 0; n < f.count; ++n)
                    for (size_t i = 0; f.buffers[n] == outputs[o] && i < f.bytes[n] / 4; ++i) twice[i] = 1.0f;
                f.desc.outputs = f.desc.accumulate = 1u << o;
                harness_run(context, &f);
                for (int n = 0; n < f.count; ++n)
                    for (size_t i = 0; f.buffers[n] == outputs[o] && i < f.bytes[n] / 4; ++i) {
                        float expected = isnan(once[i]) ? 1.0f : 1.0f + once[i]; /* outside: not touched */
                        if (fabsf(twice[i] - expected) > 1.2e-7f * fmaxf(1, fabsf(expected)))
                            fail_msg("output %d [%zu]: %.9g, expected %.9g", o, i, twice[i], expected);
                    }
            }
            stw_expectation_free(&expectation);
            fixture_free(&f);
        }
        stw_context_destroy(context);
    }
}

/* delta written equals the reference's; given back as an input it makes the same bits without O. */
static void written_and_given_delta(void **state) {
    (void)state;
    stw_context *context = harness_context(NULL, 2);
    for (int packed = 0; packed < 2; ++packed) {
        fixture f = fixture_start();
        f.desc.flags = STW_ATTN_SINK | STW_ATTN_DLSE | STW_ATTN_WRITE_DELTA;
        f.desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
        if (packed) setup_packed(&f);
        else setup_used_lengths(&f);
        f.desc.outputs = harness_all_outputs(&f);
        fixture_build(&f);
        harness_poison_unseen(&f);
        harness_run(context, &f);
        stw_ref_result reference;
        stw_ref_mode exact = {0};
        assert_int_equal(stw_ref_attn_bwd(&f.desc, &f.args, &exact, &reference), STW_OK);
        for (int64_t b = 0; b < f.desc.batch; ++b)
            for (int64_t h = 0; h < f.desc.heads_q; ++h)
                for (int64_t i = 0; i < fixture_used_q(&f, b); ++i) {
                    double expected = reference.delta[h * reference.rows_q + fixture_result_row_q(&f, b, i)];
                    float got = f.args.delta[fixture_row_index(&f, &f.desc.delta, b, h, i)];
                    if (fabs((double)got - expected) > 1e-5) fail_msg("delta %.9g, expected %.9g", got, expected);
                }
        stw_ref_free(&reference);
        fixture g = f;
        g.desc.flags = (f.desc.flags & ~(STW_ATTN_DLSE | STW_ATTN_WRITE_DELTA)) | STW_ATTN_GIVEN_DELTA;
        f.desc.flags &= ~STW_ATTN_WRITE_DELTA; /* the snapshots hold gradients only */
        size_t bytes;
        unsigned char *expected = harness_snapshot(&f, &bytes);
        harness_poison_outputs(&g);
        g.args.out = NULL;
        harness_run(context, &g);
        expect_same(expected, &g, "given delta");
        free(expected);
        fixture_free(&f);
    }
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_threads),
        cmocka_unit_test(concurrent_callers),
        cmocka_unit_test(child_of_fork),
        cmocka_unit_test(callers_rounding_mode),
        cmocka_unit_test(output_subsets),
        cmocka_unit_test(f32_and_accumulated_outputs),
        cmocka_unit_test(written_and_given_delta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
