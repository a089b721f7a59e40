# SPDX-License-Identifier: Apache-2.0
"""Generated data, for demonstrations and tests that need no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyro_vgpds.sequences import Sequences

__all__ = ["Dataset", "make_sequences"]


@dataclass(frozen=True)
class Dataset:
    """Sequences with what is known about them."""

    t: list[np.ndarray]  #: times, (N_s,) for each sequence
    y: list[np.ndarray]  #: outputs, (N_s, D)
    latent: list[np.ndarray]  #: the latent path that made them, (N_s, Q)
    description: str

    def sequences(self) -> Sequences:
        """The data as :class:`~pyro_vgpds.Sequences`."""
        return Sequences(self.t, self.y)


def make_sequences(
    num_sequences: int = 4,
    num_outputs: int = 30,
    length: tuple[int, int] = (40, 70),
    noise: float = 0.1,
    missing: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """Sequences of unequal length and uneven times that share one smooth, nonlinear map from a two-dimensional path.

    The path is a cycle whose speed and radius drift from sequence to sequence; each output is a random smooth function
    of it (a few random Fourier features), so that no linear model of two dimensions explains the data.

    :param length: the shortest and the longest sequence, in frames.
    :param noise: standard deviation of the noise; the outputs have unit variance without it.
    :param missing: share of the entries that are NaN.
    :raises ValueError: where a size is not positive, or ``missing`` not in [0, 1).
    """
    if num_sequences < 1 or num_outputs < 1 or not 1 <= length[0] <= length[1]:
        raise ValueError(f"sizes must be positive, but got {num_sequences=}, {num_outputs=}, {length=}.")
    if not 0.0 <= missing < 1.0 or noise < 0.0:
        raise ValueError(f"missing must be in [0, 1) and noise >= 0, but got {missing=}, {noise=}.")
    rng = np.random.default_rng(seed)
    t, latent = [], []
    for _ in range(num_sequences):
        n = int(rng.integers(length[0], length[1] + 1))
        times = np.cumsum(rng.uniform(0.05, 0.15, n))
        speed, radius, phase = rng.uniform(1.2, 2.0), rng.uniform(0.8, 1.3), rng.uniform(0, 2 * np.pi)
        angle = speed * times + phase
        t.append(times)
        latent.append(radius * np.stack([np.cos(angle), np.sin(angle)], 1))
    features = 6
    frequencies = rng.standard_normal((2, features, num_outputs))
    shifts, weights = rng.uniform(0, 2 * np.pi, (features, num_outputs)), rng.standard_normal((features, num_outputs))
    clean = [(weights * np.cos(np.einsum("nq,qfd->nfd", x, frequencies) + shifts)).sum(1) for x in latent]
    scale = np.concatenate(clean).std(0)
    y = [part / scale + noise * rng.standard_normal(part.shape) for part in clean]
    for part in y:
        part[rng.random(part.shape) < missing] = np.nan
    return Dataset(t, y, latent, f"{num_sequences} sequences on a drifting cycle, {num_outputs} outputs")
