/* SPDX-License-Identifier: MIT
 *
 * The shared main loop on the host, and what is around every one: grids, shared memory, workspace and argument of
 * the tiled attention kernels. See attn_tiled.h. */
#include "backends/gpu/attn_tiled.h"

#include "common/dtype.h"
#include "common/size_class.h"
#include "sternway/attn_bwd.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MASK_ROWS 16

static uint32_t element_of(const stw_attn_params *p) { return p->dtype == STW_F32 ? 4u : 2u; }

/* Bytes of an element in a tile of shared memory: NVIDIA's kernels (waves of 32) hold f32 as three bf16. */
static uint32_t stored_of(const stw_attn_params *p, uint32_t wave) {
    return p->dtype == STW_F32 && wave == 32 ? 6u : element_of(p);
}

/* Bytes of shared memory. Kernels compare the same macros with the tuning tables (static_assert). */
static uint32_t bwd_smem(uint32_t element, uint32_t hd, uint32_t bm, uint32_t bn, uint32_t stages) {
    return STW_BWD_SMEM(element, hd, bm, bn, stages); /* GCOVR_EXCL_BR_LINE: choices between constants */
}

static uint32_t fwd_smem(uint32_t element, uint32_t hd, uint32_t bm, uint32_t bn) {
    return STW_FWD_SMEM(element, hd, bm, bn); /* GCOVR_EXCL_BR_LINE: choices between constants */
}

static uint32_t dbias_plain_smem(uint32_t hd, uint32_t bm, uint32_t bn, uint32_t stages) {
    return STW_DBIAS_PLAIN_SMEM(hd, bm, bn, stages); /* GCOVR_EXCL_BR_LINE: choices between constants */
}

/* NULL, or what only the kernels with all features know: features of single pairs, f32 outputs of 16-bit
 * inputs, and sums of dP rounded to nearest, without which the matrix unit's truncation is all there is of
 * dS. */
const char *stw_attn_needs_full(const stw_attn_params *p) {
    uint32_t keys = p->outputs & (STW_OUT_DK | STW_OUT_DV);
    if (p->dtype != STW_F32 && stw_attn_sees_one_key(p)) return "rows that see one key";
    if (keys && p->dtype != STW_F32 && (p->dk_dtype == STW_F32 || p->dv_dtype == STW_F32))
        return "f32 dK or dV of 16-bit inputs";
    if (stw_attn_masks(p)) return stw_attn_masks(p);
    return p->features & STW_FEAT_BIAS      ? "a bias"
           : p->features & STW_FEAT_ALIBI   ? "ALiBi"
           : p->features & STW_FEAT_SOFTCAP ? "softcap"
           : p->features & STW_FEAT_DROPOUT ? "dropout"
                                            : NULL;
}

const char *stw_attn_masks(const stw_attn_params *p) {
    return p->features & STW_FEAT_INTERVALS    ? "an interval mask"
           : p->features & STW_FEAT_BLOCK_MASK ? "a block mask"
                                               : NULL;
}

/* A stride of 0 over more than one element (or over none: the gradient's own extent is 1 then). */
static int broadcast(int64_t stride, int64_t extent) { return stride == 0 && extent != 1; }

/* Key blocks of a head, of all sequences; a part by query blocks counts as one. */
static int64_t key_blocks_of(const stw_attn_choice *choice, const stw_attn_params *p) {
    return stw_key_blocks_most(p, choice->bn) * choice->split.rows;
}

/* Sequences as the kernels see them: none of a dense batch where a call reads and writes nothing of any, so that 2^31
 * empty ones take no CTA and no step of a loop. A dBias that is broadcast over the batch is zeroed with batch 0. */
static int64_t batch_seen(stw_attn_call call, const stw_attn_params *p) {
    const uint32_t arrays = STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV | STW_FEAT_USED_LENGTHS;
    int queries = p->max_seq_q > 0, keys = p->max_seq_kv > 0, needed = queries && keys;
    if (call == STW_CALL_FWD) needed = queries;
    if (call == STW_CALL_BWD) {
        needed |= queries && (p->outputs & (STW_OUT_DQ | STW_OUT_DSINK) || p->features & STW_FEAT_WRITE_DELTA);
        needed |= keys && p->outputs & (STW_OUT_DK | STW_OUT_DV);
        needed |= p->outputs & STW_OUT_DBIAS && p->dbias.batch;
    }
    return needed || p->batch < 2 || p->features & arrays || p->q_offsets || p->k_offsets ? p->batch : 0;
}

static int uses_part_sums(const stw_attn_choice *choice) {
    return choice->apart || choice->split.heads * choice->split.rows > 1;
}

/* Places for sums of dK and dV: one a part, or one a work tile whose parts add. */
static int64_t part_places(const stw_attn_choice *choice, const stw_attn_params *p) {
    const int64_t parts = choice->split.heads * choice->split.rows, all = p->heads_kv * key_blocks_of(choice, p);
    return !uses_part_sums(choice) ? 0 : choice->adds_parts ? all / parts : all;
}

/* What the main loop decides, and the problem that its kernel sees: parts by heads are kv heads of their own. */
static void choose(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *choice,
                   stw_attn_params *seen) {
    tile->loop->gpu->plan(tile, p, wave, choice);
    if (p->features & STW_FEAT_KEPT_DQ) choice->preprocess = choice->postprocess = NULL;
    if (!choice->split.heads) choice->split.heads = 1;
    if (!choice->split.rows) choice->split.rows = 1;
    if (!choice->warps) choice->warps = tile->warps;
    if (!choice->part_cols) choice->part_cols = tile->head_dim;
    *seen = *p;
    seen->heads_kv *= choice->split.heads;
    seen->group /= choice->split.heads;
}

int stw_attn_bias_is_summed(const stw_attn_params *p) {
    return (p->outputs & STW_OUT_DBIAS) &&
           (broadcast(p->dbias.batch, p->batch) || broadcast(p->dbias.head, p->heads_q) ||
            broadcast(p->dbias.query, p->max_seq_q) || broadcast(p->dbias.key, p->max_seq_kv));
}

/* Of what only the kernels with all features know, the problem has these features alone. */
static int has_only(const stw_attn_params *p, uint32_t features) {
    stw_attn_params rest = *p;
    rest.features &= ~features;
    return !stw_attn_needs_full(&rest);
}

/* Of the features of single pairs only a bias, and it and its gradient are of the operands' type (none that
 * accumulates: those are f32). */
static int is_bias_alone(const stw_attn_params *p) {
    if (!(p->features & STW_FEAT_BIAS) || !has_only(p, STW_FEAT_BIAS) || p->bias_dtype != p->dtype) return 0;
    return !(p->outputs & STW_OUT_DBIAS) || p->dbias_dtype == p->dtype;
}

/* Which of a variant's kernels: README.md of common/tuning, column loop. */
typedef enum mode { FULL, PLAIN, ORDERED, DROP, BIAS, SOFTCAP, ALIBI, HIDDEN } mode;
static const char *const mode_names[] = {"full", "plain", "ordered", "drop", "bias", "softcap", "alibi", "hidden"};

static mode mode_of(const stw_variant *tile, const stw_attn_params *p, int plain) {
    if (!plain) return FULL;
    if (!stw_attn_needs_full(p)) {
        /* under a window the kernels of their own were slower: docs/performance/appendix/sm80.md */
        int ordered = tile->loop->gpu->ordered && (p->features & STW_FEAT_DETERMINISTIC) &&
                      !(p->features & (STW_FEAT_WINDOW_LEFT | STW_FEAT_WINDOW_RIGHT));
        return ordered && (p->outputs & STW_OUT_DQKV) == STW_OUT_DQKV ? ORDERED : PLAIN;
    }
    if (!tile->loop->gpu->single) return FULL;
    if (!(p->outputs & STW_OUT_DBIAS)) {
        if (has_only(p, STW_FEAT_DROPOUT)) return DROP;
        if (has_only(p, STW_FEAT_SOFTCAP)) return SOFTCAP;
        if (has_only(p, STW_FEAT_ALIBI)) return ALIBI;
        if (has_only(p, STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)) return HIDDEN;
    }
    return is_bias_alone(p) && p->bias.key == 1 ? BIAS : FULL;
}

const char *stw_attn_tiled_slower(const stw_variant *tile, const stw_attn_params *p, int plain) {
    return plain && mode_of(tile, p, plain) == FULL ? stw_attn_needs_full(p) : NULL;
}

const char *stw_attn_slower(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params) {
    const stw_gpu_loop *loop = tile->loop->gpu;
    return call == STW_CALL_BWD && loop->slower ? loop->slower(tile, params) : NULL;
}

/* A tile of the kernels that sum dBias. `plain`: its kernel is that of attn_dbias_reduce_plain.h. */
typedef struct dbias_tile {
    const char *name;
    uint32_t element, head_dim, bm, bn, warps, stages, plain;
} dbias_tile;

/* The bias is the same wherever its gradient is summed. */
static int bias_is_constant(const stw_attn_params *p) {
    const stw_bias_param *b = &p->bias, *d = &p->dbias;
    return (d->batch || !b->batch || p->batch == 1) && (d->head || !b->head || p->heads_q == 1) &&
           (d->query || !b->query || p->max_seq_q == 1) && (d->key || !b->key || p->max_seq_kv == 1);
}

/* Keys of the tiles of which it is kept what masks hide. A main loop that goes by other lists may have work tiles that
 * no tile of dBias divides (80 keys). */
static uint32_t hidden_keys(const stw_attn_choice *choice) {
    return choice->visible_heads ? STW_MASK_BLOCK : choice->bn;
}

static const dbias_tile *dbias_tile_of(const stw_variant *tile, const stw_attn_choice *choice, const stw_attn_params *p,
                                       uint32_t wave) {
#define DBIAS_ROW(name, element, hd, bm, bn, warps) {#name, element, hd, bm, bn, warps, 1, 0},
#define DBIAS_ROW_64(name, element, hd, bm, bn, warps)                                                                 \
    {#name, element, hd, bm, bn, warps, STW_BIAS_STAGES_64(element, hd), 0},
#define DBIAS_ROW_PLAIN(name, hd, bm, bn, stages, warps, blocks) {#name, 2, hd, bm, bn, warps, stages, 1},
    static const dbias_tile rows_32[] = {STW_DBIAS_PLAIN_TILES(DBIAS_ROW_PLAIN) STW_DBIAS_TILES(DBIAS_ROW)},
                            rows_64[] = {STW_DBIAS_TILES_64(DBIAS_ROW_64)};
    const dbias_tile *rows = wave == 64 ? rows_64 : rows_32;
    size_t count = wave == 64 ? sizeof rows_64 / sizeof rows_64[0] : sizeof rows_32 / sizeof rows_32[0];
    uint32_t widest = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v;
    int plain = is_bias_alone(p) && bias_is_constant(p);
    for (size_t i = 0; i + 1 < count; ++i) {
        if (rows[i].plain && (!plain || tile->bm % rows[i].bm)) continue;
        if (stw_attn_masks(p) && hidden_keys(choice) % rows[i].bn) continue;
        if (rows[i].element == element_of(p) && rows[i].head_dim >= widest) return &rows[i];
    }
    return &rows[count - 1];
}

/* Whether a CTA takes work tiles until none is left. It fetches the next one before it ends this one, and what it has
 * fetched waits for it. So NEVER where work tiles wait for one another, and on AMD; those of ORDERED wait for none that
 * is far behind. Work tiles of unequal work where a head has at most 8 key blocks, else only where a CTA gets many
 * (STW_WORK_TILES_MANY). */
static stw_attn_queued queued(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, mode m) {
    int even = !(p->features & (STW_FEAT_WINDOW_LEFT | STW_FEAT_WINDOW_RIGHT)) && !stw_attn_masks(p);
    if (m == ORDERED) return STW_QUEUED;
    if (wave != 32 || (p->features & STW_FEAT_DETERMINISTIC)) return STW_QUEUED_NEVER;
    if (even) return STW_QUEUED;
    return stw_blocks_of(p->max_seq_kv, tile->bn) <= 8 ? STW_QUEUED : STW_QUEUED_MANY;
}

/* Waves over the rows of a result of a work tile. */
static uint32_t rows_split(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, uint32_t rows) {
    int step = wave == 32 && p->dtype == STW_F32 ? 8 : 16;
    return (uint32_t)stw_split_rows((int)rows, (int)tile->head_dim, (int)tile->warps, step);
}

/* NVIDIA's kernels that go by no lists of masks take parts, where the last kernel's threads can share the sums. Not
 * beside a kernel that sums dBias: it counts kv heads, not parts. */
static stw_attn_split split_shared(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, int plain,
                                   uint32_t key_rows) {
    const stw_attn_split whole = {1, 1};
    const mode m = mode_of(tile, p, plain);
    if (wave != 32 || m == FULL || m == ORDERED || m == HIDDEN || p->outputs & STW_OUT_DBIAS) return whole;
    uint32_t tiles_across = tile->head_dim / (tile->warps / key_rows) / 8;
    const stw_attn_costs costs = stw_attn_costs_of_h200(tile->head_dim);
    return tiles_across % STW_PART_TILES ? whole : stw_attn_split_of(tile, tile->bn, p, 8 / tile->warps, 0, &costs);
}

void stw_attn_tiled_plan(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, int plain,
                         stw_attn_choice *out) {
    mode m = mode_of(tile, p, plain);
    uint32_t key_rows = rows_split(tile, p, wave, tile->bn);
    *out = (stw_attn_choice){.mode = mode_names[m],
                             .bn = tile->bn,
                             .width = tile->head_dim,
                             .smem = bwd_smem(stored_of(p, wave), tile->head_dim, tile->bm, tile->bn, tile->stages),
                             .dq_rows = rows_split(tile, p, wave, tile->bm),
                             .vectors = m == ORDERED ? STW_KEYS_DESCEND : 0,
                             .queued = queued(tile, p, wave, m),
                             .split = split_shared(tile, p, wave, plain, key_rows),
                             .key_rows = key_rows};
}

static void plan_shared(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    stw_attn_tiled_plan(tile, p, wave, tile->loop->gpu->plain, out);
}

static const char *slower_shared(const stw_variant *tile, const stw_attn_params *p) {
    return stw_attn_tiled_slower(tile, p, tile->loop->gpu->plain);
}

#define SHARED .call = STW_CALL_BWD, .slower = slower_shared, .plan = plan_shared
STW_ATTN_LOOP(split, SHARED, .plain = 1);
STW_ATTN_LOOP(split_ordered, SHARED, .plain = 1, .ordered = 1);
STW_ATTN_LOOP(split_four, SHARED, .plain = 1, .single = 1);
STW_ATTN_LOOP(full, SHARED);
STW_ATTN_LOOP(f32, SHARED, .f32 = 1);
STW_ATTN_LOOP(f32_split, SHARED, .f32 = 1, .plain = 1);
STW_ATTN_LOOP(fwd, .call = STW_CALL_FWD);
STW_ATTN_LOOP(fwd_f32, .call = STW_CALL_FWD, .f32 = 1);

/* ---- workspace ---- */

/* Query blocks of a head among the sums of dQ, and so among the statistics, which are numbered alike. */
static int64_t query_blocks_of(const stw_variant *tile, const stw_attn_choice *choice, const stw_attn_params *p) {
    if (p->features & STW_FEAT_KEPT_DQ) return p->dq.head / ((int64_t)tile->bm * choice->width);
    return stw_query_blocks_most(p, tile->bm);
}

typedef struct layout {
    int64_t q_blocks;
    size_t stats, dq, sink, key_blocks, listed, dq_semaphore, tile_counter, unordered, part_sums;
    size_t hidden_blocks, hidden_keys, hidden_bits, visible_blocks, visible_words, visible_next, total;
} layout;

static size_t take(layout *w, size_t bytes) {
    size_t at = w->total;
    w->total = (at + bytes + 255) / 256 * 256;
    return at;
}

/* Heads of the masks, 0 without one. `parts`: p.heads_kv is so many times that of the call. */
static int64_t interval_heads(const stw_attn_params *p, uint32_t parts) {
    return !(p->features & STW_FEAT_INTERVALS) ? 0 : p->intervals.head ? p->heads_kv / parts : 1;
}

static int64_t block_heads(const stw_attn_params *p) {
    return !(p->features & STW_FEAT_BLOCK_MASK) ? 0 : p->block_mask.head ? p->heads_q : 1;
}

/* Tiles of bn keys that masks hide something of, at most. Without a sequence there is no length to look at. */
static int64_t hidden_tiles(const stw_attn_params *p, int64_t bn) {
    return p->batch ? stw_hidden_tiles_most(p, bn) : 0;
}

/* The main loop or the sums of dBias go by these lists. */
static int lists_hidden(const stw_attn_choice *choice, const stw_attn_params *p) {
    return !choice->visible_heads || stw_attn_bias_is_summed(p);
}

/* Bits of the blocks of rows of a block mask. */
static int64_t hidden_words(const stw_attn_params *p) { return stw_blocks_of(p->max_seq_q, 32 * STW_MASK_BLOCK); }

/* Of sm90's own main loop under masks: numbers in visible_next. */
static int64_t visible_next_of(const stw_attn_choice *choice, const stw_attn_params *p) {
    const int64_t blocks = key_blocks_of(choice, p) * choice->visible_heads;
    if (p->features & STW_FEAT_DETERMINISTIC) return blocks * choice->visible_rows * choice->visible_length * 32;
    if (p->features & STW_FEAT_PACKED_KV) return 0;
    return stw_blocks_of(p->max_seq_kv, choice->bn) <= STW_SM90_VISIBLE_SORTED ? blocks : 0;
}

static layout layout_of(const stw_variant *tile, const stw_attn_choice *choice, const stw_attn_params *p) {
    layout w = {0};
    int ordered = (p->features & STW_FEAT_DETERMINISTIC) != 0;
    w.q_blocks = query_blocks_of(tile, choice, p);
    if (tile->loop->gpu->whole) return w; /* all is in registers and shared memory */
    size_t blocks = (size_t)(p->heads_q * w.q_blocks), width = choice->width, bm = tile->bm;
    size_t dq_sums = choice->sums_dq || (p->outputs & STW_OUT_DQ) ? blocks * bm * width * sizeof(float) : 0;
    if (p->features & STW_FEAT_FINISHED_DQ) {
        w.dq = take(&w, dq_sums);
        return w;
    }
    const size_t stats = blocks * (2 * bm + STW_STATS_PAD) * sizeof(float);
    w.stats = take(&w, p->features & STW_FEAT_KEPT_STATS ? 0 : stats);
    w.dq = take(&w, p->features & STW_FEAT_KEPT_DQ ? 0 : dq_sums);
    w.sink = take(&w, p->outputs & STW_OUT_DSINK ? blocks * sizeof(double) : 0);
    w.key_blocks = take(&w, (size_t)key_blocks_of(choice, p) * STW_KEY_BLOCK_BYTES);
    w.listed = take(&w, p->features & STW_FEAT_PACKED_KV
                            ? (size_t)(1 + p->heads_kv * key_blocks_of(choice, p)) * sizeof(uint64_t)
                            : 0);
    w.dq_semaphore = take(&w, ordered ? blocks * sizeof(uint32_t) : 0);
    int64_t listed = choice->exact ? 1 + p->heads_kv * key_blocks_of(choice, p) : 0;
    w.tile_counter = take(&w, (size_t)(1 + listed) * sizeof(uint64_t));
    w.unordered = take(&w, ordered ? sizeof(uint32_t) : 0);
    size_t sums = 2 * (size_t)choice->bn * choice->part_cols * sizeof(float);
    w.part_sums = take(&w, (size_t)part_places(choice, p) * sums);
    size_t tiles = lists_hidden(choice, p) ? (size_t)hidden_tiles(p, hidden_keys(choice)) : 0,
           intervals = tiles * (size_t)interval_heads(p, choice->split.heads),
           bits = tiles * (size_t)block_heads(p) * 2 * (size_t)hidden_words(p);
    w.hidden_blocks = take(&w, intervals * sizeof(stw_hidden_block));
    w.hidden_keys = take(&w, intervals * hidden_keys(choice) * sizeof(stw_hidden_rows));
    w.hidden_bits = take(&w, bits * sizeof(uint32_t));
    const size_t masks = (size_t)key_blocks_of(choice, p) * choice->visible_heads;
    w.visible_blocks = take(&w, masks * STW_SM90_VISIBLE_BLOCK_BYTES);
    w.visible_words = take(&w, masks * choice->visible_rows * choice->visible_length * STW_SM90_VISIBLE_WORD_BYTES);
    const size_t order = (size_t)visible_next_of(choice, p);
    w.visible_next = take(&w, order ? (STW_SM90_VISIBLE_FRONT + order) * sizeof(uint16_t) : 0);
    return w;
}

/* ---- steps ---- */

/* Work tiles folded over two dimensions. */
static void fold(int64_t work_tiles, uint32_t wave, uint32_t *grid_x_out, uint32_t *grid_y_out) {
    int64_t most = wave == 64 ? STW_GRID_X_HIP : STW_GRID_X_CUDA;
    *grid_x_out = (uint32_t)stw_smaller(work_tiles, most);
    *grid_y_out = (uint32_t)stw_blocks_of(work_tiles, most);
}

static stw_attn_step *add_step(stw_attn_steps *steps, uint32_t wave, int64_t work_tiles, uint32_t block,
                               uint32_t smem) {
    stw_attn_step *step = &steps->step[steps->count];
    *step = (stw_attn_step){.work_tiles = work_tiles, .block = block, .smem = smem};
    if (work_tiles <= 0) return step; /* not counted: overwritten by the next */
    fold(work_tiles, wave, &step->grid_x, &step->grid_y);
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

/* CTAs that list what the key blocks of all sequences meet, a thread each; of packed keys, where
 * they stand in order of length, one does it all. */
static int64_t lists_of(const stw_attn_choice *choice, const stw_attn_params *p) {
    return p->features & STW_FEAT_PACKED_KV ? 1 : stw_blocks_of(key_blocks_of(choice, p), STW_ROW_THREADS);
}

/* What masks in memory hide from tiles of bn keys. `heads`: of all masks. */
static void add_hidden_blocks(const stw_attn_params *p, int64_t heads, uint32_t bn, uint32_t wave,
                              stw_attn_steps *steps) {
    int64_t tasks = heads * hidden_tiles(p, bn);
    stw_attn_step *step = add_step(steps, wave, stw_blocks_of(tasks, STW_ROW_THREADS / wave), STW_ROW_THREADS, 0);
    step->bn = bn;
    name_step(steps, step, "stw_attn_hidden_blocks");
}

static stw_kernel_image image_of(const stw_variant *tile) { return tile->own ? STW_KERNEL_OWN : STW_KERNEL_ATTN; }

/* The last kernel: dQ and dSink, and dK and dV of work tiles in parts. p.heads_kv is choice.split.heads times that of
 * the call. */
static void add_postprocess(const stw_variant *t, const stw_attn_params *p, const stw_attn_choice *choice,
                            uint32_t wave, stw_attn_steps *steps) {
    const uint32_t kept = p->features & STW_FEAT_KEPT_DQ, finished = p->features & STW_FEAT_FINISHED_DQ;
    int64_t tiles = p->heads_q * stw_tiles_of_head(p, t->bm);
    int64_t rows =
        (p->outputs & STW_OUT_DQ && !kept ? tiles : 0) + (p->outputs & STW_OUT_DSINK && !finished ? p->heads_q : 0);
    if (choice->postprocess) rows = p->heads_q * stw_tiles_of_head(p, choice->small_rows);
    if (choice->adds_parts) rows += part_places(choice, p) * 2 * (choice->width / 64);
    else if (uses_part_sums(choice) && !finished)
        rows += p->heads_kv / choice->split.heads * stw_key_blocks_most(p, choice->bn) * 2 *
                stw_attn_part_chunks(choice->bn, choice->part_cols, choice->warps);
    stw_attn_step *step = add_step(steps, wave, rows, STW_ROW_THREADS, STW_ROW_SMEM);
    step->early = choice->early || !choice->postprocess;
    step->without_dq = kept != 0;
    if (choice->postprocess) {
        step->image = image_of(t);
        name_step(steps, step, "stw_attn_bwd_postprocess_%s_hd%u_%s", choice->postprocess, t->head_dim,
                  stw_dtype_name((stw_dtype)p->dtype));
    } else name_step(steps, step, "stw_attn_bwd_postprocess%s", uses_part_sums(choice) && !finished ? "_parts" : "");
}

/* The first kernel: lists of key blocks, D and statistics of query rows, zeros. */
static void add_preprocess(const stw_variant *t, const stw_attn_params *p, const stw_attn_choice *choice, uint32_t wave,
                           const char *type, stw_attn_steps *steps) {
    const int64_t tiles = p->heads_q * stw_tiles_of_head(p, choice->preprocess ? choice->small_rows : t->bm),
                  rows = p->features & STW_FEAT_KEPT_STATS ? 0 : tiles;
    stw_attn_step *step = add_step(steps, wave, lists_of(choice, p) + rows + 1, STW_ROW_THREADS, STW_ROW_SMEM);
    step->without_dq = (p->features & STW_FEAT_KEPT_DQ) != 0;
    if (choice->preprocess) {
        step->image = image_of(t);
        name_step(steps, step, "stw_attn_bwd_preprocess_%s_hd%u_%s", choice->preprocess, t->head_dim, type);
    } else name_step(steps, step, "stw_attn_bwd_preprocess_%s", type);
}

/* Masks of sm90's own main loops: which query blocks each key block meets, then the order of key blocks. */
static void add_visible(const stw_variant *t, const stw_attn_params *p, const stw_attn_choice *choice, uint32_t wave,
                        stw_attn_steps *steps) {
    const int64_t masks = key_blocks_of(choice, p) * choice->visible_heads, waves = STW_ROW_THREADS / wave;
    stw_attn_step *step = add_step(steps, wave, stw_blocks_of(masks, waves), STW_ROW_THREADS, 0);
    step->image = image_of(t);
    step->early = choice->early;
    name_step(steps, step, "stw_attn_bwd_visible_sm90");
    int64_t numbers = visible_next_of(choice, p); /* a wave finds one, in deterministic mode 32 */
    if (p->features & STW_FEAT_DETERMINISTIC) numbers /= 32;
    if (!numbers) return;
    step = add_step(steps, wave, stw_blocks_of(numbers, waves), STW_ROW_THREADS, 0);
    step->image = image_of(t);
    step->early = choice->early;
    name_step(steps, step, "stw_attn_bwd_order_sm90");
}

/* A broadcast dBias. */
static void add_dbias_reduce(const stw_variant *t, const stw_attn_params *p, const stw_attn_choice *choice,
                             uint32_t wave, const char *type, stw_attn_steps *steps) {
    const dbias_tile *b = dbias_tile_of(t, choice, p, wave);
    int64_t work_tiles = (p->dbias.batch ? p->batch : 1) * (p->dbias.head ? p->heads_q : 1) *
                         (p->dbias.query ? stw_blocks_of(p->max_seq_q, b->bm) : 1) *
                         (p->dbias.key ? stw_blocks_of(p->max_seq_kv, b->bn) : 1);
    uint32_t smem = b->plain ? dbias_plain_smem(b->head_dim, b->bm, b->bn, b->stages)
                             : bwd_smem(stored_of(p, wave), b->head_dim, b->bm, b->bn, b->stages);
    stw_attn_step *step = add_step(steps, wave, work_tiles, b->warps * wave, smem);
    if (stw_attn_masks(p)) step->bn = hidden_keys(choice);
    name_step(steps, step, "stw_attn_dbias_reduce_%s_%s", b->name, type);
}

/* Whether the main loop's launch overlaps the kernel before it. Not where all CTAs of Hopper's own preprocess kernel
 * run at once, four a multiprocessor: there the overlap cost 3 to 13% (H200, dense problems; appendix/sm90.md). */
static int begins_early(const stw_attn_params *p, const stw_attn_choice *choice, const stw_attn_steps *before) {
    enum { ROWS_AT_ONCE = 4 };
    const int measured = choice->preprocess && before->count == 1 && !(p->features & STW_FEAT_PACKED_Q);
    return choice->early && (!measured || before->step[0].work_tiles > (int64_t)p->units * ROWS_AT_ONCE);
}

/* The main loop, and after it the kernel for what it leaves alone, if there is one. */
static void add_main_loop(const stw_variant *t, const stw_attn_params *p, const stw_attn_choice *choice, uint32_t wave,
                          const char *type, stw_attn_steps *steps) {
    const int early = begins_early(p, choice, steps);
    stw_attn_step *step = add_step(steps, wave, p->heads_kv * key_blocks_of(choice, p),
                                   choice->warps * wave + choice->loaders, choice->smem);
    step->queued = choice->queued;
    step->image = image_of(t);
    /* With KEPT_STATS the preprocess kernel has no rows and ends at once. An early main loop would take the
     * multiprocessors before the kernel of a message that starts here. */
    step->early = early && !(p->features & STW_FEAT_KEPT_STATS);
    name_step(steps, step, "stw_attn_bwd_%s_%s_%s", t->id, type, choice->mode);
    if (!choice->exact) return;
    step = add_step(steps, wave, step->work_tiles, step->block, step->smem);
    step->image = image_of(t);
    name_step(steps, step, "stw_attn_bwd_%s_%s_%s", t->id, type, choice->exact);
}

/* A call that is one kernel. */
static void add_whole(const stw_variant *t, const stw_attn_params *p, const stw_attn_choice *choice, uint32_t wave,
                      const char *type, stw_attn_steps *steps) {
    stw_attn_step *step = add_step(steps, wave, p->batch * p->heads_kv, t->warps * wave, choice->smem);
    step->image = image_of(t);
    name_step(steps, step, "stw_attn_bwd_%s_%s", t->id, type);
}

static void add_bwd(const stw_variant *t, const stw_attn_params *params, uint32_t wave, stw_attn_steps *steps) {
    const char *type = stw_dtype_name((stw_dtype)params->dtype);
    stw_attn_choice choice;
    stw_attn_params seen;
    choose(t, params, wave, &choice, &seen);
    const stw_attn_params *p = &seen;
    steps->split = choice.split;
    const uint32_t one_kernel = STW_FEAT_STARTED_DQ | STW_FEAT_FINISHED_DQ;
    if (t->loop->gpu->whole && !(p->features & one_kernel)) {
        add_whole(t, p, &choice, wave, type, steps);
        return;
    }
    if (!(p->features & STW_FEAT_FINISHED_DQ)) add_preprocess(t, p, &choice, wave, type, steps);
    if (!(p->features & one_kernel)) {
        const int summed = stw_attn_bias_is_summed(p);
        if (choice.visible_heads) add_visible(t, p, &choice, wave, steps);
        if (lists_hidden(&choice, p))
            add_hidden_blocks(p, interval_heads(params, 1) + block_heads(params), hidden_keys(&choice), wave, steps);
        if (summed) add_dbias_reduce(t, p, &choice, wave, type, steps);
        if (p->outputs & (STW_OUT_DQKV | (summed ? 0u : STW_OUT_DBIAS)))
            add_main_loop(t, p, &choice, wave, type, steps);
    }
    if (!(p->features & STW_FEAT_STARTED_DQ)) add_postprocess(t, p, &choice, wave, steps);
    if (!steps->unnamed) steps->workspace = layout_of(t, &choice, p).total; /* the plan's suffices for its class */
}

static void fill_steps(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                       stw_attn_steps *steps_out) {
    stw_attn_params seen = *params;
    seen.batch = batch_seen(call, params);
    params = &seen;
    if (call == STW_CALL_BWD) {
        add_bwd(tile, params, wave, steps_out);
    } else if (call == STW_CALL_FWD) {
        uint32_t smem = fwd_smem(stored_of(params, wave), tile->head_dim, tile->bm, tile->bn);
        stw_attn_step *step = add_step(steps_out, wave, params->heads_q * stw_tiles_of_head(params, tile->bm) + 1,
                                       tile->warps * wave, smem);
        step->image = image_of(tile);
        name_step(steps_out, step, "stw_attn_fwd_%s_%s", tile->id, stw_dtype_name((stw_dtype)params->dtype));
        add_hidden_blocks(params, interval_heads(params, 1), tile->bn, wave, steps_out);
    } else {
        int64_t heads = params->batch * params->heads_q;
        stw_attn_step *step = add_step(steps_out, wave, heads * stw_blocks_of(params->max_seq_q, MASK_ROWS) + 1,
                                       STW_ROW_THREADS, STW_ROW_SMEM);
        name_step(steps_out, step, "stw_attn_dropout_mask");
    }
}

void stw_attn_steps_of(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                       stw_attn_steps *steps_out) {
    memset(steps_out, 0, sizeof *steps_out);
    fill_steps(call, tile, params, wave, steps_out);
}

void stw_attn_unnamed_steps_of(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params,
                               uint32_t wave, stw_attn_steps *steps_out) {
    memset(steps_out, 0, sizeof *steps_out);
    steps_out->unnamed = 1;
    fill_steps(call, tile, params, wave, steps_out);
}

/* ---- the argument ---- */

/* Zeros behind a row make it whole vectors. */
static uint32_t vector_cols(const stw_attn_params *p, uint32_t element, uint32_t cols, uint32_t bit) {
    uint32_t vector = 16 / element;
    return p->features & STW_FEAT_PADDED * bit ? (cols + vector - 1) / vector * vector : cols;
}

/* `bit` where the tensor and its rows start on multiples of so many bytes, and rows are made of them. */
static uint32_t even_bit(const stw_tensor_param *t, uint32_t element, uint32_t cols, uint32_t even, uint32_t bit) {
    uint64_t bytes = (uint64_t)(uintptr_t)t->data | (uint64_t)(t->batch | t->head | t->seq | (int64_t)cols) * element;
    return bytes % even ? 0 : bit;
}

static uint32_t vector_bit(const stw_tensor_param *t, uint32_t element, uint32_t cols, uint32_t bit) {
    return even_bit(t, element, cols, 16, bit);
}

_Static_assert(STW_VECTOR_Q == 1 && STW_VECTOR_K == 2 && STW_VECTOR_V == 4 && STW_VECTOR_OUT == 8 &&
                   STW_VECTOR_DOUT == 16,
               "the bits of STW_FEAT_PADDED");

static uint32_t vectors_of(const stw_attn_params *p) {
    uint32_t element = element_of(p), d = p->head_dim_qk, dv = p->head_dim_v, dq = p->dq_dtype == STW_F32 ? 4 : 2;
#define INPUT(name, cols, BIT) vector_bit(&p->name, element, vector_cols(p, element, cols, BIT), BIT)
    return INPUT(q, d, STW_VECTOR_Q) | INPUT(k, d, STW_VECTOR_K) | INPUT(v, dv, STW_VECTOR_V) |
           INPUT(out, dv, STW_VECTOR_OUT) | INPUT(dout, dv, STW_VECTOR_DOUT) |
           vector_bit(&p->dq, dq, d, STW_VECTOR_DQ) | even_bit(&p->dq, dq, d, 2 * dq, STW_PAIRS_DQ) |
           vector_bit(&p->dk, p->dk_dtype == STW_F32 ? 4 : 2, d, STW_VECTOR_DK) |
           vector_bit(&p->dv, p->dv_dtype == STW_F32 ? 4 : 2, dv, STW_VECTOR_DV);
#undef INPUT
}

/* Query rows of a kv head whose q, dout and dQ sums fit 32 MiB of L2. Under a mask key blocks differ in work, and
 * the rows of few heads should stay in L2. Where key blocks wait for one another the same number is taken: the more
 * heads, the fewer key blocks of one head are under way. 0: a head's key blocks go one after the other. */
static int64_t l2_rows(const stw_variant *tile, const stw_attn_choice *choice, const stw_attn_params *p) {
    if (!(p->features & STW_FEAT_WINDOW_RIGHT) && !stw_attn_masks(p) && !(choice->vectors & STW_KEYS_DESCEND)) return 0;
    return (INT64_C(32) << 20) / ((int64_t)tile->head_dim * (2 * element_of(p) + (int64_t)sizeof(float)) * p->group);
}

/* Dense keys: heads that together have `rows` query rows, and not more heads than there are, since sm90's own main loop
 * multiplies their number by the key blocks in 32 bits. */
static int64_t heads_in_l2(int64_t rows, const stw_attn_params *p) {
    int64_t beside = stw_heads_in_l2(p->heads_kv, rows, p->max_seq_q);
    return stw_larger(1, stw_smaller(beside, p->batch * p->heads_kv));
}

/* XCDs that get whole heads (STW_XCDS_SHIFT): of dense keys, in a grid of one row. */
static uint32_t xcds_of(const stw_attn_choice *choice, const stw_attn_params *p) {
    const int64_t heads = p->batch * p->heads_kv;
    if (choice->xcds < 2 || p->features & STW_FEAT_PACKED_KV || heads % choice->xcds) return 0;
    return p->heads_kv * key_blocks_of(choice, p) <= STW_GRID_X_HIP ? choice->xcds : 0;
}

/* What the main loop and the kernels around it share. l->p: the problem that its kernel sees. */
static void fill_main_loop(const stw_attn_choice *choice, const layout *w, stw_attn_launch *l) {
    int ordered = (l->p.features & STW_FEAT_DETERMINISTIC) != 0;
    l->bn = choice->bn;
    l->width = choice->width;
    l->warps = choice->warps;
    l->dq_rows = choice->dq_rows;
    l->vectors = choice->vectors;
    l->stats = (float *)w->stats;
    l->dq = (float *)w->dq;
    l->sink = (double *)w->sink;
    l->dq_semaphore = ordered ? (uint32_t *)w->dq_semaphore : NULL;
    l->unordered = ordered ? (uint32_t *)w->unordered : NULL;
    l->tile_counter = (uint64_t *)w->tile_counter;
    l->q_blocks = w->q_blocks;
    l->head_parts = choice->split.heads;
    l->row_parts = choice->split.rows;
    l->part_sums = uses_part_sums(choice) ? (float *)w->part_sums : NULL;
    l->part_entries = key_blocks_of(choice, &l->p) / (choice->adds_parts ? choice->split.rows : 1);
    l->part_cols = choice->part_cols;
    l->key_rows = choice->key_rows;
}

/* Which work tiles there are, and in which order. */
static void fill_work_tiles(const stw_variant *tile, const stw_attn_choice *choice, const layout *w,
                            stw_attn_launch *l) {
    l->lists = lists_of(choice, &l->p);
    l->key_blocks = (void *)w->key_blocks;
    l->k_blocks = stw_blocks_of(l->p.max_seq_kv, l->bn) * choice->split.rows;
    l->l2_rows = l2_rows(tile, choice, &l->p);
    l->heads_in_l2 = heads_in_l2(l->l2_rows, &l->p);
    const uint32_t xcds = xcds_of(choice, &l->p);
    if (xcds) {
        l->vectors |= xcds << STW_XCDS_SHIFT;
        while (l->p.batch * l->p.heads_kv / xcds % l->heads_in_l2) --l->heads_in_l2; /* an XCD has whole groups */
    }
    if (l->p.features & STW_FEAT_PACKED_KV) {
        l->listed = (uint64_t *)w->listed;
        l->listed_most = key_blocks_of(choice, &l->p);
    }
}

/* Masks in memory. `params`: the call's. */
static void fill_masks(const stw_attn_choice *choice, const stw_attn_params *params, const layout *w,
                       stw_attn_launch *l) {
    l->visible_blocks = (void *)w->visible_blocks;
    l->visible_words = (void *)w->visible_words;
    l->visible_next = visible_next_of(choice, &l->p) ? (uint16_t *)w->visible_next : NULL;
    l->visible_heads = choice->visible_heads;
    l->visible_rows = choice->visible_rows;
    l->visible_length = choice->visible_length;
    l->hidden_blocks = (stw_hidden_block *)w->hidden_blocks;
    l->hidden_keys = (stw_hidden_rows *)w->hidden_keys;
    l->hidden_bits = (uint32_t *)w->hidden_bits;
    l->hidden_words = hidden_words(params);
    l->block_heads = (uint32_t)block_heads(params);
}

/* Who makes dBias, and the tasks of a summed one. `params`: the call's. */
static void fill_dbias(const stw_variant *tile, const stw_attn_choice *choice, const stw_attn_params *params,
                       uint32_t wave, stw_attn_launch *l) {
    const dbias_tile *b = dbias_tile_of(tile, choice, params, wave);
    l->bias_direct = (params->outputs & STW_OUT_DBIAS) && !stw_attn_bias_is_summed(params);
    l->bias_batch = params->dbias.batch ? params->batch : 1;
    l->bias_heads = params->dbias.head ? params->heads_q : 1;
    l->bias_rows = params->dbias.query ? stw_blocks_of(params->max_seq_q, b->bm) : 1;
    l->bias_keys = params->dbias.key ? stw_blocks_of(params->max_seq_kv, b->bn) : 1;
}

void stw_attn_launch_fill(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                          stw_attn_launch *l) {
    *l = (stw_attn_launch){.p = *params};
    stw_attn_params few = *params;
    few.batch = l->p.batch = batch_seen(call, params);
    params = &few;
    int64_t keys = 0; /* of the tiles of which it is kept what masks hide */
    if (call != STW_CALL_DROPOUT_MASK) {
        l->bm = tile->bm;
        keys = l->bn = tile->bn;
        l->width = tile->head_dim;
        l->warps = tile->warps;
    }
    if (call == STW_CALL_BWD) {
        stw_attn_choice choice;
        choose(tile, params, wave, &choice, &l->p);
        const layout w = layout_of(tile, &choice, &l->p);
        fill_main_loop(&choice, &w, l);
        fill_work_tiles(tile, &choice, &w, l);
        fill_masks(&choice, params, &w, l);
        fill_dbias(tile, &choice, params, wave, l);
        keys = hidden_keys(&choice);
    }
    if (call != STW_CALL_DROPOUT_MASK) { /* the forward has no lists: it reads the masks themselves */
        l->hidden_tiles = hidden_tiles(params, keys);
        l->interval_heads = (uint32_t)interval_heads(params, 1);
    }
}

/* `*place`, an offset, becomes an address. */
#define PLACE(place) ((place) = (void *)((uintptr_t)(place) + (uintptr_t)workspace))

void stw_attn_launch_place(stw_attn_call call, const stw_attn_params *params, void *workspace, stw_attn_launch *l) {
    l->p = *params;
    l->p.batch = batch_seen(call, params);
    if (call != STW_CALL_DROPOUT_MASK) l->vectors |= vectors_of(params);
    if (call != STW_CALL_BWD) return;
    l->p.heads_kv *= l->head_parts;
    l->p.group /= l->head_parts;
    if (l->part_sums) PLACE(l->part_sums);
    if (params->features & STW_FEAT_KEPT_STATS) l->stats = params->delta.data;
    else PLACE(l->stats);
    if (params->features & STW_FEAT_KEPT_DQ) l->dq = params->dq.data;
    else PLACE(l->dq);
    PLACE(l->sink);
    PLACE(l->key_blocks);
    PLACE(l->tile_counter);
    if (l->visible_heads) {
        PLACE(l->visible_blocks);
        PLACE(l->visible_words);
        if (l->visible_next) PLACE(l->visible_next);
    }
    if (params->features & STW_FEAT_DETERMINISTIC) {
        PLACE(l->dq_semaphore);
        PLACE(l->unordered);
    }
    if (params->features & STW_FEAT_PACKED_KV) PLACE(l->listed);
    if (stw_attn_masks(params)) {
        PLACE(l->hidden_blocks);
        PLACE(l->hidden_keys);
        PLACE(l->hidden_bits);
    }
}

void stw_attn_launch_of(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params, uint32_t wave,
                        void *workspace, stw_attn_launch *launch_out) {
    stw_attn_launch_fill(call, tile, params, wave, launch_out);
    stw_attn_launch_place(call, params, workspace, launch_out);
}

const char *stw_attn_tile_refusal(stw_attn_call call, const stw_variant *tile, const stw_attn_params *params) {
    const stw_gpu_loop *loop = tile->loop->gpu;
    if (loop->call != call) return loop->call == STW_CALL_FWD ? "it is a forward's tile" : "it is a backward's tile";
    if (loop->f32 != (params->dtype == STW_F32))
        return loop->f32 ? "its kernels are f32's" : "its kernels are f16's and bf16's";
    if (loop->whole &&
        stw_packed_class((params->features & STW_FEAT_PACKED_KV) != 0, params->max_seq_kv) > (int64_t)tile->bn)
        return "its work tiles have all keys of a sequence, and these are more";
    if (loop->refusal) return loop->refusal(params);
    return NULL;
}

const char *stw_attn_stage_entry(const stw_attn_stage *stage) {
    return stage->element == 2 ? "stw_attn_stage_2" : "stw_attn_stage_4";
}

void stw_attn_stages_of(const stw_attn_stage *stages, uint32_t count, uint32_t wave, stw_attn_stages *all_out,
                        uint32_t *grid_x_out, uint32_t *grid_y_out) {
    int64_t work_tiles = 0;
    *all_out = (stw_attn_stages){.count = count};
    for (uint32_t i = 0; i < count; ++i) {
        all_out->stage[i] = stages[i];
        work_tiles += stages[i].batch * stages[i].heads * stw_stage_strips(&stages[i]);
        all_out->end[i] = work_tiles;
    }
    fold(work_tiles, wave, grid_x_out, grid_y_out);
}
