/* SPDX-License-Identifier: MIT
 *
 * The problems that `sternway tune` measures where the command line gives none. Every head-dim class, causal
 * and full, three lengths between the powers of two that benchmarks use, so that the rules' limits do not sit
 * on a benchmark's own shapes; features that choose other kernels at two head dims. */
#include "tune.h"

#include <stdio.h>
#include <string.h>

typedef struct usual_row {
    const char *dtype;
    int tokens, width; /* batch * length; heads * head_dim, 0: one head */
    int dims[8];       /* 0-terminated                     */
    int lengths[4];
    const char *options[5];
} usual_row;

static const usual_row gpu_rows[] = {
    {"bf16", 12288, 2048, {32, 64, 96, 128, 192, 256}, {384, 1536, 6144}, {"", ":causal_br"}},
    {"f32", 6144, 1024, {64, 128, 256}, {384, 1536, 6144}, {"", ":causal_br"}},
    {"bf16",
     12288,
     2048,
     {64, 128, 256},
     {1536, 6144},
     {":det", ":causal_br:det", ":dropout0.1", ":causal_br:dropout0.1"}},
    {"bf16", 6144, 2048, {64, 128}, {1536}, {":bias_1hqk:grads_qkvb"}},
};
static const usual_row cpu_rows[] = {
    {"f32", 512, 256, {64, 128, 256}, {64, 512}, {"", ":causal_br"}},
    {"bf16", 512, 256, {64, 128, 256}, {64, 512}, {"", ":causal_br"}},
};
static const usual_row emulated_rows[] = {
    {"bf16", 256, 0, {32, 64, 96, 128, 192, 256}, {256}, {"", ":causal_br"}},
    {"f32", 128, 0, {64, 128, 256}, {128}, {"", ":causal_br"}},
};

static int row_line(const usual_row *row, size_t index, char *line, size_t capacity) {
    for (int d = 0; row->dims[d]; ++d)
        for (int o = 0; o < 5 && row->options[o]; ++o)
            for (int s = 0; s < 4 && row->lengths[s]; ++s) {
                if (index--) continue;
                snprintf(line, capacity, "attn_bwd:%s:b%dh%ds%dd%d%s", row->dtype, row->tokens / row->lengths[s],
                         row->width ? row->width / row->dims[d] : 1, row->lengths[s], row->dims[d], row->options[o]);
                return 1;
            }
    return 0;
}

static size_t row_count(const usual_row *row) {
    char line[128];
    size_t count = 0;
    while (row_line(row, count, line, sizeof line)) ++count;
    return count;
}

int tune_usual(const char *arch, int emulated, size_t index, char *line, size_t capacity) {
    int cpu = !strcmp(arch, "cpu");
    const usual_row *rows = cpu ? cpu_rows : emulated ? emulated_rows : gpu_rows;
    size_t count = cpu        ? sizeof cpu_rows / sizeof *cpu_rows
                   : emulated ? sizeof emulated_rows / sizeof *emulated_rows
                              : sizeof gpu_rows / sizeof *gpu_rows;
    for (size_t i = 0; i < count; ++i) {
        size_t here = row_count(&rows[i]);
        if (index < here) return row_line(&rows[i], index, line, capacity);
        index -= here;
    }
    return 0;
}
