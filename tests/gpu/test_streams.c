/* SPDX-License-Identifier: MIT
 *
 * Several streams, threads and contexts at once, the caller's current context, and problems whose size alone
 * is the point: more than 65535 batches and heads. Everything is judged by the float64 reference. */
#include "gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One plan, two streams, two workspaces: calls overlap. */
static void two_streams_one_plan(void **state) {
    (void)state;
    static const char *const modes[] = {"", ":det"};
    for (int m = 0; m < 2; ++m) {
        char line[256];
        gpu_case a, b;
        snprintf(line, sizeof line, "attn_bwd:bf16:b2h8k2s300x513d128:causal_br%s", modes[m]);
        gpu_case_open(&a, gpu_context, line);
        gpu_case_open(&b, gpu_context, line);
        stw_plan *own = b.plan;
        b.plan = a.plan;
        for (int n = 0; n < 20 && n < gpu_runs; ++n) {
            gpu_case_load(&a, &a.c, 0xFF);
            gpu_case_load(&b, &b.c, 0x7F);
            for (int k = 0; k < 3; ++k) {
                GPU_OK(gpu_case_run(&a, a.device.stream));
                GPU_OK(gpu_case_run(&b, b.device.stream));
            }
            gpu_case_store(&a, a.device.stream);
            gpu_case_store(&b, b.device.stream);
            gpu_case_judge(&a, &a.c, "first stream");
            gpu_case_judge(&b, &b.c, "second stream");
        }
        b.plan = own;
        gpu_case_close(&a);
        gpu_case_close(&b);
    }
}

/* ---- threads
 * ------------------------------------------------------------------------------------------------ */

enum { THREADS = 8, ROUNDS = 40 };

typedef struct caller {
    pthread_t thread;
    gpu_case g;
    stw_context *context; /* its own, or the shared one */
    const char *failed;
    char text[512];
} caller;

/* No cmocka call here: it would jump out of another thread's stack. */
static void *call_often(void *argument) {
    caller *c = argument;
    gpu_case *g = &c->g;
    for (int n = 0; n < ROUNDS && n < gpu_runs && !c->failed; ++n) {
        int guards = 0;
        stw_verify_result result;
        stw_verify_result_clear(&result);
        stw_status status = stw_verify_device_load(&g->device, g->c.host, n);
        if (!status) status = gpu_case_run(g, g->device.stream);
        if (!status) status = stw_verify_device_store(&g->device, g->after, n, &guards);
        if (status) {
            snprintf(c->text, sizeof c->text, "%s", stw_last_error());
            c->failed = stw_status_name(status);
            break;
        }
        stw_verify_check_outputs(&g->c, g->after, &result);
        if (result.outcome == STW_VERIFY_OK && guards) continue;
        snprintf(c->text, sizeof c->text, "%s", result.text);
        c->failed = guards ? "wrong" : "guards of the workspace";
    }
    return NULL;
}

static void threads_and_contexts(void **state) {
    (void)state;
    static const char *const lines[THREADS] = {"attn_bwd:bf16:b2h4k2s129x193d64:causal_br",
                                               "attn_bwd:f16:b1h2s200x257d128:dropout0.2",
                                               "attn_bwd:bf16:b1h4s129d192:det",
                                               "attn_bwd:bf16:b2h3s65x97d32:bias_bhqk:grads_qkvb",
                                               "attn_bwd:bf16:b3h2s100d96:thd:used",
                                               "attn_bwd:f16:b2h2s150x90d256:causal_tl:det",
                                               "attn_bwd:bf16:b2h4k2s129x193d64:causal_br",
                                               "attn_bwd:f16:b2h4k1s64x513d64:dlse:sink:grads_qkvs"};
    caller *callers = calloc(THREADS, sizeof *callers);
    assert_non_null(callers);
    for (int n = 0; n < THREADS; ++n) {
        callers[n].context = n % 2 ? gpu_context_on(0) : NULL;
        gpu_case_open(&callers[n].g, callers[n].context ? callers[n].context : gpu_context, lines[n]);
    }
    for (int n = 0; n < THREADS; ++n)
        assert_int_equal(pthread_create(&callers[n].thread, NULL, call_often, &callers[n]), 0);
    for (int n = 0; n < THREADS; ++n) pthread_join(callers[n].thread, NULL);
    for (int n = 0; n < THREADS; ++n)
        if (callers[n].failed) fail_msg("thread %d, %s: %s: %s", n, lines[n], callers[n].failed, callers[n].text);
    for (int n = 0; n < THREADS; ++n) {
        gpu_case_close(&callers[n].g);
        stw_context_destroy(callers[n].context);
    }
    free(callers);
}

/* A context may be destroyed while another one of the same device works on. */
static void a_context_ends(void **state) {
    (void)state;
    gpu_case g, h;
    stw_context *context = gpu_context_on(0);
    gpu_case_open(&g, gpu_context, "attn_bwd:bf16:b2h8k2s300x513d128:causal_br");
    gpu_case_open(&h, context, "attn_bwd:bf16:b2h8k2s300x513d128:causal_br");
    gpu_case_load(&g, &g.c, 0xFF);
    gpu_case_round(&h, "before the end");
    for (int n = 0; n < 20 && n < gpu_runs; ++n) GPU_OK(gpu_case_run(&g, g.device.stream));
    gpu_case_close(&h);
    stw_context_destroy(context);
    for (int n = 0; n < 20 && n < gpu_runs; ++n) GPU_OK(gpu_case_run(&g, g.device.stream));
    gpu_case_store(&g, g.device.stream);
    gpu_case_judge(&g, &g.c, "behind the end of another context");
    gpu_case_close(&g);
}

/* No call leaves another current context than it found, none included. */
static void current_context(void **state) {
    (void)state;
    void *found = NULL, *after = NULL, *popped = NULL;
    GPU_TRY(cuCtxGetCurrent, &found);
    assert_non_null(found);
    for (int none = 0; none < 2; ++none) {
        gpu_case g;
        if (none) GPU_TRY(cuCtxPopCurrent_v2, &popped);
        stw_context *context = gpu_context_on(0);
        gpu_case_open(&g, context, "attn_bwd:bf16:b1h2s65x97d64:causal_br");
        gpu_case_round(&g, none ? "no context current" : "the primary context current");
        gpu_case_close(&g);
        stw_context_destroy(context);
        GPU_TRY(cuCtxGetCurrent, &after);
        assert_ptr_equal(after, none ? NULL : found);
    }
    GPU_TRY(cuCtxPushCurrent_v2, popped);
}

static void many_batches_and_heads(void **state) {
    (void)state;
    static const char *const lines[] = {
        "attn_bwd:bf16:b66000h1s2x3d8:causal_br",          "attn_bwd:bf16:b1h66000s3x2d8",
        "attn_bwd:f16:b300h300k100s2x3d16:dropout0.2",     "attn_bwd:bf16:b257h257s3x2d8:det:sink:grads_qkvs",
        "attn_bwd:bf16:b66000h1s2x3d8:thd:seqs_full:det",  "attn_bwd:f32:b66000h1s2x3d4:bias_11qk:grads_qkvb",
        "attn_bwd:bf16:b1h70000k2s3x2d8:causal_tl:dq_f32",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
        gpu_case g;
        gpu_case_open(&g, gpu_context, lines[i]);
        gpu_case_round(&g, "many");
        gpu_case_close(&g);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

/* How long the caller's thread is in a run call, driver included; few enough that its queue does not fill. No
 * bound: the driver's share is not ours (tests/loader has one for the rest). */
static void time_of_a_call(void **state) {
    (void)state;
    gpu_case g;
    double best = 1e12;
    gpu_case_open(&g, gpu_context, "attn_bwd:bf16:b1h2s65x97d64:causal_br");
    gpu_case_load(&g, &g.c, 0xFF);
    for (int n = 0; n < 20 && n < gpu_runs; ++n) {
        double before = now();
        for (int k = 0; k < 100; ++k) GPU_OK(gpu_case_run(&g, g.device.stream));
        double took = (now() - before) / 100;
        GPU_OK(stw_stream_synchronize(gpu_context, g.device.stream));
        best = took < best ? took : best;
    }
    printf("a run call of 3 launches holds its thread for %.1f us\n", best);
    assert_true(best > 0);
    gpu_case_close(&g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(current_context),      cmocka_unit_test(time_of_a_call),
        cmocka_unit_test(two_streams_one_plan), cmocka_unit_test(threads_and_contexts),
        cmocka_unit_test(a_context_ends),       cmocka_unit_test(many_batches_and_heads),
    };
    return gpu_main(argc, argv, "gpu_streams", tests, sizeof tests / sizeof *tests, 120);
}
