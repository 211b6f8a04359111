/* SPDX-License-Identifier: MIT
 *
 * The exchange of a plan: each rank sends what cp_fields.def lists of its problem, and whether it can run it. Each
 * rank sees the same records and comes to the same verdict. */
#include "cp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum form { FORM_INTEGER, FORM_REAL, FORM_LIST } form;

static const struct {
    const char *name;
    form form;
} fields[] = {
#define STW_CP_FIELD(name, form, value) {name, FORM_##form},
#include "cp_fields.def"
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

typedef struct record {
    int32_t status, unused; /* the second is 0 */
    int64_t values[FIELDS];
    char text[STW_CP_TEXT];
} record;

/* 64-bit FNV-1a; 0 of no list. */
static int64_t list_hash(const int32_t *list, int64_t count) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    if (!list) return 0;
    for (const unsigned char *at = (const unsigned char *)list, *end = at + 4 * (size_t)count; at < end; ++at)
        hash = (hash ^ *at) * UINT64_C(0x100000001B3);
    return (int64_t)(hash | 1);
}

static int64_t bits_of_INTEGER(int64_t value) { return value; }
static int64_t bits_of_LIST(int64_t value) { return value; }
static int64_t bits_of_REAL(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void fill(record *own, stw_plan_kind kind, const stw_cp_desc *c, const stw_attn_desc *d) {
    int at = 0;
#define STW_CP_FIELD(name, form, value) own->values[at++] = bits_of_##form(value);
#include "cp_fields.def"
}

static void value_text(char *text, size_t size, form as, int64_t bits) {
    double real;
    memcpy(&real, &bits, sizeof real);
    if (as == FORM_REAL) snprintf(text, size, "%.9g", real);
    else if (as == FORM_LIST) snprintf(text, size, bits ? "a list of hash %016llx" : "null", (unsigned long long)bits);
    else snprintf(text, size, "%lld", (long long)bits);
}

static stw_status compare(const char *who, const record *records, int32_t rank, int32_t size) {
    for (int32_t r = 0; r < size; ++r) {
        if (!records[r].status) continue;
        if (r == rank) return stw_fail((stw_status)records[r].status, "%s", records[r].text);
        return stw_fail((stw_status)records[r].status, "%s: rank %d refuses: %.240s", who, r, records[r].text);
    }
    for (int at = 0; at < FIELDS; ++at)
        for (int32_t r = 1; r < size; ++r) {
            char first[48], other[48];
            if (records[r].values[at] == records[0].values[at]) continue;
            value_text(first, sizeof first, fields[at].form, records[0].values[at]);
            value_text(other, sizeof other, fields[at].form, records[r].values[at]);
            return stw_fail(STW_E_INVALID, "%s: %s is %s on rank 0 and %s on rank %d: all ranks give the same", who,
                            fields[at].name, first, other, r);
        }
    return STW_OK;
}

/* By the transport, whose memory is the context's. */
static stw_status exchange(const stw_cp_calling *c, const record *own, record *all) {
    size_t bytes = sizeof *own, total = (size_t)c->cp->size * bytes;
    void *pointer = NULL;
    if (!stw_cp_is_apart(c)) return stw_cp_gather(c, own, all, bytes);
    const stw_backend_ops *ops = c->context->ops;
    const stw_device *device = &c->context->device;
    stw_status status = ops->buffer_alloc(device, total + bytes, &pointer);
    if (status) return status;
    char *gathered = pointer, *sent = gathered + total;
    status = ops->copy(device, sent, own, bytes, c->stream);
    if (!status) status = stw_cp_gather(c, sent, gathered, bytes);
    if (!status) status = ops->copy(device, all, gathered, total, c->stream);
    if (!status) status = ops->stream_synchronize(device, c->stream);
    stw_status freed = ops->buffer_free(device, pointer);
    return status ? status : freed;
}

stw_status stw_cp_agree(const stw_cp_calling *calling, stw_plan_kind kind, const stw_cp_desc *desc,
                        const stw_attn_desc *attn, stw_status local) {
    record own = {.status = (int32_t)local};
    const char *who = calling->who;
    stw_cp *cp = calling->cp;
    if (local) snprintf(own.text, sizeof own.text, "%s", stw_last_error());
    else fill(&own, kind, desc, attn);
    record *all = calloc((size_t)cp->size, sizeof *all);
    if (!all) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", who);
    stw_status status = exchange(calling, &own, all);
    if (!status) status = compare(who, all, cp->rank, cp->size);
    if (!status && local) status = stw_fail(local, "%s", own.text); /* whatever has come of the exchange */
    free(all);
    return status;
}
