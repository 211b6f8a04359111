/* SPDX-License-Identifier: MIT
 *
 * Streams and graphs of the emulator's libamdhip64. Work is done before the call returns, so streams need no order;
 * what is recorded while a stream is captured becomes a graph, whose launch does it all again. Rules of capture as the
 * runtime has them: global mode forbids unsafe calls to every thread, thread mode to its own, relaxed to none; the
 * default stream cannot be captured, nor used beside one that is. What is no stream gets 709, as of ROCm 5 and 6. */
#include "hip_streams.h"

#include <mutex>
#include <set>
#include <thread>
#include <vector>

extern "C" {
int hipStreamBeginCapture(void *stream, int mode);
int hipLaunchHostFunc(void *stream, void (*work)(void *), void *data);
int hipStreamEndCapture(void *stream, void **graph_out);
int hipGraphGetNodes(void *graph, void **nodes, size_t *count);
int hipGraphInstantiate(void **exec_out, void *graph, void **node, char *log, size_t capacity);
int hipGraphLaunch(void *exec, void *stream);
int hipGraphExecDestroy(void *exec);
int hipGraphDestroy(void *graph);
}

namespace {
typedef std::vector<std::function<int()>> Graph;
enum { MODE_GLOBAL, MODE_THREAD, MODE_RELAXED };
struct Stream {
    bool captured = false, spoilt = false;
    int mode = MODE_GLOBAL;
    std::thread::id thread;
    Graph graph;
    Stream *origin = nullptr; /* that was captured first, where an event brought the capture here */
};
struct Event {
    Stream *origin = nullptr; /* of the capture in which it was recorded last */
};
} // namespace

static std::mutex lock;
static std::set<Stream *> streams;
static std::set<Event *> events;

static bool is_default(void *stream) { return (uintptr_t)stream <= 2; }
static Stream *stream_of(void *handle) {
    auto found = streams.find((Stream *)handle);
    return found == streams.end() ? nullptr : *found;
}

int hip_do(void *handle, std::function<int()> work) {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (is_default(handle)) {
            for (Stream *s : streams)
                if (s->captured && s->mode != MODE_RELAXED) return s->spoilt = true, CAPTURE_IMPLICIT;
        } else {
            Stream *s = stream_of(handle);
            if (!s) return NO_STREAM;
            if (s->captured) {
                if (s->origin) s = s->origin; /* one graph, in the order of the calls */
                if (s->spoilt) return CAPTURE_INVALIDATED;
                s->graph.push_back(work);
                return 0;
            }
        }
    }
    return work();
}

int hip_refuse_in_capture() {
    std::lock_guard<std::mutex> guard(lock);
    int error = 0;
    for (Stream *s : streams)
        if (s->captured &&
            (s->mode == MODE_GLOBAL || (s->mode == MODE_THREAD && s->thread == std::this_thread::get_id())))
            s->spoilt = true, error = CAPTURE_UNSUPPORTED;
    return error;
}

int hip_refuse_captured(void *handle) {
    std::lock_guard<std::mutex> guard(lock);
    if (is_default(handle)) return 0;
    Stream *s = stream_of(handle);
    if (!s) return NO_STREAM;
    return s->captured ? s->spoilt = true, (int)CAPTURE_UNSUPPORTED : 0;
}

int hipStreamCreateWithFlags(void **stream_out, unsigned flags) {
    if (flags > 1) return hip_say(INVALID_VALUE);
    std::lock_guard<std::mutex> guard(lock);
    *stream_out = *streams.insert(new Stream).first;
    return 0;
}
int hipStreamCreateWithPriority(void **stream_out, unsigned flags, int) {
    return hipStreamCreateWithFlags(stream_out, flags); /* one at a time: none is first */
}
int hipStreamGetDevice(void *handle, int *device) {
    std::lock_guard<std::mutex> guard(lock);
    if (!is_default(handle) && !stream_of(handle)) return hip_say(NO_STREAM);
    return *device = 0, 0;
}
int hipStreamDestroy(void *handle) {
    std::lock_guard<std::mutex> guard(lock);
    Stream *s = stream_of(handle);
    if (!s) return hip_say(NO_STREAM);
    streams.erase(s);
    delete s;
    return 0;
}

/* 0 none, 1 active, 2 spoilt */
int hipStreamIsCapturing(void *handle, int *status) {
    std::lock_guard<std::mutex> guard(lock);
    Stream *s = is_default(handle) ? nullptr : stream_of(handle);
    if (!s && !is_default(handle)) return hip_say(NO_STREAM);
    *status = s && s->captured ? s->spoilt ? 2 : 1 : 0;
    return 0;
}

int hipEventCreateWithFlags(void **event_out, unsigned flags) {
    if (flags != 2) return hip_say(INVALID_VALUE);
    std::lock_guard<std::mutex> guard(lock);
    *event_out = *events.insert(new Event).first;
    return 0;
}
int hipEventRecord(void *event, void *handle) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = events.find((Event *)event);
    Stream *s = is_default(handle) ? nullptr : stream_of(handle);
    if (found == events.end() || (!s && !is_default(handle))) return hip_say(s ? INVALID_VALUE : NO_STREAM);
    (*found)->origin = s && s->captured ? s->origin ? s->origin : s : nullptr;
    return 0;
}
/* An event of a capture brings the stream that waits for it into that capture. */
int hipStreamWaitEvent(void *handle, void *event, unsigned flags) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = events.find((Event *)event);
    Stream *s = is_default(handle) ? nullptr : stream_of(handle);
    if (found == events.end() || flags || (!s && !is_default(handle))) return hip_say(s ? INVALID_VALUE : NO_STREAM);
    Stream *origin = (*found)->origin;
    if (!origin || !origin->captured) return 0;
    if (!s) return origin->spoilt = true, hip_say(CAPTURE_IMPLICIT);
    if (s != origin && !s->captured) s->captured = true, s->mode = origin->mode, s->origin = origin;
    return 0;
}
int hipEventDestroy(void *event) {
    std::lock_guard<std::mutex> guard(lock);
    if (!events.erase((Event *)event)) return hip_say(INVALID_VALUE);
    delete (Event *)event;
    return 0;
}

int hipLaunchHostFunc(void *stream, void (*work)(void *), void *data) {
    return hip_say(hip_do(stream, [=] { return work(data), 0; }));
}

int hipStreamBeginCapture(void *handle, int mode) {
    std::lock_guard<std::mutex> guard(lock);
    if (is_default(handle)) return hip_say(CAPTURE_UNSUPPORTED);
    Stream *s = stream_of(handle);
    if (!s || mode < MODE_GLOBAL || mode > MODE_RELAXED) return hip_say(s ? INVALID_VALUE : NO_STREAM);
    if (s->captured) return hip_say(ILLEGAL_STATE);
    s->captured = true, s->spoilt = false, s->mode = mode, s->thread = std::this_thread::get_id();
    s->graph.clear();
    return 0;
}

int hipStreamEndCapture(void *handle, void **graph_out) {
    std::lock_guard<std::mutex> guard(lock);
    Stream *s = is_default(handle) ? nullptr : stream_of(handle);
    *graph_out = nullptr;
    if (!s) return hip_say(NO_STREAM);
    if (!s->captured) return hip_say(ILLEGAL_STATE);
    if (s->origin) return hip_say(CAPTURE_UNMATCHED);
    if (s->mode != MODE_RELAXED && s->thread != std::this_thread::get_id()) return hip_say(CAPTURE_WRONG_THREAD);
    s->captured = false;
    for (Stream *other : streams)
        if (other->origin == s) other->captured = false, other->origin = nullptr;
    if (s->spoilt) return hip_say(CAPTURE_INVALIDATED);
    *graph_out = new Graph(s->graph);
    return 0;
}

/* nodes NULL: only their number, which is all that is known here. */
int hipGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (!graph || nodes) return hip_say(INVALID_VALUE);
    *count = ((Graph *)graph)->size();
    return 0;
}
int hipGraphInstantiate(void **exec_out, void *graph, void **, char *, size_t) {
    if (!graph) return hip_say(INVALID_VALUE);
    *exec_out = new Graph(*(Graph *)graph);
    return 0;
}
int hipGraphLaunch(void *exec, void *stream) {
    const Graph nodes = *(Graph *)exec;
    for (const std::function<int()> &node : nodes)
        if (int error = hip_do(stream, node)) return hip_say(error);
    return 0;
}
int hipGraphExecDestroy(void *exec) {
    delete (Graph *)exec;
    return 0;
}
int hipGraphDestroy(void *graph) {
    delete (Graph *)graph;
    return 0;
}
