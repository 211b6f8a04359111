/* SPDX-License-Identifier: MIT
 *
 * A fake libamdhip64, the half about devices: no device, only the answers of one. Devices come from
 * FAKE_HIP_DEVICES="name|gcnArchName|CUs|LDS bytes|memory bytes|PCI address;...", those that
 * ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES leave. Both struct layouts are filled over a poisoned struct;
 * the unversioned hipGetDeviceProperties is there as a trap. */
#include "hip.h"

/* The `index`th number of a list like "2,0"; without the variable, `index` itself. -1: the list ends before,
 * as it does at the first word that is none of `count` devices. */
static int visible(const char *variable, int index, int count) {
    const char *list = getenv(variable);
    if (!list) return index < count ? index : -1;
    for (int i = 0;; ++i) {
        char *end;
        long number = strtol(list, &end, 10);
        if (end == list || number < 0 || number >= count) return -1;
        if (i == index) return (int)number;
        if (*end != ',') return -1;
        list = end + 1;
    }
}

/* As the real one: ROCR_VISIBLE_DEVICES chooses and numbers anew, HIP_VISIBLE_DEVICES among what is left. */
static int record_of(int ordinal) {
    int all = fake_devices("FAKE_HIP_DEVICES"), left = 0;
    while (left < all && visible("ROCR_VISIBLE_DEVICES", left, all) >= 0) ++left;
    int chosen = ordinal < 0 ? -1 : visible("HIP_VISIBLE_DEVICES", ordinal, left);
    return chosen < 0 ? -1 : visible("ROCR_VISIBLE_DEVICES", chosen, all);
}

static int device_count(void) {
    int count = 0;
    while (record_of(count) >= 0) ++count;
    return count;
}

int fake_hip_device_at(int ordinal, hip_device *device) {
    char record[512];
    device->pci[0] = 0;
    ordinal = record_of(ordinal);
    return ordinal >= 0 && fake_record("FAKE_HIP_DEVICES", ordinal, record, sizeof record) &&
           sscanf(record, "%127[^|]|%63[^|]|%d|%d|%llu|%31s", device->name, device->arch, &device->cus, &device->lds,
                  &device->memory, device->pci) >= 5;
}

static int started_by;

int fake_hip_started(void) { return started_by == (int)getpid() ? 0 : 3; }

int fake_hip_version(void) {
    const char *version = getenv("FAKE_HIP_VERSION");
    return version ? atoi(version) : 60342131;
}

int hipInit(unsigned flags);
int hipRuntimeGetVersion(int *version);
int hipGetDeviceCount(int *count);
int hipDeviceGetName(char *name, int capacity, int device);
int hipDeviceGetAttribute(int *value, int attribute, int device);
int hipDeviceTotalMem(size_t *bytes, int device);
int hipGetDevicePropertiesR0600(void *properties, int device);
int hipGetDevicePropertiesR0000(void *properties, int device);
int hipGetDeviceProperties(void *properties, int device);
int hipDeviceGetPCIBusId(char *address, int capacity, int device);
const char *hipGetErrorName(int error);
const char *hipGetErrorString(int error);

int hipInit(unsigned flags) {
    int error = fake_call("hipInit");
    if (error) return error;
    if (flags) return 1;
    started_by = (int)getpid();
    static int asked; /* the real one says 101, then 100, when there is no GPU */
    return device_count() ? 0 : asked++ ? 100 : 101;
}

int hipRuntimeGetVersion(int *version) {
    int error = fake_call("hipRuntimeGetVersion");
    if (!error) *version = fake_hip_version();
    return error;
}

int hipGetDeviceCount(int *count) {
    int error = fake_call("hipGetDeviceCount");
    if (!error) *count = device_count();
    return error;
}

int hipDeviceGetName(char *name, int capacity, int device) {
    hip_device facts;
    int error = fake_call("hipDeviceGetName");
    if (!error && !fake_hip_device_at(device, &facts)) error = 101;
    if (!error) snprintf(name, (size_t)capacity, "%s", facts.name);
    return error;
}

int hipDeviceGetAttribute(int *value, int attribute, int device) {
    hip_device facts;
    int error = fake_call("hipDeviceGetAttribute");
    if (!error && !fake_hip_device_at(device, &facts)) error = 101;
    if (error) return error;
    switch (attribute) {
    case 63: *value = facts.cus; return 0;
    case 65: *value = getenv("FAKE_HIP_PAGEABLE") != NULL; return 0;
    case 74: *value = facts.lds; return 0;
    default: return 1;
    }
}

int hipDeviceTotalMem(size_t *bytes, int device) {
    hip_device facts;
    int error = fake_call("hipDeviceTotalMem");
    if (!error && !fake_hip_device_at(device, &facts)) error = 101;
    if (!error) *bytes = (size_t)facts.memory;
    return error;
}

/* `size` bytes as the runtime has them, with the gfx name at `at` and poison in everything unused. */
static int fill_properties(const char *function, void *properties, int device, size_t size, size_t at) {
    hip_device facts;
    int error = fake_call(function);
    if (!error && !fake_hip_device_at(device, &facts)) error = 101;
    if (error) return error;
    memset(properties, 0xee, size);
    memset((char *)properties + at, 0, 256);
    snprintf(properties, 256, "%s", facts.name);
    snprintf((char *)properties + at, 256, "%s", facts.arch);
    return 0;
}

int hipGetDevicePropertiesR0600(void *properties, int device) {
    return fill_properties("hipGetDevicePropertiesR0600", properties, device, 1472, 1160);
}

int hipGetDevicePropertiesR0000(void *properties, int device) {
    return fill_properties("hipGetDevicePropertiesR0000", properties, device, 792, 396);
}

int hipGetDeviceProperties(void *properties, int device) {
    (void)properties;
    (void)device;
    fake_call("hipGetDeviceProperties");
    abort();
}

int hipDeviceGetPCIBusId(char *address, int capacity, int device) {
    hip_device facts;
    int error = fake_call("hipDeviceGetPCIBusId");
    if (!error && !fake_hip_device_at(device, &facts)) error = 101;
    if (!error) snprintf(address, (size_t)capacity, "%s", facts.pci);
    return error;
}

const char *hipGetErrorName(int error) {
    fake_call("hipGetErrorName");
    return error == 100   ? "hipErrorNoDevice"
           : error == 101 ? "hipErrorInvalidDevice"
           : error == 2   ? "hipErrorOutOfMemory"
           : error == 700 ? "hipErrorIllegalAddress"
           : error == 709 ? "hipErrorContextIsDestroyed"
                          : "hipErrorUnknown";
}

const char *hipGetErrorString(int error) {
    fake_call("hipGetErrorString");
    return error == 100   ? "no ROCm-capable device is detected"
           : error == 101 ? "invalid device ordinal"
           : error == 2   ? "out of memory"
           : error == 700 ? "an illegal memory access was encountered"
           : error == 709 ? "context is destroyed"
                          : "unknown error";
}
