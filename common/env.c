/* SPDX-License-Identifier: MIT
 *
 * The environment variables of common/env.def, parsed. The only file that reads the environment. */
#include "env.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define STW_ENV_BUILD(name)
const stw_env_row stw_env_rows[] = {
#define STW_ENV(field, name, fallback, help) {name, fallback, help},
#include "env.def"
#undef STW_ENV
};
const size_t stw_env_row_count = sizeof stw_env_rows / sizeof stw_env_rows[0];

enum {
#define STW_ENV(field, name, fallback, help) ROW_##field,
#include "env.def"
#undef STW_ENV
};
#undef STW_ENV_BUILD

static const char *const known_names[] = {
#define STW_ENV(field, name, fallback, help) name,
#define STW_ENV_BUILD(name)                  name,
#include "env.def"
#undef STW_ENV
#undef STW_ENV_BUILD
};

/* Where a value is looked up and what it is called in an error text. */
typedef struct env_source {
    const char *(*lookup)(void *user, const char *name);
    void *user;
} env_source;

/* The value, or NULL when unset or empty. */
static const char *value_of(const env_source *source, int row) {
    const char *text = source->lookup(source->user, stw_env_rows[row].name);
    return text && text[0] ? text : NULL;
}

static stw_status refuse(int row, const char *text) {
    return stw_fail(STW_E_INVALID, "environment: %s=%.200s is not understood: %s", stw_env_rows[row].name, text,
                    stw_env_rows[row].help);
}

static stw_status parse_integer(const env_source *source, int row, int64_t low, int64_t high, int64_t *value_out,
                                int *present_out) {
    const char *text = value_of(source, row);
    if (present_out) *present_out = text != NULL;
    if (!text) return STW_OK;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || text[0] <= ' ' || value < low || value > high) /* strtoll skips blanks of all kinds */
        return refuse(row, text);
    *value_out = value;
    return STW_OK;
}

/* A copied string; too long is an error, never a cut. */
static stw_status parse_text(const env_source *source, int row, char *out, size_t capacity) {
    const char *text = value_of(source, row);
    out[0] = 0;
    if (!text) return STW_OK;
    if (strlen(text) >= capacity)
        return stw_fail(STW_E_INVALID, "environment: %s has %zu characters, at most %zu fit", stw_env_rows[row].name,
                        strlen(text), capacity - 1);
    strcpy(out, text);
    return STW_OK;
}

/* Index of the value in `names`; `fallback` when unset. */
static stw_status parse_choice(const env_source *source, int row, const char *const *names, int count, int fallback,
                               int *choice_out) {
    const char *text = value_of(source, row);
    *choice_out = fallback;
    if (!text) return STW_OK;
    for (int i = 0; i < count; ++i)
        if (!strcmp(text, names[i])) {
            *choice_out = i;
            return STW_OK;
        }
    return refuse(row, text);
}

stw_status stw_env_parse_backend(const char *who, const char *text, stw_backend *backend_out, char arch_out[32]) {
    static const char *const names[] = {"auto", "cpu", "cuda", "hip"};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    for (int i = 0; i < 4; ++i) {
        if (strlen(names[i]) != length || strncmp(names[i], text, length)) continue;
        if (colon && (!colon[1] || strlen(colon + 1) > 31 || i == STW_BACKEND_AUTO)) break;
        *backend_out = (stw_backend)i;
        strcpy(arch_out, colon ? colon + 1 : "");
        return STW_OK;
    }
    return stw_fail(STW_E_INVALID,
                    "%s=%.200s is not understood: auto, cpu, cuda, hip, or with an arch, cuda:sm80 or "
                    "hip:gfx942",
                    who, text);
}

stw_status stw_env_parse(const char *(*lookup)(void *user, const char *name), void *user, stw_env *env_out) {
    static const char *const deterministic[] = {"0", "1", "warn"};
    static const char *const levels[] = {"error", "warn", "info", "trace"};
    static const char *const pointers[] = {"check", "trust"};
    env_source source = {lookup, user};
    stw_env env = {0};
    int64_t device = 0, threads = 0, smem_kb = 0;
    int choice_det, choice_log;
    stw_status status;
    const char *backend = value_of(&source, ROW_backend);
    if (backend && (status = stw_env_parse_backend("environment: STERNWAY_BACKEND", backend, &env.backend, env.arch)))
        return status;
    if ((status = parse_integer(&source, ROW_device, 0, INT32_MAX, &device, &env.has_device)) ||
        (status = parse_integer(&source, ROW_cpu_threads, 0, 1024, &threads, NULL)) ||
        (status = parse_integer(&source, ROW_smem_max, 1, 1024, &smem_kb, NULL)) ||
        (status = parse_choice(&source, ROW_deterministic, deterministic, 3, 0, &choice_det)) ||
        (status = parse_choice(&source, ROW_pointers, pointers, 2, 0, &env.trust_pointers)) ||
        (status = parse_choice(&source, ROW_log, levels, 4, STW_LOG_WARN, &choice_log)) ||
        (status = parse_text(&source, ROW_tuning, env.tuning, sizeof env.tuning)) ||
        (status = parse_text(&source, ROW_variant, env.variant, sizeof env.variant)) ||
        (status = parse_text(&source, ROW_log_file, env.log_file, sizeof env.log_file)))
        return status;
    env.device = (int32_t)device;
    env.cpu_threads = (int32_t)threads;
    env.smem_max = smem_kb * 1024;
    env.deterministic = (stw_env_deterministic)choice_det;
    env.log = (stw_log_level)choice_log;
    *env_out = env;
    return STW_OK;
}

/* ---- variables that nobody reads ---- */

enum { NAME_CAPACITY = 64 };
static const char own_prefix[] = "STERNWAY_";
#define PREFIX_LENGTH (sizeof own_prefix - 1)

/* How many characters to insert, remove or replace to get from one name to the other (Levenshtein). */
static size_t edit_distance(const char *from, const char *to) {
    size_t row[NAME_CAPACITY], length = strlen(to);
    for (size_t j = 0; j <= length; ++j) row[j] = j;
    for (size_t i = 1; from[i - 1]; ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; ++j) {
            size_t best = diagonal + (from[i - 1] != to[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[length];
}

/* The known name that differs least from `name`, in at most two fifths of the characters after the prefix:
 * more of them give every short word a neighbour. NULL: none is near; `name` itself: it is known. */
static const char *nearest_name(const char *name) {
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < sizeof known_names / sizeof known_names[0]; ++i) {
        size_t distance = edit_distance(name, known_names[i]);
        if (distance >= least || distance * 5 > (strlen(known_names[i]) - PREFIX_LENGTH) * 2) continue;
        nearest = known_names[i];
        least = distance;
    }
    return nearest;
}

int stw_env_unknown(char *const *variables, size_t *index, stw_text *text) {
    for (const char *variable; (variable = variables[*index]); ++*index) {
        size_t length = strcspn(variable, "=");
        char name[NAME_CAPACITY];
        if (strncmp(variable, own_prefix, PREFIX_LENGTH) || !variable[length] || !variable[length + 1]) continue;
        size_t kept = length < sizeof name ? length : sizeof name - 1;
        for (size_t i = 0; i < kept; ++i) name[i] = isprint((unsigned char)variable[i]) ? variable[i] : '?';
        name[kept] = 0;
        const char *nearest = nearest_name(name);
        if (nearest && !strcmp(nearest, name)) continue;
        ++*index;
        stw_text_add(text, "%s%s is unknown", name, kept < length ? "..." : "");
        if (nearest) stw_text_add(text, "; did you mean %s?", nearest);
        else stw_text_add(text, "; `sternway info` lists the variables that are read");
        return 1;
    }
    return 0;
}

int stw_env_unknown_here(size_t *index, stw_text *text) {
    return environ && !getauxval(AT_SECURE) && stw_env_unknown(environ, index, text);
}

static const char *process_lookup(void *user, const char *name) {
    (void)user;
    return secure_getenv(name);
}

stw_status stw_env_read(stw_env *env_out) { return stw_env_parse(process_lookup, NULL, env_out); }

const char *stw_env_rocr_devices(void) { return secure_getenv("ROCR_VISIBLE_DEVICES"); }

/* The runtime reads the second where the first is empty. */
const char *stw_env_hip_devices(void) {
    const char *names[] = {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < 2; ++i) {
        const char *value = secure_getenv(names[i]);
        if (value && value[0]) return value;
    }
    return NULL;
}
