/* SPDX-License-Identifier: MIT
 *
 * Rows between tensors (any dtype, any stride) and f32 tiles. Included by tile.c alone. */

INLINE void load_rows_as(float *to, size_t pitch, uint32_t width, const void *from, int64_t stride, uint32_t rows,
                         uint32_t cols, const uint32_t dtype) {
    uint32_t whole = cols - cols % LANES;
    for (uint32_t r = 0; r < rows; ++r, to += pitch) {
        int64_t at = (int64_t)r * stride;
        uint32_t c = 0;
        for (; c < whole; c += LANES) vf_store(to + c, vf_load_as(from, at + c, dtype));
        if (c < cols) {
            vf_store(to + c, vf_load_some(from, at + c, cols - c, dtype));
            c += LANES;
        }
        for (; c < width; c += LANES) vf_store(to + c, (vf){0});
    }
}

static void tile_load_rows(float *to, size_t pitch, uint32_t width, const void *from, int64_t stride, uint32_t rows,
                           uint32_t cols, uint32_t dtype) {
    if (dtype == STW_F32) load_rows_as(to, pitch, width, from, stride, rows, cols, STW_F32);
    else if (dtype == STW_BF16) load_rows_as(to, pitch, width, from, stride, rows, cols, STW_BF16);
    else load_rows_as(to, pitch, width, from, stride, rows, cols, STW_F16);
}

/* Blocks of LANES x LANES: zipping row i with row i + LANES/2, log2(LANES) times, transposes. */
static void tile_transpose(float *to, size_t to_pitch, const float *from, size_t from_pitch, uint32_t rows,
                           uint32_t cols) {
    for (uint32_t r = 0; r < rows; r += LANES)
        for (uint32_t c = 0; c < cols; c += LANES) {
            vf x[LANES], y[LANES];
            for (uint32_t i = 0; i < LANES; ++i) x[i] = vf_load(from + (size_t)(r + i) * from_pitch + c);
            for (uint32_t round = LANES; round > 1; round /= 2) {
                for (uint32_t i = 0; i < LANES / 2; ++i) {
                    y[2 * i] = vf_zip_low(x[i], x[i + LANES / 2]);
                    y[2 * i + 1] = vf_zip_high(x[i], x[i + LANES / 2]);
                }
                for (uint32_t i = 0; i < LANES; ++i) x[i] = y[i];
            }
            for (uint32_t i = 0; i < LANES; ++i) vf_store(to + (size_t)(c + i) * to_pitch + r, x[i]);
        }
}

INLINE vh to_bf16(vf x) {
#if defined(__AVX512BF16__)
    vi subnormal = (vi)(((vu)x & 0x7FFFFFFFu) - 1u < vu_splat(0x7FFFFFu)); /* the instruction makes them 0 */
    if (!_mm512_test_epi32_mask((__m512i)subnormal, (__m512i)subnormal)) return (vh)_mm512_cvtneps_pbh((__m512)x);
#endif
    return vf_to_bf16(x);
}

/* The last, incomplete vector of a row. */
INLINE void store_some(void *to, int64_t at, uint32_t count, const uint32_t dtype, const int add, vf x) {
    if (dtype == STW_F32) {
        float *out = (float *)to + at;
        if (add) x = x + vf_load_some(out, 0, count, STW_F32);
        memcpy(out, &x, 4 * (size_t)count);
    } else {
        vh h = dtype == STW_BF16 ? to_bf16(x) : vf_to_f16(x);
        memcpy((uint16_t *)to + at, &h, 2 * (size_t)count);
    }
}

INLINE void store_rows_as(void *to, int64_t stride, const uint32_t dtype, const int add, const float *src, size_t pitch,
                          uint32_t rows, uint32_t cols, float scale) {
    uint32_t whole = cols - cols % LANES;
    for (uint32_t r = 0; r < rows; ++r, src += pitch) {
        int64_t at = (int64_t)r * stride;
        for (uint32_t c = 0; c < whole; c += LANES) {
            vf x = vf_load(src + c) * scale;
            if (dtype == STW_F32) {
                float *out = (float *)to + at + c;
                vf_store(out, add ? x + vf_load(out) : x);
            } else {
                *(vh_any *)((uint16_t *)to + at + c) = dtype == STW_BF16 ? to_bf16(x) : vf_to_f16(x);
            }
        }
        if (whole == cols) continue;
        store_some(to, at + whole, cols - whole, dtype, add, vf_load_some(src, whole, cols - whole, STW_F32) * scale);
    }
}

static void tile_store_rows(void *to, int64_t stride, uint32_t dtype, int add, const float *src, size_t pitch,
                            uint32_t rows, uint32_t cols, float scale) {
    if (dtype == STW_BF16) store_rows_as(to, stride, STW_BF16, 0, src, pitch, rows, cols, scale);
    else if (dtype == STW_F16) store_rows_as(to, stride, STW_F16, 0, src, pitch, rows, cols, scale);
    else if (add) store_rows_as(to, stride, STW_F32, 1, src, pitch, rows, cols, scale);
    else store_rows_as(to, stride, STW_F32, 0, src, pitch, rows, cols, scale);
}

static void tile_add_rows(float *to, int64_t stride, int add, const float *src, size_t pitch, uint32_t rows,
                          uint32_t cols) {
    uint32_t whole = cols - cols % LANES;
    for (uint32_t r = 0; r < rows; ++r, to += stride, src += pitch) {
        uint32_t c = 0;
        for (; c < whole; c += LANES) vf_store(to + c, add ? vf_load(to + c) + vf_load(src + c) : vf_load(src + c));
        for (; c < cols; ++c) to[c] = add ? to[c] + src[c] : src[c];
    }
}

/* In double: D is subtracted from dP, which it nearly equals where a row sees few keys. */
static void tile_dot_rows(float *out, const void *a, int64_t a_stride, const void *b, int64_t b_stride, uint32_t rows,
                          uint32_t cols, uint32_t dtype) {
    for (uint32_t r = 0; r < rows; ++r) {
        vd sum = {0};
        for (uint32_t c = 0; c < cols; c += LANES)
            sum += __builtin_convertvector(vf_load_upto(a, r * a_stride + c, cols - c, dtype), vd) *
                   __builtin_convertvector(vf_load_upto(b, r * b_stride + c, cols - c, dtype), vd);
        double total = 0;
        for (int i = 0; i < LANES; ++i) total += sum[i];
        out[r] = (float)total;
    }
}

static void tile_scale_rows(float *to, size_t pitch, uint32_t rows, uint32_t cols, const float *factor) {
    for (uint32_t r = 0; r < rows; ++r, to += pitch)
        for (uint32_t c = 0; c < cols; c += LANES) vf_store(to + c, vf_load(to + c) * factor[r]);
}
