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
 * inside what docs/specification.md section 5 allows denormals. Included by leaf.h alone. */
#ifndef STW_CUDA_MMA_F32_SM80_H
#define STW_CUDA_MMA_F32_SM80_H

#define LEAF_F32_BF16X3 1
enum { LEAF_BF16_TERMS = 3 };

/* Infinite, NaN or so large that bf16 may round it up to infinity. */
DEV_FN bool leaf_is_nonfinite(float x) { return !(fabsf(x) <= __uint_as_float(0x7F7F0000u)); }

/* The parts of two numbers, neither nonfinite, packed. */
DEV_FN void leaf_split_pair(float x, float y, uint32_t *first, uint32_t *second, uint32_t *third) {
    *first = dev_pack_bf16(x, y);
    x -= __uint_as_float(*first << 16);
    y -= __uint_as_float(*first & 0xFFFF0000u);
    *second = dev_pack_bf16(x, y);
    x -= __uint_as_float(*second << 16);
    y -= __uint_as_float(*second & 0xFFFF0000u);
    *third = dev_pack_bf16(x, y);
}

/* Part `part` of any number. An infinite number is its third part: that one meets only first parts, which are 0
 * where the other factor is. */
DEV_FN uint16_t leaf_part_of(float x, int part) {
    const float largest = __uint_as_float(0x7F7F0000u);
    bool endless = fabsf(x) == __uint_as_float(0x7F800000u);
    float rest = endless ? 0.0f : fminf(fmaxf(x, -largest), largest);
    if (part > 0) rest = endless ? 0.0f : x - dev_from_bf16(dev_to_bf16(rest));
    if (part > 1) rest = endless ? x : rest - dev_from_bf16(dev_to_bf16(rest));
    return dev_to_bf16(rest);
}

DEV_FN bool leaf_is_nonfinite(const float x[4]) {
    return leaf_is_nonfinite(x[0]) || leaf_is_nonfinite(x[1]) || leaf_is_nonfinite(x[2]) || leaf_is_nonfinite(x[3]);
}

/* The parts of four numbers, two a word. `nonfinite`: some may be. */
DEV_FN void leaf_split(const float x[4], uint32_t parts[LEAF_BF16_TERMS][2], bool nonfinite) {
    if (!nonfinite) {
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i)
            leaf_split_pair(x[2 * i], x[2 * i + 1], &parts[0][i], &parts[1][i], &parts[2][i]);
        return;
    }
    DEV_UNROLL_FOR (int p = 0; p < LEAF_BF16_TERMS; ++p)
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i)
            parts[p][i] = leaf_part_of(x[2 * i], p) | (uint32_t)leaf_part_of(x[2 * i + 1], p) << 16;
}

/* Operands are tiles in three planes, one a part, each like a tile of bf16; a tile too narrow for that
 * (dev_tile) holds floats, which are split as they are read: only a left operand does. */
template <> struct leaf_mma<float> {
    enum { K = 16, B_TILES = 1 };
    struct a_frag {
        uint32_t part[LEAF_BF16_TERMS][4];
    };
    struct b_frag {
        uint32_t part[LEAF_BF16_TERMS][2];
    };
    template <bool STORED_K, class Tile>
    DEV_FN void load_a_whole(a_frag &f, const float *tile, int m0, int k0, int lane) {
        DEV_UNROLL_FOR (int i = 0; i < 4; i += 2) {
            float x[4];
            uint32_t parts[LEAF_BF16_TERMS][2];
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                int m = m0 + lane / 4 + 8 * (e / 2), k = k0 + lane % 4 * 2 + 4 * i + e % 2;
                x[e] = tile[STORED_K ? Tile::at(k, m) : Tile::at(m, k)];
            }
            leaf_split(x, parts, leaf_is_nonfinite(x));
            DEV_UNROLL_FOR (int p = 0; p < LEAF_BF16_TERMS; ++p) {
                f.part[p][i] = parts[p][0];
                f.part[p][i + 1] = parts[p][1];
            }
        }
    }
    template <bool STORED_K, class Tile> DEV_FN void load_a(a_frag &f, const float *tile, int m0, int k0, int lane) {
        if constexpr (Tile::TERMS == 1) {
            load_a_whole<STORED_K, Tile>(f, tile, m0, k0, lane);
        } else {
            int near = (lane & 7), low = (lane >> 3) & 1, high = lane >> 4;
            DEV_UNROLL_FOR (int p = 0; p < LEAF_BF16_TERMS; ++p) {
                uint32_t plane = leaf_shared_address(tile) + p * (int)Tile::PLANE;
                if (STORED_K) leaf_ldmatrix_trans(f.part[p], plane + Tile::byte(k0, near + high * 8, m0, low * 8));
                else leaf_ldmatrix(f.part[p], plane + Tile::byte(m0, near + low * 8, k0, high * 8));
            }
        }
    }
    /* Two parts by one instruction, the third by another. */
    template <bool STORED_K, class Tile> DEV_FN void load_b(b_frag &f, const float *tile, int n0, int k0, int lane) {
        int near = (lane & 7), low = (lane >> 3) & 1, high = lane >> 4;
        uint32_t at = leaf_shared_address(tile) + high * (int)Tile::PLANE, two[4];
        if (STORED_K) {
            at += Tile::byte(k0, near + low * 8, n0, 0);
            leaf_ldmatrix_trans(two, at);
            leaf_ldmatrix_two_trans(f.part[2], at + 2 * (int)Tile::PLANE);
        } else {
            at += Tile::byte(n0, near, k0, low * 8);
            leaf_ldmatrix(two, at);
            leaf_ldmatrix_two(f.part[2], at + 2 * (int)Tile::PLANE);
        }
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) f.part[i / 2][i % 2] = two[i];
    }
    /* One step of all products of a wave: c += the large ones; the small ones gather in `rest` from the first step on
     * and go into c with the last. Products that follow each other add to different accumulators, since the
     * latency of the matrix unit is several products long. */
    template <int MT, int NT>
    DEV_FN void products(float (&c)[MT][NT][4], float (&rest)[MT][NT][4], const a_frag (&a)[MT], const b_frag (&b)[NT],
                         bool first, bool last) {
        const int part_a[] = {2, 0, 1, 1, 0}, part_b[] = {0, 2, 1, 0, 1};
        DEV_UNROLL_FOR (int p = 0; p < 5; ++p)
            DEV_UNROLL_FOR (int n = 0; n < NT; ++n)
                DEV_UNROLL_FOR (int m = 0; m < MT; ++m) {
                    DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                        if (first && p == 0) rest[m][n][i] = 0.0f;
                    leaf_mma_bf16(rest[m][n], a[m].part[part_a[p]], b[n].part[part_b[p]]);
                }
        DEV_UNROLL_FOR (int n = 0; n < NT; ++n)
            DEV_UNROLL_FOR (int m = 0; m < MT; ++m) {
                float large[4] = {0, 0, 0, 0};
                leaf_mma_bf16(large, a[m].part[0], b[n].part[0]);
                DEV_UNROLL_FOR (int i = 0; i < 4; ++i) c[m][n][i] += last ? large[i] + rest[m][n][i] : large[i];
            }
    }

    DEV_FN bool is_nonfinite(dev_vector v) {
        return leaf_is_nonfinite(__uint_as_float(v.word[0])) || leaf_is_nonfinite(__uint_as_float(v.word[1])) ||
               leaf_is_nonfinite(__uint_as_float(v.word[2])) || leaf_is_nonfinite(__uint_as_float(v.word[3]));
    }
    /* Four numbers, none nonfinite, to (row, col) of a tile in parts. */
    template <class Tile> DEV_FN void store_four(float *tile, int row, int col, dev_vector v) {
        char *at = (char *)tile + Tile::at(row, col) * 2;
        uint32_t parts[LEAF_BF16_TERMS][2];
        float x[4];
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) x[i] = __uint_as_float(v.word[i]);
        leaf_split(x, parts, false);
        DEV_UNROLL_FOR (int p = 0; p < LEAF_BF16_TERMS; ++p)
            dev_store_half(at + p * (int)Tile::PLANE, parts[p][0], parts[p][1]);
    }
    /* Any number. */
    template <class Tile> DEV_FN void store_one(float *tile, int row, int col, float x) {
        char *at = (char *)tile + Tile::at(row, col) * 2;
        DEV_UNROLL_FOR (int p = 0; p < LEAF_BF16_TERMS; ++p)
            *(uint16_t *)(void *)(at + p * (int)Tile::PLANE) = leaf_part_of(x, p);
    }
    /* Four numbers of an accumulator to where it lies in a tile. `nonfinite`: some may be. */
    template <class Tile>
    DEV_FN void store_acc(float *tile, int row0, int col0, const float c[4], int lane, bool nonfinite) {
        uint32_t parts[LEAF_BF16_TERMS][2];
        leaf_split(c, parts, nonfinite);
        DEV_UNROLL_FOR (int s = 0; s < 2; ++s) {
            char *at = (char *)tile + Tile::at(row0 + lane / 4 + 8 * s, col0 + (lane % 4) * 2) * 2;
            DEV_UNROLL_FOR (int p = 0; p < LEAF_BF16_TERMS; ++p)
                *(uint32_t *)(void *)(at + p * (int)Tile::PLANE) = parts[p][s];
        }
    }
    /* All accumulators of a wave, with one test. */
    template <class Tile, int MT, int NT>
    DEV_FN void store_all(float *tile, int row0, int col0, const float (&c)[MT][NT][4], int lane) {
        bool nonfinite = false;
        DEV_UNROLL_FOR (int f = 0; f < MT * NT; ++f) nonfinite |= leaf_is_nonfinite(c[f / NT][f % NT]);
        if (nonfinite) {
            DEV_UNROLL_FOR (int f = 0; f < MT * NT; ++f)
                store_acc<Tile>(tile, row0 + f / NT * LEAF_MMA_M, col0 + f % NT * LEAF_MMA_N, c[f / NT][f % NT], lane,
                                true);
        } else {
            DEV_UNROLL_FOR (int f = 0; f < MT * NT; ++f)
                store_acc<Tile>(tile, row0 + f / NT * LEAF_MMA_M, col0 + f % NT * LEAF_MMA_N, c[f / NT][f % NT], lane,
                                false);
        }
    }
};

template <class Tile> DEV_FN void leaf_store_acc(float *tile, int row0, int col0, const float c[4], int lane) {
    if constexpr (Tile::TERMS != 1) {
        leaf_mma<float>::store_acc<Tile>(tile, row0, col0, c, lane, leaf_is_nonfinite(c));
    } else {
        DEV_UNROLL_FOR (int s = 0; s < 2; ++s)
            dev_set_pair(tile + Tile::at(row0 + lane / 4 + 8 * s, col0 + (lane % 4) * 2), c[2 * s], c[2 * s + 1]);
    }
}

#endif
