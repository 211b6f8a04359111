/* SPDX-License-Identifier: MIT
 *
 * Bad values behind cu_seqlens, used lengths, offsets and intervals: the CPU backend refuses the call, names the entry,
 * sets the bits of *status_out, and writes nothing else; with status_out null it refuses all the same. */
#include "misuse.h"

#include <stdio.h>
#include <string.h>

typedef struct bad {
    const char *what;
    slot at;
    int wide; /* int64 entries */
    int64_t values[3];
    int32_t bits;
    const char *words[4];
} bad;

#define LIMIT (INT64_C(1) << 40)

/* Correct: cu_seqlens_q 1 5 9 (total 9, max 5), cu_seqlens_kv 0 7 12 (total 12, max 7), used 3 4 and 6 0. */
static const bad rows[] = {
    {"a negative start", SLOT_cu_seqlens_q, 0, {-1, 4, 9}, STW_DATA_CU_SEQLENS_Q, {"cu_seqlens_q[0]", "-1"}},
    {"a decreasing start", SLOT_cu_seqlens_q, 0, {4, 3, 7}, STW_DATA_CU_SEQLENS_Q, {"cu_seqlens_q[1]", "3"}},
    {"a decreasing end", SLOT_cu_seqlens_q, 0, {1, 5, 4}, STW_DATA_CU_SEQLENS_Q, {"cu_seqlens_q[2]", "4"}},
    {"an end above total_q", SLOT_cu_seqlens_q, 0, {1, 5, 10}, STW_DATA_CU_SEQLENS_Q, {"cu_seqlens_q[2]", "10", "9"}},
    {"a sequence above max_seq_q",
     SLOT_cu_seqlens_q,
     0,
     {1, 7, 9},
     STW_DATA_CU_SEQLENS_Q,
     {"cu_seqlens_q[1]", "7", "5"}},
    {"the largest int",
     SLOT_cu_seqlens_q,
     0,
     {0, 0, INT32_MAX},
     STW_DATA_CU_SEQLENS_Q,
     {"cu_seqlens_q[2]", "2147483647"}},
    {"the smallest int",
     SLOT_cu_seqlens_q,
     0,
     {INT32_MAX, INT32_MIN, 9},
     STW_DATA_CU_SEQLENS_Q,
     {"cu_seqlens_q[0]", "2147483647"}},
    {"a negative start", SLOT_cu_seqlens_kv, 0, {-3, 4, 9}, STW_DATA_CU_SEQLENS_KV, {"cu_seqlens_kv[0]", "-3"}},
    {"a decreasing end", SLOT_cu_seqlens_kv, 0, {0, 7, 6}, STW_DATA_CU_SEQLENS_KV, {"cu_seqlens_kv[2]", "6"}},
    {"an end above total_kv",
     SLOT_cu_seqlens_kv,
     0,
     {6, 7, 13},
     STW_DATA_CU_SEQLENS_KV,
     {"cu_seqlens_kv[2]", "13", "12"}},
    {"a sequence above max_seq_kv",
     SLOT_cu_seqlens_kv,
     0,
     {0, 8, 12},
     STW_DATA_CU_SEQLENS_KV,
     {"cu_seqlens_kv[1]", "8", "7"}},
    {"a negative length", SLOT_used_q, 0, {3, -1, 0}, STW_DATA_USED_Q, {"used_q[1]", "-1"}},
    {"a length above the sequence's", SLOT_used_q, 0, {5, 4, 0}, STW_DATA_USED_Q, {"used_q[0]", "5", "4"}},
    {"a negative length", SLOT_used_kv, 0, {INT32_MIN, 0, 0}, STW_DATA_USED_KV, {"used_kv[0]", "-2147483648"}},
    {"a length above the sequence's", SLOT_used_kv, 0, {7, 6, 0}, STW_DATA_USED_KV, {"used_kv[1]", "6", "5"}},
    {"an offset above 2^40", SLOT_q_offsets, 1, {0, LIMIT + 1, 0}, STW_DATA_OFFSETS, {"q_offsets[1]", "1099511627777"}},
    {"an offset below -2^40",
     SLOT_q_offsets,
     1,
     {-LIMIT - 1, 0, 0},
     STW_DATA_OFFSETS,
     {"q_offsets[0]", "-1099511627777"}},
    {"the smallest offset",
     SLOT_k_offsets,
     1,
     {0, INT64_MIN, 0},
     STW_DATA_OFFSETS,
     {"k_offsets[1]", "-9223372036854775808"}},
};

static void put(fixture *f, const bad *row) {
    int32_t *narrow = fixture_at(f, row->at);
    int64_t *wide = fixture_at(f, row->at);
    const int count = row->at == SLOT_cu_seqlens_q || row->at == SLOT_cu_seqlens_kv ? 3 : 2;
    for (int i = 0; i < count; ++i) {
        if (row->wide) wide[i] = row->values[i];
        else narrow[i] = (int32_t)row->values[i];
    }
    memcpy(f->before, f->arena, f->arena_bytes);
}

enum { BACKWARD, FORWARD, MASK, CALLS };
static const char *const functions[CALLS] = {"attn_bwd", "attn_fwd", "dropout_mask"};

static stw_status call(fixture *f, int which, const stw_attn_args *args) {
    void *workspace = fixture_at(f, SLOT_workspace);
    if (which == MASK) return stw_dropout_mask(f->bwd, args, fixture_at(f, SLOT_mask), NULL);
    if (which == FORWARD) return stw_attn_fwd(f->fwd, args, workspace, WORKSPACE_BYTES, NULL);
    return stw_attn_bwd(f->bwd, args, workspace, WORKSPACE_BYTES, NULL);
}

static void point_offsets(fixture *f, stw_attn_args *args) {
    args->q_offsets = fixture_at(f, SLOT_q_offsets);
    args->k_offsets = fixture_at(f, SLOT_k_offsets);
}

static void every_value(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, PACKED);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r) {
        for (int which = 0; which < CALLS; ++which) {
            for (int with_status = 0; with_status < 2; ++with_status) {
                fixture_reset(&f);
                put(&f, &rows[r]);
                stw_attn_args args = f.args;
                point_offsets(&f, &args);
                if (rows[r].at == SLOT_cu_seqlens_q) args.used_q = NULL; /* would be wrong as well */
                if (rows[r].at == SLOT_cu_seqlens_kv) args.used_kv = NULL;
                if (!with_status) args.status_out = NULL;
                char what[80];
                snprintf(what, sizeof what, "%s: %s", rows[r].words[0], rows[r].what);
                text_forget();
                refused(what, call(&f, which, &args), STW_E_INVALID, functions[which], rows[r].words);
                fixture_unchanged(&f, with_status);
                if (with_status && *args.status_out != rows[r].bits)
                    complain("%s: %s: status_out 0x%x instead of 0x%x", functions[which], what,
                             (unsigned)*args.status_out, (unsigned)rows[r].bits);
            }
        }
    }
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* Several values wrong at once: every bit is set. */
static void all_bits(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, PACKED);
    static const bad many[] = {
        {"", SLOT_cu_seqlens_q, 0, {1, 5, 10}, 0, {0}},     {"", SLOT_cu_seqlens_kv, 0, {0, 7, 13}, 0, {0}},
        {"", SLOT_used_q, 0, {-1, 0, 0}, 0, {0}},           {"", SLOT_used_kv, 0, {-1, 0, 0}, 0, {0}},
        {"", SLOT_k_offsets, 1, {0, LIMIT + 1, 0}, 0, {0}},
    };
    for (size_t n = 0; n < sizeof many / sizeof many[0]; ++n) put(&f, &many[n]);
    stw_attn_args args = f.args;
    point_offsets(&f, &args);
    text_forget();
    refused("all wrong", call(&f, BACKWARD, &args), STW_E_INVALID, "attn_bwd", WORDS("cu_seqlens_q[2]"));
    fixture_unchanged(&f, 1);
    assert_int_equal(*args.status_out, STW_DATA_CU_SEQLENS_Q | STW_DATA_CU_SEQLENS_KV | STW_DATA_USED_Q |
                                           STW_DATA_USED_KV | STW_DATA_OFFSETS);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* Dense problems have used lengths too. */
static void dense_used_lengths(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    static const bad dense[] = {
        {"", SLOT_used_q, 0, {3, 6, 0}, STW_DATA_USED_Q, {"used_q[1]", "6", "5"}},
        {"", SLOT_used_kv, 0, {8, 0, 0}, STW_DATA_USED_KV, {"used_kv[0]", "8", "7"}},
    };
    for (int n = 0; n < 2; ++n) {
        fixture_reset(&f);
        put(&f, &dense[n]);
        text_forget();
        refused(dense[n].words[0], call(&f, BACKWARD, &f.args), STW_E_INVALID, "attn_bwd", dense[n].words);
        fixture_unchanged(&f, 1);
        assert_int_equal(*f.args.status_out, dense[n].bits);
    }
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* Bounds of the keys in use: row positions, so that an offset of the sequence leaves them without an upper limit. */
static void bounds_of_intervals(void **state) {
    (void)state;
    static const struct {
        int64_t batch, head, key, bound; /* sequence 0 has a q offset of 2, sequence 1 none; used keys: 6, 0 */
        int32_t value;
        int refused;
        const char *words[6];
    } bounds[] = {
        {0, 0, 0, 0, -1, 1, {"intervals", "bound 0", "key 0", "sequence 0", "-1"}},
        {0, 1, 5, 3, INT32_MIN, 1, {"intervals", "bound 3", "key 5", "head 1", "-2147483648"}},
        {0, 1, 5, 3, INT32_MAX, 0, {0}},
        {0, 1, 6, 3, -1, 0, {0}}, /* a key that is not in use */
        {1, 0, 0, 2, 6, 1, {"intervals", "bound 2", "sequence 1", "6", "0..5"}},
        {1, 1, 3, 1, 5, 0, {0}},
    };
    fixture f;
    fixture_open(&f, FULL);
    for (size_t n = 0; n < sizeof bounds / sizeof bounds[0]; ++n)
        for (int which = 0; which < MASK; ++which) {
            fixture_reset(&f);
            static const int32_t used_kv[2] = {6, 7};
            memcpy(fixture_at(&f, SLOT_used_kv), used_kv, sizeof used_kv);
            const stw_interval_strides *s = &f.desc.intervals;
            const int64_t at = bounds[n].batch * s->batch + bounds[n].head * s->head + bounds[n].key * s->key;
            ((int32_t *)fixture_at(&f, SLOT_intervals))[at + bounds[n].bound * s->bound] = bounds[n].value;
            memcpy(f.before, f.arena, f.arena_bytes);
            text_forget();
            const stw_status got = call(&f, which, &f.args);
            if (!bounds[n].refused) {
                assert_int_equal(got, STW_OK);
                assert_int_equal(*f.args.status_out, 0);
                continue;
            }
            refused("a bound", got, STW_E_INVALID, functions[which], bounds[n].words);
            fixture_unchanged(&f, 1);
            assert_int_equal(*f.args.status_out, STW_DATA_INTERVALS);
        }
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value),
        cmocka_unit_test(all_bits),
        cmocka_unit_test(dense_used_lengths),
        cmocka_unit_test(bounds_of_intervals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
