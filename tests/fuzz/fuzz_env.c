/* SPDX-License-Identifier: MIT
 *
 * The environment: lines NAME=value. Parsing ends in values within their documented ranges, or in a text
 * that names a variable. A variable that nobody reads is told by its name. */
#include "fuzz.h"

#include "common/env.h"
#include "common/status.h"

static const char *lookup(void *user, const char *name) {
    const size_t length = strlen(name);
    for (char **line = user; *line; ++line)
        if (!strncmp(*line, name, length) && (*line)[length] == '=') return *line + length + 1;
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = read_text(data, size), *lines[33], *rest = text;
    size_t count = 0;
    for (char *line; count < 32 && (line = strsep(&rest, "\n"));) lines[count++] = line;
    lines[count] = NULL;
    stw_env env, untouched;
    memset(&env, 0xA5, sizeof env);
    memset(&untouched, 0xA5, sizeof untouched);
    if (stw_env_parse(lookup, lines, &env)) {
        FUZZ_CHECK(strstr(stw_last_error(), "STERNWAY_"), "%s", stw_last_error());
        FUZZ_CHECK(!memcmp(&env, &untouched, sizeof env), "a refused environment wrote env_out");
    } else {
        FUZZ_CHECK((unsigned)env.backend <= STW_BACKEND_HIP, "backend %d", (int)env.backend);
        FUZZ_CHECK((unsigned)env.deterministic <= STW_ENV_DET_WARN, "%d", (int)env.deterministic);
        FUZZ_CHECK((unsigned)env.log <= STW_LOG_TRACE, "log %d", (int)env.log);
        FUZZ_CHECK(env.cpu_threads >= 0 && env.cpu_threads <= 1024, "threads %d", env.cpu_threads);
        FUZZ_CHECK(env.device >= 0 && env.smem_max >= 0, "device %d", env.device);
        FUZZ_CHECK(memchr(env.arch, 0, sizeof env.arch) && memchr(env.tuning, 0, sizeof env.tuning) &&
                       memchr(env.variant, 0, sizeof env.variant) && memchr(env.log_file, 0, sizeof env.log_file),
                   "not terminated");
    }
    size_t index = 0, found = 0;
    char told[256];
    for (stw_text line; line = stw_text_in(told, sizeof told), stw_env_unknown(lines, &index, &line); ++found)
        FUZZ_CHECK(!strncmp(told, "STERNWAY_", 9) && line.length < sizeof told, "%s", told);
    FUZZ_CHECK(index == count && found <= count, "%zu of %zu", index, count);
    free(text);
    return 0;
}
