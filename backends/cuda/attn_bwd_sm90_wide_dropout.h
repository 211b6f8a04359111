/* SPDX-License-Identifier: MIT
 *
 * Dropout in sm90's main loop for wide heads: two warps that have neither loads nor dQ decide which scores of the next
 * step are dropped. A bit a score, sixteen queries of a key in a halfword, in two places behind the work tiles: all
 * keys of the first sixteen queries, then those of the next. Warp c of a warpgroup that multiplies has queries 16c.. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_DROPOUT_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_DROPOUT_H

#include "attn_bwd_sm90_dropout.h"
#include "attn_bwd_sm90_wide_loads.h"

/* Places of decisions and their mbarriers. */
template <class C> struct sm90_wide_dropped {
    enum { DECIDERS = 2, AT_BARRIERS = C::AT_DROPPED, AT_KEY = AT_BARRIERS + 32, AT = AT_KEY + 32, BYTES = 8 * C::BN };
    uint32_t base;

    DEV_METHOD sm90_mbarrier full(int place) const { return sm90_mbarrier{base + AT_BARRIERS + 8 * place}; }
    DEV_METHOD sm90_mbarrier empty(int place) const { return sm90_mbarrier{base + AT_BARRIERS + 16 + 8 * place}; }
    DEV_METHOD void init() const {
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) {
            full(i).init(DECIDERS);
            empty(i).init(C::WARPS);
        }
    }
    /* Of one of the deciding warps: two words of Philox's key, and 0. Read where they are wanted: ptxas would keep the
     * keys of all rounds, 20 registers of 24, and all that it makes of a work tile. */
    DEV_FN volatile uint32_t *word(char *smem, int turn) {
        return (volatile uint32_t *)(void *)(smem + AT_KEY + 16 * turn);
    }
    DEV_FN uint16_t *halfword(char *smem, int place, int quarter, int key) {
        return (uint16_t *)(void *)(smem + AT + place * BYTES) + quarter * C::BN + key;
    }
};

/* What a thread that multiplies reads of them. */
template <class C> struct sm90_wide_dropped_scores {
    const uint32_t *from;
    int row;

    DEV_FN sm90_wide_dropped_scores of(char *smem, int place) {
        const int thread = sm90_thread_anew(), key = thread / 128 * C::GROUP_KEYS + thread % 4 * 2;
        const uint16_t *const first = sm90_wide_dropped<C>::halfword(smem, place, thread / 32 % 4, key);
        return {(const uint32_t *)(const void *)first, thread / 4 % 8};
    }
    /* Of piece i, 8 keys: bit 7 of byte 2 b + a is that of key b of this thread's two and its row a of two. */
    DEV_METHOD uint32_t piece(int i) const { return from[4 * i] << (7 - row); }
    /* In each half of the word ones if that of two scores is dropped: i and i + 1. */
    DEV_METHOD uint32_t pair(int i) const { return sm90_signs(piece(i / 4), i & 2 ? 0xBB99u : 0xAA88u); }
};

/* What a warp decides of a step, by MAP: `turn` and every second piece of work after it are its own. Positions of a
 * sequence have 30 bits. */
template <class C, int MAP> struct sm90_wide_decisions {
    typedef sm90_wide_dropped<C> dropped;
    const stw_attn_params &p;
    char *smem;
    const stw_dropout_stream &s;
    int i0, j0, place, turn;

    DEV_METHOD uint64_t key() const {
        const uint32_t low = dropped::word(smem, turn)[0], high = dropped::word(smem, turn)[1];
        return low | (uint64_t)high << 32;
    }
    DEV_METHOD void put(int quarter, int at, uint32_t bits) const {
        *dropped::halfword(smem, place, quarter, at) = (uint16_t)bits;
    }

    /* Sternway's own map where blocks start at multiples of four rows of it: four calls decide sixteen queries. */
    DEV_METHOD void philox(int lane) const {
        const uint32_t row = (uint32_t)((uint64_t)(i0 + s.q_offset) >> 2), col = (uint32_t)j0 + (uint32_t)s.kv_offset;
        DEV_ROLLED_FOR (int n = 0; n < C::BN / 16; ++n) {
            const int at = 64 * n + 32 * turn + lane, quarter = at / C::BN, of = at - quarter * C::BN;
            uint32_t bits = 0;
            DEV_ROLLED_FOR (int m = 0; m < 4; ++m) {
                sm90_philox<1> call;
                call.c[0][0] = row + 4 * quarter + m;
                call.c[0][1] = col + of;
                call.c[0][2] = (uint32_t)s.head;
                call.c[0][3] = (uint32_t)s.offset;
                call.template rounds<10>(key());
                bits |= call.below(p.dropout_threshold) << 4 * m;
            }
            put(quarter, of, bits);
        }
    }
    /* FlashAttention-2's map: the calls of a warp decide sixteen queries of 32 keys, from a multiple of 32 on: a lane
     * two queries of eight keys, which eight lanes exchange for sixteen queries of one. */
    DEV_METHOD void flash2(int lane) const {
        enum { COLUMNS = C::BN % 32 ? C::BN / 32 + 1 : C::BN / 32 };
        const uint64_t subsequence = s.offset + s.head * 32u + (uint32_t)lane;
        const uint32_t row = (uint32_t)i0 >> 4, col = (uint32_t)j0 >> 5;
        /* added to a byte in 9 bits, its carry says that the byte is larger than dropout_byte */
        const uint32_t carry = (255u - p.dropout_byte) * 0x00010001u;
        const int first = lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2 - j0 % 32;
        DEV_ROLLED_FOR (int n = 0; n < 2 * COLUMNS; ++n) {
            const int at = 2 * n + turn;
            sm90_philox<1> call;
            call.c[0][0] = (uint32_t)subsequence;
            call.c[0][1] = (uint32_t)(subsequence >> 32);
            call.c[0][2] = row + at % 4;
            call.c[0][3] = col + at / 4;
            call.template rounds<7>(key());
            uint32_t bits = 0; /* of eight keys, bits 0.. of the first query and 16.. of the second */
            DEV_UNROLL_FOR (int k = 0; k < 4; ++k) {
                const uint32_t x = call.c[0][k];
                bits |= (((x & 0x00FF00FFu) + carry) >> 8 & 0x00010001u) << 2 * k;
                bits |= (((x >> 8 & 0x00FF00FFu) + carry) >> 8 & 0x00010001u) << (2 * k + 1);
            }
            bits = exchanged<1, 0x00550055u>(bits, lane);
            bits = exchanged<2, 0x00330033u>(bits, lane);
            bits = exchanged<4, 0x000F000Fu>(bits, lane);
            const int of = 32 * (at / 4) + first;
            if (C::BN % 32 == 0 || (of >= 0 && of < C::BN)) put(at % 4, of, (bits & 0xFFu) | (bits >> 8 & 0xFF00u));
        }
    }
    /* Of bits by keys, in the lanes of queries: bit STEP of a key's number for that of a query's. */
    template <int STEP, uint32_t LOW> DEV_FN uint32_t exchanged(uint32_t x, int lane) {
        const uint32_t y = dev_shuffle_xor(x, 4 * STEP);
        return lane & 4 * STEP ? (x & ~LOW) | (y & ~LOW) >> STEP : (x & LOW) | (y & LOW) << STEP;
    }
    /* The memory-efficient kernels' map where rows begin at multiples of four: a call decides four keys of a query, and
     * those of a warp eight keys of sixteen. */
    DEV_METHOD void mem_eff(int lane) const {
        const uint64_t first = s.base + (uint64_t)(i0 + lane % 16) * s.row_stride + (uint64_t)(j0 + lane / 16 * 4);
        DEV_ROLLED_FOR (int n = 0; n < C::BN / 4; ++n) {
            const int at = 2 * n + turn;
            const uint64_t counter = (first + (uint64_t)(at % 4 * 16) * s.row_stride + (uint64_t)(at / 4 * 8)) >> 2;
            sm90_philox<1> call;
            call.c[0][0] = (uint32_t)counter;
            call.c[0][1] = (uint32_t)(counter >> 32);
            call.c[0][2] = call.c[0][3] = 0;
            call.template rounds<10>(key());
            uint32_t bits = 0;
            DEV_UNROLL_FOR (int k = 0; k < 4; ++k) {
                const uint32_t of_key = __ballot_sync(0xFFFFFFFFu, call.c[0][k] < p.dropout_threshold);
                if (lane % 4 == k) bits = of_key;
            }
            if (lane < 8) put(at % 4, at / 4 * 8 + lane, bits >> (lane / 4 * 16));
        }
    }
    /* Sternway's own and the memory-efficient kernels' map at any position: a call a value, two keys of a warp. */
    DEV_METHOD void each(int lane) const {
        enum { OWN = MAP == STW_DROPOUT_PHILOX };
        const uint64_t i = (uint64_t)(i0 + lane % 16) + (OWN ? (uint64_t)s.q_offset : 0u);
        const uint64_t j = (uint64_t)(j0 + lane / 16) + (OWN ? (uint64_t)s.kv_offset : 0u);
        DEV_ROLLED_FOR (int n = 0; n < C::BN; ++n) {
            const int at = 2 * n + turn;
            const uint64_t row = i + (uint32_t)(at % 4 * 16), col = j + (uint32_t)(at / 4 * 2);
            const uint64_t number = OWN ? row : s.base + row * s.row_stride + col;
            sm90_philox<1> call;
            call.c[0][0] = (uint32_t)(number >> 2);
            call.c[0][1] = OWN ? (uint32_t)col : (uint32_t)(number >> 34);
            call.c[0][2] = OWN ? (uint32_t)s.head : 0u;
            call.c[0][3] = OWN ? (uint32_t)s.offset : 0u;
            call.template rounds<10>(key());
            const uint32_t bits =
                __ballot_sync(0xFFFFFFFFu, (call.below(p.dropout_threshold) >> ((uint32_t)number & 3u) & 1u) != 0);
            if (lane % 16 == 0) put(at % 4, at / 4 * 2 + lane / 16, bits >> lane);
        }
    }
    DEV_METHOD void make(bool fits, int lane) const {
        if constexpr (MAP == STW_DROPOUT_FLASH2) flash2(lane);
        else if (!fits) each(lane);
        else if constexpr (MAP == STW_DROPOUT_PHILOX) philox(lane);
        else mem_eff(lane);
    }
};

/* One of the two warps: the same work tiles and steps as those that multiply. A loop for each map: registers lack. */
template <class C, int MAP>
DEV_FN void sm90_wide_decide_by(const stw_attn_launch &l, const sm90_wide_barriers<C> &barriers, char *smem,
                                attn_work_tile *tiles) {
    typedef sm90_wide_dropped<C> dropped;
    const stw_attn_params &p = l.p;
    const dropped decided = {barriers.base - C::AT_BARRIERS};
    const int turn = dev_uniform((int)dev_wave() - (C::WARPS + 2));
    volatile uint32_t *const word = dropped::word(smem, turn);
    if (sm90_elect()) {
        const uint64_t seed = p.dropout_seed_ptr ? *p.dropout_seed_ptr : p.dropout_seed,
                       offset = p.dropout_offset_ptr ? *p.dropout_offset_ptr : p.dropout_offset;
        word[0] = (uint32_t)seed;
        word[1] = (uint32_t)(seed >> 32) ^ (MAP == STW_DROPOUT_PHILOX ? (uint32_t)(offset >> 32) : 0u);
        word[2] = 0;
    }
    __syncwarp();
    sm90_ring<2> at = {0, 0}, to = {0, 0};
    [[maybe_unused]] sm90_ring<C::STAGES> rows = {0, 0};
    DEV_ROLLED for (;; at.next()) {
        barriers.ready(at.place).wait(at.parity);
        if (!dev_uniform(tiles[at.place].live)) return;
        int head = 0, block = tiles[at.place].first;
        DEV_ROLLED for (int left = sm90_wide_way<C>::steps::begin(tiles[at.place], l).left; left; --left) {
            decided.empty(to.place).wait(to.parity ^ 1);
            if constexpr (C::MASKS) { /* its rows' place is not empty before what is dropped of it has been read */
                barriers.q_full(rows.place).wait(rows.parity);
                const sm90_visible_step step = {
                    sm90_load_shared_word(barriers.base - C::AT_BARRIERS + sm90_wide_step_at<C>(rows.place))};
                head = step.head();
                block = step.block();
                rows.next();
            }
            const attn_work_tile &tile = tiles[at.place + (int)word[2]];
            const stw_dropout_stream s =
                stw_dropout_stream_of(&p, tile.b, tile.kv_head * p.group + head, tile.seq.q, tile.seq.kv);
            const sm90_wide_decisions<C, MAP> of = {p, smem, s, block * C::BM, (int)tile.j0, to.place, turn};
            of.make(sm90_dropout_fits(p, tile, s.offset), sm90_lane_anew());
            __syncwarp();
            if (sm90_elect()) decided.full(to.place).arrive();
            to.next();
            const bool over = ++block == tile.end;
            block = over ? tile.first : block;
            head += over;
        }
        __syncwarp();
        if (sm90_elect()) barriers.tile_empty(at.place).arrive();
    }
}
template <class C>
DEV_FN void sm90_wide_decide(const stw_attn_launch &l, const sm90_wide_barriers<C> &barriers, char *smem,
                             attn_work_tile *tiles) {
    if (l.p.dropout_map == STW_DROPOUT_PHILOX) sm90_wide_decide_by<C, STW_DROPOUT_PHILOX>(l, barriers, smem, tiles);
    else if (l.p.dropout_map == STW_DROPOUT_FLASH2)
        sm90_wide_decide_by<C, STW_DROPOUT_FLASH2>(l, barriers, smem, tiles);
    else sm90_wide_decide_by<C, STW_DROPOUT_MEM_EFF>(l, barriers, smem, tiles);
}

#endif
