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
// Adds what was collected for the transition that is open to the gradients, and opens that of frame k, whose matrices stay
// in g->own while the steps are equal; those of no frame if k < 0
INLINE void NAME(open)(const group *g, long k) {
    ISA(transition) *own = g->own;
    const long next = k < 0 ? -1 : g->step[k];
    if (own->step == next) return;
    if (own->step >= 0 && g->g_a[0]) for (long i = 0; i < D * D; i++) {
        ISA(add)(g, g->g_a, own->step * D * D + i, own->g_a[i]);
        ISA(add)(g, g->g_q, own->step * D * D + i, own->g_q[i]);
        own->g_a[i] = own->g_q[i] = splat(0.0);
    }
    own->step = next;
    if (k < 0) return;
    EACH(i) ROW(i, j) own->a[i * D + j] = ISA(load)(g, g->a, next * D * D + i * D + j);
    for (long i = 0; i < D * D; i++) own->q[i] = ISA(load)(g, g->q, next * D * D + i);
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
INLINE void NAME(read_row)(const group *g, long k, vec *out) { EACH(i) out[i] = splat(g->h[k * D + i]); }

// What a frame stores for the backward pass: w, v, then f and e of the mean; or w, v, and of a draw m and P of the frame
// before; or, of the gradient, the lower triangles of P and dP of the frame before, because memory is slower than products
#define KEPT_V D
#define KEPT_F (D + 1)
#define KEPT_E (D + 2)
#define KEPT_M (D + 1)
#define KEPT_P (2 * D + 2)
#define TRIANGLE (D * (D + 1) / 2)
INLINE void NAME(keep)(const group *g, const vec *matrix, vec *kept) {
    EACH(i) for (long j = 0; j <= i; j++) *kept++ = matrix[i * D + j];
}
INLINE void NAME(unpack)(const group *g, const vec *kept, vec *matrix) {
    EACH(i) for (long j = 0; j <= i; j++, kept++) matrix[i * D + j] = *kept, matrix[j * D + i] = *kept;
}

// Frames k0 <= k < k1 forwards, from P, m and Ṗ in ``state``, which is updated to the last of them
INLINE void NAME(forward)(const group *g, long k0, long k1, vec *state, vec *kept, long stride, int task) {
    const int mean = task == SOLVE, tangent = task == GRADIENT, draw = task == DRAW;
    vec *P = state, *m = state + D * D, *dP = state + D * D + D;
    const vec *A = g->own->a, *Q = g->own->q;
    MATRIX(X, 0); MATRIX(M, 1); MATRIX(dM, 2);
    VECTOR(w, 0); VECTOR(dw, 1); VECTOR(h, 2); VECTOR(moved, 3); VECTOR(rest, 4);
    for (long k = k0; k < k1; k++, kept += kept ? stride : 0) {
        NAME(open)(g, k);
        NAME(read_row)(g, k, h);
        NAME(a_times)(g, A, P, X);
        NAME(times_at)(g, X, A, M);
        for (long i = 0; i < D * D; i++) M[i] += Q[i];
        NAME(apply)(g, M, h, w);
        const vec v = NAME(dot)(g, h, w), lam = ISA(load_frame)(g, g->in[0], k), u = 1.0 / (1.0 + lam * v), c = lam * u;
        if (kept && !tangent) {
            EACH(i) kept[i] = w[i];
            kept[KEPT_V] = v;
        }
        if (tangent) {
            const vec d_lam = ISA(load_frame)(g, g->in[1], k);
            if (kept) {
                NAME(keep)(g, P, kept);
                NAME(keep)(g, dP, kept + TRIANGLE);
            }
            NAME(a_times)(g, A, dP, X);
            NAME(times_at)(g, X, A, dM);
            NAME(apply)(g, dM, h, dw);
            const vec dv = NAME(dot)(g, h, dw), scale = c * c * dv - d_lam * u * u;
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
    const vec *A = g->own->a;
    MATRIX(X, 0);
    VECTOR(y, 0); VECTOR(h, 1);
    const vec lam = ISA(load_frame)(g, g->in[0], k), v = kept[KEPT_V], u = 1.0 / (1.0 + lam * v), c = lam * u;
    NAME(read_row)(g, k, h);
    NAME(apply)(g, N, kept, y);
    const vec n = NAME(dot)(g, kept, y), filtered = u * v, s = filtered - u * u * n, least = filtered * 0x1p-52;
    ISA(store)(g, g->out[0], k, ISA(larger)(s, least));  // positive despite rounding errors
    if (g->out[1][0]) ISA(store)(g, g->out[1], k, c + c * c * n);
    ISA(store)(g, g->out[2], k, v);
    NAME(pull)(g, N, y, h, c, n, c);
    NAME(open)(g, k);
    NAME(times_a)(g, N, A, X);
    NAME(at_times)(g, A, X, N);
}

INLINE void NAME(back_mean)(const group *g, long k, vec *r, const vec *kept) {
    VECTOR(h, 0); VECTOR(moved, 1);
    const vec lam = ISA(load_frame)(g, g->in[0], k), v = kept[KEPT_V], u = 1.0 / (1.0 + lam * v);
    const vec e = kept[KEPT_E], n = NAME(dot)(g, kept, r), b = e - lam * u * n;
    ISA(store)(g, g->out[0], k, kept[KEPT_F] + v * e + u * n);
    ISA(store)(g, g->out[1], k, b);
    if (g->out[2][0]) ISA(store)(g, g->out[2], k, e * ISA(root)(v + 1.0 / lam));  // with η = λx: the noise of the draw x
    NAME(read_row)(g, k, h);
    EACH(i) moved[i] = r[i] + h[i] * b;
    NAME(open)(g, k);
    NAME(apply_at)(g, g->own->a, moved, r);
}

INLINE void NAME(back_gradient)(const group *g, long k, vec *N, vec *dN, const vec *kept) {
    const vec *A = g->own->a;
    MATRIX(X, 0); MATRIX(dX, 1); MATRIX(G, 2); MATRIX(P, 3); MATRIX(dP, 4);
    VECTOR(y, 0); VECTOR(dy, 1); VECTOR(h, 2); VECTOR(turn, 3); VECTOR(x, 4); VECTOR(w, 5); VECTOR(dw, 6);
    NAME(open)(g, k);
    NAME(unpack)(g, kept, P);
    NAME(unpack)(g, kept + TRIANGLE, dP);
    NAME(read_row)(g, k, h);
    NAME(apply_at)(g, A, h, turn);  // M h = A P A'h + Q h and its derivative, as in the forward pass
    NAME(apply)(g, P, turn, x);
    NAME(apply)(g, dP, turn, y);
    NAME(apply_a)(g, A, x, w);
    NAME(apply_a)(g, A, y, dw);
    NAME(apply)(g, g->own->q, h, x);
    EACH(i) w[i] += x[i];
    const vec v = NAME(dot)(g, h, w), dv = NAME(dot)(g, h, dw);
    const vec lam = ISA(load_frame)(g, g->in[0], k), d_lam = ISA(load_frame)(g, g->in[1], k);
    const vec u = 1.0 / (1.0 + lam * v), c = lam * u;
    const vec du = -u * u * (d_lam * v + lam * dv), dc = d_lam * u * u - c * c * dv;
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
    NAME(times_a)(g, N, A, X);
    NAME(times_a)(g, dN, A, dX);
    NAME(at_times)(g, A, X, N);
    NAME(at_times)(g, A, dX, dN);
    for (long i = 0; i < D * D; i++) {
        g->own->g_q[i] += G[i];
        dX[i] += g->weight * X[i];
    }
    EACH(i) ROW(i, j) {
        vec total = splat(0.0);
        EACH(l) total += dX[i * D + l] * P[l * D + j] + X[i * D + l] * dP[l * D + j];
        g->own->g_a[i * D + j] += 2.0 * total;
    }
}

INLINE void NAME(back_draw)(const group *g, long k, vec *N, vec *r, const vec *kept) {
    const vec *A = g->own->a;
    MATRIX(X, 0);
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
    NAME(open)(g, k);
    EACH(i) EACH(j) {
        N[i * D + j] += x[i] * h[j] + h[i] * x[j];
        g->own->g_q[i * D + j] += N[i * D + j];
    }
    EACH(i) moved[i] = r[i] + h[i] * grad;
    NAME(times_a)(g, N, A, X);
    EACH(i) ROW(i, j) {
        vec total = splat(0.0);
        EACH(l) total += X[i * D + l] * kept[KEPT_P + l * D + j];
        g->own->g_a[i * D + j] += 2.0 * total + moved[i] * kept[KEPT_M + j];
    }
    NAME(at_times)(g, A, X, N);
    NAME(apply_at)(g, A, moved, r);
}

// A filter and the backward pass, in segments; a draw has no backward pass
NOINLINE int NAME(there_and_back)(const group *g, int task) {
    const int mean = task == SOLVE, tangent = task == GRADIENT, draw = task == DRAW || task == DRAW_GRADIENT;
    const long size = 2 * D * D + D;
    const long stride = tangent ? 2 * TRIANGLE : draw ? KEPT_P + D * D : mean ? KEPT_E + 1 : KEPT_V + 1;
    long length = BUDGET / (stride * (long)sizeof(vec));
    length = length < 1 ? 1 : length > g->n ? g->n : length;
    const long segments = (g->n + length - 1) / length;
    vec *states = ISA(allocate)((segments + 2) * size), *kept = ISA(allocate)(length * stride);
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
    VECTOR(moved, 0);
    EACH(i) moved[i] = splat(0.0);
    for (long k = g->n - 1; k >= 0; k--) {
        const vec own = ISA(load_frame)(g, b, k);
        EACH(i) r[k * D + i] = moved[i] + own * g->h[k * D + i];
        NAME(open)(g, k);
        NAME(apply_at)(g, g->own->a, r + k * D, moved);
    }
}

// z ← A_k z + Q_k r_k
INLINE void NAME(path)(const group *g, const vec *r, vec *z, vec *moved, vec *added) {
    NAME(apply_a)(g, g->own->a, z, moved);
    NAME(apply)(g, g->own->q, r, added);
    EACH(i) z[i] = moved[i] + added[i];
}

NOINLINE int NAME(matmul)(const group *g) {
    vec *r = ISA(allocate)((g->n + 1) * D);
    if (!r) return 1;
    NAME(future)(g, g->in[0], r);
    vec *z = r + g->n * D;
    VECTOR(h, 0); VECTOR(moved, 1); VECTOR(added, 2);
    EACH(i) z[i] = splat(0.0);
    for (long k = 0; k < g->n; k++) {
        NAME(open)(g, k);
        NAME(read_row)(g, k, h);
        NAME(path)(g, r + k * D, z, moved, added);
        ISA(store)(g, g->out[0], k, NAME(dot)(g, h, z));
    }
    free(r);
    return 0;
}

NOINLINE int NAME(quadratic)(const group *g) {
    vec *r = ISA(allocate)(2 * (g->n + 1) * D);
    if (!r) return 1;
    vec *s = r + g->n * D, *y = s + g->n * D, *z = y + D;
    NAME(future)(g, g->in[0], r);
    NAME(future)(g, g->in[1], s);
    VECTOR(moved, 0); VECTOR(added, 1);
    for (long i = 0; i < 2 * D; i++) y[i] = splat(0.0);
    for (long k = 0; k < g->n; k++) {
        const vec *a = r + k * D, *b = s + k * D;
        NAME(open)(g, k);
        EACH(i) EACH(j) {
            g->own->g_a[i * D + j] += a[i] * z[j] + b[i] * y[j];
            g->own->g_q[i * D + j] += 0.5 * (a[i] * b[j] + b[i] * a[j]);
        }
        NAME(path)(g, a, y, moved, added);
        NAME(path)(g, b, z, moved, added);
    }
    free(r);
    return 0;
}

NOINLINE int NAME(run)(const group *g, int task) {
    const int status = task == MATMUL      ? NAME(matmul)(g)
                       : task == QUADRATIC ? NAME(quadratic)(g)
                                           : NAME(there_and_back)(g, task);
    NAME(open)(g, -1);
    return status;
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
#undef KEPT_P
#undef KEPT_M
#undef TRIANGLE
#undef DIM

#elif defined(TARGET)

// LANES chains; if there are fewer, the last lanes repeat the first and are never written
typedef double ISA(vec) __attribute__((vector_size(8 * LANES)));
#define vec ISA(vec)
// The matrices of a time step, and what is to be added to their gradients
typedef struct {
    long step;
    vec *a, *q, *g_a, *g_q;
} ISA(transition);
typedef struct {
    long n, d, lanes;
    const long *step;
    const long *rows, *in_row, *columns, *in_column;  // the nonzero pattern of A, by rows and by columns
    int shared;  // all chains have the same kernel
    const double *a[LANES], *q[LANES], *h, *in[3][LANES];
    double *out[3][LANES], *g_a[LANES], *g_q[LANES];
    vec weight, *scratch;
    ISA(transition) *own;
} ISA(group);
#define group ISA(group)

INLINE vec *ISA(allocate)(long count) {
    void *memory = NULL;
    return posix_memalign(&memory, sizeof(vec), count * sizeof(vec)) ? NULL : memory;
}
INLINE vec ISA(load_frame)(const group *g, const double *const *from, long i) {
#if LANES == 8
    return (vec){from[0][i], from[1][i], from[2][i], from[3][i], from[4][i], from[5][i], from[6][i], from[7][i]};
#else
    return (vec){from[0][i], from[1][i], from[2][i], from[3][i]};
#endif
}
INLINE vec ISA(load)(const group *g, const double *const *from, long i) {
    return g->shared ? splat(from[0][i]) : ISA(load_frame)(g, from, i);
}
INLINE void ISA(store)(const group *g, double *const *to, long i, vec x) {
    if (g->lanes == LANES) {
#pragma GCC unroll 8
        for (int lane = 0; lane < LANES; lane++) to[lane][i] = x[lane];
        return;
    }
    for (int lane = 0; lane < g->lanes; lane++) to[lane][i] = x[lane];
}
INLINE void ISA(add)(const group *g, double *const *to, long i, vec x) {
    for (int lane = 0; lane < g->lanes; lane++) to[lane][i] += x[lane];  // the same number, if chains share their kernel
}
INLINE vec ISA(larger)(vec x, vec y) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = x[lane] < y[lane] ? y[lane] : x[lane];  // a NaN stays
    return x;
}
INLINE vec ISA(root)(vec x) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrt(x[lane]);
    return x;
}

#ifdef ANY_SIZE
#define DIM 0
#include "_chains.c"
#endif
#ifdef SMALL_SIZES
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

INLINE int ISA(run_group)(const group *g, int task) {
    switch (g->d) {
#ifdef SMALL_SIZES
        case 1: return PASTE(run, SET, 1)(g, task);
        case 2: return PASTE(run, SET, 2)(g, task);
        case 3: return PASTE(run, SET, 3)(g, task);
        case 4: return PASTE(run, SET, 4)(g, task);
        case 5: return PASTE(run, SET, 5)(g, task);
#endif
#ifdef ANY_SIZE
        default: return PASTE(run, SET, 0)(g, task);
#else
        default: return 1;
#endif
    }
}

TARGET static int ISA(run)(const problem *P, int task) {
    const long d = P->d, size = P->steps * d * d;
    group g = {.n = P->n, .d = d, .h = P->h, .step = P->step};
    g.rows = P->pattern;
    g.in_row = g.rows + d + 1;
    g.columns = g.in_row + g.rows[d];
    g.in_column = g.columns + d + 1;
    vec *memory = ISA(allocate)((4 + SCRATCH) * d * d + VECTORS * d);
    if (!memory) return 1;
    for (long i = 0; i < 4 * d * d; i++) memory[i] = splat(0.0);
    ISA(transition) own = {-1, memory, memory + d * d, memory + 2 * d * d, memory + 3 * d * d};
    g.own = &own, g.scratch = memory + 4 * d * d;
    int status = 0;
    for (long c = P->c0; c < P->c1 && !status; c += LANES) {
        g.lanes = P->c1 - c < LANES ? P->c1 - c : LANES;
        g.shared = 1;
        for (long lane = 0; lane < LANES; lane++) {
            const long chain = lane < g.lanes ? c + lane : c, kernel = P->index[chain] * size;
            g.shared &= P->index[chain] == P->index[c];
            g.a[lane] = P->a + kernel;
            g.q[lane] = P->q + kernel;
            g.g_a[lane] = P->g_a ? P->g_a + kernel : NULL;
            g.g_q[lane] = P->g_q ? P->g_q + kernel : NULL;
            for (int i = 0; i < 3; i++) {
                g.in[i][lane] = P->in[i] ? P->in[i] + chain * P->n : NULL;
                g.out[i][lane] = P->out[i] ? P->out[i] + chain * P->n : NULL;
            }
            g.weight[lane] = P->weight ? P->weight[chain] : 0.0;
        }
        status = ISA(run_group)(&g, task);
    }
    free(memory);
    return status;
}
#undef vec
#undef group
#undef LANES
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

#define BUDGET (1L << 26)  // bytes that the forward pass may store for the backward pass
#define SCRATCH 5          // matrices, and VECTORS vectors, of any size that a step works with
#define VECTORS 7
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

// The arguments of run_chains
typedef struct {
    long n, d, steps, c0, c1;
    const long *pattern, *step, *index;
    const double *a, *q, *h, *in[3], *weight;
    double *out[3], *g_a, *g_q;
} problem;

#define UNROLLED 5  // size of the largest state for which loops are unrolled
#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC)
#define TARGET __attribute__((target("avx512f")))
#define SET avx512
#define LANES 8
#define SMALL_SIZES
#include "_chains.c"
#undef SMALL_SIZES
#define TARGET __attribute__((target("avx2,fma")))
#define SET avx2
#define LANES 4
#define SMALL_SIZES
#define ANY_SIZE
#include "_chains.c"
#undef SMALL_SIZES
#define HAS_AVX512 __builtin_cpu_supports("avx512f")
#define HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define RUN(P, task) (HAS_AVX2 ? run_avx2(P, task) : run_generic(P, task))
#define RUN_WIDE(P, task) run_avx512(P, task)
#else  // no unrolled code for old processors: it takes long to compile
#define ANY_SIZE
#define HAS_AVX512 0
#define RUN(P, task) run_generic(P, task)
#define RUN_WIDE(P, task) run_generic(P, task)
#endif
#define TARGET
#define SET generic
#define LANES 4
#include "_chains.c"

// The number of chains with a state of d numbers that are run at once. Large states do not fit the registers, and more of
// them not the cache.
int chains_lanes(long d) { return HAS_AVX512 && d <= UNROLLED ? 8 : 4; }

// Chains c0 <= c < c1. pattern is the nonzero pattern of the matrices a: the offsets of rows (d + 1,), the columns in each
// row, the offsets of columns (d + 1,), and the rows in each column. in0 to in2 are (C, N) or NULL, weight (C,) or NULL,
// out0 to out2 (C, N); g_a and g_q (K, U, d, d) are added to. Returns nonzero if memory ran out.
int run_chains(int task, long n, long d, long steps, long c0, long c1, const long *pattern, const long *step,
               const long *index, const double *a, const double *q, const double *h, const double *in0, const double *in1,
               const double *in2, const double *weight, double *out0, double *out1, double *out2, double *g_a, double *g_q) {
    const problem P = {
        n, d, steps, c0, c1, pattern, step, index, a, q, h, {in0, in1, in2}, weight, {out0, out1, out2}, g_a, g_q,
    };
    const long lanes = chains_lanes(d), left = (c1 - c0) % lanes, half = left <= 4 ? left : 0;  // a vector of 4 is enough
    problem wide = P, narrow = P;
    wide.c1 = narrow.c0 = lanes == 8 ? c1 - half : c0;
    return (wide.c0 < wide.c1 && RUN_WIDE(&wide, task)) || (narrow.c0 < narrow.c1 && RUN(&narrow, task));
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_chains", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__chains(void) { return PyModule_Create(&definition); }
#endif

#endif
