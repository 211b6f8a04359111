/* SPDX-License-Identifier: MIT
 *
 * Starting loader_tool. The contract is in spawn.h. */
#include "spawn.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void read_back(int fd, char *text, size_t capacity) {
    ssize_t got, length = 0;
    lseek(fd, 0, SEEK_SET);
    while ((got = read(fd, text + length, capacity - 1 - (size_t)length)) > 0) length += got;
    text[length] = 0;
}

/* A planted bug's tool, of the same name (tests/mutants/judge.py), or this one. */
static const char *planted(const char *tool) {
    static char path[4096];
    const char *folder = getenv("STW_PLANTED");
    snprintf(path, sizeof path, "%s%s", folder ? folder : "", strrchr(tool, '/'));
    return folder && !access(path, X_OK) ? path : tool;
}

void spawn_tool(spawn *result, const char *tool, const char *libraries, const char *const *environment,
                const char *const *commands) {
    static const char *const kept[] = {"PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"};
    char out_path[] = "/tmp/sternway-out-XXXXXX", log_path[] = "/tmp/sternway-log-XXXXXX";
    char *arguments[32] = {(char *)tool}, *variables[32] = {NULL}, buffers[8][4096];
    int count = 1, variable = 0, buffer = 0;
    int out = mkstemp(out_path), log = mkstemp(log_path);
    if (out < 0 || log < 0) abort();
    for (; *commands; ++commands) arguments[count++] = (char *)*commands;
    for (; *environment; ++environment) variables[variable++] = (char *)*environment;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; ++i)
        if (getenv(kept[i])) {
            snprintf(buffers[buffer], sizeof buffers[0], "%s=%s", kept[i], getenv(kept[i]));
            variables[variable++] = buffers[buffer++];
        }
    snprintf(buffers[buffer], sizeof buffers[0], "FAKE_LOG=%s", log_path);
    variables[variable++] = buffers[buffer++];
    if (libraries) {
        snprintf(buffers[buffer], sizeof buffers[0], "LD_LIBRARY_PATH=%s", libraries);
        variables[variable++] = buffers[buffer++];
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    pid_t child;
    int status;
    if (posix_spawn(&child, planted(tool), &actions, NULL, arguments, variables)) abort();
    if (waitpid(child, &status, 0) != child) abort();
    result->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    posix_spawn_file_actions_destroy(&actions);
    read_back(out, result->out, sizeof result->out);
    read_back(log, result->log, sizeof result->log);
    close(out);
    close(log);
    unlink(out_path);
    unlink(log_path);
}

const char *spawn_line(const char *text, int index) {
    static char line[4096];
    while (index-- > 0) {
        text += strcspn(text, "\n");
        text += *text != 0;
    }
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
    return line;
}

int spawn_count(const char *text, const char *line) {
    int count = 0;
    for (size_t length = strlen(line); *text; text += strcspn(text, "\n"), text += *text != 0)
        count += strcspn(text, "\n") == length && !strncmp(text, line, length);
    return count;
}

int spawn_listed(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name)) ++names;
    return *names != NULL;
}

int spawn_system_has(const char *soname) {
    void *handle = dlopen(soname, RTLD_LAZY | RTLD_LOCAL);
    if (handle) dlclose(handle);
    return handle != NULL;
}
