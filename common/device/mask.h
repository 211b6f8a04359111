/* SPDX-License-Identifier: MIT
 *
 * Which pairs of one tile are visible, and what features add to a pair's logit: band, used lengths, bias,
 * ALiBi, softcap. A mask is built once a tile and asked once a pair. */
#ifndef STW_COMMON_DEVICE_MASK_H
#define STW_COMMON_DEVICE_MASK_H

#include "tile.h"

/* Local row i0 and key j0 of the tile's corner, and the bounds in tile coordinates. */
struct dev_mask {
    int rows, cols; /* rows and keys of the tile that are in use */
    int low, high;  /* visible: low <= col - row <= high        */
    DEV_FN dev_mask of(const stw_attn_seq &seq, int64_t i0, int64_t j0, int bm, int bn) {
        const int64_t far = INT64_C(1) << 28;
        dev_mask m;
        m.rows = (int)stw_clamp_i64(seq.q.used - i0, 0, bm);
        m.cols = (int)stw_clamp_i64(seq.kv.used - j0, 0, bn);
        m.low = (int)stw_clamp_i64(seq.band.low + i0 - j0, -far, far);
        m.high = (int)stw_clamp_i64(seq.band.high + i0 - j0, -far, far);
        return m;
    }
    DEV_FN dev_mask whole(int bm, int bn) {
        dev_mask m = {bm, bn, -bm, bn};
        return m;
    }
    /* Visible columns of a row: from *low_out to *high_out. */
    DEV_METHOD void columns(int row, int *low_out, int *high_out) const {
        *low_out = row < rows ? row + low : cols;
        *high_out = row + high < cols ? row + high : cols - 1;
    }
    DEV_METHOD bool sees(int row, int col) const {
        return row < rows && col < cols && col - row >= low && col - row <= high;
    }
};

/* What a logit needs besides the product. */
struct dev_logit {
    uint32_t features;
    float scale, softcap, slope;
    int64_t diagonal, first_key; /* ALiBi: key - row distance of the corner, or its key          */
    const char *bias;            /* of the tile's corner                                         */
    int64_t bias_query, bias_key;
    uint32_t bias_dtype;
    DEV_FN dev_logit of(const stw_attn_params &p, const stw_attn_seq &seq, int64_t b, int64_t h, int64_t i0,
                        int64_t j0) {
        dev_logit l;
        l.features = p.features;
        l.scale = p.scale;
        l.softcap = p.softcap;
        l.slope = 0.0f;
        l.diagonal = l.first_key = 0;
        if (p.features & STW_FEAT_ALIBI) {
            l.diagonal = j0 - i0 - seq.band.shift;
            l.first_key = j0 + seq.kv.offset;
            l.slope = p.alibi_slopes[b * p.alibi_stride_batch + h];
        }
        l.bias = nullptr;
        l.bias_query = p.bias.query;
        l.bias_key = p.bias.key;
        l.bias_dtype = p.bias_dtype;
        if (p.features & STW_FEAT_BIAS)
            l.bias =
                (const char *)p.bias.data + (b * p.bias.batch + h * p.bias.head + i0 * p.bias.query + j0 * p.bias.key) *
                                                (p.bias_dtype == STW_F32  ? 4
                                                 : p.bias_dtype == STW_U8 ? 1
                                                                          : 2);
        return l;
    }
    /* The bias is numbers of 16 bits. */
    DEV_METHOD bool has_halves() const { return bias_dtype == STW_F16 || bias_dtype == STW_BF16; }
    /* It is bytes: 0 hides its pair, all others leave the logit as it is. */
    DEV_METHOD bool hides() const { return bias_dtype == STW_U8; }
    DEV_METHOD bool hides_at(int row, int col) const { return !bias[row * bias_query + col * bias_key]; }
    /* Element of a bias of numbers. */
    DEV_METHOD float bias_at(int row, int col) const {
        return dev_load_any(bias, row * bias_query + col * bias_key, bias_dtype);
    }
    /* What ALiBi adds. */
    DEV_METHOD float alibi_at(int row, int col) const {
        if (features & STW_FEAT_ALIBI_COLUMN) return (float)(first_key + col) * slope;
        return fabsf((float)(diagonal + (col - row))) * -slope;
    }
    /* S of a visible pair. */
    DEV_METHOD float value(float dot, int row, int col) const {
        float x = dot * scale, derivative;
        if (features & STW_FEAT_SOFTCAP) x = dev_tanh(x / softcap, &derivative) * softcap;
        if ((features & STW_FEAT_BIAS) && !hides()) x += bias_at(row, col);
        if (features & STW_FEAT_ALIBI) x += alibi_at(row, col);
        if (hides() && hides_at(row, col)) x = -dev_infinity();
        return x;
    }
};

/* A wave's part of the tile of a 16-bit bias, two neighbours a word: read before a product and used after it. */
template <class Split> struct dev_bias_words {
    enum { PAIRS = LEAF_ACC / 2 };
    uint32_t word[Split::MT][Split::NT][PAIRS];
    /* Whole tiles of aligned pairs: see fetch. */
    DEV_FN bool plain(const dev_logit &l, const dev_mask &mask, int rows, int cols) {
        return LEAF_ACC_PAIRS && l.has_halves() && l.bias_key == 1 &&
               ((uintptr_t)l.bias | (uintptr_t)(l.bias_query * 2)) % 4 == 0 && mask.rows == rows && mask.cols == cols;
    }
    /* The plain case, without a branch: in front of a product. */
    DEV_METHOD void fetch(const dev_logit &l, bool plain, int wave, int lane) {
        if (!LEAF_ACC_PAIRS) return;
        DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
            DEV_UNROLL_FOR (int k = 0; k < PAIRS; ++k) {
                int row = Split::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(2 * k));
                const char *from = l.bias + (row * l.bias_query + Split::col0(wave) + leaf_acc_col(lane, 2 * k)) * 2;
                DEV_UNROLL_FOR (int n = 0; n < Split::NT; ++n)
                    dev_load_word_if(&word[m][n][k], from + n * (LEAF_MMA_N * 2), plain);
            }
    }
    /* All other cases; zeros where there is no bias, or none of 16 bits, or where fetch will fill. */
    DEV_METHOD void load(const dev_logit &l, const dev_mask &mask, bool plain, int wave, int lane) {
        bool pairs = LEAF_ACC_PAIRS && l.bias_key == 1 && ((uintptr_t)l.bias | (uintptr_t)(l.bias_query * 2)) % 4 == 0;
        DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
            DEV_UNROLL_FOR (int n = 0; n < Split::NT; ++n)
                DEV_UNROLL_FOR (int k = 0; k < PAIRS; ++k) word[m][n][k] = 0;
        if (plain || !l.has_halves()) return;
        DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
            DEV_UNROLL_FOR (int k = 0; k < PAIRS; ++k)
                DEV_UNROLL_FOR (int n = 0; n < Split::NT; ++n) {
                    uint32_t x = 0;
                    int row = Split::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(2 * k));
                    int col = Split::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, 2 * k);
                    int row1 = Split::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(2 * k + 1));
                    int col1 = Split::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, 2 * k + 1);
                    const uint16_t *from = (const uint16_t *)(const void *)l.bias;
                    if (row < mask.rows && col < mask.cols) {
                        if (pairs && col1 < mask.cols)
                            x = *(const uint32_t *)(const void *)(from + row * l.bias_query + col);
                        else x = from[row * l.bias_query + col * l.bias_key];
                    }
                    if (!(pairs && col1 < mask.cols) && row1 < mask.rows && col1 < mask.cols)
                        x |= (uint32_t)from[row1 * l.bias_query + col1 * l.bias_key] << 16;
                    word[m][n][k] = x;
                }
    }
    DEV_METHOD float at(const dev_logit &l, int m, int n, int i) const {
        uint16_t bits = (uint16_t)(word[m][n][i / 2] >> (i % 2 * 16));
        return l.bias_dtype == STW_BF16 ? dev_from_bf16(bits) : dev_from_f16(bits);
    }
};

#endif
