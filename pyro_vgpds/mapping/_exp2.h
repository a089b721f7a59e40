// SPDX-License-Identifier: Apache-2.0
//
// Exponentials of pairs of points, in vectors: _grouped.c and _weighted.c include this file for every instruction set.

typedef double NAME(vec) __attribute__((vector_size(8 * LANES), aligned(8)));
typedef int64_t NAME(bits) __attribute__((vector_size(8 * LANES), aligned(8)));
#define vec NAME(vec)
#define bits NAME(bits)

INLINE vec NAME(load)(const double *x) { return *(const vec *)x; }
INLINE void NAME(store)(double *x, vec value) { *(vec *)x = value; }
INLINE vec NAME(select)(bits where, vec yes, vec no) { return (vec)((where & (bits)yes) | (~where & (bits)no)); }
#define load NAME(load)
#define store NAME(store)

// alpha of a row, with its a, r (Q,) and mu (Q,), for the `size` points of zt (Q, size). Returns whether an exponent may
// leave the range of exp2: it is concave in the midpoint, so its least value over all pairs is that of a pair (m,m), and it
// is at most a.
NOINLINE int NAME(load_row)(double a, const double *r, const double *mu, long Q, const double *zt, long size,
                            double *alpha) {
    double base = a / 2;
    for (long q = 0; q < Q; q++) base -= r[q] * mu[q] * mu[q] / 2;
    vec low = splat(0);
    for (long m = 0; m < size; m += LANES) {
        vec total = splat(base), square = splat(0);
        for (long q = 0; q < Q; q++) {
            const vec z = load(zt + q * size + m);
            total += r[q] * z * (mu[q] - z / 4);
            square += r[q] * z * z;
        }
        const vec exponent = (2 * total - square / 2) * LOG2E;
        low = NAME(select)((bits)(exponent < low), exponent, low);
        store(alpha + m, total * LOG2E);
    }
    int outside = !(a * LOG2E <= 1000.0);
    for (int lane = 0; lane < LANES; lane++) outside |= !(low[lane] >= -1000.0);
    return outside;
}

// x[e] within the range of exp2_chains
INLINE void NAME(clamp_all)(double *x, long count) {
    for (long e = 0; e < count; e += LANES) {
        const vec low = splat(-1023.0), high = splat(1024.0);
        vec y = load(x + e);
        y = NAME(select)((bits)(y < low), low, y);
        store(x + e, NAME(select)((bits)(y > high), high, y));
    }
}

// to[e] = 2^x[e] for CHAINS vectors, which run in step to hide the latency of the polynomial p. With k = round(x) and
// f = x - k, 2^x = 2^k p(f) for -1023 <= x <= 1024, whose ends give exactly 0 and inf; a NaN passes through f. Callers are
// not inlined: p may then alias x, which makes the compiler broadcast each coefficient once for all chains (hoisted out of
// the caller's loop they would not fit the registers).
INLINE void NAME(exp2_chains)(const double *x, const double *p, double *to) {
    // Adding 1.5 2^52 rounds to an integer in the low mantissa bits; 1023 is the exponent bias of 2^k.
    const double shift = 0x1.8p52 + 1023;
    vec k[CHAINS], f[CHAINS], E[CHAINS];
    for (int i = 0; i < CHAINS; i++) {
        const vec y = load(x + i * LANES);
        k[i] = y + shift;
        f[i] = y - (k[i] - shift);
        E[i] = f[i] * p[0] + p[1];
    }
    for (int d = 2; d <= DEGREE; d++)
        for (int i = 0; i < CHAINS; i++) E[i] = E[i] * f[i] + p[d];
    for (int i = 0; i < CHAINS; i++) store(to + i * LANES, E[i] * (vec)((bits)k[i] << 52));
}
