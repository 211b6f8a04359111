/* SPDX-License-Identifier: MIT
 *
 * The CUDA backend's table for dispatch, and opening a device. Driver API only; the caller's current context
 * is never changed. */
#include "backends/cuda/device.h"
#include "backends/gpu/arch.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>

typedef struct cuda_facts {
    int version, count, device, major, minor, sm_count, smem_optin;
    size_t memory;
    char name[96], arch[32];
} cuda_facts;

#define CUDA_TRY(call, ...)                                                                                            \
    do {                                                                                                               \
        int cuda_error = cuda->call(__VA_ARGS__);                                                                      \
        if (cuda_error) return stw_cuda_fail(STW_E_DRIVER, #call, cuda_error);                                         \
    } while (0)

static stw_status cuda_ask(const stw_cuda_functions *cuda, int32_t ordinal, cuda_facts *facts) {
    CUDA_TRY(cuDriverGetVersion, &facts->version);
    CUDA_TRY(cuDeviceGetCount, &facts->count);
    if (facts->count < 1) return stw_fail(STW_E_NO_DEVICE, "cuda: the driver shows no device");
    if (ordinal < 0 || ordinal >= facts->count)
        return stw_fail(STW_E_NO_DEVICE, "cuda: device %d does not exist: the driver shows %d (0..%d)", (int)ordinal,
                        facts->count, facts->count - 1);
    CUDA_TRY(cuDeviceGet, &facts->device, ordinal);
    CUDA_TRY(cuDeviceGetName, facts->name, (int)sizeof facts->name, facts->device);
    facts->name[sizeof facts->name - 1] = 0;
    CUDA_TRY(cuDeviceGetAttribute, &facts->major, STW_CUDA_CC_MAJOR, facts->device);
    CUDA_TRY(cuDeviceGetAttribute, &facts->minor, STW_CUDA_CC_MINOR, facts->device);
    CUDA_TRY(cuDeviceGetAttribute, &facts->sm_count, STW_CUDA_SM_COUNT, facts->device);
    CUDA_TRY(cuDeviceGetAttribute, &facts->smem_optin, STW_CUDA_SMEM_OPTIN, facts->device);
    CUDA_TRY(cuDeviceTotalMem_v2, &facts->memory, facts->device);
    if (!stw_arch_of_cc(facts->major, facts->minor, facts->arch))
        return stw_fail(STW_E_DRIVER, "cuda: device %d \"%s\" has compute capability %d.%d, which is none",
                        (int)ordinal, facts->name, facts->major, facts->minor);
    stw_log(STW_LOG_INFO, "cuda: driver of CUDA %d.%d, device %d of %d \"%s\": %s, %d SMs, %zu MiB",
            facts->version / 1000, facts->version % 1000 / 10, (int)ordinal, facts->count, facts->name, facts->arch,
            facts->sm_count, facts->memory >> 20);
    return STW_OK;
}

/* A row asked for by name must be one of CUDA's: known before the driver is touched. */
static stw_status cuda_check_forced(const char *forced) {
    if (!forced || stw_arch_find(STW_BACKEND_CUDA, forced)) return STW_OK;
    char names[128];
    stw_text list = stw_text_in(names, sizeof names);
    for (size_t i = 0; i < stw_arch_count; ++i)
        if (stw_archs[i].backend == STW_BACKEND_CUDA)
            stw_text_add(&list, "%s%s", list.length ? ", " : "", stw_archs[i].name);
    return stw_fail(STW_E_INVALID, "cuda: arch \"%s\" is no CUDA arch; accepted: %s", forced, names);
}

static stw_status cuda_no_row(const stw_open_request *request, const cuda_facts *facts) {
    char runnable[64];
    stw_text list = stw_text_in(runnable, sizeof runnable);
    const stw_arch *row;
    for (size_t i = 0; (row = stw_cuda_row_of_cc(facts->major, facts->minor, i)) != NULL; ++i)
        stw_text_add(&list, "%s%s", list.length ? ", " : "", row->name);
    if (!list.length)
        return stw_fail(
            STW_E_NO_IMAGE,
            "cuda: device %d \"%s\" is %s; compute capability 8.0 is the oldest this library has kernels for",
            (int)request->device, facts->name, facts->arch);
    return stw_fail(STW_E_NO_IMAGE, "cuda: device %d \"%s\" is %s, which does not run %s kernels; accepted: %s",
                    (int)request->device, facts->name, facts->arch, request->forced_arch, runnable);
}

/* The row whose kernels run on the device and that this build has an image of. */
static stw_status cuda_choose(const stw_open_request *request, const stw_cuda_functions *cuda, const cuda_facts *facts,
                              const stw_arch **arch_out, const stw_image **image_out, const stw_image **shared_out) {
    const stw_arch *row, *forced = request->forced_arch ? stw_arch_find(STW_BACKEND_CUDA, request->forced_arch) : NULL;
    int runs = 0;
    for (size_t i = 0; (row = stw_cuda_row_of_cc(facts->major, facts->minor, i)) != NULL; ++i)
        runs |= !forced || forced == row;
    if (!runs) return cuda_no_row(request, facts);
    const stw_image *image = stw_cuda_image(&stw_images, facts->major, facts->minor, forced);
    const stw_image *shared = stw_cuda_image(&stw_images, facts->major, facts->minor, STW_CUDA_SHARED_ARCH);
    if (image && image != shared) { /* an image of own kernels beside the shared ones */
        int maps = cuda->cuTensorMapEncodeTiled != NULL;
        if (!maps && request->forced_arch)
            return stw_fail(STW_E_NO_DRIVER,
                            "cuda: libcuda.so.1 (CUDA %d.%d) lacks cuTensorMapEncodeTiled, which %s kernels need: "
                            "install a newer driver",
                            facts->version / 1000, facts->version % 1000 / 10, image->arch);
        if (!maps) stw_log(STW_LOG_INFO, "cuda: no %s kernels: the driver lacks cuTensorMapEncodeTiled", image->arch);
        if (maps && shared) *shared_out = shared;
        else image = request->forced_arch ? NULL : shared;
    }
    *image_out = image;
    if (image) {
        *arch_out = stw_arch_find(STW_BACKEND_CUDA, image->arch);
        if (*arch_out) return STW_OK;
        return stw_fail(STW_E_INTERNAL, "cuda: image of arch \"%s\", which is not in arch.def", image->arch);
    }
    char built[256];
    stw_text list = stw_text_in(built, sizeof built);
    stw_image_list(&stw_images, &list);
    return stw_fail(STW_E_NO_IMAGE,
                    "cuda: device %d \"%s\" is %s; this build holds no %s%sCUDA kernels for it (images in "
                    "this build: %s)",
                    (int)request->device, facts->name, facts->arch, request->forced_arch ? request->forced_arch : "",
                    request->forced_arch ? " " : "", built);
}

static stw_status cuda_open(const stw_open_request *request, stw_device *device_out) {
    const stw_cuda_functions *cuda;
    cuda_facts facts = {0};
    const stw_arch *arch = NULL;
    const stw_image *image = NULL, *shared = NULL;
    stw_cuda_state *state = NULL;
    stw_status status = cuda_check_forced(request->forced_arch);
    if (status == STW_OK) status = stw_cuda_start(&cuda);
    if (status == STW_OK) status = cuda_ask(cuda, request->device, &facts);
    if (status == STW_OK) status = cuda_choose(request, cuda, &facts, &arch, &image, &shared);
    if (status == STW_OK)
        status = stw_cuda_state_create(
            cuda, request->device, facts.device, facts.version, image, shared,
            stw_cuda_image(&stw_jagged_images, facts.major, facts.minor, STW_CUDA_SHARED_ARCH), &state);
    if (status != STW_OK) return status;
    state->gpu.trust_pointers = request->env->trust_pointers;
    state->gpu.cp_image = stw_cuda_image(&stw_cp_images, facts.major, facts.minor, STW_CUDA_SHARED_ARCH);
    if (arch != STW_CUDA_SHARED_ARCH && cuda->cuTensorMapEncodeTiled)
        state->gpu.jagged_own_image = stw_image_find(&stw_jagged_images, STW_BACKEND_CUDA, arch->name, STW_IMAGE_CUBIN);
    *device_out = (stw_device){.arch = arch,
                               .compute_units = (uint32_t)facts.sm_count,
                               .smem_max = (uint32_t)facts.smem_optin,
                               .memory_bytes = facts.memory,
                               .state = state};
    snprintf(device_out->name, sizeof device_out->name, "%s", facts.name);
    return STW_OK;
}

static void cuda_close(stw_device *device) {
    stw_cuda_state_destroy(device->state);
    memset(device, 0, sizeof *device);
}

const stw_backend_ops stw_cuda_backend = {
    .backend = STW_BACKEND_CUDA,
    .open = cuda_open,
    .close = cuda_close,
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
    .buffer_alloc = stw_cuda_buffer_alloc,
    .buffer_free = stw_cuda_buffer_free,
    .copy = stw_cuda_copy,
    .stream_create = stw_cuda_stream_create,
    .stream_synchronize = stw_cuda_stream_synchronize,
    .stream_destroy = stw_cuda_stream_destroy,
};
