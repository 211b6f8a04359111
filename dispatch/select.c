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

/* The first fact that does not hold, or STW_FACT_COUNT. */
static int misfit_of(const stw_rule *rule, const stw_facts *facts) {
    int fact = 0;
    for (; fact < STW_FACT_COUNT; ++fact) {
        int64_t value = facts->value[fact];
        if (fact <= STW_FACT_op ? !(rule->choices[fact] >> value & 1)
                                : value < rule->low[fact] || value > rule->high[fact])
            break;
    }
    return fact;
}

int64_t stw_rules_reach(const stw_rules *rules, int fact, int64_t first, int64_t last) {
    const int64_t *edges = rules->edges + (size_t)fact * 2 * rules->count;
    for (size_t i = 0; i < rules->edge_count[fact]; ++i)
        if (first <= edges[i] && edges[i] < last) last = edges[i];
    return last;
}

/* NULL, or why this variant cannot run this problem on this device. */
static const char *refusal_of(const stw_variant *variant, const stw_facts *facts, const stw_backend_ops *ops,
                              const stw_device *device) {
    if (facts->value[STW_FACT_head_dim] > variant->head_dim) return "the head dim is above the variant's";
    if (variant->smem_kb > facts->value[STW_FACT_smem_kb]) /* the CPU's variants need none */
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
        return stw_fail(STW_E_INVALID, "STERNWAY_VARIANT=%s: %s has no such variant, but %s", id, rules->table->arch,
                        known);
    }
    const char *refusal = refusal_of(variant, facts, ops, device);
    if (refusal) return stw_fail(STW_E_UNSUPPORTED, "STERNWAY_VARIANT=%s: %s", id, refusal);
    stw_text_add(why, "forced by STERNWAY_VARIANT\n");
    *variant_out = variant;
    return STW_OK;
}

static int is_of_op(const stw_rule *rule, const stw_facts *facts) {
    return rule->choices[STW_FACT_op] >> facts->value[STW_FACT_op] & 1;
}

/* What did not fit: the variant's own words, or the fact. */
static void add_reason(int misfit, const char *refusal, const stw_facts *facts, stw_text *text) {
    if (refusal) stw_text_add(text, "%s", refusal);
    else if (misfit == STW_FACT_dtype)
        stw_text_add(text, "dtype is %s", stw_dtype_name((stw_dtype)facts->value[misfit]));
    else stw_text_add(text, "%s is %lld", stw_fact_name(misfit), (long long)facts->value[misfit]);
}

static void add_rejected(const stw_rule *rule, int misfit, const char *refusal, const stw_facts *facts, stw_text *why) {
    if (!is_of_op(rule, facts)) return;
    stw_text_add(why, "not %s (rule %s): ", rule->variant->id, rule->text);
    add_reason(misfit, refusal, facts, why);
    stw_text_add(why, "\n");
}

/* The rule is for some problems of its types and head dims alone. */
static int asks_more(const stw_rule *rule) {
    for (int fact = 0; fact < STW_FACT_COUNT; ++fact) {
        if (fact == STW_FACT_dtype || fact == STW_FACT_op || fact == STW_FACT_head_dim || fact == STW_FACT_head_dim_v)
            continue;
        if (rule->low[fact] > 0 || rule->high[fact] < INT64_MAX) return 1;
    }
    return 0;
}

void stw_select_passed(const stw_rules *rules, const stw_facts *facts, const stw_backend_ops *ops,
                       const stw_device *device, const stw_variant *chosen, stw_text *passed) {
    const stw_rule *told = NULL;
    int told_holds = 0;
    for (size_t i = 0; i < rules->count && rules->rules[i].variant != chosen; ++i) {
        const stw_rule *rule = &rules->rules[i];
        if (!rule->variant->own || !is_of_op(rule, facts)) continue;
        int holds = !asks_more(rule) && misfit_of(rule, facts) == STW_FACT_COUNT;
        if (told_holds && (!holds || rule->variant->head_dim > told->variant->head_dim)) continue;
        told = rule;
        told_holds = holds;
    }
    if (!told || chosen->own) return;
    const int misfit = misfit_of(told, facts);
    add_reason(misfit, misfit == STW_FACT_COUNT ? refusal_of(told->variant, facts, ops, device) : NULL, facts, passed);
    stw_text_add(passed, ": not %s", told->variant->id);
}

/* A rule from `first` on and before `end` chooses this variant for these facts. */
static int is_chosen_in(const stw_rules *rules, size_t first, size_t end, const stw_variant *variant,
                        const stw_facts *facts) {
    for (size_t i = first; i < end; ++i)
        if (rules->rules[i].variant == variant && misfit_of(&rules->rules[i], facts) == STW_FACT_COUNT) return 1;
    return 0;
}

/* What would run without rule `chosen`, without the next, ...: STERNWAY_VARIANT takes these. */
static void add_next(const stw_rules *rules, size_t chosen, const stw_facts *facts, const stw_backend_ops *ops,
                     const stw_device *device, stw_text *why) {
    int any = 0;
    for (size_t i = chosen + 1; i < rules->count; ++i) {
        const stw_variant *variant = rules->rules[i].variant;
        if (!is_chosen_in(rules, i, i + 1, variant, facts) || is_chosen_in(rules, chosen, i, variant, facts) ||
            refusal_of(variant, facts, ops, device))
            continue;
        stw_text_add(why, "%s%s", any++ ? ", " : "next: ", variant->id);
    }
    if (any) stw_text_add(why, "\n");
}

stw_status stw_select(const stw_rules *rules, const stw_facts *facts, const stw_backend_ops *ops,
                      const stw_device *device, const char *forced_variant, int all, stw_text *why,
                      const stw_variant **variant_out) {
    if (forced_variant && forced_variant[0])
        return select_forced(rules, facts, ops, device, forced_variant, why, variant_out);
    for (size_t i = 0; i < rules->count; ++i) {
        const stw_rule *rule = &rules->rules[i];
        int misfit = misfit_of(rule, facts);
        const char *refusal = misfit == STW_FACT_COUNT ? refusal_of(rule->variant, facts, ops, device) : NULL;
        if (misfit == STW_FACT_COUNT && !refusal) {
            stw_text_add(why, "rule %s\n", rule->text);
            if (all) add_next(rules, i, facts, ops, device, why);
            *variant_out = rule->variant;
            return STW_OK;
        }
        if (all) add_rejected(rule, misfit, refusal, facts, why);
    }
    return stw_fail(STW_E_UNSUPPORTED, "no rule of the tuning table of %s fits a %s problem of head dim %lld",
                    rules->table->arch, stw_dtype_name((stw_dtype)facts->value[STW_FACT_dtype]),
                    (long long)facts->value[STW_FACT_head_dim]);
}
