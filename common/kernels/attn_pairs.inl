/* SPDX-License-Identifier: MIT
 *
 * One tile of the attention matrix in registers: from the products Q K^T and dO V^T to the operands P.Z and
 * dS' of the gradients. Pairs that are not visible are selected to zero, never multiplied. Included by
 * attn_bwd.inl and attn_bwd_bias.inl. */

/* Shapes of one backward kernel: T, padded head dim, tile, stages, waves. Stages 0: one, with V in registers. */
template <class T_, int HD_, int BM_, int BN_, int STAGES_, int WARPS_> struct attn_config {
    typedef T_ T;
    enum { HD = HD_, BM = BM_, BN = BN_, WARPS = WARPS_, THREADS = WARPS_ * DEV_WAVE };
    enum { VALUES_HELD = STAGES_ == 0, STAGES = VALUES_HELD ? 1 : STAGES_ };
    static_assert(!VALUES_HELD || BN <= BM, "V passes through Q's place");
    typedef dev_tile<T, BM, HD> rows;
    typedef dev_tile<T, BN, HD> keys;
    typedef dev_tile<T, BM, BN> pairs;
    typedef dev_split<T, BM, BN, WARPS> pair_split;
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
        AT_DS = AT_P + pairs::BYTES,
        AT_UNIT = AT_DS + pairs::BYTES,
        BYTES = AT_UNIT + (int)STW_UNIT_BYTES
    };
    /* Where the waves meet at the end of a step. */
    DEV_FN dev_two_halves *step_end(char *smem) { return (dev_two_halves *)(void *)(smem + BYTES - sizeof(dev_two_halves)); }
    static_assert(BYTES == (int)STW_BWD_SMEM(sizeof(T), HD_, BM_, BN_, STAGES_), "host and device agree on tiles");
};

/* V in registers, where the configuration holds it there: a wave's operands of dO V^T. */
template <class C> struct attn_values {
    typedef leaf_mma<typename C::T> mma;
    enum { GROUPS = C::pair_split::NT / mma::B_TILES, STEPS = C::VALUES_HELD ? C::HD / mma::K : 1 };
    typename mma::b_frag f[STEPS][GROUPS];
    DEV_FN void take(attn_values &values, const char *smem, int wave, int lane) {
        DEV_UNROLL for (int k = 0; k < STEPS; ++k)
            DEV_UNROLL for (int g = 0; g < GROUPS; ++g)
                mma::template load_b<false, typename C::keys>(values.f[k][g], (const typename C::T *)(smem + C::AT_V),
                                                              C::pair_split::col0(wave) + g * mma::B_TILES * LEAF_MMA_N,
                                                              k * mma::K, lane);
    }
    DEV_FN void product(dev_acc<typename C::pair_split> &acc, const typename C::T *dout, const attn_values &values, int wave,
                        int lane) {
        typedef typename C::pair_split S;
        DEV_UNROLL for (int k = 0; k < STEPS; ++k)
            DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
                typename mma::a_frag a;
                mma::template load_a<false, typename C::rows>(a, dout, S::row0(wave) + m * LEAF_MMA_M, k * mma::K, lane);
                DEV_UNROLL for (int n = 0; n < S::NT; ++n)
                    mma::product_rounded(acc.v[m][n], a, values.f[k][n / mma::B_TILES], n % mma::B_TILES);
            }
    }
};

/* The own map where rows are grouped as the counters are: the four words of one Philox call are four rows' of one
 * column. Where four lanes hold these, each makes the calls of one value of the fragments, and they exchange the
 * resulting bits, a nibble a call. */
template <class S> DEV_FN uint64_t attn_keep_bits_shared(const stw_attn_params &p, const stw_dropout_stream &stream,
                                                         int64_t i0, int64_t j0, int wave, int lane) {
    enum { CALLS = S::MT * S::NT * LEAF_ACC / 4, PART = CALLS < 8 ? CALLS : 8 };
    static_assert(LEAF_ACC == 4, "a call a fragment");
    int mine = leaf_row_of_four(lane);
    int64_t row = i0 + stream.q_offset + S::row0(wave) + leaf_slot_row(lane, leaf_acc_slot(mine));
    int64_t col = j0 + stream.kv_offset + S::col0(wave) + leaf_acc_col(lane, mine);
    uint64_t bits = 0;
    DEV_ROLLED for (int from = 0; from < CALLS; from += PART) {
        uint32_t nibbles = 0;
        DEV_UNROLL_2 for (int c = 0; c < PART; ++c) {
            int f = from + c;
            stw_philox_words w =
                stw_dropout_philox_words(&stream, row + f / S::NT * LEAF_MMA_M, col + f % S::NT * LEAF_MMA_N);
            uint32_t nibble = 0;
            DEV_UNROLL for (int k = 0; k < 4; ++k) nibble |= (w.word[k] >= p.dropout_threshold ? 1u : 0u) << k;
            nibbles |= nibble << (c * 4);
        }
        if (LEAF_FOUR_LANES == 1) { /* the four rows are this lane's own */
            bits |= (uint64_t)nibbles << (from * 4);
            continue;
        }
        DEV_UNROLL for (int k = 0; k < 4; ++k) { /* calls of the lane with row k: elements 4c + k */
            uint32_t theirs = dev_shuffle(nibbles, leaf_lane_of_four(lane, k)) >> mine & 0x11111111u;
            bits |= (uint64_t)(theirs << k) << (from * 4);
        }
    }
    return bits;
}

/* Bit e: element e of this thread (in the order of the loops below) is kept by dropout. Rolled: Philox is
 * long and the registers are taken. */
template <class S> DEV_FN uint64_t attn_keep_bits(const stw_attn_params &p, const stw_dropout_stream &stream,
                                                  const dev_mask &mask, int64_t i0, int64_t j0, int wave, int lane) {
    uint64_t bits = 0;
    static_assert(S::MT * S::NT * LEAF_ACC <= 64, "one bit an element");
    if (p.dropout_map == 0u && ((i0 + stream.q_offset) & 3) == 0)
        return attn_keep_bits_shared<S>(p, stream, i0, j0, wave, lane);
    DEV_ROLLED for (int e = 0; e < S::MT * S::NT * LEAF_ACC; ++e) {
        int i = e % LEAF_ACC, n = e / LEAF_ACC % S::NT, m = e / (LEAF_ACC * S::NT);
        int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
        int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
        if (row < mask.rows && col < mask.cols && stw_dropout_keep(&p, &stream, i0 + row, j0 + col))
            bits |= (uint64_t)1 << e;
    }
    return bits;
}

/* Takers of dS (before the softcap's derivative). wanted: element by element; unrounded: S and dP shall be those that
 * no 16-bit operand hides; OPERANDS: the tile's P and dS' are wanted too. */
/* Every element once, into dBias itself. */
struct attn_bias_store {
    enum { OPERANDS = 1 };
    char *to; /* element (0, 0) of the tile */
    int64_t stride;
    uint32_t dtype;
    int rows, cols;
    bool add;
    /* dS' in shared memory is the tile of dBias: it is written from there. */
    DEV_FN bool from_tile(const stw_attn_launch &l) {
        return l.bias_direct && l.p.dbias_dtype == l.p.dtype && !(l.p.accumulate & 0x08u) && !(l.p.features & STW_FEAT_SOFTCAP);
    }
    DEV_FN bool wanted(const stw_attn_launch &l) { return l.bias_direct && !from_tile(l); }
    DEV_FN bool unrounded(const stw_attn_launch &l) { return l.bias_direct && l.p.dbias_dtype == 3u; }
    DEV_FN void take(attn_bias_store &b, int, int, int, int row, int col, float ds) {
        if (row >= b.rows || col >= b.cols) return;
        int64_t at = row * b.stride + col;
        dev_store_any(b.to, at, b.dtype, b.add ? ((float *)b.to)[at] + ds : ds);
    }
};

/* Sums over tiles, in registers: for a bias that is broadcast. */
template <class S> struct attn_bias_sum {
    enum { OPERANDS = 0 };
    dev_acc<S> acc;
    DEV_FN bool wanted(const stw_attn_launch &) { return true; }
    DEV_FN bool unrounded(const stw_attn_launch &) { return true; }
    DEV_FN void take(attn_bias_sum &b, int m, int n, int i, int, int, float ds) { b.acc.v[m][n][i] += ds; }
};

/* e^x, as accurate as an operand of type T needs. */
template <class T> DEV_FN float attn_exp(float x) { return sizeof(T) == 4 ? dev_exp_f32(x) : dev_exp2_fast(x * DEV_LOG2E); }

/* All features, in passes over the tile, so that an absent one costs a branch: products -> logits S. */
template <class S>
DEV_FN void attn_pairs_logits(dev_acc<S> &s, const dev_logit &logit, const dev_bias_words<S> &words, const dev_mask &mask,
                              int wave, int lane) {
#define ATTN_EACH(body)                                                                                                \
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) DEV_UNROLL for (int n = 0; n < S::NT; ++n)                               \
        DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {                                                                \
        int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));                              \
        int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);                                              \
        float &x = s.v[m][n][i];                                                                                       \
        (void)row, (void)col;                                                                                          \
        body;                                                                                                          \
    }
    float slope;
    ATTN_EACH(x *= logit.scale)
    if (logit.features & STW_FEAT_SOFTCAP) ATTN_EACH(x = dev_tanh(x / logit.softcap, &slope) * logit.softcap)
    if (logit.features & STW_FEAT_BIAS) {
        if (logit.bias_dtype == 3u) ATTN_EACH(if (row < mask.rows && col < mask.cols) x += dev_logit::bias_at(logit, row, col))
        else ATTN_EACH(x += dev_bias_words<S>::at(words, logit, m, n, i))
    }
    if (logit.features & STW_FEAT_ALIBI) ATTN_EACH(x += dev_logit::alibi_at(logit, row, col))
#undef ATTN_EACH
}

/* Logits -> weights P, and P.Z into shared memory (`pairs`, if any). An element that dropout drops has a negative
 * weight. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_pairs_weights(dev_acc<S> &s, const float *stats, const dev_mask &mask, uint64_t keep, float keep_scale,
                               typename C::T *pairs, int wave, int lane) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
        float lse[LEAF_ACC_ROWS];
        int low[LEAF_ACC_ROWS], high[LEAF_ACC_ROWS]; /* visible columns of the row */
        DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            lse[slot] = stats[row];
            dev_mask::columns(mask, row, &low[slot], &high[slot]);
            if (dev_is_infinite(lse[slot])) high[slot] = low[slot] - 1;
        }
        DEV_UNROLL for (int n = 0; n < S::NT; ++n) {
            float kept[LEAF_ACC];
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int slot = leaf_acc_slot(i), col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                bool seen = col >= low[slot] && col <= high[slot], keeps = keep >> ((m * S::NT + n) * LEAF_ACC + i) & 1;
                float x = s.v[m][n][i], p = seen && x != -dev_infinity() ? attn_exp<typename C::T>(x - lse[slot]) : 0.0f;
                kept[i] = keeps ? p * keep_scale : 0.0f;
                s.v[m][n][i] = keeps ? p : -p;
            }
            if (pairs)
                leaf_store_acc<typename C::pairs>(pairs, S::row0(wave) + m * LEAF_MMA_M, S::col0(wave) + n * LEAF_MMA_N, kept,
                                                  lane);
        }
    }
}

/* Weights and products dP -> dS. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_pairs_scores(const dev_acc<S> &weights, dev_acc<S> &dp, const float *stats, float keep_scale, int wave, int lane) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
        float delta[LEAF_ACC_ROWS];
        DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot)
            delta[slot] = stats[C::BM + S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot)];
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                float w = weights.v[m][n][i], flow = w > 0.0f ? dp.v[m][n][i] * keep_scale : 0.0f;
                dp.v[m][n][i] = w == 0.0f ? 0.0f : fabsf(w) * (flow - delta[leaf_acc_slot(i)]);
            }
    }
}

/* dS to whoever wants it element by element. */
template <class Bias, class S, class Given> DEV_FN void attn_pairs_take(const dev_acc<S> &ds, Given &&bias, int wave, int lane) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                Bias::take(bias, m, n, i, S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i)),
                           S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i), ds.v[m][n][i]);
}

/* dS -> dS': times the softcap's derivative, from products made once more: registers for the derivatives would be
 * taken from every other feature. */
template <class S> DEV_FN void attn_pairs_slopes(dev_acc<S> &ds, const dev_acc<S> &s, const dev_logit &logit) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                float slope;
                dev_tanh(s.v[m][n][i] * logit.scale / logit.softcap, &slope);
                if (ds.v[m][n][i] != 0.0f) ds.v[m][n][i] *= slope;
            }
}

/* No feature but masks: P = e^(S - LSE) of a few elements after each step of a product. Invisible pairs get what
 * comes out. */
template <class C> struct attn_exp_side {
    typedef typename C::pair_split S;
    enum { COUNT = S::MT * S::NT, ROUNDED = 0 };
    dev_acc<S> &s;
    float factor, base[S::MT][LEAF_ACC_ROWS];
    DEV_FN attn_exp_side of(dev_acc<S> &s, const float *stats, float scale, int wave, int lane) {
        attn_exp_side e = {s, scale * DEV_LOG2E, {}};
        DEV_UNROLL for (int m = 0; m < S::MT; ++m)
            DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot)
                e.base[m][slot] = -DEV_LOG2E * stats[S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot)];
        return e;
    }
    DEV_FN void step(attn_exp_side &e, int k, int steps) {
        DEV_UNROLL for (int f = 0; f < COUNT; ++f)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                if (f >= COUNT * k / steps && f < COUNT * (k + 1) / steps) {
                    float &x = e.s.v[f / S::NT][f % S::NT][i];
                    x = dev_exp2_fast(fmaf(x, e.factor, e.base[f / S::NT][leaf_acc_slot(i)]));
                }
    }
};

/* P and dP -> P and dS where every pair is visible. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_pairs_plain(const dev_acc<S> &p, dev_acc<S> &dp, const float *stats, int wave, int lane) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
        float delta[LEAF_ACC_ROWS];
        DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot)
            delta[slot] = stats[C::BM + S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot)];
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i)
                dp.v[m][n][i] = p.v[m][n][i] * (dp.v[m][n][i] - delta[leaf_acc_slot(i)]);
    }
}

/* The same where some are not, or where a row's LSE is infinite. */
template <class C, class S = typename C::pair_split>
DEV_FN void attn_pairs_masked(dev_acc<S> &p, dev_acc<S> &dp, const float *stats, const dev_mask &mask, int wave, int lane) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
        float delta[LEAF_ACC_ROWS];
        int low[LEAF_ACC_ROWS], high[LEAF_ACC_ROWS]; /* visible columns of the row */
        DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            delta[slot] = stats[C::BM + row];
            dev_mask::columns(mask, row, &low[slot], &high[slot]);
            if (dev_is_infinite(stats[row])) high[slot] = low[slot] - 1;
        }
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int slot = leaf_acc_slot(i), col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                float x = p.v[m][n][i];
                bool seen = x != 0.0f && col >= low[slot] && col <= high[slot];
                p.v[m][n][i] = seen ? x : 0.0f;
                dp.v[m][n][i] = seen ? x * (dp.v[m][n][i] - delta[slot]) : 0.0f;
            }
    }
}
