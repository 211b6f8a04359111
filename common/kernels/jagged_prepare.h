/* SPDX-License-Identifier: MIT
 *
 * First kernel of every jagged operation, one CTA. It makes the clean lengths of common/params/jagged.h from the
 * caller's offsets and used lengths, and says whether there are gaps and what was wrong. For products it also makes
 * clean bases and counts the work tiles before each component; for attention it converts offsets to int32. */
#ifndef STW_COMMON_KERNELS_JAGGED_PREPARE_H
#define STW_COMMON_KERNELS_JAGGED_PREPARE_H

#include "common/kernels/jagged_product.h"
#include "common/kernels/jagged_scan.h"

/* The clean starts of an axis. Returns status bits. */
DEV_FN int32_t jag_clean_starts(const stw_jagged_params &p, const stw_jagged_axis_param &a, jag_scan &s) {
    int32_t bits = 0;
    jag_start(s, 0);
    for (int64_t at = 0; at <= p.components; at += JAG_SCAN) {
        int64_t b = at + dev_thread(), x = 0;
        bool live = b <= p.components;
        if (live) {
            int64_t raw = a.offsets ? stw_jagged_index(a.offsets, b, p.features) : 0; /* none: no components */
            x = stw_clamp_i64(raw, 0, a.total);
            if (raw != x || (b && stw_jagged_index(a.offsets, b - 1, p.features) > raw))
                bits |= STW_JAGGED_DATA_OFFSETS;
            if (p.components && (p.features & STW_JFEAT_FULL) &&
                ((b == 0 && raw != 0) || (b == p.components && raw != a.total)))
                bits |= STW_JAGGED_DATA_OFFSETS;
            if (p.features & STW_JFEAT_FULL) x = b == 0 ? 0 : b == p.components ? a.total : x; /* every row counts */
        }
        int64_t before = jag_exclusive_scan<jag_larger>(s, x);
        if (live) a.starts[b] = before > x ? before : x;
    }
    dev_barrier();
    return bits;
}

/* The clean used lengths, behind the starts. */
DEV_FN int32_t jag_clean_used(const stw_jagged_params &p, const stw_jagged_axis_param &a, bool *gaps) {
    int32_t bits = 0;
    for (int64_t b = dev_thread(); b < p.components; b += JAG_SCAN) {
        int64_t length = a.starts[b + 1] - a.starts[b], used = stw_jagged_used_of(&a, b, p.features);
        if (length > a.size) bits |= STW_JAGGED_DATA_USED;
        if (a.used) {
            int64_t raw = stw_jagged_index(a.used, b, p.features);
            if (raw < 0 || raw > length) bits |= STW_JAGGED_DATA_USED;
        }
        if ((p.features & STW_JFEAT_FULL) && p.op == STW_JAGGED_LINEAR)
            used = length; /* as the vendor's library has it */
        if (used < length) *gaps = true;
        a.used_clean[b] = used;
        if (p.op == STW_JAGGED_SELECT && p.dim == STW_DIM_RAGGED && (p.index < 0 ? -p.index > used : p.index >= used))
            bits |= STW_JAGGED_DATA_INDEX;
    }
    return bits;
}

/* Offsets and used lengths as they are, but int32 and saturated. */
DEV_FN void jag_to_int32(const stw_jagged_params &p) {
    for (int side = 0; side < 2; ++side) {
        const stw_jagged_axis_param &a = p.axis[side];
        for (int64_t b = dev_thread(); b <= p.components; b += JAG_SCAN) {
            if (p.offsets32
                    /* without components there is no array, and the packed problem has one entry all the same */
                    [side])
                p.offsets32[side][b] = p.components ? (int32_t)stw_clamp_i64(stw_jagged_index(a.offsets, b, p.features),
                                                                             INT32_MIN, INT32_MAX)
                                                    : 0;
            if (p.used32[side] && a.used && b < p.components)
                p.used32[side][b] =
                    (int32_t)stw_clamp_i64(stw_jagged_index(a.used, b, p.features), INT32_MIN, INT32_MAX);
        }
    }
}

DEV_FN void jag_prepare(const stw_jagged_launch &l, char *smem) {
    const stw_jagged_params &p = l.p;
    jag_scan &s = *(jag_scan *)(void *)smem;
    if (p.op == STW_JAGGED_ATTENTION) {
        jag_to_int32(p);
        return;
    }
    if (dev_thread() == 0) s.status = s.gaps = 0;
    int32_t bits = 0;
    bool gaps = false;
    for (int i = 0; i < 3; ++i) {
        const stw_jagged_axis_param &a = p.axis[i];
        if (!a.ragged) continue;
        bits |= jag_clean_starts(p, a, s) << a.axis_number;
        bits |= jag_clean_used(p, a, &gaps) << (a.axis_number);
        dev_barrier();
    }
    if (p.op == STW_JAGGED_MATMUL) bits |= jag_prepare_products(l, s);
    dev_barrier();
    if (bits) dev_or(&s.status, bits);
    if (gaps) dev_or(&s.gaps, 1);
    dev_barrier();
    if (dev_thread()) return;
    *l.gaps = s.gaps;
    if (p.status_out) *p.status_out = s.status;
}

#endif
