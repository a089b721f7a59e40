# SPDX-License-Identifier: Apache-2.0
"""The real data sets that training is timed on, from the folder that PYRO_VGPDS_DATA names."""

from __future__ import annotations

from collections.abc import Callable

import pyro

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Sequences, datasets
from pyro_vgpds.datasets import Dataset
from pyro_vgpds.kernels import Bias, Matern32, White

#                                        Q   M
DATA: dict[str, tuple[Callable[[], Dataset], int, int]] = {
    "cmu35": (datasets.load_cmu35, 9, 100),
    "yeast": (datasets.load_spellman, 6, 20),
    "robot": (datasets.load_robot_wireless, 6, 60),
    "french": (datasets.load_french, 8, 60),
    "missa": (datasets.load_missa, 25, 85),
}


def start(name: str, seed: int = 0, default_kernel: bool = False) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """A model before training. The kernel of time is Matérn 3/2 + white + bias, or that of ``from_data``."""
    load, latent_dim, num_inducing = DATA[name]
    data = load().sequences()
    pyro.set_rng_seed(seed)
    temporal = None if default_kernel else Matern32() + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, latent_dim, num_inducing, temporal=temporal)
    return model, AutoOpperArchambeau(model), data
