// SPDX-License-Identifier: Apache-2.0
// A step of Adam for many small parameters in one call; training/adam.py does the same with operations of torch.

#include <Python.h>

#include <math.h>

_Static_assert(sizeof(long) >= 8, "sizes and indices are computed in 64 bits");

// Parameter i has sizes[i] numbers and moves by lengths[i] average / (sqrt(square) / roots[i] + eps). The new averages of all
// gradients and of their squares are written one parameter after the other.
int adam_step(long count, const long *sizes, const double *lengths, const double *roots, double first, double second,
              double eps, double *const *parameters, const double *const *gradients, const double *const *averages,
              const double *const *squares, double *average, double *square) {
    for (long i = 0; i < count; average += sizes[i], square += sizes[i], i++)
        for (long k = 0; k < sizes[i]; k++) {
            const double g = gradients[i][k], old = averages[i][k];
            average[k] = old + (1.0 - first) * (g - old);
            square[k] = second * squares[i][k] + (1.0 - second) * g * g;
            parameters[i][k] += lengths[i] * average[k] / (sqrt(square[k]) / roots[i] + eps);
        }
    return 0;
}

#ifdef Py_LIMITED_API
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_adam", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__adam(void) { return PyModule_Create(&definition); }
#endif
