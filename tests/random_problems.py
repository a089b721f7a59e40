# SPDX-License-Identifier: Apache-2.0
"""Random training problems of all sorts: sizes, scales, uneven times, noise from none to all, gaps, many sequences."""

from dataclasses import dataclass

import numpy as np

from pyro_vgpds import Sequences
from pyro_vgpds.kernels import RBF, Bias, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, White


@dataclass
class Problem:
    data: Sequences
    latent_dim: int
    num_inducing: int
    temporal: Kernel
    noise_per_output: bool


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, rng.integers(1, 5))
    if lengths.sum() < 3:
        lengths[0] += 3
    outputs = int(rng.choice([1, 2, 5, 20, 100]))
    scale, unit = 10.0 ** rng.uniform(-4, 4), 10.0 ** rng.uniform(-2, 2)
    t = [np.cumsum(rng.exponential(1.0, n) + 1e-3) * unit for n in lengths]
    noise = rng.choice([0.0, 0.01, 0.3, 1.0])  # the share that is noise
    speed, phase = rng.uniform(0.2, 1.5, outputs) / unit, rng.uniform(0, 6, outputs)
    y = [np.sin(a[:, None] * speed + phase) * (1 - noise) + noise * rng.standard_normal((len(a), outputs)) for a in t]
    y = [scale * (part + rng.choice([0.0, 100.0])) for part in y]
    missing = rng.choice([0.0, 0.1, 0.5])
    for part in y:
        part[rng.random(part.shape) < missing] = np.nan
    rows = np.concatenate(y)
    seen = (~np.isnan(rows)).any(0)
    if not seen.any():
        return random_problem(seed + 10_000)
    y = [part[:, seen] for part in y]
    data = Sequences(t, y)
    varies = bool((data.output_variances > 0).all())
    make = [RBF, Matern12, Matern32, Matern52, Periodic, lambda: RBF() * Periodic(), lambda: Linear(1.0 / unit**2)]
    temporal = make[rng.integers(len(make))]() + White(10.0 ** rng.uniform(-4, -1)) + Bias(0.1)
    if rng.random() < 0.15:
        temporal = White(1.0).fix()
    return Problem(
        data,
        int(rng.integers(1, min(6, data.num_outputs) + 1)),
        int(rng.integers(1, min(25, data.num_frames) + 1)),
        temporal,
        bool(rng.random() < 0.2 and varies and missing < 0.5 and noise > 0),
    )
