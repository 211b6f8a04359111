/* SPDX-License-Identifier: MIT
 *
 * What a kernel of sm90's own main loop (attn_bwd_sm90.h) is put together of, by feature and mode, and what a CTA does
 * before its first step: the mbarriers, the first work tile and its loads. Also the waits of deterministic mode. */
#ifndef STW_CUDA_ATTN_BWD_SM90_BEGIN_H
#define STW_CUDA_ATTN_BWD_SM90_BEGIN_H

#include "attn_bwd_sm90_all.h"
#include "attn_bwd_sm90_dropout.h"
#include "attn_bwd_sm90_epilogue.h"
#include "attn_bwd_sm90_features.h"
#include "attn_bwd_sm90_masks.h"
#include "attn_bwd_sm90_masking.h"
#include "attn_bwd_sm90_scheduler.h"
#include "attn_bwd_sm90_scores.h"

/* Bits of `special`: rows with an infinite LSE; all terms of dQ subnormal, from dO and delta or from K or V; hidden
 * pairs; some of them by intervals between the rows that see a key. */
enum { SM90_DEAD_ROWS = 1, SM90_EXACT_DQ = 2, SM90_MASKED = 4, SM90_BETWEEN = 8 };
#define SM90_NOTHING_DUE 0xFFFFFFFFu

template <bool YES> struct sm90_flag {
    enum { yes = YES };
};

/* What goes over the query blocks of a work tile. */
template <class C, int FEATURE, int ORDERED> struct sm90_way {
    typedef sm90_block_iterator iterator;
    typedef sm90_loads<C> loads;
    typedef sm90_tile_masking_at_once masking;
};
template <class C, int FEATURE> struct sm90_way<C, FEATURE, 1> {
    typedef sm90_turn_iterator iterator;
    typedef sm90_loads<C, iterator> loads;
    typedef sm90_tile_masking_at_once masking;
};
template <class C> struct sm90_masks_way {
    typedef sm90_visible_iterator iterator;
    typedef sm90_visible_loads<C> loads;
    typedef sm90_visible_state masking;
};
template <class C, int ORDERED> struct sm90_way<C, SM90_MASKS, ORDERED> : sm90_masks_way<C> {};
template <class C> struct sm90_way<C, SM90_MASKS, 1> : sm90_masks_way<C> {};
template <class C, int ORDERED> struct sm90_way<C, SM90_ALL, ORDERED> : sm90_masks_way<C> {
    typedef sm90_visible_loads<C, false> loads;
};

/* Deterministic mode, one lane: waits until the semaphore of query block `at` says that the key block `before` has
 * added. With wrong cu_seqlens there may be no order: status_out tells. */
DEV_FN void sm90_acquire_dq_semaphore(const stw_attn_launch &l, uint32_t at, uint32_t before) {
    while (dev_load_acquire(l.dq_semaphore + at) != before && !*l.unordered) {
    }
}
/* Where masks leave key blocks out: until it names this one as the next. */
DEV_FN void sm90_acquire_dq_turn(const stw_attn_launch &l, uint32_t at, int block) {
    while (dev_load_acquire(l.dq_semaphore + at) != (uint32_t)block && !*l.unordered) {
    }
}

/* The mbarriers, and what the first work tile is, if there is one. */
template <class C, int ORDERED, int FEATURE>
DEV_FN void sm90_take_first_tile(const sm90_barriers<C> &barriers,
                                 const sm90_scheduler<ORDERED, sm90_knows<FEATURE>::MASKS> &scheduler,
                                 attn_work_tile &tile, int wave) {
    dev_await_previous();
    if (wave == 0 && sm90_elect()) {
        DEV_UNROLL_FOR (int i = 0; i < barriers.COUNT; ++i) barriers.all(i).init(1);
        if constexpr (sm90_knows<FEATURE>::DROPOUT)
            sm90_dropout_barriers<C>{barriers.base - C::AT_BARRIERS}.init(sm90_knows<FEATURE>::BIAS ? C::WARPS : 1);
        sm90_fence_mbarrier_init();
        *scheduler.drawn = scheduler.UNDRAWN;
        scheduler.fetch(scheduler.first_number(), tile);
    }
    dev_barrier();
    barriers.tile().wait(0);
}
/* Its loads: K, V and the rows of two steps. */
template <class Loads, class Masking>
DEV_FN void sm90_load_first_tile(const Loads &load, Masking &masking, attn_work_tile &tile, int wave) {
    if (wave == 1 && sm90_elect()) masking.find(tile, load.l.p);
    if (wave == 0) {
        if (sm90_elect()) {
            load.k(tile, 0);
            load.v(tile);
        }
        load.first_rows(tile, 0, 0);
        load.first_rows(tile, 1, 1);
    }
    dev_barrier();
}

#endif
