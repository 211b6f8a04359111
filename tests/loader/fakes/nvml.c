/* SPDX-License-Identifier: MIT
 *
 * A fake libnvidia-ml.so.1 that tells what the file FAKE_NVML (nvml.txt of a fixture) says. Strict: calls
 * outside nvmlInit_v2 ... nvmlShutdown fail. */
#include "../fixture.h"
#include "fake.h"

static int started;
static fixture_nvml records[FIXTURE_NVML_MAX];

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
int nvmlDeviceGetName(void *device, char *name, unsigned capacity);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned capacity);
int nvmlDeviceGetMemoryInfo(void *device, void *memory);

static int count_records(void) {
    const char *path = getenv("FAKE_NVML");
    int count = path ? fixture_nvml_read(path, records) : 0;
    return count < 0 ? 0 : count;
}

static int call_in_session(const char *function) {
    int error = fake_call(function);
    return error ? error : started ? 0 : 1; /* NVML_ERROR_UNINITIALIZED */
}

int nvmlInit_v2(void) {
    int error = fake_call("nvmlInit_v2");
    if (!error) ++started;
    return error;
}

int nvmlShutdown(void) {
    int error = call_in_session("nvmlShutdown");
    if (!error) --started;
    return error;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int error = call_in_session("nvmlDeviceGetCount_v2");
    if (!error) *count = (unsigned)count_records();
    return error;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    int error = call_in_session("nvmlDeviceGetHandleByIndex_v2");
    if (!error && (int)index >= count_records()) error = 2;
    if (!error) *device = &records[index];
    return error;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    int error = call_in_session("nvmlDeviceGetCudaComputeCapability");
    const fixture_nvml *record = device;
    *major = error ? 77 : record->major; /* a failing call may leave anything behind */
    *minor = error ? 7 : record->minor;
    return error;
}

int nvmlDeviceGetName(void *device, char *name, unsigned capacity) {
    int error = call_in_session("nvmlDeviceGetName");
    snprintf(name, capacity, "%s", error ? "garbage" : ((const fixture_nvml *)device)->name);
    return error;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned capacity) {
    int error = call_in_session("nvmlDeviceGetUUID");
    snprintf(uuid, capacity, "%s", error ? "garbage" : ((const fixture_nvml *)device)->uuid);
    return error;
}

int nvmlDeviceGetMemoryInfo(void *device, void *memory) {
    int error = call_in_session("nvmlDeviceGetMemoryInfo");
    *(unsigned long long *)memory = error ? 77 : ((const fixture_nvml *)device)->memory;
    return error;
}
