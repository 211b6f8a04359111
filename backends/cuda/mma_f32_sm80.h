/* SPDX-License-Identifier: MIT
 *
 * f32 products on sm80, by matrix units that multiply bf16. An f32 number is the sum of three bf16 numbers,
 *
 *     x = x1 + x2 + x3, each the rest rounded to nearest: 3 x 8 bits and two signs hold all 24 bits
 *
 * and x y = x1 y1 + (x1 y2 + x2 y1 + x2 y2 + x1 y3 + x3 y1), six products; what is left out is below 2^-26 |x y|.
 * (Three TF32 products take the same time and leave 2^-22: short sums show it.) x1 y1 goes into fresh
 * accumulators each step and is added in ordinary f32 arithmetic, since the matrix unit truncates; the rest is
 * 2^-8 of it and may stay. Parts of numbers below 2^-110 end at 2^-133: the error is then 2^-134 a number,
 * inside what SPEC section 5 allows denormals. Included by leaf.h alone. */
#ifndef STW_CUDA_MMA_F32_SM80_H
#define STW_CUDA_MMA_F32_SM80_H

#define LEAF_F32_IN_PARTS 1
enum { LEAF_PARTS = 3 };

/* The parts of two numbers, packed; what the last rests are (0 of ordinary numbers) is added to *odd. */
DEV_FN void leaf_split_pair(float x, float y, uint32_t parts[LEAF_PARTS], float *odd) {
    DEV_UNROLL for (int i = 0; i < LEAF_PARTS; ++i) {
        parts[i] = dev_pack_bf16(x, y);
        x -= __uint_as_float(parts[i] << 16);
        y -= __uint_as_float(parts[i] & 0xFFFF0000u);
    }
    *odd += x + y;
}

/* One number that is infinite, NaN or so large that bf16 rounds it up to infinity. An infinite number is its
 * third part: that one meets only first parts, which are 0 where the other factor is. */
DEV_FN void leaf_split_odd(float x, uint32_t parts[LEAF_PARTS], int shift) {
    const float largest = __uint_as_float(0x7F7F0000u);
    float rest[LEAF_PARTS];
    bool endless = fabsf(x) == __uint_as_float(0x7F800000u);
    rest[0] = endless ? 0.0f : fminf(fmaxf(x, -largest), largest);
    rest[1] = endless ? 0.0f : x - dev_from_bf16(dev_to_bf16(rest[0]));
    rest[2] = endless ? x : rest[1] - dev_from_bf16(dev_to_bf16(rest[1]));
    DEV_UNROLL for (int i = 0; i < LEAF_PARTS; ++i) parts[i] |= (uint32_t)dev_to_bf16(rest[i]) << shift;
}

/* Any two numbers. */
DEV_FN void leaf_split(float x, float y, uint32_t parts[LEAF_PARTS]) {
    float odd = 0.0f;
    leaf_split_pair(x, y, parts, &odd);
    if (odd == odd) return;
    DEV_UNROLL for (int i = 0; i < LEAF_PARTS; ++i) parts[i] = 0;
    leaf_split_odd(x, parts, 0);
    leaf_split_odd(y, parts, 16);
}

/* Any four. */
DEV_FN void leaf_split_four(const float x[4], uint32_t low[LEAF_PARTS], uint32_t high[LEAF_PARTS]) {
    float odd = 0.0f;
    leaf_split_pair(x[0], x[1], low, &odd);
    leaf_split_pair(x[2], x[3], high, &odd);
    if (odd == odd) return;
    leaf_split(x[0], x[1], low);
    leaf_split(x[2], x[3], high);
}

/* rest += the five small products of a step. */
DEV_FN void leaf_parts_rest(float rest[4], const uint32_t (*a)[4], const uint32_t b[LEAF_PARTS][2]) {
    leaf_mma_bf16(rest, a[2], b[0]);
    leaf_mma_bf16(rest, a[0], b[2]);
    leaf_mma_bf16(rest, a[1], b[1]);
    leaf_mma_bf16(rest, a[1], b[0]);
    leaf_mma_bf16(rest, a[0], b[1]);
}

/* One of the products of a step, of tiles that are split already (common/device/parts.h). */
enum { LEAF_PRODUCTS = 6 };
template <class A, class B> DEV_FN void leaf_parts_product(int product, float large[4], float rest[4], const A a[LEAF_PARTS],
                                                           const B b[LEAF_PARTS], int part) {
    if (product == 0) leaf_mma_bf16(rest, a[2].r, b[0].r + 2 * part);
    if (product == 1) leaf_mma_bf16(large, a[0].r, b[0].r + 2 * part);
    if (product == 2) leaf_mma_bf16(rest, a[0].r, b[2].r + 2 * part);
    if (product == 3) leaf_mma_bf16(rest, a[1].r, b[1].r + 2 * part);
    if (product == 4) leaf_mma_bf16(rest, a[1].r, b[0].r + 2 * part);
    if (product == 5) leaf_mma_bf16(rest, a[0].r, b[1].r + 2 * part);
}

/* Operands in f32 tiles, split as they are read. k runs through a step in another order than memory, the same one
 * for both operands: a lane's four are neighbours. */
template <> struct leaf_mma<float> {
    enum { K = 16, B_TILES = 1 };
    struct a_frag {
        uint32_t part[LEAF_PARTS][4];
    };
    struct b_frag {
        uint32_t part[LEAF_PARTS][2];
    };
    template <bool STORED_K, class Tile> DEV_FN void split(uint32_t parts[LEAF_PARTS], const float *tile, int n, int k) {
        leaf_split(STORED_K ? tile[Tile::at(k, n)] : tile[Tile::at(n, k)],
                   STORED_K ? tile[Tile::at(k + 1, n)] : tile[Tile::at(n, k + 1)], parts);
    }
    template <bool STORED_K, class Tile> DEV_FN void load_a(a_frag &f, const float *tile, int m0, int k0, int lane) {
        DEV_UNROLL for (int i = 0; i < 4; ++i) {
            uint32_t parts[LEAF_PARTS];
            split<STORED_K, Tile>(parts, tile, m0 + lane / 4 + 8 * (i & 1), k0 + lane % 4 * 4 + (i & 2));
            DEV_UNROLL for (int p = 0; p < LEAF_PARTS; ++p) f.part[p][i] = parts[p];
        }
    }
    template <bool STORED_K, class Tile> DEV_FN void load_b(b_frag &f, const float *tile, int n0, int k0, int lane) {
        DEV_UNROLL for (int i = 0; i < 2; ++i) {
            uint32_t parts[LEAF_PARTS];
            split<STORED_K, Tile>(parts, tile, n0 + lane / 4, k0 + lane % 4 * 4 + 2 * i);
            DEV_UNROLL for (int p = 0; p < LEAF_PARTS; ++p) f.part[p][i] = parts[p];
        }
    }
    DEV_FN void product(float c[4], const a_frag &a, const b_frag &b, int) {
        float large[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
        leaf_parts_rest(rest, a.part, b.part);
        leaf_mma_bf16(large, a.part[0], b.part[0]);
        DEV_UNROLL for (int i = 0; i < 4; ++i) c[i] += large[i] + rest[i];
    }
    DEV_FN void product_rounded(float c[4], const a_frag &a, const b_frag &b, int part) { product(c, a, b, part); }
};

#endif
