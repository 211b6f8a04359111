/* SPDX-License-Identifier: MIT
 *
 * Forward pass with LSE, plain: a CTA owns bm query rows of one head and goes through the key blocks they see with an
 * online softmax; each wave owns 16 rows from scores to output. Gives the backward its O and LSE in programs that have
 * no forward of their own. */
#ifndef STW_COMMON_KERNELS_ATTN_FWD_H
#define STW_COMMON_KERNELS_ATTN_FWD_H

#include "common/device/copy.h"
#include "common/device/reduce.h"
#include "common/kernels/attn_bwd_preprocess.h"
#include "common/kernels/attn_bwd_subnormal.h"
#include "common/kernels/attn_scores.h"
#include "common/kernels/attn_tiles.h"

/* Waves over rows alone: a wave sees whole rows. */
template <class T, int ROWS, int COLS> struct attn_row_waves {
    enum { M = LEAF_MMA_M, N = COLS, MT = 1, NT = COLS / LEAF_MMA_N };
    DEV_FN int row0(int wave) { return wave * M; }
    DEV_FN int col0(int) { return 0; }
};

template <class T_, int HD_, int BM_, int BN_, int WARPS_> struct attn_fwd_config {
    typedef T_ T;
    enum { HD = HD_, BM = BM_, BN = BN_, THREADS = WARPS_ * DEV_WAVE };
    static_assert(BM == WARPS_ * LEAF_MMA_M, "a wave owns the rows of one matrix tile");
    typedef dev_tile<T, BM, HD> rows;
    typedef dev_tile<T, BN, HD> keys;
    typedef dev_tile<T, BM, BN> scores;
    typedef attn_row_waves<T, BM, BN> score_split;
    typedef attn_row_waves<T, BM, HD> row_split;
    enum {
        AT_K = 0,
        AT_V = keys::BYTES,
        AT_Q = AT_V + keys::BYTES,
        AT_P = AT_Q + rows::BYTES,
        BYTES = AT_P + scores::BYTES
    };
    static_assert(BYTES == (int)STW_FWD_SMEM(dev_stored<T>::BYTES, HD_, BM_, BN_), "host and device agree on tiles");
};

/* Running maximum and sum of a lane's rows. */
struct attn_softmax {
    float maximum[LEAF_ACC_ROWS], sum[LEAF_ACC_ROWS], fix[LEAF_ACC_ROWS];
};

/* s becomes P.Z relative to the new maximum; the sums so far are to be multiplied with `fix`. `hidden`: bits of a
 * lane's pairs that masks in memory hide. */
template <class C, class S = typename C::score_split>
DEV_FN void attn_fwd_softmax(dev_acc<S> &s, attn_softmax &state, const dev_mask &mask, const dev_logit &logit,
                             const attn_dropout<S> &keep, float keep_scale, uint32_t hidden, int wave, int lane) {
    float most[LEAF_ACC_ROWS], base[LEAF_ACC_ROWS], total[LEAF_ACC_ROWS];
    DEV_UNROLL_FOR (int r = 0; r < LEAF_ACC_ROWS; ++r) most[r] = -dev_infinity(), total[r] = 0.0f;
    DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
        DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
            int row = S::row0(wave) + leaf_slot_row(lane, leaf_acc_slot(i)),
                col = n * LEAF_MMA_N + leaf_acc_col(lane, i);
            float x = -dev_infinity();
            if (mask.sees(row, col) && !(hidden >> (n * LEAF_ACC + i) & 1)) x = logit.value(s.v[0][n][i], row, col);
            s.v[0][n][i] = x;
            most[leaf_acc_slot(i)] = fmaxf(most[leaf_acc_slot(i)], x);
        }
    DEV_UNROLL_FOR (int r = 0; r < LEAF_ACC_ROWS; ++r) {
        most[r] = fmaxf(dev_row_max(most[r]), state.maximum[r]);
        base[r] = most[r] == -dev_infinity() ? 0.0f : most[r];
        state.fix[r] = state.maximum[r] == -dev_infinity() ? 0.0f : dev_exp(state.maximum[r] - base[r]);
        state.maximum[r] = most[r];
    }
    DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
        DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
            int slot = leaf_acc_slot(i);
            float x = s.v[0][n][i], p = x == -dev_infinity() ? 0.0f : attn_exp<typename C::T>(x - base[slot]);
            total[slot] += p;
            if (logit.features & STW_FEAT_DROPOUT) p = keep.at(n * LEAF_ACC + i) ? p * keep_scale : 0.0f;
            s.v[0][n][i] = p;
        }
    DEV_UNROLL_FOR (int r = 0; r < LEAF_ACC_ROWS; ++r)
        state.sum[r] = state.sum[r] * state.fix[r] + dev_row_sum(total[r]);
}

/* LSE of a row, with the sink; *factor_out is what the row of O is multiplied with. */
DEV_FN float attn_fwd_finish(float maximum, float sum, float sink, float *factor_out) {
    double top = sink > maximum ? sink : maximum;
    *factor_out = 0.0f;
    if (top == -(double)dev_infinity() && sum == sum) return -dev_infinity();
    double shrink = maximum == -dev_infinity() ? 1.0 : dev_exp((double)maximum - top);
    double total = sum * shrink + (sink == -dev_infinity() ? 0.0 : dev_exp((double)sink - top));
    *factor_out = (float)(shrink / total);
    return (float)(top + dev_log(total));
}

template <class C>
DEV_FN void attn_fwd_write(const stw_attn_launch &l, const stw_attn_seq &seq, int64_t b, int64_t h, int64_t i0,
                           const dev_acc<typename C::row_split> &o, const attn_softmax &state, int wave, int lane) {
    typedef typename C::row_split S;
    const stw_attn_params &p = l.p;
    int used = (int)stw_clamp_i64(seq.q.used - i0, 0, C::BM), end = (int)stw_clamp_i64(seq.q.rows - i0, 0, C::BM);
    float sink = p.features & STW_FEAT_SINK ? p.sink[h] : -dev_infinity(), factor[LEAF_ACC_ROWS];
    DEV_UNROLL_FOR (int r = 0; r < LEAF_ACC_ROWS; ++r) {
        int row = S::row0(wave) + leaf_slot_row(lane, r);
        float lse = attn_fwd_finish(state.maximum[r], state.sum[r], sink, &factor[r]);
        if (row < end && p.lse.data && !(lane & LEAF_ROW_LANES))
            *attn_float_at(p.lse, (p.features & STW_FEAT_PACKED_LSE) != 0, seq, b, h, i0 + row) =
                row < used ? lse : -dev_infinity();
    }
    int64_t base = dev_row(p.out, b, h, seq.q.first + i0);
    DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
        DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
            int row = S::row0(wave) + leaf_slot_row(lane, leaf_acc_slot(i)),
                col = n * LEAF_MMA_N + leaf_acc_col(lane, i);
            if (row < end && col < (int)p.head_dim_v)
                dev_store_any(p.out.data, base + row * p.out.seq + col, p.dtype,
                              row < used ? o.v[0][n][i] * factor[leaf_acc_slot(i)] : 0.0f);
        }
}

/* f32 as three bf16 (LEAF_F32_BF16X3) loses what is below 2^-134. So `load` loads a tile of V once more, times 2^64,
 * where it holds nothing as large as ATTN_SUBNORMAL_KEYS. True: that was done. */
template <class C, class Load> DEV_FN bool attn_fwd_enlarge(const typename C::T *v, int *found, const Load &load) {
    if (dev_thread() == 0) *found = 0;
    dev_barrier();
    if (attn_tile_counts<typename C::keys, C::THREADS>(v)) *found = 1;
    dev_barrier();
    bool subnormal = *found == 0;
    if (subnormal) load();
    dev_barrier();
    return subnormal;
}

/* Where products may lose what is subnormal: whether Q, K or V holds such elements. */
template <class C>
DEV_FN bool attn_fwd_flushed(const typename C::T *q, const typename C::T *k, const typename C::T *v, int *found) {
    typedef typename C::keys keys;
    if (dev_thread() == 0) *found = 0;
    dev_barrier();
    if (attn_tile_flushed<typename C::rows, C::THREADS>(q) || attn_tile_flushed<keys, C::THREADS>(k) ||
        attn_tile_flushed<keys, C::THREADS>(v))
        dev_or(found, 1);
    dev_barrier();
    bool flushed = *found != 0;
    dev_barrier();
    return flushed;
}

/* acc += A B^T (S = Q K^T) or A B (O += P V); `subnormal`: subnormal operands count. */
template <class T, class S, class A, class B>
DEV_FN void attn_fwd_mma_ABt(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, bool subnormal, int wave,
                             int lane) {
    if constexpr (dev_flushes<T>::yes) {
        dev_unflushed unflushed;
        if (subnormal) {
            mma_ABt(acc, a, b, unflushed, wave, lane);
            return;
        }
    }
    mma_ABt(acc, a, b, wave, lane);
}
template <class T, class S, class A, class B>
DEV_FN void attn_fwd_mma_AB(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, bool subnormal, int wave,
                            int lane) {
    if constexpr (dev_flushes<T>::yes) {
        dev_unflushed unflushed;
        if (subnormal) {
            mma_AB(acc, a, b, unflushed, wave, lane);
            return;
        }
    }
    mma_AB(acc, a, b, wave, lane);
}

/* Keys' rows of K or V; `enlarge`: times 2^64. */
template <class C>
DEV_FN void attn_fwd_load(typename C::T *tile, const stw_tensor_param &from, const stw_attn_seq &seq, int64_t b,
                          int64_t kv_head, int64_t j0, int cols, bool vectors, bool enlarge) {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::keys, C::THREADS> copy;
    const T *rows = (const T *)from.data + dev_row(from, b, kv_head, seq.kv.first);
    stw_range seen = stw_visible_keys(&seq);
    if constexpr (C::keys::TERMS != 1)
        copy::part(tile, rows, from.seq, j0, seen.first, seen.end, cols, vectors, (int)dev_thread(),
                   enlarge ? 0x1p64f : 1.0f);
    else copy::part(tile, rows, from.seq, j0, seen.first, seen.end, cols, vectors, (int)dev_thread());
}

/* Of 32 key blocks from `first` on: those of which the query block sees a key by the masks in memory, and those that
 * they hide some pair of. */
struct attn_fwd_masks {
    int64_t first;
    uint32_t seen, touched;
};

/* Key blocks before `end`; a wave looks at one at a time. A tile of pairs lies in one block of the block mask. `found`:
 * two words of shared memory. */
template <class C>
DEV_FN attn_fwd_masks attn_fwd_look(const stw_attn_params &p, const stw_attn_seq &seq, const attn_tile &tile,
                                    int64_t first, int64_t end, int32_t *found, int wave, int lane) {
    static_assert(STW_MASK_BLOCK % C::BM == 0 && STW_MASK_BLOCK % C::BN == 0, "blocks of the mask are whole tiles");
    enum { SEEN = 1, TOUCHED = 2 };
    const int64_t i0 = tile.block * C::BM, i1 = stw_smaller(i0 + C::BM, seq.q.used);
    dev_barrier();
    if (dev_thread() < 2) found[dev_thread()] = 0;
    dev_barrier();
    DEV_ROLLED_FOR (int x = wave; x < 32 && first + x < end; x += C::THREADS / DEV_WAVE) {
        const int64_t j0 = (first + x) * C::BN;
        if ((p.features & STW_FEAT_BLOCK_MASK) && !stw_block_mask_at(&p, tile.b, tile.h, i0, j0)) continue;
        uint32_t bits = p.features & STW_FEAT_INTERVALS ? 0 : SEEN;
        DEV_ROLLED_FOR (int c = lane; c < C::BN && bits != (SEEN | TOUCHED); c += DEV_WAVE) {
            if (!(p.features & STW_FEAT_INTERVALS) || j0 + c >= seq.kv.used) continue;
            const stw_hidden_rows r =
                stw_hidden_rows_of(&p, &seq.q, stw_interval_at(&p, &seq.kv, tile.b, tile.h / p.group, j0 + c));
            if (!((r.first[0] <= i0 && r.end[0] >= i1) || (r.first[1] <= i0 && r.end[1] >= i1))) bits |= SEEN;
            if ((r.first[0] < i1 && r.end[0] > i0) || (r.first[1] < i1 && r.end[1] > i0)) bits |= TOUCHED;
        }
        DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) bits |= dev_shuffle(bits, lane ^ mask);
        if (lane == 0 && (bits & SEEN)) dev_or(found, (int32_t)(1u << x));
        if (lane == 0 && (bits & TOUCHED)) dev_or(found + 1, (int32_t)(1u << x));
    }
    dev_barrier();
    const attn_fwd_masks masks = {first, (uint32_t)dev_uniform(found[0]), (uint32_t)dev_uniform(found[1])};
    dev_barrier();
    return masks;
}

/* Bits of a lane's pairs that intervals hide. */
template <class C, class S = typename C::score_split>
DEV_FN uint32_t attn_fwd_hidden(const stw_attn_params &p, const stw_attn_seq &seq, const attn_tile &tile, int64_t j0,
                                int wave, int lane) {
    static_assert(S::NT * LEAF_ACC <= 32, "a bit a pair");
    const int64_t i0 = tile.block * C::BM;
    uint32_t bits = 0;
    DEV_ROLLED_FOR (int n = 0; n < S::NT; ++n)
        DEV_ROLLED_FOR (int i = 0; i < LEAF_ACC; ++i) {
            const int64_t j = j0 + n * LEAF_MMA_N + leaf_acc_col(lane, i);
            if (j >= seq.kv.used) continue;
            const stw_hidden_rows r =
                stw_hidden_rows_of(&p, &seq.q, stw_interval_at(&p, &seq.kv, tile.b, tile.h / p.group, j));
            if (stw_is_hidden(&r, i0 + S::row0(wave) + leaf_slot_row(lane, leaf_acc_slot(i))))
                bits |= 1u << (n * LEAF_ACC + i);
        }
    return bits;
}

template <class C> DEV_FN void attn_fwd(const stw_attn_launch &l, char *smem) {
    typedef typename C::T T;
    typedef typename C::row_split S;
    const stw_attn_params &p = l.p;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    int64_t work_tile = dev_cta();
    if (work_tile == l.work_tiles - 1) attn_check(p, smem, nullptr);
    if (work_tile >= l.work_tiles - 1) return;
    const attn_tile tile = attn_tile_of(p, C::BM, work_tile, (int32_t *)(void *)smem);
    if (!tile.live) return;
    const int64_t b = tile.b, h = tile.h, block = tile.block, i0 = block * C::BM;
    stw_attn_seq seq = stw_attn_seq_of(&p, C::BM, b);
    if (i0 >= seq.q.rows) return;
    stw_range range = stw_key_blocks(&seq, C::BM, C::BN, block);
    T *k = (T *)(smem + C::AT_K), *v = (T *)(smem + C::AT_V), *q = (T *)(smem + C::AT_Q),
      *scores = (T *)(smem + C::AT_P);
    const dev_smem_tile<typename C::rows> q_tile = {q};
    const dev_smem_tile<typename C::keys> k_tile = {k}, v_tile = {v};
    const dev_smem_tile<typename C::scores> p_tile = {scores};
    dev_acc<S> o;
    o.clear();
    attn_softmax state;
    DEV_UNROLL_FOR (int r = 0; r < LEAF_ACC_ROWS; ++r) state.maximum[r] = -dev_infinity(), state.sum[r] = 0.0f;
    dev_row_copy<typename C::rows, C::THREADS>::part(q, (const T *)p.q.data + dev_row(p.q, b, h, seq.q.first), p.q.seq,
                                                     i0, seq.q_low, seq.q_end, (int)p.head_dim_qk,
                                                     (l.vectors & STW_VECTOR_Q) != 0, (int)dev_thread());
    const bool masked = (p.features & (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)) != 0;
    attn_fwd_masks masks = {range.first - 32, 0, 0};
    for (int64_t kb = range.first; kb < range.end; ++kb) {
        if (masked) {
            if (kb - masks.first >= 32)
                masks = attn_fwd_look<C>(p, seq, tile, kb, range.end, (int32_t *)(void *)scores, wave, lane);
            if (!(masks.seen >> (kb - masks.first) & 1)) continue;
        }
        int64_t j0 = kb * C::BN, kv_head = h / p.group;
        if (DEV_WAVE == 64) lane = dev_keep(lane); /* what is derived from it would fill registers over the loop */
        dev_barrier();
        attn_fwd_load<C>(k, p.k, seq, b, kv_head, j0, (int)p.head_dim_qk, (l.vectors & STW_VECTOR_K) != 0, false);
        attn_fwd_load<C>(v, p.v, seq, b, kv_head, j0, (int)p.head_dim_v, (l.vectors & STW_VECTOR_V) != 0, false);
        dev_copy_commit();
        dev_copy_wait();
        dev_barrier();
        bool subnormal = C::keys::TERMS != 1 && attn_fwd_enlarge<C>(v, (int *)(void *)scores, [&]() {
                             attn_fwd_load<C>(v, p.v, seq, b, kv_head, j0, (int)p.head_dim_v, false, true);
                         });
        bool flushed = false;
        if constexpr (dev_flushes<T>::yes) flushed = attn_fwd_flushed<C>(q, k, v, (int *)(void *)scores);
        dev_mask mask = dev_mask::of(seq, i0, j0, C::BM, C::BN);
        attn_dropout<typename C::score_split> keep;
        keep.all();
        if (p.features & STW_FEAT_DROPOUT) {
            stw_dropout_stream stream = stw_dropout_stream_of(&p, b, h, seq.q, seq.kv);
            attn_dropout_fill<typename C::score_split>(keep, p, stream, mask, i0, j0, wave, lane);
        }
        dev_acc<typename C::score_split> s;
        s.clear();
        attn_fwd_mma_ABt<T>(s, q_tile, k_tile, flushed, wave, lane); /* S = Q K^T */
        dev_logit logit = dev_logit::of(p, seq, b, h, i0, j0);
        uint32_t hidden = 0;
        if (masked && (masks.touched >> (kb - masks.first) & 1))
            hidden = attn_fwd_hidden<C>(p, seq, tile, j0, wave, lane);
        attn_fwd_softmax<C>(s, state, mask, logit, keep, p.dropout_scale, hidden, wave, lane);
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) o.v[0][n][i] *= state.fix[leaf_acc_slot(i)];
        DEV_UNROLL_FOR (int n = 0; n < C::score_split::NT; ++n)
            leaf_store_acc<typename C::scores>(scores, wave * LEAF_MMA_M, n * LEAF_MMA_N, s.v[0][n], lane);
        dev_wave_sync(); /* the wave reads only rows it has written */
        if (!subnormal) {
            attn_fwd_mma_AB<T>(o, p_tile, v_tile, flushed, wave, lane); /* O += P V */
        } else {
            dev_acc<S> part;
            part.clear();
            mma_AB(part, p_tile, v_tile, wave, lane);
            DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                    o.v[0][n][i] = fmaf(part.v[0][n][i], 0x1p-64f, o.v[0][n][i]);
        }
    }
    attn_fwd_write<C>(l, seq, b, h, i0, o, state, wave, lane);
}

#endif
