/* SPDX-License-Identifier: MIT
 *
 * Runs the phases of an attention call on the context's threads. The backward call has five: what intervals hide
 * (attn_hidden.c), preprocess (attn_rows.c), dSink, broadcast dBias (attn_bias.c), main phase (attn_main.c). f64
 * problems have those of attn_f64_bwd.c instead. Called through backend.c. */
#include "cpu.h"

#include <fenv.h>

typedef struct phase_run {
    stw_pool_fn fn;
    void *job;
} phase_run;

/* Results must not depend on the rounding mode or the flushing of subnormals that the calling thread has set. */
static void run_phase(void *data, uint32_t worker) {
    const phase_run *run = data;
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    run->fn(run->job, worker);
    atomic_thread_fence(memory_order_seq_cst); /* orders the non-temporal stores of jagged tiles, too */
    fesetenv(&before);
}

/* Below this many multiplications one thread is faster than waking the others. */
#define ALONE_BELOW (1 << 20)

static uint32_t useful_threads(const stw_attn_params *p, uint32_t threads) {
    double pairs = (double)p->batch * (double)p->heads_q * (double)p->max_seq_q * (double)p->max_seq_kv;
    return pairs * (p->head_dim_qk + p->head_dim_v) < ALONE_BELOW ? 1 : threads;
}

void stw_cpu_run_phases(const stw_device *device, uint32_t threads, void *job, const stw_cpu_progress *progress,
                        const stw_pool_fn *phases, uint32_t count) {
    const stw_cpu_state *state = device->state;
    stw_pool *pool = threads > 1 && stw_pool_try_acquire(state->pool) ? state->pool : NULL;
    *progress->threads = pool ? threads : 1;
    for (uint32_t i = 0; i < count; ++i) {
        if (!phases[i]) continue;
        phase_run run = {phases[i], job};
        atomic_store(progress->next, 0);
        stw_pool_run(pool, *progress->threads, run_phase, &run);
    }
    if (pool) stw_pool_release(pool);
}

uint32_t stw_cpu_threads_of(const stw_device *device, uint32_t cpu_threads) {
    const stw_cpu_state *state = device->state;
    return cpu_threads && cpu_threads < state->threads ? cpu_threads : state->threads;
}

void stw_cpu_run(const stw_device *device, stw_cpu_job *job, const stw_pool_fn *phases, uint32_t count) {
    stw_cpu_progress progress = {&job->next, &job->threads};
    stw_cpu_run_phases(device, useful_threads(job->p, job->threads), job, &progress, phases, count);
}

/* dSink: the query blocks' parts, added in order by one thread. */
static void sink_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    const double *part = (const double *)(const void *)(job->workspace + job->layout.sink);
    (void)worker;
    for (;;) {
        int64_t h = stw_cpu_claim(job);
        if (h >= p->heads_q) return;
        double sum = 0;
        for (int64_t b = -1; (b = stw_cpu_next_seq(p, 0, b + 1)) < p->batch;) {
            stw_cpu_seq seq = stw_cpu_seq_of(p, &job->layout, b);
            int64_t blocks = stw_ceil_div(seq.q.rows, job->layout.bm);
            for (int64_t i = 0; i < blocks; ++i) sum += part[h * job->layout.q_blocks + seq.q_block + i];
        }
        stw_dtype dtype = stw_dtype_of_rows((stw_dtype)p->dtype);
        if (p->accumulate & STW_OUT_DSINK) sum += stw_load_f64(p->dsink, h, dtype);
        stw_store_f64(p->dsink, h, dtype, sum);
    }
}

stw_status stw_cpu_attn_bwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)stream;
    stw_status status = stw_cpu_check_data("attn_bwd", params);
    if (status) return status;
    const char *reason;
    stw_cpu_job job = {.work = work,
                       .p = params,
                       .tile = stw_cpu_tile_ops(work->variant->loop, &reason),
                       .workspace = workspace,
                       .threads = stw_cpu_threads_of(device, cpu_threads)};
    job.layout = stw_cpu_layout_of(work, job.tile, ((const stw_cpu_state *)device->state)->threads);
    uint32_t direct = job.layout.bias_direct ? STW_OUT_DBIAS : 0, outputs = params->outputs;
    uint32_t queries = STW_OUT_DQ | direct, keys = STW_OUT_DK | STW_OUT_DV;
    stw_pool_fn sink = outputs & STW_OUT_DSINK ? sink_phase : NULL;
    stw_pool_fn hidden = params->features & STW_FEAT_INTERVALS ? stw_cpu_hidden_phase : NULL;
    if (params->dtype == STW_F64) {
        const stw_pool_fn phases[] = {hidden,
                                      stw_f64_rows_phase,
                                      sink,
                                      job.layout.bias_summed ? stw_f64_bias_phase : NULL,
                                      outputs & queries ? stw_f64_queries_phase : NULL,
                                      outputs & keys ? stw_f64_keys_phase : NULL};
        stw_cpu_run(device, &job, phases, 6);
    } else {
        const stw_pool_fn phases[] = {hidden, stw_cpu_rows_phase, sink,
                                      job.layout.bias_summed ? stw_cpu_bias_phase : NULL,
                                      outputs & (queries | keys) ? stw_cpu_main_phase : NULL};
        stw_cpu_run(device, &job, phases, 5);
    }
    return STW_OK;
}
