/* SPDX-License-Identifier: MIT
 *
 * Reading a PROBLEM line (problem.h) for the command, the tests and the fuzzer. Every option is a row of
 * one of the tables below; the layout is applied at the end, when all sizes are known, and explicit
 * strides replace it. */
#include "reader.h"

#include <stdio.h>
#include <string.h>

#include "common/attn_packed.h"

stw_status stw_problem_set_strides(stw_attn_desc *desc, const stw_problem_layout *layout) {
    if (stw_problem_strides_of_layout(desc, layout)) return STW_OK;
    return stw_fail(STW_E_INVALID, "problem: the strides of %s b%lld h%lld s%lldx%lld d%lldx%lld do not fit 63 bits",
                    stw_problem_order_names[layout->order], (long long)desc->batch, (long long)desc->heads_q,
                    (long long)desc->max_seq_q, (long long)desc->max_seq_kv, (long long)desc->head_dim_qk,
                    (long long)desc->head_dim_v);
}

static stw_status read_op(stw_reader *r) {
    r->out->op = STW_PROBLEM_ATTN_BWD;
    if (stw_reader_is(r, "attn_bwd")) return STW_OK;
    r->out->op = STW_PROBLEM_ATTN_FWD;
    return stw_reader_is(r, "attn_fwd")
               ? STW_OK
               : stw_reader_refuse(
                     r, "is not an operation; accepted: attn_bwd, attn_fwd, or jagged_* where these are taken");
}

/* ---- options that are one word ------------------------------------------------------------------ */

enum group { /* words of one group exclude each other */
             G_ORDER,
             G_LSE,
             G_MASK,
             G_DET,
             G_MAP,
             G_DATA,
             G_SEQS,
             G_LENS,
             G_PACKED,
             G_POINTER,
             G_FORM,
             G_MASK_HEADS,
             G_DRAW,
             G_BIAS,
             G_GRADS,
             G_ACC,
             G_DTYPES,
             G_FLAGS = G_DTYPES + 4,
             G_INTEGERS = G_FLAGS + 9,
             G_NUMBERS = G_INTEGERS + 18,
             G_LISTS = G_NUMBERS + 3,
             G_END = G_LISTS + 6
};
_Static_assert(G_END <= 64, "groups fit reader.seen");

typedef struct word {
    const char *name;
    enum group group;
    int value;
} word;

#define DATA_WORD(id, token) {"data_" token, G_DATA, STW_DATA_##id},
#define DRAW_WORD(id, token) {"draw_" token, G_DRAW, STW_DRAW_##id},
static const word words[] = {{"bshd", G_ORDER, STW_ORDER_BSHD},
                             {"bhsd", G_ORDER, STW_ORDER_BHSD},
                             {"qkv", G_ORDER, STW_ORDER_QKV},
                             {"thd", G_PACKED, 3},
                             {"thdq", G_PACKED, 1},
                             {"thdk", G_PACKED, 2},
                             {"lse_rows", G_LSE, STW_LSE_ROWS},
                             {"lse_heads", G_LSE, STW_LSE_HEADS},
                             {"lse_local", G_LSE, STW_LSE_LOCAL},
                             {"causal_tl", G_MASK, STW_MASK_CAUSAL_TOP_LEFT},
                             {"causal_br", G_MASK, STW_MASK_CAUSAL_BOTTOM_RIGHT},
                             {"det", G_DET, STW_DETERMINISTIC_ON},
                             {"nodet", G_DET, STW_DETERMINISTIC_OFF},
                             {"map_mem_eff", G_MAP, STW_DROPOUT_MEM_EFF},
                             {"map_flash2", G_MAP, STW_DROPOUT_FLASH2},
                             {"seqs_ragged", G_SEQS, STW_SEQS_RAGGED},
                             {"seqs_full", G_SEQS, STW_SEQS_FULL},
                             {"seqs_zeros", G_SEQS, STW_SEQS_ZEROS},
                             {"lens_random", G_LENS, STW_USED_RANDOM},
                             {"lens_zero", G_LENS, STW_USED_ZERO},
                             {"lens_q", G_LENS, STW_USED_Q_ONLY},
                             {"lens_kv", G_LENS, STW_USED_KV_ONLY},
                             {"pointer", G_POINTER, 1},
                             {"intervals_from", G_FORM, STW_INTERVALS_FROM},
                             {"intervals_range", G_FORM, STW_INTERVALS_RANGE},
                             {"intervals_from_below", G_FORM, STW_INTERVALS_FROM_BELOW},
                             {"intervals_range_below", G_FORM, STW_INTERVALS_RANGE_BELOW},
                             {"intervals_two", G_FORM, STW_INTERVALS_TWO_RANGES},
                             {"mask_heads", G_MASK_HEADS, 1},
                             STW_PROBLEM_DRAW_LIST(DRAW_WORD) STW_PROBLEM_DATA_LIST(DATA_WORD)};

static void apply_word(stw_reader *r, const word *w) {
    stw_problem *p = r->out;
    switch (w->group) {
    case G_ORDER: r->layout.order = (stw_problem_order)w->value; break;
    case G_LSE: r->layout.lse = (stw_problem_lse)w->value; break;
    case G_MASK: p->desc.mask = (stw_attn_mask)w->value; break;
    case G_DET: p->desc.deterministic = (stw_deterministic)w->value; break;
    case G_MAP: p->desc.dropout_map = (stw_dropout_map)w->value; break;
    case G_DATA: p->data = (stw_problem_data)w->value; break;
    case G_FORM: p->desc.interval_form = (stw_attn_intervals)w->value; break;
    case G_MASK_HEADS: r->layout.mask_heads = w->value; break;
    case G_DRAW: p->draw = (stw_problem_draw)w->value; break;
    case G_SEQS: p->seqs = (stw_problem_seqs)w->value; break;
    case G_LENS:
        p->used = (stw_problem_used)w->value;
        p->desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
        break;
    case G_PACKED:
        p->desc.flags |= (w->value & 1 ? STW_ATTN_PACKED_Q : 0) | (w->value >> 1 ? STW_ATTN_PACKED_KV : 0);
        break;
    default: p->by_pointer = w->value; break;
    }
}

/* ---- options with a number ---------------------------------------------------------------------- */

typedef struct integer_option {
    const char *name;
    int64_t low, high;
    size_t offset; /* of an int64_t in stw_problem */
    uint32_t flag; /* STW_ATTN_* that comes with it */
} integer_option;

#define IN_DESC(field) offsetof(stw_problem, desc.field)
static const integer_option integers[] = {
    {"tq", 0, STW_PROBLEM_SIZE_MAX, IN_DESC(total_q), STW_ATTN_PACKED_Q},
    {"tk", 0, STW_PROBLEM_SIZE_MAX, IN_DESC(total_kv), STW_ATTN_PACKED_KV},
    {"wl", 0, STW_PROBLEM_WIDE_MAX, IN_DESC(window_left), STW_ATTN_HAS_WINDOW_LEFT},
    {"wr", 0, STW_PROBLEM_WIDE_MAX, IN_DESC(window_right), STW_ATTN_HAS_WINDOW_RIGHT},
    {"shift", -STW_PROBLEM_WIDE_MAX, STW_PROBLEM_WIDE_MAX, IN_DESC(diagonal_shift), STW_ATTN_HAS_SHIFT},
    {"alibi_st", 0, STW_PROBLEM_WIDE_MAX, IN_DESC(alibi_stride_batch), 0},
    {"boff", -STW_PROBLEM_WIDE_MAX, STW_PROBLEM_WIDE_MAX, IN_DESC(batch_offset), 0},
    {"hoff", -STW_PROBLEM_WIDE_MAX, STW_PROBLEM_WIDE_MAX, IN_DESC(head_offset), 0},
    {"htotal", -STW_PROBLEM_WIDE_MAX, STW_PROBLEM_WIDE_MAX, IN_DESC(heads_total), 0},
    {"seed", 0, STW_PROBLEM_WIDE_MAX, offsetof(stw_problem, seed), 0},
    {"dseed", 0, STW_PROBLEM_WIDE_MAX, offsetof(stw_problem, dropout_seed), 0},
    {"doff", 0, STW_PROBLEM_WIDE_MAX, offsetof(stw_problem, dropout_offset), 0},
    {"qoff", -STW_PROBLEM_WIDE_MAX, STW_PROBLEM_WIDE_MAX, offsetof(stw_problem, q_offset), 0},
    {"koff", -STW_PROBLEM_WIDE_MAX, STW_PROBLEM_WIDE_MAX, offsetof(stw_problem, k_offset), 0},
    {"skew", 0, 255, offsetof(stw_problem, skew), 0},
    {"draw", 1, STW_PROBLEM_SIZE_MAX, offsetof(stw_problem, draw_length), 0},
};
#define INTEGER_COUNT (sizeof integers / sizeof *integers)
#define G_GAP         (G_INTEGERS + INTEGER_COUNT)
_Static_assert(G_GAP < G_NUMBERS, "a group of its own");

static stw_status read_integer_option(stw_reader *r, size_t i) {
    const integer_option *option = &integers[i];
    int64_t *field = (int64_t *)(void *)((char *)r->out + option->offset);
    stw_status status = stw_reader_claim(r, (unsigned)(G_INTEGERS + i), "is given twice");
    if (!status) status = stw_reader_bounded(r, option->name, option->low, option->high, field);
    if (!status) r->out->desc.flags |= option->flag;
    return status;
}

static stw_status read_gap(stw_reader *r) {
    stw_status status = stw_reader_claim(r, G_GAP, "is given twice");
    return status ? status : stw_reader_bounded(r, "gap", 0, STW_PROBLEM_GAP_MAX, &r->layout.gap);
}

static const char *const numbers[] = {"scale", "softcap", "dropout"};

static stw_status read_number(stw_reader *r, size_t i) {
    double value;
    float rounded;
    stw_attn_desc *d = &r->out->desc;
    stw_status status = stw_reader_claim(r, (unsigned)(G_NUMBERS + i), "is given twice");
    if (status) return status;
    if (!stw_reader_decimal(stw_reader_after(r, numbers[i]), stw_reader_end(r), &value, &rounded))
        return stw_reader_refuse(r, "is not a finite number in the form 0.125 or 1e-3");
    if (i == 0) {
        d->scale = rounded;
        d->scale_f64 = d->dtype == STW_F64 ? value : 0;
        d->flags |= STW_ATTN_HAS_SCALE;
    } else if (i == 1) {
        d->softcap = rounded;
        d->softcap_f64 = d->dtype == STW_F64 ? value : 0;
    } else d->dropout_p = value;
    return STW_OK;
}

/* ---- options with letters, lists and strides ----------------------------------------------------- */

static stw_status read_outputs(stw_reader *r, const char *letters, uint32_t *bits_out) {
    uint32_t bits = 0;
    for (; letters < stw_reader_end(r); ++letters) {
        const char *known = memchr(stw_problem_output_letters, *letters, 5);
        uint32_t bit = known ? 1u << (known - stw_problem_output_letters) : 0;
        if (!bit || (bits & bit))
            return stw_reader_refuse(r, "is not _ and letters of qkvbs (dQ, dK, dV, dBias, dSink), each once");
        bits |= bit;
    }
    *bits_out = bits;
    return STW_OK;
}

static stw_status read_bias(stw_reader *r, const char *at) {
    static const char dims[] = "bhqk";
    stw_attn_desc *d = &r->out->desc;
    const char *end = stw_reader_end(r);
    d->bias_dtype = d->dtype;
    if (end - at > 3 && memcmp(at, "f32_", 4) == 0) d->bias_dtype = STW_F32, at += 3;
    else if (end - at > 3 && memcmp(at, "f16_", 4) == 0) d->bias_dtype = STW_F16, at += 3;
    else if (end - at > 4 && memcmp(at, "bf16_", 5) == 0) d->bias_dtype = STW_BF16, at += 4;
    else if (end - at > 2 && memcmp(at, "u8_", 3) == 0) d->bias_dtype = STW_U8, at += 2;
    int good = end - at == 5 && *at == '_';
    for (int i = 0; good && i < 4; ++i) {
        good = at[1 + i] == dims[i] || at[1 + i] == '1';
        if (at[1 + i] == '1') r->layout.broadcast |= 1u << i;
    }
    return good ? STW_OK
                : stw_reader_refuse(r, "is not bias[f16|bf16|f32|u8]_ and b or 1, h or 1, q or 1, k or 1: bias_1hqk");
}

static stw_status read_grad_dtype(stw_reader *r, int which, const char *at) {
    stw_attn_desc *d = &r->out->desc;
    stw_dtype *field[4] = {&d->dq_dtype, &d->dk_dtype, &d->dv_dtype, &d->dbias_dtype};
    stw_reader value = *r; /* the dtype as a token of its own */
    value.length = (size_t)(stw_reader_end(r) - at);
    value.token = at;
    stw_dtype kept = d->dtype;
    stw_status status = stw_reader_claim(r, (unsigned)(G_DTYPES + which), "is given twice");
    if (!status) status = stw_reader_dtype(&value);
    *field[which] = d->dtype;
    d->dtype = kept;
    return status;
}

static const struct {
    const char *name;
    size_t offset;
} lists[] = {{"cuq", offsetof(stw_problem, cu_q)},        {"cuk", offsetof(stw_problem, cu_kv)},
             {"usedq", offsetof(stw_problem, used_q)},    {"usedk", offsetof(stw_problem, used_kv)},
             {"qoffs", offsetof(stw_problem, q_offsets)}, {"koffs", offsetof(stw_problem, k_offsets)}};
#define LIST_COUNT (sizeof lists / sizeof *lists)

static stw_status read_list(stw_reader *r, size_t i) {
    stw_problem_list *list = (stw_problem_list *)(void *)((char *)r->out + lists[i].offset);
    int count = 0;
    stw_status status = stw_reader_claim(r, (unsigned)(G_LISTS + i), "is given twice");
    if (!status)
        status = stw_reader_values(r, stw_reader_after(r, lists[i].name), list->value, STW_PROBLEM_LIST_MAX, &count);
    list->count = count;
    if (i == 2 || i == 3) r->out->desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    return status;
}

static stw_status read_strides(stw_reader *r) {
    for (size_t t = 0; t < stw_problem_tensor_count; ++t) {
        const stw_problem_tensor *tensor = &stw_problem_tensors[t];
        char name[16];
        stw_text text = stw_text_in(name, sizeof name);
        stw_text_add(&text, "st_%s", tensor->name);
        if (!stw_reader_is_number_after(r, name)) continue;
        int count = 0, wanted = stw_problem_has_four_strides(tensor->kind) ? 4 : 3, most = tensor->dim ? 4 : wanted;
        if (r->explicit_strides & (1u << t)) return stw_reader_refuse(r, "is given twice");
        r->explicit_strides |= 1u << t;
        stw_status status = stw_reader_values(r, stw_reader_after(r, name), r->strides[t], most, &count);
        if (!status && count < wanted)
            return stw_reader_refuse(
                r, "needs batch,head,seq (inputs: and head_dim where not 1; bias, block_mask: batch,head,query,key; "
                   "intervals: batch,head,key,bound)");
        if (!status && tensor->dim && count == most) r->dim_strides |= 1u << t;
        return status;
    }
    return stw_reader_refuse(
        r, "is not st_<tensor><batch>,<head>,<seq>; tensors: q k v out dout dq dk dv lse dlse delta bias dbias "
           "intervals block_mask");
}

/* ---- the line ------------------------------------------------------------------------------------ */

/* Name `i` of all that are compared with a misspelt one; NULL behind the last. */
static const char *option_name(size_t i) {
    if (i < sizeof words / sizeof *words) return words[i].name;
    i -= sizeof words / sizeof *words;
    if (i < stw_problem_flag_count) return stw_problem_flags[i].name;
    i -= stw_problem_flag_count;
    if (i < INTEGER_COUNT) return integers[i].name;
    i -= INTEGER_COUNT;
    if (i < 3) return numbers[i];
    i -= 3;
    return i < LIST_COUNT ? lists[i].name : NULL;
}

/* Letters to insert, remove, replace or exchange with the next to get from one word to the other. */
static size_t distance(const char *from, size_t length, const char *to) {
    size_t rows[3][64] = {{0}}, width = strlen(to);
    if (length > 48 || width > 48) return length + width;
    for (size_t j = 0; j <= width; ++j) rows[0][j] = j;
    for (size_t i = 1; i <= length; ++i) {
        size_t *row = rows[i % 3], *above = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= width; ++j) {
            size_t best = above[j - 1] + (from[i - 1] != to[j - 1]);
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (above[j] + 1 < best) best = above[j] + 1;
            int exchanged = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            if (exchanged && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[length % 3][width];
}

/* The option whose name differs in a third of its letters at most, the first of the nearest; NULL: none. */
static const char *nearest_option(const char *token, size_t letters, int *has_value_out) {
    const char *nearest = NULL, *name;
    size_t least = SIZE_MAX;
    for (size_t i = 0; (name = option_name(i)); ++i) {
        size_t differs = distance(token, letters, name);
        if (differs >= least || differs * 3 > strlen(name)) continue;
        least = differs;
        nearest = name;
        *has_value_out = i >= sizeof words / sizeof *words + stw_problem_flag_count;
    }
    return nearest;
}

void stw_problem_options(stw_text *text) {
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i) stw_text_add(text, " %s", words[i].name);
    for (size_t i = 0; i < stw_problem_flag_count; ++i) stw_text_add(text, " %s", stw_problem_flags[i].name);
    for (size_t i = 0; i < INTEGER_COUNT; ++i) stw_text_add(text, " %s<N>", integers[i].name);
    for (size_t i = 0; i < 3; ++i) stw_text_add(text, " %s<F>", numbers[i]);
    for (size_t i = 0; i < LIST_COUNT; ++i) stw_text_add(text, " %s<N,N..>", lists[i].name);
    stw_text_add(text, " gap<N> bias_<bhqk> grads_<qkvbs> acc_<qkvbs> dq_f32 st_q<N,N,N>");
}

/* Says which option may be meant: what other libraries call it, or a slip of the hand. */
static stw_status refuse_unknown(const stw_reader *r) {
    /* what others call it; %s: the value */
    static const struct {
        const char *theirs, *ours;
    } known[] = {
        {"causal", "causal_tl or causal_br"},
        {"is_causal", "causal_tl or causal_br"},
        {"window", "wl%s or wr%s"},
        {"win", "wl%s or wr%s"},
        {"swa", "wl%s"},
        {"local", "wl%s or wr%s"},
        {"left", "wl%s"},
        {"right", "wr%s"},
        {"window_left", "wl%s"},
        {"window_right", "wr%s"},
        {"deterministic", "det"},
        {"varlen", "thd"},
        {"packed", "thd"},
        {"sbhd", "st_q<batch>,<head>,<seq> for each tensor"},
        {"bias", "bias_bhqk, a 1 in the place of each broadcast dimension"},
        {"mask", "causal_tl, causal_br, intervals_from or biasu8_bhqk"},
        {"intervals", "intervals_from, intervals_range, intervals_from_below, intervals_range_below or intervals_two"},
        {"documents", "draw_documents"},
        {"document", "draw_documents"}};
    char what[300], token[49], value[49];
    stw_text text = stw_text_in(what, sizeof what);
    int length = r->length < sizeof token ? (int)r->length : (int)sizeof token - 1;
    for (int i = 0; i < length; ++i) token[i] = r->token[i];
    token[length] = 0;
    size_t letters = strcspn(token, "-0123456789.=");
    stw_text_add(&text, "is not an option; ");
    size_t said = text.length;
    snprintf(value, sizeof value, "%s", token + letters + strspn(token + letters, "="));
    for (size_t i = 0; i < sizeof known / sizeof *known && text.length == said; ++i)
        if (strlen(known[i].theirs) == letters && !strncmp(known[i].theirs, token, letters)) {
            stw_text_add(&text, "did you mean ");
            for (const char *c = known[i].ours; *c; ++c) {
                if (*c == '%') stw_text_add(&text, "%s", value[0] ? value : "<N>"), ++c;
                else stw_text_add(&text, "%c", *c);
            }
            stw_text_add(&text, "?");
        }
    int has_value = 0;
    const char *nearest = text.length == said ? nearest_option(token, letters, &has_value) : NULL;
    if (nearest) stw_text_add(&text, "did you mean %s%s?", nearest, !has_value ? "" : value[0] ? value : "<N>");
    else if (text.length == said) stw_text_add(&text, "`sternway help problem` lists them");
    return stw_reader_refuse(r, what);
}

static stw_status read_prefixed(stw_reader *r) {
    static const char *const prefixes[] = {"grads_", "acc_", "bias", "dq_", "dk_", "dv_", "dbias_", "st_"};
    stw_attn_desc *d = &r->out->desc;
    for (int i = 0; i < 8; ++i) {
        const char *at = stw_reader_after(r, prefixes[i]);
        if (!at) continue;
        if (i >= 3) return i < 7 ? read_grad_dtype(r, i - 3, at) : read_strides(r);
        stw_status status = stw_reader_claim(r,
                                             (unsigned)(i == 0   ? G_GRADS
                                                        : i == 1 ? G_ACC
                                                                 : G_BIAS),
                                             "is given twice");
        if (status) return status;
        return i == 2 ? read_bias(r, at) : read_outputs(r, at, i == 0 ? &d->outputs : &d->accumulate);
    }
    return refuse_unknown(r);
}

static stw_status read_option(stw_reader *r) {
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i)
        if (stw_reader_is(r, words[i].name)) {
            stw_status status = stw_reader_claim(r, words[i].group, "comes after another option of its kind");
            if (!status) apply_word(r, &words[i]);
            return status;
        }
    for (size_t i = 0; i < stw_problem_flag_count; ++i)
        if (stw_reader_is(r, stw_problem_flags[i].name)) {
            r->out->desc.flags |= stw_problem_flags[i].bit;
            return stw_reader_claim(r, (unsigned)(G_FLAGS + i), "is given twice");
        }
    for (size_t i = 0; i < LIST_COUNT; ++i)
        if (stw_reader_is_number_after(r, lists[i].name)) return read_list(r, i);
    for (size_t i = 0; i < INTEGER_COUNT; ++i)
        if (stw_reader_is_number_after(r, integers[i].name)) return read_integer_option(r, i);
    if (stw_reader_is_number_after(r, "gap")) return read_gap(r);
    for (size_t i = 0; i < 3; ++i)
        if (stw_reader_after(r, numbers[i])) return read_number(r, i);
    return read_prefixed(r);
}

static stw_status finish(stw_reader *r) {
    stw_attn_desc *d = &r->out->desc;
    int64_t *total[2] = {&d->total_q, &d->total_kv}, max_seq[2] = {d->max_seq_q, d->max_seq_kv};
    for (int side = 0; side < 2; ++side) {
        int told = (r->seen >> (G_INTEGERS + side) & 1) != 0; /* tq, tk: the first two of integers */
        if (!stw_attn_is_packed(d, side) || told) continue;
        int64_t rows = d->batch * max_seq[side]; /* each is at most STW_PROBLEM_SIZE_MAX */
        if (rows > STW_PROBLEM_SIZE_MAX)
            return stw_fail(STW_E_INVALID, "problem: %s is missing and batch * %s is above 2147483647",
                            side ? "tk<N>" : "tq<N>", side ? "max_seq_kv" : "max_seq_q");
        *total[side] = rows;
    }
    stw_status status = stw_problem_set_strides(d, &r->layout);
    for (size_t t = 0; !status && t < stw_problem_tensor_count; ++t) {
        const stw_problem_tensor *tensor = &stw_problem_tensors[t];
        size_t bytes = (stw_problem_has_four_strides(tensor->kind) ? 4 : 3) * sizeof(int64_t);
        if (r->explicit_strides & (1u << t)) memcpy((char *)d + tensor->offset, r->strides[t], bytes);
        if (!r->dim_strides || !tensor->dim) continue;
        int64_t dim = r->dim_strides & (1u << t) ? r->strides[t][3] : 1;
        memcpy((char *)d + tensor->dim, &dim, sizeof dim);
        d->flags |= STW_ATTN_HAS_DIM_STRIDES;
    }
    return status;
}

stw_status stw_problem_parse(const char *text, stw_problem *problem_out) {
    static stw_status (*const heads[])(stw_reader *) = {read_op, stw_reader_dtype, stw_reader_sizes};
    if (!text || !problem_out) return stw_fail(STW_E_INVALID, "problem: text or problem_out is NULL");
    stw_problem problem = {.desc = STW_INIT(stw_attn_desc)};
    stw_reader r = {.text = text, .token = text, .out = &problem};
    for (int index = 0;; ++index) {
        r.length = strcspn(r.token, ":");
        stw_status status = r.length == 0
                                ? stw_reader_refuse(&r, "is empty; expected attn_bwd:<dtype>:<sizes>[:<option>...]")
                            : index < 3 ? heads[index](&r)
                                        : read_option(&r);
        if (status) return status;
        if (!*stw_reader_end(&r)) {
            if (index >= 2) break;
            r.token += r.length, r.length = 0;
            return stw_reader_refuse(&r, "is the end; expected attn_bwd:<dtype>:<sizes>[:<option>...]");
        }
        r.token += r.length + 1;
    }
    stw_status status = finish(&r);
    if (!status) *problem_out = problem;
    return status;
}

/* ---- printing the options of a call --------------------------------------------------------------- */

/* Nothing for what absence says. */
static void add_word(stw_text *line, enum group group, int value) {
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i)
        if (value && words[i].group == group && words[i].value == value) stw_text_add(line, ":%s", words[i].name);
}

size_t stw_problem_print(const stw_problem *p, char *text, size_t capacity) {
    stw_text line = stw_text_in(text, capacity);
    line.length = stw_problem_format(&p->desc, p->op, text, capacity);
    add_word(&line, G_DATA, (int)p->data);
    add_word(&line, G_SEQS, (int)p->seqs);
    add_word(&line, G_LENS, (int)p->used);
    add_word(&line, G_DRAW, (int)p->draw);
    if (p->by_pointer) stw_text_add(&line, ":pointer");
    for (size_t i = 0; i < INTEGER_COUNT; ++i) {
        const char *field = (const char *)p + integers[i].offset;
        int64_t value;
        memcpy(&value, field, sizeof value);
        int of_call = integers[i].offset >= sizeof p->desc; /* the descriptor comes first */
        if (of_call && value) stw_text_add(&line, ":%s%lld", integers[i].name, (long long)value);
    }
    for (size_t i = 0; i < LIST_COUNT; ++i) {
        const stw_problem_list *list = (const stw_problem_list *)(const void *)((const char *)p + lists[i].offset);
        for (int k = 0; k < list->count; ++k)
            stw_text_add(&line, "%s%s%lld", k ? "," : ":", k ? "" : lists[i].name, (long long)list->value[k]);
    }
    return line.length;
}
