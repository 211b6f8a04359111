/* SPDX-License-Identifier: MIT
 *
 * Shared by the subcommands (tool.h): parsing, error lines, progress, JSON. */
#include "tool.h"

#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

int64_t stw_tool_number(const char *text, struct argp_state *state, int64_t low, int64_t high) {
    char *end;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || value < low || value > high)
        argp_error(state, "'%.40s' is not a number from %lld to %lld", text, (long long)low, (long long)high);
    return value;
}

int stw_tool_parse(const struct argp *argp, int argc, char **argv, void *input) {
    char name[64];
    snprintf(name, sizeof name, "sternway %s", argv[0]);
    char *own = argv[0];
    argv[0] = name; /* what argp shows in usage and errors */
    argp_err_exit_status = STW_EXIT_USAGE;
    error_t error = argp_parse(argp, argc, argv, 0, NULL, input);
    argv[0] = own;
    return error ? STW_EXIT_USAGE : STW_EXIT_OK;
}

static char last_error[2048];

char *stw_tool_clean(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; ++c) {
        if (*c < 0x20 || *c == 0x7F) *c = '?';
        else if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0) c[0] = c[1] = '?'; /* U+0080 to U+009F */
    }
    return text;
}

static void print_folded(FILE *to, const char *text, int indent);

void stw_tool_error(const char *command, const char *where, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    stw_tool_progress_end();
    snprintf(last_error, sizeof last_error, "%s", text);
    fflush(stdout);
    char *line;
    if (asprintf(&line, "sternway %s: %s%s%s", command, where ? where : "", where ? ": " : "", text) < 0) return;
    stw_tool_clean(line);
    print_folded(stderr, line, 4);
    free(line);
}

const char *stw_tool_last_error(void) { return stw_failure_text(); }

int stw_tool_exit_of(stw_status status) {
    if (status == STW_OK) return STW_EXIT_OK;
    return status == STW_E_INVALID || status == STW_E_UNSUPPORTED ? STW_EXIT_USAGE : STW_EXIT_FAILED;
}

/* ---- output ------------------------------------------------------------------------------------ */

static int json_failed;

static void *json_allocate(size_t size) {
    void *memory = malloc(size);
    if (!memory) json_failed = 1;
    return memory;
}

void stw_tool_json_watch(void) { cJSON_InitHooks(&(cJSON_Hooks){json_allocate, free}); }

int stw_tool_json_is_whole(void) { return !json_failed; }

void stw_tool_json_clean(cJSON *item) {
    for (; item; item = item->next) {
        if (item->string) stw_tool_clean(item->string);
        if (cJSON_IsString(item)) stw_tool_clean(item->valuestring);
        stw_tool_json_clean(item->child);
    }
}

void stw_tool_print_json(cJSON *document) {
    char *text = cJSON_Print(document);
    if (text && stw_tool_json_is_whole()) puts(text);
    cJSON_free(text);
    cJSON_Delete(document);
}

void stw_tool_print_json_error(int exit_status) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "error", last_error);
    cJSON_AddNumberToObject(document, "exit_status", exit_status);
    stw_tool_print_json(document);
}

cJSON *stw_tool_json_lines(const char *text) {
    cJSON *lines = cJSON_CreateArray();
    while (*text) {
        const char *end = strchrnul(text, '\n');
        char *line = strndup(text, (size_t)(end - text));
        if (line) cJSON_AddItemToArray(lines, cJSON_CreateString(line));
        free(line);
        text = *end ? end + 1 : end;
    }
    return lines;
}

const char *stw_tool_json_text(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

double stw_tool_json_number(const cJSON *object, const char *key) {
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(number) ? number->valuedouble : 0;
}

int stw_tool_width(FILE *file) {
    struct winsize size;
    if (!isatty(fileno(file))) return 0;
    return ioctl(fileno(file), TIOCGWINSZ, &size) || size.ws_col < 20 ? 80 : size.ws_col;
}

/* Characters of a word that fit `room` and end behind a ':' or ','; all of them where none does. */
static int part_of_word(const char *word, int length, int room) {
    int part = 0;
    for (int i = 0; i < length && i < room; ++i)
        if (word[i] == ':' || word[i] == ',') part = i + 1;
    return length <= room || !part ? length : part;
}

void stw_tool_fold(FILE *to, const char *text, int column, int indent, int width) {
    for (int first = 1; *text; first = 0) {
        int blanks = (int)strspn(text, " "), word = (int)strcspn(text + blanks, " ");
        int own_line = width - indent, room = width - column - blanks;
        /* a word that no line takes whole begins on this one */
        int keeps = first || word <= room || (word > own_line && part_of_word(text + blanks, word, room) <= room);
        if (!keeps) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        }
        word = part_of_word(text + blanks, word, keeps ? room : own_line);
        fprintf(to, "%*s%.*s", keeps ? blanks : 0, "", word, text + blanks);
        column += (keeps ? blanks : 0) + word;
        text += blanks + word;
    }
    fputc('\n', to);
}

static void print_folded(FILE *to, const char *text, int indent) {
    int width = stw_tool_width(to);
    if (width) stw_tool_fold(to, text, 0, indent, width);
    else fprintf(to, "%s\n", text);
}

void stw_tool_print_line(const char *text, int indent) { print_folded(stdout, text, indent); }

/* As common/log.c writes a line, folded; at once, since children of `conform` write to the same terminal. */
static void print_log(void *user, stw_log_level level, const char *line) {
    static const char *const levels[] = {"error", "warn", "info", "trace"};
    char *text = NULL, when[32] = "", head[64];
    size_t bytes = 0;
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    int column =
        snprintf(head, sizeof head, "%s.%03dZ sternway: %s: ", when, (int)(now.tv_nsec / 1000000), levels[level]);
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return;
    stw_tool_progress_end();
    fflush(stdout);
    fputs(head, to);
    stw_tool_fold(to, line, column, 4, stw_tool_width(stderr));
    fclose(to);
    if (text) fputs(text, stderr);
    free(text);
    (void)user;
}

void stw_tool_fold_log(void) {
    const char *file = getenv("STERNWAY_LOG_FILE");
    if (stw_tool_width(stderr) && (!file || !file[0])) stw_set_log(print_log, NULL);
}

static int progress_shown;

void stw_tool_progress(const char *format, ...) {
    int width = stw_tool_width(stderr);
    if (!width) return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\r\033[K%.*s", width - 1, text);
    fflush(stderr);
    progress_shown = 1;
}

void stw_tool_progress_end(void) {
    if (progress_shown) fputs("\r\033[K", stderr);
    progress_shown = 0;
}

double stw_tool_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
