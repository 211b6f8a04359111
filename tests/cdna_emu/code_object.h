/* SPDX-License-Identifier: MIT
 *
 * A loaded code object: its bytes as they lie in memory, its kernels' descriptors, and the kernels decoded so
 * far. Used by schedule.cpp. */
#ifndef CDNA_CODE_OBJECT_H
#define CDNA_CODE_OBJECT_H

#include "machine.h"

#include <map>
#include <mutex>

namespace cdna {

/* The parts of amdhsa_kernel_descriptor that matter here. */
struct Kernel {
    u64 entry; /* offset in memory */
    u32 lds, scratch, arguments, rsrc1, rsrc2, rsrc3;
    u16 properties, preload;
    std::unique_ptr<Program> program; /* on first use */
};

struct Image {
    Arch arch;
    std::string objdump, file; /* a temporary file with the code object */
    std::vector<u8> memory;    /* segments at their addresses */
    std::map<std::string, Kernel> kernels;
    std::mutex lock; /* of the programs */

    ~Image();
    Kernel &kernel(const std::string &name); /* throws Fault */
    const Program &program(const std::string &name);
};

std::unique_ptr<Image> load_image(const void *bytes, size_t size, const std::string &objdump);

} // namespace cdna

#endif
