# SPDX-License-Identifier: Apache-2.0
"""One evaluation of the bound with all its gradients: ``python -m benchmarks.bound --size M --threads 1``.

Sizes S, M, L and XL are Bayesian GP-LVMs that other libraries can do too; ``mocap`` has the sizes of the paper's
motion capture data, 31 sequences with a Matérn 3/2 prior. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks.drawn import SIZES
from benchmarks.problems import make
from benchmarks.timing import timed
from pyro_vgpds import Collapsed_ELBO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=[*SIZES, "mocap"], default="S")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    model, guide, data = make(args.size, getattr(torch, args.dtype))
    elbo = Collapsed_ELBO()
    bound = -elbo.loss(model, guide, data)
    parameters = [*model.parameters(), *guide.parameters()]

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        elbo.loss_and_grads(model, guide, data)

    print(json.dumps({"size": args.size, "dtype": args.dtype, **timed(step, args.runs), "bound": bound}))


if __name__ == "__main__":
    main()
