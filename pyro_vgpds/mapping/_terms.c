// SPDX-License-Identifier: Apache-2.0
//
// The terms of the collapsed bound for C groups of W columns each, with their gradients. With B = K + beta P (all M x M,
// symmetric), inverse = B^-1, b = B^-1 v (M x W) and S = b b^T, each group has
//   value = (beta^2 tr v^T b - count (log|B| - log|K|) - beta count open slack)/2,   slack = psi0 - tr Kinv P,
//   its gradients in psi0, beta and v, and, with open = (slack > 0),
//   g   = beta count/2 (open Kinv - inverse) - beta^3/2 S,
// and the sums over groups of count (Kinv - inverse) - beta^2 S and of beta count open P are returned as well.
//
// A group's matrices fit the L2 cache, for which LAPACK's functions, made for large matrices, are slow, and torch's
// operations on all groups, each of which writes C M^2 numbers to memory, even more so.
//
// All products are sums over p of left[p][i] right[p][j] for four rows i and a few vectors of columns j, which are kept
// in registers:
//   B = U^T U:       U[i][j] = (B[i][j] - sum_{p<i} U[p][i] U[p][j]) / U[i][i]
//   Y = U^-T:        Y[i][j] = (1[i=j]  - sum_{p<i} U[p][i] Y[p][j]) / U[i][i]
//   H = U^-T v:      H[i][w] = (v[i][w] - sum_{p<i} U[p][i] H[p][w]) / U[i][i], columns of U after those of B
//   b = Y^T H,  S = b b^T,  inverse = Y^T Y.
// Matrices are padded to a multiple of four rows, by ones in the diagonal of K and zeros otherwise. K, Kinv, P, g and the
// sums are panels (_panels.h), of which those of P and g of all groups are half as much memory as the matrices. Strips of
// columns begin at a multiple of the lanes: what they write before or after the columns that are wanted is not read, or
// written again.
//
// The file includes itself once for every instruction set: the part under #ifdef LANES is compiled each time.

#ifdef LANES

typedef double NAME(vec) __attribute__((vector_size(8 * LANES), aligned(8)));
#define vec NAME(vec)
#define PARTS (LANES > ROWS ? 2 : 1)  // a part of a vector: neighbours in a panel
typedef double NAME(part) __attribute__((vector_size(8 * LANES / PARTS), aligned(8), may_alias));
#define part NAME(part)


// total[r][v] += sign * sum_{p0 <= p < p1} left[p][r] right[p][v]; `vectors` and `sign` are constants after inlining
INLINE void NAME(multiply)(vec *total, int vectors, int sign, long p0, long p1, const double *left, long left_step,
                           const double *right, long right_step) {
    for (long p = p0; p < p1; p++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++) {
                const vec product = left[p * left_step + r] * load(right + p * right_step + v * LANES);
                if (sign > 0)
                    total[r * vectors + v] += product;
                else
                    total[r * vectors + v] -= product;
            }
}

// target (ROWS x vectors) = T^-T (source - sum_{p0 <= p < p1} left[p][r] right[p][v]), with source 0 if it is null, and T,
// the block of U in the diagonal, with the reciprocals of its pivots; without T^-T if T is null
INLINE void NAME(solve)(double *target, long ld, int vectors, const double *source, long p0, long p1, const double *left,
                        const double *right, const block *T) {
    vec total[ROWS * MOST];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) total[r * vectors + v] = source ? load(source + r * ld + v * LANES) : splat(0);
    NAME(multiply)(total, vectors, -1, p0, p1, left, ld, right, ld);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) {
            for (long s = 0; T && s < r; s++) total[r * vectors + v] -= T->U[s][r] * total[s * vectors + v];
            if (T) total[r * vectors + v] *= T->reciprocal[r];
            store(target + r * ld + v * LANES, total[r * vectors + v]);
        }
}

// Call `once(j, vectors)` for strips of columns that contain first <= j < last
#define STRIPS(first, last, once)                                          \
    {                                                                      \
        long j = (first) / LANES * LANES;                                  \
        for (; j + (MOST - 1) * LANES < (last); j += MOST * LANES) once(MOST); \
        if (MOST > 2 && j + LANES < (last)) once(2);                       \
        else if (j < (last)) once(1);                                      \
    }

// T, the upper Cholesky factor of the block U in the diagonal. Nonzero if it is not positive definite.
INLINE int NAME(diagonal)(const double *U, long ld, block *T) {
    for (int r = 0; r < ROWS; r++)
        for (int s = r; s < ROWS; s++) T->U[r][s] = U[r * ld + s];
    for (int r = 0; r < ROWS; r++) {
        for (long t = 0; t < r; t++)
            for (int s = r; s < ROWS; s++) T->U[r][s] -= T->U[t][r] * T->U[t][s];
        if (!(T->U[r][r] > 0) || T->U[r][r] > 1e300) return 1;
        const double pivot = sqrt(T->U[r][r]);
        T->reciprocal[r] = 1 / pivot;
        T->U[r][r] = pivot;
        for (int s = r + 1; s < ROWS; s++) T->U[r][s] *= T->reciprocal[r];
    }
    return 0;
}

// A strip of U in factorise; the first one of its rows, which has the block in the diagonal, factorises that
INLINE int NAME(factorise_strip)(double *U, long ld, int vectors, long i, long j, block *T) {
    double *own = U + i * ld + j;
    if (j <= i) {
        NAME(solve)(own, ld, vectors, own, 0, i, U + i, U + j, NULL);
        if (NAME(diagonal)(U + i * ld + i, ld, T)) return 1;
    }
    NAME(solve)(own, ld, vectors, own, j <= i ? i : 0, i, U + i, U + j, T);
    return 0;
}

// U, the upper Cholesky factor of its first Mpad columns, and U^-T times the others, up to `columns`; and its blocks in the
// diagonal. Nonzero if it is not positive definite.
NOINLINE int NAME(factorise)(double *U, long Mpad, long columns, long ld, block *blocks) {
    int failed = 0;
    for (long i = 0; i < Mpad && !failed; i += ROWS, blocks++) {
#define ONCE(vectors) failed |= NAME(factorise_strip)(U, ld, vectors, i, j, blocks)
        STRIPS(i, columns, ONCE)
#undef ONCE
    }
    return failed;
}

// Y = U^-T; its part above the diagonal is zero already, and stays so
NOINLINE void NAME(invert)(const double *U, long Mpad, long ld, const block *blocks, double *Y) {
    for (long i = 0; i < Mpad; i += ROWS, blocks++) {
#define ONCE(vectors) NAME(solve)(Y + i * ld + j, ld, vectors, NULL, j, i, U + i, Y + j, blocks)
        STRIPS(0, i, ONCE)
#undef ONCE
        for (int s = 0; s < ROWS; s++)
            for (int r = s; r < ROWS; r++) {
                double total = r == s;
                for (long t = s; t < r; t++) total -= blocks->U[t][r] * Y[(i + t) * ld + i + s];
                Y[(i + r) * ld + i + s] = total * blocks->reciprocal[r];
            }
    }
}

// target[w][j] = sum_p H[p][w] Y[p][j], the transposed b
INLINE void NAME(back_strip)(double *target, long ld, int vectors, long Mpad, const double *H, const double *Y, long j) {
    vec total[ROWS * MOST];
    for (int e = 0; e < MOST * ROWS; e++) total[e] = splat(0);
    NAME(multiply)(total, vectors, 1, j, Mpad, H, ld, Y + j, ld);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) store(target + r * ld + j + v * LANES, total[r * vectors + v]);
}

NOINLINE void NAME(back_solve)(double *b, long Mpad, long ld, const double *H, long W, const double *Y) {
    for (long w = 0; w < W; w += ROWS) {
#define ONCE(vectors) NAME(back_strip)(b + w * ld, ld, vectors, Mpad, H + w, Y, j)
        STRIPS(0, Mpad, ONCE)
#undef ONCE
    }
}

// Numbers k .. k + LANES - 1 of tile t of a panel, from the rows of a strip
INLINE vec NAME(of_tile)(const vec *rows, int vectors, long t, long k) {
#if LANES == 8
    const vec *own = rows + k / ROWS * vectors + t / 2;
    typedef int64_t places __attribute__((vector_size(8 * LANES)));
    const places first = {0, 1, 2, 3, 8, 9, 10, 11}, last = {4, 5, 6, 7, 12, 13, 14, 15};
    return t % 2 ? __builtin_shuffle(own[0], own[vectors], last) : __builtin_shuffle(own[0], own[vectors], first);
#else
    return rows[k / ROWS * vectors + (t * ROWS + k % ROWS) / LANES];
#endif
}

// A strip of the gradients: rows i to i + ROWS - 1, columns from j on up to those of the diagonal
INLINE void NAME(gradient_strip)(const group *G, const shared *A, const double *P, double *g, int vectors, long i, long j,
                                 vec (*traces)[2]) {
    const long ld = A->ld;
    vec inverse[ROWS * MOST], outer[ROWS * MOST];
    for (int e = 0; e < MOST * ROWS; e++) inverse[e] = outer[e] = splat(0);
    NAME(multiply)(inverse, vectors, 1, i, A->Mpad, A->Y + i, ld, A->Y + j, ld);
    NAME(multiply)(outer, vectors, 1, 0, A->W, A->b + i, ld, A->b + j, ld);
    const double rate = G->beta * G->count, open = rate * G->open, square = G->beta * G->beta;
    each (long t = 0; t < vectors * LANES / ROWS; t++) {
        if (j + t * ROWS > i) break;
        const long place = panel_place(A->Mpad, i, j + t * ROWS), stored = stored_place(A, i, j + t * ROWS);
        vec *own_traces = traces[j + t * ROWS == i];
        each (long k = 0; k < TILE; k += LANES) {
            const long e = place + k;
            const vec B = NAME(of_tile)(inverse, vectors, t, k), S = NAME(of_tile)(outer, vectors, t, k);
            const vec own = load(P + stored + k);
            own_traces[0] += B * own;
            own_traces[1] += S * own;
            const vec inverse_K = load(A->inverse + e);
            store(A->direct + e, load(A->direct + e) + (G->count * (inverse_K - B) - square * S));
            store(A->through + e, load(A->through + e) + open * own);
            vec found = (open * inverse_K - rate * B - (square * G->beta) * S) * 0.5;
            if (A->decay) {
                store(A->products + e, load(A->products + e) + found * own);
                found *= load(A->decay + e);
                store(A->all + e, load(A->all + e) + G->full * found);
            }
            store(g + stored + k, found);
        }
    }
}

NOINLINE void NAME(gradients)(group *G, const shared *A, const double *P, double *g) {
    vec traces[2][2] = {{splat(0), splat(0)}, {splat(0), splat(0)}};  // below the diagonal and in it
    for (long i = 0; i < A->Mpad; i += ROWS) {
#define ONCE(vectors) NAME(gradient_strip)(G, A, P, g, vectors, i, j, traces)
        STRIPS(0, i + ROWS, ONCE)
#undef ONCE
    }
    G->free = G->quadratic = 0;
    for (int lane = 0; lane < LANES; lane++) {
        G->free += 2 * traces[0][0][lane] + traces[1][0][lane];
        G->quadratic += 2 * traces[0][1][lane] + traces[1][1][lane];
    }
}

// The upper triangle of U = K + beta P, and the slack and the norm, from the trace and the squares of Kinv * P. Meanwhile the
// memory of P, and of g if that is another one, is asked for: those of all groups are larger than the L2 cache.
NOINLINE void NAME(gather)(group *G, const shared *A, const double *P, const double *g) {
    const double beta = G->beta;
    vec diagonal[2] = {splat(0), splat(0)}, rest[2] = {splat(0), splat(0)};
    const double *K = A->K, *inverse = A->inverse;
    for (long m = 0; m < A->Mpad; m += ROWS)
        for (long j = m; j < A->Mpad; j += ROWS, K += TILE, inverse += TILE) {
            const long place = stored_place(A, j, m);
            double tile[TILE];
            for (long e = 0; e < TILE; e += LINE) {
                __builtin_prefetch(P + place + AHEAD * A->step + e);
                if (g && g != P) __builtin_prefetch(g + place + e, 1);
            }
            vec total = splat(0), squares = splat(0);
            for (long e = 0; e < TILE; e += LANES) {
                const vec own = load(P + place + e), product = load(inverse + e) * own;
                store(tile + e, load(K + e) + beta * own);
                total += product;
                squares += product * product;
            }
            for (long i = 0; i < ROWS; i++)
                for (long t = 0; t < ROWS; t++) A->U[(m + i) * A->ld + j + t] = tile[t * ROWS + i];
            vec *sums = j == m ? diagonal : rest;
            sums[0] += total;
            sums[1] += squares;
        }
    double trace = 0;
    G->norm = 0;
    for (int lane = 0; lane < LANES; lane++) {
        trace += 2 * rest[0][lane] + diagonal[0][lane];
        G->norm += 2 * rest[1][lane] + diagonal[1][lane];
    }
    G->slack = G->psi0 - trace;
}

// With the group's panels P, and those of its gradients g, which may be null. Returns nonzero if B is not positive definite
TARGET static int NAME(one_group)(group *G, const shared *A, const double *P, const double *v, double *g, double *b) {
    const long M = A->M, W = A->W, ld = A->ld, columns = A->Mpad + rounded(W, ROWS);
    double *H = A->U + A->Mpad;
    NAME(gather)(G, A, P, g);
    G->open = G->slack > 0;
    for (long m = 0; m < M; m++) memcpy(H + m * ld, v + m * W, W * sizeof(double));
    if (NAME(factorise)(A->U, A->Mpad, columns, ld, A->blocks)) return 1;
    G->log_pivots = G->product = 0;
    G->least = INFINITY;
    for (long m = 0; m < M; m++) {
        const double ratio = A->blocks[m / ROWS].U[m % ROWS][m % ROWS] / A->pivots[m];
        G->log_pivots += log(ratio);
        if (ratio < G->least) G->least = ratio;
    }
    part squares = {0};
    for (long m = 0; m < M; m++)
        for (long w = 0; w < W; w += LANES / PARTS) {
            const part own = *(const part *)(H + m * ld + w);
            squares += own * own;
        }
    for (int lane = 0; lane < LANES / PARTS; lane++) G->product += squares[lane];
    if (!g) return 0;
    NAME(invert)(A->U, A->Mpad, ld, A->blocks, A->Y);
    NAME(back_solve)(A->b, A->Mpad, ld, H, W, A->Y);
    for (long w0 = 0; w0 < W; w0 += STRIDE)  // so that the lines of the cache that are read stay in it
        for (long m = 0; m < M; m++)
            for (long w = w0; w < min(w0 + STRIDE, W); w++) b[m * W + w] = G->beta * G->beta * A->b[w * ld + m];
    NAME(gradients)(G, A, P, g);
    return 0;
}

#undef vec
#undef PARTS
#undef part
#undef MOST
#undef STRIPS
#undef LANES
#undef NAME
#undef TARGET

#else

#include "_vectors.h"

// MOST: vectors of a strip, for which there are registers; a strip has whole tiles
enum { ROWS = 4, TILE = ROWS * ROWS, LINE = 8, AHEAD = 8, STRIDE = 16, LARGEST = 8, BLOCK = 2 * TILE };
#include "_panels.h"

#define each _Pragma("GCC unroll 16") for  // so that what is summed stays in registers
#define load(x) (*(const vec *)(x))
#define store(x, value) (*(vec *)(x) = (value))

typedef struct {
    double psi0, beta, count, full;                                         // given
    double log_pivots, least, slack, product, free, quadratic, open, norm;  // computed
} group;
enum { GIVEN = 3, COMPUTED = 6 };
typedef struct {
    double U[ROWS][ROWS], reciprocal[ROWS];  // of its pivots
} block;
typedef struct {
    long M, Mpad, W, ld;
    double *K, *inverse;         // panels, of K_MM
    double *direct, *through;    // panels, sums over groups
    double *decay, *all, *products;  // panels; null if the gradients are not in the place of P
    long step, *start;           // of the blocks of P and g, two tiles each; (Mpad / ROWS,): of the first one of a panel
    double *U, *Y;               // (Mpad, ld), of a group; H is in U
    double *b;                   // (W, ld), W rounded up to a multiple of ROWS
    double *pivots;              // (Mpad,), of K_MM
    block *blocks;               // (Mpad / ROWS,)
} shared;

// The place in P and g of the tile of the rows from i on and the columns from j on
static inline long stored_place(const shared *A, long i, long j) {
    const long tile = (i - j) / ROWS;
    return A->start[j / ROWS] + tile / 2 * A->step + tile % 2 * TILE;
}

#ifdef WITH_AVX
#define TARGET FOR_AVX512
#define NAME(x) x##_avx512
#define LANES 8
#define MOST 3
#include "_terms.c"
#define TARGET FOR_AVX2
#define NAME(x) x##_avx2
#define LANES 4
#define MOST 3
#include "_terms.c"
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES 2
#define MOST 2
#include "_terms.c"

// Groups whose panels begin `apart` numbers after each other, in blocks that are `step` apart. Others as in the functions below
static int all_terms(long C, long M, long W, const double *K, const double *inverse, const double *pivots,
                     const double *numbers, const double *psi2, const double *v, long apart, long step, double *results,
                     double *b, double *g, double *direct, double *through, const double *decay, const double *full,
                     double *all, double *products) {
    const long Mpad = rounded(M, ROWS), wide = rounded(Mpad + W, LARGEST), panels = panels_size(M), count = Mpad / ROWS;
    const long ld = wide % 32 ? wide : wide + LARGEST;  // or the rows would share few places of the cache
    const long size = 7 * panels + (2 * Mpad + rounded(W, ROWS)) * ld + Mpad;
    double *work = allocate(sizeof(double) * size + sizeof(block) * count + sizeof(long) * count);
    if (!work) return 1;
    double *U = work + 7 * panels, *b_of_group = U + 2 * Mpad * ld, *last = work + size - Mpad;
    memset(work, 0, sizeof(double) * (b_of_group - work));  // everything else is written first
    block *blocks = (block *)(work + size);
    long *start = (long *)(blocks + count);
    shared A = {M, Mpad, W, ld, work, work + panels, work + 2 * panels, work + 3 * panels, decay ? work + 4 * panels : NULL,
                work + 5 * panels, work + 6 * panels, step, start, U, U + Mpad * ld, b_of_group, last, blocks};
    to_panels(M, K, A.K);
    to_panels(M, inverse, A.inverse);
    if (decay) to_panels(M, decay, A.decay);
    for (long m = 0; m < Mpad; m++) A.pivots[m] = m < M ? pivots[m] : 1;
    for (long m = M; m < Mpad; m++) A.K[panel_place(Mpad, m, m)] = 1;
    for (long m = 0, before = 0; m < Mpad; m += ROWS) {
        start[m / ROWS] = step == BLOCK ? panel_start(Mpad, m) : before * step;
        before += ((Mpad - m) / ROWS + 1) / 2;
        for (long e = 0; decay && e < TILE; e++) A.decay[panel_start(Mpad, m) + e] *= 0.5;
    }
    int failed = 0;
    for (long c = 0; c < C && !failed; c++) {
        group G = {numbers[c * GIVEN], numbers[c * GIVEN + 1], numbers[c * GIVEN + 2], full ? full[c] : 0};
        failed = DISPATCH(one_group, &G, &A, psi2 + c * apart, v + c * M * W, g ? g + c * apart : NULL,
                          g ? b + c * M * W : NULL);
        const double square = G.beta * G.beta, loose = G.slack < 0 ? 0 : G.slack;  // or training would exploit rounding
        const double found[COMPUTED] = {
            0.5 * (square * G.product - G.count * (2 * G.log_pivots + G.beta * loose)), G.least, G.slack, G.norm,
            -0.5 * G.beta * G.count * G.open,
            G.beta * G.product - 0.5 * (G.count * (G.free + loose) + square * G.quadratic)};
        memcpy(results + c * COMPUTED, found, sizeof found);
    }
    if (g && !failed) {
        to_matrix(M, A.direct, direct);
        to_matrix(M, A.through, through);
        for (long e = 0; decay && e < panels; e++) all[e] += A.all[e], products[e] += A.products[e];
    }
    free(work);
    return failed ? 2 : 0;
}

// Groups c0 <= c < c1 of C. K, inverse (M,M) and pivots (M,) are those of K_MM; numbers (C,3): psi0, beta, count;
// psi2 (C,S), panels; v (C,M,W). Writes results (C,6): the value, the least ratio of the pivots of B and K, the slack, the
// square of the norm of inverse * psi2, and the gradients in psi0 and beta; those in v, beta^2 b (C,M,W), and in psi2, g (C,S);
// and the sums of these groups, direct and through (M,M). If g is null, only the first four results are computed. Returns 1 if
// memory ran out, 2 if a B is not positive definite.
int terms_groups(long C, long M, long W, const double *K, const double *inverse, const double *pivots,
                 const double *numbers, const double *psi2, const double *v, long c0, long c1, double *results,
                 double *b, double *g, double *direct, double *through) {
    const long panels = panels_size(M), place = c0 * M * W;
    if (c1 > C) return 1;
    return all_terms(c1 - c0, M, W, K, inverse, pivots, numbers + c0 * GIVEN, psi2 + c0 * panels, v + place, panels, BLOCK,
                     results + c0 * COMPUTED, b ? b + place : NULL, g ? g + c0 * panels : NULL, direct, through, NULL, NULL,
                     NULL, NULL);
}

// The same for C groups whose psi2 are blocks of panels, as grouped_forward writes them, `step` apart. If gradients are wanted,
// those in psi2 take its place, times decay (M,M), as grouped_backward needs them; all (S) += those of groups with full (C) = 1,
// and products (S) += g psi2.
int terms_in_place(long C, long M, long W, const double *K, const double *inverse, const double *pivots,
                   const double *numbers, double *psi2, const double *v, long step, double *results, double *b, long wanted,
                   double *direct, double *through, const double *decay, const double *full, double *all,
                   double *products) {
    return all_terms(C, M, W, K, inverse, pivots, numbers, psi2, v, BLOCK, step, results, b, wanted ? psi2 : NULL, direct,
                     through, decay, full, all, products);
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_terms", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__terms(void) { return PyModule_Create(&definition); }
#endif

#endif
