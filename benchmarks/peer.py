# SPDX-License-Identifier: Apache-2.0
"""The same evaluation in another library, by a Python that has it: ``python -m benchmarks.peer gpy M``.

Set OMP_NUM_THREADS and similar variables to 1 first, as ``benchmarks.table`` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.drawn import JITTER, draw
from benchmarks.timing import timed


def gpy(p: dict[str, Any]) -> tuple[Callable[[], Any], float]:
    import GPy

    kernel = GPy.kern.RBF(p["mu"].shape[1], variance=p["variance"], lengthscale=p["lengthscale"], ARD=True)
    model = GPy.models.BayesianGPLVM(
        p["Y"], p["mu"].shape[1], X=p["mu"].copy(), X_variance=p["S"].copy(), Z=p["Z"].copy(), kernel=kernel,
        likelihood=GPy.likelihoods.Gaussian(variance=p["noise"]),
    )  # fmt: skip
    bound, at, count = float(model.log_likelihood().item()), model.optimizer_array.copy(), [0]

    def step() -> None:  # a tiny change, so that no cached result is returned
        count[0] += 1
        model._objective_grads(at * (1 + 1e-12 * count[0]))

    return step, bound


def gpflow(p: dict[str, Any]) -> tuple[Callable[[], Any], float]:
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_jitter(JITTER)
    kernel = gpflow.kernels.SquaredExponential(variance=p["variance"], lengthscales=p["lengthscale"])
    model = gpflow.models.BayesianGPLVM(p["Y"], p["mu"], p["S"], kernel, inducing_variable=p["Z"])
    model.likelihood.variance.assign(p["noise"])

    @tf.function
    def value_and_gradients() -> Any:
        with tf.GradientTape() as tape:
            bound = model.elbo()
        return bound, tape.gradient(bound, model.trainable_variables)

    def step() -> float:
        bound, gradients = value_and_gradients()
        for gradient in gradients:
            gradient.numpy()
        return float(bound)

    return step, step()


if __name__ == "__main__":
    library, size = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    step, bound = {"gpy": gpy, "gpflow": gpflow}[library](draw(size))
    print(json.dumps({"library": library, "size": size, **timed(step, runs), "bound": bound}))
