/* SPDX-License-Identifier: MIT
 *
 * The driver libraries that the backends would load (info.h): which file the system's search finds, its
 * version, and why it would not do. They are loaded, as every context does, but nothing of them is started.
 */
#include "info.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct driver {
    const char *backend;
    const char *sonames[5]; /* in the order of backends/<backend>/driver.c */
} driver;

static const driver drivers[] = {
    {"cuda", {"libcuda.so.1"}},
    {"hip", {"libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}}};

static void *open_first(const driver *d, const char **soname_out, char why[600]) {
    size_t used = 0;
    why[0] = 0;
    for (int i = 0; d->sonames[i]; ++i) {
        void *library = dlopen(d->sonames[i], RTLD_LAZY | RTLD_LOCAL);
        const char *error = library ? NULL : dlerror();
        *soname_out = d->sonames[i];
        if (library) {
            why[0] = 0;
            return library;
        }
        int n = snprintf(why + used, 600 - used, "%s%s", used ? "; " : "", error ? error : "cannot be loaded");
        used = used + (size_t)n < 600 ? used + (size_t)n : 599;
    }
    return NULL;
}

/* The file behind the name, links resolved; its name often ends in the version. */
static void find_file(void *library, char path[4096]) {
    struct link_map *map = NULL;
    path[0] = 0;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) || !map || !map->l_name[0]) return;
    if (!realpath(map->l_name, path)) snprintf(path, 4096, "%s", map->l_name);
}

static const char *version_in_name(const char *path) {
    const char *mark = strstr(strrchr(path, '/') ? strrchr(path, '/') : path, ".so.");
    return mark && strchr(mark + 4, '.') ? mark + 4 : "";
}

/* cuDriverGetVersion works before cuInit. HIP's own would start the runtime: the file's name must do. */
static int cuda_of(void *library) {
    int (*get)(int *) = NULL, version = 0;
    void *symbol = dlsym(library, "cuDriverGetVersion");
    memcpy(&get, &symbol, sizeof symbol);
    return get && !get(&version) && version >= 1000 ? version : 0;
}

static void judge_cuda(cJSON *row, const cJSON *build, int version) {
    char text[64], why[200] = "";
    const cJSON *release = cJSON_GetObjectItemCaseSensitive(build, "release");
    if (version) snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    cJSON_AddStringToObject(row, "cuda", version ? text : "");
    if (!version) snprintf(why, sizeof why, "cuDriverGetVersion does not answer");
    else if (cJSON_IsString(release) && version / 1000 < atoi(release->valuestring))
        snprintf(why, sizeof why, "CUDA %s is older than this build's images, which are of CUDA %.20s", text,
                 release->valuestring);
    cJSON_AddBoolToObject(row, "usable", !why[0]);
    cJSON_AddStringToObject(row, "note", why);
}

void info_add_drivers(cJSON *report) {
    cJSON *rows = cJSON_AddArrayToObject(report, "drivers");
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; ++i) {
        char why[600], path[4096] = "", module[48];
        const char *soname = "";
        cJSON *row = cJSON_CreateObject();
        void *library = open_first(&drivers[i], &soname, why);
        if (library) find_file(library, path);
        stw_tool_driver_of(drivers[i].backend, module, sizeof module);
        cJSON_AddStringToObject(row, "backend", drivers[i].backend);
        cJSON_AddStringToObject(row, "library", library ? soname : "");
        cJSON_AddStringToObject(row, "path", path);
        cJSON_AddStringToObject(row, "version", version_in_name(path));
        cJSON_AddStringToObject(row, "kernel_module", module);
        if (library && !strcmp(drivers[i].backend, "cuda")) {
            judge_cuda(row, cJSON_GetObjectItemCaseSensitive(report, "cuda"), cuda_of(library));
        } else {
            cJSON_AddBoolToObject(row, "usable", library != NULL);
            cJSON_AddStringToObject(row, "note", why);
        }
        cJSON_AddItemToArray(rows, row);
        /* Not closed: drivers do not survive being unloaded. */
    }
}
