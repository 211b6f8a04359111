/* SPDX-License-Identifier: MIT
 *
 * What looks wrong in a report, and what to do about it (doctor.h). Read from the document alone. */
#include "doctor.h"

#include "common/arch.h"
#include "common/env.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *part(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

static int is_true(const cJSON *row, const char *key) { return cJSON_IsTrue(part(row, key)); }

__attribute__((format(printf, 3, 4))) static void find(cJSON *findings, const char *advice, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "what", text);
    cJSON_AddStringToObject(row, "advice", advice);
    cJSON_AddItemToArray(findings, row);
}

static void judge_build(cJSON *findings, const cJSON *info) {
    const cJSON *row;
    uint32_t v = stw_version();
    if (v != STW_VERSION)
        find(findings, "mend LD_LIBRARY_PATH, or install both of one version",
             "the library is %u.%u.%u, the command was built for another version", v / 10000, v / 100 % 100, v % 100);
    cJSON_ArrayForEach(row, part(info, "images")) if (!is_true(row, "intact"))
        find(findings, "install the library again", "the image %s %s of %s is damaged", stw_tool_json_text(row, "arch"),
             stw_tool_json_text(row, "kind"), stw_tool_json_text(row, "ops"));
}

static void judge_environment(cJSON *findings, const cJSON *report) {
    const cJSON *row;
    const char *devices = stw_tool_json_text(report, "devices_error");
    if (devices[0]) find(findings, "mend what the text names", "the devices could not be listed: %s", devices);
    const char *error = stw_tool_json_text(part(report, "info"), "environment_error");
    if (error[0]) find(findings, "correct the variable or unset it", "the environment is refused: %s", error);
    cJSON_ArrayForEach(row, part(report, "unknown_variables"))
        find(findings, "correct its name or unset it", "%s", row->valuestring);
}

static int has_device(const cJSON *info, const char *backend) {
    const cJSON *row;
    cJSON_ArrayForEach(row, part(info, "devices")) if (!strcmp(stw_tool_json_text(row, "backend"), backend)) return 1;
    return 0;
}

/* GPUs that no build has kernels for are in many machines beside one that is used. */
static int is_foreign(const cJSON *info, const char *backend, const char *arch) {
    const cJSON *row;
    if (!strcmp(backend, "cuda")) return arch[0] && atoi(arch + 2) < 80;
    cJSON_ArrayForEach(row, part(info, "archs")) if (!strcmp(stw_tool_json_text(row, "name"), arch)) return 0;
    return arch[0] != 0;
}

/* A driver that is broken is told once, not again for each of its devices. Returns whether it is. */
static int judge_driver(cJSON *findings, const cJSON *info, const cJSON *driver) {
    const char *backend = stw_tool_json_text(driver, "backend"), *note = stw_tool_json_text(driver, "note");
    int cuda = !strcmp(backend, "cuda"), found = stw_tool_json_text(driver, "library")[0] != 0;
    if (is_true(driver, "usable")) return 0;
    if (found) {
        find(findings,
             cuda ? "install a driver that \"made by CUDA\" above asks for, or build with an older CUDA"
                  : "install ROCm's runtime again",
             "the driver library of %s is not usable: %s", backend, note);
        return 1;
    }
    if (!has_device(info, backend) && !stw_tool_json_text(driver, "kernel_module")[0]) return 0;
    find(findings,
         cuda ? "install libcuda.so.1 of the kernel module's version; in a container let its runtime bring it (--gpus "
                "all)"
              : "install ROCm's runtime (libamdhip64) or name its folder in LD_LIBRARY_PATH",
         "there is a GPU of %s and no driver library: %s", backend, note);
    return 1;
}

static void judge_devices(cJSON *findings, const cJSON *info, const char *backend, int gpu_chosen) {
    const cJSON *row;
    cJSON_ArrayForEach(row, part(info, "devices")) {
        const char *arch = stw_tool_json_text(row, "arch");
        if (strcmp(stw_tool_json_text(row, "backend"), backend) || is_true(row, "usable")) continue;
        int foreign = is_foreign(info, backend, arch);
        if (gpu_chosen && (foreign || !arch[0])) continue; /* "": known once a driver runs */
        find(findings,
             foreign
                 ? "nothing: docs/features.md lists the GPUs that there are kernels for; the CPU computes here"
                 : "build with the images of this GPU (STERNWAY_ARCHS, docs/building.md) or mend what the text names",
             "%s %.0f, %s, is not usable: %s", backend, stw_tool_json_number(row, "device"),
             stw_tool_json_text(row, "name")[0] ? stw_tool_json_text(row, "name") : arch,
             stw_tool_json_text(row, "note"));
    }
}

/* A GPU that is listed as usable and that no context can be had of. */
static void judge_backend(cJSON *findings, const cJSON *report, const char *backend) {
    const cJSON *row, *device;
    int usable = 0;
    cJSON_ArrayForEach(device, part(part(report, "info"), "devices")) usable |=
        !strcmp(stw_tool_json_text(device, "backend"), backend) && is_true(device, "usable");
    cJSON_ArrayForEach(row, part(part(report, "explain"),
                                 "backends")) if (usable && !strcmp(stw_tool_json_text(row, "backend"), backend))
        find(findings, "mend what the text names; the kernel's log (dmesg) may say more of the driver",
             "%s has a usable GPU and is not chosen: %s", backend, stw_tool_json_text(row, "reason"));
}

static void judge_files(cJSON *findings, const cJSON *report) {
    const cJSON *row;
    cJSON_ArrayForEach(row, part(part(report, "system"), "device_files")) {
        const char *path = stw_tool_json_text(row, "path"), *state = stw_tool_json_text(row, "state");
        if (!is_true(row, "exists") || !strcmp(state, "open to this user")) continue;
        if (strstr(path, "dri") && !has_device(part(report, "info"), "hip")) continue; /* of any maker's display */
        find(findings, "join the groups that own it, as a rule render and video; in a container pass it with --device",
             "%s cannot be opened: %s", path, state);
    }
}

/* Nothing of GPUs is wrong where the environment asks for the CPU. */
static void judge_gpus(cJSON *findings, const cJSON *report) {
    const cJSON *info = part(report, "info"), *driver;
    const char *chosen = stw_tool_json_text(part(report, "explain"), "chosen");
    int gpu_chosen = chosen[0] && strcmp(chosen, "cpu");
    stw_env env;
    if (stw_env_read(&env) || env.backend == STW_BACKEND_CPU) return;
    judge_files(findings, report);
    cJSON_ArrayForEach(driver, part(info, "drivers")) {
        const char *backend = stw_tool_json_text(driver, "backend");
        if (env.backend != STW_BACKEND_AUTO && strcmp(stw_backend_name(env.backend), backend)) continue;
        if (judge_driver(findings, info, driver)) continue;
        judge_devices(findings, info, backend, gpu_chosen);
        if (!gpu_chosen) judge_backend(findings, report, backend);
    }
}

static void judge_choice(cJSON *findings, const cJSON *report) {
    const char *error = stw_tool_json_text(report, "explain_error");
    const cJSON *explain = part(report, "explain");
    if (part(part(report, "info"), "environment_error")) return; /* told already */
    if (error[0])
        find(findings, "mend the driver; STERNWAY_BACKEND=cpu goes without it", "no backend could be asked: %s", error);
    else if (explain && !stw_tool_json_text(explain, "chosen")[0])
        find(findings, "unset STERNWAY_BACKEND, or mend what keeps that backend out",
             "no backend takes a usual problem: the reasons are above");
}

static void judge_tests(cJSON *findings, const cJSON *report) {
    const cJSON *row;
    cJSON_ArrayForEach(row, part(report, "tests")) {
        const char *arch = stw_tool_json_text(row, "arch"), *error = stw_tool_json_text(row, "error");
        int failed = (int)stw_tool_json_number(row, "failed");
        if (error[0])
            find(findings, "mend what the text names", "the self test%s%s did not run: %s", arch[0] ? " on " : "", arch,
                 error);
        if (failed)
            find(findings, "open an issue with this report; `sternway conform` tells more",
                 "%d problem%s of the self test failed on %s", failed, STW_TOOL_S(failed), arch);
    }
}

static void judge_long(cJSON *findings, const cJSON *report) {
    const cJSON *conformance = part(report, "conformance"), *rates = part(report, "rates"), *row;
    const char *error = stw_tool_json_text(conformance, "error");
    int failed = (int)stw_tool_json_number(conformance, "failed");
    if (error[0]) find(findings, "mend what the text names", "the conformance suite did not run: %s", error);
    if (failed)
        find(findings, "open an issue with this report", "%d problem%s of the conformance suite failed on %s", failed,
             STW_TOOL_S(failed), stw_tool_json_text(conformance, "arch"));
    if (stw_tool_json_text(rates, "error")[0])
        find(findings, "mend what the text names", "the timing did not end: %s", stw_tool_json_text(rates, "error"));
    cJSON_ArrayForEach(row, part(rates, "problems")) if (stw_tool_json_text(row, "error")[0])
        find(findings, "open an issue with this report", "%s was not timed: %s", stw_tool_json_text(row, "problem"),
             stw_tool_json_text(row, "error"));
}

void doctor_add_findings(cJSON *report) {
    cJSON *findings = cJSON_AddArrayToObject(report, "findings");
    judge_build(findings, part(report, "info"));
    judge_environment(findings, report);
    judge_gpus(findings, report);
    judge_choice(findings, report);
    judge_tests(findings, report);
    judge_long(findings, report);
}
