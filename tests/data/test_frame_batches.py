# SPDX-License-Identifier: Apache-2.0
"""Batches of frames of one long sequence: unbiased, with the latent path of the whole sequence."""

import itertools

import numpy as np
import pyro
import pytest
import torch
from batch_problems import assert_near, batch_terms, trained

from pyro_vgpds import (
    AutoExplicit,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    NaturalGradient,
    Posterior,
    SequenceDataset,
    Sequences,
    fit,
)
from pyro_vgpds.data import FrameDataset, MappedSequences
from pyro_vgpds.datasets import make_sequences


def problem(num_frames=30, likelihood=None, structure="markov"):
    data = make_sequences(num_sequences=1, num_outputs=3, length=(num_frames, num_frames)).sequences()
    y = data.read().clone()
    if likelihood is not None:
        y = (y > y.mean(0)).to(y)
    y[4:9, 1], y[20] = torch.nan, torch.nan
    data = Sequences(data.times.t, y)
    return trained(data, structure=structure, likelihood=likelihood)


@pytest.mark.parametrize("likelihood", [None, "bernoulli"])
@pytest.mark.parametrize("structure", ["markov", "dense"])
def test_all_frames_with_a_full_step_are_the_collapsed_bound(likelihood, structure):
    model, guide, data = problem(likelihood=likelihood, structure=structure)
    explicit, found = AutoExplicit.from_collapsed(guide, data), []
    for natural, own, called in (
        (NaturalGradient(guide, data), guide, data),
        (MinibatchNaturalGradient(explicit, 1.0), explicit, FrameDataset(data).batch(range(30))),
    ):
        model.zero_grad()
        with natural:
            loss = Collapsed_ELBO().loss_and_grads(model, own, called)
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found.append([torch.tensor(loss), *gradients, *natural.derivatives()])
            natural.step(0.5)
    assert_near(found[1], found[0], 1e-8)
    q = guide.posterior(data)
    assert_near([explicit.eta, explicit.lam], [q.eta, q.lam], 1e-8)


def test_averages_over_batches_are_those_of_all_frames():
    model, guide, data = problem()
    explicit, frames = AutoExplicit.from_collapsed(guide, data), FrameDataset(data)
    explicit.collect()

    def evaluate(rows):
        return batch_terms(model, explicit, frames.batch(rows))

    order = torch.randperm(30)
    parts = [evaluate(torch.cat(both)) for both in itertools.combinations(order.split(6), 2)]
    assert_near([torch.stack(part).mean(0) for part in zip(*parts, strict=True)], evaluate(range(30)), 1e-10)


def test_a_batch_moves_the_sites_of_its_own_frames_only():
    model, guide, data = problem()
    explicit = AutoExplicit.from_collapsed(guide, data)
    explicit.collect()
    before, batch = explicit.eta.clone(), FrameDataset(data).batch([11, 3, 25])
    with MinibatchNaturalGradient(explicit, 1e-12) as natural:  # q(U) hardly moves
        Collapsed_ELBO().loss_and_grads(model, explicit, batch)
        natural.step(1.0)
    moved = (explicit.eta != before).any(-1).nonzero().squeeze(-1)
    assert moved.tolist() == [3, 11, 25]
    # at the optimal q(U) of all frames the step is that of the collapsed bound
    with NaturalGradient(guide, data) as collapsed:
        Collapsed_ELBO().loss_and_grads(model, guide, data)
        collapsed.step(1.0)
        assert_near([explicit.eta[moved]], [collapsed.eta[moved]], 1e-6)


@pytest.mark.parametrize("likelihood", [None, "bernoulli"])
def test_fit_takes_frames_of_a_single_sequence(likelihood, tmp_path):
    model, guide, data = problem(60, likelihood)
    first, start = Posterior(model, guide, data).bound, {k: v.clone() for k, v in model.state_dict().items()}
    result = fit(model, guide, data, batch_size=20, epochs=8)
    assert len(result.history) == 1 + 8 * 3
    assert result.bound > first
    assert Posterior(model, guide, data).bound == pytest.approx(result.bound, rel=1e-7)
    # outputs in a mapped file, of which each batch reads its own frames
    np.save(tmp_path / "y.npy", data.read().numpy())
    np.save(tmp_path / "t.npy", data.times.t.numpy())
    mapped = SequenceDataset(MappedSequences(tmp_path / "y.npy", [60], tmp_path / "t.npy"))
    states = []
    for source in (data, mapped):
        model.load_state_dict(start)
        pyro.set_rng_seed(2)
        explicit = AutoExplicit(model, source)
        fit(model, explicit, source, batch_size=20, epochs=2)
        states.append([explicit.eta.clone(), *(p.detach().clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    post = Posterior(model, *explicit.part([0]))
    assert torch.isfinite(post.forecast([9.0], 0).mean).all()


def test_long_sequences_are_collected_in_batches_of_frames(monkeypatch):
    _, guide, data = problem()
    explicit = AutoExplicit.from_collapsed(guide, data)
    whole = explicit.collect()
    monkeypatch.setattr("pyro_vgpds.inference.streaming._FRAMES", 7)
    assert explicit.collect() == pytest.approx(whole, rel=1e-9)


def test_times_in_steps_and_errors(tmp_path):
    np.save(tmp_path / "y.npy", np.random.default_rng(0).standard_normal((10, 2)))
    frames = FrameDataset(SequenceDataset(MappedSequences(tmp_path / "y.npy", [10], 0.5)))
    batch = frames.batch(torch.tensor([7, 2]))
    assert batch.sequences.times.t.tolist() == [1.0, 3.5]
    assert batch.scale == 5.0
    assert batch.path_scale == 1.0
    assert batch.paths.num_frames == 10
    with pytest.raises(ValueError, match="indices must be different frames from 0 to 9"):
        frames.batch([3, 3])
    with pytest.raises(ValueError, match="indices must be different frames from 0 to 9"):
        frames.batch([10])
    with pytest.raises(ValueError, match="batches of frames need one sequence, but there are 2"):
        FrameDataset(make_sequences(num_sequences=2, num_outputs=2, length=(5, 5)).sequences())
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1"):
        list(frames.batches(0))
    with pytest.raises(TypeError, match="source must be Sequences or a SequenceDataset, but got list"):
        FrameDataset([1.0])
