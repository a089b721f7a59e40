// SPDX-License-Identifier: Apache-2.0
//
// Psi1 of the squared exponential kernel, and all gradients of Psi1 and Psi2 that are sums over points or over rows, in
// one pass over the N x M numbers each. _midpoint.c includes this file for every instruction set.
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

// x[q][i] <- value(i, q) of the rows n + i of a block; rows that are not there repeat the last one
#define EACH_OF_BLOCK(count, i, n, q)                                                                  \
    for (long i = 0; i < NAME(block); i++)                                                             \
        for (long q = 0, row = (n) + min(i, (count) - 1), at = row * Q, to = i; q < Q; q++, at++, to += NAME(block))

TARGET static int NAME(rows_forward)(long N, long M, long Q, const double *mu, const double *s, const double *z,
                                     const double *w, double scale, long n0, long n1, double *a, double *rho,
                                     double *psi1) {
    vec *work = allocate(sizeof(vec) * ROWS * (2 * Q + 1));
    if (!work) return 1;
    vec *r = work, *centre = r + ROWS * Q, *base = centre + ROWS * Q;
    for (long n = n0; n < n1; n += NAME(block)) {
        const long count = min(NAME(block), n1 - n);
        for (long i = 0; i < count; i++) {
            double narrow = 0, wide = 0;
            log_spreads(Q, s + (n + i) * Q, w, &narrow, &wide);
            a[n + i] = -wide / 2;
            ((double *)base)[i] = -LOG2E / 2 * narrow;
        }
        for (long i = count; i < NAME(block); i++) ((double *)base)[i] = 0;
        EACH_OF_BLOCK(count, i, n, q) {
            rho[at] = w[q] / (1 + 2 * (w[q] * s[at]));
            ((double *)r)[to] = -LOG2E / 2 * w[q] / (1 + w[q] * s[at]);
            ((double *)centre)[to] = mu[at];
        }
        for (long m = 0; m < M; m++) {
            vec x[ROWS];
            for (int i = 0; i < ROWS; i++) x[i] = base[i];
            for (long q = 0; q < Q; q++)
                for (int i = 0; i < ROWS; i++) {
                    const vec d = centre[q * ROWS + i] - z[m * Q + q];
                    x[i] += r[q * ROWS + i] * d * d;
                }
            for (int i = 0; i < ROWS; i++) x[i] = NAME(select)((bits)(x[i] < splat(-1023.0)), splat(-1023.0), x[i]);
            NAME(exp2)(x);
            double *out = psi1 + m * N + n;
            if (count == NAME(block))
                for (int i = 0; i < ROWS; i++) NAME(store)(out + i * LANES, scale * x[i], LANES);
            else
                for (int i = 0; i < ROWS; i++) NAME(store)(out + i * LANES, scale * x[i], count - i * LANES);
        }
    }
    free(work);
    return 0;
}

TARGET static int NAME(rows_backward)(long N, long M, long Q, const double *mu, const double *s, const double *z,
                                      const double *w, const double *psi1, const double *grad, const double *da,
                                      const double *drho, const double *dmu, long n0, long n1, double *grad_mean,
                                      double *grad_s, double *sums) {
    vec *work = allocate(sizeof(vec) * (ROWS * (4 * Q + 1 + M) + M * Q));
    if (!work) return 1;
    vec *r = work, *centre = r + ROWS * Q, *u = centre + ROWS * Q, *t = u + ROWS * Q, *h = t + ROWS * Q;
    vec *H = h + ROWS, *dz = H + ROWS * M;
    double *grad_z = sums, *grad_w = sums + M * Q, *grad_log = grad_w + Q;
    for (long e = 0; e < M * Q; e++) dz[e] = splat(0);
    for (long q = 0; q <= Q; q++) grad_w[q] = 0;
    for (long n = n0; n < n1; n += NAME(block)) {
        const long count = min(NAME(block), n1 - n);
        EACH_OF_BLOCK(count, i, n, q) {
            ((double *)r)[to] = w[q] / (1 + w[q] * s[at]);
            ((double *)centre)[to] = mu[at];
        }
        for (int i = 0; i < ROWS; i++) h[i] = splat(0);
        for (long m = 0; m < M; m++)
            for (int i = 0; i < ROWS; i++) {
                const long from = m * N + n + i * LANES, left = count - i * LANES;
                H[m * ROWS + i] = left >= LANES ? NAME(load)(psi1 + from, LANES) * NAME(load)(grad + from, LANES)
                                                : NAME(load)(psi1 + from, left) * NAME(load)(grad + from, left);
                h[i] += H[m * ROWS + i];
            }
        for (long q = 0; q < Q; q++) {
            vec own_u[ROWS], own_t[ROWS];
            for (int i = 0; i < ROWS; i++) own_u[i] = own_t[i] = splat(0);
            for (long m = 0; m < M; m++) {
                vec total = dz[m * Q + q];
                for (int i = 0; i < ROWS; i++) {
                    const vec d = centre[q * ROWS + i] - z[m * Q + q], Hd = H[m * ROWS + i] * d;
                    own_u[i] += Hd;
                    own_t[i] += Hd * d;
                    total += r[q * ROWS + i] * Hd;
                }
                dz[m * Q + q] = total;
            }
            for (int i = 0; i < ROWS; i++) u[q * ROWS + i] = own_u[i], t[q * ROWS + i] = own_t[i];
        }
        for (long i = 0; i < count; i++) {
            const double sum = ((double *)h)[i], from_a = da[n + i];
            *grad_log += sum;
            for (long q = 0; q < Q; q++) {
                const long at = (n + i) * Q + q, to = q * NAME(block) + i;
                const double rq = ((double *)r)[to], dr = -((double *)t)[to] / 2, variance = s[at];
                const double spread = 1 + w[q] * variance, wide = 1 + 2 * (w[q] * variance), rho = w[q] / wide;
                grad_mean[at] = dmu[at] - rq * ((double *)u)[to];
                grad_s[at] = -rq * (rq * dr + sum / 2) - rho * (from_a + 2 * rho * drho[at]);
                grad_w[q] += (dr / spread - variance * sum / 2) / spread + (drho[at] / wide - variance * from_a) / wide;
            }
        }
    }
    for (long e = 0; e < M * Q; e++) grad_z[e] = NAME(lane_sum)(dz[e]);
    free(work);
    return 0;
}
#undef EACH_OF_BLOCK
