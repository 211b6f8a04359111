/* SPDX-License-Identifier: MIT
 *
 * Facts about the machine, and the device list they make. The rules are in probe.h; AMD's files are read
 * by backends/gpu/kfd.c and NVML by probe_nvml.c. */
#include "dispatch/probe.h"

#include "common/cores.h"
#include "backends/gpu/arch.h"
#include "common/small_file.h"
#include "common/arch.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- gathering ---------------------------------------------------------------------------------*/

/* Counts nvidia0, nvidia1, ...; not nvidiactl, nvidia-uvm, nvidia-modeset, nvidia-caps. */
static size_t count_nvidia_nodes(const char *root) {
    char path[512];
    if ((size_t)snprintf(path, sizeof path, "%s/dev", root) >= sizeof path) return 0;
    DIR *folder = opendir(path);
    size_t count = 0;
    if (!folder) return 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *number = entry->d_name + 6;
        if (strncmp(entry->d_name, "nvidia", 6) || !*number) continue;
        size_t digits = strspn(number, "0123456789");
        if (!number[digits] && digits <= 3 && count < STW_PROBE_NVIDIA_MAX) ++count;
    }
    closedir(folder);
    return count;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...": the first word like a version. */
static void read_nvidia_driver(const char *root, char *out, size_t capacity) {
    char path[512];
    stw_small_file file;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/version", root);
    if (!stw_small_file_read(path, &file)) return;
    for (const char *word = file.data; *word && *word != '\n';) {
        size_t length = strcspn(word, " \n"), plain = strspn(word, "0123456789.");
        if (length && plain == length && memchr(word, '.', length)) {
            stw_small_file_text(word, length, out, capacity);
            return;
        }
        word += length;
        word += strspn(word, " ");
    }
}

/* The first "model name : ..." of x86; other CPUs have none. The file grows with the number of CPUs: the
 * beginning is enough. */
static void read_cpu_name(const char *root, char *out, size_t capacity) {
    char path[512];
    stw_small_file file;
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    stw_small_file_read(path, &file);
    const char *line = strstr(file.data, "model name");
    if (!line) return;
    line += strcspn(line, ":\n");
    if (*line != ':') return;
    line += 1 + strspn(line + 1, " \t");
    stw_small_file_text(line, strcspn(line, "\n"), out, capacity);
}

static void gather_cpu(const char *root, stw_probe_facts *facts) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    facts->cpu_threads = (uint32_t)stw_cores_allowed();
    facts->cpu_memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    read_cpu_name(root, facts->cpu_name, sizeof facts->cpu_name);
}

void stw_probe_gather(const char *root, stw_probe_facts *facts) {
    memset(facts, 0, sizeof *facts);
    facts->images = stw_images;
    stw_kfd_read(root, &facts->kfd);
    facts->nvidia_nodes = count_nvidia_nodes(root);
    read_nvidia_driver(root, facts->nvidia_driver, sizeof facts->nvidia_driver);
    gather_cpu(root, facts);
}

/* ---- facts to devices --------------------------------------------------------------------------*/

static size_t nvidia_devices(const stw_probe_facts *facts) {
    return facts->nvml_works ? facts->nvidia_count : facts->nvidia_nodes;
}

static void note_no_image(const stw_probe_facts *facts, const char *kernels, stw_device_info *info) {
    stw_text note = stw_text_in(info->note, sizeof info->note);
    stw_text_add(&note, "this build holds no %s kernels for %s (images in this build: ", kernels, info->arch);
    stw_image_list(&facts->images, &note);
    stw_text_add(&note, ")");
}

/* Present in /dev, but only the driver could say what it is. */
static void describe_nvidia_node(const stw_probe_facts *facts, stw_device_info *info) {
    stw_text note = stw_text_in(info->note, sizeof info->note);
    stw_text_add(&note, "arch not known before the driver starts");
    if (facts->nvidia_driver[0]) stw_text_add(&note, "; kernel module %s", facts->nvidia_driver);
    if (facts->nvml_note[0]) stw_text_add(&note, "; %s", facts->nvml_note);
}

static void describe_nvidia(const stw_probe_facts *facts, size_t index, stw_device_info *info) {
    const stw_probe_nvidia *record = &facts->nvidia[index];
    snprintf(info->name, sizeof info->name, "%s", record->name);
    snprintf(info->uuid, sizeof info->uuid, "%s", record->uuid);
    info->memory_bytes = record->memory_bytes;
    if (!stw_arch_of_cc(record->major, record->minor, info->arch)) {
        snprintf(info->note, sizeof info->note, "compute capability not known%s%s", record->note[0] ? ": " : "",
                 record->note);
    } else if (!stw_cuda_row_of_cc(record->major, record->minor, 0)) {
        snprintf(info->note, sizeof info->note, "%s is older than compute capability 8.0, which kernels need",
                 info->arch);
    } else if (!stw_cuda_image(&facts->images, record->major, record->minor, NULL)) {
        note_no_image(facts, "CUDA", info);
    } else {
        info->usable = 1;
    }
}

static void describe_amd(const stw_probe_facts *facts, size_t index, stw_device_info *info) {
    const stw_kfd_gpu *gpu = &facts->kfd.gpus[index];
    int named = gpu->name[0] && strcmp(gpu->name, "ip discovery"); /* what newer kernels say of every GPU */
    snprintf(info->name, sizeof info->name, "AMD %s, PCI device 0x%04x", named ? gpu->name : "GPU", gpu->device_id);
    if (gpu->unique_id) snprintf(info->uuid, sizeof info->uuid, "GPU-%016llx", (unsigned long long)gpu->unique_id);
    info->memory_bytes = gpu->memory_bytes;
    info->compute_units = gpu->simd_per_cu ? gpu->simd_count / gpu->simd_per_cu : 0;
    if (!stw_arch_of_gfx_version(gpu->gfx_version, info->arch)) {
        stw_text note = stw_text_in(info->note, sizeof info->note);
        stw_text_add(&note, "KFD node %u: ", gpu->node);
        if (gpu->note[0]) stw_text_add(&note, "%s", gpu->note);
        else stw_text_add(&note, "gfx_target_version %llu is no arch", (unsigned long long)gpu->gfx_version);
    } else if (!stw_arch_find(STW_BACKEND_HIP, info->arch)) {
        stw_text note = stw_text_in(info->note, sizeof info->note);
        stw_text_add(&note, "%s is not among this library's archs (images in this build: ", info->arch);
        stw_image_list(&facts->images, &note);
        stw_text_add(&note, ")");
    } else if (!stw_image_find(&facts->images, STW_BACKEND_HIP, info->arch, STW_IMAGE_CODE_OBJECT)) {
        note_no_image(facts, "HIP", info);
    } else {
        info->usable = 1;
    }
}

static void describe_cpu(const stw_probe_facts *facts, stw_device_info *info) {
    info->usable = 1;
    info->compute_units = facts->cpu_threads;
    info->memory_bytes = facts->cpu_memory;
    snprintf(info->arch, sizeof info->arch, "cpu");
    snprintf(info->name, sizeof info->name, "%s", facts->cpu_name);
}

size_t stw_probe_count(const stw_probe_facts *facts) { return nvidia_devices(facts) + facts->kfd.count + 1; }

void stw_probe_device(const stw_probe_facts *facts, size_t index, stw_device_info *info) {
    size_t nvidia = nvidia_devices(facts), amd = facts->kfd.count;
    *info = (stw_device_info){.struct_size = info->struct_size};
    if (index < nvidia) {
        info->backend = STW_BACKEND_CUDA;
        info->device = (int32_t)index;
        if (facts->nvml_works) describe_nvidia(facts, index, info);
        else describe_nvidia_node(facts, info);
    } else if (index < nvidia + amd) {
        info->backend = STW_BACKEND_HIP;
        info->device = (int32_t)(index - nvidia);
        describe_amd(facts, index - nvidia, info);
    } else {
        info->backend = STW_BACKEND_CPU;
        describe_cpu(facts, info);
    }
}
