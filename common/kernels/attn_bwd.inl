/* SPDX-License-Identifier: MIT
 *
 * Main loop of the backward pass. A block of threads owns bn keys of one (batch, kv head):
 *
 *     keys  +----+        for each query head of the group, each query block that meets the keys:
 *      j0   |####|          S = Q K^T, dP = dO V^T, P and dS (attn_pairs.inl), both to shared memory
 *           +----+          dV += P^T dO, dK += dS^T Q     in registers to the end
 *     queries i0..          dQ[i0..] += dS K               into f32 sums that the finish kernel converts
 *
 * Loads of the next query block run under the products of this one (two stages), or after them (one). dQ sums
 * lie in the order of the registers, so that a wave's addition touches whole lines. In deterministic mode the
 * key blocks of a query block add in ascending order: a counter each says whose turn it is, and units are
 * handed out by a ticket, so the one whose turn it is has always been started. Instantiated by the leaf's
 * table of variants. */

#include "attn_pairs.inl"

#include "attn_bwd_walk.inl"

#include "attn_bwd_tiny.inl"

/* A product of rows of the tile: queries with keys, or dO with values. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_product_pairs(dev_acc<S> &acc, const typename C::T *rows, const typename C::T *keys, bool unrounded, int wave,
                               int lane) {
    dev_rounded rounded;
    if (unrounded) dev_multiply_beside<false, false, C::HD, S, typename C::rows, typename C::keys>(acc, rows, keys, rounded, wave, lane);
    else dev_multiply<false, false, C::HD, S, typename C::rows, typename C::keys>(acc, rows, keys, wave, lane);
}

/* P.Z and dS' of one tile, into shared memory. `inner`: all of its pairs are visible; `bias` (FULL) gives the
 * taker of dS; `between` runs after the first product. */
template <class C, bool FULL, class Bias, class Taker, class Between> DEV_FN void attn_bwd_pairs(const attn_unit &u, const stw_attn_launch &l, char *smem,
                                                         const attn_values<C> &values, int stage, int h, int block, bool inner, const Taker &bias,
                                                         const Between &between, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::pair_split S;
    const stw_attn_params &p = l.p;
    const T *q = (const T *)(smem + C::AT_Q + stage * C::rows::BYTES);
    const T *dout = (const T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
    const T *k = (const T *)(smem + C::AT_K), *v = (const T *)(smem + C::AT_V);
    const float *stats = (const float *)(smem + C::AT_STATS) + stage * C::STATS;
    int64_t i0 = (int64_t)block * C::BM;
    dev_acc<S> s, dp;
    dev_acc<S>::clear(s);
    dev_acc<S>::clear(dp);
    if (FULL) {
        dev_mask mask = dev_mask::of(u.seq, i0, u.j0, C::BM, C::BN);
        uint64_t keep = ~(uint64_t)0;
        float keep_scale = 1.0f;
        if (p.features & STW_FEAT_DROPOUT) {
            stw_dropout_stream stream = stw_dropout_stream_of(&p, u.b, h, u.seq.q, u.seq.kv);
            keep = attn_keep_bits<S>(p, stream, mask, i0, u.j0, wave, lane);
            keep_scale = p.dropout_scale;
        }
        dev_logit logit = dev_logit::of(p, u.seq, u.b, h, i0, u.j0);
        {
            dev_bias_words<S> words;
            dev_bias_words<S>::load(words, logit, mask, wave, lane);
            attn_product_pairs<C>(s, q, k, Bias::unrounded(l), wave, lane);
            between();
            attn_pairs_logits<S>(s, logit, words, mask, wave, lane);
        }
        attn_pairs_weights<C>(s, stats, mask, keep, keep_scale, Bias::OPERANDS ? (T *)(smem + C::AT_P) : (T *)nullptr, wave, lane);
        if (C::VALUES_HELD) attn_values<C>::product(dp, dout, values, wave, lane);
        else attn_product_pairs<C>(dp, dout, v, Bias::unrounded(l), wave, lane);
        attn_pairs_scores<C>(s, dp, stats, keep_scale, wave, lane);
        if (Bias::wanted(l)) attn_pairs_take<Bias>(dp, bias(), wave, lane);
        if (Bias::OPERANDS && (p.features & STW_FEAT_SOFTCAP)) {
            dev_rounded rounded;
            dev_acc<S>::clear(s);
            dev_multiply_beside<false, false, C::HD, S, typename C::rows, typename C::keys>(s, q, k, rounded, wave, lane);
            attn_pairs_slopes<S>(dp, s, logit);
        }
    } else { /* the exponentials run under the products of dP */
        static_assert(FULL || !C::VALUES_HELD, "V is held by kernels with all features only");
        dev_multiply<false, false, C::HD, S, typename C::rows, typename C::keys>(s, q, k, wave, lane);
        between();
        attn_exp_side<C> exponentials = attn_exp_side<C>::of(s, stats, p.scale, wave, lane);
        dev_multiply_beside<false, false, C::HD, S, typename C::rows, typename C::keys>(dp, dout, v, exponentials, wave, lane);
        if (inner && stats[2 * C::BM] == 0.0f) {
            attn_pairs_plain<C>(s, dp, stats, wave, lane);
        } else {
            dev_mask mask = dev_mask::of(u.seq, i0, u.j0, C::BM, C::BN);
            attn_pairs_masked<C>(s, dp, stats, mask, wave, lane);
        }
    }
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n) {
            if (!Bias::OPERANDS) continue;
            int row = S::row0(wave) + m * LEAF_MMA_M, col = S::col0(wave) + n * LEAF_MMA_N;
            if (!FULL) leaf_store_acc<typename C::pairs>((T *)(smem + C::AT_P), row, col, s.v[m][n], lane);
            leaf_store_acc<typename C::pairs>((T *)(smem + C::AT_DS), row, col, dp.v[m][n], lane);
        }
}

/* The tile of dBias, where the main loop writes it. */
template <class C> DEV_FN attn_bias_store attn_bias_of(const attn_unit &u, const stw_attn_launch &l, int h, int block) {
    const stw_bias_param &t = l.p.dbias;
    attn_bias_store bias = {nullptr, t.query, l.p.dbias_dtype, 0, 0, (l.p.accumulate & 0x08u) != 0};
    bias.rows = (int)stw_clamp_i64(u.seq.q.used - (int64_t)block * C::BM, 0, C::BM);
    bias.cols = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN);
    bias.to = (char *)t.data + (u.b * t.batch + h * t.head + (int64_t)block * C::BM * t.query + u.j0) * (bias.dtype == 3u ? 4 : 2);
    return bias;
}

/* dS' in shared memory is the tile: whole vectors to dBias. */
template <class C> DEV_FN void attn_bias_write_tile(const attn_bias_store &b, const char *smem) {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::pairs, C::THREADS> copy;
    enum { VECTOR = C::pairs::VECTOR };
    const T *tile = (const T *)(smem + C::AT_DS);
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
    DEV_FN void add(attn_dq &q, int first, int end) {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            if (f >= first && f < end) dev_add_acc<C::THREADS>(q.to, f, q.acc.v[f / S::NT][f % S::NT]);
    }
    DEV_FN void add_exact(attn_dq &q) {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                dev_add_exact(q.to + dev_sum_at(f, i, (int)dev_thread(), C::THREADS), q.acc.v[f / S::NT][f % S::NT][i]);
    }
    DEV_FN void step(attn_dq &q, int k, int steps) {
        add(q, COUNT * (q.half * steps + k) / (2 * steps), COUNT * (q.half * steps + k + 1) / (2 * steps));
    }
};

/* dS K of one tile. */
template <class C> DEV_FN void attn_dq_of(attn_dq<C> &q, const stw_attn_launch &l, uint32_t at, const char *smem, int wave,
                                          int lane) {
    typedef typename C::T T;
    dev_acc<typename C::row_split>::clear(q.acc);
    dev_multiply<false, true, C::BN, typename C::row_split, typename C::pairs, typename C::keys>(
        q.acc, (const T *)(smem + C::AT_DS), (const T *)(smem + C::AT_K), wave, lane);
    q.to = l.dq + (int64_t)at * (C::BM * C::HD);
}

/* Deterministic: adds when it is this key block's turn. */
template <class C> DEV_FN void attn_dq_in_turn(attn_dq<C> &q, const stw_attn_launch &l, const attn_unit &u, uint32_t at,
                                               int block, bool tiny) {
    uint32_t mine = (uint32_t)(u.block - stw_key_blocks(&u.seq, C::BM, C::BN, block).first);
    if (dev_thread() == 0)
        while (dev_load_acquire(l.turns + at) != mine) {}
    dev_barrier();
    if (tiny) attn_dq<C>::add_exact(q);
    else attn_dq<C>::add(q, 0, attn_dq<C>::COUNT);
    dev_fence();
    dev_barrier();
    if (dev_thread() == 0) dev_store_release(l.turns + at, mine + 1);
}

#include "attn_bwd_keys.inl"

/* What follows the pairs of one tile: dQ, dV and dK. */
template <class C> DEV_FN void attn_bwd_products(dev_acc<typename C::key_split> &dk, dev_acc<typename C::key_split> &dv,
                                                 const attn_unit &u, const stw_attn_launch &l, const char *smem, int stage,
                                                 uint32_t at, int block, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::key_split S;
    const stw_attn_params &p = l.p;
    const T *q = (const T *)(smem + C::AT_Q + stage * C::rows::BYTES);
    const T *dout = (const T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
    const T *pz = (const T *)(smem + C::AT_P), *ds = (const T *)(smem + C::AT_DS);
    bool tiny = attn_is_tiny<C>(u, (const float *)(smem + C::AT_STATS) + stage * C::STATS);
    if ((p.outputs & 0x07u) == 0x07u && !(p.features & STW_FEAT_DETERMINISTIC) && !tiny) {
        attn_dq<C> dq;
        attn_dq_of<C>(dq, l, at, smem, wave, lane);
        dq.half = 0;
        dev_multiply_beside<true, true, C::BM, S, typename C::pairs, typename C::rows>(dv, pz, dout, dq, wave, lane);
        if (C::HD > 64) dev_part(l.never != 0);
        dq.half = 1;
        dev_multiply_beside<true, true, C::BM, S, typename C::pairs, typename C::rows>(dk, ds, q, dq, wave, lane);
        return;
    }
    if (p.outputs & 0x01u) {
        attn_dq<C> dq;
        attn_dq_of<C>(dq, l, at, smem, wave, lane);
        if (p.features & STW_FEAT_DETERMINISTIC) attn_dq_in_turn<C>(dq, l, u, at, block, tiny);
        else if (tiny) attn_dq<C>::add_exact(dq);
        else attn_dq<C>::add(dq, 0, attn_dq<C>::COUNT);
    }
    if (p.outputs & 0x04u) dev_multiply<true, true, C::BM, S, typename C::pairs, typename C::rows>(dv, pz, dout, wave, lane);
    if (p.outputs & 0x02u) dev_multiply<true, true, C::BM, S, typename C::pairs, typename C::rows>(dk, ds, q, wave, lane);
}

template <class C, bool FULL> DEV_FN void attn_bwd_main(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_unit &u = attn_unit_of<C>(l, smem);
    if (!u.live) return;
    dev_acc<typename C::key_split> dk, dv;
    dev_acc<typename C::key_split>::clear(dk);
    dev_acc<typename C::key_split>::clear(dv);
    attn_values<C> values;
    if (u.first < u.end) {
        attn_walk<C> walk = attn_walk<C>::begin(u, l);
        attn_load_keys<C>(u, l, smem, walk.thread);
        if (C::VALUES_HELD) {
            dev_copy_commit();
            dev_copy_wait();
            dev_barrier();
            attn_mark_keys<typename C::keys, C::THREADS>(u, (const typename C::T *)(smem + C::AT_K),
                                                         (const typename C::T *)(smem + C::AT_V));
            attn_values<C>::take(values, smem, wave, lane);
            dev_barrier();
        }
        attn_walk<C>::load(walk, u, l, smem, 0);
        dev_copy_commit();
        if (dev_thread() == 0) dev_halves_init(C::step_end(smem), C::WARPS);
        dev_copy_wait();
        dev_barrier();
        if (!C::VALUES_HELD)
            attn_mark_keys<typename C::keys, C::THREADS>(u, (const typename C::T *)(smem + C::AT_K),
                                                         (const typename C::T *)(smem + C::AT_V));
        int stage = 0, step = 0;
        for (bool more = true; more; ++step) {
            int block = walk.block, h = walk.h;
            uint32_t at = walk.at;
            bool inner = block >= walk.inner_first && block < walk.inner_end;
            more = attn_walk<C>::next(walk, u, l);
            if (FULL) lane = dev_keep(lane); /* what is derived from it is not kept over the loop: registers are taken */
            auto bias = [&]() { return attn_bias_of<C>(u, l, h, block); };
            attn_bwd_pairs<C, FULL, attn_bias_store>(u, l, smem, values, stage, h, block, inner, bias, [&]() {
                if (C::STAGES == 1) return;
                if (step) dev_halves_wait(C::step_end(smem), step - 1);
                if (!more) return;
                attn_walk<C>::load(walk, u, l, smem, stage ^ 1);
                dev_copy_commit();
            }, wave, lane);
            dev_copy_wait();
            dev_barrier();
            if (FULL && attn_bias_store::from_tile(l)) attn_bias_write_tile<C>(bias(), smem);
            attn_bwd_products<C>(dk, dv, u, l, smem, stage, at, block, wave, lane);
            if (C::STAGES == 2) {
                dev_halves_arrive(C::step_end(smem));
                stage ^= 1;
            } else if (more) {
                dev_barrier();
                attn_walk<C>::load(walk, u, l, smem, 0);
                dev_copy_commit();
                dev_copy_wait();
                dev_barrier();
            }
        }
    }
    if (p.outputs & 0x04u)
        attn_store_keys<C>(u, dv, p.dv, p.dtype, p.dv_dtype, (p.accumulate & 0x04u) != 0, (l.vectors & STW_VECTOR_DV) != 0,
                           (int)p.head_dim_v, 1.0f, smem + C::AT_V, wave, lane);
    if (p.outputs & 0x02u)
        attn_store_keys<C>(u, dk, p.dk, p.dtype, p.dk_dtype, (p.accumulate & 0x02u) != 0, (l.vectors & STW_VECTOR_DK) != 0,
                           (int)p.head_dim_qk, p.scale, smem + C::AT_K, wave, lane);
}
