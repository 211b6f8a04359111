/* SPDX-License-Identifier: MIT
 *
 * Copies inputs whose head dim is strided into the workspace, before the first phase, on all threads. */
#include "cpu.h"

typedef struct stage_job {
    const stw_attn_stage *stage;
    int64_t strips, units, rows;
    atomic_uint_fast64_t next;
    uint32_t threads;
} stage_job;

/* Below this many elements one thread is faster than waking the others. */
#define ALONE_BELOW (1 << 16)

#define COPY(type)                                                                                                     \
    for (int64_t n = 0; n < s->cols; ++n) ((type *)s->to)[to + n] = ((const type *)s->from)[from + n * s->from_col]

static void copy_row(const stw_attn_stage *s, int64_t to, int64_t from) {
    if (s->element == 2) COPY(uint16_t);
    else if (s->element == 4) COPY(uint32_t);
    else COPY(uint64_t);
}

static void copy_strips(void *data, uint32_t worker) {
    stage_job *job = data;
    const stw_attn_stage *s = job->stage;
    const stw_tensor_param *f = &s->from_strides, *t = &s->to_strides;
    (void)worker;
    for (;;) {
        int64_t unit = (int64_t)atomic_fetch_add(&job->next, 1);
        if (unit >= job->units) return;
        int64_t head = unit / job->strips, b = head / s->heads, h = head % s->heads;
        int64_t first = unit % job->strips * STW_STAGE_ROWS, end = stw_min_i64(first + STW_STAGE_ROWS, job->rows);
        for (int64_t i = first; i < end; ++i)
            copy_row(s, b * t->batch + h * t->head + i * t->seq, b * f->batch + h * f->head + i * f->seq);
    }
}

stw_status stw_cpu_stage(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                         const stw_attn_stage *stages, uint32_t count, void *workspace, stw_stream stream,
                         uint32_t cpu_threads) {
    (void)workspace, (void)stream;
    stw_status status = stw_cpu_check_data(work->kind == STW_PLAN_ATTN_FWD ? "attn_fwd" : "attn_bwd", params);
    for (uint32_t i = 0; i < count && !status; ++i) {
        const stw_attn_stage *s = &stages[i];
        stage_job job = {.stage = s, .strips = stw_stage_strips(s), .rows = stw_stage_rows(s)};
        stw_cpu_progress progress = {&job.next, &job.threads};
        stw_pool_fn phase = copy_strips;
        job.units = s->batch * s->heads * job.strips;
        int alone = job.units * STW_STAGE_ROWS * s->cols < ALONE_BELOW;
        stw_cpu_run_phases(device, alone ? 1 : stw_cpu_threads_of(device, cpu_threads), &job, &progress, &phase, 1);
    }
    return status;
}
