/* SPDX-License-Identifier: MIT
 *
 * The plans that a context keeps for stw_attn_bwd_once and stw_attn_fwd_once. A fixed number of slots, each
 * with a count of the calls that use its plan. Nothing here waits or allocates: who finds a slot in use
 * passes it by, so that neither a thread nor a fork that holds one stops another. */
#ifndef STW_DISPATCH_PLAN_CACHE_H
#define STW_DISPATCH_PLAN_CACHE_H

#include "backends/backend.h"

#include <stdatomic.h>

#define STW_PLAN_CACHE_SLOTS 64

typedef struct stw_plan_slot {
    atomic_uint users;         /* calls that use the plan; the highest bit: it is being replaced    */
    atomic_uint_fast64_t used; /* when a call used it last, counted in plans that were kept        */
    stw_plan *plan;            /* or NULL; changes under that bit alone                            */
} stw_plan_slot;

/* All zeros: empty. */
typedef struct stw_plan_cache {
    atomic_uint_fast64_t hash[STW_PLAN_CACHE_SLOTS]; /* of the slots' plans, apart: looked through by every call */
    stw_plan_slot slot[STW_PLAN_CACHE_SLOTS];
    atomic_uint_fast64_t kept; /* plans, so far */
} stw_plan_cache;

/* A class of calls. Its parameter block has neither pointers nor gaps, so classes compare as bytes. */
typedef struct stw_plan_class {
    const stw_attn_work *shape; /* of one of its calls; all have its kind, f64 numbers and stages  */
    stw_attn_params params;     /* of the largest of them                                           */
    uint64_t hash;              /* set by stw_plan_class_seal                                       */
} stw_plan_class;

void stw_plan_class_seal(stw_plan_class *class);

/* The slot of the class's plan, for stw_plan_cache_give; NULL: none, or none that can be used now. */
stw_plan_slot *stw_plan_cache_take(stw_plan_cache *cache, const stw_plan_class *class);
void stw_plan_cache_give(stw_plan_slot *slot);

/* Keeps a new plan of the class in place of the one used longest ago, and gives its slot, taken. NULL: there
 * is no slot to be had, the plan is still the caller's. */
stw_plan_slot *stw_plan_cache_keep(stw_plan_cache *cache, const stw_plan_class *class, stw_plan *plan);

/* Frees the plans; no call is under way. */
void stw_plan_cache_end(stw_plan_cache *cache);

#endif
