/* SPDX-License-Identifier: MIT
 *
 * Interval and block masks in sm90's main loop for wide heads (C::MASKS): its way over the query blocks that hold a
 * visible pair of the work tile, and pairs that masks hide. What it goes by: attn_bwd_sm90_visible.h.
 *
 * The lane that has the loads takes the next block of the work tile's word, and leaves in shared memory which one that
 * is (sm90_visible_step) before it asks for the rows. The warps that multiply read it when the rows have arrived, and
 * hand it on with dQ. Where these add dQ themselves, the warp that has the order reads it, too: the rows' place is not
 * empty before that warp has let dQ pass. Which rows see a key comes with K; tested pairs become bits while S is made:
 * 160 registers hold no more. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_MASKS_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_MASKS_H

#include "attn_bwd_sm90_masks.h"
#include "attn_bwd_sm90_wide_config.h"

struct sm90_wide_iterator;

/* In the place of sm90_tile_masking, of a work tile and of a stage of Q of its number. */
struct sm90_wide_visible_state {
    uint32_t step;   /* of the stage, sm90_visible_step */
    uint32_t keys;   /* likewise, that a block mask shows: the first one, and 65536 times how many */
    int zeroes_keys; /* of the work tile: some keys take part in nothing */
    uint32_t rows;   /* of the stage, that take part in something: the first one, and 65536 times the last one's next */
    template <int BN> DEV_METHOD void find(const attn_work_tile &tile, const stw_attn_params &p) {
        sm90_visible_state of_tile = {};
        of_tile.find<BN>(tile, p);
        zeroes_keys = of_tile.zeroes_keys;
    }
};

/* The number in the workspace of a step's query block. */
DEV_FN uint32_t sm90_wide_block_at(const stw_attn_launch &l, const attn_work_tile &tile, sm90_visible_step step) {
    return (uint32_t)(tile.kv_head * (int)l.p.group + step.head()) * (uint32_t)l.q_blocks +
           min((uint32_t)tile.seq.q_block + (uint32_t)step.block(), (uint32_t)l.q_blocks - 1);
}

/* The lane that has the loads, as sm90_wide_iterator. */
struct sm90_wide_visible_words {
    attn_work_tile &tile;
    const stw_attn_launch &l;
    int block, head, left;
    uint32_t at, step; /* sm90_visible_step */

    DEV_FN sm90_wide_visible_words begin(attn_work_tile &tile, const stw_attn_launch &l) {
        sm90_wide_visible_words it = {tile, l, 0, 0, sm90_visible_tile{tile}.steps(), 0, 0};
        if (it.left) it.take();
        return it;
    }
    DEV_METHOD void take() {
        const sm90_visible_step next = sm90_visible_take(sm90_visible_tile{tile}, [&](uint32_t word) {
            return dev_load_vector((const sm90_visible_word *)l.visible_words + word);
        });
        step = next.word;
        block = next.block();
        head = tile.kv_head * (int)l.p.group + next.head();
        at = sm90_wide_block_at(l, tile, next);
    }
    DEV_METHOD void next() {
        if (--left) take();
    }
    /* To its stage's place. A block mask may hide the keys before a multiple of 128, or those from there on. */
    template <int BM, int BN> DEV_METHOD void put(uint32_t to) const {
        typedef sm90_wide_visible_state state;
        const int64_t i0 = (int64_t)block * BM;
        int low = 0, high = BM;
        if (!sm90_tile_masking::ends_with_tensor(tile, l.p)) {
            low = (int)stw_clamp_i64(tile.seq.q_low - i0, 0, BM);
            high = (int)stw_clamp_i64(tile.seq.q_end - i0, 0, BM);
        }
        sm90_store_shared_word(to + (int)offsetof(state, step), step);
        sm90_store_shared_word(to + (int)offsetof(state, rows), (uint32_t)low | (uint32_t)high << 16);
        if (!(l.p.features & STW_FEAT_BLOCK_MASK) || !(step & sm90_visible_step::TESTS)) return;
        const int border = STW_MASK_BLOCK - (int)tile.j0 % STW_MASK_BLOCK;
        const bool first = stw_block_mask_at(&l.p, tile.b, head, i0, tile.j0) != 0,
                   last = stw_block_mask_at(&l.p, tile.b, head, i0, sm90_last_key(tile, BN)) != 0;
        const int from = first ? 0 : border, end = last ? BN : border;
        sm90_store_shared_word(to + (int)offsetof(state, keys), (uint32_t)from | (uint32_t)(end - from) << 16);
    }
};

/* The other warps, likewise. */
struct sm90_wide_visible_iterator {
    int left;
    uint32_t at;
    sm90_visible_step step;

    DEV_FN sm90_wide_visible_iterator begin(attn_work_tile &tile, const stw_attn_launch &) {
        return {sm90_visible_tile{tile}.steps(), 0, {0}};
    }
    DEV_METHOD void next() { --left; }
    /* What stands at `from` in shared memory is this step's. */
    DEV_METHOD void enter(uint32_t from, const attn_work_tile &tile, const stw_attn_launch &l) {
        step = {(uint32_t)dev_uniform((int)sm90_load_shared_word(from))};
        at = sm90_wide_block_at(l, tile, step);
    }
    /* Deterministic mode: which key block adds to this query block next. */
    DEV_METHOD uint32_t follower(const attn_work_tile &tile, const stw_attn_launch &l) const {
        return sm90_visible_follower(l, tile, step.head(), step.block());
    }
};
/* Those that multiply read what a step is where they want it: registers lack. */
struct sm90_wide_visible_steps {
    int left;
    DEV_FN sm90_wide_visible_steps begin(attn_work_tile &tile, const stw_attn_launch &) {
        return {sm90_visible_tile{tile}.steps()};
    }
    DEV_FN sm90_wide_visible_steps begin_uniform(attn_work_tile &tile, const stw_attn_launch &l) {
        return {dev_uniform(begin(tile, l).left)};
    }
    DEV_METHOD void next() { --left; }
};

/* What goes over the query blocks of a work tile. */
template <class C, bool MASKS = C::MASKS> struct sm90_wide_way {
    typedef sm90_wide_iterator iterator, loads, steps;
    typedef sm90_tile_masking masking;
};
template <class C> struct sm90_wide_way<C, true> {
    typedef sm90_wide_visible_iterator iterator;
    typedef sm90_wide_visible_words loads;
    typedef sm90_wide_visible_steps steps;
    typedef sm90_wide_visible_state masking;
};

/* Where a stage of Q has its sm90_visible_step in shared memory. */
template <class C> DEV_FN int sm90_wide_step_at(int stage) {
    return C::AT_MASKING + stage * (int)sizeof(sm90_wide_visible_state);
}

/* Deterministic mode: what a semaphore says after the additions of `tile`: under masks who is next, else who was. */
template <class C, class Iterator>
DEV_FN uint32_t sm90_wide_passes_to(const Iterator &it, const attn_work_tile &tile, const stw_attn_launch &l) {
    if constexpr (C::MASKS) return it.follower(tile, l);
    else return (uint32_t)tile.block;
}

/* What the work tile's keys are seen by, sm90_visible_block: with K, into its place in shared memory. */
template <class C>
DEV_FN void sm90_wide_ask_seen(const stw_attn_launch &l, const attn_work_tile &tile, uint32_t smem,
                               sm90_mbarrier full) {
    const sm90_visible_block &from = ((const sm90_visible_block *)l.visible_blocks)[tile.index >> 1];
    sm90_bulk_load(smem + C::AT_SEEN, from.seen, C::BN * (int)sizeof(sm90_seen), full);
    sm90_bulk_load(smem + C::AT_HIDDEN, from.hidden, C::BN * (int)sizeof(stw_hidden_rows), full);
}

/* Pairs that the band or masks hide, of the step whose rows are in `stage`: the last bits, one a score. By pieces of
 * two keys and two queries; what a thread's are it finds anew for each piece: registers lack. */
template <class C> DEV_FN uint32_t sm90_wide_hidden(uint32_t smem, int stage, bool blocks) {
    uint32_t hidden = 0;
    DEV_ROLLED_FOR (int n = 0; n < C::GROUP_KEYS / 8; ++n) {
        const uint32_t of_stage = smem + sm90_wide_step_at<C>(stage);
        const sm90_visible_step step = {sm90_load_shared_word(of_stage)};
        const int thread = sm90_thread_anew(), key = thread / 128 * C::GROUP_KEYS + thread % 4 * 2 + 8 * n,
                  query = step.block() * C::BM + thread / 32 % 4 * 16 + thread % 32 / 4;
        const uint4 seen = sm90_load_shared_vector(smem + C::AT_SEEN + key * (int)sizeof(sm90_seen));
        hidden >>= 4;
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
            const int at = query + (i & 2) * 4;
            if (at < (int)(i % 2 ? seen.z : seen.x) || at > (int)(i % 2 ? seen.w : seen.y)) hidden |= 1u << (28 + i);
        }
        if (step.word & sm90_visible_step::TESTS_BETWEEN) {
            DEV_UNROLL_FOR (int b = 0; b < 2; ++b) {
                const uint4 h = sm90_load_shared_vector(smem + C::AT_HIDDEN + (key + b) * (int)sizeof(stw_hidden_rows));
                DEV_UNROLL_FOR (int a = 0; a < 2; ++a) {
                    const uint32_t at = (uint32_t)(query + 8 * a);
                    if (at - h.x < h.z - h.x || at - h.y < h.w - h.y) hidden |= 1u << (28 + 2 * a + b);
                }
            }
        }
        if (blocks) {
            const uint32_t keys = sm90_load_shared_word(of_stage + (int)offsetof(sm90_wide_visible_state, keys));
            DEV_UNROLL_FOR (int b = 0; b < 2; ++b)
                if ((uint32_t)(key + b) - (keys & 0xFFFFu) >= keys >> 16) hidden |= 5u << (28 + b);
        }
    }
    return hidden;
}

#endif
