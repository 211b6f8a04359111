/* SPDX-License-Identifier: MIT
 *
 * The kernels' functions of common/device/device.h against long double: tanh and its derivative, which softcaps and
 * gelu use, in ulps of the result. The bounds are what the formulas allow: tanh is a polynomial, whose last sum counts,
 * or 1 - q, with q a quotient of three roundings; 1 - tanh^2 near 0 has one rounding of its own, q (2 - q) two and
 * those of q. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include <cstdio>
#include <initializer_list>

struct worst {
    const char *name;
    double allowed, ulps, at;
    void see(float got, long double exact, float x) {
        const int exponent = ilogbl(exact) < -126 ? -126 : ilogbl(exact);
        const double error = (double)(fabsl((long double)got - exact) / ldexpl(1.0L, exponent - 23));
        if (!(error <= ulps)) {
            ulps = error;
            at = x;
        }
    }
};

int main() {
    worst value = {"tanh", 2, 0, 0}, near = {"1 - tanh^2 to 0.625", 1.5, 0, 0},
          far = {"1 - tanh^2 from 0.625", 4, 0, 0};
    int bad = 0;
    for (uint32_t bits = 0x2F800000u; bits < 0x41000000u; bits += 97) /* 2^-32 to 8 */
        for (int sign = 0; sign < 2; ++sign) {
            const float x = __uint_as_float(bits | (uint32_t)sign << 31);
            float slope;
            const float t = dev_tanh(x, &slope);
            const long double exact = tanhl(x), c = coshl(x);
            value.see(t, exact, x);
            (fabsf(x) < 0.625f ? near : far).see(slope, 1.0L / (c * c), x);
        }
    for (const worst *w : {&value, &near, &far}) {
        printf("%s: %.2f ulps at %g, allowed %.1f\n", w->name, w->ulps, w->at, w->allowed);
        bad += !(w->ulps <= w->allowed);
    }
    return bad != 0;
}
