/* SPDX-License-Identifier: MIT
 *
 * The host side of CDNA's own main loop: which problems it takes and what it decides about them. Loops "cdna",
 * "cdna_tall" of head dim 192, "cdna_few" of gfx950; where the matrix unit takes subnormal operands for zero
 * "cdna_exact" and "cdna_exact_tall"; of f32 "cdna_f32". Kernels: attn_bwd_cdna.h. Where it does not take a
 * problem, the shared kernels of the same tile run. Pure functions. */
#include "attn_cdna_modes.h"

#include "backends/gpu/attn_tiled.h"
#include "common/size_class.h"
#include "sternway/attn_bwd.h"

/* Whether the matrix unit rounds its sums is not known: of f32 outputs it makes those of so many query rows at most.
 * Where there are more, work tiles are parts (split_of), or under masks in memory sums are drained. */
enum { CDNA_SUM_ROWS = 2048 };
enum { CDNA_WAVES = 4 }; /* of a workgroup */

/* The rows are whole vectors of `vector` elements. Where the tensor starts is not asked: a plan does not know it, and
 * CDNA's kernels take any address. */
static int is_whole(const stw_tensor_param *t, uint32_t cols, int64_t vector) {
    return ((t->batch | t->head | t->seq | (int64_t)cols) & (vector - 1)) == 0;
}

/* 32-bit offsets reach all of a head and the blocks past its end. `element`: bytes. */
static int is_near(const stw_tensor_param *t, int64_t rows, int64_t element) {
    return t->seq >= 0 && t->seq < INT64_C(1) << 26 && (rows + 256) * (t->seq + 256) < (INT64_C(1) << 31) / element;
}

/* Of 16-bit elements. */
static int is_even(const stw_tensor_param *t, int64_t rows, uint32_t cols) {
    return is_whole(t, cols, 8) && is_near(t, rows, 2);
}

/* Of dK or dV; 0: nobody wants it. */
static uint32_t element_of(const stw_attn_params *p, uint32_t output, uint32_t dtype) {
    return !(p->outputs & output) ? 0 : dtype == STW_F32 ? 4 : 2;
}

/* NULL, or the first tensor whose rows the main loop does not take, and why. Rows that are read are whole vectors,
 * maybe with zeros behind the last column (STW_FEAT_PADDED); dK and dV may lie anyhow. */
static const char *uneven_tensor(const stw_attn_params *p, int64_t rows, int64_t keys) {
#define TENSOR(name, field, side, cols, element, BIT)                                                                  \
    {&p->field,                                                                                                        \
     side,                                                                                                             \
     p->cols,                                                                                                          \
     element,                                                                                                          \
     BIT,                                                                                                              \
     "rows of " name " that are not whole vectors of 16 bytes",                                                        \
     "rows of " name " beyond 32-bit offsets"}
    const uint32_t element = p->dtype == STW_F32 ? 4 : 2, vector = 16 / element;
    const uint32_t dk = element_of(p, STW_OUT_DK, p->dk_dtype), dv = element_of(p, STW_OUT_DV, p->dv_dtype);
    const struct {
        const stw_tensor_param *tensor;
        int64_t rows;
        uint32_t cols, element; /* bytes */
        uint32_t padded;        /* its bit; 0: it is written */
        const char *not_whole, *far;
    } tensors[] = {TENSOR("q", q, rows, head_dim_qk, element, STW_VECTOR_Q),
                   TENSOR("dout", dout, rows, head_dim_v, element, STW_VECTOR_DOUT),
                   TENSOR("k", k, keys, head_dim_qk, element, STW_VECTOR_K),
                   TENSOR("v", v, keys, head_dim_v, element, STW_VECTOR_V),
                   TENSOR("dk", dk, keys, head_dim_qk, dk, 0),
                   TENSOR("dv", dv, keys, head_dim_v, dv, 0)};
#undef TENSOR
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) {
        if (!tensors[i].element) continue;
        const uint32_t padded = p->features & STW_FEAT_PADDED * tensors[i].padded ? vector - 1 : 0;
        const uint32_t cols = (tensors[i].cols + padded) & ~padded;
        if (tensors[i].padded && !is_whole(tensors[i].tensor, cols, vector)) return tensors[i].not_whole;
        if (!is_near(tensors[i].tensor, tensors[i].rows, tensors[i].element)) return tensors[i].far;
    }
    return NULL;
}

/* The epilogue stores up to four neighbouring columns of dK and dV at once: where rows have others, it leaves them in
 * the workspace, and the last kernel stores each by itself. */
static int is_apart(const stw_attn_params *p) { return ((p->head_dim_qk | p->head_dim_v) & 3) != 0; }

/* NULL, or why they must not: deterministic mode promises a workspace of at most 4 times dQ in f32. */
static const char *apart_refusal(const stw_attn_params *p) {
    if (!is_apart(p) || !(p->features & STW_FEAT_DETERMINISTIC)) return NULL;
    const int packed = (p->features & (STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV)) != 0;
    return packed || p->max_seq_kv > p->max_seq_q * p->group
               ? "head dims that are no multiples of 4 in deterministic mode, packed or with more keys than query rows"
               : NULL;
}

static int64_t class_of_rows(const stw_attn_params *p) {
    return stw_packed_class((p->features & STW_FEAT_PACKED_Q) != 0, p->max_seq_q);
}

static int64_t class_of_keys(const stw_attn_params *p) {
    return stw_packed_class((p->features & STW_FEAT_PACKED_KV) != 0, p->max_seq_kv);
}

/* Kernels of a mode, by head dim; NAME_exact follows those of two waves on some archs (attn_cdna_modes.h). */
enum { WAVES_none, WAVES_one, WAVES_two }; /* of a SIMD */
#define NUMBER(name, ...) MODE_##name,
#define WAVES(name, MODE, d32, d64, d96, d128, d192, d256, ...)                                                        \
    [MODE_##name] = {WAVES_##d32, WAVES_##d64, WAVES_##d96, WAVES_##d128, WAVES_##d192, WAVES_##d256},
#define NAMES(name, ...) [MODE_##name] = {#name, #name "_exact"},
enum { STW_CDNA_MODES(NUMBER, ) MODE_plain, MODE_ordered, MODE_every, MODE_every_ordered, MODES };
static const uint8_t waves[MODE_plain][6] = {STW_CDNA_MODES(WAVES, )};
static const char *const names[MODES][2] = {
    STW_CDNA_MODES(NAMES, )[MODE_plain] = {"plain", "exact"}, [MODE_ordered] = {"ordered", NULL},
    [MODE_every] = {"every", "every_exact"}, [MODE_every_ordered] = {"every_ordered", NULL}};

/* What a call asks of pairs or of order, and the modes that do it, in the order of preference. */
typedef struct cdna_mode {
    uint32_t always, maybe; /* features: those that each call has, those that it may have */
    uint32_t bytes;         /* a bias of bytes alone                                      */
    uint32_t number;
} cdna_mode;
#define SINGLE_PAIRS  (STW_FEAT_BIAS | STW_FEAT_ALIBI | STW_FEAT_SOFTCAP | STW_FEAT_DROPOUT)
#define MASKS         (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)
#define DETERMINISTIC STW_FEAT_DETERMINISTIC

static uint32_t waves_of(const cdna_mode *mode, uint32_t head_dim) {
    const int column = head_dim <= 128 ? (int)head_dim / 32 - 1 : head_dim <= 192 ? 4 : 5;
    if (mode->number < MODE_plain) return waves[mode->number][column];
    return mode->number >= MODE_every || head_dim > 64 ? WAVES_one : WAVES_two;
}

/* Sums of f32 dK or dV would have more than CDNA_SUM_ROWS query rows in a whole work tile. */
static int has_long_sums(const stw_attn_params *p) {
    const int wide = element_of(p, STW_OUT_DK, p->dk_dtype) == 4 || element_of(p, STW_OUT_DV, p->dv_dtype) == 4;
    return wide && p->dtype != STW_F32 && !(p->features & STW_FEAT_ROUNDED_SUMS) &&
           class_of_rows(p) > CDNA_SUM_ROWS / stw_larger(p->group, 1);
}

/* gfx950's loop has the kernels plain, ordered, bias and every alone. */
extern const stw_attn_loop stw_attn_loop_cdna_few;
static int is_few(const stw_variant *tile) { return tile->loop == &stw_attn_loop_cdna_few; }

/* `every` takes turns, but not on gfx90a: with its exact steps a kernel for both modes would have scratch. */
extern const stw_attn_loop stw_attn_loop_cdna_exact, stw_attn_loop_cdna_exact_tall;
static int every_takes_turns(const stw_variant *tile) {
    return tile->loop != &stw_attn_loop_cdna_exact && tile->loop != &stw_attn_loop_cdna_exact_tall;
}

static const cdna_mode *mode_of(const stw_variant *tile, const stw_attn_params *p) {
    enum { ALIBI = STW_FEAT_ALIBI, CAP = STW_FEAT_SOFTCAP, DROPS = STW_FEAT_DROPOUT, BIAS = STW_FEAT_BIAS };
    static const cdna_mode modes[] = {{0, 0, 0, MODE_plain},
                                      {DETERMINISTIC, 0, 0, MODE_ordered},
                                      {ALIBI, DETERMINISTIC, 0, MODE_alibi},
                                      {CAP, DETERMINISTIC, 0, MODE_softcap},
                                      {ALIBI, DROPS | DETERMINISTIC, 0, MODE_dropout},
                                      {CAP, DROPS | DETERMINISTIC, 0, MODE_dropout},
                                      {DROPS, DETERMINISTIC, 0, MODE_dropout},
                                      {BIAS, DETERMINISTIC, 1, MODE_bytes},
                                      {BIAS, DETERMINISTIC, 0, MODE_bias},
                                      {MASKS, DETERMINISTIC, 0, MODE_hidden},
                                      {MASKS | DETERMINISTIC, 0, 0, MODE_hidden_ordered},
                                      {0, BIAS | ALIBI | DROPS | MASKS | DETERMINISTIC, 0, MODE_bias},
                                      {0, BIAS | ALIBI | CAP | DROPS | MASKS | DETERMINISTIC, 0, MODE_every},
                                      {DETERMINISTIC, BIAS | ALIBI | CAP | DROPS | MASKS, 0, MODE_every_ordered}};
    uint32_t features = p->features & (SINGLE_PAIRS | MASKS | DETERMINISTIC);
    if (features & MASKS) features |= MASKS; /* one kernel for both */
    const uint32_t bytes = (features & STW_FEAT_BIAS) && p->bias_dtype == STW_U8;
    const int drains = (features & MASKS) && has_long_sums(p);
    const int by_key = (features & STW_FEAT_ALIBI) && (p->features & STW_FEAT_ALIBI_COLUMN);
    const int adds = (p->accumulate & STW_OUT_DBIAS) && !stw_attn_bias_is_summed(p);
    const int ordered = (features & DETERMINISTIC) != 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; ++i) {
        const uint32_t number = modes[i].number, has = waves_of(&modes[i], tile->head_dim);
        if (by_key && number != MODE_bias && number < MODE_every) continue;
        if (adds && number < MODE_every) continue;
        if (is_few(tile) && number < MODE_plain && number != MODE_bias) continue;
        if (ordered && number == MODE_every && !every_takes_turns(tile)) continue;
        if (drains && number == MODE_hidden && has == WAVES_two) continue;
        const uint32_t maybe = modes[i].maybe & (has == WAVES_two ? ~DETERMINISTIC : ~0u);
        if (has != WAVES_none && (features & ~maybe) == modes[i].always && modes[i].bytes <= bytes) return &modes[i];
    }
    return NULL;
}

/* Of what is not refused, the problems for which CDNA has its own kernels before and after the main loop, too. */
static int cdna_preprocess(const stw_attn_params *p) {
    const uint32_t options = STW_FEAT_DLSE | STW_FEAT_GIVEN_DELTA | STW_FEAT_WRITE_DELTA;
    int64_t rows = class_of_rows(p);
    return !(p->features & options) && !(p->outputs & STW_OUT_DSINK) && is_even(&p->out, rows, p->head_dim_v) &&
           p->lse.seq >= 0 && (rows + 256) * (p->lse.seq + 1) < INT64_C(1) << 29;
}

/* 32-bit offsets reach all pairs of a head and those past its end. */
static int is_near_bias(const stw_attn_params *p, const stw_bias_param *t, uint32_t dtype) {
    const int64_t rows = class_of_rows(p) + 256, keys = class_of_keys(p) + 256;
    const int64_t most = INT64_C(1) << (dtype == STW_F32 ? 29 : 30);
    return t->query >= 0 && t->key >= 0 && t->query < most / rows && t->key < most / keys &&
           rows * t->query + keys * t->key < most;
}

/* NULL, or why the kernels for a bias do not take it: they load elements of q's type, f32 or bytes by 32-bit offsets.
 * The tanh of 16 bits is 1 - u, whose error does not shrink with it: there dBias of every pair under a softcap is not
 * f32. */
static const char *bias_refusal(const stw_attn_params *p) {
    if (p->bias_dtype != p->dtype && p->bias_dtype != STW_U8 && p->bias_dtype != STW_F32)
        return "a bias of neither q's type nor f32 nor bytes";
    if (!is_near_bias(p, &p->bias, p->bias_dtype)) return "rows of the bias beyond 32-bit offsets";
    const int direct = (p->outputs & STW_OUT_DBIAS) && !stw_attn_bias_is_summed(p);
    if (direct && (p->features & STW_FEAT_SOFTCAP) && p->dbias_dtype == STW_F32 && p->dtype != STW_F32)
        return "f32 dBias of every pair under a softcap";
    if (direct && !is_near_bias(p, &p->dbias, p->dbias_dtype)) return "rows of dBias beyond 32-bit offsets";
    return NULL;
}

/* dK or dV of 16 bits: drained sums are f32. */
static int has_short_keys(const stw_attn_params *p) {
    return element_of(p, STW_OUT_DK, p->dk_dtype) == 2 || element_of(p, STW_OUT_DV, p->dv_dtype) == 2;
}

/* NULL, or what no mode knows. */
static const char *mode_refusal(const stw_variant *tile, const stw_attn_params *p) {
    stw_attn_params rest = *p;
    const int drains = stw_attn_masks(p) != NULL; /* else split_of */
    if (!has_long_sums(p) ||
        (drains ? !has_short_keys(p) : stw_attn_short_sums(p, STW_CDNA_BN(tile->head_dim), CDNA_SUM_ROWS).heads))
        rest.dk_dtype = rest.dv_dtype = rest.dtype;
    rest.features &= ~(MASKS | SINGLE_PAIRS);
    const char *full = stw_attn_needs_full(&rest);
    if (full) return full;
    if ((p->features & STW_FEAT_SOFTCAP) && p->dtype != STW_F32 && !(p->softcap >= 0x1p-6f && p->softcap <= 0x1p9f))
        return "a softcap that is not from 1/64 to 512";
    if ((p->features & STW_FEAT_SOFTCAP) && !(p->softcap >= 0x1p-60f && p->softcap <= 0x1p60f))
        return "a softcap that is not from 2^-60 to 2^60";
    if ((p->features & STW_FEAT_DROPOUT) && p->dropout_map == STW_DROPOUT_MEM_EFF && !((float)p->dropout_p < 1.0f))
        return "a dropout_p that is 1 in f32, by the map mem_eff";
    return p->features & STW_FEAT_BIAS ? bias_refusal(p) : NULL;
}

/* NULL, or why sums of dQ in f32 may lose too much. A work tile adds once to a sum, which loses at most 2^-126, and the
 * scale multiplies that; the accuracy rule grants dQ 2^-126 a key. */
static const char *scale_refusal(const stw_variant *tile, const stw_attn_params *p) {
    const float most = (float)STW_CDNA_F32_BN(tile->head_dim);
    return p->dtype == STW_F32 && !(p->scale >= -most && p->scale <= most)
               ? "a scale of f32 above the keys of a work tile"
               : NULL;
}

/* NULL, or what keeps the problem from CDNA's own kernels. They know what mode_of() lists, and make dQ, dK and dV,
 * whether all are wanted or not. Sizes are taken as their classes (common/size_class.h), since plans are kept by
 * these. */
static const char *cdna_refusal(const stw_variant *tile, const stw_attn_params *p) {
    const int64_t rows = class_of_rows(p), keys = class_of_keys(p);
    const char *why = mode_refusal(tile, p);
    if (!why) why = scale_refusal(tile, p);
    if (!why && !(p->outputs & STW_OUT_DQKV)) why = "no dQ, dK or dV is wanted";
    if (!why && (rows + 256) * tile->head_dim * 4 >= INT64_C(1) << 31) why = "too many queries for 32-bit offsets";
    if (!why) why = uneven_tensor(p, rows, keys);
    return why ? why : apart_refusal(p);
}

/* Work tiles of these kernels may be parts, as many as keep compute units busy. Nothing of it was measured. The costs
 * are estimates in steps of 32 rows: a tile's from the table of the issue model in docs/performance/amd.md, a part's
 * twice what 27 bytes a cycle to memory and 64 back give, since 256 MB of sums leave the Infinity Cache, the share
 * H200's. What masks hide is listed by whole work tiles. */
static stw_attn_split split_of(const stw_variant *tile, const stw_attn_params *p, uint32_t bn) {
    if (stw_attn_masks(p)) return (stw_attn_split){1, 1};
    const stw_attn_costs bits_16 = {.tile = 3.0, .part = 5.0, .share = 0.0027},
                         f32 = {.tile = 1.0, .part = 1.4, .share = 0.0027};
    const int one = p->dtype == STW_F32 || waves_of(mode_of(tile, p), tile->head_dim) == WAVES_one;
    const int64_t rows_most = has_long_sums(p) ? CDNA_SUM_ROWS : 0;
    return stw_attn_split_of(tile, bn, p, one ? 1 : 2, rows_most, p->dtype == STW_F32 ? &f32 : &bits_16);
}

/* XCDs by their compute units: 38 each of MI300X, MI325X, MI300A and their partitions, 32 of MI350X and MI355X; gfx90a
 * has multiples of neither. Workgroups of deterministic mode take work tiles in the order of the turns. */
static uint32_t xcds_of(const stw_attn_params *p) {
    const uint32_t units = p->units % 38 ? 32 : 38;
    return p->features & STW_FEAT_DETERMINISTIC || p->units % units ? 0 : p->units / units;
}

/* The stride of a single row may be anything, and rows past the last must not lie in it. */
static int cdna_postprocess(const stw_attn_params *p) {
    return (p->outputs & STW_OUT_DQ) && p->dq_dtype == p->dtype && !(p->accumulate & STW_OUT_DQ) &&
           !(p->outputs & STW_OUT_DSINK) && is_even(&p->dq, class_of_rows(p), p->head_dim_qk) &&
           p->dq.seq >= (int64_t)p->head_dim_qk;
}

static void plan(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    stw_attn_tiled_plan(tile, p, wave, 0, out);
    if (cdna_refusal(tile, p)) return;
    out->mode = names[mode_of(tile, p)->number][0];
    out->sums_dq = 1;
    out->bn = STW_CDNA_BN(tile->head_dim);
    out->smem = STW_CDNA_SMEM(tile->head_dim);
    out->vectors = STW_STATS_NEGATED | (p->features & STW_FEAT_DETERMINISTIC ? STW_KEYS_DESCEND : 0);
    out->small_rows = STW_CDNA_ROWS;
    out->split = split_of(tile, p, out->bn);
    out->apart = (uint32_t)is_apart(p);
    out->xcds = xcds_of(p);
    if (cdna_preprocess(p)) out->preprocess = p->features & STW_FEAT_DETERMINISTIC ? "cdna_ordered" : "cdna";
    out->postprocess = cdna_postprocess(p) ? "cdna" : NULL;
}

/* A kernel after the main loop takes the work tiles that the main loop has left alone. */
static void plan_exact(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    plan(tile, p, wave, out);
    if (cdna_refusal(tile, p)) return;
    const cdna_mode *mode = mode_of(tile, p);
    const int every = mode->number == MODE_every && p->dtype != STW_F16; /* which does them at once */
    if (mode->number == MODE_plain || every || waves_of(mode, tile->head_dim) == WAVES_two)
        out->exact = names[mode->number][1];
}

/* Kernels for head_dim_v up to STW_CDNA_TALL_V, which one tile has besides: without features of single pairs, and
 * without masks in memory. */
static void make_tall(const stw_variant *tile, const stw_attn_params *p, stw_attn_choice *out) {
    if (p->head_dim_v > STW_CDNA_TALL_V || cdna_refusal(tile, p) || p->features & (MASKS | SINGLE_PAIRS)) return;
    out->mode = p->features & STW_FEAT_DETERMINISTIC ? "tall_ordered" : "tall";
}

static void plan_tall(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    plan(tile, p, wave, out);
    make_tall(tile, p, out);
}

/* f32: kernels of four waves, whatever the table says of the shared ones. The shared preprocess and postprocess kernels
 * stand around them. `every` and `every_ordered` know all features. */
static void plan_f32(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    stw_attn_tiled_plan(tile, p, wave, 0, out);
    if (cdna_refusal(tile, p)) return;
    const int ordered = (p->features & STW_FEAT_DETERMINISTIC) != 0,
              every = (p->features & (SINGLE_PAIRS | MASKS)) != 0;
    const int number = every ? ordered ? MODE_every_ordered : MODE_every : ordered ? MODE_ordered : MODE_plain;
    out->mode = names[number][0];
    out->sums_dq = 1;
    out->warps = CDNA_WAVES;
    out->dq_rows = 1;
    out->bn = STW_CDNA_F32_BN(tile->head_dim);
    out->smem = STW_CDNA_F32_SMEM(tile->head_dim);
    out->split = split_of(tile, p, out->bn);
    out->apart = (uint32_t)is_apart(p);
    out->xcds = xcds_of(p);
    out->vectors = STW_STATS_NEGATED | (ordered ? STW_KEYS_DESCEND : 0);
}

static void plan_exact_tall(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    plan_exact(tile, p, wave, out);
    make_tall(tile, p, out);
}

#define CDNA .call = STW_CALL_BWD
STW_ATTN_LOOP(cdna, CDNA, .slower = cdna_refusal, .plan = plan);
STW_ATTN_LOOP(cdna_few, CDNA, .slower = cdna_refusal, .plan = plan);
STW_ATTN_LOOP(cdna_tall, CDNA, .slower = cdna_refusal, .plan = plan_tall);
STW_ATTN_LOOP(cdna_exact, CDNA, .slower = cdna_refusal, .plan = plan_exact);
STW_ATTN_LOOP(cdna_f32, CDNA, .f32 = 1, .slower = cdna_refusal, .plan = plan_f32);
STW_ATTN_LOOP(cdna_exact_tall, CDNA, .slower = cdna_refusal, .plan = plan_exact_tall);
