/* SPDX-License-Identifier: MIT
 *
 * First kernel of the backward pass, a block of threads for bm query rows of one head: D = rowsum(dO*O) -
 * dLSE and LSE as the main loop wants them, the rows' part of dSink, zeros in the dQ sums and wherever in
 * dBias no tile will write. One more block checks the caller's lengths and offsets. Any shape; instantiated
 * once a data type. */

enum { ATTN_ROW_THREADS = 256 };

/* What the values behind the pointers violate, as STW_DATA_* bits. */
DEV_FN int32_t attn_check_side(int64_t b, const int32_t *cu, const int32_t *used, const int64_t *offsets,
                               int64_t max_seq, int64_t total, int32_t bad_cu, int32_t bad_used) {
    int32_t bits = 0;
    int64_t rows = max_seq;
    if (cu) {
        rows = (int64_t)cu[b + 1] - cu[b];
        if (cu[b] < 0 || rows < 0 || cu[b + 1] > total || rows > max_seq) bits |= bad_cu;
    }
    if (used && (used[b] < 0 || used[b] > rows)) bits |= bad_used;
    if (offsets && (offsets[b] < -STW_POSITION_MAX || offsets[b] > STW_POSITION_MAX)) bits |= 0x10;
    return bits;
}

DEV_FN void attn_check(const stw_attn_params &p, char *smem) {
    if (!p.status_out) return;
    int32_t *found = (int32_t *)(void *)smem;
    if (dev_thread() == 0) *found = 0;
    dev_barrier();
    int32_t bits = 0;
    for (int64_t b = dev_thread(); b < p.batch; b += dev_threads())
        bits |= attn_check_side(b, p.cu_seqlens_q, p.used_q, p.q_offsets, p.max_seq_q, p.total_q, 0x01, 0x04) |
                attn_check_side(b, p.cu_seqlens_kv, p.used_kv, p.k_offsets, p.max_seq_kv, p.total_kv, 0x02, 0x08);
    if (bits) dev_or(found, bits);
    dev_barrier();
    if (dev_thread() == 0) *p.status_out = *found;
}

DEV_FN float *attn_float_at(const stw_tensor_param &t, bool packed, const stw_attn_seq &seq, int64_t b, int64_t h,
                            int64_t i) {
    return (float *)t.data + dev_row(t, b, h, (packed ? seq.q.first : 0) + i);
}

/* This lane's part of rowsum(dO*O): lanes `sub` of `lanes` share the row. */
template <class T> DEV_FN float attn_dot_part(const T *x, const T *y, int cols, bool vectors, int sub, int lanes) {
    enum { VECTOR = 16 / (int)sizeof(T) };
    float sum = 0.0f;
    if (!vectors) {
        for (int c = sub; c < cols; c += lanes) sum += dev_float(x[c]) * dev_float(y[c]);
        return sum;
    }
    for (int c = sub * VECTOR; c < cols; c += lanes * VECTOR) {
        dev_vector vx = dev_load_vector(x + c), vy = dev_load_vector(y + c);
        const T *ex = (const T *)(const void *)&vx, *ey = (const T *)(const void *)&vy;
        DEV_UNROLL for (int i = 0; i < VECTOR; ++i) sum += dev_float(ex[i]) * dev_float(ey[i]);
    }
    return sum;
}

/* Zeros of dBias in rows [i0, i0 + bm) outside the tiles of the main loop. */
DEV_FN void attn_zero_bias(const stw_attn_launch &l, const stw_attn_seq &seq, int64_t b, int64_t h, int64_t block) {
    const stw_attn_params &p = l.p;
    stw_range range = stw_key_blocks(&seq, l.bm, l.bn, block);
    int64_t first = range.first * l.bn, end = stw_smaller(range.end * l.bn, seq.kv.used);
    for (int64_t r = 0; r < l.bm; ++r) {
        int64_t i = block * l.bm + r;
        if (i >= p.max_seq_q) return;
        int64_t base = b * p.dbias.batch + h * p.dbias.head + i * p.dbias.query;
        bool visited = i < seq.q.used && first < end;
        for (int64_t j = dev_thread(); j < p.max_seq_kv; j += dev_threads())
            if (!visited || j < first || j >= end) dev_store_any(p.dbias.data, base + j, p.dbias_dtype, 0.0f);
    }
}

template <class T> DEV_FN void attn_bwd_delta(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    int64_t unit = dev_unit(), blocks = stw_blocks_of(p.max_seq_q, l.bm);
    if (unit == l.units - 1) {
        if (dev_thread() == 0 && l.ticket) *l.ticket = 0;
        attn_check(p, smem);
    }
    if (unit >= l.units - 1) return;
    int64_t block = unit % blocks, head = unit / blocks, h = head % p.heads_q, b = head / p.heads_q;
    stw_attn_seq seq = stw_attn_seq_of(&p, l.bm, b);
    int64_t i0 = block * l.bm;
    if (l.bias_direct && !(p.accumulate & 0x08u)) attn_zero_bias(l, seq, b, h, block);
    if (i0 >= seq.q.rows) return;
    int64_t at = h * l.q_blocks + seq.q_block + block;
    float *stats = l.stats + at * (2 * l.bm + STW_STATS_PAD);
    if (p.outputs & 0x01u) {
        float *dq = l.dq + at * (int64_t)(l.bm * l.width);
        dev_vector zero = {{0, 0, 0, 0}};
        for (int e = (int)dev_thread() * 4; e < (int)(l.bm * l.width); e += ATTN_ROW_THREADS * 4)
            dev_store_vector(dq + e, zero);
    }
    double *sums = (double *)(void *)smem; /* one a wave */
    int32_t *special = (int32_t *)(void *)(smem + 256);
    if (dev_thread() == 0) {
        *special = 0;
        if (l.turns) l.turns[at] = 0;
    }
    dev_barrier();
    int width = (int)p.head_dim_v * (int)sizeof(T) / 16, lanes = width <= 8 ? 8 : width <= 16 ? 16 : 32;
    int group = (int)dev_thread() / lanes, sub = (int)dev_thread() % lanes, groups = ATTN_ROW_THREADS / lanes;
    bool vectors = (l.vectors & STW_VECTOR_OUT) && (l.vectors & STW_VECTOR_DOUT);
    bool given = (p.features & STW_FEAT_GIVEN_DELTA) != 0;
    float sink = p.features & STW_FEAT_SINK ? p.sink[h] : -dev_infinity();
    double sum = 0.0;
    for (int r = group; r < (int)l.bm; r += groups) {
        int64_t i = i0 + r;
        bool used = i < seq.q.used, live = i >= seq.q_low && i < seq.q_end;
        float delta = 0.0f, lse = dev_infinity();
        if (live && !given)
            delta = attn_dot_part((const T *)p.dout.data + dev_row(p.dout, b, h, seq.q.first + i),
                                  (const T *)p.out.data + dev_row(p.out, b, h, seq.q.first + i), (int)p.head_dim_v,
                                  vectors, sub, lanes);
        for (int mask = lanes / 2; mask > 0; mask /= 2) delta += dev_shuffle_xor(delta, mask);
        if (used) {
            lse = *attn_float_at(p.lse, (p.features & STW_FEAT_PACKED_LSE) != 0, seq, b, h, i);
            if (given) delta = *attn_float_at(p.delta, (p.features & STW_FEAT_PACKED_DELTA) != 0, seq, b, h, i);
            else if (p.features & STW_FEAT_DLSE)
                delta -= *attn_float_at(p.dlse, (p.features & STW_FEAT_PACKED_DLSE) != 0, seq, b, h, i);
        }
        if (sub) continue;
        stats[r] = lse;
        stats[l.bm + r] = delta;
        if (dev_is_infinite(lse)) dev_or(special, 1);
        if ((p.features & STW_FEAT_WRITE_DELTA) && i < seq.q.rows)
            *attn_float_at(p.delta, (p.features & STW_FEAT_PACKED_DELTA) != 0, seq, b, h, i) = delta;
        if ((p.outputs & 0x10u) && used && sink != -dev_infinity() && !dev_is_infinite(lse))
            sum -= dev_exp((double)sink - (double)lse) * (double)delta;
    }
    sum = dev_wave_sum(sum);
    if (dev_lane() == 0) sums[dev_thread() / DEV_WAVE] = sum;
    dev_barrier();
    if (dev_thread() == 0) {
        stats[2 * l.bm] = *special ? 1.0f : 0.0f;
        if (p.outputs & 0x10u) {
            double total = 0.0;
            for (int w = 0; w < ATTN_ROW_THREADS / DEV_WAVE; ++w) total += sums[w];
            l.sink[at] = total;
        }
    }
}
