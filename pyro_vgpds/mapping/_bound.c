// SPDX-License-Identifier: Apache-2.0
// The collapsed bound of the squared exponential kernel for outputs without gaps, with one noise each: one call before the
// eigenvalues of A = L^-1 Psi2 L^-T, and one after them, which gives the value and all gradients. For small problems, in
// which calls from Python take longer than what they compute. The sums and the algebra are those of other compiled files,
// whose functions a table has pointers to. mapping/rbf_bound.py does the same in steps.
//
// mean, variance (N, Q), z (M, Q), w (Q), y (N, D), noise (D). The latent points and z are centred in the sums.

#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

#define TWO_PI 6.283185307179586

typedef struct {
    int (*covariance)(long M, long Q, const double *z, const double *w, double scale, double jitter, double *K,
                      double *inverse, double *L, double *decay);
    int (*whiten)(long C, long M, const double *L, const double *X, double *out);
    int (*spectrum)(long C, long M, long W, long R, const double *e, const double *u, const double *L, const double *psi0,
                    const double *v, const double *beta, const double *count, double *values, double *g_psi0, double *g_v,
                    double *g_psi2, double *g_beta, double *g_K);
    int (*joint_gradients)(long M, long Q, const double *z, const double *w, double jitter, const double *K,
                           const double *g_K, const double *decay, const double *psi2, const double *g, double *g_sums,
                           double *g_z, double *g_w, double *numbers);
    int (*rows_forward)(long N, long M, long Q, long R, const double *mu, const double *s, const double *z, const double *w,
                        const double *y, const long *used, double scale, long n0, long n1, double *a, double *rho,
                        double *psi1, double *first);
    int (*rows_backward)(long N, long M, long Q, long R, const double *mu, const double *s, const double *z,
                         const double *w, const double *y, const long *used, double scale, const double *psi1,
                         const double *grad, const double *da, const double *drho, const double *dmu, long n0, long n1,
                         double *grad_mean, double *grad_s, double *sums);
    int (*midpoint_forward)(long single, long N, long M, long Q, const double *a, const double *r, const double *mu,
                            const double *z, long n0, long n1, double *V);
    int (*midpoint_backward)(long single, long N, long M, long Q, const double *a, const double *r, const double *mu,
                             const double *z, long n0, long n1, const double *g, double *grad_a, double *grad_r,
                             double *grad_mu, double *grad_z);
} functions;

// What bound_begin leaves for bound_end
typedef struct {
    double *K, *inverse, *L, *decay, *psi2;  // (M, M)
    double *v;                               // Psi1^T y, (M, D)
    double *mu, *rho, *a, *z;                // (N, Q), (N, Q), (N), (M, Q), centred
} kept;

// The next `count` numbers of the memory, of which `used` have been given away; null while only their number is wanted
static double *take(double *work, long *used, long count) {
    double *own = work ? work + *used : NULL;
    *used += (count + 7) / 8 * 8;
    return own;
}

static long make_kept(long N, long M, long Q, long D, double *work, kept *A) {
    long used = 0;
    double **squares[] = {&A->K, &A->inverse, &A->L, &A->decay, &A->psi2};
    for (long k = 0; k < 5; k++) *squares[k] = take(work, &used, M * M);
    A->v = take(work, &used, M * D);
    A->mu = take(work, &used, N * Q);
    A->rho = take(work, &used, N * Q);
    A->a = take(work, &used, N);
    A->z = take(work, &used, M * Q);
    return used;
}

// The size in numbers of the memory that both calls share
int bound_size(long N, long M, long Q, long D, long *size) {
    kept A;
    *size = make_kept(N, M, Q, D, NULL, &A);
    return 0;
}

// Writes A (M, M), and numbers (4): its trace, the sum of its entries, the norm of K^-1 * Psi2, and the least noise. Returns 1
// if memory ran out, 2 if K is not positive definite.
int bound_begin(const functions *F, long N, long M, long Q, long D, const double *mean, const double *variance,
                const double *z, const double *w, const double *y, const double *noise, double scale, double jitter,
                double *work, double *A, double *numbers) {
    kept own;
    make_kept(N, M, Q, D, work, &own);
    int failed = F->covariance(M, Q, z, w, scale, jitter, own.K, own.inverse, own.L, own.decay);
    if (failed) return failed;
    for (long q = 0; q < Q; q++) {
        double centre = 0.0;
        for (long m = 0; m < M; m++) centre += z[m * Q + q];
        centre /= (double)M;
        for (long m = 0; m < M; m++) own.z[m * Q + q] = z[m * Q + q] - centre;
        for (long n = 0; n < N; n++) own.mu[n * Q + q] = mean[n * Q + q] - centre;
    }
    if (F->rows_forward(N, M, Q, D, own.mu, variance, own.z, w, y, NULL, scale, 0, N, own.a, own.rho, NULL, own.v) ||
        F->midpoint_forward(0, N, M, Q, own.a, own.rho, own.mu, own.z, 0, N, own.psi2))
        return 1;
    for (long k = 0; k < M * M; k++) own.psi2[k] *= own.decay[k];
    if (F->whiten(1, M, own.L, own.psi2, A)) return 1;
    double trace = 0.0, sum = 0.0, squares = 0.0, least = noise[0];
    for (long m = 0; m < M; m++) trace += A[m * M + m];
    for (long k = 0; k < M * M; k++) {
        const double part = own.inverse[k] * own.psi2[k];
        sum += A[k];
        squares += part * part;
    }
    for (long d = 1; d < D; d++) least = noise[d] < least || isnan(noise[d]) ? noise[d] : least;
    numbers[0] = trace;
    numbers[1] = sum;
    numbers[2] = sqrt(squares);
    numbers[3] = least;
    return 0;
}

// The rest, from the eigenvalues e (M) and eigenvectors u (M, M) of A, and squares (D), the sums of y^2. `relative` is the
// derivative of jitter in scale. Writes the gradients in mean, variance, z, w and noise, unless g_mean is null, and numbers (3):
// the bound without the Jacobian of the scaling, the largest log density that outputs with this noise can have, without it
// as well, and the gradient in scale. Returns 1 if memory ran out.
int bound_end(const functions *F, long N, long M, long Q, long D, const double *variance, const double *z, const double *w,
              const double *y, const double *noise, const double *squares, double scale, double jitter, double relative,
              double *work, const double *e, const double *u, double *g_mean, double *g_variance, double *g_z, double *g_w,
              double *g_noise, double *numbers) {
    kept own;
    make_kept(N, M, Q, D, work, &own);
    const long square = M * M, rows = N * Q, points = M * Q;
    double *memory = malloc(sizeof(double) * (3 * square + M * D + 3 * D + N + 2 * rows + 3 * points + 2 * Q + 1));
    if (!memory) return 1;
    double *g_psi2 = memory, *g_K = g_psi2 + square, *g_sums = g_K + square, *g_v = g_sums + square, *beta = g_v + M * D;
    double *count = beta + D, *g_beta = count + D, *g_a = g_beta + D, *g_rho = g_a + N, *g_mu = g_rho + rows;
    double *through_K = g_mu + rows, *through_sums = through_K + points, *of_rows = through_sums + points;
    double *w_of_K = of_rows + points + Q + 1, psi0 = scale * (double)N, value, g_psi0, of_scale[2];
    double most = 0.0, rest = 0.0;
    for (long d = 0; d < D; d++) {
        beta[d] = 1.0 / noise[d], count[d] = 1.0;
        most -= 0.5 * (double)N * log(TWO_PI * noise[d]);
        rest += squares[d] * beta[d];
    }
    int failed = F->spectrum(1, M, D, D, e, u, own.L, &psi0, own.v, beta, count, &value, &g_psi0, g_mean ? g_v : NULL, g_psi2,
                             g_beta, g_K);
    numbers[0] = value + (most - 0.5 * rest);
    numbers[1] = most;
    if (failed || !g_mean) {
        free(memory);
        return failed;
    }
    for (long k = 0; k < square; k++) g_K[k] *= 0.5;
    failed = F->joint_gradients(M, Q, z, w, jitter, own.K, g_K, own.decay, own.psi2, g_psi2, g_sums, through_K, w_of_K,
                                of_scale) ||
             F->midpoint_backward(0, N, M, Q, own.a, own.rho, own.mu, own.z, 0, N, g_sums, g_a, g_rho, g_mu, through_sums) ||
             F->rows_backward(N, M, Q, D, own.mu, variance, own.z, w, y, NULL, scale, NULL, g_v, g_a, g_rho, g_mu, 0, N,
                              g_mean, g_variance, of_rows);
    if (!failed) {
        for (long d = 0; d < D; d++)  // dbeta/dnoise = -beta^2
            g_noise[d] = (0.5 * (squares[d] - (double)N / beta[d]) - g_beta[d]) * (beta[d] * beta[d]);
        for (long k = 0; k < points; k++) g_z[k] = (of_rows[k] + through_sums[k]) + through_K[k];
        for (long q = 0; q < Q; q++) g_w[q] = of_rows[points + q] + w_of_K[q];
        numbers[2] = (of_rows[points + Q] + of_scale[0]) / scale + (relative * of_scale[1] + g_psi0 * (double)N);
    }
    free(memory);
    return failed;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_bound", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__bound(void) { return PyModule_Create(&definition); }
#endif
