/* SPDX-License-Identifier: MIT
 *
 * The dropout mask call: the tile operation of the backward pass, whose result is written as bytes. It needs
 * no workspace, only a strip of a tile on the stack. Called through backend.c. */
#include "cpu.h"

#include <string.h>

#define STRIP_ROWS 16
#define STRIP_COLS 128

static void write_strip(const stw_cpu_job *job, const stw_cpu_seq *seq, const stw_dropout_stream *stream, uint8_t *to,
                        int64_t i0, uint32_t rows) {
    const stw_attn_params *p = job->p;
    _Alignas(64) uint32_t keep[STRIP_ROWS * STRIP_COLS];
    for (int64_t j0 = 0; j0 < seq->kv.used; j0 += STRIP_COLS) {
        uint32_t cols = (uint32_t)stw_min_i64(STRIP_COLS, seq->kv.used - j0);
        if (p->features & STW_FEAT_DROPOUT) job->tile->dropout(keep, STRIP_COLS, p, stream, i0, j0, rows, cols);
        else memset(keep, 0xFF, sizeof keep);
        for (uint32_t r = 0; r < rows; ++r)
            for (uint32_t c = 0; c < cols; ++c) to[r * p->max_seq_kv + j0 + c] = keep[r * STRIP_COLS + c] & 1;
    }
}

void stw_cpu_mask_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    int64_t strips = p->max_seq_kv ? stw_ceil_div(p->max_seq_q, STRIP_ROWS) : 0;
    (void)worker;
    for (;;) {
        int64_t task = stw_cpu_claim(job);
        if (task >= p->batch * p->heads_q * strips) return;
        int64_t head = task / strips, b = head / p->heads_q, i0 = task % strips * STRIP_ROWS;
        stw_cpu_seq seq = {.b = b, .q = stw_seq_q(p, b), .kv = stw_seq_kv(p, b)};
        stw_dropout_stream stream = stw_dropout_stream_of(p, b, head % p->heads_q, seq.q, seq.kv);
        uint8_t *to = p->mask_out + (head * p->max_seq_q + i0) * p->max_seq_kv;
        memset(to, 0, (size_t)(stw_min_i64(STRIP_ROWS, p->max_seq_q - i0) * p->max_seq_kv));
        int64_t rows = stw_clamp_i64(seq.q.used - i0, 0, STRIP_ROWS);
        if (rows) write_strip(job, &seq, &stream, to, i0, (uint32_t)rows);
    }
}

stw_status stw_cpu_dropout_mask(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                                stw_stream stream, uint32_t cpu_threads) {
    (void)stream;
    stw_status status = stw_cpu_check_data("dropout_mask", params);
    if (status) return status;
    const char *reason;
    stw_cpu_job job = {.p = params,
                       .tile = stw_cpu_tile_ops(work->variant->loop, &reason),
                       .threads = stw_cpu_threads_of(device, cpu_threads)};
    stw_pool_fn phase = stw_cpu_mask_phase;
    stw_cpu_run(device, &job, &phase, 1);
    return STW_OK;
}
