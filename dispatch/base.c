/* SPDX-License-Identifier: MIT
 *
 * The calls of sternway/base.h that need no context. Apart from common/status.c, which the command links as well:
 * it takes these calls from the library. */
#include "common/status.h"

const char *stw_last_error(void) { return stw_failure_text(); }

const char *stw_status_name(stw_status status) {
    switch (status) {
    case STW_OK: return "STW_OK";
    case STW_E_INVALID: return "STW_E_INVALID";
    case STW_E_UNSUPPORTED: return "STW_E_UNSUPPORTED";
    case STW_E_NO_DRIVER: return "STW_E_NO_DRIVER";
    case STW_E_NO_DEVICE: return "STW_E_NO_DEVICE";
    case STW_E_NO_IMAGE: return "STW_E_NO_IMAGE";
    case STW_E_WORKSPACE: return "STW_E_WORKSPACE";
    case STW_E_NO_MEMORY: return "STW_E_NO_MEMORY";
    case STW_E_DRIVER: return "STW_E_DRIVER";
    case STW_E_INTERNAL: return "STW_E_INTERNAL";
    case STW_E_DEVICE_LOST: return "STW_E_DEVICE_LOST";
    case STW_E_FORKED: return "STW_E_FORKED";
    }
    return "STW_E_?";
}

uint32_t stw_version(void) { return STW_VERSION; }
