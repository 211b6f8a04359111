/* SPDX-License-Identifier: MIT
 *
 * Deterministic mode: 1000 runs of one call have the same bits in every gradient, whatever the workspace held
 * and whatever else the device does: a second stream runs other problems all the time, so CTAs
 * start in other orders. (The first run is judged by the float64 reference.) */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every gradient, every type, grouped heads, causal, and many key blocks a query block (the order of
 * additions). */
static const char *const problems[] = {
    "attn_bwd:bf16:b2h4k2s129x193d64:causal_br:det",
    "attn_bwd:bf16:b1h2s64x4100d128:det",
    "attn_bwd:f16:b1h8k1s70x2050d64:det:causal_br:dq_f32",
    "attn_bwd:f32:b1h4k2s130x200d64:det:causal_br",
    "attn_bwd:f32:b1h2s33x1030d128:det",
    "attn_bwd:f32:b1h4k2s70x300d192x128:det:wl40:wr9",
    "attn_bwd:bf16:b1h4k4s257d192:det:causal_tl",
    "attn_bwd:bf16:b1h2s129x130d256:det:wl40:wr9",
    "attn_bwd:bf16:b2h4k2s129x193d64:det:bias_1hqk:sink:dlse:dropout0.1:grads_qkvbs",
    "attn_bwd:f32:b3h2s65x97d40:det:biasf32_b11k:sink:softcap9:grads_qkvbs",
    "attn_bwd:f16:b3h2s100x131d96:det:bias_11qk:alibi:grads_qkvb",
    "attn_bwd:bf16:b4h4k2s200x300d64:det:thd:used:causal_br:dk_f32:dv_f32",
    "attn_bwd:bf16:b2h4s129d64:det:qkv:causal_br:dropout0.2:map_flash2",
    "attn_bwd:bf16:b1h4k2s70x600d64:det:softcap9",
    "attn_bwd:f16:b1h2s100x600d128:det:alibi:causal_br",
    "attn_bwd:bf16:b1h2s70x300d256:det:softcap50:dropout0.1",
    "attn_bwd:bf16:b1h2s70x600d64:det:bias_bhqk:grads_qkvb",
    /* many key blocks of many heads: minutes on an emulator */
    "attn_bwd:bf16:b3h8k4s700x900d128:det:causal_br",
    "attn_bwd:f16:b2h9s1000x1100d64:det",
    "attn_bwd:bf16:b5h4s400x500d96:det:thd:used:causal_br",
};
enum { WIDE = 3 };

/* Without the last ones where few runs are asked for, as on an emulator. */
static size_t problem_count(void) {
    size_t count = sizeof problems / sizeof *problems;
    return gpu_runs < 100 ? count - WIDE : count;
}

static void run_again(gpu_case *g, gpu_case *noise, unsigned char *again, size_t from, size_t bytes) {
    stw_stream stream = g->device.stream;
    for (int n = 2; n <= gpu_runs; ++n) {
        GPU_TRY(cuMemsetD8Async, (uintptr_t)g->device.workspace, (unsigned char)(n * 37), g->device.workspace_bytes,
                stream);
        GPU_OK(gpu_case_run(noise, noise->device.stream));
        if (n % 3 == 0) GPU_OK(gpu_case_run(noise, noise->device.stream));
        GPU_OK(gpu_case_run(g, stream));
        GPU_TRY(cuStreamSynchronize, stream);
        GPU_TRY(cuMemcpyDtoH_v2, again, (uintptr_t)g->device.arena + from, bytes);
        if (memcmp(again, g->after + from, bytes)) {
            size_t at = 0;
            while (again[at] == g->after[from + at]) ++at;
            int which = STW_VERIFY_DQ;
            for (int t = STW_VERIFY_DQ; t < STW_VERIFY_TENSOR_COUNT; ++t)
                if (g->c.present[t] && from + at - g->c.offset[t] < g->c.size[t]) which = t;
            fail_msg("%s: run %d has other bits than the first in %s", g->line, n, stw_verify_tensor_names[which]);
        }
        gpu_case_write(g, from, g->c.host + from, bytes); /* poison: the next run writes all of it again */
    }
}

static void thousand_runs(void **state) {
    (void)state;
    gpu_case noise;
    gpu_case_open(&noise, gpu_context, "attn_bwd:bf16:b3h5s257x300d64:dropout0.3:seed9");
    gpu_case_load(&noise, &noise.c, 0xFF);
    for (size_t i = 0; i < problem_count(); ++i) {
        gpu_case g;
        gpu_case_open(&g, gpu_context, problems[i]);
        gpu_case_round(&g, "first run");
        size_t from = gpu_outputs_at(&g.c), bytes = g.c.bytes - from;
        unsigned char *again = malloc(bytes);
        assert_non_null(again);
        gpu_case_write(&g, from, g.c.host + from, bytes);
        run_again(&g, &noise, again, from, bytes);
        printf("%d runs: the same bits: %s\n", gpu_runs, problems[i]);
        free(again);
        gpu_case_close(&g);
    }
    gpu_case_store(&noise, noise.device.stream);
    gpu_case_judge(&noise, &noise.c, "the other stream");
    gpu_case_close(&noise);
}

/* Two contexts, two plans: nothing of the context enters the result. */
static void other_context(void **state) {
    (void)state;
    stw_context *context = gpu_context_on(0);
    for (size_t i = 0; i < problem_count(); ++i) {
        gpu_case a, b;
        gpu_case_open(&a, gpu_context, problems[i]);
        gpu_case_open(&b, context, problems[i]);
        gpu_case_round(&a, "one context");
        gpu_case_round(&b, "another context");
        assert_memory_equal(a.after, b.after, a.c.bytes);
        gpu_case_close(&a);
        gpu_case_close(&b);
    }
    stw_context_destroy(context);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_context), cmocka_unit_test(thousand_runs)};
    return gpu_main(argc, argv, "gpu_repeat", tests, sizeof tests / sizeof *tests, 120);
}
