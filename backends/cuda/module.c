/* SPDX-License-Identifier: MIT
 *
 * The image as a module and its kernels, loaded when the first plan asks for them. Plan time only: run
 * calls use the kernels that the plan holds. */
#include "backends/cuda/device.h"

#include <stdio.h>
#include <string.h>

enum { SMEM_WITHOUT_OPTIN = 48 * 1024 };

/* Errors that say "this driver cannot run this image". */
static int module_error_is_image(int error) {
    return error == STW_CUDA_INVALID_IMAGE || error == STW_CUDA_NO_BINARY_FOR_GPU || error == STW_CUDA_INVALID_PTX ||
           error == STW_CUDA_JIT_COMPILER_NOT_FOUND || error == STW_CUDA_UNSUPPORTED_PTX_VERSION ||
           error == STW_CUDA_JIT_COMPILATION_DISABLED;
}

static stw_status image_load(stw_cuda_state *state, const stw_image *image, void **module_out) {
    char words[512] = "";
    int options[] = {STW_CUDA_JIT_ERROR_LOG, STW_CUDA_JIT_ERROR_LOG_BYTES};
    void *values[] = {words, (void *)(uintptr_t)sizeof words}, *module = NULL;
    int ptx = image->kind == STW_IMAGE_PTX;
    int error =
        state->cuda->cuModuleLoadDataEx(&module, image->begin, ptx ? 2 : 0, ptx ? options : NULL, ptx ? values : NULL);
    if (!error) {
        *module_out = module;
        return STW_OK;
    }
    words[sizeof words - 1] = 0;
    words[strcspn(words, "\n")] = 0;
    stw_status status = stw_cuda_check(state, module_error_is_image(error) ? STW_E_NO_IMAGE : STW_E_DRIVER,
                                       "cuModuleLoadDataEx", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; image %s %s, driver of CUDA %d.%d%s%s%s", reason, image->arch,
                    stw_image_kind_name(image->kind), state->version / 1000, state->version % 1000 / 10,
                    status == STW_E_NO_IMAGE ? ", a newer driver is needed" : "", words[0] ? ": " : "", words);
}

stw_status stw_cuda_module_load(stw_gpu *gpu, int other) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    void *module = NULL;
    stw_status status = STW_OK;
    if (other == 3) return image_load(state, gpu->cp_image, &gpu->cp_module);
    if (other == 2) return image_load(state, gpu->jagged_own_image, &gpu->jagged_own_module);
    if (other) return image_load(state, gpu->jagged_image, &gpu->jagged_module);
    if (gpu->shared_image && !gpu->shared_module) status = image_load(state, gpu->shared_image, &gpu->shared_module);
    if (!status) status = image_load(state, gpu->image, &module);
    if (!status) gpu->module = module;
    return status;
}

/* What a launch of that function may ask for already: the opt-in of one plan must not be lowered by another. */
static uint32_t smem_granted(const stw_gpu *gpu, const char *name) {
    uint32_t granted = SMEM_WITHOUT_OPTIN;
    for (const stw_gpu_kernel *kernel = gpu->kernels; kernel; kernel = kernel->next)
        if (!strcmp(kernel->name, name) && kernel->smem > granted) granted = kernel->smem;
    return granted;
}

/* Whether kernels that begin with dev_await_previous may: their code in use is 9.0's, on a device with two images.
 * Captured, such launches become edges of a graph from CUDA 12.3 on. */
static int may_begin_early(const stw_cuda_state *state) {
    return state->gpu.shared_module && state->cuda->cuLaunchKernelEx && state->version >= 12030;
}

/* Loads the function, which a driver that loads lazily would otherwise do inside the first launch, where a
 * graph capture may be going on. */
stw_status stw_cuda_kernel_load(stw_gpu *gpu, stw_gpu_kernel *kernel) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    const stw_cuda_functions *cuda = state->cuda;
    int error = cuda->cuModuleGetFunction(&kernel->function, stw_gpu_module_of(gpu, kernel->image), kernel->name);
    if (error) {
        stw_status status = stw_cuda_check(state, STW_E_INTERNAL, "cuModuleGetFunction", error);
        char reason[320];
        snprintf(reason, sizeof reason, "%s", stw_last_error());
        return stw_fail(status, "%s; kernel %s", reason, kernel->name);
    }
    kernel->early = kernel->early && may_begin_early(state);
    if (cuda->cuFuncLoad) {
        stw_status status = stw_cuda_check(state, STW_E_DRIVER, "cuFuncLoad", cuda->cuFuncLoad(kernel->function));
        if (status) return status;
    }
    if (kernel->smem <= smem_granted(gpu, kernel->name)) return STW_OK;
    error = cuda->cuFuncSetAttribute(kernel->function, STW_CUDA_FUNC_SMEM, (int)kernel->smem);
    if (!error) return STW_OK;
    stw_status status = stw_cuda_check(state, error == STW_CUDA_INVALID_VALUE ? STW_E_UNSUPPORTED : STW_E_DRIVER,
                                       "cuFuncSetAttribute", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; kernel %s, %u bytes of shared memory", reason, kernel->name, kernel->smem);
}
