/* SPDX-License-Identifier: MIT
 *
 * Rows of a tensor into a tile of shared memory. What is outside the live rows or beyond the head dim
 * becomes zero, whatever memory holds there. */
#ifndef STW_COMMON_DEVICE_COPY_H
#define STW_COMMON_DEVICE_COPY_H

#include "tile.h"

/* THREADS threads copy a tile: thread t always has the vectors of column col(t) in rows row(t), row(t) + STEP... */
template <class Tile, int THREADS, bool TERMS = Tile::TERMS != 1> struct dev_row_copy {
    typedef typename Tile::type T;
    enum {
        ASYNC = 1,
        VECTORS = Tile::COLS / Tile::VECTOR,
        LANES = VECTORS <= 4    ? 4
                : VECTORS <= 8  ? 8
                : VECTORS <= 16 ? 16
                : VECTORS <= 32 ? 32
                                : 64, /* threads a row */
        STEP = THREADS / LANES,
        COUNT = STEP > Tile::ROWS ? 1 : Tile::ROWS / STEP /* rows a thread; small tiles leave threads without one */
    };
    static_assert(THREADS % LANES == 0 && (STEP > Tile::ROWS || Tile::ROWS % STEP == 0), "no row is left out");

    DEV_FN int row(int t) { return t / LANES; }
    DEV_FN int col(int t) { return t % LANES * Tile::VECTOR; }

    /* All rows are live and whole vectors; `from` is the tile's row 0, and row ROWS is less than 2^31 bytes away. */
    DEV_FN void whole(T *tile, const T *from, int64_t stride, int cols, int t) {
        int r = row(t), c = col(t);
        bool live = c < cols;
        if ((LANES != VECTORS && c >= Tile::COLS) || (STEP > Tile::ROWS && r >= Tile::ROWS)) return;
        const char *at = (const char *)from + (uint32_t)((r * (int)stride + (live ? c : 0)) * (int)sizeof(T));
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
            dev_copy_vector(tile + Tile::at(r + i * STEP, c), at + (int64_t)i * (STEP * (int)sizeof(T)) * stride, live);
    }
    /* Any rows: those of the tensor from `first` on, of which [low, end) are live; `from` is its row 0. Not vectors:
     * element by element. */
    DEV_FN void part(T *tile, const T *from, int64_t stride, int64_t first, int64_t low, int64_t end, int cols,
                     bool vectors, int t) {
        int live_low = (int)stw_clamp_i64(low - first, 0, Tile::ROWS),
            live_end = (int)stw_clamp_i64(end - first, 0, Tile::ROWS);
        int r = row(t), c = col(t);
        if ((LANES != VECTORS && c >= Tile::COLS) || (STEP > Tile::ROWS && r >= Tile::ROWS)) return;
        const T *at = from + (first + r) * stride + c;
        if (vectors) {
            if (c >= cols) live_end = 0;
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i, at += STEP * stride) {
                bool live = r + i * STEP >= live_low && r + i * STEP < live_end;
                dev_copy_vector(tile + Tile::at(r + i * STEP, c), live ? at : from, live);
            }
            return;
        }
        DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i, at += STEP * stride) {
            bool live = r + i * STEP >= live_low && r + i * STEP < live_end;
            DEV_ROLLED_FOR (int e = 0; e < Tile::VECTOR; ++e) {
                T x;
                dev_set(&x, 0.0f);
                if (live && c + e < cols) x = at[e];
                tile[Tile::at(r + i * STEP, c + e)] = x;
            }
        }
    }
};

/* f32 tiles in parts: rows pass through registers, where numbers are split. */
template <class Tile, int THREADS> struct dev_row_copy<Tile, THREADS, true> {
    typedef float T;
    typedef leaf_mma<typename Tile::type> leaf;
    enum {
        ASYNC = 0,
        VECTOR = 4,
        LANES = Tile::COLS / VECTOR,
        STEP = THREADS / LANES,
        COUNT = Tile::ROWS / STEP,
        CHUNK = COUNT < 4 ? COUNT : 4
    };
    static_assert(THREADS % LANES == 0 && Tile::ROWS % STEP == 0 && COUNT % CHUNK == 0,
                  "every thread has the same number of rows");

    DEV_FN int row(int t) { return t / LANES; }
    DEV_FN int col(int t) { return t % LANES * VECTOR; }

    /* As whole() above, into registers; put() when no number is nonfinite, else part(). */
    DEV_FN void fetch(dev_vector v[COUNT], const T *from, int64_t stride, int cols, int t) {
        const dev_vector zero = {{0, 0, 0, 0}};
        int r = row(t), c = col(t);
        bool live = c < cols;
        const char *at = (const char *)from + (uint32_t)((r * (int)stride + (live ? c : 0)) * (int)sizeof(T));
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
            v[i] = zero;
            if (live) v[i] = dev_load_vector(at + (int64_t)i * (STEP * (int)sizeof(T)) * stride);
        }
    }
    DEV_FN bool any_nonfinite(const dev_vector v[COUNT]) {
        bool nonfinite = false;
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) nonfinite |= leaf::is_nonfinite(v[i]);
        return nonfinite;
    }
    DEV_FN void put(T *tile, const dev_vector v[COUNT], int t) {
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
            leaf::template store_four<Tile>(tile, row(t) + i * STEP, col(t), v[i]);
    }
    /* As part() above; numbers times `scale` (not 1: element by element). */
    DEV_FN void part(T *tile, const T *from, int64_t stride, int64_t first, int64_t low, int64_t end, int cols,
                     bool vectors, int t, float scale = 1.0f) {
        t = dev_keep(t); /* what is derived from it is not kept over the loops around: registers are taken */
        int live_low = (int)stw_clamp_i64(low - first, 0, Tile::ROWS),
            live_end = (int)stw_clamp_i64(end - first, 0, Tile::ROWS);
        int c = col(t);
        DEV_ROLLED_FOR (int r = row(t); r < Tile::ROWS; r += CHUNK * STEP) {
            const T *at = from + (first + r) * stride + c;
            dev_vector v[CHUNK];
            bool whole = vectors && scale == 1.0f;
            DEV_UNROLL_FOR (int i = 0; i < CHUNK; ++i) {
                bool live = c < cols && r + i * STEP >= live_low && r + i * STEP < live_end;
                v[i] = dev_vector{{0, 0, 0, 0}};
                if (whole && live) v[i] = dev_load_vector(at + i * STEP * stride);
            }
            DEV_UNROLL_FOR (int i = 0; i < CHUNK; ++i)
                if (leaf::is_nonfinite(v[i])) whole = false;
            if (whole) {
                DEV_UNROLL_FOR (int i = 0; i < CHUNK; ++i) leaf::template store_four<Tile>(tile, r + i * STEP, c, v[i]);
                continue;
            }
            DEV_ROLLED_FOR (int i = 0; i < CHUNK * VECTOR; ++i) {
                int at_row = r + i / VECTOR * STEP, e = i % VECTOR;
                bool live = at_row >= live_low && at_row < live_end && c + e < cols;
                leaf::template store_one<Tile>(tile, at_row, c + e,
                                               live ? at[i / VECTOR * STEP * stride + e] * scale : 0.0f);
            }
        }
    }
};

/* COUNT floats (a multiple of 4, 16-byte aligned) into shared memory, asynchronously. */
template <int THREADS, int COUNT> DEV_FN void dev_load_floats(float *to, const float *from, int t) {
    static_assert(COUNT % 4 == 0 && COUNT / 4 <= THREADS, "one vector a thread");
    int i = t * 4;
    if (i < COUNT) dev_copy_vector(to + i, from + i, true);
}

#endif
