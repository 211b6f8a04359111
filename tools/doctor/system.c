/* SPDX-License-Identifier: MIT
 *
 * What the system has that the backends need (doctor.h): kernel, C library, processor, memory, the files of the
 * devices and the libraries beside the drivers. Neither the host's name nor the user's is asked for. */
#include "doctor.h"

#include "common/cores.h"
#include "common/env.h"
#include "tools/conform/conform.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

/* The first line of the file that begins with `key`, behind it and what `skip` names, without quotes. */
static void read_line(const char *path, const char *key, const char *skip, char *out, size_t capacity) {
    char line[512];
    FILE *file = fopen(path, "re");
    out[0] = 0;
    while (file && !out[0] && fgets(line, sizeof line, file)) {
        const char *value = line + strlen(key);
        if (strncmp(line, key, strlen(key))) continue;
        value += strspn(value, skip);
        snprintf(out, capacity, "%.*s", (int)strcspn(value, "\"\n"), value);
    }
    if (file) fclose(file);
}

static void add_files(cJSON *system) {
    static const char *const paths[] = {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/kfd",
                                        "/dev/dri/renderD128"};
    cJSON *rows = cJSON_AddArrayToObject(system, "device_files");
    for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
        int refused = access(paths[i], R_OK | W_OK) ? errno : 0;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "path", paths[i]);
        cJSON_AddStringToObject(row, "state", !refused ? "open to this user" : strerror(refused));
        cJSON_AddBoolToObject(row, "exists", !refused || refused != ENOENT);
        cJSON_AddItemToArray(rows, row);
    }
}

/* Loaded like the drivers (tools/info/drivers.c), and not closed for the same reason. */
static void add_libraries(cJSON *system) {
    static const char *const names[] = {"libnvidia-ml.so.1", "libhsa-runtime64.so.1"};
    cJSON *rows = cJSON_AddArrayToObject(system, "libraries");
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        cJSON *row = cJSON_CreateObject();
        const char *error = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL) ? NULL : dlerror();
        cJSON_AddStringToObject(row, "name", names[i]);
        cJSON_AddBoolToObject(row, "found", !error);
        cJSON_AddStringToObject(row, "note", error ? error : "");
        cJSON_AddItemToArray(rows, row);
    }
}

void doctor_add_system(cJSON *report) {
    cJSON *system = cJSON_AddObjectToObject(report, "system");
    struct utsname names;
    char text[300];
    int known = !uname(&names);
    snprintf(text, sizeof text, "%s %s %s", known ? names.sysname : "", known ? names.release : "",
             known ? names.machine : "");
    cJSON_AddStringToObject(system, "kernel", text);
    read_line("/etc/os-release", "PRETTY_NAME", "=\"", text, sizeof text);
    cJSON_AddStringToObject(system, "distribution", text);
#if defined(__GLIBC__)
    snprintf(text, sizeof text, "glibc %s", gnu_get_libc_version());
#else
    snprintf(text, sizeof text, "not glibc");
#endif
    cJSON_AddStringToObject(system, "libc", text);
    read_line("/proc/cpuinfo", "model name", "\t :", text, sizeof text);
    cJSON_AddStringToObject(system, "cpu", text);
    cJSON_AddNumberToObject(system, "cores_allowed", (double)stw_cores_allowed());
    cJSON_AddNumberToObject(system, "memory_bytes", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    cJSON_AddNumberToObject(system, "memory_available_bytes", conform_memory());
    add_files(system);
    add_libraries(system);
}

void doctor_add_unknown_variables(cJSON *report) {
    cJSON *rows = cJSON_AddArrayToObject(report, "unknown_variables");
    char text[256];
    size_t index = 0;
    for (;;) {
        stw_text line = stw_text_in(text, sizeof text);
        if (!stw_env_unknown_here(&index, &line)) return;
        cJSON_AddItemToArray(rows, cJSON_CreateString(text));
    }
}
