// SPDX-License-Identifier: Apache-2.0
//
// The recursions of recursions.py, which has the equations, as loops over the frames.
//
// Layout: the lanes of a SIMD vector are LANES chains, which all take the same steps. a and q are (K, U, d, d), with one
// matrix for each different time step; step (N,) is the step of each frame, h (N, d), quantities with one number per frame
// (C, N); index (C,) is the kernel, one of K, of each chain.
//
// The backward pass needs results of the forward pass. They are stored for a segment of frames that fits a fixed memory
// budget. With several segments, a first pass stores only the states between them, and each segment is run again.
//
// The file includes itself: once for every instruction set (the part under #ifdef TARGET), and there once for every
// small size of the state, for which the compiler unrolls all loops (the part under #ifdef DIM; 0 is any size).

#if defined(DIM)

#if DIM
#define D DIM
#define MATRIX(name, place) vec name[D * D]
#define VECTOR(name, place) vec name[D]
#else
#define D (g->d)
#define MATRIX(name, place) vec *name = g->scratch + (place) * D * D
#define VECTOR(name, place) vec *name = g->scratch + SCRATCH * D * D + (place) * D
#endif
#define EACH(i) for (long i = 0; i < D; i++)

// Products with A, which read only the entries that are nonzero in some frame: a large state mostly consists of small
// blocks. ROW(i, k) runs over the columns k of row i, COLUMN(k, i) over the rows k of column i.
#if DIM
#define ROW(i, k) for (long k = 0; k < D; k++)
#define COLUMN(k, i) for (long k = 0; k < D; k++)
#else
#define ROW(i, k) for (long at = g->rows[i], k; at < g->rows[i + 1] && (k = g->in_row[at], 1); at++)
#define COLUMN(k, i) for (long at = g->columns[i], k; at < g->columns[i + 1] && (k = g->in_column[at], 1); at++)
#endif
INLINE void NAME(read_a)(const group *g, long n, vec *out) {
    EACH(i) ROW(i, k) out[i * D + k] = ISA(load)(g, g->a, g->step[n] * D * D + i * D + k);
}
// A X
INLINE void NAME(a_times)(const group *g, const vec *a, const vec *x, vec *out) {
    EACH(i) {
        EACH(j) out[i * D + j] = splat(0.0);
        ROW(i, k) EACH(j) out[i * D + j] += a[i * D + k] * x[k * D + j];
    }
}
// Aᵀ X
INLINE void NAME(at_times)(const group *g, const vec *a, const vec *x, vec *out) {
    EACH(i) {
        EACH(j) out[i * D + j] = splat(0.0);
        COLUMN(k, i) EACH(j) out[i * D + j] += a[k * D + i] * x[k * D + j];
    }
}
// X A
INLINE void NAME(times_a)(const group *g, const vec *x, const vec *a, vec *out) {
    EACH(i) EACH(j) {
        vec total = splat(0.0);
        COLUMN(k, j) total += x[i * D + k] * a[k * D + j];
        out[i * D + j] = total;
    }
}
// X Aᵀ, which is symmetric
INLINE void NAME(times_at)(const group *g, const vec *x, const vec *a, vec *out) {
    EACH(i) for (long j = 0; j <= i; j++) {
        vec total = splat(0.0);
        ROW(j, k) total += x[i * D + k] * a[j * D + k];
        out[i * D + j] = total;
        out[j * D + i] = total;
    }
}
// A x and Aᵀ x
INLINE void NAME(apply_a)(const group *g, const vec *a, const vec *x, vec *out) {
    EACH(i) {
        vec total = splat(0.0);
        ROW(i, k) total += a[i * D + k] * x[k];
        out[i] = total;
    }
}
INLINE void NAME(apply_at)(const group *g, const vec *a, const vec *x, vec *out) {
    EACH(i) {
        vec total = splat(0.0);
        COLUMN(k, i) total += a[k * D + i] * x[k];
        out[i] = total;
    }
}
INLINE void NAME(apply)(const group *g, const vec *x, const vec *y, vec *out) {
    EACH(i) {
        vec total = x[i * D] * y[0];
        for (long k = 1; k < D; k++) total += x[i * D + k] * y[k];
        out[i] = total;
    }
}
INLINE vec NAME(dot)(const group *g, const vec *x, const vec *y) {
    vec total = x[0] * y[0];
    for (long k = 1; k < D; k++) total += x[k] * y[k];
    return total;
}
INLINE void NAME(read_matrix)(const group *g, const double *const *from, long k, vec *out) {
    for (long i = 0; i < D * D; i++) out[i] = ISA(load)(g, from, g->step[k] * D * D + i);
}
INLINE void NAME(read_row)(const group *g, long k, vec *out) { EACH(i) out[i] = splat(g->h[k * D + i]); }

// What a frame stores for the backward pass: w, v, then f and e of the mean; or v̇, ẇ, P and Ṗ of the frame before; or of a
// draw m and P of the frame before
#define KEPT_V D
#define KEPT_F (D + 1)
#define KEPT_E (D + 2)
#define KEPT_DV (D + 1)
#define KEPT_DW (D + 2)
#define KEPT_P (2 * D + 2)
#define KEPT_DP (2 * D + 2 + D * D)
#define KEPT_M (D + 1)

// Frames k0 <= k < k1 forwards, from P, m and Ṗ in ``state``, which is updated to the last of them
INLINE void NAME(forward)(const group *g, long k0, long k1, vec *state, vec *kept, long stride, int task) {
    const int mean = task == SOLVE, tangent = task == GRADIENT, draw = task == DRAW;
    vec *P = state, *m = state + D * D, *dP = state + D * D + D;
    MATRIX(A, 0); MATRIX(X, 1); MATRIX(M, 2); MATRIX(dM, 3);
    VECTOR(w, 0); VECTOR(dw, 1); VECTOR(h, 2); VECTOR(moved, 3); VECTOR(rest, 4);
    for (long k = k0; k < k1; k++, kept += kept ? stride : 0) {
        NAME(read_a)(g, k, A);
        NAME(read_row)(g, k, h);
        NAME(a_times)(g, A, P, X);
        NAME(times_at)(g, X, A, M);
        for (long i = 0; i < D * D; i++) M[i] += ISA(load)(g, g->q, g->step[k] * D * D + i);
        NAME(apply)(g, M, h, w);
        const vec v = NAME(dot)(g, h, w), lam = ISA(load_frame)(g, g->in[0], k), u = 1.0 / (1.0 + lam * v), c = lam * u;
        if (kept) {
            EACH(i) kept[i] = w[i];
            kept[KEPT_V] = v;
        }
        if (tangent) {
            const vec d_lam = ISA(load_frame)(g, g->in[1], k);
            if (kept) for (long i = 0; i < D * D; i++) {
                kept[KEPT_P + i] = P[i];
                kept[KEPT_DP + i] = dP[i];
            }
            NAME(a_times)(g, A, dP, X);
            NAME(times_at)(g, X, A, dM);
            NAME(apply)(g, dM, h, dw);
            const vec dv = NAME(dot)(g, h, dw), scale = c * c * dv - d_lam * u * u;
            if (kept) {
                EACH(i) kept[KEPT_DW + i] = dw[i];
                kept[KEPT_DV] = dv;
            }
            EACH(i) EACH(j) dP[i * D + j] = dM[i * D + j] - c * (w[i] * dw[j] + dw[i] * w[j]) + scale * w[i] * w[j];
        }
        if (mean) {
            const vec eta = ISA(load_frame)(g, g->in[1], k);
            NAME(apply_a)(g, A, m, moved);
            const vec f = NAME(dot)(g, h, moved), e = u * (eta - lam * f);
            EACH(i) m[i] = moved[i] + w[i] * e;
            if (kept) {
                kept[KEPT_F] = f;
                kept[KEPT_E] = e;
            }
        }
        if (draw) {
            const vec noise = ISA(load_frame)(g, g->in[1], k), scale = ISA(root)(v + 1.0 / lam);
            NAME(apply_a)(g, A, m, moved);
            if (kept) {
                EACH(i) kept[KEPT_M + i] = m[i];
                for (long i = 0; i < D * D; i++) kept[KEPT_P + i] = P[i];
            } else {
                ISA(store)(g, g->out[0], k, NAME(dot)(g, h, moved) + scale * noise);
            }
            EACH(i) m[i] = moved[i] + w[i] * noise / scale;
        }
        // P h = u w holds exactly; the rounding error is removed, as Joseph's form would
        EACH(i) EACH(j) P[i * D + j] = M[i * D + j] - c * w[i] * w[j];
        NAME(apply)(g, P, h, rest);
        EACH(i) rest[i] -= u * w[i];
        const vec last = c * NAME(dot)(g, h, rest);
        EACH(i) EACH(j) P[i * D + j] -= c * (rest[i] * w[j] + w[i] * rest[j] - last * w[i] * w[j]);
    }
}

NOINLINE void NAME(forward_plain)(const group *g, long k0, long k1, vec *state, vec *kept, long stride) {
    NAME(forward)(g, k0, k1, state, kept, stride, VARIANCE);
}
NOINLINE void NAME(forward_mean)(const group *g, long k0, long k1, vec *state, vec *kept, long stride) {
    NAME(forward)(g, k0, k1, state, kept, stride, SOLVE);
}
NOINLINE void NAME(forward_tangent)(const group *g, long k0, long k1, vec *state, vec *kept, long stride) {
    NAME(forward)(g, k0, k1, state, kept, stride, GRADIENT);
}
NOINLINE void NAME(forward_draw)(const group *g, long k0, long k1, vec *state, vec *kept, long stride) {
    NAME(forward)(g, k0, k1, state, kept, stride, DRAW);
}

// X ← Gᵀ X G with G = I − c w h, of y = X w and n = w·y, plus extra h hᵀ
INLINE void NAME(pull)(const group *g, vec *x, const vec *y, const vec *h, vec c, vec n, vec extra) {
    const vec scale = c * c * n + extra;
    EACH(i) EACH(j) x[i * D + j] += scale * h[i] * h[j] - c * (h[i] * y[j] + y[i] * h[j]);
}

INLINE void NAME(back_variance)(const group *g, long k, vec *N, const vec *kept) {
    MATRIX(A, 0); MATRIX(X, 1);
    VECTOR(y, 0); VECTOR(h, 1);
    const vec lam = ISA(load_frame)(g, g->in[0], k), v = kept[KEPT_V], u = 1.0 / (1.0 + lam * v), c = lam * u;
    NAME(read_row)(g, k, h);
    NAME(apply)(g, N, kept, y);
    const vec n = NAME(dot)(g, kept, y), filtered = u * v, s = filtered - u * u * n, least = filtered * 0x1p-52;
    ISA(store)(g, g->out[0], k, ISA(larger)(s, least));  // positive despite rounding errors
    ISA(store)(g, g->out[1], k, c + c * c * n);
    ISA(store)(g, g->out[2], k, v);
    NAME(pull)(g, N, y, h, c, n, c);
    NAME(read_a)(g, k, A);
    NAME(times_a)(g, N, A, X);
    NAME(at_times)(g, A, X, N);
}

INLINE void NAME(back_mean)(const group *g, long k, vec *r, const vec *kept) {
    MATRIX(A, 0);
    VECTOR(h, 0); VECTOR(moved, 1);
    const vec lam = ISA(load_frame)(g, g->in[0], k), v = kept[KEPT_V], u = 1.0 / (1.0 + lam * v);
    const vec e = kept[KEPT_E], n = NAME(dot)(g, kept, r), b = e - lam * u * n;
    ISA(store)(g, g->out[0], k, kept[KEPT_F] + v * e + u * n);
    ISA(store)(g, g->out[1], k, b);
    ISA(store)(g, g->out[2], k, e * ISA(root)(v + 1.0 / lam));  // with η = λx: the noise of the draw x
    NAME(read_row)(g, k, h);
    EACH(i) moved[i] = r[i] + h[i] * b;
    NAME(read_a)(g, k, A);
    NAME(apply_at)(g, A, moved, r);
}

INLINE void NAME(back_gradient)(const group *g, long k, vec *N, vec *dN, const vec *kept) {
    MATRIX(A, 0); MATRIX(X, 1); MATRIX(dX, 2); MATRIX(G, 3);
    VECTOR(y, 0); VECTOR(dy, 1); VECTOR(h, 2); VECTOR(turn, 3); VECTOR(x, 4);
    const vec *w = kept, *dw = kept + KEPT_DW, v = kept[KEPT_V], dv = kept[KEPT_DV];
    const vec lam = ISA(load_frame)(g, g->in[0], k), d_lam = ISA(load_frame)(g, g->in[1], k);
    const vec u = 1.0 / (1.0 + lam * v), c = lam * u;
    const vec du = -u * u * (d_lam * v + lam * dv), dc = d_lam * u * u - c * c * dv;
    NAME(read_row)(g, k, h);
    NAME(apply)(g, N, w, y);
    NAME(apply)(g, dN, w, dy);
    EACH(i) turn[i] = dc * w[i] + c * dw[i];
    NAME(apply)(g, N, turn, x);
    const vec lost = c * NAME(dot)(g, w, x);
    EACH(i) x[i] -= lost * h[i];
    const vec n = NAME(dot)(g, w, y), moved = NAME(dot)(g, w, dy), dn = moved + 2.0 * NAME(dot)(g, y, dw);
    ISA(store)(g, g->out[0], k, du * v + u * dv - 2.0 * u * du * n - u * u * dn);
    NAME(pull)(g, N, y, h, c, n, c);
    NAME(pull)(g, dN, dy, h, c, moved, dc);
    EACH(i) EACH(j) {
        dN[i * D + j] -= x[i] * h[j] + h[i] * x[j];
        G[i * D + j] = dN[i * D + j] + g->weight * N[i * D + j];
    }
    NAME(read_a)(g, k, A);
    NAME(times_a)(g, N, A, X);
    NAME(times_a)(g, dN, A, dX);
    NAME(at_times)(g, A, X, N);
    NAME(at_times)(g, A, dX, dN);
    for (long i = 0; i < D * D; i++) {
        ISA(add)(g, g->g_q, g->step[k] * D * D + i, G[i]);
        dX[i] += g->weight * X[i];
    }
    const vec *P = kept + KEPT_P, *dP = kept + KEPT_DP;
    EACH(i) ROW(i, j) {
        vec total = splat(0.0);
        EACH(l) total += dX[i * D + l] * P[l * D + j] + X[i * D + l] * dP[l * D + j];
        ISA(add)(g, g->g_a, g->step[k] * D * D + i * D + j, 2.0 * total);
    }
}

INLINE void NAME(back_draw)(const group *g, long k, vec *N, vec *r, const vec *kept) {
    MATRIX(A, 0); MATRIX(X, 1);
    VECTOR(y, 0); VECTOR(h, 1); VECTOR(moved, 2); VECTOR(x, 3);
    const vec *w = kept, v = kept[KEPT_V], white = 1.0 / ISA(load_frame)(g, g->in[0], k), c = 1.0 / (v + white);
    const vec grad = ISA(load_frame)(g, g->in[2], k), rate = ISA(load_frame)(g, g->in[1], k) * ISA(root)(c);
    const vec dv = 0.5 * rate * (grad - c * NAME(dot)(g, r, w));
    NAME(read_row)(g, k, h);
    NAME(apply)(g, N, w, y);
    const vec n = NAME(dot)(g, w, y);
    ISA(store)(g, g->out[0], k, dv + c * c * n);
    ISA(store)(g, g->out[1], k, grad / ISA(root)(c) + NAME(dot)(g, r, w) * ISA(root)(c));
    NAME(pull)(g, N, y, h, c, n, dv);
    EACH(i) x[i] = 0.5 * rate * r[i];
    EACH(i) EACH(j) {
        N[i * D + j] += x[i] * h[j] + h[i] * x[j];
        ISA(add)(g, g->g_q, g->step[k] * D * D + i * D + j, N[i * D + j]);
    }
    EACH(i) moved[i] = r[i] + h[i] * grad;
    NAME(read_a)(g, k, A);
    NAME(times_a)(g, N, A, X);
    EACH(i) ROW(i, j) {
        vec total = splat(0.0);
        EACH(l) total += X[i * D + l] * kept[KEPT_P + l * D + j];
        ISA(add)(g, g->g_a, g->step[k] * D * D + i * D + j, 2.0 * total + moved[i] * kept[KEPT_M + j]);
    }
    NAME(at_times)(g, A, X, N);
    NAME(apply_at)(g, A, moved, r);
}

// A filter and the backward pass, in segments; a draw has no backward pass
NOINLINE int NAME(there_and_back)(const group *g, int task) {
    const int mean = task == SOLVE, tangent = task == GRADIENT, draw = task == DRAW || task == DRAW_GRADIENT;
    const long size = 2 * D * D + D;
    const long stride = tangent ? KEPT_DP + D * D : draw ? KEPT_P + D * D : mean ? KEPT_E + 1 : KEPT_V + 1;
    long length = BUDGET / (stride * (long)sizeof(vec));
    length = length < 1 ? 1 : length > g->n ? g->n : length;
    const long segments = (g->n + length - 1) / length;
    vec *states = allocate((segments + 2) * size), *kept = allocate(length * stride);
    if (!states || !kept) {
        free(states);
        free(kept);
        return 1;
    }
    vec *state = states + segments * size, *back = state + size;
    void (*forward)(const group *, long, long, vec *, vec *, long) =
        mean ? NAME(forward_mean) : tangent ? NAME(forward_tangent) : draw ? NAME(forward_draw) : NAME(forward_plain);
    for (long i = 0; i < 2 * size; i++) state[i] = splat(0.0);
    if (task == DRAW) forward(g, 0, g->n, state, NULL, stride);
    for (long i = 0; i < segments && task != DRAW; i++) {
        memcpy(states + i * size, state, size * sizeof(vec));
        if (i + 1 < segments) forward(g, i * length, (i + 1) * length, state, NULL, stride);
    }
    for (long i = segments - 1; i >= 0 && task != DRAW; i--) {
        const long k0 = i * length, k1 = k0 + length < g->n ? k0 + length : g->n;
        forward(g, k0, k1, states + i * size, kept, stride);
        for (long k = k1 - 1; k >= k0; k--) {
            const vec *own = kept + (k - k0) * stride;
            if (mean) NAME(back_mean)(g, k, back, own);
            else if (draw) NAME(back_draw)(g, k, back, back + D * D, own);
            else if (tangent) NAME(back_gradient)(g, k, back, back + D * D, own);
            else NAME(back_variance)(g, k, back, own);
        }
    }
    free(states);
    free(kept);
    return 0;
}

// r_k = h b_k + A_{k+1}ᵀ r_{k+1} for all frames
NOINLINE void NAME(future)(const group *g, const double *const *b, vec *r) {
    MATRIX(A, 0);
    VECTOR(moved, 0);
    EACH(i) moved[i] = splat(0.0);
    for (long k = g->n - 1; k >= 0; k--) {
        const vec own = ISA(load_frame)(g, b, k);
        EACH(i) r[k * D + i] = moved[i] + own * g->h[k * D + i];
        NAME(read_a)(g, k, A);
        NAME(apply_at)(g, A, r + k * D, moved);
    }
}

// z ← A_k z + Q_k r_k
INLINE void NAME(path)(const group *g, const vec *A, const vec *Q, const vec *r, vec *z, vec *moved, vec *added) {
    NAME(apply_a)(g, A, z, moved);
    NAME(apply)(g, Q, r, added);
    EACH(i) z[i] = moved[i] + added[i];
}

NOINLINE int NAME(matmul)(const group *g) {
    vec *r = allocate((g->n + 1) * D);
    if (!r) return 1;
    NAME(future)(g, g->in[0], r);
    vec *z = r + g->n * D;
    MATRIX(A, 0); MATRIX(Q, 1);
    VECTOR(h, 0); VECTOR(moved, 1); VECTOR(added, 2);
    EACH(i) z[i] = splat(0.0);
    for (long k = 0; k < g->n; k++) {
        NAME(read_a)(g, k, A);
        NAME(read_matrix)(g, g->q, k, Q);
        NAME(read_row)(g, k, h);
        NAME(path)(g, A, Q, r + k * D, z, moved, added);
        ISA(store)(g, g->out[0], k, NAME(dot)(g, h, z));
    }
    free(r);
    return 0;
}

NOINLINE int NAME(quadratic)(const group *g) {
    vec *r = allocate(2 * (g->n + 1) * D);
    if (!r) return 1;
    vec *s = r + g->n * D, *y = s + g->n * D, *z = y + D;
    NAME(future)(g, g->in[0], r);
    NAME(future)(g, g->in[1], s);
    MATRIX(A, 0); MATRIX(Q, 1);
    VECTOR(moved, 0); VECTOR(added, 1);
    for (long i = 0; i < 2 * D; i++) y[i] = splat(0.0);
    for (long k = 0; k < g->n; k++) {
        const vec *a = r + k * D, *b = s + k * D;
        EACH(i) EACH(j) {
            ISA(add)(g, g->g_a, g->step[k] * D * D + i * D + j, a[i] * z[j] + b[i] * y[j]);
            ISA(add)(g, g->g_q, g->step[k] * D * D + i * D + j, 0.5 * (a[i] * b[j] + b[i] * a[j]));
        }
        NAME(read_a)(g, k, A);
        NAME(read_matrix)(g, g->q, k, Q);
        NAME(path)(g, A, Q, a, y, moved, added);
        NAME(path)(g, A, Q, b, z, moved, added);
    }
    free(r);
    return 0;
}

NOINLINE int NAME(run)(const group *g, int task) {
    switch (task) {
        case MATMUL: return NAME(matmul)(g);
        case QUADRATIC: return NAME(quadratic)(g);
        default: return NAME(there_and_back)(g, task);
    }
}

#undef D
#undef MATRIX
#undef VECTOR
#undef EACH
#undef ROW
#undef COLUMN
#undef KEPT_V
#undef KEPT_F
#undef KEPT_E
#undef KEPT_DV
#undef KEPT_DW
#undef KEPT_P
#undef KEPT_DP
#undef KEPT_M
#undef DIM

#elif defined(TARGET)

INLINE vec ISA(load)(const group *g, const double *const *from, long i) {
    if (g->shared) return splat(from[0][i]);
    return (vec){from[0][i], from[1][i], from[2][i], from[3][i]};
}
INLINE vec ISA(load_frame)(const group *g, const double *const *from, long i) {
    return (vec){from[0][i], from[1][i], from[2][i], from[3][i]};
}
INLINE void ISA(store)(const group *g, double *const *to, long i, vec x) {
    for (int lane = 0; lane < g->lanes; lane++) to[lane][i] = x[lane];
}
INLINE void ISA(add)(const group *g, double *const *to, long i, vec x) {
    if (g->shared && g->lanes == LANES) {
        to[0][i] += (x[0] + x[1]) + (x[2] + x[3]);
        return;
    }
    for (int lane = 0; lane < g->lanes; lane++) to[lane][i] += x[lane];
}
INLINE vec ISA(larger)(vec x, vec y) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = x[lane] < y[lane] ? y[lane] : x[lane];  // a NaN stays
    return x;
}
INLINE vec ISA(root)(vec x) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrt(x[lane]);
    return x;
}

#define DIM 0
#include "_chains.c"
#ifndef ANY_SIZE
#define DIM 1
#include "_chains.c"
#define DIM 2
#include "_chains.c"
#define DIM 3
#include "_chains.c"
#define DIM 4
#include "_chains.c"
#define DIM 5
#include "_chains.c"
#endif

TARGET static int ISA(run)(const group *g, int task) {
    switch (g->d) {
#ifndef ANY_SIZE
        case 1: return PASTE(run, SET, 1)(g, task);
        case 2: return PASTE(run, SET, 2)(g, task);
        case 3: return PASTE(run, SET, 3)(g, task);
        case 4: return PASTE(run, SET, 4)(g, task);
        case 5: return PASTE(run, SET, 5)(g, task);
#endif
        default: return PASTE(run, SET, 0)(g, task);
    }
}
#undef TARGET
#undef SET

#else

#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no function with vectors is called from another file
#endif

#define LANES 4
#define BUDGET (1L << 26)  // bytes that the forward pass may store for the backward pass
#define SCRATCH 4          // matrices, and VECTORS vectors, of any size that a step works with
#define VECTORS 5
#define INLINE TARGET static inline __attribute__((always_inline))
#define NOINLINE TARGET static __attribute__((noinline))
#define splat(x) ((x) - (vec){0})
#define PASTED(x, set, dim) x##_##set##_##dim
#define PASTE(x, set, dim) PASTED(x, set, dim)
#define NAME(x) PASTE(x, SET, DIM)
#define JOINED(x, set) x##_##set
#define JOIN(x, set) JOINED(x, set)
#define ISA(x) JOIN(x, SET)

enum { VARIANCE, SOLVE, GRADIENT, DRAW_GRADIENT, DRAW, MATMUL, QUADRATIC };

typedef double vec __attribute__((vector_size(8 * LANES)));

// LANES chains; if there are fewer, the last lanes repeat the first and are never written
typedef struct {
    long n, d, lanes;
    const long *step;
    const long *rows, *in_row, *columns, *in_column;  // the nonzero pattern of A, by rows and by columns
    int shared;  // all chains have the same kernel
    const double *a[LANES], *q[LANES], *h, *in[3][LANES];
    double *out[3][LANES], *g_a[LANES], *g_q[LANES];
    vec weight, *scratch;
} group;

static vec *allocate(long count) {
    void *memory = NULL;
    return posix_memalign(&memory, sizeof(vec), count * sizeof(vec)) ? NULL : memory;
}

#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx2,fma")))
#define SET avx2
#include "_chains.c"
#define ANY_SIZE  // no unrolled code for old processors: it takes long to compile
#define RUN(g, task) \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? run_avx2(g, task) : run_generic(g, task))
#else
#define RUN(g, task) run_generic(g, task)
#endif
#define TARGET
#define SET generic
#include "_chains.c"

// Chains c0 <= c < c1. pattern is the nonzero pattern of the matrices a: the offsets of rows (d + 1,), the columns in each
// row, the offsets of columns (d + 1,), and the rows in each column. in0 to in2 are (C, N) or NULL, weight (C,) or NULL,
// out0 to out2 (C, N); g_a and g_q (K, U, d, d) are added to. Returns nonzero if memory ran out.
int run_chains(int task, long n, long d, long steps, long c0, long c1, const long *pattern, const long *step,
               const long *index, const double *a, const double *q, const double *h, const double *in0, const double *in1,
               const double *in2, const double *weight, double *out0, double *out1, double *out2, double *g_a, double *g_q) {
    group g = {.n = n, .d = d, .h = h, .step = step};
    g.rows = pattern;
    g.in_row = g.rows + d + 1;
    g.columns = g.in_row + g.rows[d];
    g.in_column = g.columns + d + 1;
    const double *inputs[3] = {in0, in1, in2};
    double *outputs[3] = {out0, out1, out2};
    g.scratch = allocate(SCRATCH * d * d + VECTORS * d);
    if (!g.scratch) return 1;
    int status = 0;
    for (long c = c0; c < c1 && !status; c += LANES) {
        g.lanes = c1 - c < LANES ? c1 - c : LANES;
        g.shared = 1;
        for (long lane = 0; lane < LANES; lane++) {
            const long chain = lane < g.lanes ? c + lane : c, kernel = index[chain] * steps * d * d;
            g.shared &= index[chain] == index[c];
            g.a[lane] = a + kernel;
            g.q[lane] = q + kernel;
            if (g_a) {
                g.g_a[lane] = g_a + kernel;
                g.g_q[lane] = g_q + kernel;
            }
            for (int i = 0; i < 3; i++) if (inputs[i]) g.in[i][lane] = inputs[i] + chain * n;
            for (int i = 0; i < 3; i++) if (outputs[i]) g.out[i][lane] = outputs[i] + chain * n;
            g.weight[lane] = weight ? weight[chain] : 0.0;
        }
        status = RUN(&g, task);
    }
    free(g.scratch);
    return status;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_chains", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__chains(void) { return PyModule_Create(&definition); }
#endif

#endif
