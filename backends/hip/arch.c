/* SPDX-License-Identifier: MIT
 *
 * The gfx name of a device. hipDeviceProp_t has two layouts: 1472 bytes with gcnArchName at 1160 under the
 * name hipGetDevicePropertiesR0600 (ROCm 6 and 7), 792 bytes with it at 396 under ...R0000 (exported beside
 * the other since 6.0). A runtime with neither (ROCm 5) tells the PCI address, and the kernel driver the
 * rest. */
#include "backends/hip/driver.h"

#include "backends/gpu/arch.h"
#include "backends/gpu/kfd.h"

enum { GCN_NAME_SIZE = 256, GCN_NAME_AT_R0600 = 1160, GCN_NAME_AT_R0000 = 396 };

static stw_status arch_from_properties(int (*get)(void *, int), const char *call, size_t at, int device,
                                       char arch_out[32]) {
    union {
        max_align_t align;
        char bytes[4096]; /* room for a runtime that appends fields */
    } properties = {.bytes = {0}};
    int error = get(&properties, device);
    if (error) return stw_hip_fail(STW_E_DRIVER, call, error);
    if (stw_arch_of_gcn_name(properties.bytes + at, GCN_NAME_SIZE, arch_out)) return STW_OK;
    return stw_fail(STW_E_DRIVER, "hip: device %d: %s gave no gfx name where its struct has one", device, call);
}

stw_status stw_hip_arch_at_pci(const char *root, const char *address, char arch_out[32]) {
    stw_kfd kfd;
    stw_kfd_read(root, &kfd);
    const stw_kfd_gpu *gpu = stw_kfd_at_pci(&kfd, address);
    if (!gpu)
        return stw_fail(STW_E_DRIVER, "hip: the runtime's device at PCI address \"%s\" is not in /sys/class/kfd",
                        address);
    if (stw_arch_of_gfx_version(gpu->gfx_version, arch_out)) return STW_OK;
    return stw_fail(STW_E_DRIVER, "hip: the kernel driver has no gfx_target_version for the device at \"%s\"", address);
}

stw_status stw_hip_device_arch(const stw_hip_functions *hip, int device, char arch_out[32]) {
    if (hip->hipGetDevicePropertiesR0600)
        return arch_from_properties(hip->hipGetDevicePropertiesR0600, "hipGetDevicePropertiesR0600", GCN_NAME_AT_R0600,
                                    device, arch_out);
    if (hip->hipGetDevicePropertiesR0000)
        return arch_from_properties(hip->hipGetDevicePropertiesR0000, "hipGetDevicePropertiesR0000", GCN_NAME_AT_R0000,
                                    device, arch_out);
    if (!hip->hipDeviceGetPCIBusId)
        return stw_fail(STW_E_NO_DRIVER, "hip: this runtime has none of hipGetDevicePropertiesR0600, "
                                         "hipGetDevicePropertiesR0000 and hipDeviceGetPCIBusId: install a newer ROCm");
    char address[64] = "";
    int error = hip->hipDeviceGetPCIBusId(address, (int)sizeof address, device);
    if (error) return stw_hip_fail(STW_E_DRIVER, "hipDeviceGetPCIBusId", error);
    address[sizeof address - 1] = 0;
    return stw_hip_arch_at_pci("", address, arch_out);
}
