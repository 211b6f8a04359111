/* SPDX-License-Identifier: MIT
 *
 * Two instructions with fewer wait states between them than hardware needs and does not insert itself (Launch.hazards):
 * a GPU then reads or keeps an old value, which the emulator's results never show. An instruction is one wait state,
 * s_nop N is N + 1. A wave's path is followed as it runs, through branches.
 *
 * The rules are facts of AMD's CDNA3 ISA document, section 4.5 "Manually inserted wait states" (below "4.5") and the
 * section "Dependency resolution: required independent instructions" of the matrix instructions ("matrix"), read in
 * transcriptions, and of what LLVM's GCNHazardRecognizer inserts ("LLVM"). Numbers of gfx90a are LLVM's: the CDNA2
 * document was not at hand. Numbers of gfx950 are those of the CDNA4 ISA document's section "matrix", read in a
 * transcription, and gfx942's elsewhere; what clang 22 inserts behind products of 4 and 8 passes agrees. LLVM keeps
 * loads that fill SrcD or SrcC away, too, which no document asks for. Not here, since the emulator refuses the
 * instructions: dot products, f64 matrix products, VSKIP, RFE. Nor is VCC under the number of its scalar register,
 * which disassembly does not show. */
#include "hazards.h"
#include "waits.h"

#include <algorithm>

namespace cdna {

/* A set of registers of an instruction. VALU: vector instructions that are no matrix products. */
enum Set : u8 {
    /* what a first instruction leaves behind */
    VALU_SCALARS, /* written: SGPRs, VCC, EXEC */
    VALU_VECTORS, /* written */
    TRANS_RESULT, /* of v_exp, v_log, v_rcp, v_rsq, v_sqrt */
    MOVED_RESULT, /* of SDWA or OP_SEL that shift the result in its register */
    WIDE_STORE,   /* data of a store of more than 64 bits, read */
    SALU_M0,      /* written */
    SET_HWREG,    /* by s_setreg */
    XDL_RESULT,   /* SrcD of a product of 16-bit operands; on gfx90a of f32, too */
    SGEMM_RESULT, /* SrcD of a product of f32; gfx942 */
    XDL_C_READ,   /* SrcC of XDL */
    /* what a second one meets */
    MEMORY_SCALARS, /* read by VMEM: addresses, descriptors, offsets */
    LANE_SELECT,    /* of v_readlane and v_writelane */
    LANE_SOURCE,    /* the vector that v_readlane or v_readfirstlane reads */
    LANE_EXEC,      /* EXEC, where a lane is read or written */
    SWAPPED,        /* vectors of v_permlane16_swap and v_permlane32_swap; gfx950 */
    FMAS_VCC,       /* VCC, read by v_div_fmas */
    ZERO_FLAG,      /* VCC or EXEC, read as VCCZ or EXECZ */
    CONSTANTS,      /* scalars that VALU reads, but for carries and lane selects */
    DPP_SOURCE,
    DPP_EXEC,
    M0_USE, /* M0, read by s_movrel, s_sendmsg, GDS, and loads to LDS */
    HWREG,  /* by s_getreg and s_setreg */
    VALU_SOURCES,
    PLAIN_SOURCES, /* of VALU that is no trans instruction */
    VALU_RESULT,
    MEMORY_SOURCES, /* vectors that VMEM, LDS and FLAT read */
    MATRIX_SOURCES, /* SrcA, SrcB, SrcC */
    MATRIX_AB,
    MATRIX_EXEC, /* EXEC */
    XDL_C,
    SGEMM_C,
    SETS
};
static_assert(SETS <= 32, "a set is a bit of u32");

/* Same: both name the same registers, and the products have as many passes. */
enum class Match : u8 { overlap, same, not_same };

struct Rule {
    Set first, second;
    Match match;
    u8 states[3][4]; /* by arch; of a matrix product by its passes: 2, 4, 8, 16 (4: not gfx90a) */
    const char *words, *source;
};

#define EACH(n) {n, n, n, n}
#define FOUND(first, second, a, b)                                                                                     \
    first, second, Match::overlap, { EACH(a), EACH(b), EACH(b) }
#define PASSES(first, second, how) first, second, Match::how
static const Rule rules[] = {
    {FOUND(VALU_SCALARS, MEMORY_SCALARS, 5, 5), "memory takes a scalar that VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_SCALARS, LANE_SELECT, 4, 4), "a lane is selected by a scalar that VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_SCALARS, FMAS_VCC, 4, 4), "v_div_fmas reads VCC that VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_SCALARS, ZERO_FLAG, 5, 5), "VCCZ or EXECZ is read of what VALU wrote", "4.5"},
    {FOUND(VALU_SCALARS, CONSTANTS, 0, 2), "VALU reads a scalar that VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_SCALARS, LANE_EXEC, 0, 4), "a lane is read or written under EXEC that VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_SCALARS, DPP_EXEC, 5, 5), "DPP runs under EXEC that VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_SCALARS, MATRIX_EXEC, 4, 4), "a matrix product runs under EXEC that VALU wrote", "matrix, LLVM"},
    {FOUND(VALU_VECTORS, DPP_SOURCE, 2, 2), "DPP reads what VALU wrote", "4.5, LLVM"},
    {FOUND(VALU_VECTORS, LANE_SOURCE, 0, 1), "a lane is read of what VALU wrote", "4.5, LLVM"},
    {VALU_VECTORS,
     SWAPPED,
     Match::overlap,
     {EACH(0), EACH(0), EACH(2)},
     "lanes are swapped of what VALU wrote",
     "rocRoller's table of gfx950"},
    {FOUND(VALU_VECTORS, MATRIX_SOURCES, 2, 2), "a matrix product reads what VALU wrote", "matrix, LLVM"},
    {FOUND(TRANS_RESULT, PLAIN_SOURCES, 0, 1), "VALU reads the result of a trans instruction", "4.5, LLVM"},
    {FOUND(MOVED_RESULT, VALU_SOURCES, 0, 1), "VALU reads a result that was shifted by SDWA or OP_SEL", "4.5, LLVM"},
    {FOUND(WIDE_STORE, VALU_RESULT, 1, 2), "VALU overwrites the data of a store", "4.5, LLVM"},
    {FOUND(SALU_M0, M0_USE, 1, 1), "M0 is used that SALU wrote", "4.5, LLVM"},
    {FOUND(SET_HWREG, HWREG, 2, 2), "a hardware register is read or set again", "4.5, LLVM"},

    {PASSES(XDL_RESULT, XDL_C, same),
     {{0, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}},
     "SrcC is SrcD of a product",
     "matrix, LLVM"},
    {PASSES(XDL_RESULT, XDL_C, not_same),
     {{2, 0, 8, 16}, {3, 5, 9, 17}, {4, 6, 10, 18}},
     "SrcC overlaps SrcD",
     "matrix, LLVM"},
    {PASSES(XDL_RESULT, SGEMM_C, overlap),
     {EACH(0), {3, 5, 9, 17}, {3, 6, 10, 18}},
     "SrcC of f32 overlaps SrcD",
     "matrix"},
    {PASSES(SGEMM_RESULT, SGEMM_C, same),
     {EACH(0), {2, 0, 0, 0}, {2, 0, 0, 0}},
     "SrcC is SrcD of a product",
     "matrix, LLVM"},
    {PASSES(SGEMM_RESULT, SGEMM_C, not_same),
     {EACH(0), {2, 4, 8, 16}, {2, 4, 8, 16}},
     "SrcC overlaps SrcD",
     "matrix, LLVM"},
    {PASSES(XDL_RESULT, MATRIX_AB, overlap),
     {{5, 0, 11, 19}, {5, 7, 11, 19}, {5, 8, 12, 20}},
     "SrcA or SrcB is of SrcD",
     "matrix, LLVM"},
    {PASSES(SGEMM_RESULT, MATRIX_AB, overlap),
     {EACH(0), {4, 6, 10, 18}, {4, 6, 10, 18}},
     "SrcA or SrcB is of SrcD",
     "matrix, LLVM"},
    {PASSES(XDL_RESULT, VALU_SOURCES, overlap),
     {{5, 0, 11, 19}, {5, 7, 11, 19}, {5, 8, 12, 20}},
     "VALU reads SrcD",
     "matrix, LLVM"},
    {PASSES(SGEMM_RESULT, VALU_SOURCES, overlap),
     {EACH(0), {4, 6, 10, 18}, {4, 6, 10, 18}},
     "VALU reads SrcD",
     "matrix, LLVM"},
    {PASSES(XDL_RESULT, VALU_RESULT, overlap),
     {{5, 0, 11, 19}, {5, 7, 11, 19}, {5, 8, 12, 20}},
     "VALU writes SrcD",
     "matrix, LLVM"},
    {PASSES(SGEMM_RESULT, VALU_RESULT, overlap),
     {EACH(0), {4, 6, 10, 18}, {4, 6, 10, 18}},
     "VALU writes SrcD",
     "matrix, LLVM"},
    {PASSES(XDL_RESULT, MEMORY_SOURCES, overlap),
     {{5, 0, 11, 19}, {5, 7, 11, 19}, {5, 8, 12, 20}},
     "memory reads SrcD",
     "matrix, LLVM"},
    {PASSES(SGEMM_RESULT, MEMORY_SOURCES, overlap),
     {EACH(0), {4, 6, 10, 18}, {4, 6, 10, 18}},
     "memory reads SrcD",
     "matrix, LLVM"},
    {PASSES(XDL_C_READ, VALU_RESULT, overlap),
     {{1, 0, 7, 15}, {1, 3, 7, 15}, {1, 3, 7, 15}},
     "VALU writes SrcC",
     "matrix, LLVM"},
};

struct Touched {
    Set set;
    Registers registers;
};

/* An instruction as far as the rules are concerned. */
struct Facts {
    std::vector<Touched> touched;
    u32 sets = 0;                /* a bit each */
    u32 partners = 0;            /* sets of second instructions that a rule names with one of these */
    u32 longest = 0, states = 1; /* wait states: the most that one behind it may need, its own */
    u8 passes = 0;               /* of a matrix product; 0: another */
    bool leaves_no_lane = false; /* s_cbranch_execz, where it is taken */
    bool sets_exec = false;      /* it may leave lanes again */
};

struct Hazards {
    Arch arch;
    std::vector<Facts> of;
};

namespace {
struct Issue {
    u64 until = 0; /* wait states of the wave, with this instruction's */
    const Facts *facts = nullptr;
    const Instruction *by = nullptr;
};
enum { KEPT = 32, MOST_STATES = 20 };
} // namespace

/* The last instructions that leave something behind, in a ring; where a branch led elsewhere last, and one that is
 * taken without lanes: a store right before it stores nothing. `no_lanes`: behind such a branch VALU writes no vector
 * before EXEC is written. */
struct Issued {
    u64 now = 0, jumped = 0, emptied = 0;
    bool no_lanes = false;
    int next = -1;
    u32 count = 0;
    Issue last[KEPT];
};

Issued *issued_new() { return new Issued; }
void issued_free(Issued *issued) { delete issued; }
void issued_clear(Issued &issued) {
    issued.now = issued.jumped = issued.emptied = issued.count = 0;
    issued.no_lanes = false;
    issued.next = -1;
}

/* ---- what an instruction does ---- */

static bool begins(const std::string &text, const char *start) { return !text.compare(0, strlen(start), start); }
static bool holds(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }
static bool is_vector(Registers r) { return r.first < SCALARS_FIRST; }

static const Registers exec_mask = {SCALARS_FIRST + EXEC, SCALARS_FIRST + EXEC + 1};
static const Registers vcc_mask = {SCALARS_FIRST + VCC, SCALARS_FIRST + VCC + 1};

namespace {
/* An operand that is no register has first > last. */
struct Reader {
    const Instruction &in;
    const std::string &name;
    Facts facts;
    std::vector<Registers> operands;

    explicit Reader(const Instruction &i) : in(i), name(i.name()) {
        const std::string &text = in.text();
        size_t from = text.find(' ');
        while (from < text.size()) {
            size_t to = from + 1;
            for (int depth = 0; to < text.size() && (depth || text[to] != ','); ++to)
                depth += (text[to] == '[' || text[to] == '(') - (text[to] == ']' || text[to] == ')');
            std::vector<Registers> named = registers_in(" " + text.substr(from + 1, to - from - 1));
            operands.push_back(named.empty() ? Registers{1, 0} : named[0]);
            from = to;
        }
    }
    void add(Set set, Registers r) {
        if (r.first > r.last) return;
        facts.touched.push_back({set, r});
        facts.sets |= 1u << set;
    }
    void add_operand(Set set, size_t k) {
        if (k < operands.size()) add(set, operands[k]);
    }

    bool is_lane() const {
        return begins(name, "v_readlane") || begins(name, "v_readfirstlane") || begins(name, "v_writelane");
    }
    size_t results() const {
        for (const char *start : {"v_add_co_", "v_addc_co_", "v_sub_co_", "v_subb_co_", "v_subrev_co_", "v_subbrev_co_",
                                  "v_div_scale", "v_mad_u64_u32", "v_mad_i64_i32", "v_swap_", "v_permlane"})
            if (begins(name, start)) return 2;
        return name == "v_nop" ? 0 : 1;
    }
    /* OP_SEL of a result: one more than there are sources; packed and mixed instructions have none. */
    bool moves_result() const {
        if (in.sdwa) return in.dst_select != SELECT_DWORD;
        bool packed = begins(name, "v_pk_") || holds(name, "_mix");
        return in.op_sel_given && !packed && in.count && in.op_sel[in.count - 1];
    }
    /* It reads its own result: it adds to it, or keeps a part of it. */
    bool keeps_result() const {
        for (const char *start :
             {"v_fmac", "v_mac_", "v_pk_fmac", "v_writelane", "v_swap_", "v_fma_mixlo", "v_fma_mixhi", "v_permlane"})
            if (begins(name, start)) return true;
        return (in.sdwa && in.dst_unused == UNUSED_PRESERVE) || (!in.sdwa && moves_result());
    }
    void read_result(Registers r) {
        if (!is_vector(r)) return add(VALU_SCALARS, r);
        add(VALU_VECTORS, r);
        add(VALU_RESULT, r);
        if (in.kind == Kind::transcendental) add(TRANS_RESULT, r);
        if (moves_result()) add(MOVED_RESULT, r);
        if (begins(name, "v_permlane")) add(SWAPPED, r);
        if (keeps_result()) read_source(r);
    }
    void read_source(Registers r) {
        if (r.first > r.last) return;
        if (!is_vector(r)) return add(CONSTANTS, r);
        add(VALU_SOURCES, r);
        if (in.kind != Kind::transcendental) add(PLAIN_SOURCES, r);
        if (begins(name, "v_readlane") || begins(name, "v_readfirstlane")) add(LANE_SOURCE, r);
        if (holds(in.text(), "_dpp")) add(DPP_SOURCE, r);
    }
    void read_valu() {
        size_t first = results();
        bool carries = begins(name, "v_addc_co_") || begins(name, "v_subb_co_") || begins(name, "v_subbrev_co_");
        bool selects = begins(name, "v_readlane") || begins(name, "v_writelane");
        for (size_t k = 0; k < operands.size(); ++k) {
            if (k < first) read_result(operands[k]);
            else if (selects && k == 2 && !is_vector(operands[k])) add_operand(LANE_SELECT, k);
            else if (!carries || k != 4) read_source(operands[k]);
        }
        if (in.exec_result) add(VALU_SCALARS, exec_mask), facts.sets_exec = true;
        if (is_lane()) add(LANE_EXEC, exec_mask);
        if (begins(name, "v_div_fmas")) add(FMAS_VCC, vcc_mask);
        if (holds(in.text(), "_dpp")) add(DPP_EXEC, exec_mask);
        for (size_t k = 0; k < in.count; ++k) {
            if (in.op[k].place != Place::special) continue;
            if (in.op[k].index == SPECIAL_VCCZ) add(ZERO_FLAG, vcc_mask);
            if (in.op[k].index == SPECIAL_EXECZ) add(ZERO_FLAG, exec_mask);
        }
    }
    void read_matrix(Arch arch) {
        bool xdl = arch == Arch::gfx90a || in.type; /* type 0: f32 */
        facts.passes = (u8)(in.cycles / 4);
        if (!facts.passes) return;
        add_operand(xdl ? XDL_RESULT : SGEMM_RESULT, 0);
        for (size_t k = 1; k <= 3; ++k) add_operand(MATRIX_SOURCES, k);
        add_operand(MATRIX_AB, 1);
        add_operand(MATRIX_AB, 2);
        add_operand(xdl ? XDL_C : SGEMM_C, 3);
        if (xdl) add_operand(XDL_C_READ, 3);
        add(MATRIX_EXEC, exec_mask);
    }
    void read_memory() {
        bool fills = fills_register(in), vmem = in.kind == Kind::memory;
        for (size_t k = 0; k < operands.size(); ++k) {
            if (fills && k == 0) continue;
            if (is_vector(operands[k])) add_operand(MEMORY_SOURCES, k);
            else if (vmem) add_operand(MEMORY_SCALARS, k);
        }
        bool buffer = in.access.space == Access::buffer;
        bool wide =
            in.access.atomic == Atomic::compare_swap ? in.access.bytes == 8 : in.access.store && in.access.bytes > 8;
        if (vmem && wide && !(buffer && in.op[3].place == Place::scalar))
            add_operand(WIDE_STORE, buffer ? 0 : fills ? 2 : 1);
    }
    /* The number stands for the register: as many as these have no other. */
    void read_hwreg() {
        size_t from = in.text().find("hwreg("), to = in.text().find_first_of(",)", from);
        if (from == std::string::npos) return;
        u32 number = 0;
        for (size_t i = from + 6; i < to; ++i) number = (number * 31 + (u8)in.text()[i]) % 8191;
        Registers r = {(u16)(REGISTERS + number), (u16)(REGISTERS + number)};
        add(HWREG, r);
        if (begins(name, "s_setreg")) add(SET_HWREG, r);
    }
    void read_scalar() {
        bool no_result = begins(name, "s_cmp") || begins(name, "s_bitcmp") || begins(name, "s_set");
        const Registers m0 = {SCALARS_FIRST + M0, SCALARS_FIRST + M0};
        if (in.kind == Kind::scalar && !no_result && !operands.empty() && operands[0].first <= m0.first &&
            m0.last <= operands[0].last)
            add(SALU_M0, m0);
        if (in.kind == Kind::scalar && !no_result && !operands.empty() && operands[0].first <= exec_mask.last &&
            exec_mask.first <= operands[0].last)
            facts.sets_exec = true;
        if (holds(name, "saveexec") || holds(name, "wrexec")) facts.sets_exec = true;
        if (begins(name, "s_movrel") || begins(name, "s_sendmsg") || begins(name, "s_ttracedata")) add(M0_USE, m0);
        read_hwreg();
    }
    Facts read(Arch arch) {
        if (begins(name, "s_")) read_scalar();
        else if (in.kind == Kind::matrix) read_matrix(arch);
        else if (begins(name, "v_")) read_valu();
        else read_memory();
        if (holds(name, "_addtid") || holds(name, "_gws_") || holds(name, "_lds_") || holds(in.text(), " lds") ||
            holds(in.text(), " gds"))
            add(M0_USE, {SCALARS_FIRST + M0, SCALARS_FIRST + M0});
        facts.leaves_no_lane = name == "s_cbranch_execz";
        if (name == "s_nop") facts.states = in.op[0].bits32 + 1;
        return facts;
    }
};
} // namespace

static u32 states_of(const Rule &rule, const Facts &first, Arch arch) {
    int column = first.passes <= 2 ? 0 : first.passes <= 4 ? 1 : first.passes <= 8 ? 2 : 3;
    return rule.states[(int)arch][column];
}

std::shared_ptr<const Hazards> hazards_of(const Program &program, Arch arch) {
    std::shared_ptr<Hazards> made(new Hazards);
    made->arch = arch;
    for (const Instruction &in : program.code) {
        Facts facts = Reader(in).read(arch);
        for (const Rule &rule : rules) {
            if (!(facts.sets >> rule.first & 1) || !states_of(rule, facts, arch)) continue;
            facts.partners |= 1u << rule.second;
            facts.longest = std::max(facts.longest, states_of(rule, facts, arch));
        }
        made->of.push_back(facts);
    }
    return made;
}

/* ---- the watch ---- */

/* Whether a product among the last `back` - 1 instructions that were kept has written all of these registers again:
 * what is read then is its result, for which it has waited itself. */
static bool written_again(const Issued &issued, u32 back, Registers both) {
    for (u32 n = 1; n < back; ++n)
        for (const Touched &a : issued.last[(issued.count - n) % KEPT].facts->touched)
            if ((a.set == XDL_RESULT || a.set == SGEMM_RESULT) && a.registers.first <= both.first &&
                both.last <= a.registers.last)
                return true;
    return false;
}

static bool meets(const Rule &rule, const Issued &issued, u32 back, const Facts &second) {
    const Facts &first = *issued.last[(issued.count - back) % KEPT].facts;
    for (const Touched &a : first.touched) {
        if (a.set != rule.first) continue;
        for (const Touched &b : second.touched) {
            const Registers x = a.registers, y = b.registers;
            if (b.set != rule.second || x.last < y.first || y.last < x.first) continue;
            if ((a.set == XDL_RESULT || a.set == SGEMM_RESULT) &&
                written_again(issued, back, {std::max(x.first, y.first), std::min(x.last, y.last)}))
                continue;
            bool same = x.first == y.first && x.last == y.last && first.passes == second.passes;
            if (rule.match == Match::overlap || same == (rule.match == Match::same)) return true;
        }
    }
    return false;
}

/* Says nothing where the rules are kept. `sets`: those of `second` that count. */
static std::string broken_rule(const Issued &issued, u32 back, const Facts &second, u32 sets, u32 there, Arch arch) {
    const Issue &issue = issued.last[(issued.count - back) % KEPT];
    for (const Rule &rule : rules) {
        const u32 needed = states_of(rule, *issue.facts, arch);
        if (there < needed && sets >> rule.second & 1 && meets(rule, issued, back, second))
            return "it comes too soon behind \"" + issue.by->text() + "\": " + rule.words + ", " +
                   std::to_string(needed) + " wait states are needed, " + std::to_string(there) + " are there (" +
                   rule.source + ")";
    }
    return "";
}

static const char behind_branch[] = ", behind a branch";

/* The next instruction is issued. Returns what is wrong with it, or nothing. */
static std::string issue_next(const Hazards &hazards, Issued &issued, const Instruction &in, int number) {
    const Facts &facts = hazards.of[(size_t)number];
    std::string wrong;
    if (number != issued.next) {
        issued.jumped = issued.now;
        if (issued.next > 0 && hazards.of[(size_t)issued.next - 1].leaves_no_lane)
            issued.emptied = issued.now, issued.no_lanes = true;
    }
    issued.next = number + 1;
    const bool writes_one = begins(in.name(), "v_writelane"); /* whatever EXEC is */
    const u32 sets = facts.sets & ~(issued.no_lanes && !writes_one ? 1u << VALU_RESULT : 0u);
    if (facts.sets_exec) issued.no_lanes = false;
    for (u32 back = 1; sets && wrong.empty() && back <= issued.count && back <= KEPT; ++back) {
        const Issue &issue = issued.last[(issued.count - back) % KEPT];
        const u64 there = issued.now - issue.until;
        if (there >= MOST_STATES) break;
        if (issue.facts->sets >> WIDE_STORE & 1 && issue.until <= issued.emptied) continue;
        if (there < issue.facts->longest && issue.facts->partners & sets)
            wrong = broken_rule(issued, back, facts, sets, (u32)there, hazards.arch);
        if (!wrong.empty() && issue.until <= issued.jumped) wrong += behind_branch;
    }
    issued.now += facts.states;
    if (facts.longest) issued.last[issued.count++ % KEPT] = {issued.now, &facts, &in};
    return wrong;
}

void watch_hazards(Wave &w, const Instruction &in, int number) {
    const std::string wrong = issue_next(*w.run->hazards, *w.issued, in, number);
    const bool forgiven = w.run->launch->hazards == 2 && holds(wrong, behind_branch);
    if (!wrong.empty() && !forgiven) fault(w, in, wrong);
}

/* ---- all paths ---- */

namespace {
struct Paths {
    const Program &program;
    const Hazards &hazards;
    std::vector<std::string> found;

    /* From instruction `number` on in the text's order, and from each branch to where it leads as far as what stands
     * before it reaches. */
    void follow(Issued issued, size_t number, u64 until) {
        for (; number < program.code.size() && issued.now < until; ++number) {
            const Instruction &in = program.code[number];
            const std::string wrong = issue_next(hazards, issued, in, (int)number);
            char place[32];
            snprintf(place, sizeof place, "0x%x", in.address);
            if (!wrong.empty()) found.push_back(place + (", \"" + in.text() + "\": ") + wrong);
            if (in.target >= 0) follow(issued, (size_t)in.target, std::min(until, issued.now + MOST_STATES));
            if (in.name() != "s_branch" && in.name() != "s_setpc_b64" && in.name() != "s_endpgm") continue;
            if (until != ~0ull) return;
            issued_clear(issued);
        }
    }
};
} // namespace

std::vector<std::string> hazards_on_all_paths(const Program &program, Arch arch) {
    std::shared_ptr<const Hazards> hazards = hazards_of(program, arch);
    Paths paths = {program, *hazards, {}};
    paths.follow(Issued(), 0, ~0ull);
    std::sort(paths.found.begin(), paths.found.end());
    paths.found.erase(std::unique(paths.found.begin(), paths.found.end()), paths.found.end());
    return paths.found;
}

} // namespace cdna
