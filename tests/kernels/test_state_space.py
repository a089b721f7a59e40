# SPDX-License-Identifier: Apache-2.0
"""State-space forms against the kernels."""

import pytest
import torch
from markov_problems import KINDS, make_kernels

from pyro_vgpds.kernels import RBF, MarkovRBF, Matern12, Matern32, Matern52, Periodic


@pytest.mark.parametrize("kind", KINDS)
def test_forms_are_those_of_the_kernel(kind):
    value = make_kernels()[kind]()
    t = torch.rand(6).sort().values * 4
    dt = torch.tensor([0.0, 1e-3, 0.1, 1.0, 20.0])
    d = value.state_dim
    p = value.stationary_covariance().unsqueeze(-3)
    a = value.transition_matrix(dt)
    assert a.shape[-3:] == (5, d, d)
    torch.testing.assert_close(
        a.expand_as(a + p), torch.linalg.matrix_exp(value.design_matrix().unsqueeze(-3) * dt[:, None, None]) + 0 * p,
        rtol=0, atol=1e-10,
    )  # fmt: skip
    torch.testing.assert_close(value.process_noise(dt) + 0 * p, p - a @ p @ a.mT, rtol=0, atol=1e-12)
    h = value.observation_model(t)
    step = value.transition_matrix((t[:, None] - t).clamp_min(0.0).flatten()).unflatten(-3, (6, 6))
    lower = (h[:, None, None] @ step @ p.unsqueeze(-3) @ h[:, :, None]).squeeze((-1, -2)).tril()
    white = value.white(t) if isinstance(value.white(t), torch.Tensor) else torch.zeros(6)
    k = lower + lower.tril(-1).mT + torch.diag_embed(white)
    torch.testing.assert_close(k.expand_as(value.gram(t)), value.gram(t), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kernel", [Matern12(1.0, 1.0), Matern32(1.0, 1.0), Matern52(1.0, 1.0)])
def test_noise_of_short_steps_has_all_its_digits(kernel):
    # to lowest order Q[0, 0] is q dt^(2d − 1) / ((2d − 1) (d − 1)!²), in units of the state
    d = kernel().state_dim
    dt = torch.tensor([1e-5])
    rate = (2 * d - 1) ** 0.5
    scale = {1: 2.0, 2: 4.0 / 3.0, 3: 16.0 / 3.0 / 20.0}[d]
    noise = kernel().process_noise(dt)[0, 0]
    torch.testing.assert_close(noise[0, 0], scale * (rate * dt[0]) ** (2 * d - 1), rtol=1e-4, atol=0)
    torch.linalg.cholesky(noise)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_not_coupled(kind):
    value = make_kernels()[kind]()
    blocks = torch.tensor(value.state_blocks())
    assert blocks.shape == (value.state_dim,)
    apart = blocks.unsqueeze(-1) != blocks
    dt = torch.tensor([0.0, 0.1, 20.0])
    for x in (value.transition_matrix(dt), value.process_noise(dt), value.stationary_covariance()):
        assert (x[..., apart] == 0.0).all()


@pytest.mark.parametrize("accuracy", [1e-2, 1e-4, 1e-6, 1e-9, 1e-12])
def test_periodic_is_as_accurate_as_it_says(accuracy):
    # its covariance at all distances, from its states, against its formula
    t = torch.linspace(0.0, 1.0, 201)
    for lengthscale in torch.logspace(-0.5, 1.0, 40):
        value = Periodic(2.0, lengthscale, 1.0, accuracy=accuracy)()
        p = value.stationary_covariance()[0]
        h = value.observation_model(t[:1])[0]
        k = (value.transition_matrix(t)[0] @ p @ h) @ h
        torch.testing.assert_close(k[0], torch.tensor(2.0), rtol=1e-14, atol=0)  # its variance is exact
        error = (k - value.gram(t[:1], t)[0, 0]).abs().max()
        assert error <= 2.0 * accuracy + 1e-14
    assert Periodic(1.0, 0.05, 1.0)().state_dim is None  # too many harmonics


def test_periodic_has_no_jumps_where_a_harmonic_joins():
    def covariance(lengthscale):
        value = Periodic(1.0, 1.0, 1.0, accuracy=1e-2)()
        value.lengthscale = lengthscale.reshape(1)
        a, h = value.transition_matrix(torch.tensor([0.3]))[0, 0], value.observation_model(torch.zeros(1))[0]
        return h @ a @ value.stationary_covariance()[0] @ h, value.harmonics

    grid = torch.linspace(0.9, 1.1, 401)
    with torch.no_grad():
        values, counts = zip(*[covariance(x) for x in grid], strict=True)
    joins = [i for i in range(len(counts) - 1) if counts[i] != counts[i + 1]]
    assert joins
    slope = torch.stack(values).diff() / grid.diff()
    assert slope.diff().abs().max() < 0.05 * slope.abs().max()
    for at in (grid[i + k].clone().requires_grad_() for i in joins for k in (0, 1)):
        assert torch.autograd.gradcheck(lambda x: covariance(x)[0], at, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("accuracy", [0.0, 1e-13, 0.5, True, "1e-6", None, float("nan")])
def test_accuracy_is_checked(accuracy):
    with pytest.raises(ValueError, match=r"accuracy must be a number from 1e-12 to 0\.1, but got "):
        Periodic(accuracy=accuracy)


def test_options_are_shown_if_they_are_not_the_default():
    assert repr(Periodic()) == "Periodic(variance=1, lengthscale=1, period=1)"
    assert repr(Periodic(accuracy=1e-9)) == "Periodic(variance=1, lengthscale=1, period=1, accuracy=1e-09)"


@pytest.mark.parametrize(("order", "error"), [(2, 0.14), (4, 0.022), (6, 4.4e-3), (8, 9.2e-4), (10, 2.1e-4)])
def test_markov_rbf_is_as_close_as_it_says(order, error):
    d = torch.linspace(0, 8, 400)
    zero = torch.zeros(1)
    difference = MarkovRBF(1.0, 1.0, order=order)().gram(zero, d) - RBF(1.0, 1.0)().gram(zero, d)
    assert 0.5 * error < difference.abs().max() < error
    with pytest.raises(ValueError, match="order must be a whole number from 1 to 12"):
        MarkovRBF(order=13)
