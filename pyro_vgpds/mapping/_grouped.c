// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums, as in _midpoint.c, for C groups of rows at once, and their gradients.
//
//   E[n,m,m'] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q)/2)^2)
//   V[c,m,m'] = sum_n mask[c,n] E[n,m,m']
//
// Multiplying out the square splits the exponent into
//   alpha_nm + alpha_nm' + sum_q slope_nmq z_m'q,
//   alpha_nm = a_n/2 + sum_q r_nq (z_mq mu_nq - mu_nq^2/2 - z_mq^2/4),   slope_nmq = -r_nq z_mq / 2,
// so that a pair costs Q multiply-adds and one exp. alpha and slope carry a factor log2(e): the exp is an exp2.
//
// Groups: a group that has most of the rows is the sum of all rows minus those that it does not have. So a group costs
// one addition for each pair and each row in which it differs from all rows, or from none.
//
// Backward, with g symmetric in (m,m'), L = sum_cmm' g V and G[n,m,m'] = E[n,m,m'] sum_c mask[c,n] g[c,m,m']:
//   h_nm      = sum_m' G[n,m,m'],                k_nmq = sum_m' G[n,m,m'] z_m'q
//   S0        = sum_m h_nm                       (sum of G)
//   S1_q      = sum_m h_nm z_mq                  (sum of G times the midpoint)
//   S2_q      = sum_m z_mq (h_nm z_mq + k_nmq)/2 (sum of G times the squared midpoint)
//   dL/da_n   = S0
//   dL/dmu_nq = 2 r_nq (S1_q - mu_nq S0)
//   dL/dr_nq  = mu_nq (2 S1_q - mu_nq S0) - S2_q
//   dL/dz_mq  = sum_n r_nq ((2 mu_nq - z_mq) h_nm - k_nmq)
//
// Layout: pairs are visited in panels of ROWS points m by all points from m on; the lanes of a SIMD vector are points m'
// (in the last products: dimensions q), so all rows of a panel are contiguous and can be added. Loops over a panel are
// blocked for 16 vector registers.
//
// The file includes itself once for every instruction set: the part under #ifdef LANES is compiled each time.

#ifdef LANES

#include "_exp2.h"

// panel[i][j] = log2 E[n, m+i, col+j] for ROWS points m+i and `vectors` (1 or 2, constant after inlining) of lanes
INLINE void NAME(exponents)(const problem *P, long m, long col, int vectors, const double *alpha, const double *slope,
                            double *panel, long width) {
    vec t[2 * ROWS];
    for (int v = 0; v < vectors; v++)
        for (int i = 0; i < ROWS; i++) t[v * ROWS + i] = alpha[m + i] + load(alpha + col + v * LANES);
    for (long q = 0; q < P->Q; q++) {
        const double *z = P->zt + q * P->Mpad + col;
        for (int v = 0; v < vectors; v++)
            for (int i = 0; i < ROWS; i++) t[v * ROWS + i] += slope[q * ROWS + i] * load(z + v * LANES);
    }
    for (int v = 0; v < vectors; v++)
        for (int i = 0; i < ROWS; i++) store(panel + i * width + v * LANES, t[v * ROWS + i]);
}

// to[l][e] = 2^x[e]
NOINLINE void NAME(exp2_all)(double *x, long count, int clamp, const double *p, const array *to, long l) {
    if (clamp) NAME(clamp_all)(x, count);
    for (long e = 0; e < count; e += CHAINS * LANES) NAME(exp2_chains)(x + e, p, number(to, l, e, count));
}

// to[l][i][j] = E[n, m+i, m+j] for all j < Mpad - m; `panel` is memory of that size
INLINE void NAME(exponentials)(const problem *P, long n, long m, int clamp, const double *alpha, double *slope,
                               double *panel, const array *to, long l) {
    const long width = P->Mpad - m;
    for (long q = 0; q < P->Q; q++)
        for (long i = 0; i < ROWS; i++)
            slope[q * ROWS + i] = P->r[n * P->Q + q] * (-LOG2E / 2 * P->zt[q * P->Mpad + m + i]);
    long j = 0;
    for (; j + 2 * LANES <= width; j += 2 * LANES)
        NAME(exponents)(P, m, m + j, 2, alpha, slope, panel + j, width);
    if (j < width) NAME(exponents)(P, m, m + j, 1, alpha, slope, panel + j, width);
    NAME(exp2_all)(panel, ROWS * width, clamp, exp2_polynomial, to, l);
}

// target[e] = initial[e] + sum_u value[u] source[row[u]][e] for `vectors` (constant after inlining) of lanes; initial may
// be target, and the rows of source are `step` apart. Initial numbers come last: of many rows they are much larger than
// each term, so that every addition to them would lose digits.
INLINE void NAME(combine)(double *target, const double *initial, int vectors, long count, const long *row,
                          const double *value, const double *source, long step) {
    vec total[WIDTH / LANES];
    for (int v = 0; v < vectors; v++) total[v] = splat(0);
    for (long u = 0; u < count; u++)
        for (int v = 0; v < vectors; v++) total[v] += value[u] * load(source + row[u] * step + v * LANES);
    for (int v = 0; v < vectors; v++) store(target + v * LANES, load(initial + v * LANES) + total[v]);
}

// The same for `lists` lists of `length` places, of which counts[l] are used: target[l] = initial[l] + sum_u value[l][u]
// source[row[l][u]] for the `size` numbers of a panel, block by block. The counts are followed by an order of the lists.
NOINLINE void NAME(combine_all)(const array *target, const array *initial, const array *source, long size, long lists,
                                long length, const long *counts, const long *row, const double *value) {
    const long *order = counts + lists;
    for (long e = 0; e < size; e += WIDTH) {
        const long width = min(WIDTH, size - e), step = source->blocked ? width : source->step;
        const double *from = number(source, 0, e, size);
        for (long i = 0; i < lists; i++) {
            const long l = order[i];
            double *to = number(target, l, e, size);
            const double *first = number(initial, l, e, size);
            if (!counts[l] && to == first) continue;
            if (width == WIDTH)
                NAME(combine)(to, first, WIDTH / LANES, counts[l], row + l * length, value + l * length, from, step);
            else
                NAME(combine)(to, first, UNIT / LANES, counts[l], row + l * length, value + l * length, from, step);
        }
    }
}

// Columns q .. q + vectors LANES - 1 of the product of the symmetric G[n] with [z, 1, 0]: rows m+i of k collect the
// panel, and rows m+j, j >= ROWS, its transpose. `vectors` is a constant after inlining.
INLINE void NAME(products)(const problem *P, long m, long width, const double *G, long q, int vectors, double *k) {
    const long ld = P->Qpad;
    const double *z = P->z + q;
    vec zm[ROWS * 3], total[ROWS * 3];
    k += q;
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < vectors; v++) total[i * vectors + v] = load(k + (m + i) * ld + v * LANES);
    for (long j = 0; j < width; j++)
        for (int i = 0; i < ROWS; i++)
            for (int v = 0; v < vectors; v++)
                total[i * vectors + v] += G[i * width + j] * load(z + (m + j) * ld + v * LANES);
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < vectors; v++) {
            store(k + (m + i) * ld + v * LANES, total[i * vectors + v]);
            zm[i * vectors + v] = load(z + (m + i) * ld + v * LANES);
        }
    for (long j = ROWS; j < width; j++)
        for (int v = 0; v < vectors; v++) {
            vec sum = load(k + (m + j) * ld + v * LANES);
            for (int i = 0; i < ROWS; i++) sum += G[i * width + j] * zm[i * vectors + v];
            store(k + (m + j) * ld + v * LANES, sum);
        }
}

// The lists of combine_all for `lists` masks, `across` apart, of which `length` numbers are `along` apart
TARGET static void NAME(differences)(const double *mask, long lists, long across, long length, long along,
                                     const double *full, long full_across, long full_along, long *counts, long *row,
                                     double *value) {
    for (long l = 0; l < lists; l++) {
        long used = 0;
        for (long e = 0; e < length; e++) {
            const double found = mask[l * across + e * along] - full[l * full_across + e * full_along];
            row[l * length + used] = e;
            value[l * length + used] = found;
            used += found != 0;
        }
        counts[l] = used;
    }
}

TARGET static int NAME(forward)(const problem *P, long n0, long n1, const double *decay, double *V) {
    const long M = P->M, Q = P->Q, C = P->C, Mpad = P->Mpad, size = packed_size(Mpad), chunk = FORWARD_ROWS;
    const long doubles = chunk * Mpad + (chunk + 1) * ROWS * Mpad + ROWS * Q + (C + 1) * (size + chunk);
    double *work = allocate(sizeof(double) * doubles + sizeof(long) * (2 + chunk) * (C + 1));
    if (!work) return 1;
    double *alpha = work, *panels = alpha + chunk * Mpad, *one = panels + chunk * ROWS * Mpad, *slope = one + ROWS * Mpad;
    double *sums = slope + ROWS * Q, *value = sums + (C + 1) * size;
    long *counts = (long *)(value + (C + 1) * chunk);
    long *row = counts + 2 * (C + 1);
    int clamp[FORWARD_ROWS];
    memset(sums, 0, (C + 1) * size * sizeof(double));
    for (long n = n0; n < n1; n += chunk) {
        const long rows = min(chunk, n1 - n);
        for (long d = 0; d < rows; d++)
            clamp[d] = NAME(load_row)(P->a[n + d], P->r + (n + d) * Q, P->mu + (n + d) * Q, Q, P->zt, Mpad, alpha + d * Mpad);
        NAME(differences)(P->mask + n, C, P->N, rows, 1, P->full, 1, 0, counts, row, value);
        counts[C] = P->any_full ? rows : 0;  // the last list is that of `all`
        for (long d = 0; d < rows; d++) {
            row[C * rows + d] = d;
            value[C * rows + d] = 1;
        }
        sort_lists(C + 1, counts);
        long offset = 0;
        for (long m = 0; m < Mpad; m += ROWS) {
            const long panel = ROWS * (Mpad - m);
            const array own = {sums + (C + 1) * offset, 0, C + 1}, exponentials = {panels, 0, rows};
            for (long d = 0; d < rows; d++)
                NAME(exponentials)(P, n + d, m, clamp[d], alpha + d * Mpad, slope, one, &exponentials, d);
            NAME(combine_all)(&own, &own, &exponentials, panel, C + 1, rows, counts, row, value);
            offset += panel;
        }
    }
    for (long c = 0; c < C; c++) {
        long offset = 0;
        double *out = V + c * M * M;
        for (long m = 0; m < Mpad; m += ROWS) {
            const long width = Mpad - m, panel = ROWS * width;
            const array own = {sums + (C + 1) * offset, 0, C + 1};
            for (long i = 0; i < min(ROWS, M - m); i++)
                for (long j = m + i; j < M; j++) {
                    const long e = i * width + j - m;
                    double total = *number(&own, c, e, panel) + (P->full[c] ? *number(&own, C, e, panel) : 0.0);
                    if (decay) total *= decay[(m + i) * M + j];
                    out[j * M + m + i] = out[(m + i) * M + j] = total;
                }
            offset += panel;
        }
    }
    free(work);
    return 0;
}

// The symmetric part of g times decay in the order of the panels, with zeros as padding and for pairs of an earlier
// panel; a last group is the sum of those that are `full`. W (M,M), if it is not null: sum_c g V.
TARGET static int NAME(pack)(const problem *P, const double *g, const double *decay, const double *V, double *packed,
                             double *W) {
    const long M = P->M, C = P->C, Mpad = P->Mpad;
    memset(packed, 0, (C + 1) * packed_size(Mpad) * sizeof(double));
    if (W) memset(W, 0, M * M * sizeof(double));
    long offset = 0;
    for (long m = 0; m < Mpad; m += ROWS) {
        const long width = Mpad - m, panel = ROWS * width;
        const array to = {packed + (C + 1) * offset, 0, C + 1};
        for (long c = 0; c < C; c++)
            for (long i = 0; i < min(ROWS, M - m); i++) {
                const double *one = g + (c * M + m + i) * M, *other = g + c * M * M + m + i;
                for (long j = m; j < M; j++) {
                    const long e = i * width + j - m, pair = (m + i) * M + j;
                    const double both = (one[j] + other[j * M]) / 2, value = decay ? both * decay[pair] : both;
                    if (W) W[pair] += both * V[c * M * M + pair];
                    *number(&to, c, e, panel) = value;
                    if (P->full[c]) *number(&to, C, e, panel) += value;
                }
            }
        offset += panel;
    }
    for (long i = 0; W && i < M; i++)
        for (long j = 0; j < i; j++) W[i * M + j] = W[j * M + i];
    return 0;
}

TARGET static int NAME(backward)(const problem *P, long n0, long n1, const double *packed, double *grad_a,
                                 double *grad_r, double *grad_mu, double *grad_z) {
    const long M = P->M, Q = P->Q, C = P->C, ld = P->Qpad, Mpad = P->Mpad;
    const long chunk = P->chunk;
    const long doubles = chunk * (Mpad + Mpad * ld + C + ROWS * Mpad) + ROWS * Q + ROWS * Mpad + Mpad * ld;
    double *work = allocate(sizeof(double) * doubles + sizeof(long) * (2 + C) * chunk);
    if (!work) return 1;
    double *alpha = work, *k = alpha + chunk * Mpad, *value = k + chunk * Mpad * ld, *slope = value + chunk * C;
    double *panel = slope + ROWS * Q, *weights = panel + ROWS * Mpad, *dz = weights + chunk * ROWS * Mpad;
    long *counts = (long *)(dz + Mpad * ld);
    long *row = counts + 2 * chunk;
    int clamp[BACKWARD_ROWS];
    memset(dz, 0, Mpad * ld * sizeof(double));
    for (long n = n0; n < n1; n += chunk) {
        const long rows = min(chunk, n1 - n);
        for (long d = 0; d < rows; d++)
            clamp[d] = NAME(load_row)(P->a[n + d], P->r + (n + d) * Q, P->mu + (n + d) * Q, Q, P->zt, Mpad, alpha + d * Mpad);
        NAME(differences)(P->mask + n, rows, 1, C, P->N, P->full, 0, 1, counts, row, value);
        sort_lists(rows, counts);
        memset(k, 0, rows * Mpad * ld * sizeof(double));  // column Q of k is h
        long offset = 0;
        for (long m = 0; m < Mpad; m += ROWS) {
            const long width = Mpad - m;
            double *groups = (double *)packed + (C + 1) * offset;
            const array to = {weights, ROWS * width, 0}, from = {groups, 0, C + 1};
            const array all = {groups, 0, C + 1, C}, own = {panel, 0, 0};  // all: the last group, for every row
            NAME(combine_all)(&to, &all, &from, ROWS * width, rows, C, counts, row, value);
            for (long d = 0; d < rows; d++) {
                const double *weight = weights + d * ROWS * width;
                NAME(exponentials)(P, n + d, m, clamp[d], alpha + d * Mpad, slope, panel, &own, 0);
                for (long e = 0; e < ROWS * width; e += LANES) store(panel + e, load(panel + e) * load(weight + e));
                double *kd = k + d * Mpad * ld;
                long q = 0;
                for (; q + 3 * LANES <= ld; q += 3 * LANES)
                    NAME(products)(P, m, width, panel, q, 3, kd);
                if (ld - q == 2 * LANES) NAME(products)(P, m, width, panel, q, 2, kd);
                if (ld - q == LANES) NAME(products)(P, m, width, panel, q, 1, kd);
            }
            offset += ROWS * width;
        }
        for (long d = 0; d < rows; d++) {
            const double *kd = k + d * Mpad * ld, *r = P->r + (n + d) * Q, *mu = P->mu + (n + d) * Q;
            double S0 = 0;
            for (long m = 0; m < M; m++) S0 += kd[m * ld + Q];
            grad_a[n + d] = S0;
            for (long q = 0; q < Q; q++) slope[q] = slope[Q + q] = 0;  // S1 and S2
            for (long m = 0; m < M; m++) {
                const double h = kd[m * ld + Q];
                for (long q = 0; q < Q; q++) {
                    const double z = P->z[m * ld + q], kq = kd[m * ld + q];
                    slope[q] += h * z;
                    slope[Q + q] += (h * z + kq) * (z / 2);
                    dz[m * ld + q] += r[q] * ((2 * mu[q] - z) * h - kq);
                }
            }
            for (long q = 0; q < Q; q++) {
                grad_mu[(n + d) * Q + q] = 2 * r[q] * (slope[q] - mu[q] * S0);
                grad_r[(n + d) * Q + q] = mu[q] * (2 * slope[q] - mu[q] * S0) - slope[Q + q];
            }
        }
    }
    for (long m = 0; m < M; m++)
        for (long q = 0; q < Q; q++) grad_z[m * Q + q] = dz[m * ld + q];
    free(work);
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

// FORWARD_ROWS panels, and the k of P->chunk <= BACKWARD_ROWS rows, stay in the L2 cache
enum { ROWS = 4, PAD = 4, CHAINS = 4, FORWARD_ROWS = 64, BACKWARD_ROWS = 16, L2 = 1 << 15, UNIT = ROWS * PAD, WIDTH = 2 * UNIT };
typedef struct {
    long N, M, Mpad, Q, Qpad, C, chunk;  // Mpad: M, and Qpad: Q + 1, rounded up to a multiple of PAD
    int any_full;
    const double *a, *r, *mu, *mask;
    double *z;     // (Mpad, Qpad): the points, the last one repeated as padding, a column of ones, and zeros
    double *zt;    // (Q, Mpad): the points transposed
    double *full;  // (C,): 1 if the group is all rows plus (mask - 1) of them, 0 if it is mask of them
} problem;

// Numbers of a panel for many groups or rows. Either a group's are contiguous, and the next one's are `step` further; or,
// if `blocked` is the number of groups, the panel is divided into blocks of WIDTH numbers (the last one may have UNIT),
// and the blocks of all groups follow each other, so that the processor foresees which memory is needed.
typedef struct {
    double *base;
    long step, blocked, only;  // only: the group to be taken for all, if it is not 0
} array;

// Number e of group l of a panel of `size` numbers
static inline double *number(const array *A, long l, long e, long size) {
    const long first = e / WIDTH * WIDTH, group = A->only ? A->only : l;
    if (!A->blocked) return A->base + group * A->step + e;
    return A->base + first * A->blocked + group * min(WIDTH, size - first) + e - first;
}

// Numbers of all panels; the lanes are a divisor of ROWS
static long packed_size(long Mpad) { return Mpad * (Mpad + ROWS) / 2; }

// The order of the lists, after their counts: by their counts, so that the processor foresees the ends of loops
static void sort_lists(long lists, long *counts) {
    long *order = counts + lists;
    for (long l = 0; l < lists; l++) {
        long i = l;
        for (; i > 0 && counts[order[i - 1]] > counts[l]; i--) order[i] = order[i - 1];
        order[i] = l;
    }
}

#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#define LANES 4
#include "_grouped.c"
#define DISPATCH(function, ...)                                                                       \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? function##_avx2(__VA_ARGS__)   \
                                                                     : function##_generic(__VA_ARGS__))
#else
#define DISPATCH(function, ...) function##_generic(__VA_ARGS__)
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES 2
#include "_grouped.c"

// Returns nonzero if memory ran out.
static int setup(problem *P, long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                 const double *z, const double *mask) {
    const long Mpad = rounded(M, PAD), Qpad = rounded(Q + 1, PAD);
    double *memory = allocate(sizeof(double) * (Mpad * Qpad + Q * Mpad + C));
    if (!memory) return 1;
    *P = (problem){N, M, Mpad, Q, Qpad, C, 0, 0, a, r, mu, mask, memory, memory + Mpad * Qpad,
                   memory + Mpad * Qpad + Q * Mpad};
    P->chunk = min(BACKWARD_ROWS, 1 + L2 / (Mpad * Qpad));
    memset(P->z, 0, Mpad * Qpad * sizeof(double));
    for (long m = 0; m < Mpad; m++) {
        memcpy(P->z + m * Qpad, z + min(m, M - 1) * Q, Q * sizeof(double));
        P->z[m * Qpad + Q] = 1;
        for (long q = 0; q < Q; q++) P->zt[q * Mpad + m] = P->z[m * Qpad + q];
    }
    for (long c = 0; c < C; c++) {
        long ones = 0, zeros = 0;
        for (long n = 0; n < N; n++) {
            ones += mask[c * N + n] == 1;
            zeros += mask[c * N + n] == 0;
        }
        P->full[c] = ones > zeros;
        P->any_full |= P->full[c] == 1;
    }
    return 0;
}

// Rows n0 <= n < n1 only. V (C,M,M), times decay (M,M), symmetric, if that is not null, is overwritten. Returns nonzero
// if memory ran out.
int grouped_forward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                    const double *z, const double *mask, long n0, long n1, const double *decay, double *V) {
    problem P;
    if (setup(&P, N, M, Q, C, a, r, mu, z, mask)) return 1;
    const int status = DISPATCH(forward, &P, n0, n1, decay, V);
    free(P.z);
    return status;
}

// What grouped_backward needs of g (C,M,M): packed (C + 1, Mpad (Mpad + 4) / 2), of sum g V decay with decay (M,M),
// symmetric, or 1 if it is null. If V (C,M,M) is not null, W (M,M) = the symmetric part of sum_c g V.
int grouped_pack(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                 const double *mask, const double *g, const double *decay, const double *V, double *packed,
                 double *W) {
    problem P;
    if (setup(&P, N, M, Q, C, a, r, mu, z, mask)) return 1;
    const int status = DISPATCH(pack, &P, g, decay, V, packed, W);
    free(P.z);
    return status;
}

// Rows n0 <= n < n1 only: writes those rows of grad_a, grad_r and grad_mu, and their share of grad_z (M,Q).
int grouped_backward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                     const double *z, const double *mask, long n0, long n1, const double *packed, double *grad_a,
                     double *grad_r, double *grad_mu, double *grad_z) {
    problem P;
    if (setup(&P, N, M, Q, C, a, r, mu, z, mask)) return 1;
    const int status = DISPATCH(backward, &P, n0, n1, packed, grad_a, grad_r, grad_mu, grad_z);
    free(P.z);
    return status;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_grouped", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__grouped(void) { return PyModule_Create(&definition); }
#endif

#endif
