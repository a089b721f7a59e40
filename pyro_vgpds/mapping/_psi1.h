// SPDX-License-Identifier: Apache-2.0
//
// Psi1 of the squared exponential kernel, its product with Y (N,R), and all gradients of Psi1 and Psi2 that are sums over
// points or over rows, in one pass over the N x M numbers each. _midpoint.c includes this file for every instruction set.
//
//   spread_nq = 1 + w_q s_nq,   wide_nq = 1 + 2 w_q s_nq,   r_nq = w_q / spread_nq,   rho_nq = w_q / wide_nq
//   Psi1[m,n] = scale exp(-1/2 sum_q (log spread_nq + r_nq (mu_nq - z_mq)^2))
//   a_n       = -1/2 sum_q log wide_nq             (with rho what the midpoint sums of Psi2 need)
//
// Backward, with H[m,n] = Psi1[m,n] dL/dPsi1[m,n], and da, drho and dmu the gradients of the midpoint sums:
//   h_n = sum_m H[m,n],   u_nq = sum_m H[m,n] (mu_nq - z_mq),   t_nq = sum_m H[m,n] (mu_nq - z_mq)^2
//   dL/dr     = -t/2
//   dL/dmean  = dmu - r u
//   dL/ds     = -r (r dL/dr + h/2) - rho (da + 2 rho drho)
//   dL/dw_q   = sum_n (dL/dr / spread - s h/2) / spread + (drho / wide - s da) / wide
//   dL/dz_mq  = sum_n r_nq H[m,n] (mu_nq - z_mq)
//   dL/dlog scale = sum_n h_n                      (of Psi1)
//
// If only the product with Y is wanted, then dL/dPsi1[m,n] = sum_r dL/d(Psi1 Y)[m,r] Y[n,r], and Psi1 is not stored: the
// backward pass computes it again.
//
// The lanes of a vector are LANES rows, and a block is ROWS vectors of them.

enum { NAME(block) = ROWS * LANES };

// The numbers from x on, of which the first `count` are there
INLINE vec NAME(load)(const double *x, long count) {
    vec out = splat(0);
    memcpy(&out, x, sizeof(double) * (count < LANES ? (count < 0 ? 0 : count) : LANES));
    return out;
}
INLINE void NAME(store)(double *x, vec value, long count) {
    memcpy(x, &value, sizeof(double) * (count < LANES ? (count < 0 ? 0 : count) : LANES));
}

// C += A B for A (rows, depth), B (depth, columns) and C (rows, columns), with columns of vectors. Rows of A are a_step
// numbers apart, those of B and C b_step and c_step vectors. `rows` is a multiple of ROWS, `columns` at most COLUMNS.
INLINE void NAME(add_columns)(int columns, long rows, long depth, const double *A, long a_step, const vec *B, long b_step,
                              vec *C, long c_step) {
    for (long i = 0; i < rows; i += ROWS) {
        vec total[ROWS * COLUMNS];
        each (int e = 0; e < ROWS * columns; e++) total[e] = C[(i + e / columns) * c_step + e % columns];
        for (long k = 0; k < depth; k++)
            each (int e = 0; e < ROWS * columns; e++)
                total[e] += A[(i + e / columns) * a_step + k] * B[k * b_step + e % columns];
        each (int e = 0; e < ROWS * columns; e++) C[(i + e / columns) * c_step + e % columns] = total[e];
    }
}
NOINLINE void NAME(add_product)(long rows, long depth, const double *A, long a_step, const vec *B, long b_step, vec *C,
                                long c_step) {
    NAME(add_columns)(COLUMNS, rows, depth, A, a_step, B, b_step, C, c_step);
}
// The same for fewer columns than COLUMNS
NOINLINE void NAME(add_rest)(long columns, long rows, long depth, const double *A, long a_step, const vec *B, long b_step,
                             vec *C, long c_step) {
    if (columns == 1) NAME(add_columns)(1, rows, depth, A, a_step, B, b_step, C, c_step);
#if COLUMNS > 2
    if (columns == 2) NAME(add_columns)(2, rows, depth, A, a_step, B, b_step, C, c_step);
    if (columns == 3) NAME(add_columns)(3, rows, depth, A, a_step, B, b_step, C, c_step);
#endif
}

// to[q][i] = from[i][q] for the rows of a block, and back; rows that are not there are zero
NOINLINE void NAME(to_lanes)(const double *from, long step, long count, long Q, vec *to) {
    for (long e = 0; count < NAME(block) && e < Q * ROWS; e++) to[e] = splat(0);
    for (long i = 0; i < count; i++)
        for (long q = 0; q < Q; q++) ((double *)to)[q * NAME(block) + i] = from[i * step + q];
}
NOINLINE void NAME(from_lanes)(const vec *from, long count, long Q, double *to) {
    for (long i = 0; i < count; i++)
        for (long q = 0; q < Q; q++) to[i * Q + q] = ((const double *)from)[q * NAME(block) + i];
}

// psi[m][i] = Psi1[m,n+i] for the rows of a block, whose means mu and variances s are (Q, ROWS); r is memory of that size.
// Writes a, if it is not null.
NOINLINE void NAME(psi1_block)(const points *P, long n, long count, const vec *mu, const vec *s, vec *r, vec *psi,
                               double *a) {
    const long Q = P->Q;
    vec base[ROWS] = {0};
    for (long i = 0; i < count; i++) {
        double narrow = 0, wide = 0;
        log_spreads(Q, P->s + (n + i) * Q, P->w, &narrow, &wide);
        if (a) a[n + i] = -wide / 2;
        ((double *)base)[i] = -LOG2E / 2 / UNIT * narrow;
    }
    for (long e = 0; e < Q * ROWS; e++) r[e] = -LOG2E / 2 / UNIT * P->w[e / ROWS] / (1 + P->w[e / ROWS] * s[e]);
    for (long m = 0; m < P->M; m++) {
        vec x[ROWS];
        each (int i = 0; i < ROWS; i++) x[i] = base[i];
        for (long q = 0; q < Q; q++)
            each (int i = 0; i < ROWS; i++) {
                const vec d = mu[q * ROWS + i] - P->z[m * Q + q];
                x[i] += r[q * ROWS + i] * d * d;
            }
        const vec lowest = splat(-(double)(NAME(bias) - DOWN) / UNIT);
        each (int i = 0; i < ROWS; i++) x[i] = NAME(select)((bits)(x[i] < lowest), lowest, x[i]);
        NAME(exp2)(x, NULL, 0, 0, NULL);
        each (int i = 0; i < ROWS; i++) psi[m * ROWS + i] = P->scale * x[i];
    }
}

TARGET static int NAME(rows_forward)(const points *P, const double *y, long n0, long n1, double *a, double *rho,
                                     double *psi1, double *first) {
    const long M = P->M, Q = P->Q, R = P->R, Mpad = rounded(M, ROWS), block = NAME(block), width = COLUMNS * LANES;
    const long size = Mpad * COLUMNS, panels = rounded(R, width) / width;  // of `width` columns of y
    vec *work = allocate(sizeof(vec) * (ROWS * (3 * Q + Mpad) + block * COLUMNS + panels * size));
    if (!work) return 1;
    vec *mu = work, *s = mu + ROWS * Q, *r = s + ROWS * Q, *psi = r + ROWS * Q, *right = psi + ROWS * Mpad;
    vec *sums = right + block * COLUMNS;
    memset(psi, 0, sizeof(vec) * ROWS * Mpad);
    memset(sums, 0, sizeof(vec) * panels * size);
    for (long n = n0; n < n1; n += block) {
        const long count = min(block, n1 - n);
        NAME(to_lanes)(P->mu + n * Q, Q, count, Q, mu);
        NAME(to_lanes)(P->s + n * Q, Q, count, Q, s);
        NAME(psi1_block)(P, n, count, mu, s, r, psi, a);
        for (long e = 0; e < Q * ROWS; e++) r[e] = P->w[e / ROWS] / (1 + 2 * (P->w[e / ROWS] * s[e]));
        NAME(from_lanes)(r, count, Q, rho + n * Q);
        for (long e = 0; psi1 && e < M * ROWS; e++) {
            const long lane = e % ROWS * LANES;
            NAME(store)(psi1 + e / ROWS * P->N + n + lane, psi[e], count - lane);
        }
        const long used = used_columns(P, n, count);
        for (long c = 0, p = 0; c < used; c += width, p++) {
            const double *from = y + n * R + c;
            if (count < block || width > R - c) memset(right, 0, sizeof(vec) * block * COLUMNS);
            for (long i = 0; width <= R - c && i < count; i++)  // of a size that the compiler knows
                memcpy(right + i * COLUMNS, from + i * R, sizeof(vec) * COLUMNS);
            for (long i = 0; width > R - c && i < count; i++)
                memcpy(right + i * COLUMNS, from + i * R, sizeof(double) * (R - c));
            NAME(add_product)(Mpad, block, (double *)psi, block, right, COLUMNS, sums + p * size, COLUMNS);
        }
    }
    for (long m = 0; m < M; m++)
        for (long c = 0, p = 0; c < R; c += width, p++)
            memcpy(first + m * R + c, sums + p * size + m * COLUMNS, sizeof(double) * min(width, R - c));
    free(work);
    return 0;
}

// The sums over points of a block, from H (M, ROWS): h, u and t; and the block's part of dL/dz
NOINLINE void NAME(point_sums)(const points *P, const vec *mu, const vec *r, const vec *H, vec *h, vec *u, vec *t,
                               vec *dz) {
    for (int i = 0; i < ROWS; i++) h[i] = splat(0);
    for (long m = 0; m < P->M; m++)
        for (int i = 0; i < ROWS; i++) h[i] += H[m * ROWS + i];
    for (long q = 0; q < P->Q; q++) {
        vec own_u[ROWS], own_t[ROWS];
        for (int i = 0; i < ROWS; i++) own_u[i] = own_t[i] = splat(0);
        for (long m = 0; m < P->M; m++) {
            vec total = dz[m * P->Q + q];
            for (int i = 0; i < ROWS; i++) {
                const vec d = mu[q * ROWS + i] - P->z[m * P->Q + q], Hd = H[m * ROWS + i] * d;
                own_u[i] += Hd;
                own_t[i] += Hd * d;
                total += r[q * ROWS + i] * Hd;
            }
            dz[m * P->Q + q] = total;
        }
        for (int i = 0; i < ROWS; i++) u[q * ROWS + i] = own_u[i], t[q * ROWS + i] = own_t[i];
    }
}

TARGET static int NAME(rows_backward)(const points *P, const double *y, const double *psi1, const double *grad,
                                      const double *da, const double *drho, const double *dmu, long n0, long n1,
                                      double *grad_mean, double *grad_s, double *sums) {
    const long M = P->M, Q = P->Q, R = P->R, Mpad = rounded(M, ROWS), block = NAME(block), part = ROWS * Q;
    const long wide = R ? rounded(M, LANES) / LANES : 0;  // vectors of points
    const long vectors = 7 * part + 2 * ROWS * Mpad + (M + 1) * Q + (block + R) * wide;
    vec *work = allocate(sizeof(vec) * vectors + sizeof(double) * block * R);
    if (!work) return 1;
    vec *mu = work, *s = mu + part, *r = s + part, *u = r + part, *t = u + part, *g_rho = t + part, *g_mu = g_rho + part;
    vec *psi = g_mu + part, *H = psi + ROWS * Mpad, *dz = H + ROWS * Mpad, *dw = dz + M * Q;
    vec *right = dw + Q, *turned = right + R * wide;  // grad, with lanes of points, in panels of COLUMNS vectors; H like that
    double *last = (double *)(turned + block * wide);  // rows of y, with zeros after the last one
    vec dlog = splat(0);
    for (long e = 0; e < (M + 1) * Q; e++) dz[e] = splat(0);
    memset(right, 0, sizeof(vec) * R * wide);
    for (long v = 0; v < wide; v++)
        for (long lane = 0; lane < min(LANES, M - v * LANES); lane++) {
            const long panel = v - v % COLUMNS, step = min(COLUMNS, wide - panel);
            double *to = (double *)(right + panel * R + v % COLUMNS) + lane;
            for (long c = 0; c < R; c++) to[c * step * LANES] = grad[(v * LANES + lane) * R + c];
        }
    for (long n = n0; n < n1; n += block) {
        const long count = min(block, n1 - n);
        NAME(to_lanes)(P->mu + n * Q, Q, count, Q, mu);
        NAME(to_lanes)(P->s + n * Q, Q, count, Q, s);
        NAME(to_lanes)(drho + n * Q, Q, count, Q, g_rho);
        NAME(to_lanes)(dmu + n * Q, Q, count, Q, g_mu);
        if (R) {
            const long used = used_columns(P, n, count);
            NAME(psi1_block)(P, n, count, mu, s, r, psi, NULL);
            const double *from = y + n * R;
            if (count < block) {
                memset(last, 0, sizeof(double) * block * R);
                from = memcpy(last, from, sizeof(double) * count * R);
            }
            memset(turned, 0, sizeof(vec) * block * wide);
            for (long v = 0; v < wide; v += COLUMNS) {
                const long columns = min(COLUMNS, wide - v);
                if (columns == COLUMNS)
                    NAME(add_product)(block, used, from, R, right + v * R, COLUMNS, turned + v, wide);
                else
                    NAME(add_rest)(columns, block, used, from, R, right + v * R, columns, turned + v, wide);
            }
            for (long m = 0; m < M; m++)
                for (long i = 0; i < block; i++)
                    ((double *)H)[m * block + i] = ((double *)turned)[i * wide * LANES + m] * ((double *)psi)[m * block + i];
        } else
            for (long e = 0; e < M * ROWS; e++) {
                const long lane = e % ROWS * LANES, from = e / ROWS * P->N + n + lane, left_over = count - lane;
                H[e] = NAME(load)(psi1 + from, left_over) * NAME(load)(grad + from, left_over);
            }
        for (long e = 0; e < part; e++) r[e] = P->w[e / ROWS] / (1 + P->w[e / ROWS] * s[e]);
        vec h[ROWS];
        NAME(point_sums)(P, mu, r, H, h, u, t, dz);
        for (int i = 0; i < ROWS; i++) {
            const vec a = NAME(load)(da + n + i * LANES, count - i * LANES);
            dlog += h[i];
            for (long e = i; e < part; e += ROWS) {
                const double w = P->w[e / ROWS];
                const vec narrow = 1 / (1 + w * s[e]), wide = 1 / (1 + 2 * (w * s[e])), rho = w * wide, dr = -t[e] / 2;
                g_mu[e] -= r[e] * u[e];
                dw[e / ROWS] += (dr * narrow - s[e] * h[i] / 2) * narrow + (g_rho[e] * wide - s[e] * a) * wide;
                s[e] = -r[e] * (r[e] * dr + h[i] / 2) - rho * (a + 2 * rho * g_rho[e]);
            }
        }
        NAME(from_lanes)(g_mu, count, Q, grad_mean + n * Q);
        NAME(from_lanes)(s, count, Q, grad_s + n * Q);
    }
    for (long e = 0; e < (M + 1) * Q; e++) sums[e] = NAME(lane_sum)(dz[e]);
    sums[(M + 1) * Q] = NAME(lane_sum)(dlog);
    free(work);
    return 0;
}
