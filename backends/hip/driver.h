/* SPDX-License-Identifier: MIT
 *
 * libamdhip64 of ROCm 8, 7, 6 or 5 as a table of functions, loaded and started on first use. Used by the
 * other files of this folder. */
#ifndef STW_HIP_DRIVER_H
#define STW_HIP_DRIVER_H

#include "common/status.h"

typedef struct stw_hip_functions {
#define STW_HIP(name, need, result, parameters) result(*name) parameters;
#include "backends/hip/driver.def"
#undef STW_HIP
} stw_hip_functions;

/* Values of hipError_t, hipDeviceAttribute_t and hipMemcpyKind that are used; the same in ROCm 5.2 to 7. */
enum {
    STW_HIP_INVALID_VALUE = 1,
    STW_HIP_OUT_OF_MEMORY = 2,
    STW_HIP_NO_DEVICE = 100,
    STW_HIP_INVALID_DEVICE = 101,
    STW_HIP_INVALID_IMAGE = 200,
    STW_HIP_NO_BINARY_FOR_GPU = 209,
    STW_HIP_INVALID_KERNEL_FILE = 218,
    STW_HIP_INVALID_SOURCE = 300,
    STW_HIP_SHARED_OBJECT_INIT_FAILED = 303,
    STW_HIP_CONTEXT_IS_DESTROYED = 709,
    STW_HIP_NOT_SUPPORTED = 801
};
enum { STW_HIP_CU_COUNT = 63, STW_HIP_PAGEABLE_ACCESS = 65, STW_HIP_SMEM_PER_BLOCK = 74 };
enum { STW_HIP_COPY_DEFAULT = 4, STW_HIP_STREAM_NON_BLOCKING = 1, STW_HIP_EVENT_WITHOUT_TIME = 2 };

/* hipMemLocation, and the bits that hipMemGetAccess gives. */
typedef struct stw_hip_location {
    int type, device;
} stw_hip_location;
enum { STW_HIP_LOCATION_DEVICE = 1, STW_HIP_ACCESS_READ = 1, STW_HIP_ACCESS_WRITE = 2 };

/* As hipRuntimeGetVersion counts. The headers of 5.2 to 7 were read; a runtime from 8 on proves that it agrees. */
enum { STW_HIP_ROCM_6 = 60000000, STW_HIP_ROCM_7 = 70000000, STW_HIP_ROCM_8 = 80000000 };

/* hipPointerAttribute_t of every version so far, with room for more; its first field counts otherwise in ROCm
 * 5 (hipMemoryType: host 0, device 1, managed 4) than since 6 (unregistered 0, host 1, device 2, managed 3). */
typedef struct stw_hip_pointer {
    int type, device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
    uint64_t room[16];
} stw_hip_pointer;

/* Loads the library and calls hipInit, each once. Errors: STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_FORKED. */
stw_status stw_hip_start(const stw_hip_functions **functions_out);

/* 1 in a child of the process that touched the runtime: it must not be called there. */
int stw_hip_forked(void);

/* Fails with "hip: CALL failed: NAME (NUMBER): the runtime's words": STW_E_NO_DEVICE and STW_E_NO_MEMORY
 * for the errors that mean these, STW_E_DEVICE_LOST for sticky ones, else `otherwise`. The runtime keeps each
 * thread's last error for hipGetLastError, which programs ask after their own launches: it is cleared. */
stw_status stw_hip_fail(stw_status otherwise, const char *call, int error);

/* The gfx name of a device without its features, from the safest source there is (arch.c). */
stw_status stw_hip_device_arch(const stw_hip_functions *hip, int device, char arch_out[32]);

/* The same from the kernel driver's list alone, by PCI address; `root` as for stw_kfd_read. */
stw_status stw_hip_arch_at_pci(const char *root, const char *address, char arch_out[32]);

#endif
