/* SPDX-License-Identifier: MIT
 *
 * exp, tanh, rounding and Philox of the tiles, element by element against libm and the shared definitions.
 * Compiled once an instruction set with tile.c inside; ends with 77 where this CPU lacks it. */
#include "backends/cpu/tile.c"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Distance in units of the last place of the exact value (subnormal spacing below 2^-126). */
static double ulps(float got, double exact) {
    if (isinf(got)) return exact > 0x1.ffffffp127 && got > 0 ? 0 : INFINITY;
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1, exponent - 24 > -149 ? exponent - 24 : -149);
}

static void exp_within_0_7_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -110; x < 89.5f; x += 0.000371f) {
        vf y = vf_exp(vf_splat(x));
        double error = ulps(y[LANES - 1], exp((double)x));
        if (error > worst) worst = error;
        if (error > (x > -87 ? 0.7 : 1.0)) fail_msg("exp(%.9g) = %.9g is off by %.3g ulp", x, y[0], error);
    }
    assert_true(worst > 0.3); /* the loop has measured something */
    const float special[] = {-INFINITY, INFINITY, NAN, 0.0f, -0.0f, -1e30f, 1e30f};
    for (size_t n = 0; n < sizeof special / sizeof *special; ++n) {
        float got = vf_exp(vf_splat(special[n]))[0], expected = expf(special[n]);
        assert_true(got == expected || (isnan(got) && isnan(expected)));
    }
}

/* The exp of pointwise derivatives; `fast` is for results of 16 bits. */
static void exp_of_bundles(void **state) {
    (void)state;
    for (int fast = 0; fast < 2; ++fast) {
        double worst = 0, allowed = fast ? 4 : 0.7;
        for (float x = -110; x <= 0; x += 0.000371f) {
            vf y[BUNDLE];
            for (int v = 0; v < BUNDLE; ++v) y[v] = vf_splat(x);
            exps_of_negative(y, BUNDLE, fast);
            double error = ulps(y[BUNDLE - 1][LANES - 1], exp((double)x));
            if (error > worst) worst = error;
            if (error > (x > -87 ? allowed : allowed + 0.3))
                fail_msg("exp(%.9g) = %.9g is off by %.3g ulp", x, y[0][0], error);
        }
        assert_true(worst > 0.3);
        vf special[BUNDLE] = {vf_splat(-INFINITY), vf_splat(NAN)};
        exps_of_negative(special, BUNDLE, fast);
        assert_true(special[0][0] == 0 && isnan(special[1][0]));
    }
}

static void tanh_and_its_slope(void **state) {
    (void)state;
    for (float x = -20; x < 20; x += 0.00037f) {
        vf slope, y = vf_tanh(vf_splat(x), &slope);
        double t = tanh((double)x), c = 1 / cosh((double)x);
        if (ulps(y[0], t) > 1.5) fail_msg("tanh(%.9g) = %.9g, exact %.9g", x, y[0], t);
        if (ulps(slope[0], c * c) > (fabsf(x) < 0.625f ? 1.5 : 4.0))
            fail_msg("slope of tanh(%.9g) = %.9g, exact %.9g", x, slope[0], c * c);
    }
    /* Rows that see one key show the slope's own error: against 1 - tanh^2 in f32, by the rule for RMS, 1.25. */
    double ours = 0, theirs = 0;
    for (float x = 0.01f; x < 0.625f; x += 0.00037f) {
        vf slope;
        vf_tanh(vf_splat(x), &slope);
        double exact = 1 / (cosh((double)x) * cosh((double)x));
        volatile float t = tanhf(x), square = t * t, plain = 1.0f - square;
        ours += pow((slope[0] - exact) / exact, 2);
        theirs += pow((plain - exact) / exact, 2);
    }
    if (sqrt(ours / theirs) > 1.25) fail_msg("RMS of the slope is %.3g times that of 1 - tanhf^2", sqrt(ours / theirs));
    vf slope, tiny = vf_tanh(vf_splat(1e-40f), &slope), nan = vf_tanh(vf_splat(NAN), &slope);
    assert_true(tiny[0] == 1e-40f && isnan(nan[0]));
}

static void conversions_of_all_halves(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; ++h) {
        vh halves = (vh){0} + (uint16_t)h;
        float f16 = vf_from_f16(halves)[0], bf16 = vf_from_bf16(halves)[0];
        assert_true(f16 == stw_f32_from_f16((uint16_t)h) || isnan(f16));
        assert_true(bf16 == stw_f32_from_bf16((uint16_t)h) || isnan(bf16));
        for (uint32_t low = 0; low < 0x10000; low += 0xFFF) { /* ties and both sides of them */
            float x = stw_f32_of_bits(h << 16 | (low & 0xFFFF));
            if (isnan(x)) continue;
            assert_int_equal(vf_to_bf16(vf_splat(x))[0], stw_bf16_from_f32(x));
            assert_int_equal(vf_to_f16(vf_splat(x))[0], stw_f16_from_f32(x));
        }
    }
}

static void dropout_tile_is_the_shared_definition(void **state) {
    (void)state;
    static _Alignas(64) uint32_t keep[23 * 64];
    stw_attn_params p = {.dropout_threshold = 0x60000000u, .dropout_p = 0.375, .dropout_byte = 159};
    for (uint32_t map = 0; map < 3; ++map)
        for (int64_t offset = -5; offset < 6; ++offset) {
            stw_dropout_stream s = {.seed = UINT64_C(0x123456789ABCDEF1), .offset = UINT64_C(0x700000003), .head = 11};
            s.q_offset = offset, s.kv_offset = 3 * offset, s.base = 999, s.row_stride = 77;
            p.dropout_map = map;
            tile_dropout(keep, 64, &p, &s, 5, 9, 23, 61);
            for (int64_t i = 0; i < 23; ++i)
                for (int64_t j = 0; j < 61; ++j)
                    assert_int_equal(keep[i * 64 + j] & 1, stw_dropout_keep(&p, &s, 5 + i, 9 + j));
        }
}

static void transpose_and_products(void **state) {
    (void)state;
    enum { M = 3 * 8, N = 5 * 16, K = 80, P = 96 };
    static _Alignas(64) float a[P * P], at[P * P], b[P * P], c[P * P];
    for (int i = 0; i < P * P; ++i) {
        a[i] = (float)(i * 7 % 23 - 11);
        b[i] = (float)(i * 5 % 19 - 9);
    }
    tile_transpose(at, P, a, P, 64, 48);
    for (int r = 0; r < 64; ++r)
        for (int col = 0; col < 48; ++col) assert_true(at[col * P + r] == a[r * P + col]);
    for (uint32_t n = 1; n <= N; n += 13)
        for (int transposed = 0; transposed < 2; ++transposed) {
            for (int i = 0; i < P * P; ++i) c[i] = 2;
            (transposed ? tile_matmul_at : tile_matmul)(M - 3, n, K, a, P, b, P, c, P, 1);
            for (uint32_t r = 0; r < M - 3; ++r)
                for (uint32_t col = 0; col < n; ++col) {
                    float sum = 2; /* integers: exact */
                    for (uint32_t k = 0; k < K; ++k) sum += a[transposed ? k * P + r : r * P + k] * b[k * P + col];
                    assert_true(c[r * P + col] == sum);
                }
            for (uint32_t col = (n + LANES - 1) / LANES * LANES; col < P; ++col) assert_true(c[col] == 2);
            assert_true(c[M * P] == 2);
        }
}

static int runs_here(void) {
#if defined(VEC_AVX512)
    return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
#elif defined(VEC_AVX2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 1;
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_within_0_7_ulp),        cmocka_unit_test(tanh_and_its_slope),
        cmocka_unit_test(conversions_of_all_halves), cmocka_unit_test(dropout_tile_is_the_shared_definition),
        cmocka_unit_test(transpose_and_products),    cmocka_unit_test(exp_of_bundles),
    };
    if (!runs_here()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
