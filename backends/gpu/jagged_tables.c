/* SPDX-License-Identifier: MIT
 *
 * The tuning tables of the jagged kernels, for the host: common/tuning/jagged.<arch>.def of every GPU arch
 * that has one (cmake/archs.cmake lists them from common/arch.def). */
#include "backends/gpu/jagged_launch.h"

#define LINE_ROW(name, lanes, vectors, sums)         {#name, lanes, vectors, sums},
#define TILE_ROW(element, bm, bn, bk, stages, warps) {element, bm, bn, bk, stages, warps},
#define COUNT(rows)                                  (sizeof rows / sizeof rows[0])
#define TABLE(arch, backend, wave)                                                                                     \
    {&stw_archs[STW_ARCH_ROW_##arch],                                                                                  \
     STW_BACKEND_##backend,                                                                                            \
     wave,                                                                                                             \
     jagged_lines_##arch,                                                                                              \
     COUNT(jagged_lines_##arch),                                                                                       \
     jagged_tiles_##arch,                                                                                              \
     COUNT(jagged_tiles_##arch),                                                                                       \
     STW_JAGGED_WORK_TILES,                                                                                            \
     0}
#include "jagged_tables.inc"

const stw_jagged_table *stw_jagged_table_of(const stw_arch *arch) {
    const stw_jagged_table *first = NULL;
    for (size_t i = 0; i < COUNT(jagged_tables); ++i) {
        if (jagged_tables[i].arch == arch) return &jagged_tables[i];
        if (!first && jagged_tables[i].backend == arch->backend) first = &jagged_tables[i];
    }
    return first;
}

static const stw_jagged_tile own_tile = {
    2, STW_JAGGED_OWN_BM, STW_JAGGED_OWN_BN, STW_JAGGED_OWN_BK, STW_JAGGED_OWN_STAGES, STW_JAGGED_OWN_THREADS / 32};

const stw_jagged_table stw_jagged_own_table = {.backend = STW_BACKEND_CUDA,
                                               .wave = 32,
                                               .tiles = &own_tile,
                                               .tile_count = 1,
                                               .work_tiles = STW_JAGGED_OWN_WORK_TILES,
                                               .most_k = STW_JAGGED_OWN_MOST_K};
