/* SPDX-License-Identifier: MIT
 *
 * stw_devices: the public face of the probe. */
#include "common/extend.h"
#include "dispatch/probe.h"

#include <stdlib.h>
#include <string.h>

#define STRUCT_SIZE_MAX 4096 /* as for every struct of ours: stops writes through a garbage size */

/* All elements carry the same struct_size, the caller's sizeof, which is also the distance between them. */
static stw_status check_infos(const stw_device_info *infos, size_t capacity, size_t *stride_out) {
    if (!capacity) return STW_OK;
    if (!infos)
        return stw_fail(STW_E_INVALID, "devices: infos is null with capacity %zu; null needs capacity 0",
                        capacity);
    size_t stride = infos->struct_size;
    if (stride < STW_SIZE_DEVICE_INFO_0_1 || stride > STRUCT_SIZE_MAX || stride % _Alignof(stw_device_info))
        return stw_fail(STW_E_INVALID,
                        "devices: infos[0].struct_size %zu is not a size of stw_device_info, here %zu",
                        stride, sizeof(stw_device_info));
    for (size_t i = 1; i < capacity; ++i) {
        size_t size;
        memcpy(&size, (const char *)infos + i * stride, sizeof size);
        if (size != stride)
            return stw_fail(STW_E_INVALID, "devices: infos[%zu].struct_size %zu is not that of infos[0], %zu",
                            i, size, stride);
    }
    *stride_out = stride;
    return STW_OK;
}

stw_status stw_devices(stw_device_info *infos, size_t capacity, size_t *count_out) {
    size_t stride = 0;
    if (!count_out) return stw_fail(STW_E_INVALID, "devices: count_out is null");
    stw_status status = check_infos(infos, capacity, &stride);
    if (status != STW_OK) return status;

    stw_probe_facts facts; /* some 40 KiB: no allocation, so no failure */
    stw_probe_gather("", &facts);
    stw_probe_gather_nvml(&facts);
    size_t count = stw_probe_count(&facts);
    for (size_t i = 0; i < count && i < capacity; ++i) {
        char *element = (char *)infos + i * stride;
        stw_device_info info = {.struct_size = stride};
        stw_probe_device(&facts, i, &info);
        size_t known = stride < sizeof info ? stride : sizeof info; /* an older caller's struct is shorter */
        memcpy(element, &info, known);
        memset(element + known, 0, stride - known); /* a newer caller's fields read as absent */
    }
    *count_out = count;
    return STW_OK;
}
