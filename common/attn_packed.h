/* SPDX-License-Identifier: MIT
 *
 * Which sides of an attention problem are packed, and whether keys of intervals are numbered through the pack. Every
 * reader of a descriptor asks here. */
#ifndef STW_COMMON_ATTN_PACKED_H
#define STW_COMMON_ATTN_PACKED_H

#include "sternway/attn_desc.h"

/* The query side (kv 0) or the key/value side (kv 1). A total says it without the flag: no dense side has
 * one. */
static inline int stw_attn_is_packed(const stw_attn_desc *d, int kv) {
    uint32_t flag = kv ? STW_ATTN_PACKED_KV : STW_ATTN_PACKED_Q;
    return (d->flags & flag) || (kv ? d->total_kv : d->total_q) > 0;
}

/* Keys of args.intervals are numbered through the pack. */
static inline int stw_attn_intervals_through_pack(const stw_attn_desc *d) {
    return d->interval_form != STW_INTERVALS_NONE && stw_attn_is_packed(d, 1) && !d->intervals.batch;
}

#endif
