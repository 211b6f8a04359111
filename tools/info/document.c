/* SPDX-License-Identifier: MIT
 *
 * What this build holds, what this machine has and what the environment says, as the JSON document of
 * `sternway info` (info.h). No driver is started. */
#include "info.h"

#include "common/env.h"
#include "common/status.h"
#include "common/arch.h"
#include "tools/base/variants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 128 };

/* The library's own images; an arch has at most a few. */
#define IMAGES_MAX 64

static size_t read_images(stw_image_info infos[IMAGES_MAX]) {
    size_t count = 0;
    for (size_t i = 0; i < IMAGES_MAX; ++i) infos[i] = STW_INIT(stw_image_info);
    if (stw_embedded_images(infos, IMAGES_MAX, &count)) return 0;
    return count < IMAGES_MAX ? count : IMAGES_MAX;
}

static void add_archs(cJSON *report, const stw_image_info *images, size_t count) {
    cJSON *archs = cJSON_AddArrayToObject(report, "archs");
    for (size_t i = 0; i < stw_arch_count; ++i) {
        cJSON *row = cJSON_CreateObject();
        int in_build = stw_archs[i].backend == STW_BACKEND_CPU;
        for (size_t n = 0; n < count && !in_build; ++n) in_build = !strcmp(images[n].arch, stw_archs[i].name);
        cJSON_AddStringToObject(row, "name", stw_archs[i].name);
        cJSON_AddStringToObject(row, "backend", stw_backend_name(stw_archs[i].backend));
        cJSON_AddBoolToObject(row, "in_this_build", in_build);
        cJSON_AddStringToObject(row, "description", stw_archs[i].description);
        cJSON_AddItemToArray(archs, row);
    }
}

static void add_images(cJSON *report, const stw_image_info *infos, size_t count, int verify) {
    cJSON *images = cJSON_AddArrayToObject(report, "images");
    for (size_t i = 0; i < count; ++i) {
        const stw_image_info *image = &infos[i];
        char hash[24];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)image->hash);
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "arch", image->arch);
        cJSON_AddStringToObject(row, "kind", image->kind);
        cJSON_AddStringToObject(row, "ops", image->ops);
        cJSON_AddNumberToObject(row, "bytes", (double)image->bytes);
        cJSON_AddStringToObject(row, "hash", hash);
        if (verify) cJSON_AddBoolToObject(row, "intact", image->intact);
        cJSON_AddItemToArray(images, row);
    }
}

/* Which drivers take the CUDA images: binaries run on every driver of the toolkit's major release and newer
 * ones, PTX only on drivers of the toolkit's own release and newer ones. */
static void add_cuda_drivers(cJSON *report) {
#ifdef STW_CUDA_RELEASE
    int major = atoi(STW_CUDA_RELEASE);
    cJSON *cuda = cJSON_AddObjectToObject(report, "cuda");
    cJSON_AddStringToObject(cuda, "release", STW_CUDA_RELEASE);
    cJSON_AddStringToObject(cuda, "binaries_need_driver", major == 12 ? "525" : major == 13 ? "580" : "");
    cJSON_AddStringToObject(cuda, "ptx_needs_driver_of_cuda", STW_CUDA_RELEASE);
#else
    (void)report;
#endif
}

static int is_in_build(const cJSON *report, const char *arch) {
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(report, "archs")) {
        if (!strcmp(cJSON_GetObjectItemCaseSensitive(row, "name")->valuestring, arch))
            return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, "in_this_build"));
    }
    return 0;
}

/* The row of common/arch.def whose tuning table a usable device gets: its own arch's; on NVIDIA as the
 * library routes it (stw_cuda_row_of_cc), the newest row of its major compute capability that is not newer
 * than the device and is in this build, else the oldest, which runs on all. */
static const char *table_of(const cJSON *report, const stw_device_info *info) {
    const char *oldest = "", *best = "";
    int device = atoi(info->arch[0] ? info->arch + 2 : "0"), newest = 0;
    if (!info->usable) return "";
    if (info->backend != STW_BACKEND_CUDA) return info->arch;
    for (size_t i = 0; i < stw_arch_count; ++i) {
        const stw_arch *arch = &stw_archs[i];
        if (arch->backend != STW_BACKEND_CUDA || !is_in_build(report, arch->name)) continue;
        int number = atoi(arch->name + 2);
        if (number / 10 == device / 10 && number <= device && number > newest) newest = number, best = arch->name;
        if (!oldest[0]) oldest = arch->name;
    }
    return best[0] ? best : oldest;
}

static void add_device(const cJSON *report, cJSON *devices, const stw_device_info *info) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "backend", stw_backend_name(info->backend));
    cJSON_AddNumberToObject(row, "device", info->device);
    cJSON_AddStringToObject(row, "arch", info->arch);
    cJSON_AddStringToObject(row, "name", info->name);
    cJSON_AddStringToObject(row, "uuid", info->uuid);
    cJSON_AddNumberToObject(row, "compute_units", info->compute_units);
    cJSON_AddNumberToObject(row, "memory_bytes", (double)info->memory_bytes);
    cJSON_AddBoolToObject(row, "usable", info->usable);
    cJSON_AddStringToObject(row, "table", table_of(report, info));
    cJSON_AddStringToObject(row, "note", info->note);
    cJSON_AddItemToArray(devices, row);
}

static int add_devices(cJSON *report) {
    cJSON *devices = cJSON_AddArrayToObject(report, "devices");
    stw_device_info *infos = calloc(DEVICES_MAX, sizeof *infos);
    size_t count = 0;
    if (!infos) return -1;
    for (size_t i = 0; i < DEVICES_MAX; ++i) infos[i].struct_size = sizeof *infos;
    if (stw_devices(infos, DEVICES_MAX, &count)) {
        stw_tool_error("info", NULL, "%s", stw_last_error());
        free(infos);
        return -1;
    }
    for (size_t i = 0; i < count && i < DEVICES_MAX; ++i) add_device(report, devices, &infos[i]);
    free(infos);
    return 0;
}

static void add_instruction_sets(cJSON *report) {
    cJSON *sets = cJSON_AddArrayToObject(report, "cpu_instruction_sets");
#if defined(__x86_64__)
#define ADD_SET(name)                                                                                                  \
    if (__builtin_cpu_supports(name)) cJSON_AddItemToArray(sets, cJSON_CreateString(name))
    __builtin_cpu_init();
    ADD_SET("sse4.2");
    ADD_SET("avx");
    ADD_SET("avx2");
    ADD_SET("fma");
    ADD_SET("avx512f");
    ADD_SET("avx512bw");
    ADD_SET("avx512vl");
    ADD_SET("avx512bf16");
#undef ADD_SET
#else
    cJSON_AddItemToArray(sets, cJSON_CreateString("portable"));
#endif
}

/* Whether a device listed as usable, or the CPU, has kernels of the arch's backend. */
static int is_usable(stw_backend backend) {
    stw_device_info infos[DEVICES_MAX];
    size_t count = 0;
    if (backend == STW_BACKEND_CPU) return 1;
    for (size_t i = 0; i < DEVICES_MAX; ++i) infos[i] = STW_INIT(stw_device_info);
    if (stw_devices(infos, DEVICES_MAX, &count)) return 0;
    for (size_t i = 0; i < count && i < DEVICES_MAX; ++i)
        if (infos[i].backend == backend && infos[i].usable) return 1;
    return 0;
}

/* Refuses a forced variant that is in no table of what a context of this machine could choose. */
static stw_status check_variant(const stw_env *env) {
    char searched[200] = "";
    size_t used = 0;
    if (!env->variant[0]) return STW_OK;
    if (!strcmp(env->variant, "tiles") && env->backend != STW_BACKEND_CPU && /* of nested LINEAR on GPUs */
        (env->backend != STW_BACKEND_AUTO || is_usable(STW_BACKEND_CUDA) || is_usable(STW_BACKEND_HIP)))
        return STW_OK;
    for (size_t i = 0; i < stw_tool_table_count; ++i) {
        const stw_tool_table *table = &stw_tool_tables[i];
        const stw_arch *arch = stw_arch_find(STW_BACKEND_AUTO, table->arch);
        if (!arch || (env->arch[0] && strcmp(env->arch, table->arch))) continue;
        if (env->backend != STW_BACKEND_AUTO ? env->backend != arch->backend : !is_usable(arch->backend)) continue;
        if (stw_tool_variant_find(table, env->variant)) return STW_OK;
        int n = snprintf(searched + used, sizeof searched - used, "%s%s", used ? ", " : "", table->arch);
        used = used + (size_t)n < sizeof searched ? used + (size_t)n : sizeof searched - 1;
    }
    return stw_fail(STW_E_INVALID, "STERNWAY_VARIANT=%s: no such variant in the tables of what is usable here: %s",
                    env->variant, searched[0] ? searched : "nothing");
}

/* The tuning file, by the library itself: a context of the CPU backend reads it and starts no driver. */
static stw_status check_tuning(void) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    stw_status status = stw_context_create(&opts, &context);
    stw_context_destroy(context);
    return status ? stw_fail(status, "%s", stw_last_error()) : STW_OK;
}

/* Returns 1 when the library would refuse the environment; the text is then the last error. */
int info_add_environment(cJSON *report) {
    cJSON *rows = cJSON_AddArrayToObject(report, "environment");
    for (size_t i = 0; i < stw_env_row_count; ++i) {
        const char *value = secure_getenv(stw_env_rows[i].name);
        int set = value && value[0];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", stw_env_rows[i].name);
        cJSON_AddStringToObject(row, "value", set ? value : stw_env_rows[i].fallback);
        cJSON_AddBoolToObject(row, "set", set);
        cJSON_AddStringToObject(row, "help", stw_env_rows[i].help);
        cJSON_AddItemToArray(rows, row);
    }
    stw_env env;
    int refused = stw_env_read(&env) || check_tuning() || check_variant(&env);
    if (refused) cJSON_AddStringToObject(report, "environment_error", stw_tool_last_error());
    return refused;
}

int info_build(cJSON *report, int verify) {
    char version[32];
    uint32_t v = stw_version();
    snprintf(version, sizeof version, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    cJSON_AddStringToObject(report, "version", version);
    cJSON *build = cJSON_AddObjectToObject(report, "build"); /* tools/CMakeLists.txt */
    cJSON_AddStringToObject(build, "commit", STW_BUILD_COMMIT);
    cJSON_AddStringToObject(build, "date", STW_BUILD_DATE);
    cJSON_AddStringToObject(build, "compiler", STW_BUILD_COMPILER);
    cJSON_AddStringToObject(build, "without", STW_BUILD_WITHOUT);
    stw_image_info images[IMAGES_MAX];
    size_t count = read_images(images);
    add_archs(report, images, count);
    add_images(report, images, count, verify);
    add_cuda_drivers(report);
    info_add_drivers(report);
    int failed = add_devices(report);
    add_instruction_sets(report);
    return failed;
}
