/* SPDX-License-Identifier: MIT
 *
 * --backend and --arch of the subcommands, what a plan says of itself, and the version of a driver (tool.h). */
#include "tool.h"

#include "common/env.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int stw_tool_device_opts(const char *command, stw_tool_device *device) {
    char from_backend[32] = "";
    if (device->backend && stw_env_parse_backend("--backend", device->backend, &device->opts.backend, from_backend)) {
        stw_tool_error(command, NULL, "%s", stw_tool_last_error());
        return STW_EXIT_USAGE;
    }
    if (device->arch && from_backend[0] && strcmp(device->arch, from_backend)) {
        stw_tool_error(command, NULL, "--backend %s and --arch %s name different archs", device->backend, device->arch);
        return STW_EXIT_USAGE;
    }
    if (device->arch && strlen(device->arch) >= sizeof device->arch_text) {
        stw_tool_error(command, NULL, "--arch %.40s... is not the name of an arch", device->arch);
        return STW_EXIT_USAGE;
    }
    snprintf(device->arch_text, sizeof device->arch_text, "%s", device->arch ? device->arch : from_backend);
    device->opts.struct_size = sizeof device->opts;
    device->opts.arch = device->arch_text[0] ? device->arch_text : NULL;
    return STW_EXIT_OK;
}

void stw_tool_plan_field(const char *describe, const char *key, char *out, size_t capacity) {
    size_t length = strlen(key);
    out[0] = 0;
    for (const char *line = describe; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : line) {
        if (strncmp(line, key, length) || strncmp(line + length, ": ", 2)) continue;
        const char *value = line + length + 2;
        snprintf(out, capacity, "%.*s", (int)(strchrnul(value, '\n') - value), value);
        return;
    }
}

char *stw_tool_plan_text(const stw_plan *plan) {
    size_t needed = 0;
    if (stw_plan_describe(plan, NULL, 0, &needed)) return NULL;
    char *text = calloc(1, needed + 1);
    if (text && stw_plan_describe(plan, text, needed, NULL)) {
        free(text);
        text = NULL;
    }
    return text;
}

/* The first word of the file that is made of digits and dots and holds a dot: "580.95.05". */
static void read_driver_version(const char *path, char *out, size_t capacity) {
    char text[400] = "";
    FILE *file = fopen(path, "re");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    out[0] = 0;
    text[size] = 0;
    for (char *save, *word = strtok_r(text, " \t\n", &save); word && !out[0]; word = strtok_r(NULL, " \t\n", &save))
        if (strchr(word, '.') && isdigit((unsigned char)word[0]) && strspn(word, "0123456789.") == strlen(word))
            snprintf(out, capacity, "%s", word);
}

void stw_tool_driver_of(const char *backend, char *out, size_t capacity) {
    out[0] = 0;
    if (!strcmp(backend, "cuda")) read_driver_version("/proc/driver/nvidia/version", out, capacity);
    else if (!strcmp(backend, "hip")) read_driver_version("/sys/module/amdgpu/version", out, capacity);
}
