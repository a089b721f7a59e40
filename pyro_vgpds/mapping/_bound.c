// SPDX-License-Identifier: Apache-2.0
// The collapsed bound of the squared exponential kernel in a few calls: calls from Python, and the operations of torch between
// them, take as long as what small problems compute, and threads cannot share them. The sums and the algebra are those of other
// compiled files, whose functions a table has pointers to. mapping/rbf_bound.py does the same in steps.
//
//   begin                       what the latent points and z are, centred
//   covariance                  K_MM, which the sums do not need: a thread can compute it meanwhile
//   forward                     Psi1^T y and the sums of Psi2 of a range of rows
//   sums                        of all ranges
//   cholesky, resolvents        the terms of outputs with one noise for all, or each, unless rounding makes a matrix indefinite
//   whiten, spectrum            A = L^-1 Psi2 L^-T, and these terms from its eigenvalues in any case
//   groups, terms               the terms of a range of groups of outputs with gaps, in place of these; and of all groups
//   backward                    the gradients of a range of rows
//   end                         sums over the ranges
//
// mean, variance (N, Q), z (M, Q), w (Q), y (N, R), noise (R) or (1), and with each noise squares, the sums of y^2, and seen, the
// observations. The latent points and z are centred in the sums. R is the number of outputs or, with one noise for all of them,
// of columns with the same Gram matrix. Outputs with gaps are C groups of columns of y, one after the other, in rows of mask
// (C, N). Their Psi2 are panels (_panels.h) in blocks, (blocks, C + 1, BLOCK), as grouped_backward takes the gradients, which take
// the place of Psi2.

#include "_vectors.h"

enum { ROWS = 4, BLOCK = 2 * ROWS * ROWS };
#include "_panels.h"

#define TWO_PI 6.283185307179586

enum { TERMS = 6 };  // of a group: value, least pivot, slack, square of the norm of K^-1 * Psi2, gradients in psi0 and beta

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
    int (*in_place)(long C, long M, long W, const double *K, const double *inverse, const double *pivots,
                    const double *numbers, double *psi2, const double *v, long step, double *results, double *b, long wanted,
                    double *direct, double *through, const double *decay, const double *full, double *all,
                    double *products);
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
    int (*grouped_forward)(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                           const double *mask, long n0, long n1, const double *decay, long in_blocks, double *V);
    int (*grouped_backward)(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                            const double *mask, long n0, long n1, const double *packed, double *grad_a, double *grad_r,
                            double *grad_mu, double *grad_z);
} functions;

// What all calls are given. sums (parts, bound_sums): Psi1^T y and Psi2 of each range of rows; the first one becomes the total.
// gradients: those in mean, variance, z, w and noise, not read if they are not wanted. of_points (parts, bound_points): of each
// range of rows, those in z, w and log scale through its rows, and those in z through its midpoints. C is 0 without gaps.
typedef struct {
    const functions *F;
    long N, M, Q, R, noises, single, parts, C, group_parts;  // single: with numbers of type float in the sums of Psi2
    const double *mean, *variance, *z, *w, *y, *noise, *squares, *seen;
    const long *used, *widths;            // used: as in rows_forward, may be null; widths: columns of groups
    const double *mask, *rows, *columns;  // of groups: the numbers of their rows and outputs
    double count, scale, jitter, relative;  // count: outputs with one noise; relative: the derivative of jitter in scale
    double *work, *sums, *of_points;
    double *results, *of_K;  // of groups, as terms_groups writes them (C, TERMS), and (group_parts, bound_sizes)
    double *g_mean, *g_variance, *g_z, *g_w, *g_noise;
} problem;

// What the calls leave for those after them
typedef struct {
    double *K, *inverse, *L, *decay;          // (M, M)
    double *g_sums, *g_v, *through_K, *w_of_K;  // gradients: (M, M), (M, R); through K_MM and decay (M, Q), (Q)
    double *mu, *rho, *a, *z;                 // (N, Q), (N, Q), (N), (M, Q), centred
    double *g_mu, *g_rho, *g_a;               // their gradients
    double *g_scale;                          // (1): a part of the gradient in scale
    double *g_beta;                           // (R): of groups; the first of their columns has that in a noise of all
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
                         &A->g_v, &A->mu, &A->rho, &A->a, &A->g_mu, &A->g_rho, &A->g_a, &A->g_beta};
    const long sizes[] = {square, square, square, square, square, points, points, P->Q, 1,
                          P->M * P->R, rows, rows, P->N, rows, rows, P->N, P->R};
    long used = 0;
    for (long k = 0; k < 17; k++) *memory[k] = take(P->work, &used, sizes[k]);
    return used;
}

// The sums of Psi2 of a range of rows follow those of Psi1^T y
static double *psi2_of(const problem *P, double *sums) { return sums + rounded(P->M * P->R, 8); }
static long step_of(const problem *P) { return (P->C + 1) * BLOCK; }  // from one block of all groups to the next
static long blocks_of(const problem *P) {
    const long panels = rounded(P->M, ROWS) / ROWS + 1;
    return panels * panels / 4;
}
static long sums_size(const problem *P) {
    return rounded(P->M * P->R, 8) + (P->C ? blocks_of(P) * step_of(P) : P->M * P->M);
}
static long points_size(const problem *P) { return (2 * P->M + 1) * P->Q + 1; }

// What a range of groups adds to the gradients in K: direct and through (M, M) of terms_groups, and all and products (S) of
// terms_in_place
static long of_K_size(const problem *P) { return 2 * (P->M * P->M + panels_size(P->M)); }

// sizes (4): of `work` and of a part of `sums`, of `of_points` and of `of_K`, in numbers
int bound_sizes(const problem *P, long *sizes) {
    kept own;
    problem empty = *P;
    empty.work = NULL;
    sizes[0] = make_kept(&empty, &own);
    sizes[1] = sums_size(P);
    sizes[2] = points_size(P);
    sizes[3] = of_K_size(P);
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

// The part of the rows n0 <= n < n1; with groups, after bound_covariance. Returns 1 if memory ran out.
int bound_forward(const problem *P, long part, long n0, long n1) {
    kept own;
    make_kept(P, &own);
    double *v = P->sums + part * sums_size(P), *psi2 = psi2_of(P, v);
    return P->F->rows_forward(P->N, P->M, P->Q, P->R, own.mu, P->variance, own.z, P->w, P->y, P->used, P->scale, n0, n1,
                              own.a, own.rho, NULL, v) ||
           (P->C ? P->F->grouped_forward(P->N, P->M, P->Q, P->C, own.a, own.rho, own.mu, own.z, P->mask, n0, n1,
                                         own.decay, 1, psi2)
                 : P->F->midpoint_forward(P->single, P->N, P->M, P->Q, own.a, own.rho, own.mu, own.z, n0, n1, psi2));
}

// The sum of the parts, in the first one
static void add_parts(long parts, long size, double *sums) {
    for (long part = 1; part < parts; part++)
        for (long e = 0; e < size; e++) sums[e] += sums[part * size + e];
}

// The sums over all rows, and without groups Psi2 = decay * its sums. Writes the norm of K^-1 * Psi2.
int bound_sums(const problem *P, double *norm) {
    kept own;
    make_kept(P, &own);
    double *psi2 = psi2_of(P, P->sums), squares = 0.0;
    add_parts(P->parts, sums_size(P), P->sums);
    if (P->C) return 0;
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
    if (P->F->whiten(1, P->M, own.L, psi2_of(P, P->sums), A)) return 1;
    numbers[0] = numbers[1] = 0.0;
    for (long m = 0; m < P->M; m++) numbers[0] += A[m * P->M + m];
    for (long k = 0; k < P->M * P->M; k++) numbers[1] += A[k];
    return 0;
}

// From the terms of the outputs, and g_beta (noises): numbers (2), as bound_spectrum writes them, and the gradient in noise
static void add_noise(const problem *P, double terms, const double *g_beta, long wanted, double *numbers) {
    double most = 0.0, rest = 0.0;
    for (long k = 0; k < P->noises; k++) {
        const double noise = P->noise[k], rows = P->seen[k];
        most -= 0.5 * rows * log(TWO_PI * noise);
        rest += P->squares[k] / noise;
        if (wanted) P->g_noise[k] = (0.5 * (P->squares[k] - rows * noise) - g_beta[k]) / (noise * noise);  // dbeta = -beta^2
    }
    numbers[0] = terms + (most - 0.5 * rest);
    numbers[1] = most;
}

// From the gradients in Psi2, in psi0 through scale, and g_K, twice that in K: those in the sums of Psi2, and through K_MM. If
// g_psi2 is null, psi2 is the product of both. Returns 1 if memory ran out.
static int begin_gradients(const problem *P, const kept *own, const double *psi2, const double *g_psi2, double *g_K,
                           double through_psi0) {
    double of_scale[2];
    for (long k = 0; k < P->M * P->M; k++) g_K[k] *= 0.5;
    const int failed = P->F->joint_gradients(P->M, P->Q, P->z, P->w, P->jitter, own->K, g_K, own->decay, psi2, g_psi2,
                                             own->g_sums, own->through_K, own->w_of_K, of_scale);
    *own->g_scale = of_scale[0] / P->scale + (P->relative * of_scale[1] + through_psi0);
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
    if (!failed && wanted) failed = begin_gradients(P, &own, psi2_of(P, P->sums), g_psi2, g_K, g_psi0 * (double)P->N);
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
    int failed = P->F->resolvents(M, noises, psi2_of(P, P->sums), own.L, psi0, P->sums, beta, count, found,
                                  wanted ? own.g_v : NULL, g_psi2, g_beta, g_K);
    if (!failed && !(found[2] > 0.0)) failed = 2;
    if (!failed) {
        add_noise(P, found[0], g_beta, wanted, numbers);
        numbers[2] = sqrt(found[2]), numbers[3] = psi0 - found[3];
    }
    if (!failed && wanted) failed = begin_gradients(P, &own, psi2_of(P, P->sums), g_psi2, g_K, found[1] * (double)P->N);
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
    double found[TERMS];
    to_panels(M, psi2_of(P, P->sums), packed);
    for (long m = 0; m < M; m++) pivots[m] = own.L[m * M + m];
    int failed = P->F->groups(1, M, P->R, own.K, own.inverse, pivots, given, packed, P->sums, 0, 1, found, own.g_v,
                              wanted ? g : NULL, direct, through);
    if (!failed) {
        add_noise(P, found[0], found + 5, wanted, numbers);
        numbers[2] = found[1], numbers[3] = found[2];
    }
    if (!failed && wanted) {
        to_matrix(M, g, g_psi2);
        failed = P->F->sandwich(M, own.inverse, through, direct) ||
                 begin_gradients(P, &own, psi2_of(P, P->sums), g_psi2, direct, found[4] * (double)P->N);
    }
    free(memory);
    return failed;
}

// Whether grouped_backward takes a group as all rows minus others
static int has_most(const problem *P, long c) { return 2.0 * P->rows[c] > (double)P->N; }

// Columns of Psi1^T y as the groups have them, (groups, M, W); and back
static void split_columns(const problem *P, long groups, long W, const double *columns, double *v) {
    for (long m = 0; m < P->M; m++)
        for (long c = 0; c < groups; c++) memcpy(v + (c * P->M + m) * W, columns + m * P->R + c * W, W * sizeof(double));
}
static void join_columns(const problem *P, long groups, long W, const double *v, double *columns) {
    for (long m = 0; m < P->M; m++)
        for (long c = 0; c < groups; c++) memcpy(columns + m * P->R + c * W, v + (c * P->M + m) * W, W * sizeof(double));
}

// The terms of groups with the same width and one noise each, the first column of which is given, and what they add to `to`, a
// part of of_K
static int terms_of_run(const problem *P, const kept *own, long wanted, long c0, long c1, long column, double *to) {
    const long M = P->M, W = P->widths[c0], count = c1 - c0, size = count * M * W, square = M * M;
    double *memory = allocate(sizeof(double) * (4 * count + M + 2 * size + 2 * square));
    if (!memory) return 1;
    double *given = memory, *full = given + 3 * count, *pivots = full + count, *v = pivots + M, *b = v + size;
    double *direct = b + size, *results = P->results + c0 * TERMS;
    for (long c = 0; c < count; c++) {
        given[3 * c] = P->scale * P->rows[c0 + c];
        given[3 * c + 1] = 1.0 / P->noise[P->noises > 1 ? column + c : 0];
        given[3 * c + 2] = P->columns[c0 + c];
        full[c] = has_most(P, c0 + c);
    }
    for (long m = 0; m < M; m++) pivots[m] = own->L[m * M + m];
    split_columns(P, count, W, P->sums + column, v);
    const int failed = P->F->in_place(count, M, W, own->K, own->inverse, pivots, given, psi2_of(P, P->sums) + c0 * BLOCK, v,
                                      step_of(P), results, b, wanted, direct, direct + square, own->decay, full,
                                      to + 2 * square, to + 2 * square + panels_size(M));
    if (wanted && !failed) {
        for (long c = 0; c < count; c++) own->g_beta[column + c * W] = results[c * TERMS + 5];
        for (long k = 0; k < 2 * square; k++) to[k] += direct[k];
        join_columns(P, count, W, b, own->g_v + column);
    }
    free(memory);
    return failed;
}

// The panels of a group from its blocks; and back
static void from_blocks(const problem *P, const double *blocks, double *panels) {
    for (long m = 0, Mpad = rounded(P->M, ROWS); m < Mpad; m += ROWS)
        for (long e = panel_start(Mpad, m); e < panel_start(Mpad, m + ROWS); e += BLOCK, blocks += step_of(P))
            memcpy(panels + e, blocks, min(BLOCK, panel_start(Mpad, m + ROWS) - e) * sizeof(double));
}
static void to_blocks(const problem *P, const double *panels, double *blocks) {
    for (long m = 0, Mpad = rounded(P->M, ROWS); m < Mpad; m += ROWS)
        for (long e = panel_start(Mpad, m); e < panel_start(Mpad, m + ROWS); e += BLOCK, blocks += step_of(P))
            memcpy(blocks, panels + e, min(BLOCK, panel_start(Mpad, m + ROWS) - e) * sizeof(double));
}

// g, panels, as terms_in_place has it: all += g decay, with half of the squares at the diagonal; products += g psi2
static void weigh_panels(const problem *P, const kept *own, double full, const double *psi2, double *g, double *all,
                         double *products) {
    const long M = P->M;
    for (long m = 0, e = 0; m < M; m += ROWS)
        for (long j = m; j < rounded(M, ROWS); j++)
            for (long i = m; i < m + ROWS; i++, e++) {
                const double decay = i < M && j < M ? own->decay[i * M + j] : 0.0;
                products[e] += g[e] * psi2[e];
                g[e] *= j < m + ROWS ? 0.5 * decay : decay;
                all[e] += full * g[e];
            }
}

// Those of a group with a noise for each of several columns
static int terms_of_noises(const problem *P, const kept *own, long wanted, long c, long column, double *to) {
    const long M = P->M, W = P->widths[c], square = M * M, panels = panels_size(M);
    const double psi0 = P->scale * P->rows[c];
    double *memory = allocate(sizeof(double) * (3 * square + 2 * panels + 2 * M * W + 2 * W)), found[4];
    double *results = P->results + c * TERMS, *blocks = psi2_of(P, P->sums) + c * BLOCK;
    if (!memory) return 1;
    double *psi2 = memory, *g = psi2 + square, *direct = g + square, *packed = direct + square, *g_packed = packed + panels;
    double *v = g_packed + panels, *b = v + M * W, *beta = b + M * W, *count = beta + W;
    for (long w = 0; w < W; w++) beta[w] = 1.0 / P->noise[column + w], count[w] = 1.0;
    from_blocks(P, blocks, packed);
    to_matrix(M, packed, psi2);
    split_columns(P, 1, W, P->sums + column, v);
    int failed = P->F->resolvents(M, W, psi2, own->L, psi0, v, beta, count, found, wanted ? b : NULL, g, own->g_beta + column,
                                  direct);
    if (!failed && !(found[2] > 0.0)) failed = 2;
    if (!failed) {
        const double to_write[] = {found[0], sqrt(found[2]), psi0 - found[3], 0.0, found[1], 0.0};
        memcpy(results, to_write, sizeof to_write);
        for (long k = 0; k < square; k++) results[3] += own->inverse[k] * psi2[k] * (own->inverse[k] * psi2[k]);
    }
    if (!failed && wanted) {
        for (long k = 0; k < square; k++) to[k] += direct[k];
        to_panels(M, g, g_packed);
        weigh_panels(P, own, has_most(P, c), packed, g_packed, to + 2 * square, to + 2 * square + panels);
        to_blocks(P, g_packed, blocks);
        join_columns(P, 1, W, b, own->g_v + column);
    }
    free(memory);
    return failed;
}

// The results of the groups c0 <= c < c1, and a part of the gradients in K. Returns 1 if memory ran out, 2 if a B is not
// positive definite.
int bound_groups(const problem *P, long wanted, long part, long c0, long c1) {
    double *to = P->of_K + part * of_K_size(P);
    long column = 0;
    int failed = 0;
    kept own;
    make_kept(P, &own);
    memset(to, 0, of_K_size(P) * sizeof(double));
    for (long c = 0; c < c0; c++) column += P->widths[c];
    for (long c = c0, end; c < c1 && !failed; c = end) {
        const int several = P->noises > 1 && P->widths[c] > 1;
        for (end = c + 1; !several && end < c1 && P->widths[end] == P->widths[c]; end++) {}
        failed = several ? terms_of_noises(P, &own, wanted, c, column, to) : terms_of_run(P, &own, wanted, c, end, column, to);
        column += (end - c) * P->widths[c];
    }
    return failed;
}

// From these of all groups: numbers (2), as bound_spectrum writes them, and what bound_backward needs. Returns 1 if memory ran
// out.
int bound_terms(const problem *P, long wanted, double *numbers) {
    const long M = P->M, square = M * M;
    double terms = 0.0, g_psi0 = 0.0, g_beta = 0.0;
    kept own;
    make_kept(P, &own);
    for (long c = 0, column = 0; c < P->C; column += P->widths[c++]) {
        const double *found = P->results + c * TERMS;
        terms += found[0];
        g_psi0 += found[4] * P->rows[c];
        g_beta += own.g_beta[column];
    }
    add_noise(P, terms, P->noises > 1 ? own.g_beta : &g_beta, wanted, numbers);
    if (!wanted) return 0;
    double *direct = P->of_K, *through = direct + square, *all = through + square, *products = all + panels_size(M);
    add_parts(P->group_parts, of_K_size(P), P->of_K);
    to_blocks(P, all, psi2_of(P, P->sums) + P->C * BLOCK);
    if (P->F->sandwich(M, own.inverse, through, direct)) return 1;
    to_matrix(M, products, through);
    return begin_gradients(P, &own, through, NULL, direct, g_psi0);
}

// The gradients of the rows n0 <= n < n1, and their part of those in points and weights. Returns 1 if memory ran out.
int bound_backward(const problem *P, long part, long n0, long n1) {
    kept own;
    make_kept(P, &own);
    double *of_rows = P->of_points + part * points_size(P), *of_midpoints = of_rows + (P->M + 1) * P->Q + 1;
    return (P->C ? P->F->grouped_backward(P->N, P->M, P->Q, P->C, own.a, own.rho, own.mu, own.z, P->mask, n0, n1,
                                          psi2_of(P, P->sums), own.g_a, own.g_rho, own.g_mu, of_midpoints)
                 : P->F->midpoint_backward(P->single, P->N, P->M, P->Q, own.a, own.rho, own.mu, own.z, n0, n1, own.g_sums,
                                           own.g_a, own.g_rho, own.g_mu, of_midpoints)) ||
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
