/* SPDX-License-Identifier: MIT
 *
 * The CPU backend as the dispatcher sees it: stw_cpu_backend. It opens a device (threads, name, memory), says
 * which variants this CPU can run and how large a workspace is, and makes buffers and streams. */
#include "jagged.h"

#include "common/cores.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGNMENT 256

/* As CMakeLists.txt compiles them. */
#if defined(__x86_64__)
static int has_avx512_bf16(void) { return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16"); }

static int has_avx512(void) { return __builtin_cpu_supports("x86-64-v4"); }

static int has_avx2(void) { return __builtin_cpu_supports("x86-64-v3"); }
#define X86_LOOP(word, text)                                                                                           \
    static const stw_cpu_loop word##_row = {&stw_tile_##word, has_##word, text};                                       \
    const stw_attn_loop stw_attn_loop_##word = {.name = #word, .cpu = &word##_row}
#else
#define X86_LOOP(word, text)                                                                                           \
    static const stw_cpu_loop word##_row = {NULL, NULL, "this build has no loop of that name for this CPU"};           \
    const stw_attn_loop stw_attn_loop_##word = {.name = #word, .cpu = &word##_row}
#endif
X86_LOOP(avx512_bf16, "this CPU has no AVX-512 BF16");
X86_LOOP(avx512, "this CPU has no AVX-512 (x86-64-v4: F, BW, CD, DQ, VL)");
X86_LOOP(avx2, "this CPU has no AVX2 (x86-64-v3: AVX2, BMI, F16C, FMA, LZCNT, MOVBE)");
static const stw_cpu_loop portable_row = {.tile = &stw_tile_portable};
const stw_attn_loop stw_attn_loop_portable = {.name = "portable", .cpu = &portable_row};

const stw_tile_ops *stw_cpu_tile_ops(const stw_attn_loop *loop, const char **reason_out) {
    const stw_cpu_loop *row = loop->cpu;
    int runs = row->tile && (!row->runs || row->runs());
    *reason_out = runs ? NULL : row->lacks;
    return runs ? row->tile : NULL;
}

static const char *variant_refusal(const stw_device *device, const stw_attn_work *work, const stw_variant *variant) {
    const char *reason;
    (void)device, (void)work;
    stw_cpu_tile_ops(variant->loop, &reason);
    return reason;
}

static uint32_t allowed_cores(void) {
    long cores = stw_cores_allowed();
    return cores > STW_CPU_THREADS_MAX ? STW_CPU_THREADS_MAX : (uint32_t)cores;
}

/* "model name" of the first processor, where the kernel tells it. */
static void read_name(char *name, size_t capacity) {
    snprintf(name, capacity, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value) continue;
        ++value;
        value += strspn(value, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(name, capacity, "%s", value);
        break;
    }
    fclose(file);
}

static stw_status cpu_open(const stw_open_request *request, stw_device *device_out) {
    if (request->forced_arch && strcmp(request->forced_arch, "cpu"))
        return stw_fail(STW_E_INVALID, "context_create: arch \"%s\" of the CPU backend, accepted: cpu",
                        request->forced_arch);
    if (request->cpu_threads < 0 || request->cpu_threads > STW_CPU_THREADS_MAX)
        return stw_fail(STW_E_INVALID, "context_create: cpu_threads %d, accepted: 0..%d (0 = all allowed cores)",
                        request->cpu_threads, STW_CPU_THREADS_MAX);
    stw_cpu_state *state = malloc(sizeof *state);
    if (!state) return stw_fail(STW_E_NO_MEMORY, "context_create: no memory for the CPU backend");
    state->threads = request->cpu_threads ? (uint32_t)request->cpu_threads : allowed_cores();
    stw_status status = stw_pool_create(state->threads, &state->pool);
    if (status) {
        free(state);
        return status;
    }
    memset(device_out, 0, sizeof *device_out);
    device_out->arch = stw_arch_find(STW_BACKEND_CPU, "cpu");
    read_name(device_out->name, sizeof device_out->name);
    device_out->compute_units = state->threads;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) device_out->memory_bytes = (uint64_t)pages * (uint64_t)page;
    device_out->state = state;
    return STW_OK;
}

static void cpu_close(stw_device *device) {
    stw_cpu_state *state = device->state;
    if (!state) return;
    stw_pool_destroy(state->pool);
    free(state);
    device->state = NULL;
}

static stw_status attn_prepare(const stw_device *device, stw_attn_work *work) {
    const stw_cpu_state *state = device->state;
    const char *reason;
    const stw_tile_ops *tile = stw_cpu_tile_ops(work->variant->loop, &reason);
    if (!tile) return stw_fail(STW_E_UNSUPPORTED, "attn_plan: variant %s: %s", work->variant->id, reason);
    stw_cpu_layout layout = stw_cpu_layout_of(work, tile, state->threads);
    work->workspace_size = layout.total;
    work->bm = layout.bm;
    work->bn = layout.bn;
    snprintf(work->note, sizeof work->note,
             "up to %u thread%s, %zu bytes of tiles of %ux%u each; same bits for any number", state->threads,
             state->threads == 1 ? "" : "s", layout.scratch_size, layout.bm, layout.bn);
    return STW_OK;
}

static stw_status buffer_alloc(const stw_device *device, size_t bytes, void **pointer_out) {
    (void)device;
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return stw_fail(STW_E_NO_MEMORY, "buffer_alloc: bytes %zu cannot be allocated", bytes);
    size_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    void *pointer = aligned_alloc(ALIGNMENT, rounded);
    if (!pointer) return stw_fail(STW_E_NO_MEMORY, "buffer_alloc: no memory for %zu bytes", bytes);
    *pointer_out = pointer;
    return STW_OK;
}

static stw_status buffer_free(const stw_device *device, void *pointer) {
    (void)device;
    free(pointer);
    return STW_OK;
}

static stw_status copy(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream stream) {
    (void)device;
    (void)stream;
    if (bytes) memmove(to, from, bytes);
    return STW_OK;
}

static char stream_handle; /* its address stands for every stream: calls are complete when they return */

static stw_status stream_create(const stw_device *device, stw_stream *stream_out) {
    (void)device;
    *stream_out = &stream_handle;
    return STW_OK;
}

static stw_status stream_nothing(const stw_device *device, stw_stream stream) {
    (void)device;
    (void)stream;
    return STW_OK;
}

const stw_backend_ops stw_cpu_backend = {
    .backend = STW_BACKEND_CPU,
    .attn_f64 = 1,
    .open = cpu_open,
    .close = cpu_close,
    .variant_refusal = variant_refusal,
    .attn_prepare = attn_prepare,
    .attn_bwd = stw_cpu_attn_bwd,
    .attn_fwd = stw_cpu_attn_fwd,
    .stage = stw_cpu_stage,
    .dropout_mask = stw_cpu_dropout_mask,
    .jagged_prepare = stw_cpu_jagged_prepare,
    .jagged_bwd = stw_cpu_jagged_bwd,
    .cp_open = stw_cpu_cp_open,
    .cp_close = stw_cpu_cp_close,
    .cp_check = stw_cpu_cp_check,
    .cp_intervals = stw_cpu_cp_intervals,
    .cp_cast = stw_cpu_cp_cast,
    .cp_merge = stw_cpu_cp_merge,
    .cp_order = stw_cpu_cp_order,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .copy = copy,
    .stream_create = stream_create,
    .stream_synchronize = stream_nothing,
    .stream_destroy = stream_nothing,
};
