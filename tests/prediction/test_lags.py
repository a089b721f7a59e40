# SPDX-License-Identifier: Apache-2.0
"""A posterior of data with lags takes and returns the data's own outputs, and is that of the widened outputs."""

import numpy as np
import pytest
import torch
from problems import fit_posterior, make_data

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, PosteriorMixture, Sequences, Solver, lagged
from pyro_vgpds.kernels import Bias, White

LAGS = (-2, 1)
SOLVER = Solver(num_starts=2, num_steps=10)


def make_pair(missing=0.1, settings=lambda width: {}, **options):
    """Posteriors of data with lags, and of the same numbers as outputs in their own right."""
    base = make_data((15, 12), outputs=3, missing=missing)
    slices = base.times.slices()
    wide = Sequences([base.times.t[s] for s in slices], [lagged(base.y[s].numpy(), LAGS) for s in slices])
    found = []
    for data, width in ((base.lagged(LAGS), 1), (wide, 3)):
        torch.manual_seed(0)
        model = VGPDS.from_data(data, 2, 8, **options)
        found.append(fit_posterior(model, data, 5, **settings(width)))
    return base, *found


ONE_NOISE = {"noise_per_output": False, "scale_outputs": False}


@pytest.mark.parametrize("options", [ONE_NOISE, {"scale_outputs": False}, {"noise_per_output": False}, {}])
def test_predictions_are_of_the_own_outputs(options):
    base, own, wide = make_pair(**options)
    assert own.bound == pytest.approx(wide.bound, rel=1e-12)
    assert (own.num_outputs, wide.num_outputs) == (3, 9)
    assert own.inducing_mean.shape[1] == 3
    for a, b in (
        (own.forecast([3.1, 3.3], 1, full_cov=True), wide.forecast([3.1, 3.3], 1, full_cov=True)),
        (own.impute(), wide.impute()),
    ):
        torch.testing.assert_close(a.mean, b.mean[:, :3])
        torch.testing.assert_close(a.variance, b.variance[:, :3])
        torch.testing.assert_close(a.covariance, b.covariance[:, :3, :3])
        assert a.sample(2).shape == (2, len(a.t), 3)
        assert a.log_prob(a.mean).shape == ()
    seen = torch.isfinite(base.y)
    assert torch.equal(own.impute().mean[seen], base.y[seen])
    torch.testing.assert_close(own.residual_variance(), wide.residual_variance()[:3])
    assert own.hidden_variance(num_sequences=1, solver=SOLVER).shape == (3,)
    assert own.noise_variance.shape == (1 if options is ONE_NOISE else 3,)
    assert own.generate([0.1, 0.2], 4).shape == (4, 2, 3)
    assert own.as_model()([0.1, 0.2]).shape == (2, 3)


def test_new_outputs_are_widened():
    _, own, wide = make_pair()
    t, y = np.linspace(0.0, 2.0, 9), np.random.default_rng(0).standard_normal((9, 3))
    y[3:, 1] = np.nan
    for options in ({}, {"fill": True}, {"sequence": [0, None]}):
        several = "sequence" in options
        parts = ([t + 5.0, t], [y, y]) if several else (t, y)
        widened = [lagged(part, LAGS) for part in parts[1]] if several else lagged(y, LAGS)
        torch.manual_seed(0)
        a = own.reconstruct(*parts, solver=SOLVER, **options)
        torch.manual_seed(0)
        b = wide.reconstruct(parts[0], widened, solver=SOLVER, **options)
        assert a.bound == pytest.approx(b.bound, rel=1e-9)
        torch.testing.assert_close(a.mean, b.mean[:, :3])
        torch.testing.assert_close(a.variance, b.variance[:, :3])
    for name in ("log_density", "project"):
        torch.manual_seed(0)
        a = getattr(own, name)(t, y, solver=SOLVER)
        torch.manual_seed(0)
        b = getattr(wide, name)(t, lagged(y, LAGS), solver=SOLVER)
        a, b = (value if name == "log_density" else value.mean for value in (a, b))
        torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match="y has 9 outputs, but the model has 3"):
        own.reconstruct(t, lagged(y, LAGS))


def test_noise_scale_and_residuals():
    noise, scale = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 0.5])
    _, own, wide = make_pair(
        settings=lambda width: {
            "noise_variance": np.tile(noise, width), "output_scale": np.tile(scale, width),
            "residual": Bias() + White(),
        }
    )  # fmt: skip
    torch.testing.assert_close(own.noise_variance, torch.from_numpy(noise))
    a, b = own.forecast([3.1, 3.3], 0), wide.forecast([3.1, 3.3], 0)
    torch.testing.assert_close(a.mean, b.mean[:, :3])
    torch.testing.assert_close(a.variance, b.variance[:, :3])
    assert a.sample(2).shape == (2, 2, 3)
    whole = Posterior(*own.origin[:2], own.data, noise_variance=np.tile(noise, 3))
    torch.testing.assert_close(whole.noise_variance, own.noise_variance)
    with pytest.raises(ValueError, match=r"output_scale must be \(3,\), but its shape is \(2,\)"):
        Posterior(*own.origin[:2], own.data, output_scale=[1.0, 2.0])


def test_mixtures_may_have_different_lags():
    base, own, _ = make_pair()
    model = VGPDS.from_data(base, 2, 8)
    plain = Posterior(model, AutoOpperArchambeau(model), base)
    assert PosteriorMixture([own, plain]).forecast([3.1], 0).mean.shape == (1, 3)
    shifted = Sequences([base.times.t[s] + 1.0 for s in base.times.slices()], [base.y[s] for s in base.times.slices()])
    other = VGPDS.from_data(shifted, 2, 8)
    with pytest.raises(ValueError, match=r"the same training times, but those of posteriors\[1\] differ"):
        PosteriorMixture([own, Posterior(other, AutoOpperArchambeau(other), shifted)])


def test_numbers_of_the_own_outputs_stand_for_their_lagged_copies():
    base = make_data((12,), outputs=1, missing=0.0)
    data = base.lagged([-1])
    model = VGPDS.from_data(data, 1, 6)
    guide = AutoOpperArchambeau(model)
    own = Posterior(model, guide, data, noise_variance=[0.3], output_scale=[2.0])
    both = Posterior(model, guide, data, noise_variance=[0.3, 0.3], output_scale=[2.0, 2.0])
    assert own.bound == both.bound
    with pytest.raises(ValueError, match=r"noise_variance must be one number or \(1,\), but its shape is \(3,\)"):
        Posterior(model, guide, data, noise_variance=[0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match=r"output_scale must be \(1,\), but its shape is \(3,\)"):
        Posterior(model, guide, data, output_scale=[0.1, 0.2, 0.3])


def test_the_last_output_is_one_of_the_own():
    _, own, wide = make_pair(noise_per_output=True)
    torch.testing.assert_close(own.inducing_covariance(-1), wide.inducing_covariance(2))


@pytest.mark.parametrize("lags", [5, [0], [-1, -1], [1.5], "12"])
def test_bad_lags(lags):
    with pytest.raises(ValueError, match="lags must be a list of different whole numbers of frames other than 0"):
        make_data((12,)).lagged(lags)
