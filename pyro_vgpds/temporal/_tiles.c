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
// A recursion waits for the result of each step most of the time. So with AVX-512 there are two chains side by side in the
// halves of all vectors, and their matrices, frames and gradients are copied to such vectors before, and from them after.
// Matrices that are on the left side of products are there once more, with a vector for each element: to put an element of
// each half into all of its lanes takes as long as a multiplication.
//
// The file includes itself once for every instruction set (the part under #ifdef TARGET).

#ifdef TARGET

#define INLINE TARGET static inline __attribute__((always_inline))
#define NOINLINE TARGET static __attribute__((noinline))
#define FOUR(r) for (int r = 0; r < 4; r++)
#define vec NAME(vec)
#define number NAME(number)
#define chain NAME(chain)

// What all chains of a vector have: vectors with rows of each, and a number for each, which is in all lanes of its half.
// PICK: a lane of a row as a number; FIXED: an element of a tile that does not change
#if CHAINS == 2
typedef double vec __attribute__((vector_size(64)));
typedef long long NAME(index) __attribute__((vector_size(64)));
typedef vec number;
#define PICK(x, lane) ((vec)_mm512_permutexvar_pd(_mm512_load_si512(picked[lane]), x))
#define WIDE 16  // vectors of a tile that does not change
#define FIXED(x, r, lane) ((x)[4 * (r) + (lane)])
#define HALF(i) ((i) < 4 ? (i) : (i) + 4)
#define MIX(x, y, a, b, c, d) \
    SHUFFLE(x, y, NAME(index), HALF(a), HALF(b), HALF(c), HALF(d), HALF(a) + 4, HALF(b) + 4, HALF(c) + 4, HALF(d) + 4)
INLINE number NAME(read)(const double *const *x, long k) {
    return _mm512_mask_broadcastsd_pd(_mm512_set1_pd(x[0][k]), 0xf0, _mm_load_sd(x[1] + k));
}
INLINE void NAME(write)(double *const *x, long k, number value) {
    x[0][k] = value[0];
    x[1][k] = value[4];
}
INLINE number NAME(total)(vec x) {
    const vec pairs = x + (vec)_mm512_permutex_pd(x, 0xb1);
    return pairs + (vec)_mm512_permutex_pd(pairs, 0x4e);
}
#define TOTAL(x) NAME(total)(x)
INLINE number NAME(larger)(number x, number y) { return _mm512_max_pd(y, x); }  // a NaN x stays
#else
typedef quad vec;
typedef double number;
#define PICK(x, lane) ((x)[lane])
#define WIDE 4
#define FIXED(x, r, lane) ((x)[r][lane])
#define MIX(x, y, a, b, c, d) SHUFFLE(x, y, index4, a, b, c, d)
INLINE number NAME(read)(const double *const *x, long k) { return x[0][k]; }
INLINE void NAME(write)(double *const *x, long k, number value) { x[0][k] = value; }
#define TOTAL(x) (((x)[0] + (x)[1]) + ((x)[2] + (x)[3]))
INLINE number NAME(larger)(number x, number y) { return x < y ? y : x; }  // a NaN x stays
#endif
#define READ(x, k) NAME(read)((const double *const *)(x), k)
#define WRITE(x, k, value) NAME(write)(x, k, value)

typedef struct {
    long n, t;
    const long *step;
    const vec *a, *at, *q, *h, *left, *turned;  // left and turned: a and at as fixed tiles
    const double *lam[CHAINS], *eta[CHAINS], *d_lam[CHAINS], *weight[CHAINS];  // of a quadratic form: left and right
    double *v[CHAINS], *out[2][CHAINS];
    vec *w, *g_a, *g_q, *scratch;
} chain;

static vec *NAME(allocate)(long count) { return allocate(count * sizeof(vec)); }

// out = X Y for 4 x 4 tiles, the same for a fixed X, out += X Y, and out += Xᵀ Y. X should be in memory: single numbers of
// it are loaded.
INLINE void NAME(product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] = PICK(x[r], 0) * y[0] + PICK(x[r], 1) * y[1] + PICK(x[r], 2) * y[2] + PICK(x[r], 3) * y[3];
}
INLINE void NAME(fixed_product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] = FIXED(x, r, 0) * y[0] + FIXED(x, r, 1) * y[1] + FIXED(x, r, 2) * y[2] + FIXED(x, r, 3) * y[3];
}
INLINE void NAME(add_product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] += PICK(x[r], 0) * y[0] + PICK(x[r], 1) * y[1] + PICK(x[r], 2) * y[2] + PICK(x[r], 3) * y[3];
}
INLINE void NAME(add_turned_product)(const vec *x, const vec *y, vec *out) {
    FOUR(r) out[r] += PICK(x[0], r) * y[0] + PICK(x[1], r) * y[1] + PICK(x[2], r) * y[2] + PICK(x[3], r) * y[3];
}
INLINE void NAME(turn)(const vec *x, vec *out) {
    const vec a = MIX(x[0], x[1], 0, 4, 2, 6), b = MIX(x[0], x[1], 1, 5, 3, 7);
    const vec c = MIX(x[2], x[3], 0, 4, 2, 6), d = MIX(x[2], x[3], 1, 5, 3, 7);
    out[0] = MIX(a, c, 0, 1, 4, 5);
    out[1] = MIX(b, d, 0, 1, 4, 5);
    out[2] = MIX(a, c, 2, 3, 6, 7);
    out[3] = MIX(b, d, 2, 3, 6, 7);
}
INLINE number NAME(dot)(long t, const vec *x, const vec *y) {
    vec total = x[0] * y[0];
    for (long i = 1; i < t; i++) total += x[i] * y[i];
    return TOTAL(total);
}

// S ← S + x yᵀ + y xᵀ for the tile (i, j)
INLINE void NAME(add_pair)(const vec *x, const vec *y, long i, long j, const vec *s, vec *out) {
    FOUR(r) out[r] = s[r] + PICK(x[i], r) * y[j] + PICK(y[i], r) * x[j];
}

// The part of a tile (i, j) in out = S x. Its rows are collected in part, which finish adds up
INLINE void NAME(apply)(const vec *s, const vec *x, long i, long j, vec *part, vec *out) {
    FOUR(r) part[r] += s[r] * x[j];
    if (i != j) out[j] += s[0] * PICK(x[i], 0) + s[1] * PICK(x[i], 1) + s[2] * PICK(x[i], 2) + s[3] * PICK(x[i], 3);
}
INLINE vec NAME(finish)(const vec *part) {
    vec turned[4];
    NAME(turn)(part, turned);
    return (turned[0] + turned[1]) + (turned[2] + turned[3]);
}

// S ← L (S + x yᵀ + y xᵀ) Lᵀ + extra in one sweep, with L of fixed tiles l and its transposes lt; then out = S z.
// kept, if not NULL, gets S + x yᵀ + y xᵀ; extra may be NULL.
INLINE void NAME(sweep)(long t, vec *s, const vec *x, const vec *y, const vec *l, const vec *lt, const vec *extra, vec *kept,
                        const vec *z, vec *out) {
    for (long i = 0; i < t; i++) {
        vec part[4] = {{0}, {0}, {0}, {0}};
        for (long j = 0; j <= i; j++, s += 4) {
            vec *from = kept ? kept : s, moved[4], result[4];
            NAME(add_pair)(x, y, i, j, s, from);
            NAME(product)(from, lt + 4 * j, moved);
            NAME(fixed_product)(l + WIDE * i, moved, result);
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
INLINE void NAME(reduce)(long t, vec *s, const vec *x, number scale, const vec *z, vec *out) {
    for (long i = 0; i < t; i++) {
        vec part[4] = {{0}, {0}, {0}, {0}};
        const vec y = scale * x[i];
        for (long j = 0; j <= i; j++, s += 4) {
            vec result[4];
            FOUR(r) s[r] = result[r] = s[r] + PICK(y, r) * x[j];
            NAME(apply)(result, z, i, j, part, out);
        }
        out[i] = NAME(finish)(part);
    }
}

// y = A x of tiles lt, the transposes of those of A
INLINE void NAME(move)(long t, const vec *lt, const vec *x, vec *y) {
    for (long i = 0; i < t; i++, lt += 4)
        y[i] = lt[0] * PICK(x[i], 0) + lt[1] * PICK(x[i], 1) + lt[2] * PICK(x[i], 2) + lt[3] * PICK(x[i], 3);
}

// Frames k0 <= k < k1 forwards. state has P, Ṗ, vectors x, y, ẋ, ẏ (x yᵀ + y xᵀ is still to be added to P, which saves a
// sweep), ẇ and v̇. kept gets for each frame P and Ṗ of the frame before, its ẇ and v̇
NOINLINE void NAME(forward)(const chain *c, long k0, long k1, vec *state, vec *kept) {
    const long t = c->t, size = SIZE(t);
    vec *P = state, *dP = P + size, *x = dP + size, *y = x + t, *dx = y + t, *dy = dx + t, *dw = dy + t;
    vec *rest = c->scratch;
    for (long k = k0; k < k1; k++) {
        const long at = 4 * t * c->step[k];
        const vec *h = c->h + t * k, *left = c->left + WIDE * t * c->step[k];
        vec *w = c->w + t * k;
        NAME(sweep)(t, P, x, y, left, c->at + at, c->q + at, kept, h, w);
        const number v = NAME(dot)(t, h, w), lam = READ(c->lam, k), u = 1.0 / (1.0 + lam * v), gain = lam * u;
        WRITE(c->v, k, v);
        if (c->d_lam[0]) {
            NAME(sweep)(t, dP, dx, dy, left, c->at + at, NULL, kept ? kept + size : NULL, h, dw);
            const number dv = NAME(dot)(t, h, dw), half = 0.5 * (gain * gain * dv - READ(c->d_lam, k) * u * u);
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
        const number half = 0.5 * NAME(dot)(t, h, rest) * gain;
        for (long i = 0; i < t; i++) {
            x[i] = gain * (half * w[i] - rest[i]);
            y[i] = w[i];
        }
    }
}

NOINLINE int NAME(variance)(const chain *c) {
    const long t = c->t;
    vec *state = NAME(allocate)(STATE(t)), *N = state, *x = c->scratch, *y = x + t;
    if (!state) return 1;
    memset(state, 0, STATE(t) * sizeof(vec));
    NAME(forward)(c, 0, c->n, state, NULL);
    memset(state, 0, STATE(t) * sizeof(vec));
    memset(y, 0, t * sizeof(vec));  // y = N w
    for (long k = c->n - 1; k >= 0; k--) {
        const long at = 4 * t * c->step[k];
        const vec *h = c->h + t * k, *w = c->w + t * k;
        const number v = READ(c->v, k), u = 1.0 / (1.0 + READ(c->lam, k) * v), gain = READ(c->lam, k) * u;
        const number n = NAME(dot)(t, w, y), filtered = u * v, s = filtered - u * u * n, least = filtered * 0x1p-52;
        WRITE(c->out[0], k, NAME(larger)(s, least));  // positive despite rounding errors
        WRITE(c->out[1], k, gain + gain * gain * n);
        const number half = 0.5 * (gain * gain * n + gain);
        for (long i = 0; i < t; i++) x[i] = half * h[i] - gain * y[i];
        NAME(sweep)(t, N, x, h, c->turned + WIDE * t * c->step[k], c->a + at, NULL, NULL, k ? w - t : w, y);
    }
    free(state);
    return 0;
}

// One frame of the gradient backwards: N + x hᵀ + h xᵀ = N⁻ and its tangent become those of the frame before. g_q is added
// to, and to g_a half of the gradient's transpose. Then y = N w, dy = Ṅ w and x = N turn for the frame before
INLINE void NAME(gradient_frame)(const chain *c, const vec *a, const vec *at, const vec *h, const vec *pair, const vec *d_pair,
                                 vec *N, vec *dN, const vec *P, const vec *dP, vec *g_a, vec *g_q, const vec *w,
                                 const vec *turn, vec *y, vec *dy, vec *x) {
    const number weight = READ(c->weight, 0);
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
                NAME(fixed_product)(at + WIDE * i, N, Z);
                NAME(fixed_product)(at + WIDE * i, dN, dZ);
                FOUR(r) sum[r] = dZ[r] + weight * Z[r];
                NAME(add_turned_product)(P, sum, g_a + 4 * j);
                NAME(add_turned_product)(dP, Z, g_a + 4 * j);
            }
            NAME(fixed_product)(at + WIDE * i, X, Z);
            NAME(fixed_product)(at + WIDE * i, dX, dZ);
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
INLINE void NAME(tangents)(const chain *c, long k, number dv, number *u, number *du, number *d_gain) {
    const number v = READ(c->v, k), lam = READ(c->lam, k), d_lam = READ(c->d_lam, k), own = 1.0 / (1.0 + lam * v);
    const number gain = lam * own;
    *u = own;
    *du = -own * own * (d_lam * v + lam * dv);
    *d_gain = d_lam * own * own - gain * gain * dv;
}

NOINLINE int NAME(gradient)(const chain *c) {
    const long t = c->t, size = SIZE(t);
    long length = BUDGET / (KEPT(t) * (long)sizeof(vec));
    length = length < 1 ? 1 : length > c->n ? c->n : length;
    const long segments = (c->n + length - 1) / length;
    vec *states = NAME(allocate)((segments + 1) * STATE(t) + 2 * size), *kept = NAME(allocate)(length * KEPT(t));
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
            const number v = READ(c->v, k), dv = PICK(own[2 * size + t], 0);
            number u, du, d_gain;
            NAME(tangents)(c, k, dv, &u, &du, &d_gain);
            const number gain = READ(c->lam, k) * u;
            const number lost = gain * NAME(dot)(t, w, x), n = NAME(dot)(t, w, y), moved = NAME(dot)(t, w, dy);
            const number dn = moved + 2.0 * NAME(dot)(t, y, dw);
            WRITE(c->out[0], k, du * v + u * dv - 2.0 * u * du * n - u * u * dn);
            const number half = 0.5 * (gain * gain * n + gain), d_half = 0.5 * (gain * gain * moved + d_gain) + lost;
            for (long l = 0; l < t; l++) {
                pair[l] = half * h[l] - gain * y[l];
                d_pair[l] = d_half * h[l] - gain * dy[l] - x[l];
            }
            if (k) {
                const vec *before = k > k0 ? own - KEPT(t) + 2 * size : edge;
                NAME(tangents)(c, k - 1, PICK(before[t], 0), &u, &du, &d_gain);
                for (long l = 0; l < t; l++) turn[l] = d_gain * w[l - t] + READ(c->lam, k - 1) * u * before[l];
            }
            NAME(gradient_frame)(c, c->a + at, c->turned + WIDE * t * c->step[k], h, pair, d_pair, N, dN, own, own + size, c->g_a + at, c->g_q + at,
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
        const number u = 1.0 / (1.0 + READ(c->lam, k) * READ(c->v, k)), f = NAME(dot)(t, c->h + t * k, moved);
        const number e = u * (READ(c->eta, k) - READ(c->lam, k) * f);
        WRITE(c->out[0], k, f);
        WRITE(c->out[1], k, e);
        for (long i = 0; i < t; i++) m[i] = moved[i] + w[i] * e;
    }
    memset(m, 0, t * sizeof(vec));
    for (long k = c->n - 1; k >= 0; k--) {
        const number v = READ(c->v, k), u = 1.0 / (1.0 + READ(c->lam, k) * v), e = READ(c->out[1], k);
        const number n = NAME(dot)(t, c->w + t * k, m), b = e - READ(c->lam, k) * u * n;
        WRITE(c->out[0], k, READ(c->out[0], k) + (v * e + u * n));
        WRITE(c->out[1], k, b);
        for (long i = 0; i < t; i++) moved[i] = m[i] + b * c->h[t * k + i];
        NAME(move)(t, c->a + 4 * t * c->step[k], moved, m);
    }
    return 0;
}

// The gradient of left·K_f right, lam and eta being left and right
NOINLINE int NAME(quadratic)(const chain *c) {
    const long t = c->t;
    const double *const *b[2] = {c->lam, c->eta};
    vec *r = NAME(allocate)(2 * c->n * t), *z = c->scratch, *moved = z + 2 * t;
    if (!r) return 1;
    for (int side = 0; side < 2; side++) {
        memset(moved, 0, t * sizeof(vec));
        for (long k = c->n - 1; k >= 0; k--) {
            vec *own = r + (side * c->n + k) * t;
            for (long i = 0; i < t; i++) own[i] = moved[i] + READ(b[side], k) * c->h[t * k + i];
            NAME(move)(t, c->a + 4 * t * c->step[k], own, moved);
        }
    }
    memset(z, 0, 2 * t * sizeof(vec));
    for (long k = 0; k < c->n; k++) {
        const long at = 4 * t * c->step[k];
        const vec *left = r + t * k, *right = left + t * c->n;
        for (long i = 0; i < t; i++) FOUR(row) {
            c->g_a[at + 4 * i + row] += PICK(left[i], row) * z[t + i] + PICK(right[i], row) * z[i];
            c->g_q[at + 4 * i + row] += 0.5 * (PICK(left[i], row) * right[i] + PICK(right[i], row) * left[i]);
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

#if CHAINS == 2
// `count` rows of both chains side by side, and back
static void NAME(join)(const quad *first, const quad *second, long count, vec *to) {
    for (long i = 0; i < count; i++) {
        ((piece *)(to + i))[0] = first[i];
        ((piece *)(to + i))[1] = second[i];
    }
}
static void NAME(part)(const vec *from, long count, quad *first, quad *second) {
    for (long i = 0; i < count; i++) {
        first[i] = ((const piece *)(from + i))[0];
        second[i] = ((const piece *)(from + i))[1];
    }
}
static void NAME(add_half)(const vec *from, int half, long count, quad *to) {
    for (long i = 0; i < count; i++) to[i] += ((const piece *)(from + i))[half];
}

// Fixed tiles from the rows of tiles
TARGET static void NAME(widen)(const vec *rows, long count, vec *to) {
    for (long i = 0; i < count; i++, to += 4) FOUR(lane) to[lane] = PICK(rows[i], lane);
}

// Two chains
TARGET static int NAME(run_chains)(const given *one, const given *two, int task) {
    const long n = one->n, t = one->t, tiles = 4 * t * one->steps, rows = n * t;
    const int gradients = one->g_a != NULL;
    vec *work = NAME(allocate)(TILES * tiles + 2 * rows + SCRATCH * t);
    if (!work) return 1;
    vec *a = work, *at = a + tiles, *q = at + tiles, *g_a = q + tiles, *g_q = g_a + tiles, *left = g_q + tiles;
    vec *turned = left + 4 * tiles, *h = turned + 4 * tiles, *w = h + rows, *scratch = w + rows;
    NAME(join)(one->a, two->a, tiles, a);
    NAME(join)(one->at, two->at, tiles, at);
    NAME(join)(one->q, two->q, tiles, q);
    NAME(join)(one->h, one->h, rows, h);
    NAME(widen)(a, tiles, left);
    NAME(widen)(at, tiles, turned);
    if (task == SOLVE) NAME(join)(one->w, two->w, rows, w);
    if (gradients) memset(g_a, 0, 2 * tiles * sizeof(vec));
    const chain c = {n, t, one->step, a, at, q, h, left, turned, {one->lam, two->lam}, {one->eta, two->eta},
                     {one->d_lam, two->d_lam}, {one->weight, two->weight}, {one->v, two->v},
                     {{one->out[0], two->out[0]}, {one->out[1], two->out[1]}}, w, g_a, g_q, scratch};
    const int status = NAME(run)(&c, task);
    if (task == VARIANCE) NAME(part)(w, rows, one->w, two->w);
    if (gradients) {
        NAME(add_half)(g_a, 0, tiles, one->g_a);
        NAME(add_half)(g_q, 0, tiles, one->g_q);
        NAME(add_half)(g_a, 1, tiles, two->g_a);
        NAME(add_half)(g_q, 1, tiles, two->g_q);
    }
    free(work);
    return status;
}
#else
// One chain
TARGET static int NAME(run_chains)(const given *one, int task) {
    vec *scratch = NAME(allocate)(SCRATCH * one->t);
    if (!scratch) return 1;
    const chain c = {one->n, one->t, one->step, one->a, one->at, one->q, one->h, one->a, one->at, {one->lam}, {one->eta},
                     {one->d_lam}, {one->weight}, {one->v}, {{one->out[0]}, {one->out[1]}}, one->w, one->g_a, one->g_q,
                     scratch};
    const int status = NAME(run)(&c, task);
    free(scratch);
    return status;
}
#endif

#undef INLINE
#undef NOINLINE
#undef FOUR
#undef vec
#undef number
#undef chain
#undef PICK
#undef MIX
#undef READ
#undef WRITE
#undef TOTAL
#undef HALF
#undef CHAINS
#undef WIDE
#undef FIXED
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
#define TILES 13   // numbers of copies of all tiles for two chains

#ifdef __clang__
#define SHUFFLE(x, y, type, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, type, ...) __builtin_shuffle(x, y, (type){__VA_ARGS__})
#endif

enum { VARIANCE, SOLVE, GRADIENT, QUADRATIC };

typedef double quad __attribute__((vector_size(32)));
typedef double piece __attribute__((vector_size(32), may_alias));  // a half of a vector
typedef long long index4 __attribute__((vector_size(32)));

// A chain
typedef struct {
    long n, t, steps;
    const long *step;
    const quad *a, *at, *q, *h;
    const double *lam, *eta, *d_lam, *weight;
    double *v, *out[2];
    quad *w, *g_a, *g_q;
} given;

static void *allocate(long bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, bytes) ? NULL : memory;
}

#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#include <immintrin.h>
// The lanes of a lane of both halves, which not all compilers take for constants in a loop
static const long long picked[4][8] __attribute__((aligned(64))) = {
    {0, 0, 0, 0, 4, 4, 4, 4}, {1, 1, 1, 1, 5, 5, 5, 5}, {2, 2, 2, 2, 6, 6, 6, 6}, {3, 3, 3, 3, 7, 7, 7, 7}};
#define TARGET __attribute__((target("avx512f")))
#define SET avx512
#define CHAINS 2
#include "_tiles.c"
#define TARGET __attribute__((target("avx2,fma")))
#define SET avx2
#define CHAINS 1
#include "_tiles.c"
#define RUN(one, task) \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? run_chains_avx2(one, task) \
                                                                     : run_chains_generic(one, task))
#define PAIRS __builtin_cpu_supports("avx512f")
#define RUN_PAIR(one, two, task) run_chains_avx512(one, two, task)
#else
#define RUN(one, task) run_chains_generic(one, task)
#define PAIRS 0
#define RUN_PAIR(one, two, task) 1
#endif
#define TARGET
#define SET generic
#define CHAINS 1
#include "_tiles.c"

// Chains c0 <= c < c1, with kernel index[c] of K each; at is a with its tiles transposed. The inputs are (C, N) or NULL,
// weight (C,) or NULL, the outputs (C, N); g_a and g_q (K, U, T, 4, 4) are added to. a, at, q, h, w, g_a and g_q are aligned
// to 32 bytes. Returns nonzero if memory ran out.
int run_tiles(int task, long n, long t, long steps, long c0, long c1, const long *step, const long *index, const double *a,
              const double *at, const double *q, const double *h, const double *lam, const double *eta, const double *d_lam,
              const double *weight, double *w, double *v, double *out0, double *out1, double *g_a, double *g_q) {
    // copies for pairs may take too much memory if all frames have different matrices
    const int pairs = PAIRS && (4 * TILES * steps + 2 * n) * t * 64 <= BUDGET / 4;
    int status = 0;
    for (long i = c0, used; i < c1 && !status; i += used) {
        given own[2];
        used = pairs && i + 1 < c1 ? 2 : 1;
        for (long k = 0; k < used; k++) {
            const long kernel = index[i + k] * steps * 16 * t, row = (i + k) * n;
            own[k] = (given){
                n, t, steps, step, (const quad *)(a + kernel), (const quad *)(at + kernel), (const quad *)(q + kernel),
                (const quad *)h, lam + row, eta ? eta + row : NULL, d_lam ? d_lam + row : NULL, weight ? weight + i + k : NULL,
                v ? v + row : NULL, {out0 ? out0 + row : NULL, out1 ? out1 + row : NULL}, w ? (quad *)w + row * t : NULL,
                g_a ? (quad *)(g_a + kernel) : NULL, g_q ? (quad *)(g_q + kernel) : NULL};
        }
        status = used == 2 ? RUN_PAIR(own, own + 1, task) : RUN(own, task);
    }
    return status;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tiles", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__tiles(void) { return PyModule_Create(&definition); }
#endif

#endif
