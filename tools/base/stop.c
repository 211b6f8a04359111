/* SPDX-License-Identifier: MIT
 *
 * Ending a long command early (stop.h). */
#include "stop.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND_SIGNAL 1 /* s; timeout(1) sends its signal twice at once, to the process and to its group */

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGPIPE, "SIGPIPE"}};
enum { SIGNALS = sizeof signals / sizeof signals[0], CAUGHT = SIGNALS - 1 };

static atomic_int stopped_by; /* the signal's number; 0: none */
static atomic_int stopped_at; /* seconds of the monotonic clock */
static atomic_int on_terminal;

static void catch (int number) {
    static const char text[] = "\nending: what is finished will be reported; the same again ends at once\n";
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (stopped_by && now.tv_sec - stopped_at > SECOND_SIGNAL) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (stopped_by) return;
    stopped_at = (int)now.tv_sec;
    stopped_by = number;
    if (on_terminal && write(STDERR_FILENO, text, sizeof text - 1) < 0) on_terminal = 0;
}

void stw_tool_stop_begin(void) {
    struct sigaction own = {.sa_handler = catch}, before; /* no SA_RESTART: who waits looks again */
    on_terminal = isatty(STDERR_FILENO);
    for (int i = 0; i < CAUGHT; ++i)
        if (!sigaction(signals[i].number, NULL, &before) && before.sa_handler != SIG_IGN)
            sigaction(signals[i].number, &own, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* A pipe or socket that nobody reads any more. */
static int is_reader_gone(void) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

const char *stw_tool_stopped(void) {
    if (!stopped_by && ferror(stdout) && is_reader_gone()) stopped_by = SIGPIPE;
    for (int i = 0; i < SIGNALS; ++i)
        if (signals[i].number == stopped_by) return signals[i].name;
    return NULL;
}

int stw_tool_stop_status(int status) { return stw_tool_stopped() ? 128 + stopped_by : status; }

int stw_tool_stop_end(int status) {
    if (!stw_tool_stopped()) return status;
    signal(stopped_by, SIG_DFL);
    raise(stopped_by);
    return 128 + stopped_by; /* the first process of a container does not end by a signal of its own */
}

void stw_tool_stop_child(void) {
    for (int i = 0; i < CAUGHT; ++i) signal(signals[i].number, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}
