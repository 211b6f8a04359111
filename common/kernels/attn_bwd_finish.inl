/* SPDX-License-Identifier: MIT
 *
 * Last kernel of the backward pass: dQ sums, in the order of the main loop's registers, times scale into the
 * output's rows; rows of a sequence past its used length become zeros. Behind the query blocks, one block of
 * threads a head sums the parts of dSink in a fixed order. Any shape; one instance. */

DEV_FN void attn_finish_sink(const stw_attn_launch &l, int64_t h) {
    const stw_attn_params &p = l.p;
    if (h >= p.heads_q || dev_thread() >= DEV_WAVE) return;
    double sum = 0.0;
    for (int64_t b = 0; b < p.batch; ++b) {
        stw_attn_seq seq = stw_attn_seq_of(&p, l.bm, b);
        int64_t blocks = stw_blocks_of(seq.q.rows, l.bm);
        for (int64_t i = dev_lane(); i < blocks; i += DEV_WAVE) sum += l.sink[h * l.q_blocks + seq.q_block + i];
    }
    sum = dev_wave_sum(sum);
    if (dev_lane() == 0) p.dsink[h] = (float)(p.accumulate & 0x10u ? (double)p.dsink[h] + sum : sum);
}

/* The sums of a query block: four accumulator tiles of a thread of the main loop at a time, all loads first (the
 * kernel is as fast as memory only with many bytes under way). Thread t has what thread t of the main loop summed;
 * where that had fewer threads, several take parts. */
DEV_FN void attn_finish_rows(const stw_attn_launch &l, const attn_row_unit &u, int used, int end) {
    enum { TOGETHER = 4 };
    const stw_attn_params &p = l.p;
    bool add = (p.accumulate & 0x01u) != 0, pairs = LEAF_ACC_PAIRS && (l.vectors & STW_VECTOR_DQ) && !add;
    int threads = (int)l.warps * DEV_WAVE, t = (int)dev_thread() % threads, lane = t % DEV_WAVE, cols = (int)p.head_dim_qk;
    int part = (int)dev_thread() / threads, parts = (int)STW_ROW_THREADS / threads;
    int waves_c = (int)(l.warps / l.dq_rows), tiles_m = (int)(l.bm / l.dq_rows) / LEAF_MMA_M;
    int tiles_n = (int)l.width / waves_c / LEAF_MMA_N, tiles = tiles_m * tiles_n;
    int row0 = t / DEV_WAVE / waves_c * tiles_m * LEAF_MMA_M, col0 = t / DEV_WAVE % waves_c * tiles_n * LEAF_MMA_N;
    const float *sums = l.dq + u.at * (int64_t)(l.bm * l.width);
    int64_t base = dev_row(p.dq, u.b, u.h, u.seq.q.first + u.block * l.bm);
    for (int f0 = part * TOGETHER; f0 < tiles && part < parts; f0 += parts * TOGETHER) {
        float x[TOGETHER][LEAF_ACC];
        DEV_UNROLL for (int k = 0; k < TOGETHER; ++k)
            if (f0 + k < tiles) dev_load_acc(x[k], sums, f0 + k, t, threads);
        int m = f0 / tiles_n, n = f0 % tiles_n;
        DEV_UNROLL for (int k = 0; k < TOGETHER; ++k) {
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int row = row0 + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = col0 + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                if (f0 + k >= tiles || row >= (add ? used : end) || col >= cols) continue;
                int64_t at = base + row * p.dq.seq + col;
                float y = row < used ? x[k][i] * p.scale : 0.0f;
                if (!pairs) dev_store_any(p.dq.data, at, p.dq_dtype, add ? ((const float *)p.dq.data)[at] + y : y);
                else if (!(i & 1)) dev_store_any_pair(p.dq.data, at, p.dq_dtype, y, row < used ? x[k][i + 1] * p.scale : 0.0f);
            }
            if (++n == tiles_n) n = 0, ++m;
        }
    }
}

DEV_FN void attn_bwd_finish(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    int64_t tiles = p.outputs & 0x01u ? stw_blocks_of(p.max_seq_q, l.bm) * p.heads_q * p.batch : 0;
    if (dev_unit() >= tiles) {
        if (p.outputs & 0x10u) attn_finish_sink(l, dev_unit() - tiles);
        return;
    }
    attn_row_unit &u = *(attn_row_unit *)(void *)smem;
    if (dev_thread() == 0) attn_row_unit_of(u, l);
    dev_barrier();
    int64_t i0 = u.block * l.bm;
    int used = (int)stw_clamp_i64(u.seq.q.used - i0, 0, l.bm), end = (int)stw_clamp_i64(u.seq.q.rows - i0, 0, l.bm);
    if (end > 0) attn_finish_rows(l, u, used, end); /* past the sequence there are no sums */
}
