/* SPDX-License-Identifier: MIT
 *
 * Runs loader_tool in a process of its own with chosen fake drivers, and keeps what it printed and what
 * the fakes logged. */
#ifndef STW_TESTS_LOADER_SPAWN_H
#define STW_TESTS_LOADER_SPAWN_H

typedef struct spawn {
    int exit_status; /* -1: killed by a signal */
    char out[16384]; /* standard output            */
    char log[65536]; /* the calls, "folder:function\n" */
} spawn;

/* `libraries`: LD_LIBRARY_PATH or NULL for none. `environment`: "NAME=value" strings and `commands` of
 * loader_tool, each ended by NULL. The rest of the environment is PATH and the sanitizers' options. */
void spawn_tool(spawn *result, const char *tool, const char *libraries, const char *const *environment,
                const char *const *commands);

/* The `index`th line of `text`, without its newline; "" when there is none. Valid until the next call. */
const char *spawn_line(const char *text, int index);

/* How often `line` is a whole line of `text`. */
int spawn_count(const char *text, const char *line);

/* 1 when `name` is one of `names`, which NULL ends. */
int spawn_listed(const char *const *names, const char *name);

/* 1 when the system itself has this library: tests of its absence cannot run there. */
int spawn_system_has(const char *soname);

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NOTHING   ((const char *const[]){NULL})

#endif
