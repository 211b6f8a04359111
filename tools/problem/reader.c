/* SPDX-License-Identifier: MIT
 *
 * Reading single values of a PROBLEM line (reader.h). */
#include "reader.h"

#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

stw_status stw_reader_refuse(const stw_reader *r, const char *what) {
    int shown = r->length > 48 ? 48 : (int)r->length;
    return stw_fail(STW_E_INVALID, "problem: at %zu: '%.*s%s' %s", (size_t)(r->token - r->text) + 1, shown, r->token,
                    r->length > 48 ? "..." : "", what);
}

int stw_reader_is(const stw_reader *r, const char *name) {
    return strlen(name) == r->length && memcmp(r->token, name, r->length) == 0;
}

const char *stw_reader_after(const stw_reader *r, const char *prefix) {
    size_t n = strlen(prefix);
    return n < r->length && memcmp(r->token, prefix, n) == 0 ? r->token + n : NULL;
}

const char *stw_reader_end(const stw_reader *r) { return r->token + r->length; }

static int is_digit(char c) { return c >= '0' && c <= '9'; }

int stw_reader_integer(const char **at, const char *end, int64_t *value_out) {
    const char *c = *at;
    int negative = c < end && *c == '-';
    c += negative;
    if (c >= end || !is_digit(*c)) return 0;
    int64_t value = 0;
    for (; c < end && is_digit(*c); ++c) {
        if (value > STW_PROBLEM_WIDE_MAX / 10) return 0;
        value = value * 10 + (*c - '0');
    }
    if (value > STW_PROBLEM_WIDE_MAX) return 0;
    *value_out = negative ? -value : value;
    *at = c;
    return 1;
}

stw_status stw_reader_claim(stw_reader *r, unsigned group, const char *what) {
    if (r->seen & (UINT64_C(1) << group)) return stw_reader_refuse(r, what);
    r->seen |= UINT64_C(1) << group;
    return STW_OK;
}

int stw_reader_decimal(const char *at, const char *end, double *value_out, float *float_out) {
    enum { LONGEST = 40 };
    char digits[LONGEST * MB_LEN_MAX + 1]; /* a locale's point is one character */
    const char *point = localeconv()->decimal_point;
    size_t length = 0, wide = strlen(point);
    if (at >= end || end - at > LONGEST) return 0;
    for (; at < end; ++at) {
        if (*at == '.') {
            memcpy(digits + length, point, wide);
            length += wide;
        } else if (is_digit(*at) || *at == '-' || *at == '+' || *at == 'e') digits[length++] = *at;
        else return 0;
    }
    digits[length] = 0;
    char *stop; /* digits is not empty: at its start only where no number is */
    *value_out = strtod(digits, &stop);
    *float_out = strtof(digits, NULL);
    return !*stop && isfinite(*value_out) && isfinite(*float_out);
}

stw_status stw_reader_values(stw_reader *r, const char *at, int64_t *values, int most, int *count_out) {
    int count = 0;
    for (;;) {
        if (count == most) return stw_reader_refuse(r, "has too many values");
        if (!stw_reader_integer(&at, stw_reader_end(r), &values[count++]))
            return stw_reader_refuse(r, "is not a list of integers: 0,5,17");
        if (at == stw_reader_end(r)) break;
        if (*at++ != ',') return stw_reader_refuse(r, "is not a list of integers: 0,5,17");
    }
    *count_out = count;
    return STW_OK;
}

int stw_reader_is_number_after(const stw_reader *r, const char *name) {
    const char *value = stw_reader_after(r, name);
    return value && (is_digit(*value) || (*value == '-' && value + 1 < stw_reader_end(r) && is_digit(value[1])));
}

stw_status stw_reader_bounded(stw_reader *r, const char *name, int64_t low, int64_t high, int64_t *value_out) {
    const char *at = stw_reader_after(r, name);
    if (stw_reader_integer(&at, stw_reader_end(r), value_out) && at == stw_reader_end(r) && *value_out >= low &&
        *value_out <= high)
        return STW_OK;
    char what[96];
    stw_text text = stw_text_in(what, sizeof what);
    stw_text_add(&text, "is not %s<N>, N from %lld to %lld", name, (long long)low, (long long)high);
    return stw_reader_refuse(r, what);
}

static stw_status read_size(stw_reader *r, const char **at, char letter, int64_t *first, int64_t *second, char next) {
    const char *end = stw_reader_end(r);
    if (*at >= end || **at != letter) return stw_reader_refuse(r, "is not b<B>h<Hq>[k<Hk>]s<Sq>[x<Sk>]d<D>[x<Dv>]");
    ++*at;
    if (!stw_reader_integer(at, end, first) || *first < 0 || *first > STW_PROBLEM_SIZE_MAX)
        return stw_reader_refuse(r, "has a size that is not 0..2147483647");
    if (!second) return STW_OK;
    *second = *first;
    if (*at >= end || **at != next) return STW_OK;
    ++*at;
    if (!stw_reader_integer(at, end, second) || *second < 0 || *second > STW_PROBLEM_SIZE_MAX)
        return stw_reader_refuse(r, "has a size that is not 0..2147483647");
    return STW_OK;
}

stw_status stw_reader_sizes(stw_reader *r) {
    stw_attn_desc *d = &r->out->desc;
    const char *at = r->token;
    stw_status status = read_size(r, &at, 'b', &d->batch, NULL, 0);
    if (!status) status = read_size(r, &at, 'h', &d->heads_q, &d->heads_kv, 'k');
    if (!status) status = read_size(r, &at, 's', &d->max_seq_q, &d->max_seq_kv, 'x');
    if (!status) status = read_size(r, &at, 'd', &d->head_dim_qk, &d->head_dim_v, 'x');
    if (!status && at != stw_reader_end(r))
        return stw_reader_refuse(r, "has text behind the sizes b..h..[k..]s..[x..]d..[x..]");
    return status;
}

stw_status stw_reader_dtype(stw_reader *r) {
    static const struct {
        const char *name;
        stw_dtype dtype;
    } rows[] = {{"f16", STW_F16}, {"bf16", STW_BF16}, {"f32", STW_F32}, {"f64", STW_F64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        if (stw_reader_is(r, rows[i].name)) {
            r->out->desc.dtype = rows[i].dtype;
            return STW_OK;
        }
    return stw_reader_refuse(r, "is not a dtype; accepted: f16, bf16, f32, f64");
}
