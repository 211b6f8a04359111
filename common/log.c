/* SPDX-License-Identifier: MIT
 *
 * Log lines to the caller's function, to STERNWAY_LOG_FILE or to standard error. Lines are written with
 * one write(2) each, so that lines of several threads and processes never mix. */
#include "log.h"

#include "common/lock.h"
#include "common/regular_file.h"
#include "common/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* run calls only try it */
static stw_log_fn user_fn;
static void *user_data;
static char file_path[512]; /* what file_descriptor was opened from */
static int file_descriptor = STDERR_FILENO;
static atomic_int level_in_force = STW_LOG_WARN;

/* A child of a fork may inherit the lock held by a thread that it does not have. */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static void after_fork_in_child(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static const char *const level_names[] = {"error", "warn", "info", "trace"};

/* STERNWAY_LOG_FILE with %h, %p and %% replaced. */
static void path_expand(const char *pattern, char *path, size_t capacity) {
    stw_text text = stw_text_in(path, capacity);
    char host[256] = "";
    for (const char *c = pattern; *c; ++c) {
        if (*c == '%' && c[1] == 'h') {
            if (gethostname(host, sizeof host - 1)) strcpy(host, "unknown");
            stw_text_add(&text, "%s", host), ++c;
        } else if (*c == '%' && c[1] == 'p') {
            stw_text_add(&text, "%ld", (long)getpid()), ++c;
        } else {
            if (*c == '%' && c[1] == '%') ++c;
            stw_text_add(&text, "%c", *c);
        }
    }
}

/* A line with its level. */
enum { LINE_BYTES = 1150, TIME_BYTES = 32 };

/* "2026-11-23T09:30:00.250Z". Not by gmtime_r, which takes a lock and reads TZ: run calls log too. */
static void time_write(char text[TIME_BYTES]) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t second = now.tv_sec % 86400, day = now.tv_sec / 86400 + 719468; /* since 1 March of the year 0 */
    int64_t era = day / 146097, of_era = day % 146097;                      /* 400 years */
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153; /* 0: March */
    snprintf(text, TIME_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", (int)(era * 400 + year + (month > 9)) % 10000,
             (int)(month > 9 ? month - 9 : month + 3), (int)(of_year - (153 * month + 2) / 5 + 1), (int)(second / 3600),
             (int)(second / 60 % 60), (int)(second % 60), (int)(now.tv_nsec / 1000000));
}

static void line_write(int descriptor, const char line[LINE_BYTES]) {
    char out[LINE_BYTES + TIME_BYTES + 16], when[TIME_BYTES];
    time_write(when);
    int length = snprintf(out, sizeof out, "%s sternway: %s\n", when, line);
    while (write(descriptor, out, (size_t)length) < 0 && errno == EINTR) {
    }
}

/* Where lines go that do not hang: regular files, terminals, and /dev/null, zero and full. */
static int log_accepts(const struct stat *info) {
    unsigned major = major(info->st_rdev), minor = minor(info->st_rdev);
    if (!S_ISCHR(info->st_mode)) return S_ISREG(info->st_mode);
    return (major == 1 && (minor == 3 || minor == 5 || minor == 7)) || /* as devices.txt of Linux numbers them */
           (major == 4 && minor < 64) || (major == 5 && minor == 0) || (major >= 136 && major <= 143);
}

/* What /dev/stderr names is standard error itself, be it a pipe: opened anew, a socket fails and a FIFO waits. */
static int is_standard_error(const char *path) {
    struct stat named, error;
    return !stat(path, &named) && !S_ISREG(named.st_mode) && !fstat(STDERR_FILENO, &error) &&
           named.st_dev == error.st_dev && named.st_ino == error.st_ino;
}

/* Standard error where the file is refused. */
static int log_open(const char *path) {
    const char *why = NULL;
    if (!path[0] || is_standard_error(path)) return STDERR_FILENO;
    int fd = stw_file_open(path, O_WRONLY | O_CREAT | O_APPEND, log_accepts, &why);
    if (fd >= 0) {
        fcntl(fd, F_SETFL, O_APPEND); /* a terminal that is stopped holds lines back, as it does standard error's */
        return fd;
    }
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "warn: STERNWAY_LOG_FILE %s: %s; the log goes to standard error", path, why);
    line_write(STDERR_FILENO, line);
    return STDERR_FILENO;
}

void stw_log_configure(const stw_env *env) {
    atomic_store(&level_in_force, env->log);
    char path[sizeof file_path];
    pthread_once(&fork_once, watch_forks);
    path_expand(env->log_file, path, sizeof path);
    int cancel = stw_lock(&lock);
    if (strcmp(path, file_path)) {
        if (file_descriptor != STDERR_FILENO) close(file_descriptor);
        file_descriptor = log_open(path);
        strcpy(file_path, path);
    }
    stw_unlock(&lock, cancel);
}

int stw_log_enabled(stw_log_level level) { return (int)level <= atomic_load(&level_in_force); }

/* The caller holds the lock, which is given back, and lets nobody cancel it: the caller's function may come to a
 * cancellation point, and who logs holds more than this lock. */
static void send(stw_log_level level, const char *format, va_list arguments) {
    char line[1100];
    vsnprintf(line, sizeof line, format, arguments);
    stw_log_fn fn = user_fn;
    void *user = user_data;
    if (!fn) {
        char prefixed[LINE_BYTES];
        snprintf(prefixed, sizeof prefixed, "%s: %s", level_names[level], line);
        line_write(file_descriptor, prefixed);
    }
    pthread_mutex_unlock(&lock);
    if (fn) fn(user, level, line); /* outside the lock: it may call the library */
}

void stw_log(stw_log_level level, const char *format, ...) {
    if (!stw_log_enabled(level)) return;
    va_list arguments;
    va_start(arguments, format);
    int cancel = stw_lock(&lock);
    send(level, format, arguments);
    pthread_setcancelstate(cancel, NULL);
    va_end(arguments);
}

int stw_log_try(stw_log_level level, const char *format, ...) {
    if (!stw_log_enabled(level)) return 1;
    int cancel = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    int mine = !pthread_mutex_trylock(&lock);
    if (mine) {
        va_list arguments;
        va_start(arguments, format);
        send(level, format, arguments);
        va_end(arguments);
    }
    pthread_setcancelstate(cancel, NULL);
    return mine;
}

void stw_set_log(stw_log_fn fn, void *user) {
    int cancel = stw_lock(&lock);
    user_fn = fn;
    user_data = user;
    stw_unlock(&lock, cancel);
}
