/* SPDX-License-Identifier: MIT
 *
 * The emulator against the host: functions of one thread compiled for both (at -O0 and -O3), operations over
 * waves, matrix layouts from AMD's ISA documents, atomics, and faults that must be seen.
 * Arguments: FUNCTIONS_O0 FUNCTIONS_O3 WAVES HAZARDS OBJDUMP, code objects of one arch. */
#include "emulator.h"
#include "kernels/functions.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

using namespace cdna;

static int failures, checks;
static void check(bool good, const std::string &what) {
    ++checks;
    if (good) return;
    ++failures;
    printf("FAILED %s\n", what.c_str());
}

static std::string objdump;
static std::unique_ptr<CodeObject> load(const char *path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    return std::unique_ptr<CodeObject>(new CodeObject(bytes.data(), bytes.size(), objdump));
}

/* Arguments in the order of the kernel's parameters. */
struct Call {
    Launch launch;
    Call(const char *kernel, uint32_t groups, uint32_t threads) {
        launch.kernel = kernel, launch.grid[0] = groups, launch.block[0] = threads;
    }
    template <class T> Call &buffer(std::vector<T> &data) {
        uint64_t begin = (uint64_t)data.data();
        launch.memory.push_back({begin, begin + data.size() * sizeof(T)});
        return value(begin);
    }
    template <class T> Call &value(T x) {
        size_t at = (launch.arguments.size() + sizeof x - 1) / sizeof x * sizeof x;
        launch.arguments.resize(at + sizeof x);
        memcpy(launch.arguments.data() + at, &x, sizeof x);
        return *this;
    }
};

static uint32_t random_word() {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 16);
}

/* Random bits, small numbers, and the edges of every format. */
static std::vector<uint32_t> inputs(size_t count) {
    static const uint32_t edges[] = {0,           1,           2,           0x7fffffffu, 0x80000000u, 0xffffffffu,
                                     0x3f800000u, 0xbf800000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x00800000u,
                                     0x007fffffu, 0x80000001u, 0x4b000001u, 0x33000001u, 0x38800000u, 0x387fc000u,
                                     0x477fe000u, 0x477ff000u, 0x7ff00000u, 0x3ff00000u};
    std::vector<uint32_t> words(count);
    for (size_t i = 0; i < count; ++i) {
        uint32_t x = random_word();
        switch (random_word() % 4) {
        case 0: words[i] = x; break;
        case 1: words[i] = edges[x % (sizeof edges / sizeof edges[0])]; break;
        case 2: words[i] = x >> x % 32; break;
        default: words[i] = (x & 0x807fffffu) | (96 + x / 7 % 64) << 23; /* floats near 1 */
        }
    }
    return words;
}

typedef uint64_t (*Function)(uint32_t a, uint32_t b, uint32_t c);
struct Row {
    const char *name;
    Function call;
};
static const Row rows[] = {
#define FUNCTION_ROW(name, body)                                                                                       \
    {#name, [](uint32_t a, uint32_t b, uint32_t c) -> uint64_t {                                                       \
         (void)a, (void)b, (void)c;                                                                                    \
         return (uint64_t)(body);                                                                                      \
     }},
    FUNCTIONS(FUNCTION_ROW)
#undef FUNCTION_ROW
};

static void functions(CodeObject &code, const char *level) {
    const uint32_t threads = 256, groups = 24;
    std::vector<uint32_t> input = inputs(3 * threads * groups);
    for (const Row &row : rows) {
        std::string name = std::string("function_") + row.name;
        std::vector<uint64_t> result(threads * groups, 0x5555555555555555ull);
        std::vector<std::string> unknown = code.unknown(name);
        check(unknown.empty(), name + " " + level + ": unknown " + (unknown.empty() ? "" : unknown[0]));
        if (!unknown.empty()) continue;
        code.run(Call(name.c_str(), groups, threads).buffer(input).buffer(result).launch);
        size_t wrong = 0, first = 0;
        for (size_t i = 0; i < result.size(); ++i)
            if (result[i] != row.call(input[3 * i], input[3 * i + 1], input[3 * i + 2]) && !wrong++) first = i;
        char text[256];
        snprintf(text, sizeof text, "%s %s: %zu of %zu, first of (%08x, %08x, %08x): %llx, host %llx", name.c_str(),
                 level, wrong, result.size(), input[3 * first], input[3 * first + 1], input[3 * first + 2],
                 (unsigned long long)result[first],
                 (unsigned long long)row.call(input[3 * first], input[3 * first + 1], input[3 * first + 2]));
        check(!wrong, text);
    }
}

static void lanes(CodeObject &code) {
    std::vector<uint32_t> x = inputs(64), r(384, 0x55555555u);
    code.run(Call("lanes", 1, 64).buffer(x).buffer(r).launch);
    uint64_t odd = 0;
    for (int t = 0; t < 64; ++t) odd |= (uint64_t)(x[(size_t)t] & 1) << t;
    for (uint32_t t = 0; t < 64; ++t) {
        check(r[t] == x[(t * 7 + 3) % 64], "ds_bpermute");
        check(r[64 + t] == x[0], "readfirstlane");
        check(r[128 + t] == x[37], "readlane");
        check(r[192 + t] == ((uint32_t)odd ^ (uint32_t)(odd >> 32)), "ballot");
        check(r[256 + t] == (uint32_t)__builtin_popcountll(odd & ((1ull << t) - 1)), "mbcnt");
        check(r[320 + (t + 5) % 64] == x[t], "ds_permute");
    }
}

static void groups(CodeObject &code) {
    for (uint32_t schedule : {0u, 1u, 7u}) {
        std::vector<uint32_t> x = inputs(256), r(256);
        Call call("reverse", 1, 256);
        call.buffer(x).buffer(r).launch.races = true;
        call.launch.schedule = schedule;
        code.run(call.launch);
        bool good = true;
        for (size_t t = 0; t < 256; ++t) good &= r[t] == x[255 - t];
        check(good, "reverse through LDS");
    }
    std::vector<float> x(1024), sum(8, 0.0f);
    std::vector<uint32_t> words(1 + 1024 + 4, 0);
    for (size_t i = 0; i < 1024; ++i) x[i] = (float)(i % 31); /* sums are exact */
    Call call("atomics", 4, 256);
    call.buffer(x).buffer(sum).buffer(words).launch.races = true;
    call.launch.threads = 3;
    code.run(call.launch);
    float want[8] = {0};
    std::vector<int> seen(1024, 0);
    for (size_t i = 0; i < 1024; ++i) want[i % 8] += x[i];
    for (size_t i = 0; i < 8; ++i) check(sum[i] == want[i], "global atomic add of f32");
    for (size_t i = 0; i < 1024; ++i) ++seen[words[1 + i] % 1024];
    for (int times : seen) check(times == 1, "global atomic add that returns");
    for (uint32_t g = 0; g < 4; ++g) check(words[1025 + g] == (g * 256 + 255) * 3, "LDS atomic maximum");
}

/* Rows and columns of operands and results: "AMD Instinct MI200 ISA", matrix core layouts. */
template <class T> static T number(int x);
template <> float number<float>(int x) { return (float)x; }
template <> _Float16 number<_Float16>(int x) { return (_Float16)x; }
template <> uint16_t number<uint16_t>(int x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16); /* bf16 of a small whole number */
}

template <class T> static void matrix(CodeObject &code, const char *kernel, int m, int k, int per_lane) {
    std::vector<int> a((size_t)(m * k)), b((size_t)(m * k));
    std::vector<T> la(64u * (size_t)per_lane), lb(la);
    for (int &x : a) x = (int)(random_word() % 15) - 7;
    for (int &x : b) x = (int)(random_word() % 15) - 7;
    for (int l = 0; l < 64; ++l)
        for (int i = 0; i < per_lane; ++i) {
            int row = l % m, at = l / m * per_lane + i;
            la[(size_t)(l * per_lane + i)] = number<T>(a[(size_t)(row * k + at)]);
            lb[(size_t)(l * per_lane + i)] = number<T>(b[(size_t)(row * k + at)]);
        }
    size_t values = (size_t)(m * m / 64);
    std::vector<float> c(64 * values);
    for (size_t i = 0; i < c.size(); ++i) c[i] = (float)(i % 13);
    std::vector<float> before = c;
    code.run(Call(kernel, 1, 64).buffer(la).buffer(lb).buffer(c).launch);
    bool good = true;
    for (int l = 0; l < 64; ++l)
        for (int v = 0; v < (int)values; ++v) {
            int column = l % m, row = m == 32 ? v / 4 * 8 + l / 32 * 4 + v % 4 : l / 16 * 4 + v;
            int want = (int)before[(size_t)l * values + (size_t)v];
            for (int i = 0; i < k; ++i) want += a[(size_t)(row * k + i)] * b[(size_t)(column * k + i)];
            good &= c[(size_t)l * values + (size_t)v] == (float)want;
        }
    check(good, kernel);
}

/* Rows of 16 or 32 lanes: the second of each two of one word change places with the first of another (LLVM, "User Guide
 * for AMDGPU Backend", llvm.amdgcn.permlane16.swap). */
static void swaps(CodeObject &code) {
    std::vector<uint32_t> x = inputs(128), r(256);
    code.run(Call("swaps", 1, 64).buffer(x).buffer(r).launch);
    for (size_t t = 0; t < 64; ++t)
        for (size_t half = 16; half <= 32; half *= 2) {
            const uint32_t *got = r.data() + (half == 32 ? 128 : 0);
            check(got[t] == (t & half ? x[64 + t - half] : x[t]), "lanes swapped, of the first word");
            check(got[64 + t] == (t & half ? x[64 + t] : x[t + half]), "lanes swapped, of the second word");
        }
}

/* bf16 to nearest even; a NaN stays one. v_bitop3: its table has the bit of 4 a + 2 b + c. */
static void conversions(CodeObject &code) {
    std::vector<uint32_t> x = inputs(512), r(1024);
    const uint32_t edges[] = {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7fffffu,
                              0x7f800001u, 0xffffffffu, 0x00008000u};
    std::copy(std::begin(edges), std::end(edges), x.begin());
    code.run(Call("conversions", 1, 256).buffer(x).buffer(r).launch);
    auto rounded = [](uint32_t bits) { return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16; };
    auto right = [&](uint32_t got, uint32_t bits) {
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        return nan ? (got & 0x7fffu) > 0x7f80u : got == rounded(bits);
    };
    for (size_t t = 0; t < 256; ++t) {
        check(right(r[t] & 0xffffu, x[t]) && right(r[t] >> 16, x[256 + t]), "two numbers to bf16");
        const uint32_t a = x[t], b = x[256 + t], c = x[t ^ 1];
        check(function_bits16((_Float16)function_float(a)) == function_bits16(function_half(r[512 + t])) &&
                  function_bits16((_Float16)function_float(b)) == function_bits16(function_half(r[512 + t] >> 16)),
              "two numbers to f16");
        check(r[256 + t] == ((a & ~b) | (b & c)), "v_bitop3");
        check(r[768 + t] == (((a & ~b) | (b & c)) & 0xffffu), "v_bitop3 of 16 bits");
    }
}

/* gfx90a's matrix unit takes subnormal halves for zero, the others' do not. */
static void subnormals(CodeObject &code) {
    std::vector<_Float16> a(256, (_Float16)0x1p-20f), b(256, (_Float16)1.0f);
    std::vector<float> c(256, 0.0f);
    code.run(Call("matrix_16_f16", 1, 64).buffer(a).buffer(b).buffer(c).launch);
    check(c[5] == (code.arch() == "gfx90a" ? 0.0f : 0x1p-16f), "subnormal operands of a matrix product");
    std::vector<float> x(1024, 0x1p-130f), sum(8, 0.0f); /* and its memory adds no subnormal f32 */
    std::vector<uint32_t> words(1 + 1024 + 4, 0);
    code.run(Call("atomics", 4, 256).buffer(x).buffer(sum).buffer(words).launch);
    check(sum[0] == (code.arch() == "gfx90a" ? 0.0f : 0x1p-123f), "subnormals added to memory");
    Call flushes("atomics", 4, 256);
    flushes.launch.flush = true;
    sum.assign(8, 0.0f), words[0] = 0;
    code.run(flushes.buffer(x).buffer(sum).buffer(words).launch);
    check(sum[0] == 0.0f, "subnormals added to memory that flushes them");
}

/* By AMD's lane groups: rows of 144 bytes put one lane of each eight onto the banks of another, rows of 128 bytes four
 * onto four; the same word for many lanes is none. */
static void banks(CodeObject &code) {
    static const struct {
        const char *kernel;
        uint32_t stride;
        uint64_t conflicts;
    } rows[] = {{"banks_read", 144, 8}, {"banks_read", 160, 0},  {"banks_read", 128, 24}, {"banks_read", 0, 0},
                {"banks_write", 64, 0}, {"banks_write", 128, 2}, {"banks_write", 192, 0}};
    std::vector<uint32_t> r(256);
    for (const auto &row : rows) {
        Call call(row.kernel, 1, 64);
        call.buffer(r).value(row.stride).launch.banks = true;
        uint64_t conflicts = code.run(call.launch).bank_conflicts;
        check(conflicts == row.conflicts,
              row.kernel + (" " + std::to_string(row.stride)) + ": " + std::to_string(conflicts));
        call.launch.banks = false;
        check(!code.run(call.launch).bank_conflicts, "conflicts that nobody asked for");
    }
}

static void sees(CodeObject &code, Call &call, const char *words) {
    std::string said = "nothing";
    try {
        code.run(call.launch);
    } catch (const Fault &fault) {
        said = fault.what();
    }
    check(said.find(words) != std::string::npos, call.launch.kernel + ": \"" + words + "\" wanted, got " + said);
}

static void faults(CodeObject &code) {
    std::vector<uint32_t> r(256);
    std::vector<float> f(64);
    Call inside("outside_global", 1, 64), outside("outside_global", 1, 64), lds("outside_lds", 1, 64);
    code.run(inside.buffer(r).value(192u).launch);
    sees(code, outside.buffer(r).value(193u), "is no memory of this launch");
    sees(code, lds.buffer(r).value(20000u), "LDS byte");
    for (const char *kernel : {"race_read", "race_write"}) {
        Call blind(kernel, 1, 256), watched(kernel, 1, 256);
        code.run(blind.buffer(r).launch);
        watched.launch.races = true;
        sees(code, watched.buffer(r), "LDS race");
    }
    for (const char *kernel : {"waits_vector", "waits_lds", "waits_constant", "waits_mixed", "waits_overwritten"}) {
        Call blind(kernel, 1, 64), fine(kernel, 1, 64), watched(kernel, 1, 64);
        code.run(blind.buffer(r).value(0u).launch);
        fine.launch.waits = watched.launch.waits = true;
        code.run(fine.buffer(r).value(1u).launch);
        sees(code, watched.buffer(r).value(0u), "a wait is missing");
    }
    std::vector<uint32_t> shared(257, 0);
    const std::pair<const char *, const char *> between_waves[] = {{"waits_read", "no wait before it"},
                                                                   {"waits_write", "no wait before it"},
                                                                   {"waits_semaphore", "a semaphore is passed on"}};
    for (const auto &[kernel, words] : between_waves)
        for (uint32_t schedule = 0; schedule < 8; ++schedule) {
            Call blind(kernel, 1, 256), fine(kernel, 1, 256), watched(kernel, 1, 256);
            for (Call *call : {&blind, &fine, &watched}) call->launch.races = true, call->launch.schedule = schedule;
            code.run(blind.buffer(shared).value(0u).launch);
            fine.launch.waits = watched.launch.waits = true;
            code.run(fine.buffer(shared).value(1u).launch);
            sees(code, watched.buffer(shared).value(0u), words);
        }
    Call unwatched("unset_lds", 1, 64), whole("unset_lds", 1, 64), part("unset_lds", 1, 64);
    code.run(unwatched.buffer(r).value(5u).launch);
    whole.launch.unset = part.launch.unset = true;
    code.run(whole.buffer(r).value(0u).launch);
    sees(code, part.buffer(r).value(5u), "its group has not written it");
    Call unknown("unknown_instruction", 1, 64), none("no_such_kernel", 1, 64), wide("order", 1, 2048);
    sees(code, unknown.buffer(f), "v_sin_f32");
    sees(code, none, "no kernel");
    sees(code, wide.buffer(r), "1 to 1024 threads");
    std::vector<int> last(4, 0);
    for (uint32_t seed = 1; seed <= 40; ++seed) {
        Call call("order", 1, 256);
        call.buffer(r).launch.schedule = seed;
        code.run(call.launch);
        ++last[r[0] & 3];
    }
    for (int times : last) check(times > 0, "schedules differ between seeds");
    try {
        CodeObject bad("no code at all, and far too short for a header of anything", 40, objdump);
        check(false, "bytes that are no code object");
    } catch (const Fault &) {
        check(true, "");
    }
}

/* One wait state fewer than needed: nothing where unwatched, a fault where watched. All of them: nothing. */
static void hazards(CodeObject &code) {
    static const struct {
        const char *kernel;
        int gfx90a, gfx942, gfx950;
        const char *words;
    } pairs[] = {
#define HAZARD(name, gfx90a, gfx942, gfx950, first, second, words) {"hazard_" #name, gfx90a, gfx942, gfx950, words},
#include "kernels/hazards.def"
    };
    std::vector<uint32_t> r(256, 0);
    for (const auto &pair : pairs) {
        int states = code.arch() == "gfx90a" ? pair.gfx90a : code.arch() == "gfx950" ? pair.gfx950 : pair.gfx942;
        Call blind(pair.kernel, 1, 64), fine(pair.kernel, 1, 64), watched(pair.kernel, 1, 64);
        code.run(blind.buffer(r).value(0u).launch);
        fine.launch.hazards = watched.launch.hazards = 1;
        code.run(fine.buffer(r).value(1u).launch);
        watched.buffer(r).value(0u);
        std::vector<std::string> found = code.hazards(pair.kernel);
        check(found.size() == (states ? 1 : 0), pair.kernel + (": on all paths " + std::to_string(found.size())));
        if (!states) {
            code.run(watched.launch);
            continue;
        }
        sees(code, watched, pair.words);
        std::string count =
            std::to_string(states) + " wait states are needed, " + std::to_string(states - 1) + " are there";
        sees(code, watched, count.c_str());
    }
    Call behind("hazard_behind_branch", 1, 64);
    behind.buffer(r).launch.hazards = 1;
    sees(code, behind, "1 are there (matrix, LLVM), behind a branch");
    behind.launch.hazards = 2;
    code.run(behind.launch);
    check(code.hazards("hazard_behind_branch").size() == 1, "a hazard behind a branch");
    Call empty("hazard_no_lanes", 1, 64);
    empty.buffer(r).launch.hazards = 1;
    code.run(empty.launch);
    check(code.hazards("hazard_no_lanes").empty(), "a store without lanes");
    check(code.hazards("hazard_no_lanes_write").empty(), "VALU writes without lanes");
    check(code.hazards("hazard_lanes_again").size() == 1, "VALU writes once there are lanes again");
    check(code.hazards("hazard_no_lanes_lane").size() == 1, "v_writelane asks no lane");
}

int main(int count, char **words) {
    if (count != 6) return 2;
    objdump = words[5];
    functions(*load(words[1]), "-O0");
    functions(*load(words[2]), "-O3");
    std::unique_ptr<CodeObject> code = load(words[3]);
    lanes(*code);
    groups(*code);
    banks(*code);
    matrix<_Float16>(*code, "matrix_16_f16", 16, 16, 4);
    matrix<uint16_t>(*code, "matrix_16_bf16", 16, 16, 4);
    matrix<float>(*code, "matrix_16_f32", 16, 4, 1);
    matrix<_Float16>(*code, "matrix_32_f16", 32, 8, 4);
    if (code->arch() == "gfx950") {
        matrix<_Float16>(*code, "matrix_16_f16_k32", 16, 32, 8);
        matrix<uint16_t>(*code, "matrix_16_bf16_k32", 16, 32, 8);
        matrix<_Float16>(*code, "matrix_32_f16_k16", 32, 16, 8);
        swaps(*code);
        conversions(*code);
    }
    subnormals(*code);
    faults(*code);
    hazards(*load(words[4]));
    printf("%s: %d checks, %d failed\n", code->arch().c_str(), checks, failures);
    return failures || checks < 500;
}
