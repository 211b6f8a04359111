/* SPDX-License-Identifier: MIT
 *
 * The kernel of wide heads, with either main loop (attn_bwd_sm90_wide.h, attn_bwd_sm90_tall.h): which warps multiply,
 * load, add dQ or keep its order, and decide what is dropped. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_KERNEL_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_KERNEL_H

#include "attn_bwd_sm90_tall.h"

template <class C, int ORDERED>
DEV_FN void attn_bwd_sm90_wide(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem) {
    const bool keeps = !C::DIRECT || SM90_ORDERS_DQ(l); /* a warp has dQ's additions or their order */
    const bool drops = C::DROPS && (!C::ALL || (l.p.features & STW_FEAT_DROPOUT));
    const int wave = (int)dev_wave();
    const uint32_t base = sm90_shared_address(smem);
    const sm90_wide_barriers<C> barriers = {base + C::AT_BARRIERS};
    attn_work_tile *const tiles =
        (attn_work_tile *)(void *)(smem + C::AT_TILES); /* this work tile and the next, alternately */
    typedef typename sm90_wide_way<C>::masking tile_masking;
    tile_masking *const masking = (tile_masking *)(void *)(smem + C::AT_MASKING);
    if (wave == C::WARPS && sm90_elect()) {
        if constexpr (C::DROPS) sm90_wide_dropped<C>{base}.init();
        barriers.init(C::WARPS + keeps + 2 * drops);
    }
    dev_await_previous();
    dev_barrier();
    if (wave >= C::WARPS) {
        sm90_give_registers<C::LOADER_REGISTERS>();
        if (wave == C::WARPS && sm90_elect()) {
            const sm90_wide_loads<C> load = {l, maps, base};
            const sm90_scheduler<ORDERED, C::MASKS> scheduler = {l, NULL, barriers.tile()};
            sm90_wide_load<C, ORDERED>(load, scheduler, tiles, masking);
        }
        if constexpr (C::DROPS)
            if (drops && dev_uniform(wave) > C::WARPS + 1) sm90_wide_decide<C>(l, barriers, smem, tiles);
        if (wave == C::WARPS + 1) {
            if constexpr (!C::DIRECT) sm90_wide_reduce<C, ORDERED>(l, barriers, smem, tiles);
            else if constexpr (ORDERED) {
                if (keeps) sm90_wide_order<C>(l, barriers, tiles);
            }
        }
    } else {
        sm90_take_registers<C::REGISTERS>();
        if constexpr (C::TALL) sm90_tall_multiply<C, ORDERED>(l, maps, smem, tiles, masking);
        else sm90_wide_multiply<C, ORDERED>(l, maps, smem, tiles, masking);
        dev_let_next_begin();
    }
}

#endif
