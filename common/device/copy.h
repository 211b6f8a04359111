/* SPDX-License-Identifier: MIT
 *
 * Rows of a tensor into a tile of shared memory. What is outside the live rows or beyond the head dim
 * becomes zero, whatever memory holds there. */
#ifndef STW_COMMON_DEVICE_COPY_H
#define STW_COMMON_DEVICE_COPY_H

#include "tile.h"

/* Rows [first, first + ROWS) of one (batch, head); `from` is its row 0, live rows are [low, end). `vectors`:
 * rows are whole 16-byte vectors, copied asynchronously; otherwise element by element, at once. */
template <class Tile, int THREADS>
DEV_FN void dev_load_rows(typename Tile::type *tile, const typename Tile::type *from, int64_t stride, int64_t first,
                          int64_t low, int64_t end, int cols, bool vectors) {
    typedef typename Tile::type T;
    enum { VECTORS = Tile::COLS / Tile::VECTOR, TOTAL = Tile::ROWS * VECTORS };
    int live_low = (int)stw_clamp_i64(low - first, 0, Tile::ROWS);
    int live_end = (int)stw_clamp_i64(end - first, 0, Tile::ROWS);
    from += first * stride;
    if (vectors && THREADS % VECTORS == 0 && TOTAL % THREADS == 0) { /* each thread keeps its column */
        enum { STEP = THREADS / VECTORS };
        int row = (int)dev_thread() / VECTORS, col = (int)dev_thread() % VECTORS * Tile::VECTOR;
        const T *at = from + row * stride + col;
        int64_t step = STEP * stride;
        if (live_low == 0 && live_end == Tile::ROWS) {
            bool live = col < cols;
            if (!live) at = from, step = 0; /* any address that exists */
            DEV_UNROLL for (int i = 0; i < TOTAL / THREADS; ++i, at += step)
                dev_copy_vector(tile + Tile::at(row + i * STEP, col), at, live);
            return;
        }
        if (col >= cols) live_end = 0;
        DEV_UNROLL for (int i = 0; i < TOTAL / THREADS; ++i, at += step) {
            bool live = row + i * STEP >= live_low && row + i * STEP < live_end;
            dev_copy_vector(tile + Tile::at(row + i * STEP, col), live ? at : from, live);
        }
        return;
    }
    if (vectors) {
        DEV_UNROLL for (int i = 0; i < (TOTAL + THREADS - 1) / THREADS; ++i) {
            int at = i * THREADS + (int)dev_thread();
            int row = at / VECTORS, col = at % VECTORS * Tile::VECTOR;
            bool live = row >= live_low && row < live_end && col < cols;
            if (TOTAL % THREADS == 0 || at < TOTAL)
                dev_copy_vector(tile + Tile::at(row, col), live ? from + row * stride + col : from, live);
        }
        return;
    }
    DEV_ROLLED for (int at = (int)dev_thread(); at < TOTAL; at += THREADS) {
        int row = at / VECTORS, col = at % VECTORS * Tile::VECTOR;
        bool live = row >= live_low && row < live_end;
        DEV_ROLLED for (int i = 0; i < Tile::VECTOR; ++i) {
            T x;
            dev_set(&x, 0.0f);
            if (live && col + i < cols) x = from[row * stride + col + i];
            tile[Tile::at(row, col + i)] = x;
        }
    }
}

/* `count` floats (a multiple of 4, 16-byte aligned) into shared memory, asynchronously. */
template <int THREADS> DEV_FN void dev_load_floats(float *to, const float *from, int count) {
    for (int i = (int)dev_thread() * 4; i < count; i += THREADS * 4) dev_copy_vector(to + i, from + i, true);
}

#endif
