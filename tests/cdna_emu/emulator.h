/* SPDX-License-Identifier: MIT
 *
 * What users of the emulator see: a code object for gfx90a, gfx942 or gfx950 is loaded, its kernels are launched over
 * host memory. libamdhip64 (hip.cpp) and the tests stand on this; nothing here knows HIP. */
#ifndef CDNA_EMULATOR_H
#define CDNA_EMULATOR_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace cdna {

/* Something a kernel did that hardware would punish, or that the emulator does not know; says where. */
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* Memory that a kernel may touch. */
struct Region {
    uint64_t begin, end;
};

struct Launch {
    std::string kernel;
    uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    uint32_t dynamic_lds = 0;
    std::vector<uint8_t> arguments;
    std::vector<Region> memory; /* arguments and code are added */
    int threads = 1;            /* of the host */
    bool races = false;         /* watch LDS for accesses that no barrier orders */
    bool waits = false;         /* watch what comes too early where an s_waitcnt is missing (waits.cpp) */
    bool flush = false;         /* memory takes subnormal f32 that are added to it for 0, as gfx90a's always does */
    int hazards = 0;            /* 1: watch for instructions with fewer wait states between them than hardware needs;
                        2: but for those that a branch leads to */
    bool unset = false;         /* watch LDS for reads of what the group has not written */
    bool banks = false;         /* count conflicts in LDS                        */
    std::string trace;          /* a file that gets what the first workgroup ran */
    uint32_t schedule = 0;      /* not 0: waves take turns at random, from this seed */
};

/* Wave instructions by kind. */
struct Counts {
    uint64_t scalar = 0, vector = 0, transcendental = 0, matrix = 0, lds = 0, memory = 0, constant = 0, control = 0;
    uint64_t matrix_cycles = 0;
    uint64_t bank_conflicts = 0; /* cycles that LDS takes for them; Launch.banks */
    uint64_t total() const { return scalar + vector + transcendental + matrix + lds + memory + constant + control; }
    void add(const Counts &other);
};

struct KernelFacts {
    uint32_t lds, scratch, arguments, vgprs; /* bytes, bytes, bytes, registers of 512 */
};

struct Image; /* code_object.h */

class CodeObject {
  public:
    /* `objdump`: path of llvm-objdump, which decodes instructions. Throws Fault. */
    CodeObject(const void *bytes, size_t size, const std::string &objdump);
    ~CodeObject();
    CodeObject(const CodeObject &) = delete;
    CodeObject &operator=(const CodeObject &) = delete;

    std::string arch() const; /* "gfx90a", "gfx942", "gfx950" */
    std::vector<std::string> kernels() const;
    bool has(const std::string &kernel) const;
    KernelFacts facts(const std::string &kernel);
    /* Instructions of the kernel that the emulator does not know, by name. */
    std::vector<std::string> unknown(const std::string &kernel);
    /* Pairs of its instructions with fewer wait states between them than hardware needs, on any path. */
    std::vector<std::string> hazards(const std::string &kernel);
    /* Runs to the end. Throws Fault. May be called from several threads. */
    Counts run(const Launch &launch);

  private:
    std::unique_ptr<Image> image;
};

} // namespace cdna

#endif
