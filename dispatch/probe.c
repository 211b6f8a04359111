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
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

/* ---- which of AMD's GPUs the runtimes show: both lists end at the first word that names no device -------------*/

enum { NOBODY = -1, WORD_CAPACITY = 32 };

/* The next word of a list, without blanks around it; 0 after the last one. A longer word names nothing. */
static int next_word(const char **list, char word[WORD_CAPACITY]) {
    if (!*list) return 0;
    size_t length = strcspn(*list, ","), blank = strspn(*list, " \t");
    const char *from = *list + (blank < length ? blank : length), *end = *list + length;
    *list = *end ? end + 1 : NULL;
    while (end > from && (end[-1] == ' ' || end[-1] == '\t')) --end;
    size_t kept = (size_t)(end - from) < WORD_CAPACITY ? (size_t)(end - from) : 0;
    memcpy(word, from, kept);
    word[kept] = 0;
    return 1;
}

/* The only GPU whose UUID begins with `word`, in either case. */
static int by_uuid(const stw_probe_facts *facts, const char *word) {
    int found = NOBODY;
    for (size_t i = 0; i < facts->kfd.count; ++i) {
        char uuid[24];
        snprintf(uuid, sizeof uuid, "GPU-%016llx", (unsigned long long)facts->kfd.gpus[i].unique_id);
        if (strlen(word) < 5 || !facts->kfd.gpus[i].unique_id || strncasecmp(uuid, word, strlen(word))) continue;
        if (found != NOBODY) return NOBODY;
        found = (int)i;
    }
    return found;
}

static int by_number(const char *word, size_t count, int base) {
    char *end;
    long number = strtol(word, &end, base);
    return !*word || *end || number < 0 || (size_t)number >= count ? NOBODY : (int)number;
}

static int is_shown(const uint32_t *shown, size_t count, uint32_t gpu) {
    for (size_t i = 0; i < count; ++i)
        if (shown[i] == gpu) return 1;
    return 0;
}

/* ROCR_VISIBLE_DEVICES: numbers in any base, beginnings of UUIDs; a device named twice ends the list. */
static void show_by_rocr(stw_probe_facts *facts, const char *list) {
    char word[WORD_CAPACITY];
    facts->amd_count = 0;
    while (facts->amd_count < facts->kfd.count && next_word(&list, word)) {
        int gpu = word[0] == 'G' || word[0] == 'g' ? by_uuid(facts, word) : by_number(word, facts->kfd.count, 0);
        if (gpu == NOBODY || is_shown(facts->amd, facts->amd_count, (uint32_t)gpu)) return;
        facts->amd[facts->amd_count++] = (uint32_t)gpu;
    }
}

/* HIP_VISIBLE_DEVICES: decimal numbers or UUIDs, of what ROCR_VISIBLE_DEVICES left; a device counts once. */
static void show_by_hip(stw_probe_facts *facts, const char *list) {
    uint32_t left[STW_KFD_GPUS_MAX];
    size_t count = facts->amd_count;
    char word[WORD_CAPACITY];
    memcpy(left, facts->amd, sizeof left);
    facts->amd_count = 0;
    while (next_word(&list, word)) {
        int gpu = NOBODY, uuid = strncmp(word, "GPU-", 4) ? NOBODY : by_uuid(facts, word);
        for (size_t i = 0; i < count && uuid != NOBODY; ++i)
            if (left[i] == (uint32_t)uuid) gpu = uuid;
        int number = by_number(word, count, 10);
        if (number != NOBODY) gpu = (int)left[number];
        if (gpu == NOBODY) return;
        if (!is_shown(facts->amd, facts->amd_count, (uint32_t)gpu)) facts->amd[facts->amd_count++] = (uint32_t)gpu;
    }
}

void stw_probe_show_amd(stw_probe_facts *facts, const char *rocr, const char *hip) {
    facts->amd_count = facts->kfd.count;
    for (size_t i = 0; i < facts->kfd.count; ++i) facts->amd[i] = (uint32_t)i;
    if (rocr) show_by_rocr(facts, rocr);
    if (hip) show_by_hip(facts, hip);
}

void stw_probe_gather(const char *root, stw_probe_facts *facts) {
    memset(facts, 0, sizeof *facts);
    facts->images = stw_images;
    stw_kfd_read(root, &facts->kfd);
    stw_probe_show_amd(facts, NULL, NULL);
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
    if (facts->kfd.unlisted) {
        snprintf(info->name, sizeof info->name, "AMD GPU");
        snprintf(info->note, sizeof info->note,
                 "arch not known before the driver starts: /dev/kfd is there and /sys/class/kfd is not; the runtime "
                 "reads it too");
        return;
    }
    const stw_kfd_gpu *gpu = &facts->kfd.gpus[facts->amd[index]];
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

static size_t amd_devices(const stw_probe_facts *facts) { return facts->kfd.unlisted ? 1 : facts->amd_count; }

size_t stw_probe_count(const stw_probe_facts *facts) { return nvidia_devices(facts) + amd_devices(facts) + 1; }

void stw_probe_device(const stw_probe_facts *facts, size_t index, stw_device_info *info) {
    size_t nvidia = nvidia_devices(facts), amd = amd_devices(facts);
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
