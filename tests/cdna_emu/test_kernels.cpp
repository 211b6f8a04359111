/* SPDX-License-Identifier: MIT
 *
 * The device vocabulary and the shared attention kernels on the emulator, without a driver in between: products
 * of tiles, and small backward passes (odd lengths, poisoned outputs and workspace, LDS races watched, random
 * schedules) against plain float64. Arguments: PRODUCT IMAGE OBJDUMP. */
#include "emulator.h"

#include "sternway/sternway.h"

extern "C" {
#include "backends/gpu/attn_tiled.h"
extern const stw_attn_loop stw_attn_loop_split, stw_attn_loop_f32;
}

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

using namespace cdna;

static std::string objdump;
static int failures;

static std::unique_ptr<CodeObject> load(const char *path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    return std::unique_ptr<CodeObject>(new CodeObject(bytes.data(), bytes.size(), objdump));
}

static uint64_t state = 88172645463325252ull;
static double uniform() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}
static double normal() { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

/* Elements of one type; starts as a pattern that is a NaN in each. */
struct Tensor {
    stw_dtype dtype;
    std::vector<uint8_t> bytes;
    Tensor(stw_dtype type, size_t count) : dtype(type), bytes(count * (type == STW_F32 ? 4 : 2), 0xff) {}
    double get(size_t i) const {
        uint32_t x = 0;
        float f;
        if (dtype == STW_F32) {
            memcpy(&f, &bytes[4 * i], 4);
            return f;
        }
        memcpy(&x, &bytes[2 * i], 2);
        if (dtype == STW_BF16) {
            x <<= 16;
            memcpy(&f, &x, 4);
            return f;
        }
        _Float16 h;
        memcpy(&h, &x, 2);
        return (double)h;
    }
    void set(size_t i, double value) {
        float f = (float)value;
        if (dtype == STW_F32) {
            memcpy(&bytes[4 * i], &f, 4);
        } else if (dtype == STW_BF16) {
            uint32_t x;
            memcpy(&x, &f, 4);
            x = (x + 0x7fff + (x >> 16 & 1)) >> 16;
            memcpy(&bytes[2 * i], &x, 2);
        } else {
            _Float16 h = (_Float16)f;
            memcpy(&bytes[2 * i], &h, 2);
        }
    }
    void fill() {
        for (size_t i = 0; i < bytes.size() / (dtype == STW_F32 ? 4 : 2); ++i) set(i, normal());
    }
    Region region() const { return {(uint64_t)bytes.data(), (uint64_t)bytes.data() + bytes.size()}; }
};

static void report(const std::string &what, double error, double limit) {
    bool good = error <= limit; /* false for NaN */
    printf("%s %s: %.3g (limit %.3g)\n", good ? "ok    " : "FAILED", what.c_str(), error, limit);
    failures += !good;
}

static void products(CodeObject &code) {
    enum { M = 32, N = 64, K = 64 };
    static const struct {
        const char *name;
        stw_dtype dtype;
    } types[] = {{"f16", STW_F16}, {"bf16", STW_BF16}, {"f32", STW_F32}};
    for (auto &type : types)
        for (const char *order : {"rows", "k", "mixed"}) {
            bool a_by_k = !strcmp(order, "k"), b_by_k = strcmp(order, "rows") != 0;
            Tensor a(type.dtype, M * K), b(type.dtype, N * K), c(STW_F32, M * N);
            a.fill(), b.fill();
            for (Tensor *t : {&a, &b}) /* gfx90a takes subnormal halves for zero: test_instructions.cpp */
                for (size_t i = 0; i < t->bytes.size() / (type.dtype == STW_F32 ? 4 : 2); ++i)
                    if (fabs(t->get(i)) < 0x1p-14) t->set(i, 0);
            Launch launch;
            launch.kernel = std::string("product_") + type.name + "_" + order;
            launch.block[0] = 256, launch.dynamic_lds = 65536, launch.races = launch.waits = launch.unset = true;
            uint64_t pointers[] = {a.region().begin, b.region().begin, c.region().begin};
            launch.arguments.assign((uint8_t *)pointers, (uint8_t *)(pointers + 3));
            launch.memory = {a.region(), b.region(), c.region()};
            code.run(launch);
            double worst = 0;
            for (size_t m = 0; m < M; ++m)
                for (size_t n = 0; n < N; ++n) {
                    double want = 0;
                    for (size_t k = 0; k < K; ++k)
                        want += a.get(a_by_k ? k * M + m : m * K + k) * b.get(b_by_k ? k * N + n : n * K + k);
                    double error = fabs(c.get(m * N + n) - want);
                    worst = error <= worst ? worst : error;
                }
            report(launch.kernel, worst, 2e-5);
        }
}

/* One problem, one batch, [row][head][column]: inputs, gradients wanted and got. */
struct Problem {
    stw_dtype dtype;
    int heads = 2, rows, width, causal;
    Tensor q, k, v, out, dout, dq, dk, dv, lse;
    std::vector<double> want_q, want_k, want_v;
    float scale;

    Problem(stw_dtype type, int s, int d, int c)
        : dtype(type), rows(s), width(d), causal(c), q(type, count()), k(type, count()), v(type, count()),
          out(type, count()), dout(type, count()), dq(type, count()), dk(type, count()), dv(type, count()),
          lse(STW_F32, (size_t)(heads * rows)), want_q(count()), want_k(count()), want_v(count()),
          scale(1 / sqrtf((float)d)) {
        q.fill(), k.fill(), v.fill(), dout.fill();
        for (int h = 0; h < heads; ++h)
            for (int i = 0; i < rows; ++i) row(h, i);
    }
    size_t count() const { return (size_t)(heads * rows * width); }
    size_t at(int h, int i) const { return (size_t)((i * heads + h) * width); }
    double dot(const Tensor &x, size_t i, const Tensor &y, size_t j) const {
        double sum = 0;
        for (size_t d = 0; d < (size_t)width; ++d) sum += x.get(i + d) * y.get(j + d);
        return sum;
    }
    /* Forward of one query row, then what it adds to the gradients. */
    void row(int h, int i) {
        int keys = causal ? i + 1 : rows;
        size_t qi = at(h, i);
        std::vector<double> p((size_t)keys);
        double most = -INFINITY, sum = 0;
        for (int j = 0; j < keys; ++j) most = fmax(most, p[(size_t)j] = dot(q, qi, k, at(h, j)) * scale);
        for (double &x : p) sum += x = exp(x - most);
        lse.set((size_t)(h * rows + i), most + log(sum));
        for (double &x : p) x /= sum;
        for (size_t d = 0; d < (size_t)width; ++d) {
            double o = 0;
            for (int j = 0; j < keys; ++j) o += p[(size_t)j] * v.get(at(h, j) + d);
            out.set(qi + d, o);
        }
        double delta = dot(out, qi, dout, qi);
        for (int j = 0; j < keys; ++j) {
            size_t kj = at(h, j);
            double ds = p[(size_t)j] * (dot(dout, qi, v, kj) - delta) * scale;
            for (size_t d = 0; d < (size_t)width; ++d) {
                want_v[kj + d] += p[(size_t)j] * dout.get(qi + d);
                want_q[qi + d] += ds * k.get(kj + d);
                want_k[kj + d] += ds * q.get(qi + d);
            }
        }
    }
    static double error(const Tensor &got, const std::vector<double> &want) {
        double difference = 0, size = 0;
        for (size_t i = 0; i < want.size(); ++i) {
            double e = got.get(i) - want[i];
            difference += e * e, size += want[i] * want[i];
        }
        return sqrt(difference / size);
    }
    stw_attn_params params() {
        stw_attn_params p = {};
        auto tensor = [&](Tensor &t) {
            return stw_tensor_param{t.bytes.data(), (int64_t)count(), width, (int64_t)heads * width};
        };
        p.q = tensor(q), p.k = tensor(k), p.v = tensor(v), p.out = tensor(out), p.dout = tensor(dout);
        p.dq = tensor(dq), p.dk = tensor(dk), p.dv = tensor(dv);
        p.lse = {lse.bytes.data(), (int64_t)heads * rows, rows, 1};
        p.batch = p.group = 1, p.heads_q = p.heads_kv = heads;
        p.max_seq_q = p.max_seq_kv = p.total_q = p.total_kv = rows;
        p.scale = scale, p.head_dim_qk = p.head_dim_v = (uint32_t)width;
        p.dtype = p.dq_dtype = p.dk_dtype = p.dv_dtype = (uint32_t)dtype;
        p.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
        p.features = causal ? STW_FEAT_WINDOW_RIGHT : 0;
        return p;
    }
};

static void backward(CodeObject &code, const stw_variant &tile, stw_dtype dtype, int rows, int width, int causal,
                     uint32_t schedule) {
    Problem problem(dtype, rows, width, causal);
    stw_attn_params params = problem.params();
    stw_attn_steps steps;
    stw_attn_steps_of(STW_CALL_BWD, &tile, &params, 64, &steps);
    std::vector<uint8_t> workspace(steps.workspace, 0xff);
    stw_attn_launch argument;
    stw_attn_launch_of(STW_CALL_BWD, &tile, &params, 64, workspace.data(), &argument);
    for (uint32_t i = 0; i < steps.count; ++i) {
        const stw_attn_step &step = steps.step[i];
        argument.work_tiles = step.work_tiles;
        Launch launch;
        launch.kernel = step.entry;
        launch.grid[0] = step.grid_x, launch.grid[1] = step.grid_y, launch.block[0] = step.block;
        launch.dynamic_lds = step.smem;
        launch.arguments.assign((uint8_t *)&argument, (uint8_t *)(&argument + 1));
        for (const Tensor *t : {&problem.q, &problem.k, &problem.v, &problem.out, &problem.dout, &problem.dq,
                                &problem.dk, &problem.dv, &problem.lse})
            launch.memory.push_back(t->region());
        launch.memory.push_back({(uint64_t)workspace.data(), (uint64_t)workspace.data() + workspace.size()});
        launch.threads = 2, launch.races = launch.waits = launch.unset = true, launch.schedule = schedule;
        code.run(launch);
    }
    double limit = dtype == STW_F32 ? 2e-6 : dtype == STW_F16 ? 5e-4 : 4e-3;
    char name[128];
    snprintf(name, sizeof name, "%s S %d D %d%s schedule %u ", tile.id, rows, width, causal ? " causal" : "", schedule);
    report(std::string(name) + "dQ", Problem::error(problem.dq, problem.want_q), limit);
    report(std::string(name) + "dK", Problem::error(problem.dk, problem.want_k), limit);
    report(std::string(name) + "dV", Problem::error(problem.dv, problem.want_v), limit);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    objdump = words[3];
    try {
        products(*load(words[1]));
        std::unique_ptr<CodeObject> code = load(words[2]);
        std::string arch = code->arch(), small = arch + "_32x128_hd64", wide = arch + "_16x32_hd128_f32";
        stw_variant half = {small.c_str(), 64, 32, 128, 1, 4, 0, &stw_attn_loop_split, 0},
                    f32 = {wide.c_str(), 128, 16, 32, 1, 2, 0, &stw_attn_loop_f32, 0};
        for (uint32_t schedule : {0u, 5u}) {
            backward(*code, half, STW_BF16, 77, 64, 1, schedule);
            backward(*code, half, STW_F16, 131, 61, 0, schedule);
            backward(*code, f32, STW_F32, 53, 127, 1, schedule);
        }
    } catch (const std::exception &e) {
        printf("FAILED %s\n", e.what());
        return 1;
    }
    return failures != 0;
}
