/* SPDX-License-Identifier: MIT
 *
 * The CUDA backend's plans, launches, memory and streams over a fake libcuda.so.1, in a build that has
 * images: what is called, every call failing once and always, drivers of several versions, device loss,
 * forks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "run_calls.h"

#define H200 "NVIDIA H200|9.0|132|232448|150754820096"
#define A100 "NVIDIA A100-SXM4-40GB|8.0|108|166912|42949672960"

static const char *const symbols[] = {
#define STW_CUDA(name, need, parameters) #name,
#include "backends/cuda/driver.def"
#undef STW_CUDA
};
enum { SYMBOLS = sizeof symbols / sizeof symbols[0], ROUNDS = 3 };

static void whole_life(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" A100), LIST("work"));
    assert_int_equal(failures(NULL), 0);
    assert_int_equal(spawn_count(run.out, "current as before"), 1);
    assert_int_equal(lines_with(run.out, "other bytes"), 0);
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleLoadDataEx"), 1);
    assert_int_equal(lines_with(run.log, "left"), 0);
    static const char *const launches[] = {"stw_attn_fwd_sm80_fwd_64x64_hd128_bf16", "stw_attn_bwd_preprocess_bf16",
                                           "stw_attn_bwd_sm80_64x128_hd128_bf16_full", "stw_attn_bwd_postprocess",
                                           "stw_attn_dropout_mask"};
    static const int times[] = {1, 2, 2, 2, 1};
    for (int i = 0; i < 5; ++i) {
        char line[128];
        snprintf(line, sizeof line, "cuda:launch %s", launches[i]);
        assert_int_equal(spawn_count(run.log, line), times[i]);
    }
    assert_int_equal(lines_with(run.log, "launch"), 8);
}

/* Between the context being pushed and popped a run call asks, makes tensor maps, launches, and does nothing
 * else. */
static void run_call_does(const char *mode, int maps) {
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST(mode, "child"));
    char *first = strstr(run.log, "cuda:cuStreamGetCtx\n");
    assert_non_null(first);
    char *end = strstr(first, "cuda:cuCtxPopCurrent_v2\n");
    assert_non_null(end);
    *end = 0;
    assert_int_equal(lines_with(first, "cuda:cuStreamGetCtx"), 1);
    assert_int_equal(lines_with(first, "cuda:cuPointerGetAttributes"), 10); /* nine tensors, workspace */
    assert_int_equal(lines_with(first, "cuda:cuLaunchKernel"), 3);
    assert_int_equal(lines_with(first, "cuda:launch"), 3);
    assert_int_equal(lines_with(first, "cuda:cuTensorMapEncodeTiled"), maps);
    assert_int_equal(lines_with(first, "cuda:map "), maps);
    assert_int_equal(lines_with(first, "cuda:"), 1 + 10 + 3 + 3 + 2 * maps);
}

static void run_call_is_only_launches(void **state) {
    (void)state;
    run_call_does("dropout", 0);
    run_call_does("plain", 4);
}

/* The postprocess kernel awaits what is before it by itself, and is launched so where the driver can put such launches
 * into graphs; a loop of the shared kernels awaits nothing. (Hopper's main loop, behind more CTAs than run at once:
 * unit_steps.) */
static void kernels_begin_early(void **state) {
    (void)state;
    static const struct {
        const char *device, *version, *mode;
        size_t early, all;
    } rows[] = {{H200, "FAKE_CUDA_VERSION=13000", "plain", 1, 3},
                {H200, "FAKE_CUDA_VERSION=12030", "plain", 1, 3},
                {H200, "FAKE_CUDA_VERSION=12020", "plain", 0, 3},
                {H200, "FAKE_CUDA_VERSION=13000", "dropout", 1, 3},
                {A100, "FAKE_CUDA_VERSION=13000", "dropout", 0, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char devices[128];
        snprintf(devices, sizeof devices, "FAKE_CUDA_DEVICES=%s", rows[i].device);
        tool("cuda", LIST(devices, rows[i].version), LIST(rows[i].mode, "child"));
        char *first = strstr(run.log, "cuda:cuStreamGetCtx\n");
        assert_non_null(first);
        char *end = strstr(first, "cuda:cuCtxPopCurrent_v2\n");
        assert_non_null(end);
        *end = 0;
        assert_int_equal(lines_with(first, "cuda:cuLaunchKernelEx"), rows[i].early);
        assert_int_equal(lines_with(first, "cuda:launch"), rows[i].all);
    }
}

/* What stays behind is the fault of these alone: they were told to fail at giving it back. */
static int gives_back(const char *function) {
    static const char *const names[] = {"cuCtxPushCurrent_v2", "cuModuleUnload", "cuDevicePrimaryCtxRelease_v2",
                                        "cuMemFree_v2", "cuStreamDestroy_v2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (!strcmp(names[i], function)) return 1;
    return 0;
}

/* `mode`: a command before the work, "plain" or "dropout". */
static void fail_call(const char *mode, const char *function, int code, int nth) {
    char plan[96];
    if (nth) snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d:%d", function, code, nth);
    else snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d", function, code);
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, plan), LIST(mode, "work 3"));
    int failed = failures(code == 2 && !strcmp(function, "cuMemAlloc_v2") ? "no memory for" : function);
    assert_int_equal(lines_with(run.out, "current changed"), 0);
    assert_int_equal(lines_with(run.out, "other bytes"), 0);
    /* a lost device takes its memory and streams with it, and no more */
    int gone = code == 700 ? lines_with(run.log, "left blocks") + lines_with(run.log, "left streams") : 0;
    if (!gives_back(function)) assert_int_equal(lines_with(run.log, "left"), gone);
    int silent = !strcmp(function, "cuModuleUnload") || !strcmp(function, "cuDevicePrimaryCtxRelease_v2") ||
                 !strncmp(function, "cuGetError", 10) || !strcmp(function, "cuGetProcAddress_v2");
    if (nth && code != 700) assert_true(failed <= 1);
    if (!nth && silent) assert_int_equal(failed, 0);
    if (!nth && !silent) assert_true(failed >= 1);
    if (nth && code != 700) { /* the rounds behind the failing one are whole */
        int rounds = 0;
        for (int i = 0; *spawn_line(run.out, i); ++i)
            rounds += !strncmp(spawn_line(run.out, i), "synchronize STW_OK", 18);
        assert_true(rounds >= ROUNDS - 1);
    }
}

/* Each function always and each of its calls once, of a round's; how many functions a round without failures
 * calls. */
static int fail_calls(const char *mode) {
    static char clean[sizeof run.log];
    int covered = 0;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST(mode, "work"));
    memcpy(clean, run.log, sizeof clean);
    for (int i = 0; i < SYMBOLS; ++i) {
        char line[96];
        snprintf(line, sizeof line, "cuda:%s", symbols[i]);
        int calls = spawn_count(clean, line), most = strstr(symbols[i], "cuPointer") ? 3 : 40;
        covered += calls > 0;
        if (!calls && strncmp(symbols[i], "cuGet", 5)) continue;
        fail_call(mode, symbols[i], 999, 0);
        fail_call(mode, symbols[i], 700, 0);
        for (int nth = 1; nth <= calls && nth <= most; ++nth) fail_call(mode, symbols[i], 999, nth);
        if (calls) fail_call(mode, symbols[i], 700, calls);
    }
    fail_call(mode, "cuMemAlloc_v2", 2, 0);
    return covered;
}

/* Calls over ranks alone have events and a stream of a priority: tests/cp/test_gpu_calls.c. */
enum { OVER_RANKS = 5 };

/* Error texts and cuGetProcAddress are not in a clean log; only Hopper's own main loop has tensor maps. */
static void each_call_failing(void **state) {
    (void)state;
    assert_int_equal(fail_calls("dropout"), SYMBOLS - OVER_RANKS - 3 - 1);
}

static void each_call_failing_on_sm90(void **state) {
    (void)state;
    assert_int_equal(fail_calls("plain"), SYMBOLS - OVER_RANKS - 3);
}

static void driver_refuses_image(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_CUDA_VERSION=12000", "FAKE_FAIL=cuModuleLoadDataEx:222"),
         LIST("work"));
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_NO_IMAGE cuda: cuModuleLoadDataEx failed: error (222); image sm80 ptx, driver "
                        "of CUDA 12.0, a newer driver is needed: ptxas says no");
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" A100, "FAKE_FAIL=cuModuleLoadDataEx:209"), LIST("work"));
    assert_string_equal(
        spawn_line(run.out, 1),
        "bwd_plan STW_E_NO_IMAGE cuda: cuModuleLoadDataEx failed: error (209); image sm80 cubin, driver "
        "of CUDA 13.0, a newer driver is needed");
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" A100, "FAKE_FAIL=cuModuleGetFunction:500"), LIST("work"));
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_INTERNAL cuda: cuModuleGetFunction failed: error (500); kernel "
                        "stw_attn_bwd_preprocess_bf16");
}

static void driver_versions(void **state) {
    (void)state;
    static const char *const folders[] = {"cuda-12.0", "cuda-12.9", "cuda-13.0"};
    static const char *const versions[] = {"FAKE_CUDA_VERSION=12000", "FAKE_CUDA_VERSION=12090",
                                           "FAKE_CUDA_VERSION=13000"};
    for (int i = 0; i < 3; ++i)
        for (int without = 0; without < 2; ++without) {
            char loads[64];
            tool(folders[i],
                 LIST("FAKE_CUDA_DEVICES=" H200, versions[i], without ? "FAKE_NO_PROC_ADDRESS=1" : "UNUSED=1"),
                 LIST("work 2"));
            assert_int_equal(failures(NULL), 0);
            assert_int_equal(lines_with(run.log, "left"), 0);
            snprintf(loads, sizeof loads, "%s:cuFuncLoad", folders[i]);
            assert_int_equal(spawn_count(run.log, loads) > 0, i > 0);
        }
}

static void foreign_pointers(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" A100 ";" H200), LIST("foreign"));
    static const char *const expected[][2] = {
        {"dq STW_E_INVALID attn_bwd: dq 0x", " is memory of device 1, accepted: memory of device 0"},
        {"k STW_E_INVALID attn_bwd: k 0x", " is no memory that CUDA knows, accepted: memory of device 0"},
        {"seed STW_E_INVALID attn_bwd: dropout_seed_ptr 0x", " is memory of device 1, accepted: memory of device 0"},
        {"workspace STW_E_INVALID attn_bwd: workspace 0x", " is memory of device 1, accepted: memory of device 0"},
        {"stream STW_E_INVALID attn_bwd: stream 0x",
         " belongs to another device or context, accepted: a stream of the primary context of device 0"},
        {"mask STW_E_INVALID dropout_mask: mask 0x", " is memory of device 1, accepted: memory of device 0"},
        {"fwd STW_E_INVALID attn_fwd: stream 0x", "accepted: a stream of the primary context of device 0"},
        {"free STW_E_INVALID cuda: cuMemFree_v2 failed: ", "(1)"},
    };
    expect(expected, 8);
    assert_int_equal(failures(NULL), 8);
    assert_int_equal(lines_with(run.log, "launch"), 3); /* the one good call */
    assert_int_equal(lines_with(run.log, "left"), 0);
}

static void device_loss(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("lost"));
    static const char loss[] = "cuda: cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory "
                               "access was encountered";
    expect_device_loss(loss);
}

static void fork_after_run(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("child"));
    assert_non_null(strstr(run.out, "\nstream STW_E_FORKED stream_create: this context was made before "));
    expect_forked("cuda:launch");
}

/* What the promise of 2 us is measured without: sanitizers, counted lines (CMakeLists.txt), and a build that
 * is not optimised. */
#if defined(SLOWER)
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define SLOWER 10
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SLOWER 10
#endif
#endif
#ifndef SLOWER
#define SLOWER 1
#endif

/* Nanoseconds of a run call, of one with every tensor, of the same by stw_attn_bwd_once, of a plan, and of two
 * yardsticks: 3000 cycles, and checks of 200 tensors. Each takes 1000 at the 3 GHz that the promise is given for; where
 * one takes longer, calls have as much longer. Of each the best of some tries, since the machine may be busy. */
static void measure(const char *mode) {
    enum { GOALS = 4, YARDSTICKS = 2 };
    static const double goals[GOALS] = {2000, 2000, 3000, 20000};
    double best[GOALS + YARDSTICKS] = {1e12, 1e12, 1e12, 1e12, 1e12, 1e12}, slower = 1;
    int met = 0;
    for (int n = 0; n < 20 && met < GOALS; ++n) {
        double took[GOALS + YARDSTICKS];
        tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_FAST=1"), LIST(mode, "overhead"));
        const char *line = strstr(run.out, "\nrun ");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "\nrun %lf rich %lf once %lf plan %lf yardsticks %lf %lf", &took[0], &took[1],
                                &took[2], &took[3], &took[4], &took[5]),
                         GOALS + YARDSTICKS);
        for (int i = 0; i < GOALS + YARDSTICKS; ++i) best[i] = took[i] < best[i] ? took[i] : best[i];
        const double yardstick = best[GOALS] > best[GOALS + 1] ? best[GOALS] : best[GOALS + 1];
        slower = SLOWER * (yardstick > 1000 ? yardstick / 1000 : 1);
        met = 0;
        for (int i = 0; i < GOALS; ++i) met += best[i] > 0 && best[i] <= goals[i] * slower;
    }
    printf("overhead, %s: run call %.0f ns, with every tensor %.0f ns (goal 2000), without a plan %.0f ns (goal "
           "3000), plan %.0f ns (goal 20000); 3000 cycles %.0f ns, 200 tensors checked %.0f ns\n",
           mode, best[0], best[1], best[2], best[3], best[4], best[5]);
    assert_int_equal(met, GOALS);
}

/* Our own part of a run call and of a later plan; the fake driver answers at once (the real one packs four
 * tensor maps for Hopper's own main loop, which is not in here). */
static void overhead(void **state) {
    (void)state;
    measure("dropout");
    measure("plain"); /* that it has maps: test_cuda_sm90.c */
}

/* From a fresh process to the end of its first run, the driver's part left to the fake: 5 ms. The best of a few, for
 * pages that another process has in memory already are not ours to pay for. */
static void first_use(void **state) {
    (void)state;
    double best = 1e12;
    for (int n = 0; n < 10 && best > 5000 * SLOWER; ++n) {
        double took = 0;
        tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_FAST=1"), LIST("first"));
        const char *line = strstr(run.out, "\nfirst ");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "\nfirst %lf us", &took), 1);
        best = took < best ? took : best;
    }
    printf("first use: %.0f us (goal 5000)\n", best);
    assert_true(best > 0 && best <= 5000 * SLOWER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_life),
        cmocka_unit_test(run_call_is_only_launches),
        cmocka_unit_test(kernels_begin_early),
        cmocka_unit_test(each_call_failing),
        cmocka_unit_test(each_call_failing_on_sm90),
        cmocka_unit_test(driver_refuses_image),
        cmocka_unit_test(driver_versions),
        cmocka_unit_test(foreign_pointers),
        cmocka_unit_test(device_loss),
        cmocka_unit_test(fork_after_run),
        cmocka_unit_test(overhead),
        cmocka_unit_test(first_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
