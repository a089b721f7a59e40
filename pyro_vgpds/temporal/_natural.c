// SPDX-License-Identifier: Apache-2.0
// What the moments of q(X), its KL divergence and its natural steps need besides the recursions of a Markov kernel: passes
// over N x Q numbers, each of which would take torch a dozen operations. temporal/known_path.py describes them.
//
// Arrays of the user are (N, Q). Those of the recursions are (Q, N): mean_f = E f, bar = mean_bar, s_f = var f, with f the
// path without white noise. white and the variances of the prior are (K,), with K = 1 or Q. With sigma = 1 / (1 + white lam),
// the sites of f are (sigma eta, sigma lam), and
//
//     mu = mean_f + white bar,    s = sigma (white + sigma s_f).

#include <Python.h>

#include <float.h>
#include <math.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

static double shrink(double lam, double white) { return 1.0 / (1.0 + white * lam); }

// The sites of f
int natural_sites(long n, long q, long k, const double *eta, const double *lam, const double *white, double *own_eta,
                  double *own_lam) {
    for (long c = 0; c < q; c++) {
        const double w = white[k == 1 ? 0 : c];
        for (long i = 0; i < n; i++) {
            const double sigma = shrink(lam[i * q + c], w);
            own_eta[c * n + i] = sigma * eta[i * q + c];
            own_lam[c * n + i] = sigma * lam[i * q + c];
        }
    }
    return 0;
}

// mu and s, without negative values that rounding errors made, and four numbers: KL = 1/2 sum (log|B| + bar mu - lam s), the
// least and the largest of lam s, and the least of the terms of the latent dimensions plus jitter times their size
int natural_moments(long n, long q, long k, double jitter, const double *lam, const double *white, const double *mean_f,
                    const double *bar, const double *s_f, const double *logdet_f, double *mu, double *s, double *numbers) {
    double total = 0.0, low = INFINITY, high = -INFINITY, least = INFINITY;
    for (long c = 0; c < q; c++) {
        const double w = white[k == 1 ? 0 : c];
        double logdet = logdet_f[c], squares = 0.0, shares = 0.0, size = 0.0;
        for (long i = 0; i < n; i++) {
            const long at = i * q + c, own = c * n + i;
            const double l = lam[at], sigma = shrink(l, w), variance = sigma * (w + sigma * s_f[own]), share = l * variance;
            const double mean = mean_f[own] + w * bar[own], square = bar[own] * mean;
            logdet += log1p(l * w);
            squares += square;
            shares += share;
            size += fabs(square);
            low = share < low ? share : low;
            high = share > high ? share : high;
            mu[at] = mean;
            s[at] = variance < 0.0 ? 0.0 : variance;  // a NaN stays
        }
        const double term = logdet + (squares - shares), above = term + jitter * (fabs(logdet) + size + (double)n);
        least = above < least ? above : least;
        total += term;
    }
    numbers[0] = 0.5 * total;
    numbers[1] = low;
    numbers[2] = high;
    numbers[3] = least;
    return 0;
}

typedef struct {
    double mu, s, bar;
} gradient;

// The gradients of the loss, half of 2 KL minus a function with the derivatives d_mean and d_variance, in mu, s and bar
static gradient of_loss(double half, double lam, double white, double mu, double bar, double s_f, double d_mean,
                        double d_variance) {
    const double inside = white + shrink(lam, white) * s_f < 0.0 ? 0.0 : d_variance;
    return (gradient){half * bar - d_mean, -half * lam - inside, half * mu};
}

// What the recursions of the gradient take: a direction of the sites' precisions, and sites to solve for
int natural_before(long n, long q, long k, double half, const double *lam, const double *white, const double *mu,
                   const double *bar, const double *s_f, const double *d_mean, const double *d_variance, double *direction,
                   double *sites) {
    for (long c = 0; c < q; c++) {
        const double w = white[k == 1 ? 0 : c];
        for (long i = 0; i < n; i++) {
            const long at = i * q + c, own = c * n + i;
            const double l = lam[at], sigma = shrink(l, w);
            const gradient g = of_loss(half, l, w, mu[at], bar[own], s_f[own], d_mean[at], d_variance[at]);
            direction[own] = sigma * sigma * g.s;
            sites[own] = g.mu - sigma * l * (g.bar + w * g.mu);
        }
    }
    return 0;
}

// The gradient (Q,) in white, from what these recursions gave: the gradient g_own in sigma lam, and S sites
int natural_after(long n, long q, long k, double half, const double *eta, const double *lam, const double *white,
                  const double *mu, const double *mean_f, const double *bar, const double *s_f, const double *d_mean,
                  const double *d_variance, const double *g_own, const double *through, double *g_white) {
    for (long c = 0; c < q; c++) {
        const double w = white[k == 1 ? 0 : c];
        double total = 0.0;
        for (long i = 0; i < n; i++) {
            const long at = i * q + c, own = c * n + i;
            const double l = lam[at], sigma = shrink(l, w), s = s_f[own];
            const gradient g = of_loss(half, l, w, mu[at], bar[own], s, d_mean[at], d_variance[at]);
            const double g_eta = through[own] + g.bar + w * g.mu;
            const double g_lam = g_own[own] + half * s - mean_f[own] * g_eta;
            const double g_sigma = eta[at] * g_eta + l * g_lam + g.s * (w + 2.0 * sigma * s) - half / sigma;
            total += g.mu * bar[own] + sigma * g.s - l * sigma * sigma * g_sigma;
        }
        g_white[c] = total;
    }
    return 0;
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
