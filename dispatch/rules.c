/* SPDX-License-Identifier: MIT
 *
 * Reading RULE rows: the built-in tables' and those of a STERNWAY_TUNING file, one grammar for both
 * (select.h). Called at context creation. */
#include "select.h"

#include "common/dtype.h"
#include "common/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TUNING_FILE_MAX  (256 * 1024)
#define TUNING_RULES_MAX 1024

static const char *const fact_names[STW_FACT_COUNT] = {
#define STW_FACT(key) #key,
    STW_FACTS
#undef STW_FACT
};

const char *stw_fact_name(int fact) { return fact_names[fact]; }

static stw_status bad_word(const char *word, size_t length, const char *accepted) {
    return stw_fail(STW_E_INVALID, "condition %.*s is not understood: %s", (int)(length > 80 ? 80 : length), word,
                    accepted);
}

/* "f16|bf16" of the word's value to bits. */
static stw_status parse_choices(const char *word, size_t length, const char *value, const char *end, int fact,
                                uint32_t *bits_out) {
    static const char *const names[2][3] = {{"f16", "bf16", "f32"}, {"bwd", "fwd", "fwd"}};
    *bits_out = 0;
    for (;;) {
        const char *bar = memchr(value, '|', (size_t)(end - value));
        size_t size = (size_t)((bar ? bar : end) - value);
        uint32_t bit = 0;
        for (uint32_t i = 0; i < 3; ++i)
            if (strlen(names[fact][i]) == size && !memcmp(names[fact][i], value, size)) bit = 2u << (fact && i ? 1 : i);
        if (!bit) return bad_word(word, length, fact == STW_FACT_dtype ? "dtype=f16|bf16|f32" : "op=bwd|fwd");
        *bits_out |= bit;
        if (!bar) return STW_OK;
        value = bar + 1;
    }
}

static stw_status parse_word(const char *word, size_t length, stw_rule *rule) {
    size_t name = strcspn(word, "<>= ");
    int fact = 0;
    while (fact < STW_FACT_COUNT && (strlen(fact_names[fact]) != name || memcmp(fact_names[fact], word, name))) ++fact;
    if (fact == STW_FACT_COUNT) {
        char known[200];
        stw_text list = stw_text_in(known, sizeof known);
        for (int i = 0; i < STW_FACT_COUNT; ++i)
            stw_text_add(&list, "%s%s", i ? ", " : "its key is none of ", fact_names[i]);
        return bad_word(word, length, known);
    }
    const char *sign = word + name;
    size_t sign_length = sign[0] == '=' ? 1 : 2;
    if (name + sign_length >= length || (sign_length == 2 && sign[1] != '='))
        return bad_word(word, length, "key<=n, key>=n or key=n");
    const char *value = sign + sign_length, *end = word + length;
    if (fact <= STW_FACT_op) {
        if (sign[0] != '=') return bad_word(word, length, "dtype and op take = only");
        uint32_t bits;
        stw_status status = parse_choices(word, length, value, end, fact, &bits);
        if (!status) rule->choices[fact] &= bits;
        if (!status && !rule->choices[fact])
            return bad_word(word, length, "with what stands before it, it can never hold");
        return status;
    }
    int64_t number = 0;
    for (const char *digit = value; digit < end; ++digit) {
        if (*digit < '0' || *digit > '9' || number > INT64_MAX / 10 - 1)
            return bad_word(word, length, "the value is a non-negative integer");
        number = number * 10 + (*digit - '0');
    }
    if (sign[0] != '<' && number > rule->low[fact]) rule->low[fact] = number;
    if (sign[0] != '>' && number < rule->high[fact]) rule->high[fact] = number;
    if (rule->low[fact] > rule->high[fact])
        return bad_word(word, length, "with what stands before it, it can never hold");
    return STW_OK;
}

stw_status stw_rule_parse(const char *conditions, stw_rule *rule_out) {
    memset(rule_out, 0, sizeof *rule_out);
    for (int fact = 0; fact < STW_FACT_COUNT; ++fact) rule_out->high[fact] = INT64_MAX;
    rule_out->choices[STW_FACT_dtype] = rule_out->choices[STW_FACT_op] = ~0u;
    for (const char *word = conditions; *(word += strspn(word, " "));) {
        size_t length = strcspn(word, " ");
        stw_status status = parse_word(word, length, rule_out);
        if (status) return status;
        word += length;
    }
    return STW_OK;
}

/* 1 when a table of another arch knows the id. */
static int known_elsewhere(const char *id) {
    for (size_t i = 0; i < stw_attn_table_count(); ++i)
        if (stw_attn_variant_find(stw_attn_table_at(i), id)) return 1;
    return 0;
}

/* A comment in stars must end on its line and with it: what stood after it would be passed over unread. */
static int blank_or_comment(const char *text) {
    text += strspn(text, " \t\r");
    if (!*text || *text == '#' || !strncmp(text, "//", 2)) return 1;
    const char *end = strncmp(text, "/*", 2) ? NULL : strstr(text + 2, "*/");
    return end && !end[2 + strspn(end + 2, " \t\r")];
}

/* Reads STW_RULE("conditions", id) from `line`; 1 = a rule, 0 = nothing on this line, -1 = refused. */
static int parse_line(const char *name, int number, char *line, const stw_attn_table *table, stw_rule *rule) {
    char conditions[400] = "", id[64] = "", *text = line + strspn(line, " \t\r");
    int used = 0;
    if (blank_or_comment(text)) return 0;
    int empty = sscanf(text, "STW_RULE(\"\" , %63[A-Za-z0-9_] )%n", id, &used) == 1 && used > 0;
    if (!empty) used = 0;
    if (!empty && sscanf(text, "STW_RULE(\"%399[^\"]\" , %63[A-Za-z0-9_] )%n", conditions, id, &used) != 2) used = 0;
    if (!used || !blank_or_comment(text + used)) {
        stw_fail(STW_E_INVALID,
                 "STERNWAY_TUNING %.200s line %d: expected STW_RULE(\"conditions\", variant), a comment "
                 "that ends on the line, or nothing",
                 name, number);
        return -1;
    }
    if (stw_rule_parse(conditions, rule)) {
        stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s line %d: %.400s", name, number, stw_last_error());
        return -1;
    }
    rule->variant = stw_attn_variant_find(table, id);
    if (!rule->variant && known_elsewhere(id)) return 0;
    if (!rule->variant) {
        stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s line %d: no arch has a variant %s", name, number, id);
        return -1;
    }
    snprintf(rule->text, sizeof rule->text, "\"%.100s\" of STERNWAY_TUNING", conditions);
    return 1;
}

stw_status stw_rules_parse(const char *name, const char *text, const stw_attn_table *table, stw_rule *rules,
                           size_t capacity, size_t *count_out) {
    int number = 0;
    *count_out = 0;
    while (*text) {
        char line[600];
        size_t length = strcspn(text, "\n");
        ++number;
        if (length >= sizeof line)
            return stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s line %d: longer than %zu characters", name, number,
                            sizeof line - 1);
        memcpy(line, text, length);
        line[length] = 0;
        text += length + (text[length] == '\n');
        stw_rule rule;
        int found = parse_line(name, number, line, table, &rule);
        if (found < 0) return STW_E_INVALID;
        if (!found) continue;
        if (*count_out == capacity)
            return stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s: more than %zu rules", name, capacity);
        rules[(*count_out)++] = rule;
    }
    return STW_OK;
}

/* The file's text in malloc'ed memory. */
static stw_status read_file(const char *path, char **text_out) {
    const char *why = NULL;
    char *text = *text_out = malloc(TUNING_FILE_MAX + 1);
    if (!text) return stw_fail(STW_E_NO_MEMORY, "STERNWAY_TUNING: no memory to read %.200s", path);
    int fd = stw_file_open(path, O_RDONLY, stw_file_is_regular, &why);
    if (fd < 0) return stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s: %s; accepted: a regular file", path, why);
    size_t size = 0;
    ssize_t got;
    while ((got = read(fd, text + size, TUNING_FILE_MAX + 1 - size)) > 0 || (got < 0 && errno == EINTR))
        if (got > 0) size += (size_t)got;
    int error = errno;
    close(fd);
    if (got < 0) return stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s: %s", path, strerror(error));
    if (size > TUNING_FILE_MAX)
        return stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s: longer than %d bytes", path, TUNING_FILE_MAX);
    if (memchr(text, 0, size)) return stw_fail(STW_E_INVALID, "STERNWAY_TUNING %.200s: not a text file", path);
    text[size] = 0;
    return STW_OK;
}

static void add_edge(stw_rules *r, int fact, int64_t value) {
    int64_t *edges = r->edges + (size_t)fact * 2 * r->count;
    size_t *count = &r->edge_count[fact];
    for (size_t i = 0; i < *count; ++i)
        if (edges[i] == value) return;
    edges[(*count)++] = value;
}

/* Collects the edges of rules that may hold for packed problems, since no others have size classes. Returns 0 without
 * memory. */
static int find_edges(stw_rules *r) {
    r->edges = malloc((2 * r->count + 1) * STW_FACT_COUNT * sizeof *r->edges);
    for (int fact = 0; fact < STW_FACT_COUNT && r->edges; ++fact)
        for (size_t i = 0; i < r->count; ++i) {
            if (!r->rules[i].high[STW_FACT_packed]) continue;
            if (r->rules[i].low[fact] > 0) add_edge(r, fact, r->rules[i].low[fact] - 1);
            if (r->rules[i].high[fact] < INT64_MAX) add_edge(r, fact, r->rules[i].high[fact]);
        }
    return r->edges != NULL;
}

stw_status stw_rules_load(const char *arch, const char *tuning_file, stw_rules *rules_out) {
    const stw_attn_table *table = stw_attn_table_find(arch);
    if (!table) return stw_fail(STW_E_INTERNAL, "arch %s has no tuning table", arch);
    int with_file = tuning_file && tuning_file[0];
    size_t capacity = table->rule_count + (with_file ? TUNING_RULES_MAX : 0), count = 0;
    stw_rule *rules = calloc(capacity, sizeof *rules);
    if (!rules) return stw_fail(STW_E_NO_MEMORY, "no memory for %zu tuning rules", capacity);
    stw_status status = STW_OK;
    if (with_file) {
        char *text = NULL;
        status = read_file(tuning_file, &text);
        if (!status) status = stw_rules_parse(tuning_file, text, table, rules, TUNING_RULES_MAX, &count);
        free(text);
    }
    for (size_t i = 0; i < table->rule_count && !status; ++i, ++count) {
        status = stw_rule_parse(table->rules[i].conditions, &rules[count]);
        rules[count].variant = stw_attn_variant_find(table, table->rules[i].variant);
        if (!rules[count].variant)
            status = stw_fail(STW_E_INTERNAL, "tuning table %s: rule %zu names no variant", arch, i + 1);
        const char *conditions = table->rules[i].conditions;
        snprintf(rules[count].text, sizeof rules[count].text, "%.100s of attn_bwd.%s.def",
                 conditions[0] ? conditions : "without conditions", arch);
    }
    stw_rules all = {.table = table, .rules = rules, .count = count};
    if (!status && !find_edges(&all)) status = stw_fail(STW_E_NO_MEMORY, "no memory for %zu tuning rules", count);
    if (status) {
        free(rules);
        return status;
    }
    *rules_out = all;
    return STW_OK;
}

void stw_rules_free(stw_rules *rules) {
    free(rules->rules);
    free(rules->edges);
    *rules = (stw_rules){0};
}
