// SPDX-License-Identifier: Apache-2.0
// What the compiled sums have in common: 2^x by a polynomial, memory, the words for vectors of any instruction set, and the
// choice between functions of several ones.

#ifdef Py_LIMITED_API
#include <Python.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

#define LOG2E 0x1.71547652b82fep0
#define INLINE TARGET static inline __attribute__((always_inline))
#define NOINLINE TARGET static __attribute__((noinline))
#define splat(x) ((x) - (vec){0})
#define min(x, y) ((x) < (y) ? (x) : (y))

// Minimax polynomial of 2^f on |f| <= 1/2, highest degree first (relative error 2e-17). Not const, so that the compiler
// reads it as scalars to broadcast rather than folding it into full vectors in memory.
enum { DEGREE = 11 };
__attribute__((visibility("hidden"))) double exp2_polynomial[DEGREE + 1] = {
    0x1.c063841f3a21dp-32, 0x1.e605f964b639dp-28, 0x1.b54167a1b0034p-24, 0x1.62bfd49ededd3p-20,
    0x1.ffcbee3b0a61cp-17, 0x1.43091309610fcp-13, 0x1.5d87fe7bbbe09p-10, 0x1.3b2ab6fba1e1cp-7,
    0x1.c6b08d7048f31p-5,  0x1.ebfbdff82c598p-3,  0x1.62e42fefa39f3p-1,  1.0};

static inline void *allocate(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

static inline long rounded(long count, long unit) { return (count + unit - 1) / unit * unit; }

// The functions of the largest vectors that the processor has: those of AVX-512 and AVX2, or of AVX2, or generic ones only
#if defined(__x86_64__) && !defined(PYRO_VGPDS_GENERIC) && !defined(MIDPOINT_LANES)
#include <immintrin.h>
#define WITH_AVX
#define FOR_AVX512 __attribute__((target("avx512f")))
#define FOR_AVX2 __attribute__((target("avx2,fma")))
#define DISPATCH_AVX2(function, ...)                                                                  \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? function##_avx2(__VA_ARGS__)   \
                                                                     : function##_generic(__VA_ARGS__))
#define DISPATCH(function, ...)                                         \
    (__builtin_cpu_supports("avx512f") ? function##_avx512(__VA_ARGS__) \
                                       : DISPATCH_AVX2(function, __VA_ARGS__))
#else
#define DISPATCH_AVX2(function, ...) function##_generic(__VA_ARGS__)
#define DISPATCH(function, ...) function##_generic(__VA_ARGS__)
#endif
