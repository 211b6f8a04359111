/* SPDX-License-Identifier: MIT
 *
 * The options of a problem in `__metadata__` (run.h): every key, what it accepts and where it goes. */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static int set_flash_window_left(run_problem *p, const char *text) {
    return read_integer(text, &flash_of(p)->left);
}

static int set_flash_window_right(run_problem *p, const char *text) {
    return read_integer(text, &flash_of(p)->right);
}

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

static int set_dropout_p(run_problem *p, const char *text) {
    return read_real(text, &p->desc.dropout_p);
}

static int set_dropout_seed(run_problem *p, const char *text) {
    return read_unsigned(text, &p->values.dropout_seed);
}

static int set_dropout_offset(run_problem *p, const char *text) {
    return read_unsigned(text, &p->values.dropout_offset);
}

static int set_dropout_map(run_problem *p, const char *text) {
    static const char *const names[] = {"philox", "mem_eff", "flash2", NULL};
    int index = index_of(text, names);
    if (index >= 0) p->desc.dropout_map = (stw_dropout_map)index;
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

static int set_splits(run_problem *p, const char *text) {
    int64_t value = 0;
    int status = read_integer(text, &value) && value >= INT32_MIN && value <= INT32_MAX;
    p->desc.splits = (int32_t)value;
    return status;
}

static int set_grad_dtype(run_problem *p, const char *text) {
    if (!text[0]) return 1;
    p->desc.dq_dtype = p->desc.dk_dtype = p->desc.dv_dtype = p->desc.dbias_dtype = STW_F32;
    return !strcmp(text, "f32");
}

static int set_q_offset(run_problem *p, const char *text) {
    return read_integer(text, &p->values.q_offset);
}
static int set_k_offset(run_problem *p, const char *text) {
    return read_integer(text, &p->values.k_offset);
}
static int set_batch_offset(run_problem *p, const char *t) {
    return read_integer(t, &p->desc.batch_offset);
}
static int set_head_offset(run_problem *p, const char *t) {
    return read_integer(t, &p->desc.head_offset);
}
static int set_heads_total(run_problem *p, const char *t) {
    return read_integer(t, &p->desc.heads_total);
}

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
    {"deterministic", set_deterministic, "0 or 1"},
    {"splits", set_splits, "a whole number"},
    {"grad_dtype", set_grad_dtype, "f32 or nothing"},
    {"q_offset", set_q_offset, "a whole number"},
    {"k_offset", set_k_offset, "a whole number"},
    {"batch_offset", set_batch_offset, "a whole number"},
    {"head_offset", set_head_offset, "a whole number"},
    {"heads_total", set_heads_total, "a whole number"},
};

int run_is_free_text(const char *key) {
    static const char *const names[] = {"about", "source", "torch_version", "format", NULL};
    return index_of(key, names) >= 0;
}

int run_read_option(run_problem *problem, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof options / sizeof options[0]; ++i) {
        if (strcmp(key, options[i].key)) continue;
        if (options[i].set(problem, value)) return STW_EXIT_OK;
        return run_refuse(problem, STW_EXIT_USAGE, "metadata %s '%.60s': %s is accepted", key, value,
                          options[i].accepted);
    }
    if (run_is_free_text(key)) return STW_EXIT_OK;
    return run_refuse(problem, STW_EXIT_USAGE,
                      "metadata key '%.80s' is not an option of attention (tools/README.md lists them)", key);
}
