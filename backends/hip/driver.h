/* SPDX-License-Identifier: MIT
 *
 * libamdhip64 of ROCm 7, 6 or 5 as a table of functions, loaded and started on first use. Used by the
 * other files of this folder. */
#ifndef STW_HIP_DRIVER_H
#define STW_HIP_DRIVER_H

#include "common/status.h"

typedef struct stw_hip_functions {
#define STW_HIP(name, need, result, parameters) result(*name) parameters;
#include "backends/hip/driver.def"
#undef STW_HIP
} stw_hip_functions;

/* Values of hipError_t and hipDeviceAttribute_t that are used; the same in ROCm 5.2 to 7. */
enum { STW_HIP_OUT_OF_MEMORY = 2, STW_HIP_NO_DEVICE = 100, STW_HIP_INVALID_DEVICE = 101 };
enum { STW_HIP_CU_COUNT = 63, STW_HIP_SMEM_PER_BLOCK = 74 };

/* Loads the library and calls hipInit, each once. Errors: STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_FORKED. */
stw_status stw_hip_start(const stw_hip_functions **functions_out);

/* Fails with "hip: CALL failed: NAME (NUMBER): the runtime's words": STW_E_NO_DEVICE and STW_E_NO_MEMORY
 * for the errors that mean these, else `otherwise`. */
stw_status stw_hip_fail(stw_status otherwise, const char *call, int error);

/* The gfx name of a device without its features, from the safest source there is (arch.c). */
stw_status stw_hip_device_arch(const stw_hip_functions *hip, int device, char arch_out[32]);

/* The same from the kernel driver's list alone, by PCI address; `root` as for stw_kfd_read. */
stw_status stw_hip_arch_at_pci(const char *root, const char *address, char arch_out[32]);

#endif
