/* SPDX-License-Identifier: MIT
 *
 * Work tiles of Hopper's main loop: the way through a work tile's query blocks, who asks TMA for what and draws the
 * next work tile, what is special about a work tile, and zeros over rows that take part in nothing. Included by
 * attn_bwd_sm90.h. */
#ifndef STW_CUDA_ATTN_BWD_SM90_SCHEDULER_H
#define STW_CUDA_ATTN_BWD_SM90_SCHEDULER_H

/* Barriers, from AT_BARRIERS on. */
enum { SM90_Q = 0, SM90_DOUT = 24, SM90_K = 48, SM90_V = 56, SM90_WORK_TILE = 64 };

/* The way through a work tile's query blocks, head by head; the same for all threads. */
struct sm90_scheduler {
    int block, first, end, head,
        left;    /* left: steps, this one included; a work tile has two at least, the missing ones repeat a block */
    uint32_t at; /* the block's number in the workspace */
    int jump;    /* what is added to it where the next head begins; 0: the block is repeated */
    int idle;    /* for kernels that ask in every step: is_idle is left <= idle */

    DEV_FN int steps_of(const attn_work_tile &u, const stw_attn_launch &l) {
        return max(u.end - u.first, 0) * (int)l.p.group;
    }
    DEV_FN sm90_scheduler begin(const attn_work_tile &u, const stw_attn_launch &l) {
        sm90_scheduler w;
        const int steps = dev_uniform(steps_of(u, l)), first = dev_uniform(u.first);
        w.block = w.first = first;
        w.end = max(dev_uniform(u.end), first + 1);
        w.head = dev_uniform(u.kv_head) * (int)l.p.group;
        w.left = max(steps, 2);
        w.at = (uint32_t)w.head * (uint32_t)l.q_blocks +
               (uint32_t)stw_smaller((int64_t)(uint32_t)dev_uniform((int)u.seq.q_block) + first, l.q_blocks - 1);
        w.jump = steps < 2 ? 0 : (int)l.q_blocks + 1 - (w.end - first);
        w.idle = max(2 - steps, 0);
        return w;
    }
    /* Steps with nothing visible. */
    DEV_FN bool is_idle(const sm90_scheduler &w, const attn_work_tile &u, const stw_attn_launch &l) {
        return w.left <= 2 - steps_of(u, l);
    }
    DEV_FN void next(sm90_scheduler &w) {
        const bool over = w.block + 1 == w.end;
        --w.left;
        w.at += over ? w.jump : 1;
        w.block = over ? w.first : w.block + 1;
        w.head += over && w.jump > 0;
    }
};

/* Instead of the number of the next work tile: it has not been drawn yet; it has been asked for already. */
#define SM90_UNDRAWN 0xFFFFFFFFu
#define SM90_FETCHED 0xFFFFFFFEu

/* What one lane of the first wave does for all: asks for tiles, takes work tiles. */
template <class C, bool ORDERED> struct sm90_loader {
    DEV_FN void panels(uint32_t to, const stw_mapped_tensor &t, int row, int head, int batch, int rows,
                       uint32_t barrier) {
        if (C::HD % 64 == 0 && t.panels == C::PANELS) {
            sm90_load_panels(to, &t.map, row, head, batch, barrier);
        } else {
            DEV_UNROLL_FOR (int panel = 0; panel < C::PANELS; ++panel)
                sm90_load_panel(to + panel * rows * 128, &t.map, panel * 64, row, head, batch, barrier);
        }
    }
    /* Rows and statistics of a block of the unit's sequence. In idle steps both are zeros: rows that others see must
     * not be multiplied, a sequence without queries has no statistics, and what happens to lie there may be no number.
     * */
    DEV_FN void rows(const attn_work_tile &u, const sm90_scheduler &place, const stw_attn_launch &l,
                     const stw_sm90_maps &maps, uint32_t smem, int stage, bool idle) {
        const bool packed = (l.p.features & STW_FEAT_PACKED_Q) != 0;
        const int batch = packed ? 0 : (int)u.b,
                  end = (int)(packed ? l.p.total_q : l.p.max_seq_q); /* behind it TMA finds zeros */
        const int row = idle ? end : (int)u.seq.q.first + place.block * C::BM;
        const uint32_t q = smem + C::AT_BARRIERS + SM90_Q + 8 * stage,
                       dout = smem + C::AT_BARRIERS + SM90_DOUT + 8 * stage;
        const uint32_t stats = smem + C::AT_STATS + stage * C::STATS * 4;
        if (idle) {
            DEV_ROLLED_FOR (int i = 0; i < C::STATS * 4; i += 16) sm90_clear_vector(stats + i, true);
            sm90_barrier_expect(q, C::ROWS_BYTES);
        } else {
            sm90_barrier_expect(q, C::ROWS_BYTES + C::STATS * 4);
            sm90_load_bytes(stats, l.stats + (int64_t)place.at * C::STATS, C::STATS * 4, q);
        }
        panels(smem + C::AT_Q + stage * C::ROWS_BYTES, maps.q, row, place.head, batch, C::BM, q);
        sm90_barrier_expect(dout, C::ROWS_BYTES);
        panels(smem + C::AT_DOUT + stage * C::ROWS_BYTES, maps.dout, row, place.head, batch, C::BM, dout);
    }
    /* The wave: the first (0) or second (1) step's rows of a work tile. */
    DEV_FN void first_rows(const attn_work_tile &u, int step, const stw_attn_launch &l, const stw_sm90_maps &maps,
                           uint32_t smem, int stage) {
        sm90_scheduler w = sm90_scheduler::begin(u, l);
        if (step) sm90_scheduler::next(w);
        if (sm90_elect()) rows(u, w, l, maps, smem, stage, sm90_scheduler::is_idle(w, u, l));
    }
    /* K or V of a work tile. */
    DEV_FN void keys(const attn_work_tile &u, const stw_attn_launch &l, const stw_mapped_tensor &t, uint32_t to,
                     uint32_t barrier) {
        int batch = l.p.features & STW_FEAT_PACKED_KV ? 0 : (int)u.b;
        sm90_barrier_expect(barrier, C::KEYS_BYTES);
        panels(to, t, (int)(u.seq.kv.first + u.j0), u.kv_head, batch, C::BN, barrier);
    }
    /* A work tile's number: those that no block began with are drawn; in deterministic mode all, since a work tile
     * waits for those before it. */
    DEV_FN uint32_t draw(const stw_attn_launch &l) {
        return (ORDERED ? 0u : (uint32_t)l.blocks) + (uint32_t)dev_fetch_add(l.tile_counter, 1);
    }
    DEV_FN uint32_t begin_with(const stw_attn_launch &l) { return ORDERED ? draw(l) : (uint32_t)dev_cta(); }
    /* attn_place_of in 32 bits, which is what work tiles and heads are here: long division would cost the main loop
     * registers. */
    DEV_FN void place_of(const stw_attn_launch &l, uint32_t number, uint32_t *key_block, uint32_t *head) {
        if (l.p.features & STW_FEAT_PACKED_KV) {
            const uint2 work_tile = *(const uint2 *)(const void *)(l.listed + 1 + number);
            *head = work_tile.x;
            *key_block = work_tile.y;
            return;
        }
        const uint32_t blocks = (uint32_t)l.k_blocks, beside = (uint32_t)l.heads_in_l2,
                       heads_kv = (uint32_t)l.p.heads_kv;
        const uint32_t first = number / (beside * blocks) * beside, left = (uint32_t)l.p.batch * heads_kv - first,
                       here = left < beside ? left : beside;
        number -= first * blocks;
        const uint32_t turn = number / here, any = first + number - turn * here, b = any / heads_kv;
        *key_block = b * blocks + (ORDERED ? blocks - 1 - turn : turn); /* STW_KEYS_DESCEND */
        *head = any - b * heads_kv;
    }
    /* Unit `number` into u, if there is one; its key block comes asynchronously. */
    DEV_FN void fetch(const stw_attn_launch &l, uint32_t number, attn_work_tile &u, uint32_t barrier) {
        const uint32_t work_tiles = l.p.features & STW_FEAT_PACKED_KV ? (uint32_t)l.listed[0] : (uint32_t)l.work_tiles;
        const bool live = number < work_tiles;
        uint32_t key_block = 0, head = 0;
        if (live) place_of(l, number, &key_block, &head);
        u.kv_head = (int)head;
        u.live = live;
        sm90_barrier_expect(barrier, live ? (uint32_t)sizeof(attn_key_block) : 0u);
        if (live)
            sm90_load_bytes(sm90_address(&u),
                            (const char *)l.key_blocks + (uint64_t)key_block * (uint32_t)sizeof(attn_key_block),
                            (uint32_t)sizeof(attn_key_block), barrier);
    }
    /* The same in steps: `drawn` says how far it is. */
    DEV_FN void fetch_drawn(const stw_attn_launch &l, uint32_t *drawn, attn_work_tile &u, uint32_t barrier) {
        uint32_t number = *drawn;
        if (number == SM90_FETCHED) return;
        fetch(l, number == SM90_UNDRAWN ? draw(l) : number, u, barrier);
        *drawn = SM90_FETCHED;
    }
};

/* What else there is to know of a work tile, for all threads: one of them finds it out in time. `first`, `end`: query
 * blocks with nothing special, of whose rows all take part, and see all keys. */
struct sm90_facts {
    int first, end, clears_keys, plain;

    /* Rows past a dense tensor's end have come as zeros. */
    DEV_FN bool ends_with_tensor(const attn_work_tile &u, const stw_attn_params &p) {
        return !(p.features & STW_FEAT_PACKED_Q) && u.seq.q_low == 0 && u.seq.q_end == p.max_seq_q;
    }
    DEV_FN void find(sm90_facts &f, const attn_work_tile &u, const stw_attn_params &p) {
        f.first = u.inner_first;
        f.end = u.inner_end;
        if (!ends_with_tensor(u, p)) {
            f.first = max(f.first, u.whole_first);
            f.end = min(f.end, u.whole_end);
        }
        int blocks = u.end - u.first;
        if (blocks * (int)p.group < 2) f.end = 0; /* there is an idle step */
        f.plain = f.first <= u.first && f.end >= u.end && blocks > 0;
        stw_range keys = stw_visible_keys(&u.seq);
        bool dense_end = !(p.features & STW_FEAT_PACKED_KV) && keys.end == p.max_seq_kv;
        f.clears_keys = keys.first > u.j0 || (keys.end < u.j0 + 128 && !dense_end);
    }
    /* Of the other blocks: some rows take part in nothing. */
    DEV_FN bool clears(const attn_work_tile &u, const stw_attn_params &p, const sm90_scheduler &w) {
        int some = !ends_with_tensor(u, p) && (w.block < u.whole_first || w.block >= u.whole_end);
        return dev_uniform(some) != 0;
    }
};

/* Each wave for its own 16 keys: the first and the last query that see a key. */
DEV_FN void sm90_list_seen(const attn_work_tile &u, int *seen, int wave, int lane) {
    __syncwarp();
    if (lane < 16) {
        int key = 16 * wave + lane;
        int64_t j = u.j0 + key, far = INT64_C(1) << 30;
        int64_t first = stw_larger(j - u.seq.band.high, u.seq.q_low),
                last = stw_smaller(j - u.seq.band.low, u.seq.q_end - 1);
        if (j >= u.seq.kv.used) first = far;
        seen[2 * key] = (int)stw_clamp_i64(first, -far, far);
        seen[2 * key + 1] = (int)stw_clamp_i64(last, -far, far);
    }
    __syncwarp();
}

/* Zeros in the tile's rows outside [low, end). */
template <int PANELS, int ROWS> DEV_FN void sm90_clear_rows(char *tile, int64_t low, int64_t end, int thread) {
    const int first = (int)stw_clamp_i64(low, 0, ROWS), last = (int)stw_clamp_i64(end, 0, ROWS);
    uint32_t to = sm90_address(tile) + thread * 16;
    DEV_ROLLED_FOR (int row = 0; row < PANELS * ROWS; row += 32, to += 4096) {
        int r = (row + thread / 8) % ROWS;
        sm90_clear_vector(to, r < first || r >= last);
    }
}

/* All threads, when K or V has arrived; it is there for products after the next barrier of the block. */
template <class C> DEV_FN void sm90_clear_keys(const attn_work_tile &u, char *tile, int thread) {
    stw_range seen = stw_visible_keys(&u.seq);
    sm90_clear_rows<C::PANELS, C::BN>(tile, seen.first - u.j0, seen.end - u.j0, thread);
    sm90_fence_shared();
}
/* The same of the rows of a stage. */
template <class C>
DEV_FN void sm90_clear_queries(const attn_work_tile &u, char *smem, int stage, int block, int thread) {
    int64_t i0 = (int64_t)block * C::BM;
    sm90_clear_rows<C::PANELS, C::BM>(smem + C::AT_Q + stage * C::ROWS_BYTES, u.seq.q_low - i0, u.seq.q_end - i0,
                                      thread);
    sm90_clear_rows<C::PANELS, C::BM>(smem + C::AT_DOUT + stage * C::ROWS_BYTES, u.seq.q_low - i0, u.seq.q_end - i0,
                                      thread);
    sm90_fence_shared();
}

/* Eight elements at `at` are not all subnormal: see attn_bwd_subnormal.h. */
template <class C> DEV_FN bool sm90_vector_counts(const char *at) {
    const dev_vector v = dev_load_vector(at);
    const typename C::T *x = (const typename C::T *)(const void *)&v;
    bool counts = false;
    DEV_UNROLL_FOR (int i = 0; i < 8; ++i) counts |= !(fabsf(dev_float(x[i])) < ATTN_SUBNORMAL_KEYS);
    return counts;
}
/* A wave: the first vectors of K or V, which answer for ordinary data. */
template <class C> DEV_FN bool sm90_first_count(const char *tile, int lane) {
    return dev_uniform(__any_sync(0xFFFFFFFFu, sm90_vector_counts<C>(tile + lane * 16))) != 0;
}
/* This wave's part of K or V holds an element that is not subnormal, and this lane has one. */
template <class C> DEV_FN bool sm90_keys_count(const char *tile, int thread) {
    bool counts = false;
    for (int at = thread * 16; !__any_sync(0xFFFFFFFFu, counts) && at < C::KEYS_BYTES; at += C::THREADS * 16)
        counts |= sm90_vector_counts<C>(tile + at);
    return counts;
}

#endif
