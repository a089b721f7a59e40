# SPDX-License-Identifier: Apache-2.0
"""The problems that are timed: data and one point in parameter space, the same for every library."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Sequences
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White

#             N      D     Q  M
SIZES = {
    "S": (500, 50, 5, 50),
    "M": (2613, 59, 9, 100),
    "L": (1000, 1000, 9, 50),
    "XL": (10000, 60, 5, 100),
}
JITTER = 1e-8  # on the diagonal of K_MM, in every library
MOCAP_SEED = 35


def draw(size: str) -> dict[str, Any]:
    """Data Y and parameters of a Bayesian GP-LVM; S is the variance of the factorised q(X)."""
    n, d, q, m = SIZES[size]
    rng = np.random.default_rng(0)
    mu = rng.standard_normal((n, q))
    y = np.sin(mu @ rng.standard_normal((q, d))) + 0.3 * rng.standard_normal((n, d))
    s = 0.05 + 0.45 * rng.random((n, q))
    z = rng.standard_normal((m, q))
    return {
        "Y": y, "mu": mu, "S": s, "Z": z, "variance": 1.3, "lengthscale": np.linspace(0.8, 2.0, q), "noise": 0.1,
    }  # fmt: skip


def gplvm(size: str) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """A size of ``SIZES`` as our model: with White(1.0) as the temporal kernel, q(X) = N(mu, S) factorises."""
    p = draw(size)
    data = Sequences(np.arange(len(p["Y"])), p["Y"])
    model = VGPDS(
        White(1.0).fix(),
        ARDRBF(p["variance"], p["lengthscale"] ** -2.0),
        inducing=torch.from_numpy(p["Z"]),
        noise=p["noise"],
        output_mean=torch.zeros(data.num_outputs, dtype=torch.float64),
        jitter=JITTER,
    )
    mu, s = torch.from_numpy(p["mu"]), torch.from_numpy(p["S"])
    return model, AutoOpperArchambeau(model, mean_bar=mu, lam=1.0 / s - 1.0), data


def mocap_like() -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """The sizes of the paper's motion capture data (31 sequences, N=2613, D=59, Q=9, M=100) with drawn numbers."""
    rng = np.random.default_rng(MOCAP_SEED)
    lengths = rng.integers(34, 114, 31)
    while lengths.sum() != 2613:
        i = rng.integers(31)
        lengths[i] = np.clip(lengths[i] + np.sign(2613 - lengths.sum()), 34, 113)
    t = [0.05 * np.arange(n) for n in lengths]
    waves, phase = rng.uniform(0.5, 2.0, 59), rng.uniform(0, 2 * np.pi, (31, 59))
    y = [
        np.sin(2 * np.pi * a[:, None] * waves + b) + 0.1 * rng.standard_normal((len(a), 59))
        for a, b in zip(t, phase, strict=True)
    ]
    data = Sequences(t, y)
    torch.manual_seed(0)
    model = VGPDS.from_data(
        data, latent_dim=9, num_inducing=100, temporal=Matern32(lengthscale=0.5) + White(1e-2) + Bias(0.1)
    )
    return model, AutoOpperArchambeau(model), data


def make(size: str) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    return mocap_like() if size == "mocap" else gplvm(size)
