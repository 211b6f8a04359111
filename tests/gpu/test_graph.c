/* SPDX-License-Identifier: MIT
 *
 * CUDA graphs: a call captured once serves other data, other dropout seeds, offsets, positions and lengths,
 * which its kernels read from memory. Each replay is judged by the float64 reference of what lay in memory
 * when it ran. */
#include "graph.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The call of `first` is captured (nothing may run then) and replayed over both data sets, twice the first.
 */
static void capture_two(const char *first, const char *second, int mode) {
    gpu_case g;
    stw_verify_case other;
    stw_status status;
    gpu_case_open(&g, gpu_context, first);
    gpu_data_open(&other, &g.c, second);
    gpu_case_load(&g, &g.c, 0xFF);
    gpu_graph graph = gpu_capture(&g, mode, &status);
    if (status) fail_msg("%s: captured call: %s: %s", first, stw_status_name(status), stw_last_error());
    assert_true(graph.nodes >= 1); /* one kernel does all of a short sequence */
    gpu_case_untouched(&g, "capture alone");
    gpu_replay(&g, &graph, &g.c, 0xFF, "first replay");
    gpu_replay(&g, &graph, &other, 0x7F, "replay with other data");
    gpu_replay(&g, &graph, &g.c, 0x00, "replay with the first data again");
    gpu_graph_close(&graph);
    stw_verify_free(&other);
    gpu_case_close(&g);
}

#define SEEDS_1 ":pointer:dseed7:doff3:seed5"
#define SEEDS_2 ":pointer:dseed8589934599:doff4611686018427387001:seed7"

static void dropout_by_pointer(void **state) {
    (void)state;
    static const char *const problems[] = {
        "attn_bwd:bf16:b2h4k2s129x257d64:causal_br:dropout0.2",
        "attn_bwd:f16:b1h3s200x131d128:dropout0.5:det",
        "attn_bwd:f32:b2h2s65x129d40:dropout0.1:sink:dlse:grads_qkvs",
        "attn_bwd:bf16:b2h2s129x193d96:dropout0.3:map_mem_eff",
        "attn_bwd:bf16:b2h2s129x193d96:dropout0.3:map_flash2",
        "attn_bwd:bf16:b2h3s65x97d32:dropout0.4:bias_bhqk:grads_qkvb",
        "attn_bwd:bf16:b2h3s65x97d32:dropout0.4:biasf32_1hqk:det:grads_qkvb",
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) {
        char first[256], second[256];
        snprintf(first, sizeof first, "%s" SEEDS_1, problems[i]);
        snprintf(second, sizeof second, "%s" SEEDS_2, problems[i]);
        capture_two(first, second, GPU_CAPTURE_GLOBAL);
    }
}

/* Nothing but the eight bytes of the seed (then of the offset) changes: so do the gradients, and back again.
 */
static void seed_alone(void **state) {
    (void)state;
    gpu_case g;
    stw_status status;
    gpu_case_open(&g, gpu_context, "attn_bwd:bf16:b2h4k2s129x257d64:dropout0.2:det" SEEDS_1);
    gpu_case_load(&g, &g.c, 0xFF);
    gpu_graph graph = gpu_capture(&g, GPU_CAPTURE_THREAD, &status);
    assert_int_equal(status, STW_OK);
    gpu_replay(&g, &graph, &g.c, 0xFF, "first replay");
    size_t from = g.c.offset[STW_VERIFY_DQ], bytes = g.c.size[STW_VERIFY_DQ];
    unsigned char *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, g.after + from, bytes);
    static const stw_verify_tensor words[] = {STW_VERIFY_SEED, STW_VERIFY_OFFSET};
    for (int n = 0; n < 2; ++n) {
        uint64_t old, changed;
        memcpy(&old, g.c.host + g.c.offset[words[n]], 8);
        for (int back = 0; back < 2; ++back) {
            changed = back ? old : old ^ 1;
            gpu_case_write(&g, g.c.offset[words[n]], &changed, 8);
            GPU_TRY(cuGraphLaunch, graph.exec, graph.stream);
            gpu_case_store(&g, graph.stream);
            assert_true((memcmp(before, g.after + from, bytes) == 0) == back);
        }
    }
    free(before);
    gpu_graph_close(&graph);
    gpu_case_close(&g);
}

static void positions_by_pointer(void **state) {
    (void)state;
    capture_two("attn_bwd:bf16:b3h2s129x257d64:causal_tl:qoff40:koff3:pointer:seed5",
                "attn_bwd:bf16:b3h2s129x257d64:causal_tl:qoff9:koff33:pointer:seed7", GPU_CAPTURE_GLOBAL);
    capture_two("attn_bwd:f16:b2h2s129d64:wl20:wr9:alibi:qoffs5,-9:koffs1,0:seed5",
                "attn_bwd:f16:b2h2s129d64:wl20:wr9:alibi:qoffs1000000007,0:koffs1000000000,40:seed7",
                GPU_CAPTURE_THREAD);
    capture_two("attn_bwd:f32:b2h2s65d64:causal_br:dropout0.2:qoffs5,9:koffs1,0:pointer:seed5",
                "attn_bwd:f32:b2h2s65d64:causal_br:dropout0.2:qoffs50,0:koffs3,40:pointer:seed7", GPU_CAPTURE_RELAXED);
}

static void delta_given_and_written(void **state) {
    (void)state;
    static const char *const problems[] = {
        "attn_bwd:bf16:b2h4k2s129x193d64:causal_br:delta_in", "attn_bwd:f32:b2h2s65x97d40:delta_in:sink:grads_qkvs",
        "attn_bwd:bf16:b2h4k2s129x193d64:dlse:delta_out", "attn_bwd:f16:b3h2s90x70d64:thd:used:lse_heads:delta_out"};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) {
        char first[256], second[256];
        snprintf(first, sizeof first, "%s:seed5", problems[i]);
        snprintf(second, sizeof second, "%s:seed7", problems[i]);
        capture_two(first, second, GPU_CAPTURE_GLOBAL);
    }
}

/* One plan and one graph for any batch within the maxima: lengths, used lengths, interleaved buffers. */
static void packed_lengths(void **state) {
    (void)state;
#define TOTALS "attn_bwd:bf16:b4h4k2s130x140d64:thd:tq400:tk420"
    capture_two(TOTALS ":causal_br:cuq0,65,195,195,320:cuk3,70,210,350,420:seed5",
                TOTALS ":causal_br:cuq10,10,140,270,400:cuk0,140,140,279,300:seed7", GPU_CAPTURE_GLOBAL);
    capture_two(TOTALS
                ":wl30:wr3:det:used:cuq0,65,195,195,320:cuk3,70,210,350,420:usedq65,1,0,120:usedk0,140,9,70:seed5",
                TOTALS ":wl30:wr3:det:used:cuq1,2,3,4,5:cuk3,70,210,350,420:usedq1,0,1,1:usedk60,140,139,70:seed7",
                GPU_CAPTURE_GLOBAL);
    capture_two("attn_bwd:bf16:b2h4k2s129d64:qkv:causal_br:seed5", "attn_bwd:bf16:b2h4k2s129d64:qkv:causal_br:seed7",
                GPU_CAPTURE_GLOBAL);
    capture_two("attn_bwd:f16:b3h2s97d128:thd:qkv:gap8:causal_br:seed5",
                "attn_bwd:f16:b3h2s97d128:thd:qkv:gap8:causal_br:seed7", GPU_CAPTURE_GLOBAL);
}

static void forward_and_mask(void **state) {
    (void)state;
    gpu_case g;
    stw_status status;
    gpu_case_open(&g, gpu_context, "attn_fwd:bf16:b2h4k2s129x257d64:causal_br:dropout0.2" SEEDS_1);
    gpu_case_load(&g, &g.c, 0xFF);
    gpu_graph graph = gpu_capture(&g, GPU_CAPTURE_GLOBAL, &status);
    assert_int_equal(status, STW_OK);
    gpu_case_untouched(&g, "capture alone");
    for (int n = 0; n < 2; ++n) {
        gpu_case_load(&g, &g.c, n ? 0x7F : 0xFF);
        if (n) GPU_TRY(cuGraphLaunch, graph.exec, graph.stream);
        else GPU_OK(gpu_case_run(&g, graph.stream));
        gpu_case_store(&g, graph.stream);
        if (!n) memcpy(g.c.host, g.after, g.c.bytes); /* what the plain call made is what the graph must make */
        else assert_memory_equal(g.after, g.c.host, g.c.bytes);
    }
    gpu_graph_close(&graph);
    gpu_case_close(&g);
}

/* The very first call of a plan may be a captured one: nothing is left to be loaded then. */
static void first_call_is_captured(void **state) {
    (void)state;
    static const int modes[] = {GPU_CAPTURE_GLOBAL, GPU_CAPTURE_THREAD, GPU_CAPTURE_RELAXED};
    for (int n = 0; n < 3; ++n) {
        gpu_case g;
        stw_status status;
        stw_context *context = gpu_context_on(0);
        gpu_case_open(&g, context, "attn_bwd:bf16:b1h2s130x67d192:causal_br:bias_1h1k:sink:grads_qkvbs");
        gpu_case_load(&g, &g.c, 0xFF);
        gpu_graph graph = gpu_capture(&g, modes[n], &status);
        if (status) fail_msg("mode %d: %s: %s", modes[n], stw_status_name(status), stw_last_error());
        gpu_replay(&g, &graph, &g.c, 0xFF, "first call");
        gpu_graph_close(&graph);
        gpu_case_close(&g);
        stw_context_destroy(context);
    }
}

/* ---- captured while another thread runs ------------------------------------------------------------------
 */

enum { CALLS_MAX = 300 };

typedef struct runner {
    gpu_case g;
    atomic_int stop;
    int calls;
    stw_status status;
    char text[256];
} runner;

/* Launches only: a capture in global mode forbids other threads what could disturb it, run calls must not be
 * of that kind. */
static void *run_calls(void *argument) {
    runner *r = argument;
    while (!r->status && r->calls < CALLS_MAX && (!atomic_load(&r->stop) || r->calls < 10)) {
        r->status = gpu_case_run(&r->g, r->g.device.stream);
        ++r->calls;
    }
    if (r->status) snprintf(r->text, sizeof r->text, "%s", stw_last_error());
    return NULL;
}

static void beside_another_thread(void **state) {
    (void)state;
    static const int modes[] = {GPU_CAPTURE_GLOBAL, GPU_CAPTURE_THREAD};
    runner *r = calloc(1, sizeof *r);
    gpu_case g;
    assert_non_null(r);
    gpu_case_open(&r->g, gpu_context, "attn_bwd:bf16:b2h4s257d64:causal_br");
    gpu_case_open(&g, gpu_context, "attn_bwd:f16:b2h4k2s200x131d128:det");
    gpu_case_load(&g, &g.c, 0xFF);
    for (int n = 0; n < 2; ++n) {
        pthread_t thread;
        stw_status status;
        gpu_case_load(&r->g, &r->g.c, 0xFF);
        atomic_store(&r->stop, 0);
        r->calls = 0;
        assert_int_equal(pthread_create(&thread, NULL, run_calls, r), 0);
        gpu_graph graph = gpu_capture(&g, modes[n], &status);
        atomic_store(&r->stop, 1);
        pthread_join(thread, NULL);
        if (status) fail_msg("captured call: %s: %s", stw_status_name(status), stw_last_error());
        if (r->status) fail_msg("call %d beside it: %s: %s", r->calls, stw_status_name(r->status), r->text);
        gpu_case_store(&r->g, r->g.device.stream);
        gpu_case_judge(&r->g, &r->g.c, "beside a capture");
        gpu_replay(&g, &graph, &g.c, 0xFF, "captured beside another thread");
        gpu_graph_close(&graph);
    }
    gpu_case_close(&g);
    gpu_case_close(&r->g);
    free(r);
}

static void thousand_replays(void **state) {
    (void)state;
    gpu_case g;
    stw_status status;
    gpu_case_open(&g, gpu_context, "attn_bwd:bf16:b1h4k2s129x513d64:causal_br:dropout0.1:det" SEEDS_1);
    gpu_case_load(&g, &g.c, 0xFF);
    gpu_graph graph = gpu_capture(&g, GPU_CAPTURE_GLOBAL, &status);
    assert_int_equal(status, STW_OK);
    gpu_replay(&g, &graph, &g.c, 0xFF, "first replay");
    size_t from = gpu_outputs_at(&g.c), bytes = g.c.bytes - from;
    unsigned char *again = malloc(bytes);
    assert_non_null(again);
    for (int n = 2; n <= gpu_runs; ++n) {
        GPU_TRY(cuMemsetD8Async, (uintptr_t)g.device.workspace, (unsigned char)n, g.device.workspace_bytes,
                graph.stream);
        GPU_TRY(cuGraphLaunch, graph.exec, graph.stream);
        GPU_TRY(cuStreamSynchronize, graph.stream);
        GPU_TRY(cuMemcpyDtoH_v2, again, (uintptr_t)g.device.arena + from, bytes);
        if (memcmp(again, g.after + from, bytes)) fail_msg("replay %d has other bits than the first", n);
        /* the next one must write all of it again */
        gpu_case_write(&g, from, g.c.host + from, bytes);
    }
    printf("%d replays of %s: the same bits\n", gpu_runs, g.line);
    free(again);
    gpu_graph_close(&graph);
    gpu_case_close(&g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_call_is_captured),
        cmocka_unit_test(dropout_by_pointer),
        cmocka_unit_test(seed_alone),
        cmocka_unit_test(positions_by_pointer),
        cmocka_unit_test(delta_given_and_written),
        cmocka_unit_test(packed_lengths),
        cmocka_unit_test(forward_and_mask),
        cmocka_unit_test(beside_another_thread),
        cmocka_unit_test(thousand_replays),
    };
    return gpu_main(argc, argv, "gpu_graph", tests, sizeof tests / sizeof *tests, 120);
}
