/* SPDX-License-Identifier: MIT
 *
 * Philox against the published known answers of Random123 (and against its header where installed), the three
 * dropout maps at elements worked out by hand from these answers, and the oracle's plain maps against those
 * of common/philox.h that the kernels use. */
#include "tools/reference/problem.h"
#include "common/philox.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(__has_include)
#if __has_include(<Random123/philox.h>)
#include <Random123/philox.h>
#define HAVE_RANDOM123 1
#endif
#endif

/* Random123, kat_vectors: counter, key, answer. */
static const struct {
    int rounds;
    uint32_t counter[4], key[2], answer[4];
} known[] = {
    {7, {0, 0, 0, 0}, {0, 0}, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
    {7,
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
    {7,
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
    {10, {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {10,
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {10,
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void test_known_answers(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof known / sizeof *known; ++n) {
        const uint32_t *c = known[n].counter, *k = known[n].key;
        stw_philox_words w = stw_philox4x32(known[n].rounds, c[0], c[1], c[2], c[3], k[0], k[1]);
        assert_memory_equal(w.word, known[n].answer, sizeof w.word);
    }
}

#ifdef HAVE_RANDOM123
static void test_random123_header(void **state) {
    (void)state;
    uint32_t x = 12345;
    for (int n = 0; n < 4096; ++n) {
        philox4x32_ctr_t counter;
        philox4x32_key_t key;
        for (int i = 0; i < 6; ++i) {
            x = x * 1664525u + 1013904223u;
            if (i < 4) counter.v[i] = x ^ x >> 15;
            else key.v[i - 4] = x ^ x >> 13;
        }
        int rounds = n & 1 ? 10 : 7;
        philox4x32_ctr_t expected = philox4x32_R((unsigned)rounds, counter, key);
        stw_philox_words w =
            stw_philox4x32(rounds, counter.v[0], counter.v[1], counter.v[2], counter.v[3], key.v[0], key.v[1]);
        assert_memory_equal(w.word, expected.v, sizeof w.word);
    }
}
#endif

/* A problem of zeros (seed, offset, offsets) large enough for the elements asked for. */
static stw_ref_problem zero_problem(const fixture *f) {
    stw_ref_problem p;
    assert_int_equal(stw_ref_problem_init(&p, &f->desc, &f->args, 1), STW_OK);
    return p;
}

static int keeps(fixture *f, stw_dropout_map map, double dropout_p, int64_t i, int64_t j) {
    f->desc.dropout_map = map;
    f->desc.dropout_p = dropout_p;
    stw_ref_problem p = zero_problem(f);
    stw_ref_side q = stw_ref_side_q(&p, 0), kv = stw_ref_side_kv(&p, 0);
    return stw_ref_keeps(&p, &q, &kv, 0, 0, i, j);
}

/* Element 0 of everything draws from the first known answers; p on both sides of its draw. */
static void test_maps_by_hand(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.max_seq_q = 20;
    f.desc.max_seq_kv = 40;
    fixture_build(&f);
    const uint32_t *words = known[3].answer;
    for (int i = 0; i < 4; ++i) { /* philox: word i%4 of counter 0; mem_eff: word n%4, n = j */
        double at = (double)words[i] * 0x1p-32;
        assert_true(keeps(&f, STW_DROPOUT_PHILOX, at, i, 0));
        assert_false(keeps(&f, STW_DROPOUT_PHILOX, at + 0x1p-32, i, 0));
        assert_true(keeps(&f, STW_DROPOUT_MEM_EFF, at - 0x1p-24, 0, i));
        assert_false(keeps(&f, STW_DROPOUT_MEM_EFF, at + 0x1p-23, 0, i));
    }
    const struct {
        int i, j;
        double byte;
    } bytes[] = {{0, 0, 0x09}, {0, 1, 0xb7}, {8, 0, 0x6f}, {8, 1, 0x5f}, {0, 8, 0x64}, {0, 16, 0x81}, {8, 25, 0x4f}};
    for (size_t n = 0; n < sizeof bytes / sizeof *bytes; ++n) { /* flash2: lane 0 of block (0, 0), 7 rounds */
        double kept = 1 - (bytes[n].byte + 0.5) / 255, dropped = 1 - (bytes[n].byte - 0.5) / 255;
        assert_true(keeps(&f, STW_DROPOUT_FLASH2, kept, bytes[n].i, bytes[n].j));
        assert_false(keeps(&f, STW_DROPOUT_FLASH2, dropped, bytes[n].i, bytes[n].j));
    }
    fixture_free(&f);
}

/* Packed: every sequence and head numbers its elements from the offset, by its own keys. */
static void test_mem_eff_packed(void **state) {
    (void)state;
    const int32_t starts_q[] = {0, 5, 9}, starts_kv[] = {0, 6, 13};
    fixture f = fixture_start();
    f.desc.total_q = 9;
    f.desc.total_kv = 13;
    f.args.cu_seqlens_q = starts_q;
    f.args.cu_seqlens_kv = starts_kv;
    f.desc.dropout_p = 0.5;
    f.desc.dropout_map = STW_DROPOUT_MEM_EFF;
    fixture_build(&f);
    stw_ref_problem p = zero_problem(&f);
    int kept = 0;
    for (int64_t n = 0; n < 24; ++n) {
        stw_ref_side q[] = {stw_ref_side_q(&p, 0), stw_ref_side_q(&p, 1)};
        stw_ref_side kv[] = {stw_ref_side_kv(&p, 0), stw_ref_side_kv(&p, 1)};
        int first = stw_ref_keeps(&p, &q[0], &kv[0], 0, 0, n / 6, n % 6);
        kept += first;
        assert_int_equal(first, stw_ref_keeps(&p, &q[0], &kv[0], 0, 3, n / 6, n % 6));
        assert_int_equal(first, stw_ref_keeps(&p, &q[1], &kv[1], 1, 2, n / 7, n % 7));
    }
    assert_true(kept > 0 && kept < 24);
    fixture_free(&f);
}

/* 1 - 0.6 in f32, times 255, is below 102: 101 is kept, 102 is not (a byte of 102 in a search over elements).
 */
static void test_flash2_f32_threshold(void **state) {
    (void)state;
    fixture f = fixture_start();
    f.desc.max_seq_q = 64;
    f.desc.max_seq_kv = 64;
    f.desc.dropout_p = 0.6;
    f.desc.dropout_map = STW_DROPOUT_FLASH2;
    fixture_build(&f);
    int found[2] = {0, 0};
    for (int64_t e = 0; e < 64 * 64; ++e) {
        int64_t i = e / 64, j = e % 64;
        int below_101 = keeps(&f, STW_DROPOUT_FLASH2, 1 - 100.5 / 255, i, j);
        int below_102 = keeps(&f, STW_DROPOUT_FLASH2, 1 - 101.5 / 255, i, j);
        int below_103 = keeps(&f, STW_DROPOUT_FLASH2, 1 - 102.5 / 255, i, j);
        int byte = !below_102 && below_103 ? 102 : !below_101 && below_102 ? 101 : -1;
        if (byte < 0) continue;
        assert_int_equal(keeps(&f, STW_DROPOUT_FLASH2, 0.6, i, j), byte == 101);
        found[byte - 101] = 1;
    }
    assert_true(found[0] && found[1]);
    fixture_free(&f);
}

/* What philox.h reads of the parameter block, from the public descriptor. */
static stw_attn_params params_of(const fixture *f) {
    const stw_attn_desc *d = &f->desc;
    stw_attn_params p = {0};
    p.cu_seqlens_q = f->args.cu_seqlens_q;
    p.cu_seqlens_kv = f->args.cu_seqlens_kv;
    p.used_q = f->args.used_q;
    p.used_kv = f->args.used_kv;
    p.q_offsets = f->args.q_offsets;
    p.k_offsets = f->args.k_offsets;
    p.q_offset = f->args.q_offset;
    p.k_offset = f->args.k_offset;
    p.dropout_seed = f->args.dropout_seed;
    p.dropout_seed_ptr = f->args.dropout_seed_ptr;
    p.dropout_offset = f->args.dropout_offset;
    p.dropout_offset_ptr = f->args.dropout_offset_ptr;
    p.max_seq_q = d->max_seq_q;
    p.max_seq_kv = d->max_seq_kv;
    p.total_q = d->total_q;
    p.total_kv = d->total_kv;
    p.batch_offset = d->batch_offset;
    p.head_offset = d->head_offset;
    p.heads_total = d->heads_total ? d->heads_total : d->heads_q;
    p.dropout_p = d->dropout_p;
    p.dropout_threshold = (uint32_t)floor(d->dropout_p * 0x1p32);
    p.dropout_byte = (uint32_t)floor((double)(1.0f - (float)d->dropout_p) * 255);
    p.dropout_map = (uint32_t)d->dropout_map;
    p.features = (d->total_q ? STW_FEAT_PACKED_Q : 0) | (d->total_kv ? STW_FEAT_PACKED_KV : 0);
    return p;
}

static void test_maps_agree_with_the_kernels(void **state) {
    (void)state;
    for (int n = 0; n < setups_count * 3; ++n) {
        fixture f = fixture_start();
        f.desc.max_seq_q = 37;
        f.desc.max_seq_kv = 43;
        f.args.dropout_seed = UINT64_C(0xA5A5000012345678) + (uint64_t)n;
        f.args.dropout_offset = UINT64_C(0xFFFFFFFFFFFFFF00);
        setups[n / 3].apply(&f);
        f.desc.dropout_map = (stw_dropout_map)(n % 3);
        f.desc.dropout_p = 0.05 + 0.3 * (n % 3);
        fixture_build(&f);
        stw_ref_problem p = zero_problem(&f);
        stw_attn_params params = params_of(&f);
        int64_t kept = 0, pairs = 0;
        for (int64_t bh = 0; bh < f.desc.batch * f.desc.heads_q; ++bh) {
            int64_t b = bh / f.desc.heads_q, h = bh % f.desc.heads_q;
            stw_ref_side q = stw_ref_side_q(&p, b), kv = stw_ref_side_kv(&p, b);
            stw_dropout_stream stream =
                stw_dropout_stream_of(&params, b, h, stw_seq_q(&params, b), stw_seq_kv(&params, b));
            for (int64_t e = 0; e < q.used * kv.used; ++e) {
                int keep = stw_ref_keeps(&p, &q, &kv, b, h, e / kv.used, e % kv.used);
                assert_int_equal(keep, stw_dropout_keep(&params, &stream, e / kv.used, e % kv.used));
                kept += keep;
                pairs++;
            }
        }
        /* six standard deviations, and a byte's granularity for flash2 */
        double share = (double)kept / (double)pairs, spread = 6 * 0.5 / sqrt((double)pairs) + 1.0 / 128;
        assert_true(fabs(share - (1 - f.desc.dropout_p)) < spread);
        fixture_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
#ifdef HAVE_RANDOM123
        cmocka_unit_test(test_random123_header),
#endif
        cmocka_unit_test(test_maps_by_hand),     cmocka_unit_test(test_flash2_f32_threshold),
        cmocka_unit_test(test_mem_eff_packed),   cmocka_unit_test(test_maps_agree_with_the_kernels),
    };
    return cmocka_run_group_tests_name("dropout", tests, NULL, NULL);
}
