/* SPDX-License-Identifier: MIT
 *
 * Main loop of the backward pass. A work tile is bn keys of one (batch, kv head); a CTA (HIP: workgroup) takes one
 * after the other, and for each goes in steps through the query blocks that meet its keys, of every query head of the
 * group:
 *
 *     keys  +----+     S = Q K^T, P = exp(S - LSE)      registers                       attn_bwd_scores.h
 *      j0   |####|     dP = dO V^T, dS = P (dP - D)     registers, then shared memory
 *           +----+
 *     queries i0..     dQ[i0..] += dS K                 f32 sums in memory, which the last kernel converts
 *                      dV += P^T dO, dK += dS^T Q       registers, to the end of the work tile
 *
 * Two stages: the rows of the next step are loaded under this step's products; one stage: after them. dQ sums lie in
 * the order of the registers, so that a wave's addition touches whole lines. In deterministic mode the key blocks of a
 * query block add in ascending order: a semaphore a query block (l.dq_semaphore) counts those that have added (kernels
 * ATTN_ORDERED: attn_dq_turn; under masks in memory: attn_dq_ordered). Work tiles are taken in the order of their
 * numbers, so the one to add next has always been started. Each row of a tuning
 * table becomes kernels of attn_bwd_main in backends/cuda/attn_bwd_sm80.cu and backends/hip/attn_bwd_cdna.hip. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_H
#define STW_COMMON_KERNELS_ATTN_BWD_H

#include "common/kernels/attn_bwd_epilogue.h"
#include "common/kernels/attn_bwd_scores.h"

/* The tile of dBias, where the main loop writes it. */
template <class C>
DEV_FN attn_bias_store<typename C::scores> attn_bias_of(const attn_work_tile &u, const stw_attn_launch &l, int h,
                                                        int block) {
    const stw_bias_param &t = l.p.dbias;
    attn_bias_store<typename C::scores> bias = {nullptr, t.query, l.p.dbias_dtype,
                                                0,       0,       (l.p.accumulate & STW_OUT_DBIAS) != 0};
    bias.rows = (int)stw_clamp_i64(u.seq.q.used - (int64_t)block * C::BM, 0, C::BM);
    bias.cols = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN);
    bias.to = (char *)t.data +
              (u.b * t.batch + h * t.head + (int64_t)block * C::BM * t.query + u.j0) * (bias.dtype == STW_F32 ? 4 : 2);
    return bias;
}

/* dS' in shared memory is the tile: whole vectors to dBias. */
template <class C> DEV_FN void attn_bias_write_tile(const attn_bias_store<typename C::scores> &b, const char *smem) {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::scores, C::THREADS> copy;
    enum { VECTOR = C::scores::VECTOR };
    const T *tile = C::ds(smem).data;
    int row = copy::row((int)dev_thread()), col = copy::col((int)dev_thread());
    bool vector = (((uintptr_t)b.to | (uintptr_t)(b.stride * (int)sizeof(T))) & 15) == 0 && col + VECTOR <= b.cols;
    T *to = (T *)(void *)b.to + row * b.stride + col;
    if (col >= b.cols) return;
    DEV_ROLLED_FOR (int i = 0; i < copy::COUNT; ++i, row += copy::STEP, to += copy::STEP * b.stride) {
        if (row >= b.rows) return;
        dev_vector v = dev_load_vector(tile + C::scores::at(row, col));
        if (vector) dev_store_vector(to, v);
        else
            for (int e = 0; e < VECTOR && col + e < b.cols; ++e) to[e] = tile[C::scores::at(row, col + e)];
    }
}

/* dQ of one tile on its way to the f32 sums: half of it is added under the product of dV (half 0), half under that of
 * dK (half 1), since additions to memory are slow in one burst. */
template <class C> struct attn_dq {
    typedef typename C::row_split S;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    dev_acc<S> acc;
    float *to;
    int half;
    DEV_METHOD void add(int first, int end) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            if (f >= first && f < end) dev_add_acc<C::THREADS>(to, f, acc.v[f / S::NT][f % S::NT]);
    }
    DEV_METHOD void add_all() { add(0, COUNT); }
    /* Where sums may be subnormal. Slow. */
    DEV_METHOD void add_exact() {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                dev_add_exact(to + dev_sum_at(f, i, (int)dev_thread(), C::THREADS), acc.v[f / S::NT][f % S::NT][i]);
    }
    DEV_METHOD void step(int k, int steps) {
        add(COUNT * (half * steps + k) / (2 * steps), COUNT * (half * steps + k + 1) / (2 * steps));
    }
};

/* dQ = dS K of one tile, ready to be added. `Sums`: how the matrix unit adds (mma.h), with no work under it. */
template <class C, class Sums = dev_nothing>
DEV_FN void attn_dq_of(attn_dq<C> &q, const stw_attn_launch &l, uint32_t at, const char *smem, int wave, int lane) {
    Sums sums;
    q.acc.clear();
    mma_AB(q.acc, C::ds(smem), C::k(smem), sums, wave, lane);
    q.to = l.dq + (int64_t)at * (C::BM * C::HD);
}

/* The same in kernels for dropout: decisions of the next step's tile, of head h and query block `block`, under the
 * product. `more`: there is one. */
template <class C>
DEV_FN void attn_dq_and_dropout_of(attn_dq<C> &q, attn_dropout_next<typename C::score_split> &next,
                                   const attn_work_tile &u, const stw_attn_launch &l, uint32_t at, const char *smem,
                                   int h, int block, bool more, int wave, int lane) {
    typedef typename C::score_split S;
    typedef attn_dropout_next<S> ahead;
    int64_t i0 = (int64_t)block * C::BM;
    q.acc.clear();
    q.to = l.dq + (int64_t)at * (C::BM * C::HD);
    stw_dropout_stream stream = stw_dropout_stream_of(&l.p, u.b, h, u.seq.q, u.seq.kv);
    if (more && attn_dropout_philox<S>::fits(l.p, stream, i0)) {
        attn_dropout_philox<S> calls = attn_dropout_philox<S>::of(l.p, stream, i0, u.j0, wave, lane);
        attn_dropout_philox_half<S, 0> half = {calls};
        mma_AB(q.acc, C::ds(smem), C::k(smem), half, wave, lane);
        DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) next.word[w] = calls.nibble[w];
        next.made = ahead::PHILOX;
    } else if (more && attn_dropout_flash2_side<S>::fits(l.p, i0, u.j0)) {
        attn_dropout_flash2_side<S> calls = attn_dropout_flash2_side<S>::of(l.p, stream, i0, u.j0, wave, lane);
        mma_AB(q.acc, C::ds(smem), C::k(smem), calls, wave, lane);
        DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) next.word[w] = calls.pairs[w];
        next.made = ahead::FLASH2;
    } else {
        dev_nothing nothing;
        mma_AB(q.acc, C::ds(smem), C::k(smem), nothing, wave, lane);
        next.made = ahead::NOTHING;
    }
}

/* Deterministic mode: waits for the semaphore, adds, and lets the next key block add. Where masks skip query blocks the
 * semaphore holds the key block that added last, counted from 1. */
template <class C, int MODE>
DEV_FN void attn_dq_ordered(attn_dq<C> &q, const stw_attn_launch &l, const attn_work_tile &u, uint32_t at, int h,
                            int block, bool subnormal, int wave, int lane) {
    uint32_t mine = (uint32_t)(u.block - stw_key_blocks(&u.seq, C::BM, C::BN, block).first), then = mine + 1;
    if constexpr (attn_hides<MODE>::yes) {
        if (attn_has_masks(l)) {
            if (wave == 0) mine = attn_hidden_before<C>(l, u, u.kv_head, h, block, lane);
            then = (uint32_t)u.block + 1;
        }
    }
    if (dev_thread() == 0 && !*l.unordered) /* with wrong cu_seqlens there may be no order: status_out tells */
        while (dev_load_acquire(l.dq_semaphore + at) != mine) {
        }
    dev_barrier();
    if (subnormal) q.add_exact();
    else q.add_all();
    dev_fence();
    dev_barrier();
    if (dev_thread() == 0) dev_store_release(l.dq_semaphore + at, then);
}

/* ATTN_ORDERED: key blocks add in descending order (STW_KEYS_DESCEND); a semaphore holds the last that has. One thread
 * keeps the semaphores. After a step's first product all have ended the step before: it releases that step's query
 * block and reads this one's, with one fence. If another's turn is due, it waits before the barrier after which
 * additions begin. */
struct attn_dq_turn {
    enum : uint32_t { NOTHING = ~0u };
    uint32_t due, seen; /* the query block that the step before added to; who added last to this step's */
    template <class C> DEV_FN bool keeps() { return dev_thread() == C::THREADS - DEV_WAVE; }
    DEV_METHOD void pass_on(const stw_attn_launch &l, const attn_work_tile &u) {
        dev_fence();
        if (due != NOTHING) *(volatile uint32_t *)(l.dq_semaphore + due) = (uint32_t)u.block;
        due = NOTHING;
    }
    DEV_METHOD void look(const stw_attn_launch &l, const attn_work_tile &u, uint32_t at) {
        seen = *(volatile uint32_t *)(l.dq_semaphore + at);
        pass_on(l, u);
    }
    DEV_METHOD void wait(const stw_attn_launch &l, const attn_work_tile &u, uint32_t at) {
        uint32_t before = (uint32_t)u.block + 1;
        due = at;
        if (seen == before) return;
        /* with wrong cu_seqlens there may be no order: status_out tells */
        while (dev_load_acquire(l.dq_semaphore + at) != before && !*l.unordered) {
        }
    }
};

/* dQ, dV and dK one after the other, those that are asked for: deterministic mode, few outputs, subnormal numbers. */
template <class C, int MODE, class Sums>
DEV_FN void attn_bwd_gradients_apart(dev_acc<typename C::key_split> &dk, dev_acc<typename C::key_split> &dv,
                                     const attn_work_tile &u, const stw_attn_launch &l, char *smem, int stage,
                                     uint32_t at, int h, int block, bool subnormal, int wave, int lane) {
    const stw_attn_params &p = l.p;
    const dev_smem_tile<typename C::rows> q = C::q(smem, stage), dout = C::dout(smem, stage);
    const dev_smem_tile<typename C::scores> pz = C::p(smem), ds = C::ds(smem);
    Sums sums;
    if (p.outputs & STW_OUT_DQ) {
        attn_dq<C> dq;
        attn_dq_of<C, Sums>(dq, l, at, smem, wave, lane);
        if (MODE != ATTN_ORDERED && (p.features & STW_FEAT_DETERMINISTIC))
            attn_dq_ordered<C, MODE>(dq, l, u, at, h, block, subnormal, wave, lane);
        else if (subnormal) dq.add_exact();
        else dq.add_all();
    }
    if (p.outputs & STW_OUT_DV) mma_AtB(dv, pz, dout, sums, wave, lane);
    if constexpr (MODE == ATTN_BIASED) dev_halves_arrive_behind_product(C::weights_end(smem));
    if (p.outputs & STW_OUT_DK) mma_AtB(dk, ds, q, sums, wave, lane);
}

/* The second half of a step: dQ, dV and dK of P and dS in shared memory; dBias where dS itself is its tile. */
template <class C, int MODE, class Bias>
DEV_FN void attn_bwd_gradients(dev_acc<typename C::key_split> &dk, dev_acc<typename C::key_split> &dv,
                               const attn_work_tile &u, const stw_attn_launch &l, char *smem, int stage, uint32_t at,
                               int h, int block, attn_dropout_next<typename C::score_split> &next,
                               const attn_block_iterator<C> &scheduler, bool more, const Bias &dbias, int wave,
                               int lane) {
    typedef typename C::T T;
    const stw_attn_params &p = l.p;
    const dev_smem_tile<typename C::rows> q = C::q(smem, stage), dout = C::dout(smem, stage);
    const dev_smem_tile<typename C::scores> pz = C::p(smem), ds = C::ds(smem);
    bool subnormal = attn_is_subnormal<C>(u, C::stats(smem, stage));
    if ((p.outputs & STW_OUT_DQKV) == STW_OUT_DQKV &&
        (MODE == ATTN_ORDERED || !(p.features & STW_FEAT_DETERMINISTIC)) && !subnormal) {
        attn_dq<C> dq; /* dQ = dS K */
        if constexpr (MODE == ATTN_DROPS)
            attn_dq_and_dropout_of<C>(dq, next, u, l, at, smem, scheduler.h, scheduler.block, more, wave, lane);
        else attn_dq_of<C>(dq, l, at, smem, wave, lane);
        dq.half = 0;
        mma_AtB(dv, pz, dout, dq, wave, lane); /* dV += P^T dO, half of dQ added under it */
        /* elsewhere registers are spilled with it */
        if (MODE != ATTN_BIASED && (C::HD > 64) == (C::rows::TERMS == 1)) dev_part(l.never != 0);
        dq.half = 1;
        if constexpr (MODE == ATTN_BIASED) {
            dev_halves_arrive_behind_product(C::weights_end(smem));
            if (l.bias_direct) {
                attn_bias_store<typename C::scores> to = dbias();
                if (!attn_bias_side<C>::fits(to)) {
                    attn_bias_write_tile<C>(to, smem);
                    to.rows = 0;
                }
                attn_bias_side<C> out = attn_bias_side<C>::of(to, smem);
                attn_two_sides<attn_dq<C>, attn_bias_side<C>> both = {dq, out};
                mma_AtB(dk, ds, q, both, wave, lane); /* dK += dS^T Q, and dBias under it */
                return;
            }
        }
        mma_AtB(dk, ds, q, dq, wave, lane); /* dK += dS^T Q, half of dQ added under it */
        return;
    }
    if (MODE == ATTN_DROPS) next.made = 0;
    if (MODE == ATTN_BIASED && l.bias_direct) attn_bias_write_tile<C>(dbias(), smem);
    if constexpr (dev_flushes<T>::yes) {
        if (subnormal) {
            attn_bwd_gradients_apart<C, MODE, dev_unflushed>(dk, dv, u, l, smem, stage, at, h, block, true, wave, lane);
            return;
        }
    }
    attn_bwd_gradients_apart<C, MODE, dev_nothing>(dk, dv, u, l, smem, stage, at, h, block,
                                                   !dev_flushes<T>::yes && subnormal, wave, lane);
}

/* Work tiles of these kernels may be parts (stw_attn_split_of). */
template <int MODE> struct attn_takes_parts {
    enum { yes = LEAF_SHARED_PARTS && MODE != ATTN_ORDERED && !attn_hides<MODE>::yes };
};

/* dK and dV, those that are asked for, to their tensors; `drained`: there they are added to what was stored before.
 * `dv_scale`: what P in the sums of dV was not multiplied by. */
template <class C, int MODE>
DEV_FN void attn_bwd_store(const attn_work_tile &u, const stw_attn_launch &l, dev_acc<typename C::key_split> &dk,
                           dev_acc<typename C::key_split> &dv, char *smem, bool to_dk, bool to_dv, bool drained,
                           float dv_scale, int wave, int lane) {
    const stw_attn_params &p = l.p;
    if constexpr (attn_takes_parts<MODE>::yes) {
        if (l.part_sums) {
            if (p.outputs & STW_OUT_DV) attn_epilogue_part<C>(u, dv, l, 1, dv_scale);
            if (p.outputs & STW_OUT_DK) attn_epilogue_part<C>(u, dk, l, 0, 1.0f);
            dv.clear();
            dk.clear();
            return;
        }
    }
    if (to_dv && (p.outputs & STW_OUT_DV)) {
        bool add = (p.accumulate & STW_OUT_DV) || (drained && p.dv_dtype == STW_F32);
        attn_epilogue_store<C>(u, dv, p.dv, p.dtype, p.dv_dtype, add, (l.vectors & STW_VECTOR_DV) != 0,
                               (int)p.head_dim_v, dv_scale, smem + C::AT_V, wave, lane);
        dv.clear();
    }
    if (to_dk && (p.outputs & STW_OUT_DK)) {
        bool add = (p.accumulate & STW_OUT_DK) || (drained && p.dk_dtype == STW_F32);
        attn_epilogue_store<C>(u, dk, p.dk, p.dtype, p.dk_dtype, add, (l.vectors & STW_VECTOR_DK) != 0,
                               (int)p.head_dim_qk, p.scale, smem + C::AT_K, wave, lane);
        dk.clear();
    }
}

/* The matrix unit truncates its sums: 16-bit outputs hide that, f32 ones are stored every 512 rows, and what follows
 * is added in ordinary arithmetic. Only the kernels with all features know this. */
#define ATTN_DRAIN_STEPS(C) (512 / C::BM)

/* A work tile's first loads: its keys and values, its first query block, and the bias of both. */
template <class C, int MODE>
DEV_FN void attn_bwd_begin(attn_block_iterator<C> &scheduler, attn_bias_block_iterator<C> &bias, attn_values<C> &values,
                           attn_work_tile &u, const stw_attn_launch &l, char *smem, int stage, int wave, int lane) {
    if (u.first >= u.end) return;
    scheduler = attn_block_iterator<C>::begin(u, l);
    if constexpr (attn_hides<MODE>::yes) {
        if (attn_has_masks(l) && !scheduler.settle(u, l, scheduler.first)) {
            dev_barrier(); /* all have read u.end */
            if (dev_thread() == 0) u.end = u.first;
            return;
        }
    }
    attn_load_keys<C>(u, l, attn_takes_parts<MODE>::yes ? (int)((uint32_t)u.kv_head / l.head_parts) : u.kv_head, smem,
                      scheduler.thread);
    if (C::VALUES_HELD) {
        dev_copy_commit();
        dev_copy_wait();
        dev_barrier();
        attn_mark_keys<typename C::keys, C::THREADS>(u, C::k(smem).data, C::v(smem).data);
        values.take(smem, wave, lane);
        dev_barrier();
    }
    scheduler.load(u, l, smem, stage);
    if constexpr (MODE == ATTN_BIASED) {
        bias = attn_bias_block_iterator<C>::begin(scheduler, u, l);
        attn_bias_part<C>::fetch(bias, scheduler, u, l, smem, wave, lane);
    }
    dev_copy_commit();
}

/* A CTA takes work tiles until none is left. The loads of the next one run while this one's dK and dV are stored; which
 * it is has been found out before. Conditions are made uniform for the compiler, which then keeps the scheduler in
 * registers that a wave shares. The loop's state is in variables, not in a structure: ptxas makes other code of that.
 * */
template <class C, int MODE> DEV_FN void attn_bwd_main(const stw_attn_launch &l, char *smem) {
    typedef attn_bias_store<typename C::scores> bias_store;
    enum { DRAINS = MODE == ATTN_ALL && sizeof(typename C::T) == 2 };
    enum { ORDERED = MODE == ATTN_ORDERED };
    static_assert(!ORDERED || C::STAGES == 2, "the step before has ended where its semaphore is passed on");
    enum { QUEUES = LEAF_QUEUES, KEYS_DIRECT = attn_epilogue_direct<C>::yes };
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_work_tile *work_tiles =
        (attn_work_tile *)(void *)(smem + C::AT_WORK_TILE); /* this one and the next, alternately */
    if (dev_thread() == 0) dev_halves_init(C::step_end(smem), C::WARPS);
    if (MODE == ATTN_BIASED && dev_thread() == 0) dev_halves_init(C::weights_end(smem), C::WARPS);
    attn_work_tile_take_now<ORDERED>(work_tiles[0], l, wave, lane);
    dev_acc<typename C::key_split> dk, dv;
    dk.clear();
    dv.clear();
    attn_values<C> values;
    attn_block_iterator<C> scheduler;
    attn_bias_block_iterator<C> tile;                   /* ATTN_BIASED */
    attn_dropout_next<typename C::score_split> dropped; /* ATTN_DROPS */
    dropped.made = 0;
    attn_dq_turn turn = {attn_dq_turn::NOTHING, 0}; /* ATTN_ORDERED */
    int now = 0, was = 0; /* the work tile of the next steps, and that whose sums dK and dV are */
    bool live = dev_uniform(work_tiles[0].live) != 0, more = false, summed = false;
    int stage = 0, steps = 0, step = 0;
    for (;;) {
        bool enters = live && !more;
        if (KEYS_DIRECT && enters)
            attn_bwd_begin<C, MODE>(scheduler, tile, values, work_tiles[now], l, smem, stage, wave, lane);
        if (summed)
            attn_bwd_store<C, MODE>(work_tiles[was], l, dk, dv, smem, !more || p.dk_dtype == STW_F32,
                                    !more || p.dv_dtype == STW_F32, DRAINS && step > ATTN_DRAIN_STEPS(C),
                                    MODE == ATTN_DROPS ? p.dropout_scale : 1.0f, wave, dev_keep(lane));
        if (!live) return;
        if (!KEYS_DIRECT && enters) {
            dev_barrier();
            attn_bwd_begin<C, MODE>(scheduler, tile, values, work_tiles[now], l, smem, stage, wave, lane);
        }
        attn_work_tile &u = work_tiles[now], &next = work_tiles[now ^ 1];
        if (enters) {
            attn_place at = {0, 0, false};
            /* few work tiles: one for every CTA */
            if (QUEUES && dev_thread() == 0 && l.work_tiles > l.blocks) at = attn_work_tile_take<ORDERED>(l);
            dev_copy_wait();
            dev_barrier(); /* the keys have arrived, and the work tile before has been stored */
            if (QUEUES && wave == 0) attn_work_tile_fetch(next, l, at, lane);
            more = dev_uniform(u.first) < dev_uniform(u.end);
            step = 0;
            if (more && !C::VALUES_HELD) {
                attn_mark_keys<typename C::keys, C::THREADS>(u, C::k(smem).data, C::v(smem).data);
                if (dev_flushes<typename C::T>::yes) dev_barrier();
            }
        }
        for (bool full = false; more && !full; ++step, ++steps) {
            full = DRAINS && step % ATTN_DRAIN_STEPS(C) == ATTN_DRAIN_STEPS(C) - 1 &&
                   (p.dk_dtype == STW_F32 || p.dv_dtype == STW_F32);
            int block = scheduler.block, h = scheduler.h;
            uint32_t at = scheduler.at;
            bool inner = scheduler.is_inner();
            if (attn_hides<MODE>::yes && attn_has_masks(l)) more = scheduler.settle(u, l, block + 1);
            else more = scheduler.next(u, l);
            /* what is derived from the lane is not kept over the loop: registers are taken */
            if ((MODE != ATTN_PLAIN && MODE != ATTN_ORDERED) || C::rows::TERMS != 1 || C::CROWDED)
                lane = dev_keep(lane);
            attn_ahead<C> ahead;
            if (C::STAGES == 2 && more) ahead.fetch(scheduler, l);
            auto dbias = [&]() { /* where dS goes, if its gradient is wanted */
                                 attn_bias_store<typename C::scores> to = attn_bias_of<C>(u, l, h, block);
                                 if (MODE == ATTN_BIASED) to.to = (char *)tile.dbias;
                                 return to;
            };
            /* S = Q K^T, P = exp(S - LSE), dP = dO V^T, dS = P (dP - D); the loads of the next step after Q K^T */
            attn_bwd_scores<C, MODE, bias_store>(
                u, l, smem, values, stage, h, block, inner, dropped, dbias,
                [&]() {
                    if (C::STAGES == 1) return;
                    if (steps) dev_halves_wait(C::step_end(smem), steps - 1); /* all have read the step before's rows */
                    if (ORDERED && turn.keeps<C>()) turn.look(l, u, at);
                    if (!more) return;
                    ahead.place(scheduler, u, l, smem, stage ^ 1);
                    dev_copy_commit();
                },
                wave, lane);
            if (ORDERED && turn.keeps<C>()) turn.wait(l, u, at);
            dev_copy_wait(); /* the rows of the next step, */
            dev_barrier();   /* and P and dS of all waves  */
            if (MODE == ATTN_ALL && bias_store::from_tile(l)) attn_bias_write_tile<C>(dbias(), smem);
            if (C::STAGES == 1 && more) ahead.fetch(scheduler, l);
            /* dQ += dS K, dV += P^T dO, dK += dS^T Q */
            attn_bwd_gradients<C, MODE>(dk, dv, u, l, smem, stage, at, h, block, dropped, scheduler, more, dbias, wave,
                                        lane);
            if (C::STAGES == 2) {
                dev_halves_arrive(C::step_end(smem));
                stage ^= 1;
                if constexpr (MODE == ATTN_BIASED) {
                    static_assert(C::STAGES == 2, "the bias comes a step ahead");
                    dev_halves_wait(C::weights_end(smem), steps);
                    if (more) {
                        tile.next(scheduler, u, l);
                        attn_bias_part<C>::fetch(tile, scheduler, u, l, smem, wave, lane);
                    }
                    dev_copy_commit();
                }
            } else if (more) {
                dev_barrier();
                ahead.place(scheduler, u, l, smem, 0);
                dev_copy_commit();
                dev_copy_wait();
                dev_barrier();
            }
        }
        was = now;
        summed = true;
        if (more) continue;
        dev_copy_wait(); /* which the next work tile is */
        dev_barrier();   /* and nobody reads these keys and queries any more */
        if (ORDERED && turn.keeps<C>()) turn.pass_on(l, u);
        now ^= 1;
        live = QUEUES && dev_uniform(next.live) != 0;
    }
}

#endif
