/* SPDX-License-Identifier: MIT
 *
 * What the tests of both GPU backends' calls share: loader_tool run over a fake driver, and reading what it
 * printed. Included by test_cuda_calls.c and test_hip_calls.c, behind cmocka.h. */
#ifndef STW_TESTS_LOADER_RUN_CALLS_H
#define STW_TESTS_LOADER_RUN_CALLS_H

#include "spawn.h"

#include <stdio.h>
#include <string.h>

static spawn run;

static void tool(const char *folder, const char *const *environment, const char *const *commands) {
    char libraries[512];
    snprintf(libraries, sizeof libraries, FAKES "/%s", folder);
    spawn_tool(&run, TOOL_IMAGES, libraries, environment, commands);
    assert_int_equal(run.exit_status, 0);
}

/* Lines of the output that are a call with another status than STW_OK. */
static int failures(const char *must_contain) {
    int count = 0;
    for (int i = 0; *spawn_line(run.out, i); ++i) {
        const char *line = spawn_line(run.out, i);
        if (!strstr(line, " STW_E_")) continue;
        if (must_contain && !strstr(line, must_contain)) fail_msg("\"%s\" lacks \"%s\"", line, must_contain);
        ++count;
    }
    return count;
}

static int lines_with(const char *text, const char *part) {
    int count = 0;
    for (int i = 0; *spawn_line(text, i); ++i) count += strstr(spawn_line(text, i), part) != NULL;
    return count;
}

/* Each row is the beginning of one line of the output, and something in it. */
static void expect(const char *const rows[][2], int count) {
    for (int i = 0; i < count; ++i) {
        int found = 0;
        for (int n = 0; *spawn_line(run.out, n); ++n)
            found += !strncmp(spawn_line(run.out, n), rows[i][0], strlen(rows[i][0])) &&
                     strstr(spawn_line(run.out, n), rows[i][1]);
        if (found != 1) fail_msg("%s...%s: %d lines of\n%s", rows[i][0], rows[i][1], found, run.out);
    }
}

/* After the command `lost`, each call refuses and says what was lost, at once. */
static inline void expect_device_loss(const char *loss) {
    char *rest = strstr(run.out, "\n-\n");
    assert_non_null(rest);
    rest += 3;
    for (int i = 0; i < 11; ++i) {
        const char *line = spawn_line(rest, i);
        assert_non_null(strstr(line, " STW_E_DEVICE_LOST "));
        assert_non_null(strstr(line, loss));
        assert_non_null(strstr(line, ": the device was lost: "));
    }
    assert_string_equal(spawn_line(rest, 11), "under 1 ms");
}

/* After the command `child`, the child's calls refuse and the parent's go on. */
static inline void expect_forked(const char *launch) {
    assert_non_null(strstr(run.out, "\nbwd STW_E_FORKED attn_bwd: this context was made before the process forked; "));
    assert_int_equal(lines_with(run.out, "once STW_E_FORKED "), 2);
    assert_int_equal(spawn_count(run.out, "refused under 1 s"), 1);
    assert_int_equal(spawn_count(run.out, "child 0"), 1);
    assert_int_equal(spawn_count(run.out, "bwd STW_OK "), 2); /* before, and in the parent afterwards */
    assert_int_equal(lines_with(run.log, launch), 9);
    assert_int_equal(lines_with(run.log, "left"), 0);
}

#endif
