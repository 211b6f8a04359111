/* SPDX-License-Identifier: MIT */
/** @file
 * Makes masks for stw_attn_desc.interval_form and STW_ATTN_BLOCK_MASK: arrays of the host in, arrays of the host out,
 * one sequence a call. Copy the result to where the call's other arrays are. docs/masks.md shows each mask,
 * docs/mathematics.md has its formula. Positions are those of attention of a sequence to itself: key j is token j.
 * Failing calls have written nothing. */
#ifndef STERNWAY_ATTN_MASKS_H
#define STERNWAY_ATTN_MASKS_H

#include "attn_desc.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Documents of a sequence see themselves alone. A document is a run of equal ids.
 * @param ids     [keys] the document of each token; a different id begins a document
 * @param keys    tokens, at least 0
 * @param form    STW_INTERVALS_FROM beside a causal mask: [keys][1] the document's end;
 *                STW_INTERVALS_FROM_BELOW for documents seen whole: [keys][2] its end and its start
 * @param bounds  [keys][1 or 2] is written
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_documents(const int32_t *ids, int64_t keys, stw_attn_intervals form, int32_t *bounds);

/** Documents of one length, the last one shorter.
 * @param chunk   tokens of a document, at least 1
 * @param keys    as of stw_mask_documents()
 * @param form    as of stw_mask_documents()
 * @param bounds  as of stw_mask_documents()
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_chunks(int64_t chunk, int64_t keys, stw_attn_intervals form, int32_t *bounds);

/** Every token sees the prefix, and what is not after itself: STW_INTERVALS_FROM_BELOW without a causal mask.
 * @param prefix  its tokens, 0..keys
 * @param keys    tokens, at least 0
 * @param bounds  [keys][2] is written
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_prefix(int64_t prefix, int64_t keys, int32_t *bounds);

/** A token sees its own node up to itself, and the nodes above it: STW_INTERVALS_FROM beside a causal mask. Nodes lie
 * in the sequence in depth-first order, so that those below a node follow it.
 * @param parent  [nodes] the node above each, of a smaller number; -1: none
 * @param starts  [nodes + 1] the first token of each node, then the number of tokens: from 0, not decreasing
 * @param nodes   at least 0
 * @param bounds  [starts[nodes]][1] is written
 * @return STW_OK or STW_E_INVALID (order, starts). */
STW_API stw_status stw_mask_tree(const int32_t *parent, const int32_t *starts, int64_t nodes, int32_t *bounds);

/** The first keys are seen by all later tokens, others by the next `window` ones: STW_INTERVALS_FROM beside a causal
 * mask.
 * @param window  tokens before itself that a token sees, at least 0
 * @param sinks   keys that stay seen, at least 0
 * @param keys    tokens, at least 0
 * @param bounds  [keys][1] is written
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_sliding(int64_t window, int64_t sinks, int64_t keys, int32_t *bounds);

/** Keys before and after the text are seen by no row: STW_INTERVALS_RANGE.
 * @param first   keys before it, 0..keys
 * @param length  of the text, 0..keys - first
 * @param rows    query rows of the sequence
 * @param keys    keys of the sequence
 * @param bounds  [keys][2] is written
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_padding(int64_t first, int64_t length, int64_t rows, int64_t keys, int32_t *bounds);

/** A block mask from a function of pairs, which is asked for every pair.
 * @param sees       1 where row i sees key j
 * @param user       passed to it
 * @param rows       query rows
 * @param keys       keys
 * @param blocks     [ceil(rows/128)][ceil(keys/128)] is written: 1 where any pair of the block is seen
 * @param exact_out  or null; 1: each block is seen whole or not at all, so that the mask says all of the function
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_blocks(int (*sees)(void *user, int64_t i, int64_t j), void *user, int64_t rows,
                                   int64_t keys, uint8_t *blocks, int *exact_out);

/** A block mask from intervals: 0 where one interval hides all pairs of a block. Beside them it changes no result.
 * @param form    of the bounds, STW_INTERVALS_FROM..TWO_RANGES
 * @param bounds  [keys][1..4], contiguous, without a q offset
 * @param rows    query rows
 * @param keys    keys
 * @param blocks  [ceil(rows/128)][ceil(keys/128)] is written
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_mask_blocks_of_intervals(stw_attn_intervals form, const int32_t *bounds, int64_t rows,
                                                int64_t keys, uint8_t *blocks);

#ifdef __cplusplus
}
#endif
#endif
