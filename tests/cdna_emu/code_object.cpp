/* SPDX-License-Identifier: MIT
 *
 * Code objects are ELF files: segments, symbols, kernel descriptors. Their instructions come from llvm-objdump,
 * one kernel at a time, when it is first asked for. */
#include "code_object.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <elf.h>
#include <iterator>
#include <unistd.h>

namespace cdna {

/* Of the header's flags (LLVM, "User Guide for AMDGPU Backend"). */
static const struct {
    unsigned mach;
    Arch arch;
    const char *name;
} archs[] = {{0x3f, Arch::gfx90a, "gfx90a"}, {0x4c, Arch::gfx942, "gfx942"}, {0x4f, Arch::gfx950, "gfx950"}};

const char *name_of(Arch arch) {
    for (const auto &row : archs)
        if (row.arch == arch) return row.name;
    return "";
}

template <class T> static const T *part(const u8 *bytes, size_t size, u64 at, u64 count = 1) {
    if (at > size || count > (size - at) / sizeof(T)) throw Fault("code object: truncated");
    return (const T *)(const void *)(bytes + at);
}

static void load_segments(Image &image, const u8 *bytes, size_t size, const Elf64_Ehdr &header) {
    const Elf64_Phdr *segments = part<Elf64_Phdr>(bytes, size, header.e_phoff, header.e_phnum);
    u64 end = 0;
    for (int i = 0; i < header.e_phnum; ++i)
        if (segments[i].p_type == PT_LOAD && segments[i].p_vaddr + segments[i].p_memsz > end)
            end = segments[i].p_vaddr + segments[i].p_memsz;
    if (end > 1u << 30) throw Fault("code object: too large");
    image.memory.assign(end, 0);
    for (int i = 0; i < header.e_phnum; ++i) {
        if (segments[i].p_type != PT_LOAD) continue;
        const u8 *from = part<u8>(bytes, size, segments[i].p_offset, segments[i].p_filesz);
        memcpy(image.memory.data() + segments[i].p_vaddr, from, segments[i].p_filesz);
    }
}

static void add_kernel(Image &image, const std::string &name, u64 descriptor) {
    const u8 *d = part<u8>(image.memory.data(), image.memory.size(), descriptor, 64);
    Kernel kernel = {};
    i64 entry;
    memcpy(&kernel.lds, d, 4);
    memcpy(&kernel.scratch, d + 4, 4);
    memcpy(&kernel.arguments, d + 8, 4);
    memcpy(&entry, d + 16, 8);
    memcpy(&kernel.rsrc3, d + 44, 4);
    memcpy(&kernel.rsrc1, d + 48, 4);
    memcpy(&kernel.rsrc2, d + 52, 4);
    memcpy(&kernel.properties, d + 56, 2);
    memcpy(&kernel.preload, d + 58, 2);
    kernel.entry = descriptor + (u64)entry;
    image.kernels[name] = std::move(kernel);
}

static void load_kernels(Image &image, const u8 *bytes, size_t size, const Elf64_Ehdr &header) {
    const Elf64_Shdr *sections = part<Elf64_Shdr>(bytes, size, header.e_shoff, header.e_shnum);
    for (int i = 0; i < header.e_shnum; ++i) {
        if (sections[i].sh_type != SHT_DYNSYM || sections[i].sh_link >= header.e_shnum) continue;
        const Elf64_Shdr &names = sections[sections[i].sh_link];
        u64 count = sections[i].sh_size / sizeof(Elf64_Sym);
        const Elf64_Sym *symbols = part<Elf64_Sym>(bytes, size, sections[i].sh_offset, count);
        for (u64 s = 0; s < count; ++s) {
            std::string name = (const char *)part<u8>(bytes, size, names.sh_offset + symbols[s].st_name);
            if (name.size() > 3 && name.substr(name.size() - 3) == ".kd")
                add_kernel(image, name.substr(0, name.size() - 3), symbols[s].st_value);
        }
    }
}

static std::string write_file(const void *bytes, size_t size) {
    char name[] = "/tmp/cdna_emu.XXXXXX";
    int descriptor = mkstemp(name);
    if (descriptor < 0) throw Fault("code object: no temporary file");
    FILE *file = fdopen(descriptor, "wb");
    bool written = file && fwrite(bytes, 1, size, file) == size;
    if ((file && fclose(file)) || !written) throw Fault("code object: cannot write the temporary file");
    return name;
}

std::unique_ptr<Image> load_image(const void *bytes, size_t size, const std::string &objdump) {
    const u8 *b = (const u8 *)bytes;
    const Elf64_Ehdr &header = *part<Elf64_Ehdr>(b, size, 0);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_machine != 224 /* EM_AMDGPU */)
        throw Fault("code object: this is no AMD GPU code");
    std::unique_ptr<Image> image(new Image);
    const auto *row = std::find_if(std::begin(archs), std::end(archs),
                                   [&](const auto &known) { return known.mach == (header.e_flags & 0xff); });
    if (row == std::end(archs)) throw Fault("code object: none of gfx90a, gfx942, gfx950");
    image->arch = row->arch;
    image->objdump = objdump;
    load_segments(*image, b, size, header);
    load_kernels(*image, b, size, header);
    image->file = write_file(bytes, size);
    return image;
}

Image::~Image() {
    if (!file.empty()) unlink(file.c_str());
}

Kernel &Image::kernel(const std::string &name) {
    auto found = kernels.find(name);
    if (found == kernels.end()) throw Fault("code object: no kernel \"" + name + "\"");
    return found->second;
}

/* A line of objdump is "\tmnemonic operands   // ADDRESS: WORD WORD". */
static void read_line(Program &program, const std::string &line, Arch arch) {
    size_t comment = line.find("// ");
    if (line.empty() || line[0] != '\t' || comment == std::string::npos) return;
    char *after;
    u32 address = (u32)strtoul(line.c_str() + comment + 3, &after, 16);
    size_t first = line.find_first_not_of('\t'), last = line.find_last_not_of(" \t", comment - 1);
    Instruction in = decode(line.substr(first, last - first + 1), arch);
    in.address = address;
    if (*after == ':') in.raw = (u32)strtoul(after + 1, nullptr, 16);
    program.at[address] = (int)program.code.size();
    program.code.push_back(std::move(in));
}

static bool is_branch(const std::string &name) { return name == "s_branch" || name.rfind("s_cbranch", 0) == 0; }

/* From the encoding: the text may name a label. */
static void resolve_branches(Program &program) {
    for (Instruction &in : program.code) {
        if (!is_branch(in.name())) continue;
        auto found = program.at.find(in.address + 4 + 4 * (u32)(i32)(int16_t)(in.raw & 0xffff));
        if (found == program.at.end()) in.run = run_unknown;
        else in.target = found->second;
    }
}

const Program &Image::program(const std::string &name) {
    std::lock_guard<std::mutex> guard(lock);
    Kernel &k = kernel(name);
    if (k.program) return *k.program;
    std::unique_ptr<Program> program(new Program);
    program->name = name;
    std::string command = objdump + " -d --disassemble-symbols=" + name + " '" + file + "'";
    FILE *pipe = popen(command.c_str(), "r");
    if (!pipe) throw Fault("cannot run " + objdump);
    char *line = nullptr;
    size_t room = 0;
    while (getline(&line, &room, pipe) > 0) read_line(*program, line, arch);
    free(line);
    if (pclose(pipe) || program->code.empty()) throw Fault("cannot disassemble " + name + " by " + objdump);
    resolve_branches(*program);
    k.program = std::move(program);
    return *k.program;
}

} // namespace cdna
