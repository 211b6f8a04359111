/* SPDX-License-Identifier: MIT
 *
 * PROBLEM strings: whatever the text, parsing ends in a problem or a text that says why not; what was
 * parsed prints as a line that parses to the same line. */
#include "fuzz.h"

#include "tools/problem/problem.h"

enum { LINE = 32768 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char line[LINE], again[LINE], cut[24];
    static stw_problem problem, second, untouched;
    char *text = read_text(data, size);
    memset(&problem, 0xA5, sizeof problem);
    memset(&untouched, 0xA5, sizeof untouched);
    if (stw_problem_parse(text, &problem)) {
        FUZZ_CHECK(stw_last_error()[0], "no text");
        FUZZ_CHECK(!memcmp(&problem, &untouched, sizeof problem), "a refused line wrote problem_out");
        free(text);
        return 0;
    }
    const size_t length = stw_problem_print(&problem, line, sizeof line);
    FUZZ_CHECK(length < sizeof line, "%zu", length);
    FUZZ_CHECK(strlen(line) == length, "%zu", length);
    FUZZ_CHECK(!stw_problem_parse(line, &second), "%s -> %s: %s", text, line, stw_last_error());
    FUZZ_CHECK(stw_problem_print(&second, again, sizeof again) == length, "%s -> %s -> %s", text, line, again);
    FUZZ_CHECK(!strcmp(line, again), "%s -> %s -> %s", text, line, again);
    FUZZ_CHECK(stw_problem_print(&problem, cut, sizeof cut) == length, "%s", line);
    FUZZ_CHECK(!strncmp(cut, line, sizeof cut - 1) && strlen(cut) < sizeof cut, "cut: %s of %s", cut, line);
    FUZZ_CHECK(stw_problem_format(&problem.desc, problem.op, again, sizeof again) < sizeof again, "%s", line);
    free(text);
    return 0;
}
