# SPDX-License-Identifier: Apache-2.0
"""Ensembles: moments, intervals, draws and densities against their formulas, and which members predict."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import make_data, make_model, make_problem
from torch.distributions import Normal

from pyro_vgpds import Ensemble, Posterior, Sequences
from pyro_vgpds.baselines import BaselinePosterior, linear_interpolation
from pyro_vgpds.data.parts import take_frames
from pyro_vgpds.evaluation import HeldOut, hold_out
from pyro_vgpds.kernels import RBF, Matern32
from pyro_vgpds.prediction import (
    Calibration,
    Combination,
    EnsemblePrediction,
    GaussianPrediction,
    calibrate_intervals,
)

T_NEW = torch.tensor([1.3, 2.4, 3.2])
WEIGHTS = torch.tensor([[0.2, 1.0, 0.0, 0.5, 0.6], [0.5, 0.0, 0.0, 0.5, 0.0], [0.3, 0.0, 1.0, 0.0, 0.4]])


def make_calibration(outputs=5):
    """Factors that differ, and widths that are not Gaussian."""
    generator = torch.Generator().manual_seed(0)
    error = torch.randn(2000, generator=generator).pow(3) * torch.linspace(0.5, 2.0, outputs).repeat(2000 // outputs)
    output = torch.arange(2000) % outputs
    return calibrate_intervals(HeldOut(torch.zeros(2000), error, torch.ones(2000), output, output), outputs)


def make_ensemble(weights=WEIGHTS, task="forecast", missing=0.2):
    data = make_data((12, 9), missing=missing)
    members = []
    for kernel, noise in ((Matern32(0.9, 0.7), 0.05), (RBF(1.0, 0.5), 0.1)):
        model, guide = make_model(data, temporal=kernel, noise=noise)
        members.append(Posterior(model, guide, data))
    members.append(BaselinePosterior(lambda some: (torch.cat(linear_interpolation(some)), None), data))
    return Ensemble(members, {task: Combination(weights, make_calibration())}, ["a", "b", "line"])


def direct_moments(parts, weights, factor):
    """The formula, one entry at a time."""
    mean, variance = torch.zeros_like(parts[0].mean), torch.zeros_like(parts[0].mean)
    for t in range(len(mean)):
        for d in range(mean.shape[1]):
            m = sum(float(w[d]) * float(p.mean[t, d]) for w, p in zip(weights, parts, strict=True))
            second = sum(
                float(w[d]) * (float(p.variance[t, d]) + (float(p.mean[t, d]) - m) ** 2)
                for w, p in zip(weights, parts, strict=True)
            )
            mean[t, d], variance[t, d] = m, float(factor[d]) ** 2 * second
    return mean, variance


def test_moments_are_those_of_the_formula():
    ensemble = make_ensemble()
    calibration = ensemble.combination("forecast").calibration
    found = ensemble.forecast(T_NEW, 1)
    parts = [member.forecast(T_NEW, 1) for member in ensemble.members]
    mean, variance = direct_moments(parts, WEIGHTS, calibration.factor)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.variance, variance)
    torch.testing.assert_close(found.mean[:, 1], parts[0].mean[:, 1])  # the only member of this output
    for level in (0.5, 0.8, 0.95):
        lower, upper = found.interval(level)
        torch.testing.assert_close(upper - found.mean, calibration.width(level) * variance.sqrt())
        torch.testing.assert_close(found.mean - lower, upper - found.mean)
    assert repr(found) == "EnsemblePrediction(3 times from 1.3 to 3.2, 5 outputs)"
    assert set(found.to_numpy()) == {"t", "mean", "variance"}


def test_lost_frames_have_a_combination_of_their_own():
    other = WEIGHTS.roll(1, 0)
    ensemble = make_ensemble(task="impute")
    y = ensemble.data.y.clone()
    y[[2, 3, 15]] = torch.nan
    y[1, :4] = 1.0
    rows = ensemble.data.lengths
    data = Sequences(list(ensemble.data.times.t.split(rows)), list(y.split(rows)))
    some, lost = Combination(WEIGHTS, make_calibration()), Combination(other, Calibration.none(5))
    both = Ensemble(
        [member.condition(data) for member in ensemble.members], {"impute": replace(some, lost=lost)}, ensemble.names
    )
    gone = ~y.isfinite().any(1)
    parts = [member.impute(fill=False) for member in both.members]
    found = both.impute(fill=False)
    for combination, frames in ((some, ~gone), (lost, gone)):
        mean, variance = direct_moments(parts, combination.weights, combination.calibration.factor)
        torch.testing.assert_close(found.mean[frames], mean[frames])
        torch.testing.assert_close(found.variance[frames], variance[frames])
        width = found.interval(0.8)[1] - found.mean
        wanted = combination.calibration.width(0.8) * variance.sqrt()
        torch.testing.assert_close(width[frames], wanted[frames])
    torch.manual_seed(0)
    draws = found.sample(20_000)
    assert ((draws.mean(0) - found.mean).abs() <= 5.0 / math.sqrt(20_000) * found.stddev + 1e-9).all()
    ahead = both.forecast(T_NEW, 0)  # all of these frames are lost
    wanted = direct_moments([m.forecast(T_NEW, 0) for m in both.members], other, torch.ones(5))
    torch.testing.assert_close((ahead.mean, ahead.variance), wanted)
    new = y[:4].clone()
    found = both.reconstruct(data.times.t[:4], new)
    parts = [m.reconstruct(data.times.t[:4], new) for m in both.members]
    torch.testing.assert_close(found.mean[2:], direct_moments(parts, other, torch.ones(5))[0][2:])
    torch.testing.assert_close(found.mean[:2], direct_moments(parts, WEIGHTS, torch.ones(5))[0][:2])
    with pytest.raises(ValueError, match=r"weights of impute must be \(3, 5\), but got \(2, 5\)"):
        Ensemble(both.members, {"impute": replace(some, lost=replace(lost, weights=other[:2]))})


def test_draws_have_the_moments():
    torch.manual_seed(0)
    ensemble = make_ensemble()
    found = ensemble.forecast(T_NEW, 0)
    draws = ensemble.generate(T_NEW, 20_000, 0)
    assert draws.shape == (20_000, 3, 5)
    assert ((draws.mean(0) - found.mean).abs() / found.stddev).max() < 5.0 / math.sqrt(20_000)
    assert (draws.var(0) / found.variance - 1.0).abs().max() < 0.1


def test_a_member_without_variance_can_be_drawn_from():
    data = make_data((6,))
    t, zero = data.times.t, torch.zeros(6, 5)
    sure = GaussianPrediction(t, data, zero + 1e6, zero)
    unsure = GaussianPrediction(t, data, zero, zero + 1.0)
    both = EnsemblePrediction([sure, unsure], Combination(torch.full((2, 5), 0.5), Calibration.none(5)))
    draws = both.sample(20_000)
    assert ((draws.mean(0) - both.mean).abs() / both.stddev).max() < 5.0 / math.sqrt(20_000)
    assert (draws.var(0) / both.variance - 1.0).abs().max() < 0.1


def test_densities_are_those_of_gaussians():
    found = make_ensemble().forecast(T_NEW, 0)
    y = torch.randn(3, 5)
    wanted = Normal(found.mean, found.stddev).log_prob(y)
    torch.testing.assert_close(found.log_prob(y), wanted.sum())
    y[1, 2] = torch.nan
    torch.testing.assert_close(found.log_prob(y), wanted.sum() - wanted[1, 2])
    with pytest.raises(ValueError, match=r"y must have the shape \(3, 5\), but its shape is \(2, 5\)"):
        found.log_prob(y[:2])


def test_observed_numbers_are_returned_unchanged():
    ensemble = make_ensemble(task="impute")
    seen = ensemble.data.y.isfinite()
    filled, smooth = ensemble.impute(), ensemble.impute(fill=False)
    assert torch.equal(filled.mean[seen], ensemble.data.y[seen])
    assert (filled.variance[seen] == 0).all()
    assert (filled.variance[~seen] > 0).all()
    torch.testing.assert_close(filled.mean[~seen], smooth.mean[~seen])
    torch.testing.assert_close(filled.variance[~seen], smooth.variance[~seen])
    assert not torch.equal(smooth.mean[seen], ensemble.data.y[seen])
    lower, upper = filled.interval(0.9)
    assert torch.equal(lower[seen], upper[seen])
    assert torch.equal(filled.sample(3)[:, seen], ensemble.data.y[seen].expand(3, -1))
    assert filled.log_prob(torch.where(seen, 1e3, filled.mean)).isfinite()  # known numbers have no density
    y = ensemble.data.y[:5].clone()
    y[:, 1:3] = torch.nan
    found = ensemble.reconstruct(ensemble.data.times.t[:5], y, fill=True)
    assert torch.equal(found.mean[y.isfinite()], y[y.isfinite()])
    loose = ensemble.reconstruct(ensemble.data.times.t[:5], y)
    torch.testing.assert_close(found.mean[y.isnan()], loose.mean[y.isnan()])
    parts = [m.reconstruct(ensemble.data.times.t[:5], y) for m in ensemble.members]
    mean, _ = direct_moments(parts, WEIGHTS, torch.ones(5))
    torch.testing.assert_close(loose.mean, mean)


class Unused:
    """A member that must not be asked."""

    def __init__(self, data):
        self.data = data


def test_members_without_a_weight_do_not_predict():
    ensemble = make_ensemble()
    members = [ensemble.members[0], Unused(ensemble.data), ensemble.members[1]]
    weights = torch.stack([WEIGHTS[0], torch.zeros(5), 1 - WEIGHTS[0]])
    found = Ensemble(members, {"forecast": Combination(weights, Calibration.none(5))}).forecast(T_NEW, 0)
    assert len(found.components) == 2
    mean, _ = direct_moments([m.forecast(T_NEW, 0) for m in (members[0], members[2])], weights[[0, 2]], torch.ones(5))
    torch.testing.assert_close(found.mean, mean)


def test_tasks_have_their_own_combinations():
    ensemble = make_ensemble()
    alone = Combination(torch.tensor([[0.0], [0.0], [1.0]]).expand(3, 5), Calibration.none(5))
    both = Ensemble(ensemble.members, {**ensemble.combinations, "impute": alone}, ensemble.names)
    torch.testing.assert_close(both.impute().mean, ensemble.members[2].impute().mean)
    torch.testing.assert_close(both.forecast(T_NEW, 0).mean, ensemble.forecast(T_NEW, 0).mean)
    assert both.combination("reconstruct") is both.combinations["forecast"]  # the first, if a task has none
    assert repr(both) == f"Ensemble(3 members of {both.data}, calibrated to forecast, impute)"
    assert both.names == ["a", "b", "line"]
    assert both.report is None
    assert both.num_outputs == 5
    assert both.columns is None


def test_an_ensemble_is_conditioned_member_by_member():
    ensemble = make_ensemble()
    shorter = take_frames(ensemble.data, [slice(0, 9), slice(0, 6)])
    found = ensemble.condition(shorter)
    assert found.names == ensemble.names
    assert found.combinations == ensemble.combinations
    assert found.data.lengths == (9, 6)
    parts = [member.condition(shorter).forecast(T_NEW, 1) for member in ensemble.members]
    mean, _ = direct_moments(parts, WEIGHTS, torch.ones(5))
    torch.testing.assert_close(found.forecast(T_NEW, 1).mean, mean)


def test_bad_input_is_named():
    ensemble = make_ensemble()
    combination = ensemble.combination("forecast")
    message = "members, names and combinations are required, but got"
    with pytest.raises(ValueError, match=f"{message} 0, 0 and 1 of them"):
        Ensemble([], {"forecast": combination})
    with pytest.raises(TypeError, match="members must be trained models, but got "):
        Ensemble(np.array(["2020-01-01"], "datetime64[s]"), {"forecast": combination})
    with pytest.raises(ValueError, match=r"combinations must be .* with at least one entry, but it is empty"):
        Ensemble(ensemble.members, {})
    with pytest.raises(ValueError, match=f"{message} 3, 2 and 1 of them"):
        Ensemble(ensemble.members, {"forecast": combination}, ["a", "b"])
    with pytest.raises(ValueError, match="task must be one of 'impute', 'reconstruct', 'forecast', but got 'guess'"):
        Ensemble(ensemble.members, {"guess": combination})
    with pytest.raises(ValueError, match="task must be one of"):
        ensemble.combination("guess")
    with pytest.raises(ValueError, match=r"weights of forecast must be \(2, 5\), but got \(3, 5\)"):
        Ensemble(ensemble.members[:2], {"forecast": combination})
    found = ensemble.forecast(T_NEW, 0)
    with pytest.raises(ValueError, match="num_samples must be a whole number of at least 1, but got 0"):
        found.sample(0)
    for bad in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="probability must be between 0 and 1"):
            found.interval(bad)
    with pytest.raises(ValueError, match="sequence is required because there are 2 training sequences"):
        ensemble.forecast(T_NEW)


def test_predictions_by_their_moments():
    torch.manual_seed(0)
    data = make_data((6,))
    mean, variance = torch.randn(6, 5), 0.1 + torch.rand(6, 5)
    variance[2, 3] = 0.0
    found = GaussianPrediction(data.times.t, data, mean, variance)
    assert torch.equal(found.mean, mean)
    assert torch.equal(found.variance, variance)
    known = variance > 0
    wanted = Normal(mean[known], variance[known].sqrt())
    torch.testing.assert_close(found.interval(0.9)[1][known], wanted.icdf(torch.tensor(0.95)))
    torch.testing.assert_close(found.interval(0.9)[0][known], wanted.icdf(torch.tensor(0.05)))
    y = torch.randn(6, 5)
    torch.testing.assert_close(found.log_prob(y), wanted.log_prob(y[known]).sum())
    draws = found.sample(20_000)
    assert torch.equal(draws[:, 2, 3], mean[2, 3].expand(20_000))
    assert (draws.mean(0) - mean).abs().max() < 0.05
    assert (draws.var(0)[known] / variance[known] - 1).abs().max() < 0.06
    with pytest.raises(ValueError, match="probability must be between 0 and 1, but got 1"):
        found.interval(1)
    with pytest.raises(ValueError, match="num_samples"):
        found.sample(0)


@pytest.mark.parametrize("task", ["impute", "reconstruct", "forecast"])
def test_a_posterior_is_calibrated(task):
    model, guide, data = make_problem((30, 25), missing=0.1)
    posterior = Posterior(model, guide, data)
    found = posterior.calibrate(task, horizon=3, seed=1)
    assert list(found.combinations) == [task]
    assert torch.equal(found.combination(task).weights, torch.ones(1, 5).double())
    assert len(found.members) == 1
    again = posterior.calibrate(task, horizon=3, seed=1)
    assert torch.equal(found.combination(task).calibration.factor, again.combination(task).calibration.factor)
    # on the held-out numbers that it was calibrated on, the intervals hold what they promise
    split = hold_out(data, task, horizon=3, seed=1)
    blind = found.condition(split.train, split.kept)
    held_out = split.predict(blind)
    error = (held_out.mean - held_out.truth).abs() / held_out.variance.sqrt()
    for level in (0.8, 0.95):
        inside = float((error <= found.combination(task).calibration.width(level)).double().mean())
        assert level - 0.15 <= inside <= min(1.0, level + 0.15)


def test_a_calibrated_forecast_of_one_output_counts_as_few_errors():
    data = make_data((40,), outputs=1)
    posterior = Posterior(*make_model(data), data)
    calibration = posterior.calibrate("forecast", horizon=5).combination("forecast").calibration
    assert calibration.width(0.95) == pytest.approx(4.302653, rel=1e-4)  # two degrees of freedom, the fewest
    assert posterior.calibrate("impute").combination("impute").calibration.width(0.95) < 2.5


def test_calibration_checks_its_arguments():
    data = make_data((12,))
    posterior = Posterior(*make_model(data), data)
    with pytest.raises(ValueError, match="task must be one of 'impute', 'reconstruct', 'forecast', but got 'all'"):
        posterior.calibrate("all")
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        posterior.calibrate("impute", share=2.0)
    with pytest.raises(ValueError, match="horizon=10 must leave 3 training frames"):
        posterior.calibrate("forecast", horizon=10)
