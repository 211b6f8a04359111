/* SPDX-License-Identifier: MIT
 *
 * What must be accepted: the edges of every documented range, empty problems, null tensors of no extent,
 * interleaved QKV and dQKV, a given delta without out, newer and older structs. */
#include "misuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void plans(fixture *f, const stw_attn_desc *desc, const char *what) {
    stw_plan *out = NULL;
    if (stw_attn_bwd_plan(f->context, desc, &out)) complain("%s: %s", what, stw_last_error());
    stw_plan_destroy(out);
    out = NULL;
    if (stw_attn_fwd_plan(f->context, desc, &out)) complain("%s: %s", what, stw_last_error());
    stw_plan_destroy(out);
}

static const struct {
    const char *what;
    base from;
    set sets[4];
} edges[] = {
    {"batch 0", DENSE, {SET(batch, 0)}},
    {"max_seq_q 0", DENSE, {SET(max_seq_q, 0)}},
    {"max_seq_kv 0", FULL, {SET(max_seq_kv, 0)}},
    {"everything 0", FULL, {SET(max_seq_kv, 0), SET(max_seq_q, 0), SET(batch, 0)}},
    {"scale 0 with its flag", DENSE, {SET_FLAG(STW_ATTN_HAS_SCALE)}},
    {"a negative scale", FULL, {SET_REAL(scale, -0.5)}},
    {"windows of 0 with their flags", DENSE, {SET_FLAG(STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT)}},
    {"wide windows", FULL, {SET(window_left, INT64_C(1) << 40), SET(window_right, INT64_C(1) << 40)}},
    {"shift 0 with its flag", DENSE, {SET_FLAG(STW_ATTN_HAS_SHIFT)}},
    {"shift of 2^40", FULL, {SET(diagonal_shift, INT64_C(1) << 40)}},
    {"shift of -2^40", FULL, {SET(diagonal_shift, -(INT64_C(1) << 40))}},
    {"p just below 1", FULL, {SET_REAL(dropout_p, 0.999999999)}},
    {"the smallest p", FULL, {SET_REAL(dropout_p, 4.9e-324)}},
    {"softcap off", FULL, {SET_REAL(softcap, 0)}},
    {"slopes by batch", FULL, {SET(alibi_stride_batch, 4)}},
    {"slopes by batch with a gap", FULL, {SET(alibi_stride_batch, 9)}},
    {"ALiBi by column", FULL, {SET_FLAG(STW_ATTN_ALIBI_COLUMN)}},
    {"one kv head", FULL, {SET(heads_kv, 1)}},
    {"a shard", FULL, {SET(batch_offset, 3), SET(head_offset, 4), SET(heads_total, 8)}},
    {"deterministic", FULL, {SET(deterministic, STW_DETERMINISTIC_ON)}},
    {"causal top-left", DENSE, {SET(mask, STW_MASK_CAUSAL_TOP_LEFT)}},
    {"causal bottom-right", PACKED, {SET(mask, STW_MASK_CAUSAL_BOTTOM_RIGHT)}},
    {"f32 accumulation", DENSE, {SET(accumulate, STW_OUT_DQ | STW_OUT_DV)}},
    {"f32 gradients of f16, accumulated", HALF, {SET(dk_dtype, STW_F32), SET(accumulate, STW_OUT_DK)}},
    {"f64", FULL, {SET(dtype, STW_F64), SET(bias_dtype, STW_F64)}},
    {"f64, scale and softcap",
     FULL,
     {SET(dtype, STW_F64), SET(bias_dtype, STW_F64), SET_REAL(scale_f64, 1e-300), SET_REAL(softcap_f64, 1e300)}},
    {"f64 accumulation", DENSE, {SET(dtype, STW_F64), SET(accumulate, STW_OUT_DQ | STW_OUT_DV)}},
    {"one output", DENSE, {SET(outputs, STW_OUT_DV)}},
    {"only dbias", FULL, {SET(outputs, STW_OUT_DBIAS)}},
    {"a mask of bytes", FULL, {SET(bias_dtype, STW_U8), SET(outputs, STW_OUT_DQ | STW_OUT_DSINK)}},
    {"a mask of bytes of f16", HALF, {SET(bias_dtype, STW_U8)}},
    {"flash2 map", FULL, {SET(dropout_map, STW_DROPOUT_FLASH2)}},
    {"mem_eff map", FULL, {SET(dropout_map, STW_DROPOUT_MEM_EFF)}},
};

static void edges_of_the_ranges(void **state) {
    (void)state;
    fixture f[BASE_COUNT];
    for (int b = 0; b < BASE_COUNT; ++b) fixture_open(&f[b], (base)b);
    for (size_t n = 0; n < sizeof edges / sizeof edges[0]; ++n) {
        stw_attn_desc desc = f[edges[n].from].desc;
        apply(&desc, edges[n].sets, 4);
        plans(&f[edges[n].from], &desc, edges[n].what);
    }
    static const int64_t head_dims[] = {1, 3, 64, 255, 256};
    for (int n = 0; n < 25; ++n) {
        stw_attn_desc desc = f[DENSE].desc;
        desc.head_dim_qk = head_dims[n / 5];
        desc.head_dim_v = head_dims[n % 5];
        assert_int_equal(stw_layout_bhsd(&desc), STW_OK);
        plans(&f[DENSE], &desc, "head dims");
    }
    no_complaints();
    for (int b = 0; b < BASE_COUNT; ++b) fixture_close(&f[b]);
}

/* Broadcast over an extent of 1 is no broadcast: any stride will do, on every tensor. */
static void strides_of_single_elements(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_attn_desc desc = f.desc;
    desc.batch = desc.heads_q = desc.heads_kv = desc.max_seq_q = desc.max_seq_kv = 1;
    desc.head_dim_qk = desc.head_dim_v = 1;
    const stw_attn_strides zero = {0, 0, 0}, large = {INT64_MAX, INT64_MAX, INT64_MAX};
    desc.q = desc.k = desc.v = desc.out = desc.dout = desc.dq = desc.dk = desc.dv = desc.lse = zero;
    plans(&f, &desc, "strides 0 over extents of 1");
    desc.q = desc.k = desc.v = desc.out = desc.dout = desc.dq = desc.dk = desc.dv = desc.lse = large;
    plans(&f, &desc, "large strides over extents of 1");
    no_complaints();
    fixture_close(&f);
}

/* Plans and runs; a complaint when either refuses. */
static void runs(fixture *f, const stw_attn_desc *desc, const stw_attn_args *args, const char *what) {
    stw_plan *plan = NULL;
    if (stw_attn_bwd_plan(f->context, desc, &plan)) {
        complain("%s: %s", what, stw_last_error());
        return;
    }
    const size_t need = stw_plan_workspace_size(plan);
    assert_true(need <= WORKSPACE_BYTES);
    void *workspace = need ? fixture_at(f, SLOT_workspace) : NULL;
    if (stw_attn_bwd(plan, args, workspace, need, NULL)) complain("%s: %s", what, stw_last_error());
    stw_plan_destroy(plan);
}

static int all_zero(const void *memory, size_t bytes) {
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; ++i)
        if (at[i]) return 0;
    return 1;
}

/* Tensors of no elements may be null; gradients of what is not empty are zeros. */
static void empty_problems(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_attn_desc desc = f.desc;
    stw_attn_args args = STW_INIT(stw_attn_args);
    desc.batch = 0;
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    runs(&f, &desc, &args, "B = 0 with null tensors");

    desc = f.desc;
    desc.max_seq_q = 0;
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    args = f.args;
    args.q = args.dout = args.dq = args.out = NULL;
    args.lse = NULL;
    runs(&f, &desc, &args, "Sq = 0 with null q, out, dout, lse, dq");
    assert_true(all_zero(args.dk, 2 * 7 * 2 * 8 * 4));
    assert_true(all_zero(args.dv, 2 * 7 * 2 * 4 * 4));

    fixture_reset(&f);
    desc = f.desc;
    desc.max_seq_kv = 0;
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    args = f.args;
    args.k = args.v = args.dk = args.dv = NULL;
    runs(&f, &desc, &args, "Sk = 0 with null k, v, dk, dv");
    assert_true(all_zero(args.dq, 2 * 5 * 4 * 8 * 4));
    no_complaints();
    fixture_close(&f);
}

/* Packs without rows: of classes that say so, and of calls of any class, whose tensors are null then. Nothing
 * of the side is written, and gradients of the other side are zeros. */
static void packs_without_rows(void **state) {
    (void)state;
    static const int32_t zeros[3] = {0, 0, 0};
    for (int which = 0; which < 12; ++which) {
        const int no_q = which % 3 != 1, no_kv = which % 3 != 0, of_class = which / 3 % 2, local = which >= 6;
        fixture f;
        fixture_open(&f, PACKED);
        stw_attn_desc desc = f.desc;
        stw_attn_args args = f.args;
        desc.flags |= STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV | STW_ATTN_DLSE | STW_ATTN_WRITE_DELTA;
        if (of_class && no_q) desc.total_q = 0;
        if (of_class && no_kv) desc.total_kv = 0;
        assert_int_equal(stw_layout_thd(&desc), STW_OK);
        if (local) desc.lse = desc.dlse = desc.delta = (stw_attn_strides){4 * 5, 5, 1};
        args.dlse = fixture_at(&f, SLOT_dlse);
        args.delta = fixture_at(&f, SLOT_delta);
        args.used_q = args.used_kv = no_q || no_kv ? zeros : args.used_q;
        if (no_q) {
            args.q = args.dout = args.out = args.dq = NULL;
            args.cu_seqlens_q = zeros;
            if (!local) args.lse = args.delta = NULL, args.dlse = NULL;
        }
        if (no_kv) {
            args.k = args.v = args.dk = args.dv = NULL;
            args.cu_seqlens_kv = zeros;
        }
        runs(&f, &desc, &args, "a pack without rows");
        const size_t q_bytes = 9 * 4 * 8 * 4, k_bytes = 12 * 2 * 8 * 4;
        if (!no_q && !all_zero((float *)args.dq + 4 * 8, q_bytes - 4 * 8 * 4)) complain("%d: dq", which);
        if (!no_kv && !all_zero(args.dk, k_bytes)) complain("%d: dk", which);
        if (!no_kv && !all_zero(args.dv, k_bytes / 2)) complain("%d: dv", which);
        if (*args.status_out) complain("%d: status_out", which);
        args.status_out = NULL;
        if (no_q) { /* one of them is given, and offsets that reach further */
            args.q = f.args.q;
            stw_plan *plan = NULL;
            assert_int_equal(stw_attn_bwd_plan(f.context, &desc, &plan), STW_OK);
            const stw_status status = stw_attn_bwd(plan, &args, fixture_at(&f, SLOT_workspace), WORKSPACE_BYTES, NULL);
            if (of_class && status) complain("%d: a pointer that no one reads: %s", which, stw_last_error());
            if (!of_class) refused("q beside null tensors", status, STW_E_INVALID, "attn_bwd", WORDS("out", "null"));
            args.q = NULL;
            args.cu_seqlens_q = f.args.cu_seqlens_q;
            refused("offsets of rows", stw_attn_bwd(plan, &args, fixture_at(&f, SLOT_workspace), WORKSPACE_BYTES, NULL),
                    STW_E_INVALID, "attn_bwd", WORDS("cu_seqlens_q[0]", "0..0"));
            args.cu_seqlens_q = NULL;
            refused("no offsets", stw_attn_bwd(plan, &args, fixture_at(&f, SLOT_workspace), WORKSPACE_BYTES, NULL),
                    STW_E_INVALID, "attn_bwd", WORDS("cu_seqlens_q", "null"));
            stw_plan_destroy(plan);
        }
        no_complaints();
        fixture_close(&f);
    }
}

/* With GIVEN_DELTA, out is not read: null gives the same gradients as the delta of the same problem. */
static void given_delta_without_out(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_attn_desc desc = f.desc;
    desc.flags |= STW_ATTN_WRITE_DELTA;
    stw_attn_args args = f.args;
    args.delta = fixture_at(&f, SLOT_delta);
    runs(&f, &desc, &args, "WRITE_DELTA");
    desc.flags = STW_ATTN_GIVEN_DELTA;
    args.out = NULL;
    memset(args.dq, PATTERN, SLOT_BYTES);
    memset(args.dk, PATTERN, SLOT_BYTES);
    runs(&f, &desc, &args, "GIVEN_DELTA with null out");
    assert_memory_equal(args.dq, f.good + SLOT_dq * SLOT_BYTES, SLOT_BYTES);
    assert_memory_equal(args.dk, f.good + SLOT_dk * SLOT_BYTES, SLOT_BYTES);
    no_complaints();
    fixture_close(&f);
}

/* One buffer [B,S,Hq+2Hk,D] for q, k, v and one for dq, dk, dv; the same numbers as apart. */
static void interleaved_qkv(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    enum { B = 2, S = 5, HQ = 4, HK = 2, D = 8, ROW = (HQ + 2 * HK) * D };
    stw_attn_desc apart = f.desc;
    apart.max_seq_kv = S;
    apart.head_dim_v = D;
    assert_int_equal(stw_layout_bshd(&apart), STW_OK);
    runs(&f, &apart, &f.args, "apart");

    stw_attn_desc desc = apart;
    const stw_attn_strides packed = {S * ROW, D, ROW};
    desc.q = desc.k = desc.v = desc.dq = desc.dk = desc.dv = packed;
    float *const in = calloc(B * S * ROW, 4), *const grad = malloc(B * S * ROW * 4);
    memset(grad, PATTERN, B * S * ROW * 4);
    const float *const from[3] = {f.args.q, f.args.k, f.args.v};
    const float *const expect[3] = {f.args.dq, f.args.dk, f.args.dv};
    const int heads[3] = {HQ, HK, HK}, first[3] = {0, HQ * D, (HQ + HK) * D};
    for (int t = 0; t < 3; ++t)
        for (int row = 0; row < B * S; ++row)
            memcpy(in + row * ROW + first[t], from[t] + row * heads[t] * D, (size_t)heads[t] * D * 4);
    stw_attn_args args = f.args;
    args.q = in;
    args.k = in + first[1];
    args.v = in + first[2];
    args.dq = grad;
    args.dk = grad + first[1];
    args.dv = grad + first[2];
    runs(&f, &desc, &args, "interleaved QKV and dQKV");
    for (int t = 0; t < 3; ++t)
        for (int row = 0; row < B * S; ++row)
            assert_memory_equal(grad + row * ROW + first[t], expect[t] + row * heads[t] * D, (size_t)heads[t] * D * 4);
    free(in);
    free(grad);
    no_complaints();
    fixture_close(&f);
}

/* Structs of another version of the header: a zero tail is fine; what is in it is not ours to guess. */
static void structs_of_newer_callers(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    struct {
        stw_attn_args args;
        uint64_t tail[2];
    } newer = {f.args, {0, 0}};
    newer.args.struct_size = sizeof newer;
    runs(&f, &f.desc, &newer.args, "args with a zero tail");
    assert_memory_equal(f.args.dq, f.good + SLOT_dq * SLOT_BYTES, SLOT_BYTES);
    struct {
        stw_context_opts opts;
        uint64_t tail[2];
    } options = {STW_INIT(stw_context_opts), {0, 0}};
    options.opts.struct_size = sizeof options;
    options.opts.backend = STW_BACKEND_CPU;
    options.opts.memory = STW_MEMORY_HOST;
    stw_context *context = NULL;
    assert_int_equal(stw_context_create(&options.opts, &context), STW_OK);
    stw_context_destroy(context);
    no_complaints();
    fixture_close(&f);
}

/* Values at the edge of what a packed call may hold, and null used lengths. */
static void values_at_the_edge(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, PACKED);
    stw_attn_args args = f.args;
    int32_t *cu = fixture_at(&f, SLOT_cu_seqlens_q), *used = fixture_at(&f, SLOT_used_q);
    cu[0] = 4, cu[1] = 4, cu[2] = 9; /* a gap before, an empty sequence, the maximal length, the last row */
    used[0] = 0, used[1] = 5;
    runs(&f, &f.desc, &args, "cu_seqlens at the edges");
    args.used_kv = NULL;
    runs(&f, &f.desc, &args, "used_kv null: full");
    args.q_offset = INT64_C(1) << 40;
    args.k_offset = -(INT64_C(1) << 40);
    runs(&f, &f.desc, &args, "offsets of 2^40");
    args.q_offsets = args.k_offsets = NULL;
    args.status_out = NULL;
    runs(&f, &f.desc, &args, "status_out null");
    args = f.args;
    int32_t *status_out = args.status_out;
    *status_out = 77;
    runs(&f, &f.desc, &args, "status_out");
    assert_int_equal(*status_out, 0);
    no_complaints();
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_of_the_ranges),      cmocka_unit_test(strides_of_single_elements),
        cmocka_unit_test(empty_problems),           cmocka_unit_test(packs_without_rows),
        cmocka_unit_test(given_delta_without_out),  cmocka_unit_test(interleaved_qkv),
        cmocka_unit_test(structs_of_newer_callers), cmocka_unit_test(values_at_the_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
