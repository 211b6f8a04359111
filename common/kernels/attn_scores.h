/* SPDX-License-Identifier: MIT
 *
 * Shapes of a kernel of the main loop, and the passes over one tile of the attention matrix in registers: from the
 * products Q K^T and dO V^T to P.Z and dS, the operands of the gradients. Pairs that are not visible are selected to
 * zero, never multiplied: dP may be infinite there. */
#ifndef STW_COMMON_KERNELS_ATTN_SCORES_H
#define STW_COMMON_KERNELS_ATTN_SCORES_H

#include "common/device/mask.h"
#include "common/device/mma.h"
#include "common/kernels/attn_dropout.h"

/* What a main loop knows: nothing besides masks; dropout; a bias of the operands' type and its gradient;
 * everything, f32 outputs of 16-bit inputs among it; a softcap; ALiBi; as plain, in deterministic mode; as plain, with
 * interval and block masks. */
enum {
    ATTN_PLAIN = 0,
    ATTN_DROPS = 1,
    ATTN_BIASED = 2,
    ATTN_ALL = 7,
    ATTN_CAPPED = 8,
    ATTN_SLOPED = 16,
    ATTN_ORDERED = 32,
    ATTN_HIDDEN = 64
};

/* Main loops that know interval and block masks. */
template <int MODE> struct attn_hides {
    enum { yes = MODE == ATTN_ALL || MODE == ATTN_HIDDEN };
};

/* Shapes of one backward kernel: T, padded head dim, tile, stages, waves. Stages 0: one, with V in registers. */
template <class T_, int HD_, int BM_, int BN_, int STAGES_, int WARPS_> struct attn_config {
    typedef T_ T;
    enum { HD = HD_, BM = BM_, BN = BN_, WARPS = WARPS_, THREADS = WARPS_ * DEV_WAVE };
    enum { VALUES_HELD = STAGES_ == 0, STAGES = VALUES_HELD ? 1 : STAGES_ };
    static_assert(!VALUES_HELD || BN <= BM, "V passes through Q's place");
    /* registers are taken in every mode */
    enum { CROWDED = VALUES_HELD || (LEAF_FLUSHES && dev_is_f16<T>::yes && HD == 128) };
    typedef dev_tile<T, BM, HD> rows;
    typedef dev_tile<T, BN, HD> keys;
    typedef dev_tile<T, BM, BN> scores;
    typedef dev_split<T, BM, BN, WARPS> score_split;
    typedef dev_split<T, BN, HD, WARPS> key_split;
    typedef dev_split<T, BM, HD, WARPS> row_split;
    enum {
        STATS = 2 * BM + (int)STW_STATS_PAD,
        AT_K = 0,
        AT_V = AT_K + keys::BYTES,
        AT_Q = AT_V + (VALUES_HELD ? 0 : keys::BYTES),
        AT_DOUT = AT_Q + STAGES * rows::BYTES,
        AT_STATS = AT_DOUT + STAGES * rows::BYTES,
        AT_P = AT_STATS + STAGES * STATS * 4,
        AT_DS = AT_P + scores::BYTES,
        AT_WORK_TILE = AT_DS + scores::BYTES,
        BYTES = AT_WORK_TILE + (int)STW_WORK_TILE_BYTES
    };
    /* The tiles of a step; `stage`: where there are two, the loads of the next step go into the other. */
    DEV_FN dev_smem_tile<rows> q(const char *smem, int stage) { return {(T *)(smem + AT_Q + stage * rows::BYTES)}; }
    DEV_FN dev_smem_tile<rows> dout(const char *smem, int stage) {
        return {(T *)(smem + AT_DOUT + stage * rows::BYTES)};
    }
    DEV_FN dev_smem_tile<keys> k(const char *smem) { return {(T *)(smem + AT_K)}; }
    DEV_FN dev_smem_tile<keys> v(const char *smem) { return {(T *)(smem + AT_V)}; }
    DEV_FN dev_smem_tile<scores> p(const char *smem) { return {(T *)(smem + AT_P)}; }
    DEV_FN dev_smem_tile<scores> ds(const char *smem) { return {(T *)(smem + AT_DS)}; }
    /* LSE of each row, then D of each row, then whether some LSE is infinite, and whether dO and D are subnormal. */
    DEV_FN const float *stats(const char *smem, int stage) { return (const float *)(smem + AT_STATS) + stage * STATS; }
    /* Where the waves meet at the end of a step; when all have read P (ATTN_BIASED). */
    DEV_FN dev_two_halves *step_end(char *smem) {
        return (dev_two_halves *)(void *)(smem + BYTES - sizeof(dev_two_halves));
    }
    DEV_FN dev_two_halves *weights_end(char *smem) { return step_end(smem) - 1; }
    static_assert(BYTES == (int)STW_BWD_SMEM(dev_stored<T>::BYTES, HD_, BM_, BN_, STAGES_),
                  "host and device agree on tiles");
};

/* V in registers, where the configuration holds it there: a wave's operands of dO V^T. */
template <class C, bool HELD = (C::VALUES_HELD != 0)> struct attn_values {
    DEV_METHOD void take(const char *, int, int) {}
    DEV_METHOD void mma_dout(dev_acc<typename C::score_split> &, const typename C::T *, bool, int, int) const {}
};

template <class C> struct attn_values<C, true> {
    typedef leaf_mma<typename C::T> mma;
    enum { GROUPS = C::score_split::NT / mma::B_TILES, STEPS = C::HD / mma::K };
    typename mma::b_frag f[STEPS][GROUPS];
    DEV_METHOD void take(const char *smem, int wave, int lane) {
        DEV_UNROLL_FOR (int k = 0; k < STEPS; ++k)
            DEV_UNROLL_FOR (int g = 0; g < GROUPS; ++g)
                mma::template load_b<false, typename C::keys>(
                    f[k][g], C::v(smem).data, C::score_split::col0(wave) + g * mma::B_TILES * LEAF_MMA_N, k * mma::K,
                    lane);
    }
    /* acc += dO V^T; `subnormal`: operands that are subnormal count. */
    DEV_METHOD void mma_dout(dev_acc<typename C::score_split> &acc, const typename C::T *dout, bool subnormal, int wave,
                             int lane) const {
        if constexpr (dev_flushes<typename C::T>::yes) {
            if (subnormal) {
                multiply<true>(acc, dout, wave, lane);
                return;
            }
        }
        multiply<false>(acc, dout, wave, lane);
    }
    template <bool SUBNORMAL>
    DEV_METHOD void multiply(dev_acc<typename C::score_split> &acc, const typename C::T *dout, int wave,
                             int lane) const {
        typedef typename C::score_split S;
        DEV_UNROLL_FOR (int k = 0; k < STEPS; ++k)
            DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
                typename mma::a_frag a;
                mma::template load_a<false, typename C::rows>(a, dout, S::row0(wave) + m * LEAF_MMA_M, k * mma::K,
                                                              lane);
                DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
                    if constexpr (SUBNORMAL)
                        mma::product_unflushed(acc.v[m][n], a, f[k][n / mma::B_TILES], n % mma::B_TILES);
                    else mma::product_rounded(acc.v[m][n], a, f[k][n / mma::B_TILES], n % mma::B_TILES);
            }
    }
};

/* A taker gets dS before the softcap's derivative. wanted: it takes dS element by element. unrounded: sums of S and dP
 * must be rounded to nearest, since no 16-bit result hides the truncation. OPERANDS: P and dS go to shared memory,
 * too. */

/* This taker stores every element once, into dBias itself. Tile: that of dS. */
template <class Tile> struct attn_bias_store {
    enum { OPERANDS = 1 };
    char *to; /* element (0, 0) of the tile */
    int64_t stride;
    uint32_t dtype;
    int rows, cols;
    bool add;
    /* dS in shared memory is the tile of dBias: it is written from there. */
    DEV_FN bool from_tile(const stw_attn_launch &l) {
        return Tile::TERMS == 1 && l.bias_direct && l.p.dbias_dtype == l.p.dtype && !(l.p.accumulate & STW_OUT_DBIAS) &&
               !(l.p.features & STW_FEAT_SOFTCAP);
    }
    DEV_FN bool wanted(const stw_attn_launch &l) { return l.bias_direct && !from_tile(l); }
    DEV_FN bool unrounded(const stw_attn_launch &l) { return l.bias_direct && l.p.dbias_dtype == STW_F32; }
    DEV_METHOD void take(int, int, int, int row, int col, float ds) const {
        if (row >= rows || col >= cols) return;
        int64_t at = row * stride + col;
        dev_store_any(to, at, dtype, add ? ((float *)to)[at] + ds : ds);
    }
};

/* This taker sums over tiles, in registers: for a bias that is broadcast. */
template <class S> struct attn_bias_sum {
    enum { OPERANDS = 0 };
    dev_acc<S> acc;
    DEV_FN bool wanted(const stw_attn_launch &) { return true; }
    DEV_FN bool unrounded(const stw_attn_launch &) { return true; }
    DEV_METHOD void take(int m, int n, int i, int, int, float ds) { acc.v[m][n][i] += ds; }
};

/* e^x, as accurate as an operand of type T needs. */
template <class T> DEV_FN float attn_exp(float x) {
    return sizeof(T) == 4 ? dev_exp_f32(x) : dev_exp2_fast(x * DEV_LOG2E);
}

/* All features, in passes over the tile, so that an absent one costs a branch: products -> logits S. What comes back is
 * the factor that is still missing. */
template <class S>
DEV_FN float attn_scores_logits(dev_acc<S> &s, const dev_logit &logit, const dev_bias_words<S> &words,
                                const dev_mask &mask, int wave, int lane) {
#define ATTN_EACH(body)                                                                                                \
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)                                                                         \
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)                                                                     \
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {                                                            \
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));                      \
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);                                      \
                float &x = s.v[m][n][i];                                                                               \
                (void)row, (void)col;                                                                                  \
                body;                                                                                                  \
            }
    float slope;
    if (!(logit.features & (STW_FEAT_SOFTCAP | STW_FEAT_BIAS | STW_FEAT_ALIBI))) return logit.scale;
    ATTN_EACH(x *= logit.scale)
    if (logit.features & STW_FEAT_SOFTCAP) ATTN_EACH(x = dev_tanh(x / logit.softcap, &slope) * logit.softcap)
    if (logit.features & STW_FEAT_BIAS) {
        if (logit.bias_dtype == STW_F32) ATTN_EACH(if (row < mask.rows && col < mask.cols) x += logit.bias_at(row, col))
        else if (logit.hides())
            ATTN_EACH(if (row < mask.rows && col < mask.cols && logit.hides_at(row, col)) x = -dev_infinity())
        else ATTN_EACH(x += words.at(logit, m, n, i))
    }
    if (logit.features & STW_FEAT_ALIBI) ATTN_EACH(x += logit.alibi_at(row, col))
    return 1.0f;
#undef ATTN_EACH
}

/* dS to whoever wants it element by element. */
template <class Bias, class S, class Given>
DEV_FN void attn_scores_take(const dev_acc<S> &ds, Given &&bias, int wave, int lane) {
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                bias.take(m, n, i, S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i)),
                          S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i), ds.v[m][n][i]);
}

/* dS -> dS': times the softcap's derivative, from products made once more: registers for the derivatives would be
 * taken from every other feature. */
template <class S> DEV_FN void attn_scores_slopes(dev_acc<S> &ds, const dev_acc<S> &s, const dev_logit &logit) {
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                float slope;
                dev_tanh(s.v[m][n][i] * logit.scale / logit.softcap, &slope);
                if (ds.v[m][n][i] != 0.0f) ds.v[m][n][i] *= slope;
            }
}

/* S -> P = exp(S - LSE), a few elements after each step of a product. Invisible pairs get what comes out. 16-bit
 * operands: the fast power of two will do. FULL: a bias may put S anywhere (-1e9 in every column of a masked row), so
 * the difference comes first: of S log2(e) - LSE log2(e) only rounding would be left there. */
template <class C, bool FULL> struct attn_exp_side {
    typedef typename C::score_split S;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0, SHORT = sizeof(typename C::T) == 2, ONCE = SHORT && !FULL };
    dev_acc<S> &s;
    float factor, base[S::MT][LEAF_ACC_ROWS];
    DEV_FN attn_exp_side of(dev_acc<S> &s, const float *stats, float scale, int wave, int lane) {
        attn_exp_side e = {s, ONCE ? scale * DEV_LOG2E : scale, {}};
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot)
                e.base[m][slot] =
                    (ONCE ? -DEV_LOG2E : -1.0f) * stats[S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot)];
        return e;
    }
    DEV_METHOD void part(int first, int end) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                if (f >= first && f < end) {
                    float &x = s.v[f / S::NT][f % S::NT][i];
                    x = fmaf(x, factor, base[f / S::NT][leaf_acc_slot(i)]);
                    x = ONCE ? dev_exp2_fast(x) : SHORT ? dev_exp2_fast(x * DEV_LOG2E) : dev_exp_f32(x);
                }
    }
    DEV_METHOD void step(int k, int steps) { part(COUNT * k / steps, COUNT * (k + 1) / steps); }
    DEV_METHOD void every() { part(0, COUNT); }
};

/* P and dP -> P.Z and dS = P (dP - D). MASKED: some pair is invisible or hidden, or a row's LSE infinite: such pairs,
 * and those whose P is 0, give 0 whatever dP is. DROPS: dropout is on; 2: of P.Z only kept pairs are told from others,
 * and who sums them multiplies by keep_scale. */
template <class C, bool MASKED, int DROPS, class S = typename C::score_split>
DEV_FN void attn_scores_to_ds(dev_acc<S> &p, dev_acc<S> &dp, const float *stats, const dev_mask &mask,
                              const attn_dropout<S> &keep, float keep_scale, int wave, int lane) {
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
        float delta[LEAF_ACC_ROWS];
        int low[LEAF_ACC_ROWS], high[LEAF_ACC_ROWS]; /* visible columns of the row */
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            delta[slot] = stats[C::BM + row];
            if (!MASKED) continue;
            mask.columns(row, &low[slot], &high[slot]);
            if (dev_is_infinite(stats[row])) high[slot] = low[slot] - 1;
        }
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                int slot = leaf_acc_slot(i), col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                float x = p.v[m][n][i], flow = dp.v[m][n][i];
                bool seen = !MASKED || (x != 0.0f && col >= low[slot] && col <= high[slot]);
                float ds;
                if (DROPS == 2) {
                    bool keeps = keep.at((m * S::NT + n) * LEAF_ACC + i);
                    p.v[m][n][i] = keeps && seen ? x : 0.0f;
                    ds = x * fmaf(keeps ? flow : 0.0f, keep_scale, -delta[slot]);
                    dp.v[m][n][i] = seen ? ds : 0.0f;
                    continue;
                } else if (DROPS) {
                    bool keeps = keep.at((m * S::NT + n) * LEAF_ACC + i);
                    flow = keeps ? flow * keep_scale : 0.0f;
                    p.v[m][n][i] = keeps && seen ? x * keep_scale : 0.0f;
                } else if (MASKED) {
                    p.v[m][n][i] = seen ? x : 0.0f;
                }
                ds = x * (flow - delta[slot]);
                dp.v[m][n][i] = seen ? ds : 0.0f;
            }
    }
}

#endif
