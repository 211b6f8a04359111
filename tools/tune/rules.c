/* SPDX-License-Identifier: MIT
 *
 * From measured problems to STW_RULE rows (tune.h). Problems of one class (element type, head-dim class,
 * mask, features) are ordered by length; neighbouring lengths with the same winner make one row, whose limit
 * lies at the geometric mean of the two lengths around it. A class in which no variant gains enough makes no
 * row. */
#include "tune.h"

#include "common/attn_packed.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct class_key { /* in the order of the rows: features first, for the first row that fits wins */
    int plain, f32;
    int64_t dim_low, dim_high;                        /* 0: no limit */
    int packed, bias, dropout, deterministic, causal; /* causal -1: either */
} class_key;

typedef struct cell { /* problems of one class and length */
    class_key key;
    int64_t seq;
    const stw_tool_variant *winner, *present;
} cell;

typedef struct cell_list {
    cell *cells;
    size_t count;
} cell_list;

static const tune_timing *present_of(const tune_point *point) { return &point->timings[0]; }

size_t tune_best(const tune_point *point) {
    size_t best = 0;
    for (size_t i = 0; i < point->count; ++i) {
        const tune_timing *t = &point->timings[i], *b = &point->timings[best];
        if (t->runs && (!b->runs || t->median < b->median)) best = i;
    }
    return best;
}

/* ---- classes ------------------------------------------------------------------------------------------- */

/* The limits of the head-dim class: variants of the same loops and other head dims. */
static void dim_limits(const tune_report *r, const tune_point *point, class_key *key) {
    const stw_attn_desc *d = &point->desc;
    int64_t dim = d->head_dim_qk > d->head_dim_v ? d->head_dim_qk : d->head_dim_v, last = 0;
    key->dim_low = key->dim_high = 0;
    for (size_t i = 0; i < r->target->table->variant_count; ++i) {
        const stw_tool_variant *v = &r->target->table->variants[i];
        int same = 0;
        for (size_t n = 0; n < point->count; ++n) same |= !strcmp(point->timings[n].variant->loop, v->loop);
        if (!same) continue;
        int64_t hd = v->head_dim;
        last = hd > last ? hd : last;
        if (hd < dim && hd + 1 > key->dim_low) key->dim_low = hd + 1;
        if (hd >= dim && (!key->dim_high || hd < key->dim_high)) key->dim_high = hd;
    }
    if (key->dim_high == last) key->dim_high = 0;
}

static class_key key_of(const tune_report *r, const tune_point *point) {
    const stw_attn_desc *d = &point->desc;
    class_key key = {.f32 = d->dtype == STW_F32};
    dim_limits(r, point, &key);
    key.packed = stw_attn_is_packed(d, 0) || stw_attn_is_packed(d, 1);
    key.bias = d->bias_dtype != STW_DTYPE_NONE;
    key.dropout = d->dropout_p > 0;
    key.deterministic = point->deterministic;
    key.causal = d->mask != STW_MASK_NONE || (d->flags & STW_ATTN_HAS_WINDOW_RIGHT);
    key.plain = !(key.packed || key.bias || key.dropout || key.deterministic);
    return key;
}

static int64_t seq_of(const tune_point *point) {
    const stw_attn_desc *d = &point->desc;
    return d->max_seq_q < d->max_seq_kv ? d->max_seq_q : d->max_seq_kv;
}

#define COMPARE(field)                                                                                                 \
    if (x->field != y->field) return x->field < y->field ? -1 : 1
static int compare_classes(const class_key *x, const class_key *y) {
    COMPARE(plain);
    COMPARE(f32);
    COMPARE(dim_low);
    COMPARE(dim_high);
    COMPARE(packed);
    COMPARE(bias);
    COMPARE(dropout);
    COMPARE(deterministic);
    return 0;
}

static int compare_cells(const void *a, const void *b) {
    const cell *x = a, *y = b;
    int order = compare_classes(&x->key, &y->key);
    if (order) return order;
    COMPARE(key.causal);
    return x->seq == y->seq ? 0 : x->seq > y->seq ? -1 : 1; /* long ones first: rows have lower limits only */
}

static int same_class(const cell *x, const cell *y) {
    return !compare_classes(&x->key, &y->key) && x->key.causal == y->key.causal;
}

/* ---- winners ------------------------------------------------------------------------------------------- */

static const tune_timing *timing_of(const tune_point *point, const stw_tool_variant *variant) {
    for (size_t i = 0; i < point->count; ++i)
        if (point->timings[i].variant == variant && point->timings[i].runs) return &point->timings[i];
    return NULL;
}

/* Mean logarithm of the variant's time over the present one's in the cell's problems; infinite where it was
 * not timed in all of them. Where the present one was not timed, the fastest stands in for it. */
static double cost_of(const tune_report *r, const cell *c, const stw_tool_variant *variant) {
    double sum = 0;
    int problems = 0;
    for (size_t i = 0; i < r->count; ++i) {
        const tune_point *p = &r->points[i];
        class_key key = key_of(r, p);
        cell other = {.key = key, .seq = seq_of(p)};
        if (compare_cells(&other, c)) continue;
        const tune_timing *t = timing_of(p, variant), *base = present_of(p);
        if (!base->runs) base = &p->timings[tune_best(p)];
        if (!t || !(base->median > 0) || !(t->median > 0)) return INFINITY;
        sum += log(t->median / base->median);
        ++problems;
    }
    return problems ? sum / problems : INFINITY;
}

static void choose_winner(const tune_report *r, cell *c) {
    double best = INFINITY, present = cost_of(r, c, c->present);
    const stw_tool_variant *fastest = c->present;
    for (size_t i = 0; i < r->target->table->variant_count; ++i) {
        double cost = cost_of(r, c, &r->target->table->variants[i]);
        if (cost < best) best = cost, fastest = &r->target->table->variants[i];
    }
    c->winner = !isfinite(present) || best <= present - log1p(r->min_gain) ? fastest : c->present;
}

static int make_cells(const tune_report *r, cell_list *list) {
    list->cells = calloc(r->count + 1, sizeof *list->cells);
    list->count = 0;
    for (size_t i = 0; list->cells && i < r->count; ++i) {
        const tune_point *p = &r->points[i];
        cell c = {.key = key_of(r, p), .seq = seq_of(p)};
        size_t known = 0;
        while (known < list->count && compare_cells(&list->cells[known], &c)) ++known;
        if (known < list->count || !p->timings[tune_best(p)].runs) continue;
        c.present = present_of(p)->variant;
        choose_winner(r, &c);
        list->cells[list->count++] = c;
    }
    if (list->cells) qsort(list->cells, list->count, sizeof *list->cells, compare_cells);
    return list->cells ? 0 : -1;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* A line of its own: readers of tuning files take comments that end on their line, of less than 600
 * characters. */
static void comment(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void comment(FILE *to, const char *format, ...) {
    char text[560];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = strstr(text, "*/"); c; c = strstr(text, "*/")) c[1] = '|';
    fprintf(to, "/* %s */\n", text);
}

/* " x 1.234 ms (IQR 0.01)", or why there is no time. */
static int write_timing(char *to, size_t capacity, const tune_report *r, const tune_timing *t, int now) {
    const char *id = t->variant->id, *mark = now ? " (now)" : "";
    if (t->pruned) return snprintf(to, capacity, ", %s%s pruned", id, mark);
    if (!t->runs) return snprintf(to, capacity, ", %s%s %.60s", id, mark, t->text);
    if (r->target->counts) return snprintf(to, capacity, ", %s%s estimate %.4g Mcycles", id, mark, t->median * 1e-6);
    return snprintf(to, capacity, ", %s%s %.4g ms (IQR %.2g)", id, mark, t->median * 1e3, t->spread * 1e3);
}

static void write_point(FILE *to, const tune_report *r, const tune_point *point) {
    char times[440] = "";
    size_t used = 0, best = tune_best(point);
    if (!point->timings[best].runs) return;
    for (size_t i = 0; i < point->count && used < sizeof times; ++i) {
        int n = write_timing(times + used, sizeof times - used, r, &point->timings[i], i == 0);
        used += n > 0 ? (size_t)n : 0;
    }
    double gain = present_of(point)->runs ? present_of(point)->median / point->timings[best].median : 0;
    comment(to, "%.100s: best %.3fx now%s", point->line, gain, times);
}

static void write_row(FILE *to, const class_key *key, int64_t seq, const stw_tool_variant *variant) {
    fprintf(to, "STW_RULE(\"op=bwd dtype=%s", key->f32 ? "f32" : "f16|bf16");
    if (key->dim_low) fprintf(to, " head_dim>=%lld", (long long)key->dim_low);
    if (key->dim_high) fprintf(to, " head_dim<=%lld", (long long)key->dim_high);
    if (key->packed) fputs(" packed=1", to);
    if (key->causal >= 0) fprintf(to, " causal=%d", key->causal);
    fprintf(to, " bias=%d dropout=%d deterministic=%d", key->bias, key->dropout, key->deterministic);
    if (seq > 0) fprintf(to, " seq_q>=%lld seq_kv>=%lld", (long long)seq, (long long)seq);
    fprintf(to, "\", %s)\n", variant->id);
}

/* Rows of the cells [0, count) of one class, long lengths first. */
static void write_rows(FILE *to, const cell *cells, size_t count, const class_key *key) {
    for (size_t i = 0; i < count; ++i) {
        if (i + 1 < count && cells[i + 1].winner == cells[i].winner) continue;
        int64_t limit =
            i + 1 < count ? llround(sqrt((double)cells[i].seq * (double)cells[i + 1].seq)) : cells[i].seq / 2;
        write_row(to, key, limit, cells[i].winner);
    }
}

static int changes(const cell *cells, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (cells[i].winner != cells[i].present) return 1;
    return 0;
}

static size_t class_size(const cell_list *list, size_t first) {
    size_t end = first;
    while (end < list->count && same_class(&list->cells[first], &list->cells[end])) ++end;
    return end - first;
}

/* The full and the causal class behind it, when both come to the same rows. */
static int joins(const cell_list *list, size_t first, size_t count, size_t next_count) {
    const cell *x = &list->cells[first], *y = x + count;
    if (next_count != count || compare_classes(&x->key, &y->key)) return 0;
    for (size_t i = 0; i < count; ++i)
        if (x[i].seq != y[i].seq || x[i].winner != y[i].winner) return 0;
    return 1;
}

static void write_class_points(FILE *to, const tune_report *r, const cell *of) {
    for (size_t i = 0; i < r->count; ++i) {
        cell c = {.key = key_of(r, &r->points[i])};
        if (same_class(&c, of)) write_point(to, r, &r->points[i]);
    }
}

static void write_head(FILE *to, const tune_report *r) {
    const stw_tool_named *named = &r->target->named;
    comment(to, "%s by sternway tune, version %d.%d.%d: kernels of %s on %s%s%s, %.10s",
            r->target->counts ? "Estimated, not measured," : "Measured", STW_VERSION_MAJOR, STW_VERSION_MINOR,
            STW_VERSION_PATCH, r->target->table->arch, named->device, named->driver[0] ? ", driver " : "",
            named->driver, named->date);
    comment(to, "%zu problems, variants verified and %s; rows where one gains %.3g%%", r->count,
            r->target->counts ? "counted on an emulator: SIMD cycles, no time was taken"
                              : "timed in turn, medians and distances of quartiles",
            r->min_gain * 100);
}

int tune_write_rules(FILE *to, const void *user) {
    const tune_report *r = user;
    cell_list list;
    size_t rows = 0;
    if (make_cells(r, &list)) return -1;
    write_head(to, r);
    for (size_t i = 0; i < list.count;) {
        size_t count = class_size(&list, i), next = class_size(&list, i + count);
        int joined = i + count < list.count && joins(&list, i, count, next);
        class_key key = list.cells[i].key;
        if (changes(&list.cells[i], count) || (joined && changes(&list.cells[i + count], next))) {
            write_class_points(to, r, &list.cells[i]);
            if (joined) write_class_points(to, r, &list.cells[i + count]);
            if (joined) key.causal = -1;
            write_rows(to, &list.cells[i], count, &key);
            ++rows;
        }
        i += joined ? count + next : count;
    }
    if (!rows) comment(to, "No rule: nothing gained that much");
    if (r->partial) comment(to, "partial: %s", r->partial);
    free(list.cells);
    return ferror(to) ? -1 : 0;
}
