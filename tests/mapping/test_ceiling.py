# SPDX-License-Identifier: Apache-2.0
"""No log density exceeds that of outputs that are predicted exactly: a bound above it is a numerical failure."""

import math

import numpy as np
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences, fit
from pyro_vgpds.kernels import Bias, Linear, Matern32, Periodic, White
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping import bound, rbf_bound
from pyro_vgpds.mapping.psi import Psi


def _data(t: np.ndarray) -> Sequences:
    rng = np.random.default_rng(0)
    y = np.sin(np.arange(len(t))[:, None] / 5 + np.arange(5)) + 0.1 * rng.standard_normal((len(t), 5))
    return Sequences(t, y)


def _ceiling(model: VGPDS, data: Sequences) -> float:
    with torch.no_grad():
        likelihood = model.likelihood(data.times.t.new_zeros(data.num_frames, model.latent_dim), data)
        return float(bound.ceiling(likelihood.noise, likelihood.groups_of(data)))


@pytest.mark.parametrize("per_output", [False, True])
def test_the_ceiling_counts_observed_entries_in_the_units_of_the_data(per_output):
    y = torch.randn(6, 4).double()
    y[:3, 1] = y[0, 2] = torch.nan
    y[:, 3] = torch.nan  # never observed
    scale = torch.tensor([1.0, 10.0, 0.1, 2.0]).double()
    noise = torch.tensor([0.1, 0.2, 0.3, 0.4] if per_output else [0.1]).double()
    groups = Sequences(torch.arange(6.0), y).groups(torch.zeros(4).double(), scale, columns=per_output)
    variances = (noise * scale.square()).expand(4)
    expected = -sum(0.5 * math.log(2 * math.pi * variances[d]) for n, d in (~y.isnan()).nonzero().tolist())
    assert float(bound.ceiling(noise, groups)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("per_output", [False, True])
def test_a_bound_above_the_ceiling_is_an_error(per_output):
    y = torch.randn(6, 4).double()
    groups = Sequences(torch.arange(6.0), y).groups(torch.zeros(4).double(), columns=per_output)
    noise, factor = torch.full((4 if per_output else 1,), 0.1).double(), torch.eye(3).double()
    # statistics that no latent points have: ΨᵀΨ of the outputs is larger than Ψ2 allows
    psi = Psi(torch.tensor([6.0]).double(), 10.0 * torch.ones(3, groups.factor.shape[1]).double(), factor.unsqueeze(0))
    with pytest.raises(NumericalError, match="exceeds the largest log density"):
        bound.collapsed_bound(psi, factor, noise, groups)


@pytest.mark.parametrize(
    ("first", "kernel"),
    [(1.7e9, lambda: Linear() + White(0.01)), (1e7, lambda: Linear() * Periodic(period=10.0))],
)
def test_times_that_a_kernel_cannot_be_computed_at_are_refused(first, kernel):
    data = _data(first + np.arange(40))
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=10, temporal=kernel())
    with pytest.raises(NumericalError, match=r"Linear, needs times that begin near 0 \(subtract an origin"):
        fit(model, AutoOpperArchambeau(model), data, num_steps=5)


def test_what_the_error_advises_helps():
    t = 1.7e9 + np.arange(40)
    for times, kernel in [(t - t[0], Linear() + White(0.01) + Bias()), (t, Linear(t[0] ** -2.0) + White(0.01))]:
        data = _data(times)
        model = VGPDS.from_data(data, latent_dim=2, num_inducing=10, temporal=kernel)
        guide = AutoOpperArchambeau(model)
        result = fit(model, guide, data, num_steps=10)
        assert result.history[0].bound < result.bound < _ceiling(model, data)


def test_a_false_best_is_undone_and_not_kept(monkeypatch):
    data = _data(np.arange(30.0))
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=8, temporal=Matern32() + White(0.01))
    guide = AutoOpperArchambeau(model)
    original, calls = bound._group_terms, []

    def sometimes(*args):
        calls.append(1)
        terms = original(*args)
        return terms._replace(value=terms.value + (1e8 if len(calls) == 6 else 0.0))

    monkeypatch.setattr(bound, "_group_terms", sometimes)
    monkeypatch.setattr(rbf_bound, "bound_is_compiled", lambda *_: False)  # compiled code is not seen here
    result = fit(model, guide, data, num_steps=12)
    assert result.num_undone == 1
    assert max(record.bound for record in result.history) < 1e6
    assert -Collapsed_ELBO().loss(model, guide, data) == pytest.approx(result.bound)


@pytest.mark.parametrize("rate", [1.0, 10.0])
def test_large_learning_rates_find_no_false_best(rate):
    data = _data(np.arange(20.0))
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=8)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=15, method="adam", learning_rate=rate)
    assert result.history[0].bound <= result.bound < _ceiling(model, data)
