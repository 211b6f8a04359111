/* SPDX-License-Identifier: MIT
 *
 * Formatting a descriptor as a PROBLEM line (problem.h): called by the log at plan time and by the
 * command. The layout tokens are found by trying: the layout that explains most tensors is named, and the
 * strides of the others are written out. */
#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_packed.h"
#include "dtype.h"
#include "problem_layout.h"

/* Shortest decimal that reads back as the same value (30, not 3e+01), with a point in every locale. */
static void add_number(stw_text *text, const char *name, double value, int is_float) {
    char digits[64];
    int shortest = fabs(value) >= 1e-4 && fabs(value) < 1e9; /* written without an exponent */
    for (int precision = 1; precision <= 17; ++precision) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (shortest && strchr(digits, 'e')) continue;
        if (is_float ? strtof(digits, NULL) == (float)value : strtod(digits, NULL) == value) break;
    }
    char plain[64], last = 0;
    size_t length = 0;
    for (const char *c = digits; *c; ++c) {
        char now = strchr("0123456789+-einfa", *c) ? *c : '.'; /* numbers, inf and nan; a point of any bytes */
        if (now != '.' || last != '.') plain[length++] = now;
        last = now;
    }
    plain[length] = 0;
    stw_text_add(text, ":%s%s", name, plain);
}

static void add_integer(stw_text *text, const char *name, int64_t value) {
    stw_text_add(text, ":%s%lld", name, (long long)value);
}

static void add_sizes(stw_text *text, const stw_attn_desc *d) {
    stw_text_add(text, "b%lldh%lld", (long long)d->batch, (long long)d->heads_q);
    if (d->heads_kv != d->heads_q) stw_text_add(text, "k%lld", (long long)d->heads_kv);
    stw_text_add(text, "s%lld", (long long)d->max_seq_q);
    if (d->max_seq_kv != d->max_seq_q) stw_text_add(text, "x%lld", (long long)d->max_seq_kv);
    stw_text_add(text, "d%lld", (long long)d->head_dim_qk);
    if (d->head_dim_v != d->head_dim_qk) stw_text_add(text, "x%lld", (long long)d->head_dim_v);
}

/* ---- layout ----------------------------------------------------------------------------------- */

static void add_differing_strides(stw_text *text, const stw_attn_desc *desc, const stw_attn_desc *model,
                                  stw_problem_op op) {
    for (size_t t = 0; t < stw_problem_tensor_count; ++t) {
        const stw_problem_tensor *tensor = &stw_problem_tensors[t];
        if (stw_problem_strides_match(desc, model, tensor, op)) continue;
        const int64_t *s = stw_problem_strides_of(desc, tensor);
        stw_text_add(text, ":st_%s%lld,%lld,%lld", tensor->name, (long long)s[0], (long long)s[1], (long long)s[2]);
        int64_t dim = stw_problem_dim_stride(desc, tensor);
        if (stw_problem_has_four_strides(tensor->kind) || dim != 1)
            stw_text_add(text, ",%lld", (long long)(dim != 1 ? dim : s[3]));
    }
}

/* Tensors whose strides are not those of `layout`; model_out gets the layout's strides. */
static int count_differing(const stw_attn_desc *desc, const stw_problem_layout *layout, stw_problem_op op,
                           stw_attn_desc *model_out) {
    *model_out = *desc;
    model_out->flags &= ~STW_ATTN_HAS_DIM_STRIDES;
    if (!stw_problem_strides_of_layout(model_out, layout)) return INT32_MAX;
    int count = 0;
    for (size_t t = 0; t < stw_problem_tensor_count; ++t)
        count += !stw_problem_strides_match(desc, model_out, &stw_problem_tensors[t], op);
    return count;
}

static unsigned broadcast_of(const stw_attn_desc *desc) {
    if (desc->bias_dtype == STW_DTYPE_NONE) return 0;
    const int64_t *s = stw_problem_strides_of(desc, &stw_problem_tensors[stw_problem_bias]);
    unsigned bits = 0;
    for (int i = 0; i < 4; ++i) bits |= s[i] == 0 ? 1u << i : 0u;
    return bits;
}

static int has_mask_heads(const stw_attn_desc *d) {
    return (d->interval_form != STW_INTERVALS_NONE && d->intervals.head) ||
           (d->flags & STW_ATTN_BLOCK_MASK && d->block_mask.head);
}

/* Gaps worth trying: what a contiguous layout leaves over in q's strides. Only in those that are told:
 * a guess from any other would change once the line has been read back. */
static int gap_candidates(const stw_attn_desc *d, int64_t gap[4]) {
    int64_t row, guess[3];
    int count = 0, rows_told = stw_attn_is_packed(d, 0) || d->max_seq_q > 1;
    gap[count++] = 0;
    guess[0] = d->heads_q > 1 ? d->q.head - d->head_dim_qk : 0;
    guess[1] = rows_told ? d->q.seq - d->head_dim_qk : 0;
    guess[2] = 0;
    if (rows_told && d->heads_q > 0 && !__builtin_mul_overflow(d->heads_q, d->head_dim_qk, &row))
        guess[2] = (d->q.seq - row) / (d->heads_q + 1);
    for (int i = 0; i < 3; ++i)
        if (guess[i] > 0 && guess[i] <= STW_PROBLEM_GAP_MAX) gap[count++] = guess[i];
    return count;
}

static void add_layout(stw_text *text, const stw_attn_desc *desc, stw_problem_op op) {
    int64_t gap[4];
    int gaps = gap_candidates(desc, gap), best = INT32_MAX;
    stw_problem_layout layout = {STW_ORDER_BSHD, 0, STW_LSE_ROWS, broadcast_of(desc), has_mask_heads(desc)};
    stw_problem_layout chosen = layout;
    stw_attn_desc model;
    for (int g = 0; g < gaps && best; ++g)
        for (int lse = 0; lse < 3 && best; ++lse)
            for (int order = 0; order < 3 && best; ++order) {
                layout.gap = gap[g], layout.lse = (stw_problem_lse)lse, layout.order = (stw_problem_order)order;
                int differing = count_differing(desc, &layout, op, &model);
                if (differing < best) best = differing, chosen = layout;
            }
    if (count_differing(desc, &chosen, op, &model) == INT32_MAX) memset(&model.q, 0xFF, sizeof model.q * 11);
    if (stw_attn_is_packed(desc, 0)) add_integer(text, "tq", desc->total_q);
    if (stw_attn_is_packed(desc, 1)) add_integer(text, "tk", desc->total_kv);
    if (chosen.order) stw_text_add(text, ":%s", stw_problem_order_names[chosen.order]);
    if (chosen.gap) add_integer(text, "gap", chosen.gap);
    if (chosen.lse) stw_text_add(text, ":%s", stw_problem_lse_names[chosen.lse]);
    if (desc->bias_dtype != STW_DTYPE_NONE) {
        unsigned b = chosen.broadcast;
        const char *dtype = desc->bias_dtype == desc->dtype ? "" : stw_dtype_name(desc->bias_dtype);
        stw_text_add(text, ":bias%s_%c%c%c%c", dtype, b & STW_BROADCAST_B ? '1' : 'b', b & STW_BROADCAST_H ? '1' : 'h',
                     b & STW_BROADCAST_Q ? '1' : 'q', b & STW_BROADCAST_K ? '1' : 'k');
    }
    if (desc->interval_form > STW_INTERVALS_NONE && desc->interval_form <= STW_INTERVALS_TWO_RANGES)
        stw_text_add(text, ":%s", stw_problem_form_names[desc->interval_form]);
    else if (desc->interval_form != STW_INTERVALS_NONE) add_integer(text, "intervals", desc->interval_form);
    if (chosen.mask_heads) stw_text_add(text, ":mask_heads");
    add_differing_strides(text, desc, &model, op);
}

/* ---- everything else --------------------------------------------------------------------------- */

static void add_outputs(stw_text *text, const char *name, uint32_t bits) {
    if (!bits) return;
    stw_text_add(text, ":%s_", name);
    for (int i = 0; i < 5; ++i)
        if (bits & (1u << i)) stw_text_add(text, "%c", stw_problem_output_letters[i]);
}

static void add_mask(stw_text *text, const stw_attn_desc *d) {
    if (d->mask == STW_MASK_CAUSAL_TOP_LEFT) stw_text_add(text, ":causal_tl");
    else if (d->mask == STW_MASK_CAUSAL_BOTTOM_RIGHT) stw_text_add(text, ":causal_br");
    else if (d->mask != STW_MASK_NONE) add_integer(text, "mask", d->mask);
    if (d->flags & STW_ATTN_HAS_WINDOW_LEFT) add_integer(text, "wl", d->window_left);
    if (d->flags & STW_ATTN_HAS_WINDOW_RIGHT) add_integer(text, "wr", d->window_right);
    if (d->flags & STW_ATTN_HAS_SHIFT) add_integer(text, "shift", d->diagonal_shift);
}

static void add_score(stw_text *text, const stw_attn_desc *d) {
    int f64 = d->dtype == STW_F64; /* whose own fields win where they are not 0 */
    double scale = f64 && d->scale_f64 != 0 ? d->scale_f64 : (double)d->scale;
    double softcap = f64 && d->softcap_f64 != 0 ? d->softcap_f64 : (double)d->softcap;
    double usual = 1.0 / sqrt((double)d->head_dim_qk);
    int has_scale = d->flags & STW_ATTN_HAS_SCALE || (f64 && d->scale_f64 != 0);
    if (has_scale && !(scale == (f64 ? usual : (double)(float)usual))) add_number(text, "scale", scale, !f64);
    if (!(softcap == 0.0)) add_number(text, "softcap", softcap, !f64);
    for (size_t f = 0; f < stw_problem_flag_count; ++f)
        if (d->flags & stw_problem_flags[f].bit) stw_text_add(text, ":%s", stw_problem_flags[f].name);
    if (d->alibi_stride_batch) add_integer(text, "alibi_st", d->alibi_stride_batch);
    if (!(d->dropout_p == 0.0)) add_number(text, "dropout", d->dropout_p, 0);
    if (d->dropout_map == STW_DROPOUT_MEM_EFF) stw_text_add(text, ":map_mem_eff");
    else if (d->dropout_map == STW_DROPOUT_FLASH2) stw_text_add(text, ":map_flash2");
    else if (d->dropout_map != STW_DROPOUT_PHILOX) add_integer(text, "map", d->dropout_map);
}

static void add_call(stw_text *text, const stw_attn_desc *d) {
    const stw_dtype grads[4] = {d->dq_dtype, d->dk_dtype, d->dv_dtype, d->dbias_dtype};
    uint32_t usual = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    add_outputs(text, "grads", d->outputs == usual ? 0 : d->outputs);
    add_outputs(text, "acc", d->accumulate);
    for (int i = 0; i < 4; ++i)
        if (grads[i] != STW_DTYPE_NONE && grads[i] != (i < 3 ? d->dtype : d->bias_dtype))
            stw_text_add(text, ":%s_%s", stw_problem_grad_names[i], stw_dtype_name(grads[i]));
    if (d->deterministic == STW_DETERMINISTIC_ON) stw_text_add(text, ":det");
    else if (d->deterministic == STW_DETERMINISTIC_OFF) stw_text_add(text, ":nodet");
    else if (d->deterministic != STW_DETERMINISTIC_ENV) add_integer(text, "det", d->deterministic);
    if (d->batch_offset) add_integer(text, "boff", d->batch_offset);
    if (d->head_offset) add_integer(text, "hoff", d->head_offset);
    if (d->heads_total && d->heads_total != d->heads_q) add_integer(text, "htotal", d->heads_total);
}

size_t stw_problem_format(const stw_attn_desc *desc, stw_problem_op op, char *text, size_t capacity) {
    stw_text line = stw_text_in(text, capacity);
    stw_text_add(&line, "%s:%s:", stw_problem_op_name(op), stw_dtype_name(desc->dtype));
    add_sizes(&line, desc);
    add_layout(&line, desc, op);
    add_mask(&line, desc);
    add_score(&line, desc);
    add_call(&line, desc);
    return line.length;
}
