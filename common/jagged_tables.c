/* SPDX-License-Identifier: MIT
 *
 * The tuning tables of the jagged kernels, for the host: common/tuning/jagged.<arch>.def. */
#include "common/jagged_launch.h"

#include <string.h>

#define LINE_ROW(name, lanes, vectors, sums)         {#name, lanes, vectors, sums},
#define TILE_ROW(element, bm, bn, bk, stages, warps) {element, bm, bn, bk, stages, warps},
#define STW_JAGGED_PRODUCT(element, bm, bn, bk, stages, warps)
#define STW_JAGGED_LINE LINE_ROW
static const stw_jagged_line lines_sm80[] = {
#include "common/tuning/jagged.sm80.def"
};
static const stw_jagged_line lines_gfx90a[] = {
#include "common/tuning/jagged.gfx90a.def"
};
static const stw_jagged_line lines_gfx942[] = {
#include "common/tuning/jagged.gfx942.def"
};
#undef STW_JAGGED_PRODUCT
#undef STW_JAGGED_LINE
#define STW_JAGGED_PRODUCT TILE_ROW
#define STW_JAGGED_LINE(name, lanes, vectors, sums)
static const stw_jagged_tile tiles_sm80[] = {
#include "common/tuning/jagged.sm80.def"
};
static const stw_jagged_tile tiles_gfx90a[] = {
#include "common/tuning/jagged.gfx90a.def"
};
static const stw_jagged_tile tiles_gfx942[] = {
#include "common/tuning/jagged.gfx942.def"
};

#define COUNT(rows)       sizeof rows / sizeof rows[0]
#define TABLE(arch, wave) {#arch, wave, lines_##arch, COUNT(lines_##arch), tiles_##arch, COUNT(tiles_##arch)}
static const stw_jagged_table tables[] = {TABLE(sm80, 32), TABLE(gfx90a, 64), TABLE(gfx942, 64)};

const stw_jagged_table *stw_jagged_table_of(const char *arch) {
    for (size_t i = 0; i < COUNT(tables); ++i)
        if (!strcmp(tables[i].arch, arch)) return &tables[i];
    return &tables[0];
}
