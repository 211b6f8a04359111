/* SPDX-License-Identifier: MIT
 *
 * Grids, shared memory and workspace of the tiled attention kernels; see attn_launch.h. */
#include "common/attn_launch.h"

#include "common/dtype.h"
#include "common/size_class.h"
#include "sternway/attn_bwd.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MASK_ROWS   16
#define GRID_X_CUDA (INT64_C(1) << 30) /* the device reads it from the grid */

static uint32_t element_of(const stw_attn_params *p) {
    return p->dtype == STW_F32 ? 4u : 2u;
}

/* The same in a tile of shared memory: NVIDIA's kernels (waves of 32) hold f32 in parts. */
static uint32_t stored_of(const stw_attn_params *p, uint32_t wave) {
    return p->dtype == STW_F32 && wave == 32 ? 6u : element_of(p);
}

/* Bytes of shared memory. The macros are for constants; kernels hold them against the tables (static_assert).
 */
static uint32_t bwd_smem(uint32_t element, uint32_t hd, uint32_t bm, uint32_t bn, uint32_t stages) {
    return STW_BWD_SMEM(element, hd, bm, bn, stages); /* GCOVR_EXCL_BR_LINE: choices between constants */
}

static uint32_t fwd_smem(uint32_t element, uint32_t hd, uint32_t bm, uint32_t bn) {
    return STW_FWD_SMEM(element, hd, bm, bn); /* GCOVR_EXCL_BR_LINE: choices between constants */
}

static uint32_t lean_smem(uint32_t hd, uint32_t bm, uint32_t bn, uint32_t stages) {
    return STW_LEAN_SMEM(hd, bm, bn, stages); /* GCOVR_EXCL_BR_LINE: choices between constants */
}

/* NULL, or what only the kernels with all features know: features of single pairs, f32 outputs of 16-bit
 * inputs, and sums of dP rounded to nearest, without which the matrix unit's truncation is all there is of
 * dS. */
static const char *needs_full(const stw_attn_params *p) {
    uint32_t keys = p->outputs & (STW_OUT_DK | STW_OUT_DV);
    if (p->dtype != STW_F32 && stw_attn_sees_one_key(p)) return "rows that see one key";
    if (keys && p->dtype != STW_F32 && (p->dk_dtype == STW_F32 || p->dv_dtype == STW_F32))
        return "f32 dK or dV of 16-bit inputs";
    return p->features & STW_FEAT_BIAS      ? "a bias"
           : p->features & STW_FEAT_ALIBI   ? "ALiBi"
           : p->features & STW_FEAT_SOFTCAP ? "softcap"
           : p->features & STW_FEAT_DROPOUT ? "dropout"
                                            : NULL;
}

/* Rows of whole vectors but for where the tensor starts, which a plan does not know and CDNA's kernels take
 * as it is; 32-bit offsets reach everything of a head, and blocks past its end. */
static int is_even(const stw_tensor_param *t, int64_t rows, uint32_t cols) {
    return ((t->batch | t->head | t->seq | (int64_t)cols) & 7) == 0 && t->seq >= 0 &&
           t->seq < INT64_C(1) << 26 && (rows + 256) * (t->seq + 256) < INT64_C(1) << 30;
}

/* Kernels without features of single pairs exist for the tile: of the shared loop, unless CDNA has its own.
 */
static int has_plain(const stw_attn_tile *tile, const stw_attn_params *p) {
    return strstr(tile->loop, "split") || (!strcmp(tile->loop, "cdna_bf16") && p->dtype == STW_F16);
}

static int64_t class_of_rows(const stw_attn_params *p) {
    return stw_packed_class((p->features & STW_FEAT_PACKED_Q) != 0, p->max_seq_q);
}

/* NULL, or what CDNA's own kernels (loops "cdna", "cdna_bf16") do not take: no features of single pairs, all
 * three gradients in their own type and any order. What offsets reach is asked of the sizes' classes. */
static const char *lean_refusal(const stw_attn_tile *tile, const stw_attn_params *p) {
    const uint32_t outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    int64_t rows = class_of_rows(p),
            keys = stw_packed_class((p->features & STW_FEAT_PACKED_KV) != 0, p->max_seq_kv);
    uint32_t d = p->head_dim_qk, dv = p->head_dim_v;
    if (needs_full(p)) return needs_full(p);
    if (p->features & STW_FEAT_DETERMINISTIC) return "deterministic mode";
    if ((p->outputs & (outputs | STW_OUT_DBIAS)) != outputs) return "not all of dQ, dK and dV";
    if (p->accumulate & (STW_OUT_DK | STW_OUT_DV)) return "dK or dV that accumulate";
    if ((rows + 256) * tile->head_dim * 4 >= INT64_C(1) << 31) return "too many queries for 32-bit offsets";
    return is_even(&p->q, rows, d) && is_even(&p->dout, rows, dv) && is_even(&p->k, keys, d) &&
                   is_even(&p->v, keys, dv) && is_even(&p->dk, keys, d) && is_even(&p->dv, keys, dv)
               ? NULL
               : "rows that are not whole vectors of 16 bytes, or are beyond 32-bit offsets";
}

static int has_lean(const stw_attn_tile *tile, const stw_attn_params *p) {
    return !strncmp(tile->loop, "cdna", 4) && !has_plain(tile, p);
}

static int is_lean(const stw_attn_tile *tile, const stw_attn_params *p) {
    return has_lean(tile, p) && !lean_refusal(tile, p);
}

/* Of these, the problems for which CDNA has own kernels before and behind the main loop, too. */
static int lean_delta(const stw_attn_tile *tile, const stw_attn_params *p) {
    const uint32_t options = STW_FEAT_DLSE | STW_FEAT_GIVEN_DELTA | STW_FEAT_WRITE_DELTA;
    int64_t rows = class_of_rows(p);
    return is_lean(tile, p) && !(p->features & options) && !(p->outputs & STW_OUT_DSINK) &&
           is_even(&p->out, rows, p->head_dim_v) && p->lse.seq >= 0 &&
           (rows + 256) * (p->lse.seq + 1) < INT64_C(1) << 29;
}

static int lean_finish(const stw_attn_tile *tile, const stw_attn_params *p) {
    return is_lean(tile, p) && p->dq_dtype == p->dtype && !(p->accumulate & STW_OUT_DQ) &&
           !(p->outputs & STW_OUT_DSINK) && is_even(&p->dq, class_of_rows(p), p->head_dim_qk);
}

/* Of these, those on a matrix unit that takes subnormal bf16 for zero: behind the main loop, a kernel for the
 * units that it has left alone. */
static int has_exact(const stw_attn_tile *tile, const stw_attn_params *p) {
    return is_lean(tile, p) && !strcmp(tile->loop, "cdna_bf16") && p->dtype == STW_BF16;
}

/* Columns of the dQ sums. Hopper's main loop has panels of 64. */
static uint32_t width_of(const stw_attn_tile *tile) {
    return stw_attn_is_hopper(tile) ? (tile->head_dim + 63) / 64 * 64 : tile->head_dim;
}

/* Keys of a block of the main loop. */
static uint32_t bn_of(const stw_attn_tile *tile, const stw_attn_params *p) {
    return is_lean(tile, p) ? STW_CDNA_BN : tile->bn;
}

/* A stride of 0 over more than one element (or over none: the gradient's own extent is 1 then). */
static int broadcast(int64_t stride, int64_t extent) {
    return stride == 0 && extent != 1;
}

/* All sequences', of a head. */
static int64_t key_blocks_of(const stw_attn_tile *tile, const stw_attn_params *p) {
    return stw_key_blocks_most(p, bn_of(tile, p));
}

static int bias_is_summed(const stw_attn_params *p) {
    return (p->outputs & STW_OUT_DBIAS) &&
           (broadcast(p->dbias.batch, p->batch) || broadcast(p->dbias.head, p->heads_q) ||
            broadcast(p->dbias.query, p->max_seq_q) || broadcast(p->dbias.key, p->max_seq_kv));
}

/* Of the features of single pairs only a bias, and it and its gradient are of the operands' type (none that
 * accumulates: those are f32). */
static int is_bias_alone(const stw_attn_params *p) {
    stw_attn_params rest = *p;
    rest.features &= ~STW_FEAT_BIAS;
    if (!(p->features & STW_FEAT_BIAS) || needs_full(&rest) || p->bias_dtype != p->dtype) return 0;
    return !(p->outputs & STW_OUT_DBIAS) || p->dbias_dtype == p->dtype;
}

/* Which of a variant's kernels: README.md of common/tuning, column loop. */
static const char *mode_of(const stw_attn_tile *tile, const stw_attn_params *p) {
    stw_attn_params rest = *p;
    if (stw_attn_is_hopper(tile)) return p->features & STW_FEAT_DETERMINISTIC ? "ordered" : "plain";
    if (is_lean(tile, p)) return "plain";
    if (!has_plain(tile, p)) return "full";
    if (!needs_full(p)) return "plain";
    if (strcmp(tile->loop, "split_four")) return "full";
    rest.features &= ~STW_FEAT_DROPOUT;
    if (!needs_full(&rest) && !(p->outputs & STW_OUT_DBIAS)) return "drop";
    return is_bias_alone(p) && p->bias.key == 1 ? "bias" : "full";
}

const char *stw_attn_slower(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params) {
    if (call != STW_CALL_BWD) return NULL;
    if (has_lean(tile, params)) return lean_refusal(tile, params);
    return has_plain(tile, params) && !strcmp(mode_of(tile, params), "full") ? needs_full(params) : NULL;
}

/* A tile of the kernels that sum dBias. Lean: attn_bias_lean.inl. */
typedef struct bias_tile {
    const char *name;
    uint32_t element, head_dim, bm, bn, warps, stages, lean;
} bias_tile;

/* The bias is the same wherever its gradient is summed. */
static int bias_is_constant(const stw_attn_params *p) {
    const stw_bias_param *b = &p->bias, *d = &p->dbias;
    return (d->batch || !b->batch || p->batch == 1) && (d->head || !b->head || p->heads_q == 1) &&
           (d->query || !b->query || p->max_seq_q == 1) && (d->key || !b->key || p->max_seq_kv == 1);
}

static const bias_tile *bias_tile_of(const stw_attn_tile *tile, const stw_attn_params *p, uint32_t wave) {
#define BIAS_ROW(name, element, hd, bm, bn, warps) {#name, element, hd, bm, bn, warps, 1, 0},
#define BIAS_ROW_64(name, element, hd, bm, bn, warps)                                                        \
    {#name, element, hd, bm, bn, warps, STW_BIAS_STAGES_64(element, hd), 0},
#define BIAS_ROW_LEAN(name, hd, bm, bn, stages, warps, blocks) {#name, 2, hd, bm, bn, warps, stages, 1},
    static const bias_tile rows_32[] = {STW_BIAS_LEAN_TILES(BIAS_ROW_LEAN) STW_BIAS_TILES(BIAS_ROW)},
                           rows_64[] = {STW_BIAS_TILES_64(BIAS_ROW_64)};
    const bias_tile *rows = wave == 64 ? rows_64 : rows_32;
    size_t count = wave == 64 ? sizeof rows_64 / sizeof rows_64[0] : sizeof rows_32 / sizeof rows_32[0];
    uint32_t widest = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v;
    int lean = is_bias_alone(p) && bias_is_constant(p);
    for (size_t i = 0; i + 1 < count; ++i) {
        if (rows[i].lean && (!lean || tile->bm % rows[i].bm)) continue;
        if (rows[i].element == element_of(p) && rows[i].head_dim >= widest) return &rows[i];
    }
    return &rows[count - 1];
}

/* ---- workspace ---- */

typedef struct layout {
    int64_t q_blocks;
    size_t stats, dq, sink, key_blocks, listed, turns, ticket, unordered, total;
} layout;

static size_t take(layout *w, size_t bytes) {
    size_t at = w->total;
    w->total = (at + bytes + 255) / 256 * 256;
    return at;
}

static layout layout_of(const stw_attn_tile *tile, const stw_attn_params *p) {
    layout w = {0};
    int ordered = (p->features & STW_FEAT_DETERMINISTIC) != 0;
    w.q_blocks = stw_query_blocks_most(p, tile->bm);
    size_t blocks = (size_t)(p->heads_q * w.q_blocks), width = width_of(tile), bm = tile->bm;
    w.stats = take(&w, blocks * (2 * bm + STW_STATS_PAD) * sizeof(float));
    w.dq = take(&w, p->outputs & STW_OUT_DQ ? blocks * bm * width * sizeof(float) : 0);
    w.sink = take(&w, p->outputs & STW_OUT_DSINK ? blocks * sizeof(double) : 0);
    w.key_blocks = take(&w, (size_t)key_blocks_of(tile, p) * STW_KEY_BLOCK_BYTES);
    w.listed = take(&w, p->features & STW_FEAT_PACKED_KV
                            ? (size_t)(1 + p->heads_kv * key_blocks_of(tile, p)) * sizeof(uint64_t)
                            : 0);
    w.turns = take(&w, ordered ? blocks * sizeof(uint32_t) : 0);
    int64_t listed = has_exact(tile, p) ? 1 + p->heads_kv * key_blocks_of(tile, p) : 0;
    w.ticket = take(&w, (size_t)(1 + listed) * sizeof(uint64_t));
    w.unordered = take(&w, ordered ? sizeof(uint32_t) : 0);
    return w;
}

/* ---- steps ---- */

/* Units folded over two dimensions. */
static void fold(int64_t units, uint32_t wave, uint32_t *grid_x_out, uint32_t *grid_y_out) {
    int64_t most = wave == 64 ? STW_GRID_X_HIP : GRID_X_CUDA;
    *grid_x_out = (uint32_t)stw_smaller(units, most);
    *grid_y_out = (uint32_t)stw_blocks_of(units, most);
}

static stw_attn_step *add_step(stw_attn_steps *steps, uint32_t wave, int64_t units, uint32_t block,
                               uint32_t smem) {
    stw_attn_step *step = &steps->step[steps->count];
    *step = (stw_attn_step){.units = units, .block = block, .smem = smem};
    if (units <= 0) return step; /* not counted: overwritten by the next */
    fold(units, wave, &step->grid_x, &step->grid_y);
    ++steps->count;
    return step;
}

static void name_step(const stw_attn_steps *steps, stw_attn_step *step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void name_step(const stw_attn_steps *steps, stw_attn_step *step, const char *format, ...) {
    if (steps->unnamed) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(step->entry, sizeof step->entry, format, arguments);
    va_end(arguments);
}

/* Blocks of threads that list what the key blocks of all sequences meet, a thread each; of packed keys, where
 * they stand in order of length, one does it all. */
static int64_t lists_of(const stw_attn_tile *tile, const stw_attn_params *p) {
    return p->features & STW_FEAT_PACKED_KV ? 1 : stw_blocks_of(key_blocks_of(tile, p), STW_ROW_THREADS);
}

/* Units in hand wait for their block of threads: bad where they wait for one another, and where they differ
 * in work, unless each is a small part of what a block does. Hopper's loop lists what it needs of the next
 * unit while it works on this one, which is worth more. */
static stw_attn_queued queued(const stw_attn_tile *tile, const stw_attn_params *p, uint32_t wave) {
    if (stw_attn_is_hopper(tile)) return STW_QUEUED;
    if (wave != 32 || (p->features & STW_FEAT_DETERMINISTIC)) return STW_QUEUED_NEVER;
    if (!(p->features & (STW_FEAT_WINDOW_LEFT | STW_FEAT_WINDOW_RIGHT))) return STW_QUEUED;
    return stw_blocks_of(p->max_seq_kv, tile->bn) <= 8 ? STW_QUEUED : STW_QUEUED_MANY;
}

static void add_bwd(const stw_attn_tile *t, const stw_attn_params *p, uint32_t wave, stw_attn_steps *steps) {
    const char *type = stw_dtype_name((stw_dtype)p->dtype);
    int64_t tiles = p->heads_q * stw_tiles_of_head(p, t->bm);
    int64_t parts = p->heads_q * stw_tiles_of_head(p, STW_CDNA_ROWS);
    int lean = lean_delta(t, p);
    stw_attn_step *step =
        add_step(steps, wave, lists_of(t, p) + (lean ? parts : tiles) + 1, STW_ROW_THREADS, STW_ROW_SMEM);
    if (lean)
        name_step(steps, step, "stw_attn_bwd_delta_cdna_hd%u_%s", t->head_dim, type);
    else
        name_step(steps, step, "stw_attn_bwd_delta_%s", type);
    int summed = bias_is_summed(p);
    if (summed) {
        const bias_tile *b = bias_tile_of(t, p, wave);
        int64_t units = (p->dbias.batch ? p->batch : 1) * (p->dbias.head ? p->heads_q : 1) *
                        (p->dbias.query ? stw_blocks_of(p->max_seq_q, b->bm) : 1) *
                        (p->dbias.key ? stw_blocks_of(p->max_seq_kv, b->bn) : 1);
        uint32_t smem = b->lean ? lean_smem(b->head_dim, b->bm, b->bn, b->stages)
                                : bwd_smem(stored_of(p, wave), b->head_dim, b->bm, b->bn, b->stages);
        step = add_step(steps, wave, units, b->warps * wave, smem);
        name_step(steps, step, "stw_attn_bwd_bias_%s_%s", b->name, type);
    }
    uint32_t tiled = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | (summed ? 0u : STW_OUT_DBIAS);
    if (p->outputs & tiled) {
        lean = is_lean(t, p);
        uint32_t smem = bwd_smem(stored_of(p, wave), t->head_dim, t->bm, t->bn, t->stages);
        if (stw_attn_is_hopper(t)) smem = STW_SM90_SMEM(t->head_dim);
        step = add_step(steps, wave, p->heads_kv * key_blocks_of(t, p), t->warps * wave,
                        lean ? STW_CDNA_SMEM(t->head_dim) : smem);
        step->queued = queued(t, p, wave);
        name_step(steps, step, "stw_attn_bwd_%s_%s_%s", t->id, type, mode_of(t, p));
        if (has_exact(t, p)) {
            step = add_step(steps, wave, step->units, step->block, step->smem);
            name_step(steps, step, "stw_attn_bwd_%s_%s_exact", t->id, type);
        }
    }
    int64_t rows = (p->outputs & STW_OUT_DQ ? tiles : 0) + (p->outputs & STW_OUT_DSINK ? p->heads_q : 0);
    lean = lean_finish(t, p);
    step = add_step(steps, wave, lean ? parts : rows, STW_ROW_THREADS, STW_ROW_SMEM);
    if (lean)
        name_step(steps, step, "stw_attn_bwd_finish_cdna_hd%u_%s", t->head_dim, type);
    else
        name_step(steps, step, "stw_attn_bwd_finish");
}

static void fill_steps(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                       uint32_t wave, stw_attn_steps *steps_out) {
    if (call == STW_CALL_BWD) {
        add_bwd(tile, params, wave, steps_out);
        steps_out->workspace = layout_of(tile, params).total;
    } else if (call == STW_CALL_FWD) {
        uint32_t smem = fwd_smem(stored_of(params, wave), tile->head_dim, tile->bm, tile->bn);
        stw_attn_step *step =
            add_step(steps_out, wave, params->heads_q * stw_tiles_of_head(params, tile->bm) + 1,
                     tile->warps * wave, smem);
        name_step(steps_out, step, "stw_attn_fwd_%s_%s", tile->id, stw_dtype_name((stw_dtype)params->dtype));
    } else {
        int64_t heads = params->batch * params->heads_q;
        stw_attn_step *step =
            add_step(steps_out, wave, heads * stw_blocks_of(params->max_seq_q, MASK_ROWS) + 1,
                     STW_ROW_THREADS, STW_ROW_SMEM);
        name_step(steps_out, step, "stw_attn_dropout_mask");
    }
}

void stw_attn_steps_of(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                       uint32_t wave, stw_attn_steps *steps_out) {
    memset(steps_out, 0, sizeof *steps_out);
    fill_steps(call, tile, params, wave, steps_out);
}

void stw_attn_unnamed_steps_of(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                               uint32_t wave, stw_attn_steps *steps_out) {
    memset(steps_out, 0, sizeof *steps_out);
    steps_out->unnamed = 1;
    fill_steps(call, tile, params, wave, steps_out);
}

/* ---- the argument ---- */

static uint32_t vector_bit(const stw_tensor_param *t, uint32_t element, uint32_t cols, uint32_t bit) {
    uint64_t bytes =
        (uint64_t)(uintptr_t)t->data | (uint64_t)(t->batch | t->head | t->seq | (int64_t)cols) * element;
    return bytes % 16 ? 0 : bit;
}

static uint32_t vectors_of(const stw_attn_params *p) {
    uint32_t element = element_of(p), d = p->head_dim_qk, dv = p->head_dim_v;
    return vector_bit(&p->q, element, d, STW_VECTOR_Q) | vector_bit(&p->k, element, d, STW_VECTOR_K) |
           vector_bit(&p->v, element, dv, STW_VECTOR_V) | vector_bit(&p->out, element, dv, STW_VECTOR_OUT) |
           vector_bit(&p->dout, element, dv, STW_VECTOR_DOUT) |
           vector_bit(&p->dq, p->dq_dtype == STW_F32 ? 4 : 2, d, STW_VECTOR_DQ) |
           vector_bit(&p->dk, p->dk_dtype == STW_F32 ? 4 : 2, d, STW_VECTOR_DK) |
           vector_bit(&p->dv, p->dv_dtype == STW_F32 ? 4 : 2, dv, STW_VECTOR_DV);
}

/* Whether key blocks are numbered from the last to the first (STW_KEYS_DESCEND): under a causal mask the
 * first rows of queries that a key block meets are then met by none before it. */
static int descends(const stw_attn_tile *tile, const stw_attn_params *p) {
    return stw_attn_is_hopper(tile) && (p->features & STW_FEAT_DETERMINISTIC);
}

/* Under a causal mask key blocks differ in work, and few heads' rows should stay in the second-level cache:
 * q, dout and the sums of dQ of so many rows of a kv head fit 32 MiB. As many where key blocks wait for one
 * another: the more heads, the fewer of one head are under way. 0: a head's key blocks go one after the
 * other. */
static int64_t beside_rows(const stw_attn_tile *tile, const stw_attn_params *p) {
    if (!(p->features & STW_FEAT_WINDOW_RIGHT) && !descends(tile, p)) return 0;
    return (INT64_C(32) << 20) /
           ((int64_t)tile->head_dim * (2 * element_of(p) + (int64_t)sizeof(float)) * p->group);
}

/* Dense keys: heads of so many rows, and not more than there are, since Hopper's own main loop multiplies
 * them by their key blocks in 32 bits. */
static int64_t heads_beside(const stw_attn_tile *tile, const stw_attn_params *p) {
    int64_t beside = stw_heads_beside(p->heads_kv, beside_rows(tile, p), p->max_seq_q);
    return stw_larger(1, stw_smaller(beside, p->batch * p->heads_kv));
}

void stw_attn_launch_of(stw_attn_call call, const stw_attn_tile *tile, const stw_attn_params *params,
                        uint32_t wave, void *workspace, stw_attn_launch *launch_out) {
    stw_attn_launch l = {.p = *params};
    if (call != STW_CALL_DROPOUT_MASK) {
        l.vectors = vectors_of(params);
        l.bm = tile->bm;
        l.bn = call == STW_CALL_BWD ? bn_of(tile, params) : tile->bn;
        l.width = width_of(tile);
        l.warps = tile->warps;
    }
    if (call == STW_CALL_BWD) {
        layout w = layout_of(tile, params);
        const bias_tile *b = bias_tile_of(tile, params, wave);
        char *base = workspace;
        int ordered = (params->features & STW_FEAT_DETERMINISTIC) != 0;
        l.stats = (float *)(void *)(base + w.stats);
        l.dq = (float *)(void *)(base + w.dq);
        l.sink = (double *)(void *)(base + w.sink);
        l.lists = lists_of(tile, params);
        l.key_blocks = base + w.key_blocks;
        l.turns = ordered ? (uint32_t *)(void *)(base + w.turns) : NULL;
        l.ticket = (uint64_t *)(void *)(base + w.ticket);
        l.unordered = ordered ? (uint32_t *)(void *)(base + w.unordered) : NULL;
        l.q_blocks = w.q_blocks;
        l.heads_beside = heads_beside(tile, params);
        l.k_blocks = stw_blocks_of(params->max_seq_kv, l.bn);
        l.beside_rows = beside_rows(tile, params);
        if (params->features & STW_FEAT_PACKED_KV) {
            l.listed = (uint64_t *)(void *)(base + w.listed);
            l.listed_most = key_blocks_of(tile, params);
        }
        if (is_lean(tile, params) || stw_attn_is_hopper(tile)) l.vectors |= STW_STATS_NEGATED;
        l.dq_rows = (uint32_t)stw_split_rows((int)tile->bm, (int)tile->head_dim, (int)tile->warps,
                                             wave == 32 && params->dtype == STW_F32 ? 8 : 16);
        if (stw_attn_is_hopper(tile)) l.dq_rows = tile->bm / 16;
        if (descends(tile, params)) l.vectors |= STW_KEYS_DESCEND;
        l.bias_direct = (params->outputs & STW_OUT_DBIAS) && !bias_is_summed(params);
        l.bias_batch = params->dbias.batch ? params->batch : 1;
        l.bias_heads = params->dbias.head ? params->heads_q : 1;
        l.bias_rows = params->dbias.query ? stw_blocks_of(params->max_seq_q, b->bm) : 1;
        l.bias_keys = params->dbias.key ? stw_blocks_of(params->max_seq_kv, b->bn) : 1;
    }
    *launch_out = l;
}

const char *stw_attn_tile_refusal(stw_attn_call call, const stw_attn_tile *tile,
                                  const stw_attn_params *params) {
    int forward = !strncmp(tile->loop, "fwd", 3), f32 = strstr(tile->loop, "f32") != NULL;
    if (forward != (call == STW_CALL_FWD))
        return forward ? "it is a forward's tile" : "it is a backward's tile";
    if (f32 != (params->dtype == STW_F32))
        return f32 ? "its kernels are f32's" : "its kernels are f16's and bf16's";
    if (stw_attn_is_hopper(tile)) return stw_attn_hopper_refusal(params);
    return NULL;
}

const char *stw_attn_stage_entry(const stw_attn_stage *stage) {
    return stage->element == 2 ? "stw_attn_stage_2" : "stw_attn_stage_4";
}

void stw_attn_stage_grid(const stw_attn_stage *stage, uint32_t wave, uint32_t *grid_x_out,
                         uint32_t *grid_y_out) {
    fold(stage->batch * stage->heads * stw_stage_strips(stage), wave, grid_x_out, grid_y_out);
}
