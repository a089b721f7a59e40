// SPDX-License-Identifier: Apache-2.0
// A step of Adam for many small parameters in two calls, and copies of them in one; training/adam.py and
// training/bundle.py do the same with operations of torch.

#include <Python.h>

#include <math.h>
#include <string.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

// The rounding is that of torch's kernels, because training multiplies a difference in the last digit by a million within
// ten steps. They round x y + z once on processors with such an instruction; fma does so on all.
static double multiply_add(int fused, double x, double y, double z) { return fused ? fma(x, y, z) : x * y + z; }

// Parameter i has sizes[i] numbers. The averages of all gradients and of their squares are vectors, with one parameter after
// the other; those of a parameter without a gradient, a null pointer, stay. first > 1/2: otherwise lerp of torch has another
// form. fused: whether torch rounds x y + z once.
int adam_averages(long count, const long *sizes, double first, double second, int fused, const double *const *gradients,
                  const double *old_average, const double *old_square, double *average, double *square) {
    for (long i = 0, at = 0; i < count; i++)
        for (long k = 0; k < sizes[i]; k++, at++) {
            const double g = gradients[i] ? gradients[i][k] : 0.0, old = old_average[at];
            average[at] = gradients[i] ? multiply_add(fused, 1.0 - first, g - old, old) : old;
            square[at] = gradients[i] ? multiply_add(fused, (1.0 - second) * g, g, second * old_square[at]) : old_square[at];
        }
    return 0;
}

// Parameter i moves by rates[i] length average / (1 - first^n) / (root / sqrt(1 - second^n) + eps) at its step n = steps[i],
// with root the square root of its average square, which is an argument because that of torch is not always the nearest
// number. One without a gradient stays.
int adam_move(long count, const long *sizes, const long *steps, const double *rates, double length, double first,
              double second, double eps, const double *const *gradients, const double *average, const double *root,
              double *const *parameters) {
    for (long i = 0; i < count; average += sizes[i], root += sizes[i], i++) {
        if (!gradients[i]) continue;
        const double n = (double)steps[i], factor = -(rates[i] * length / (1.0 - pow(first, n)));
        const double scale = sqrt(1.0 - pow(second, n));
        for (long k = 0; k < sizes[i]; k++) parameters[i][k] += factor * average[k] / (root[k] / scale + eps);
    }
    return 0;
}

// The numbers of tensors, one after the other
int bundle_copy(long count, const long *sizes, const double *const *tensors, double *target) {
    for (long i = 0; i < count; target += sizes[i], i++)
        if (sizes[i]) memcpy(target, tensors[i], sizeof(double) * sizes[i]);  // the address of no numbers may be null
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_adam", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__adam(void) { return PyModule_Create(&definition); }
#endif
