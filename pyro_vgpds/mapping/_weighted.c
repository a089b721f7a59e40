// SPDX-License-Identifier: Apache-2.0
//
// The terms of midpoint sums, as in _midpoint.c, for rows with many weights each, which matrix products then sum.
//
//   E[n,p] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q)/2)^2),   p = the pair m <= m', in the order of rows m
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

#include "_exp2.h"

// x[e] = 2^x[e]; `count` is rounded up to whole chains of vectors
NOINLINE void NAME(exp2_all)(double *x, long count, int clamp, const double *p) {
    if (clamp) NAME(clamp_all)(x, count);
    for (long e = 0; e < count; e += CHAINS * LANES) NAME(exp2_chains)(x + e, p, x + e);
}

// The exponentials of row n, (P,), by way of `panel`, which has room for whole vectors after them.
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
    NAME(exp2_all)(panel, T->P, clamp, exp2_polynomial);
    memcpy(out, panel, T->P * sizeof(double));
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

TARGET static int NAME(exponentials)(const problem *T, long n0, long n1, double *E) {
    const long size = T->P + 2 * CHAINS * LANES;
    double *work = allocate(sizeof(double) * (T->room + T->Q + size)), *slope = work + T->room, *panel = slope + T->Q;
    if (!work) return 1;
    memset(panel, 0, sizeof(double) * size);
    for (long n = n0; n < n1; n++) NAME(terms)(T, n, work, slope, panel, E + (n - n0) * T->P);
    free(work);
    return 0;
}

TARGET static int NAME(gradients)(const problem *T, long n0, long n1, const double *E, const double *G, double *grad_a,
                                  double *grad_r, double *grad_mu, double *grad_z) {
    const long M = T->M, Q = T->Q, P = T->P, ld = T->ld;
    double *half = allocate(sizeof(double) * (P + M * ld + 2 * Q)), *k = half + P, *S1 = k + M * ld, *S2 = S1 + Q;
    if (!half) return 1;
    for (long n = n0; n < n1; n++, E += P, G += P) {
        const double *r = T->r + n * Q, *mu = T->mu + n * Q;
        for (long p = 0; p < P; p++) half[p] = 0.5 * E[p] * G[p];
        memset(k, 0, M * ld * sizeof(double));  // column Q of k is h
        for (long q = 0; q < ld; q += LANES) NAME(products)(T, half, q, k);
        double S0 = 0;
        for (long q = 0; q < Q; q++) S1[q] = S2[q] = 0;
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
    free(half);
    return 0;
}

#undef load
#undef store
#undef vec
#undef bits
#undef LANES
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

enum { CHAINS = 4, ROWS = 4, MOST_LANES = 8 };
typedef struct {
    long M, Q, P, room, ld;  // P: number of pairs; room: M, and whole vectors after it; ld: Q + 1 in whole vectors
    const double *a, *r, *mu;
    double *z;   // (M, ld): the points, a column of ones, and zeros
    double *zt;  // (Q, room): the points transposed, the last one repeated as padding
} problem;

#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx512f")))
#define NAME(x) x##_avx512
#define LANES 8
#include "_weighted.c"
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#define LANES 4
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
#include "_weighted.c"

// Returns nonzero if memory ran out.
static int setup(problem *T, long M, long Q, const double *a, const double *r, const double *mu, const double *z) {
    const long room = rounded(M, 2 * MOST_LANES) + 2 * MOST_LANES, ld = rounded(Q + 1, MOST_LANES);
    double *memory = allocate(sizeof(double) * (M * ld + Q * room));
    if (!memory) return 1;
    *T = (problem){M, Q, M * (M + 1) / 2, room, ld, a, r, mu, memory, memory + M * ld};
    memset(T->z, 0, sizeof(double) * M * ld);
    for (long m = 0; m < M; m++) {
        memcpy(T->z + m * ld, z + m * Q, sizeof(double) * Q);
        T->z[m * ld + Q] = 1;
    }
    for (long q = 0; q < Q; q++)
        for (long m = 0; m < room; m++) T->zt[q * room + m] = z[min(m, M - 1) * Q + q];
    return 0;
}

// E (n1 - n0, M (M + 1) / 2) of rows n0 <= n < n1 of a (N,), r (N,Q) and mu (N,Q), and of points z (M,Q). Returns nonzero
// if memory ran out.
int weighted_exponentials(long M, long Q, const double *a, const double *r, const double *mu, const double *z, long n0,
                          long n1, double *E) {
    problem T;
    if (setup(&T, M, Q, a, r, mu, z)) return 1;
    const int status = DISPATCH(exponentials, &T, n0, n1, E);
    free(T.z);
    return status;
}

// From E and G (n1 - n0, M (M + 1) / 2): writes these rows of grad_a, grad_r and grad_mu, and adds to grad_z (M,Q).
int weighted_gradients(long M, long Q, const double *a, const double *r, const double *mu, const double *z, long n0,
                       long n1, const double *E, const double *G, double *grad_a, double *grad_r, double *grad_mu,
                       double *grad_z) {
    problem T;
    if (setup(&T, M, Q, a, r, mu, z)) return 1;
    const int status = DISPATCH(gradients, &T, n0, n1, E, G, grad_a, grad_r, grad_mu, grad_z);
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
