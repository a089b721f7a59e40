// SPDX-License-Identifier: Apache-2.0
//
// Covariances and state-space forms of sums of products of kernels of time, with their gradients in the parameters.
//
// A kernel is a sum of terms, each a product of leaves such as a Matérn kernel. The code of a program is: the number of
// leaves; kind and first parameter of each; the number of terms; and for each the number of its leaves, and which they are.
// values (P, K) are the parameters of K kernels: of each leaf its variance, and then its scales.
//
// The state of a term is the Kronecker product of those of its leaves, each a block of the state of the whole. Entry (i, j)
// of the matrices of a block is written to the offset place[·] of the matrices a and q, (K, U, size), where U is the number
// of different time steps; at is a with the blocks transposed. At steps that begin a sequence A is zero and Q is P.
//
// periodic_states.py and matern_states.py have the equations. dA/da = F A for a Matérn kernel, where a is time in its units.

#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

#define MOST 4  // leaves of a term that has a state
#define SIDE 16  // states of a block
#define LEAF 3  // states of a leaf

enum { CONSTANT, MATERN12, MATERN32, MATERN52, COSINE, RBF, PERIODIC, KINDS };

static const long num_scales[KINDS] = {0, 1, 1, 1, 1, 1, 2};
static const long num_states[KINDS] = {1, 1, 2, 3, 2, 0, 0};
static const double pi = 3.14159265358979323846;

typedef struct {
    const long *leaves, *terms;
    long num_leaves, num_terms;
} program;

static program read_program(const long *code) {
    program p = {.leaves = code + 1, .num_leaves = code[0]};
    p.terms = p.leaves + 2 * p.num_leaves + 1;
    p.num_terms = p.terms[-1];
    return p;
}

// A, Q and P of something with n states, each n x n by rows
typedef struct {
    long n;
    double a[SIDE * SIDE], q[SIDE * SIDE], p[SIDE * SIDE];
} form;

// Of a Matérn kernel with d states: F, P of unit variance, (F + I)^j / j!, and the coefficients of γ(m + 1, 2a) in Q
typedef struct {
    double design[LEAF * LEAF], p[LEAF * LEAF], powers[LEAF][LEAF * LEAF], terms[2 * LEAF - 1][LEAF * LEAF];
} matern;

static void multiply(long n, const double *x, const double *y, double *out) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            double total = 0.0;
            for (long l = 0; l < n; l++) total += x[i * n + l] * y[l * n + j];
            out[i * n + j] = total;
        }
}

static double factorial(long n) { return n < 2 ? 1.0 : n * factorial(n - 1); }

static void make_matern(long d, matern *m) {
    memset(m, 0, sizeof(matern));
    double next[LEAF * LEAF], step[LEAF * LEAF];
    for (long i = 0; i + 1 < d; i++) m->design[i * d + i + 1] = 1.0;
    for (long j = 0; j < d; j++) m->design[(d - 1) * d + j] = -factorial(d) / (factorial(j) * factorial(d - j));  // (s + 1)^d
    for (long i = 0; i < d * d; i++) step[i] = m->design[i];
    for (long i = 0; i < d; i++) step[i * d + i] += 1.0, m->powers[0][i * d + i] = 1.0;
    for (long j = 1; j < d; j++) {
        multiply(d, m->powers[j - 1], step, next);
        for (long i = 0; i < d * d; i++) m->powers[j][i] = next[i] / j;
    }
    double total[LEAF * LEAF] = {0};
    for (long j = 0; j < d; j++)
        for (long k = 0; k < d; k++)
            for (long r = 0; r < d; r++)
                for (long c = 0; c < d; c++) {
                    const double one = m->powers[j][r * d + d - 1] * m->powers[k][c * d + d - 1];
                    const double term = one * factorial(j + k) / (double)(2L << (j + k));
                    m->terms[j + k][r * d + c] += term;
                    total[r * d + c] += term;
                }
    for (long i = 0; i < d * d; i++) {
        m->p[i] = total[i] / total[0];
        for (long k = 0; k < 2 * d - 1; k++) m->terms[k][i] /= total[0];
    }
}

// Regularised incomplete gamma functions γ(1, x), …, γ(count, x), and their derivatives, to full relative accuracy
static void gammas(double x, long count, double *out, double *slope) {
    const double decay = exp(-x);
    double power = decay;  // x^m e^-x / m!
    for (long m = 0; m < count; m++) {
        slope[m] = power;
        power *= x / (m + 1);
    }
    double last;
    if (x < count + 1.0) {  // a series of positive terms; power is its first one
        double term = power;
        last = term;
        for (long k = count + 1; term > 1e-17 * last; k++) last += term *= x / k;
    } else {
        last = 1.0;
        for (long m = 0; m < count; m++) last -= slope[m];
    }
    if (count == 1) last = -expm1(-x);
    out[count - 1] = last;
    for (long m = count - 1; m > 0; m--) out[m - 1] = out[m] + slope[m];  // downwards, so that all terms are added
}

// The form of a leaf of unit variance after a time step, and the derivatives of A and Q in its scale
static void make_leaf(long kind, const matern *materns, double scale, double dt, form *f, double *d_a, double *d_q) {
    const long n = num_states[kind];
    f->n = n;
    if (kind == CONSTANT) {
        f->a[0] = f->p[0] = 1.0;
        f->q[0] = d_a[0] = d_q[0] = 0.0;
        return;
    }
    if (kind == COSINE) {
        const double angle = 2.0 * pi * dt / scale, c = cos(angle), s = sin(angle), rate = -angle / scale;
        f->a[0] = f->a[3] = c;
        f->a[1] = -s;
        f->a[2] = s;
        d_a[0] = d_a[3] = -s * rate;
        d_a[1] = -c * rate;
        d_a[2] = c * rate;
        for (long i = 0; i < 4; i++) f->q[i] = d_q[i] = 0.0;
        f->p[0] = f->p[3] = 1.0;
        f->p[1] = f->p[2] = 0.0;
        return;
    }
    const matern *m = materns + n;
    const double time = dt * sqrt(2.0 * n - 1.0) / scale, rate = -time / scale, decay = exp(-time);
    double gamma[2 * LEAF - 1], slope[2 * LEAF - 1];
    gammas(2.0 * time, 2 * n - 1, gamma, slope);
    for (long i = 0; i < n * n; i++) {
        double a = 0.0, q = 0.0, dq = 0.0, power = decay;
        for (long j = 0; j < n; j++, power *= time) a += power * m->powers[j][i];
        for (long j = 0; j < 2 * n - 1; j++) {
            q += gamma[j] * m->terms[j][i];
            dq += slope[j] * m->terms[j][i];
        }
        f->a[i] = a;
        f->q[i] = q;
        f->p[i] = m->p[i];
        d_q[i] = 2.0 * dq * rate;
    }
    multiply(n, m->design, f->a, d_a);
    for (long i = 0; i < n * n; i++) d_a[i] *= rate;
}

// out = the Kronecker product of x and y. Q₁⊗P₂ + (P₁ − Q₁)⊗Q₂ = P₁⊗P₂ − (P₁ − Q₁)⊗(P₂ − Q₂), without cancellation
static void multiply_forms(const form *x, const form *y, form *out) {
    const long n = out->n = x->n * y->n;
    for (long i = 0; i < x->n; i++)
        for (long j = 0; j < x->n; j++) {
            const double a = x->a[i * x->n + j], q = x->q[i * x->n + j], p = x->p[i * x->n + j];
            for (long k = 0; k < y->n; k++)
                for (long l = 0; l < y->n; l++) {
                    const long to = (i * y->n + k) * n + j * y->n + l, from = k * y->n + l;
                    out->a[to] = a * y->a[from];
                    out->q[to] = q * y->p[from] + (p - q) * y->q[from];
                    out->p[to] = p * y->p[from];
                }
        }
}

// The gradients g_x and g_y (added to) from that of the product
static void split_gradient(const form *x, const form *y, const form *g, form *g_x, form *g_y) {
    const long n = g->n;
    for (long i = 0; i < x->n; i++)
        for (long j = 0; j < x->n; j++) {
            const long at = i * x->n + j;
            const double a = x->a[at], q = x->q[at], p = x->p[at];
            double g_a = 0.0, g_q = 0.0, g_p = 0.0;
            for (long k = 0; k < y->n; k++)
                for (long l = 0; l < y->n; l++) {
                    const long to = (i * y->n + k) * n + j * y->n + l, from = k * y->n + l;
                    g_a += g->a[to] * y->a[from];
                    g_q += g->q[to] * (y->p[from] - y->q[from]);
                    g_p += g->q[to] * y->q[from] + g->p[to] * y->p[from];
                    g_y->a[from] += g->a[to] * a;
                    g_y->q[from] += g->q[to] * (p - q);
                    g_y->p[from] += g->q[to] * q + g->p[to] * p;
                }
            g_x->a[at] = g_a;
            g_x->q[at] = g_q;
            g_x->p[at] = g_p;
        }
    g_x->n = x->n;
}

// What the work on one kernel and one step needs: forms of the leaves, with their gradients, and of products of them
typedef struct {
    matern materns[LEAF + 1];
    form products[MOST], gradient, before;
    form *leaves, *gradients;
    double *slopes;  // d_a and d_q of each leaf
} work;

static work *make_work(const program *p) {
    work *w = malloc(sizeof(work));
    if (!w) return NULL;
    w->leaves = calloc(2 * p->num_leaves + 1, sizeof(form));
    w->slopes = calloc(2 * p->num_leaves + 1, LEAF * LEAF * sizeof(double));
    if (!w->leaves || !w->slopes) {
        free(w->leaves);
        free(w->slopes);
        free(w);
        return NULL;
    }
    w->gradients = w->leaves + p->num_leaves;
    for (long d = 1; d <= LEAF; d++) make_matern(d, w->materns + d);
    return w;
}

static void free_work(work *w) {
    free(w->leaves);
    free(w->slopes);
    free(w);
}

static void make_leaves(const program *p, work *w, const double *values, long kernels, double dt) {
    for (long i = 0; i < p->num_leaves; i++) {
        const long kind = p->leaves[2 * i], first = p->leaves[2 * i + 1];
        const double scale = num_scales[kind] ? values[(first + 1) * kernels] : 1.0, variance = values[first * kernels];
        form *f = w->leaves + i;
        double *slope = w->slopes + 2 * LEAF * LEAF * i;
        make_leaf(kind, w->materns, scale, dt, f, slope, slope + LEAF * LEAF);
        for (long j = 0; j < f->n * f->n; j++) {
            f->q[j] *= variance;
            f->p[j] *= variance;
            slope[LEAF * LEAF + j] *= variance;
        }
    }
}

// The form of a term of count leaves, through those of its first leaves, which stay in products
static const form *make_term(work *w, const long *leaves, long count) {
    const form *last = w->leaves + leaves[0];
    for (long i = 1; i < count; i++) {
        multiply_forms(last, w->leaves + leaves[i], w->products + i);
        last = w->products + i;
    }
    return last;
}

// a, at (or NULL) and q (K, U, size) for kernels k0 <= k < k1, and variances (K,). They must be zero before. Returns nonzero
// without memory.
int program_states(const long *code, long k0, long k1, long kernels, long steps, long size, const double *values,
                   const double *dt, const long *begins, const long *place, double *a, double *at, double *q,
                   double *variance) {
    const program p = read_program(code);
    work *w = make_work(&p);
    if (!w) return 1;
    for (long k = k0; k < k1; k++)
        for (long u = 0; u < steps; u++) {
            const long offset = (k * steps + u) * size, *term = p.terms, *to = place;
            make_leaves(&p, w, values + k, kernels, dt[u]);
            for (long t = 0; t < p.num_terms; t++, term += *term + 1) {
                const form *f = make_term(w, term + 1, *term);
                for (long i = 0; i < f->n; i++)
                    for (long j = 0; j < f->n; j++) {
                        const long here = i * f->n + j;
                        q[offset + to[here]] = begins[u] ? f->p[here] : f->q[here];
                        if (begins[u]) continue;
                        a[offset + to[here]] = f->a[here];
                        if (at) at[offset + to[j * f->n + i]] = f->a[here];
                    }
                to += f->n * f->n;
                if (u == 0) variance[k] += f->p[0];
            }
        }
    free_work(w);
    return 0;
}

// Adds to g_values (P, K) from the gradients in A, which are g_a plus twice the transpose of half (or NULL), and in Q.
int program_states_grad(const long *code, long k0, long k1, long kernels, long steps, long size, const double *values,
                        const double *dt, const long *begins, const long *place, const double *g_a, const double *half,
                        const double *g_q, double *g_values) {
    const program p = read_program(code);
    work *w = make_work(&p);
    if (!w) return 1;
    for (long k = k0; k < k1; k++)
        for (long u = 0; u < steps; u++) {
            const long offset = (k * steps + u) * size, *term = p.terms, *from = place;
            make_leaves(&p, w, values + k, kernels, dt[u]);
            for (long l = 0; l < p.num_leaves; l++)
                for (long i = 0; i < w->leaves[l].n * w->leaves[l].n; i++)
                    w->gradients[l].a[i] = w->gradients[l].q[i] = w->gradients[l].p[i] = 0.0;
            for (long t = 0; t < p.num_terms; t++, term += *term + 1) {
                const long *leaves = term + 1, count = *term, n = make_term(w, leaves, count)->n;
                form *g = &w->gradient, *next = &w->before;
                g->n = n;
                for (long i = 0; i < n; i++)
                    for (long j = 0; j < n; j++) {
                        const long here = i * n + j;
                        const double own_q = g_q[offset + from[here]];
                        g->q[here] = begins[u] ? 0.0 : own_q;
                        g->p[here] = begins[u] ? own_q : 0.0;
                        g->a[here] = begins[u] ? 0.0 : g_a[offset + from[here]];
                        if (half && !begins[u]) g->a[here] += 2.0 * half[offset + from[j * n + i]];
                    }
                from += n * n;
                for (long i = count - 1; i > 0; i--) {
                    const form *x = i > 1 ? w->products + i - 1 : w->leaves + leaves[0];
                    split_gradient(x, w->leaves + leaves[i], g, next, w->gradients + leaves[i]);
                    form *old = g;
                    g = next;
                    next = old;
                }
                form *first = w->gradients + leaves[0];
                for (long i = 0; i < g->n * g->n; i++) {
                    first->a[i] += g->a[i];
                    first->q[i] += g->q[i];
                    first->p[i] += g->p[i];
                }
            }
            for (long l = 0; l < p.num_leaves; l++) {
                const long kind = p.leaves[2 * l];
                const form *f = w->leaves + l, *g = w->gradients + l;
                const double *d_a = w->slopes + 2 * LEAF * LEAF * l, *d_q = d_a + LEAF * LEAF;
                double *to = g_values + p.leaves[2 * l + 1] * kernels + k, own = 0.0, scale = 0.0;
                for (long i = 0; i < f->n * f->n; i++) {
                    own += g->p[i] * f->p[i] + g->q[i] * f->q[i];
                    scale += g->a[i] * d_a[i] + g->q[i] * d_q[i];
                }
                to[0] += own / values[p.leaves[2 * l + 1] * kernels + k];
                if (num_scales[kind]) to[kernels] += scale;
            }
        }
    free_work(w);
    return 0;
}

// The correlation of a leaf at a distance, and its derivatives in the scales
static double correlate(long kind, const double *values, long kernels, double d, double *slope) {
    slope[0] = slope[1] = 0.0;
    if (kind == CONSTANT) return 1.0;
    const double scale = values[kernels], x = d / scale;
    if (kind == COSINE) {
        const double angle = 2.0 * pi * x;
        slope[0] = sin(angle) * angle / scale;
        return cos(angle);
    }
    if (kind == PERIODIC) {
        const double angle = pi * d / values[2 * kernels], turn = sin(angle) / scale, value = exp(-2.0 * turn * turn);
        slope[0] = 4.0 * turn * turn / scale * value;
        slope[1] = 4.0 * turn * cos(angle) / scale * angle / values[2 * kernels] * value;
        return value;
    }
    if (kind == RBF) {
        const double value = exp(-0.5 * x * x);
        slope[0] = x * x / scale * value;
        return value;
    }
    const double time = sqrt(2.0 * num_states[kind] - 1.0) * x, decay = exp(-time);
    if (kind == MATERN12) {
        slope[0] = time / scale * decay;
        return decay;
    }
    if (kind == MATERN32) {
        slope[0] = time * time / scale * decay;
        return (1.0 + time) * decay;
    }
    slope[0] = time * time * (1.0 + time) / (3.0 * scale) * decay;
    return (1.0 + time + time * time / 3.0) * decay;
}

// Covariances out (K, U) at the distances d (U,), for kernels k0 <= k < k1; or, with g (K, U), adds to g_values (P, K)
int program_covariances(const long *code, long k0, long k1, long kernels, long count, const double *values, const double *d,
                        double *out, const double *g, double *g_values) {
    const program p = read_program(code);
    double *leaf = malloc((4 * p.num_leaves + 1) * sizeof(double)), *slope = leaf + p.num_leaves, *grad = slope + 2 * p.num_leaves;
    if (!leaf) return 1;
    for (long k = k0; k < k1; k++)
        for (long u = 0; u < count; u++) {
            for (long l = 0; l < p.num_leaves; l++) {
                const double *own = values + p.leaves[2 * l + 1] * kernels + k;
                leaf[l] = correlate(p.leaves[2 * l], own, kernels, d[u], slope + 2 * l);
                grad[l] = 0.0;
            }
            const long *term = p.terms;
            double total = 0.0;
            for (long t = 0; t < p.num_terms; t++, term += *term + 1) {
                const long *leaves = term + 1;
                double variance = 1.0, value = 1.0;
                for (long i = 0; i < *term; i++) {
                    variance *= values[p.leaves[2 * leaves[i] + 1] * kernels + k];
                    value *= leaf[leaves[i]];
                }
                total += variance * value;
                for (long i = 0; g && i < *term; i++) {
                    double *to = g_values + p.leaves[2 * leaves[i] + 1] * kernels + k, others = 1.0;
                    for (long j = 0; j < *term; j++) if (j != i) others *= leaf[leaves[j]];
                    *to += g[k * count + u] * variance * value / values[p.leaves[2 * leaves[i] + 1] * kernels + k];
                    grad[leaves[i]] += g[k * count + u] * variance * others;
                }
            }
            if (out) out[k * count + u] = total;
            for (long l = 0; g && l < p.num_leaves; l++)
                for (long i = 0; i < num_scales[p.leaves[2 * l]]; i++)
                    g_values[(p.leaves[2 * l + 1] + 1 + i) * kernels + k] += grad[l] * slope[2 * l + i];
        }
    free(leaf);
    return 0;
}

// many (K, E) = few (K, U) at index (E,), for kernels k0 <= k < k1; or, backwards, adds many to few there
int program_spread(const long *index, long k0, long k1, long count, long entries, int backwards, double *few, double *many) {
    for (long k = k0; k < k1; k++) {
        double *one = few + k * count, *all = many + k * entries;
        if (backwards)
            for (long e = 0; e < entries; e++) one[index[e]] += all[e];
        else
            for (long e = 0; e < entries; e++) all[e] = one[index[e]];
    }
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_programs", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__programs(void) { return PyModule_Create(&definition); }
#endif
