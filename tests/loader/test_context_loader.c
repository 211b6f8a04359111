/* SPDX-License-Identifier: MIT
 *
 * The public calls over fake drivers: which backend a context gets, by name, by environment and by memory
 * kind; what explain says of each; forks. */
#include "spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define BOTH   FAKES "/cuda:" FAKES "/hip7"
#define H200   "FAKE_CUDA_DEVICES=NVIDIA H200|9.0|132|232448|150754820096"
#define MI300X "FAKE_HIP_DEVICES=AMD Instinct MI300X|gfx942:sramecc+:xnack-|304|65536|206141652992"
#define H200_TEXT                                                                                                      \
    "cuda: device 0 \"NVIDIA H200\" is sm90; this build holds no CUDA kernels for it (images in this "                 \
    "build: none)"
#define MI300_TEXT                                                                                                     \
    "hip: device 0 \"AMD Instinct MI300X\" is gfx942; this build holds no HIP kernels for it (images in "              \
    "this build: "                                                                                                     \
    "none)"

static spawn run;

static void tool(const char *const *environment, const char *const *commands) {
    spawn_tool(&run, TOOL, BOTH, environment, commands);
    assert_int_equal(run.exit_status, 0);
}

/* A backend asked for by name is never replaced; its own words are the error. */
static void named_backend(void **state) {
    (void)state;
    tool(LIST(H200, MI300X, "STERNWAY_BACKEND=cuda"), LIST("context 3", "context 2"));
    assert_string_equal(run.out, "STW_E_NO_IMAGE " H200_TEXT "\nSTW_E_NO_IMAGE " H200_TEXT "\n");
    assert_null(strstr(run.log, "hip"));
    tool(LIST(H200, MI300X, "STERNWAY_BACKEND=hip"), LIST("context 3"));
    assert_string_equal(run.out, "STW_E_NO_IMAGE " MI300_TEXT "\n");
    assert_null(strstr(run.log, "cu"));
    tool(LIST(H200, MI300X, "STERNWAY_BACKEND=cuda"), LIST("context 3 3")); /* options win */
    assert_string_equal(run.out, "STW_E_NO_IMAGE " MI300_TEXT "\n");
    tool(LIST(H200, MI300X, "STERNWAY_BACKEND=cuda:sm80"), LIST("context 3"));
    assert_string_equal(run.out, "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA H200\" is sm90; this build holds no sm80 CUDA "
                                 "kernels for it (images in this build: none)\n");
    tool(LIST(H200, MI300X, "STERNWAY_BACKEND=hip:gfx90a"), LIST("context 3"));
    assert_string_equal(run.out, "STW_E_NO_IMAGE hip: device 0 \"AMD Instinct MI300X\" is gfx942, which does not run "
                                 "gfx90a kernels; accepted: gfx942\n");
    tool(LIST(H200, "STERNWAY_BACKEND=cuda", "STERNWAY_DEVICE=4"), LIST("context 3"));
    assert_string_equal(run.out, "STW_E_NO_DEVICE cuda: device 4 does not exist: the driver shows 1 (0..0)\n");
}

static void automatic_backend(void **state) {
    (void)state;
    tool(LIST(H200, MI300X), LIST("context 3", "context 1"));
    assert_string_equal(run.out, "STW_OK cpu\nSTW_OK cpu\n");
    assert_int_equal(spawn_count(run.log, "cuda:cuInit"), 1);
    assert_int_equal(spawn_count(run.log, "hip7:hipInit"), 1);
    tool(LIST(H200, MI300X), LIST("context 1")); /* host memory: no GPU is looked at */
    assert_string_equal(run.out, "STW_OK cpu\n");
    assert_string_equal(run.log, "");
    tool(LIST(H200, MI300X, "STERNWAY_BACKEND=cpu"), LIST("context 3"));
    assert_string_equal(run.out, "STW_OK cpu\n");
    assert_string_equal(run.log, "");
    tool(LIST(H200, MI300X), LIST("context 2")); /* device memory: never the CPU, and every reason is told */
    assert_non_null(strstr(run.out, "STW_E_NO_IMAGE "));
    assert_non_null(strstr(run.out, H200_TEXT));
    assert_non_null(strstr(run.out, MI300_TEXT));
}

/* The lines of the library's own log. */
static void logged_by(const char *program, const char *libraries, const char *const *commands, const char *variable,
                      char *text, size_t capacity) {
    char path[] = "/tmp/sternway-log-XXXXXX", file[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(file, sizeof file, "STERNWAY_LOG_FILE=%s", path);
    spawn_tool(&run, program, libraries, LIST(H200, MI300X, file, variable), commands);
    assert_int_equal(run.exit_status, 0);
    ssize_t length = read(fd, text, capacity - 1);
    assert_true(length >= 0);
    text[length] = 0;
    close(fd);
    unlink(path);
}

static void logged(const char *libraries, const char *const *commands, const char *variable, char *text,
                   size_t capacity) {
    logged_by(TOOL, libraries, commands, variable, text, capacity);
}

/* `auto` on the CPU and a variable that nobody reads: a line each in the life of a process. */
static void warnings_are_given_once(void **state) {
    (void)state;
    char text[4096];
    const char *const *three = LIST("context 1", "context 3", "context 3");
    logged(BOTH, three, "STERNWAY_BACKND=cuda", text, sizeof text);
    enum { TIME = 25 }; /* "2026-11-23T09:30:00.250Z " */
    assert_string_equal(spawn_line(text, 0) + TIME, "sternway: warn: environment: STERNWAY_BACKND is unknown; did "
                                                    "you mean STERNWAY_BACKEND?");
    assert_string_equal(spawn_line(text, 1) + TIME,
                        "sternway: warn: context: the CPU backend is used: " H200_TEXT "; " MI300_TEXT
                        " (STERNWAY_BACKEND=cpu asks for it without this line)");
    assert_string_equal(spawn_line(text, 2), "");
    logged(BOTH, three, "STERNWAY_NVCC=none", text, sizeof text);
    assert_string_equal(spawn_line(text, 1), "");
    logged(BOTH, LIST("context 1"), "STERNWAY_NVCC_SERIES=12.9", text, sizeof text); /* no GPU was wanted */
    assert_string_equal(text, "");
    logged(BOTH, three, "STERNWAY_BACKEND=cpu", text, sizeof text);
    assert_string_equal(text, "");
    logged(BOTH, three, "STERNWAY_LOG=error", text, sizeof text);
    assert_string_equal(text, "");
}

/* No driver at all is a reason like any other. */
static void no_driver_is_told(void **state) {
    (void)state;
    char text[4096];
    if (spawn_system_has("libcuda.so.1") || spawn_system_has("libamdhip64.so.7")) skip();
    logged(FAKES "/none", LIST("context 3"), "STERNWAY_LOG=warn", text, sizeof text);
    assert_non_null(strstr(text, "warn: context: the CPU backend is used: cuda: no driver: "));
    assert_string_equal(spawn_line(text, 1), "");
}

/* CUDA fails and HIP opens: `auto` has its GPU, and nothing is to be told. */
static void another_gpu_is_no_warning(void **state) {
    (void)state;
    char text[4096];
    logged_by(TOOL_IMAGES, BOTH, LIST("context 3"), "FAKE_FAIL=cuInit:803", text, sizeof text);
    assert_string_equal(run.out, "STW_OK gfx942\n");
    assert_string_equal(text, "");
}

static void explain_tells_every_reason(void **state) {
    (void)state;
    tool(LIST(H200, MI300X), LIST("explain 3"));
    assert_non_null(strstr(run.out, "cuda: not chosen: " H200_TEXT " (STW_E_NO_IMAGE)\n"));
    assert_non_null(strstr(run.out, "hip: not chosen: " MI300_TEXT " (STW_E_NO_IMAGE)\n"));
    assert_non_null(strstr(run.out, "cpu: chosen\n"));
    tool(LIST(H200, "FAKE_FAIL=cuInit:803"), LIST("explain 3"));
    assert_non_null(strstr(run.out, "cuda: not chosen: cuda: cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"));
    assert_non_null(strstr(run.out, "(STW_E_NO_DRIVER)\n"));
    assert_non_null(strstr(run.out, "hip: not chosen: hip: hipInit failed: hipErrorInvalidDevice (101)"));
    assert_non_null(strstr(run.out, "(STW_E_NO_DEVICE)\n"));
    assert_non_null(strstr(run.out, "cpu: chosen\n"));
}

/* The parent has started both drivers: the child is refused them at once, and the CPU works. */
static void forked_child(void **state) {
    (void)state;
    tool(LIST(H200, MI300X), LIST("context 3", "fork", "setenv FAKE_LOG /dev/full", "context 3", "context 2 2",
                                  "context 2 3", "explain 3"));
    assert_string_equal(spawn_line(run.out, 1), "STW_OK cpu");
    assert_non_null(strstr(spawn_line(run.out, 2), "STW_E_FORKED cuda: process "));
    assert_non_null(strstr(spawn_line(run.out, 3), "STW_E_FORKED hip: process "));
    assert_non_null(strstr(run.out, "(STW_E_FORKED)\n"));
    assert_non_null(strstr(run.out, "cpu: chosen\n"));
    assert_non_null(strstr(run.out, "child 0\n")); /* a driver call in the child would have ended it: /dev/full */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_backend),
        cmocka_unit_test(automatic_backend),
        cmocka_unit_test(warnings_are_given_once),
        cmocka_unit_test(no_driver_is_told),
        cmocka_unit_test(another_gpu_is_no_warning),
        cmocka_unit_test(explain_tells_every_reason),
        cmocka_unit_test(forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
