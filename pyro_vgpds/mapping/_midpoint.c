// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums over N rows and all pairs of M points, and their gradients.
//
//   E[n,m,m'] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q)/2)^2)
//   V[m,m']   = sum_n E[n,m,m']                    (of groups of rows: _grouped.c)
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
// dL/dz need a sum over lanes. Pairs are visited in panels of ROWS points m by up to COLS points m' >= m, which stay in
// the L1 cache through three short loops (exponents, exp2, sums), each sized for 16 vector registers.
//
// The file includes itself once for every instruction set and for both types of numbers in the panels, double and float:
// the part under #ifdef LANES is compiled each time. With float the exponents of a row, the sums over rows and all that
// is done once for a row and a point are double ("wide"); the error of an exponential is about 1e-6.

#ifdef LANES

#ifdef SINGLE
typedef float NAME(real);
typedef int32_t NAME(integer);
enum { NAME(degree) = 6, NAME(mantissa) = 23, NAME(bias) = 127, NAME(parts) = 2 };
#define POINTS(P) (P)->single
#define POLYNOMIAL exp2_single
#else
typedef double NAME(real);
typedef int64_t NAME(integer);
enum { NAME(degree) = DEGREE, NAME(mantissa) = 52, NAME(bias) = 1023, NAME(parts) = 1 };
#define POINTS(P) (P)->z
#define POLYNOMIAL exp2_polynomial
#endif
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

// tile[j][i] <- 2^tile[j][i] times g[j][i] if g is given, otherwise sums[j][i] += 2^tile[j][i]. With k = round(x) and
// f = x - k, 2^x = 2^k p(f) for -bias <= x <= bias + 1, whose ends give exactly 0 and inf; a NaN passes through f. ROWS
// chains run in step to hide the latency of the polynomial.
INLINE void NAME(exp2)(vec *tile, long cols, const real *p, const real *g, vec *sums) {
    // Adding 1.5 2^52 (2^23) rounds to an integer in the low mantissa bits; the bias is that of the exponent of 2^k.
    const real shift = 1.5 * (1LL << NAME(mantissa)) + NAME(bias);
    for (long j = 0; j < cols; j++) {
        vec k[ROWS], f[ROWS], E[ROWS];
        for (int i = 0; i < ROWS; i++) {
            k[i] = tile[j * ROWS + i] + shift;
            f[i] = tile[j * ROWS + i] - (k[i] - shift);
            E[i] = f[i] * p[0] + p[1];
        }
        for (int d = 2; d <= NAME(degree); d++)
            for (int i = 0; i < ROWS; i++) E[i] = E[i] * f[i] + p[d];
        for (int i = 0; i < ROWS; i++) {
            E[i] *= (vec)((bits)k[i] << NAME(mantissa));
            if (g) tile[j * ROWS + i] = E[i] * g[j * ROWS + i];
            else sums[j * ROWS + i] += E[i];
        }
    }
}

// Not inlined: p may then alias the outputs, which makes the compiler broadcast each coefficient once for ROWS chains
// (hoisted out of the loop they would not fit the registers and come back as one load for each multiply-add).
NOINLINE void NAME(exp2_times)(vec *tile, long cols, const real *p, const real *g) {
    NAME(exp2)(tile, cols, p, g, NULL);
}
NOINLINE void NAME(exp2_add)(vec *tile, long cols, const real *p, vec *sums) {
    NAME(exp2)(tile, cols, p, NULL, sums);
}

INLINE double NAME(lane_sum)(wide x) {
    double total = 0;
    for (int lane = 0; lane < LANES / PARTS; lane++) total += x[lane];
    return total;
}

// The rows from n on as lanes, with zeros in the lanes at or past n1
INLINE wide NAME(gather)(const double *x, long n, long n1, long stride) {
    wide out = all(0);
    for (long lane = 0; lane < LANES / PARTS && n + lane < n1; lane++) out[lane] = x[(n + lane) * stride];
    return out;
}

// r, mu (PARTS of Q) and alpha of the rows n .. n+LANES-1; lanes past the end get alpha = -inf, hence E = 0. Returns
// whether an exponent may leave the range of exp2: it is concave in the midpoint, so its least value over all pairs is
// that of a pair (m,m), and it is at most a_n.
NOINLINE int NAME(load_rows)(const problem *P, long n, long n1, wide *r, wide *mu, vec *alpha) {
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
        for (long m = 0; m < P->Mpad + SLACK; m++) {
            wide total = base, square = all(0);
            for (long q = 0; q < Q; q++) {
                const double z = P->z[m * (Q + 1) + q];
                const wide rz = r[q] * z;
                total += rz * mu[q];
                square += rz * z;
            }
            total -= square / 4;
            outside |= (NAME(wide_bits))((2 * total - square / 2) * LOG2E < all(-limit));
            narrow(alpha[m], p, total * LOG2E);
        }
        for (int lane = 0; lane < LANES / PARTS; lane++) any |= outside[lane] != 0;
    }
    return any;
}

INLINE void NAME(load_slopes)(const problem *P, long m, const wide *r, vec *slope) {
    for (int p = 0; p < PARTS; p++)
        for (long q = 0; q < P->Q; q++)
            for (long i = 0; i < ROWS; i++)
                narrow(slope[q * ROWS + i], p, r[p * P->Q + q] * (-LOG2E / 2 * P->z[(m + i) * (P->Q + 1) + q]));
}

// tile[j][i] = log2 E[n, m+i, col+j] for i < ROWS and j < cols, in steps of 3 columns (up to SLACK columns too many)
INLINE void NAME(exponents)(const problem *P, long m, long col, long cols, int clamp, const vec *alpha,
                            const vec *slope, vec *tile) {
    const long ld = P->Q + 1;
    for (long j = 0; j < cols; j += 3) {
        const real *z = POINTS(P) + (col + j) * ld;
        vec t[3 * ROWS];
        for (int u = 0; u < 3; u++)
            for (int i = 0; i < ROWS; i++) t[u * ROWS + i] = alpha[m + i] + alpha[col + j + u];
        for (long q = 0; q < P->Q; q++)
            for (int i = 0; i < ROWS; i++) {
                const vec s = slope[q * ROWS + i];
                t[i] += s * z[q];
                t[ROWS + i] += s * z[ld + q];
                t[2 * ROWS + i] += s * z[2 * ld + q];
            }
        for (int i = 0; i < 3 * ROWS; i++) tile[j * ROWS + i] = t[i];
    }
    if (clamp)
        for (long e = 0; e < cols * ROWS; e++) {
            const vec low = splat(-(real)NAME(bias)), high = splat((real)(NAME(bias) + 1));
            const vec x = NAME(select)((bits)(tile[e] < low), low, tile[e]);
            tile[e] = NAME(select)((bits)(x > high), high, x);
        }
}

// Columns q .. q+width-1 of the product of the symmetric G[n] with [z, 1]: rows m+i of k collect the panel, and rows
// col+j, j >= skip, its transpose. `width` is a constant after inlining, so that the sums are in registers.
INLINE void NAME(products)(const problem *P, long m, long col, long cols, long skip, const vec *G, long q, int width,
                           vec *k) {
    const long ld = P->Q + 1;
    const real *z = POINTS(P) + q;
    vec zm[ROWS * 3], total[ROWS * 3];
    k += q;
    for (int i = 0; i < ROWS; i++)
        for (int w = 0; w < width; w++) total[i * width + w] = k[(m + i) * ld + w];
    for (long j = 0; j < cols; j++)
        for (int w = 0; w < width; w++)
            for (int i = 0; i < ROWS; i++) total[i * width + w] += G[j * ROWS + i] * z[(col + j) * ld + w];
    for (int i = 0; i < ROWS; i++)
        for (int w = 0; w < width; w++) {
            k[(m + i) * ld + w] = total[i * width + w];
            zm[i * width + w] = splat(z[(m + i) * ld + w]);
        }
    for (long j = skip; j < cols; j++) {
        for (int w = 0; w < width; w++) total[w] = k[(col + j) * ld + w];
        for (int i = 0; i < ROWS; i++) {
            const vec Gi = G[j * ROWS + i];
            for (int w = 0; w < width; w++) total[w] += Gi * zm[i * width + w];
        }
        for (int w = 0; w < width; w++) k[(col + j) * ld + w] = total[w];
    }
}

TARGET static int NAME(forward)(const problem *P, long n0, long n1, double *V) {
    const long M = P->M, Q = P->Q, Malpha = P->Mpad + SLACK;
    vec *work = allocate(sizeof(vec) * ((DEPTH + 1) * PARTS * Q + DEPTH * Malpha + ROWS * Q + 2 * PANEL));
    if (!work) return 1;
    wide *r = (wide *)work, *mu = r + DEPTH * PARTS * Q;
    vec *alpha = (vec *)(mu + PARTS * Q), *slope = alpha + DEPTH * Malpha, *tile = slope + ROWS * Q, *sums = tile + PANEL;
    int clamp[DEPTH];
    // DEPTH vectors of rows share a panel of sums, which amortises the sums over lanes.
    for (long n = n0; n < n1; n += DEPTH * LANES) {
        const long depth = min(DEPTH, (n1 - n + LANES - 1) / LANES);
        for (long d = 0; d < depth; d++)
            clamp[d] = NAME(load_rows)(P, n + d * LANES, n1, r + d * PARTS * Q, mu, alpha + d * Malpha);
        for (long m = 0; m < P->Mpad; m += ROWS)
            for (long col = m; col < P->Mpad; col += COLS) {
                const long cols = min(COLS, P->Mpad - col);
                for (long e = 0; e < PANEL; e++) sums[e] = splat(0);
                for (long d = 0; d < depth; d++) {
                    NAME(load_slopes)(P, m, r + d * PARTS * Q, slope);
                    NAME(exponents)(P, m, col, cols, clamp[d], alpha + d * Malpha, slope, tile);
                    NAME(exp2_add)(tile, cols, POLYNOMIAL, sums);
                }
                for (long j = 0; j < min(cols, M - col); j++)
                    for (long i = 0; i < ROWS && m + i <= col + j; i++)
                        for (int p = 0; p < PARTS; p++)
                            V[(m + i) * M + col + j] += NAME(lane_sum)(widened(sums[j * ROWS + i], p));
            }
    }
    for (long m = 0; m < M; m++)
        for (long j = 0; j < m; j++) V[m * M + j] = V[j * M + m];
    free(work);
    return 0;
}

TARGET static int NAME(backward)(const problem *P, long n0, long n1, const void *packed, double *grad_a,
                                 double *grad_r, double *grad_mu, double *grad_z) {
    const long M = P->M, Q = P->Q, ld = Q + 1, Malpha = P->Mpad + SLACK;
    const real *g = packed;
    vec *work = allocate(sizeof(vec) * (2 * PARTS * Q + M * Q + Malpha + ROWS * Q + PANEL + P->Mpad * ld));
    if (!work) return 1;
    wide *r = (wide *)work, *mu = r + PARTS * Q, *dz = mu + PARTS * Q;
    vec *alpha = (vec *)(dz + M * Q), *slope = alpha + Malpha, *tile = slope + ROWS * Q, *k = tile + PANEL;
    for (long e = 0; e < M * Q; e++) dz[e] = all(0);
    for (long n = n0; n < n1; n += LANES) {
        const int clamp = NAME(load_rows)(P, n, n1, r, mu, alpha);
        for (long e = 0; e < P->Mpad * ld; e++) k[e] = splat(0);  // column Q of k is h
        for (long m = 0; m < P->Mpad; m += ROWS) {
            NAME(load_slopes)(P, m, r, slope);
            for (long col = m; col < P->Mpad; col += COLS) {
                const long cols = min(COLS, P->Mpad - col);
                NAME(exponents)(P, m, col, cols, clamp, alpha, slope, tile);
                NAME(exp2_times)(tile, cols, POLYNOMIAL, g + m * P->Mpad + col * ROWS);
                // The ROWS points of a panel on the diagonal already meet themselves in both orders.
                const long skip = col == m ? ROWS : 0;
                long q = 0;
                for (; q + 3 <= ld; q += 3) NAME(products)(P, m, col, cols, skip, tile, q, 3, k);
                if (ld - q == 2) NAME(products)(P, m, col, cols, skip, tile, q, 2, k);
                if (ld - q == 1) NAME(products)(P, m, col, cols, skip, tile, q, 1, k);
            }
        }
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
                    const wide h = widened(k[m * ld + Q], p), kq = widened(k[m * ld + q], p);
                    S1 += h * z;
                    S2 += (h * z + kq) * (z / 2);
                    dz[m * Q + q] += rq * ((2 * muq - z) * h - kq);
                }
                const wide dmu = 2 * rq * (S1 - muq * S0), dr = muq * (2 * S1 - muq * S0) - S2;
                for (long lane = 0; lane < count; lane++) {
                    grad_mu[(first + lane) * Q + q] = dmu[lane];
                    grad_r[(first + lane) * Q + q] = dr[lane];
                }
            }
        }
    }
    for (long e = 0; e < M * Q; e++) grad_z[e] = NAME(lane_sum)(dz[e]);
    free(work);
    return 0;
}

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
#undef LANES
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

enum { ROWS = 4, COLS = 48, SLACK = 2, PANEL = ROWS * (COLS + SLACK), DEPTH = 16 };

// The polynomial for float (relative error 2e-8)
__attribute__((visibility("hidden"))) float exp2_single[7] = {
    0x1.41fbbcp-13f, 0x1.5f3e54p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e430p-1f, 1.0f};

typedef struct {
    long N, M, Mpad, Q;  // Mpad: M rounded up to a multiple of ROWS
    const double *a, *r, *mu;
    double *z;      // (Mpad + SLACK, Q + 1): the points, the last one repeated as padding, and a column of ones
    float *single;  // the same
} problem;

#if defined(__x86_64__) && !defined(MIDPOINT_LANES) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx512f")))
#define NAME(x) x##_avx512
#define LANES 8
#include "_midpoint.c"
#define SINGLE
#define TARGET __attribute__((target("avx512f")))
#define NAME(x) x##_single_avx512
#define LANES 16
#include "_midpoint.c"
#undef SINGLE
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#define LANES 4
#include "_midpoint.c"
#define SINGLE
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_single_avx2
#define LANES 8
#include "_midpoint.c"
#undef SINGLE
#define DISPATCH(function, ...)                                                                         \
    (__builtin_cpu_supports("avx512f")                                 ? function##_avx512(__VA_ARGS__) \
     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? function##_avx2(__VA_ARGS__)   \
                                                                       : function##_generic(__VA_ARGS__))
#else
#define DISPATCH(function, ...) function##_generic(__VA_ARGS__)
#endif
#ifndef MIDPOINT_LANES  // -DMIDPOINT_LANES=n builds the generic code alone, with n lanes
#define MIDPOINT_LANES 2
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES MIDPOINT_LANES
#include "_midpoint.c"
#define SINGLE
#define TARGET
#define NAME(x) x##_single_generic
#define LANES (2 * MIDPOINT_LANES)
#include "_midpoint.c"
#undef SINGLE

static problem setup(long N, long M, long Q, const double *a, const double *r, const double *mu, const double *z) {
    const long Mpad = rounded(M, ROWS), count = (Mpad + SLACK) * (Q + 1);
    double *points = malloc(count * (sizeof(double) + sizeof(float)));
    problem P = {N, M, Mpad, Q, a, r, mu, points, (float *)(points + count)};
    for (long m = 0; points && m < Mpad + SLACK; m++) {
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

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_midpoint", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__midpoint(void) { return PyModule_Create(&definition); }
#endif

#endif
