/* SPDX-License-Identifier: MIT
 *
 * Dropout bits: Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and
 * the three maps from an element's position to its bit (include/sternway/attn_desc.h, stw_dropout_map).
 * The only copy, for host and device; read by the CPU tiles, the reference and the kernels. */
#ifndef STW_COMMON_PHILOX_H
#define STW_COMMON_PHILOX_H

#include "params/attn_seq.h"

typedef struct stw_philox_words {
    uint32_t word[4];
} stw_philox_words;

/* Word k; a leaf whose registers cannot be indexed defines its own. */
#ifndef STW_WORD_OF
#define STW_WORD_OF(words, k) ((words).word[k])
#endif

STW_SHARED_FN stw_philox_words stw_philox4x32(int rounds, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                              uint32_t key0, uint32_t key1) {
    for (int round = 0; round < rounds; ++round) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t next0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0;
        uint32_t next2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)product1;
        c3 = (uint32_t)product0;
        c0 = next0;
        c2 = next2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    stw_philox_words words = {{c0, c1, c2, c3}};
    return words;
}

/* One (batch, head) of a call: seed and offset resolved, global head number, sizes for mem_eff. */
typedef struct stw_dropout_stream {
    uint64_t seed, offset;
    uint64_t head;               /* (b + batch_offset) * heads_total + h + head_offset           */
    int64_t q_offset, kv_offset; /* position of local row 0 in the whole problem (philox)     */
    uint64_t base;               /* mem_eff: number of the head's element (0, 0)                 */
    uint64_t row_stride;         /* mem_eff: the sequence's own rows of keys                     */
} stw_dropout_stream;

STW_SHARED_FN stw_dropout_stream stw_dropout_stream_of(const stw_attn_params *p, int64_t b, int64_t h, stw_seq_span q,
                                                       stw_seq_span kv) {
    stw_dropout_stream s;
    s.seed = p->dropout_seed_ptr ? *p->dropout_seed_ptr : p->dropout_seed;
    s.offset = p->dropout_offset_ptr ? *p->dropout_offset_ptr : p->dropout_offset;
    s.head = (uint64_t)(b + p->batch_offset) * (uint64_t)p->heads_total + (uint64_t)(h + p->head_offset);
    s.q_offset = q.offset;
    s.kv_offset = kv.offset;
    s.base = s.offset; /* packed: PyTorch's forward numbers every head of every sequence from here */
    if (!(p->features & (STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV)))
        s.base += s.head * (uint64_t)p->max_seq_q * (uint64_t)p->max_seq_kv;
    s.row_stride = (uint64_t)kv.rows;
    return s;
}

/* STW_DROPOUT_PHILOX: the words of rows 4*(i/4) .. +3 of key j (positions of the whole problem). */
STW_SHARED_FN stw_philox_words stw_dropout_philox_words(const stw_dropout_stream *s, int64_t i, int64_t j) {
    return stw_philox4x32(10, (uint32_t)((uint64_t)i >> 2), (uint32_t)j, (uint32_t)s->head, (uint32_t)s->offset,
                          (uint32_t)s->seed, (uint32_t)(s->seed >> 32) ^ (uint32_t)(s->offset >> 32));
}

/* curand_uniform: x * 2^-32 + 2^-33 in f32, so that 0 never and 1 sometimes comes out. */
STW_SHARED_FN float stw_dropout_uniform(uint32_t word) {
    return (float)word * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
}

/* 1 = the element of local row i and local key j is kept. */
STW_SHARED_FN int stw_dropout_keep(const stw_attn_params *p, const stw_dropout_stream *s, int64_t i, int64_t j) {
    if (p->dropout_map == STW_DROPOUT_PHILOX) {
        int64_t row = i + s->q_offset;
        stw_philox_words w = stw_dropout_philox_words(s, row, j + s->kv_offset);
        return STW_WORD_OF(w, (uint64_t)row & 3u) >= p->dropout_threshold;
    }
    if (p->dropout_map == STW_DROPOUT_MEM_EFF) {
        uint64_t n = s->base + (uint64_t)i * s->row_stride + (uint64_t)j;
        uint64_t counter = n >> 2;
        stw_philox_words w = stw_philox4x32(10, (uint32_t)counter, (uint32_t)(counter >> 32), 0u, 0u, (uint32_t)s->seed,
                                            (uint32_t)(s->seed >> 32));
        return stw_dropout_uniform(STW_WORD_OF(w, n & 3u)) > (float)p->dropout_p;
    }
    /* STW_DROPOUT_FLASH2: byte 8a+4t+c of a lane's 16 belongs to row lane/4 + 8*(c>>1) and column
     * 16a + 8t + 2*(lane%4) + (c&1) of a 16x32 block; here the other way round. */
    uint32_t row = (uint32_t)(i & 15), column = (uint32_t)(j & 31);
    uint32_t lane = (row & 7u) * 4u + ((column & 7u) >> 1);
    uint32_t byte = (column >> 4) * 8u + ((column >> 3) & 1u) * 4u + (row >> 3) * 2u + (column & 1u);
    uint64_t subsequence = s->offset + s->head * 32u + lane;
    stw_philox_words w =
        stw_philox4x32(7, (uint32_t)subsequence, (uint32_t)(subsequence >> 32), (uint32_t)((uint64_t)i >> 4),
                       (uint32_t)((uint64_t)j >> 5), (uint32_t)s->seed, (uint32_t)(s->seed >> 32));
    uint32_t bits = (STW_WORD_OF(w, byte >> 2) >> (8u * (byte & 3u))) & 0xFFu;
    return bits <= p->dropout_byte;
}

#endif
