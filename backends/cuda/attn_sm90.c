/* SPDX-License-Identifier: MIT
 *
 * The host side of sm90's own main loops: which problems they take, what they decide about them, and the tensor maps
 * (TMA descriptors) of a call. Every other problem goes to the shared kernels.
 *
 *     loop         head_dim            kernels
 *     sm90         to 128 ("narrow")   attn_bwd_sm90.h
 *     sm90_wide    to 256              attn_bwd_sm90_wide.h
 *     sm90_tall    to 192, v to 128    attn_bwd_sm90_tall.h
 *     sm90_short   to 128              attn_bwd_sm90_short.h: all keys of a sequence in one work tile
 *
 * Rules are tried in the order of common/tuning/attn_bwd.sm90.def, so a problem of narrow heads that `sm90` refuses may
 * run in a wider loop. The loops for few queries are in attn_sm90_few.c. */
#include "backends/cuda/attn_bwd_sm90_wide_sizes.h"
#include "backends/cuda/device.h"
#include "backends/cuda/tensor_map.h"
#include "backends/gpu/attn_tiled.h"
#include "common/params/attn_launch.h"
#include "common/size_class.h"
#include "sternway/attn_bwd.h"

#include <math.h>

#define WORK_TILES_MAX (INT64_C(1) << 31)
enum { PANEL = 64, KEYS = 128, KEYS_WIDE = 80 }; /* columns of a panel, keys of a work tile */

/* The matrix unit truncates its sums; outputs of 16 bits hide that. So an f32 sum takes R query rows at most, a power
 * of two from 256 to 8192. R rows of one sign lose 1.2e-5 R / 2048 of their sum (H200). The rounding errors of P and
 * dS average out over the N rows that a key meets: R sqrt(N) is bounded, for f16 by an eighth of bf16's bound. */
static uint32_t sum_rows(const stw_attn_params *p) {
    const double most = (p->dtype == STW_F16 ? 1 : 8) * 96.0 * 1024,
                 met = (double)p->group * stw_attn_rows_met(p, KEYS);
    uint32_t rows = 8192;
    while (rows > 256 && (double)rows * rows * met > most * most) rows /= 2;
    return rows;
}

/* A tensor load steps by multiples of 16 bytes, forwards or not at all, and counts rows in 32 bits. */
static int stride_fits(int64_t stride, int64_t count) {
    return count <= 1 || (stride >= 0 && stride % 8 == 0 && stride < INT64_C(1) << 39);
}

static int tensor_fits(const stw_tensor_param *t, int64_t rows, int64_t heads, int64_t batch) {
    return rows < INT64_C(1) << 30 && heads < INT64_C(1) << 30 && batch < INT64_C(1) << 30 &&
           stride_fits(t->seq, rows) && stride_fits(t->head, heads) && stride_fits(t->batch, batch);
}

/* Key blocks of the largest problem that shares this one's size classes. */
static int64_t key_blocks_of_class(const stw_attn_params *p, uint32_t bn) {
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0, packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    stw_attn_params largest = {.features = p->features,
                               .batch = stw_packed_class(packed_q && packed_kv, p->batch),
                               .max_seq_kv = stw_packed_class(packed_kv, p->max_seq_kv),
                               .total_kv = stw_packed_class(packed_kv, p->total_kv)};
    return stw_key_blocks_most(&largest, bn);
}

/* Interval and block masks: the same kernels take either and both. */
#define MASKS (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)
/* Features of single pairs, which have kernels of their own. */
#define FEATURES (STW_FEAT_ALIBI | STW_FEAT_SOFTCAP | STW_FEAT_DROPOUT | STW_FEAT_BIAS | MASKS)

/* Interval and block masks: kv heads, and query heads of one, that have masks of their own. */
static uint32_t mask_heads(const stw_attn_params *p) {
    return p->intervals.head || p->block_mask.head ? p->heads_kv : 1;
}
static uint32_t mask_rows(const stw_attn_params *p) { return p->block_mask.head ? p->group : 1; }
static uint32_t mask_length(const stw_attn_params *p, uint32_t bm) {
    return (uint32_t)stw_blocks_of(stw_blocks_of(p->max_seq_q, bm), 32);
}

/* NULL, or why no kernel of work tiles of `bn` keys takes the masks of the problem. Words are counted for the smallest
 * query blocks, 64 rows. */
static const char *masks_refusal(const stw_attn_params *p, uint32_t bn) {
    if (p->features & STW_FEAT_DETERMINISTIC && stw_blocks_of(p->max_seq_kv, bn) >= STW_SM90_VISIBLE_NONE)
        return "with masks it numbers key blocks in 16 bits in deterministic mode";
    const int64_t blocks = stw_key_blocks_most(p, bn) * mask_heads(p), length = mask_length(p, PANEL);
    if (p->group > STW_SM90_VISIBLE_GROUP || length > STW_SM90_VISIBLE_LENGTH || blocks > INT32_MAX / 2 ||
        blocks * mask_rows(p) > UINT32_MAX / length)
        return "it numbers query blocks of masks in 20 bits, and words of them in 32";
    return NULL;
}

/* NULL, or what no kernel does: masks first, then features of single pairs. tanh is right within 2^-22, so above a
 * softcap of 512 scores would err by more than the rounding of P. Below 1/64 the factor of scores could overflow. */
static const char *features_refusal(const stw_attn_params *p, uint32_t bn) {
    uint32_t f = p->features & FEATURES;
    const char *of_masks = f & MASKS ? masks_refusal(p, bn) : NULL;
    if (of_masks) return of_masks;
    if (f & STW_FEAT_SOFTCAP && !(p->softcap >= 0x1p-6f && p->softcap <= 0x1p9f))
        return "it takes a softcap from 1/64 to 512";
    if (f & STW_FEAT_DROPOUT && p->dropout_map == STW_DROPOUT_MEM_EFF && !((float)p->dropout_p < 1.0f))
        return "it takes no memory-efficient dropout of 1";
    return NULL;
}

/* Narrow heads: a bias of f32, or a gradient of every pair, which the kernel `bias_more` takes. */
static int wants_bias_more(const stw_attn_params *p) {
    return (p->features & STW_FEAT_BIAS && p->bias_dtype != p->dtype && p->bias_dtype != STW_U8) ||
           (p->outputs & STW_OUT_DBIAS && !stw_attn_bias_is_summed(p));
}
/* f32 dBias of every pair. That of a broadcast bias is summed by a kernel of its own. */
static int stores_f32_dbias(const stw_attn_params *p) {
    return p->outputs & STW_OUT_DBIAS && p->dbias_dtype == STW_F32 && !stw_attn_bias_is_summed(p);
}
/* The matrix unit truncates its sums, which 16 bits hide: f32 dBias was off by up to 1.8 times what is allowed (root
 * mean square, H200). S and dP of sums rounded to nearest are as good as f32, and took 1.1 to 2.1 times the shared
 * kernels' time (appendix/sm90.md). */
#define F32_DBIAS "it makes dBias of 16 bits: sums as good as f32 made it slower than this"
/* NULL, or what narrow heads' kernels do not. They count bytes between two queries of f32 in 31 bits. */
static const char *bias_refusal(const stw_attn_params *p) {
    const int64_t most = INT32_MAX / 4;
    if (!wants_bias_more(p)) return NULL;
    if (stores_f32_dbias(p)) return F32_DBIAS;
    if ((p->bias_dtype == STW_F32 && p->bias.query > most) || (p->outputs & STW_OUT_DBIAS && p->dbias.query > most))
        return "rows of the bias are more than 2 GiB apart";
    return NULL;
}

/* f32 dK or dV. */
static int has_f32_keys(const stw_attn_params *p) {
    return (p->outputs & STW_OUT_DK && p->dk_dtype != p->dtype) || (p->outputs & STW_OUT_DV && p->dv_dtype != p->dtype);
}

static int is_subset(const stw_attn_params *p) { return (p->outputs & STW_OUT_DQKV) != STW_OUT_DQKV; }

/* Kernels of narrow heads by their features. `mode`: the last word of the name; `ordered`: that of deterministic mode,
 * the same where one kernel serves both. `f32_mode` and `f32_ordered`: the same of the kernel that drains f32 sums of
 * whole work tiles, or NULL. It makes dQ, dK and dV, with a feature any of them. */
typedef struct kernel_mode {
    uint32_t features;
    const char *mode, *ordered, *f32_mode, *f32_ordered;
} kernel_mode;

/* What no other takes: it asks for every feature, and goes by lists of visible blocks. */
static const kernel_mode mode_all = {FEATURES, "all", "all", "all", "all"};

static const kernel_mode *mode_of_features(const stw_attn_params *p) {
    static const kernel_mode modes[] = {
        {STW_FEAT_DROPOUT | STW_FEAT_ALIBI, "dropout_alibi", "dropout_alibi", NULL, NULL},
        {STW_FEAT_DROPOUT | STW_FEAT_BIAS, "dropout_bias", "dropout_bias", NULL, NULL},
        {STW_FEAT_ALIBI, "alibi", "alibi_ordered", "alibi_outputs", "alibi_outputs"},
        {STW_FEAT_SOFTCAP, "softcap", "softcap_ordered", "softcap_outputs", "softcap_outputs"},
        {STW_FEAT_DROPOUT, "dropout", "dropout", "dropout_outputs", "dropout_outputs"},
        {STW_FEAT_BIAS, "bias", "bias", "bias_outputs", "bias_outputs"},
        {MASKS, "masks", "masks_ordered", "masks_outputs", "masks_outputs"},
        {0, "plain", "ordered", "outputs", "outputs_ordered"}};
    static const kernel_mode bias_more = {STW_FEAT_BIAS, "bias_more", "bias_more", NULL, NULL};
    const uint32_t given = p->features & FEATURES, f = given & MASKS ? given | MASKS : given;
    const int more = wants_bias_more(p), any_outputs = has_f32_keys(p) || is_subset(p);
    const kernel_mode *found = more && f == STW_FEAT_BIAS ? &bias_more : &mode_all;
    for (size_t i = 0; !more && i < sizeof modes / sizeof *modes; ++i)
        if (modes[i].features == f) found = &modes[i];
    return any_outputs && !found->f32_mode ? &mode_all : found;
}

/* A kernel that drains f32 sums takes the problem. */
static int is_drained(const stw_attn_params *p) {
    if (mode_of_features(p) == &mode_all) return 1;
    if (!mode_of_features(p)->f32_mode) return 0;
    return p->features & FEATURES ? has_f32_keys(p) || is_subset(p) : has_f32_keys(p) && !is_subset(p);
}

static const char *mode_of(const stw_attn_params *p, int parts) {
    const int ordered = (p->features & STW_FEAT_DETERMINISTIC) != 0;
    const kernel_mode *const of = mode_of_features(p);
    const int with_feature = (p->features & FEATURES) != 0;
    if (parts ? with_feature : is_drained(p)) return ordered ? of->f32_ordered : of->f32_mode;
    if (is_subset(p) || parts) return ordered ? "general_ordered" : "general";
    return ordered ? of->ordered : of->mode;
}

/* NULL, or why a loop with work tiles of `bn` keys does not take the problem: it goes to the shared kernels.
 * plain_outputs: sm90_short's, which makes all three gradients, dK and dV in the type of the inputs. */
static const char *refusal_of(const stw_attn_params *p, uint32_t bn, int plain_outputs) {
    const uint32_t gradients = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV, f = p->features;
    int packed_q = (f & STW_FEAT_PACKED_Q) != 0, packed_kv = (f & STW_FEAT_PACKED_KV) != 0;
    int64_t rows = packed_q ? stw_size_class(p->total_q) : p->max_seq_q,
            keys = packed_kv ? stw_size_class(p->total_kv) : p->max_seq_kv;
    int64_t batch_q = packed_q ? 1 : p->batch, batch_kv = packed_kv ? 1 : p->batch;
    if (rows < 1 || keys < 1 || p->max_seq_q < 1 || p->max_seq_kv < 1 || p->batch < 1 || p->heads_kv < 1)
        return "it takes no empty tensors";
    const char *of_scores = features_refusal(p, bn); /* which divides by rows */
    if (of_scores) return of_scores;
    if (!(p->outputs & gradients)) return "it makes dQ, dK and dV";
    if (plain_outputs && (p->outputs & gradients) != gradients) return "it makes dQ, dK and dV together";
    if (plain_outputs && (p->dk_dtype != p->dtype || p->dv_dtype != p->dtype))
        return "it makes dK and dV in the inputs' type";
    if (stw_attn_sees_one_key(p)) return "rows see one key, and its sums of dP are truncated, not rounded";
    if (p->scale == 0.0f) return "it hides pairs by infinite scores, which a scale of 0 makes NaN";
    if (key_blocks_of_class(p, bn) > (WORK_TILES_MAX - 1) / p->heads_kv) return "it counts work tiles in 31 bits";
    if (!tensor_fits(&p->q, rows, p->heads_q, batch_q) || !tensor_fits(&p->dout, rows, p->heads_q, batch_q) ||
        !tensor_fits(&p->k, keys, p->heads_kv, batch_kv) || !tensor_fits(&p->v, keys, p->heads_kv, batch_kv))
        return "tensor loads need strides of q, k, v and dout that are 0 or positive multiples of 16 bytes";
    return NULL;
}

static const char *refusal(const stw_attn_params *p) {
    const char *text = refusal_of(p, KEYS, 0);
    if (!text && mode_of_features(p) == &mode_all) text = masks_refusal(p, KEYS);
    if (!text) text = bias_refusal(p);
    if (!text && has_f32_keys(p) && !is_drained(p) && !stw_attn_short_sums(p, KEYS, sum_rows(p)).heads)
        return "without dQ, dK or dV its f32 sums would be of too many rows";
    return text;
}
/* Of wide heads, or NULL: a kernel of ALiBi and softcap, one of dropout, one of a bias of any type with any gradient,
 * one of masks in memory, one of f32 dK and dV and of few outputs, which drains sums of any length, and one of these
 * with dropout; for everything else one that asks for all of it, and one that does so where dBias of every pair under a
 * softcap is not dS'. Each serves deterministic mode and the other. `parts`: plain kernels and `dropout` take none. */
static const char wide_all[] = "all", wide_all_dbias[] = "all_dbias";
static int is_wide_all(const char *mode) { return mode == wide_all || mode == wide_all_dbias; }
static const char *wide_mode_of(const stw_attn_params *p, int parts) {
    const int outputs = has_f32_keys(p) || is_subset(p);
    const uint32_t f = p->features & FEATURES;
    const int all_pairs = p->outputs & STW_OUT_DBIAS && !stw_attn_bias_is_summed(p);
    if (all_pairs && f & STW_FEAT_SOFTCAP) return wide_all_dbias;
    if (!f) return outputs || parts ? "outputs" : NULL;
    if (f == STW_FEAT_DROPOUT) return outputs || parts ? "dropout_outputs" : "dropout";
    if (outputs) return wide_all;
    if (f == STW_FEAT_ALIBI || f == STW_FEAT_SOFTCAP) return "features";
    if (f == STW_FEAT_BIAS) return "bias";
    return f & ~MASKS ? wide_all : "masks";
}
/* What they make that narrow heads' kernels do not, they make of head dims that they pad by less than twice. */
static const char *refusal_of_wide(const stw_attn_params *p, uint32_t bn) {
    if (stores_f32_dbias(p)) return F32_DBIAS;
    const uint32_t f = p->features & FEATURES;
    const char *const mode = wide_mode_of(p, 0), *text = refusal_of(p, bn, 0);
    if (!text && is_wide_all(mode)) text = masks_refusal(p, bn); /* lists of visible blocks without masks, too */
    const int narrow = p->head_dim_qk <= 64 && p->head_dim_v <= 64;
    if (!text && narrow && mode && (!f || f == STW_FEAT_DROPOUT || f == STW_FEAT_BIAS || is_wide_all(mode)))
        return "it would pad 64 columns to 192, for f32 dK and dV, a subset of the gradients, dropout or a bias";
    return text;
}
static const char *refusal_wide(const stw_attn_params *p) { return refusal_of_wide(p, KEYS_WIDE); }
static const char *refusal_tall(const stw_attn_params *p) {
    if (p->features & STW_FEAT_DROPOUT) return "it has no room for what is dropped";
    if (p->features & STW_FEAT_BIAS) return "a thread has no two keys side by side, which a bias comes in";
    if (p->features & MASKS) return "it takes no interval and block masks";
    if (is_wide_all(wide_mode_of(p, 0))) return "it takes ALiBi or a softcap, with all gradients of the inputs' type";
    return p->head_dim_v > 128 ? "it takes head_dim_v to 128" : refusal_of_wide(p, KEYS);
}

/* Kernels of features take parts where they have one that drains, of 16-bit dK and dV; not by lists of visible blocks,
 * and not with dBias: the kernel after the main loop that sums it counts kv heads, not parts. */
static int takes_parts(const stw_attn_params *p) {
    const uint32_t f = p->features & FEATURES;
    const kernel_mode *const of = mode_of_features(p);
    return !f || (!(f & MASKS) && of != &mode_all && of->f32_mode && !has_f32_keys(p) && !(p->outputs & STW_OUT_DBIAS));
}

/* Narrow heads' kernels of f32 dK and dV in parts do not drain. Where another one drains whole work tiles, such sums
 * take parts only if the device wants some, and short sums need at most twice as many. */
static stw_attn_split split_of(const stw_variant *tile, const stw_attn_params *p) {
    const stw_attn_split whole = {1, 1};
    const stw_attn_costs costs = stw_attn_costs_of_h200(tile->head_dim);
    if (!has_f32_keys(p)) return stw_attn_split_of(tile, tile->bn, p, 1, 0, &costs);
    if (is_drained(p)) {
        const stw_attn_split wanted = stw_attn_split_of(tile, tile->bn, p, 1, 0, &costs),
                             least = stw_attn_short_sums(p, tile->bn, sum_rows(p));
        const uint32_t parts = wanted.heads * wanted.rows;
        if (parts == 1 || !least.heads || least.heads * least.rows > 2 * parts) return whole;
    }
    return stw_attn_split_of(tile, tile->bn, p, 1, sum_rows(p), &costs);
}

/* CTAs take work tiles until none is left, also in deterministic mode: a CTA loads the next work tile while it works on
 * this one, which is worth more than what a work tile fetched ahead costs. Key blocks are numbered from the last
 * (STW_KEYS_DESCEND): then, under a causal mask, no earlier key block meets the first query block that a key block
 * meets. The dQ sums have panels of 64 columns. */
static void plan_of(const stw_variant *tile, const stw_attn_params *p, int takes_parts, stw_attn_choice *out) {
    int ordered = (p->features & STW_FEAT_DETERMINISTIC) != 0, bias = (p->features & STW_FEAT_BIAS) != 0;
    stw_attn_split split = takes_parts ? split_of(tile, p) : (stw_attn_split){1, 1};
    *out = (stw_attn_choice){.mode = mode_of(p, split.heads * split.rows > 1),
                             .early = 1,
                             .bn = tile->bn,
                             .width = (tile->head_dim + 63) / 64 * 64,
                             .smem = STW_SM90_SMEM(tile->head_dim),
                             .dq_rows = tile->bm / 16,
                             .vectors = (bias ? 0 : STW_STATS_NEGATED) | (ordered ? STW_KEYS_DESCEND : 0),
                             .queued = STW_QUEUED,
                             .split = split,
                             .key_rows = tile->warps};
}

/* Rows are whole vectors of 16 bytes, wherever the tensor starts. */
static int rows_are_whole(const stw_tensor_param *t, uint32_t cols) {
    return ((t->batch | t->head | t->seq | (int64_t)cols) & 7) == 0;
}

/* Which problems the kernels before and after the main loop take that are made for the bandwidth of memory
 * (attn_bwd_sm90_rows.h): those with the usual options. */
static int takes_preprocess(const stw_attn_params *p) {
    const uint32_t options = STW_FEAT_DLSE | STW_FEAT_GIVEN_DELTA | STW_FEAT_WRITE_DELTA;
    const int zeroes = p->outputs & STW_OUT_DBIAS && !stw_attn_bias_is_summed(p); /* dBias where nothing is visible */
    return (p->outputs & STW_OUT_DQ) && !(p->outputs & STW_OUT_DSINK) && !(p->features & options) && !zeroes &&
           rows_are_whole(&p->out, p->head_dim_v) && rows_are_whole(&p->dout, p->head_dim_v);
}

static int is_split(const stw_attn_choice *choice) { return choice->split.heads * choice->split.rows > 1; }

static int takes_postprocess(const stw_attn_params *p) {
    return (p->outputs & STW_OUT_DQ) && !(p->outputs & STW_OUT_DSINK) && !(p->accumulate & STW_OUT_DQ) &&
           p->dq_dtype == p->dtype && rows_are_whole(&p->dq, p->head_dim_qk);
}

/* Parts of a work tile add their sums of dK and dV in one place: the kernel before the main loop zeroes it, the one
 * after makes 16-bit dK and dV of it. In deterministic mode, and without these kernels, each part has its own. So it
 * has with ALiBi: far from the diagonal sums are so small that they would be added one by one (8 heads of 1024 rows, D
 * 64, H200: 0.062 ms for 0.034). A 16-bit bias can make sums as small. */
static int adds_parts(const stw_attn_params *p, const stw_attn_choice *choice) {
    const uint32_t keys = STW_OUT_DK | STW_OUT_DV,
                   apart = STW_FEAT_KEPT_STATS | STW_FEAT_KEPT_DQ | STW_FEAT_STARTED_DQ | STW_FEAT_FINISHED_DQ;
    return is_split(choice) && choice->preprocess && takes_postprocess(p) && !has_f32_keys(p) &&
           !(p->accumulate & keys) && !(p->features & (STW_FEAT_DETERMINISTIC | STW_FEAT_ALIBI | apart)) &&
           (!(p->features & STW_FEAT_BIAS) || p->bias_dtype == STW_U8) && rows_are_whole(&p->dk, p->head_dim_qk) &&
           rows_are_whole(&p->dv, p->head_dim_v);
}

static void plan_masks(const stw_variant *tile, const stw_attn_params *p, stw_attn_choice *out) {
    out->visible_heads = mask_heads(p);
    out->visible_rows = mask_rows(p);
    out->visible_length = mask_length(p, tile->bm);
}

/* Deterministic mode under a causal mask or a right window: key blocks add from the last to the first, so the longest
 * work tiles come last of their heads, and those of the last heads would be waited for. These heads go the other way
 * round, where the main loop's kernel serves deterministic mode alone and the kernel before it starts their semaphores
 * (attn_bwd_sm90_rows.h). */
static int last_heads_ascend(const stw_attn_params *p, const stw_attn_choice *choice) {
    const uint32_t f = p->features & FEATURES, packed = STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV;
    const int alone = !f || ((f == STW_FEAT_ALIBI || f == STW_FEAT_SOFTCAP) && !is_drained(p));
    return (p->features & STW_FEAT_DETERMINISTIC) && (p->features & STW_FEAT_WINDOW_RIGHT) && alone &&
           !(p->features & packed) && choice->preprocess && !is_split(choice);
}

static void plan(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    (void)wave;
    plan_of(tile, p, takes_parts(p), out);
    out->small_rows = tile->bm;
    out->preprocess = takes_preprocess(p) ? "sm90" : NULL;
    if (last_heads_ascend(p, out)) out->vectors |= STW_SM90_LAST_ASCEND;
    out->adds_parts = (uint32_t)adds_parts(p, out);
    if (out->adds_parts) out->vectors |= STW_SM90_PARTS_ADD;
    out->postprocess = takes_postprocess(p) && (!is_split(out) || out->adds_parts) ? "sm90" : NULL;
    const int all = mode_of_features(p) == &mode_all;
    if (all || p->features & STW_FEAT_DROPOUT) out->loaders = 128; /* a warpgroup decides what is dropped */
    if (all) out->vectors &= ~(uint32_t)STW_STATS_NEGATED;
    if (all || p->features & MASKS) plan_masks(tile, p, out);
}

/* Kernels that go by lists of visible blocks take no parts. dBias: see takes_parts. */
static int wide_takes_parts(const stw_attn_params *p) {
    return !(p->outputs & STW_OUT_DBIAS) && !(p->features & MASKS) && !is_wide_all(wide_mode_of(p, 0));
}

/* A step is of 64 queries at any head_dim, so a part costs as many steps at each. Tails: 8 heads on 1, S 8192, causal,
 * D 256 and 192 take 1.66 and 1.26 ms in 8 parts, 1.68 and 1.30 in 4; of D 192 and 128 in 8 0.98, in 4 0.92 (H200). */
static stw_attn_split split_of_wide(const stw_variant *tile, const stw_attn_params *p) {
    stw_attn_costs costs = stw_attn_costs_of_h200(128);
    const int tall = tile->bn == KEYS;
    const double cols = tall ? tile->head_dim : STW_SM90_WIDE_PART_COLS,
                 room = 3.5 * p->head_dim_qk - tile->head_dim; /* of 4 times dQ, without dQ's own sums */
    costs.tail = tall ? 0 : 1;
    costs.padded = room > 0 ? 2.5 * cols / room : INFINITY;
    return wide_takes_parts(p) ? stw_attn_split_of(tile, tile->bn, p, 1, 0, &costs) : (stw_attn_split){1, 1};
}

/* A warpgroup has the loads: it is not among the warps of the table, which the next kernel counts. */
static void plan_of_wide(const stw_variant *tile, const stw_attn_params *p, uint32_t smem, stw_attn_choice *out) {
    plan_of(tile, p, 0, out);
    out->split = split_of_wide(tile, p);
    const char *const mode = wide_mode_of(p, is_split(out));
    if (mode) out->mode = mode;
    if (is_wide_all(mode) || p->features & MASKS) plan_masks(tile, p, out); /* it goes by lists of visible blocks */
    if (is_wide_all(mode)) out->vectors &= ~(uint32_t)STW_STATS_NEGATED;
    out->smem = smem;
    out->loaders = 128;
}

/* 512 threads, of which three warpgroups multiply, or 384; dQ's sums are laid out for the 256 of the table. */
static void plan_wide(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    (void)wave;
    const int all = is_wide_all(wide_mode_of(p, 0));
    uint32_t more = 0;
    if (all || p->features & STW_FEAT_DROPOUT) more += STW_SM90_WIDE_DROPPED_BYTES(tile->head_dim);
    if (all || p->features & MASKS) more += STW_SM90_WIDE_SEEN_BYTES(tile->head_dim);
    plan_of_wide(tile, p, STW_SM90_WIDE_SMEM(tile->head_dim) + more, out);
    if (tile->head_dim <= 192) out->loaders = 256;
    out->key_rows = STW_SM90_WIDE_PART_ROWS(tile->head_dim);
    out->part_cols = STW_SM90_WIDE_PART_COLS;
}

static void plan_tall(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    (void)wave;
    plan_of_wide(tile, p, STW_SM90_TALL_SMEM, out);
}

/* ---- tensor maps: made in each run call, since they hold addresses; work of the driver on the host alone ---- */

_Static_assert(sizeof(stw_sm90_maps) <= STW_GPU_MAPS_BYTES, "room in a run call");

#define LOG2E 1.44269504088896340736f

typedef struct extent {
    int64_t rows, heads, batch;
} extent;

/* A stride that the driver accepts where it is never used: one element along that dimension. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride * 2 : 16; }

/* The driver takes no map of a tensor without rows, which no work tile loads from: one row, at `elsewhere`. */
static int encode(const stw_cuda_functions *cuda, const stw_tensor_param *t, const void *elsewhere, uint32_t cols,
                  extent e, uint32_t width, uint32_t box_rows, uint32_t dtype, stw_mapped_tensor *out) {
    uint64_t start = (uintptr_t)(e.rows ? t->data : elsewhere), rows = e.rows ? (uint64_t)e.rows : 1;
    out->panels = cols == width ? (int32_t)(cols / PANEL) : 0;
    uint64_t head = stride_of(t->head, e.heads), batch = stride_of(t->batch, e.batch), row = stride_of(t->seq, e.rows);
    uint32_t ones[5] = {1, 1, 1, 1, 1};
    if (out->panels) {
        uint64_t dims[5] = {PANEL, rows, cols / PANEL, (uint64_t)e.heads, (uint64_t)e.batch},
                 strides[4] = {row, PANEL * 2, head, batch};
        uint32_t box[5] = {PANEL, box_rows, cols / PANEL, 1, 1};
        return cuda->cuTensorMapEncodeTiled(&out->map, dtype, 5, start, dims, strides, box, ones, 0,
                                            STW_CUDA_SWIZZLE_128, STW_CUDA_L2_256, 0);
    }
    uint64_t dims[4] = {cols, rows, (uint64_t)e.heads, (uint64_t)e.batch}, strides[3] = {row, head, batch};
    uint32_t box[4] = {PANEL, box_rows, 1, 1};
    return cuda->cuTensorMapEncodeTiled(&out->map, dtype, 4, start, dims, strides, box, ones, 0, STW_CUDA_SWIZZLE_128,
                                        STW_CUDA_L2_256, 0);
}

/* `width`: columns of the loop where one load may bring all panels, else 0. */
static stw_status encode_all(stw_gpu *gpu, const stw_attn_launch *launch, uint32_t width, void *maps_out) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    const stw_attn_params *p = &launch->p;
    stw_sm90_maps *maps = maps_out;
    uint32_t dtype = p->dtype == STW_BF16 ? STW_CUDA_MAP_BF16 : STW_CUDA_MAP_F16;
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0, packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    extent q = {packed_q ? p->total_q : p->max_seq_q, p->heads_q, packed_q ? 1 : p->batch};
    extent kv = {packed_kv ? p->total_kv : p->max_seq_kv, p->heads_kv / launch->head_parts, packed_kv ? 1 : p->batch};
    const stw_cuda_functions *cuda = state->cuda;
    uint32_t d = p->head_dim_qk, dv = p->head_dim_v, bm = launch->bm, bn = launch->bn;
    const void *some = launch->stats ? (const void *)launch->stats : maps_out; /* nobody reads there */
    maps->factor = p->scale * LOG2E;
    maps->cap = p->softcap * LOG2E;
    maps->kept = p->features & STW_FEAT_DROPOUT ? 1.0f / p->dropout_scale : 1.0f;
    maps->log_kept = log2f(maps->kept);
    stw_attn_params whole = *p; /* rounding errors of all parts meet in one sum */
    whole.group *= launch->head_parts;
    maps->drain_rows = (int32_t)sum_rows(&whole);
    if (p->features & STW_FEAT_SOFTCAP) maps->factor *= 2.0f / p->softcap;
    int error = encode(cuda, &p->q, some, d, q, width, bm, dtype, &maps->q);
    if (!error) error = encode(cuda, &p->dout, some, dv, q, width, bm, dtype, &maps->dout);
    if (!error) error = encode(cuda, &p->k, some, d, kv, width, bn, dtype, &maps->k);
    if (!error) error = encode(cuda, &p->v, some, dv, kv, width, bn, dtype, &maps->v);
    return stw_cuda_check(state, STW_E_DRIVER, "cuTensorMapEncodeTiled", error);
}

static stw_status encode_maps(stw_gpu *gpu, const stw_attn_launch *launch, void *maps_out) {
    return encode_all(gpu, launch, launch->width, maps_out);
}

static stw_status encode_wide(stw_gpu *gpu, const stw_attn_launch *launch, void *maps_out) {
    return encode_all(gpu, launch, 0, maps_out);
}

/* ---- short sequences: a work tile has all keys, and dQ is complete in registers (attn_bwd_sm90_short.h) ---- */

static const char *refusal_short(const stw_attn_params *p) {
    if (p->features & FEATURES) return "its kernels of short sequences take no ALiBi, softcap, dropout, bias and masks";
    if (p->outputs & STW_OUT_DSINK) return "its kernels of short sequences sum no dSink";
    if (p->dq_dtype != p->dtype) return "its kernels of short sequences make dQ in the inputs' type";
    return refusal_of(p, KEYS, 1);
}

static void plan_short(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    (void)p;
    (void)wave;
    *out = (stw_attn_choice){.mode = "",
                             .bn = tile->bn,
                             .width = (tile->head_dim + 63) / 64 * 64,
                             .smem = STW_SM90_SHORT_SMEM(tile->head_dim, tile->bm, tile->bn),
                             .queued = STW_QUEUED_NEVER};
}

#define UNALIGNED .unaligned = "tensor loads start at multiples of 16 bytes"
STW_ATTN_LOOP(sm90_short, .call = STW_CALL_BWD, .whole = 1, UNALIGNED, .refusal = refusal_short, .plan = plan_short,
              .encode_maps = encode_maps);
STW_ATTN_LOOP(sm90, .call = STW_CALL_BWD, UNALIGNED, .refusal = refusal, .plan = plan, .encode_maps = encode_maps);
STW_ATTN_LOOP(sm90_wide, .call = STW_CALL_BWD, UNALIGNED, .refusal = refusal_wide, .plan = plan_wide,
              .encode_maps = encode_wide);
STW_ATTN_LOOP(sm90_tall, .call = STW_CALL_BWD, UNALIGNED, .refusal = refusal_tall, .plan = plan_tall,
              .encode_maps = encode_wide);
