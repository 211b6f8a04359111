/* SPDX-License-Identifier: MIT
 *
 * What devices this machine has, without starting a driver. Two steps: gathering facts (files under a
 * root folder, NVML), and a pure function from facts to the device list. Called by stw_devices; tests
 * give recorded folders as root. */
#ifndef STW_DISPATCH_PROBE_H
#define STW_DISPATCH_PROBE_H

#include "backends/gpu/image.h"
#include "backends/gpu/kfd.h"

#define STW_PROBE_NVIDIA_MAX 64

typedef struct stw_probe_nvidia {
    int major, minor; /* compute capability; 0.0 = not known */
    uint64_t memory_bytes;
    char name[96];
    char uuid[48];
    char note[96]; /* what NVML could not tell, or "" */
} stw_probe_nvidia;

typedef struct stw_probe_facts {
    stw_image_set images; /* what this build can run */

    stw_kfd kfd;
    size_t amd_count;               /* of kfd.gpus those that AMD's runtimes show this process, */
    uint32_t amd[STW_KFD_GPUS_MAX]; /* in their order */

    int nvml_works;      /* NVML answered: its list is the truth         */
    size_t nvidia_count; /* records of NVML                              */
    stw_probe_nvidia nvidia[STW_PROBE_NVIDIA_MAX];
    char nvml_note[160];    /* why NVML does not work, or ""                */
    size_t nvidia_nodes;    /* /dev/nvidia0, /dev/nvidia1, ...              */
    char nvidia_driver[32]; /* version of the loaded kernel module, or ""   */

    uint32_t cpu_threads; /* that this process may use                     */
    uint64_t cpu_memory;
    char cpu_name[96];
} stw_probe_facts;

/* Everything but NVML. `root`: "" for the machine, a folder for a recorded one. Zeroes the NVML part and
 * sets `images` to this build's. */
void stw_probe_gather(const char *root, stw_probe_facts *facts_out);

/* Numbers AMD's GPUs as the runtimes do: what ROCR_VISIBLE_DEVICES names, in its order, and of these what
 * HIP_VISIBLE_DEVICES (CUDA_VISIBLE_DEVICES where that one is empty) names. NULL: not set. */
void stw_probe_show_amd(stw_probe_facts *facts, const char *rocr, const char *hip);

/* Adds what libnvidia-ml.so.1 says; it does not start CUDA. */
void stw_probe_gather_nvml(stw_probe_facts *facts);

/* Pure: how many devices the facts make, and the one at `index`: NVIDIA by NVML's order, AMD by the runtimes',
 * then the CPU. struct_size of `info_out` is left alone, the rest is filled. */
size_t stw_probe_count(const stw_probe_facts *facts);
void stw_probe_device(const stw_probe_facts *facts, size_t index, stw_device_info *info_out);

#endif
