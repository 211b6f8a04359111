/* SPDX-License-Identifier: MIT
 *
 * Matches a problem's facts against the rules of an arch and picks the variant that runs it. */
#include "select.h"

#include "common/dtype.h"

#include <string.h>

stw_facts stw_facts_of(const stw_attn_work *work, const stw_device *device) {
    const stw_attn_params *p = &work->params;
    stw_facts facts = {.work = work};
    facts.value[STW_FACT_dtype] = p->dtype;
    facts.value[STW_FACT_op] = work->kind;
    facts.value[STW_FACT_head_dim] = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v;
    facts.value[STW_FACT_head_dim_v] = p->head_dim_v;
    facts.value[STW_FACT_seq_q] = p->max_seq_q;
    facts.value[STW_FACT_seq_kv] = p->max_seq_kv;
    facts.value[STW_FACT_batch_heads] = p->batch * p->heads_q;
    facts.value[STW_FACT_group] = p->group;
    facts.value[STW_FACT_smem_kb] = device->smem_max / 1024;
    facts.value[STW_FACT_causal] = (p->features & STW_FEAT_WINDOW_RIGHT) != 0;
    facts.value[STW_FACT_packed] = (p->features & (STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV)) != 0;
    facts.value[STW_FACT_bias] = (p->features & STW_FEAT_BIAS) != 0;
    facts.value[STW_FACT_dropout] = (p->features & STW_FEAT_DROPOUT) != 0;
    facts.value[STW_FACT_deterministic] = (p->features & STW_FEAT_DETERMINISTIC) != 0;
    return facts;
}

static int rule_fits(const stw_rule *rule, const stw_facts *facts) {
    for (int fact = 0; fact < STW_FACT_COUNT; ++fact) {
        int64_t value = facts->value[fact];
        if (fact <= STW_FACT_op ? !(rule->choices[fact] >> value & 1)
                                : value < rule->low[fact] || value > rule->high[fact])
            return 0;
    }
    return 1;
}

/* NULL, or why this variant cannot run this problem on this device. */
static const char *refusal_of(const stw_variant *variant, const stw_facts *facts, const stw_backend_ops *ops,
                              const stw_device *device) {
    if (facts->value[STW_FACT_head_dim] > variant->head_dim) return "the head dim is above the variant's";
    if (variant->smem_kb > facts->value[STW_FACT_smem_kb] && device->arch->smem_kb)
        return "it needs more shared memory than a block of this device has";
    return ops->variant_refusal(device, facts->work, variant);
}

static stw_status select_forced(const stw_rules *rules, const stw_facts *facts, const stw_backend_ops *ops,
                                const stw_device *device, const char *id, stw_text *why,
                                const stw_variant **variant_out) {
    const stw_variant *variant = stw_attn_variant_find(rules->table, id);
    if (!variant) {
        char known[400];
        stw_text list = stw_text_in(known, sizeof known);
        for (size_t i = 0; i < rules->table->variant_count; ++i)
            stw_text_add(&list, "%s%s", i ? ", " : "", rules->table->variants[i].id);
        return stw_fail(STW_E_INVALID, "STERNWAY_VARIANT=%s: %s has no such variant, but %s", id,
                        rules->table->arch, known);
    }
    const char *refusal = refusal_of(variant, facts, ops, device);
    if (refusal) return stw_fail(STW_E_UNSUPPORTED, "STERNWAY_VARIANT=%s: %s", id, refusal);
    stw_text_add(why, "forced by STERNWAY_VARIANT\n");
    *variant_out = variant;
    return STW_OK;
}

stw_status stw_select(const stw_rules *rules, const stw_facts *facts, const stw_backend_ops *ops,
                      const stw_device *device, const char *forced_variant, int all, stw_text *why,
                      const stw_variant **variant_out) {
    if (forced_variant && forced_variant[0])
        return select_forced(rules, facts, ops, device, forced_variant, why, variant_out);
    for (size_t i = 0; i < rules->count; ++i) {
        const stw_rule *rule = &rules->rules[i];
        const char *refusal = rule_fits(rule, facts) ? refusal_of(rule->variant, facts, ops, device)
                                                     : "its conditions do not hold";
        if (!refusal) {
            stw_text_add(why, "rule %s\n", rule->text);
            *variant_out = rule->variant;
            return STW_OK;
        }
        if (all) stw_text_add(why, "not %s (rule %s): %s\n", rule->variant->id, rule->text, refusal);
    }
    return stw_fail(STW_E_UNSUPPORTED, "no rule of the tuning table of %s fits a %s problem of head dim %lld",
                    rules->table->arch, stw_dtype_name((stw_dtype)facts->value[STW_FACT_dtype]),
                    (long long)facts->value[STW_FACT_head_dim]);
}
