# SPDX-License-Identifier: Apache-2.0
"""The problems that are timed, as our models."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.drawn import JITTER, draw
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Sequences
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White


def gplvm(size: str, dtype: torch.dtype = torch.float64) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """A size of ``drawn.SIZES`` as our model: with White(1.0) as the temporal kernel, q(X) = N(mu, S) factorises."""
    p = draw(size)
    data = Sequences(np.arange(len(p["Y"])), p["Y"], dtype=dtype)
    model = VGPDS(
        White(1.0).fix(),
        ARDRBF(p["variance"], p["lengthscale"] ** -2.0),
        inducing=torch.from_numpy(p["Z"]),
        noise=p["noise"],
        output_mean=torch.zeros(data.num_outputs, dtype=torch.float64),
        jitter=JITTER,
    ).to(dtype)
    mu, s = torch.from_numpy(p["mu"]), torch.from_numpy(p["S"])
    return model, AutoOpperArchambeau(model, mean_bar=mu, lam=1.0 / s - 1.0), data


def mocap_like(dtype: torch.dtype = torch.float64) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """The sizes of the paper's motion capture data (31 sequences, N=2613, D=59, Q=9, M=100) with drawn numbers."""
    rng = np.random.default_rng(35)
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
    data = Sequences(t, y, dtype=dtype)
    torch.manual_seed(0)
    model = VGPDS.from_data(  # as in the paper: one noise, no scales, no static dimensions
        data, latent_dim=9, num_inducing=100, temporal=Matern32(lengthscale=0.5) + White(1e-2) + Bias(0.1),
        static_dim=0, noise_per_output=False, scale_outputs=False,
    )  # fmt: skip
    assert model.start is not None
    # the start of the authors' code: later versions begin almost linear, and times of other bounds cannot be compared
    model.mapping.set("variance", model.start.x.new_tensor(model.start.spread)).set("weight", model.start.share)
    return model, AutoOpperArchambeau(model), data


def make(size: str, dtype: torch.dtype = torch.float64) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    return mocap_like(dtype) if size == "mocap" else gplvm(size, dtype)
