/* SPDX-License-Identifier: MIT
 *
 * Loading and starting libamdhip64, and its errors as text. */
#include "backends/hip/driver.h"

#include "backends/gpu/driver.h"

static stw_hip_functions hip;

enum { OPTIONAL = 0, REQUIRED = 1 };
static const stw_dso_row hip_rows[] = {
#define STW_HIP(name, need, result, parameters) {#name, need, offsetof(stw_hip_functions, name)},
#include "backends/hip/driver.def"
#undef STW_HIP
};
static const char *const hip_sonames[] = {"libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6",
                                          "libamdhip64.so.5"};

/* On a machine without an AMD GPU the first hipInit says "invalid device", later ones "no device". */
static stw_status hip_init(void) {
    int error = hip.hipInit(0);
    if (!error) return STW_OK;
    return stw_hip_fail(error == STW_HIP_INVALID_DEVICE ? STW_E_NO_DEVICE : STW_E_NO_DRIVER, "hipInit", error);
}

/* No describe: hipRuntimeGetVersion would start the runtime, and the soname says the major version. */
static stw_driver hip_driver = {
    .who = "hip",
    .sonames = hip_sonames,
    .soname_count = sizeof hip_sonames / sizeof hip_sonames[0],
    .rows = hip_rows,
    .row_count = sizeof hip_rows / sizeof hip_rows[0],
    .table = &hip,
    .start = hip_init,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

stw_status stw_hip_start(const stw_hip_functions **functions_out) {
    stw_status status = stw_driver_start(&hip_driver);
    if (status == STW_OK) *functions_out = &hip;
    return status;
}

int stw_hip_forked(void) { return stw_driver_forked(&hip_driver); }

/* The device never works again in this process: later runtimes of ROCm 7 give 700 or 719 to every call after
 * a kernel's fault, earlier ones end the process. Numbered as CUDA's, but 709 is no loss: the runtime answers
 * "context is destroyed" to every stream that it does not know. */
static int error_is_sticky(int error) {
    switch (error) {
    case 4:   /* deinitialized: the process is ending */
    case 214: /* uncorrectable ECC error */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 710: /* assert */
    case 719: /* launch failed */ return 1;
    default: return 0;
    }
}

stw_status stw_hip_fail(stw_status otherwise, const char *call, int error) {
    const char *name = hip.hipGetErrorName ? hip.hipGetErrorName(error) : NULL;
    const char *words = hip.hipGetErrorString ? hip.hipGetErrorString(error) : NULL;
    if (hip.hipGetLastError) hip.hipGetLastError();
    stw_status status = error == STW_HIP_NO_DEVICE       ? STW_E_NO_DEVICE
                        : error == STW_HIP_OUT_OF_MEMORY ? STW_E_NO_MEMORY
                        : error_is_sticky(error)         ? STW_E_DEVICE_LOST
                                                         : otherwise;
    return stw_fail(status, "hip: %s failed: %s (%d)%s%s", call, name ? name : "error", error, words ? ": " : "",
                    words ? words : "");
}
