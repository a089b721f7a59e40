// SPDX-License-Identifier: Apache-2.0
//
// Midpoint sums for C groups of rows at once, and their gradients. _midpoint.c includes this file once, and the part under
// #ifdef LANES for every instruction set.
//
//   V[c,m,m'] = sum_n mask[c,n] E[n,m,m'],        G[n,m,m'] = E[n,m,m'] sum_c mask[c,n] g[c,m,m']
//
// A group that has most of the rows is the sum of all rows minus those that it does not have. So a group costs one
// addition for each pair and each row in which it differs from all rows, or from none: sums of lists of rows (forward), and
// of lists of groups (backward). These sums have pairs as lanes; exponentials and the products with G, as for all rows,
// have rows as lanes; blocks are transposed in between.
//
// Layout: the pairs of a panel, ROWS points m by all points m' >= m, are numbered e = (m' - m) ROWS + m % ROWS, and divided
// into blocks of BLOCK numbers, of which the last one may be half full. All that is summed for a block fits the L1 cache:
// its numbers for all groups follow each other, and those for all rows of a chunk.

#ifdef LANES

// Pairs as lanes, anywhere in memory
typedef double NAME(pairs) __attribute__((vector_size(8 * LANES), aligned(8)));
#define pairs_at(x) (*(NAME(pairs) *)(x))

// The transpose of LANES vectors
INLINE void NAME(transpose)(vec *x) {
#if STEPS
    vec t[LANES];
    each (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(x[i], x[i + 1]);
    }
    each (int i = 0; i < 8; i += 4)
        each (int j = 0; j < 2; j++) {
            x[i + j] = _mm512_shuffle_f64x2(t[i + j], t[i + 2 + j], 0x88);
            x[i + 2 + j] = _mm512_shuffle_f64x2(t[i + j], t[i + 2 + j], 0xdd);
        }
    each (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f64x2(x[i], x[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f64x2(x[i], x[4 + i], 0xdd);
    }
    each (int i = 0; i < 8; i++) x[i] = t[i];
#elif LANES == 4 && MIDPOINT_LANES != 4  // AVX2
    vec t[LANES];
    each (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_pd(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_pd(x[i], x[i + 1]);
    }
    each (int i = 0; i < 2; i++) {
        x[i] = _mm256_permute2f128_pd(t[i], t[2 + i], 0x20);
        x[2 + i] = _mm256_permute2f128_pd(t[i], t[2 + i], 0x31);
    }
#else
    for (int i = 0; i < LANES; i++)
        for (long j = 0; j < i; j++) {
            const double one = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = one;
        }
#endif
}

// target[e] = initial[e] + factor sum_u value[u] source[place[u] + e] for `vectors` (constant after inlining) of lanes, with
// value 1 if it is null; initial may be target. Initial numbers come last: of many rows they are much larger than each term,
// so that every addition to them would lose digits.
INLINE void NAME(combine)(double *target, const double *initial, int vectors, long count, const long *place,
                          const double *value, double factor, const double *source) {
    vec total[BLOCK / LANES];
    each (int v = 0; v < vectors; v++) total[v] = splat(0);
    for (long u = 0; u < count; u++) {
        const double *from = source + place[u];
        each (int v = 0; v < vectors; v++) total[v] += (value ? value[u] : 1) * pairs_at(from + v * LANES);
    }
    each (int v = 0; v < vectors; v++) pairs_at(target + v * LANES) = pairs_at(initial + v * LANES) + factor * total[v];
}

// The same for all lists and a block of BLOCK numbers or half of them: targets are BLOCK apart, and initial numbers `step`.
NOINLINE void NAME(combine_all)(const lists *L, long size, double *target, const double *initial, long step,
                                const double *source) {
#define ALL(vectors, own_value, own_factor)                                                                       \
    for (long i = 0; i < L->lists; i++) {                                                                         \
        const long l = L->order[i], start = L->start[l];                                                          \
        NAME(combine)(target + l * BLOCK, initial + l * step, vectors, L->start[l + 1] - start, L->place + start, \
                      own_value, own_factor, source);                                                             \
    }
    if (size < BLOCK) ALL(BLOCK / 2 / LANES, L->value + start, 1)
    else if (L->equal) ALL(BLOCK / LANES, NULL, L->factor[l])
    else ALL(BLOCK / LANES, L->value + start, 1)
#undef ALL
}

// E of a vector of rows, and of a block of the panel of m with the columns from j0 to j1: rows are BLOCK apart. `any`: as in
// strip
INLINE void NAME(block_powers)(const problem *P, long m, long j0, long j1, int any, const vec *alpha, const vec *slope,
                               double *to) {
    const NAME(exponents) X = {P->Q, P->Q + 1, alpha + m, alpha, slope, POINTS(P), 1};
    for (long col = j0; col < j1; col += COLUMNS) {
        vec E[ROWS * COLUMNS];
        NAME(powers)(&X, col, any, E);
        each (int t = 0; t < ROWS * COLUMNS; t += LANES) {
            NAME(transpose)(E + t);
            each (int lane = 0; lane < LANES; lane++) pairs_at(to + lane * BLOCK + (col - j0) * ROWS + t) = E[t + lane];
        }
    }
}

TARGET static int NAME(forward_groups)(const problem *P, const double *mask, const groups *S, long n0, long n1,
                                       const double *decay, double *V) {
    const long Q = P->Q, C = S->C, Mpad = P->Mpad, in_chunk = GROUP_ROWS / LANES;
    const long vectors = min(FORWARD_ROWS, rounded(n1 - n0, GROUP_ROWS)) / LANES, chunks = vectors / in_chunk;
    vec *work = allocate(sizeof(vec) * (vectors * (Mpad + Q + ROWS * Q) + Q) +
                         sizeof(double) * (GROUP_ROWS + C + 1) * BLOCK + chunks * lists_size(C + 1, GROUP_ROWS));
    if (!work) return 1;
    vec *alpha = work, *r = alpha + vectors * Mpad, *mu = r + vectors * Q, *slope = mu + Q;
    double *E = (double *)(slope + vectors * ROWS * Q), *sums = E + GROUP_ROWS * BLOCK;
    char *memory = (char *)(sums + (C + 1) * BLOCK);
    int clamp[FORWARD_ROWS / LANES];
    lists all[FORWARD_ROWS / GROUP_ROWS];
    const double one = 1, zero = 0;
    for (long first = n0; first < n1; first += FORWARD_ROWS) {
        const long last = min(first + FORWARD_ROWS, n1), used = (last - first + LANES - 1) / LANES;
        for (long d = 0; d < used; d++)
            clamp[d] = NAME(load_rows)(P, first + d * LANES, last, r + d * Q, mu, alpha + d * Mpad, 1);
        for (long i = 0; first + i * GROUP_ROWS < last; i++) {
            const long n = first + i * GROUP_ROWS, rows = min(GROUP_ROWS, last - n);
            all[i] = lists_at(memory + i * lists_size(C + 1, GROUP_ROWS), C + 1, GROUP_ROWS);
            for (long c = 0; c < C; c++) add_list(all + i, rows, mask + c * P->N + n, 1, S->full + c, 0);
            add_list(all + i, S->any_full ? rows : 0, &one, 0, &zero, 0);  // of all rows
            sort_lists(all + i);
        }
        for (long m = 0; m < Mpad; m += ROWS) {
            for (long d = 0; d < used; d++) NAME(load_slopes)(P, m, r + d * Q, slope + d * ROWS * Q);
            for (long j0 = m; j0 < Mpad; j0 += BLOCK / ROWS) {
                const long j1 = min(j0 + BLOCK / ROWS, Mpad), size = (j1 - j0) * ROWS;
                memset(sums, 0, (C + 1) * BLOCK * sizeof(double));
                for (long i = 0; i * in_chunk < used; i++) {
                    for (long d = i * in_chunk; d < min((i + 1) * in_chunk, used); d++) {
                        const vec *own_alpha = alpha + d * Mpad, *own_slope = slope + d * ROWS * Q;
                        double *to = E + (d - i * in_chunk) * LANES * BLOCK;
                        if (clamp[d]) NAME(block_powers)(P, m, j0, j1, 1, own_alpha, own_slope, to);
                        else NAME(block_powers)(P, m, j0, j1, 0, own_alpha, own_slope, to);
                    }
                    NAME(combine_all)(all + i, size, sums, sums, BLOCK, E);
                }
                write_block(S, sums, size, panel_place(Mpad, j0, m), panels_size(Mpad), decay, first > n0, V);
            }
        }
    }
    free(work);
    return 0;
}

// Adds the products of G, E of a block of the panel of m times weights, to k. The weights of rows are BLOCK apart.
INLINE void NAME(add_weighted)(const problem *P, long m, long j0, long j1, int any, const vec *alpha, const vec *slope,
                               const double *weights, vec *k) {
    const NAME(exponents) X = {P->Q, P->Q + 1, alpha + m, alpha, slope, POINTS(P), 1};
    for (long col = j0; col < j1; col += COLUMNS) {
        vec G[ROWS * COLUMNS];
        NAME(powers)(&X, col, any, G);
        each (int t = 0; t < ROWS * COLUMNS; t += LANES) {
            vec w[LANES];
            each (int lane = 0; lane < LANES; lane++) w[lane] = pairs_at(weights + lane * BLOCK + (col - j0) * ROWS + t);
            NAME(transpose)(w);
            each (int i = 0; i < LANES; i++) G[t + i] *= w[i];
        }
        NAME(products)(P, m, col, G, k);
    }
}

TARGET static int NAME(backward_groups)(const problem *P, const double *mask, const groups *S, long n0, long n1,
                                        const double *packed, double *grad_a, double *grad_r, double *grad_mu,
                                        double *grad_z) {
    const long M = P->M, Q = P->Q, C = S->C, ld = Q + 1, Mpad = P->Mpad, block = (C + 1) * BLOCK;
    const long depth = min(BACKWARD_ROWS, 8 + L2 / (Mpad * ld)) / LANES, rows_of = depth * LANES;
    vec *work = allocate(sizeof(vec) * (M * Q + depth * (2 * Q + Mpad + Mpad * ld + ROWS * Q)) +
                         sizeof(double) * rows_of * BLOCK + lists_size(rows_of, C));
    if (!work) return 1;
    vec *dz = work, *r = dz + M * Q, *mu = r + depth * Q, *alpha = mu + depth * Q, *k = alpha + depth * Mpad;
    vec *slope = k + depth * Mpad * ld;
    double *weights = (double *)(slope + depth * ROWS * Q);
    char *memory = (char *)(weights + rows_of * BLOCK);
    int clamp[BACKWARD_ROWS];
    for (long e = 0; e < M * Q; e++) dz[e] = splat(0);
    for (long n = n0; n < n1; n += rows_of) {
        const long rows = min(rows_of, n1 - n), vectors = rounded(rows, LANES) / LANES, share = block / vectors;
        for (long d = 0; d < vectors; d++)
            clamp[d] = NAME(load_rows)(P, n + d * LANES, n1, r + d * Q, mu + d * Q, alpha + d * Mpad, 1);
        lists L = lists_at(memory, rows_of, C);
        for (long d = 0; d < vectors * LANES; d++)  // those past the end have none: their E is 0
            add_list(&L, d < rows ? C : 0, mask + n + d, P->N, S->full, 1);
        sort_lists(&L);
        for (long e = 0; e < vectors * Mpad * ld; e++) k[e] = splat(0);
        const double *own = packed;
        for (long m = 0; m < Mpad; m += ROWS) {
            for (long d = 0; d < vectors; d++) NAME(load_slopes)(P, m, r + d * Q, slope + d * ROWS * Q);
            for (long j0 = m; j0 < Mpad; j0 += BLOCK / ROWS, own += block) {
                const long j1 = min(j0 + BLOCK / ROWS, Mpad);
                NAME(combine_all)(&L, (j1 - j0) * ROWS, weights, own + C * BLOCK, 0, own);
                for (long d = 0; d < vectors; d++) {
                    const vec *own_alpha = alpha + d * Mpad, *own_slope = slope + d * ROWS * Q;
                    const double *w = weights + d * LANES * BLOCK;
                    vec *own_k = k + d * Mpad * ld;
                    for (long e = d * share; e < (d + 1) * share; e += LINE) __builtin_prefetch(own + block + e);  // the next
                    if (clamp[d]) NAME(add_weighted)(P, m, j0, j1, 1, own_alpha, own_slope, w, own_k);
                    else NAME(add_weighted)(P, m, j0, j1, 0, own_alpha, own_slope, w, own_k);
                }
            }
        }
        for (long d = 0; d < vectors; d++)
            NAME(row_gradients)(P, n + d * LANES, n1, r + d * Q, mu + d * Q, k + d * Mpad * ld, grad_a, grad_r, grad_mu,
                                dz);
    }
    for (long e = 0; e < M * Q; e++) grad_z[e] = NAME(lane_sum)(dz[e]);
    free(work);
    return 0;
}

#undef pairs_at

#else

// LINE: numbers in a line of the cache. Sums over FORWARD_ROWS rows are in chunks of GROUP_ROWS, whose E of a block stay in
// the L1 cache; k of up to BACKWARD_ROWS rows, about 8 L2 numbers, stays in the L2 cache. Fewer rows would read g, which
// does not fit it, more often.
enum { BLOCK = 32, LINE = 8, GROUP_ROWS = 96, FORWARD_ROWS = 10 * GROUP_ROWS, BACKWARD_ROWS = 64, L2 = 1 << 16 };

typedef struct {
    long C;
    int any_full;
    double *full;  // (C,): 1 if the group is all rows plus (mask - 1) of them, 0 if it is mask of them
} groups;

// Lists of places, each with start[l + 1] - start[l] of them, and the values by which the numbers there are multiplied. If
// those of each list are `equal`, they are its factor.
typedef struct {
    long lists, *start, *order;
    int equal;
    long *place;
    double *value, *factor;
} lists;

static long lists_size(long most, long length) {
    return rounded((most + 1) * (2 * sizeof(long) + sizeof(double)) + most * length * (sizeof(double) + sizeof(long)), 64);
}

static lists lists_at(char *memory, long most, long length) {
    long *start = (long *)memory;
    double *factor = (double *)(start + 2 * (most + 1)), *value = factor + most + 1;
    start[0] = 0;
    return (lists){0, start, start + most + 1, 1, (long *)(value + most * length), value, factor};
}

// One more list, of the places with a difference between mask and full, of which `size` numbers each are some steps apart
static void add_list(lists *L, long size, const double *mask, long step, const double *full, long full_step) {
    const long first = L->start[L->lists];
    long used = first;
    for (long e = 0; e < size; e++) {
        const double found = mask[e * step] - full[e * full_step];
        if (found == 0) continue;
        L->place[used] = e * BLOCK;
        L->value[used++] = found;
    }
    const double factor = used > first ? L->value[first] : 0;
    for (long u = first; u < used; u++) L->equal &= L->value[u] == factor;
    L->factor[L->lists++] = factor;
    L->start[L->lists] = used;
}

// The order of the lists: by their lengths, so that the processor foresees the ends of loops
static void sort_lists(lists *L) {
    for (long l = 0; l < L->lists; l++) {
        const long count = L->start[l + 1] - L->start[l];
        long i = l;
        for (; i > 0 && L->start[L->order[i - 1] + 1] - L->start[L->order[i - 1]] > count; i--) L->order[i] = L->order[i - 1];
        L->order[i] = l;
    }
}

// Asks for the memory of a block
static inline void prefetch_block(const double *block) {
    for (long e = 0; e < BLOCK; e += LINE) __builtin_prefetch(block + e);
}

// Panels of decay (M,M), or of ones if it is null; null if memory ran out
static double *make_decay(long M, const double *decay) {
    double *panels = malloc(panels_size(M) * sizeof(double));
    if (panels) to_panels(M, decay, panels);
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

// A block of V (C,S), panels of all groups, of `size` numbers from e on, from the sums of its rows, of which the last group
// is that of all of them. Of later rows it is added to V.
static void write_block(const groups *S, const double *sums, long size, long e, long panels, const double *decay, int later,
                        double *V) {
    const double *all = sums + S->C * BLOCK;
    for (long c = 0; c < S->C; c++) {
        const double *own = sums + c * BLOCK, full = S->full[c];
        double *to = V + c * panels + e;
        prefetch_block(to + BLOCK);
        if (later)
            for (long i = 0; i < size; i++) to[i] += (own[i] + full * all[i]) * decay[e + i];
        else
            for (long i = 0; i < size; i++) to[i] = (own[i] + full * all[i]) * decay[e + i];
    }
}

// g (C,S), panels, times decay in the order of the blocks; group C is the sum of those that are `full`.
// W (S), if it is not null: sum_c g V.
static void pack_groups(long Mpad, const groups *S, const double *g, const double *decay, const double *V,
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
}

#endif
