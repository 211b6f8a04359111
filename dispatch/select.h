/* SPDX-License-Identifier: MIT
 *
 * Choosing a variant: RULE rows, the built-in table's after those of STERNWAY_TUNING, tried in order.
 *
 * Conditions are words separated by spaces, all of which must hold: `key<=n`, `key>=n`, `key=n`; for dtype
 * and op names, alternatives with '|': `dtype=f16|bf16 head_dim<=64 seq_q>=1024`. "" always holds. */
#ifndef STW_DISPATCH_SELECT_H
#define STW_DISPATCH_SELECT_H

#include "tables.h"

/* STW_FACT(key): what a rule may ask about a problem and a device. */
#define STW_FACTS                                                                                                      \
    STW_FACT(dtype)    /* f16, bf16, f32                                  */                                           \
    STW_FACT(op)       /* bwd, fwd                                        */                                           \
    STW_FACT(head_dim) /* the larger of head_dim_qk and head_dim_v        */                                           \
    STW_FACT(head_dim_v)                                                                                               \
    STW_FACT(seq_q)       /* max_seq_q                                       */                                        \
    STW_FACT(seq_kv)      /* max_seq_kv                                      */                                        \
    STW_FACT(batch_heads) /* batch * heads_q                                 */                                        \
    STW_FACT(group)       /* heads_q / heads_kv                              */                                        \
    STW_FACT(smem_kb)     /* shared memory that a CTA of the device can have */                                        \
    STW_FACT(causal)      /* 1: keys beyond the diagonal are masked          */                                        \
    STW_FACT(packed)                                                                                                   \
    STW_FACT(bias)                                                                                                     \
    STW_FACT(dropout)                                                                                                  \
    STW_FACT(deterministic)

enum {
#define STW_FACT(key) STW_FACT_##key,
    STW_FACTS
#undef STW_FACT
        STW_FACT_COUNT
};

typedef struct stw_facts {
    int64_t value[STW_FACT_COUNT]; /* dtype: stw_dtype; op: stw_plan_kind */
    const stw_attn_work *work;     /* for the backend's own conditions       */
} stw_facts;

/* A RULE row, read. */
typedef struct stw_rule {
    int64_t low[STW_FACT_COUNT], high[STW_FACT_COUNT];
    uint32_t choices[2]; /* bits of the dtypes and ops allowed */
    const stw_variant *variant;
    char text[160]; /* the row as it is reported            */
} stw_rule;

/* The rules of one arch: overrides first. Plain memory, freed with stw_rules_free. */
typedef struct stw_rules {
    const stw_attn_table *table;
    stw_rule *rules;
    size_t count;
    /* The values of a fact that some rule tells from the next value, each once: 2 * count places a fact. They are few,
     * where a look at all rules took a tenth of a call without a plan. */
    int64_t *edges;
    size_t edge_count[STW_FACT_COUNT];
} stw_rules;

/* Reads the built-in rules of the arch and, in front of them, those of `tuning_file` (NULL or "": none). Rows
 * for variants of other archs are skipped. Errors: STW_E_INVALID with file, line and what is wrong. */
stw_status stw_rules_load(const char *arch, const char *tuning_file, stw_rules *rules_out);
void stw_rules_free(stw_rules *rules);

/* Reads the text of a tuning file; `name` opens error texts. Separate for tests and the fuzzer. */
stw_status stw_rules_parse(const char *name, const char *text, const stw_attn_table *table, stw_rule *rules,
                           size_t capacity, size_t *count_out);

/* One row's conditions. Errors: STW_E_INVALID naming the word. */
stw_status stw_rule_parse(const char *conditions, stw_rule *rule_out);

const char *stw_fact_name(int fact); /* as rules spell it */

/* The last value from `first` to `last` up to which no rule tells the fact from `first`. */
int64_t stw_rules_reach(const stw_rules *rules, int fact, int64_t first, int64_t last);

stw_facts stw_facts_of(const stw_attn_work *work, const stw_device *device);

/* Where the arch has variants of its own for this op, and `chosen` is another arch's: why the one made for the
 * problem's head dim is not it. That is, of those whose rules hold and ask for no more than types and head dims, the
 * last one of the least head dim; where there is none, the last of all. Else adds nothing. */
void stw_select_passed(const stw_rules *rules, const stw_facts *facts, const stw_backend_ops *ops,
                       const stw_device *device, const stw_variant *chosen, stw_text *passed);

/* The first rule that fits a usable variant; `forced_variant` (NULL or "": none) overrides all rules. `why`
 * receives one line for the choice; with `all`, one a rejected rule (those of another op are passed over),
 * and one for the variants that would have come next. Errors: STW_E_INVALID (no variant of the forced name),
 * STW_E_UNSUPPORTED (the forced one refuses, or no rule fits). */
stw_status stw_select(const stw_rules *rules, const stw_facts *facts, const stw_backend_ops *ops,
                      const stw_device *device, const char *forced_variant, int all, stw_text *why,
                      const stw_variant **variant_out);

#endif
