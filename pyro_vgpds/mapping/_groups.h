// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums for C groups of rows at once, and their gradients. _midpoint.c includes this file once, and the part under
// #ifdef LANES for every instruction set.
//
//   V[c,m,m'] = sum_n mask[c,n] E[n,m,m'],        G[n,m,m'] = E[n,m,m'] sum_c mask[c,n] g[c,m,m']
//
// A group that has most of the rows is the sum of all rows minus those that it does not have. So a group costs one
// addition for each pair and each row in which it differs from all rows, or from none: sums of lists of rows (forward), and
// of lists of groups (backward).
//
// Lanes are pairs of points, unlike those for all rows: the sums of lists need this, and no block is transposed. With the
// products p_q = z_mq z_m'q of a pair, k and the products with it of _midpoint.c are replaced by
//   T_nq = sum_mm' G p_q = sum_m z_mq k_nmq,      D_q[m,m'] = sum_n r_nq G[n,m,m'],   sum_n r_nq k_nmq = sum_m' D_q z_m'q.
//
// Layout: the pairs of a panel, ROWS points m by all points m' >= m, are numbered e = (m' - m) ROWS + m % ROWS, and divided
// into blocks of BLOCK numbers, of which the last one may be half full. All that is summed for a block fits the L1 cache:
// its numbers for all groups follow each other, and those for all rows of a chunk. A block is processed in tiles of COLUMNS
// rows by ROWS vectors of pairs, or by half of them.

#ifdef LANES

// Pairs as lanes, anywhere in memory
typedef double NAME(pairs) __attribute__((vector_size(8 * LANES), aligned(8)));
#define pairs_at(x) (*(NAME(pairs) *)(x))
#define FOLD (LANES < ROWS ? ROWS / LANES : 1)  // vectors that have all points m of a panel
#define PRODUCT (-LOG2E / 2 / UNIT)             // factor of products, so that they are summands of exponents

// x of the points m, or of the points m', of the pairs e .. e + LANES - 1 of a block, from that of its first point
INLINE vec NAME(of_rows)(const double *x, long e) {
#if STEPS
    (void)e;
    return (vec)_mm512_broadcast_f64x4(_mm256_loadu_pd(x));
#else
    vec out;
    for (long lane = 0; lane < LANES; lane++) out[lane] = x[(e + lane) % ROWS];
    return out;
#endif
}
INLINE vec NAME(of_columns)(const double *x, long e) {
#if STEPS
    const __m512i place = _mm512_add_epi64(_mm512_set1_epi64(e / ROWS), _mm512_set_epi64(1, 1, 1, 1, 0, 0, 0, 0));
    return (vec)_mm512_permutexvar_pd(place, _mm512_loadu_pd(x));
#else
    vec out;
    for (long lane = 0; lane < LANES; lane++) out[lane] = x[(e + lane) / ROWS];
    return out;
#endif
}

// total[v] = sum_u value[u] source[place[u] + v] over list l, for `vectors` (constant after inlining) of pairs
INLINE void NAME(combine)(vec *total, int vectors, const lists *L, long l, const double *source) {
    const long end = L->start[l + 1];
    each (int v = 0; v < vectors; v++) total[v] = splat(0);
    if (L->equal) {
        for (long u = L->start[l]; u < end; u++)
            each (int v = 0; v < vectors; v++) total[v] += pairs_at(source + L->place[u] + v * LANES);
        each (int v = 0; v < vectors; v++) total[v] *= L->factor[l];
    } else {
        for (long u = L->start[l]; u < end; u++)
            each (int v = 0; v < vectors; v++) total[v] += L->value[u] * pairs_at(source + L->place[u] + v * LANES);
    }
}

// sums (lists, BLOCK) += those of all lists, for `size` numbers, BLOCK or half of them. Each list is summed first: sums of
// many rows are much larger than each term, so that every addition to them would lose digits.
NOINLINE void NAME(combine_all)(const lists *L, long size, double *sums, const double *source) {
    for (long i = 0; i < L->lists; i++) {
        const long l = L->order[i];
        vec total[BLOCK / LANES];
#define ADD(vectors)                                \
    NAME(combine)(total, vectors, L, l, source);    \
    each (int v = 0; v < vectors; v++) pairs_at(sums + l * BLOCK + v * LANES) += total[v]
        if (size < BLOCK) { ADD(BLOCK / 2 / LANES); }
        else { ADD(BLOCK / LANES); }
#undef ADD
    }
}

// Fills z and products of the batch: what does not depend on rows
NOINLINE void NAME(load_points)(const problem *P, batch *B) {
    const long Q = P->Q;
    double *to = B->products;
    for (long q = 0; q < Q; q++)
        for (long m = 0; m < B->width; m++) B->z[q * B->width + m] = P->z[min(m, P->M - 1) * (Q + 1) + q];
    for (long m = 0; m < P->Mpad; m += ROWS)
        for (long j0 = m; j0 < P->Mpad; j0 += BLOCK / ROWS)
            for (long q = 0; q < Q; q++, to += BLOCK)
                for (long e = 0; e < block_size(P, j0); e += LANES)
                    pairs_at(to + e) = NAME(of_rows)(B->z + q * B->width + m, e) *
                                       NAME(of_columns)(B->z + q * B->width + j0, e) * PRODUCT;
}

// Fills r, alpha and any of the batch for `count` of the rows in `order`, or if that is null, from n on. Rows that make the
// last tile whole have alpha = -inf, hence E = 0. any: as load_rows returns it, for each COLUMNS rows
NOINLINE void NAME(load_batch)(const problem *P, const long *order, long n, long count, batch *B) {
    const double limit = NAME(bias) - 23;
    const long Q = P->Q, width = B->width;
    for (long i = 0; i < rounded(count, COLUMNS); i++) {
        const long row = order ? order[min(i, count - 1)] : n + min(i, count - 1);
        const double *mu = P->mu + row * Q, a = i < count ? P->a[row] : -HUGE_VAL;
        double *r = B->r + i * Q, base = a / 2;
        bits outside = (bits)(splat(a) * LOG2E > splat(limit));
        memcpy(r, P->r + row * Q, Q * sizeof(double));
        for (long q = 0; q < Q; q++) base -= r[q] * mu[q] * mu[q] / 2;
        for (long m = 0; m < width; m += LANES) {
            vec total = splat(base), square = splat(0);
            for (long q = 0; q < Q; q++) {
                const vec z = pairs_at(B->z + q * width + m), rz = r[q] * z;
                total += rz * mu[q];
                square += rz * z;
            }
            total -= square / 4;
            outside |= (bits)((2 * total - square / 2) * LOG2E < splat(-limit));
            pairs_at(B->alpha + i * width + m) = total * (LOG2E / UNIT);
        }
        int *any = B->any + i / COLUMNS;
        if (i % COLUMNS == 0) *any = 0;
        for (int lane = 0; lane < LANES; lane++) *any |= outside[lane] != 0;
    }
}

// E of a tile, of the rows from n on, the panel of m from the column j on, and the products of these pairs. `vectors` of pairs
// and `any` are constants after inlining
INLINE void NAME(tile)(const batch *B, long n, long m, long j, const double *products, int vectors, int any, vec *E) {
    const long Q = B->Q;
    const double *r = B->r + n * Q;
    each (int u = 0; u < COLUMNS; u++) {
        const double *alpha = B->alpha + (n + u) * B->width;
        each (int i = 0; i < vectors; i++)
            E[u * vectors + i] = NAME(of_rows)(alpha + m, i * LANES) + NAME(of_columns)(alpha + j, i * LANES);
    }
    for (long q = 0; q < Q; q++)
        each (int i = 0; i < vectors; i++) {
            const vec product = pairs_at(products + q * BLOCK + i * LANES);
            each (int u = 0; u < COLUMNS; u++) E[u * vectors + i] += r[u * Q + q] * product;
        }
    each (int e = 0; e < COLUMNS * vectors; e += ROWS) {
        if (any) NAME(exp2_any)(E + e);
        else NAME(exp2)(E + e, NULL, 0, 0, NULL);
    }
}

// Call `once(e, vectors, any)` for the tiles of a block of `size` numbers
#define TILES(size, any, once)                          \
    for (long e = 0; e < (size); e += ROWS * LANES) {   \
        const int half = (size) - e < ROWS * LANES;     \
        if (half && (any)) once(e, ROWS / 2, 1);        \
        else if (half) once(e, ROWS / 2, 0);            \
        else if (any) once(e, ROWS, 1);                 \
        else once(e, ROWS, 0);                          \
    }

// E of a tile to memory, in which rows are BLOCK apart
INLINE void NAME(write_tile)(const batch *B, long n, long m, long j, const double *products, int vectors, int any,
                             double *to) {
    vec E[COLUMNS * ROWS];
    NAME(tile)(B, n, m, j, products, vectors, any, E);
    each (int u = 0; u < COLUMNS; u++)
        each (int i = 0; i < vectors; i++) pairs_at(to + u * BLOCK + i * LANES) = E[u * vectors + i];
}

TARGET static int NAME(forward_groups)(const problem *P, const double *mask, const groups *S, long n0, long n1,
                                       const double *decay, long in_blocks, double *V) {
    const long Q = P->Q, C = S->C, Mpad = P->Mpad, most = min(FORWARD_ROWS, rounded(n1 - n0, GROUP_ROWS));
    const long in_lists = lists_size(C + 1, GROUP_ROWS), in_batch = batch_size(P, most);
    char *work = allocate(sizeof(double) * (GROUP_ROWS + C + 1) * BLOCK + in_batch + most / GROUP_ROWS * in_lists);
    if (!work) return 1;
    double *E = (double *)work, *sums = E + GROUP_ROWS * BLOCK;
    char *memory = (char *)(sums + (C + 1) * BLOCK);
    batch B = batch_at(memory, P, most);
    lists all[FORWARD_ROWS / GROUP_ROWS];
    const double one = 1, zero = 0;
    NAME(load_points)(P, &B);
    for (long first = n0; first < n1; first += FORWARD_ROWS) {
        const long count = min(FORWARD_ROWS, n1 - first);
        NAME(load_batch)(P, NULL, first, count, &B);
        for (long n = 0; n < count; n += GROUP_ROWS) {
            const long i = n / GROUP_ROWS, rows = min(GROUP_ROWS, count - n);
            all[i] = lists_at(memory + in_batch + i * in_lists, C + 1, GROUP_ROWS);
            for (long c = 0; c < C; c++) add_list(all + i, rows, mask + c * P->N + first + n, 1, S->full + c, 0);
            add_list(all + i, S->any_full ? rows : 0, &one, 0, &zero, 0);  // of all rows
            sort_lists(all + i);
        }
        const double *products = B.products;
        double *block = V;
        for (long m = 0; m < Mpad; m += ROWS)
            for (long j0 = m; j0 < Mpad; j0 += BLOCK / ROWS, products += Q * BLOCK, block += (C + 1) * BLOCK) {
                const long size = block_size(P, j0), place = panel_place(Mpad, j0, m);
                memset(sums, 0, (C + 1) * BLOCK * sizeof(double));
                for (long n = 0; n < count; n += GROUP_ROWS) {
                    for (long u = n; u < min(n + GROUP_ROWS, count); u += COLUMNS) {
#define ONCE(e, vectors, any)                                                                   \
    NAME(write_tile)(&B, u, m, j0 + e / ROWS, products + e, vectors, any, E + (u - n) * BLOCK + e)
                        TILES(size, B.any[u / COLUMNS], ONCE)
#undef ONCE
                    }
                    NAME(combine_all)(all + n / GROUP_ROWS, size, sums, E);
                }
                if (in_blocks) write_block(S, sums, size, place, BLOCK, decay, first > n0, block);
                else write_block(S, sums, size, place, panels_size(Mpad), decay, first > n0, V + place);
            }
    }
    free(work);
    return 0;
}

// Sums of G: T (rows, Q), over pairs, in vectors whose lanes are added in the end; of the points m, by_row (Mpad / ROWS, rows,
// FOLD), and of the points m', by_column (Mpad / ROWS, rows, ROWS * ROWS), all of which belong to the same point if they are in
// the same lane of ROWS, or next to each other; and D (blocks, Q, BLOCK), over rows
typedef struct {
    long rows;
    vec *T, *by_row;
    double *by_column, *D;
} NAME(sums);

// Adds those of a tile to the sums; D is that of its pairs. The weights of list l are those numbers of `own`, and its last ones
INLINE void NAME(add_tile)(const batch *B, long n, long m, long j, const double *products, int vectors, int any,
                           const lists *L, const double *own, const double *all, const NAME(sums) *S, double *D) {
    const long Q = B->Q;
    const double *r = B->r + n * Q;
    vec G[COLUMNS * ROWS];
    NAME(tile)(B, n, m, j, products, vectors, any, G);
    each (int u = 0; u < COLUMNS; u++) {
        vec total[ROWS];
        NAME(combine)(total, vectors, L, n + u, own);
        each (int i = 0; i < vectors; i++) G[u * vectors + i] *= pairs_at(all + i * LANES) + total[i];
    }
    for (long q = 0; q < Q; q++) {
        vec product[ROWS], rate[COLUMNS];
        each (int i = 0; i < vectors; i++) product[i] = pairs_at(products + q * BLOCK + i * LANES);
        each (int u = 0; u < COLUMNS; u++) rate[u] = splat(r[u * Q + q]);
        each (int u = 0; u < COLUMNS; u++) {
            vec total = S->T[(n + u) * Q + q];
            each (int i = 0; i < vectors; i++) total += G[u * vectors + i] * product[i];
            S->T[(n + u) * Q + q] = total;
        }
        each (int i = 0; i < vectors; i++) {
            vec total = pairs_at(D + q * BLOCK + i * LANES);
            each (int u = 0; u < COLUMNS; u++) total += G[u * vectors + i] * rate[u];
            pairs_at(D + q * BLOCK + i * LANES) = total;
        }
    }
    vec *by_row = S->by_row + (m / ROWS * S->rows + n) * FOLD;
    each (int u = 0; u < COLUMNS; u++)
        each (int f = 0; f < FOLD; f++) {
            vec total = by_row[u * FOLD + f];
            each (int i = f; i < vectors; i += FOLD) total += G[u * vectors + i];
            by_row[u * FOLD + f] = total;
        }
    each (int u = 0; u < COLUMNS; u++)
        each (int i = 0; i < vectors; i++) {
            const long square = ROWS * ROWS, e = j % ROWS * ROWS + i * LANES;
            pairs_at(S->by_column + ((j / ROWS + e / square) * S->rows + n + u) * square + e % square) += G[u * vectors + i];
        }
}

// The gradients of row n, which is i of the batch, from its sums; h (width) is memory. Adds its share to dz (Q, width).
NOINLINE void NAME(finish_row)(const problem *P, const batch *B, const NAME(sums) *S, long n, long i, double *h,
                               double *grad_a, double *grad_r, double *grad_mu, double *dz) {
    const long Q = P->Q, width = B->width;
    const double *mu = P->mu + n * Q, *r = P->r + n * Q;
    for (long m = 0; m < P->Mpad; m += ROWS) {
        const long place = m / ROWS * S->rows + i;
        const double *row = (const double *)(S->by_row + place * FOLD), *column = S->by_column + place * ROWS * ROWS;
        each (long k = 0; k < ROWS; k++) {
            const double *own = column + k * ROWS;
            double total = (own[0] + own[1]) + (own[2] + own[3]);
            each (long e = k; e < FOLD * LANES; e += ROWS) total += row[e];
            h[m + k] = total;
        }
    }
    for (long m = P->Mpad; m < width; m++) h[m] = 0;
    vec sum = splat(0);
    for (long m = 0; m < width; m += LANES) sum += pairs_at(h + m);
    const double S0 = NAME(lane_sum)(sum);
    grad_a[n] = S0;
    for (long q = 0; q < Q; q++) {
        vec first = splat(0), second = splat(0);
        for (long m = 0; m < width; m += LANES) {
            const vec own = pairs_at(h + m), z = pairs_at(B->z + q * width + m), hz = own * z;
            first += hz;
            second += hz * z;
            pairs_at(dz + q * width + m) += r[q] * (2 * mu[q] * own - hz);
        }
        const double S1 = NAME(lane_sum)(first), T = NAME(lane_sum)(S->T[i * Q + q]) * (2 / PRODUCT);
        grad_mu[n * Q + q] = 2 * r[q] * (S1 - mu[q] * S0);
        grad_r[n * Q + q] = mu[q] * (2 * S1 - mu[q] * S0) - (NAME(lane_sum)(second) + T) / 2;
    }
}

// grad_z from dz (Q, width) and D
NOINLINE void NAME(finish_points)(const problem *P, const batch *B, double *dz, const double *D, double *grad_z) {
    const long M = P->M, Q = P->Q, width = B->width;
    for (long m = 0; m < P->Mpad; m += ROWS)
        for (long j0 = m; j0 < P->Mpad; j0 += BLOCK / ROWS)
            for (long q = 0; q < Q; q++, D += BLOCK) {
                const double *z = B->z + q * width;
                double *own = dz + q * width;
                for (long j = j0; j < j0 + block_size(P, j0) / ROWS; j++) {
                    const double *pairs = D + (j - j0) * ROWS;
                    double total = 0;
                    each (long i = 0; i < ROWS; i++) {
                        own[m + i] -= pairs[i] * z[j];
                        total += pairs[i] * z[m + i];
                    }
                    own[j] -= total;
                }
            }
    for (long m = 0; m < M; m++)
        for (long q = 0; q < Q; q++) grad_z[m * Q + q] = dz[q * width + m];
}

TARGET static int NAME(backward_groups)(const problem *P, const double *mask, const groups *S, long n0, long n1,
                                        const double *packed, double *grad_a, double *grad_r, double *grad_mu,
                                        double *grad_z) {
    const long Q = P->Q, C = S->C, Mpad = P->Mpad, width = batch_width(P), block = (C + 1) * BLOCK;
    const long most = min(BACKWARD_ROWS, rounded(8 + L2 / (Mpad * ROWS), COLUMNS)), in_D = blocks_of(Mpad) * Q * BLOCK;
    const long in_rows = most * (Q + Mpad / ROWS * FOLD) * LANES, in_columns = Mpad * ROWS * most;
    const long in_batch = batch_size(P, most), in_lists = lists_size(most, C);
    char *work = allocate(sizeof(double) * (in_rows + in_columns + in_D + (Q + 1) * width) + in_batch + in_lists +
                          2 * sizeof(long) * (n1 - n0));
    if (!work) return 1;
    NAME(sums) sums = {most, (vec *)work, (vec *)work + most * Q, (double *)work + in_rows, NULL};
    double *dz = (sums.D = sums.by_column + in_columns) + in_D, *h = dz + Q * width;
    char *memory = (char *)(h + width);
    batch B = batch_at(memory, P, most);
    long *order = (long *)(memory + in_batch + in_lists);
    NAME(load_points)(P, &B);
    sort_rows(P, mask, S, n0, n1, order, order + (n1 - n0));
    memset(sums.D, 0, (in_D + Q * width) * sizeof(double));
    for (; n0 < n1; n0 += most, order += most) {
        const long rows = min(most, n1 - n0), tiles = rounded(rows, COLUMNS) / COLUMNS, share = block / tiles;
        lists L = lists_at(memory + in_batch, most, C);
        NAME(load_batch)(P, order, 0, rows, &B);
        for (long i = 0; i < tiles * COLUMNS; i++)
            add_list(&L, i < rows ? C : 0, mask + order[min(i, rows - 1)], P->N, S->full, 1);
        memset(sums.T, 0, (in_rows + in_columns) * sizeof(double));
        const double *own = packed, *products = B.products;
        double *D = sums.D;
        for (long m = 0; m < Mpad; m += ROWS)
            for (long j0 = m; j0 < Mpad; j0 += BLOCK / ROWS, own += block, products += Q * BLOCK, D += Q * BLOCK)
                for (long i = 0; i < tiles; i++) {
                    for (long e = i * share; e < (i + 1) * share; e += LINE) __builtin_prefetch(own + block + e);  // the next
#define ONCE(e, vectors, any)                                                                                       \
    NAME(add_tile)(&B, i * COLUMNS, m, j0 + e / ROWS, products + e, vectors, any, &L, own + e, own + C * BLOCK + e, \
                   &sums, D + e)
                    TILES(block_size(P, j0), B.any[i], ONCE)
#undef ONCE
                }
        for (long i = 0; i < rows; i++)
            NAME(finish_row)(P, &B, &sums, order[i], i, h, grad_a, grad_r, grad_mu, dz);
    }
    NAME(finish_points)(P, &B, dz, sums.D, grad_z);
    free(work);
    return 0;
}

// g (C,S), panels, times decay in the order of the blocks; group C is the sum of those that are `full`.
// W (S), if it is not null: sum_c g V.
TARGET static int NAME(pack_groups)(long Mpad, const groups *S, const double *g, const double *decay, const double *V,
                                    double *packed, double *W) {
    const long C = S->C, panels = panels_size(Mpad);
    if (W) memset(W, 0, panels * sizeof(double));
    for (long m = 0; m < Mpad; m += ROWS)
        for (long e = panel_start(Mpad, m); e < panel_start(Mpad, m + ROWS); e += BLOCK, packed += (C + 1) * BLOCK) {
            const long size = min(BLOCK, panel_start(Mpad, m + ROWS) - e);
            double *all = packed + C * BLOCK;
            memset(all, 0, BLOCK * sizeof(double));
            for (long c = 0; c < C; c++) {
                const double *from = g + c * panels + e, *value = W ? V + c * panels + e : from;
                double *own = packed + c * BLOCK;
                prefetch_block(from + BLOCK);
                prefetch_block(value + BLOCK);
                for (long i = 0; i < size; i++) own[i] = from[i] * decay[e + i];
                for (long i = 0; W && i < size; i++) W[e + i] += from[i] * value[i];
                for (long i = 0; S->full[c] && i < size; i++) all[i] += own[i];
            }
        }
    return 0;
}

#undef pairs_at
#undef FOLD
#undef PRODUCT
#undef TILES

#else

// LINE: numbers in a line of the cache. Sums over FORWARD_ROWS rows are in chunks of GROUP_ROWS, whose E of a block stay in
// the L1 cache; the sums of up to BACKWARD_ROWS rows, about L2 numbers, stay in the L2 cache. Fewer rows would read g, which
// does not fit it, more often.
enum { BLOCK = 32, LINE = 8, GROUP_ROWS = 96, FORWARD_ROWS = 10 * GROUP_ROWS, BACKWARD_ROWS = 128, L2 = 1 << 16 };
#include "_lists.h"

typedef struct {
    long C;
    int any_full;
    double *full;  // (C,): 1 if the group is all rows plus (mask - 1) of them, 0 if it is mask of them
} groups;

// What the exponents of some rows are made of. width: M in whole vectors
typedef struct {
    long Q, width;
    double *z, *products;  // (Q, width): the points, the last one repeated as padding; (blocks, Q, BLOCK)
    double *alpha, *r;     // (rows, width), (rows, Q)
    int *any;              // (rows / COLUMNS,): whether an exponent may leave the range of exp2
} batch;

// The number of blocks, and the numbers in that from column j0 on
static long blocks_of(long Mpad) { return (Mpad / ROWS + 1) * (Mpad / ROWS + 1) / 4; }
static long block_size(const problem *P, long j0) { return min(BLOCK, (P->Mpad - j0) * ROWS); }

static long batch_width(const problem *P) { return rounded(P->M, LINE); }

static long batch_size(const problem *P, long rows) {
    const long width = batch_width(P), numbers = P->Q * (width + rows + blocks_of(P->Mpad) * BLOCK) + rows * (width + 1);
    return rounded(numbers * sizeof(double), 64);
}

static batch batch_at(char *memory, const problem *P, long rows) {
    const long Q = P->Q, width = batch_width(P);
    double *products = (double *)memory, *z = products + blocks_of(P->Mpad) * Q * BLOCK, *alpha = z + Q * width;
    double *r = alpha + rows * width;
    return (batch){Q, width, z, products, alpha, r, (int *)(r + rows * Q)};
}

// The rows n0 <= n < n1 in the order of the lengths of their lists; `number` is memory
static void sort_rows(const problem *P, const double *mask, const groups *S, long n0, long n1, long *order, long *number) {
    long done = 0;
    memset(number, 0, (n1 - n0) * sizeof(long));
    for (long c = 0; c < S->C; c++)
        for (long n = n0; n < n1; n++) number[n - n0] += mask[c * P->N + n] != S->full[c];
    for (long found = 0; done < n1 - n0; found++)
        for (long n = n0; n < n1; n++)
            if (number[n - n0] == found) order[done++] = n;
}

// Asks for the memory of a block
static inline void prefetch_block(const double *block) {
    for (long e = 0; e < BLOCK; e += LINE) __builtin_prefetch(block + e);
}

// Panels of decay (M,M), or of ones if it is null, times `factor` in the squares at the diagonal; null if memory ran out
static double *make_decay(long M, const double *decay, double factor) {
    double *panels = malloc(panels_size(M) * sizeof(double));
    if (!panels) return NULL;
    to_panels(M, decay, panels);
    for (long m = 0; m < M; m += ROWS)
        for (long e = 0; e < ROWS * ROWS; e++) panels[panel_start(rounded(M, ROWS), m) + e] *= factor;
    return panels;
}

// Returns nonzero if memory ran out.
static int find_groups(groups *S, long N, long C, const double *mask) {
    *S = (groups){C, 0, malloc(C * sizeof(double))};
    for (long c = 0; S->full && c < C; c++) {
        long ones = 0, zeros = 0;
        for (long n = 0; n < N; n++) {
            ones += mask[c * N + n] == 1;
            zeros += mask[c * N + n] == 0;
        }
        S->full[c] = ones > zeros;
        S->any_full |= ones > zeros;
    }
    return !S->full;
}

// A block of V, panels of all groups, `apart` from each other, of `size` numbers from the number e of the panels on, from the
// sums of its rows, of which the last group is that of all of them. Of later rows it is added to V.
static void write_block(const groups *S, const double *sums, long size, long e, long apart, const double *decay, int later,
                        double *V) {
    const double *all = sums + S->C * BLOCK;
    for (long c = 0; c < S->C; c++) {
        const double *own = sums + c * BLOCK, full = S->full[c];
        double *to = V + c * apart;
        prefetch_block(to + BLOCK);
        if (later)
            for (long i = 0; i < size; i++) to[i] += (own[i] + full * all[i]) * decay[e + i];
        else
            for (long i = 0; i < size; i++) to[i] = (own[i] + full * all[i]) * decay[e + i];
    }
}

#endif
