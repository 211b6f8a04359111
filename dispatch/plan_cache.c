/* SPDX-License-Identifier: MIT
 *
 * The plans that a context keeps (plan_cache.h). Called by once.c, and by context.c at the end. */
#include "plan_cache.h"

#include "plan.h"

#include <string.h>

#define SLOT_TAKEN (1u << 31)

_Static_assert(offsetof(stw_attn_params, dropout_p) + sizeof(double) + 22 * sizeof(uint32_t) == sizeof(stw_attn_params),
               "the parameter block ends without a gap");
_Static_assert(sizeof(stw_attn_params) % (4 * sizeof(uint64_t)) == 0, "its words are hashed four at a time");

/* Four chains, since one of so many words waits for its multiplications. */
void stw_plan_class_seal(stw_plan_class *class) {
    const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t words[sizeof class->params / sizeof(uint64_t)], chain[4] = {class->shape->kind, 1, 2, 3};
    memcpy(words, &class->params, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i += 4)
        for (size_t k = 0; k < 4; ++k) chain[k] = (chain[k] ^ words[i + k]) * odd;
    class->hash = 0;
    for (size_t k = 0; k < 4; ++k) class->hash = ((class->hash ^ chain[k] ^ chain[k] >> 29) * odd) | 1;
}

static int is_of(const stw_plan *plan, const stw_plan_class *class) {
    const stw_attn_work *mine = &plan->work, *theirs = class->shape;
    return mine->kind == theirs->kind && !memcmp(&mine->params, &class->params, sizeof class->params) &&
           mine->scale == theirs->scale && mine->softcap == theirs->softcap &&
           mine->stage_count == theirs->stage_count &&
           !memcmp(mine->stage, theirs->stage, theirs->stage_count * sizeof theirs->stage[0]);
}

/* Written only where it changes: calls that find what they look for share the slots' lines of memory. */
static void mark_used(stw_plan_cache *cache, stw_plan_slot *slot) {
    uint64_t now = atomic_load_explicit(&cache->kept, memory_order_relaxed);
    if (atomic_load_explicit(&slot->used, memory_order_relaxed) != now)
        atomic_store_explicit(&slot->used, now, memory_order_relaxed);
}

stw_plan_slot *stw_plan_cache_take(stw_plan_cache *cache, const stw_plan_class *class) {
    for (size_t i = 0; i < STW_PLAN_CACHE_SLOTS; ++i) {
        stw_plan_slot *slot = &cache->slot[i];
        if (atomic_load_explicit(&cache->hash[i], memory_order_relaxed) != class->hash) continue;
        unsigned before = atomic_fetch_add_explicit(&slot->users, 1, memory_order_acquire);
        if (!(before & SLOT_TAKEN) && is_of(slot->plan, class)) { /* who has a hash has a plan */
            mark_used(cache, slot);
            return slot;
        }
        stw_plan_cache_give(slot);
    }
    return NULL;
}

void stw_plan_cache_give(stw_plan_slot *slot) { atomic_fetch_sub_explicit(&slot->users, 1, memory_order_release); }

/* The slot used longest ago of those that nobody uses, for this thread alone; NULL: none, or a call has just
 * begun to use it. */
static stw_plan_slot *claim_oldest(stw_plan_cache *cache) {
    stw_plan_slot *oldest = NULL;
    uint64_t least = UINT64_MAX;
    unsigned none = 0;
    for (size_t i = 0; i < STW_PLAN_CACHE_SLOTS; ++i) {
        stw_plan_slot *slot = &cache->slot[i];
        uint64_t used = atomic_load_explicit(&slot->used, memory_order_relaxed);
        if (used >= least || atomic_load_explicit(&slot->users, memory_order_relaxed)) continue;
        oldest = slot;
        least = used;
    }
    int mine = oldest && atomic_compare_exchange_strong_explicit(&oldest->users, &none, SLOT_TAKEN,
                                                                 memory_order_acquire, memory_order_relaxed);
    return mine ? oldest : NULL;
}

stw_plan_slot *stw_plan_cache_keep(stw_plan_cache *cache, const stw_plan_class *class, stw_plan *plan) {
    stw_plan_slot *slot = claim_oldest(cache);
    if (!slot) return NULL;
    uint64_t now = atomic_fetch_add_explicit(&cache->kept, 1, memory_order_relaxed) + 1;
    stw_plan_free(slot->plan);
    slot->plan = plan;
    atomic_store_explicit(&slot->used, now, memory_order_relaxed);
    atomic_store_explicit(&cache->hash[slot - cache->slot], class->hash, memory_order_relaxed);
    atomic_fetch_sub_explicit(&slot->users, SLOT_TAKEN - 1, memory_order_release);
    return slot;
}

/* A slot that is in use after all was so in another thread when this process was forked off: that thread
 * may have been freeing the plan. */
void stw_plan_cache_end(stw_plan_cache *cache) {
    for (size_t i = 0; i < STW_PLAN_CACHE_SLOTS; ++i)
        if (!atomic_load_explicit(&cache->slot[i].users, memory_order_acquire)) stw_plan_free(cache->slot[i].plan);
}
