/* SPDX-License-Identifier: MIT
 *
 * The arena and the workspace of a case in the memory of a context (verify.h): one buffer each, so that the
 * same case runs on every backend. */
#include "verify.h"

#include <stdlib.h>
#include <string.h>

#define DEVICE_GUARD ((size_t)4097) /* odd: workspaces may start anywhere, and this one ends where its guard begins */

stw_status stw_verify_device_open(stw_context *context, size_t arena_bytes, size_t workspace_bytes,
                                  stw_verify_device *device_out) {
    stw_verify_device d = {.context = context, .arena_bytes = arena_bytes, .workspace_bytes = workspace_bytes};
    void *arena = NULL;
    stw_status status = stw_buffer_alloc(context, arena_bytes, &arena);
    d.arena = arena;
    if (!status) status = stw_buffer_alloc(context, workspace_bytes + 2 * DEVICE_GUARD, &d.workspace_block);
    if (!status) status = stw_stream_create(context, &d.stream);
    if (status) {
        if (d.workspace_block) stw_buffer_free(context, d.workspace_block);
        if (d.arena) stw_buffer_free(context, d.arena);
        return status;
    }
    d.workspace = (unsigned char *)d.workspace_block + DEVICE_GUARD;
    *device_out = d;
    return STW_OK;
}

void stw_verify_device_close(stw_verify_device *device) {
    stw_stream_destroy(device->context, device->stream);
    stw_buffer_free(device->context, device->workspace_block);
    stw_buffer_free(device->context, device->arena);
}

stw_status stw_verify_device_load(stw_verify_device *device, const unsigned char *host, int poison) {
    size_t bytes = device->workspace_bytes + 2 * DEVICE_GUARD;
    unsigned char *filler = malloc(bytes);
    if (!filler) return stw_fail(STW_E_NO_MEMORY, "case: no memory for %zu bytes", bytes);
    memset(filler, poison, bytes);
    stw_status status = stw_copy(device->context, device->arena, host, device->arena_bytes, device->stream);
    if (!status) status = stw_copy(device->context, device->workspace_block, filler, bytes, device->stream);
    if (!status) status = stw_stream_synchronize(device->context, device->stream);
    free(filler);
    return status;
}

static int is_filled(const unsigned char *bytes, size_t count, int poison) {
    for (size_t i = 0; i < count; ++i)
        if (bytes[i] != (unsigned char)poison) return 0;
    return 1;
}

stw_status stw_verify_device_store(stw_verify_device *device, unsigned char *host, int poison, int *guards_out) {
    unsigned char front[DEVICE_GUARD], back[DEVICE_GUARD];
    const unsigned char *behind = device->workspace + device->workspace_bytes;
    stw_status status = stw_stream_synchronize(device->context, device->stream);
    if (!status) status = stw_copy(device->context, host, device->arena, device->arena_bytes, device->stream);
    if (!status) status = stw_copy(device->context, front, device->workspace_block, DEVICE_GUARD, device->stream);
    if (!status) status = stw_copy(device->context, back, behind, DEVICE_GUARD, device->stream);
    if (!status) status = stw_stream_synchronize(device->context, device->stream);
    *guards_out = !status && is_filled(front, DEVICE_GUARD, poison) && is_filled(back, DEVICE_GUARD, poison);
    return status;
}
