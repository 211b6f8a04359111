/* SPDX-License-Identifier: MIT
 *
 * Which pairs of one tile are visible, and what features add to a pair's logit: band, used lengths, bias,
 * ALiBi, softcap, dropout. Built once a tile, asked once a pair. */
#ifndef STW_COMMON_DEVICE_MASK_H
#define STW_COMMON_DEVICE_MASK_H

#include "device.h"

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
    DEV_FN bool covers(const dev_mask &m, int bm, int bn) {
        return m.rows == bm && m.cols == bn && m.low <= -(bm - 1) && m.high >= bn - 1;
    }
    DEV_FN bool sees(const dev_mask &m, int row, int col) {
        return row < m.rows && col < m.cols && col - row >= m.low && col - row <= m.high;
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
        l.diagonal = j0 - i0 - seq.band.shift;
        l.first_key = j0 + seq.kv.offset;
        if (p.features & STW_FEAT_ALIBI) l.slope = p.alibi_slopes[b * p.alibi_stride_batch + h];
        l.bias = nullptr;
        l.bias_query = p.bias.query;
        l.bias_key = p.bias.key;
        l.bias_dtype = p.bias_dtype;
        if (p.features & STW_FEAT_BIAS)
            l.bias = (const char *)p.bias.data +
                     (b * p.bias.batch + h * p.bias.head + i0 * p.bias.query + j0 * p.bias.key) *
                         (p.bias_dtype == 3u ? 4 : 2);
        return l;
    }
    /* S of a visible pair; slope_out: derivative of the softcap. */
    DEV_FN float value(const dev_logit &l, float dot, int row, int col, float *slope_out) {
        float x = dot * l.scale;
        *slope_out = 1.0f;
        if (l.features & STW_FEAT_SOFTCAP) x = dev_tanh(x / l.softcap, slope_out) * l.softcap;
        if (l.features & STW_FEAT_BIAS) x += dev_load_any(l.bias, row * l.bias_query + col * l.bias_key, l.bias_dtype);
        if (l.features & STW_FEAT_ALIBI_COLUMN) x += (float)(l.first_key + col) * l.slope;
        else if (l.features & STW_FEAT_ALIBI) x -= fabsf((float)(l.diagonal + (col - row))) * l.slope;
        return x;
    }
};

#endif
