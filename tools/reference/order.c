/* SPDX-License-Identifier: MIT
 *
 * Orders of summation: the natural one for the reference, permutations from a fixed generator for the
 * baselines. See order.h. */
#include "order.h"

#include <stdlib.h>
#include <string.h>

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014): fixed for ever, so that a verdict can be repeated. */
static uint64_t ref_next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void ref_permute(int32_t *order, int64_t count, int natural, uint64_t seed) {
    for (int64_t n = 0; n < count; ++n) order[n] = (int32_t)n;
    for (int64_t n = count - 1; !natural && n > 0; --n) {
        int64_t other = (int64_t)(ref_next(&seed) % (uint64_t)(n + 1));
        int32_t kept = order[n];
        order[n] = order[other];
        order[other] = kept;
    }
}

void stw_ref_order_set(stw_ref_order *order, const stw_ref_head *head, const stw_ref_mode *mode) {
    uint64_t seed = (uint64_t)mode->seed * 8;
    ref_permute(order->query, head->queries, !mode->f32, seed + 1);
    ref_permute(order->key, head->keys, !mode->f32, seed + 2);
    ref_permute(order->dim, head->dim, !mode->f32, seed + 3);
    ref_permute(order->dim_v, head->dim_v, !mode->f32, seed + 4);
    ref_permute(order->delta, head->dim_v, !mode->f32, seed + 5);
}

stw_status stw_ref_order_open(stw_ref_order *order, int64_t queries, int64_t keys, int64_t dim, int64_t dim_v) {
    order->query = malloc((size_t)(queries + 1) * sizeof(int32_t));
    order->key = malloc((size_t)(keys + 1) * sizeof(int32_t));
    order->dim = malloc((size_t)dim * sizeof(int32_t));
    order->dim_v = malloc((size_t)dim_v * sizeof(int32_t));
    order->delta = malloc((size_t)dim_v * sizeof(int32_t));
    int complete = order->query && order->key && order->dim && order->dim_v && order->delta;
    return complete ? STW_OK : STW_E_NO_MEMORY;
}

void stw_ref_order_close(stw_ref_order *order) {
    free(order->query);
    free(order->key);
    free(order->dim);
    free(order->dim_v);
    free(order->delta);
    memset(order, 0, sizeof *order);
}

/* One allocation of 64-byte aligned rows; NULL when there is no memory. */
static void *ref_buffer(int64_t rows, int64_t row, size_t size) {
    size_t bytes = (size_t)(rows * row) * size;
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

stw_status stw_ref_work_open(stw_ref_work *work, int64_t keys, int64_t dim, int64_t dim_v) {
    const size_t size = STW_REF_WIDEST;
    const int64_t rows = STW_REF_ROWS, width = stw_ref_padded(keys);
    const int64_t row = stw_ref_padded(dim), row_v = stw_ref_padded(dim_v);
    work->k_turned = ref_buffer(dim, width, size);
    work->v_turned = ref_buffer(dim_v, width, size);
    work->k_rows = ref_buffer(keys, row, size);
    work->q_mixed = ref_buffer(rows, row, size);
    work->do_mixed = ref_buffer(rows, row_v, size);
    work->q_rows = ref_buffer(rows, row, size);
    work->do_rows = ref_buffer(rows, row_v, size);
    work->p = ref_buffer(rows, width, size);
    work->ds = ref_buffer(rows, width, size);
    work->dq = ref_buffer(rows, row, size);
    work->live = ref_buffer(rows, width, 1);
    int complete = work->k_turned && work->v_turned && work->k_rows && work->q_mixed && work->do_mixed &&
                   work->q_rows && work->do_rows && work->p && work->ds && work->dq && work->live;
    return complete ? STW_OK : STW_E_NO_MEMORY;
}

void stw_ref_work_close(stw_ref_work *work) {
    void *buffers[] = {work->k_turned, work->v_turned, work->k_rows, work->q_mixed, work->do_mixed, work->q_rows,
                       work->do_rows,  work->p,        work->ds,     work->dq,      work->live};
    for (size_t n = 0; n < sizeof buffers / sizeof *buffers; ++n) free(buffers[n]);
    memset(work, 0, sizeof *work);
}
