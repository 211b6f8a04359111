/* SPDX-License-Identifier: MIT
 *
 * Tuning files. First byte: the table they are read for; the rest is the text. */
#include "fuzz.h"

#include "dispatch/select.h"

enum { CAPACITY = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    static stw_rule rules[CAPACITY + 1];
    const stw_attn_table *table = stw_attn_table_at(data[0] % stw_attn_table_count());
    char *text = read_text(data + 1, size - 1);
    size_t count = 0;
    memset(rules, 0xA5, sizeof rules);
    if (stw_rules_parse("fuzz", text, table, rules, CAPACITY, &count)) {
        FUZZ_CHECK(stw_last_error()[0], "no text");
    } else {
        FUZZ_CHECK(count <= CAPACITY, "%zu rules", count);
        for (size_t n = 0; n < count; ++n) {
            const stw_variant *variant = rules[n].variant;
            FUZZ_CHECK(variant >= table->variants && variant < table->variants + table->variant_count, "%zu", n);
            FUZZ_CHECK(memchr(rules[n].text, 0, sizeof rules[n].text), "rule %zu", n);
        }
    }
    const unsigned char *guard = (const unsigned char *)&rules[CAPACITY];
    for (size_t i = 0; i < sizeof rules[0]; ++i) FUZZ_CHECK(guard[i] == 0xA5, "wrote beyond capacity");
    stw_rule rule;
    if (stw_rule_parse(text, &rule)) FUZZ_CHECK(stw_last_error()[0], "no text");
    free(text);
    return 0;
}
