/* SPDX-License-Identifier: MIT
 *
 * The HIP backend's open over fake libamdhip64 of ROCm 5, 6 and 7: every way it can succeed and fail. */
#include "spawn.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MI300X     "AMD Instinct MI300X|gfx942:sramecc+:xnack-|304|65536|206141652992|0000:05:00.0"
#define MI250X     "AMD Instinct MI250X|gfx90a:sramecc+:xnack-|110|65536|68702699520|0000:c1:00.0"
#define RX7900     "Radeon RX 7900 XTX|gfx1100|48|65536|25753026560|0000:03:00.0"
#define NO_KERNELS "this build holds no HIP kernels for it (images in this build: none)"
#define MI300_TEXT "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI300X\" is gfx942; " NO_KERNELS
#define ASK                                                                                                            \
    "hip7:hipRuntimeGetVersion\nhip7:hipGetDeviceCount\nhip7:hipDeviceGetName\nhip7:hipDeviceGetAttribute\n"           \
    "hip7:hipDeviceGetAttribute\nhip7:hipDeviceGetAttribute\nhip7:hipDeviceTotalMem\nhip7:"                            \
    "hipGetDevicePropertiesR0600\n"

static const char *const symbols[] = {
#define STW_HIP(name, need, result, parameters) #name,
#include "backends/hip/driver.def"
#undef STW_HIP
};
enum { SYMBOLS = sizeof symbols / sizeof symbols[0] };
/* What the library does without. Written here, since a row that calls a function optional by mistake says so twice. */
static const char *const optional[] = {"hipGetDevicePropertiesR0600",
                                       "hipGetDevicePropertiesR0000",
                                       "hipDeviceGetPCIBusId",
                                       "hipGetErrorName",
                                       "hipGetErrorString",
                                       "hipGetLastError",
                                       "hipMemGetAccess",
                                       "hipMemGetAddressRange",
                                       "hipStreamGetDevice",
                                       "hipStreamIsCapturing",
                                       NULL};

static spawn run;

static void tool(const char *libraries, const char *const *environment, const char *const *commands) {
    spawn_tool(&run, TOOL, libraries, environment, commands);
    assert_int_equal(run.exit_status, 0);
}

static int system_has_hip(void) {
    return spawn_system_has("libamdhip64.so.8") || spawn_system_has("libamdhip64.so.7") ||
           spawn_system_has("libamdhip64.so.6") || spawn_system_has("libamdhip64.so.5");
}

static void present(void **state) {
    (void)state;
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0", "open hip 0"));
    assert_string_equal(run.out, MI300_TEXT "\n" MI300_TEXT "\n");
    assert_string_equal(run.log, "hip7:hipInit\n" ASK ASK);
}

static void absent(void **state) {
    (void)state;
    if (system_has_hip()) skip();
    tool(FAKES "/none", NOTHING, LIST("open hip 0", "open hip 0"));
    assert_string_equal(
        spawn_line(run.out, 0),
        "STW_E_NO_DRIVER hip: no driver: libamdhip64.so.8: cannot open shared object file: No such file "
        "or directory; libamdhip64.so.7: cannot open shared object file: No such file or directory; "
        "libamdhip64.so.6: cannot open shared object file: No such file or directory; "
        "libamdhip64.so.5: cannot open shared object file: No such file or directory");
    char first[1024];
    snprintf(first, sizeof first, "%s", spawn_line(run.out, 0));
    assert_string_equal(spawn_line(run.out, 1), first);
}

/* A moment without descriptors is no missing runtime: the next open finds it. */
static void no_descriptor_for_a_moment(void **state) {
    (void)state;
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X),
         LIST("descriptors 0", "open hip 0", "descriptors 64", "open hip 0"));
    assert_non_null(strstr(spawn_line(run.out, 0), "libamdhip64.so.7: cannot open shared object file: Too many open "
                                                   "files"));
    assert_string_equal(spawn_line(run.out, 1), MI300_TEXT);
}

static void each_symbol_missing(void **state) {
    (void)state;
    for (int i = 0; i < SYMBOLS; ++i) {
        char libraries[512], text[256], started[128];
        snprintf(libraries, sizeof libraries, FAKES "/hip7-without-%s", symbols[i]);
        tool(libraries, LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0", "open hip 0"));
        snprintf(text, sizeof text,
                 "STW_E_NO_DRIVER hip: libamdhip64.so.7 lacks %s, which this library needs: install a newer "
                 "driver",
                 symbols[i]);
        for (int call = 0; call < 2; ++call)
            assert_string_equal(spawn_line(run.out, call), !spawn_listed(optional, symbols[i]) ? text : MI300_TEXT);
        snprintf(started, sizeof started, "hip7-without-%s:hipInit", symbols[i]);
        assert_int_equal(spawn_count(run.log, started), !spawn_listed(optional, symbols[i]) ? 0 : 1);
        if (!spawn_listed(optional, symbols[i])) assert_string_equal(run.log, "");
    }
}

static void fail_once(const char *libraries, const char *function, int nth, int code, const char *status,
                      const char *words) {
    char plan[128], text[256];
    if (nth) snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d:%d", function, code, nth);
    else snprintf(plan, sizeof plan, "FAKE_FAIL=%s:%d", function, code);
    tool(libraries, LIST("FAKE_HIP_DEVICES=" MI300X, plan),
         LIST("open hip 0", "setenv FAKE_LOG /dev/null", "setenv FAKE_FAIL", "open hip 0"));
    snprintf(text, sizeof text, "%s hip: %s failed: %s", status, function, words);
    assert_string_equal(spawn_line(run.out, 0), text);
    if (!strstr(libraries, "hip5")) assert_string_equal(spawn_line(run.out, 1), MI300_TEXT);
    char last[256] = "";
    for (int i = 0; *spawn_line(run.log, i); ++i)
        if (!strstr(spawn_line(run.log, i), "hipGetError") && !strstr(spawn_line(run.log, i), "hipGetLastError"))
            snprintf(last, sizeof last, "%s", spawn_line(run.log, i));
    assert_string_equal(strchr(last, ':') + 1, function);
    if (nth) assert_int_equal(spawn_count(run.log, last), nth);
}

static void each_call_failing(void **state) {
    (void)state;
    static const struct {
        const char *folder, *function;
    } calls[] = {{"hip7", "hipInit"},
                 {"hip7", "hipRuntimeGetVersion"},
                 {"hip7", "hipGetDeviceCount"},
                 {"hip7", "hipDeviceGetName"},
                 {"hip7", "hipDeviceGetAttribute"},
                 {"hip7", "hipDeviceTotalMem"},
                 {"hip7", "hipGetDevicePropertiesR0600"},
                 {"hip6-r0000", "hipGetDevicePropertiesR0000"},
                 {"hip5", "hipDeviceGetPCIBusId"}};
    size_t count = sizeof calls / sizeof calls[0];
    int of_open = 0; /* the table's first rows, up to those of test_hip_calls.c */
    while (of_open < SYMBOLS && strcmp(symbols[of_open], "hipGetLastError")) ++of_open;
    assert_int_equal(count + 2, of_open); /* all of them but the two that make texts */
    for (size_t i = 0; i < count; ++i) {
        char libraries[512];
        snprintf(libraries, sizeof libraries, FAKES "/%s", calls[i].folder);
        fail_once(libraries, calls[i].function, 0, 999, i ? "STW_E_DRIVER" : "STW_E_NO_DRIVER",
                  "hipErrorUnknown (999): unknown error");
        fail_once(libraries, calls[i].function, 0, 2, "STW_E_NO_MEMORY", "hipErrorOutOfMemory (2): out of memory");
        fail_once(libraries, calls[i].function, 0, 100, "STW_E_NO_DEVICE",
                  "hipErrorNoDevice (100): no ROCm-capable device is detected");
    }
    for (int nth = 1; nth <= 2; ++nth)
        fail_once(FAKES "/hip7", "hipDeviceGetAttribute", nth, 999, "STW_E_DRIVER",
                  "hipErrorUnknown (999): unknown error");
}

/* ROCm 6 and 7 by R0600, a runtime with R0000 only by its layout, ROCm 5 by the kernel driver. */
static void versions(void **state) {
    (void)state;
    tool(FAKES "/hip6", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0"));
    assert_string_equal(run.out, MI300_TEXT "\n");
    assert_int_equal(spawn_count(run.log, "hip6:hipGetDevicePropertiesR0600"), 1);
    tool(FAKES "/hip6-r0000", LIST("FAKE_HIP_DEVICES=" MI250X ";" MI300X), LIST("open hip 0", "open hip 1"));
    assert_string_equal(spawn_line(run.out, 0),
                        "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI250X\" is gfx90a; " NO_KERNELS);
    assert_string_equal(spawn_line(run.out, 1),
                        "STW_E_NO_IMAGE hip: device 1 \"AMD Instinct MI300X\" is gfx942; " NO_KERNELS);
    assert_int_equal(spawn_count(run.log, "hip6-r0000:hipGetDevicePropertiesR0000"), 2);
    tool(FAKES "/hip5", LIST("FAKE_HIP_DEVICES=nowhere|gfx90a|1|1|1|ffff:ff:1f.7"), LIST("open hip 0"));
    assert_string_equal(run.out, "STW_E_DRIVER hip: the runtime's device at PCI address \"ffff:ff:1f.7\" is not in "
                                 "/sys/class/kfd\n");
    tool(FAKES "/hip5-blind", LIST("FAKE_HIP_DEVICES=" MI250X), LIST("open hip 0"));
    assert_string_equal(run.out, "STW_E_NO_DRIVER hip: this runtime has none of hipGetDevicePropertiesR0600, "
                                 "hipGetDevicePropertiesR0000 and hipDeviceGetPCIBusId: install a newer ROCm\n");
    tool(NULL, NOTHING,
         LIST("at-pci " FIXTURES "/mi250x 0000:c6:00.0", "at-pci " FIXTURES "/mi300x-x8 0000:e5:00.0",
              "at-pci " FIXTURES "/mi300x-x8 0000:c1:00.0", "at-pci " FIXTURES "/broken-numbers 0000:00:00.0"));
    assert_string_equal(spawn_line(run.out, 0), "STW_OK gfx90a");
    assert_string_equal(spawn_line(run.out, 1), "STW_OK gfx942");
    assert_string_equal(spawn_line(run.out, 2), "STW_E_DRIVER hip: the runtime's device at PCI address "
                                                "\"0000:c1:00.0\" is not in /sys/class/kfd");
    assert_string_equal(spawn_line(run.out, 3), "STW_E_DRIVER hip: the kernel driver has no gfx_target_version for the "
                                                "device at \"0000:00:00.0\"");
}

/* The newest runtime on the system, but one of any version that the program already uses wins. */
static void which_library(void **state) {
    (void)state;
    static const char all[] = FAKES "/hip5:" FAKES "/hip6:" FAKES "/hip7";
    tool(all, LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0"));
    assert_int_equal(spawn_count(run.log, "hip7:hipInit"), 1);
    tool(all, LIST("FAKE_HIP_DEVICES=" MI300X), LIST("preload " FAKES "/hip6/libamdhip64.so.6", "open hip 0"));
    assert_string_equal(run.out, "preload done\n" MI300_TEXT "\n");
    assert_int_equal(spawn_count(run.log, "hip6:hipInit"), 1);
    assert_int_equal(spawn_count(run.log, "hip7:hipInit"), 0);
    if (system_has_hip()) skip();
    tool(FAKES "/none", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("chdir " FAKES "/hip7", "open hip 0"));
    assert_non_null(strstr(run.out, "STW_E_NO_DRIVER hip: no driver: "));
    assert_string_equal(run.log, "");
}

static void devices_and_ordinals(void **state) {
    (void)state;
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI250X ";" RX7900 ";strange|AMD Radeon|1|1|1|0000:00:00.0"),
         LIST("open hip 0", "open hip 1", "open hip 2", "open hip 3", "open hip -1"));
    static const char *const lines[] = {
        "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI250X\" is gfx90a; " NO_KERNELS,
        "STW_E_NO_IMAGE hip: device 1 \"Radeon RX 7900 XTX\" is gfx1100, which this library has no kernels "
        "for; archs: "
        "gfx90a, gfx942, gfx950 (images in this build: none)",
        "STW_E_DRIVER hip: device 2: hipGetDevicePropertiesR0600 gave no gfx name where its struct has one",
        "STW_E_NO_DEVICE hip: device 3 does not exist: the runtime shows 3 (0..2)",
        "STW_E_NO_DEVICE hip: device -1 does not exist: the runtime shows 3 (0..2)",
    };
    for (int i = 0; i < 5; ++i) assert_string_equal(spawn_line(run.out, i), lines[i]);
    tool(FAKES "/hip7", NOTHING,
         LIST("open hip 0", "open hip 0", "setenv FAKE_HIP_DEVICES a|gfx942|1|1|1", "open hip 0"));
    assert_string_equal(spawn_line(run.out, 0),
                        "STW_E_NO_DEVICE hip: hipInit failed: hipErrorInvalidDevice (101): invalid device ordinal");
    assert_string_equal(
        spawn_line(run.out, 1),
        "STW_E_NO_DEVICE hip: hipInit failed: hipErrorNoDevice (100): no ROCm-capable device is detected");
    assert_string_equal(spawn_line(run.out, 2), "STW_E_NO_IMAGE hip: device 0 \"a\" is gfx942; " NO_KERNELS);
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI250X), LIST("open hip 0", "setenv FAKE_HIP_DEVICES", "open hip 0"));
    assert_string_equal(spawn_line(run.out, 1), "STW_E_NO_DEVICE hip: the runtime shows no device");
}

/* The runtime hides and numbers devices; the library asks it and no one else. */
static void visible_devices(void **state) {
    (void)state;
#define ALL "FAKE_HIP_DEVICES=" MI300X ";" MI250X ";" RX7900
    tool(FAKES "/hip7", LIST(ALL, "HIP_VISIBLE_DEVICES=1"), LIST("open hip 0", "open hip 1"));
    assert_string_equal(spawn_line(run.out, 0),
                        "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI250X\" is gfx90a; " NO_KERNELS);
    assert_string_equal(spawn_line(run.out, 1),
                        "STW_E_NO_DEVICE hip: device 1 does not exist: the runtime shows 1 (0..0)");
    tool(FAKES "/hip7", LIST(ALL, "ROCR_VISIBLE_DEVICES=2,0"), LIST("open hip 1", "open hip 0", "open hip 2"));
    assert_string_equal(spawn_line(run.out, 0),
                        "STW_E_NO_IMAGE hip: device 1 \"AMD Instinct MI300X\" is gfx942; " NO_KERNELS);
    assert_non_null(strstr(spawn_line(run.out, 1), "\"Radeon RX 7900 XTX\" is gfx1100, which this library has no"));
    assert_non_null(strstr(spawn_line(run.out, 2), "the runtime shows 2 (0..1)"));
    tool(FAKES "/hip7", LIST(ALL, "ROCR_VISIBLE_DEVICES=2,0", "HIP_VISIBLE_DEVICES=1"), LIST("open hip 0"));
    assert_string_equal(run.out, MI300_TEXT "\n");
    tool(FAKES "/hip7", LIST(ALL, "HIP_VISIBLE_DEVICES=-1"), LIST("open hip 0"));
    assert_non_null(strstr(run.out, "STW_E_NO_DEVICE hip: hipInit failed: hipErrorInvalidDevice (101)"));
    /* the list of devices has the same numbers */
    static const struct {
        const char *first, *second, *lines[2];
    } rows[] = {
        {"HIP_VISIBLE_DEVICES=2,0", "X=", {"hip|0|gfx942|0|206141652992|GPU-3cbe833e424dbe8b", "hip|1|gfx942|0|"}},
        {"CUDA_VISIBLE_DEVICES=1",
         "HIP_VISIBLE_DEVICES=",
         {"hip|0|gfx942|0|206141652992|GPU-3cbe41b50b01f7e4", "last"}},
        {"ROCR_VISIBLE_DEVICES=GPU-3cbec4c779998532",
         "HIP_VISIBLE_DEVICES=0",
         {"hip|0|gfx942|0|206141652992|GPU-3cbec4c779998532", "last"}},
        {"ROCR_VISIBLE_DEVICES=", "X=", {"last", ""}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        tool(FAKES "/none", LIST("FAKE_KFD_ROOT=" FIXTURES "/mi300x-x8", rows[i].first, rows[i].second),
             LIST("devices"));
        for (int line = 0; line < 2; ++line)
            assert_int_equal(strncmp(spawn_line(run.out, line), rows[i].lines[line], strlen(rows[i].lines[line])), 0);
    }
    /* ROCm 5: the address, not the number, leads to the kernel driver's entry */
    tool(FAKES "/hip5",
         LIST("FAKE_HIP_DEVICES=a|?|1|1|1|0000:43:00.0;b|?|1|1|1|0000:0c:00.0", "HIP_VISIBLE_DEVICES=1,0",
              "FAKE_KFD_ROOT=" FIXTURES "/mixed"),
         LIST("open hip 0", "open hip 1"));
    assert_non_null(strstr(spawn_line(run.out, 0), "STW_E_NO_IMAGE hip: device 0 \"b\" is gfx1100, "));
    assert_string_equal(spawn_line(run.out, 1), "STW_E_NO_IMAGE hip: device 1 \"a\" is gfx90a; " NO_KERNELS);
}

static void forced_arch(void **state) {
    (void)state;
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI250X), LIST("open hip 0 sm80", "open hip 0 gfx1100"));
    assert_string_equal(run.out,
                        "STW_E_INVALID hip: arch \"sm80\" is no HIP arch; accepted: gfx90a, gfx942, gfx950\n"
                        "STW_E_INVALID hip: arch \"gfx1100\" is no HIP arch; accepted: gfx90a, gfx942, gfx950\n");
    assert_string_equal(run.log, "");
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI250X), LIST("open hip 0 gfx942", "open hip 0 gfx90a"));
    assert_string_equal(spawn_line(run.out, 0), "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI250X\" is gfx90a, which "
                                                "does not run gfx942 kernels; accepted: gfx90a");
    assert_string_equal(spawn_line(run.out, 1),
                        "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI250X\" is gfx90a; " NO_KERNELS);
}

static void fork_and_threads(void **state) {
    (void)state;
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0", "fork", "open hip 0"));
    assert_non_null(strstr(spawn_line(run.out, 1), "STW_E_FORKED hip: process "));
    assert_string_equal(run.log, "hip7:hipInit\n" ASK);
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("fork", "open hip 0"));
    assert_string_equal(run.out, MI300_TEXT "\nchild 0\n");
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("threads hip"));
    assert_string_equal(run.out, "all " MI300_TEXT "\n");
    assert_int_equal(spawn_count(run.log, "hip7:hipInit"), 1);
}

/* Both vendors in one process: neither touches the other's driver, and a child of one may use the other. */
static void mixed_vendors(void **state) {
    (void)state;
    static const char both[] = FAKES "/hip7:" FAKES "/cuda";
    tool(both, LIST("FAKE_HIP_DEVICES=" MI300X, "FAKE_CUDA_DEVICES=NVIDIA H200|9.0|132|232448|150754820096"),
         LIST("open hip 0", "fork", "open cuda 0", "open hip 0"));
    assert_string_equal(spawn_line(run.out, 0), MI300_TEXT);
    assert_string_equal(spawn_line(run.out, 1), "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA H200\" is sm90; this build "
                                                "holds no CUDA kernels for it (images in this build: none)");
    assert_non_null(strstr(spawn_line(run.out, 2), "STW_E_FORKED hip:"));
    assert_int_equal(spawn_count(run.log, "cuda:cuInit"), 1);
    assert_int_equal(spawn_count(run.log, "hip7:hipInit"), 1);
    tool(FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0"));
    assert_null(strstr(run.log, "cuda"));
}

static void open_with_images(void **state) {
    (void)state;
    spawn_tool(&run, TOOL_IMAGES, FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X ";" MI250X),
               LIST("open hip 0", "open hip 1", "open hip 0 gfx942"));
    assert_int_equal(run.exit_status, 0);
    assert_string_equal(spawn_line(run.out, 0), "STW_OK gfx942|AMD Instinct MI300X|304|65536|206141652992");
    assert_string_equal(
        spawn_line(run.out, 1),
        "STW_E_NO_IMAGE hip: device 1 \"AMD Instinct MI250X\" is gfx90a; this build holds no HIP kernels "
        "for it (images in this build: sm80 cubin, sm80 ptx, sm90 cubin, gfx942 code object)");
    assert_string_equal(spawn_line(run.out, 2), "STW_OK gfx942|AMD Instinct MI300X|304|65536|206141652992");
}

/* A runtime whose headers nobody has read is used where it says the same of memory from hipMalloc. */
static void newer_runtime(void **state) {
    (void)state;
    static const char opened[] = "STW_OK gfx942|AMD Instinct MI300X|304|65536|206141652992";
    spawn_tool(&run, TOOL_IMAGES, FAKES "/hip8", LIST("FAKE_HIP_DEVICES=" MI300X, "FAKE_HIP_VERSION=80012345"),
               LIST("open hip 0"));
    assert_string_equal(spawn_line(run.out, 0), opened);
    assert_int_equal(spawn_count(run.log, "hip8:hipMalloc"), 1);
    assert_int_equal(spawn_count(run.log, "hip8:hipFree"), 1);
    spawn_tool(&run, TOOL_IMAGES, FAKES "/hip8",
               LIST("FAKE_HIP_DEVICES=" MI300X, "FAKE_HIP_VERSION=80012345", "FAKE_HIP_POINTER_TYPE=3"),
               LIST("open hip 0", "setenv FAKE_HIP_POINTER_TYPE 2", "open hip 0"));
    assert_string_equal(spawn_line(run.out, 0),
                        "STW_E_NO_DRIVER hip: runtime version 80012345 is newer than ROCm 7, and "
                        "hipPointerGetAttributes says type 3, device 0, flags 0x0 of memory from hipMalloc on device "
                        "0: this library reads ROCm 5 to 7 and what agrees with them");
    assert_string_equal(spawn_line(run.out, 1), opened);
    assert_int_equal(spawn_count(run.log, "hip8:hipFree"), 2);
    spawn_tool(&run, TOOL_IMAGES, FAKES "/hip8",
               LIST("FAKE_HIP_DEVICES=a|gfx942|65536|304|1|0000:05:00.0", "FAKE_HIP_VERSION=80012345"),
               LIST("open hip 0"));
    assert_string_equal(
        spawn_line(run.out, 0),
        "STW_E_NO_DRIVER hip: runtime version 80012345 is newer than ROCm 7, and hipDeviceGetAttribute "
        "says 65536 CUs and 304 bytes of LDS: this library reads ROCm 5 to 7 and what agrees with them");
    static const char *const calls[] = {"hipMalloc", "hipPointerGetAttributes", "hipMemcpyAsync",
                                        "hipStreamSynchronize"};
    for (int i = 0; i < 4; ++i) {
        char plan[64];
        snprintf(plan, sizeof plan, "FAKE_FAIL=%s:999", calls[i]);
        spawn_tool(&run, TOOL_IMAGES, FAKES "/hip8",
                   LIST("FAKE_HIP_DEVICES=" MI300X, "FAKE_HIP_VERSION=80012345", plan), LIST("open hip 0"));
        assert_non_null(strstr(spawn_line(run.out, 0), "STW_E_DRIVER hip: hip"));
    }
    spawn_tool(&run, TOOL_IMAGES, FAKES "/hip7", LIST("FAKE_HIP_DEVICES=" MI300X), LIST("open hip 0"));
    assert_int_equal(spawn_count(run.log, "hip7:hipMalloc"), 0); /* nothing to prove */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(present),
        cmocka_unit_test(absent),
        cmocka_unit_test(no_descriptor_for_a_moment),
        cmocka_unit_test(each_symbol_missing),
        cmocka_unit_test(each_call_failing),
        cmocka_unit_test(versions),
        cmocka_unit_test(which_library),
        cmocka_unit_test(devices_and_ordinals),
        cmocka_unit_test(visible_devices),
        cmocka_unit_test(forced_arch),
        cmocka_unit_test(fork_and_threads),
        cmocka_unit_test(mixed_vendors),
        cmocka_unit_test(open_with_images),
        cmocka_unit_test(newer_runtime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
