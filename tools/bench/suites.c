/* SPDX-License-Identifier: MIT
 *
 * The problems that `sternway bench` times where the command line gives none, and what the vendors say of
 * their devices. */
#include "bench.h"

#include <string.h>

static const char *const cpu_problems[] = {
    "attn_bwd:f32:b1h8s1024d64",
    "attn_bwd:bf16:b1h8s1024d64",
    "attn_bwd:bf16:b1h8k2s1024d128:causal_br",
    "attn_bwd:f16:b1h8s512d96:dropout0.1",
    "attn_bwd:bf16:b8h8s512d64:thd:causal_br",
    "attn_bwd:bf16:b2h4s512d64:bias_1hqk:grads_qkvb",
    "attn_bwd:bf16:b1h8s2048d64:wl255:wr0",
};
static const char *const gpu_problems[] = {
    "attn_bwd:bf16:b4h32s4096d128",
    "attn_bwd:bf16:b4h32s4096d128:causal_br",
    "attn_bwd:bf16:b4h32k8s4096d128:causal_br",
    "attn_bwd:f16:b4h32s4096d64",
    "attn_bwd:bf16:b2h16s8192d256:causal_br",
    "attn_bwd:bf16:b4h32s4096d192x128:causal_br",
    "attn_bwd:bf16:b4h32s4096d128:causal_br:det",
    "attn_bwd:bf16:b4h32s4096d128:dropout0.1",
    "attn_bwd:bf16:b16h32s2048d128:thd:causal_br",
    "attn_bwd:bf16:b2h16s2048d128:bias_1hqk:grads_qkvb",
    "attn_bwd:f32:b2h16s2048d128:causal_br",
};

static const char *const fa_problems[] = {
    "attn_bwd:bf16:b32h32s512d64",
    "attn_bwd:bf16:b16h32s1024d64",
    "attn_bwd:bf16:b8h32s2048d64",
    "attn_bwd:bf16:b4h32s4096d64",
    "attn_bwd:bf16:b2h32s8192d64",
    "attn_bwd:bf16:b1h32s16384d64",
    "attn_bwd:bf16:b32h32s512d64:causal_br",
    "attn_bwd:bf16:b16h32s1024d64:causal_br",
    "attn_bwd:bf16:b8h32s2048d64:causal_br",
    "attn_bwd:bf16:b4h32s4096d64:causal_br",
    "attn_bwd:bf16:b2h32s8192d64:causal_br",
    "attn_bwd:bf16:b1h32s16384d64:causal_br",
    "attn_bwd:bf16:b32h16s512d128",
    "attn_bwd:bf16:b16h16s1024d128",
    "attn_bwd:bf16:b8h16s2048d128",
    "attn_bwd:bf16:b4h16s4096d128",
    "attn_bwd:bf16:b2h16s8192d128",
    "attn_bwd:bf16:b1h16s16384d128",
    "attn_bwd:bf16:b32h16s512d128:causal_br",
    "attn_bwd:bf16:b16h16s1024d128:causal_br",
    "attn_bwd:bf16:b8h16s2048d128:causal_br",
    "attn_bwd:bf16:b4h16s4096d128:causal_br",
    "attn_bwd:bf16:b2h16s8192d128:causal_br",
    "attn_bwd:bf16:b1h16s16384d128:causal_br",
};

/* One or two of every class of bench/gpu_cases.py; its packed ones have lengths that no line holds. */
static const char *const classes_problems[] = {
    "attn_bwd:bf16:b16h32s1024d64:causal_br",
    "attn_bwd:bf16:b4h16s4096d128",
    "attn_bwd:bf16:b1h8k1s8192d128:causal_br",
    "attn_bwd:bf16:b1h32k8s2048d128:causal_br",
    "attn_bwd:bf16:b2h32k1s8192d128:causal_br",
    "attn_bwd:bf16:b1h64k8s4096d128:causal_br",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:softcap30",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:alibi",
    "attn_bwd:bf16:b4h10s4096d192",
    "attn_bwd:bf16:b4h8s4096d256",
    "attn_bwd:bf16:b4h16s4096d192x128:causal_br",
    "attn_bwd:bf16:b4h32s4096d64:causal_br:dropout0.1",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:dropout0.1:map_flash2",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:dk_f32:dv_f32",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:dk_f32:dv_f32:acc_kv",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:gap1",
    "attn_bwd:bf16:b4h16s4096d100:causal_br",
    "attn_bwd:bf16:b256h12s128d64",
    "attn_bwd:bf16:b2048h6s49d32",
    "attn_bwd:bf16:b128h12s197d64",
    "attn_bwd:bf16:b1h8s1024d64:causal_br",
    "attn_bwd:bf16:b1h1s128d64",
    "attn_bwd:bf16:b8h16s1x16384d128",
    "attn_bwd:bf16:b8h16s4096x77d64",
    "attn_bwd:bf16:b5h12s3000d64:causal_br",
    "attn_bwd:bf16:b2h16s8192d128:wl1023:wr0",
    "attn_bwd:bf16:b4h32s2048d64:bias_b1qk",
    "attn_bwd:bf16:b4h32s2048d64:bias_1hqk:grads_qkvb",
    "attn_bwd:bf16:b4h16s4096d128:causal_br:det",
    "attn_bwd:bf16:b16h8k1s2048d128:thd:causal_br",
    "attn_bwd:bf16:b38h16s8192d128:thd:causal_br",
    "attn_bwd:bf16:b304h16s1024d128:thd:causal_br",
};

/* Masks in memory beside the problem without one, at lengths where what is hidden pays. */
static const char *const masks_gpu_problems[] = {
    "attn_bwd:bf16:b1h16s8192d128:causal_br",
    "attn_bwd:bf16:b1h16s8192d128",
    "attn_bwd:bf16:b1h16s8192d128:intervals_from_below:draw_causal",
    "attn_bwd:bf16:b1h16s8192d128:intervals_from:causal_br:draw_documents:draw1024",
    "attn_bwd:bf16:b1h16s8192d128:intervals_from_below:draw_prefix:draw2048",
    "attn_bwd:bf16:b1h16s8192d128:intervals_from:causal_br:draw_sliding:draw1024",
    "attn_bwd:bf16:b1h16s8192d128:intervals_from:causal_br:draw_tree:draw512",
    "attn_bwd:bf16:b1h16s8192d128:blockmask",
    "attn_bwd:bf16:b1h16s32768d64:causal_br",
    "attn_bwd:bf16:b1h16s32768d64:intervals_from:causal_br:draw_documents:draw2048",
    "attn_bwd:bf16:b1h16s32768d128:intervals_from:causal_br:draw_documents:draw2048",
    "attn_bwd:bf16:b1h16s32768d128:intervals_from:causal_br:draw_tree:draw512",
    "attn_bwd:bf16:b1h16s8192d128:intervals_from:causal_br:draw_documents:draw1024:det",
};
static const char *const masks_cpu_problems[] = {
    "attn_bwd:f32:b1h2s4096d64",
    "attn_bwd:f32:b1h2s4096d64:causal_br",
    "attn_bwd:f32:b1h2s4096d64:intervals_from_below:draw_causal",
    "attn_bwd:f32:b1h2s4096d64:intervals_from_below:draw_chunk:draw512",
    "attn_bwd:f32:b1h2s4096d64:intervals_from_below:draw_chunk:draw128",
    "attn_bwd:f32:b1h2s4096d64:intervals_from:causal_br:draw_documents:draw512",
    "attn_bwd:f32:b1h2s4096d64:intervals_from:causal_br:draw_tree:draw128",
    "attn_bwd:f32:b1h2s4096d64:blockmask",
};

/* 512 components of mixed size in a buffer of 65536 x 4096; a fifth of them as long as any. */
static const char *const jagged_gpu_problems[] = {
    "jagged_gelu:bf16:c512l256t65536i4096",
    "jagged_gelu_tanh:bf16:c512l256t65536i4096",
    "jagged_silu:bf16:c512l256t65536i4096",
    "jagged_threshold:bf16:c512l256t65536i4096",
    "jagged_softmax:bf16:c512l256t65536i4096:inner",
    "jagged_softmax:bf16:c512l256t65536i4096:ragged",
    "jagged_log_softmax:bf16:c512l256t65536i4096:inner",
    "jagged_log_softmax:bf16:c512l256t65536i4096:ragged",
    "jagged_layer_norm:bf16:c512l256t65536i4096:gamma",
    "jagged_rms_norm:bf16:c512l256t65536i4096:gamma",
    "jagged_layer_norm:bf16:c512l256t65536i4096:ragged",
    "jagged_rms_norm:bf16:c512l256t65536i4096:ragged",
    "jagged_sum:bf16:c512l256t65536i4096:inner",
    "jagged_sum:bf16:c512l256t65536i4096:ragged",
    "jagged_select:bf16:c512l256t65536i4096:inner:index7",
    "jagged_to_padded:bf16:c512l256t65536i4096p256",
    "jagged_from_padded:bf16:c512l256t65536i4096p256",
    "jagged_linear:bf16:c512l256t65536i4096f4096",
    "jagged_linear:bf16:c512l128t65536i4096f4096:lens_full:full",
    "jagged_matmul:bf16:c512m256k128n128:tm65536",
    "jagged_attention:i64:attn_bwd:bf16:b32h16s512d128:thd:causal_br",
};
static const char *const jagged_cpu_problems[] = {
    "jagged_gelu:f32:c64l128t4096i512",
    "jagged_silu:bf16:c64l128t4096i512",
    "jagged_softmax:f32:c64l128t4096i512:inner",
    "jagged_softmax:f32:c64l128t4096i512:ragged",
    "jagged_log_softmax:f32:c64l128t4096i512:inner",
    "jagged_log_softmax:f32:c64l128t4096i512:ragged",
    "jagged_layer_norm:f32:c64l128t4096i512:gamma",
    "jagged_rms_norm:f32:c64l128t4096i512:gamma",
    "jagged_layer_norm:f32:c64l128t4096i512:ragged",
    "jagged_rms_norm:f32:c64l128t4096i512:ragged",
    "jagged_sum:f32:c64l128t4096i512:ragged",
    "jagged_to_padded:f32:c64l128t4096i512p128",
    "jagged_linear:f32:c64l128t4096i256f256",
    "jagged_matmul:f32:c64m128k64n64:tm4096",
    "jagged_attention:i64:attn_bwd:bf16:b8h4s256d64:thd:causal_br",
};

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

const char *const *bench_suite(const char *name, const char *arch, int *count_out) {
    if (!strcmp(name, "fa")) return *count_out = COUNT(fa_problems), fa_problems;
    if (!strcmp(name, "classes")) return *count_out = COUNT(classes_problems), classes_problems;
    int cpu = !strcmp(arch, "cpu");
    if (!strcmp(name, "jagged") && cpu) return *count_out = COUNT(jagged_cpu_problems), jagged_cpu_problems;
    if (!strcmp(name, "masks") && cpu) return *count_out = COUNT(masks_cpu_problems), masks_cpu_problems;
    if (!strcmp(name, "masks")) return *count_out = COUNT(masks_gpu_problems), masks_gpu_problems;
    if (!strcmp(name, "jagged")) return *count_out = COUNT(jagged_gpu_problems), jagged_gpu_problems;
    if (strcmp(name, "usual")) return NULL;
    if (cpu) return *count_out = COUNT(cpu_problems), cpu_problems;
    return *count_out = COUNT(gpu_problems), gpu_problems;
}

/* From the vendors' data sheets: dense bf16 products, memory. The first name that the device's holds. */
static const struct {
    const char *name;
    double tflops, gbs;
} vendors[] = {
    {"H200", 989, 4800},           {"H100 NVL", 835, 3900},       {"H100 PCIe", 756, 2000},
    {"H100 80GB HBM3", 989, 3350}, {"A100-SXM4-80GB", 312, 2039}, {"A100-SXM4-40GB", 312, 1555},
    {"A100 80GB PCIe", 312, 1935}, {"A100-PCIE-40GB", 312, 1555}, {"L40S", 362, 864},
    {"MI355X", 2516.6, 8000},      {"MI350X", 2306.9, 8000},      {"MI325X", 1307, 6000},
    {"MI300X", 1307, 5300},        {"MI300A", 980, 5300},         {"MI250X", 191.5, 1638},
    {"MI210", 181, 1638},
};

void bench_peak_by_name(const char *device, bench_peak *peak) {
    for (int i = 0; i < COUNT(vendors); ++i) {
        if (!strstr(device, vendors[i].name)) continue;
        if (peak->tflops > 0 && peak->gbs > 0) return;
        if (!(peak->tflops > 0)) peak->tflops = vendors[i].tflops;
        if (!(peak->gbs > 0)) peak->gbs = vendors[i].gbs;
        peak->title = vendors[i].name;
        return;
    }
}
