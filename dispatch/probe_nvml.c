/* SPDX-License-Identifier: MIT
 *
 * NVIDIA GPUs by NVML, libnvidia-ml.so.1: names, UUIDs, memory and compute capabilities without CUDA.
 * Part of the probe. The library is loaded once and kept; each gathering starts and ends NVML itself. */
#include "common/dso.h"
#include "dispatch/probe.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct nvml_functions {
#define STW_NVML(name, need, parameters) int(*name) parameters;
#include "dispatch/nvml.def"
#undef STW_NVML
} nvml_functions;

enum { OPTIONAL = 0, REQUIRED = 1 };
static const stw_dso_row nvml_rows[] = {
#define STW_NVML(name, need, parameters) {#name, need, offsetof(nvml_functions, name)},
#include "dispatch/nvml.def"
#undef STW_NVML
};

static nvml_functions nvml;
static int nvml_loaded;
static char nvml_load_note[160];

static void nvml_load(void) {
    static const char *const sonames[] = {"libnvidia-ml.so.1"};
    stw_dso dso;
    char words[160], absent[128];
    stw_text reason = stw_text_in(words, sizeof words), optional = stw_text_in(absent, sizeof absent);
    stw_text note = stw_text_in(nvml_load_note, sizeof nvml_load_note);
    if (!stw_dso_open(&dso, sonames, 1, &reason)) {
        stw_text_add(&note, "%s", words);
    } else if (!stw_dso_bind(&dso, nvml_rows, sizeof nvml_rows / sizeof nvml_rows[0], &nvml, &reason, &optional)) {
        stw_text_add(&note, "%s lacks %s", dso.soname, words);
        stw_dso_close(&dso);
    } else {
        nvml_loaded = 1;
    }
}

/* Notes the first failure of a device; the rest of it is still worth having. */
static int told(stw_probe_nvidia *record, const char *call, int error) {
    if (error && !record->note[0]) snprintf(record->note, sizeof record->note, "%s gave %d", call, error);
    return !error;
}

static void nvml_device(unsigned index, stw_probe_nvidia *record) {
    void *device = NULL;
    if (!told(record, "nvmlDeviceGetHandleByIndex_v2", nvml.nvmlDeviceGetHandleByIndex_v2(index, &device))) return;
    if (!told(record, "nvmlDeviceGetCudaComputeCapability",
              nvml.nvmlDeviceGetCudaComputeCapability(device, &record->major, &record->minor)))
        record->major = record->minor = 0;
    if (!told(record, "nvmlDeviceGetName", nvml.nvmlDeviceGetName(device, record->name, sizeof record->name)))
        record->name[0] = 0;
    if (nvml.nvmlDeviceGetUUID &&
        !told(record, "nvmlDeviceGetUUID", nvml.nvmlDeviceGetUUID(device, record->uuid, sizeof record->uuid)))
        record->uuid[0] = 0;
    unsigned long long memory[3] = {0, 0, 0}; /* total, free, used */
    if (nvml.nvmlDeviceGetMemoryInfo &&
        told(record, "nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo(device, memory)))
        record->memory_bytes = memory[0];
    record->name[sizeof record->name - 1] = record->uuid[sizeof record->uuid - 1] = 0;
}

void stw_probe_gather_nvml(stw_probe_facts *facts) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned count = 0;
    pthread_once(&once, nvml_load);
    if (!nvml_loaded) {
        snprintf(facts->nvml_note, sizeof facts->nvml_note, "%s", nvml_load_note);
        return;
    }
    int error = nvml.nvmlInit_v2();
    if (error) {
        snprintf(facts->nvml_note, sizeof facts->nvml_note, "nvmlInit_v2 gave %d", error);
        return;
    }
    error = nvml.nvmlDeviceGetCount_v2(&count);
    if (error) {
        snprintf(facts->nvml_note, sizeof facts->nvml_note, "nvmlDeviceGetCount_v2 gave %d", error);
    } else {
        facts->nvml_works = 1;
        facts->nvidia_count = count < STW_PROBE_NVIDIA_MAX ? count : STW_PROBE_NVIDIA_MAX;
        for (unsigned i = 0; i < facts->nvidia_count; ++i) nvml_device(i, &facts->nvidia[i]);
    }
    nvml.nvmlShutdown();
}
