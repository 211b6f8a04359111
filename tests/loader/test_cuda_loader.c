/* SPDX-License-Identifier: MIT
 *
 * The CUDA backend's open over a fake libcuda.so.1: every way it can succeed and fail, with the texts. */
#include "common/dso.h"
#include "spawn.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define H200       "NVIDIA H200|9.0|132|232448|150754820096"
#define A100       "NVIDIA A100-SXM4-40GB|8.0|108|166912|42949672960"
#define NO_KERNELS "this build holds no CUDA kernels for it (images in this build: none)"
#define H200_TEXT  "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA H200\" is sm90; " NO_KERNELS
#define ASK                                                                                                            \
    "cuda:cuDriverGetVersion\ncuda:cuDeviceGetCount\ncuda:cuDeviceGet\ncuda:cuDeviceGetName\n"                         \
    "cuda:cuDeviceGetAttribute\ncuda:cuDeviceGetAttribute\ncuda:cuDeviceGetAttribute\n"                                \
    "cuda:cuDeviceGetAttribute\ncuda:cuDeviceTotalMem_v2\n"

static const char *const symbols[] = {
#define STW_CUDA(name, need, parameters) #name,
#include "backends/cuda/driver.def"
#undef STW_CUDA
};
enum { SYMBOLS = sizeof symbols / sizeof symbols[0] };
/* What the library does without. Written here, since a row that calls a function optional by mistake says so twice. */
static const char *const optional[] = {"cuGetErrorName",
                                       "cuGetErrorString",
                                       "cuGetProcAddress_v2",
                                       "cuFuncLoad",
                                       "cuLaunchKernelEx",
                                       "cuTensorMapEncodeTiled",
                                       NULL};

static spawn run;

static void tool(const char *folder, const char *const *environment, const char *const *commands) {
    char libraries[512];
    snprintf(libraries, sizeof libraries, FAKES "/%s", folder);
    spawn_tool(&run, TOOL, libraries, environment, commands);
    assert_int_equal(run.exit_status, 0);
}

static void present(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("open cuda 0", "open cuda 0"));
    assert_string_equal(run.out, H200_TEXT "\n" H200_TEXT "\n");
    assert_string_equal(run.log, "cuda:cuInit\n" ASK ASK);
}

static void absent(void **state) {
    (void)state;
    if (spawn_system_has("libcuda.so.1")) skip();
    static const char text[] = "STW_E_NO_DRIVER cuda: no driver: libcuda.so.1: cannot open shared object file: "
                               "No such file or directory";
    tool("none", NOTHING, LIST("open cuda 0", "open cuda 7 sm80", "fork", "open cuda 0"));
    for (int i = 0; i < 3; ++i) assert_string_equal(spawn_line(run.out, i), text);
    assert_string_equal(spawn_line(run.out, 3), "child 0");
    assert_string_equal(run.log, "");
}

/* A moment without descriptors is no missing driver: the next open finds it. */
static void no_descriptor_for_a_moment(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200),
         LIST("descriptors 0", "open cuda 0", "open cuda 0", "descriptors 64", "open cuda 0"));
    for (int i = 0; i < 2; ++i)
        assert_string_equal(spawn_line(run.out, i),
                            "STW_E_NO_DRIVER cuda: no driver: libcuda.so.1: cannot open shared object file: "
                            "Too many open files");
    assert_string_equal(spawn_line(run.out, 2), H200_TEXT);
}

static void each_symbol_missing(void **state) {
    (void)state;
    for (int i = 0; i < SYMBOLS; ++i) {
        char folder[128], text[256];
        snprintf(folder, sizeof folder, "cuda-without-%s", symbols[i]);
        tool(folder, LIST("FAKE_CUDA_DEVICES=" H200), LIST("open cuda 0", "open cuda 0"));
        snprintf(text, sizeof text,
                 "STW_E_NO_DRIVER cuda: libcuda.so.1%s lacks %s, which this library needs: install a newer driver",
                 strcmp(symbols[i], "cuDriverGetVersion") ? " (CUDA 13.0)" : "", symbols[i]);
        for (int call = 0; call < 2; ++call)
            assert_string_equal(spawn_line(run.out, call), !spawn_listed(optional, symbols[i]) ? text : H200_TEXT);
        char started[160];
        snprintf(started, sizeof started, "%s:cuInit", folder);
        assert_int_equal(spawn_count(run.log, started), !spawn_listed(optional, symbols[i]) ? 0 : 1);
    }
}

/* Fails one function with one code, then lets it work: status, text, nothing called behind the failure,
 * and a good answer afterwards. */
static void fail_once(const char *function, int nth, int code, const char *status, const char *words) {
    char plan[128], text[256];
    if (nth) snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d:%d", function, code, nth);
    else snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d", function, code);
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, plan),
         LIST("open cuda 0", "setenv FAKE_LOG /dev/null", "setenv FAKE_FAIL", "open cuda 0"));
    snprintf(text, sizeof text, "%s cuda: %s failed: %s", status, function, words);
    assert_string_equal(spawn_line(run.out, 0), text);
    assert_string_equal(spawn_line(run.out, 1), H200_TEXT);
    char last[128], calls[4096] = "";
    snprintf(last, sizeof last, "cuda:%s", function);
    for (int i = 0; *spawn_line(run.log, i); ++i)
        if (!strstr(spawn_line(run.log, i), "cuGetError")) snprintf(calls, sizeof calls, "%s", spawn_line(run.log, i));
    assert_string_equal(calls, last);
    if (nth) assert_int_equal(spawn_count(run.log, last), nth);
}

/* Every function that open calls before it looks for an image; test_cuda_calls.c has the others. */
static void each_call_failing(void **state) {
    (void)state;
    for (int i = 0; i < SYMBOLS; ++i) {
        char called[96];
        snprintf(called, sizeof called, "cuda:%s\n", symbols[i]);
        if (!strstr("cuda:cuInit\n" ASK, called)) continue;
        int starts = !strcmp(symbols[i], "cuInit");
        fail_once(symbols[i], 0, 999, starts ? "STW_E_NO_DRIVER" : "STW_E_DRIVER",
                  "CUDA_ERROR_UNKNOWN (999): unknown error");
        fail_once(symbols[i], 0, 2, "STW_E_NO_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
        fail_once(symbols[i], 0, 100, "STW_E_NO_DEVICE",
                  "CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
        fail_once(symbols[i], 0, 12345, starts ? "STW_E_NO_DRIVER" : "STW_E_DRIVER", "error (12345)");
    }
    for (int nth = 1; nth <= 4; ++nth)
        fail_once("cuDeviceGetAttribute", nth, 999, "STW_E_DRIVER", "CUDA_ERROR_UNKNOWN (999): unknown error");
    fail_once("cuInit", 0, 803, "STW_E_NO_DRIVER",
              "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): system has unsupported display driver / cuda driver "
              "combination");
}

/* The error functions only make texts: without them, or with failing ones, the number is still there. */
static void error_texts_missing(void **state) {
    (void)state;
    tool("cuda-without-cuGetErrorName", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_FAIL=cuDeviceGet:999"),
         LIST("open cuda 0"));
    assert_string_equal(run.out, "STW_E_DRIVER cuda: cuDeviceGet failed: error (999): unknown error\n");
    tool("cuda-without-cuGetErrorString", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_FAIL=cuDeviceGet:999"),
         LIST("open cuda 0"));
    assert_string_equal(run.out, "STW_E_DRIVER cuda: cuDeviceGet failed: CUDA_ERROR_UNKNOWN (999)\n");
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_FAIL=cuDeviceGet:999,cuGetErrorName:1,cuGetErrorString:1"),
         LIST("open cuda 0"));
    assert_string_equal(run.out, "STW_E_DRIVER cuda: cuDeviceGet failed: error (999)\n");
}

static void devices_and_ordinals(void **state) {
    (void)state;
    tool("cuda",
         LIST("FAKE_CUDA_DEVICES=" A100 ";" H200 ";NVIDIA L40S|8.9|142|101376|48305799168;Tesla "
              "T4|7.5|40|65536|16106127360;NVIDIA RTX PRO 6000|12.0|188|101376|102641958912;odd|0.0|1|1|1"),
         LIST("open cuda 0", "open cuda 1", "open cuda 2", "open cuda 3", "open cuda 4", "open cuda 5", "open cuda 6",
              "open cuda -1", "open cuda 2147483647"));
    static const char *const lines[] = {
        "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA A100-SXM4-40GB\" is sm80; " NO_KERNELS,
        "STW_E_NO_IMAGE cuda: device 1 \"NVIDIA H200\" is sm90; " NO_KERNELS,
        "STW_E_NO_IMAGE cuda: device 2 \"NVIDIA L40S\" is sm89; " NO_KERNELS,
        "STW_E_NO_IMAGE cuda: device 3 \"Tesla T4\" is sm75; compute capability 8.0 is the oldest this "
        "library has "
        "kernels for",
        "STW_E_NO_IMAGE cuda: device 4 \"NVIDIA RTX PRO 6000\" is sm120; " NO_KERNELS,
        "STW_E_DRIVER cuda: device 5 \"odd\" has compute capability 0.0, which is none",
        "STW_E_NO_DEVICE cuda: device 6 does not exist: the driver shows 6 (0..5)",
        "STW_E_NO_DEVICE cuda: device -1 does not exist: the driver shows 6 (0..5)",
        "STW_E_NO_DEVICE cuda: device 2147483647 does not exist: the driver shows 6 (0..5)",
    };
    for (int i = 0; i < 9; ++i) assert_string_equal(spawn_line(run.out, i), lines[i]);
}

static void no_device(void **state) {
    (void)state;
    tool("cuda", NOTHING, LIST("open cuda 0", "setenv FAKE_CUDA_DEVICES " A100, "open cuda 0"));
    assert_string_equal(spawn_line(run.out, 0), "STW_E_NO_DEVICE cuda: cuInit failed: CUDA_ERROR_NO_DEVICE (100): no "
                                                "CUDA-capable device is detected");
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("open cuda 0", "setenv FAKE_CUDA_DEVICES", "open cuda 0"));
    assert_string_equal(spawn_line(run.out, 1), "STW_E_NO_DEVICE cuda: the driver shows no device");
}

static void long_name(void **state) {
    (void)state;
    tool("cuda",
         LIST("FAKE_CUDA_DEVICES="
              "012345678901234567890123456789012345678901234567890123456789012345678901234567890123"
              "456789012345678901234567890123456789|9.0|132|232448|1"),
         LIST("open cuda 0"));
    assert_string_equal(run.out, "STW_E_NO_IMAGE cuda: device 0 \"0123456789012345678901234567890123456789012345678901"
                                 "2345678901234567890123456789012345678901234\" is sm90; " NO_KERNELS "\n");
}

static void forced_arch(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" A100 ";" H200),
         LIST("open cuda 0 gfx942", "open cuda 0 sm70", "open cuda 0 cpu", "open cuda 0 SM80"));
    static const char *const names[] = {"gfx942", "sm70", "cpu", "SM80"};
    for (int i = 0; i < 4; ++i) {
        char text[128];
        snprintf(text, sizeof text, "STW_E_INVALID cuda: arch \"%s\" is no CUDA arch; accepted: sm80, sm90", names[i]);
        assert_string_equal(spawn_line(run.out, i), text);
    }
    assert_string_equal(run.log, ""); /* refused before the driver is touched */
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" A100 ";" H200),
         LIST("open cuda 0 sm90", "open cuda 0 sm80", "open cuda 1 sm80", "open cuda 1 sm90"));
    assert_string_equal(spawn_line(run.out, 0), "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA A100-SXM4-40GB\" is sm80, "
                                                "which does not run sm90 kernels; accepted: sm80");
    assert_string_equal(
        spawn_line(run.out, 1),
        "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA A100-SXM4-40GB\" is sm80; this build holds no sm80 CUDA "
        "kernels for it (images in this build: none)");
    assert_string_equal(spawn_line(run.out, 2), "STW_E_NO_IMAGE cuda: device 1 \"NVIDIA H200\" is sm90; this build "
                                                "holds no sm80 CUDA kernels for it (images in this build: none)");
    assert_string_equal(spawn_line(run.out, 3), "STW_E_NO_IMAGE cuda: device 1 \"NVIDIA H200\" is sm90; this build "
                                                "holds no sm90 CUDA kernels for it (images in this build: none)");
}

static void fork_after_start(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("open cuda 0", "fork", "open cuda 0", "threads cuda"));
    assert_non_null(strstr(spawn_line(run.out, 1), "STW_E_FORKED cuda: process "));
    assert_non_null(strstr(spawn_line(run.out, 1), " started the driver and then forked this process "));
    assert_non_null(strstr(spawn_line(run.out, 2), "all STW_E_FORKED cuda: process "));
    assert_string_equal(spawn_line(run.out, 3), "child 0");
    assert_string_equal(run.log, "cuda:cuInit\n" ASK); /* nothing from the child */
}

static void fork_before_start(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("fork", "open cuda 0"));
    assert_string_equal(run.out, H200_TEXT "\nchild 0\n");
}

static void fork_after_failed_start(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_FAIL=cuInit:999"), LIST("open cuda 0", "fork", "open cuda 0"));
    static const char text[] = "STW_E_NO_DRIVER cuda: cuInit failed: CUDA_ERROR_UNKNOWN (999): unknown error";
    assert_string_equal(spawn_line(run.out, 0), text);
    assert_string_equal(spawn_line(run.out, 1), text);
    assert_int_equal(spawn_count(run.log, "cuda:cuInit"), 1);
}

static void many_threads(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("threads cuda"));
    assert_string_equal(run.out, "all " H200_TEXT "\n");
    assert_int_equal(spawn_count(run.log, "cuda:cuInit"), 1);
    tool("cuda-without-cuDeviceGet", LIST("FAKE_CUDA_DEVICES=" H200), LIST("threads cuda"));
    assert_string_equal(run.out, "all STW_E_NO_DRIVER cuda: libcuda.so.1 (CUDA 13.0) lacks cuDeviceGet, which this "
                                 "library needs: install a newer driver\n");
}

/* The program's own driver, loaded from elsewhere, is the one that is used. */
static void loaded_library_wins(void **state) {
    (void)state;
    tool("cuda", LIST("FAKE_CUDA_DEVICES=" H200), LIST("preload " FAKES "/cuda-other/libcuda.so.1", "open cuda 0"));
    assert_string_equal(run.out, "preload done\n" H200_TEXT "\n");
    assert_int_equal(spawn_count(run.log, "cuda-other:cuInit"), 1);
    assert_int_equal(spawn_count(run.log, "cuda:cuInit"), 0);
}

static void current_folder_is_not_searched(void **state) {
    (void)state;
    if (spawn_system_has("libcuda.so.1")) skip();
    tool("none", LIST("FAKE_CUDA_DEVICES=" H200), LIST("chdir " FAKES "/cuda", "open cuda 0"));
    assert_non_null(strstr(run.out, "STW_E_NO_DRIVER cuda: no driver: libcuda.so.1: cannot open"));
    assert_string_equal(run.log, "");
}

static void paths_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"./libcuda.so.1", FAKES "/cuda/libcuda.so.1", "cuda/libcuda.so.1", ""};
    char words[1024];
    stw_text reason = stw_text_in(words, sizeof words);
    stw_dso dso;
    assert_false(stw_dso_open(&dso, names, 4, &reason));
    assert_null(dso.handle);
    assert_string_equal(words, "\"./libcuda.so.1\" is not a bare library name; \"" FAKES
                               "/cuda/libcuda.so.1\" is not a bare library name; \"cuda/libcuda.so.1\" is not a bare "
                               "library name; \"\" is not a bare library name");
}

/* A build that has images (images.def): open succeeds where one runs, with the facts of the device. */
static void open_with_images(void **state) {
    (void)state;
    spawn_tool(&run, TOOL_IMAGES, FAKES "/cuda", LIST("FAKE_CUDA_DEVICES=" A100 ";" H200 ";Tesla T4|7.5|40|65536|1"),
               LIST("open cuda 0", "open cuda 1", "open cuda 1 sm90", "open cuda 2", "open cuda 1 sm80"));
    assert_int_equal(run.exit_status, 0);
    static const char *const lines[] = {
        "STW_OK sm80|NVIDIA A100-SXM4-40GB|108|166912|42949672960",
        "STW_OK sm90|NVIDIA H200|132|232448|150754820096",
        "STW_OK sm90|NVIDIA H200|132|232448|150754820096",
        "STW_E_NO_IMAGE cuda: device 2 \"Tesla T4\" is sm75; compute capability 8.0 is the oldest this "
        "library has "
        "kernels for",
        "STW_OK sm80|NVIDIA H200|132|232448|150754820096",
    };
    for (int i = 0; i < 5; ++i) assert_string_equal(spawn_line(run.out, i), lines[i]);
}

/* Without tensor maps a device of 9.0 is one for sm80's kernels; sm90's, asked for by name, are refused with
 * the reason. */
static void open_without_maps(void **state) {
    (void)state;
    spawn_tool(&run, TOOL_IMAGES, FAKES "/cuda-without-cuTensorMapEncodeTiled",
               LIST("FAKE_CUDA_DEVICES=" H200, "FAKE_CUDA_VERSION=12040"),
               LIST("open cuda 0", "open cuda 0 sm80", "open cuda 0 sm90", "open cuda 0"));
    static const char *const lines[] = {"STW_OK sm80|NVIDIA H200|132|232448|150754820096",
                                        "STW_OK sm80|NVIDIA H200|132|232448|150754820096",
                                        "STW_E_NO_DRIVER cuda: libcuda.so.1 (CUDA 12.4) lacks "
                                        "cuTensorMapEncodeTiled, which sm90 kernels need: "
                                        "install a newer driver",
                                        "STW_OK sm80|NVIDIA H200|132|232448|150754820096"};
    assert_int_equal(run.exit_status, 0);
    for (int i = 0; i < 4; ++i) assert_string_equal(spawn_line(run.out, i), lines[i]);
    assert_null(strstr(run.log, ":left "));
}

/* Hopper's own main loop is of no use without the kernels around it. */
static void open_with_main_loop_alone(void **state) {
    (void)state;
    spawn_tool(&run, TOOL_SM90, FAKES "/cuda", LIST("FAKE_CUDA_DEVICES=" H200),
               LIST("open cuda 0", "open cuda 0 sm90"));
    assert_int_equal(run.exit_status, 0);
    assert_string_equal(spawn_line(run.out, 0),
                        "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA H200\" is sm90; this build holds no "
                        "CUDA kernels for it (images in this build: sm80 cubin, sm90 cubin)");
    assert_string_equal(spawn_line(run.out, 1),
                        "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA H200\" is sm90; this build holds no "
                        "sm90 CUDA kernels for it (images in this build: sm80 cubin, sm90 cubin)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(present),
        cmocka_unit_test(absent),
        cmocka_unit_test(no_descriptor_for_a_moment),
        cmocka_unit_test(each_symbol_missing),
        cmocka_unit_test(each_call_failing),
        cmocka_unit_test(error_texts_missing),
        cmocka_unit_test(devices_and_ordinals),
        cmocka_unit_test(no_device),
        cmocka_unit_test(long_name),
        cmocka_unit_test(forced_arch),
        cmocka_unit_test(fork_after_start),
        cmocka_unit_test(fork_before_start),
        cmocka_unit_test(fork_after_failed_start),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(loaded_library_wins),
        cmocka_unit_test(current_folder_is_not_searched),
        cmocka_unit_test(paths_are_refused),
        cmocka_unit_test(open_with_images),
        cmocka_unit_test(open_without_maps),
        cmocka_unit_test(open_with_main_loop_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
