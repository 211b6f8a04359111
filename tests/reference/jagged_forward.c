/* SPDX-License-Identifier: MIT
 *
 * The forward of jagged_forward.h. */
#include "tests/reference/jagged_forward.h"

#include <math.h>

int64_t lines_of(const fd *f, int b) {
    const setup *s = f->s;
    const int64_t all = s->outer * f->l.used[b] * s->inner;
    return s->dim == STW_DIM_RAGGED ? s->outer * s->inner : all / s->size;
}

line line_at(const fd *f, int b, int64_t n) {
    const setup *s = f->s;
    const int64_t used = f->l.used[b], slab = used * s->inner;
    if (s->dim == STW_DIM_RAGGED) return (line){f->first[b] + n / s->inner * slab + n % s->inner, s->inner, used};
    if (s->dim == STW_DIM_OUTER) {
        const int64_t rest = n / slab, p = rest / s->after, q = rest % s->after;
        return (line){f->first[b] + (p * s->size * s->after + q) * slab + n % slab, s->after * slab, s->size};
    }
    const int64_t per_row = s->inner / s->size, row = n / per_row, p = n % per_row / s->after;
    return (line){f->first[b] + row * s->inner + p * s->size * s->after + n % s->after, s->after, s->size};
}

static double element_function(const fd *f, double x) {
    switch (f->s->op) {
    case STW_JAGGED_GELU: return x * 0.5 * erfc(-x / sqrt(2));
    case STW_JAGGED_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case STW_JAGGED_SILU: return x / (1 + exp(-x));
    default: return x > 0.25 ? x : 0;
    }
}

static double line_loss(const fd *f, line at, int64_t n) {
    double total = 0, sum = 0;
    for (int64_t k = 0; k < at.count; ++k) sum += exp(f->x[at.first + k * at.step]);
    for (int64_t k = 0; k < at.count; ++k) {
        const int64_t e = at.first + k * at.step;
        if (f->s->op == STW_JAGGED_SOFTMAX) total += f->grad[e] * exp(f->x[e]) / sum;
        if (f->s->op == STW_JAGGED_LOG_SOFTMAX) total += f->grad[e] * (f->x[e] - log(sum));
        if (f->s->op == STW_JAGGED_SUM) total += f->grad[n] * f->x[e];
    }
    if (f->s->op == STW_JAGGED_SELECT) {
        const int64_t k = f->s->index < 0 ? f->s->index + at.count : f->s->index;
        total = f->grad[n] * f->x[at.first + k * at.step];
    }
    return total;
}

static double rms_norm_loss(const fd *f, int64_t start) {
    const int64_t M = f->s->size;
    double square = 0, total = 0;
    for (int64_t k = 0; k < M; ++k) square += f->x[start + k] * f->x[start + k] / (double)M;
    for (int64_t k = 0; k < M; ++k) total += f->grad[start + k] * f->x[start + k] / sqrt(square + 1e-5) * f->weight[k];
    return total;
}

static double layer_norm_loss(const fd *f, int64_t start) {
    const int64_t M = f->s->size;
    double mean = 0, variance = 0, total = 0;
    for (int64_t k = 0; k < M; ++k) mean += f->x[start + k] / (double)M;
    for (int64_t k = 0; k < M; ++k) variance += (f->x[start + k] - mean) * (f->x[start + k] - mean) / (double)M;
    for (int64_t k = 0; k < M; ++k)
        total += f->grad[start + k] * ((f->x[start + k] - mean) / sqrt(variance + 1e-5) * f->weight[k] + f->bias[k]);
    return total;
}

/* A line is all that is used of [ragged, inner]; there is no gamma. */
static double ragged_norm_loss(const fd *f) {
    double total = 0;
    for (int b = 0; b < COMPONENTS; ++b) {
        const int64_t M = f->l.used[b] * f->s->inner;
        for (int64_t start = f->first[b]; start < f->first[b + 1]; start += M) {
            double mean = 0, square = 0;
            for (int64_t k = 0; k < M && f->s->op == STW_JAGGED_LAYER_NORM; ++k) mean += f->x[start + k] / (double)M;
            for (int64_t k = 0; k < M; ++k) square += (f->x[start + k] - mean) * (f->x[start + k] - mean) / (double)M;
            for (int64_t k = 0; k < M; ++k)
                total += f->grad[start + k] * (f->x[start + k] - mean) / sqrt(square + 1e-5);
        }
    }
    return total;
}

static double linear_loss(const fd *f, int64_t row) {
    const int64_t K = f->s->inner, N = f->features;
    double total = 0;
    for (int64_t n = 0; n < N; ++n) {
        double y = f->bias[n];
        for (int64_t k = 0; k < K; ++k) y += f->x[row * K + k] * f->weight[n * K + k];
        total += f->grad[row * N + n] * y;
    }
    return total;
}

/* Nested -> padded: the sum over what has a place. */
static double to_padded_loss(const fd *f) {
    const setup *s = f->s;
    double total = 0;
    for (int b = 0; b < COMPONENTS; ++b)
        for (int64_t o = 0; o < s->outer; ++o)
            for (int64_t r = 0; r < f->l.used[b] && r < f->padded; ++r)
                for (int64_t i = 0; i < s->inner; ++i)
                    total += f->grad[((b * s->outer + o) * f->padded + r) * s->inner + i] *
                             f->x[f->first[b] + (o * f->l.used[b] + r) * s->inner + i];
    return total;
}

/* Padded -> nested: x is the dense tensor. */
static double from_padded_loss(const fd *f) {
    const setup *s = f->s;
    double total = 0;
    for (int b = 0; b < COMPONENTS; ++b)
        for (int64_t o = 0; o < s->outer; ++o)
            for (int64_t r = 0; r < f->l.used[b] && r < f->padded; ++r)
                for (int64_t i = 0; i < s->inner; ++i)
                    total += f->x[((b * s->outer + o) * f->padded + r) * s->inner + i] *
                             f->grad[f->first[b] + (o * f->l.used[b] + r) * s->inner + i];
    return total;
}

double loss_of(const fd *f) {
    const stw_jagged_op op = f->s->op;
    const int64_t count = f->first[COMPONENTS];
    double total = 0;
    if (op == STW_JAGGED_TO_PADDED) return to_padded_loss(f);
    if (op == STW_JAGGED_FROM_PADDED) return from_padded_loss(f);
    if ((op == STW_JAGGED_LAYER_NORM || op == STW_JAGGED_RMS_NORM) && f->s->dim == STW_DIM_RAGGED) {
        total = ragged_norm_loss(f);
    } else if (op == STW_JAGGED_LAYER_NORM) {
        for (int64_t n = 0; n < count; n += f->s->size) total += layer_norm_loss(f, n);
    } else if (op == STW_JAGGED_RMS_NORM) {
        for (int64_t n = 0; n < count; n += f->s->size) total += rms_norm_loss(f, n);
    } else if (op == STW_JAGGED_LINEAR) {
        for (int64_t n = 0; n < count / f->s->inner; ++n) total += linear_loss(f, n);
    } else if (op == STW_JAGGED_RESHAPE) {
        for (int64_t n = 0; n < count; ++n) total += f->grad[n] * f->x[n];
    } else if (f->s->dim == STW_DIM_COMPONENT) {
        const int64_t b = f->s->index < 0 ? f->s->index + COMPONENTS : f->s->index;
        for (int64_t n = f->first[b]; n < f->first[b + 1]; ++n) total += f->grad[n - f->first[b]] * f->x[n];
    } else if (f->s->dim != STW_DIM_NONE) {
        int64_t line_number = 0;
        for (int b = 0; b < COMPONENTS; ++b)
            for (int64_t n = 0; n < lines_of(f, b); ++n) total += line_loss(f, line_at(f, b, n), line_number++);
    } else {
        for (int64_t n = 0; n < count; ++n) total += f->grad[n] * element_function(f, f->x[n]);
    }
    return total;
}
