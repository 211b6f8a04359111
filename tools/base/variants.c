/* SPDX-License-Identifier: MIT
 *
 * Includes the variants of every tuning table there is; tools/CMakeLists.txt writes the list of files. */
#include "variants.h"

#include <string.h>

#define STW_VARIANT(id, head_dim, bm, bn, stages, warps, smem_kb, loop)                                                \
    {#id, head_dim, bm, bn, stages, warps, smem_kb, #loop},
#define STW_RULE(conditions, id)
#define TABLE(arch) {#arch, variants_##arch, sizeof variants_##arch / sizeof *variants_##arch},
#include "tool_variants.inc"

const size_t stw_tool_table_count = sizeof stw_tool_tables / sizeof *stw_tool_tables;

const stw_tool_table *stw_tool_table_find(const char *arch) {
    for (size_t i = 0; i < stw_tool_table_count; ++i)
        if (!strcmp(stw_tool_tables[i].arch, arch)) return &stw_tool_tables[i];
    return NULL;
}

const stw_tool_variant *stw_tool_variant_find(const stw_tool_table *table, const char *id) {
    for (size_t i = 0; i < table->variant_count; ++i)
        if (!strcmp(table->variants[i].id, id)) return &table->variants[i];
    return NULL;
}
