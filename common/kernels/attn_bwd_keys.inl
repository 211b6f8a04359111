/* SPDX-License-Identifier: MIT
 *
 * The end of a unit: its rows of dK or dV, from registers to the caller's tensor. Sums for keys in use, zeros up
 * to the sequence's end. Included by attn_bwd.inl. */

/* By way of a tile of shared memory, so that a row is written in whole vectors. */
template <class C> DEV_FN void attn_store_key_rows(const attn_unit &u, const dev_acc<typename C::key_split> &acc,
                                                   const stw_tensor_param &to, int cols, float scale, char *smem, int wave,
                                                   int lane) {
    typedef typename C::T T;
    typedef typename C::key_split S;
    typedef dev_row_copy<typename C::keys, C::THREADS> copy;
    T *tile = (T *)smem;
    dev_barrier(); /* nobody reads the tile's former content any more */
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n) {
            float x[LEAF_ACC];
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) x[i] = acc.v[m][n][i] * scale;
            leaf_store_acc<typename C::keys>(tile, S::row0(wave) + m * LEAF_MMA_M, S::col0(wave) + n * LEAF_MMA_N, x, lane);
        }
    dev_barrier();
    int used = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN), end = (int)stw_smaller(C::BN, u.seq.kv.rows - u.j0);
    int row = copy::row((int)dev_thread()), col = copy::col((int)dev_thread());
    if (col >= cols) return;
    T *at = (T *)to.data + dev_row(to, u.b, u.kv_head, u.seq.kv.first + u.j0 + row) + col;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL for (int i = 0; i < copy::COUNT; ++i, at += copy::STEP * to.seq, row += copy::STEP)
        if (row < end) dev_store_vector(at, row < used ? dev_load_vector(tile + C::keys::at(row, col)) : zero);
}

/* Element by element: other types, added sums, rows that are not whole vectors. */
template <class C> DEV_FN void attn_store_key_elements(const attn_unit &u, const dev_acc<typename C::key_split> &acc,
                                                       const stw_tensor_param &to, uint32_t dtype, bool add, bool vectors,
                                                       int cols, float scale, int wave, int lane) {
    typedef typename C::key_split S;
    int used = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN), end = (int)stw_smaller(C::BN, u.seq.kv.rows - u.j0);
    int64_t base = dev_row(to, u.b, u.kv_head, u.seq.kv.first + u.j0);
    DEV_UNROLL for (int m = 0; m < S::MT; ++m)
        DEV_UNROLL for (int n = 0; n < S::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                int64_t at = base + row * to.seq + col;
                if (row >= (add ? used : end) || col >= cols) continue;
                float x = row < used ? acc.v[m][n][i] * scale : 0.0f;
                if (LEAF_ACC_PAIRS && vectors && !add) {
                    float y = row < used ? acc.v[m][n][i ^ 1] * scale : 0.0f;
                    if (!(i & 1)) dev_store_any_pair(to.data, at, dtype, x, y);
                } else {
                    dev_store_any(to.data, at, dtype, add ? ((const float *)to.data)[at] + x : x);
                }
            }
}

template <class C> DEV_FN void attn_store_keys(const attn_unit &u, const dev_acc<typename C::key_split> &acc,
                                               const stw_tensor_param &to, uint32_t own_dtype, uint32_t dtype, bool add,
                                               bool vectors, int cols, float scale, char *tile, int wave, int lane) {
    if (C::keys::PARTS == 1 && vectors && !add && dtype == own_dtype)
        attn_store_key_rows<C>(u, acc, to, cols, scale, tile, wave, lane);
    else attn_store_key_elements<C>(u, acc, to, dtype, add, vectors, cols, scale, wave, lane);
}
