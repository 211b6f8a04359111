/* SPDX-License-Identifier: MIT
 *
 * The fixture and the checks of misuse.h. */
#include "misuse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

stw_attn_desc base_desc(base which) {
    stw_attn_desc d = STW_INIT(stw_attn_desc);
    d.dtype = which == HALF ? STW_F16 : STW_F32;
    d.batch = 2;
    d.heads_q = 4;
    d.heads_kv = 2;
    d.head_dim_qk = 8;
    d.head_dim_v = 4;
    d.max_seq_q = 5;
    d.max_seq_kv = 7;
    if (which == FULL) {
        d.bias_dtype = STW_F32;
        d.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS | STW_OUT_DSINK;
        d.flags = STW_ATTN_HAS_SCALE | STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT | STW_ATTN_HAS_SHIFT |
                  STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_WRITE_DELTA | STW_ATTN_ALIBI | STW_ATTN_SINK | STW_ATTN_DLSE |
                  STW_ATTN_BLOCK_MASK;
        d.interval_form = STW_INTERVALS_TWO_RANGES;
        d.window_left = 3;
        d.window_right = 2;
        d.diagonal_shift = 1;
        d.scale = 0.5f;
        d.softcap = 20.0f;
        d.dropout_p = 0.25;
    }
    if (which == PACKED) {
        d.total_q = 9;
        d.total_kv = 12;
        d.flags = STW_ATTN_HAS_USED_LENGTHS;
        assert_int_equal(stw_layout_thd(&d), STW_OK);
    } else {
        assert_int_equal(stw_layout_bshd(&d), STW_OK);
    }
    if (which == FULL) d.intervals = (stw_interval_strides){56, 28, 4, 1}; /* of each key head */
    return d;
}

void *fixture_at(fixture *f, slot s) { return f->arena + (size_t)s * SLOT_BYTES; }

static void fill_inputs(fixture *f) {
    for (int s = SLOT_q; s <= SLOT_sink; ++s) {
        if (f->which == HALF && s != SLOT_lse) continue; /* the pattern is a small number in f16 */
        float *x = fixture_at(f, (slot)s);
        for (int i = 0; i < 1024; ++i) x[i] = (float)((i * 37 + s * 11) % 17 - 8) / 8.0f;
    }
    float *lse = fixture_at(f, SLOT_lse); /* above any score of the rows: P below 1 */
    for (int i = 0; i < 1024; ++i) lse[i] = 9.0f + (float)(i % 5) / 4.0f;
    static const int32_t cu_q[3] = {1, 5, 9}, cu_kv[3] = {0, 7, 12}, used_q[2] = {3, 4}, used_kv[2] = {6, 0};
    memcpy(fixture_at(f, SLOT_cu_seqlens_q), cu_q, sizeof cu_q);
    memcpy(fixture_at(f, SLOT_cu_seqlens_kv), cu_kv, sizeof cu_kv);
    memcpy(fixture_at(f, SLOT_used_q), used_q, sizeof used_q);
    memcpy(fixture_at(f, SLOT_used_kv), used_kv, sizeof used_kv);
    static const int64_t q_offsets[2] = {2, 0}, k_offsets[2] = {-1, 3};
    memcpy(fixture_at(f, SLOT_q_offsets), q_offsets, sizeof q_offsets);
    memcpy(fixture_at(f, SLOT_k_offsets), k_offsets, sizeof k_offsets);
    static const int32_t bounds[4] = {4, 5, 1, 2};
    for (size_t key = 0; key < 2 * 2 * 7; ++key)
        memcpy((char *)fixture_at(f, SLOT_intervals) + key * sizeof bounds, bounds, sizeof bounds);
    static const uint64_t seed = 12345, offset = 67;
    memcpy(fixture_at(f, SLOT_dropout_seed_ptr), &seed, sizeof seed);
    memcpy(fixture_at(f, SLOT_dropout_offset_ptr), &offset, sizeof offset);
}

static void point_args(fixture *f) {
    stw_attn_args *a = &f->args;
    *a = STW_INIT(stw_attn_args);
#define POINT(field) a->field = fixture_at(f, SLOT_##field)
    POINT(q), POINT(k), POINT(v), POINT(out), POINT(dout), POINT(lse), POINT(dq), POINT(dk), POINT(dv);
    POINT(status_out);
    if (f->which == FULL) {
        POINT(dlse), POINT(delta), POINT(bias), POINT(alibi_slopes), POINT(sink), POINT(dbias), POINT(dsink);
        POINT(intervals), POINT(block_mask);
        POINT(q_offsets), POINT(k_offsets), POINT(dropout_seed_ptr), POINT(dropout_offset_ptr);
    }
    if (f->which == PACKED) POINT(cu_seqlens_q), POINT(cu_seqlens_kv);
    if (f->desc.flags & STW_ATTN_HAS_USED_LENGTHS) POINT(used_q), POINT(used_kv);
#undef POINT
}

void fixture_reset(fixture *f) {
    memset(f->arena, PATTERN, f->arena_bytes);
    fill_inputs(f);
    memcpy(f->before, f->arena, f->arena_bytes);
}

static void run_good(fixture *f, size_t offset, size_t size) {
    fixture_reset(f);
    assert_true(offset + size <= WORKSPACE_BYTES);
    char *at = (char *)fixture_at(f, SLOT_workspace) + offset;
    assert_int_equal(stw_attn_bwd(f->bwd, &f->args, size ? at : NULL, size, NULL), STW_OK);
    memset(at, PATTERN, size);
}

void fixture_open(fixture *f, base which) {
    memset(f, 0, sizeof *f);
    f->which = which;
    f->arena_bytes = (size_t)SLOT_workspace * SLOT_BYTES + WORKSPACE_BYTES;
    f->arena = aligned_alloc(4096, f->arena_bytes);
    f->before = malloc(f->arena_bytes);
    f->good = malloc(f->arena_bytes);
    assert_true(f->arena && f->before && f->good);
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    assert_int_equal(stw_context_create(&opts, &f->context), STW_OK);
    f->desc = base_desc(which);
    if (stw_attn_bwd_plan(f->context, &f->desc, &f->bwd) || stw_attn_fwd_plan(f->context, &f->desc, &f->fwd))
        fail_msg("the correct problem is refused: %s", stw_last_error());
    point_args(f);
    run_good(f, 0, stw_plan_workspace_size(f->bwd));
    memcpy(f->good, f->arena, f->arena_bytes);
    unsigned char pattern[SLOT_BYTES];
    memset(pattern, PATTERN, sizeof pattern);
    assert_memory_not_equal(fixture_at(f, SLOT_dq), pattern, 2 * 4 * 3 * 8 * 2);
    assert_memory_equal(fixture_at(f, SLOT_q), f->before + SLOT_q * SLOT_BYTES, SLOT_BYTES);
    fixture_reset(f);
}

void fixture_close(fixture *f) {
    stw_plan_destroy(f->bwd);
    stw_plan_destroy(f->fwd);
    stw_context_destroy(f->context);
    free(f->arena);
    free(f->before);
    free(f->good);
}

void fixture_unchanged(fixture *f, int but_status_out) {
    const size_t status_at = (size_t)SLOT_status_out * SLOT_BYTES;
    for (size_t i = 0; i < f->arena_bytes; ++i) {
        if (f->arena[i] == f->before[i]) continue;
        if (but_status_out && i >= status_at && i < status_at + 4) continue;
        complain("byte %zu of slot %zu was written by a refused call", i % SLOT_BYTES, i / SLOT_BYTES);
        break;
    }
}

void fixture_works_on(fixture *f, size_t offset, size_t size) {
    run_good(f, offset, size);
    assert_memory_equal(f->arena, f->good, f->arena_bytes);
    fixture_reset(f);
}

void fixture_still_works(fixture *f) { fixture_works_on(f, 0, stw_plan_workspace_size(f->bwd)); }

void text_forget(void) {
    assert_int_equal(stw_devices(NULL, 0, NULL), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "count_out"));
}

static int word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

static int has_word(const char *text, const char *word) {
    const size_t n = strlen(word);
    for (const char *p = strstr(text, word); p; p = strstr(p + 1, word)) {
        const int open = p == text || !word_char(p[-1]) || !word_char(word[0]);
        if (open && (!word_char(p[n]) || !word_char(word[n - 1]))) return 1;
    }
    return 0;
}

static int complaints;

void complain(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprint_error(format, list);
    va_end(list);
    print_error("\n");
    ++complaints;
}

void no_complaints(void) {
    const int count = complaints;
    complaints = 0;
    assert_int_equal(count, 0);
}

void text_names(const char *what, const char *function, const char *const *words) {
    const char *text = stw_last_error();
    if (strncmp(text, function, strlen(function)) != 0)
        complain("%s: the text does not open with %s: \"%s\"", what, function, text);
    for (; *words; ++words)
        if (!has_word(text, *words)) complain("%s: the text does not name \"%s\": \"%s\"", what, *words, text);
}

void refused(const char *what, stw_status got, stw_status expected, const char *function, const char *const *words) {
    if (got == STW_OK) {
        complain("%s: %s accepts it", what, function);
    } else {
        if (got != expected)
            complain("%s: %s instead of %s: \"%s\"", what, stw_status_name(got), stw_status_name(expected),
                     stw_last_error());
        text_names(what, function, words);
    }
}

void apply(void *object, const set *sets, size_t count) {
    for (size_t n = 0; n < count; ++n) {
        unsigned char *at = (unsigned char *)object + sets[n].offset;
        const int32_t i32 = (int32_t)sets[n].i;
        const uint32_t u32 = (uint32_t)sets[n].i;
        const float f32 = (float)sets[n].d;
        uint32_t bits;
        switch (sets[n].kind) {
        case SET_I32: memcpy(at, &i32, 4); break;
        case SET_U32: memcpy(at, &u32, 4); break;
        case SET_I64:
        case SET_U64: memcpy(at, &sets[n].i, 8); break;
        case SET_F32: memcpy(at, &f32, 4); break;
        case SET_F64: memcpy(at, &sets[n].d, 8); break;
        case SET_OR:
            memcpy(&bits, at, 4);
            bits |= u32;
            memcpy(at, &bits, 4);
            break;
        default: break;
        }
    }
}
