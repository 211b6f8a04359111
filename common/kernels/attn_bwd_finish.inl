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

DEV_FN void attn_bwd_finish(const stw_attn_launch &l) {
    enum { AHEAD = 4 };
    const stw_attn_params &p = l.p;
    int64_t blocks = stw_blocks_of(p.max_seq_q, l.bm), unit = dev_unit();
    int64_t tiles = p.outputs & 0x01u ? blocks * p.heads_q * p.batch : 0;
    if (unit >= tiles) {
        if (p.outputs & 0x10u) attn_finish_sink(l, unit - tiles);
        return;
    }
    int64_t head = stw_quotient(unit, blocks), block = unit - head * blocks;
    int64_t b = stw_quotient(head, p.heads_q), h = head - b * p.heads_q;
    stw_attn_seq seq = stw_attn_seq_of(&p, l.bm, b);
    int64_t i0 = block * l.bm;
    bool add = (p.accumulate & 0x01u) != 0;
    int used = (int)stw_clamp_i64(seq.q.used - i0, 0, l.bm), end = (int)stw_clamp_i64(seq.q.rows - i0, 0, l.bm);
    const float *sums = l.dq + (h * l.q_blocks + seq.q_block + block) * (int64_t)(l.bm * l.width);
    int64_t base = dev_row(p.dq, b, h, seq.q.first + i0);
    int threads = (int)l.warps * DEV_WAVE, cols = (int)p.head_dim_qk, t = (int)dev_thread(), lane = (int)dev_lane();
    int waves_c = (int)(l.warps / l.dq_rows), wave_m = (int)(l.bm / l.dq_rows), wave_n = (int)l.width / waves_c;
    if (end <= 0) return; /* past the sequence: this block has no sums */
    /* thread t has what thread t of the main loop summed; if that had fewer threads, every second fragment of it */
    int turn = t / threads, turns = (int)dev_threads() / threads;
    t %= threads;
    int row0 = t / DEV_WAVE / waves_c * wave_m, col0 = t / DEV_WAVE % waves_c * wave_n, across = wave_n / LEAF_MMA_N;
    bool pairs = LEAF_ACC_PAIRS && (l.vectors & STW_VECTOR_DQ) && !add;
    for (int first = turn, count = wave_m / LEAF_MMA_M * across; first < count; first += AHEAD * turns) {
        float x[AHEAD][LEAF_ACC]; /* all loads first: the kernel is as fast as memory only with many bytes under way */
        DEV_UNROLL for (int a = 0; a < AHEAD; ++a)
            if (first + a * turns < count) dev_load_acc(x[a], sums, first + a * turns, t, threads);
        DEV_UNROLL for (int a = 0; a < AHEAD; ++a) {
            int f = first + a * turns, m = f / across * LEAF_MMA_M, n = f % across * LEAF_MMA_N;
            if (f >= count) break;
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                int row = row0 + m + leaf_slot_row(lane, leaf_acc_slot(i)), col = col0 + n + leaf_acc_col(lane, i);
                if (row >= (add ? used : end) || col >= cols) continue;
                int64_t at = base + row * p.dq.seq + col;
                float y = row < used ? x[a][i] * p.scale : 0.0f;
                if (!pairs) dev_store_any(p.dq.data, at, p.dq_dtype, add ? ((const float *)p.dq.data)[at] + y : y);
                else if (!(i & 1)) dev_store_any_pair(p.dq.data, at, p.dq_dtype, y, row < used ? x[a][i ^ LEAF_ACC_PAIRS] * p.scale : 0.0f);
            }
        }
    }
}
