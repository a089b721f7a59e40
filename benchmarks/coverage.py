# SPDX-License-Identifier: Apache-2.0
"""Coverage of predictive intervals on data that were drawn from the model: ``python -m benchmarks.coverage``.

For each likelihood and seed a latent path, functions and outputs are drawn from the model itself, a quarter of the
entries is hidden, a new model is trained on the rest, and the hidden entries are predicted. Prints one JSON line for
each likelihood: the percentages of hidden entries whose probability integral transform lies inside the central 50, 80
and 95 %. For discrete outputs it is randomised, because an interval of whole numbers holds more than its probability.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White
from pyro_vgpds.likelihoods import Bernoulli, Binomial, Likelihood, NegativeBinomial, Poisson, StudentT

LEVELS = (0.5, 0.8, 0.95)
MAKE: dict[str, tuple[Callable[[], Likelihood], Callable[[], Likelihood], float]] = {
    # the likelihood that draws, the one that is trained, and the mean of the functions
    "student-t": (lambda: StudentT(scale=0.3, df=4.0), StudentT, 0.0),
    "bernoulli": (Bernoulli, Bernoulli, 0.0),
    "binomial": (lambda: Binomial(10), lambda: Binomial(10), 0.0),
    "negative-binomial": (lambda: NegativeBinomial(5.0), NegativeBinomial, -0.5),
    "poisson": (Poisson, Poisson, 1.0),
}


def draw(likelihood: Likelihood, mean: float, frames: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Times and outputs from the model."""
    t = torch.linspace(0.0, 6.0, frames)
    model = VGPDS(
        Matern32(1.0, 1.0) + White(1e-3), ARDRBF(1.0, [0.5, 0.5]) + Bias(0.1), torch.randn(10, 2), None,
        torch.full((outputs,), mean), likelihood=likelihood,
    )  # fmt: skip
    with torch.no_grad():
        y: Tensor = model(Sequences(t))
    return t, y


def transforms(name: str, seed: int, frames: int, outputs: int, num_steps: int) -> Tensor:
    """The probability integral transforms of the hidden entries."""
    drawn, trained, mean = MAKE[name]
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    t, y = draw(drawn(), mean, frames, outputs)
    hidden = torch.rand(y.shape) < 0.25
    data = Sequences(t, torch.where(hidden, torch.nan, y))
    model = VGPDS.from_data(data, 2, 20, likelihood=trained())
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=num_steps, progress=False)
    return pit(Posterior(model, guide, data), y, hidden)


def pit(post: Posterior, y: Tensor, hidden: Tensor) -> Tensor:
    """P(output < y), plus a random share of P(output = y) for discrete outputs."""
    found = post.impute(fill=False)
    upper = found.cdf(y)
    lower = torch.where(found.is_whole, found.cdf(y - 1.0), upper)
    return (lower + torch.rand(y.shape) * (upper - lower))[hidden]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--likelihood", choices=list(MAKE), action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--frames", type=int, default=150)
    parser.add_argument("--outputs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in args.likelihood or MAKE:
        start = time.process_time()
        each = [transforms(name, seed, args.frames, args.outputs, args.steps) for seed in range(args.seeds)]
        row = {
            f"in {100 * p:.0f} %": [((u - 0.5).abs() <= 0.5 * p).double().mean().item() for u in each] for p in LEVELS
        }
        found = {key: [round(100.0 * np.mean(v), 2), round(100.0 * np.std(v), 2)] for key, v in row.items()}
        print(
            json.dumps({"likelihood": name, "seeds": args.seeds, **found, "cpu_s": time.process_time() - start}),
            flush=True,
        )


if __name__ == "__main__":
    main()
