/* SPDX-License-Identifier: MIT
 *
 * Matrix products (MFMA) of f32, f16 and bf16. With G = 64 / (M * blocks) groups of lanes:
 *
 *     A and B: lane l has row (column) l % M of block l / M % blocks, k = (l / M / blocks) * K/G + its number
 *     result, M = 32: value r of lane l is row 8*(r/4) + 4*(l/32) + r%4, column l % 32
 *             M = 16:                      row 4*(l/16) + r%4
 *             M = 4:                       row r, block l / 4
 *
 * Products are added in the order of k with fused operations; hardware has its own order. */
#include "machine.h"

#include <cmath>

namespace cdna {

enum { TYPE_F32, TYPE_F16, TYPE_BF16 }; /* as decode.cpp writes Instruction::type */

/* One half of every lane's word. */
static void elements(const u32 *words, int shift, int type, bool flush, float *to) {
    if (type == TYPE_F16)
        for (int l = 0; l < LANES; ++l) to[l] = half_to_float(words[l] >> shift);
    else
        for (int l = 0; l < LANES; ++l) to[l] = bf16_to_float(words[l] >> shift & 0xffffu);
    const float least = type == TYPE_F16 ? 6.103515625e-05f : 1.17549435e-38f;
    for (int l = 0; flush && l < LANES; ++l) to[l] = fabsf(to[l]) < least ? 0.0f : to[l];
}

/* Operand `which` as [block][k][row]. */
template <int M, int BLOCKS> static void gather(Wave &w, const Instruction &in, int which, bool flush, float *to) {
    const Operand &o = in.op[which];
    if (o.place != Place::vector) fault(w, in, "operands of a matrix product are vector registers");
    const u32(*v)[LANES] = &w.v[o.index];
    const int groups = LANES / M / BLOCKS, all_k = in.k, per_lane = all_k / groups;
    alignas(64) float x[LANES];
    for (int k = 0; k < per_lane; ++k) {
        if (in.type == TYPE_F32) memcpy(x, v[k], sizeof x);
        else elements(v[k >> 1], 16 * (k & 1), in.type, flush, x);
        for (int part = 0; part < LANES / M; ++part) {
            int block = part % BLOCKS, group = part / BLOCKS;
            memcpy(to + (block * all_k + group * per_lane + k) * M, x + part * M, M * sizeof *x);
        }
    }
}

template <int M, int BLOCKS> static void run_matrix(Wave &w, const Instruction &in) {
    enum { VALUES = M == 32 ? 16 : 4, SPREAD = LANES / M };
    thread_local float a[LANES * 16], b[LANES * 16], sum[32][LANES];
    bool flush = w.run->flushes_subnormals && in.type != TYPE_F32;
    gather<M, BLOCKS>(w, in, 1, flush, a);
    gather<M, BLOCKS>(w, in, 2, flush, b);
    const Operand &c = in.op[3];
    const int all_k = in.k;
    for (int block = 0; block < BLOCKS; ++block)
        for (int r = 0; r < VALUES; ++r)
            for (int part = 0; part < SPREAD; ++part) {
                if (M == 4 && part != block) continue;
                int row = M == 32 ? 8 * (r >> 2) + 4 * part + (r & 3) : M == 16 ? 4 * part + r : r;
                int value = (M == 4 ? 0 : block * VALUES) + r;
                float x[M];
                for (int j = 0; j < M; ++j)
                    x[j] = c.place == Place::vector ? as_float(w.v[c.index + value][part * M + j])
                                                    : as_float(scalar32(w, c));
                for (int k = 0; k < all_k; ++k) {
                    float s = a[(block * all_k + k) * M + row];
                    const float *columns = b + (block * all_k + k) * M;
                    for (int j = 0; j < M; ++j) x[j] = __builtin_fmaf(s, columns[j], x[j]);
                }
                for (int j = 0; j < M; ++j)
                    sum[value][part * M + j] = flush && fabsf(x[j]) < 1.17549435e-38f ? 0.0f : x[j];
            }
    int total = M == 4 ? VALUES : VALUES * BLOCKS;
    for (int r = 0; r < total; ++r) memcpy(w.v[in.op[0].index + r], sum[r], sizeof sum[r]);
}

Handler matrix_handler(int m, int blocks) {
    if (m == 32 && blocks == 1) return run_matrix<32, 1>;
    if (m == 32 && blocks == 2) return run_matrix<32, 2>;
    if (m == 16 && blocks == 1) return run_matrix<16, 1>;
    if (m == 16 && blocks == 4) return run_matrix<16, 4>;
    if (m == 4 && blocks == 16) return run_matrix<4, 16>;
    return run_unknown;
}

} // namespace cdna
