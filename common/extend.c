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
