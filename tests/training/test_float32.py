# SPDX-License-Identifier: Apache-2.0
"""float32 is how numbers are stored; the bound is computed in float64, and nothing that training found is lost."""

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    Posterior,
    PosteriorMixture,
    Sequences,
    Solver,
    fit,
    load,
    save,
)
from pyro_vgpds.kernels import ARDRBF, RBF, ARDLinear, Bias, Matern12, Matern52, Periodic, White
from pyro_vgpds.linalg import in_double

KERNELS = {
    "rbf": lambda: RBF(),
    "matern": lambda: Matern52(),
    "markov": lambda: Matern12() + White(1e-3) + Bias(0.1),
    "product": lambda: RBF() * Periodic() + White(1e-4),
}


def _data(dtype: torch.dtype, noise: float = 1e-4, missing: float = 0.1) -> Sequences:
    rng = np.random.default_rng(3)
    t = np.cumsum(rng.exponential(1.0, 30) + 0.01).astype(np.float32)
    y = np.sin(t[:, None] * rng.uniform(0.1, 0.6, 6) + np.arange(6)) + noise * rng.standard_normal((30, 6))
    y[rng.random(y.shape) < missing] = np.nan
    return Sequences([t[:20], t[20:]], [y[:20].astype(np.float32), y[20:].astype(np.float32)], dtype=dtype)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bound_of_a_float32_model_is_that_of_its_float64_twin(kernel):
    pyro.set_rng_seed(0)
    data = _data(torch.float32)
    model = VGPDS.from_data(data, latent_dim=3, num_inducing=15, temporal=KERNELS[kernel]())
    guide = AutoOpperArchambeau(model)
    loss = Collapsed_ELBO().loss(model, guide, data)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert all(p.dtype == torch.float64 for p in guide.parameters())
    model.double()
    model.warns_of_scales = False
    assert Collapsed_ELBO().loss(model, guide, _data(torch.float64)) == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_float32_reports_is_the_best_of_its_history_and_predicts(kernel, missing, tmp_path):
    pyro.set_rng_seed(0)
    data = _data(torch.float32, missing=missing)
    model = VGPDS.from_data(data, latent_dim=3, num_inducing=15, temporal=KERNELS[kernel]())
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, num_steps=12)
    best = max(record.bound for record in result.history)
    assert result.stopped == "steps"
    assert result.bound == pytest.approx(best, abs=1e-3 * data.num_observed)
    save(tmp_path / "m", model, guide, data)
    assert -Collapsed_ELBO().loss(*load(tmp_path / "m")) == pytest.approx(result.bound, abs=1e-6)
    post = Posterior(model, guide, data)
    seen = data.read()[:20].clone()
    seen[5:, ::2] = torch.nan
    solver = Solver(num_starts=2, num_steps=10)
    for found in (post.impute(), post.reconstruct(data.times.t[:20], seen, solver=solver)):
        assert found.mean.dtype == found.variance.dtype == torch.float32
        assert bool((found.variance >= 0.0).all())
        values = torch.linalg.eigvalsh(found.latent.covariance)
        assert bool((values[:, 0] > -1e-8 * values[:, -1]).all())


def test_kernel_values_in_double_have_the_same_numbers():
    kernel = (RBF(0.7, 0.3) * Periodic(0.3, 1.1, 0.9) + White(0.1)).to(torch.float32)()
    t = torch.linspace(0, 1, 5)
    wide = in_double(kernel)
    assert wide.gram(t).dtype == torch.float64
    torch.testing.assert_close(wide.gram(t), kernel.gram(t).double(), rtol=1e-5, atol=1e-6)
    assert in_double(wide) is wide
    mapping = (ARDRBF(0.5, [0.1, 0.2]) + ARDLinear([0.3, 0.4])).to(torch.float32)()
    x = torch.randn(4, 2, dtype=torch.float32)
    torch.testing.assert_close(
        in_double(mapping).cov(x.double(), x.double()), mapping.cov(x, x).double(), rtol=1e-4, atol=1e-5
    )


def test_every_prediction_of_a_float32_model_is_float32():
    pyro.set_rng_seed(0)
    data = _data(torch.float32, missing=0.0)
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=8)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=3)
    plain, carried = Posterior(model, guide, data), Posterior(model, guide, data, residual=Bias() + White())
    t, y = data.times.t[:5], data.read()[:5]
    ahead = data.times.t[19] + torch.arange(1.0, 3.0, dtype=torch.float32)
    found = [post.forecast(ahead, 0) for post in (plain, carried, PosteriorMixture([plain, carried]))]
    found += [plain.condition(Sequences(t, y, dtype=torch.float32)).forecast(ahead, 0)]
    for prediction in found:
        assert prediction.mean.dtype == prediction.variance.dtype == prediction.sample(2).dtype == torch.float32
        assert bool((prediction.variance > 0.0).all())
    assert plain.forecast(ahead, 0, full_cov=True).covariance.dtype == torch.float32
    assert plain.generate(ahead, num_samples=2).dtype == torch.float32
    assert np.isfinite(float(plain.log_density(t, y)))
