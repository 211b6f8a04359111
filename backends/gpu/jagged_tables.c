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
     COUNT(jagged_tiles_##arch)}
#include "jagged_tables.inc"

const stw_jagged_table *stw_jagged_table_of(const stw_arch *arch) {
    const stw_jagged_table *first = NULL;
    for (size_t i = 0; i < COUNT(jagged_tables); ++i) {
        if (jagged_tables[i].arch == arch) return &jagged_tables[i];
        if (!first && jagged_tables[i].backend == arch->backend) first = &jagged_tables[i];
    }
    return first;
}
