/* SPDX-License-Identifier: MIT
 *
 * Who works on what in sm90's own main loop: a work tile's query blocks one after the other, the tensor loads of
 * both, and the next work tile. */
#ifndef STW_CUDA_ATTN_BWD_SM90_SCHEDULER_H
#define STW_CUDA_ATTN_BWD_SM90_SCHEDULER_H

#include "attn_bwd_sm90_config.h"
#include "attn_bwd_sm90_visible.h"

/* Where the loop over a work tile's query blocks stands, head by head; the same for all threads. */
struct sm90_block_iterator {
    int block, first, end, head;
    int left;    /* steps, this one included; a work tile has two at least, the missing ones repeat a block */
    uint32_t at; /* the block's number in the workspace */
    int jump;    /* what is added to it where the next head begins; 0: the block is repeated */
    int idle;    /* for kernels that ask in every step: is_idle is left <= idle */

    DEV_FN int steps_of(const attn_work_tile &tile, const stw_attn_launch &l) {
        return max(tile.end - tile.first, 0) * (int)l.p.group;
    }
    DEV_FN sm90_block_iterator begin(const attn_work_tile &tile, const stw_attn_launch &l) {
        sm90_block_iterator it;
        const int steps = dev_uniform(steps_of(tile, l)), first = dev_uniform(tile.first);
        it.block = it.first = first;
        it.end = max(dev_uniform(tile.end), first + 1);
        it.head = dev_uniform(tile.kv_head) * (int)l.p.group;
        it.left = max(steps, 2);
        it.at = (uint32_t)it.head * (uint32_t)l.q_blocks +
                (uint32_t)stw_smaller((int64_t)(uint32_t)dev_uniform((int)tile.seq.q_block) + first, l.q_blocks - 1);
        it.jump = steps < 2 ? 0 : (int)l.q_blocks + 1 - (it.end - first);
        it.idle = max(2 - steps, 0);
        return it;
    }
    /* No pair of this step is visible. */
    DEV_METHOD bool is_idle(const attn_work_tile &tile, const stw_attn_launch &l) const {
        return left <= 2 - steps_of(tile, l);
    }
    /* The query head of the step. */
    DEV_METHOD int query_head(const attn_work_tile &, const stw_attn_launch &) const { return head; }
    /* Deterministic mode: the key block that adds before `block` to a query block. */
    DEV_METHOD uint32_t before(int block) const { return (uint32_t)block + 1; }
    /* Without a branch: the main loop's control depends on it. */
    DEV_METHOD void next() {
        const bool over = block + 1 == end;
        --left;
        at += over ? jump : 1;
        block = over ? first : block + 1;
        head += over && jump > 0;
    }
};

/* Kernels for deterministic mode alone. A work tile of heads that ascend (attn_work_tile.live is SM90_ASCENDS) goes
 * from its last query block to the first, and at each through the heads of the group. Under a causal mask all key
 * blocks of a head begin at the same query block, and each stays a step behind the one before it. */
enum { SM90_DESCENDS = 1, SM90_ASCENDS = 2 };
struct sm90_turn_iterator : sm90_block_iterator {
    int ascends, head_first, head_end, step;

    DEV_FN sm90_turn_iterator begin(const attn_work_tile &tile, const stw_attn_launch &l) {
        sm90_turn_iterator it = {sm90_block_iterator::begin(tile, l), 0, 0, 0, 1};
        const int last = it.end - 1, group = (int)l.p.group;
        it.ascends = dev_uniform(tile.live) == SM90_ASCENDS;
        it.head_first = it.head;
        it.head_end = it.head + group;
        it.at += it.ascends ? last - it.block : 0;
        it.block = it.ascends ? last : it.block;
        it.step = it.ascends ? (it.jump ? (int)l.q_blocks : 0) : 1;
        it.jump = it.ascends && it.jump ? -(int)l.q_blocks * (group - 1) - 1 : it.jump;
        return it;
    }
    DEV_METHOD uint32_t before(int of) const { return (uint32_t)(ascends ? of - 1 : of + 1); }
    DEV_METHOD void next() {
        const bool over = ascends ? head + 1 == head_end : block + 1 == end;
        --left;
        at += over ? jump : step;
        block = ascends ? block - (over && jump != 0) : over ? first : block + 1;
        head = ascends ? (over ? head_first : head + 1) : head + (over && jump > 0);
    }
};

/* Tensor loads. One lane of the first warp asks for everything. */
template <class C, class Iterator = sm90_block_iterator> struct sm90_loads {
    enum { MARKS = 2 * C::BM * 4 }; /* where a block's marks stand behind its LSE and delta, in bytes */
    const stw_attn_launch &l;
    const stw_sm90_maps &maps;
    uint32_t smem;

    DEV_METHOD sm90_barriers<C> barriers() const { return sm90_barriers<C>{smem + C::AT_BARRIERS}; }
    DEV_FN void panels(uint32_t to, const stw_mapped_tensor &t, int row, int head, int batch, int rows,
                       sm90_mbarrier barrier) {
        if (C::HD % 64 == 0 && t.panels == C::PANELS) {
            sm90_tma_load_panels(to, &t.map, row, head, batch, barrier);
        } else {
            DEV_UNROLL_FOR (int panel = 0; panel < C::PANELS; ++panel)
                sm90_tma_load_panel(to + panel * rows * 128, &t.map, panel * 64, row, head, batch, barrier);
        }
    }
    /* Q, dO and statistics of a query block. In idle steps all are zeros: rows that others see must not be
     * multiplied, a sequence without queries has no statistics, and what happens to lie there may be no number. The
     * marks behind the statistics are those of the block to which the step adds its zeros: an addition of 0 flushes a
     * subnormal sum of dQ, unless the block is marked for exact additions. */
    DEV_METHOD void rows(const attn_work_tile &tile, const sm90_block_iterator &it, int stage, bool idle) const {
        const bool packed = (l.p.features & STW_FEAT_PACKED_Q) != 0;
        const int batch = packed ? 0 : (int)tile.b;
        const int end = (int)(packed ? l.p.total_q : l.p.max_seq_q); /* past it TMA finds zeros */
        const int row = idle ? end : (int)tile.seq.q.first + it.block * C::BM;
        const sm90_mbarrier q = barriers().q(stage), dout = barriers().dout(stage);
        const uint32_t stats = smem + C::AT_STATS + stage * C::STATS * 4;
        if (idle) {
            DEV_ROLLED_FOR (int i = 0; i < MARKS; i += 16) sm90_zero_vector_if(true, stats + i);
            q.expect(C::ROWS_BYTES + C::STATS * 4 - MARKS);
            sm90_bulk_load(stats + MARKS, (const char *)(l.stats + (int64_t)it.at * C::STATS) + MARKS,
                           C::STATS * 4 - MARKS, q);
        } else {
            q.expect(C::ROWS_BYTES + C::STATS * 4);
            sm90_bulk_load(stats, l.stats + (int64_t)it.at * C::STATS, C::STATS * 4, q);
        }
        panels(smem + C::AT_Q + stage * C::ROWS_BYTES, maps.q, row, it.head, batch, C::BM, q);
        dout.expect(C::ROWS_BYTES);
        panels(smem + C::AT_DOUT + stage * C::ROWS_BYTES, maps.dout, row, it.head, batch, C::BM, dout);
    }
    /* The whole warp: rows of a work tile's first (0) or second (1) step. */
    DEV_METHOD void first_rows(const attn_work_tile &tile, int step, int stage) const {
        Iterator it = Iterator::begin(tile, l);
        if (step) it.next();
        if (sm90_elect()) rows(tile, it, stage, it.is_idle(tile, l));
    }
    DEV_METHOD void keys(const attn_work_tile &tile, const stw_mapped_tensor &t, uint32_t to,
                         sm90_mbarrier barrier) const {
        int batch = l.p.features & STW_FEAT_PACKED_KV ? 0 : (int)tile.b;
        barrier.expect(C::KEYS_BYTES);
        const int head = C::GENERAL || C::DRAINS ? (int)((uint32_t)tile.kv_head / l.head_parts) : tile.kv_head;
        panels(to, t, (int)(tile.seq.kv.first + tile.j0), head, batch, C::BN, barrier);
    }
    DEV_METHOD void k(const attn_work_tile &tile, int place) const {
        keys(tile, maps.k, smem + C::AT_K + place * C::KEYS_BYTES, barriers().k());
    }
    DEV_METHOD void v(const attn_work_tile &tile) const { keys(tile, maps.v, smem + C::AT_V, barriers().v()); }
    /* The whole warp, in the last step of the work tile before, which does not need its V any more. */
    DEV_METHOD void second_rows_and_v(const attn_work_tile &next, int stage) const {
        first_rows(next, 1, stage);
        if (sm90_elect()) v(next);
    }
};

/* In the place of ORDERED: a kernel for both modes, which the call's features tell apart. The kernels of one mode keep
 * their machine code where ptxas sees a constant from the beginning. */
enum { SM90_ORDER_ASKED = 2 };
#define SM90_IS_ORDERED(l) (ORDERED == SM90_ORDER_ASKED ? ((l).p.features & STW_FEAT_DETERMINISTIC) != 0 : ORDERED != 0)

/* Which work tile a CTA takes. One lane of the first warp asks. MASKS: heads may have key blocks of their own. In
 * deterministic mode key blocks are numbered from the last to the first (STW_KEYS_DESCEND), but with
 * STW_SM90_LAST_ASCEND from the first to the last for the last heads numbered together: under a causal mask the longest
 * work tiles are the last of all others, the shortest those of these. */
template <int ORDERED, bool MASKS = false> struct sm90_scheduler {
    /* Instead of the next work tile's number: it has not been drawn yet; it has been asked for already. */
    enum : uint32_t { UNDRAWN = 0xFFFFFFFFu, FETCHED = 0xFFFFFFFEu };
    const stw_attn_launch &l;
    uint32_t *drawn; /* in shared memory: the next work tile's number */
    sm90_mbarrier arrived;

    /* A number: work tiles that no CTA began with are drawn; in deterministic mode all, since each waits for those
     * before it. */
    DEV_METHOD uint32_t draw() const {
        return (SM90_IS_ORDERED(l) ? 0u : (uint32_t)l.blocks) + (uint32_t)dev_fetch_add(l.tile_counter, 1);
    }
    DEV_METHOD uint32_t first_number() const { return SM90_IS_ORDERED(l) ? draw() : (uint32_t)dev_cta(); }
    /* attn_place_of in 32 bits, which is enough here: long division would cost the main loop registers. */
    DEV_METHOD void place_of(uint32_t number, uint32_t *key_block, uint32_t *head, bool *ascends) const {
        *ascends = false;
        if (l.p.features & STW_FEAT_PACKED_KV) {
            const uint2 listed = *(const uint2 *)(const void *)(l.listed + 1 + number);
            *head = listed.x;
            *key_block = listed.y;
            return;
        }
        const uint32_t blocks = (uint32_t)l.k_blocks, together = (uint32_t)l.heads_in_l2;
        if constexpr (MASKS && ORDERED != 1)
            if (!SM90_IS_ORDERED(l) && l.visible_next) {
                sm90_visible_front::of(l).place_of(l, number, key_block, head);
                return;
            }
        const uint32_t heads_kv = (uint32_t)l.p.heads_kv, first = number / (together * blocks) * together;
        const uint32_t left = (uint32_t)l.p.batch * heads_kv - first, here = left < together ? left : together;
        number -= first * blocks;
        const uint32_t turn = number / here, any = first + number - turn * here, b = any / heads_kv;
        if (ORDERED == 1 && !MASKS)
            *ascends = (l.vectors & STW_SM90_LAST_ASCEND) && first + together >= (uint32_t)l.p.batch * heads_kv;
        *key_block = b * blocks + (SM90_IS_ORDERED(l) && !*ascends ? blocks - 1 - turn : turn);
        *head = any - b * heads_kv;
    }
    /* Work tile `number` into `tile`, if there is one; its key block arrives asynchronously. */
    DEV_METHOD void fetch(uint32_t number, attn_work_tile &tile) const {
        const uint32_t count = l.p.features & STW_FEAT_PACKED_KV ? (uint32_t)l.listed[0] : (uint32_t)l.work_tiles;
        const uint32_t bytes = (uint32_t)sizeof(attn_key_block);
        const bool live = number < count;
        uint32_t key_block = 0, head = 0;
        bool ascends = false;
        if (live) place_of(number, &key_block, &head, &ascends);
        tile.kv_head = (int)head;
        tile.live = !live ? 0 : ascends ? SM90_ASCENDS : SM90_DESCENDS;
        arrived.expect(live ? bytes : 0u);
        if constexpr (MASKS) {
            if (live)
                sm90_bulk_load(sm90_shared_address(&tile),
                               (const sm90_visible_block *)l.visible_blocks + sm90_visible_index(l, key_block, head),
                               bytes, arrived);
        } else if (live)
            sm90_bulk_load(sm90_shared_address(&tile), (const char *)l.key_blocks + (uint64_t)key_block * bytes, bytes,
                           arrived);
    }
    /* The same in steps: `drawn` says how far it is. */
    DEV_METHOD void fetch_next(attn_work_tile &tile) const {
        uint32_t number = *drawn;
        if (number == FETCHED) return;
        fetch(number == UNDRAWN ? draw() : number, tile);
        *drawn = FETCHED;
    }
};

/* The first warp, in a step that is not the last of its work tile: asks for the rows of step j + 2, into stage `to`.
 * In the two steps before it finds out what the next work tile is, and asks for its K and first rows in the last. */
template <class C, class Iterator, int ORDERED>
DEV_FN void sm90_load_ahead(const sm90_loads<C, Iterator> &load, const sm90_scheduler<ORDERED> &scheduler,
                            const attn_work_tile &tile, attn_work_tile &next, const Iterator &it, int turn, int to) {
    if (it.left > 2) {
        Iterator two = it;
        two.next();
        two.next();
        if (sm90_elect()) load.rows(tile, two, to, false);
        if (it.left <= 4 && sm90_elect()) {
            if (it.left == 4) *scheduler.drawn = scheduler.draw();
            else scheduler.fetch_next(next);
        }
    } else {
        if (sm90_elect()) {
            scheduler.fetch_next(next);
            *scheduler.drawn = scheduler.UNDRAWN;
        }
        scheduler.arrived.wait((turn + 1) & 1);
        __syncwarp();
        if (dev_uniform(next.live)) {
            if (sm90_elect()) load.k(next, (turn & 1) ^ 1);
            load.first_rows(next, 0, to);
        }
    }
}

#endif
