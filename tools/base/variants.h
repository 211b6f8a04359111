/* SPDX-License-Identifier: MIT
 *
 * The variants of attention's tuning tables (common/tuning) as text and numbers: the command forces each by its
 * name. What chooses among them and what runs them is the library's. */
#ifndef STW_TOOLS_BASE_VARIANTS_H
#define STW_TOOLS_BASE_VARIANTS_H

#include <stddef.h>
#include <stdint.h>

/* A STW_VARIANT row; columns: common/tuning/README.md. */
typedef struct stw_tool_variant {
    const char *id;
    uint32_t head_dim, bm, bn, stages, warps, smem_kb;
    const char *loop;
} stw_tool_variant;

typedef struct stw_tool_table {
    const char *arch;
    const stw_tool_variant *variants;
    size_t variant_count;
} stw_tool_table;

extern const stw_tool_table stw_tool_tables[];
extern const size_t stw_tool_table_count;

/* NULL: the arch has no table; the table has no such variant. */
const stw_tool_table *stw_tool_table_find(const char *arch);
const stw_tool_variant *stw_tool_variant_find(const stw_tool_table *table, const char *id);

#endif
