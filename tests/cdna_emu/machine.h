/* SPDX-License-Identifier: MIT
 *
 * State of the emulated machine and the decoded instruction: what the decoder makes and the handlers of
 * scalar.cpp, vector*.cpp, lds.cpp, memory.cpp and matrix.cpp work on. */
#ifndef CDNA_MACHINE_H
#define CDNA_MACHINE_H

#include "emulator.h"

#include <cstring>
#include <unordered_map>

namespace cdna {

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

enum { LANES = 64, ACC_FIRST = 256, VGPRS = 512, SGPRS = 128 };
enum { FLAT_SCRATCH = 102, VCC = 106, M0 = 124, EXEC = 126 };

enum class Arch { gfx90a, gfx942, gfx950 };
const char *name_of(Arch arch);
enum class Place : u8 { none, vector, scalar, constant, special, off };
enum Special { SPECIAL_SCC, SPECIAL_EXECZ, SPECIAL_VCCZ, SPECIAL_SHARED_BASE, SPECIAL_PRIVATE_BASE, SPECIAL_LIMIT };

/* Small, as Instruction: a kernel's code must stay in the host's caches. */
struct Operand {
    u64 bits = 0; /* of a constant: as an integer, or as a double's */
    u32 bits32 = 0;
    float value = 0;
    int16_t index = 0; /* vector: accumulators follow at ACC_FIRST. special: which */
    Place place = Place::none;
    bool is_float = false, negate = false, absolute = false, sign_extend = false;
};

enum class Kind : u8 { scalar, vector, transcendental, matrix, lds, memory, constant, control };
enum { SELECT_DWORD = 6 }; /* 0..3: a byte, 4, 5: a half */
enum { UNUSED_PAD, UNUSED_SIGN, UNUSED_PRESERVE };

enum class Atomic : u8 {
    none,
    add,
    sub,
    and_,
    or_,
    xor_,
    umax,
    umin,
    smax,
    smin,
    swap,
    compare_swap,
    increment,
    decrement,
    add_f32,
    add_f32_flushed,
    add_f64,
    max_f64,
    min_f64,
    packed_add_f16,
    packed_add_bf16
};

/* How a memory instruction moves data. */
struct Access {
    u8 bytes = 0;
    bool store = false, sign = false, d16 = false, high = false;
    Atomic atomic = Atomic::none;
    enum : u8 { global, scratch, flat, buffer, lds } space = global;
};

/* An instruction as objdump writes it. */
struct Words {
    std::string name, text; /* name: without the encoding's suffix */
};

struct Wave;
struct Instruction;
typedef void (*Handler)(Wave &, const Instruction &);

struct Instruction {
    Handler run = nullptr;
    int target = -1; /* of a branch: number in the kernel */
    u8 cycles = 0;   /* of the matrix unit */
    Kind kind = Kind::scalar;
    u8 count = 0;
    Access access;
    Operand op[6];
    i32 offset = 0, offset0 = 0, offset1 = 0;
    bool returns = false, clamp = false, offen = false, idxen = false, op_sel_given = false, sdwa = false;
    bool half_result = false; /* writes one half of its register and keeps the other */
    bool exec_result = false; /* v_cmpx                                              */
    u8 scale = 0;             /* output modifier: 1 *2, 2 *4, 3 /2                   */
    u8 op_sel[5] = {0, 0, 0, 0, 0}, op_sel_hi[5] = {1, 1, 1, 1, 1}, neg_lo[5] = {0}, neg_hi[5] = {0};
    u8 dst_select = SELECT_DWORD, dst_unused = UNUSED_PAD, src_select[2] = {SELECT_DWORD, SELECT_DWORD};
    u8 form = 0, type = 0;        /* compares: condition, type */
    u8 m = 0, k = 0, blocks = 1;  /* matrix products            */
    u32 address = 0, raw = 0;     /* raw, low half: branch distance */
    std::unique_ptr<Words> words; /* for messages */

    const std::string &name() const { return words->name; }
    const std::string &text() const { return words->text; }
};

struct Guards;
struct Pending;
struct Semaphores;
struct Hazards;
struct Issued;

/* One kernel, decoded. */
struct Program {
    std::string name;
    std::vector<Instruction> code;
    std::unordered_map<u32, int> at;                /* address -> number          */
    mutable std::shared_ptr<const Guards> guards;   /* waits.cpp's, on first use */
    mutable std::shared_ptr<const Hazards> hazards; /* hazards.cpp's, on first use */
};

/* Who touched each two bytes of LDS, and in which barrier interval. */
struct LdsShadow {
    enum { BY_ATOMIC = 0xfffe };                               /* as the writer */
    std::vector<u16> write_epoch, writer, read_epoch, readers; /* readers: a bit a wave, a group has at most 16 */
    void clear(size_t halves) {
        for (std::vector<u16> *v : {&write_epoch, &writer, &read_epoch, &readers}) v->assign(halves, 0);
    }
};

/* What all waves of a launch share. */
struct Run {
    const Program *program;
    const Launch *launch;
    bool flushes_subnormals; /* gfx90a: its matrix unit 16-bit operands, its memory the f32 it adds */
    u32 lds_bytes, scratch_bytes;
    std::vector<Region> memory;
    u64 code_base, arguments, packet;
    const Guards *guards;   /* or null: waits are not watched */
    const Hazards *hazards; /* or null: wait states are not watched */
    Semaphores *semaphores; /* of guards */
};

struct Wave;

struct Group {
    const std::vector<Wave *> *waves;
    std::vector<u8> lds;
    LdsShadow shadow;        /* empty: not watched */
    std::vector<u8> written; /* whether each two bytes of LDS are; empty: not watched */
    u16 epoch = 0;           /* number of the barrier interval, not 0; clears the shadow where it begins again */
    void next_epoch() {
        if (!++epoch) shadow.clear(shadow.readers.size()), epoch = 1;
    }
};

/* One instruction that a wave ran: its number in the kernel, cycles of bank conflicts. */
struct TraceEntry {
    u32 number, conflicts;
};

struct alignas(64) Wave {
    u32 v[VGPRS][LANES];
    alignas(64) u32 temporary[8][LANES];
    u32 s[SGPRS];
    u32 scc;
    int pc, number;
    bool done, waiting; /* waiting: at a barrier */
    const Run *run;
    Group *group;
    u8 *scratch;
    u64 executed;
    Region last;  /* the region found last */
    u64 kinds[8]; /* instructions by Kind */
    u64 matrix_cycles, bank_conflicts;
    Pending *pending;               /* or null: waits are not watched */
    Issued *issued;                 /* or null: wait states are not watched */
    std::vector<TraceEntry> *trace; /* null: none is kept */

    u64 exec() const { return s[EXEC] | (u64)s[EXEC + 1] << 32; }
    u64 vcc() const { return s[VCC] | (u64)s[VCC + 1] << 32; }
    void set_exec(u64 mask) { s[EXEC] = (u32)mask, s[EXEC + 1] = (u32)(mask >> 32); }
};

[[noreturn]] void fault(const Wave &w, const Instruction &in, const std::string &what);
void run_unknown(Wave &w, const Instruction &in);
void run_nothing(Wave &w, const Instruction &in);

/* ---- numbers ---- */
inline float as_float(u32 x) {
    float f;
    memcpy(&f, &x, 4);
    return f;
}
inline u32 as_bits(float f) {
    u32 x;
    memcpy(&x, &f, 4);
    return x;
}
inline double as_double(u64 x) {
    double f;
    memcpy(&f, &x, 8);
    return f;
}
inline u64 as_bits64(double f) {
    u64 x;
    memcpy(&x, &f, 8);
    return x;
}
inline float half_to_float(u32 x) {
    u16 b = (u16)x;
    _Float16 h;
    memcpy(&h, &b, 2);
    return (float)h;
}
inline u32 half_bits(_Float16 h) {
    u16 b;
    memcpy(&b, &h, 2);
    return b;
}
inline u32 float_to_half(float f) { return half_bits((_Float16)f); }
inline float bf16_to_float(u32 x) { return as_float(x << 16); }
inline u32 float_to_bf16(float f) {
    u32 x = as_bits(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) return x >> 16 | 0x40u;
    return (x + 0x7fffu + (x >> 16 & 1u)) >> 16;
}

inline u32 reversed(u32 x) {
    u32 r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
    return r;
}

/* How many bits from the highest down are like it; -1 where all are. */
inline u32 leading_signs(u32 x) {
    u32 y = (i32)x < 0 ? ~x : x;
    return y ? (u32)__builtin_clz(y) : ~0u;
}

/* ---- scalar registers ---- */
inline u64 special_value(const Wave &w, int which) {
    switch (which) {
    case SPECIAL_SCC: return w.scc;
    case SPECIAL_EXECZ: return w.exec() == 0;
    case SPECIAL_VCCZ: return w.vcc() == 0;
    case SPECIAL_SHARED_BASE: return 1ull << 48; /* flat addresses of LDS and scratch begin here */
    case SPECIAL_PRIVATE_BASE: return 2ull << 48;
    default: return 0;
    }
}
inline u64 scalar64(const Wave &w, const Operand &o) {
    if (o.place == Place::scalar) return w.s[o.index] | (u64)w.s[o.index + 1] << 32;
    if (o.place == Place::constant) return o.bits;
    return o.place == Place::special ? special_value(w, o.index) : 0;
}
inline u32 scalar32(const Wave &w, const Operand &o) {
    if (o.place == Place::scalar) return w.s[o.index];
    if (o.place == Place::constant) return o.bits32;
    return o.place == Place::special ? (u32)special_value(w, o.index) : 0;
}
inline void set_scalar32(Wave &w, const Operand &o, u32 x) {
    if (o.place == Place::scalar) w.s[o.index] = x;
}
inline void set_scalar64(Wave &w, const Operand &o, u64 x) {
    if (o.place == Place::scalar) w.s[o.index] = (u32)x, w.s[o.index + 1] = (u32)(x >> 32);
}

/* ---- vector registers (registers.cpp) ---- */
enum class Read { bits, f32, f16 };
/* Source `k` of all lanes with its modifiers; part 1: the upper half of a 64-bit source. */
const u32 *source(Wave &w, const Instruction &in, int k, Read read = Read::bits, int part = 0);
/* 64-bit sources; `as_f64`: with modifiers and constants of doubles. */
void source64(Wave &w, const Instruction &in, int k, u64 *values, bool as_f64 = false);
/* Writes where EXEC is set. */
void store_lanes(u32 *to, const u32 *from, u64 mask);
void result(Wave &w, const Instruction &in, const u32 *values, int part = 0);
void result64(Wave &w, const Instruction &in, const u64 *values);
void result16(Wave &w, const Instruction &in, u32 *values);
inline void result_mask(Wave &w, const Instruction &in, int k, u64 mask) { set_scalar64(w, in.op[k], mask); }

inline float output(const Instruction &in, float x) {
    if (in.scale) x *= in.scale == 1 ? 2.0f : in.scale == 2 ? 4.0f : 0.5f;
    if (in.clamp) x = x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
    return x;
}

/* ---- memory (memory.cpp, lds.cpp) ---- */
void check_global(Wave &w, const Instruction &in, u64 address, int bytes, int lane);
u8 *scratch_at(Wave &w, const Instruction &in, u64 offset, int bytes, int lane);
enum class Touch { read, write, atomic, rewrite };
u8 *lds_at(Wave &w, const Instruction &in, u32 offset, int bytes, Touch touch);
/* Moves registers from or to the lanes' addresses; lanes in `zero` read zeros. */
void transfer(Wave &w, const Instruction &in, u8 *const *at, u64 lanes, int data, u64 zero = 0);
void transfer_atomic(Wave &w, const Instruction &in, u8 *const *at, u64 lanes, int data, int compare, int back);

/* ---- tables: name without encoding suffix -> handler ---- */
struct Entry {
    const char *name;
    Handler run;
};
typedef std::unordered_map<std::string, Handler> Handlers;
void add_scalar(Handlers &to);
void add_vector(Handlers &to);
void add_vector16(Handlers &to);
void add_vector64(Handlers &to);
void add_lds(Handlers &to);
void run_compare(Wave &w, const Instruction &in);
void run_memory(Wave &w, const Instruction &in);
void run_buffer(Wave &w, const Instruction &in);
void run_lds(Wave &w, const Instruction &in);
void run_lds_pair(Wave &w, const Instruction &in);
Handler matrix_handler(int m, int blocks);

/* ---- decode.cpp ---- */
/* One line of the disassembly: "mnemonic operands". */
Instruction decode(const std::string &line, Arch arch);

} // namespace cdna

#endif
