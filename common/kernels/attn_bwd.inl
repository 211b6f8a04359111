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

/* What a block of threads works on. Lies in shared memory: registers are taken. */
struct attn_unit {
    stw_attn_seq seq;
    int64_t b, j0;
    int kv_head, block;
    int live;               /* the block has rows to write                        */
    int k_counts, v_counts; /* not all elements are tiny: see attn_bwd_tiny.inl   */
};
static_assert(sizeof(attn_unit) <= STW_UNIT_BYTES, "room for the unit");

#include "attn_bwd_tiny.inl"

/* One thread finds out; in deterministic mode units are taken in the order of arrival. */
template <class C> DEV_FN attn_unit &attn_unit_of(const stw_attn_launch &l, char *smem) {
    attn_unit &u = *(attn_unit *)(void *)(smem + C::AT_UNIT);
    if (dev_thread() == 0) {
        int64_t number = dev_unit();
        if (l.p.features & STW_FEAT_DETERMINISTIC) number = dev_fetch_add(l.ticket, 1);
        u.live = u.k_counts = u.v_counts = 0;
        if (number < l.units) {
            int64_t head = number / l.k_blocks;
            u.block = (int)(number % l.k_blocks);
            u.kv_head = (int)(head % l.p.heads_kv);
            u.b = head / l.p.heads_kv;
            u.j0 = (int64_t)u.block * C::BN;
            u.seq = stw_attn_seq_of(&l.p, C::BM, u.b);
            u.live = u.j0 < u.seq.kv.rows;
        }
    }
    dev_barrier();
    return u;
}

/* Q, dO and statistics of query block `block` of head h into a stage. PARTS: statistics lie in blocks of l.bm. */
template <class C, bool PARTS = false> DEV_FN void attn_load_queries(const attn_unit &u, const stw_attn_launch &l, char *smem, int stage,
                                                 int h, int block) {
    typedef typename C::T T;
    const stw_attn_params &p = l.p;
    T *q = (T *)(smem + C::AT_Q + stage * C::rows::BYTES), *dout = (T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
    float *stats = (float *)(smem + C::AT_STATS) + stage * C::STATS;
    dev_load_rows<typename C::rows, C::THREADS>(q, (const T *)p.q.data + dev_row(p.q, u.b, h, u.seq.q.first), p.q.seq,
                                                (int64_t)block * C::BM, u.seq.q_low, u.seq.q_end, (int)p.head_dim_qk,
                                                (l.vectors & STW_VECTOR_Q) != 0);
    dev_load_rows<typename C::rows, C::THREADS>(dout, (const T *)p.dout.data + dev_row(p.dout, u.b, h, u.seq.q.first),
                                                p.dout.seq, (int64_t)block * C::BM, u.seq.q_low, u.seq.q_end, (int)p.head_dim_v,
                                                (l.vectors & STW_VECTOR_DOUT) != 0);
    if (!PARTS) {
        const float *from = l.stats + (h * l.q_blocks + u.seq.q_block + block) * C::STATS;
        dev_load_floats<C::THREADS>(stats, from, C::STATS);
        return;
    }
    int larger = (int)l.bm / C::BM, first = block % larger * C::BM; /* blocks of the statistics are larger */
    const float *from = l.stats + (h * l.q_blocks + u.seq.q_block + block / larger) * (2 * l.bm + STW_STATS_PAD);
    dev_load_floats<C::THREADS>(stats, from + first, C::BM);
    dev_load_floats<C::THREADS>(stats + C::BM, from + l.bm + first, C::BM);
    dev_load_floats<C::THREADS>(stats + 2 * C::BM, from + 2 * l.bm, STW_STATS_PAD);
}

template <class C> DEV_FN void attn_load_keys(const attn_unit &u, const stw_attn_launch &l, char *smem) {
    typedef typename C::T T;
    const stw_attn_params &p = l.p;
    dev_load_rows<typename C::keys, C::THREADS>((T *)(smem + C::AT_K),
                                                (const T *)p.k.data + dev_row(p.k, u.b, u.kv_head, u.seq.kv.first),
                                                p.k.seq, u.j0, u.seq.k_low, u.seq.k_end, (int)p.head_dim_qk,
                                                (l.vectors & STW_VECTOR_K) != 0);
    dev_load_rows<typename C::keys, C::THREADS>((T *)(smem + C::AT_V),
                                                (const T *)p.v.data + dev_row(p.v, u.b, u.kv_head, u.seq.kv.first),
                                                p.v.seq, u.j0, u.seq.k_low, u.seq.k_end, (int)p.head_dim_v,
                                                (l.vectors & STW_VECTOR_V) != 0);
}

/* P.Z and dS' of one tile, into shared memory. `bias` (FULL) takes dS. */
template <class C, bool FULL, class Bias> DEV_FN void attn_bwd_pairs(const attn_unit &u, const stw_attn_launch &l, char *smem,
                                                         int stage, int h, int block, Bias &bias, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::pair_split S;
    const stw_attn_params &p = l.p;
    const T *q = (const T *)(smem + C::AT_Q + stage * C::rows::BYTES);
    const T *dout = (const T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
    const float *stats = (const float *)(smem + C::AT_STATS) + stage * C::STATS;
    int64_t i0 = (int64_t)block * C::BM;
    dev_mask mask = dev_mask::of(u.seq, i0, u.j0, C::BM, C::BN);
    uint64_t keep = 0;
    if (FULL && (p.features & STW_FEAT_DROPOUT)) {
        stw_dropout_stream stream = stw_dropout_stream_of(&p, u.b, h, u.seq.q, u.seq.kv);
        keep = attn_keep_bits<S>(p, stream, mask, i0, u.j0, wave, lane);
    }
    dev_acc<S> s, dp;
    dev_acc<S>::clear(s);
    dev_acc<S>::clear(dp);
    const T *k = (const T *)(smem + C::AT_K), *v = (const T *)(smem + C::AT_V);
    if (FULL && Bias::wanted(bias)) { /* dBias shows S and dP unrounded */
        dev_rounded rounded;
        dev_multiply_beside<false, false, C::HD, S, typename C::rows, typename C::keys>(s, q, k, rounded, wave, lane);
        dev_multiply_beside<false, false, C::HD, S, typename C::rows, typename C::keys>(dp, dout, v, rounded, wave, lane);
    } else {
        dev_multiply<false, false, C::HD, S, typename C::rows, typename C::keys>(s, q, k, wave, lane);
        dev_multiply<false, false, C::HD, S, typename C::rows, typename C::keys>(dp, dout, v, wave, lane);
    }
    if (FULL) {
        dev_logit logit = dev_logit::of(p, u.seq, u.b, h, i0, u.j0);
        attn_pairs_full<C>(s, dp, stats, mask, logit, keep, p.dropout_scale, bias, wave, lane);
    } else if (dev_mask::covers(mask, C::BM, C::BN) && stats[2 * C::BM] == 0.0f) {
        attn_pairs_plain<C, false>(s, dp, stats, mask, p.scale, wave, lane);
    } else {
        attn_pairs_plain<C, true>(s, dp, stats, mask, p.scale, wave, lane);
    }
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n) {
            if (!Bias::OPERANDS) continue;
            int row = S::row0(wave) + m * LEAF_MMA_M, col = S::col0(wave) + n * LEAF_MMA_N;
            leaf_store_acc<typename C::pairs>((T *)(smem + C::AT_P), row, col, s.v[m][n], lane);
            leaf_store_acc<typename C::pairs>((T *)(smem + C::AT_DS), row, col, dp.v[m][n], lane);
        }
}

/* The tile of dBias, where the main loop writes it. */
template <class C, bool FULL> DEV_FN attn_bias_store attn_bias_of(const attn_unit &u, const stw_attn_launch &l,
                                                                  int h, int block) {
    const stw_bias_param &t = l.p.dbias;
    attn_bias_store bias = {nullptr, t.query, l.p.dbias_dtype, 0, 0, (l.p.accumulate & 0x08u) != 0};
    if (!FULL || !l.bias_direct) return bias;
    bias.rows = (int)stw_clamp_i64(u.seq.q.used - (int64_t)block * C::BM, 0, C::BM);
    bias.cols = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN);
    bias.to = (char *)t.data + (u.b * t.batch + h * t.head + (int64_t)block * C::BM * t.query + u.j0) * (bias.dtype == 3u ? 4 : 2);
    return bias;
}

/* dQ of one tile on its way to the sums of its rows: all at once, or in parts beside the products of dK. */
template <class C> struct attn_dq {
    typedef typename C::row_split S;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    dev_acc<S> acc;
    float *to;
    DEV_FN void add(attn_dq &q, int first, int end) {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                if (f >= first && f < end) dev_add(q.to + (f * LEAF_ACC + i) * C::THREADS, q.acc.v[f / S::NT][f % S::NT][i]);
    }
    DEV_FN void add_exact(attn_dq &q) {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                dev_add_exact(q.to + (f * LEAF_ACC + i) * C::THREADS, q.acc.v[f / S::NT][f % S::NT][i]);
    }
    DEV_FN void step(attn_dq &q, int k, int steps) { add(q, COUNT * k / steps, COUNT * (k + 1) / steps); }
};

/* dS K of one tile. */
template <class C> DEV_FN void attn_dq_of(attn_dq<C> &q, const stw_attn_launch &l, const attn_unit &u, const char *smem,
                                          int h, int block, int wave, int lane) {
    typedef typename C::T T;
    q.to = l.dq + (h * l.q_blocks + u.seq.q_block + block) * (C::BM * C::HD) + dev_thread();
    dev_acc<typename C::row_split>::clear(q.acc);
    dev_multiply<false, true, C::BN, typename C::row_split, typename C::pairs, typename C::keys>(
        q.acc, (const T *)(smem + C::AT_DS), (const T *)(smem + C::AT_K), wave, lane);
}

/* Deterministic: adds when it is this key block's turn. */
template <class C> DEV_FN void attn_dq_in_turn(attn_dq<C> &q, const stw_attn_launch &l, const attn_unit &u, int h,
                                               int block, bool tiny) {
    uint32_t *turn = l.turns + (h * l.q_blocks + u.seq.q_block + block);
    uint32_t mine = (uint32_t)(u.block - stw_key_blocks(&u.seq, C::BM, C::BN, block).first);
    if (dev_thread() == 0)
        while (dev_load_acquire(turn) != mine) {}
    dev_barrier();
    if (tiny) attn_dq<C>::add_exact(q);
    else attn_dq<C>::add(q, 0, attn_dq<C>::COUNT);
    dev_fence();
    dev_barrier();
    if (dev_thread() == 0) dev_store_release(turn, mine + 1);
}

/* The unit's rows of dK or dV: sums for keys in use, zeros up to the sequence's end. */
template <class C> DEV_FN void attn_store_keys(const attn_unit &u, const dev_acc<typename C::key_split> &acc,
                                               const stw_tensor_param &to, uint32_t dtype, bool add, bool vectors,
                                               int cols, float scale, int wave, int lane) {
    typedef typename C::key_split S;
    int used = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN), end = (int)stw_smaller(C::BN, u.seq.kv.rows - u.j0);
    int64_t base = dev_row(to, u.b, u.kv_head, u.seq.kv.first + u.j0);
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                int64_t at = base + row * to.seq + col;
                if (row >= (add ? used : end) || col >= cols) continue;
                float x = row < used ? acc.v[m][n][i] * scale : 0.0f;
                if (LEAF_ACC_PAIRS && vectors && !add) {
                    float y = row < used ? acc.v[m][n][i ^ 1] * scale : 0.0f;
                    if (!(i & 1)) dev_store_any_pair(to.data, at, dtype, x, y);
                } else {
                    dev_store_any(to.data, at, dtype, add ? ((const float *)to.data)[at] + x : x);
                }
            }
}

template <class C, bool FULL> DEV_FN void attn_bwd_main(const stw_attn_launch &l, char *smem) {
    typedef typename C::T T;
    typedef typename C::key_split S;
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_unit &u = attn_unit_of<C>(l, smem);
    if (!u.live) return;
    stw_range range = stw_query_blocks(&u.seq, C::BM, C::BN, u.block);
    dev_acc<S> dk, dv;
    dev_acc<S>::clear(dk);
    dev_acc<S>::clear(dv);
    int first = (int)range.first, end = (int)range.end;
    int h = u.kv_head * (int)p.group, last = h + (int)p.group, block = first;
    if (first < end) {
        attn_load_keys<C>(u, l, smem);
        attn_load_queries<C>(u, l, smem, 0, h, block);
        dev_copy_commit();
    } else {
        last = h;
    }
    int stage = 0;
    bool first_step = true;
    while (h < last) {
        int next_h = h, next = block + 1;
        if (next == end) next = first, ++next_h;
        dev_copy_wait();
        dev_barrier();
        if (C::STAGES == 2 && next_h < last) {
            attn_load_queries<C>(u, l, smem, stage ^ 1, next_h, next);
            dev_copy_commit();
        }
        if (first_step) attn_mark_keys<typename C::keys, C::THREADS>(u, (const T *)(smem + C::AT_K), (const T *)(smem + C::AT_V));
        first_step = false;
        attn_bias_store bias = attn_bias_of<C, FULL>(u, l, h, block);
        attn_bwd_pairs<C, FULL>(u, l, smem, stage, h, block, bias, wave, lane);
        dev_barrier();
        const T *q = (const T *)(smem + C::AT_Q + stage * C::rows::BYTES);
        const T *dout = (const T *)(smem + C::AT_DOUT + stage * C::rows::BYTES);
        if (p.outputs & 0x04u)
            dev_multiply<true, true, C::BM, S, typename C::pairs, typename C::rows>(dv, (const T *)(smem + C::AT_P), dout,
                                                                                    wave, lane);
        const T *ds = (const T *)(smem + C::AT_DS);
        bool beside = false; /* dQ is added beside the products of dK */
        if (p.outputs & 0x01u) {
            attn_dq<C> dq;
            attn_dq_of<C>(dq, l, u, smem, h, block, wave, lane);
            bool tiny = attn_is_tiny<C>(u, (const float *)(smem + C::AT_STATS) + stage * C::STATS);
            bool ordered = (p.features & STW_FEAT_DETERMINISTIC) != 0;
            beside = !ordered && !tiny && (p.outputs & 0x02u);
            if (ordered) attn_dq_in_turn<C>(dq, l, u, h, block, tiny);
            else if (tiny) attn_dq<C>::add_exact(dq);
            else if (!beside) attn_dq<C>::add(dq, 0, attn_dq<C>::COUNT);
            if (beside)
                dev_multiply_beside<true, true, C::BM, S, typename C::pairs, typename C::rows>(dk, ds, q, dq, wave, lane);
        }
        if ((p.outputs & 0x02u) && !beside)
            dev_multiply<true, true, C::BM, S, typename C::pairs, typename C::rows>(dk, ds, q, wave, lane);
        if (C::STAGES == 1 && next_h < last) {
            dev_barrier();
            attn_load_queries<C>(u, l, smem, 0, next_h, next);
            dev_copy_commit();
        }
        if (C::STAGES == 2) stage ^= 1;
        h = next_h;
        block = next;
    }
    if (p.outputs & 0x04u)
        attn_store_keys<C>(u, dv, p.dv, p.dv_dtype, (p.accumulate & 0x04u) != 0,
                           (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v, 1.0f, wave, lane);
    if (p.outputs & 0x02u)
        attn_store_keys<C>(u, dk, p.dk, p.dk_dtype, (p.accumulate & 0x02u) != 0,
                           (l.vectors & STW_VECTOR_DK) != 0, (int)p.head_dim_qk, p.scale, wave, lane);
}
