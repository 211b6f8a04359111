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

/* The length of the first of `names` that the text begins with, and what stands for it; 0: none. */
static size_t own_word(const stw_tool_device *device, const char *text, char *word, size_t capacity) {
    const struct {
        const char *name, *option, *value;
    } names[] = {{"context_create: ", "", ""},
                 {"opts.backend", "--backend ", device->backend ? device->backend : "auto"},
                 {"opts.arch", "--arch ", device->arch ? device->arch : device->arch_text},
                 {"memory STW_MEMORY_HOST", "--memory host", ""},
                 {"memory STW_MEMORY_DEVICE", "--memory device", ""},
                 {"STW_MEMORY_HOST", "--memory host", ""},
                 {"STW_MEMORY_DEVICE", "--memory device", ""}};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        size_t length = strlen(names[i].name);
        if (strncmp(text, names[i].name, length)) continue;
        snprintf(word, capacity, "%s%s", names[i].option, names[i].value);
        return length;
    }
    return 0;
}

char *stw_tool_own_words(const stw_tool_device *device, const char *text) {
    char *out = NULL, word[96];
    size_t size = 0;
    FILE *to = open_memstream(&out, &size);
    if (!to) return NULL;
    while (*text) {
        size_t length = own_word(device, text, word, sizeof word);
        if (length) fputs(word, to);
        else fputc(*text, to);
        text += length ? length : 1;
    }
    if (fclose(to)) return NULL;
    return out;
}

void stw_tool_library_error(const char *command, const stw_tool_device *device, stw_status status) {
    char *text = stw_tool_own_words(device, stw_last_error());
    stw_tool_error(command, NULL, "%s (%s)", text ? text : stw_last_error(), stw_status_name(status));
    free(text);
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
