/* SPDX-License-Identifier: MIT
 *
 * Which pairs of a tile dropout keeps. In the default map a Philox call serves four rows of one key, so LANES
 * calls of neighbouring keys make four rows of a tile. The maps of other libraries are computed one element
 * at a time by the definition that all backends share. Included by tile.c alone. */

/* High and low words of constant * x. */
INLINE void multiply_wide(uint32_t constant, vu x, vu *high_out, vu *low_out) {
    vq even = ((vq)x & 0xFFFFFFFFu) * (uint64_t)constant, odd = ((vq)x >> 32) * (uint64_t)constant;
    const vq low = (vq){0} + 0xFFFFFFFFu;
    *low_out = (vu)((even & low) | (odd << 32));
    *high_out = (vu)((even >> 32) | (odd & ~low));
}

INLINE void philox_lanes(vu c[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        vu high0, low0, high1, low1;
        multiply_wide(0xD2511F53u, c[0], &high0, &low0);
        multiply_wide(0xCD9E8D57u, c[2], &high1, &low1);
        c[0] = high1 ^ c[1] ^ key0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ key1;
        c[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

static void dropout_philox(uint32_t *keep, size_t pitch, const stw_attn_params *p, const stw_dropout_stream *s,
                           int64_t i0, int64_t j0, uint32_t rows, uint32_t cols) {
    uint64_t first = (uint64_t)(i0 + s->q_offset);
    uint32_t key0 = (uint32_t)s->seed, key1 = (uint32_t)(s->seed >> 32) ^ (uint32_t)(s->offset >> 32);
    for (int64_t r = -(int64_t)(first & 3u); r < (int64_t)rows; r += 4)
        for (uint32_t c = 0; c < cols; c += LANES) {
            vu key = (vu)vi_lanes() + (uint32_t)((uint64_t)(j0 + s->kv_offset) + c);
            vu words[4] = {vu_splat((uint32_t)((first + (uint64_t)r) >> 2)), key, vu_splat((uint32_t)s->head),
                           vu_splat((uint32_t)s->offset)};
            philox_lanes(words, key0, key1);
            for (int w = 0; w < 4; ++w)
                if (r + w >= 0 && r + w < (int64_t)rows)
                    *(vu_any *)(keep + (size_t)(r + w) * pitch + c) = (vu)(words[w] >= p->dropout_threshold);
        }
}

static void tile_dropout(uint32_t *keep, size_t pitch, const stw_attn_params *p, const stw_dropout_stream *s,
                         int64_t i0, int64_t j0, uint32_t rows, uint32_t cols) {
    if (p->dropout_map == STW_DROPOUT_PHILOX) {
        dropout_philox(keep, pitch, p, s, i0, j0, rows, cols);
        return;
    }
    uint32_t width = (cols + LANES - 1) / LANES * LANES;
    for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t c = 0; c < width; ++c)
            keep[r * pitch + c] = c < cols && stw_dropout_keep(p, s, i0 + r, j0 + c) ? ~0u : 0u;
}
