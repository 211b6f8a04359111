/* SPDX-License-Identifier: MIT
 *
 * Masks as FlashAttention 2 reads them: its pair of window sizes as a mask of ours. */
#include "attn_problem.h"

/* A bound as their entry points pass it on: -1 where it is absent. */
static int64_t bound_of(int64_t window_size, int64_t max_k) {
    return window_size >= 0 && window_size < max_k ? window_size : -1;
}

stw_status stw_attn_mask_from_flash(stw_attn_desc *desc, int causal, int64_t window_size_left,
                                    int64_t window_size_right) {
    stw_status status = stw_attn_check_given("attn_mask_from_flash", desc);
    if (status) return status;
    const int64_t max_k = desc->max_seq_kv, left = bound_of(window_size_left, max_k);
    int64_t right = causal ? 0 : bound_of(window_size_right, max_k);
    /* Their set_params_fprop puts max_k beside a bound. On the left that hides nothing, on the right keys
     * j > i + Lk - Lq + max_k, of which there are none up to max_k + 1 queries. */
    if (left >= 0 && right < 0 && desc->max_seq_q > max_k + 1) right = max_k;
    desc->mask = right == 0 ? STW_MASK_CAUSAL_BOTTOM_RIGHT : STW_MASK_NONE;
    desc->window_left = left > 0 ? left : 0;
    desc->window_right = right > 0 ? right : 0;
    desc->diagonal_shift = 0;
    desc->flags &= ~(STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT | STW_ATTN_HAS_SHIFT | STW_ATTN_ALIBI_COLUMN);
    if (left >= 0) desc->flags |= STW_ATTN_HAS_WINDOW_LEFT;
    if (right > 0) desc->flags |= STW_ATTN_HAS_WINDOW_RIGHT;
    if (left < 0 && right == 0 && desc->flags & STW_ATTN_ALIBI) desc->flags |= STW_ATTN_ALIBI_COLUMN;
    return STW_OK;
}
