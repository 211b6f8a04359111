/* SPDX-License-Identifier: MIT
 *
 * Includes every tuning table there is; the list of files comes from common/arch.def (cmake/archs.cmake).
 */
#include "tables.h"

#include <string.h>

#define VARIANT_ROW(id, hd, bm, bn, stages, warps, smem_kb, loop)                                                      \
    {#id, hd, bm, bn, stages, warps, smem_kb, LOOP_OF(loop), !__builtin_strncmp(#id, ARCH_TEXT, sizeof ARCH_TEXT - 1)},
/* LOOP_OF of an arch whose backend this program holds, and of any other: a name alone. */
#if defined(STW_TABLES_ALONE)
#define LOOP_BUILT LOOP_NAMED
#else
#define LOOP_BUILT(word) &stw_attn_loop_##word
#endif
#define LOOP_NAMED(word)                                                                                               \
    &(const stw_attn_loop) { .name = #word }
#define LOOP_DECLARED(id, hd, bm, bn, stages, warps, smem_kb, loop) extern const stw_attn_loop stw_attn_loop_##loop;
#define RULE_ROW(conditions, id)                                    {conditions, #id},
#define COUNT(array)                                                (sizeof(array) / sizeof(array)[0])
#define TABLE(arch)                                                                                                    \
    {#arch, attn_variants_##arch, COUNT(attn_variants_##arch), attn_rules_##arch, COUNT(attn_rules_##arch)},
#include "attn_tables.inc"

size_t stw_attn_table_count(void) { return COUNT(attn_tables); }

const stw_attn_table *stw_attn_table_at(size_t index) { return &attn_tables[index]; }

const stw_attn_table *stw_attn_table_find(const char *arch) {
    for (size_t i = 0; i < COUNT(attn_tables); ++i)
        if (!strcmp(attn_tables[i].arch, arch)) return &attn_tables[i];
    return NULL;
}

const stw_variant *stw_attn_variant_find(const stw_attn_table *table, const char *id) {
    for (size_t i = 0; i < table->variant_count; ++i)
        if (!strcmp(table->variants[i].id, id)) return &table->variants[i];
    return NULL;
}
