/* SPDX-License-Identifier: MIT
 *
 * From the tensors and metadata of a file to its problems by prefix (run.h). Names only; run_shape.c looks
 * at types and sizes. A name that nothing would read is refused, so that a misspelt one is never ignored. */
#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_PROBLEMS_MAX = 10000 };

/* By hand: names and types are those of files, not of the API. */
#define ROW(name, field, types) {name, offsetof(stw_attn_args, field), types}
const run_slot_row run_slot_rows[RUN_SLOTS] = {
    [RUN_Q] = ROW("q", q, " F32 F16 BF16 F64 "),
    [RUN_K] = ROW("k", k, " F32 F16 BF16 F64 "),
    [RUN_V] = ROW("v", v, " F32 F16 BF16 F64 "),
    [RUN_OUT] = ROW("out", out, " F32 F16 BF16 F64 "),
    [RUN_DOUT] = ROW("dout", dout, " F32 F16 BF16 F64 "),
    [RUN_LSE] = ROW("lse", lse, " F32 F64 "),
    [RUN_DLSE] = ROW("dlse", dlse, " F32 F64 "),
    [RUN_DELTA] = ROW("delta", delta, " F32 F64 "),
    [RUN_BIAS] = ROW("bias", bias, " F32 F16 BF16 F64 BOOL U8 "),
    [RUN_ALIBI] = ROW("alibi_slopes", alibi_slopes, " F32 F64 "),
    [RUN_SINK] = ROW("sink", sink, " F32 F64 "),
    [RUN_CU_Q] = ROW("cu_seqlens_q", cu_seqlens_q, " I32 "),
    [RUN_CU_K] = ROW("cu_seqlens_k", cu_seqlens_kv, " I32 "),
    [RUN_USED_Q] = ROW("used_q", used_q, " I32 "),
    [RUN_USED_K] = ROW("used_k", used_kv, " I32 "),
    [RUN_Q_OFFSETS] = ROW("q_offsets", q_offsets, " I64 "),
    [RUN_K_OFFSETS] = ROW("k_offsets", k_offsets, " I64 "),
    [RUN_DQ] = ROW("dq", dq, ""),
    [RUN_DK] = ROW("dk", dk, ""),
    [RUN_DV] = ROW("dv", dv, ""),
    [RUN_DBIAS] = ROW("dbias", dbias, ""),
    [RUN_DSINK] = ROW("dsink", dsink, ""),
};

int run_refuse(run_problem *problem, int exit_status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->error, sizeof problem->error, format, arguments);
    va_end(arguments);
    problem->exit_status = exit_status;
    return exit_status;
}

/* Where the last part of "layer0.attn.q" begins. */
static const char *leaf_of(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static int has_prefix(const run_problem *problem, const char *name, const char *leaf) {
    size_t length = leaf > name ? (size_t)(leaf - name - 1) : 0;
    return strlen(problem->name) == length && !memcmp(problem->name, name, length) &&
           (leaf > name || !problem->name[0]);
}

/* The problem of that prefix. Neighbours in a file mostly belong together: the last one is tried first. */
static run_problem *find(run_problem *problems, size_t count, const char *name, const char *leaf) {
    for (size_t i = count; i-- > 0;)
        if (has_prefix(&problems[i], name, leaf)) return &problems[i];
    return NULL;
}

static void take_tensor(run_problem *problem, const stw_st_tensor *tensor, const char *leaf) {
    for (int slot = 0; slot < RUN_SLOTS; ++slot) {
        const char *name = run_slot_rows[slot].name;
        size_t length = strlen(name);
        if (strncmp(leaf, name, length)) continue;
        const stw_st_tensor **place = NULL;
        if (slot < RUN_INPUTS && !leaf[length]) place = &problem->inputs[slot];
        if (slot >= RUN_INPUTS && !strcmp(leaf + length, "_ref"))
            place = &problem->references[slot - RUN_INPUTS];
        if (!place) continue;
        if (*place && !problem->error[0]) /* "q" and ".q" */
            run_refuse(problem, STW_EXIT_USAGE, "tensor %s is given twice", leaf);
        *place = tensor;
        return;
    }
    if (!problem->error[0])
        run_refuse(problem, STW_EXIT_USAGE,
                   "tensor '%.80s' is not part of an attention problem (tools/README.md "
                   "lists the names)",
                   leaf);
}

static void check_complete(run_problem *p) {
    static const run_slot required[] = {RUN_Q, RUN_K, RUN_V, RUN_DOUT};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; ++i)
        if (!p->inputs[required[i]] && !p->error[0])
            run_refuse(p, STW_EXIT_USAGE, "tensor %s is missing", run_slot_rows[required[i]].name);
    if (p->error[0]) return;
    int out = p->inputs[RUN_OUT] != NULL, lse = p->inputs[RUN_LSE] != NULL;
    p->compute_forward = !out && !lse;
    if (p->inputs[RUN_DELTA]) {
        p->compute_forward = 0;
        if (!lse) run_refuse(p, STW_EXIT_USAGE, "delta is given without lse");
        if (p->inputs[RUN_DLSE])
            run_refuse(p, STW_EXIT_USAGE, "delta and dlse are both given; delta already has dlse subtracted");
    } else if (out != lse) {
        run_refuse(p, STW_EXIT_USAGE, "%s is given without %s; give both, or neither to have them computed",
                   out ? "out" : "lse", out ? "lse" : "out");
    }
    if ((p->desc.flags & STW_ATTN_ALIBI_COLUMN) && !p->inputs[RUN_ALIBI] && !p->error[0])
        run_refuse(p, STW_EXIT_USAGE, "metadata alibi_column is given without the tensor alibi_slopes");
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        int made = g == STW_GRAD_DBIAS   ? p->inputs[RUN_BIAS] != NULL
                   : g == STW_GRAD_DSINK ? p->inputs[RUN_SINK] != NULL
                                         : 1;
        if (p->references[g] && !made && !p->error[0])
            run_refuse(p, STW_EXIT_USAGE, "%s_ref is given without %s", stw_grad_names[g],
                       g == STW_GRAD_DBIAS ? "bias" : "sink");
    }
    const stw_st_tensor *bias = p->inputs[RUN_BIAS];
    if (p->references[STW_GRAD_DBIAS] && bias && run_dtype_of(bias->type) == STW_U8 && !p->error[0])
        run_refuse(p, STW_EXIT_USAGE, "dbias_ref is given, but a bias of %s has no gradient",
                   stw_st_type_name(bias->type));
}

static int read_metadata(const stw_safetensors *file, run_problem *problems, size_t count, char *error) {
    for (size_t i = 0; i < file->pair_count; ++i) {
        const char *key = file->pairs[i].key, *leaf = leaf_of(key);
        run_problem *problem = find(problems, count, key, leaf);
        if (problem) {
            if (!problem->error[0]) run_read_option(problem, leaf, file->pairs[i].value);
        } else if (leaf != key || !run_is_free_text(key)) {
            snprintf(error, STW_ST_ERROR_MAX, "metadata key '%.80s': the file has no problem of that prefix",
                     key);
            return -1;
        }
    }
    return 0;
}

int run_load(const stw_safetensors *file, run_problem **problems_out, size_t *count_out,
             char error[STW_ST_ERROR_MAX]) {
    size_t count = 0;
    run_problem *problems = NULL;
    for (size_t i = 0; i < file->tensor_count; ++i) {
        const char *name = file->tensors[i].name, *leaf = leaf_of(name);
        run_problem *problem = find(problems, count, name, leaf);
        if (!problem) {
            run_problem *more =
                count < RUN_PROBLEMS_MAX ? realloc(problems, (count + 1) * sizeof *problems) : NULL;
            if (more) {
                problems = more;
                problem = memset(&problems[count++], 0, sizeof *problem);
                problem->desc.struct_size = sizeof problem->desc;
                problem->values.struct_size = sizeof problem->values;
                problem->name = strndup(name, leaf > name ? (size_t)(leaf - name - 1) : 0);
            }
            if (!problem || !problem->name) {
                snprintf(error, STW_ST_ERROR_MAX, "out of memory, or more than %d problems",
                         RUN_PROBLEMS_MAX);
                run_free(problems, count);
                return -1;
            }
        }
        take_tensor(problem, &file->tensors[i], leaf);
    }
    if (!count) snprintf(error, STW_ST_ERROR_MAX, "holds no tensors");
    if (!count || read_metadata(file, problems, count, error)) {
        run_free(problems, count);
        return -1;
    }
    for (size_t i = 0; i < count; ++i)
        if (!problems[i].error[0]) check_complete(&problems[i]);
    *problems_out = problems;
    *count_out = count;
    return 0;
}

void run_free(run_problem *problems, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        for (int slot = 0; slot < RUN_SLOTS; ++slot) free(problems[i].arrays[slot].host);
        free(problems[i].name);
        free(problems[i].plan_text);
        free(problems[i].forward_text);
    }
    free(problems);
}
