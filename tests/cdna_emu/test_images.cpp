/* SPDX-License-Identifier: MIT
 *
 * Every kernel of an image: the emulator knows all its instructions, all of them have the wait states between them that
 * hardware needs, LDS is dynamic (what the launch asks for is all there is), and only kernels with matrix products use
 * scratch memory; how much is printed.
 * Arguments: IMAGE OBJDUMP [MOST]: as many pairs too close as a compiler may have left behind branches. */
#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

int main(int count, char **words) {
    if (count != 3 && count != 4) return fprintf(stderr, "usage: test_images IMAGE OBJDUMP [MOST]\n"), 2;
    std::ifstream file(words[1], std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    cdna::CodeObject code(bytes.data(), bytes.size(), words[2]);
    int failures = 0, behind_branches = 0, most = count == 4 ? atoi(words[3]) : 0;
    size_t kernels = 0, with_scratch = 0;
    for (const std::string &name : code.kernels()) {
        ++kernels;
        for (const std::string &instruction : code.unknown(name))
            ++failures, printf("FAILED %s: unknown %s\n", name.c_str(), instruction.c_str());
        for (const std::string &pair : code.hazards(name)) {
            bool known = pair.find(", behind a branch") != pair.npos && ++behind_branches <= most;
            failures += !known;
            printf("%s %s, %s\n", known ? "known" : "FAILED", name.c_str(), pair.c_str());
        }
        cdna::KernelFacts facts = code.facts(name);
        if (facts.lds) ++failures, printf("FAILED %s: %u bytes of static LDS\n", name.c_str(), facts.lds);
        if (facts.scratch) {
            ++with_scratch;
            bool rows = name.find("_preprocess_") != name.npos || name.find("_postprocess") != name.npos ||
                        name.find("_mask") != name.npos;
            failures += rows;
            printf("%s %s: %u bytes of scratch, %u registers\n", rows ? "FAILED" : "scratch", name.c_str(),
                   facts.scratch, facts.vgprs);
        }
    }
    printf("%s: %zu kernels, %zu with scratch, %d too soon behind branches, %d failures\n", code.arch().c_str(),
           kernels, with_scratch, behind_branches, failures);
    return failures != 0 || kernels < 10;
}
