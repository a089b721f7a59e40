// SPDX-License-Identifier: Apache-2.0
//
// The recursions of recursions.py, which has the equations, for large states that consist of small blocks.
//
// The transition matrix A and the process noise Q are block-diagonal, with blocks of at most 4 states; blocks are packed
// and padded with zeros to T tiles of 4 x 4. A symmetric matrix is stored as its tiles (I, J) with J <= I, each of four SIMD
// vectors (its rows), so that the matrices of one chain stay in the fastest cache. _chains.c handles small states, whose
// SIMD lanes are chains.
//
// a and q are (K, U, T, 4, 4) with one matrix for each different time step, step (N,) has the step of each frame, h (N, 4T).
// w (C, N, 4T) and v (C, N) are results of the filter that the mean needs.
//
// The gradient needs results of the forward pass. They are stored for a segment of frames that fits a fixed memory budget;
// with several segments, a first pass stores only the states between them, and each segment is run again.
//
// The file includes itself once for every instruction set (the part under #ifdef TARGET).

#ifdef TARGET

#define INLINE TARGET static inline __attribute__((always_inline))
#define NOINLINE TARGET static __attribute__((noinline))
#define FOUR(r) for (int r = 0; r < 4; r++)

// out = X Y for 4 x 4 tiles, out += X Y, and out += Xᵀ Y. X should be in memory: single numbers of it are loaded.
INLINE void NAME(product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] = x[r][0] * y[0] + x[r][1] * y[1] + x[r][2] * y[2] + x[r][3] * y[3];
}
INLINE void NAME(add_product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] += x[r][0] * y[0] + x[r][1] * y[1] + x[r][2] * y[2] + x[r][3] * y[3];
}
INLINE void NAME(add_turned_product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] += x[0][r] * y[0] + x[1][r] * y[1] + x[2][r] * y[2] + x[3][r] * y[3];
}
INLINE void NAME(turn)(const vec *x, vec *out) {
    const vec a = SHUFFLE(x[0], x[1], 0, 4, 2, 6), b = SHUFFLE(x[0], x[1], 1, 5, 3, 7);
    const vec c = SHUFFLE(x[2], x[3], 0, 4, 2, 6), d = SHUFFLE(x[2], x[3], 1, 5, 3, 7);
    out[0] = SHUFFLE(a, c, 0, 1, 4, 5);
    out[1] = SHUFFLE(b, d, 0, 1, 4, 5);
    out[2] = SHUFFLE(a, c, 2, 3, 6, 7);
    out[3] = SHUFFLE(b, d, 2, 3, 6, 7);
}
INLINE double NAME(dot)(long t, const vec *x, const vec *y) {
    vec total = x[0] * y[0];
    for (long i = 1; i < t; i++) total += x[i] * y[i];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

// S ← S + x yᵀ + y xᵀ for the tile (i, j)
INLINE void NAME(add_pair)(const vec *x, const vec *y, long i, long j, const vec *s, vec *out) {
    FOUR(r) out[r] = s[r] + x[i][r] * y[j] + y[i][r] * x[j];
}

// The part of a tile (i, j) in out = S x. Its rows are collected in part, which finish adds up
INLINE void NAME(apply)(const vec *s, const vec *x, long i, long j, vec *part, vec *out) {
    FOUR(r) part[r] += s[r] * x[j];
    if (i != j) out[j] += s[0] * x[i][0] + s[1] * x[i][1] + s[2] * x[i][2] + s[3] * x[i][3];
}
INLINE vec NAME(finish)(const vec *part) {
    vec turned[4];
    NAME(turn)(part, turned);
    return (turned[0] + turned[1]) + (turned[2] + turned[3]);
}

// S ← L (S + x yᵀ + y xᵀ) Lᵀ + extra in one sweep, with L of tiles l and its transposes lt; then out = S z.
// kept, if not NULL, gets S + x yᵀ + y xᵀ; extra may be NULL.
INLINE void NAME(sweep)(long t, vec *s, const vec *x, const vec *y, const vec *l, const vec *lt, const vec *extra, vec *kept,
                        const vec *z, vec *out) {
    for (long i = 0; i < t; i++) {
        vec part[4] = {{0}, {0}, {0}, {0}};
        for (long j = 0; j <= i; j++, s += 4) {
            vec *from = kept ? kept : s, moved[4], result[4];
            NAME(add_pair)(x, y, i, j, s, from);
            NAME(product)(from, lt + 4 * j, moved);
            NAME(product)(l + 4 * i, moved, result);
            if (i == j) {
                NAME(turn)(result, moved);
                FOUR(r) result[r] = 0.5 * (moved[r] + result[r]);  // symmetric despite rounding errors
                if (extra) FOUR(r) result[r] += extra[4 * i + r];
            }
            FOUR(r) s[r] = result[r];
            NAME(apply)(result, z, i, j, part, out);
            if (kept) kept += 4;
        }
        out[i] = NAME(finish)(part);
    }
}

// S ← S + scale x xᵀ, then out = S z
INLINE void NAME(reduce)(long t, vec *s, const vec *x, double scale, const vec *z, vec *out) {
    for (long i = 0; i < t; i++) {
        vec part[4] = {{0}, {0}, {0}, {0}};
        const vec y = scale * x[i];
        for (long j = 0; j <= i; j++, s += 4) {
            vec result[4];
            FOUR(r) s[r] = result[r] = s[r] + y[r] * x[j];
            NAME(apply)(result, z, i, j, part, out);
        }
        out[i] = NAME(finish)(part);
    }
}

// y = A x of tiles lt, the transposes of those of A
INLINE void NAME(move)(long t, const vec *lt, const vec *x, vec *y) {
    for (long i = 0; i < t; i++, lt += 4) y[i] = lt[0] * x[i][0] + lt[1] * x[i][1] + lt[2] * x[i][2] + lt[3] * x[i][3];
}

// Frames k0 <= k < k1 forwards. state has P, Ṗ, vectors x, y, ẋ, ẏ (x yᵀ + y xᵀ is still to be added to P, which saves a
// sweep), ẇ and v̇. kept gets for each frame P and Ṗ of the frame before, its ẇ and v̇
NOINLINE void NAME(forward)(const chain *c, long k0, long k1, vec *state, vec *kept) {
    const long t = c->t, size = SIZE(t);
    vec *P = state, *dP = P + size, *x = dP + size, *y = x + t, *dx = y + t, *dy = dx + t, *dw = dy + t;
    vec *rest = c->scratch;
    for (long k = k0; k < k1; k++) {
        const long at = 4 * t * c->step[k];
        const vec *h = c->h + t * k;
        vec *w = c->w + t * k;
        NAME(sweep)(t, P, x, y, c->a + at, c->at + at, c->q + at, kept, h, w);
        const double v = NAME(dot)(t, h, w), lam = c->lam[k], u = 1.0 / (1.0 + lam * v), gain = lam * u;
        c->v[k] = v;
        if (c->d_lam) {
            NAME(sweep)(t, dP, dx, dy, c->a + at, c->at + at, NULL, kept ? kept + size : NULL, h, dw);
            const double dv = NAME(dot)(t, h, dw), half = 0.5 * (gain * gain * dv - c->d_lam[k] * u * u);
            dw[t] = dv - (vec){0};
            if (kept) {
                memcpy(kept + 2 * size, dw, (t + 1) * sizeof(vec));
                kept += KEPT(t);
            }
            for (long i = 0; i < t; i++) {
                dx[i] = half * w[i] - gain * dw[i];
                dy[i] = w[i];
            }
        }
        // P h = u w holds exactly; the rounding error is removed, as Joseph's form would
        NAME(reduce)(t, P, w, -gain, h, rest);
        for (long i = 0; i < t; i++) rest[i] -= u * w[i];
        const double half = 0.5 * NAME(dot)(t, h, rest) * gain;
        for (long i = 0; i < t; i++) {
            x[i] = gain * (half * w[i] - rest[i]);
            y[i] = w[i];
        }
    }
}

NOINLINE int NAME(variance)(const chain *c) {
    const long t = c->t;
    vec *state = allocate(STATE(t)), *N = state, *x = c->scratch, *y = x + t;
    if (!state) return 1;
    memset(state, 0, STATE(t) * sizeof(vec));
    NAME(forward)(c, 0, c->n, state, NULL);
    memset(state, 0, STATE(t) * sizeof(vec));
    memset(y, 0, t * sizeof(vec));  // y = N w
    for (long k = c->n - 1; k >= 0; k--) {
        const long at = 4 * t * c->step[k];
        const vec *h = c->h + t * k, *w = c->w + t * k;
        const double v = c->v[k], u = 1.0 / (1.0 + c->lam[k] * v), gain = c->lam[k] * u;
        const double n = NAME(dot)(t, w, y), filtered = u * v, s = filtered - u * u * n, least = filtered * 0x1p-52;
        c->out[0][k] = s < least ? least : s;  // positive despite rounding errors; a NaN stays
        c->out[1][k] = gain + gain * gain * n;
        const double half = 0.5 * (gain * gain * n + gain);
        for (long i = 0; i < t; i++) x[i] = half * h[i] - gain * y[i];
        NAME(sweep)(t, N, x, h, c->at + at, c->a + at, NULL, NULL, k ? w - t : w, y);
    }
    free(state);
    return 0;
}

// One frame of the gradient backwards: N + x hᵀ + h xᵀ = N⁻ and its tangent become those of the frame before. g_q is added
// to, and to g_a half of the gradient's transpose. Then y = N w, dy = Ṅ w and x = N turn for the frame before
INLINE void NAME(gradient_frame)(const chain *c, const vec *a, const vec *at, const vec *h, const vec *pair, const vec *d_pair,
                                 vec *N, vec *dN, const vec *P, const vec *dP, vec *g_a, vec *g_q, const vec *w,
                                 const vec *turn, vec *y, vec *dy, vec *x) {
    const double weight = c->weight;
    for (long i = 0; i < c->t; i++) {
        vec part[4] = {{0}, {0}, {0}, {0}}, d_part[4] = {{0}, {0}, {0}, {0}}, turn_part[4] = {{0}, {0}, {0}, {0}};
        for (long j = 0; j <= i; j++, N += 4, dN += 4, P += 4, dP += 4) {
            // X = N A, Z = Aᵀ N, and those of the tangent; sums are those of the tangent and weight times the first
            vec X[4], dX[4], Z[4], dZ[4], sum[4], turned[4];
            NAME(add_pair)(pair, h, i, j, N, N);
            NAME(add_pair)(d_pair, h, i, j, dN, dN);
            if (i == j) FOUR(r) g_q[4 * i + r] += dN[r] + weight * N[r];
            NAME(product)(N, a + 4 * j, X);
            NAME(product)(dN, a + 4 * j, dX);
            FOUR(r) sum[r] = dX[r] + weight * X[r];
            NAME(turn)(sum, turned);
            NAME(add_product)(P, turned, g_a + 4 * i);
            NAME(turn)(X, turned);
            NAME(add_product)(dP, turned, g_a + 4 * i);
            if (i != j) {
                NAME(product)(at + 4 * i, N, Z);
                NAME(product)(at + 4 * i, dN, dZ);
                FOUR(r) sum[r] = dZ[r] + weight * Z[r];
                NAME(add_turned_product)(P, sum, g_a + 4 * j);
                NAME(add_turned_product)(dP, Z, g_a + 4 * j);
            }
            NAME(product)(at + 4 * i, X, Z);
            NAME(product)(at + 4 * i, dX, dZ);
            if (i == j) {  // symmetric despite rounding errors
                NAME(turn)(Z, turned);
                FOUR(r) Z[r] = 0.5 * (Z[r] + turned[r]);
                NAME(turn)(dZ, turned);
                FOUR(r) dZ[r] = 0.5 * (dZ[r] + turned[r]);
            }
            FOUR(r) N[r] = Z[r];
            FOUR(r) dN[r] = dZ[r];
            NAME(apply)(Z, w, i, j, part, y);
            NAME(apply)(dZ, w, i, j, d_part, dy);
            NAME(apply)(Z, turn, i, j, turn_part, x);
        }
        y[i] = NAME(finish)(part);
        dy[i] = NAME(finish)(d_part);
        x[i] = NAME(finish)(turn_part);
    }
}

// u, and the tangents of u and c, from v and v̇
INLINE void NAME(tangents)(const chain *c, long k, double dv, double *u, double *du, double *d_gain) {
    const double v = c->v[k], lam = c->lam[k], d_lam = c->d_lam[k], own = 1.0 / (1.0 + lam * v), gain = lam * own;
    *u = own;
    *du = -own * own * (d_lam * v + lam * dv);
    *d_gain = d_lam * own * own - gain * gain * dv;
}

NOINLINE int NAME(gradient)(const chain *c) {
    const long t = c->t, size = SIZE(t);
    long length = BUDGET / (KEPT(t) * (long)sizeof(vec));
    length = length < 1 ? 1 : length > c->n ? c->n : length;
    const long segments = (c->n + length - 1) / length;
    vec *states = allocate((segments + 1) * STATE(t) + 2 * size), *kept = allocate(length * KEPT(t));
    if (!states || !kept) {
        free(states);
        free(kept);
        return 1;
    }
    vec *state = states + segments * STATE(t), *N = state + STATE(t), *dN = N + size;
    vec *y = c->scratch + t, *dy = y + t, *x = dy + t, *turn = x + t, *pair = turn + t, *d_pair = pair + t, *edge = d_pair + t;
    memset(state, 0, (STATE(t) + 2 * size) * sizeof(vec));
    memset(y, 0, 4 * t * sizeof(vec));
    for (long i = 0; i < segments; i++) {
        memcpy(states + i * STATE(t), state, STATE(t) * sizeof(vec));
        if (i + 1 < segments) NAME(forward)(c, i * length, (i + 1) * length, state, NULL);
    }
    for (long i = segments - 1; i >= 0; i--) {
        const long k0 = i * length, k1 = k0 + length < c->n ? k0 + length : c->n;
        memcpy(edge, states + (i + 1) * STATE(t) - (t + 1), (t + 1) * sizeof(vec));  // ẇ and v̇ of the frame before
        NAME(forward)(c, k0, k1, states + i * STATE(t), kept);
        for (long k = k1 - 1; k >= k0; k--) {
            const long at = 4 * t * c->step[k];
            const vec *own = kept + (k - k0) * KEPT(t), *h = c->h + t * k, *w = c->w + t * k, *dw = own + 2 * size;
            const double v = c->v[k], dv = own[2 * size + t][0];
            double u, du, d_gain;
            NAME(tangents)(c, k, dv, &u, &du, &d_gain);
            const double gain = c->lam[k] * u;
            const double lost = gain * NAME(dot)(t, w, x), n = NAME(dot)(t, w, y), moved = NAME(dot)(t, w, dy);
            const double dn = moved + 2.0 * NAME(dot)(t, y, dw);
            c->out[0][k] = du * v + u * dv - 2.0 * u * du * n - u * u * dn;
            const double half = 0.5 * (gain * gain * n + gain), d_half = 0.5 * (gain * gain * moved + d_gain) + lost;
            for (long l = 0; l < t; l++) {
                pair[l] = half * h[l] - gain * y[l];
                d_pair[l] = d_half * h[l] - gain * dy[l] - x[l];
            }
            if (k) {
                const vec *before = k > k0 ? own - KEPT(t) + 2 * size : edge;
                NAME(tangents)(c, k - 1, before[t][0], &u, &du, &d_gain);
                for (long l = 0; l < t; l++) turn[l] = d_gain * w[l - t] + c->lam[k - 1] * u * before[l];
            }
            NAME(gradient_frame)(c, c->a + at, c->at + at, h, pair, d_pair, N, dN, own, own + size, c->g_a + at, c->g_q + at,
                                 k ? w - t : w, turn, y, dy, x);
        }
    }
    free(states);
    free(kept);
    return 0;
}

// The mean from w and v
NOINLINE int NAME(solve)(const chain *c) {
    const long t = c->t;
    vec *m = c->scratch, *moved = m + t;
    memset(m, 0, t * sizeof(vec));
    for (long k = 0; k < c->n; k++) {
        const vec *w = c->w + t * k;
        NAME(move)(t, c->at + 4 * t * c->step[k], m, moved);
        const double u = 1.0 / (1.0 + c->lam[k] * c->v[k]), f = NAME(dot)(t, c->h + t * k, moved);
        const double e = u * (c->eta[k] - c->lam[k] * f);
        c->out[0][k] = f;
        c->out[1][k] = e;
        for (long i = 0; i < t; i++) m[i] = moved[i] + w[i] * e;
    }
    memset(m, 0, t * sizeof(vec));
    for (long k = c->n - 1; k >= 0; k--) {
        const double v = c->v[k], u = 1.0 / (1.0 + c->lam[k] * v), e = c->out[1][k];
        const double n = NAME(dot)(t, c->w + t * k, m), b = e - c->lam[k] * u * n;
        c->out[0][k] += v * e + u * n;
        c->out[1][k] = b;
        for (long i = 0; i < t; i++) moved[i] = m[i] + b * c->h[t * k + i];
        NAME(move)(t, c->a + 4 * t * c->step[k], moved, m);
    }
    return 0;
}

// The gradient of left·K_f right, lam and eta being left and right
NOINLINE int NAME(quadratic)(const chain *c) {
    const long t = c->t;
    const double *b[2] = {c->lam, c->eta};
    vec *r = allocate(2 * c->n * t), *z = c->scratch, *moved = z + 2 * t;
    if (!r) return 1;
    for (int side = 0; side < 2; side++) {
        memset(moved, 0, t * sizeof(vec));
        for (long k = c->n - 1; k >= 0; k--) {
            vec *own = r + (side * c->n + k) * t;
            for (long i = 0; i < t; i++) own[i] = moved[i] + b[side][k] * c->h[t * k + i];
            NAME(move)(t, c->a + 4 * t * c->step[k], own, moved);
        }
    }
    memset(z, 0, 2 * t * sizeof(vec));
    for (long k = 0; k < c->n; k++) {
        const long at = 4 * t * c->step[k];
        const vec *left = r + t * k, *right = left + t * c->n;
        for (long i = 0; i < t; i++) FOUR(row) {
            c->g_a[at + 4 * i + row] += left[i][row] * z[t + i] + right[i][row] * z[i];
            c->g_q[at + 4 * i + row] += 0.5 * (left[i][row] * right[i] + right[i][row] * left[i]);
        }
        for (int side = 0; side < 2; side++) {
            const vec *own = side ? right : left;
            NAME(move)(t, c->at + at, z + side * t, moved);
            NAME(move)(t, c->q + at, own, z + side * t);  // Q is symmetric
            for (long i = 0; i < t; i++) z[side * t + i] += moved[i];
        }
    }
    free(r);
    return 0;
}

NOINLINE int NAME(run)(const chain *c, int task) {
    switch (task) {
        case VARIANCE: return NAME(variance)(c);
        case GRADIENT: return NAME(gradient)(c);
        case SOLVE: return NAME(solve)(c);
        default: return NAME(quadratic)(c);
    }
}

#undef INLINE
#undef NOINLINE
#undef FOUR
#undef TARGET
#undef SET

#else

#include <Python.h>

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no function with vectors is called from another file
#endif

#define PASTED(x, set) x##_##set
#define PASTE(x, set) PASTED(x, set)
#define NAME(x) PASTE(x, SET)
#define SIZE(t) (2 * (t) * ((t) + 1))  // vectors of a symmetric matrix of t x t tiles
#define KEPT(t) (2 * SIZE(t) + (t) + 1)
#define STATE(t) (2 * SIZE(t) + 5 * (t) + 1)
#define BUDGET (1L << 26)  // bytes that the forward pass may store for the gradient
#define SCRATCH 9  // vectors of the state that a step works with

#ifdef __clang__
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (index4){__VA_ARGS__})
#endif

enum { VARIANCE, SOLVE, GRADIENT, QUADRATIC };

typedef double vec __attribute__((vector_size(32)));
typedef long long index4 __attribute__((vector_size(32)));

typedef struct {
    long n, t;
    const long *step;
    const vec *a, *at, *q, *h;
    const double *lam, *eta, *d_lam;  // of a quadratic form: left and right
    double weight, *v, *out[2];
    vec *w, *g_a, *g_q, *scratch;
} chain;

static vec *allocate(long count) {
    void *memory = NULL;
    return posix_memalign(&memory, sizeof(vec), count * sizeof(vec)) ? NULL : memory;
}

#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx2,fma")))
#define SET avx2
#include "_tiles.c"
#define RUN(c, task) \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? run_avx2(c, task) : run_generic(c, task))
#else
#define RUN(c, task) run_generic(c, task)
#endif
#define TARGET
#define SET generic
#include "_tiles.c"

// Chains c0 <= c < c1, with kernel index[c] of K each; at is a with its tiles transposed. The inputs are (C, N) or NULL,
// weight (C,) or NULL, the outputs (C, N); g_a and g_q (K, U, T, 4, 4) are added to. a, at, q, h, w, g_a and g_q are aligned
// to 32 bytes. Returns nonzero if memory ran out.
int run_tiles(int task, long n, long t, long steps, long c0, long c1, const long *step, const long *index, const double *a,
              const double *at, const double *q, const double *h, const double *lam, const double *eta, const double *d_lam,
              const double *weight, double *w, double *v, double *out0, double *out1, double *g_a, double *g_q) {
    chain c = {.n = n, .t = t, .step = step, .h = (const vec *)h};
    c.scratch = allocate(SCRATCH * t);
    if (!c.scratch) return 1;
    int status = 0;
    for (long i = c0; i < c1 && !status; i++) {
        const long kernel = index[i] * steps * 16 * t, row = i * n;
        c.a = (const vec *)(a + kernel);
        c.at = (const vec *)(at + kernel);
        c.q = (const vec *)(q + kernel);
        c.lam = lam + row;
        c.eta = eta ? eta + row : NULL;
        c.d_lam = d_lam ? d_lam + row : NULL;
        c.weight = weight ? weight[i] : 0.0;
        c.w = w ? (vec *)w + row * t : NULL;
        c.v = v ? v + row : NULL;
        c.out[0] = out0 ? out0 + row : NULL;
        c.out[1] = out1 ? out1 + row : NULL;
        c.g_a = g_a ? (vec *)(g_a + kernel) : NULL;
        c.g_q = g_q ? (vec *)(g_q + kernel) : NULL;
        status = RUN(&c, task);
    }
    free(c.scratch);
    return status;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tiles", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__tiles(void) { return PyModule_Create(&definition); }
#endif

#endif
