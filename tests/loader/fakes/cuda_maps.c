/* SPDX-License-Identifier: MIT
 *
 * The fake libcuda.so.1, tensor maps: cuTensorMapEncodeTiled refuses what its documentation refuses, and its
 * map holds the words it was given, which a launch logs, a line a tensor: map NAME panels P type T rank R
 * start ADDRESS dims ... strides ... box ... steps ... modes INTERLEAVE,SWIZZLE,L2,FILL Maps are logged as
 * the kernel gets them, not as they were when they were made. */
#include "backends/cuda/tensor_map.h"
#include "cuda.h"
#include "cuda_map.h"

enum { INVALID_VALUE = 1, RANK_MAX = FAKE_MAP_RANK_MAX };

_Static_assert(sizeof(fake_map) <= sizeof(stw_tensor_map), "a map has room for what it is made of");

static const int type_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}; /* CUtensorMapDataType, 0 to 12 */

int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, uint64_t start, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, unsigned interleave,
                           unsigned swizzle, unsigned l2, unsigned fill);

/* Interleaved maps, which nobody here makes, are refused. */
int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, uint64_t start, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, unsigned interleave,
                           unsigned swizzle, unsigned l2, unsigned fill) {
    int error = fake_call("cuTensorMapEncodeTiled");
    if (!error && !fake_fast()) error = fake_cuda_started();
    if (error) return error;
    if (!map || (uintptr_t)map % 64 || type >= sizeof type_bytes / sizeof *type_bytes || !rank || rank > RANK_MAX ||
        !start || start % 16 || interleave || swizzle > 3 || l2 > 3 || fill > 1)
        return INVALID_VALUE;
    fake_map made = {FAKE_MAP_MARK, type, rank, interleave | swizzle << 8 | l2 << 16 | fill << 24, start, {0},
                     {0},           {0},  {0}};
    for (unsigned i = 0; i < rank; ++i) {
        if (!dims[i] || dims[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || !steps[i] || steps[i] > 8)
            return INVALID_VALUE;
        made.dim[i] = (uint32_t)dims[i];
        made.box[i] = (uint16_t)box[i];
        made.step[i] = (uint16_t)steps[i];
    }
    for (unsigned i = 0; i + 1 < rank; ++i) {
        if (strides[i] % 16 || strides[i] >= (uint64_t)1 << 40) return INVALID_VALUE;
        made.stride[i] = strides[i];
    }
    unsigned inner = box[0] * (unsigned)type_bytes[type];
    if (inner % 16 || (swizzle && inner > 16u << swizzle)) return INVALID_VALUE;
    memcpy(map, &made, sizeof made);
    return 0;
}

int fake_maps_are_good(const void *maps) {
    const stw_sm90_maps *all = maps;
    if (!all || (uintptr_t)all % 64) return 0;
    const stw_mapped_tensor *const tensors[] = {&all->q, &all->dout, &all->k, &all->v};
    for (int i = 0; i < 4; ++i) {
        fake_map map;
        memcpy(&map, &tensors[i]->map, sizeof map);
        if (map.mark != FAKE_MAP_MARK) return 0;
    }
    return 1;
}

void fake_maps_log(const void *maps) {
    static const char *const names[] = {"q", "dout", "k", "v"};
    const stw_sm90_maps *all = maps;
    const stw_mapped_tensor *const tensors[] = {&all->q, &all->dout, &all->k, &all->v};
    for (int i = 0; i < 4; ++i) {
        fake_map m;
        char line[512];
        int at;
        memcpy(&m, &tensors[i]->map, sizeof m);
        at = snprintf(line, sizeof line, "map %s panels %d type %u rank %u start 0x%llx", names[i],
                      (int)tensors[i]->panels, m.type, m.rank, (unsigned long long)m.start);
#define WORDS(what, array, count)                                                                                      \
    at += snprintf(line + at, sizeof line - (size_t)at, " " what);                                                     \
    for (unsigned n = 0; n < (count); ++n)                                                                             \
    at += snprintf(line + at, sizeof line - (size_t)at, "%c%llu", n ? ',' : ' ', (unsigned long long)(array)[n])
        WORDS("dims", m.dim, m.rank);
        WORDS("strides", m.stride, m.rank - 1);
        WORDS("box", m.box, m.rank);
        WORDS("steps", m.step, m.rank);
        snprintf(line + at, sizeof line - (size_t)at, " modes %u,%u,%u,%u", m.modes & 255, m.modes >> 8 & 255,
                 m.modes >> 16 & 255, m.modes >> 24);
        fake_log(line);
    }
}
