/* SPDX-License-Identifier: MIT
 *
 * From dot products to the operands of the next products, a row at a time. Z is dropout's mask times 1/(1 - p):
 *
 *     S  = softcap(scale * QK^T) + bias + alibi      masked, S = -inf, LSE = +-inf: P = dS = 0 (by selection)
 *     P  = exp(S - LSE)                              s  <- P.Z
 *     dS = P.(dP.Z - delta)                          raw <- dS, dp <- dS * (1 - tanh^2)
 *
 * The forward's online softmax starts from the same S. One body is inlined twice: general, and plain (no bias,
 * ALiBi, softcap or dropout), where all tests of features fold away; the plain one also for tiles that intervals cut.
 * Included by tile.c alone. */

#define VF_FROM_VD(x) __builtin_convertvector(x, vf) /* a vd as an argument would depend on the ABI */
#define FEAT_GENERAL  (STW_FEAT_BIAS | STW_FEAT_ALIBI | STW_FEAT_SOFTCAP | STW_FEAT_DROPOUT)

typedef struct row_span {
    uint32_t first, end; /* visible columns */
} row_span;

INLINE row_span span_of_row(const stw_tile_logits *t, uint32_t r) {
    int64_t first = (int64_t)r + t->low, end = (int64_t)r + t->high + 1;
    row_span span;
    span.first = first < 0 ? 0 : first > t->cols ? t->cols : (uint32_t)first;
    span.end = end < (int64_t)span.first ? span.first : end > t->cols ? t->cols : (uint32_t)end;
    return span;
}

/* Lanes of the vector at column c that lie in the span. */
INLINE vi lanes_in(row_span span, uint32_t c) {
    vi column = vi_lanes() + (int32_t)c;
    return (column >= (int32_t)span.first) & (column < (int32_t)span.end);
}

/* Pairs that intervals hide, from column c of row r on. */
INLINE vi behind_intervals(const stw_tile_logits *t, uint32_t r, uint32_t c) {
    const int32_t *first = t->hidden + c, row = t->first_row + (int32_t)r;
    const vi_any *bound[4];
    for (int n = 0; n < 4; ++n) bound[n] = (const vi_any *)(first + (size_t)n * t->pitch);
    return ((row >= *bound[0]) & (row < *bound[1])) | ((row >= *bound[2]) & (row < *bound[3]));
}

/* Pairs that a bias of bytes hides, from column c of row r on. */
INLINE vi hidden_at(const stw_tile_logits *t, uint32_t r, uint32_t c) {
    int64_t at = (int64_t)r * t->bias_query;
    if (t->bias_key) return vi_zero_bytes(t->bias, at + c, t->cols - c);
    return (vi){0} - (((const uint8_t *)t->bias)[at] == 0);
}

/* S of LANES pairs of row r from column c on; slope_out: derivative of softcap. */
INLINE vf logits_at(const stw_tile_logits *t, uint32_t r, uint32_t c, vf dot, vf *slope_out, const uint32_t features) {
    vf x = dot * t->scale;
    if (features & STW_FEAT_SOFTCAP) {
        vf cap = vf_splat(t->softcap);
        x = vf_tanh(x / cap, slope_out) * cap;
    }
    const int hides = (features & STW_FEAT_BIAS) && t->bias_dtype == STW_U8;
    if ((features & STW_FEAT_BIAS) && !hides) {
        int64_t at = (int64_t)r * t->bias_query;
        if (t->bias_key) x += vf_load_upto(t->bias, at + c, t->cols - c, t->bias_dtype);
        else x += vf_splat(stw_load_f32(t->bias, at, (stw_dtype)t->bias_dtype));
    }
    if (features & STW_FEAT_ALIBI) {
        vd column = __builtin_convertvector(vi_lanes() + (int32_t)c, vd);
        if (features & STW_FEAT_ALIBI_COLUMN) {
            x += VF_FROM_VD(column + t->first_key) * t->slope;
        } else {
            x -= vf_abs(VF_FROM_VD(column - (t->diagonal + (double)r))) * t->slope;
        }
    }
    if (hides) x = vf_select(hidden_at(t, r, c), vf_splat(-__builtin_inff()), x);
    return x;
}

INLINE void clear_columns(float *row, uint32_t from, uint32_t to) {
    for (uint32_t c = from; c < to; c += LANES) vf_store(row + c, (vf){0});
}

INLINE void grad_row(const stw_tile_grad *g, uint32_t r, const uint32_t features, const uint32_t dtype,
                     const int has_raw, const int has_hidden) {
    const stw_tile_logits *t = &g->logits;
    float *s = t->s + (size_t)r * t->pitch, *dp = g->dp + (size_t)r * t->pitch;
    float *raw = has_raw ? g->raw + (size_t)r * t->pitch : NULL;
    const uint32_t *keep = features & STW_FEAT_DROPOUT ? t->keep + (size_t)r * t->pitch : NULL;
    uint32_t width = (t->cols + LANES - 1) / LANES * LANES;
    row_span span = span_of_row(t, r);
    vf lse = vf_splat(g->lse[r]), delta = vf_splat(g->delta[r]);
    const vf lowest = vf_splat(-__builtin_inff());
    if (__builtin_isinf(g->lse[r])) span.first = span.end;
    uint32_t begin = span.first / LANES * LANES;
    uint32_t end = span.first < span.end ? (span.end + LANES - 1) / LANES * LANES : begin;
    clear_columns(s, 0, begin);
    clear_columns(dp, 0, begin);
    if (has_raw) clear_columns(raw, 0, begin);
    for (uint32_t c = begin; c < end; c += LANES) {
        vf slope = vf_splat(1.0f);
        vf x = logits_at(t, r, c, vf_load(s + c), &slope, features);
        vi part = lanes_in(span, c) & (x != lowest);
        if (has_hidden) part &= ~behind_intervals(t, r, c);
        vf p = vf_only(part, vf_exp(x - lse)), kept = p, flow = vf_load(dp + c);
        if (features & STW_FEAT_DROPOUT) {
            vi on = (vi) * (const vu_any *)(keep + c);
            kept = vf_only(on, p * t->keep_scale);
            flow = vf_only(on, flow * t->keep_scale);
        }
        vf ds = vf_only(part, p * (flow - delta));
        if (has_raw) vf_store(raw + c, ds);
        if (features & STW_FEAT_SOFTCAP) ds = vf_only(part, ds * slope);
        vf_store(s + c, vf_round_to(kept, dtype));
        vf_store(dp + c, vf_round_to(ds, dtype));
    }
    clear_columns(s, end, width);
    clear_columns(dp, end, width);
    if (has_raw) clear_columns(raw, end, width);
}

static void grad_general(const stw_tile_grad *g) {
    for (uint32_t r = 0; r < g->logits.rows; ++r)
        grad_row(g, r, g->logits.features, g->logits.dtype, g->raw != NULL, g->logits.hidden != NULL);
}

#define GRAD_PLAIN(name, dtype, has_hidden)                                                                            \
    static void name(const stw_tile_grad *g) {                                                                         \
        for (uint32_t r = 0; r < g->logits.rows; ++r) grad_row(g, r, 0, dtype, 0, has_hidden);                         \
    }
GRAD_PLAIN(grad_plain_f32, STW_F32, 0)
GRAD_PLAIN(grad_plain_bf16, STW_BF16, 0)
GRAD_PLAIN(grad_plain_f16, STW_F16, 0)
GRAD_PLAIN(grad_hidden_f32, STW_F32, 1)
GRAD_PLAIN(grad_hidden_bf16, STW_BF16, 1)
GRAD_PLAIN(grad_hidden_f16, STW_F16, 1)

static void tile_grad(const stw_tile_grad *g) {
    const int hides = g->logits.hidden != NULL;
    if ((g->logits.features & FEAT_GENERAL) || g->raw) grad_general(g);
    else if (g->logits.dtype == STW_F32) (hides ? grad_hidden_f32 : grad_plain_f32)(g);
    else if (g->logits.dtype == STW_BF16) (hides ? grad_hidden_bf16 : grad_plain_bf16)(g);
    else (hides ? grad_hidden_f16 : grad_plain_f16)(g);
}

/* ---- forward ------------------------------------------------------------------------------------------*/

/* S into s, -inf where masked; the largest of the row, NaN aside. */
INLINE vf logits_row(const stw_tile_logits *t, uint32_t r, float *s, uint32_t width, row_span span) {
    const vf lowest = vf_splat(-__builtin_inff());
    vf most = lowest;
    for (uint32_t c = 0; c < width; c += LANES) {
        vf slope, x = logits_at(t, r, c, vf_load(s + c), &slope, t->features);
        vi part = lanes_in(span, c);
        if (t->hidden) part &= ~behind_intervals(t, r, c);
        x = vf_select(part, x, lowest);
        most = vf_select(x > most, x, most);
        vf_store(s + c, x);
    }
    return most;
}

INLINE void softmax_row(const stw_tile_softmax *f, uint32_t r) {
    const stw_tile_logits *t = &f->logits;
    float *s = t->s + (size_t)r * t->pitch;
    uint32_t width = (t->cols + LANES - 1) / LANES * LANES;
    const vf lowest = vf_splat(-__builtin_inff());
    float before = f->maximum[r], most = vf_max(logits_row(t, r, s, width, span_of_row(t, r)));
    if (before > most) most = before;
    float base = most == -__builtin_inff() ? 0.0f : most; /* all masked so far: every term is 0 */
    vf total = {0};
    for (uint32_t c = 0; c < width; c += LANES) {
        vf x = vf_load(s + c), p = vf_only(x != lowest, vf_exp(x - base));
        total += p;
        if (t->features & STW_FEAT_DROPOUT) {
            const uint32_t *keep = t->keep + (size_t)r * t->pitch;
            p = vf_only((vi) * (const vu_any *)(keep + c), p * t->keep_scale);
        }
        vf_store(s + c, vf_round_to(p, t->dtype));
    }
    vf fix = vf_exp(vf_splat(before - base));
    f->fix[r] = before == -__builtin_inff() ? 0.0f : fix[0];
    /* with nothing but -inf and NaN so far the sum is 0 or NaN, and stays what it is */
    f->sum[r] = (before == -__builtin_inff() ? f->sum[r] : f->sum[r] * f->fix[r]) + vf_sum(total);
    f->maximum[r] = most;
}

static void tile_softmax(const stw_tile_softmax *f) {
    for (uint32_t r = 0; r < f->logits.rows; ++r) softmax_row(f, r);
}
