/* SPDX-License-Identifier: MIT
 *
 * What the misuse programs share: a small problem on the CPU backend with every tensor in one patterned
 * arena, and checks that a refusal has the documented status, a text that names what it must, and left
 * everything as it was. Written from include/sternway and the documentation alone. */
#ifndef STW_TESTS_MISUSE_H
#define STW_TESTS_MISUSE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sternway/sternway.h"

/* Problems that rows start from. Sizes are odd on purpose: B 2, Hq 4, Hk 2, Sq 5, Sk 7, D 8, Dv 4. */
typedef enum base {
    DENSE,  /* f32 [B,S,H,D], nothing else                                                          */
    FULL,   /* f32, every feature that can be on at once, every output                              */
    PACKED, /* f32 [T,H,D], both sides, used lengths                                                */
    HALF,   /* f16 dense with bf16-sized rows: what needs a 2-byte element                          */
    BASE_COUNT
} base;

typedef enum slot {
    SLOT_q,
    SLOT_k,
    SLOT_v,
    SLOT_out,
    SLOT_dout,
    SLOT_lse,
    SLOT_dlse,
    SLOT_delta,
    SLOT_bias,
    SLOT_alibi_slopes,
    SLOT_sink,
    SLOT_cu_seqlens_q,
    SLOT_cu_seqlens_kv,
    SLOT_used_q,
    SLOT_used_kv,
    SLOT_q_offsets,
    SLOT_k_offsets,
    SLOT_dropout_seed_ptr,
    SLOT_dropout_offset_ptr,
    SLOT_intervals,
    SLOT_block_mask,
    SLOT_dq,
    SLOT_dk,
    SLOT_dv,
    SLOT_dbias,
    SLOT_dsink,
    SLOT_status_out,
    SLOT_mask,
    SLOT_workspace,
    SLOT_COUNT
} slot;

enum { SLOT_BYTES = 8192, WORKSPACE_BYTES = 1 << 21, PATTERN = 0xA5 };

typedef struct fixture {
    stw_context *context;
    base which;
    stw_attn_desc desc;
    stw_attn_args args;
    stw_plan *bwd, *fwd;
    unsigned char *arena, *before, *good; /* memory; as before the call; as the correct call leaves it */
    size_t arena_bytes;
} fixture;

void fixture_open(fixture *f, base which);
void fixture_close(fixture *f);
void *fixture_at(fixture *f, slot s);

stw_attn_desc base_desc(base which);

/* The arena as before any call. */
void fixture_reset(fixture *f);
/* Nothing in the arena differs from what fixture_reset made, except 4 bytes of status_out when told. */
void fixture_unchanged(fixture *f, int but_status_out);
/* The correct backward call gives, bit for bit, what it gave when the fixture was opened. */
void fixture_still_works(fixture *f);
/* The same on `size` bytes of workspace, `offset` behind a multiple of 256, and nothing else is written. */
void fixture_works_on(fixture *f, size_t offset, size_t size);

/* Makes stw_last_error() stale, so that a text found later was written by the call under test. */
void text_forget(void);
/* The text opens with the function and holds each of the words (up to a NULL), as words: "5" is not in
 * "256". What is wrong is a complaint: printed, counted, and failed on by no_complaints() at the test's end.
 */
void text_names(const char *what, const char *function, const char *const *words);
void refused(const char *what, stw_status got, stw_status expected, const char *function, const char *const *words);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void no_complaints(void);
#define WORDS(...)                                                                                                     \
    (const char *const[]) { __VA_ARGS__, NULL }

/* One assignment to a field of a descriptor or of other plain structs. */
typedef struct set {
    size_t offset;
    int kind;
    int64_t i;
    double d;
} set;

enum { SET_END = 0, SET_I32, SET_U32, SET_I64, SET_U64, SET_F32, SET_F64, SET_OR };

#define FIELD_KIND(type, field)                                                                                        \
    _Generic(((type *)0)->field,                                                                                       \
        int32_t: SET_I32,                                                                                              \
        uint32_t: SET_U32,                                                                                             \
        int64_t: SET_I64,                                                                                              \
        size_t: SET_U64,                                                                                               \
        float: SET_F32,                                                                                                \
        double: SET_F64)
#define SET_IN(type, field, value) {offsetof(type, field), FIELD_KIND(type, field), (int64_t)(value), 0}
#define SET(field, value)          SET_IN(stw_attn_desc, field, value)
#define SET_REAL(field, value)     {offsetof(stw_attn_desc, field), FIELD_KIND(stw_attn_desc, field), 0, value}
#define SET_FLAG(bits)             {offsetof(stw_attn_desc, flags), SET_OR, bits, 0}

void apply(void *object, const set *sets, size_t count);

#endif
