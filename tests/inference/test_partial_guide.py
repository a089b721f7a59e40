# SPDX-License-Identifier: Apache-2.0
"""Predictions of a model whose training sequences are not in memory, beside those with all of them in memory."""

import copy

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from batch_problems import several_sequences, trained

from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Posterior,
    SequenceDataset,
    Solver,
    fit,
    load,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.data import MappedSequences
from pyro_vgpds.inference.partial_guide import PartialGuide
from pyro_vgpds.kernels import Bias, White
from pyro_vgpds.mapping.frame_sums import added_sums, frame_sums, removed_sums, rescaled_sums
from pyro_vgpds.mapping.sequence_summary import joined_groups, summary_psi

COUNT = 4


def problem(gaps=True, per_output=True):
    return trained(several_sequences(COUNT, gaps), noise_per_output=per_output)


def partly(data, hidden=2):
    t, y = data.times.t[:8], data.read()[:8].clone()
    y[:, hidden:] = torch.nan
    return t, y


def assert_same(found, wanted, tolerance=1e-8):
    torch.testing.assert_close(found.mean, wanted.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("gaps", "per_output", "chosen"), [(False, False, []), (True, True, []), (True, False, [2]), (True, True, [3, 1])]
)
def test_predictions_are_those_with_all_sequences_in_memory(gaps, per_output, chosen):
    model, guide, data = problem(gaps, per_output)
    whole = Posterior(model, guide, data, residual=None, widening=True)
    some = Posterior(model, *AutoExplicit.from_collapsed(guide, data).part(chosen))
    assert some.bound == pytest.approx(whole.bound, rel=1e-9)
    torch.testing.assert_close(some.inducing_mean, whole.inducing_mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(some.inducing_covariance(2), whole.inducing_covariance(2), rtol=1e-7, atol=1e-9)
    # from the same start: those of nearest frames need the frames
    t, y = partly(data)
    solver = Solver(num_starts=2)
    found, wanted = (post.reconstruct(t, y, solver=solver, trust=0.5) for post in (some, whole))
    assert found.bounds[-1] < found.bounds[0] + 1e-9
    assert found.bound == pytest.approx(wanted.bound, abs=1e-3)
    assert_same(found, wanted, 0.02)
    assert_same(some.forecast([0.1, 0.2], None), whole.forecast([0.1, 0.2], None))
    assert some.log_density(t, y) == pytest.approx(float(whole.log_density(t, y)), abs=1e-3)
    mean, variance = some.project(t, y)
    assert mean.shape == variance.shape == (8, 2)
    assert some.generate(t, 3).shape == (3, 8, 4)
    for place, index in enumerate(chosen):
        assert_same(some.forecast([3.0, 3.1], place), whole.forecast([3.0, 3.1], index))
        assert_same(some.forecast([3.0], str(index)), whole.forecast([3.0], index))
        assert_same(some.forecast([3.0, 3.1], place, given=y[:2]), whole.forecast([3.0, 3.1], index, given=y[:2]), 0.02)
        longer, wanted = some.extended([3.0, 3.1], y[:2], place), whole.extended([3.0, 3.1], y[:2], index)
        assert longer.bound == pytest.approx(wanted.bound, abs=1e-3)
        assert_same(longer.forecast([3.2], place), wanted.forecast([3.2], index), 0.02)
    if chosen:
        rows = SequenceDataset(data).rows(chosen)
        imputed, every = some.impute(), whole.impute()
        torch.testing.assert_close(imputed.mean, every.mean[rows], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(imputed.variance, every.variance[rows], rtol=1e-8, atol=1e-8)


def test_a_search_without_training_frames_starts_at_the_inducing_inputs():
    model, guide, data = problem(gaps=False)
    some = Posterior(model, *AutoExplicit.from_collapsed(guide, data).part())
    frames, x, lam = some.training.candidates
    assert len(x) == len(lam) == frames.num_frames == 1 + 6
    torch.testing.assert_close(x[1:], model.inducing.detach())
    expected = some.training.likelihood.output_scale * some.inducing_mean + model.output_mean
    torch.testing.assert_close(frames.read()[1:], expected)


def test_other_noise_scale_and_residuals():
    model, guide, data = problem()
    part = AutoExplicit.from_collapsed(guide, data).part([1])
    options = {"noise_variance": 0.3, "output_scale": [1.0, 2.0, 3.0, 4.0], "residual": None}
    some, whole = Posterior(model, *part, **options), Posterior(model, guide, data, **options)
    assert some.bound == pytest.approx(whole.bound, rel=1e-9)
    assert_same(some.forecast([3.0], 0), whole.forecast([3.0], 1))
    residual = Bias() + White()
    some, whole = Posterior(model, *part, residual=residual), Posterior(model, guide, data, residual=residual)
    assert_same(some.forecast([3.0], 0), whole.forecast([3.0], 1))


def test_no_data_are_read_after_training(tmp_path):
    """A model of mapped files predicts new sequences when the files are gone."""
    _, _, data = problem(gaps=False)
    np.save(tmp_path / "y.npy", data.read().numpy())
    np.save(tmp_path / "t.npy", data.times.t.numpy())

    class Watched(MappedSequences):
        closed = False

        def __getitem__(self, index):
            assert not self.closed, "data were read"
            return super().__getitem__(index)

    source = Watched(tmp_path / "y.npy", data.lengths, tmp_path / "t.npy")
    many = SequenceDataset(source)
    sample = many.sequences([0, 1])
    model = VGPDS.from_data(sample, 2, 6)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, sample, num_steps=3)
    explicit = AutoExplicit.from_sample(guide, sample, many, store=tmp_path / "sites.bin")
    result = fit(model, explicit, many, batch_size=2, epochs=2)
    source.closed = True
    guide, own = explicit.part()
    post = Posterior(model, guide, own)
    assert post.bound == pytest.approx(result.bound, rel=1e-9)
    assert "and 4 sequences that are not in memory" in repr(post)
    assert torch.isfinite(post.reconstruct(*partly(data)).mean).all()
    source.closed = False
    assert_same(
        Posterior(model, *explicit.part([3])).forecast([3.0], "3"),
        Posterior(model, explicit, many.sequences()).forecast([3.0], 3),
    )
    # after another step the sums are computed again
    explicit.eta[:3] += 0.1
    changed = Posterior(model, *explicit.part())
    assert changed.bound == pytest.approx(Posterior(model, explicit, many.sequences()).bound, rel=1e-9)
    assert changed.bound != pytest.approx(post.bound, rel=1e-9)


def test_files_and_copies(tmp_path):
    model, guide, data = problem()
    part = AutoExplicit.from_collapsed(guide, data).part([1])
    some = Posterior(model, *part, noise_variance=0.2)
    save_posterior(tmp_path / "post", some)
    save(tmp_path / "model", model, *part)
    again, loaded = load_posterior(tmp_path / "post"), load(tmp_path / "model")
    assert again.bound == some.bound
    assert_same(again.forecast([3.0], "1"), some.forecast([3.0], 0), 1e-12)
    assert isinstance(loaded[1], PartialGuide)
    assert Posterior(*loaded, noise_variance=0.2).bound == some.bound
    assert copy.deepcopy(some).bound == some.bound
    assert_same(copy.deepcopy(some).forecast([3.0], 0), some.forecast([3.0], 0), 1e-12)
    part[0].to("cpu")
    assert part[0].summary.sums.v.dtype == torch.float64


def test_priors_on_hyperparameters_and_names():
    model, _, data = problem(gaps=False)
    model.set_noise(dist.LogNormal(-3.0, 1.0))
    data.names = ["a", "b", "c", "d"]
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=3)
    whole = Posterior(model, guide, data, residual=None)
    some = Posterior(model, *AutoExplicit.from_collapsed(guide, data).part([2, 0]))
    assert some.data.names == ["c", "a"]
    assert some.bound == pytest.approx(whole.bound, rel=1e-8)
    assert_same(some.forecast([3.0], "a"), whole.forecast([3.0], "a"), 1e-7)


def test_sums_without_a_part_and_with_other_scales():
    model, guide, data = problem()
    q = guide.posterior(data)
    factor, slices = model.likelihood(q.mean, data).inducing_factor(), data.times.slices()
    many = SequenceDataset(data)

    def sums(indices, scale=None):
        part = many.sequences(indices)
        rows = torch.cat([torch.arange(slices[i].start, slices[i].stop) for i in indices])
        gp = model.likelihood(q.mean[rows], part)
        gp = gp if scale is None else gp.replaced(scale=scale)
        return frame_sums(gp, q.mean[rows], q.variance[rows], factor, gp.groups(part.y, columns=True))

    with torch.no_grad():
        rest, wanted = removed_sums(sums([0, 1, 2, 3]), sums([0, 2])), sums([1, 3])
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        other, wanted_other = rescaled_sums(wanted, model.output_scale, scale), sums([1, 3], scale)
        for found, right in ((rest, wanted), (other, wanted_other)):
            torch.testing.assert_close(found.a[found.of_output], take(right.a, right.of_output), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.v, right.v, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.square, right.square, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.rows, right.rows)
            torch.testing.assert_close(found.log_scale, right.log_scale, rtol=1e-9, atol=1e-9)
        # groups and statistics of frames in memory with those sums are those of all frames
        part = many.sequences([0, 2])
        gp = model.likelihood(q.mean, part)
        groups = joined_groups(gp.groups_of(part, columns=True), wanted)
        every = added_sums(sums([0, 2]), wanted)
        own = gp.kernel
        rows = torch.cat([torch.arange(slices[i].start, slices[i].stop) for i in (0, 2)])
        psi2 = own.psi2(q.mean[rows], q.variance[rows], gp.inducing, groups.mask)
        more = summary_psi(wanted, groups, factor)
        total = (psi2 + more.psi2)[groups.of_column]
        torch.testing.assert_close(total, (factor @ every.a @ factor.mT)[every.of_output], rtol=1e-8, atol=1e-8)
        assert torch.equal(groups.rows[groups.of_column], every.rows)
        assert sorted(groups.widths) == list(groups.widths)


def take(a, of_output):
    return torch.cat([a, torch.zeros_like(a[:1])])[of_output]


def test_errors():
    model, guide, data = problem(gaps=False)
    explicit = AutoExplicit.from_collapsed(guide, data)
    with pytest.raises(ValueError, match="sequences must be different sequences from 0 to 3, but 4 is not one"):
        explicit.part([4])
    with pytest.raises(ValueError, match="one repeats"):
        explicit.part([1, 1])
    with pytest.raises(ValueError, match="but the guide is free"):
        AutoExplicit(model, data, free=True).part()
    part = explicit.part([1])
    some = Posterior(model, *part)
    with pytest.raises(ValueError, match="needs natural steps with all training sequences in memory, but 3 sequences"):
        some.condition(some.data)
    with pytest.raises(ValueError, match="needs natural steps"):
        some.extended([3.0], data.read()[:1], 0, free=True)
    with pytest.raises(TypeError, match="guide has some of the sequences only"):
        fit(model, *part)
    with pytest.raises(TypeError, match="guide must be an AutoExplicit or AutoOpperArchambeau with batch_size"):
        fit(model, *part, batch_size=1)
