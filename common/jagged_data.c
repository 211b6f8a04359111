/* SPDX-License-Identifier: MIT
 *
 * Checks offsets, used lengths and base offsets of a jagged call where the host can read them, and makes the
 * clean lengths. */
#include "jagged_data.h"

#include "sternway/jagged_bwd.h"

#define REFUSE(...) return stw_fail(STW_E_INVALID, "jagged_bwd: " __VA_ARGS__)

static stw_status check_offsets(const stw_jagged_axis_param *a, const char *suffix, int64_t components,
                                uint32_t features) {
    int64_t before = 0;
    for (int64_t b = 0; b <= components; ++b) {
        int64_t value = stw_jagged_index(a->offsets, b, features);
        if (value < before || value > a->total)
            REFUSE("axis[%u].offsets%s[%lld] is %lld, accepted: %lld (the entry before it)..%lld (total)",
                   a->axis_number, suffix, (long long)b, (long long)value, (long long)before, (long long)a->total);
        before = value;
    }
    if (!(features & STW_JFEAT_FULL)) return STW_OK;
    int64_t first = stw_jagged_index(a->offsets, 0, features);
    if (first || before != a->total)
        REFUSE("axis[%u].offsets%s go from %lld to %lld, but STW_JAGGED_FULL promises 0 to total %lld", a->axis_number,
               suffix, (long long)first, (long long)before, (long long)a->total);
    return STW_OK;
}

static stw_status check_lengths(const stw_jagged_axis_param *a, const char *suffix, int64_t components,
                                uint32_t features) {
    for (int64_t b = 0; b < components; ++b) {
        int64_t rows = stw_jagged_index(a->offsets, b + 1, features) - stw_jagged_index(a->offsets, b, features);
        if (rows > a->size)
            REFUSE("axis[%u].offsets%s: component %lld has length %lld, above axis[%u].size %lld", a->axis_number,
                   suffix, (long long)b, (long long)rows, a->axis_number, (long long)a->size);
        if (!a->used) continue;
        int64_t used = stw_jagged_index(a->used, b, features);
        if (used < 0 || used > rows)
            REFUSE("axis[%u].used%s[%lld] is %lld, accepted: 0..%lld (the component's length)", a->axis_number, suffix,
                   (long long)b, (long long)used, (long long)rows);
    }
    return STW_OK;
}

stw_status stw_jagged_check_axis(const stw_jagged_axis_param *axis, const char *suffix, int64_t components,
                                 uint32_t features, int32_t *bits) {
    if (!components) return STW_OK; /* there may be no array */
    stw_status status = check_offsets(axis, suffix, components, features);
    if (status) {
        *bits |= STW_JAGGED_DATA_OFFSETS << axis->axis_number;
        return status;
    }
    status = check_lengths(axis, suffix, components, features);
    if (status) *bits |= STW_JAGGED_DATA_USED << axis->axis_number;
    return status;
}

void stw_jagged_make_clean(stw_jagged_axis_param *a, int64_t components, uint32_t features) {
    int64_t largest = 0;
    a->starts[0] = 0;
    for (int64_t b = 0; components > 0 && b <= components; ++b) { /* without components nothing is read */
        int64_t value = stw_clamp_i64(stw_jagged_index(a->offsets, b, features), 0, a->total);
        if (value > largest) largest = value;
        a->starts[b] = largest;
    }
    for (int64_t b = 0; b < components; ++b) a->used_clean[b] = stw_jagged_used_of(a, b, features);
}

stw_status stw_jagged_check_bases(const stw_jagged_params *p, const stw_jagged_matrix_param *m, const char *name,
                                  int32_t *bits) {
    int64_t end = 0;
    for (int64_t b = 0; b < p->components; ++b) {
        stw_jagged_place place = stw_jagged_place_of(p, m, b);
        if (!place.present) {
            *bits |= STW_JAGGED_DATA_BASES;
            REFUSE("%s[%lld] is %lld: a component of %lld elements is not within %lld", name, (long long)b,
                   (long long)m->bases[b], (long long)(place.stride * p->outer), (long long)m->elements);
        }
        if (m->ordered && place.first < end) {
            *bits |= STW_JAGGED_DATA_BASES;
            REFUSE("%s[%lld] is %lld, inside the component before it, which ends at %lld: its gradient is asked "
                   "for",
                   name, (long long)b, (long long)m->bases[b], (long long)end);
        }
        end = place.first + place.stride * p->outer;
    }
    return STW_OK;
}
