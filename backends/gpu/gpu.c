/* SPDX-License-Identifier: MIT
 *
 * An opened GPU: entering and leaving it, its loss, its kernels, which are found when the first plan asks for
 * them. Plan time only: run calls use the kernels that the plan holds. */
#include "backends/gpu/gpu.h"

#include "common/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICE_WORKS, DEVICE_FAILING, DEVICE_LOST };

void stw_gpu_init(stw_gpu *gpu, const stw_gpu_ops *ops, int ordinal, const stw_image *image) {
    memset(gpu, 0, sizeof *gpu);
    gpu->ops = ops;
    gpu->ordinal = ordinal;
    gpu->image = image;
    atomic_init(&gpu->lost, DEVICE_WORKS);
    pthread_mutex_init(&gpu->lock, NULL);
}

void stw_gpu_end(stw_gpu *gpu) {
    for (stw_gpu_kernel *kernel = gpu->kernels, *next; kernel; kernel = next) {
        next = kernel->next;
        free(kernel);
    }
    pthread_mutex_destroy(&gpu->lock);
}

/* The text is complete before the state says so; of several threads that fail at once the first one's words
 * stay. */
stw_status stw_gpu_note(stw_gpu *gpu, stw_status status) {
    int works = DEVICE_WORKS;
    if (status == STW_E_DEVICE_LOST && atomic_compare_exchange_strong(&gpu->lost, &works, DEVICE_FAILING)) {
        snprintf(gpu->lost_text, sizeof gpu->lost_text, "%s", stw_last_error());
        atomic_store_explicit(&gpu->lost, DEVICE_LOST, memory_order_release);
    }
    return status;
}

stw_status stw_gpu_enter(stw_gpu *gpu, const char *who, int *before_out) {
    if (gpu->ops->forked())
        return stw_fail(STW_E_FORKED,
                        "%s: this context was made before the process forked; a GPU is usable in a child only "
                        "when its parent has not used it before (process %d)",
                        who, (int)getpid());
    int lost = atomic_load_explicit(&gpu->lost, memory_order_acquire);
    if (lost != DEVICE_WORKS)
        return stw_fail(STW_E_DEVICE_LOST, "%s: the device was lost: %s; the process must be started again", who,
                        lost == DEVICE_LOST ? gpu->lost_text : "another thread's call failed");
    return gpu->ops->make_current(gpu, before_out);
}

/* The first failure's words stay. */
stw_status stw_gpu_leave(stw_gpu *gpu, int before, stw_status status) {
    char words[512];
    if (status) snprintf(words, sizeof words, "%s", stw_last_error());
    stw_status restored = gpu->ops->restore(gpu, before);
    if (!status) return restored;
    return restored ? stw_fail(status, "%s", words) : status;
}

stw_status stw_gpu_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer, int written) {
    return gpu->trust_pointers ? STW_OK : gpu->ops->check_pointer(gpu, who, name, pointer, written);
}

void *stw_gpu_module_of(const stw_gpu *gpu, stw_kernel_image image) {
    if (image == STW_KERNEL_JAGGED) return gpu->jagged_module;
    if (image == STW_KERNEL_JAGGED_OWN) return gpu->jagged_own_module;
    if (image == STW_KERNEL_CP) return gpu->cp_module;
    return image == STW_KERNEL_ATTN && gpu->shared_module ? gpu->shared_module : gpu->module;
}

static stw_status kernel_add(stw_gpu *gpu, const stw_gpu_entry *entry, const stw_gpu_kernel **kernel_out) {
    int other = entry->image == STW_KERNEL_JAGGED       ? 1
                : entry->image == STW_KERNEL_JAGGED_OWN ? 2
                : entry->image == STW_KERNEL_CP         ? 3
                                                        : 0;
    int loaded = (other ? stw_gpu_module_of(gpu, entry->image) : gpu->module) != NULL;
    stw_status status = loaded ? STW_OK : gpu->ops->module_load(gpu, other);
    if (status) return status;
    stw_gpu_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return stw_fail(STW_E_NO_MEMORY, "%s: no memory for kernel %s", gpu->ops->who, entry->name);
    snprintf(kernel->name, sizeof kernel->name, "%s", entry->name);
    kernel->image = entry->image;
    kernel->threads = entry->threads;
    kernel->smem = entry->smem;
    kernel->early = kernel->asks_early = entry->early;
    status = gpu->ops->kernel_load(gpu, kernel);
    if (status) {
        free(kernel);
        return status;
    }
    kernel->next = gpu->kernels;
    gpu->kernels = kernel;
    *kernel_out = kernel;
    return STW_OK;
}

static int is_entry(const stw_gpu_kernel *kernel, const stw_gpu_entry *entry) {
    return kernel->threads == entry->threads && kernel->smem == entry->smem && kernel->asks_early == entry->early &&
           !strcmp(kernel->name, entry->name);
}

stw_status stw_gpu_kernel_find(stw_gpu *gpu, const stw_gpu_entry *entry, const stw_gpu_kernel **kernel_out) {
    int cancel = stw_lock(&gpu->lock);
    stw_gpu_kernel *kernel = gpu->kernels;
    while (kernel && !is_entry(kernel, entry)) kernel = kernel->next;
    stw_status status = STW_OK;
    if (kernel) *kernel_out = kernel;
    else status = kernel_add(gpu, entry, kernel_out);
    stw_unlock(&gpu->lock, cancel);
    return status;
}
