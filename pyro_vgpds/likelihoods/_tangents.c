// SPDX-License-Identifier: Apache-2.0
//
// Tangents of log-probabilities for all entries in one pass, with exponentials and logarithms of whole vectors.
//
// Logistic, r = E f^2 and c = sqrt(r), for entries y that were observed, and zeros for others:
//   weight = tanh(c/2) / (2c) = -expm1(-c) / (2c (1 + exp(-c))),   value = weight r/2 - c/2 - log1p(exp(-c))
// Student-t, with the width w, the power k, the constant c and r = E f^2 - 2 y E f + y^2:
//   weight = -2k / (w + r),   linear = weight y,   value = c + k log1p(r/w) + weight (r - y^2)/2
//   and for gradients g in these three, with total = weight (g_weight + g_linear y + g_value (r - y^2)/2):
//   dL/dk = sum total/k + g_value log1p(r/w),   dL/dc = sum g_value,
//   dL/dw = sum total weight/(2k) - g_value (weight/2 + k/w)
// Negative binomial, with b = y + r, the logistic weight and value for b = 1, and ways, a function of y and r:
//   weight = b weight_1,   linear = (y - r)/2,   value = ways + b value_1,
//   dL/dr = sum g_weight weight_1 - g_linear/2 + g_value (value_1 + dways/dr)
//
// The file includes itself once for every instruction set: the part under #ifdef LANES is compiled each time.

#ifdef LANES

typedef double NAME(vec) __attribute__((vector_size(8 * LANES), aligned(8)));
typedef int64_t NAME(bits) __attribute__((vector_size(8 * LANES), aligned(8)));
#define vec NAME(vec)
#define bits NAME(bits)

// The first `count` numbers, and copies of the last one after them
INLINE vec NAME(load)(const double *x, long count) {
    if (count >= LANES) return *(const vec *)x;
#if LANES == 8
    return _mm512_mask_loadu_pd(_mm512_set1_pd(x[count - 1]), (__mmask8)((1 << count) - 1), x);
#else
    vec out = splat(x[count - 1]);
    for (long i = 0; i < count; i++) out[i] = x[i];
    return out;
#endif
}
INLINE void NAME(store)(double *x, vec value, long count) {
    if (count >= LANES) *(vec *)x = value;
#if LANES == 8
    else _mm512_mask_storeu_pd(x, (__mmask8)((1 << count) - 1), value);
#else
    else
        for (long i = 0; i < count; i++) x[i] = value[i];
#endif
}
INLINE vec NAME(select)(bits where, vec yes, vec no) { return (vec)((where & (bits)yes) | (~where & (bits)no)); }
INLINE vec NAME(root)(vec x) {
#if LANES == 8
    return _mm512_sqrt_pd(x);
#endif
    for (int i = 0; i < LANES; i++) x[i] = sqrt(x[i]);
    return x;
}
#define load NAME(load)
#define store NAME(store)
#define select NAME(select)

// exp(x) - 1 for x <= 0: with k = round(x log2(e)) and the rest f it is 2^k (2^f - 1) + (2^k - 1)
INLINE vec NAME(expm1)(vec x) {
    const double shift = 0x1.8p52 + 1023;  // as in _weighted.c
    const vec low = splat(-1000.0), y = select((bits)(x * LOG2E < low), low, x * LOG2E), k = y + shift;
    const vec f = y - (k - shift), power = (vec)((bits)k << 52);
    vec p = splat(exp2_polynomial[0]);
    for (int d = 1; d < DEGREE; d++) p = p * f + exp2_polynomial[d];
    return power * (p * f) + (power - 1);
}

// 2 artanh(s), a series of s^2
INLINE vec NAME(twice_artanh)(vec s, int terms) {
    const vec square = s * s;
    vec total = splat(0);
    for (int i = terms; i-- > 0;) total = total * square + 2.0 / (2 * i + 1);
    return total * s;
}

// log(1 + x) for 0 <= x <= 1: 2 artanh(s) with s = x / (2 + x) <= 1/3
INLINE vec NAME(log1p_small)(vec x) { return NAME(twice_artanh)(x / (2 + x), 17); }

// log(1 + x) for x >= 0: 1 + x = 2^k m with m near 1, and what the sum has lost of x
INLINE vec NAME(log1p)(vec x) {
    const vec one = 1 + x, lost = (x - (one - 1)) / one;
    const vec two_52 = splat(0x1p52), raised = (vec)((bits)((bits)one >> 52) | (bits)two_52);
    vec k = raised - (0x1p52 + 1023), m = (vec)(((bits)one & 0x000fffffffffffffLL) | (bits)splat(1.0));
    const bits large = (bits)(m > splat(0x1.6a09e667f3bcdp0));
    m = select(large, m / 2, m);
    k = select(large, k + 1, k);
    return k * 0x1.62e42fefa39efp-1 + (NAME(twice_artanh)((m - 1) / (m + 1), 11) + lost);
}

TARGET static void NAME(logistic)(long count, const double *y, const double *square, double least, double *weight,
                                  double *value) {
    for (long e = 0; e < count; e += LANES) {
        const long rest = count - e;
        const vec own = load(y + e, rest), given = load(square + e, rest), floor = splat(least);
        const bits seen = (bits)(own == own);
        const vec r = select((bits)(given < floor), floor, given), c = NAME(root)(r), below = NAME(expm1)(-c);
        const vec w = -0.5 * below / ((below + 2) * c);
        store(weight + e, select(seen, w, splat(0)), rest);
        store(value + e, select(seen, 0.5 * w * r - 0.5 * c - NAME(log1p_small)(below + 1), splat(0)), rest);
    }
}

// Numbers for `count` outputs from a table with a row of D for each count, or with one for each entry if it has no rows
INLINE vec NAME(look_up)(const counts *S, const double *table, vec y, long e, long d, long count) {
    if (!S->rows) return load(table + e, count);
    vec out = splat(0);
    for (long i = 0; i < LANES && i < count; i++) out[i] = table[(long)y[i] * S->D + d + i];
    return out;
}

TARGET static void NAME(negative_binomial)(const counts *S, const double *one, double *weight, double *linear,
                                           double *value) {
    for (long n = 0; n < S->N; n++)
        for (long d = 0; d < S->D; d += LANES) {
            const long e = n * S->D + d, rest = S->D - d;
            const vec own = load(S->y + e, rest), r = load(S->dispersion + d, rest), zero = splat(0);
            const bits seen = (bits)(own == own);
            const vec y = select(seen, own, zero), b = y + r, ways = NAME(look_up)(S, S->ways, y, e, d, rest);
            store(weight + e, b * load(one + e, rest), rest);  // 0 if y was not observed, as is the value for b = 1
            store(linear + e, select(seen, 0.5 * (y - r), zero), rest);
            store(value + e, select(seen, ways + b * load(one + S->N * S->D + e, rest), zero), rest);
        }
}

// The gradients in the dispersions, (D,). `step`: 0 if all entries have the same g_value.
TARGET static void NAME(dispersion_gradients)(const counts *S, const double *one, const double *g_weight,
                                              const double *g_linear, const double *g_value, long step, double *grad) {
    for (long n = 0; n < S->N; n++)
        for (long d = 0; d < S->D; d += LANES) {
            const long e = n * S->D + d, rest = S->D - d;
            const vec own = load(S->y + e, rest), zero = splat(0), gv = step ? load(g_value + e, rest) : splat(*g_value);
            const bits seen = (bits)(own == own);
            const vec in_ways = NAME(look_up)(S, S->ways, select(seen, own, zero), e, d, rest);
            const vec more = gv * (load(one + S->N * S->D + e, rest) + in_ways) - 0.5 * load(g_linear + e, rest);
            const vec term = load(g_weight + e, rest) * load(one + e, rest) + more;
            store(grad + d, load(grad + d, rest) + select(seen, term, zero), rest);
        }
}

// Of N rows of D entries; width, power and constant are (D,). logs: log(1 + r/w) for the gradients.
TARGET static void NAME(student)(const student *S, double least, double *weight, double *linear, double *value,
                                 double *logs) {
    for (long n = 0; n < S->N; n++)
        for (long d = 0; d < S->D; d += LANES) {
            const long e = n * S->D + d, rest = S->D - d;
            const vec own = load(S->y + e, rest), width = load(S->width + d, rest), power = load(S->power + d, rest);
            const bits seen = (bits)(own == own);
            const vec zero = splat(0), floor = splat(least), y = select(seen, own, zero);
            vec r = load(S->square + e, rest) - y * (2 * load(S->mean + e, rest) - y);
            r = select((bits)(r < floor), floor, r);
            const vec w = select(seen, -2 * power / (width + r), zero), l = select(seen, NAME(log1p)(r / width), zero);
            const vec both = load(S->constant + d, rest) + power * l + 0.5 * w * (r - y * y);
            store(weight + e, w, rest);
            store(linear + e, w * y, rest);
            store(value + e, select(seen, both, zero), rest);
            store(logs + e, l, rest);
        }
}

// Sums over the rows, (SUMS, D): of total, of total weight, and for entries that were observed of g_value log, g_value weight
// and g_value. `step`: 0 if all entries have the same g_value.
TARGET static void NAME(student_gradients)(const student *S, double least, const double *weight, const double *logs,
                                           const double *g_weight, const double *g_linear, const double *g_value,
                                           long step, double *sums) {
    const long D = S->D;
    for (long n = 0; n < S->N; n++)
        for (long d = 0; d < D; d += LANES) {
            const long e = n * D + d, rest = D - d;
            const vec own = load(S->y + e, rest), w = load(weight + e, rest), zero = splat(0), floor = splat(least);
            const bits seen = (bits)(own == own);
            const vec y = select(seen, own, zero);
            const vec gv = select(seen, step ? load(g_value + e, rest) : splat(*g_value), zero);
            vec r = load(S->square + e, rest) - y * (2 * load(S->mean + e, rest) - y);
            r = select((bits)(r < floor), floor, r);
            const vec total = w * (load(g_weight + e, rest) + load(g_linear + e, rest) * y + 0.5 * gv * (r - y * y));
            const vec terms[] = {total, total * w, gv * load(logs + e, rest), gv * w, gv};
            for (int i = 0; i < SUMS; i++) store(sums + i * D + d, load(sums + i * D + d, rest) + terms[i], rest);
        }
}

#undef load
#undef store
#undef select
#undef vec
#undef bits
#undef LANES
#undef NAME
#undef TARGET

#else

#include "../mapping/_vectors.h"

enum { SUMS = 5 };
typedef struct {
    long N, D;
    const double *y, *mean, *square;         // (N,D): outputs, E f and E f^2
    const double *width, *power, *constant;  // (D,)
} student;

typedef struct {
    long N, D, rows;
    const double *y, *dispersion, *ways;  // (N,D), (D,), and (rows, D) for the counts 0, 1 ..., or (N,D) if rows is 0
} counts;

#ifdef WITH_AVX
#define TARGET FOR_AVX512
#define NAME(x) x##_avx512
#define LANES 8
#include "_tangents.c"
#define TARGET FOR_AVX2
#define NAME(x) x##_avx2
#define LANES 4
#include "_tangents.c"
#endif
#define TARGET
#define NAME(x) x##_generic
#define LANES 2
#include "_tangents.c"

// Weight and value for `count` entries with outputs y, NaN if they were not observed, and E f^2, which is at least `least`
int tangents_logistic(long count, const double *y, const double *square, double least, double *weight, double *value) {
    DISPATCH(logistic, count, y, square, least, weight, value);
    return 0;
}

// Weight, linear part and value, and log(1 + r/w), (N,D) each, from y, mean and square (N,D); width, power, constant (D,)
int tangents_student(long N, long D, const double *y, const double *mean, const double *square, const double *width,
                     const double *power, const double *constant, double least, double *weight, double *linear,
                     double *value, double *logs) {
    const student S = {N, D, y, mean, square, width, power, constant};
    DISPATCH(student, &S, least, weight, linear, value, logs);
    return 0;
}

// The sums (5,D) of which the gradients are made: see student_gradients
int tangents_student_gradients(long N, long D, const double *y, const double *mean, const double *square, double least,
                               const double *weight, const double *logs, const double *g_weight,
                               const double *g_linear, const double *g_value, long step, double *sums) {
    const student S = {N, D, y, mean, square, NULL, NULL, NULL};
    memset(sums, 0, SUMS * D * sizeof(double));
    DISPATCH(student_gradients, &S, least, weight, logs, g_weight, g_linear, g_value, step, sums);
    return 0;
}

// Weight, linear part and value (N,D) from y (N,D), dispersion (D,), ways, and what tangents_logistic has found, one (2,N,D)
int tangents_negative_binomial(long N, long D, long rows, const double *y, const double *dispersion, const double *ways,
                               const double *one, double *weight, double *linear, double *value) {
    const counts S = {N, D, rows, y, dispersion, ways};
    DISPATCH(negative_binomial, &S, one, weight, linear, value);
    return 0;
}

// The gradients in the dispersions, (D,), with those of ways in place of ways
int tangents_dispersion_gradients(long N, long D, long rows, const double *y, const double *ways, const double *one,
                                  const double *g_weight, const double *g_linear, const double *g_value, long step,
                                  double *grad) {
    const counts S = {N, D, rows, y, NULL, ways};
    memset(grad, 0, D * sizeof(double));
    DISPATCH(dispersion_gradients, &S, one, g_weight, g_linear, g_value, step, grad);
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tangents", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__tangents(void) { return PyModule_Create(&definition); }
#endif

#endif
