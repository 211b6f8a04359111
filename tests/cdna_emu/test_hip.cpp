/* SPDX-License-Identifier: MIT
 *
 * The emulator's libamdhip64 itself: wrong handles and arguments are refused, a capture records and does nothing, and
 * what may not be called beside it spoils it. Without these rules the library's graph tests on it would show
 * nothing. */
#include "hip_streams.h"

#include <cstdio>
#include <cstring>
#include <thread>

extern "C" {
int hipMemcpy(void *to, const void *from, size_t bytes, int kind);
int hipMemsetAsync(void *to, int value, size_t bytes, void *stream);
int hipStreamBeginCapture(void *stream, int mode);
int hipStreamEndCapture(void *stream, void **graph_out);
int hipGraphGetNodes(void *graph, void **nodes, size_t *count);
int hipGraphInstantiate(void **exec_out, void *graph, void **node, char *log, size_t capacity);
int hipGraphLaunch(void *exec, void *stream);
int hipGraphExecDestroy(void *exec);
int hipGraphDestroy(void *graph);
}

static int failures, checks;
static void is(int got, int wanted, const char *what) {
    ++checks;
    if (got == wanted) return;
    ++failures;
    printf("FAILED %s: %d, not %d\n", what, got, wanted);
}

static void memory_and_handles() {
    void *block = nullptr, *none = nullptr, *stream = nullptr;
    unsigned char bytes[4];
    int attributes[12];
    is(hipSetDevice(1), INVALID_DEVICE, "a device that is not there");
    is(hipGetLastError(), INVALID_DEVICE, "the error is remembered");
    is(hipGetLastError(), 0, "and forgotten when asked");
    is(hipMalloc(&none, (size_t)1 << 60), OUT_OF_MEMORY, "more memory than there is");
    is(hipMalloc(&block, 4), 0, "memory");
    is(hipMemcpy(bytes, block, 4, 4), 0, "its bytes");
    is(bytes[0] == 0xd5 && bytes[3] == 0xd5, 1, "are poison");
    is(hipPointerGetAttributes(attributes, block), 0, "a pointer of its own");
    is(hipPointerGetAttributes(attributes, &bytes), INVALID_VALUE, "a pointer of nobody");
    is(hipFree((char *)block + 1), INVALID_VALUE, "freed inside");
    is(hipFree(block), 0, "freed");
    is(hipFree(block), INVALID_VALUE, "freed twice");
    is(hipStreamCreateWithFlags(&stream, 9), INVALID_VALUE, "flags of a stream");
    is(hipStreamCreateWithFlags(&stream, 1), 0, "stream");
    is(hipStreamDestroy(stream), 0, "its end");
    is(hipStreamDestroy(stream), NO_STREAM, "its end again");
    is(hipMemcpyAsync(bytes, bytes, 4, 4, stream), NO_STREAM, "work in it");
}

static void capture_records() {
    void *stream = nullptr, *graph = nullptr, *exec = nullptr, *at = nullptr;
    unsigned char byte = 0;
    size_t nodes = 0;
    hipStreamCreateWithFlags(&stream, 1);
    hipMalloc(&at, 1);
    is(hipStreamEndCapture(stream, &graph), ILLEGAL_STATE, "end of no capture");
    is(hipStreamBeginCapture(nullptr, 0), CAPTURE_UNSUPPORTED, "the default stream");
    is(hipStreamBeginCapture(stream, 0), 0, "capture");
    is(hipStreamBeginCapture(stream, 0), ILLEGAL_STATE, "capture in a capture");
    is(hipMemsetAsync(at, 7, 1, stream), 0, "work that is recorded");
    is(hipStreamEndCapture(stream, &graph), 0, "end");
    hipGraphGetNodes(graph, nullptr, &nodes);
    is((int)nodes, 1, "nodes");
    hipMemcpy(&byte, at, 1, 4);
    is(byte, 0xd5, "nothing was done while recording");
    is(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0), 0, "instantiate");
    is(hipGraphLaunch(exec, stream), 0, "launch");
    hipMemcpy(&byte, at, 1, 4);
    is(byte, 7, "the launch does it");
    hipGraphExecDestroy(exec);
    hipGraphDestroy(graph);
    hipFree(at);
    hipStreamDestroy(stream);
}

static void capture_is_spoilt() {
    for (int mode = 0; mode < 3; ++mode)
        for (int other = 0; other < 2; ++other) {
            void *stream = nullptr, *graph = nullptr, *at = nullptr;
            int error = 0;
            bool forbidden = mode == 0 || (mode == 1 && !other);
            hipStreamCreateWithFlags(&stream, 1);
            hipStreamBeginCapture(stream, mode);
            auto allocate = [&] { error = hipMalloc(&at, 8); };
            if (other) std::thread(allocate).join();
            else allocate();
            is(error, forbidden ? CAPTURE_UNSUPPORTED : 0, "memory during a capture");
            is(hipStreamEndCapture(stream, &graph), forbidden ? CAPTURE_INVALIDATED : 0, "end of that capture");
            if (graph) hipGraphDestroy(graph);
            if (at) hipFree(at);
            hipStreamBeginCapture(stream, mode);
            is(hipStreamSynchronize(stream), CAPTURE_UNSUPPORTED, "waiting for a captured stream");
            is(hipStreamEndCapture(stream, &graph), CAPTURE_INVALIDATED, "end of that one");
            hipStreamDestroy(stream);
        }
}

int main() {
    memory_and_handles();
    capture_records();
    capture_is_spoilt();
    printf("%d checks, %d failed\n", checks, failures);
    return failures || checks < 40;
}
