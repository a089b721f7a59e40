# SPDX-License-Identifier: Apache-2.0
"""One model, trained by several processes, each of which reads recordings of its own.

``torchrun --nproc-per-node 2 examples/torchrun.py --steps 40 --output model.safetensors``

The same command with ``--nnodes`` and ``--rdzv-endpoint`` runs it on several machines. Started again after an
interruption, it continues from its checkpoint, also with another number of processes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, distributed, fit, load, save
from pyro_vgpds.kernels import Bias, Matern32, White

RECORDINGS = 8  # of which each process reads some


def read(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and outputs of one recording. Yours would be read from a file."""
    rng = np.random.default_rng(number)
    t = 0.1 * np.arange(rng.integers(40, 60))
    y = np.sin(2.0 * t[:, None] + 0.3 * number + np.arange(12)) ** 3
    return t, y + 0.05 * rng.standard_normal(y.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("model.safetensors"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # one core for each process
    pyro.set_rng_seed(0)
    with distributed.join() as rank:
        count = int(os.environ.get("WORLD_SIZE", 1))
        numbers = np.array_split(np.arange(RECORDINGS), count)[rank]  # the same order for any number of processes
        t, y = zip(*(read(number) for number in numbers), strict=True)
        data = distributed.share(Sequences(list(t), list(y)))

        # from here, the code is that of one process; all processes call the same functions
        model = VGPDS.from_data(data, latent_dim=3, num_inducing=20, temporal=Matern32() + White(1e-2) + Bias(0.1))
        guide = AutoOpperArchambeau(model)
        checkpoint = args.output.with_suffix(".checkpoint")
        result = fit(
            model, guide, data, num_steps=args.steps, warmup=4, checkpoint=checkpoint,
            resume=checkpoint if checkpoint.exists() else None,
        )  # fmt: skip
        save(args.output, model, guide, data)  # one file, with the sequences of all processes
        if rank == 0:
            print(result)

    if rank == 0:  # predictions need one process
        ahead = Posterior(*load(args.output)).forecast([6.0, 6.1], sequence=0)
        print(ahead.mean.shape)


if __name__ == "__main__":
    main()
