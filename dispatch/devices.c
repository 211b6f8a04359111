/* SPDX-License-Identifier: MIT
 *
 * What this machine and this build have: stw_devices, the public face of the probe, and
 * stw_embedded_images, that of backends/gpu/image. */
#include "common/env.h"
#include "common/extend.h"
#include "backends/gpu/image.h"
#include "dispatch/probe.h"

#include <stdio.h>

stw_status stw_devices(stw_device_info *infos, size_t capacity, size_t *count_out) {
    size_t stride;
    if (!count_out) return stw_fail(STW_E_INVALID, "devices: count_out is null");
    stw_status status = stw_extend_check_array("devices", "stw_device_info", infos, capacity, sizeof *infos,
                                               STW_SIZE_DEVICE_INFO_0_1, &stride);
    if (status) return status;
    stw_probe_facts facts; /* some 40 KiB: no allocation, so no failure */
    stw_probe_gather("", &facts);
    stw_probe_show_amd(&facts, stw_env_rocr_devices(), stw_env_hip_devices());
    stw_probe_gather_nvml(&facts);
    size_t count = stw_probe_count(&facts);
    for (size_t i = 0; i < count && i < capacity; ++i) {
        stw_device_info info = STW_INIT(stw_device_info);
        stw_probe_device(&facts, i, &info);
        stw_extend_store((char *)infos + i * stride, stride, &info, sizeof info);
    }
    *count_out = count;
    return STW_OK;
}

stw_status stw_embedded_images(stw_image_info *infos, size_t capacity, size_t *count_out) {
    size_t stride;
    if (!count_out) return stw_fail(STW_E_INVALID, "embedded_images: count_out is null");
    stw_status status = stw_extend_check_array("embedded_images", "stw_image_info", infos, capacity, sizeof *infos,
                                               STW_SIZE_IMAGE_INFO_0_1, &stride);
    if (status) return status;
    size_t count = 0;
    const stw_image_set *set;
    for (const stw_image *image; (image = stw_image_at(count, &set)); ++count) {
        if (count >= capacity) continue;
        stw_image_info info = STW_INIT(stw_image_info);
        info.backend = image->backend;
        info.intact = stw_image_intact(image);
        info.bytes = (uint64_t)(image->end - image->begin);
        info.hash = image->hash;
        snprintf(info.arch, sizeof info.arch, "%s", image->arch);
        snprintf(info.kind, sizeof info.kind, "%s", stw_image_kind_name(image->kind));
        snprintf(info.ops, sizeof info.ops, "%s", set->ops);
        stw_extend_store((char *)infos + count * stride, stride, &info, sizeof info);
    }
    *count_out = count;
    return STW_OK;
}
