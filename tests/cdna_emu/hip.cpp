/* SPDX-License-Identifier: MIT
 *
 * libamdhip64.so.7 on the emulator: the runtime functions of backends/hip/driver.def, for one device whose memory
 * is the host's. A launch runs to its end before the call returns; a kernel's fault is printed and loses the
 * device. Environment:
 *   CDNA_EMU_ARCH       gfx942 (default), gfx90a, gfx950
 *   CDNA_EMU_CUS        compute units that the device says it has (default 4)
 *   CDNA_EMU_VERSION    what hipRuntimeGetVersion says (default 70000000)
 *   CDNA_EMU_THREADS    host threads a launch (default 1)
 *   CDNA_EMU_RACES      1: watch LDS for accesses that no barrier orders
 *   CDNA_EMU_WAITS      1: watch what comes too early where an s_waitcnt is missing (waits.cpp)
 *   CDNA_EMU_FLUSH      1: memory takes subnormal f32 that are added to it for 0, as gfx90a's always does
 *   CDNA_EMU_HAZARDS    1: watch for instructions with fewer wait states between them than hardware needs; 2: but for
 *                       those that a branch leads to
 *   CDNA_EMU_UNSET      1: watch LDS for reads of what the group has not written
 *   CDNA_EMU_SCHEDULE   not 0: waves take turns at random, from this seed
 *   CDNA_EMU_CODE       a file with a changed copy of an image, which is run in place of the one of its size
 *   CDNA_EMU_COUNTS     a file that gets a line a launch: kernel, wave instructions by kind, cycles of the matrix unit
 *                       (bench/amd_counts.py), cycles of bank conflicts in LDS (check_banks.py)
 *   CDNA_EMU_TRACE      a file that gets what the first workgroup of a launch ran (bench/amd_model.py) */
#include "hip_streams.h"

#include "emulator.h"
#include "tests/loader/fakes/file_behind.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

using namespace cdna;

enum { CU_COUNT = 63, PAGEABLE_ACCESS = 65, SMEM_PER_BLOCK = 74, GCN_NAME_AT = 1160, PROPERTIES_SIZE = 1472 };

namespace {
struct Module {
    std::unique_ptr<CodeObject> code;
};
struct Function {
    Module *module;
    std::string name;
};
/* hipPointerAttribute_t since ROCm 6 */
struct PointerAttributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
};
} // namespace

/* Called by the library under test and by its tests. */
extern "C" int hipExtMallocWithFlags(void **pointer_out, size_t bytes, unsigned flags);
extern "C" int hipMemcpy(void *to, const void *from, size_t bytes, int kind);
extern "C" int hipMemsetAsync(void *to, int value, size_t bytes, void *stream);

static std::mutex lock;                       /* of everything here but a running kernel */
static std::map<uint64_t, uint64_t> blocks;   /* begin, end */
static std::map<uint64_t, unsigned> flags_of; /* of hipExtMallocWithFlags, by begin */
static std::map<std::string, Function> functions;
static int lost;
static thread_local int last_error;

int hip_say(int error) {
    if (error) last_error = error;
    return error;
}

static std::string setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}
static std::string device_arch() { return setting("CDNA_EMU_ARCH", "gfx942"); }
static int number(const char *name) { return atoi(setting(name, "0").c_str()); }

int hipInit(unsigned) { return 0; }
int hipRuntimeGetVersion(int *version) { return *version = atoi(setting("CDNA_EMU_VERSION", "70000000").c_str()), 0; }
int hipGetDeviceCount(int *count) { return *count = 1, 0; }
int hipGetDevice(int *device) { return *device = 0, 0; }
int hipSetDevice(int device) { return hip_say(device ? INVALID_DEVICE : 0); }
int hipDeviceGetName(char *name, int capacity, int) {
    snprintf(name, (size_t)capacity, "emulated %s", device_arch().c_str());
    return 0;
}
int hipDeviceGetAttribute(int *value, int attribute, int) {
    if (attribute != CU_COUNT && attribute != PAGEABLE_ACCESS && attribute != SMEM_PER_BLOCK)
        return hip_say(INVALID_VALUE);
    *value = attribute == CU_COUNT          ? atoi(setting("CDNA_EMU_CUS", "4").c_str())
             : attribute == PAGEABLE_ACCESS ? 0
             : device_arch() == "gfx950"    ? 160 << 10
                                            : 64 << 10;
    return 0;
}
int hipDeviceTotalMem(size_t *bytes, int) { return *bytes = (size_t)8 << 30, 0; }
int hipGetDevicePropertiesR0600(void *properties, int) {
    memset(properties, 0, PROPERTIES_SIZE);
    snprintf((char *)properties + GCN_NAME_AT, 256, "%s:sramecc+:xnack-", device_arch().c_str());
    return 0;
}
int hipGetDevicePropertiesR0000(void *, int) { return hip_say(INVALID_VALUE); }
int hipDeviceGetPCIBusId(char *address, int capacity, int) {
    snprintf(address, (size_t)capacity, "0000:00:00.0");
    return 0;
}
const char *hipGetErrorName(int error) { return error == LAUNCH_FAILED ? "hipErrorLaunchFailure" : "hipError"; }
const char *hipGetErrorString(int) { return "see the emulator's line"; }
int hipGetLastError() {
    int error = last_error;
    last_error = 0;
    return error;
}

/* ELF with 64-bit sections: the end of its section headers is its end. */
static size_t elf_size(const unsigned char *image) {
    uint64_t sections;
    uint16_t size, count;
    memcpy(&sections, image + 40, 8);
    memcpy(&size, image + 58, 2);
    memcpy(&count, image + 60, 2);
    return (size_t)(sections + (uint64_t)size * count);
}

/* The file of CDNA_EMU_CODE, if it is as large. */
static std::string other_code(size_t size) {
    std::ifstream file(setting("CDNA_EMU_CODE", ""), std::ios::binary);
    const std::string code((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return code.size() == size ? code : "";
}

int hipModuleLoadData(void **module_out, const void *image) {
    if (int error = hip_refuse_in_capture()) return hip_say(error);
    if (file_behind(image)) return hip_say(NO_FILE);
    if (memcmp(image, "\177ELF", 4)) return hip_say(INVALID_IMAGE);
    try {
        std::unique_ptr<Module> module(new Module);
        size_t size = elf_size((const unsigned char *)image);
        const std::string other = other_code(size); /* a changed copy, for tests */
        module->code.reset(
            new CodeObject(other.empty() ? image : other.data(), size,
                           setting("CDNA_EMU_OBJDUMP", device_arch() == "gfx950" ? STW_OBJDUMP_NEWER : STW_OBJDUMP)));
        if (module->code->arch() != device_arch()) return hip_say(NO_BINARY);
        *module_out = module.release();
        return 0;
    } catch (const std::exception &e) {
        fprintf(stderr, "emulator: %s\n", e.what());
        return hip_say(INVALID_IMAGE);
    }
}

int hipModuleUnload(void *module) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto at = functions.begin(); at != functions.end();)
        at = at->second.module == module ? functions.erase(at) : std::next(at);
    delete (Module *)module;
    return 0;
}

int hipModuleGetFunction(void **function_out, void *module, const char *name) {
    std::lock_guard<std::mutex> guard(lock);
    Module *m = (Module *)module;
    if (!m->code->has(name)) return hip_say(NOT_FOUND);
    char key[160];
    snprintf(key, sizeof key, "%p %s", module, name);
    Function &f = functions[key];
    f.module = m;
    f.name = name;
    *function_out = &f;
    return 0;
}

static Counts all_counts; /* of every launch so far */

/* Not HIP's: what `sternway tune` estimates from. In the order of CDNA_EMU_COUNTS. */
extern "C" void cdna_emu_counts(uint64_t out[9]) {
    std::lock_guard<std::mutex> guard(lock);
    const Counts &c = all_counts;
    const uint64_t values[9] = {c.scalar, c.vector,   c.transcendental, c.matrix,       c.lds,
                                c.memory, c.constant, c.control,        c.matrix_cycles};
    std::copy(values, values + 9, out);
}

static void tell_counts(const std::string &kernel, const Counts &c) {
    {
        std::lock_guard<std::mutex> guard(lock);
        all_counts.add(c);
    }
    std::string path = setting("CDNA_EMU_COUNTS", "");
    if (path.empty()) return;
    std::lock_guard<std::mutex> guard(lock);
    FILE *file = fopen(path.c_str(), "a");
    if (!file) throw Fault("cannot write " + path);
    fprintf(file, "%s", kernel.c_str());
    for (uint64_t n : {c.scalar, c.vector, c.transcendental, c.matrix, c.lds, c.memory, c.constant, c.control,
                       c.matrix_cycles, c.bank_conflicts})
        fprintf(file, " %llu", (unsigned long long)n);
    fprintf(file, "\n");
    fclose(file);
}

/* To its end. */
static int run(const Function *f, Launch launch) {
    if (lost) return lost;
    try {
        {
            std::lock_guard<std::mutex> guard(lock);
            for (auto &b : blocks) launch.memory.push_back({b.first, b.second});
        }
        tell_counts(f->name, f->module->code->run(launch));
        return 0;
    } catch (const std::exception &e) {
        fprintf(stderr, "emulator: %s: %s\n", f->name.c_str(), e.what());
        return lost = LAUNCH_FAILED;
    }
}

int hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned smem, void *stream, void **parameters,
                          void **extra) {
    const Function *f = (const Function *)function;
    if (lost) return hip_say(lost);
    if (!parameters || extra) return hip_say(INVALID_VALUE);
    Launch launch;
    launch.kernel = f->name;
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    std::copy(grid, grid + 3, launch.grid);
    std::copy(block, block + 3, launch.block);
    launch.dynamic_lds = smem;
    launch.threads = std::max(1, number("CDNA_EMU_THREADS"));
    launch.races = number("CDNA_EMU_RACES") != 0;
    launch.waits = number("CDNA_EMU_WAITS") != 0;
    launch.races |= launch.waits; /* whose watch of LDS it is */
    launch.flush = number("CDNA_EMU_FLUSH") != 0;
    launch.hazards = number("CDNA_EMU_HAZARDS");
    launch.unset = number("CDNA_EMU_UNSET") != 0;
    launch.trace = setting("CDNA_EMU_TRACE", "");
    launch.banks = !setting("CDNA_EMU_COUNTS", "").empty() || !launch.trace.empty();
    launch.schedule = (uint32_t)number("CDNA_EMU_SCHEDULE");
    const uint8_t *argument = (const uint8_t *)parameters[0]; /* our kernels have one, and nothing hidden is used */
    launch.arguments.assign(argument, argument + f->module->code->facts(f->name).arguments);
    return hip_say(hip_do(stream, [=] { return run(f, launch); }));
}

static const std::pair<const uint64_t, uint64_t> *block_of(uint64_t address) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin() || address >= (--after)->second) return nullptr;
    return &*after;
}

int hipPointerGetAttributes(void *attributes, const void *pointer) {
    std::lock_guard<std::mutex> guard(lock);
    if (!block_of((uint64_t)pointer)) return hip_say(INVALID_VALUE);
    PointerAttributes about = {2,       0, (void *)(uintptr_t)pointer,
                               nullptr, 0, flags_of[block_of((uint64_t)pointer)->first]};
    memcpy(attributes, &about, sizeof about);
    return 0;
}

/* No memory here is of hipMemMap. */
int hipMemGetAccess(unsigned long long *, const void *, void *) { return hip_say(INVALID_VALUE); }
int hipMemGetAddressRange(void **base_out, size_t *bytes_out, void *pointer) {
    std::lock_guard<std::mutex> guard(lock);
    const std::pair<const uint64_t, uint64_t> *block = block_of((uint64_t)pointer);
    if (!block) return hip_say(INVALID_VALUE);
    *base_out = (void *)block->first;
    *bytes_out = block->second - block->first;
    return 0;
}

int hipMalloc(void **pointer_out, size_t bytes) { return hipExtMallocWithFlags(pointer_out, bytes, 0); }

/* Starts as something no kernel should rely on. */
int hipExtMallocWithFlags(void **pointer_out, size_t bytes, unsigned flags) {
    if (int error = hip_refuse_in_capture()) return hip_say(error);
    size_t whole = (bytes + 255) / 256 * 256;
    void *pointer = bytes && bytes <= (size_t)8 << 30 ? aligned_alloc(256, whole) : nullptr;
    if (!pointer) return hip_say(OUT_OF_MEMORY);
    memset(pointer, 0xd5, bytes);
    std::lock_guard<std::mutex> guard(lock);
    blocks[(uint64_t)pointer] = (uint64_t)pointer + bytes;
    flags_of[(uint64_t)pointer] = flags;
    *pointer_out = pointer;
    return 0;
}

int hipFree(void *pointer) {
    if (int error = hip_refuse_in_capture()) return hip_say(error);
    std::lock_guard<std::mutex> guard(lock);
    if (pointer && !blocks.erase((uint64_t)pointer)) return hip_say(INVALID_VALUE);
    free(pointer);
    return 0;
}

int hipMemcpyAsync(void *to, const void *from, size_t bytes, int, void *stream) {
    return hip_say(hip_do(stream, [=] { return lost ? lost : (memmove(to, from, bytes), 0); }));
}
int hipMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    return hip_say(hip_do(stream, [=] { return lost ? lost : (memset(to, value, bytes), 0); }));
}
int hipMemcpy(void *to, const void *from, size_t bytes, int kind) {
    if (int error = hip_refuse_in_capture()) return hip_say(error);
    return hipMemcpyAsync(to, from, bytes, kind, nullptr);
}
int hipStreamSynchronize(void *stream) {
    int error = hip_refuse_captured(stream);
    return hip_say(error ? error : lost);
}
