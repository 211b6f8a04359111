/* SPDX-License-Identifier: MIT
 *
 * The HIP backend's plans, launches, memory and streams over a fake libamdhip64, in a build that has an
 * image: what is called, every call failing once and always, the caller's current device and last error,
 * kinds of memory, device loss, forks. */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "run_calls.h"

#define MI300X    "AMD Instinct MI300X|gfx942:sramecc+:xnack-|304|65536|206141652992|0000:05:00.0"
#define MI300X_E5 "AMD Instinct MI300X|gfx942:sramecc+:xnack-|304|65536|206141652992|0000:e5:00.0"
#define TWO       "FAKE_HIP_DEVICES=" MI300X ";" MI300X
#define OTHER     "FAKE_HIP_CURRENT=1" /* the device that the program itself uses */

static const char *const symbols[] = {
#define STW_HIP(name, need, result, parameters) #name,
#include "backends/hip/driver.def"
#undef STW_HIP
};
enum { SYMBOLS = sizeof symbols / sizeof symbols[0], ROUNDS = 3 };

static void whole_life(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "work"));
    assert_int_equal(failures(NULL), 0);
    assert_int_equal(spawn_count(run.out, "current as before"), 1);
    assert_int_equal(lines_with(run.out, "other bytes"), 0);
    assert_int_equal(spawn_count(run.log, "hip7:hipModuleLoadData"), 1);
    assert_int_equal(spawn_count(run.log, "hip7:hipModuleUnload"), 1);
    assert_int_equal(lines_with(run.log, "left"), 0);
    static const char *const launches[] = {"stw_attn_fwd_gfx942_fwd_64x64_hd128_bf16",
                                           "stw_attn_bwd_preprocess_cdna_hd128_bf16",
                                           "stw_attn_bwd_gfx942_32x64_hd128_bf16_dropout",
                                           "stw_attn_bwd_postprocess_cdna_hd128_bf16", "stw_attn_dropout_mask"};
    static const int times[] = {1, 2, 2, 2, 1};
    for (int i = 0; i < 5; ++i) {
        char line[128];
        snprintf(line, sizeof line, "hip7:launch %s", launches[i]);
        assert_int_equal(spawn_count(run.log, line), times[i]);
    }
    assert_int_equal(lines_with(run.log, "launch"), 8);
}

/* A run call sets the device and back where the caller uses another one, asks, launches, and does nothing
 * else. */
static void run_call_is_only_launches(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "child"));
    char *first = strstr(run.log, "hip7:hipStreamGetDevice\n");
    assert_non_null(first);
    char *end = strstr(first, "hip7:hipSetDevice\n");
    assert_non_null(end);
    *end = 0;
    assert_int_equal(lines_with(first, "hip7:hipPointerGetAttributes"), 10); /* nine tensors, workspace */
    assert_int_equal(lines_with(first, "hip7:hipModuleLaunchKernel"), 3);
    assert_int_equal(lines_with(first, "hip7:launch"), 3);
    assert_int_equal(lines_with(first, "hip7:"), 1 + 10 + 3 + 3);
    tool("hip7", LIST(TWO), LIST("hip", "work"));
    assert_int_equal(spawn_count(run.log, "hip7:hipSetDevice"), 0); /* it is current already */
}

/* What stays behind is the fault of these alone: they were told to fail at giving it back. */
static int gives_back(const char *function) {
    static const char *const names[] = {"hipGetDevice", "hipSetDevice", "hipModuleUnload", "hipFree",
                                        "hipStreamDestroy"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (!strcmp(names[i], function)) return 1;
    return 0;
}

static void fail_call(const char *function, int code, int nth) {
    char plan[96];
    if (nth) snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d:%d", function, code, nth);
    else snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d", function, code);
    tool("hip7", LIST(TWO, OTHER, plan), LIST("hip", "work 3"));
    int failed = failures(code == 2 && !strcmp(function, "hipMalloc") ? "no memory for" : function);
    if (lines_with(run.out, "current changed") + lines_with(run.out, "other bytes") + lines_with(run.out, "last error"))
        fail_msg("%s:\n%s", plan, run.out);
    /* a lost device takes its memory and streams with it, and no more */
    int gone = code == 700 ? lines_with(run.log, "left blocks") + lines_with(run.log, "left streams") : 0;
    if (!gives_back(function) && lines_with(run.log, "left") != gone)
        fail_msg("%s: %d lines of what is left, not %d", plan, lines_with(run.log, "left"), gone);
    int silent = !strcmp(function, "hipModuleUnload") || !strncmp(function, "hipGetError", 11) ||
                 !strcmp(function, "hipGetLastError") || !strcmp(function, "hipGetDevicePropertiesR0000") ||
                 !strcmp(function, "hipDeviceGetPCIBusId") || !strncmp(function, "hipMemGetA", 10) ||
                 !strcmp(function, "hipStreamIsCapturing") || /* linear's (tests/cdna_emu/test_blas.c) */
                 !strncmp(function, "hipEvent", 8) || !strcmp(function, "hipStreamWaitEvent") || /* over ranks */
                 !strcmp(function, "hipStreamCreateWithPriority");
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

static void each_call_failing(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "work"));
    static char clean[sizeof run.log];
    memcpy(clean, run.log, sizeof clean);
    int covered = 0;
    for (int i = 0; i < SYMBOLS; ++i) {
        char line[96];
        snprintf(line, sizeof line, "hip7:%s", symbols[i]);
        int calls = spawn_count(clean, line), most = strstr(symbols[i], "hipPointer") ? 3 : 24;
        covered += calls > 0;
        fail_call(symbols[i], 999, 0);
        fail_call(symbols[i], 700, 0);
        for (int nth = 1; nth <= calls && nth <= most; ++nth) fail_call(symbols[i], 999, nth);
        if (calls) fail_call(symbols[i], 700, calls);
    }
    /* error texts, two other ways to the gfx name, captures, rare memory; over ranks: events, a stream of a priority */
    assert_int_equal(covered, SYMBOLS - 7 - 5);
    fail_call("hipMalloc", 2, 0);
}

/* A whole life on the symbols and the versions of ROCm 5.2, 6.0, 6.4 and 7: 5.2 tells no gfx name, the kernel
 * driver does, and it cannot say whose a stream is. */
static void every_runtime(void **state) {
    (void)state;
    static const struct {
        const char *folder, *version, *way;
    } runtimes[] = {{"hip5", "FAKE_HIP_VERSION=50221153", "hipDeviceGetPCIBusId"},
                    {"hip6", "FAKE_HIP_VERSION=60032830", "hipGetDevicePropertiesR0600"},
                    {"hip6", "FAKE_HIP_VERSION=60443482", "hipGetDevicePropertiesR0600"},
                    {"hip6-r0000", "FAKE_HIP_VERSION=60032830", "hipGetDevicePropertiesR0000"},
                    {"hip7", "FAKE_HIP_VERSION=70051831", "hipGetDevicePropertiesR0600"}};
    for (size_t i = 0; i < sizeof runtimes / sizeof runtimes[0]; ++i) {
        char line[128];
        tool(runtimes[i].folder,
             LIST("FAKE_HIP_DEVICES=" MI300X_E5 ";" MI300X_E5, OTHER, runtimes[i].version,
                  "FAKE_KFD_ROOT=" FIXTURES "/mi300x-x8"),
             LIST("hip", "work", "kinds"));
        expect((const char *const[][2]){{"bwd STW_E_INVALID attn_bwd: workspace 0x", " is managed memory, "},
                                        {"bwd STW_E_INVALID attn_bwd: q 0x", " is page-locked host memory, "}},
               2);
        assert_int_equal(failures(NULL), 2);
        assert_int_equal(spawn_count(run.out, "current as before"), 1);
        snprintf(line, sizeof line, "%s:%s", runtimes[i].folder, runtimes[i].way);
        assert_true(spawn_count(run.log, line) >= 1);
        assert_true(lines_with(run.log, "launch") >= 8);
        assert_int_equal(lines_with(run.log, "left"), 0);
    }
}

static void runtime_refuses_image(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, "FAKE_FAIL=hipModuleLoadData:209"), LIST("hip", "work"));
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_NO_IMAGE hip: hipModuleLoadData failed: hipErrorUnknown (209): unknown "
                        "error; image gfx942 code object, runtime version 60342131, a newer ROCm is needed");
    tool("hip7", LIST(TWO, "FAKE_FAIL=hipModuleGetFunction:500"), LIST("hip", "work"));
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_INTERNAL hip: hipModuleGetFunction failed: hipErrorUnknown (500): unknown "
                        "error; kernel stw_attn_bwd_preprocess_cdna_hd128_bf16");
}

static void foreign_pointers(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "foreign"));
    static const char *const expected[][2] = {
        {"dq STW_E_INVALID attn_bwd: dq 0x", " is memory of device 1, accepted: memory of device 0"},
        {"k STW_E_INVALID attn_bwd: k 0x", " is no memory that HIP knows, accepted: memory of device 0"},
        {"seed STW_E_INVALID attn_bwd: dropout_seed_ptr 0x", " is memory of device 1, accepted: memory of device 0"},
        {"workspace STW_E_INVALID attn_bwd: workspace 0x", " is memory of device 1, accepted: memory of device 0"},
        {"stream STW_E_INVALID attn_bwd: stream 0x", " belongs to device 1, accepted: a stream of device 0"},
        {"mask STW_E_INVALID dropout_mask: mask 0x", " is memory of device 1, accepted: memory of device 0"},
        {"fwd STW_E_INVALID attn_fwd: stream 0x", "accepted: a stream of device 0"},
        {"free STW_E_INVALID hip: hipFree failed: ", "(1)"},
    };
    expect(expected, 8);
    assert_int_equal(failures(NULL), 8);
    assert_int_equal(lines_with(run.log, "launch"), 3); /* the one good call */
    assert_int_equal(lines_with(run.log, "left"), 0);
}

/* hipMemoryType counts otherwise since ROCm 6: both numberings, read by the runtime's version. */
static void kinds_of_memory(void **state) {
    (void)state;
    static const char *const versions[] = {"FAKE_HIP_VERSION=50221153", "FAKE_HIP_VERSION=60342131",
                                           "FAKE_HIP_VERSION=70051831"};
    for (int i = 0; i < 3; ++i) {
        tool("hip7", LIST(TWO, versions[i]), LIST("hip", "kinds"));
        static const char *const expected[][2] = {
            {"bwd STW_E_INVALID attn_bwd: workspace 0x", " is managed memory, accepted: memory of device 0"},
            {"bwd STW_E_INVALID attn_bwd: q 0x", " is page-locked host memory, accepted: memory of device 0"},
        };
        expect(expected, 2);
        assert_int_equal(spawn_count(run.out, "bwd STW_OK "), 1); /* a managed tensor is fine */
        assert_int_equal(failures(NULL), 2);
    }
}

/* Memory past the device's cache, where gfx90a drops additions of floats: refused by name for what a call
 * writes, which is another array in each call, and fine for what it reads. */
static void flags_of_memory(void **state) {
    (void)state;
    static const struct {
        const char *words;
        int flags;
    } kinds[] = {
        {"fine-grained memory", 1}, {"uncached memory", 3}, {"uncached memory", 4}, {"memory of unknown flags", 0x10}};
    static const char *const arrays[] = {"fwd STW_E_INVALID attn_fwd: lse 0x", "bwd STW_E_INVALID attn_bwd: dq 0x",
                                         "mask STW_E_INVALID dropout_mask: mask 0x",
                                         "bwd STW_E_INVALID attn_bwd: workspace 0x"};
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "flags"));
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 4; ++k) {
            char line[160];
            snprintf(line, sizeof line,
                     " is %s of device 0 (flags 0x%x of hipExtMallocWithFlags), accepted: memory of device 0 from "
                     "hipMalloc",
                     kinds[k].words, kinds[k].flags);
            expect((const char *const[][2]){{arrays[i], line}}, 1);
        }
        expect((const char *const[][2]){{arrays[i], " is managed memory, accepted: memory of device 0"}}, 1);
    }
    assert_int_equal(failures(NULL), 5 * 4);
    assert_int_equal(spawn_count(run.out, "bwd STW_OK ") + spawn_count(run.out, "fwd STW_OK ") +
                         spawn_count(run.out, "mask STW_OK "),
                     5 * (5 * 3 - 4));
    assert_int_equal(lines_with(run.log, "left"), 0);
}

/* Memory of hipMemMap (PyTorch's expandable segments), which the runtime may not find, is fine where the device may
 * write it. Pageable memory, where the device reaches it, is fine for what a call reads. Both were refused in words
 * that were not so: "no memory for", "memory of device 0". */
static void mapped_memory(void **state) {
    (void)state;
    static const char *const arrays[] = {"fwd STW_E_INVALID attn_fwd: lse 0x", "bwd STW_E_INVALID attn_bwd: dq 0x",
                                         "mask STW_E_INVALID dropout_mask: mask 0x",
                                         "bwd STW_E_INVALID attn_bwd: workspace 0x"};
    static const char *const kinds[] = {
        " is memory of hipMemMap that this device may only read, accepted: memory of device 0",
        " is pageable host memory, accepted: memory of device 0"};
    tool("hip7", LIST(TWO, OTHER, "FAKE_HIP_PAGEABLE=1"), LIST("hip", "mapped"));
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 2; ++k) expect((const char *const[][2]){{arrays[i], kinds[k]}}, 1);
    assert_int_equal(failures("; STERNWAY_POINTERS=trust does not ask"), 2 * 4);
    assert_int_equal(spawn_count(run.out, "bwd STW_OK ") + spawn_count(run.out, "fwd STW_OK ") +
                         spawn_count(run.out, "mask STW_OK "),
                     3 * 5 * 3 - 2 * 4);
    assert_int_equal(lines_with(run.out, "last error"), 0);
    /* without the functions of newer runtimes nothing is known of it */
    tool("hip7-without-hipMemGetAccess", LIST(TWO, OTHER), LIST("hip", "mapped"));
    assert_int_equal(lines_with(run.out, " is no memory that HIP knows, accepted: memory of device 0"), 2 * 7);
    /* where the device does not reach pageable memory, the runtime has no such object */
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "foreign"));
    assert_int_equal(lines_with(run.out, "attn_bwd: k 0x"), 1);
    assert_int_equal(spawn_count(run.log, "hip7:hipMemGetAddressRange"), 0);
    tool("hip7", LIST(TWO, OTHER, "FAKE_HIP_PAGEABLE=1"), LIST("hip", "foreign"));
    assert_int_equal(lines_with(run.out, "attn_bwd: k 0x"), 0); /* memory of the stack, read by an MI300A */
}

/* Nothing is asked of pointers, and the stream is all the same. */
static void trusted_pointers(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER, "STERNWAY_POINTERS=trust"), LIST("hip", "flags", "foreign"));
    assert_int_equal(spawn_count(run.log, "hip7:hipPointerGetAttributes"), 0);
    assert_int_equal(lines_with(run.out, "attn_bwd: dq 0x"), 0);
    assert_int_equal(lines_with(run.out, "STW_E_INVALID attn_bwd: stream 0x"), 1);
}

/* The runtime would open the file behind the address of an image: it gets a copy that has none, which lives as long
 * as the module. */
static void images_without_files(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "work 2"));
    assert_int_equal(failures(NULL), 0);
    assert_int_equal(lines_with(run.out, "bwd_plan STW_OK"), 2);
}

/* The runtime's word for a stream that is destroyed, or never was one, sounds like the loss of the device:
 * the call says which stream, nothing is launched, and the next calls work. */
static void destroyed_stream(void **state) {
    (void)state;
    static const char *const who[] = {"attn_bwd", "attn_fwd",           "dropout_mask",
                                      "copy",     "stream_synchronize", "stream_destroy"};
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "gone"));
    for (int i = 0; i < 6; ++i) {
        char line[64];
        snprintf(line, sizeof line, "STW_E_INVALID %s: stream 0x", who[i]);
        assert_int_equal(lines_with(run.out, line), 2);
    }
    assert_int_equal(failures(" is destroyed or no stream, accepted: a stream of device 0; hip: "), 12);
    assert_int_equal(failures(" failed: hipErrorContextIsDestroyed (709): context is destroyed"), 12);
    assert_int_equal(spawn_count(run.out, "current as before"), 1);
    assert_int_equal(lines_with(run.out, "last error"), 0);
    assert_int_equal(lines_with(run.log, "launch"), 2 * 5); /* of the good calls, which are all made */
    assert_int_equal(lines_with(run.log, "left"), 0);
    /* known too late, but no loss either */
    tool("hip7-without-hipStreamGetDevice", LIST(TWO, OTHER), LIST("hip", "gone"));
    assert_int_equal(lines_with(run.out, "STW_E_INVALID hip: stream 0x"), 6);
    assert_int_equal(failures(" is destroyed or no stream, accepted: a stream of device 0; hip: "), 12);
    assert_int_equal(lines_with(run.log, "launch"), 2 * 5);
}

/* Without hipStreamGetDevice a foreign stream is the runtime's to refuse. */
static void without_stream_device(void **state) {
    (void)state;
    tool("hip7-without-hipStreamGetDevice", LIST(TWO, OTHER), LIST("hip", "work"));
    assert_int_equal(failures(NULL), 0);
    tool("hip7-without-hipStreamGetDevice", LIST(TWO, OTHER), LIST("hip", "foreign"));
    assert_int_equal(lines_with(run.out, "stream STW_E_DRIVER hip: hipModuleLaunchKernel failed"), 1);
}

static void device_loss(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "lost"));
    static const char loss[] = "hip: hipStreamSynchronize failed: hipErrorIllegalAddress (700): an illegal memory "
                               "access was encountered";
    expect_device_loss(loss);
}

static void fork_after_run(void **state) {
    (void)state;
    tool("hip7", LIST(TWO, OTHER), LIST("hip", "child"));
    expect_forked("hip7:launch");
}

/* Our own part of a run call and of a later plan (goals: 2000 ns, 20000 ns, which test_cuda_calls.c holds the
 * same code to); the bound here is wide, the figures are printed. The machine may be busy: of each the best of some
 * tries. */
static void overhead(void **state) {
    (void)state;
    enum { KINDS = 4 };
    static const double most[KINDS] = {20000, 40000, 40000, 200000};
    double best[KINDS] = {1e12, 1e12, 1e12, 1e12};
    int met = 0;
    for (int n = 0; n < 20 && met < KINDS; ++n) {
        double took[KINDS];
        tool("hip7", LIST(TWO, "FAKE_FAST=1"), LIST("hip", "overhead"));
        const char *line = strstr(run.out, "\nrun ");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "\nrun %lf rich %lf once %lf plan %lf", &took[0], &took[1], &took[2], &took[3]),
                         KINDS);
        met = 0;
        for (int i = 0; i < KINDS; ++i) {
            best[i] = took[i] < best[i] ? took[i] : best[i];
            met += best[i] > 0 && best[i] < most[i];
        }
    }
    printf("overhead: run call %.0f ns, with every tensor %.0f ns, without a plan %.0f ns, plan %.0f ns\n", best[0],
           best[1], best[2], best[3]);
    assert_int_equal(met, KINDS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_life),        cmocka_unit_test(run_call_is_only_launches),
        cmocka_unit_test(each_call_failing), cmocka_unit_test(runtime_refuses_image),
        cmocka_unit_test(foreign_pointers),  cmocka_unit_test(kinds_of_memory),
        cmocka_unit_test(device_loss),       cmocka_unit_test(without_stream_device),
        cmocka_unit_test(fork_after_run),    cmocka_unit_test(overhead),
        cmocka_unit_test(every_runtime),     cmocka_unit_test(destroyed_stream),
        cmocka_unit_test(flags_of_memory),   cmocka_unit_test(mapped_memory),
        cmocka_unit_test(trusted_pointers),  cmocka_unit_test(images_without_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
