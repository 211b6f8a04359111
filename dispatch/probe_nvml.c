/* SPDX-License-Identifier: MIT
 *
 * NVIDIA GPUs by NVML, libnvidia-ml.so.1: names, UUIDs, memory and compute capabilities without CUDA.
 * Part of the probe. The library is kept once it has loaded; each gathering starts and ends NVML itself. */
#include "common/dso.h"
#include "dispatch/probe.h"

#include <stdatomic.h>
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

/* The functions of a library that has loaded, as one thread found them. No lock: a forked child may not have the thread
 * that holds it. */
static nvml_functions kept;
enum { KEPT_NONE, KEPT_BUSY, KEPT_READY };
static atomic_int kept_state;

/* 1, or 0 with the reason in the note: the next gathering tries again. */
static int nvml_load(nvml_functions *nvml, stw_text *note) {
    static const char *const sonames[] = {"libnvidia-ml.so.1"};
    stw_dso dso;
    int none = KEPT_NONE;
    char words[160], absent[128];
    stw_text reason = stw_text_in(words, sizeof words), optional = stw_text_in(absent, sizeof absent);
    if (atomic_load(&kept_state) == KEPT_READY) {
        *nvml = kept;
        return 1;
    }
    if (!stw_dso_open(&dso, sonames, 1, &reason)) {
        stw_text_add(note, "%s", words);
        return 0;
    }
    if (!stw_dso_bind(&dso, nvml_rows, sizeof nvml_rows / sizeof nvml_rows[0], nvml, &reason, &optional)) {
        stw_text_add(note, "%s lacks %s", dso.soname, words);
        stw_dso_close(&dso);
        return 0;
    }
    if (atomic_compare_exchange_strong(&kept_state, &none, KEPT_BUSY)) {
        kept = *nvml;
        atomic_store(&kept_state, KEPT_READY);
    }
    return 1;
}

/* Notes the first failure of a device; the rest of it is still worth having. */
static int told(stw_probe_nvidia *record, const char *call, int error) {
    if (error && !record->note[0]) snprintf(record->note, sizeof record->note, "%s gave %d", call, error);
    return !error;
}

static void nvml_device(const nvml_functions *nvml, unsigned index, stw_probe_nvidia *record) {
    void *device = NULL;
    if (!told(record, "nvmlDeviceGetHandleByIndex_v2", nvml->nvmlDeviceGetHandleByIndex_v2(index, &device))) return;
    if (!told(record, "nvmlDeviceGetCudaComputeCapability",
              nvml->nvmlDeviceGetCudaComputeCapability(device, &record->major, &record->minor)))
        record->major = record->minor = 0;
    if (!told(record, "nvmlDeviceGetName", nvml->nvmlDeviceGetName(device, record->name, sizeof record->name)))
        record->name[0] = 0;
    if (nvml->nvmlDeviceGetUUID &&
        !told(record, "nvmlDeviceGetUUID", nvml->nvmlDeviceGetUUID(device, record->uuid, sizeof record->uuid)))
        record->uuid[0] = 0;
    unsigned long long memory[3] = {0, 0, 0}; /* total, free, used */
    if (nvml->nvmlDeviceGetMemoryInfo &&
        told(record, "nvmlDeviceGetMemoryInfo", nvml->nvmlDeviceGetMemoryInfo(device, memory)))
        record->memory_bytes = memory[0];
    record->name[sizeof record->name - 1] = record->uuid[sizeof record->uuid - 1] = 0;
}

void stw_probe_gather_nvml(stw_probe_facts *facts) {
    nvml_functions nvml;
    unsigned count = 0;
    stw_text note = stw_text_in(facts->nvml_note, sizeof facts->nvml_note);
    if (!nvml_load(&nvml, &note)) return;
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
        for (unsigned i = 0; i < facts->nvidia_count; ++i) nvml_device(&nvml, i, &facts->nvidia[i]);
    }
    nvml.nvmlShutdown();
}
