/* SPDX-License-Identifier: MIT
 *
 * A bias of the operands' type and its gradient, for the kernels with no other feature (ATTN_BIASED). A tile of the
 * bias waits where the tile's P will be written: each wave loads the part that it will replace by P, a step ahead, in
 * whole vectors. The tile of dS is that of dBias, and is written under the product of dK. */
#ifndef STW_COMMON_KERNELS_ATTN_BIAS_LOAD_H
#define STW_COMMON_KERNELS_ATTN_BIAS_LOAD_H

#include "common/kernels/attn_bwd_scheduler.h"
#include "common/kernels/attn_scores.h"

/* The next step's tile of the bias and this step's of dBias, in registers that a wave shares, as
 * attn_block_iterator. */
template <class C> struct attn_bias_block_iterator {
    typedef typename C::T T;
    const T *bias;
    T *dbias;
    bool vectors, whole; /* rows of the bias are whole vectors, near each other; all keys are in use */
    DEV_METHOD void enter_head(const attn_block_iterator<C> &at, const attn_work_tile &u, const stw_attn_launch &l) {
        const stw_bias_param &t = l.p.bias, &d = l.p.dbias;
        int64_t b = dev_uniform(u.b), i0 = (int64_t)at.block * C::BM, j0 = dev_uniform(u.j0);
        bias = (const T *)t.data + b * t.batch + at.h * t.head + i0 * t.query + j0;
        dbias = (T *)d.data + b * d.batch + at.h * d.head + i0 * d.query + j0;
    }
    DEV_FN attn_bias_block_iterator begin(const attn_block_iterator<C> &at, const attn_work_tile &u,
                                          const stw_attn_launch &l) {
        attn_bias_block_iterator w;
        const stw_bias_param &t = l.p.bias;
        const int64_t near = (INT64_C(1) << 31) / (C::BM * (int)sizeof(T));
        w.enter_head(at, u, l);
        w.whole = dev_uniform(u.seq.kv.used) - dev_uniform(u.j0) >= C::BN;
        w.vectors = w.whole &&
                    (((uintptr_t)t.data | (uintptr_t)((t.batch | t.head | t.query) * (int)sizeof(T))) & 15) == 0 &&
                    t.query >= 0 && t.query < near;
        return w;
    }
    /* `at` has moved on. */
    DEV_METHOD void next(const attn_block_iterator<C> &at, const attn_work_tile &u, const stw_attn_launch &l) {
        bias += C::BM * l.p.bias.query;
        dbias += C::BM * l.p.dbias.query;
        if (at.block == at.first) enter_head(at, u, l);
    }
};

/* A wave's part of the bias of one tile. */
template <class C> struct attn_bias_part {
    typedef typename C::T T;
    typedef typename C::score_split S;
    typedef typename C::scores tile;
    enum { VECTOR = tile::VECTOR, LANES = S::N / VECTOR, STEP = DEV_WAVE / LANES, COUNT = S::M / STEP };
    static_assert(LEAF_ACC_PAIRS && LANES * STEP == DEV_WAVE && COUNT * STEP == S::M, "lanes share the part evenly");

    /* Asynchronously, `rows` x `cols` of the tile at `from`; the rest of its memory is not read. Rows that are no whole
     * vectors, or end before the tile does: element by element, at once. */
    DEV_FN void copy(T *to, const T *from, int64_t stride, int64_t key, int rows, int cols, int wave, int lane) {
        int row = S::row0(wave) + lane / LANES, col = S::col0(wave) + lane % LANES * VECTOR;
        if ((((uintptr_t)from | (uintptr_t)(stride * (int)sizeof(T))) & 15) == 0 && key == 1 && cols == C::BN) {
            from += row * stride + col;
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
                dev_copy_vector(to + tile::at(row + i * STEP, col), from + i * STEP * stride, row + i * STEP < rows);
            return;
        }
        DEV_ROLLED_FOR (int e = 0; e < COUNT * VECTOR; ++e) {
            int r = row + e / VECTOR * STEP, c = col + e % VECTOR;
            T x;
            dev_set(&x, 0.0f);
            if (r < rows && c < cols) x = from[r * stride + c * key];
            to[tile::at(r, c)] = x;
        }
    }
    /* For the main loop, whose place is `at`. */
    DEV_FN void fetch(const attn_bias_block_iterator<C> &w, const attn_block_iterator<C> &at, const attn_work_tile &u,
                      const stw_attn_launch &l, char *smem, int wave, int lane) {
        T *to = (T *)(smem + C::AT_P);
        int rows = (int)stw_smaller(dev_uniform(u.seq.q.used) - (int64_t)at.block * C::BM, C::BM),
            cols = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN);
        if (w.vectors && rows == C::BM) {
            int row = S::row0(wave) + lane / LANES, col = S::col0(wave) + lane % LANES * VECTOR;
            const char *from = (const char *)w.bias + (uint32_t)((row * (int)l.p.bias.query + col) * (int)sizeof(T));
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
                dev_copy_vector(to + tile::at(row + i * STEP, col),
                                from + (int64_t)i * (STEP * (int)sizeof(T)) * l.p.bias.query, true);
        } else copy(to, w.bias, l.p.bias.query, 1, rows, cols, wave, lane);
    }
    /* Products -> (S - LSE) log2(e). A bias may put S anywhere (-1e9 in every column of a masked row): bias - LSE comes
     * first, since only rounding would be left of either times log2(e). */
    DEV_FN void add(dev_acc<S> &s, const stw_attn_launch &l, const float *stats, const char *smem, int wave, int lane) {
        typedef leaf_mma<T> mma;
        const T *from = (const T *)(smem + C::AT_P);
        float factor = l.p.scale * DEV_LOG2E;
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
            float lse[LEAF_ACC_ROWS];
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot)
                lse[slot] = stats[S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot)];
            DEV_UNROLL_FOR (int n = 0; n < S::NT; n += 2) {
                typename mma::a_frag words; /* an operand's fragment is two accumulators side by side */
                mma::template load_a<false, tile>(words, from, S::row0(wave) + m * LEAF_MMA_M,
                                                  S::col0(wave) + n * LEAF_MMA_N, lane);
                DEV_UNROLL_FOR (int i = 0; i < 2 * LEAF_ACC; ++i) {
                    float &x = s.v[m][n + i / LEAF_ACC][i % LEAF_ACC];
                    float bias = dev_half_of(T(), words.r[i / 2], i % 2);
                    x = fmaf(x, factor, (bias - lse[i % LEAF_ACC / 2]) * DEV_LOG2E);
                }
            }
        }
        dev_wave_sync(); /* P goes where the bias was */
    }
};

/* Exponents -> P, a few elements after each step of a product. */
template <class S> struct attn_exp2_side {
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    dev_acc<S> &s;
    DEV_METHOD void step(int k, int steps) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                if (f >= COUNT * k / steps && f < COUNT * (k + 1) / steps)
                    s.v[f / S::NT][f % S::NT][i] = dev_exp2_fast(s.v[f / S::NT][f % S::NT][i]);
    }
};

/* dS, a tile in shared memory, on its way to dBias: under a product, a vector is read in one step and written in the
 * next. */
template <class C> struct attn_bias_side {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::scores, C::THREADS> copy;
    enum { COUNT = copy::COUNT, ROUNDED = 0 };
    const T *from;
    T *to;
    int64_t step_to; /* to the next row of this thread, in elements */
    int rows;        /* of dBias from this thread's first one on    */
    dev_vector held;
    DEV_FN attn_bias_side of(const attn_bias_store<typename C::scores> &b, const char *smem) {
        attn_bias_side s;
        int row = copy::row((int)dev_thread()), col = copy::col((int)dev_thread());
        s.from = (const T *)(smem + C::AT_DS) + C::scores::at(row, col);
        s.to = (T *)(void *)b.to + row * b.stride + col;
        s.step_to = copy::STEP * b.stride;
        s.rows = col < b.cols ? b.rows - row : 0;
        return s;
    }
    /* No vector is cut by the end of the keys in use. */
    DEV_FN bool fits(const attn_bias_store<typename C::scores> &b) {
        return (((uintptr_t)b.to | (uintptr_t)(b.stride * (int)sizeof(T))) & 15) == 0 &&
               b.cols % C::scores::VECTOR == 0;
    }
    DEV_METHOD void put(int i) {
        if (i * copy::STEP < rows) dev_store_vector(to, held);
        to += step_to;
    }
    DEV_METHOD void step(int k, int steps) {
        static_assert(copy::STEP % 8 == 0, "the order of vectors repeats");
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
            if (i >= COUNT * k / steps && i < COUNT * (k + 1) / steps) {
                if (i) put(i - 1);
                held = dev_load_vector(from + i * (int)(C::scores::STRIDE * copy::STEP));
            }
        if (k + 1 == steps) put(COUNT - 1);
    }
};

/* Two kinds of work under one product. */
template <class A, class B> struct attn_two_sides {
    enum { ROUNDED = 0 };
    A &a;
    B &b;
    DEV_METHOD void step(int k, int steps) {
        a.step(k, steps);
        b.step(k, steps);
    }
};

#endif
