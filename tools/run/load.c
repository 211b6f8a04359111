/* SPDX-License-Identifier: MIT
 *
 * From the tensors and metadata of a file to its problems by prefix (run.h). Names only; shape.c looks
 * at types and sizes. A name that nothing would read is refused, so that a misspelt one is never ignored. */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the options of a problem in `__metadata__`: every key, what it accepts and where it goes ---- */

/* A whole value or nothing: no blanks, no rest. */
static int read_integer(const char *text, int64_t *value_out) {
    char *end;
    if (!(text[0] == '-' || (text[0] >= '0' && text[0] <= '9'))) return 0;
    errno = 0;
    *value_out = strtoll(text, &end, 10);
    return !errno && !*end && end[-1] >= '0' && end[-1] <= '9';
}

static int read_unsigned(const char *text, uint64_t *value_out) {
    char *end;
    if (!(text[0] >= '0' && text[0] <= '9')) return 0;
    errno = 0;
    *value_out = strtoull(text, &end, 10);
    return !errno && !*end;
}

/* Decimal, as Python and C print it; the command never sets a locale, so the point is a point. */
static int read_real(const char *text, double *value_out) {
    char *end;
    if (!text[0] || text[strspn(text, "+-.0123456789eE")]) return 0;
    errno = 0;
    *value_out = strtod(text, &end);
    return !*end && isfinite(*value_out);
}

/* Index of text in names, which ends with NULL; -1 when it is none. */
static int index_of(const char *text, const char *const *names) {
    for (int i = 0; names[i]; ++i)
        if (!strcmp(text, names[i])) return i;
    return -1;
}

static int set_mask(run_problem *p, const char *text) {
    static const char *const names[] = {"none", "causal_tl", "causal_br", NULL};
    int index = index_of(text, names);
    if (index >= 0) p->desc.mask = (stw_attn_mask)index;
    return index >= 0;
}

static int set_window_left(run_problem *p, const char *text) {
    p->desc.flags |= STW_ATTN_HAS_WINDOW_LEFT;
    return read_integer(text, &p->desc.window_left);
}

static int set_window_right(run_problem *p, const char *text) {
    p->desc.flags |= STW_ATTN_HAS_WINDOW_RIGHT;
    return read_integer(text, &p->desc.window_right);
}

static int set_diagonal_shift(run_problem *p, const char *text) {
    p->desc.flags |= STW_ATTN_HAS_SHIFT;
    return read_integer(text, &p->desc.diagonal_shift);
}

static run_flash *flash_of(run_problem *p) {
    if (!p->flash.given) p->flash = (run_flash){.given = 1, .left = -1, .right = -1};
    return &p->flash;
}

static int set_flash_causal(run_problem *p, const char *text) {
    static const char *const names[] = {"0", "1", NULL};
    int index = index_of(text, names);
    flash_of(p)->causal = index == 1;
    return index >= 0;
}

static int set_flash_window_left(run_problem *p, const char *text) { return read_integer(text, &flash_of(p)->left); }

static int set_flash_window_right(run_problem *p, const char *text) { return read_integer(text, &flash_of(p)->right); }

static int set_scale(run_problem *p, const char *text) {
    double value = 0;
    int status = read_real(text, &value);
    p->desc.flags |= STW_ATTN_HAS_SCALE;
    p->desc.scale = (float)value;
    p->desc.scale_f64 = value; /* run_shape() knows whether the problem takes it */
    return status;
}

static int set_softcap(run_problem *p, const char *text) {
    double value = 0;
    int status = read_real(text, &value);
    p->desc.softcap = (float)value;
    p->desc.softcap_f64 = value;
    return status;
}

static int set_dropout_p(run_problem *p, const char *text) { return read_real(text, &p->desc.dropout_p); }

static int set_dropout_seed(run_problem *p, const char *text) { return read_unsigned(text, &p->values.dropout_seed); }

static int set_dropout_offset(run_problem *p, const char *text) {
    return read_unsigned(text, &p->values.dropout_offset);
}

static int set_dropout_map(run_problem *p, const char *text) {
    static const char *const names[] = {"philox", "mem_eff", "flash2", NULL};
    int index = index_of(text, names);
    if (index >= 0) p->desc.dropout_map = (stw_dropout_map)index;
    return index >= 0;
}

static int set_interval_form(run_problem *p, const char *text) {
    static const char *const names[] = {"none", "from", "range", "from_below", "range_below", "two_ranges", NULL};
    int index = index_of(text, names);
    if (index >= 0) p->desc.interval_form = (stw_attn_intervals)index;
    return index >= 0;
}

static int set_alibi_column(run_problem *p, const char *text) {
    static const char *const names[] = {"0", "1", NULL};
    int index = index_of(text, names);
    if (index == 1) p->desc.flags |= STW_ATTN_ALIBI_COLUMN;
    return index >= 0;
}

static int set_deterministic(run_problem *p, const char *text) {
    static const char *const names[] = {"0", "1", NULL};
    int index = index_of(text, names);
    p->desc.deterministic = index == 1 ? STW_DETERMINISTIC_ON : STW_DETERMINISTIC_OFF;
    return index >= 0;
}

static int set_grad_dtype(run_problem *p, const char *text) {
    if (!text[0]) return 1;
    p->desc.dq_dtype = p->desc.dk_dtype = p->desc.dv_dtype = p->desc.dbias_dtype = STW_F32;
    return !strcmp(text, "f32");
}

static int set_q_offset(run_problem *p, const char *text) { return read_integer(text, &p->values.q_offset); }
static int set_k_offset(run_problem *p, const char *text) { return read_integer(text, &p->values.k_offset); }
static int set_batch_offset(run_problem *p, const char *t) { return read_integer(t, &p->desc.batch_offset); }
static int set_head_offset(run_problem *p, const char *t) { return read_integer(t, &p->desc.head_offset); }
static int set_heads_total(run_problem *p, const char *t) { return read_integer(t, &p->desc.heads_total); }

static const struct {
    const char *key;
    int (*set)(run_problem *problem, const char *text);
    const char *accepted;
} options[] = {
    {"mask", set_mask, "none, causal_tl or causal_br"},
    {"window_left", set_window_left, "a whole number"},
    {"window_right", set_window_right, "a whole number"},
    {"diagonal_shift", set_diagonal_shift, "a whole number"},
    {"flash_causal", set_flash_causal, "0 or 1"},
    {"flash_window_left", set_flash_window_left, "a whole number"},
    {"flash_window_right", set_flash_window_right, "a whole number"},
    {"scale", set_scale, "a number"},
    {"softcap", set_softcap, "a number"},
    {"dropout_p", set_dropout_p, "a number"},
    {"dropout_seed", set_dropout_seed, "a whole number of 0..2^64-1"},
    {"dropout_offset", set_dropout_offset, "a whole number of 0..2^64-1"},
    {"dropout_map", set_dropout_map, "philox, mem_eff or flash2"},
    {"alibi_column", set_alibi_column, "0 or 1"},
    {"interval_form", set_interval_form, "none, from, range, from_below, range_below or two_ranges"},
    {"deterministic", set_deterministic, "0 or 1"},
    {"grad_dtype", set_grad_dtype, "f32 or nothing"},
    {"q_offset", set_q_offset, "a whole number"},
    {"k_offset", set_k_offset, "a whole number"},
    {"batch_offset", set_batch_offset, "a whole number"},
    {"head_offset", set_head_offset, "a whole number"},
    {"heads_total", set_heads_total, "a whole number"},
};

/* about, source, torch_version, format */
static int run_is_free_text(const char *key) {
    static const char *const names[] = {"about", "source", "torch_version", "format", NULL};
    return index_of(key, names) >= 0;
}

/* One metadata option of a problem. 0, or the exit status after run_refuse. */
static int run_read_option(run_problem *problem, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof options / sizeof options[0] && !problem->nested; ++i) {
        if (strcmp(key, options[i].key)) continue;
        if (options[i].set(problem, value)) return STW_EXIT_OK;
        return run_refuse(problem, STW_EXIT_USAGE, "metadata %s '%.60s': %s is accepted", key, value,
                          options[i].accepted);
    }
    if (run_is_free_text(key)) return STW_EXIT_OK;
    if (problem->nested && !strcmp(key, "problem")) return STW_EXIT_OK;
    return run_refuse(problem, STW_EXIT_USAGE,
                      "metadata key '%.80s' is not an option of %s (tools/README.md lists them)", key,
                      problem->nested ? "nested operations beside `problem`" : "attention");
}

/* ---- names ---- */

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
    [RUN_INTERVALS] = ROW("intervals", intervals, " I32 "),
    [RUN_BLOCK_MASK] = ROW("block_mask", block_mask, " BOOL U8 "),
    [RUN_DQ] = ROW("dq", dq, ""),
    [RUN_DK] = ROW("dk", dk, ""),
    [RUN_DV] = ROW("dv", dv, ""),
    [RUN_DBIAS] = ROW("dbias", dbias, ""),
    [RUN_DSINK] = ROW("dsink", dsink, ""),
};

stw_dtype run_dtype_of(stw_st_type type) {
    return type == STW_ST_F32                         ? STW_F32
           : type == STW_ST_F64                       ? STW_F64
           : type == STW_ST_F16                       ? STW_F16
           : type == STW_ST_BF16                      ? STW_BF16
           : type == STW_ST_U8 || type == STW_ST_BOOL ? STW_U8
                                                      : STW_DTYPE_NONE;
}

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
    if (problem->nested) {
        if (!problem->error[0]) run_nested_take(problem, tensor, leaf);
        return;
    }
    for (int slot = 0; slot < RUN_SLOTS; ++slot) {
        const char *name = run_slot_rows[slot].name;
        size_t length = strlen(name);
        if (strncmp(leaf, name, length)) continue;
        const stw_st_tensor **place = NULL;
        if (slot < RUN_INPUTS && !leaf[length]) place = &problem->inputs[slot];
        if (slot >= RUN_INPUTS && !strcmp(leaf + length, "_ref")) place = &problem->references[slot - RUN_INPUTS];
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
            snprintf(error, STW_ST_ERROR_MAX, "metadata key '%.80s': the file has no problem of that prefix", key);
            return -1;
        }
    }
    return 0;
}

/* Of the problem with that name, "problem" of the metadata; NULL: it is attention. */
static const char *line_of(const stw_safetensors *file, const run_problem *problem) {
    for (size_t i = 0; i < file->pair_count; ++i) {
        const char *key = file->pairs[i].key, *leaf = leaf_of(key);
        if (!strcmp(leaf, "problem") && has_prefix(problem, key, leaf)) return file->pairs[i].value;
    }
    return NULL;
}

int run_load(const stw_safetensors *file, run_problem **problems_out, size_t *count_out, char error[STW_ST_ERROR_MAX]) {
    size_t count = 0;
    run_problem *problems = NULL;
    for (size_t i = 0; i < file->tensor_count; ++i) {
        const char *name = file->tensors[i].name, *leaf = leaf_of(name);
        run_problem *problem = find(problems, count, name, leaf);
        if (!problem) {
            run_problem *more = count < RUN_PROBLEMS_MAX ? realloc(problems, (count + 1) * sizeof *problems) : NULL;
            if (more) {
                problems = more;
                problem = memset(&problems[count++], 0, sizeof *problem);
                problem->desc.struct_size = sizeof problem->desc;
                problem->values.struct_size = sizeof problem->values;
                problem->name = strndup(name, leaf > name ? (size_t)(leaf - name - 1) : 0);
            }
            if (!problem || !problem->name) {
                snprintf(error, STW_ST_ERROR_MAX, "out of memory, or more than %d problems", RUN_PROBLEMS_MAX);
                run_free(problems, count);
                return -1;
            }
            const char *line = line_of(file, problem);
            if (line) run_nested_open(problem, line);
        }
        take_tensor(problem, &file->tensors[i], leaf);
    }
    if (!count) snprintf(error, STW_ST_ERROR_MAX, "holds no tensors");
    if (!count || read_metadata(file, problems, count, error)) {
        run_free(problems, count);
        return -1;
    }
    for (size_t i = 0; i < count; ++i)
        if (!problems[i].error[0] && !problems[i].nested) check_complete(&problems[i]);
    *problems_out = problems;
    *count_out = count;
    return 0;
}

void run_free(run_problem *problems, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        for (int slot = 0; slot < RUN_SLOTS; ++slot) free(problems[i].arrays[slot].host);
        run_nested_free(&problems[i]);
        free(problems[i].name);
        free(problems[i].plan_text);
        free(problems[i].forward_text);
    }
    free(problems);
}
