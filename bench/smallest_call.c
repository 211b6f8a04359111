/* SPDX-License-Identifier: MIT
 *
 * The library's own time of the call that python_overhead.py makes from Python: stw_attn_bwd_once() of the smallest
 * problem with a gradient that is not 0 (one head, one query, two keys, head_dim 1, f32), whose plan the context keeps.
 * Prints nanoseconds a call, the shortest of the rounds, and dq[0], dk[0], dk[1].
 *     smallest_call BACKEND ROUNDS CALLS        BACKEND: cpu or cuda */
#include <sternway/sternway.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TENSORS = 9, KEYS = 2, THREADS = 1 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* q, k, v, out, dout, lse, dq, dk, dv with the values of python_overhead.py. */
static void fill(float values[TENSORS][KEYS]) {
    const float q = 0.5f, k[KEYS] = {1.f, -0.25f}, v[KEYS] = {2.f, 0.75f};
    const float a = expf(q * k[0]), b = expf(q * k[1]);
    memset(values, 0, sizeof(float) * TENSORS * KEYS);
    values[0][0] = q, values[3][0] = (a * v[0] + b * v[1]) / (a + b), values[4][0] = 1.5f, values[5][0] = logf(a + b);
    memcpy(values[1], k, sizeof k);
    memcpy(values[2], v, sizeof v);
}

int main(int argc, char **argv) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    stw_attn_args args = STW_INIT(stw_attn_args);
    stw_context *context = NULL;
    float values[TENSORS][KEYS];
    void *at[TENSORS + 1];
    size_t bytes = 0;
    if (argc != 4) return fprintf(stderr, "usage: smallest_call cpu|cuda ROUNDS CALLS\n"), 2;
    const int cpu = !strcmp(argv[1], "cpu"), rounds = atoi(argv[2]), count = atoi(argv[3]);
    opts.backend = cpu ? STW_BACKEND_CPU : STW_BACKEND_CUDA, opts.memory = cpu ? STW_MEMORY_HOST : STW_MEMORY_DEVICE;
    desc.dtype = STW_F32, desc.batch = desc.heads_q = desc.heads_kv = desc.head_dim_qk = desc.head_dim_v = 1;
    desc.max_seq_q = 1, desc.max_seq_kv = KEYS;
    fill(values);
    stw_status status = stw_layout_bhsd(&desc);
    if (!status) status = stw_context_create(&opts, &context);
    if (!status) status = stw_attn_bwd_once_workspace(context, &desc, &bytes);
    for (int i = 0; i < TENSORS && !status; ++i) {
        status = stw_buffer_alloc(context, sizeof values[i], &at[i]);
        if (!status) status = stw_copy(context, at[i], values[i], sizeof values[i], NULL);
    }
    if (!status) status = stw_buffer_alloc(context, bytes + 1, &at[TENSORS]);
    if (status) return fprintf(stderr, "%s: %s\n", stw_status_name(status), stw_last_error()), 1;
    args.q = at[0], args.k = at[1], args.v = at[2], args.out = at[3], args.dout = at[4], args.lse = at[5];
    args.dq = at[6], args.dk = at[7], args.dv = at[8], args.cpu_threads = THREADS;
    double shortest = INFINITY;
    for (int round = 0; round < rounds && !status; ++round) {
        const double start = now();
        for (int i = 0; i < count && !status; ++i)
            status = stw_attn_bwd_once(context, &desc, &args, at[TENSORS], bytes, NULL);
        shortest = fmin(shortest, (now() - start) / count);
    }
    for (int i = 6; i < 8 && !status; ++i) status = stw_copy(context, values[i], at[i], sizeof values[i], NULL);
    if (!status) status = stw_stream_synchronize(context, NULL);
    if (status) return fprintf(stderr, "%s: %s\n", stw_status_name(status), stw_last_error()), 1;
    printf("%.1f %.9g %.9g %.9g\n", shortest, values[6][0], values[7][0], values[7][1]);
    for (int i = 0; i <= TENSORS; ++i) stw_buffer_free(context, at[i]);
    stw_context_destroy(context);
    return 0;
}
