/* SPDX-License-Identifier: MIT
 *
 * Tiles of a matrix in shared memory, and how the waves of a CTA share the result of a product.
 *
 * Rows of 128-byte multiples: vector v (16 bytes) of row r lies at v XOR (r mod 8), so that 8 rows of one
 * vector column fall into different banks. Other rows are padded by a vector. Where the leaf multiplies f32 in parts
 * (LEAF_F32_BF16X3), a tile of at least 32 columns is three planes of 16-bit parts, each like a 16-bit tile. */
#ifndef STW_COMMON_DEVICE_TILE_H
#define STW_COMMON_DEVICE_TILE_H

#include "device.h"

/* Bytes of an element of type T in shared memory, all parts together, as the host's formulas want it. */
template <class T> struct dev_stored {
    enum : unsigned { BYTES = sizeof(T) == 4 && LEAF_F32_BF16X3 ? 6 : sizeof(T) };
};

template <class T, int ROWS_, int COLS_> struct dev_tile {
    typedef T type;
    enum {
        ROWS = ROWS_,
        COLS = COLS_,
        TERMS = (int)STW_TILE_TERMS(dev_stored<T>::BYTES, COLS_),
        ELEMENT = TERMS == 1 ? (int)sizeof(T) : 2, /* bytes in a plane */
        VECTOR = 16 / ELEMENT,
        SWIZZLED = STW_TILE_SWIZZLED(ELEMENT, COLS_),
        STRIDE = COLS_ + (SWIZZLED ? 0 : VECTOR),
        PLANE = ROWS * STRIDE * ELEMENT,
        BYTES = (int)STW_TILE_BYTES(dev_stored<T>::BYTES, ROWS_, COLS_)
    };
    static_assert(BYTES == TERMS * PLANE, "host and device agree on tiles");

    /* Element number of (row, col), in each plane. */
    DEV_FN int at(int row, int col) {
        if (!SWIZZLED) return row * STRIDE + col;
        return row * STRIDE + (((col / VECTOR) ^ (row & 7)) * VECTOR) + col % VECTOR;
    }
    /* Byte of (row0 + row, col0 + col): row0 and col0 multiples of 16, col 0 or 8, all of 16-bit elements.
     * Kept apart so that the parts of unrolled loops become constants. */
    DEV_FN uint32_t byte(int row0, int row, int col0, int col) {
        if (!SWIZZLED) return (uint32_t)((row0 + row) * STRIDE + col0 + col) * 2u;
        int vector = ((col0 / 8) & 7) ^ (col / 8) ^ (row & 7);
        return (uint32_t)((row0 + row) * (STRIDE * 2) + col0 / 64 * 128 + vector * 16);
    }
};

/* A tile that lies in shared memory: an operand of the products of mma.h. */
template <class Tile> struct dev_smem_tile {
    typename Tile::type *data;
};

/* Type of the first plane of a tile. */
template <class T, int TERMS> struct dev_first_term {
    typedef dev_bf16 type;
};
template <class T> struct dev_first_term<T, 1> {
    typedef T type;
};

/* Waves over a ROWS x COLS result: R x C of them, with as few operand reads as possible. Each wave has M x N elements,
 * which are MT x NT accumulators. */
template <class T, int ROWS, int COLS, int WAVES> struct dev_split {
    enum { STEP_N = LEAF_MMA_N * leaf_mma<T>::B_TILES };
    static_assert(stw_split_rows(ROWS, COLS, WAVES, STEP_N) > 0, "the waves can share this tile");
    enum {
        R = stw_split_rows(ROWS, COLS, WAVES, STEP_N),
        C = WAVES / R,
        M = ROWS / R,
        N = COLS / C,
        MT = M / LEAF_MMA_M,
        NT = N / LEAF_MMA_N
    };
    DEV_FN int row0(int wave) { return wave / C * M; }
    DEV_FN int col0(int wave) { return wave % C * N; }
};

/* A wave's part of a result, in registers. */
template <class Split> struct dev_acc {
    float v[Split::MT][Split::NT][LEAF_ACC];
    DEV_METHOD void clear() {
        DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
            DEV_UNROLL_FOR (int n = 0; n < Split::NT; ++n)
                DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) v[m][n][i] = 0.0f;
    }
    DEV_FN void clear(dev_acc &acc) { acc.clear(); }
};

#endif
