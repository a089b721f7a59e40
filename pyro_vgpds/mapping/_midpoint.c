// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums over N rows and all pairs of M points, and their gradients.
//
//   E[n,m,m'] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q)/2)^2)
//   V[m,m']   = sum_n E[n,m,m']                    (of groups of rows: _groups.h)
//
// Multiplying out the square splits the exponent into
//   alpha_nm + alpha_nm' + sum_q slope_nmq z_m'q,
//   alpha_nm = a_n/2 + sum_q r_nq (z_mq mu_nq - mu_nq^2/2 - z_mq^2/4),   slope_nmq = -r_nq z_mq / 2,
// so that a pair costs Q multiply-adds and one exp. alpha and slope carry a factor log2(e): the exp is an exp2.
//
// Backward, with g symmetric in (m,m'), L = sum_mm' g V and G[n,m,m'] = E[n,m,m'] g[m,m']:
//   h_nm      = sum_m' G[n,m,m'],                k_nmq = sum_m' G[n,m,m'] z_m'q
//   S0        = sum_m h_nm                       (sum of G)
//   S1_q      = sum_m h_nm z_mq                  (sum of G times the midpoint)
//   S2_q      = sum_m z_mq (h_nm z_mq + k_nmq)/2 (sum of G times the squared midpoint)
//   dL/da_n   = S0
//   dL/dmu_nq = 2 r_nq (S1_q - mu_nq S0)
//   dL/dr_nq  = mu_nq (2 S1_q - mu_nq S0) - S2_q
//   dL/dz_mq  = sum_n r_nq ((2 mu_nq - z_mq) h_nm - k_nmq)
//
// Layout: the lanes of a SIMD vector are LANES different rows n. Every quantity above is then lane-wise, and only V and
// dL/dz need a sum over lanes. The forward pass visits pairs of two points m' with one m for ROWS vectors of rows, whose
// sum over rows is one number for a pair; there the exponent is alpha_nm + alpha_nm' + sum_q r_nq (-z_mq z_m'q / 2). The
// backward pass visits blocks of ROWS points m by COLUMNS points m' >= m, as many as the vector registers hold.
//
// The file includes itself once for every instruction set and for both types of numbers in the blocks, double and float:
// the part under #ifdef LANES is compiled each time. With float the exponents of a row, the sums over rows and all that
// is done once for a row and a point are double ("wide"); the error of an exponential is about 1e-6.

#ifdef LANES

// 2^x = 2^(k / 2^STEPS - DOWN) p(f / UNIT), with k the integer nearest to 2^STEPS x and f the rest. The more steps, the
// smaller f, and the lower the degree of p; but 2^(j / 2^STEPS) for 0 <= j < 2^STEPS must fit a register. All exponents
// are in units of UNIT. With UNIT = 4 and DOWN = 2 the highest coefficient of p is 1, which saves a multiplication.
#ifdef SINGLE
typedef float NAME(real);
typedef int32_t NAME(integer);
enum { NAME(degree) = STEPS ? 3 : 6, NAME(mantissa) = 23, NAME(bias) = 127, NAME(parts) = 2 };
#define POINTS(P) (P)->single
#define POLYNOMIAL exp2_single
#define SHORT exp2_short_single
#define UNIT 1
#define DOWN 0
#else
typedef double NAME(real);
typedef int64_t NAME(integer);
enum { NAME(degree) = STEPS ? 7 : DEGREE, NAME(mantissa) = 52, NAME(bias) = 1023, NAME(parts) = 1 };
#define POINTS(P) (P)->z
#define POLYNOMIAL exp2_polynomial
#define SHORT exp2_short
#define UNIT (STEPS ? 4 : 1)
#define DOWN (STEPS ? 2 : 0)
#endif
#define AHEAD (STEPS > 0)  // whether exponents are computed during the exp2 of others, which takes 32 registers
#define PARTS NAME(parts)
#define real NAME(real)
typedef NAME(real) NAME(vec) __attribute__((vector_size(sizeof(NAME(real)) * LANES)));
typedef NAME(integer) NAME(bits) __attribute__((vector_size(sizeof(NAME(real)) * LANES)));
// The lanes of a vector as double, in PARTS vectors of the same size; and a part of a vector of numbers
typedef double NAME(wide) __attribute__((vector_size(sizeof(NAME(vec)))));
typedef int64_t NAME(wide_bits) __attribute__((vector_size(sizeof(NAME(vec)))));
typedef NAME(real) NAME(part) __attribute__((vector_size(sizeof(NAME(vec)) / PARTS), may_alias));
#define vec NAME(vec)
#define bits NAME(bits)
#define wide NAME(wide)
#define all(x) ((x) - (wide){0})
#define widened(x, p) __builtin_convertvector(((const NAME(part) *)&(x))[p], wide)
#define narrow(x, p, value) (((NAME(part) *)&(x))[p] = __builtin_convertvector(value, NAME(part)))

INLINE vec NAME(select)(bits where, vec yes, vec no) { return (vec)((where & (bits)yes) | (~where & (bits)no)); }

// The bits of 2^(k / 2^STEPS), where k has the bias of the exponent: those of its exponent and, if there are steps, those
// that a table adds to the lowest ones of k.
INLINE vec NAME(power)(bits k) {
    const bits high = k << (NAME(mantissa) - STEPS);
#if STEPS && defined(SINGLE)
    return (vec)(high + (bits)_mm512_permutexvar_epi32((__m512i)k, _mm512_load_si512(exp2_steps_single)));
#elif STEPS
    return (vec)(high + (bits)_mm512_permutexvar_epi64((__m512i)k, _mm512_load_si512(exp2_steps)));
#else
    return (vec)high;
#endif
}

// The coefficients of p, if there are steps: whole vectors that are read each time, because the registers have to hold
// the exponents of others, and numbers to broadcast would take time of the multipliers
#if STEPS
static const NAME(real) NAME(coefficients)[NAME(degree) + 1][LANES] __attribute__((aligned(64))) = {SHORT};
#endif

// What the exponents of points j are made of, for ROWS vectors i:
//   own[i] + others[j][i] + sum_q left[q][i] right[j][q],   where all i have the same others[j] if `same`
typedef struct {
    long Q, step;  // step: from right[j] to right[j + 1]
    const vec *own, *others, *left;
    const NAME(real) *right;
    int same;  // constant after inlining
} NAME(exponents);

// y[u][i], the exponents of `columns` points from j on (constant after inlining): without the sum; dimension q of the sum
// is added; or all of it
INLINE void NAME(begin)(const NAME(exponents) *X, long j, int columns, vec *y) {
    each (int e = 0; e < columns * ROWS; e++)
        y[e] = X->own[e % ROWS] + X->others[X->same ? j + e / ROWS : j * ROWS + e];
}
INLINE void NAME(add)(const NAME(exponents) *X, long j, int columns, long q, vec *y) {
    const real *right = X->right + j * X->step + q;
    each (int i = 0; i < ROWS; i++) {
        const vec left = X->left[q * ROWS + i];
        each (int u = 0; u < columns; u++) y[u * ROWS + i] += left * right[u * X->step];
    }
}
INLINE void NAME(compute)(const NAME(exponents) *X, long j, int columns, vec *y) {
    NAME(begin)(X, j, columns, y);
    for (long q = 0; q < X->Q; q++) NAME(add)(X, j, columns, q, y);
}

// x[i] <- 2^x[i] for i < ROWS and |x| < bias - 3; the lowest x = -(bias - DOWN) gives exactly 0, and a NaN passes through
// f. The ROWS chains run in step to hide the latency of the polynomial. Not all of it is multiplications, so the processor
// has time for some of other exponents: if `next` is not null, dimensions u, u + 2 ... up to 2 degree - 2 + u of those of
// the points j and j + 1 are added to y in between.
INLINE void NAME(exp2)(vec *x, const NAME(exponents) *next, long j, long u, vec *y) {
    // Adding 1.5 2^52 (2^23) rounds to an integer in the low mantissa bits; the bias is that of the exponent of 2^k.
    const real shift = (1.5 * (1LL << (NAME(mantissa) - STEPS)) + NAME(bias) - DOWN) / UNIT;
#if STEPS
    const vec *p = (const vec *)NAME(coefficients);
    __asm__ volatile("" : "+r"(p));  // or the compiler would keep them in registers
#else
    const real *p = POLYNOMIAL;
#endif
    vec k[ROWS], f[ROWS], E[ROWS];
#define BETWEEN(place) if (next && u + 2 * (place) < next->Q) NAME(add)(next, j, 2, u + 2 * (place), y)
    each (int i = 0; i < ROWS; i++) k[i] = x[i] + shift;
    BETWEEN(0);
    each (int i = 0; i < ROWS; i++) f[i] = x[i] - (k[i] - shift);
    each (int i = 0; i < ROWS; i++) E[i] = (DOWN ? f[i] : f[i] * p[0]) + p[1];
    each (int d = 2; d <= NAME(degree); d++) {
        BETWEEN(d - 1);
        each (int i = 0; i < ROWS; i++) E[i] = E[i] * f[i] + p[d];
    }
#undef BETWEEN
    each (int i = 0; i < ROWS; i++) x[i] = E[i] * NAME(power)((bits)k[i]);
}

// The same for any x, as a square of 2^(x/2), between limits at which the squares are 0 and inf
INLINE void NAME(exp2_any)(vec *x) {
    const real most = (real)(NAME(bias) + NAME(mantissa) + 10) / UNIT;
    const vec low = splat(-most), high = splat(most);
    each (int i = 0; i < ROWS; i++) {
        const vec least = NAME(select)((bits)(x[i] < low), low, x[i]);
        x[i] = NAME(select)((bits)(least > high), high, least) / 2;
    }
    NAME(exp2)(x, NULL, 0, 0, NULL);
    each (int i = 0; i < ROWS; i++) x[i] *= x[i];
}

// The sum of the lanes, in pairs: one after the other would each wait for the last
INLINE double NAME(lane_sum)(wide x) {
    each (long half = LANES / PARTS / 2; half > 0; half /= 2)
        each (long lane = 0; lane < half; lane++) x[lane] += x[lane + half];
    return x[0];
}

// The rows from n on as lanes, with zeros in the lanes at or past n1
INLINE wide NAME(gather)(const double *x, long n, long n1, long stride) {
    wide out = all(0);
    for (long lane = 0; lane < LANES / PARTS && n + lane < n1; lane++) out[lane] = x[(n + lane) * stride];
    return out;
}

// r, mu (PARTS of Q) and alpha (Mpad vectors, `step` apart) of the rows n .. n+LANES-1; lanes past the end get
// alpha = -inf, hence E = 0. Returns whether an exponent may leave the range of exp2: it is concave in the midpoint, so
// its least value over all pairs is that of a pair (m,m), and it is at most a_n.
NOINLINE int NAME(load_rows)(const problem *P, long n, long n1, wide *r, wide *mu, vec *alpha, long step) {
    const double limit = NAME(bias) - 23;
    const long Q = P->Q;
    int any = 0;
    for (int p = 0; p < PARTS; p++, n += LANES / PARTS, r += Q, mu += Q) {
        wide a = NAME(gather)(P->a, n, n1, 1);
        for (long lane = n1 > n ? n1 - n : 0; lane < LANES / PARTS; lane++) a[lane] = -HUGE_VAL;
        NAME(wide_bits) outside = (NAME(wide_bits))(a * LOG2E > all(limit));
        wide base = a / 2;
        for (long q = 0; q < Q; q++) {
            r[q] = NAME(gather)(P->r + q, n, n1, Q);
            mu[q] = NAME(gather)(P->mu + q, n, n1, Q);
            base -= r[q] * mu[q] * mu[q] / 2;
        }
        for (long m = 0; m < P->Mpad; m++) {
            wide total = base, square = all(0);
            for (long q = 0; q < Q; q++) {
                const double z = P->z[m * (Q + 1) + q];
                const wide rz = r[q] * z;
                total += rz * mu[q];
                square += rz * z;
            }
            total -= square / 4;
            outside |= (NAME(wide_bits))((2 * total - square / 2) * LOG2E < all(-limit));
            narrow(alpha[m * step], p, total * (LOG2E / UNIT));
        }
        for (int lane = 0; lane < LANES / PARTS; lane++) any |= outside[lane] != 0;
    }
    return any;
}

INLINE void NAME(load_slopes)(const problem *P, long m, const wide *r, vec *slope) {
    for (int p = 0; p < PARTS; p++)
        for (long q = 0; q < P->Q; q++) {
            const wide scaled = r[p * P->Q + q] * (-LOG2E / 2 / UNIT);
            for (long i = 0; i < ROWS; i++) narrow(slope[q * ROWS + i], p, scaled * P->z[(m + i) * (P->Q + 1) + q]);
        }
}

// E of the points j0 <= j < j1, by two at a time: with g, out[j - j0][i] = E g[j][i]; without, out[j - j0] += sum_i E.
// `any` is whether an exponent may be outside of the range of exp2; it, and whether there is g, are constants after
// inlining. With AHEAD, exponents are computed during the exp2 of the two points before.
INLINE void NAME(strip)(const NAME(exponents) *X, long j0, long j1, int any, const real *g, vec *out) {
    const int ahead = AHEAD && !any;
    vec x[2 * ROWS], y[2 * ROWS];
    if (ahead) NAME(compute)(X, j0, 2, y);
    for (long j = j0; j < j1; j += 2) {
        if (!ahead) NAME(compute)(X, j, 2, y);
        each (int e = 0; e < 2 * ROWS; e++) x[e] = y[e];
        if (ahead) NAME(begin)(X, j + 2, 2, y);  // the last ones are not used
        each (int u = 0; u < 2; u++) {
            if (any) NAME(exp2_any)(x + u * ROWS);
            else NAME(exp2)(x + u * ROWS, ahead ? X : NULL, j + 2, u, y);
            each (int i = 0; i < ROWS; i++)
                if (g) out[(j - j0 + u) * ROWS + i] = x[u * ROWS + i] * g[(j + u) * ROWS + i];
                else out[j - j0 + u] += x[u * ROWS + i];
        }
        for (long q = 2 * NAME(degree); ahead && q < X->Q; q++) NAME(add)(X, j + 2, 2, q, y);
    }
}

// Adds the product of the symmetric G[n] with [z, 1] to k: a block G[u][i] to the rows m+i and, unless the block is on
// the diagonal, whose points already meet in both orders, its transpose to the rows col+u.
INLINE void NAME(products)(const problem *P, long m, long col, const vec *G, vec *k) {
    const long Q = P->Q, ld = Q + 1;
    const real *zm = POINTS(P) + m * ld, *zc = POINTS(P) + col * ld;
    const int transpose = col >= m + ROWS;
    vec *km = k + m * ld, *kc = k + col * ld;
    for (long q = 0; q < Q; q++) {
        each (int i = 0; i < ROWS; i++) {
            vec total = km[i * ld + q];
            each (int u = 0; u < COLUMNS; u++) total += G[u * ROWS + i] * zc[u * ld + q];
            km[i * ld + q] = total;
        }
        each (int u = 0; transpose && u < COLUMNS; u++) {
            vec total = kc[u * ld + q];
            each (int i = 0; i < ROWS; i++) total += G[u * ROWS + i] * zm[i * ld + q];
            kc[u * ld + q] = total;
        }
    }
    each (int i = 0; i < ROWS; i++)
        each (int u = 0; u < COLUMNS; u++) km[i * ld + Q] += G[u * ROWS + i];
    each (int u = 0; transpose && u < COLUMNS; u++)
        each (int i = 0; i < ROWS; i++) kc[u * ld + Q] += G[u * ROWS + i];
}

// DEPTH times ROWS vectors of rows share the sums of a point m, which amortises the sums over lanes.
TARGET static int NAME(forward)(const problem *P, long n0, long n1, double *V) {
    const long M = P->M, Q = P->Q, Mpad = P->Mpad, block = ROWS * LANES, size = ROWS * Mpad;
    const long vectors = 2 * PARTS * Q + DEPTH * (size + ROWS * Q) + Mpad + 2 * ROWS, products_size = (Mpad + 2) * Q;
    vec *work = allocate(sizeof(vec) * vectors + sizeof(real) * products_size);
    if (!work) return 1;
    wide *one = (wide *)work, *mu = one + PARTS * Q;
    vec *alpha = (vec *)(mu + PARTS * Q), *r = alpha + DEPTH * size, *sums = r + DEPTH * ROWS * Q;
    real *products = (real *)(sums + Mpad + 2 * ROWS);
    int clamp[DEPTH];
    for (long n = n0; n < n1; n += DEPTH * block) {
        const long depth = min(DEPTH, (n1 - n + block - 1) / block);
        for (long d = 0; d < depth; d++) {
            clamp[d] = 0;
            for (long i = 0; i < ROWS; i++) {
                clamp[d] |= NAME(load_rows)(P, n + d * block + i * LANES, n1, one, mu, alpha + d * size + i, ROWS);
                for (long e = 0; e < PARTS * Q; e++) narrow(r[(d * Q + e % Q) * ROWS + i], e / Q, one[e]);
            }
        }
        for (long m = 0; m < M; m++) {
            const long first = m / 2 * 2;
            for (long j = first; j < Mpad; j++) {
                sums[j] = splat(0);
                for (long q = 0; q < Q; q++)
                    products[j * Q + q] = (real)(P->z[m * (Q + 1) + q] * P->z[j * (Q + 1) + q] * (-LOG2E / 2 / UNIT));
            }
            for (long d = 0; d < depth; d++) {
                const vec *others = alpha + d * size;
                const NAME(exponents) X = {Q, Q, others + m * ROWS, others, r + d * ROWS * Q, products, 0};
                if (clamp[d]) NAME(strip)(&X, first, Mpad, 1, NULL, sums + first);
                else NAME(strip)(&X, first, Mpad, 0, NULL, sums + first);
            }
            for (long j = m; j < M; j++)
                for (int p = 0; p < PARTS; p++) V[m * M + j] += NAME(lane_sum)(widened(sums[j], p));
        }
    }
    for (long m = 0; m < M; m++)
        for (long j = 0; j < m; j++) V[m * M + j] = V[j * M + m];
    free(work);
    return 0;
}

// E of ROWS points by COLUMNS points from col on, in registers if there are 32 of them. `any`: as in strip
INLINE void NAME(powers)(const NAME(exponents) *X, long col, int any, vec *E) {
    NAME(compute)(X, col, COLUMNS, E);
    each (int u = 0; u < COLUMNS; u++) {
        if (any) NAME(exp2_any)(E + u * ROWS);
        else NAME(exp2)(E + u * ROWS, NULL, 0, 0, NULL);
    }
}

// G of the rows m .. m+ROWS-1 and its products. A block stays in the registers, if there are 32 of them; otherwise strips
// of WIDTH points, which go through memory, are faster. `any`: as in strip
INLINE void NAME(add_products)(const problem *P, long m, int any, const vec *alpha, const vec *slope, const real *g,
                               vec *k) {
    const NAME(exponents) X = {P->Q, P->Q + 1, alpha + m, alpha, slope, POINTS(P), 1};
    vec G[ROWS * COLUMNS], strip[ROWS * WIDTH];
    for (long col = m; AHEAD && col < P->Mpad; col += COLUMNS) {
        NAME(powers)(&X, col, any, G);
        each (int e = 0; e < ROWS * COLUMNS; e++) G[e] *= g[col * ROWS + e];
        NAME(products)(P, m, col, G, k);
    }
    for (long j0 = m; !AHEAD && j0 < P->Mpad; j0 += WIDTH) {
        const long j1 = min(j0 + WIDTH, P->Mpad);
        NAME(strip)(&X, j0, j1, any, g, strip);
        for (long col = j0; col < j1; col += COLUMNS) {
            each (int e = 0; e < ROWS * COLUMNS; e++) G[e] = strip[(col - j0) * ROWS + e];
            NAME(products)(P, m, col, G, k);
        }
    }
}

// The gradients of a vector of rows from the products of their G, and their share of dz (M, Q)
INLINE void NAME(row_gradients)(const problem *P, long n, long n1, const wide *r, const wide *mu, const vec *k,
                                double *grad_a, double *grad_r, double *grad_mu, wide *dz) {
    const long M = P->M, Q = P->Q, ld = Q + 1;
    for (int p = 0; p < PARTS; p++) {
        const long first = n + p * (LANES / PARTS), count = min(LANES / PARTS, n1 - first);
        wide S0 = all(0);
        for (long m = 0; m < M; m++) S0 += widened(k[m * ld + Q], p);
        for (long lane = 0; lane < count; lane++) grad_a[first + lane] = S0[lane];
        for (long q = 0; q < Q; q++) {
            const wide rq = r[p * Q + q], muq = mu[p * Q + q];
            wide S1 = all(0), S2 = all(0);
            for (long m = 0; m < M; m++) {
                const double z = P->z[m * ld + q];
                const wide h = widened(k[m * ld + Q], p), both = h * z + widened(k[m * ld + q], p);
                S1 += h * z;
                S2 += both * z;
                dz[m * Q + q] += rq * (2 * muq * h - both);
            }
            const wide dmu = 2 * rq * (S1 - muq * S0), dr = muq * (2 * S1 - muq * S0) - S2 / 2;
            for (long lane = 0; lane < count; lane++) {
                grad_mu[(first + lane) * Q + q] = dmu[lane];
                grad_r[(first + lane) * Q + q] = dr[lane];
            }
        }
    }
}

TARGET static int NAME(backward)(const problem *P, long n0, long n1, const void *packed, double *grad_a,
                                 double *grad_r, double *grad_mu, double *grad_z) {
    const long M = P->M, Q = P->Q, ld = Q + 1, Mpad = P->Mpad;
    const real *g = packed;
    vec *work = allocate(sizeof(vec) * (2 * PARTS * Q + M * Q + Mpad + ROWS * Q + Mpad * ld));
    if (!work) return 1;
    wide *r = (wide *)work, *mu = r + PARTS * Q, *dz = mu + PARTS * Q;
    vec *alpha = (vec *)(dz + M * Q), *slope = alpha + Mpad, *k = slope + ROWS * Q;
    for (long e = 0; e < M * Q; e++) dz[e] = all(0);
    for (long n = n0; n < n1; n += LANES) {
        const int clamp = NAME(load_rows)(P, n, n1, r, mu, alpha, 1);
        for (long e = 0; e < Mpad * ld; e++) k[e] = splat(0);  // column Q of k is h
        for (long m = 0; m < Mpad; m += ROWS) {
            NAME(load_slopes)(P, m, r, slope);
            if (clamp) NAME(add_products)(P, m, 1, alpha, slope, g + m * Mpad, k);
            else NAME(add_products)(P, m, 0, alpha, slope, g + m * Mpad, k);
        }
        NAME(row_gradients)(P, n, n1, r, mu, k, grad_a, grad_r, grad_mu, dz);
    }
    for (long e = 0; e < M * Q; e++) grad_z[e] = NAME(lane_sum)(dz[e]);
    free(work);
    return 0;
}

#ifndef SINGLE
#include "_groups.h"
#include "_psi1.h"
#endif

#undef vec
#undef bits
#undef wide
#undef real
#undef PARTS
#undef all
#undef widened
#undef narrow
#undef POINTS
#undef POLYNOMIAL
#undef SHORT
#undef LANES
#undef COLUMNS
#undef STEPS
#undef AHEAD
#undef UNIT
#undef DOWN
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

// A loop over a block, of which the compiler must unroll all for the block to be in registers
#define each _Pragma("GCC unroll 16") for

enum { ROWS = 4, DEPTH = 8, WIDTH = 32 };
#include "_panels.h"


// The polynomial for float (relative error 2e-8), that for |f| <= 1/16 in units of 4 (3e-18), and that of float for
// |f| <= 1/32 (3e-9)
__attribute__((visibility("hidden"))) float exp2_single[7] = {
    0x1.41fbbcp-13f, 0x1.5f3e54p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e430p-1f, 1.0f};
#define lanes(x) {[0 ... LANES - 1] = x}
#define exp2_short                                                                                            \
    lanes(1.0), lanes(0x1.430e9eac9eb7cp+1), lanes(0x1.5d87fdd9e8ee2p+2), lanes(0x1.3b2ab6edc595fp+3),         \
    lanes(0x1.c6b08d704c4d6p+3), lanes(0x1.ebfbdff82c855p+3), lanes(0x1.62e42fefa39efp+3), lanes(4.0)
#define exp2_short_single lanes(0x1.c6b29ap-5f), lanes(0x1.ebff92p-3f), lanes(0x1.62e430p-1f), lanes(1.0f)

// Row j < 2^STEPS: the mantissa of 2^(j / 2^STEPS), less that of 1 + j / 2^STEPS, which the lowest bits of k give
__attribute__((aligned(64))) static const uint64_t exp2_steps[8] = {
    0x0000000000000000, 0xffff72b83c7d517b, 0xffff06fe0a31b715, 0xfffebfdad5362a27,
    0xfffea09e667f3bcd, 0xfffeace5422aa0db, 0xfffee89f995ad3ad, 0xffff5818dcfba487};
__attribute__((aligned(64))) static const uint32_t exp2_steps_single[16] = {
    0x00000000, 0xfffdaac3, 0xfffb95c2, 0xfff9c3d3, 0xfff837f0, 0xfff6f532, 0xfff5fed7, 0xfff5583f,
    0xfff504f3, 0xfff508a4, 0xfff5672a, 0xfff6248c, 0xfff744fd, 0xfff8ccdf, 0xfffac0c7, 0xfffd257d};

// sum_q log(1 + w_q s_q) and sum_q log(1 + 2 w_q s_q): logarithms of products, as long as these have no overflow
static void log_spreads(long Q, const double *s, const double *w, double *narrow, double *wide) {
    const double most = 0x1p250;
    double one = 1, other = 1;
    for (long q = 0; q < Q; q++) {
        const double ws = w[q] * s[q];
        if (!(ws < most)) {
            *narrow += log(1 + ws);
            *wide += log(1 + 2 * ws);
            continue;
        }
        one *= 1 + ws;
        other *= 1 + 2 * ws;
        if (other > most) {
            *narrow += log(one);
            *wide += log(other);
            one = other = 1;
        }
    }
    *narrow += log(one);
    *wide += log(other);
}

// What Psi1 depends on: means and variances (N,Q), points z (M,Q), weights (Q). R is the number of columns of Y; of row n
// only the first used[n] differ from zero, if used is not null
typedef struct {
    long N, M, Q, R;
    const double *mu, *s, *z, *w;
    double scale;
    const long *used;
} points;

// The number of columns of Y that differ from zero in some of the rows
static long used_columns(const points *P, long n, long count) {
    if (!P->used) return P->R;
    long used = 0;
    for (long i = n; i < n + count; i++)
        if (P->used[i] > used) used = P->used[i];
    return used;
}

typedef struct {
    long N, M, Mpad, Q;  // Mpad: M rounded up to a multiple of ROWS
    const double *a, *r, *mu;
    double *z;      // (Mpad, Q + 1): the points, the last one repeated as padding, and a column of ones
    float *single;  // the same
} problem;

#include "_groups.h"

#ifdef WITH_AVX
#define TARGET FOR_AVX512
#define NAME(x) x##_avx512
#define LANES 8
#define COLUMNS 4
#define STEPS 3
#include "_midpoint.c"
#define SINGLE
#define TARGET FOR_AVX512
#define NAME(x) x##_single_avx512
#define LANES 16
#define COLUMNS 4
#define STEPS 4
#include "_midpoint.c"
#undef SINGLE
#define TARGET FOR_AVX2
#define NAME(x) x##_avx2
#define LANES 4
#define COLUMNS 2
#define STEPS 0
#include "_midpoint.c"
#define SINGLE
#define TARGET FOR_AVX2
#define NAME(x) x##_single_avx2
#define LANES 8
#define COLUMNS 2
#define STEPS 0
#include "_midpoint.c"
#undef SINGLE
#endif
#ifndef MIDPOINT_LANES  // -DMIDPOINT_LANES=n builds the generic code alone, with n lanes
#define MIDPOINT_LANES 2
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES MIDPOINT_LANES
#define COLUMNS 2
#define STEPS 0
#include "_midpoint.c"
#define SINGLE
#define TARGET
#define NAME(x) x##_single_generic
#define LANES (2 * MIDPOINT_LANES)
#define COLUMNS 2
#define STEPS 0
#include "_midpoint.c"
#undef SINGLE

static problem setup(long N, long M, long Q, const double *a, const double *r, const double *mu, const double *z) {
    const long Mpad = rounded(M, ROWS), count = Mpad * (Q + 1);
    double *points = malloc(count * (sizeof(double) + sizeof(float)));
    problem P = {N, M, Mpad, Q, a, r, mu, points, (float *)(points + count)};
    for (long m = 0; points && m < Mpad; m++) {
        memcpy(points + m * (Q + 1), z + min(m, M - 1) * Q, Q * sizeof(double));
        points[m * (Q + 1) + Q] = 1;
    }
    for (long e = 0; points && e < count; e++) P.single[e] = (float)points[e];
    return P;
}

// Rows n0 <= n < n1 only. V (M,M) is overwritten. `single`: with float. Returns nonzero if memory ran out.
int midpoint_forward(long single, long N, long M, long Q, const double *a, const double *r, const double *mu,
                     const double *z, long n0, long n1, double *V) {
    const problem P = setup(N, M, Q, a, r, mu, z);
    memset(V, 0, M * M * sizeof(double));
    const int status = !P.z     ? 1
                       : single ? DISPATCH(forward_single, &P, n0, n1, V)
                                : DISPATCH(forward, &P, n0, n1, V);
    free(P.z);
    return status;
}

// Rows n0 <= n < n1 only: writes those rows of grad_a, grad_r and grad_mu, and their share of grad_z (M,Q).
int midpoint_backward(long single, long N, long M, long Q, const double *a, const double *r, const double *mu,
                      const double *z, long n0, long n1, const double *g, double *grad_a, double *grad_r,
                      double *grad_mu, double *grad_z) {
    const problem P = setup(N, M, Q, a, r, mu, z);
    const long Mpad = P.Mpad;
    // The symmetric part of g in the order of the panels, [m / ROWS][m'][m % ROWS], with zeros as padding
    double *packed = calloc(Mpad * Mpad, sizeof(double));
    for (long m = 0; packed && m < M; m++)
        for (long j = 0; j < M; j++) {
            const long place = m / ROWS * ROWS * Mpad + j * ROWS + m % ROWS;
            const double value = (g[m * M + j] + g[j * M + m]) / 2;
            if (single) ((float *)packed)[place] = (float)value;
            else packed[place] = value;
        }
    const int status = !P.z || !packed ? 1
                       : single        ? DISPATCH(backward_single, &P, n0, n1, packed, grad_a, grad_r, grad_mu, grad_z)
                                       : DISPATCH(backward, &P, n0, n1, packed, grad_a, grad_r, grad_mu, grad_z);
    free(P.z);
    free(packed);
    return status;
}

// The same for groups of rows. V (C,S), panels (_panels.h), times decay (M,M), symmetric, if that is not null, is
// overwritten. `in_blocks`: V is as `packed` of grouped_pack, whose numbers after those of all groups are not written.
int grouped_forward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                    const double *z, const double *mask, long n0, long n1, const double *decay, long in_blocks,
                    double *V) {
    const problem P = setup(N, M, Q, a, r, mu, z);
    groups S;
    double *factor = make_decay(M, decay, 1);
    const int failed = find_groups(&S, N, C, mask) || !P.z || !factor;
    const int status = failed ? 1 : DISPATCH(forward_groups, &P, mask, &S, n0, n1, factor, in_blocks, V);
    free(P.z);
    free(S.full);
    free(factor);
    return status;
}

// What grouped_backward needs of g (C,S), panels: packed (floor((M/4 + 1)^2 / 4), C + 1, 32), with M/4 rounded up, of
// sum g V decay with decay (M,M), symmetric, or 1 if it is null. Half of it in the squares at the diagonal, because
// grouped_backward adds each pair to both of its points. If V (C,S), panels, is not null, W (S) = sum_c g V.
int grouped_pack(long N, long M, long C, const double *mask, const double *g, const double *decay, const double *V,
                 double *packed, double *W) {
    groups S;
    double *factor = make_decay(M, decay, 0.5);
    const int failed = find_groups(&S, N, C, mask) || !factor;
    if (!failed) DISPATCH(pack_groups, rounded(M, ROWS), &S, g, factor, V, packed, W);
    free(S.full);
    free(factor);
    return failed;
}

// As midpoint_backward
int grouped_backward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                     const double *z, const double *mask, long n0, long n1, const double *packed, double *grad_a,
                     double *grad_r, double *grad_mu, double *grad_z) {
    const problem P = setup(N, M, Q, a, r, mu, z);
    groups S;
    const int failed = find_groups(&S, N, C, mask) || !P.z;
    const int status =
        failed ? 1 : DISPATCH(backward_groups, &P, mask, &S, n0, n1, packed, grad_a, grad_r, grad_mu, grad_z);
    free(P.z);
    free(S.full);
    return status;
}

// The panels (C,S) of the symmetric parts of matrices (C,M,M)
int panels_of(long C, long M, const double *matrices, double *panels) {
    for (long c = 0; c < C; c++) to_panels(M, matrices + c * M * M, panels + c * panels_size(M));
    return 0;
}

// The symmetric matrices (C,M,M) of panels (C,S)
int panels_matrices(long C, long M, const double *panels, double *matrices) {
    for (long c = 0; c < C; c++) to_matrix(M, panels + c * panels_size(M), matrices + c * M * M);
    return 0;
}

// Rows n0 <= n < n1 only: those of a (N), rho (N,Q) and, if it is not null, psi1 (M,N); and their share of first (M,R),
// the product of Psi1 with y (N,R), of which only the first used (N) columns of each row are read; used may be null, and R 0.
int rows_forward(long N, long M, long Q, long R, const double *mu, const double *s, const double *z, const double *w,
                 const double *y, const long *used, double scale, long n0, long n1, double *a, double *rho, double *psi1,
                 double *first) {
    const points P = {N, M, Q, R, mu, s, z, w, scale, used};
    return DISPATCH(rows_forward, &P, y, n0, n1, a, rho, psi1, first);
}

// Rows n0 <= n < n1 only: those of grad_mean and grad_s (N,Q), and their share of the gradients in z (M,Q), in w (Q) and
// in log scale, one after the other in `sums`. With R = 0, grad is that in psi1 (M,N); otherwise it is that in the
// product with y, (M,R), and psi1 is not read.
int rows_backward(long N, long M, long Q, long R, const double *mu, const double *s, const double *z, const double *w,
                  const double *y, const long *used, double scale, const double *psi1, const double *grad,
                  const double *da, const double *drho, const double *dmu, long n0, long n1, double *grad_mean,
                  double *grad_s, double *sums) {
    const points P = {N, M, Q, R, mu, s, z, w, scale, used};
    return DISPATCH(rows_backward, &P, y, psi1, grad, da, drho, dmu, n0, n1, grad_mean, grad_s, sums);
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_midpoint", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__midpoint(void) { return PyModule_Create(&definition); }
#endif

#endif
