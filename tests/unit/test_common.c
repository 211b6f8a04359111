/* SPDX-License-Identifier: MIT
 *
 * common/: the struct_size rule, the environment, element types, last-error text per thread, the log, small
 * files, drivers that nobody has touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/gpu/driver.h"
#include "common/dtype.h"
#include "common/env.h"
#include "common/extend.h"
#include "backends/gpu/image.h"
#include "common/log.h"
#include "common/small_file.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* ---- struct_size ---- */

typedef struct sample {
    size_t struct_size;
    int64_t old_field, new_field;
} sample;

static void extend_reads_short_exact_and_long_structs(void **state) {
    (void)state;
    struct {
        sample known;
        int64_t tail;
    } longer = {.known = {sizeof longer, 1, 2}};
    sample out, given = {16, 7, 99};
    assert_int_equal(stw_extend("t: s", &given, &out, sizeof out, 16), STW_OK);
    assert_int_equal(out.old_field, 7);
    assert_int_equal(out.new_field, 0); /* beyond the caller's size */
    assert_int_equal(out.struct_size, sizeof(sample));
    assert_int_equal(stw_extend("t: s", &longer, &out, sizeof out, 16), STW_OK);
    assert_int_equal(out.new_field, 2);
    longer.tail = 1;
    assert_int_equal(stw_extend("t: s", &longer, &out, sizeof out, 16), STW_E_UNSUPPORTED);
    assert_non_null(strstr(stw_last_error(), "t: s.struct_size 32: byte 24"));
}

static void extend_refuses_sizes_that_are_none(void **state) {
    (void)state;
    sample out;
    const size_t sizes[] = {0, 8, 15, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        sample given = {sizes[i], 0, 0};
        assert_int_equal(stw_extend("t: s", &given, &out, sizeof out, 16), STW_E_INVALID);
        assert_non_null(strstr(stw_last_error(), "STW_INIT"));
    }
    assert_int_equal(stw_extend("t: s", NULL, &out, sizeof out, 16), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "t: s is null");
}

/* ---- environment ---- */

typedef struct pair {
    const char *name, *value;
} pair;

static const char *lookup(void *user, const char *name) {
    for (const pair *p = user; p->name; ++p)
        if (!strcmp(p->name, name)) return p->value;
    return NULL;
}

static stw_status parse_one(const char *name, const char *value, stw_env *env) {
    pair pairs[] = {{name, value}, {NULL, NULL}};
    return stw_env_parse(lookup, pairs, env);
}

static void environment_defaults(void **state) {
    (void)state;
    stw_env env;
    assert_int_equal(parse_one("UNRELATED", "1", &env), STW_OK);
    assert_int_equal(env.backend, STW_BACKEND_AUTO);
    assert_int_equal(env.log, STW_LOG_WARN);
    assert_int_equal(env.has_device, 0);
    assert_int_equal(parse_one("STERNWAY_BACKEND", "", &env), STW_OK); /* empty = unset */
}

static void environment_values(void **state) {
    (void)state;
    stw_env env;
    assert_int_equal(parse_one("STERNWAY_BACKEND", "hip:gfx942", &env), STW_OK);
    assert_int_equal(env.backend, STW_BACKEND_HIP);
    assert_string_equal(env.arch, "gfx942");
    assert_int_equal(parse_one("STERNWAY_DETERMINISTIC", "warn", &env), STW_OK);
    assert_int_equal(env.deterministic, STW_ENV_DET_WARN);
    assert_int_equal(parse_one("STERNWAY_SMEM_MAX", "99", &env), STW_OK);
    assert_int_equal(env.smem_max, 99 * 1024);
    assert_int_equal(parse_one("STERNWAY_DEVICE", "0", &env), STW_OK);
    assert_int_equal(env.has_device, 1);
    assert_int_equal(env.trust_pointers, 0);
    assert_int_equal(parse_one("STERNWAY_POINTERS", "trust", &env), STW_OK);
    assert_int_equal(env.trust_pointers, 1);
    assert_int_equal(parse_one("STERNWAY_POINTERS", "check", &env), STW_OK);
    assert_int_equal(env.trust_pointers, 0);
}

static void environment_names_the_variable_that_was_meant(void **state) {
    (void)state;
    static const struct {
        const char *variable, *meant; /* "": none is near; NULL: nothing to say */
    } rows[] = {
        {"STERNWAY_BACKND=cuda", "STERNWAY_BACKEND"},
        {"STERNWAY_BACKENDS=cuda", "STERNWAY_BACKEND"},
        {"STERNWAY_BAKCEND=cuda", "STERNWAY_BACKEND"},
        {"STERNWAY_DEVISE=1", "STERNWAY_DEVICE"},
        {"STERNWAY_DETERMINISM=1", "STERNWAY_DETERMINISTIC"},
        {"STERNWAY_THREADS=4", "STERNWAY_CPU_THREADS"},
        {"STERNWAY_NUM_THREADS=4", "STERNWAY_CPU_THREADS"},
        {"STERNWAY_LOGFILE=x", "STERNWAY_LOG_FILE"},
        {"STERNWAY_LOGS=info", "STERNWAY_LOG"},
        {"STERNWAY_NVC=x", "STERNWAY_NVCC"},
        {"STERNWAY_FOO=1", ""},
        {"STERNWAY_=1", ""},
        {"STERNWAY_TEMPERATURE=1", ""},
        {"STERNWAY_BACKEND=cuda", NULL},
        {"STERNWAY_NVCC=none", NULL},
        {"STERNWAY_NVCC_SERIES=12.9", NULL},
        {"STERNWAY_BACKND=", NULL}, /* empty = unset */
        {"STERNWAY_BACKND", NULL},
        {"STERNWAYS_BACKND=1", NULL},
        {"XSTERNWAY_BACKND=1", NULL},
        {"sternway_BACKND=1", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char *variables[] = {"PATH=/bin", (char *)rows[i].variable, "HOME=/", NULL};
        char line[256], expected[256] = "";
        size_t index = 0;
        stw_text text = stw_text_in(line, sizeof line);
        int length = (int)strcspn(rows[i].variable, "=");
        assert_int_equal(stw_env_unknown(variables, &index, &text), rows[i].meant != NULL);
        if (rows[i].meant)
            snprintf(expected, sizeof expected,
                     rows[i].meant[0] ? "%.*s is unknown; did you mean %s?"
                                      : "%.*s is unknown; `sternway info` lists the variables that are read",
                     length, rows[i].variable, rows[i].meant);
        assert_string_equal(line, expected);
        assert_int_equal(index, rows[i].meant ? 2 : 3);
        assert_int_equal(stw_env_unknown(variables, &index, &text), 0);
    }
}

static void environment_of_long_and_strange_names(void **state) {
    (void)state;
    char name[200] = "STERNWAY_", line[256];
    memset(name + 9, 'A', 150);
    strcpy(name + 159, "=1");
    char *variables[] = {name, "STERNWAY_BACK\nEND=1", "STERNWAY_LOG=info", NULL};
    size_t index = 0;
    stw_text text = stw_text_in(line, sizeof line);
    assert_int_equal(stw_env_unknown(variables, &index, &text), 1);
    assert_non_null(strstr(line, "AAA... is unknown; `sternway info`"));
    text = stw_text_in(line, sizeof line);
    assert_int_equal(stw_env_unknown(variables, &index, &text), 1);
    assert_string_equal(line, "STERNWAY_BACK?END is unknown; did you mean STERNWAY_BACKEND?");
    assert_int_equal(stw_env_unknown(variables, &index, &text), 0);
}

static void environment_of_the_process(void **state) {
    (void)state;
    char line[256];
    size_t index = 0;
    stw_text text = stw_text_in(line, sizeof line);
    assert_int_equal(stw_env_unknown_here(&index, &text), 0);
    assert_int_equal(setenv("STERNWAY_TUNNING", "x", 1), 0);
    index = 0;
    assert_int_equal(stw_env_unknown_here(&index, &text), 1);
    assert_string_equal(line, "STERNWAY_TUNNING is unknown; did you mean STERNWAY_TUNING?");
    char **kept = environ;
    environ = NULL; /* as clearenv leaves it */
    index = 0;
    assert_int_equal(stw_env_unknown_here(&index, &text), 0);
    environ = kept;
    assert_int_equal(unsetenv("STERNWAY_TUNNING"), 0);
}

static void environment_refuses_what_it_does_not_understand(void **state) {
    (void)state;
    static const pair bad[] = {
        {"STERNWAY_BACKEND", "cudaa"},     {"STERNWAY_BACKEND", "cuda:"},
        {"STERNWAY_BACKEND", "auto:sm80"}, {"STERNWAY_BACKEND", "CUDA"},
        {"STERNWAY_DEVICE", "-1"},         {"STERNWAY_DEVICE", "1x"},
        {"STERNWAY_DEVICE", " 1"},         {"STERNWAY_DEVICE", "99999999999"},
        {"STERNWAY_DETERMINISTIC", "yes"}, {"STERNWAY_CPU_THREADS", "1025"},
        {"STERNWAY_SMEM_MAX", "0"},        {"STERNWAY_LOG", "loud"},
        {"STERNWAY_DEVICE", "\t1"},        {"STERNWAY_DEVICE", "x"},
        {"STERNWAY_DEVICE", "2147483648"}, {"STERNWAY_DEVICE", "99999999999999999999"},
        {"STERNWAY_POINTERS", "0"},        {"STERNWAY_POINTERS", "Trust"},
        {"STERNWAY_SMEM_MAX", "-"},        {"STERNWAY_BACKEND", "hip:an_arch_of_thirty_two_characters_"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        stw_env env;
        memset(&env, 0x5A, sizeof env);
        stw_env before = env;
        assert_int_equal(parse_one(bad[i].name, bad[i].value, &env), STW_E_INVALID);
        assert_memory_equal(&env, &before, sizeof env);
        assert_non_null(strstr(stw_last_error(), bad[i].name));
        assert_non_null(strstr(stw_last_error(), bad[i].value));
    }
    char path[600];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    static const char *const texts[] = {"STERNWAY_LOG_FILE", "STERNWAY_TUNING", "STERNWAY_VARIANT"};
    for (size_t i = 0; i < 3; ++i) {
        stw_env env;
        assert_int_equal(parse_one(texts[i], path, &env), STW_E_INVALID);
        assert_non_null(strstr(stw_last_error(), texts[i]));
        assert_non_null(strstr(stw_last_error(), "has 599 characters, at most "));
    }
}

/* ---- element types, against the compiler's own conversions ---- */

static void f16_matches_the_compiler(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; ++h) {
        uint16_t half = (uint16_t)h;
        _Float16 native;
        memcpy(&native, &half, 2);
        float mine = stw_f32_from_f16(half);
        if (native != native) assert_true(mine != mine);
        else assert_true(mine == (float)native);
    }
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 977) {
        float x = stw_f32_of_bits((uint32_t)bits);
        if (x != x) continue;
        _Float16 native = (_Float16)x;
        uint16_t expected;
        memcpy(&expected, &native, 2);
        assert_int_equal(stw_f16_from_f32(x), expected);
    }
    assert_true(isnan(stw_f32_from_f16(stw_f16_from_f32(NAN))));
}

/* bf16 by its definition: the nearest of the two neighbours, ties to the even one. */
static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4099) {
        uint32_t u = (uint32_t)bits;
        float x = stw_f32_of_bits(u);
        uint16_t got = stw_bf16_from_f32(x);
        if (x != x) {
            assert_true(isnan(stw_f32_from_bf16(got)));
            continue;
        }
        uint32_t down = u >> 16, rest = u & 0xFFFFu;
        uint32_t expected = rest > 0x8000u || (rest == 0x8000u && down & 1u) ? down + 1 : down;
        assert_int_equal(got, expected);
    }
    assert_true(isnan(stw_f32_from_bf16(stw_bf16_from_f32(stw_f32_of_bits(0x7F800001u)))));
}

static void names_of_image_kinds(void **state) {
    (void)state;
    assert_string_equal(stw_image_kind_name(STW_IMAGE_CUBIN), "cubin");
    assert_string_equal(stw_image_kind_name(STW_IMAGE_PTX), "ptx");
    assert_string_equal(stw_image_kind_name(STW_IMAGE_CODE_OBJECT), "code object");
    assert_string_equal(stw_image_kind_name((stw_image_kind)0), "?");
}

static void numbers_that_are_no_element_type(void **state) {
    (void)state;
    assert_int_equal(stw_dtype_size(STW_F32), 4);
    assert_string_equal(stw_dtype_name(STW_I64), "i64");
    for (int dtype = STW_I64 + 1; dtype < 1000; dtype += 99) {
        assert_int_equal(stw_dtype_size((stw_dtype)dtype), 0);
        assert_string_equal(stw_dtype_name((stw_dtype)dtype), "none");
        assert_int_equal(stw_dtype_valid((stw_dtype)dtype), 0);
    }
    assert_int_equal(stw_dtype_size((stw_dtype)-1), 0);
    assert_string_equal(stw_dtype_name((stw_dtype)-1), "none");
}

static void types_of_attention(void **state) {
    (void)state;
    for (int dtype = STW_DTYPE_NONE; dtype <= STW_I64 + 1; ++dtype) {
        assert_int_equal(stw_dtype_of_attn((stw_dtype)dtype), dtype >= STW_F16 && dtype <= STW_F64);
        assert_int_equal(stw_dtype_of_rows((stw_dtype)dtype), dtype == STW_F64 ? STW_F64 : STW_F32);
    }
    const double x = 1.0 + 0x1p-40; /* no other type holds it */
    for (int dtype = STW_F16; dtype <= STW_F64; ++dtype) {
        double memory[2] = {0, 0};
        stw_store_f64(memory, 1, (stw_dtype)dtype, x);
        assert_true(stw_load_f64(memory, 1, (stw_dtype)dtype) == (dtype == STW_F64 ? x : 1.0));
        assert_true(stw_load_f64(memory, 0, (stw_dtype)dtype) == 0.0);
    }
}

/* ---- last error, log ---- */

static void *other_thread(void *text) {
    strcpy(text, stw_last_error());
    stw_fail(STW_E_INVALID, "of the other thread");
    return NULL;
}

static void last_error_belongs_to_the_thread(void **state) {
    (void)state;
    char seen[64] = "unset";
    pthread_t thread;
    stw_fail(STW_E_INVALID, "of this thread: %d", 5);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, seen), 0);
    pthread_join(thread, NULL);
    assert_string_equal(seen, "");
    assert_string_equal(stw_last_error(), "of this thread: 5");
    stw_fail(STW_E_INVALID, "again: %s", stw_last_error()); /* may quote itself */
    assert_string_equal(stw_last_error(), "again: of this thread: 5");
}

typedef struct failing_thread {
    pthread_barrier_t *all;
    int number, right;
} failing_thread;

static void *fail_beside_others(void *argument) {
    failing_thread *self = argument;
    char expected[32];
    snprintf(expected, sizeof expected, "of thread %d", self->number);
    self->right = !stw_last_error()[0];
    stw_fail(STW_E_INVALID, "%s", expected);
    pthread_barrier_wait(self->all);
    self->right &= !strcmp(stw_last_error(), expected);
    return NULL;
}

/* More threads than the texts that need no memory, all alive at once; a thread that ends gives its place back. */
static void last_errors_of_many_threads(void **state) {
    (void)state;
    enum { THREADS = 40, ROUNDS = 3 };
    pthread_t threads[THREADS];
    failing_thread each[THREADS];
    pthread_barrier_t all;
    stw_fail(STW_E_INVALID, "of this thread");
    pthread_barrier_init(&all, NULL, THREADS);
    for (int round = 0; round < ROUNDS; ++round) {
        for (int i = 0; i < THREADS; ++i) {
            each[i] = (failing_thread){&all, i, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, fail_beside_others, &each[i]), 0);
        }
        for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; ++i) assert_true(each[i].right);
    }
    pthread_barrier_destroy(&all);
    assert_string_equal(stw_last_error(), "of this thread");
}

static void last_error_is_bounded(void **state) {
    (void)state;
    static char big[100000];
    memset(big, 'x', sizeof big - 1);
    stw_fail(STW_E_INVALID, "%s", big);
    assert_true(strlen(stw_last_error()) < 2000);
}

static void keep_line(void *user, stw_log_level level, const char *line) {
    snprintf(user, 200, "%d %s", (int)level, line);
}

static void log_levels_and_function(void **state) {
    (void)state;
    char line[200] = "";
    stw_env env = {.log = STW_LOG_WARN};
    stw_log_configure(&env);
    stw_set_log(keep_line, line);
    stw_log(STW_LOG_INFO, "quiet");
    assert_string_equal(line, "");
    stw_log(STW_LOG_WARN, "loud %d", 1);
    assert_string_equal(line, "1 loud 1");
    assert_int_equal(stw_log_try(STW_LOG_INFO, "quiet"), 1); /* nothing is left to say */
    assert_string_equal(line, "1 loud 1");
    assert_int_equal(stw_log_try(STW_LOG_WARN, "loud %d", 2), 1);
    assert_string_equal(line, "1 loud 2");
    stw_set_log(NULL, NULL);
}

/* Lines as expected behind a time of the last minute, in UTC: "2026-11-23T09:30:00.250Z ". */
static void assert_log(const char *text, const char *expected) {
    while (*expected) {
        size_t length = strcspn(expected, "\n") + 1;
        struct tm tm = {0};
        const char *behind = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
        if (!behind || behind - text != 19 || behind[0] != '.' || strspn(behind + 1, "0123456789") != 3 ||
            strncmp(behind + 4, "Z ", 2))
            fail_msg("no time in front of: %s", text);
        assert_in_range(time(NULL) - timegm(&tm), 0, 60);
        assert_memory_equal(behind + 6, expected, length);
        text = behind + 6 + length;
        expected += length;
    }
    assert_string_equal(text, "");
}

static void log_file_with_pid(void **state) {
    (void)state;
    char directory[] = "/tmp/stw_log_XXXXXX", path[128], text[256] = "";
    assert_non_null(mkdtemp(directory));
    stw_env env = {.log = STW_LOG_INFO};
    snprintf(env.log_file, sizeof env.log_file, "%s/log.%%p", directory);
    snprintf(path, sizeof path, "%s/log.%ld", directory, (long)getpid());
    stw_log_configure(&env);
    stw_log(STW_LOG_INFO, "to the file");
    env.log_file[0] = 0;
    stw_log_configure(&env);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_log(text, "sternway: info: to the file\n");
    unlink(path);
    rmdir(directory);
}

/* Reads what the log wrote, then removes it. */
static void take_log(const char *path, char *text, size_t capacity) {
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("there is no %s", path);
    text[fread(text, 1, capacity - 1, file)] = 0;
    fclose(file);
    unlink(path);
}

static void log_file_with_host_and_percent(void **state) {
    (void)state;
    char directory[] = "/tmp/stw_log_XXXXXX", path[512], host[256] = "", text[256];
    assert_non_null(mkdtemp(directory));
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    stw_env env = {.log = STW_LOG_INFO};
    snprintf(env.log_file, sizeof env.log_file, "%s/%%%%p-%%h-%%x-%%", directory);
    snprintf(path, sizeof path, "%s/%%p-%s-%%x-%%", directory, host);
    stw_log_configure(&env);
    stw_log(STW_LOG_WARN, "told");
    env.log_file[0] = 0;
    stw_log_configure(&env);
    take_log(path, text, sizeof text);
    assert_log(text, "sternway: warn: told\n");
    rmdir(directory);
}

/* A line is cut, and still one line. */
static void log_lines_are_bounded(void **state) {
    (void)state;
    char path[] = "/tmp/stw_log_XXXXXX", text[5000];
    static char big[4000];
    close(mkstemp(path));
    memset(big, 'x', sizeof big - 1);
    stw_env env = {.log = STW_LOG_TRACE};
    snprintf(env.log_file, sizeof env.log_file, "%s", path);
    stw_log_configure(&env);
    stw_log(STW_LOG_TRACE, "%s", big);
    stw_log(STW_LOG_ERROR, "next");
    env.log_file[0] = 0;
    env.log = STW_LOG_WARN;
    stw_log_configure(&env);
    take_log(path, text, sizeof text);
    size_t first = strcspn(text, "\n");
    assert_in_range(first, 1000, 1200);
    assert_log(text + first + 1, "sternway: error: next\n");
}

/* What is written to standard error while `configure` and a line are at work. */
static void standard_error_of(const stw_env *env, const char *line, char *text, size_t capacity) {
    char path[] = "/tmp/stw_log_XXXXXX";
    int kept = dup(STDERR_FILENO), file = mkstemp(path);
    assert_true(kept >= 0 && file >= 0);
    dup2(file, STDERR_FILENO);
    stw_log_configure(env);
    stw_log(STW_LOG_WARN, "%s", line);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(file);
    take_log(path, text, capacity);
}

static void log_file_that_cannot_be_opened(void **state) {
    (void)state;
    char text[512];
    stw_env env = {.log = STW_LOG_WARN, .log_file = "/nowhere/at/all"};
    standard_error_of(&env, "told", text, sizeof text);
    assert_log(text, "sternway: warn: STERNWAY_LOG_FILE /nowhere/at/all: No such file or directory; "
                     "the log goes to standard error\nsternway: warn: told\n");
    standard_error_of(&env, "again", text, sizeof text); /* said once */
    assert_log(text, "sternway: warn: again\n");
    env.log_file[0] = 0;
    standard_error_of(&env, "still", text, sizeof text);
    assert_log(text, "sternway: warn: still\n");
}

static void take_no_file(const char *path, const char *why) {
    char text[512], expected[512];
    stw_env env = {.log = STW_LOG_WARN};
    snprintf(env.log_file, sizeof env.log_file, "%s", path);
    snprintf(expected, sizeof expected,
             "sternway: warn: STERNWAY_LOG_FILE %s: %s; the log goes to standard error\nsternway: warn: told\n", path,
             why);
    standard_error_of(&env, "told", text, sizeof text);
    assert_log(text, expected);
}

/* Opening a FIFO waits for its reader. */
static void log_files_that_would_hang(void **state) {
    (void)state;
    char folder[] = "/tmp/stw_log_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    alarm(20);
    take_no_file(folder, "it is a directory");
    take_no_file("/dev/urandom", "it is a device");
    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    take_no_file(path, "it is a FIFO");
    unlink(path);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%s/socket", folder);
    assert_int_equal(bind(server, (struct sockaddr *)&name, sizeof name), 0);
    take_no_file(name.sun_path, "it is a socket");
    close(server);
    unlink(name.sun_path);
    rmdir(folder);
    stw_log_configure(&(stw_env){.log = STW_LOG_WARN});
    alarm(0);
}

/* Reads one line's worth of what stands at `file`. */
static void read_log(int file, char *text, size_t capacity) {
    ssize_t got = read(file, text, capacity - 1);
    assert_true(got > 0);
    text[got] = 0;
}

static void log_on_a_terminal_and_on_standard_error(void **state) {
    (void)state;
    char text[256];
    stw_env env = {.log = STW_LOG_WARN};
    alarm(20);
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && !grantpt(master) && !unlockpt(master));
    snprintf(env.log_file, sizeof env.log_file, "%s", ptsname(master));
    int terminal = open(env.log_file, O_RDWR | O_NOCTTY);
    struct termios raw;
    assert_int_equal(tcgetattr(terminal, &raw), 0);
    cfmakeraw(&raw);
    assert_int_equal(tcsetattr(terminal, TCSANOW, &raw), 0);
    stw_log_configure(&env);
    stw_log(STW_LOG_WARN, "on a terminal");
    read_log(master, text, sizeof text);
    assert_log(text, "sternway: warn: on a terminal\n");
    int ends[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0); /* a FIFO, but standard error's own */
    dup2(ends[1], STDERR_FILENO);
    strcpy(env.log_file, "/dev/stderr");
    stw_log_configure(&env);
    stw_log(STW_LOG_WARN, "on a pipe");
    dup2(kept, STDERR_FILENO);
    read_log(ends[0], text, sizeof text);
    assert_log(text, "sternway: warn: on a pipe\n");
    strcpy(env.log_file, "/dev/null");
    standard_error_of(&env, "nowhere", text, sizeof text);
    assert_string_equal(text, "");
    stw_log_configure(&(stw_env){.log = STW_LOG_WARN});
    alarm(0);
    const int all[] = {master, terminal, ends[0], ends[1], kept};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) close(all[i]);
}

/* Is cancelled while it logs, in the write and in the caller's function, and ends behind the call. */
static void *log_cancelled(void *calls) {
    pthread_cancel(pthread_self());
    stw_log(STW_LOG_WARN, "one");
    ++*(int *)calls;
    *(int *)calls += stw_log_try(STW_LOG_WARN, "two");
    pthread_testcancel();
    *(int *)calls = -1;
    return NULL;
}

static void come_to_a_cancellation_point(void *user, stw_log_level level, const char *line) {
    (void)level, (void)line;
    pthread_testcancel();
    ++*(int *)user;
}

static void log_is_not_left_locked_by_a_cancelled_thread(void **state) {
    (void)state;
    char text[128];
    void *result = NULL;
    pthread_t thread;
    int calls = 0, told = 0;
    stw_env env = {.log = STW_LOG_WARN, .log_file = "/dev/null"};
    stw_log_configure(&env);
    alarm(20);
    for (int with_function = 0; with_function < 2; ++with_function) {
        calls = 0;
        stw_set_log(with_function ? come_to_a_cancellation_point : NULL, &told);
        assert_int_equal(pthread_create(&thread, NULL, log_cancelled, &calls), 0);
        pthread_join(thread, &result);
        assert_ptr_equal(result, PTHREAD_CANCELED);
        assert_int_equal(calls, 2);
    }
    assert_int_equal(told, 2);
    stw_set_log(NULL, NULL);
    env.log_file[0] = 0;
    standard_error_of(&env, "still", text, sizeof text);
    alarm(0);
    assert_log(text, "sternway: warn: still\n");
}

/* A line that the disk has no room for is lost; its writer goes on. */
static void log_file_without_room(void **state) {
    (void)state;
    char text[128];
    if (access("/dev/full", W_OK)) skip();
    stw_env env = {.log = STW_LOG_WARN, .log_file = "/dev/full"};
    alarm(20);
    standard_error_of(&env, "lost", text, sizeof text);
    env.log_file[0] = 0;
    assert_string_equal(text, "");
    standard_error_of(&env, "found", text, sizeof text);
    alarm(0);
    assert_log(text, "sternway: warn: found\n");
}

/* ---- small files, drivers ---- */

static void numbers_of_small_files(void **state) {
    (void)state;
    static stw_small_file file;
    uint64_t value = 77;
    strcpy(file.data, "simd_counter 5\nsimd 6\nsimd_count 7\nsimd_count 8\nlast 9");
    file.length = strlen(file.data);
    assert_int_equal(stw_small_file_number(&file, "simd_count", 100, &value), STW_FIELD_READ);
    assert_int_equal(value, 7); /* the first of that very name */
    assert_int_equal(stw_small_file_number(&file, "simd_count", 6, &value), STW_FIELD_MALFORMED);
    assert_int_equal(stw_small_file_number(&file, "last", 100, &value), STW_FIELD_MALFORMED); /* may be cut */
    assert_int_equal(stw_small_file_number(&file, "simd_count 8 and more than there is", 100, &value),
                     STW_FIELD_ABSENT);
    assert_int_equal(value, 7);
    file.length = 0;
    assert_int_equal(stw_small_file_number(&file, "simd_count", 100, &value), STW_FIELD_ABSENT);
}

static void text_of_small_files(void **state) {
    (void)state;
    char text[8];
    stw_small_file_text("a\tb\x7f \x80  ", 8, text, sizeof text);
    assert_string_equal(text, "a?b? ?"); /* cut to seven, blanks behind it left out */
    stw_small_file_text("    ", 4, text, sizeof text);
    assert_string_equal(text, "");
    stw_small_file_text("abcdefgh", 8, text, sizeof text);
    assert_string_equal(text, "abcdefg");
    stw_small_file_text("abc", 0, text, sizeof text);
    assert_string_equal(text, "");
}

static void driver_that_nobody_touched(void **state) {
    (void)state;
    stw_driver driver = {.who = "none"};
    assert_int_equal(stw_driver_forked(&driver), 0);
    atomic_store(&driver.pid, (int)getpid());
    assert_int_equal(stw_driver_forked(&driver), 0);
    atomic_store(&driver.pid, (int)getppid());
    assert_int_equal(stw_driver_forked(&driver), 1);
    stw_dso dso = {NULL, "left over"};
    stw_dso_close(&dso); /* was not open */
    assert_null(dso.soname);
}

static int starts;
static stw_status start_and_be_cancelled(void) {
    pthread_testcancel(); /* as drivers do, which open devices */
    ++starts;
    return STW_OK;
}

static void *start_cancelled(void *driver) {
    pthread_cancel(pthread_self());
    stw_driver_start(driver);
    pthread_testcancel();
    return NULL;
}

/* What fails to load is tried again: whatever the loader was short of may be there by then. Cancellation waits. */
static void driver_that_loads_at_last(void **state) {
    (void)state;
    const char *names[] = {"libno-such-library.so.1"};
    stw_driver driver = {.who = "late",
                         .sonames = names,
                         .soname_count = 1,
                         .start = start_and_be_cancelled,
                         .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread;
    void *result = NULL;
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(stw_driver_start(&driver), STW_E_NO_DRIVER);
        assert_non_null(strstr(stw_last_error(), "late: no driver: libno-such-library.so.1: "));
    }
    names[0] = "libc.so.6";
    alarm(20);
    assert_int_equal(pthread_create(&thread, NULL, start_cancelled, &driver), 0);
    pthread_join(thread, &result);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    assert_int_equal(stw_driver_start(&driver), STW_OK);
    alarm(0);
    assert_int_equal(starts, 1);
    stw_dso_close(&driver.dso);
}

static void libraries_are_opened_by_bare_names(void **state) {
    (void)state;
    static const char *const none[] = {"", "/lib/libc.so.6", "libno-such-library.so.1"};
    static const char *const some[] = {"./libc.so.6", "libc.so.6"};
    char words[512];
    stw_text reason = stw_text_in(words, sizeof words);
    stw_dso dso;
    assert_int_equal(stw_dso_open(&dso, none, 3, &reason), 0);
    assert_null(dso.handle);
    assert_ptr_equal(strstr(words, "\"\" is not a bare library name; \"/lib/libc.so.6\" is not a bare "), words);
    assert_non_null(strstr(words, "; libno-such-library.so.1: "));
    assert_int_equal(stw_dso_open(&dso, some, 2, &reason), 1);
    assert_string_equal(dso.soname, "libc.so.6");
    stw_dso_close(&dso);
    assert_null(dso.handle);
}

static void text_is_cut_and_counted(void **state) {
    (void)state;
    char small[6];
    stw_text text = stw_text_in(small, sizeof small);
    stw_text_add(&text, "%s", "");
    assert_int_equal(text.length, 0);
    stw_text_add(&text, "%s", "abc");
    stw_text_add(&text, "%s", "defgh");
    assert_string_equal(small, "abcde");
    assert_int_equal(text.length, 8);
    text = stw_text_in(NULL, 0);
    stw_text_add(&text, "x");
    assert_int_equal(text.length, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extend_reads_short_exact_and_long_structs),
        cmocka_unit_test(extend_refuses_sizes_that_are_none),
        cmocka_unit_test(environment_defaults),
        cmocka_unit_test(environment_values),
        cmocka_unit_test(environment_names_the_variable_that_was_meant),
        cmocka_unit_test(environment_of_long_and_strange_names),
        cmocka_unit_test(environment_of_the_process),
        cmocka_unit_test(environment_refuses_what_it_does_not_understand),
        cmocka_unit_test(f16_matches_the_compiler),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(names_of_image_kinds),
        cmocka_unit_test(numbers_that_are_no_element_type),
        cmocka_unit_test(types_of_attention),
        cmocka_unit_test(last_error_belongs_to_the_thread),
        cmocka_unit_test(last_errors_of_many_threads),
        cmocka_unit_test(last_error_is_bounded),
        cmocka_unit_test(log_levels_and_function),
        cmocka_unit_test(log_file_with_pid),
        cmocka_unit_test(log_file_with_host_and_percent),
        cmocka_unit_test(log_lines_are_bounded),
        cmocka_unit_test(log_file_that_cannot_be_opened),
        cmocka_unit_test(log_files_that_would_hang),
        cmocka_unit_test(log_on_a_terminal_and_on_standard_error),
        cmocka_unit_test(log_is_not_left_locked_by_a_cancelled_thread),
        cmocka_unit_test(log_file_without_room),
        cmocka_unit_test(numbers_of_small_files),
        cmocka_unit_test(text_of_small_files),
        cmocka_unit_test(driver_that_nobody_touched),
        cmocka_unit_test(driver_that_loads_at_last),
        cmocka_unit_test(libraries_are_opened_by_bare_names),
        cmocka_unit_test(text_is_cut_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
