/* SPDX-License-Identifier: MIT
 *
 * dBias of a broadcast bias where there is nothing besides it: 16-bit operands, bias and gradient of one type, and a
 * bias that is the same in all that a task sums. Same tasks and order as attn_dbias_reduce.h, whose general kernels do
 * the rest. The task's bias stays in shared memory; what is loaded next comes under the products (two stages) or while
 * other CTAs multiply. Included by attn_dbias_reduce.h. */
#ifndef STW_COMMON_KERNELS_ATTN_DBIAS_REDUCE_PLAIN_H
#define STW_COMMON_KERNELS_ATTN_DBIAS_REDUCE_PLAIN_H

template <class T_, int HD_, int BM_, int BN_, int STAGES_, int WARPS_> struct attn_dbias_config {
    typedef T_ T;
    enum {
        HD = HD_,
        BM = BM_,
        BN = BN_,
        WARPS = WARPS_,
        THREADS = WARPS_ * DEV_WAVE,
        STAGES = STAGES_,
        WORK_TILES = STW_DBIAS_PLAIN_WORK_TILES
    };
    typedef dev_tile<T, BM, HD> rows;
    typedef dev_tile<T, BN, HD> keys;
    typedef dev_tile<T, BM, BN> scores;
    typedef dev_split<T, BM, BN, WARPS> score_split;
    enum {
        AT_K = 0, /* in a stage */
        AT_V = AT_K + keys::BYTES,
        AT_Q = AT_V + keys::BYTES,
        AT_DOUT = AT_Q + rows::BYTES,
        AT_STATS = AT_DOUT + rows::BYTES,
        STAGE = AT_STATS + (2 * BM + (int)STW_STATS_PAD) * 4,
        AT_P = STAGES * STAGE, /* the bias */
        AT_WORK_TILES = AT_P + scores::BYTES,
        BYTES = AT_WORK_TILES + WORK_TILES * (int)sizeof(attn_work_tile)
    };
    static_assert(BYTES == (int)STW_DBIAS_PLAIN_SMEM(HD_, BM_, BN_, STAGES_), "host and device agree on tiles");
    static_assert(AT_P >= BM * BN * (int)sizeof(float), "the sums go through the stages");
};

/* Where a task stands: number `work_tile` of the listed work tiles, head h, query block `block`. */
template <class C> struct attn_dbias_scheduler {
    const attn_work_tile *work_tiles;
    int count, work_tile, h, block, head_first, head_end;
    bool live;
    /* A query block of a work tile, or the next work tile that has one. */
    DEV_FN void settle(attn_dbias_scheduler &w) {
        while (w.work_tile < w.count && w.work_tiles[w.work_tile].first >= w.work_tiles[w.work_tile].end) ++w.work_tile;
        w.live = w.work_tile < w.count;
        if (w.live) w.block = w.work_tiles[w.work_tile].first;
    }
    DEV_FN void next(attn_dbias_scheduler &w) {
        if (++w.block < w.work_tiles[w.work_tile].end) return;
        w.block = w.work_tiles[w.work_tile].first;
        if (++w.h < w.head_end) return;
        w.h = w.head_first;
        ++w.work_tile;
        settle(w);
    }
    DEV_FN void load(const attn_dbias_scheduler &w, const stw_attn_launch &l, char *stage) {
        const attn_work_tile &u = w.work_tiles[w.work_tile];
        attn_load_keys<C>(u, l, (int)((uint32_t)w.h / (uint32_t)l.p.group), stage, (int)dev_thread());
        attn_bias_load_queries<C>(u, l, stage, w.h, w.block);
        dev_copy_commit();
    }
};

/* dS of one tile, added to the sums. */
template <class C>
DEV_FN void attn_dbias_tile(dev_acc<typename C::score_split> &sum, const attn_work_tile &u, const stw_attn_launch &l,
                            const char *smem, const char *stage, int block, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::score_split S;
    const float *stats = (const float *)(stage + C::AT_STATS);
    dev_acc<S> s, dp;
    dev_acc<S>::clear(s);
    dev_acc<S>::clear(dp);
    dev_multiply<false, false, C::HD, S, typename C::rows, typename C::keys>(s, (const T *)(stage + C::AT_Q),
                                                                             (const T *)(stage + C::AT_K), wave, lane);
    attn_bias_part<C>::add(s, l, stats, smem, wave, lane);
    attn_exp2_side<S> exponentials = {s};
    dev_multiply_overlap<false, false, C::HD, S, typename C::rows, typename C::keys>(
        dp, (const T *)(stage + C::AT_DOUT), (const T *)(stage + C::AT_V), exponentials, wave, lane);
    dev_mask mask = dev_mask::of(u.seq, (int64_t)block * C::BM, u.j0, C::BM, C::BN);
    bool inner = mask.rows == C::BM && mask.cols == C::BN && mask.low <= 1 - C::BM && mask.high >= C::BN - 1;
    attn_dropout<S> keep;
    attn_dropout<S>::all(keep);
    if (!inner || stats[2 * C::BM] != 0.0f)
        attn_scores_to_ds<C, true, false>(s, dp, stats, mask, keep, 1.0f, wave, lane);
    else attn_scores_to_ds<C, false, false>(s, dp, stats, mask, keep, 1.0f, wave, lane);
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) sum.v[m][n][i] += dp.v[m][n][i];
}

/* Stores the sums from registers where rows of dBias are whole vectors. False: they are not, nothing is stored. */
template <class C>
DEV_FN bool attn_dbias_store(const stw_attn_launch &l, const attn_bias_task &k,
                             const dev_acc<typename C::score_split> &sum, int wave, int lane) {
    typedef typename C::score_split S;
    typedef typename C::T T;
    enum { G = 4 };
    static_assert(LEAF_GATHERS && S::NT % G == 0, "tiles of registers go together");
    const stw_bias_param &t = l.p.dbias;
    int64_t i0 = k.rows.first * C::BM, j0 = k.keys.first * C::BN;
    T *to = (T *)t.data + (t.batch ? k.batch.first * t.batch : 0) + (t.head ? k.heads.first * t.head : 0) +
            i0 * t.query + j0;
    if (!t.query || t.key != 1 || j0 + (int)C::BN > l.p.max_seq_kv ||
        (((uintptr_t)to | (uintptr_t)(t.query * (int)sizeof(T))) & 15))
        return false;
    int rows = (int)stw_smaller(C::BM, l.p.max_seq_q - i0);
    to += S::col0(wave) + leaf_gathered_col<G>(lane);
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            DEV_UNROLL_FOR (int n = 0; n < S::NT; n += G) {
                uint32_t w[G];
                DEV_UNROLL_FOR (int g = 0; g < G; ++g)
                    w[g] = dev_pack(T(), sum.v[m][n + g][2 * slot], sum.v[m][n + g][2 * slot + 1]);
                leaf_gather<G>(w, lane);
                if (row < rows) dev_store_words<G>(to + row * t.query + n * LEAF_MMA_N, w);
            }
        }
    return true;
}

/* Work tiles `first` and following of a task, a thread each: sequences, and for each its key blocks. */
template <class C>
DEV_FN void attn_dbias_list(attn_work_tile *work_tiles, const stw_attn_launch &l, const attn_bias_task &k,
                            int64_t first, int count) {
    int t = (int)dev_thread();
    if (t >= count) return;
    attn_work_tile &u = work_tiles[t];
    int64_t blocks = k.keys.end - k.keys.first, of = stw_quotient(first + t, blocks);
    u.b = k.batch.first + of;
    u.seq = stw_attn_seq_of(&l.p, l.bm, u.b); /* l.bm, not C::BM: statistics are numbered so */
    u.block = (int)(k.keys.first + first + t - of * blocks);
    u.j0 = (int64_t)u.block * C::BN;
    stw_range rows = stw_query_blocks(&u.seq, C::BM, C::BN, u.block);
    u.first = (int)stw_larger(rows.first, k.rows.first);
    u.end = (int)stw_smaller(rows.end, k.rows.end);
}

/* The kernel: a CTA does one task, WORK_TILES listed work tiles at a time. */
template <class C> DEV_FN void attn_dbias_reduce_plain(const stw_attn_launch &l, char *smem) {
    typedef typename C::score_split S;
    typedef typename C::T T;
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    if (dev_cta() >= l.work_tiles) return;
    attn_bias_task k = attn_bias_task::of<C>(l);
    attn_work_tile *work_tiles = (attn_work_tile *)(void *)(smem + C::AT_WORK_TILES);
    const stw_bias_param &t = p.bias;
    int64_t i0 = k.rows.first * C::BM, j0 = k.keys.first * C::BN;
    attn_bias_part<C>::copy((T *)(smem + C::AT_P),
                            (const T *)t.data + k.batch.first * t.batch + k.heads.first * t.head + i0 * t.query +
                                j0 * t.key,
                            t.query, t.key, t.query ? (int)stw_smaller(C::BM, p.max_seq_q - i0) : (int)C::BM,
                            t.key ? (int)stw_smaller(C::BN, p.max_seq_kv - j0) : (int)C::BN, wave, lane);
    dev_acc<S> sum;
    dev_acc<S>::clear(sum);
    int64_t total = (k.batch.end - k.batch.first) * (k.keys.end - k.keys.first);
    for (int64_t first = 0; first < total; first += C::WORK_TILES) {
        attn_dbias_scheduler<C> scheduler = {work_tiles,
                                             (int)stw_smaller(C::WORK_TILES, total - first),
                                             0,
                                             (int)k.heads.first,
                                             0,
                                             (int)k.heads.first,
                                             (int)k.heads.end,
                                             false};
        dev_barrier();
        attn_dbias_list<C>(work_tiles, l, k, first, scheduler.count);
        dev_barrier();
        attn_dbias_scheduler<C>::settle(scheduler);
        if (scheduler.live) attn_dbias_scheduler<C>::load(scheduler, l, smem);
        int stage = 0;
        while (scheduler.live) {
            int work_tile = scheduler.work_tile, block = scheduler.block;
            lane = dev_keep(lane); /* what is derived from it is not kept over the loop: registers are taken */
            attn_dbias_scheduler<C>::next(scheduler);
            dev_copy_wait();
            dev_barrier(); /* arrived; and nobody reads the other stage any more */
            if (C::STAGES == 2 && scheduler.live)
                attn_dbias_scheduler<C>::load(scheduler, l, smem + (stage ^ 1) * (int)C::STAGE);
            attn_dbias_tile<C>(sum, work_tiles[work_tile], l, smem, smem + stage * (int)C::STAGE, block, wave, lane);
            if (C::STAGES == 2) {
                stage ^= 1;
            } else {
                dev_barrier();
                if (scheduler.live) attn_dbias_scheduler<C>::load(scheduler, l, smem);
            }
        }
    }
    dev_copy_wait();
    if (!attn_dbias_store<C>(l, k, sum, wave, lane)) attn_bias_write<C>(l, k, (float *)(void *)smem, sum, wave, lane);
}

#endif
