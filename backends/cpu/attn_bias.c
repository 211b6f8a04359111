/* SPDX-License-Identifier: MIT
 *
 * dBias of a bias that is broadcast over batch, heads, queries or keys: the sum of dS over all pairs that share
 * an element. One task owns a tile of dBias, goes over all that adds to it in a fixed order, and recomputes S
 * and dP. So there is no temporary of the attention matrix's size, no atomic addition, and the same bits for
 * any number of threads. Called by attn_bwd.c after the first phase. */
#include "cpu.h"

#include <string.h>

/* Which K and V lie packed in the thread's tiles: heads of a group and query blocks share them. */
typedef struct loaded_keys {
    int64_t b, kv_head, block;
} loaded_keys;

static stw_range pick(int64_t *rest, int64_t stride, int64_t extent, int64_t tasks) {
    stw_range all = {0, extent}, one = {*rest % tasks, *rest % tasks + 1};
    *rest /= tasks;
    return stride ? one : all;
}

static void add_tile(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_seq *seq, int64_t h,
                     int64_t q_block, int64_t k_block, loaded_keys *loaded) {
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_tile at = {.seq = seq, .h = h, .i0 = q_block * l->bm, .j0 = k_block * l->bn};
    int64_t kv_head = h / job->p->group;
    at.rows = (uint32_t)stw_min_i64(l->bm, seq->q.used - at.i0);
    at.cols = (uint32_t)stw_min_i64(l->bn, seq->kv.used - at.j0);
    if (loaded->b != seq->b || loaded->kv_head != kv_head || loaded->block != k_block) {
        stw_cpu_load_keys(job, t, &at, kv_head);
        *loaded = (loaded_keys){seq->b, kv_head, k_block};
    }
    stw_cpu_tile_cut(&at);
    stw_cpu_load_hidden(job, t->hidden, &at);
    stw_cpu_load_queries(job, t, &at);
    stw_cpu_grad_tile(job, t, &at, t->raw);
    job->tile->add_rows(t->sum, l->bn, 1, t->raw, l->bn, at.rows, at.cols);
}

static void sum_head(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_bias_task *k,
                     const stw_cpu_seq *seq, int64_t h, loaded_keys *loaded) {
    int64_t last = stw_min_i64(k->key_block.end, stw_ceil_div(seq->kv.used, job->layout.bn));
    for (int64_t kb = k->key_block.first; kb < last; ++kb) {
        stw_range meets = stw_cpu_query_blocks(seq, &job->layout, kb);
        int64_t first = stw_max_i64(meets.first, k->query_block.first);
        int64_t end = stw_min_i64(meets.end, k->query_block.end);
        for (int64_t qb = first; (qb = stw_cpu_next_query_block(job, seq, h, kb, qb, end)) < end; ++qb)
            add_tile(job, t, seq, h, qb, kb, loaded);
    }
}

/* Sums the tile over its rows, its columns or both, where the bias has only one. */
static void fold(float *sum, const stw_cpu_layout *l, int rows, int cols) {
    if (rows)
        for (uint32_t c = 0; c < l->bn; ++c) {
            double total = 0;
            for (uint32_t r = 0; r < l->bm; ++r) total += (double)sum[(size_t)r * l->bn + c];
            sum[c] = (float)total;
        }
    if (cols)
        for (uint32_t r = 0; r < (rows ? 1 : l->bm); ++r) {
            double total = 0;
            for (uint32_t c = 0; c < l->bn; ++c) total += (double)sum[(size_t)r * l->bn + c];
            sum[(size_t)r * l->bn] = (float)total;
        }
}

static void run_task(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_bias_task *k) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    loaded_keys loaded = {-1, -1, -1};
    memset(t->sum, 0, (size_t)l->bm * l->bn * sizeof(float));
    stw_cpu_seq seq;
    for (int64_t b = k->batch.first; (b = stw_cpu_next_bias_seq(job, k, b, &seq)) < k->batch.end; ++b)
        for (int64_t h = k->head.first; h < k->head.end; ++h) sum_head(job, t, k, &seq, h, &loaded);
    fold(t->sum, l, !p->dbias.query, !p->dbias.key);
    int64_t i0 = p->dbias.query ? k->query_block.first * l->bm : 0, j0 = p->dbias.key ? k->key_block.first * l->bn : 0;
    int64_t rows = p->dbias.query ? stw_min_i64(l->bm, p->max_seq_q - i0) : 1;
    int64_t cols = p->dbias.key ? stw_min_i64(l->bn, p->max_seq_kv - j0) : 1;
    int64_t b = p->dbias.batch ? k->batch.first : 0, h = p->dbias.head ? k->head.first : 0;
    int64_t size = p->dbias_dtype == STW_F32 ? 4 : 2;
    char *to = (char *)p->dbias.data +
               (b * p->dbias.batch + h * p->dbias.head + i0 * p->dbias.query + j0 * p->dbias.key) * size;
    job->tile->store_rows(to, p->dbias.query, p->dbias_dtype, (p->accumulate & STW_OUT_DBIAS) != 0, t->sum, l->bn,
                          (uint32_t)rows, (uint32_t)cols, 1.0f);
}

int64_t stw_cpu_next_bias_seq(const stw_cpu_job *job, const stw_cpu_bias_task *task, int64_t b, stw_cpu_seq *seq_out) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    if (!stw_cpu_longest(p, 0) || !stw_cpu_longest(p, 1)) return task->batch.end;
    for (; b < task->batch.end; ++b)
        if (stw_seq_q(p, b).used > task->query_block.first * l->bm &&
            stw_seq_kv(p, b).used > task->key_block.first * l->bn) {
            *seq_out = stw_cpu_seq_of(p, l, b);
            return b;
        }
    return b;
}

int stw_cpu_claim_bias(stw_cpu_job *job, stw_cpu_bias_task *task_out) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    int64_t q_blocks = stw_ceil_div(p->max_seq_q, l->bm), k_blocks = stw_ceil_div(p->max_seq_kv, l->bn);
    int64_t nb = p->dbias.batch ? p->batch : 1, nh = p->dbias.head ? p->heads_q : 1;
    int64_t nq = p->dbias.query ? q_blocks : 1, nk = p->dbias.key ? k_blocks : 1;
    int64_t rest = stw_cpu_claim(job);
    if (rest >= nb * nh * nq * nk) return 0;
    task_out->key_block = pick(&rest, p->dbias.key, k_blocks, nk);
    task_out->query_block = pick(&rest, p->dbias.query, q_blocks, nq);
    task_out->head = pick(&rest, p->dbias.head, p->heads_q, nh);
    task_out->batch = pick(&rest, p->dbias.batch, p->batch, nb);
    return 1;
}

void stw_cpu_bias_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_scratch t;
    stw_cpu_bias_task k;
    stw_cpu_scratch_of(job->p, l, job->workspace + l->scratch + worker * l->scratch_size, &t);
    while (stw_cpu_claim_bias(job, &k)) run_task(job, &t, &k);
}
