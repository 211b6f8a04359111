/* SPDX-License-Identifier: MIT
 *
 * AMD GPUs as the kernel driver lists them in /sys/class/kfd: no ROCm library, no driver start. Read by
 * the probe, and by the HIP backend where the runtime is too old to tell the arch. Whatever the files
 * hold (nothing, garbage, gigantic numbers), the result is a list with notes. */
#ifndef STW_GPU_KFD_H
#define STW_GPU_KFD_H

#include <stddef.h>
#include <stdint.h>

#define STW_KFD_GPUS_MAX 128

typedef struct stw_kfd_gpu {
    uint32_t node;        /* number of its directory                          */
    uint32_t device_id;   /* PCI device id                                    */
    uint32_t domain;      /* PCI domain                                       */
    uint32_t location_id; /* PCI bus << 8 | device << 3 | function, partition << 28 */
    uint32_t simd_count;  /* 0 = not known; so for the others                 */
    uint32_t simd_per_cu;
    uint64_t gfx_version;  /* gfx_target_version, decoded by backends/gpu/arch.h */
    uint64_t memory_bytes; /* of its memory banks                              */
    uint64_t unique_id;
    char name[32]; /* the kernel's name, "aldebaran", or ""            */
    char note[96]; /* what could not be read, or ""                    */
} stw_kfd_gpu;

typedef struct stw_kfd {
    size_t count;
    int unlisted;                       /* /dev/kfd is there and its list of devices is not */
    stw_kfd_gpu gpus[STW_KFD_GPUS_MAX]; /* in the order of their nodes, which is the runtime's order */
    char note[256];                     /* nodes left out and why, or ""                             */
} stw_kfd;

/* `root`: "" for the machine, a folder for a recorded one. */
void stw_kfd_read(const char *root, stw_kfd *kfd_out);

/* The GPU at a PCI address as the HIP runtime prints it, "0000:c1:00.0", or NULL. */
const stw_kfd_gpu *stw_kfd_at_pci(const stw_kfd *kfd, const char *address);

#endif
