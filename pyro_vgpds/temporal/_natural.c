// SPDX-License-Identifier: Apache-2.0
// The moments of q(X) under a Markov kernel, its KL divergence, all gradients and natural steps: one call for each pass over
// some of the chains, which threads may divide. Kernels and recursions are those of other compiled files, whose functions a
// plan has pointers to. temporal/path_gradients.py describes the rest.
//
// Arrays of the user are (N, Q), with a column for each chain. Those of a pass over C chains are (C, N): mean_f = E f, bar =
// mean_bar, s_f = var f, with f the path without white noise. Values of the kernels' parameters are (P, K), with K = 1 or Q.
// With sigma = 1 / (1 + white lam), the sites of f are (sigma eta, sigma lam), and
//
//     mu = mean_f + white bar,    s = sigma (white + sigma s_f).

#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

enum { VARIANCE, SOLVE, GRADIENT, QUADRATIC, QUADRATIC_OF_CHAINS = 6 };

typedef int states_function(const long *code, long k0, long k1, long kernels, long steps, long size, const double *values,
                            const double *dt, const long *begins, const long *place, double *a, double *at, double *q,
                            double *variance);
typedef int states_gradient(const long *code, long k0, long k1, long kernels, long steps, long size, const double *values,
                            const double *dt, const long *begins, const long *place, const double *g_a, const double *half,
                            const double *g_q, double *g_values);
typedef int tiles_function(int task, long n, long t, long steps, long c0, long c1, const long *step, const long *index,
                           const double *a, const double *at, const double *q, const double *h, const double *lam,
                           const double *eta, const double *d_lam, const double *weight, double *w, double *v, double *out0,
                           double *out1, double *g_a, double *g_q);
typedef int chains_function(int task, long n, long d, long steps, long c0, long c1, const long *pattern, const long *step,
                            const long *index, const double *a, const double *q, const double *h, const double *in0,
                            const double *in1, const double *in2, const double *weight, double *out0, double *out1,
                            double *out2, double *g_a, double *g_q);

// What is the same in all passes; Python fills it in. A function of tiles is used if tiles > 0, and one of chains otherwise.
typedef struct {
    long frames, chains, kernels, parameters, steps, size, width, tiles, whites;
    const long *code, *begins, *place, *step, *pattern, *white_rows;
    const double *dt, *h;
    states_function *states;
    states_gradient *states_grad;
    tiles_function *run_tiles;
    chains_function *run_chains;
} plan;

// The memory of a pass, (C, N) and others
typedef struct {
    long chains, kernels, matrices;
    double *s, *lam, *eta, *spare, *v, *mean, *bar, *w;
    double *a, *at, *q, *white, *variance, *weight;
    long *index;
} part;

static long aligned(long count) { return (count + 7) / 8 * 8; }  // to 64 bytes

// The next `count` numbers of the memory, of which `used` have been given away; null while only their number is wanted
static double *take(double *work, long *used, long count) {
    double *own = work ? work + *used : NULL;
    *used += aligned(count);
    return own;
}

// The memory for some chains, in `work` if it is not null; returns its size in numbers
static long make_part(const plan *P, long chains, double *work, part *A) {
    long used = 0;
    const long each = chains * P->frames, kernels = P->kernels == 1 ? 1 : chains, matrices = kernels * P->steps * P->size;
    A->chains = chains, A->kernels = kernels, A->matrices = matrices;
    double **rows[] = {&A->s, &A->lam, &A->eta, &A->spare, &A->v, &A->mean, &A->bar};
    for (long i = 0; i < 7; i++) *rows[i] = take(work, &used, each);
    A->w = take(work, &used, P->tiles ? each * P->width : 0);
    A->a = take(work, &used, matrices);
    A->q = take(work, &used, matrices);
    A->at = take(work, &used, P->tiles ? matrices : 0);
    A->white = take(work, &used, chains);
    A->variance = take(work, &used, kernels);
    A->weight = take(work, &used, chains);
    A->index = (long *)take(work, &used, chains);
    return used;
}

int natural_size(const plan *P, long chains, long *size) {
    part A;
    *size = make_part(P, chains, NULL, &A);
    return 0;
}

static int run(const plan *P, const part *A, int task, const double *lam, const double *other, const double *weight,
               double *out0, double *out1, double *g_a, double *g_q) {
    if (P->tiles)
        return P->run_tiles(task, P->frames, P->tiles, P->steps, 0, A->chains, P->step, A->index, A->a, A->at, A->q, P->h, lam,
                            task == GRADIENT ? NULL : other, task == GRADIENT ? other : NULL, weight, A->w, A->v, out0, out1,
                            g_a, g_q);
    return P->run_chains(task == QUADRATIC ? QUADRATIC_OF_CHAINS : task, P->frames, P->width, P->steps, 0, A->chains,
                         P->pattern, P->step, A->index, A->a, A->q, P->h, lam, other, NULL, weight, out0, out1,
                         task == VARIANCE ? A->v : NULL, g_a, g_q);
}

// The log of a product of numbers of about 1 or more; each log alone would take longer than all else for a frame
typedef struct {
    double product, logs;
} log_product;

static void multiply(log_product *x, double factor) {
    x->product *= factor;
    if (x->product < 1e100) return;
    x->logs += log(x->product);  // a NaN stays
    x->product = 1.0;
}

static double shrink(double lam, double white) { return 1.0 / (1.0 + white * lam); }

// Four numbers of a chain: twice its part of KL = 1/2 sum (log|B| + bar mu - lam s), the least and the largest of lam s, and
// the first plus jitter times the size of its terms. Writes mu and s, without negative values that rounding errors made.
static void moments(const plan *P, const part *A, long c, double jitter, const double *lam, double *mu, double *s,
                    double *numbers) {
    const long n = P->frames, q = P->chains;
    const double w = A->white[c], *mean = A->mean + c * n, *bar = A->bar + c * n, *s_f = A->s + c * n;
    log_product det = {1.0, 0.0};
    double squares = 0.0, shares = 0.0, size = 0.0, low = INFINITY, high = -INFINITY;
    for (long i = 0; i < n; i++) {
        const double l = lam[i * q], sigma = shrink(l, w), variance = sigma * (w + sigma * s_f[i]), share = l * variance;
        const double own = mean[i] + w * bar[i], square = bar[i] * own;
        multiply(&det, 1.0 + A->lam[c * n + i] * A->v[c * n + i]);
        multiply(&det, 1.0 + l * w);
        squares += square;
        shares += share;
        size += fabs(square);
        low = share < low ? share : low;
        high = share > high ? share : high;
        mu[i * q] = own;
        s[i * q] = variance < 0.0 ? 0.0 : variance;  // a NaN stays
    }
    const double logdet = det.logs + log(det.product);
    numbers[0] = logdet + (squares - shares);
    numbers[1] = low;
    numbers[2] = high;
    numbers[3] = numbers[0] + jitter * (fabs(logdet) + size + (double)n);
}

// Chains c0 <= c < c1, with work of natural_size for them, which natural_backward needs: mu, s (N, Q), the variances of the
// prior (K,), and numbers (Q, 4). Returns nonzero if memory ran out.
int natural_forward(const plan *P, long c0, long c1, double jitter, const double *values, const double *eta,
                    const double *lam, double *work, double *mu, double *s, double *variance, double *numbers) {
    part A;
    make_part(P, c1 - c0, work, &A);
    const long n = P->frames, q = P->chains, k0 = P->kernels == 1 ? 0 : c0;
    memset(A.a, 0, sizeof(double) * A.matrices);
    memset(A.q, 0, sizeof(double) * A.matrices);
    if (P->tiles) memset(A.at, 0, sizeof(double) * A.matrices);
    memset(A.variance, 0, sizeof(double) * A.kernels);
    if (P->states(P->code, 0, A.kernels, P->kernels, P->steps, P->size, values + k0, P->dt, P->begins, P->place, A.a,
                  P->tiles ? A.at : NULL, A.q, A.variance))
        return 1;
    for (long c = 0; c < A.chains; c++) {
        const long k = A.index[c] = A.kernels == 1 ? 0 : c;
        double w = 0.0;
        for (long r = 0; r < P->whites; r++) w += values[P->white_rows[r] * P->kernels + k0 + k];
        A.white[c] = w;
        A.weight[c] = 0.5;
        variance[k0 + k] = A.variance[k] + w;
        for (long i = 0; i < n; i++) {
            const long at = i * q + c0 + c;
            const double sigma = shrink(lam[at], w);
            A.eta[c * n + i] = sigma * eta[at];
            A.lam[c * n + i] = sigma * lam[at];
        }
    }
    const int failed = run(P, &A, VARIANCE, A.lam, NULL, NULL, A.s, P->tiles ? A.spare : NULL, NULL, NULL) ||
                       run(P, &A, SOLVE, A.lam, A.eta, NULL, A.mean, A.bar, NULL, NULL);
    for (long c = 0; c < A.chains && !failed; c++)
        moments(P, &A, c, jitter, lam + c0 + c, mu + c0 + c, s + c0 + c, numbers + 4 * (c0 + c));
    return failed;
}

typedef struct {
    double mu, s, bar;
} gradient;

// The gradients of the loss, KL minus a function with the derivatives d_mean and d_variance, in mu, s and bar
static gradient of_loss(double lam, double white, double mu, double bar, double s_f, double d_mean, double d_variance) {
    const double inside = white + shrink(lam, white) * s_f < 0.0 ? 0.0 : d_variance;
    return (gradient){0.5 * bar - d_mean, -0.5 * lam - inside, 0.5 * mu};
}

// Adds to g_values (P, K) the gradients in the logs of values. Others as in natural_forward, which must have run before
int natural_backward(const plan *P, long c0, long c1, const double *values, const double *eta, const double *lam,
                     double *work, const double *mu, const double *d_mean, const double *d_variance, double *g_values) {
    part A;
    make_part(P, c1 - c0, work, &A);
    const long n = P->frames, q = P->chains, k0 = P->kernels == 1 ? 0 : c0, each = aligned(A.chains * n);
    const long matrices = aligned(A.matrices), count = 3 * each + (P->tiles ? 3 : 2) * matrices;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, sizeof(double) * count)) return 1;
    double *g_own = memory, *through = g_own + each, *left = through + each;
    double *g_a = left + each, *g_q = g_a + matrices, *half = P->tiles ? g_q + matrices : g_a;  // of the variances
    double *direction = A.spare, *sites = A.eta;
    memset(g_a, 0, sizeof(double) * (count - 3 * each));
    for (long c = 0; c < A.chains; c++)
        for (long i = 0; i < n; i++) {
            const long at = i * q + c0 + c, own = c * n + i;
            const double l = lam[at], w = A.white[c], sigma = shrink(l, w);
            const gradient g = of_loss(l, w, mu[at], A.bar[own], A.s[own], d_mean[at], d_variance[at]);
            direction[own] = sigma * sigma * g.s;
            sites[own] = g.mu - sigma * l * (g.bar + w * g.mu);
        }
    int failed = run(P, &A, GRADIENT, A.lam, direction, A.weight, g_own, NULL, half, g_q) ||
                 run(P, &A, SOLVE, A.lam, sites, NULL, through, left, NULL, NULL) ||
             run(P, &A, QUADRATIC, left, A.bar, NULL, NULL, NULL, g_a, g_q) ||
             P->states_grad(P->code, 0, A.kernels, P->kernels, P->steps, P->size, values + k0, P->dt, P->begins, P->place,
                            g_a, P->tiles ? half : NULL, g_q, g_values + k0);
    for (long c = 0; c < A.chains && !failed; c++) {
        const double w = A.white[c];
        double total = 0.0;
        for (long i = 0; i < n; i++) {
            const long at = i * q + c0 + c, own = c * n + i;
            const double l = lam[at], sigma = shrink(l, w), s = A.s[own];
            const gradient g = of_loss(l, w, mu[at], A.bar[own], s, d_mean[at], d_variance[at]);
            const double g_eta = through[own] + g.bar + w * g.mu;
            const double g_lam = g_own[own] + 0.5 * s - A.mean[own] * g_eta;
            const double g_sigma = eta[at] * g_eta + l * g_lam + g.s * (w + 2.0 * sigma * s) - 0.5 / sigma;
            total += g.mu * A.bar[own] + sigma * g.s - l * sigma * sigma * g_sigma;
        }
        for (long r = 0; r < P->whites; r++) g_values[P->white_rows[r] * P->kernels + k0 + A.index[c]] += total;
    }
    for (long r = 0; r < P->parameters; r++)  // d exp(x) = exp(x) dx
        for (long k = r * P->kernels + k0, end = k + A.kernels; k < end; k++) g_values[k] *= values[k];
    free(memory);
    return failed;
}

// A natural step of length rate: lam* = max(-2 d_variance, floor / variance), and eta* = d_mean + lam* mu
int natural_step(long n, long q, long k, double rate, double floor, const double *eta, const double *lam, const double *mu,
                 const double *d_mean, const double *d_variance, const double *variance, double *new_eta, double *new_lam) {
    for (long i = 0; i < n; i++)
        for (long c = 0; c < q; c++) {
            const long at = i * q + c;
            const double prior = variance[k == 1 ? 0 : c], least = floor / (prior > DBL_MIN ? prior : 1.0);
            const double found = -2.0 * d_variance[at], wanted = found < least ? least : found;  // a NaN stays
            new_eta[at] = (1.0 - rate) * eta[at] + rate * (d_mean[at] + wanted * mu[at]);
            new_lam[at] = (1.0 - rate) * lam[at] + rate * wanted;
        }
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_natural", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__natural(void) { return PyModule_Create(&definition); }
#endif
