/* SPDX-License-Identifier: MIT
 *
 * dBias of a bias that is broadcast over batch, heads, queries or keys. A CTA owns a tile of the gradient, goes through
 * everything that adds to it in a fixed order and makes S and dP there once more: no temporary of the attention
 * matrix's size, no atomics, the same bits every time. Runs after the first kernel. */
#ifndef STW_COMMON_KERNELS_ATTN_DBIAS_REDUCE_H
#define STW_COMMON_KERNELS_ATTN_DBIAS_REDUCE_H

#include "common/kernels/attn_bwd_scores.h"

/* One of `extent` things if tasks are cut along this dimension, else all of them. */
DEV_FN stw_range attn_bias_pick(int64_t *rest, int64_t tasks, int64_t stride, int64_t extent) {
    stw_range range = {0, extent};
    if (stride) {
        range.first = *rest % tasks;
        range.end = range.first + 1;
    }
    *rest /= tasks;
    return range;
}

struct attn_bias_task {
    stw_range batch, heads, rows, keys; /* rows and keys: numbers of blocks of BM and BN */
    template <class C> DEV_FN attn_bias_task of(const stw_attn_launch &l) {
        const stw_attn_params &p = l.p;
        int64_t rest = dev_cta();
        attn_bias_task k;
        k.keys = attn_bias_pick(&rest, l.bias_keys, p.dbias.key, stw_blocks_of(p.max_seq_kv, C::BN));
        k.rows = attn_bias_pick(&rest, l.bias_rows, p.dbias.query, stw_blocks_of(p.max_seq_q, C::BM));
        k.heads = attn_bias_pick(&rest, l.bias_heads, p.dbias.head, p.heads_q);
        k.batch = attn_bias_pick(&rest, l.bias_batch, p.dbias.batch, p.batch);
        return k;
    }
};

/* Statistics of rows, COUNT of LSE or D. CDNA's own main loop has both negated where there is a bias. */
template <int THREADS, int COUNT> DEV_FN void attn_bias_load_stats(float *to, const float *from, bool negated, int t) {
    if (DEV_WAVE == 64 && negated) {
        if (t < COUNT) to[t] = -from[t];
        return;
    }
    dev_load_floats<THREADS, COUNT>(to, from, t);
}

/* Q, dO and statistics of query block `block` of C::BM rows. The statistics are in blocks of l.bm rows, a multiple. */
template <class C>
DEV_FN void attn_bias_load_queries(const attn_work_tile &u, const stw_attn_launch &l, char *smem, int h, int block) {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::rows, C::THREADS> copy;
    const stw_attn_params &p = l.p;
    int64_t i0 = (int64_t)block * C::BM;
    int t = (int)dev_thread();
    copy::part((T *)(smem + C::AT_Q), (const T *)p.q.data + dev_row(p.q, u.b, h, u.seq.q.first), p.q.seq, i0,
               u.seq.q_low, u.seq.q_end, (int)p.head_dim_qk, (l.vectors & STW_VECTOR_Q) != 0, t);
    copy::part((T *)(smem + C::AT_DOUT), (const T *)p.dout.data + dev_row(p.dout, u.b, h, u.seq.q.first), p.dout.seq,
               i0, u.seq.q_low, u.seq.q_end, (int)p.head_dim_v, (l.vectors & STW_VECTOR_DOUT) != 0, t);
    int larger = (int)l.bm / C::BM, first = block % larger * C::BM;
    float *stats = (float *)(smem + C::AT_STATS);
    const float *from = l.stats + (h * l.q_blocks + u.seq.q_block + block / larger) * (2 * l.bm + STW_STATS_PAD);
    const bool negated = (l.vectors & STW_STATS_NEGATED) != 0;
    attn_bias_load_stats<C::THREADS, C::BM>(stats, from + first, negated, t);
    attn_bias_load_stats<C::THREADS, C::BM>(stats + C::BM, from + l.bm + first, negated, t);
    dev_load_floats<C::THREADS, (int)STW_STATS_PAD>(stats + 2 * C::BM, from + 2 * l.bm, t);
}

/* Whether products with these keys may lose something: u.k_counts, u.v_counts after the next barrier. */
template <class C> DEV_FN void attn_bias_mark_keys(attn_work_tile &u, const char *smem) {
    typedef typename C::T T;
    if constexpr (dev_flushes<T>::yes)
        attn_mark_keys<typename C::keys, C::THREADS>(u, (const T *)(smem + C::AT_K), (const T *)(smem + C::AT_V));
}

/* Adds dS of query head h: query blocks `rows` with the keys of u, any of which masks may skip. `load_keys`: K and V
 * are not yet in place. */
template <class C>
DEV_FN void attn_bias_add_head(attn_work_tile &u, const stw_attn_launch &l, char *smem, int h, stw_range rows,
                               attn_bias_sum<typename C::score_split> &sum, attn_values<C> &values, bool &load_keys,
                               int wave, int lane) {
    for (int block = (int)rows.first; block < (int)rows.end; ++block) {
        if (attn_has_masks(l)) {
            block = dev_uniform(attn_hidden_jump<C>(l, u, u.kv_head, h, block, (int)rows.end));
            if (block >= (int)rows.end) break;
        }
        dev_barrier();
        if (load_keys) attn_load_keys<C>(u, l, u.kv_head, smem, (int)dev_thread());
        if (load_keys && C::VALUES_HELD) {
            dev_copy_commit();
            dev_copy_wait();
            dev_barrier();
            attn_bias_mark_keys<C>(u, smem);
            values.take(smem, wave, lane);
            dev_barrier();
        }
        attn_bias_load_queries<C>(u, l, smem, h, block);
        dev_copy_commit();
        dev_copy_wait();
        dev_barrier();
        if (dev_flushes<typename C::T>::yes && load_keys && !C::VALUES_HELD) {
            attn_bias_mark_keys<C>(u, smem);
            dev_barrier();
        }
        load_keys = false;
        auto taker = [&]() -> attn_bias_sum<typename C::score_split> & { return sum; };
        attn_bwd_scores<C, ATTN_ALL, attn_bias_sum<typename C::score_split>>(
            u, l, smem, values, 0, h, block, false, attn_dropout_next<typename C::score_split>(), taker, []() {}, wave,
            lane);
    }
}

/* The sums go through shared memory: folded where the bias has one row or one key, then written. */
template <class C>
DEV_FN void attn_bias_write(const stw_attn_launch &l, const attn_bias_task &k, float *tile,
                            const dev_acc<typename C::score_split> &sum, int wave, int lane) {
    typedef typename C::score_split S;
    const stw_bias_param &t = l.p.dbias;
    dev_barrier();
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                tile[row * C::BN + S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i)] = sum.v[m][n][i];
            }
    dev_barrier();
    int64_t i0 = t.query ? k.rows.first * C::BM : 0, j0 = t.key ? k.keys.first * C::BN : 0;
    int rows = t.query ? (int)stw_smaller(C::BM, l.p.max_seq_q - i0) : 1;
    int cols = t.key ? (int)stw_smaller(C::BN, l.p.max_seq_kv - j0) : 1;
    int fold_rows = t.query ? 1 : C::BM, fold_cols = t.key ? 1 : C::BN;
    int64_t base =
        (t.batch ? k.batch.first * t.batch : 0) + (t.head ? k.heads.first * t.head : 0) + i0 * t.query + j0 * t.key;
    for (int e = (int)dev_thread(); e < rows * cols; e += C::THREADS) {
        int row = e / cols, col = e % cols;
        float x = tile[row * C::BN + col];
        if (fold_rows * fold_cols > 1) {
            double total = 0.0;
            for (int r = row; r < row + fold_rows; ++r)
                for (int c = col; c < col + fold_cols; ++c) total += (double)tile[r * C::BN + c];
            x = (float)total;
        }
        int64_t at = base + row * t.query + col * t.key;
        dev_store_any(t.data, at, l.p.dbias_dtype,
                      l.p.accumulate & STW_OUT_DBIAS ? ((const float *)t.data)[at] + x : x);
    }
}

/* The kernel: a CTA does one task. */
template <class C> DEV_FN void attn_dbias_reduce(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    if (dev_cta() >= l.work_tiles) return;
    attn_bias_task k = attn_bias_task::of<C>(l);
    attn_bias_sum<typename C::score_split> sum;
    sum.acc.clear();
    attn_values<C> values;
    attn_work_tile &u = *(attn_work_tile *)(void *)(smem + C::AT_WORK_TILE);
    for (int64_t b = k.batch.first; b < k.batch.end; ++b)
        for (int64_t block = k.keys.first; block < k.keys.end; ++block) {
            dev_barrier();
            if (dev_thread() == 0) {
                u.seq = stw_attn_seq_of(&p, l.bm, b); /* l.bm, not C::BM: statistics are numbered so */
                u.b = b;
                u.j0 = block * C::BN;
                u.block = (int)stw_quotient(u.j0, l.bn); /* of l.bn keys, as what masks hide is kept */
                u.index = (uint32_t)(stw_hidden_tile(&p, &u.seq.kv, l.bn, b) + u.block);
            }
            dev_barrier();
            stw_range rows = stw_query_blocks(&u.seq, C::BM, C::BN, block);
            rows.first = stw_larger(rows.first, k.rows.first);
            rows.end = stw_smaller(rows.end, k.rows.end);
            if (rows.first >= rows.end) continue;
            int entered = -1;
            bool load_keys = true;
            for (int h = (int)k.heads.first; h < (int)k.heads.end; ++h) {
                int kv_head = h / (int)p.group;
                if (DEV_WAVE == 64) kv_head /= (int)l.head_parts; /* CDNA's own main loop has parts of groups */
                dev_barrier();
                if (dev_thread() == 0) {
                    u.kv_head = kv_head;
                    if (kv_head != entered) u.k_counts = u.v_counts = 0;
                }
                if (attn_has_masks(l)) dev_barrier();
                if (kv_head != entered) load_keys = true;
                entered = kv_head;
                attn_bias_add_head<C>(u, l, smem, h, rows, sum, values, load_keys, wave, lane);
            }
        }
    attn_bias_write<C>(l, k, (float *)(void *)(smem + C::AT_P), sum.acc, wave, lane);
}

#include "attn_dbias_reduce_plain.h"

#endif
