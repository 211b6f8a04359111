/* SPDX-License-Identifier: MIT
 *
 * Scheduler of the main loop. A work tile is bn keys of one sequence and kv head. The first kernel lists what each key
 * block meets, the same for all heads: one thread of the main loop would take a microsecond for it while the others
 * wait. Of dense keys a work tile follows from its number by arithmetic. Of packed keys the list holds the key blocks
 * that there are, and their work tiles in order:
 *
 *     key_blocks   longest sequence | next | ... | shortest        each sequence's from the first to the last
 *     listed       its work tiles: some heads at a time go through its key blocks together
 *
 * The longest come first, so that the last work tiles, for which multiprocessors wait, are short. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_LIST_H
#define STW_COMMON_KERNELS_ATTN_BWD_LIST_H

#include "common/device/device.h"

/* What a key block of a sequence meets, whatever the head. */
struct alignas(16) attn_key_block {
    stw_attn_seq seq;
    int64_t b, j0;
    int block;
    int first, end;             /* query blocks that meet the keys           */
    int inner_first, inner_end; /* those in which every query sees every key */
    int whole_first, whole_end; /* those all of whose rows take part         */
    uint32_t index; /* in the list; with masks in memory, where no work tile is a part, the tile's number there */
};
static_assert(sizeof(attn_key_block) == STW_KEY_BLOCK_BYTES, "host and device agree on key blocks");

/* Query blocks that start in [low, high]. */
DEV_FN void attn_blocks_between(int64_t low, int64_t high, int bm, int *first_out, int *end_out) {
    const int64_t far = INT64_C(1) << 40;
    low = stw_clamp_i64(low, 0, far);
    high = stw_clamp_i64(high, -1, far);
    *first_out = (int)stw_blocks_of(low, bm);
    *end_out = high < 0 ? 0 : (int)stw_quotient(high, bm) + 1;
}

/* Entries of a sequence's key blocks: one a part by query blocks. */
DEV_FN int64_t attn_entries_of(const stw_attn_launch &l, int64_t rows) {
    return stw_blocks_of(rows, l.bn) * (LEAF_PARTS ? (int)l.row_parts : 1);
}

/* Rows of a query block and keys of a key block, 0 where the kernel does not know them. The CTA that lists is the last
 * of its kernel to end in small calls, and a division by a known power of two is a shift. */
template <int BM_ = 0, int BN_ = 0> struct attn_list_sizes {
    DEV_FN int bm(const stw_attn_launch &l) { return BM_ ? BM_ : (int)l.bm; }
    DEV_FN int bn(const stw_attn_launch &l) { return BN_ ? BN_ : (int)l.bn; }
};

/* Entry `number` of sequence b, a key block or its part, as entry `at`. */
template <class Sizes = attn_list_sizes<>>
DEV_FN attn_key_block attn_key_block_of(const stw_attn_launch &l, int64_t at, int64_t b, int64_t number) {
    const int bm = Sizes::bm(l), bn = Sizes::bn(l);
    const int64_t block = LEAF_PARTS ? stw_quotient(number, l.row_parts) : number, j0 = block * bn;
    attn_key_block k = {};
    k.b = b;
    k.j0 = j0;
    k.block = (int)block;
    k.index = (uint32_t)at;
    k.seq = stw_attn_seq_of(&l.p, bm, b);
    const stw_attn_seq &s = k.seq;
    if ((l.interval_heads || l.block_heads) && !l.part_sums)
        k.index = (uint32_t)(stw_hidden_tile(&l.p, &s.kv, bn, b) + block);
    stw_range range = stw_query_blocks(&s, bm, bn, block);
    k.first = (int)range.first;
    k.end = (int)range.end;
    if (LEAF_PARTS && l.row_parts > 1) {
        const int64_t part = number - block * (int)l.row_parts, blocks = range.end - range.first;
        k.first = (int)(range.first + stw_quotient(blocks * part, l.row_parts));
        k.end = (int)(range.first + stw_quotient(blocks * (part + 1), l.row_parts));
    }
    attn_blocks_between(s.q_low, s.q_end - bm, bm, &k.whole_first, &k.whole_end);
    attn_blocks_between(j0 + (bn - 1) - s.band.high, stw_smaller(j0 - (bm - 1) - s.band.low, s.q.used - bm), bm,
                        &k.inner_first, &k.inner_end);
    if (j0 + bn > s.kv.used) k.inner_end = 0;
    return k;
}
template <class Sizes>
DEV_FN void attn_list_key_block(const stw_attn_launch &l, int64_t at, int64_t b, int64_t number) {
    ((attn_key_block *)l.key_blocks)[at] = attn_key_block_of<Sizes>(l, at, b, number);
}

/* Classes of sequences by length, the longest first: two an octave of query rows, which are steps of a work tile. */
enum { ATTN_LENGTH_CLASSES = 64 };
static_assert(2 * ATTN_LENGTH_CLASSES * sizeof(uint64_t) <= STW_ROW_SMEM, "room for what is known of each class");
DEV_FN int attn_length_class(int64_t rows) {
    int half_octaves = (int)(dev_bits((float)rows) >> 22) - 2 * 127;
    return ATTN_LENGTH_CLASSES - 1 - (rows < 1 ? 0 : half_octaves);
}

/* A sequence's `count` key blocks are entries `first` and on: the work tiles of entry `first + block`, to
 * their places. */
DEV_FN void attn_list_work_tiles(const stw_attn_launch &l, int64_t first, int64_t count, int64_t block, int64_t rows) {
    const int64_t heads = l.p.heads_kv, together = stw_smaller(heads, stw_heads_in_l2(heads, l.l2_rows, rows));
    const int64_t turn = l.vectors & STW_KEYS_DESCEND ? count - 1 - block : block;
    uint64_t *work_tiles = l.listed + 1 + first * heads;
    DEV_ROLLED_FOR (int64_t group = 0; group < heads; group += together) {
        const int64_t beside = stw_smaller(together, heads - group);
        uint64_t *to = work_tiles + group * count + turn * beside;
        DEV_ROLLED_FOR (int64_t h = 0; h < beside; ++h) to[h] = (uint64_t)(first + block) << 32 | (uint64_t)(group + h);
    }
}

/* One CTA. Wrong lengths may make more key blocks than there is room for; the rest is left out. */
template <class Sizes> DEV_FN void attn_list_packed(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    uint64_t *const count_of = (uint64_t *)(void *)smem;      /* key blocks of each class                        */
    uint64_t *const next_of = count_of + ATTN_LENGTH_CLASSES; /* where a class's next sequence begins in the list */
    attn_key_block *const list = (attn_key_block *)l.key_blocks;
    const int64_t most = l.listed_most, t = dev_thread(), threads = dev_threads();
    if (t < ATTN_LENGTH_CLASSES) count_of[t] = 0;
    dev_barrier();
    DEV_ROLLED_FOR (int64_t b = t; b < p.batch; b += threads)
        dev_shared_fetch_add(count_of + attn_length_class(stw_seq_q(&p, b).rows),
                             (uint64_t)attn_entries_of(l, stw_seq_kv(&p, b).rows));
    dev_barrier();
    uint64_t before = 0, all = 0;
    DEV_ROLLED_FOR (int c = 0; c < ATTN_LENGTH_CLASSES; ++c) {
        if (c == t) before = all;
        all += count_of[c];
    }
    const int64_t there = stw_smaller((int64_t)all, most);
    if (t < ATTN_LENGTH_CLASSES) next_of[t] = before;
    if (t == 0) l.listed[0] = (uint64_t)(there * p.heads_kv);
    dev_barrier();
    DEV_ROLLED_FOR (int64_t b = t; b < p.batch; b += threads) {
        const int64_t count = attn_entries_of(l, stw_seq_kv(&p, b).rows);
        uint64_t *const next = next_of + attn_length_class(stw_seq_q(&p, b).rows);
        const int64_t first = (int64_t)dev_shared_fetch_add(next, (uint64_t)count);
        DEV_ROLLED_FOR (int64_t block = 0; block < count && first + block < most; ++block) {
            list[first + block].b = b;
            list[first + block].block = (int)block;
        }
    }
    dev_barrier();
    DEV_ROLLED_FOR (int64_t at = t; at < there; at += threads) {
        const int64_t b = list[at].b, block = list[at].block, first = at - block;
        attn_list_key_block<Sizes>(l, at, b, block);
        const int64_t count = stw_smaller(attn_entries_of(l, stw_seq_kv(&p, b).rows), most - first);
        attn_list_work_tiles(l, first, count, block, stw_seq_q(&p, b).rows);
    }
}

/* The first l.lists CTAs of the first kernel. */
template <class Sizes = attn_list_sizes<>> DEV_FN void attn_list_key_blocks(const stw_attn_launch &l, char *smem) {
    if (l.p.features & STW_FEAT_PACKED_KV) {
        attn_list_packed<Sizes>(l, smem);
        return;
    }
    int64_t at = dev_cta() * dev_threads() + dev_thread();
    if (at >= l.p.batch * l.k_blocks) return;
    int64_t b = stw_quotient(at, l.k_blocks);
    attn_list_key_block<Sizes>(l, at, b, at - b * l.k_blocks);
}

/* Which work tile: its key block in the list, its head. */
struct attn_place {
    uint32_t key_block;
    int kv_head;
    bool live;
};

/* Dense work tiles are numbered head by head; l.heads_in_l2 heads at a time go through their key blocks together, so
 * that under a causal mask the last work tiles are short ones. DESCENDS: the call has STW_KEYS_DESCEND. */
template <bool DESCENDS> DEV_FN attn_place attn_place_of(const stw_attn_launch &l, int64_t number) {
    int64_t heads = l.p.batch * l.p.heads_kv, group = stw_quotient(number, l.heads_in_l2 * l.k_blocks);
    int64_t first = group * l.heads_in_l2, beside = stw_smaller(l.heads_in_l2, heads - first);
    number -= first * l.k_blocks;
    int64_t block = stw_quotient(number, beside), head = first + number - block * beside;
    if (DESCENDS) block = l.k_blocks - 1 - block;
    int64_t b = stw_quotient(head, l.p.heads_kv);
    attn_place at = {(uint32_t)(b * l.k_blocks + block), (int)(head - b * l.p.heads_kv), true};
    return at;
}

/* One thread: the next work tile that nobody has taken. They are taken in the order of their numbers, which in
 * deterministic mode is that of the additions to dQ. */
template <bool DESCENDS = false> DEV_FN attn_place attn_work_tile_take(const stw_attn_launch &l) {
    const int64_t number = (int64_t)dev_fetch_add(l.tile_counter, 1);
    attn_place at = {0, 0, false};
    if (l.p.features & STW_FEAT_PACKED_KV) {
        if (number >= (int64_t)l.listed[0]) return at;
        const uint64_t work_tile = l.listed[1 + number];
        at = {(uint32_t)(work_tile >> 32), (int)(uint32_t)work_tile, true};
    } else {
        if (number >= l.work_tiles) return at;
        at = attn_place_of<DESCENDS>(l, number);
    }
    return at;
}

#endif
