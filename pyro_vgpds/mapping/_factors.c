// SPDX-License-Identifier: Apache-2.0
//
// The Gaussian factors exp(l f - w f^2/2) of outputs (N,D) as factors of g in f = m + s g, and the gradients through that:
//
//   w' = s^2 w,   l' = s (l - w m),   and what remains is m (l - w m/2)
//   dL/dw = s^2 dL/dw' - s m dL/dl' - m^2/2,   dL/dl = s dL/dl' + m,
//   dL/dm = sum_n (l - w m - s w dL/dl'),      dL/ds = sum_n (2 s w dL/dw' + (l - w m) dL/dl')
//
// w', l' and their gradients are transposed, (D,N). LINE rows at a time fill the lines of the cache.

#include "_vectors.h"

enum { LINE = 8, WIDTH = 64 };

// to (columns, N) = the transpose of a block (rows, WIDTH), and back
static void spread(const double *block, long rows, long columns, double *to, long N) {
    for (long d = 0; d < columns; d++)
        for (long i = 0; i < rows; i++) to[d * N + i] = block[i * WIDTH + d];
}
static void gather(const double *from, long rows, long columns, double *block, long N) {
    for (long d = 0; d < columns; d++)
        for (long i = 0; i < rows; i++) block[i * WIDTH + d] = from[d * N + i];
}

// Of weight and linear (N,D), mean and scale (D,): weight' and linear' (D,N), the number of entries with a factor (D,), and in
// sums (2,) what remains and the sum of the logs of the factors at their maxima.
int factors_scale(long N, long D, const double *weight, const double *linear, const double *mean, const double *scale,
                  double *new_weight, double *new_linear, double *seen, double *sums) {
    double rest[WIDTH], most[WIDTH], weights[LINE * WIDTH], linears[LINE * WIDTH];
    memset(seen, 0, D * sizeof(double));
    sums[0] = sums[1] = 0;
    for (long first = 0; first < D; first += WIDTH) {
        const long columns = min(WIDTH, D - first);
        const double *m = mean + first, *s = scale + first;
        memset(rest, 0, sizeof rest);
        memset(most, 0, sizeof most);
        for (long n = 0; n < N; n += LINE) {
            const long rows = min(LINE, N - n);
            for (long i = 0; i < rows; i++) {
                const double *w = weight + (n + i) * D + first, *l = linear + (n + i) * D + first;
                double *to = weights + i * WIDTH, *own = linears + i * WIDTH, *count = seen + first;
                for (long d = 0; d < columns; d++) {
                    const double scaled = s[d] * s[d] * w[d], moved = s[d] * (l[d] - w[d] * m[d]);
                    to[d] = scaled;
                    own[d] = moved;
                    count[d] += scaled > 0 ? 1 : 0;
                    rest[d] += m[d] * (l[d] - 0.5 * w[d] * m[d]);
                    most[d] += moved * moved / (scaled > 1e-300 ? scaled : 1e-300);
                }
            }
            spread(weights, rows, columns, new_weight + first * N + n, N);
            spread(linears, rows, columns, new_linear + first * N + n, N);
        }
        for (long d = 0; d < columns; d++) {
            sums[0] += rest[d];
            sums[1] += most[d] / 2;
        }
    }
    return 0;
}

// The gradients in weight and linear (N,D), mean and scale (D,) of a function of weight', linear' and of what remains, from
// those in weight' and linear' (D,N).
int factors_gradients(long N, long D, const double *weight, const double *linear, const double *mean,
                      const double *scale, const double *grad_new_weight, const double *grad_new_linear,
                      double *grad_weight, double *grad_linear, double *grad_mean, double *grad_scale) {
    double weights[LINE * WIDTH], linears[LINE * WIDTH];
    memset(grad_mean, 0, D * sizeof(double));
    memset(grad_scale, 0, D * sizeof(double));
    for (long first = 0; first < D; first += WIDTH) {
        const long columns = min(WIDTH, D - first);
        const double *m = mean + first, *s = scale + first;
        double *to_m = grad_mean + first, *to_s = grad_scale + first;
        for (long n = 0; n < N; n += LINE) {
            const long rows = min(LINE, N - n);
            gather(grad_new_weight + first * N + n, rows, columns, weights, N);
            gather(grad_new_linear + first * N + n, rows, columns, linears, N);
            for (long i = 0; i < rows; i++) {
                const long start = (n + i) * D + first;
                const double *w = weight + start, *l = linear + start;
                const double *gw = weights + i * WIDTH, *gl = linears + i * WIDTH;
                double *own_w = grad_weight + start, *own_l = grad_linear + start;
#pragma GCC ivdep  // there are too many arrays for the compiler to find out that they do not overlap
                for (long d = 0; d < columns; d++) {
                    const double moved = l[d] - w[d] * m[d];
                    own_w[d] = s[d] * s[d] * gw[d] - m[d] * (s[d] * gl[d] + 0.5 * m[d]);
                    own_l[d] = s[d] * gl[d] + m[d];
                    to_m[d] += moved - s[d] * w[d] * gl[d];
                    to_s[d] += 2 * s[d] * w[d] * gw[d] + moved * gl[d];
                }
            }
        }
    }
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_factors", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__factors(void) { return PyModule_Create(&definition); }
#endif
