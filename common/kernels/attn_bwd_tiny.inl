/* SPDX-License-Identifier: MIT
 *
 * dQ sums where every term may be subnormal. Additions to global memory (dev_add) take subnormal numbers for
 * zero: each loses up to 2^-126. Where the largest |dO| or |D| of a query block is at least 2^-40 and the largest
 * |V| and |K| of a key block at least 2^-20, the rounding of dP - D alone puts 2^-24 * 2^-80 into dQ, far more.
 * Elsewhere the sums are added by compare-and-swap. The delta kernel marks such query blocks in the statistics,
 * the main loop its keys: one test a tile, and nothing else in the usual path. Included by attn_bwd.inl. */

#define ATTN_TINY_ROWS 0x1p-40f
#define ATTN_TINY_KEYS 0x1p-20f

/* This thread's part of a tile holds an element of at least ATTN_TINY_KEYS, or a NaN. Ordinary data: the first
 * vector does. Of numbers in parts the first decides (infinite ones do not count: tiles of those and tiny ones). */
template <class Tile, int THREADS> DEV_FN bool attn_tile_counts(const typename Tile::type *tile) {
    typedef typename dev_first_part<typename Tile::type, Tile::PARTS>::type T;
    enum { VECTORS = Tile::COLS / Tile::VECTOR, TOTAL = Tile::ROWS * VECTORS };
    DEV_ROLLED for (int at = (int)dev_thread(); at < TOTAL; at += THREADS) {
        dev_vector v = dev_load_vector((const T *)(const void *)tile + Tile::at(at / VECTORS, at % VECTORS * Tile::VECTOR));
        const T *x = (const T *)(const void *)&v;
        bool counts = false;
        DEV_UNROLL for (int i = 0; i < Tile::VECTOR; ++i) counts |= !(fabsf(dev_float(x[i])) < ATTN_TINY_KEYS);
        if (counts) return true;
    }
    return false;
}

/* All threads, when K and V have arrived; the answer stands in `u` after the next barrier. f16 has no such
 * numbers: its smallest is 2^-24. */
template <class Tile, int THREADS> DEV_FN void attn_mark_keys(attn_unit &u, const typename Tile::type *k,
                                                              const typename Tile::type *v) {
    if (dev_is_f16<typename Tile::type>::yes) return;
    if (attn_tile_counts<Tile, THREADS>(k)) u.k_counts = 1;
    if (attn_tile_counts<Tile, THREADS>(v)) u.v_counts = 1;
}

/* Whether a tile's dQ must be added exactly; `stats`: those of its rows. */
template <class C> DEV_FN bool attn_is_tiny(const attn_unit &u, const float *stats) {
    if (dev_is_f16<typename C::T>::yes) return false;
    return stats[2 * C::BM + 1] != 0.0f || !u.k_counts || !u.v_counts;
}
