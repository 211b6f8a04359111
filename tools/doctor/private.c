/* SPDX-License-Identifier: MIT
 *
 * A report is shown to everybody (doctor.h): of paths only the last part stays, but for /dev, /proc and /sys, and
 * devices have no UUID. Every text gets shorter, so that it is changed where it is. */
#include "doctor.h"

#include <stdlib.h>
#include <string.h>

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* `to` is not longer than `from`. */
static void replace_all(char *text, const char *from, const char *to) {
    size_t length = strlen(from), kept = strlen(to);
    for (char *at = text; (at = strstr(at, from)); at += kept) {
        memcpy(at, to, kept);
        memmove(at + kept, at + length, strlen(at + length) + 1);
    }
}

static int is_of_system(const char *path) {
    return !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5);
}

/* Words that begin with '/' or "~/" lose their folders. */
static void cut_paths(char *text) {
    static const char ends[] = " \t\n'\"`,;:()<>=";
    char *to = text, before = ' ';
    for (const char *from = text; *from;) {
        size_t length = strcspn(from, ends);
        int path = strchr(ends, before) && (from[0] == '/' || !strncmp(from, "~/", 2)) && !is_of_system(from);
        if (!length || !path) length = 1;
        before = from[length - 1];
        size_t cut = 0;
        for (size_t i = 0; path && i < length; ++i)
            if (from[i] == '/') cut = i + 1;
        memmove(to, from + cut, length - cut);
        to += length - cut;
        from += length;
    }
    *to = 0;
}

static void shorten(char *text, const cJSON *values) {
    const cJSON *row;
    const char *home = getenv("HOME");
    cJSON_ArrayForEach(row, values) { /* a variable's file wherever a text names it, be there blanks or no first '/' */
        const char *value = secure_getenv(stw_tool_json_text(row, "name"));
        if (value && strchr(value, '/')) replace_all(text, value, last_part(value));
    }
    if (home && home[0] && home[1]) replace_all(text, home, "~");
    cut_paths(text);
}

static void walk(cJSON *item, const cJSON *values) {
    for (; item; item = item->next) {
        if (cJSON_IsString(item)) shorten(item->valuestring, values);
        if (item->child) walk(item->child, values);
    }
}

void doctor_make_private(cJSON *report) {
    cJSON *info = cJSON_GetObjectItemCaseSensitive(report, "info"), *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(info, "devices"))
        cJSON_GetObjectItemCaseSensitive(row, "uuid")
            ->valuestring[0] = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(info, "drivers")) {
        char *path = cJSON_GetObjectItemCaseSensitive(row, "path")->valuestring;
        const char *name = last_part(path);
        memmove(path, name, strlen(name) + 1);
    }
    walk(report->child, cJSON_GetObjectItemCaseSensitive(info, "environment"));
}
