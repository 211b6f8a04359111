/* SPDX-License-Identifier: MIT
 *
 * Life of an opened HIP device: making it current and undoing that, its code object as a
 * module; what a run call asks the runtime, and the launch of one kernel. */
#include "backends/hip/device.h"

#include "backends/gpu/blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

stw_status stw_hip_check(stw_hip_state *state, stw_status otherwise, const char *call, int error) {
    return error ? stw_gpu_note(&state->gpu, stw_hip_fail(otherwise, call, error)) : STW_OK;
}

stw_status stw_hip_check_in(stw_hip_state *state, const char *who, stw_stream stream, stw_status otherwise,
                            const char *call, int error) {
    stw_status status = stw_hip_check(state, otherwise, call, error);
    if (error != STW_HIP_CONTEXT_IS_DESTROYED) return status;
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(STW_E_INVALID, "%s: stream %p is destroyed or no stream, accepted: a stream of device %d; %s", who,
                    stream, state->gpu.ordinal, reason);
}

static stw_status hip_make_current(stw_gpu *gpu, int *before_out) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int before = gpu->ordinal;
    stw_status status = stw_hip_check(state, STW_E_DRIVER, "hipGetDevice", state->hip->hipGetDevice(&before));
    *before_out = before;
    if (status || before == gpu->ordinal) return status;
    return stw_hip_check(state, STW_E_DRIVER, "hipSetDevice", state->hip->hipSetDevice(gpu->ordinal));
}

static stw_status hip_restore(stw_gpu *gpu, int before) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    if (before == gpu->ordinal) return STW_OK;
    return stw_hip_check(state, STW_E_DRIVER, "hipSetDevice", state->hip->hipSetDevice(before));
}

/* Errors that say "this runtime cannot run this image". */
static int module_error_is_image(int error) {
    return error == STW_HIP_INVALID_IMAGE || error == STW_HIP_NO_BINARY_FOR_GPU ||
           error == STW_HIP_INVALID_KERNEL_FILE || error == STW_HIP_INVALID_SOURCE ||
           error == STW_HIP_SHARED_OBJECT_INIT_FAILED;
}

static void free_image(stw_hip_image_copy *copy) {
    if (copy->bytes) munmap(copy->at, copy->bytes);
    copy->bytes = 0;
}

/* Images are embedded packed. Asked to load from an address inside a mapped file, the runtime would open that file
 * again, by its name up to the first blank: another file after an update, none after a chroot. Anonymous memory has no
 * file. The runtime reads the image until the module is unloaded. */
static stw_status copy_image(const stw_image *image, stw_hip_image_copy *copy) {
    copy->bytes = stw_image_size(image);
    copy->at = mmap(NULL, copy->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy->at == MAP_FAILED) {
        copy->bytes = 0;
        return stw_fail(STW_E_NO_MEMORY, "hip: no memory for a copy of the image %s", image->arch);
    }
    if (stw_image_unpack(image, copy->at)) return STW_OK;
    free_image(copy);
    return stw_fail(STW_E_NO_IMAGE, "hip: the image %s of this library is damaged", image->arch);
}

static stw_status hip_module_load(stw_gpu *gpu, int other) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    const stw_image *image = other == 3 ? gpu->cp_image : other ? gpu->jagged_image : gpu->image;
    stw_hip_image_copy copy, *kept = other == 3 ? &state->cp_copy : other ? &state->jagged_copy : &state->copy;
    void *module = NULL, **module_out = other == 3 ? &gpu->cp_module : other ? &gpu->jagged_module : &gpu->module;
    stw_status status = copy_image(image, &copy);
    if (status) return status;
    int error = state->hip->hipModuleLoadData(&module, copy.at);
    if (!error) {
        *module_out = module;
        *kept = copy;
        return STW_OK;
    }
    free_image(&copy);
    status =
        stw_hip_check(state, module_error_is_image(error) ? STW_E_NO_IMAGE : STW_E_DRIVER, "hipModuleLoadData", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; image %s %s, runtime version %d%s", reason, image->arch,
                    stw_image_kind_name(image->kind), state->version,
                    status == STW_E_NO_IMAGE ? ", a newer ROCm is needed" : "");
}

/* All 64 KB of LDS are there without being asked for. */
static stw_status hip_kernel_load(stw_gpu *gpu, stw_gpu_kernel *kernel) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int error =
        state->hip->hipModuleGetFunction(&kernel->function, stw_gpu_module_of(gpu, kernel->image), kernel->name);
    if (!error) return STW_OK;
    stw_status status = stw_hip_check(state, STW_E_INTERNAL, "hipModuleGetFunction", error);
    char reason[320];
    snprintf(reason, sizeof reason, "%s", stw_last_error());
    return stw_fail(status, "%s; kernel %s", reason, kernel->name);
}

/* ---- a run call: its pointers, its stream, one launch ---- */

enum {
    MEMORY_UNKNOWN,
    MEMORY_HOST,
    MEMORY_DEVICE,
    MEMORY_MANAGED,
    MEMORY_PAGEABLE,
    MEMORY_MAPPED,
    MEMORY_MAPPED_FOR_READING
};

static int memory_of(const stw_hip_state *state, const stw_hip_pointer *pointer) {
    static const int since_6[] = {MEMORY_UNKNOWN, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED};
    static const int in_5[] = {MEMORY_HOST, MEMORY_DEVICE, MEMORY_UNKNOWN, MEMORY_UNKNOWN, MEMORY_MANAGED};
    if (pointer->managed) return MEMORY_MANAGED;
    if (state->version >= STW_HIP_ROCM_6) return pointer->type >= 0 && pointer->type < 4 ? since_6[pointer->type] : 0;
    return pointer->type >= 0 && pointer->type < 5 ? in_5[pointer->type] : 0;
}

/* What hipExtMallocWithFlags was told, which the runtime gives back; 0 of hipMalloc and memory pools. */
enum { FINE_GRAINED = 1, UNCACHED = 3, CONTIGUOUS = 4 /* uncached, too */ };

static const char *kind_of(unsigned flags) {
    switch (flags) {
    case FINE_GRAINED: return "fine-grained memory";
    case UNCACHED:
    case CONTIGUOUS: return "uncached memory";
    default: return "memory of unknown flags";
    }
}

static void forget_error(const stw_hip_functions *hip) {
    if (hip->hipGetLastError) hip->hipGetLastError();
}

/* Where the device reaches pageable memory (an MI300A, or XNACK on) the runtime may have one object for all of it,
 * which begins at 0x100 and says of itself that it is memory of device 0. */
static int in_pageable_object(const stw_hip_state *state, const void *pointer) {
    enum { FIRST_PAGE = 4096 };
    void *base = NULL;
    size_t bytes = 0;
    if (!state->pageable || !state->hip->hipMemGetAddressRange) return 0;
    int error = state->hip->hipMemGetAddressRange(&base, &bytes, (void *)(uintptr_t)pointer);
    if (error) forget_error(state->hip);
    return !error && (uintptr_t)base < FIRST_PAGE;
}

/* Memory that the runtime has no attributes of: mapped by hipMemMap, where hipMemGetAccess knows it, pageable
 * where the device may read it, else none. */
static int unattributed(const stw_hip_state *state, const void *pointer) {
    const stw_hip_location here = {STW_HIP_LOCATION_DEVICE, state->gpu.ordinal};
    unsigned long long access = 0;
    int error = !state->hip->hipMemGetAccess || state->hip->hipMemGetAccess(&access, &here, (void *)(uintptr_t)pointer);
    if (error) forget_error(state->hip);
    if (!error && access & STW_HIP_ACCESS_WRITE) return MEMORY_MAPPED;
    if (!error && access & STW_HIP_ACCESS_READ) return MEMORY_MAPPED_FOR_READING;
    return state->pageable ? MEMORY_PAGEABLE : MEMORY_UNKNOWN;
}

static const char *words_for(int memory) {
    switch (memory) {
    case MEMORY_MANAGED: return "managed memory";
    case MEMORY_HOST: return "page-locked host memory";
    case MEMORY_PAGEABLE: return "pageable host memory";
    case MEMORY_MAPPED_FOR_READING: return "memory of hipMemMap that this device may only read";
    default: return "no memory that HIP knows";
    }
}

static int accepts(int memory, int written) {
    switch (memory) {
    case MEMORY_DEVICE:
    case MEMORY_MAPPED: return 1;
    case MEMORY_MANAGED:
    case MEMORY_PAGEABLE:
    case MEMORY_MAPPED_FOR_READING: return !written;
    default: return 0;
    }
}

/* Errors that say no more than that the runtime has nothing to tell of a pointer. */
static int error_is_silence(int error) { return error == STW_HIP_INVALID_VALUE || error == STW_HIP_OUT_OF_MEMORY; }

#define TRUST "; STERNWAY_POINTERS=trust does not ask"

/* Floats can be added to memory that the device caches. Past its cache gfx90a has no such addition: in
 * fine-grained, uncached, managed and pageable memory it does nothing and says nothing. Our kernels add to workspaces,
 * and hipBLASLt's may add parts of a sum to an output: neither may be such memory, inputs may. gfx942 does
 * add there. It refuses all the same: slowly, never tried, and what one of the two takes the other should
 * take. */
stw_status stw_hip_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    stw_hip_pointer about = {.device = -1};
    int error = state->hip->hipPointerGetAttributes(&about, pointer);
    if (error_is_silence(error)) forget_error(state->hip);
    else if (error) return stw_hip_check(state, STW_E_DRIVER, "hipPointerGetAttributes", error);
    int memory = error ? MEMORY_UNKNOWN : memory_of(state, &about);
    if (memory == MEMORY_DEVICE && in_pageable_object(state, pointer)) memory = MEMORY_PAGEABLE;
    if (memory == MEMORY_UNKNOWN) memory = unattributed(state, pointer);
    if (memory == MEMORY_DEVICE && about.device != gpu->ordinal)
        return stw_fail(STW_E_INVALID, "%s: %s %p is memory of device %d, accepted: memory of device %d" TRUST, who,
                        name, pointer, about.device, gpu->ordinal);
    if (memory == MEMORY_DEVICE && written && about.flags)
        return stw_fail(STW_E_INVALID,
                        "%s: %s %p is %s of device %d (flags 0x%x of hipExtMallocWithFlags), accepted: "
                        "memory of device %d from hipMalloc" TRUST,
                        who, name, pointer, kind_of(about.flags), about.device, about.flags, gpu->ordinal);
    if (accepts(memory, written)) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: %s %p is %s, accepted: memory of device %d" TRUST, who, name, pointer,
                    words_for(memory), gpu->ordinal);
}

/* NULL and the two special handles are the default streams of the current device: this one. A runtime that
 * cannot say is left to the launch. */
stw_status stw_hip_check_stream(stw_gpu *gpu, const char *who, stw_stream stream) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int device = gpu->ordinal;
    if ((uintptr_t)stream <= 2 || !state->hip->hipStreamGetDevice) return STW_OK;
    int error = state->hip->hipStreamGetDevice(stream, &device);
    if (error) return stw_hip_check_in(state, who, stream, STW_E_INVALID, "hipStreamGetDevice", error);
    if (device == gpu->ordinal) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: stream %p belongs to device %d, accepted: a stream of device %d", who, stream,
                    device, gpu->ordinal);
}

stw_status stw_hip_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                          stw_stream stream, void **arguments) {
    stw_hip_state *state = (stw_hip_state *)gpu;
    int error = state->hip->hipModuleLaunchKernel(kernel->function, grid_x, grid_y, 1, kernel->threads, 1, 1,
                                                  kernel->smem, stream, arguments, NULL);
    return stw_hip_check_in(state, gpu->ops->who, stream, STW_E_DRIVER, "hipModuleLaunchKernel", error);
}

/* ---- runtimes newer than those whose headers were read ---- */

static stw_status contradicts(const stw_hip_state *state, const char *what) {
    return stw_fail(STW_E_NO_DRIVER,
                    "hip: runtime version %d is newer than ROCm 7, and %s: this library reads ROCm 5 to 7 and what "
                    "agrees with them",
                    state->version, what);
}

/* Memory of hipMalloc must be what the calls of ROCm 7 say of it, and bytes must come back. */
static stw_status prove_memory(stw_hip_state *state, void *memory) {
    const stw_hip_functions *hip = state->hip;
    stw_hip_pointer about = {.device = -1};
    char what[160];
    uint64_t sent = 0x0123456789abcdefu, back = 0;
    int error = hip->hipPointerGetAttributes(&about, memory);
    if (error) return stw_hip_check(state, STW_E_DRIVER, "hipPointerGetAttributes", error);
    if (memory_of(state, &about) != MEMORY_DEVICE || about.device != state->gpu.ordinal ||
        about.device_pointer != memory || about.flags) {
        snprintf(what, sizeof what,
                 "hipPointerGetAttributes says type %d, device %d, flags 0x%x of memory from hipMalloc on device %d",
                 about.type, about.device, about.flags, state->gpu.ordinal);
        return contradicts(state, what);
    }
    error = hip->hipMemcpyAsync(memory, &sent, sizeof sent, STW_HIP_COPY_DEFAULT, NULL);
    if (!error) error = hip->hipMemcpyAsync(&back, memory, sizeof back, STW_HIP_COPY_DEFAULT, NULL);
    if (!error) error = hip->hipStreamSynchronize(NULL);
    if (error) return stw_hip_check(state, STW_E_DRIVER, "hipMemcpyAsync", error);
    return back == sent ? STW_OK : contradicts(state, "hipMemcpyAsync of kind 4 does not copy");
}

stw_status stw_hip_state_prove(stw_hip_state *state, int cu_count, int smem) {
    int before;
    void *memory = NULL;
    char what[96];
    if (cu_count < 1 || cu_count > 4096 || smem < 16384 || smem > 1 << 20) {
        snprintf(what, sizeof what, "hipDeviceGetAttribute says %d CUs and %d bytes of LDS", cu_count, smem);
        return contradicts(state, what);
    }
    stw_status status = stw_gpu_enter(&state->gpu, "hip", &before);
    if (status) return status;
    status = stw_hip_check(state, STW_E_DRIVER, "hipMalloc", state->hip->hipMalloc(&memory, 256));
    if (!status) {
        status = prove_memory(state, memory);
        state->hip->hipFree(memory);
    }
    return stw_gpu_leave(&state->gpu, before, status);
}

static const stw_gpu_ops hip_ops = {
    .who = "hip",
    .wave = 64,
    .forked = stw_hip_forked,
    .make_current = hip_make_current,
    .restore = hip_restore,
    .module_load = hip_module_load,
    .kernel_load = hip_kernel_load,
    .check_stream = stw_hip_check_stream,
    .check_pointer = stw_hip_check_pointer,
    .launch = stw_hip_launch,
    .blas = &stw_hip_blas,
    .side_open = stw_hip_side_open,
    .side_close = stw_hip_side_close,
    .order = stw_hip_order,
};

stw_status stw_hip_state_create(const stw_hip_functions *hip, int ordinal, int version, const stw_image *image,
                                const stw_image *jagged, stw_hip_state **state_out) {
    stw_hip_state *state = calloc(1, sizeof *state);
    if (!state) return stw_fail(STW_E_NO_MEMORY, "hip: no memory for the state of device %d", ordinal);
    stw_gpu_init(&state->gpu, &hip_ops, ordinal, image);
    state->gpu.jagged_image = jagged;
    state->hip = hip;
    state->version = version;
    state->flushes = !strcmp(image->arch, "gfx90a");
    *state_out = state;
    return STW_OK;
}

/* Nothing is reported from here: a runtime that is shutting down refuses, and the memory goes all the same. */
void stw_hip_state_destroy(stw_hip_state *state) {
    const stw_hip_functions *hip = state->hip;
    int mine = state->gpu.ordinal, before = mine;
    if ((state->gpu.module || state->gpu.jagged_module || state->gpu.cp_module) && !stw_hip_forked()) {
        if (!hip->hipGetDevice(&before) && (before == mine || !hip->hipSetDevice(mine))) {
            /* hipblasLtDestroy ends the process when the device does not work */
            if (state->gpu.blas) stw_blas_end(&state->gpu, !hip->hipStreamSynchronize(NULL));
            if (state->gpu.cp_module) hip->hipModuleUnload(state->gpu.cp_module);
            if (state->gpu.jagged_module) hip->hipModuleUnload(state->gpu.jagged_module);
            if (state->gpu.module) hip->hipModuleUnload(state->gpu.module);
            free_image(&state->cp_copy);
            free_image(&state->jagged_copy);
            free_image(&state->copy);
        }
        if (before != mine) hip->hipSetDevice(before);
        if (hip->hipGetLastError) hip->hipGetLastError();
    }
    stw_blas_end(&state->gpu, 0);
    stw_gpu_end(&state->gpu);
    free(state); /* the images stay where a runtime that could not be asked may still read them */
}
