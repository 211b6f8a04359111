/* SPDX-License-Identifier: MIT
 *
 * A fake libcuda.so.1, the half about devices: no device, only the answers of one. Devices come from
 * FAKE_CUDA_DEVICES="name|8.0|SMs|shared memory bytes|memory bytes;...". Strict where the real one is:
 * calls before cuInit and in a forked child fail, and bad handles are refused. cuda_calls.c is the rest. */
#include "cuda.h"

static int version = 13000;
static pid_t started; /* by which process */

int fake_cuda_device_at(int ordinal, cuda_device *device) {
    char record[512];
    return ordinal >= 0 && fake_record("FAKE_CUDA_DEVICES", ordinal, record, sizeof record) &&
           sscanf(record, "%127[^|]|%d.%d|%d|%d|%llu", device->name, &device->major, &device->minor, &device->sms,
                  &device->smem, &device->memory) == 6;
}

/* 3: CUDA_ERROR_NOT_INITIALIZED */
int fake_cuda_started(void) { return started == getpid() ? 0 : 3; }

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int capacity, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuGetErrorName(int error, const char **text);
int cuGetErrorString(int error, const char **text);

int cuInit(unsigned flags) {
    int error = fake_call("cuInit");
    if (error) return error;
    if (flags) return 1;
    if (started && fake_cuda_started()) return 3;
    if (!fake_devices("FAKE_CUDA_DEVICES")) return 100;
    started = getpid();
    return 0;
}

int cuDriverGetVersion(int *out) {
    int error = fake_call("cuDriverGetVersion");
    const char *given = getenv("FAKE_CUDA_VERSION");
    if (!error) *out = given ? atoi(given) : version;
    return error;
}

int cuDeviceGetCount(int *count) {
    int error = fake_call("cuDeviceGetCount");
    if (!error) error = fake_cuda_started();
    if (!error) *count = fake_devices("FAKE_CUDA_DEVICES");
    return error;
}

int cuDeviceGet(int *device, int ordinal) {
    cuda_device facts;
    int error = fake_call("cuDeviceGet");
    if (!error) error = fake_cuda_started();
    if (!error && !fake_cuda_device_at(ordinal, &facts)) error = 101;
    if (!error) *device = FAKE_CUDA_HANDLE + ordinal;
    return error;
}

int cuDeviceGetName(char *name, int capacity, int device) {
    cuda_device facts;
    int error = fake_call("cuDeviceGetName");
    if (!error) error = fake_cuda_started();
    if (!error && !fake_cuda_device_at(device - FAKE_CUDA_HANDLE, &facts)) error = 101;
    if (!error) snprintf(name, (size_t)capacity, "%s", facts.name);
    return error;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    cuda_device facts;
    int error = fake_call("cuDeviceGetAttribute");
    if (!error) error = fake_cuda_started();
    if (!error && !fake_cuda_device_at(device - FAKE_CUDA_HANDLE, &facts)) error = 101;
    if (error) return error;
    switch (attribute) {
    case 16: *value = facts.sms; return 0;
    case 75: *value = facts.major; return 0;
    case 76: *value = facts.minor; return 0;
    case 97: *value = facts.smem; return 0;
    default: return 1;
    }
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    cuda_device facts;
    int error = fake_call("cuDeviceTotalMem_v2");
    if (!error) error = fake_cuda_started();
    if (!error && !fake_cuda_device_at(device - FAKE_CUDA_HANDLE, &facts)) error = 101;
    if (!error) *bytes = (size_t)facts.memory;
    return error;
}

int cuGetErrorName(int error, const char **text) {
    int failure = fake_call("cuGetErrorName");
    if (failure) return failure;
    *text = error == 999   ? "CUDA_ERROR_UNKNOWN"
            : error == 100 ? "CUDA_ERROR_NO_DEVICE"
            : error == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                           : NULL;
    return *text ? 0 : 1;
}

int cuGetErrorString(int error, const char **text) {
    int failure = fake_call("cuGetErrorString");
    if (failure) return failure;
    *text = error == 999   ? "unknown error"
            : error == 100 ? "no CUDA-capable device is detected"
            : error == 2   ? "out of memory"
            : error == 803 ? "system has unsupported display driver / cuda driver combination"
            : error == 700 ? "an illegal memory access was encountered"
                           : NULL;
    return *text ? 0 : 1;
}
