# SPDX-License-Identifier: Apache-2.0
"""The disagreement of members, averaged over a sequence, against loops, and in predictions of ensembles."""

import pytest
import torch
from problems import make_data, make_model

from pyro_vgpds import Ensemble, Posterior
from pyro_vgpds.baselines import BaselinePosterior, linear_interpolation
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.kernels import RBF, Matern32
from pyro_vgpds.prediction import Calibration, Combination
from pyro_vgpds.prediction.disagreement import mean_disagreement
from pyro_vgpds.selection.weights import combine

FACTOR = 3.5


def slow_mean(between, scale, group, hidden):
    found = torch.zeros_like(between)
    for i in range(len(between)):
        own = [j for j in range(len(between)) if group[j] == group[i]]
        some = [j for j in own if hidden[j]] or own
        found[i] = scale[i] ** 2 * sum(between[j] / scale[j] ** 2 for j in some) / len(some)
    return found


def test_it_is_the_mean_of_hidden_entries():
    torch.manual_seed(0)
    between, scale = torch.rand(30).double(), 0.5 + torch.rand(30).double()
    group, hidden = torch.randint(4, (30,)), torch.rand(30) < 0.5
    hidden[group == 2] = False  # a sequence of which everything is observed
    torch.testing.assert_close(
        mean_disagreement(between, scale, group, hidden), slow_mean(between, scale, group, hidden)
    )
    every = torch.ones(30, dtype=torch.bool)
    torch.testing.assert_close(mean_disagreement(between, scale, group), slow_mean(between, scale, group, every))


def make_ensemble(lost=None, missing=0.2):
    data = make_data((12, 9), missing=missing)
    members = []
    for kernel, noise in ((Matern32(0.9, 0.7), 0.05), (RBF(1.0, 0.5), 0.1)):
        model, guide = make_model(data, temporal=kernel, noise=noise)
        members.append(Posterior(model, guide, data))
    members.append(BaselinePosterior(lambda some: (torch.cat(linear_interpolation(some)), None), data))
    weights = torch.tensor([[0.2, 1.0, 0.0, 0.5, 0.6], [0.5, 0.0, 0.0, 0.5, 0.0], [0.3, 0.0, 1.0, 0.0, 0.4]]).double()
    calibration = Calibration(torch.linspace(0.5, 1.5, 5).double(), Calibration.none(5).widths)
    combination = Combination(weights, calibration, lost, disagreement=FACTOR)
    return Ensemble(members, {"reconstruct": combination})


@pytest.mark.parametrize("observed", ["some", "all"])
def test_new_sequences_have_a_disagreement_each(observed):
    ensemble = make_ensemble()
    combination = ensemble.combination("reconstruct")
    torch.manual_seed(0)
    t = [torch.linspace(0.0, 1.0, n).double() for n in (4, 6)]
    y = [torch.randn(n, 5).double() for n in (4, 6)]
    if observed == "some":
        y = [part.masked_fill(torch.rand(part.shape) < 0.4, torch.nan) for part in y]
    found = ensemble.reconstruct(t, y)
    parts = [member.reconstruct(t, y) for member in ensemble.members]
    weights, hidden = combination.weights, torch.cat(y).isnan()
    mean = sum(w * p.mean for w, p in zip(weights, parts, strict=True))
    own = sum(w * p.variance for w, p in zip(weights, parts, strict=True))
    between = sum(w * (p.mean - mean).square() for w, p in zip(weights, parts, strict=True))
    scale = ensemble.data.output_scales
    for rows in (slice(0, 4), slice(4, 10)):
        relative = (between / scale.square())[rows]
        average = (relative[hidden[rows]] if observed == "some" else relative).mean()
        variance = combination.calibration.factor.square() * (own[rows] + FACTOR * scale.square() * average)
        torch.testing.assert_close(found.variance[rows], variance)
    torch.testing.assert_close(found.mean, mean)


def test_lost_frames_have_an_average_of_their_own():
    weights = torch.tensor([[0.5] * 5, [0.0] * 5, [0.5] * 5]).double()
    ensemble = make_ensemble(Combination(weights, Calibration.none(5), disagreement=2.0))
    torch.manual_seed(1)
    t, y = torch.linspace(0.0, 1.0, 6).double(), torch.randn(6, 5).double()
    y[2:4], y[4, :3] = torch.nan, torch.nan
    found = ensemble.reconstruct(t, y)
    first, _, line = (member.reconstruct(t, y) for member in ensemble.members)
    between, scale = (0.25 * (first.mean - line.mean).square())[2:4], ensemble.data.output_scales
    own = 0.5 * (first.variance + line.variance)[2:4]
    torch.testing.assert_close(found.variance[2:4], own + 2.0 * scale.square() * (between / scale.square()).mean())


def test_held_out_predictions_have_the_same():
    ensemble = make_ensemble(missing=0.0)
    split = hold_out(ensemble.data, "reconstruct", seed=3)
    blind = ensemble.condition(split.train, split.kept)
    combination = blind.combination("reconstruct")
    scale = split.train.output_scales
    members = [split.predict(member) for member in blind.members]
    sequence = torch.zeros(len(members[0].truth), dtype=torch.long)
    found = combine(members, combination.weights, FACTOR, scale, sequence)
    wanted = split.predict(blind)
    torch.testing.assert_close(found.mean, wanted.mean)
    factor = combination.calibration.factor[found.output]
    torch.testing.assert_close(found.variance * factor.square(), wanted.variance)
