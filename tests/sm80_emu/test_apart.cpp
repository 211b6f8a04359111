/* SPDX-License-Identifier: MIT
 *
 * What the emulator refuses that would hang a GPU or read another lane's number: lanes of a warp that meet in different
 * places, and a value that should be the warp's and is a lane's. Each kernel runs in a process of its own. */
#include "backends/cuda/leaf.h"

#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

extern "C" int fake_launch(const char *name, unsigned grid_x, unsigned grid_y, unsigned block, unsigned smem,
                           void *const *parameters);
struct argument {
    char bytes[1280];
};
#define KERNEL extern "C" __attribute__((visibility("default"))) void
static volatile int sink;

KERNEL together(argument) { sink = dev_uniform(7) + (int)dev_wave() + (int)dev_shuffle(dev_lane(), 3); }
KERNEL shuffles_apart(argument) {
    if (dev_lane() < 5) sink = (int)dev_shuffle(dev_lane(), 0);
    else sink = (int)dev_shuffle(dev_lane(), 1);
}
KERNEL uniform_of_some(argument) {
    if (dev_lane() % 2) sink = dev_uniform(7);
    dev_wave_sync();
}
KERNEL uniform_of_lanes(argument) { sink = dev_uniform((int)dev_lane()); }

/* What a kernel printed before it stopped; "" if it ended well. */
static const char *end_of(const char *name) {
    static char text[256];
    int ends[2], status;
    if (pipe(ends)) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        static argument given;
        void *parameters[] = {&given};
        dup2(ends[1], STDERR_FILENO);
        _exit(fake_launch(name, 1, 1, 64, 0, parameters));
    }
    close(ends[1]);
    const ssize_t got = read(ends[0], text, sizeof text - 1);
    text[got < 0 ? 0 : got] = 0;
    close(ends[0]);
    if (waitpid(child, &status, 0) != child) return "no process";
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : text;
}

int main() {
    static const struct {
        const char *kernel, *says;
    } cases[] = {{"together", ""},
                 {"shuffles_apart", "meet apart"},
                 {"uniform_of_some", "meet apart"},
                 {"uniform_of_lanes", "differ in what they should share"}};
    int bad = 0;
    for (const auto &one : cases) {
        const char *text = end_of(one.kernel);
        const bool right = *one.says ? strstr(text, one.says) != nullptr : !*text;
        printf("%s %s %s\n", right ? "ok  " : "FAIL", one.kernel, text);
        bad += !right;
    }
    return bad;
}
