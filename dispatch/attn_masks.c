/* SPDX-License-Identifier: MIT
 *
 * Makes intervals and block masks on the host (include/sternway/attn_masks.h). */
#include "sternway/attn_masks.h"

#include "common/params/attn_hidden.h"
#include "common/status.h"

static stw_status check_keys(const char *who, const char *name, int64_t keys, const void *bounds) {
    if (keys < 0 || keys > INT32_MAX)
        return stw_fail(STW_E_INVALID, "%s: %s %lld is not in 0..2147483647", who, name, (long long)keys);
    return bounds || !keys ? STW_OK : stw_fail(STW_E_INVALID, "%s: the array that is written is null", who);
}

static stw_status check_range(const char *who, const char *name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: %s %lld is not in %lld..%lld", who, name, (long long)value, (long long)low,
                    (long long)high);
}

static stw_status check_document_form(const char *who, stw_attn_intervals form) {
    if (form == STW_INTERVALS_FROM || form == STW_INTERVALS_FROM_BELOW) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: form %d is neither from 1 nor from below 3", who, (int)form);
}

/* Tokens start..end-1 see themselves alone. */
static void put_document(stw_attn_intervals form, int64_t start, int64_t end, int32_t *bounds) {
    for (int64_t j = start; j < end; ++j) {
        if (form == STW_INTERVALS_FROM) {
            bounds[j] = (int32_t)end;
        } else {
            bounds[2 * j] = (int32_t)end;
            bounds[2 * j + 1] = (int32_t)start;
        }
    }
}

stw_status stw_mask_documents(const int32_t *ids, int64_t keys, stw_attn_intervals form, int32_t *bounds) {
    stw_status status = check_keys("mask_documents", "keys", keys, bounds);
    if (!status) status = check_document_form("mask_documents", form);
    if (!status && keys && !ids) status = stw_fail(STW_E_INVALID, "mask_documents: ids is null");
    for (int64_t start = 0, end; !status && start < keys; start = end) {
        for (end = start + 1; end < keys && ids[end] == ids[start]; ++end) {
        }
        put_document(form, start, end, bounds);
    }
    return status;
}

stw_status stw_mask_chunks(int64_t chunk, int64_t keys, stw_attn_intervals form, int32_t *bounds) {
    stw_status status = check_keys("mask_chunks", "keys", keys, bounds);
    if (!status) status = check_document_form("mask_chunks", form);
    if (!status) status = check_range("mask_chunks", "chunk", chunk, 1, INT32_MAX);
    for (int64_t start = 0; !status && start < keys; start += chunk)
        put_document(form, start, stw_smaller(start + chunk, keys), bounds);
    return status;
}

stw_status stw_mask_prefix(int64_t prefix, int64_t keys, int32_t *bounds) {
    stw_status status = check_keys("mask_prefix", "keys", keys, bounds);
    if (!status) status = check_range("mask_prefix", "prefix", prefix, 0, keys);
    for (int64_t j = 0; !status && j < keys; ++j) {
        bounds[2 * j] = (int32_t)keys;
        bounds[2 * j + 1] = j < prefix ? 0 : (int32_t)j;
    }
    return status;
}

/* Node n follows a node below its parent, or the parent itself; the first of all has none. */
static stw_status check_tree(const int32_t *parent, const int32_t *starts, int64_t nodes) {
    if (!starts || (nodes && !parent)) return stw_fail(STW_E_INVALID, "mask_tree: parent or starts is null");
    if (starts[0]) return stw_fail(STW_E_INVALID, "mask_tree: starts[0] is %d, it must be 0", starts[0]);
    for (int64_t n = 0; n < nodes; ++n) {
        int64_t above = n - 1;
        if (starts[n + 1] < starts[n])
            return stw_fail(STW_E_INVALID, "mask_tree: starts[%lld] is %d, below entry %lld, %d", (long long)n + 1,
                            starts[n + 1], (long long)n, starts[n]);
        while (above >= 0 && above != parent[n]) above = parent[above];
        if (above != parent[n])
            return stw_fail(STW_E_INVALID,
                            "mask_tree: parent[%lld] is %d: neither -1 nor node %lld or one above it: nodes are not in "
                            "depth-first order",
                            (long long)n, parent[n], (long long)n - 1);
    }
    return STW_OK;
}

stw_status stw_mask_tree(const int32_t *parent, const int32_t *starts, int64_t nodes, int32_t *bounds) {
    stw_status status = check_range("mask_tree", "nodes", nodes, 0, INT32_MAX);
    if (!status) status = check_tree(parent, starts, nodes);
    if (!status) status = check_keys("mask_tree", "starts[nodes]", starts[nodes], bounds);
    /* Where node n begins, node n - 1 ends and those above it that are not above n: each once in all. */
    for (int64_t n = 1; !status && n <= nodes; ++n) {
        const int64_t until = n < nodes ? parent[n] : -1;
        for (int64_t ended = n - 1; ended != until; ended = parent[ended])
            for (int64_t j = starts[ended]; j < starts[ended + 1]; ++j) bounds[j] = starts[n];
    }
    return status;
}

stw_status stw_mask_sliding(int64_t window, int64_t sinks, int64_t keys, int32_t *bounds) {
    stw_status status = check_keys("mask_sliding", "keys", keys, bounds);
    if (!status) status = check_range("mask_sliding", "window", window, 0, INT32_MAX);
    if (!status) status = check_range("mask_sliding", "sinks", sinks, 0, INT32_MAX);
    for (int64_t j = 0; !status && j < keys; ++j)
        bounds[j] = (int32_t)(j < sinks ? keys : stw_smaller(j + window + 1, keys));
    return status;
}

stw_status stw_mask_padding(int64_t first, int64_t length, int64_t rows, int64_t keys, int32_t *bounds) {
    stw_status status = check_keys("mask_padding", "keys", keys, bounds);
    if (!status) status = check_range("mask_padding", "first", first, 0, keys);
    if (!status) status = check_range("mask_padding", "length", length, 0, keys - first);
    if (!status) status = check_range("mask_padding", "rows", rows, 0, INT32_MAX);
    for (int64_t j = 0; !status && j < keys; ++j) {
        bounds[2 * j] = 0;
        bounds[2 * j + 1] = j < first || j >= first + length ? (int32_t)rows : 0;
    }
    return status;
}

stw_status stw_mask_blocks(int (*sees)(void *user, int64_t i, int64_t j), void *user, int64_t rows, int64_t keys,
                           uint8_t *blocks, int *exact_out) {
    stw_status status = check_keys("mask_blocks", "rows", rows, blocks);
    if (!status) status = check_keys("mask_blocks", "keys", keys, blocks);
    if (!status && !sees) status = stw_fail(STW_E_INVALID, "mask_blocks: sees is null");
    int64_t width = stw_blocks_of(keys, STW_MASK_BLOCK);
    int exact = 1;
    for (int64_t n = 0; !status && n < stw_blocks_of(rows, STW_MASK_BLOCK) * width; ++n) {
        int64_t i0 = n / width * STW_MASK_BLOCK, j0 = n % width * STW_MASK_BLOCK;
        int64_t i1 = stw_smaller(i0 + STW_MASK_BLOCK, rows), j1 = stw_smaller(j0 + STW_MASK_BLOCK, keys), seen = 0;
        for (int64_t i = i0; i < i1; ++i)
            for (int64_t j = j0; j < j1; ++j) seen += sees(user, i, j) != 0;
        blocks[n] = seen > 0;
        exact &= !seen || seen == (i1 - i0) * (j1 - j0);
    }
    if (!status && exact_out) *exact_out = exact;
    return status;
}

stw_status stw_mask_blocks_of_intervals(stw_attn_intervals form, const int32_t *bounds, int64_t rows, int64_t keys,
                                        uint8_t *blocks) {
    const char *who = "mask_blocks_of_intervals";
    stw_status status = check_keys(who, "rows", rows, blocks);
    if (!status) status = check_keys(who, "keys", keys, bounds);
    if (!status) status = check_range(who, "form", (int)form, STW_INTERVALS_FROM, STW_INTERVALS_TWO_RANGES);
    if (status) return status;
    const stw_attn_params p = {.interval_form = form, .intervals = {.bound = 1}};
    const stw_seq_span q = {0, rows, rows, 0};
    int64_t height = stw_blocks_of(rows, STW_MASK_BLOCK), width = stw_blocks_of(keys, STW_MASK_BLOCK);
    for (int64_t k = 0; k < width; ++k) {
        stw_hidden_block hidden = stw_hidden_block_of_none();
        for (int64_t j = k * STW_MASK_BLOCK; j < stw_smaller((k + 1) * STW_MASK_BLOCK, keys); ++j) {
            stw_hidden_rows of_key = stw_hidden_rows_of(&p, &q, bounds + j * stw_interval_bounds(form));
            stw_hidden_block_add(&hidden, &of_key);
        }
        for (int64_t n = 0; n < height; ++n)
            blocks[n * width + k] =
                !stw_hidden_block_hides_all(&hidden, n * STW_MASK_BLOCK, stw_smaller((n + 1) * STW_MASK_BLOCK, rows));
    }
    return STW_OK;
}
