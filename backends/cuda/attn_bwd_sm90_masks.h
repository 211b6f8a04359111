/* SPDX-License-Identifier: MIT
 *
 * Interval and block masks in sm90's own main loop (SM90_MASKS): its way over the query blocks that hold a visible pair
 * of the work tile, and pairs that intervals hide. What it goes by: attn_bwd_sm90_visible.h.
 *
 * One lane of the first warp takes the next bit of the work tile's word and leaves in shared memory which block that
 * is: in step j for step j + 3, while products run. In step j + 1 it asks for that block's rows, and all threads read
 * which block it is after the barrier of step j + 2. Where the work tile stands in its words the lane reads ahead of
 * the products: beside them a load from shared memory takes 490 cycles, and three of them one after the other kept all
 * warps waiting for this one. The word after the work tile's is asked for when this one is begun, so that it is there
 * when it is wanted. */
#ifndef STW_CUDA_ATTN_BWD_SM90_MASKS_H
#define STW_CUDA_ATTN_BWD_SM90_MASKS_H

#include "attn_bwd_sm90_masking.h"
#include "attn_bwd_sm90_visible.h"

/* The query block of a step, in one word. */
struct sm90_visible_step {
    enum { TESTS = 1, TESTS_BETWEEN = 2, HEAD = 2, BLOCK = 12, HEADS = 1 << (BLOCK - HEAD) };
    uint32_t word;
    DEV_METHOD int head() const { return (int)(word >> HEAD) % HEADS; } /* of the group */
    DEV_METHOD int block() const { return (int)(word >> BLOCK); }
};
static_assert(STW_SM90_VISIBLE_LENGTH * 32u <= 1u << (32 - sm90_visible_step::BLOCK), "blocks are numbered");
static_assert(STW_SM90_VISIBLE_GROUP <= sm90_visible_step::HEADS, "heads are numbered");

/* One lane: the work tile's next word, which `word` gives by its number. */
template <class Word> DEV_FN void sm90_visible_refill(const sm90_visible_tile &u, Word word) {
    const dev_vector w = word((uint32_t)u.next());
    u.head() += u.place() >> sm90_visible_word::PLACE_BITS;
    u.touched() = (int)w.word[1];
    u.next() = (int)w.word[2];
    u.place() = (int)w.word[3];
    u.visible() = (int)w.word[0];
}
/* One lane: the next query block of a work tile, in one word. */
template <class Word> DEV_FN sm90_visible_step sm90_visible_take(const sm90_visible_tile &u, Word word) {
    if (!u.visible()) sm90_visible_refill(u, word);
    const uint32_t visible = (uint32_t)u.visible(), bit = (uint32_t)__ffs((int)visible) - 1;
    u.visible() = (int)(visible & (visible - 1));
    uint32_t tests = (uint32_t)u.touched() >> bit & 1;
    if (tests && u.index() & 1) tests |= sm90_visible_step::TESTS_BETWEEN;
    const uint32_t block = ((uint32_t)u.place() & ((1u << sm90_visible_word::PLACE_BITS) - 1)) * 32 + bit;
    return {tests | (uint32_t)u.head() << sm90_visible_step::HEAD | block << sm90_visible_step::BLOCK};
}

/* Where a work tile stands in its words: sm90_visible_take in two parts, so that all is read before products and only
 * counted after them. (At wide heads, whose loads have a warp of their own, it would spill two registers.) */
struct sm90_visible_at {
    uint32_t visible, touched; /* of the word in the work tile, sm90_visible_word                              */
    uint32_t first;            /* the step of the word's first block, as if its pairs were tested by intervals */

    DEV_FN sm90_visible_at of(const sm90_visible_tile &u) {
        const uint32_t block = ((uint32_t)u.place() & ((1u << sm90_visible_word::PLACE_BITS) - 1)) * 32;
        const uint32_t between = u.index() & 1 ? (uint32_t)sm90_visible_step::TESTS_BETWEEN : 0u;
        return {(uint32_t)u.visible(), (uint32_t)u.touched(),
                block << sm90_visible_step::BLOCK | (uint32_t)u.head() << sm90_visible_step::HEAD | between};
    }
    /* One lane: the word's next block, which the work tile does not have any more then. */
    DEV_METHOD sm90_visible_step take(const sm90_visible_tile &u) const {
        const uint32_t bit = (uint32_t)__ffs((int)visible) - 1, tests = touched >> bit & 1;
        u.visible() = (int)(visible & (visible - 1));
        const uint32_t here = tests ? first | sm90_visible_step::TESTS : first & ~sm90_visible_step::TESTS_BETWEEN;
        return {here + (bit << sm90_visible_step::BLOCK)};
    }
};

/* In the place of sm90_tile_masking. */
struct sm90_visible_state {
    uint32_t of_stage[3]; /* sm90_visible_step; from phase 4 of a step on that of the next with its stage */
    int zeroes_keys;      /* some keys take part in nothing */
    template <int BN = 128> DEV_METHOD void find(const attn_work_tile &tile, const stw_attn_params &p) {
        stw_range keys = stw_visible_keys(&tile.seq);
        bool dense_end = !(p.features & STW_FEAT_PACKED_KV) && keys.end == p.max_seq_kv;
        zeroes_keys = keys.first > tile.j0 || (keys.end < tile.j0 + BN && !dense_end);
    }
};

/* Where all threads stand, as sm90_block_iterator. */
struct sm90_visible_iterator {
    int block, left, idle;
    uint32_t at, first; /* the block's number in the workspace; that of the group's first */
    uint32_t tests;     /* of sm90_visible_step */
    int head;           /* of the group */

    DEV_FN int steps_of(const attn_work_tile &tile, const stw_attn_launch &) { return tile.end; } /* its steps() */
    DEV_FN sm90_visible_iterator begin(attn_work_tile &tile, const stw_attn_launch &l) {
        sm90_visible_iterator it = {};
        const int steps = dev_uniform(sm90_visible_tile{tile}.steps());
        it.left = max(steps, 2);
        it.idle = max(2 - steps, 0);
        it.first = first_of(tile, l);
        return it;
    }
    DEV_FN uint32_t first_of(const attn_work_tile &tile, const stw_attn_launch &l) {
        return (uint32_t)dev_uniform(tile.kv_head) * l.p.group * (uint32_t)l.q_blocks +
               min((uint32_t)dev_uniform((int)tile.seq.q_block), (uint32_t)l.q_blocks - 1);
    }
    DEV_METHOD bool is_idle(const attn_work_tile &, const stw_attn_launch &) const { return left <= idle; }
    /* No shuffle: lanes may ask for it by themselves. */
    DEV_METHOD int query_head(const attn_work_tile &tile, const stw_attn_launch &l) const {
        return tile.kv_head * (int)l.p.group + head;
    }
    DEV_METHOD void next() { --left; }
    /* The next step's block, by its sm90_visible_step. */
    DEV_METHOD void enter(uint32_t word, const stw_attn_launch &l) {
        const sm90_visible_step step = {(uint32_t)dev_uniform((int)word)};
        block = step.block();
        head = step.head();
        at = first + (uint32_t)head * (uint32_t)l.q_blocks + (uint32_t)block;
        tests = step.word & (sm90_visible_step::TESTS | sm90_visible_step::TESTS_BETWEEN);
    }
    /* Deterministic mode: which key block adds to this query block next. */
    DEV_METHOD uint32_t follower(const attn_work_tile &tile, const stw_attn_launch &l) const {
        return sm90_visible_follower(l, tile, head, block);
    }
    /* Of a block whose pairs are tested: some rows take part in nothing. */
    template <class C> DEV_METHOD bool zeroes_rows(const attn_work_tile &tile, const stw_attn_params &p) const {
        const int64_t i0 = (int64_t)block * C::BM;
        const int some =
            !sm90_tile_masking::ends_with_tensor(tile, p) && (i0 < tile.seq.q_low || i0 + (int)C::BM > tile.seq.q_end);
        return dev_uniform(some) != 0;
    }
};

/* Tensor loads. AHEAD: words are asked for ahead; else dropout's mbarriers are in their place. */
template <class C, bool AHEAD = true> struct sm90_visible_loads : sm90_loads<C> {
    /* The word after the work tile's, on its way. */
    DEV_METHOD uint32_t ahead() const { return this->smem + C::AT_AHEAD; }
    DEV_METHOD void ask(uint32_t number) const {
        sm90_copy_bytes(ahead(), (const sm90_visible_word *)this->l.visible_words + number, 16);
    }
    DEV_METHOD uint32_t word_of(int stage) const { return this->smem + C::AT_MASKING + 4 * stage; }
    /* One lane: which query block a stage gets, the next one that holds a visible pair. */
    DEV_METHOD sm90_visible_step find(attn_work_tile &tile, sm90_visible_at at, int stage) const {
        const stw_attn_launch &l = this->l;
        const sm90_visible_tile u = {tile};
        if (!at.visible) {
            sm90_visible_refill(u, [&]([[maybe_unused]] uint32_t number) {
                if constexpr (!AHEAD) return dev_load_vector((const sm90_visible_word *)l.visible_words + number);
                dev_copy_wait();
                const uint4 word = sm90_load_shared_vector(ahead());
                ask(word.z);
                return dev_vector{{word.x, word.y, word.z, word.w}};
            });
            at = sm90_visible_at::of(u);
        }
        const sm90_visible_step step = at.take(u);
        sm90_store_shared_word(word_of(stage), step.word);
        return step;
    }
    /* One lane: rows of the query block that was found for a stage. */
    DEV_METHOD void rows_of(const attn_work_tile &tile, sm90_visible_step step, int stage, bool idle) const {
        const stw_attn_launch &l = this->l;
        sm90_block_iterator it = {};
        it.block = step.block();
        it.head = tile.kv_head * (int)l.p.group + step.head();
        it.at = (uint32_t)it.head * (uint32_t)l.q_blocks +
                min((uint32_t)tile.seq.q_block + (uint32_t)it.block, (uint32_t)l.q_blocks - 1);
        this->rows(tile, it, stage, idle);
    }
    DEV_METHOD void found_rows(const attn_work_tile &tile, int stage) const {
        rows_of(tile, {sm90_load_shared_word(word_of(stage))}, stage, false);
    }
    /* The first warp: which block a stage gets for the step after the next two, if there is one of `left`. */
    DEV_METHOD void look_ahead(attn_work_tile &tile, sm90_visible_at at, int stage, int left) const {
        if (left > 2 && sm90_elect()) find(tile, at, stage);
    }
    /* The whole warp: rows of a work tile's first (0) or second (1) step. */
    DEV_METHOD void first_rows(attn_work_tile &tile, int step, int stage) const {
        if (!sm90_elect()) return;
        const int steps = sm90_visible_tile{tile}.steps();
        if (AHEAD && step == 0) {
            dev_copy_wait(); /* of the work tile before, which nobody has wanted */
            if (steps) ask((uint32_t)sm90_visible_tile{tile}.next());
        }
        const bool idle = steps <= step;
        sm90_visible_step found = {sm90_visible_step::TESTS};
        if (idle) sm90_store_shared_word(word_of(stage), found.word);
        else found = find(tile, sm90_visible_at::of({tile}), stage);
        rows_of(tile, found, stage, idle);
        if (step == 1 && steps > 2) find(tile, sm90_visible_at::of({tile}), stage == C::STAGES - 1 ? 0 : stage + 1);
    }
    DEV_METHOD void second_rows_and_v(attn_work_tile &next, int stage) const {
        first_rows(next, 1, stage);
        if (sm90_elect()) this->v(next);
    }
};

/* As the other function of this name. */
template <class C, bool AHEAD, int ORDERED>
DEV_FN void sm90_load_ahead(const sm90_visible_loads<C, AHEAD> &load, const sm90_scheduler<ORDERED, true> &scheduler,
                            attn_work_tile &tile, attn_work_tile &next, const sm90_visible_iterator &it, int turn,
                            int to) {
    if (it.left > 2) {
        if (sm90_elect()) {
            load.found_rows(tile, to);
            if (it.left == 4) *scheduler.drawn = scheduler.draw();
            else if (it.left < 4) scheduler.fetch_next(next);
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

/* Each warp for its own 16 keys: the first and the last query that see a key, on their way. */
DEV_FN void sm90_ask_seen(const stw_attn_launch &l, const attn_work_tile &tile, uint32_t to, int wave, int lane) {
    const sm90_visible_block &from = ((const sm90_visible_block *)l.visible_blocks)[tile.index >> 1];
    __syncwarp();
    if (lane < 8) sm90_copy_bytes(to + wave * 128 + lane * 16, from.seen + 16 * wave + 2 * lane, 16);
}

/* P = 0 where intervals hide a pair. `row`: this thread's first key of the work tile, i0: its first query. */
template <int VALUES>
DEV_FN void sm90_mask_between(float (&s)[VALUES], const stw_attn_launch &l, const attn_work_tile &tile, int row, int i0,
                              float hidden) {
    const stw_hidden_rows *from = ((const sm90_visible_block *)l.visible_blocks)[tile.index >> 1].hidden + row;
    DEV_UNROLL_FOR (int a = 0; a < 2; ++a) {
        const stw_hidden_rows h = from[8 * a];
        DEV_UNROLL_FOR (int x = 0; x < 2; ++x) {
            const int first = h.first[x] - i0;
            const uint32_t rows = (uint32_t)(h.end[x] - h.first[x]);
            DEV_UNROLL_FOR (int i = 0; i < VALUES / 4; ++i)
                DEV_UNROLL_FOR (int b = 0; b < 2; ++b)
                    if ((uint32_t)(8 * i + b - first) < rows) s[4 * i + 2 * a + b] = hidden;
        }
    }
}

#endif
