/* SPDX-License-Identifier: MIT
 *
 * Main loop of the backward pass for f32, on matrix units that multiply bf16 (common/device/parts.h): the walk of
 * attn_bwd.inl with operands that are split into three bf16 tiles when they arrive. Rows of the next query block
 * travel in registers under the products of this one (two stages) or are waited for (one: two blocks of threads
 * on a multiprocessor hide it). Included behind attn_bwd.inl, whose unit, turns and statistics it shares. */

template <int HD_, int BM_, int BN_, int STAGES_, int WARPS_> struct attn_parts_config {
    typedef float T;
    enum { HD = HD_, BM = BM_, BN = BN_, STAGES = STAGES_, WARPS = WARPS_, THREADS = WARPS_ * DEV_WAVE };
    typedef dev_tile<dev_bf16, BM, HD> rows;
    typedef dev_tile<dev_bf16, BN, HD> keys;
    typedef dev_tile<dev_bf16, BM, BN> pairs;
    typedef dev_split<float, BM, BN, WARPS> pair_split; /* columns by eights */
    typedef dev_split<dev_bf16, BN, HD, WARPS> key_split;
    typedef dev_split<dev_bf16, BM, HD, WARPS> row_split;
    typedef dev_parts_rows<rows, THREADS> arriving;
    enum {
        STATS = 2 * BM + (int)STW_STATS_PAD,
        AT_K = 0,
        AT_V = AT_K + LEAF_PARTS * keys::BYTES,
        AT_Q = AT_V + LEAF_PARTS * keys::BYTES,
        AT_DOUT = AT_Q + LEAF_PARTS * rows::BYTES,
        AT_P = AT_DOUT + LEAF_PARTS * rows::BYTES,
        AT_DS = AT_P + LEAF_PARTS * pairs::BYTES,
        AT_STATS = AT_DS + LEAF_PARTS * pairs::BYTES,
        AT_UNIT = AT_STATS + STATS * 4,
        BYTES = AT_UNIT + (int)STW_UNIT_BYTES
    };
    static_assert(BYTES == (int)STW_BWD_PARTS_SMEM(HD_, BM_, BN_), "host and device agree on tiles");
};

template <class C> DEV_FN void attn_parts_load_keys(const attn_unit &u, const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    dev_load_parts<typename C::keys, C::THREADS>((dev_bf16 *)(smem + C::AT_K),
                                                 (const float *)p.k.data + dev_row(p.k, u.b, u.kv_head, u.seq.kv.first),
                                                 p.k.seq, u.j0, u.seq.k_low, u.seq.k_end, (int)p.head_dim_qk,
                                                 (l.vectors & STW_VECTOR_K) != 0);
    dev_load_parts<typename C::keys, C::THREADS>((dev_bf16 *)(smem + C::AT_V),
                                                 (const float *)p.v.data + dev_row(p.v, u.b, u.kv_head, u.seq.kv.first),
                                                 p.v.seq, u.j0, u.seq.k_low, u.seq.k_end, (int)p.head_dim_v,
                                                 (l.vectors & STW_VECTOR_V) != 0);
}

/* Q and dO of a query block. */
template <class C> struct attn_parts_queries {
    typedef typename C::arriving rows;
    rows q, dout;
    DEV_FN void load(attn_parts_queries &x, const attn_unit &u, const stw_attn_launch &l, int h, int block) {
        const stw_attn_params &p = l.p;
        rows::load(x.q.v, 0, rows::COUNT, (const float *)p.q.data + dev_row(p.q, u.b, h, u.seq.q.first), p.q.seq,
                   (int64_t)block * C::BM, u.seq.q_low, u.seq.q_end, (int)p.head_dim_qk, (l.vectors & STW_VECTOR_Q) != 0);
        rows::load(x.dout.v, 0, rows::COUNT, (const float *)p.dout.data + dev_row(p.dout, u.b, h, u.seq.q.first), p.dout.seq,
                   (int64_t)block * C::BM, u.seq.q_low, u.seq.q_end, (int)p.head_dim_v, (l.vectors & STW_VECTOR_DOUT) != 0);
    }
    DEV_FN void store(const attn_parts_queries &x, char *smem) {
        rows::store(x.q.v, 0, rows::COUNT, (dev_bf16 *)(smem + C::AT_Q));
        rows::store(x.dout.v, 0, rows::COUNT, (dev_bf16 *)(smem + C::AT_DOUT));
    }
};

/* P and dS of a problem without features. MASKED: not every pair is visible, or a row's LSE is infinite. */
template <class C, bool MASKED> DEV_FN void attn_parts_plain(dev_acc<typename C::pair_split> &s, dev_acc<typename C::pair_split> &dp,
                                                             const float *stats, const dev_mask &mask, float scale, int wave,
                                                             int lane) {
    typedef typename C::pair_split S;
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                float p = dev_exp_f32(fmaf(s.v[m][n][i], scale, -stats[row])), ds = p * (dp.v[m][n][i] - stats[C::BM + row]);
                bool seen = p != 0.0f;
                if (MASKED) seen = seen && dev_mask::sees(mask, row, col) && !dev_is_infinite(stats[row]);
                s.v[m][n][i] = seen ? p : 0.0f;
                dp.v[m][n][i] = seen ? ds : 0.0f;
            }
}

/* P.Z and dS' of a problem with features; dS itself to dBias, where the main loop writes it. */
template <class C>
DEV_FN void attn_parts_full(dev_acc<typename C::pair_split> &s, dev_acc<typename C::pair_split> &dp, const float *stats,
                            const dev_mask &mask, const dev_logit &logit, const attn_keep<typename C::pair_split> &keep,
                            const stw_attn_launch &l, attn_bias_store &bias, int wave, int lane) {
    typedef typename C::pair_split S;
    const float keep_scale = l.p.dropout_scale;
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                float dot = s.v[m][n][i], flow = dp.v[m][n][i], lse = stats[row], p = 0.0f, ds = 0.0f, slope = 1.0f;
                if (dev_mask::sees(mask, row, col) && !dev_is_infinite(lse)) {
                    p = dev_exp_f32(dev_logit::value(logit, dot, row, col) - lse);
                    if (p != 0.0f) {
                        bool kept = attn_keep<S>::at(keep, (m * S::NT + n) * LEAF_ACC + i);
                        if (logit.features & STW_FEAT_DROPOUT) flow = kept ? flow * keep_scale : 0.0f;
                        ds = p * (flow - stats[C::BM + row]);
                        if (logit.features & STW_FEAT_DROPOUT) p = kept ? p * keep_scale : 0.0f;
                    }
                }
                if (l.bias_direct) attn_bias_store::take(bias, m, n, i, row, col, ds);
                if (logit.features & STW_FEAT_SOFTCAP) {
                    dev_tanh(dot * logit.scale / logit.softcap, &slope);
                    ds = ds == 0.0f ? 0.0f : ds * slope;
                }
                s.v[m][n][i] = p;
                dp.v[m][n][i] = ds;
            }
}

/* P.Z and dS' of one tile, into shared memory. */
template <class C> DEV_FN void attn_parts_pairs(const attn_unit &u, const stw_attn_launch &l, char *smem, int h, int block,
                                                int wave, int lane) {
    typedef typename C::pair_split S;
    const stw_attn_params &p = l.p;
    const float *stats = (const float *)(smem + C::AT_STATS);
    int64_t i0 = (int64_t)block * C::BM;
    dev_mask mask = dev_mask::of(u.seq, i0, u.j0, C::BM, C::BN);
    attn_keep<S> keep;
    attn_keep<S>::all(keep);
    if (p.features & STW_FEAT_DROPOUT) {
        stw_dropout_stream stream = stw_dropout_stream_of(&p, u.b, h, u.seq.q, u.seq.kv);
        attn_keep_fill<S>(keep, p, stream, mask, i0, u.j0, wave, lane);
    }
    dev_acc<S> s, dp;
    dev_acc<S>::clear(s);
    dev_acc<S>::clear(dp);
    dev_multiply_parts<false, false, C::HD, S, typename C::rows, typename C::keys>(
        s, (const dev_bf16 *)(smem + C::AT_Q), (const dev_bf16 *)(smem + C::AT_K), wave, lane);
    dev_multiply_parts<false, false, C::HD, S, typename C::rows, typename C::keys>(
        dp, (const dev_bf16 *)(smem + C::AT_DOUT), (const dev_bf16 *)(smem + C::AT_V), wave, lane);
    if (p.features & (STW_FEAT_BIAS | STW_FEAT_ALIBI | STW_FEAT_SOFTCAP | STW_FEAT_DROPOUT)) {
        dev_logit logit = dev_logit::of(p, u.seq, u.b, h, i0, u.j0);
        attn_bias_store bias = attn_bias_of<C>(u, l, h, block);
        attn_parts_full<C>(s, dp, stats, mask, logit, keep, l, bias, wave, lane);
    } else if (block >= u.inner_first && block < u.inner_end && stats[2 * C::BM] == 0.0f) {
        attn_parts_plain<C, false>(s, dp, stats, mask, p.scale, wave, lane);
    } else {
        attn_parts_plain<C, true>(s, dp, stats, mask, p.scale, wave, lane);
    }
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n) {
            int row = S::row0(wave) + m * LEAF_MMA_M, col = S::col0(wave) + n * LEAF_MMA_N;
            dev_store_parts<typename C::pairs>((dev_bf16 *)(smem + C::AT_P), row, col, s.v[m][n], lane);
            dev_store_parts<typename C::pairs>((dev_bf16 *)(smem + C::AT_DS), row, col, dp.v[m][n], lane);
        }
}

template <class C> DEV_FN void attn_parts_dq(const attn_unit &u, const stw_attn_launch &l, char *smem, int h, int block,
                                             int wave, int lane) {
    attn_dq<C> dq;
    uint32_t at = (uint32_t)(h * l.q_blocks + u.seq.q_block + block);
    dq.to = l.dq + (int64_t)at * (C::BM * C::HD);
    dev_acc<typename C::row_split>::clear(dq.acc);
    dev_multiply_parts<false, true, C::BN, typename C::row_split, typename C::pairs, typename C::keys>(
        dq.acc, (const dev_bf16 *)(smem + C::AT_DS), (const dev_bf16 *)(smem + C::AT_K), wave, lane);
    bool tiny = attn_is_tiny<C>(u, (const float *)(smem + C::AT_STATS));
    if (l.p.features & STW_FEAT_DETERMINISTIC) attn_dq_in_turn<C>(dq, l, u, at, block, tiny);
    else if (tiny) attn_dq<C>::add_exact(dq);
    else attn_dq<C>::add(dq, 0, attn_dq<C>::COUNT);
}

template <class C> DEV_FN void attn_bwd_parts(const stw_attn_launch &l, char *smem) {
    typedef typename C::key_split S;
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_unit &u = attn_unit_of<C>(l, smem);
    if (!u.live) return;
    dev_acc<S> dk, dv;
    dev_acc<S>::clear(dk);
    dev_acc<S>::clear(dv);
    int first = u.first, end = u.end, block = first;
    int h = u.kv_head * (int)p.group, last = first < end ? h + (int)p.group : h;
    attn_parts_queries<C> queries;
    if (h < last) {
        if (C::STAGES == 2) attn_parts_queries<C>::load(queries, u, l, h, block);
        attn_parts_load_keys<C>(u, l, smem);
    }
    for (bool marked = false; h < last; marked = true) {
        int next_h = h, next = block + 1;
        if (next == end) next = first, ++next_h;
        if (C::STAGES == 1) attn_parts_queries<C>::load(queries, u, l, h, block);
        dev_barrier(); /* the products of the last query block are done */
        dev_load_floats<C::THREADS, C::STATS>((float *)(smem + C::AT_STATS),
                                              l.stats + (h * l.q_blocks + u.seq.q_block + block) * C::STATS, (int)dev_thread());
        dev_copy_commit();
        attn_parts_queries<C>::store(queries, smem);
        dev_copy_wait();
        dev_barrier();
        if (!marked)
            attn_mark_keys<typename C::keys, C::THREADS>(u, (const dev_bf16 *)(smem + C::AT_K), (const dev_bf16 *)(smem + C::AT_V));
        if (C::STAGES == 2 && next_h < last) attn_parts_queries<C>::load(queries, u, l, next_h, next);
        attn_parts_pairs<C>(u, l, smem, h, block, wave, lane);
        dev_barrier();
        const dev_bf16 *ds = (const dev_bf16 *)(smem + C::AT_DS);
        if (p.outputs & 0x01u) attn_parts_dq<C>(u, l, smem, h, block, wave, lane);
        if (p.outputs & 0x04u)
            dev_multiply_parts<true, true, C::BM, S, typename C::pairs, typename C::rows>(
                dv, (const dev_bf16 *)(smem + C::AT_P), (const dev_bf16 *)(smem + C::AT_DOUT), wave, lane);
        if (p.outputs & 0x02u)
            dev_multiply_parts<true, true, C::BM, S, typename C::pairs, typename C::rows>(
                dk, ds, (const dev_bf16 *)(smem + C::AT_Q), wave, lane);
        h = next_h;
        block = next;
    }
    if (p.outputs & 0x04u)
        attn_store_key_elements<C>(u, dv, p.dv, p.dv_dtype, (p.accumulate & 0x04u) != 0,
                                   (l.vectors & STW_VECTOR_DV) != 0, (int)p.head_dim_v, 1.0f, wave, lane);
    if (p.outputs & 0x02u)
        attn_store_key_elements<C>(u, dk, p.dk, p.dk_dtype, (p.accumulate & 0x02u) != 0,
                                   (l.vectors & STW_VECTOR_DK) != 0, (int)p.head_dim_qk, p.scale, wave, lane);
}
