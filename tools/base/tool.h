/* SPDX-License-Identifier: MIT
 *
 * What the subcommands of `sternway` share: entry points, exit codes, error lines, device options, the plan's
 * description as fields, progress. */
#ifndef STW_TOOLS_BASE_TOOL_H
#define STW_TOOLS_BASE_TOOL_H

#include "sternway/sternway.h"

#include <argp.h>
#include <cjson/cJSON.h>
#include <stdio.h>

enum {
    STW_EXIT_OK = 0,
    STW_EXIT_FAILED = 1, /* what was checked failed, or the machine did */
    STW_EXIT_USAGE = 2   /* the command line or an input file is wrong  */
};

/* Each gets argv from its own name on, parses it and returns the exit code. */
int stw_tool_info(int argc, char **argv);
int stw_tool_explain(int argc, char **argv);
int stw_tool_run(int argc, char **argv);
int stw_tool_conform(int argc, char **argv);
int stw_tool_cp_conform(int argc, char **argv);
int stw_tool_bench(int argc, char **argv);
int stw_tool_tune(int argc, char **argv);
int stw_tool_doctor(int argc, char **argv);

/* argp_parse with a program name of "sternway NAME" and exit status 2 on usage errors. */
int stw_tool_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The number that is all of an option's text, low..high; a usage error else. */
int64_t stw_tool_number(const char *text, struct argp_state *state, int64_t low, int64_t high);

/* "sternway NAME: WHERE: TEXT" on standard error; where may be NULL. Control characters become '?'. */
void stw_tool_error(const char *command, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Control characters become '?', those of one byte and U+0080 to U+009F: a terminal acts on them. Returns the text. */
char *stw_tool_clean(char *text);

/* The text of stw_fail in what the command links besides the library (environment, PROBLEM lines, cases); the
 * library's own is stw_last_error(). */
const char *stw_tool_last_error(void);

/* Usage errors exit 2; everything that depends on the machine 1. */
int stw_tool_exit_of(stw_status status);

/* ---- which backend ----------------------------------------------------------------------------- */

typedef struct stw_tool_device {
    const char *backend, *arch;
    stw_context_opts opts; /* filled by stw_tool_device_opts; memory is the caller's choice */
    char arch_text[32];
} stw_tool_device;

enum { STW_KEY_BACKEND = 'b', STW_KEY_ARCH = 'a' };
#define STW_TOOL_DEVICE_OPTIONS                                                                                        \
    {"backend",                                                                                                        \
     STW_KEY_BACKEND,                                                                                                  \
     "NAME",                                                                                                           \
     0,                                                                                                                \
     "cpu, cuda or hip, or with an arch: cuda:sm80 (default: "                                                         \
     "STERNWAY_BACKEND, else the best that is usable)",                                                                \
     0},                                                                                                               \
        {"arch", STW_KEY_ARCH, "NAME", 0, "force the kernels of this arch: sm80, gfx942, ...", 0}

/* Parses both into opts. Nonzero: refused, and said so on standard error. */
int stw_tool_device_opts(const char *command, stw_tool_device *device);

/* `text` of the library (stw_last_error, explain) in the words of the command: "--arch sm90" for opts.arch and so on.
 * Allocated; NULL: no memory. */
char *stw_tool_own_words(const stw_tool_device *device, const char *text);

/* stw_tool_error with stw_last_error in these words, and the status' name. */
void stw_tool_library_error(const char *command, const stw_tool_device *device, stw_status status);

/* Fields of stw_plan_describe ("variant", "why", ...): value of `key` cut out of the text, or "". */
void stw_tool_plan_field(const char *describe, const char *key, char *out, size_t capacity);

/* Version of the kernel module of "cuda" or "hip", or "". */
void stw_tool_driver_of(const char *backend, char *out, size_t capacity);

/* stw_plan_describe whole, allocated; NULL when it failed (stw_last_error says why). */
char *stw_tool_plan_text(const stw_plan *plan);

/* ---- output ------------------------------------------------------------------------------------ */

/* From here on an allocation that cJSON cannot make is noted: its document lacks something that nobody else misses. */
void stw_tool_json_watch(void);
int stw_tool_json_is_whole(void);

/* Prints the document, if it is whole, and a newline on standard output and deletes it. */
void stw_tool_print_json(cJSON *document);

/* stw_tool_clean on every key and text of a document that came from somewhere. */
void stw_tool_json_clean(cJSON *document);

/* A document with the text of the last stw_tool_error and the exit status: for --json where nothing ran. */
void stw_tool_print_json_error(int exit_status);

/* The lines of `text` as an array of strings. */
cJSON *stw_tool_json_lines(const char *text);

/* A member of an object; "" or 0 where it is missing or of another kind. */
const char *stw_tool_json_text(const cJSON *object, const char *key);
double stw_tool_json_number(const cJSON *object, const char *key);

/* The text of one line and a newline, folded at blanks, and in a word wider than a line behind ':' and ',', so that
 * no line is wider than `width` unless what lies between is. `column`: where the text begins; `indent`: where further
 * lines do. */
void stw_tool_fold(FILE *to, const char *text, int column, int indent, int width);

/* Columns of the terminal that a file is, or 0: it is none. */
int stw_tool_width(FILE *file);

/* A line folded to the terminal that standard output is; whole elsewhere, where lines are searched. */
void stw_tool_print_line(const char *text, int indent);

/* Lines of the library's log are folded to the terminal that standard error is. */
void stw_tool_fold_log(void);

/* The ending of a counted word: 1 problem, 2 problems. */
#define STW_TOOL_S(count) ((count) == 1 ? "" : "s")

/* A line on a terminal's standard error that the next one overwrites; nothing elsewhere. */
void stw_tool_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void stw_tool_progress_end(void);

double stw_tool_seconds(void); /* monotonic */

#endif
