/* SPDX-License-Identifier: MIT
 *
 * Last kernel of the backward pass: dQ sums, in the order of the main loop's registers, times scale into the
 * output's rows; rows of a sequence past its used length become zeros. Behind the query blocks, one block of
 * threads a head sums the parts of dSink in a fixed order. Any shape; one instance. */

/* Number of element (row, col) of a query block in its sums: the inverse of the main loop's split. */
DEV_FN int attn_dq_number(const stw_attn_launch &l, int row, int col) {
    int r = (int)l.dq_rows, n = (int)l.width / ((int)l.warps / r), m = (int)l.bm / r;
    int lane, i, wave = row / m * ((int)l.warps / r) + col / n;
    row %= m;
    col %= n;
    leaf_acc_find(row % LEAF_MMA_M, col % LEAF_MMA_N, &lane, &i);
    int fragment = (row / LEAF_MMA_M * (n / LEAF_MMA_N) + col / LEAF_MMA_N) * LEAF_ACC + i;
    return fragment * (int)l.warps * DEV_WAVE + wave * DEV_WAVE + lane;
}

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

DEV_FN void attn_bwd_finish(const stw_attn_launch &l) {
    const stw_attn_params &p = l.p;
    int64_t blocks = stw_blocks_of(p.max_seq_q, l.bm), unit = dev_unit();
    int64_t tiles = p.outputs & 0x01u ? blocks * p.heads_q * p.batch : 0;
    if (unit >= tiles) {
        if (p.outputs & 0x10u) attn_finish_sink(l, unit - tiles);
        return;
    }
    int64_t block = unit % blocks, head = unit / blocks, h = head % p.heads_q, b = head / p.heads_q;
    stw_attn_seq seq = stw_attn_seq_of(&p, l.bm, b);
    int64_t i0 = block * l.bm;
    bool add = (p.accumulate & 0x01u) != 0;
    int used = (int)stw_clamp_i64(seq.q.used - i0, 0, l.bm), end = (int)stw_clamp_i64(seq.q.rows - i0, 0, l.bm);
    const float *sums = l.dq + (h * l.q_blocks + seq.q_block + block) * (int64_t)(l.bm * l.width);
    int64_t base = dev_row(p.dq, b, h, seq.q.first + i0);
    int cols = (int)p.head_dim_qk, pairs = (cols + 1) / 2;
    if (add) end = used;
    for (int e = (int)dev_thread(); e < end * pairs; e += (int)dev_threads()) {
        int row = e / pairs, col = e % pairs * 2;
        int64_t at = base + row * p.dq.seq + col;
        DEV_UNROLL for (int i = 0; i < 2; ++i) {
            if (col + i >= cols) break;
            float x = row < used ? sums[attn_dq_number(l, row, col + i)] * p.scale : 0.0f;
            dev_store_any(p.dq.data, at + i, p.dq_dtype, add ? ((const float *)p.dq.data)[at + i] + x : x);
        }
    }
}
