/* SPDX-License-Identifier: MIT
 *
 * Main loop of the backward pass. A unit is bn keys of one (batch, kv head); a block of threads takes one after the other:
 *
 *     keys  +----+        for each query head of the group, each query block that meets the keys:
 *      j0   |####|          S = Q K^T, dP = dO V^T, P and dS (attn_pairs.h), both to shared memory
 *           +----+          dV += P^T dO, dK += dS^T Q     in registers to the end
 *     queries i0..          dQ[i0..] += dS K               into f32 sums that the finish kernel converts
 *
 * Loads of the next query block run under the products of this one (two stages) or after them (one). dQ sums
 * lie in the order of the registers, so that a wave's addition touches whole lines. In deterministic mode the
 * key blocks of a query block add in ascending order: a counter each says whose turn it is, and units are
 * taken in their order, so the one whose turn it is has always been started. Instantiated by the leaf's
 * table of variants. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_H
#define STW_COMMON_KERNELS_ATTN_BWD_H

#include "common/kernels/attn_bias_tile.h"
#include "common/kernels/attn_bwd_keys.h"
#include "common/kernels/attn_bwd_tiny.h"
#include "common/kernels/attn_bwd_walk.h"
#include "common/kernels/attn_pairs.h"

/* A product of rows of the tile: queries with keys, or dO with values. `flushed`: in the slow way that takes nothing
 * for zero. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_mma_ABt(dev_acc<S> &acc, dev_smem_tile<typename C::rows> rows, dev_smem_tile<typename C::keys> keys, bool unrounded,
                         bool flushed, int wave, int lane) {
    dev_rounded rounded;
    if constexpr (dev_flushes<typename C::T>::yes) {
        dev_unflushed unflushed;
        if (flushed) {
            mma_ABt(acc, rows, keys, unflushed, wave, lane);
            dev_part(false); /* else clang joins the ends of both ways, and their accumulators in scratch memory */
            return;
        }
    }
    if (unrounded) mma_ABt(acc, rows, keys, rounded, wave, lane);
    else mma_ABt(acc, rows, keys, wave, lane);
}

/* A result of a wave into shared memory. In parts: one test for odd numbers. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_store_pairs(dev_smem_tile<typename C::pairs> tile, const dev_acc<S> &acc, int wave, int lane) {
    if constexpr (C::pairs::PARTS != 1) {
        leaf_mma<typename C::T>::template store_all<typename C::pairs>(tile.data, S::row0(wave), S::col0(wave), acc.v, lane);
    } else {
        DEV_UNROLL for (int m = 0; m < S::MT; ++m)
            DEV_UNROLL for (int n = 0; n < S::NT; ++n)
                leaf_store_acc<typename C::pairs>(tile.data, S::row0(wave) + m * LEAF_MMA_M, S::col0(wave) + n * LEAF_MMA_N,
                                                  acc.v[m][n], lane);
    }
}

/* P.Z and dS' of one tile, into shared memory. `inner`: all of its pairs are visible; `bias` gives the
 * taker of dS; `between` runs after the first product. */
template <class C, int MODE, class Bias, class Taker, class Between> DEV_FN void attn_bwd_pairs(const attn_unit &u, const stw_attn_launch &l, char *smem,
                                                         const attn_values<C> &values, int stage, int h, int block, bool inner, const Taker &bias,
                                                         const Between &between, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::pair_split S;
    const stw_attn_params &p = l.p;
    const dev_smem_tile<typename C::rows> q = C::q(smem, stage), dout = C::dout(smem, stage);
    const dev_smem_tile<typename C::keys> k = C::k(smem), v = C::v(smem);
    const float *stats = (const float *)(smem + C::AT_STATS) + stage * C::STATS;
    int64_t i0 = (int64_t)block * C::BM;
    dev_acc<S> s, dp;
    s.clear();
    dp.clear();
    dev_mask mask = dev_mask::whole(C::BM, C::BN);
    if (!inner) mask = dev_mask::of(u.seq, i0, u.j0, C::BM, C::BN);
    enum { DROPS = (MODE & ATTN_DROPS) != 0, BIASED = MODE == ATTN_BIASED, ALL = MODE == ATTN_ALL };
    bool drops = MODE == ATTN_DROPS || (ALL && (p.features & STW_FEAT_DROPOUT));
    bool unrounded = MODE != ATTN_PLAIN && !BIASED && (Bias::unrounded(l) || u.seq.kv.used == 1 || (sizeof(T) == 2 && stw_attn_sees_one_key(&p)));
    bool flushed = dev_flushes<T>::yes && attn_is_tiny<C>(u, stats);
    float scale = p.scale;
    attn_keep<S> keep;
    dev_logit logit;
    if constexpr (BIASED) {
        attn_mma_ABt<C>(s, q, k, false, flushed, wave, lane);
        dev_copy_wait(); /* of the bias */
        dev_wave_sync();
        between();
        attn_bias_part<C>::add(s, l, stats, smem, wave, lane);
    } else if constexpr (MODE != ATTN_PLAIN) {
        stw_dropout_stream stream = {};
        bool beside = false; /* dropout's calls run beside the product */
        if (ALL) logit = dev_logit::of(p, u.seq, u.b, h, i0, u.j0);
        keep.all();
        if (drops) {
            stream = stw_dropout_stream_of(&p, u.b, h, u.seq.q, u.seq.kv);
            beside = !unrounded && !flushed && attn_keep_philox<S>::fits(p, stream, i0);
            if (!beside) attn_keep_fill<S>(keep, p, stream, mask, i0, u.j0, wave, lane);
        }
        dev_bias_words<S> words;
        if (ALL) {
            bool plain = dev_bias_words<S>::plain(logit, mask, C::BM, C::BN);
            words.load(logit, mask, plain, wave, lane);
            words.fetch(logit, plain, wave, lane);
        }
        if (beside) {
            attn_keep_philox<S> calls = attn_keep_philox<S>::of(p, stream, i0, u.j0, wave, lane);
            mma_ABt(s, q, k, calls, wave, lane);
            calls.give(keep, lane);
        } else {
            attn_mma_ABt<C>(s, q, k, unrounded, flushed, wave, lane);
        }
        between();
        if (ALL) scale = attn_pairs_logits<S>(s, logit, words, mask, wave, lane);
    } else {
        attn_mma_ABt<C>(s, q, k, false, flushed, wave, lane);
        between();
    }
    if constexpr (BIASED) {
        attn_exp2_side<S> exponentials = {s};
        mma_ABt(dp, dout, v, exponentials, wave, lane);
    } else {
        attn_exp_side<C, ALL> exponentials = attn_exp_side<C, ALL>::of(s, stats, scale, wave, lane); /* they run under the products of dP */
        if (unrounded || flushed || C::VALUES_HELD) {
            exponentials.every();
            if (C::VALUES_HELD) values.mma_dout(dp, dout.data, flushed, wave, lane);
            else attn_mma_ABt<C>(dp, dout, v, true, flushed, wave, lane);
        } else {
            mma_ABt(dp, dout, v, exponentials, wave, lane);
        }
    }
    bool masked = !inner || stats[2 * C::BM] != 0.0f || (ALL && p.bias_dtype == 6u);
    if (masked && drops) attn_pairs_scores<C, true, DROPS>(s, dp, stats, mask, keep, p.dropout_scale, wave, lane);
    else if (masked) attn_pairs_scores<C, true, false>(s, dp, stats, mask, keep, 1.0f, wave, lane);
    else if (drops) attn_pairs_scores<C, false, DROPS>(s, dp, stats, mask, keep, p.dropout_scale, wave, lane);
    else attn_pairs_scores<C, false, false>(s, dp, stats, mask, keep, 1.0f, wave, lane);
    if (ALL && Bias::wanted(l)) attn_pairs_take<Bias>(dp, bias(), wave, lane);
    if (!Bias::OPERANDS) return;
    attn_store_pairs<C>(C::p(smem), s, wave, lane);
    if (ALL && (p.features & STW_FEAT_SOFTCAP)) { /* s is free now */
        s.clear();
        attn_mma_ABt<C>(s, q, k, true, flushed, wave, lane);
        attn_pairs_slopes<S>(dp, s, logit);
    }
    attn_store_pairs<C>(C::ds(smem), dp, wave, lane);
}

/* The tile of dBias, where the main loop writes it. */
template <class C> DEV_FN attn_bias_store<typename C::pairs> attn_bias_of(const attn_unit &u, const stw_attn_launch &l, int h, int block) {
    const stw_bias_param &t = l.p.dbias;
    attn_bias_store<typename C::pairs> bias = {nullptr, t.query, l.p.dbias_dtype, 0, 0, (l.p.accumulate & 0x08u) != 0};
    bias.rows = (int)stw_clamp_i64(u.seq.q.used - (int64_t)block * C::BM, 0, C::BM);
    bias.cols = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN);
    bias.to = (char *)t.data + (u.b * t.batch + h * t.head + (int64_t)block * C::BM * t.query + u.j0) * (bias.dtype == 3u ? 4 : 2);
    return bias;
}

/* dS' in shared memory is the tile: whole vectors to dBias. */
template <class C> DEV_FN void attn_bias_write_tile(const attn_bias_store<typename C::pairs> &b, const char *smem) {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::pairs, C::THREADS> copy;
    enum { VECTOR = C::pairs::VECTOR };
    const T *tile = C::ds(smem).data;
    int row = copy::row((int)dev_thread()), col = copy::col((int)dev_thread());
    bool vector = (((uintptr_t)b.to | (uintptr_t)(b.stride * (int)sizeof(T))) & 15) == 0 && col + VECTOR <= b.cols;
    T *to = (T *)(void *)b.to + row * b.stride + col;
    if (col >= b.cols) return;
    DEV_ROLLED for (int i = 0; i < copy::COUNT; ++i, row += copy::STEP, to += copy::STEP * b.stride) {
        if (row >= b.rows) return;
        dev_vector v = dev_load_vector(tile + C::pairs::at(row, col));
        if (vector) dev_store_vector(to, v);
        else
            for (int e = 0; e < VECTOR && col + e < b.cols; ++e) to[e] = tile[C::pairs::at(row, col + e)];
    }
}

/* dQ of one tile on its way to the sums of its rows: beside the products of dV (half 0) and dK (half 1), since
 * additions to memory are slow in one burst. */
template <class C> struct attn_dq {
    typedef typename C::row_split S;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    dev_acc<S> acc;
    float *to;
    int half;
    DEV_METHOD void add(int first, int end) {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            if (f >= first && f < end) dev_add_acc<C::THREADS>(to, f, acc.v[f / S::NT][f % S::NT]);
    }
    DEV_METHOD void add_all() { add(0, COUNT); }
    DEV_METHOD void add_exact() {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                dev_add_exact(to + dev_sum_at(f, i, (int)dev_thread(), C::THREADS), acc.v[f / S::NT][f % S::NT][i]);
    }
    DEV_METHOD void step(int k, int steps) {
        add(COUNT * (half * steps + k) / (2 * steps), COUNT * (half * steps + k + 1) / (2 * steps));
    }
};

/* dS K of one tile. */
template <class C, class Side = dev_nothing>
DEV_FN void attn_dq_of(attn_dq<C> &q, const stw_attn_launch &l, uint32_t at, const char *smem, int wave, int lane) {
    Side side;
    q.acc.clear();
    mma_AB(q.acc, C::ds(smem), C::k(smem), side, wave, lane);
    q.to = l.dq + (int64_t)at * (C::BM * C::HD);
}

/* Deterministic: adds when it is this key block's turn. */
template <class C> DEV_FN void attn_dq_in_turn(attn_dq<C> &q, const stw_attn_launch &l, const attn_unit &u, uint32_t at,
                                               int block, bool tiny) {
    uint32_t mine = (uint32_t)(u.block - stw_key_blocks(&u.seq, C::BM, C::BN, block).first);
    if (dev_thread() == 0 && !*l.unordered) /* with wrong cu_seqlens there may be no order: status_out tells */
        while (dev_load_acquire(l.turns + at) != mine) {}
    dev_barrier();
    if (tiny) q.add_exact();
    else q.add_all();
    dev_fence();
    dev_barrier();
    if (dev_thread() == 0) dev_store_release(l.turns + at, mine + 1);
}

/* dQ, dV and dK of one tile one after the other, as far as they are asked for; tiny: see attn_is_tiny. */
template <class C, int MODE, class Side>
DEV_FN void attn_bwd_products_apart(dev_acc<typename C::key_split> &dk, dev_acc<typename C::key_split> &dv, const attn_unit &u,
                                    const stw_attn_launch &l, char *smem, int stage, uint32_t at, int block, bool tiny, int wave, int lane) {
    const stw_attn_params &p = l.p;
    const dev_smem_tile<typename C::rows> q = C::q(smem, stage), dout = C::dout(smem, stage);
    const dev_smem_tile<typename C::pairs> pz = C::p(smem), ds = C::ds(smem);
    Side side;
    if (p.outputs & 0x01u) {
        attn_dq<C> dq;
        attn_dq_of<C, Side>(dq, l, at, smem, wave, lane);
        if (p.features & STW_FEAT_DETERMINISTIC) attn_dq_in_turn<C>(dq, l, u, at, block, tiny);
        else if (tiny) dq.add_exact();
        else dq.add_all();
    }
    if (p.outputs & 0x04u) mma_AtB(dv, pz, dout, side, wave, lane);
    if constexpr (MODE == ATTN_BIASED) dev_halves_arrive_behind_product(C::weights_end(smem));
    if (p.outputs & 0x02u) mma_AtB(dk, ds, q, side, wave, lane);
}

/* What follows the pairs of one tile: dBias where it is the tile of dS, dQ, dV and dK. */
template <class C, int MODE, class Bias>
DEV_FN void attn_bwd_products(dev_acc<typename C::key_split> &dk, dev_acc<typename C::key_split> &dv, const attn_unit &u,
                              const stw_attn_launch &l, char *smem, int stage, uint32_t at, int block, const Bias &bias, int wave, int lane) {
    typedef typename C::T T;
    const stw_attn_params &p = l.p;
    const dev_smem_tile<typename C::rows> q = C::q(smem, stage), dout = C::dout(smem, stage);
    const dev_smem_tile<typename C::pairs> pz = C::p(smem), ds = C::ds(smem);
    bool tiny = attn_is_tiny<C>(u, C::stats(smem, stage));
    if ((p.outputs & 0x07u) == 0x07u && !(p.features & STW_FEAT_DETERMINISTIC) && !tiny) {
        attn_dq<C> dq;
        attn_dq_of<C>(dq, l, at, smem, wave, lane);
        dq.half = 0;
        mma_AtB(dv, pz, dout, dq, wave, lane);
        if (MODE != ATTN_BIASED && (C::HD > 64) == (C::rows::PARTS == 1)) dev_part(l.never != 0); /* elsewhere registers are spilled with it */
        dq.half = 1;
        if constexpr (MODE == ATTN_BIASED) {
            dev_halves_arrive_behind_product(C::weights_end(smem));
            if (l.bias_direct) {
                attn_bias_store<typename C::pairs> to = bias();
                if (!attn_bias_side<C>::fits(to)) {
                    attn_bias_write_tile<C>(to, smem);
                    to.rows = 0;
                }
                attn_bias_side<C> out = attn_bias_side<C>::of(to, smem);
                attn_two_sides<attn_dq<C>, attn_bias_side<C>> both = {dq, out};
                mma_AtB(dk, ds, q, both, wave, lane);
                return;
            }
        }
        mma_AtB(dk, ds, q, dq, wave, lane);
        return;
    }
    if (MODE == ATTN_BIASED && l.bias_direct) attn_bias_write_tile<C>(bias(), smem);
    if constexpr (dev_flushes<T>::yes) {
        if (tiny) {
            attn_bwd_products_apart<C, MODE, dev_unflushed>(dk, dv, u, l, smem, stage, at, block, true, wave, lane);
            return;
        }
    }
    attn_bwd_products_apart<C, MODE, dev_nothing>(dk, dv, u, l, smem, stage, at, block, !dev_flushes<T>::yes && tiny, wave, lane);
}

/* dK and dV, those that are asked for, to their tensors; `drained`: there they are added to what was stored before. */
template <class C> DEV_FN void attn_bwd_store(const attn_unit &u, const stw_attn_launch &l, dev_acc<typename C::key_split> &dk,
                                              dev_acc<typename C::key_split> &dv, char *smem, bool to_dk, bool to_dv,
                                              bool drained, int wave, int lane) {
    const stw_attn_params &p = l.p;
    if (to_dv && (p.outputs & 0x04u)) {
        bool add = (p.accumulate & 0x04u) || (drained && p.dv_dtype == 3u);
        attn_store_keys<C>(u, dv, p.dv, p.dtype, p.dv_dtype, add, (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v, 1.0f,
                           smem + C::AT_V, wave, lane);
        dv.clear();
    }
    if (to_dk && (p.outputs & 0x02u)) {
        bool add = (p.accumulate & 0x02u) || (drained && p.dk_dtype == 3u);
        attn_store_keys<C>(u, dk, p.dk, p.dtype, p.dk_dtype, add, (l.vectors & STW_VECTOR_DK) != 0, (int)p.head_dim_qk, p.scale,
                           smem + C::AT_K, wave, lane);
        dk.clear();
    }
}

/* The matrix unit truncates its sums: 16-bit outputs hide that, f32 ones are stored every 512 rows, and what follows
 * is added in ordinary arithmetic. Only the kernels with all features know this. */
#define ATTN_DRAIN_STEPS(C) (512 / C::BM)

/* A unit's first loads: its keys and query block, and the bias of both. */
template <class C, int MODE> DEV_FN void attn_bwd_begin(attn_walk<C> &walk, attn_bias_walk<C> &bias, attn_values<C> &values, attn_unit &u, const stw_attn_launch &l,
                                              char *smem, int stage, int wave, int lane) {
    if (u.first >= u.end) return;
    walk = attn_walk<C>::begin(u, l);
    attn_load_keys<C>(u, l, u.kv_head, smem, walk.thread);
    if (C::VALUES_HELD) {
        dev_copy_commit();
        dev_copy_wait();
        dev_barrier();
        attn_mark_keys<typename C::keys, C::THREADS>(u, C::k(smem).data, C::v(smem).data);
        values.take(smem, wave, lane);
        dev_barrier();
    }
    walk.load(u, l, smem, stage);
    if constexpr (MODE == ATTN_BIASED) {
        bias = attn_bias_walk<C>::begin(walk, u, l);
        attn_bias_part<C>::fetch(bias, walk, u, l, smem, wave, lane);
    }
    dev_copy_commit();
}

/* A block of threads takes units until none is left. The loads of the next one run while this one's dK and dV are
 * stored; what it is has been found out before. Conditions are made uniform for the compiler, which then keeps the
 * walk in registers that a wave shares. */
template <class C, int MODE> DEV_FN void attn_bwd_main(const stw_attn_launch &l, char *smem) {
    typedef attn_bias_store<typename C::pairs> bias_store;
    enum { DRAINS = MODE == ATTN_ALL && sizeof(typename C::T) == 2, QUEUES = LEAF_QUEUES, KEYS_DIRECT = attn_keys_direct<C>::yes };
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_unit *units = (attn_unit *)(void *)(smem + C::AT_UNIT); /* this one and the next, in turn */
    if (dev_thread() == 0) dev_halves_init(C::step_end(smem), C::WARPS);
    if (MODE == ATTN_BIASED && dev_thread() == 0) dev_halves_init(C::weights_end(smem), C::WARPS);
    attn_unit_take_now(units[0], l, wave, lane);
    dev_acc<typename C::key_split> dk, dv;
    dk.clear();
    dv.clear();
    attn_values<C> values;
    attn_walk<C> walk;
    attn_bias_walk<C> tile; /* ATTN_BIASED */
    int now = 0, was = 0; /* the next steps', and that whose sums dK and dV are */
    bool live = dev_uniform(units[0].live) != 0, more = false, summed = false;
    int stage = 0, steps = 0, step = 0;
    for (;;) {
        bool enters = live && !more;
        if (KEYS_DIRECT && enters) attn_bwd_begin<C, MODE>(walk, tile, values, units[now], l, smem, stage, wave, lane);
        if (summed)
            attn_bwd_store<C>(units[was], l, dk, dv, smem, !more || p.dk_dtype == 3u, !more || p.dv_dtype == 3u,
                              DRAINS && step > ATTN_DRAIN_STEPS(C), wave, dev_keep(lane));
        if (!live) return;
        if (!KEYS_DIRECT && enters) {
            dev_barrier();
            attn_bwd_begin<C, MODE>(walk, tile, values, units[now], l, smem, stage, wave, lane);
        }
        attn_unit &u = units[now], &next = units[now ^ 1];
        if (enters) {
            attn_place at = {0, 0, false};
            if (QUEUES && dev_thread() == 0 && l.units > l.blocks) at = attn_unit_take(l); /* few units: one for every block of threads */
            dev_copy_wait();
            dev_barrier(); /* the keys have arrived, and the unit before has been stored */
            if (QUEUES && wave == 0) attn_unit_fetch(next, l, at, lane);
            more = dev_uniform(u.first) < dev_uniform(u.end);
            step = 0;
            if (more && !C::VALUES_HELD) {
                attn_mark_keys<typename C::keys, C::THREADS>(u, C::k(smem).data, C::v(smem).data);
                if (dev_flushes<typename C::T>::yes) dev_barrier();
            }
        }
        for (bool full = false; more && !full; ++step, ++steps) {
            full = DRAINS && step % ATTN_DRAIN_STEPS(C) == ATTN_DRAIN_STEPS(C) - 1 && (p.dk_dtype == 3u || p.dv_dtype == 3u);
            int block = walk.block, h = walk.h;
            uint32_t at = walk.at;
            bool inner = walk.is_inner();
            more = walk.next(u, l);
            if ((MODE & ATTN_BIASED) || C::rows::PARTS != 1 || C::CROWDED) lane = dev_keep(lane); /* what is derived from it is not kept over the loop: registers are taken */
            attn_ahead<C> ahead;
            if (C::STAGES == 2 && more) ahead.fetch(walk, l);
            auto bias = [&]() {
                attn_bias_store<typename C::pairs> to = attn_bias_of<C>(u, l, h, block);
                if (MODE == ATTN_BIASED) to.to = (char *)tile.dbias;
                return to;
            };
            attn_bwd_pairs<C, MODE, bias_store>(u, l, smem, values, stage, h, block, inner, bias, [&]() {
                if (C::STAGES == 1) return;
                if (steps) dev_halves_wait(C::step_end(smem), steps - 1);
                if (!more) return;
                ahead.place(walk, u, l, smem, stage ^ 1);
                dev_copy_commit();
            }, wave, lane);
            dev_copy_wait();
            dev_barrier();
            if (MODE == ATTN_ALL && bias_store::from_tile(l)) attn_bias_write_tile<C>(bias(), smem);
            if (C::STAGES == 1 && more) ahead.fetch(walk, l);
            attn_bwd_products<C, MODE>(dk, dv, u, l, smem, stage, at, block, bias, wave, lane);
            if (C::STAGES == 2) {
                dev_halves_arrive(C::step_end(smem));
                stage ^= 1;
                if constexpr (MODE == ATTN_BIASED) {
                    static_assert(C::STAGES == 2, "the bias comes a step ahead");
                    dev_halves_wait(C::weights_end(smem), steps);
                    if (more) {
                        tile.next(walk, u, l);
                        attn_bias_part<C>::fetch(tile, walk, u, l, smem, wave, lane);
                    }
                    dev_copy_commit();
                }
            } else if (more) {
                dev_barrier();
                ahead.place(walk, u, l, smem, 0);
                dev_copy_commit();
                dev_copy_wait();
                dev_barrier();
            }
        }
        was = now;
        summed = true;
        if (more) continue;
        dev_copy_wait(); /* what the next unit is */
        dev_barrier();   /* and nobody reads these keys and queries any more */
        now ^= 1;
        live = QUEUES && dev_uniform(next.live) != 0;
    }
}

#endif
