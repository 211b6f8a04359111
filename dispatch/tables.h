/* SPDX-License-Identifier: MIT
 *
 * The built-in tuning tables (common/tuning/attn_bwd.<arch>.def) as data. Read by select.c, by explain, and
 * by tests and the conform command, which run every variant. */
#ifndef STW_DISPATCH_TABLES_H
#define STW_DISPATCH_TABLES_H

#include "backends/backend.h"

/* A RULE row: conditions in the grammar of select.h, and the variant it chooses. */
typedef struct stw_rule_row {
    const char *conditions, *variant;
} stw_rule_row;

typedef struct stw_attn_table {
    const char *arch;
    const stw_variant *variants;
    size_t variant_count;
    const stw_rule_row *rules; /* in order: the first that fits wins */
    size_t rule_count;
} stw_attn_table;

size_t stw_attn_table_count(void);
const stw_attn_table *stw_attn_table_at(size_t index);
const stw_attn_table *stw_attn_table_find(const char *arch); /* NULL: the arch has no table */
const stw_variant *stw_attn_variant_find(const stw_attn_table *table, const char *id);

#endif
