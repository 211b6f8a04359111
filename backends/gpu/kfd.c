/* SPDX-License-Identifier: MIT
 *
 * The KFD topology:
 * <root>/sys/class/kfd/kfd/topology/nodes/N/{gpu_id,name,properties,mem_banks/M/properties}. Nodes of other
 * containers' GPUs answer EPERM or have no /dev/dri/renderD*; the runtime leaves them out of its numbering and so do
 * we. */
#include "backends/gpu/kfd.h"

#include "common/small_file.h"
#include "common/status.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AMD_VENDOR_ID 4098
#define NODES_MAX     1024
#define BANKS_MAX     16
#define LOCATION_MASK 0xffffu /* bits 28 to 31 number the partitions of one GPU */

typedef struct node_reader {
    const char *root;
    char folder[512];
    stw_small_file file;
} node_reader;

static int node_read(node_reader *node, const char *name) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", node->folder, name);
    return stw_small_file_read(path, &node->file);
}

/* A u32 property; absent and malformed ones become 0 and, when malformed, a note. */
static uint32_t node_u32(const node_reader *node, const char *key, stw_text *note) {
    uint64_t value = 0;
    if (stw_small_file_number(&node->file, key, UINT32_MAX, &value) == STW_FIELD_MALFORMED)
        stw_text_add(note, "%smalformed %s", note->length ? "; " : "", key);
    return (uint32_t)value;
}

static uint64_t node_memory(node_reader *node) {
    uint64_t total = 0;
    for (int bank = 0; bank < BANKS_MAX; ++bank) {
        char name[48];
        uint64_t heap, bytes;
        snprintf(name, sizeof name, "mem_banks/%d/properties", bank);
        if (!node_read(node, name)) break;
        if (stw_small_file_number(&node->file, "heap_type", 2, &heap) != STW_FIELD_READ || heap == 0) continue;
        if (stw_small_file_number(&node->file, "size_in_bytes", UINT64_MAX, &bytes) != STW_FIELD_READ) continue;
        total = bytes > UINT64_MAX - total ? UINT64_MAX : total + bytes;
    }
    return total;
}

static void node_properties(node_reader *node, stw_kfd_gpu *gpu, stw_text *note) {
    gpu->simd_count = node_u32(node, "simd_count", note);
    gpu->simd_per_cu = node_u32(node, "simd_per_cu", note);
    gpu->device_id = node_u32(node, "device_id", note);
    gpu->domain = node_u32(node, "domain", note);
    gpu->location_id = node_u32(node, "location_id", note);
    stw_small_file_number(&node->file, "unique_id", UINT64_MAX, &gpu->unique_id);
    stw_field version = stw_small_file_number(&node->file, "gfx_target_version", UINT64_MAX, &gpu->gfx_version);
    if (version != STW_FIELD_READ)
        stw_text_add(note, "%s%s gfx_target_version", note->length ? "; " : "",
                     version == STW_FIELD_ABSENT ? "properties lack" : "malformed");
}

/* gpu_id: 0 is a CPU, any other number a GPU; how large it is does not matter here. */
enum gpu_id { GPU_ID_UNKNOWN, GPU_ID_CPU, GPU_ID_GPU };

static enum gpu_id read_gpu_id(const stw_small_file *file) {
    size_t digits = strspn(file->data, "0123456789");
    if (!digits || (file->data[digits] && file->data[digits] != '\n')) return GPU_ID_UNKNOWN;
    return strspn(file->data, "0") == digits ? GPU_ID_CPU : GPU_ID_GPU;
}

/* Kernels without DRM name no minor number: then nothing is known against the node. */
static int has_render_file(const node_reader *node, uint32_t minor) {
    char path[448];
    int length = snprintf(path, sizeof path, "%s/dev/dri/renderD%u", node->root, (unsigned)minor);
    return !minor || (size_t)length >= sizeof path || !access(path, F_OK) || errno != ENOENT;
}

/* 1: a GPU, filled in. 0: a CPU, or not ours; `why` then says why when that is worth saying. */
static int node_is_gpu(node_reader *node, stw_kfd_gpu *gpu, stw_text *why) {
    uint64_t simd_count = 0, vendor = AMD_VENDOR_ID;
    int id_read = node_read(node, "gpu_id"), id_error = node->file.error;
    enum gpu_id id = id_read ? read_gpu_id(&node->file) : GPU_ID_UNKNOWN;
    if (id == GPU_ID_CPU) return 0;
    int has_properties = node_read(node, "properties"), error = node->file.error;
    if (id_error == EPERM || id_error == EACCES || error == EPERM || error == EACCES) {
        stw_text_add(why, "no permission");
        return 0;
    }
    stw_field simds = stw_small_file_number(&node->file, "simd_count", UINT32_MAX, &simd_count);
    if (simds == STW_FIELD_READ && simd_count == 0) return 0; /* a CPU */
    if (id == GPU_ID_UNKNOWN && simds != STW_FIELD_READ) {
        stw_text_add(why, "neither gpu_id nor simd_count");
        return 0;
    }
    if (stw_small_file_number(&node->file, "vendor_id", UINT32_MAX, &vendor) == STW_FIELD_READ &&
        vendor != AMD_VENDOR_ID) {
        stw_text_add(why, "vendor_id %u is not AMD", (unsigned)vendor);
        return 0;
    }
    uint64_t minor = 0;
    stw_small_file_number(&node->file, "drm_render_minor", UINT32_MAX, &minor);
    if (!has_render_file(node, (uint32_t)minor)) {
        stw_text_add(why, "no /dev/dri/renderD%u", (unsigned)minor);
        return 0;
    }
    stw_text note = stw_text_in(gpu->note, sizeof gpu->note);
    if (!has_properties) stw_text_add(&note, "properties: %s", strerror(error));
    node_properties(node, gpu, &note);
    gpu->memory_bytes = node_memory(node);
    if (node_read(node, "name"))
        stw_small_file_text(node->file.data, strcspn(node->file.data, "\n"), gpu->name, sizeof gpu->name);
    return 1;
}

static int compare_u32(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* The numbered folders of `path`, sorted; `cut_out` = 1 when there were more than `capacity`. */
static size_t list_nodes(const char *path, uint32_t *numbers, size_t capacity, int *cut_out) {
    DIR *folder = opendir(path);
    size_t count = 0;
    if (!folder) return 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        size_t length = strspn(entry->d_name, "0123456789");
        if (!length || length > 6 || entry->d_name[length]) continue;
        if (count == capacity) {
            *cut_out = 1;
            break;
        }
        numbers[count++] = (uint32_t)strtoul(entry->d_name, NULL, 10);
    }
    closedir(folder);
    qsort(numbers, count, sizeof *numbers, compare_u32);
    return count;
}

/* Some containers hide /sys/class, whose entry is a link to the other place. */
static size_t find_nodes(const char *root, char *path, size_t capacity, uint32_t *numbers, int *cut_out) {
    static const char *const places[] = {"/sys/class/kfd/kfd/topology/nodes",
                                         "/sys/devices/virtual/kfd/kfd/topology/nodes"};
    size_t count = 0;
    for (size_t i = 0; i < 2 && !count; ++i) {
        if ((size_t)snprintf(path, capacity, "%s%s", root, places[i]) >= capacity) return 0;
        count = list_nodes(path, numbers, NODES_MAX, cut_out);
    }
    return count;
}

/* The device file of the kernel driver, without which no runtime starts. */
static int has_driver_file(const char *root) {
    char path[448];
    return (size_t)snprintf(path, sizeof path, "%s/dev/kfd", root) < sizeof path && !access(path, F_OK);
}

void stw_kfd_read(const char *root, stw_kfd *kfd) {
    char path[448];
    uint32_t numbers[NODES_MAX];
    int cut = 0;
    memset(kfd, 0, sizeof *kfd);
    stw_text note = stw_text_in(kfd->note, sizeof kfd->note);
    size_t count = find_nodes(root, path, sizeof path, numbers, &cut);
    kfd->unlisted = !count && has_driver_file(root);
    for (size_t i = 0; i < count; ++i) {
        node_reader node;
        char reason[96];
        stw_text why = stw_text_in(reason, sizeof reason);
        stw_kfd_gpu gpu = {.node = numbers[i]};
        node.root = root;
        snprintf(node.folder, sizeof node.folder, "%s/%u", path, numbers[i]);
        if (!node_is_gpu(&node, &gpu, &why)) {
            if (why.length) stw_text_add(&note, "%sKFD node %u: %s", note.length ? "; " : "", gpu.node, reason);
        } else if (kfd->count == STW_KFD_GPUS_MAX) {
            cut = 1;
        } else {
            kfd->gpus[kfd->count++] = gpu;
        }
    }
    if (cut) stw_text_add(&note, "%smore KFD nodes than are read", note.length ? "; " : "");
}

const stw_kfd_gpu *stw_kfd_at_pci(const stw_kfd *kfd, const char *address) {
    unsigned domain, bus, device, function;
    char rest;
    if (sscanf(address, "%8x:%2x:%2x.%1x%c", &domain, &bus, &device, &function, &rest) != 4) return NULL;
    uint32_t location = bus << 8 | device << 3 | function;
    for (size_t i = 0; i < kfd->count; ++i)
        if (kfd->gpus[i].domain == domain && (kfd->gpus[i].location_id & LOCATION_MASK) == location)
            return &kfd->gpus[i];
    return NULL;
}
