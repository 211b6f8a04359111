/* SPDX-License-Identifier: MIT
 *
 * Matrix products of gfx90a, gfx942 and gfx950 (MFMA), on fragments that lie in registers.
 *
 *     accumulator of a wave, 16 x 16, value i of lane l:   row 4*(l/16) + i, column l%16
 *     operands of 16 of k, lane l:                         row (or column) l%16, k = 4*(l/16) .. + 3
 *
 * f16 and bf16: one instruction a step. f32: four, each with one k of every lane; the products are exact f32
 * fused additions. Included by leaf.h alone. */
#ifndef STW_HIP_MMA_GFX9_H
#define STW_HIP_MMA_GFX9_H

#define LEAF_MMA_M    16 /* rows of an accumulator    */
#define LEAF_MMA_N    16 /* columns                   */
#define LEAF_ACC      4  /* values a lane             */
#define LEAF_ACC_ROWS 4  /* different rows among them */

DEV_FN constexpr int leaf_acc_slot(int i) { return i; }
DEV_FN int leaf_slot_row(int lane, int slot) { return lane / 16 * 4 + slot; }
DEV_FN int leaf_acc_col(int lane, int) { return lane % 16; }
/* A lane's values are rows of one column: it has no neighbours in a row. */
#define LEAF_ACC_PAIRS 0
/* Nor are four columns of a row brought together: rows go through shared memory. */
#define LEAF_GATHERS 0
template <int G> DEV_FN int leaf_gathered_col(int lane);
template <int G> DEV_FN void leaf_gather(uint32_t w[G], int lane);
/* Lanes that hold one row: those that differ in these bits of their number. */
#define LEAF_ROW_LANES 15
/* f32 operands are multiplied as they are. */
#define LEAF_F32_BF16X3 0

/* Four consecutive rows (from a multiple of 4) of one column are one lane's values. */
#define LEAF_FOUR_LANES 1
DEV_FN int leaf_row_of_four(int) { return 0; }
DEV_FN int leaf_lane_of_four(int lane, int) { return lane; }

typedef short leaf_s4 __attribute__((ext_vector_type(4)));
typedef _Float16 leaf_h4 __attribute__((ext_vector_type(4)));

DEV_FN leaf_f4 leaf_mma_16(dev_f16, leaf_u2 a, leaf_u2 b, leaf_f4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(leaf_h4, a), __builtin_bit_cast(leaf_h4, b), c, 0,
                                                 0, 0);
}
DEV_FN leaf_f4 leaf_mma_16(dev_bf16, leaf_u2 a, leaf_u2 b, leaf_f4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(leaf_s4, a), __builtin_bit_cast(leaf_s4, b), c,
                                                     0, 0, 0);
}

/* Twice the k in the same time: what two of the above make of the halves of the operands, since the order of k is that
 * of both. */
#if defined(__gfx950__)
#define LEAF_K32 1
typedef _Float16 leaf_h8 __attribute__((ext_vector_type(8)));
typedef __bf16 leaf_b8 __attribute__((ext_vector_type(8)));
DEV_FN leaf_f4 leaf_mma_32(dev_f16, leaf_u4 a, leaf_u4 b, leaf_f4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(leaf_h8, a), __builtin_bit_cast(leaf_h8, b), c, 0,
                                                  0, 0);
}
DEV_FN leaf_f4 leaf_mma_32(dev_bf16, leaf_u4 a, leaf_u4 b, leaf_f4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(leaf_b8, a), __builtin_bit_cast(leaf_b8, b), c, 0,
                                                   0, 0);
}
#else
#define LEAF_K32 0
#endif

/* Of 16, whose sums stay in ordinary registers where other products of a kernel have theirs in AGPRs: clang 19 has
 * one choice for all, and vector instructions read no AGPR. Sums begin at 0 or at `start`. clang sees no matrix
 * instruction in it, so wait states are the caller's (cdna_settle_scores, cdna_hold). */
#if defined(__gfx90a__)
#define LEAF_MFMA_F16  "v_mfma_f32_16x16x16f16"
#define LEAF_MFMA_BF16 "v_mfma_f32_16x16x16bf16_1k"
#else
#define LEAF_MFMA_F16  "v_mfma_f32_16x16x16_f16"
#define LEAF_MFMA_BF16 "v_mfma_f32_16x16x16_bf16"
#endif
#define LEAF_MMA_16_HERE(T, instruction)                                                                               \
    DEV_FN void leaf_mma_16_here(T, leaf_f4 &sums, leaf_u2 a, leaf_u2 b) {                                             \
        asm(instruction " %0, %1, %2, %0" : "+v"(sums) : "v"(a), "v"(b));                                              \
    }                                                                                                                  \
    DEV_FN void leaf_mma_16_here_first(T, leaf_f4 &sums, leaf_u2 a, leaf_u2 b) {                                       \
        asm(instruction " %0, %1, %2, 0" : "=&v"(sums) : "v"(a), "v"(b));                                              \
    }                                                                                                                  \
    DEV_FN void leaf_mma_16_here_first(T, leaf_f4 &sums, leaf_u2 a, leaf_u2 b, leaf_f4 start) {                        \
        asm(instruction " %0, %1, %2, %3" : "=&v"(sums) : "v"(a), "v"(b), "v"(start));                                 \
    }
LEAF_MMA_16_HERE(dev_f16, LEAF_MFMA_F16)
LEAF_MMA_16_HERE(dev_bf16, LEAF_MFMA_BF16)

#if defined(__gfx90a__)
/* 16-bit operands with nothing taken for zero: as f32, a quarter as fast. The operands lie alike: what is a lane's
 * number i of four becomes its only one of step i. Made where they are used: those of keys that stay in registers would
 * fill twice as many if kept. */
DEV_FN leaf_f4 leaf_mma_16_unflushed(dev_bf16, leaf_u2 a, leaf_u2 b, leaf_f4 c) {
    asm volatile("" : "+v"(a), "+v"(b));
    auto step = [](uint32_t x, uint32_t y, leaf_f4 sum) {
        return __builtin_amdgcn_mfma_f32_16x16x4f32(__builtin_bit_cast(float, x), __builtin_bit_cast(float, y), sum, 0,
                                                    0, 0);
    };
    c = step(a.x << 16, b.x << 16, c);
    c = step(a.x & 0xffff0000u, b.x & 0xffff0000u, c);
    c = step(a.y << 16, b.y << 16, c);
    return step(a.y & 0xffff0000u, b.y & 0xffff0000u, c);
}
DEV_FN leaf_f4 leaf_mma_16_unflushed(dev_f16, leaf_u2 a, leaf_u2 b, leaf_f4 c) {
    asm volatile("" : "+v"(a), "+v"(b));
    const leaf_h4 x = __builtin_bit_cast(leaf_h4, a), y = __builtin_bit_cast(leaf_h4, b);
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
        c = __builtin_amdgcn_mfma_f32_16x16x4f32((float)x[i], (float)y[i], c, 0, 0, 0);
    return c;
}
#endif

/* Operands of a product for storage type T in tiles of type Tile (common/device/tile.h). STORED_K false: the
 * operand's rows are its m (or n) index, k runs along them; true: rows are k. Both operands have one layout. */
template <class T> struct leaf_mma {
    enum { K = 16, B_TILES = 1 };
    struct a_frag {
        leaf_u2 r;
    };
    typedef a_frag b_frag;
    template <bool STORED_K, class Tile> DEV_FN void load_a(a_frag &f, const T *tile, int m0, int k0, int lane) {
        const DEV_SHARED uint16_t *from = (const DEV_SHARED uint16_t *)(const DEV_SHARED void *)tile;
        int m = m0 + lane % 16, k = k0 + lane / 16 * 4;
        if (STORED_K) {
            uint32_t x[4];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) x[i] = from[Tile::at(k + i, m)];
            f.r = leaf_u2{x[0] | x[1] << 16, x[2] | x[3] << 16};
        } else {
            f.r = *(const DEV_SHARED leaf_u2 *)(const DEV_SHARED void *)(from + Tile::at(m, k));
        }
    }
    template <bool STORED_K, class Tile> DEV_FN void load_b(b_frag &f, const T *tile, int n0, int k0, int lane) {
        load_a<STORED_K, Tile>(f, tile, n0, k0, lane);
    }
    DEV_FN void product(float c[4], const a_frag &a, const b_frag &b, int) {
        leaf_f4 sum = {c[0], c[1], c[2], c[3]};
        sum = leaf_mma_16(T(), a.r, b.r, sum);
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) c[i] = sum[i];
    }
    DEV_FN void product_rounded(float c[4], const a_frag &a, const b_frag &b, int part) { product(c, a, b, part); }
    DEV_FN void product_unflushed(float c[4], const a_frag &a, const b_frag &b, int) {
        leaf_f4 sum = {c[0], c[1], c[2], c[3]};
        sum = leaf_mma_16_unflushed(T(), a.r, b.r, sum);
        c[0] = sum.x, c[1] = sum.y, c[2] = sum.z, c[3] = sum.w;
    }
};

#if defined(__gfx90a__)
/* Its matrix unit takes subnormal 16-bit operands for zero, and weights and gradients in f16 are subnormal below
 * 2^-14: the shared kernels multiply f16 as f32, a quarter as fast, and bf16 where it matters: attn_bwd_subnormal.h. */
template <> struct leaf_mma<dev_f16> {
    enum { K = 16, B_TILES = 1 };
    struct a_frag {
        float r[4];
    };
    typedef a_frag b_frag;
    template <bool STORED_K, class Tile> DEV_FN void load_a(a_frag &f, const dev_f16 *tile, int m0, int k0, int lane) {
        const DEV_SHARED uint16_t *from = (const DEV_SHARED uint16_t *)(const DEV_SHARED void *)tile;
        int m = m0 + lane % 16, k = k0 + lane / 16 * 4;
        if (STORED_K) {
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) f.r[i] = dev_from_f16(from[Tile::at(k + i, m)]);
        } else {
            leaf_h4 x = __builtin_bit_cast(
                leaf_h4, *(const DEV_SHARED leaf_u2 *)(const DEV_SHARED void *)(from + Tile::at(m, k)));
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) f.r[i] = (float)x[i];
        }
    }
    template <bool STORED_K, class Tile> DEV_FN void load_b(b_frag &f, const dev_f16 *tile, int n0, int k0, int lane) {
        load_a<STORED_K, Tile>(f, tile, n0, k0, lane);
    }
    DEV_FN void product(float c[4], const a_frag &a, const b_frag &b, int) {
        leaf_f4 sum = {c[0], c[1], c[2], c[3]};
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a.r[i], b.r[i], sum, 0, 0, 0);
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) c[i] = sum[i];
    }
    DEV_FN void product_rounded(float c[4], const a_frag &a, const b_frag &b, int part) { product(c, a, b, part); }
};
#endif

template <> struct leaf_mma<float> {
    enum { K = 16, B_TILES = 1 };
    struct a_frag {
        float r[4];
    };
    typedef a_frag b_frag;
    template <bool STORED_K, class Tile> DEV_FN void load_a(a_frag &f, const float *tile, int m0, int k0, int lane) {
        const DEV_SHARED float *from = (const DEV_SHARED float *)tile;
        int m = m0 + lane % 16, k = k0 + lane / 16 * 4;
        if (STORED_K) {
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) f.r[i] = from[Tile::at(k + i, m)];
        } else {
            leaf_f4 x = *(const DEV_SHARED leaf_f4 *)(from + Tile::at(m, k));
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) f.r[i] = x[i];
        }
    }
    template <bool STORED_K, class Tile> DEV_FN void load_b(b_frag &f, const float *tile, int n0, int k0, int lane) {
        load_a<STORED_K, Tile>(f, tile, n0, k0, lane);
    }
    /* Summed 16 at a time, then added: one chain over 256 columns of scores loses too many bits. */
    DEV_FN void product(float c[4], const a_frag &a, const b_frag &b, int) {
        leaf_f4 sum = {0, 0, 0, 0};
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a.r[i], b.r[i], sum, 0, 0, 0);
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) c[i] += sum[i];
    }
    DEV_FN void product_rounded(float c[4], const a_frag &a, const b_frag &b, int part) { product(c, a, b, part); }
};

/* Rounds an accumulator to T and writes it into a tile at (row0, col0). Numbers come from ordinary registers: clang 19
 * else joins two stores of f32, one from each kind, to an instruction that there is not. */
template <class Tile, class T> DEV_FN void leaf_store_acc(T *tile, int row0, int col0, const float c[4], int lane) {
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
        float x = c[i];
        if (sizeof(T) == 4) asm("" : "+v"(x));
        dev_set(tile + Tile::at(row0 + leaf_slot_row(lane, i), col0 + leaf_acc_col(lane, i)), x);
    }
}

#endif
