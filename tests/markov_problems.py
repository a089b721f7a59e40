# SPDX-License-Identifier: Apache-2.0
"""Markov kernels and times on which the structured prior is compared with the dense one."""

import pyro
import torch
from problems import make_data

from pyro_vgpds import VGPDS, AutoOpperArchambeau, TemporalGP
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import ARDRBF, Bias, Cosine, Linear, MarkovRBF, Matern12, Matern32, Matern52, Periodic, White

Q = 3


def make_kernels():
    own = torch.tensor([0.2, 0.7, 2.0])
    return {
        "matern12": Matern12(0.8, own),
        "matern32": Matern32(0.8, 0.5),
        "matern52": Matern52(torch.tensor([0.5, 1.0, 1.5]), 0.6) + White(0.05),
        "markov_rbf": MarkovRBF(0.9, own),
        "linear": Linear(0.3) + White(0.01),
        "bias": Bias(0.5) + White(0.1),
        "usual": Matern32(0.9, 0.7) + White(0.05) + Bias(0.1),
        "trend": Matern12(0.4, 1.0) + Linear(0.5) + Bias(2.0) + White(0.02),
        "cosine": Cosine(torch.tensor([0.5, 1.0, 1.5]), torch.tensor([0.4, 1.3, 9.0])) + White(0.1),
        "oscillator": Matern32(1.0, own) * Cosine(1.0, torch.tensor([0.4, 1.3, 60.0])) + White(0.05) + Bias(0.1),
        "periodic": Periodic(0.8, 1.2, 1.3, accuracy=1e-12) + White(0.1),
        "product": Matern32(1.0, 2.0) * Linear(0.4) + Matern12(0.5, own) * Matern52(1.0, 1.0) + White(0.1),
        "quasiperiodic": Matern32(1.0, 2.0) * Periodic(1.0, 1.5, 1.1, accuracy=1e-12) + Bias(0.2),
        "own cycles": Bias(0.2) + Periodic(1.0, 2.0 + own, 0.5 + own, accuracy=1e-12) * Matern32(own, 2.0),
        "smooth cycle": Periodic(1.0, 4.0, 1.1, accuracy=1e-12) * Matern52(1.0, own),
        "white inside": (Matern32(1.0, 0.4) + White(0.2)) * (Linear(0.4) + White(0.3)) + Matern52(1.0, own),
        "times white": Matern32(1.0, 0.4) + Linear(0.3) * White(0.5),
    }


KINDS = list(make_kernels())


def make_times(lengths=(23, 1, 2, 40), span=3.0) -> Times:
    return Times(torch.cat([torch.rand(n).sort().values * span for n in lengths]), lengths)


def both(kernel, times, latent_dim=Q):
    return [TemporalGP(kernel(), times, latent_dim, structure=s) for s in ("dense", "markov")]


def close(a, b, tolerance=1e-8):
    """The largest difference beside the largest number."""
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max() + 1e-12, (a - b).abs().max() / b.abs().max()


def make_pair(structure, **options):
    pyro.clear_param_store()
    torch.manual_seed(0)
    data = make_data((40, 25), missing=0.1)
    temporal = Matern32() + White(1e-2) + Bias(0.1)
    # an almost linear mapping, the default, would magnify the rounding of both forms
    model = VGPDS.from_data(data, 2, 8, temporal, ARDRBF(), structure=structure, **options)
    return model, AutoOpperArchambeau(model), data
