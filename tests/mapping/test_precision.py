# SPDX-License-Identifier: Apache-2.0
"""float32 sums: used if the model is float32 and their errors are far below the noise, and then hardly different."""

import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences
from pyro_vgpds.kernels import ARDRBF, ARDLinear, Matern32, White
from pyro_vgpds.mapping import native_psi2, sparse_gp
from pyro_vgpds.mapping.precision import allows_single

pytestmark = pytest.mark.skipif(not native_psi2.available(), reason="the compiled kernel was not built")


def problem(dtype=torch.float32, weight=4.0, num_frames=900, mapping=None, missing=False, noise=0.1):
    pyro.clear_param_store()
    g = torch.Generator().manual_seed(0)
    x, z = torch.randn(num_frames, 3, generator=g), torch.randn(50, 3, generator=g)
    y = torch.sin(x @ torch.randn(3, 6, generator=g)) + 0.1 * torch.randn(num_frames, 6, generator=g)
    if missing:
        y[:5, 0] = torch.nan
    data = Sequences(torch.arange(float(num_frames)), y.float(), dtype=dtype)
    mapping = ARDRBF(1.0, torch.full((3,), weight)) if mapping is None else mapping()
    model = VGPDS(Matern32(1.0, 2.0) + White(0.3), mapping, z.float(), noise, torch.zeros(6)).to(dtype)
    return model, AutoOpperArchambeau(model, mean_bar=x, lam=torch.full_like(x, 9.0)), data


@pytest.fixture
def decisions(monkeypatch):
    found = []

    def watched(*args):
        found.append(allows_single(*args))
        return found[-1]

    monkeypatch.setattr(sparse_gp, "allows_single", watched)
    return found


def evaluated(model, guide, data):
    loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
    return loss, torch.autograd.grad(loss, [*model.parameters(), *guide.parameters()], allow_unused=True)


def test_bound_and_gradients_are_those_of_float64(decisions):
    loss, grads = evaluated(*problem())
    exact, exact_grads = evaluated(*problem(torch.float64))
    assert decisions == [True]  # a float64 model is not asked
    assert loss != exact
    assert loss.dtype == torch.float64
    assert abs(loss - exact) < 1e-4 * 900 * 6
    for grad, target in zip(grads, exact_grads, strict=True):
        assert (grad - target).norm() < 1e-3 * target.norm()


# with smaller weights K_MM is so nearly singular that rounding of float64 alone changes the bound by 1e-6 of it
@pytest.mark.parametrize("options", [{"weight": 0.1}, {"num_frames": 100}, {"mapping": ARDLinear}])
def test_float64_where_float32_errs_too_much_or_saves_nothing(options, decisions):
    loss, _ = evaluated(*problem(**options))
    exact, _ = evaluated(*problem(torch.float64, **options))
    assert decisions == [False]
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=0.0)


def test_less_noise_needs_more_digits(decisions):
    for noise in (1.0, 1e-7):
        evaluated(*problem(noise=noise))
    assert decisions == [True, False]


def test_gaps_are_summed_in_float64(decisions):
    loss, _ = evaluated(*problem(missing=True))
    exact, _ = evaluated(*problem(torch.float64, missing=True))
    assert decisions == []
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=0.0)


def test_known_points_have_no_such_sums(decisions):
    model, _, data = problem()
    likelihood = model.likelihood(torch.randn(900, 3), data)
    assert torch.isfinite(likelihood.log_prob(data.y))
    assert decisions == [False]
