/* SPDX-License-Identifier: MIT
 *
 * Interval and block masks in sm90's own main loop. A kernel before it notes of each key block (of a kv head, where
 * heads have masks of their own) which query blocks hold a visible pair, and in which of them pairs are to be tested: a
 * bit each, 32 blocks a word. Each word with a bit names the next that has one, over the heads of the group; where
 * these share one row of words, the last names the first, of the next head. So the main loop comes to its next query
 * block in the same few instructions wherever that is. Of each key it notes the first and the last row that see it and
 * the intervals, which may hide rows between the two. */
#ifndef STW_CUDA_ATTN_BWD_SM90_VISIBLE_H
#define STW_CUDA_ATTN_BWD_SM90_VISIBLE_H

#include "common/kernels/attn_bwd_list.h"
#include "mma_sm90.h"

/* 32 query blocks of a head. */
struct alignas(16) sm90_visible_word {
    uint32_t visible, touched; /* blocks that hold a visible pair; those whose pairs are tested            */
    uint32_t next;             /* number of the word after it                                              */
    uint32_t place;            /* its first block / 32; from PLACE_BITS on: heads from here to the next    */
    enum { PLACE_BITS = 20 };
};
static_assert(sizeof(sm90_visible_word) == STW_SM90_VISIBLE_WORD_BYTES, "host and device agree on words");
static_assert(STW_SM90_VISIBLE_LENGTH <= 1u << sm90_visible_word::PLACE_BITS, "words of a row are numbered");

/* A work tile's key block of these kernels: fields of attn_key_block that they do not need hold others. */
struct sm90_visible_tile {
    attn_key_block &k;
    DEV_METHOD int &head() const { return k.first; }          /* of the group: where the first word is          */
    DEV_METHOD int &steps() const { return k.end; }           /* query blocks that hold a visible pair, all heads' */
    DEV_METHOD int &visible() const { return k.inner_first; } /* the first word, an sm90_visible_word             */
    DEV_METHOD int &touched() const { return k.inner_end; }
    DEV_METHOD int &next() const { return k.whole_first; }
    DEV_METHOD int &place() const { return k.whole_end; }
    /* Twice its number, plus 1 where intervals hide rows between the first and the last that see a key. */
    DEV_METHOD uint32_t &index() const { return k.index; }
};

/* The first and the last row that see a key. */
struct sm90_seen {
    int first, last;
};
struct alignas(16) sm90_visible_block {
    enum { KEYS = 128 };
    attn_key_block k;
    sm90_seen seen[KEYS];
    stw_hidden_rows hidden[KEYS]; /* rows that do not see the key, between those that do, too */
};
static_assert(sizeof(sm90_visible_block) == STW_SM90_VISIBLE_BLOCK_BYTES, "host and device agree on key blocks");

/* The number of a key block of kv head `head`. */
DEV_FN uint32_t sm90_visible_index(const stw_attn_launch &l, uint32_t key_block, uint32_t head) {
    return l.visible_heads > 1 ? key_block * l.visible_heads + head : key_block;
}

/* Number `at` of visible_next, past the first cache: the kernel that wrote it may have run beside this one. */
DEV_FN uint32_t sm90_visible_next(const stw_attn_launch &l, uint64_t at) {
    const uint32_t two = sm90_load_relaxed((const uint32_t *)(const void *)l.visible_next + at / 2);
    return two >> at % 2 * 16 & 0xFFFF;
}
/* Deterministic mode: which key block adds after `tile` to query block `block` of head `head` of the group. */
DEV_FN uint32_t sm90_visible_follower(const stw_attn_launch &l, const attn_key_block &tile, int head, int block) {
    const uint32_t row = (tile.index >> 1) * l.visible_rows + (l.visible_rows > 1 ? (uint32_t)head : 0u);
    return sm90_visible_next(l, (uint64_t)row * l.visible_length * 32 + (uint32_t)block);
}

/* The last key of a block of `keys` that is in use. */
DEV_FN int64_t sm90_last_key(const attn_key_block &k, int keys) { return stw_smaller(k.j0 + keys, k.seq.kv.used) - 1; }

/* Dense keys, no order of additions: which work tile a number is. The last heads go by the order in visible_next: the
 * first `ranks` key blocks of each come ahead of everything. Then all go through the others, l.heads_in_l2 heads
 * together; heads that are not among the last have them in their own order. */
struct sm90_visible_front {
    uint32_t ranks, last, all; /* heads: the last ones, those of the batch */

    DEV_FN sm90_visible_front of(const stw_attn_launch &l) {
        const uint32_t *const from = (const uint32_t *)(const void *)l.visible_next;
        const uint32_t together = (uint32_t)l.heads_in_l2, all = (uint32_t)l.p.batch * l.p.heads_kv,
                       groups = (all + together - 1) / together, late = max(sm90_load_relaxed(from + 1), 1u);
        return {sm90_load_relaxed(from), late < groups ? all - (groups - late) * together : all, all};
    }
    DEV_METHOD void place_of(const stw_attn_launch &l, uint32_t number, uint32_t *key_block, uint32_t *head) const {
        const uint32_t blocks = (uint32_t)l.k_blocks, together = (uint32_t)l.heads_in_l2, heads_kv = l.p.heads_kv,
                       earlier = all - last, ahead = ranks * last;
        const bool is_ahead = number < ahead, is_late = is_ahead || number - ahead >= earlier * blocks;
        const uint32_t skipped = is_late && !is_ahead ? ranks : 0u, begin = is_late ? earlier : 0u;
        const uint32_t each = is_ahead ? ranks : blocks - skipped, beside = is_ahead ? last : together;
        number -= (is_ahead ? 0u : ahead) + (is_ahead ? 0u : begin * blocks);
        const uint32_t first = number / (beside * each) * beside,
                       here = min((is_late ? last : earlier) - first, beside);
        number -= first * each;
        const uint32_t turn = number / here, any = begin + first + number - turn * here, b = any / heads_kv;
        *head = any - b * heads_kv;
        uint32_t block = skipped + turn;
        if (is_late)
            block = sm90_visible_next(l, STW_SM90_VISIBLE_FRONT + sm90_visible_index(l, b * blocks + block, *head));
        *key_block = b * blocks + block;
    }
};

/* ---- the kernel: a warp a key block and head ---- */

DEV_FN int sm90_wave_min(int x) {
    DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) x = min(x, (int)dev_shuffle_xor((uint32_t)x, mask));
    return x;
}
DEV_FN int sm90_wave_max(int x) { return -sm90_wave_min(-x); }

/* Rows that see local key j: the band's, shortened by intervals that begin or end with them. True: `hidden` has others
 * between. */
DEV_FN bool sm90_see(const attn_key_block &k, int64_t j, const stw_hidden_rows &hidden, sm90_seen *out) {
    const int64_t far = INT64_C(1) << 30;
    int first = (int)stw_clamp_i64(stw_larger(j - k.seq.band.high, k.seq.q_low), -far, far);
    int last = (int)stw_clamp_i64(stw_smaller(j - k.seq.band.low, k.seq.q_end - 1), -far, far);
    if (j >= k.seq.kv.used) first = (int)far;
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) { /* twice: one may begin where the other ends */
        const int from = hidden.first[i % 2], to = hidden.end[i % 2];
        if (from < to && from <= first) first = max(first, to);
        if (from < to && to > last) last = min(last, from - 1);
    }
    bool between = false;
    DEV_UNROLL_FOR (int x = 0; x < 2; ++x)
        between |= hidden.first[x] < hidden.end[x] && hidden.first[x] <= last && hidden.end[x] > first;
    *out = {first, last};
    return between && first <= last;
}

/* Key block `number` of sequence b, entry `at` of the list, for kv head `head` or all of them. Says whether bounds are
 * wrong. */
DEV_FN bool sm90_list_visible_block(const stw_attn_launch &l, int64_t at, int64_t b, int64_t number, int head,
                                    int lane) {
    typedef sm90_visible_word word;
    const stw_attn_params &p = l.p;
    const uint32_t index = sm90_visible_index(l, (uint32_t)at, (uint32_t)head);
    const int bm = (int)l.bm;
    attn_key_block k = attn_key_block_of(l, at, b, number);
    sm90_visible_block &out = ((sm90_visible_block *)l.visible_blocks)[index];
    stw_hidden_block bounds = stw_hidden_block_of_none();
    bool between = false, wrong = false;
    DEV_ROLLED_FOR (int key = lane; key < (int)l.bn; key += DEV_WAVE) {
        const int64_t j = k.j0 + key;
        stw_hidden_rows hidden = {{0, 0}, {0, 0}};
        if (j < k.seq.kv.used) {
            if (p.features & STW_FEAT_INTERVALS) {
                const int32_t *at_key = stw_interval_at(&p, &k.seq.kv, b, head, j);
                hidden = stw_hidden_rows_of(&p, &k.seq.q, at_key);
                wrong |= stw_bounds_are_wrong(&p, &k.seq.q, at_key) != 0;
            }
            stw_hidden_block_add(&bounds, &hidden);
        }
        between |= sm90_see(k, j, hidden, out.seen + key);
        out.hidden[key] = hidden;
    }
    between = __any_sync(0xFFFFFFFFu, between);
    wrong = __any_sync(0xFFFFFFFFu, wrong);
    DEV_UNROLL_FOR (int x = 0; x < 2; ++x) {
        bounds.all_first[x] = sm90_wave_max(bounds.all_first[x]);
        bounds.all_end[x] = sm90_wave_min(bounds.all_end[x]);
        bounds.any_first[x] = sm90_wave_min(bounds.any_first[x]);
        bounds.any_end[x] = sm90_wave_max(bounds.any_end[x]);
    }
    const bool ends = !(p.features & STW_FEAT_PACKED_Q) && k.seq.q_low == 0 && k.seq.q_end == p.max_seq_q;
    const int inner_first = ends ? k.inner_first : max(k.inner_first, k.whole_first),
              inner_end = ends ? k.inner_end : min(k.inner_end, k.whole_end);
    const int rows = (int)l.visible_rows, used = (int)k.seq.q.used;
    const bool ordered = (p.features & STW_FEAT_DETERMINISTIC) != 0; /* sm90_list_turns reads all words */
    const int first_word = ordered ? 0 : k.first / 32, last_word = ordered           ? (int)l.visible_length - 1
                                                                   : k.end > k.first ? (k.end - 1) / 32
                                                                                     : -1;
    word first = {0, 0, 0, 0};
    int head_of_first = -1, steps = 0; /* of the words so far, from the last to the first */
    uint32_t first_at = 0, last_at = 0, last_place = 0;
    DEV_ROLLED_FOR (int g = rows - 1; g >= 0; --g)
        DEV_ROLLED_FOR (int w = last_word; w >= first_word; --w) {
            const int block = 32 * w + lane, i0 = block * bm, i1 = min(i0 + bm, used);
            bool sees = block >= k.first && block < k.end && !stw_hidden_block_hides_all(&bounds, i0, i1);
            bool tests = block < inner_first || block >= inner_end || !stw_hidden_block_hides_none(&bounds, i0, i1);
            if (sees && p.features & STW_FEAT_BLOCK_MASK) { /* of which keys may meet two blocks */
                const int h = head * (int)p.group + g;
                const bool first = stw_block_mask_at(&p, b, h, i0, k.j0) != 0,
                           last = stw_block_mask_at(&p, b, h, i0, sm90_last_key(k, (int)l.bn)) != 0;
                sees = first || last;
                tests |= first != last;
            }
            const uint32_t visible = __ballot_sync(0xFFFFFFFFu, sees),
                           touched = __ballot_sync(0xFFFFFFFFu, sees && tests);
            const uint32_t here = (index * (uint32_t)rows + (uint32_t)g) * l.visible_length + (uint32_t)w;
            if (!visible) {
                if (ordered && lane == 0) ((word *)l.visible_words)[here].visible = 0;
                continue;
            }
            const bool is_last = head_of_first < 0;
            if (is_last) last_at = first_at = here, last_place = (uint32_t)w;
            first = {visible, touched, first_at, (uint32_t)w};
            if (!is_last) first.place |= (uint32_t)(head_of_first - g) << word::PLACE_BITS;
            if (lane == 0) ((word *)l.visible_words)[here] = first;
            steps += __popc(visible);
            first_at = here;
            head_of_first = g;
        }
    if (lane) return wrong;
    if (rows == 1 && steps) { /* the next head has the same row */
        const uint32_t place = last_place | 1u << word::PLACE_BITS;
        word &last = ((word *)l.visible_words)[last_at];
        last.next = first_at;
        last.place = place;
        if (last_at == first_at) first.place = place;
        steps *= (int)p.group;
    }
    const sm90_visible_tile tile = {k};
    tile.head() = max(head_of_first, 0);
    tile.steps() = steps;
    tile.visible() = (int)first.visible;
    tile.touched() = (int)first.touched;
    tile.next() = (int)first.next;
    tile.place() = (int)first.place;
    tile.index() = 2 * index + between;
    out.k = k;
    return wrong;
}

/* The kernel before this one lists packed keys, for which this one waits. What it finds of dense keys it finds while
 * that one runs. */
DEV_FN void sm90_list_visible(const stw_attn_launch &l) {
    const int64_t heads = l.visible_heads, number = dev_cta() * (STW_ROW_THREADS / DEV_WAVE) + dev_wave(),
                  at = stw_quotient(number, heads);
    const int lane = (int)dev_lane(), head = (int)(number - at * heads);
    dev_let_next_begin();
    if (number == 0 && lane < 2 && l.visible_next && !(l.p.features & STW_FEAT_DETERMINISTIC))
        ((uint32_t *)(void *)l.visible_next)[lane] = 0;
    bool wrong = false;
    if (l.p.features & STW_FEAT_PACKED_KV) {
        dev_await_previous();
        const attn_key_block *const list = (const attn_key_block *)l.key_blocks;
        if (at < stw_quotient((int64_t)l.listed[0], l.p.heads_kv))
            wrong = sm90_list_visible_block(l, at, list[at].b, list[at].block, head, lane);
    } else if (at < l.p.batch * l.k_blocks) {
        const int64_t b = stw_quotient(at, l.k_blocks);
        wrong = sm90_list_visible_block(l, at, b, at - b * l.k_blocks, head, lane);
    }
    dev_await_previous(); /* it writes status_out */
    if (wrong && lane == 0 && l.p.status_out) dev_global_or(l.p.status_out, STW_DATA_INTERVALS);
}

/* Dense keys, additions in any order: a kernel after it sorts the key blocks of a head, those with most steps first,
 * by powers of two alone, since key blocks side by side meet the same rows in L2. A warp finds the place of one. The
 * last group of heads (l.heads_in_l2) goes by that, so that the last work tiles, for which multiprocessors wait, are
 * short. A work tile with half as many steps again as a CTA does for a group would be waited for if it began with one
 * of the last groups: these groups' longest come ahead of everything (sm90_visible_front). */
DEV_FN void sm90_list_longest_first(const stw_attn_launch &l) {
    const int64_t heads = l.visible_heads, number = dev_cta() * (STW_ROW_THREADS / DEV_WAVE) + dev_wave(),
                  at = stw_quotient(number, heads), b = stw_quotient(at, l.k_blocks);
    const int head = (int)(number - at * heads), mine = (int)(at - b * l.k_blocks), blocks = (int)l.k_blocks;
    dev_let_next_begin();
    dev_await_previous();
    if (at >= l.p.batch * l.k_blocks) return;
    auto index = [&](int block) { return sm90_visible_index(l, (uint32_t)(b * l.k_blocks) + block, (uint32_t)head); };
    auto steps = [&](int block) { return ((const sm90_visible_block *)l.visible_blocks)[index(block)].k.end; };
    const int of_mine = steps(mine), my_power = __clz(of_mine);
    int before = 0;
    double sum = 0.0;
    DEV_ROLLED_FOR (int first = 0; first < blocks; first += DEV_WAVE) {
        const int block = first + (int)dev_lane(), of_block = block < blocks ? steps(block) : 0;
        const int power = block < blocks ? __clz(of_block) : 33;
        before += __popc(__ballot_sync(0xFFFFFFFFu, power < my_power || (power == my_power && block < mine)));
        sum += of_block;
    }
    sum = dev_wave_sum(sum);
    if (dev_lane()) return;
    l.visible_next[STW_SM90_VISIBLE_FRONT + index(before)] = (uint16_t)mine;
    const double of_group = sum * (double)l.heads_in_l2 / sm90_multiprocessors();
    if (of_mine <= 1.5 * of_group) return;
    uint32_t *const front = (uint32_t *)(void *)l.visible_next;
    sm90_global_max(front, (uint32_t)before + 1);
    sm90_global_max(front + 1, (uint32_t)(of_mine / of_group)); /* whose groups begin too late for it */
}

/* Deterministic mode, a kernel after it: a warp goes over the key blocks of a sequence from the last to the first, a
 * lane a query block: which adds first, and after each which adds next. */
DEV_FN void sm90_list_turns(const stw_attn_launch &l) {
    const stw_attn_params &p = l.p;
    const int64_t heads = l.visible_heads, rows = l.visible_rows, length = l.visible_length;
    int64_t at = dev_cta() * (STW_ROW_THREADS / DEV_WAVE) + dev_wave(), rest = stw_quotient(at, length);
    const int w = (int)(at - rest * length), lane = (int)dev_lane();
    at = stw_quotient(rest, rows);
    const int g = (int)(rest - at * rows);
    rest = at;
    at = stw_quotient(rest, heads);
    const int head = (int)(rest - at * heads);
    dev_let_next_begin();
    dev_await_previous();
    const bool packed = (p.features & STW_FEAT_PACKED_KV) != 0;
    const int64_t entries = packed ? stw_quotient((int64_t)l.listed[0], p.heads_kv) : p.batch * l.k_blocks;
    if (at >= entries) return;
    const attn_key_block &k =
        ((const sm90_visible_block *)l.visible_blocks)[sm90_visible_index(l, (uint32_t)at, (uint32_t)head)].k;
    if (k.block != 0) return;
    const int64_t count = packed ? stw_smaller(stw_blocks_of(k.seq.kv.rows, l.bn), entries - at) : l.k_blocks;
    uint32_t first = STW_SM90_VISIBLE_NONE, before = 0;
    DEV_ROLLED_FOR (int64_t block = count - 1; block >= 0; --block) {
        const uint32_t index = sm90_visible_index(l, (uint32_t)(at + block), (uint32_t)head);
        const uint32_t word = (index * (uint32_t)rows + (uint32_t)g) * (uint32_t)length + (uint32_t)w;
        if (!(((const sm90_visible_word *)l.visible_words)[word].visible >> lane & 1)) continue;
        if (first == STW_SM90_VISIBLE_NONE) first = (uint32_t)block;
        else l.visible_next[(int64_t)before * 32 + lane] = (uint16_t)block;
        before = word;
    }
    if (first == STW_SM90_VISIBLE_NONE) return;
    l.visible_next[(int64_t)before * 32 + lane] = STW_SM90_VISIBLE_NONE;
    const int group = (int)p.group, h0 = heads > 1 ? head * group : 0, h1 = heads > 1 ? h0 + group : (int)p.heads_q,
              of_block = 32 * w + lane;
    DEV_ROLLED_FOR (int h = h0; h < h1; ++h)
        if (rows == 1 || h % group == g) l.dq_semaphore[h * l.q_blocks + k.seq.q_block + of_block] = first;
}

DEV_FN void sm90_list_order(const stw_attn_launch &l) {
    if (l.p.features & STW_FEAT_DETERMINISTIC) sm90_list_turns(l);
    else sm90_list_longest_first(l);
}

#endif
