// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums, as in _midpoint.c, for rows with many weights each, and their gradients, by products of matrices:
//
//   E[n,p] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q)/2)^2),   p = the pair m <= m', in the order of rows m
//   V[c,p] = sum_n w[c,n] E[n,p],   G[n,p] = sum_c w[c,n] g[c,p],   dL/dw[c,n] = sum_p g[c,p] E[n,p]  for L = sum_cp g V
//
// Each product is a sum over k of left[k][i] right[k][j] for a few i and three vectors of j, which are kept in registers;
// what is on the right stays in the L1 cache meanwhile. Arrays are padded with zeros: rows of E and g to Ppad numbers, weights
// to Cpad of them. G is never stored, only its product with E.
//
// Multiplying out the square splits the exponent into
//   alpha_nm + alpha_nm' + sum_q slope_nmq z_m'q,
//   alpha_nm = a_n/2 + sum_q r_nq (z_mq mu_nq - mu_nq^2/2 - z_mq^2/4),   slope_nmq = -r_nq z_mq / 2,
// where alpha and slope carry a factor log2(e): the exp is an exp2.
//
// Gradients of L = sum_np G[n,p] E[n,p], with the symmetric H[n,m,m'] = G E / 2 for m < m' and G E for m = m':
//   h_nm      = sum_m' H[n,m,m'],                k_nmq = sum_m' H[n,m,m'] z_m'q
//   S0        = sum_m h_nm,   S1_q = sum_m h_nm z_mq,   S2_q = sum_m z_mq (h_nm z_mq + k_nmq)/2
//   dL/da_n   = S0
//   dL/dmu_nq = 2 r_nq (S1_q - mu_nq S0)
//   dL/dr_nq  = mu_nq (2 S1_q - mu_nq S0) - S2_q
//   dL/dz_mq  = sum_n r_nq ((2 mu_nq - z_mq) h_nm - k_nmq)
//
// The file includes itself once for every instruction set: the part under #ifdef LANES is compiled each time.

#ifdef LANES

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

// to[e] = 2^x[e] for e < count; x has room for whole chains of vectors
NOINLINE void NAME(exp2_all)(double *x, long count, int clamp, const double *p, double *to) {
    const long whole = count - count % (CHAINS * LANES);
    if (clamp) NAME(clamp_all)(x, count);
    for (long e = 0; e < whole; e += CHAINS * LANES) NAME(exp2_chains)(x + e, p, to + e);
    if (whole < count) NAME(exp2_chains)(x + whole, p, x + whole);
    memcpy(to + whole, x + whole, (count - whole) * sizeof(double));
}

// The exponentials of row n, (Ppad,), by way of `panel`, which has room for whole vectors after them.
TARGET static void NAME(terms)(const problem *T, long n, double *alpha, double *slope, double *panel, double *out) {
    const long M = T->M, Q = T->Q, room = T->room;
    const double *r = T->r + n * Q, *mu = T->mu + n * Q;
    const int clamp = NAME(load_row)(T->a[n], r, mu, Q, T->zt, room, alpha);
    double *to = panel;
    for (long m = 0; m < M; to += M - m, m++) {  // the end of a whole vector is written again by the next m
        for (long q = 0; q < Q; q++) slope[q] = -LOG2E / 2 * r[q] * T->zt[q * room + m];
        for (long j = m; j < M; j += 2 * LANES) {
            vec first = alpha[m] + load(alpha + j), second = alpha[m] + load(alpha + j + LANES);
            for (long q = 0; q < Q; q++) {
                const double *z = T->zt + q * room + j;
                first += slope[q] * load(z);
                second += slope[q] * load(z + LANES);
            }
            store(to + j - m, first);
            store(to + j - m + LANES, second);
        }
    }
    for (long e = T->P; e < T->P + CHAINS * LANES; e++) panel[e] = 0;
    NAME(exp2_all)(panel, T->P, clamp, exp2_polynomial, out);
    memset(out + T->P, 0, (T->Ppad - T->P) * sizeof(double));
}

// E (rows, Ppad) of the rows from n on, and zeros for those that make the last tile whole
TARGET static int NAME(exponentials)(const problem *T, long n, long rows, double *E) {
    const long size = T->P + 2 * CHAINS * LANES;
    double *work = allocate(sizeof(double) * (T->room + T->Q + size)), *slope = work + T->room, *panel = slope + T->Q;
    if (!work) return 1;
    memset(panel, 0, sizeof(double) * size);
    for (long i = 0; i < rows; i++) NAME(terms)(T, n + i, work, slope, panel, E + i * T->Ppad);
    memset(E + rows * T->Ppad, 0, (rounded(rows, TILE) - rows) * T->Ppad * sizeof(double));
    free(work);
    return 0;
}

// total[i][v] += sum_k left[k * next + i * row] right[k * step + v], for `vectors` (a constant) of v
INLINE void NAME(multiply)(vec *total, int vectors, long count, const double *left, long next, long row,
                           const double *right, long step) {
    for (long k = 0; k < count; k++)
        for (int i = 0; i < HEIGHT; i++)
            for (int v = 0; v < vectors; v++)
                total[i * vectors + v] += left[k * next + i * row] * load(right + k * step + v * LANES);
}

// The same for target (HEIGHT, step) in place of total
INLINE void NAME(add_product)(double *target, int vectors, long count, const double *left, long next, long row,
                              const double *right, long step) {
    vec total[HEIGHT * 3];
    for (int i = 0; i < HEIGHT; i++)
        for (int v = 0; v < vectors; v++) total[i * vectors + v] = load(target + i * step + v * LANES);
    NAME(multiply)(total, vectors, count, left, next, row, right, step);
    for (int i = 0; i < HEIGHT; i++)
        for (int v = 0; v < vectors; v++) store(target + i * step + v * LANES, total[i * vectors + v]);
}

// V (Cpad, Ppad) += the sums over `rows` rows with the weights (rows, Cpad) and E (rows, Ppad)
NOINLINE void NAME(add_sums)(const problem *T, long rows, const double *weight, const double *E, double *V) {
    for (long p = 0; p < T->P; p += 3 * LANES)
        for (long c = 0; c < T->Cpad; c += HEIGHT)
            NAME(add_product)(V + c * T->Ppad + p, 3, rows, weight + c, T->Cpad, 1, E + p, T->Ppad);
}

// half (rows, Ppad) = G E / 2 with the weights (C, CHUNK), g (C, Ppad) and E (rows, Ppad)
NOINLINE void NAME(weigh)(const problem *T, long rows, const double *weight, const double *g, const double *E,
                          double *half) {
    for (long p = 0; p < T->P; p += 3 * LANES)
        for (long n = 0; n < rows; n += HEIGHT) {
            vec total[HEIGHT * 3];
            for (int i = 0; i < HEIGHT; i++)
                for (int v = 0; v < 3; v++) {
                    total[i * 3 + v] = splat(0);
                    __builtin_prefetch(E + (n + i) * T->Ppad + p + v * LANES);
                    __builtin_prefetch(half + (n + i) * T->Ppad + p + v * LANES, 1);
                }
            NAME(multiply)(total, 3, T->C, weight + n, CHUNK, 1, g + p, T->Ppad);
            for (int i = 0; i < HEIGHT; i++)
                for (int v = 0; v < 3; v++) {
                    const long e = (n + i) * T->Ppad + p + v * LANES;
                    store(half + e, 0.5 * load(E + e) * total[i * 3 + v]);
                }
        }
}

// grad (rows, Cpad) += the gradients in the weights, with E (rows, Ppad) and the transposed g (Ppad, Cpad)
NOINLINE void NAME(add_weight_gradients)(const problem *T, long rows, const double *E, const double *g, double *grad) {
    for (long p = 0; p < T->P; p += CHUNK) {
        const long count = min(CHUNK, T->P - p);
        long c = 0;
        for (; c + 3 * LANES <= T->Cpad; c += 3 * LANES)
            for (long n = 0; n < rows; n += HEIGHT)
                NAME(add_product)(grad + n * T->Cpad + c, 3, count, E + n * T->Ppad + p, 1, T->Ppad, g + p * T->Cpad + c,
                                  T->Cpad);
        for (; c < T->Cpad; c += LANES)
            for (long n = 0; n < rows; n += HEIGHT)
                NAME(add_product)(grad + n * T->Cpad + c, 1, count, E + n * T->Ppad + p, 1, T->Ppad, g + p * T->Cpad + c,
                                  T->Cpad);
    }
}

// Columns q .. q + LANES - 1 of the product of the symmetric H with [z, 1, 0], (M, ld): rows m+i collect what is right of
// the diagonal, and rows j > m+i its transpose. half (P,): G E / 2.
TARGET static void NAME(products)(const problem *T, const double *half, long q, double *k) {
    const long M = T->M, ld = T->ld;
    const double *z = T->z + q;
    k += q;
    for (long m = 0; m < M; m += ROWS) {
        const double *t[ROWS];
        const long rows = min(ROWS, M - m);
        vec zm[ROWS], total[ROWS];
        for (long i = 0; i < ROWS; i++) {
            t[i] = half - m - i;  // t[i][j] is that of the pair (m+i, j)
            half += i < rows ? M - m - i : 0;
            total[i] = splat(0);
            zm[i] = load(z + min(m + i, M - 1) * ld);
        }
        for (long j = m + ROWS; j < M; j++) {
            const vec zj = load(z + j * ld);
            vec sum = load(k + j * ld);
            for (long i = 0; i < ROWS; i++) {
                total[i] += t[i][j] * zj;
                sum += t[i][j] * zm[i];
            }
            store(k + j * ld, sum);
        }
        for (long i = 0; i < rows; i++) {
            store(k + (m + i) * ld, load(k + (m + i) * ld) + total[i]);
            for (long j = m + i; j < m + rows; j++) {
                store(k + (m + i) * ld, load(k + (m + i) * ld) + t[i][j] * load(z + j * ld));
                store(k + j * ld, load(k + j * ld) + t[i][j] * load(z + (m + i) * ld));
            }
        }
    }
}

// The gradients of row n from half (Ppad,)
TARGET static void NAME(row_gradients)(const problem *T, long n, const double *half, double *k, double *grad_a,
                                       double *grad_r, double *grad_mu, double *grad_z) {
    const long M = T->M, Q = T->Q, ld = T->ld;
    const double *r = T->r + n * Q, *mu = T->mu + n * Q;
    double *S1 = k + M * ld, *S2 = S1 + Q, S0 = 0;
    memset(k, 0, (M * ld + 2 * Q) * sizeof(double));  // column Q of k is h
    for (long q = 0; q < ld; q += LANES) NAME(products)(T, half, q, k);
    for (long m = 0; m < M; m++) {
        const double h = k[m * ld + Q];
        S0 += h;
        for (long q = 0; q < Q; q++) {
            const double z = T->z[m * ld + q], kq = k[m * ld + q];
            S1[q] += h * z;
            S2[q] += (h * z + kq) * (z / 2);
            grad_z[m * Q + q] += r[q] * ((2 * mu[q] - z) * h - kq);
        }
    }
    grad_a[n] = S0;
    for (long q = 0; q < Q; q++) {
        grad_mu[n * Q + q] = 2 * r[q] * (S1[q] - mu[q] * S0);
        grad_r[n * Q + q] = mu[q] * (2 * S1[q] - mu[q] * S0) - S2[q];
    }
}

TARGET static int NAME(forward)(const problem *T, const double *weight, long n0, long n1, double *E, double *V) {
    const long Ppad = T->Ppad, Cpad = T->Cpad;
    double *work = allocate(sizeof(double) * (CHUNK * (Cpad + Ppad) + Cpad * Ppad));
    if (!work) return 1;
    double *own = work, *scratch = own + CHUNK * Cpad, *sums = scratch + CHUNK * Ppad;
    memset(own, 0, CHUNK * Cpad * sizeof(double));
    memset(sums, 0, Cpad * Ppad * sizeof(double));
    int failed = 0;
    for (long n = n0; n < n1 && !failed; n += CHUNK) {
        const long rows = min(CHUNK, n1 - n);
        double *terms = E ? E + n * Ppad : scratch;
        failed = NAME(exponentials)(T, n, rows, terms);
        for (long c = 0; c < T->C; c++)
            for (long i = 0; i < rows; i++) own[i * Cpad + c] = weight[c * T->N + n + i];
        NAME(add_sums)(T, rows, own, terms, sums);
    }
    for (long c = 0; c < T->C; c++) memcpy(V + c * T->P, sums + c * Ppad, T->P * sizeof(double));
    free(work);
    return failed;
}

TARGET static int NAME(backward)(const problem *T, const double *weight, const double *g, const double *E, long n0, long n1,
                                 double *grad_weight, double *grad_a, double *grad_r, double *grad_mu, double *grad_z) {
    const long C = T->C, P = T->P, Ppad = T->Ppad, Cpad = T->Cpad;
    const long sizes[] = {C * Ppad, Ppad * Cpad, C * CHUNK, CHUNK * Cpad, CHUNK * Ppad, CHUNK * Ppad};
    long size = T->M * T->ld + 2 * T->Q;
    for (long i = 0; i < 6; i++) size += sizes[i];
    double *work = allocate(sizeof(double) * size);
    if (!work) return 1;
    memset(work, 0, sizeof(double) * size);
    double *rows_of_g = work, *turned = work + sizes[0], *own = turned + sizes[1], *gradients = own + sizes[2];
    double *half = gradients + sizes[3], *scratch = half + sizes[4], *k = scratch + sizes[5];
    for (long c = 0; c < C; c++) memcpy(rows_of_g + c * Ppad, g + c * P, P * sizeof(double));
    for (long first = 0; first < P && grad_weight; first += TILE)  // a tile of pairs at a time stays in the cache
        for (long c = 0; c < C; c++)
            for (long p = first; p < min(first + TILE, P); p++) turned[p * Cpad + c] = g[c * P + p];
    int failed = 0;
    for (long n = n0; n < n1 && !failed; n += CHUNK) {
        const long rows = min(CHUNK, n1 - n), whole = rounded(rows, TILE);
        const double *terms = E ? E + n * Ppad : scratch;
        if (!E) failed = NAME(exponentials)(T, n, rows, scratch);
        for (long c = 0; c < C; c++) memcpy(own + c * CHUNK, weight + c * T->N + n, rows * sizeof(double));
        NAME(weigh)(T, whole, own, rows_of_g, terms, half);
        for (long i = 0; i < rows; i++)
            NAME(row_gradients)(T, n + i, half + i * Ppad, k, grad_a, grad_r, grad_mu, grad_z);
        if (!grad_weight) continue;
        memset(gradients, 0, CHUNK * Cpad * sizeof(double));
        NAME(add_weight_gradients)(T, whole, terms, turned, gradients);
        for (long c = 0; c < C; c++)
            for (long i = 0; i < rows; i++) grad_weight[c * T->N + n + i] = gradients[i * Cpad + c];
    }
    free(work);
    return failed;
}

#undef load
#undef store
#undef vec
#undef bits
#undef HEIGHT
#undef LANES
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

// CHUNK: rows that are processed at once; TILE: rows and weights are padded to a multiple of it, as every HEIGHT needs
enum { CHAINS = 4, ROWS = 4, MOST_LANES = 8, CHUNK = 48, TILE = 8 };
typedef struct {
    long N, M, Q, C, P, room, ld;  // P: number of pairs; room: M, and whole vectors after it; ld: Q + 1 in whole vectors
    long Ppad, Cpad;
    const double *a, *r, *mu;
    double *z;   // (M, ld): the points, a column of ones, and zeros
    double *zt;  // (Q, room): the points transposed, the last one repeated as padding
} problem;

#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx512f")))
#define NAME(x) x##_avx512
#define LANES 8
#define HEIGHT 8
#include "_weighted.c"
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#define LANES 4
#define HEIGHT 4
#include "_weighted.c"
#define DISPATCH(function, ...)                                                                                 \
    (__builtin_cpu_supports("avx512f")                                 ? function##_avx512(__VA_ARGS__)         \
     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? function##_avx2(__VA_ARGS__)           \
                                                                       : function##_generic(__VA_ARGS__))
#else
#define DISPATCH(function, ...) function##_generic(__VA_ARGS__)
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES 2
#define HEIGHT 4
#include "_weighted.c"

// P rounded up to an odd number of three vectors: then rows begin in different lines of the cache
static long padded(long P) {
    const long unit = 3 * MOST_LANES;
    return (rounded(P, unit) / unit | 1) * unit;
}

// Returns nonzero if memory ran out.
static int setup(problem *T, long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                 const double *z) {
    const long room = rounded(M, 2 * MOST_LANES) + 2 * MOST_LANES, ld = rounded(Q + 1, MOST_LANES), P = M * (M + 1) / 2;
    double *memory = allocate(sizeof(double) * (M * ld + Q * room));
    if (!memory) return 1;
    *T = (problem){N, M, Q, C, P, room, ld, padded(P), rounded(C, TILE), a, r, mu, memory, memory + M * ld};
    memset(T->z, 0, sizeof(double) * M * ld);
    for (long m = 0; m < M; m++) {
        memcpy(T->z + m * ld, z + m * Q, sizeof(double) * Q);
        T->z[m * ld + Q] = 1;
    }
    for (long q = 0; q < Q; q++)
        for (long m = 0; m < room; m++) T->zt[q * room + m] = z[min(m, M - 1) * Q + q];
    return 0;
}

// Of rows n0 <= n < n1 of a (N,), r (N,Q) and mu (N,Q), and of points z (M,Q), the sums V (C,P) with the weights (C,N). Writes
// these rows of E (N rounded up to a multiple of 8, Ppad), if it is not null. n0 is a multiple of 8, and n1 or N.
// Returns nonzero if memory ran out.
int weighted_forward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                     const double *weight, long n0, long n1, double *E, double *V) {
    problem T;
    if (setup(&T, N, M, Q, C, a, r, mu, z)) return 1;
    const int status = DISPATCH(forward, &T, weight, n0, n1, E, V);
    free(T.z);
    return status;
}

// The gradients of sum_cp g V for g (C,P): writes these rows of grad_a, grad_r and grad_mu and, if it is not null, of
// grad_weight (C,N); and their share of grad_z (M,Q). E may be null. The rest is as above.
int weighted_backward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                      const double *weight, const double *g, const double *E, long n0, long n1, double *grad_weight,
                      double *grad_a, double *grad_r, double *grad_mu, double *grad_z) {
    problem T;
    if (setup(&T, N, M, Q, C, a, r, mu, z)) return 1;
    memset(grad_z, 0, M * Q * sizeof(double));
    const int status =
        DISPATCH(backward, &T, weight, g, E, n0, n1, grad_weight, grad_a, grad_r, grad_mu, grad_z);
    free(T.z);
    return status;
}

// Symmetric matrices psi2 (C,M,M) from their upper triangles: multiplies sums (C,P) by factor (P,), and adds half (C,M) of
// the row and of the column.
int weighted_unpack(long C, long M, const double *factor, const double *half, double *sums, double *psi2) {
    const long P = M * (M + 1) / 2;
    for (long c = 0; c < C; c++, sums += P, psi2 += M * M, half += M) {
        double *own = sums;
        const double *f = factor;
        for (long m = 0; m < M; own += M - m, f += M - m, m++)
            for (long j = m; j < M; j++) {
                own[j - m] *= f[j - m];
                psi2[m * M + j] = psi2[j * M + m] = own[j - m] + (half[m] + half[j]);
            }
    }
    return 0;
}

// The way back for gradients g (C,M,M): those of sums before and after the factor, packed (C,P) = factor * upper and
// sum_c upper * sums (P,), with upper = g[m,j] + g[j,m] for m < j and g[m,m]; and sides (C,M), sums of rows and columns.
int weighted_pack(long C, long M, const double *factor, const double *g, const double *sums, double *packed, double *total,
                  double *sides) {
    const long P = M * (M + 1) / 2;
    memset(total, 0, sizeof(double) * P);
    memset(sides, 0, sizeof(double) * C * M);
    for (long c = 0; c < C; c++, g += M * M, sides += M) {
        double *all = total;
        const double *f = factor;
        for (long m = 0; m < M; f += M - m, all += M - m, sums += M - m, packed += M - m, m++) {
            double row = 2 * g[m * M + m];
            packed[0] = g[m * M + m];
            for (long j = m + 1; j < M; j++) {
                const double both = g[m * M + j] + g[j * M + m];
                packed[j - m] = both;
                sides[j] += both;
                row += both;
            }
            sides[m] += row;
            for (long p = 0; p < M - m; p++) {
                all[p] += packed[p] * sums[p];
                packed[p] *= f[p];
            }
        }
    }
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_weighted", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__weighted(void) { return PyModule_Create(&definition); }
#endif

#endif
