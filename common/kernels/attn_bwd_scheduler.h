/* SPDX-License-Identifier: MIT
 *
 * A CTA's work tile (bn keys of one batch and kv head), its way over the query blocks that meet these keys, and the
 * loads of both. Positions that only few instructions of a step need lie in shared memory; what every step needs is in
 * registers and moves by additions. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_SCHEDULER_H
#define STW_COMMON_KERNELS_ATTN_BWD_SCHEDULER_H

#include "common/device/copy.h"
#include "common/kernels/attn_bwd_hidden.h"

/* A work tile. Lies in shared memory: registers are taken. */
struct attn_work_tile : attn_key_block {
    int kv_head;
    int live;               /* there is one; else none is left                  */
    int k_counts, v_counts; /* 1: not all elements are subnormal; see attn_bwd_subnormal.h */
};
static_assert(2 * sizeof(attn_work_tile) + 2 * sizeof(dev_two_halves) <= STW_WORK_TILE_BYTES,
              "room for this work tile, the next, and the barriers after them");

/* The first wave: from the place that its first lane has taken to the work tile, asynchronously. */
DEV_FN void attn_work_tile_fetch(attn_work_tile &u, const stw_attn_launch &l, const attn_place &at, int lane) {
    const int64_t index = dev_shuffle(at.key_block, 0);
    bool live = dev_shuffle((uint32_t)at.live, 0) != 0;
    if (live && lane < (int)sizeof(attn_key_block) / 16)
        dev_copy_vector((char *)&u + lane * 16,
                        (const char *)l.key_blocks + index * (int)sizeof(attn_key_block) + lane * 16, true);
    if (lane) return;
    u.kv_head = at.kv_head;
    u.live = live;
    u.k_counts = u.v_counts = 0;
}

/* All threads: take a work tile and wait for it. */
template <bool DESCENDS = false>
DEV_FN void attn_work_tile_take_now(attn_work_tile &u, const stw_attn_launch &l, int wave, int lane) {
    if (wave == 0) {
        attn_place at = {0, 0, false};
        if (lane == 0) at = attn_work_tile_take<DESCENDS>(l);
        attn_work_tile_fetch(u, l, at, lane);
    }
    dev_copy_commit();
    dev_copy_wait();
    dev_barrier();
}

/* The query block that is loaded next: `block` of head h. All but `thread` is the same for the whole CTA, and in
 * registers that a wave shares. */
template <class C> struct attn_block_iterator {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::rows, C::THREADS> copy;
    const T *q, *dout; /* row 0 of the block                                                   */
    uint32_t at;       /* its number among all of the workspace (more would not fit any memory) */
    int block, h;
    int first, end, head_end; /* blocks of a head, heads of the work tile                             */
    int whole_first, whole_end, inner_first, inner_end;
    int thread;

    DEV_METHOD void enter_head(const attn_work_tile &u, const stw_attn_launch &l) {
        const stw_attn_params &p = l.p;
        int64_t row = dev_uniform(u.seq.q.first) + (int64_t)block * C::BM, b = dev_uniform(u.b);
        q = (const T *)p.q.data + dev_row(p.q, b, h, row);
        dout = (const T *)p.dout.data + dev_row(p.dout, b, h, row);
        at = (uint32_t)(h * l.q_blocks + dev_uniform(u.seq.q_block) + block);
    }
    DEV_FN attn_block_iterator begin(const attn_work_tile &u, const stw_attn_launch &l) {
        attn_block_iterator w;
        const stw_attn_params &p = l.p;
        w.first = w.block = dev_uniform(u.first);
        w.end = dev_uniform(u.end);
        w.h = dev_uniform(u.kv_head) * (int)p.group;
        w.head_end = w.h + (int)p.group;
        w.whole_first = dev_uniform(u.whole_first);
        w.whole_end = dev_uniform(u.whole_end);
        w.inner_first = dev_uniform(u.inner_first);
        w.inner_end = dev_uniform(u.inner_end);
        enum { BOTH = STW_VECTOR_Q | STW_VECTOR_DOUT };
        const int64_t near = (INT64_C(1) << 31) / (C::BM * (int)sizeof(T));
        if ((l.vectors & BOTH) != BOTH || p.q.seq >= near || p.dout.seq >= near || p.q.seq < 0 || p.dout.seq < 0)
            w.whole_end = 0;
        w.thread = dev_keep((int)dev_thread());
        w.enter_head(u, l);
        return w;
    }
    /* To the next block; false: there is none. */
    DEV_METHOD bool next(const attn_work_tile &u, const stw_attn_launch &l) {
        q += C::BM * l.p.q.seq;
        dout += C::BM * l.p.dout.seq;
        ++at;
        if (++block < end) return true;
        block = first;
        if (++h >= head_end) return false;
        enter_head(u, l);
        return true;
    }
    /* To query block `to` or the first after it that masks leave, of this head or the next; false: there is none. */
    DEV_METHOD bool settle(const attn_work_tile &u, const stw_attn_launch &l, int to) {
        const int was = h;
        DEV_ROLLED for (;;) {
            to = attn_hidden_jump<C>(l, u, dev_uniform(u.kv_head), h, to, end);
            if (to < end) break;
            if (++h >= head_end) return false;
            to = first;
        }
        const int by = to - block;
        block = to;
        if (h != was) {
            enter_head(u, l);
        } else {
            q += (int64_t)by * C::BM * l.p.q.seq;
            dout += (int64_t)by * C::BM * l.p.dout.seq;
            at += (uint32_t)by;
        }
        return true;
    }
    /* All rows of the block take part. */
    DEV_METHOD bool is_whole() const { return block >= whole_first && block < whole_end; }
    /* Every query of the block sees every key of the work tile. */
    DEV_METHOD bool is_inner() const { return block >= inner_first && block < inner_end; }
    DEV_METHOD void load_stats(const stw_attn_launch &l, char *smem, int stage) const {
        float *stats = (float *)(smem + C::AT_STATS) + stage * C::STATS;
        dev_load_floats<C::THREADS, C::STATS>(stats, l.stats + (int64_t)at * C::STATS, thread);
    }
    DEV_METHOD void load(const attn_work_tile &u, const stw_attn_launch &l, char *smem, int stage) const {
        const stw_attn_params &p = l.p;
        T *to_q = (T *)(smem + C::AT_Q + stage * C::rows::BYTES),
          *to_dout = (T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
        if (copy::ASYNC && is_whole()) {
            if constexpr (copy::ASYNC != 0) {
                copy::whole(to_q, q, p.q.seq, (int)p.head_dim_qk, thread);
                copy::whole(to_dout, dout, p.dout.seq, (int)p.head_dim_v, thread);
            }
        } else {
            int64_t row = (int64_t)block * C::BM;
            copy::part(to_q, q - row * p.q.seq, p.q.seq, row, u.seq.q_low, u.seq.q_end, (int)p.head_dim_qk,
                       (l.vectors & STW_VECTOR_Q) != 0, thread);
            copy::part(to_dout, dout - row * p.dout.seq, p.dout.seq, row, u.seq.q_low, u.seq.q_end, (int)p.head_dim_v,
                       (l.vectors & STW_VECTOR_DOUT) != 0, thread);
        }
        load_stats(l, smem, stage);
    }
};

/* The next query block on its way. Asynchronous copies go at once to where they belong. */
template <class C, bool ASYNC = attn_block_iterator<C>::copy::ASYNC> struct attn_ahead {
    DEV_METHOD void fetch(const attn_block_iterator<C> &, const stw_attn_launch &) {}
    DEV_METHOD void place(const attn_block_iterator<C> &w, const attn_work_tile &u, const stw_attn_launch &l,
                          char *smem, int stage) const {
        w.load(u, l, smem, stage);
    }
};
/* f32 as three bf16: by way of registers, with products between. */
template <class C> struct attn_ahead<C, false> {
    typedef attn_block_iterator<C> iterator;
    typedef typename C::T T;
    typedef typename iterator::copy copy;
    enum { KEPT = copy::COUNT <= 4 }; /* there are registers for it */
    dev_vector q[copy::COUNT], dout[copy::COUNT];
    DEV_METHOD void fetch(const iterator &w, const stw_attn_launch &l) {
        if (!KEPT || !w.is_whole()) return;
        copy::fetch(q, w.q, l.p.q.seq, (int)l.p.head_dim_qk, w.thread);
        copy::fetch(dout, w.dout, l.p.dout.seq, (int)l.p.head_dim_v, w.thread);
    }
    DEV_METHOD void place(const iterator &w, const attn_work_tile &u, const stw_attn_launch &l, char *smem,
                          int stage) const {
        T *to_q = (T *)(smem + C::AT_Q + stage * C::rows::BYTES),
          *to_dout = (T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
        if (KEPT && w.is_whole() && !copy::any_nonfinite(q) && !copy::any_nonfinite(dout)) {
            copy::put(to_q, q, w.thread);
            copy::put(to_dout, dout, w.thread);
            w.load_stats(l, smem, stage);
        } else w.load(u, l, smem, stage);
    }
};

/* K and V of a work tile into shared memory. Keys that no query sees become zeros. */
template <class C>
DEV_FN void attn_load_keys(const attn_work_tile &u, const stw_attn_launch &l, int kv_head, char *smem, int thread) {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::keys, C::THREADS> copy;
    const stw_attn_params &p = l.p;
    stw_range seen = stw_visible_keys(&u.seq);
    copy::part((T *)(smem + C::AT_K), (const T *)p.k.data + dev_row(p.k, u.b, kv_head, u.seq.kv.first), p.k.seq, u.j0,
               seen.first, seen.end, (int)p.head_dim_qk, (l.vectors & STW_VECTOR_K) != 0, thread);
    copy::part((T *)(smem + C::AT_V), (const T *)p.v.data + dev_row(p.v, u.b, kv_head, u.seq.kv.first), p.v.seq, u.j0,
               seen.first, seen.end, (int)p.head_dim_v, (l.vectors & STW_VECTOR_V) != 0, thread);
}

#endif
