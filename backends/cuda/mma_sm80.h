/* SPDX-License-Identifier: MIT
 *
 * Matrix products of sm80: mma.sync on fragments that lie in registers.
 *
 *     accumulator of a wave, 16 x 8, value i of lane l:   row l/4 + 8*(i/2), column 2*(l%4) + i%2
 *
 * f16 and bf16: 16 of k a step, operands by ldmatrix, two 8-column tiles of B at once. f32: mma_f32_sm80.h.
 * Included by leaf.h alone. */
#ifndef STW_CUDA_MMA_SM80_H
#define STW_CUDA_MMA_SM80_H

#define LEAF_MMA_M    16 /* rows of an accumulator                    */
#define LEAF_MMA_N    8  /* columns                                   */
#define LEAF_ACC      4  /* values a lane                             */
#define LEAF_ACC_ROWS 2  /* different rows among them                 */

DEV_FN constexpr int leaf_acc_slot(int i) { return i >> 1; }
DEV_FN int leaf_slot_row(int lane, int slot) { return lane / 4 + 8 * slot; }
DEV_FN int leaf_acc_col(int lane, int i) { return (lane % 4) * 2 + (i & 1); }
/* Where element (row, col) of an accumulator is: value i of a lane. */
DEV_FN void leaf_acc_find(int row, int col, int *lane_out, int *i_out) {
    *lane_out = (row & 7) * 4 + (col >> 1);
    *i_out = (row >> 3) * 2 + (col & 1);
}
/* Values 2k and 2k + 1 are neighbours in a row. */
#define LEAF_ACC_PAIRS 1
/* Lanes that hold one row: those that differ in these bits of their number. */
#define LEAF_ROW_LANES 3

/* G accumulator tiles side by side (4 or 2), two neighbouring values of one row each, packed in a word: afterwards the
 * words are G * 2 consecutive columns of that row, from leaf_gathered_col on. */
#define LEAF_GATHERS 1
template <int G> DEV_FN int leaf_gathered_col(int lane) {
    return G == 4 ? (lane & 3) * 8 : (lane & 1) * 8 + (lane & 2) * 2;
}
template <int G> DEV_FN void leaf_gather(uint32_t w[G], int lane) {
    bool odd = lane & 1, high = lane & 2;
    DEV_UNROLL_FOR (int g = 0; g < G; g += 2) {
        uint32_t theirs = dev_shuffle_xor(odd ? w[g] : w[g + 1], 1), mine = odd ? w[g + 1] : w[g];
        w[g] = odd ? theirs : mine;
        w[g + 1] = odd ? mine : theirs;
    }
    if constexpr (G == 4) {
        uint32_t a = dev_shuffle_xor(high ? w[0] : w[2], 2), b = dev_shuffle_xor(high ? w[1] : w[3], 2);
        if (high) w[0] = a, w[1] = b;
        else w[2] = a, w[3] = b;
    }
}

/* Four consecutive rows (from a multiple of 4) of one column lie in the same value i of four lanes: which row of
 * the four this lane has, and the lane that has row `row`. */
#define LEAF_FOUR_LANES 4
DEV_FN int leaf_row_of_four(int lane) { return lane >> 2 & 3; }
DEV_FN int leaf_lane_of_four(int lane, int row) { return (lane & ~12) | row << 2; }

DEV_FN void leaf_ldmatrix(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
DEV_FN void leaf_ldmatrix_trans(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
DEV_FN void leaf_ldmatrix_two(uint32_t r[2], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
DEV_FN void leaf_ldmatrix_two_trans(uint32_t r[2], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

#define LEAF_MMA_16(name, type)                                                                                        \
    DEV_FN void name(float c[4], const uint32_t a[4], const uint32_t b[2]) {                                           \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                                             \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                    \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
    }
LEAF_MMA_16(leaf_mma_f16, "f16")
LEAF_MMA_16(leaf_mma_bf16, "bf16")
DEV_FN void leaf_mma_16(dev_f16, float c[4], const uint32_t a[4], const uint32_t b[2]) { leaf_mma_f16(c, a, b); }
DEV_FN void leaf_mma_16(dev_bf16, float c[4], const uint32_t a[4], const uint32_t b[2]) { leaf_mma_bf16(c, a, b); }

/* Operands of a product for storage type T in tiles of type Tile (common/device/tile.h). STORED_K false: the
 * operand's rows are its m (or n) index, k runs along them; true: rows are k. */
template <class T> struct leaf_mma {
    enum { K = 16, B_TILES = 2 };
    struct a_frag {
        uint32_t r[4];
    };
    struct b_frag {
        uint32_t r[4];
    };
    template <bool STORED_K, class Tile> DEV_FN void load_a(a_frag &f, const T *tile, int m0, int k0, int lane) {
        int near = (lane & 7), low = (lane >> 3) & 1, high = lane >> 4;
        if (STORED_K)
            leaf_ldmatrix_trans(f.r, leaf_shared_address(tile) + Tile::byte(k0, near + high * 8, m0, low * 8));
        else leaf_ldmatrix(f.r, leaf_shared_address(tile) + Tile::byte(m0, near + low * 8, k0, high * 8));
    }
    template <bool STORED_K, class Tile> DEV_FN void load_b(b_frag &f, const T *tile, int n0, int k0, int lane) {
        int near = (lane & 7), low = (lane >> 3) & 1, high = lane >> 4;
        if (STORED_K)
            leaf_ldmatrix_trans(f.r, leaf_shared_address(tile) + Tile::byte(k0, near + low * 8, n0, high * 8));
        else leaf_ldmatrix(f.r, leaf_shared_address(tile) + Tile::byte(n0, near + high * 8, k0, low * 8));
    }
    DEV_FN void product(float c[4], const a_frag &a, const b_frag &b, int part) {
        leaf_mma_16(T(), c, a.r, b.r + 2 * part);
    }
    /* The same, with the sum rounded to nearest: the matrix unit truncates. */
    DEV_FN void product_rounded(float c[4], const a_frag &a, const b_frag &b, int part) {
        float fresh[4] = {0, 0, 0, 0};
        leaf_mma_16(T(), fresh, a.r, b.r + 2 * part);
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) c[i] += fresh[i];
    }
};

/* Rounds an accumulator to T and writes it into a tile at (row0, col0). */
template <class Tile, class T> DEV_FN void leaf_store_acc(T *tile, int row0, int col0, const float c[4], int lane) {
    DEV_UNROLL_FOR (int s = 0; s < 2; ++s)
        dev_set_pair(tile + Tile::at(row0 + lane / 4 + 8 * s, col0 + (lane % 4) * 2), c[2 * s], c[2 * s + 1]);
}

#endif
