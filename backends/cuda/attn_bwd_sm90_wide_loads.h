/* SPDX-License-Identifier: MIT
 *
 * The warps that bring work to sm90's main loop for wide heads and take dQ from it: one lane asks for work tiles, K, V,
 * Q and dO; one warp adds dQ to its sums, in deterministic mode in the order that semaphores of query blocks give. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_LOADS_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_LOADS_H

#include "attn_bwd_sm90_masking.h"
#include "attn_bwd_sm90_tall_config.h"
#include "attn_bwd_sm90_wide_config.h"
#include "attn_bwd_sm90_wide_masks.h"

/* Where the loop over a work tile's query blocks stands, head by head. */
struct sm90_wide_iterator {
    int block, first, end, head;
    int left;    /* steps, this one included */
    uint32_t at; /* the block's number in the workspace */
    int jump;    /* what is added to it where the next head begins */

    DEV_FN sm90_wide_iterator begin(const attn_work_tile &tile, const stw_attn_launch &l) {
        sm90_wide_iterator it;
        it.block = it.first = tile.first;
        it.end = max(tile.end, tile.first + 1);
        it.head = tile.kv_head * (int)l.p.group;
        it.left = max(tile.end - tile.first, 0) * (int)l.p.group;
        it.at = (uint32_t)it.head * (uint32_t)l.q_blocks +
                (uint32_t)stw_smaller((int64_t)(uint32_t)tile.seq.q_block + tile.first, l.q_blocks - 1);
        it.jump = (int)l.q_blocks + 1 - (it.end - it.first);
        return it;
    }
    /* The same for all threads of a warp, and known to be. */
    DEV_FN sm90_wide_iterator begin_uniform(const attn_work_tile &tile, const stw_attn_launch &l) {
        sm90_wide_iterator it = begin(tile, l);
        it.block = it.first = dev_uniform(it.first);
        it.end = dev_uniform(it.end);
        it.head = dev_uniform(it.head);
        it.left = dev_uniform(it.left);
        it.at = (uint32_t)dev_uniform((int)it.at);
        it.jump = dev_uniform(it.jump);
        return it;
    }
    DEV_METHOD void next() {
        const bool over = block + 1 == end;
        --left;
        at += over ? jump : 1;
        block = over ? first : block + 1;
        head += over;
    }
};

/* A place among COUNT that are used one after the other, and the parity of its mbarriers. */
template <int COUNT> struct sm90_ring {
    int place, parity;
    DEV_METHOD void next() {
        const bool over = place == COUNT - 1;
        place = over ? 0 : place + 1;
        parity ^= over;
    }
};

template <class C> struct sm90_wide_loads {
    const stw_attn_launch &l;
    const stw_sm90_maps &maps;
    uint32_t smem;

    DEV_METHOD sm90_wide_barriers<C> barriers() const { return sm90_wide_barriers<C>{smem + C::AT_BARRIERS}; }
    template <int COLS, int ROWS>
    DEV_FN void panels(uint32_t to, const stw_mapped_tensor &t, int row, int head, int batch, sm90_mbarrier barrier) {
        DEV_UNROLL_FOR (int place = 0; place < COLS / 64; ++place)
            sm90_tma_load_panel(to + place * (ROWS * 128), &t.map, C::template panel_at<COLS, ROWS>(place) * 64, row,
                                head, batch, barrier);
    }
    typedef typename sm90_wide_way<C>::loads block_iterator;
    DEV_METHOD int query_row(const attn_work_tile &tile, const block_iterator &it) const {
        return (int)tile.seq.q.first + it.block * C::BM;
    }
    DEV_METHOD int query_batch(const attn_work_tile &tile) const {
        return l.p.features & STW_FEAT_PACKED_Q ? 0 : (int)tile.b;
    }
    DEV_METHOD void q(const attn_work_tile &tile, const block_iterator &it, sm90_ring<C::STAGES> to) const {
        const sm90_mbarrier full = barriers().q_full(to.place);
        barriers().q_empty(to.place).wait(to.parity ^ 1);
        if constexpr (C::MASKS) it.template put<C::BM, C::BN>(smem + sm90_wide_step_at<C>(to.place));
        full.expect(C::Q_BYTES + C::STATS * 4);
        panels<C::HD, C::BM>(smem + C::AT_Q + to.place * C::Q_BYTES, maps.q, query_row(tile, it), it.head,
                             query_batch(tile), full);
        sm90_bulk_load(smem + C::AT_STATS + to.place * C::STATS * 4, l.stats + (int64_t)it.at * C::STATS, C::STATS * 4,
                       full);
    }
    DEV_METHOD void dout(const attn_work_tile &tile, const block_iterator &it, sm90_ring<C::DOUT_STAGES> to) const {
        const sm90_mbarrier full = barriers().dout_full(to.place);
        barriers().dout_empty(to.place).wait(to.parity ^ 1);
        full.expect(C::DOUT_BYTES);
        panels<C::HDV, C::BM>(smem + C::AT_DOUT + to.place * C::DOUT_BYTES, maps.dout, query_row(tile, it), it.head,
                              query_batch(tile), full);
    }
    template <int COLS>
    DEV_METHOD void keys(const attn_work_tile &tile, const stw_mapped_tensor &t, uint32_t to, sm90_mbarrier full,
                         sm90_mbarrier empty, int parity, int more = 0) const {
        const int batch = l.p.features & STW_FEAT_PACKED_KV ? 0 : (int)tile.b;
        const int head = C::PARTS ? (int)((uint32_t)tile.kv_head / l.head_parts) : tile.kv_head;
        empty.wait(parity ^ 1);
        full.expect(COLS * C::BN * 2 + more);
        panels<COLS, C::BN>(to, t, (int)(tile.seq.kv.first + tile.j0), head, batch, full);
    }
    DEV_METHOD void k(const attn_work_tile &tile, int parity) const {
        if constexpr (C::MASKS) {
            keys<C::HD>(tile, maps.k, smem + C::AT_K, barriers().k_full(), barriers().k_empty(), parity, C::SEEN_BYTES);
            sm90_wide_ask_seen<C>(l, tile, smem, barriers().k_full());
        } else keys<C::HD>(tile, maps.k, smem + C::AT_K, barriers().k_full(), barriers().k_empty(), parity);
    }
    DEV_METHOD void v(const attn_work_tile &tile, int parity) const {
        keys<C::HDV>(tile, maps.v, smem + C::AT_V, barriers().v_full(), barriers().v_empty(), parity);
    }
};

/* dQ is wanted; its additions have an order. */
#define SM90_ADDS_DQ(l)   (!C::OUTPUTS || ((l).p.outputs & STW_OUT_DQ) != 0)
#define SM90_ORDERS_DQ(l) (SM90_IS_ORDERED(l) && SM90_ADDS_DQ(l))

/* One thread: all work tiles of this CTA, and their loads. What it asks for is bounded by the places that are empty. */
template <class C, int ORDERED>
DEV_FN void sm90_wide_load(const sm90_wide_loads<C> &load, const sm90_scheduler<ORDERED, C::MASKS> &scheduler,
                           attn_work_tile *tiles, typename sm90_wide_way<C>::masking *masking) {
    const sm90_wide_barriers<C> barriers = load.barriers();
    sm90_ring<C::STAGES> to = {0, 0};
    sm90_ring<C::DOUT_STAGES> to_dout = {0, 0};
    sm90_ring<2> at = {0, 0};
    int keys = 0; /* parity of K's and V's place */
    DEV_ROLLED_FOR (int turn = 0;; ++turn, at.next()) {
        attn_work_tile &tile = tiles[at.place];
        barriers.tile_empty(at.place).wait(at.parity ^ 1);
        scheduler.fetch(turn ? scheduler.draw() : scheduler.first_number(), tile);
        barriers.tile().wait(turn & 1);
        if (tile.live) masking[at.place].template find<C::BN>(tile, load.l.p);
        barriers.ready(at.place).arrive();
        if (!tile.live) return;
        typename sm90_wide_way<C>::loads it = sm90_wide_way<C>::loads::begin(tile, load.l);
        if (!it.left) continue;
        load.q(tile, it, to);
        load.k(tile, keys);
        load.v(tile, keys);
        keys ^= 1;
        DEV_ROLLED for (;;) {
            load.dout(tile, it, to_dout);
            to_dout.next();
            to.next();
            it.next();
            if (!it.left) break;
            load.q(tile, it, to);
        }
    }
}

/* A warp, in deterministic mode, where the warps that multiply add dQ themselves: says when it is their turn
 * (dq_empty), and passes the semaphore on when all have added (dq_full). */
template <class C>
DEV_FN void sm90_wide_order(const stw_attn_launch &l, const sm90_wide_barriers<C> &barriers, attn_work_tile *tiles) {
    typedef typename sm90_wide_way<C>::iterator iterator;
    sm90_ring<2> at = {0, 0};
    [[maybe_unused]] sm90_ring<C::STAGES> rows = {0, 0};
    int parity = 0;
    DEV_ROLLED for (;; at.next()) {
        attn_work_tile &tile = tiles[at.place];
        barriers.ready(at.place).wait(at.parity);
        if (!tile.live) break;
        const uint32_t block = (uint32_t)tile.block;
        DEV_ROLLED for (iterator it = iterator::begin(tile, l); it.left; it.next(), parity ^= 1) {
            if constexpr (C::MASKS) {
                barriers.q_full(rows.place).wait(rows.parity);
                it.enter(barriers.base - C::AT_BARRIERS + sm90_wide_step_at<C>(rows.place), tile, l);
                rows.next();
            }
            uint32_t *const semaphore = l.dq_semaphore + it.at;
            while (dev_load_acquire(semaphore) != block + !C::MASKS && !*l.unordered) {
            }
            __syncwarp();
            if (sm90_elect()) barriers.dq_empty().arrive();
            barriers.dq_full().wait(parity);
            __syncwarp();
            if (sm90_elect()) {
                sm90_fence_gpu();
                sm90_store_relaxed(semaphore, sm90_wide_passes_to<C>(it, tile, l));
            }
        }
        __syncwarp();
        if (sm90_elect()) barriers.tile_empty(at.place).arrive();
    }
}

/* A warp: adds dQ of all work tiles of this CTA to the sums. In deterministic mode it waits until the semaphore of a
 * query block says that the key block before this one has added, and passes it on. With wrong cu_seqlens there may be
 * no order: l.unordered tells. */
template <class C, int ORDERED>
DEV_FN void sm90_wide_reduce(const stw_attn_launch &l, const sm90_wide_barriers<C> &barriers, const char *smem,
                             attn_work_tile *tiles) {
    enum { SUMS = C::DQ_BYTES / 4 };
    typedef typename sm90_wide_way<C>::iterator iterator;
    const bool ordered = SM90_ORDERS_DQ(l), adds = SM90_ADDS_DQ(l);
    const float *const from = (const float *)(const void *)(smem + C::AT_DQ);
    const uint32_t *const exact = (const uint32_t *)(const void *)(smem + C::AT_EXACT);
    sm90_ring<2> at = {0, 0};
    int parity = 0;
    DEV_ROLLED for (;; at.next()) {
        attn_work_tile &tile = tiles[at.place];
        barriers.ready(at.place).wait(at.parity);
        if (!tile.live) break;
        const uint32_t block = (uint32_t)tile.block;
        DEV_ROLLED for (iterator it = iterator::begin(tile, l); it.left; it.next()) {
            uint32_t *semaphore = l.dq_semaphore + it.at;
            float *to = l.dq + (int64_t)it.at * (C::BM * C::WIDTH);
            DEV_ROLLED_FOR (int part = 0; part < C::DQ_PARTS; ++part, parity ^= 1) {
                barriers.dq_full().wait(parity);
                if constexpr (C::MASKS) {
                    it.enter(barriers.base - C::AT_BARRIERS + C::AT_STEP, tile, l);
                    semaphore = l.dq_semaphore + it.at;
                    to = l.dq + (int64_t)it.at * (C::BM * C::WIDTH);
                }
                if (ordered && part == 0)
                    while (dev_load_acquire(semaphore) != block + !C::MASKS && !*l.unordered) {
                    }
                __syncwarp();
                if (!adds) {
                } else if (*exact) {
                    DEV_ROLLED_FOR (int i = (int)dev_lane(); i < SUMS; i += DEV_WAVE)
                        sm90_add_exact(to + part * SUMS + i, from[i]);
                    __syncwarp();
                } else if (sm90_elect()) {
                    sm90_bulk_add(to + part * SUMS, sm90_shared_address(from), C::DQ_BYTES);
                    sm90_bulk_wait_read();
                }
                if (sm90_elect()) barriers.dq_empty().arrive();
            }
            if (ordered && sm90_elect()) {
                sm90_bulk_wait();
                sm90_fence_gpu();
                sm90_store_relaxed(semaphore, sm90_wide_passes_to<C>(it, tile, l));
            }
        }
        __syncwarp();
        if (sm90_elect()) barriers.tile_empty(at.place).arrive();
    }
    if (sm90_elect()) sm90_bulk_wait();
}

#endif
