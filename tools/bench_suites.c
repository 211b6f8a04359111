/* SPDX-License-Identifier: MIT
 *
 * The problems that `sternway bench` times where the command line gives none. */
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

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

const char *const *bench_suite(const char *name, const char *arch, int *count_out) {
    if (!strcmp(name, "fa")) return *count_out = COUNT(fa_problems), fa_problems;
    if (strcmp(name, "usual")) return NULL;
    if (!strcmp(arch, "cpu")) return *count_out = COUNT(cpu_problems), cpu_problems;
    return *count_out = COUNT(gpu_problems), gpu_problems;
}
