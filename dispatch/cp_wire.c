/* SPDX-License-Identifier: MIT
 *
 * This rank, and the calls of its transport. After one failure the transport is not asked again: the
 * ranks no longer agree on what has been sent. */
#include "cp.h"

#include "common/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

stw_status stw_cp_create(const stw_cp_transport *transport, int32_t rank, int32_t size, stw_cp **cp_out) {
    stw_cp_transport wire;
    if (!cp_out) return stw_fail(STW_E_INVALID, "cp_create: cp_out is null");
    stw_status status = stw_extend("cp_create: transport", transport, &wire, sizeof wire, STW_SIZE_CP_TRANSPORT_0_1);
    if (status) return status;
    const struct {
        const char *name;
        int missing;
    } required[] = {{"name", !wire.name},
                    {"group_begin", !wire.group_begin},
                    {"send", !wire.send},
                    {"recv", !wire.recv},
                    {"group_end", !wire.group_end}};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; ++i)
        if (required[i].missing) return stw_fail(STW_E_INVALID, "cp_create: transport.%s is null", required[i].name);
    if (strlen(wire.name) >= sizeof(*cp_out)->name)
        return stw_fail(STW_E_INVALID, "cp_create: transport.name has %zu characters, accepted: up to %zu",
                        strlen(wire.name), sizeof(*cp_out)->name - 1);
    if (size < 1 || size > STW_CP_SIZE_MAX)
        return stw_fail(STW_E_INVALID, "cp_create: size %d is not in 1..%d", size, STW_CP_SIZE_MAX);
    if (rank < 0 || rank >= size)
        return stw_fail(STW_E_INVALID, "cp_create: rank %d is not in 0..%d (size %d)", rank, size - 1, size);
    stw_cp *cp = calloc(1, sizeof *cp);
    if (!cp) return stw_fail(STW_E_NO_MEMORY, "cp_create: no memory");
    cp->wire = wire;
    cp->rank = rank;
    cp->size = size;
    snprintf(cp->name, sizeof cp->name, "%s", wire.name);
    cp->wire.name = cp->name;
    *cp_out = cp;
    return STW_OK;
}

void stw_cp_destroy(stw_cp *cp) { free(cp); }

stw_status stw_cp_usable(const stw_cp_calling *c) {
    if (!c->cp->broken[0]) return STW_OK;
    return stw_fail(STW_E_DRIVER, "%s: the transport has failed before: %s", c->who, c->cp->broken);
}

stw_status stw_cp_call_ended(const stw_cp_calling *c, stw_status status) {
    if (status && !c->cp->broken[0])
        snprintf(c->cp->broken, sizeof c->cp->broken, "an earlier call ended in its middle: %.160s", stw_last_error());
    return status;
}

static const char waiting[] = "wait";

/* The stream of what is sent. */
static stw_stream stream_of(const stw_cp_calling *c) { return stw_cp_is_apart(c) ? c->side->stream : c->stream; }

/* What is sent comes after what the caller's stream has got; `joins`: what that gets, after what is sent. */
static stw_status order(const stw_cp_calling *c, int joins) {
    if (!stw_cp_is_apart(c)) return STW_OK;
    return c->context->ops->cp_order(&c->context->device, c->side, joins, joins ? c->side->stream : c->stream,
                                     joins ? c->stream : c->side->stream);
}

/* What was posted before a failure still uses our memory, which the caller gives up when he hears of it. */
static void abandon(const stw_cp_calling *c) {
    const stw_cp_transport *wire = &c->cp->wire;
    if (c->cp->open)
        (void)wire->group_end(wire->user, stream_of(c)); /* NCCL would hold back all that the thread posts */
    c->cp->open = 0;
    if (wire->wait) (void)wire->wait(wire->user, stream_of(c));
    (void)order(c, 1);
}

/* `did`: "send to rank 3". */
static stw_status judge(const stw_cp_calling *c, int error, const char *did) {
    if (!error) return STW_OK;
    const stw_cp_transport *wire = &c->cp->wire;
    const char *words = wire->error_text ? wire->error_text(wire->user, error) : NULL;
    char number[32];
    snprintf(number, sizeof number, "error %d", error);
    char step[32] = "";
    if (c->step) snprintf(step, sizeof step, " of step %d", c->step);
    snprintf(c->cp->broken, sizeof c->cp->broken, "%s%s, %s: %s: %.120s", c->what, step, did, c->cp->name,
             words ? words : number);
    if (did != waiting) abandon(c);
    return stw_fail(STW_E_DRIVER, "%s: %s", c->who, c->cp->broken);
}

static stw_status judge_peer(const stw_cp_calling *c, int error, const char *did, int32_t peer) {
    char text[48];
    snprintf(text, sizeof text, "%s rank %d", did, peer);
    return judge(c, error, text);
}

stw_status stw_cp_begin(const stw_cp_calling *c, int first) {
    stw_status status = order(c, 0);
    if (!status && first) status = order(c, 1);
    if (!status) status = judge(c, c->cp->wire.group_begin(c->cp->wire.user), "group_begin");
    c->cp->open = !status;
    return status;
}

stw_status stw_cp_send(const stw_cp_calling *c, const void *from, size_t bytes, int32_t peer) {
    if (!bytes) return STW_OK;
    return judge_peer(c, c->cp->wire.send(c->cp->wire.user, from, bytes, peer, stream_of(c)), "send to", peer);
}

stw_status stw_cp_recv(const stw_cp_calling *c, void *to, size_t bytes, int32_t peer) {
    if (!bytes) return STW_OK;
    return judge_peer(c, c->cp->wire.recv(c->cp->wire.user, to, bytes, peer, stream_of(c)), "receive from", peer);
}

stw_status stw_cp_end(const stw_cp_calling *c) {
    c->cp->open = 0;
    return judge(c, c->cp->wire.group_end(c->cp->wire.user, stream_of(c)), "group_end");
}

stw_status stw_cp_wait(const stw_cp_calling *c) {
    if (!c->cp->wire.wait) return order(c, 1);
    return judge(c, c->cp->wire.wait(c->cp->wire.user, c->stream), waiting);
}

stw_status stw_cp_gather(const stw_cp_calling *c, const void *from, void *to, size_t bytes) {
    const stw_cp *cp = c->cp;
    if (!bytes) return STW_OK;
    if (cp->wire.all_gather) {
        stw_status status = order(c, 0);
        if (!status) status = judge(c, cp->wire.all_gather(cp->wire.user, from, to, bytes, stream_of(c)), "all_gather");
        return status ? status : stw_cp_wait(c);
    }
    stw_status status = STW_OK;
    char *own = (char *)to + (size_t)cp->rank * bytes;
    if (stw_cp_is_apart(c)) status = c->context->ops->copy(&c->context->device, own, from, bytes, c->stream);
    else memcpy(own, from, bytes);
    if (cp->size == 1 || status) return status;
    status = stw_cp_begin(c, 0);
    for (int32_t peer = 0; peer < cp->size && !status; ++peer) {
        if (peer == cp->rank) continue;
        status = stw_cp_send(c, from, bytes, peer);
        if (!status) status = stw_cp_recv(c, (char *)to + (size_t)peer * bytes, bytes, peer);
    }
    if (!status) status = stw_cp_end(c);
    return status ? status : stw_cp_wait(c);
}

stw_status stw_cp_reduce(const stw_cp_calling *c, const void *from, void *to, size_t count, stw_dtype dtype) {
    const stw_cp_transport *wire = &c->cp->wire;
    stw_status status = order(c, 0);
    if (!status)
        status = judge(c, wire->reduce_scatter(wire->user, from, to, count, dtype, stream_of(c)), "reduce_scatter");
    return status ? status : stw_cp_wait(c);
}

stw_status stw_cp_all_to_all(const stw_cp_calling *c, const void *from, void *to, size_t bytes) {
    const stw_cp_transport *wire = &c->cp->wire;
    if (!bytes) return STW_OK;
    stw_status status = order(c, 0);
    return status ? status : judge(c, wire->all_to_all(wire->user, from, to, bytes, stream_of(c)), "all_to_all");
}
