// SPDX-License-Identifier: Apache-2.0
// The collapsed bound of the squared exponential kernel for outputs without gaps, in a few calls: calls from Python, and the
// operations of torch between them, take as long as what small problems compute, and threads cannot share them. The sums and
// the algebra are those of other compiled files, whose functions a table has pointers to. mapping/rbf_bound.py does the same
// in steps.
//
//   begin                       what the latent points and z are, centred
//   covariance                  K_MM, which the sums do not need: a thread can compute it meanwhile
//   forward                     Psi1^T y and the sums of Psi2 of a range of rows
//   sums                        of all ranges
//   cholesky, resolvents        the terms of outputs with one noise for all, or each, unless rounding makes a matrix indefinite
//   whiten, spectrum            A = L^-1 Psi2 L^-T, and these terms from its eigenvalues in any case
//   backward                    the gradients of a range of rows
//   end                         sums over the ranges
//
// mean, variance (N, Q), z (M, Q), w (Q), y (N, R), noise (R) or (1), and squares, the sums of y^2 with each noise. The latent points and z are centred in the sums. R is
// the number of outputs or, with one noise for all of them, of columns with the same Gram matrix.

#include "_vectors.h"

enum { ROWS = 4 };
#include "_panels.h"

#define TWO_PI 6.283185307179586

typedef struct {
    int (*covariance)(long M, long Q, const double *z, const double *w, double scale, double jitter,
                      double constant, double *K, double *inverse, double *L, double *decay);
    int (*whiten)(long C, long M, const double *L, const double *X, double *out);
    int (*spectrum)(long C, long M, long W, long R, const double *e, const double *u, const double *L, const double *psi0,
                    const double *v, const double *beta, const double *count, double *values, double *g_psi0, double *g_v,
                    double *g_psi2, double *g_beta, double *g_K);
    int (*resolvents)(long M, long W, const double *X, const double *L, double psi0, const double *v, const double *beta,
                      const double *count, double *numbers, double *g_v, double *g_psi2, double *g_beta, double *g_K);
    int (*sandwich)(long M, const double *A, const double *X, double *out);
    int (*joint_gradients)(long M, long Q, const double *z, const double *w, double jitter, const double *K,
                           const double *g_K, const double *decay, const double *psi2, const double *g, double *g_sums,
                           double *g_z, double *g_w, double *numbers);
    int (*groups)(long C, long M, long W, const double *K, const double *inverse, const double *pivots,
                  const double *numbers, const double *psi2, const double *v, long c0, long c1, double *results, double *b,
                  double *g, double *direct, double *through);
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

// What all calls are given. sums (parts, bound_sums): Psi1^T y and Psi2 of each range of rows; the first one becomes the total.
// gradients: those in mean, variance, z, w and noise, not read if they are not wanted. of_points (parts, bound_points): of each
// range of rows, those in z, w and log scale through its rows, and those in z through its midpoints.
typedef struct {
    const functions *F;
    long N, M, Q, R, noises, single, parts;  // single: with numbers of type float in the sums of Psi2
    const double *mean, *variance, *z, *w, *y, *noise, *squares;
    const long *used;                       // as in rows_forward, may be null
    double count, scale, jitter, relative;  // count: outputs with one noise; relative: the derivative of jitter in scale
    double *work, *sums, *of_points, *g_mean, *g_variance, *g_z, *g_w, *g_noise;
} problem;

// What the calls leave for those after them
typedef struct {
    double *K, *inverse, *L, *decay;          // (M, M)
    double *g_sums, *g_v, *through_K, *w_of_K;  // gradients: (M, M), (M, R); through K_MM and decay (M, Q), (Q)
    double *mu, *rho, *a, *z;                 // (N, Q), (N, Q), (N), (M, Q), centred
    double *g_mu, *g_rho, *g_a;               // their gradients
    double *g_scale;                          // (1): a part of the gradient in scale
} kept;

// The next `count` numbers of the memory, of which `used` have been given away; null while only their number is wanted
static double *take(double *work, long *used, long count) {
    double *own = work ? work + *used : NULL;
    *used += rounded(count, 8);
    return own;
}

static long make_kept(const problem *P, kept *A) {
    const long square = P->M * P->M, rows = P->N * P->Q, points = P->M * P->Q;
    double **memory[] = {&A->K, &A->inverse, &A->L, &A->decay, &A->g_sums, &A->through_K, &A->z, &A->w_of_K, &A->g_scale,
                         &A->g_v, &A->mu, &A->rho, &A->a, &A->g_mu, &A->g_rho, &A->g_a};
    const long sizes[] = {square, square, square, square, square, points, points, P->Q, 1,
                          P->M * P->R, rows, rows, P->N, rows, rows, P->N};
    long used = 0;
    for (long k = 0; k < 16; k++) *memory[k] = take(P->work, &used, sizes[k]);
    return used;
}

static long sums_size(const problem *P) { return P->M * (P->R + P->M); }
static long points_size(const problem *P) { return (2 * P->M + 1) * P->Q + 1; }

// sizes (3): of `work`, and of a part of `sums` and of `of_points`, in numbers
int bound_sizes(const problem *P, long *sizes) {
    kept own;
    problem empty = *P;
    empty.work = NULL;
    sizes[0] = make_kept(&empty, &own);
    sizes[1] = sums_size(P);
    sizes[2] = points_size(P);
    return 0;
}

int bound_begin(const problem *P) {
    const long N = P->N, M = P->M, Q = P->Q;
    kept own;
    make_kept(P, &own);
    for (long q = 0; q < Q; q++) {
        double centre = 0.0;
        for (long m = 0; m < M; m++) centre += P->z[m * Q + q];
        centre /= (double)M;
        for (long m = 0; m < M; m++) own.z[m * Q + q] = P->z[m * Q + q] - centre;
        for (long n = 0; n < N; n++) own.mu[n * Q + q] = P->mean[n * Q + q] - centre;
    }
    return 0;
}

// Returns 1 if memory ran out, 2 if K is not positive definite.
int bound_covariance(const problem *P) {
    kept own;
    make_kept(P, &own);
    return P->F->covariance(P->M, P->Q, P->z, P->w, P->scale, P->jitter, 0, own.K, own.inverse, own.L, own.decay);
}

// The part of the rows n0 <= n < n1. Returns 1 if memory ran out.
int bound_forward(const problem *P, long part, long n0, long n1) {
    kept own;
    make_kept(P, &own);
    double *v = P->sums + part * sums_size(P), *psi2 = v + P->M * P->R;
    return P->F->rows_forward(P->N, P->M, P->Q, P->R, own.mu, P->variance, own.z, P->w, P->y, P->used, P->scale, n0, n1,
                              own.a, own.rho, NULL, v) ||
           P->F->midpoint_forward(P->single, P->N, P->M, P->Q, own.a, own.rho, own.mu, own.z, n0, n1, psi2);
}

// The sum of the parts, in the first one
static void add_parts(long parts, long size, double *sums) {
    for (long part = 1; part < parts; part++)
        for (long e = 0; e < size; e++) sums[e] += sums[part * size + e];
}

// The sums over all rows, and Psi2 = decay * its sums. Writes the norm of K^-1 * Psi2.
int bound_sums(const problem *P, double *norm) {
    kept own;
    make_kept(P, &own);
    double *psi2 = P->sums + P->M * P->R, squares = 0.0;
    add_parts(P->parts, sums_size(P), P->sums);
    for (long k = 0; k < P->M * P->M; k++) {
        psi2[k] *= own.decay[k];
        squares += own.inverse[k] * psi2[k] * (own.inverse[k] * psi2[k]);
    }
    *norm = sqrt(squares);
    return 0;
}

// Writes A (M, M), and numbers (2): its trace and the sum of its entries. Returns 1 if memory ran out.
int bound_whiten(const problem *P, double *A, double *numbers) {
    kept own;
    make_kept(P, &own);
    if (P->F->whiten(1, P->M, own.L, P->sums + P->M * P->R, A)) return 1;
    numbers[0] = numbers[1] = 0.0;
    for (long m = 0; m < P->M; m++) numbers[0] += A[m * P->M + m];
    for (long k = 0; k < P->M * P->M; k++) numbers[1] += A[k];
    return 0;
}

// From the terms of the outputs, and g_beta (noises): numbers (2), as bound_spectrum writes them, and the gradient in noise
static void add_noise(const problem *P, double terms, const double *g_beta, long wanted, double *numbers) {
    const double rows = (double)P->N * P->count;  // observations with one noise
    double most = 0.0, rest = 0.0;
    for (long k = 0; k < P->noises; k++) {
        const double noise = P->noise[k];
        most -= 0.5 * rows * log(TWO_PI * noise);
        rest += P->squares[k] / noise;
        if (wanted) P->g_noise[k] = (0.5 * (P->squares[k] - rows * noise) - g_beta[k]) / (noise * noise);  // dbeta = -beta^2
    }
    numbers[0] = terms + (most - 0.5 * rest);
    numbers[1] = most;
}

// From the gradients in Psi2 and g_K, twice that in K: those in the sums of Psi2, and through K_MM. Returns 1 if memory ran out.
static int begin_gradients(const problem *P, const kept *own, const double *g_psi2, double *g_K, double g_psi0) {
    double of_scale[2];
    for (long k = 0; k < P->M * P->M; k++) g_K[k] *= 0.5;
    const int failed = P->F->joint_gradients(P->M, P->Q, P->z, P->w, P->jitter, own->K, g_K, own->decay,
                                             P->sums + P->M * P->R, g_psi2, own->g_sums, own->through_K, own->w_of_K,
                                             of_scale);
    *own->g_scale = of_scale[0] / P->scale + (P->relative * of_scale[1] + g_psi0 * (double)P->N);
    return failed;
}

// From the eigenvalues e (M) and eigenvectors u (M, M) of A. Writes the gradient in noise, if gradients are wanted, and
// numbers (2): the bound without the Jacobian of the scaling, and the largest log density that outputs with this noise can
// have, without it as well. Returns 1 if memory ran out.
int bound_spectrum(const problem *P, const double *e, const double *u, long wanted, double *numbers) {
    const long M = P->M, noises = P->noises, square = M * M;
    kept own;
    make_kept(P, &own);
    double *memory = allocate(sizeof(double) * (2 * square + 3 * noises));
    if (!memory) return 1;
    double *g_psi2 = memory, *g_K = g_psi2 + square, *beta = g_K + square, *count = beta + noises, *g_beta = count + noises;
    double psi0 = P->scale * (double)P->N, value, g_psi0;
    for (long k = 0; k < noises; k++) beta[k] = 1.0 / P->noise[k], count[k] = P->count;
    int failed = P->F->spectrum(1, M, P->R, noises, e, u, own.L, &psi0, P->sums, beta, count, &value, &g_psi0,
                                wanted ? own.g_v : NULL, g_psi2, g_beta, g_K);
    if (!failed) add_noise(P, value, g_beta, wanted, numbers);
    if (!failed && wanted) failed = begin_gradients(P, &own, g_psi2, g_K, g_psi0);
    free(memory);
    return failed;
}

// The same without eigenvalues, and more numbers (4): the least pivot of B relative to that of K, and the slack. Returns 2 if
// B is not positive definite.
int bound_resolvents(const problem *P, long wanted, double *numbers) {
    const long M = P->M, noises = P->noises, square = M * M;
    kept own;
    make_kept(P, &own);
    double *memory = allocate(sizeof(double) * (2 * square + 3 * noises));
    if (!memory) return 1;
    double *g_psi2 = memory, *g_K = g_psi2 + square, *beta = g_K + square, *count = beta + noises, *g_beta = count + noises;
    const double psi0 = P->scale * (double)P->N;
    double found[4];  // the terms, the gradient in psi0, the least pivot of L^-1 B L^-T, and the trace of L^-1 Psi2 L^-T
    for (long k = 0; k < noises; k++) beta[k] = 1.0 / P->noise[k], count[k] = P->count;
    int failed = P->F->resolvents(M, noises, P->sums + M * P->R, own.L, psi0, P->sums, beta, count, found,
                                  wanted ? own.g_v : NULL, g_psi2, g_beta, g_K);
    if (!failed && !(found[2] > 0.0)) failed = 2;
    if (!failed) {
        add_noise(P, found[0], g_beta, wanted, numbers);
        numbers[2] = sqrt(found[2]), numbers[3] = psi0 - found[3];
    }
    if (!failed && wanted) failed = begin_gradients(P, &own, g_psi2, g_K, found[1]);
    free(memory);
    return failed;
}

// The same with one noise for all outputs, and more numbers (4): the least pivot of B relative to that of K, and the slack.
// Returns 2 if B is not positive definite.
int bound_cholesky(const problem *P, long wanted, double *numbers) {
    const long M = P->M, square = M * M, panels = panels_size(M);
    kept own;
    make_kept(P, &own);
    double *memory = allocate(sizeof(double) * (3 * square + 2 * panels + M));
    if (!memory) return 1;
    double *packed = memory, *g = packed + panels, *pivots = g + panels;
    double *g_psi2 = pivots + M, *direct = g_psi2 + square, *through = direct + square;
    const double given[] = {P->scale * (double)P->N, 1.0 / *P->noise, P->count};
    double found[5];  // the terms, the least pivot, the slack, and the gradients in psi0 and beta
    to_panels(M, P->sums + M * P->R, packed);
    for (long m = 0; m < M; m++) pivots[m] = own.L[m * M + m];
    int failed = P->F->groups(1, M, P->R, own.K, own.inverse, pivots, given, packed, P->sums, 0, 1, found, own.g_v,
                              wanted ? g : NULL, direct, through);
    if (!failed) {
        add_noise(P, found[0], found + 4, wanted, numbers);
        numbers[2] = found[1], numbers[3] = found[2];
    }
    if (!failed && wanted) {
        to_matrix(M, g, g_psi2);
        failed = P->F->sandwich(M, own.inverse, through, direct) || begin_gradients(P, &own, g_psi2, direct, found[3]);
    }
    free(memory);
    return failed;
}

// The gradients of the rows n0 <= n < n1, and their part of those in points and weights. Returns 1 if memory ran out.
int bound_backward(const problem *P, long part, long n0, long n1) {
    kept own;
    make_kept(P, &own);
    double *of_rows = P->of_points + part * points_size(P), *of_midpoints = of_rows + (P->M + 1) * P->Q + 1;
    return P->F->midpoint_backward(P->single, P->N, P->M, P->Q, own.a, own.rho, own.mu, own.z, n0, n1, own.g_sums, own.g_a,
                                   own.g_rho, own.g_mu, of_midpoints) ||
           P->F->rows_backward(P->N, P->M, P->Q, P->R, own.mu, P->variance, own.z, P->w, P->y, P->used, P->scale, NULL,
                               own.g_v, own.g_a, own.g_rho, own.g_mu, n0, n1, P->g_mean, P->g_variance, of_rows);
}

// Writes the gradients in z and w, and that in scale.
int bound_end(const problem *P, double *g_scale) {
    const long points = P->M * P->Q;
    kept own;
    make_kept(P, &own);
    add_parts(P->parts, points_size(P), P->of_points);
    const double *of_weight = P->of_points + points, *of_midpoints = of_weight + P->Q + 1;
    for (long k = 0; k < points; k++) P->g_z[k] = (P->of_points[k] + of_midpoints[k]) + own.through_K[k];
    for (long q = 0; q < P->Q; q++) P->g_w[q] = of_weight[q] + own.w_of_K[q];
    *g_scale = of_weight[P->Q] / P->scale + *own.g_scale;
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_bound", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__bound(void) { return PyModule_Create(&definition); }
#endif
