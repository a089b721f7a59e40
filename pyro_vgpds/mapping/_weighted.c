// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums, as in _midpoint.c, for rows with many weights each, and their gradients, by products of matrices:
//
//   E[n,p] = exp(a_n - sum_q r_nq (mu_nq - (z_mq + z_m'q)/2)^2),   p = the pair m <= m', in the order of rows m
//   V[c,p] = sum_n w[c,n] E[n,p],   G[n,p] = sum_c w[c,n] g[c,p],   dL/dw[c,n] = sum_p g[c,p] E[n,p]  for L = sum_cp g V
//
// Each product is a sum over k of left[k][i] right[k][j] for a few i and three vectors of j, which are kept in registers;
// what is on the right stays in the L1 cache meanwhile. So pairs are divided into strips of three vectors, and arrays have
// those numbers of a strip one after the other that a product reads: E of CHUNK rows is (strips, rows, STRIP). Pairs are
// padded to Ppad, weights to Cpad. G is never stored, only its product with E.
//
// The exponents are such a product, too: of features F of rows and H of pairs p with the midpoint zbar_q,
//   F_n = (a_n - sum_q r_nq mu_nq^2, 2 r_nq mu_nq ..., -r_nq ...),   H_p = (1, zbar_q ..., zbar_q^2 ...),
// where F carries a factor log2(e): the exp is an exp2.
//
// Gradients of L = sum_np G[n,p] E[n,p], with the symmetric H[n,m,m'] = G E / 2 for m < m' and G E for m = m':
//   h_nm      = sum_m' H[n,m,m'],                k_nmq = sum_m' H[n,m,m'] z_m'q
//   S0        = sum_m h_nm,   S1_q = sum_m h_nm z_mq,   S2_q = sum_m z_mq (h_nm z_mq + k_nmq)/2
//   dL/da_n   = S0
//   dL/dmu_nq = 2 r_nq (S1_q - mu_nq S0)
//   dL/dr_nq  = mu_nq (2 S1_q - mu_nq S0) - S2_q
//   dL/dz_mq  = sum_n r_nq ((2 mu_nq - z_mq) h_nm - k_nmq)
//
// The file includes itself once for every instruction set: the part under #ifdef LANES is compiled each time.

#ifdef LANES

typedef double NAME(vec) __attribute__((vector_size(8 * LANES), aligned(8)));
typedef int64_t NAME(bits) __attribute__((vector_size(8 * LANES), aligned(8)));
#define vec NAME(vec)
#define bits NAME(bits)

INLINE vec NAME(load)(const double *x) { return *(const vec *)x; }
INLINE void NAME(store)(double *x, vec value) { *(vec *)x = value; }
INLINE vec NAME(select)(bits where, vec yes, vec no) { return (vec)((where & (bits)yes) | (~where & (bits)no)); }
#define load NAME(load)
#define store NAME(store)
#define STRIP (3 * LANES)  // pairs that are processed at once

// x[e] within the range of exp2_chains
INLINE void NAME(clamp_all)(double *x, long count) {
    for (long e = 0; e < count; e += LANES) {
        const vec low = splat(-1023.0), high = splat(1024.0);
        vec y = load(x + e);
        y = NAME(select)((bits)(y < low), low, y);
        store(x + e, NAME(select)((bits)(y > high), high, y));
    }
}

// x[e] <- 2^x[e] for CHAINS vectors, which run in step to hide the latency of the polynomial p. With k = round(x) and
// f = x - k, 2^x = 2^k p(f) for -1023 <= x <= 1024, whose ends give exactly 0 and inf; a NaN passes through f. Callers are
// not inlined: p may then alias x, which makes the compiler broadcast each coefficient once for all chains (hoisted out of
// the caller's loop they would not fit the registers).
INLINE void NAME(exp2_chains)(double *x, const double *p) {
    // Adding 1.5 2^52 rounds to an integer in the low mantissa bits; 1023 is the exponent bias of 2^k.
    const double shift = 0x1.8p52 + 1023;
    vec k[CHAINS], f[CHAINS], E[CHAINS];
    for (int i = 0; i < CHAINS; i++) {
        const vec y = load(x + i * LANES);
        k[i] = y + shift;
        f[i] = y - (k[i] - shift);
        E[i] = f[i] * p[0] + p[1];
    }
    for (int d = 2; d <= DEGREE; d++)
        for (int i = 0; i < CHAINS; i++) E[i] = E[i] * f[i] + p[d];
    for (int i = 0; i < CHAINS; i++) store(x + i * LANES, E[i] * (vec)((bits)k[i] << 52));
}

// x[e] <- 2^x[e] for e < count, whole chains of vectors
NOINLINE void NAME(exp2_all)(double *x, long count, int clamp, const double *p) {
    if (clamp) NAME(clamp_all)(x, count);
    for (long e = 0; e < count; e += CHAINS * LANES) NAME(exp2_chains)(x + e, p);
}

// total[i][v] += sum_k left[k * next + i * row] right[k * step + v], for i < height and `vectors` of v, both constants
INLINE void NAME(multiply_rows)(vec *total, int height, int vectors, long count, const double *left, long next, long row,
                                const double *right, long step) {
    for (long k = 0; k < count; k++)
        for (int i = 0; i < height; i++)
            for (int v = 0; v < vectors; v++)
                total[i * vectors + v] += left[k * next + i * row] * load(right + k * step + v * LANES);
}

INLINE void NAME(multiply)(vec *total, int vectors, long count, const double *left, long next, long row,
                           const double *right, long step) {
    NAME(multiply_rows)(total, HEIGHT, vectors, count, left, next, row, right, step);
}

// A tile (HEIGHT, vectors), to memory and from there, or zeros
INLINE void NAME(write)(double *target, int vectors, const vec *total) {
    each (int e = 0; e < HEIGHT * vectors; e++) store(target + e * LANES, total[e]);
}
INLINE void NAME(read)(const double *source, int vectors, vec *total) {
    each (int e = 0; e < HEIGHT * vectors; e++) total[e] = load(source + e * LANES);
}
INLINE void NAME(clear)(vec *total) {
    each (int e = 0; e < HEIGHT * 3; e++) total[e] = splat(0);
}

// E (rows, STRIP) of a strip of pairs from the features F (K, CHUNK) of the rows and H (K, STRIP) of the pairs
NOINLINE void NAME(exponentials)(const problem *T, long rows, const double *F, const double *H, int clamp, double *E) {
    for (long n = 0; n < rows; n += HEIGHT) {
        vec total[HEIGHT * 3];
        NAME(clear)(total);
        NAME(multiply)(total, 3, T->K, F + n, CHUNK, 1, H, STRIP);
        NAME(write)(E + n * STRIP, 3, total);
    }
    NAME(exp2_all)(E, rows * STRIP, clamp, exp2_polynomial);
}

// V (Cpad, STRIP) += the sums over `rows` rows with the weights (Cpad / HEIGHT, CHUNK, HEIGHT) and E (rows, STRIP)
NOINLINE void NAME(add_sums)(const problem *T, long rows, const double *weight, const double *E, double *V) {
    for (long c = 0; c < T->C; c += HEIGHT) {
        vec total[HEIGHT * 3];
        NAME(read)(V + c * STRIP, 3, total);
        if (T->C - c > HEIGHT / 2) NAME(multiply)(total, 3, rows, weight + c * CHUNK, HEIGHT, 1, E, STRIP);
        else NAME(multiply_rows)(total, HEIGHT / 2, 3, rows, weight + c * CHUNK, HEIGHT, 1, E, STRIP);
        NAME(write)(V + c * STRIP, 3, total);
    }
}

// half (rows, Ppad) = G E / 2 of a strip with the weights (rows / HEIGHT, C, HEIGHT), g (C, STRIP) and E (rows, STRIP)
NOINLINE void NAME(weigh)(const problem *T, long rows, const double *weight, const double *g, const double *E,
                          double *half) {
    for (long n = 0; n < rows; n += HEIGHT) {
        vec total[HEIGHT * 3];
        NAME(clear)(total);
        for (long e = 0; e < HEIGHT * 3; e++) {  // of this and the next rows of other caches
            __builtin_prefetch(E + n * STRIP + e * LANES);
            __builtin_prefetch(half + (n + e / 3) * T->Ppad + e % 3 * LANES, 1);
        }
        NAME(multiply)(total, 3, T->C, weight + n * T->C, HEIGHT, 1, g, STRIP);
        for (int i = 0; i < HEIGHT; i++)
            for (int v = 0; v < 3; v++)
                store(half + (n + i) * T->Ppad + v * LANES,
                      0.5 * load(E + (n + i) * STRIP + v * LANES) * total[i * 3 + v]);
    }
}

// grad (rows, vectors) += the gradients in the weights of some c, with E (strips, rows, STRIP) and g (strips, STRIP, vectors)
INLINE void NAME(add_block)(double *grad, int vectors, long rows, long strips, const double *E, const double *g) {
    const long width = vectors * LANES;
    for (long n = 0; n < rows; n += HEIGHT) {
        vec total[HEIGHT * 3];
        NAME(read)(grad + n * width, vectors, total);
        for (long s = 0; s < strips; s++)
            NAME(multiply)(total, vectors, STRIP, E + (s * rows + n) * STRIP, 1, STRIP, g + s * STRIP * width, width);
        NAME(write)(grad + n * width, vectors, total);
    }
}

// The same for all c, whose blocks follow each other: grad (CHUNK, width) and, for all pairs, g (Ppad, width) of each
NOINLINE void NAME(add_weight_gradients)(const problem *T, long rows, long first, long strips, const double *E,
                                         const double *g, double *grad) {
    for (long c = 0, width; c < T->Cpad; c += width, grad += CHUNK * width, g += T->Ppad * width) {
        const double *own = g + first * STRIP * (width = block_width(T->Cpad - c, LANES));
        if (width == 3 * LANES) NAME(add_block)(grad, 3, rows, strips, E, own);
        else if (width == 2 * LANES) NAME(add_block)(grad, 2, rows, strips, E, own);
        else NAME(add_block)(grad, 1, rows, strips, E, own);
    }
}

// Columns j0 <= j < j1 of target (rows, columns) += factor left right, with right (inner, columns); `row` and `next` are the
// steps between the rows and the columns of left
TARGET static int NAME(product)(long rows, long inner, long columns, double factor, const double *left, long row, long next,
                                const double *right, long j0, long j1, double *target) {
    const long padded = rounded(rows, HEIGHT);
    double *own = allocate(sizeof(double) * inner * (padded + STRIP)), *strip = own + inner * padded;
    if (!own) return 1;
    for (long i = 0; i < padded; i++)
        for (long k = 0; k < inner; k++)
            own[i / HEIGHT * HEIGHT * inner + k * HEIGHT + i % HEIGHT] = i < rows ? factor * left[i * row + k * next] : 0;
    memset(strip, 0, inner * STRIP * sizeof(double));
    for (; j0 < j1; j0 += STRIP) {
        const long width = min(STRIP, j1 - j0);
        for (long k = 0; k < inner; k++) memcpy(strip + k * STRIP, right + k * columns + j0, width * sizeof(double));
        for (long i = 0; i < rows; i += HEIGHT) {
            vec total[HEIGHT * 3];
            double found[HEIGHT * STRIP];
            NAME(clear)(total);
            NAME(multiply)(total, 3, inner, own + i * inner, HEIGHT, 1, strip, STRIP);
            NAME(write)(found, 3, total);
            for (long h = 0; h < min(HEIGHT, rows - i); h++)
                for (long e = 0; e < width; e++) target[(i + h) * columns + j0 + e] += found[h * STRIP + e];
        }
    }
    free(own);
    return 0;
}

// Adds the products of a square of H at the diagonal with the points zm, `rows` (constant after inlining, if they are ROWS) by
// as many; t[i][m + j] is that of the pair (m+i, m+j)
INLINE void NAME(corner)(vec *total, long rows, long m, const double *const *t, const vec *zm) {
    each (long i = 0; i < rows; i++)
        each (long j = i; j < rows; j++) {
            total[i] += t[i][m + j] * zm[j];
            total[j] += t[i][m + j] * zm[i];
        }
}

// Columns q .. q + LANES - 1 of the product of the symmetric H with [z, 1, 0], (M, ld): rows m+i collect what is right of
// the diagonal, and rows j > m+i its transpose. half (P,): G E / 2.
TARGET static void NAME(products)(const problem *T, const double *half, long q, double *k) {
    const long M = T->M, ld = T->ld;
    const double *z = T->z + q;
    k += q;
    for (long m = 0; m < M; m += ROWS) {
        const double *t[ROWS];
        const long rows = min(ROWS, M - m);
        vec zm[ROWS], total[ROWS];
        for (long i = 0; i < ROWS; i++) {
            t[i] = half - m - i;  // t[i][j] is that of the pair (m+i, j)
            half += i < rows ? M - m - i : 0;
            zm[i] = load(z + min(m + i, M - 1) * ld);
            total[i] = load(k + min(m + i, M - 1) * ld);
        }
        if (rows == ROWS) NAME(corner)(total, ROWS, m, t, zm);
        else NAME(corner)(total, rows, m, t, zm);
        for (long j = m + ROWS; j < M; j++) {
            const vec zj = load(z + j * ld);
            vec sum = load(k + j * ld);
            for (long i = 0; i < ROWS; i++) {
                total[i] += t[i][j] * zj;
                sum += t[i][j] * zm[i];
            }
            store(k + j * ld, sum);
        }
        for (long i = 0; i < rows; i++) store(k + (m + i) * ld, total[i]);
    }
}

// The gradients of row n from half (Ppad,), and its share of dz (M, ld)
TARGET static void NAME(row_gradients)(const problem *T, long n, const double *half, double *k, double *grad_a,
                                       double *grad_r, double *grad_mu, double *dz) {
    const long M = T->M, Q = T->Q, ld = T->ld;
    double S0 = 0;
    memset(k, 0, M * ld * sizeof(double));  // column Q of k is h
    for (long q = 0; q < ld; q += LANES) NAME(products)(T, half, q, k);
    for (long m = 0; m < M; m++) S0 += k[m * ld + Q];
    grad_a[n] = S0;
    for (long q = 0; q < Q; q += LANES) {
        const long count = min(LANES, Q - q);
        vec r = splat(0), mu = splat(0), S1 = splat(0), S2 = splat(0);
        for (long i = 0; i < count; i++) {
            r[i] = T->r[n * Q + q + i];
            mu[i] = T->mu[n * Q + q + i];
        }
        for (long m = 0; m < M; m++) {
            const double h = k[m * ld + Q];
            const vec z = load(T->z + m * ld + q), own = load(k + m * ld + q), hz = h * z;
            S1 += hz;
            S2 += (hz + own) * z;
            store(dz + m * ld + q, load(dz + m * ld + q) + r * (2 * h * mu - hz - own));
        }
        const vec in_mu = 2 * r * (S1 - mu * S0), in_r = mu * (2 * S1 - mu * S0) - S2 / 2;
        for (long i = 0; i < count; i++) {
            grad_mu[n * Q + q + i] = in_mu[i];
            grad_r[n * Q + q + i] = in_r[i];
        }
    }
}

static long NAME(strip)(void) { return STRIP; }

TARGET static int NAME(forward)(const problem *T, const double *weight, long n0, long n1, double *E, double *V) {
    const long P = T->P, Cpad = T->Cpad, strips = rounded(P, STRIP) / STRIP;
    double *work = allocate(sizeof(double) * (CHUNK * (Cpad + T->K + STRIP) + Cpad * T->Ppad));
    if (!work) return 1;
    double *own = work, *F = own + CHUNK * Cpad, *scratch = F + CHUNK * T->K, *sums = scratch + CHUNK * STRIP;
    memset(own, 0, CHUNK * Cpad * sizeof(double));
    memset(sums, 0, Cpad * T->Ppad * sizeof(double));
    for (long n = n0; n < n1; n += CHUNK) {
        const long rows = min(CHUNK, n1 - n), whole = rounded(rows, TILE);
        const int clamp = load_features(T, n, rows, F);
        for (long c = 0; c < T->C; c++)
            for (long i = 0; i < rows; i++)
                own[c / HEIGHT * HEIGHT * CHUNK + i * HEIGHT + c % HEIGHT] = weight[c * T->N + n + i];
        for (long s = 0; s < strips; s++) {
            double *terms = E ? E + n * T->Ppad + s * whole * STRIP : scratch;
            NAME(exponentials)(T, whole, F, T->H + s * T->K * STRIP, clamp, terms);
            NAME(add_sums)(T, rows, own, terms, sums + s * Cpad * STRIP);
        }
    }
    for (long c = 0; c < T->C; c++)
        for (long p = 0; p < P; p += STRIP)
            memcpy(V + c * P + p, sums + p * Cpad + c * STRIP, min(STRIP, P - p) * sizeof(double));
    free(work);
    return 0;
}

// The strips of g (C,P), (C, STRIP) each; and if it is wanted, the transposed g in the blocks of add_weight_gradients. Zeros for
// pairs and weights that are padding.
static void NAME(arrange)(const problem *T, const double *g, double *by_strip, double *by_block) {
    const long C = T->C, P = T->P;
    memset(by_strip + P / STRIP * C * STRIP, 0, C * STRIP * sizeof(double) * (P % STRIP > 0));
    for (long p = 0; p < P; p += STRIP)
        for (long c = 0; c < C; c++)
            memcpy(by_strip + p * C + c * STRIP, g + c * P + p, min(STRIP, P - p) * sizeof(double));
    for (long c = 0, width; c < C && by_block; c += width, by_block += T->Ppad * width) {
        width = block_width(T->Cpad - c, LANES);
        if (width > C - c) memset(by_block, 0, T->Ppad * width * sizeof(double));
        memset(by_block + P * width, 0, (T->Ppad - P) * width * sizeof(double));
        for (long p = 0; p < P; p++)
            for (long j = 0; j < min(width, C - c); j++) by_block[p * width + j] = g[(c + j) * P + p];
    }
}

// Whether memory for the backward pass was found, and its parts
typedef struct {
    double *by_strip, *by_block, *own, *gradients, *half, *scratch, *F, *k, *dz;
} NAME(parts);
static int NAME(allocate)(const problem *T, NAME(parts) *W) {
    const long sizes[] = {T->C * T->Ppad,       T->Cpad * T->Ppad,      CHUNK * T->C,  CHUNK * T->Cpad,
                          CHUNK * T->Ppad,      GROUP * STRIP * CHUNK,  CHUNK * T->K,  T->M * T->ld,
                          T->M * T->ld};
    double **const parts[] = {&W->by_strip, &W->by_block, &W->own, &W->gradients, &W->half,
                              &W->scratch,  &W->F,        &W->k,   &W->dz};
    enum { COUNT = sizeof(sizes) / sizeof(*sizes) };
    long size = 0;
    for (long i = 0; i < COUNT; i++) size += sizes[i];
    double *work = allocate(sizeof(double) * size);
    if (!work) return 0;
    for (long i = 0; i < COUNT; work += sizes[i++]) *parts[i] = work;
    memset(W->own, 0, sizes[2] * sizeof(double));
    memset(W->dz, 0, T->M * T->ld * sizeof(double));
    return 1;
}

// half (CHUNK, Ppad) and, if they are wanted, the gradients in the weights of the rows from n on. E may be null.
INLINE void NAME(chunk_gradients)(const problem *T, const NAME(parts) *W, const double *E, long n, long rows, int wanted) {
    const long C = T->C, strips = rounded(T->P, STRIP) / STRIP, whole = rounded(rows, TILE), size = whole * STRIP;
    const int clamp = E ? 0 : load_features(T, n, rows, W->F);
    for (long first = 0; first < strips; first += GROUP) {  // its E is in the cache for both products
        const long count = min(GROUP, strips - first);
        const double *terms = E ? E + n * T->Ppad + first * size : W->scratch;
        for (long s = first; s < first + count; s++) {
            const double *one = terms + (s - first) * size;
            if (!E) NAME(exponentials)(T, whole, W->F, T->H + s * T->K * STRIP, clamp, W->scratch + (s - first) * size);
            NAME(weigh)(T, whole, W->own, W->by_strip + s * C * STRIP, one, W->half + s * STRIP);
        }
        if (wanted) NAME(add_weight_gradients)(T, whole, first, count, terms, W->by_block, W->gradients);
    }
}

TARGET static int NAME(backward)(const problem *T, const double *weight, const double *g, const double *E, long n0, long n1,
                                 double *grad_weight, double *grad_a, double *grad_r, double *grad_mu, double *grad_z) {
    const long C = T->C, Cpad = T->Cpad;
    NAME(parts) W;
    if (!NAME(allocate)(T, &W)) return 1;
    NAME(arrange)(T, g, W.by_strip, grad_weight ? W.by_block : NULL);
    for (long n = n0; n < n1; n += CHUNK) {
        const long rows = min(CHUNK, n1 - n);
        for (long c = 0; c < C; c++)
            for (long i = 0; i < rows; i++)
                W.own[i / HEIGHT * HEIGHT * C + c * HEIGHT + i % HEIGHT] = weight[c * T->N + n + i];
        memset(W.gradients, 0, CHUNK * Cpad * sizeof(double));
        NAME(chunk_gradients)(T, &W, E, n, rows, grad_weight != NULL);
        for (long i = 0; i < rows; i++)
            NAME(row_gradients)(T, n + i, W.half + i * T->Ppad, W.k, grad_a, grad_r, grad_mu, W.dz);
        const double *block = W.gradients;
        for (long c = 0, width; c < C && grad_weight; c += width, block += CHUNK * width) {
            width = block_width(Cpad - c, LANES);
            for (long j = 0; j < min(width, C - c); j++)
                for (long i = 0; i < rows; i++) grad_weight[(c + j) * T->N + n + i] = block[i * width + j];
        }
    }
    for (long m = 0; m < T->M; m++) memcpy(grad_z + m * T->Q, W.dz + m * T->ld, T->Q * sizeof(double));
    free(W.by_strip);
    return 0;
}

#undef load
#undef store
#undef vec
#undef bits
#undef STRIP
#undef HEIGHT
#undef LANES
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

// A loop over a tile, which the compiler must unroll for the tile to be in registers
#define each _Pragma("GCC unroll 32") for

// CHUNK: rows that are processed at once; GROUP: strips of pairs that are; TILE: rows and weights are padded to a multiple of
// it, as every HEIGHT needs
enum { CHAINS = 4, ROWS = 4, MOST_LANES = 8, CHUNK = 48, GROUP = 4, TILE = 8 };
#include "_panels.h"

typedef struct {
    long N, M, Q, C, P, K, ld;  // P: number of pairs; K: number of features; ld: Q + 1 in whole vectors
    long Ppad, Cpad;
    const double *a, *r, *mu;
    double *z;       // (M, ld): the points, a column of ones, and zeros
    double *H;       // the features of the pairs in strips: (K, STRIP) each
    double *most;    // (Q,): the largest |z|
} problem;

// Vectors of weights are processed by three, in the end by two rather than by one: `rest` numbers are left
static inline long block_width(long rest, long lanes) {
    return rest == 4 * lanes ? 2 * lanes : min(rest, 3 * lanes);
}

// The features F (K, CHUNK) of the rows from n on, and zeros after them. Returns whether an exponent may leave the range of
// exp2: it is at most a, and no midpoint is farther from 0 than the points.
static int load_features(const problem *T, long n, long rows, double *F) {
    const long Q = T->Q;
    int outside = 0;
    memset(F, 0, sizeof(double) * T->K * CHUNK);
    for (long i = 0; i < rows; i++, n++) {
        double base = T->a[n], least = base;
        outside |= !(base * LOG2E <= 1000.0);
        for (long q = 0; q < Q; q++) {
            const double r = T->r[n * Q + q], mu = T->mu[n * Q + q], far = fabs(mu) + T->most[q];
            base -= r * mu * mu;
            least -= r * far * far;
            F[(1 + q) * CHUNK + i] = 2 * LOG2E * r * mu;
            F[(1 + Q + q) * CHUNK + i] = -LOG2E * r;
        }
        F[i] = LOG2E * base;
        outside |= !(least * LOG2E >= -1000.0);
    }
    return outside;
}

#ifdef WITH_AVX
#define TARGET FOR_AVX512
#define NAME(x) x##_avx512
#define LANES 8
#define HEIGHT 8
#include "_weighted.c"
#define TARGET FOR_AVX2
#define NAME(x) x##_avx2
#define LANES 4
#define HEIGHT 4
#include "_weighted.c"
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES 2
#define HEIGHT 4
#include "_weighted.c"

// The features of the pairs: 1, the midpoints, and their squares; zeros for pairs that make the last strip whole
static void load_pairs(const problem *T, const double *z, long strip) {
    memset(T->H, 0, sizeof(double) * T->K * T->Ppad);
    long p = 0;
    for (long m = 0; m < T->M; m++)
        for (long j = m; j < T->M; j++, p++) {
            double *own = T->H + p / strip * strip * T->K + p % strip;
            own[0] = 1;
            for (long q = 0; q < T->Q; q++) {
                const double middle = (z[m * T->Q + q] + z[j * T->Q + q]) / 2;
                own[(1 + q) * strip] = middle;
                own[(1 + T->Q + q) * strip] = middle * middle;
            }
        }
}

// Returns nonzero if memory ran out.
static int setup(problem *T, long N, long M, long Q, long C, const double *a, const double *r, const double *mu,
                 const double *z) {
    const long ld = rounded(Q + 1, MOST_LANES), P = M * (M + 1) / 2, K = 2 * Q + 1, Ppad = rounded(P, 3 * MOST_LANES);
    double *memory = allocate(sizeof(double) * (M * ld + K * Ppad + Q));
    if (!memory) return 1;
    double *H = memory + M * ld, *most = H + K * Ppad;
    *T = (problem){N, M, Q, C, P, K, ld, Ppad, rounded(C, TILE), a, r, mu, memory, H, most};
    memset(T->z, 0, sizeof(double) * M * ld);
    memset(T->most, 0, sizeof(double) * Q);
    for (long m = 0; m < M; m++) {
        memcpy(T->z + m * ld, z + m * Q, sizeof(double) * Q);
        T->z[m * ld + Q] = 1;
        for (long q = 0; q < Q; q++) T->most[q] = fmax(T->most[q], fabs(z[m * Q + q]));
    }
    load_pairs(T, z, DISPATCH(strip, ));
    return 0;
}

// Of rows n0 <= n < n1 of a (N,), r (N,Q) and mu (N,Q), and of points z (M,Q), the sums V (C,P) with the weights (C,N). Writes
// E of these rows, if it is not null, to memory for N rounded up to a multiple of 8 times Ppad numbers. n0 is a multiple of
// CHUNK, and so is n1, or it is N. Returns nonzero if memory ran out.
int weighted_forward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                     const double *weight, long n0, long n1, double *E, double *V) {
    problem T;
    if (setup(&T, N, M, Q, C, a, r, mu, z)) return 1;
    const int status = DISPATCH(forward, &T, weight, n0, n1, E, V);
    free(T.z);
    return status;
}

// The gradients of sum_cp g V for g (C,P): writes these rows of grad_a, grad_r and grad_mu and, if it is not null, of
// grad_weight (C,N); and their share of grad_z (M,Q). E may be null. The rest is as above.
int weighted_backward(long N, long M, long Q, long C, const double *a, const double *r, const double *mu, const double *z,
                      const double *weight, const double *g, const double *E, long n0, long n1, double *grad_weight,
                      double *grad_a, double *grad_r, double *grad_mu, double *grad_z) {
    problem T;
    if (setup(&T, N, M, Q, C, a, r, mu, z)) return 1;
    const int status =
        DISPATCH(backward, &T, weight, g, E, n0, n1, grad_weight, grad_a, grad_r, grad_mu, grad_z);
    free(T.z);
    return status;
}

// Columns j0 <= j < j1 of target (rows, columns) += factor left right: left (rows, inner), with `row` and `next` numbers from
// one row and one column to the next, and right (inner, columns). Returns nonzero if memory ran out.
int weighted_product(long rows, long inner, long columns, double factor, const double *left, long row, long next,
                     const double *right, long j0, long j1, double *target) {
    return DISPATCH(product, rows, inner, columns, factor, left, row, next, right, j0, j1, target);
}

// Symmetric matrices as panels (C,S), from their upper triangles: multiplies sums (C,P) by factor (P,), and adds half (C,M)
// of the row and of the column.
int weighted_unpack(long C, long M, const double *factor, const double *half, double *sums, double *panels) {
    const long P = M * (M + 1) / 2, Mpad = rounded(M, ROWS);
    memset(panels, 0, sizeof(double) * C * panels_size(M));
    for (long c = 0; c < C; c++, sums += P, panels += panels_size(M), half += M) {
        const double *row = sums;
        for (long p = 0; p < P; p++) sums[p] *= factor[p];
        for (long m = 0; m < M; row += M - m, m++) {
            double *to = panels + panel_place(Mpad, m, m);
            for (long j = m; j < M; j++) to[(j - m) * ROWS] = row[j - m] + (half[m] + half[j]);
            for (long j = m + 1; j < min(m / ROWS * ROWS + ROWS, M); j++)  // the other side of the diagonal
                panels[panel_place(Mpad, m, j)] = to[(j - m) * ROWS];
        }
    }
    return 0;
}

// The way back for gradients g, panels (C,S): those of sums before and after the factor, packed (C,P) = factor * upper and
// sum_c upper * sums (P,), with upper = 2 g[m,j] for m < j and g[m,m]; and sides (C,M), sums of rows and columns.
int weighted_pack(long C, long M, const double *factor, const double *g, const double *sums, double *packed, double *total,
                  double *sides) {
    const long P = M * (M + 1) / 2, Mpad = rounded(M, ROWS);
    memset(total, 0, sizeof(double) * P);
    memset(sides, 0, sizeof(double) * C * M);
    for (long c = 0; c < C; c++, g += panels_size(M), sides += M, sums += P, packed += P) {
        double *row = packed;
        for (long m = 0; m < M; row += M - m, m++) {
            const double *from = g + panel_place(Mpad, m, m);
            double side = 2 * (row[0] = from[0]);
            for (long j = m + 1; j < M; j++) {
                row[j - m] = 2 * from[(j - m) * ROWS];
                sides[j] += row[j - m];
                side += row[j - m];
            }
            sides[m] += side;
        }
        for (long p = 0; p < P; p++) {
            total[p] += packed[p] * sums[p];
            packed[p] *= factor[p];
        }
    }
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_weighted", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__weighted(void) { return PyModule_Create(&definition); }
#endif

#endif
