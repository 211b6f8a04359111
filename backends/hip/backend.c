/* SPDX-License-Identifier: MIT
 *
 * The HIP backend's table for dispatch, and opening a device. Every call here names its device. */
#include "backends/hip/device.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>

typedef struct hip_facts {
    int version, count, cu_count, smem, pageable;
    size_t memory;
    char name[96], arch[32];
} hip_facts;

#define HIP_TRY(call, ...)                                                                                             \
    do {                                                                                                               \
        int hip_error = hip->call(__VA_ARGS__);                                                                        \
        if (hip_error) return stw_hip_fail(STW_E_DRIVER, #call, hip_error);                                            \
    } while (0)

static stw_status hip_ask(const stw_hip_functions *hip, int32_t ordinal, hip_facts *facts) {
    HIP_TRY(hipRuntimeGetVersion, &facts->version);
    HIP_TRY(hipGetDeviceCount, &facts->count);
    if (facts->count < 1) return stw_fail(STW_E_NO_DEVICE, "hip: the runtime shows no device");
    if (ordinal < 0 || ordinal >= facts->count)
        return stw_fail(STW_E_NO_DEVICE, "hip: device %d does not exist: the runtime shows %d (0..%d)", (int)ordinal,
                        facts->count, facts->count - 1);
    HIP_TRY(hipDeviceGetName, facts->name, (int)sizeof facts->name, ordinal);
    facts->name[sizeof facts->name - 1] = 0;
    HIP_TRY(hipDeviceGetAttribute, &facts->cu_count, STW_HIP_CU_COUNT, ordinal);
    HIP_TRY(hipDeviceGetAttribute, &facts->smem, STW_HIP_SMEM_PER_BLOCK, ordinal);
    if (hip->hipDeviceGetAttribute(&facts->pageable, STW_HIP_PAGEABLE_ACCESS, ordinal)) {
        facts->pageable = 0;
        if (hip->hipGetLastError) hip->hipGetLastError();
    }
    HIP_TRY(hipDeviceTotalMem, &facts->memory, ordinal);
    stw_status status = stw_hip_device_arch(hip, ordinal, facts->arch);
    if (status != STW_OK) return status;
    stw_log(STW_LOG_INFO, "hip: runtime version %d, device %d of %d \"%s\": %s, %d CUs, %zu MiB", facts->version,
            (int)ordinal, facts->count, facts->name, facts->arch, facts->cu_count, facts->memory >> 20);
    return STW_OK;
}

static void hip_arch_names(stw_text *list) {
    for (size_t i = 0; i < stw_arch_count; ++i)
        if (stw_archs[i].backend == STW_BACKEND_HIP)
            stw_text_add(list, "%s%s", list->length ? ", " : "", stw_archs[i].name);
}

/* A row asked for by name must be one of HIP's: known before the runtime is touched. */
static stw_status hip_check_forced(const char *forced) {
    if (!forced || stw_arch_find(STW_BACKEND_HIP, forced)) return STW_OK;
    char names[128];
    stw_text list = stw_text_in(names, sizeof names);
    hip_arch_names(&list);
    return stw_fail(STW_E_INVALID, "hip: arch \"%s\" is no HIP arch; accepted: %s", forced, names);
}

/* A code object runs on its own gfx target only: the row is the device's or none. */
static stw_status hip_choose(const stw_open_request *request, const hip_facts *facts, const stw_arch **arch_out,
                             const stw_image **image_out) {
    char built[256], names[128];
    stw_text images = stw_text_in(built, sizeof built), list = stw_text_in(names, sizeof names);
    stw_image_list(&stw_images, &images);
    hip_arch_names(&list);
    *arch_out = stw_arch_find(STW_BACKEND_HIP, facts->arch);
    if (!*arch_out)
        return stw_fail(STW_E_NO_IMAGE,
                        "hip: device %d \"%s\" is %s, which this library has no kernels for; archs: %s (images in "
                        "this build: %s)",
                        (int)request->device, facts->name, facts->arch, names, built);
    if (request->forced_arch && strcmp(request->forced_arch, facts->arch))
        return stw_fail(STW_E_NO_IMAGE, "hip: device %d \"%s\" is %s, which does not run %s kernels; accepted: %s",
                        (int)request->device, facts->name, facts->arch, request->forced_arch, facts->arch);
    *image_out = stw_image_find(&stw_images, STW_BACKEND_HIP, facts->arch, STW_IMAGE_CODE_OBJECT);
    if (*image_out) return STW_OK;
    return stw_fail(STW_E_NO_IMAGE,
                    "hip: device %d \"%s\" is %s; this build holds no HIP kernels for it (images in this build: %s)",
                    (int)request->device, facts->name, facts->arch, built);
}

static stw_status hip_open(const stw_open_request *request, stw_device *device_out) {
    const stw_hip_functions *hip;
    hip_facts facts = {0};
    const stw_arch *arch = NULL;
    const stw_image *image = NULL;
    stw_hip_state *state = NULL;
    stw_status status = hip_check_forced(request->forced_arch);
    if (status == STW_OK) status = stw_hip_start(&hip);
    if (status == STW_OK) status = hip_ask(hip, request->device, &facts);
    if (status == STW_OK) status = hip_choose(request, &facts, &arch, &image);
    if (status == STW_OK)
        status = stw_hip_state_create(
            hip, request->device, facts.version, image,
            stw_image_find(&stw_jagged_images, STW_BACKEND_HIP, facts.arch, STW_IMAGE_CODE_OBJECT), &state);
    if (status != STW_OK) return status;
    state->pageable = facts.pageable;
    state->gpu.trust_pointers = request->env->trust_pointers;
    state->gpu.cp_image = stw_image_find(&stw_cp_images, STW_BACKEND_HIP, facts.arch, STW_IMAGE_CODE_OBJECT);
    if (facts.version >= STW_HIP_ROCM_8 && (status = stw_hip_state_prove(state, facts.cu_count, facts.smem))) {
        stw_hip_state_destroy(state);
        return status;
    }
    *device_out = (stw_device){.arch = arch,
                               .compute_units = (uint32_t)facts.cu_count,
                               .smem_max = (uint32_t)facts.smem,
                               .memory_bytes = facts.memory,
                               .state = state};
    snprintf(device_out->name, sizeof device_out->name, "%s", facts.name);
    return STW_OK;
}

static void hip_close(stw_device *device) {
    stw_hip_state_destroy(device->state);
    memset(device, 0, sizeof *device);
}

const stw_backend_ops stw_hip_backend = {
    .backend = STW_BACKEND_HIP,
    .open = hip_open,
    .close = hip_close,
    .variant_refusal = stw_gpu_variant_refusal,
    .attn_prepare = stw_gpu_attn_prepare,
    .attn_bwd = stw_gpu_attn_bwd,
    .attn_fwd = stw_gpu_attn_fwd,
    .copies = STW_COPY_SPREADS | STW_COPY_ALIGNS,
    .stage = stw_gpu_stage,
    .dropout_mask = stw_gpu_dropout_mask,
    .jagged_prepare = stw_gpu_jagged_prepare,
    .jagged_bwd = stw_gpu_jagged_bwd,
    .cp_open = stw_gpu_cp_open,
    .cp_close = stw_gpu_cp_close,
    .cp_check = stw_gpu_cp_check,
    .cp_cast = stw_gpu_cp_cast,
    .cp_merge = stw_gpu_cp_merge,
    .cp_order = stw_gpu_cp_order,
    .buffer_alloc = stw_hip_buffer_alloc,
    .buffer_free = stw_hip_buffer_free,
    .copy = stw_hip_copy,
    .stream_create = stw_hip_stream_create,
    .stream_synchronize = stw_hip_stream_synchronize,
    .stream_destroy = stw_hip_stream_destroy,
};
