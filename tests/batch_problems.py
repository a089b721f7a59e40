# SPDX-License-Identifier: Apache-2.0
"""Small problems for training in batches, and what a batch must agree on with all data."""

from typing import Any

import torch

from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    Sequences,
    fit,
)
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.kernels import ARDRBF, Bias, Matern32, White


def trained(data: Sequences, num_steps: int = 4, **settings: Any) -> tuple[VGPDS, AutoOpperArchambeau, Sequences]:
    """A model with a well-conditioned K_MM after a few steps, its guide, and the data."""
    temporal, mapping = Matern32() + White(0.1) + Bias(0.1), ARDRBF() + White(1e-2) + Bias(0.1)
    model = VGPDS.from_data(data, 2, 6, temporal=temporal, mapping=mapping, **settings)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=num_steps, tolerance=0.0)
    return model, guide, data


def several_sequences(count: int, gaps: bool) -> Sequences:
    """Sequences with gaps of all kinds."""
    data = make_sequences(num_sequences=count, num_outputs=4, length=(9, 14)).sequences()
    if not gaps:
        return data
    y = [part.clone() for part in data.read().split(data.lengths)]
    y[0][2:6, 1], y[3][:, 2], y[1][4] = torch.nan, torch.nan, torch.nan
    return Sequences(list(data.times.t.split(data.lengths)), y)


def state_of(model: VGPDS, guide: Any) -> list[torch.Tensor]:
    """Copies of all numbers of a model and its guide."""
    return [value.clone() for value in (*model.state_dict().values(), *guide.state_dict().values())]


def batch_terms(model: VGPDS, explicit: AutoExplicit, batch: Any) -> list[torch.Tensor]:
    """The loss of a batch, its gradients in the parameters of the model, and the targets of q(U)."""
    model.zero_grad()
    factors = explicit.factors.clone()
    loss = torch.tensor(Collapsed_ELBO().loss_and_grads(model, explicit, batch))
    explicit.factors.copy_(factors)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with MinibatchNaturalGradient(explicit, 1.0) as natural:
        Collapsed_ELBO().loss(model, explicit, batch)
        dual = natural.u.dual
    return [loss, *gradients, dual.a[dual.of_output], dual.v]


def assert_near(found: Any, wanted: Any, tolerance: float) -> None:
    """Differences relative to the largest number of each tensor."""
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).detach().abs().max()) <= tolerance * float(b.detach().abs().max().clamp_min(1e-3))
