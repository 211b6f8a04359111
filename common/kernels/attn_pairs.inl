/* SPDX-License-Identifier: MIT
 *
 * One tile of the attention matrix in registers: from the products Q K^T and dO V^T to the operands P.Z and
 * dS' of the gradients. Pairs that are not visible are selected to zero, never multiplied. Included by
 * attn_bwd.inl and attn_bwd_bias.inl. */

/* Shapes of one backward kernel: T, padded head dim, tile, stages, waves. */
template <class T_, int HD_, int BM_, int BN_, int STAGES_, int WARPS_> struct attn_config {
    typedef T_ T;
    enum { HD = HD_, BM = BM_, BN = BN_, STAGES = STAGES_, WARPS = WARPS_, THREADS = WARPS_ * DEV_WAVE };
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
        AT_Q = AT_V + keys::BYTES,
        AT_DOUT = AT_Q + STAGES * rows::BYTES,
        AT_STATS = AT_DOUT + STAGES * rows::BYTES,
        AT_P = AT_STATS + STAGES * STATS * 4,
        AT_DS = AT_P + pairs::BYTES,
        AT_UNIT = AT_DS + pairs::BYTES,
        BYTES = AT_UNIT + (int)STW_UNIT_BYTES
    };
    static_assert(BYTES == (int)STW_BWD_SMEM(sizeof(T), HD_, BM_, BN_, STAGES_), "host and device agree on tiles");
};

/* The own map where rows are grouped as the counters are: four lanes need the four words of one Philox call, so
 * each makes a quarter of the calls and they exchange the resulting bits, a nibble a call. */
template <class S> DEV_FN uint64_t attn_keep_bits_shared(const stw_attn_params &p, const stw_dropout_stream &stream,
                                                         int64_t i0, int64_t j0, int wave, int lane) {
    enum { CALLS = S::MT * S::NT * LEAF_ACC / 4, PART = CALLS < 8 ? CALLS : 8 };
    int mine = leaf_row_of_four(lane);
    uint64_t bits = 0;
    DEV_ROLLED for (int from = 0; from < CALLS; from += PART) {
        uint32_t nibbles = 0;
        DEV_ROLLED for (int c = 0; c < PART; ++c) {
            int e = (from + c) * 4 + mine, i = e % LEAF_ACC, n = e / LEAF_ACC % S::NT, m = e / (LEAF_ACC * S::NT);
            int64_t row = i0 + S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i)) + stream.q_offset;
            int64_t col = j0 + S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i) + stream.kv_offset;
            stw_philox_words w = stw_dropout_philox_words(&stream, row, col);
            DEV_UNROLL for (int k = 0; k < 4; ++k)
                nibbles |= (w.word[k] >= p.dropout_threshold ? 1u : 0u) << (c * 4 + k);
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

/* Takers of dS (before the softcap's derivative); OPERANDS: the tile's P and dS' are wanted too. */
/* Every element once: into dBias itself. */
struct attn_bias_store {
    enum { OPERANDS = 1 };
    char *to; /* element (0, 0) of the tile, or null */
    int64_t stride;
    uint32_t dtype;
    int rows, cols;
    bool add;
    DEV_FN bool wanted(const attn_bias_store &b) { return b.to != nullptr; }
    DEV_FN void take(attn_bias_store &b, int, int, int, int row, int col, float ds) {
        if (!b.to || row >= b.rows || col >= b.cols) return;
        int64_t at = row * b.stride + col;
        dev_store_any(b.to, at, b.dtype, b.add ? ((float *)b.to)[at] + ds : ds);
    }
};

/* Sums over tiles, in registers: for a bias that is broadcast. */
template <class S> struct attn_bias_sum {
    enum { OPERANDS = 0 };
    dev_acc<S> acc;
    DEV_FN bool wanted(const attn_bias_sum &) { return true; }
    DEV_FN void take(attn_bias_sum &b, int m, int n, int i, int, int, float ds) { b.acc.v[m][n][i] += ds; }
};

/* e^x, as accurate as an operand of type T needs. */
template <class T> DEV_FN float attn_exp(float x) { return sizeof(T) == 4 ? dev_exp_f32(x) : dev_exp2_fast(x * DEV_LOG2E); }

/* All features. s: products -> P.Z, dp: products -> dS'. stats: LSE and D of the tile's rows. */
template <class C, class Bias, class S = typename C::pair_split>
DEV_FN void attn_pairs_full(dev_acc<S> &s, dev_acc<S> &dp, const float *stats, const dev_mask &mask,
                            const dev_logit &logit, uint64_t keep, float keep_scale, Bias &bias, int wave, int lane) {
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
        float lse[LEAF_ACC_ROWS], delta[LEAF_ACC_ROWS];
        DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            lse[slot] = stats[row];
            delta[slot] = stats[C::BM + row];
        }
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int slot = leaf_acc_slot(i);
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                float p = 0.0f, ds = 0.0f, slope = 1.0f, flow = dp.v[m][n][i];
                if (dev_mask::sees(mask, row, col) && !dev_is_infinite(lse[slot])) {
                    float x = dev_logit::value(logit, s.v[m][n][i], row, col, &slope);
                    if (x != -dev_infinity()) {
                        p = attn_exp<typename C::T>(x - lse[slot]);
                        if (logit.features & STW_FEAT_DROPOUT) {
                            bool kept = keep >> ((m * S::NT + n) * LEAF_ACC + i) & 1;
                            flow = kept ? flow * keep_scale : 0.0f;
                            ds = p * (flow - delta[slot]);
                            p = kept ? p * keep_scale : 0.0f;
                        } else {
                            ds = p * (flow - delta[slot]);
                        }
                    }
                }
                Bias::take(bias, m, n, i, row, col, ds);
                s.v[m][n][i] = p;
                dp.v[m][n][i] = logit.features & STW_FEAT_SOFTCAP ? (ds == 0.0f ? 0.0f : ds * slope) : ds;
            }
    }
}

/* No feature but masks. */
template <class C, bool MASKED, class S = typename C::pair_split>
DEV_FN void attn_pairs_plain(dev_acc<S> &s, dev_acc<S> &dp, const float *stats, const dev_mask &mask, float scale,
                             int wave, int lane) {
    const float factor = scale * DEV_LOG2E;
    DEV_UNROLL for (int m = 0; m < S::MT; ++m) {
        float lse[LEAF_ACC_ROWS], delta[LEAF_ACC_ROWS];
        int low[LEAF_ACC_ROWS], high[LEAF_ACC_ROWS]; /* visible columns of the row */
        DEV_UNROLL for (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            lse[slot] = stats[row] * DEV_LOG2E;
            delta[slot] = stats[C::BM + row];
            if (MASKED) {
                low[slot] = row + mask.low;
                high[slot] = row + mask.high < mask.cols ? row + mask.high : mask.cols - 1;
                if (row >= mask.rows || dev_is_infinite(lse[slot])) high[slot] = -1, low[slot] = 0;
            }
        }
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int slot = leaf_acc_slot(i);
                float p = dev_exp2_fast(fmaf(s.v[m][n][i], factor, -lse[slot]));
                bool seen = p != 0.0f;
                if (MASKED) {
                    int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                    seen = seen && col >= low[slot] && col <= high[slot];
                    p = seen ? p : 0.0f;
                }
                float ds = p * (dp.v[m][n][i] - delta[slot]);
                s.v[m][n][i] = p;
                dp.v[m][n][i] = seen ? ds : 0.0f;
            }
    }
}
