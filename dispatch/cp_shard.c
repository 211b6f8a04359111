/* SPDX-License-Identifier: MIT
 *
 * Which rows a rank holds, and how much of a chunk of keys a chunk of rows sees. */
#include "cp.h"

#include "common/params/attn_seq.h"

stw_cp_chunk stw_cp_chunk_of(stw_cp_order order, int64_t rows, int64_t n, int64_t shards, int at) {
    int64_t chunks = 2 * shards, c = 2 * n + at;
    if (order == STW_CP_ZIGZAG) c = at ? chunks - 1 - n : n;
    int64_t first = c * rows / chunks;
    return (stw_cp_chunk){first, (c + 1) * rows / chunks - first};
}

stw_cp_chunk stw_cp_used(const stw_cp_seq *seq, int kv, stw_cp_chunk chunk) {
    chunk.count = stw_clamp_i64(seq->used[kv] - chunk.first, 0, chunk.count);
    return chunk;
}

static int64_t triangle(int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; }

/* Pairs (i, j) of 0 <= i < rows and 0 <= j < keys with j - i <= most: the sum over i of i + most + 1, cut to 0..keys.
 * */
static int64_t pairs_below(int64_t rows, int64_t keys, int64_t most) {
    int64_t first = stw_clamp_i64(most, -rows - 1, keys) + 1;
    return triangle(first + rows - 1) - triangle(first - 1) - triangle(first + rows - 1 - keys) +
           triangle(first - 1 - keys);
}

int64_t stw_cp_pairs(const stw_cp_seq *seq, stw_cp_chunk q, stw_cp_chunk k) {
    int64_t shift = q.first - k.first;
    if (!q.count || !k.count) return 0;
    return seq->batch *
           (pairs_below(q.count, k.count, seq->high + shift) - pairs_below(q.count, k.count, seq->low + shift - 1));
}

int stw_cp_sees(const stw_cp_seq *seq, stw_cp_chunk q, stw_cp_chunk k) {
    int64_t least = k.first - (q.first + q.count - 1), most = k.first + k.count - 1 - q.first;
    return seq->batch && q.count && k.count && seq->low <= seq->high && least <= seq->high && most >= seq->low;
}

stw_status stw_cp_shard(stw_cp_order order, int64_t rows, int32_t rank, int32_t size, int64_t first_out[2],
                        int64_t count_out[2]) {
    if (order != STW_CP_CONTIGUOUS && order != STW_CP_ZIGZAG)
        return stw_fail(STW_E_INVALID, "cp_shard: order %d is none of contiguous 1, zigzag 2", (int)order);
    if (rows < 0 || rows > INT32_MAX)
        return stw_fail(STW_E_INVALID, "cp_shard: rows %lld is not in 0..2147483647", (long long)rows);
    if (size < 1 || size > STW_CP_SIZE_MAX)
        return stw_fail(STW_E_INVALID, "cp_shard: size %d is not in 1..%d", size, STW_CP_SIZE_MAX);
    if (rank < 0 || rank >= size)
        return stw_fail(STW_E_INVALID, "cp_shard: rank %d is not in 0..%d (size %d)", rank, size - 1, size);
    if (!first_out || !count_out)
        return stw_fail(STW_E_INVALID, "cp_shard: %s is null", first_out ? "count_out" : "first_out");
    for (int at = 0; at < 2; ++at) {
        stw_cp_chunk chunk = stw_cp_chunk_of(order, rows, rank, size, at);
        first_out[at] = chunk.first;
        count_out[at] = chunk.count;
    }
    return STW_OK;
}
