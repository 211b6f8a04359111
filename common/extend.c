/* SPDX-License-Identifier: MIT
 *
 * Reads structs of callers compiled against older or newer headers. */
#include "extend.h"

#include <string.h>

#define STRUCT_SIZE_MAX 4096 /* no struct of ours comes near; stops a read through a garbage size */

stw_status stw_extend(const char *who, const void *from, void *to, size_t size, size_t minimum) {
    if (!from) return stw_fail(STW_E_INVALID, "%s is null", who);
    size_t given;
    memcpy(&given, from, sizeof given);
    if (given < minimum || given > STRUCT_SIZE_MAX)
        return stw_fail(STW_E_INVALID,
                        "%s.struct_size %zu is not a size of this struct: set it to its sizeof "
                        "(STW_INIT), here %zu",
                        who, given, size);
    const unsigned char *bytes = from;
    for (size_t i = size; i < given; ++i)
        if (bytes[i])
            return stw_fail(STW_E_UNSUPPORTED,
                            "%s.struct_size %zu: byte %zu beyond the %zu known to this library "
                            "(version %d.%d.%d) is not zero: the caller uses a newer feature",
                            who, given, i, size, STW_VERSION_MAJOR, STW_VERSION_MINOR, STW_VERSION_PATCH);
    memset(to, 0, size);
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &size, sizeof size);
    return STW_OK;
}

stw_status stw_extend_check_array(const char *who, const char *what, const void *infos, size_t capacity, size_t size,
                                  size_t minimum, size_t *stride_out) {
    size_t stride;
    *stride_out = 0;
    if (!capacity) return STW_OK;
    if (!infos)
        return stw_fail(STW_E_INVALID, "%s: infos is null with capacity %zu; null needs capacity 0", who, capacity);
    memcpy(&stride, infos, sizeof stride);
    if (stride < minimum || stride > STRUCT_SIZE_MAX || stride % sizeof(size_t))
        return stw_fail(STW_E_INVALID, "%s: infos[0].struct_size %zu is not a size of %s, here %zu", who, stride, what,
                        size);
    for (size_t i = 1; i < capacity; ++i) {
        size_t other;
        memcpy(&other, (const char *)infos + i * stride, sizeof other);
        if (other != stride)
            return stw_fail(STW_E_INVALID, "%s: infos[%zu].struct_size %zu is not that of infos[0], %zu", who, i, other,
                            stride);
    }
    *stride_out = stride;
    return STW_OK;
}

void stw_extend_store(void *element, size_t stride, const void *info, size_t size) {
    size_t known = stride < size ? stride : size;
    memcpy(element, info, known);
    memset((char *)element + known, 0, stride - known);
    memcpy(element, &stride, sizeof stride);
}
