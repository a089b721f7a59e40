// SPDX-License-Identifier: Apache-2.0
//
// The algebra of M x M matrices in the collapsed bound of the squared exponential kernel, for which a call of torch for
// each operation takes longer than the operation itself.
//
//   K_ij = scale exp(-1/2 sum_q w_q (z_iq - z_jq)^2) + jitter [i = j],   K = U^T U,
//   Y = U^-T,   inverse = K^-1 = Y^T Y.
//
// All products are sums over p of left[i][p] right[p][j] for ROWS rows i and a few vectors of columns j, which are kept
// in registers. Matrices are padded to a multiple of PAD columns, by zeros.
//
// The file includes itself once for every instruction set: the part under #ifdef LANES is compiled each time.

#ifdef LANES

typedef double NAME(vec) __attribute__((vector_size(8 * LANES), aligned(8)));
#define vec NAME(vec)
#define at(x) (*(vec *)(x))

INLINE double NAME(sum)(vec x) {
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

INLINE void NAME(tile)(int vectors, long n, long k, const double *left, long step, long next, const double *right,
                       long right_ld, double *target, long ld) {
    vec total[ROWS][3];
    long row[ROWS];
    for (int r = 0; r < ROWS; r++) {
        row[r] = min(r, n - 1);  // rows that are not there repeat the last one
        for (int v = 0; v < vectors; v++) total[r][v] = splat(0);
    }
    for (long p = 0; p < k; p++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                total[r][v] += left[row[r] * step + p * next] * at(right + p * right_ld + v * LANES);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) at(target + row[r] * ld + v * LANES) = total[r][v];
}

// target[i][j] = sum_{p < k} left[i * step + p * next] right[p][j] for n rows and m columns, m a multiple of PAD
NOINLINE void NAME(product)(long n, long m, long k, const double *left, long step, long next, const double *right,
                            long right_ld, double *target, long ld) {
    for (long i = 0; i < n; i += ROWS) {
        long j = 0;
        for (; j + 3 * LANES <= m; j += 3 * LANES)
            NAME(tile)(3, n - i, k, left + i * step, step, next, right + j, right_ld, target + i * ld + j, ld);
        for (; j < m; j += LANES)
            NAME(tile)(1, n - i, k, left + i * step, step, next, right + j, right_ld, target + i * ld + j, ld);
    }
}

// row -= factor other, from column `first` on
INLINE void NAME(subtract)(double *row, double factor, const double *other, long first, long last) {
    for (long j = first / PAD * PAD; j < last; j += LANES) at(row + j) -= factor * at(other + j);
}

// U, the upper Cholesky factor of U, with zeros below its diagonal. Nonzero if it is not positive definite.
NOINLINE int NAME(factorise)(double *U, long M, long ld) {
    for (long i = 0; i < M; i++) {
        double *row = U + i * ld;
        for (long p = 0; p < i; p++) NAME(subtract)(row, U[p * ld + i], U + p * ld, i, M);
        if (!(row[i] > 0) || row[i] > 1e300) return 1;
        const double pivot = sqrt(row[i]);
        for (long j = 0; j < i; j++) row[j] = 0;
        for (long j = i; j < M; j++) row[j] /= pivot;
    }
    return 0;
}

// X = U^-T X, of the columns up to `last(i)` of row i
#define FORWARD(last)                                                                             \
    for (long i = 0; i < M; i++) {                                                                \
        for (long p = 0; p < i; p++) NAME(subtract)(X + i * ld, U[p * ld + i], X + p * ld, 0, last(p)); \
        for (long j = 0; j < last(i); j++) X[i * ld + j] /= U[i * ld + i];                        \
    }
#define WHOLE(row) ld
#define LOWER(row) ((row) + 1)
NOINLINE void NAME(forward)(const double *U, long M, long ld, double *X) { FORWARD(WHOLE) }
NOINLINE void NAME(forward_lower)(const double *U, long M, long ld, double *X) { FORWARD(LOWER) }
#undef FORWARD
#undef WHOLE
#undef LOWER

// X = U^-1 X
NOINLINE void NAME(backward)(const double *U, long M, long ld, double *X) {
    for (long i = M - 1; i >= 0; i--) {
        for (long p = i + 1; p < M; p++) NAME(subtract)(X + i * ld, U[i * ld + p], X + p * ld, 0, ld);
        for (long j = 0; j < ld; j++) X[i * ld + j] /= U[i * ld + i];
    }
}

TARGET static int NAME(covariance)(long M, long ld, double *U, double *Y, double *inverse) {
    if (NAME(factorise)(U, M, ld)) return 2;
    for (long m = 0; m < M; m++) Y[m * ld + m] = 1;
    NAME(forward_lower)(U, M, ld, Y);
    NAME(product)(M, ld, M, Y, 1, ld, Y, ld, inverse, ld);
    return 0;
}

// X = U^-T X U^-1, symmetric
TARGET static void NAME(whiten)(const double *U, long M, long ld, double *X, double *turned) {
    for (int k = 0; k < 2; k++) {
        NAME(forward)(U, M, ld, X);
        transpose(turned, X, M, ld);
        double *next = X;
        X = turned, turned = next;
    }
}

// T (M,ld) is symmetric, zT (Q,ld): g_z = sum_j T_ij (z_i - z_j), and g_w = sum_ij T_ij (z_i - z_j)^2
TARGET static void NAME(distances)(long M, long Q, long ld, const double *T, const double *zT, double *g_z,
                                   double *g_w) {
    for (long q = 0; q < Q; q++) {
        vec squares = splat(0);
        for (long i = 0; i < M; i++) {
            vec total = splat(0);
            for (long j = 0; j < ld; j += LANES) {
                const vec apart = zT[q * ld + i] - at(zT + q * ld + j), part = at(T + i * ld + j) * apart;
                total += part;
                squares += part * apart;
            }
            g_z[i * Q + q] = NAME(sum)(total);
        }
        g_w[q] = NAME(sum)(squares);
    }
}

// From of_psi2 and of_K (M,ld), and b: g_v, g_psi2, and what is added to g_K
NOINLINE void NAME(gradients)(const shared *A, double *g_v, double *g_psi2) {
    const long M = A->M, W = A->W, ld = A->ld, Wpad = A->Wpad;
    transpose(A->xT, A->x, M, ld);
    for (int k = 0; k < 2; k++) {
        const double *rest = k ? A->of_K : A->of_psi2;
        NAME(product)(M, ld, W, k ? A->b : A->p, Wpad, 1, A->bT, ld, A->inner, ld);
        for (long i = 0; i < M; i++)
            for (long j = 0; j < M; j++) A->inner[i * ld + j] = rest[i * ld + j] - A->inner[i * ld + j];
        NAME(product)(M, ld, M, A->x, ld, 1, A->inner, ld, A->half, ld);
        NAME(product)(M, ld, M, A->half, ld, 1, A->xT, ld, A->inner, ld);
        for (long i = 0; i < M; i++)
            for (long j = 0; j < M; j++) {
                const double own = 0.5 * (A->inner[i * ld + j] + A->inner[j * ld + i]);
                if (k)
                    A->g_K[i * ld + j] += own;
                else
                    g_psi2[i * M + j] = 0.5 * own;
            }
    }
    NAME(product)(M, Wpad, M, A->x, ld, 1, A->b, Wpad, A->p, Wpad);
    for (long m = 0; m < M; m++) memcpy(g_v + m * W, A->p + m * Wpad, W * sizeof(double));
}

TARGET static void NAME(one_group)(group *G, const shared *A, const double *e, const double *u, const double *beta,
                                   const double *count, double *g_v, double *g_psi2, double *g_beta) {
    const long M = A->M, W = A->W, ld = A->ld, Wpad = A->Wpad, R = A->R, next = R > 1;
    const double least = SIGNIFICANT * (e[0] < 0 ? -e[0] : 0);
    double weight = 0, total = 0, trace = 0;
    for (long m = 0; m < M; m++) {
        A->e[m] = e[m] > least ? e[m] : least;
        trace += e[m] > least ? e[m] : 0;
        memcpy(A->x + m * ld, u + m * M, M * sizeof(double));
    }
    NAME(backward)(A->U, M, ld, A->x);                               // x = L^-T u
    NAME(product)(M, Wpad, M, A->x, 1, ld, A->v, Wpad, A->p, Wpad);  // x^T v
    const double slack = G->psi0 - trace, open = slack > 0 ? 1 : 0, loose = slack > 0 ? slack : 0;
    for (long r = 0; r < R; r++) weight += beta[r] * count[r];
    for (long m = 0; m < M; m++) {
        A->diagonal[m] = e[m] > least ? weight * open : 0;
        A->diagonal_K[m] = -A->diagonal[m] * A->e[m];
    }
    for (long r = 0; r < R; r++) {
        double factors = 1, logs = 0, own = 0;
        for (long m = 0; m < M; m++) {
            const double spread = 1 + beta[r] * A->e[m], shrink = 1 / spread;
            A->shrink[m * R + r] = shrink;
            if (!(e[m] > least)) continue;  // see eigen_terms
            factors *= spread;
            if (factors > 1e100 || !(factors >= 0.5)) logs += log(factors), factors = 1;
            A->diagonal[m] -= count[r] * beta[r] * shrink;
            A->diagonal_K[m] += count[r] * (1 - shrink);
            own += A->e[m] * shrink;
        }
        total -= count[r] * (logs + log(factors));
        A->g_beta[r] = -0.5 * count[r] * (own + loose);
    }
    for (long m = 0; m < M; m++)
        for (long w = 0; w < W; w++) {
            const double rate = beta[next * w], p = A->p[m * Wpad + w], b = A->shrink[m * R + next * w] * p;
            total += rate * rate * p * b;
            A->g_beta[next * w] += 0.5 * (2 * rate * p * b - rate * rate * A->e[m] * b * b);
            A->b[m * Wpad + w] = rate * rate * b;  // times beta^2
            A->bT[w * ld + m] = b;
            A->p[m * Wpad + w] = rate * rate * rate * b;  // times beta^3
        }
    G->value = 0.5 * (total - weight * loose);
    G->g_psi0 = -0.5 * weight * open;
    if (!g_v) return;
    memcpy(g_beta, A->g_beta, R * sizeof(double));
    for (long m = 0; m < M; m++) A->of_psi2[m * ld + m] = A->diagonal[m], A->of_K[m * ld + m] = A->diagonal_K[m];
    NAME(gradients)(A, g_v, g_psi2);
}

// A (M,ld) = Q T Q^T with T tridiagonal: d (M,) and e (M - 1,), its diagonals. x = Q (M,ld). A is overwritten.
NOINLINE void NAME(reduce)(double *X, long M, long ld, double *d, double *e, double *x, double *u, double *w) {
    for (long k = 0; k + 2 < M; k++) {  // row k keeps the vector u of its reflection 1 - u u^T
        double *row = X + k * ld, squares = 0;
        for (long j = k + 1; j < M; j++) squares += row[j] * row[j];
        const double norm = sqrt(squares), lead = row[k + 1], own = lead < 0 ? norm : -norm, size = norm * (norm + fabs(lead));
        d[k] = row[k];
        e[k] = own;
        for (long j = 0; j <= k; j++) row[j] = u[j] = w[j] = 0;
        row[k + 1] -= own;
        const double scale = size > 0 ? 1 / sqrt(size) : 0;
        for (long j = k + 1; j < M; j++) u[j] = row[j] *= scale;
        double both = 0;
        for (long i = k + 1; i < M; i++) {
            vec total = splat(0);
            for (long j = (k + 1) / PAD * PAD; j < ld; j += LANES) total += at(X + i * ld + j) * at(u + j);
            w[i] = NAME(sum)(total);
            both += w[i] * u[i];
        }
        for (long i = k + 1; i < M; i++) w[i] -= 0.5 * both * u[i];
        for (long i = k + 1; i < M; i++)
            for (long j = (k + 1) / PAD * PAD; j < ld; j += LANES)
                at(X + i * ld + j) -= u[i] * at(w + j) + w[i] * at(u + j);
    }
    for (long k = M < 2 ? 0 : M - 2; k < M; k++) d[k] = X[k * ld + k];
    if (M > 1) e[M - 2] = X[(M - 2) * ld + M - 1];
    for (long m = 0; m < M; m++) x[m * ld + m] = 1;
    for (long k = M - 3; k >= 0; k--) {
        const double *row = X + k * ld;
        for (long j = 0; j < ld; j++) w[j] = 0;
        for (long i = k + 1; i < M; i++) NAME(subtract)(w, -row[i], x + i * ld, k + 1, ld);
        for (long i = k + 1; i < M; i++) NAME(subtract)(x + i * ld, row[i], w, k + 1, ld);
    }
}

// The factors of 1 + beta_r T for all r, with beta (Wpad,): pivots p and factors l below the diagonal (M,Wpad), with logs (R,) of the
// determinants. Returns the least pivot.
NOINLINE double NAME(factor_all)(const shared *A, const double *d, const double *e, const double *beta, double *p,
                                 double *l, double *logs) {
    const long M = A->M, W = A->W, Wpad = A->Wpad;
    double least = HUGE_VAL;
    for (long m = 0; m < M; m++)
        for (long r = 0; r < Wpad; r += LANES) {
            const vec own = 1 + at(beta + r) * d[m], over = m ? at(beta + r) * e[m - 1] : splat(0);
            if (m) at(l + (m - 1) * Wpad + r) = over / at(p + (m - 1) * Wpad + r);
            at(p + m * Wpad + r) = m ? own - at(l + (m - 1) * Wpad + r) * over : own;
        }
    for (long r = 0; r < W; r++) {
        double factors = 1;
        logs[r] = 0;
        for (long m = 0; m < M; m++) {
            const double pivot = p[m * Wpad + r];
            if (!(pivot >= least) && least == least) least = pivot;  // a NaN stays
            factors *= pivot;
            if (factors > 1e100 || !(factors >= 0.5)) logs[r] += log(factors), factors = 1;
        }
        logs[r] += log(factors);
    }
    return least;
}

// Adds the sums over r of weights (2, Wpad) times (1 + beta_r T)^-1 to first and second (M,ld), and leaves the traces of T
// (1 + beta_r T)^-1. The elements above one of the diagonal are those below it times -l.
NOINLINE void NAME(add_inverses)(const shared *A, const double *d, const double *e, const double *p, const double *l,
                                 const double *weights, double *corner, double *one, double *trace) {
    const long M = A->M, Wpad = A->Wpad, ld = A->ld;
    for (long j = M - 1; j >= 0; j--) {
        for (long r = 0; r < Wpad; r += LANES) {
            const vec under = j + 1 < M ? at(l + j * Wpad + r) : splat(0), last = at(corner + r);
            const vec own = 1 / at(p + j * Wpad + r) + under * under * last;  // `last` is that of j + 1
            at(trace + r) += d[j] * own - (j + 1 < M ? 2 * e[j] : 0) * under * last;
            at(corner + r) = at(one + r) = own;
        }
        for (long i = j; i >= 0; i--) {
            vec first = splat(0), second = splat(0), size = splat(0);
            for (long r = 0; r < Wpad; r += LANES) {
                const vec own = i == j ? at(one + r) : -at(l + i * Wpad + r) * at(one + r);
                at(one + r) = own;
                first += at(weights + r) * own;
                second += at(weights + Wpad + r) * own;
                size += own * own;
            }
            A->of_psi2[i * ld + j] -= NAME(sum)(first);
            A->of_K[i * ld + j] -= NAME(sum)(second);
            if (NAME(sum)(size) == 0) break;  // so small that numbers without all digits would follow
        }
    }
    for (long j = 0; j < M; j++)
        for (long i = 0; i < j; i++) {
            A->of_psi2[j * ld + i] = A->of_psi2[i * ld + j];
            A->of_K[j * ld + i] = A->of_K[i * ld + j];
        }
}

// As one_group with a noise for each output, without eigenvalues: X = L^-1 Psi2 L^-T (M,ld) is overwritten, and work has
// 3 (M, Wpad) + 6 Wpad + 4 ld numbers. Returns the least pivot of 1 + beta T; if it is not positive, all else is undefined.
TARGET static double NAME(no_spectrum)(group *G, const shared *A, double *X, const double *beta, const double *count,
                                       double *work, double *g_v, double *g_psi2, double *g_beta) {
    const long M = A->M, W = A->W, ld = A->ld, Wpad = A->Wpad;
    double *p = work, *l = p + M * Wpad, *v = l + M * Wpad, *weights = v + M * Wpad, *trace = weights + 2 * Wpad;
    double *corner = trace + Wpad, *one = corner + Wpad, *logs = one + Wpad;
    double *d = logs + Wpad, *e = d + ld, *u = e + ld, *w = u + ld;
    double weight = 0, total = 0, all = 0, counts = 0;
    for (long m = 0; m < M; m++) all += X[m * ld + m];
    NAME(reduce)(X, M, ld, d, e, A->x, u, w);
    memcpy(one, beta, W * sizeof(double));
    const double least = NAME(factor_all)(A, d, e, one, p, l, logs);
    if (!(least > 0)) return least;
    NAME(backward)(A->U, M, ld, A->x);                          // x = L^-T Q
    NAME(product)(M, Wpad, M, A->x, 1, ld, A->v, Wpad, v, Wpad);  // x^T v
    const double slack = G->psi0 - all, open = slack > 0 ? 1 : 0, loose = slack > 0 ? slack : 0;
    for (long r = 0; r < W; r++) {
        weight += beta[r] * count[r];
        counts += count[r];
        weights[r] = count[r] * beta[r];
        weights[Wpad + r] = count[r];
    }
    for (long m = 0; m < M; m++) {
        A->of_psi2[m * ld + m] = weight * open;
        A->of_K[m * ld + m] = counts - weight * open * d[m];
        if (m + 1 < M) A->of_K[m * ld + m + 1] = -weight * open * e[m];
    }
    NAME(add_inverses)(A, d, e, p, l, weights, corner, one, trace);
    for (long m = 0; m < M; m++)  // b = (1 + beta T)^-1 x^T v
        for (long r = 0; r < Wpad; r += LANES)
            at(A->b + m * Wpad + r) =
                at(v + m * Wpad + r) - (m ? at(l + (m - 1) * Wpad + r) * at(A->b + (m - 1) * Wpad + r) : splat(0));
    for (long m = M - 1; m >= 0; m--)
        for (long r = 0; r < Wpad; r += LANES)
            at(A->b + m * Wpad + r) = at(A->b + m * Wpad + r) / at(p + m * Wpad + r) -
                                      (m + 1 < M ? at(l + m * Wpad + r) * at(A->b + (m + 1) * Wpad + r) : splat(0));
    for (long r = 0; r < W; r++) {
        const double rate = beta[r];
        double fit = 0, square = 0, next = 0;
        for (long m = M - 1; m >= 0; m--) {
            const double b = A->b[m * Wpad + r];
            fit += v[m * Wpad + r] * b;
            square += b * (d[m] * b + (m + 1 < M ? 2 * e[m] * next : 0));
            next = b;
            A->bT[r * ld + m] = b;
            A->b[m * Wpad + r] = rate * rate * b;         // times beta^2
            A->p[m * Wpad + r] = rate * rate * rate * b;  // times beta^3
        }
        total += rate * rate * fit - count[r] * logs[r];
        A->g_beta[r] = 0.5 * (2 * rate * fit - rate * rate * square - count[r] * (trace[r] + loose));
    }
    G->value = 0.5 * (total - weight * loose);
    G->g_psi0 = -0.5 * weight * open;
    if (g_v) {
        memcpy(g_beta, A->g_beta, W * sizeof(double));
        NAME(gradients)(A, g_v, g_psi2);
    }
    return least;
}

#undef at
#undef vec
#undef LANES
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

enum { ROWS = 4, PAD = 8 };
#define SIGNIFICANT 3.0  // an eigenvalue counts if it is this many times the most negative one
typedef struct {
    double psi0;           // given
    double value, g_psi0;  // computed
} group;
typedef struct {
    long M, W, R, ld, Wpad;
    double *U, *x, *xT, *inner, *half, *g_K;        // (M, ld)
    double *of_psi2, *of_K;                         // (M, ld), x^-1 of the gradients x^-T, without the fit
    double *v, *p, *b, *shrink;                     // (M, Wpad)
    double *bT;                                     // (W, ld)
    double *e, *diagonal, *diagonal_K;              // (ld,)
    double *g_beta;                                 // (R,)
    double *more;                                   // of other functions
} shared;

static void transpose(double *target, const double *source, long M, long ld) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < M; j++) target[j * ld + i] = source[i * ld + j];
}

#ifdef WITH_AVX
#define TARGET FOR_AVX512
#define NAME(x) x##_avx512
#define LANES 8
#include "_inducing.c"
#define TARGET FOR_AVX2
#define NAME(x) x##_avx2
#define LANES 4
#include "_inducing.c"
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES 2
#include "_inducing.c"

static double *zeros(long count) {
    double *work = allocate(sizeof(double) * count);
    if (work) memset(work, 0, sizeof(double) * count);
    return work;
}

static double apart(long Q, const double *x, const double *y, const double *w) {
    double total = 0;
    for (long q = 0; q < Q; q++) total += w[q] * (x[q] - y[q]) * (x[q] - y[q]);
    return total;
}

// U = L^T, padded
static void turn(double *U, const double *L, long M, long ld) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j <= i; j++) U[j * ld + i] = L[i * M + j];
}

static void unpad(double *target, const double *source, long M, long ld) {
    for (long m = 0; m < M; m++) memcpy(target + m * M, source + m * ld, M * sizeof(double));
}

// z (M,Q), w (Q,). Writes K, the inverse and the lower Cholesky factor L of K + constant, and decay, scale^2 exp(-1/4 ...) with
// half the exponent of K, (M,M) each. Returns 1 if memory ran out, 2 if K + constant is not positive definite.
int inducing_covariance(long M, long Q, const double *z, const double *w, double scale, double jitter, double constant,
                        double *K, double *inverse, double *L, double *decay) {
    const long ld = rounded(M, PAD), square = M * ld;
    double *work = zeros(3 * square);
    if (!work) return 1;
    for (long i = 0; i < M; i++)
        for (long j = 0; j <= i; j++) {
            const double power = exp(-0.5 * apart(Q, z + i * Q, z + j * Q, w)), own = scale * power + (i == j ? jitter : 0);
            decay[i * M + j] = decay[j * M + i] = scale * scale * sqrt(power);
            K[i * M + j] = K[j * M + i] = own;
            work[i * ld + j] = work[j * ld + i] = own + constant;
        }
    const int failed = DISPATCH(covariance, M, ld, work, work + square, work + 2 * square);
    for (long i = 0; i < M; i++)
        for (long j = 0; j < M; j++) L[i * M + j] = work[j * ld + i];
    unpad(inverse, work + 2 * square, M, ld);
    free(work);
    return failed;
}

// X_ij = scale exp(-rate sum_q w_q (z_iq - z_jq)^2), (M,M)
int inducing_decay(long M, long Q, const double *z, const double *w, double scale, double rate, double *X) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j <= i; j++) X[i * M + j] = X[j * M + i] = scale * exp(-rate * apart(Q, z + i * Q, z + j * Q, w));
    return 0;
}

// g_z (M,Q) and g_w (Q,) from the gradient in the squared distances, the first M rows of work (M + Q, ld), which is freed
static void through_distances(long M, long Q, long ld, const double *z, const double *w, double *work, double *g_z,
                              double *g_w) {
    double *zT = work + M * ld;
    for (long i = 0; i < M; i++)
        for (long q = 0; q < Q; q++) zT[q * ld + i] = z[i * Q + q];
    DISPATCH(distances, M, Q, ld, work, zT, g_z, g_w);
    for (long i = 0; i < M; i++)
        for (long q = 0; q < Q; q++) g_z[i * Q + q] *= 4 * w[q];
    free(work);
}

// The gradients of a function whose gradient in the log of such an X is the symmetric part of g (M,M) or, if X is not
// null, whose gradient in X is g, where jitter was added to the diagonal of X. That g is symmetric except for rounding
// errors, which are smallest in sums over its rows: K^-1 magnifies those of its columns. Writes g_z (M,Q), g_w (Q,), and
// numbers (2,): the gradients in log scale and in jitter. Returns 1 if memory ran out.
int inducing_gradients(long M, long Q, const double *z, const double *w, double rate, double jitter, const double *X,
                       const double *g, double *g_z, double *g_w, double *numbers) {
    const long ld = rounded(M, PAD);
    double *work = zeros((M + Q) * ld), total = 0, trace = 0;
    if (!work) return 1;
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < M; j++) {
            const double own = X ? g[i * M + j] * (X[i * M + j] - (i == j ? jitter : 0))
                                 : 0.5 * (g[i * M + j] + g[j * M + i]);
            total += own;
            work[i * ld + j] = -rate * own;
        }
        trace += g[i * M + i];
    }
    through_distances(M, Q, ld, z, w, work, g_z, g_w);
    numbers[0] = total;
    numbers[1] = trace;
    return 0;
}

// Both gradients at once, of K and of Psi2 = decay * sums: g_K is that in K, as above, and g (M,M) that in Psi2. Writes
// g_sums = g * decay, g_z, g_w, and numbers (2,): the gradients in log scale, and in jitter. Returns 1 if memory ran out.
int inducing_joint_gradients(long M, long Q, const double *z, const double *w, double jitter, const double *K,
                             const double *g_K, const double *decay, const double *psi2, const double *g, double *g_sums,
                             double *g_z, double *g_w, double *numbers) {
    const long ld = rounded(M, PAD);
    double *work = zeros((M + Q) * ld), total = 0, trace = 0;
    if (!work) return 1;
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < M; j++) {
            const long at = i * M + j, turned = j * M + i;
            const double of_K = g_K[at] * (K[at] - (i == j ? jitter : 0));
            const double of_decay = g ? 0.5 * (g[at] * psi2[at] + g[turned] * psi2[turned]) : psi2[at];
            if (g) g_sums[at] = g[at] * decay[at];
            total += of_K + 2 * of_decay;
            work[i * ld + j] = -0.5 * of_K - 0.25 * of_decay;
        }
        trace += g_K[i * M + i];
    }
    through_distances(M, Q, ld, z, w, work, g_z, g_w);
    numbers[0] = total;
    numbers[1] = trace;
    return 0;
}

// L^-1 X L^-T of C symmetric matrices X (C,M,M), which is written to out. Returns 1 if memory ran out.
int inducing_whiten(long C, long M, const double *L, const double *X, double *out) {
    const long ld = rounded(M, PAD), square = M * ld;
    double *work = zeros(3 * square), *own = work + square;
    if (!work) return 1;
    turn(work, L, M, ld);
    for (long c = 0; c < C; c++) {
        for (long m = 0; m < M; m++) memcpy(own + m * ld, X + (c * M + m) * M, M * sizeof(double));
        DISPATCH(whiten, work, M, ld, own, own + square);
        unpad(out + c * M * M, own, M, ld);
    }
    free(work);
    return 0;
}

// out -= A X A for symmetric matrices (M,M). Returns 1 if memory ran out.
int inducing_sandwich(long M, const double *A, const double *X, double *out) {
    const long ld = rounded(M, PAD), square = M * ld;
    double *work = zeros(4 * square), *half = work + square, *first = half + square, *second = first + square;
    if (!work) return 1;
    for (long m = 0; m < M; m++) {
        memcpy(first + m * ld, A + m * M, M * sizeof(double));
        memcpy(second + m * ld, X + m * M, M * sizeof(double));
    }
    DISPATCH(product, M, ld, M, first, ld, 1, second, ld, half, ld);
    DISPATCH(product, M, ld, M, half, ld, 1, first, ld, work, ld);
    for (long i = 0; i < M; i++)
        for (long j = 0; j < M; j++) out[i * M + j] -= work[i * ld + j];
    free(work);
    return 0;
}

// The memory of the terms of groups, with `more` numbers after it; null if there is none
static double *make_shared(shared *A, long M, long W, long R, const double *L, long more) {
    const long ld = rounded(M, PAD), Wpad = rounded(W, PAD), square = M * ld, wide = M * Wpad;
    double *work = zeros(8 * square + 4 * wide + W * ld + 3 * ld + R + more), *next = work;
    if (!work) return NULL;
    *A = (shared){M, W, R, ld, Wpad};
    double **squares[] = {&A->U, &A->x, &A->xT, &A->inner, &A->half, &A->g_K, &A->of_psi2, &A->of_K};
    double **wides[] = {&A->v, &A->p, &A->b, &A->shrink}, **rows[] = {&A->e, &A->diagonal, &A->diagonal_K};
    for (int k = 0; k < 8; k++, next += square) *squares[k] = next;
    for (int k = 0; k < 4; k++, next += wide) *wides[k] = next;
    for (int k = 0; k < 3; k++, next += ld) *rows[k] = next;
    A->bT = next, A->g_beta = next + W * ld, A->more = A->g_beta + R;
    turn(A->U, L, M, ld);
    return work;
}

// v (M,W), padded
static void take_v(const shared *A, const double *v) {
    for (long m = 0; m < A->M; m++) memcpy(A->v + m * A->Wpad, v + m * A->W, A->W * sizeof(double));
}

// The terms of C groups from the eigenvalues e (C,M) and eigenvectors u (C,M,M) of L^-1 Psi2 L^-T: psi0 (C,), v (C,M,W),
// beta and count (C,R) with R = W or 1. Writes values and g_psi0 (C,) and, unless g_v is null, g_v (C,M,W),
// g_psi2 (C,M,M), g_beta (C,R), and the sum over groups g_K (M,M), twice the gradient. Returns 1 if memory ran out.
int inducing_spectrum(long C, long M, long W, long R, const double *e, const double *u, const double *L,
                      const double *psi0, const double *v, const double *beta, const double *count, double *values,
                      double *g_psi0, double *g_v, double *g_psi2, double *g_beta, double *g_K) {
    shared A;
    double *work = make_shared(&A, M, W, R, L, 0);
    if (!work) return 1;
    for (long c = 0; c < C; c++) {
        group G = {psi0[c]};
        take_v(&A, v + c * M * W);
        DISPATCH(one_group, &G, &A, e + c * M, u + c * M * M, beta + c * R, count + c * R, g_v ? g_v + c * M * W : NULL,
                 g_v ? g_psi2 + c * M * M : NULL, g_v ? g_beta + c * R : NULL);
        values[c] = G.value;
        g_psi0[c] = G.g_psi0;
    }
    if (g_v) unpad(g_K, A.g_K, M, A.ld);
    free(work);
    return 0;
}

// The same for one group with a noise for each of its W outputs, from X = Psi2 (M,M) without eigenvalues: L^-1 X L^-T = Q T
// Q^T with T tridiagonal, whose resolvents take O(M) each, and their sums O(M^2 W). Writes numbers (4): the value, g_psi0,
// the least pivot of 1 + beta T, which only rounding makes less than 1, and tr L^-1 X L^-T; if the pivot is not positive,
// nothing else is defined.
int inducing_resolvents(long M, long W, const double *X, const double *L, double psi0, const double *v, const double *beta,
                        const double *count, double *numbers, double *g_v, double *g_psi2, double *g_beta, double *g_K) {
    shared A;
    const long ld = rounded(M, PAD), Wpad = rounded(W, PAD);
    double *work = make_shared(&A, M, W, W, L, 3 * M * Wpad + 6 * Wpad + 4 * ld);
    if (!work) return 1;
    group G = {psi0};
    take_v(&A, v);
    for (long m = 0; m < M; m++) memcpy(A.half + m * ld, X + m * M, M * sizeof(double));
    DISPATCH(whiten, A.U, M, ld, A.half, A.inner);
    numbers[3] = 0;
    for (long m = 0; m < M; m++) numbers[3] += A.half[m * ld + m];
    numbers[2] = DISPATCH(no_spectrum, &G, &A, A.half, beta, count, A.more, g_v, g_psi2, g_beta);
    numbers[0] = G.value, numbers[1] = G.g_psi0;
    if (g_v) unpad(g_K, A.g_K, M, ld);
    free(work);
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_inducing", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__inducing(void) { return PyModule_Create(&definition); }
#endif

#endif
