/* SPDX-License-Identifier: MIT
 *
 * Plans over ranks: the check of a problem, the schedule by rule, plans of attn_bwd.h for all parts, the workspace.
 * What one rank alone can find is found before the exchange, so that the others hear of it. */
#include "cp.h"
#include "refusal.h"

#include "common/attn_packed.h"
#include "common/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const schedule_names[] = {"auto", "ring", "all-gather", "ulysses", "2-D"};
enum { STW_CP_SCHEDULES = sizeof schedule_names / sizeof schedule_names[0] };

void *stw_cp_grow(void *array_pointer, int64_t *count, size_t size) {
    void **array = array_pointer;
    if ((*count & (*count - 1)) == 0) { /* full at powers of two */
        void *larger = realloc(*array, (size_t)(*count ? 2 * *count : 1) * size);
        if (!larger) return NULL;
        *array = larger;
    }
    char *added = (char *)*array + (size_t)(*count)++ * size;
    memset(added, 0, size);
    return added;
}

static uint64_t hash_of(const stw_attn_desc *desc, uint32_t features) {
    uint64_t words[sizeof *desc / sizeof(uint64_t)], hash = features;
    _Static_assert(sizeof *desc == sizeof words, "a descriptor is whole words");
    memcpy(words, desc, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
        hash = (hash ^ words[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Where an engine stands in the table of engines, or where it would; `room` is a power of two. */
static size_t place_of(const stw_cp_plan *p, const int32_t *table, size_t room, const stw_attn_desc *desc,
                       uint32_t features) {
    size_t at = (size_t)hash_of(desc, features) & (room - 1);
    for (; table[at]; at = (at + 1) & (room - 1)) {
        const stw_cp_engine *there = &p->engines[table[at] - 1];
        if (there->features == features && !memcmp(&there->desc, desc, sizeof *desc)) break;
    }
    return at;
}

/* Room for twice the engines and one more. */
static int grow_table(stw_cp_plan *p) {
    size_t room = p->engine_room ? 2 * p->engine_room : 16;
    if (2 * (size_t)p->engine_count + 2 <= p->engine_room) return 1;
    int32_t *table = calloc(room, sizeof *table);
    if (!table) return 0;
    for (int64_t i = 0; i < p->engine_count; ++i)
        table[place_of(p, table, room, &p->engines[i].desc, p->engines[i].features)] = (int32_t)i + 1;
    free(p->engine_table);
    p->engine_table = table;
    p->engine_room = room;
    return 1;
}

/* Sums of dK and dV that end in 16 bits. Only those that are asked for count: parts make both. */
static int rounds_sums(const stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    if (p->kind != STW_PLAN_ATTN_BWD || stw_dtype_size(d->dtype) != 2) return 0;
    if (stw_cp_goes_by_heads(p)) return 0; /* there is one for each, and it has the rows of one device's call */
    if (d->outputs & STW_OUT_DK && d->dk_dtype != d->dtype) return 0;
    return !(d->outputs & STW_OUT_DV) || d->dv_dtype == d->dtype;
}

static uint32_t features_of_parts(const stw_cp_plan *p) {
    const int checked = p->attn.interval_form && p->context->ops->cp_intervals;
    return (rounds_sums(p) ? STW_FEAT_ROUNDED_SUMS : 0) | (checked ? STW_FEAT_CHECKED_INTERVALS : 0);
}

stw_status stw_cp_engine_get(stw_cp_plan *plan, const stw_attn_desc *desc, uint32_t features, int32_t *engine_out) {
    if (!grow_table(plan)) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", plan->call);
    features |= features_of_parts(plan);
    size_t place = place_of(plan, plan->engine_table, plan->engine_room, desc, features);
    if (plan->engine_table[place]) {
        *engine_out = plan->engine_table[place] - 1;
        return STW_OK;
    }
    stw_plan *made = NULL;
    stw_status status = stw_plan_build(plan->context, desc, plan->kind, features, NULL, &made);
    if (status) return status;
    stw_cp_engine *added = stw_cp_grow(&plan->engines, &plan->engine_count, sizeof *added);
    if (!added) {
        stw_plan_destroy(made);
        return stw_fail(STW_E_NO_MEMORY, "%s: no memory", plan->call);
    }
    added->desc = *desc;
    added->features = features;
    added->plan = made;
    plan->engine_table[place] = (int32_t)plan->engine_count;
    size_t bytes = stw_plan_workspace_size(made);
    const int has_own =
        !(features & (STW_FEAT_STARTED_DQ | STW_FEAT_FINISHED_DQ)); /* the others' are the plan's sums */
    if (has_own && bytes > plan->engine_workspace) plan->engine_workspace = bytes;
    *engine_out = (int32_t)(plan->engine_count - 1);
    return STW_OK;
}

/* ---- the check ---- */

static stw_status check_list(const stw_cp_plan *p, const char *name, const int32_t *cu, int packed,
                             const char *total_name, int64_t seq) {
    if (!packed) {
        if (cu) return stw_fail(STW_E_INVALID, "%s: %s is given, but attn's side is not packed", p->call, name);
        if (seq >= 0 && seq <= INT32_MAX) return STW_OK;
        return stw_fail(stw_range_status(seq, 0), "%s: seq_%s %lld is not in 0..2147483647", p->call, total_name,
                        (long long)seq);
    }
    if (seq)
        return stw_fail(STW_E_INVALID, "%s: seq_%s %lld is set, but attn's side is packed: accepted 0", p->call,
                        total_name, (long long)seq);
    if (!cu) return stw_fail(STW_E_INVALID, "%s: %s is null, but attn's side is packed", p->call, name);
    for (int64_t b = 0; b <= p->attn.batch; ++b)
        if (cu[b] < (b ? cu[b - 1] : 0) || (!b && cu[0]))
            return stw_fail(STW_E_INVALID, "%s: %s[%lld] is %d: starts are 0 first and never decrease", p->call, name,
                            (long long)b, cu[b]);
    return STW_OK;
}

static stw_status check_used(const stw_cp_plan *p, const char *name, const int32_t *used, int kv) {
    for (int64_t b = 0; used && b < p->attn.batch; ++b) {
        const int32_t *cu = kv ? p->desc.cu_seqlens_kv : p->desc.cu_seqlens_q;
        int64_t rows = cu ? cu[b + 1] - cu[b] : kv ? p->desc.seq_kv : p->desc.seq_q;
        if (used[b] < 0 || used[b] > rows)
            return stw_fail(STW_E_INVALID, "%s: %s[%lld] is %d, accepted: 0..%lld (rows of sequence %lld)", p->call,
                            name, (long long)b, used[b], (long long)rows, (long long)b);
    }
    return STW_OK;
}

static stw_status check_positions(const stw_cp_plan *p) {
    const stw_cp_desc *c = &p->desc;
    const int64_t offsets[] = {c->q_offset, c->k_offset};
    for (int i = 0; i < 2; ++i)
        if (offsets[i] < -STW_POSITION_MAX || offsets[i] > STW_POSITION_MAX)
            return stw_fail(STW_E_INVALID, "%s: %s %lld is beyond +-2^40", p->call, i ? "k_offset" : "q_offset",
                            (long long)offsets[i]);
    int used = (p->attn.flags & STW_ATTN_HAS_USED_LENGTHS) != 0;
    if (used != (c->used_q || c->used_kv))
        return stw_fail(STW_E_INVALID, "%s: used_q and used_kv are %s STW_ATTN_HAS_USED_LENGTHS in attn.flags", p->call,
                        used ? "both null with" : "given without");
    stw_status status;
    if ((status = check_list(p, "cu_seqlens_q", c->cu_seqlens_q, stw_attn_is_packed(&p->attn, 0), "q", c->seq_q)) ||
        (status = check_list(p, "cu_seqlens_kv", c->cu_seqlens_kv, stw_attn_is_packed(&p->attn, 1), "kv", c->seq_kv)) ||
        (status = check_used(p, "used_q", c->used_q, 0)))
        return status;
    return check_used(p, "used_kv", c->used_kv, 1);
}

/* Strides of the bias over all keys of the whole problem, which attn's own sizes do not tell. */
static stw_status check_bias(stw_cp_plan *p, int64_t keys) {
    stw_attn_desc d = p->attn, layout = p->attn;
    if (!d.bias_dtype) return STW_OK;
    layout.max_seq_kv = keys;
    layout.total_kv = layout.total_q = 0;
    layout.flags &= ~(STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV | STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_HAS_DIM_STRIDES);
    layout.dim = (stw_attn_dim_strides){0};
    stw_status status = stw_layout_bshd(&layout);
    if (status) return status;
    layout.bias = d.bias;
    layout.dbias = d.dbias;
    return stw_attn_check(&layout, p->kind);
}

static stw_status check_choices(const stw_cp_plan *p) {
    const stw_cp_desc *c = &p->desc;
    if (c->order != STW_CP_CONTIGUOUS && c->order != STW_CP_ZIGZAG)
        return stw_fail(STW_E_INVALID, "%s: order %d is none of contiguous 1, zigzag 2", p->call, (int)c->order);
    if ((unsigned)c->schedule >= STW_CP_SCHEDULES)
        return stw_fail(STW_E_INVALID, "%s: schedule %d is none of auto 0, ring 1, all-gather 2, ulysses 3, 2-D 4",
                        p->call, (int)c->schedule);
    if (c->ranks_per_node < 0 || c->ranks_per_node > STW_CP_SIZE_MAX)
        return stw_fail(STW_E_INVALID, "%s: ranks_per_node %d is not in 0..%d", p->call, c->ranks_per_node,
                        STW_CP_SIZE_MAX);
    if (c->head_groups < 0) return stw_fail(STW_E_INVALID, "%s: head_groups %d is below 0", p->call, c->head_groups);
    if (p->attn.dropout_p > 0 && p->attn.dropout_map != STW_DROPOUT_PHILOX)
        return stw_fail(STW_E_UNSUPPORTED,
                        "%s: attn.dropout_map %s counts positions of one call: over ranks it is philox 0", p->call,
                        p->attn.dropout_map == STW_DROPOUT_MEM_EFF ? "mem_eff 1" : "flash2 2");
    return STW_OK;
}

/* ---- sequences ---- */

static int64_t length_of(const stw_cp_plan *p, int64_t b, int kv) {
    const int32_t *cu = kv ? p->desc.cu_seqlens_kv : p->desc.cu_seqlens_q;
    return cu ? cu[b + 1] - cu[b] : kv ? p->desc.seq_kv : p->desc.seq_q;
}

/* Sequences of equal lengths are one call, others have a call each. */
static int are_together(const stw_attn_desc *d) {
    return !stw_attn_is_packed(d, 0) && !stw_attn_is_packed(d, 1) && !(d->flags & STW_ATTN_HAS_USED_LENGTHS);
}

/* Keys of a call over whole sequences, of unequal ones the mean. */
static int64_t rows_of_a_call(const stw_cp_plan *p) {
    int64_t rows = 0;
    for (int64_t b = 0; b < p->attn.batch; ++b) rows += length_of(p, b, 1);
    return are_together(&p->attn) || !p->attn.batch ? rows : rows / p->attn.batch;
}

static stw_status make_seqs(stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    const int together = are_together(d);
    int64_t count = together ? d->batch > 0 : d->batch;
    p->seqs = calloc((size_t)count + 1, sizeof *p->seqs);
    if (!p->seqs) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
    p->seq_count = count;
    for (int64_t s = 0; s < count; ++s) {
        stw_cp_seq *seq = &p->seqs[s];
        const int32_t *used[2] = {p->desc.used_q, p->desc.used_kv};
        seq->index = s;
        seq->batch = together ? d->batch : 1;
        for (int kv = 0; kv < 2; ++kv) {
            seq->rows[kv] = length_of(p, s, kv);
            seq->used[kv] = used[kv] ? used[kv][s] : seq->rows[kv];
            seq->held[kv] = stw_cp_rows_of(p->desc.order, seq->rows[kv], p->cp->rank, p->cp->size);
            seq->own[kv] = stw_cp_rows_of(p->desc.order, seq->rows[kv], p->shard, p->shards);
            seq->first[kv] = p->rows[kv];
            seq->base[kv] = p->shard_rows[kv];
            p->rows[kv] += seq->batch * seq->held[kv];
            p->shard_rows[kv] += seq->batch * seq->own[kv];
        }
        seq->shift = d->flags & STW_ATTN_HAS_SHIFT         ? d->diagonal_shift
                     : d->mask == STW_MASK_CAUSAL_TOP_LEFT ? 0
                                                           : seq->used[1] - seq->used[0];
        seq->start = p->desc.cu_seqlens_kv ? p->desc.cu_seqlens_kv[s] : 0;
        int64_t diagonal = seq->shift + p->desc.q_offset - p->desc.k_offset, open = INT64_C(1) << 60;
        seq->low = d->flags & STW_ATTN_HAS_WINDOW_LEFT ? diagonal - d->window_left : -open;
        seq->high = d->flags & STW_ATTN_HAS_WINDOW_RIGHT ? diagonal + d->window_right : open;
        if (d->mask != STW_MASK_NONE && diagonal < seq->high) seq->high = diagonal;
    }
    return STW_OK;
}

/* Whether each rank holds as many rows and keys as this one. */
static int has_equal_ranks(const stw_cp_plan *p) {
    for (int64_t rank = 0; rank < p->cp->size; ++rank)
        for (int kv = 0; kv < 2; ++kv) {
            int64_t rows = 0;
            for (int64_t s = 0; s < p->seq_count; ++s)
                rows += p->seqs[s].batch * stw_cp_rows_of(p->desc.order, p->seqs[s].rows[kv], rank, p->cp->size);
            if (rows != p->rows[kv]) return 0;
        }
    return 1;
}

/* The rows of attn are those that this rank holds. */
static stw_status check_rows(const stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    const char *order = p->desc.order == STW_CP_ZIGZAG ? "zigzag" : "contiguous";
    for (int kv = 0; kv < 2; ++kv) {
        int packed = stw_attn_is_packed(d, kv);
        int64_t given = packed ? (kv ? d->total_kv : d->total_q) : kv ? d->max_seq_kv : d->max_seq_q;
        int64_t held = p->rows[kv], longest = 0;
        for (int64_t s = 0; s < p->seq_count; ++s)
            if (p->seqs[s].held[kv] > longest) longest = p->seqs[s].held[kv];
        if (!packed)
            held = stw_cp_rows_of(p->desc.order, kv ? p->desc.seq_kv : p->desc.seq_q, p->cp->rank, p->cp->size);
        if (given != held)
            return stw_fail(STW_E_INVALID, "%s: attn.%s_%s is %lld, but rank %d of %d holds %lld rows in %s order",
                            p->call, packed ? "total" : "max_seq", kv ? "kv" : "q", (long long)given, p->cp->rank,
                            p->cp->size, (long long)held, order);
        int64_t bound = kv ? d->max_seq_kv : d->max_seq_q;
        if (packed && longest > bound)
            return stw_fail(STW_E_INVALID,
                            "%s: attn.max_seq_%s %lld is below the %lld rows that rank %d holds of a sequence", p->call,
                            kv ? "kv" : "q", (long long)bound, (long long)longest, p->cp->rank);
    }
    return STW_OK;
}

/* ---- the schedule ---- */

/* Why a problem cannot be run so, or NULL. */
static const char *schedule_refusal(const stw_cp_plan *p, stw_cp_schedule schedule) {
    int32_t size = p->cp->size, per_node = p->desc.ranks_per_node;
    if (schedule != STW_CP_ULYSSES && schedule != STW_CP_2D) return NULL;
    if (p->attn.bias_dtype) return "a bias lies with the rows of its rank and is not exchanged";
    if (schedule == STW_CP_ULYSSES) return p->attn.heads_kv % size ? "heads_kv is not a multiple of size" : NULL;
    if (per_node < 1) return "ranks_per_node is not known";
    if (size % per_node) return "ranks_per_node does not divide size";
    return p->attn.heads_kv % per_node ? "heads_kv is not a multiple of ranks_per_node" : NULL;
}

static stw_status choose(stw_cp_plan *p) {
    static const struct {
        stw_cp_schedule schedule;
        int32_t size_low, size_high, nodes_low;
        int64_t rows_high;
        int32_t groups_low;
        const char *words;
    } rules[] = {
#define STW_CP_RULE(schedule, size_low, size_high, nodes_low, rows_high, groups_low, words)                            \
    {STW_CP_##schedule, size_low, size_high, nodes_low, rows_high, groups_low, words},
#include "cp_rules.def"
    };
    int32_t size = p->cp->size, per_node = p->desc.ranks_per_node;
    int32_t nodes = per_node > 0 ? (size + per_node - 1) / per_node : 1;
    const int has_window = (p->attn.flags & (STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT)) != 0;
    int64_t longest = 0;
    p->schedule = p->desc.schedule;
    for (int64_t b = 0; b < p->attn.batch; ++b)
        if (length_of(p, b, 1) > longest) longest = length_of(p, b, 1);
    for (size_t i = 0; p->schedule == STW_CP_AUTO; ++i) { /* the last row fits */
        if (size < rules[i].size_low || size > rules[i].size_high || nodes < rules[i].nodes_low) continue;
        if ((longest + size - 1) / size > rules[i].rows_high || schedule_refusal(p, rules[i].schedule)) continue;
        if (rules[i].groups_low &&
            (p->kind != STW_PLAN_ATTN_BWD || has_window || nodes > 1 ||
             stw_cp_groups_of(p, p->attn.heads_kv / size, rows_of_a_call(p)) < rules[i].groups_low))
            continue;
        p->schedule = rules[i].schedule;
        p->rule = rules[i].words;
    }
    const char *why = schedule_refusal(p, p->schedule);
    if (why)
        return stw_fail(STW_E_UNSUPPORTED, "%s: schedule %s: %s (size %d, ranks_per_node %d, heads_kv %lld)", p->call,
                        schedule_names[p->schedule], why, size, per_node, (long long)p->attn.heads_kv);
    p->split = p->schedule == STW_CP_ULYSSES ? size : p->schedule == STW_CP_2D ? per_node : 1;
    p->shards = size / p->split;
    p->lane = p->cp->rank % p->split;
    p->shard = p->cp->rank / p->split;
    p->heads_q = p->attn.heads_q / p->split;
    p->heads_kv = p->attn.heads_kv / p->split;
    p->cuts_own = p->kind == STW_PLAN_ATTN_BWD && p->shards > 1 && p->schedule != STW_CP_ALL_GATHER;
    p->groups = 1;
    return STW_OK;
}

/* How many groups the heads go in. */
static stw_status choose_groups(stw_cp_plan *p) {
    p->equal_messages = p->shards == 1 && p->split > 1 && has_equal_ranks(p);
    if (p->schedule != STW_CP_ULYSSES || p->kind != STW_PLAN_ATTN_BWD) return STW_OK;
    const int32_t groups = stw_cp_groups_of(p, p->heads_kv, rows_of_a_call(p));
    if (p->heads_kv % groups)
        return stw_fail(STW_E_INVALID, "%s: head_groups %d does not divide the %lld heads of keys that a rank computes",
                        p->call, groups, (long long)p->heads_kv);
    if (stw_cp_goes_by_heads(p)) p->groups = groups; /* one rank sends nothing */
    return STW_OK;
}

/* ---- delta and dSink: stw_attn_bwd over one zero key gives both; rows that see no key get a call without keys ----
 *
 * A preprocess skips rows that a causal mask or a window leaves no key, and reads those of a block mask. So a block
 * mask hides the key, and the main kernel has nothing to do, which took 3.2 ms for 8192 rows of 32 heads on an H100. */

static stw_status add_rows(stw_cp_plan *p, int64_t s, int64_t row, int64_t count, int sees) {
    const stw_cp_seq *seq = &p->seqs[s];
    stw_attn_desc d = p->attn;
    if (count <= 0) return STW_OK;
    d.batch = seq->batch;
    d.max_seq_q = count;
    d.max_seq_kv = sees;
    d.total_q = d.total_kv = 0;
    d.flags &= STW_ATTN_HAS_SCALE | STW_ATTN_GIVEN_DELTA | STW_ATTN_DLSE | STW_ATTN_SINK | STW_ATTN_HAS_DIM_STRIDES;
    d.window_left = d.window_right = d.diagonal_shift = 0;
    d.mask = STW_MASK_NONE;
    d.interval_form = STW_INTERVALS_NONE;
    d.intervals = (stw_interval_strides){0};
    d.block_mask = (stw_block_mask_strides){0};
    d.flags |= STW_ATTN_BLOCK_MASK; /* one byte for all blocks */
    d.bias_dtype = d.dbias_dtype = STW_DTYPE_NONE;
    d.softcap = 0;
    d.softcap_f64 = 0;
    d.dropout_p = 0;
    d.batch_offset = 0;
    d.outputs = STW_OUT_DK | (p->attn.outputs & STW_OUT_DSINK);
    d.accumulate = p->attn.outputs & STW_OUT_DSINK;
    d.k = d.dk = (stw_attn_strides){d.heads_kv * d.head_dim_qk, d.head_dim_qk, d.heads_kv * d.head_dim_qk};
    d.v = (stw_attn_strides){d.heads_kv * d.head_dim_v, d.head_dim_v, d.heads_kv * d.head_dim_v};
    d.dim.k = d.dim.v = d.flags & STW_ATTN_HAS_DIM_STRIDES ? 1 : 0;
    d.dk_dtype = p->number;
    if (!(d.flags & STW_ATTN_GIVEN_DELTA)) {
        d.flags |= STW_ATTN_WRITE_DELTA;
        if (!(p->attn.flags & STW_ATTN_WRITE_DELTA))
            d.delta = (stw_attn_strides){seq->held[0] * d.heads_q, 1, d.heads_q};
    }
    stw_cp_rows call = {.seq = (int32_t)s, .row = row};
    stw_status status = stw_cp_engine_get(p, &d, 0, &call.engine);
    if (status) return status;
    stw_cp_rows *added = stw_cp_grow(&p->row_calls, &p->row_count, sizeof *added);
    if (!added) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
    *added = call;
    return STW_OK;
}

/* Rows i of the whole sequence that see a key: high >= -i, low <= used - 1 - i. */
stw_cp_chunk stw_cp_seeing_rows(const stw_cp_seq *seq, stw_cp_chunk rows) {
    const int64_t first = stw_clamp_i64(-seq->high - rows.first, 0, rows.count),
                  end = stw_clamp_i64(seq->used[1] - seq->low - rows.first, 0, rows.count);
    if (!seq->used[1] || seq->low > seq->high || end < first) return (stw_cp_chunk){rows.first, 0};
    return (stw_cp_chunk){rows.first + first, end - first};
}

static stw_status make_rows(stw_cp_plan *p) {
    if (p->attn.flags & STW_ATTN_GIVEN_DELTA && !(p->attn.outputs & STW_OUT_DSINK)) return STW_OK;
    stw_status status = STW_OK;
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int at = 0, row = 0; at < 2 && !status; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            stw_cp_chunk all = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->cp->rank, p->cp->size, at);
            stw_cp_chunk q = stw_cp_used(seq, 0, all);
            const stw_cp_chunk seeing = stw_cp_seeing_rows(seq, q);
            const int64_t first = seeing.first - q.first, end = first + seeing.count;
            status = add_rows(p, s, row, first, 0);
            if (!status) status = add_rows(p, s, row + first, end - first, 1);
            if (!status) status = add_rows(p, s, row + end, q.count - end, 0);
            row += (int)all.count;
        }
    return status;
}

/* ---- the workspace ---- */

static void take(size_t *total, size_t *place, int64_t count, size_t element) {
    *place = *total;
    *total +=
        ((size_t)count * element + STW_WORKSPACE_ALIGNMENT - 1) / STW_WORKSPACE_ALIGNMENT * STW_WORKSPACE_ALIGNMENT;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* The way in and the way back, one after the other. */
static void place_messages(stw_cp_plan *p) {
    size_t in[2], back[2], *total = &p->at.total;
    stw_cp_exchange_widths(p, in, back);
    take(total, &p->at.sent, 1, larger(stw_cp_exchange_room(p, in, 1, 0), stw_cp_exchange_room(p, back, 1, 1)));
    take(total, &p->at.received, 1, larger(stw_cp_exchange_room(p, in, 1, 1), stw_cp_exchange_room(p, back, 1, 0)));
}

/* By heads a group's gradients leave while the next one comes, and LSE and delta of all come with the first. */
static void place_group_messages(stw_cp_plan *p) {
    size_t in[2], back[2], *total = &p->at.total;
    const size_t rows[2] = {2 * stw_dtype_size(p->number), 0};
    stw_cp_exchange_widths(p, in, back);
    in[0] -= rows[0];
    p->at.sent_back = stw_cp_slot_size(stw_cp_exchange_room(p, in, p->groups, 0));
    p->at.received_back = stw_cp_slot_size(stw_cp_exchange_room(p, in, p->groups, 1));
    p->at.sent_rows = p->at.sent_back + stw_cp_slot_size(stw_cp_exchange_room(p, back, p->groups, 1));
    p->at.received_rows = p->at.received_back + stw_cp_slot_size(stw_cp_exchange_room(p, back, p->groups, 0));
    take(total, &p->at.sent, 1, p->at.sent_rows + stw_cp_exchange_room(p, rows, 1, 0));
    take(total, &p->at.received, 1, p->at.received_rows + stw_cp_exchange_room(p, rows, 1, 1));
}

/* What all calls of the backward have: delta, and the sums of dSink. */
static void place_rows(stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    size_t *total = &p->at.total, number = stw_dtype_size(p->number);
    take(total, &p->at.delta, p->rows[0] * d->heads_q, number);
    take(total, &p->at.dsink, d->heads_q, number);
    take(total, &p->at.dsinks, p->cp->size * d->heads_q, number);
    take(total, &p->at.scratch, d->batch * d->heads_kv * (d->head_dim_qk + d->head_dim_v), 2 * number);
}

/* Tensors of a group of heads, twice where there are more; LSE and delta of all. */
static void place_heads(stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    stw_cp_places *at = &p->at;
    const int64_t q = p->shard_rows[0] * p->heads_q / p->groups, keys = p->shard_rows[1] * p->heads_kv / p->groups;
    const size_t number = stw_dtype_size(p->number), element = stw_dtype_size(d->dtype);
    const struct {
        size_t *place;
        int64_t numbers;
        size_t size;
        uint32_t output; /* 0: an input */
    } rows[] = {{&at->q, q * d->head_dim_qk, element, 0},
                {&at->k, keys * d->head_dim_qk, element, 0},
                {&at->v, keys * d->head_dim_v, element, 0},
                {&at->dout, q * d->head_dim_v, element, 0},
                {&at->dq, q * d->head_dim_qk, stw_dtype_size(stw_cp_result_dtype(p, STW_OUT_DQ)), STW_OUT_DQ},
                {&at->dk, keys * d->head_dim_qk, stw_dtype_size(stw_cp_result_dtype(p, STW_OUT_DK)), STW_OUT_DK},
                {&at->dv, keys * d->head_dim_v, stw_dtype_size(stw_cp_result_dtype(p, STW_OUT_DV)), STW_OUT_DV}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        if (!rows[i].output || d->outputs & rows[i].output)
            take(&at->total, rows[i].place, p->groups > 1 ? 2 : 1,
                 stw_cp_slot_size((size_t)rows[i].numbers * rows[i].size));
    take(&at->total, &at->lse, p->shard_rows[0] * p->heads_q, number);
    take(&at->total, &at->shard_delta, p->shard_rows[0] * p->heads_q, number);
    place_group_messages(p);
    place_rows(p);
}

static void make_places(stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    stw_cp_places *at = &p->at;
    size_t *total = &at->total, number = stw_dtype_size(p->number), element = stw_dtype_size(d->dtype);
    int64_t size = p->cp->size, width = d->head_dim_qk + d->head_dim_v, held = p->rows[0], rows = p->shard_rows[0];
    int backward = p->kind == STW_PLAN_ATTN_BWD;
    if (stw_cp_goes_by_heads(p)) {
        place_heads(p);
        return;
    }
    for (int64_t b = 0; b < p->shards; ++b)
        if (stw_cp_block_rows(p, b) > p->block_max) p->block_max = stw_cp_block_rows(p, b);
    size_t block = stw_cp_block_bytes(p, p->block_max), sums = stw_cp_sum_bytes(p, p->block_max);
    if (p->split > 1) {
        take(total, &at->q, rows * p->heads_q * d->head_dim_qk, element);
        take(total, &at->k, p->shard_rows[1] * p->heads_kv * d->head_dim_qk, element);
        take(total, &at->v, p->shard_rows[1] * p->heads_kv * d->head_dim_v, element);
        take(total, &at->dout, backward ? rows * p->heads_q * d->head_dim_v : 0, element);
        take(total, &at->lse, backward ? rows * p->heads_q : 0, number);
        take(total, &at->shard_delta, backward ? rows * p->heads_q : 0, number);
        place_messages(p);
    }
    take(total, &at->own, (int64_t)block, 1);
    take(total, &at->slots, p->slot_count, stw_cp_slot_size(block));
    if (backward) {
        place_rows(p);
        take(total, &at->own_sums, 1, stw_cp_slot_size(sums));
        take(total, &at->sum_slots, p->sum_count, stw_cp_slot_size(sums));
        take(total, &at->other_sums, p->schedule == STW_CP_ALL_GATHER ? p->sum_count : 0, stw_cp_slot_size(sums));
        int64_t dq = !p->dq_sums || p->has_alone || p->split > 1 ? rows * p->heads_q * d->head_dim_qk : 0,
                dq_sums = p->dq_sums ? p->dq_numbers : 0;
        take(total, &at->dq_sums, p->split > 1 || dq_sums > dq ? dq_sums : dq, number);
        if (p->split > 1) take(total, &at->dq, dq, number); /* what is made of the sums is exchanged */
        else at->dq = at->dq_sums;                          /* a call uses one of the two           */
        take(total, &at->dk, p->split > 1 ? p->shard_rows[1] * p->heads_kv * d->head_dim_qk : 0, number);
        take(total, &at->dv, p->split > 1 ? p->shard_rows[1] * p->heads_kv * d->head_dim_v : 0, number);
        take(total, &at->dbias, d->outputs & STW_OUT_DBIAS ? p->dbias_count : 0, number);
        take(total, &at->dbiases, d->outputs & STW_OUT_DBIAS && !d->bias.query ? size * p->dbias_count : 0, number);
    } else {
        size_t partial = stw_dtype_size(p->partial), sum = stw_cp_wide_size(p);
        int64_t slopes = d->flags & STW_ATTN_ALIBI ? d->batch * d->alibi_stride_batch + d->heads_q : 0;
        take(total, &at->wide_q, rows * p->heads_q * d->head_dim_qk, partial);
        take(total, &at->wide_kv, p->block_max * p->heads_kv * width, partial);
        take(total, &at->wide_bias, stw_cp_has_wide_bias(p) ? p->dbias_count : 0, partial);
        take(total, &at->wide_slopes, slopes, partial);
        take(total, &at->out_part, rows * p->heads_q * d->head_dim_v, partial);
        take(total, &at->lse_part, rows * p->heads_q, partial);
        take(total, &at->out_sum, rows * p->heads_q * d->head_dim_v, sum);
        take(total, &at->lse_sum, rows * p->heads_q, sum);
        take(total, &at->out, rows * p->heads_q * d->head_dim_v, element);
        take(total, &at->lse, (rows + held) * d->heads_q, number);
    }
}

/* ---- plans ---- */

/* A call's pointers are checked as those of a dense problem of this rank's rows. */
static void fill_bound(stw_cp_plan *p) {
    stw_attn_desc d = p->attn;
    if (stw_attn_is_packed(&d, 0)) d.max_seq_q = d.total_q ? d.max_seq_q : 0;
    if (stw_attn_is_packed(&d, 1)) d.max_seq_kv = d.total_kv ? d.max_seq_kv : 0;
    d.total_q = d.total_kv = 0;
    d.flags &= ~(STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV | STW_ATTN_HAS_USED_LENGTHS);
    stw_attn_params_fill(&d, p->kind, 0, &p->bound);
}

/* Parts that share sums of dQ and statistics where they can. */
static stw_status make_parts(stw_cp_plan *p) {
    if (stw_cp_goes_by_heads(p)) return stw_cp_heads_make(p);
    stw_status status = stw_cp_dq_plan(p);
    for (int fits = 0; !fits && !status;) {
        const int shares = p->dq_sums != NULL, keeps = p->keeps_stats;
        p->part_count = p->move_count = p->tick_count = p->steps_run = 0;
        p->sent_bytes = 0;
        status = stw_cp_schedule_make(p);
        if (!status) status = stw_cp_dq_judge(p);
        fits = shares == (p->dq_sums != NULL) && keeps == p->keeps_stats;
    }
    return status;
}

static stw_status make_schedule(stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    int64_t keys = p->desc.seq_kv;
    for (int64_t s = 0; s < p->seq_count; ++s)
        if (p->seqs[s].rows[1] > keys) keys = p->seqs[s].rows[1];
    stw_status status = check_bias(p, keys);
    if (status) return status;
    if (d->bias_dtype) {
        const int64_t e[4] = {d->bias.batch ? d->batch : 1, d->bias.head ? d->heads_q : 1,
                              d->bias.query ? d->max_seq_q : 1, d->bias.key ? keys : 1};
        memcpy(p->dbias_extent, e, sizeof e);
        p->dbias_count = e[0] * e[1] * e[2] * e[3];
    }
    status = make_parts(p);
    const int has_rows = p->kind == STW_PLAN_ATTN_BWD && (!p->keeps_stats || p->has_alone);
    if (!status && has_rows) status = make_rows(p);
    if (status) return status;
    make_places(p);
    fill_bound(p);
    return STW_OK;
}

static stw_status build(stw_cp_plan *p, const stw_cp_desc *desc) {
    char who[64];
    snprintf(who, sizeof who, "%s: desc", p->call);
    stw_status status = stw_extend(who, desc, &p->desc, sizeof p->desc, STW_SIZE_CP_DESC_0_1);
    if (status) return status;
    snprintf(who, sizeof who, "%s: desc.attn", p->call);
    status = stw_extend(who, p->desc.attn, &p->attn, sizeof p->attn, STW_SIZE_ATTN_DESC_0_1);
    if (!status) status = stw_attn_check(&p->attn, p->kind);
    if (!status) status = check_choices(p);
    if (!status) status = check_positions(p);
    if (status) return status;
    p->desc.attn = NULL;
    p->number = stw_dtype_of_rows(p->attn.dtype);
    p->partial = p->attn.dtype == STW_F32 && p->context->ops->attn_f64 ? STW_F64 : p->number;
    if (!(status = choose(p)) && !(status = make_seqs(p)) && !(status = check_rows(p)) &&
        !(status = choose_groups(p)) && !(status = stw_cp_masks_check(p)))
        status = make_schedule(p);
    return status;
}

void stw_cp_plan_destroy(stw_cp_plan *plan) {
    if (!plan) return;
    for (int64_t i = 0; i < plan->engine_count; ++i) stw_plan_destroy(plan->engines[i].plan);
    if (plan->context) {
        plan->context->ops->cp_close(&plan->context->device, &plan->side);
        stw_context_release(plan->context);
    }
    free(plan->engines);
    free(plan->engine_table);
    free(plan->seqs);
    free(plan->parts);
    free(plan->moves);
    free(plan->ticks);
    free(plan->row_calls);
    free(plan->dq_sums);
    free(plan);
}

/* Streams order what a GPU sends; a transport that waits on the host, or reads there, has no place in them. */
static stw_status check_transport(const stw_cp_calling *c) {
    if (!stw_cp_is_apart(c) || !c->cp->wire.wait) return STW_OK;
    return stw_fail(STW_E_UNSUPPORTED,
                    "%s: transport %s waits on the host, and the context is of backend %s: its transport puts what it "
                    "does into the stream and has no wait, as NCCL and RCCL (stw_cp_transport_nccl, _rccl)",
                    c->who, c->cp->name, stw_backend_name(c->context->ops->backend));
}

static stw_status plan_create(const char *call, stw_plan_kind kind, stw_cp *cp, stw_context *context,
                              const stw_cp_desc *desc, stw_cp_plan **plan_out) {
    if (!cp) return stw_fail(STW_E_INVALID, "%s: cp is null", call);
    stw_cp_calling calling = {.cp = cp, .who = call, .what = "the comparison of descriptors", .context = context};
    stw_status status = stw_cp_usable(&calling);
    if (status) return status;
    stw_cp_plan *plan = calloc(1, sizeof *plan);
    if (!plan) status = stw_fail(STW_E_NO_MEMORY, "%s: no memory", call);
    else if (!context) status = stw_fail(STW_E_INVALID, "%s: context is null", call);
    else {
        stw_context_retain(context);
        plan->cp = cp;
        plan->context = context;
        plan->kind = kind;
        plan->call = call;
        /* without these the device has nothing to say to the others with */
        status = context->ops->cp_open(&context->device, &plan->side);
        calling.side = &plan->side;
        calling.stream = plan->side.stream;
        if (!status) status = check_transport(&calling);
        if (status) {
            stw_cp_plan_destroy(plan);
            return status;
        }
        if (!plan_out) status = stw_fail(STW_E_INVALID, "%s: plan_out is null", call);
        else status = build(plan, desc);
    }
    /* the lists are compared while the caller's are there */
    status = stw_cp_agree(&calling, kind, plan ? &plan->desc : NULL, plan ? &plan->attn : NULL, status);
    if (status) {
        stw_cp_plan_destroy(plan);
        return status;
    }
    plan->desc.cu_seqlens_q = plan->desc.cu_seqlens_kv = plan->desc.used_q = plan->desc.used_kv = NULL;
    *plan_out = plan;
    return STW_OK;
}

stw_status stw_cp_attn_bwd_plan(stw_cp *cp, stw_context *context, const stw_cp_desc *desc, stw_cp_plan **plan_out) {
    return plan_create("cp_attn_bwd_plan", STW_PLAN_ATTN_BWD, cp, context, desc, plan_out);
}

stw_status stw_cp_attn_fwd_plan(stw_cp *cp, stw_context *context, const stw_cp_desc *desc, stw_cp_plan **plan_out) {
    return plan_create("cp_attn_fwd_plan", STW_PLAN_ATTN_FWD, cp, context, desc, plan_out);
}

size_t stw_cp_plan_workspace_size(const stw_cp_plan *plan) {
    size_t bytes = plan ? plan->at.total + plan->engine_workspace : 0;
    return bytes ? bytes + STW_WORKSPACE_ALIGNMENT - 1 : 0;
}

/* ---- what users read ---- */

/* The sums of the forward, and those between ranks, have one order on any backend. */
static int gives_same_bits(const stw_cp_plan *p) {
    for (int64_t i = 0; i < p->engine_count && p->kind == STW_PLAN_ATTN_BWD; ++i)
        if (!stw_plan_gives_same_bits(p->engines[i].plan)) return 0;
    return 1;
}

static void text_of(const stw_cp_plan *p, stw_text *text) {
    static const char *const overlaps[] = {
        [STW_CP_RING] = "K and V of the next step and dK and dV of the step before under this step's kernels; the own "
                        "block's second chunk of keys comes last",
        [STW_CP_ALL_GATHER] = "nothing: K and V are there before the first kernel, dK and dV leave after the last",
        [STW_CP_ULYSSES] = "nothing: heads are exchanged before the first kernel and after the last",
        [STW_CP_2D] = "as the ring between nodes; nothing of the exchange in the node",
    };
    stw_text_add(text, "op: %s over %d ranks\n", stw_plan_kind_name(p->kind), p->cp->size);
    stw_text_add(text, "rank: %d of %d, %lld of q's rows, %lld of the keys'\n", p->cp->rank, p->cp->size,
                 (long long)p->rows[0], (long long)p->rows[1]);
    stw_text_add(text, "transport: %s\n", p->cp->name);
    stw_text_add(text, "order: %s\n", p->desc.order == STW_CP_ZIGZAG ? "zigzag" : "contiguous");
    stw_text_add(text, "schedule: %s\n", schedule_names[p->schedule]);
    stw_text_add(text, "why: %s\n", p->rule ? p->rule : "asked for by name");
    if (p->split > 1)
        stw_text_add(text, "heads: %lld of q, %lld of k on this rank, by an all-to-all of %d ranks\n",
                     (long long)p->heads_q, (long long)p->heads_kv, p->split);
    if (p->groups > 1) stw_text_add(text, "groups: %d of heads, one after the other\n", p->groups);
    stw_text_add(text, "steps: %lld run, %lld see nothing and are neither run nor sent\n", (long long)p->steps_run,
                 (long long)p->steps_skipped);
    int64_t ends = 0; /* that make statistics, and dQ */
    for (int64_t s = 0; s < p->seq_count && p->dq_sums; ++s) ends += p->seqs[s].own[0] ? 1 + p->keeps_stats : 0;
    stw_text_add(text, "calls: %lld of attention by %lld plans\n",
                 (long long)(p->part_count + ends + (p->keeps_stats ? 0 : p->row_count)), (long long)p->engine_count);
    stw_text_add(text, "sent: %llu bytes by this rank\n", (unsigned long long)p->sent_bytes);
    stw_text_add(text, "imbalance: %.2f %%\n", 100 * p->imbalance);
    stw_text_add(text, "overlap: %s\n",
                 p->shards == 1 && p->split == 1 ? "nothing is sent"
                 : p->groups > 1 ? "the next group's rows and the gradients of the one before under a group's kernels"
                                 : overlaps[p->schedule]);
    stw_text_add(text, "deterministic: %s\n",
                 gives_same_bits(p) ? "yes, for this number of ranks" : "not asked for: GPUs add in any order");
    stw_text_add(text, "workspace: %zu bytes\n", stw_cp_plan_workspace_size(p));
    if (p->dq_sums) stw_text_add(text, "dq: calls add to sums that one kernel makes dQ of\n");
    if (p->keeps_stats) stw_text_add(text, "statistics: one kernel makes those of all rows and zeroes these sums\n");
    if (p->part_count) {
        stw_text_add(text, "the plan of the last call:\n");
        stw_plan_text(p->engines[p->parts[p->part_count - 1].engine].plan, text);
    }
}

stw_status stw_cp_plan_describe(const stw_cp_plan *plan, char *text, size_t capacity, size_t *needed_out) {
    if (!plan) return stw_fail(STW_E_INVALID, "cp_plan_describe: plan is null");
    if (!text && capacity) return stw_fail(STW_E_INVALID, "cp_plan_describe: text is null with capacity %zu", capacity);
    stw_text out = stw_text_in(text, capacity);
    text_of(plan, &out);
    if (needed_out) *needed_out = out.length + 1;
    return STW_OK;
}
