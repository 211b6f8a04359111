/* SPDX-License-Identifier: MIT
 *
 * A line of llvm-objdump's disassembly to an Instruction: operands, modifiers, and the handler. What is not
 * understood in full, an unknown modifier for one, gets the handler that refuses to run. */
#include "machine.h"

#include <cstdlib>
#include <map>

namespace cdna {

typedef std::vector<std::string> Parts;

static std::string trimmed(const std::string &s) {
    size_t a = s.find_first_not_of(" \t\n"), b = s.find_last_not_of(" \t\n");
    return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

/* Parts of `s` between `separator`s that stand outside brackets. */
static Parts split(const std::string &s, char separator) {
    Parts words;
    std::string word;
    int depth = 0;
    for (char c : s) {
        depth += (c == '[' || c == '(') - (c == ']' || c == ')');
        if (c == separator && !depth) {
            if (!trimmed(word).empty()) words.push_back(trimmed(word));
            word.clear();
        } else {
            word += c;
        }
    }
    if (!trimmed(word).empty()) words.push_back(trimmed(word));
    return words;
}

static bool begins(const std::string &s, const char *with) { return s.rfind(with, 0) == 0; }

/* ---- operands ---- */

static bool read_modifiers(std::string &s, Operand &o) {
    if (s.size() > 2 && s[0] == '-' && !isdigit((unsigned char)s[1])) o.negate = true, s = s.substr(1);
    struct {
        const char *name;
        bool *flag;
    } wraps[] = {{"neg(", &o.negate}, {"sext(", &o.sign_extend}, {"abs(", &o.absolute}};
    for (auto &wrap : wraps)
        if (begins(s, wrap.name)) {
            *wrap.flag = true;
            size_t n = strlen(wrap.name);
            s = s.substr(n, s.size() - n - 1);
        }
    if (!s.empty() && s[0] == '|') o.absolute = true, s = s.substr(1, s.size() - 2);
    return !s.empty();
}

static bool read_register(const std::string &s, Operand &o) {
    static const std::map<std::string, int> named = {{"vcc", VCC},
                                                     {"vcc_lo", VCC},
                                                     {"vcc_hi", VCC + 1},
                                                     {"m0", M0},
                                                     {"exec", EXEC},
                                                     {"exec_lo", EXEC},
                                                     {"exec_hi", EXEC + 1},
                                                     {"flat_scratch", FLAT_SCRATCH},
                                                     {"flat_scratch_lo", FLAT_SCRATCH},
                                                     {"flat_scratch_hi", FLAT_SCRATCH + 1}};
    static const std::map<std::string, int> special = {{"scc", SPECIAL_SCC},
                                                       {"src_scc", SPECIAL_SCC},
                                                       {"src_execz", SPECIAL_EXECZ},
                                                       {"src_vccz", SPECIAL_VCCZ},
                                                       {"src_shared_base", SPECIAL_SHARED_BASE},
                                                       {"src_private_base", SPECIAL_PRIVATE_BASE},
                                                       {"src_shared_limit", SPECIAL_LIMIT},
                                                       {"src_private_limit", SPECIAL_LIMIT}};
    auto found = named.find(s);
    if (found != named.end()) {
        o.place = Place::scalar, o.index = found->second;
        return true;
    }
    found = special.find(s);
    if (found != special.end()) {
        o.place = Place::special, o.index = found->second;
        return true;
    }
    if (s.size() < 2 || !strchr("vas", s[0]) || !(isdigit((unsigned char)s[1]) || s[1] == '[')) return false;
    o.place = s[0] == 's' ? Place::scalar : Place::vector;
    o.index = atoi(s.c_str() + (s[1] == '[' ? 2 : 1)) + (s[0] == 'a' ? ACC_FIRST : 0);
    return true;
}

static bool read_constant(const std::string &s, Operand &o) {
    if (!isdigit((unsigned char)s[0]) && s[0] != '-') return false;
    o.place = Place::constant;
    bool negative = s[0] == '-';
    if (s.find("0x") != std::string::npos) {
        u64 x = strtoull(s.c_str() + negative, nullptr, 16);
        o.bits = negative ? 0 - x : x;
        o.bits32 = (u32)o.bits;
    } else if (s.find('.') != std::string::npos) { /* an inline float: a double in 64-bit operands */
        double x = atof(s.c_str());
        bool inverse_2pi = begins(s, "0.15915494");
        o.is_float = true;
        o.value = (float)x;
        o.bits32 = inverse_2pi ? 0x3e22f983u : as_bits(o.value);
        o.bits = inverse_2pi ? 0x3fc45f306dc9c882ull : as_bits64(x);
    } else {
        o.bits = (u64)atoll(s.c_str());
        o.bits32 = (u32)o.bits;
    }
    return true;
}

static Operand read_operand(std::string s) {
    Operand o;
    if (s == "off") {
        o.place = Place::off;
        return o;
    }
    if (!read_modifiers(s, o) || read_register(s, o) || read_constant(s, o)) return o;
    return o;
}

/* ---- modifiers ---- */

static void read_list(const std::string &s, u8 *to) {
    const char *at = s.c_str() + 1;
    for (int k = 0; k < 5 && at && *at; ++k) {
        to[k] = (u8)atoi(at);
        at = strchr(at, ',');
        if (at) ++at;
    }
}

static int selection(const std::string &s) {
    static const char *const names[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1"};
    for (int i = 0; i < 6; ++i)
        if (s == names[i]) return i;
    return SELECT_DWORD;
}

/* False: not known. */
static bool read_modifier(Instruction &in, const std::string &word) {
    size_t colon = word.find(':');
    std::string key = word.substr(0, colon), value = colon == std::string::npos ? "" : word.substr(colon + 1);
    i32 number = (i32)strtol(value.c_str(), nullptr, 0);
    static const std::map<std::string, i32 Instruction::*> numbers = {
        {"offset", &Instruction::offset}, {"offset0", &Instruction::offset0}, {"offset1", &Instruction::offset1}};
    static const std::map<std::string, bool Instruction::*> flags = {{"glc", &Instruction::returns},
                                                                     {"sc0", &Instruction::returns},
                                                                     {"clamp", &Instruction::clamp},
                                                                     {"offen", &Instruction::offen},
                                                                     {"idxen", &Instruction::idxen}};
    auto n = numbers.find(key);
    auto f = flags.find(key);
    if (n != numbers.end() && value.find('(') == std::string::npos) in.*n->second = number;
    else if (f != flags.end()) in.*f->second = true;
    else if (key == "slc" || key == "nt" || key == "sc1" || key == "scc") return true; /* caches: none here */
    else if (key == "mul") in.scale = number == 2 ? 1 : 2;
    else if (key == "div") in.scale = 3;
    else if (key == "op_sel") read_list(value, in.op_sel), in.op_sel_given = true;
    else if (key == "op_sel_hi") read_list(value, in.op_sel_hi);
    else if (key == "neg_lo") read_list(value, in.neg_lo);
    else if (key == "neg_hi") read_list(value, in.neg_hi);
    else if (key == "bitop3") in.form = (u8)number;
    else if (key == "dst_sel") in.dst_select = selection(value);
    else if (key == "dst_unused")
        in.dst_unused = value == "UNUSED_PRESERVE" ? UNUSED_PRESERVE
                        : value == "UNUSED_SEXT"   ? UNUSED_SIGN
                                                   : UNUSED_PAD;
    else if (key == "src0_sel") in.src_select[0] = selection(value);
    else if (key == "src1_sel") in.src_select[1] = selection(value);
    else return false;
    return true;
}

/* ---- families ---- */

static bool read_width(const std::string &s, Access &access) {
    struct Width {
        int bytes;
        bool sign, d16, high;
    };
    static const std::map<std::string, Width> widths = {
        {"dword", {4, 0, 0, 0}},        {"dwordx2", {8, 0, 0, 0}},      {"dwordx3", {12, 0, 0, 0}},
        {"dwordx4", {16, 0, 0, 0}},     {"dwordx8", {32, 0, 0, 0}},     {"dwordx16", {64, 0, 0, 0}},
        {"ubyte", {1, 0, 0, 0}},        {"sbyte", {1, 1, 0, 0}},        {"ushort", {2, 0, 0, 0}},
        {"sshort", {2, 1, 0, 0}},       {"byte", {1, 0, 0, 0}},         {"short", {2, 0, 0, 0}},
        {"short_d16", {2, 0, 1, 0}},    {"short_d16_hi", {2, 0, 1, 1}}, {"ubyte_d16", {1, 0, 1, 0}},
        {"ubyte_d16_hi", {1, 0, 1, 1}}, {"sbyte_d16", {1, 1, 1, 0}},    {"sbyte_d16_hi", {1, 1, 1, 1}},
        {"byte_d16_hi", {1, 0, 0, 1}},  {"b32", {4, 0, 0, 0}},          {"b64", {8, 0, 0, 0}},
        {"b96", {12, 0, 0, 0}},         {"b128", {16, 0, 0, 0}},        {"u8", {1, 0, 0, 0}},
        {"i8", {1, 1, 0, 0}},           {"u16", {2, 0, 0, 0}},          {"i16", {2, 1, 0, 0}},
        {"b8", {1, 0, 0, 0}},           {"b16", {2, 0, 0, 0}},          {"u16_d16", {2, 0, 1, 0}},
        {"u16_d16_hi", {2, 0, 1, 1}},   {"u8_d16", {1, 0, 1, 0}},       {"u8_d16_hi", {1, 0, 1, 1}},
        {"b16_d16_hi", {2, 0, 0, 1}},   {"b8_d16_hi", {1, 0, 0, 1}}};
    auto found = widths.find(s);
    if (found == widths.end()) return false;
    access.bytes = found->second.bytes, access.sign = found->second.sign;
    access.d16 = found->second.d16 && !access.store, access.high = found->second.high;
    return true;
}

static bool read_atomic(std::string s, Access &access) {
    static const std::map<std::string, Atomic> kinds = {{"add_f32", Atomic::add_f32},
                                                        {"pk_add_f16", Atomic::packed_add_f16},
                                                        {"pk_add_bf16", Atomic::packed_add_bf16},
                                                        {"add_f64", Atomic::add_f64},
                                                        {"max_f64", Atomic::max_f64},
                                                        {"min_f64", Atomic::min_f64},
                                                        {"add", Atomic::add},
                                                        {"add_u32", Atomic::add},
                                                        {"add_u64", Atomic::add},
                                                        {"sub", Atomic::sub},
                                                        {"sub_u32", Atomic::sub},
                                                        {"and", Atomic::and_},
                                                        {"and_b32", Atomic::and_},
                                                        {"or", Atomic::or_},
                                                        {"or_b32", Atomic::or_},
                                                        {"xor", Atomic::xor_},
                                                        {"xor_b32", Atomic::xor_},
                                                        {"umax", Atomic::umax},
                                                        {"umin", Atomic::umin},
                                                        {"smax", Atomic::smax},
                                                        {"smin", Atomic::smin},
                                                        {"max_u32", Atomic::umax},
                                                        {"min_u32", Atomic::umin},
                                                        {"max_i32", Atomic::smax},
                                                        {"min_i32", Atomic::smin},
                                                        {"swap", Atomic::swap},
                                                        {"wrxchg_b32", Atomic::swap},
                                                        {"cmpswap", Atomic::compare_swap},
                                                        {"cmpst_b32", Atomic::compare_swap},
                                                        {"cmpst_b64", Atomic::compare_swap},
                                                        {"inc", Atomic::increment},
                                                        {"dec", Atomic::decrement}};
    access.bytes = s.find("64") != std::string::npos ? 8 : 4;
    if (s.size() > 3 && s.substr(s.size() - 3) == "_x2") access.bytes = 8, s = s.substr(0, s.size() - 3);
    auto found = kinds.find(s);
    if (found == kinds.end()) return false;
    access.atomic = found->second;
    return true;
}

/* "load_dwordx2", "store_short", "atomic_add" */
static bool read_transfer(const std::string &s, Access &access) {
    size_t underscore = s.find('_');
    std::string verb = s.substr(0, underscore), what = underscore == std::string::npos ? "" : s.substr(underscore + 1);
    access.store = verb == "store" || verb == "write";
    if (verb == "atomic") return read_atomic(what, access);
    return (access.store || verb == "load" || verb == "read") && read_width(what, access);
}

static Handler memory_handler(Instruction &in) {
    static const struct {
        const char *prefix;
        decltype(Access::global) space;
        Handler run;
    } spaces[] = {{"global_", Access::global, run_memory},
                  {"flat_", Access::flat, run_memory},
                  {"scratch_", Access::scratch, run_memory},
                  {"buffer_", Access::buffer, run_buffer}};
    for (auto &space : spaces)
        if (begins(in.name(), space.prefix)) {
            in.access.space = space.space;
            in.kind = Kind::memory;
            return read_transfer(in.name().substr(strlen(space.prefix)), in.access) ? space.run : run_unknown;
        }
    return nullptr;
}

static Handler lds_handler(Instruction &in) {
    if (!begins(in.name(), "ds_") || begins(in.name(), "ds_bperm") || begins(in.name(), "ds_perm") ||
        in.name() == "ds_nop")
        return nullptr;
    std::string what = in.name().substr(3);
    in.access.space = Access::lds;
    if (begins(what, "read2") || begins(what, "write2")) {
        in.access.store = what[0] == 'w';
        in.access.bytes = what.find("b64") != std::string::npos ? 8 : 4;
        in.form = what.find("st64") != std::string::npos;
        return run_lds_pair;
    }
    if (begins(what, "read_") || begins(what, "write_")) return read_transfer(what, in.access) ? run_lds : run_unknown;
    size_t back = what.find("_rtn");
    in.returns = back != std::string::npos;
    if (in.returns) what.erase(back, 4);
    return read_atomic(what, in.access) ? run_lds : run_unknown;
}

static Handler compare_handler(Instruction &in) {
    if (!begins(in.name(), "v_cmp")) return nullptr;
    static const std::map<std::string, int> conditions = {
        {"f", 0}, {"lt", 1},  {"eq", 2},   {"le", 3},   {"gt", 4},   {"lg", 5},   {"ne", 13},  {"ge", 6},   {"o", 7},
        {"u", 8}, {"nge", 9}, {"nlg", 10}, {"ngt", 11}, {"nle", 12}, {"neq", 13}, {"nlt", 14}, {"tru", 15}, {"t", 15}};
    static const std::map<std::string, int> types = {{"f32", 0}, {"i32", 1}, {"u32", 2}, {"f16", 3}, {"i16", 4},
                                                     {"u16", 5}, {"i64", 6}, {"u64", 7}, {"f64", 8}};
    in.exec_result = begins(in.name(), "v_cmpx");
    std::string rest = in.name().substr(in.exec_result ? 7 : 6);
    size_t underscore = rest.find('_');
    std::string condition = rest.substr(0, underscore), type = rest.substr(underscore + 1);
    if (condition == "class" && type == "f32") {
        in.type = 9;
        return run_compare;
    }
    auto c = conditions.find(condition), t = types.find(type);
    if (c == conditions.end() || t == types.end()) return run_unknown;
    in.form = c->second, in.type = t->second;
    return run_compare;
}

/* v_mfma_f32_16x16x16f16, v_mfma_f32_16x16x16_f16, v_mfma_f32_32x32x4_2b_bf16, v_mfma_f32_32x32x4bf16_1k; gfx950, twice
 * the k in the same time: v_mfma_f32_16x16x32_f16, v_mfma_f32_32x32x16_bf16 */
static Handler matrix_handler_of(Instruction &in, Arch arch) {
    if (!begins(in.name(), "v_mfma_")) return nullptr;
    in.kind = Kind::matrix;
    int m, n, k;
    char tail[32] = "";
    if (!begins(in.name(), "v_mfma_f32_") || sscanf(in.name().c_str() + 11, "%dx%dx%d%31s", &m, &n, &k, tail) != 4)
        return run_unknown;
    std::string type = tail;
    bool bf16 = type.find("bf16") != std::string::npos, f16 = !bf16 && type.find("f16") != std::string::npos;
    bool f32 = type == "f32" || type == "_f32" || type.find("b_f32") != std::string::npos;
    if (!bf16 && !f16 && !f32) return run_unknown;
    int groups = LANES / m;
    bool old_bf16 = bf16 && type == "bf16"; /* two of k a lane */
    int per_lane = f32 ? 1 : old_bf16 ? 2 : arch == Arch::gfx950 && k == 8 * groups ? 8 : 4;
    in.blocks = k == per_lane ? groups : 1;
    if (m != n || k != per_lane * (in.blocks == 1 ? groups : 1)) return run_unknown;
    in.m = m, in.k = k, in.type = f32 ? 0 : f16 ? 1 : 2;
    bool slow = arch == Arch::gfx90a || f32;
    in.cycles = m == 4 ? 8 : (slow || in.blocks > 1 ? 2 : 1) * (m == 16 ? 16 : 32);
    return matrix_handler(m, in.blocks);
}

static Handler constant_handler(Instruction &in) {
    if (!begins(in.name(), "s_load_dword")) return nullptr;
    in.kind = Kind::constant;
    return read_width(in.name().substr(7), in.access) ? run_nothing : run_unknown;
}

static const Handlers &handlers() {
    static const Handlers all = [] {
        Handlers made;
        add_scalar(made);
        add_vector(made);
        add_vector16(made);
        add_vector64(made);
        add_lds(made);
        return made;
    }();
    return all;
}

static bool does_nothing(const std::string &name) {
    for (const char *start : {"s_waitcnt", "s_nop", "s_setprio", "s_sleep", "s_setreg", "s_dcache", "s_icache",
                              "buffer_wbl2", "buffer_inv", "buffer_wbinvl1", "s_code_end", "s_sethalt"})
        if (begins(name, start)) return true;
    return false;
}

static Kind kind_of(const std::string &name) {
    for (const char *start : {"v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt"})
        if (begins(name, start)) return Kind::transcendental;
    for (const char *start : {"s_wait", "s_nop", "s_bar", "s_br", "s_cbr", "s_setprio", "s_end"})
        if (begins(name, start)) return Kind::control;
    if (begins(name, "v_")) return Kind::vector;
    if (begins(name, "ds_")) return Kind::lds;
    return begins(name, "buffer_") ? Kind::memory : Kind::scalar;
}

static Handler handler_of(Instruction &in, Arch arch) {
    if (does_nothing(in.name())) return run_nothing;
    if (Handler run = constant_handler(in)) return run == run_nothing ? handlers().at("s_load") : run;
    if (Handler run = compare_handler(in)) return run;
    if (Handler run = matrix_handler_of(in, arch)) return run;
    if (Handler run = lds_handler(in)) return run;
    if (Handler run = memory_handler(in)) return run;
    auto found = handlers().find(in.name());
    return found == handlers().end() ? run_unknown : found->second;
}

Instruction decode(const std::string &line, Arch arch) {
    Instruction in;
    in.words.reset(new Words);
    in.words->text = line;
    size_t space = line.find(' ');
    std::string &name = in.words->name;
    name = line.substr(0, space);
    std::string rest = space == std::string::npos ? "" : trimmed(line.substr(space));
    for (const char *suffix : {"_e32", "_e64", "_sdwa"}) {
        size_t n = strlen(suffix);
        if (name.size() <= n || name.compare(name.size() - n, n, suffix)) continue;
        name.resize(name.size() - n);
        in.sdwa = !strcmp(suffix, "_sdwa");
        break;
    }
    if (begins(in.name(), "v_fma_mix"))
        for (u8 &half : in.op_sel_hi) half = 0;
    in.half_result = in.name() == "v_fma_f16";
    in.kind = kind_of(in.name());
    bool known = true;
    Parts operands = split(rest, ',');
    if (!operands.empty() && !does_nothing(in.name())) { /* modifiers stand behind the last operand */
        Parts words = split(operands.back(), ' ');
        operands.back() = words.empty() ? "" : words[0];
        for (size_t i = 1; i < words.size(); ++i) known &= read_modifier(in, words[i]);
    }
    for (const std::string &operand : operands)
        if (in.count < 6) in.op[in.count++] = read_operand(operand);
    Handler run = handler_of(in, arch);
    in.run = known ? run : run_unknown;
    return in;
}

} // namespace cdna
