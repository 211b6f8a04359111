/* SPDX-License-Identifier: MIT
 *
 * Jagged descriptors: bytes become a descriptor, mostly small and near what is legal. A plan that is refused
 * says why and leaves plan_out alone; what a plan accepts, the run call accepts, inside the memory that the
 * header gives the tensors; offsets, lengths and bases that are out of range are refused with nothing
 * written. CPU, one thread. */
#include "jagged_tensors.h"

#include <math.h>

static stw_context *context;

static void open_context(void) {
    if (context) return;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    FUZZ_CHECK(!stw_context_create(&opts, &context), "%s", stw_last_error());
}

/* Zero for most inputs: fields that an op does not use must be. */
static int64_t read_rare(reader *r, int64_t low, int span) {
    return read_byte(r) < 245 ? 0 : read_number(r, low, span);
}

static void read_axes(reader *r, stw_jagged_desc *d) {
    d->components = read_number(r, 0, 6);
    d->axis[0].size = read_number(r, 0, 12);
    d->axis[0].total = read_number(r, 0, 40);
    d->outer = d->op == STW_JAGGED_RESHAPE || d->op == STW_JAGGED_ATTENTION ? read_rare(r, 0, 4) : read_number(r, 0, 4);
    if (d->op == STW_JAGGED_MATMUL || d->op == STW_JAGGED_RESHAPE || d->op == STW_JAGGED_ATTENTION)
        d->inner = read_rare(r, 0, 4);
    else d->inner = read_number(r, 0, 25);
    if (d->op == STW_JAGGED_ATTENTION) d->axis[0].size = d->axis[0].total = read_rare(r, 0, 3);
}

static void read_matmul(reader *r, stw_jagged_desc *d) {
    d->ragged_axes = read_byte(r) % 8;
    for (int n = 0; n < 3; ++n) {
        d->axis[n].size = read_number(r, 0, 10);
        d->axis[n].total = d->ragged_axes >> n & 1 ? read_number(r, 0, 30) : read_rare(r, 0, 3);
    }
    const uint8_t storages = read_byte(r), bits = read_byte(r);
    if (storages & 1) d->storage = STW_STORAGE_JAGGED;
    if (storages & 2) d->other_storage = STW_STORAGE_JAGGED;
    if (storages & 4) d->grad_storage = STW_STORAGE_JAGGED;
    d->flags |= (uint32_t)(bits & 7) * STW_JAGGED_X_TRANSPOSED;
    /* bases where two extents are ragged, and sometimes elsewhere */
    const uint32_t two = (d->ragged_axes & 3) == 3 ? 1u : 0u, two_b = (d->ragged_axes & 6) == 6 ? 2u : 0u,
                   two_g = (d->ragged_axes & 5) == 5 ? 4u : 0u;
    const uint32_t bases = (two | two_b | two_g) ^ (bits > 200 ? (uint32_t)(bits >> 3 & 7) : 0u);
    d->flags |= bases * STW_JAGGED_X_BASES;
    if (bases & 1) d->x_elements = (int64_t)((uint64_t)read_number(r, 0, 245) * 4);
    if (bases & 2) d->other_elements = (int64_t)((uint64_t)read_number(r, 0, 245) * 4);
    if (bases & 4) d->grad_elements = (int64_t)((uint64_t)read_number(r, 0, 245) * 4);
    d->dother_dtype = (stw_dtype)(read_byte(r) % 4 ? 0 : read_number(r, 0, 5));
}

static void read_shape(reader *r, int32_t *rank, int64_t shape[STW_JAGGED_RANK_MAX]) {
    static const int64_t extents[] = {1, 2, 3, 4, 6, 1, 2, 0};
    const int count = read_byte(r) % 5 + 1;
    *rank = count;
    for (int n = 0; n < count; ++n) shape[n] = extents[read_byte(r) % 8];
    shape[read_byte(r) % (unsigned)count] = -1;
    if (read_byte(r) > 245) *rank = (int32_t)read_number(r, -1, 12);
    if (read_byte(r) > 245) shape[0] = read_number(r, -3, 5);
}

/* What a norm over the ragged dimension takes: random fields seldom leave weights, their gradients and sizes out. */
static void only_dx(stw_jagged_desc *d) {
    d->dim_size = d->dim_after = 0;
    d->flags &= ~(uint32_t)STW_JAGGED_HAS_GAMMA;
    d->outputs = d->accumulate = 0;
    d->weight_dtype = d->dweight_dtype = d->dbias_dtype = STW_DTYPE_NONE;
}

static void read_dim(reader *r, stw_jagged_desc *d) {
    static const unsigned char divisors[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const int softmax = d->op == STW_JAGGED_SOFTMAX || d->op == STW_JAGGED_LOG_SOFTMAX;
    const int norm = d->op == STW_JAGGED_LAYER_NORM || d->op == STW_JAGGED_RMS_NORM;
    const int along = softmax || d->op == STW_JAGGED_SUM || d->op == STW_JAGGED_SELECT;
    int usual = 0;
    if (along) d->dim = (stw_jagged_dim)read_number(r, 1, d->op == STW_JAGGED_SELECT ? 4 : 3);
    else if (norm) {
        const uint8_t which = read_byte(r);
        d->dim = which % 2 ? STW_DIM_INNER : which % 8 == 6 ? STW_DIM_RAGGED : STW_DIM_NONE;
        usual = which == 6;
    } else d->dim = (stw_jagged_dim)read_rare(r, 0, 6);
    if ((along && d->dim != STW_DIM_RAGGED && d->dim != STW_DIM_COMPONENT) || norm) {
        d->dim_size = divisors[read_byte(r) % 8];
        d->dim_after = divisors[read_byte(r) % 3];
    }
    if (usual) only_dx(d);
    if (read_byte(r) > 240) d->dim_size = read_number(r, -1, 30);
    if (read_byte(r) > 240) d->dim_after = read_number(r, -1, 30);
    d->index = d->op == STW_JAGGED_SELECT ? read_number(r, -3, 6) : read_rare(r, -3, 6);
}

static void read_features(reader *r, stw_jagged_desc *d) {
    const int any = d->op == STW_JAGGED_SUM || d->op == STW_JAGGED_SELECT || d->op == STW_JAGGED_THRESHOLD ||
                    (d->op >= STW_JAGGED_RESHAPE && d->op <= STW_JAGGED_FROM_PADDED);
    const int norm = d->op == STW_JAGGED_LAYER_NORM || d->op == STW_JAGGED_RMS_NORM;
    const uint8_t bits = read_byte(r);
    d->dtype = (stw_dtype)read_number(r, 1, any ? 9 : 3);
    d->index_dtype = bits & 1 ? STW_I32 : STW_I64;
    if (bits > 252) d->index_dtype = (stw_dtype)read_number(r, 0, 10);
    if ((bits & 6) == 6) d->dx_dtype = (stw_dtype)read_number(r, 0, 5);
    if (norm && bits & 8) d->flags |= STW_JAGGED_HAS_GAMMA;
    if (bits & 16) d->flags |= STW_JAGGED_HAS_USED;
    if ((bits & 48) == 32) d->flags |= STW_JAGGED_FULL;
    if (read_byte(r) > 250) d->flags ^= 1u << read_byte(r) % 32;
    if (d->op == STW_JAGGED_LINEAR || norm) {
        d->weight_dtype = (stw_dtype)(read_byte(r) % 4 ? 0 : read_number(r, 0, 5));
        d->dweight_dtype = (stw_dtype)(read_byte(r) % 2 ? 0 : read_number(r, 0, 5));
        d->dbias_dtype = (stw_dtype)(read_byte(r) % 2 ? 0 : read_number(r, 0, 5));
    }
    d->outputs = read_byte(r) % 2 ? 0 : read_byte(r) % 16u;
    if (read_byte(r) > 230) d->outputs |= 1u << read_byte(r) % 32;
    d->accumulate = read_byte(r) % 3 ? 0 : read_byte(r) % 16u;
    if (bits & 64) d->storage = STW_STORAGE_JAGGED;
    if (bits & 128 && d->op == STW_JAGGED_RESHAPE) d->grad_storage = STW_STORAGE_JAGGED;
    d->out_features = d->op == STW_JAGGED_LINEAR ? read_number(r, 0, 12) : read_rare(r, 0, 3);
    d->padded =
        d->op == STW_JAGGED_TO_PADDED || d->op == STW_JAGGED_FROM_PADDED ? read_number(r, 0, 20) : read_rare(r, 0, 3);
    if (d->op == STW_JAGGED_THRESHOLD) d->threshold = (double)(int8_t)read_byte(r) / 8;
    if (read_byte(r) > 250) d->threshold = (double)NAN;
}

static void read_attention(reader *r, stw_jagged_desc *d, stw_attn_desc *attn) {
    *attn = STW_INIT(stw_attn_desc);
    d->dtype = (stw_dtype)read_rare(r, 0, 4);
    d->flags = (uint32_t)read_rare(r, 0, 4);
    d->outputs = d->accumulate = 0;
    d->storage = STW_STORAGE_COMPONENTS;
    d->dx_dtype = STW_DTYPE_NONE;
    attn->dtype = (stw_dtype)read_number(r, 1, 3);
    attn->batch = read_byte(r) < 245 ? d->components : read_number(r, 0, 6);
    attn->heads_q = attn->heads_kv = read_number(r, 1, 2);
    attn->head_dim_qk = attn->head_dim_v = read_number(r, 1, 16);
    attn->max_seq_q = read_number(r, 0, 12);
    attn->max_seq_kv = read_number(r, 0, 12);
    attn->total_q = read_number(r, 0, 30);
    attn->total_kv = read_number(r, 0, 30);
    if (read_byte(r) % 2) attn->flags = STW_ATTN_HAS_USED_LENGTHS;
    attn->mask = (stw_attn_mask)read_number(r, 0, 3);
    (void)stw_layout_thd(attn);
    if (read_byte(r) < 250) d->attn = attn;
}

/* Spoils an entry of some array; 1 when one was. */
static int spoil(reader *r, const stw_jagged_desc *d, stw_jagged_args *a) {
    int wild = 0;
    const int narrow = d->index_dtype == STW_I32;
    for (int n = 0; n < 3; ++n) {
        void *const arrays[2] = {(void *)(uintptr_t)a->axis[n].offsets, (void *)(uintptr_t)a->axis[n].used};
        for (int which = 0; which < 2; ++which) {
            if (!arrays[which] || !d->components || read_byte(r) % 8) continue;
            const int64_t at = read_byte(r) % d->components, value = read_number(r, -2, 60);
            if (narrow) ((int32_t *)arrays[which])[at] = (int32_t)value;
            else ((int64_t *)arrays[which])[at] = value;
            wild = 1;
        }
    }
    const int64_t *const bases[3] = {a->x_bases, a->other_bases, a->grad_bases};
    for (int n = 0; n < 3; ++n) {
        if (!bases[n] || !d->components || read_byte(r) % 8) continue;
        ((int64_t *)(uintptr_t)bases[n])[read_byte(r) % d->components] = read_number(r, -2, 200);
        wild = 1;
    }
    return wild;
}

static void run(const stw_plan *plan, const stw_jagged_desc *d, reader r) {
    arena memory = {.count = 0};
    stw_jagged_args args;
    stw_attn_args attn_args;
    int data_bad = 0;
    const reader content = r;
    memory.skew = read_byte(&r) % 5;
    const size_t need = stw_plan_workspace_size(plan);
    if (jagged_bind(&memory, d, content, &args, &attn_args, &data_bad) && need <= 1 << 26) {
        const int wild = spoil(&r, d, &args) || data_bad;
        void *workspace = arena_add(&memory, "workspace", (double)need, 1, ARENA_WORKSPACE);
        arena_keep(&memory);
        const stw_status status = stw_jagged_bwd(plan, &args, need ? workspace : NULL, need, NULL);
        FUZZ_CHECK(!status || (wild && status == STW_E_INVALID), "the plan was accepted: %s", stw_last_error());
        const char *wrong = arena_wrong(&memory, status != STW_OK);
        FUZZ_CHECK(!wrong, "%s", wrong);
    }
    arena_free(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    open_context();
    reader r = {data, data + size};
    stw_attn_desc attn;
    struct {
        stw_jagged_desc desc;
        uint8_t tail[16];
    } given;
    memset(&given, 0, sizeof given);
    stw_jagged_desc *d = &given.desc;
    *d = STW_INIT(stw_jagged_desc);
    const uint8_t op = read_byte(&r);
    d->op = op == 253 ? STW_JAGGED_LOG_SOFTMAX : op == 254 ? STW_JAGGED_RMS_NORM : (stw_jagged_op)(op % 15);
    read_features(&r, d);
    read_axes(&r, d);
    if (d->op == STW_JAGGED_MATMUL) read_matmul(&r, d);
    if (d->op == STW_JAGGED_RESHAPE) read_shape(&r, &d->shape_rank, d->shape);
    if (d->op == STW_JAGGED_RESHAPE) read_shape(&r, &d->grad_rank, d->grad_shape);
    if (d->op == STW_JAGGED_ATTENTION) read_attention(&r, d, &attn);
    read_dim(&r, d);
    const uint8_t version = read_byte(&r);
    if (version > 250) d->struct_size = sizeof given - version % 17;
    if (version == 253) given.tail[0] = 1;
    stw_plan *const untouched = (stw_plan *)(uintptr_t)0xA5A5;
    stw_plan *plan = untouched;
    const stw_status status = stw_jagged_bwd_plan(context, d, &plan);
    if (status) {
        FUZZ_CHECK(plan == untouched, "plan_out was written");
        FUZZ_CHECK(d->op == STW_JAGGED_ATTENTION || !strncmp(stw_last_error(), "jagged_bwd", 10), "%s",
                   stw_last_error());
        FUZZ_CHECK(status == STW_E_INVALID || status == STW_E_UNSUPPORTED, "%s", stw_last_error());
        return 0;
    }
    char text[2048];
    FUZZ_CHECK(!stw_plan_describe(plan, text, sizeof text, NULL), "%s", stw_last_error());
    run(plan, d, r);
    stw_plan_destroy(plan);
    return 0;
}
