/* SPDX-License-Identifier: MIT
 *
 * What the parts of the emulator's libamdhip64 share: declarations of the runtime's functions, its errors, and work
 * in streams, which is done at once, or recorded where the stream is captured. */
#ifndef CDNA_HIP_STREAMS_H
#define CDNA_HIP_STREAMS_H

#include <cstddef>
#include <cstdint>
#include <functional>

#define STW_HIP(name, need, result, parameters) extern "C" result name parameters;
#include "backends/hip/driver.def"
#undef STW_HIP

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NO_BINARY = 209,
    NO_FILE = 301,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NO_STREAM = 709,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_IMPLICIT = 906,
    CAPTURE_WRONG_THREAD = 908
};

/* Remembers an error for hipGetLastError, and gives it. */
int hip_say(int error);

/* Does the work, or records it. */
int hip_do(void *stream, std::function<int()> work);

/* Calls that a capture in progress forbids (allocation, loading, waiting for the device) spoil it and fail. */
int hip_refuse_in_capture();
/* Waiting for a stream that is captured. */
int hip_refuse_captured(void *stream);

#endif
