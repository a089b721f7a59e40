# SPDX-License-Identifier: Apache-2.0
"""A step with outputs that are not Gaussian, beside Gaussian ones: ``python -m benchmarks.likelihoods``.

Each output has missing entries of its own, so Gaussian outputs have a mask for each, which is the nearest problem: one
Ψ2 and one Cholesky factor for each output. The likelihoods take turns. Prints one JSON line for each: the median CPU
seconds of a step, and their ratio to the Gaussian ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

import numpy as np
import pyro
import torch

from benchmarks.timing import alternately
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences
from pyro_vgpds.kernels import Bias, Matern32, White
from pyro_vgpds.likelihoods import Bernoulli, Likelihood, NegativeBinomial, Poisson, StudentT

MAKE: dict[str, Callable[[], Likelihood | None]] = {
    "gaussian": lambda: None,
    "student-t": StudentT,
    "bernoulli": Bernoulli,
    "negative-binomial": NegativeBinomial,
    "poisson": Poisson,
}


def outputs(name: str, f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Outputs (N, D) with the functions ``f``, a tenth of them missing."""
    if name in ("negative-binomial", "poisson"):
        y = rng.poisson(np.exp(f)).astype(float)
    elif name == "bernoulli":
        y = (rng.random(f.shape) < 1.0 / (1.0 + np.exp(-f))).astype(float)
    else:
        y = f + 0.3 * rng.standard_normal(f.shape)
    y[rng.random(f.shape) < 0.1] = np.nan
    return y


def step_of(name: str, frames: int, inducing: int, width: int) -> Callable[[], None]:
    """A step of training without the optimiser: the bound, its gradients, and new factors of the outputs."""
    rng = np.random.default_rng(0)
    t = np.arange(frames) / 20.0
    x = np.stack([np.sin(t), np.cos(0.7 * t), np.sin(0.3 * t)], 1)
    y = outputs(name, np.tanh(x @ rng.standard_normal((3, width))), rng)
    pyro.set_rng_seed(0)
    data = Sequences(t, y)
    kernel = Matern32(lengthscale=1.0) + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, 5, inducing, temporal=kernel, likelihood=MAKE[name]())
    guide = AutoOpperArchambeau(model)
    elbo, parameters = Collapsed_ELBO(), [*model.parameters(), *guide.parameters()]

    def step() -> None:
        pyro.clear_param_store()  # of the model whose turn was before
        for parameter in parameters:
            parameter.grad = None
        elbo.loss_and_grads(model, guide, data)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--inducing", type=int, default=50)
    parser.add_argument("--outputs", type=int, default=100)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--likelihoods", nargs="+", choices=list(MAKE), default=list(MAKE))
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = ["gaussian", *(name for name in args.likelihoods if name != "gaussian")]
    steps = {name: step_of(name, args.frames, args.inducing, args.outputs) for name in names}
    times = alternately(steps, args.runs)
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["gaussian"], strict=True))
        print(json.dumps({"likelihood": name, "cpu_median": statistics.median(found), "ratio": round(ratio, 2)}))


if __name__ == "__main__":
    main()
